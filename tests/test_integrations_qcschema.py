"""`dfmp2 qcschema`: JSON in, JSON out, for programs that know nothing else of us."""

from __future__ import annotations

import json
import sys
from collections.abc import Callable
from pathlib import Path
from typing import Any

import numpy as np
import pytest

import dfmp2
from dfmp2.errors import InputError
from dfmp2.integrations import qcschema
from dfmp2.molecule import Molecule
from tests.conftest import Finished, Runner, listing, run_command

WATER = [0.0, 0.0, 0.22166487441148175, 0.0, 1.4309006215206648, -0.886659497645927, 0.0, -1.4309006215206648, -0.88]
# H-F of QCEngine's standard suite (standard_suite_ref.py), cc-pVDZ, density-fitted SCF and MP2 by Psi4, all electrons.
HF = {"symbols": ["H", "F"], "geometry": [0.0, 0.0, -1.64558411, 0.0, 0.0, 0.08729475]}
HF_SCF, HF_MP2 = -100.019400605629, -0.2037649370559149


def v1(molecule: dict[str, Any] | None = None, basis: Any = "sto-3g", **changes: Any) -> dict[str, Any]:
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
    specification = {k: document[k] for k in ("driver", "model", "keywords", "protocols", "extras") if k in document}
    rest = {k: v for k, v in document.items() if k not in specification}
    return {**rest, "schema_name": "qcschema_atomic_input", "schema_version": 2, "specification": specification}


@pytest.fixture
def pipe(call: Runner, folder: Path) -> Callable[[Any], Finished]:
    """The command on a document (or text) in a file."""

    def run(document: Any) -> Finished:
        text = document if isinstance(document, str) else json.dumps(document)
        (folder / "in.json").write_text(text)
        return call("qcschema", "in.json")

    return run


@pytest.mark.parametrize("version", [1, 2])
def test_published_energy(pipe: Callable[[Any], Finished], version: int) -> None:
    document = v1(HF, "cc-pvdz", keywords={"precision": "fp64", "auxbasis": "cc-pvdz-ri"}, id="hf-1")
    done = pipe(document if version == 1 else v2(document))
    assert (done.code, done.err) == (0, "")
    answer = done.json
    assert answer["return_result"] == pytest.approx(HF_SCF + HF_MP2, abs=2e-8)
    properties = answer["properties"]
    assert properties["scf_total_energy"] == pytest.approx(HF_SCF, abs=1e-8)
    assert properties["mp2_correlation_energy"] == pytest.approx(HF_MP2, abs=1e-8)
    assert properties["return_energy"] == answer["return_result"]
    parts = ("mp2_same_spin_correlation_energy", "mp2_opposite_spin_correlation_energy")
    assert sum(properties[name] for name in parts) == pytest.approx(properties["mp2_doubles_energy"], abs=1e-15)
    assert (properties["calcinfo_nalpha"], properties["calcinfo_nbasis"], properties["calcinfo_natom"]) == (5, 19, 2)
    assert answer["schema_name"] == ("qcschema_output" if version == 1 else "qcschema_atomic_result")
    assert (answer["schema_version"], answer["id"], answer["success"]) == (version, "hf-1", True)
    assert answer["provenance"]["creator"] == "dfmp2"


def test_standard_input_and_nothing_but_json(folder: Path) -> None:
    done = run_command("qcschema", "-", cwd=folder, stdin=json.dumps(v1()))
    assert (done.code, done.err) == (0, "")
    # Bohr to bohr: the same bits as our own molecule, so the same energy.
    molecule = Molecule(("O", "H", "H"), np.reshape(WATER, (3, 3)))
    again = dfmp2.run(molecule, "sto-3g", threads=done.json["extras"]["dfmp2"]["provenance"]["threads"])
    assert done.json["return_result"] == pytest.approx(again.mp2_total_energy, abs=1e-12)


def test_the_input_comes_back_untouched(pipe: Callable[[Any], Finished]) -> None:
    molecule = {
        **{"symbols": ["O", "H", "H"], "geometry": WATER, "fix_com": False, "fix_orientation": True},
        **{"comment": "as it was", "masses": [15.99, 1.008, 1.008], "connectivity": [[0, 1, 1.0], [0, 2, 1.0]]},
    }
    document = v1(molecule, extras={"mine": {"a": 1}}, keywords={"frozen_core": 1})
    answer = pipe(document).json
    assert answer["molecule"] == molecule
    assert answer["keywords"] == {"frozen_core": 1}
    assert answer["extras"]["mine"] == {"a": 1}
    assert answer["extras"]["dfmp2"]["frozen_core_orbitals"] == 1
    answer = pipe(v2(document)).json
    assert answer["input_data"] == v2(document)
    assert answer["molecule"] == molecule


@pytest.mark.parametrize("version", [1, 2])
def test_qcelemental_accepts_result_and_failure(pipe: Callable[[Any], Finished], version: int) -> None:
    pytest.importorskip("qcelemental")
    from qcelemental import models

    room = models.v1 if version == 1 else models.v2
    form = (lambda document: document) if version == 1 else v2
    record = room.AtomicResult(**pipe(form(v1(protocols={"wavefunction": "orbitals_and_eigenvalues"}))).json)
    orbitals = record.wavefunction.scf_orbitals_a
    assert orbitals.shape == (7, 7)
    assert record.wavefunction.scf_eigenvalues_a.shape == (7,)
    assert record.wavefunction.scf_occupations_a is None
    failed = room.FailedOperation(**pipe(form(v1(driver="hessian"))).json)
    assert (failed.error.error_type, failed.success) == ("input_error", False)


def test_scaled_methods(pipe: Callable[[Any], Finished]) -> None:
    def energy(method: str, **keywords: float) -> tuple[float, dict[str, float]]:
        answer = pipe(v1(model={"method": method, "basis": "sto-3g"}, keywords=keywords)).json
        return answer["return_result"] - answer["properties"]["scf_total_energy"], answer["extras"]["qcvars"]

    plain, names = energy("RI-MP2")
    opposite, same = names["MP2 OPPOSITE-SPIN CORRELATION ENERGY"], names["MP2 SAME-SPIN CORRELATION ENERGY"]
    assert plain == pytest.approx(opposite + same, abs=1e-12)
    assert energy("scs-mp2")[0] == pytest.approx(1.2 * opposite + same / 3, abs=1e-9)  # Grimme 2003
    assert energy("sos-mp2")[0] == pytest.approx(1.3 * opposite, abs=1e-9)  # Jung 2004
    custom, names = energy("custom-scs-mp2", os_scale=1.5, ss_scale=0.25)
    assert custom == pytest.approx(1.5 * opposite + 0.25 * same, abs=1e-9)
    assert names["CURRENT CORRELATION ENERGY"] == names["CUSTOM SCS-MP2 CORRELATION ENERGY"]


def test_report_only_when_wanted(pipe: Callable[[Any], Finished]) -> None:
    assert "MP2 fitting" in pipe(v1()).json["stdout"]
    assert pipe(v1(protocols={"stdout": False})).json["stdout"] is None


def test_ghosts(pipe: Callable[[Any], Finished]) -> None:
    """A helium atom with another's functions beside it lies lower than alone: basis set superposition."""
    two = {"symbols": ["He", "He"], "geometry": [0, 0, 0, 0, 0, 3.0]}
    ghostly = pipe(v1({**two, "real": [True, False]}, "cc-pvdz")).json
    alone = pipe(v1({"symbols": ["He"], "geometry": [0, 0, 0]}, "cc-pvdz")).json
    assert ghostly["properties"]["calcinfo_nbasis"] == 10
    assert ghostly["properties"]["nuclear_repulsion_energy"] == pytest.approx(0.0, abs=1e-12)
    assert -1e-3 < ghostly["return_result"] - alone["return_result"] < -1e-6


# --- the molecule -----------------------------------------------------------------------------------

DIMER = {"symbols": ["O", "H", "Na"], "geometry": [0, 0, 0, 0, 0, 1.83, 0, 0, -9.0], "fragments": [[0, 1], [2]]}
STATES = [  # (changes of the molecule, charge, multiplicity)
    ({}, 0, 1),
    ({"molecular_charge": -1.0, "molecular_multiplicity": 1.0}, -1, 1),
    ({"fragment_charges": [-1.0, 1.0]}, 0, 1),
    ({"fragment_charges": [-1, 0], "fragment_multiplicities": [1, 2]}, -1, 2),
    ({"fragment_charges": [-1, 1], "fragment_multiplicities": [1, 2], "real": [1 > 0, 1 > 0, 1 > 1]}, -1, 1),
    ({"molecular_multiplicity": 3, "fragment_multiplicities": [2, 2]}, 0, 3),
    ({"molecular_charge": None, "fragments": None, "real": None}, 0, 1),
]


@pytest.mark.parametrize(("changes", "charge", "multiplicity"), STATES, ids=[str(c) for c, *_ in STATES])
def test_charge_and_multiplicity(changes: dict[str, Any], charge: int, multiplicity: int) -> None:
    molecule = qcschema.read_request(v1({**DIMER, **changes})).molecule
    assert (molecule.charge, molecule.multiplicity) == (charge, multiplicity)


BROKEN_MOLECULES = [  # (changes, message)
    ({"symbols": ["O", "H"]}, "geometry has 9 numbers: expected 6 in bohr"),
    ({"geometry": [[0, 0, 0], [0, 0, 1]]}, "geometry has 6 numbers: expected 9 in bohr"),
    ({"geometry": ["1"] * 9}, "geometry: expected a list of numbers in bohr"),
    ({"geometry": [[0, 0], [0, 0, 0, 1], [0, 0, 3]]}, "geometry has 9 numbers: expected 9 in bohr, x, y, z of 3"),
    ({"geometry": [10**400] * 9}, "geometry: "),
    ({"geometry": None}, "geometry: expected a list"),
    ({"geometry": [0, 0, 0, 0, 0, 1.83, 0, 0, 1.83]}, "apart, less than 0.2"),
    ({"symbols": ["O", "H", "Xx"]}, "unknown element 'Xx'"),
    ({"symbols": "OHNa"}, "symbols: expected a list"),
    ({"real": [True, False]}, "real: expected a list of 3 values"),
    ({"real": [1, 1, 0]}, "real: expected a list of 3 values"),
    ({"atomic_numbers": [8, 1, 12]}, "atomic_numbers do not belong to molecule.symbols"),
    ({"molecular_charge": 0.5}, "molecular_charge 0.5: expected a whole number"),
    ({"molecular_multiplicity": "2"}, "molecular_multiplicity '2': expected a whole number"),
    ({"fragments": [[0, 1], [1, 2]]}, "each of the atoms 0 to 2 in exactly one"),
    ({"fragments": [[0], [2]]}, "each of the atoms 0 to 2 in exactly one"),
    ({"fragment_charges": [1, 1], "molecular_charge": 1}, "molecular_charge is 1, its fragment_charges add up to 2"),
    ({"fragment_multiplicities": [2, 2]}, "2 fragments are open shells, which couple in several ways"),
    ({"fragments": None, "fragment_charges": [0, 0]}, "fragment_charges"),
    ({"molecular_chrage": 1}, "unknown field 'molecular_chrage'"),
    ({"schema_version": 1, "schema_name": "qcschema_molecule"}, "expected qcschema_molecule, 2 or 3"),
]


@pytest.mark.parametrize(("changes", "message"), BROKEN_MOLECULES, ids=[str(c) for c, _ in BROKEN_MOLECULES])
def test_broken_molecules(changes: dict[str, Any], message: str) -> None:
    with pytest.raises(InputError) as raised:
        qcschema.read_request(v1({**DIMER, **changes}))
    assert message in str(raised.value)


# --- refusals ---------------------------------------------------------------------------------------

REFUSED = [  # (document or text, exit code, error type, message)
    ("", 3, "input_error", "not JSON"),
    ("{", 3, "input_error", "not JSON"),
    ('{"a": NaN}', 3, "input_error", "NaN is not a number in JSON"),
    ('{"id": "a", "id": "b"}', 3, "input_error", "'id' is given twice"),
    ("[" * 100_000, 3, "input_error", "not usable JSON"),
    ('{"id": ' + "9" * 5000 + "}", 3, "input_error", "not usable JSON"),
    ("3", 3, "input_error", "the input is a number: expected a JSON object"),
    ("{}", 3, "input_error", "driver None: only energy is available"),
    (v1(schema_version=3), 3, "input_error", "schema_version 3: expected 1 or 2"),
    (v1(schema_version="1"), 3, "input_error", "schema_version '1': expected 1 or 2"),
    (v1(schema_name="qcschema_output"), 3, "input_error", "expected 'qcschema_input'"),
    (v2(v1()) | {"schema_version": 1}, 3, "input_error", "expected 'qcschema_input'"),
    (v1(driver="gradient"), 3, "input_error", "driver 'gradient': only energy is available"),
    (v2(v1(driver="properties")), 3, "input_error", "driver 'properties': only energy is available"),
    (v1(model={"method": "b3lyp", "basis": "sto-3g"}), 3, "input_error", "method 'b3lyp': expected one of mp2"),
    (v1(model={"basis": "sto-3g"}), 3, "input_error", "method None"),
    (v1(model={"method": "mp2"}), 3, "input_error", "model.basis was not given"),
    (v1(basis={"name": "mine", "center_data": {}}), 3, "input_error", "model.basis is a JSON object"),
    (v1(basis="cc-pvtzz"), 3, "input_error", "did you mean"),
    (v1(keywords={"scf_type": "df"}), 3, "input_error", "unknown option 'scf_type'"),
    (v1(keywords={"scf_from": "/etc/passwd"}), 3, "input_error", "a QCSchema document names no files"),
    (v1(keywords={"charge": 1}), 3, "input_error", "it is molecule.molecular_charge"),
    (v1(keywords={"auxbasis": 3}), 3, "input_error", "keyword auxbasis 3: expected str or None"),
    (v1(keywords={"check": "yes"}), 3, "input_error", "keyword check 'yes': expected bool"),
    (v1(keywords={"scf_max_cycles": 5.5}), 3, "input_error", "keyword scf_max_cycles 5.5: expected int"),
    (v1(keywords={"os_scale": 1.3}), 3, "input_error", "belong to method custom-scs-mp2"),
    (v1(keywords=["check"]), 3, "input_error", "keywords is a list: expected a JSON object"),
    (v1(protocols={"wavefunction": "some"}), 3, "input_error", "protocols.wavefunction 'some'"),
    (v1(kewords={"frozen_core": 1}), 3, "input_error", "unknown field 'kewords'"),
    (v2(v1()) | {"driver": "energy"}, 3, "input_error", "unknown field 'driver'"),
    (v1({"symbols": ["H"], "geometry": [0, 0, 0]}), 3, "input_error", "H has 1 electron"),
    (v1(keywords={"scf_max_cycles": 1}), 4, "convergence_error", "SCF"),
    (v1(keywords={"backend": "nki"}), 6, "resource_error", "nki"),
    (v1(keywords={"memory": "1MB"}), 7, "resource_error", "1.00 MB"),
]


@pytest.mark.parametrize(
    ("document", "code", "kind", "message"), REFUSED, ids=[f"{n}-{m[:30]}" for n, (*_, m) in enumerate(REFUSED)]
)
def test_failed_operation(
    pipe: Callable[[Any], Finished], folder: Path, document: Any, code: int, kind: str, message: str
) -> None:
    done = pipe(document)
    assert done.code == code
    failed = done.json
    assert failed["success"] is False
    assert failed["error"]["error_type"] == kind
    assert message in failed["error"]["error_message"]
    assert failed["error"]["extras"]["exit_code"] == code
    assert failed["input_data"] == {"3": 3, "{}": {}}.get(str(document), document)
    assert message in done.message
    assert not [name for name in listing(folder) if name.endswith(".h5")]


def test_a_failed_check_is_no_result(pipe: Callable[[Any], Finished], monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("dfmp2.check.SAME_ORBITALS", 0.0)
    done = pipe(v1(keywords={"check": True, "precision": "fp64"}))
    assert (done.code, done.json["error"]["error_type"]) == (8, "unknown_error")
    assert "PySCF's DF-MP2 differs by" in done.message


def test_files_that_are_none(call: Runner, folder: Path) -> None:
    (folder / "bytes.json").write_bytes(b"\xff\xfe")
    for name, message in {"none.json": "no such file", ".": "give a JSON file", "bytes.json": "not UTF-8"}.items():
        done = call("qcschema", name)
        assert done.code == 3
        assert message in done.json["error"]["error_message"]
        assert done.json["input_data"] is None


def test_another_program_is_not_impersonated() -> None:
    document = v2(v1())
    document["specification"]["program"] = "psi4"
    with pytest.raises(InputError, match="program is 'psi4', and this is dfmp2"):
        qcschema.read_request(document)
    document["specification"]["program"] = "DFMP2"
    assert qcschema.read_request(document).version == 2


def test_needs_no_package_of_the_family(folder: Path) -> None:
    code = (
        "import sys; sys.modules.update(dict.fromkeys(('qcelemental', 'qcengine', 'pydantic')));"
        "from dfmp2.cli.main import main; sys.exit(main(['qcschema', '-']))"
    )
    done = run_command("-c", code, cwd=folder, stdin=json.dumps(v1()), program=(sys.executable,))
    assert (done.code, done.json["success"]) == (0, True)
