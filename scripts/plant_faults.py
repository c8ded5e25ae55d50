"""Plant faults in a copy of the tree, one at a time, and see whether the default tests notice.

    python scripts/plant_faults.py                        # all of them: about ten seconds each
    python scripts/plant_faults.py --area scf --area mp2 --name gap --limit 60
    python scripts/plant_faults.py --list

A fault (scripts/faults.txt) is an exact text of the package and what is put in its place. It is `killed` when a test
fails, and `survived` when none does: then a test is missing. A text that is not found exactly once is refused: it has
to follow the code. Exit code 0 when all chosen faults are killed.
"""

from __future__ import annotations

import argparse
import os
import shutil
import subprocess
import sys
import tempfile
import time
from collections import Counter
from dataclasses import dataclass
from pathlib import Path

ROOT = Path(__file__).resolve().parent.parent
NEEDED = (
    "dfmp2",
    "tests",
    "inputs",
    "scripts",
    "docs",
    "README.md",
    "pyproject.toml",
    "constraints.txt",
)
FAULTS = ROOT / "scripts" / "faults.txt"
LIMIT = 120.0  # s


@dataclass(frozen=True)
class Fault:
    """`text` of `file`, below dfmp2/, becomes `instead`; `tests` are arguments of pytest, below tests/."""

    area: str
    name: str
    file: str
    text: str
    instead: str
    tests: str

    @property
    def arguments(self) -> list[str]:
        """Of pytest."""
        files, _, chosen = self.tests.partition(" -k ")
        return [f"tests/{file}" for file in files.split()] + (["-k", chosen] if chosen else [])


def read(path: Path) -> list[Fault]:
    """The faults of a file: paragraphs of a title, a place, and lines of text (-) and replacement (+)."""
    found = []
    for paragraph in path.read_text().split("\n\n"):
        lines = [line for line in paragraph.splitlines() if line and not line.startswith("#")]
        if not lines:
            continue
        title, place, *rest = lines
        area, _, name = title.removeprefix("[").partition("] ")
        file, _, tests = place.partition(": ")
        text, instead = (
            "\n".join(line[2:] for line in rest if line[:2] == sign) for sign in ("- ", "+ ")
        )
        if not (tests and text and len(rest) == sum(line[:2] in ("- ", "+ ") for line in rest)):
            raise SystemExit(
                f"{path}: {title}: expected a title, a place, and lines of - text and + replacement"
            )
        found.append(Fault(area, name, file, text, instead, tests))
    return found


def copied(folder: Path) -> Path:
    """A copy of what the tests need, in `folder`."""
    tree = folder / "tree"
    tree.mkdir()
    for name in NEEDED:
        source = ROOT / name
        if source.is_dir():
            shutil.copytree(
                source, tree / name, ignore=shutil.ignore_patterns("__pycache__", "*.pyc")
            )
        elif source.exists():
            shutil.copy(source, tree / name)
    return tree


def misplaced(fault: Fault) -> str:
    """Why the fault cannot be planted, "" where it can."""
    path = ROOT / "dfmp2" / fault.file
    if path.is_file():
        found = path.read_text().count(fault.text)
    else:
        found = 0
    if found == 1:
        return ""
    here = [
        str(p.relative_to(ROOT))
        for p in sorted((ROOT / "dfmp2").rglob("*.py"))
        if fault.text in p.read_text()
    ]
    return f"text found {found} times in dfmp2/{fault.file}{', but in ' + ', '.join(here) if here and not found else ''}"


def run(tree: Path, arguments: list[str], limit: float) -> tuple[int | None, str]:
    """Exit code of pytest in the copy, None beyond the limit, and the end of what it printed."""
    command = [
        sys.executable,
        "-m",
        "pytest",
        "-x",
        "-q",
        "-p",
        "no:cacheprovider",
        "--no-header",
        *arguments,
    ]
    environment = os.environ | {
        "PYTHONPATH": str(tree),
        "PYTHONDONTWRITEBYTECODE": "1",
        "OMP_WAIT_POLICY": "passive",
    }
    try:
        done = subprocess.run(
            command,
            cwd=tree,
            env=environment,
            capture_output=True,
            text=True,
            timeout=limit,
            check=False,
        )
    except subprocess.TimeoutExpired:
        return None, ""
    return done.returncode, done.stdout[-2000:] + done.stderr[-500:]


def try_out(tree: Path, fault: Fault, limit: float) -> tuple[str, str]:
    """What became of a fault, and why where that is not plain."""
    problem = misplaced(fault)
    if problem:
        return "refused", problem
    path = tree / "dfmp2" / fault.file
    whole = path.read_text()
    path.write_text(whole.replace(fault.text, fault.instead))
    try:
        code, said = run(tree, fault.arguments, limit)
    finally:
        path.write_text(whole)
    if code is None:
        return "too slow", f"no end within {limit:g} s"
    if code in (0, 1):
        return ("survived", "") if code == 0 else ("killed", "")
    return "no answer", said  # nothing was collected, or the fault breaks the import


def main() -> int:
    """Plant the chosen faults and print what became of them."""
    faults = read(FAULTS)
    parser = argparse.ArgumentParser(description=(__doc__ or "").partition("\n")[0])
    parser.add_argument(
        "--area",
        action="append",
        choices=sorted({fault.area for fault in faults}),
        help="repeatable",
    )
    parser.add_argument(
        "--name", action="append", metavar="WORD", help="faults whose name holds it; repeatable"
    )
    parser.add_argument(
        "--limit", type=float, default=LIMIT, metavar="SECONDS", help="for the tests of one fault"
    )
    parser.add_argument(
        "--list", action="store_true", help="name the faults and whether they can be planted"
    )
    parser.add_argument(
        "--sound", action="store_true", help="first see that the tests pass without a fault"
    )
    given = parser.parse_args()
    chosen = [
        fault
        for fault in faults
        if (not given.area or fault.area in given.area)
        and (not given.name or any(word in fault.name for word in given.name))
    ]
    if not chosen:
        parser.error("no fault is of that area and name")
    if given.list:
        for fault in chosen:
            print(f"{fault.area:12} {fault.name:48} {misplaced(fault) or fault.tests}")
        return int(any(map(misplaced, chosen)))
    found: Counter[tuple[str, str]] = Counter()
    with tempfile.TemporaryDirectory() as folder:
        tree = copied(Path(folder))
        if given.sound:
            for tests in sorted({fault.tests for fault in chosen}):
                one = next(fault for fault in chosen if fault.tests == tests)
                code, said = run(tree, one.arguments, 5 * given.limit)
                if code:
                    print(f"without any fault, {tests} fails:\n{said}")
                    return 2
        for fault in chosen:
            begun = time.monotonic()
            verdict, why = try_out(tree, fault, given.limit)
            found[fault.area, verdict] += 1
            print(
                f"{verdict:10} {fault.area:12} {fault.name:48} {time.monotonic() - begun:5.1f} s  {why}",
                flush=True,
            )
    for area in dict.fromkeys(fault.area for fault in chosen):
        verdicts = {verdict: count for (where, verdict), count in found.items() if where == area}
        print(
            f"{area:12} "
            + ", ".join(f"{count} {verdict}" for verdict, count in sorted(verdicts.items()))
        )
    return int(any(verdict != "killed" for _, verdict in found))


if __name__ == "__main__":
    sys.exit(main())
