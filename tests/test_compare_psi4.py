"""`compare --with psi4`: the input's numbers, a recorded output, a stand-in program, and (slow) Psi4 itself."""

from __future__ import annotations

import json
import os
import re
import signal
import stat
import subprocess
import tempfile
import time
from dataclasses import replace
from pathlib import Path

import numpy as np
import pytest

import dfmp2
from dfmp2.basis import BasisSet
from dfmp2.errors import BackendError, ComparisonFailed, InputError, UnsupportedByBackend
from dfmp2.external.psi4 import find_psi4, parse_output, run_psi4
from dfmp2.external.psi4_input import psi4_input
from dfmp2.io import hdf5
from dfmp2.molecule import Molecule
from dfmp2.options import Options
from dfmp2.recompute import recompute
from dfmp2.result import MP2Result
from dfmp2.units import BOHR_PER_ANGSTROM
from tests.conftest import COMMAND, Runner, succeed

DATA = Path(__file__).parent / "data" / "psi4"
INPUTS = Path(__file__).parent.parent / "inputs"
# NH2, cc-pVDZ, one frozen orbital: what Psi4 1.3.2 printed in DATA/compare-nh2.out.
RECORDED = (-55.5670750200435464, -0.0319039122076434, -0.1114970638772585)

needs_psi4 = pytest.mark.skipif(find_psi4() is None, reason="psi4 is not on PATH")


def molecule(text: str, **state: int) -> Molecule:
    """Atoms in angstrom, a ghost as @X."""
    rows = [line.split() for line in text.split(";")]
    points = np.array([[float(x) for x in row[1:]] for row in rows]) * BOHR_PER_ANGSTROM
    return Molecule(tuple(r[0].lstrip("@") for r in rows), points, tuple(r[0][0] == "@" for r in rows), **state)


WATER = "O 0 0 0.1173; H 0 0.7572 -0.4692; H 0 -0.7572 -0.4692"


@pytest.fixture(scope="module")
def radical_result() -> MP2Result:
    return dfmp2.run(INPUTS / "nh2.xyz", "cc-pvdz", frozen_core="1", precision="fp64", stability="off")


@pytest.fixture
def stored(radical_result: MP2Result, folder: Path) -> Path:
    """The radical's result file in the working directory of `call` and `dfmp2`."""
    hdf5.write(radical_result, folder / "nh2.h5")
    return folder / "nh2.h5"


# --- the input --------------------------------------------------------------------------------------


def test_recorded_input_is_what_is_written(radical_result):
    assert psi4_input(radical_result, 10**9) == (DATA / "compare-nh2.in").read_text()


def test_geometry_and_settings(radical_result):
    text = psi4_input(radical_result, 3 * 10**9)
    block = re.search(r"molecule \{\n(.*?)\n\}", text, re.DOTALL)
    assert block is not None
    state, *atoms, units, symmetry, reorient, com = block[1].splitlines()
    assert (state, units, symmetry, reorient, com) == ("0 2", "units bohr", "symmetry c1", "no_reorient", "no_com")
    points = np.array([[float(x) for x in line.split()[1:]] for line in atoms])
    assert np.array_equal(points, radical_result.molecule.coordinates)
    settings = dict(line.split() for line in text[text.index("set {") :].splitlines()[1:-3])
    assert settings == {
        "reference": "uhf",
        "scf_type": "df",
        "mp2_type": "df",
        "puream": "true",
        "e_convergence": "1.0e-10",
        "d_convergence": "1.0e-08",
        "maxiter": "200",
        "freeze_core": "false",
        "num_frozen_docc": "1",
        "num_frozen_uocc": "0",
    }
    assert text.startswith("memory 3000 mb\n")


def test_basis_numbers_survive(radical_result):
    """Read the block back: exponents and every contraction of nitrogen, to the last bit."""
    block = re.search(r"basis orbital \{(.*?)\n\}", psi4_input(radical_result, 10**9), re.DOTALL)
    assert block is not None
    nitrogen = next(part for part in block[1].split("****") if part.lstrip().startswith("N 0"))
    found, rows = [], iter(nitrogen.strip().splitlines()[1:])
    for head in rows:
        letter, count, scale = head.split()
        assert scale == "1.0"
        found.append(("SPD".index(letter), [tuple(map(float, next(rows).split())) for _ in range(int(count))]))
    expected = []
    for momentum, *primitives in radical_result.orbital_basis.elements["N"].shells:
        for column in range(1, len(primitives[0])):
            expected.append((momentum, [(row[0], row[column]) for row in primitives if row[column]]))
    assert found == expected
    assert sum(2 * momentum + 1 for momentum, _ in found) == 14  # cc-pVDZ: 3s 2p 1d


@pytest.mark.parametrize(
    ("change", "expected"),
    [
        ({"scf_fitting": None}, "scf_type pk"),
        ({"options": Options(basis="cc-pvdz", scf_conv_tol=1e-12)}, "e_convergence 1.0e-12"),
    ],
)
def test_settings_follow_the_calculation(radical_result, change, expected):
    text = psi4_input(replace(radical_result, **change), 10**9)
    assert expected in text
    assert ("df_basis_scf" in text) == ("scf_fitting" not in change)


def test_dropped_functions_are_dropped_there_too(radical_result):
    sizes = replace(radical_result.sizes, nmo=radical_result.sizes.nao - 1)
    text = psi4_input(replace(radical_result, sizes=sizes), 10**9)
    assert "s_orthogonalization canonical\ns_tolerance 1.0e-06" in text


@pytest.fixture(scope="module")
def iodide_result() -> MP2Result:
    """HI with its 28-electron core potential, and a ghost of each element."""
    atoms = molecule("H 0 0 0; I 0 0 1.6; @I 0 0 4; @H 0 0 5")
    return dfmp2.run(atoms, "def2-svp", auxbasis="def2-svp-ri", frozen_core="auto", stability="off")


def test_core_potential_and_ghosts(iodide_result):
    text = psi4_input(iodide_result, 10**9)
    atoms = [line.split()[0] for line in text[: text.index("units bohr")].splitlines()[4:]]
    assert atoms == ["H", "I", "@I_bare", "@H"]  # Psi4 applies a potential at a ghost as well
    potential = text[text.index("I-ECP 3 28") : text.index("[ orbitalbare ]")].splitlines()
    assert potential[1:4] == ["f potential", "4", "2 1.9458608999999999e+01 -2.1842040000000001e+01"]
    assert [line for line in potential if "potential" in line] == [f"{x} potential" for x in "fspd"]
    assert text.count("I-ECP") == 1
    assert "assign I_bare orbitalbare" in text


def test_nothing_but_numbers_and_symbols_gets_in(radical_result):
    """Psi4 executes its input, and a result file may come from anywhere."""
    evil = "}\nimport os; os.system('touch /tmp/evil')\n"
    basis = radical_result.orbital_basis
    elements = {symbol: replace(e, name=evil, source=evil, symbol=evil) for symbol, e in basis.elements.items()}
    hostile = replace(
        radical_result,
        molecule=replace(radical_result.molecule, name=evil, source=evil, text=evil),
        orbital_basis=BasisSet(evil, evil, elements | {evil: elements["N"]}),
        options=replace(radical_result.options, basis=evil),
    )
    assert psi4_input(hostile, 10**9) == psi4_input(radical_result, 10**9)


def test_what_the_format_cannot_express_is_refused(radical_result, iodide_result):
    basis = radical_result.mp2_fitting
    high = replace(basis.elements["N"], shells=((11, (1.0, 1.0)),))
    with pytest.raises(UnsupportedByBackend, match="no letter for the shells of angular momentum 11 on N"):
        psi4_input(replace(radical_result, mp2_fitting=replace(basis, elements={**basis.elements, "N": high})), 10**9)
    with pytest.raises(InputError, match="the ri basis of the result has no functions for N"):
        psi4_input(replace(radical_result, mp2_fitting=replace(basis, elements={})), 10**9)
    orbital = iodide_result.orbital_basis
    local = replace(orbital.elements["I"], ecp=(28, ((-1, ((), (), ((1.0, 1.0),))),)))
    with pytest.raises(UnsupportedByBackend, match="core potential of I"):
        psi4_input(replace(iodide_result, orbital_basis=replace(orbital, elements={**orbital.elements, "I": local})), 1)


# --- the output -------------------------------------------------------------------------------------


def test_recorded_output():
    found = parse_output((DATA / "compare-nh2.out").read_text())
    assert found.energies.program == "Psi4 1.3.2"
    assert (found.energies.scf_total_energy, found.energies.same_spin, found.energies.opposite_spin) == RECORDED
    assert (found.nao, found.naux, found.active) == (24, 84, ((4, 19), (3, 20)))


def test_restricted_table():
    text = (DATA / "compare-nh2.out").read_text()
    row = "\t   PAIRS       1       5       4      19      19       0\n"
    assert parse_output(re.sub(r"\t   ALPHA.*\n.*BETA.*\n", row, text)).active == ((4, 19),)


@pytest.mark.parametrize("missing", ["Same-Spin Energy", "NBF =", "ALPHA|BETA", "Psi4 1.3.2"])
def test_incomplete_output_is_no_result(missing):
    text = re.sub(missing, "gone", (DATA / "compare-nh2.out").read_text())
    with pytest.raises(BackendError, match="holds no DF-MP2 energies"):
        parse_output(text)


def test_energies_of_another_calculation_are_refused(radical_result, stand_in):
    stand_in("cp $RECORDED output.dat")
    sizes = replace(radical_result.sizes, frozen_core=0, nocc=(5, 4))
    with pytest.raises(ComparisonFailed, match=r"\(\(4, 19\), \(3, 20\)\) active .*the result has 24, 84"):
        run_psi4(replace(radical_result, sizes=sizes), 1)


# --- a stand-in on PATH -----------------------------------------------------------------------------


@pytest.fixture
def stand_in(tmp_path, monkeypatch):
    """Puts a program called psi4 first on PATH; the temporary folder is watched."""
    scratch = tmp_path / "scratch"
    scratch.mkdir()
    monkeypatch.setenv("PSI_SCRATCH", str(scratch))
    monkeypatch.setenv("RECORDED", str(DATA / "compare-nh2.out"))

    def make(script: str) -> Path:
        program = tmp_path / "bin" / "psi4"
        program.parent.mkdir(exist_ok=True)
        program.write_text(f"#!/bin/sh\n{script}\n")
        program.chmod(program.stat().st_mode | stat.S_IXUSR)
        monkeypatch.setenv("PATH", f"{program.parent}{os.pathsep}{os.environ['PATH']}")
        return scratch

    yield make
    assert list(scratch.iterdir()) == []  # whatever happened


def test_table_and_json(call: Runner, stored: Path, stand_in):
    stand_in("cp $RECORDED output.dat")
    done = succeed(call("compare", "nh2.h5", "--with", "psi4"))
    header, scf, *_, last = done.out.splitlines()
    assert header.split()[-2:] == ["Psi4", "difference"]
    assert scf.split()[:3] == ["scf_total_energy", "-55.5670750200", "-55.5670750200"]
    assert last == "agrees with Psi4 1.3.2 within 1.0e-06 Eh, with the same fitting sets (--exact uses none)"
    found = succeed(call("compare", "nh2.h5", "--with", "psi4", "--json")).json
    assert (found["program"], found["passed"]) == ("Psi4 1.3.2", True)
    row = found["energies"]["mp2_opposite_spin_correlation_energy"]
    assert row["psi4"] == RECORDED[2]
    assert row["difference"] == pytest.approx(row["stored"] - RECORDED[2], abs=1e-15)
    assert abs(row["difference"]) < 1e-8


def test_it_runs_alone(radical_result, stand_in, tmp_path, monkeypatch):
    """Its own folder as home and working directory, no terminal, no foreign basis sets, our threads."""
    monkeypatch.setenv("PSIPATH", "/elsewhere")
    monkeypatch.setenv("OPENBLAS_NUM_THREADS", "1")
    seen = tmp_path / "seen"
    stand_in(f'(pwd; echo "$HOME|$PSIPATH|$OPENBLAS_NUM_THREADS|$*"; cat; ls) > {seen}; cp $RECORDED output.dat')
    run_psi4(radical_result, 3)
    where, environment, *files = seen.read_text().splitlines()
    assert Path(where).parent == tmp_path / "scratch"
    assert environment == f"{where}|||-n 3 -s {where}"
    assert files == ["input.dat", "screen.txt"]


def test_a_difference_is_exit_8(call: Runner, stored: Path, stand_in):
    stand_in("sed 's/-0.1114970638772585/-0.1115970638772585/' $RECORDED > output.dat")
    done = call("compare", "nh2.h5", "--with", "psi4")
    assert done.code == 8
    assert "Psi4 1.3.2 differs by 1.0e-04 Eh, more than --tolerance 1.0e-06 Eh" in done.message
    assert call("compare", "nh2.h5", "--with", "psi4", "--tolerance", "1e-3").code == 0


def test_another_scf_solution_is_named(call: Runner, stored: Path, stand_in):
    stand_in("sed 's/-55.5670750200435464/-55.6670750200435464/' $RECORDED > output.dat")
    assert (
        "lower, so the two may have found different SCF solutions"
        in call("compare", "nh2.h5", "--with", "psi4").message
    )


@pytest.mark.parametrize(
    ("script", "fragment"),
    [
        (
            "echo 'Fatal Error: There are no occupied orbitals with beta spin.'; exit 1",
            "(exit code 1): Fatal Error: Th",
        ),
        ("echo a; echo b; echo c; printf 'd\\033[2J\\n'; exit 3", "(exit code 3): b | c | d [2J"),
        ("exit 1", "(exit code 1): it wrote nothing"),
        ("kill -SEGV $$", "(killed by signal 11)"),
        ("true", "holds no DF-MP2 energies: it wrote nothing"),
        ("echo 'Failed to converge: '; cp $RECORDED output.dat", "integrals over the core potential did not converge"),
        ("sleep 60", "stopped after --timeout 0.3 s"),
    ],
    ids=["message", "last lines", "silent", "crash", "no output", "inexact", "slow"],
)
def test_a_failing_psi4_is_exit_6(call: Runner, stored: Path, stand_in, script, fragment):
    stand_in(script)
    done = call("compare", "nh2.h5", "--with", "psi4", "--timeout", "0.3" if "sleep" in script else "60")
    assert (done.code, done.out) == (6, "")
    assert fragment in done.message


def test_psi4_missing_or_not_a_program(call: Runner, stored: Path, stand_in, monkeypatch, tmp_path):
    stand_in("true")
    (tmp_path / "bin" / "psi4").write_text("no program")
    done = call("compare", "nh2.h5", "--with", "psi4")
    assert done.code == 6
    assert "cannot be started" in done.message
    monkeypatch.setenv("PATH", str(COMMAND.parent))
    done = call("compare", "nh2.h5", "--with", "psi4")
    assert done.code == 6
    assert "psi4 is not on PATH: install it (apt-get install psi4, or conda install" in done.message


def test_no_folder_for_it(call: Runner, stored: Path, stand_in, monkeypatch):
    stand_in("true")
    monkeypatch.setenv("PSI_SCRATCH", "/nowhere")
    done = call("compare", "nh2.h5", "--with", "psi4")
    assert done.code == 7
    assert "no temporary folder for Psi4 can be made in /nowhere" in done.message


@pytest.mark.parametrize(("number", "code"), [(signal.SIGINT, 130), (signal.SIGTERM, 75)])
def test_a_signal_ends_psi4_and_removes_its_folder(stored: Path, stand_in, tmp_path, number, code):
    scratch = stand_in(f"echo $$ > {tmp_path}/pid; sleep 60 & echo $! >> {tmp_path}/pid; wait")
    arguments = [str(COMMAND), "compare", "nh2.h5", "--with", "psi4"]
    process = subprocess.Popen(arguments, cwd=stored.parent, stdout=subprocess.PIPE, stderr=subprocess.PIPE, text=True)
    deadline = time.monotonic() + 20
    pids = tmp_path / "pid"
    while not (pids.exists() and pids.read_text().count("\n") == 2) and time.monotonic() < deadline:
        time.sleep(0.02)
    assert len(list(scratch.iterdir())) == 1
    process.send_signal(number)
    out, err = process.communicate(timeout=20)
    assert (process.returncode, out) == (code, "")
    assert len([line for line in err.splitlines() if line.startswith("dfmp2: ")]) == 1
    for pid in pids.read_text().split():
        status = Path(f"/proc/{pid}/stat")
        assert not status.exists() or status.read_text().split()[2] == "Z"


@pytest.mark.parametrize(
    ("options", "code", "fragment"),
    [
        (("--with", "gaussian"), 2, "'gaussian' is not one of 'pyscf', 'psi4'"),
        (("--timeout", "5"), 3, "--timeout stops Psi4"),
        (("--with", "psi4", "--timeout", "0"), 3, "--timeout 0.0: expected seconds above zero"),
        (("--with", "psi4", "--timeout", "nan"), 3, "expected seconds above zero"),
        (("--with", "psi4", "--threads", "0"), 3, "--threads 0"),
        (("--with", "psi4", "--tolerance", "-1"), 3, "--tolerance -1.0"),
    ],
)
def test_bad_options(call: Runner, stored: Path, options, code, fragment):
    done = call("compare", "nh2.h5", *options)
    assert (done.code, done.out) == (code, "")
    assert fragment in done.message


def test_pyscf_stays_the_default(call: Runner, stored: Path):
    found = succeed(call("compare", "nh2.h5", "--json")).json
    assert found["program"].startswith("PySCF")
    assert abs(found["energies"]["mp2_correlation_energy"]["difference"]) < 1e-8
    assert "pyscf" in found["energies"]["scf_total_energy"]


# --- Psi4 itself ------------------------------------------------------------------------------------

REAL = {
    "h2o": (WATER, "cc-pvdz", {}),
    "h2o, core and virtuals frozen": (WATER, "cc-pvdz", {"frozen_core": "1", "frozen_virtual": 2}),
    "h2o, conventional": (WATER, "cc-pvdz", {"scf": "conventional", "frozen_core": "auto"}),
    "h2o, ghosts": (WATER + "; @O 0 0 3; @H 0 0.75 3.5", "cc-pvdz", {"frozen_core": "auto"}),
    "h2o, ghost with a core potential": (WATER + "; @I 0 0 2.5", "def2-svp", {"frozen_core": "auto"}),
    "hi, core potential": ("H 0 0 0; I 0 0 1.6; @I 0 0 4", "def2-svp", {"frozen_core": "auto"}),
    "lih, uhf": ("Li 0 0 0; H 0 0 1.6", "def2-svp", {"reference": "uhf"}),
    "he, dropped functions": (
        "He 0 0 0; @He 0 0 0.21; @He 0 0 0.42",
        "aug-cc-pvtz",
        {"auxbasis": "aug-cc-pvtz-ri"},
    ),
    "water, quadruple zeta": (WATER, "cc-pvqz", {"frozen_core": "auto"}),
}


@needs_psi4
@pytest.mark.slow
@pytest.mark.parametrize("name", REAL)
def test_psi4_agrees(name):
    """Two programs, each with its own SCF: 1e-7 Eh; E(corr) is of first order in the orbitals."""
    atoms, basis, options = REAL[name]
    result = dfmp2.run(molecule(atoms), basis, precision="fp64", stability="off", **options)
    if "dropped" in name:
        assert result.sizes.nmo < result.sizes.nao
    check = recompute(result, 1e-7, 2, dfmp2.progress.Listener(), program="psi4")
    assert check.passed, check


@needs_psi4
@pytest.mark.slow
@pytest.mark.parametrize("core", ["0", "1"])
def test_psi4_agrees_on_a_radical(core):
    result = dfmp2.run(INPUTS / "nh2.xyz", "aug-cc-pvdz", frozen_core=core, precision="fp64", stability="off")
    assert recompute(result, 1e-7, 2, dfmp2.progress.Listener(), program="psi4").passed


@needs_psi4
@pytest.mark.slow
def test_psi4s_own_words(call: Runner, folder: Path):
    """An atom its DF-MP2 refuses, and gold, whose core potential Psi4 1.3 integrates 3e-5 Eh wrong."""
    (folder / "h.xyz").write_text("1\nmultiplicity=2\nH 0 0 0\n")
    succeed(call("run", "h.xyz", "--basis", "cc-pvdz", "--quiet"))
    done = call("compare", "h.dfmp2.h5", "--with", "psi4")
    assert done.code == 6
    assert "no occupied orbitals with beta spin" in done.message
    gold = dfmp2.run(molecule("Au 0 0 0; H 0 0 1.5"), "def2-svp", stability="off")
    with pytest.raises(BackendError, match="did not converge"):
        recompute(gold, 1e-6, 2, dfmp2.progress.Listener(), program="psi4")
    assert not list(Path(tempfile.gettempdir()).glob("dfmp2-psi4-*"))


def test_recorded_energies_are_those_of_the_input_files():
    """The recording without a frozen core, made from Psi4's own basis sets, has the same SCF energy."""
    expected = json.loads((INPUTS / "expected.json").read_text())["cases"]["nh2"]
    assert expected["psi4"]["scf_total_energy"] == pytest.approx(RECORDED[0], abs=1e-10)
