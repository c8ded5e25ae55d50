"""Hartree-Fock and Kohn-Sham through PySCF: RHF, UHF or ROHF, density-fitted or conventional.

`dfmp2.scf.ladder` converges the SCF, `dfmp2.scf.following` chooses among several solutions, and
`dfmp2.scf.integrals` provides Coulomb and exchange. An SCF that does not converge gives no MP2
energy; the error describes its last iteration.
"""

from __future__ import annotations

from dataclasses import dataclass, replace
from functools import partial
from typing import Any, Protocol

import numpy as np

from dfmp2.arrays import Array
from dfmp2.errors import InputError, NumericalError, Option
from dfmp2.molecule.pyscf_shield import shielded
from dfmp2.options import Options
from dfmp2.progress import Listener
from dfmp2.scf import hamiltonian
from dfmp2.scf.hamiltonian import VACUUM, Environment
from dfmp2.scf.integrals import ScfIntegrals
from dfmp2.scf.interatomic_fitting import between_atoms
from dfmp2.scf.ladder import Iteration, Ladder, diagonalise, uses_single
from dfmp2.scf.one_atom_fitting import one_atom_fitting_errors
from dfmp2.scf.reference import Reference, StartOrbitals
from dfmp2.scf.rotations import fitting_object, stacked_orbitals
from dfmp2.scf.solvent import in_solvent, solvent_record

ORTHONORMAL = 1e-6  # deviation of C^T S C from 1 up to which start orbitals count as orthonormal


def reference_kind(options: Options, multiplicity: int) -> str:
    """ "rhf", "uhf" or "rohf": by default RHF for singlets and UHF otherwise.

    Raises
    ------
    InputError : RHF for an open shell, ROHF for a closed shell, or a start that is impossible for a
        restricted reference
    """
    if options.reference == "rhf" and multiplicity != 1:
        raise InputError(
            Option("reference", "rhf"),
            f" needs multiplicity 1, but the molecule has multiplicity {multiplicity}: use ",
            Option("reference", "uhf"),
            " (or auto), or rohf",
        )
    if options.reference == "rohf" and multiplicity == 1:
        raise InputError(
            Option("reference", "rohf"),
            " is for open shells, and RHF for a singlet: use ",
            Option("reference", "rhf"),
        )
    if options.unrestricted(multiplicity):
        kind = "uhf"
    elif options.reference == "rohf":
        kind = "rohf"
    else:
        kind = "rhf"
    if kind != "uhf" and options.guess == "mix":
        raise InputError(
            Option("guess", "mix"),
            f" makes alpha and beta orbitals differ, and {kind.upper()} has only one set: add ",
            Option("reference", "uhf"),
            ", or leave it out",
        )
    return kind


class OrbitalStore(Protocol):
    """Keeps the orbitals of the last iteration, as a checkpoint does.

    Attributes
    ----------
    orbitals : StartOrbitals or None
        Orbitals left by an interrupted SCF.
    """

    orbitals: StartOrbitals | None

    def add_orbitals(self, mo_coeff: Array, mo_occ: Array) -> None:
        """Take orbitals (nspin, nao, nmo) and occupations (nspin, nmo) of an iteration; an
        exception raised here ends the SCF."""


def run_scf(
    mole: Any,
    kind: str,
    options: Options,
    integrals: ScfIntegrals,
    start: StartOrbitals | None,
    listener: Listener,
    environment: Environment = VACUUM,
    store: OrbitalStore | None = None,
) -> tuple[Any, Reference]:
    """Converge Hartree-Fock or Kohn-Sham.

    Parameters
    ----------
    mole : pyscf.gto.Mole
    kind : str
        "rhf", "uhf" or "rohf".
    options : Options
        Functional, grid, relativity, guess, thresholds and treatment of instabilities.
    integrals : ScfIntegrals
    start : StartOrbitals or None
        None for those of options.guess.
    listener : Listener
    environment : Environment, optional
        Point charges and a uniform field.
    store : OrbitalStore, optional
        The first SCF starts from its orbitals and saves those of each iteration to it.

    Returns
    -------
    mf : pyscf.scf.hf.SCF
        Converged.
    reference : Reference
        Its record, with its stability if options.stability examines all rotations.

    Raises
    ------
    ConvergenceError : not converged within options.scf_max_cycles
    InputError : start orbitals that do not fit
    NumericalError : the basis is linearly dependent
    """
    from dfmp2.scf.following import ORIGINS, find_solution, guess_density
    from dfmp2.scf.rotation_left import (
        final_fock_matrices,
        open_shell_rotation_left,
        turning_gain,
    )
    from dfmp2.scf.stability import examined

    with shielded():
        mf = _unconverged(mole, kind, options, integrals, environment, listener)
        solve = _Solver(mf, kind, options, listener, store)
        single = uses_single(options.precision, int(mole.nao))
        held = integrals.response_in_memory
        examine = partial(examined, single=single, held=held)
        try:
            if start is None:
                density = guess_density(options.guess, mf, kind)
                origin = ORIGINS[options.guess]
            else:
                density = _from_orbitals(start, mole, mf, kind)
                origin = start.origin
            solution, solutions = find_solution(
                mf, density, origin, options, listener, solve, examine
            )
            fock = None
            if kind == "rohf":
                fock = final_fock_matrices(solution.mf)
                solution.left = open_shell_rotation_left(
                    solution.mf, fock, single=single, held=held
                )
            if integrals.gathers:
                fitting_object(mf).stop_gathering()
        except np.linalg.LinAlgError as error:
            raise NumericalError(
                (
                    f"the SCF equations cannot be solved in this basis ({error}): its functions "
                    "are linearly dependent; check "
                ),
                Option("basis"),
                " and the geometry",
            ) from error
        reference = record(
            solution.mf,
            kind,
            integrals.auxmole is not None,
            solution.ladder,
            cycles=len(solution.history),
            start=solution.origin,
            energy_xc=options.energy_functional,
            fock=fock,
        )
        if options.functional is not None and not integrals.native:
            reference = _with_grid_error(solution.mf, reference, options, listener)
        if integrals.auxmole is not None and not integrals.native:
            reference = _with_fitting(solution.mf, reference)
        gain = turning_gain(solution.mf)
    reference = replace(
        reference,
        history=np.array(solution.history).reshape(-1, 3),
        stability=solution.stability,
        rotation_left=solution.left,
        turning_gain=gain or None,
        solutions=solutions,
    )
    return solution.mf, reference


@dataclass(frozen=True, slots=True)
class _Solver:
    """`dfmp2.scf.following.Solve` for a mean field; attributes as the parameters of `run_scf`."""

    mf: Any
    kind: str
    options: Options
    listener: Listener
    store: OrbitalStore | None

    def __call__(
        self, density: Any, *, orbitals: Any = None, first: bool = False, turned: bool = False
    ) -> tuple[Any, list[str], list[Iteration]]:
        mf = self.mf.copy()
        on_iteration = None
        if first and self.store is not None:
            on_iteration = self.store.add_orbitals
            if self.store.orbitals is not None:
                density = _from_orbitals(self.store.orbitals, mf.mol, self.mf, self.kind)
        if orbitals is not None:
            mf.mo_coeff, mf.mo_occ = orbitals
        ladder = Ladder(mf, self.options, self.listener, on_iteration, turned=turned)
        try:
            converged = ladder.climb(density, second_order=orbitals is not None)
        finally:
            self.mf._eri = mf._eri  # the next SCF reuses four-centre integrals in memory
        return converged, ladder.rungs, ladder.history


def _with_grid_error(
    mf: Any, reference: Reference, options: Options, listener: Listener
) -> Reference:
    """The record with the error of its integration grid, whose values are no longer needed."""
    from dfmp2.scf.grid_error import with_grid_error

    listener.stage("error of the integration grid, on a finer one")
    reference = with_grid_error(mf, reference, of_orbitals=options.correlation.kind == "rpa")
    on_grid = vars(mf).get("on_grid")
    if on_grid is not None:
        on_grid.discard()
    return reference


def _unconverged(
    mole: Any,
    kind: str,
    options: Options,
    integrals: ScfIntegrals,
    environment: Environment,
    listener: Listener,
) -> Any:
    """The mean field before convergence, with its integrals and thresholds."""

    def progress(done: int, total: int) -> None:
        listener.step(done, total, "SCF integrals")

    mf = hamiltonian.mean_field(
        mole,
        kind,
        options.relativity,
        environment.charges,
        native=integrals.native,
        field=environment.field,
        xc=options.functional,
        grid=options.grid,
    )
    mf = integrals.attach(mf, progress)
    mf = in_solvent(mf, options, native=integrals.native)
    on_grid = vars(mf).get("on_grid")
    if on_grid is not None:
        on_grid.threads = integrals.threads
        on_grid.room = integrals.grid_room
    mf.chkfile = None
    mf.conv_tol = options.scf_conv_tol
    mf.conv_tol_grad = options.scf_gradient_tol
    mf._eigh = diagonalise
    mf.conv_check = False  # `Ladder` diagonalises the last Fock matrix without building another
    return mf


def _with_fitting(mf: Any, reference: Reference) -> Reference:
    """The record with the operation counts of our builder, the fitting error between atoms and
    those of a single atom."""
    fitted = fitting_object(mf)
    operations = np.array(fitted.operations, dtype=np.float64)
    between = 0.0
    if fitted.squares is not None:  # one electron needs no integrals
        squares = fitted.pairs.expand(fitted.squares[None])[0]
        between = between_atoms(mf.mol, mf.make_rdm1(), squares)
    return replace(
        reference,
        interatomic_fitting_error=between,
        one_atom_fitting_errors=one_atom_fitting_errors(mf),
        operations=operations,
    )


def record(
    mf: Any,
    kind: str,
    fitted: bool,
    ladder: list[str],
    *,
    cycles: int,
    start: str,
    energy_xc: str | None = None,
    fock: Array | None = None,
) -> Reference:
    """The recorded values of a converged PySCF mean field.

    Parameters
    ----------
    energy_xc : functional for the energy of a double hybrid, if not that of the orbitals
    fock : Fock matrix of each spin for the final orbitals of an ROHF, None if not yet computed
    """
    coupling = None
    if kind == "rohf":
        if fock is None:
            from dfmp2.scf.rotation_left import final_fock_matrices

            with shielded():
                fock = final_fock_matrices(mf)
        coeff, energy, occ, coupling = semicanonical(mf, fock)
    else:
        coeff, energy, occ = stacked_orbitals(mf)
    # Occupied first, by energy
    order = np.stack([np.lexsort((e, -n)) for e, n in zip(energy, occ, strict=True)])
    coeff = np.take_along_axis(coeff, order[:, None, :], axis=2)
    energy, occ = (np.take_along_axis(x, order, axis=1) for x in (energy, occ))
    from dfmp2.scf.following import spin_square

    xc, more = vars(mf).get("xc"), dict[str, Any]()
    if xc is not None:
        from dfmp2.scf.kohn_sham import (
            definition_of,
            exact_exchange_energy,
            functional_energy,
            of_grid,
        )

        xc = definition_of(str(xc))
        more = {
            "xc": xc,
            **of_grid(mf.grids),
            "exx_total_energy": exact_exchange_energy(mf),
        }
        if energy_xc is not None:
            more |= {"energy_xc": energy_xc, "functional_energy": functional_energy(mf, energy_xc)}
    with shielded():
        return Reference(
            kind=kind,
            scf_type="df" if fitted else "conventional",
            scf_total_energy=float(mf.e_tot),
            nuclear_repulsion_energy=float(mf.energy_nuc()),
            cycles=cycles,
            ladder=tuple(ladder),
            start=start,
            spin_square=spin_square(mf),
            mo_coeff=coeff,
            mo_energy=energy,
            mo_occ=occ,
            mo_coupling=coupling,
            dipole=dipole_moment(mf.mol, coeff, occ),
            **solvent_record(mf, mf.make_rdm1()),
            **more,
        )


def dipole_moment(mole: Any, mo_coeff: Array, mo_occ: Array) -> Array:
    """Dipole moment of nuclei and electrons about the origin of the coordinates, (3,), e bohr.

    Its integrals are in memory for one atom at a time: (3, functions of the atom, nao).

    Parameters
    ----------
    mo_coeff, mo_occ : (nspin, nao, nmo) and (nspin, nmo), occupied orbitals first
    """
    dipole = mole.atom_charges() @ mole.atom_coords()
    for first, last, begin, end in mole.aoslice_by_atom() if mole.nbas else ():
        if begin == end:
            continue
        with mole.with_common_origin((0.0, 0.0, 0.0)):
            position = mole.intor("int1e_r", shls_slice=(first, last, 0, mole.nbas))
        for coeff, occ in zip(mo_coeff, mo_occ, strict=True):
            c, n = coeff[:, occ > 0], occ[occ > 0]
            dipole = dipole - np.einsum("xmn,mn->x", position, (c[begin:end] * n) @ c.T)
    return np.asarray(dipole, dtype=np.float64)


def semicanonical(mf: Any, fock: Array) -> tuple[Array, Array, Array, Array]:
    """Orbitals of a converged ROHF that diagonalise the occupied and the virtual block of each
    spin's Fock matrix, (2, nao, nao) Eh.

    Source: Knowles, Andrews, Amos, Handy, Pople, Chem. Phys. Lett. 186, 130 (1991).

    Returns
    -------
    coefficients (2, nao, nmo), energies and occupations (2, nmo), occupied orbitals first and both
    blocks sorted by energy; and the Fock matrix elements f_ia between the blocks (2, nmo, nmo),
    which do not vanish, Eh
    """
    coefficients = np.asarray(mf.mo_coeff)
    nmo = coefficients.shape[1]
    coeff = np.empty((2, *coefficients.shape))
    energy = np.empty((2, nmo))
    occ, coupling = np.zeros((2, nmo)), np.zeros((2, nmo, nmo))
    for spin, least in enumerate((0, 1)):
        occupied = np.asarray(mf.mo_occ) > least
        n = int(occupied.sum())
        for part, place in ((occupied, slice(0, n)), (~occupied, slice(n, nmo))):
            block = coefficients[:, part]
            energy[spin, place], turn = np.linalg.eigh(block.T @ fock[spin] @ block)
            coeff[spin][:, place] = block @ turn
        occ[spin, :n] = 1.0
        coupling[spin, :n, n:] = coeff[spin][:, :n].T @ fock[spin] @ coeff[spin][:, n:]
    return coeff, energy, occ, coupling


def require_fitting(start: StartOrbitals, mole: Any) -> None:
    """Raise for start orbitals of other atoms or another basis.

    Raises
    ------
    InputError : they do not fit
    """
    charges = tuple(int(z) for z in mole.atom_charges())
    if start.charges is not None and start.charges != charges:
        raise InputError(
            Option("scf_from", start.origin),
            (
                f": its orbitals belong to atoms with charges {list(start.charges)}, this "
                f"molecule has {list(charges)}: name a file of the same atoms in the same order"
            ),
        )
    nao = mole.nao
    if start.mo_coeff.shape[1] != nao:
        raise InputError(
            Option("scf_from", start.origin),
            (
                f": its orbitals have {start.mo_coeff.shape[1]} basis functions, this "
                f"calculation has {nao}: name a file with the same basis"
            ),
        )


def _from_orbitals(start: StartOrbitals, mole: Any, mf: Any, kind: str) -> Array:
    """Density of the given start orbitals, orthonormalised with the present overlap.

    Raises
    ------
    InputError : they do not fit, see `require_fitting`, or are linearly dependent here
    """
    require_fitting(start, mole)
    overlap = mf.get_ovlp()
    coefficients, occupations = start.mo_coeff, start.mo_occ
    if kind != "rhf" and len(occupations) == 1:
        # The electron of a singly occupied orbital (PySCF's ROHF) is an alpha one.
        alpha = np.where(occupations == 1.0, 1.0, occupations / 2)
        occupations = np.concatenate([alpha, occupations - alpha])
        coefficients = np.concatenate([coefficients, coefficients])
    densities = []
    for coeff, occ in zip(coefficients, occupations, strict=True):
        occupied = coeff[:, occ > 0]
        gram = occupied.T @ overlap @ occupied
        if np.abs(gram - np.eye(len(gram))).max(initial=0.0) > ORTHONORMAL:  # the geometry moved
            values, vectors = np.linalg.eigh(gram)
            if values[0] < ORTHONORMAL:
                raise InputError(
                    Option("scf_from", start.origin),
                    (
                        ": its occupied orbitals are linearly dependent in this molecule: name a "
                        "file of the same or a similar geometry"
                    ),
                )
            occupied = occupied @ (vectors / np.sqrt(values)) @ vectors.T
        densities.append((occupied * occ[occ > 0]) @ occupied.T)
    density = np.stack(densities)
    if kind == "rhf":
        return np.asarray(density.sum(axis=0))
    return density
