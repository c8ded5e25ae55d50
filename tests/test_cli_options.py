"""Every option of `dfmp2 run` reaches the calculation; effects visible only in whole runs; the
other commands."""

from __future__ import annotations

import re
import sys
from dataclasses import fields
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from pyscf import df, gto, lib

import dfmp2
from dfmp2.errors import InputError
from dfmp2.host.resources import cores
from dfmp2.molecule.mole import fitting_data
from dfmp2.mp2 import energy
from dfmp2.options import Options
from tests.conftest import COMMAND, Runner, run_command, succeed

STO3G = ("--basis", "sto-3g", "--overwrite", "--json")

# field of Options: text on the command line, expected value; none is the default
GIVEN: dict[str, tuple[str, Any]] = {
    **{name: (value, value) for name, value in {
        "basis": "cc-pvdz", "reference": "uhf", "relativity": "x2c", "scf": "conventional", "guess": "core",
        "scf_auxbasis": "def2-universal-jkfit", "auxbasis": "auto", "scf_from": "a.h5", "stability": "full",
        "dispersion": "none", "backend": "torch", "precision": "mixed", "method": "kappa-mp2",
        "transform": "host", "scratch": "/tmp", "solvent": "water", "solvent_model": "smd",
    }.items()},
    **{name: (str(value), value) for name, value in {
        "scf_conv_tol": 1e-9, "scf_max_cycles": 7, "scf_starts": 2, "frozen_virtual": 3, "os_scale": 1.2,
        "ss_scale": -1.0, "tolerance": 1e-8, "threads": 3, "kappa": 1.3,
    }.items()},
    "frozen_core": ("PSI4", "psi4"),
    "xc": ("PBE", "pbe"),
    "grid": ("99, 590", "99,590"),
    "memory": ("8GiB", 8 * 2**30),
    "polarizability": ("", True),
    "laplace": ("", True),
    **dict.fromkeys(("allow_small_gap", "allow_poor_fit", "certify_fit", "properties", "check"), ("", True)),
}  # fmt: skip


@pytest.fixture
def json_of(call: Runner) -> Any:
    """The JSON object of a run in this process."""
    return lambda *arguments: succeed(call("run", *arguments)).json


# Other options without which one is refused.
NEEDED = {
    "kappa": {"method": "kappa-mp2"},
    "os_scale": {"method": "custom-scs-mp2"},
    "xc": {"method": "drpa"},
    "grid": {"method": "drpa", "xc": "pbe"},
    "laplace": {"method": "xygj-os"},
    "solvent_model": {"solvent": "water"},
}


@pytest.mark.parametrize("option", fields(Options), ids=lambda option: option.name)
def test_every_option_reaches_the_calculation(
    option: Any, call: Runner, folder: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """And changes no other option."""
    seen: list[Options] = []

    def stop(_molecule: Any, options: Options, **_rest: Any) -> None:
        seen.append(options)
        raise InputError("seen")

    monkeypatch.setattr("dfmp2.interop.python.run_options", stop)
    text, value = GIVEN[option.name]
    (folder / "a.h5").touch()
    needed = NEEDED.get(option.name, {})
    asked = [f"--{option.name.replace('_', '-')}", *filter(None, [text])]
    for name, other in needed.items():
        asked += [f"--{name}", other]
    assert call("run", "h2o.xyz", *STO3G[:2], *asked).message == "dfmp2: seen"
    expected = Options(**{"basis": "sto-3g", **needed, option.name: value})
    assert seen == [expected] and getattr(expected, option.name) == value != option.default


# --- compute --------------------------------------------------------------------------------------


def test_precision(json_of: Any) -> None:
    given = ("h2o.xyz", *STO3G, "--check", "--precision")
    exact, mixed = (json_of(*given, how) for how in ("fp64", "mixed"))
    certificate = mixed["precision_certificate"]
    assert certificate["sampled"] == certificate["pairs"] == 15
    difference = abs(mixed["mp2_correlation_energy"] - exact["mp2_correlation_energy"])
    # All pairs were redone
    assert 0 < difference == pytest.approx(certificate["correlation_error"], abs=1e-11)
    errors = [
        certificate[f"{name}_error"] for name in ("correlation", "same_spin", "opposite_spin")
    ]
    allowed = [found["check"]["allowed"] for found in (exact, mixed)]
    assert allowed == pytest.approx([1e-8, 1e-8 + max(errors)], rel=1e-12)


def test_tolerance(json_of: Any) -> None:
    repeated = json_of("h2o.xyz", *STO3G, "--tolerance", "1e-14")
    assert repeated["precision"] == "fp64" and repeated["precision_certificate"]["repeated_in_fp64"]
    assert repeated["precision_certificate"]["tolerance"] == 1e-14


def test_threads(json_of: Any, monkeypatch: pytest.MonkeyPatch) -> None:
    """The option overrides the environment, and is recorded in the result; what is no number in the
    environment counts as not set."""
    unset = cores()
    for more, variable, count in (
        (("--threads", "2"), "5", 2),
        ((), "1", 1),
        ((), " 3 ,2", 3),
        ((), "²", unset),
        ((), "0", unset),
    ):
        monkeypatch.setenv("OMP_NUM_THREADS", variable)
        assert json_of("h2.xyz", *STO3G, *more)["provenance"]["threads"] == count


def test_threads_reach_openmp_and_are_given_back(
    json_of: Any, monkeypatch: pytest.MonkeyPatch
) -> None:
    seen, run_scf, before = [], energy.run_scf, lib.num_threads()

    def watched(*given: Any, **named: Any) -> Any:
        seen.append(lib.num_threads())
        return run_scf(*given, **named)

    monkeypatch.setattr(energy, "run_scf", watched)
    # H2 would run on one thread otherwise
    monkeypatch.setattr("dfmp2.planning.system.SINGLE_THREADED", 0)
    json_of("h2.xyz", *STO3G, "--threads", "3")
    json_of("h2.xyz", *STO3G, "--threads", "1")
    assert (seen, lib.num_threads()) == ([3, 1], before)


# --- output ---------------------------------------------------------------------------------------


def test_near_singular_metric_is_cut_and_recorded(call: Runner) -> None:
    done = succeed(call("run", "crowd.xyz", "--basis", "aug-cc-pvtz", "--overwrite", "--json"))
    diagnostics = done.json["diagnostics"]
    stored = dfmp2.read("crowd.dfmp2.h5")
    aux = df.make_auxmol(
        gto.loads(stored.mole_json), fitting_data(stored.molecule, stored.mp2_fitting)
    )
    values = np.linalg.eigvalsh(aux.intor("int2c2e"))
    assert diagnostics["metric_dropped"] == (values < 1e-12 * values[-1]).sum() > 0
    assert diagnostics["metric_threshold"] == 1e-12
    assert f"{diagnostics['metric_dropped']} of 216 functions dropped" in done.err
    assert done.json["formula"] == "He + ghost He5"


# --- the other commands ---------------------------------------------------------------------------


def test_the_module_is_the_command(dfmp2: Runner) -> None:
    script = dfmp2("run", "--help")
    assert succeed(script) == dfmp2("run", "--help", program=(sys.executable, "-m", "dfmp2"))
    assert script.out.startswith("Usage: dfmp2 run [OPTIONS] MOLECULE")


# --- what is loaded, and how fast -----------------------------------------------------------------


def test_help_loads_nothing_heavy(tmp_path: Path) -> None:
    program = (sys.executable, "-X", "importtime", str(COMMAND))
    done = succeed(run_command("--help", cwd=tmp_path, program=program))
    loaded = set(re.findall(r"^import time:.*\| +(\w+)", done.err, re.MULTILINE))
    assert "click" in loaded and not loaded & {"numpy", "scipy", "pyscf", "torch", "h5py"}
