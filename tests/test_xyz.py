"""The xyz reader: geometry against PySCF, every refusal with its file and line, and arbitrary
text."""

from __future__ import annotations

import io
import os
import re
import sys
import time
import tracemalloc
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from pyscf import gto

from dfmp2.errors import InputError
from dfmp2.molecule.elements import SYMBOLS
from dfmp2.molecule.files import _charges
from dfmp2.molecule.molecule import Molecule
from dfmp2.molecule.xyz import MAX_BYTES, XyzFile, parse_xyz, read_xyz, write_xyz
from dfmp2.units import ANGSTROM_PER_BOHR, BOHR_PER_ANGSTROM
from tests.recorded import recorded_error

WATER = """3
water
O   0.000000  0.000000  0.117300
H   0.000000  0.757200 -0.469200
H   0.000000 -0.757200 -0.469200
"""


def parse(text: str, **options: Any) -> XyzFile:
    return parse_xyz(text, file="w.xyz", **options)


def one_atom(line: str, comment: str = "", **options: Any) -> Molecule:
    return parse(f"1\n{comment}\n{line}\n", **options).molecule


def test_water_is_pyscfs_to_the_last_bit() -> None:
    found = parse(WATER)
    mol = gto.M(atom=WATER.split("water\n")[1], basis="sto-3g", verbose=0)
    assert np.array_equal(found.molecule.coordinates, mol.atom_coords())
    assert found.molecule.symbols == ("O", "H", "H")
    assert (found.molecule.name, found.molecule.source, found.molecule.text) == (
        "w",
        "w.xyz",
        WATER,
    )
    assert (found.molecule.charge, found.molecule.multiplicity) == (0, 1)
    assert (found.charge_from, found.multiplicity_from) == ("default", "default")


@pytest.mark.parametrize(
    "text",
    [
        WATER.replace("\n", "\r\n"),
        WATER.replace(" ", "\t"),
        WATER.rstrip("\n"),
        WATER.replace("3\n", "  3  \n", 1),
        WATER.replace("water", "Ångström, 水"),
        WATER.replace("O ", "o ").replace("H ", "h "),
        WATER.replace("O ", "8 ").replace("H ", "1 "),
        WATER.replace("0.757200", "7.572D-1").replace("0.117300", "+1173e-4"),
        WATER.replace("0.757200", ".7572").replace("0.000000", "0."),
        WATER.replace("0.117300", "0.117300 1.0 -2 3E5"),
    ],
)
def test_same_water(text: str) -> None:
    assert parse(text).molecule == parse(WATER).molecule


def test_a_file_in_bohr(tmp_path: Path) -> None:
    (tmp_path / "w.xyz").write_text(WATER)
    found = read_xyz(tmp_path / "w.xyz", units="bohr", charge=1, multiplicity=2).molecule
    expected = parse(WATER).molecule.coordinates * ANGSTROM_PER_BOHR
    assert found.coordinates == pytest.approx(expected, rel=1e-9)
    assert (found.charge, found.multiplicity) == (1, 2)


def test_ghosts() -> None:
    words = [
        "O",
        "@H",
        "Gh(h)",
        "@8",
        "GH(Cl)",
        "H:",
        "h-Bq",
        "BqH",
        "ghost-H",
        "GHOST_H",
        "X-H",
        "Cl:",
        "ghost-8",
        "8:",
        "GhostO",
        "Bq-O",
    ]
    atoms = "\n".join(f"{word} 0 0 {2 * number}" for number, word in enumerate(words))
    labels = ["O", "@H", "@H", "@O", "@Cl", *["@H"] * 6, "@Cl", *["@O"] * 4]
    assert parse(f"16\n\n{atoms}").molecule.labels == tuple(labels)


@pytest.mark.parametrize(
    ("comment", "charge", "multiplicity", "origins"),
    [
        ("charge=-1 multiplicity=2", -1, 2, ("comment line", "comment line")),
        ("charg: -1", -1, 1, ("comment line", "default")),
        ("CHARGE=+1, mult=2;", 1, 2, ("comment line", "comment line")),
        ('Spin_Multiplicity="3" energy=-1.5', 0, 3, ("default", "comment line")),
        ("charge = 1 mult = 2", 1, 2, ("comment line", "comment line")),
        ("charge=1 charge=+1 mult=2 multiplicity=2", 1, 2, ("comment line", "comment line")),
        ("total_charge=5 recharge=2 charge 5", 5, 1, ("comment line", "default")),
        ('title="charge=2" charge=1', 1, 1, ("comment line", "default")),
        ('a={recharge=2} pbc="F F F"', 0, 1, ("default", "default")),
        ("title={charge=2} charge=1", 1, 1, ("comment line", "default")),
    ],
)
def test_state_from_comment(
    comment: str, charge: int, multiplicity: int, origins: tuple[str, str]
) -> None:
    found = parse(f"1\n{comment}\nHe 0 0 0")
    assert (found.molecule.charge, found.molecule.multiplicity) == (charge, multiplicity)
    assert (found.charge_from, found.multiplicity_from) == origins


def test_options_win() -> None:
    found = parse("1\ncharge=1 mult=2\nHe 0 0 0", charge=0, multiplicity=3)
    assert (found.molecule.charge, found.molecule.multiplicity) == (0, 3)
    assert (found.charge_from, found.multiplicity_from) == ("option", "option")


@pytest.mark.parametrize(
    ("comment", "options", "state"),
    [
        ("spin=3", {"multiplicity": 1}, (0, 1)),
        ("spin=3 mult=3", {}, (0, 3)),
        # Gaussian, ORCA and Psi4 write charge and multiplicity as two numbers.
        ("0 1", {}, (0, 1)),
        ("-1 1", {"charge": 0, "multiplicity": 1}, (0, 1)),
        ("1 2", {"charge": 1, "multiplicity": 2}, (1, 2)),
        ("1 1", {"charge": 1}, (1, 1)),
        ("1 2", {"charge": 1}, None),
        ("1 2", {"multiplicity": 2}, None),
        ("I 1.5 of 2", {}, (0, 1)),
        ("12 300", {}, (0, 1)),
    ],
)
def test_what_a_comment_leaves_to_options(
    comment: str, options: dict[str, int], state: tuple[int, int] | None
) -> None:
    if state is None:
        with recorded_error(InputError):
            one_atom("He 0 0 0", comment, **options)
        return
    found = one_atom("He 0 0 0", comment, **options)
    assert (found.charge, found.multiplicity) == state


def test_properties_say_which_columns() -> None:
    comment = 'Properties=forces:R:3:pos:R:3:tag:I:1:species:S:1 energy=-1 pbc="F F F"'
    molecule = one_atom("9 9 9 1.0 2.0 3.0 7 He", comment, units="bohr")
    assert molecule.symbols == ("He",)
    assert molecule.coordinates.tolist() == [[1.0, 2.0, 3.0]]
    usual = one_atom("He 1 2 3 any-text", "Properties=species:S:1:pos:R:3:label:S:1", units="bohr")
    assert usual == molecule


REFUSED = [
    ("", None),
    ("3", 1),
    ("3\nwater\nO 0 0 0\n", 1),
    ("2\n\nO 0 0 0\n\nH 0 0 1\n", 5),
    ("1\n\nO 0 0 0\n1\n\nO 0 0 1\n", 4),
    ("-3\nc\nO 0 0 0", 1),
    ("0\nnothing", 1),
    ("100001\nc\nO 0 0 0", 1),
    ("9" * 4000 + "\nc\nO 0 0 0", 1),
    ("3.0\nc\nO 0 0 0", 1),
    ("٣\nc\nO 0 0 0", 1),
    ("1\n\nO 0 0", 3),
    ("1\n\nO 0 0 abc", 3),
    ("1\n\nO 0 0 0x10", 3),
    ("1\n\nO 0 0 1_000", 3),
    ("1\n\nO 0 0 1e999", 3),
    ("1\n\nO 0 0 0 Fe", 3),
    ("1\n\nO 0 0 ٣", 3),
    ("1\n\nO 0 0 \u22121.5", 3),
    ("1\n\nO 0,0 0,0 0,1173", 3),
    ("3\nO 0 0 0.1\nH 0 0.76 -0.47\nH 0 -0.76 -0.47\n", 2),
    ("1\n-1 1\nO 0 0 0", 2),
    ("2\nGh(O) 0 0 0\nH 0 0 1\n", 2),
    ("2\n@O 0 0 0\nH 0 0 1\n", 2),
    ("1\n\n\u041e 0 0 0", 3),  # a Cyrillic O looks the same
    ("1\n\nO 0 0 0" + " 0" * 5000, 3),
    ("2\n\nO 0 0 0\nQq 0 0 1", 4),
    ("1\n\nC1 0 0 0", 3),
    ("1\n\n13C 0 0 0", 3),
    ("1\n\nO1: 0 0 0", 3),
    ("1\n\nX 0 0 0", 3),
    ("1\n\n119 0 0 0", 3),
    ("2\n\nO 0 0 0\nH 0 0 0.1", None),
    ("1\ncharge=1.5\nO 0 0 0", 2),
    ("1\nmagmom=1e999\nO 0 0 0", 2),
    ("1\nmagmom=102\nO 0 0 0", 2),
    ("1\nProperties=species:S:1:pos:R:3:initial_charges:R:1\nO 0 0 0 1e999", 2),
    ("2\nProperties=species:S:1:pos:R:3:charges:R:1\nO 0 0 0 1e999\nH 0 0 1 -1e999", 2),
    ("1\ncharge=1 CHARGE=2\nO 0 0 0", 2),
    ("1\nmult=1 multiplicity=3\nO 0 0 0", 2),
    ("1\nspin=1\nO 0 0 0", 2),
    ('1\nLattice="9 0 0 0 9 0 0 0 9"\nO 0 0 0', 2),
    ('1\npbc="T F F"\nO 0 0 0', 2),
    ("1\nc" + "c" * 10**5 + "\nO 0 0 0", 2),
    ("1\nProperties=species:S:1\nO 0 0 0", 2),
    ("2\nProperties=species:S:1:pos:R:3:charges:R:1\nO 0 0 0 0\nH 0 0 1", 4),
    ("1\nProperties=species:S:1:pos:R:3:x\nO 0 0 0", 2),
    ("1\nProperties=species:S:1:pos:R:3:a:I:1:a:I:1\nO 0 0 0 1 1", 2),
    ("1\nProperties=species:S:1:pos:R:3:q:R:1\nO 0 0 0", 3),
    ("HEADER    HYDROLASE\nATOM      1  N   MET A   1\n", 1),
    ("\x1b[31m" + "z" * 500 + "\n", 1),
]


@pytest.mark.parametrize(("text", "line"), REFUSED)
def test_refused_with_file_and_line(text: str, line: int | None) -> None:
    with recorded_error(InputError) as caught:
        parse(text)
    assert (caught.value.file, caught.value.line) == ("w.xyz", line)
    message = str(caught.value)
    assert message.startswith("w.xyz: " if line is None else f"w.xyz, line {line}: ")
    assert message.count("w.xyz") == 1
    assert message.isprintable()
    assert len(message) < 300


def test_read_file(tmp_path: Path) -> None:
    path = tmp_path / "my water.v2.xyz"
    path.write_bytes(b"\xef\xbb\xbf" + WATER.encode())  # UTF-8 with byte order mark
    found = read_xyz(path)
    assert found == read_xyz(str(path)) == XyzFile(parse(WATER).molecule, "default", "default")
    assert (found.molecule.name, found.molecule.source) == ("my water.v2", str(path))
    assert found.molecule.text == WATER


def test_read_stdin(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(sys, "stdin", io.TextIOWrapper(io.BytesIO(WATER.encode())))
    found = read_xyz("-", charge=1, multiplicity=2)
    assert (found.molecule.name, found.molecule.source, found.charge_from) == (
        "stdin",
        "stdin",
        "option",
    )
    monkeypatch.setattr(sys, "stdin", io.TextIOWrapper(io.BytesIO(b"1\n\nO 0 0 zero\n")))
    with recorded_error(InputError):
        read_xyz("-")
    monkeypatch.setattr(sys, "stdin", None)
    with recorded_error(InputError):
        read_xyz("-")


@pytest.mark.parametrize(
    "data",
    [
        b"\x89HDF\r\n\x1a\n\0\0",
        WATER.encode("utf-16"),
        WATER.encode("utf-32-le"),
        WATER.replace("water", "Ångström").encode("latin-1"),
        b"",
    ],
)
def test_not_text(tmp_path: Path, data: bytes) -> None:
    path = tmp_path / "w.xyz"
    path.write_bytes(data)
    with recorded_error(InputError) as caught:
        read_xyz(path)
    assert caught.value.exit_code == 3


def test_not_a_readable_file(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    pipe = tmp_path / "pipe.xyz"
    os.mkfifo(pipe)
    loop = tmp_path / "loop.xyz"
    loop.symlink_to(loop)
    for path in (
        tmp_path / "missing.xyz",
        tmp_path,
        pipe,
        Path("/dev/zero"),
        loop,
        tmp_path / ("x" * 300),
        tmp_path / "w.xyz" / "\0",
    ):
        with recorded_error(InputError) as caught:
            read_xyz(path)
        assert caught.value.file == str(path)

    def deny(*_: object) -> None:
        raise PermissionError(13, "Permission denied")

    locked = tmp_path / "locked.xyz"
    locked.write_text(WATER)
    monkeypatch.setattr("builtins.open", deny)
    with recorded_error(InputError):
        read_xyz(locked)


def test_too_large(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    path = tmp_path / "big.xyz"
    with open(path, "wb") as stream:
        stream.truncate(MAX_BYTES + 1)  # sparse: takes no disk space
    tracemalloc.start()
    with recorded_error(InputError):
        read_xyz(path)
    assert tracemalloc.get_traced_memory()[1] < 10**6  # refused before reading
    tracemalloc.stop()
    monkeypatch.setattr("dfmp2.molecule.xyz.MAX_BYTES", 100)
    monkeypatch.setattr(sys, "stdin", io.TextIOWrapper(io.BytesIO(b"1" * 101)))
    with recorded_error(InputError):
        read_xyz("-")


def test_write_is_read_by_pyscf_and_by_us() -> None:
    points = np.array([[0.1, -0.2, 0.3], [1234.5678901234, 0.0, -9999.0], [0.0, 2.0, 1 / 3]])
    molecule = Molecule(("O", "Cl", "H"), points, (False, False, True), charge=-1, multiplicity=3)
    text = write_xyz(molecule)
    again = parse(text)
    assert again.molecule.labels == molecule.labels
    assert (again.molecule.charge, again.molecule.multiplicity) == (-1, 3)
    assert np.abs(again.molecule.coordinates - points).max() < 1e-11
    plain = Molecule(("O", "H"), points[::2] * BOHR_PER_ANGSTROM)
    mol = gto.M(atom=re.sub(r"\A.*\n.*\n", "", write_xyz(plain)), basis="sto-3g", spin=1, verbose=0)
    assert mol.atom_coords() == pytest.approx(plain.coordinates, abs=1e-11)


# --- arbitrary input: a molecule or an InputError, within a second, nothing else ------------------


LIMITS = settings(deadline=None, max_examples=60, derandomize=True)


ODD = st.one_of(
    st.sampled_from(
        [
            "nan",
            "1.0D-3",
            "5.",
            "1_0",
            "0x1",
            "1e999",
            "--1",
            "\u0663",
            "-1",
            "9" * 20,
            "",
            "\r",
            "\n\n1\n\n",
        ]
    ),
    st.sampled_from(
        [*SYMBOLS[:9], "@O", "Gh(H)", "@", "Gh()", "X", "13C", "@@O", "H\x0b", "\u00a0", "0", "119"]
    ),
    st.sampled_from(
        [
            "charge=-1",
            "mult=3",
            "spin=1",
            "pbc='F F F'",
            'Lattice="1',
            "Properties=pos:R:3",
            "a={",
            "k='",
        ]
    ),
    st.text(max_size=8),
)


@st.composite
def nearly_xyz(draw: st.DrawFn) -> str:
    """Water, with some of its words, spaces or line ends replaced."""
    parts = re.split(r"(\s)", WATER)
    for place in draw(st.lists(st.integers(0, len(parts) - 1), max_size=4)):
        parts[place] = draw(ODD)
    return "".join(parts)


def outcome(read: Any, *given: Any, **named: Any) -> XyzFile | InputError:
    try:
        found: XyzFile = read(*given, **named)
    except InputError as error:
        return error
    return found


def check(text: str) -> None:
    begin = time.thread_time()
    found = outcome(parse_xyz, text, file="fuzz.xyz")
    assert time.thread_time() - begin < 1.0
    if isinstance(found, InputError):
        assert (
            found.file == "fuzz.xyz" and str(found).startswith("fuzz.xyz") and len(str(found)) < 300
        )
    else:
        assert np.isfinite(found.molecule.coordinates).all() and found.molecule.natom == int(
            text.split()[0]
        )


@LIMITS
@given(st.one_of(st.text(), nearly_xyz(), nearly_xyz()))
def test_arbitrary_text(text: str) -> None:
    check(text)


@pytest.mark.parametrize(
    "text",
    [
        "1\n" + "k={" * 30_000 + "\nHe 0 0 0",
        "1\n" + "a" * 50_000 + " " * 49_000 + "\nHe 0 0 0",
        "1\n" + "=" * 99_000 + "\nHe 0 0 0",
        "1\nProperties=" + "a:S:1:" * 15_000 + "\nHe 0 0 0",
        "1\n\nHe 0 0 " + "1" * 4000 + "x",
        "1\n\nHe 0 0 0" + "\n" * 10**6 + "x",
        "1\nspin=1e9999999\nHe 0 0 0",
        "1\nms=1e-9999999\nHe 0 0 0",
        "1" * 10**6,
    ],
)
def test_pathological_text_is_refused_or_read_quickly(text: str) -> None:
    check(text)


def test_a_file_has_no_more_than_it_may(monkeypatch: pytest.MonkeyPatch) -> None:
    """Atoms, frames and point charges are taken up to their limit, and one more is refused."""
    limits = "dfmp2.molecule.xyz"
    charges = "0 0 9 0.1\n# between them\n0 0 8 0.2\n"
    monkeypatch.setattr("dfmp2.molecule.files.MOST_CHARGES", 2)
    assert np.shape(_charges(charges)) == (2, 4)
    monkeypatch.setattr("dfmp2.molecule.files.MOST_CHARGES", 1)
    for wrong in (charges, "0 0 9 0.1 0", "0 0 9", f"0 0 9 0.1 #{'-' * 5000}"):
        with recorded_error(InputError):
            _charges(wrong)
    monkeypatch.setattr(f"{limits}.MAX_ATOMS", 2)
    assert parse_xyz("2\n\nH 0 0 0\nH 0 0 0.74\n", file="x").molecule.natom == 2
    with pytest.raises(InputError):
        parse_xyz("3\n\nH 0 0 0\nH 0 0 1\nH 0 0 2\n", file="x")
