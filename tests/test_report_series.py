"""Several results on one page: what belongs together is found, compared and extrapolated; nonsense is only listed."""

from __future__ import annotations

import dataclasses

import numpy as np
import pytest

from dfmp2.basis import BasisSet, ElementBasis
from dfmp2.extrapolation import correlation_formula
from dfmp2.molecule import Molecule
from dfmp2.record import PairEnergies
from dfmp2.report.cardinal import Cardinal, cardinal
from dfmp2.report.coordinate import find_coordinate
from dfmp2.report.kinship import kinship
from tests.report_page import entry, page_of, parse, stored

BOHR = 0.52917721092


@pytest.fixture(scope="module")
def result(water):
    return stored(water.path)


def with_basis(result, name, exponent, factor, functions=10):
    """The same molecule in a basis of that name, with its pair energies scaled."""
    element = ElementBasis("O", name, "test", ((0, (exponent, 1.0)),))
    return dataclasses.replace(
        result,
        orbital_basis=BasisSet("orbital", name, {"O": element}),
        mp2_fitting=BasisSet("ri", "default", {"O": dataclasses.replace(element, name=f"{name}-ri")}),
        pairs=PairEnergies(result.pairs.opposite_spin * factor, tuple(m * factor for m in result.pairs.same_spin)),
        sizes=dataclasses.replace(result.sizes, nao=functions),
    )


def moved(result, coordinates):
    """The same calculation at another geometry, angstrom."""
    molecule = dataclasses.replace(result.molecule, coordinates=np.array(coordinates) / BOHR)
    return dataclasses.replace(result, molecule=molecule)


def relation(*results):
    kin = kinship([entry(r, f"{k}.h5") for k, r in enumerate(results, start=1)])
    names = [tuple(tuple(e.name for e in group) for group in groups) for groups in (kin.lanes, kin.series, kin.scans)]
    return (*names, tuple(e.name for e in kin.alone))


def test_the_same_calculation_is_compared_with_the_most_exact_one(result):
    mixed = dataclasses.replace(
        result, pairs=PairEnergies(result.pairs.opposite_spin + 1e-9, result.pairs.same_spin), precision="mixed"
    )
    exact = dataclasses.replace(result, precision="fp64", certificate=None)
    assert relation(mixed, exact) == ((("2.h5", "1.h5"),), (), (), ())
    elements = parse(page_of(mixed, exact))
    # 25 pairs of 1e-9 Eh each
    assert elements.row("1.h5", f"{result.backend}, mixed")[3:8] == [
        "+0.00e+00",
        "+0.00e+00",
        "+2.50e-08",
        "+2.50e-08",
        "1.0e-09",
    ]
    assert "the same calculation 2 times" in elements.text


def test_a_basis_series_is_extrapolated_from_its_two_largest_members(result):
    e = result.mp2_correlation_energy
    series = [with_basis(result, f"cc-pv{x}z", k, 1 - 0.9 / k**3, 10 * k) for k, x in ((4, "q"), (2, "d"), (3, "t"))]
    assert relation(*series) == ((), (("2.h5", "3.h5", "1.h5"),), (), ())
    elements = parse(page_of(*series))
    # E(X) = E (1 - 0.9 X^-3) has the limit E exactly.
    assert elements.row("limit from 3, 4")[4] == f"{e:.10f}"
    assert elements.row("limit from 3, 4")[5] == f"{result.scf_total_energy + e:.10f}"


def test_two_point_formula_against_a_published_pair():
    # Water, frozen-core MP2, cc-pVTZ and cc-pVQZ: -0.26145, -0.28282 give -0.29841 (64 * q - 27 * t) / 37.
    helgaker = correlation_formula("helgaker", "cc-pvnz", 3, 4)
    assert helgaker.limit(-0.26145, -0.28282, 3, 4) == pytest.approx((64 * -0.28282 + 27 * 0.26145) / 37, abs=1e-15)


@pytest.mark.parametrize(
    ("name", "found"),
    [
        ("cc-pvdz", Cardinal("cc-pvXz", 2)),
        ("aug-cc-pVTZ", Cardinal("aug-cc-pvXz", 3)),
        ("cc-pwcvqz", Cardinal("cc-pwcvXz", 4)),
        ("cc-pv(5+d)z", Cardinal("cc-pv(X+d)z", 5)),
        ("cc-pvtz-f12", Cardinal("cc-pvXz-f12", 3)),
        ("def2-tzvp", None),
        ("6-31g*", None),
        ("cc-pvtz-ri2 ", Cardinal("cc-pvXz-ri2", 3)),
    ],
)
def test_cardinal_numbers(name, found):
    assert cardinal(name) == found


@pytest.mark.parametrize(
    "names", [("cc-pvdz", "cc-pvqz"), ("cc-pvdz", "aug-cc-pvtz"), ("def2-svp", "def2-tzvp"), ("cc-pvdz", "sto-3g")]
)
def test_no_limit_from_sets_that_do_not_belong_together(result, names):
    elements = parse(page_of(*(with_basis(result, name, k, 1.0, k) for k, name in enumerate(names, start=1))))
    assert "No basis-set limit is given" in elements.text and "limit from" not in elements.text


def test_a_scan_is_ordered_by_the_coordinate_that_changes(result):
    water = result.molecule.coordinates * BOHR
    angles = []
    for degrees in (120.0, 100.0, 110.0):
        half = np.radians(degrees / 2)
        h = np.array([[0, np.sin(half), np.cos(half)], [0, -np.sin(half), np.cos(half)]]) * 0.96
        angles.append(moved(result, np.vstack([np.zeros(3), h])))
    assert relation(*angles) == ((), (), (("1.h5", "2.h5", "3.h5"),), ())
    elements = parse(page_of(*angles))
    assert [row[0] for row in elements.rows if len(row) == 7 and row[-1].endswith(".h5")] == [
        "100.00",
        "110.00",
        "120.00",
    ]
    assert "angle H2-O1-H3 / degree" in elements.text
    # Not the same atoms: no scan, whatever the method.
    assert relation(angles[0], moved(result, water), with_basis(angles[1], "other", 1, 1.0))[2] == (("1.h5", "2.h5"),)


def coordinate(symbols, *frames):
    return find_coordinate([Molecule(symbols, np.array(frame) / BOHR) for frame in frames])


def test_coordinates_of_scans():
    stretched = coordinate(("H", "H"), [[0, 0, 0], [0, 0, 0.7]], [[0, 0, 0], [0, 0, 3.5]])
    assert (stretched.name, stretched.values) == ("distance H1-H2", (pytest.approx(0.7), pytest.approx(3.5)))
    apart = [[[0, 0, 0], [0, 0, 0.74], [r, 0, 0], [r, 0, 0.74]] for r in (3.0, 2.5, 4.0)]
    found = coordinate(("H",) * 4, *apart)
    assert found.name == "distance H1-H3" and found.values == pytest.approx((3.0, 2.5, 4.0))
    # Hydrogen peroxide turned about its O-O bond, through 180 degrees: no jump from 179 to -179.
    turned = []
    for degrees in (150.0, 179.0, 200.0):
        t = np.radians(degrees)
        turned.append([[0, 0.95, 0], [0, 0, 0], [0, 0, 1.45], [0.95 * np.sin(t), 0.95 * np.cos(t), 1.45]])
    found = coordinate(("H", "O", "O", "H"), *turned)
    assert found.name == "torsion H1-O2-O3-H4" and np.ptp(found.values) == pytest.approx(50.0)
    shifted = [[[x, 0, 0], [x, 0, 0.7]] for x in (0.0, 1.0)]  # nothing inside the molecule changes
    assert coordinate(("H", "H"), *shifted) is None
    back = [[[0, 0, 0], [0, 0, r]] for r in (0.7, 0.8, 0.7)]
    assert coordinate(("H", "H"), *back) is None  # two geometries at one value are no curve


def test_results_that_have_nothing_in_common_are_listed_with_a_warning(result, radical):
    other = stored(radical.path)
    assert relation(result, other) == ((), (), (), ("1.h5", "2.h5"))
    elements = parse(page_of(result, other))
    assert "These results form no series. They differ in atoms, charge or multiplicity" in elements.text
    assert "must not be subtracted" in elements.text
    frozen = dataclasses.replace(result, sizes=dataclasses.replace(result.sizes, frozen_core=1, nocc=(4, 4)))
    assert relation(result, frozen)[3] == ("1.h5", "2.h5")
    assert "differ in frozen core" in parse(page_of(result, frozen)).text


def test_many_results_are_compared_but_not_all_shown_in_full(result):
    many = [moved(result, np.array([[0, 0, 0], [0, 0.76, h], [0, -0.76, h]])) for h in np.linspace(0.4, 0.8, 30)]
    page = page_of(*many)
    elements = parse(page)
    assert "The first 12 of 30 results are shown in full" in elements.text
    assert len(page.encode()) < 1_000_000
    ids = elements.values("id")
    assert len(ids) == len(set(ids))
    assert all(link[1:] in ids for link in elements.values("href") if link != "data:,")
