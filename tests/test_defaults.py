"""Defaults of the public interface: changing one changes everybody's results."""

from __future__ import annotations

import dataclasses
import inspect
from typing import Any

import click
import pytest

import dfmp2
from dfmp2.cli.main import COMMANDS, cli
from dfmp2.interop import ase, pyscf, qcengine, qcschema
from dfmp2.mp2.energy import mp2_energy
from dfmp2.mp2.prepared import prepare_b, prepared_energy
from dfmp2.options import Options

HELD = {"listener": None, "checkpoint": None, "resume": False, "require_proofs": True}
STATE = {"units": "angstrom", "charge": None, "multiplicity": None}
GAS = {"temperature": 298.15, "pressure": 101325.0}
DEFAULTS: dict[Any, dict[str, Any]] = {
    dfmp2.run: HELD,
    dfmp2.gradient: HELD,
    dfmp2.energy: HELD,
    dfmp2.from_mean_field: {"auxbasis": None, "listener": None, "require_proofs": True},
    dfmp2.prepare: {"listener": None, "overwrite": False, "resume": False},
    dfmp2.plan: {"gradient": False, "calibrate": False, "listener": None},
    dfmp2.batch: {
        "basis": None,
        "output": None,
        "workers": 1,
        "chained": False,
        "listener": None,
    },
    dfmp2.read: {"verify": True},
    dfmp2.read_many: {"only": (), "verify": True},
    dfmp2.read_study: {"verify": True},
    dfmp2.write: {"overwrite": False},
    dfmp2.derive: {"origin": "", "command": "dfmp2.derive", "listener": None},
    dfmp2.optimize: {
        "freeze": (),
        "fixed": (),
        "constraints": "",
        "convergence": "GAU",
        "max_steps": 100,
        "transition_state": False,
        "verify": False,
        "start_hessian": None,
    },
    dfmp2.irc: {"start_hessian": None, "convergence": "GAU", "max_steps": 100},
    dfmp2.frequencies: {
        **GAS,
        "symmetry_number": None,
        "displacement": 0.005,
        "allow_gradient": False,
    },
    dfmp2.interaction: {"charges": None, "multiplicities": None},
    dfmp2.cbs: {},
    dfmp2.scan: {
        "coordinate": None,
        "relaxed": False,
        "moving": None,
        "chained": True,
        "convergence": None,
    },
    dfmp2.reaction: {"basis": None},
    dfmp2.thermo: {
        **GAS,
        "scale": 1.0,
        "quasi_harmonic": None,
        "cutoff": None,
        "isotopes": (),
        "symmetry_number": None,
    },
    dfmp2.rank: {
        "by": None,
        **GAS,
        "scale": 1.0,
        "quasi_harmonic": None,
        "cutoff": None,
        "degeneracies": None,
    },
    dfmp2.Molecule.from_xyz: STATE,
    dfmp2.Molecule.from_string: STATE,
    dfmp2.Molecule.from_ase: {"charge": None, "multiplicity": None},
    dfmp2.Molecule.from_pyscf: {},
    dfmp2.Molecule.from_qcschema: {},
    ase.DFMP2.calculate: {
        "atoms": None,
        "properties": ("energy",),
        "system_changes": [
            "positions",
            "numbers",
            "cell",
            "pbc",
            "initial_charges",
            "initial_magmoms",
        ],
    },
    pyscf.DFMP2: {"frozen": None, "auxbasis": None},
    pyscf.DFMP2.make_rdm1: {"relaxed": False, "ao_repr": False},
    pyscf.DFMP2.reset: {"mol": None},
    pyscf.Gradients.kernel: {"atmlst": None},
    pyscf.Gradients.optimizer: {"solver": "geometric"},
    qcengine.Dfmp2Harness.found: {"raise_error": False},
    qcschema.run: {
        "memory": None,
        "threads": None,
        "listener": None,
        "command": "dfmp2.interop.qcschema.run",
    },
}


@pytest.mark.parametrize("function", DEFAULTS, ids=lambda one: one.__qualname__)
def test_defaults_of_a_public_function_change_on_purpose_only(function: Any) -> None:
    parameters = inspect.signature(function).parameters.values()
    found = {one.name: one.default for one in parameters if one.default is not one.empty}
    assert found == DEFAULTS[function]


def test_no_public_function_is_forgotten() -> None:
    functions = {
        value
        for name in dfmp2.__all__
        if inspect.isfunction(value := getattr(dfmp2, name)) and name != "available_backends"
    }
    assert functions <= set(DEFAULTS)


OF_A_REACTION = {
    "temperature": 298.15,
    "pressure": None,
    "scale": 1.0,
    "convergence": "GAU",
    "max_steps": 100,
}


@pytest.mark.parametrize("name", sorted(set(COMMANDS) & set(dfmp2.__all__) - {"batch", "derive"}))
def test_a_command_has_the_defaults_of_its_function(name: str) -> None:
    """Of a reaction they are those of optimisations and gases."""
    command = cli.get_command(click.Context(cli), name)
    own = DEFAULTS[getattr(dfmp2, name)]
    if name == "reaction":
        own = OF_A_REACTION
    expected = {**dataclasses.asdict(Options(basis="sto-3g")), **own}
    compared: dict[Any, Any] = {}
    context = click.Context(command)
    for parameter in command.params:
        given, default = parameter.get_default(context), expected.get(parameter.name)
        if all(isinstance(value, str | float | int) for value in (given, default)):
            compared[parameter.name] = type(default)(given), default
    assert compared and all(given == default for given, default in compared.values()), compared


@pytest.mark.parametrize(
    ("function", "command"),
    [
        (mp2_energy, "dfmp2.run"),
        (prepare_b, "dfmp2.prepare"),
        (prepared_energy, "dfmp2.energy"),
    ],
)
def test_a_result_says_which_function_made_it(function: Any, command: str) -> None:
    assert inspect.signature(function).parameters["command"].default == command


FIELDS: dict[Any, dict[str, Any]] = {
    dfmp2.Molecule: {
        "ghost": (),
        "charge": 0,
        "multiplicity": 1,
        "name": "molecule",
        "source": "",
        "text": "",
        "point_charges": None,
    },
    dfmp2.MP2Result: {
        "mole_json": "",
        "storage": None,
        "certificate": None,
        "check": None,
        "ranks": None,
        "preparation": None,
        "fitting_certificate": None,
        "grid_certificate": None,
        "gradient": None,
        "gradient_certificate": None,
        "properties": None,
        "polarizability": None,
        "quadrature": None,
        "dispersion": None,
        "coupled_cluster": None,
        "kept": "all",
    },
}


@pytest.mark.parametrize("record", FIELDS, ids=lambda one: one.__name__)
def test_defaults_of_a_public_record_change_on_purpose_only(record: Any) -> None:
    found = {
        field.name: field.default
        for field in dataclasses.fields(record)
        if field.default is not dataclasses.MISSING
    }
    assert found == FIELDS[record]
