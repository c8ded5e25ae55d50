"""Source rules for kernel files: each refused form, and the same statement in a form that is
accepted."""

from __future__ import annotations

from pathlib import Path

import pytest

from dfmp2.trainium import kernels
from dfmp2.trainium.interpreter.lint import read_source
from dfmp2.trainium.interpreter.rules import NotInSubset, Violation
from tests.recorded import recorded_error

MODULE = """\
import nki
import nki.isa as nisa
import nki.language as nl

{module}

def part(x, y):
    return x


@nki.jit
def kernel(a, n):
    out = nl.ndarray((128, 64), dtype=nl.float32, buffer=nl.shared_hbm)
{body}
    return out
"""

# rule, refused statement in the kernel, accepted counterpart ("": leave it out, or it is the next
# row)
BODY = [
    ("syntax", "f = lambda x: x", "f = part(a, n)"),
    ("syntax", "def inner(x):\n    return x", ""),
    ("syntax", "class Inner:\n    pass", ""),
    ("syntax", "t = [k for k in range(n)]", "t = []\nfor k in range(n):\n    t.append(k)"),
    ("syntax", "t = {k for k in range(n)}", ""),
    ("syntax", "t = {'a': k for k in range(n)}", ""),
    ("syntax", "t = max(k for k in range(n))", "t = max(1, n)"),
    ("syntax", "t = n is None", "t = n == 0"),
    ("syntax", "t = n is not None", "t = n != 0"),
    ("syntax", "if (m := n) > 1:\n    pass", "m = n\nif m > 1:\n    pass"),
    ("syntax", "t = (*a.shape, 1)", "t = (a.shape[0], 1)"),
    ("syntax", "try:\n    pass\nfinally:\n    pass", ""),
    ("syntax", "with open(n):\n    pass", "with nl.no_reorder():\n    pass"),
    ("syntax", "with nl.no_reorder() as block:\n    pass", "with nl.no_reorder():\n    pass"),
    ("syntax", "with nl.no_reorder(), open(n):\n    pass", ""),
    ("syntax", "t = f'{n}'", "print(f'{n}')"),
    ("syntax", "t = f'{n}'", "assert n > 0, f'{n}'"),
    ("syntax", "t = {1: n}", "t = {'one': n}"),
    ("syntax", "raise n", "assert n"),
    ("syntax", "match n:\n    case 1:\n        pass", "if n == 1:\n    pass"),
    ("syntax", "yield n", ""),
    ("syntax", "yield from n", ""),
    ("syntax", "del n", ""),
    ("syntax", "t = {n, 1}", ""),
    ("syntax", "try:\n    pass\nexcept* n:\n    pass", ""),
    ("syntax", "await n", ""),
    ("syntax", "async for k in n:\n    pass", ""),
    ("syntax", "async with n:\n    pass", ""),
    ("syntax", "nisa.memset(**a)", "nisa.memset(dst=a, value=0.0)"),
    ("syntax", "part(**a)", "part(x=a, y=n)"),
    ("loop-target", "for k, m in a:\n    pass", "for k in range(n):\n    pass"),
    ("purity", "global LIMIT", ""),
    ("purity", "nonlocal n", ""),
    ("import", "import nki", ""),
    ("not-in-subset", "t = a.view(n)", "t = a.reshape(n)"),
    ("not-in-subset", "for k in enumerate(n):\n    pass", "for k in range(len(n)):\n    pass"),
    ("not-in-subset", "t = sum(n)", ""),
    ("not-in-subset", "t = int", "int = n\nt = int"),
]
MODULE_LEVEL = [
    ("purity", "LIMIT = [1]", "LIMIT = (1, 2 * 3, nl.float32)"),
    ("purity", "LIMIT = {}", "LIMIT = None"),
    ("purity", "LIMIT = part(1)", "LIMIT = 1"),
    ("purity", "LIMIT = 1\nLIMIT = 2", "LIMIT = 1\nOTHER = -LIMIT"),
    ("purity", "LIMIT = 1\nLIMIT += 1", ""),
    ("purity", "part.limit = 1", "LIMIT = 1"),
    ("purity", "FIRST, SECOND = 1, 2", "FIRST = 1\nSECOND = 2"),
    ("purity", "if True:\n    LIMIT = 1", ""),
    ("syntax", "class Plan:\n    pass", ""),
    ("import", "import numpy as np", ""),
    ("import", "from numpy import float32", ""),
    ("import", "from torch import float32", ""),
    ("import", "from jax import numpy", ""),
    ("import", "from . import row_tiles", ""),
    ("import", "from nki.isa import memset", "from nki import isa as other"),
    ("import", "from nki.compiler import trace", "from nki_parts import emit"),
    ("import", "from neuronxcc.nki import language", "from row_tiles import emit"),
    ("import", "from math import prod", "from __future__ import annotations"),
    ("import", "from row_tiles import *", "from row_tiles import emit"),
    ("import", "import nki.language", "import nki.language as other"),
    ("syntax", "def two(x, *, y):\n    return x", "def two(x, y):\n    return x"),
    ("syntax", "def two(x, /, y):\n    return x", ""),
    ("syntax", "async def two(x):\n    return x", ""),
    ("syntax", "def two(*x):\n    return x", "def two(x):\n    return x"),
    ("syntax", "def two(**x):\n    return x", "def two(x=1):\n    return x"),
    ("kernel-arguments", "def two(x=[1]):\n    return x", "def two(x=(1,)):\n    return x"),
    (
        "jit",
        "@nki.jit(mode='trace')\ndef two(x):\n    return x",
        "@nki.jit\ndef two(x):\n    return x",
    ),
    ("sub-kernel", "@part\ndef two(x):\n    return x", ""),
]


def lint(text: str, name: str) -> None:
    for violation in read_source(text, name).broken.values():
        raise violation


def source(body: str = "", module: str = "") -> str:
    return MODULE.format(module=module, body="\n".join("    " + line for line in body.splitlines()))


@pytest.mark.parametrize(
    ("rule", "bad", "good", "inside"),
    [*((*row, True) for row in BODY), *((*row, False) for row in MODULE_LEVEL)],
    ids=[f"{rule}:{bad[:24]}" for rule, bad, _ in (*BODY, *MODULE_LEVEL)],
)
def test_refused_statement_and_its_counterpart(rule, bad, good, inside):
    good_text, text = (
        source(part or "pass") if inside else source("pass", part) for part in (good, bad)
    )
    lint(good_text, "kernel.py")
    if not bad:
        return
    with recorded_error(Violation) as caught:
        lint(text, "kernel.py")
    assert caught.value.rule == rule and caught.value.source
    assert isinstance(caught.value, NotInSubset) == (rule == "not-in-subset")
    if inside:
        first = text[: text.index("    out = nl.ndarray")].count("\n") + 2
        assert caught.value.place in [
            f"kernel.py:{line}" for line in range(first, first + len(bad.splitlines()))
        ]


def test_kernel_files_of_the_package_pass():
    folder = Path(kernels.__file__).parent
    files = [path for path in folder.glob("*.py") if path.stem != "__init__"]
    assert len(files) > 2
    for path in files:
        lint(path.read_text(), path.name)
