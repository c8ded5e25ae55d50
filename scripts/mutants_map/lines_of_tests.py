"""The lines of dfmp2 that each test executes, for `scripts/mutants`: determined by coverage.py once
for each test file, and cached in `.mutants` until that file changes. Lines are counted from the
beginning of their function, which may move.
"""

from __future__ import annotations

import compileall
import hashlib
import json
import os
import queue
import shutil
import subprocess
import sys
import tempfile
from collections import Counter, defaultdict
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path
from py_compile import PycInvalidationMode
from typing import Any

import coverage

HERE = Path(__file__).resolve().parent
ROOT = HERE.parent.parent
KEPT = ROOT / ".mutants"  # lines executed by each test; ignored by git
COVERAGE = """[run]
data_file = {folder}/data
parallel = true
source = {tree}/dfmp2
context = ${{MUTANTS_NAME}}
patch = _exit, fork
"""
HANGS = -9  # exit code if pytest does not end
Functions = dict[str, dict[int, tuple[str, int]]]  # file: line: function, and its first line


def pytest(tree: Path, arguments: list[str], limit: float | None, **environment: str) -> int:
    """Exit code of pytest in the copy, HANGS beyond the limit; its output is in `printed`."""
    path = os.pathsep.join([str(HERE), str(tree)])
    command = [
        *(sys.executable, "-m", "pytest", "-q", "-p", "no:cacheprovider", "-p", "no:randomly"),
        f"--basetemp={tree.parent}/pytest",
        *("-rfE", "--tb=no", "--disable-warnings"),
    ]
    # Bytecode is kept even if the caller disables it; that of a fault does not match the hash of
    # the next file.
    given = {**os.environ, "PYTHONPATH": path, "PYTHONDONTWRITEBYTECODE": "", **environment}
    with open(tree.parent / "printed", "w") as printed:
        process = subprocess.Popen(
            [*command, *arguments],
            cwd=tree,
            env=given,
            stdout=printed,
            stderr=subprocess.STDOUT,
            start_new_session=True,
        )
    try:
        return process.wait(limit)
    except subprocess.TimeoutExpired:
        return HANGS
    finally:
        if process.poll() is None:
            os.killpg(process.pid, 9)
            process.wait()


def copied(folder: Path) -> Path:
    """Make a copy of all files that git does not ignore, compiled so that a changed file is
    compiled again."""
    tree = folder / "tree"
    tree.mkdir(parents=True)
    command = ["git", "ls-files", "-z", "--cached", "--others", "--exclude-standard"]
    listed = subprocess.run(command, cwd=ROOT, stdout=subprocess.PIPE, check=True)
    for name in listed.stdout.decode().rstrip("\0").split("\0"):
        if (ROOT / name).exists():  # a file that was removed is still listed
            (tree / name).parent.mkdir(parents=True, exist_ok=True)
            shutil.copy(ROOT / name, tree / name)
    compileall.compile_dir(
        tree / "dfmp2", quiet=2, invalidation_mode=PycInvalidationMode.CHECKED_HASH
    )
    return tree


def find_lines(path: Path, functions: Functions, tree: Path) -> dict[str, Any]:
    """For each passing test of a file: its seconds, and, as bits, the executed lines of the
    functions called by it and its fixtures. Prints the tests that fail without a fault."""
    executed: dict[str, Counter[str]] = defaultdict(Counter)
    with tempfile.TemporaryDirectory() as name:
        folder = Path(name)
        settings, notes = folder / "settings", folder / "notes"
        settings.write_text(COVERAGE.format(folder=folder, tree=tree))
        environment = {"COVERAGE_PROCESS_START": str(settings), "MUTANTS_NOTES": str(notes)}
        notes.touch()  # where all tests of a file are marked slow, none writes a note
        pytest(tree, ["-p", "sitecustomize", f"tests/{path.name}"], None, **environment)
        tests = list(map(json.loads, notes.read_text().splitlines()))
        measured = coverage.Coverage(config_file=str(settings))
        measured.combine()
        for file in measured.get_data().measured_files():
            of_file = functions.get(file.partition("/tree/dfmp2/")[2], {})  # none in templates
            for line, contexts in measured.get_data().contexts_by_lineno(file).items():
                function, first = of_file.get(line, ("", line))
                for context in contexts:
                    executed[context][function] |= 1 << (line - first)
    printed = (tree.parent / "printed").read_text(errors="replace").splitlines()
    for line in printed:
        if line.startswith(("FAILED ", "ERROR ")):
            print(f"fails without a fault, and is left out: {line}", flush=True)
    found = {}
    for test in tests:
        lines: dict[str, int] = {}
        for context in test["contexts"]:
            for function, bits in executed[context].items():
                lines[function] = lines.get(function, 0) | bits
        if test["passed"]:
            found[test["name"]] = {"seconds": test["seconds"], "lines": lines}
    return found


def mapped(pattern: str, jobs: int, functions: Functions) -> dict[str, Any]:
    """As `find_lines`, for all files that match the pattern; cached until one changes."""
    KEPT.mkdir(exist_ok=True)
    trees: queue.Queue[Path] = queue.Queue()

    def known(path: Path) -> dict[str, Any]:
        content = hashlib.sha256(path.read_bytes()).hexdigest()[:16]
        kept = KEPT / f"{path.stem}-{content}.json"
        if not kept.exists():
            tree = trees.get()
            try:
                found = find_lines(path, functions, tree)
            finally:
                trees.put(tree)
            for old in KEPT.glob(f"{path.stem}-*.json"):
                old.unlink()
            kept.write_text(json.dumps(found))
            print(f"mapped {path.name}: {len(found)} tests", flush=True)
        return json.loads(kept.read_text())

    tests: dict[str, Any] = {}
    with tempfile.TemporaryDirectory() as folder, ThreadPoolExecutor(jobs) as pool:
        for job in range(jobs):
            trees.put(copied(Path(folder) / str(job)))
        for found in pool.map(known, sorted((ROOT / "tests").glob(pattern))):
            tests |= found
    return tests
