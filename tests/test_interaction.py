"""Interaction energies: Psi4's formic acid dimer, PySCF with ghost atoms, and every wrong list of fragments."""

from __future__ import annotations

import signal
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from pyscf import gto, lib, scf
from pyscf.mp import dfmp2_native, dfump2_native

from dfmp2.errors import InputError, ResultFileError
from dfmp2.io import hdf5
from dfmp2.io.study import is_study, read_study, verify_study
from dfmp2.molecule import Molecule
from dfmp2.studies.fragments import alone, in_complex, make_fragments, parse_atoms, show_atoms
from tests.conftest import Runner, Stored, listing, succeed
from tests.test_signals import start, wait_for

INPUTS = Path(__file__).parent.parent / "inputs"
DIMER = str(INPUTS / "formic-acid-dimer.xyz")
NEON_HELIUM = "2\n\nNe 0 0 0\nHe 0 0 2.6\n"
FITTED = (
    "--scf-auxbasis",
    "def2-universal-jkfit",
    "--precision",
    "fp64",
    "--scf-conv-tol",
    "1e-12",
    "--threads",
    "1",
    "--json",
)
UNITS = {"": 1.0, "_kj_per_mol": 2625.4996394799, "_kcal_per_mol": 2625.4996394799 / 4.184}


def test_formic_acid_dimer_as_in_psi4(call: Runner) -> None:
    """Psi4 test dfmp2-1: counterpoise-corrected DF-MP2/cc-pVDZ, all electrons correlated."""
    arguments = ("--fragments", "1-5,6-10", "--basis", "cc-pvdz", "--json", "--output", "x.h5")
    found = succeed(call("interaction", DIMER, *arguments)).json
    assert found["cp_corrected_interaction_energy"] == pytest.approx(-0.0224119246, abs=1e-6)
    assert [fragment["atoms"] for fragment in found["fragments"]] == [[1, 2, 3, 4, 5], [6, 7, 8, 9, 10]]
    for scheme in ("cp_corrected", "uncorrected"):
        for suffix, factor in UNITS.items():
            parts = [found[f"{part}{scheme}_interaction_energy{suffix}"] for part in ("", "scf_", "mp2_correlation_")]
            assert parts[0] == pytest.approx(parts[1] + parts[2], abs=1e-12 * factor)
            assert parts[0] == pytest.approx(factor * found[f"{scheme}_interaction_energy"], rel=1e-12)
    assert found["uncorrected_interaction_energy"] < found["cp_corrected_interaction_energy"]
    assert list(found["runs"]) == list(read_study("x.h5").runs)
    shown = succeed(call("show", "x.h5", "--json")).json
    assert shown == found


def pyscf_energies(atoms: str, basis: str, kind: Any, frozen: int, **molecule: Any) -> np.ndarray:
    """E(HF), E_SS, E_OS of PySCF with explicit fitting sets, ghosts included."""
    with lib.with_omp_threads(1):  # threads only wait for each other here
        mol = gto.M(atom=atoms, basis=basis, verbose=0, **molecule)
        mf = kind(mol).density_fit(auxbasis="def2-universal-jkfit")
        mf.conv_tol, mf.conv_tol_grad = 1e-12, 1e-7
        mf.run()
        solver = (dfmp2_native.DFRMP2 if kind is scf.RHF else dfump2_native.DFUMP2)(
            mf, frozen=frozen, auxbasis=f"{basis}-ri"
        )
        solver.verbose = 0
        components = []
        with solver:
            for solver.ps, solver.pt in ((0.0, 1.0), (1.0, 0.0)):  # same spin, opposite spin
                components.append(float(solver.kernel()))
    return np.array([mf.e_tot, *components])


def test_parts_and_ghosts_against_pyscf(call: Runner, folder: Path) -> None:
    """Neon has a frozen core and its ghost none; ghosts carry both fitting sets."""
    (folder / "nehe.xyz").write_text(NEON_HELIUM)
    arguments = ("--fragments", "1,2", "--basis", "cc-pvdz", "--frozen-core", "auto", *FITTED)
    found = succeed(call("interaction", "nehe.xyz", *arguments)).json
    ne, he, ghost_ne, ghost_he = "Ne 0 0 0", "He 0 0 2.6", "GHOST-Ne 0 0 0", "GHOST-He 0 0 2.6"
    energies = {
        name: pyscf_energies("; ".join(atoms), "cc-pvdz", scf.RHF, frozen)
        for name, atoms, frozen in (
            ("complex", (ne, he), 1),
            ("fragment-1-in-complex", (ne, ghost_he), 1),
            ("fragment-1-alone", (ne,), 1),
            ("fragment-2-in-complex", (ghost_ne, he), 0),
            ("fragment-2-alone", (he,), 0),
        )
    }
    for scheme, basis in (("cp_corrected", "in-complex"), ("uncorrected", "alone")):
        parts = energies["complex"] - energies[f"fragment-1-{basis}"] - energies[f"fragment-2-{basis}"]
        expected = {
            "scf_": parts[0],
            "mp2_same_spin_correlation_": parts[1],
            "mp2_opposite_spin_correlation_": parts[2],
            "mp2_correlation_": parts[1] + parts[2],
            "": parts.sum(),
            "scs_mp2_correlation_": parts[1] / 3 + 1.2 * parts[2],
        }
        for prefix, energy in expected.items():
            assert found[f"{prefix}{scheme}_interaction_energy"] == pytest.approx(energy, abs=1e-8), prefix
    cores = {name: run["frozen_core_orbitals"] for name, run in found["runs"].items()}
    assert cores["complex"] == 1 and cores["fragment-2-in-complex"] == 0 and cores["fragment-1-in-complex"] == 1


def test_open_shell_fragment_against_pyscf(call: Runner, folder: Path) -> None:
    (folder / "heh.xyz").write_text("2\nmultiplicity=2\nHe 0 0 0\nH 0 0 2.5\n")
    arguments = ("--fragments", "1,2", "--multiplicities", "1,2", "--basis", "cc-pvdz", *FITTED)
    found = succeed(call("interaction", "heh.xyz", *arguments, "--reference", "uhf")).json
    he, h = "He 0 0 0", "H 0 0 2.5"
    whole = pyscf_energies(f"{he}; {h}", "cc-pvdz", scf.UHF, 0, spin=1)
    first = pyscf_energies(f"{he}; GHOST-{h}", "cc-pvdz", scf.UHF, 0)
    second = pyscf_energies(f"GHOST-{he}; {h}", "cc-pvdz", scf.UHF, 0, spin=1)
    assert found["cp_corrected_interaction_energy"] == pytest.approx((whole - first - second).sum(), abs=1e-8)


def test_three_fragments_and_an_ion_against_pyscf(call: Runner, folder: Path) -> None:
    """Every fragment has the basis of all three; the charge is where it was put."""
    (folder / "three.xyz").write_text("3\n\nHe 0 0 2.8\nF 0 0 0\nHe 0 2.9 0\n")
    arguments = ("--fragments", "1,2,3", "--charge", "-1", "--charges", "0,-1,0", "--basis", "cc-pvdz", *FITTED)
    found = succeed(call("interaction", "three.xyz", *arguments)).json
    atoms = ("He 0 0 2.8", "F 0 0 0", "He 0 2.9 0")
    expected = pyscf_energies("; ".join(atoms), "cc-pvdz", scf.RHF, 0, charge=-1)
    for number, charge in enumerate((0, -1, 0)):
        centres = [atom if place == number else f"GHOST-{atom}" for place, atom in enumerate(atoms)]
        expected -= pyscf_energies("; ".join(centres), "cc-pvdz", scf.RHF, 0, charge=charge)
    assert found["cp_corrected_interaction_energy"] == pytest.approx(expected.sum(), abs=1e-8)
    assert len(found["runs"]) == 7 and any("Wells" in note for note in found["notes"])
    assert [fragment["charge"] for fragment in found["fragments"]] == [0, -1, 0]


def test_ranges() -> None:
    assert parse_atoms("1-3+7-9", 9, "--fragments") == (0, 1, 2, 6, 7, 8)
    assert show_atoms((0, 1, 2, 6, 8)) == "1-3+7+9"
    points = np.arange(12.0).reshape(4, 3)
    molecule = Molecule(("O", "H", "Ne", "H"), points, ghost=(False, False, True, False))
    first, second = make_fragments("1+4,2", molecule, "-1,1", None)
    assert alone(molecule, first).labels == ("O", "H") and alone(molecule, first).charge == -1
    assert in_complex(molecule, second).labels == ("@O", "H", "@Ne", "@H")  # a ghost may belong to nobody
    assert (alone(molecule, first).coordinates == points[[0, 3]]).all()


@pytest.mark.parametrize(
    ("fragments", "words"),
    [
        ("1-5,5-10", "atom 5 H is in fragments 1 and 2"),
        ("1-5,6-9", "atom 10 of 10 belongs to no fragment"),
        ("1-4,7-10", "atoms 5-6 of 10 belong to no fragment"),
        ("1-5,6-11", "there is no atom 11: the file has 10"),
        ("0-5,6-10", "there is no atom 0"),
        ("5-1,6-10", "runs backwards: write 1-5"),
        ("1-10", "is one fragment"),
        ("", "is no range"),
        ("1-5,6-x", "is no range"),
        ("1-5,,6-10", "is no range"),
        ("1-5+3,6-10", "atom 3 is named twice"),
        ("1-999999999,3", "there is no atom 999999999"),
        ("1-5;6-10", "is no range"),
        ("\u0661-\u0665,6-10", "is no range"),
    ],
)
def test_wrong_fragments_are_refused(fragments: str, words: str, call: Runner, folder: Path) -> None:
    before = listing(folder)
    done = call("interaction", DIMER, "--fragments", fragments, "--basis", "cc-pvdz")
    assert done.code == 3 and words in done.message and done.out == ""
    assert listing(folder) == before


@pytest.mark.parametrize(
    ("options", "words"),
    [
        (("--charges", "1,0"), "add up to 1"),
        (("--charges", "1"), "has 1 values for 2 fragments"),
        (("--charges", "a,b"), "expected whole numbers"),
        (("--charges", "1,-1"), "has 23 electrons; multiplicity 1 needs an even number"),
        (("--multiplicities", "2,1"), "cannot make a complex of multiplicity 1"),
        (("--multiplicities", "0,1"), "so 1 (singlet) or more"),
        (("--charge", "1", "--multiplicity", "2"), "say which fragment carries it"),
        (("--charge", "1", "--multiplicity", "2", "--charges", "1,0"), "say which fragment is open-shell"),
        (("--frozen-core", "2"), "a number of orbitals cannot hold"),
        (("--frozen-virtual", "2"), "leave it out"),
        (("--scf-from", "x.h5"), "leave it out"),
        (("--resume", "--overwrite"), "choose one"),
        (("--output", DIMER, "--overwrite"), "name another file"),
    ],
)
def test_inconsistent_states_are_refused(options: tuple[str, ...], words: str, call: Runner, folder: Path) -> None:
    before = listing(folder)
    done = call("interaction", DIMER, "--fragments", "1-5,6-10", "--basis", "cc-pvdz", *options)
    assert done.code == 3 and words in done.message
    assert listing(folder) == before


def test_cores_that_do_not_add_up_are_refused(call: Runner, folder: Path) -> None:
    """Psi4 frees a shell of lone Na+ (5 to 1), but not of NaCl (10): the energies would not cancel."""
    (folder / "nacl.xyz").write_text("2\n\nNa 0 0 0\nCl 0 0 2.36\n")
    arguments = ("--fragments", "1,2", "--charges", "1,-1", "--basis", "def2-svp", "--frozen-core", "psi4")
    done = call("interaction", "nacl.xyz", *arguments)
    assert done.code == 3 and "10 orbitals of the complex, but 1 + 5 of the fragments" in done.message


@pytest.mark.slow
def test_a_study_of_many_runs_is_read(water: Stored, folder: Path) -> None:
    """Sixty runs are more objects than one result may have."""
    from dfmp2.io.study import Study, StudyWriter

    result = hdf5.read(water.path)
    runs = {f"point-{number:03d}": result for number in range(60)}
    writer = StudyWriter(folder / "many.h5", overwrite=False)
    for name in runs:
        writer.add(name, result)
    writer.write(Study("scan", "many", {}, (), {}, {}, runs, True))
    found = read_study(folder / "many.h5")
    assert list(found.runs) == list(runs) and found.runs["point-059"].mp2_total_energy == result.mp2_total_energy


def test_spins_that_couple() -> None:
    """Two doublets make a singlet or a triplet; a quartet and a doublet a triplet or a quintet."""
    points = np.array([[0.0, 0, 0], [0, 0, 3]])
    for text, possible in (("2,2", {1, 3}), ("4,2", {3, 5}), ("3,1", {3})):
        for total in range(1, 7):
            molecule = Molecule(("N", "O"), points, multiplicity=total)
            if total in possible:
                assert make_fragments("1,2", molecule, None, text)[0].multiplicity == int(text[0])
            else:
                with pytest.raises(InputError, match="cannot make a complex"):
                    make_fragments("1,2", molecule, None, text)


def test_the_file_is_one_of_several_results(call: Runner, folder: Path) -> None:
    (folder / "nehe.xyz").write_text(NEON_HELIUM)
    printed = succeed(
        call("interaction", "nehe.xyz", "--fragments", "1,2", "--basis", "3-21g", "--threads", "1", "--output", "x.h5")
    )
    shown = succeed(call("show", "x.h5", "--verify"))
    assert printed.out.rpartition("dfmp2 finished")[0] in shown.out
    assert is_study("x.h5") and verify_study("x.h5") in shown.out
    one = succeed(call("show", "x.h5", "--run", "fragment-2-in-complex", "--json")).json
    assert one["formula"] == "He + ghost Ne" and one["sizes"]["nao"] == 11
    stored = read_study("x.h5").runs["fragment-2-in-complex"]
    assert stored.mp2_total_energy == one["mp2_total_energy"]
    hdf5.write(stored, "alone.h5")  # a run is a whole result: taken out, it has the hash it had inside
    assert hdf5.verify("alone.h5")
    with pytest.raises(ResultFileError, match="several results"):
        hdf5.read("x.h5")
    assert call("show", "x.h5", "--run", "nothing").code == 3
    again = call(
        "interaction", "nehe.xyz", "--fragments", "1,2", "--basis", "3-21g", "--threads", "1", "--output", "x.h5"
    )
    assert again.code == 3 and "already exists" in again.message


def test_damaged_study_is_refused(call: Runner, folder: Path) -> None:
    import h5py

    (folder / "nehe.xyz").write_text(NEON_HELIUM)
    succeed(
        call("interaction", "nehe.xyz", "--fragments", "1,2", "--basis", "3-21g", "--threads", "1", "--output", "x.h5")
    )
    whole = (folder / "x.h5").read_bytes()
    for size in (10, len(whole) // 3, len(whole) - 1000):
        (folder / "cut.h5").write_bytes(whole[:size])
        assert call("show", "cut.h5").code == 3
    with h5py.File("x.h5", "r+") as handle:
        handle["runs/complex/dfmp2/pairs/opposite_spin"][0, 0] += 1e-6
    done = call("show", "x.h5", "--verify")
    assert done.code == 3 and "does not have its stored hash" in done.message
    with h5py.File("x.h5", "r+") as handle:
        handle.attrs["dfmp2_study_version"] = 99
    done = call("show", "x.h5")
    assert done.code == 3 and "study version 99" in done.message


@pytest.mark.parametrize("number", [signal.SIGTERM, signal.SIGINT], ids=lambda number: number.name)
def test_interrupted_and_resumed(number: signal.Signals, call: Runner, folder: Path) -> None:
    """What is finished stays in a whole file and is not computed again."""
    arguments = ("interaction", DIMER, "--fragments", "1-5,6-10", "--basis", "sto-3g", "--threads", "1")
    with start(*arguments, "--output", "x.h5", cwd=folder) as process:
        wait_for(process, "[3/5]")
        process.send_signal(number)
        out, err = process.communicate(timeout=60)
    assert process.returncode == 75 and out == ""
    assert "finished runs are in x.h5" in err.splitlines()[-1]
    assert "the same command with --resume goes on" in err.splitlines()[-1]
    assert {path.name for path in folder.glob("*x.h5*")} <= {"x.h5", "x.h5.checkpoint"}
    half = read_study("x.h5")
    assert half.status == "incomplete" and list(half.runs) == ["complex", "fragment-1-in-complex"] and not half.values
    assert "INCOMPLETE" in succeed(call("show", "x.h5")).out
    if number == signal.SIGINT:
        return
    other = call(*arguments, "--output", "x.h5", "--resume", "--scf-conv-tol", "1e-9")
    assert other.code == 3 and "another calculation (different scf_conv_tol)" in other.message
    resumed = succeed(call(*arguments, "--output", "x.h5", "--resume", "--json"))
    assert resumed.err.count("finished before") == 2
    assert read_study("x.h5").complete
    energies = {name: run["mp2_total_energy"] for name, run in resumed.json["runs"].items()}
    assert all(run.mp2_total_energy == energies[name] for name, run in half.runs.items())
    parts = energies["complex"] - energies["fragment-1-in-complex"] - energies["fragment-2-in-complex"]
    assert resumed.json["cp_corrected_interaction_energy"] == pytest.approx(parts, abs=1e-12)


def test_stopped_before_the_first_run_nothing_is_written(folder: Path) -> None:
    before = listing(folder)
    with start("interaction", DIMER, "--fragments", "1-5,6-10", "--basis", "cc-pvdz", cwd=folder) as process:
        wait_for(process, "SCF   2")
        process.send_signal(signal.SIGTERM)
        _, err = process.communicate(timeout=60)
    assert process.returncode == 75 and "nothing was written" in err.splitlines()[-1]
    assert listing(folder) == before
