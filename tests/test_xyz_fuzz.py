"""The xyz reader meets arbitrary input: a molecule or an InputError, within a second, nothing else."""

from __future__ import annotations

import io
import sys
import time
import tracemalloc
from unittest.mock import patch

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from dfmp2.elements import SYMBOLS
from dfmp2.errors import InputError
from dfmp2.io.xyz import parse_xyz, read_xyz, write_xyz
from dfmp2.molecule import Molecule

LIMITS = settings(deadline=1000, max_examples=300, derandomize=True)

NUMBERS = st.one_of(
    st.floats(allow_nan=True, allow_infinity=True).map(repr),
    st.floats(-10, 10).map(lambda value: f"{value:.6f}"),
    st.sampled_from(["1.0D-3", "-.5", "5.", "1_0", "0x1", "1e999", "--1", "٣", "1e", "", "nan", "+0"]),
)
WORDS = st.one_of(
    st.sampled_from(SYMBOLS),
    st.integers(-1, 120).map(str),
    st.sampled_from(["@O", "Gh(H)", "@", "Gh()", "X", "C1", "h_a", "13C", "@@O", "H\x0b", "\u00a0"]),
    st.text(max_size=4),
)
COMMENTS = st.lists(
    st.one_of(
        st.builds("{}={}".format, st.sampled_from(["charge", "mult", "Multiplicity", "spin", "x"]), st.integers(-3, 3)),
        st.sampled_from(["pbc='F F F'", 'Lattice="1', "Properties=species:S:1:pos:R:3", "Properties=pos:R:3", "a={"]),
        st.text(max_size=8),
    ),
    max_size=2,
).map(" ".join)
PLAIN = st.integers(-99, 99).map(str)
GOOD_LINES = st.builds("{} {} {} {}".format, st.sampled_from(SYMBOLS), PLAIN, PLAIN, PLAIN)
ODD_LINES = st.builds("{} {} {} {} {}".format, WORDS, NUMBERS, NUMBERS, NUMBERS, st.sampled_from(["", "1", "a"]))
ATOM_LINES = st.one_of(GOOD_LINES, GOOD_LINES, GOOD_LINES, ODD_LINES)
ENDINGS = st.sampled_from(["\n", "\r\n", "\r", " \n\t", "\n\n"])


@st.composite
def nearly_xyz(draw: st.DrawFn) -> str:
    """Text that is an xyz file up to a few mistakes."""
    atoms = draw(st.lists(ATOM_LINES, max_size=3))
    count = draw(st.one_of(st.integers(-2, 10**20).map(str), st.text(max_size=5), *[st.just(str(len(atoms)))] * 6))
    trailer = draw(st.sampled_from(["", "\n", "\n\n", "\n\n1\n\nH 0 0 0"]))
    return draw(ENDINGS).join([count, draw(COMMENTS), *atoms]) + trailer


@st.composite
def molecules(draw: st.DrawFn) -> Molecule:
    """Atoms in distinct cells of a grid, so that none are too close."""
    cells = draw(st.lists(st.integers(0, 999), min_size=1, max_size=12, unique=True))
    shifts = draw(st.lists(st.floats(-0.5, 0.5), min_size=3 * len(cells), max_size=3 * len(cells)))
    grid = np.array([(cell // 100, cell // 10 % 10, cell % 10) for cell in cells], dtype=np.float64)
    points = grid * draw(st.floats(3.0, 1000.0)) + np.array(shifts).reshape(-1, 3)
    symbols = draw(st.lists(st.sampled_from(SYMBOLS), min_size=len(cells), max_size=len(cells)))
    ghost = draw(st.lists(st.booleans(), min_size=len(cells) - 1, max_size=len(cells) - 1))
    return Molecule(tuple(symbols), points, (False, *ghost), draw(st.integers(-9, 9)), draw(st.integers(1, 9)))


def outcome(text: str) -> Molecule | InputError:
    try:
        return parse_xyz(text, file="fuzz.xyz").molecule
    except InputError as error:
        return error


def read_or_refuse(path: str) -> InputError | None:
    try:
        read_xyz(path)
    except InputError as error:
        return error
    return None


def check(text: str) -> None:
    found = outcome(text)
    if isinstance(found, Molecule):
        assert np.isfinite(found.coordinates).all()
        assert found.natom == int(text.split()[0])
    else:
        assert found.file == "fuzz.xyz"
        assert str(found).startswith("fuzz.xyz")
        assert len(str(found)) < 300


@LIMITS
@given(st.text())
def test_arbitrary_text(text: str) -> None:
    check(text)


@LIMITS
@given(nearly_xyz())
def test_nearly_xyz(text: str) -> None:
    check(text)


@LIMITS
@given(st.one_of(st.binary(), nearly_xyz().map(lambda text: text.encode("utf-8", "surrogatepass"))))
def test_arbitrary_bytes(data: bytes) -> None:
    with patch.object(sys, "stdin", io.TextIOWrapper(io.BytesIO(data))):
        error = read_or_refuse("-")
    assert error is None or error.file == "stdin"


@LIMITS
@given(st.text(max_size=40))
def test_arbitrary_file_names(name: str) -> None:
    error = read_or_refuse("no-such-directory/" + name)
    assert error is not None
    assert error.file == "no-such-directory/" + name


@LIMITS
@given(molecules())
def test_round_trip(molecule: Molecule) -> None:
    again = parse_xyz(write_xyz(molecule), file="fuzz.xyz").molecule
    assert again.labels == molecule.labels
    assert (again.charge, again.multiplicity) == (molecule.charge, molecule.multiplicity)
    assert np.abs(again.coordinates - molecule.coordinates).max() < 1e-10


def test_lying_header_allocates_nothing() -> None:
    text = "100000\n\n" + "O 0 0 0\n" * 10
    tracemalloc.start()
    with pytest.raises(InputError, match="announces 100000 atoms, but 10 atom lines follow"):
        parse_xyz(text, file="w.xyz")
    peak = tracemalloc.get_traced_memory()[1]
    tracemalloc.stop()
    assert peak < 20_000


@pytest.mark.parametrize(
    "text",
    [
        "1\n" + "k={" * 30_000 + "\nHe 0 0 0",
        "1\n" + "k='" * 30_000 + "\nHe 0 0 0",
        "1\n" + "a" * 50_000 + " " * 49_000 + "\nHe 0 0 0",
        "1\n" + "=" * 99_000 + "\nHe 0 0 0",
        "1\nProperties=" + "a:S:1:" * 15_000 + "\nHe 0 0 0",
        "1\n\nHe 0 0 " + "1" * 4000 + "x",
        "1\n\nHe 0 0 0" + "\n" * 10**6,
        "1\n\nHe 0 0 0" + "\n" * 10**6 + "x",
        "\n" * 10**6,
        "1" * 10**6,
    ],
)
def test_pathological_text_is_refused_or_read_quickly(text: str) -> None:
    start = time.perf_counter()
    check(text)
    assert time.perf_counter() - start < 1.0


def test_ten_thousand_atoms() -> None:
    atoms = "\n".join(f"H {3 * (i % 100)} {3 * (i // 100)} 0" for i in range(10_000))
    start = time.perf_counter()
    assert parse_xyz(f"10000\n\n{atoms}", file="w.xyz").molecule.natom == 10_000
    assert time.perf_counter() - start < 2.0
