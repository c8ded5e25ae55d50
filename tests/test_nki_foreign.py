"""`check_foreign_kernels.py`: kernels in the idioms of public code, written by us; our own stay under all rules."""

from __future__ import annotations

import json
import os
import statistics
import sys
from pathlib import Path
from types import SimpleNamespace

import numpy as np
import pytest

from dfmp2.trainium.interpreter.rules import RULES, WAIVABLE, Settings, Violation
from dfmp2.trainium.interpreter.run import run_kernel

sys.path.insert(0, str(Path(__file__).parent.parent / "scripts"))

import check_foreign_kernels
from foreign_kernels.dialects import run_foreign

OLDER = """
import os
from neuronxcc import nki
import neuronxcc.nki.language as nl
import neuronxcc.nki.isa as nisa
import neuronxcc.nki.typing as nt
import torch_xla.core.xla_model as xm
import numpy as np
from constants import ROWS

os.environ["FOREIGN"] = "1"

@nki.jit
def place(a, b):
    out = nl.ndarray(a.shape, dtype=a.dtype, buffer=nl.shared_hbm)
    i = nl.program_id(0) * ROWS + nl.arange(ROWS)[:, None]
    j = nl.program_id(1) * 64 + nl.arange(64)[None, :]
    x, y = nl.load(a[i, j], mask=(i < a.shape[0])), nl.load(b[i, j], mask=(i < a.shape[0]))
    z = nl.ndarray((ROWS, 64), dtype=a.dtype, buffer=nl.sbuf)
    z[...] = 2.0 - x * 3 + y / 4.0
    z -= nl.copy(y, mask=(i < a.shape[0]))
    nl.store(out[i, j], value=z, mask=(i < a.shape[0]))
    return out

def grid(a, b):
    return place[nl.spmd_dim(1, nl.nc(2)), a.shape[1] // 64](a, b)

@nki.jit
def pooled(a, size: int):
    p, h, w = a.shape
    out = nl.ndarray((p, h // size, w // size), dtype=a.dtype, buffer=nl.shared_hbm)
    i, j, k, l, m = nl.mgrid[0:p, 0 : h // size, 0:size, 0 : w // size, 0:size]
    tile = nl.load(a)
    means = nl.sum(tile[i, size * j + k, size * l + m], axis=[2, 4]) / (size * size)
    nl.store(out, value=nl.max(tile, axis=[1, 2], keepdims=True) - np.float32(2) * means)
    return out

@nki.jit
def blocks(a, b, fill):
    depth, width = a.shape
    out = nl.ndarray((width, b.shape[1]), dtype=a.dtype, buffer=nl.shared_hbm)
    left = nl.zeros((depth // 128, nl.par_dim(128), width), dtype=a.dtype)
    for k in nl.affine_range(depth // 128):
        left[k] = nl.load(a[nl.ds(k * 128, 128), :])
        left[k, :, 0:1] += left[k, :, 0:1]
    sums = nl.zeros((width, b.shape[1]), dtype=np.float32, buffer=nl.psum)
    if fill:
        sums[...] = fill
    for k in nl.sequential_range(depth // 128):
        right: nt.tensor[128, b.shape[1]] = nl.load(b[k * 128 : (k + 1) * 128])
        sums += nisa.nc_matmul(left[k], right)
    most = nisa.tensor_reduce(np.max, sums, axis=(1,))
    shifted = nisa.activation(op=nl.exp, data=nl.subtract(sums, most), scale=0.5)
    total = nisa.tensor_reduce(op=np.add, data=shifted, axis=1, keepdims=True)
    nl.store(dst=out, value=nisa.tensor_scalar(shifted, np.multiply, nisa.reciprocal(total), engine=nisa.vector_engine))
    return out

@nki.jit
def row_minus_column(a, column):
    out = nl.ndarray(a.shape, dtype=a.dtype, buffer=nl.shared_hbm)
    row = nl.load_transpose2d(column)
    nl.store(out, value=nl.max(nl.subtract(nl.subtract(row, nl.load(column)), nl.load(a)), axis=1) * nl.load(a))
    return out

@nki.jit
def turned(tile):
    return nl.transpose(tile)

@nki.jit
def product(a, b):
    out = nl.ndarray((a.shape[0], b.shape[1]), dtype=a.dtype, buffer=nl.shared_hbm)
    nl.store(out, value=nl.transpose(nl.matmul(turned(nl.load(b)), nl.transpose(nl.load(a)))))
    return out

@nki.jit
def unknown(a):
    return nl.softmax(nl.load(a), axis=1)
"""
NEWER = """
from dataclasses import dataclass

import nki
import nki.isa as nisa
import nki.language as nl
from nki.language import NKIObject

from ..shared.sizes import tiles

SILU = {"silu": nl.silu, "gelu": nl.gelu}

@dataclass
class Place(NKIObject):
    start: int = 0

@nki.jit(platform_target="trn1")
def scan(a, start=None):
    out = nl.ndarray(a.shape, dtype=a.dtype, buffer=nl.shared_hbm)
    ones = nl.ndarray((128, 32), a.dtype)
    nisa.memset(ones, 1)
    carry = nl.ndarray((128, 1), dtype=nl.float32, buffer=nl.sbuf)
    nisa.memset(dst=carry, value=0.0 if start is None else start)
    for low in tiles(a.shape[1], 32):
        x = nl.ndarray((128, 32), dtype=a.dtype, buffer=nl.sbuf)
        nisa.dma_copy(x, a[:, nl.ds(Place(low).start, 32)])
        y = nl.ndarray((128, 32), dtype=a.dtype, buffer=nl.sbuf)
        nisa.tensor_tensor_scan(dst=y, data0=ones, data1=x, initial=carry, op0=nl.multiply, op1=nl.add)
        nisa.tensor_copy(carry, y[:, 31])
        nisa.dma_copy(a.ap(pattern=[[a.shape[1], 128], [1, 32]], offset=low), y)
    nisa.dma_copy(dst=out, src=a)
    return out

@nki.jit
def product(a, b, form):
    out = nl.ndarray((a.shape[1], b.shape[2]), dtype=a.dtype, buffer=nl.shared_hbm)
    sums = nl.ndarray((a.shape[1], b.shape[2]), dtype=nl.float32, buffer=nl.psum)
    if form == "filled":
        nisa.memset(sums, value=0.0)
    for k in range(b.shape[0]):
        left = nl.ndarray((128, a.shape[1]), dtype=a.dtype, buffer=nl.sbuf)
        nisa.dma_copy(dst=left, src=a[k * 128 : (k + 1) * 128, ...])
        right = nl.ndarray((128, 2, b.shape[2] // 2), dtype=a.dtype, buffer=nl.sbuf)
        nisa.dma_copy(dst=right, src=b[k].reshape((128, 2, b.shape[2] // 2)))
        nisa.nc_matmul(sums, left, right, accumulate=True if form == "filled" else None)
    if form == "added":
        sums += sums
    result = nl.ndarray(sums.shape, dtype=a.dtype, buffer=nl.sbuf)
    nisa.activation(result, nl.silu, sums)
    nisa.dma_copy(dst=out, src=result)
    return out

@nki.jit
def rows(a, count):
    out = nl.ndarray(a.shape, dtype=a.dtype, buffer=nl.shared_hbm)
    number = nl.ndarray((1, 1), dtype=nl.int32, buffer=nl.sbuf)
    nisa.dma_copy(dst=number, src=count[0])
    place = nl.ndarray((1, 1), dtype=nl.int32, buffer=nl.sbuf)
    nisa.memset(place, 0)
    end = nisa.register_alloc()
    nisa.register_load(end, number)
    for _ in nl.dynamic_range(0, end, 1):
        x = nl.ndarray((32, a.shape[1]), dtype=a.dtype, buffer=nl.sbuf)
        there = [[a.shape[1], 32], [1, a.shape[1]]]
        nisa.dma_copy(x, a.ap(pattern=there, scalar_offset=place, indirect_dim=0))
        nisa.tensor_tensor(x, x, x, nl.add)
        nisa.dma_copy(out.ap(pattern=there, scalar_offset=place, indirect_dim=0), x)
        nisa.tensor_scalar(place, place, op0=nl.add, operand0=32)
    return out
"""


def place(text):
    """ "older.py:line" of a text."""
    return f"older.py:{OLDER[: OLDER.index(text)].count(chr(10)) + 1}"


def silu(x):
    return x / (1 + np.exp(-x))


def softmax_of_product(a, b, fill):
    a = a.copy()
    a[:, 0] *= 2
    sums = a.T @ b
    weights = np.exp(0.5 * (sums - sums.max(1, keepdims=True)))
    return weights / weights.sum(1, keepdims=True)


def difference(a, column):
    return (column.T - column - a).max(1, keepdims=True) * a


# name -> file, kernel, shapes and constants, reference, verdict, rules that are not obeyed
IDIOMS = {
    "grid, operators, masks": (
        *("older.py", "grid", {"a": (100, 128), "b": (100, 128)}),
        *(lambda a, b: 2 - 3 * a + b / 4 - b, "breaks uninitialised-read", ["uninitialised-read"]),
    ),
    "index grids": (
        *("older.py", "pooled", {"a": (7, 6, 9), "size": 3}),
        *(
            lambda a, _: a.max((1, 2), keepdims=True) - 2 * a.reshape(7, 2, 3, 3, 3).mean((2, 4)),
            "runs",
            [],
        ),
    ),
    "blocks, accumulation in place": (
        *(
            "older.py",
            "blocks",
            {"a": (256, 64), "b": (256, 200), "fill": 0},
            softmax_of_product,
            "runs",
            [],
        ),
    ),
    "rows beside columns": (
        *(
            "older.py",
            "row_minus_column",
            {"a": (80, 80), "column": (80, 1)},
            difference,
            "runs",
            [],
        ),
    ),
    "transposes": (
        "older.py",
        "product",
        {"a": (90, 70), "b": (70, 110)},
        lambda a, b: a @ b,
        "runs",
        [],
    ),
    "package, scan, arguments written": (
        *("library/newer/kernels.py", "scan", {"a": (128, 96), "start": 1}),
        *(lambda a, _: 1 + a.cumsum(1), "runs", ["input-written", "hbm-order", "dma-spaces"]),
    ),
    "first product overwrites": (
        *("library/newer/kernels.py", "product", {"a": (256, 90), "b": (2, 128, 64), "form": ""}),
        *(lambda a, b, _: silu(a.T @ b.reshape(256, 64)), "runs", []),
    ),
    "products onto a fill": (
        *(
            "library/newer/kernels.py",
            "product",
            {"a": (256, 90), "b": (2, 128, 64), "form": "filled"},
        ),
        *(lambda a, b, _: silu(a.T @ b.reshape(256, 64)), "breaks matmul-group", ["matmul-group"]),
    ),
    "registers and loops": (
        *(
            "library/newer/kernels.py",
            "rows",
            {"a": (128, 40), "count": np.full((1, 1), 4, np.int32)},
        ),
        *(lambda a, _: 2 * a, "runs", ["dma-shape"]),
    ),
    "unknown names": (
        "older.py",
        "unknown",
        {"a": (8, 8)},
        lambda a: a,
        "refused: not-in-subset",
        [],
    ),
}


@pytest.fixture
def checkout(folder: Path) -> Path:
    """A folder of kernels in both dialects: a file beside its constants, and a package that cannot be initialised."""
    files = {
        "older.py": OLDER,
        "constants.py": "ROWS = 64",
        "library/__init__.py": "raise ImportError('needs a device')",
        "library/newer/__init__.py": "",
        "library/newer/kernels.py": NEWER,
        "library/shared/__init__.py": "",
        "library/shared/sizes.py": "def tiles(size, step):\n    return range(0, size, step)\n",
    }
    for name, text in files.items():
        (folder / "theirs" / name).parent.mkdir(parents=True, exist_ok=True)
        (folder / "theirs" / name).write_text(text)
    return folder / "theirs"


@pytest.fixture
def command(capsys):
    """Runs the script in this process: its exit code, and what it printed."""

    def run(*arguments):
        code = check_foreign_kernels.main([str(word) for word in arguments])
        return SimpleNamespace(code=code, **capsys.readouterr()._asdict())

    return run


@pytest.fixture
def foreign(command, checkout, monkeypatch):
    """Runs the command on rows as in IDIOMS, and returns what it finished with and its kernels by name."""

    def run(*rows, more=()):
        made = []
        for file, kernel, sizes, reference, *_ in rows:

            def inputs(random, sizes=sizes):
                return {
                    n: random.standard_normal(s) if isinstance(s, tuple) else s
                    for n, s in sizes.items()
                }

            made.append(
                {
                    "file": file,
                    "kernel": kernel,
                    "inputs": inputs,
                    "reference": reference,
                    "target": "trn2",
                }
            )
        monkeypatch.setattr("builtins.FOREIGN_CASES", made, raising=False)
        (checkout / "cases.py").write_text("import builtins\nCASES = builtins.FOREIGN_CASES\n")
        done = command(checkout, "--cases", checkout / "cases.py", "--json", *more)
        return done, json.loads(done.out)["kernels"]

    return run


def test_kernels_in_the_idioms_of_others_agree_with_numpy(foreign):
    done, found = foreign(*IDIOMS.values())
    for name, row, one in zip(IDIOMS, IDIOMS.values(), found, strict=True):
        assert (one["verdict"], one["rules"]) == row[4:], (name, one["refusal"], one["error"])
        assert one["error"] is None or one["error"] < 2e-6, name
    assert (
        place("nl.softmax") + ": [not-in-subset] neuronxcc.nki.language.softmax"
        in found[-1]["refusal"]
    )
    assert done.code == 6 and "3 of 10 kernels differ, are refused or break" in done.err


@pytest.mark.parametrize(
    "name", [name for name, row in IDIOMS.items() if not row[4].startswith("refused")]
)
def test_nothing_is_rounded_where_storage_is_float64(checkout, name):
    file, kernel, sizes, reference, *_ = IDIOMS[name]
    random = np.random.default_rng(2)
    given = {
        n: random.random(s, np.float32) if isinstance(s, tuple) else s for n, s in sizes.items()
    }
    settings = Settings(target="gen3", release="0.6.0", storage="float64", waived=WAIVABLE)
    (found,), _ = run_foreign(checkout, file, kernel, given, settings)
    wanted = reference(
        *(v.astype(np.float64) if isinstance(sizes[n], tuple) else v for n, v in given.items())
    )
    assert abs(found - wanted).max() < 1e-12 * abs(wanted).max()


def test_a_wrong_kernel_is_found(foreign):
    file, kernel, sizes, reference, *_ = IDIOMS["transposes"]
    done, found = foreign(
        (file, kernel, sizes, lambda a, b: reference(a, b) * 1.0001), IDIOMS["unknown names"]
    )
    assert (found[0]["verdict"], done.code) == ("differs", 8)
    assert 0.9e-4 < found[0]["error"] < 1.1e-4


def test_products_are_not_added_to_other_numbers_in_psum(foreign):
    row = IDIOMS["blocks, accumulation in place"]
    _, (found,) = foreign((*row[:2], {**row[2], "fill": 1.0}, row[3]))
    assert (
        found["verdict"] == "refused: matmul-group"
        and "to other numbers in PSUM" in found["refusal"]
    )


def test_rules_of_the_chip_hold_for_kernels_of_others(foreign):
    row = IDIOMS["first product overwrites"]
    _, (wide, deep) = foreign(
        (*row[:2], {"a": (128, 90), "b": (1, 128, 1200), "form": ""}, row[3]),
        ("older.py", "product", {"a": (200, 70), "b": (70, 110)}, row[3]),
    )
    assert wide["verdict"] == "refused: psum-bank" and "4800 bytes per partition" in wide["refusal"]
    assert (
        deep["verdict"] == "refused: partition-count"
        and place("nl.transpose(nl.matmul(") in deep["refusal"]
    )


X = "x = nl.load(a)\n    "
OUT = "out = nl.ndarray(a.shape, dtype=a.dtype, buffer=nl.shared_hbm)\n    "
REFUSED = [
    (
        "index",
        "nl.load(a[nl.arange(9)[:, None], nl.arange(8)[None, :]])",
        "elements 0 to 71 of (8, 8)",
    ),
    ("index", "nl.load(a[0:9, 0:8])", "0:9:1 in dimension 0 of (8, 8)"),
    ("index", "nl.load(a[0, 0, 0])", "3 indices for a tensor of shape (8, 8)"),
    (
        "access-pattern",
        "nl.load(a[nl.arange(3)[:, None] ** 2, nl.arange(8)[None, :]])",
        "are not affine",
    ),
    (
        "not-in-subset",
        "nl.load(a, mask=np.eye(8, dtype=bool))",
        "a mask that leaves nothing, or no box",
    ),
    ("not-in-subset", "nl.load(a, mask=(nl.arange(8)[:, None] > 9))", "a mask that leaves nothing"),
    (
        "partition-step",
        X + "x.reshape((4, 16))",
        "reshape of (8, 8) to (4, 16): partitions become columns",
    ),
    ("partition-match", X + "nisa.tensor_tensor(x[0:4], x, x, nl.add)", "on 4 and 8 partitions"),
    ("element-count", X + "nl.add(x, x[:, 0:3])", "(8, 3) as (8, 8)"),
    ("reduce-axis", X + "nl.sum(x, axis=(0, 1))", "axis=(0, 1) for a tile"),
    (
        "both-psum",
        "p = nl.zeros((8, 8), nl.float32, buffer=nl.psum)\n    nisa.tensor_tensor(p, p, p, nl.add)",
        "PSUM",
    ),
    ("buffer-object", "nl.ndarray((8, 8), nl.float32, buffer='anywhere')", "buffer='anywhere'"),
    ("tensor-dtype", "nl.ndarray((8, 8), dtype=nl.float8_e4m3)", "dtype=nki.language.float8_e4m3"),
    ("signature", X + "nisa.tensor_tensor(x, x)", "nisa.tensor_tensor: missing op"),
    ("signature", X + "nisa.reciprocal(x, x, fast=True)", "nisa.reciprocal: unknown fast"),
    (
        "not-in-subset",
        X + "nisa.nc_matmul(x, x, x, tile_size=(32, 32))",
        "nisa.nc_matmul with tile_size",
    ),
    ("kernel-error", X + "x.astype(nl.float16)", "AttributeError: tensor attribute astype"),
    ("kernel-error", "raise RuntimeError('no device')", "RuntimeError: no device"),
    ("kernel-assert", "assert a.shape[0] == 7, 'seven rows'", "assertion failed: seven rows"),
    ("output-space", X + "return x", "the kernel returns Tile"),
    (
        "output-unwritten",
        OUT + "nl.store(out[0:4], nl.load(a[0:4]))\n    return out",
        "elements of output (8, 8)",
    ),
]


def test_what_is_wrong_is_refused_by_name(foreign, checkout):
    head = "import numpy as np, nki, nki.isa as nisa, nki.language as nl\n"
    bodies = [
        f"@nki.jit\ndef k{number}(a):\n    {body}\n" for number, (_, body, _) in enumerate(REFUSED)
    ]
    (checkout / "wrong.py").write_text(head + "\n".join(bodies))
    rows = [
        ("wrong.py", f"k{number}", {"a": (8, 8)}, lambda a: a) for number in range(len(REFUSED))
    ]
    done, found = foreign(*rows)
    for (rule, body, message), one in zip(REFUSED, found, strict=True):
        assert one["verdict"] == f"refused: {rule}", (body, one["refusal"])
        assert ("wrong.py:" in one["refusal"] or rule == "output-space") and message in one[
            "refusal"
        ], body
    assert done.code == 6


def test_nothing_of_a_checkout_is_left_behind(foreign, checkout):
    before = set(sys.modules), sys.path[:], dict(os.environ)
    foreign(*list(IDIOMS.values())[:6])
    assert {
        name
        for name in sys.modules.keys() - before[0]
        if "nki" in name or name in ("older", "constants")
    } == set()
    assert "library" not in sys.modules and sys.path == before[1] and "FOREIGN" not in os.environ
    assert not list(checkout.rglob("__pycache__"))


def test_a_file_may_have_the_name_of_a_loaded_module(foreign, checkout):
    (checkout / "statistics.py").write_text(OLDER)
    _, (found,) = foreign(("statistics.py", *IDIOMS["transposes"][1:]))
    assert found["verdict"] == "runs" and sys.modules["statistics"] is statistics


def test_the_same_kernels_are_refused_as_ours(checkout):
    with pytest.raises(Violation, match=r"older.py:2: \[import\] import os"):
        run_kernel(str(checkout / "older.py"), "product", {})
    assert Settings().waived == frozenset() and set(RULES) > WAIVABLE


@pytest.mark.parametrize("name", ["divide", "power", "relu", "tanh"])
def test_operators_of_others_are_none_of_ours(checkout, name):
    text = f"import nki\nimport nki.language as nl\n\n\n@nki.jit\ndef k(a: nl.ndarray) -> int:\n    x = nl.{name}\n"
    (checkout / "ours.py").write_text(text)
    with pytest.raises(Violation, match=rf"ours.py:7: \[not-in-subset\] nl.{name}"):
        run_kernel(str(checkout / "ours.py"), "k", {"a": np.ones((2, 2), np.float32)})


def test_a_folder_that_is_not_there_is_named(command):
    done = command("nowhere")
    assert (
        done.code == 3
        and "nowhere: no such folder: name a checkout of the kernels' repository" in done.err
    )


@pytest.mark.parametrize(
    ("cases", "message"),
    [
        (None, "holds no kernel that is known here"),
        ("", "expected CASES, a list of dicts with file, kernel, inputs and reference: KeyError"),
        ("CASES = [{'file': 'older.py'}]", "Case.__init__() missing 3 required"),
        (
            "CASES = [dict(file='older.py', kernel='k', inputs=None, reference=dict)]",
            "inputs of k: TypeError",
        ),
        (
            "CASES = [dict(file='no.py', kernel='k', inputs=dict, reference=dict)]",
            "kernel k: no file",
        ),
        (
            "CASES = [dict(file='older.py', kernel='k', inputs=lambda r: {}, reference=dict)]",
            "no function k",
        ),
    ],
)
def test_bad_input_is_named(command, checkout, cases, message):
    (checkout / "cases.py").write_text(cases or "")
    done = command(checkout, *([] if cases is None else ["--cases", checkout / "cases.py"]))
    assert done.code == 3 and message in done.err, done.err


def test_known_kernels_are_found_by_their_files(command, checkout):
    """A file of ours at the place of a public one: the table knows its name, shapes and reference."""
    place = checkout / "trnblas" / "nki" / "dispatch.py"
    place.parent.mkdir(parents=True)
    lines = (
        "import neuronxcc.nki as nki\nimport neuronxcc.nki.language as nl\n\n@nki.jit\ndef _syrk_kernel(a):\n"
        "    n, out = a.shape[0], nl.ndarray((a.shape[0], a.shape[0]), dtype=a.dtype, buffer=nl.shared_hbm)\n"
        "    for i in range(0, n, 128):\n        s = nl.zeros((128, n), dtype=nl.float32, buffer=nl.psum)\n"
        "        for k in range(0, a.shape[1], 128):\n"
        "            s += nl.matmul(nl.load_transpose2d(a[i : i + 128, k : k + 128]),\n"
        "                           nl.load_transpose2d(a[:, k : k + 128]), transpose_x=True)\n"
        "        nl.store(out[i : i + 128], value=s)\n    return out\n"
    )
    place.write_text(lines)
    done = command(checkout)
    row = next(line for line in done.out.splitlines() if line.startswith("_syrk_kernel"))
    assert row.split()[1] == "trn1" and row.endswith("runs") and float(row.split()[2]) < 1e-6
    assert done.code == 0 and done.out.splitlines()[-1] == "1 of 1 run and agree with NumPy"
