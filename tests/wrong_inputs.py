"""The tables of wrong inputs in docs/reference/messages.md and tests/data/messages.md: typed line, exit
code, message.

`python -m tests.wrong_inputs` runs every line of both tables and writes the present messages.
"""

from __future__ import annotations

import contextlib
import io
import json
import os
import re
import shlex
import tempfile
from pathlib import Path

from tests.conftest import ROOT, write_molecules

PAGES = (ROOT / "docs/reference/messages.md", ROOT / "tests/data/messages.md")
ROW = re.compile(r"^\| `(.+?)` \| (\d+) \| (.*) \|$", re.MULTILINE)
THREE = 'basis = "sto-3g"\noutput = "out"\n' + "".join(
    f'[[item]]\nmolecule = "{name}.xyz"\n' for name in ("h2", "h2o", "nh2")
)
FILES = {  # beside the molecules of the tests
    "count.xyz": "3\n\nH 0 0 0\nH 0 0 0.74\n",
    "letters.gbs": "****\nH 0\nS 1 1.00\n 1.0 one\n****\n",
    "letter.xyz": "1\n\nHe 0 0 zero\n",
    "element.xyz": "1\n\nXx 0 0 0\n",
    "near.xyz": "2\n\nH 0 0 0\nH 0 0 0.1\n",
    "odd.xyz": "1\n\nH 0 0 0\n",
    "empty.xyz": "",
    "cell.xyz": '2\nLattice="5 0 0 0 5 0 0 0 5"\nH 0 0 0\nH 0 0 0.74\n',
    "drawing.mol": "\n  ChemDraw01012612002D\n\n  1  0  0  0  0  0  0  0  0  0999 V2000\n 0.0 0.0 "
    "0.0 O  0\nM  END\n",
    "two.sdf": 2 * "\n\n\n  1  0 V2000\n 0.0 0.0 0.0 He 0\nM  END\n$$$$\n",
    "spin.xyz": "2\nspin 1\nO 0 0 0\nO 0 0 1.21\n",
    "skeleton.sdf": (
        "\n\n\n  2  1 V2000\n 0.0 0.0 0.0 C 0\n 1.42 0.0 0.0 O 0\n  1  2  1\nM  END\n"
    ),
    "he.xyz": "1\n\nHe 0 0 0\n",
    "dimer.xyz": (ROOT / "inputs/formic-acid-dimer.xyz").read_text(),
    "scan.txt": "$scan\ndistance 1 2 0.9 1.0 3\n",
    "wrong.txt": "$freeze\nbend 1 2\n",
    "charges.txt": "0 0 5 0.5\n",
    "bond.txt": "$set\ndistance 1 2 0.95\n",
    "three.toml": THREE,
    "trainium.toml": f'backend = "nki"\n{THREE}',
    "empty.toml": 'basis = "sto-3g"\noutput = "out"\n',
    "typo.toml": 'basis = "sto-3g"\noutput = "out"\nfrozen-cor = "auto"\n[[item]]\nmolecule = '
    '"h2.xyz"\n',
}


def rows() -> list[tuple[str, int, str]]:
    """The text typed after `dfmp2`, the exit code, and the message without `dfmp2: `."""
    return [
        (typed.removeprefix("dfmp2 ").replace(r"\|", "|"), int(code), said.replace(r"\|", "|"))
        for page in PAGES
        for typed, code, said in ROW.findall(page.read_text())
    ]


def prepare(folder: Path) -> None:
    """Create the files named in the table, except the result of water and the fitted integrals of
    NH2."""
    write_molecules(folder)
    for name, text in FILES.items():
        (folder / name).write_text(text)


def main() -> None:
    """Write the present messages into both pages."""
    from dfmp2.cli.main import main as dfmp2

    def answer(typed: str) -> tuple[int, str]:
        said, printed = io.StringIO(), io.StringIO()
        with contextlib.redirect_stderr(said), contextlib.redirect_stdout(printed):
            code = dfmp2(shlex.split(typed))
        last = (said.getvalue().splitlines() or [""])[-1].removeprefix("dfmp2: ")
        if last.startswith("{"):  # with --json
            last = json.loads(last)["error"]
        return code, last

    with tempfile.TemporaryDirectory() as folder:
        os.chdir(folder)
        prepare(Path(folder))
        answer("run h2o.xyz --basis sto-3g")
        answer("prepare nh2.xyz --basis sto-3g")
        for page in PAGES:
            text = page.read_text()
            for typed, *_ in ROW.findall(text):
                code, said = answer(typed.removeprefix("dfmp2 ").replace(r"\|", "|"))
                line = f"| `{typed}` | {code} | {said.replace('|', chr(92) + '|')} |"
                text = re.sub(
                    rf"^\| `{re.escape(typed)}` \|.*$",
                    lambda _, line=line: line,
                    text,
                    flags=re.MULTILINE,
                )
            page.write_text(text)


if __name__ == "__main__":
    main()
