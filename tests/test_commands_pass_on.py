"""Every option of the commands that combine, rank, plan, export or share out results reaches the
function that uses it, or the job that is submitted; nothing is computed."""

from __future__ import annotations

import dataclasses
import re
from collections.abc import Callable, Iterator, Mapping
from contextlib import suppress
from pathlib import Path
from types import SimpleNamespace
from typing import Any
from unittest.mock import Mock

import click
import numpy as np
import pytest

import dfmp2.interop.batch
import dfmp2.interop.thermochemistry
import dfmp2.studies.keeper  # noqa: F401 - before functions are replaced that they import
from dfmp2.cli.main import cli
from dfmp2.errors import InputError
from dfmp2.execution.pool import Pool
from dfmp2.options import Options
from tests.conftest import Runner, succeed
from tests.test_cli_options import GIVEN, NEEDED

MANIFEST = 'basis = "sto-3g"\nbackend = "nki"\noutput = "o"\n' + "".join(
    f'[[item]]\nmolecule = "{name}.xyz"\n' for name in "abc"
)
PEROXIDE = "4\n\nO 0.70 0 0\nO -0.7 0 0\nH 0.9 0.95 0.2\nH -0.9 0.9 -0.3\n"
ONE = ("a.xyz", "--basis", "sto-3g")
REACTION = ("--reactants", "a.xyz", "--products", "b.xyz", "--basis", "sto-3g")
# command -> the function that it calls, and arguments that it cannot do without
COMMANDS: dict[str, tuple[str, tuple[str, ...]]] = {
    "optimize": ("dfmp2.studies.optimize.optimize_geometry", ONE),
    "irc": ("dfmp2.studies.reaction_path.reaction_path", ONE),
    "frequencies": ("dfmp2.studies.frequencies.harmonic_frequencies", ONE),
    "interaction": (
        "dfmp2.studies.interaction.interaction_energy",
        (*ONE, "--fragments", "1,2-4"),
    ),
    "cbs": ("dfmp2.studies.cbs.basis_set_limit", ("a.xyz", "--basis", "cc-pv[dt]z")),
    "scan": ("dfmp2.studies.scan.scan_energies", (*ONE, "--bond", "1,2", "0.9:1.1:3")),
    "scan of frames": ("dfmp2.studies.scan.scan_energies", ("f.xyz", *ONE[1:])),
    "reaction": ("dfmp2.studies.reaction.reaction_energy", REACTION),
    "thermo": ("dfmp2.studies.thermochemistry.make_thermochemistry", ("a.h5",)),
    "rank": ("dfmp2.interop.thermochemistry.rank_files", ("a.h5",)),
    "plan": ("dfmp2.planning.plan.foresee", ONE),
    "export": ("dfmp2.output.export.export", ("a.h5", "--to", "cube")),
    "report": ("dfmp2.output.html.sources.page", ("a.h5",)),
    "derive": ("dfmp2.mp2.derive.derive", ("a.h5",)),
    "gradient": ("dfmp2.interop.python.gradient_options", ONE),
    "prepare": ("dfmp2.mp2.prepared.prepare_b", ONE),
    "batch run": (
        "dfmp2.execution.batch.BatchRun.compute",
        ("a.xyz", "b.xyz", "--output", "o", "--workers", "1", "--memory", "1GB", *ONE[1:]),
    ),
    "batch plan": ("dfmp2.execution.outlook.foresee_shards", ("m.toml", "--memory", "2GB")),
    "batch collect": (
        "dfmp2.execution.collect.Destination.collect",
        ("m.toml", "-o", "t.csv"),
    ),
    # no function: what is submitted
    "batch submit --slurm": ("", ("m.toml", "--shards", "3")),
    "batch submit --aws-batch": (
        "",
        ("m.toml", "--shards", "3", "--queue", "q", "--image", "i", "--s3", "s3://bucket/p"),
    ),
}
# Options that choose what is printed, or files that the function does not get
OF_THE_SHELL = {
    *("as_json", "quiet", "verbose", "log", "help", "run", "resume", "trace"),
    *("scheduler", "submit_now"),
}
OF_A_COORDINATE = {"bond", "angle", "dihedral", "relaxed", "convergence", "moving", "trajectory"}
# to a file that is named by other tests
WRITES_ITSELF = ("thermo", "export", "report", "derive", "gradient", "prepare")
# Of one molecule or a prepared file, which has tests of its own, or of the other scheduler
OF_OTHER_SOURCES = {
    "batch submit --slurm": ("AWS: ", {"backend"}),
    "batch submit --aws-batch": ("Slurm: ", {"output", "write"}),
}
# option, or with its command -> words after it; by default they follow from its type
WORDS: dict[str | tuple[str, str], tuple[str, ...]] = {
    ("reaction", "charges"): ("a=2,b=2",),
    ("reaction", "multiplicities"): ("a=3",),
    ("batch collect", "to"): ("csv",),
    "freeze": ("xyz", "1"),
    "fixed": ("bond", "1,2", "1.0"),
    "constraints": ("c.txt",),
    "start_hessian": ("h.h5",),
    "transition_states": ("a",),
    "symmetry_numbers": ("a=2",),
    "fragments": ("1-2,3-4",),
    "bond": ("1,3", "0.8:1.1:3"),
    "angle": ("2,1,3", "100:110:3"),
    "dihedral": ("3,1,2,4", "0:10:2"),
    "moving": ("2",),
    "reactants": ("c.xyz",),
    "products": ("c.xyz",),
    "scf_formula": ("power",),
    "correlation_formula": ("truhlar",),
    "scale": ("0.97",),
    "isotope": ("H=2H",),
    "degeneracy": ("a=3",),
    "convergence": ("GAU_TIGHT",),
    "delta": ("ccsd(t)/cc-pvdz",),
    "delta_program": ("psi4",),
    "orbital": ("2",),
    "to": ("molden",),
    "multiplicity": ("3",),
    "displacement": ("0.01",),
    "charges": ("1,-1",),
    "multiplicities": ("2,2",),
    "point_charges": ("q.txt",),
    "title": ("Of it",),
    "root": ("sub",),
    "table": ("n.csv",),
    "engine": ("tcp://127.0.0.1:8786",),
    "shard": ("1/3",),
    "split": ("5:3:2",),
    "cpus_per_task": ("37",),
    "parallel": ("38",),
    "restarts": ("39",),
    "signal_before": ("41",),
    "time": ("25h",),
    "memory": ("2GB",),
    "instance": ("trn1.32xlarge",),
    "s3": ("s3://bucket/other",),
    "queue": ("queue-new",),
    "job_role": ("arn:aws:iam::123456789012:role/job",),
    "execution_role": ("arn:aws:iam::123456789012:role/execution",),
    "collect": ("c.csv",),
}
# option -> another one that it needs
NEEDS: dict[tuple[str, str], tuple[str, ...]] = {
    ("*", "cutoff"): ("--quasi-harmonic", "grimme"),
    ("*", "delta_program"): ("--delta", "ccsd(t)/cc-pvdz"),
    ("*", "point_charge_units"): ("--point-charges", "q.txt"),
    ("reaction", "allow_gradient"): ("--frequencies",),
    ("reaction", "convergence"): ("--optimize",),
    ("reaction", "max_steps"): ("--optimize",),
    ("scan", "convergence"): ("--relaxed",),
    ("scan", "trajectory"): ("--relaxed",),
    ("scan", "workers"): ("--no-chain",),
    ("scan of frames", "workers"): ("--no-chain",),
    ("scan", "units"): ("--moving", "2"),
    ("batch collect", "split"): ("--to", "h5"),
    ("batch submit --aws-batch", "region"): ("--submit",),
    ("batch submit --aws-batch", "profile"): ("--submit",),
}
# option of a job -> end of the place where its value is sent
SENT_AS = {
    "job_role": ".jobRoleArn",
    "execution_role": ".executionRoleArn",
    "queue": ".jobQueue",
    "image": ".image",
    "attempts": ".attempts",
    "region": ".region",
    "profile": ".profile",
}
# Options that are turned into something else: places, coordinates, molecules
PARSED = {
    ("batch plan", "workers"),
    *(
        "root",
        "shard",
        "instance",
        "split",
        "time",
        "memory",
        "units",
        "point_charges",
        "point_charge_units",
        "constraints",
    ),
    *("moving", "reactants", "products", "transition_states", "bond", "angle", "dihedral"),
}
PAIR = ("scf_formula", "correlation_formula")  # of two basis sets
# Options of a calculation that a command takes for something else, or not with its arguments
REFUSED: dict[str, tuple[str, ...]] = {
    "cbs": ("scf_auxbasis", "auxbasis", "scf_from", "frozen_virtual"),
    "prepare": ("method",),
    "batch submit --slurm": ("backend", "memory", "threads"),
    "batch submit --aws-batch": ("backend", "memory", "threads"),
}
WITHOUT_CALCULATION = {
    *("thermo", "rank", "export", "report"),
    *("batch collect", "batch submit --slurm", "batch submit --aws-batch"),
}


class Seen(InputError):
    """Ends a command when its function is called."""


@pytest.fixture
def arguments(
    call: Runner, folder: Path, monkeypatch: pytest.MonkeyPatch
) -> Callable[..., dict[str, Any]]:
    """The values that a command passes on, by their place."""
    (folder / "sub").mkdir()
    for name, place in (("a", "0.71"), ("b", "0.72"), ("c", "0.73")):
        (folder / f"{name}.xyz").write_text(PEROXIDE.replace("0.70", place))
        (folder / "sub" / f"{name}.xyz").write_text(PEROXIDE)
    both = [PEROXIDE.replace("0.70", place) for place in ("0.70", "0.71")]
    (folder / "f.xyz").write_text("".join(both))
    (folder / "c.txt").write_text("$freeze\nxyz 1\n")
    (folder / "q.txt").write_text("3 3 3 0.5\n")
    (folder / "a.h5").touch()
    (folder / "m.toml").write_text(MANIFEST)
    for module in ("studies", "batch_run"):
        monkeypatch.setattr(f"dfmp2.cli.{module}.start_server", lambda modules: None)
    monkeypatch.setattr("dfmp2.output.hdf5.start_of", lambda options: f"of {options.scf_from}")
    monkeypatch.setattr(
        "dfmp2.execution.aws.submit_to_aws",
        lambda requests, inputs, region, profile: {"region": region, "profile": profile},
    )
    monkeypatch.setattr("dfmp2.studies.composite.require_program", lambda name: None)
    taken: list[Any] = []

    def stop(*given: Any, **named: Any) -> None:
        taken.append((given, named))
        raise Seen("seen")

    for function, _ in COMMANDS.values():
        if function:
            monkeypatch.setattr(function, stop)
    monkeypatch.setattr("dfmp2.studies.frequencies.read_hessian", lambda path: f"of {path}")
    monkeypatch.setattr("dfmp2.output.hdf5.read", lambda path, **_: path)
    monkeypatch.setattr("dfmp2.output.hdf5.read_verified", lambda path: (path, f"hash of {path}"))
    monkeypatch.setattr(
        "dfmp2.studies.keeper.Keeper",
        lambda path, **how: SimpleNamespace(path=path, written=False, replaces=False, how=how),
    )

    def passed(command: str, *words: str) -> dict[str, Any]:
        taken.clear()
        if not COMMANDS[command][0]:
            return dict(leaves(succeed(call(*command.split(), *words, "--json")).json))
        done = call(*command.removesuffix(" of frames").split(), *words)
        assert taken, f"{command} {' '.join(words)}: {done.err}"
        return dict(leaves(taken[0]))

    return passed


def leaves(value: Any, place: str = "") -> Iterator[tuple[str, Any]]:
    """The plain values in an object, by their place."""
    if isinstance(value, np.ndarray):
        value = value.tolist()
    if dataclasses.is_dataclass(value):
        value = {field.name: getattr(value, field.name) for field in dataclasses.fields(value)}
    if isinstance(value, SimpleNamespace | Pool):
        value = vars(value)
    if isinstance(value, tuple) and hasattr(value, "_asdict"):
        value = value._asdict()
    if isinstance(value, Mapping):
        for name, part in value.items():
            yield from leaves(part, f"{place}.{name}")
    elif isinstance(value, list | tuple):
        yield f"{place}.count", len(value)
        for number, part in enumerate(value):
            yield from leaves(part, f"{place}.{number}")
    elif isinstance(value, str) and "\n" in value:  # a script
        yield from ((f"{place}: {line}", line) for line in value.splitlines())
    elif callable(value):
        yield place, getattr(value, "__name__", "")
    elif value is None or isinstance(value, str | int | float | Path):
        yield place, str(value) if isinstance(value, Path) else value


def words_of(command: str, option: click.Option) -> tuple[str, ...]:
    """The option on a command line, with a value that is not its default."""
    name = str(option.name)
    flag = option.opts[-1]
    if option.is_flag:
        return (option.secondary_opts[0],) if option.default is True else (flag,)
    words = WORDS.get((command, name), WORDS.get(name))
    if words is not None:
        return (flag, *words)
    if isinstance(option.type, click.Choice):
        usual = str(option.default)
        return (flag, next(one for one in option.type.choices if one.upper() != usual.upper()))
    if isinstance(option.type, click.types.IntParamType):
        return (flag, "2")
    if isinstance(option.type, click.types.FloatParamType):
        return (flag, "120.5")
    return (flag, "150" if name in ("temperature", "pressure") else f"{name}.new")


def own_options(command: str) -> list[click.Option]:
    """Its options, without those of a calculation, which `dfmp2 run` has as well."""
    usual = {field.name for field in dataclasses.fields(Options)} | OF_THE_SHELL
    other = "of another command"
    if command in WRITES_ITSELF:
        usual |= {"output", "overwrite"}
    if command == "scan of frames":
        usual |= OF_A_COORDINATE
    if command in OF_OTHER_SOURCES:
        other, refused = OF_OTHER_SOURCES[command]
        usual = OF_THE_SHELL | refused
    return [
        one
        for one in found_command(command).params
        if isinstance(one, click.Option)
        and not one.hidden
        and one.name not in usual
        and not str(one.help).startswith(other)
    ]


def found_command(command: str) -> Any:
    """The command with its parameters."""
    found: Any = cli
    for word in re.sub(" of frames| --.*", "", command).split():
        found = found.get_command(click.Context(found), word)
    return found


def holds(leaf: Any, word: str) -> bool:
    """Whether a value that is passed on is the one on the command line."""
    if not isinstance(leaf, int | float):
        return word.casefold() in str(leaf).casefold()
    with suppress(ValueError):
        return leaf == float(word.rpartition("=")[2])
    return False


@pytest.mark.parametrize("command", COMMANDS)
def test_every_option_of_a_command_is_passed_on(
    command: str, arguments: Callable[..., dict[str, Any]]
) -> None:
    """One that is dropped changes nothing; one that is mistaken for another changes other values
    than those that hold what was given."""
    usual: dict[tuple[str, ...], dict[str, Any]] = {}
    for option in own_options(command):
        name = str(option.name)
        beside = (*COMMANDS[command][1], *NEEDS.get((command, name), NEEDS.get(("*", name), ())))
        if name in PAIR:
            beside = tuple("cc-pv[dt]z" if one == "sto-3g" else one for one in beside)
        if beside not in usual:
            usual[beside] = arguments(command, *beside)
            assert usual[beside] == arguments(command, *beside)
        words = words_of(command, option)
        found = arguments(command, *beside, *words)
        changed = {
            place: value for place, value in found.items() if usual[beside].get(place) != value
        }
        assert found != usual[beside], f"{command}: {' '.join(words)} changes nothing"
        if not {name, (command, name)} & PARSED and not option.is_flag:
            held = [place for place, value in changed.items() if holds(value, words[-1])]
            end = SENT_AS.get(name, "") if "--aws-batch" in command else ""
            assert any(place.endswith(end) for place in held), f"{command}: {words}: {changed}"


@pytest.mark.parametrize("command", COMMANDS)
def test_options_of_a_calculation_are_passed_on_by_every_command(
    command: str, arguments: Callable[..., dict[str, Any]]
) -> None:
    """Each under its own name, also where a command has options of the same name."""
    refused = {"basis", *REFUSED.get(command, ())}
    names = [
        str(option.name)
        for option in found_command(command).params
        if isinstance(option, click.Option)
        and option.name in GIVEN
        and option.name not in refused
        and not option.hidden
    ]
    assert bool(names) == (command not in WITHOUT_CALCULATION)
    for name in names:
        text, value = GIVEN[name]
        words = [f"--{name.replace('_', '-')}", *filter(None, [text])]
        for other, its in NEEDED.get(name, {}).items():
            if other not in refused:
                words += [f"--{other}", its]
        passed = arguments(command, *COMMANDS[command][1], *words)
        found = [leaf for place, leaf in passed.items() if place.endswith(f".{name}")]
        assert any(leaf == value or holds(leaf, text or "-") for leaf in found), words


@pytest.mark.parametrize(
    ("command", "words", "expected"),
    [
        ("prepare", ("--scf-from", "a.h5"), {".1.start": "of a.h5"}),
        ("scan", (), {".1.elsewhere.workers": "none"}),
        ("scan", ("--no-chain",), {".1.elsewhere.workers": None}),
        ("scan", ("--no-chain", "--workers", "3"), {".1.elsewhere.workers": 3}),
    ],
)
def test_what_follows_from_options(
    command: str,
    words: tuple[str, ...],
    expected: dict[str, Any],
    arguments: Callable[..., dict[str, Any]],
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    """Start orbitals are read; points of a scan that start from each other are not shared."""
    monkeypatch.setattr(
        "dfmp2.execution.parts.StepWorkers", lambda workers: SimpleNamespace(workers=workers)
    )
    passed = arguments(command, *COMMANDS[command][1], *words)
    assert {place: passed.get(place, "none") for place in expected} == expected


LARGER = ("--threads", "9", "--memory", "8GB", "--scratch", "large")
SMALLER = ("--threads", "1", "--memory", "1GB", "--scratch", "small")
DASK = ("--engine", "tcp://127.0.0.1:8786")


@pytest.mark.parametrize(
    ("words", "asked", "workers", "threads", "megabytes", "scratch"),
    [
        (("--workers", "2"), None, 2, 6, 2000, "s"),
        (("--workers", "2", *LARGER), None, 2, 9, 4000, "large"),
        (("--workers", "2", *SMALLER), None, 2, 1, 500, "small"),
        ((), (6, 4 * 10**9), 3, 2, 1333, "s"),
        (LARGER, (9, 8 * 10**9), 3, 3, 2666, "large"),
        (DASK, None, 4096, 6, 4000, "s"),
        ((*DASK, "--workers", "7", *SMALLER), None, 7, 1, 1000, "small"),
    ],
)
def test_workers_of_a_batch_share_what_the_command_line_or_else_the_manifest_gives(
    words: tuple[str, ...],
    asked: tuple[int, int] | None,
    workers: int,
    threads: int,
    megabytes: int,
    scratch: str,
    arguments: Callable[..., dict[str, Any]],
    folder: Path,
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    """On a cluster each of them has all of it; their number follows from cores, which are then
    divided, and memory. The backend is the manifest's, whatever the environment says."""
    monkeypatch.setenv("DFMP2_BACKEND", "torch")
    three = Mock(return_value=3)
    monkeypatch.setattr("dfmp2.execution.batch.BatchRun.suitable_workers", three)
    head = 'threads = 6\nmemory = "4GB"\nscratch = "s"\ntask = "optimize"\n'
    (folder / "sub" / "m.toml").write_text(MANIFEST.replace('backend = "nki"\n', head))
    (folder / scratch).mkdir()
    passed = arguments("batch run", "sub/m.toml", "--root", ".", "--output", "n", *words)
    share = [passed[f".0.1.share.{name}"] for name in ("threads", "memory")]
    assert (passed[".0.2"], share[0], share[1] // 10**6) == (workers, threads, megabytes)
    assert [question.args for question in three.call_args_list] == [asked] * (asked is not None)
    assert Path(passed[".0.0.scratch"]).name == scratch
    expected = {
        ".0.0.optimize": "minimum",
        ".0.0.batch.items.0.options.backend": "auto",
        ".0.0.batch.root": ".",
        ".0.0.batch.output": "n",
    }
    assert {place: passed[place] for place in expected} == expected


@pytest.mark.parametrize(
    ("words", "threads", "megabytes"),
    [((), 6, 2000), (LARGER[:4], 9, 4000), (SMALLER[:4], 1, 500)],
)
def test_what_is_planned_or_asked_of_slurm_is_that_of_the_command_line_or_else_the_manifest(
    words: tuple[str, ...],
    threads: int,
    megabytes: int,
    arguments: Callable[..., dict[str, Any]],
    folder: Path,
) -> None:
    head = 'threads = 6\nmemory = "4GB"\n'
    (folder / "m.toml").write_text(MANIFEST.replace('backend = "nki"\n', head))
    passed = arguments("batch plan", "m.toml", "--workers", "2", *words)
    assert (passed[".0.2.threads"], passed[".0.2.memory"] // 10**6) == (threads, megabytes)
    passed = arguments("batch submit --slurm", "m.toml", "--shards", "3", "--workers", "2", *words)
    mebibytes = -(-2 * megabytes * 10**6 // 2**20)  # of the task, rounded up
    assert {f"#SBATCH --cpus-per-task={2 * threads}", f"#SBATCH --mem={mebibytes}M"} <= {
        *passed.values()
    }
