"""Basis set limits: Psi4's water, numbers printed by ORCA, formulas from their papers, and every wrong bracket."""

from __future__ import annotations

import math
from pathlib import Path

import pytest

from dfmp2.cli import cbs as command_module
from dfmp2.errors import InputError
from dfmp2.extrapolation import CORRELATION_NAMES, SCF_NAMES, correlation_formula, scf_formula
from dfmp2.io.study import read_study
from dfmp2.studies.bracket import expand, parse_bracket
from tests.conftest import Runner, listing, succeed

WATER = "3\n\nO 0.0 0.0 0.0\nH 0.957000000000 0.0 0.0\nH -0.23961366388010 0.92651729184185 0.0\n"


def test_water_as_in_psi4(call: Runner, folder: Path) -> None:
    """Psi4 test dlpnomp2-2: cc-pv[tq]z, core frozen, Hartree-Fock of cc-pVQZ and X^-3 for the correlation energy."""
    (folder / "w.xyz").write_text(WATER)
    done = succeed(call("cbs", "w.xyz", "--basis", "cc-pv[tq]z", "--frozen-core", "auto", "--json", "--output", "x.h5"))
    found = done.json
    assert found["cbs_scf_total_energy"] == pytest.approx(-76.0648475978853, abs=1e-8)
    assert found["cbs_mp2_correlation_energy"] == pytest.approx(-0.2983537611221, abs=1e-7)
    assert found["cbs_mp2_total_energy"] == pytest.approx(-76.3632013590074, abs=1e-7)
    same, opposite = (found[f"cbs_mp2_{spin}_spin_correlation_energy"] for spin in ("same", "opposite"))
    assert same + opposite == pytest.approx(found["cbs_mp2_correlation_energy"], abs=1e-14)
    assert found["cbs_scs_mp2_correlation_energy"] == pytest.approx(same / 3 + 1.2 * opposite, abs=1e-14)
    runs = read_study("x.h5").runs
    assert [run.mp2_fitting.elements["O"].name.lower() for run in runs.values()] == ["cc-pvtz-ri", "cc-pvqz-ri"]
    assert [run["frozen_core_orbitals"] for run in found["runs"].values()] == [1, 1]
    assert succeed(call("show", "x.h5", "--json")).json == found
    assert "Helgaker, Klopper, Koch, Noga" in succeed(call("show", "x.h5")).out


def test_diffuse_and_def2(call: Runner) -> None:
    """The limit lies below the larger basis and differs between families by less than the step between two bases."""
    small = succeed(call("cbs", "h2.xyz", "--basis", "aug-cc-pv[dt]z", "--json")).json
    other = succeed(call("cbs", "h2.xyz", "--basis", "def2-[tq]zvpp", "--json", "--overwrite")).json
    assert (small["correlation_formula"], other["correlation_formula"]) == ("helgaker", "neese-valeev")
    for found in (small, other):
        energies = [run["mp2_correlation_energy"] for run in found["runs"].values()]
        assert found["cbs_mp2_correlation_energy"] < energies[1] < energies[0]
    assert small["cbs_mp2_correlation_energy"] == pytest.approx(other["cbs_mp2_correlation_energy"], abs=1.5e-3)


def test_exponents_of_neese_and_valeev_as_orca_prints_them() -> None:
    """An ORCA output for cc-pVDZ and cc-pVTZ (ioChem-BD documentation, template extrapolate)."""
    scf, correlation = (
        scf_formula("neese-valeev", "cc-pvnz", 2, 3),
        correlation_formula("neese-valeev", "cc-pvnz", 2, 3),
    )
    assert scf.limit(-187.648544524, -187.704294229, 2, 3) == pytest.approx(-187.722424938, abs=2e-9)
    assert correlation.limit(-0.484223441, -0.603305598, 2, 3) == pytest.approx(-0.672889627, abs=2e-9)


@pytest.mark.parametrize(
    ("lower", "smaller", "larger", "limit"),
    [  # water, frozen core, aug-cc-pVXZ, Psi4: supporting information of alejandrogallo/ppl-supporting-information
        (2, -0.21973, -0.26871, -0.289334),
        (3, -0.26871, -0.286258, -0.299063),
        (4, -0.286258, -0.293246, -0.300577),
        (5, -0.293246, -0.296296, -0.300486),
    ],
)
def test_inverse_cubes_of_a_published_ladder(lower: int, smaller: float, larger: float, limit: float) -> None:
    formula = correlation_formula("helgaker", "aug-cc-pvnz", lower, lower + 1)
    assert formula.limit(smaller, larger, lower, lower + 1) == pytest.approx(limit, abs=3e-6)


def test_formulas_are_exact_for_what_they_assume() -> None:
    """E(X) = E + A f(X) gives E back, with f written out from the papers."""
    written = {
        "exponential": lambda x: math.exp(-1.63 * x),
        "karton-martin": lambda x: (x + 1) * math.exp(-9 * x**0.5),
        "exp-sqrt": lambda x: math.exp(-6.3 * x**0.5),
        "power": lambda x: 1 / x**3.4,
    }
    for name, f in written.items():
        for lower in (2, 3, 4):
            formula = scf_formula(name, "cc-pvnz", lower, lower + 1)
            energies = [-76.07 + 5.0 * f(lower), -76.07 + 5.0 * f(lower + 1)]
            assert formula.limit(*energies, lower, lower + 1) == pytest.approx(-76.07, abs=1e-12), name
    small, large = -0.2 + 0.3 / 2**2.2, -0.2 + 0.3 / 3**2.2
    assert correlation_formula("truhlar", "cc-pvnz", 2, 3).limit(small, large, 2, 3) == pytest.approx(-0.2, abs=1e-14)
    # The form Karton and Martin print in their abstract.
    high, low, step = -76.0648, -76.0572, 4 * math.exp(9 * (2 - math.sqrt(3))) / 5 - 1
    assert scf_formula("karton-martin", "cc-pvnz", 3, 4).limit(low, high, 3, 4) == pytest.approx(
        high + (high - low) / step, abs=1e-12
    )


def test_the_command_offers_every_formula() -> None:
    assert tuple(command_module.SCF_FORMULAS) == SCF_NAMES
    assert tuple(command_module.CORRELATION_FORMULAS) == CORRELATION_NAMES


@pytest.mark.parametrize(
    ("text", "names", "family"),
    [
        ("cc-pv[tq]z", ("cc-pvtz", "cc-pvqz"), "cc-pvnz"),
        ("cc-pV[DT]Z", ("cc-pvdz", "cc-pvtz"), "cc-pvnz"),
        ("aug-cc-pV[Q5]Z", ("aug-cc-pvqz", "aug-cc-pv5z"), "aug-cc-pvnz"),
        ("cc-pv([tq]+d)z", ("cc-pv(t+d)z", "cc-pv(q+d)z"), "cc-pvnz"),
        ("cc-pwcv[tq]z", ("cc-pwcvtz", "cc-pwcvqz"), "cc-pcvnz"),
        ("def2-[tq]zvppd", ("def2-tzvppd", "def2-qzvppd"), "def2"),
        ("aug-cc-pv[dt]z-pp", ("aug-cc-pvdz-pp", "aug-cc-pvtz-pp"), "cc-pvnz-pp"),
    ],
)
def test_brackets(text: str, names: tuple[str, str], family: str) -> None:
    bracket = parse_bracket(text)
    assert (bracket.names, bracket.family) == (names, family)
    assert bracket.cardinals[1] == bracket.cardinals[0] + 1
    assert expand("def2-universal-jkfit", bracket, "--scf-auxbasis") == ("def2-universal-jkfit",) * 2
    assert expand(f"x-[{bracket.letters}]-ri", bracket, "--auxbasis")[1] == f"x-{bracket.letters[1]}-ri"
    with pytest.raises(InputError, match="as in --basis"):
        expand("cc-pv[56]z-ri", bracket, "--auxbasis")


@pytest.mark.parametrize(
    ("options", "words"),
    [
        (("--basis", "cc-pvtz"), "expected two neighbours"),
        (("--basis", "cc-pv[dq]z"), "not neighbours in rising order"),
        (("--basis", "cc-pv[qt]z"), "not neighbours in rising order"),
        (("--basis", "cc-pv[tq"), "expected two neighbours"),
        (("--basis", "cc-pv[tqz"), "expected two neighbours"),
        (("--basis", "cc-pv[tq5]z"), "expected two neighbours"),
        (("--basis", "cc-pv[]z"), "expected two neighbours"),
        (("--basis", "[tq]"), "no extrapolation formula is published"),
        (("--basis", "6-31[tq]g"), "no extrapolation formula is published"),
        (("--basis", "pcseg-[23]"), "expected two neighbours"),
        (("--basis", "def2-[dt]zvp"), "only [tq] can be extrapolated"),
        (("--basis", "cc-pv[tq]z", "--correlation-formula", "truhlar"), "cc-pv[dt]z only"),
        (("--basis", "cc-pv[q5]z", "--scf-formula", "neese-valeev"), "no exponents for cc-pvnz 4/5"),
        (("--basis", "def2-[tq]zvp", "--scf-formula", "power"), "for def2 use"),
        (("--basis", "def2-[tq]zvp", "--correlation-formula", "helgaker"), "for def2 use neese-valeev"),
        (("--basis", "cc-pv[tq]z", "--auxbasis", "cc-pv[dt]z-ri"), "expected [tq] as in --basis"),
        (("--basis", "cc-pv[tq]z", "--scf-from", "x"), "leave it out"),
        (("--basis", "cc-pv[tq]z", "--frozen-core", "9"), "leaves no electron to correlate"),
    ],
)
def test_wrong_brackets_are_refused(options: tuple[str, ...], words: str, call: Runner, folder: Path) -> None:
    before = listing(folder)
    done = call("cbs", "h2o.xyz", *options)
    assert done.code == 3 and words in done.message and done.out == ""
    assert listing(folder) == before
