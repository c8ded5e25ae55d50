"""`dfmp2 run`, `gradient`, `qcschema` (for calls by other programs) and `plan` (requirements of a
run)."""

from __future__ import annotations

import importlib
import json
import os
import shlex
import sys
from collections.abc import Callable, Iterator, Mapping
from contextlib import contextmanager, nullcontext, suppress
from pathlib import Path
from typing import TYPE_CHECKING, Any

import click

from dfmp2.cli import signals
from dfmp2.cli.console import Console, open_log
from dfmp2.cli.help import BEGUN, AnnouncedCommand, GroupedCommand
from dfmp2.cli.options import (
    ALL,
    AS_JSON,
    Display,
    Given,
    one_molecule,
    output_options,
    prepare_libraries,
    print_report,
)
from dfmp2.errors import Dfmp2Error, InputError, ResourceError, ResultFileError
from dfmp2.host.files import (
    acquire_lock,
    release_lock,
    require_hdf5_name,
    require_place,
    require_writable,
)
from dfmp2.molecule.text import printable, read_text
from dfmp2.options import WHOLE_RUN, Options
from dfmp2.progress import Listener

if TYPE_CHECKING:
    from dfmp2.molecule.molecule import Molecule
    from dfmp2.molecule.xyz import XyzFile
    from dfmp2.mp2.result import MP2Result
    from dfmp2.output.profile import Profile


RESULT_BYTES = 80_000  # in the file of a run other than orbitals, at least
MOST_BYTES = 64 * 10**6
TOO_LARGE = f"more than {MOST_BYTES // 10**6} MB: expected the QCSchema AtomicInput of one molecule"
PROFILE = click.option(
    "--profile", "trace", metavar="FILE.json", help="Timeline for Perfetto or chrome://tracing."
)


@click.command("run", cls=AnnouncedCommand)
@one_molecule(*ALL, "check", *WHOLE_RUN)
@output_options("Result file", "STEM.dfmp2.h5")
@PROFILE
def run_command(given: Given, display: Display, trace: str | None) -> None:
    """Compute the DF-MP2 energy of MOLECULE: an xyz, mol, sdf or pdb file, or - for xyz on standard
    input.

    The report goes to stdout, progress and warnings to stderr, and everything to an HDF5 file,
    which dfmp2 show prints in full.
    """
    chosen, read = given.chosen(), given.read()
    target = display.target(f"{read.molecule.name}.dfmp2.h5")
    require_distinct_files(given, target, display, trace)

    def compute(listener: Listener, checkpoint: Any) -> MP2Result:
        from dfmp2.interop.python import run_options

        return run_options(
            read.molecule, chosen, listener=listener, command=command_line(), checkpoint=checkpoint
        )

    with logged(display) as console:
        compute_result(
            target,
            display,
            console,
            (read.molecule, chosen),
            introduction(read),
            compute,
            trace=trace,
        )


@click.command("gradient", cls=AnnouncedCommand)
@one_molecule(*ALL, "check", "polarizability")
@output_options("Result file, with the gradient", "STEM.gradient.h5")
@PROFILE
def gradient_command(given: Given, display: Display, trace: str | None) -> None:
    """Compute energy, gradient, relaxed densities and dipole moment of MOLECULE, a file as of dfmp2
    run.

    The gradient is that of --method, or of the energy scaled by --os-scale and --ss-scale. --check
    also compares it with energies along one direction. Exit code 8 if the gradient's certificate
    fails.
    """
    chosen, read = given.chosen(), given.read()
    target = display.target(f"{read.molecule.name}.gradient.h5")
    require_distinct_files(given, target, display, trace)

    def compute(listener: Listener, checkpoint: Any) -> MP2Result:
        from dfmp2.interop.python import gradient_options

        options: dict[str, Any] = {
            "listener": listener,
            "command": command_line(),
            "checkpoint": checkpoint,
        }
        return gradient_options(read.molecule, chosen, **options).result

    with logged(display) as console:
        question = read.molecule, chosen
        compute_result(
            target, display, console, question, introduction(read), compute, _with_gradient, trace
        )


def _with_gradient(path: Path) -> MP2Result:
    """The stored result, with its hash checked.

    Raises
    ------
    ResultFileError : it is damaged, or holds only an energy
    """
    from dfmp2.output import hdf5

    result = hdf5.read(path)
    if result.gradient is None:
        raise ResultFileError(
            f"{path} holds an energy without its gradient: name another file, or --overwrite it"
        )
    return result


@click.command("plan", cls=AnnouncedCommand)
@one_molecule(*ALL, *WHOLE_RUN)
@click.option("--gradient", is_flag=True, help="Plan a run of dfmp2 gradient.")
@click.option(
    "--calibrate", is_flag=True, help="Measure this host's rates and the scratch folder's again."
)
@AS_JSON
def plan_command(given: Given, gradient: bool, calibrate: bool, as_json: bool) -> None:
    """Predict what `dfmp2 run MOLECULE` (or `dfmp2 gradient`) with the same options would need.

    Rates are measured on this host at the first use (a few seconds) and kept. The exit code is 0
    whether the run fits or not: the verdict is in the output.
    """
    chosen = given.chosen()
    from dfmp2.output import plan as text
    from dfmp2.planning.plan import foresee

    # Load what a run would have loaded by now, because the resident memory counts in its plan.
    if gradient:
        importlib.import_module("dfmp2.gradients.gradient")
    else:
        importlib.import_module("dfmp2.mp2.energy")
    with Console(quiet=as_json, log=None) as console:
        if gradient:
            task = "gradient"
        elif chosen.properties:
            task = "properties"
        else:
            task = "energy"
        molecule = given.read().molecule
        if task != "energy":
            from dfmp2.gradients.gradient import require_gradient

            require_gradient(molecule, chosen)
        outlook = foresee(molecule, chosen, console, calibrate=calibrate, task=task)
    click.echo(text.plan_json(outlook) if as_json else text.plan_text(outlook), nl=False)


@click.command("qcschema", cls=GroupedCommand)
@click.argument("document", metavar="INPUT.json")
def qcschema_command(document: str) -> None:
    """Compute what the QCSchema AtomicInput INPUT.json (- for standard input) asks for.

    Prints an AtomicResult on stdout, or a FailedOperation when the exit code is 3 to 8; nothing
    else. Warnings and the message of a failure go to stderr.
    """
    prepare_libraries(None)
    from dfmp2.interop import qcschema as schema

    given: Any = None
    version = 1
    try:
        given = text = read_text(document, MOST_BYTES, TOO_LARGE, "a JSON file")[1]
        given = schema.parse(text)
        version = schema.schema_version(given)
        request = schema.read_request(given)
        result = schema.run(
            request, listener=Console(quiet=True, log=None), command=f"dfmp2 qcschema {document}"
        )
        answer = schema.answer(request, result)
    except (Dfmp2Error, MemoryError) as error:
        signals.check_signals()
        _print(schema.failure(error, given, version))
        raise
    signals.check_signals()
    _print(answer)


def _print(answer: dict[str, Any]) -> None:
    click.echo(json.dumps(answer, allow_nan=False))


def command_line() -> str:
    """The command line, to be stored."""
    return printable(shlex.join(["dfmp2", *sys.argv[1:]]))


def introduction(read: XyzFile) -> str:
    """A line on what is about to be computed, and on the origin of charge and multiplicity."""
    molecule = read.molecule
    return (
        f"{molecule.name}: {molecule.formula}, charge {molecule.charge} ({read.charge_from}), "
        f"multiplicity {molecule.multiplicity} ({read.multiplicity_from})"
    )


@contextmanager
def logged(display: Display, *, several: bool = False) -> Iterator[Console]:
    """Show progress on stderr and in the log, which also gets the final message of the run.

    `several` is for a study, whose single runs are shown only with --verbose.
    """
    log = None
    if display.log is not None:
        log = open_log(display.log)
    console = Console(
        quiet=display.quiet,
        log=log,
        several=several and not display.verbose,
        passing=not display.verbose,
    )
    with log or nullcontext(), console:
        console.record(click.get_current_context().meta.get(BEGUN, ""))
        try:
            yield console
        except (Exception, KeyboardInterrupt) as error:
            stopped = signals.received()  # a signal may look like another error
            if stopped is not None:
                console.record(f"dfmp2: {stopped[0]}")
            elif isinstance(error, Dfmp2Error):
                console.record(f"dfmp2: {error}")
            raise


def compute_result(
    target: Path,
    display: Display,
    console: Console,
    question: tuple[Molecule, Options],
    begun: str,
    compute: Callable[[Listener, Any], MP2Result],
    read: Callable[[Path], MP2Result] | None = None,
    trace: str | None = None,
) -> None:
    """Print the result that an earlier run completed, or compute it with a checkpoint beside it,
    and write it.

    Parameters
    ----------
    question : molecule and options, which a stored result must match
    begun : announces the calculation
    compute : function (listener, checkpoint) -> result
    read : reads and checks the result of an earlier run, None for any result
    trace : file for the timeline, None for none

    Raises
    ------
    ComparisonFailed : the requested check or the gradient's certificate failed, now or in the
        earlier run; the result is written anyway
    """
    from dfmp2.output import hdf5
    from dfmp2.output.checkpoint import checkpointing
    from dfmp2.output.json import to_json
    from dfmp2.output.text import brief_report, last_line, report

    def show(result: MP2Result) -> None:
        print_report(
            display,
            console,
            lambda: report(result),
            last_line(result, str(target)),
            lambda: to_json(result, str(target)),
            brief=lambda: brief_report(result, str(target)),
        )

    stored = completed(target, display, console, read or hdf5.read, question)
    if stored is not None:
        show(stored)
        stored.require_proofs(f"; the result is in {target}")
        return
    require_hdf5_name(target)
    # Check for an existing file after everything else
    require_place(target)
    console.stage(begun)

    def ready(orbital_bytes: int) -> None:
        require_writable(
            target,
            overwrite=display.overwrite,
            expected_bytes=RESULT_BYTES + orbital_bytes,
        )

    timeline = _timeline(trace, display, console)
    with (
        timeline or nullcontext(),
        checkpointing(
            target,
            resume=display.resume,
            note=console.note,
            warn=console.warning,
            replace_foreign=display.overwrite,
            ready=ready,
        ) as kept,
    ):
        signals.finish_first(kept)
        result = compute(timeline or console, kept)
        if timeline is not None:
            timeline.finished(result)
        publish(lambda: hdf5.write(result, target, overwrite=display.overwrite), kept)
    show(result)
    result.require_proofs(f"; the result was written to {target}")


def _timeline(trace: str | None, display: Display, console: Console) -> Profile | None:
    """The listener that writes the timeline; its module is loaded only if requested."""
    if trace is None:
        return None
    from dfmp2.output.profile import Profile

    return Profile(console, Path(trace), overwrite=display.overwrite)


def publish(write: Callable[[], Any], kept: Any) -> None:
    """Write a complete result, regardless of signals, because there is no way back between rename
    and message."""
    signals.commit()
    try:
        write()
    except ResultFileError:
        # Another process was faster: there is a file, and nothing to resume
        kept.complete()
        raise
    except ResourceError as error:
        if not kept.saved:
            raise
        raise type(error)(
            error.message, f" ({kept.path} holds what was done; repeat the command to continue)"
        ) from error
    kept.complete()


def completed(
    target: Path,
    display: Display,
    console: Console,
    read: Callable[[Path], Any],
    question: tuple[Molecule, Options],
) -> Any:
    """The result of an earlier run, if --resume requests it; None if it is to be computed.

    Parameters
    ----------
    read : reads the target and checks it

    Raises
    ------
    ResultFileError, InputError : the file is damaged or of another calculation, and may not be
        replaced
    """
    from dfmp2.mp2.identity import require_answer
    from dfmp2.output.checkpoint import checkpoint_of, remove

    if not display.resume or not os.path.lexists(target):
        return None
    # Newer than the result it is about to replace
    unfinished = os.path.lexists(checkpoint_of(target))
    if unfinished and display.overwrite:
        return None
    try:
        found = read(target)
        require_answer(found, *question, str(target))
    except (InputError, ResultFileError) as error:
        if not display.overwrite:
            raise
        console.warning(f"{error}: it will be replaced")
        return None
    console.note(f"{target} is complete: nothing is computed")
    if unfinished and acquire_lock(target) is None:
        try:
            remove(checkpoint_of(target))  # left by a run killed between its last two steps
        finally:
            release_lock(target)
    return found


def require_distinct_files(
    given: Given, target: Path, display: Display, trace: str | None = None
) -> None:
    """Raise if an output file would overwrite another file of the run; --scf-from may be the file
    that is replaced."""
    written = {"--log": display.log, "--profile": trace}
    require_distinct({**given.files, **written})
    require_distinct({**given.files, "--scf-from": None, "--output": target, **written})


def require_distinct(files: Mapping[str, str | Path | None]) -> None:
    """Raise if two options name the same file.

    Raises
    ------
    InputError : for the second of them
    """
    seen: dict[object, str] = {}
    for option, path in files.items():
        if path is not None and (other := seen.setdefault(_identity(path), option)) != option:
            raise InputError(f"{option} {path} is the file given as {other}: name another file")


def _identity(path: str | Path) -> object:
    """A key that is equal for two names of the same file, including links, even if it does not
    exist yet."""
    path = Path(path)
    for place in (path, *path.parents):
        with suppress(OSError):
            status = os.stat(place)
            return status.st_dev, status.st_ino, path.relative_to(place)
    return path
