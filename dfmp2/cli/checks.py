"""Capabilities and speed of this installation: `dfmp2 doctor`, `methods`, `backends`, `bench`.

Also `completion`, for names in the shell.
"""

from __future__ import annotations

import getpass
import json
import os
import re
import socket
import sys
import tempfile
import textwrap
from collections.abc import Sequence
from dataclasses import asdict, dataclass
from functools import partial
from pathlib import Path
from typing import TYPE_CHECKING

import click
from click.shell_completion import get_completion_class

from dfmp2.cli.console import Console
from dfmp2.cli.help import AnnouncedCommand, GroupedCommand
from dfmp2.cli.options import (
    AS_JSON,
    OVERWRITE,
    QUIET,
    as_one,
    options_of,
    prepare_libraries,
)
from dfmp2.double_hybrids import DISPERSIONS, DoubleHybrid, table
from dfmp2.errors import InputError, Option, ResourceError
from dfmp2.host.files import require_writable, write_atomically
from dfmp2.host.resources import usable_cores
from dfmp2.host.threads import set_environment
from dfmp2.molecule.text import printable
from dfmp2.options import parse_bytes
from dfmp2.units import counted_text

if TYPE_CHECKING:
    from dfmp2.validation.doctor import Diagnosis

REPORT = """What I typed:

What I expected:

What came instead, with the message:

Installation, by dfmp2 doctor --report:"""
SHELLS = ("bash", "zsh", "fish")
# zsh completes nothing without it
START = "whence compdef >/dev/null || { autoload -Uz compinit && compinit; }\n"
NAME_WIDTH = 22  # of the names of double hybrids, with the separator from the text
wrap_words = partial(textwrap.wrap, break_on_hyphens=False)
COLOURS = {"ok": "green", "warn": "yellow", "fail": "red"}


@click.command("doctor", cls=GroupedCommand)
@AS_JSON
@click.option(
    "--report", is_flag=True, help="Print a text for a bug report, without private paths."
)
@click.pass_context
def doctor(ctx: click.Context, as_json: bool, report: bool) -> None:
    """Check installation, machine and working directory; one fix line per problem.

    Ends with a real run of a tiny molecule. Exit code 0 if the default run works, else that of the
    run.
    """
    if as_json and report:
        raise InputError("--json and --report: choose one of them")
    from dfmp2.validation.doctor import Surroundings, examine, exit_code

    surroundings = Surroundings()
    set_environment(usable_cores())  # as in a run, before NumPy and PySCF are loaded
    findings = []
    with Console(quiet=as_json or report, log=None) as console:
        for finding in examine(surroundings):
            findings.append(finding)
            if not (as_json or report):
                console.show(_finding_text(finding))
    code = exit_code(findings)
    if as_json:
        checks = [
            {name: getattr(found, name) for name in ("name", "status", "detail", "fix")}
            for found in findings
        ]
        click.echo(json.dumps({"works": code == 0, "exit_code": code, "checks": checks}, indent=2))
    elif report:
        lines = [
            f"- {found.status} {found.name}: {printable(without_paths(found.detail))}"
            for found in findings
        ]
        click.echo("\n".join([REPORT, *lines]))
    else:
        click.echo(_verdict(findings, code))
    ctx.exit(code)


def _finding_text(finding: Diagnosis) -> str:
    """The lines of one check."""
    lines = wrap_words(printable(finding.detail), 54)
    if finding.fix:
        lines += wrap_words(printable(f"fix: {finding.fix}"), 54)
    status = click.style(f"{finding.status:<5}", fg=COLOURS[finding.status])
    return f"{status}{finding.name:<21}" + f"\n{'':26}".join(lines)


def _verdict(findings: Sequence[Diagnosis], code: int) -> str:
    """The last line: whether the default run works, and how many warnings there are."""
    warnings = sum(finding.status == "warn" for finding in findings)
    verdict = "the default run works"
    if code:
        verdict = f"the default run does not work (exit code {code})"
    return f"dfmp2 doctor: {verdict}, {counted_text(warnings, 'warning')}"


def without_paths(text: str) -> str:
    """The text with absolute paths reduced to their last name, and without the names of local
    folders, user and host."""
    known = {
        os.getcwd(),
        os.path.expanduser("~"),
        sys.prefix,
        tempfile.gettempdir(),
        str(Path(__file__).parents[2]),
    }
    for place in sorted(known - {"/"}, key=len, reverse=True):
        text = text.replace(place, "...")
    for name in filter(None, (_user(), socket.gethostname())):
        text = re.sub(rf"(?<!\w){re.escape(name)}(?!\w)", "...", text)
    return re.sub(r"(?<![\w.])/(?:[^\s,;:'\"()]*/)+(?=[^\s,;:'\"()])", ".../", text)


def _user() -> str:
    """The name of the user; "" in a container that runs under a number without one."""
    try:
        return getpass.getuser()
    except (KeyError, OSError):  # of Python to 3.12, and later
        return ""


@click.command("backends", cls=GroupedCommand)
@AS_JSON
def backends(as_json: bool) -> None:
    """List the backends and why each of them can or cannot be used here."""
    from dfmp2.backends.registry import BACKENDS

    rows = ((row.name, row.description, row.probe()) for row in BACKENDS)
    if as_json:
        table = {
            name: {"description": text, "available": why is None, "reason": why}
            for name, text, why in rows
        }
        click.echo(json.dumps(table, indent=2))
        return
    for name, text, why in rows:  # print each as soon as it is known, since libraries are loaded
        click.echo(f"{name:<17}{'available' if why is None else 'unavailable':<13}{text}")
        if why is not None:
            click.echo(textwrap.fill(why, 80, initial_indent=" " * 17, subsequent_indent=" " * 17))


@click.command("methods", cls=GroupedCommand)
@AS_JSON
def methods(as_json: bool) -> None:
    """List the methods of --method: the factors of their two spin components, what they are for,
    their sources."""
    from dfmp2.options.methods import METHODS

    if as_json:
        from dfmp2.output.json import json_value

        hybrids = {name: asdict(row) for name, row in table().items() if not row.unavailable}
        for row in hybrids.values():
            row["source"] = f"doi {row['doi']}"
        rows = {name: asdict(one) for name, one in METHODS.items()} | hybrids
        click.echo(json.dumps(json_value(rows), indent=2))
        return
    click.echo(f"{'method':<13}{'correlation energy':<25}what it is, and its source")
    for one in METHODS.values():
        factors = f"{one.opposite_spin:.3g} E(OS) + {one.same_spin:.3g} E(SS)"
        if one.kind in ("rpa", "none"):
            factors = one.formula
        click.echo(f"{one.name:<13}{factors:<25}{one.says}")
        click.echo(
            textwrap.fill(one.source, 80, initial_indent=" " * 13, subsequent_indent=" " * 13)
        )
    click.echo("RHF, UHF and ROHF references (drpa: RHF, UHF, RKS, UKS; ks: RKS, UKS)")
    _list_double_hybrids()
    click.echo("cost: occ^2 virt^2 fit; of sos-laplace and drpa occ virt fit^2 for each point")


def _list_double_hybrids() -> None:
    """Print the table of double hybrids, RKS and UKS, a line or two each."""
    click.echo(
        "\ndouble hybrids (RKS and UKS): exact exchange K, correlation energy, dispersion,\n"
        "source, program they were checked against"
    )
    for name, row in table().items():
        lines = wrap_words(_about_double_hybrid(row), 80 - NAME_WIDTH)
        click.echo(f"{name:<{NAME_WIDTH}}" + f"\n{'':<{NAME_WIDTH}}".join(lines))
    click.echo(f"{'custom-dh':<{NAME_WIDTH}}--xc, --os-scale and --ss-scale of your own\n")


def _about_double_hybrid(row: DoubleHybrid) -> str:
    """The parts of a double hybrid, its source, and what it was checked against."""
    if row.unavailable:
        return f"{row.title} not available: {row.unavailable}; doi {row.doi}"
    short, long, omega = row.exact_exchange
    exchange = f"{short:.3g}"
    if omega:
        exchange += f" to {long:.3g} ({omega:g}/bohr)"
    corrections = [title for key, title in DISPERSIONS.items() if row.parameters_in(key)]
    text = (
        f"{row.title}: {exchange} K, {row.opposite_spin:.4g} E(OS) + {row.same_spin:.4g} E(SS), "
        f"{' or '.join(corrections) or 'no dispersion'}; doi {row.doi}; {row.checked}"
    )
    if row.energy:
        text += f"; energy {row.energy}, orbitals {row.scf}"
    if row.p86:
        text += f"; P86 with {row.p86}"
    return text


@dataclass(frozen=True, slots=True)
class PairStep:
    """The benchmark of pair energies: the values of the options that belong to --shape."""

    shape: str | None
    precision: str | None
    memory: str | None
    backend: tuple[str, ...]

    def require_unset(self) -> None:
        """Raise InputError if one of the options that need --shape is given."""
        for name in ("precision", "memory", "backend"):
            if getattr(self, name):
                raise InputError(f"--{name} does not belong to --gemm: leave it out")

    def precisions(self) -> list[str]:
        """fp64, mixed, or both.

        Raises
        ------
        InputError : unknown name
        """
        listed = self.precision or "fp64,mixed"
        names = [name.strip().lower() for name in listed.split(",")]
        for name in names:
            if name not in ("fp64", "mixed"):
                raise InputError(
                    f"--precision {name!r}: expected fp64 or mixed, or both with a comma between "
                    "them"
                )
        return list(dict.fromkeys(names))

    def budget(self) -> int | None:
        """--memory in bytes."""
        return None if self.memory is None else parse_bytes(self.memory)


@click.command("bench", cls=AnnouncedCommand)
@click.option(
    "--shape",
    metavar="NAME",
    help="Pair step: small, medium or large, the shapes of trnblas.",
)
@click.option(
    "--gemm", is_flag=True, help="Matrix products of NumPy and PyTorch; rates kept for plan."
)
@click.option(
    "--precision",
    metavar="LIST",
    help="Precisions for --shape: fp64, mixed or both with a comma.  [default: both]",
)
@click.option("--repeats", type=int, default=3, show_default=True, help="Number of runs of each.")
@options_of("memory", "threads")
@click.option(
    "--backend",
    multiple=True,
    metavar="NAME",
    help="Backend for --shape: cpu, torch, cuda; may be repeated.  [default: all available]",
)
@click.option(
    "--json",
    "json_file",
    metavar="FILE",
    help="Also write JSON; - prints it in place of the tables.",
)
@OVERWRITE
@QUIET
@as_one("pair_step", PairStep)
def bench(
    pair_step: PairStep,
    gemm: bool,
    repeats: int,
    threads: int | None,
    json_file: str | None,
    overwrite: bool,
    quiet: bool,
) -> None:
    """Measure. Choose --shape or --gemm.

    Exit code 8 if the energy of a shape differs by more than its precision explains, 6 if a backend
    is missing.
    """
    if gemm and pair_step.shape is not None:
        raise InputError("--shape and --gemm: give exactly one of --shape NAME, --gemm")
    if not gemm and pair_step.shape is None:
        raise InputError("nothing to measure: give exactly one of --shape NAME, --gemm")
    if gemm:
        pair_step.require_unset()
    if repeats < 1:
        raise InputError(f"--repeats {repeats}: expected a whole number, 1 or more")
    precisions = pair_step.precisions()
    count = prepare_libraries(threads)
    from dfmp2.validation import bench as benchmarks

    budget = pair_step.budget()
    target = None
    if json_file is not None and json_file != "-":
        target = Path(json_file)
        require_writable(target, overwrite=overwrite, option=Option("json"))
    with Console(quiet=quiet, log=None) as console:
        if pair_step.shape is None:
            results = benchmarks.measure_products(count, repeats, console)
            text = benchmarks.products_text(results)
        else:
            results = benchmarks.measure_shape(
                pair_step.shape,
                list(pair_step.backend),
                precisions,
                repeats=repeats,
                count=count,
                memory=budget,
                listener=console,
            )
            text = benchmarks.shape_text(results)
    as_json = json.dumps(results, indent=2, allow_nan=False) + "\n"
    if target is not None:
        write_atomically(target, as_json.encode(), overwrite=overwrite, option=Option("json"))
    if json_file == "-":
        click.echo(as_json, nl=False)
    else:
        click.echo(text, nl=False)
    if pair_step.shape is not None:
        benchmarks.judge(results)


@click.command("completion", cls=GroupedCommand)
@click.argument("shell", required=False, type=click.Choice(SHELLS))
@click.option("--install", is_flag=True, help="Write the script and let the shell load it.")
def completion(shell: str | None, install: bool) -> None:
    """Print what lets SHELL (default: that of $SHELL) complete names; --install puts it in place.

    bash and zsh get one line at the end of ~/.bashrc or ~/.zshrc that loads the script from
    ~/.local/share/dfmp2, fish a file in ~/.config/fish/completions. Repeating the command changes
    nothing.
    """
    name = shell or Path(os.environ.get("SHELL", "")).name
    kind = get_completion_class(name) if name in SHELLS else None
    if kind is None:
        raise InputError(
            f"the shell of $SHELL is {name or 'not set'}: name one of {', '.join(SHELLS)}"
        )
    from dfmp2.cli.main import cli

    script = (START if name == "zsh" else "") + kind(cli, {}, "dfmp2", "_DFMP2_COMPLETE").source()
    if not install:
        click.echo(script, nl=False)
        return
    try:
        place = _place_of_completion(name)
    except RuntimeError as error:
        raise ResourceError(
            "cannot install the completion: the home folder is unknown: set HOME, or print it "
            "without --install"
        ) from error
    try:
        _install_completion(name, place, script)
    except OSError as error:
        reason = f"{error.filename or place}: {error.strerror}"
        raise ResourceError(
            f"cannot install the completion: {reason}: print it without --install"
        ) from error
    click.echo(f"dfmp2 completion: {place}; a new {name} completes names")


def _place_of_completion(shell: str) -> Path:
    """The file in which a shell's script is installed."""
    if shell == "fish":
        settings = Path(os.environ.get("XDG_CONFIG_HOME") or Path.home() / ".config")
        return settings / "fish/completions/dfmp2.fish"
    data = Path(os.environ.get("XDG_DATA_HOME") or Path.home() / ".local/share")
    return data / f"dfmp2/completion.{shell}"


def _install_completion(shell: str, place: Path, script: str) -> None:
    """Write the script; bash and zsh load it by a line in the file that they read at their
    start."""

    place.parent.mkdir(parents=True, exist_ok=True)
    write_atomically(place, script.encode(), overwrite=True)
    if shell == "fish":
        return
    start = Path.home() / f".{shell}rc"
    line = f'source "{place}"  # completion of dfmp2\n'
    text = ""
    if start.exists():
        text = start.read_text(encoding="utf-8", errors="surrogateescape")
    if line in text:
        return
    if text and not text.endswith("\n"):
        line = f"\n{line}"
    with open(start, "a", encoding="utf-8") as file:
        file.write(line)
