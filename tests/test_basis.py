"""Basis resolution: names to numbers, compared with PySCF's own loading and the Basis Set Exchange."""

from __future__ import annotations

import os
import subprocess
import sys
from pathlib import Path
from typing import Any

import numpy as np
import pytest

import dfmp2
from dfmp2.basis import BasisSet, ElementBasis
from dfmp2.errors import InputError
from dfmp2.reference import library_exchange, library_pyscf
from dfmp2.reference.basis import load_pyscf_element, resolve_orbital
from dfmp2.reference.basis_names import is_mp2_fitting_set, kind, normalise, squash
from dfmp2.reference.basis_shells import to_pyscf, to_pyscf_ecp
from dfmp2.reference.fitting_sets import PARTNERS, find_partners, resolve_fitting
from dfmp2.reference.shield import import_pyscf, shielded

import_pyscf()
from pyscf import df, gto, mp, scf  # noqa: E402 - after the shield
from pyscf.gto.basis import ALIAS  # noqa: E402

WATER = [("O", (0.0, 0.0, 0.1173)), ("H", (0.0, 0.7572, -0.4692)), ("H", (0.0, -0.7572, -0.4692))]


def make_mole(atoms: Any, basis: BasisSet) -> Any:
    elements = basis.elements.items()
    return gto.M(
        atom=atoms,
        basis={symbol: to_pyscf(element) for symbol, element in elements},
        ecp={symbol: to_pyscf_ecp(element) for symbol, element in elements if element.ecp},
        spin=None,
        verbose=0,
    )


def count(basis: BasisSet, *symbols: str) -> int:
    """Number of spherical functions of the atoms."""
    return sum((2 * s[0] + 1) * (len(s[1]) - 1) for symbol in symbols for s in basis.elements[symbol].shells)


def terms(ecp: tuple[Any, ...] | None) -> Any:
    """A core potential without empty powers and without terms of coefficient 0, in a fixed order."""
    assert ecp is not None
    kept = {
        (momentum, power, *term)
        for momentum, powers in ecp[1]
        for power, group in enumerate(powers)
        for term in group
        if term[1] != 0
    }
    return ecp[0], sorted(kept)


@pytest.fixture
def no_exchange(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setitem(sys.modules, "basis_set_exchange", None)


# --- names ------------------------------------------------------------------------------------------


@pytest.mark.parametrize(
    ("name", "key"),
    [
        ("cc-pVDZ", "ccpvdz"),
        ("CC_pvdz ", "ccpvdz"),
        ("cc-pvdz-RI", "ccpvdzri"),
        ("cc-pVDZ-RIFIT", "ccpvdzri"),
        ("cc-pvdz_mp2fit", "ccpvdzri"),
        ("6-31G(d,p)", "631g**"),
        ("6-31gss", "631g**"),
        ("6-31G(D)", "631g*"),
        ("6-311++G(2df,2pd)", "6311++g(2df,2pd)"),
        ("def2-SV(P)", "def2sv(p)"),
        ("cc-pv(d+d)z", "ccpv(d+d)z"),
    ],
)
def test_names_are_compared_without_spelling(name: str, key: str) -> None:
    assert normalise(name) == key


@pytest.mark.parametrize(
    "name",
    ["", "  ", "---", "../cc-pvdz", "/etc/passwd", "a\\b", "cc.pvdz", "O S\n1.0 1.0", "x" * 81, "ü", "a;b", "{}"],
)
def test_names_that_could_be_paths_or_data_are_refused(name: str) -> None:
    with pytest.raises(InputError, match="basis set name") as caught:
        resolve_orbital(name, ["O"])
    assert caught.value.exit_code == 3


@pytest.mark.exchange
def test_kinds_agree_with_the_roles_of_the_exchange() -> None:
    exchange = pytest.importorskip("basis_set_exchange")
    roles = {"rifit": "ri", "jkfit": "jk", "jfit": "j", "dftjfit": "j", "dftxfit": "xfit", "admmfit": "admm"}
    wrong = {
        name
        for name, entry in exchange.get_metadata().items()
        if kind(name) != (None if entry["role"] == "orbital" else roles.get(entry["role"], entry["role"]))
    }
    assert wrong <= {"epc-10s10p10d10f"}  # fits products of nuclear orbitals


@pytest.mark.parametrize(
    ("name", "answer"),
    [("cc-pvdz-ri", True), ("def2-svp-rifit", True), ("auto", True), ("cc-pvdz-jkfit", False), ("weigend", False)],
)
def test_mp2_fitting_sets_are_told_apart(name: str, answer: bool) -> None:
    assert is_mp2_fitting_set(name) is answer


# --- orbital sets -----------------------------------------------------------------------------------


def test_sizes_of_water_in_cc_pvdz() -> None:
    """24 orbital, 116 JK and 84 RI functions: PySCF's and Psi4's counts."""
    orbital = resolve_orbital("cc-pVDZ", ["O", "H", "H"])
    jk, ri = (resolve_fitting(role, None, orbital, ["O", "H", "H"]) for role in ("jk", "ri"))
    assert [count(basis, "O", "H", "H") for basis in (orbital, jk, ri)] == [24, 116, 84]
    assert gto.M(atom=WATER, basis="cc-pvdz").nao == 24
    assert (orbital.name, jk.name, ri.role) == ("cc-pVDZ", "default", "ri")
    assert {e.name for b in (orbital, jk, ri) for e in b.elements.values()} == {
        "cc-pvdz",
        "cc-pvdz-jkfit",
        "cc-pvdz-ri",
    }
    assert ri.elements["O"].source.endswith(": cc-pvdz-ri.dat")


@pytest.mark.parametrize(
    ("name", "atoms"),
    [
        ("cc-pVDZ", WATER),
        ("aug-cc-pVTZ", [("F", (0, 0, 0)), ("H", (0, 0, 0.92))]),
        ("sto-3g", WATER),
        ("6-31G(d,p)", WATER),
        ("6-31++G**", WATER),
        ("6-311+G(2df,p)", WATER),
        ("cc-pCVTZ", [("Ne", (0, 0, 0))]),
        ("ano", WATER),
        ("pcseg-2", WATER),
        ("def2-TZVPPD", [("Br", (0, 0, 0)), ("H", (0, 0, 1.4))]),
        ("dyall-v2z", WATER),
        ("minao", WATER),
    ],
)
def test_same_functions_as_pyscf_loads_by_name(name: str, atoms: Any) -> None:
    """The overlap and kinetic matrices agree element by element, so number, order and norm do."""
    ours = make_mole(atoms, resolve_orbital(name, [symbol for symbol, _ in atoms]))
    theirs = gto.M(atom=atoms, basis=name, verbose=0, spin=None)
    for integral in ("int1e_ovlp", "int1e_kin"):
        np.testing.assert_allclose(ours.intor(integral), theirs.intor(integral), atol=1e-13)


@pytest.mark.parametrize(
    ("name", "atoms", "core"),
    [
        ("def2-svp", [("I", (0, 0, 0)), ("H", (0, 0, 1.6))], 28),
        ("cc-pvdz-pp", [("Ag", (0, 0, 0))], 28),
        ("lanl2dz", [("Au", (0, 0, 0))], 60),
        ("stuttgart", [("Br", (0, 0, 0))], 28),
    ],
)
def test_core_potentials_come_along(name: str, atoms: Any, core: int) -> None:
    basis = resolve_orbital(name, [symbol for symbol, _ in atoms])
    heavy = basis.elements[atoms[0][0]]
    ours = make_mole(atoms, basis)
    theirs = gto.M(atom=atoms, basis=name, ecp={heavy.symbol: name}, verbose=0, spin=None)
    assert heavy.ecp_electrons == core and heavy.ecp_source is not None
    assert ours.nelectron == theirs.nelectron
    np.testing.assert_allclose(ours.intor("ECPscalar"), theirs.intor("ECPscalar"), atol=1e-12)
    np.testing.assert_allclose(ours.intor("int1e_ovlp"), theirs.intor("int1e_ovlp"), atol=1e-13)


def test_same_scf_energy_as_pyscf_with_a_core_potential() -> None:
    atoms = [("I", (0, 0, 0)), ("H", (0, 0, 1.609))]
    ours = scf.RHF(make_mole(atoms, resolve_orbital("def2-svp", ["I", "H"]))).run(conv_tol=1e-11)
    theirs = scf.RHF(gto.M(atom=atoms, basis="def2-svp", ecp={"I": "def2-svp"}, verbose=0)).run(conv_tol=1e-11)
    assert ours.e_tot == pytest.approx(theirs.e_tot, abs=1e-9)


def test_a_potential_kept_in_another_file_is_found() -> None:
    """PySCF's cc-pwCVDZ-PP file has no potential; Cu, Ag, Au have 10, 28 and 60 core electrons in cc-pVDZ-PP."""
    basis = resolve_orbital("cc-pwcvdz-pp", ["Cu", "Ag", "Au"])
    assert [element.ecp_electrons for element in basis.elements.values()] == [10, 28, 60]
    pseudo = resolve_orbital("ccECP-cc-pVDZ", ["H", "O"])
    assert [element.ecp_electrons for element in pseudo.elements.values()] == [0, 2]
    assert pseudo.elements["H"].ecp is not None


@pytest.mark.parametrize(("name", "symbol"), [("def2-mtzvpp", "I"), ("cc-pvdz-pp-nr", "Au"), ("minao", "Au")])
def test_valence_functions_without_potential_are_refused(name: str, symbol: str) -> None:
    with pytest.raises(InputError, match="core potential they were made for is missing"):
        resolve_orbital(name, [symbol])


def test_no_set_leaves_core_electrons_without_functions(no_exchange: None) -> None:
    """Every element PySCF's files offer has a potential, is refused, or has an s function sharp as its 1s orbital.

    STO-3G, the softest all-electron set, has exponents from 1.59 Z^2; valence sets without their potential are below.
    """
    with shielded():
        from dfmp2.reference.basis_library import find_element

        for key in library_pyscf.pyscf_index():
            for number, symbol in [(8, "O"), (29, "Cu"), (38, "Sr"), (53, "I"), (79, "Au")]:
                element = find_element(key, symbol) if kind(key) is None else None
                if element is not None and element.ecp is None:
                    sharpest = max(row[0] for shell in element.shells if shell[0] == 0 for row in shell[1:])
                    assert sharpest > 1.5 * number**2, (key, symbol)


def test_families_leave_elements_to_the_set_they_extend() -> None:
    core = resolve_orbital("cc-pCVDZ", ["O", "H"])
    assert core.elements["H"].name == "cc-pvdz"
    assert count(core, "O") == count(resolve_orbital("cc-pvdz", ["O"]), "O") + 4  # 1s1p of Woon and Dunning 1995
    heavy = resolve_orbital("heavy-aug-cc-pVDZ", ["O", "H"])
    assert [heavy.elements[s].name for s in ("O", "H")] == ["aug-cc-pvdz", "cc-pvdz"]
    mixed = resolve_orbital("cc-pvdz-pp", ["Ag", "C", "H"])
    assert [e.name for e in mixed.elements.values()] == ["cc-pvdz-pp", "cc-pvdz", "cc-pvdz"]
    assert mixed.elements["C"].ecp is None


def test_start_orbital_data_have_one_shell_per_momentum() -> None:
    data = load_pyscf_element("ano", "Fe")
    assert data == gto.basis.load("ano", "Fe")
    assert [shell[0] for shell in data] == list(range(len(data)))


@pytest.mark.parametrize(
    ("name", "symbol", "message"),
    [
        ("cc-pvdzz", "O", "did you mean cc-pvdz"),
        ("cc-pvdz-ri", "O", "an MP2 fitting set, expected an orbital basis"),
        ("def2-universal-jkfit", "O", "Coulomb-exchange fitting set, expected an orbital basis"),
        ("cc-pvdz", "Rb", "cc-pvdz has no functions for Rb"),
        ("6-31g(xyz)", "O", "no basis set of this name"),
        ("iglo3", "H", "no functions for H"),  # spinor data
    ],
)
def test_refusals_name_the_set_and_the_way_out(name: str, symbol: str, message: str) -> None:
    with pytest.raises(InputError, match=message):
        resolve_orbital(name, [symbol])


# --- fitting sets -----------------------------------------------------------------------------------


def test_partners_are_those_pyscf_publishes() -> None:
    """Every row of PySCF's table of Psi4 defaults leads to the same data files here."""

    def file(name: str) -> Any:
        return ALIAS[name.replace("-", "")]

    published = df.addons.DEFAULT_AUXBASIS
    assert len(published) >= 27
    for orbital, (jk, ri) in published.items():
        partners = find_partners(orbital)
        assert partners is not None, orbital
        assert (file(partners.jk[0]), file(partners.ri[0])) == (file(jk), file(ri)), orbital


def test_all_partners_exist_and_are_of_their_kind() -> None:
    known = set(library_pyscf.pyscf_index()) | set(library_pyscf.exchange_listing())
    for orbital, partners in PARTNERS.items():
        assert {kind(name) for name in partners.jk} == {"jk"}, orbital
        assert {kind(name) for name in partners.ri} == {"ri"}, orbital
        assert {squash(name) for name in (*partners.jk, *partners.ri)} <= known, orbital


@pytest.mark.parametrize(("name", "row"), [("6-31+G(2df,p)", "631+g"), ("6-311++G**", "6311++g"), ("3-21G*", "321g")])
def test_polarisation_does_not_change_the_pople_row(name: str, row: str) -> None:
    assert find_partners(name) == PARTNERS[row]


def test_elements_a_jk_family_lacks_get_the_universal_set(no_exchange: None) -> None:
    orbital = resolve_orbital("cc-pvdz", ["Na", "He", "O"])
    jk = resolve_fitting("jk", None, orbital, ["Na", "He", "O"])
    assert [e.name for e in jk.elements.values()] == ["def2-universal-jkfit", "def2-universal-jkfit", "cc-pvdz-jkfit"]


def test_defaults_do_not_depend_on_the_exchange(monkeypatch: pytest.MonkeyPatch) -> None:
    symbols = ["H", "Li", "O", "Na", "Br"]
    sets = ["cc-pvdz", "cc-pvtz", "def2-svp", "6-31g*", "ma-def2-tzvp"]

    def resolve() -> list[str]:
        found = []
        for name in sets:
            orbital = resolve_orbital(name, symbols)
            for basis in (
                orbital,
                resolve_fitting("jk", None, orbital, symbols),
                resolve_fitting("ri", None, orbital, symbols),
            ):
                found += [element.source + element.sha256 for element in basis.elements.values()]
        return found

    with_exchange = resolve()
    monkeypatch.setitem(sys.modules, "basis_set_exchange", None)
    assert resolve() == with_exchange


@pytest.mark.parametrize(
    ("name", "message"),
    [
        ("cc-pvdz", "is an orbital basis, not a fitting set; its MP2 fitting set is cc-pvdz-ri"),
        ("heavy-aug-cc-pvdz", "is an orbital basis"),
        ("aug-cc-pvdz-optri", "complementary set for explicitly correlated methods, not a fitting set"),
        ("cc-pvdz-rj", "did you mean cc-pvdz-ri"),
        ("cc-pvdz-jkfit", "cc-pvdz-jkfit has no functions for He"),
        ("cc-pvdz.dat", "basis set name"),
    ],
)
def test_refused_fitting_sets(name: str, message: str) -> None:
    with pytest.raises(InputError, match=message):
        resolve_fitting("ri", name, resolve_orbital("cc-pvdz", ["He"]), ["He"])


def test_unknown_partner_names_the_option() -> None:
    orbital = resolve_orbital("dzp", ["O"])
    with pytest.raises(InputError, match=r"no MP2 fitting set is known for dzp.*--auxbasis auto generates"):
        resolve_fitting("ri", None, orbital, ["O"])
    assert resolve_fitting("jk", None, orbital, ["O"]).elements["O"].name == "def2-universal-jkfit"
    named = resolve_fitting("ri", "def2-SVP-JKFIT", orbital, ["O"])
    assert named.elements["O"].name == "def2-universal-jkfit" and named.name == "def2-SVP-JKFIT"


def test_generated_set_fits_like_an_optimised_one() -> None:
    """DF-MP2 against four-index MP2 of water/cc-pVDZ: within the 15 microhartree cc-pvdz-ri itself is off."""
    orbital = resolve_orbital("cc-pvdz", ["O", "H"])
    mf = scf.RHF(make_mole(WATER, orbital)).run(conv_tol=1e-10)
    exact = mp.MP2(mf).run().e_corr
    for name in ("auto", "cc-pvdz-ri"):
        fitting = resolve_fitting("ri", name, orbital, ["O", "H"])
        fitted = mp.dfmp2.DFMP2(mf)
        fitted.with_df = df.DF(mf.mol, auxbasis={s: to_pyscf(e) for s, e in fitting.elements.items()})
        assert fitted.kernel()[0] == pytest.approx(exact, abs=16e-6)
    element = resolve_fitting("ri", "AUTO", orbital, ["O"]).elements["O"]
    assert element.name == "auto(cc-pvdz)" and "AutoAux" in element.source and "cc-pvdz" in element.source
    assert max(shell[0] for shell in element.shells) == 3


# --- Basis Set Exchange -----------------------------------------------------------------------------


def exchange_element(name: str, symbol: str) -> ElementBasis:
    pytest.importorskip("basis_set_exchange")
    with shielded():
        element = library_exchange.find_exchange_element(normalise(name), symbol)
    assert element is not None
    return element


@pytest.mark.exchange
@pytest.mark.parametrize(("name", "symbol"), [("def2-svp", "I"), ("lanl2dz", "Au"), ("def2-tzvp", "Rn")])
def test_exchange_and_pyscf_agree_on_core_potentials(name: str, symbol: str) -> None:
    ours = resolve_orbital(name, [symbol]).elements[symbol]
    assert ours.source.startswith("PySCF")
    np.testing.assert_allclose(
        np.array(terms(exchange_element(name, symbol).ecp)[1]), np.array(terms(ours.ecp)[1]), rtol=1e-7
    )


@pytest.mark.exchange
@pytest.mark.parametrize(
    ("name", "symbol"), [("cc-pvtz", "Cl"), ("def2-svp", "I"), ("6-31g", "C"), ("cc-pvdz-ri", "O")]
)
def test_exchange_functions_span_the_same_space_as_pyscf_files(name: str, symbol: str) -> None:
    exchange = exchange_element(name, symbol)
    role_free = library_pyscf.find_pyscf_element(normalise(name), symbol)
    assert role_free is not None
    mole = gto.M(atom=[(symbol, (0, 0, 0))], basis={symbol: to_pyscf(exchange)}, spin=None, verbose=0)
    other = gto.M(atom=[(symbol, (0, 0, 0))], basis={symbol: to_pyscf(role_free)}, spin=None, verbose=0)
    cross = gto.intor_cross("int1e_ovlp", mole, other)
    overlaps = np.linalg.solve(mole.intor("int1e_ovlp"), cross) @ np.linalg.solve(other.intor("int1e_ovlp"), cross.T)
    assert mole.nao == other.nao
    assert np.trace(overlaps) == pytest.approx(mole.nao, abs=1e-4)


@pytest.mark.exchange
def test_iodine_takes_its_fitting_set_from_the_exchange() -> None:
    """Turbomole's def2-SVP set of iodine is (9s,8p,7d,4f,2g)."""
    pytest.importorskip("basis_set_exchange")
    orbital = resolve_orbital("def2-svp", ["I", "H"])
    ri = resolve_fitting("ri", None, orbital, ["I", "H"])
    iodine = ri.elements["I"]
    assert [sum(shell[0] == momentum for shell in iodine.shells) for momentum in range(6)] == [9, 8, 7, 4, 2, 0]
    assert iodine.name == "def2-svp-rifit"
    assert iodine.source.startswith("basis-set-exchange") and iodine.source.endswith("def2-SVP-RIFIT, revision 1")
    assert ri.elements["H"].source.startswith("PySCF")


@pytest.mark.exchange
def test_psi4_energy_of_neon_xenon_with_a_core_potential() -> None:
    """Psi4's test dfmp2-ecp: total DF-MP2 energy of NeXe, all electrons correlated, default sets of def2-SVP."""
    pytest.importorskip("basis_set_exchange")
    symbols = ["Ne", "Xe"]
    orbital = resolve_orbital("def2-svp", symbols)
    jk, ri = (
        {
            symbol: to_pyscf(element)
            for symbol, element in resolve_fitting(role, None, orbital, symbols).elements.items()
        }
        for role in ("jk", "ri")
    )
    mole = make_mole([("Ne", (0, 0, 0)), ("Xe", (0, 0, 3.0))], orbital)
    mf = scf.RHF(mole).density_fit(auxbasis=jk)
    mf.run(conv_tol=1e-11)
    fitted = mp.dfmp2.DFMP2(mf)
    fitted.with_df = df.DF(mole, auxbasis=ri)
    assert mf.e_tot + fitted.kernel()[0] == pytest.approx(-457.47320868249, abs=1e-8)


@pytest.mark.parametrize(
    ("name", "symbol", "message"),
    [
        ("def2-sv(p)", "O", r"PySCF 2\.\S+ has no such set, the Basis Set Exchange has: pip install 'dfmp2\[bse\]'"),
        ("cc-pwcvtz", "O", r"cc-pwcvtz has no functions for O in PySCF.*pip install 'dfmp2\[bse\]'"),
        ("cc-pvdzz", "O", "did you mean cc-pvdz"),
    ],
)
def test_without_the_exchange_orbital_sets(no_exchange: None, name: str, symbol: str, message: str) -> None:
    with pytest.raises(InputError, match=message):
        resolve_orbital(name, [symbol])


def test_without_the_exchange_fitting_sets(no_exchange: None) -> None:
    orbital = resolve_orbital("def2-svp", ["I"])
    with pytest.raises(InputError, match=r"def2-svp-ri has no functions for I.*dfmp2\[bse\].*--auxbasis auto"):
        resolve_fitting("ri", None, orbital, ["I"])
    generated = resolve_fitting("ri", "auto", orbital, ["I"])
    assert generated.elements["I"].ecp is None and count(generated, "I") > 100


# --- hostile working directory ----------------------------------------------------------------------


def test_files_named_like_basis_sets_change_nothing(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    def resolve() -> list[str]:
        library_pyscf.find_pyscf_element.cache_clear()
        orbital = resolve_orbital("cc-pvdz", ["H"])
        sets = [orbital] + [resolve_fitting(role, None, orbital, ["H"]) for role in ("jk", "ri")]
        assert load_pyscf_element("ano", "H")
        return [basis.elements["H"].sha256 for basis in sets]

    before = resolve()
    for name in ("cc-pvdz", "ccpvdz", "cc-pvdz-jkfit", "cc-pvdz-ri", "ano", "cc-pvdz.dat", "cc-pvdz-ri.dat"):
        (tmp_path / name).write_text("#BASIS SET: planted\nH    S\n      1.0    1.0\nEND\n")
    monkeypatch.chdir(tmp_path)
    assert gto.basis.load("cc-pvdz", "H") == [[0, [1.0, 1.0]]]  # PySCF takes the planted file
    assert resolve() == before


def test_planted_expressions_are_not_executed(tmp_path: Path) -> None:
    """PySCF evaluates lines of such a file; resolving the name in a fresh process leaves no trace of it."""
    for name in ("cc-pvdz", "cc-pvdz-ri"):
        (tmp_path / name).write_text("H    S\n      1.0    [open('marker','w'),1.0][1]\nEND\n")
    (tmp_path / ".pyscf_conf.py").write_text("open('marker', 'w')\n")
    (tmp_path / "basis_set_exchange.py").write_text("open('marker', 'w')\n")
    code = """
import sys
from dfmp2.reference.basis import resolve_orbital; from dfmp2.reference.fitting_sets import resolve_fitting
assert "pyscf" not in sys.modules
orbital = resolve_orbital("cc-pvdz", ["H"])
print(len(orbital.elements["H"].shells), len(resolve_fitting("ri", None, orbital, ["H"]).elements["H"].shells))
assert "basis_set_exchange" not in sys.modules  # slow: imported only when needed
try:
    resolve_orbital("cc-pvdzz", ["H"])
except Exception as error:
    print(type(error).__name__)
"""
    environment = os.environ | {"PYTHONPATH": str(Path(dfmp2.__file__).parents[1])}
    done = subprocess.run(
        [sys.executable, "-c", code], cwd=tmp_path, env=environment, capture_output=True, text=True, check=False
    )
    assert (done.returncode, done.stdout.split()) == (0, ["3", "6", "InputError"]), done.stderr
    assert not (tmp_path / "marker").exists()
