"""Double hybrids: energies of other programs, explicit formulas, and every part of the program that
handles them."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import numpy as np
import pytest
from pyscf import df, dft, gto, lib, scf
from pyscf.dft import libxc

import dfmp2
from dfmp2.double_hybrids import look_up, table
from dfmp2.errors import InputError
from dfmp2.host.scratch import Room, Space
from dfmp2.interop.pyscf import DFMP2
from dfmp2.molecule.molecule import Molecule
from dfmp2.mp2.dispersion import dispersion_energy
from dfmp2.scf import kohn_sham
from dfmp2.scf.integrals import ScfIntegrals
from tests.awkward import mole_of, spin_energies
from tests.conftest import Runner, succeed
from tests.recorded import recorded_error
from tests.test_drawn_functionals import of_package

pytestmark = pytest.mark.usefixtures("coarse_grid_error")
ANGSTROM = 1 / 0.52917721092  # bohr
EXACT: dict[str, Any] = {"precision": "fp64", "scf_conv_tol": 1e-11, "threads": 1}
# Neither molecule has any symmetry, and one is a charged doublet.
CROOKED = Molecule(
    ("O", "H", "H"), np.array([[0.02, 0.0, 0.22], [0.1, 1.51, -0.89], [0.0, -1.38, -0.97]])
)
CATION = CROOKED.with_state(1, 2)
SMALL: dict[str, Any] = {"basis": "6-31g", "auxbasis": "cc-pvdz-ri", "grid": "0", **EXACT}


# --- the table ------------------------------------------------------------------------------------


@pytest.mark.parametrize("name", [name for name in table() if not table()[name].unavailable])
def test_every_row_is_a_functional_with_the_exact_exchange_that_it_says(name: str) -> None:
    row = table()[name]
    for xc in filter(None, (row.scf, row.energy)):
        kohn_sham.require_functional(xc)
    exact = kohn_sham.exact_exchange(row.energy or row.scf)
    assert (exact.short_range, exact.long_range, exact.omega) == pytest.approx(
        row.exact_exchange, abs=1e-12
    )
    assert row.doi.startswith("10.") and row.checked and row.title
    assert bool(row.p86) is ("P86" in row.scf)
    assert look_up(row.title) is look_up(name) is row
    assert "".join(row.name.split("-")) not in libxc.XC_CODES
    if name in PARAMETERS_ELSEWHERE:
        xc, *factors = PARAMETERS_ELSEWHERE[name]
        assert [row.opposite_spin, row.same_spin] == pytest.approx(factors, abs=1e-10)
        assert kohn_sham.same_functional(row.scf, xc) or name == "pbe-qidh"  # of ten digits
    stem = row.name.removesuffix("-d3bj").removesuffix("-d4").replace("pbepbe", "pbe")
    for parameters in filter(None, (row.d3bj, row.d4)):
        assert parameters.removesuffix("_2013").replace("_", "") == stem.replace("-", "")


# --- energies of other programs -------------------------------------------------------------------

# cc-pvdz and cc-pvdz-ri, 99,590 points; MolSSI/QCEngine: programs/tests/standard_suite_ref.py
PSI4 = [
    ("hf", "df", 0, -100.30059075049887, -100.36460581122108),
    pytest.param(
        *("bh3p", "df", 1, -26.052883921973326, -26.07261103657124), marks=pytest.mark.slow
    ),
    pytest.param(
        *("bh3p", "conventional", 0, -26.052881346171045, -26.072937889148395),
        marks=pytest.mark.slow,
    ),
]
MOLECULES = {
    "hf": Molecule(("H", "F"), np.array([[0.0, 0.0, -1.64558411], [0.0, 0.0, 0.08729475]])),
    "bh3p": Molecule(
        ("B", "H", "H", "H"),
        np.array([[0, 0, 0.10369114], [0, 0, -1.13269886], [0, -0.37149, 3.0], [0, 0.37149, 3.0]])
        / 0.52917721067,
        charge=1,
        multiplicity=2,
    ),
}


@pytest.mark.parametrize(("name", "scf", "core", "functional", "total"), PSI4, ids=str)
def test_b2plyp_has_the_energies_of_psi4(
    name: str, scf: str, core: int, functional: float, total: float
) -> None:
    found = dfmp2.run(
        MOLECULES[name],
        basis="cc-pvdz",
        auxbasis="cc-pvdz-ri",
        method="b2plyp",
        scf=scf,
        scf_auxbasis="cc-pvdz-jkfit" if scf == "df" else None,
        frozen_core=core,
        grid="75,302",
        **EXACT,
    )
    assert (found.scf_total_energy, found.total_energy) == pytest.approx(
        (functional, total), abs=1e-6
    )


def test_a_functional_of_factors_has_the_energies_of_orca() -> None:
    """ORCA 6.1.1, REVDSD-PBEP86-D4/2021 def2-TZVPP with def2-TZVPP/C, one frozen core orbital, the
    factors that it prints, the dispersion left out; github.com/avcopan/
    project-cyclopentene-oh-addition, calc/basis/H2O/opt_orca.out, the first geometry. It fits J
    with def2/J, off by 1.6e-4 Eh, and does exchange on a grid."""
    places = np.array(
        [
            [-2.706239, 2.740084, -3.445676],
            [-2.275532, 2.170898, -2.818764],
            [-2.128049, 2.893214, -4.183746],
        ]
    )
    found = dfmp2.run(
        Molecule(("O", "H", "H"), places * ANGSTROM),
        basis="def2-tzvpp",
        method="custom-dh",
        xc="0.69*HF + 0.31*PBE, 0.4224*GGA_C_P86VWN",
        os_scale=0.5935,
        ss_scale=0.0566,
        frozen_core=1,
        grid="50,194",
        threads=1,
    )
    assert found.scf_total_energy == pytest.approx(-76.211646763, abs=2e-4)
    assert found.correlation_energy == pytest.approx(-0.133523691, abs=2e-6)


OTHERS = [  # pyscf/pyscf-forge: pyscf/dh/test/test_dfdh_extra.py; ORCA 5.0.4 and Q-Chem 5.1.1
    pytest.param("wb2plyp", -76.223828450855, marks=pytest.mark.slow),
    pytest.param("rsx-qidh", -76.208221215310, marks=pytest.mark.slow),
    pytest.param("wpbepp86", -76.261632401477, marks=pytest.mark.slow),
    ("wb97x-2(lp)", -76.28031455),
    pytest.param("pwpb95", -76.30404653, marks=pytest.mark.slow),
    pytest.param("ptpss", -76.28365901, marks=pytest.mark.slow),
    pytest.param("dsd-pbepbe-d3bj", -76.20415120, marks=pytest.mark.slow),
]


@pytest.mark.parametrize(("method", "total"), OTHERS, ids=str)
def test_water_has_the_energies_of_orca_and_q_chem(method: str, total: float) -> None:
    """Their integrals are not fitted and all grids differ: within 5e-6 Eh."""
    bent = np.array(
        [[0, 0, 0], [0, -0.743248199319, 0.575484243232], [0, 0.743248199319, 0.575484243232]]
    )
    found = dfmp2.run(
        Molecule(("O", "H", "H"), bent * ANGSTROM),
        basis="6-31g",
        auxbasis="aug-cc-pv5z-ri",
        method=method,
        scf="conventional",
        grid="75,302",
        allow_poor_fit=True,
        **EXACT,
    )
    assert found.total_energy == pytest.approx(total, abs=1e-5)


# Functional of the orbitals, that of the energy, opposite and same spin; pyscf/pyscf-forge,
# pyscf/dh/util/xccode/functionals/family_xdh.json and family_bdh.json.
OF_ENERGY = {
    "xyg3": ("B3LYPg", "0.8033*HF - 0.0140*LDA + 0.2107*B88, 0.6789*LYP", 0.3211, 0.3211),
    "xdh-pbe0": ("PBE0", "0.8335*HF + 0.1665*PBE, 0.5292*PBE", 0.5428, 0.0),
    "mpw2plyp": ("0.55*HF + 0.45*mPW91, 0.75*LYP", "", 0.25, 0.25),
}

# Functional in PySCF's notation, opposite and same spin, as defined by these programs: Psi4 1.3.2,
# driver/procrouting/dft/dh_functionals.py, down to pbe0-2; an ORCA input,
# github.com/baaam24/gellrich_scripts, custom_2input/5_revDSD_sp.sh, revdsd-pbep86-d4;
# pyscf/pyscf-forge, pyscf/dh/util/xccode/functionals/family_bdh.json, pbe-qidh (3^(-1/3) and 1/3
# rounded to ten digits) and revdsd-pbep86-d3bj (with another local part of P86);
# welltemperedpaprika/kdh, kdh/xc.py, revdsd-blyp-d3bj; qcserenity/serenity,
# src/dft/functionals/CompositeFunctionals.cpp, b2k-plyp and b2t-plyp.
PARAMETERS_ELSEWHERE = {
    "dsd-blyp": ("0.75*HF + 0.25*B88, 0.53*LYP", 0.46, 0.60),
    "dsd-blyp-d3bj": ("0.71*HF + 0.29*B88, 0.54*LYP", 0.47, 0.40),
    "dsd-pbep86": ("0.72*HF + 0.28*PBE, 0.44*P86", 0.51, 0.36),
    "dsd-pbep86-d3bj": ("0.69*HF + 0.31*PBE, 0.44*P86", 0.52, 0.22),
    "dsd-pbepbe": ("0.72*HF + 0.28*PBE, 0.48*PBE", 0.54, 0.31),
    "dsd-pbepbe-d3bj": ("0.68*HF + 0.32*PBE, 0.49*PBE", 0.55, 0.13),
    "dsd-pbeb95": ("0.69*HF + 0.31*PBE, 0.54*MGGA_C_BC95", 0.48, 0.22),
    "dsd-pbeb95-d3bj": ("0.66*HF + 0.34*PBE, 0.55*MGGA_C_BC95", 0.46, 0.09),
    "b2gp-plyp": ("0.65*HF + 0.35*B88, 0.64*LYP", 0.36, 0.36),
    "pbe0-2": ("0.793701*HF + 0.206299*PBE, 0.5*PBE", 0.5, 0.5),
    "revdsd-pbep86-d4": ("0.69*HF + 0.31*PBE, 0.421*P86", 0.5922, 0.0636),
    "pbe-qidh": (
        "0.6933612744*HF + 0.3066387256*PBE, 0.6666666667*PBE",
        0.3333333333,
        0.3333333333,
    ),
    "revdsd-pbep86-d3bj": ("0.69*HF + 0.31*PBE, 0.4296*P86", 0.5785, 0.0799),
    "revdsd-blyp-d3bj": ("0.71*HF + 0.29*B88, 0.5313*LYP", 0.5477, 0.1979),
    "b2k-plyp": ("0.72*HF + 0.28*B88, 0.58*LYP", 0.42, 0.42),
    "b2t-plyp": ("0.60*HF + 0.40*B88, 0.69*LYP", 0.31, 0.31),
}
DEFINED = {
    **OF_ENERGY,
    **{name: (xc, "", *factors) for name, (xc, *factors) in PARAMETERS_ELSEWHERE.items()},
}


@pytest.mark.parametrize(
    ("method", "molecule"),
    [
        ("xyg3", CROOKED),
        ("xdh-pbe0", CATION),
        ("mpw2plyp", CROOKED),
        ("dsd-pbeb95", CATION),
        *(
            pytest.param(name, CATION, marks=pytest.mark.slow)
            for name in PARAMETERS_ELSEWHERE
            if name != "dsd-pbeb95"
        ),
    ],
    ids=str,
)
def test_the_formula_with_the_functional_of_the_orbitals_and_that_of_the_energy(
    method: str, molecule: Molecule
) -> None:
    """PySCF's UKS, its energy with the other functional and these orbitals, and sums over
    integrals."""
    of_orbitals, of_energy, os_scale, ss_scale = DEFINED[method]
    found = dfmp2.run(molecule, method=method, dispersion="none", **SMALL)
    mole = mole_of(molecule)
    jk = {symbol: found.scf_fitting.elements[symbol].shells for symbol in set(molecule.symbols)}
    basis = {s: [list(shell) for shell in shells] for s, shells in jk.items()}
    mf = dft.UKS(mole, xc=of_orbitals).density_fit(auxbasis=basis)
    mf.grids.level, mf.conv_tol = 0, 1e-12
    mf.run()
    same, opposite = spin_energies(mf, 0, auxbasis="cc-pvdz-ri")
    expected = mf.e_tot
    if of_energy:
        other = dft.UKS(mole, xc=of_energy).density_fit(auxbasis=basis)
        other.grids = mf.grids
        expected = other.energy_tot(mf.make_rdm1())
        assert found.functional_energy == pytest.approx(expected, abs=1e-8)
    assert found.scf_total_energy == pytest.approx(mf.e_tot, abs=1e-9)
    assert found.components == pytest.approx((same, opposite), abs=1e-8)
    total = expected + os_scale * opposite + ss_scale * same
    assert found.total_energy == pytest.approx(total, abs=2e-8)


# --- dispersion -----------------------------------------------------------------------------------

ARGON = Molecule(
    ("Ar", "Ne", "H"), np.array([[0.0, 0.0, 0.0], [0.3, 5.5, 1.0], [4.0, -3.0, 0.0]]), charge=1
)


@pytest.mark.parametrize(
    ("correction", "functional"), [("d3bj", "b2plyp"), ("d4", "b2plyp"), ("d4", "pbe0_dh")]
)
def test_dispersion_energies_are_those_of_the_package_by_the_name_of_the_functional(
    correction: str, functional: str
) -> None:
    found = dispersion_energy(ARGON, correction, functional)
    assert found.energy == pytest.approx(of_package(ARGON, correction, functional), abs=1e-12)
    assert found.energy < -1e-5 and found.doi.startswith("10.")
    assert found.s9 == (1.0 if correction == "d4" else 0.0)


# --- range separation -----------------------------------------------------------------------------


def bent_water() -> tuple[Any, Any, Any]:
    """PySCF's molecule, its fitting functions, and a density of orbitals drawn at random."""
    mole = gto.M(atom="O 0 0 0; H 0 0 1.8; H 0 1.7 0.4", unit="bohr", basis="cc-pvdz", verbose=0)
    orbitals = np.linalg.qr(np.random.default_rng(0).standard_normal((mole.nao, 5)))[0]
    return mole, df.addons.make_auxmol(mole, "cc-pvdz-jkfit"), orbitals @ orbitals.T


@pytest.mark.parametrize("omega", [0.05, 0.3, 1.2])
def test_long_range_exchange_is_that_of_pyscf_and_of_four_centre_integrals(omega: float) -> None:
    """It is fitted with its own integrals and metric, with eigenvalues cut at 1e-12 of the
    largest."""
    mole, auxmole, density = bent_water()
    builder = ScfIntegrals(auxmole, "memory", threads=1).builder(mole)
    with mole.with_range_coulomb(omega), auxmole.with_range_coulomb(omega):
        exact = dft.RKS(mole).get_jk(mole, density)
        cut = 1e-12 * np.linalg.eigvalsh(auxmole.intor("int2c2e"))[-1]
        packed = df.incore.cholesky_eri(mole, auxmol=auxmole, decompose_j2c="eig", lindep=cut)
    b = lib.unpack_tril(packed)
    fitted = (
        np.einsum("Pmn,Pls,ls->mn", b, b, density, optimize=True),
        np.einsum("Pml,Psn,ls->mn", b, b, density, optimize=True),
    )
    found = builder.get_jk(density, omega=omega)
    np.testing.assert_allclose(found, fitted, rtol=0, atol=1e-12)
    # Measured: 3e-14, 1.1e-8 and 8.0e-4; the closer the operator is to 1/r, the larger the fit
    # error.
    assert np.abs(found[1] - exact[1]).max() < {0.05: 1e-12, 0.3: 1e-7, 1.2: 1e-3}[omega]


def test_long_range_integrals_on_disk_have_the_bits_of_those_in_memory(tmp_path: Path) -> None:
    mole, auxmole, density = bent_water()
    with Space(tmp_path, 10**9) as space:
        room = Room(space, 10**5, 10**6)
        stored = ScfIntegrals(auxmole, "disk", threads=2, room=room)
        on_disk = stored.builder(mole).get_jk(density, omega=0.25)
    resident = ScfIntegrals(auxmole, "memory", threads=2)
    in_memory = resident.builder(mole).get_jk(density, omega=0.25)
    for first, second in zip(on_disk, in_memory, strict=True):
        assert np.array_equal(first, second)


# --- every front end ------------------------------------------------------------------------------


@pytest.mark.parametrize("method", ["wb97x-2", "xyg3"])
def test_compare_and_check_repeat_it(method: str, call: Runner) -> None:
    """Against PySCF's Kohn-Sham, numerical integration and unscaled DF-MP2."""
    asked = ("--basis", "6-31g", "--auxbasis", "cc-pvdz-ri", "--grid", "0", "--method", method)
    succeed(call("run", "h2.xyz", *asked, "--check", "--output", "r.h5"))
    assert succeed(call("compare", "r.h5", "--json")).json["passed"]


def test_a_mean_field_of_pyscf() -> None:
    """Factors of a double hybrid by name or by hand; another functional is refused."""
    mf = dft.UKS(mole_of(CATION, "sto-3g"), xc="0.53*HF+0.47*B88,0.73*LYP")
    mf.grids.level, mf.conv_tol = 0, 1e-11
    mf.run()
    given = {"auxbasis": "cc-pvdz-ri", "precision": "fp64"}
    by_name = DFMP2(mf, method="b2plyp", **given).run()
    same, opposite = spin_energies(mf, 0, auxbasis="cc-pvdz-ri")
    assert by_name.e_corr == pytest.approx(0.27 * (same + opposite), abs=1e-8)
    assert by_name.e_tot == pytest.approx(mf.e_tot + by_name.e_corr, abs=1e-10)
    own = dfmp2.from_mean_field(mf, method="custom-dh", os_scale=0.27, ss_scale=0.27, **given)
    assert own.total_energy == pytest.approx(by_name.e_tot, abs=1e-10)
    with recorded_error(InputError):
        dfmp2.from_mean_field(mf, method="xyg3")
    with recorded_error(InputError):
        dfmp2.from_mean_field(scf.UHF(mole_of(CATION, "sto-3g")).run(), method="b2plyp")
