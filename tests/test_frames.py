"""Batches of files of several geometries, and conformers ranked."""

from __future__ import annotations

import math
import os
import sys
from dataclasses import replace
from pathlib import Path
from typing import Any

import numpy as np
import pytest

import dfmp2
from dfmp2.errors import BackendUnavailable, InputError
from dfmp2.execution.manifest import make_batch
from dfmp2.molecule import files
from dfmp2.molecule.files import frames_in, read_frame, read_frames
from tests.recorded import recorded_error

BASIS = {"basis": "6-31g"}


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


def test_without_ase_a_database_is_refused(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setitem(sys.modules, "ase.db", None)
    (tmp_path / "some.db").touch()
    with recorded_error(BackendUnavailable):
        make_batch([str(tmp_path / "some.db")], BASIS, tmp_path / "out")


# --- rank -----------------------------------------------------------------------------------------


def test_weights_are_boltzmanns(tmp_path: Path) -> None:
    """Of three geometries of one triplet."""
    energies = {}
    for name, length in (("a", 0.74), ("b", 0.76), ("c", 0.7)):
        molecule = dfmp2.Molecule.from_string(f"H 0 0 0; H 0 0 {length}", multiplicity=3)
        run = dfmp2.run(molecule, "6-31g", threads=1)
        dfmp2.write(run, tmp_path / f"{name}.h5")
        energies[name] = run.total_energy
    files = [tmp_path / f"{name}.h5" for name in energies]
    ranking = dfmp2.rank(files, temperature=900.0, degeneracies={"b": 2})
    thermal = 8.31446261815324 * 900.0 / 2625499.6394799
    lowest = min(energies.values())
    counted = {"a": 3, "b": 6, "c": 3}  # by spin
    factors = {
        name: counted[name] * math.exp((lowest - energy) / thermal)
        for name, energy in energies.items()
    }
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
    low, *others = ranking.conformers
    anions = str(replace(ranking, charge=-1, conformers=(replace(low, multiplicity=1), *others)))
    assert "H2 (charge -1, multiplicities 1 and 3)" in anions
    named = [line.split() for line in anions.splitlines() if line.split()[1:2] in map(list, "abc")]
    assert [words[-1] for words in named] == ["1", "3", "3"]
