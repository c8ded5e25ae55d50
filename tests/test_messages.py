"""Rules for messages: the first cause is named, and advice names something that helps."""

from __future__ import annotations

import os
from pathlib import Path

import numpy as np
import pytest

import dfmp2
from dfmp2.errors import Dfmp2Error, InputError
from dfmp2.molecule.elements import unit_doubt
from dfmp2.molecule.molecule import Molecule
from dfmp2.options import Options
from tests.conftest import MOLECULES, listing, succeed

STO3G = ("--basis", "sto-3g", "--threads", "1")


def test_a_second_write_says_that_the_file_is_there(water, tmp_path):
    """`except FileExistsError` catches it; the file is replaced as a whole, and only on request."""
    result, path = dfmp2.read(water.path), tmp_path / "r.h5"
    dfmp2.write(result, path)
    path.write_bytes(b"precious")
    with pytest.raises(
        FileExistsError, match=r"r\.h5 already exists: overwrite=True replaces it"
    ) as caught:
        dfmp2.write(result, path)
    assert isinstance(caught.value, Dfmp2Error) and caught.value.exit_code == 3
    assert path.read_bytes() == b"precious" and len(listing(tmp_path)) == 1
    dfmp2.write(result, path, overwrite=True)
    assert (
        dfmp2.read(path).mp2_total_energy == result.mp2_total_energy and len(listing(tmp_path)) == 1
    )


H2 = ("h2.xyz", *STO3G)
FAULTS = [
    (("run", "none.xyz", *STO3G), "x.h5", "none.xyz: no such file"),
    (("run", "h2.xyz", "--basis", "sto-3"), "x.h5", "sto-3"),
    (("run", *H2, "--charge", "1"), "x.h5", "H2 with charge 1 has 1 electron"),
    (("run", *H2, "--auxbasis", "none"), "x.h5", "none"),
    (("run", *H2, "--memory", "30MB"), "x.h5", "30.00 MB may be used"),
    (("run", *H2, "--scf-from", "{water}"), "x.h5", "charges"),
    (("prepare", "h2.xyz", "--basis", "sto-3"), "x.h5", "sto-3"),
    (("prepare", *H2, "--multiplicity", "2"), "x.h5", "multiplicity 2"),
    (("energy", "--from", "h2.prepared.h5", "--memory", "30MB"), "x.h5", "30.00 MB may be used"),
    (("interaction", *H2, "--fragments", "1,3"), "x.h5", "3"),
    (("cbs", "h2.xyz", "--basis", "sto-3g"), "x.h5", "sto-3g"),
    (("scan", "h2.xyz", "--basis", "sto-3", "--bond", "1,2", "0.7:0.8:2"), "x.h5", "sto-3"),
    (("scan", "h2.xyz", "--basis", "sto-3", "--bond", "1,2", "0.7:0.8:2"), "x.csv", "sto-3"),
    (("export", "none.h5", "--to", "xyz"), "x.h5", "none.h5: no such file"),
    (("report", "none.h5"), "x.html", "none.h5: no such file"),
    (("derive", "{water}", "--frozen-core", "9"), "x.h5", "9"),
]
SOUND = [
    (("run", *H2), "x.h5"),
    (("prepare", *H2), "x.h5"),
    (("energy", "--from", "h2.prepared.h5"), "x.h5"),
    (
        (
            "interaction",
            "h2.xyz",
            "--basis",
            "6-31g",
            "--fragments",
            "1,2",
            "--multiplicities",
            "2,2",
        ),
        "x.h5",
    ),
    (("cbs", "h2.xyz", "--basis", "cc-pv[dt]z"), "x.h5"),
    *((("scan", *H2, "--bond", "1,2", "0.7:0.8:2"), name) for name in ("x.h5", "x.csv", "x.svg")),
    (("export", "{water}", "--to", "xyz"), "x.h5"),
    (("report", "{water}"), "x.html"),
    (("derive", "{water}", "--frozen-core", "1"), "x.h5"),
]


def occupied(call, folder, water, command, name):
    """Run a command that writes x.h5 although the file `name` exists; nothing may change."""
    if command[0] == "energy":
        succeed(call("prepare", *H2))
    (folder / name).write_text("precious")
    before = listing(folder)
    output = "x.html" if command[0] == "report" else "x.h5"
    done = call(*(word.format(water=water.path) for word in command), "--output", output)
    assert listing(folder) == before and done.out == ""
    return done


@pytest.mark.parametrize(("command", "name", "fault"), FAULTS)
def test_a_file_that_is_there_hides_no_other_fault(call, folder, water, command, name, fault):
    done = occupied(call, folder, water, command, name)
    assert done.code in (3, 7) and fault in done.message and "exists" not in done.message


@pytest.mark.parametrize(("command", "name"), SOUND)
def test_a_file_that_is_there_is_refused_before_anything_is_computed(
    call, folder, water, command, name
):
    done = occupied(call, folder, water, command, name)
    assert done.code == 3 and f"{name} already exists" in done.message and " SCF " not in done.err


def test_a_molecule_has_no_units(tmp_path):
    hydrogen = Molecule(("H", "H"), np.array([[0.0, 0.0, 0.0], [0.0, 0.0, 1.4]]))
    for units in ("angstrom", "bohr"):
        with pytest.raises(
            InputError,
            match=f"units='{units}' belongs to a file: a dfmp2.Molecule has its .* in bohr",
        ):
            dfmp2.run(hydrogen, "sto-3g", units=units)
        with pytest.raises(InputError, match="belongs to a file"):
            dfmp2.prepare(hydrogen, "sto-3g", tmp_path / "p.h5", units=units)
    (tmp_path / "h2.xyz").write_text("2\n\nH 0 0 0\nH 0 0 1.4\n")
    assert dfmp2.run(tmp_path / "h2.xyz", "sto-3g", units="bohr").molecule == hydrogen


def geometry(text):
    """Symbols, coordinates as written, and ghosts of an xyz file's text."""
    rows = [line.split() for line in text.splitlines()[2:]]
    symbols = tuple(row[0].lstrip("@") for row in rows)
    return (
        symbols,
        np.array([[float(x) for x in row[1:]] for row in rows]),
        tuple("@" in row[0] for row in rows),
    )


INPUTS = sorted((Path(__file__).parent.parent / "inputs").glob("*.xyz"))


@pytest.mark.parametrize("file", INPUTS, ids=lambda file: file.stem)
def test_the_wrong_unit_is_noticed_either_way(file):
    symbols, points, ghost = geometry(file.read_text())
    assert unit_doubt(symbols, points, ghost) == ""
    assert "in bohr, give --units bohr" in unit_doubt(symbols, points / 0.529177, ghost)
    assert "in angstrom, leave out --units bohr" in unit_doubt(symbols, points * 0.529177, ghost)
    assert "is in pm, divide its coordinates by 100" in unit_doubt(symbols, points * 100, ghost)


FAMILIAR = {
    "atom": "1\n\nHe 0 0 0",
    "neon dimer": "2\n\nNe 0 0 0\nNe 0 0 3.1",
    "ions": "2\n\nNa 0 0 0\nCl 0 0 2.36",
    "ion beside water": "4\n\nCl 0 0 3.2\nO 0 0 0\nH 0 0 0.96\nH 0.93 0 -0.24",
    "atoms far apart": MOLECULES["h2-far"],
    "one bond stretched": "3\n\nO 0 0 0\nH 0 0 0.96\nH 0 0 -2.5",
    "ghosts": MOLECULES["crowd"],
    "N2": "2\n\nN 0 0 0\nN 0 0 1.098",
    "F2": "2\n\nF 0 0 0\nF 0 0 1.412",
    "Cs2": "2\n\nCs 0 0 0\nCs 0 0 4.65",
}


@pytest.mark.parametrize("name", FAMILIAR)
def test_geometries_that_are_meant_are_no_doubt(name):
    assert unit_doubt(*geometry(FAMILIAR[name])) == ""


def test_a_doubt_is_a_warning_that_is_stored(call, folder):
    """Once for the points of a scan, however long its bonds become."""
    done = succeed(call("run", "h2o.xyz", *STO3G, "--units", "bohr", "--allow-small-gap"))
    said = "atoms 1 O and 2 H are 0.507 angstrom apart, 0.52 times the sum of their covalent radii"
    assert said in done.err and said in " ".join(
        dfmp2.read(folder / "h2o.dfmp2.h5").diagnostics.warnings
    )
    assert "covalent radii" in succeed(call("plan", "h2o.xyz", *STO3G, "--units", "bohr")).err
    done = succeed(call("scan", "h2.xyz", *STO3G, "--bond", "1,2", "1.2:1.4:3"))
    assert done.err.count("give --units bohr") == 1


def test_a_study_goes_on_with_the_threads_and_the_backend_of_its_runs(call, folder):
    scan = ("scan", "h2.xyz", "--basis", "sto-3g", "--output", "x.h5", "--bond", "1,2")
    succeed(call(*scan, "0.7:0.8:2", "--threads", "1"))
    before = listing(folder)
    more = (*scan, "0.7:0.9:3", "--resume")
    done = call(*more, "--threads", "2")
    assert done.code == 3 and "(different threads: 1 there, 2 here)" in done.message
    done = call(*more, "--threads", "1", "--backend", "cpu")
    assert done.code == 3 and "(different backend)" in done.message and listing(folder) == before
    assert "nothing" not in succeed(call(*scan, "0.7:0.8:2", "--threads", "2", "--resume")).err


def test_a_plan_speaks_of_trainium_where_there_is_one(call, folder):
    (folder / "far.xyz").write_text(MOLECULES["h2"])
    here = succeed(call("plan", "far.xyz", *STO3G)).out
    assert not [word for word in ("trn", "NEFF", ".py", "device /", "made on") if word in here]
    assert succeed(call("plan", "far.xyz", *STO3G, "--json")).json["trainium"] is None
    there = succeed(call("plan", "far.xyz", *STO3G, "--backend", "nki-interpreter")).out
    assert "trn1, lane nki" in there and "B is made on the host" in there
    absent = call("plan", "far.xyz", *STO3G, "--backend", "nki", "--json")
    facts = succeed(absent).json
    assert facts["backend"] == "nki" and facts["reason"].startswith(
        "not on this host: predicted below ("
    )
    assert "nki is not installed" in facts["reason"] and facts["trainium"]["trn1"]["lane"] == "nki"
    refused = call("plan", "far.xyz", *STO3G, "--backend", "nki", "--precision", "fp64")
    assert (
        refused.code == 6
        and "--backend nki cannot do --precision fp64: it offers mixed" in refused.message
    )
    assert call("plan", "far.xyz", *STO3G, "--backend", "cuda").code == 6


def test_pytorch_is_a_word_for_torch_wherever_a_backend_is_named(call, folder):
    (folder / "far.xyz").write_text(MOLECULES["h2"])
    for arguments in (("--backend", "pytorch"), ()):
        assert (
            succeed(call("run", "far.xyz", *STO3G, *arguments, "--json", "--overwrite")).json[
                "backend"
            ]
            == "torch"
        )
        os.environ["DFMP2_BACKEND"] = "pytorch"  # `call` puts it back
    assert Options("sto-3g", backend="pytorch").backend == "torch"
    assert (
        "12 of 12 blocks agree"
        in succeed(call("kernels", "check", "--lane", "pytorch", "--threads", "1")).out
    )
