"""Slurm jobs: an array of shards, a warm-up before it where kernels are compiled, a collection
after it.

The text of the jobs is `slurm.sh.j2`. What they run is quoted for the shell there; what Slurm
itself reads, in #SBATCH lines, stands in double quotes and is refused where that does not suffice.
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

from dfmp2.backends.registry import accelerator
from dfmp2.errors import InputError
from dfmp2.errors.messages import Option, Placeholder
from dfmp2.execution.manifest import COMPILED, Batch, slug
from dfmp2.host.files import require_writable
from dfmp2.host.resources import CORES_PER_CHIP
from dfmp2.molecule.text import printable

SUBMIT = "submit.sh"
TABLES = (".h5", ".csv", ".json")  # of energies
DATA_SETS = {".extxyz": "extxyz", ".parquet": "parquet", ".db": "ase.db"}  # --to of `collect`
CARRIED = ("DFMP2_NKI_PYTHON",)  # variables that the tasks need as they are here
SLOW_SIGNAL = 60  # s by which Slurm may send a signal earlier than told (sbatch, --signal)
AFTER = {"array": "afterok", "collect": "afterany"}  # how the job before must have ended


@dataclass(frozen=True, slots=True)
class Jobs:
    """What the jobs compute: the items of a batch, or the pair energies of a prepared file.

    Attributes
    ----------
    name, folder : of the jobs, and of their scripts unless another one is asked for
    backend, devices : whose devices are needed, and the jobs that need them
    commands : arguments of dfmp2 by job, in their order; those of the array lack the shard and what
        Slurm gives it
    """

    name: str
    folder: Path
    backend: str
    devices: Sequence[str]
    commands: Mapping[str, Sequence[str]]


def batch_jobs(batch: Batch, given: Mapping[str, Any]) -> Jobs:
    """The items of a batch, then a table of their energies, or a data set, if one is asked for."""
    source = [os.path.abspath(given["source"])]
    table = given["collect"]
    if given["root"] is not None:
        source += ["--root", os.path.abspath(given["root"])]
    # Without it a task would have to read the whole manifest before it finds its own list.
    source += ["--output", os.path.abspath(batch.output)]
    backend = batch.asks_for(*COMPILED, "cuda", "cuda-tf32") or "cpu"
    if backend in COMPILED:
        commands = {"warm-up": ["batch", "run", *source, "--warm-up"]}
    else:
        commands = {}
    if given["scf_chain"]:
        chain = ["--scf-chain"]
    else:
        chain = []
    commands["array"] = ["batch", "run", *source, "--workers", str(given["workers"]), *chain]
    if table is not None:
        ending = Path(table).suffix
        if ending not in TABLES and ending not in DATA_SETS:
            raise InputError(
                Option("collect", True),
                f" {table}: expected a name ending in {', '.join(TABLES)} for a table of energies, "
                f"or in {', '.join(DATA_SETS)} for a data set",
            )
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
    # Only nki compiles without one
    devices = ("array",) if backend == "nki" else ("array", "warm-up")
    return Jobs(
        name=_job_name(batch.output.resolve().name),
        folder=batch.output / "slurm",
        backend=backend,
        devices=devices,
        commands=commands,
    )


def _job_name(text: str) -> str:
    """The name of jobs, of ASCII letters, after a file or folder."""
    return re.sub(r"[^A-Za-z0-9._+-]+", "_", f"dfmp2-{slug(text)}")


def prepared_jobs(given: Mapping[str, Any]) -> Jobs:
    """The pair energies of a file that dfmp2 prepare has written, then the result, which must not
    be there yet."""
    backend = given["backend"]
    result = Path(
        given["output"]
        or given["source"].removesuffix(".h5").removesuffix(".prepared") + ".dfmp2.h5"
    )
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


def scripts(jobs: Jobs, folder: Path, given: Mapping[str, Any]) -> dict[Path, str]:
    """The script of each job, and the one that submits them, by their places in `folder`.

    `given` are the options of `dfmp2 batch submit --slurm`; InputError where they do not fit
    together.
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
    }
    values |= {"python": os.path.abspath(sys.executable), **_values(jobs, folder, given)}
    job = environment.get_template("slurm.sh.j2")
    found = {folder / f"{kind}.sbatch": job.render(kind=kind, **values) for kind in jobs.commands}
    return {**found, folder / SUBMIT: environment.get_template("submit.sh.j2").render(**values)}


def _values(jobs: Jobs, folder: Path, given: Mapping[str, Any]) -> dict[str, Any]:
    """What follows from the options, after checking them."""
    names = {
        name: given[name]
        for name in ("partition", "account", "qos", "constraint", "gres")
        if given[name]
    }
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
    seconds, margin, workers = given["seconds"], given["signal_before"], given["workers"]
    if seconds is not None and seconds <= margin + SLOW_SIGNAL:
        raise InputError(
            Option("time", seconds),
            (
                f" s: tasks are told to stop {margin} s before, which Slurm may do {SLOW_SIGNAL}"
                f" s early: allow more than {margin + SLOW_SIGNAL} s, or a smaller "
            ),
            Option("signal_before"),
        )
    gres, variables = names.pop("gres", None), {}
    if jobs.backend in COMPILED:
        cache = os.path.abspath(given["cache"] or accelerator().cache_folder())
        variables = {"DFMP2_NEFF_CACHE": cache, "NEURON_COMPILE_CACHE_URL": f"{cache}/xla"}
        variables |= {name: os.environ[name] for name in CARRIED if name in os.environ}
        gres = gres or f"gpu:{-(-workers // CORES_PER_CHIP)}"  # a core of a chip for each worker
    elif given["cache"] is not None:
        raise InputError(
            Option("cache"),
            ": no item asks for the backend nki or nki-xla, so no kernel is compiled",
        )
    elif jobs.backend.startswith("cuda"):
        gres = gres or f"gpu:{workers}"
    cpus = given["cpus_per_task"] or workers * given["threads"]
    return {"places": names, "cpus": cpus, "gres": gres, "variables": variables}


def submit_to_slurm(folder: Path) -> dict[str, str]:
    """Numbers, by name, of the jobs whose scripts are in a folder; InputError where Slurm refuses
    one."""
    done = subprocess.run(["bash", str(folder / SUBMIT)], capture_output=True, text=True)
    if done.returncode:
        raise InputError(
            f"Slurm refuses a job of {folder}: {printable('; '.join(done.stderr.splitlines()))}"
        )
    return dict(job.split() for job in done.stdout.removeprefix("submitted: ").strip().split(", "))
