"""What items cost, in which order and by which shard they are computed, and times as schedulers are told them.

The functions of a molecule are the sum over its atoms, so one look into the basis sets per element serves any number
of molecules. Costs are the forecast of the plan (`dfmp2.planning.time`) at fixed rates: the same on every host, so that
the shards of a batch agree on who computes what. Large items come first, so that none of them is alone at the end.
Shards are filled largest first, each item to the shard with the least so far.
"""

from __future__ import annotations

import os
import re
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import asdict, dataclass
from functools import cache
from typing import Any, NamedTuple

from dfmp2.errors import Dfmp2Error, InputError
from dfmp2.execution.manifest import Batch
from dfmp2.execution.state import Input, read_inputs
from dfmp2.host import resources
from dfmp2.molecule.basis_library import resolve_orbital
from dfmp2.molecule.frozen_core import frozen_core_count
from dfmp2.molecule.molecule import Molecule
from dfmp2.molecule.pyscf_shield import import_pyscf
from dfmp2.mp2.identity import FREE
from dfmp2.options import Options
from dfmp2.planning import rates as calibration
from dfmp2.planning import time
from dfmp2.planning.rates import Rates
from dfmp2.planning.sizes import IN_FIELDS, Spin, Workload, scf_cycles
from dfmp2.scf.fitting_sets import resolve_fitting
from dfmp2.scf.hartree_fock import reference_kind, uses_single

PER_ITEM = 0.1  # s beside the calculation itself: reading, planning, writing
MOST_SHARDS = 100_000
SECONDS = {"s": 1, "min": 60, "h": 3600, "d": 86400}
LONGEST = 366 * 86400  # s
SCHEDULERS = (  # variables: index, first index (or None), count
    ("SLURM_ARRAY_TASK_ID", "SLURM_ARRAY_TASK_MIN", "SLURM_ARRAY_TASK_COUNT"),
    ("AWS_BATCH_JOB_ARRAY_INDEX", None, "AWS_BATCH_JOB_ARRAY_SIZE"),
)

Inputs = Sequence[Input | InputError]  # of all items, by their places; an error for a molecule that cannot be read


class ElementSize(NamedTuple):
    """Spherical functions of one element in the three sets of a calculation, and electrons of its core potential.

    `scf_fitting` is 0 for a conventional SCF; `primitives` are those of the orbital basis.
    """

    orbital: int
    primitives: int
    scf_fitting: int
    mp2_fitting: int
    core: int


@dataclass(frozen=True, slots=True)
class Work:
    """An item as a scheduler sees it.

    Attributes
    ----------
    place : its place in the manifest
    cost : s, the same for items of the same sizes
    series : items of one series may start from each other's orbitals
    """

    place: int
    cost: float
    series: str


# --- costs ------------------------------------------------------------------------------------------------------------


def foresee(batch: Batch, count: int, *, chained: bool = False) -> dict[str, Any]:
    """What `batch plan --json` prints: sizes and times of all items in `count` shards, whatever is complete already.

    `nao` and `naux` are None for an item that will be refused, `error` says why its molecule cannot be read, and
    `measured` whether the times rest on rates of this machine.

    Raises
    ------
    InputError : PySCF is missing
    """
    inputs = read_inputs(batch)
    loads = look_ahead(batch, inputs)
    common = batch.items[0].options
    backend = "cpu" if common.backend == "auto" else common.backend
    rates = calibration.load(backend, common.threads or resources.usable_cores())
    cut = shards(works(batch, inputs, loads), count, chained=chained)
    shard_of = {work.place: k for k, members in enumerate(cut) for work in members}
    seconds = [cost(load, rates) for load in loads]
    sums = [sum(seconds[work.place] for work in members) for members in cut]
    return {
        "total": len(loads),
        "seconds": sum(sums),
        "measured": rates is not None,
        "shards": [{"shard": f"{k}/{count}", "items": len(cut[k]), "seconds": spent} for k, spent in enumerate(sums)],
        "items": [
            {
                "name": item.name,
                "molecule": item.molecule,
                "shard": shard_of[place],
                "nao": load and load.nao,
                "naux": load and load.naux,
                "seconds": seconds[place],
                "error": str(given) if isinstance(given, InputError) else "",
            }
            for place, (item, given, load) in enumerate(zip(batch.items, inputs, loads, strict=True))
        ],
    }


def look_ahead(batch: Batch, inputs: Inputs) -> list[Workload | None]:
    """Sizes of all items; None for one that will be refused.

    Raises
    ------
    InputError : PySCF is missing
    """
    import_pyscf()
    return [
        workload(given.molecule, item.options, item.task) if isinstance(given, Input) else None
        for item, given in zip(batch.items, inputs, strict=True)
    ]


@cache
def element_size(basis: str, scf: str, scf_auxbasis: str | None, auxbasis: str | None, symbol: str) -> ElementSize:
    """Look an element up in the basis sets of a calculation. Imports PySCF.

    Raises
    ------
    Dfmp2Error : a set lacks it
    """
    orbital = resolve_orbital(basis, (symbol,))
    jk = resolve_fitting("jk", scf_auxbasis, orbital, (symbol,)) if scf == "df" else None
    ri = resolve_fitting("ri", auxbasis, orbital, (symbol,))
    return ElementSize(
        _functions(orbital.elements[symbol].shells),
        _primitives(orbital.elements[symbol].shells),
        0 if jk is None else _functions(jk.elements[symbol].shells),
        _functions(ri.elements[symbol].shells),
        orbital.elements[symbol].ecp_electrons,
    )


def workload(molecule: Molecule, options: Options, task: str = "energy") -> Workload | None:
    """Sizes of a run, None for one that will be refused; an optimisation counts as one gradient."""
    bases = options.basis, options.scf, options.scf_auxbasis, options.auxbasis
    try:
        atoms = [element_size(*bases, symbol) for symbol in molecule.symbols]
        ecp = {symbol: element_size(*bases, symbol).core for symbol in molecule.elements}
        electrons = molecule.check_electrons(ecp)
        core = frozen_core_count(molecule, options.frozen_core, ecp, *electrons).orbitals
        kind = reference_kind(options, molecule.multiplicity)
    except Dfmp2Error:  # the item itself will say what is wrong
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
        primitives=sum(atom.primitives for atom in atoms),
        potentials=sum(atom.core > 0 for atom in atoms),
        cycles=scf_cycles(options.scf_gradient_tol, molecule.elements),
        checked=options.check,
        atoms=molecule.natom,
        task=task if task in ("energy", "properties") else "gradient",
        in_fields=IN_FIELDS if options.polarizability else 0,
    )


def works(batch: Batch, inputs: Inputs, loads: Iterable[Workload | None]) -> list[Work]:
    """All items with their costs and the series of items that may start from each other's orbitals."""
    found = []
    for place, (item, given, load) in enumerate(zip(batch.items, inputs, loads, strict=True)):
        if load is None or not isinstance(given, Input):
            found.append(Work(place, 0.0, f"alone {place}"))
            continue
        molecule = given.molecule
        options = {name: value for name, value in asdict(item.options).items() if name not in FREE}
        state = (molecule.charge, molecule.multiplicity, sorted(options.items()))
        found.append(Work(place, cost(load), repr((molecule.labels, *state))))
    return found


def cost(load: Workload | None, rates: Rates | None = None) -> float:
    """Seconds an item will take at the given rates, those of all hosts by default; 0 for one that will be refused."""
    if load is None:
        return 0.0
    rates = rates or Rates()
    return PER_ITEM + time.seconds(load, rates).total - rates.start  # a warm worker has its libraries loaded


def memory_needed(load: Workload, threads: int) -> tuple[int, int]:
    """About how many bytes a worker needs for an item: with large arrays on disk, and with everything in memory."""
    from dfmp2.backends.registry import select
    from dfmp2.planning.plan import memory_plan

    limits = select("cpu", "fp64", threads)[0].limits
    found = memory_plan(load, limits, threads, program=resources.resident_memory(), budget=0)
    return found.least, found.comfortable


def _functions(shells: Sequence[Any]) -> int:
    """Spherical functions: 2 l + 1 per contraction; a shell is (l, (exponent, c1, c2, ...), ...)."""
    return sum((2 * shell[0] + 1) * (len(shell[-1]) - 1) for shell in shells)


def _primitives(shells: Sequence[Any]) -> int:
    """Primitive functions: 2 l + 1 per exponent, which the contractions of a shell share."""
    return sum((2 * shell[0] + 1) * (len(shell) - 1) for shell in shells)


# --- order and shards -------------------------------------------------------------------------------------------------


def arrange(items: Sequence[Work], *, parts: int, chained: bool) -> list[list[Work]]:
    """Items that one worker computes one after the other, in the order in which they should begin.

    Parameters
    ----------
    parts : pieces that a series is cut into when items are chained, so that as many can work on it
    """
    series: dict[str | int, list[Work]] = {}
    for item in sorted(items, key=lambda item: item.place):
        series.setdefault(item.series if chained else item.place, []).append(item)
    pieces = []
    for members in series.values():
        length = -(-len(members) // parts)
        pieces += [members[first : first + length] for first in range(0, len(members), length)]
    return sorted(pieces, key=lambda piece: (-_cost(piece), piece[0].place))


def shards(items: Sequence[Work], count: int, *, chained: bool = False) -> list[list[Work]]:
    """The items of each shard, in the manifest's order; every host finds the same."""
    filled: list[list[Work]] = [[] for _ in range(count)]
    loads = [0.0] * count
    for piece in arrange(items, parts=count, chained=chained):
        least = min(range(count), key=lambda k: (loads[k], len(filled[k]), k))
        filled[least] += piece
        loads[least] += _cost(piece)
    return [sorted(members, key=lambda item: item.place) for members in filled]


def _cost(piece: Sequence[Work]) -> float:
    return sum(item.cost for item in piece)


# --- array jobs -------------------------------------------------------------------------------------------------------


def read_shard(text: str) -> tuple[int, int]:
    """(I, N) from "I/N", I from 0 to N - 1.

    Raises
    ------
    InputError : not of that form
    """
    match = re.fullmatch(r"([0-9]{1,9})/([0-9]{1,9})", text.strip())
    if match is None or not int(match[1]) < int(match[2]) <= MOST_SHARDS:
        raise InputError(f"--shard {text!r}: expected I/N with I from 0 to N - 1, for example 0/8")
    return int(match[1]), int(match[2])


def shard_of_job(environment: Mapping[str, str] = os.environ) -> tuple[int, int] | None:
    """(I, N) of a task in a Slurm or AWS Batch array job; None outside of one.

    Raises
    ------
    InputError : the scheduler's variables make no sense
    """
    for index, first, count in SCHEDULERS:
        if index not in environment:
            continue
        names = [index, count] + ([first] if first else [])
        try:
            values = {name: int(environment[name]) for name in names}
        except (KeyError, ValueError) as error:
            raise InputError(f"{index} is set, but {', '.join(names)} are not all numbers: pass --shard I/N") from error
        place = values[index] - (values[first] if first else 0)
        if not 0 <= place < values[count]:
            raise InputError(
                f"{index} = {values[index]} is not one of {values[count]} tasks in steps of one: use an array such as "
                f"0-{values[count] - 1}, or pass --shard I/N"
            )
        return place, values[count]
    return None


def parse_walltime(text: str) -> int:
    """Seconds of "90min", "2h", "1.5h", "1d", or of Slurm's "HH:MM:SS" and "D-HH:MM:SS".

    A number without a unit is refused: Slurm reads minutes, AWS Batch seconds.

    Raises
    ------
    InputError : none of these, or not between a second and a year
    """
    expected = "expected a time such as 90min, 2h, 1d, 02:00:00 or 1-12:00:00"
    clock = re.fullmatch(r"(?:([0-9]{1,3})-)?([0-9]{1,4}):([0-5][0-9]):([0-5][0-9])", text.strip())
    number = re.fullmatch(r"([0-9]{1,6}(?:\.[0-9]{1,6})?)\s*([A-Za-z]{0,8})", text.strip())
    if clock is not None:
        days, hours, minutes, rest = (int(part or 0) for part in clock.groups())
        seconds = float(days * SECONDS["d"] + hours * SECONDS["h"] + minutes * SECONDS["min"] + rest)
    elif number is not None and number[2] in SECONDS:
        seconds = float(number[1]) * SECONDS[number[2]]
    elif number is not None and not number[2]:
        raise InputError(f"--time {text} has no unit: write for example {text.strip()}min or {text.strip()}h")
    else:
        raise InputError(f"--time {text[:40]!r}: {expected}")
    if not 1 <= seconds <= LONGEST:
        raise InputError(f"--time {text[:40]!r}: expected 1 s to {LONGEST // 86400} days; {expected}")
    return round(seconds)
