"""Molecules and units against PySCF, CODATA and formulas written out.

Elements, formulas and frozen cores, against PySCF, Psi4, ASE and ORCA's manual, are in the session
elements-and-cores.
"""

from __future__ import annotations

import time

import numpy as np
import pytest

from dfmp2.errors import InputError
from dfmp2.molecule import elements, point_charges
from dfmp2.molecule.molecule import Molecule, nuclear_repulsion
from dfmp2.units import (
    BOHR_PER_ANGSTROM,
)
from tests.recorded import recorded_error


def test_nuclear_repulsion_over_several_blocks() -> None:
    """Of unlike atoms, ghosts and core potentials."""
    points = np.random.default_rng(7).permutation(1000)[:600, None] * np.array([[1.7, 0.3, -0.2]])
    distance = np.linalg.norm(points[:, None] - points[None], axis=2)
    np.fill_diagonal(distance, np.inf)
    kinds = {"Li": 3.0, "F": 9.0, "Br": 7.0, "H": 1.0, "O": 8.0, "S": 16.0, "C": 6.0}
    symbols = tuple(kinds) * 86
    ghost = tuple(number % 11 == 0 for number in range(600))
    charges = np.array([kinds[symbol] for symbol in symbols[:600]]) * ~np.array(ghost)
    molecule = Molecule(symbols[:600], points, ghost)
    assert nuclear_repulsion(molecule, {"Br": 28}) == pytest.approx(
        charges @ (1 / distance) @ charges / 2, rel=1e-13
    )


@pytest.mark.parametrize("rows", [1, 2, 3, 100])
def test_neighbours_do_not_depend_on_how_many_atoms_are_taken_at_a_time(
    monkeypatch: pytest.MonkeyPatch, rows: int
) -> None:
    """The nearest in sums of covalent radii, which is not the nearest in space."""
    monkeypatch.setattr(elements, "ROWS", rows)
    points = np.random.default_rng(5).standard_normal((7, 3)) * 2
    radii = np.array([0.3, 1.2, 0.7, 0.6, 1.5, 0.31, 0.9])
    near, length = elements._nearest(points, radii)
    ratio = np.linalg.norm(points[:, None] - points, axis=2) / (radii[:, None] + radii)
    np.fill_diagonal(ratio, np.inf)
    np.testing.assert_array_equal(near, ratio.argmin(axis=1))
    np.testing.assert_allclose(length, ratio.min(axis=1), rtol=1e-13)


def test_distance_limit_in_every_direction() -> None:
    rng = np.random.default_rng(0)
    directions = rng.normal(size=(60, 3))
    directions /= np.linalg.norm(directions, axis=1)[:, None]
    for direction, origin in zip(directions, rng.uniform(-9000, 9000, size=(60, 3)), strict=True):
        apart = [origin, origin + 0.2001 * BOHR_PER_ANGSTROM * direction]
        close = [origin, origin + 0.1999 * BOHR_PER_ANGSTROM * direction]
        assert Molecule(("H", "H"), np.array(apart)).natom == 2
        with recorded_error(InputError):
            Molecule(("H", "H"), np.array(close))


def test_ten_thousand_atoms_take_no_time() -> None:
    grid = np.stack(np.meshgrid(*[np.arange(22.0)] * 3), axis=-1).reshape(-1, 3)[:10_000] * 3.0
    plane = np.stack(np.meshgrid(*[np.arange(100.0)] * 2, [0.0]), axis=-1).reshape(-1, 3) * 3.0
    start = time.thread_time()
    for points in (grid, plane):
        assert Molecule(("H",) * 10_000, points).natom == 10_000
    points[9999] = points[17] + 0.1
    with recorded_error(InputError):
        Molecule(("H",) * 10_000, points)
    with recorded_error(InputError):
        Molecule(("H",) * 10_000, np.zeros((10_000, 3)))
    assert time.thread_time() - start < 2.0


@pytest.mark.parametrize("block", [1, 4, 7, 10**6])
def test_point_charges_are_taken_in_blocks(monkeypatch: pytest.MonkeyPatch, block: int) -> None:
    """Their energy with the nuclei, and which of them is too near to a nucleus; ghosts do not
    count."""
    assert 8 * point_charges.BLOCK == 2**23  # bytes
    monkeypatch.setattr(point_charges, "BLOCK", block)
    points = np.array([[0.0, 0.1, 0.2], [2.0, 0.0, -1.0], [0.0, 3.0, 1.0]])
    nuclei = np.array([8.0, 1.0, 3.0])
    rng = np.random.default_rng(5)
    charges = np.column_stack([rng.uniform(4, 9, (6, 3)), rng.uniform(-1, 1, 6)])
    expected = sum(
        q * z / np.linalg.norm(place - point)
        for *place, q in charges
        for point, z in zip(points, nuclei, strict=True)
    )
    found = point_charges.nuclear_energy(points, nuclei, charges)
    assert found == pytest.approx(expected, rel=1e-12)
    firsts = [first for first, _ in point_charges._distances(points, charges)]
    assert firsts == list(range(0, 6, max(1, block // 3)))
    symbols, ghost = ("O", "H", "Li"), (False, True, False)
    assert point_charges.too_near(points, symbols, ghost, charges, 1.0) == ""
    charges[4, :3] = points[2] + [0.0, 0.0, 0.5]
    charges[1, :3] = points[1] + [0.0, 0.1, 0.0]  # near a ghost
    said = point_charges.too_near(points, symbols, ghost, charges, 0.51)
    assert said == "point charge 5 is 0.265 angstrom from atom 3 Li"
    assert point_charges.too_near(points, symbols, ghost, charges, 0.5) == ""
