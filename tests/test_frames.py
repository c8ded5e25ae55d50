"""Batches of files of several geometries, and conformers ranked."""

from __future__ import annotations

import math
import os
from dataclasses import replace
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from ase import Atoms
from ase.db import connect

import dfmp2
from dfmp2.errors import BackendUnavailable, InputError
from dfmp2.execution.manifest import make_batch, read_manifest
from dfmp2.molecule import files
from dfmp2.molecule.files import frames_in, read_frame, read_frames
from tests.recorded import recorded_error

BASIS = {"basis": "6-31g"}
FRAMES = (
    "2\n\nH 0 0 0\nH 0 0 0.74\n",
    "2\ncharge=1 multiplicity=2\nH 0 0 0\nH 0 0 1.05\n",
    "\n1\n\nHe 0 0 0\n",
)


@pytest.fixture
def many(tmp_path: Path) -> Path:
    """Three frames of different atoms, charges and spins."""
    path = tmp_path / "many.xyz"
    path.write_text("".join(FRAMES))
    return path


@pytest.fixture
def database(tmp_path: Path) -> Path:
    """Two rows, and a gap between their numbers."""
    path = tmp_path / "some.db"
    with connect(path) as rows:
        rows.write(Atoms("H2", [[0, 0, 0], [0, 0, 0.74]]), name="short bond")
        gone = rows.write(Atoms("He"))
        rows.write(Atoms("OH", [[0, 0, 0], [0, 0, 0.97]]), net_charge=-1, multiplicity=1)
        rows.write(Atoms("O2", [[0, 0, 0], [0, 0, 1.2]], magmoms=[1, 1]))
        rows.write(Atoms("O2", [[0, 0, 0], [0, 0, 1.1]]), charge=2)
        data = {"charge": 1, "mult": 4}
        rows.write(Atoms("O2", [[0, 0, 0], [0, 0, 1.2]], magmoms=[1, 0]), data=data)
        del rows[gone]
    return path


def test_every_frame_is_an_item(many: Path, database: Path, tmp_path: Path) -> None:
    """With its number or name, charge and spin; the manifest left behind says the same."""
    batch = make_batch([str(many), str(database)], BASIS, tmp_path / "out")
    names = [
        "many-0001",
        "many-0002",
        "many-0003",
        "short_bond",
        "some-0003",
        "some-0004",
        "some-0005",
        "some-0006",
    ]
    assert [item.name for item in batch.items] == names
    molecules = [read_frame(item.path, item.given["frame"]) for item in batch.items]
    assert [(one.formula, one.charge, one.multiplicity) for one in molecules] == [
        ("H2", 0, 1),
        ("H2", 1, 2),
        ("He", 0, 1),
        ("H2", 0, 1),
        ("HO", -1, 1),
        ("O2", 0, 3),
        ("O2", 2, 1),
        ("O2", 1, 4),
    ]
    assert np.ptp(molecules[1].coordinates[:, 2]) == pytest.approx(1.05 / 0.52917721092)
    assert [one.name for one in molecules[3:]] == [
        "short bond",
        *(f"some-{k}" for k in (3, 4, 5, 6)),
    ]
    assert molecules[4].source == f"{database}, frame 3"
    asked = read_frame(database, 3, charge=1, multiplicity=3, called="mine.db")
    assert (asked.charge, asked.multiplicity, asked.source) == (1, 3, "mine.db, frame 3")


@pytest.mark.parametrize(
    ("keys", "data"),
    [
        ({"total_charge": 1, "charge": -1}, {}),
        ({"charge": 2}, {"charge": 0}),
        ({"charge": 0.5}, {}),
        ({"charge": math.nan}, {}),
        ({"multiplicity": math.inf}, {}),
        ({}, {"charge": np.array([0.1, -0.1])}),
        ({"multiplicity": "two"}, {}),
    ],
)
def test_what_the_row_of_a_database_says_of_its_state_is_never_ignored(
    keys: dict[str, object], data: dict[str, object], tmp_path: Path
) -> None:
    with connect(tmp_path / "one.db") as rows:
        rows.write(Atoms("O2", [[0, 0, 0], [0, 0, 1.2]]), data=data, **keys)
    with recorded_error(dfmp2.InputError):
        read_frame(tmp_path / "one.db", 1)


def test_a_manifest_of_frames(many: Path, database: Path, tmp_path: Path) -> None:
    head = 'basis = "6-31g"\noutput = "out"\n[[item]]\n'
    manifest = tmp_path / "batch.toml"

    def items(text: str) -> list[str]:
        manifest.write_text(head + text)
        return [item.name for item in read_manifest(manifest).items]

    assert items('molecule = "many.xyz"\nframe = 2\nname = "second"\n') == ["second"]
    assert len(items('molecule = "many.xyz"\nframes = "all"\n')) == 3
    assert len(items('molecule = "some.db"\n')) == 5
    assert items('molecule = "some.db"\nframe = 4\n') == ["some"]
    for wrong in ("frame = 0", "frames = 3"):
        with recorded_error(InputError):
            items(f'molecule = "many.xyz"\n{wrong}\n')


PDB = "ATOM      {0}  H{0}  UNL A   1       0.000   0.000{1:8.3f}  1.00  0.00           H\n"
SDF = "    0.0000    0.0000{:10.4f} H   0  0  0  0  0  0  0  0  0  0  0  0\n"
H2 = {  # a frame by the ending of its file
    "xyz": "2\n\nH 0 0 0\nH 0 0 {}\n",
    "pdb": f"{PDB.format(1, 0.0)}{PDB.replace('{0}', '2').replace('{1', '{')}ENDMDL\n",
    "sdf": "\x85\n  made     01012600003D\n\n  2  1  0  0  0  0  0  0  0  0999 V2000\n"
    f"{SDF.format(0)}{SDF}  1  2  1  0\nM  END\n$$$$\n",
}


@pytest.mark.parametrize("end", H2)
def test_frames_by_number(end: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """With charge, spin and name as asked; a file that was replaced is read again, whether its size
    or only its time has changed."""
    path = tmp_path / f"two.{end}"

    def lengths(**how: Any) -> list[float]:
        found = [read_frame(path, frame.number, **how) for frame in frames_in(path)]
        return [np.ptp(one.coordinates[:, 2]) * 0.529177210903 for one in found]

    for time, line_end, values in (
        (1, "\r", (0.7, 0.8)),
        (1, "\r\n", (0.71, 0.815, 0.9)),
        (2, "\n", (0.712, 0.82, 0.91)),
    ):
        path.write_text("".join(map(H2[end].format, values)), newline=line_end)
        os.utime(path, ns=(time, time))
        assert lengths() == pytest.approx(values)
    ion = read_frame(path, 2, charge=1, multiplicity=2, called="mi\rne.xyz")
    assert (ion.charge, ion.multiplicity, ion.source) == (1, 2, "mi\\rne.xyz, frame 2")
    assert [one.multiplicity for one in read_frames(path, multiplicity=3)] == [3] * 3
    if end == "xyz":
        assert lengths(units="bohr") == pytest.approx(np.array(values) * 0.529177210903)
    monkeypatch.setattr(files, "MOST_FRAMES", 3)
    assert len(frames_in(path)) == len(read_frames(path)) == 3
    monkeypatch.setattr(files, "MOST_FRAMES", 2)
    for read in (frames_in, read_frames):
        with recorded_error(InputError):
            read(path)
    path.write_text(H2[end].format(0.7))
    assert frames_in(path) == []


def test_what_is_no_frame(many: Path, database: Path, tmp_path: Path) -> None:
    assert len(frames_in(many)) == 3
    (tmp_path / "TWO.SDF").write_text(2 * H2["sdf"].format(0.7))
    assert len(frames_in(tmp_path / "TWO.SDF")) == 2
    for name, text in (
        ("one.xyz", FRAMES[0]),
        ("empty.xyz", ""),
        ("trailing.xyz", FRAMES[0] + "end of file\n"),
    ):
        (tmp_path / name).write_text(text)
        assert frames_in(tmp_path / name) == []
    for path, number, units in (
        (many, 0, "angstrom"),
        (many, 4, "angstrom"),
        (database, 2, "angstrom"),
        (database, 1, "bohr"),
    ):
        with recorded_error(InputError):
            read_frame(path, number, units=units)
    with connect(tmp_path / "empty.db") as rows:
        rows.write(Atoms("H"))
        del rows[1]
    (tmp_path / "text.db").write_text("no database\n")
    (tmp_path / "empty.sdf").write_text("\n")
    for read, name in (
        (frames_in, "empty.db"),
        (frames_in, "text.db"),
        (frames_in, "none.db"),
        (read_frames, "empty.sdf"),
    ):
        with recorded_error(InputError):
            read(tmp_path / name)


def test_what_is_wrong_in_a_later_molecule_is_on_its_line(tmp_path: Path) -> None:
    """The first molecule is as it should be and has 9 lines."""
    path = tmp_path / "two.sdf"
    good, bad = H2["sdf"].format(0.7), H2["sdf"].format(0.8).replace(" H ", " Xx", 1)
    path.write_text(good + bad)
    assert good.count("\n") == 9
    with recorded_error(InputError):
        read_frames(path)


def test_without_ase_a_database_is_refused(
    database: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setitem(__import__("sys").modules, "ase.db", None)
    with recorded_error(BackendUnavailable):
        make_batch([str(database)], BASIS, tmp_path / "out")


# --- rank -----------------------------------------------------------------------------------------


@pytest.fixture(scope="module")
def bent(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """Results of three geometries of one triplet, and of another molecule and another basis."""
    folder = tmp_path_factory.mktemp("bent")
    for name, length, basis in (("a", 0.74, "6-31g"), ("b", 0.76, "6-31g"), ("c", 0.7, "6-31g")):
        molecule = dfmp2.Molecule.from_string(f"H 0 0 0; H 0 0 {length}", multiplicity=3)
        dfmp2.write(dfmp2.run(molecule, basis, threads=1), folder / f"{name}.h5")
    molecule = dfmp2.Molecule.from_string("H 0 0 0; H 0 0 0.74")
    dfmp2.write(dfmp2.run(molecule, "cc-pvdz", threads=1), folder / "large.h5")
    charged = replace(molecule, point_charges=np.array([[4.0, 0.0, 0.0, 0.5]]))
    dfmp2.write(dfmp2.run(charged, "6-31g", threads=1), folder / "charged.h5")
    plain = dfmp2.run(molecule, "6-31g", method="b2plyp", grid="20,26", threads=1)
    dfmp2.write(plain, folder / "plain.h5")
    dfmp2.write(dfmp2.derive(plain, dispersion="d4"), folder / "d4.h5")
    other = dfmp2.Molecule.from_string("He 0 0 0")
    dfmp2.write(dfmp2.run(other, "6-31g", threads=1), folder / "he.h5")
    return folder


def test_weights_are_boltzmanns(bent: Path) -> None:
    files = [bent / f"{name}.h5" for name in "abc"]
    ranking = dfmp2.rank(files, temperature=900.0, degeneracies={"b": 2})
    energies = {name: dfmp2.read(bent / f"{name}.h5").total_energy for name in "abc"}
    thermal = 8.31446261815324 * 900.0 / 2625499.6394799
    lowest = min(energies.values())
    factors = {name: math.exp((lowest - energy) / thermal) for name, energy in energies.items()}
    counted = {"a": 3, "b": 6, "c": 3}  # by spin
    factors = {name: counted[name] * factor for name, factor in factors.items()}
    total = sum(factors.values())
    assert [one.name for one in ranking.conformers] == sorted(energies, key=energies.get)
    for one in ranking.conformers:
        assert one.weight == pytest.approx(factors[one.name] / total, rel=1e-10)
        assert (one.energy, one.degeneracy) == (energies[one.name], counted[one.name])
        above = energies[one.name] - lowest
        relative = one.relative_kj_per_mol, one.relative_kcal_per_mol
        assert relative == pytest.approx((2625.49964 * above, 627.509474 * above), abs=1e-6)
        (row,) = (line for line in str(ranking).splitlines() if line.split()[1:2] == [one.name])
        assert row.split()[3:5] == [f"{2625.49964 * above:.2f}", f"{627.509474 * above:.2f}"]
    assert ranking.ensemble_energy == pytest.approx(lowest - thermal * math.log(total), abs=1e-12)
    assert (ranking.quantity, ranking.temperature, ranking.warnings) == ("total_energy", 900.0, ())
    low, *others = ranking.conformers
    anions = str(replace(ranking, charge=-1, conformers=(replace(low, multiplicity=1), *others)))
    assert "H2 (charge -1, multiplicities 1 and 3)" in anions
    named = [line.split() for line in anions.splitlines() if line.split()[1:2] in map(list, "abc")]
    assert [words[-1] for words in named] == ["1", "3", "3"]


def test_what_rank_refuses(bent: Path) -> None:
    for names, more in (
        ("a", {}),
        ("a he", {}),
        ("a large", {}),
        ("a a", {}),
        ("a b", {"by": "gibbs"}),
        ("a b", {"by": "weight"}),
        ("a b", {"temperature": 0.0}),
        ("a b", {"temperature": [300.0, 400.0]}),
        ("a b", {"pressure": [1e5, 2e5]}),
        ("a b", {"temperature": [3e2, 4e2], "pressure": [1e5, 2e5]}),
        ("a b", {"degeneracies": {"z": 2}}),
        ("a b", {"degeneracies": {"a": 0}}),
        ("a none", {}),
        ("a charged", {}),
        ("plain d4", {}),
        ("a b", {"temperature": 400.0, "pressure": 1e5}),
    ):
        with recorded_error(InputError):
            dfmp2.rank([bent / f"{name}.h5" for name in names.split()], **more)
