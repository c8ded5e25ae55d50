"""Sessions of commands and Python, compared as a whole with what is recorded in
`tests/data/sessions` (form and recording: `tests/sessions.py`)."""

from __future__ import annotations

from pathlib import Path

import pytest

from tests.sessions import STORED, differences, is_slow


@pytest.mark.parametrize(
    "name",
    [
        pytest.param(path.stem, marks=[pytest.mark.slow] * is_slow(path))
        for path in sorted(STORED.glob("*.txt"))
    ],
)
def test_a_session_is_as_recorded(
    name: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.chdir(tmp_path)
    assert not differences((STORED / f"{name}.txt").read_text())
