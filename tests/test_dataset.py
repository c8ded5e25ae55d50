"""Data sets written by `batch collect --to`: values read by other programs, and omitted items."""

from __future__ import annotations

import csv
import json
from dataclasses import replace
from pathlib import Path

import h5py
import numpy as np
import pytest

import dfmp2
from dfmp2.mp2.properties import Polarizability
from dfmp2.output.dataset import make_record, write_dataset
from dfmp2.output.hdf5 import write
from dfmp2.output.json import numbers_of
from tests.conftest import run_here, succeed, write_molecules

EV, ANGSTROM = 27.211386245988, 0.52917721092  # CODATA 2018; PySCF's bohr, as files are read
NAMES = ("nh2", "Wässer", "oh", "copy")
HEAD = (
    'basis = "sto-3g"\ntask = "gradient"\noutput = "out"\nkeep = "properties"\n'
    'memory = "2GB"\nthreads = 1\nprecision = "fp64"\n'
)
ITEMS = """[[item]]
molecule = "nh2.xyz"
smiles = "[NH2]"
[[item]]
molecule = "h2o.xyz"
name = "Wässer"
[[item]]
molecule = "oh.xyz"
[[item]]
molecule = "h2o.xyz"
name = "copy"
"""


@pytest.fixture(scope="module")
def batch(tmp_path_factory) -> Path:
    """Gradients of a radical, water twice, and an anion; the folder of their manifest."""
    folder = write_molecules(tmp_path_factory.mktemp("dataset"))
    (folder / "oh.xyz").write_text("2\ncharge=-1\nO 0.1 0.2 0.3\nH 0.4 -0.5 0.9\n")
    (folder / "m.toml").write_text(HEAD + ITEMS)
    succeed(run_here("batch", "run", "m.toml", cwd=folder))
    return folder


ENERGIES = {  # of a record -> of a result
    "energy": "total_energy",
    "scf_energy": "scf_total_energy",
    "mean_field_energy": "mean_field_energy",
    "correlation_energy": "correlation_energy",
    "same_spin_energy": "same_spin_correlation_energy",
    "opposite_spin_energy": "opposite_spin_correlation_energy",
    "dispersion_energy": "dispersion_energy",
}
UNITS = {
    **dict.fromkeys(ENERGIES, "hartree"),
    "coordinates": "bohr",
    "forces": "hartree/bohr",
    "dipole": "elementary charge * bohr",
    "charges": "elementary charge",
    "polarizability": "bohr^3",
    "charge": "elementary charge",
}


ARRAYS = ("forces", "dipole", "charges", "polarizability")


@pytest.mark.parametrize("missing", [*ARRAYS, *ENERGIES])
def test_every_number_of_a_record_is_in_every_format(missing, batch, tmp_path):
    """Made up, so that no two are alike; read by ASE, h5py, pyarrow, csv and json. Beside it the
    same molecule without one of them, which is neither zero nor the value of the other."""
    slopes = np.array([[1.0, 0.2, 0.3], [0.2, 2.0, 0.5], [0.3, 0.5, 3.0]])
    result = dfmp2.read(batch / "out" / "nh2.h5")
    bent = Polarizability(slopes, 2 * slopes, slopes[0], 1e-7, 2e-3, 0.01, 1.0)
    energies = {name: -1.5 * place for place, name in enumerate(ENERGIES, start=1)}
    whole = replace(make_record(replace(result, polarizability=bent)), energies=energies)
    if missing in ARRAYS:
        lacking = replace(whole, **{missing: None})
    else:
        lacking = replace(whole, energies={**energies, missing: None})
    arrays = {
        "coordinates": result.molecule.coordinates.tolist(),
        "forces": (-result.gradient.mp2_total_gradient).tolist(),
        "dipole": result.properties.relaxed_dipole.tolist(),
        "charges": result.properties.mulliken_charges[2].tolist(),
        "polarizability": slopes.tolist(),
    }
    numbers = {**energies, **arrays, "charge": 0, "multiplicity": 2}
    for to in ("extxyz", "h5", "parquet", "csv", "json", "ase.db"):
        write_dataset(tmp_path / to, to, [whole, lacking])
    with h5py.File(tmp_path / "h5") as handle:
        (group,) = handle.values()
        assert group["atomic_numbers"][()].tolist() == [7, 1, 1]
        in_hdf5 = {name: group[name][()] for name in numbers}
        units = {name: group[name].attrs["units"] for name in numbers}
    assert units == {name: UNITS.get(name, "") for name in numbers}
    for name in numbers:
        first = in_hdf5[name]
        if name not in ("charge", "multiplicity"):
            first, second = in_hdf5[name]
            assert np.array_equal(first, second) == (name != missing), name
        assert first.tolist() == numbers[name], name
    assert np.isnan(in_hdf5[missing][1]).all()
    rows = list(pytest.importorskip("ase.db").connect(tmp_path / "ase.db", type="db").select())
    assert (rows[0].total_charge, rows[0].multiplicity) == (0, 2)
    document = json.loads((tmp_path / "json").read_text())
    assert document["units"] == rows[0].data["units"] == UNITS
    with open(tmp_path / "csv", newline="", encoding="utf-8") as stream:
        in_csv = list(csv.DictReader(stream))
    table = pytest.importorskip("pyarrow.parquet").read_table(tmp_path / "parquet")
    units = {field.name: field.metadata[b"units"].decode() for field in table.schema}
    assert units == {name: UNITS.get(name, "") for name in units}
    in_parquet = table.to_pylist()
    numbers["seconds"] = result.timings.total
    for name, value in numbers.items():
        assert rows[0].data[name] == document["molecules"][0][name] == value, name
        assert json.loads(in_csv[0][name]) == value, name
        assert in_parquet[0][name] == (np.ravel(value).tolist() if name in arrays else value), name
    for present, absent in (document["molecules"], in_csv, in_parquet, [row.data for row in rows]):
        assert [name for name in numbers if absent[name] != present[name]] == [missing]
        assert absent[missing] in (None, "")
    images = pytest.importorskip("ase.io").read(tmp_path / "extxyz", index=":")
    of_ase = {  # eV, eV/angstrom, e angstrom, by CODATA factors
        "energy": energies["energy"] * EV,
        "forces": np.array(numbers["forces"]) * EV / ANGSTROM,
        "dipole": np.array(numbers["dipole"]) * ANGSTROM,
        "charges": np.array(numbers["charges"]),
    }
    for one, other in ([row.toatoms() for row in rows], images):
        for name, value in of_ase.items():
            assert one.calc.results[name] == pytest.approx(value, rel=1e-14), name
        assert one.positions == pytest.approx(result.molecule.coordinates * ANGSTROM, rel=1e-14)
        assert missing not in {*other.info, *other.arrays, *other.calc.results}
    found = {**images[0].info, "energy": images[0].get_potential_energy()}
    for name, value in energies.items():
        assert found[name] == pytest.approx(value * EV, rel=1e-14), name
    assert np.ravel(found["polarizability_bohr3"]) == pytest.approx(np.ravel(slopes), rel=1e-14)
    assert ("polarizability_bohr3" in images[1].info) == (missing != "polarizability")
    assert (found["charge"], found["multiplicity"], found["spin"]) == (0, 2, 2)


OF_MP2 = (
    "scf_total",
    "mp2_same_spin_correlation",
    "mp2_opposite_spin_correlation",
    "mp2_correlation",
    "mp2_total",
)


@pytest.mark.parametrize(
    ("ending", "workers"),
    [(".csv", "1"), (".json", "1"), (".h5", "1"), pytest.param(".h5", "2", marks=pytest.mark.slow)],
)
def test_columns_of_the_table_of_a_batch(ending, workers, batch, call, monkeypatch, tmp_path):
    """A radical, a singlet and an anion: each column is the number of the result that it names,
    whichever process has read it."""
    monkeypatch.chdir(batch)
    monkeypatch.setattr("dfmp2.execution.collect.CHUNK", 1)
    (batch / "out" / "batch.collected.jsonl").unlink(missing_ok=True)
    target = tmp_path / f"t{ending}"
    succeed(call("batch", "collect", "m.toml", "-o", str(target), "--workers", workers))
    if ending == ".csv":
        with open(target, newline="", encoding="utf-8") as stream:
            rows = list(csv.DictReader(stream))
    elif ending == ".json":
        rows = json.loads(target.read_text())["items"]
    else:
        with h5py.File(target) as handle:
            columns = {name: item[()].tolist() for name, item in handle["batch"].items()}
        rows = [dict(zip(columns, row, strict=True)) for row in zip(*columns.values(), strict=True)]
    for row, name in zip(rows, NAMES, strict=True):
        result = dfmp2.read(batch / "out" / f"{name}.h5")
        numbers = {
            "charge": result.molecule.charge,
            "multiplicity": result.molecule.multiplicity,
            "nao": result.sizes.nao,
            "homo_lumo_gap": result.diagnostics.homo_lumo_gap,
            "mp2_total_energy_error": result.error_budget.total,
            "warnings": len(result.diagnostics.warnings),
            "seconds": result.timings.total,
        }
        names = ("mean_field", "correlation", "total", "scs_mp2_correlation", *OF_MP2)
        numbers |= {f"{name}_energy": getattr(result, f"{name}_energy") for name in names}
        assert {name: float(row[name]) for name in numbers} == pytest.approx(numbers, rel=1e-15)
        for name in ("grid_error", "dispersion_energy"):
            assert row[name] in ("", None) or np.isnan(row[name])
        assert {row["xc"], row["grid"]} <= {"", b"", None}
        rest = {"name", "molecule", "formula", "reference", "basis", "method", "grid", "backend"}
        rest |= {"precision", "grid_error", "dispersion_energy", "xc"}
        assert row.keys() - numbers.keys() == rest


@pytest.mark.usefixtures("coarse_grid_error")
@pytest.mark.parametrize(
    "asked",
    [
        {"method": "drpa", "xc": "pbe"},
        {"method": "xyg3"},
        {"method": "b2plyp-d3bj"},
        {"method": "ks", "xc": "pbe"},
    ],
)
def test_energies_of_a_row_add_up(asked, tmp_path):
    """Whatever the correlation energy is added to: E(EXX), another functional, or E(SCF). All of
    them are in the file of the result; a dipole moment is only there if it is of the same method."""
    molecule = dfmp2.Molecule.from_string("H 0 0 0; F 0 0 0.9")
    result = dfmp2.run(molecule, basis="sto-3g", grid="20,50", threads=1, **asked)
    for row in (numbers_of(result), make_record(result).energies):
        parts = (row["mean_field_energy"], row["correlation_energy"], row["dispersion_energy"])
        total = row.get("total_energy", row.get("energy"))
        assert sum(part or 0.0 for part in parts) == pytest.approx(total, abs=1e-12)
    own_dipole = result.reference.dipole.tolist() if asked["method"] == "ks" else None
    assert make_record(result).dipole == own_dipole
    write(result, tmp_path / "one.h5")
    own = {
        name: getattr(result, name)
        for name in (*ENERGIES.values(), "functional_energy", "rpa_correlation_energy")
    }
    finite = {name: own[name] for name in own if own[name] is not None and np.isfinite(own[name])}
    assert make_record(result).energies == {name: finite.get(of) for name, of in ENERGIES.items()}
    with h5py.File(tmp_path / "one.h5") as handle:
        stored = {name: item[()] for name, item in handle["dfmp2/energies"].items() if name in own}
    assert {"mean_field_energy": result.mean_field_energy, **stored} == finite
    assert numbers_of(result)["xc"] == result.reference.xc
