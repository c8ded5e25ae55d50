"""Composite levels against Psi4, direct use of PySCF, explicit formulas and energy differences."""

from __future__ import annotations

import math
import sys
from dataclasses import replace
from operator import attrgetter
from types import ModuleType

import numpy as np
import pytest
from pyscf import cc, df, gto, mp, scf

from dfmp2 import Molecule
from dfmp2.errors import (
    BackendUnavailable,
    ComparisonFailed,
    ConvergenceError,
    InputError,
    ResourceError,
)
from dfmp2.gradients.gradient import certified_gradient
from dfmp2.molecule.mole import fitting_data
from dfmp2.mp2 import coupled_cluster
from dfmp2.mp2.composite import Part, combine
from dfmp2.mp2.coupled_cluster import WithCoupledCluster, coupled_cluster_bytes
from dfmp2.mp2.energy import mp2_energy
from dfmp2.mp2.result import CoupledCluster, Quadrature
from dfmp2.options import Options
from dfmp2.output.study import StudyWriter, read_study
from dfmp2.planning.sizes import Spin
from dfmp2.progress import Silent
from dfmp2.studies.cbs import basis_set_limit
from dfmp2.studies.composite import at_level, columns_of_bases, energy_columns
from dfmp2.studies.frequencies import StoredHessian
from dfmp2.studies.ideal_gas import ROOM, GasConditions
from dfmp2.studies.interaction import IN_TABLE, SCHEMES, interaction_energy
from dfmp2.studies.interaction import _table as differences_in_bases
from dfmp2.studies.keeper import Keeper
from dfmp2.studies.rank import Candidate, rank_conformers, read_candidate
from dfmp2.studies.species import Reaction, read_species
from dfmp2.studies.task import Step, expanded
from dfmp2.studies.thermochemistry import make_thermochemistry
from tests.awkward import mole_of
from tests.recorded import recorded_error

# S22, angstrom
WATER_DIMER = """O -1.551007 -0.114520 0.0; H -1.934259 0.762503 0.0; H -0.599677 0.040712 0.0;
O 1.350625 0.111469 0.0; H 1.680398 -0.373741 -0.758561; H 1.680398 -0.373741 0.758561"""
LOPSIDED = {  # open shells without symmetry
    "HeH2+": ("H 0 0 0; He 0.1 0.2 0.9; H 0.9 0.1 -0.3", 1),
    "HO2": ("O 0 0 0; O 0.1 0.2 1.33; H 0.9 -0.2 -0.3", 0),
}
TIGHT = {"scf_conv_tol": 1e-11, "threads": 1}


def value(study, name):
    return study.values[name].value


def composite(molecule, level, compute=mp2_energy):
    """The result at a level, from its runs one by one."""
    parts = []
    for run in level.runs:
        how = {}
        if compute is not mp2_energy:
            how["separate"] = run.part.scf != run.part.correlation
        result = (run.compute or compute)(molecule, run.options, **how)
        parts.append((run.part, result))
    return combine(parts)


# Psi4 1.3.2: molecule of WATER_DIMER in two fragments, symmetry c1, units angstrom, no_com,
# no_reorient; set e_convergence 1e-10; set d_convergence 1e-8;
# energy('mp2/aug-cc-pv[dt]z', bsse_type=['cp', 'nocp']); the same with 'mp2/aug-cc-pv[tq]z'; and
# with OH_HE, set reference uhf, energy('mp2/cc-pv[dt]z', bsse_type=['cp', 'nocp']).
# Its E(SCF) is that of the larger basis (xtpl_highest_1); its correlation energy is extrapolated as
# X^-3.
OH_HE = "O 0 0 0; H 0.3 0.1 0.92; He 1.1 -0.4 2.9"
PSI4_AGREES = 3e-8  # Eh; convergence of both programs in ten energies


@pytest.mark.slow
@pytest.mark.parametrize(
    ("atoms", "fragments", "multiplicity", "basis", "corrected", "uncorrected"),
    [
        (WATER_DIMER, "1-3,4-6", 1, "aug-cc-pv[dt]z", -0.007747864008, -0.009341471958),
        (WATER_DIMER, "1-3,4-6", 1, "aug-cc-pv[tq]z", -0.007953411123, -0.007858027482),
        (OH_HE, "1-2,3", 2, "cc-pv[dt]z", 2.33817666e-4, -6.822815e-6),
    ],
    ids=["double zeta", "triple zeta", "radical"],
)
def test_interaction_at_the_limit_against_psi4(
    atoms, fragments, multiplicity, basis, corrected, uncorrected
):
    molecule = Molecule.from_string(atoms, multiplicity=multiplicity)
    state = f"{multiplicity},1"
    study = interaction_energy(molecule, fragments, at_level(Options(basis)), multiplicities=state)
    found = [value(study, f"{scheme}_interaction_energy") for scheme in SCHEMES]
    assert found == pytest.approx([corrected, uncorrected], abs=PSI4_AGREES)


def test_every_basis_is_stored_and_the_limit_is_theirs(tmp_path):
    """The SCF of the larger basis is the limit, as columns of the table have it; what is missing at
    the larger basis is the error that is stated."""
    molecule = Molecule.from_string("H 0 0 0; He 0.3 0.2 2.4", multiplicity=2)
    level = at_level(Options("cc-pv[dt]z", threads=1))
    how = {"multiplicities": "2,1", "keeper": Keeper(tmp_path / "x.h5")}
    study = interaction_energy(molecule, "1,2", level, **how)
    stored = read_study(tmp_path / "x.h5")
    assert [part[2] for part in stored.settings["parts"]] == pytest.approx([-8 / 19, 27 / 19])
    smaller, larger, limit = stored.table["correlation_cp_corrected_interaction_energy"].values
    assert limit == pytest.approx((27 * larger - 8 * smaller) / 19, abs=1e-12)
    of_scf = stored.table["scf_cp_corrected_interaction_energy"].values
    assert of_scf[2] == of_scf[1] != of_scf[0]
    missing = stored.error_budget.sources["basis_set"].correlation.value
    assert missing == pytest.approx(abs(limit - larger), rel=1e-9)
    whole = stored.results["complex"]
    assert whole.total_energy == study.results["complex"].total_energy


@pytest.mark.slow
@pytest.mark.parametrize("name", LOPSIDED)
def test_a_gradient_at_the_limit_against_differences(name):
    """E(SCF) and E(corr) have weights of their own; frozen core of HO2."""
    atoms, charge = LOPSIDED[name]
    molecule = Molecule.from_string(atoms, charge=charge, multiplicity=2)
    options = at_level(
        Options("cc-pv[dt]z", frozen_core="auto", **TIGHT), scf_formula="exponential"
    )
    found = composite(molecule, options, compute=certified_gradient)
    gradient = found.gradient.total_gradient
    assert np.abs(gradient.sum(axis=0)).max() < 1e-9
    step = 0.005
    direction = np.array([[0.3, -0.5, 0.4], [-0.2, 0.1, 0.6], [0.7, 0.2, -0.4]])
    energies = {}
    for times in (-2, -1, 1, 2):
        place = molecule.coordinates + times * step * direction
        energies[times] = composite(replace(molecule, coordinates=place), options).total_energy
    slope = (energies[-2] - 8 * energies[-1] + 8 * energies[1] - energies[2]) / (12 * step)
    assert float(np.sum(gradient * direction)) == pytest.approx(slope, abs=1e-6)


@pytest.fixture(scope="module")
def unlike():
    """Results of an asymmetric radical in two bases, with gradients and properties, and the second
    one also with CCSD(T)."""
    molecule = Molecule.from_string(LOPSIDED["HeH2+"][0], charge=1, multiplicity=2)
    small, large = (
        certified_gradient(molecule, Options(basis, stability="off", **TIGHT), separate=True)
        for basis in ("sto-3g", "6-31g")
    )
    delta = replace(
        small,
        coupled_cluster=CoupledCluster(
            program="by hand",
            ccsd_correlation_energy=-0.03,
            triples_energy=-0.002,
            mp2_correlation_energy=-0.025,
            seconds=1.0,
        ),
    )
    return small, large, delta


def test_each_run_of_a_step_starts_from_its_like_in_the_earlier_step():
    level = at_level(Options("cc-pv[dt]z"))
    step = Step("second", "point 2", Molecule(("He",), [[0.0, 0.0, 0.0]]), level, start="first")
    runs = expanded(step)
    assert [run.name for run in runs] == ["second-cc-pvdz", "second-cc-pvtz"]
    assert [run.start for run in runs] == ["first-cc-pvdz", "first-cc-pvtz"]
    assert [run.start for run in expanded(replace(step, start=""))] == ["", ""]


def test_the_gradient_of_the_mean_field_alone_is_that_of_pyscf(unlike):
    small = unlike[0]
    mean_field = scf.UHF(gto.loads(small.mole_json)).density_fit(
        auxbasis=fitting_data(small.molecule, small.scf_fitting)
    )
    mean_field.run(conv_tol=1e-12, conv_tol_grad=1e-8)
    assert small.scf_total_energy == pytest.approx(mean_field.e_tot, abs=1e-9)
    np.testing.assert_allclose(
        small.gradient.scf_total_gradient, mean_field.nuc_grad_method().kernel(), atol=1e-6
    )


PARTS = (Part("a", 0.3, -0.4), Part("b", 0.9, 1.6))


def weighted(*runs):
    """The composite of runs in two bases, and of a correction if there is a third."""
    parts = (*PARTS, Part("delta", 0.0, 0.0))[: len(runs)]
    return combine(list(zip(parts, runs, strict=True)))


SUMMED = {  # quantity of a run, and what of it is that of the mean field
    "scf_total_energy": "scf_total_energy",
    "hf_total_energy": "hf_total_energy",
    "gradient.total_gradient": "gradient.scf_total_gradient",
    "properties.scf_dipole": "properties.scf_dipole",
    "properties.unrelaxed_dipole": "properties.scf_dipole",
    "properties.relaxed_dipole": "properties.scf_dipole",
}


def test_everything_of_a_composite_is_the_weighted_sum(unlike):
    """Mean fields and MP2 contributions have different weights; the correction is added
    unscaled."""
    small, large, _ = unlike
    whole = weighted(*unlike)

    def weighed(name, mean_field):
        """0.3 and 0.9 of the mean fields, -0.4 and 1.6 of what MP2 adds to them."""
        of_scf = [attrgetter(mean_field)(run) for run in (small, large)]
        total = [attrgetter(name)(run) for run in (small, large)]
        return 0.7 * of_scf[0] - 0.7 * of_scf[1] - 0.4 * total[0] + 1.6 * total[1]

    for name, mean_field in SUMMED.items():
        assert attrgetter(name)(whole) == pytest.approx(weighed(name, mean_field))
    expected = weighed("total_energy", "scf_total_energy") - 0.03 - 0.002 + 0.025
    assert whole.total_energy == pytest.approx(expected, abs=1e-12)
    assert whole.gradient.scf_total_gradient is None
    assert whole.properties.relaxed_density.shape == (2, 0, 0)
    assert whole.properties.unrelaxed_density.shape == (2, 0, 0)
    assert whole.orbital_basis.name == "limit of a and b"
    assert whole.sizes == large.sizes and [run for _, run in whole.terms] == [small, large]


def test_a_composite_has_no_gradient_where_a_run_has_none(unlike):
    """The gradient of the mean field alone is needed if its weight differs."""
    small, large, _ = unlike
    without = replace(small, gradient=None)
    alone = replace(small, gradient=replace(small.gradient, scf_total_gradient=None))
    assert weighted(small, large).gradient is not None
    for runs in ((without, large), (large, without), (alone, large)):
        assert weighted(*runs).gradient is None
    whole = combine([(Part("a", 1.0, 1.0), alone)])
    assert whole.gradient.total_gradient == pytest.approx(small.gradient.total_gradient)


def test_a_composite_of_other_methods_is_a_weighted_sum(unlike):
    """dRPA has no spin components, and a double hybrid has the energy of its functional."""
    small, large, _ = unlike
    screened = weighted(
        *(
            replace(
                run,
                options=replace(run.options, method="drpa"),
                quadrature=Quadrature(energy, 12, 0.5, 60.0, 0.0),
            )
            for run, energy in ((small, -0.1), (large, -0.3))
        )
    )
    assert screened.correlation_energy == pytest.approx(0.04 - 0.48)
    assert screened.rpa_correlation_energy == pytest.approx(0.04 - 0.48)
    both = weighted(
        *(
            replace(run, reference=replace(run.reference, functional_energy=energy))
            for run, energy in ((small, -1.0), (large, -2.0))
        )
    )
    assert both.functional_energy == pytest.approx(-0.3 - 1.8)
    assert weighted(small, large).functional_energy is None


def test_a_limit_stays_one_in_the_file_of_its_gas_and_in_comparisons(unlike, tmp_path):
    """It is not the energy in the larger basis, and has no published scale factor."""
    small, large, _ = unlike
    parts = (replace(PARTS[0], name="sto-3g"), replace(PARTS[1], name="6-31g"))
    whole = combine(list(zip(parts, (small, large), strict=True)))
    stored = StoredHessian("x.h5", whole, np.eye(9))
    study = make_thermochemistry(stored, ROOM)
    writer = StudyWriter(tmp_path / "gas.h5", overwrite=False)
    for name, run in study.runs.items():
        writer.add(name, run)
    writer.write(study)
    read = read_candidate(tmp_path / "gas.h5")
    assert read.result.total_energy == whole.total_energy != large.total_energy
    again = make_thermochemistry(read.hessian, ROOM)
    assert value(again, "gibbs_energy") == value(study, "gibbs_energy")
    assert again.settings == study.settings
    with recorded_error(InputError):
        make_thermochemistry(stored, GasConditions(scale="auto"))
    columns = columns_of_bases([None, whole])
    assert math.isnan(columns["scf_total_energy_6-31g"].values[0])
    rank_conformers([replace(read, name="one"), replace(read, name="two")])
    with recorded_error(InputError):
        rank_conformers([read, Candidate("large", large, read.hessian)])
    with recorded_error(InputError):
        read_species(Reaction([(1, tmp_path / "gas.h5")], [(1, tmp_path / "gas.h5")]), "angstrom")


def pyscf_ccsd_t(molecule, basis, frozen):
    """Energies of CCSD, (T) and MP2 of PySCF used directly, with the fitting sets that dfmp2
    takes, and its solver."""
    mole = mole_of(molecule, basis)
    mean_field = scf.HF(mole).density_fit(auxbasis="cc-pvdz-jkfit").run(conv_tol=1e-11)
    kinds = cc.dfccsd.RCCSD, mp.dfmp2.DFMP2
    if mole.spin:
        kinds = cc.dfuccsd.UCCSD, mp.dfump2.DFUMP2
    solver, perturbed = (kind(mean_field, frozen=frozen) for kind in kinds)
    solver.run(with_df=df.DF(mole, auxbasis="cc-pvdz-ri"), conv_tol=1e-9)
    perturbed.run(with_df=df.DF(mole, auxbasis="cc-pvdz-ri"))
    return (solver.e_corr, solver.ccsd_t(), perturbed.e_corr), solver


WATER = ";".join(WATER_DIMER.split(";")[:3])
WATER_CATION = "O 0 0 0; H 0 0.1 0.96; H 0.93 0 -0.24"
# Psi4 1.3.2: molecule of WATER_CATION with charge 1, num_frozen_docc 1, reference uhf, and of WATER
# with reference rhf and all electrons; basis cc-pvdz, scf_type pk, e_convergence 1e-10,
# d_convergence 1e-8, energy('ccsd(t)')
PSI4_CATION = -0.170166428574 + 0.151346426299
PSI4_WATER = -0.213530453201 - 0.003072886037 + 0.204206010688
FITTING = 2e-4  # Eh; four-centre less fitted integrals in CCSD(T) - MP2: 1.2e-4 and 1.6e-4 measured


@pytest.mark.parametrize(
    ("atoms", "charge", "multiplicity", "frozen_core", "basis", "psi4"),
    [
        ("B 0 0 0; H 0 0.2 1.2", 0, 1, 1, "6-31g", None),
        ("H 0 0 0; H 0 0.1 0.75; H 0.2 0.3 1.7", 0, 2, 0, "6-31g", None),
        pytest.param(WATER, 0, 1, 0, "cc-pvdz", PSI4_WATER, marks=pytest.mark.slow),
        pytest.param(WATER_CATION, 1, 2, 1, "cc-pvdz", PSI4_CATION, marks=pytest.mark.slow),
    ],
    ids=["BH", "H3", "water", "water cation"],
)
def test_a_correction_is_that_of_pyscf(
    atoms, charge, multiplicity, frozen_core, basis, psi4, tmp_path
):
    """Stored with the diagnostics of a closed shell."""
    molecule = Molecule.from_string(atoms, charge=charge, multiplicity=multiplicity)
    options = Options(basis, frozen_core="auto" if frozen_core else "none", **TIGHT)
    level = at_level(options, delta=f"CCSD(T)/{basis}")
    study = basis_set_limit(molecule, level, keeper=Keeper(tmp_path / "x.h5"))
    found = read_study(tmp_path / "x.h5").runs["delta-pyscf"].coupled_cluster
    (ccsd, triples, perturbed), solver = pyscf_ccsd_t(molecule, basis, frozen_core)
    energies = found.ccsd_correlation_energy, found.triples_energy, found.mp2_correlation_energy
    assert energies == pytest.approx((ccsd, triples, perturbed), abs=2e-7)
    correction = value(study, "delta_correction")
    assert correction == pytest.approx(ccsd + triples - perturbed, abs=2e-7)
    diagnostics = (found.t1_diagnostic, found.d1_diagnostic)
    if multiplicity == 1:
        expected = solver.get_t1_diagnostic(), solver.get_d1_diagnostic()
        assert diagnostics == pytest.approx(expected, rel=2e-4)
    else:
        assert diagnostics == (None, None)
    if psi4 is not None:
        assert correction == pytest.approx(psi4, abs=FITTING)


@pytest.mark.parametrize("version", [(1, 3), (1, 4)])
def test_another_program_gets_the_whole_molecule(version, monkeypatch):
    """Ghosts, charge, spin, frozen core and positions of atoms, which must not be moved, with cores
    and memory; its answers are identified by name."""
    molecule = Molecule.from_string(
        "N 0 0 0; O 0.1 0 1.22; H 0.9 0.2 -0.4; @He -1.6 0.3 0.2", charge=1, multiplicity=2
    )
    result = mp2_energy(molecule, Options("6-31g", frozen_core="auto", stability="off", threads=1))
    result = replace(result, options=replace(result.options, threads=3))
    asked = []
    answer = {
        "success": True,
        "extras": {
            "qcvars": {
                "CCSD CORRELATION ENERGY": -0.3,
                "(T) CORRECTION ENERGY": -0.02,
                "CCSD(T) CORRELATION ENERGY": -0.32,
                "MP2 CORRELATION ENERGY": -0.28,
                "CC T1 DIAGNOSTIC": 0.01,
                "CC D1 DIAGNOSTIC": 0.03,
            }
        },
        "provenance": {"creator": "Psi4", "version": "1.3.2"},
    }
    engine = ModuleType("qcengine")
    engine.compute = lambda document, *program, **how: asked.append((document, how)) or answer
    monkeypatch.setitem(sys.modules, "qcengine", engine)
    monkeypatch.setattr(coupled_cluster, "require_program", lambda program: None)
    monkeypatch.setattr(coupled_cluster, "_psi4_version", lambda: version)
    monkeypatch.setattr(
        coupled_cluster,
        "_by_old_psi4",
        lambda document, budget: asked.append((document, budget)) or answer,
    )
    found = coupled_cluster._by_qcengine("psi4", result)
    ((document, how),) = asked
    task = {"ncores": 3, "memory": result.memory.budget / 2**30}
    assert how == {
        (1, 3): result.memory.budget,
        (1, 4): {"return_dict": True, "task_config": task},
    }.get(version)
    assert document["molecule"].pop("geometry") == pytest.approx(molecule.coordinates.ravel())
    assert document == {
        "schema_name": "qcschema_input",
        "schema_version": 1,
        "molecule": {
            "schema_name": "qcschema_molecule",
            "schema_version": 2,
            "symbols": ["N", "O", "H", "He"],
            "real": [True, True, True, False],
            "molecular_charge": 1,
            "molecular_multiplicity": 2,
            "fix_com": True,
            "fix_orientation": True,
            "fix_symmetry": "c1",
        },
        "driver": "energy",
        "model": {"method": "ccsd(t)", "basis": "6-31g"},
        "keywords": {
            "reference": "uhf",
            "scf_type": "pk",
            "num_frozen_docc": 2,
            "e_convergence": 1e-8,
            "d_convergence": 1e-8,
        },
    }
    program = "Psi4 1.3.2 (four-centre integrals)"
    assert found == CoupledCluster(program, -0.3, -0.02, -0.28, seconds=0.0)  # of an open shell
    closed = replace(result.reference, mo_energy=result.reference.mo_energy[:1])
    found = coupled_cluster._by_qcengine("psi4", replace(result, reference=closed))
    assert (found.t1_diagnostic, found.d1_diagnostic) == (0.01, 0.03)
    answer["extras"]["qcvars"].pop("CCSD(T) CORRELATION ENERGY")
    for said in ("first\n\n  PSIO Error  \n", " \n"):
        answer["error"] = {"error_message": said}
        with recorded_error(BackendUnavailable):
            coupled_cluster._by_qcengine("psi4", result)


def test_what_does_not_belong_to_a_result_is_no_correction(monkeypatch) -> None:
    """CCSD(T) that has not converged, or whose MP2 differs: with the frozen core, the Hamiltonian
    and the charges of the result it is the same. Another program is asked by its name."""
    molecule = Molecule.from_string("Li 0 0 0; H 0 0 1.6").in_field([[0.5, 2.0, 1.0, 0.7]])
    options = Options("6-31g", frozen_core="1", relativity="x2c", threads=1)
    result = mp2_energy(molecule, options, listener=Silent())
    pairs = replace(result.pairs, opposite_spin=1.1 * result.pairs.opposite_spin)
    with recorded_error(ComparisonFailed):
        coupled_cluster._by_pyscf(replace(result, pairs=pairs))
    found = coupled_cluster._by_pyscf(result)
    monkeypatch.setattr(
        coupled_cluster,
        "_by_qcengine",
        lambda name, given: replace(found, program=f"{name} for {given.total_energy}"),
    )
    other = WithCoupledCluster("psi4")(molecule, result.options)
    assert other.coupled_cluster.program == f"psi4 for {result.total_energy}"
    monkeypatch.setattr(coupled_cluster, "MOST_CYCLES", 2)
    with recorded_error(ConvergenceError):
        coupled_cluster._by_pyscf(result)


PSI4 = """#!{python}
import json, pathlib, sys
if sys.argv[1:] == ["--version"]:
    print("with words before it 1.3.2+e9f4d6d")
else:
    assert sys.argv[1] == "--scratch" and sys.argv[3:] == ["--json", "data.json"]
    file = pathlib.Path("data.json")
    asked = json.loads(file.read_text())
    assert pathlib.Path(sys.argv[2]).samefile(".")
    if asked["driver"] != "energy":
        sys.exit("no such driver")
    file.write_text(json.dumps({{"success": True, "memory": asked["memory"]}}))
"""


def test_a_psi4_that_knows_one_schema_alone_is_asked_by_its_command(tmp_path, monkeypatch):
    """With nine tenths of the memory, in a separate folder."""
    program = tmp_path / "psi4"
    program.write_text(PSI4.format(python=sys.executable))
    program.chmod(0o755)
    monkeypatch.setenv("PATH", str(tmp_path))
    assert coupled_cluster._psi4_version() == (1, 3)
    answer = coupled_cluster._by_old_psi4({"driver": "energy"}, 2 * 10**9)
    assert answer == {"success": True, "memory": 18 * 10**8}
    refused = coupled_cluster._by_old_psi4({"driver": "forces"}, 2 * 10**9)
    assert refused["success"] is False
    assert refused["error"]["error_message"].strip() == "no such driver"


@pytest.mark.slow
def test_correction_by_psi4():
    pytest.importorskip("qcengine")
    molecule = Molecule.from_string(WATER_CATION, charge=1, multiplicity=2)
    study = basis_set_limit(
        molecule,
        at_level(
            Options("6-31g", frozen_core="auto"), delta="ccsd(t)/cc-pvdz", delta_program="psi4"
        ),
    )
    assert value(study, "delta_correction") == pytest.approx(PSI4_CATION, abs=1e-7)
    assert study.runs["delta-psi4"].coupled_cluster.program.startswith("Psi4")


def test_a_single_electron_has_no_correction():
    alone = composite(
        Molecule.from_string("H 0 0 0", multiplicity=2),
        at_level(Options("6-31g"), delta="ccsd(t)/6-31g"),
    )
    assert alone.correction == 0.0


def test_memory_of_the_correction_is_estimated():
    """One and a half times twenty arrays of the size of T2, (ov|vv) twice and B, plus PySCF
    itself, for two spins."""
    two = (Spin(7, 5, 14), Spin(6, 4, 15))
    unrestricted = type("Work", (), {"spins": two, "nao": 23, "naux": 79})
    doubles = 25 * 14**2 + 2 * 20 * 14 * 15 + 16 * 15**2
    triples = 2 * (5 * 14**3 + 5 * 14 * 15**2 + 4 * 15 * 14**2 + 4 * 15**3)
    arrays = 8 * (20 * doubles + triples + 23**2 * 79)
    expected = 80 * 10**6 + round(1.5 * arrays)
    assert coupled_cluster_bytes(unrestricted) == expected
    helium, needed = Molecule.from_string("He 0 0 0"), WithCoupledCluster("pyscf").require
    needed(helium, unrestricted, expected)
    with recorded_error(ResourceError):
        needed(helium, unrestricted, expected - 1)


METHODS = (
    {"method": "mp2"},
    {"method": "scs-mp2", "delta": "ccsd(t)/3-21g"},
    {"method": "drpa", "xc": "pbe", "grid": "10,26"},
    {"method": "b2plyp-d3bj", "grid": "10,26"},
    {"method": "xyg3", "grid": "10,26"},
)


@pytest.mark.parametrize("method", METHODS)
def test_every_row_of_energies_adds_up_to_its_total(method):
    """In columns of one basis set and of the limit of two, and in differences, for every kind of
    method."""
    heh = Molecule.from_string("He 0 0 0; H 0 0 0.8", charge=1)
    options = dict(method)
    delta = options.pop("delta", None)
    limit = composite(heh, at_level(Options("cc-pv[dt]z", threads=1, **options), delta=delta))
    rows = {"": {}, "dz": {}, "tz": {}}
    for name, column in (energy_columns([limit]) | columns_of_bases([limit])).items():
        energy, _, basis = name.partition("_cc-pv")
        rows[basis][energy] = column.values[0]
    for energies in rows.values():
        total = energies.pop("total_energy")
        assert total == pytest.approx(sum(energies.values()), abs=1e-12)
    runs = ["complex", *(f"fragment-{n}-{basis}" for n in (1, 2) for basis in SCHEMES.values())]
    table = differences_in_bases(dict.fromkeys(runs, limit), 2)
    for scheme in SCHEMES:
        parts = {}
        for prefix in IN_TABLE:
            column = table.get(f"{prefix}{scheme}_interaction_energy")
            if column is not None:
                parts[prefix] = np.nan_to_num(column.values)
        total = parts.pop("")
        if "functional_" in parts or "exx_" in parts:  # the SCF is only where orbitals come from
            parts.pop("scf_")
        assert total == pytest.approx(sum(parts.values()), abs=1e-12)
