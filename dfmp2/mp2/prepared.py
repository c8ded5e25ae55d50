"""A run in two parts that need not share a machine.

    prepare  molecule -> SCF -> B, in a file            energy  such a file -> pair energies -> result

Both use the stages of `dfmp2.mp2.energy`, so together they give the same bits as a run in one
piece; the second part computes no integrals. The interface to the file between them is declared
here; `dfmp2.output.prepared` writes and reads it.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator, Mapping
from contextlib import contextmanager
from dataclasses import asdict, dataclass, replace
from functools import partial
from typing import Any, Protocol

from dfmp2.backends.cpu import CpuBackend
from dfmp2.errors import Command, InputError, Message, Option, ResultFileError
from dfmp2.host import provenance
from dfmp2.host.arrays_on_disk import StoredTensor
from dfmp2.host.provenance import Preparation, Storage
from dfmp2.molecule.frozen_core import FrozenCore
from dfmp2.molecule.molecule import Molecule
from dfmp2.mp2.calculation import (
    NOTHING,
    Calculation,
    Checkpoint,
    FittedIntegrals,
    Opening,
    open_calculation,
    storage_of,
)
from dfmp2.mp2.diagnostics import Metric, warn_of_doubts
from dfmp2.mp2.energy import (
    calculated,
    complete,
    converged_reference,
    correlate,
    fitted_integrals,
)
from dfmp2.mp2.pairs import Results, TileKey
from dfmp2.mp2.result import Calculated, MP2Result
from dfmp2.options import BOTH_PARTS, NEEDS_WHOLE_RUN, PAIRS, WHOLE_RUN, Options
from dfmp2.options.methods import CUSTOM, canonical_method, functionals_of
from dfmp2.planning.plan import PlannedRun, make_plan, settle_plan
from dfmp2.planning.sizes import FLOAT64
from dfmp2.planning.system import Setup, System, build_system, frozen_core, resolve
from dfmp2.progress import Collector, Listener
from dfmp2.scf.hartree_fock import reference_kind
from dfmp2.scf.ladder import uses_single
from dfmp2.scf.reference import StartOrbitals

Shape = tuple[int, int, int]
PreparedTiles = Callable[[Calculation, list[TileKey]], Results]  # evaluates tiles elsewhere


@dataclass(frozen=True, slots=True, eq=False, kw_only=True)
class Prepared(Calculated):
    """A calculation before its pair energies. B itself stays in its file.

    Timings, memory, storage and provenance are those of the first part alone.
    """

    storage: Storage

    @property
    def shapes(self) -> tuple[Shape, ...]:
        """(nocc, nvir, naux) of B per spin; naux is smaller than the fitting set if the metric was
        nearly singular."""
        naux = self.sizes.naux - self.diagnostics.metric_dropped
        spins = zip(self.sizes.nocc, self.sizes.nvir, strict=True)
        return tuple((nocc, nvir, naux) for nocc, nvir in spins)[: self.reference.nspin]

    @property
    def tensor_bytes(self) -> int:
        """Bytes of B, all spins."""
        return sum(FLOAT64 * nocc * nvir * naux for nocc, nvir, naux in self.shapes)


class PreparedSource(Protocol):
    """A file from the first part, open for reading (`dfmp2.output.prepared.OpenedFile`).

    Attributes
    ----------
    path : path of the file
    prepared : its content apart from B
    sha256 : hash of its content
    fingerprint : what the bits of the pair energies depend on
    """

    path: str
    prepared: Prepared
    sha256: str
    fingerprint: str

    @property
    def read(self) -> int:
        """Bytes of B read so far."""

    def load(self, workers: int, *, held: bool = True) -> list[Any]:
        """B of each spin, checked against its hashes: in memory, or in the file unless `held`."""


class PreparedTarget(Protocol):
    """A file that the first part is writing (`dfmp2.output.prepared.PreparedFile`)."""

    def require(self, size: int) -> None:
        """Raise if `size` bytes of B cannot be written."""

    def place(self, shapes: list[tuple[int, int]], naux: int) -> list[StoredTensor]:
        """Room in the file for B of each spin, (nocc, nvir), which is then built there."""

    def fill(self, b: list[Any], workers: int) -> None:
        """Store B of each spin, (nocc, nvir, naux) float64, unless it was built in the file."""

    def seal(self, prepared: Prepared) -> None:
        """Store everything else, and make sure it is on disk."""


# --- the first part -------------------------------------------------------------------------------


def prepare_b(
    molecule: Molecule,
    options: Options,
    file: PreparedTarget,
    *,
    start: StartOrbitals | None,
    listener: Listener | None,
    command: str = "dfmp2.prepare",
    checkpoint: Checkpoint,
) -> Prepared:
    """Compute SCF, integrals and B of one molecule, into a file yet to be published; parameters as
    in `mp2_energy`.

    Raises
    ------
    Dfmp2Error : see `dfmp2.errors`
    """
    options = options.settled(molecule.multiplicity)

    def plan_up_to_b(system: System, setup: Setup, kind: str, listener: Collector) -> PlannedRun:
        core = frozen_core(system, options, listener)
        plan = make_plan(system, setup, core, kind, part="up to b")
        plan.memory.require()
        file.require(plan.work.orbital_bytes + plan.work.b_bytes)
        return PlannedRun(system=system, setup=setup, kind=kind, core=core, plan=plan)

    opening = Opening(
        partial(resolve, molecule),
        plan_up_to_b,
        lambda count: (CpuBackend(count), "the pair energies are still to come"),
    )
    with open_calculation(
        options,
        reference_kind(options, molecule.multiplicity),
        opening,
        start=start,
        listener=listener,
        command=command,
        checkpoint=checkpoint,
    ) as calculation:
        reference = converged_reference(calculation, start)
        reference, fitted = fitted_integrals(calculation, reference, file.place)
        told, metric = calculation.listener, fitted.metric
        warnings = list(told.warnings)
        # Reported now; stored with the energies.
        warn_of_doubts(calculation.system, reference, metric, options, told)
        told.stage("writing B")
        file.fill(fitted.b, calculation.setup.active)
        del fitted
        prepared = Prepared(**calculated(calculation, reference, metric, warnings))
        file.seal(prepared)
        return prepared


# --- the second part ------------------------------------------------------------------------------


def options_for(prepared: Prepared, given: Mapping[str, Any]) -> Options:
    """Options of the whole calculation: those of the first part, updated with `given` for the
    second.

    Raises
    ------
    InputError : an option belongs to the first part
    """
    for name in given:
        if name in WHOLE_RUN:
            raise InputError(Option(name), " ", NEEDS_WHOLE_RUN)
        if name in Options.__slots__ and name not in (*PAIRS, *BOTH_PARTS):
            raise InputError(
                Option(name),
                " belongs to what ",
                Command("prepare"),
                " has already done: leave it out, or prepare another file with it",
            )
        if name not in Options.__slots__:
            raise InputError(
                f"unknown option {name!r}: the options are "
                f"{', '.join(sorted((*PAIRS, *BOTH_PARTS)))}"
            )
    # Properties of the machine, not of the calculation
    here = {"memory": None, "scratch": None, "threads": None}
    made_for, method = prepared.options, given.get("method")
    if method is not None and method != CUSTOM:
        method = canonical_method(method)
        if functionals_of(method, made_for.xc) != functionals_of(made_for.method, made_for.xc):
            raise InputError(
                Option("method", method),
                " needs other orbitals than those in the file, which was prepared for "
                f"{made_for.method}: prepare another file with ",
                Option("method", method),
            )
    return replace(
        made_for,
        **{**here, **{name: value for name, value in given.items() if value is not None}},
    )


def prepared_energy(
    source: PreparedSource,
    options: Options,
    *,
    listener: Listener | None = None,
    command: str = "dfmp2.energy",
    checkpoint: Checkpoint = NOTHING,
    elsewhere: PreparedTiles | None = None,
) -> MP2Result:
    """The result of a prepared file, after computing its pair energies.

    Parameters
    ----------
    options : options of the whole calculation (`options_for`)
    checkpoint : saves finished tiles, and may hold those that were finished before
    elsewhere : computes tiles in other processes (`dfmp2.execution.parts`), so that this process
        does not hold B

    Raises
    ------
    ResultFileError : the file is damaged
    Dfmp2Error : see `dfmp2.errors`
    """
    prepared = source.prepared
    with open_prepared(source, options, listener, command, checkpoint) as calculation:
        for text in prepared.diagnostics.warnings:
            calculation.listener.warning(text)
        single = prepared.options.scf == "df" and uses_single(
            prepared.options.precision, prepared.sizes.nao
        )
        if options.precision == "fp64" and prepared.options.precision != "fp64" and single:
            calculation.listener.warning(
                Message(
                    Option("precision", "fp64"),
                    ", but the SCF began with float32 exchange (its end is float64): prepare it "
                    "with ",
                    Option("precision", "fp64"),
                    " for a run without any float32",
                )
            )
        fitted = read_b(calculation, source, in_memory=elsewhere is None)
        others = None if elsewhere is None else partial(elsewhere, calculation)
        correlation = correlate(calculation, prepared.reference, fitted, others)
        del fitted  # checks and certificates need the memory
        result = complete(calculation, prepared.reference, correlation)
    made = Preparation(
        **asdict(prepared.provenance),
        file=source.path,
        sha256=source.sha256,
        seconds=prepared.timings.total,
        measured_peak=prepared.memory.measured_peak,
    )
    storage = replace(
        storage_of(calculation), read=source.read, scf_integrals=prepared.storage.scf_integrals
    )
    timings = prepared.timings + result.timings
    predicted = prepared.predicted + result.predicted
    return replace(result, timings=timings, predicted=predicted, storage=storage, preparation=made)


@contextmanager
def open_prepared(
    source: PreparedSource,
    options: Options,
    listener: Listener | None,
    command: str,
    checkpoint: Checkpoint,
) -> Iterator[Calculation]:
    """The calculation of the second part; parameters as in `prepared_energy`."""
    prepared = source.prepared

    def resolve_stored(setup: Setup, listener: Collector) -> System:
        system = _rebuilt(prepared, setup, source.path)
        # PySCF and SciPy are loaded by now, each with its own BLAS.
        there = prepared.provenance.blas
        here = provenance.blas_and_kernels()
        if provenance.KERNELS in there and there != here:
            listener.stage(
                f"{source.path} was prepared with other products ({there}; here {here}): the last "
                "bits of the result are not those of a run on one of them"
            )
        return system

    core = FrozenCore(
        prepared.sizes.frozen_core, options.frozen_core, note=prepared.frozen_core_note
    )
    opening = Opening(
        resolve_stored,
        partial(settle_plan, core=core, part="from b"),
        b_sha256=source.fingerprint,
    )
    with open_calculation(
        options,
        prepared.reference.kind,
        opening,
        listener=listener,
        command=command,
        checkpoint=checkpoint,
    ) as calculation:
        yield calculation


def read_b(
    calculation: Calculation, source: PreparedSource, *, in_memory: bool = True
) -> FittedIntegrals:
    """B of each spin, its hashes checked: in memory if requested and if it fits, else in its
    file."""
    calculation.listener.stage(f"reading and checking the fitted integrals in {source.path}")
    found = source.prepared.diagnostics
    metric = Metric(found.metric_condition, found.metric_dropped, found.metric_threshold)
    held = in_memory and calculation.plan.memory.mp2_fits_in_core
    return FittedIntegrals(source.load(calculation.setup.active, held=held), metric)


def _rebuilt(prepared: Prepared, setup: Setup, path: str) -> System:
    """The system of the first part, from its stored numbers: no basis is looked up by name."""
    system = build_system(
        prepared.molecule,
        prepared.orbital_basis,
        prepared.scf_fitting,
        prepared.mp2_fitting,
        setup.budget,
    )
    here = (int(system.mole.nao), int(system.auxmole.nao), system.naux_scf)
    if here != (prepared.sizes.nao, prepared.sizes.naux, prepared.sizes.naux_scf):
        raise ResultFileError(
            f"{path}: damaged file (its sizes do not match its bases): prepare it again"
        )
    return system
