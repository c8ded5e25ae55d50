"""The command line: one group, and the one place where errors become messages and exit codes.

Exit codes: 0 done; 1 a fault in dfmp2; 2 command line not understood; 3 something named is wrong;
4 SCF; 5 numerical guard; 6 backend; 7 memory, disk, permissions; 8 comparison failed; 9 batch with
failed items; 75 terminated; 130 Ctrl-C.
"""

from __future__ import annotations

import os
import signal
import sys
from collections.abc import Sequence
from importlib import import_module
from types import FrameType

import click

from dfmp2.errors import Dfmp2Error, Interrupted

COMMANDS = {  # name -> (module, one line); modules are loaded when called, so that --help stays fast
    "run": ("dfmp2.cli.run", "Compute the DF-MP2 energy of a molecule."),
    "show": ("dfmp2.cli.show", "Print a stored result."),
    "compare": ("dfmp2.cli.compare", "Recompute a stored result with PySCF and print the differences."),
    "backends": ("dfmp2.cli.backends", "List the backends and why they can or cannot be used."),
}
CTRL_C = 130
OUT_OF_MEMORY = 7


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

    def format_commands(self, ctx: click.Context, formatter: click.HelpFormatter) -> None:
        """The list of commands, without importing any of them."""
        with formatter.section("Commands"):
            formatter.write_dl([(name, text) for name, (_, text) in COMMANDS.items()])


def _print_version(ctx: click.Context, _param: click.Parameter, value: bool) -> None:
    if value and not ctx.resilient_parsing:
        from importlib import metadata

        click.echo(f"dfmp2 {metadata.version('dfmp2')}")
        ctx.exit()


@click.command(cls=LazyGroup, context_settings={"help_option_names": ["-h", "--help"], "max_content_width": 100})
@click.option(
    "--version", is_flag=True, is_eager=True, expose_value=False, callback=_print_version, help="Print the version."
)
def cli() -> None:
    """Density-fitted MP2 energies, checked against PySCF.

    First run: dfmp2 run h2o.xyz --basis cc-pvdz
    """


def main(arguments: Sequence[str] | None = None) -> int:
    """Run the command line and return the exit code."""
    signal.signal(signal.SIGTERM, _terminate)
    try:
        code = cli.main(args=arguments, prog_name="dfmp2", standalone_mode=False)
        sys.stdout.flush()
    except click.ClickException as error:
        error.show()
        return error.exit_code
    except Dfmp2Error as error:
        return _fail(str(error), error.exit_code)
    except (KeyboardInterrupt, click.Abort):
        return _fail("interrupted (Ctrl-C): nothing was written", CTRL_C)
    except MemoryError:
        return _fail(
            "the machine refused to give more memory: allow less with --memory, or make the problem smaller",
            OUT_OF_MEMORY,
        )
    except BrokenPipeError:
        os.dup2(os.open(os.devnull, os.O_WRONLY), sys.stdout.fileno())  # the reader left; nothing more to say
        return 0
    return code if isinstance(code, int) else 0


def _terminate(_signal: int, _frame: FrameType | None) -> None:
    raise Interrupted("terminated (SIGTERM): nothing was written; run it again")


def _fail(message: str, code: int) -> int:
    signal.signal(signal.SIGINT, signal.SIG_IGN)  # the one line is complete, whatever is pressed now
    click.echo(f"dfmp2: {message}", err=True)
    return code
