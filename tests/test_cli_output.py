"""Output of a run: the report, the JSON object, the HDF5 layout, PySCF's checkpoint, safe
writing."""

from __future__ import annotations

import errno
import os
import re
import sys
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import h5py
import numpy as np
import pytest

from dfmp2.cli.run import command_line
from dfmp2.mp2 import energy
from dfmp2.output import hdf5
from dfmp2.output.text import report
from tests.conftest import Runner, Stored, on_a_terminal, run_command, succeed
from tests.recorded import recorded_failure, recorded_texts

# --- JSON -----------------------------------------------------------------------------------------

ENERGIES = (
    "scf_total_energy",
    "mp2_same_spin_correlation_energy",
    "mp2_opposite_spin_correlation_energy",
    "mp2_correlation_energy",
    "mp2_total_energy",
    "scs_mp2_correlation_energy",
    "sos_mp2_correlation_energy",
)


def test_json_holds_all_digits(water: Stored, radical: Stored) -> None:
    """Reading the text gives the numbers of the HDF5 file to the last bit."""
    for stored in (water, radical):
        with h5py.File(stored.path) as handle:
            for name in ENERGIES:
                assert stored.json[name] == handle[f"dfmp2/energies/{name}"][()]


def test_json_names_its_origin(water: Stored) -> None:
    import hashlib

    provenance = water.json["provenance"]
    text = (water.path.parent / "h2o.xyz").read_bytes()
    assert provenance["input_sha256"] == hashlib.sha256(text).hexdigest()
    assert provenance["command"] == "dfmp2 run h2o.xyz --basis sto-3g --json --check"
    for name in (
        "version",
        "created",
        "host",
        "platform",
        "python",
        "numpy",
        "scipy",
        "pyscf",
        "h5py",
        "blas",
    ):
        assert provenance[name]
    assert re.fullmatch(r"\d{4}-\d\d-\d\dT\d\d:\d\d:\d\d\+00:00", provenance["created"])
    assert water.json["backend"] == "cpu"


def test_what_json_cannot_hold_is_null(call: Runner, folder: Path) -> None:
    """A lone electron has no MP2 denominator: infinite in the file, null in JSON."""
    (folder / "h.xyz").write_text("1\nmultiplicity=2\nH 0 0 0\n")
    done = succeed(call("run", "h.xyz", "--basis", "cc-pvdz", "--json"))
    assert "Infinity" not in done.out and "NaN" not in done.out
    assert done.json["diagnostics"]["smallest_denominator"] is None
    assert done.json["mp2_correlation_energy"] == 0.0
    stored = hdf5.read("h.dfmp2.h5")
    assert stored.diagnostics.smallest_denominator == np.inf
    assert "There is no pair of electrons to correlate" in report(stored)


def test_the_command_is_stored_as_a_shell_takes_it(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(sys, "argv", ["/opt/bin/dfmp2", "run", "a b.xyz", "--json"])
    assert command_line() == "dfmp2 run 'a b.xyz' --json"


# --- screen ---------------------------------------------------------------------------------------


def test_terminal_gets_a_bar_and_colour_unless_no_color(folder: Path) -> None:
    run = ("run", "h2-far.xyz", "--basis", "sto-3g", "--overwrite")
    coloured = on_a_terminal("stderr", *run, cwd=folder)
    for what in ("SCF integrals", "integrals", "pairs"):
        assert re.search(rf"\r  {what} \[#{{30}}\] (\d+)/\1 *[\r\n]", coloured), coloured
    assert coloured.endswith("\r")  # the line that is rewritten is gone
    assert "\x1b[33mwarning: " in coloured
    quiet = on_a_terminal("stderr", *run, "--quiet", cwd=folder, NO_COLOR="1")
    assert "\x1b" not in quiet and "\r  pairs" not in quiet and "warning: " in quiet


# --- HDF5 layout ----------------------------------------------------------------------------------


def datasets(path: Path) -> dict[str, h5py.Dataset]:
    """(units, description, data type) of every dataset by its name."""
    found = {}
    with h5py.File(path) as handle:

        def visit(name: str, item: Any) -> None:
            if isinstance(item, h5py.Dataset):
                found[name] = (item.attrs["units"], item.attrs["description"], item.dtype)

        handle.visititems(visit)
    return found


def test_every_dataset_is_described_and_a_number_or_text(water: Stored, radical: Stored) -> None:
    for stored in (water, radical):
        for name, (_, description, dtype) in datasets(stored.path).items():
            assert description.strip(), name
            assert dtype.kind in "iufb" or h5py.check_string_dtype(dtype).encoding == "utf-8", name


# --- round trips ----------------------------------------------------------------------------------


@pytest.mark.parametrize("name", ["water", "radical"])
def test_result_is_a_pyscf_checkpoint(name: str, request: pytest.FixtureRequest) -> None:
    """PySCF loads molecule and orbitals, and its SCF started from them is converged at once."""
    stored: Stored = request.getfixturevalue(name)
    from dfmp2.molecule.pyscf_shield import import_pyscf

    import_pyscf()
    from pyscf import lib, scf

    saved = lib.chkfile.load(str(stored.path), "scf")
    assert {"e_tot", "mo_energy", "mo_occ", "mo_coeff"} <= set(saved)
    assert saved["e_tot"] == stored.json["scf_total_energy"]
    mole = lib.chkfile.load_mol(str(stored.path))
    assert mole.nelectron == stored.json["sizes"]["nelectron"]
    mean_field = (scf.RHF if name == "water" else scf.UHF)(mole).density_fit(
        auxbasis=stored.json["scf_auxbasis"]
    )
    energy = mean_field.energy_tot(mean_field.from_chk(str(stored.path)))
    assert energy == pytest.approx(stored.json["scf_total_energy"], abs=1e-9)


# --- closing lines of studies ---------------------------------------------------------------------

STUDIES = (
    "optimize h2.xyz --basis sto-3g",
    "irc h2.xyz --basis sto-3g",
    "frequencies h2.xyz --basis sto-3g",
    "scan h2.xyz --basis sto-3g --bond 1,2 0.7:0.8:5",
    "reaction --reactants h2.xyz --products h2-far.xyz --basis sto-3g",
    "interaction h2.xyz --basis sto-3g --fragments 1,2",
    "cbs h2.xyz --basis cc-pv[dt]z",
)
PLAIN = {
    "optimized_total_energy": -1.25,
    "barrier_forward_kj_per_mol": 21.5,
    "barrier_backward_kj_per_mol": 43.25,
    "reaction_energy_kj_per_mol": -21.75,
    "interaction_energy": -0.001,
    "cp_corrected_interaction_energy": -0.002,
    "cp_corrected_interaction_energy_kj_per_mol": -5.25,
    "cbs_total_energy": -1.5,
    "cbs_correlation_energy": -0.05,
    "lowest_first": 0.75,
    "lowest_second": 104.5,
}
MORE = {
    "minimum_parabola": 0.74,
    "minimum_quartic": 0.735,
    "reaction_enthalpy_kj_per_mol": -22.5,
    "reaction_gibbs_energy_kj_per_mol": -23.5,
    "composite_total_energy": -1.75,
    "delta_correction": -0.01,
}


def made_up(values: dict[str, float], curvatures: list[float]) -> Any:
    """A study with these numbers, two points and three vibrations, of which one is imaginary."""
    settings = {"equation": "h2 -> h2-far", "steps": 3, "stationary_point": "minimum", "failed": 0}
    settings |= {"backward_minimum": "HCN", "forward_minimum": "HNC", "imaginary_modes": 0}
    return SimpleNamespace(
        values={name: SimpleNamespace(value=x, units="unit") for name, x in values.items()},
        arrays={"extrema_curvature": SimpleNamespace(value=np.array(curvatures))},
        table={"wavenumber": SimpleNamespace(values=(-512.5, 1604.25, 3801.75))},
        settings=settings,
        path=("a", "b"),
        complete=True,
    )


def test_closing_lines_of_studies_have_their_numbers(
    call: Runner, folder: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Each of all the numbers of a study, and of a simpler one."""
    studies = [made_up(PLAIN | MORE, [1.0, -1.0, 2.0]), made_up(PLAIN, [1.0])]
    lines: list[str] = []

    def carried_out(_target: Path, _compute: Any, ending: Any, *_: Any, **__: Any) -> Any:
        lines.extend(ending(study) for study in studies)
        return studies[0]

    for module in ("geometry", "reaction", "thermochemistry"):
        monkeypatch.setattr(f"dfmp2.cli.{module}.run_study", carried_out)
    for typed in STUDIES:
        succeed(call(*typed.split()))
    recorded_texts(lines)


# --- writing --------------------------------------------------------------------------------------


def fail_with(code: int) -> Any:
    def fail(*_given: Any, **_named: Any) -> None:
        raise OSError(code, os.strerror(code))

    return fail


@pytest.mark.parametrize(
    ("command", "stage", "file"),
    [("run", energy.correlate, "h2.dfmp2.h5"), ("prepare", energy.build_b, "h2.prepared.h5")],
)
def test_a_file_that_appears_meanwhile_is_not_replaced(
    call: Runner, folder: Path, monkeypatch: pytest.MonkeyPatch, command: str, stage: Any, file: str
) -> None:
    """And nothing is left to be resumed."""

    def slow(*given: Any, **named: Any) -> Any:
        (folder / file).write_text("precious")
        return stage(*given, **named)

    monkeypatch.setenv("DFMP2_CHECKPOINT_SECONDS", "0")
    monkeypatch.setattr(energy, stage.__name__, slow)
    recorded_failure(call(command, "h2.xyz", "--basis", "sto-3g"), 3)
    assert (folder / file).read_text() == "precious"
    assert not [*folder.glob(".*"), *folder.glob("*.checkpoint")]


def test_file_systems_without_hard_links(
    call: Runner, folder: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(os, "link", fail_with(errno.EPERM))
    succeed(call("run", "h2.xyz", "--basis", "sto-3g"))
    hdf5.read(folder / "h2.dfmp2.h5")
    assert not list(folder.glob(".*"))


@pytest.mark.slow
def test_two_runs_at_once_leave_one_whole_file(folder: Path) -> None:
    from concurrent.futures import ThreadPoolExecutor

    arguments = ("run", "h2.xyz", "--basis", "sto-3g", "--quiet")
    with ThreadPoolExecutor(2) as pool:
        done = list(pool.map(lambda _: run_command(*arguments, cwd=folder), range(2)))
    assert sorted(one.code for one in done) == [0, 3]
    hdf5.read(folder / "h2.dfmp2.h5")
    assert not list(folder.glob(".*"))
