"""Hartree-Fock through PySCF: RHF, UHF or ROHF, density-fitted or conventional, with a rescue
ladder.

DIIS first. Where it leaves the lowest energy it has met and does not come back, as with radicals
that hop between occupations, ADIIS goes down from there, and DIIS takes over near the minimum. When
DIIS has not converged after its share of the cycle limit, a level shift, then the second-order
solver, all within the same limit. Whoever converges is recorded. What does not converge gives no
MP2 energy: the error says what the last iteration looked like. Which of several solutions is used
says `dfmp2.scf.following`. With a functional (`dfmp2.scf.kohn_sham`) the same loop converges
Kohn-Sham. Source of ADIIS: Hu and Yang, J. Chem. Phys. 132, 054109 (2010).
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import replace
from functools import partial
from typing import Any

import numpy as np
from numpy.typing import NDArray

from dfmp2.errors import ConvergenceError, InputError, NumericalError
from dfmp2.errors.messages import Option
from dfmp2.molecule.pyscf_shield import shielded
from dfmp2.options import Options
from dfmp2.progress import Listener
from dfmp2.scf import hamiltonian
from dfmp2.scf.guess import ORIGINS, guess_density
from dfmp2.scf.interatomic_fitting import between_atoms
from dfmp2.scf.reference import Reference, StartOrbitals
from dfmp2.scf.rotations import fitting_object

Array = NDArray[np.float64]
OnIteration = Callable[[Array, Array], None]

LEVEL_SHIFT = 0.3  # Eh, added to the virtual orbital energies on the second rung
DIIS_LEAST = 40  # cycles DIIS always gets before the ladder starts
DIIS_SHARE, SHIFT_SHARE = 0.6, 0.2  # of the cycle limit; the second-order solver has the rest
# iterations of DIIS above its lowest energy, after which it does not come back by itself
CLIMBED = 8
# Eh, norm of the orbital gradient; nearer to convergence the energy may go up by its rounding
FAR = 1e-3
CALM, CALM_LEAST = (
    5e-3,
    4,
)  # Eh, gradient up to which ADIIS goes, and the iterations it gets at least
ORTHONORMAL = 1e-6  # deviation of C^T S C from 1 up to which start orbitals count as orthonormal


def reference_kind(options: Options, multiplicity: int) -> str:
    """ "rhf", "uhf" or "rohf": RHF for singlets and UHF for others unless asked otherwise.

    Raises
    ------
    InputError : RHF for an open shell, ROHF for a closed one, or a start that a restricted
        reference cannot have
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
            f" turns alpha and beta orbitals apart, and {kind.upper()} has the same for both: add ",
            Option("reference", "uhf"),
            ", or leave it out",
        )
    return kind


def run_scf(
    mole: Any,
    kind: str,
    options: Options,
    auxmole: Any,
    start: StartOrbitals | None,
    listener: Listener,
    *,
    threads: int,
    integrals: str,
    charges: Array | None,
    room: Any = None,
    response_held: bool = False,
    resumed: StartOrbitals | None = None,
    on_iteration: OnIteration | None = None,
    field: Array | None = None,
) -> tuple[Any, Reference]:
    """Converge Hartree-Fock.

    Parameters
    ----------
    mole : PySCF molecule; kind : "rhf", "uhf" or "rohf"
    auxmole : PySCF molecule carrying the Coulomb-exchange fitting set, None for a conventional SCF
    start : start orbitals, None for those of options.guess
    threads : workers of our own Coulomb and exchange builder
    integrals : "memory" or "disk" with our builder of a density-fitted SCF, "pyscf" for PySCF's
        own, which then also makes the potential of the charges; of a conventional SCF "memory" to
        keep them, "disk" to make them anew in each iteration, "pyscf" for what PySCF finds room for
    charges : (n, 4) point charges around the molecule, bohr and e
    room : dfmp2.host.scratch.Room, needed for "disk"
    response_held : whether there is room for integrals of the occupied orbitals where all rotations
        are looked at
    resumed : orbitals of the last iteration of an SCF that was stopped: the first one begins with
        them
    on_iteration : called with orbitals (nspin, nao, nmo) and occupations (nspin, nmo) after each
        iteration of the first SCF; what it raises ends the SCF
    field : uniform, (3,) Eh/(e bohr), None for none

    Returns
    -------
    the converged PySCF object and its record, which has its stability where options.stability looks
    at all rotations

    Raises
    ------
    ConvergenceError : not converged within options.scf_max_cycles
    """
    from dfmp2.scf.following import find_solution
    from dfmp2.scf.stability import lowest_rotations

    def progress(done: int, total: int) -> None:
        listener.step(done, total, "SCF integrals")

    with shielded():
        more: dict[str, Any] = {
            "native": integrals == "pyscf",
            "field": field,
            "xc": options.functional,
            "grid": options.grid,
        }
        mf = hamiltonian.mean_field(mole, kind, options.relativity, charges, **more)
        if auxmole is not None and integrals != "pyscf":
            mf = mf.density_fit(
                with_df=jk_builder(mole, auxmole, integrals, threads, room, progress)
            )
        elif auxmole is not None:
            mf = mf.density_fit(auxbasis=auxmole.basis)
        else:
            mf = reproducible(mf, held=None if integrals == "pyscf" else integrals == "memory")
        mf.verbose = 0
        mf.chkfile = None
        mf.conv_tol = options.scf_conv_tol
        mf.conv_tol_grad = options.scf_gradient_tol
        mf.conv_check = False  # `climb` diagonalises the last Fock matrix without building another
        try:
            if start is None:
                density, origin = guess_density(options.guess, mf, kind), ORIGINS[options.guess]
            else:
                density, origin = _from_orbitals(start, mole, mf, kind), start.origin

            def solve(
                density: Any, *, orbitals: Any = None, first: bool = False, turned: bool = False
            ) -> Any:
                copy = mf.copy()
                if orbitals is not None:
                    copy.mo_coeff, copy.mo_occ = orbitals
                if first and resumed is not None:
                    density = _from_orbitals(resumed, mole, mf, kind)
                try:
                    told = on_iteration if first else None
                    return climb(
                        copy,
                        density,
                        options,
                        listener,
                        told,
                        second_order=orbitals is not None,
                        turned=turned,
                    )
                finally:
                    mf._eri = copy._eri  # four-centre integrals in memory serve the next SCF too

            single = uses_single(options.precision, int(mole.nao))
            examine = partial(lowest_rotations, single=single, held=response_held)
            found, solutions = find_solution(mf, density, origin, options, listener, solve, examine)
        except np.linalg.LinAlgError as error:
            raise NumericalError(
                (
                    f"the SCF equations cannot be solved in this basis ({error}): its functions "
                    "are linearly dependent; check "
                ),
                Option("basis"),
                " and the geometry",
            ) from error
        history = np.array(found.history).reshape(-1, 3)
        reference = record(
            found.mf,
            kind,
            auxmole is not None,
            found.ladder,
            cycles=len(history),
            start=found.origin,
            energy_xc=options.energy_functional,
        )
        if options.functional is not None:
            from dfmp2.scf.grid_error import with_grid_error

            listener.stage("error of the integration grid, on a finer one")
            reference = with_grid_error(found.mf, reference)
        between, operations = None, None
        if auxmole is not None and integrals != "pyscf":
            fitted, between = fitting_object(found.mf), 0.0
            operations = np.array(fitted.operations, dtype=np.float64)
            if fitted.squares is not None:  # one electron needs no integrals
                between = between_atoms(
                    mole, found.mf.make_rdm1(), fitted.pairs.expand(fitted.squares[None])[0]
                )
        reference = replace(
            reference, history=history, interatomic_fitting_error=between, operations=operations
        )
        return found.mf, replace(reference, stability=found.stability, solutions=solutions)


def jk_builder(
    mole: Any,
    auxmole: Any,
    integrals: str,
    threads: int,
    room: Any,
    progress: Callable[[int, int], None] = lambda done, total: None,
) -> Any:
    """Our builder of J and K with its integrals in "memory" or on "disk", where it needs a
    `Room`."""
    if integrals == "disk":
        from dfmp2.scf.jk_on_disk import DiskIntegrals

        return DiskIntegrals(mole, auxmole, threads, room, progress)
    from dfmp2.scf.jk import JKFitting

    return JKFitting(mole, auxmole, threads, progress)


def release_integrals(mf: Any) -> None:
    """Free the fitted SCF integrals of a mean field that is no longer needed."""
    fitted = fitting_object(mf)
    if fitted is not None:
        fitted.discard()


def record(
    mf: Any,
    kind: str,
    fitted: bool,
    ladder: list[str],
    *,
    cycles: int,
    start: str,
    energy_xc: str | None = None,
) -> Reference:
    """The plain values of a converged PySCF mean field.

    Parameters
    ----------
    energy_xc : functional of the energy of a double hybrid, where it is not that of the orbitals
    """
    coupling = None
    if kind == "rohf":
        coeff, energy, occ, coupling = semicanonical(mf)
    else:
        stacked = [np.asarray(x, dtype=np.float64) for x in (mf.mo_coeff, mf.mo_energy, mf.mo_occ)]
        if kind == "uhf":
            coeff, energy, occ = stacked
        else:
            coeff, energy, occ = [x[None] for x in stacked]
    order = np.stack(
        [np.lexsort((e, -n)) for e, n in zip(energy, occ, strict=True)]
    )  # occupied first, by energy
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
            **more,
        )


def dipole_moment(mole: Any, mo_coeff: Array, mo_occ: Array) -> Array:
    """Dipole moment of nuclei and electrons about the origin of the coordinates, (3,), e bohr.

    Its integrals are held for one atom at a time: (3, functions of the atom, nao).

    Parameters
    ----------
    mo_coeff, mo_occ : (nspin, nao, nmo) and (nspin, nmo), occupied orbitals first
    """
    found = mole.atom_charges() @ mole.atom_coords()
    for first, last, begin, end in mole.aoslice_by_atom() if mole.nbas else ():
        if begin == end:
            continue
        with mole.with_common_origin((0.0, 0.0, 0.0)):
            position = mole.intor("int1e_r", shls_slice=(first, last, 0, mole.nbas))
        for coeff, occ in zip(mo_coeff, mo_occ, strict=True):
            c, n = coeff[:, occ > 0], occ[occ > 0]
            found = found - np.einsum("xmn,mn->x", position, (c[begin:end] * n) @ c.T)
    return np.asarray(found, dtype=np.float64)


def semicanonical(mf: Any) -> tuple[Array, Array, Array, Array]:
    """Orbitals of a converged ROHF that make the occupied and the virtual block of each spin's Fock
    matrix diagonal.

    Source: Knowles, Andrews, Amos, Handy, Pople, Chem. Phys. Lett. 186, 130 (1991).

    Returns
    -------
    coefficients (2, nao, nmo), energies and occupations (2, nmo), occupied orbitals first and each
    kind by energy; and the elements f_ia of the Fock matrices between them (2, nmo, nmo), which do
    not vanish, Eh
    """
    with shielded():
        density = mf.make_rdm1()
        fock = mf.get_hcore() + mf.get_veff(dm=density)
    coefficients = np.asarray(mf.mo_coeff)
    nmo = coefficients.shape[1]
    coeff, energy = np.empty((2, *coefficients.shape)), np.empty((2, nmo))
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


def climb(
    mf: Any,
    density: Any,
    options: Options,
    listener: Listener,
    on_iteration: OnIteration | None = None,
    *,
    second_order: bool = False,
    turned: bool = False,
) -> tuple[Any, list[str], list[tuple[float, float, float]]]:
    """Run the rungs of the ladder until one converges, or the last one alone; record every
    iteration.

    From `turned` orbitals DIIS may climb back to where they came from, which is nothing that ADIIS
    should mend.
    """
    limit = options.scf_max_cycles
    if second_order:
        diis = 0
    else:
        diis = min(limit, max(DIIS_LEAST, int(limit * DIIS_SHARE)))
    if second_order:
        shift = 0
    else:
        shift = min(limit - diis, int(limit * SHIFT_SHARE))
    last: dict[str, Any] = {}
    fitted = fitting_object(mf)
    schedule = None
    if (
        hasattr(fitted, "single")
        and not second_order
        and uses_single(options.precision, int(mf.mol.nao))
    ):
        schedule = ExchangeSchedule(fitted)
    history: list[tuple[float, float, float]] = []
    ladder: list[str] = []
    lowest: dict[str, Any] = {}  # energy, orbitals and occupations
    begun, given_up = 0, False  # iterations before the present rung; whether DIIS was

    def watch(envs: dict[str, Any]) -> None:
        last.update({name: envs.get(name) for name in ("fock", "s1e", "x_orth")})
        energy, gradient = float(envs["e_tot"]), float(envs["norm_gorb"])
        if history:
            change = energy - history[-1][0]
        else:
            change = 0.0
        history.append((energy, change, gradient))
        if energy < lowest.get("energy", np.inf):
            lowest.update(energy=energy, orbitals=envs["mo_coeff"], occupations=envs["mo_occ"])
        listener.scf_cycle(len(history), energy, change, gradient)
        if on_iteration is not None:
            coeff, occ = np.asarray(envs["mo_coeff"]), np.asarray(envs["mo_occ"])
            if np.ndim(envs["dm"]) == 3 and occ.ndim == 1:  # ROHF
                coeff, occ = (
                    np.stack([coeff, coeff]),
                    np.stack([occ > 0, occ > 1]).astype(np.float64),
                )
            on_iteration(*((coeff[None], occ[None]) if occ.ndim == 1 else (coeff, occ)))

    def ended(envs: dict[str, Any]) -> bool:
        """PySCF's own criterion, or that the rung leads nowhere; asked before `watch` sees the
        iteration."""
        if ladder[-1] == "ADIIS":
            return len(history) - begun >= CALM_LEAST and float(envs["norm_gorb"]) < CALM
        change, gradient = (
            abs(float(envs["e_tot"]) - float(envs["last_hf_e"])),
            float(envs["norm_gorb"]),
        )
        converged = change < envs["conv_tol"] and gradient < envs["conv_tol_grad"]
        if schedule is not None and len(ladder) == 1:
            converged = schedule.converged(envs)
        nonlocal given_up
        given_up = not converged and ladder == ["DIIS"] and not turned and climbed(history)
        return converged or given_up

    mf.callback = watch
    rungs = [("DIIS", diis), ("level shift", shift), ("second order", limit - diis - shift)]
    while rungs:
        rung, cycles = rungs.pop(0)
        if cycles <= 0:
            continue
        begun = len(history)
        if rung == "second order":
            mf.check_convergence = None
        else:
            mf.check_convergence = ended
        if rung == "level shift":
            mf.level_shift = LEVEL_SHIFT
        else:
            mf.level_shift = 0.0
        if rung == "ADIIS":
            mf.DIIS = adiis()
        else:
            mf.DIIS = commutator_diis()
        mf.max_cycle = cycles
        ladder.append(rung)
        if rung == "second order":
            orbitals, occupations = mf.mo_coeff, mf.mo_occ
            mf = mf.newton()
            mf.verbose = 0
            # PySCF's own limits, 1e-12 and 1e-14, end a step along a soft mode at a gradient of
            # 6e-7 Eh, for good.
            mf.ah_conv_tol, mf.ah_lindep = 1e-16, 1e-20
            mf.max_cycle = cycles - 1  # its last iteration is reported after the loop
            mf.kernel(orbitals, occupations)
        else:
            mf.kernel(density)
            mf.converged = mf.converged and rung != "ADIIS" and not given_up
            if mf.converged and last:  # one electron needs no iteration
                # "fock" belongs to the last density, neither extrapolated nor shifted.
                mf.mo_energy, mf.mo_coeff = mf.eig(last["fock"], last["s1e"], x=last["x_orth"])
                mf.mo_occ = mf.get_occ(mf.mo_energy, mf.mo_coeff)
        if schedule is not None:
            schedule.finish()
        if mf.converged:
            mf.callback = mf.check_convergence = None
            return mf, ladder, history
        listener.stage(f"SCF not converged by {rung} in {len(history) - begun} cycles")
        density = mf.make_rdm1()
        if given_up:
            given_up = False
            density = mf.make_rdm1(lowest["orbitals"], lowest["occupations"])
            rungs.insert(0, ("ADIIS", diis - len(history)))
        elif rung == "ADIIS":
            rungs.insert(0, ("DIIS", diis - len(history)))
    _, change, gradient = history[-1]
    raise ConvergenceError(
        (
            f"the SCF did not converge in {len(history)} cycles ({', '.join(ladder)}): the "
            f"last energy change was {change:.1e} Eh (needed {options.scf_conv_tol:.1e}) and"
            f" the orbital gradient {gradient:.1e} Eh (needed "
            f"{options.scf_gradient_tol:.1e}). Without a converged reference there is no MP2"
            " energy. Check geometry, charge and multiplicity; raise "
        ),
        Option("scf_max_cycles"),
        "; or start from other orbitals with ",
        Option("scf_from"),
    )


def climbed(history: list[tuple[float, float, float]]) -> bool:
    """Whether the energy left its lowest value CLIMBED iterations ago, far from convergence."""
    if len(history) <= CLIMBED:
        return False
    energies, gradients = ([row[column] for row in history] for column in (0, 2))
    return min(energies[-CLIMBED:]) > min(energies[:-CLIMBED]) and min(gradients[-CLIMBED:]) > FAR


def adiis() -> Any:
    """PySCF's class of ADIIS, which loads SciPy's optimisers."""
    from pyscf import scf

    return scf.ADIIS


def commutator_diis() -> Any:
    """PySCF's class of DIIS with error vectors X^T (F D S - S D F) X made by NumPy's BLAS: a third
    of the time."""
    from pyscf import lib
    from pyscf.scf import diis

    class Commutators(diis.CDIIS):  # type: ignore[misc]
        """As in PySCF, without damping."""

        def update(self, s: Array, d: Any, f: Any, *_: Any, **__: Any) -> Any:
            """The extrapolated Fock matrix, or that of each spin."""
            if np.ndim(f) == 2:
                spins = [(d, f)]
            else:
                spins = list(zip(d, f, strict=True))
            left = self.Corth.T @ s
            products = [
                left @ np.asarray(density) @ np.asarray(fock) @ self.Corth
                for density, fock in spins
            ]
            return lib.diis.DIIS.update(
                self, f, xerr=np.concatenate([(x.T - x).ravel() for x in products])
            )

    return Commutators


def require_fitting(start: StartOrbitals, mole: Any) -> None:
    """Refuse start orbitals of other atoms or another basis.

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
    """Density of given start orbitals, orthonormalised in the present overlap.

    Raises
    ------
    InputError : they do not fit, see `require_fitting`, or are linearly dependent here
    """
    require_fitting(start, mole)
    overlap = mf.get_ovlp()
    densities = []
    for coeff, occ in zip(start.mo_coeff, start.mo_occ, strict=True):
        occupied = coeff[:, occ > 0]
        gram = occupied.T @ overlap @ occupied
        if np.abs(gram - np.eye(len(gram))).max(initial=0.0) > ORTHONORMAL:  # a moved geometry
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
    if len(density) == 2:
        return density
    return np.stack([density[0] / 2, density[0] / 2])


SINGLE_UNTIL = 1e-3  # Eh, norm of the orbital gradient
# of the best gradient so far: an iteration that leaves more has met the noise, or has trouble of
# its own
SINGLE_GAIN = 0.8
SINGLE_PATIENCE = 4  # iterations before that is asked: the first ones may go up and down
SINGLE_LEAST = 128  # basis functions from which float32 products save time


def uses_single(precision: str, nao: int) -> bool:
    """Whether a density-fitted SCF of this precision and number of basis functions begins in
    float32."""
    return precision != "fp64" and nao >= SINGLE_LEAST


class ExchangeSchedule:
    """Switches `fitted.single` from one SCF iteration to the next.

    Parameters
    ----------
    fitted : an object with the attribute `single` (dfmp2.scf.jk)
    """

    def __init__(self, fitted: Any) -> None:
        self._fitted = fitted
        self._cycles = self._in_double = (
            0  # iterations; those in float64 since the last one that was not
        )
        self._best = float("inf")  # gradient
        fitted.single = True

    def converged(self, envs: dict[str, Any]) -> bool:
        """PySCF's own criterion, asked of two float64 energies in a row; called once per
        iteration."""
        self._cycles += 1
        if self._fitted.single:
            self._in_double = 0
        else:
            self._in_double = self._in_double + 1
        gradient, change = (
            float(envs["norm_gorb"]),
            abs(float(envs["e_tot"]) - float(envs["last_hf_e"])),
        )
        if gradient < SINGLE_UNTIL or (
            self._cycles > SINGLE_PATIENCE and gradient > SINGLE_GAIN * self._best
        ):
            self.finish()
        self._best = min(self._best, gradient)
        return (
            self._in_double > 1 and change < envs["conv_tol"] and gradient < envs["conv_tol_grad"]
        )

    def finish(self) -> None:
        """Float64 from here on."""
        self._fitted.single = False


def reproducible(mf: Any, held: bool | None = None) -> Any:
    """A conventional PySCF mean field whose J and K do not depend on how threads are scheduled,
    while in memory.

    Parameters
    ----------
    held : whether four-centre integrals are kept, None to let PySCF decide, which asks for 8 bytes
        for all nao^4
    """
    from pyscf import lib, scf

    class OneAdds(type(mf)):  # type: ignore[misc]
        """J and K of integrals in memory by one thread, those of long-range operators beside
        them."""

        _keys = frozenset({"_long_range"})
        _eri: Any
        _long_range: dict[float, Any]

        def _is_mem_enough(self) -> bool:
            """Whether four-centre integrals are kept."""
            if held is None:
                return bool(super()._is_mem_enough())
            return held

        def get_jk(
            self,
            mol: Any = None,
            dm: Any = None,
            hermi: int = 1,
            with_j: bool = True,
            with_k: bool = True,
            omega: float | None = None,
        ) -> Any:
            """As in PySCF."""
            if omega and self._is_mem_enough():
                if omega not in self._long_range:
                    with self.mol.with_range_coulomb(omega):
                        self._long_range[omega] = self.mol.intor("int2e", aosym="s8")
                with lib.with_omp_threads(1):
                    return scf.hf.dot_eri_dm(self._long_range[omega], dm, hermi, with_j, with_k)
            if self._eri is None and not omega and self._is_mem_enough():
                self._eri = self.mol.intor("int2e", aosym="s8")
            asked = mol, dm, hermi, with_j, with_k, omega
            if self._eri is None or omega:
                return super().get_jk(*asked)
            with lib.with_omp_threads(1):
                return super().get_jk(*asked)

    mf.__class__ = OneAdds
    mf._long_range = {}
    return mf
