"""Result files: old and new files are read; changed, damaged or planted content is quickly
refused."""

from __future__ import annotations

import json
import lzma
import random
import shutil
import time
from collections.abc import Callable
from contextlib import suppress
from pathlib import Path
from typing import Any

import h5py
import numpy as np
import pytest
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st

from dfmp2.errors import InputError, ResultFileError
from dfmp2.molecule.basis import ElementBasis, nested_tuples
from dfmp2.output import hdf5
from dfmp2.output.hdf5 import read_start_orbitals
from dfmp2.output.hdf5_datasets import hash_of, read_contents
from dfmp2.output.json import to_json
from dfmp2.output.study import StudyWriter, read_study
from dfmp2.output.text import pair_table, report
from tests.conftest import WRITTEN, Runner, Stored, listing, succeed
from tests.recorded import recorded_error

STO3G = ("--basis", "sto-3g")
CODE = "__import__('os').system('touch EXECUTED')"

# --- files of earlier versions --------------------------------------------------------------------

ADDED = (
    "options/certify_fit",
    "options/dispersion",
    "options/solvent_model",
    "timings/fitting_certificate",
    "predicted/fitting_certificate",
    "certificate/seed",
    "options/method",
    "options/kappa",
    "options/laplace",
    "options/solvent",
    "options/solvent_model",
    "energies/total_energy",
    "energies/correlation_energy",
    "energies/same_spin_correlation_energy",
    "energies/opposite_spin_correlation_energy",
    "energies/mp2_singles_energy",
    "options/properties",
    "options/polarizability",
    "timings/gradient",
    "predicted/gradient",
    "stability/internal_eigenvalue",
    "stability/internal_gain",
    "stability/external_eigenvalue",
    "stability/external_gain",
    "reference/interatomic_fitting_error",
    "reference/one_atom_fitting_errors",
    "rotation_left/gradient",
    "rotation_left/rotation",
    "rotation_left/spin_square",
    "reference/dipole",
    "reference/operations",
)
STUDIES = ("cbs", "scan")  # an interaction energy has the same layout
NO_RESULTS = ("collected", "prepared", "validation", "interaction")
OPTIONS = ("memory", "os_scale")  # of the fixture `radical`
OLD = sorted({path.name.removesuffix(".h5.xz") for path in WRITTEN.glob("*.h5.xz")} - {*NO_RESULTS})


def contents(path: Path) -> dict[str, Any]:
    """Every dataset and attribute of a file, but descriptions: type, shape and bytes or text."""
    found: dict[str, Any] = {}

    def visit(name: str, item: Any) -> None:
        for key in set(item.attrs) - {"description"}:
            kind = item.attrs.get_id(key).dtype
            found[f"{name}@{key}"] = (
                kind.str,
                h5py.check_string_dtype(kind),
                repr(item.attrs[key]),
            )
        if isinstance(item, h5py.Dataset):
            value = item[()]
            text: Any = repr(value)
            if isinstance(value, np.ndarray):
                text = value.tobytes() if value.dtype.kind in "fiub" else repr(value.tolist())
            found[name] = (item.dtype.str, h5py.check_string_dtype(item.dtype), item.shape, text)

    with h5py.File(path) as handle:
        visit("", handle)
        handle.visititems(visit)
    return found


def unpacked(name: str, folder: Path) -> Path:
    (folder / f"{name}.h5").write_bytes(lzma.decompress((WRITTEN / f"{name}.h5.xz").read_bytes()))
    return folder / f"{name}.h5"


@pytest.mark.parametrize("name", OLD)
def test_files_of_earlier_versions_are_written_as_they_were(name: str, tmp_path: Path) -> None:
    """To the last dataset, type and unit; fields may be added, but changing one raises the layout
    version."""
    old, new = unpacked(name, tmp_path), tmp_path / "new.h5"
    if name in STUDIES:
        study = read_study(old)
        writer = StudyWriter(new, overwrite=False)
        for run in study.runs:
            writer.add(run, study.runs[run])
        writer.write(study)
        assert read_study(new)
    else:
        hdf5.write(hdf5.read(old), new)
        assert hdf5.read(new)
    here = {"HDF5_Version", "h5py_version", "content_sha256"}
    before, after = contents(old), contents(new)
    changed = {key for key in before | after if before.get(key) != after.get(key)}
    assert {
        key for key in changed if key.rpartition("@")[2] not in here and not is_added(key)
    } == set()


def is_added(key: str) -> bool:
    """Whether a dataset, or one of its attributes, came after version 0.1.0."""
    return key.partition("@")[0].endswith(ADDED)


def test_a_new_result_has_the_layout_of_an_old_one(
    water: Stored, radical: Stored, tmp_path: Path
) -> None:
    """Names and types of datasets and attributes, except those requested only in the new run."""
    for name, path, asked in (
        ("checked", water.path, ()),
        (
            "uhf",
            radical.path,
            (
                "dfmp2/check",
                "dfmp2/energies/scaled",
                *map("dfmp2/input/options/{}".format, OPTIONS),
            ),
        ),
    ):
        before, after = contents(unpacked(name, tmp_path)), contents(path)
        changed = {
            key for key in before | after if before.get(key, "")[:2] != after.get(key, "")[:2]
        }
        assert {key for key in changed if not key.startswith(asked) and not is_added(key)} == set()


# --- the hash -------------------------------------------------------------------------------------

Edit = Callable[[Any], Any]


def put(name: str, value: Any, **how: Any) -> Edit:
    """Replace a dataset."""

    def edit(handle: Any) -> None:
        if name in handle:
            del handle[name]
        handle.create_dataset(name, data=value, **how)

    return edit


def replace(name: str, change: Callable[[Any], Any]) -> Edit:
    """Replace a dataset by the result of `change`."""
    return lambda handle: put(name, change(handle[name][()]))(handle)


CHANGED: dict[str, Edit] = {
    "a bit": lambda h: h["scf/mo_coeff"].__setitem__(
        (0, 0), np.nextafter(h["scf/mo_coeff"][0, 0], 2)
    ),
    "a text": put("dfmp2/run/backend_reason", "another"),
    "a name": lambda h: h.move("dfmp2/timings/fit", "dfmp2/timings/fitted"),
    "a type": replace("dfmp2/timings/fit", lambda x: np.asarray(x).view(np.int64)),
    "a shape": replace("scf/mo_coeff", np.ravel),
    "one more": put("dfmp2/timings/more", 1.0),
    "one less": lambda h: h.__delitem__("dfmp2/energies/mp2_total_energy"),
}


@pytest.mark.parametrize("edit", CHANGED.values(), ids=CHANGED)
def test_the_hash_notices_every_change(edit: Edit, doctored: Callable[[Edit], str]) -> None:
    path = doctored(edit)
    with recorded_error(ResultFileError):
        hdf5.read_verified(path)
    with recorded_error(ResultFileError):
        hdf5.read(path)


# --- planted content ------------------------------------------------------------------------------


def attribute(name: str, value: Any) -> Edit:
    return lambda handle: handle.attrs.__setitem__(name, value)


def element(**changed: Any) -> Edit:
    """Give oxygen another basis, with the hash that belongs to it."""

    def edit(handle: Any) -> None:
        where = "dfmp2/bases/orbital"
        elements = json.loads(handle[f"{where}/elements"].asstr()[()])
        elements["O"].update(changed)
        put(f"{where}/elements", json.dumps(elements))(handle)
        hashes = [
            f"{s} "
            f"{ElementBasis(s, '', '', nested_tuples(e['shells']), nested_tuples(e['ecp'])).sha256}"
            for s, e in elements.items()
        ]
        put(f"{where}/sha256", hashes, dtype=h5py.string_dtype())(handle)

    return edit


def virtual(handle: Any) -> None:
    layout = h5py.VirtualLayout((7,), "f8")
    layout[:] = h5py.VirtualSource("secret.h5", "scf/mo_energy", (7,))
    handle.create_virtual_dataset("dfmp2/run/x", layout)


def looped(handle: Any) -> None:
    handle["dfmp2/run/x"] = handle["dfmp2"]


X = "dfmp2/run/x"

# Refused by every reader, whatever it needs.
FOREIGN: dict[str, Edit] = {
    "external-link": lambda h: h.__setitem__(X, h5py.ExternalLink("secret.h5", "/mol")),
    "soft-link": lambda h: h.__setitem__(X, h5py.SoftLink("/mol")),
    "external-storage": lambda h: h.create_dataset(
        X, (10,), "u1", external=[("/etc/passwd", 0, 10)]
    ),
    "virtual-dataset": virtual,
    "opaque": put(X, np.void(b"cos\nsystem\n(S'touch EXECUTED'\ntR.")),
    "compound": put(X, np.zeros(2, dtype=[("a", "f8")])),
    "reference": lambda h: h.create_dataset(X, data=h["mol"].ref, dtype=h5py.ref_dtype),
    "ragged": lambda h: h.create_dataset(X, (1,), dtype=h5py.vlen_dtype("f8")),
    "named-type": lambda h: h.__setitem__(X, np.dtype("f8")),
    "huge-claim": lambda h: h.create_dataset(X, (10**12,), "f8", chunks=(1000,)),
    "huge-text-claim": lambda h: h.create_dataset(X, (10**9,), h5py.string_dtype(), chunks=(1000,)),
    "zip-bomb": put(X, np.zeros(10**6), compression="gzip"),
    "null-space": put(X, h5py.Empty("f8")),
    "deep": lambda h: h.create_group("/".join("a" * 30)),
    "loop": looped,
    "many": lambda h: [h.create_group(f"g{number}") for number in range(10_001)],
}

# Not a result, or a damaged one; `--scf-from` needs less of a file and may accept it.
DAMAGED: dict[str, Edit] = {
    "version-99": attribute("dfmp2_schema_version", 99),
    "version-text": attribute("dfmp2_schema_version", "1"),
    "version-list": attribute("dfmp2_schema_version", [1, 1]),
    "version-missing": lambda h: h.attrs.__delitem__("dfmp2_schema_version"),
    "status-running": attribute("status", np.bytes_("running")),
    "status-of-any-length": attribute("status", "complete"),
    "status-missing": lambda h: h.attrs.__delitem__("status"),
    "no-pairs": lambda h: h.__delitem__("dfmp2/pairs"),
    "no-orbitals": lambda h: h.__delitem__("scf/mo_coeff"),
    "group-for-dataset": lambda h: (h.__delitem__("mol"), h.create_group("mol")),
    "dataset-for-group": lambda h: (h.__delitem__("dfmp2"), h.__setitem__("dfmp2", 1.0)),
    "dataset-for-inner-group": lambda h: (
        h.__delitem__("dfmp2/run"),
        h.__setitem__("dfmp2/run", 1.0),
    ),
    "infinite-charge": put("dfmp2/input/charge", np.inf),
    "many-charges": put("dfmp2/input/charge", np.arange(3)),
    "text-for-number": put("dfmp2/sizes/nao", "seven"),
    "negative-size": put("dfmp2/sizes/nao", -7),
    "huge-size": put("dfmp2/sizes/nmo", 2**62),
    "frozen-core-absurd": put("dfmp2/sizes/frozen_core", 1000),
    "frozen-core-negative": put("dfmp2/sizes/frozen_core", -1),
    "frozen-virtual-absurd": put("dfmp2/sizes/frozen_virtual", 1000),
    "more-electrons-than-orbitals": put("dfmp2/input/charge", -10),
    "odd-electrons": put("dfmp2/input/charge", 1),
    "unknown-element": put("dfmp2/input/symbols", ["Qq", "H", "H"], dtype=h5py.string_dtype()),
    "nan-pairs": put("dfmp2/pairs/same_spin", np.full((5, 5), np.nan)),
    "infinite-pairs": put("dfmp2/pairs/same_spin", np.array([[np.inf, -np.inf] * 2 + [0.0]] * 5)),
    "wrong-shape": put("dfmp2/pairs/same_spin", np.zeros((4, 4))),
    "wrong-type": put("dfmp2/pairs/same_spin", np.zeros((5, 5), "f4")),
    "unknown-reference": put("dfmp2/reference/kind", "rohf"),
    "basis-without-hash": put(
        "dfmp2/bases/orbital/sha256", ["O 0", "H 0"], dtype=h5py.string_dtype()
    ),
    "basis-no-json": put("dfmp2/bases/orbital/elements", CODE),
    "basis-deep-json": put("dfmp2/bases/orbital/elements", "[" * 100_000),
    "shells-code": element(shells=CODE),
    "shell-code": element(shells=[[CODE, [1.0, 1.0]]]),
    "exponent-code": element(shells=[[0, [CODE, 1.0]]]),
    "exponent-negative": element(shells=[[0, [-1.0, 1.0]]]),
    "exponent-infinite": element(shells=[[0, [1e999, 1.0]]]),
    "shells-empty": element(shells=[]),
    "momentum-absurd": element(shells=[[500, [1.0, 1.0]]]),
    "potential-code": element(ecp=CODE),
    "potential-term-code": element(ecp=[2, [[0, [[], [], [[CODE, 1.0]]]]]]),
    "potential-electrons-code": element(ecp=[CODE, []]),
    "potential-momentum-absurd": element(ecp=[2, [[12, [[], [], [[1.0, 1.0]]]]]]),
    "potential-source-number": element(ecp_source=7),
    "fitting-error-infinite": put("dfmp2/bases/mp2_fitting/fitting_error", np.array([np.inf, 0.0])),
    "option-out-of-range": put("dfmp2/input/options/scf_conv_tol", -1.0),
}

# Invalid start orbitals.
NO_START: dict[str, Edit] = {
    "scf-is-a-number": lambda h: (h.__delitem__("scf"), h.__setitem__("scf", 1.0)),
    "no-orbitals": lambda h: h.__delitem__("scf/mo_coeff"),
    "nan": put("scf/mo_coeff", np.full((7, 7), np.nan)),
    "integers": put("scf/mo_coeff", np.eye(7, dtype=int)),
    "text": put("scf/mo_coeff", CODE),
    "scalar": put("scf/mo_coeff", 1.0),
    "three-spins": put("scf/mo_coeff", np.zeros((3, 7, 7))),
    "no-occupations": put("scf/mo_occ", np.zeros(7)),
    "negative-occupations": put("scf/mo_occ", np.linspace(2, -2, 7)),
    "five-electrons-in-one": put("scf/mo_occ", np.array([5.0, 0, 0, 0, 0, 0, 0])),
    "two-and-a-half-electrons-in-one": put("scf/mo_occ", np.array([2.5, 2, 2, 2, 1.5, 0, 0])),
    "occupations-of-another": put("scf/mo_occ", np.full(8, 1.25)),
    "all-zero": put("scf/mo_coeff", np.zeros((7, 7))),  # no density can be made from these two
    "all-the-same": put("scf/mo_coeff", np.ones((7, 7))),
}


@pytest.fixture
def doctored(water: Stored, folder: Path) -> Callable[[Edit], str]:
    """Name of a copy of the water result, changed; a file with something to steal lies beside
    it."""
    shutil.copy(water.path, folder / "secret.h5")

    def make(edit: Edit, hashed: bool = False) -> str:
        shutil.copy(water.path, folder / "doctored.h5")
        with h5py.File(folder / "doctored.h5", "r+") as handle:
            edit(handle)
            if hashed:
                handle.attrs["content_sha256"] = np.bytes_(hash_of(read_contents(handle)))
        return str(folder / "doctored.h5")

    return make


@pytest.mark.parametrize("edit", FOREIGN.values(), ids=FOREIGN)
def test_foreign_content_is_refused_by_every_reader(
    edit: Edit, doctored: Callable[[Edit], str]
) -> None:
    file = doctored(edit)
    for reader in (hdf5.read, read_start_orbitals):
        with recorded_error(ResultFileError):
            reader(file)


@pytest.mark.parametrize("edit", DAMAGED.values(), ids=DAMAGED)
def test_damaged_result_is_refused(edit: Edit, doctored: Callable[[Edit], str]) -> None:
    with recorded_error(ResultFileError):
        hdf5.read(doctored(edit))


def refuse(call: Runner, folder: Path, *arguments: str) -> None:
    before = listing(folder)
    done = call(*arguments)
    assert done.code == 3, done.err
    assert done.out == "" and done.message.isprintable() and "doctored.h5" in done.message
    assert listing(folder) == before and not Path("EXECUTED").exists()


@pytest.mark.parametrize(
    "name", ["external-link", "huge-claim", "exponent-code", "frozen-core-absurd"]
)
def test_every_command_refuses(
    name: str, doctored: Callable[[Edit], str], call: Runner, folder: Path
) -> None:
    file = doctored({**FOREIGN, **DAMAGED}[name])
    for command in (
        "show",
        "show --json",
        "show --verify",
        "compare",
        "export --to molden",
        "report",
    ):
        refuse(call, folder, *command.split(), file)
    if name in FOREIGN:
        refuse(call, folder, "run", "h2o.xyz", *STO3G, "--scf-from", file)


@pytest.mark.parametrize("edit", NO_START.values(), ids=NO_START)
def test_orbitals_that_are_none_are_refused(
    edit: Edit, doctored: Callable[[Edit], str], call: Runner, folder: Path
) -> None:
    refuse(call, folder, "run", "h2o.xyz", *STO3G, "--scf-from", doctored(edit))


HOSTILE_MOLECULES = {
    "code": CODE,
    "atom-code": json.dumps({"atom": CODE, "basis": CODE, "ecp": CODE, "_atm": [[CODE]]}),
    "deep": "[" * 100_000,
    "infinite": '{"_atm": [[1e999]]}',
    "number": 1.0,
}


@pytest.mark.parametrize("text", HOSTILE_MOLECULES.values(), ids=HOSTILE_MOLECULES)
def test_code_for_a_molecule_is_not_run(
    text: Any, doctored: Callable[[Edit], str], folder: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """PySCF's own loader evaluates the text under /mol; it is never called here."""
    monkeypatch.chdir(folder)
    found = read_start_orbitals(doctored(put("mol", text)))
    assert found.charges is None and found.mo_occ.sum() == 10
    assert not (folder / "EXECUTED").exists()


def test_text_of_a_stored_result_cannot_steer_the_terminal(
    doctored: Callable[[Edit], str], call: Runner
) -> None:
    fake = "\x1b[2J\rred\ndfmp2 finished: E(MP2, total) = -1.0 Eh"
    for name in ("name", "source"):
        done = succeed(call("show", doctored(put(f"dfmp2/input/{name}", fake), hashed=True)))
        assert all(line.isprintable() for line in done.out.splitlines())
        assert not any(line.startswith("dfmp2 finished") for line in done.out.splitlines())


# --- bytes changed anywhere -----------------------------------------------------------------------

PATIENCE = 20.0  # s; reading takes about 0.03 s
FILES = settings(
    max_examples=60,
    deadline=None,
    suppress_health_check=[HealthCheck.function_scoped_fixture],
    derandomize=True,
)

Change = tuple[str, float, bytes]

# Operation (overwrite, insert, delete or truncate), position (fraction of the file), bytes.
changes = st.lists(
    st.tuples(
        st.sampled_from(["overwrite", "overwrite", "overwrite", "insert", "delete", "cut"]),
        st.floats(0, 1, exclude_max=True),
        st.one_of(
            st.binary(min_size=1, max_size=16),
            st.sampled_from([b"\0" * 8, b"\xff" * 8, b"\xff" * 7 + b"\x7f"]),
        ),
    ),
    min_size=1,
    max_size=8,
)


def mutate(content: bytes, plan: list[Change]) -> bytes:
    data = bytearray(content)
    for kind, fraction, new in plan:
        place = int(fraction * len(data))
        if kind == "overwrite":
            data[place : place + len(new)] = new
        elif kind == "insert":
            data[place:place] = new
        elif kind == "delete":
            del data[place : place + len(new)]
        else:
            del data[place:]
    return bytes(data)


@FILES
@given(plan=changes)
def test_changed_anywhere(plan: list[Change], radical: Stored, tmp_path: Path) -> None:
    """It is refused, or read as a result that can be shown, or as start orbitals."""
    path = tmp_path / "changed.h5"
    path.write_bytes(mutate(radical.path.read_bytes(), plan))
    start = time.thread_time()
    with suppress(InputError, ResultFileError):
        result = hdf5.read(path)
        assert report(result) and to_json(result, None) and pair_table(result)
    with suppress(InputError, ResultFileError):
        read_start_orbitals(path)
    assert time.thread_time() - start < PATIENCE


def test_cut_off_at_every_length(water: Stored, tmp_path: Path) -> None:
    """Half a file is never a result: HDF5 stores its length."""
    content, path = water.path.read_bytes(), tmp_path / "short.h5"
    lengths = [
        *range(0, 64),
        *random.Random(1).sample(range(64, len(content)), 60),
        len(content) - 1,
    ]
    for length in lengths:
        path.write_bytes(content[:length])
        with pytest.raises(ResultFileError):
            hdf5.read(path)
