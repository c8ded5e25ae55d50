"""`compare --exact` sees what shares no fitting set, and every check sees what docs/explanation/checks.md says."""

from __future__ import annotations

import re
from dataclasses import replace
from pathlib import Path
from typing import Any

import click
import numpy as np
import pytest

import dfmp2
from dfmp2 import pipeline, recompute, resources
from dfmp2.backends.cpu import CpuBackend
from dfmp2.cli.main import cli
from dfmp2.errors import ComparisonFailed, ResourceError
from dfmp2.io import hdf5
from dfmp2.molecule import Molecule
from dfmp2.options import Options
from dfmp2.progress import Listener
from dfmp2.record import Check, StartOrbitals
from dfmp2.reference import exact
from dfmp2.result import MP2Result
from dfmp2.units import BOHR_PER_ANGSTROM
from tests.conftest import Runner, Stored, succeed

TABLE = Path(__file__).parent.parent / "docs" / "explanation" / "checks.md"
HBR = "2\n\nH 0 0 0\nBr 0 0 1.41\n"
# Sets of the literature that do not fit bromine; what it takes to use them goes here, too.
POOR_SCF_SET = ("--basis", "cc-pvdz", "--scf-auxbasis", "cc-pvdz-jkfit", "--allow-poor-fit")
POOR_MP2_SET = ("--basis", "6-31g*", "--auxbasis", "cc-pvdz-ri", "--allow-poor-fit")


def atoms(text: str, scale: float = BOHR_PER_ANGSTROM, **state: int) -> Molecule:
    """Atoms in angstrom (or bohr, scale 1), a ghost as @X."""
    rows = [line.split() for line in text.split(";")]
    points = scale * np.array([[float(x) for x in row[1:]] for row in rows])
    return Molecule(tuple(r[0].lstrip("@") for r in rows), points, tuple(r[0][0] == "@" for r in rows), **state)


def exactly(result: MP2Result, tolerance: float = recompute.FITTING_TOLERANCE) -> Check:
    return recompute.recompute_exact(result, tolerance, 1, Listener())


class Warned(Listener):
    """Keeps the warnings."""

    def __init__(self) -> None:
        self.texts: list[str] = []

    def warning(self, text: str) -> None:
        self.texts.append(text)


# --- the energies -----------------------------------------------------------------------------------

FLUORIDE = "H 0.0 0.0 -1.64558411; F 0.0 0.0 0.08729475"
AMIDOGEN = "N 0 0 -0.145912918634892; H 0 -1.511214298139 1.013682596946108; H 0 1.511214298139 1.013682596946108"
# E(SCF), E_SS, E_corr of Psi4's standard suite, scf_type pk and mp2_type conv (QCEngine a97b469).
PUBLISHED = {
    "hf": (atoms(FLUORIDE, 1), "cc-pvdz", "none", (-100.01941126902270, -0.05427697023782003, -0.203781911950)),
    "hf, core frozen": (
        atoms(FLUORIDE, 1),
        "cc-pvdz",
        "1",
        (-100.01941126902270, -0.0534895025483176, -0.201627516796),
    ),
    "nh2, uhf": (
        atoms(AMIDOGEN, 1, multiplicity=2),
        "aug-cc-pvdz",
        "none",
        (-55.57513805247548, -0.03520162545964887, -0.15485993330517828),
    ),
}


@pytest.mark.parametrize("name", PUBLISHED)
def test_published_four_centre_energies(name: str) -> None:
    """Conventional MP2 of another program: 1e-8 Eh, the orbitals enter E(corr) in first order."""
    molecule, basis, core, (scf, same, correlation) = PUBLISHED[name]
    check = exactly(dfmp2.run(molecule, basis, frozen_core=core, stability="off"))
    found = check.scf_total_energy, check.same_spin, check.same_spin + check.opposite_spin
    assert found == pytest.approx((scf, same, correlation), abs=1e-8)
    assert check.passed
    assert abs(check.correlation_difference) > 1e-6  # the fitting error, which no other check shows


def test_frozen_virtual_orbitals_and_spins() -> None:
    """UHF with core and virtual orbitals frozen, against sums over all (ia|jb) written out here."""
    from pyscf import gto, scf

    frozen = {"frozen_core": "1", "frozen_virtual": 1}
    molecule = atoms(AMIDOGEN, 1, multiplicity=2)
    result = dfmp2.run(molecule, "sto-3g", **frozen, scf_conv_tol=1e-12, stability="off")
    mole = gto.M(atom=AMIDOGEN.replace(";", "\n"), basis="sto-3g", spin=1, unit="Bohr", verbose=0)
    mf = scf.UHF(mole).run(conv_tol=1e-13)
    integrals = mole.intor("int2e")
    spaces = []
    for c, e, n in zip(mf.mo_coeff, mf.mo_energy, mf.mo_occ, strict=True):
        occupied, virtual = np.flatnonzero(n > 0)[1:], np.flatnonzero(n == 0)[:-1]
        spaces.append((c[:, occupied], c[:, virtual], e[occupied], e[virtual]))
    sums = {}
    for s, t in ((0, 0), (1, 1), (0, 1)):
        (ci, ca, ei, ea), (cj, cb, ej, eb) = spaces[s], spaces[t]
        g = np.einsum("mnls,mi,na,lj,sb->iajb", integrals, ci, ca, cj, cb, optimize=True)
        d = ei[:, None, None, None] - ea[:, None, None] + ej[:, None] - eb
        sums[s, t] = np.sum(g * (g - (g.transpose(0, 3, 2, 1) if s == t else 0)) / d)
    check = exactly(result)
    assert check.same_spin == pytest.approx((sums[0, 0] + sums[1, 1]) / 2, abs=1e-9)
    assert check.opposite_spin == pytest.approx(sums[0, 1], abs=1e-9)


def test_core_potential_ghost_and_one_electron() -> None:
    """Sound sets of HI with its core potential stay within 2e-5 Eh per atom; a ghost is no atom."""
    check = exactly(dfmp2.run(atoms("H 0 0 0; I 0 0 1.6; @I 0 0 4"), "def2-svp", stability="off"), 1e-5)
    assert check.allowed == pytest.approx(2e-5)
    assert 1e-6 < check.largest_difference < 1e-4
    lone = exactly(dfmp2.run(atoms("H 0 0 0", multiplicity=2), "cc-pvdz", stability="off"))
    assert lone.same_spin == lone.opposite_spin == 0.0 and lone.passed


def test_results_of_other_ways_in(call: Runner) -> None:
    """A mean field of the user's, a conventional one, and prepare with energy; there E(SCF) has no fitting error."""
    from pyscf import gto, scf

    mole = gto.M(atom="N 0 0 0; N 0 0 1.1", basis="sto-3g", verbose=0)
    conventional = exactly(dfmp2.from_mean_field(scf.RHF(mole).run(conv_tol=1e-11)))
    assert abs(conventional.scf_difference) < 1e-9
    assert 1e-6 < abs(conventional.correlation_difference) < 1e-4
    fitted = exactly(dfmp2.from_mean_field(scf.RHF(mole).density_fit("def2-universal-jkfit").run(conv_tol=1e-11)))
    assert 1e-6 < abs(fitted.scf_difference) < 1e-3
    succeed(call("prepare", "h2o.xyz", "--basis", "sto-3g", "--output", "b.h5", "--quiet"))
    succeed(call("energy", "--from", "b.h5", "--output", "e.h5", "--quiet"))
    assert succeed(call("compare", "e.h5", "--exact", "--quiet", "--json")).json["passed"]


# --- the command ------------------------------------------------------------------------------------


def test_table_and_json(call: Runner, water: Stored) -> None:
    done = succeed(call("compare", str(water.path), "--exact", "--quiet"))
    header, *rows, last = done.out.splitlines()
    assert header.split()[-3:] == ["stored", "exact", "difference"]
    assert [row.split()[0] for row in rows][::3] == ["scf_total_energy", "mp2_correlation_energy"]
    assert re.match(r"fitting errors per atom: \S+ Eh in E\(SCF\), \S+ Eh in E\(corr\); within 1\.0e-03 Eh", last)
    assert "SCF from the stored orbitals" in last
    found = succeed(call("compare", str(water.path), "--exact", "--quiet", "--json")).json
    assert (found["tolerance"], found["allowed"], found["passed"]) == (1e-3, pytest.approx(3e-3), True)
    scf = found["energies"]["scf_total_energy"]
    assert scf["difference"] == pytest.approx(scf["stored"] - scf["exact"], abs=1e-12)
    strict = call("compare", str(water.path), "--exact", "--tolerance", "1e-6")
    assert strict.code == 8 and "more than --tolerance 1.0e-06 Eh per atom" in strict.message


@pytest.mark.parametrize(
    ("options", "fragment"),
    [
        (("--exact", "--with", "psi4"), "--exact is computed by PySCF only"),
        (("--tolerance", "inf"), "--tolerance inf: expected a finite number"),
        (("--tolerance", "nan"), "--tolerance nan: expected a finite number"),
    ],
)
def test_bad_options(call: Runner, water: Stored, options: tuple[str, ...], fragment: str) -> None:
    done = call("compare", str(water.path), *options)
    assert (done.code, done.out) == (3, "")
    assert fragment in done.message


def test_what_does_not_fit_is_refused_first(call: Runner, water: Stored, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(resources, "available_memory", lambda: 10**6)
    monkeypatch.setattr(recompute.mean_field, "run_scf", None)
    done = call("compare", str(water.path), "--exact")
    assert (done.code, done.out) == (7, "")
    assert re.search(r"of 7 basis functions in memory: \S+ .B are required and \S+ .B may be used", done.message)
    assert "functions would fit" in done.message


def test_the_largest_basis_named_would_fit(water: Stored, monkeypatch: pytest.MonkeyPatch) -> None:
    """The number in the refusal: at most so many functions need what there is."""
    result = hdf5.read(water.path)
    large = replace(result, sizes=replace(result.sizes, nao=2000, nvir=(1995, 1995)))
    monkeypatch.setattr(resources, "available_memory", lambda: 10**10)
    with pytest.raises(ResourceError) as refused:
        exactly(large)
    found = re.search(r"(\d+) functions would fit", str(refused.value))
    assert found is not None
    fits = int(found[1])
    needed = [exact.required_bytes(large.sizes, 1, n) + recompute.LOADED for n in (fits, fits + 1)]
    assert needed[0] <= 9 * 10**9 < needed[1]


def test_the_prediction_is_what_is_held(tmp_path: Path) -> None:
    """Peak memory of NH3/aug-cc-pVTZ in a fresh process: the estimate within 20 MB (345 of 353 MB measured)."""
    import subprocess
    import sys

    program = (
        "import dfmp2; from dfmp2 import recompute, resources; from dfmp2.progress import Listener\n"
        "from dfmp2.reference import exact\n"
        f"r = dfmp2.run({str(Path(__file__).parent.parent / 'inputs' / 'nh3.xyz')!r}, 'aug-cc-pvtz', stability='off')\n"
        "resources.return_memory(); resources.restart_peak(); before = resources.resident_memory()\n"
        "recompute.recompute_exact(r, 1e-3, 1, Listener())\n"
        "print(before + recompute.LOADED + exact.required_bytes(r.sizes, 1, r.sizes.nao))\n"
        "print(resources.peak_resident_memory())\n"
    )
    done = subprocess.run([sys.executable, "-c", program], cwd=tmp_path, capture_output=True, text=True, check=True)
    predicted, peak = map(int, done.stdout.split())
    assert abs(peak - predicted) < 20 * 10**6


# --- which SCF solution -----------------------------------------------------------------------------


@pytest.fixture(scope="module")
def broken() -> MP2Result:
    """H2 at 2.5 angstrom with one electron at each end, which no start from atomic densities reaches."""
    molecule = atoms("H 0 0 0; H 0 0 2.5")
    bonding, antibonding = dfmp2.run(molecule, "sto-3g", stability="off").reference.mo_coeff[0].T
    left, right = (bonding + antibonding) / np.sqrt(2), (bonding - antibonding) / np.sqrt(2)
    start = np.stack([np.column_stack([left, right]), np.column_stack([right, left])])
    occupied = np.array([[1.0, 0.0], [1.0, 0.0]])
    options = Options(basis="sto-3g", reference="uhf", stability="off", precision="fp64")
    return pipeline.run(molecule, options, start=StartOrbitals(start, occupied, None, "one at each end"))


def test_another_solution_is_compared_with_itself(broken: MP2Result) -> None:
    """From atomic densities PySCF finds E(RHF), 0.23 Eh higher; the stored numbers are right all the same."""
    warned = Warned()
    assert recompute.recompute(broken, 1e-7, 1, warned).passed
    assert len(warned.texts) == 1
    assert "ends in another solution, 2.3e-01 Eh higher" in warned.texts[0]
    assert exactly(broken).passed


def test_an_scf_energy_of_no_solution_fails(broken: MP2Result) -> None:
    wrong = replace(broken, reference=replace(broken.reference, scf_total_energy=-0.8))
    warned = Warned()
    assert not recompute.recompute(wrong, 1e-6, 1, warned).passed
    assert warned.texts == []


def test_a_loosely_converged_scf_is_not_repeated_loosely(call: Runner) -> None:
    """Repeated with its own 1e-2 Eh it would agree to 4e-14 Eh; converged it is 1.4e-5 Eh lower."""
    succeed(call("run", "h2o.xyz", "--basis", "cc-pvdz", "--scf-conv-tol", "1e-2", "--precision", "fp64", "--quiet"))
    done = call("compare", "h2o.dfmp2.h5", "--json")
    assert done.code == 8
    assert "its SCF energy is lower, also from the stored orbitals" in done.message
    assert "converged with --scf-conv-tol 1.0e-02" in done.message
    assert done.json["energies"]["scf_total_energy"]["difference"] == pytest.approx(1.44e-5, rel=0.01)


def test_orbitals_that_are_left_give_no_fitting_error(water: Stored) -> None:
    """With another orbital occupied the conventional SCF falls back to the ground state."""
    result = hdf5.read(water.path)
    swapped = result.reference.mo_coeff.copy()
    swapped[:, :, [4, 5]] = swapped[:, :, [5, 4]]
    with pytest.raises(ComparisonFailed, match=r"leaves the stored orbitals for another solution.* 0\.00\)"):
        exactly(replace(result, reference=replace(result.reference, mo_coeff=swapped)))


def test_nan_agrees_with_nothing() -> None:
    """Python's max() skips a NaN that does not come first."""
    for name in ("scf_difference", "same_spin_difference", "opposite_spin_difference"):
        differences = {"scf_difference": 0.0, "same_spin_difference": 0.0, "opposite_spin_difference": 0.0}
        check = Check("PySCF", -1.0, -0.1, -0.2, **{**differences, name: float("nan")}, allowed=1e-6)
        assert not check.passed and np.isnan(check.largest_difference)


# --- what the checks see and what they do not -------------------------------------------------------


def outcomes(call: Runner, *options: str) -> dict[str, Any]:
    """Exit codes of a run of mol.xyz with --check and of both comparisons, and what the last one said."""
    codes: dict[str, Any] = {"--check": call("run", "mol.xyz", *options, "--check", "--overwrite").code}
    codes["compare"] = call("compare", "mol.dfmp2.h5").code
    done = call("compare", "mol.dfmp2.h5", "--exact")
    return codes | {"compare --exact": done.code, "said": done.message if done.code else done.out}


def test_a_poor_scf_set_is_seen_without_sets_only(call: Runner, folder: Path) -> None:
    """HBr/cc-pVDZ with its published JKFIT is 0.674 Eh off, in PySCF and Psi4 as well."""
    (folder / "mol.xyz").write_text(HBR)
    found = outcomes(call, *POOR_SCF_SET)
    assert (found["--check"], found["compare"], found["compare --exact"]) == (0, 0, 8)
    assert "E(SCF) is off by +3.4e-01 Eh per atom: suspect the SCF fitting set (cc-pvdz-jkfit)" in found["said"]
    scf = call("compare", "mol.dfmp2.h5", "--exact", "--json").json["energies"]["scf_total_energy"]
    assert scf["difference"] == pytest.approx(0.6737, abs=1e-4)
    assert scf["exact"] == pytest.approx(-2572.9702, abs=1e-4)


def test_a_poor_mp2_set_is_seen_without_sets_only(call: Runner, folder: Path) -> None:
    (folder / "mol.xyz").write_text(HBR)
    found = outcomes(call, *POOR_MP2_SET)
    assert (found["--check"], found["compare"], found["compare --exact"]) == (0, 0, 8)
    assert "E(corr) is off by -1.1e-03 Eh per atom" in found["said"]
    assert "suspect the MP2 fitting set (cc-pvdz-ri)" in found["said"]


def test_a_fault_of_the_pair_terms_is_seen_by_another_program(
    call: Runner, folder: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """One part in a thousand: --check and compare see it; the certificate shares it, --exact has no such precision."""
    right = CpuBackend.pair_terms

    def wrong(*arguments: Any) -> Any:
        terms = right(*arguments)
        return terms._replace(direct=1.001 * terms.direct)

    monkeypatch.setattr(CpuBackend, "pair_terms", wrong)
    (folder / "mol.xyz").write_text((folder / "h2o.xyz").read_text())
    found = outcomes(call, "--basis", "cc-pvdz", "--backend", "cpu", "--precision", "mixed")
    assert (found["--check"], found["compare"], found["compare --exact"]) == (8, 8, 0)
    certificate = hdf5.read("mol.dfmp2.h5").certificate
    assert certificate is not None and certificate.accepted


def test_what_a_check_shares_is_said(call: Runner) -> None:
    """--check has no SCF of its own, so it shows no difference of SCF energies."""
    done = succeed(call("run", "h2o.xyz", "--basis", "sto-3g", "--check", "--overwrite"))
    assert "same orbitals and fitting set (whose errors it cannot see): passed" in done.out
    check = succeed(call("show", "h2o.dfmp2.h5", "--json")).json["check"]
    assert check["scf_total_energy"] is None and check["scf_difference"] is None
    assert "with the same fitting sets (--exact uses none)" in succeed(call("compare", "h2o.dfmp2.h5")).out
    succeed(call("report", "h2o.dfmp2.h5", "-o", "page.html"))
    page = Path("page.html").read_text()
    assert "Errors of the SCF and of a fitting set are not seen" in page
    assert "PySCF check and certificate passed, no warnings" in page
    check = page[page.index("Check against PySCF") :]
    assert "E(HF)" not in check[: check.index("</table>")]


# --- the table --------------------------------------------------------------------------------------


def table() -> list[list[str]]:
    """Cells of the table of checks, row by row."""
    rows = [line.strip("|").split(" | ") for line in TABLE.read_text().splitlines() if line.startswith("| ")]
    cells = [[cell.strip() for cell in row] for row in rows]
    start = next(n for n, row in enumerate(cells) if row[0] == "check")
    width = len(cells[start])
    return cells[start : next(n for n, row in enumerate(cells) if n > start and (not row[0] or len(row) != width))]


def test_every_check_in_the_table_exists() -> None:
    """Commands and options as the command line knows them, exit codes of the error tree."""
    from dfmp2 import errors

    head, *rows = table()
    assert head[-1] == "exit"
    codes = {getattr(kind, "exit_code", 0) for kind in vars(errors).values() if isinstance(kind, type)}
    named = []
    for row in rows:
        assert all(row), row
        assert {int(code) for code in re.findall(r"\b\d+\b", row[-1])} <= codes | {0}
        for command in re.findall(r"`([^`]+)`", row[0]):
            words = command.split()
            name = words.pop(0) if not words[0].startswith("-") else "run"
            known = cli.get_command(click.Context(cli), name)
            assert known is not None, command
            options = {option for parameter in known.params for option in parameter.opts}
            assert {word for word in words if word.startswith("-")} <= options, command
            named.append(command)
    assert set(named) >= {"--check", "compare", "compare --with psi4", "compare --exact", "validate"}
