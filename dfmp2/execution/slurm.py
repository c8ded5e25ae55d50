"""Slurm jobs: an array of shards, preceded by a warm-up if kernels need compiling, and followed by
a collection.

The template of the jobs is `slurm.sh.j2`. Commands are quoted for the shell there; values that
Slurm itself reads, in #SBATCH lines, are put in double quotes and rejected if that is not
sufficient.
"""

from __future__ import annotations

import os
import re
import shlex
import subprocess
import sys
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from dfmp2.backends.registry import accelerator, foreseen
from dfmp2.errors import BackendUnavailable, InputError, Option
from dfmp2.errors.messages import Placeholder
from dfmp2.execution.collect import Destination
from dfmp2.execution.manifest import COMPILED, Batch, slug
from dfmp2.host.files import require_hdf5_name, require_writable
from dfmp2.host.resources import CORES_PER_CHIP
from dfmp2.molecule.text import printable
from dfmp2.mp2.identity import method_differences, method_of, with_common_basis
from dfmp2.mp2.pairs import tile_keys
from dfmp2.output.prepared import opened
from dfmp2.output.tile_shards import require_pairs, require_tiles

SUBMIT = "submit.sh"
TABLES = (".h5", ".csv", ".json")  # of energies
DATA_SETS = {".extxyz": "extxyz", ".parquet": "parquet", ".db": "ase.db"}  # --to of `collect`
CARRIED = ("DFMP2_NKI_PYTHON",)  # variables that the tasks need with their current values
SLOW_SIGNAL = 60  # s by which Slurm may send a signal early (sbatch, --signal)
AFTER = {"array": "afterok", "collect": "afterany"}  # required outcome of the previous job


@dataclass(frozen=True, slots=True)
class Jobs:
    """The work of the jobs: the items of a batch, or the pair energies of a prepared file.

    Attributes
    ----------
    name, folder : name of the jobs, and default folder of their scripts
    backend, devices : backend whose devices are needed, and the jobs that need them
    commands : arguments of dfmp2 by job, in order; those of the array lack the shard and anything
        set by Slurm
    """

    name: str
    folder: Path
    backend: str
    devices: Sequence[str]
    commands: Mapping[str, Sequence[str]]


def batch_jobs(batch: Batch, given: Mapping[str, Any]) -> Jobs:
    """Jobs for the items of a batch, then for a table of their energies or a data set, if
    requested."""
    source = [os.path.abspath(given["source"])]
    table = given["collect"]
    if given["root"] is not None:
        source += ["--root", os.path.abspath(given["root"])]
    # Otherwise a task would have to read the whole manifest to find its own list.
    source += ["--output", os.path.abspath(batch.output)]
    backend = batch.asks_for(*COMPILED, "cuda", "cuda-tf32") or "cpu"
    if backend in COMPILED:
        commands = {"warm-up": ["batch", "run", *source, "--warm-up"]}
    else:
        commands = {}
    chain = ["--scf-chain"] if given["scf_chain"] else []
    commands["array"] = ["batch", "run", *source, "--workers", str(given["workers"]), *chain]
    if table is not None:
        ending = Path(table).suffix
        if ending not in TABLES and ending not in DATA_SETS:
            raise InputError(
                Option("collect", True),
                f" {table}: expected a name ending in {', '.join(TABLES)} for a table of energies, "
                f"or in {', '.join(DATA_SETS)} for a data set",
            )
        # Raises as the job would, which runs last
        form = DATA_SETS.get(ending)
        Destination.chosen(batch.output, table, form, None, overwrite=True, named="--collect")
        _require_one_method(batch)
        commands["collect"] = [
            "batch",
            "collect",
            *source,
            "-o",
            os.path.abspath(table),
            "--overwrite",
        ]
        if ending in DATA_SETS:
            commands["collect"] += ["--to", DATA_SETS[ending]]
    # Only nki compiles without a device
    devices = ("array",) if backend == "nki" else ("array", "warm-up")
    return Jobs(
        name=_job_name(batch.output.resolve().name),
        folder=batch.output / "slurm",
        backend=backend,
        devices=devices,
        commands=commands,
    )


def _require_one_method(batch: Batch) -> None:
    """Raise for items of different methods, which the last job could not put into one table."""
    methods = with_common_basis(method_of(item.options) for item in batch.items)
    names = [item.name for item in batch.items]
    different = method_differences(dict(zip(names, methods, strict=True)))
    if different:
        raise InputError(
            Option("collect"),
            f": different methods in one table: {different}: leave it out, and use ",
            "dfmp2 batch collect with ",
            Option("allow_mixed", True),
            " when all items are complete",
        )


def _job_name(text: str) -> str:
    """A job name of ASCII letters, derived from a file or folder."""
    return re.sub(r"[^A-Za-z0-9._+-]+", "_", f"dfmp2-{slug(text)}")


def prepared_jobs(given: Mapping[str, Any]) -> Jobs:
    """Jobs for the pair energies of a file written by dfmp2 prepare, then for the result, which
    must not exist yet."""
    backend = given["backend"]
    _require_shards(given["source"], backend or "cpu", given["shards"])
    result = Path(
        given["output"]
        or given["source"].removesuffix(".h5").removesuffix(".prepared") + ".dfmp2.h5"
    )
    require_hdf5_name(result)
    require_writable(result, overwrite=False)
    energy = [
        "energy",
        "--from",
        os.path.abspath(given["source"]),
        "--output",
        os.path.abspath(result),
    ]
    energy += ["--backend", backend] if backend else []
    commands = {"array": energy, "collect": [*energy, "--collect"]}
    return Jobs(
        name=_job_name(result.stem),
        folder=result.with_suffix(".slurm"),
        backend=backend or "cpu",
        devices=tuple(commands),
        commands=commands,
    )


def _require_shards(source: str, backend: str, shards: int) -> None:
    """Raise if a prepared file cannot be divided into so many shards, as far as can be told on this
    host."""
    with opened(source) as file:
        prepared = file.prepared
    require_pairs(prepared.options)
    try:
        limits = foreseen(backend, prepared.options.precision, 1)[0].limits
    except BackendUnavailable:  # its device decides how large a tile is
        return
    require_tiles(tile_keys(prepared.shapes, limits, 0), shards, Option("shards", shards))


def scripts(jobs: Jobs, folder: Path, given: Mapping[str, Any]) -> dict[Path, str]:
    """The script of each job, and the one that submits them, by their paths in `folder`.

    `given` are the options of `dfmp2 batch submit --slurm`; raises InputError if they are
    incompatible.
    """
    import jinja2

    environment = jinja2.Environment(
        loader=jinja2.FileSystemLoader(Path(__file__).parent),
        undefined=jinja2.StrictUndefined,
        trim_blocks=True,
        lstrip_blocks=True,
        keep_trailing_newline=True,
    )
    environment.filters |= {"quote": shlex.quote, "words": shlex.join, "absolute": os.path.abspath}
    values = {
        "jobs": jobs,
        "folder": folder,
        "given": given,
        "cores_per_chip": CORES_PER_CHIP,
        "after": AFTER,
        "python": os.path.abspath(sys.executable),
        **_values(jobs, folder, given),
    }
    job = environment.get_template("slurm.sh.j2")
    found = {folder / f"{kind}.sbatch": job.render(kind=kind, **values) for kind in jobs.commands}
    return {**found, folder / SUBMIT: environment.get_template("submit.sh.j2").render(**values)}


def _values(jobs: Jobs, folder: Path, given: Mapping[str, Any]) -> dict[str, Any]:
    """Values for the template from the options, after checking them."""
    names = {
        name: given[name]
        for name in ("partition", "account", "qos", "constraint", "gres")
        if given[name]
    }
    _require_readable(names, folder)
    _require_time_to_stop(given["seconds"], given["signal_before"])
    workers = given["workers"]
    gres, variables = names.pop("gres", None), {}
    if jobs.backend in COMPILED:
        cache = os.path.abspath(given["cache"] or accelerator().cache_folder())
        variables = {"DFMP2_NEFF_CACHE": cache, "NEURON_COMPILE_CACHE_URL": f"{cache}/xla"}
        variables |= {name: os.environ[name] for name in CARRIED if name in os.environ}
        gres = gres or f"gpu:{-(-workers // CORES_PER_CHIP)}"  # one core of a chip per worker
    elif given["cache"] is not None:
        raise InputError(
            Option("cache"),
            ": no item asks for the backend nki or nki-xla, so no kernel is compiled",
        )
    elif jobs.backend.startswith("cuda"):
        gres = gres or f"gpu:{workers}"
    cpus = given["cpus_per_task"] or workers * given["threads"]
    return {"places": names, "cpus": cpus, "gres": gres, "variables": variables}


def _require_readable(names: Mapping[str, str], folder: Path) -> None:
    """Raise for names that a script could misread."""
    for name, value in names.items():
        if re.fullmatch(r"[A-Za-z0-9_.,:=@+&|*()\[\]/-]+", value) is None:
            raise InputError(
                Option(name, value), ": expected a name of letters, digits and _.,:=@+&|*()[]/-"
            )
    if re.search(r'["\\]', str(folder)) or not str(folder).isprintable():
        raise InputError(
            (
                f"{printable(str(folder))}: Slurm reads no folder with double quotes, "
                "backslashes or control characters in its name: put the scripts elsewhere with "
            ),
            Option("write", Placeholder("DIR")),
        )


def _require_time_to_stop(seconds: int | None, margin: int) -> None:
    """Raise for a limit on a task's time that ends before the task is told to stop."""
    if seconds is not None and seconds <= margin + SLOW_SIGNAL:
        raise InputError(
            Option("time", seconds),
            (
                f" s: tasks are told to stop {margin} s before, which Slurm may do {SLOW_SIGNAL}"
                f" s early: allow more than {margin + SLOW_SIGNAL} s, or a smaller "
            ),
            Option("signal_before"),
        )


def submit_to_slurm(folder: Path) -> dict[str, str]:
    """Submit the jobs whose scripts are in a folder; returns their numbers by name, and raises
    InputError if Slurm rejects one."""
    done = subprocess.run(["bash", str(folder / SUBMIT)], capture_output=True, text=True)
    if done.returncode:
        raise InputError(
            f"Slurm refuses a job of {folder}: {printable('; '.join(done.stderr.splitlines()))}"
        )
    return dict(job.split() for job in done.stdout.removeprefix("submitted: ").strip().split(", "))
