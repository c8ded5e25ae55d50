"""Which options can be combined, as one table; values of each option at its bounds and just
beyond."""

from __future__ import annotations

import math
from dataclasses import fields
from pathlib import Path
from typing import Any

import numpy as np
import pytest

from dfmp2.errors import InputError
from dfmp2.molecule.molecule import Molecule
from dfmp2.mp2.identity import FREE, METHOD, method_of, question
from dfmp2.options import Options, basis_parts
from dfmp2.options.basis_parts import (
    read_basis_file,
)
from dfmp2.options.calculation import make_options
from tests.recorded import recorded_error

BASIS = {"basis": "cc-pvdz"}


BOUNDS: dict[str, tuple[list[Any], list[Any]]] = {
    "scf_conv_tol": ([1e-300, 1, 0.5], [0.0, -1e-9, 10**400, math.inf, math.nan, "1", True, None]),
    "scf_max_cycles": ([1, 10**6], [0, -1, 1.0, True, "3", None]),
    "scf_starts": ([1, 7], [0, 1.5, False]),
    "frozen_virtual": ([0, 3], [-1, 0.0, True]),
    "tolerance": ([1e-300, 2], [0, -1.0, math.nan]),
    "os_scale": ([0.0, -1.5, 2, None], [math.inf, math.nan, "1", True]),
    "memory": ([1, 10**9, "8GB", None], [0, -5, 1.5, True]),
    "threads": ([1, 64, None], [0, 2.0, True]),
    "check": ([True, False], [1, 0, "yes", None]),
    "allow_small_gap": ([True, False], [1, None]),
    "reference": (["auto", "rhf", "uhf", "rohf"], ["RHF", "", None, 1]),
    "relativity": (["none", "x2c"], ["dkh", None]),
    "scf": (["df", "conventional"], ["auto", None, np.array([1, 2])]),
    "backend": (["cpu", "torch"], [["cpu"], {}, None]),
    "guess": (["atoms", "mix", "core"], ["minao", None]),
    "stability": (["auto", "full", "follow", "off", None], ["on", True]),
    "precision": (["auto", "fp64", "mixed"], ["fp32", None]),
    "transform": (["auto", "host", "device"], ["card", None]),
    "solvent_model": (["cpcm"], ["pcm", None]),
    "dispersion": (["auto", "none"], ["d3", None]),
    "auxbasis": (["auto", "cc-pvdz-ri", None], [3, True]),
    "scf_from": (["x", None], [3]),
    "basis": (["cc-pvdz"], [3, None, ""]),
    "frozen_core": (["none", "auto", "psi4", 3, "3", " AUTO "], [True, 1.0, None]),
    "scratch": (["/tmp", Path("/tmp"), None], [3, True]),
    "method": (["mp2", "scs-mp2"], [3, None, "SCS-MP2", np.array([1, 2])]),
}


STORED_AS = {  # where it is not as it was given
    ("memory", "8GB"): 8 * 10**9,
    ("frozen_core", 3): "3",
    ("frozen_core", " AUTO "): "auto",
    ("scratch", Path("/tmp")): "/tmp",
}


@pytest.mark.parametrize("name", BOUNDS)
def test_values_at_their_bounds_are_taken_and_beyond_refused(name: str) -> None:
    good, bad = BOUNDS[name]
    for value in good:
        made = getattr(Options(**{**BASIS, name: value}), name)
        assert made == STORED_AS.get((name, value), value)
    for value in bad:
        with pytest.raises(InputError):
            Options(**{**BASIS, name: value})


OF_THE_WAY = {  # options that make no energies of another method
    "scf_conv_tol",
    "guess",
    "scf_starts",
    "stability",
    "laplace",
    "backend",
    "tolerance",
    "transform",
    "certify_fit",
    "properties",
    "polarizability",
    "check",
}
OF_THE_RUN = {  # nor another question, which a stopped run could not answer
    "memory",
    "threads",
    "scratch",
    "scf_max_cycles",
    "scf_from",
    "allow_small_gap",
    "allow_poor_fit",
}


def test_every_other_option_is_part_of_the_method() -> None:
    """A new one too: else results of different methods are compared, or continued."""
    names = {field.name for field in fields(Options)}
    assert set(METHOD) == names - OF_THE_WAY - OF_THE_RUN and set(FREE) == OF_THE_RUN
    options = make_options(**BASIS, method="drpa", xc="pbe", grid="3", frozen_virtual=2)
    found = method_of(options)
    assert found == found | {"xc": "pbe", "grid": "3", "frozen_virtual": "2", "method": "drpa"}
    asked = question(Molecule(("H",), [[0, 0, 0]], multiplicity=2), options)
    assert {f"--{name.replace('_', '-')}" for name in names - OF_THE_RUN} <= asked.keys()


def test_a_file_of_basis_sets_has_a_largest_size(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    path = tmp_path / "x.gbs"
    path.write_text("y" * 100)
    monkeypatch.setattr(basis_parts, "LARGEST_FILE", 100)
    read_basis_file(str(path))
    monkeypatch.setattr(basis_parts, "LARGEST_FILE", 99)
    with recorded_error(InputError):
        read_basis_file(str(path))
