"""Every bound of a study's options: the last value accepted, the first refused."""

from __future__ import annotations

import logging
import math
from collections.abc import Callable
from contextlib import nullcontext, suppress
from dataclasses import replace
from fractions import Fraction
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import numpy as np
import pytest

import dfmp2
from dfmp2.errors import (
    ConvergenceError,
    DeviceFault,
    Dfmp2Error,
    DiskFull,
    ForeignCheckpoint,
    InputError,
    Interrupted,
    NumericalError,
    ResourceError,
)
from dfmp2.errors.messages import Option
from dfmp2.execution.batch import read_shard
from dfmp2.molecule.molecule import Molecule
from dfmp2.mp2.calculation import NOTHING
from dfmp2.mp2.composite import Part
from dfmp2.mp2.energy import mp2_energy
from dfmp2.mp2.result import MP2Result
from dfmp2.options import Options
from dfmp2.output.study import Study, StudyWriter
from dfmp2.progress import Collector, Silent
from dfmp2.studies import (
    frequencies,
    geometric_search,
    optimize,
    rank,
    reaction,
    reaction_path,
    runs,
    scan,
    species,
    task,
    vibrations,
)
from dfmp2.studies.composite import at_level
from dfmp2.studies.coordinate import Constraints, _values, make_coordinate
from dfmp2.studies.geometric_search import Search
from dfmp2.studies.ideal_gas import GasConditions, LowModes, parse_values, require_symmetry_number
from dfmp2.studies.keeper import Keeper
from dfmp2.studies.rank import Candidate, _degeneracies
from dfmp2.studies.relaxed import Relaxation, bring
from dfmp2.studies.runs import _StudyRuns
from dfmp2.studies.scan import over_frames
from dfmp2.studies.species import Reaction, make_coefficient, read_species
from dfmp2.studies.task import Step
from tests.recorded import recorded_error

AMMONIA = Molecule(
    ("N", "H", "H", "H"), [[0, 0, 0], [0, 1.4, -0.9], [0.1, -1.5, -0.8], [1.9, 0.3, 0.4]]
)
OPTION = Option("x")
WATER_PLACES = [[0, 0, 0.22], [0, 1.43, -0.88], [0.1, -1.5, -0.8]]
WATER = Molecule(("O", "H", "H"), WATER_PLACES)


def coordinate(kind: str) -> Callable[[Any], tuple[float, ...]]:
    """The values of a coordinate."""
    return lambda given: _values(OPTION, kind, given)


def relaxed(**given: Any) -> Any:
    """A relaxed scan of coordinates that need not belong to a molecule."""
    made = SimpleNamespace(**{"kind": "bond", "values": (1.0, 2.0), "said": "it", **given})
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(Relaxation, "constraints", lambda _: None)
        return Relaxation(AMMONIA, (made,), Options("sto-3g"), True, "GAU")  # type: ignore[arg-type]


STEP = Step(name="a", who="a", molecule=AMMONIA, options=Options("sto-3g"))


def planned_runs(count: int) -> Any:
    """Plan a study with this many runs."""
    task = SimpleNamespace(free=(), chosen=(), stored={})
    keeper = SimpleNamespace(recall=lambda *_, **__: {})
    runs = SimpleNamespace(task=task, keeper=keeper, steps=[], results={}, listener=None)
    steps = [SimpleNamespace(name=str(number)) for number in range(count)]
    return _StudyRuns._waiting(runs, steps, 1, follow=False)  # type: ignore[arg-type]


def room_for(counts: tuple[int, int, int], basis: str = "sto-3g") -> None:
    """Require room for minima and saddle points of water, and atoms: of a minimum a run, a step and
    18 displaced geometries; 18 more for the start of a saddle point."""
    water = Molecule.from_string("O 0 0 0; H 0 0 0.96; H 0.93 0 -0.24")
    plan = reaction.ReactionPlan(optimize=Search(), frequencies=True)
    courses = []
    for count, molecule, saddle in zip(
        counts, (water, water, Molecule.from_string("He 0 0 0")), (False, True, False), strict=True
    ):
        one = species.Species("x", Fraction(1), molecule, transition_state=saddle)
        level = at_level(Options(basis))
        courses += [species.SpeciesCourse(one, level, plan, Silent())] * count
    reaction._require_room(courses)


def pulled(largest: float) -> Any:
    """A run in which the gradient of the second atom has this length, Eh/bohr."""
    slopes = largest * np.array([[0.1, 0.0, 0.0], [0.6, 0.0, 0.8]])
    return SimpleNamespace(gradient=SimpleNamespace(total_gradient=slopes))


def constrained(kind: str, atoms: str) -> Callable[[str], str]:
    """The lines for geomeTRIC of ammonia with a coordinate that is set."""
    return lambda value: Constraints(fixed=[(kind, atoms, value)]).for_geometric(AMMONIA)


def degeneracy(number: Any) -> Any:
    """The degeneracies of one candidate."""
    return _degeneracies([Candidate("a", None, None)], {"a": number})  # type: ignore[arg-type]


BOUNDS: dict[str, tuple[Callable[[Any], Any], tuple[Any, ...], tuple[Any, ...]]] = {
    "bond": (coordinate("bond"), ("0.001:5:2", [0.001, 5]), ("0:1:2", "-1:1:2")),
    "angle": (
        coordinate("angle"),
        ("0.001:90:2", "10:180:2"),
        ("0:90:2", "10:180.001:2", "-0.001:90:2"),
    ),
    "dihedral": (
        coordinate("dihedral"),
        ("-720:0:2", "0:720:2"),
        ("-720.001:0:2", "0:720.001:2"),
    ),
    "points": (coordinate("bond"), ("1:2:2", "1:2:500"), ("1:2:1", "1:2:0", "1:2:501")),
    "same values": (coordinate("bond"), ([1, 1.001],), ([1, 1], [1, 1.2, 1])),
    "listed values": (
        coordinate("bond"),
        ([1, "2"], range(1, 4)),
        ([1, "b"], [1, None], [1, math.nan]),
    ),
    "runs of a study": (planned_runs, (500,), (501,)),
    "runs of species": (room_for, ((25, 0, 0), (0, 13, 6)), ((25, 0, 1), (0, 13, 7))),
    "runs of species at a limit": (
        lambda counts: room_for(counts, "cc-pv[dt]z"),
        ((12, 0, 10), (0, 6, 22)),
        ((12, 0, 11), (0, 6, 23)),
    ),
    "steps before a Hessian": (
        lambda steps: optimize._require_room(
            STEP,
            Search(max_steps=steps, transition_state=True, verify=True),
            begins_with_hessian=False,
        ),
        (426,),
        (427,),
    ),
    "steps after a Hessian": (
        lambda steps: optimize._require_room(
            STEP, Search(max_steps=steps, transition_state=True), begins_with_hessian=True
        ),
        (475,),
        (476,),
    ),
    "steps without a Hessian": (
        lambda steps: optimize._require_room(
            STEP, Search(max_steps=steps), begins_with_hessian=True
        ),
        (499,),
        (),
    ),
    "steps of a path": (
        lambda steps: reaction_path._require_room(STEP, Search(max_steps=steps)),
        (237,),
        (238,),
    ),
    "searches that begin with a Hessian": (
        lambda begin: begin(
            AMMONIA, Options("sto-3g"), Search(max_steps=490, transition_state=True)
        ),
        (),
        (optimize.optimize_geometry, reaction_path.reaction_path),
    ),
    "atoms with vibrations": (
        lambda natom: frequencies._require_vibrations(
            Molecule(("H",) * natom, [[0, 0, 3 * k] for k in range(natom)], multiplicity=natom + 1)
        ),
        (2, 83),
        (1, 84),
    ),
    "displacement": (
        lambda value: frequencies.harmonic_frequencies(
            AMMONIA, Options("sto-3g"), displacement=value
        ),
        (),
        (5e-5, 0.1001, True),
    ),
    "frames of a scan": (
        lambda count: over_frames([AMMONIA] * count, Options("sto-3g")),
        (2, 500),
        (501,),
    ),
    "points of a relaxed scan": (
        lambda count: relaxed(values=tuple(range(1, count + 1))),
        (250,),
        (251,),
    ),
    "angle of a relaxed scan": (
        lambda last: relaxed(kind="angle", values=(90.0, last)),
        (175.0,),
        (175.001,),
    ),
    "steps": (lambda count: Search(max_steps=count), (1, 499), (0, 500, -1, 1.5, True)),
    "cutoff": (lambda value: LowModes("grimme", value), (0.001, 1000.0), (0.0, 1000.001, -1.0)),
    "temperature": (
        lambda value: GasConditions(temperatures=(300.0, value)),
        (0.001, 1e5),
        (0.0, 100000.1, -1.0, True, float("nan")),
    ),
    "pressure": (
        lambda value: GasConditions(pressures=(1e5, value)),
        (0.001, 1e12),
        (0.0, 1.001e12, -1.0, float("nan")),
    ),
    "pairs of conditions": (
        lambda count: GasConditions(temperatures=(300.0, 310.0), pressures=(1e5,) * count),
        (500,),
        (501,),
    ),
    "values of a range": (
        lambda count: parse_values(OPTION, f"1:2:{count}"),
        (2, 1000),
        (1, 1001),
    ),
    "symmetry number": (
        lambda number: require_symmetry_number(number, OPTION),
        (None, 1, 60),
        (0, 61, 1.0, True),
    ),
    "coefficient": (
        lambda number: make_coefficient(number, OPTION),
        ("1/1000000", 1000, "1000"),
        (0, "1000.001", "-1", True),
    ),
    "species": (
        lambda count: read_species(
            Reaction(
                [(Fraction(1), Molecule(("He",), [[0, 0, k]])) for k in range(20)],
                [(Fraction(1), Molecule(("He",), [[0, k, 1]])) for k in range(1, count - 19)],
            ),
            "angstrom",
        ),
        (40,),
        (41,),
    ),
    "degeneracy": (degeneracy, (1, 10_000), (0, 10_001, 1.0, True)),
    "gradient of a stationary point": (
        lambda largest: vibrations.require_stationary(pulled(largest)),
        (0.9999e-3,),
        (1.001e-3, math.nan),
    ),
    "frequencies of an element without a mass": (
        lambda frequencies: reaction._require_hessians(
            Options("sto-3g"),
            [species.Species("og", Fraction(1), Molecule.from_string("Og 0 0 0"))],
            reaction.ReactionPlan(frequencies=frequencies),
        ),
        (False,),
        (True,),
    ),
    "a step towards another atom": (  # bohr that are left
        lambda distance: optimize.Course._step(
            SimpleNamespace(_molecule=WATER, _options=STEP.options),  # type: ignore[arg-type]
            "step-007",
            "step 7",
            [[0, 0, 0.2], [0, 1.5, -0.8], [distance, 1.5, -0.8]],
        ),
        (0.379,),
        (0.377, 0.0),
    ),
    "values of two bonds that are one": (
        lambda second: bring(
            WATER,
            [
                make_coordinate("bond", atoms, "0.5:9:3", WATER, rigid=False)
                for atoms in ("1,2", "2,1")
            ],
            [1.0, second],
        ),
        (1.0,),
        (2.0,),
    ),
    "angle that is set": (
        constrained("angle", "2,1,3"),
        ("0.001", "179.999"),
        ("0", "180", "-1", "nan"),
    ),
    "dihedral that is set": (
        constrained("dihedral", "1,2,3,4"),
        ("-359.999", "359.999"),
        ("-360", "360", "inf"),
    ),
    "bond that is set": (
        constrained("bond", "1,2"),
        ("0.001", "999.9"),
        ("0", "1000", "-1", "nan"),
    ),
    "shard": (read_shard, ("0/1", "4/5"), ("1/1", "5/5", "0/0", "-1/2", "1")),
}


@pytest.mark.parametrize("name", BOUNDS)
def test_the_last_value_is_taken_and_the_first_beyond_it_refused(name: str) -> None:
    take, inside, outside = BOUNDS[name]
    for value in inside:
        take(value)
    for value in outside:
        with recorded_error((InputError, NumericalError)):
            take(value)


# --- geometries, conformers, equations ------------------------------------------------------------


def test_geometric_is_quiet_for_a_while() -> None:
    logger = logging.getLogger("geometric")
    before = logger.propagate, list(logger.handlers)
    with geometric_search.quiet():
        assert not logger.propagate and len(logger.handlers) == len(before[1]) + 1
    assert (logger.propagate, list(logger.handlers)) == before


@pytest.mark.parametrize("pair", ["ba", "ca", "bc", "ac"])
@pytest.mark.parametrize("total", [2.0, None])
def test_the_budget_of_a_scan_is_its_largest(
    pair: str, total: float | None, monkeypatch: pytest.MonkeyPatch
) -> None:
    def difference(parts: Any, energy: str) -> Any:
        chosen = parts[0][1].name + parts[1][1].name == pair
        return SimpleNamespace(total=total if chosen else 1.0)

    monkeypatch.setattr("dfmp2.output.study_budget.of_difference", difference)
    runs = {name: SimpleNamespace(name=name, total_energy=ord(name) - 100.0) for name in "abc"}
    found = Study("scan", "", {}, (), {}, {}, runs, True).error_budget  # type: ignore[arg-type]
    assert found is not None and found.total == total


@pytest.mark.parametrize(("scf", "separate"), [(1.3, True), (1.7, False)])
def test_parts_of_a_limit_whose_weights_differ_ask_for_the_gradient_of_the_mean_field(
    scf: float, separate: bool
) -> None:
    runs: Any = SimpleNamespace(task=SimpleNamespace(compute=optimize.certified_gradient))
    found: Any = _StudyRuns._function_of(runs, replace(STEP, part=Part("tz", scf, 1.7)))
    assert found.func is optimize.certified_gradient
    assert found.keywords == {"separate": separate}


@pytest.mark.parametrize(
    ("error", "alone", "among_others"),
    [
        (None, "kept closed next", "kept closed next"),
        (ConvergenceError("x"), "closed", "closed next"),
        (ResourceError("x"), "", "closed next"),
        (DiskFull("x"), "", ""),
        (DeviceFault("x"), "", ""),
        (ForeignCheckpoint("x"), "closed", "closed"),
        (Interrupted("x"), "", ""),
    ],
    ids=lambda value: type(value).__name__,
)
def test_what_becomes_of_a_step_and_its_checkpoint(
    error: Exception | None, alone: str, among_others: str
) -> None:
    """An error that others would meet as well ends the study; what can go on keeps its checkpoint.
    The units of the first run alone are doubted."""

    def compute(*_: Any, **how: Any) -> None:
        assert not how["doubt_units"]
        if error is not None:
            raise error

    for tolerant, expected in ((False, alone), (True, among_others)):
        done: list[str] = []
        made: Any = _StudyRuns.__new__(_StudyRuns)
        made.number, made.command, made.failures, made.starts, made.first = 2, "", {}, {}, None
        made.task = SimpleNamespace(tolerant=tolerant, compute=compute)
        made.listener = made.keeper = SimpleNamespace(
            warning=lambda _: None,
            checkpoint=lambda _: None,
            close=lambda _, done=done: done.append("closed"),
        )
        made._keep = lambda *_, done=done: done.append("kept")
        with suppress(Dfmp2Error):
            made._run(STEP, SimpleNamespace(begin=lambda _: None, end=lambda _: None))
            done.append("next")
        assert " ".join(done) == expected
        assert len(made.failures) == (error is not None and done[-1:] == ["next"])


def test_runs_with_a_gradient_are_planned_with_it() -> None:
    """More time is left and fewer processes fit into memory than for energies alone."""
    left: list[float] = []
    listener: Any = SimpleNamespace(time_left=left.append)
    memory = []
    for compute in (None, optimize.certified_gradient):
        one: Any = SimpleNamespace(options=STEP.options, compute=compute, start=None)
        kind = _StudyRuns(one, Keeper(), Collector(Silent()), "")._kind
        task.Series(listener, [STEP], kind).begin("a")
        (planned,) = task._plans([STEP], kind).values()
        memory.append(planned.memory.comfortable)
    assert left[1] > 1.5 * left[0] and memory[1] > memory[0]


def test_signals_are_told_of_every_run_that_is_kept(tmp_path: Path) -> None:
    """They act at once while optimisations and other processes compute."""
    told: list[Any] = []
    kept = Keeper(tmp_path / "x.h5", finishing=told.append)
    made = kept.checkpoint(replace(STEP, name="b"))
    assert kept.checkpoint(replace(STEP, optimised=True)) is NOTHING
    kept.wait_for_no_run()
    assert told[0] is made and [one._run for one in told] == ["b", "", ""]


@pytest.fixture(scope="module")
def hydrogen() -> MP2Result:
    return mp2_energy(Molecule.from_string("H 0 0 0; H 0 0 0.74"), Options("sto-3g", threads=1))


@pytest.mark.parametrize(
    ("follow", "complete", "missing", "differs", "outcome"),
    [
        (False, True, False, "", "taken"),
        (False, False, True, "", "taken"),
        (False, True, False, "threads", "taken"),
        (False, False, True, "threads", "refused"),
        (True, False, True, "threads", "taken"),
        (False, False, True, "free", "taken"),
        (False, True, False, "free", "refused"),
        (False, True, False, "midway", "taken"),
        (False, True, False, "chosen", "taken"),
        (False, True, False, "basis", "refused"),
        (False, True, False, "place", "refused"),
        (True, True, False, "place", "repeated"),
        (True, True, False, "nearly the place", "taken"),
        (True, True, False, "end of a search", "taken"),
    ],
)
def test_which_stored_runs_are_taken(
    follow: bool, complete: bool, missing: bool, differs: str, outcome: str, hydrogen: MP2Result
) -> None:
    """Those of the same calculation. Another number of threads makes other last bits in runs whose
    energies are subtracted; the place of a step that follows from others is theirs. A complete study
    may have changed its options midway."""
    changes: dict[str, Any] = {"free": {"precision": "fp64"}, "basis": {"basis": "6-31g"}}
    changes |= {"chosen": {"certify_fit": True}, "midway": changes["free"]}
    options = replace(hydrogen.options, **changes.get(differs, {}))
    moves = {"place": 1e-3, "nearly the place": 1e-7, "end of a search": 1e-3}
    places = hydrogen.molecule.coordinates + [[0, 0, 0], [0, 0, moves.get(differs, 0.0)]]
    molecule = replace(hydrogen.molecule, coordinates=places)
    step = Step("a", "a", molecule, options, optimised=differs == "end of a search")
    steps = [step, replace(step, name="b")][: 1 + missing]
    threads = hydrogen.provenance.threads + (differs == "threads")
    for overwrite in (False, True):
        kept: Any = Keeper(overwrite=overwrite)
        kept._path, kept._writer = Path("x.h5"), SimpleNamespace(add=lambda *_, **__: None)
        kept._stored = SimpleNamespace(runs={"a": hydrogen}, complete=complete)
        if differs == "midway":  # another run of the study has the options that are asked for
            kept._stored.runs["c"] = replace(hydrogen, options=options)
        refused = nullcontext()
        if outcome == "refused" and not overwrite:
            refused = recorded_error(InputError)
        with refused:
            given = (steps, Silent(), threads, ("precision",), ("certify_fit",))
            found = kept.recall(*given, follow=follow)
            assert found == ({"a": hydrogen} if outcome == "taken" else {})
            assert (kept._stored is None) == (outcome == "refused")


def test_what_is_stored_is_not_examined_again(hydrogen: MP2Result) -> None:
    """It may have needed more memory, or files, than there are now."""
    impossible = replace(hydrogen.options, frozen_core="9")
    stored = task.Task(
        kind="reaction",
        what="hydrogen",
        molecule=hydrogen.molecule,
        options=hydrogen.options,
        steps=[Step("a", "a", hydrogen.molecule, impossible)],
        evaluate=lambda *_: task.Numbers({}, []),
        stored={"a": hydrogen},
    )
    assert runs.carry_out(stored, listener=Silent()).runs == {"a": hydrogen}
    with recorded_error(InputError):
        runs.carry_out(replace(stored, stored={}), listener=Silent())


def test_the_results_of_a_limit_are_those_of_whole_steps(monkeypatch: pytest.MonkeyPatch) -> None:
    """Steps that depend on others see their limit, not its runs."""
    monkeypatch.setattr(runs, "expanded", lambda step: [step])
    monkeypatch.setattr(runs, "wholes", lambda group, results: {group[0].name: "the limit"})
    nothing = dict.fromkeys(("compute", "start", "then", "chained"))
    level = at_level(Options("cc-pv[dt]z"))
    one: Any = SimpleNamespace(options=level, free=(), chosen=(), stored={}, **nothing)
    made = _StudyRuns(one, Keeper(), Collector(Silent()), "")
    monkeypatch.setattr(made.keeper, "recall", lambda *_, **__: {"run": "of one basis"})
    step: Any = SimpleNamespace(name="run", who="a run")
    made._run_group([step], None, follow=False)
    assert made.asked == {"run": "the limit"}


GHOST = Molecule(("O", "H", "H", "He"), [*WATER_PLACES, [0, 0, 6]], (False, False, False, True))
FIELD = WATER.in_field([[5.0, 1.0, -4.0, 0.1]])


def unfinished(folder: Path) -> Path:
    """The file of an optimisation that was stopped."""
    path = folder / "stopped.h5"
    study = Study("optimization", "x", {}, (), {}, {}, {}, False, "0.2.0", "x", "now")
    StudyWriter(path, overwrite=True).write(study)
    return path


def of_both_coordinates() -> Molecule:
    """Ammonia with a bond set, and then the same bond again to another length."""
    bonds = [make_coordinate("bond", "1,2", values, AMMONIA) for values in ("0.9:1:2", "1.1:1.2:2")]
    return scan._moved(AMMONIA, bonds, (2.0, 2.5))


def scanned_along(*written: tuple[str, str, str], **more: Any) -> object:
    """A scan of ammonia."""
    return scan.along_written(AMMONIA, written, Options("sto-3g"), units="angstrom", **more)


def over(second: Molecule) -> object:
    """A scan of two frames, the first of which is ammonia."""
    return over_frames([AMMONIA, second], Options("sto-3g"))


BOND, OTHER_BOND = ("bond", "1,2", "1:2:20"), ("bond", "1,3", "1:2:30")
TURNED = ("dihedral", "2,1,3,4", "0:90:2")
STRAIGHT = Molecule(tuple("HOCN"), [[0, 1.8, 0], [0, 0, 0], [2.4, 0, 0], [4.6, 0, 0]])
ALONE = replace(AMMONIA, ghost=(True, False, False, False), multiplicity=4)
REFUSED: dict[str, Callable[[Path], object]] = {
    "a bond of one atom": lambda _: scanned_along(("bond", "1", "1:2:2")),
    "a bond of an atom with itself": lambda _: scanned_along(("bond", "1,1", "1:2:2")),
    "a side without the last atom": lambda _: scanned_along(BOND, moving="3-4"),
    "a side with the first atom": lambda _: scanned_along(BOND, moving="1-2"),
    "a side with the second atom of four": lambda _: scanned_along(TURNED, moving="1+4"),
    "a dihedral with a straight end": lambda _: make_coordinate(
        "dihedral", "1,2,3,4", "0:90:2", STRAIGHT
    ),
    "a side of no numbers": lambda _: scanned_along(BOND, moving="x"),
    "a side with atom 0": lambda _: scanned_along(BOND, moving="0-2"),
    "a side backwards": lambda _: scanned_along(BOND, moving="3-2"),
    "a side with an atom twice": lambda _: scanned_along(BOND, moving="2+2-3"),
    "a side with more atoms than there are": lambda _: scanned_along(BOND, moving="2-5"),
    "three coordinates": lambda _: scanned_along(BOND, OTHER_BOND, ("angle", "2,1,3", "90:99:2")),
    "one coordinate twice": lambda _: scanned_along(BOND, ("bond", "2,1", "1:2:3")),
    "600 points": lambda _: scanned_along(BOND, OTHER_BOND),
    "a side of two coordinates": lambda _: scanned_along(BOND, OTHER_BOND, moving="2"),
    "one frame": lambda _: over_frames([AMMONIA], Options("sto-3g")),
    "frames in another order": lambda _: over(replace(AMMONIA, symbols=tuple("HNHH"))),
    "frames of another element": lambda _: over(replace(AMMONIA, symbols=tuple("PHHH"))),
    "frames of more atoms": lambda _: over(GHOST),
    "frames with a ghost": lambda _: over(replace(AMMONIA, ghost=(False, False, False, True))),
    "frames in another field": lambda _: over(AMMONIA.in_field([[0, 0, 9, 0.1]])),
    "frames of another charge": lambda _: over(replace(AMMONIA, charge=2)),
    "frames of another spin": lambda _: over(replace(AMMONIA, multiplicity=3)),
    "one bond held twice": lambda _: dfmp2.optimize(
        AMMONIA, "sto-3g", freeze=[("bond", "1,2")], constraints="$freeze\nDistance 2 1\n"
    ),
    "an angle between held atoms": lambda _: dfmp2.optimize(
        AMMONIA, "sto-3g", freeze=[("angle", "4,1,2")], constraints="$freeze\nxyz 1,3-4,2-2\n"
    ),
    "a scan by constraints": lambda _: dfmp2.optimize(
        AMMONIA, "sto-3g", constraints="$scan\ndistance 1 2 1.0 1.2 3\n"
    ),
    "constraints on no atom": lambda _: dfmp2.optimize(
        AMMONIA, "sto-3g", constraints="$freeze\nxyz ²\n"
    ),
    "constraints on a billion atoms": lambda _: dfmp2.optimize(
        AMMONIA, "sto-3g", freeze=[("bond", "1,2")], constraints="$freeze\nxyz 1-999999999\n"
    ),
    "constraints on too many atoms": lambda _: dfmp2.optimize(
        AMMONIA, "sto-3g", constraints="$freeze\ndistance 1 9\n"
    ),
    "frames relaxed": lambda _: dfmp2.scan([AMMONIA, AMMONIA], "sto-3g", relaxed=True),
    "a map of an unknown convergence": lambda _: dfmp2.scan(
        AMMONIA,
        "sto-3g",
        [("bond", "1,2", [0.9, 1.0]), ("bond", "1,3", [0.9, 1.0])],
        relaxed=True,
        convergence="tight",
    ),
    "an atom optimised": lambda _: dfmp2.optimize(Molecule(("He",), [[0, 0, 0]]), "sto-3g"),
    "a ghost optimised": lambda _: dfmp2.optimize(GHOST, "sto-3g"),
    "a relaxed scan beside a ghost": lambda _: dfmp2.scan(
        GHOST, "sto-3g", ("bond", "1,2", [0.9, 1.0]), relaxed=True
    ),
    "a saddle point along constraints": lambda _: dfmp2.optimize(
        AMMONIA, "sto-3g", transition_state=True, freeze=[("bond", "1,2")]
    ),
    "a verification after too many steps": lambda _: dfmp2.optimize(
        AMMONIA, "sto-3g", verify=True, max_steps=427
    ),
    "a verified saddle point after too many steps": lambda _: dfmp2.optimize(
        AMMONIA, "sto-3g", verify=True, transition_state=True, max_steps=403
    ),
    "a verified limit after too many steps": lambda _: dfmp2.optimize(
        AMMONIA, "cc-pv[dt]z", verify=True, max_steps=177
    ),
    "fragments of fewer functions": lambda _: dfmp2.interaction(
        AMMONIA, "sto-3g", "1,2-4", frozen_virtual=1
    ),
    "fragments of another charge": lambda _: dfmp2.interaction(
        AMMONIA, "sto-3g", "1,2-4", charges=[-1, 2]
    ),
    "a charge of no fragment": lambda _: dfmp2.interaction(
        replace(AMMONIA, charge=2), "sto-3g", "1,2-4"
    ),
    "a spin of no fragment": lambda _: dfmp2.interaction(ALONE, "sto-3g", "1-2,3-4"),
    "an atom of no fragment": lambda _: dfmp2.interaction(AMMONIA, "sto-3g", "1,3-4"),
    "an atom of two fragments": lambda _: dfmp2.interaction(AMMONIA, "sto-3g", "1-2,2-4"),
    "charges of more fragments": lambda _: dfmp2.interaction(
        AMMONIA, "sto-3g", "1,2-4", charges=[-1, 1, 0]
    ),
    "a rank of what is unfinished": lambda folder: rank.read_candidate(unfinished(folder)),
    "vibrations of a ghost": lambda _: dfmp2.frequencies(GHOST, "sto-3g"),
    "positions set": lambda _: dfmp2.optimize(AMMONIA, "sto-3g", fixed=[("xyz", "1", 0.5)]),
    "options of geomeTRIC": lambda _: dfmp2.optimize(
        AMMONIA, "sto-3g", constraints="$options\nmaxiter 3"
    ),
    "a limit of double hybrids": lambda _: dfmp2.optimize(AMMONIA, "cc-pv[dt]z", method="b2plyp"),
    "a gradient of CCSD(T)": lambda _: dfmp2.optimize(
        AMMONIA, "cc-pv[dt]z", delta="ccsd(t)/cc-pvdz"
    ),
    "a path in a field": lambda _: dfmp2.irc(FIELD, "sto-3g"),
    "a path with a ghost": lambda _: dfmp2.irc(GHOST, "sto-3g"),
    "a fragment of ghosts": lambda _: dfmp2.interaction(GHOST, "sto-3g", "1-3,4"),
    "no spin": lambda _: dfmp2.interaction(AMMONIA, "sto-3g", "1,2-4", multiplicities=[0, 2]),
    "both resumed and overwritten": lambda folder: Keeper(
        folder / "x.h5", resume=True, overwrite=True
    ),
    "a coordinate that moves another": lambda _: of_both_coordinates(),
    "a reaction of ghosts": lambda _: dfmp2.reaction([GHOST], [AMMONIA], "sto-3g"),
    "a reaction in a field": lambda _: dfmp2.reaction([FIELD], [AMMONIA], "sto-3g"),
    "a rank of several molecules": lambda folder: rank.read_candidate(folder / "scan.h5"),
}


@pytest.mark.parametrize("name", REFUSED)
def test_what_no_study_can_do_is_refused_before_anything_runs(
    name: str, written: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(runs._StudyRuns, "_run", None)
    with recorded_error(InputError):
        REFUSED[name](written)


def test_a_constrained_geometry_is_ranked_by_its_energy(monkeypatch: pytest.MonkeyPatch) -> None:
    """Its Hessian along the constraints makes no gas."""
    study = SimpleNamespace(
        kind="optimization",
        complete=True,
        arrays={"hessian": None},
        settings={"constraints": "$freeze\ndistance 1 2"},
        path={"step-000": "first", "step-001": "last"},
    )
    monkeypatch.setattr(rank, "is_study", lambda _: True)
    monkeypatch.setattr(rank, "read_study", lambda _: study)
    assert rank.read_candidate("x.dfmp2.h5") == Candidate("x", "last", None)  # type: ignore[arg-type]


@pytest.mark.parametrize("constrained", [False, True])
@pytest.mark.parametrize("error", [RuntimeError("no\n  step"), np.linalg.LinAlgError("singular")])
def test_what_geometric_cannot_do_is_said_in_one_line(error: Exception, constrained: bool) -> None:
    search: Any = SimpleNamespace(_errors=(RuntimeError,), _constrained=constrained)
    with recorded_error(NumericalError), geometric_search.GeomeTRIC._asked(search):
        raise error
