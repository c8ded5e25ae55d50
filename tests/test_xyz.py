"""The xyz reader: geometry against PySCF, a file that is too large, and arbitrary text.

Spellings, comments, limits and refusals are in the session xyz-texts."""

from __future__ import annotations

import re
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
from dfmp2.molecule.xyz import MAX_BYTES, XyzFile, parse_xyz, read_xyz
from tests.recorded import recorded_error

WATER = """3
water
O   0.000000  0.000000  0.117300
H   0.000000  0.757200 -0.469200
H   0.000000 -0.757200 -0.469200
"""


def parse(text: str, **options: Any) -> XyzFile:
    return parse_xyz(text, file="w.xyz", **options)


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


def test_too_large(tmp_path: Path) -> None:
    path = tmp_path / "big.xyz"
    with open(path, "wb") as stream:
        stream.truncate(MAX_BYTES + 1)  # sparse: takes no disk space
    tracemalloc.start()
    with recorded_error(InputError):
        read_xyz(path)
    assert tracemalloc.get_traced_memory()[1] < 10**6  # refused before reading
    tracemalloc.stop()


# --- arbitrary input: a molecule or an InputError, within a second, nothing else ------------------


LIMITS = settings(deadline=None, max_examples=40, derandomize=True)


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
        assert found.file == "fuzz.xyz" and len(str(found)) < 300
        place = "" if found.line is None else f", line {found.line}"
        assert str(found).startswith(f"fuzz.xyz{place}: ") and str(found).isprintable()
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
