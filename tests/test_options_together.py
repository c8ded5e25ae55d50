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
    common_basis,
    for_elements,
    for_part,
    is_file,
    parse_parts,
    path_of,
    read_basis_file,
    require_elements,
    title_of,
    with_contents,
    with_hashes,
)
from dfmp2.options.calculation import default_backend, make_options
from dfmp2.options.methods import METHODS, custom_scaling, functionals_of, method_of_orbitals
from dfmp2.options.values import dielectric_constant
from tests.recorded import recorded_error

BASIS = {"basis": "cc-pvdz"}


@pytest.mark.parametrize(
    "given",
    [
        {"laplace": True, "method": "b2plyp", "ss_scale": 0.0},
        {"laplace": True, "method": "custom-dh", "xc": "pbe", "os_scale": 0.1, "ss_scale": 0.0},
        {"method": "drpa", "xc": "PBE ", "stability": "full"},
        {"method": "b2plyp", "stability": "follow"},
        {"method": "b2plyp", "dispersion": "d4"},
        {"method": "b2plyp", "dispersion": "none"},
        {"dispersion": "none"},
        {"method": "custom-scs-mp2", "ss_scale": 0.5},
    ],
)
def test_options_that_go_together_do(given: dict[str, Any]) -> None:
    made = Options(**BASIS, **given)
    if "xc" in given:
        assert made.xc == "pbe"
    if given.get("method") == "custom-scs-mp2":
        assert made.method == "mp2" and made.correlation.same_spin == 0.5


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


@pytest.mark.parametrize("name", BOUNDS)
def test_values_at_their_bounds_are_taken_and_beyond_refused(name: str) -> None:
    good, bad = BOUNDS[name]
    for value in good:
        made = getattr(Options(**{**BASIS, name: value}), name)
        if isinstance(value, str | Path) and name in ("frozen_core", "scratch", "method"):
            assert made == str(value).strip().lower()
        elif value == "8GB":
            assert made == 8 * 10**9
        elif name == "frozen_core":
            assert made == str(value)
        else:
            assert made == value
    for value in bad:
        with pytest.raises(InputError):
            Options(**{**BASIS, name: value})


@pytest.mark.parametrize(
    ("given", "multiplicity", "expected"),
    [
        ({}, 1, "auto"),
        ({}, 2, "follow"),
        ({"reference": "uhf"}, 1, "follow"),
        ({"reference": "rhf"}, 1, "auto"),
        ({"reference": "rohf"}, 2, "off"),
        ({"method": "b2plyp"}, 2, "off"),
        ({"method": "drpa", "xc": "pbe"}, 1, "off"),
        ({"method": "drpa"}, 3, "follow"),
        ({"solvent": "water"}, 1, "off"),
        ({"stability": "full"}, 2, "full"),
    ],
)
def test_the_stability_analysis_of_a_molecule(
    given: dict[str, Any], multiplicity: int, expected: str
) -> None:
    made = Options(**BASIS, **given)
    assert made.settled(multiplicity).stability == expected
    open_shell = given.get("reference") == "uhf" or ("reference" not in given and multiplicity != 1)
    assert made.unrestricted(multiplicity) == open_shell


def test_what_follows_from_the_options() -> None:
    """Functionals, factors and corrections, from the table of double hybrids."""
    plain = Options(**BASIS)
    assert (plain.functional, plain.energy_functional, plain.double_hybrid) == (None, None, None)
    assert plain.dispersion_correction is None and plain.regulariser is None
    assert plain.scf_gradient_tol == pytest.approx(1e-6) and plain.solvent_title == ""
    kappa = Options(**BASIS, method="kappa-mp2")
    assert kappa.regulariser == 1.1 and kappa.correlation.regularised
    assert Options(**BASIS, method="kappa-mp2", kappa=1.45).regulariser == 1.45
    b2 = Options(**BASIS, method="b2plyp")
    assert b2.double_hybrid is not None and b2.correlation.kind == "pairs"
    assert (b2.correlation.opposite_spin, b2.correlation.same_spin) == (0.27, 0.27)
    assert b2.energy_functional is None and "0.53" in str(b2.functional)
    assert b2.dispersion_correction is None
    d4 = Options(**BASIS, method="b2plyp", dispersion="d4").dispersion_correction
    assert d4 is not None and d4[0] == "d4" and d4[1]
    own = Options(**BASIS, method="revdsd-pbep86-d4")
    assert own.dispersion_correction is not None and own.dispersion_correction[0] == "d4"
    assert (
        Options(**BASIS, method="revdsd-pbep86-d4", dispersion="none").dispersion_correction is None
    )
    for method, dispersion, title in (
        ("b2plyp-d3bj", "none", "B2PLYP"),
        ("b2plyp-d3bj", "d4", "B2PLYP-D4"),
        ("b2plyp", "d3bj", "B2PLYP-D3(BJ)"),
        ("dsd-blyp-d3bj", "d4", "DSD-BLYP-D4"),
        # without the correction, these factors have no name
        ("dsd-blyp-d4", "none", "DSD-BLYP-D4 without dispersion"),
        ("revdsd-pbep86", "none", "revDSD-PBEP86-D3(BJ) without dispersion"),
    ):
        options = Options(**BASIS, method=method, dispersion=dispersion)
        assert options.correlation.title == title
        assert (options.dispersion_correction or ("none",))[0] == dispersion
    for changes, level in (
        ({}, "DF-MP2/dz"),
        ({"relativity": "x2c", "method": "scs-mp2"}, "X2C-DF-SCS-MP2/dz"),
        ({"method": "ks", "xc": "pbe0", "solvent": "water"}, "KS(pbe0)/dz in water (C-PCM)"),
        ({"method": "drpa", "xc": "pbe"}, "DF-dRPA(pbe)/dz"),
        ({"method": "b2plyp", "dispersion": "d4"}, "DF-B2PLYP-D4/dz"),
    ):
        assert Options(**BASIS, **changes).level_in("dz") == level
    scaled = Options(**BASIS, method="b2plyp", ss_scale=0.1).correlation
    assert (scaled.name, scaled.opposite_spin, scaled.same_spin) == ("custom-dh", 0.27, 0.1)
    assert scaled.title == "scaled B2PLYP" and scaled.source.startswith("user; functional: doi")
    other = Options(**BASIS, method="b2plyp", os_scale=0.2).correlation
    assert (other.opposite_spin, other.same_spin) == (0.2, 0.27)
    mine = Options(**BASIS, method="custom-dh", xc="pbe", os_scale=0.3, ss_scale=0.2)
    assert (mine.correlation.opposite_spin, mine.correlation.same_spin) == (0.3, 0.2)
    assert mine.correlation.source == "user" and mine.correlation.double_hybrid
    laplace = Options(**BASIS, method="xygj-os", laplace=True).correlation
    assert laplace.kind == "laplace" and laplace.same_spin == 0.0
    assert Options(**BASIS, method="xyg3").energy_functional is not None
    assert Options(**BASIS, solvent="water").solvent_title == "water (C-PCM)"
    assert "SMD" in Options(**BASIS, solvent="water", solvent_model="smd").solvent_title
    factors = custom_scaling(1.2, None)
    assert factors is not None and (factors.opposite_spin, factors.same_spin) == (1.2, 1.0)
    assert custom_scaling(None, None) is None
    assert method_of_orbitals(None, None) == "mp2"
    assert functionals_of("mp2", None) == (None, None)
    assert functionals_of("drpa", "pbe") == ("pbe", None)
    for name, method in METHODS.items():
        if method.kind == "pairs" and not method.regularised and not method.double_hybrid:
            expected = method.opposite_spin * -0.3 + method.same_spin * -0.1
            assert method.apply(-0.3, -0.1) == pytest.approx(expected, rel=1e-14), name


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


def test_keywords_make_options(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.delenv("DFMP2_BACKEND", raising=False)
    assert default_backend() == "auto" and make_options(basis="x").backend == "auto"
    monkeypatch.setenv("DFMP2_BACKEND", "torch")
    assert make_options(basis="x").backend == "torch"
    assert make_options(basis="x", backend="cpu").backend == "cpu"
    monkeypatch.setenv("DFMP2_BACKEND", "")
    assert default_backend() == "auto"
    with recorded_error(InputError):
        make_options(method="mp2")
    with recorded_error(InputError):
        make_options(basis="x", methd="mp2")


@pytest.mark.parametrize(
    ("text", "eps"),
    [("water", None), ("eps=3.5", 3.5), (" EPS = 80 ", 80.0), ("eps=1.0001", 1.0001)],
)
def test_solvents_by_their_constant(text: str, eps: float | None) -> None:
    assert dielectric_constant(text) == eps


@pytest.mark.parametrize("text", ["eps=1", "eps=0.5", "eps=x", "eps=nan", "eps=inf", "eps="])
def test_a_dielectric_constant_is_above_one(text: str) -> None:
    with pytest.raises(InputError):
        dielectric_constant(text)


def test_parts_of_a_basis(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    parts = parse_parts("cc-pvdz,I=def2-tzvp,3=aug-cc-pvdz")
    assert parts.default == "cc-pvdz" and parts.mixed
    assert dict(parts.special) == {"I": "def2-tzvp", "3": "aug-cc-pvdz"}
    assert parts.text == "cc-pvdz,I=def2-tzvp,3=aug-cc-pvdz" and parts.files == []
    assert parts.of_elements(["H", "i"]) == {"I": "def2-tzvp", "3": "aug-cc-pvdz"}
    assert parts.of_elements(["H"]) == {"3": "aug-cc-pvdz"}
    pople = parse_parts("6-31G(d,p)")
    assert not pople.mixed and pople.default == "6-31G(d,p)"
    path = tmp_path / "mine.gbs"
    path.write_text("numbers")
    assert is_file(str(path)) and is_file("x.nw") and is_file("a/b") and not is_file("cc-pvdz")
    hashed = with_hashes(f"cc-pvdz,C={path}")
    value = parse_parts(hashed).special["C"]
    assert path_of(value) == str(path) and len(value.partition("#")[2]) == 16
    assert parse_parts(hashed).files == [value]
    assert with_hashes(hashed) == hashed
    monkeypatch.setenv("HOME", str(tmp_path))
    assert with_hashes("cc-pvdz,C=~/mine.gbs") == hashed
    assert "#" not in title_of(hashed)
    other = tmp_path / "copy.gbs"
    other.write_text("numbers")
    assert with_contents(with_hashes(f"cc-pvdz,C={other}")) == with_contents(hashed)
    path.write_text("other numbers")
    assert with_contents(with_hashes(f"cc-pvdz,C={path}")) != with_contents(hashed)
    # The part of a molecule made of its third and first atom, in this order.
    made = for_part("cc-pvdz,I=def2-tzvp,3=aug-cc-pvdz,2=sto-3g,C=sto-3g", ["I", "C", "H"], [2, 0])
    assert made == "cc-pvdz,I=def2-tzvp,1=aug-cc-pvdz"
    assert for_part("cc-pvdz", ["I", "H"], [1]) == "cc-pvdz"
    assert for_elements("cc-pvdz,I=def2-tzvp,C=sto-3g", ["C", "H"]) == "cc-pvdz,C=sto-3g"
    with recorded_error(InputError):
        for_elements("I=def2-tzvp,C=sto-3g", ["H"])
    require_elements("cc-pvdz,I=def2-tzvp", ["I", "H"])
    with recorded_error(InputError):
        require_elements("cc-pvdz,I=def2-tzvp", ["H"])
    assert common_basis(["cc-pvdz,I=x", "cc-pvdz,C=y", "cc-pvdz"]) == "cc-pvdz,I=x,C=y"
    assert common_basis(["cc-pvdz,I=x"] * 2) == "cc-pvdz,I=x"
    for several in (["cc-pvdz", "sto-3g"], ["a,I=x", "a,I=y"], ["a,1=x", "a"], []):
        assert common_basis(several) is None
    numbers = ("cc-pvdz,\u00b2=x", f"cc-pvdz,{'1' * 5000}=x")
    for wrong in ("cc-pvdz,,I=x", "cc-pvdz,I=x,I=y", "cc-pvdz,sto-3g", "I=", "", *numbers):
        with pytest.raises(InputError):
            parse_parts(wrong)
    # A changed file is a different one; a missing or non-text file is none.
    with recorded_error(InputError):
        read_basis_file(value)
    assert read_basis_file(str(path)) == ("mine.gbs", "other numbers")
    path.write_bytes(b"\xff\xfe\x00")
    with recorded_error(InputError):
        read_basis_file(str(path))
    for none in (str(tmp_path / "none.gbs"), "~no-such-user/x.gbs", "\x00.gbs"):
        with recorded_error(InputError):
            read_basis_file(none)


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
