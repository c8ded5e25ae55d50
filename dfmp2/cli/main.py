"""The command line: one group, and the one place where errors become messages and exit codes.

Exit codes: 0 done; 1 a fault in dfmp2; 2 command line not understood; 3 something named is wrong;
4 SCF; 5 numerical guard; 6 backend; 7 memory, disk, permissions; 8 comparison failed; 9 batch with
failed items; 75 terminated; 130 Ctrl-C.
"""

from __future__ import annotations

import contextlib
import io
import os
import signal
import sys
from collections.abc import Sequence
from importlib import import_module
from typing import Any

import click

from dfmp2.cli import ranks, signals
from dfmp2.deferred import defer_unused
from dfmp2.errors import Dfmp2Error
from dfmp2.io.text import printable

COMMANDS = {  # name -> (module, one line); modules are loaded when called, so that --help stays fast
    "run": ("dfmp2.cli.run", "Compute the DF-MP2 energy of a molecule."),
    "prepare": ("dfmp2.cli.prepare", "SCF, integrals and B of a molecule into a file, without pair energies."),
    "energy": ("dfmp2.cli.energy", "Pair energies of a file that prepare has written, here or on another machine."),
    "plan": ("dfmp2.cli.plan", "Predict memory, operations and time of a run."),
    "show": ("dfmp2.cli.show", "Print a stored result."),
    "report": ("dfmp2.cli.report", "Write stored results as an HTML or Markdown page."),
    "compare": ("dfmp2.cli.compare", "Recompute a stored result with PySCF or Psi4 and print the differences."),
    "derive": ("dfmp2.cli.derive", "Energies with a larger frozen core or other scaling, without a new run."),
    "interaction": ("dfmp2.cli.interaction", "Interaction energy of fragments, with counterpoise correction."),
    "cbs": ("dfmp2.cli.cbs", "Energy at the basis set limit from two basis sets."),
    "batch": ("dfmp2.cli.batch", "Run many molecules, restart them, see where they stand, collect their energies."),
    "scan": ("dfmp2.cli.scan", "Energies along a bond, an angle, a dihedral, or the frames of a file."),
    "doctor": ("dfmp2.cli.doctor", "Check installation, machine and folder; one fix line per problem."),
    "validate": ("dfmp2.cli.validate", "Check this installation against energies of other programs."),
    "export": ("dfmp2.cli.export", "Write a stored result for another program (Molden, TREXIO, QCSchema, xyz)."),
    "qcschema": ("dfmp2.cli.qcschema", "Compute what a QCSchema AtomicInput asks for; JSON in, JSON out."),
    "bench": ("dfmp2.cli.bench", "Time dfmp2 against PySCF and Psi4, and against what the machine can do."),
    "kernels": ("dfmp2.cli.kernels", "Trainium kernels: list, predicted cost, timeline, contract check."),
    "backends": ("dfmp2.cli.backends", "List the backends and why they can or cannot be used."),
}
NO_RESOURCES = 7


class LazyGroup(click.Group):
    """A group whose commands are imported when they are used."""

    def list_commands(self, ctx: click.Context) -> list[str]:
        """Names in the order of the table."""
        return list(COMMANDS)

    def get_command(self, ctx: click.Context, cmd_name: str) -> click.Command | None:
        """The command, imported now."""
        if cmd_name not in COMMANDS:
            return None
        command: click.Command = import_module(COMMANDS[cmd_name][0]).command
        return command

    def invoke(self, ctx: click.Context) -> Any:
        """Run the command; a reader that left early, as in `| head`, is no error."""
        try:
            return super().invoke(ctx)
        except BrokenPipeError:
            _drop_stdout()
            return None

    def format_commands(self, ctx: click.Context, formatter: click.HelpFormatter) -> None:
        """The list of commands, without importing any of them."""
        with formatter.section("Commands"):
            formatter.write_dl([(name, text) for name, (_, text) in COMMANDS.items()])


def _print_version(ctx: click.Context, _param: click.Parameter, value: bool) -> None:
    if value and not ctx.resilient_parsing:
        from importlib import metadata

        click.echo(f"dfmp2 {metadata.version('dfmp2')}")
        ctx.exit()


@click.command(
    cls=LazyGroup,
    no_args_is_help=False,
    context_settings={"help_option_names": ["-h", "--help"], "max_content_width": 100},
)
@click.option(
    "--version", is_flag=True, is_eager=True, expose_value=False, callback=_print_version, help="Print the version."
)
def cli() -> None:
    """Density-fitted MP2 energies, checked against PySCF.

    First run: dfmp2 run h2o.xyz --basis cc-pvdz
    """


def main(arguments: Sequence[str] | None = None) -> int:
    """Run the command line and return the exit code."""
    return ranks.leave(_main(arguments))


def _main(arguments: Sequence[str] | None) -> int:
    signals.listen()
    _escape_what_cannot_be_written()
    defer_unused()
    try:
        return _run(arguments)
    except (KeyboardInterrupt, click.Abort):
        return _fail(*signals.LINES[signal.SIGINT])
    except (ImportError, RuntimeError, SystemError):
        # What a signal during an import may turn into; else a fault in dfmp2, whose traceback helps to find it.
        stopped = signals.received()
        if stopped is None:
            raise
        return _fail(*stopped)


def _run(arguments: Sequence[str] | None) -> int:
    try:
        ranks.require_run(sys.argv[1:] if arguments is None else arguments)
        code = cli.main(args=arguments, prog_name="dfmp2", standalone_mode=False)
    except click.ClickException as error:
        context = getattr(error, "ctx", None)
        name = "dfmp2" if context is None else context.command_path
        message = " ".join(error.format_message().split()).rstrip(".")
        return _fail(f"{message} (see {name} --help)", error.exit_code)
    except Dfmp2Error as error:
        return _fail(str(error), error.exit_code)
    except MemoryError:
        return _fail(
            "the machine refused to give more memory: allow less with --memory, or make the problem smaller",
            NO_RESOURCES,
        )
    except OSError as error:  # standard output, the log file or a temporary file
        _drop_stdout()
        return _fail(f"the system refused: {error}: check disk space, permissions and TMPDIR", NO_RESOURCES)
    return code if isinstance(code, int) else 0


def _fail(message: str, code: int) -> int:
    signals.settle()
    message, code = signals.received() or (message, code)  # a signal may look like an import that failed
    said, code = ranks.verdict(message, code)
    if said is not None:
        with contextlib.suppress(OSError):  # nobody can read it; the exit code tells
            click.echo(f"dfmp2: {printable(said)}", err=True)
    return code


def _escape_what_cannot_be_written() -> None:
    """A letter of a file's name that the terminal's encoding lacks is no reason to fail."""
    for stream in (sys.stdout, sys.stderr):
        if isinstance(stream, io.TextIOWrapper):
            stream.reconfigure(errors="backslashreplace")


def _drop_stdout() -> None:
    """Send what is still buffered to nowhere, so that the interpreter does not fail on it at its end."""
    if sys.stdout is not None:
        os.dup2(os.open(os.devnull, os.O_WRONLY), sys.stdout.fileno())
