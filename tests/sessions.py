"""Sessions: files, commands and Python expressions that follow each other in one folder, with all
that they printed and wrote. A session is a text file in `tests/data/sessions`:

    # relative 1e-4: what it is about; the tolerance may be left out unless numbers are differences
    file h2o.xyz
        3
        ...
    $ dfmp2 run h2o.xyz --basis sto-3g -o a.h5
        what the command printed
    >>> a = dfmp2.read("a.h5")
    ... a.total_energy
        what the expression is; lines after `...` go on as in Python's own prompt

`# slow: ...`, also before a tolerance, marks a session that only `scripts/check --all` runs. Lines
that are indented below `$` and `>>>` are recorded. `VARIABLE=value` may precede `dfmp2`; a command
`page FILE [N]` prints (the first N) rows and marks of the page of a result, `datasets FILE` the
datasets of an HDF5 file, `cat FILE` a file, or its length and sums if it is long. Before a command
or `cat`, `whole` keeps what else is left out because it differs between hosts: sizes of memory,
predicted times, the columns of a table; `whole(VALUE)` does so in Python. `each(FUNCTION, *ROWS)`
shows a line for each call of a function, with what it is or raises.

`python -m tests.sessions [NAME...]` runs sessions and writes their files anew, to be read as a
diff: each changed number needs a reason.
"""

from __future__ import annotations

import ast
import json
import math
import os
import re
import shlex
import shutil
import sys
import tempfile
import warnings
from collections.abc import Callable, Iterator
from contextlib import chdir, redirect_stderr, redirect_stdout, suppress
from functools import partial
from io import StringIO
from pathlib import Path
from typing import Any
from zlib import crc32

import h5py
import numpy as np
import pytest

import dfmp2
from dfmp2.errors.messages import PYTHON, serving
from dfmp2.planning.rates import DiskRates
from tests.conftest import run_here, work_here, write_rates
from tests.report_page import parse

STORED = Path(__file__).parent / "data" / "sessions"
INDENT = "    "
PROMPT, GOES_ON = ">>> ", "... "
SESSION = "<session>"  # file of the Python lines, in which their warnings arise
LONGEST = 60  # lines of a file that are shown; of a longer one, sums
RELATIVE = 1e-6
ABSOLUTE = 4e-9  # Eh by which energies of pairs in mixed precision differ between processors
LETTERS = str.maketrans("0123456789", "ghijklmnop")  # for a check that does not look like a number
NUMBER = re.compile(r"[-+]?\d+\.\d*(?:[eEdD][-+]?\d+)?")
ANY_NUMBER = re.compile(r"[-+]?\d+(?:\.\d+)?(?:e[-+]?\d+)?")  # integers too
# In JSON and on pages: depends on the host, the time or the version; sentences; and whatever
# rounding may change.
CHANGING = re.compile(
    r"provenance|timings|memory|storage|resources|seconds|sha256|SHA-256|hash|created|version|"
    r"command|host|threads|processor|peak|kernel|predict|finished|wall|MB|GB|file_time|path|"
    r"[0-9a-f]{12,}|PySCF \d|/how |summary|iterations|cycles|history|condition|"
    r"certificate/.*(error|difference|slope)"
)
# Rows and marks of pages: seconds of a stage, cycles of an SCF, zeros up to rounding, positions in
# a picture, versions.
LEFT_OUT = re.compile(
    r"(python|numpy|scipy|pyscf|h5py) \| [\d.]+|"
    r"[A-Za-z ]+( \| [\d.e-]*){4}|\d+ \| -\d+\.\d{10} \| .*|electrons difference.*|"
    r"SCF convergence .*|\d+ [A-Z][a-z]?|"
    r"(change of the energy|orbital gradient|largest rotation|no point has an energy).*"
)
TIME_OF_A_RUN = r"\d+ \| [\d.]+(?= \| CPU)"  # and its cycles
TIME_LEFT = ", (about .*|a few seconds) left$"
HOST = re.compile(
    r"processor|provenance|memory|peak|finished at|started|PySCF \d|sha256|version|prepared on|"
    r"device and libraries|wall time: |AVX|X86_V|\(PySCF\)|"
    r"prepared: (host|platform|python|numpy|scipy|pyscf|h5py|blas|backend details)|"
    r"/how |^ *(SCF|integrals|transformation|metric and fit|pair energies|total|gradient|stability|"
    r"everything else|fitting certificate)[a-z ,]* \d+\.\d\d?( |$)"
)
NO_PAIR = "| 0.00000000 | 0.00000000 | 0.00000000 | 0.00"  # in any order among themselves
HOST_KEY = re.compile(
    r"/preparation/(?!file)|/dispersion/program|/sources/scf_convergence/|"
    r"/gradient_certificate/(rotation|translation|z_vector)|"
    r"/polarizability/(asymmetry|step_error|dipole_difference)"
)
MESSAGE = re.compile("dfmp2: ")  # of a failure, whatever it is about


def compiled(*changes: tuple[str, str]) -> list[tuple[re.Pattern[str], str]]:
    """Patterns with what is put in their place, for each of many lines."""
    return [(re.compile(pattern), instead) for pattern, instead in changes]


CHANGES_ALWAYS = compiled(
    (r"(?<!\.)\b(?=\d*[a-f])[0-9a-f]{12,}\b", "#"),
    (r"\bfound [0-9]{12}(?=\.\.\.)", "found #"),  # a hash that happens to have no letter
    (r"\d{4}-\d\d-\d\d[T ]\d\d:\d\d(:\d\d)?(\.\d+)?(\+00:00|Z)?", "<time>"),
    (r"<time> on \S+,", "<time> on <host>,"),
    (r"prepared on \S+, <time>", "prepared on <host>, <time>"),
    (r"(dfmp2|dftd[34]|PySCF) \d+\.\d+\.\d+\S*\b", r"\1 #"),
)
# Of memory, which is more in a process that has run other tests.
SIZE = compiled((r"(\b\d+(\.\d+)?|#) ?(MB|GB|kB|GiB|MiB|bytes)\b", "# bytes"))
TIMES = compiled(
    (r"(?<=\.\d{10}) +\d+ +\d+\.\d\d$", " # #"),  # cycles and seconds of a run
    (r"^ *([a-z]\S*-\S*) +\d+ +\d+\.\d\d$", r"\1 # #"),
    (r"^ *([a-z]\S*-\S*) +\d+\.\d\d$", r"\1 #"),  # seconds alone, in a table that was too wide
    (r"\b\d+(\.\d+)?( to \d+(\.\d+)?)? ?(s|ms|min|h)\b", r"# \4"),
)
COUNTS_AND_ROUNDING = compiled(
    (r"\b\d+ (cycles|iterations|evaluations)\b", r"# \1"),
    (r"[-+]?\d(\.\d+)?[eE]-(0[7-9]|[1-9]\d)|\b0\.0e\+00", "#e-#"),  # rounding
    (r"-(?=0\.0+\b)", " "),
    (r"(?<=difference: )0\b", "#e-#"),
)
MASKED = [*TIMES, *SIZE, *COUNTS_AND_ROUNDING, *CHANGES_ALWAYS]


def leaves(value: Any, path: str = "") -> Iterator[tuple[str, Any]]:
    """Numbers and texts of a JSON value by their path."""
    if isinstance(value, dict):
        for name, item in value.items():
            yield from leaves(item, f"{path}/{name}")
    elif isinstance(value, list):
        yield f"{path}[]", len(value)
        for place, item in enumerate(value):
            yield from leaves(item, f"{path}/{place}")
    else:
        yield path, value


def rounded(value: Any) -> str:
    """As recorded: seven digits, and nothing below 1e-7, which differs between processors."""
    if isinstance(value, str):  # an escape would run into the digits of a number behind it
        return json.dumps(value, ensure_ascii=not value.isprintable())
    if isinstance(value, bool) or value is None:
        return json.dumps(value)
    if abs(value) < 1e-7:
        return "0"
    return f"{value:.7g}"


def here(text: str) -> str:
    """A text without the names of the present folder, the cache and the interpreter."""
    known = {str(Path.cwd()): "<folder>", os.path.abspath(sys.executable): "<python>"}
    known[os.environ.get("XDG_CACHE_HOME") or "no cache"] = "<cache>"
    for name, instead in known.items():
        text = text.replace(name, instead)
    return text


def without(changes: list[tuple[re.Pattern[str], str]], line: str) -> str:
    """A line with each pattern replaced by what stands for it."""
    for pattern, instead in changes:
        line = pattern.sub(instead, line)
    return line


def whole(text: str) -> list[str]:
    """All lines of a text, with their blanks; of a JSON object, all its values by their path."""
    lines = here(text).splitlines()
    if text.startswith(("{", "[")):
        lines = [f"{path} {rounded(value)}" for path, value in leaves(json.loads(here(text)))]
    lines = [without(CHANGES_ALWAYS, line) for line in lines]
    return [line.rstrip() for line in lines if line.strip()]


def masked(line: str) -> str:
    """A line without what differs between hosts, moments and versions."""
    return " ".join(without(MASKED, here(line)).split())


def of_text(text: str) -> list[str]:
    """The lines of a text; of a JSON object, its numbers and texts by their path."""
    if text.startswith(("{", "[")):
        with suppress(ValueError):  # of what is no JSON
            values = leaves(json.loads(here(text)))
            lines = [f"{path} {rounded(value)}" for path, value in values]
            return [line for line in lines if not (CHANGING.search(line) or HOST_KEY.search(line))]
    kept = [line for line in text.splitlines() if MESSAGE.search(line) or not HOST.search(line)]
    lines = [masked(line) for line in kept]
    return [line for line in lines if line]


def of_file(path: Path) -> list[str]:
    """The lines of a file or, if it is long, a line with sums that notice any change of a number,
    of its place or of the words."""
    text = path.read_text()
    lines = of_text(text)
    if len(lines) <= LONGEST:
        return lines
    numbers = np.array([float(re.sub("[dD]", "e", found)) for found in NUMBER.findall(text)])
    if "[MO]" in text or "scf_orbitals" in text:
        numbers = np.abs(numbers)  # the signs of orbitals differ between processors
    weights = 1 + np.arange(len(numbers)) % 7
    words = NUMBER.sub("#", "\n".join(lines)).replace("#e-#", "#")
    total, weighted = np.abs(numbers).sum(), np.sum(numbers * weights)
    check = f"{crc32(words.encode()):08x}".translate(LETTERS)
    return [f"{len(lines)} lines, words {check}, sums {total:.6g} {weighted:.6g}"]


def of_page(path: Path, most: int | None = None) -> list[str]:
    """Rows of numbers and marks of charts on the page of a stored result, `most` of each."""
    made = run_here("report", path.name, "-o", "page.html", "--overwrite", cwd=Path.cwd())
    assert made.code == 0, made.err
    text = Path("page.html").read_text()
    lines = []
    for row in parse(text).rows:
        cells = [" ".join(cell.split()) for cell in row]
        shown = " | ".join(cells)
        changing = LEFT_OUT.fullmatch(shown) or CHANGING.search(shown) or shown.endswith(NO_PAIR)
        if not changing and any(re.fullmatch(r"[-+±]?\d\S*", cell) for cell in cells):
            lines.append(masked(re.sub(TIME_OF_A_RUN, "", shown)))
    marks = [masked(mark) for mark in re.findall("<title>(.*?)</title>", text)]
    marks = [f"mark {mark}" for mark in marks if not LEFT_OUT.fullmatch(mark)]
    return lines[:most] + marks[:most]


def of_datasets(path: Path) -> list[str]:
    """Name, shape, units and, if it holds numbers, the sum of absolute values of each dataset."""
    lines: list[str] = []

    def note(name: str, item: Any) -> None:
        if isinstance(item, h5py.Dataset) and not CHANGING.search(f"/{name}"):
            values = "" if item.dtype.kind not in "fiu" else f"{np.abs(item[()]).sum():.6g}"
            shape = ["compressed"] if name.endswith("/records") else list(item.shape)
            units = item.attrs.get("units", "")
            if isinstance(units, bytes):
                units = units.decode()
            lines.append(f"/{name} {shape} {units} {values}".rstrip())

    with h5py.File(path) as handle:
        handle.visititems(note)
    return [masked(line) for line in lines]


def heard(told: list[str]) -> list[str]:
    """Stages, steps and warnings without numbers; neither iterations nor the time left."""
    lines = [line for line in told if not line.startswith(" ")]
    return [f"told {re.sub(TIME_LEFT, '', ANY_NUMBER.sub('#', line))}" for line in lines]


def of_command(words: list[str]) -> list[str]:
    """What a command printed, and its exit code unless it is 0."""
    everything = words[0] == "whole"
    if everything:
        words = words[1:]
    variables = {}
    while "=" in words[0]:
        name, _, value = words.pop(0).partition("=")
        variables[name] = value
    if words[0] in ("page", "datasets", "cat"):
        path = Path(words[1])
        if not path.is_file():
            return ["no such file"]
        if everything:
            return whole(path.read_text())
        if words[0] == "page":
            return of_page(path, *map(int, words[2:]))
        return {"datasets": of_datasets, "cat": of_file}[words[0]](path)
    assert words[0] == "dfmp2", words
    with pytest.MonkeyPatch.context() as patch:
        for name, value in variables.items():
            patch.setenv(name, value)
        if everything:
            fix_host(patch)
        done = run_here(*words[1:], cwd=Path.cwd())
    if everything:
        lines = whole(done.out)
        lines += [f"told {line}" for line in whole(done.err)]
    elif done.code in (0, 4, 8):
        lines = of_text(done.out)
        told = here(done.err).splitlines()
        told = [line for line in told if MESSAGE.search(line) or not HOST.search(line)]
        told = [without(CHANGES_ALWAYS[:1], line) for line in told]
        lines += [without(SIZE, line) for line in heard(told)]
    else:
        lines = of_text(done.out)
        # Without the iterations of an SCF, but with the help after a wrong command.
        told = [line for line in done.err.splitlines() if done.code == 2 or line[:1] != " "]
        lines += [f"told {line}" for line in map(masked, told) if line]
    if done.code:
        lines.append(f"code {done.code}")
    return lines


class Lines(list[str]):
    """Lines of a session, shown as they are."""


def each(function: Callable[..., Any], *rows: Any) -> Lines:
    """What a function gives or raises for each row of arguments: one, a tuple, a dictionary of
    keywords, or a tuple that ends with one."""
    lines = Lines()
    for row in rows:
        given = list(row) if isinstance(row, tuple) else [row]
        named: dict[str, Any] = {}
        if isinstance(given[-1], dict):
            named = given.pop()
        try:
            lines.append(masked(str(_plain(function(*given, **named)))))
        except Exception as error:  # noqa: BLE001 - what a caller would see
            lines.append(raised(error))
    return lines


def raised(error: Exception) -> str:
    """An error as a line."""
    return f"{type(error).__name__}: {masked(str(error))}"


def of_expression(code: str, names: dict[str, Any]) -> list[str]:
    """The value of the last expression of a line of Python, what its statements printed, and
    warnings."""
    out = StringIO()
    told = warnings.catch_warnings(record=True, action="always", category=UserWarning)
    with redirect_stdout(out), redirect_stderr(StringIO()), told as warned:
        try:
            value = _value(code, names)
        except Exception as error:  # noqa: BLE001 - what a caller would see
            return [raised(error)]
    lines = of_text(out.getvalue())
    ours = [one for one in warned if one.filename == SESSION]  # not those of other libraries
    lines += dict.fromkeys(masked(f"warning: {one.message}") for one in ours)
    if isinstance(value, Lines):
        lines += value
    elif isinstance(value, dict | list | tuple):
        lines += [here(f"{path} {rounded(item)}") for path, item in leaves(_plain(value))]
    elif value is not None:
        lines += of_text(str(_plain(value)))
    return lines


def _value(code: str, names: dict[str, Any]) -> Any:
    """The value of the last expression of a line of Python; a statement has none."""
    *first, last = ast.parse(code).body
    exec(compile(ast.Module(first, []), SESSION, "exec"), names)
    if isinstance(last, ast.Expr):
        return eval(compile(ast.Expression(last.value), SESSION, "eval"), names)
    exec(compile(ast.Module([last], []), SESSION, "exec"), names)
    return None


def _plain(value: Any) -> Any:
    """Numbers, texts, lists and dictionaries instead of arrays, tuples and records."""
    if isinstance(value, np.ndarray | np.generic):
        return value.tolist()
    if isinstance(value, list | tuple):
        return [_plain(item) for item in value]
    if isinstance(value, dict):
        return {str(name): _plain(item) for name, item in value.items()}
    if isinstance(value, bool | int | float | str) or value is None:
        return value
    return repr(value)


def steps(text: str) -> Iterator[tuple[str, list[str]]]:
    """The steps of a session: each line that is not indented, with those that go on with it, and
    the lines below it."""
    head, below = "", list[str]()
    for line in text.splitlines():
        if line.startswith(INDENT):
            below.append(line.removeprefix(INDENT))
        elif line.startswith(GOES_ON):
            head = f"{head}\n{line}"
        else:
            if head:
                yield head, below
            head, below = line, []
    yield head, below


def fix_host(patch: pytest.MonkeyPatch) -> None:
    """Let plans find the same host everywhere: what memory and disk are free, what the program
    holds, the speed of the scratch folder."""
    patch.setattr("dfmp2.host.resources.resident_memory", lambda: 10**8)
    patch.setattr("dfmp2.host.resources.available_memory", lambda: 8 * 10**9)
    patch.setattr("dfmp2.output.plan.free_disk", lambda folder: 3 * 10**10)
    patch.setattr("dfmp2.planning.plan._program", None)  # nothing has run before
    patch.setattr("dfmp2.planning.rates.load_disk", lambda folder: DiskRates(date="2026-11-23"))


def results(text: str) -> Iterator[tuple[str, list[str], list[str]]]:
    """Run a session in the present folder: each step, what was recorded below it, and what it
    prints now."""
    names: dict[str, Any] = {"dfmp2": dfmp2, "np": np, "os": os, "shutil": shutil, "Path": Path}
    names["whole"] = lambda value: whole(str(_plain(value)))
    names |= {"each": each, "partial": partial}
    for head, below in steps(text):
        now = below
        if head.startswith("file "):
            path = Path(head.removeprefix("file "))
            path.parent.mkdir(parents=True, exist_ok=True)
            path.write_text("".join(f"{line}\n" for line in below))
        elif head.startswith("$ "):
            with serving(PYTHON):  # so that the command has to choose its own words
                now = of_command(shlex.split(head.removeprefix("$ ")))
        elif head.startswith(PROMPT):
            with pytest.MonkeyPatch.context() as patch, serving(PYTHON):
                fix_host(patch)
                work_here(patch)
                code = "\n".join(line[len(PROMPT) :] for line in head.splitlines())
                now = of_expression(code, names)
        yield head, below, now


def same(found: str, expected: str, relative: float, absolute: float = 0.0) -> bool:
    """Whether two lines have the same words, and numbers that differ by rounding.

    Allowed are two units of the last decimal shown, or `relative`, or `absolute`. A number of JSON
    or Python has seven digits, of which zeros at the end are not shown.
    """
    seven = expected.startswith("/") and not expected.endswith('"')
    ones, twos = ANY_NUMBER.findall(found), ANY_NUMBER.findall(expected)
    if ANY_NUMBER.sub("#", found) != ANY_NUMBER.sub("#", expected) or len(ones) != len(twos):
        return False
    for one, two in zip(ones, twos, strict=True):
        if one == two:  # also those beyond what a float holds
            continue
        digits, _, exponent = two.partition("e")
        decimals = len(digits.partition(".")[2])
        unit = 10.0 ** (int(exponent or 0) - decimals)
        if seven and float(two) != 0.0:
            unit = 10.0 ** (math.floor(math.log10(abs(float(two)))) - 6)
        allowed = max(relative * abs(float(two)), absolute, 2.001 * unit)
        if not decimals and not exponent:  # an integer, up to its last bit
            allowed = 0.0 if one.lstrip("+-").isdigit() else relative * abs(float(two))
        if abs(float(one) - float(two)) > allowed:
            return False
    return True


def relative(text: str) -> float:
    """By how much the numbers of a session may differ, beyond the last decimal shown."""
    stated = re.match(r"# (?:slow: )?relative ([\d.e-]+)", text)
    return float(stated[1]) if stated else RELATIVE


def is_slow(path: Path) -> bool:
    """Whether a session is marked as slow in its first line."""
    with path.open() as lines:
        return lines.readline().startswith("# slow: ")


def differences(text: str) -> list[str]:
    """The lines of a session, run in the present folder, that differ from what is recorded."""
    allowed = relative(text)
    different = []
    for head, below, now in results(text):
        missing = [line for line in below if line not in now]
        further = [line for line in now if line not in below]
        if len(now) == len(below):
            pairs = [
                pair for pair in zip(now, below, strict=True) if not same(*pair, allowed, ABSOLUTE)
            ]
            missing = [recorded for _, recorded in pairs]
            further = [found for found, _ in pairs]
        if missing or further or len(now) != len(below):
            different += [
                head,
                *(f"- {line}" for line in missing),
                *(f"+ {line}" for line in further),
            ]
    return different


def record(path: Path) -> None:
    """Write the file of a session anew."""
    text = path.read_text()
    with tempfile.TemporaryDirectory() as folder, chdir(folder):
        lines = []
        for head, _, now in results(text):
            lines += [head, *(f"{INDENT}{line}" for line in now)]
    path.write_text("".join(f"{line}\n" for line in lines))


if __name__ == "__main__":
    chosen = sys.argv[1:] or sorted(path.stem for path in STORED.glob("*.txt"))
    with tempfile.TemporaryDirectory() as cache:
        os.environ["XDG_CACHE_HOME"] = cache
        write_rates()
        for name in chosen:
            record(STORED / f"{name}.txt")
