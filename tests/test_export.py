"""Exported files, read back by other packages: orbitals stay orthonormal and reproduce the SCF
energy.

Every reader makes its own shells and orbitals from the file; PySCF evaluates overlap and energy
from these alone, which reveals a wrong order, sign, norm, unit or core potential.
"""

from __future__ import annotations

import itertools
import json
import math
from collections.abc import Sequence
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from pyscf import gto, scf
from scipy.spatial.transform import Rotation

import dfmp2
from dfmp2.errors import InputError
from dfmp2.interop import qcschema as qcschema_input
from dfmp2.molecule.molecule import Molecule
from dfmp2.mp2.identity import fingerprint
from dfmp2.mp2.result import MP2Result
from dfmp2.output.export import conventions, export
from dfmp2.output.export.qcschema import qcschema
from dfmp2.output.text import report
from tests.recorded import recorded_error

ENERGY = 2e-9  # Eh; fitted SCF energies of the same orbitals differ by rounding alone
ORTHONORMAL = 1e-10


def _tilted(points: Sequence[Sequence[float]]) -> np.ndarray:
    """Rotated off every symmetry axis and shifted, so that each function of a shell takes part."""
    turn = Rotation.from_rotvec([0.2, 0.4, 0.6])
    return turn.apply(points) + [0.3, -0.2, 0.5]


# One shell of each angular momentum that Molden knows, of which one is contracted, and an h shell.
UP_TO_G = """****
O 0
S 3 1.0
 130.7 0.1543
 23.8 0.5353
 6.44 0.4446
S 1 1.0
 0.9 1.0
P 2 1.0
 5.0 0.4
 1.1 0.7
P 1 1.0
 0.3 1.0
D 1 1.0
 1.2 1.0
F 1 1.0
 1.4 1.0
G 1 1.0
 1.5 1.0
****
"""
H_SHELL = "****\nHe 0\nS 1 1.0\n 1.3 1.0\nS 1 1.0\n 0.4 1.0\nH 1 1.0\n 1.2 1.0\n****\n"
# name -> (molecule, basis, MP2 set, SCF fitting set); OH: UHF and g functions; HI: core potential
# and ghosts
CASES = {
    "oh": (
        Molecule(("O", "H"), _tilted([(0, 0, 0), (0, 0, 1.83)]), multiplicity=2),
        "6-31g,O=FOLDER/g.gbs",
        "cc-pvqz-ri",
        "cc-pvqz-jkfit",
    ),
    "hi": (
        Molecule(
            ("I", "H", "I", "H"),
            _tilted([(0, 0, 0), (0, 0, 3.04), (0, 3, 6), (0, -3, 6)]),
            (0, 0, 1, 1),
        ),
        "def2-svp",
        "auto",
        "def2-universal-jkfit",
    ),
}


@pytest.fixture(scope="module", params=CASES)
def case(
    request: pytest.FixtureRequest, tmp_path_factory: pytest.TempPathFactory
) -> tuple[MP2Result, str]:
    """A result and the fitting set of its SCF."""
    molecule, basis, auxbasis, jkfit = CASES[request.param]
    folder = tmp_path_factory.mktemp("basis")
    (folder / "g.gbs").write_text(UP_TO_G)
    result = dfmp2.run(
        molecule,
        basis.replace("FOLDER", str(folder)),
        auxbasis=auxbasis,
        scf_auxbasis=jkfit,
        threads=1,
        stability="off",
        allow_poor_fit=True,
    )
    return result, jkfit


def require_same(
    result: MP2Result,
    jkfit: str,
    *,
    centres: Sequence[tuple[str, bool, Any]],
    shells: list[list[Any]],
    ecp: dict[int, Any],
    mo_coeff: Sequence[np.ndarray],
    mo_occ: Sequence[np.ndarray],
) -> None:
    """Overlap and SCF energy from what was read, against the unit matrix and the stored energy;
    norms of contracted functions, which PySCF would normalise again.

    Parameters
    ----------
    centres : element, whether it is a ghost, and position in bohr
    shells : of each centre, [l, [exponent, coefficient], ...]
    ecp : core potentials in PySCF's form, by centre
    mo_coeff, mo_occ : orbitals of each spin in PySCF's order of these shells
    """
    for momentum, *primitives in itertools.chain(*shells):
        a, c = np.array(primitives).T
        overlap = (2 * np.sqrt(np.outer(a, a)) / np.add.outer(a, a)) ** (momentum + 1.5)
        assert c @ overlap @ c == pytest.approx(1.0, abs=1e-10)
    molecule = result.molecule
    assert [(symbol, ghost) for symbol, ghost, _ in centres] == [
        (symbol, bool(ghost))
        for symbol, ghost in zip(molecule.symbols, molecule.ghost, strict=True)
    ]
    positions = np.array([position for *_, position in centres])
    np.testing.assert_allclose(positions, molecule.coordinates, rtol=0, atol=1e-8)
    mole = gto.Mole()
    mole.verbose, mole.unit = 0, "Bohr"
    labels = [
        f"{'GHOST-' if ghost else ''}{symbol}{i}" for i, (symbol, ghost, _) in enumerate(centres)
    ]
    mole.atom = [
        [label, tuple(position)] for label, position in zip(labels, positions, strict=True)
    ]
    mole.ecp = {labels[i]: potential for i, potential in ecp.items()}
    mole.charge, mole.spin = molecule.charge, molecule.multiplicity - 1
    mole.basis = {}
    mole._basis = dict(zip(labels, shells, strict=True))  # as it is: PySCF would sort a basis
    mole.build()
    overlap = mole.intor("int1e_ovlp")
    for coeff in mo_coeff:
        assert coeff.shape == (result.sizes.nao, result.sizes.nmo)
        np.testing.assert_allclose(
            coeff.T @ overlap @ coeff, np.eye(coeff.shape[1]), rtol=0, atol=ORTHONORMAL
        )
    density = [coeff * occ @ coeff.T for coeff, occ in zip(mo_coeff, mo_occ, strict=True)]
    mf = (scf.RHF if len(density) == 1 else scf.UHF)(mole).density_fit(auxbasis=jkfit)
    energy = mf.energy_tot(density[0] if len(density) == 1 else np.array(density))
    assert energy == pytest.approx(result.scf_total_energy, abs=ENERGY)


def unsorted_rows(momenta: Sequence[int], order: conventions.Order) -> np.ndarray:
    """Positions in a file's order of the functions in PySCF's order."""
    return np.argsort(conventions.rows(momenta, order))


# --- readers --------------------------------------------------------------------------------------


def test_molden_by_iodata(
    case: tuple[MP2Result, str], tmp_path: Path, recwarn: pytest.WarningsRecorder
) -> None:
    """IOData has its own integrals, and warns when it must repair a program's mistakes."""
    iodata = pytest.importorskip("iodata")
    from iodata.overlap import compute_overlap

    result, path = case[0], tmp_path / "result.molden"
    path.write_bytes(export(result, "molden"))
    data = iodata.load_one(str(path), norm_threshold=1e-9)
    lines = path.read_text().splitlines()
    atoms = lines[lines.index("[Atoms] AU") + 1 :][: result.molecule.natom]
    numbers = np.where(result.molecule.ghost, 0, result.molecule.numbers)
    assert [int(row.split()[2]) for row in atoms] == numbers.tolist()
    overlap = compute_overlap(data.obasis, data.atcoords)
    for coeff in (data.mo.coeffsa, data.mo.coeffsb):
        np.testing.assert_allclose(
            coeff.T @ overlap @ coeff, np.eye(coeff.shape[1]), rtol=0, atol=ORTHONORMAL
        )
    np.testing.assert_allclose(data.atcoords, result.molecule.coordinates, rtol=0, atol=1e-14)
    mo = data.mo
    for spin, energies, occupations in ((0, mo.energiesa, mo.occsa), (-1, mo.energiesb, mo.occsb)):
        np.testing.assert_allclose(energies, result.reference.mo_energy[spin], rtol=1e-15)
        np.testing.assert_array_equal(occupations > 0, result.reference.mo_occ[spin] > 0)
    assert data.mo.nelec == sum(result.molecule.check_electrons(result.orbital_basis.ecp_electrons))
    # 28 electrons of the real iodine, none of the ghost
    assert ("[Core]\n1 : 28\n[MO]" in path.read_text()) == ("I" in result.molecule.symbols)
    assert not [str(w.message) for w in recwarn if "iodata" in type(w.message).__module__]


def test_trexio_by_its_library(case: tuple[MP2Result, str], tmp_path: Path) -> None:
    library = pytest.importorskip("trexio")
    result, jkfit = case
    path = tmp_path / "result.trexio.h5"
    path.write_bytes(export(result, "trexio"))
    with library.File(str(path), "r", library.TREXIO_AUTO) as file:

        def read(names: str) -> list[Any]:
            return [getattr(library, f"read_{name}")(file) for name in names.split()]

        labels, charges, points = read("nucleus_label nucleus_charge nucleus_coord")
        momenta, centre, owner = read("basis_shell_ang_mom basis_nucleus_index basis_shell_index")
        exponents, coefficients, factors = read(
            "basis_exponent basis_coefficient basis_prim_factor"
        )
        scales, spin, occ, coeff = read("ao_normalization mo_spin mo_occupation mo_coefficient")
        alpha, beta = result.molecule.check_electrons(result.orbital_basis.ecp_electrons)
        counts = {
            "electron_num": alpha + beta,
            "electron_up_num": alpha,
            "electron_dn_num": beta,
            "nucleus_num": result.sizes.natom,
            "ao_num": result.sizes.nao,
            "mo_num": result.sizes.nmo * result.reference.nspin,
            "basis_shell_num": len(momenta),
            "basis_prim_num": len(exponents),
            "state_energy": result.scf_total_energy,
            "mo_type": {1: "RHF", 2: "UHF"}[result.reference.nspin],
        }
        assert read(" ".join(counts)) == list(counts.values())
        assert read("mo_energy")[0].tolist() == result.reference.mo_energy.ravel().tolist()
        widths = 2 * momenta + 1
        assert read("ao_shell")[0].tolist() == np.repeat(range(len(momenta)), widths).tolist()
        assert set(read("basis_shell_factor")[0]) == {1.0} and set(read("basis_r_power")[0]) == {0}
        ecp: dict[int, Any] = {}
        if library.has_ecp_num(file):
            local, core = read("ecp_max_ang_mom_plus_1 ecp_z_core")
            found: dict[int, dict[int, list[Any]]] = {}
            columns = read("ecp_nucleus_index ecp_ang_mom ecp_power ecp_exponent ecp_coefficient")
            for atom, momentum, power, *term in zip(*columns, strict=True):
                key = -1 if momentum == local[atom] else int(momentum)
                found.setdefault(int(atom), {}).setdefault(key, [[] for _ in range(7)])[
                    power + 2
                ].append(term)
            ecp = {
                atom: [int(core[atom]), [list(one) for one in terms.items()]]
                for atom, terms in found.items()
            }
            columns = (charges.tolist(), core.tolist(), local.tolist())
            assert columns == ([53 - 28, 1, 0, 0], [28, 0, 0, 0], [3, 0, 0, 0])
    shells: list[list[Any]] = [[] for _ in labels]
    for number, momentum in enumerate(momenta):
        mine = owner == number
        shells[centre[number]].append(
            [int(momentum), *zip(exponents[mine], coefficients[mine], strict=True)]
        )
    places = unsorted_rows([int(x) for x in momenta], conventions.alternating)
    spins = [spin == s for s in range(result.reference.nspin)]
    centres = [(s, q == 0, x) for s, q, x in zip(labels, charges, points, strict=True)]
    require_same(
        result,
        jkfit,
        centres=centres,
        shells=shells,
        ecp=ecp,
        mo_coeff=[coeff[s].T[places] for s in spins],
        mo_occ=[occ[s] for s in spins],
    )
    # The norms themselves: int (N r^l exp(-a r^2) sqrt(4 pi / (2l+1)))^2 r^2 dr = 1 for each
    # primitive.
    a, l = exponents, momenta[owner]  # noqa: E741
    radial = 2 * (2 * a) ** (l + 1.5) / np.array([math.gamma(x + 1.5) for x in l])
    np.testing.assert_allclose(factors, np.sqrt(radial * (2 * l + 1) / (4 * math.pi)), rtol=1e-12)
    assert set(scales) == {1.0}


@pytest.mark.parametrize("version", [1, 2])
def test_qcschema_by_qcelemental(case: tuple[MP2Result, str], version: int) -> None:
    pytest.importorskip("qcelemental")
    from qcelemental import models

    result, jkfit = case
    room = models.v1 if version == 1 else models.v2
    document = json.loads(qcschema(result, version))
    record = room.AtomicResult(**document)
    assert (record.return_result, record.stdout) == (result.mp2_total_energy, report(result))
    assert (
        record.properties.mp2_same_spin_correlation_energy
        == result.mp2_same_spin_correlation_energy
    )
    assert record.molecule.fix_com and record.molecule.fix_orientation
    counted = record.properties.calcinfo_nalpha, record.properties.calcinfo_nbeta
    assert sum(counted) == result.sizes.nelectron
    assert counted[0] - counted[1] == result.molecule.multiplicity - 1
    specification = record if version == 1 else record.input_data.specification
    assert specification.model.basis == result.orbital_basis.name
    wavefunction, basis = record.wavefunction, record.wavefunction.basis
    assert basis.nbf == result.sizes.nao
    energies = [wavefunction.scf_eigenvalues_a, wavefunction.scf_eigenvalues_b]
    for found, expected in zip(energies, result.reference.mo_energy, strict=False):
        assert np.array_equal(found, expected)
    shells, ecp, momenta = [], {}, []
    for atom, label in enumerate(basis.atom_map):
        data = basis.center_data[label]
        shells.append(
            [
                [s.angular_momentum[0], *zip(s.exponents, s.coefficients[0], strict=True)]
                for s in data.electron_shells
            ]
        )
        momenta += [s.angular_momentum[0] for s in data.electron_shells]
        if data.ecp_potentials:
            local = max(p.angular_momentum[0] for p in data.ecp_potentials)
            channels = []
            for p in data.ecp_potentials:
                powers: list[list[Any]] = [[] for _ in range(7)]
                for r, a, c in zip(
                    p.r_exponents, p.gaussian_exponents, p.coefficients[0], strict=True
                ):
                    powers[r].append([a, c])
                channels.append(
                    [-1 if p.angular_momentum[0] == local else p.angular_momentum[0], powers]
                )
            ecp[atom] = [data.ecp_electrons, channels]
    assert list(ecp) == [
        atom for atom, symbol in enumerate(result.molecule.symbols[:1]) if symbol == "I"
    ]
    places = unsorted_rows(momenta, conventions.cca)
    names = "a" if wavefunction.restricted else "ab"
    assert wavefunction.restricted == (result.reference.nspin == 1)
    occupied = 2.0 if wavefunction.restricted else 1.0
    molecule = record.molecule
    # It rounds
    np.testing.assert_allclose(molecule.geometry, result.molecule.coordinates, rtol=0, atol=5.1e-9)
    points = np.reshape(document["molecule"]["geometry"], (-1, 3))
    assert np.array_equal(points, result.molecule.coordinates)
    centres = [
        (str(s), not r, x) for s, r, x in zip(molecule.symbols, molecule.real, points, strict=True)
    ]
    require_same(
        result,
        jkfit,
        centres=centres,
        shells=shells,
        ecp=ecp,
        mo_coeff=[getattr(wavefunction, f"scf_orbitals_{s}")[places] for s in names],
        mo_occ=[occupied * getattr(wavefunction, f"scf_occupations_{s}") for s in names],
    )


@pytest.mark.usefixtures("coarse_grid_error")
@pytest.mark.parametrize(
    "changes",
    [
        {"os_scale": 1.6, "ss_scale": 0.2},
        {"method": "kappa-mp2", "kappa": 1.2},
        {"method": "sos-laplace"},
        {"method": "drpa", "xc": "pbe", "grid": "20,86"},
        {"method": "ks", "xc": "pbe0", "grid": "20,86"},
        {"method": "b2plyp", "grid": "20,86"},
        {"method": "b2plyp-d3bj", "grid": "20,86"},
        {"method": "b2plyp", "os_scale": 0.5, "grid": "20,86"},
        {"method": "custom-dh", "xc": "pbe0", "os_scale": 0.3, "ss_scale": 0.1, "grid": "20,86"},
    ],
)
def test_qcschema_of_every_method_asks_for_the_same_energy(changes: dict[str, Any]) -> None:
    """Recompute the input within an exported result; every number in the JSON is finite."""
    hydride = Molecule(("Li", "H"), np.array([[0.0, 0.0, 0.0], [0.0, 0.3, 3.0]]))
    result = dfmp2.run(hydride, basis="6-31g", threads=1, **changes)
    first, second = (json.loads(qcschema(result, version)) for version in (1, 2))
    wanted = ("molecule", "driver", "model", "keywords", "protocols")
    request = qcschema_input.read_request({name: first[name] for name in wanted})
    again = qcschema_input.run(request, threads=1)
    assert again.options == result.options
    assert again.total_energy == pytest.approx(result.total_energy, abs=1e-10)
    same = qcschema_input.read_request(second["input_data"])
    assert (same.options, same.driver) == (request.options, request.driver)
    assert fingerprint(same.molecule, same.options) == fingerprint(request.molecule, again.options)
    energies, properties = first["extras"]["qcvars"], first["properties"]
    assert second["extras"]["qcvars"] == energies and second["properties"] == properties
    double_hybrid = changes.get("method") in ("b2plyp", "b2plyp-d3bj", "custom-dh")
    title = result.options.correlation.title.upper()
    added = result.dispersion_energy or 0.0
    reference = result.total_energy - result.correlation_energy - added
    expected = {
        "CURRENT ENERGY": result.total_energy,
        "CURRENT REFERENCE ENERGY": reference,
        "CURRENT CORRELATION ENERGY": result.correlation_energy,
    }
    if double_hybrid:  # Psi4's names
        expected |= {
            "DFT TOTAL ENERGY": result.total_energy,
            "DFT FUNCTIONAL TOTAL ENERGY": reference,
            "DOUBLE-HYBRID CORRECTION ENERGY": result.correlation_energy,
            "DISPERSION CORRECTION ENERGY": added,
        }
    elif "xc" in changes:
        expected["DFT TOTAL ENERGY"] = result.scf_total_energy
    if not result.options.correlation.scaled_mp2:
        expected[f"{title} CORRELATION ENERGY"] = result.correlation_energy
    assert {name: energies.get(name) for name in expected} == pytest.approx(expected, abs=1e-12)
    assert first["return_result"] == second["return_result"] == result.total_energy
    assert ("MP2 TOTAL ENERGY" in energies) == ("mp2_total_energy" in properties)
    assert "HF TOTAL ENERGY" not in energies or not (double_hybrid or "xc" in changes)
    comment = export(result, "xyz").decode().splitlines()[1]
    plain = result.options.correlation.scaled_mp2  # then the file has the energies of plain MP2
    energy = result.mp2_total_energy if plain else result.total_energy
    assert comment.endswith(f"total_energy_hartree={energy:.12f}")
    assert ('method="DF-MP2/' in comment) == plain


# --- orders and limits ----------------------------------------------------------------------------


def test_h_functions_do_not_fit_into_molden(tmp_path: Path) -> None:
    (tmp_path / "h.gbs").write_text(H_SHELL)
    result = dfmp2.run(
        Molecule(("He",), [[0, 0, 0]]),
        f"{tmp_path}/h.gbs",
        auxbasis="def2-svp-ri",
        scf_auxbasis="def2-universal-jkfit",
        threads=1,
        allow_poor_fit=True,
    )
    with recorded_error(InputError):
        export(result, "molden")
    assert json.loads(export(result, "qcschema"))["properties"]["calcinfo_nbasis"] == 13
