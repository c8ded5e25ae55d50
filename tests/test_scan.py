"""Scans: geometries by other formulas, energies by PySCF, minima, failing points, table and curve, interruption."""

from __future__ import annotations

import csv
import math
import signal
from itertools import combinations
from pathlib import Path
from xml.etree import ElementTree

import numpy as np
import pytest
from pyscf import gto, lib, scf
from pyscf.mp import dfmp2_native

from dfmp2.errors import InputError
from dfmp2.io.scan_svg import _ticks
from dfmp2.io.study import read_study
from dfmp2.io.xyz import parse_xyz, read_xyz
from dfmp2.io.xyz_frames import read_frames
from dfmp2.molecule import Molecule
from dfmp2.studies.coordinate import make_coordinate
from dfmp2.studies.minimum import find_minimum
from dfmp2.units import ANGSTROM_PER_BOHR
from tests.conftest import MOLECULES, Runner, listing, succeed
from tests.test_signals import start, wait_for

INPUTS = Path(__file__).parent.parent / "inputs"
PEROXIDE = parse_xyz("4\n\nO 0 0.7 0\nO 0 -0.7 0\nH 0.9 0.9 0.1\nH -0.3 -0.9 0.8\n", file="h2o2").molecule


def pyscf_energy(distance: float) -> float:
    """E(MP2 total) of H2 in cc-pVDZ, PySCF's own DF-MP2."""
    with lib.with_omp_threads(1):
        mol = gto.M(atom=f"H 0 0 0; H 0 0 {distance}", basis="cc-pvdz", verbose=0)
        mf = scf.RHF(mol).density_fit(auxbasis="cc-pvdz-jkfit")
        mf.conv_tol, mf.conv_tol_grad = 1e-12, 1e-7
        mf.run()
        with dfmp2_native.DFMP2(mf, auxbasis="cc-pvdz-ri") as mp:
            mp.verbose = 0
            return float(mf.e_tot + mp.kernel())


def test_hydrogen_against_pyscf_and_its_minimum(call: Runner, folder: Path) -> None:
    arguments = ("--bond", "1,2", "0.70:0.82:7", "--basis", "cc-pvdz", "--precision", "fp64")
    found = succeed(call("scan", "h2.xyz", *arguments, "--json")).json
    table = found["table"]
    assert table["bond_1_2"] == [0.70, 0.72, 0.74, 0.76, 0.78, 0.80, 0.82]
    for place in (0, 3, 6):
        assert table["mp2_total_energy"][place] == pytest.approx(pyscf_energy(table["bond_1_2"][place]), abs=1e-8)
    # PySCF's curve falls to the same height on both sides of its minimum.
    best, step, bend = found["minimum_quartic"], 0.005, found["minimum_quartic_curvature"]
    below, at, above = (pyscf_energy(best + shift) for shift in (-step, 0.0, step))
    assert (below - above) / (2 * step * bend) == pytest.approx(0, abs=5e-4)
    assert (below - 2 * at + above) / step**2 == pytest.approx(bend, rel=0.02)
    assert found["minimum_quartic_energy"] == pytest.approx(at, abs=1e-7)
    assert found["minimum_parabola"] == pytest.approx(best, abs=2e-3)


def test_files_and_screen(call: Runner, folder: Path) -> None:
    done = succeed(
        call(
            "scan", "h2o.xyz", "--angle", "2,1,3", "90:120:4", "--basis", "sto-3g", "--threads", "1", "--output", "x.h5"
        )
    )
    assert sorted(path.name for path in folder.glob("x.*")) == ["x.csv", "x.h5", "x.svg"]
    study = read_study("x.h5")
    rows = list(csv.reader((folder / "x.csv").read_text().splitlines()))
    assert rows[0][0] == "angle_2_1_3 [degree]" and [row[0] for row in rows[1:]] == ["90", "100", "110", "120"]
    place = rows[0].index("mp2_total_energy [hartree]")
    assert [float(row[place]) for row in rows[1:]] == [run.mp2_total_energy for run in study.runs.values()]
    assert succeed(call("show", "x.h5", "--csv")).out == (folder / "x.csv").read_text()
    shown = succeed(call("show", "x.h5")).out
    assert done.out.startswith(shown) and done.out.count("o\n") >= 1
    for run, value in zip(study.runs.values(), study.table["angle_2_1_3"].values, strict=True):
        first, second = (run.molecule.coordinates[n] - run.molecule.coordinates[0] for n in (1, 2))
        cosine = first @ second / np.linalg.norm(first) / np.linalg.norm(second)
        assert math.degrees(math.acos(cosine)) == pytest.approx(value, abs=1e-10)


def test_curve_is_a_drawing_of_its_own(call: Runner, folder: Path) -> None:
    succeed(call("scan", "h2o.xyz", "--bond", "1,2", "0.8:1.2:5", "--basis", "sto-3g", "--plot", "p.svg"))
    text = (folder / "p.svg").read_text()
    root = ElementTree.fromstring(text)
    circles = [item for item in root.iter() if item.tag.endswith("circle")]
    assert len(circles) == 5
    assert text.count("http") == 1  # the name space
    assert "minimum" in text and "bond 1 2 / angstrom" in text and "script" not in text
    heights = [float(circle.attrib["cy"]) for circle in circles]
    energies = read_study("h2o.scan.h5").table["mp2_total_energy"].values
    assert np.argsort(heights).tolist() == np.argsort(energies)[::-1].tolist()  # up is high


@pytest.mark.parametrize(("low", "high"), [(0.8, 1.2), (0.0, 1e-7), (-180.0, 180.0), (90.0, 90.0), (0.0, 0.0)])
def test_ticks_are_few_and_enclose(low: float, high: float) -> None:
    ticks = _ticks(low, high)
    assert 1 <= len(ticks) <= 11 and ticks[0] <= low + 1e-12 and ticks[-1] >= high - 1e-12


def dihedral(points: np.ndarray) -> float:
    """The angle between two planes by its cosine, with the sign of the triple product; degrees."""
    a, b, c = points[1] - points[0], points[2] - points[1], points[3] - points[2]
    one, two = np.cross(a, b), np.cross(b, c)
    cosine = one @ two / np.linalg.norm(one) / np.linalg.norm(two)
    return math.degrees(math.acos(np.clip(cosine, -1, 1))) * (1 if a @ two >= 0 else -1)


def test_dihedral_turns_one_side_only() -> None:
    coordinate = make_coordinate("dihedral", "3,1,2,4", "-170:170:18", PEROXIDE)
    assert coordinate.moving == (1, 3)
    before = PEROXIDE.coordinates
    for value in coordinate.values:
        after = coordinate.at(PEROXIDE, value).coordinates
        assert dihedral(after[[2, 0, 1, 3]]) == pytest.approx(value, abs=1e-9)
        assert coordinate.measure(coordinate.at(PEROXIDE, value)) == pytest.approx(value, abs=1e-9)
        for i, j in combinations(range(4), 2):
            if {i, j} != {2, 3}:
                assert np.linalg.norm(after[i] - after[j]) == pytest.approx(np.linalg.norm(before[i] - before[j]))


def test_the_side_of_the_last_atom_moves() -> None:
    """Glycine is a chain; in the dimer a bond between the fragments moves one of them; a ring has no side."""
    dimer = read_xyz(INPUTS / "formic-acid-dimer.xyz").molecule
    between = make_coordinate("bond", "3,10", "1.5:2.5:3", dimer)
    assert between.moving == (5, 6, 7, 8, 9)
    moved = between.at(dimer, 2.5)
    length = np.linalg.norm(moved.coordinates[2] - moved.coordinates[9]) * ANGSTROM_PER_BOHR
    assert length == pytest.approx(2.5, abs=1e-12)
    assert (moved.coordinates[:5] == dimer.coordinates[:5]).all()
    inside = make_coordinate("bond", "1,2", "1.2:1.5:3", dimer)
    assert inside.moving == (1, 4)  # O and its H
    assert make_coordinate("bond", "1,2", "1.2:1.5:3", dimer, moving="2").moving == (1,)
    ghosts = Molecule(dimer.symbols, dimer.coordinates, ghost=(False,) * 5 + (True,) * 5)
    assert make_coordinate("bond", "3,10", "1.5:2.5:3", ghosts).moving == (5, 6, 7, 8, 9)
    benzene = read_xyz(INPUTS / "benzene.xyz").molecule
    with pytest.raises(InputError, match="ring"):
        make_coordinate("bond", "1,2", "1.3:1.5:3", benzene)


def test_linear_angles() -> None:
    line = Molecule(("O", "C", "O"), np.array([[0.0, 0, -2.2], [0, 0, 0], [0, 0, 2.2]]))
    bent = make_coordinate("angle", "1,2,3", "150:180:4", line).at(line, 150)
    assert np.linalg.norm(bent.coordinates[2]) == pytest.approx(2.2)
    assert make_coordinate("angle", "1,2,3", "150:180:4", bent).measure(bent) == pytest.approx(150)
    chain = Molecule(("H", "C", "C", "H"), np.array([[0.0, 0, -2], [0, 0, 0], [0, 0, 2.3], [0, 0, 4.3]]))
    with pytest.raises(InputError, match="not defined"):
        make_coordinate("dihedral", "1,2,3,4", "0:90:3", chain)


def test_minimum_of_known_curves() -> None:
    xs = [0.8, 0.9, 1.0, 1.1, 1.25]
    found = find_minimum(xs, [-100 + 0.7 * (x - 1.03) ** 2 for x in xs], 3)
    assert found is not None and found.position == pytest.approx(1.03, abs=1e-10)
    assert (found.energy, found.curvature) == (pytest.approx(-100, abs=1e-12), pytest.approx(1.4, abs=1e-8))
    # A Morse curve, r_e = 1.1, second derivative 2 D a^2.
    fine = [0.9, 1.0, 1.1234, 1.2, 1.3]
    morse = find_minimum(fine, [0.2 * (1 - math.exp(-2 * (x - 1.1))) ** 2 for x in fine], 5)
    assert morse is not None and morse.position == pytest.approx(1.1, abs=1e-3)
    assert morse.curvature == pytest.approx(2 * 0.2 * 4, rel=0.02)
    assert find_minimum(xs, list(xs), 3) is None  # at an end
    assert find_minimum(xs, [(x - 0.9) ** 2 for x in xs], 5) is None  # one neighbour on the left
    assert find_minimum(xs[:2], [0.0, 1.0], 3) is None


def test_frames_chain_and_a_failing_point(call: Runner, folder: Path) -> None:
    """H2 at 28 angstrom from the orbitals at 12 has a refused gap (code 5); the next point is computed all the same."""
    text = "".join(MOLECULES[name] for name in ("h2-far", "h2-apart", "h2"))
    (folder / "f.xyz").write_text(text)
    scan = ("scan", "f.xyz", "--basis", "sto-3g", "--threads", "1", "--json", "--output", "x.h5")
    done = call(*scan)
    assert done.code == 9 and "1 of 3 points failed" in done.message
    assert done.json["failed"] == 1 and done.json["table"]["exit_code"] == [0, 5, 0]
    assert done.json["table"]["mp2_total_energy"][1] is None
    assert list(done.json["runs"]) == ["frame-001", "frame-003"]
    assert any("frame 2: failed with code 5" in note for note in done.json["notes"])
    rows = (folder / "x.csv").read_text().splitlines()
    assert rows[2].startswith("2,,,") and rows[2].endswith(",5")
    study = read_study("x.h5")
    assert study.runs["frame-003"].reference.start == "orbitals of frame-001" and study.complete
    again = call(*scan, "--resume", "--allow-small-gap")
    assert succeed(again).json["failed"] == 0 and again.err.count("finished before") == 2
    alone = succeed(call("run", "h2.xyz", "--basis", "sto-3g", "--json")).json
    assert again.json["table"]["mp2_total_energy"][2] == pytest.approx(alone["mp2_total_energy"], abs=1e-9)


def test_a_chain_saves_iterations_and_changes_nothing(call: Runner) -> None:
    arguments = ("scan", "nh2.xyz", "--bond", "1,2", "1.0:1.04:3", "--basis", "sto-3g", "--json", "--overwrite")
    chained, fresh = (succeed(call(*arguments, *option)).json["table"] for option in ((), ("--no-chain",)))
    assert sum(chained["scf_iterations"][1:]) < sum(fresh["scf_iterations"][1:])
    assert chained["mp2_total_energy"] == pytest.approx(fresh["mp2_total_energy"], abs=2e-8)


@pytest.mark.parametrize(
    ("arguments", "words"),
    [
        ((), "one frame and no coordinate"),
        (("--bond", "1,2", "0.8:1.2"), "expected FROM:TO:POINTS"),
        (("--bond", "1,2", "0.8:1.2:1"), "expected FROM:TO:POINTS"),
        (("--bond", "1,2", "0.8:1.2:501"), "expected FROM:TO:POINTS"),
        (("--bond", "1,2", "nan:1.2:3"), "expected FROM:TO:POINTS"),
        (("--bond", "1,2", "1:1:3"), "nothing to scan"),
        (("--bond", "1,2", "0:1:3"), "above zero"),
        (("--bond", "1,2", "0.1:1:3"), "0.1000 angstrom apart"),
        (("--bond", "1,1", "0.8:1.2:3"), "named twice"),
        (("--bond", "1,4", "0.8:1.2:3"), "there is no atom 4"),
        (("--bond", "1,2,3", "0.8:1.2:3"), "expected 2 atom numbers"),
        (("--bond", "2,3", "1.3:1.6:3"), "in a ring or not bonded"),
        (("--angle", "2,1,3", "90:190:3"), "up to 180"),
        (("--angle", "2,1,3", "90:120:3", "--bond", "1,2", "0.8:1.2:3"), "one coordinate at a time"),
        (("--bond", "1,2", "0.8:1.2:3", "--moving", "1"), "atom 2 must be among"),
        (("--moving", "1"), "--moving belongs to"),
        (("--bond", "1,2", "0.8:1.2:3", "--csv", "x.h5"), "three different files"),
        (("--bond", "1,2", "0.8:1.2:3", "--plot", "nowhere/x.svg"), "--plot nowhere/x.svg"),
        (("--bond", "1,2", "0.8:1.2:3", "--auxbasis", "nonsense"), "nonsense"),
    ],
)
def test_wrong_scans_are_refused(arguments: tuple[str, ...], words: str, call: Runner, folder: Path) -> None:
    before = listing(folder)
    done = call("scan", "h2o.xyz", "--basis", "sto-3g", "--threads", "1", "--output", "x.h5", *arguments)
    assert done.code == 3 and words in done.message and done.out == ""
    assert listing(folder) == before


def test_frames_are_read_one_by_one(folder: Path) -> None:
    water = MOLECULES["h2o"]
    (folder / "f.xyz").write_text(f"{water}\n{water.replace('0.1173', '0.2')}\r\n")
    frames = read_frames(folder / "f.xyz")
    assert [frame.coordinates[0, 2] * ANGSTROM_PER_BOHR for frame in frames] == pytest.approx([0.1173, 0.2])
    for tail, words in (
        ("3\n\nO 0 0 0\n", r"frame 2 \(line 6 on\), line 1: announces 3 atoms, but 1"),
        ("x\n\nO 0 0 0\n", r"frame 2 \(line 6 on\)"),
        ("3\n\nO 0 0 0\nH 0 0 x\nH 0 0 2\n", "frame 2 .*line 4"),
    ):
        (folder / "f.xyz").write_text(water + tail)
        with pytest.raises(InputError, match=words):
            read_frames(folder / "f.xyz")


def test_frames_of_two_molecules_are_refused(call: Runner, folder: Path) -> None:
    (folder / "f.xyz").write_text(MOLECULES["h2o"] + MOLECULES["nh2"])
    done = call("scan", "f.xyz", "--basis", "sto-3g")
    assert done.code == 3 and "frame 2 is H2N" in done.message


def test_interrupted_scan_goes_on(call: Runner, folder: Path) -> None:
    arguments = ("scan", "h2o.xyz", "--bond", "1,2", "0.8:1.2:12", "--basis", "sto-3g", "--threads", "1")
    with start(*arguments, cwd=folder) as process:
        wait_for(process, "[6/12]")
        process.send_signal(signal.SIGINT)
        _, err = process.communicate(timeout=60)
    assert process.returncode == 75 and "--resume goes on" in err.splitlines()[-1]
    assert {path.name for path in folder.glob("*.scan.*")} <= {"h2o.scan.h5", "h2o.scan.h5.checkpoint"}
    half = read_study(folder / "h2o.scan.h5")
    assert not half.complete and 5 <= len(half.runs) < 12
    resumed = succeed(call(*arguments, "--resume", "--json"))
    assert resumed.err.count("finished before") == len(half.runs)
    energies = resumed.json["table"]["mp2_total_energy"]
    assert len(energies) == 12
    assert energies[: len(half.runs)] == [run.mp2_total_energy for run in half.runs.values()]
    middle = energies.index(min(energies))
    assert energies[:middle] == sorted(energies[:middle], reverse=True) and energies[middle:] == sorted(
        energies[middle:]
    )
