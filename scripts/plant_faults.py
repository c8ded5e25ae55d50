"""Called by docs/project/architecture.md: plant the faults of `scripts/faults.txt` in a copy of the
tree, one at a time, and check that its tests detect each.

    python scripts/plant_faults.py                        # all of them: about five seconds each
    python scripts/plant_faults.py --name gap --limit 60
    python scripts/plant_faults.py --list                 # whether they can be planted

A fault is a piece of text that occurs once in the package, with its replacement. It is `killed` if
one of its tests fails, and `survived` if none does. Exit code 0 if all chosen faults are killed.
Random faults are planted by `scripts/mutants`.
"""

from __future__ import annotations

import argparse
import sys
import tempfile
from dataclasses import dataclass
from pathlib import Path

ROOT = Path(__file__).resolve().parent.parent
sys.path.insert(0, str(ROOT / "scripts/mutants_map"))

from lines_of_tests import HANGS, copied, pytest  # noqa: E402 - its folder is known now


@dataclass(frozen=True)
class Fault:
    """`text` becomes `instead`; `tests` are files below tests/, optionally followed by -k with a
    selection."""

    name: str
    tests: str
    text: str
    instead: str

    @property
    def arguments(self) -> list[str]:
        """Arguments of pytest."""
        files, _, chosen = self.tests.partition(" -k ")
        arguments = [f"tests/{file}" for file in files.split()]
        if chosen:
            arguments += ["-k", chosen]
        return arguments


def read(path: Path) -> list[Fault]:
    """The faults of a file: paragraphs of a name, tests, and lines of text (-) and replacement
    (+)."""
    faults = []
    for paragraph in path.read_text().split("\n\n"):
        lines = [line for line in paragraph.splitlines() if line and not line.startswith("#")]
        if not lines:
            continue
        name, tests, *rest = lines
        text = "\n".join(line[2:] for line in rest if line.startswith("- "))
        instead = "\n".join(line[2:] for line in rest if line.startswith("+ "))
        faults.append(Fault(name, tests, text, instead))
    return faults


def places(fault: Fault) -> list[Path]:
    """The file with the text, repeated for each occurrence."""
    found = []
    for path in sorted((ROOT / "dfmp2").rglob("*.py")):
        found += [path.relative_to(ROOT)] * path.read_text().count(fault.text)
    return found


def verdict(tree: Path, fault: Fault, limit: float) -> str:
    """The outcome of a fault."""
    found = places(fault)
    if len(found) != 1:
        return f"refused: its text stands {len(found)} times in the package"
    path = tree / found[0]
    whole = path.read_text()
    path.write_text(whole.replace(fault.text, fault.instead))
    code = pytest(tree, ["-x", *fault.arguments], limit)
    path.write_text(whole)
    outcomes = {0: "survived", 1: "killed", HANGS: f"no end within {limit:g} s"}
    return outcomes.get(code, f"no answer: exit code {code}")


def main() -> int:
    """Plant the chosen faults and print the outcomes."""
    parser = argparse.ArgumentParser(
        description=" ".join((__doc__ or "").partition("\n\n")[0].split())
    )
    parser.add_argument("--name", default="", metavar="WORD", help="faults whose name holds it")
    parser.add_argument("--limit", type=float, default=120.0, metavar="SECONDS", help="of a fault")
    parser.add_argument("--list", action="store_true", help="only say whether they can be planted")
    given = parser.parse_args()
    faults = read(ROOT / "scripts" / "faults.txt")
    chosen = [fault for fault in faults if given.name in fault.name]
    if given.list:
        for fault in chosen:
            print(f"{fault.name:60} {', '.join(map(str, places(fault))) or 'text not found'}")
        return int(any(len(places(fault)) != 1 for fault in chosen))
    missed = 0
    with tempfile.TemporaryDirectory() as folder:
        tree = copied(Path(folder))
        for fault in chosen:
            found = verdict(tree, fault, given.limit)
            missed += found != "killed"
            print(f"{fault.name:60} {found}", flush=True)
    print(f"{len(chosen) - missed} of {len(chosen)} killed")
    return int(missed > 0)


if __name__ == "__main__":
    sys.exit(main())
