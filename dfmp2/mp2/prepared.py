"""A run in two parts that need not share a machine: everything up to B, and the pair energies.

    prepare  molecule -> SCF -> B, in a file            energy  such a file -> pair energies -> result

The second part makes no integrals. Both are the stages of `dfmp2.mp2.energy`, so together they give the bits of a run
in one piece.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import asdict, dataclass, replace
from typing import Any, Protocol

from dfmp2.backends.base import Limits
from dfmp2.backends.cpu import CpuBackend
from dfmp2.errors import InputError, ResultFileError
from dfmp2.host import provenance, resources
from dfmp2.host.arrays_on_disk import StoredTensor
from dfmp2.host.provenance import Preparation, Provenance
from dfmp2.molecule.basis import BasisSet
from dfmp2.molecule.frozen_core import FrozenCore
from dfmp2.molecule.mole import build_auxiliary, build_mole, dump_mole
from dfmp2.molecule.molecule import Molecule
from dfmp2.mp2.calculation import (
    NOTHING,
    Calculation,
    Checkpoint,
    FittedIntegrals,
    begun,
    limited,
    storage_of,
    timings_of,
)
from dfmp2.mp2.diagnostics import Metric, diagnostics, warn_of_doubts
from dfmp2.mp2.energy import build_b, correlate, hartree_fock
from dfmp2.mp2.result import Diagnostics, MP2Result
from dfmp2.options import BOTH_PARTS, PAIRS, Options
from dfmp2.planning import memory
from dfmp2.planning import plan as planning
from dfmp2.planning.memory import FLOAT64, Memory, Storage
from dfmp2.planning.plan import Plan, make_plan, settle
from dfmp2.planning.sizes import Sizes
from dfmp2.planning.system import Setup, System, frozen_core, resolve, sizes
from dfmp2.planning.system import prepare as set_up
from dfmp2.planning.time import Timings
from dfmp2.progress import Collector, Listener, Stopwatch
from dfmp2.scf.hartree_fock import reference_kind, uses_single
from dfmp2.scf.reference import Reference, StartOrbitals


@dataclass(frozen=True, slots=True, eq=False)
class Prepared:
    """A calculation up to its pair energies. B itself stays in its file.

    The fields are those of `MP2Result`; timings, memory, storage and provenance are of the first part alone.
    """

    molecule: Molecule
    options: Options
    orbital_basis: BasisSet
    scf_fitting: BasisSet | None
    mp2_fitting: BasisSet
    reference: Reference
    sizes: Sizes
    diagnostics: Diagnostics
    timings: Timings
    predicted: Timings
    memory: Memory
    provenance: Provenance
    frozen_core_note: str
    mole_json: str
    storage: Storage

    @property
    def shapes(self) -> tuple[tuple[int, int, int], ...]:
        """(nocc, nvir, naux) of B per spin; fewer naux than the fitting set has where the metric was near singular."""
        naux = self.sizes.naux - self.diagnostics.metric_dropped
        spins = zip(self.sizes.nocc, self.sizes.nvir, strict=True)
        return tuple((nocc, nvir, naux) for nocc, nvir in spins)[: self.reference.nspin]

    @property
    def tensor_bytes(self) -> int:
        """Of B, all spins."""
        return sum(FLOAT64 * nocc * nvir * naux for nocc, nvir, naux in self.shapes)


class Target(Protocol):
    """The file that a preparation is written to."""

    def require(self, size: int) -> None:
        """Refuse a disk on which `size` bytes of B find no room."""

    def place(self, shapes: list[tuple[int, int]], naux: int) -> list[StoredTensor]:
        """Room in the file for B of each spin, (nocc, nvir) and naux."""

    def fill(self, b: list[Any], workers: int) -> None:
        """Store B of each spin, unless it was made in its place."""

    def seal(self, prepared: Prepared) -> None:
        """Store everything else, and see that it is on disk."""


class Source(Protocol):
    """A file that was prepared, open.

    Attributes
    ----------
    path : its name
    prepared : what it holds beside B
    sha256 : hash of its content
    fingerprint : what the bits of the pair energies depend on
    tensors : B of each spin
    read : bytes of B read so far
    """

    path: str
    prepared: Prepared
    sha256: str
    fingerprint: str
    tensors: list[StoredTensor]

    @property
    def read(self) -> int: ...

    def load(self, workers: int) -> list[Any]:
        """B of each spin in memory, its hashes checked."""

    def check(self) -> None:
        """Compare B with its hashes."""


def options_for(prepared: Prepared, given: Mapping[str, Any]) -> Options:
    """Options of the whole calculation: those of the first part, and what is `given` for the second.

    Raises
    ------
    InputError : an option belongs to the first part
    """
    for name in given:
        if name in Options.__slots__ and name not in (*PAIRS, *BOTH_PARTS):
            raise InputError(
                f"--{name.replace('_', '-')} belongs to what dfmp2 prepare has already done: leave it out, or prepare "
                "another file with it"
            )
        if name not in Options.__slots__:
            raise InputError(f"unknown option {name!r}: the options are {', '.join(sorted((*PAIRS, *BOTH_PARTS)))}")
    here = {"memory": None, "scratch": None, "threads": None}  # of the machine, not of the calculation
    return replace(prepared.options, **{**here, **{name: value for name, value in given.items() if value is not None}})


NO_STAGE = memory.Stage(0, 0, 0)
NO_DEVICE = Limits(("fp64",), tile_edge=1, tile_elements=0, workers=1)  # pair energies are no part of it


def prepare(
    molecule: Molecule,
    options: Options,
    target: Target,
    *,
    start: StartOrbitals | None = None,
    listener: Listener | None = None,
    command: str = "dfmp2.prepare",
    checkpoint: Checkpoint = NOTHING,
) -> Prepared:
    """SCF, integrals and B of one molecule, in a file.

    Parameters
    ----------
    others : as of `dfmp2.mp2.energy.mp2_energy`
    target : is filled and sealed

    Raises
    ------
    Dfmp2Error : see `dfmp2.errors`
    """
    listener, clock = Collector(listener or Listener()), Stopwatch()
    options = options.settled(molecule.multiplicity)
    setup = set_up(options, command, lambda count: (CpuBackend(count), "the pair energies are still to come"))
    system = resolve(molecule, setup, listener)
    kind = reference_kind(options, molecule.multiplicity)

    with limited(setup, system) as setup:
        core = frozen_core(system, options, listener)
        plan = _without_pairs(make_plan(system, setup, core, kind), setup)
        plan.memory.require()
        target.require(memory.FLOAT64 * plan.work.elements * plan.work.naux)
        with begun(system, setup, kind, core, plan, listener, clock, checkpoint, start) as calculation:
            reference, fitted = build_b(calculation, hartree_fock(calculation, start), target.place)
            warnings = list(listener.warnings)
            warn_of_doubts(system, reference, fitted.metric, options, listener)  # said now; stored with the energies
            listener.stage("writing B")
            target.fill(fitted.b, calculation.setup.active)
            fitted.b.clear()
            found = _prepared(calculation, reference, fitted.metric, warnings)
            target.seal(found)
            return found


def energy(
    source: Source,
    options: Options,
    *,
    listener: Listener | None = None,
    command: str = "dfmp2.energy",
    checkpoint: Checkpoint = NOTHING,
) -> MP2Result:
    """The pair energies of a file that was prepared, and with them the result.

    Parameters
    ----------
    options : of the whole calculation (`dfmp2.mp2.prepared.options_for`)
    checkpoint : saves finished tiles, and may hold those that were finished before

    Raises
    ------
    ResultFileError : the file is damaged
    Dfmp2Error : see `dfmp2.errors`
    """
    listener, clock = Collector(listener or Listener()), Stopwatch()
    prepared, kind = source.prepared, source.prepared.reference.kind
    setup = set_up(options, command)
    system = _rebuilt(prepared, setup, source.path)
    for text in prepared.diagnostics.warnings:
        listener.warning(text)
    if options.precision == "fp64" and prepared.options.precision != "fp64" and _began_in_single(prepared):
        listener.warning(
            "--precision fp64, but the SCF began with float32 exchange (its end is float64): prepare it with "
            "--precision fp64 for a run without any float32"
        )

    core = FrozenCore(prepared.sizes.frozen_core, options.frozen_core, note=prepared.frozen_core_note)
    with limited(setup, system) as setup:
        _, setup, plan = settle(system, setup, kind, listener, core=core, scf=False)
        plan, made = _pairs_alone(plan, setup, prepared), source.fingerprint
        with begun(system, setup, kind, core, plan, listener, clock, checkpoint, b_sha256=made) as calculation:
            result = correlate(calculation, prepared.reference, _read_b(calculation, source))
    return replace(
        result,
        timings=_sum(prepared.timings, result.timings),
        storage=None
        if result.storage is None
        else replace(result.storage, read=source.read, scf_integrals=prepared.storage.scf_integrals),
        preparation=_preparation(source),
    )


def _read_b(calculation: Calculation, source: Source) -> FittedIntegrals:
    """B of each spin, in memory where it fits, else in its file; its hashes are checked either way."""
    calculation.listener.stage(f"reading and checking the fitted integrals in {source.path}")
    if calculation.plan.memory.mp2_fits_in_core:
        b = source.load(calculation.setup.active)
    else:
        source.check()
        b = list(source.tensors)
    found = source.prepared.diagnostics
    metric = Metric(found.metric_condition, found.metric_dropped, found.metric_threshold)
    return FittedIntegrals(b, metric)


def _without_pairs(plan: Plan, setup: Setup) -> Plan:
    """The plan of a run that ends with B, in a file beside which nothing of it goes to scratch."""
    work = replace(plan.work, precision="fp64")
    room = plan.memory
    held = planning.memory_plan(work, NO_DEVICE, setup.threads, program=room.program, budget=room.budget)
    held = replace(held, mp2_pairs=NO_STAGE, mp2_disk=0)
    times = plan.timings
    times = replace(times, pair_energies=0.0, total=times.total - times.pair_energies)
    return replace(plan, memory=held, timings=times)


def _pairs_alone(plan: Plan, setup: Setup, prepared: Prepared) -> Plan:
    """The plan of a run that begins with B."""
    work = replace(plan.work, frontier_elements=0, block_functions=0)
    room = plan.memory
    held = planning.memory_plan(work, setup.backend.limits, setup.threads, program=room.program, budget=room.budget)
    held = replace(held, scf_in_core=0, scf_fit=None, scf_read=None, scf_disk=0)
    held = replace(held, mp2_integrals=NO_STAGE, mp2_solve=NO_STAGE, mp2_disk=0)
    seconds = plan.timings.pair_energies
    predicted = replace(prepared.predicted, pair_energies=seconds, total=prepared.predicted.total + seconds)
    return replace(plan, work=work, memory=held, timings=predicted)


def _rebuilt(prepared: Prepared, setup: Setup, path: str) -> System:
    """The system of the first part, from the numbers it has stored: no basis is looked up by its name."""
    molecule, jk = prepared.molecule, prepared.scf_fitting
    mole = build_mole(molecule, prepared.orbital_basis, setup.budget)
    system = System(
        molecule=molecule,
        orbital_basis=prepared.orbital_basis,
        scf_fitting=jk,
        mp2_fitting=prepared.mp2_fitting,
        mole=mole,
        auxmole=build_auxiliary(mole, molecule, prepared.mp2_fitting),
        jk_auxmole=None if jk is None else build_auxiliary(mole, molecule, jk),
    )
    here = (int(mole.nao), int(system.auxmole.nao), system.naux_scf)
    if here != (prepared.sizes.nao, prepared.sizes.naux, prepared.sizes.naux_scf):
        raise ResultFileError(f"{path}: damaged file (its sizes are not those of its bases): prepare it again")
    return system


def _prepared(calculation: Calculation, reference: Reference, metric: Metric, warnings: list[str]) -> Prepared:
    system, setup, options = calculation.system, calculation.setup, calculation.options
    spaces = calculation.spaces(reference)
    return Prepared(
        molecule=system.molecule,
        options=options,
        orbital_basis=system.orbital_basis,
        scf_fitting=system.scf_fitting,
        mp2_fitting=system.mp2_fitting,
        reference=reference,
        sizes=sizes(system, reference, spaces, calculation.core, options),
        diagnostics=diagnostics(system, reference, spaces, metric, warnings),
        timings=timings_of(calculation.clock),
        predicted=calculation.plan.timings,
        memory=Memory(setup.budget, calculation.plan.memory.predicted_peak, resources.peak_resident_memory()),
        provenance=provenance.collect(setup.command, setup.threads, setup.backend.describe()),
        frozen_core_note=calculation.core.note,
        mole_json=dump_mole(system.mole),
        storage=storage_of(calculation),
    )


def _began_in_single(prepared: Prepared) -> bool:
    return prepared.options.scf == "df" and uses_single(prepared.options.precision, prepared.sizes.nao)


def _sum(first: Timings, second: Timings) -> Timings:
    """Wall times of both parts."""
    return Timings(**{name: value + getattr(second, name) for name, value in asdict(first).items()})


def _preparation(source: Source) -> Preparation:
    prepared = source.prepared
    return Preparation(
        **asdict(prepared.provenance),
        file=source.path,
        sha256=source.sha256,
        seconds=prepared.timings.total,
        measured_peak=prepared.memory.measured_peak,
    )
