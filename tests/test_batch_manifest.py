"""Which results count after which change, and hostile manifests. What a manifest means and what is
refused are the sessions `batch-manifests` and `batch-manifest-refused`."""

from __future__ import annotations

import os
import shutil
from contextlib import closing, suppress
from pathlib import Path

import pytest
from hypothesis import given, settings
from hypothesis.strategies import lists, sampled_from, tuples

import dfmp2
from dfmp2.errors import InputError
from dfmp2.execution import collect, items
from dfmp2.execution.items import read_input
from dfmp2.execution.manifest import (
    make_batch,
    manifest_lines,
    read_manifest,
)
from dfmp2.execution.pool import WorkerShare
from dfmp2.mp2.identity import FREE
from dfmp2.options import Options
from dfmp2.output import hdf5
from dfmp2.output.batch_index import IndexWriter
from tests.conftest import MOLECULES
from tests.test_cli_options import GIVEN

HEAD = 'basis = "sto-3g"\noutput = "out"\n'
ITEM = '[[item]]\nmolecule = "h2o.xyz"\n'

ALONE = WorkerShare(threads=1, memory=10**10)


def test_start_orbitals_count_by_their_content(folder, monkeypatch):
    """A result counts as long as they do not change, and neither the index nor a missing file
    hides that."""
    monkeypatch.chdir(folder)
    (folder / "o").mkdir()
    for name, spacing in (("a", "0.7"), ("b", "0.8")):
        hydrogen = dfmp2.Molecule.from_string(MOLECULES["h2"].replace("0.74", spacing))
        dfmp2.write(dfmp2.run(hydrogen, "sto-3g", threads=1), folder / f"{name}.h5")
    (item,) = make_batch(["h2.xyz"], {"basis": "sto-3g", "scf_from": "a.h5"}, Path("o")).items
    row = items.compute_item(read_input(item), None, None, "", ALONE)
    assert (row.status, row.asked) == ("complete", "")
    assert items.look_at(read_input(item)).status == "complete"
    (folder / "b.h5").rename(folder / "a.h5")
    assert "start orbitals" in items.look_at(read_input(item)).remark
    (folder / "a.h5").unlink()
    assert isinstance(read_input(item).molecule, InputError)


HYDROGEN = """****
H 0
S 2 1.0
5.4471780 0.1562850
0.8245472 0.9046910
S 1 1.0
0.1831916 1.0
****
"""


def test_an_item_is_complete_while_nothing_that_it_depends_on_changes(folder, monkeypatch):
    """Neither the index nor what was collected is trusted after a change of files, options, task or
    version."""
    files = {name: folder / name for name in ("m.toml", "h2.xyz", "mine.gbs", "q.txt")}
    files["mine.gbs"].write_text(HYDROGEN)
    files["q.txt"].write_text("0 0 9 0.5\n")
    common = {"auxbasis": "def2-svp-ri", "allow_poor_fit": True, "output": "out", "threads": 1}

    def batch():
        return read_manifest(files["m.toml"])

    for values, of_files in (
        ({"basis": "mine.gbs"}, {"mine.gbs": HYDROGEN.replace("0.1831916", "0.2831916")}),
        ({"basis": "sto-3g", "point_charges": "q.txt"}, {"q.txt": "0 0 8 0.5\n"}),
        ({"basis": "sto-3g"}, {}),
    ):

        def written(*, values=values, **changes):
            item = ["[[item]]", 'molecule = "h2.xyz"']
            return "\n".join([*manifest_lines(common), *item, *manifest_lines(values | changes)])

        shutil.rmtree(folder / "out", ignore_errors=True)
        (folder / "out").mkdir()
        files["m.toml"].write_text(written())
        row = items.compute_item(read_input(batch().items[0]), None, None, "", ALONE)
        with closing(IndexWriter(folder / "out", None)) as index:
            index.append(items.index_rows([row]))
        (before,) = collect.collect(batch()).records
        changed = {("h2.xyz", files["h2.xyz"].read_text().replace("0.74", "0.75"))}
        changed |= of_files.items()
        if "point_charges" in values:
            changed.add(("m.toml", written(point_charge_units="bohr")))
        elif not of_files:
            others = {"task": "gradient", "multiplicity": 3, "units": "bohr"}
            others |= {name: value for name, (_, value) in GIVEN.items() if name not in FREE}
            for name, value in others.items():
                with suppress(InputError):  # one that needs another option
                    Options(**{"basis": "sto-3g", name: value} if name in GIVEN else values)
                    changed.add(("m.toml", written(**{name: value})))
            assert len(changed) > 25
        for name, text in changed:
            kept = files[name].read_text()
            times = files[name].stat()
            files[name].write_text(text)
            assert [row.status for row in items.look_items(batch())] == ["pending"], text
            if name != "m.toml":
                with pytest.raises(InputError, match="no complete result"):
                    collect.collect(batch())
            files[name].write_text(kept)
            os.utime(files[name], ns=(times.st_atime_ns, times.st_mtime_ns))
            assert [row.status for row in items.look_items(batch())] == ["complete"]
        files["m.toml"].write_text(written(allow_small_gap=True))
        assert collect.collect(batch()).records == [before]
    reads, read, inputs = [], hdf5.read, []
    monkeypatch.setattr(hdf5, "read", lambda path: reads.append(path) or read(path))
    monkeypatch.setattr(items, "read_input", lambda one: inputs.append(one) or read_input(one))
    collect.collect(batch())
    items.look_items(batch())
    assert reads == inputs == []
    monkeypatch.setattr(collect, "version", lambda: "another")
    collect.collect(batch())
    assert len(reads) == 1
    monkeypatch.setattr(items, "version", lambda: "another")
    items.look_items(batch())
    assert len(inputs) == 1


def test_a_result_belongs_to_the_molecule_that_was_read(folder):
    """Even if the file changes before it is computed; the result stays while the file is
    missing."""
    (folder / "out").mkdir()
    batch = make_batch(["h2.xyz"], {"basis": "sto-3g"}, folder / "out", folder)
    given = read_input(batch.items[0])
    first = given.item.path.read_text()
    given.item.path.write_text(first.replace("0.74", "0.75"))
    row = items.compute_item(given, None, None, "", ALONE)
    with closing(IndexWriter(folder / "out", None)) as index:
        index.append(items.index_rows([row]))
    assert [row.status for row in items.look_items(batch)] == ["pending"]
    given.item.path.unlink()
    gone = items.compute_item(read_input(given.item), None, None, "", ALONE)
    assert (gone.status, gone.exit_code) == ("failed", 3)
    given.item.path.write_text(first)
    (row,) = items.look([read_input(given.item)], items.read_index(batch))
    assert row.status == "complete" and items.unchanged(given.item, row) == row


KEYS = [
    "basis",
    "output",
    "charge",
    "os-scale",
    "frozen_core",
    "item",
    "molecule",
    "name",
    "scf_from",
    "[[item]]",
    "é",
]
VALUES = [
    '"cc-pvdz"',
    '"../x"',
    '"h2o.xyz"',
    "1",
    "1" * 5000,
    "1e400",
    "nan",
    "[[",
    "true",
    "1979-05-27",
    "{a=1}",
    '""',
]


@given(lines=lists(tuples(sampled_from(KEYS), sampled_from(VALUES)), max_size=8))
@settings(max_examples=100, deadline=None)
def test_any_manifest_is_read_or_refused(tmp_path_factory, lines):
    """Only InputError is raised, and nothing outside the folder is read."""
    folder = tmp_path_factory.getbasetemp()
    text = (
        HEAD
        + ITEM
        + "".join(f"{key}\n" if key[0] == "[" else f"{key} = {value}\n" for key, value in lines)
    )
    (folder / "any.toml").write_text(text)
    try:
        batch = read_manifest(folder / "any.toml")
    except InputError:
        return
    assert all(item.path.is_relative_to(folder.resolve()) for item in batch.items)
    assert batch.output.is_relative_to(folder.resolve())
