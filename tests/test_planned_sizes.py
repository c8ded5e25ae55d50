"""Sizes of runs against PySCF's counts, what of a gradient fits into memory, and rates.

Complete plans are in the table `plans` (tests/test_tables.py) and in the sessions `plan-...`,
`parts-of-plans` and `rates-of-a-host`.
"""

from __future__ import annotations

from dataclasses import replace
from types import SimpleNamespace
from typing import Any
from unittest.mock import Mock

import pytest
from pyscf import dft, gto

from dfmp2.backends.cpu import CpuBackend
from dfmp2.options import Options
from dfmp2.planning import memory, rates
from dfmp2.planning.gradient import gradient_memory
from dfmp2.planning.memory import GradientMemory
from dfmp2.planning.plan import workload_sizes
from dfmp2.planning.sizes import Spin
from dfmp2.planning.system import with_kept_pairs
from dfmp2.progress import Silent
from tests.awkward import MOLECULES, mole_of
from tests.test_tables import GRADIENT

WORKERS = 3


@pytest.mark.parametrize(
    ("changes", "room", "changed"),
    [
        ({}, "needed", {"response_held"}),
        ({"naux": 3000}, "needed", {"z_on_disk", "scf_kept"}),
        ({"naux": 3000}, "peak", {"scf_kept"}),
        ({"naux_scf": 4000}, "needed", {"half_on_disk"}),
    ],
)
def test_arrays_of_a_gradient_are_in_memory_as_soon_as_they_fit(
    changes: dict[str, Any], room: str, changed: set[str]
) -> None:
    """To the byte; the SCF integrals are not kept beside those of a certificate's own SCF."""
    work = replace(GRADIENT, **changes)

    def within(budget: int, **more: Any) -> GradientMemory:
        limits = CpuBackend(WORKERS).limits
        plan = memory.memory_plan(work, limits, WORKERS, program=0, budget=budget)
        return gradient_memory(work, replace(plan, **more), 9, WORKERS)

    ample = within(10**12)
    enough = memory.SLACK + getattr(ample, room)
    just, below = within(enough), within(enough - 1)
    flags = ("z_on_disk", "half_on_disk", "scf_kept", "response_held")
    assert {flag for flag in flags if getattr(just, flag) != getattr(below, flag)} == changed
    assert ample.scf_kept and not within(10**12, certificate=work).scf_kept


# --- rates ----------------------------------------------------------------------------------------


def test_rates_are_work_by_its_shortest_time(monkeypatch: pytest.MonkeyPatch) -> None:
    """Every routine takes two seconds here; the work is counted on PySCF's molecule of the same
    waters."""
    two_seconds = Mock(return_value=2.0)
    monkeypatch.setattr(rates, "shortest", two_seconds)
    found = rates._host(3)
    water = "O {0} 0 0.2217; H {0} 1.4309 -0.8867; H {0} -1.4309 -0.8867"
    atoms = ";".join(water.format(5.67 * number) for number in range(4))
    mole = gto.M(atom=atoms, unit="bohr", basis="cc-pvtz", verbose=0)
    fitting = gto.M(atom=atoms, unit="bohr", basis="cc-pvtz-ri", verbose=0)
    # Oxygen has 10 s, 5 p, 2 d and 1 f primitives, hydrogen 5 s, 2 p and 1 d.
    nao, naux = mole.nao, fitting.nao
    contracted, primitive = nao * (nao + 1) // 2, 4 * (10 + 15 + 10 + 7 + 2 * (5 + 6 + 5))
    assert nao == 4 * 58
    integrals = naux * (contracted + 1.3 * (primitive * (primitive + 1) // 2))
    assert found["integrals"] == pytest.approx(integrals / 2)
    assert found["products"] == found["products_single"] == 768**3
    small = gto.M(atom=";".join(atoms.split(";")[:6]), unit="bohr", basis="cc-pvdz", verbose=0)
    grid = dft.gen_grid.Grids(small)
    grid.level = 1
    grid.build()
    assert found["functional"] == pytest.approx(len(grid.weights) * small.nao / 2)
    pairs = rates._pairs(CpuBackend(2))
    assert pairs == dict.fromkeys(("pairs_fp64", "pairs_mixed"), 16 * 17 * 256**2 * 768 / 2)
    assert two_seconds.call_count == 6


# --- sizes ----------------------------------------------------------------------------------------


FITTED = {"scf_auxbasis": "def2-universal-jkfit", "auxbasis": "def2-svp-ri"}
USUAL = {
    "precision": "auto",
    "potentials": 0,
    "x2c_functions": 0,
    "frontier": (),
    "examined": False,
    "products": 30,
    "starts": 1,
    "checked": False,
    "in_fields": 0,
    "points": 0,
    "single_exchange": False,  # below 128 functions
    "kernel": 0,
    "grid": 0,
    "finer_grid": 0,
    "coarse_grid": 0,  # below 64 functions
    "operators": 1,
    "exchange": True,
    "cycles": 12,  # to 1e-6 Eh; 1.7 per digit, and three digits fewer after a good start
    "scf_columns": 0,
}


@pytest.mark.parametrize(
    ("name", "given", "expected"),
    [
        (
            "cyano radical",
            {"frozen_core": "2", "frozen_virtual": 3, "stability": "full"},
            {"spins": (Spin(7, 5, 18), Spin(6, 4, 19)), "examined": True},
        ),
        (
            "cyano radical",
            {"reference": "rohf", "scf": "conventional", "scf_auxbasis": None, "check": True},
            {"naux_scf": 0, "examined": True, "products": 5, "checked": True},
        ),
        (
            "chloramine",
            {"scf_starts": 3, "polarizability": True, "scf_conv_tol": 1e-8},
            {"frontier": ((13, 23),), "starts": 3, "in_fields": 6, "cycles": 10},
        ),
        (
            "chloramine",
            {"stability": "off", "relativity": "x2c", "precision": "fp64"},
            {"precision": "fp64", "x2c_functions": 86},
        ),
        (
            "chloramine",
            {"method": "b2plyp", "grid": "1"},  # four variables at a point
            {"kernel": 4**2, "grid": 16380, "finer_grid": 60366},
        ),
        (
            "cyano radical",
            {"method": "drpa", "xc": "camb3lyp", "grid": "2", "precision": "fp64"},
            {
                "precision": "fp64",
                "points": 56,
                "kernel": (2 * 4) ** 2,
                "grid": 22200,
                "finer_grid": 62268,
                "operators": 2,
            },
        ),
        (
            "chloramine",
            {"method": "ks", "xc": "tpss", "grid": "1", "scf_from": "x.chk", "auxbasis": None},
            {
                "precision": "fp64",
                "naux": 0,
                "kernel": 5**2,
                "grid": 16380,
                "finer_grid": 60366,
                "exchange": False,
                "cycles": 7,
            },
        ),
        (
            "chloramine",
            {"method": "sos-laplace", "solvent": "water"},
            {"precision": "fp64", "points": 12},
        ),
    ],
)
def test_sizes_of_a_run_are_those_of_pyscf(
    name: str, given: dict[str, Any], expected: dict[str, Any]
) -> None:
    """Grids have the angular points of PySCF's shells, before points without weight are removed."""
    molecule = MOLECULES[name]
    options = Options(**{"basis": "6-31g*", "allow_poor_fit": True, **FITTED, **given})
    found = workload_sizes(molecule, options, Silent())
    mole = mole_of(molecule, "6-31g*")
    counts = mole.nelec if name == "cyano radical" else mole.nelec[:1]
    of_pyscf = {
        "nao": mole.nao,
        "atoms": mole.natm,
        "spins": tuple(Spin(n, n, mole.nao - n) for n in counts),
        "naux": mole_of(molecule, FITTED["auxbasis"]).nao,
        "naux_scf": mole_of(molecule, FITTED["scf_auxbasis"]).nao,
        "widest_shell": 5,
        "primitives": mole.decontract_basis(aggregate=True)[0].nao,
    }
    assert found == replace(found, **{**USUAL, **of_pyscf, **expected})
    assert (found.surface > 100) == ("solvent" in given)
    kept = with_kept_pairs(found, SimpleNamespace(naux_scf=found.naux_scf, mole=mole))
    pairs = mole.nao * (mole.nao + 1) // 2 if found.naux_scf else 0
    assert kept == replace(found, scf_columns=pairs)


def test_the_kernel_of_a_functional_is_counted_where_it_is_examined() -> None:
    """At each point its second derivatives, beside coordinates and weights in both orders."""
    points, derivatives = 900, 36
    work = replace(GRADIENT, grid=points, finer_grid=1300, kernel=derivatives)
    examined, left = (
        memory._scf_matrices(replace(work, examined=examined), WORKERS)
        for examined in (True, False)
    )
    assert examined - left == points * (8 * derivatives + 12 * 8)
