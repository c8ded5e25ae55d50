"""Every option of the commands that combine, rank, plan or export results reaches the function that
uses it; nothing is computed."""

from __future__ import annotations

import dataclasses
from collections.abc import Callable, Iterator, Mapping
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import click
import numpy as np
import pytest

import dfmp2.interop.batch
import dfmp2.interop.thermochemistry
import dfmp2.studies.keeper  # noqa: F401 - before functions are replaced that they import
from dfmp2.cli.main import cli
from dfmp2.errors import InputError
from dfmp2.options import Options
from tests.conftest import Runner
from tests.test_cli_options import GIVEN

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
}
# Options that choose what is printed, or files that the function does not get
OF_THE_SHELL = {"as_json", "quiet", "verbose", "log", "help", "run"}
OF_A_COORDINATE = {"bond", "angle", "dihedral", "relaxed", "convergence", "moving", "trajectory"}
WRITES_ITSELF = ("thermo", "export", "report")  # to a file that is named by other tests
# option -> words after it; by default they follow from its type
WORDS: dict[str, tuple[str, ...]] = {
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
}
OF_A_REACTION = {"charges": ("a=2,b=2",), "multiplicities": ("a=3",)}
# option -> another one that it needs
NEEDS: dict[tuple[str, str], tuple[str, ...]] = {
    ("*", "cutoff"): ("--quasi-harmonic", "grimme"),
    ("*", "delta_program"): ("--delta", "ccsd(t)/cc-pvdz"),
    ("*", "point_charge_units"): ("--point-charges", "q.txt"),
    ("reaction", "convergence"): ("--optimize",),
    ("reaction", "max_steps"): ("--optimize",),
    ("scan", "convergence"): ("--relaxed",),
    ("scan", "trajectory"): ("--relaxed",),
    ("scan", "workers"): ("--no-chain",),
    ("scan of frames", "workers"): ("--no-chain",),
    ("scan", "units"): ("--moving", "2"),
}
# Options that are turned into something else: places, coordinates, molecules
PARSED = {
    *("units", "point_charges", "point_charge_units", "constraints"),
    *("moving", "reactants", "products", "transition_states", "bond", "angle", "dihedral"),
}
PAIR = ("scf_formula", "correlation_formula")  # of two basis sets


class Seen(InputError):
    """Ends a command when its function is called."""


@pytest.fixture
def arguments(
    call: Runner, folder: Path, monkeypatch: pytest.MonkeyPatch
) -> Callable[..., dict[str, Any]]:
    """The values that a command passes on, by their place."""
    for name, place in (("a", "0.70"), ("b", "0.71"), ("c", "0.72")):
        (folder / f"{name}.xyz").write_text(PEROXIDE.replace("0.70", place))
    both = [PEROXIDE.replace("0.70", place) for place in ("0.70", "0.71")]
    (folder / "f.xyz").write_text("".join(both))
    (folder / "c.txt").write_text("$freeze\nxyz 1\n")
    (folder / "q.txt").write_text("3 3 3 0.5\n")
    (folder / "a.h5").touch()
    monkeypatch.setattr("dfmp2.cli.studies.start_server", lambda modules: None)
    monkeypatch.setattr("dfmp2.studies.composite.require_program", lambda name: None)
    taken: list[Any] = []

    def stop(*given: Any, **named: Any) -> None:
        taken.append((given, named))
        raise Seen("seen")

    for function, _ in COMMANDS.values():
        monkeypatch.setattr(function, stop)
    monkeypatch.setattr("dfmp2.studies.frequencies.read_hessian", lambda path: f"of {path}")
    monkeypatch.setattr("dfmp2.output.hdf5.read", lambda path, **_: path)
    monkeypatch.setattr(
        "dfmp2.studies.keeper.Keeper",
        lambda path, **how: SimpleNamespace(path=path, written=False, replaces=False, how=how),
    )

    def passed(command: str, *words: str) -> dict[str, Any]:
        taken.clear()
        done = call(command.split()[0], *words)
        assert taken, f"{command} {' '.join(words)}: {done.err}"
        return dict(leaves(taken[0]))

    return passed


def leaves(value: Any, place: str = "") -> Iterator[tuple[str, Any]]:
    """The plain values in an object, by their place."""
    if isinstance(value, np.ndarray):
        value = value.tolist()
    if dataclasses.is_dataclass(value):
        value = {field.name: getattr(value, field.name) for field in dataclasses.fields(value)}
    if isinstance(value, SimpleNamespace):
        value = vars(value)
    if isinstance(value, Mapping):
        for name, part in value.items():
            yield from leaves(part, f"{place}.{name}")
    elif isinstance(value, list | tuple):
        yield f"{place}.count", len(value)
        for number, part in enumerate(value):
            yield from leaves(part, f"{place}.{number}")
    elif value is None or isinstance(value, str | int | float | Path):
        yield place, str(value) if isinstance(value, Path) else value


def words_of(command: str, option: click.Option) -> tuple[str, ...]:
    """The option on a command line, with a value that is not its default."""
    name = str(option.name)
    flag = option.opts[-1]
    if option.is_flag:
        return (option.secondary_opts[0],) if option.default is True else (flag,)
    if command == "reaction" and name in OF_A_REACTION:
        return (flag, *OF_A_REACTION[name])
    if name in WORDS:
        return (flag, *WORDS[name])
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
    found = cli.get_command(click.Context(cli), command.split()[0])
    assert found is not None
    usual = {field.name for field in dataclasses.fields(Options)} | OF_THE_SHELL
    if command in WRITES_ITSELF:
        usual |= {"output", "overwrite"}
    if command == "scan of frames":
        usual |= OF_A_COORDINATE
    return [
        one
        for one in found.params
        if isinstance(one, click.Option) and not one.hidden and one.name not in usual
    ]


def holds(leaf: Any, word: str) -> bool:
    """Whether a value that is passed on is the one on the command line."""
    number = word.rpartition("=")[2]
    if isinstance(leaf, int | float):
        return str(leaf) == number or str(float(leaf)) == number or leaf == _number(number)
    return word.casefold() in str(leaf).casefold()


def _number(word: str) -> float | None:
    try:
        return float(word)
    except ValueError:
        return None


@pytest.mark.parametrize("command", COMMANDS)
def test_every_option_of_a_command_is_passed_on(
    command: str, arguments: Callable[..., dict[str, Any]]
) -> None:
    """One that is dropped changes nothing; one that is mistaken for another changes other values
    than those that hold what was given."""
    usual: dict[tuple[str, ...], dict[str, Any]] = {}
    for option in own_options(command):
        name = str(option.name)
        needed = NEEDS.get((command, name), NEEDS.get(("*", name), ()))
        beside = (*COMMANDS[command][1], *needed)
        if name in PAIR:
            beside = tuple("cc-pv[dt]z" if one == "sto-3g" else one for one in beside)
        if beside not in usual:
            usual[beside] = arguments(command, *beside)
        words = words_of(command, option)
        found = arguments(command, *beside, *words)
        changed = {
            place: value for place, value in found.items() if usual[beside].get(place) != value
        }
        assert changed, f"{command}: {' '.join(words)} changes nothing"
        if name not in PARSED and not option.is_flag:
            held = [place for place, value in changed.items() if holds(value, words[-1])]
            assert held, f"{command}: {words} is not among {changed}"


# Options of a calculation that do not go together, or have tests of their own
APART = {
    *(
        "basis",
        "method",
        "xc",
        "grid",
        "solvent",
        "solvent_model",
        "dispersion",
        "kappa",
        "laplace",
    ),
    *("scf", "scf_from", "frozen_virtual", "properties", "polarizability", "check", "backend"),
}


@pytest.mark.parametrize("command", COMMANDS)
def test_options_of_a_calculation_are_passed_on_by_every_command(
    command: str, arguments: Callable[..., dict[str, Any]]
) -> None:
    found = cli.get_command(click.Context(cli), command.split()[0])
    assert found is not None
    given = {
        str(option.name): GIVEN[str(option.name)]
        for option in found.params
        if option.name in GIVEN and option.name not in APART
    }
    if command == "cbs":
        del given["scf_auxbasis"], given["auxbasis"]
    words = [
        word
        for name, (text, _) in given.items()
        for word in (f"--{name.replace('_', '-')}", text)
        if word
    ]
    passed = arguments(command, *COMMANDS[command][1], *words)
    assert bool(given) == (command not in ("thermo", "rank", "export", "report"))
    for name, (_, value) in given.items():
        assert value in [leaf for place, leaf in passed.items() if place.endswith(f".{name}")], name
