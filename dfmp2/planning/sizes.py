"""The size model: dimensions of a run, and the resulting operations and integrals per stage.

One multiplication and one addition count as two operations. The number of SCF iterations is not
known beforehand: `scf_cycles` gives that of molecules near equilibrium, starting from atomic
densities.
"""

from __future__ import annotations

import math
from collections.abc import Iterable, Sequence
from dataclasses import dataclass

import numpy as np

from dfmp2.molecule.elements import fills_inner_shell
from dfmp2.units import quantity as _q

FLOAT64, FLOAT32 = 8, 4
LEAST_SAMPLED = 48  # pairs per channel that the certificate recomputes; all if there are fewer
# fraction of the pairs of a channel, which keeps the uncertainty of the certificate constant as
# molecules grow
FRACTION = 0.02
SAMPLED = 16  # occupied orbitals per spin for the weights of fitting functions
# occupied orbitals whose integrals a fitting certificate computes exactly; all if there are fewer
EXACT_ROWS = 24
# of the occupied orbitals of each spin, by energy; at least two orbitals of each are drawn
EXACT_STRATA = 4
EXACT_BUILDS = 2  # of the exact Fock matrix until the conventional SCF converges
# SCF iterations to a gradient of 1e-6 Eh: 9 to 14 for main group molecules of up to 30 atoms
CYCLES = 12
CYCLES_PER_DIGIT = 1.7  # of the gradient
METAL_CYCLES = 3  # more if a d or f shell is partly filled
IN_FIELDS = 6  # runs for a polarizability (dfmp2.gradients.density)
# Cost of a product of primitive functions, in integrals of three or four centres
PRIMITIVE = {3: 1.3, 4: 0.5}
# products with the orbital Hessian to find the lowest rotation of a kind: 21 to 54
# (dfmp2.scf.rotations)
EXAMINED = 30
# the same to find what an ROHF has left (dfmp2.scf.rotation_left)
LEFT = 5
# Kohn-Sham iterations on a coarser grid in float32 (dfmp2.scf.kohn_sham), and the factor by which
# they are cheaper than the others
COARSE_BUILDS, COARSER = 8, 8
SINGLE_BUILDS = 7  # of these and the first one, in float32 if the SCF uses it (dfmp2.scf.jk)


def sampled_pairs(count: int) -> int:
    """Number of pairs that the certificate recomputes in a channel of `count` pairs; known before
    any energy."""
    return min(count, max(LEAST_SAMPLED, math.ceil(FRACTION * count)))


def exact_row_shares(counts: Sequence[int]) -> list[list[int]]:
    """Numbers of occupied orbitals of each spin and stratum whose integrals a fitting certificate
    computes exactly.

    Parameters
    ----------
    counts : correlated occupied orbitals of each spin
    """
    total = sum(counts)
    if total <= EXACT_ROWS:
        return [[count] for count in counts]
    sizes = [
        [len(part) for part in np.array_split(np.arange(count), EXACT_STRATA)] for count in counts
    ]
    return [[min(n, max(2, round(EXACT_ROWS * n / total))) for n in parts] for parts in sizes]


@dataclass(frozen=True, slots=True)
class Sizes:
    """Dimensions; pairs of numbers are (alpha, beta)."""

    natom: int = _q("", "atoms, ghosts included")
    nelectron: int = _q("", "explicit electrons")
    nao: int = _q("", "orbital basis functions (spherical)")
    nmo: int = _q("", "molecular orbitals")
    naux_scf: int = _q("", "functions of the SCF fitting set, 0 for a conventional SCF")
    naux: int = _q("", "functions of the MP2 fitting set")
    frozen_core: int = _q("", "frozen core orbitals per spin")
    nocc: tuple[int, int] = _q("", "correlated occupied orbitals (alpha, beta)")
    nvir: tuple[int, int] = _q("", "correlated virtual orbitals (alpha, beta)")
    frozen_virtual: int = _q("", "virtual orbitals left out per spin")


@dataclass(frozen=True, slots=True)
class Spin:
    """Orbitals of one spin: all occupied ones, and the correlated occupied and virtual ones."""

    occupied: int
    nocc: int
    nvir: int


@dataclass(frozen=True, slots=True)
class Workload:
    """Sizes of a calculation.

    Attributes
    ----------
    nao : orbital basis functions
    naux_scf : functions of the SCF fitting set, 0 for a conventional SCF
    naux : functions of the MP2 fitting set
    spins : one (restricted) or two
    precision : "fp64", "mixed" or "auto"
    block_functions : MP2 fitting functions in the largest block of integrals
    scf_columns : pairs of basis functions the fitted SCF integrals are kept for, 0 for all
    rectangles : numbers of a fitting function that the float32 iterations of the SCF gather from
        the pairs, 0 for none
    widest_shell : functions of the largest shell of the orbital basis
    frontier : occupied and virtual orbitals of each spin considered by the stability check
    single_exchange : whether the SCF starts with float32 exchange
    x2c_functions : functions of the decontracted basis used for X2C, 0 without it
    starts : number of SCF starts
    examined : whether the stability of each solution is checked for all rotations, or what an ROHF
        has left is solved for
    products : products with the orbital Hessian for each kind of rotation, if so
    primitives : primitive functions in the shells of the orbital basis, 0 if uncontracted
    potentials : atoms with a core potential
    cycles : expected SCF iterations per start
    checked : whether PySCF's DF-MP2 is computed as well
    atoms : ghosts included
    task : what is computed, "energy", "properties" (relaxed densities) or "gradient"
    in_fields : number of subsequent runs in uniform fields
    points : typical number of quadrature points of a method without pairs; 0 with pairs
    grid, finer_grid : points of the Kohn-Sham integration grid, and of the one used to measure its
        error; 0 for Hartree-Fock
    coarse_grid : points of the initial grid of the SCF, 0 if it uses the final one throughout
    exchange : whether the SCF needs K
    operators : number of two-electron operators in the SCF: 2 for a range-separated functional,
        whose long-range operator has separate integrals
    surface : points on the surface of a solvent's cavity, 0 in the gas phase
    kernel : numbers of the functional's kernel at a point; 0 for Hartree-Fock
    """

    nao: int
    naux_scf: int
    naux: int
    spins: tuple[Spin, ...]
    precision: str
    block_functions: int
    scf_columns: int = 0
    rectangles: int = 0
    widest_shell: int = 1
    frontier: tuple[tuple[int, int], ...] = ()
    single_exchange: bool = False
    x2c_functions: int = 0
    starts: int = 1
    examined: bool = False
    products: int = EXAMINED
    primitives: int = 0
    potentials: int = 0
    cycles: int = CYCLES
    checked: bool = False
    atoms: int = 0
    task: str = "energy"
    in_fields: int = 0
    points: int = 0
    grid: int = 0
    finer_grid: int = 0
    coarse_grid: int = 0
    exchange: bool = True
    operators: int = 1
    surface: int = 0
    kernel: int = 0

    @property
    def scf_builds(self) -> int:
        """Number of J and K builds in all SCF iterations; instabilities are not anticipated."""
        return self.starts * (self.cycles + 1)

    @property
    def hessian_products(self) -> int:
        """Number of products with the orbital Hessian for all solutions."""
        kinds = 2 if len(self.spins) == 1 else 1  # RHF to RHF and to UHF
        if self.examined:
            return self.starts * kinds * self.products
        return 0

    @property
    def pairs_of_functions(self) -> int:
        """Number of pairs mu >= nu of basis functions."""
        return self.nao * (self.nao + 1) // 2

    @property
    def kept_pairs(self) -> int:
        """Number of pairs of basis functions for which fitted SCF integrals are stored."""
        return self.scf_columns or self.pairs_of_functions

    @property
    def orbital_bytes(self) -> int:
        """Bytes of the orbitals of all spins in a file."""
        return FLOAT64 * len(self.spins) * self.nao**2

    @property
    def elements(self) -> int:
        """Number of elements (i, a) of all spins: B has this many rows of naux."""
        return sum(s.nocc * s.nvir for s in self.spins)

    @property
    def frontier_elements(self) -> int:
        """Number of elements (i, a), (i, j) and (a, b) of the frontier orbitals of all spins, for
        which the check holds B."""
        return sum(o * v + o**2 + v**2 for o, v in self.frontier)

    @property
    def b_bytes(self) -> int:
        """Bytes of B of all spins in float64."""
        return self.elements * self.naux * FLOAT64

    @property
    def row_bytes(self) -> int:
        """Bytes of B of one occupied orbital, (nvir, naux) float64, of the wider spin."""
        return max((s.nvir for s in self.spins), default=0) * self.naux * FLOAT64

    @property
    def metric_bytes(self) -> int:
        """Bytes of a matrix over MP2 fitting functions in float64."""
        return self.naux**2 * FLOAT64

    @property
    def frontier_bytes(self) -> int:
        """Bytes of B of the frontier orbitals in float64."""
        return self.frontier_elements * self.naux * FLOAT64

    @property
    def hessian_bytes(self) -> int:
        """Bytes of the orbital Hessian of the frontier orbitals, and of its blocks."""
        rotations = [occupied * virtual for occupied, virtual in self.frontier]
        return (sum(rotations) ** 2 + 3 * max(rotations, default=0) ** 2) * FLOAT64

    @property
    def half_transformed(self) -> int:
        """Largest number of orbitals, over all ranges, that the first index of the MP2 integrals is
        transformed to."""
        return sum(s.occupied for s in self.spins) + sum(virtual for _, virtual in self.frontier)

    def integrals(self) -> dict[str, float]:
        """Integrals per stage, three-centre or, in a conventional SCF, four-centre, including the
        primitive ones.

        For a contracted basis the primitive ones dominate: each counts as PRIMITIVE of a contracted
        one.
        """
        n = self.primitives or self.nao
        contracted = self.pairs_of_functions
        primitive = n * (n + 1) // 2
        three = contracted + PRIMITIVE[3] * primitive
        four = contracted * (contracted + 1) / 2 + PRIMITIVE[4] * primitive * (primitive + 1) / 2
        return {
            "scf": self.operators * (self.naux_scf * three if self.naux_scf else four),
            "integrals": self.naux * three,
        }

    def flops(self) -> dict[str, int]:
        """Floating-point operations per kind of work.

        exchange, exchange_single : J and K of the SCF iterations in float64 and in float32
        scf_fit : fit of the SCF integrals
        eigen : nao^3 per diagonalisation
        transform, fit : AO to MO transformation and fit of the MP2 integrals
        pairs_fp64, pairs_mixed : pair energies in that precision, with the certificate's sample in
            float64
        functional : exchange-correlation energy and potential of the SCF, in points times functions
        """
        n, p = self.nao, self.naux_scf
        single = self.starts * SINGLE_BUILDS if self.single_exchange else 0
        if p:
            # Half transformation 2 p n^2 nocc over the pairs kept, symmetric product p n^2 nocc,
            # Coulomb 2 p npair, 4 without exchange.
            half = 2 * p * n * n * self.kept_pairs // self.pairs_of_functions
            coulomb = 2 * (2 - self.exchange) * p * self.kept_pairs
            per_build = self.operators * sum(
                (p * n * n + half) * self.exchange * s.occupied + coulomb for s in self.spins
            )
            per_product = sum(
                half * s.occupied + 2 * p * s.occupied**2 * (3 * n - s.occupied) for s in self.spins
            )
        else:
            per_build = 4 * self.operators * len(self.spins) * self.pairs_of_functions**2
            per_product = 2 * per_build
        amplitudes = [(self._pair_count(k), k) for k in range(3 if len(self.spins) == 2 else 1)]
        per_channel = [2 * count * self.naux * self._virtuals(k) for count, k in amplitudes]
        sampled = [
            2 * sampled_pairs(count) * self.naux * self._virtuals(k) for count, k in amplitudes
        ]
        exact = self.precision == "fp64"
        if self.points:
            per_channel = [self.points * self.naux**2 * self.elements]
        return {
            "exchange": (self.scf_builds - single) * per_build,
            "exchange_single": single * per_build,
            "examined": self.hessian_products * per_product,
            "scf_fit": self.operators * p * p * self.kept_pairs,
            "functional": self._functional_points * len(self.spins) * n,
            "eigen": self.starts * (self.cycles + 1) * len(self.spins) * n**3,
            "transform": sum(2 * self.naux * s.nocc * n * (n + s.nvir) for s in self.spins)
            + 2 * self.naux * n * (n * sum(v for _, v in self.frontier) + self.frontier_elements),
            "fit": self.naux**2 * self.elements,
            "pairs_fp64": sum(per_channel) if exact else sum(sampled),
            "pairs_mixed": 0 if exact else sum(per_channel),
        }

    @property
    def _functional_points(self) -> int:
        """Points in all evaluations of the functional: for the SCF, and for the error of its
        grid."""
        builds = self.scf_builds
        if self.precision != "fp64":
            coarse = self.starts * COARSE_BUILDS
            builds -= coarse - coarse // COARSER
        return (builds + 1) * self.grid + self.finer_grid

    def _pair_count(self, channel: int) -> int:
        """Number of pairs evaluated in a channel: alpha-alpha (or closed-shell), beta-beta,
        alpha-beta."""
        if channel == 2:
            return self.spins[0].nocc * self.spins[1].nocc
        nocc = self.spins[channel].nocc
        return nocc * (nocc + 1) // 2

    def _virtuals(self, channel: int) -> int:
        """Number of amplitudes per pair."""
        if channel == 2:
            left, right = (self.spins[0], self.spins[-1])
        else:
            left, right = (self.spins[channel],) * 2
        return left.nvir * right.nvir


def scf_cycles(tolerance: float, elements: Iterable[str], *, started: bool = False) -> int:
    """Expected number of SCF iterations.

    Parameters
    ----------
    tolerance : of the orbital gradient, Eh
    elements : symbols
    started : whether it starts from converged orbitals, e.g. of another geometry, which saves about
        three digits
    """
    digits = -math.log10(tolerance) - (9 if started else 6)
    filling = any(map(fills_inner_shell, elements))
    return max(2, round(CYCLES + CYCLES_PER_DIGIT * digits) + (METAL_CYCLES if filling else 0))
