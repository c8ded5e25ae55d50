"""What is the same by every route of a calculation: its warnings, and whatever a function is given
that it has no right to change."""

from __future__ import annotations

import sys
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import fields, is_dataclass
from pathlib import Path
from typing import Any

import numpy as np
import pytest

import dfmp2
from dfmp2.errors import Interrupted
from dfmp2.execution.items import compute_item, read_input
from dfmp2.execution.manifest import read_manifest
from dfmp2.execution.pool import WorkerShare
from dfmp2.interop.qcschema import answer, read_request, run
from tests.awkward import BASIS, MOLECULES
from tests.conftest import MOLECULES as TEXTS
from tests.conftest import Heard
from tests.faults import Stopping

ROOMS = ("backends", "gradients", "integrals", "mp2", "scf")


# --- warnings -------------------------------------------------------------------------------------


@pytest.mark.usefixtures("nothing_left")
def test_a_warning_is_kept_by_every_route(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """Heard once, and once in the result: of frozen cores that programs count differently."""
    monkeypatch.setenv("DFMP2_CHECKPOINT_SECONDS", "0")
    path = tmp_path / "nah.xyz"
    path.write_text(TEXTS["nah"])
    given: dict[str, Any] = {"frozen_core": "auto", "threads": 1, "stability": "off"}
    heard: dict[str, Heard] = {}
    found: dict[str, Any] = {}

    def hears(name: str) -> dict[str, Any]:
        heard[name] = Heard()
        return {"basis": "sto-3g", "listener": heard[name], **given}

    found["run"] = whole = dfmp2.run(path, **hears("run"))
    (warning,) = whole.diagnostics.warnings
    assert "programs freeze different numbers of orbitals" in warning
    found["gradient"] = dfmp2.gradient(path, **hears("gradient")).result
    prepared = dfmp2.prepare(path, output=tmp_path / "p.h5", **hears("prepare"))
    assert prepared.diagnostics.warnings == (warning,)
    heard["energy"] = Heard()
    found["energy"] = dfmp2.energy(tmp_path / "p.h5", threads=1, listener=heard["energy"])
    predicted = found["energy"].predicted
    assert predicted.scf == prepared.predicted.scf > 0 < predicted.pair_energies
    kept = tmp_path / "r.h5"
    with Stopping(at_tile=1), pytest.raises(Interrupted):
        dfmp2.run(path, checkpoint=kept, **hears("stopped"))
    assert (tmp_path / "r.h5.checkpoint").exists()
    found["resumed"] = dfmp2.run(path, checkpoint=kept, **hears("resumed"))
    dfmp2.write(whole, kept)
    found["stored"] = dfmp2.read(kept)
    found["derived"] = dfmp2.derive(whole, os_scale=1.1, listener=Heard())
    frames = [dfmp2.Molecule.from_xyz(path)] * 2
    study = dfmp2.scan(frames, chained=False, output=tmp_path / "s.h5", **hears("scan"))
    for one in (study, dfmp2.read_study(tmp_path / "s.h5")):
        assert [warned.text for warned in one.all_warnings] == [warning]
        found |= one.runs
    (tmp_path / "m.toml").write_text(
        'basis = "sto-3g"\nfrozen_core = "auto"\nstability = "off"\noutput = "."\n'
        '[[item]]\nmolecule = "nah.xyz"\n'
    )
    (item,) = read_manifest(tmp_path / "m.toml").items
    row = compute_item(read_input(item), None, None, "", WorkerShare(1, 10**10))
    found["batch"] = dfmp2.read(str(row.output))
    request = read_request(
        {
            "molecule": {
                "symbols": ["Na", "H"],
                "geometry": whole.molecule.coordinates.ravel().tolist(),
            },
            "driver": "energy",
            "model": {"method": "mp2", "basis": "sto-3g"},
            "keywords": given,
        }
    )
    found["QCSchema"] = answered = run(request, listener=Heard())
    for name, result in found.items():
        assert result.diagnostics.warnings == (warning,), name
    assert answer(request, answered)["extras"]["dfmp2"]["diagnostics"]["warnings"] == [warning]
    for name, listener in heard.items():
        runs = 1 + (name == "scan")
        assert listener.warnings.count(warning) == runs, name


# --- arguments ------------------------------------------------------------------------------------


@contextmanager
def changes_noted(noted: set[str]) -> Iterator[None]:
    """Note each function of ROOMS that changes an array among its arguments."""
    package = Path(dfmp2.__file__).parent
    folders = tuple(f"{package / room}/" for room in ROOMS)
    before: dict[Any, list[tuple[str, Any, Any]]] = {}

    def arrays(value: Any, depth: int = 0) -> Iterator[Any]:
        if isinstance(value, np.ndarray):
            if value.dtype.kind in "fiu" and value.size < 10**5:
                yield value
        elif depth < 3 and isinstance(value, list | tuple):
            for item in value:
                yield from arrays(item, depth + 1)
        elif depth < 3 and is_dataclass(value):
            for field in fields(value):
                yield from arrays(getattr(value, field.name, None), depth + 1)

    def profile(frame: Any, event: str, _: Any) -> None:
        code = frame.f_code
        if not code.co_filename.startswith(folders):
            return
        if event == "call":
            names = code.co_varnames[: code.co_argcount + code.co_kwonlyargcount]
            before[frame] = [
                (name, one, one.copy())
                for name in names
                if name not in ("self", "out")
                for one in arrays(frame.f_locals[name])
            ]
        elif event == "return":
            for name, array, copy in before.pop(frame, ()):
                if not np.array_equal(array, copy, equal_nan=array.dtype.kind == "f"):
                    noted.add(f"{Path(code.co_filename).stem}.{code.co_qualname}: {name}")

    sys.setprofile(profile)
    try:
        yield
    finally:
        sys.setprofile(None)


WRITERS = {  # which say so
    "correlation._SpinPart.add: total",
    "correlation.correlation_part: amplitudes",
    "jk.accumulated: how",
    "jk.coulomb_exchange_of_b: how",
    "jk.fit_columns: b",
    "mean_field._subtract: total",
    "metric.InverseMetric._multiply: rows",
    "metric.InverseMetric.apply: rows",
    "metric.InverseMetric.unfit: rows",
    "metric._fitted: raw",
    "metric.factorise: metric",
    "pairs._place: matrices",
}


def test_functions_change_only_those_arguments_that_they_say() -> None:
    """In a gradient of an open shell."""
    noted = set[str]()
    options = {**BASIS, "threads": 1, "allow_poor_fit": True, "frozen_core": "auto"}
    with changes_noted(noted):
        dfmp2.gradient(MOLECULES["methylene"], **options, listener=Heard())
    assert noted == WRITERS
