"""What every item of a batch will cost, and the shards that follow from it; nothing is computed for that.

The functions of a molecule are the sum over its atoms, so one look into the basis sets per element and set of options
serves any number of molecules. Costs are the forecast of the plan (`dfmp2.planning.time`) at fixed rates: the same on
every host, so that the shards of a batch agree on who computes what.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import asdict, dataclass
from typing import Any

from dfmp2.errors import Dfmp2Error, InputError, Interrupted
from dfmp2.execution.arrays import Work, shards
from dfmp2.execution.manifest import Batch
from dfmp2.execution.state import Input, read_input
from dfmp2.host import resources
from dfmp2.molecule.frozen_core import frozen_core_count
from dfmp2.molecule.molecule import Molecule
from dfmp2.molecule.pyscf_shield import import_pyscf
from dfmp2.molecule.resolve_basis import resolve_orbital
from dfmp2.mp2.identity import FREE
from dfmp2.options import Options
from dfmp2.planning import rates as calibration
from dfmp2.planning import time
from dfmp2.planning.sizes import Spin, Workload
from dfmp2.scf.fitting_sets import resolve_fitting
from dfmp2.scf.hartree_fock import reference_kind, uses_single

PER_ITEM = 0.1  # s beside the calculation itself: reading, planning, writing

Key = tuple[str, str, str, str]  # basis, scf, scf_auxbasis, auxbasis: what the numbers of functions depend on
Wanted = Sequence[tuple[Key, Sequence[str]]]  # element symbols to look up in each set of bases
Inputs = Sequence[Input | InputError]  # of all items, by their places; an error for a molecule that cannot be read


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


SizeTable = Mapping[Key, Mapping[str, ElementSize]]


@dataclass(frozen=True, slots=True)
class Forecast:
    """One item.

    Attributes
    ----------
    name, molecule : of the item
    shard : that computes it, from 0
    nao, naux : functions of the orbital and of the MP2 fitting set, None when it will be refused
    seconds : predicted, in a warm worker
    error : why its molecule cannot be read, "" if it can
    """

    name: str
    molecule: str
    shard: int
    nao: int | None
    naux: int | None
    seconds: float
    error: str


@dataclass(frozen=True, slots=True)
class Outlook:
    """All items, in the manifest's order; `loads` are the seconds of each shard.

    `measured` : whether the times rest on rates of this machine.
    """

    items: tuple[Forecast, ...]
    loads: tuple[float, ...]
    measured: bool

    def to_dict(self) -> dict[str, Any]:
        """What `batch plan --json` prints."""
        return {
            "total": len(self.items),
            "seconds": sum(self.loads),
            "measured": self.measured,
            "shards": [
                {"shard": f"{k}/{len(self.loads)}", "items": sum(i.shard == k for i in self.items), "seconds": load}
                for k, load in enumerate(self.loads)
            ],
            "items": [asdict(item) for item in self.items],
        }


def foresee(batch: Batch, count: int, *, chained: bool = False) -> Outlook:
    """Sizes, times and `count` shards; results that are there make no difference.

    Raises
    ------
    InputError : PySCF is missing
    """
    inputs = read_inputs(batch)
    loads = look_ahead(batch, inputs)
    common = batch.items[0].options
    backend = "cpu" if common.backend == "auto" else common.backend
    rates = calibration.load(backend, common.threads or resources.usable_cores())
    seconds = [cost(work, rates) for work in loads]
    cut = shards(works(batch, inputs, loads), count, chained=chained)
    shard_of = {work.place: k for k, members in enumerate(cut) for work in members}
    items = tuple(
        Forecast(
            item.name,
            item.molecule,
            shard_of[place],
            None if work is None else work.nao,
            None if work is None else work.naux,
            seconds[place],
            str(given) if isinstance(given, InputError) else "",
        )
        for place, (item, given, work) in enumerate(zip(batch.items, inputs, loads, strict=True))
    )
    totals = tuple(sum(item.seconds for item in items if item.shard == k) for k in range(count))
    return Outlook(items, totals, rates is not None)


def read_inputs(batch: Batch, stop_asked: Callable[[], int] = lambda: 0) -> list[Input | InputError]:
    """Read all molecules.

    Raises
    ------
    Interrupted : the user asked to stop
    """
    found: list[Input | InputError] = []
    for item in batch.items:
        if stop_asked():
            raise Interrupted("stopped before anything was computed: nothing was changed")
        try:
            found.append(read_input(item))
        except InputError as error:
            found.append(error)
    return found


def look_ahead(batch: Batch, inputs: Inputs) -> list[Workload | None]:
    """Sizes of all items, looked up in this process.

    Raises
    ------
    InputError : PySCF is missing
    """
    import_pyscf()
    return workloads(batch, inputs, element_sizes(wanted(batch, inputs)))


def wanted(batch: Batch, inputs: Inputs) -> list[tuple[Key, list[str]]]:
    """The elements whose numbers of functions decide the sizes, for every set of bases."""
    found: dict[Key, dict[str, None]] = {}
    for item, given in zip(batch.items, inputs, strict=True):
        if isinstance(given, Input):
            found.setdefault(_key(item.options), {}).update(dict.fromkeys(given.molecule.elements))
    return [(key, list(symbols)) for key, symbols in found.items()]


def element_sizes(looked_for: Wanted) -> dict[Key, dict[str, ElementSize]]:
    """Look elements up in the basis sets; those that a set lacks are left out. Imports PySCF."""
    table: dict[Key, dict[str, ElementSize]] = {}
    for key, symbols in looked_for:
        table[key] = {}
        for symbol in symbols:
            try:
                table[key][symbol] = _element_size(key, symbol)
            except Dfmp2Error:
                continue  # the item itself will say what is wrong
    return table


def workloads(batch: Batch, inputs: Inputs, table: SizeTable) -> list[Workload | None]:
    """Sizes of all items; None for one that will be refused."""
    return [
        workload(given.molecule, item.options, table) if isinstance(given, Input) else None
        for item, given in zip(batch.items, inputs, strict=True)
    ]


def workload(molecule: Molecule, options: Options, table: SizeTable) -> Workload | None:
    """Sizes of a run, None for one that will be refused."""
    elements = table.get(_key(options), {})
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


def works(batch: Batch, inputs: Inputs, loads: Iterable[Workload | None]) -> list[Work]:
    """All items with costs, shapes, and the series of items that may start from each other's orbitals."""
    found = []
    for place, (item, given, load) in enumerate(zip(batch.items, inputs, loads, strict=True)):
        if load is None or not isinstance(given, Input):
            found.append(Work(place, 0.0, "", f"alone {place}"))
            continue
        molecule = given.molecule
        options = {name: value for name, value in asdict(item.options).items() if name not in FREE}
        state = (molecule.charge, molecule.multiplicity, sorted(options.items()))
        shape = f"{load.nao} {load.naux} {[(spin.nocc, spin.nvir) for spin in load.spins]}"
        found.append(Work(place, cost(load), shape, repr((molecule.labels, *state))))
    return found


def cost(load: Workload | None, rates: time.Rates | None = None) -> float:
    """Seconds an item will take at the given rates, those of all hosts by default; 0 for one that will be refused."""
    if load is None:
        return 0.0
    rates = rates or time.Rates()
    return PER_ITEM + time.seconds(load, rates).total - rates.start  # a warm worker has its libraries loaded


def _key(options: Options) -> Key:
    return options.basis, options.scf, options.scf_auxbasis or "", options.auxbasis or ""


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
