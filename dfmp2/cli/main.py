"""The command line: one group, and the only place where errors become messages and exit codes.

Exit codes: 0 done; 1 a bug in dfmp2; 2 command line not understood; 3 invalid input; 4 SCF; 5
numerical guard; 6 backend; 7 memory, disk, permissions; 8 comparison failed; 9 batch with failed
items; 75 terminated; 130 Ctrl-C.

The program `dfmp2` ends its process as soon as threads, exit handlers and buffers are finished,
because Python would destroy every module and object first, which for a small molecule takes a tenth
of the whole run.
"""

from __future__ import annotations

import atexit
import contextlib
import io
import json
import os
import signal
import sys
from collections.abc import Sequence
from importlib import import_module
from typing import Any

import click

from dfmp2.cli import signals
from dfmp2.cli.console import drop_stdout, fitted, takes_colour, without_colour
from dfmp2.cli.early import LINES, asks_for_json
from dfmp2.cli.help import CommandGroup
from dfmp2.errors import Dfmp2Error, ResourceError
from dfmp2.errors.messages import COMMAND_LINE, serving
from dfmp2.host.deferred import defer_unused
from dfmp2.host.threads import require_huge_pages
from dfmp2.molecule.text import printable

# name -> (module:function, one-line description); modules are loaded on call, so that --help stays
# fast
COMMANDS = {
    "run": ("dfmp2.cli.run:run_command", "Energy of a molecule."),
    "gradient": ("dfmp2.cli.run:gradient_command", "Gradient, relaxed densities, dipole moment."),
    "optimize": (
        "dfmp2.cli.geometry:optimize_command",
        "Geometry of a minimum or a transition state.",
    ),
    "irc": ("dfmp2.cli.geometry:irc_command", "Reaction path from a transition state."),
    "frequencies": (
        "dfmp2.cli.thermochemistry:frequencies_command",
        "Harmonic frequencies, intensities, thermochemistry.",
    ),
    "plan": ("dfmp2.cli.run:plan_command", "Predict memory, operations and time of a run."),
    "prepare": (
        "dfmp2.cli.energy:prepare_command",
        "Write SCF, integrals and B to a file, without pair energies.",
    ),
    "energy": (
        "dfmp2.cli.energy:energy_command",
        "Pair energies of a file that prepare has written.",
    ),
    "interaction": (
        "dfmp2.cli.reaction:interaction_command",
        "Interaction energy of fragments, counterpoise-corrected.",
    ),
    "cbs": (
        "dfmp2.cli.reaction:cbs_command",
        "Energy at the basis set limit from two basis sets.",
    ),
    "scan": (
        "dfmp2.cli.geometry:scan_command",
        "Energies along a coordinate, or of the frames of a file.",
    ),
    "reaction": (
        "dfmp2.cli.reaction:reaction_command",
        "Reaction energies and barriers, free energies.",
    ),
    "batch": ("dfmp2.cli.batch:batch_command", "Many molecules: run, submit, restart, collect."),
    "show": ("dfmp2.cli.results:show", "Print a stored result."),
    "report": ("dfmp2.cli.results:report_command", "Write stored results as an HTML page."),
    "derive": (
        "dfmp2.cli.results:derive_command",
        "Larger frozen core or other scaling, without a new run.",
    ),
    "thermo": (
        "dfmp2.cli.thermochemistry:thermo_command",
        "Thermochemistry of a stored Hessian: isotopes, temperatures.",
    ),
    "rank": (
        "dfmp2.cli.thermochemistry:rank_command",
        "Boltzmann weights of stored conformers.",
    ),
    "compare": (
        "dfmp2.cli.validate:compare_command",
        "Recompute a stored result with PySCF or Psi4.",
    ),
    "export": (
        "dfmp2.cli.results:export_command",
        "Write a result as Molden, TREXIO, QCSchema, xyz or cube.",
    ),
    "qcschema": (
        "dfmp2.cli.run:qcschema_command",
        "Compute a QCSchema AtomicInput; JSON in, JSON out.",
    ),
    "doctor": (
        "dfmp2.cli.checks:doctor",
        "Check installation, machine and folder; say what to fix.",
    ),
    "validate": ("dfmp2.cli.validate:validate_command", "Compare with energies of other programs."),
    "methods": ("dfmp2.cli.checks:methods", "List the methods with factors and sources."),
    "backends": (
        "dfmp2.cli.checks:backends",
        "List the backends and why they can or cannot be used.",
    ),
    "bench": ("dfmp2.cli.checks:bench", "Time the pair step and matrix products."),
    "kernels": (
        "dfmp2.cli.kernels:kernels_command",
        "Trainium kernels: list, cost, checks.",
    ),
    "completion": ("dfmp2.cli.checks:completion", "Command completion for bash, zsh or fish."),
}
HEADINGS = {  # heading above the first command of its kind
    "run": "One molecule",
    "interaction": "Several calculations",
    "show": "Stored results",
    "qcschema": "Other programs, this installation",
}
TORCHRUN = ("RANK", "WORLD_SIZE", "MASTER_ADDR", "MASTER_PORT")  # variables set by torchrun


class LazyGroup(CommandGroup):
    """A group whose commands are imported on use."""

    def list_commands(self, ctx: click.Context) -> list[str]:
        """Names in the order of the table."""
        return list(COMMANDS)

    def get_command(self, ctx: click.Context, cmd_name: str) -> click.Command | None:
        """The command, imported now."""
        if cmd_name not in COMMANDS:
            return None
        module, _, name = COMMANDS[cmd_name][0].partition(":")
        command: click.Command = getattr(import_module(module), name)
        return command

    def invoke(self, ctx: click.Context) -> Any:
        """Run the command; a closed pipe, as in `| head`, is not an error."""
        try:
            return super().invoke(ctx)
        except BrokenPipeError:
            drop_stdout()
            return None

    def format_commands(self, ctx: click.Context, formatter: click.HelpFormatter) -> None:
        """The list of commands, without importing any of them."""
        width = max(map(len, COMMANDS))
        for name, (_, text) in COMMANDS.items():
            if name in HEADINGS:
                formatter.write_paragraph()
                formatter.write_heading(click.style(HEADINGS[name], bold=True))
            formatter.write(f"  {name:{width}}  {text}\n")


@click.command(
    cls=LazyGroup,
    no_args_is_help=False,
    context_settings={"help_option_names": ["-h", "--help"], "max_content_width": 100},
)
@click.version_option(
    None,
    "-V",
    "--version",
    package_name="dfmp2",
    message="dfmp2 %(version)s",
    help="Print the version.",
)
def cli() -> None:
    """Density-fitted MP2 energies, checked against PySCF.

    First run: dfmp2 run h2o.xyz --basis cc-pvdz. Options: dfmp2 help COMMAND.
    """


def main(arguments: Sequence[str] | None = None, *, last: bool = False) -> int:
    """Run the command line and return the exit code.

    Parameters
    ----------
    last : whether the process ends with this call; signals then stay ignored after its last line,
        otherwise their handlers are restored
    """
    given = list(sys.argv[1:] if arguments is None else arguments)
    color = None  # as the terminal supports it
    if without_colour():
        color = False
    with (
        contextlib.nullcontext() if last else signals.as_before(),
        serving(COMMAND_LINE),
    ):
        signals.listen()
        _escape_what_cannot_be_written()
        defer_unused()
        try:
            _require_one_process()
            require_huge_pages()
            code = cli.main(args=given, prog_name="dfmp2", standalone_mode=False, color=color)
            return code if isinstance(code, int) else 0
        except (Exception, KeyboardInterrupt) as error:
            signals.settle_signal()
            # A signal may look like a failed import
            said = signals.received() or _said(error)
            if said is None:
                raise  # a bug in dfmp2, for which the traceback is needed
            if isinstance(error, OSError) and not isinstance(error, Dfmp2Error):
                drop_stdout()
            line = fitted(f"dfmp2: {printable(said[0])}", sys.stderr)
            if takes_colour(sys.stderr):
                line = line.replace("dfmp2:", click.style("dfmp2:", fg="red"), 1)
            if asks_for_json(given):
                line = json.dumps(
                    {"error": said[0], "kind": type(error).__name__, "exit_code": said[1]}
                )
            with contextlib.suppress(OSError):  # if nobody can read it, the exit code tells
                click.echo(line, err=True)
            return said[1]


def _said(error: BaseException) -> tuple[str, int] | None:
    """Message and exit code for the exception that ended a command, None for a bug in dfmp2."""
    if isinstance(error, Dfmp2Error):
        return str(error), error.exit_code
    if isinstance(error, KeyboardInterrupt | click.Abort):
        return LINES[signal.SIGINT]
    if isinstance(error, click.ClickException):
        context = getattr(error, "ctx", None)
        name = "dfmp2" if context is None else context.command_path
        return (
            f"{' '.join(error.format_message().split()).rstrip('.')} (see {name} --help)",
            error.exit_code,
        )
    if isinstance(error, MemoryError):
        advice = "allow less with --memory, or make the problem smaller"
        return f"the machine refused to give more memory: {advice}", ResourceError.exit_code
    if isinstance(error, OSError):  # standard output, the log file or a temporary file
        return (
            f"the system refused: {error}: check where standard output goes, disk space, "
            "permissions and TMPDIR",
            ResourceError.exit_code,
        )
    return None


def _require_one_process() -> None:
    """Raise if started by torchrun, where each process would compute everything.

    Raises
    ------
    click.UsageError : this process is one of several
    """
    if all(os.environ.get(name) for name in TORCHRUN) and os.environ["WORLD_SIZE"] != "1":
        raise click.UsageError(
            f"torchrun has started {os.environ['WORLD_SIZE']} processes, and each would compute "
            "everything. For one molecule on several hosts use dfmp2 prepare and dfmp2 energy, for "
            "many molecules dfmp2 batch"
        )


def _escape_what_cannot_be_written() -> None:
    """Escape letters of file names that the terminal's encoding lacks, instead of failing."""
    for stream in (sys.stdout, sys.stderr):
        if isinstance(stream, io.TextIOWrapper):
            stream.reconfigure(errors="backslashreplace")


def program() -> int:
    """Run the command line and return the exit code of the process, which is about to end."""
    codes: list[int] = []
    atexit.register(_leave, codes)  # registered first, so called last
    codes.append(main(last=True))
    return codes[0]


def _leave(codes: list[int]) -> None:
    """End the process; left to the interpreter after a bug, or if stdout cannot be written.

    Anything left on stderr is progress: perhaps nobody can read it, and the exit code tells how the
    work ended.
    """
    if codes:
        with contextlib.suppress(OSError, ValueError):
            if sys.stdout is not None:
                sys.stdout.flush()
            with contextlib.suppress(OSError, ValueError):
                if sys.stderr is not None:
                    sys.stderr.flush()
            os._exit(codes[0])
