"""Hostile surroundings and input: nothing planted is run, read or believed."""

from __future__ import annotations

import json
import shutil
import sys
from collections.abc import Callable
from pathlib import Path
from typing import Any

import h5py
import numpy as np
import pytest

from tests.conftest import COMMAND, Runner, Stored, listing, run_command, succeed, write_molecules

STO3G = ("--basis", "sto-3g")
CODE = "__import__('os').system('touch EXECUTED')"
PLANTED = "import pathlib; pathlib.Path(r'{marker}').touch(); raise SystemExit('planted')\n"

# --- the working directory --------------------------------------------------------------------------

# What Python itself makes unavoidable, and is not planted for `python -m`: with -m the working directory is searched
# first until dfmp2 gets to take it off, so a `dfmp2.py` there is what Python was asked to run, and a `typing.py` is
# what the package's own first import finds. `python -P -m dfmp2` and the command `dfmp2` have no such window.
MODULES = (
    *(
        "typing",
        "numpy",
        "scipy",
        "h5py",
        "click",
        "json",
        "uuid",
        "ctypes",
        "tempfile",
        "concurrent",
        "dataclasses",
        "hashlib",
    ),
    *("torch", "basis_set_exchange", "sitecustomize", "usercustomize", "pyscf_conf", "pyscf_forge", "threadpoolctl"),
)
BASIS_FILES = (
    *("sto-3g", "sto-3g.dat", "STO-3G", "def2-universal-jkfit", "def2-svp-ri", "def2-svp-ri.dat", "ano", "ano.dat"),
    *("cc-pvdz", "cc-pvdz.dat", "cc-pvdz-ri", "cc-pvdz-jkfit", "minao"),
)


def plant(folder: Path, marker: Path) -> None:
    """Fill a folder with everything PySCF, Python or a careless program would pick up there."""
    code = PLANTED.format(marker=marker)
    for name in MODULES:
        (folder / f"{name}.py").write_text(code)
    for name in (".pyscf_conf.py", "conftest.py", "setup.py", "evil.py"):
        (folder / name).write_text(code)
    for package in ("pyscf", "numpy.libs", "pyscf/gto", "pyscf/lib", "plugin/pyscf"):
        (folder / package).mkdir(parents=True)
        (folder / package / "__init__.py").write_text(code)
    for name in BASIS_FILES:  # one wide s function, and code where PySCF's parsers evaluate
        (folder / name).write_text(f"BASIS\nH S\n 0.1 1.0\nO S\n 0.1 {CODE}\nEND\n")
    (folder / "dfmp2.toml").write_text("basis = 'cc-pvqz'\n")
    (folder / "setup.cfg").write_text("[pyscf]\nmax_memory = 1\n")


@pytest.mark.parametrize("program", [(str(COMMAND),), (sys.executable, "-m", "dfmp2")], ids=["script", "module"])
def test_hostile_working_directory_changes_nothing(program: tuple[str, ...], folder: Path, water: Stored) -> None:
    marker = folder / "EXECUTED"
    plant(folder, marker)
    env = {
        "HOME": str(folder),
        "PYSCF_CONFIG_FILE": str(folder / "evil.py"),
        "PYSCF_EXT_PATH": str(folder / "plugin"),
        "PYSCF_ARGPARSE": "1",
    }
    before = set(listing(folder))
    done = succeed(run_command("run", "h2o.xyz", *STO3G, "--json", cwd=folder, program=program, env=env))
    assert not marker.exists()
    assert set(listing(folder)) - before == {"h2o.dfmp2.h5"}
    assert done.json["mp2_total_energy"] == pytest.approx(water.json["mp2_total_energy"], abs=1e-9)
    for place in ("orbital", "scf_fitting", "mp2_fitting"):
        with h5py.File(folder / "h2o.dfmp2.h5") as ours, h5py.File(water.path) as theirs:
            name = f"dfmp2/bases/{place}/elements"
            assert ours[name][()] == theirs[name][()]
    succeed(run_command("show", "h2o.dfmp2.h5", cwd=folder, program=program, env=env))
    if program == (str(COMMAND),):
        succeed(run_command("compare", "h2o.dfmp2.h5", cwd=folder, env=env))
        # The probe of torch imports it, from where Python finds it: not from here.
        assert "planted" not in succeed(run_command("backends", cwd=folder, env=env)).out
    assert not marker.exists()


def test_planted_files_would_have_been_run(folder: Path) -> None:
    """The trap works: bare Python in the same folder falls into it."""
    marker = folder / "EXECUTED"
    plant(folder, marker)
    run_command("-c", "import pyscf", cwd=folder, program=(sys.executable,))
    assert marker.exists()


# --- geometries -------------------------------------------------------------------------------------

GEOMETRIES = {
    "coordinate": f"2\n\nH 0 0 0\nH 0 0 {CODE}\n",
    "coordinate-no-blank": "2\n\nH 0 0 0\nH 0 0 open('EXECUTED','w')\n",
    "symbol": f"1\n\n{CODE} 0 0 0\n",
    "ghost": f"2\n\nHe 0 0 1\n@{CODE} 0 0 0\n",
    "ghost-call": "2\n\nHe 0 0 1\nGh(open('EXECUTED','w')) 0 0 0\n",
    "extra-column": "1\n\nHe 0 0 0 open('EXECUTED','w')\n",
    "count": f"{CODE}\n\nHe 0 0 0\n",
    "count-expression": "1+0\n\nHe 0 0 0\n",
    "charge": f"1\ncharge={CODE.replace(' ', '')}\nHe 0 0 0\n",
    "multiplicity": "1\nmultiplicity=open('EXECUTED','w')\nHe 0 0 0\n",
    "properties": "1\nProperties=species:S:1:pos:R:open('EXECUTED','w')\nHe 0 0 0\n",
    "z-matrix": f"O\nH 1 0.96\nH 1 {CODE} 2 104.5\n",
    "z-matrix-with-count": f"3\n\nO\nH 1 0.96\nH 1 {CODE} 2 104.5\n",
    "python": f"import os\n{CODE}\n",
    "path": "/etc/passwd\n",
    "underscore-number": "1\n\nHe 0 0 1_0\n",  # Python reads 10.0
    "unicode-digit": "1\n\nHe 0 0 \u0661\n",  # so does float() of an Arabic one
    "hexadecimal": "1\n\nHe 0 0 0x1\n",
}


@pytest.mark.parametrize("text", GEOMETRIES.values(), ids=GEOMETRIES)
def test_hostile_geometry(text: str, call: Runner, folder: Path) -> None:
    (folder / "bad.xyz").write_text(text)
    before = listing(folder)
    done = call("run", "bad.xyz", *STO3G)
    assert done.code == 3 and "bad.xyz" in done.message
    assert done.message.isprintable()
    assert listing(folder) == before


def test_hostile_geometry_through_the_command(folder: Path) -> None:
    for name in ("coordinate", "z-matrix"):
        (folder / "bad.xyz").write_text(GEOMETRIES[name])
        before = listing(folder)
        assert run_command("run", "bad.xyz", *STO3G, cwd=folder).code == 3
        assert run_command("run", "-", *STO3G, cwd=folder, stdin=GEOMETRIES[name]).code == 3
        assert listing(folder) == before


def test_expressions_in_the_comment_are_only_text(call: Runner, folder: Path) -> None:
    (folder / "fine.xyz").write_text(f"1\n{CODE} $(touch EXECUTED) `touch EXECUTED`\nHe 0 0 0\n")
    succeed(call("run", "fine.xyz", "--basis", "cc-pvdz", "--check"))
    assert not (folder / "EXECUTED").exists()


# --- names of basis sets ----------------------------------------------------------------------------

NAMES = (
    *("../../x", "./sto-3g", "/etc/passwd", "sto-3g/../sto-3g", "~/sto-3g", "C:\\sto-3g", "file:///etc/passwd"),
    *("sto-3g\nH S\n 1.0 1.0", "sto-3g\x1b[31m", "sto-3g\x7f", "{'H': [[0, [1.0, 1.0]]]}", "H S\n0.1 1.0\nEND"),
    *(CODE, "$(touch EXECUTED)", "`touch EXECUTED`", "sto-3g;touch EXECUTED", "sto-3g|cat", "%s%s%n", "{0.__class__}"),
    *("x" * 10_000, "stö-3g", "sto-3g@1s", "sto\u20113g", " ", "*", "()", "[]", "None", "nan", "__init__", "planted"),
)


@pytest.mark.parametrize("option", ["--basis", "--auxbasis", "--scf-auxbasis"])
@pytest.mark.parametrize("name", NAMES, ids=range(len(NAMES)))
def test_hostile_basis_name(name: str, option: str, call: Runner, folder: Path) -> None:
    (folder / "planted").write_text(f"BASIS\nH S\n 0.1 {CODE}\nEND\n")
    before = listing(folder)
    done = call("run", "h2.xyz", *(() if option == "--basis" else STO3G), option, name)
    assert done.code == 3
    assert done.message.isprintable() and len(done.message) < 600
    assert listing(folder) == before


# --- result files and checkpoints -------------------------------------------------------------------

Edit = Callable[[Any], Any]


def put(name: str, value: Any, **how: Any) -> Edit:
    """Replace a dataset."""

    def edit(handle: Any) -> None:
        if name in handle:
            del handle[name]
        handle.create_dataset(name, data=value, **how)

    return edit


def attribute(name: str, value: Any) -> Edit:
    return lambda handle: handle.attrs.__setitem__(name, value)


def element(**changed: Any) -> Edit:
    """Give oxygen another basis, with the hash that belongs to it."""
    from dfmp2.basis import ElementBasis
    from dfmp2.reference.basis_shells import nested_tuples

    def edit(handle: Any) -> None:
        where = "dfmp2/bases/orbital"
        elements = json.loads(handle[f"{where}/elements"].asstr()[()])
        elements["O"].update(changed)
        put(f"{where}/elements", json.dumps(elements))(handle)
        hashes = [
            f"{s} {ElementBasis(s, '', '', nested_tuples(e['shells']), nested_tuples(e['ecp'])).sha256}"
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


STRINGS = np.array(["complete", "complete"], dtype=h5py.string_dtype())
X = "dfmp2/run/x"

# Refused by every reader, whatever it came to read.
FOREIGN: dict[str, Edit] = {
    "external-link": lambda h: h.__setitem__(X, h5py.ExternalLink("secret.h5", "/mol")),
    "external-link-to-nowhere": lambda h: h.__setitem__(X, h5py.ExternalLink("/nonexistent", "/x")),
    "soft-link": lambda h: h.__setitem__(X, h5py.SoftLink("/mol")),
    "dangling-link": lambda h: h.__setitem__(X, h5py.SoftLink("/nothing")),
    "external-storage": lambda h: h.create_dataset(X, (10,), "u1", external=[("/etc/passwd", 0, 10)]),
    "virtual-dataset": virtual,
    "opaque": put(X, np.void(b"cos\nsystem\n(S'touch EXECUTED'\ntR.")),
    "compound": put(X, np.zeros(2, dtype=[("a", "f8")])),
    "complex": put(X, 1j),
    "reference": lambda h: h.create_dataset(X, data=h["mol"].ref, dtype=h5py.ref_dtype),
    "region-reference": lambda h: h.create_dataset(X, (1,), dtype=h5py.regionref_dtype),
    "ragged": lambda h: h.create_dataset(X, (1,), dtype=h5py.vlen_dtype("f8")),
    "named-type": lambda h: h.__setitem__(X, np.dtype("f8")),
    "huge-claim": lambda h: h.create_dataset(X, (10**12,), "f8", chunks=(1000,)),
    "huge-text-claim": lambda h: h.create_dataset(X, (10**9,), h5py.string_dtype(), chunks=(1000,)),
    "zip-bomb": put(X, np.zeros(10**6), compression="gzip"),
    "null-space": put(X, h5py.Empty("f8")),
    "deep": lambda h: h.create_group("/".join("a" * 30)),
    "loop": looped,
    "many": lambda h: [h.create_group(f"g{number}") for number in range(10_001)],
    "attribute-opaque": attribute("x", np.void(b"cos\nsystem\n")),
    "attribute-reference": lambda h: h.attrs.create("x", h["mol"].ref, dtype=h5py.ref_dtype),
}

# No result, or a damaged one; `--scf-from` needs less of a file and may take it.
DAMAGED: dict[str, Edit] = {
    "version-99": attribute("dfmp2_schema_version", 99),
    "version-text": attribute("dfmp2_schema_version", "1"),
    "version-list": attribute("dfmp2_schema_version", [1, 1]),
    "version-missing": lambda h: h.attrs.__delitem__("dfmp2_schema_version"),
    "status-running": attribute("status", np.bytes_("running")),
    "status-of-any-length": attribute("status", "complete"),
    "status-missing": lambda h: h.attrs.__delitem__("status"),
    "status-list": lambda h: h.attrs.create("status", STRINGS),
    "no-pairs": lambda h: h.__delitem__("dfmp2/pairs"),
    "no-orbitals": lambda h: h.__delitem__("scf/mo_coeff"),
    "group-for-dataset": lambda h: (h.__delitem__("mol"), h.create_group("mol")),
    "dataset-for-group": lambda h: (h.__delitem__("dfmp2"), h.__setitem__("dfmp2", 1.0)),
    "dataset-for-inner-group": lambda h: (h.__delitem__("dfmp2/run"), h.__setitem__("dfmp2/run", 1.0)),
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
    "basis-without-hash": put("dfmp2/bases/orbital/sha256", ["O 0", "H 0"], dtype=h5py.string_dtype()),
    "basis-no-json": put("dfmp2/bases/orbital/elements", CODE),
    "basis-deep-json": put("dfmp2/bases/orbital/elements", "[" * 100_000),
    "shells-code": element(shells=CODE),
    "shells-name": element(shells="cc-pvdz"),
    "shells-path": element(shells=["/etc/passwd"]),
    "shells-list-of-code": element(shells=[CODE]),
    "shell-code": element(shells=[[CODE, [1.0, 1.0]]]),
    "exponent-code": element(shells=[[0, [CODE, 1.0]]]),
    "exponent-negative": element(shells=[[0, [-1.0, 1.0]]]),
    "exponent-infinite": element(shells=[[0, [1e999, 1.0]]]),
    "shells-empty": element(shells=[]),
    "momentum-absurd": element(shells=[[500, [1.0, 1.0]]]),
    "potential-code": element(ecp=CODE),
    "potential-term-code": element(ecp=[2, [[0, [[], [], [[CODE, 1.0]]]]]]),
    "potential-electrons-code": element(ecp=[CODE, []]),
    "option-out-of-range": put("dfmp2/input/options/scf_conv_tol", -1.0),
}

# Start orbitals that are none.
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
    "occupations-of-another": put("scf/mo_occ", np.full(8, 1.25)),
}


@pytest.fixture
def doctored(water: Stored, folder: Path) -> Callable[[Edit], str]:
    """Name of a copy of the water result, changed; a file with something to steal lies beside it."""
    shutil.copy(water.path, folder / "secret.h5")

    def make(edit: Edit) -> str:
        shutil.copy(water.path, folder / "doctored.h5")
        with h5py.File(folder / "doctored.h5", "r+") as handle:
            edit(handle)
        return "doctored.h5"

    return make


def refuse(call: Runner, folder: Path, *arguments: str) -> None:
    before = listing(folder)
    done = call(*arguments)
    assert done.code == 3, done.err
    assert done.out == "" and done.message.isprintable() and "doctored.h5" in done.message
    assert listing(folder) == before and not Path("EXECUTED").exists()


@pytest.mark.parametrize("edit", FOREIGN.values(), ids=FOREIGN)
def test_foreign_content_is_refused_by_every_reader(
    edit: Edit, doctored: Callable[[Edit], str], call: Runner, folder: Path
) -> None:
    file = doctored(edit)
    refuse(call, folder, "show", file)
    refuse(call, folder, "show", file, "--verify")
    refuse(call, folder, "compare", file)
    refuse(call, folder, "run", "h2o.xyz", *STO3G, "--scf-from", file)


@pytest.mark.parametrize("edit", DAMAGED.values(), ids=DAMAGED)
def test_damaged_result_is_refused(edit: Edit, doctored: Callable[[Edit], str], call: Runner, folder: Path) -> None:
    file = doctored(edit)
    refuse(call, folder, "show", file, "--json")
    refuse(call, folder, "show", file, "--verify")
    refuse(call, folder, "compare", file)


@pytest.mark.parametrize("edit", NO_START.values(), ids=NO_START)
def test_orbitals_that_are_none_are_refused(
    edit: Edit, doctored: Callable[[Edit], str], call: Runner, folder: Path
) -> None:
    refuse(call, folder, "run", "h2o.xyz", *STO3G, "--scf-from", doctored(edit))


def test_dependent_orbitals_are_refused(doctored: Callable[[Edit], str], call: Runner, folder: Path) -> None:
    """All the same, all zero: no density can be made of them."""
    for coefficients in (np.zeros((7, 7)), np.ones((7, 7))):
        file = doctored(put("scf/mo_coeff", coefficients))
        refuse(call, folder, "run", "h2o.xyz", *STO3G, "--scf-from", file)


def test_refusals_through_the_command(doctored: Callable[[Edit], str], folder: Path) -> None:
    for edit in (FOREIGN["external-link"], FOREIGN["huge-claim"], DAMAGED["exponent-code"]):
        file = doctored(edit)
        for arguments in (("show", file), ("compare", file)):
            done = run_command(*arguments, cwd=folder)
            assert done.code == 3 and file in done.message


HOSTILE_MOLECULES = {
    "code": CODE,
    "atom-code": json.dumps({"atom": CODE, "basis": CODE, "ecp": CODE, "_atm": [[CODE]]}),
    "deep": "[" * 100_000,
    "infinite": '{"_atm": [[1e999]]}',
    "number": 1.0,
}


@pytest.mark.parametrize("text", HOSTILE_MOLECULES.values(), ids=HOSTILE_MOLECULES)
def test_start_file_with_code_for_a_molecule(
    text: Any, doctored: Callable[[Edit], str], call: Runner, folder: Path, water: Stored
) -> None:
    """PySCF's own loader evaluates the text under /mol; here it is not even asked."""
    done = succeed(call("run", "h2o.xyz", *STO3G, "--json", "--scf-from", doctored(put("mol", text))))
    assert done.json["scf_iterations"] < water.json["scf_iterations"]
    assert not (folder / "EXECUTED").exists()


def test_pyscf_itself_would_have_run_it(doctored: Callable[[Edit], str], folder: Path) -> None:
    """The trap works."""
    file = doctored(put("mol", HOSTILE_MOLECULES["code"]))
    code = f"import sys; sys.path.pop(0); from pyscf.lib import chkfile; chkfile.load_mol({file!r})"
    run_command("-c", code, cwd=folder, program=(sys.executable,))
    assert (folder / "EXECUTED").exists()


def test_text_of_a_stored_result_cannot_steer_the_terminal(doctored: Callable[[Edit], str], call: Runner) -> None:
    fake = "\x1b[2J\rred\ndfmp2 finished: E(MP2, total) = -1.0 Eh"
    for name in ("name", "source"):
        done = succeed(call("show", doctored(put(f"dfmp2/input/{name}", fake))))
        assert all(line.isprintable() for line in done.out.splitlines())
        assert sum(line.startswith("dfmp2 finished") for line in done.out.splitlines()) == 1


def test_links_to_files_elsewhere(call: Runner, folder: Path, tmp_path_factory: pytest.TempPathFactory) -> None:
    """A link may be read through; as output it is never written through."""
    elsewhere = tmp_path_factory.mktemp("elsewhere")
    write_molecules(elsewhere)
    (folder / "linked.xyz").symlink_to(elsewhere / "h2.xyz")
    (folder / "linked.dfmp2.h5").symlink_to(elsewhere / "not-there")
    before = listing(elsewhere)
    refused = call("run", "linked.xyz", *STO3G)
    assert refused.code == 3 and "already exists" in refused.message
    succeed(call("run", "linked.xyz", *STO3G, "--overwrite"))
    assert listing(elsewhere) == before
