"""`dfmp2 validate`: the entries agree, and a broken kernel, basis or core table makes them
disagree."""

from __future__ import annotations

import dataclasses
import importlib.util
import itertools
import math
import shutil
import tomllib
from contextlib import nullcontext
from pathlib import Path
from types import SimpleNamespace

import numpy as np
import pytest

from dfmp2.backends.cpu import CpuBackend
from dfmp2.errors import InputError, Interrupted, ResourceError, UnsupportedByBackend
from dfmp2.gradients.gradient import mp2_gradient
from dfmp2.molecule.molecule import Molecule
from dfmp2.options import make_options
from dfmp2.progress import Silent
from dfmp2.validation import entries, validate
from dfmp2.validation.entries import SyntheticSizes
from dfmp2.validation.validate import Session
from tests.conftest import succeed
from tests.recorded import recorded_error

DATA = Path(__file__).parent / "data"
MAIN, TRNSCI = entries.load_entries("main"), entries.load_entries("trnsci")
BY_ID = {entry.id: entry for entry in (*MAIN, *TRNSCI)}
# A program other than PySCF, every reference and SCF type, frozen and correlated core, a ghost: a
# second in all.
QUICK = (
    "bagel-1.2.2-h2o",
    "bagel-1.2.2-h2o-fc",
    "nwchem-7.0.2-nh2-fc",
    "psi4-1.3.2-nh2-ghost-ne",
    "trnblas-small",
    "psi4-dfmp2-5-li-uhf-fc",
    "closed-form-17-127-256",
    "psi4-dfomp2-1",
    "psi4-1.3.2-nah-fc",
    "ferric-rimp2grad-h2o-distorted-fc1",
    "pyscf-native-o2-scs-natocc",
)
MIXED = ("bagel-1.2.2-h2o-fc", "nwchem-7.0.2-nh2-fc", "closed-form-17-127-256")


def only(*names):
    return list(itertools.chain.from_iterable(("--only", name) for name in names))


def outcome(done, entry: str) -> str:
    """Status of the first value of an entry in the printed table."""
    lines = done.out.splitlines()
    return next(
        after.split()[0]
        for line, after in itertools.pairwise(lines)
        if line.startswith(f"{entry}:")
    )


def failing(finished):
    """Names of the entries that fail."""
    names, entry = set(), ""
    for line in finished.out.splitlines():
        entry = line.partition(":")[0] if not line.startswith(" ") else entry
        names |= {entry} if line.startswith("  fail ") else set()
    return names


def test_entries_are_complete_and_tagged_by_what_they_do():
    for entry in BY_ID.values():
        assert entry.program and entry.version and entry.source and entry.tolerance_reason, entry.id
        if "conventional-mp2" in entry.tags:
            assert entry.tolerance is None, entry.id
        else:
            # Debye; Eh
            assert 0 < entry.tolerance <= (5e-3 if "dipole" in entry.id else 5e-5), entry.id
        assert set(entry.needs) <= set(entries.MODULES), entry.id
        found = entry.calculations
        assert ("uhf" in entry.tags) == any(c.options.reference == "uhf" for c in found)
        assert ("ghost" in entry.tags) == any(any(c.molecule.ghost) for c in found)
        assert ("frozen-core" in entry.tags) == any(c.options.frozen_core != "0" for c in found)
        assert ("conventional-scf" in entry.tags) == any(
            c.options.scf == "conventional" for c in found
        )
        for source in entry.source:
            if source.startswith("own run, tests/"):
                path = DATA.parent.parent / source.removeprefix("own run, ")
                assert path.exists() and path.with_suffix(".out").exists()
    assert {tag for entry in MAIN for tag in entry.tags} == set(entries.TAGS)


def test_the_data_travel_with_the_package():
    project = tomllib.loads((DATA.parent.parent / "pyproject.toml").read_text())
    assert "validation/*.json" in project["tool"]["setuptools"]["package-data"]["dfmp2"]


def test_synthetic_integrals_are_those_of_the_recipe(monkeypatch):
    """B B^T against the recipe written out with PyTorch and a general solver."""
    torch = pytest.importorskip("torch")
    nocc, nvir, naux = 3, 13, 16
    monkeypatch.setattr(entries, "DRAWN_AT_ONCE", 160)
    b, space = entries.make_synthetic(SyntheticSizes("trnblas", nocc, nvir, naux), 1)
    torch.manual_seed(42)
    n = nocc + nvir
    c_occ, c_vir = torch.randn(n, nocc) * 0.1, torch.randn(n, nvir) * 0.1
    eri = torch.randn(n, n, naux) * 0.01
    root = torch.randn(naux, naux) * 0.01
    c_occ, c_vir, eri, root = (tensor.double().numpy() for tensor in (c_occ, c_vir, eri, root))
    raw = np.einsum("mi,mnP,na->iaP", c_occ, eri, c_vir, optimize=True).reshape(-1, naux)
    expected = raw @ np.linalg.solve(root @ root.T + naux * np.eye(naux), raw.T)
    np.testing.assert_allclose(b.reshape(-1, naux) @ b.reshape(-1, naux).T, expected, atol=1e-12)
    assert np.all(space.eps_occ <= -0.5) and np.all(np.diff(space.eps_occ) <= 0)
    assert np.all(space.eps_vir >= 0.1) and np.all(np.diff(space.eps_vir) >= 0)


@pytest.mark.parametrize(("precision", "chosen"), [("fp64", QUICK), ("mixed", MIXED)])
def test_quick_entries_pass(call, precision, chosen):
    how = ("--backend", "cpu", "--precision", precision, "--json")
    payload = succeed(call("validate", *only(*chosen), *how)).json
    assert {row["id"] for row in payload["entries"]} >= set(chosen)
    assert payload["summary"]["failed"] == payload["summary"]["skipped"] == 0
    for row in payload["entries"]:
        assert row["difference"] == pytest.approx(row["value"] - row["reference"], abs=1e-15)
        assert abs(row["difference"]) <= row["tolerance"]


def test_a_wrong_denominator_is_noticed_in_mixed_precision(call, monkeypatch):
    """A fault in float32 only: the certificate must reject it."""
    put = CpuBackend.put

    def shifted(self, b, eps_occ, eps_vir, precision):
        return put(self, b, eps_occ, eps_vir + (1e-4 if precision == "mixed" else 0.0), precision)

    monkeypatch.setattr(CpuBackend, "put", shifted)
    done = call("validate", "--only", "bagel-1.2.2-h2o", "--backend", "cpu", "--precision", "mixed")
    assert done.code == 8
    assert "tolerance" in done.out


def test_more_digits_than_float32_has_are_repeated_in_float64(call, monkeypatch):
    asked = ("validate", "--only", "gamess-miniapp-benz", "--backend", "cpu", "--precision")
    done = call(*asked, "mixed", "--json")
    [row] = done.json["entries"]
    assert (done.code, row["tolerance"]) == (0, 1e-12 * abs(row["reference"]))
    assert "repeated in float64" in row["reason"] and "1 calculations were too far off" in done.err
    # A device without float64 cannot do it, which says nothing about us; one that computes
    # something else has failed.
    monkeypatch.setattr(validate.registry, "float64_backend", lambda backend: CpuBackend(1))
    monkeypatch.setattr(
        "dfmp2.mp2.certificate.registry.float64_backend", lambda backend: CpuBackend(1)
    )
    done = call(*asked, "auto", "--require-all")
    assert (done.code, outcome(done, "gamess-miniapp-benz")) == (8, "skipped")
    assert "has no float64" in " ".join(done.out.split())
    put = CpuBackend.put
    monkeypatch.setattr(
        CpuBackend, "put", lambda self, b, o, v, p: put(self, b, o, v + 1e-3 * (p == "mixed"), p)
    )
    assert failing(call(*asked, "auto")) == {"gamess-miniapp-benz"}


def test_calculations_that_share_an_scf_compute_it_once(monkeypatch):
    pipeline_run, cycles = validate.energy.mp2_energy, []

    def counted(molecule, options, **more):
        result = pipeline_run(molecule, options, **more)
        cycles.append(result.reference.cycles)
        return result

    monkeypatch.setattr(validate.energy, "mp2_energy", counted)
    chosen = [
        BY_ID[name]
        for name in ("bagel-1.2.2-h2o", "psi4-1.3.2-h2o", "pyscf-2.14.0-h2o", "bagel-1.2.2-h2o-fc")
    ]
    assert all(
        row.status == "pass" for rows in validate.validate(chosen, Session()) for row in rows
    )
    # Three entries share one calculation; the fourth starts from its orbitals
    assert len(cycles) == 2
    assert cycles[1] < cycles[0] / 3


@pytest.mark.skipif(shutil.which("psi4") is None, reason="psi4 is not installed")
def test_against_psi4_recomputes(call):
    against = ("--against", "psi4,pyscf", "--backend", "cpu", "--json")
    found = succeed(call("validate", *only("psi4-dfmp2-5-li-uhf-fc"), *against)).json["entries"]
    assert {row["program"].split()[0] for row in found} == {"Psi4", "PySCF"}


def test_entries_that_need_a_missing_package_are_skipped(call, monkeypatch):
    """Which is a failure if nothing else was compared, or if nothing may be skipped."""
    find = importlib.util.find_spec
    monkeypatch.setattr(
        "importlib.util.find_spec",
        lambda name: None if name == "basis_set_exchange" else find(name),
    )
    ecp = "psi4-dfmp2-ecp-nexe-ae"
    alone = call("validate", *only(ecp), "--backend", "cpu")
    assert (alone.code, outcome(alone, ecp)) == (8, "skipped")
    assert "needs the package basis_set_exchange: pip install 'dfmp2[bse]'" in alone.out
    assert "2 of 2 values are skipped (nothing was compared)" in alone.message
    both = ("validate", *only(ecp, "closed-form-1-1-64"), "--backend", "cpu")
    assert call(*both).code == 0
    strict = call(*both, "--require-all")
    assert strict.code == 8
    assert "2 of 3 values are skipped (--require-all)" in strict.message


@pytest.mark.parametrize(
    ("error", "code", "said"),
    [
        (InputError("planted"), 8, "3 of 5 values differ by more than their entries allow"),
        (Interrupted("terminated"), 75, "dfmp2: terminated"),
    ],
    ids=["error", "signal"],
)
def test_a_calculation_that_fails_fails_its_entry_alone_and_a_signal_ends_it(
    call, monkeypatch, error, code, said
):
    own = validate.energy.mp2_energy

    def fail_with_spin(molecule, options, **more):
        if options.reference == "uhf":
            raise error
        return own(molecule, options, **more)

    monkeypatch.setattr(validate.energy, "mp2_energy", fail_with_spin)
    done = call("validate", *only(*MIXED[:2]), "--backend", "cpu")
    assert done.code == code and said in done.message
    if code == 8:
        assert failing(done) == {"nwchem-7.0.2-nh2-fc"}
        assert done.out.count("planted") == 3


@pytest.mark.slow
@pytest.mark.parametrize(
    ("backend", "precision"), [("cpu", "fp64"), ("cpu", "mixed"), ("torch", "auto")]
)
@pytest.mark.parametrize("table", ["main", "trnsci"])
def test_everything_passes(call, table, backend, precision):
    options = (
        "--table",
        table,
        "--backend",
        backend,
        "--precision",
        precision,
        "--require-all",
        "--json",
    )
    done = call("validate", *options)
    assert done.code == 0, [row for row in done.json["entries"] if row["status"] == "fail"]


@pytest.mark.parametrize(("backend", "precision"), [("cpu", "mixed"), ("torch", "auto")])
def test_methods_without_pairs_run_on_the_host_in_float64_whatever_is_asked(backend, precision):
    found = Session(backend, precision).calculate(BY_ID["ferric-rpa-h2o"].calculations[0])
    assert found.values["rpa_correlation_energy"] == pytest.approx(
        BY_ID["ferric-rpa-h2o"].quantities[0].value, abs=1e-6
    )
    assert not found.mixed


@pytest.mark.parametrize(("precision", "bytes_each"), [("fp64", 8), ("mixed", 12)])
def test_a_problem_of_given_sizes_needs_its_arrays(monkeypatch, precision, bytes_each):
    """B in float64, with a float32 copy in mixed precision, and two matrices of fitting
    functions."""
    entry = BY_ID["closed-form-1-1-64"]
    monkeypatch.setattr(entries.resources, "resident_memory", lambda: 0)
    needed = 64 * bytes_each + 16 * 64**2
    Session("cpu", precision, needed).evaluate(entry)
    with pytest.raises(ResourceError):
        Session("cpu", precision, needed - 1).evaluate(entry)


@pytest.mark.parametrize(
    ("recipe", "held", "bytes_of_arrays"),
    [
        ("closed-form", 0, 8 * 3 * 5 * 7),
        ("trnblas", 0, 8 * (3 * 5 * 7 + 3 * (3 + 5) * 7)),  # half-transformed integrals as well
        ("closed-form", 9000, 9000),
        ("trnblas", 9000, 9000),
    ],
)
@pytest.mark.parametrize("lacking", [0, 1])
@pytest.mark.parametrize("given", [0, 10**9])
def test_arrays_fit_down_to_the_byte(monkeypatch, recipe, held, bytes_of_arrays, lacking, given):
    """Beside what the process has; without a given limit into what is free."""
    budget = 1000 + bytes_of_arrays + 16 * 7**2 - lacking
    monkeypatch.setattr(entries.resources, "resident_memory", lambda: 1000)
    monkeypatch.setattr(entries.resources, "usable_memory", lambda: given or budget)
    with pytest.raises(ResourceError) if lacking else nullcontext():
        entries.require_host_memory(SyntheticSizes(recipe, 3, 5, 7), held, given and budget)


@pytest.mark.parametrize(
    ("off", "status"), [(0.0, "PASS"), (0.5, "PASS"), (0.50001, "FAIL"), (float("nan"), "FAIL")]
)
@pytest.mark.parametrize("sign", [1, -1])
def test_a_quantity_fails_above_its_tolerance(off: float, status: str, sign: int) -> None:
    """A difference equal to the tolerance is allowed; without a tolerance the numbers are only
    shown."""
    entry = entries.load_entries()[0]
    quantity = entries.Quantity("mp2_total_energy", "mp2_total_energy", 8.0)
    row = validate._compared(entry, quantity, 8.0 + sign * off, 8.0, 0.5)
    assert row.status.upper() == status and row.tolerance == 0.5
    said = f"off by {off:.1e} Eh, 5.0e-01 are allowed: "
    assert row.reason.startswith(said) == (status == "FAIL")
    shown = validate._compared(entry, quantity, 9.0, 8.0, None)
    assert (shown.value, shown.reference) == (9.0, 8.0) and shown.status.upper() == "SHOWN"


def test_energies_of_a_calculation_by_name():
    """Ours and PySCF's; SCS has 6/5 and 1/3 of the spin components, SOS 1.3 of opposite spins."""
    session = Session("cpu", "fp64", count=1)
    calculation = BY_ID["pyscf-2.14.0-h2o"].calculations[0]
    assert session.result(calculation).provenance.threads == 1
    ours = session.calculate(calculation).values
    theirs = validate.Other("pyscf", session).calculate(calculation).values
    scf, same, opposite = (
        theirs[f"{name}_energy"]
        for name in ("scf_total", "mp2_same_spin_correlation", "mp2_opposite_spin_correlation")
    )
    expected = {
        "scf_total_energy": scf,
        "mp2_same_spin_correlation_energy": same,
        "mp2_opposite_spin_correlation_energy": opposite,
        "mp2_correlation_energy": same + opposite,
        "mp2_total_energy": scf + same + opposite,
        "scs_mp2_correlation_energy": 6 / 5 * opposite + same / 3,
        "scs_mp2_total_energy": scf + 6 / 5 * opposite + same / 3,
        "sos_mp2_total_energy": scf + 1.3 * opposite,
    }
    assert theirs == pytest.approx(expected, abs=1e-12)
    assert {name: ours[name] for name in expected} == pytest.approx(expected, abs=1e-8)
    other = validate.Other("pyscf", SimpleNamespace(result=lambda calculation: None))
    for change in ({"method": "scs-mp2"}, {"reference": "rohf"}):
        options = dataclasses.replace(calculation.options, **change)
        with recorded_error(UnsupportedByBackend):
            other.calculate(dataclasses.replace(calculation, options=options))


@pytest.mark.parametrize(
    ("mixed", "published", "against", "quoted"),
    [
        (False, None, 4e-8, 5e-6),
        (True, None, 4e-8 + 1e-7, 5e-6 + 1e-7),
        (True, entries.Published(1e-9, None, "a paper"), 5e-6, 5e-6),
    ],
)
def test_what_may_differ_from_another_program(mixed, published, against, quoted):
    """1e-8 Eh of each run, and 1e-7 Eh in mixed precision; a published limit stays as it is."""
    names = ("mp2_total_energy", "nuclear_repulsion_energy", "gradient 1 O x")
    factors = (1.0, -2.0, -1.0)
    entry = dataclasses.replace(
        MAIN[0],
        quantities=tuple(entries.Quantity(name, name, -1.0, factors) for name in names),
        calculations=(-7.0, -2.0, -3.0),
        tolerance=5e-6,
        published=published,
    )
    ours = [
        validate.ProgramEnergies(dict.fromkeys(names, energy + 1e-9), mixed)
        for energy in entry.calculations
    ]
    other = SimpleNamespace(
        calculate=lambda energy: validate.ProgramEnergies({names[0]: energy}, program="Psi4 1.4 x")
    )
    row, skipped = validate._judged_by(other, entry, ours)
    assert (skipped.status, skipped.quantity, skipped.value) == ("skipped", names[2], None)
    assert (row.maker, row.version, row.source) == ("Psi4", "1.4 x", "recomputed now")
    assert (row.reference, row.status, row.reason) == (0.0, "pass", validate.AGAINST_REASON)
    assert row.value == pytest.approx(-2e-9, rel=1e-5)
    assert row.tolerance == pytest.approx(against, rel=1e-12)
    assert validate._limit(entry, mixed) == pytest.approx(quoted, rel=1e-12)


def test_derivatives_of_the_energy_by_name():
    """Dipole moments in debye; the correlation contribution, the slope of the correlation energy in
    a field, is that of the relaxed density, in e bohr."""
    molecule = Molecule(("O", "H"), [[0.1, 0.2, -0.3], [0.9, 1.1, 1.0]], charge=-1)
    options = make_options(
        basis="sto-3g", scf_auxbasis="def2-universal-jkfit", auxbasis="def2-svp-ri", threads=1
    )
    result = mp2_gradient(molecule, options, listener=Silent()).result
    of_field = SimpleNamespace(relaxed=np.diag([9.0, 7.0, 20.0]), scf=np.diag([8.5, 7.2, 21.0]))
    result = dataclasses.replace(result, polarizability=of_field)
    slopes, found = result.gradient.total_gradient, result.properties
    kinds = ("scf", "unrelaxed", "relaxed")
    dipoles = {kind: getattr(found, f"{kind}_dipole") for kind in kinds}
    more = (dipoles["relaxed"] - dipoles["scf"], (0.5, -0.2, -1.0))
    expected = {
        f"gradient {atom} {axis}": slopes[row, column]
        for row, atom in enumerate(("1 O", "2 H"))
        for column, axis in enumerate("xyz")
    } | {
        f"{kind} occupation {number}": value
        for kind in kinds[1:]
        for number, value in enumerate(getattr(found, f"{kind}_occupations"), start=1)
    }
    expected |= {
        f"{kind} dipole / debye": 2.541746473 * math.sqrt(sum(dipole**2))
        for kind, dipole in dipoles.items()
    }
    for place, axis in enumerate("xyz"):
        expected[f"correlation dipole {axis}"] = more[0][place]
        expected[f"correlation polarizability {axis}{axis}"] = more[1][place]
    assert validate._derivatives(result) == pytest.approx(expected, rel=1e-8, abs=1e-12)
