"""Called by mkdocs.yml: generate the pages on commands, methods and the audit, and support the
style of our docstrings."""

from __future__ import annotations

import html
import inspect
import re
from collections import Counter
from collections.abc import Iterator
from csv import DictReader
from pathlib import Path
from typing import Any

import click
import griffe
from mkdocs.structure.files import File, Files
from mkdocs.structure.pages import Page

from dfmp2.cli.main import COMMANDS, HEADINGS, cli
from dfmp2.cli.options import GROUPS, OWN, group_of
from dfmp2.double_hybrids import DISPERSIONS, table
from dfmp2.options.methods import METHODS

COMMANDS_HEAD = """# Commands

Made from the program when these pages are built; `dfmp2 COMMAND --help-all` prints the same.
[All options and their defaults](../defaults.md) are in one table, [exit codes](../exit-codes.md) in another.

"""
DEFAULTS_HEAD = """# Options and defaults

Every option of every command, made from the program when these pages are built. A default in italics
is a rule; the others are values. Keyword arguments of Python and keys of a batch manifest have the
same names with underscores, and the same defaults: `--frozen-core` is `frozen_core`.

"""
UNSET = "*not set*"
METHODS_HEAD = """# Methods

Made from the program when these pages are built; `dfmp2 methods` prints the same. Each has RHF, UHF and ROHF
references unless the column of costs says otherwise. [How to choose one](../howto/methods.md).

| `--method` | called | correlation energy | cost | what for | source |
|---|---|---|---|---|---|
"""
SEARCH_WEIGHTS = {  # the first match counts; 1 for others
    "tutorials/": 2,
    "howto/": 1.5,
    "project/trainium/add-a-kernel": 2,
    "project/trainium/costs": 1,
    "project/trainium/": 0.5,
    "project/": 0.05,
    "changelog": 0.02,
    "reference/commands/index": 0.5,
    "reference/commands/run": 0.8,
    "reference/commands/": 0.3,
    "reference/messages": 0.1,
    "reference/api": 0.2,
    "explanation/": 1.2,
}
AUDIT = Path(__file__).parent.parent / "docs/project/trainium/audit.tsv"
# Entries of the column "page"
PAGES = ("NKI backend of trnblas", "its kernels", "simulator of trnfft", "trntensor", "overview")
VERDICTS = {
    "better": "and more",
    "works": "here",
    "different": "here in another way, on purpose",
    "not here": "not needed, or left out on purpose",
    "device": "here, and measured or settled only by a device",
}
AUDIT_HEAD = """# Every published idea

The ideas that trnblas, trnfft and trntensor have published on five pages, what dfmp2 does about each,
and a test that shows it. Made from [a table](audit.tsv) when these pages are built.
See also [names](coming-from.md) and [figures](published.md).

"""


def on_config(config: Any) -> Any:
    """The configuration, with the pages of all commands in the navigation."""
    (reference,) = (part["Reference"] for part in config.nav if "Reference" in part)
    (commands,) = (part["Commands"] for part in reference if "Commands" in part)
    commands += [f"reference/commands/{name}.md" for name in COMMANDS]
    return config


def on_files(files: Files, config: Any) -> Files:
    """Add the pages of all commands, of their options and methods, and of the audit."""
    for path, content in command_pages().items():
        files.append(File.generated(config, f"reference/commands/{path}.md", content=content))
    files.append(File.generated(config, "reference/defaults.md", content=defaults()))
    files.append(
        File.generated(config, "reference/methods.md", content=METHODS_HEAD + "".join(methods()))
    )
    files.append(
        File.generated(config, "project/trainium/audit.md", content=AUDIT_HEAD + "".join(audit()))
    )
    return files


def audit() -> Iterator[str]:
    """The number of ideas with each verdict, and a row for each idea."""
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


def commands_of(group: click.Group, context: click.Context) -> dict[str, click.Command]:
    """The commands of a group by name, in the order of `--help`."""
    commands = {}
    for name in group.list_commands(context):
        command = group.get_command(context, name)
        assert command is not None
        commands[name] = command
    return commands


def command_pages() -> dict[str, str]:
    """The text of a page for each command, and of their list, by page name."""
    context = click.Context(cli, info_name="dfmp2")
    pages = {"index": COMMANDS_HEAD + "".join(command_list())}
    for name, command in commands_of(cli, context).items():
        parts = [*section(command, f"dfmp2 {name}", 1)]
        if isinstance(command, click.Group):
            for part, own in commands_of(command, context).items():
                parts += section(own, f"dfmp2 {name} {part}", 2)
        pages[name] = "".join(parts)
    return pages


def command_list() -> Iterator[str]:
    """The commands under the headings of `dfmp2 --help`, each with its description."""
    for name, (_, line) in COMMANDS.items():
        if name in HEADINGS:
            yield f"\n## {HEADINGS[name]}\n\n"
        yield f"- [`dfmp2 {name}`]({name}.md): {plain(line)}\n"


def visible_options(command: click.Command) -> list[click.Option]:
    """The options of a command that `--help-all` lists, except those that print help."""
    options = [one for one in command.params if isinstance(one, click.Option)]
    return [one for one in options if not one.hidden]


def by_group(options: list[click.Option]) -> dict[str, list[click.Option]]:
    """Options under the headings of `--help`, in its order."""
    groups: dict[str, list[click.Option]] = {heading: [] for heading in GROUPS}
    for option in options:
        groups[group_of(option)[0]].append(option)
    return {heading: some for heading, some in groups.items() if some}


def section(command: click.Command, path: str, level: int) -> Iterator[str]:
    """Usage, text and options of a command, by the groups of `--help`."""
    usage = " ".join(command.collect_usage_pieces(click.Context(command, info_name=path)))
    yield f"\n{'#' * level} {path}\n\n```text\n{path} {usage}\n```\n\n"
    yield plain(inspect.cleandoc(command.help or "").replace("\b\n", "")) + "\n\n"
    context = click.Context(command)
    for heading, options in by_group(visible_options(command)).items():
        if isinstance(command, click.Group):
            break  # its options are those of its commands
        yield f"{'#' * (level + 1)} {heading} {{ #{anchor(path, heading)} }}\n\n"
        for option in options:
            names, meaning = option.get_help_record(context) or ("", "")
            yield f"- `{names}`: {plain(meaning)}\n"
        yield "\n"


def anchor(path: str, heading: str) -> str:
    """The anchor of a group of options, unique because pages of several commands have the same
    headings."""
    return f"{path} {heading}".lower().replace(" ", "-")


def default_of(option: click.Option, context: click.Context) -> tuple[str, str]:
    """The default of an option as shown in a table, and its meaning without the default."""
    _, meaning = option.get_help_record(context) or ("", "")
    meaning = re.sub(r"(\[|; )[0-9.]+<=?x[^\];]*(?=\]|;)", r"\1", meaning).replace("[]", "")
    stated = re.search(r"\[default: ([^\]]*)\]", meaning)
    if stated is not None:
        text = stated[1].strip("; ")
        meaning = meaning[: stated.start()].strip()
        if text == str(option.default):
            return f"`{text}`", meaning
        return f"*{plain(text)}*", meaning
    if option.required:
        return "*required*", re.sub(r"\[[; ]*required\]", "", meaning).strip()
    if option.is_flag:
        return "off", meaning
    return UNSET, meaning


def defaults() -> str:
    """The table of all options: one row for each default and meaning, with its commands."""
    context = click.Context(cli, info_name="dfmp2")
    commands: dict[str, tuple[str, click.Command]] = {}
    for name, command in commands_of(cli, context).items():
        if isinstance(command, click.Group):
            for part, own in commands_of(command, context).items():
                commands[f"{name} {part}"] = (name, own)
        else:
            commands[name] = (name, command)
    rows: dict[str, dict[tuple[str, str, str], list[str]]] = {heading: {} for heading in GROUPS}
    for title, (page, command) in commands.items():
        inner = click.Context(command)
        for option in visible_options(command):
            if {"--help", "--help-all"} & set(option.opts):
                continue
            default, meaning = default_of(option, inner)
            names = "/".join((*option.opts, *option.secondary_opts))
            row = (names, default, plain(meaning).replace("|", "\\|"))
            users = rows[group_of(option)[0]].setdefault(row, [])
            users.append(f"[{title}](commands/{page}.md)")
    text = DEFAULTS_HEAD
    for heading in (*(name for name in GROUPS if name != OWN), OWN):
        options = rows[heading]
        if not options:
            continue
        title = heading
        if heading == OWN:
            title = "Options of single commands"
        text += f"## {title}\n\n| option | default | meaning | commands |\n|---|---|---|---|\n"
        for (names, default, meaning), users in sorted(options.items()):
            text += f"| `{names}` | {default} | {meaning} | {', '.join(users)} |\n"
        text += "\n"
    return text


def on_page_markdown(markdown: str, *, page: Page, **_: Any) -> str:
    """The unchanged text; pages for few readers are ranked last in the search."""
    for start, weight in SEARCH_WEIGHTS.items():
        if page.file.src_uri.startswith(start):
            page.meta.setdefault("search", {"boost": weight})
            break
    return markdown


def plain(text: str) -> str:
    """Text with Markdown and HTML escaped."""
    return html.escape(text, quote=False).replace("*", r"\*").replace("[", r"\[")


class Descriptions(griffe.Extension):
    """Support for `name : description` of parameters whose type is in the signature.

    Docstrings of dfmp2 may have the description where numpydoc expects a type. It is moved to where
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
