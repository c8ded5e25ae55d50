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
from dfmp2.cli.batch import item_lines
from dfmp2.cli.geometry import GeometryFiles
from dfmp2.output.document import (
    WIDEST,
    Table,
    aligned,
    displayed_width,
    fitted_lines,
)
from dfmp2.output.reports.study import main_tables
from dfmp2.output.study import Column, Study, is_study, read_study
from dfmp2.output.text import (
    _quantity,
    brief_report,
    brief_study,
    study_report,
)
from tests.conftest import Terminal

RUNS = Path(__file__).parent / "data" / "stored_runs"
SCF_FAILED = (
    "the SCF did not converge in 100 cycles (DIIS, ADIIS, level shift, second order): the last "
    "energy change was -5.0e-04 Eh (needed 1.0e-10) and the orbital gradient 8.3e-03 Eh (needed "
    "1.0e-06). Without a converged reference there is no MP2 energy. Check geometry, charge and "
    "multiplicity; raise --scf-max-cycles; or start from other orbitals with --scf-from"
)


# --- text -----------------------------------------------------------------------------------------


@pytest.mark.parametrize(
    ("text", "width"),
    [
        ("water", 5),
        ("水", 2),
        ("e\u0301", 1),
        ("naïve", 5),
        ("水分子 H2O", 10),
        ("a\u200db", 2),
        ("\uff21\uff22", 4),
    ],
)
def test_width_is_that_on_a_terminal(text: str, width: int) -> None:
    assert displayed_width(text) == width


@pytest.mark.parametrize(
    ("name", "readable"),  # in JSON, with spaces, and on a screen
    [
        ("cp corrected interaction energy", "interaction energy, CP-corrected"),
        ("uncorrected interaction energy", "interaction energy, uncorrected"),
        ("counterpoise correction", "CP correction"),
        ("scf cp corrected interaction energy", "SCF, CP-corrected"),
        ("scf uncorrected interaction energy", "SCF, uncorrected"),
        ("correlation counterpoise correction", "correlation, CP correction"),
        ("scs mp2 correlation uncorrected interaction energy", "SCS-MP2 correlation, uncorrected"),
        ("mp2 correlation counterpoise correction", "MP2 correlation, CP correction"),
        ("reaction energy", "reaction energy"),
        ("sos mp2 correlation reaction energy", "SOS-MP2 correlation part"),
        ("cbs scf total energy", "SCF total energy at the limit"),
        ("cbs mp2 same spin correlation energy", "same spin at the limit"),
        ("mp2 opposite spin correlation reaction energy", "opposite spin part"),
        ("optimized total energy", "energy of the last geometry"),
        ("max gradient", "largest gradient"),
        ("lowest first", "first coordinate of the lowest point"),
        ("lowest second", "second coordinate of the lowest point"),
        ("lowest energy", "energy of the lowest point"),
        ("gibbs energy correction", "Gibbs energy correction"),
    ],
)
def test_names_of_numbers_are_readable(name: str, readable: str) -> None:
    assert _quantity(name) == readable


def test_columns_with_wide_characters_are_aligned() -> None:
    rows = [("水", "1.0"), ("water", "2.0"), ("e\u0301thanol", "3.0")]
    lines = aligned(Table("", ("name", "#E"), rows))
    assert {displayed_width(line) for line in lines} == {12}


@pytest.mark.parametrize(
    "name", ["h2o", "水分子の平衡構造における計算その一二三四五六七八九十の構造", "x" * 100]
)
@pytest.mark.parametrize(
    "remark",
    ["E(MP2) = -1234.1234567890 Eh, 12345.6 s", SCF_FAILED, "", "a: " + "word " * 100 + ": do it"],
)
def test_an_item_of_a_batch_fits_a_terminal(name: str, remark: str) -> None:
    lines = item_lines("failed (12)", name, remark).splitlines()
    assert max(map(displayed_width, lines)) <= WIDEST
    assert lines[0].startswith("failed (12)") and len(lines) <= 6
    assert (
        " ".join(lines).split()[-1:] == [f"failed (12) {name} {remark}".split()[-1]] or not remark
    )


def test_units_stand_below_names_where_a_table_is_too_wide() -> None:
    heads = ["basis", *(f"#energy of kind {k} / Eh" for k in range(5))]
    rows = [("cc-pvdz", *(f"-123.123456789{k}" for k in range(5)))]
    lines = fitted_lines(Table("", heads, rows))
    assert "energy of kind" in lines[0] and "/ Eh" not in lines[0]
    assert lines[2].split() == ["basis", *(["/", "Eh"] * 4)]
    assert max(map(len, lines)) <= WIDEST


# --- colour ---------------------------------------------------------------------------------------


@pytest.mark.parametrize(
    ("line", "red"),
    [
        ("0.9  failed with code 4", "failed with code 4"),
        ("failed (4)   h2o", "failed (4)"),
        ("2 complete, 1 failed, 0 pending", "1 failed"),
        ("2 complete, 0 failed, 0 pending", ""),
        ("failure: The certificate fails", "failure:"),
        ("minimum: 0 imaginary modes of 3", ""),
        ("transition state: 1 imaginary mode of 3", "imaginary mode"),
        ("10 imaginary modes", "imaginary modes"),
        ("NO STATIONARY POINT: the gradient", "NO STATIONARY POINT"),
        ("h2o is TOO COLD: rotations", "TOO COLD"),
        ("h2o is NO MINIMUM and no", "NO MINIMUM"),
        ("dfmp2 NOT FINISHED: not", "NOT FINISHED"),
        ("SCS-MP2 total  -76.2268", ""),
    ],
)
def test_what_is_red_on_a_terminal(line: str, red: str, monkeypatch: pytest.MonkeyPatch) -> None:
    """Nothing is red if the output is no terminal or NO_COLOR is set."""
    monkeypatch.setattr("sys.stdout.isatty", lambda: True, raising=False)
    monkeypatch.delenv("NO_COLOR", raising=False)
    monkeypatch.setenv("TERM", "xterm")
    shown = console.styled(line)
    if red:
        assert f"\x1b[31m{red}\x1b[0m" in shown and shown.count("\x1b[31m") == 1
    else:
        assert shown == line
    for name, value in (("NO_COLOR", "1"), ("TERM", "dumb")):
        with monkeypatch.context() as changed:
            changed.setenv(name, value)
            assert console.styled(line) == line


# --- lines of a terminal ---------------------------------------------------------------------------


ENDINGS = (  # a line, and where it is broken
    (
        "dfmp2 finished: E(MP2, total) = -76.2307247547 Eh, E(corr) = -0.2039736142 Eh -> h2o.dfmp2.h5",
        ["E(corr) = -0.2039736142 Eh", "    -> h2o.dfmp2.h5"],
    ),
    (
        "dfmp2 finished: E(B2PLYP-D3(BJ), total) = -93.3906123002 Eh, E(corr) = -0.1163371325 Eh "
        "-> hcn.b2plyp.h5",
        [" Eh,", "    E(corr) = -0.1163371325 Eh -> hcn.b2plyp.h5"],
    ),
    (
        "dfmp2 finished: stationary point after 2 steps, E = -56.3850392221 Eh; nh3.opt.xyz, "
        "nh3.opt.trajectory.xyz -> nh3.h5",
        ["E = -56.3850392221 Eh;", "    nh3.opt.xyz, nh3.opt.trajectory.xyz -> nh3.h5"],
    ),
    (
        "dfmp2 finished: co + h2o -> co2 + h2: dE = -117.3907, dH = -126.4923, dG = -108.4967 kJ/mol",
        ["dH = -126.4923,", "    dG = -108.4967 kJ/mol"],
    ),
    (
        "dfmp2 prepared: E(SCF) = -74.9631099110 Eh -> h2o.prepared.h5; go on: dfmp2 energy --from "
        "h2o.prepared.h5",
        ["h2o.prepared.h5; go on:", "    dfmp2 energy --from h2o.prepared.h5"],
    ),
    (
        "dfmp2: h2o.xyz: the SCF did not converge: start from other orbitals with dfmp2 run "
        "h2o.xyz --scf-from other.h5; the rest is unchanged",
        [
            "start from other orbitals with",
            "    dfmp2 run h2o.xyz --scf-from other.h5; the rest is unchanged",
        ],
    ),
    (
        "dfmp2: /a/folder/that/is/long" + 60 * "x" + " is a folder",
        ["dfmp2:", 60 * "x", "    is a folder"],
    ),
    ("dfmp2 finished -> a.h5", ["dfmp2 finished -> a.h5"]),
)


@pytest.mark.parametrize(("line", "ends"), ENDINGS)
def test_a_line_is_broken_between_words_on_a_terminal(line: str, ends: list[str]) -> None:
    """Never inside a path, a command or a value with its unit; other output stays one line for
    programs."""
    shown = console.fitted(line, Terminal()).split("\n")
    assert [part[-len(end) :] for part, end in zip(shown, ends, strict=True)] == ends
    for part in shown:
        assert displayed_width(part) <= 80 or " " not in part.removeprefix("dfmp2: ").strip()
    assert " ".join(part.strip() for part in shown) == line
    assert console.fitted(line, io.StringIO()) == line


def test_words_fill_the_width_of_a_terminal() -> None:
    for width, lines in ((7, ["aaa bbb", "    ccc"]), (6, ["aaa", "    bbb", "    ccc"])):
        assert console._broken("aaa bbb ccc", width) == lines


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


def test_headings_are_bold_and_warnings_yellow(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(console, "takes_colour", lambda stream: True)
    shown = console.styled("Times\n----------\nSCF  1.5\nwarning: slow\nno warning: here\n---\n")
    assert shown == (
        "\x1b[1mTimes\x1b[0m\n----------\nSCF  1.5\n\x1b[33mwarning:\x1b[0m slow\n"
        "no warning: here\n---\n"
    )


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


def test_a_scan_is_one_table_that_fits(stretched: Study) -> None:
    lines = points(stretched)
    assert max(map(len, lines)) <= WIDEST
    rows = [line.split() for line in lines[-3:]]
    assert [float(row[0]) for row in rows] == [0.7, 0.8, 0.9]
    totals = [run.total_energy for run in stretched.runs.values()]
    for row, total in zip(rows, totals, strict=True):
        assert f"{total:.10f}" in row
        relative = 2625.4996394799 * (total - min(totals))
        assert float(row[1]) == pytest.approx(relative, abs=6e-5)
    text = brief_study(stretched, "scan.h5")
    assert max(map(len, text.splitlines())) <= WIDEST
    for total in totals:
        assert text.count(f"{total:.10f}") == 1


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


@pytest.mark.parametrize(
    ("molecule", "given", "expected"),
    [
        ("water.xyz", (None, None), ("x.xyz", "x.trajectory.xyz")),
        ("x.xyz", (None, None), ("x.optimized.xyz", "x.trajectory.xyz")),
        ("-", (None, None), ("x.xyz", "x.trajectory.xyz")),
        ("x.xyz", ("last.xyz", None), ("last.xyz", "x.trajectory.xyz")),
        ("x.xyz", (None, "all.xyz"), ("x.optimized.xyz", "all.xyz")),
    ],
)
def test_an_optimisation_never_writes_over_its_molecule(
    molecule: str, given: tuple[str | None, str | None], expected: tuple[str, str]
) -> None:
    targets = GeometryFiles(*given).targets(Path("x.h5"), molecule)
    assert tuple(map(str, targets)) == expected


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
