"""QCEngine runs dfmp2: its own standard suite, its error handling, and QCManyBody on top of it."""

from __future__ import annotations

import json
import sys
from pathlib import Path
from typing import Any

import pytest

import dfmp2

CASES = Path(dfmp2.__file__).parent / "validation" / "cases.json"
SUITE = [  # (molecule of the suite, reference, basis): all its DF-MP2 entries for RHF and UHF but those of CFOUR's QZ2P
    ("hf", "rhf", "cc-pvdz"),
    ("bh3p", "uhf", "cc-pvdz"),
    ("h2o", "rhf", "aug-cc-pvdz"),
    ("nh2", "uhf", "aug-cc-pvdz"),
]
# Our options that make the suite's names true; Psi4's dialect is what its frozen-core values were made with.
SCF = {"pk": "conventional", "df": "df"}
CORE = {"ae": "none", "fc": "psi4"}
VERSIONS = {"as_v1": (1, -1), "as_v2": (2, -1), "to_v2": (1, 2), "to_v1": (2, 1)}  # version in, version asked for
FORMIC_DIMER = -0.0224119246  # Eh, counterpoise; Psi4's sample dfmp2-1


@pytest.fixture(scope="module")
def qcng() -> Any:
    """QCEngine with dfmp2 registered, twice, which must not matter."""
    qcengine = pytest.importorskip("qcengine")
    from dfmp2.integrations.qcengine import register

    register()
    register()
    return qcengine


def models(version: int) -> Any:
    from qcelemental import models as found

    return found.v1 if version == 1 else found.v2


class Keywords(dict[str, Any]):
    """Keywords of a program of which QCEngine's runner does not know what it calls the kind of SCF."""

    scf_type = "df"

    def get(self, key: str, default: Any = None) -> Any:
        return self.scf_type if key == "scf_type" else super().get(key, default)


@pytest.mark.parametrize("fcae", CORE)
@pytest.mark.parametrize("scf_type", SCF)
@pytest.mark.parametrize(("subject", "reference", "basis"), SUITE, ids=[f"{s}-{b}" for s, _, b in SUITE])
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
    """QCEngine's own runner, which asks for each energy by each of its names, to 2e-7 Eh (0.52.0)."""
    monkeypatch.chdir(tmp_path)  # importing the runner starts the programs it finds, and Psi4 leaves a file
    suite = pytest.importorskip("qcengine.programs.tests.standard_suite_ref")
    runner = pytest.importorskip("qcengine.programs.tests.standard_suite_runner")
    route = list(VERSIONS)[SUITE.index((subject, reference, basis))]  # each route of versions with one molecule
    version, returned = VERSIONS[route]
    keywords = Keywords(scf=SCF[scf_type], frozen_core=CORE[fcae], precision="fp64")
    keywords.scf_type = scf_type
    asked = {
        **{"call": "dfmp2", "qc_module": "dfmp2", "driver": "energy", "corl_type": "df"},
        **{"reference": reference, "fcae": fcae, "keywords": keywords, "basis": basis},
    }
    room = models(version)
    molecule = room.Molecule.from_data(suite.std_molecules[f"{subject}-xyz"], name=subject)
    runner.runner_asserter(asked, molecule, "mp2", basis, route, None, "", room, returned)


def test_the_suite_holds_the_values_we_quote(qcng: Any) -> None:
    """Our table of reference energies cites this suite: the numbers must be its numbers."""
    suite = pytest.importorskip("qcengine.programs.tests.standard_suite_ref")
    entries = [e for e in json.loads(CASES.read_text())["entries"] if e["id"].startswith("stdsuite-")]
    names = {
        "scf_total_energy": "HF TOTAL ENERGY",
        "mp2_correlation_energy": "MP2 CORRELATION ENERGY",
        "mp2_same_spin_correlation_energy": "MP2 SAME-SPIN CORRELATION ENERGY",
    }
    found = 0
    for entry in entries:
        _, subject, *basis, scf_type, corl_type, reference, fcae = entry["id"].split("-")
        key = suite.answer_hash(
            **{"system": subject, "basis": "-".join(basis), "fcae": fcae, "scf_type": scf_type.removeprefix("scf_")},
            **{"reference": reference, "corl_type": corl_type, "sdsc": "sd"},
        )
        for name, value in entry["quantities"].items():
            if name in names:
                assert suite.std_suite[key][names[name]] == pytest.approx(value, abs=5e-9), entry["id"]
                found += 1
    assert found >= 20


def water(**changes: Any) -> dict[str, Any]:
    return {
        "schema_name": "qcschema_input",
        "schema_version": 1,
        "molecule": {"symbols": ["O", "H", "H"], "geometry": [0, 0, 0.22, 0, 1.43, -0.88, 0, -1.43, -0.88]},
        "driver": "energy",
        "model": {"method": "mp2", "basis": "sto-3g"},
        "keywords": {"precision": "fp64"},
        **changes,
    }


def test_same_energy_as_the_pipe(qcng: Any) -> None:
    from dfmp2.integrations import qcschema

    ours = qcschema.run(qcschema.read_request(water()), threads=1)
    theirs = qcng.compute(water(), "dfmp2", raise_error=True, task_config={"ncores": 1, "memory": 2.0})
    assert theirs.return_result == pytest.approx(ours.mp2_total_energy, abs=1e-10)
    assert theirs.provenance.creator == "dfmp2"
    assert theirs.extras["dfmp2"]["memory"]["budget"] == 2 * 2**30  # QCEngine's GiB
    assert theirs.extras["dfmp2"]["provenance"]["threads"] == 1
    assert "reference energy" in theirs.stdout


FAILURES = [  # (changes of the input, error type, message)
    ({"driver": "gradient"}, "input_error", "driver 'gradient': only energy is available"),
    ({"keywords": {"scf_type": "df"}}, "input_error", "unknown option 'scf_type'"),
    ({"model": {"method": "ccsd", "basis": "sto-3g"}}, "input_error", "method 'ccsd': expected one of mp2"),
    ({"keywords": {"scf_max_cycles": 1}}, "convergence_error", "SCF"),
    ({"keywords": {"memory": "4GB"}}, "input_error", "keywords.memory was given, and memory from outside as well"),
]


@pytest.mark.parametrize(("changes", "kind", "message"), FAILURES, ids=[str(c) for c, *_ in FAILURES])
def test_failures(qcng: Any, changes: dict[str, Any], kind: str, message: str) -> None:
    failed = qcng.compute(water(**changes), "dfmp2", task_config={"ncores": 1})
    assert failed.success is False
    assert failed.error.error_type == kind
    assert message in failed.error.error_message
    assert "Traceback" not in failed.error.error_message


def test_too_little_memory_is_a_resource_error(qcng: Any) -> None:
    failed = qcng.compute(water(), "dfmp2", task_config={"ncores": 1, "memory": 1e-6})
    assert failed.error.error_type == "resource_error"


def test_another_program_of_this_name_is_not_replaced(qcng: Any, monkeypatch: pytest.MonkeyPatch) -> None:
    from dfmp2.errors import InputError
    from dfmp2.integrations.qcengine import register

    monkeypatch.setitem(qcng.programs.base.programs, "dfmp2", qcng.get_program("rdkit", check=False))
    with pytest.raises(InputError, match="already has another program called dfmp2"):
        register()


def test_import_alone_registers_nothing() -> None:
    pytest.importorskip("qcengine")
    import subprocess

    code = "import dfmp2.integrations.qcengine, qcengine; print('dfmp2' in qcengine.list_all_programs())"
    done = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, check=True)
    assert done.stdout.strip() == "False"


def test_without_qcengine_the_import_says_what_to_install(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setitem(sys.modules, "qcengine", None)
    monkeypatch.delitem(sys.modules, "dfmp2.integrations.qcengine", raising=False)
    with pytest.raises(ImportError, match=r"pip install 'dfmp2\[qc\]'"):
        import dfmp2.integrations.qcengine  # noqa: F401
    monkeypatch.delitem(sys.modules, "dfmp2.integrations.qcengine", raising=False)


def test_counterpoise_by_qcmanybody(qcng: Any) -> None:
    """Ghosts right in the orbital basis and in both fitting sets, fragments and charges as QCManyBody cuts them."""
    pytest.importorskip("qcmanybody")
    from qcmanybody import ManyBodyComputer
    from qcmanybody.models.v1 import ManyBodyInput

    entry = next(e for e in json.loads(CASES.read_text())["entries"] if e["id"] == "psi4-dfmp2-1-formic-dimer-cp")
    atoms = [atom.split() for atom in entry["calculations"][0]["geometry"].split(";")]
    molecule = models(1).Molecule(
        symbols=[symbol for symbol, *_ in atoms],
        geometry=[float(x) for _, *point in atoms for x in point],
        fragments=[[0, 1, 2, 3, 4], [5, 6, 7, 8, 9]],
        fix_com=True,
        fix_orientation=True,
    )
    keywords = {"frozen_core": "none", "auxbasis": "cc-pvdz-ri", "scf_auxbasis": "cc-pvdz-jkfit"}
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
    assert done.properties.cp_corrected_interaction_energy == pytest.approx(FORMIC_DIMER, abs=1e-7)
