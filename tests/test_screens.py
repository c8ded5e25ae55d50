"""Output on a terminal of 80 columns: tables, long names and messages, marked failures and
imaginary modes, and energies to quote."""

from __future__ import annotations

import io
import lzma
import math
import re
from dataclasses import replace
from pathlib import Path

import numpy as np
import pytest

import dfmp2
from dfmp2.cli import console
from dfmp2.output.document import (
    WIDEST,
    displayed_width,
    fitted_lines,
)
from dfmp2.output.reports.study import main_tables
from dfmp2.output.study import Column, Study, is_study, read_study
from dfmp2.output.text import (
    brief_report,
    brief_study,
    study_report,
)

RUNS = Path(__file__).parent / "data" / "stored_runs"
SCF_FAILED = (
    "the SCF did not converge in 100 cycles (DIIS, ADIIS, level shift, second order): the last "
    "energy change was -5.0e-04 Eh (needed 1.0e-10) and the orbital gradient 8.3e-03 Eh (needed "
    "1.0e-06). Without a converged reference there is no MP2 energy. Check geometry, charge and "
    "multiplicity; raise --scf-max-cycles; or start from other orbitals with --scf-from"
)


# --- lines of a terminal ---------------------------------------------------------------------------


def test_messages_and_last_lines_fit_a_terminal(
    monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    """Notes and warnings on stderr, the last line on stdout; the log gets each as one line."""
    log = io.StringIO()
    monkeypatch.setenv("NO_COLOR", "1")
    for stream in ("stdout", "stderr"):
        monkeypatch.setattr(f"sys.{stream}.isatty", lambda: True, raising=False)
    with console.Console(quiet=False, log=log) as shown:
        shown.warning(SCF_FAILED)
        shown.note(SCF_FAILED)
    console.conclude(SCF_FAILED)
    out, err = capsys.readouterr()
    for text in (out, err):
        assert max(map(len, text.splitlines())) <= 80
        assert SCF_FAILED.split()[-1] in text
    assert log.getvalue().splitlines() == [f"warning: {SCF_FAILED}", SCF_FAILED]


# --- studies --------------------------------------------------------------------------------------


@pytest.fixture(scope="module")
def stretched(tmp_path_factory: pytest.TempPathFactory) -> Study:
    molecule = dfmp2.Molecule(("H", "H"), np.array([[0.0, 0, 0], [0, 0, 1.4]]))
    coordinate = ("bond", "1,2", [0.7, 0.8, 0.9])
    file = tmp_path_factory.mktemp("scan") / "scan.h5"
    return dfmp2.scan(molecule, "sto-3g", coordinate, output=file)


def points(study: Study) -> list[str]:
    """The lines of the table of a scan on a terminal, heads and rows."""
    (table,) = (table for table in main_tables(study) if "E - lowest" in str(table.heads))
    return fitted_lines(table)


def test_a_point_that_failed_says_so_in_its_row(stretched: Study) -> None:
    table = dict(stretched.table)
    for name, column in table.items():
        if name not in ("bond_1_2", "exit_code"):
            table[name] = column._replace(values=(*column.values[:2], math.nan))
    table["exit_code"] = Column((0.0, 0.0, 4.0), "", "0, or the exit code of the error")
    lines = points(replace(stretched, table=table))
    assert lines[-1].endswith("failed with code 4") and lines[-1].split()[1] == "-"
    assert "failed" not in "".join(lines[:-1]) and max(map(len, lines)) <= WIDEST


@pytest.mark.parametrize("count", [1, 2])
def test_a_map_with_many_columns_fits(stretched: Study, count: int) -> None:
    """Long names of coordinates, large energies, columns of several basis sets."""
    table = {f"dihedral_11_12_13_{k}": Column((170.0, 175.0), "degree", "") for k in range(count)}
    energies = Column((-12345.1234567891, -12345.1234567892), "hartree", "")
    for name in stretched.table:
        if name not in ("bond_1_2", "exit_code", "relative_energy"):
            table[name] = energies
    table |= {f"total_energy_aug-cc-pv{letter}z": energies for letter in "dtq"}
    table["relative_energy"] = Column((0.0, 12345.6789), "kJ/mol", "")
    table["exit_code"] = Column((0.0, 0.0), "", "")
    settings = {**stretched.settings, "coordinates": list(table)[:count]}
    many = replace(stretched, table=table, settings=settings)
    (lines,) = [
        fitted_lines(table)
        for table in main_tables(many)
        if "E - lowest" in str(table.heads[count])
    ]
    assert max(map(len, lines)) <= WIDEST and len([x for x in lines if "12345.6789" in x]) == 1


ENDING = 2  # lines of the last sentence on a terminal


@pytest.mark.parametrize(
    "name",
    [
        "gradient",
        "interaction",
        "limit",
        "map",
        "optimization",
        "reaction",
        "saddle-thermochemistry",
        "scan",
        "thermochemistry",
    ],
)
def test_a_stored_study_fits_one_screen(name: str, tmp_path: Path) -> None:
    """With its warnings, which stay; the command that prints the rest stands last."""
    file = tmp_path / f"{name}.h5"
    file.write_bytes(lzma.decompress((RUNS / f"{name}.h5.xz").read_bytes()))
    if is_study(file):
        stored = read_study(file)
        text = brief_study(stored, "x.h5")
        warnings = [warned.text for warned in stored.all_warnings]
    else:
        result = dfmp2.read(file)
        text = brief_report(result, "x.h5")
        assert result.check is not None  # which has a line of its own
        warnings = list(result.diagnostics.warnings)
    lines = text.splitlines()
    assert max(map(displayed_width, lines)) <= WIDEST
    assert lines[-1].endswith("details: dfmp2 show x.h5")
    said = " ".join(text.split())
    for warning in warnings:
        assert f"warning: {warning}" in said or f": {warning}" in said
    of_warnings = sum(len(warning) // 60 + 2 for warning in warnings)
    assert len(lines) + ENDING - of_warnings <= 24 + (name == "gradient")


def test_warnings_of_one_kind_are_said_once(capsys: pytest.CaptureFixture[str]) -> None:
    log = io.StringIO()
    with console.Console(quiet=False, log=log, several=True) as shown:
        for text in ("gap 0.1 Eh", "gap 1.2e-03 Eh", "metric"):
            shown.warning(text)
    assert capsys.readouterr().err.splitlines() == ["warning: gap 0.1 Eh", "warning: metric"]
    assert len(log.getvalue().splitlines()) == 3


def test_an_imaginary_mode_is_named_in_its_row(stretched: Study) -> None:
    """The sign alone is easily missed; a minimum has no such column. Each number has its decimals."""
    table = {
        "mode": Column((1.0, 2.0), "", ""),
        "wavenumber": Column((-812.4, 1595.2), "cm^-1", ""),
        "ir_intensity": Column((1.0, 2.0), "km/mol", ""),
        "reduced_mass": Column((1.09284, 2.0), "u", ""),
        "force_constant": Column((-0.78046412, 1.5), "mdyn/angstrom", ""),
    }
    modes = replace(stretched, kind="frequencies", table=table)
    text = study_report(modes)
    assert re.search(r"-812\.4 +1\.00 +1\.0928 +-0\.7805 +imaginary$", text, re.MULTILINE)
    assert re.search(r" 1595\.2 +2\.00 +2\.0000 +1\.5000 +real$", text, re.MULTILINE)
    real = {**table, "wavenumber": Column((812.4, 1595.2), "cm^-1", "")}
    assert "real" not in study_report(replace(modes, table=real))
