"""Tables of injected faults for the README: kill -9 at random moments, and every way a file can fail to be written.

python scripts/fault_table.py [--kills 200] [--seed 1]
"""

from __future__ import annotations

import argparse
import contextlib
import io
import os
import shutil
import sys
import tempfile
from collections import Counter
from pathlib import Path
from unittest import mock

ROOT = Path(__file__).resolve().parent.parent
sys.path.insert(0, str(ROOT))

from dfmp2.errors import ResourceError  # noqa: E402
from tests.conftest import listing, run_command, write_molecules  # noqa: E402
from tests.faults import Server, kill_and_resume, numbers  # noqa: E402
from tests.test_faults_kill import CASES, INPUTS  # noqa: E402
from tests.writers import FAULTS, H2, WRITERS, Fault, Writer, failing, intact, prepare, remembered  # noqa: E402


def main() -> None:
    """Inject the faults and print the tables."""
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--kills", type=int, default=200, help="over three molecules")
    parser.add_argument("--seed", type=int, default=1)
    given = parser.parse_args()
    kills(given.kills, given.seed)
    print()
    writes()


def kills(count: int, seed: int) -> None:
    """kill -9 and resume."""
    heads = ("kills", "kills with a checkpoint", "resumed", "chains", "different", "unreadable")
    print(
        "| run | kill -9 | of them with a checkpoint on disk | resumed runs | finished | other energies | unreadable |"
    )
    print("|---|---|---|---|---|---|---|")
    server, total = Server(), Counter[str]()
    try:
        for number, (name, (file, *options)) in enumerate(CASES.items()):
            with tempfile.TemporaryDirectory() as scratch:
                folder = Path(scratch) / "run"
                folder.mkdir()
                command = ["run", str(INPUTS / file), *options, "--threads", "1"]
                code, _ = server.wait(server.start([*command, "--output", "whole.h5"], folder))
                if code:
                    raise SystemExit(f"{name} cannot be computed: exit code {code}")
                share = -(-count // len(CASES))
                found = kill_and_resume(
                    server, command, folder, share, seed + number, numbers(folder / "whole.h5")
                )
            total.update(found)
            print(
                f"| {name} {options[-1]} | {' | '.join(str(found[head]) for head in heads)} |",
                flush=True,
            )
    finally:
        server.close()
    print(f"| all | {' | '.join(str(total[head]) for head in heads)} |")


def writes() -> None:
    """Every writer against every fault."""
    print(
        "| file | faults injected | named, exit code 7 | done without it | old file intact, nothing beside it |"
    )
    print("|---|---|---|---|---|")
    with tempfile.TemporaryDirectory() as scratch:
        source = write_molecules(Path(scratch))
        done = run_command("run", "h2.xyz", *H2, "--output", "h2.h5", cwd=source)
        if done.code:
            raise SystemExit(done.err)
        total: Counter[str] = Counter()
        for name, writer in WRITERS.items():
            found: Counter[str] = Counter()
            for number, fault in enumerate(fault for fault in FAULTS if fault[0] in writer.steps):
                folder = source / f"{number}"
                folder.mkdir()
                for file in ("h2.xyz", "h2.h5"):
                    shutil.copy(source / file, folder)
                os.chdir(folder)
                found.update(_inject(writer, fault, folder))
                os.chdir(source)
                shutil.rmtree(folder)
            total.update(found)
            _row(name, found)
        _row("all", total)


def _row(name: str, found: Counter[str]) -> None:
    cells = " | ".join(str(found[key]) for key in ("injected", "named", "done", "intact"))
    print(f"| {name} | {cells} |", flush=True)


def _inject(writer: Writer, fault: Fault, folder: Path) -> dict[str, int]:
    from dfmp2.cli.main import main as command

    prepare(writer, folder)
    before, words, code = listing(folder), io.StringIO(), 0
    with (
        remembered(writer),
        failing(fault, folder, writer.only) as met,
        mock.patch.dict(os.environ, writer.settings),
        open(os.devnull, "w") as nowhere,
        contextlib.redirect_stdout(nowhere),
        contextlib.redirect_stderr(words),
    ):
        if isinstance(writer.write, tuple):
            code = command(writer.write)
        else:
            try:
                writer.write(folder)
            except ResourceError as error:
                code = error.exit_code
                words.write(str(error))
    named = code == ResourceError.exit_code and os.strerror(fault[1]) in words.getvalue()
    return {
        "injected": bool(met),
        "named": named and not writer.goes_on,
        "done": code == 0 and writer.goes_on,
        "intact": intact(writer, folder, before, listing(folder)),
    }


if __name__ == "__main__":
    main()
