"""Every command block of README and docs is executed, and the numbers shown must agree with the
run.

    ```console                   commands after `$ `, then lines of what they print; `...` stands for anything
    ```python                    executed; what `print(...)  # comment` prints is the comment
    ```toml title="batch.toml"   any language: written to that file
    <!-- slow -->                on the line before a block: minutes, run by scripts/check --all, as are most pages
    <!-- needs: slurm -->        not run here; every page that has one is listed in NOT_EXECUTED
    <!-- with: pandas -->        run where that package is installed, else the page's test says that it is not

The blocks of a page run one after another in a folder that contains `inputs/` of the repository.
"""

from __future__ import annotations

import os
import re
import shutil
import subprocess
import sys
import tomllib
from collections import Counter
from collections.abc import Iterator
from dataclasses import dataclass
from importlib.util import find_spec
from pathlib import Path

import pytest

from dfmp2.cli.main import COMMANDS
from dfmp2.double_hybrids import table
from dfmp2.validation.entries import load_entries
from scripts.long_tables import LONGEST, cells
from tests.conftest import COMMAND, ROOT

PAGES = [ROOT / "README.md", *sorted((ROOT / "docs").rglob("*.md"))]
NOT_EXECUTED = {  # page: what its tagged blocks need
    "README.md": {"network"},
    "docs/howto/aws.md": {"aws"},
    "docs/howto/containers.md": {"docker"},
    "docs/howto/dask.md": {"dask"},
    "docs/howto/from-psi4-or-orca.md": {"psi4"},
    "docs/howto/gpu.md": {"network"},
    "docs/howto/slurm.md": {"slurm"},
    "docs/install.md": {"network"},
    "docs/project/architecture.md": {"network"},
    "docs/project/trainium/first-day.md": {"trainium"},
    "docs/project/trainium/run.md": {"trainium"},
}
BLOCK = re.compile(
    r"(?:^[ ]*<!-- (?P<tag>slow|(?:needs|with): \w+) -->\n)?"
    r"^(?P<indent>[ ]*)```(?P<language>\w+)(?P<info>[^\n]*)\n(?P<text>.*?)^[ ]*```$",
    re.MULTILINE | re.DOTALL,
)
MADE = [  # by scripts/docs_hooks.py at build time
    ROOT / f"docs/{name}.md"
    for name in (
        "reference/defaults",
        "reference/methods",
        "project/trainium/audit",
        "reference/commands/index",
        *(f"reference/commands/{command}" for command in COMMANDS),
    )
]
EXECUTED = ("console", "python")
CLOSE = 2e-8  # Eh; mixed precision rounds differently on other processors
# Small molecules do not gain from threads, which would wait for each other while other tests are
# running.
ENVIRONMENT = {
    **os.environ,
    "PATH": f"{COMMAND.parent}{os.pathsep}{os.environ['PATH']}",
    "OMP_NUM_THREADS": "1",
    "NO_COLOR": "1",
}
END = "\x1e"  # what separates the output of two commands


@dataclass(frozen=True)
class Block:
    """One fenced block of a page."""

    language: str
    title: str
    text: str
    tag: str

    @property
    def commands(self) -> list[tuple[str, list[str]]]:
        """Commands of a console block, each with the lines shown under it."""
        text = self.text.replace("\\\n", "\\\0")
        found: list[tuple[str, list[str]]] = []
        for line in text.splitlines():
            if line.startswith("$ "):
                found.append((line[2:].replace("\\\0", "\\\n"), []))
            else:
                found[-1][1].append(line)
        return found


def blocks_of(page: Path) -> list[Block]:
    """The fenced blocks of a page, without indentation."""
    found = []
    for match in BLOCK.finditer(page.read_text()):
        title = re.search(r'title="([^"]+)"', match["info"])
        text = re.sub(rf"^{match['indent']}", "", match["text"], flags=re.MULTILINE)
        found.append(Block(match["language"], title[1] if title else "", text, match["tag"] or ""))
    return found


def pages(*, slow: bool) -> list[Path]:
    """Pages with something to execute; with `slow` those that have slow blocks."""
    return [
        page
        for page in PAGES
        if any(b.language in EXECUTED and (b.tag == "slow") is slow for b in blocks_of(page))
    ]


def same(shown: str, printed: str) -> bool:
    """Whether a line shown agrees with the output; `...` stands for anything, including the rest of
    a word, and numbers may differ by rounding."""
    words, others = shown.split(), printed.split()
    if "..." in words:
        head, tail = words.index("..."), len(words) - 1 - words.index("...")
        others[head : len(others) - tail] = ["..."]
    return len(words) == len(others) and all(
        word == other
        or close(word.rstrip(",;"), other.rstrip(",;"))
        or begins(word.rstrip(",;"), other.rstrip(",;"))
        for word, other in zip(words, others, strict=True)
    )


def begins(shown: str, printed: str) -> bool:
    """Whether a word shown without its last letters or digits agrees, as in -79.49663..."""
    return len(shown) > 3 and shown.endswith("...") and printed.startswith(shown[:-3])


def close(shown: str, printed: str) -> bool:
    """Whether two energies differ only in the last digits, or two differences are both mere
    rounding."""
    if not (
        re.fullmatch(r"-?\d+\.\d{8,}", shown) or re.fullmatch(r"[-+]?\d\.\d+e-(09|[1-9]\d)", shown)
    ):
        return False
    return (
        re.fullmatch(r"[-+]?[\d.]+(e-\d+)?", printed) is not None
        and abs(float(shown) - float(printed)) < CLOSE
    )


def check_lines(shown: list[str], printed: str, command: str) -> None:
    """Check that every line shown was printed, in this order."""
    left = iter(printed.splitlines())
    for line in shown:
        found = line.strip() in ("", "...") or any(same(line, other) for other in left)
        assert found, f"{command}\nnot printed: {line}\n--- but:\n{printed}"


def run_console(block: Block, folder: Path) -> None:
    """The commands of a block in one shell; each must succeed unless `echo $?` follows it."""
    script = "".join(
        f"{command}\ncode=$?; printf '{END}%d{END}' $code; printf '{END}' >&2; (exit $code)\n"
        for command, _ in block.commands
    )
    done = subprocess.run(
        ["bash", "-c", script],
        cwd=folder,
        env=ENVIRONMENT,
        capture_output=True,
        text=True,
        timeout=900,
    )
    outputs, errors = done.stdout.split(END), done.stderr.split(END)
    for number, (command, shown) in enumerate(block.commands):
        assert number < len(outputs) // 2, f"{command}\n{done.stderr}"
        following = block.commands[number + 1][0] if number + 1 < len(block.commands) else ""
        assert outputs[2 * number + 1] == "0" or following == "echo $?", (
            f"{command}\n{errors[number]}"
        )
        check_lines(shown, outputs[2 * number] + "\n" + errors[number], command)


def run_python(block: Block, folder: Path) -> None:
    """Run a script; comments after print() are its expected output."""
    command = [sys.executable, "-c", block.text]
    done = subprocess.run(
        command, cwd=folder, env=ENVIRONMENT, capture_output=True, text=True, timeout=900
    )
    assert done.returncode == 0, done.stderr
    check_lines(
        re.findall(r"^ *print\(.*\)  # (.*)$", block.text, re.MULTILINE), done.stdout, block.text
    )


def run_page(page: Path, folder: Path, *, slow: bool) -> None:
    """Execute a page from top to bottom."""
    shutil.copytree(ROOT / "inputs", folder / "inputs")
    absent = []
    for block in blocks_of(page):
        package = block.tag.removeprefix("with: ") if block.tag.startswith("with: ") else ""
        if package and find_spec(package) is None:
            absent.append(package)
        elif block.title:
            (folder / block.title).write_text(block.text)
        elif block.language in EXECUTED and (
            not block.tag or package or (slow and block.tag == "slow")
        ):
            (run_console if block.language == "console" else run_python)(block, folder)
    if absent:
        pytest.skip(f"all but the blocks that need {', '.join(absent)}, which is not installed")


# The page that readers try first, and pages for programs; the others are executed by scripts/check
# --all.
OFTEN = (
    "README.md",
    "docs/reference/exit-codes.md",
    "docs/reference/json.md",
    "docs/reference/upgrading.md",
)


def name(page: Path) -> str:
    """The name of a page in the list of tests."""
    return str(page.relative_to(ROOT))


@pytest.mark.parametrize(
    "page",
    [
        pytest.param(
            page, marks=[] if name(page).startswith(OFTEN) else [pytest.mark.slow], id=name(page)
        )
        for page in pages(slow=False)
    ],
)
def test_commands_do_what_the_page_says(page: Path, tmp_path: Path) -> None:
    run_page(page, tmp_path, slow=False)


@pytest.mark.slow
@pytest.mark.parametrize("page", pages(slow=True), ids=name)
def test_long_commands_do_what_the_page_says(page: Path, tmp_path: Path) -> None:
    run_page(page, tmp_path, slow=True)


@pytest.mark.parametrize("page", PAGES, ids=name)
def test_page_is_well_formed(page: Path) -> None:
    """No command escapes execution, tables have equal rows, links lead somewhere."""
    text = page.read_text()
    blocks = blocks_of(page)
    assert text.count("```") == 2 * len(blocks), (
        "a fence without a language, or one that is not closed"
    )
    for block in blocks:
        assert block.language in (*EXECUTED, "toml", "text", "json", "bibtex"), block
        assert block.language in EXECUTED or "$ " not in block.text, (
            "a command that is not executed"
        )
    needs = {block.tag.removeprefix("needs: ") for block in blocks if block.tag.startswith("needs")}
    assert needs == NOT_EXECUTED.get(name(page), set())
    prose = BLOCK.sub("", text)
    assert not re.search(r"^    \s*(\$|dfmp2 |python )", prose, re.MULTILINE), (
        "a command that is not executed"
    )
    for rows in tables(prose):
        columns = {len(re.findall(r"(?<!\\)\|", row)) for row in rows}
        assert len(columns) == 1, rows
        assert all(shown(cell) for cell in cells(rows[0])), (
            f"a header that shows nothing: {rows[0]}"
        )
    code_apart = re.sub(r"`[^`]*`", "", re.sub(r"<!--.*?-->", "", prose, flags=re.DOTALL))
    tags = re.findall(r"<[A-Za-z][^>]*>", code_apart)
    assert not tags, "read as HTML, so that nothing is shown: write it as code, or with a sign"
    for target in re.findall(r"\]\(([^)#:]+)(?:#[^)]*)?\)", prose):
        path = (page.parent / target).resolve()
        assert path.exists() or path in MADE, target


def shown(cell: str) -> str:
    """The text of a cell in a browser, where <> is read as HTML unless it is code."""
    return re.sub(r"<[^>]*>", "", re.sub(r"`[^`]+`", "code", cell)).strip()


FENCED = r"^ *```(\w+[^\n]*)\n(.*?)^ *```"
COMMAND = re.compile(r"(?:dfmp2(?! finished)|pip|python3?|git|export|cd|source|sbatch)\s")
QUOTED = re.compile(r"'[^']*'|\"[^\"]*\"|\$\{[^}]*\}")
# what zsh expands, or takes for an argument; `*` and `?` that match files are meant
EXPANDED = re.compile(r"[\[\]]|(?<=[\w,=])\*(?=\w)|(?<=\d)\*|\s#|\^|=\(")


def typed(text: str) -> Iterator[str]:
    """The commands of a page: in blocks that are not files, and in the text."""
    for fence, body in re.findall(FENCED, text, re.DOTALL | re.MULTILINE):
        lines = [line.strip() for line in body.split("\n")]
        if fence.startswith("console"):
            yield from (line[2:] for line in lines if line.startswith("$ "))
        elif fence.startswith(("text", "bash", "sh")) and "title" not in fence:
            yield from filter(COMMAND.match, lines)
    yield from filter(COMMAND.match, re.findall(r"`([^`\n]+)`", text))


def test_commands_can_be_typed_into_any_shell() -> None:
    """zsh refuses patterns that match no file, such as 2*h2.xyz or .[docs], and takes a comment for
    arguments."""
    commands = [command for page in PAGES for command in typed(page.read_text())]
    assert len(commands) > 500
    assert [one for one in commands if EXPANDED.search(QUOTED.sub("", one))] == []


def tables(text: str) -> Iterator[list[str]]:
    """The rows of each table of a page."""
    for found in re.finditer(r"(?:^\|.*\n)+", text, re.MULTILINE):
        yield found[0].splitlines()


LONG = {  # pages of reference, whose tables are read row by row
    "docs/project/architecture.md",
    "docs/project/validation/index.md",
    "docs/project/validation/numbers.md",
    "docs/project/validation/report-pages.md",
    "docs/reference/json.md",
    "docs/reference/messages.md",
    "docs/reference/molecule-files.md",
    "docs/reference/solvents.md",
}


@pytest.mark.parametrize("page", PAGES, ids=name)
def test_long_tables_are_files_to_download(page: Path) -> None:
    """A page shows the first rows; the file beside it has the number of rows stated on the page."""
    text = page.read_text()
    rows = [len(lines) - 2 for lines in tables(BLOCK.sub("", text))]
    most = 2 * LONGEST
    if name(page).startswith("docs/project/"):
        most = LONGEST
    assert name(page) in LONG or max(rows, default=0) <= most
    for head, count, file in re.findall(
        r"(\|.*\|)\n\|[-|]+\|\n(?:\|.*\n)+\n"
        r"The table shows the first \d+ of (\d+) rows; \[download all \2\]\((.*?)\)",
        text,
    ):
        lines = (page.parent / file).read_text().splitlines()
        assert lines[0].split("\t") == cells(head)
        assert len(lines) - 1 == int(count)


def test_the_number_of_references_is_that_of_the_package() -> None:
    """Energies, gradients and properties with a verdict, and those shown without one."""
    counts = Counter[str]()
    for entry in load_entries():
        kind = "gradient" if "gradient" in entry.tags else "energy"
        if "conventional-mp2" in entry.tags:
            kind = "shown"
        counts[kind] += len(entry.quantities)
    said = f"{counts['energy']} energies and {counts['gradient']} gradient components"
    for page in ("README.md", "docs/howto/validate.md", "docs/explanation/checks.md"):
        assert said in " ".join((ROOT / page).read_text().split()), page
    assert f"({counts['shown']} more values)" in (ROOT / "docs/howto/validate.md").read_text()
    assert (
        f"{counts['energy']} published" in (ROOT / "docs/project/validation/numbers.md").read_text()
    )


def test_the_page_on_citing_has_what_the_citation_file_has() -> None:
    """Version, titles and identifiers."""
    citation = (ROOT / "CITATION.cff").read_text()
    page = (ROOT / "docs/cite.md").read_text()
    facts = re.findall(r"^ *(?:doi|title|version|- title): \"?(.*?)\"?$", citation, re.MULTILINE)
    assert len(facts) >= 5
    assert [fact for fact in facts if fact not in page] == []


def test_extras_and_double_hybrids_on_the_pages_exist() -> None:
    """Every extra that a page installs, and the number of functionals of README."""
    project = tomllib.loads((ROOT / "pyproject.toml").read_text())["project"]
    for page in PAGES:
        for names in re.findall(r"pip install '(?:\.|dfmp2)\[(.*?)\]'", page.read_text()):
            assert set(names.split(",")) <= set(project["optional-dependencies"]), page
    available = [row for row in table().values() if not row.unavailable]
    assert f"| {len(available)} [double hybrids]" in (ROOT / "README.md").read_text()


def test_continuous_integration_runs_the_command_of_readme() -> None:
    """README's second command is what `.ci/run` executes."""
    blocks = [block for block in blocks_of(ROOT / "README.md") if block.language == "console"]
    commands = [command for block in blocks for command, _ in block.commands]
    last = (ROOT / ".ci/run").read_text().splitlines()[-1]
    assert last.split()[-1] == "scripts/test" and "scripts/test" in commands


def test_tutorials_and_how_to_pages_have_a_picture() -> None:
    """All except the two lists of pages."""
    pages = [page for page in PAGES if page.parent.name in ("tutorials", "howto")]
    assert len(pages) > 40
    without = [name(page) for page in pages if "![" not in page.read_text()]
    assert without == ["docs/howto/index.md", "docs/tutorials/index.md"]


def test_every_page_is_in_the_navigation() -> None:
    """Except those of single commands, which scripts/docs_hooks.py adds."""
    navigation = (ROOT / "mkdocs.yml").read_text()
    commands = [ROOT / f"docs/reference/commands/{command}.md" for command in COMMANDS]
    pages = [page for page in (*PAGES[1:], *MADE) if page not in commands]
    names = [str(page.relative_to(ROOT / "docs")) for page in pages]
    assert [one for one in names if f"- {one}" not in navigation] == []
