"""Rules for messages: the first cause is named, advice names something that helps, also where
something is asked for that does not exist, and each front end speaks in its own terms."""

from __future__ import annotations

import copyreg
import errno
import os
import re
from collections.abc import Iterator
from dataclasses import replace
from pathlib import Path
from typing import Any

import numpy as np
import pytest

from dfmp2 import errors
from dfmp2.backends.cpu import CpuBackend
from dfmp2.errors import Dfmp2Error, InputError
from dfmp2.errors.wishes import way_out_of_option
from dfmp2.execution.items import compute_item, error_file, read_input
from dfmp2.execution.manifest import read_manifest
from dfmp2.execution.pool import WorkerShare
from dfmp2.host import files, scratch
from dfmp2.host.files import lock_holder, read_json
from dfmp2.integrals import spaces
from dfmp2.interop.qcschema import error_type
from dfmp2.molecule import mole
from dfmp2.molecule.elements import unit_doubt
from dfmp2.molecule.molecule import Molecule
from dfmp2.mp2.result import Check
from dfmp2.options import Options
from dfmp2.output.checkpoint import checkpoint_of
from dfmp2.planning.memory import VARIES, memory_plan
from dfmp2.planning.plan import workload_sizes
from dfmp2.progress import Collector, Listener
from dfmp2.studies import vibrations
from dfmp2.studies.keeper import Keeper
from dfmp2.studies.runs import _StudyRuns
from dfmp2.studies.task import Numbers, Step, Task
from dfmp2.units import BOHR_PER_ANGSTROM
from tests.conftest import MOLECULES


def geometry(text):
    """Symbols, coordinates as written, and ghosts of an xyz file's text."""
    rows = [line.split() for line in text.splitlines()[2:]]
    symbols = tuple(row[0].lstrip("@") for row in rows)
    return (
        symbols,
        np.array([[float(x) for x in row[1:]] for row in rows]),
        tuple("@" in row[0] for row in rows),
    )


INPUTS = sorted((Path(__file__).parent.parent / "inputs").glob("*.xyz"))


@pytest.mark.parametrize("file", INPUTS, ids=lambda file: file.stem)
def test_the_wrong_unit_is_noticed_either_way(file):
    symbols, points, ghost = geometry(file.read_text())
    assert unit_doubt(symbols, points, ghost) == ""
    assert "in bohr, give --units bohr" in unit_doubt(symbols, points / 0.529177, ghost)
    assert "in angstrom, leave out --units bohr" in unit_doubt(symbols, points * 0.529177, ghost)
    assert "is in pm, divide its coordinates by 100" in unit_doubt(symbols, points * 100, ghost)


def test_a_doubt_numbers_atoms_among_ghosts():
    points = np.array([[0.0, 0.0, 99.0], [0.0, 0.0, 0.0], [0.0, 0.0, 1.4]])
    said = unit_doubt(("O", "H", "H"), points, (True, False, False))
    assert said.startswith("atoms 2 H and 3 H are 1.400 angstrom apart")


NOBLE_GASES = {"He": 0.28, "Ne": 0.58, "Ar": 1.06, "Kr": 1.16, "Xe": 1.40, "Rn": 1.50}
FAMILIAR = {
    "atom": "1\n\nHe 0 0 0",
    "neon dimer": "2\n\nNe 0 0 0\nNe 0 0 3.1",
    # twice the sum of their radii apart, where any other two atoms would be in doubt
    **{
        f"two {symbol}": f"2\n\n{symbol} 0 0 0\n{symbol} 0 0 {4 * radius}"
        for symbol, radius in NOBLE_GASES.items()
    },
    "ions": "2\n\nNa 0 0 0\nCl 0 0 2.36",
    "ion beside water": "4\n\nCl 0 0 3.2\nO 0 0 0\nH 0 0 0.96\nH 0.93 0 -0.24",
    "atoms far apart": MOLECULES["h2-far"],
    "one bond stretched": "3\n\nO 0 0 0\nH 0 0 0.96\nH 0 0 -2.5",
    "ghosts": MOLECULES["crowd"],
    "N2": "2\n\nN 0 0 0\nN 0 0 1.098",
    "F2": "2\n\nF 0 0 0\nF 0 0 1.412",
    "H3+": "3\n\nH 0 0 0\nH 0 0 0.875\nH 0.758 0 0.4375",
    "Cs2": "2\n\nCs 0 0 0\nCs 0 0 4.65",
}


@pytest.mark.parametrize("name", FAMILIAR)
def test_geometries_that_are_meant_are_no_doubt(name):
    assert unit_doubt(*geometry(FAMILIAR[name])) == ""


# --- requests for what does not exist -------------------------------------------------------------


def test_no_option_of_ours_is_foreign() -> None:
    for name in Options.__slots__:
        assert not way_out_of_option(name)


# --- the words of each front end ------------------------------------------------------------------


def sharing(error: InputError) -> InputError:
    """A copy as Dask's way of pickling exceptions makes it."""
    again = InputError.__new__(InputError)
    again.__dict__ = error.__dict__
    return again


def test_an_error_stays_as_it_is_where_copies_share_attributes(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    monkeypatch.setitem(copyreg.dispatch_table, InputError, lambda one: (sharing, (one,)))
    error = InputError("x", file="f.xyz")
    assert [str(error.prefixed(who)) for who in "ab"] == ["a: f.xyz: x", "b: f.xyz: x"]


def message_of(call: Any) -> str:
    with pytest.raises(Dfmp2Error) as caught:
        call()
    return str(caught.value)


# --- the end of every kind of error ---------------------------------------------------------------


# exit code, QCSchema's name, whether a tolerant study goes on, state of an item of a batch
ENDS: dict[str, tuple[int, str, bool, str]] = {
    "InputError": (3, "input_error", True, "failed"),
    "ForeignCheckpoint": (3, "input_error", False, "failed"),
    "ResultFileError": (3, "unknown_error", True, "failed"),
    "ResultExists": (3, "unknown_error", True, "failed"),
    "ConvergenceError": (4, "convergence_error", True, "failed"),
    "NumericalError": (5, "convergence_error", True, "failed"),
    "BackendError": (6, "resource_error", True, "failed"),
    "BackendUnavailable": (6, "resource_error", True, "failed"),
    "UnsupportedByBackend": (6, "resource_error", True, "failed"),
    "KernelError": (6, "resource_error", True, "failed"),
    "KernelFailed": (1, "unknown_error", True, "failed"),
    "ResourceError": (7, "resource_error", True, "failed"),
    "DiskFull": (7, "resource_error", False, "pending, disk full"),
    "DeviceFault": (7, "resource_error", False, "failed, no device"),
    "ComparisonFailed": (8, "unknown_error", True, "failed"),
    "SomeFailed": (9, "unknown_error", True, "failed"),
    "Interrupted": (75, "unknown_error", True, "pending"),
}


@pytest.mark.usefixtures("nothing_left")
def test_every_kind_of_error_has_its_end_wherever_it_is_raised(folder: Path) -> None:
    """On the command line, for QCSchema, in a study and in a batch, which is ready to go on."""
    kinds = {name: kind for name, kind in vars(errors).items() if is_error(kind)}
    assert kinds.keys() == ENDS.keys()
    hydrogen = Molecule(("H", "H"), [[0, 0, 0], [0, 0, 1.4]])
    step = Step(name="a", who="point a", molecule=hydrogen, options=Options(basis="sto-3g"))
    task = Task(
        "scan", "H2", hydrogen, step.options, [step], lambda *_: Numbers({}, []), tolerant=True
    )
    (folder / "m.toml").write_text(
        'basis = "sto-3g"\noutput = "out"\ntask = "optimize"\n[[item]]\nmolecule = "h2.xyz"\n'
    )
    (item,) = read_manifest(folder / "m.toml").items
    (folder / "out").mkdir()

    def of_batch(error: BaseException) -> tuple[str, int | None]:
        def compute(*_: Any, **__: Any) -> Any:
            raise error

        row = compute_item(read_input(item), None, None, "", WorkerShare(1, 10**9), compute)
        assert lock_holder(item.target) is None and not checkpoint_of(item.target).exists()
        stored = read_json(error_file(item.target))
        error_file(item.target).unlink(missing_ok=True)
        assert (row.status == "failed") == bool(stored) and stored.get("code") == row.exit_code
        more = ", disk full" * (row.blocked is not None) + ", no device" * row.device_fault
        return row.status + more, row.exit_code

    for name, (code, of_schema, goes_on, state) in ENDS.items():
        error = kinds[name]("made up")
        assert (error.exit_code, error_type(error)) == (code, of_schema), name
        runs = _StudyRuns(task, Keeper(), Collector(Listener()), "")
        if goes_on:
            runs._fail(step, error)
            assert runs.failures == {"a": error} and len(runs.listener.warnings) == 1, name
        else:
            with pytest.raises(kinds[name], match="point a: made up"):
                runs._fail(step, error)
        assert of_batch(error) == (state, code if state.startswith("failed") else None), name
    for number, state in ((errno.ENOSPC, "pending, disk full"), (errno.EIO, "failed")):
        assert of_batch(OSError(number, "made up"))[0] == state
    assert of_batch(MemoryError()) == ("failed", 7)
    assert error_type(MemoryError()) == "resource_error"


# What a message compares, of which the first is beyond the second.
COMPARED = (
    (r"gap is ([\d.]+) Eh, below ([\d.]+) Eh", "less"),
    (r"gap is only ([\d.]+) Eh \(below ([\d.]+)\)", "less"),
    (r"has ([\d.]+ \w+) free and at least ([\d.]+ \w+) are needed", "less"),
    (r"([\d.]+ \w+) are needed, of which .* and ([\d.]+ \w+) are free", "more"),
    (r"space left.*: ([\d.]+ \w+) are needed and ([\d.]+ \w+) are free", "more"),
    (r"memory: ([\d.]+ \w+) are required .* and ([\d.]+ \w+) may be used", "more"),
    (r"is ([\de.+-]+) Eh/bohr, more than ([\de.+-]+):", "more"),
    (r"deviate by ([\de.+-]+) .* more than ([\de.+-]+):", "more"),
    (r"differs by ([\de.+-]+) Eh, more than the allowed ([\de.+-]+) Eh", "more"),
    (r"charge 1 is ([\d.]+) angstrom .* less than ([\d.]+):", "less"),
    (r"1 H and 2 H are ([\d.]+) angstrom apart, less than ([\d.]+):", "less"),
)


def just_beyond(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Iterator[str]:
    """Messages on numbers that are beyond a limit in their fifth digit only, in the order of
    COMPARED."""
    below, above = 1 - 1e-5, 1 + 1e-5
    hydrogen = Molecule(("H", "H"), np.array([[0.0, 0.0, 0.0], [0.0, 0.0, 1.4]]))
    yield message_of(
        lambda: spaces.guard_gap(below * spaces.REFUSED_GAP, 1.0, allow_small_gap=False)
    )
    yield str(spaces.guard_gap(below * spaces.SMALL_GAP, 1.0, allow_small_gap=False))
    free = 123_456_789
    monkeypatch.setattr(files, "free_disk", lambda _: free)
    monkeypatch.setattr(scratch, "free_disk", lambda _: free)
    yield message_of(lambda: files.require_place(tmp_path / "x", expected_bytes=free + 1))
    yield message_of(lambda: scratch.require_space(tmp_path, free - scratch.RESERVE + 1))
    full = OSError(errno.ENOSPC, os.strerror(errno.ENOSPC))
    yield str(files.write_failure(tmp_path / "x", full, free + 1))
    work = workload_sizes(hydrogen, Options(basis="sto-3g"), Listener())
    plan = memory_plan(work, CpuBackend(1).limits, 1, program=free, budget=0)
    yield message_of(lambda: replace(plan, budget=plan.least - VARIES - 1).require())
    largest = above * vibrations.LARGEST_GRADIENT
    monkeypatch.setattr(vibrations, "largest_gradient", lambda _: largest)
    yield message_of(lambda: vibrations.require_stationary(None))
    yield message_of(
        lambda: mole._require_orthonormal(
            np.eye(2), np.eye(2)[None] * (1 + above * mole.MOST_DEVIATION / 2)
        )
    )
    check = Check("PySCF", -1.0, 0.0, 0.0, above * 1e-8, 0.0, 0.0, allowed=1e-8)
    yield message_of(lambda: check.require())
    angstrom = below * BOHR_PER_ANGSTROM
    yield message_of(lambda: hydrogen.in_field(np.array([[0.0, 0.1 * angstrom, 0.0, 1.0]])))
    yield message_of(lambda: Molecule(("H", "H"), np.array([[0.0, 0, 0], [0, 0, 0.2 * angstrom]])))


def test_numbers_that_a_message_compares_differ_in_it(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """However close a number is to its limit."""
    for (pattern, order), text in zip(COMPARED, just_beyond(tmp_path, monkeypatch), strict=True):
        match = re.search(pattern, text)
        assert match is not None, (pattern, text)
        first, second = (read_number(part) for part in match.groups())
        assert first < second if order == "less" else first > second, text


def read_number(text: str) -> float:
    """A number, or bytes with their unit."""
    number, _, unit = text.partition(" ")
    return float(number) * {"": 1, "B": 1, "kB": 1e3, "MB": 1e6, "GB": 1e9}[unit]


def is_error(value: object) -> bool:
    return isinstance(value, type) and issubclass(value, Dfmp2Error) and value is not Dfmp2Error
