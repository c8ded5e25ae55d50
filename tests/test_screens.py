"""Output on a terminal of 80 columns: tables, long names and messages, marked failures and
imaginary modes, and energies to quote."""

from __future__ import annotations

import io
import lzma
from dataclasses import replace
from pathlib import Path

import pytest

import dfmp2
from dfmp2.cli import console
from dfmp2.output.document import (
    WIDEST,
    displayed_width,
    fitted_lines,
)
from dfmp2.output.reports.study import main_tables
from dfmp2.output.study import Column, is_study, read_study
from dfmp2.output.text import (
    brief_report,
    brief_study,
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


@pytest.mark.parametrize("count", [1, 2])
def test_a_map_with_many_columns_fits(count: int) -> None:
    """Long names of coordinates, large energies, columns of several basis sets."""
    molecule = dfmp2.Molecule(("H", "H"), [[0.0, 0, 0], [0, 0, 1.4]])
    stretched = dfmp2.scan(molecule, "sto-3g", ("bond", "1,2", [0.7, 0.8]))
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
