"""Requests for what does not exist: methods, options, misspelt basis sets and missing elements."""

from __future__ import annotations

from itertools import pairwise
from pathlib import Path
from typing import Any

import pytest

import dfmp2
from dfmp2.errors import InputError, wishes
from dfmp2.errors.messages import NOT_GIVEN
from dfmp2.errors.wishes import way_out_of_method, way_out_of_option
from dfmp2.interop.qcschema import read_request
from dfmp2.molecule.basis_library import edits, known_names, nearest, resolve_orbital
from dfmp2.options import Options, make_options
from dfmp2.options.methods import METHODS

from .conftest import write_molecules

METHODS_ELSEWHERE = {
    "B2NC-PLYP": "dfmp2 methods lists the double hybrids",
    "DSD-XYZ": "dfmp2 methods lists the double hybrids",
    "DLPNO-MP2": "local approximations are not available",
    "LMP2": "local approximations are not available",
    "DLPNO-CCSD(T)": "local approximations are not available",
    "CCSD(T)": "coupled cluster",
    "CC2": "coupled cluster",
    "QCISD(T)": "coupled cluster",
    "MP3": "MP3, MP4",
    "MP4(SDQ)": "MP3, MP4",
    "OMP2": "MP3, MP4",
    "SCS-MP3": "MP3, MP4",
    "RI-MP2": "MP2 is always density-fitted here: --method mp2",
    "DFMP2": "MP2 is always density-fitted here",
    "MP2-F12": "explicit correlation",
    "CCSD(T)-F12b": "explicit correlation",
    "ROMP2": "the reference is a separate option",
    "LT-SOS-MP2": "--method sos-laplace",
    "RI-RPA": "--method drpa",
    "CASPT2": "multireference",
    "HF": "E(HF) is part of every result",
    "PBE0": "functionals are named by --xc",
    "GFN2-xTB": "semi-empirical",
}


@pytest.mark.parametrize("name", METHODS_ELSEWHERE)
def test_an_unknown_method_gets_the_way_out(name: str) -> None:
    assert METHODS_ELSEWHERE[name] in way_out_of_method(name)
    with pytest.raises(InputError) as caught:
        Options("sto-3g", method=name)
    said = str(caught.value)
    assert said.startswith(("--method", "--method '"))
    listed = f"{', '.join(METHODS)}, custom-dh, or a double hybrid of dfmp2 methods"
    assert f": expected one of {listed}; " in said
    assert METHODS_ELSEWHERE[name] in said


def test_the_way_out_in_every_front_end(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, call: Any
) -> None:
    monkeypatch.chdir(tmp_path)
    write_molecules(tmp_path)
    done = call("run", "h2o.xyz", "--basis", "sto-3g", "--method", "RI-MP2")
    assert done.code == 2
    assert "dfmp2 methods; MP2 is always density-fitted here: --method mp2 (see" in done.message
    done = call("run", "h2o.xyz", "--basis", "sto-3g", "--relaxed")
    assert done.code == 2
    assert "--properties computes the relaxed density" in done.message
    done = call("run", "h2o.xyz", "--basis", "sto-3g", "--functional", "pbe")
    assert done.code == 2
    assert "the functional of --method ks and --method drpa is --xc" in done.message
    with pytest.raises(InputError, match='density-fitted here: method="mp2"'):
        dfmp2.run("h2o.xyz", "sto-3g", method="RI-MP2")  # type: ignore[arg-type]
    with pytest.raises(InputError, match="'relaxed': properties=True computes the relaxed"):
        dfmp2.run("h2o.xyz", "sto-3g", relaxed=True)  # type: ignore[call-arg]
    (tmp_path / "b.toml").write_text(
        'basis = "sto-3g"\noutput = "o"\nmethod = "CCSD(T)"\n[[item]]\nmolecule = "h2.xyz"\n'
    )
    done = call("batch", "run", "b.toml")
    assert done.code == 3
    assert 'method = "CCSD(T)": expected one of' in done.message
    assert "coupled cluster" in done.message
    (tmp_path / "b.toml").write_text(
        'basis = "sto-3g"\noutput = "o"\nfunctional = "pbe"\n[[item]]\nmolecule = "h2.xyz"\n'
    )
    assert (
        'the functional of method = "ks" and method = "drpa" is xc'
        in call("batch", "run", "b.toml").message
    )
    document = {
        "driver": "energy",
        "model": {"method": "DLPNO-MP2", "basis": "sto-3g"},
        "molecule": {"symbols": ["He"], "geometry": [0, 0, 0]},
    }
    with pytest.raises(InputError, match=r'there is model\.method = "sos-laplace"'):
        read_request(document)


@pytest.mark.parametrize("name", ["MP2", "SCSMP2", "sos_mp2", "kappamp2", "dRPA"])
def test_a_misspelt_method_is_answered(name: str) -> None:
    with pytest.raises(InputError, match=r"did you mean (mp2|scs-mp2|sos-mp2|kappa-mp2|drpa)\?$"):
        Options("sto-3g", method=name)


@pytest.mark.parametrize("name", ["--relaxed", "relaxed", "--spin-orbit", "maxcore", "--pcm"])
def test_options_of_other_programs(name: str) -> None:
    assert way_out_of_option(name)


WITHOUT_VALUE = ("os_scale", "ss_scale", "xc", "multiplicity", "charge", "threads", "memory")
WITHOUT_VALUE += ("auxbasis", "scf_auxbasis", "dispersion", "basis", "scf_conv_tol")
WITHOUT_VALUE += ("scf_max_cycles", "solvent_model")
BESIDE_OPTIONS = ("charge", "delta", "log", "multiplicity", "overwrite")


def test_ways_out_are_whole_sentences() -> None:
    """Options and commands stand between texts that leave room for them, and flags are set."""
    for message in (*dict(wishes.METHODS).values(), *wishes.OPTIONS.values()):
        assert message == message.strip() and "  " not in message
        for before, after in pairwise(message.parts):
            assert isinstance(before, str) != isinstance(after, str)
            if isinstance(before, str):
                assert before[-1] in " ("
            else:
                assert after[0] in " ,;:)"
        assert any(isinstance(part, str) for part in message.parts)
        for option in message.options:
            assert option.name in (*Options.__slots__, *BESIDE_OPTIONS)
            assert option.value is not False
            if option.value is NOT_GIVEN:
                assert option.name in WITHOUT_VALUE
    # Not those of another option of the same name
    assert "--threads" in way_out_of_option("cores")


def test_no_option_of_ours_is_foreign() -> None:
    for name in Options.__slots__:
        assert not way_out_of_option(name)
    with pytest.raises(InputError, match="unknown option 'frozen_cor': did you mean frozen_core"):
        make_options(basis="sto-3g", frozen_cor=1)


MISSPELT = [
    ("cc-pvzd", "cc-pvdz", False),
    ("cc-pdvz", "cc-pvdz", False),
    ("ccp-vdz", "cc-pvdz", False),
    ("cc-pvdzz", "cc-pvdz", False),
    ("aug-cc-pvzt", "aug-cc-pvtz", False),
    ("cc-pvtz-aug", "aug-cc-pvtz", False),
    ("def2-tzpv", "def2-tzvp", False),
    ("6-13g*", "6-31g*", False),
    ("sto3-g", "sto-3g", False),
    ("ri-cc-pvdz", "cc-pvdz-ri", True),
    ("cc-pvzd-ri", "cc-pvdz-ri", True),
    ("def2-universal-jkift", "def2-universal-jkfit", True),
    ("jkfit-def2-universal", "def2-universal-jkfit", True),
]


@pytest.mark.parametrize(("wrong", "right", "fitting"), MISSPELT)
def test_a_misspelt_basis_is_answered(wrong: str, right: str, fitting: bool) -> None:
    names = {name.lower() for name in known_names(fitting=fitting).values()}
    if wrong in names:  # it is the name of a set in another library
        pytest.skip("a name")
    assert right in [name.lower() for name in nearest(wrong, names)]


def test_names_that_are_like_none_get_no_suggestion() -> None:
    assert nearest("xyzzy", known_names(fitting=False).values()) == []
    assert [
        edits("ab", "ba"),
        edits("abc", "ac"),
        edits("", "abc"),
        edits("kitten", "sitting"),
    ] == [1, 1, 3, 3]


@pytest.mark.parametrize(
    ("basis", "symbols", "said"),
    [
        ("cc-pvdz", ("C", "I"), "for I; def2-svp or def2-tzvp or cc-pvdz-pp has them"),
        ("6-311g", ("Xe", "H"), "for Xe; def2-svp or def2-tzvp or cc-pvdz-pp has them"),
        ("cc-pvdz", ("Og",), "for Og; choose one that covers Og"),
    ],
)
def test_a_basis_without_an_element_names_some_that_have_it(
    basis: str, symbols: tuple[str, ...], said: str
) -> None:
    with pytest.raises(InputError) as caught:
        resolve_orbital(basis, symbols)
    assert str(caught.value).startswith(f"--basis {basis}: ")
    assert str(caught.value).endswith(said)
    if "has them" in said:
        for name in said.split("; ")[1].removesuffix(" has them").split(" or "):
            assert set(resolve_orbital(name, symbols).elements) == set(symbols)
