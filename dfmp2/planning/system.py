"""Everything that is settled before a number is computed: backend, bases, frozen core, memory.

Invalid input is rejected here, before the SCF.

The orbital basis may assign sets to single elements or atoms, and take sets from files.

In a `BasisSet`, an atom with its own set is identified by symbol and number, such as O3; all others
by their symbol.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass, replace
from functools import cache
from pathlib import Path
from typing import Any

import numpy as np

from dfmp2.backends.base import Backend
from dfmp2.backends.registry import select_backend
from dfmp2.errors import InputError, Message, Option
from dfmp2.fitting.sets import dense_fitting, resolve_fitting
from dfmp2.host import resources
from dfmp2.host.scratch import choose_root
from dfmp2.integrals.grid import (
    coarse_name,
    count_points,
    finer_name,
    grid_name,
    make_finer_grid,
    make_grid,
)
from dfmp2.integrals.spaces import ActiveSpace
from dfmp2.integrals.three_center import block_functions
from dfmp2.molecule.basis import (
    NO_FUNCTIONS,
    BasisSet,
    ElementBasis,
    is_mp2_fitting_set,
    parse_basis_file,
)
from dfmp2.molecule.basis_library import resolve_orbital
from dfmp2.molecule.elements import atomic_number, normalise_symbol, unit_doubt
from dfmp2.molecule.frozen_core import FrozenCore, dialect_warning, frozen_core_count
from dfmp2.molecule.mole import build_auxiliary, build_mole, primitive_functions
from dfmp2.molecule.molecule import Molecule
from dfmp2.molecule.point_charges import SUSPICIOUS_DISTANCE, too_near
from dfmp2.molecule.pyscf_shield import import_pyscf
from dfmp2.options import Options
from dfmp2.options.basis_parts import (
    BasisParts,
    is_file,
    parse_parts,
    path_of,
    read_basis_file,
    title_of,
)
from dfmp2.planning.sizes import EXAMINED, IN_FIELDS, LEFT, Sizes, Spin, Workload, scf_cycles
from dfmp2.progress import Listener
from dfmp2.scf.hamiltonian import (
    contraction_error,
    ground_state_of_nucleus,
    uncontracted_functions,
)
from dfmp2.scf.kohn_sham import exact_exchange, functional_variables, require_functional
from dfmp2.scf.ladder import begins_coarse, uses_single
from dfmp2.scf.reference import Reference
from dfmp2.scf.solvent import find_solvent, require_solvable, surface_points
from dfmp2.units import ANGSTROM_PER_BOHR, counted_text

# basis functions; below, OpenMP threads and our own would only wait for each other
SINGLE_THREADED = 64
# Least energy of one electron and the bare nucleus in a set for all electrons, in units of
# -Z^2 / 2 Eh. It is 0.58 or more in ten such sets (0.58 for U in ANO-RCC, 0.70 for Au), but 0.06 to
# 0.28 in seven sets without their core potentials (0.28 for Br in cc-pVDZ-PP)
LEAST_CORE = 0.4
# Eh: how much larger the contraction error of a 1s orbital may be with X2C than without. From Ne on
# (0.013; Mn 0.7, Br 3.4) sets contracted without relativity exceed it; for those contracted with it
# the difference is 0.002 or less (O, Ne) or negative (Mn -0.7 to -1.3, Au -860)
LARGEST_MISFIT = 0.01
USUAL_POINTS = {"laplace": 12, "rpa": 56}  # of a quadrature with the default tolerance


@dataclass(frozen=True, slots=True, eq=False)
class System:
    """A molecule with its bases resolved and its PySCF molecules built."""

    molecule: Molecule
    orbital_basis: BasisSet
    scf_fitting: BasisSet | None
    mp2_fitting: BasisSet
    mole: Any
    auxmole: Any
    jk_auxmole: Any

    @property
    def naux_scf(self) -> int:
        """Number of functions in the SCF fitting set, 0 for a conventional SCF."""
        return 0 if self.jk_auxmole is None else int(self.jk_auxmole.nao)


@dataclass(frozen=True, slots=True, eq=False)
class Setup:
    """Choices made before any number is computed; `active` of the given `threads` are used.

    `scratch` is the folder for data that do not fit into `budget` bytes.
    """

    options: Options
    backend: Backend
    backend_reason: str
    threads: int
    active: int
    budget: int
    scratch: Path
    command: str

    @property
    def pair_backend(self) -> Backend:
        """The backend for the pairs of this method.

        Raises
        ------
        UnsupportedByBackend : the backend cannot evaluate them
        """
        kappa = self.options.regulariser
        if kappa is None:
            return self.backend
        return self.backend.regularised(kappa)


def set_up_run(
    options: Options, command: str, choose: Callable[[int], tuple[Backend, str]] | None = None
) -> Setup:
    """Choose backend, threads, memory budget and scratch folder once for the whole run.

    Parameters
    ----------
    choose : function of the threads that returns backend and reason, instead of `--backend`
    """
    scratch = choose_root(options.scratch)
    import_pyscf()
    if options.functional is not None:
        require_functional(options.functional)
    find_solvent(options)  # raises before the SCF
    resources.restart_peak()
    if options.memory:
        resources.keep_nothing_back()
        resources.return_memory()
    count = options.threads or resources.usable_cores()
    if options.correlation.kind != "pairs":
        backend = select_backend("cpu", "fp64", count)[0]
        reason = f"--method {options.method} runs on the host"
    elif choose is not None:
        backend, reason = choose(count)
    else:
        backend, reason = select_backend(options.backend, options.precision, count)
    setup = Setup(
        options=options,
        backend=backend,
        backend_reason=reason,
        threads=count,
        active=count,
        budget=options.memory or resources.usable_memory(),
        scratch=scratch,
        command=command,
    )
    _ = setup.pair_backend  # raises before the SCF
    return setup


def resolve(
    molecule: Molecule, setup: Setup, listener: Listener, *, doubt_units: bool = True
) -> System:
    """Resolve the bases by name and build the PySCF molecules.

    Parameters
    ----------
    doubt_units : warn if the geometry seems to be in the wrong unit; used for the first of several
        runs
    """
    options = setup.options
    doubt = unit_doubt(molecule.symbols, molecule.coordinates * ANGSTROM_PER_BOHR, molecule.ghost)
    if doubt and doubt_units:
        listener.warning(doubt)
    orbital = orbital_basis(options.basis, molecule)
    molecule.check_electrons(orbital.ecp_electrons)
    jk = None
    if options.scf == "df":
        poor = options.allow_poor_fit
        jk = resolve_fitting(
            "jk", options.scf_auxbasis, orbital, molecule.elements, allow_poor=poor
        )
    return assemble(molecule, orbital, jk, setup, listener)


def assemble(
    molecule: Molecule, orbital: BasisSet, jk: BasisSet | None, setup: Setup, listener: Listener
) -> System:
    """Add the MP2 fitting set (empty for plain Kohn-Sham) and build the PySCF molecules."""
    auxbasis, poor = setup.options.auxbasis, setup.options.allow_poor_fit
    if setup.options.correlation.kind == "none":
        ri = NO_FUNCTIONS
    else:
        ri = resolve_fitting("ri", auxbasis, orbital, molecule.elements, allow_poor=poor)
    if auxbasis and auxbasis != "auto" and not is_mp2_fitting_set(auxbasis):
        listener.warning(
            Message(
                Option("auxbasis", auxbasis),
                " was not made for MP2: expect errors of 1e-5 Eh and more against an -ri set",
            )
        )
    _require_hamiltonian(molecule, orbital, setup.options.relativity, listener)
    doubt = require_solvable(molecule, setup.options)
    if doubt:
        listener.warning(doubt)
    system = build_system(molecule, orbital, jk, ri, setup.budget)
    mole = system.mole
    free = int(mole.nao) - int(max(mole.nelec))
    if free <= 0:
        electrons = max(mole.nelec)
        raise InputError(
            (
                f"{molecule.formula} with charge {molecule.charge} has "
                f"{counted_text(electrons, 'electron')} of one spin and {orbital.name} only "
                f"{counted_text(mole.nao, 'function')}, which leaves them no "
                "virtual orbitals: use a larger "
            ),
            Option("basis"),
            ", or check ",
            Option("charge"),
        )
    if setup.options.frozen_virtual >= free:
        raise InputError(
            Option("frozen_virtual", setup.options.frozen_virtual),
            f" leaves no virtual orbital: there are {free}; give a smaller number",
        )
    return system


def build_system(
    molecule: Molecule, orbital: BasisSet, jk: BasisSet | None, ri: BasisSet, budget: int
) -> System:
    """A molecule with these basis sets, and its PySCF molecules; `budget` as in `build_mole`."""
    mole = build_mole(molecule, orbital, budget)
    return System(
        molecule=molecule,
        orbital_basis=orbital,
        scf_fitting=jk,
        mp2_fitting=ri,
        mole=mole,
        auxmole=build_auxiliary(mole, molecule, ri),
        jk_auxmole=None if jk is None else build_auxiliary(mole, molecule, jk),
    )


def densely_fitted(system: System) -> System:
    """The same system with a large, even-tempered MP2 fitting set."""
    dense = dense_fitting(system.orbital_basis, system.mp2_fitting)
    return replace(
        system, mp2_fitting=dense, auxmole=build_auxiliary(system.mole, system.molecule, dense)
    )


def workload(system: System, options: Options, core: FrozenCore, kind: str) -> Workload:
    """Sizes of a run of kind "rhf", "uhf" or "rohf"; nvir is derived from nao, an upper bound.

    The pairs of functions that the SCF keeps are missing (`with_kept_pairs`).
    """
    mole = system.mole
    nao = int(mole.nao)
    electrons = [int(count) for count in mole.nelec]
    if kind == "rhf":
        electrons = electrons[:1]
    rohf = options.reference == "rohf"
    work = Workload(
        nao=nao,
        naux_scf=system.naux_scf,
        naux=int(system.auxmole.nao),
        spins=tuple(
            Spin(
                occupied=count,
                nocc=max(0, count - core.orbitals),
                nvir=max(0, nao - count - options.frozen_virtual),
            )
            for count in electrons
        ),
        precision=options.precision if options.correlation.kind == "pairs" else "fp64",
        block_functions=block_functions(system.auxmole, nao),
        widest_shell=int(np.diff(mole.ao_loc_nr()).max()),
        single_exchange=uses_single(options.precision, nao),
        x2c_functions=uncontracted_functions(mole) if options.relativity == "x2c" else 0,
        starts=options.scf_starts,
        examined=rohf or options.stability in ("full", "follow"),
        products=LEFT if rohf else EXAMINED,
        primitives=primitive_functions(mole),
        potentials=sum(mole.atom_nelec_core(atom) > 0 for atom in range(mole.natm)),
        cycles=scf_cycles(
            options.scf_gradient_tol, system.molecule.elements, started=options.scf_from is not None
        ),
        checked=options.pair_check,
        atoms=int(mole.natm),
        in_fields=IN_FIELDS if options.polarizability else 0,
        points=USUAL_POINTS.get(options.correlation.kind, 0),
        surface=surface_points(mole, options),
    )
    if options.stability == "auto":
        from dfmp2.scf.stability import frontier_window

        window = tuple(frontier_window(count, nao - count) for count in electrons)
        work = replace(work, frontier=window)
    if options.functional is not None:
        return _with_functional(work, mole, options)
    return work


def _with_functional(work: Workload, mole: Any, options: Options) -> Workload:
    """The sizes with those of the functional and its integration grids."""
    functional = str(options.functional)
    exact = exact_exchange(functional)
    grid = grid_name(options.grid, functional)
    coarse_points = 0
    if begins_coarse(options.precision, work.nao):
        coarse_points = count_points(make_grid(mole, coarse_name(make_grid(mole, grid))))
    return replace(
        work,
        grid=count_points(make_grid(mole, grid)),
        finer_grid=count_points(make_finer_grid(mole, finer_name(mole, grid, functional))),
        coarse_grid=coarse_points,
        kernel=(len(work.spins) * functional_variables(functional)) ** 2,
        exchange=exact.full or exact.separated,
        operators=2 if exact.separated else 1,
    )


def with_kept_pairs(work: Workload, system: System) -> Workload:
    """The sizes with the pairs of functions that the SCF keeps."""
    if not system.naux_scf:
        return work
    from dfmp2.integrals.screening import pair_count

    columns, rectangles = pair_count(system.mole)
    if not (work.single_exchange and work.exchange):
        rectangles = 0
    return replace(work, scf_columns=columns, rectangles=rectangles)


def _require_hamiltonian(
    molecule: Molecule, orbital: BasisSet, relativity: str, listener: Listener
) -> None:
    """Raise for X2C with a core potential, which already includes relativity; warn of functions
    contracted without relativity, and of charges where no atom can be."""
    potentials = orbital.ecp_electrons
    replaced = [
        s
        for s, ghost in zip(molecule.symbols, molecule.ghost, strict=True)
        if not ghost and potentials.get(s)
    ]
    if relativity == "x2c" and replaced:
        raise InputError(
            Option("relativity", "x2c"),
            (
                f" with {orbital.name}: it has a core potential for {replaced[0]}, which is "
                "fitted to relativistic atoms already: leave "
            ),
            Option("relativity"),
            " out, or use an all-electron ",
            Option("basis"),
        )
    if relativity == "x2c":
        _warn_of_contraction(molecule, orbital, listener)
    if molecule.point_charges is not None:
        near = too_near(
            molecule.coordinates,
            molecule.symbols,
            molecule.ghost,
            molecule.point_charges,
            SUSPICIOUS_DISTANCE,
        )
        if near:
            listener.warning(
                Message(
                    f"{near}, nearer than any atom could be: check ",
                    Option("point_charge_units"),
                    " and ",
                    Option("units"),
                )
            )


def _warn_of_contraction(molecule: Molecule, orbital: BasisSet, listener: Listener) -> None:
    """Warn of X2C in functions that are contracted for atoms without relativity."""
    errors = {}
    for key in dict.fromkeys(orbital.real_keys(molecule)):
        element = orbital.elements[key]
        error = contraction_error(element, "x2c")
        if error - contraction_error(element, "none") > LARGEST_MISFIT:
            errors[element.symbol] = error
    if not errors:
        return
    worst = max(errors, key=lambda symbol: errors[symbol])
    listener.warning(
        Message(
            Option("relativity", "x2c"),
            f" with {orbital.name}, whose functions for {' '.join(errors)} are contracted for atoms "
            f"without relativity: they describe the 1s orbital of {worst} badly (error "
            f"{errors[worst]:.2g} Eh); choose a set contracted for X2C or DKH, such as "
            "x2c-SVPall, cc-pVTZ-DK or ANO-RCC",
        )
    )


def useful_threads(setup: Setup, system: System) -> Setup:
    """The set-up, with one thread for a molecule so small that starting and joining threads would
    not pay off."""
    if system.mole.nao < SINGLE_THREADED:
        return replace(setup, active=1)
    return setup


def frozen_core(system: System, options: Options, listener: Listener) -> FrozenCore:
    """Count the frozen orbitals, and warn when programs would freeze different numbers."""
    molecule, ecp = system.molecule, system.orbital_basis.ecp_electrons
    alpha, beta = system.mole.nelec
    core = frozen_core_count(molecule, options.frozen_core, ecp, alpha, beta)
    warning = dialect_warning(core, molecule, ecp, alpha, beta)
    if warning:
        listener.warning(warning)
    return core


def system_sizes(
    system: System,
    reference: Reference,
    spaces: list[ActiveSpace],
    core: FrozenCore,
    options: Options,
) -> Sizes:
    """Dimensions of the calculation, to be stored."""
    alpha, beta = spaces[0], spaces[-1]
    return Sizes(
        natom=system.molecule.natom,
        nelectron=int(sum(system.mole.nelec)),
        nao=int(system.mole.nao),
        nmo=int(reference.mo_energy.shape[1]),
        naux_scf=system.naux_scf,
        naux=int(system.auxmole.nao),
        frozen_core=core.orbitals,
        nocc=(alpha.nocc, beta.nocc),
        nvir=(alpha.nvir, beta.nvir),
        frozen_virtual=options.frozen_virtual,
    )


# --- basis of elements and atoms ------------------------------------------------------------------


def orbital_basis(text: str, molecule: Molecule) -> BasisSet:
    """Orbital basis of a molecule, with its core potentials.

    Parameters
    ----------
    text : str
        In the form of `dfmp2.options.basis_parts`.
    molecule : Molecule

    Raises
    ------
    InputError : no such set or file, an element or atom that is not in the molecule or has no set,
        or core potentials of different size for atoms of one element
    """
    parts = parse_parts(text)
    if not parts.mixed:
        return resolve_orbital(text, molecule.elements)
    of_elements, of_atoms = _assigned(text, parts, molecule)
    elements: dict[str, ElementBasis] = {}
    for number, symbol in enumerate(molecule.symbols, start=1):
        if number in of_atoms:
            elements[f"{symbol}{number}"] = _element(of_atoms[number], symbol)
            continue
        value = of_elements.get(symbol, parts.default)
        if not value:
            raise InputError(
                Option("basis", title_of(text)),
                f" has no set for atom {number} {symbol}: add one for all others in front, as in "
                f"cc-pvdz,{title_of(text)}",
            )
        if symbol not in elements:
            elements[symbol] = _element(value, symbol)
    _require_same_cores(text, elements)
    orbital = BasisSet(role="orbital", name=title_of(text), elements=elements)
    require_cores(molecule, orbital)
    return orbital


def require_cores(molecule: Molecule, orbital: BasisSet) -> None:
    """Raise for functions that lack the core potential they were made for.

    Raises
    ------
    InputError : for an atom that is not a ghost
    """
    for key in dict.fromkeys(orbital.real_keys(molecule)):
        element = orbital.elements[key]
        number = atomic_number(element.symbol)
        if element.ecp is not None or number <= 2:
            continue
        hydrogenic = -0.5 * number**2
        lowest = ground_state_of_nucleus(element, "none", contracted=True)
        if lowest > LEAST_CORE * hydrogenic:
            raise InputError(
                f"{element.name} does not describe the core of {element.symbol}: one electron and "
                f"the nucleus have {lowest:.0f} Eh in its functions, instead of about "
                f"{hydrogenic:.0f} Eh. Add the core potential that belongs to the set, or choose "
                "another ",
                Option("basis"),
            )


def _assigned(
    text: str, parts: BasisParts, molecule: Molecule
) -> tuple[dict[str, str], dict[int, str]]:
    """The sets by element, and by atom number."""
    of_elements: dict[str, str] = {}
    given = Option("basis", title_of(text))
    for number in parts.of_atoms:
        if not 1 <= number <= molecule.natom:
            raise InputError(
                given, f": there is no atom {number}, the molecule has {molecule.natom}"
            )
    for key, value in parts.of_symbols.items():
        symbol = normalise_symbol(key)
        if symbol not in molecule.elements:
            raise InputError(
                given,
                f": there is no {symbol} in {molecule.formula}: leave out {key}=, or correct it",
            )
        of_elements[symbol] = value
    return of_elements, parts.of_atoms


def _element(value: str, symbol: str) -> ElementBasis:
    """The functions of an element in a set or a file."""
    if not is_file(value):
        return resolve_orbital(value, [symbol]).elements[symbol]
    elements = _file_elements(value)
    if symbol not in elements:
        raise InputError(
            Option("basis"),
            f": {path_of(value)} has no functions for {symbol}, but for {' '.join(elements)}",
        )
    return elements[symbol]


@cache
def _file_elements(value: str) -> dict[str, ElementBasis]:
    return parse_basis_file(*read_basis_file(value))


def _require_same_cores(text: str, elements: dict[str, ElementBasis]) -> None:
    """Raise if core potentials replace different numbers of electrons in atoms of one element."""
    cores: dict[str, int] = {}
    for element in elements.values():
        core = cores.setdefault(element.symbol, element.ecp_electrons)
        if core != element.ecp_electrons:
            raise InputError(
                Option("basis", title_of(text)),
                f": atoms of {element.symbol} have core potentials for {core} and for "
                f"{element.ecp_electrons} electrons, which is not available: take sets of one kind",
            )
