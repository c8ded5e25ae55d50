"""`dfmp2 prepare` and `dfmp2 energy`: a calculation in two parts, which need not run on the same
machine."""

from __future__ import annotations

import json
import os
from dataclasses import replace
from functools import partial
from pathlib import Path
from typing import TYPE_CHECKING, Any

import click
from click.core import ParameterSource

from dfmp2.cli import signals
from dfmp2.cli.console import Console
from dfmp2.cli.help import AnnouncedCommand
from dfmp2.cli.options import (
    ENGINE,
    MOST_WORKERS,
    OF_THE_MOLECULE,
    Display,
    Given,
    one_molecule,
    options_of,
    output_options,
    prepare_libraries,
    print_report,
    refused,
)
from dfmp2.cli.run import (
    command_line,
    completed,
    compute_result,
    introduction,
    logged,
    publish,
    require_distinct,
    require_distinct_files,
)
from dfmp2.errors import InputError, Option, ResourceError
from dfmp2.host.files import require_hdf5_name, require_place
from dfmp2.options import BEFORE_PAIRS, BOTH_PARTS, NEEDS_WHOLE_RUN, PAIRS, WHOLE_RUN, Options
from dfmp2.options.methods import method_of_orbitals
from dfmp2.progress import Listener
from dfmp2.units import counted_text

if TYPE_CHECKING:
    from dfmp2.mp2.result import MP2Result
    from dfmp2.output.prepared import OpenedFile

OF_THE_JOB = "of the array job"  # --shard without a value


@click.command(
    "prepare",
    cls=AnnouncedCommand,
    short_help="SCF, integrals and B of a molecule into a file, without pair energies.",
)
@one_molecule(*BEFORE_PAIRS, *BOTH_PARTS, "method")
@refused(
    [name for name in PAIRS if name != "method"],
    "belongs to dfmp2 energy, which computes the pair energies: leave it out here",
)
@refused(["transform"], "is no choice here: dfmp2 prepare makes B on the host")
@refused(WHOLE_RUN, NEEDS_WHOLE_RUN)
@output_options(
    "Prepared file",
    "STEM.prepared.h5",
    "Leave a complete file as it is.",
)
def prepare_command(given: Given, display: Display) -> None:
    """SCF, integrals and fitted tensor B of MOLECULE, a file as of dfmp2 run, into a file.

    dfmp2 energy --from FILE.h5 computes the pair energies, here or on other machines.
    """
    named = _named_method(given.options["method"])
    given.options["method"] = method_of_orbitals(named, given.options["xc"])
    chosen, read = given.chosen(), given.read()
    target = display.target(f"{read.molecule.name}.prepared.h5")
    require_distinct_files(given, target, display)
    from dfmp2.mp2.prepared import prepare_b
    from dfmp2.output.checkpoint import checkpointing
    from dfmp2.output.hdf5 import start_of
    from dfmp2.output.json import prepared_json
    from dfmp2.output.prepared import PreparedFile, verified
    from dfmp2.output.text import prepared_last_line, prepared_report

    with logged(display) as console:
        found = completed(target, display, console, verified, (read.molecule, chosen))
        if found is None:
            require_hdf5_name(target)
            file = PreparedFile(target, overwrite=display.overwrite)
            console.stage(introduction(read))
            with (
                checkpointing(
                    target,
                    resume=display.resume,
                    note=console.note,
                    warn=console.warning,
                    replace_foreign=display.overwrite,
                ) as kept,
                file,
            ):
                signals.finish_first(kept)
                found = prepare_b(
                    read.molecule,
                    chosen,
                    file,
                    start=start_of(chosen),
                    listener=console,
                    command=command_line(),
                    checkpoint=kept,
                )
                publish(file.publish, kept)
        path = os.fspath(target)
        print_report(
            display,
            console,
            lambda: prepared_report(found, path),
            prepared_last_line(found, path),
            lambda: prepared_json(found, path),
            brief=lambda: prepared_report(found, path, brief=True),
        )


@click.command(
    "energy",
    cls=AnnouncedCommand,
    short_help="Pair energies of a file that dfmp2 prepare has written.",
)
@click.option(
    "--from", "prepared", required=True, metavar="PREPARED.h5", help="File of dfmp2 prepare."
)
@options_of(*PAIRS)
@click.option(
    "--precision",
    type=click.Choice(["auto", "fp64", "mixed"]),
    help="Precision of the pair energies.  [default: as prepared, else auto]",
)
@options_of("memory", "scratch", "threads")
@refused(
    [*OF_THE_MOLECULE, *BEFORE_PAIRS],
    "belongs to dfmp2 prepare, which has already been done: leave it out here, or prepare another "
    "file with it",
)
@refused(["transform"], "is no choice here: dfmp2 prepare has made B on the host")
@refused(WHOLE_RUN, NEEDS_WHOLE_RUN)
@click.option(
    "--workers",
    type=click.IntRange(1, MOST_WORKERS),
    metavar="N",
    help="Processes that share the work; --threads are those of each, --memory is shared.  "
    "[default: all of --engine]",
)
@ENGINE
@click.option(
    "--shard",
    metavar="[I/N]",
    is_flag=False,
    flag_value=OF_THE_JOB,
    help="Part I (from 0) of N only.  [without I/N: that of the Slurm or AWS Batch array job]",
)
@click.option("--collect", is_flag=True, help="Combine the tiles of all shards of OUTPUT.")
@output_options("Result file", "STEM.dfmp2.h5")
def energy_command(
    prepared: str,
    display: Display,
    workers: int | None,
    engine: str | None,
    shard: str | None,
    collect: bool,
    **options: Any,
) -> None:
    """Compute the pair energies of a prepared file: no SCF, no integrals, on any backend.

    The result is that of dfmp2 run, in fp64 to the last bit where the SCF had the same number of
    threads, and with --workers or shards to the last bit that of one process. A shard continues
    from OUTPUT.shard-I-of-N.checkpoint, where --collect finds it.
    """
    ways = {
        ("--engine" if engine else "--workers"): engine or workers,
        "--shard": shard,
        "--collect": collect,
    }
    chosen_ways = [name for name, value in ways.items() if value]
    if len(chosen_ways) > 1:
        raise InputError(
            f"{' and '.join(chosen_ways)} were given: expected one of them, for one way to share "
            "the work"
        )
    options["method"] = _named_method(options["method"])  # None: that of the prepared file
    part = None if shard is None else _part_of(shard)
    prepare_libraries(options["threads"])
    from dfmp2.mp2.prepared import options_for, prepared_energy
    from dfmp2.output.prepared import opened

    # Before the log is made
    require_distinct({"--from": prepared, "--output": display.output, "--log": display.log})
    with logged(display) as console, opened(prepared) as source:
        molecule, made = source.prepared.molecule, source.prepared.provenance
        chosen = options_for(source.prepared, options)
        target = display.target(f"{molecule.name}.dfmp2.h5")
        require_distinct({"--from": prepared, "--output": str(target), "--log": display.log})
        begun = (
            f"{molecule.name}: {molecule.formula}, charge {molecule.charge}, multiplicity "
            f"{molecule.multiplicity}; prepared on {made.host}, {made.created}"
        )

        if chosen_ways:
            from dfmp2.output.tile_shards import require_pairs

            require_pairs(chosen)
        if part is not None:
            _compute_shard(part, source, chosen, target, display, console)
            return

        def compute(listener: Listener, checkpoint: Any) -> MP2Result:
            given = {"listener": listener, "command": command_line(), "checkpoint": checkpoint}
            if workers or engine:
                return _by_workers(workers, engine, target.parent, source, chosen, given)
            if collect:
                from dfmp2.output.tile_shards import collected

                given["elsewhere"] = partial(collected, target)
            return prepared_energy(source, chosen, **given)

        compute_result(target, display, console, (molecule, chosen), begun, compute)
        if collect:
            from dfmp2.output.tile_shards import remove_shards

            remove_shards(target)


def _named_method(method: str) -> str | None:
    """The value of --method; None if the user named none."""
    source = click.get_current_context().get_parameter_source("method")
    return None if source is ParameterSource.DEFAULT else method


def _part_of(shard: str) -> tuple[int, int]:
    """(I, N) of --shard."""
    from dfmp2.execution.batch import read_shard, shard_of_job

    found = shard_of_job() if shard == OF_THE_JOB else read_shard(shard)
    if found is None:
        raise InputError(
            "--shard without I/N: this is no task of a Slurm or AWS Batch array job: pass --shard "
            "I/N"
        )
    return found


def _compute_shard(
    part: tuple[int, int],
    source: OpenedFile,
    chosen: Options,
    target: Path,
    display: Display,
    console: Console,
) -> None:
    """Compute part of the tiles into a file of their own, and report which."""
    from dfmp2.output.checkpoint import checkpointing
    from dfmp2.output.tile_shards import compute_shard, label, pairs_of_shard, shard_of

    require_hdf5_name(target)
    place = shard_of(target, *part)
    require_place(place)
    with checkpointing(
        place,
        label(*part),
        resume=True,
        note=lambda _: None,
        warn=console.warning,
        replace_foreign=display.overwrite,
    ) as kept:
        signals.finish_first(kept)
        mine, every = compute_shard(source, chosen, part, console, command_line(), kept)
        kept.write()
    pairs, all_pairs = pairs_of_shard(mine), pairs_of_shard(every)
    facts = {
        "shard": list(part),
        "tiles": len(mine),
        "pairs": pairs,
        "of_pairs": all_pairs,
    }
    text = (
        f"dfmp2 {label(*part)}: {counted_text(len(mine), 'tile')}, {pairs} of "
        f"{counted_text(all_pairs, 'pair')} -> {kept.path}; with all {part[1]}: dfmp2 energy "
        f"--from {source.path} --output {target} --collect"
    )
    print_report(
        display, console, str, text, lambda: json.dumps({**facts, "file": kept.path}) + "\n"
    )


def _by_workers(
    workers: int | None,
    engine: str | None,
    folder: Path,
    source: OpenedFile,
    chosen: Options,
    given: dict[str, Any],
) -> MP2Result:
    """The result, with tiles computed by processes of this host or a Dask cluster."""
    from dfmp2.execution.parts import by_workers
    from dfmp2.execution.pool import Pool, local_pool
    from dfmp2.mp2.prepared import prepared_energy

    pool: Pool
    if engine is not None:
        from dfmp2.execution.dask import DaskPool
        from dfmp2.execution.pool import WorkerShare

        share, count = chosen, workers or MOST_WORKERS
        pool = DaskPool(engine, folder, WorkerShare(chosen.threads or 0, chosen.memory or 0))
    else:
        count = workers or 1
        # This process adds up
        pool = local_pool(chosen.backend, count, chosen.threads, chosen.memory, others=1)
        share = replace(chosen, threads=pool.share.threads, memory=pool.share.memory)
    try:
        with pool:
            pool.grow(count)
            result = prepared_energy(
                source, share, **given, elsewhere=partial(by_workers, pool, source.path)
            )
    except ResourceError as error:
        if engine is not None or "memory" not in [option.name for option in error.message.options]:
            raise
        raise type(error)(
            error.message.changed(partial(_times, count + 1)),
            f"; {counted_text(count, 'worker')} and this process share the ",
            Option("memory"),
            " that is given",
        ) from error
    return replace(result, options=chosen)


def _times(processes: int, option: Option) -> Option:
    """Convert the memory of one process, given by an option, to that of several."""
    megabytes = str(option.value).removesuffix("MB")
    if option.name != "memory" or not megabytes.isdigit():
        return option
    return option.of(f"{processes * int(megabytes)}MB")
