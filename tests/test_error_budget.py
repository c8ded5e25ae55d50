"""The error budget: what each source adds, what it adds up to, and whether it holds against four-centre integrals."""

from __future__ import annotations

import csv
import lzma
import math
import shutil
from dataclasses import replace
from itertools import combinations
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from pyscf import gto, scf

import dfmp2
from dfmp2.molecule.xyz import parse_xyz
from dfmp2.mp2.error_budget import EXACT, ErrorBudget, Share, Source, bonded_atoms, combined
from dfmp2.mp2.result import Certificate, FittingCertificate, MP2Result
from dfmp2.output import hdf5
from dfmp2.output.study import read_study
from dfmp2.planning.memory import MemoryPlan
from dfmp2.scf.reference import GIVEN
from tests.conftest import Runner, Stored, succeed
from tests.report_page import page_of, parse

WRITTEN = Path(__file__).parent / "data" / "written_by_0.1"
EPSILON = 2.0**-52


@pytest.fixture(autouse=True)
def _one_thread(monkeypatch: pytest.MonkeyPatch) -> None:
    """Threads of molecules this small wait for each other."""
    monkeypatch.setenv("OMP_NUM_THREADS", "1")


@pytest.fixture(scope="module")
def written(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """Studies and a batch of dfmp2 0.1, unpacked."""
    folder = tmp_path_factory.mktemp("budget") / "written"
    shutil.copytree(WRITTEN, folder)
    for packed in folder.rglob("*.h5.xz"):
        packed.with_suffix("").write_bytes(lzma.decompress(packed.read_bytes()))
    return folder


@pytest.fixture(scope="module")
def result(water: Stored) -> MP2Result:
    """Water in STO-3G in mixed precision."""
    return hdf5.read(water.path)


def measured(correlation: float, scf: float | None, uncertainty: float = 0.0) -> FittingCertificate:
    """A fitting certificate with these errors, Eh."""
    doubt = None if scf is None else uncertainty
    return FittingCertificate(correlation, uncertainty, 5, 5, 15, 15, 1, scf, doubt)


def with_gradient(
    result: MP2Result, history: list[list[float]] | None, **changes: object
) -> MP2Result:
    """The result of an SCF that went this way: energy, change and gradient of each iteration."""
    found = None if history is None else np.array(history, dtype=float).reshape(-1, 3)
    return replace(result, reference=replace(result.reference, history=found, **changes))


# --- sources ------------------------------------------------------------------------------------------

SOME = Certificate(100, 40, 3e-9, 1e-9, 2e-9, 1e-9, 1e-7, repeated_in_fp64=False, seed=1)


@pytest.mark.parametrize(
    ("precision", "certificate", "value", "kind", "how"),
    [
        ("mixed", SOME, 3e-9, "bounded", "95 % upper bound from 40 of 100 pairs"),
        (
            "mixed",
            replace(SOME, seed=None),
            3e-9,
            "estimated",
            "estimate from 40 of 100 pairs",
        ),  # of dfmp2 0.1
        ("mixed", replace(SOME, sampled=100), 3e-9, "measured", "100 of 100 pairs"),
        ("mixed", None, None, "not measured", "without a certificate"),
        ("fp64", None, 84 * EPSILON * 0.2, "bounded", "float64"),
        (
            "fp64",
            replace(SOME, correlation_error=1.0, repeated_in_fp64=True),
            84 * EPSILON * 0.2,
            "bounded",
            "float64",
        ),
    ],
)
def test_precision(
    result: MP2Result,
    precision: str,
    certificate: Certificate | None,
    value: float | None,
    kind: str,
    how: str,
) -> None:
    """The certificate where float32 was used, else a last digit for each fitting function."""
    same, opposite = np.array([[-0.05]]), np.array([[-0.15]])
    pairs = replace(result.pairs, same_spin=(same,), opposite_spin=opposite)
    sizes = replace(result.sizes, naux=84)
    run = replace(result, precision=precision, certificate=certificate, pairs=pairs, sizes=sizes)
    share = run.error_budget.sources["precision"].correlation
    assert share is not None and share.kind == kind and how in share.how
    assert share.value == (None if value is None else pytest.approx(value, rel=1e-12))


STEPS = [[-75.0, 0.0, 0.5], [-75.1, -0.1, 2e-6]]


@pytest.mark.parametrize(
    ("history", "changes", "scf", "correlation"),
    [
        (STEPS, {}, 3 * 4e-12, 0.12 * 2e-6),
        ([], {}, 0.0, 0.0),  # one electron: a diagonalisation
        (None, {}, 3 * 1e-12, 0.12 * 1e-6),  # not recorded, but below its tolerance
        (
            STEPS[1:],
            {"ladder": GIVEN},
            4.5 * 3 * 4e-12,
            4.5 * 0.12 * 2e-6,
        ),  # a mean field of someone else
        (None, {"ladder": GIVEN}, None, None),  # in a file of an earlier version
    ],
)
def test_convergence(
    result: MP2Result,
    history: list[list[float]] | None,
    changes: dict[str, object],
    scf: float | None,
    correlation: float | None,
) -> None:
    """Second order in the last gradient for E(SCF), first order for E(corr); --scf-conv-tol 1e-10 lets 1e-6 Eh pass."""
    source = with_gradient(result, history, **changes).error_budget.sources["scf_convergence"]
    for share, value in ((source.scf, scf), (source.correlation, correlation)):
        assert share is not None and share.value == (
            None if value is None else pytest.approx(value, rel=1e-12)
        )
        assert share.kind == ("not measured" if value is None else "estimated")


def test_metric(result: MP2Result) -> None:
    """The root of the condition number, and something for each function that is left out."""
    energy = abs(result.mp2_correlation_energy)
    found = []
    for condition, dropped in ((1e10, 0), (1e13, 2), (math.inf, 0)):
        diagnostics = replace(
            result.diagnostics, metric_condition=condition, metric_dropped=dropped
        )
        share = (
            replace(result, diagnostics=diagnostics)
            .error_budget.sources["fitting_metric"]
            .correlation
        )
        assert share is not None
        found.append((share.value, share.kind))
    assert found[0] == (pytest.approx(1e5 * EPSILON * energy), "bounded")
    assert found[1] == (pytest.approx((10**6.5 * EPSILON + 2e-6) * energy), "estimated")
    assert found[2] == (None, "not measured")


@pytest.mark.parametrize(
    ("errors", "between", "certificate", "scf", "correlation", "kind"),
    [
        (
            {"O": -3e-5, "H": 1e-5},
            2e-5,
            None,
            5e-5 + 3.0 * 2e-5 + 3e-5,
            5e-5 + 0.7 * 2e-5 + 9e-5,
            "estimated",
        ),
        (
            {"O": -3e-5, "H": 1e-5},
            None,
            None,
            5e-5 + 3e-5,
            5e-5 + 9e-5,
            "estimated",
        ),  # no bond but to hydrogen
        ({}, 2e-5, None, None, None, "not measured"),
        ({"O": -3e-5, "H": 1e-5}, 2e-5, measured(-4e-5, 2e-5, 1e-6), 2.1e-5, 4.1e-5, "measured"),
    ],
)
def test_fitting(
    result: MP2Result,
    errors: dict[str, float],
    between: float | None,
    certificate: FittingCertificate | None,
    scf: float | None,
    correlation: float | None,
    kind: str,
) -> None:
    """Errors of the atoms do not cancel, what lies between them is estimated; the molecule itself wins over both."""
    assert result.scf_fitting is not None
    sets = {"scf_fitting": replace(result.scf_fitting, errors=errors)}
    sets["mp2_fitting"] = replace(result.mp2_fitting, errors=errors)
    reference = replace(result.reference, interatomic_fitting_error=between)
    budget = replace(
        result, **sets, reference=reference, fitting_certificate=certificate
    ).error_budget
    for share, value in (
        (budget.sources["scf_fitting"].scf, scf),
        (budget.sources["mp2_fitting"].correlation, correlation),
    ):
        assert share is not None and share.kind == kind
        assert share.value == (None if value is None else pytest.approx(value, rel=1e-12))
    orbitals = budget.sources["scf_fitting"].correlation
    if certificate is not None:  # its error of E(corr) has that of the orbitals in it
        assert orbitals is None
    elif scf is not None:
        expected = 0.01 * 5e-5 + (between or 0.0) + 3e-5
        assert orbitals is not None and orbitals.value == pytest.approx(expected, rel=1e-12)


def test_conventional_scf_has_no_fitting_error(result: MP2Result) -> None:
    """Neither with nor without a certificate."""
    for certificate in (None, measured(1e-5, None)):
        run = replace(result, scf_fitting=None, fitting_certificate=certificate)
        source = run.error_budget.sources["scf_fitting"]
        assert source.scf is not None and source.scf.value == 0.0 and source.correlation is None


@pytest.mark.parametrize(
    ("atoms", "count"),
    [
        ("H 0 0 -1.07; C 0 0 0; N 0 0 1.15", 2),
        ("N 0 0 0; N 0 0 1.1; Ne 0 0 4", 2),
        ("O 0 0 0; H 0 0.76 0.59; H 0 -0.76 0.59", 0),
        ("O 0 0 0; @O 0 0 1.2", 0),
    ],
)
def test_neighbours_that_are_heavier_than_hydrogen(atoms: str, count: int) -> None:
    """Counted; ghosts and separate molecules are not."""
    lines = atoms.split("; ")
    assert (
        bonded_atoms(parse_xyz("\n".join((str(len(lines)), "", *lines)), file="m").molecule)
        == count
    )


# --- what an SCF misses between atoms -------------------------------------------------------------------

AMIDOGEN = "N 0 0 0; H 0 0.80 0.63; H 0.1 -0.80 0.63"


def between_atoms(mf: Any) -> float:
    """The formula with all four-centre integrals of a UHF, and a loop over atoms in place of masks."""
    mole = mf.mol
    exact = np.einsum("mnmn->mn", mole.intor("int2e"))
    packed = np.sum([(block**2).sum(axis=0) for block in mf.with_df.loop()], axis=0)
    fitted = np.zeros((mole.nao, mole.nao))
    fitted[np.tril_indices(mole.nao)] = packed
    fitted = np.maximum(fitted, fitted.T)
    labels = [
        (atom, shell) for atom, _, shell, _ in mole.ao_labels(fmt=None)
    ]  # (0, "2p"): all directions
    overlap, total = mole.intor("int1e_ovlp"), 0.0
    groups = {label: [k for k, other in enumerate(labels) if other == label] for label in labels}
    q = np.zeros_like(exact)
    for left in groups.values():
        for right in groups.values():
            q[np.ix_(left, right)] = np.sqrt((exact - fitted)[np.ix_(left, right)].mean())
    for density in mf.make_rdm1():
        g = density * overlap
        for a0, a1 in mole.aoslice_by_atom()[:, 2:]:
            for b0, b1 in mole.aoslice_by_atom()[:, 2:]:
                if a0 != b0:
                    a, b = slice(a0, a1), slice(b0, b1)
                    total += np.einsum("ml,mn,ns,ls", g[a, a], q[a, b], g[b, b], q[a, b]) / 2
    return float(total)


def test_what_an_scf_misses_between_atoms(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    """Against all integrals of PySCF; the same from its mean field, from disk, turned round, and of RHF as UHF."""
    mole = gto.M(atom=AMIDOGEN, basis="cc-pvdz", spin=1, verbose=0)
    mf = scf.UHF(mole).density_fit(auxbasis="cc-pvdz-jkfit").run(conv_tol=1e-11)
    expected = between_atoms(mf)
    assert 5e-6 < expected < 1e-4
    given = {"precision": "fp64", "stability": "off", "threads": 1}
    taken = dfmp2.from_mean_field(mf, **given).reference.interatomic_fitting_error
    assert taken == pytest.approx(expected, rel=1e-4)

    def run(
        places: np.ndarray, symbols: tuple[str, ...], multiplicity: int, **options: Any
    ) -> MP2Result:
        molecule = dfmp2.Molecule(symbols, places, multiplicity=multiplicity)
        return dfmp2.run(molecule, "cc-pvdz", scratch=str(tmp_path), **given, **options)

    places, symbols = mole.atom_coords(), ("N", "H", "H")
    held = run(places, symbols, 2)
    atoms, between = held.diagnostics.scf_fitting_error, held.reference.interatomic_fitting_error
    assert atoms is not None and between == pytest.approx(expected, rel=1e-4)
    assert held.scf_fitting_estimate == atoms + between
    turn = np.linalg.qr(np.random.default_rng(1).normal(size=(3, 3)))[0]
    assert run(places @ turn, symbols, 2).reference.interatomic_fitting_error == pytest.approx(
        between, rel=1e-6
    )
    both = [run(places[:2], ("F", "H"), 1, reference=kind) for kind in ("rhf", "uhf")]
    restricted, unrestricted = (result.reference.interatomic_fitting_error for result in both)
    assert restricted == pytest.approx(unrestricted, rel=1e-5)
    assert run(places, symbols, 2, scf="conventional").scf_fitting_estimate is None
    for name, value in (("scf_fits_in_core", False), ("pair_bytes", 1), ("read_bytes", 1)):
        monkeypatch.setattr(MemoryPlan, name, property(lambda _, value=value: value))
    assert run(places, symbols, 2).reference.interatomic_fitting_error == pytest.approx(
        between, rel=1e-9
    )


# --- what they add up to ------------------------------------------------------------------------------


def budget_of(total: float | None) -> ErrorBudget:
    """A budget with one known source, or one that is not known."""
    share = Share(total, "estimated" if total is not None else "not measured", "by hand")
    basis = Share(None, "not measured", "by hand")
    return ErrorBudget(
        {"x": Source("the moon", share, None), "basis_set": Source("basis set", basis, basis)},
        "E(MP2, total)",
    )


@pytest.mark.parametrize(
    ("total", "decimals"),
    [
        (4.9e-5, 4),
        (5.1e-5, 3),
        (4.9e-4, 3),
        (0.049, 1),
        (0.3, 0),
        (7.0, 0),
        (1e-13, 10),
        (0.0, 10),
        (None, None),
    ],
)
def test_decimals(total: float | None, decimals: int | None) -> None:
    """As many as the error leaves unchanged by more than half a unit; the sentence says it."""
    budget = budget_of(total)
    assert budget.decimals == decimals
    said = {
        None: "is not known: there is nothing on the moon",
        0: "is good to no decimal,",
        1: "good to 1 decimal,",
    }
    assert said.get(decimals, f"is good to {decimals} decimals,") in budget.summary
    assert total is None or ("Largest part: the moon" in budget.summary and EXACT in budget.summary)


# (molecule, basis, options, accepted overestimate): E(SCF) and E(corr) against conventional SCF and four-centre MP2
HELD = [
    ("o2", "6-31g*", ("--scf-conv-tol", "1e-6"), 20),
    ("h2o", "6-31g*", ("--scf", "conventional", "--frozen-core", "auto"), 20),
]


@pytest.mark.parametrize(("name", "basis", "options", "most"), HELD)
def test_a_run_is_as_wrong_as_it_says(
    name: str, basis: str, options: tuple[str, ...], most: float, call: Runner
) -> None:
    """The true error is within the budget, and not many times smaller."""
    done = succeed(call("run", f"{name}.xyz", "--basis", basis, "--json", *options))
    budget, exact = (
        done.json["error_budget"],
        call("compare", f"{name}.dfmp2.h5", "--exact", "--json").json["energies"],
    )
    for key in ("scf_total_energy", "mp2_correlation_energy"):
        true = abs(exact[key]["difference"])
        assert true <= budget[key], key
    if "--scf" not in options:
        assert 0.2 < done.json["scf_fitting_estimate"] / exact["scf_total_energy"]["difference"] < 5
    assert budget["mp2_total_energy"] <= most * abs(
        sum(exact[key]["difference"] for key in ("scf_total_energy", "mp2_correlation_energy"))
    )


@pytest.mark.parametrize("name", ["h2o", "nh2"])
def test_a_gradient_measures_what_an_scf_left(name: str) -> None:
    """From its relaxed density: the error of E(corr), with its sign, against an SCF converged to 1e-12 Eh."""
    given = {"precision": "fp64", "stability": "off", "frozen_core": "auto", "threads": 1}
    path = Path(__file__).parent.parent / "inputs" / f"{name}.xyz"
    tight = dfmp2.run(path, "6-31g", scf_conv_tol=1e-12, **given)
    loose = dfmp2.gradient(path, "6-31g", scf_conv_tol=1e-5, **given).result
    true = loose.mp2_correlation_energy - tight.mp2_correlation_energy
    assert abs(true) > 1e-8 and loose.gradient_certificate is not None
    assert loose.gradient_certificate.scf_convergence_error == pytest.approx(true, rel=0.05)
    share = loose.error_budget.sources["scf_convergence"].correlation
    assert (
        share is not None
        and share.kind == "measured"
        and share.value == pytest.approx(abs(true), rel=0.05)
    )
    scaled = dfmp2.gradient(
        path, "6-31g", scf_conv_tol=1e-5, os_scale=1.3, ss_scale=0.0, **given
    ).result
    share = scaled.error_budget.sources["scf_convergence"].correlation
    assert share is not None and share.kind == "estimated"


def test_a_mean_field_of_pyscf() -> None:
    """Its gradient is recorded: PySCF's own, and E(corr) is within what follows from it."""
    mole = gto.M(atom="N 0 0 0; H 0 0.80 0.63; H 0 -0.80 0.63", basis="6-31g", spin=1, verbose=0)
    found = []
    for tolerance in (1e-5, 1e-12):
        mf = scf.UHF(mole).density_fit(auxbasis="def2-universal-jkfit").run(conv_tol=tolerance)
        result = dfmp2.from_mean_field(mf, precision="fp64", stability="off", threads=1)
        assert result.reference.history is not None
        gradient = np.linalg.norm(mf.get_grad(mf.mo_coeff, mf.mo_occ))
        assert result.reference.history[-1, 2] == pytest.approx(gradient, rel=1e-3, abs=1e-9)
        found.append(result)
    share = found[0].error_budget.sources["scf_convergence"].correlation
    assert share is not None and share.value is not None
    assert 0 < abs(found[0].mp2_correlation_energy - found[1].mp2_correlation_energy) <= share.value
    assert found[0].error_budget.total is not None


# --- where it is shown --------------------------------------------------------------------------------


def test_json_of_a_run(water: Stored) -> None:
    """The sums are those of the shares."""
    budget = water.json["error_budget"]
    for key in ("scf_total_energy", "mp2_correlation_energy"):
        values = [
            source[key]["value"]
            for name, source in budget["sources"].items()
            if source[key] and name != "basis_set"
        ]
        assert budget[key] == pytest.approx(math.fsum(values), rel=1e-14)
    assert (
        budget["mp2_total_energy"] == budget["scf_total_energy"] + budget["mp2_correlation_energy"]
    )
    assert budget["decimals"] == 3 and "good to 3 decimals" in budget["summary"]


def test_text_and_page(water: Stored, result: MP2Result, call: Runner) -> None:
    """The sentence on both, and on the page how each source is known."""
    text, summary = succeed(call("show", str(water.path))).out, result.error_budget.summary
    assert summary in " ".join(text.split()) and text.count("decimals") == 1
    page = parse(page_of(result))
    assert summary in page.text and "3 decimals" in page.row("good to")[1]
    share = result.error_budget.sources["scf_convergence"].correlation
    assert share is not None and share.how in page.text


def test_a_file_that_lacks_numbers(result: MP2Result, folder: Path, call: Runner) -> None:
    """It says what it cannot tell, and nothing of how many decimals are good."""
    assert result.scf_fitting is not None
    sets = {"scf_fitting": replace(result.scf_fitting, errors={})}
    hdf5.write(with_gradient(replace(result, **sets), None), folder / "old.h5")
    budget = succeed(call("show", "old.h5", "--json")).json["error_budget"]
    assert budget["sources"]["scf_fitting"]["scf_total_energy"]["kind"] == "not measured"
    assert budget["sources"]["scf_convergence"]["scf_total_energy"]["value"] > 0
    assert budget["decimals"] is None and budget["mp2_total_energy"] is None
    assert "nothing on fitting of the SCF. Largest part that is known: " in budget["summary"]
    assert "is not known" in succeed(call("show", "old.h5")).out


def test_a_batch_has_a_column(written: Path, call: Runner) -> None:
    """The error expected of E(MP2, total)."""
    succeed(call("batch", "collect", str(written / "batch.toml"), "-o", "t.csv"))
    row = next(csv.DictReader(Path("t.csv").read_text().splitlines()))
    told = succeed(call("show", str(written / "batch" / f"{row['name']}.h5"), "--json")).json[
        "error_budget"
    ]
    assert float(row["mp2_total_energy_error"]) == pytest.approx(
        told["mp2_total_energy"], rel=1e-12
    )


# --- several runs -------------------------------------------------------------------------------------


def test_differences(result: MP2Result) -> None:
    """Convergence adds; fitting errors are subtracted where each is measured, else a part of their sum is left."""
    runs = [with_gradient(result, [[-75.0, 0.0, g]]) for g in (1e-6, 2e-6, 3e-6)]
    weights = ((1.0, 1.0), (-0.5, -0.5), (-0.5, -0.5))
    budget = combined(list(zip(weights, runs, strict=True)), "the difference")
    convergence = budget.sources["scf_convergence"].correlation
    assert convergence is not None and convergence.value == pytest.approx(0.12 * 3.5e-6, rel=1e-12)
    one, left = (
        result.error_budget.sources["mp2_fitting"].correlation,
        budget.sources["mp2_fitting"].correlation,
    )
    assert one is not None and one.value is not None and left is not None
    assert left.value == pytest.approx(0.03 * 2 * one.value, rel=1e-12)

    errors = ((5e-5, 2e-5), (4e-5, 1e-5), (2e-5, 1e-5))
    certified = [
        replace(run, fitting_certificate=measured(correlation, scf, 1e-7))
        for run, (correlation, scf) in zip(runs, errors, strict=True)
    ]
    sources = combined(list(zip(weights, certified, strict=True)), "the difference").sources
    for share, value in (
        (sources["scf_fitting"].scf, 1e-5),
        (sources["mp2_fitting"].correlation, 2e-5),
    ):
        assert (
            share is not None
            and share.kind == "measured"
            and share.value == pytest.approx(value + 2e-7, rel=1e-9)
        )


@pytest.mark.parametrize(
    ("kind", "said", "parts"),
    [
        (
            "interaction",
            "The cp-corrected interaction energy is",
            ("complex", "fragment-1-in-complex"),
        ),
        ("scan", "The difference of two points is", ("point-001", "point-002")),
        ("cbs", "The limit is", ("cc-pvdz", "cc-pvtz")),
    ],
)
def test_a_study_has_one(
    kind: str, said: str, parts: tuple[str, str], written: Path, call: Runner
) -> None:
    """It follows from the runs, also of earlier versions; that of a limit knows the step that is left to it."""
    path = written / f"{kind}.h5"
    runs = [read_study(path).runs[name].error_budget.to_dict() for name in parts]
    done = succeed(call("show", str(path), "--json")).json
    budget = done["error_budget"]
    assert budget["summary"].startswith(said)
    if kind == "cbs":
        assert budget["summary"] in " ".join(succeed(call("show", str(path))).out.split())

    def share(found: dict[str, Any], source: str, energy: str) -> Any:
        return found["sources"][source][energy]["value"]

    first, second = (share(run, "scf_convergence", "mp2_correlation_energy") for run in runs)
    whole = share(budget, "scf_convergence", "mp2_correlation_energy")
    fitted = share(budget, "mp2_fitting", "mp2_correlation_energy")
    fitting = [share(run, "mp2_fitting", "mp2_correlation_energy") for run in runs]
    if kind != "cbs":
        every = [run.error_budget.to_dict() for run in read_study(path).runs.values()]
        shares = [share(run, "scf_convergence", "mp2_correlation_energy") for run in every]
        sums = [sum(pair) for pair in combinations(shares, 2)]
        assert any(whole == pytest.approx(value, rel=1e-9) for value in sums) or kind != "scan"
        assert whole >= first + second or kind == "scan"
        assert 0.03 * sum(fitting) <= fitted < 0.5 * sum(fitting)
        assert share(budget, "basis_set", "mp2_correlation_energy") is None
        return
    scf, correlation = (
        done["table"][key] for key in ("scf_total_energy", "mp2_correlation_energy")
    )
    step = abs(correlation[2] - correlation[1])
    assert share(budget, "basis_set", "mp2_correlation_energy") == pytest.approx(step, rel=1e-9)
    assert share(budget, "basis_set", "scf_total_energy") == pytest.approx(
        abs(scf[1] - scf[0]), rel=1e-9
    )
    # X^-3 of 2 and 3: the limit is 27/19 of the larger basis less 8/19 of the smaller one
    assert whole == pytest.approx(27 / 19 * second + 8 / 19 * first, rel=1e-6)
    assert fitted == pytest.approx(27 / 19 * fitting[1] + 8 / 19 * fitting[0], rel=1e-6)
    assert budget["mp2_total_energy"] > step
