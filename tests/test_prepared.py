"""A run in two parts: the same bits, nothing left behind, and no false file accepted."""

from __future__ import annotations

import errno
import json
import os
import re
import signal
import subprocess
import sys
import time
from contextlib import suppress
from pathlib import Path
from typing import Any
from unittest.mock import Mock, patch

import h5py
import numpy as np
import pytest
from hypothesis import given

import dfmp2
from dfmp2.errors import InputError, ResourceError, ResultFileError
from dfmp2.host import arrays_on_disk
from dfmp2.host import files as host_files
from dfmp2.mp2.prepared import options_for, prepared_energy
from dfmp2.options import BEFORE_PAIRS, BOTH_PARTS, PAIRS, WHOLE_RUN, Options
from dfmp2.output import hdf5
from dfmp2.output import prepared as prepared_files
from dfmp2.output.prepared import OpenedFile, PreparedFile, is_prepared, opened
from dfmp2.output.state import read_layout
from dfmp2.planning import memory
from tests.conftest import (
    COMMAND,
    INPUTS,
    PATIENCE,
    Heard,
    Runner,
    listing,
    succeed,
    write_molecules,
)
from tests.faults import numbers
from tests.recorded import recorded_error, recorded_failure
from tests.test_result_files import FILES, Change, changes, mutate

PREPARE = ("prepare", "h2o.xyz", "--basis", "sto-3g", "--threads", "1", "--output", "x.prepared.h5")


def whole(
    molecule: Path, before: dict[str, Any], after: dict[str, Any], both: dict[str, Any]
) -> dict[str, bytes]:
    """Every number of a run in one piece."""
    return numbers(hdf5.to_bytes(dfmp2.run(molecule, **before, **after, **both, listener=Heard())))


def in_parts(
    molecule: Path,
    folder: Path,
    before: dict[str, Any],
    after: dict[str, Any],
    both: dict[str, Any],
) -> dict[str, bytes]:
    """Every number of the same run in two parts."""
    path = folder / "x.prepared.h5"
    dfmp2.prepare(molecule, output=path, **before, **both, listener=Heard())
    assert [entry.name for entry in folder.iterdir() if "prepared" in entry.name] == [path.name]
    found = numbers(hdf5.to_bytes(dfmp2.energy(path, **after, **both, listener=Heard())))
    mine = {name for name in found if name.startswith("dfmp2/preparation/")}
    assert mine
    return {name: value for name, value in found.items() if name not in mine}


def set_disk(monkeypatch: pytest.MonkeyPatch) -> None:
    """Put B on disk, with as little of it in memory as possible."""
    monkeypatch.setattr(memory.MemoryPlan, "mp2_fits_in_core", property(lambda _: False))
    monkeypatch.setattr(memory.MemoryPlan, "tensor_bytes", property(lambda _: 1))


STO3G, FP64 = {"basis": "sto-3g"}, {"precision": "fp64"}
CASES = {  # molecule, options of the first part, of the second, of both; whether B is on disk
    "no valence electron": ("na", {**STO3G, "frozen_core": "psi4"}, {}, FP64, False),  # with a note
    "mixed, disk": ("nh2", STO3G, {"tolerance": 1e-6}, {"precision": "mixed"}, True),
    "no beta electron, disk": ("h", {"basis": "cc-pvdz"}, {}, {}, True),
    "trainium": ("h2o", STO3G, {"backend": "nki-interpreter"}, {}, False),
}


@pytest.mark.parametrize(
    "case",
    [pytest.param(case, marks=[pytest.mark.bits] * (case == "mixed, disk")) for case in CASES],
)
def test_two_parts_give_the_bits_of_a_run(
    case: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    name, before, after, both, disk = CASES[case]
    both = {**both, "threads": 2}
    molecule = write_molecules(tmp_path) / f"{name}.xyz"
    (tmp_path / "h.xyz").write_text("1\nmultiplicity=2\nH 0 0 0\n")
    (tmp_path / "na.xyz").write_text("1\ncharge=1\nNa 0 0 0\n")
    if disk:
        set_disk(monkeypatch)
    assert in_parts(molecule, tmp_path, before, after, both) == whole(molecule, before, after, both)


def test_float32_exchange_of_the_scf_belongs_to_the_first_part(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Without --precision fp64 the SCF begins in float32, which an fp64 energy must not conceal."""
    monkeypatch.setattr("dfmp2.scf.ladder.SINGLE_LEAST", 1)
    path, said = tmp_path / "x.prepared.h5", Heard()
    dfmp2.prepare(INPUTS / "h2o.xyz", "sto-3g", path, listener=Heard())
    result = dfmp2.energy(path, precision="fp64", listener=said)
    assert result.diagnostics.warnings == (
        "--precision fp64, but the SCF began with float32 exchange (its end is float64): prepare it "
        "with --precision fp64 for a run without any float32",
    )
    assert dfmp2.energy(path, listener=said).diagnostics.warnings == ()
    dfmp2.prepare(
        INPUTS / "h2o.xyz", "sto-3g", path, scf="conventional", overwrite=True, listener=said
    )
    assert dfmp2.energy(path, precision="fp64", listener=said).diagnostics.warnings == ()
    dfmp2.prepare(
        INPUTS / "h2o.xyz", "sto-3g", path, precision="fp64", overwrite=True, listener=said
    )
    result = dfmp2.energy(path, listener=said)
    assert (result.precision, result.options.precision, result.diagnostics.warnings) == (
        "fp64",
        "fp64",
        (),
    )


def test_singular_metric(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """B has fewer fitting functions than were allowed for, also that of a spin without electrons;
    its groups of orbitals are copied."""
    monkeypatch.setattr("dfmp2.integrals.metric.SOLVE_ELEMENTS", 1)
    before = {"basis": "aug-cc-pvtz", "stability": "off", "multiplicity": 3}
    both = {"precision": "fp64", "threads": 2}
    crowd = write_molecules(tmp_path) / "crowd.xyz"
    set_disk(monkeypatch)
    assert in_parts(crowd, tmp_path, before, {}, both) == whole(crowd, before, {}, both)
    with opened(tmp_path / "x.prepared.h5") as source:
        dropped = source.prepared.diagnostics.metric_dropped
        assert dropped > 0 and source.prepared.shapes[0][2] == source.prepared.sizes.naux - dropped
        # No space is wasted
        assert os.path.getsize(source.path) < source.prepared.tensor_bytes + 10**6
        assert [len(groups) for groups in source._groups] == [2, 0]
        assert source.prepared.storage.fitted_tensor == "disk"


def test_a_disk_must_hold_all_of_b(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """Exactly; a file that is there makes no difference."""
    free = 10**6 + prepared_files.OVERHEAD
    monkeypatch.setattr(host_files, "free_disk", lambda _: free)
    file = PreparedFile(tmp_path / "x.h5", overwrite=True)
    file.require(10**6)
    (tmp_path / "x.h5").touch()
    file.require(10**6)
    free -= 1
    with pytest.raises(dfmp2.DiskFull):
        file.require(10**6)


def test_energy_makes_no_integrals(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    path = tmp_path / "x.prepared.h5"
    prepared = dfmp2.prepare(INPUTS / "h2o.xyz", "cc-pvdz", path, listener=Heard())
    for name in (
        "integrals.three_center.packed_blocks",
        "integrals.three_center.coulomb_metric",
        "scf.hartree_fock.run_scf",
    ):
        monkeypatch.setattr(f"dfmp2.{name}", Mock(side_effect=AssertionError("computed again")))
    result = dfmp2.energy(path, listener=Heard())
    assert (
        result.timings.scf == prepared.timings.scf and result.timings.total > prepared.timings.total
    )
    made, before = result.preparation, prepared.provenance
    assert (made.host, made.threads) == (before.host, before.threads)
    assert (made.seconds, made.measured_peak) == (
        prepared.timings.total,
        prepared.memory.measured_peak,
    )
    assert (made.command, result.provenance.command) == ("dfmp2.prepare", "dfmp2.energy")


# Runs a command and prints its peak memory, kB; from a small process, since Linux includes that of
# the parent.
MEASURED = """
import resource, subprocess, sys
code = subprocess.run(sys.argv[1:], stderr=subprocess.DEVNULL).returncode
print(resource.getrusage(resource.RUSAGE_CHILDREN).ru_maxrss, file=sys.stderr)
sys.exit(code)
"""


@pytest.mark.slow
@pytest.mark.parametrize("budget", ["4GB", "230MB"])
def test_a_budget_is_kept_and_there_is_no_copy_of_b(budget: str, tmp_path: Path) -> None:
    """With 230 MB, B does not fit beside the integrals and is made in its file; the pair energies
    then hold all of it."""
    scratch = tmp_path / "scratch"
    scratch.mkdir()
    given = ("--precision", "fp64", "--memory", budget, "--scratch", "scratch", "--json")
    prepare = ("prepare", str(INPUTS / "water-8.xyz"), "--basis", "cc-pvdz", *given)
    found = []
    for arguments in (prepare, ("energy", "--from", "water-8.prepared.h5", *given)):
        done = subprocess.run(
            [sys.executable, "-S", "-c", MEASURED, COMMAND, *arguments],
            cwd=tmp_path,
            capture_output=True,
            check=True,
        )
        found.append(json.loads(done.stdout))
        if budget == "230MB":
            assert int(done.stderr) * 1024 <= 1.05 * 230e6
    prepared, result = found
    assert prepared["storage"]["fitted_tensor"] == ("memory" if budget == "4GB" else "disk")
    assert result["storage"]["fitted_tensor"] == "memory" and list(scratch.iterdir()) == []
    size = prepared["fitted_tensor"]["bytes"]
    assert size < (tmp_path / "water-8.prepared.h5").stat().st_size < size + 2_000_000
    assert (result["storage"]["written"], result["storage"]["read"]) == (0, size)
    assert result["mp2_total_energy"] == pytest.approx(-610.0169162773, abs=1e-8)


# --- the file -------------------------------------------------------------------------------------


@pytest.fixture(scope="module")
def radical_file(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """UHF NH2 in STO-3G, prepared; not to be changed."""
    path = tmp_path_factory.mktemp("prepared") / "nh2.prepared.h5"
    molecule = write_molecules(path.parent) / "nh2.xyz"
    dfmp2.prepare(molecule, "sto-3g", path, frozen_core=1, listener=Heard())
    return path


def test_b_is_what_the_file_says(radical_file: Path) -> None:
    """A reader without dfmp2 finds B as documented: its opposite-spin energy is that of a run."""
    with h5py.File(radical_file) as handle:
        alpha, beta = handle["b/alpha"][()], handle["b/beta"][()]
        eps, occ = handle["scf/mo_energy"][()], handle["scf/mo_occ"][()]
        assert handle["b/alpha"].attrs["units"] == b"hartree^1/2"
    (ea, va), (eb, vb) = ((e[n > 0][1:], e[n == 0]) for e, n in zip(eps, occ, strict=True))
    g = np.einsum("iap,jbp->iajb", alpha, beta)
    d = ea[:, None, None, None] + eb[:, None] - va[:, None, None] - vb
    result = dfmp2.energy(radical_file, precision="fp64", listener=Heard())
    assert np.sum(g * g / d) == pytest.approx(
        result.mp2_opposite_spin_correlation_energy, abs=1e-14
    )


def test_b_is_in_memory_unless_other_processes_compute_with_it(radical_file: Path) -> None:
    """With the same energy, even if they leave all tiles out."""

    def nothing(*_: Any) -> Any:
        yield from ()

    energies = []
    with patch.object(OpenedFile, "load", autospec=True, side_effect=OpenedFile.load) as load:
        for elsewhere in (None, nothing):
            with opened(radical_file) as source:
                options = options_for(source.prepared, {"threads": 1})
                found = prepared_energy(source, options, listener=Heard(), elsewhere=elsewhere)
            energies.append(found.mp2_total_energy)
    assert [call.kwargs["held"] for call in load.call_args_list] == [True, False]
    assert energies[0] == energies[1]


def test_b_is_left_where_it_is_when_a_file_is_opened(radical_file: Path) -> None:
    """It may be larger than the memory."""
    with h5py.File(radical_file) as handle:
        read = read_layout(handle).keys()
        assert "scf/mo_coeff" in read and "b/alpha" in handle
        assert not {"b/alpha", "b/beta"} & read


def test_start_orbitals_come_from_it(radical_file: Path) -> None:
    result = dfmp2.run(
        radical_file.with_name("nh2.xyz"), "sto-3g", scf_from=radical_file, listener=Heard()
    )
    assert result.reference.cycles <= 3


def test_groups_of_orbitals_are_read_to_their_places(
    radical_file: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """B of a large molecule has several hashes per spin."""
    monkeypatch.setattr("dfmp2.integrals.metric.SOLVE_ELEMENTS", 1)
    path, molecule = tmp_path / "nh2.prepared.h5", radical_file.with_name("nh2.xyz")
    dfmp2.prepare(molecule, "sto-3g", path, frozen_core=1, listener=Heard())
    with opened(path) as source:
        assert [len(groups) for groups in source._groups] == [4, 3]
        loaded = source.load(2)
    with h5py.File(radical_file) as handle:
        for spin, found in zip(("alpha", "beta"), loaded, strict=True):
            np.testing.assert_allclose(found, handle[f"b/{spin}"], atol=1e-11)
    with h5py.File(path, "r+") as handle:
        handle["b/beta"][-1, 0, 0] += 1e-9
    with (
        opened(path) as source,
        pytest.raises(ResultFileError, match="B of the beta orbitals 3 to 3"),
    ):
        source.load(2, held=False)


@FILES
@given(plan=changes)
def test_changed_anywhere(plan: list[Change], radical_file: Path, tmp_path: Path) -> None:
    """Every change is refused or has no effect; quickly, and with no other outcome."""
    path, start = tmp_path / "changed.h5", time.thread_time()
    path.write_bytes(mutate(radical_file.read_bytes(), plan))
    with suppress(ResultFileError), opened(path) as source:
        source.load(1)
    is_prepared(path)
    assert time.thread_time() - start < 20


# --- the commands ---------------------------------------------------------------------------------


def test_plan_names_the_size_of_the_file(call: Runner, folder: Path) -> None:
    planned = succeed(call("plan", "h2o.xyz", "--basis", "cc-pvdz", "--json")).json["memory_bytes"][
        "prepared"
    ]
    succeed(call("prepare", "h2o.xyz", "--basis", "cc-pvdz"))
    assert planned == pytest.approx((folder / "h2o.prepared.h5").stat().st_size, rel=0.1)


def test_every_option_of_a_run_belongs_somewhere() -> None:
    """A new option must be added to one of the two commands or listed here."""
    assert {*BEFORE_PAIRS, *BOTH_PARTS, *PAIRS} == set(Options.__slots__) - {
        "transform",
        *WHOLE_RUN,
    }


def test_a_full_disk_leaves_nothing(
    call: Runner, folder: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    (folder / "x.prepared.h5").write_text("old")
    before = listing(folder)

    def full(*_given: Any) -> int:
        raise OSError(errno.ENOSPC, os.strerror(errno.ENOSPC))

    for module, name in ((arrays_on_disk.os, "pwrite"), (os, "fsync"), (os, "replace")):
        with monkeypatch.context() as patch:
            patch.setattr(module, name, full)
            done = call(*PREPARE, "--overwrite")
        assert done.code == 7 and "No space left on device" in done.message, name
        if name != "replace":
            # The orbitals 8 * 7**2, B 8 * 5 * 2 * 76, and 60 kB
            assert re.search(r"66\.47 kB are needed and [\d.]+ \w?B are free", done.message), name
        assert listing(folder) == before, name


def test_too_little_space_is_refused_before_the_scf(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(host_files, "free_disk", lambda _: 1000)
    said = Heard()
    with recorded_error(ResourceError):
        dfmp2.prepare(INPUTS / "h2o.xyz", "cc-pvdz", tmp_path / "x.h5", listener=said)
    assert said.stages == [] and list(tmp_path.iterdir()) == []


SLOW = """
import sys, time
from dfmp2.cli.main import main
from dfmp2.output.prepared import PreparedFile

def seal(file, prepared):
    print("B is there", flush=True)
    time.sleep(600)

PreparedFile.seal = seal
sys.exit(main(sys.argv[1:]))
"""


@pytest.mark.parametrize(
    "number", [pytest.param(signal.SIGTERM, marks=pytest.mark.slow), signal.SIGKILL]
)
def test_a_signal_while_it_is_written(number: signal.Signals, folder: Path, call: Runner) -> None:
    """Nothing is left; files left by a killed process are removed by the next one, those of a
    living process are not."""

    def parts() -> list[str]:
        return [name for name in listing(folder) if ".part-" in name]

    with subprocess.Popen(
        [sys.executable, "-c", SLOW, *PREPARE],
        cwd=folder,
        stdout=subprocess.PIPE,
        stderr=subprocess.DEVNULL,
    ) as process:
        assert process.stdout is not None and process.stdout.readline() == b"B is there\n"
        recorded_failure(call(*PREPARE), 3)
        assert len(parts()) == 1
        process.send_signal(number)
        assert process.wait(PATIENCE) == {signal.SIGTERM: 75, signal.SIGKILL: -9}[number]
    assert len(parts()) == (number == signal.SIGKILL) and not (folder / "x.prepared.h5").exists()
    succeed(call(*PREPARE))
    assert parts() == []


def test_what_belongs_to_the_first_part_is_refused_by_name() -> None:
    """Every option of a calculation that is none of the second part, and what is no option."""
    prepared: Any = None  # nothing of it is looked at before
    for name in (*WHOLE_RUN, *BEFORE_PAIRS, "bassis"):
        with recorded_error(InputError):
            options_for(prepared, {"threads": 2, name: None})
