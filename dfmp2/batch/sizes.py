"""What every item will cost, from numbers of functions per element; molecules are not built for it.

The functions of a molecule are the sum over its atoms, so one look into the basis sets per element and set of options
serves any number of molecules. The cost is the forecast of the plan (`dfmp2.forecast`) at fixed rates: the same on
every host, so that the shards of a batch agree on who computes what.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Any

from dfmp2 import forecast
from dfmp2.errors import Dfmp2Error
from dfmp2.frozen_core import frozen_core_count
from dfmp2.molecule import Molecule
from dfmp2.options import Options
from dfmp2.reference.basis import resolve_orbital
from dfmp2.reference.exchange_schedule import uses_single
from dfmp2.reference.fitting_sets import resolve_fitting
from dfmp2.reference.mean_field import reference_kind
from dfmp2.workload import Spin, Workload

PER_ITEM = 0.1  # s beside the calculation itself: reading, planning, writing


@dataclass(frozen=True, slots=True)
class ElementSize:
    """Functions of one element in the three sets of a calculation, and electrons of its core potential.

    Attributes
    ----------
    orbital, scf_fitting, mp2_fitting : spherical functions; scf_fitting is 0 for a conventional SCF
    core : electrons that a core potential replaces
    """

    orbital: int
    scf_fitting: int
    mp2_fitting: int
    core: int


Key = tuple[str, str, str, str]  # basis, scf, scf_auxbasis, auxbasis
SizeTable = Mapping[Key, Mapping[str, ElementSize]]


def size_key(options: Options) -> Key:
    """What the numbers of functions depend on."""
    return options.basis, options.scf, options.scf_auxbasis or "", options.auxbasis or ""


def element_sizes(key: Key, symbols: Sequence[str]) -> dict[str, ElementSize]:
    """Look the elements up in the basis sets; those that a set lacks are left out. Imports PySCF."""
    found = {}
    for symbol in symbols:
        try:
            found[symbol] = _element_size(key, symbol)
        except Dfmp2Error:
            continue  # the item itself will say what is wrong
    return found


def workload(molecule: Molecule, options: Options, table: SizeTable) -> Workload | None:
    """Sizes of a run, None for one that will be refused."""
    elements = table.get(size_key(options), {})
    if not set(molecule.elements) <= set(elements):
        return None
    atoms = [elements[symbol] for symbol in molecule.symbols]
    ecp = {symbol: elements[symbol].core for symbol in molecule.elements}
    try:
        electrons = molecule.check_electrons(ecp)
        core = frozen_core_count(molecule, options.frozen_core, ecp, *electrons).orbitals
        kind = reference_kind(options, molecule.multiplicity)
    except Dfmp2Error:
        return None
    nao = sum(atom.orbital for atom in atoms)
    return Workload(
        nao=nao,
        naux_scf=sum(atom.scf_fitting for atom in atoms),
        naux=sum(atom.mp2_fitting for atom in atoms),
        spins=tuple(
            Spin(n, max(0, n - core), max(0, nao - n - options.frozen_virtual))
            for n in (electrons if kind == "uhf" else electrons[:1])
        ),
        precision=options.precision,
        block_functions=1,
        single_exchange=uses_single(options.precision, nao),
        starts=options.scf_starts,
        examined=options.settled(molecule.multiplicity).stability in ("full", "follow"),
    )


def cost(work: Workload | None, rates: forecast.Rates | None = None) -> float:
    """Seconds an item will take at the given rates, those of all hosts by default; 0 for one that will be refused."""
    if work is None:
        return 0.0
    rates = rates or forecast.Rates()
    return PER_ITEM + forecast.seconds(work, rates).total - rates.start  # a warm worker has its libraries loaded


def _element_size(key: Key, symbol: str) -> ElementSize:
    basis, scf, scf_auxbasis, auxbasis = key
    orbital = resolve_orbital(basis, (symbol,))
    jk = resolve_fitting("jk", scf_auxbasis or None, orbital, (symbol,)) if scf == "df" else None
    ri = resolve_fitting("ri", auxbasis or None, orbital, (symbol,))
    return ElementSize(
        _functions(orbital.elements[symbol].shells),
        0 if jk is None else _functions(jk.elements[symbol].shells),
        _functions(ri.elements[symbol].shells),
        orbital.elements[symbol].ecp_electrons,
    )


def _functions(shells: Sequence[Any]) -> int:
    """Spherical functions: 2 l + 1 per contraction; a shell is (l, (exponent, c1, c2, ...), ...)."""
    return sum((2 * shell[0] + 1) * (len(shell[-1]) - 1) for shell in shells)
