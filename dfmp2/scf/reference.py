"""The reference: orbitals, energies, stability, and the solutions found on the way."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any

import numpy as np

from dfmp2.arrays import Array
from dfmp2.errors import NumericalError, Option
from dfmp2.units import quantity as _q

GIVEN = ("given",)  # the ladder of a mean field converged elsewhere


@dataclass(frozen=True, slots=True, eq=False)
class StartOrbitals:
    """Orbitals to start the SCF from.

    Attributes
    ----------
    mo_coeff : (nspin, nao, nmo) float64
    mo_occ : (nspin, nmo) float64
    charges : nuclear charges of the atoms they belong to, None if the file does not contain them
    origin : file name, for the record
    """

    mo_coeff: Array
    mo_occ: Array
    charges: tuple[int, ...] | None
    origin: str


@dataclass(frozen=True, slots=True)
class Stability:
    """Lowest eigenvalues of the orbital Hessian (`dfmp2.scf.stability`).

    An internal instability leads to a lower solution of the same kind (RHF to RHF, UHF to UHF), an
    external one to another kind (RHF to UHF). The verdict names all that were found, the lowest
    first; it is "marginal" if an eigenvalue is zero within its error.
    """

    verdict: str = _q("", "stable, marginal, unstable, no instability found, or not checked")
    method: str = _q("", "which rotations were examined and how")
    lowest_eigenvalue: float = _q(
        "hartree", "lowest eigenvalue found; negative means a lower SCF solution exists"
    )
    energy_gain: float | None = _q(
        "hartree", "drop in energy along an unstable eigenvector, a lower bound on the gain", None
    )
    internal_eigenvalue: float | None = _q(
        "hartree", "lowest eigenvalue towards solutions of the same kind", None
    )
    internal_gain: float | None = _q(
        "hartree", "least energy gained by a lower solution of the same kind", None
    )
    external_eigenvalue: float | None = _q("hartree", "lowest eigenvalue of RHF towards UHF", None)
    external_gain: float | None = _q("hartree", "least energy gained by a lower UHF solution", None)

    @property
    def unstable(self) -> bool:
        """Whether a lower solution exists."""
        return self.verdict.startswith("unstable")

    @property
    def gains(self) -> dict[str, float]:
        """Least energy gained by each lower solution, Eh, by kind of instability, lowest first."""
        if not self.unstable:
            return {}
        kinds = self.verdict.removeprefix("unstable (").removesuffix(")").split(" and ")
        gains = dict.fromkeys(kinds, self.energy_gain or 0.0)
        for kind in kinds[1:]:  # files of dfmp2 0.1 have only one
            solution, lower = kind.split(" to ")
            if solution == lower:
                gains[kind] = self.internal_gain or 0.0
            else:
                gains[kind] = self.external_gain or 0.0
        return gains


@dataclass(frozen=True, slots=True, eq=False)
class GridError:
    """Grid error of a Kohn-Sham reference, from a finer integration grid (`dfmp2.scf.grid_error`).

    Errors are values on the grid of the SCF minus those on the finer one.
    """

    finer: str = _q("", "finer grid, as for --grid")
    finer_points: int = _q("", "its points")
    scf_error: float = _q("hartree", "error of the Kohn-Sham energy")
    exx_error: float | None = _q(
        "hartree", "error of the exact-exchange energy, through the orbitals (drpa)", None
    )
    coupling: Array | None = _q(
        "hartree",
        "Fock matrix on the finer grid minus that of the SCF (nspin, nmo, nmo) (drpa)",
        None,
    )


@dataclass(frozen=True, slots=True)
class RotationLeft:
    """What is left to a full convergence of the SCF, from the final orbitals
    (`dfmp2.scf.rotation_left`)."""

    gradient: float = _q(
        "hartree",
        "norm of f_ai of both spins for the final orbitals; of ROHF, where both spins rotate, of "
        "the sum of their f_ai",
    )
    rotation: float = _q("", "norm of the rotation of both spins to converged orbitals")
    spin_square: float = _q("", "change of <S^2> by that rotation")


@dataclass(frozen=True, slots=True, eq=False)
class Reference:
    """The converged reference, Hartree-Fock or Kohn-Sham."""

    kind: str = _q("", "rhf, uhf or rohf (semicanonical orbitals)")
    scf_type: str = _q("", "df or conventional")
    scf_total_energy: float = _q("hartree", "total energy of the SCF, Hartree-Fock or Kohn-Sham")
    nuclear_repulsion_energy: float = _q("hartree", "nuclear repulsion energy")
    cycles: int = _q("", "SCF iterations, rescue ladder included")
    ladder: tuple[str, ...] = _q("", "convergence methods used, in order")
    start: str = _q("", "where the start orbitals came from")
    spin_square: float = _q("", "<S^2> of the reference determinant")
    mo_coeff: Array = _q("", "orbital coefficients (nspin, nao, nmo)")
    mo_energy: Array = _q("hartree", "orbital energies (nspin, nmo)")
    mo_occ: Array = _q("", "orbital occupations (nspin, nmo)")
    stability: Stability | None = _q("", "orbital stability", None)
    solutions: Solutions | None = _q(
        "", "SCF solutions found, if more than one was looked for", None
    )
    history: Array | None = _q(
        "hartree", "energy, its change, orbital gradient of each SCF iteration (n, 3)", None
    )
    rotation_left: RotationLeft | None = _q(
        "", "what is left to a full convergence, if it was solved for", None
    )
    interatomic_fitting_error: float | None = _q(
        "hartree", "fitting error of E(SCF) between atoms, estimated", None
    )
    one_atom_fitting_errors: Array | None = _q(
        "hartree",
        "fitting errors of the Coulomb and exchange energies of one atom, and what they gain "
        "through the orbitals (3,)",
        None,
    )

    mo_coupling: Array | None = _q(
        "hartree",
        "Fock matrices between occupied and virtual orbitals (2, nmo, nmo), if not zero (ROHF)",
        None,
    )
    xc: str | None = _q(
        "", "functional of a Kohn-Sham reference, restricted for rhf, unrestricted for uhf", None
    )
    grid_level: int | None = _q(
        "", "level of the integration grid in PySCF (Kohn-Sham), if it has one", None
    )
    grid: str | None = _q("", "integration grid (Kohn-Sham): its level, or NRAD,NANG", None)
    grid_points: int | None = _q("", "points of the integration grid", None)
    grid_error: GridError | None = _q("", "error of the integration grid, measured", None)
    exx_total_energy: float | None = _q(
        "hartree", "Hartree-Fock energy of the Kohn-Sham determinant", None
    )
    energy_xc: str | None = _q(
        "",
        "functional of the energy of a double hybrid, if not that of the orbitals",
        None,
    )
    functional_energy: float | None = _q(
        "hartree", "energy of that functional with these orbitals", None
    )
    operations: Array | None = _q(
        "", "operations of fitted J and K, in float64 and in float32 (2,)", None
    )
    dipole: Array | None = _q(
        "elementary charge * bohr", "dipole moment relative to the origin (3,)", None
    )

    solvent_energy: float | None = _q(
        "hartree", "energy of the reaction field of a solvent, contained in that of the SCF", None
    )
    smd_cds_energy: float | None = _q(
        "hartree",
        "cavitation, dispersion and solvent structure (SMD), contained in that of the SCF",
        None,
    )
    dielectric_constant: float | None = _q("", "dielectric constant of the solvent", None)
    surface_points: int | None = _q("", "points on the surface of the cavity", None)
    turning_gain: float | None = _q(
        "hartree",
        "lowering of the energy by turning the orbitals about an axis of the nuclei on the surface "
        "of the cavity; absent if there is none",
        None,
    )

    def __post_init__(self) -> None:
        """Raise ValueError unless the history has one row of three numbers per iteration, and an
        atom three fitting errors, of which the last is no loss."""
        if self.history is not None and self.history.shape != (len(self.history), 3):
            raise ValueError(
                f"the SCF history has shape {self.history.shape}, expected (iterations, 3)"
            )
        errors = self.one_atom_fitting_errors
        if errors is not None and (errors.shape != (3,) or errors[2] < 0.0):
            raise ValueError(f"the fitting errors of one atom are {errors}: expected e_J, e_K, e_2")

    def singles_energy(self, frozen_core: int, frozen_virtual: int) -> float:
        """sum_ia |f_ia|^2 / (e_i - e_a) over both spins, Eh; 0 for canonical orbitals.

        Parameters
        ----------
        frozen_core, frozen_virtual : lowest occupied and highest virtual orbitals left out per spin
        """
        if self.mo_coupling is None:
            return 0.0
        parts = []
        for f, e, n in zip(self.mo_coupling, self.mo_energy, self.mo_occ, strict=True):
            nocc, last = int((n > 0).sum()), e.size - frozen_virtual
            i, a = slice(frozen_core, nocc), slice(nocc, last)
            parts.append(float((f[i, a] ** 2 / (e[i, None] - e[a])).sum()))
        return sum(parts) + 0.0

    @property
    def name(self) -> str:
        """rhf, uhf or rohf; rks or uks for Kohn-Sham orbitals."""
        if self.xc is None:
            return self.kind
        return self.kind.replace("hf", "ks")

    @property
    def title(self) -> str:
        """The name as chemists write it, with the functional."""
        return self.name.upper() + ("" if self.xc is None else f"({self.xc})")

    @property
    def grid_name(self) -> str | None:
        """Name of the integration grid, as for `--grid`; None for Hartree-Fock."""
        if self.grid is None and self.grid_level is not None:  # in files of earlier versions
            return str(self.grid_level)
        return self.grid

    @property
    def hf_total_energy(self) -> float:
        """Hartree-Fock energy of the determinant, to which the correlation energy is added, Eh."""
        if self.exx_total_energy is None:
            return self.scf_total_energy
        return self.exx_total_energy

    @property
    def nspin(self) -> int:
        """1 for a restricted, 2 for an unrestricted reference."""
        return int(self.mo_energy.shape[0])

    def as_start(self, origin: str) -> StartOrbitals:
        """Its orbitals, from which another SCF of the same atoms and basis may start."""
        return StartOrbitals(
            mo_coeff=self.mo_coeff, mo_occ=self.mo_occ, charges=None, origin=origin
        )

    def require_complete(self) -> None:
        """Raise unless the orbitals span the basis: the response of missing orbitals is unknown.

        Raises
        ------
        NumericalError
        """
        _, nao, nmo = self.mo_coeff.shape
        if nmo < nao:
            raise NumericalError(
                (
                    f"{nao - nmo} of {nao} basis functions were dropped because they are linearly "
                    "dependent: the energy has no gradient where their number may change; use a "
                    "smaller "
                ),
                Option("basis"),
            )


def common_orbitals(first: Reference, second: Reference, overlap: Array) -> float:
    """Smallest cosine between the occupied spaces of two references in the same basis; 1 if they
    are equal.

    It is the smallest singular value of C1^T S C2 over both spins; 0 means that an electron
    occupies another orbital.

    Parameters
    ----------
    overlap : S, (nao, nao)
    """
    cosines = [1.0]
    for c1, n1, c2, n2 in zip(
        first.mo_coeff, first.mo_occ, second.mo_coeff, second.mo_occ, strict=True
    ):
        cosines += list(np.linalg.svd(c1[:, n1 > 0].T @ overlap @ c2[:, n2 > 0], compute_uv=False))
    return float(min(cosines))


# Columns of Solutions
SOLUTION = ("start", "origin", "energy", "spin_square", "lowest_eigenvalue", "kind")


@dataclass(frozen=True, slots=True)
class Solutions:
    """SCF solutions in the order they were found: columns of equal length.

    Within a start, every solution after the first follows the instability of the previous one.
    """

    start: tuple[int, ...] = _q("", "start that the solution belongs to, from 1")
    origin: tuple[str, ...] = _q("", "where the orbitals of that start came from")
    energy: tuple[float, ...] = _q("hartree", "SCF energy, NaN if it did not converge")
    spin_square: tuple[float, ...] = _q("", "<S^2>")
    lowest_eigenvalue: tuple[float, ...] = _q(
        "hartree", "lowest eigenvalue of the orbital Hessian, NaN if not examined"
    )
    kind: tuple[str, ...] = _q("", "kind of rotation that the eigenvalue belongs to")
    chosen: int = _q("", "the solution that is used, from 1")

    def __post_init__(self) -> None:
        """Raise ValueError if the columns differ in length, or the chosen solution is missing."""
        lengths = {len(getattr(self, name)) for name in SOLUTION}
        if len(lengths) != 1 or not 1 <= self.chosen <= len(self.energy):
            raise ValueError(
                f"columns of {sorted(lengths)} SCF solutions, of which {self.chosen} is used"
            )

    def rows(self) -> list[dict[str, Any]]:
        """Each solution as a mapping from column names."""
        columns = zip(*(getattr(self, name) for name in SOLUTION), strict=True)
        return [dict(zip(SOLUTION, values, strict=True)) for values in columns]

    @property
    def followed(self) -> int:
        """Number of instabilities followed on the way to the chosen solution."""
        return self.start[: self.chosen - 1].count(self.start[self.chosen - 1])
