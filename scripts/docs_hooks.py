"""What MkDocs needs beside the pages: those made of commands, methods and the audit, and docstrings
of our style."""

from __future__ import annotations

import html
import inspect
from collections import Counter
from collections.abc import Iterator
from csv import DictReader
from pathlib import Path
from typing import Any

import click
import griffe
from mkdocs.structure.files import File, Files

from dfmp2.cli.main import cli
from dfmp2.double_hybrids import DISPERSIONS, table
from dfmp2.options import METHODS

HEAD = """# Command line

Made from the program when these pages are built; `dfmp2 COMMAND --help-all` prints the same.
The exit codes of all commands are [listed apart](exit-codes.md).
"""
METHODS_HEAD = """# Methods

Made from the program when these pages are built; `dfmp2 methods` prints the same. Each has RHF, UHF and ROHF
references unless the column of costs says otherwise. [How to choose one](../howto/methods.md).

| `--method` | called | correlation energy | cost | what for | source |
|---|---|---|---|---|---|
"""
AUDIT = Path(__file__).parent.parent / "docs/trainium/audit.tsv"
PAGES = (
    "NKI backend of trnblas",
    "its kernels",
    "simulator of trnfft",
    "trntensor",
    "overview",
)  # of the column page
VERDICTS = {
    "better": "and more",
    "works": "here",
    "different": "here in another way, on purpose",
    "not here": "not needed, or left out on purpose",
    "device": "here, and measured or settled only by a device",
}
AUDIT_HEAD = """# Every published idea

Made of `docs/trainium/audit.tsv` when these pages are built: the ideas of five pages that trnblas, trnfft and trntensor
have published, what is here, and a test that shows it. [Names](coming-from.md); [figures](published.md).

"""


def on_files(files: Files, config: Any) -> Files:
    """Add the pages of all commands and methods, and of the audit."""
    files.append(File.generated(config, "reference/cli.md", content=HEAD + "".join(sections())))
    files.append(
        File.generated(config, "reference/methods.md", content=METHODS_HEAD + "".join(methods()))
    )
    files.append(File.generated(config, "trainium/audit.md", content=AUDIT_HEAD + "".join(audit())))
    return files


def audit() -> Iterator[str]:
    """How many there are of each verdict, and a row for each idea."""
    with AUDIT.open(encoding="utf-8", newline="") as file:
        rows = list(DictReader(file, delimiter="\t"))
    counts = Counter(row["verdict"] for row in rows)
    yield "| verdict | ideas | meaning |\n|---|---|---|\n"
    yield from (f"| {name} | {counts[name]} | {meaning} |\n" for name, meaning in VERDICTS.items())
    yield "\n| idea | page | here | verdict | test |\n|---|---|---|---|---|\n"
    for row in rows:
        tests = ", ".join(f"`{name}`" for name in row["evidence"].split())
        yield (
            f"| {row['idea']} | {PAGES[int(row['page'])]} | {row['ours']} | {row['verdict']} | "
            f"{tests} |\n"
        )


def methods() -> Iterator[str]:
    """A row for each method."""
    cost = {
        "pairs": "N^5",
        "laplace": "N^4",
        "rpa": "N^4; no ROHF, but RKS and UKS",
        "none": "N^4; RKS and UKS",
    }
    for one in METHODS.values():
        factors = (
            one.formula.replace("E(OS)", "E_OS")
            .replace("E(SS)", "E_SS")
            .replace("E(RPA)", "E_RPA")
            .replace("E(KS)", "E_KS")
        )
        yield (
            f"| `{one.name}` | {one.title} | {factors} | {cost[one.kind]} | {one.says} | "
            f"{one.source} |\n"
        )
    yield from double_hybrids()


def double_hybrids() -> Iterator[str]:
    """A table of the double hybrids."""
    yield (
        "\n## Double hybrids\n\nRKS and UKS, N^5. Exact exchange at short and, where it is another "
        "one, at long range (omega, 1/bohr). [Which one?](../howto/double-hybrids.md)\n\n| "
        "`--method` | called | exact exchange | c_OS | c_SS | dispersion | functional | checked "
        "against | doi |\n|---|---|---|---|---|---|---|---|---|\n"
    )
    for name, row in table().items():
        if row.unavailable:
            yield (
                f"| `{name}` | {row.title} | | | | | not available: {row.unavailable} | | "
                f"{row.doi} |\n"
            )
            continue
        short, long, omega = row.exact_exchange
        exchange = f"{short:.4g}" if not omega else f"{short:.4g}, {long:.4g} ({omega:g})"
        corrections = [title for key, title in DISPERSIONS.items() if row.parameters_in(key)]
        functional = f"`{row.scf}`"
        if row.energy:
            functional = f"orbitals {functional}, energy `{row.energy}`"
        yield (
            f"| `{name}` | {row.title} | {exchange} | {row.opposite_spin:.6g} | "
            f"{row.same_spin:.6g} | {', '.join(corrections) or 'none'} | {functional} | "
            f"{row.checked} | {row.doi} |\n"
        )


def sections() -> Iterator[str]:
    """One section for each command, those of groups too."""
    context = click.Context(cli, info_name="dfmp2")
    run = cli.get_command(context, "run")
    assert run is not None
    yield from section(cli, "dfmp2", {}, 2)
    yield from walk(cli, "dfmp2", context, options_of(run))


def walk(
    group: click.Group, path: str, context: click.Context, run: dict[str, str]
) -> Iterator[str]:
    """The commands of a group."""
    for name in group.list_commands(context):
        command = group.get_command(context, name)
        assert command is not None
        own = f"{path} {name}"
        yield from section(command, own, {} if own == "dfmp2 run" else run, 1 + own.count(" "))
        if isinstance(command, click.Group):
            yield from walk(command, own, context, run)


def options_of(command: click.Command) -> dict[str, str]:
    """Options and what they mean, as `--help` prints them."""
    context = click.Context(command)
    found = (
        option.get_help_record(context)
        for option in command.params
        if isinstance(option, click.Option)
    )
    return {record[0]: record[1] for record in found if record is not None}


def section(command: click.Command, path: str, run: dict[str, str], level: int) -> Iterator[str]:
    """Usage, text and options of a command; options it shares with `run` are named only."""
    usage = " ".join(command.collect_usage_pieces(click.Context(command, info_name=path)))
    yield f"\n{'#' * max(2, level)} {path}\n\n```text\n{path} {usage}\n```\n\n"
    yield plain(inspect.cleandoc(command.help or "").replace("\b\n", "")) + "\n\n"
    options = options_of(command)
    shared = [option for option, meaning in options.items() if run.get(option) == meaning]
    yield "".join(
        f"- `{option}`: {plain(options[option])}\n" for option in options if option not in shared
    )
    if shared:
        names = ", ".join(f"`{option.split()[0]}`" for option in shared)
        yield f"\nAs for [dfmp2 run](#dfmp2-run): {names}.\n"


def plain(text: str) -> str:
    """Text in which nothing is Markdown or HTML."""
    return html.escape(text, quote=False).replace("*", r"\*").replace("[", r"\[")


class Descriptions(griffe.Extension):
    """`name : what it is` describes a parameter; the type stands in the signature.

    Where numpydoc expects a type, docstrings of dfmp2 have the description. It is moved to where
    pages show it.
    """

    def on_object(self, *, obj: griffe.Object, **_: Any) -> None:
        """Move the descriptions of one function or class."""
        kinds = griffe.DocstringSectionKind
        for part in obj.docstring.parsed if obj.docstring and not obj.is_attribute else ():
            if part.kind not in (kinds.parameters, kinds.attributes, kinds.returns, kinds.raises):
                continue
            for item in part.value:
                if not isinstance(item.annotation, str):
                    continue
                given = item.annotation
                if part.kind is kinds.raises:
                    item.annotation, _, given = given.partition(" : ")
                else:
                    if part.kind is kinds.returns:
                        item.annotation = obj.returns
                    else:
                        item.annotation = None
                item.description = f"{given} {item.description}".strip()
