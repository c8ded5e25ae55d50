"""Interfaces for other programs: QCSchema documents, QCEngine with its own suite, QCManyBody, and
ASE's calculator."""

from __future__ import annotations

import json
from collections.abc import Callable
from pathlib import Path
from typing import Any, cast

import numpy as np
import pytest

import dfmp2
from dfmp2.errors import ComparisonFailed, InputError
from dfmp2.execution.items import read_input
from dfmp2.execution.manifest import manifest_lines, read_manifest
from dfmp2.interop import qcschema
from dfmp2.molecule.molecule import Molecule
from dfmp2.options import Options
from dfmp2.progress import Silent
from dfmp2.studies.interaction import interaction_energy
from dfmp2.units import BOHR_PER_ANGSTROM
from tests.conftest import Finished, Runner
from tests.test_cli_options import GIVEN

ase = pytest.importorskip("ase")
pytest.importorskip("qcengine")
pytest.importorskip("qcmanybody")

from qcelemental import models  # noqa: E402

from dfmp2.interop.ase import DFMP2  # noqa: E402

WATER = [
    0.0,
    0.0,
    0.22166487441148175,
    0.0,
    1.4309006215206648,
    -0.886659497645927,
    0.0,
    -1.4309006215206648,
    -0.88,
]


# --- QCSchema -------------------------------------------------------------------------------------


def v1(
    molecule: dict[str, Any] | None = None, basis: Any = "sto-3g", **changes: Any
) -> dict[str, Any]:
    """An AtomicInput of version 1."""
    return {
        "schema_name": "qcschema_input",
        "schema_version": 1,
        "molecule": molecule or {"symbols": ["O", "H", "H"], "geometry": WATER},
        "driver": "energy",
        "model": {"method": "mp2", "basis": basis},
        **changes,
    }


def v2(document: dict[str, Any]) -> dict[str, Any]:
    """The same input in version 2."""
    specification = {
        k: document[k]
        for k in ("driver", "model", "keywords", "protocols", "extras")
        if k in document
    }
    rest = {k: v for k, v in document.items() if k not in specification}
    return {
        **rest,
        "schema_name": "qcschema_atomic_input",
        "schema_version": 2,
        "specification": specification,
    }


@pytest.fixture
def pipe(call: Runner, folder: Path) -> Callable[[Any], Finished]:
    """The command on a document (or text) in a file."""

    def run(document: Any) -> Finished:
        text = document if isinstance(document, str) else json.dumps(document)
        (folder / "in.json").write_text(text)
        return call("qcschema", "in.json")

    return run


def test_drivers(pipe: Callable[[Any], Finished]) -> None:
    """Gradient, Hessian and properties of a scaled method, as QCElemental reads them; in either
    version."""

    def asked(driver: str, bond: float = 1.6, version: int = 1) -> Any:
        document = v1({"symbols": ["H", "F"], "geometry": [0, 0, 0, 0, 0, bond]}, driver=driver)
        document |= {"model": {"method": "scs-mp2", "basis": "sto-3g"}}
        document |= {"keywords": {"precision": "fp64", "stability": "off"}}
        found = pipe(document if version == 1 else v2(document)).json
        return (models.v1 if version == 1 else models.v2).AtomicResult(**found)

    step = 0.005
    low, high = (asked("gradient", 1.6 + d) for d in (-step, step))
    slope = (high.properties.return_energy - low.properties.return_energy) / (2 * step)
    middle = asked("gradient", version=2)
    assert middle.return_result == pytest.approx(
        np.array([[0, 0, -slope], [0, 0, slope]]), abs=5e-5
    )
    bent, answered = asked("hessian"), asked("properties")
    hessian = bent.return_result
    assert bent.properties.return_hessian.tolist() == hessian.tolist()
    assert middle.properties.return_gradient.tolist() == middle.return_result.tolist()
    bend = (high.return_result - low.return_result)[1, 2] / (2 * step)
    assert hessian.shape == (6, 6) and hessian[5, 5] == pytest.approx(bend, abs=2e-4)
    properties = answered.return_result
    assert (
        "mp2_total_gradient" not in answered.extras["dfmp2"] and properties["quadrupole"]["relaxed"]
    )
    assert answered.properties.scf_quadrupole_moment == pytest.approx(
        np.array(properties["quadrupole"]["scf"])
    )
    assert sum(properties["lowdin_charges"]["relaxed"]) == pytest.approx(0, abs=1e-9)
    dipole = middle.extras["dfmp2"]["properties"]["dipole"]["relaxed"]
    assert properties["dipole"]["relaxed"] == pytest.approx(dipole, abs=1e-6)
    assert middle.properties.mp2_dipole_moment is None  # it is that of SCS-MP2


def test_a_failed_check_is_no_result(
    pipe: Callable[[Any], Finished], monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("dfmp2.mp2.check.SAME_ORBITALS", 0.0)
    done = pipe(v1(keywords={"check": True, "precision": "fp64"}))
    assert (done.code, done.json["error"]["error_type"]) == (8, "unknown_error")
    assert "PySCF's DF-MP2 differs by" in done.message


# --- QCEngine and QCManyBody ----------------------------------------------------------------------


# (molecule of the suite, reference, basis): all its DF-MP2 entries for RHF and UHF but those of
# CFOUR's QZ2P
SUITE = [
    ("hf", "rhf", "cc-pvdz"),
    ("bh3p", "uhf", "cc-pvdz"),
    ("h2o", "rhf", "aug-cc-pvdz"),
    ("nh2", "uhf", "aug-cc-pvdz"),
]
# Our options that match the suite's names; its frozen-core values were made with Psi4's cores.
SCF = {"pk": "conventional", "df": "df"}
CORE = {"ae": "none", "fc": "psi4"}
# Version in, version asked for
VERSIONS = {"as_v1": (1, -1), "as_v2": (2, -1), "to_v2": (1, 2), "to_v1": (2, 1)}


@pytest.fixture(scope="module")
def qcng() -> Any:
    """QCEngine with dfmp2 registered, twice to show that it does no harm."""
    import qcengine

    from dfmp2.interop.qcengine import register

    register()
    register()
    return qcengine


class Keywords(dict[str, Any]):
    """Keywords of a program whose name for the SCF type is unknown to QCEngine's runner."""

    scf_type = "df"

    def get(self, key: str, default: Any = None) -> Any:
        return self.scf_type if key == "scf_type" else super().get(key, default)


@pytest.mark.slow
@pytest.mark.parametrize(
    ("subject", "reference", "basis", "scf_type", "fcae"),
    [
        pytest.param(
            *case,
            scf_type,
            fcae,
        )
        for case in SUITE
        for scf_type in SCF
        for fcae in CORE
    ],
)
def test_standard_suite(
    qcng: Any,
    tmp_path: Path,
    monkeypatch: pytest.MonkeyPatch,
    subject: str,
    reference: str,
    basis: str,
    scf_type: str,
    fcae: str,
) -> None:
    """QCEngine's own runner, which requests each energy under each of its names, to 2e-7 Eh
    (0.52.0)."""
    # Importing the runner starts the programs it finds, and Psi4 leaves a file
    monkeypatch.chdir(tmp_path)
    suite = pytest.importorskip("qcengine.programs.tests.standard_suite_ref")
    runner = pytest.importorskip("qcengine.programs.tests.standard_suite_runner")
    # Each route of versions with one molecule
    route = list(VERSIONS)[SUITE.index((subject, reference, basis))]
    version, returned = VERSIONS[route]
    keywords = Keywords(scf=SCF[scf_type], frozen_core=CORE[fcae], precision="fp64")
    keywords.scf_type = scf_type
    asked = {
        "call": "dfmp2",
        "qc_module": "dfmp2",
        "driver": "energy",
        "corl_type": "df",
        "reference": reference,
        "fcae": fcae,
        "keywords": keywords,
        "basis": basis,
    }
    room = models.v1 if version == 1 else models.v2
    molecule = room.Molecule.from_data(suite.std_molecules[f"{subject}-xyz"], name=subject)
    runner.runner_asserter(asked, molecule, "mp2", basis, route, None, "", room, returned)


def test_counterpoise_by_qcmanybody(qcng: Any) -> None:
    """It makes the fragments, charges and ghosts; our own study must have made the same."""
    from qcmanybody import ManyBodyComputer
    from qcmanybody.models.v1 import ManyBodyInput

    complex_ = Molecule(("He", "H"), np.array([[0, 0, -3.5], [0, 0, 0.5]]), charge=-1)
    molecule = models.v1.Molecule(
        symbols=list(complex_.symbols),
        geometry=complex_.coordinates.ravel().tolist(),
        fragments=[[0], [1]],
        fragment_charges=[0, -1],
        fix_com=True,
        fix_orientation=True,
    )
    keywords = {
        "auxbasis": "cc-pvdz-ri",
        "scf_auxbasis": "def2-universal-jkfit",
        "precision": "fp64",
    }
    level = {"program": "dfmp2", "driver": "energy", "model": {"method": "mp2", "basis": "cc-pvdz"}}
    asked = ManyBodyInput(
        molecule=molecule.dict(),
        specification={
            "driver": "energy",
            "specification": {"mp2": {**level, "keywords": keywords}},
            "keywords": {"bsse_type": ["cp"], "levels": {2: "mp2"}},
        },
    )
    done = ManyBodyComputer.from_manybodyinput(asked)
    ours = interaction_energy(
        complex_, "1,2", Options(basis="cc-pvdz", **keywords), charges="0,-1"
    ).values
    expected = ours["cp_corrected_interaction_energy"].value
    assert done.properties.cp_corrected_interaction_energy == pytest.approx(expected, abs=1e-8)
    assert abs(expected) > 1e-4


# --- ASE ------------------------------------------------------------------------------------------


SETTINGS: dict[str, Any] = {
    "basis": "6-31g",
    "auxbasis": "def2-svp-ri",
    "precision": "fp64",
    "threads": 1,
}
SETTINGS["stability"] = "off"


def test_forces_are_differences_of_energies() -> None:
    """Of an ion beside a point charge, which the displaced atoms have, too."""
    settings, step = {**SETTINGS, "charge": 1, "point_charges": [[0.5, 1.0, 2.5, 0.3]]}, 0.01

    def ion(distance: float) -> Any:
        atoms = ase.Atoms("HeH", positions=[(0, 0, 0), (0, 0, distance)])
        atoms.calc = DFMP2(**settings)
        return atoms

    low, high = (ion(0.8 + d).get_potential_energy() for d in (-step, step))
    atoms = ion(0.8)
    atoms.calc = calculator = DFMP2(**settings, displacement=np.float32(step))
    forces = atoms.get_forces()
    assert forces.dtype == np.float64
    assert forces[1, 2] == pytest.approx((low - high) / (2 * step), abs=1e-6)
    assert calculator.result.gradient is None
    calculator.set(displacement=None, method="sos-mp2")
    calculator.set(method="mp2")
    # The others are off by the third derivative
    assert atoms.get_forces() == pytest.approx(forces, abs=5e-3)
    assert np.abs(forces[:, :2]).max() > 0.01


def test_a_dipole_moment_needs_no_forces() -> None:
    """In e angstrom; the energy of the method in electronvolts."""
    atoms = ase.Atoms("HF", [[0, 0, 0], [0, 0, 0.9]])
    atoms.calc = calculator = DFMP2(basis="sto-3g", method="scs-mp2", precision="fp64")
    alone = atoms.get_dipole_moment()
    assert calculator.result.gradient is None
    atoms.get_forces()
    assert calculator.result.gradient is not None
    relaxed = calculator.result.properties.relaxed_dipole / BOHR_PER_ANGSTROM
    assert alone == pytest.approx(atoms.get_dipole_moment(), abs=1e-7)
    assert alone == pytest.approx(relaxed, abs=1e-7) and -0.3 < alone[2] < -0.1  # e angstrom
    energy = atoms.get_potential_energy()
    assert atoms.get_potential_energy(force_consistent=True) == energy
    result = calculator.result
    scs = result.scf_total_energy + result.scs_mp2_correlation_energy
    assert energy == pytest.approx(scs * 27.211386, rel=1e-8)


def test_forces_without_a_certificate_are_refused(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("dfmp2.gradients.certificate.SUMS", 0.0)
    atoms = ase.Atoms("HF", [[0.1, 0, 0], [0, 0.2, 0.9]], calculator=DFMP2(**SETTINGS))
    with pytest.raises(ComparisonFailed):
        atoms.get_forces()


# --- all front ends -------------------------------------------------------------------------------


PLACES = [[0.1, 0.0, 0.0], [0.0, 0.2, 1.17]]  # angstrom
AROUND = [[2.1, -3.3, 4.0, 0.7], [-4.2, 1.0, -3.1, -0.4]]  # in either unit
Seen = tuple[Molecule, Options]


@pytest.fixture
def seen(
    call: Runner, folder: Path, monkeypatch: pytest.MonkeyPatch
) -> dict[str, Callable[[dict[str, Any], dict[str, Any], dict[str, Any]], Seen]]:
    """What each front end would compute of CN in a field, from its state, the unit of the charges,
    and options."""
    caught: list[Seen] = []
    listener = Silent()
    heard: list[Any] = []

    def stop(molecule: Molecule, options: Options, **how: Any) -> None:
        heard.append(how["listener"])
        caught.append((molecule, options))
        raise InputError("seen")

    monkeypatch.setattr("dfmp2.interop.python.run_options", stop)
    monkeypatch.setattr("dfmp2.interop.ase.run_options", stop)
    lines = [f"{s} {x} {y} {z}" for s, (x, y, z) in zip("CN", PLACES, strict=True)]
    (folder / "cn.xyz").write_text("\n".join(["2", "multiplicity=2", *lines]))
    (folder / "q.txt").write_text("\n".join(" ".join(map(str, row)) for row in AROUND))

    def of_python(state: dict[str, Any], units: dict[str, Any], options: dict[str, Any]) -> Seen:
        with pytest.raises(InputError, match="seen"):
            dfmp2.run(
                "cn.xyz",
                point_charges=AROUND,
                listener=listener,
                **{"basis": "sto-3g", **state, **units, **options},
            )
        assert heard.pop()._listener is listener
        return caught.pop()

    def of_manifest(state: dict[str, Any], units: dict[str, Any], options: dict[str, Any]) -> Seen:
        common = manifest_lines({"basis": "sto-3g", "output": "out", **options})
        item = {"molecule": "cn.xyz", "point_charges": "q.txt", **state, **units}
        (folder / "m.toml").write_text("\n".join([*common, "[[item]]", *manifest_lines(item)]))
        (one,) = read_manifest(folder / "m.toml").items
        return cast(Molecule, read_input(one).molecule), one.options

    def of_qcschema(state: dict[str, Any], units: dict[str, Any], options: dict[str, Any]) -> Seen:
        options = dict(options)
        model = {"method": options.pop("method", "mp2"), "basis": options.pop("basis", "sto-3g")}
        molecule = {
            "symbols": ["C", "N"],
            "geometry": (np.array(PLACES) * BOHR_PER_ANGSTROM).ravel().tolist(),
            "molecular_charge": state.get("charge", 0),
            "molecular_multiplicity": state.get("multiplicity", 2),
        }
        request = qcschema.read_request(
            {
                "schema_name": "qcschema_input",
                "schema_version": 1,
                "driver": "energy",
                "molecule": molecule,
                "model": model,
                "keywords": {"point_charges": AROUND, **units, **options},
            }
        )
        return request.molecule, request.options

    def of_ase(state: dict[str, Any], units: dict[str, Any], options: dict[str, Any]) -> Seen:
        atoms = ase.Atoms("CN", PLACES, magmoms=[1.0, 0.0])
        given = {"basis": "sto-3g", **state, **units, **options}
        atoms.calc = DFMP2(point_charges=AROUND, listener=listener, **given)
        with pytest.raises(InputError, match="seen"):
            atoms.get_potential_energy()
        assert heard.pop()._listener is listener
        return caught.pop()

    return {
        "Python": of_python,
        "manifest": of_manifest,
        "QCSchema": of_qcschema,
        "ASE": of_ase,
    }


@pytest.mark.parametrize("state", [{}, {"charge": -1, "multiplicity": 3}], ids=["file", "given"])
@pytest.mark.parametrize("unit", [None, "angstrom", "bohr"])
def test_every_front_end_sees_the_same_molecule(
    state: dict[str, Any], unit: str | None, seen: dict[str, Any]
) -> None:
    units = {} if unit is None else {"point_charge_units": unit}
    field = np.array(AROUND)
    if unit != "bohr":
        field[:, :3] *= BOHR_PER_ANGSTROM
    for name, front in seen.items():
        molecule, options = front(state, units, {})
        assert molecule.symbols == ("C", "N") and not any(molecule.ghost), name
        assert molecule.charge == state.get("charge", 0), name
        assert molecule.multiplicity == state.get("multiplicity", 2), name
        places = np.array(PLACES) * BOHR_PER_ANGSTROM
        np.testing.assert_allclose(molecule.coordinates, places, rtol=1e-12, err_msg=name)
        np.testing.assert_allclose(molecule.point_charges, field, rtol=1e-12, err_msg=name)
        assert options == Options(basis="sto-3g"), name


def test_every_front_end_passes_on_every_option(seen: dict[str, Any]) -> None:
    """Each alone, where it needs no other one; those of the command line are in test_cli_options."""
    asked = 0
    for name, (_, value) in GIVEN.items():
        if name in ("scf_from", "scratch", "os_scale", "ss_scale"):  # not of all, or not alone
            continue
        try:
            expected = Options(**{"basis": "sto-3g", name: value})
        except InputError:
            continue
        for front in seen:
            assert seen[front]({}, {}, {name: value})[1] == expected, (front, name)
            asked += 1
    assert asked > 100
