"""`dfmp2 report` on several results, a study or a batch: what belongs together is found, nonsense only listed."""

from __future__ import annotations

import dataclasses
import json
import math
import shutil
from pathlib import Path
from xml.etree import ElementTree

import h5py
import numpy as np
import pytest

from dfmp2.molecule.basis import BasisSet, ElementBasis
from dfmp2.molecule.molecule import Molecule
from dfmp2.mp2.result import PairEnergies
from dfmp2.output import hdf5
from dfmp2.output.html.svg import scan_curve
from dfmp2.output.series import find_coordinate, find_groups
from dfmp2.output.study import Column, Study, StudyWriter
from tests.conftest import listing
from tests.report_page import entries, open_shell, page_of, parse

BOHR = 0.52917721092
NASTY = "</td><script>alert(1)</script>"


@pytest.fixture(scope="module")
def result(water):
    return hdf5.read(water.path)


def with_basis(result, name, exponent, factor, functions=10):
    """The same molecule in a basis of that name, with its pair energies scaled."""
    element = ElementBasis("O", name, "test", ((0, (exponent, 1.0)),))
    return dataclasses.replace(
        result,
        orbital_basis=BasisSet("orbital", name, {"O": element}),
        mp2_fitting=BasisSet(
            "ri", "default", {"O": dataclasses.replace(element, name=f"{name}-ri")}
        ),
        pairs=PairEnergies(
            result.pairs.opposite_spin * factor, tuple(m * factor for m in result.pairs.same_spin)
        ),
        sizes=dataclasses.replace(result.sizes, nao=functions),
    )


def moved(result, coordinates):
    """The same calculation at another geometry, angstrom."""
    molecule = dataclasses.replace(result.molecule, coordinates=np.array(coordinates) / BOHR)
    return dataclasses.replace(result, molecule=molecule)


def relation(*results):
    """Names of the entries of each lane, series and scan, and of those that are alone."""
    *groups, alone, _ = find_groups(entries(*results))
    return (
        *(tuple(tuple(e.name for e in group) for group in found) for found in groups),
        tuple(e.name for e in alone),
    )


def test_the_same_calculation_is_compared_with_the_most_exact_one(result):
    mixed = dataclasses.replace(
        result,
        pairs=PairEnergies(result.pairs.opposite_spin + 1e-9, result.pairs.same_spin),
        precision="mixed",
    )
    exact = dataclasses.replace(result, precision="fp64", certificate=None)
    assert relation(mixed, exact) == ((("2.h5", "1.h5"),), (), (), ())
    elements = parse(page_of(mixed, exact))
    shown = ["0", "0", "+2.50e-08", "+2.50e-08", "1.0e-09"]  # 25 pairs of 1e-9 Eh each
    assert elements.row("1.h5", f"{result.backend}, mixed")[3:8] == shown
    assert "the same calculation 2 times" in elements.text


def test_a_basis_series_is_extrapolated_from_its_two_largest_members(result):
    e = result.mp2_correlation_energy
    series = [
        with_basis(result, f"cc-pv{x}z", k, 1 - 0.9 / k**3, 10 * k)
        for k, x in ((4, "q"), (2, "d"), (3, "t"))
    ]
    assert relation(*series) == ((), (("2.h5", "3.h5", "1.h5"),), (), ())
    elements = parse(page_of(*series))
    # E(X) = E (1 - 0.9 X^-3) has the limit E exactly.
    assert elements.row("limit from 3, 4")[4] == f"{e:.10f}"
    assert elements.row("limit from 3, 4")[5] == f"{result.scf_total_energy + e:.10f}"


@pytest.mark.parametrize(
    "names",
    [
        ("cc-pvdz", "cc-pvqz"),
        ("cc-pvdz", "aug-cc-pvtz"),
        ("def2-svp", "def2-tzvp"),
        ("cc-pvdz", "sto-3g"),
    ],
)
def test_no_limit_from_sets_that_do_not_belong_together(result, names):
    elements = parse(
        page_of(*(with_basis(result, name, k, 1.0, k) for k, name in enumerate(names, start=1)))
    )
    assert "No basis-set limit is given" in elements.text and "limit from" not in elements.text


def test_a_scan_is_ordered_by_the_coordinate_that_changes(result):
    water = result.molecule.coordinates * BOHR
    angles = []
    for degrees in (120.0, 100.0, 110.0):
        half = np.radians(degrees / 2)
        h = np.array([[0, np.sin(half), np.cos(half)], [0, -np.sin(half), np.cos(half)]]) * 0.96
        angles.append(moved(result, np.vstack([np.zeros(3), h])))
    assert relation(*angles) == ((), (), (("1.h5", "2.h5", "3.h5"),), ())
    page = page_of(*angles)
    assert page.index("<figure>", page.index(">Scan</h2>")) < page.index(
        "<summary>Scan of 3 geometries</summary>"
    )
    elements = parse(page)
    assert (
        elements.row("lowest at angle H2-O1-H3 / degree")[1] == "100.00"
    )  # all have the same energy
    found = [row[0] for row in elements.rows if len(row) == 7 and row[-1].endswith(".h5")]
    assert found == ["100.00", "110.00", "120.00"]
    assert "angle H2-O1-H3 / degree" in elements.text
    # Not the same atoms: no scan, whatever the method.
    assert relation(angles[0], moved(result, water), with_basis(angles[1], "other", 1, 1.0))[2] == (
        ("1.h5", "2.h5"),
    )


def test_coordinates_of_scans():
    def peroxide(degrees):
        t = np.radians(degrees)
        return [0, 0.95, 0], [0, 0, 0], [0, 0, 1.45], [0.95 * np.sin(t), 0.95 * np.cos(t), 1.45]

    cases = {  # symbols, geometry at a value, values of the scan
        "distance H1-H2": (("H", "H"), lambda r: ([0, 0, 0], [0, 0, r]), (0.7, 3.5)),
        "distance H1-H3": (
            ("H",) * 4,
            lambda r: ([0, 0, 0], [0, 0, 0.74], [r, 0, 0], [r, 0, 0.74]),
            (3.0, 2.5, 4.0),
        ),
        "torsion H1-O2-O3-H4": (
            ("H", "O", "O", "H"),
            peroxide,
            (150.0, 179.0, 200.0),
        ),  # no jump to -179
    }
    for name, (symbols, frame, values) in cases.items():
        found = find_coordinate([Molecule(symbols, np.array(frame(x)) / BOHR) for x in values])
        assert found.name == name and np.ptp(found.values) == pytest.approx(np.ptp(values))
    shifted = [[[x, 0, 0], [x, 0, 0.7]] for x in (0.0, 1.0)]  # nothing inside the molecule changes
    back = [
        [[0, 0, 0], [0, 0, r]] for r in (0.7, 0.8, 0.7)
    ]  # two geometries at one value are no curve
    for frames in (shifted, back):
        assert (
            find_coordinate([Molecule(("H", "H"), np.array(frame) / BOHR) for frame in frames])
            is None
        )


def test_results_that_have_nothing_in_common_are_listed_with_a_warning(result, radical):
    other = hdf5.read(radical.path)
    assert relation(result, other) == ((), (), (), ("1.h5", "2.h5"))
    elements = parse(page_of(result, other))
    assert (
        "These results form no series. They differ in atoms, charge or multiplicity"
        in elements.text
    )
    assert "must not be subtracted" in elements.text
    frozen = dataclasses.replace(
        result, sizes=dataclasses.replace(result.sizes, frozen_core=1, nocc=(4, 4))
    )
    assert relation(result, frozen)[3] == ("1.h5", "2.h5")
    assert "differ in frozen core" in parse(page_of(result, frozen)).text


def test_many_results_are_compared_but_not_all_shown_in_full(result):
    many = [
        moved(result, np.array([[0, 0, 0], [0, 0.76, h], [0, -0.76, h]]))
        for h in np.linspace(0.4, 0.8, 30)
    ]
    page = page_of(*many)
    elements = parse(page)
    assert "The first 8 of 30 results are shown in full" in elements.text
    assert len(page.encode()) < 1_000_000
    ids = elements.values("id")
    assert len(ids) == len(set(ids))
    assert {link[1:] for link in elements.values("href") if link != "data:,"} <= set(ids)


@pytest.mark.slow
def test_a_page_of_a_hundred_results_stays_below_two_megabytes(result):
    worst = open_shell(result, 100)  # three maps of the finest mesh each
    shape = np.array([[0, 0, 0], [0, 0.76, 0.5], [0, -0.76, 0.5]])
    assert (
        len(page_of(*(moved(worst, shape * (1 + 0.001 * k)) for k in range(100))).encode())
        < 2_000_000
    )


# --- a study ------------------------------------------------------------------------------------------


@pytest.fixture
def study(folder, water, radical):
    """A study of two runs, with hostile texts."""
    runs = {"complex": hdf5.read(water.path), "fragment": hdf5.read(radical.path)}
    found = Study(
        kind="interaction",
        title=NASTY,
        settings={"basis": NASTY},
        notes=(NASTY, "counterpoise"),
        values={
            "cp_corrected_interaction_energy": hdf5.Item(-0.0224119246, "hartree", NASTY),
            "cp_corrected_interaction_energy_kcal_per_mol": hdf5.Item(
                -14.06369499, "kcal/mol", "the same"
            ),
            "distance": hdf5.Item(1.9, "angstrom", "between them"),
        },
        table={
            "run": Column(tuple(runs), "", ""),
            "energy": Column((-1.25, math.nan), "hartree", ""),
        },
        runs=runs,
        complete=False,
        version="1",
        command=NASTY,
        created="2026",
    )
    writer = StudyWriter(folder / "study.h5", overwrite=False)
    for name, run in runs.items():
        writer.add(name, run)
    writer.write(found)
    return folder / "study.h5"


def test_a_study_is_shown_with_its_runs(call, study, water):
    assert call("report", "study.h5", "-o", "r.html").code == 0
    elements = parse(Path("r.html").read_text(encoding="utf-8"))
    assert elements.row("cp corrected interaction energy")[1:] == [
        "-0.0224119246",
        "Eh",
        "-14.0637",
        NASTY,
    ]
    assert next(row for row in elements.rows if row) == [
        *("interaction energy, counterpoise-corrected / kcal/mol", "-14.0637", "the same")
    ]
    assert elements.row("status")[1] == "incomplete"
    assert elements.row("distance") == ["distance", "1.9", "angstrom", "", "between them"]
    assert elements.row("complex", "-1.2500000000") and elements.row("fragment", "-")
    assert elements.row("complex", "H2O")[6] == f"{water.json['mp2_total_energy']:.10f}"
    assert "INCOMPLETE" in elements.text and elements.tags.count("script") == 1
    assert "must not be subtracted" not in elements.text  # which is what the study did, and rightly


def test_the_curve_of_a_scan_is_a_file_of_its_own_whatever_its_title():
    columns = {
        "bond": Column((1.0, 2.0, math.nan), NASTY, ""),
        "relative_energy": Column((3.0, 0.0, math.nan), "", ""),
    }
    study = Study("scan", NASTY, {}, (), {}, columns, {}, True, version="1", command="", created="")
    svg = scan_curve(study)
    root = ElementTree.fromstring(svg)
    drawn = {"svg", "style", "g", "rect", "text", "line", "polyline", "circle", "title"}
    assert {item.tag.partition("}")[2] for item in root.iter()} <= drawn
    assert svg.count("<title>") == 2 and NASTY in "".join(root.itertext())


def test_files_of_one_name_are_told_apart_by_their_folders(call, folder, water):
    for name in ("a", "b"):
        (folder / name).mkdir()
        shutil.copy(water.path, folder / name / "r.h5")
    assert (
        call(
            "report",
            *(str((folder / name / "r.h5").absolute()) for name in ("a", "b")),
            "-o",
            "r.html",
        ).code
        == 0
    )
    elements = parse(Path("r.html").read_text(encoding="utf-8"))
    assert (
        elements.row("a/r.h5", "H2O")
        and elements.row("b/r.h5", "H2O")
        and str(folder) not in elements.text
    )


def test_a_study_is_shown_alone_and_whole(call, study, water):
    done = call("report", "study.h5", str(water.path), "-o", "r.html")
    assert done.code == 3 and "name it alone" in done.message
    with h5py.File(study, "a") as handle:
        handle["study/values/cp_corrected_interaction_energy"][()] = -1.0
    done = call("report", "study.h5", "-o", "r.html")
    assert done.code == 3 and "stored hash" in done.message and not Path("r.html").exists()


# --- a batch ------------------------------------------------------------------------------------------


@pytest.fixture
def batch(folder, water, radical):
    """The output folder of a batch with every kind of item, hostile ones among them."""
    output = folder / "out"
    output.mkdir()
    shutil.copy(water.path, output / "h2o.h5")
    shutil.copy(radical.path, output / "nh2.h5")
    (output / "cut.h5").write_bytes(water.path.read_bytes()[:20_000])
    (output / "link.h5").symlink_to(water.path)
    failure = {
        "code": 4,
        "message": "the SCF did not converge: try <b>more</b>",
        "traceback": "Traceback\n  <i>x</i>",
    }
    (output / "cr2.error.json").write_text(json.dumps(failure))
    (output / "odd.error.json").write_text("no json")
    (output / "h2o.error.json").write_text(json.dumps({"code": 75, "message": "old"}))
    items = [
        {"name": "later", "status": "pending"},
        {"name": "lost", "status": "complete"},
        {"name": "../../etc/passwd", "status": "pending", "output": "/etc/passwd"},
        {"name": "<script>alert(1)</script>", "status": "running", "seconds": 2.5},
        {"name": "cr2", "status": "failed", "seconds": 10**400},
        {"name": 7},
        "nonsense",
    ]
    (output / "batch.json").write_text(json.dumps({"items": items}))
    return output


@pytest.mark.parametrize("source", ["out", "out/batch.json"])
def test_every_item_has_its_row(call, batch, water, source):
    before = listing(batch)
    done = call("report", source, "-o", "r.html", "--title", "Night <run>")
    assert done.code == 0, done.err
    assert listing(batch) == before
    elements = parse(Path("r.html").read_text(encoding="utf-8"))
    good = elements.row("h2o", "complete")
    keys = ("scf_total_energy", "mp2_correlation_energy", "mp2_total_energy")
    assert good[4:7] == [f"{water.json[key]:.10f}" for key in keys]
    states = {row[0]: row[1] for row in elements.rows if len(row) == 10}
    assert states == {
        "item": "state (exit code)",
        "h2o": "complete",
        "nh2": "complete",
        "cut": "damaged (3)",
        "cr2": "failed (4)",
        "odd": "failed",
        "later": "pending",
        "lost": "damaged",
        "../../etc/passwd": "pending",
        "<script>alert(1)</script>": "running",
    }
    assert (
        "the SCF did not converge: try <b>more</b>" in elements.text and "<i>x</i>" in elements.text
    )
    assert "SCF did not converge" in elements.row("4")[1]
    assert "h2o has a result and an error file: the result counts" in elements.text
    assert "computed with different methods" in elements.text
    assert "frozen-core: none (1, e.g. h2o), 1 (1," in elements.text
    assert "not followed, because they are links: link.h5" in elements.text
    assert "Night <run>" in elements.text and elements.tags.count("script") == 1
    links = [value for value in elements.values("href") if value.startswith("#failure")]
    assert set(links) == {"#failures", "#failure-1", "#failure-2", "#failure-3", "#failure-4"}
    assert all(link[1:] in elements.values("id") for link in links)


def test_what_follows_from_the_molecule_is_no_other_method(call, folder):
    """RHF or UHF and the number of core orbitals differ; an SCF or a basis that differs is said, with an example."""
    (folder / "out").mkdir()
    for name in ("nh2", "nah", "h2"):
        options = ("--basis", "sto-3g", "--frozen-core", "auto", "--output", f"out/{name}.h5")
        assert call("run", f"{name}.xyz", *options).code == 0

    def page():
        done = call("report", "out", "-o", "r.html", "--overwrite")
        assert done.code == 0, done.err
        return parse(Path("r.html").read_text(encoding="utf-8")).text

    assert "All complete items: basis sto-3g, reference auto, relativity none, scf df" in page()
    asked = ["method", "DF-MP2/sto-3g", "reference auto, frozen core auto"]
    assert parse(Path("r.html").read_text(encoding="utf-8")).row("method") == asked
    assert (
        call("run", "o2.xyz", *options[:4], "--scf", "conventional", "--output", "out/o2.h5").code
        == 0
    )
    assert (
        "different methods, so their energies cannot be compared: scf: df (3, e.g. h2), conventional (1"
        in page()
    )


def test_an_index_that_is_nonsense_is_said_and_not_used(call, batch):
    for content in ("[" * 100_000, '{"items": 3}', None):
        (batch / "batch.json").unlink() if content is None else (batch / "batch.json").write_text(
            content
        )
        done = call("report", "out", "-o", "r.html", "--overwrite")
        assert done.code == 0, done.err
        elements = parse(Path("r.html").read_text(encoding="utf-8"))
        assert ("holds no list of items" in elements.text) == (content is not None)
        assert elements.row("cr2", "failed (4)") and "later" not in elements.text
