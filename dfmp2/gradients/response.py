"""The response of the orbitals: relaxed densities, and the Z-vector equations.

The second-order energy is made stationary with respect to the Fock matrix f and the overlap S of
the orbitals,

    L = E2 + sum_pq P_pq f_pq - sum_pq W_pq (S_pq - d_pq)                in each spin

P_ik and P_ac of correlated orbitals come from the amplitudes (`dfmp2.gradients.amplitudes`). With
dC = C U, the integrals (pq|Q) and Z_iaQ = sum_P Y_iaP L^-1_PQ, the condition dL/dU_pq - 2 W_pq = 0
involves

    M_pi = 2 sum_aQ (pa|Q) Z_iaQ + 2 e_p P_pi + 2 G_pi                   i correlated
    M_pc = 2 e_p P_pc + 2 G_pc                                           c frozen core
    M_pa = 2 sum_iQ (pi|Q) Z_iaQ + 2 e_p P_pa                            a correlated
    M_pv = 2 e_p P_pv                                                    v frozen virtual
    G = J[sum of P over spins] - K[P of the spin]

and M_pq = M_qp for every pair of orbitals. With T the first terms, this gives

    P_ci = T_ci / (2 (e_i - e_c))         P_va = T_va / (2 (e_a - e_v))
    (e_a - e_i) P_ai + G_ai[P_ov] = -(T_ai - T_ia) / 2 - G_ai[all other P]          Z-vector
    W_pq = (M_pq + M_qp) / 4

With Kohn-Sham orbitals f is the Fock matrix of the functional of the SCF, and

    G = J[sum of P over spins] - X[P of the spin] + f_xc[P of both spins]

with its exact exchange X and its kernel f_xc. If the energy has another functional, with Fock
matrix F', which the orbitals do not make stationary, 2 F'_pi is added to M_pi of all occupied i; W
then belongs to the whole energy. Neese, Schwabe, Grimme, J. Chem. Phys. 126, 124115 (2007).

The Z-vector equations are solved by minimising the residual in the space of preconditioned
residuals, with one Coulomb and exchange build for each, in float32 if the SCF used it, and a
functional's kernel on a coarser grid in float32. The residual is recomputed in float64 with the
matrices of the SCF. The matrix of the equations is that of the stability analysis
(`dfmp2.scf.rotations`).

A linear molecule or an atom whose orbitals are less symmetric than its nuclei (OH, singlet O2) has
rotations v that change no energy (`dfmp2.scf.rotations`): H v = 0 and v b = 0. The solution is the
one without v; an SCF that has converged to g makes both products as small as g, and their quotient
anything. Sources: Handy and Schaefer, J. Chem. Phys. 81, 5031 (1984); Weigend and
Haeser, Theor. Chem. Acc. 97, 331 (1997); UHF: Aikens et al., Theor. Chem. Acc. 110, 233 (2003).
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any

import numpy as np

from dfmp2.arrays import Array
from dfmp2.errors import ConvergenceError, NumericalError, Option
from dfmp2.integrals.spaces import ActiveSpace
from dfmp2.progress import Listener
from dfmp2.scf.kohn_sham import HARTREE_FOCK, ExactExchange
from dfmp2.scf.response_matrices import Kernel, orbital_hessian
from dfmp2.scf.rotations import RotatedSpin, Subspace, coulomb_exchange, flattened, split, without
from dfmp2.units import counted_text, told_apart

# Eh, largest norm of the Z-vector residual: an error of up to 1e-9 Eh/bohr in a gradient
RESIDUAL = 5e-11
GAIN = 1e-5  # reduction of the residual by iterations before it is recomputed in float64
MOST_CYCLES = 60
SMALLEST = 0.05  # Eh, smallest denominator in the preconditioner
DEGENERATE = 1e-4  # Eh, between a correlated and a frozen orbital
# Largest part of x along one eigenvector of the orbital Hessian: 0.01 to 0.03 in CH3, H2O, LiH, OH;
# 0.2 in O3, 0.3 in C2H3, 0.5 in HNO+, 0.6 in CN, 1.4 in NO, whose frequencies are known to be wrong
STRONG = 0.25


@dataclass(frozen=True, slots=True, eq=False)
class Orbitals:
    """Orbitals of a spin, occupied ones first, by energy: frozen core, correlated, virtual, frozen
    virtual.

    Attributes
    ----------
    coeff : (nao, nmo)
    energy : (nmo,) Eh
    core, nocc, nvir, virtual : numbers of frozen core, correlated occupied, correlated virtual and
        frozen virtual orbitals
    """

    coeff: Array
    energy: Array
    core: int
    nocc: int
    nvir: int
    virtual: int

    @classmethod
    def of_space(cls, coeff: Array, energy: Array, occ: Array, space: ActiveSpace) -> Orbitals:
        """The orbitals of a spin, those of the active space being correlated; `occ` holds the
        occupations, (nmo,)."""
        occupied = int(np.count_nonzero(occ))
        return cls(
            coeff=coeff,
            energy=energy,
            core=occupied - space.nocc,
            nocc=space.nocc,
            nvir=space.nvir,
            virtual=len(occ) - occupied - space.nvir,
        )

    @property
    def occupied(self) -> int:
        """Number of occupied orbitals."""
        return self.core + self.nocc

    @property
    def last(self) -> int:
        """End of the correlated virtual orbitals."""
        return self.occupied + self.nvir

    @property
    def density(self) -> Array:
        """C_occ C_occ^T, (nao, nao)."""
        c = self.coeff[:, : self.occupied]
        return np.asarray(c @ c.T)

    @property
    def rotations(self) -> RotatedSpin:
        """Rotations of occupied into virtual orbitals."""
        return RotatedSpin(
            self.coeff[:, : self.occupied],
            self.coeff[:, self.occupied :],
            self.energy[self.occupied :, None] - self.energy[: self.occupied],
        )

    @property
    def zeros(self) -> Array:
        """(nmo, nmo) zeros."""
        return np.zeros((len(self.energy),) * 2)

    def embedded(self, occupied: Array, virtual: Array) -> Array:
        """A matrix between correlated orbitals of the same kind, in all orbitals, (nmo, nmo)."""
        matrix = self.zeros
        matrix[self.core : self.occupied, self.core : self.occupied] = occupied
        matrix[self.occupied : self.last, self.occupied : self.last] = virtual
        return matrix

    def in_functions(self, matrix: Array) -> Array:
        """C X C^T, (nao, nao), for X (nmo, nmo)."""
        return np.asarray(self.coeff @ matrix @ self.coeff.T)


@dataclass(frozen=True, slots=True, eq=False)
class Relaxed:
    """Densities of the correlation energy in the orbitals of a spin, (nmo, nmo) symmetric.

    Attributes
    ----------
    unrelaxed : P_ik and P_ac of correlated orbitals
    relaxed : P
    weighted : W, Eh
    """

    unrelaxed: Array
    relaxed: Array
    weighted: Array


@dataclass(frozen=True, slots=True, eq=False)
class FockBuilder:
    """Response of the SCF's Fock matrix to a change of the density.

    Attributes
    ----------
    mf : PySCF mean field that provides Coulomb and exchange matrices
    exact : exact exchange of the functional, or that of Hartree-Fock
    kernel : V_xc for changes of the density, None for Hartree-Fock
    quick_kernel : the same on a coarser grid, for iterations whose residual is recomputed
    single : whether fitted exchange matrices of these iterations are float32; the residual never is
    held : whether there is memory for integrals of the occupied orbitals
        (`dfmp2.scf.response_matrices`)
    """

    mf: Any
    exact: ExactExchange = HARTREE_FOCK
    kernel: Kernel | None = None
    quick_kernel: Kernel | None = None
    single: bool = False
    held: bool = False


def relax(
    builder: FockBuilder,
    spins: Sequence[Orbitals],
    unrelaxed: Sequence[Array],
    occupied: Sequence[Array],
    virtual: Sequence[Array],
    listener: Listener,
    energy_fock: Sequence[Array] | None,
    free: Sequence[Array],
) -> tuple[list[Relaxed], float]:
    """P and W of each spin, and the norm of the residual of the Z-vector equations, Eh.

    Parameters
    ----------
    builder : FockBuilder
        Response of the Fock matrix of the SCF.
    unrelaxed : sequence of array
        P of correlated orbitals, (nmo, nmo) per spin.
    occupied, virtual : sequence of array
        T, (nmo, nocc) and (nmo, nvir) Eh per spin.
    energy_fock : sequence of array, optional
        F', (nmo, nmo) Eh per spin, if the energy has another functional.
    free : sequence of array
        Orthonormal rotations that change no energy, from `dfmp2.scf.rotations.free_rotations`.

    Raises
    ------
    ConvergenceError
        The Z-vector equations do not converge.
    NumericalError
        A frozen orbital is degenerate with a correlated one.
    """
    weight = 2.0 if len(spins) == 1 else 1.0
    drive = [_driving_terms(*each) for each in zip(spins, occupied, virtual, strict=True)]
    densities = [_mixed(*each) for each in zip(spins, unrelaxed, drive, strict=True)]
    if energy_fock is not None:  # symmetric: it drives rotations of occupied into virtual orbitals
        for o, t, fock in zip(spins, drive, energy_fock, strict=True):
            t[:, : o.occupied] += 2 * fock[:, : o.occupied]
    fields = _fields(builder, spins, densities, weight)
    right = [
        -(t - t.T)[o.occupied :, : o.occupied] / 2 - g[o.occupied :, : o.occupied]
        for o, t, g in zip(spins, drive, fields, strict=True)
    ]
    response, response_fields, residual = solve(builder, spins, right, weight, listener, free)
    relaxed = []
    for s, o in enumerate(spins):
        p = densities[s]
        p[o.occupied :, : o.occupied] = response[s]
        p[: o.occupied, o.occupied :] = response[s].T
        m = drive[s] + 2 * o.energy[:, None] * p
        m[:, : o.occupied] += 2 * (fields[s] + response_fields[s])[:, : o.occupied]
        relaxed.append(Relaxed(unrelaxed=unrelaxed[s], relaxed=p, weighted=(m + m.T) / 4))
    return relaxed, residual


def _driving_terms(o: Orbitals, occupied: Array, virtual: Array) -> Array:
    """T of correlated orbitals as columns of all orbitals, (nmo, nmo) Eh."""
    t = o.zeros
    t[:, o.core : o.occupied] = occupied
    t[:, o.occupied : o.last] = virtual
    return t


def _mixed(o: Orbitals, unrelaxed: Array, t: Array) -> Array:
    """P with the blocks between frozen and correlated orbitals, (nmo, nmo).

    Raises
    ------
    NumericalError
        Two of them are degenerate, so that the smallest displacement would mix them.
    """
    p = unrelaxed.copy()
    kinds = (
        ("core", slice(0, o.core), slice(o.core, o.occupied)),
        ("virtual", slice(o.last, o.last + o.virtual), slice(o.occupied, o.last)),
    )
    for name, frozen, correlated in kinds:
        gaps = o.energy[correlated] - o.energy[frozen, None]
        if not gaps.size:
            continue
        closest = float(np.abs(gaps).min())
        if closest < DEGENERATE:
            raise NumericalError(
                f"a frozen {name} orbital is degenerate with a correlated one ({closest:.0e} Eh "
                "apart), so that the energy has no gradient: freeze one orbital more or fewer"
            )
        p[frozen, correlated] = t[frozen, correlated] / (2 * gaps)
        p[correlated, frozen] = p[frozen, correlated].T
    return p


def _fields(
    builder: FockBuilder, spins: Sequence[Orbitals], densities: Sequence[Array], weight: float
) -> list[Array]:
    """G of each spin between its orbitals, (nmo, nmo) Eh, writing each density as the difference of
    two with orbitals."""
    orbitals = []
    for o, p in zip(spins, densities, strict=True):
        values, vectors = np.linalg.eigh(p)
        for part in (values > 0, values < 0):
            orbitals.append(
                np.ascontiguousarray(o.coeff @ (vectors[:, part] * np.sqrt(np.abs(values[part]))))
            )
    return _field_of_differences(builder, spins, orbitals, weight)


def _fields_of_rotations(
    builder: FockBuilder,
    spins: Sequence[Orbitals],
    rotations: Sequence[RotatedSpin],
    found: Sequence[Array],
    weight: float,
) -> list[Array]:
    """G of P_ai and P_ia alone, as in `_fields`: C_vir x C_occ^T + C_occ x^T C_vir^T is the
    difference of two squares."""
    orbitals = []
    for rotation, x in zip(rotations, found, strict=True):
        turned = rotation.virtual @ x
        orbitals += [(rotation.occupied + sign * turned) / np.sqrt(2) for sign in (1, -1)]
    return _field_of_differences(builder, spins, orbitals, weight)


def _field_of_differences(
    builder: FockBuilder, spins: Sequence[Orbitals], orbitals: list[Array], weight: float
) -> list[Array]:
    """G between the orbitals of each spin, for densities A A^T - B B^T; `orbitals` lists A and B of
    the first spin, then of the second."""
    j, k = coulomb_exchange(builder.mf, orbitals, builder.exact)
    coulomb = weight * (j[0::2] - j[1::2]).sum(axis=0)
    fields = [coulomb - own for own in k[0::2] - k[1::2]]
    if builder.kernel is not None:
        changes = [
            plus @ plus.T - minus @ minus.T
            for plus, minus in zip(orbitals[0::2], orbitals[1::2], strict=True)
        ]
        for field, potential in zip(fields, builder.kernel(changes), strict=True):
            field += potential
    return [o.coeff.T @ field @ o.coeff for o, field in zip(spins, fields, strict=True)]


def solve(
    builder: FockBuilder,
    spins: Sequence[Orbitals],
    right: Sequence[Array],
    weight: float,
    listener: Listener,
    free: Sequence[Array] = (),
) -> tuple[list[Array], list[Array], float]:
    """x of H x = b, (nvir, nocc) per spin, its G as in `_fields`, and the norm of b - H x, Eh, all
    without `free` rotations.

    Parameters
    ----------
    right : b, (nvir, nocc) per spin
    weight : weight of J in H, as in `dfmp2.scf.rotations.hessian_product`
    free : orthonormal rotations that change no energy

    Raises
    ------
    ConvergenceError : not below RESIDUAL after MOST_CYCLES
    """
    rotations = [o.rotations for o in spins]
    differences = flattened([rotation.differences for rotation in rotations])
    hessian = orbital_hessian(
        builder.mf,
        rotations,
        builder.exact,
        builder.quick_kernel,
        single=builder.single,
        held=builder.held,
    )
    subspace = Subspace(
        lambda x: flattened(hessian(split(x, rotations), weight)),
        np.where(np.abs(differences) < SMALLEST, SMALLEST, differences),
        free,
    )
    b = without(flattened(right), free)
    x, residual = np.zeros_like(b), b
    fields = [o.zeros for o in spins]
    norm = float(np.linalg.norm(b))
    while norm > RESIDUAL:
        x = x + _solve_in(subspace, residual, max(RESIDUAL, GAIN * norm))
        fields = _fields_of_rotations(builder, spins, rotations, split(x, rotations), weight)
        response = [g[o.occupied :, : o.occupied] for o, g in zip(spins, fields, strict=True)]
        residual = without(b - differences * x - flattened(response), free)
        norm = float(np.linalg.norm(residual))
    iterations = counted_text(len(subspace.vectors), "iteration")
    listener.stage(f"Z-vector equations: residual {norm:.1e} Eh after {iterations}")
    if subspace.vectors:
        _warn_of_strong_response(subspace.vectors, subspace.images, x, listener)
    return split(x, rotations), fields, norm


def _solve_in(subspace: Subspace, right: Array, limit: float) -> Array:
    """x of H x = b with a residual of at most `limit`, extending the space where it is needed.

    Raises
    ------
    ConvergenceError : the space has MOST_CYCLES vectors
    """
    x, residual = np.zeros_like(right), right
    norm = float(np.linalg.norm(right))
    while norm > limit:
        if len(subspace.vectors) == MOST_CYCLES:
            left, needed = told_apart(".1e", norm, limit)
            raise ConvergenceError(
                (
                    f"the Z-vector equations did not converge in {MOST_CYCLES} iterations: the "
                    f"residual is {left} Eh (needed {needed}). The reference is "
                    "nearly unstable; look at its stability with "
                ),
                Option("stability", "full"),
                ", or follow it with ",
                Option("stability", "follow"),
            )
        subspace.extend(residual)
        x, residual = subspace.best(right)
        norm = float(np.linalg.norm(residual))
    return x


def _warn_of_strong_response(
    vectors: Sequence[Array], images: Sequence[Array], x: Array, listener: Listener
) -> None:
    """Warn if much of x lies along one eigenvector of the orbital Hessian.

    Parameters
    ----------
    vectors, images : sequence of array
        Orthonormal vectors that span x, and H times each.
    """
    space = np.stack(vectors)
    hessian = space @ np.stack(images, axis=1)
    eigenvalues, modes = np.linalg.eigh((hessian + hessian.T) / 2)
    along = np.abs(modes.T @ (space @ x))
    most = int(along.argmax())
    if along[most] > STRONG:
        listener.warning(
            f"the orbitals respond strongly to correlation, by {along[most]:.2f} along a rotation "
            f"that costs {eigenvalues[most]:.3f} Eh (usual: below 0.1): gradients, relaxed "
            "densities and frequencies of this method may be meaningless here. Compare with "
            "another method"
        )


def convergence_error(
    fock: Sequence[Array], spins: Sequence[Orbitals], relaxed: Sequence[Relaxed]
) -> float:
    """First-order error of E(corr) because the SCF stopped early, Eh.

    L is stationary, so it equals the energy of the converged orbitals up to second-order terms. The
    error of E(corr) is -sum_pq P_pq (F_pq - e_p d_pq), with F for the density of the orbitals. If
    the energy has another functional than the SCF, the same holds for the energy of that
    functional.

    Parameters
    ----------
    fock : sequence of array
        F of each spin, (nao, nao), Eh.
    """
    weight = 2.0 if len(spins) == 1 else 1.0
    left = 0.0
    for o, p, matrix in zip(spins, relaxed, fock, strict=True):
        difference = o.coeff.T @ matrix @ o.coeff - np.diag(o.energy)
        left -= weight * float(np.vdot(p.relaxed, difference))
    return left


def fock_matrices(
    mf: Any,
    core: Array,
    spins: Sequence[Orbitals],
    exact: ExactExchange,
    potential: Sequence[Array] | None,
) -> list[Array]:
    """Fock matrix of each spin for the density of the orbitals, (nao, nao) Eh.

    Parameters
    ----------
    mf : Any
        As in `FockBuilder`.
    core : array
        One-electron part, (nao, nao), Eh.
    exact : ExactExchange
        Exact exchange.
    potential : sequence of array, optional
        V_xc of each spin, (nao, nao) Eh, None for Hartree-Fock.
    """
    weight = 2.0 if len(spins) == 1 else 1.0
    occupied = [np.ascontiguousarray(o.coeff[:, : o.occupied]) for o in spins]
    coulomb, exchange = coulomb_exchange(mf, occupied, exact)
    total = core + weight * coulomb.sum(axis=0)
    fock = [total - own for own in exchange]
    if potential is not None:
        fock = [one + added for one, added in zip(fock, potential, strict=True)]
    return fock
