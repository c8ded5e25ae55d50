"""Manifests: their meaning, and reports of all errors before anything runs."""

from __future__ import annotations

import os
import shutil
import tomllib
from contextlib import closing, suppress
from pathlib import Path

import pytest
from hypothesis import given, settings
from hypothesis.strategies import lists, sampled_from, tuples

import dfmp2
from dfmp2.errors import InputError
from dfmp2.execution import collect, items
from dfmp2.execution.items import _function_of, read_input
from dfmp2.execution.manifest import (
    LEFT_MANIFEST,
    make_batch,
    manifest_lines,
    manifest_of,
    read_batch,
    read_manifest,
    slug,
)
from dfmp2.execution.pool import WorkerShare
from dfmp2.mp2.identity import FREE
from dfmp2.options import Options
from dfmp2.output import hdf5
from dfmp2.output.batch_index import IndexWriter
from tests.conftest import MOLECULES, listing, succeed
from tests.recorded import recorded_error, recorded_failure
from tests.test_cli_options import GIVEN

HEAD = 'basis = "sto-3g"\noutput = "out"\n'
ITEM = '[[item]]\nmolecule = "h2o.xyz"\n'

WRONG = {  # manifest -> name of the test
    "basis = ": "not TOML",
    HEAD: "no [[item]]",
    HEAD + "item = 3": "no [[item]]",
    'basis = "sto-3g"\n' + ITEM: "no output",
    'output = "out"\n' + ITEM: "item 1 (h2o.xyz): no basis",
    HEAD
    + "[[item]]\nmolecul = 'h2o.xyz'": "item 1: unknown option 'molecul': did you mean molecule?",
    HEAD + "[[item]]\nname = 'a'": 'item 1: no molecule: expected molecule = "FILE"',
    HEAD + "frozen_cor = 1\n" + ITEM: "unknown option 'frozen_cor': did you mean frozen_core?",
    HEAD
    + "xyzzy = 1\n"
    + ITEM: "unknown option 'xyzzy': the options are allow_poor_fit, allow_small_gap, ",
    HEAD + ITEM + "bassis = 'x'": "item 1: unknown option 'bassis': did you mean basis?",
    HEAD + "scf-conv-tol = 1e-9\nscf_conv_tol = 1e-8\n" + ITEM: "given twice",
    HEAD + "scf_conv_tol = 1e-9\nscf-conv-tol = 1e-8\n" + ITEM: "given twice",
    HEAD + ITEM + "charge = 1.5": "charge = 1.5: expected a whole number",
    HEAD + ITEM + "charge = true": "charge = true: expected a whole number",
    HEAD + ITEM + "multiplicity = 0": "multiplicity = 0",
    HEAD + ITEM + "units = 'feet'": 'units = "feet"',
    HEAD + ITEM + "basis = 3": "basis = 3: expected text",
    HEAD + ITEM + "scf = 'rks'": 'scf = "rks": expected one of df, conventional',
    HEAD + ITEM + "check = 1": "check = 1: expected true or false",
    HEAD + ITEM + "task = "
    "'hessian'": 'task = "hessian": expected one of energy, properties, gradient, optimize',
    HEAD + ITEM + "scf_from = 3": "no usable path",
    HEAD + ITEM + "frozen_core = 'most'": 'frozen_core = "most"',
    HEAD + ITEM + "backend = 'tpu'": 'backend = "tpu": expected one of auto, cpu',
    HEAD + ITEM + "tolerance = -1": "tolerance = -1.0",
    HEAD + ITEM + "frame = 0": "frame = 0: expected the number of a frame",
    HEAD + ITEM + "smiles = 3": "smiles = 3: expected text in quotes",
    HEAD + "threads = 'two'\n" + ITEM: 'threads = "two"',
    HEAD + ITEM + "memory = '1GB'": "memory belongs to the batch as a whole",
    HEAD + ITEM + "keep = 'some'": 'keep = "some": expected one of energies, properties, all',
    HEAD + ITEM + "name = '...'": "name = '...': expected text with letters",
    HEAD + ITEM + "name = 3": "name = 3",
    HEAD + "[[item]]\nmolecule = '../h2o.xyz'": "'../h2o.xyz' is not below",
    HEAD + "[[item]]\nmolecule = '/etc/passwd'": "'/etc/passwd' is not below",
    HEAD + "[[item]]\nmolecule = 'out.xyz'": "'out.xyz' is not below",
    HEAD + '[[item]]\nmolecule = "a\\u0000b"': "no usable path",
    HEAD + "scf-from = '../x.h5'\n" + ITEM: "scf_from: '../x.h5' is not below",
    HEAD.replace('"out"', '"../out"') + ITEM: "output: '../out' is not below",
    HEAD.replace('"out"', '"h2o.xyz"') + ITEM: "is a file",
    HEAD + "point_charge_units = 'bohr'\n" + ITEM: "belongs to point_charges",
}


@pytest.mark.parametrize("text", WRONG, ids=lambda text: WRONG[text][:40])
def test_a_wrong_manifest_names_the_place_and_nothing_happens(call, folder, tmp_path_factory, text):
    elsewhere = tmp_path_factory.mktemp("elsewhere") / "secret.xyz"
    elsewhere.write_text("2\n\nH 0 0 0\nH 0 0 0.74\n")
    (folder / "out.xyz").symlink_to(elsewhere)
    (folder / "m.toml").write_text(text)
    before = listing(folder)
    done = call("batch", "run", "m.toml")
    recorded_failure(done, 3)
    assert done.out == ""
    assert listing(folder) == before


def test_options_of_an_item_win_and_paths_are_the_manifests(folder):
    (folder / "sub").mkdir()
    (folder / "sub" / "link.xyz").symlink_to("w.xyz")
    (folder / "sub" / "m.toml").write_text(
        'basis = "sto-3g"\nfrozen-core = 1\nos_scale = 2\noutput = "res"\nscratch = "tmp"\n[[item]]\nmolecule = '
        '"w.xyz"\n[[item]]\nmolecule = "link.xyz"\nname = "水/b wasser"\nbasis = '
        '"cc-pvdz"\nfrozen_core = "none"\ncharge = -2\n'
    )
    batch = read_manifest(folder / "sub" / "m.toml")
    found = [
        (
            item.name,
            item.path,
            item.options.basis,
            item.options.frozen_core,
            item.given.get("charge"),
        )
        for item in batch.items
    ]
    path = folder / "sub" / "w.xyz"
    second = (slug("水/b wasser"), path, "cc-pvdz", "none", -2)
    assert found == [("w", path, "sto-3g", "1", None), second]
    scratch, factor = batch.items[0].given["scratch"], repr(batch.items[0].options.os_scale)
    assert (scratch, factor) == (str(folder / "sub" / "tmp"), "2.0")
    assert batch.output == folder / "sub" / "res" and second[0] == "水_b_wasser"
    other = read_manifest(folder / "sub" / "m.toml", root=folder, output=Path("there"))
    assert other.items[0].path == folder / "w.xyz" and other.output == Path("there")


def test_files_on_the_command_line(folder, call):
    batch = make_batch(["h2o.xyz", "nh2.xyz"], {"basis": "sto-3g"}, Path("out"))
    assert [item.name for item in batch.items] == ["h2o", "nh2"]
    values = {"smiles": 'C"\x7f\\é\n', "charge": -1, "check": True, "tolerance": 1e-9}
    assert tomllib.loads("\n".join(manifest_lines(values))) == values
    (folder / "-.xyz").write_text((folder / "h2o.xyz").read_text())
    with recorded_error(InputError):
        make_batch(["h2o.xyz", "-.xyz"], {"basis": "sto-3g"}, Path("out"))
    (folder / "\udcff.xyz").write_text((folder / "h2o.xyz").read_text())
    refused = call("batch", "run", "\udcff.xyz", "--basis", "sto-3g", "--output", "out")
    recorded_failure(refused, 3)
    assert not (folder / "out").exists()


def test_every_file_of_a_batch_is_below_its_root(folder, monkeypatch):
    """On the command line and in a manifest, and whatever the working directory is, in the manifest
    that is left with the results. On the command line ~ is the home of the user."""
    monkeypatch.chdir(folder)
    root = folder / "sub" / "data"
    root.mkdir(parents=True)
    for name in ("h2.xyz", "mine.gbs", "q.txt", "start.h5"):
        (root / name).write_text("not read")
    files = {"basis": "mine.gbs", "point_charges": "q.txt", "scf_from": "start.h5"}
    given = {**files, "auxbasis": "def2-svp-ri", "point_charge_units": "bohr", "charge": 2}
    table = [*manifest_lines({**given, "output": "out"}), "[[item]]", 'molecule = "h2.xyz"']
    (root / "m.toml").write_text("\n".join(table))
    (folder / "m.toml").write_text("\n".join(table))
    monkeypatch.setenv("HOME", str(root))
    of_files = make_batch(["h2.xyz"], {**given, "basis": "~/mine.gbs"}, folder / "out", "sub/data")
    (folder / "out").mkdir()
    (folder / "out" / LEFT_MANIFEST).write_bytes(manifest_of(of_files))
    for batch in (
        of_files,
        read_manifest(root / "m.toml", output=folder / "out"),
        read_manifest(folder / "m.toml", root=root, output=folder / "out"),
        read_batch(folder / "out"),
    ):
        (item,) = batch.items
        assert (item.name, item.path) == ("h2", root / "h2.xyz")
        assert item.target == folder / "out" / "h2.h5"
        assert item.options.basis.partition("#")[0] == item.given["basis"] == str(root / "mine.gbs")
        assert item.options.scf_from == item.given["scf_from"] == str(root / "start.h5")
        assert item.given["point_charges"] == str(root / "q.txt")
        others = {name: value for name, value in item.given.items() if name not in files}
        assert others == {name: value for name, value in given.items() if name not in files}


def test_a_folder_stands_for_its_batch(folder, call, monkeypatch):
    """`batch run FILE...` leaves a complete manifest, so status accepts the folder from anywhere;
    a manifest of the user's own stays, and stands for its batch."""
    (folder / "sub").mkdir()
    run = ("batch", "run", "h2o.xyz", "nh2.xyz", "--basis", "sto-3g", "--output", "ou t")
    monkeypatch.setattr("sys.argv", ["dfmp2", *run, *["h2o.xyz"] * 600])
    given = ("--frozen-core", "auto", "--keep", "energies", "--scratch", ".")
    succeed(call(*run, *given))
    shown = succeed(call("batch", "status", str(folder / "ou t")))
    assert "2 complete" in shown.out
    batch = read_batch(folder / "ou t")
    assert [item.name for item in batch.items] == ["h2o", "nh2"]
    assert batch.items[0].options.frozen_core == "auto" and batch.items[1].keep == "energies"
    assert batch.items[0].options.scratch == str(folder)
    # Each item stores the command, which may name thousands of files.
    command, _, item = dfmp2.read(batch.items[1].target).provenance.command.partition("  # ")
    assert (len(command), item) == (4000, "item nh2")
    again = succeed(call(*run, *given))
    assert "2 of 2 items complete (2 of them before)" in again.out
    recorded_failure(call("batch", "status", "sub"), 3)
    (folder / "sub" / LEFT_MANIFEST).write_text(
        HEAD + ITEM.replace("h2o.xyz", str(folder / "sub" / "h2o.xyz"))
    )
    recorded_failure(call(*run[:-1], "sub"), 3)
    assert read_batch("sub").items[0].target == folder / "sub" / "out" / "h2o.h5"
    monkeypatch.setattr("os.geteuid", lambda: -1)
    recorded_failure(call("batch", "status", "ou t"), 3)


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
@settings(max_examples=300, deadline=None)
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


def test_the_function_of_a_task():
    """That of an optimisation comes from the room above."""

    def optimize() -> None: ...

    named = {"energy": "mp2_energy", "properties": "certified_properties"}
    named |= {"gradient": "certified_gradient", "optimize": "optimize"}
    for task, name in named.items():
        assert _function_of(task, optimize).__name__ == name
    with recorded_error(ValueError):
        _function_of("optimize", None)
