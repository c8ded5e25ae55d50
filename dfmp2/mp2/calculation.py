"""A calculation in progress: its settled options and plan, its checkpoint, and B on disk.

The calculation reads the attributes of its `Checkpoint` before each stage and calls its methods
after the stage. The class here saves nothing; `dfmp2.output.checkpoint` has the one that writes a
file.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Iterator, Mapping
from contextlib import contextmanager
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any, TypedDict

from dfmp2.arrays import Array
from dfmp2.backends.base import Backend, PairTerms
from dfmp2.errors import Message, Option, ResourceError
from dfmp2.host import threads
from dfmp2.host.arrays_on_disk import StoredTensor
from dfmp2.host.provenance import Storage
from dfmp2.host.resources import few_collections
from dfmp2.host.scratch import Space, in_memory
from dfmp2.integrals.metric import orbital_groups
from dfmp2.integrals.spaces import ActiveSpace, active_space
from dfmp2.mp2.diagnostics import Metric
from dfmp2.mp2.dispersion import Dispersion, dispersion_energy
from dfmp2.mp2.identity import identity
from dfmp2.mp2.pairs import TileKey
from dfmp2.options import Options
from dfmp2.planning.plan import Plan, PlannedRun, prepare_programs, settle_plan
from dfmp2.planning.system import Setup, System, set_up_run, useful_threads
from dfmp2.planning.time import STAGES, TimeLeft, Timings
from dfmp2.progress import Collector, Listener, Stopwatch
from dfmp2.scf.hartree_fock import require_fitting
from dfmp2.scf.reference import Reference, StartOrbitals
from dfmp2.units import format_bytes

RUN = "run"  # key in the identity for the name of a run of a study


@dataclass(frozen=True, slots=True)
class StoredB:
    """B in the scratch folder of an interrupted run.

    Attributes
    ----------
    folder : the scratch folder
    shapes : (nocc, nvir, naux) per spin
    digests : per spin, SHA-256 of the numbers of every group of orbitals
    condition, dropped, threshold : of the fitting metric
    """

    folder: str
    shapes: tuple[tuple[int, int, int], ...]
    digests: tuple[tuple[str, ...], ...]
    condition: float
    dropped: int
    threshold: float


@dataclass(eq=False)
class State:
    """The finished part of a calculation.

    Attributes
    ----------
    identity : name and value of everything that defines it (`dfmp2.mp2.identity.identity`)
    orbitals : of the last SCF iteration, until the SCF has converged
    reference : the converged reference
    b : where B is on disk
    tiles : pair terms of finished tiles; valid only for the B they were computed from
    """

    identity: Mapping[str, str] = field(default_factory=dict)
    orbitals: StartOrbitals | None = None
    reference: Reference | None = None
    b: StoredB | None = None
    tiles: dict[TileKey, PairTerms] = field(default_factory=dict)

    @property
    def run(self) -> str:
        """Name of the run if it belongs to a study, else ""."""
        return self.identity.get(RUN, "")


class Checkpoint(State):
    """The state of a running calculation; this base class saves nothing. `path` is the path of the
    file, "" if there is none."""

    path: str = ""

    def begin(
        self, identity: Mapping[str, str], listener: Listener, orbital_bytes: int = 0
    ) -> None:
        """Declare what will be computed, before any number is, and the size of its orbitals.

        Raises
        ------
        ForeignCheckpoint : the saved state belongs to another calculation
        """

    def add_orbitals(self, mo_coeff: Array, mo_occ: Array) -> None:
        """Save the orbitals of an SCF iteration, (nspin, nao, nmo) and (nspin, nmo).

        Raises
        ------
        Interrupted : the run was asked to stop; finished work is saved. The methods below raise it
            too
        """

    def add_reference(self, reference: Reference) -> None:
        """Save the converged reference."""

    def add_b(self, b: StoredB | None) -> None:
        """Record that B is complete: on disk, or in memory if None. Tiles of another B are dropped,
        because a repeated conventional SCF gives orbitals with other last bits."""

    def add_tile(self, key: TileKey, terms: PairTerms) -> None:
        """Save a finished tile."""


NOTHING = Checkpoint()


class CalculationKeywords(TypedDict, total=False):
    """The keywords of every calculation of a molecule, see `dfmp2.mp2.energy.mp2_energy`."""

    start: StartOrbitals | None
    listener: Listener | None
    command: str
    checkpoint: Checkpoint


@dataclass(frozen=True, slots=True, eq=False)
class Calculation(PlannedRun):
    """A planned calculation in progress; created by `open_calculation`.

    Attributes
    ----------
    system, setup, kind, core, plan : as in PlannedRun
    space : scratch space, entered
    listener, clock : progress and warnings, wall times
    checkpoint : saves finished work, and may hold that of an interrupted run
    identity : name and value of everything that the last bit of the result depends on
    field : uniform electric field, (3,) Eh/(e bohr), or None
    dispersion : dispersion correction of a double hybrid, or None
    separate : whether the gradient of the SCF energy is also given by itself
    """

    space: Space
    listener: Collector
    clock: Stopwatch
    checkpoint: Checkpoint
    identity: Mapping[str, str]
    field: Array | None = None
    dispersion: Dispersion | None = None
    separate: bool = False

    @property
    def options(self) -> Options:
        """The options of the calculation."""
        return self.setup.options

    def spaces(self, reference: Reference) -> list[ActiveSpace]:
        """The correlated orbitals of each spin.

        Raises
        ------
        InputError : there are no virtual orbitals
        """
        spins = zip(reference.mo_coeff, reference.mo_energy, reference.mo_occ, strict=True)
        return [
            active_space(*spin, self.core.orbitals, self.options.frozen_virtual) for spin in spins
        ]


@dataclass(frozen=True, slots=True, eq=False)
class FittedIntegrals:
    """B of each spin and the metric of its fitting functions.

    Attributes
    ----------
    b : list of arrays or of tensors on disk
        (nocc, nvir, naux) float64 per spin, Eh^1/2.
    metric : Metric
        Metric of the fitting functions.
    frontier : list of arrays
        B of the frontier orbitals, if requested.
    stored : list of StoredTensor
        Those tensors of `b` that are on disk.
    """

    b: list[Any]
    metric: Metric
    frontier: list[Any] = field(default_factory=list)
    stored: list[StoredTensor] = field(default_factory=list)


BuildB = Callable[[Calculation, Reference], FittedIntegrals]  # `dfmp2.mp2.energy.build_b`
Resolve = Callable[[Setup, Collector], System]
Settle = Callable[[System, Setup, str, Collector], PlannedRun]


@dataclass(frozen=True, slots=True, eq=False)
class Opening:
    """How a calculation is set up before any number is computed.

    Attributes
    ----------
    resolve : callable
        Makes the molecule with its bases.
    settle : callable
        Plans the run, with its frozen core and its backend.
    choose_backend : callable, optional
        Number of threads -> backend and reason, if the options do not choose the backend.
    b_sha256 : str
        Hash of a B that exists already, else "".
    """

    resolve: Resolve
    settle: Settle = settle_plan
    choose_backend: Callable[[int], tuple[Backend, str]] | None = None
    b_sha256: str = ""


@contextmanager
def open_calculation(
    options: Options,
    kind: str,
    opening: Opening,
    *,
    start: StartOrbitals | None = None,
    listener: Listener | None,
    command: str,
    checkpoint: Checkpoint = NOTHING,
) -> Iterator[Calculation]:
    """Open a calculation with its backend, bases, plan and scratch space, and with what its
    checkpoint holds.

    All numerical libraries are limited to the planned number of threads.

    Parameters
    ----------
    options : Options
        Settled for the molecule's multiplicity.
    kind : str
        "rhf" or "uhf".
    opening : Opening
        How the molecule and the plan are made.
    start : StartOrbitals, optional
        Start orbitals of the SCF.
    listener : Listener, optional
        Receives progress and warnings.
    command : str
        Stored in the provenance.
    checkpoint : Checkpoint
        Saves finished work, and may hold that of an interrupted run.

    Raises
    ------
    Dfmp2Error
        Any error that can be detected before a number is computed.
    """
    collector = Collector(listener or Listener())
    clock = Stopwatch(collector)
    setup = set_up_run(options, command, opening.choose_backend)
    system = opening.resolve(setup, collector)
    setup = useful_threads(setup, system)
    with threads.limited(setup.active):
        run = opening.settle(system, setup, kind, collector)
        setup, plan = run.setup, run.plan
        plan.memory.require()
        dispersion = None
        correction = setup.options.dispersion_correction
        if correction is not None:
            dispersion = dispersion_energy(system.molecule, *correction)
        if start is not None:
            require_fitting(start, system.mole)
        prepare_programs(setup, plan.work, collector)
        names = identity(system, setup, run.core, kind, start)
        if opening.b_sha256:
            del names["--threads"]  # tiles do not depend on them
            names["fitted integrals"] = opening.b_sha256
        checkpoint.begin(names, collector, plan.work.orbital_bytes)
        _tell_of_scratch(setup, plan, collector)
        collector.forecast = TimeLeft(
            clock, plan.timings, plan.pace, setup.options.scf_gradient_tol
        )
        with Space(setup.scratch, plan.memory.scratch) as space, few_collections():
            yield Calculation(
                system=system,
                setup=setup,
                kind=kind,
                core=run.core,
                plan=plan,
                space=space,
                listener=collector,
                clock=clock,
                checkpoint=checkpoint,
                identity=names,
                dispersion=dispersion,
            )


def _tell_of_scratch(setup: Setup, plan: Plan, listener: Listener) -> None:
    """Report what goes to the scratch folder, and warn if that folder is itself in memory."""
    if not plan.memory.scratch:
        return
    listener.stage(
        f"{format_bytes(plan.memory.scratch)} do not fit into memory and go to {setup.scratch}"
    )
    if in_memory(setup.scratch):
        listener.warning(
            Message(
                f"the scratch folder {setup.scratch} is itself in memory, beyond ",
                Option("memory"),
                ": name a folder on a disk with ",
                Option("scratch"),
            )
        )


def room_for_b(calculation: Calculation, shapes: list[tuple[int, int]]) -> list[StoredTensor]:
    """Room in scratch space for B of each spin, (nocc, nvir), with hashes if a later run may reuse
    it."""
    naux = calculation.system.auxmole.nao
    signed = bool(calculation.checkpoint.path)
    room = (
        calculation.space.array(f"b-{spin}", math.prod(shape) * naux)
        for spin, shape in enumerate(shapes)
    )
    return [
        StoredTensor(array, (*shape, naux), orbital_groups(*shape, naux), signed=signed)
        for array, shape in zip(room, shapes, strict=True)
    ]


def kept_b(calculation: Calculation, spaces: list[ActiveSpace]) -> FittedIntegrals | None:
    """B left on disk by an interrupted run, if it is there and its hashes agree."""
    kept, space = calculation.checkpoint.b, calculation.space
    if kept is None:
        return None
    expected = [(s.nocc, s.nvir) for s in spaces]
    if [shape[:2] for shape in kept.shapes] != expected or not space.adopt(Path(kept.folder)):
        return None
    calculation.listener.stage(f"checking the fitted integrals in {kept.folder}")
    tensors: list[Any] = []
    try:
        for spin, (shape, digests) in enumerate(zip(kept.shapes, kept.digests, strict=True)):
            groups = orbital_groups(*shape[:2], calculation.system.auxmole.nao)
            array = space.array(f"b-{spin}", math.prod(shape), existing=True)
            tensor = StoredTensor(array, shape, groups, signed=True)
            if not tensor.agrees(digests):
                raise ResourceError("the numbers do not match their hash")
            tensors.append(tensor)
    except ResourceError as error:
        calculation.listener.stage(
            Message(f"fitted integrals in {kept.folder} are not used: ", error.message)
        )
        space.close()
        return None
    return FittedIntegrals(tensors, Metric(kept.condition, kept.dropped, kept.threshold))


def save_b(calculation: Calculation, reference: Reference, fitted: FittedIntegrals) -> None:
    """Tell the checkpoint that B is complete; a B in scratch space is kept for a later run."""
    checkpoint, space, stored = calculation.checkpoint, calculation.space, None
    if fitted.stored and checkpoint.path:
        space.keep(checkpoint.path)
        stored = StoredB(
            folder=str(space.folder),
            shapes=tuple(tensor.shape for tensor in fitted.stored),
            digests=tuple(tensor.digests for tensor in fitted.stored),
            condition=fitted.metric.condition,
            dropped=fitted.metric.dropped,
            threshold=fitted.metric.threshold,
        )
    checkpoint.add_b(stored)
    checkpoint.add_reference(reference)


def timings_of(clock: Stopwatch) -> Timings:
    """Wall times so far, s."""
    return Timings(**{name: clock.seconds.get(name, 0.0) for name in STAGES}, total=clock.total)


def storage_of(calculation: Calculation) -> Storage:
    """Where the large arrays were stored, for the record."""
    memory, space = calculation.plan.memory, calculation.space
    if not memory.scf_disk:
        scf_integrals = "none"
    elif memory.scf_fits_in_core:
        scf_integrals = "memory"
    else:
        scf_integrals = "disk"
    folder = ""
    if space.folder is not None or space.written:
        folder = str(space.root)
    return Storage(
        scf_integrals=scf_integrals,
        fitted_tensor="memory" if memory.mp2_fits_in_core else "disk",
        folder=folder,
        predicted=memory.scratch,
        written=space.written,
        read=space.read,
    )
