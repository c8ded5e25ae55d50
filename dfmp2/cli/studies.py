"""Shared code of the study commands: running into one file, its options, and levels of theory made
of several runs."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from functools import partial
from pathlib import Path
from typing import TYPE_CHECKING, Any

import click

from dfmp2.cli import signals
from dfmp2.cli.console import Console
from dfmp2.cli.options import (
    MOST_WORKERS,
    Decorator,
    Display,
    as_one,
    output_options,
    print_report,
    with_options,
)
from dfmp2.cli.run import command_line, logged, require_distinct
from dfmp2.errors import Dfmp2Error, InputError, Option
from dfmp2.host.files import OUTPUT, require_hdf5_name, require_place, write_atomically
from dfmp2.host.processes import start_server
from dfmp2.host.resources import usable_cores
from dfmp2.molecule.text import printable
from dfmp2.options import CONVERGENCE, Options
from dfmp2.units import counted_text

if TYPE_CHECKING:
    from dfmp2.output.study import Study
    from dfmp2.studies.task import Unfinished

study_options = output_options(
    "File with all runs",
    "STEM.KIND.h5",
    "Continue a complete study, e.g. with more steps.",
)


def convergence_option(
    says: str, *, default: str | None = "GAU", kind: type[click.Option] = click.Option
) -> Decorator:
    """The option --convergence, by the names of geomeTRIC; `says` is its help."""
    return click.option(
        "--convergence",
        cls=kind,
        type=click.Choice(CONVERGENCE, case_sensitive=False),
        default=default,
        show_default=True,
        metavar="NAME",
        help=says,
    )


def max_steps_option(
    says: str, *, default: int | None = 100, kind: type[click.Option] = click.Option
) -> Decorator:
    """The option --max-steps; `says` is its help."""
    return click.option(
        "--max-steps",
        cls=kind,
        type=int,
        metavar="N",
        default=default,
        show_default=True,
        help=says,
    )


WORKERS = click.option(
    "--workers",
    type=click.IntRange(1, MOST_WORKERS),
    metavar="N",
    # one per core for small molecules (docs/howto/cores.md)
    help="Processes.  [default: automatic]",
)


def start_workers(workers: int | None, threads: int | None) -> None:
    """Let the libraries of workers be loaded while this process prepares their runs.

    Parameters
    ----------
    workers : value of --workers, None for one per core if the runs are small
    threads : value of --threads, which without --workers are those of all processes
    """
    if (workers or threads or usable_cores()) > 1:
        start_server(["dfmp2.execution.preloaded", "dfmp2.execution.parts", "dfmp2.studies.runs"])


def among_workers(compute: Callable[..., Study], workers: int | None) -> Callable[..., Study]:
    """The computation of a study, with its independent runs distributed among processes."""
    if workers == 1:
        return compute
    from dfmp2.execution.parts import StepWorkers

    return partial(compute, elsewhere=StepWorkers(workers))


def run_study(
    target: Path,
    compute: Callable[..., Study],
    ending: Callable[[Study], str],
    display: Display,
    files_read: Mapping[str, str | None],
    *,
    beside: Mapping[Option, Path] | None = None,
    contents: Callable[[Study], Sequence[bytes]] = lambda _: (),
) -> Study:
    """Check the files, compute and print; returns the study.

    Parameters
    ----------
    target : file of the study
    compute : computes the study, called with keeper, listener and command
    ending : returns the closing line
    files_read : input files by option, which must not be output files
    beside : files for the items made by `contents`, in its order, by option

    Raises
    ------
    Unfinished : raised after the partial study was written and printed
    """
    from dfmp2.studies.keeper import Keeper

    beside = beside or {}
    written = {OUTPUT: target, **beside}
    named = {option.of_shell: path for option, path in written.items()}
    require_distinct({**files_read, **named, "--log": display.log})
    require_hdf5_name(target)
    for option, path in written.items():
        # Existing files are checked by `Keeper`
        require_place(path, option=option)
    left = f"finished runs are in {target}"

    with logged(display, several=True) as console:
        keeper = Keeper(
            target,
            overwrite=display.overwrite,
            resume=display.resume,
            beside=beside,
            undisturbed=partial(signals.deferred, left),
            finishing=signals.finish_first,
        )
        if keeper.written:
            signals.leave(left)
        compute = partial(compute, keeper=keeper, listener=console, command=command_line())
        try:
            study, short = _compute(compute)
            signals.commit()
            _write_beside(beside, contents(study), overwrite=keeper.replaces)
        except Dfmp2Error as error:
            if not keeper.written or isinstance(error, InputError):
                raise
            again = "; repeat the command to continue" if error.goes_on else ""
            raise type(error)(error.message, f" ({left}{again})") from error
        state = "finished" if short is None else "NOT FINISHED"
        _print_study(study, target, f"dfmp2 {state}: {ending(study)}", display, console)
        if short is not None and short.goes_on:
            raise type(short)(f"{short}: {left}; repeat the command to continue")
        if short is not None:
            raise type(short)(f"{short} ({left})")
    return study


def _compute(compute: Callable[[], Study]) -> tuple[Study, Unfinished | None]:
    """The study, and why it is not finished; None if it is."""
    from dfmp2.studies.task import Unfinished

    try:
        return compute(), None
    except Unfinished as error:
        return error.study, error


def _write_beside(
    files: Mapping[Option, Path], contents: Sequence[bytes], *, overwrite: bool
) -> None:
    """Write the files made from a study."""

    for (option, path), content in zip(files.items(), contents, strict=True):
        write_atomically(path, content, overwrite=overwrite, option=option)


def _print_study(
    study: Study, target: Path, ending: str, display: Display, console: Console
) -> None:
    """Print a study and its last line, to which the file and the number of warnings are added."""
    from dfmp2.output.json import study_json
    from dfmp2.output.text import brief_study, study_report

    last = f"{ending} -> {printable(str(target))}"
    warnings = len(study.all_warnings)
    if warnings:
        last += f"; {counted_text(warnings, 'warning')}"
    print_report(
        display,
        console,
        lambda: study_report(study),
        last,
        lambda: study_json(study, str(target)),
        brief=lambda: brief_study(study, str(target)),
    )


@dataclass(frozen=True, slots=True)
class CurveFiles:
    """The files that a scan or a path writes beside its study."""

    csv: str | None
    plot: str | None
    trajectory: str | None

    def targets(self, study: Path, *, geometries: bool) -> dict[Option, Path]:
        """Each file, by the option that names it.

        Parameters
        ----------
        study : Path
            The file of the study.
        geometries : bool
            Whether optimised geometries are written.
        """
        targets = {
            Option("csv"): Path(self.csv or study.with_suffix(".csv")),
            Option("plot"): Path(self.plot or study.with_suffix(".svg")),
        }
        if geometries:
            path = self.trajectory or study.with_suffix(".trajectory.xyz")
            targets[Option("trajectory")] = Path(path)
        return targets


def curve_contents(study: Study) -> list[bytes]:
    """The contents of the files beside a scan or a path: table, drawing, optimised geometries."""
    from dfmp2.output.drawings.studies import curve_file
    from dfmp2.output.export import xyz
    from dfmp2.output.json import study_csv

    contents = [study_csv(study).encode(), curve_file(study).encode()]
    if study.kind == "irc" or study.settings["relaxed"]:
        contents.append(b"".join(xyz(run) for run in study.path.values()))
    return contents


def curve_files(drawing: str, geometries: str) -> Decorator:
    """Add --csv, --plot and --trajectory to a command, which receives them as one `files`.

    Parameters
    ----------
    drawing, geometries : str
        Content of the last two, for their help.
    """
    options = (
        click.option("--csv", metavar="FILE", help="The table.  [default: next to --output, .csv]"),
        click.option(
            "--plot", metavar="FILE", help=f"{drawing}, SVG.  [default: next to --output, .svg]"
        ),
        click.option(
            "--trajectory",
            metavar="FILE",
            help=f"{geometries}.  [default: next to --output, .trajectory.xyz]",
        ),
    )
    return lambda command: with_options(options, as_one("files", CurveFiles)(command))


SCF_FORMULAS = ["largest", "exponential", "karton-martin", "exp-sqrt", "power", "neese-valeev"]
CORRELATION_FORMULAS = ["helgaker", "truhlar", "neese-valeev"]


@dataclass(frozen=True, slots=True)
class LevelOptions:
    """The values of --scf-formula, --correlation-formula, --delta and --delta-program, which turn
    the options of one run into those of a composite level."""

    scf_formula: str | None
    correlation_formula: str | None
    delta: str | None
    delta_program: str | None

    def of(self, chosen: Options) -> Options:
        """The options of a study, derived from those of one run."""
        from dfmp2.studies.composite import at_level

        return at_level(
            chosen,
            scf_formula=self.scf_formula,
            correlation_formula=self.correlation_formula,
            delta=self.delta,
            delta_program=self.delta_program,
        )


def level_options(command: Callable[..., Any]) -> Callable[..., Any]:
    """Add the options of a composite level to a command, which receives them as one `level`."""
    options = (
        click.option(
            "--scf-formula",
            type=click.Choice(SCF_FORMULAS),
            help="Hartree-Fock limit of a pair of basis sets such as --basis 'cc-pv[tq]z': energy "
            "in the larger one, exp(-1.63 X), (X+1) exp(-9 sqrt X), exp(-6.3 sqrt X), X^-3.4, "
            "exp(-alpha sqrt X) with alpha of the family.  [default: largest]",
        ),
        click.option(
            "--correlation-formula",
            type=click.Choice(CORRELATION_FORMULAS),
            help="Correlation limit of a pair of basis sets: X^-3, X^-2.2, X^-beta of the family.  "
            "[default: helgaker; neese-valeev for def2]",
        ),
        click.option(
            "--delta",
            metavar="LEVEL",
            help="Add CCSD(T) - MP2: 'ccsd(t)/cc-pvdz'.",
        ),
        click.option(
            "--delta-program",
            type=click.Choice(["pyscf", "psi4"]),
            help="CCSD(T) with fitted integrals, or by QCEngine.  [default: pyscf]",
        ),
    )
    return with_options(options, as_one("level", LevelOptions)(command))
