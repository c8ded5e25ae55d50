"""Jobs on their way to Slurm: what is there is asked first, and nothing is left behind where one is refused."""

from __future__ import annotations

import re
import shutil
import subprocess
from collections.abc import Sequence
from pathlib import Path

from dfmp2.errors import BackendUnavailable, InputError
from dfmp2.io.text import printable
from dfmp2.submission.slurm.jobs import Script

PATIENCE = 120.0  # s that Slurm has for an answer
LONGEST_MESSAGE = 500


def require_slurm(shards: int) -> None:
    """Refuse, before anything is written, where there is no Slurm or it has no arrays that large.

    Raises
    ------
    BackendUnavailable : sbatch or scontrol is missing, or the controller does not answer
    InputError : more shards than MaxArraySize
    """
    missing = [program for program in ("sbatch", "scontrol", "squeue") if shutil.which(program) is None]
    if missing:
        raise BackendUnavailable(
            f"--submit: there is no {', no '.join(missing)} on PATH: log in to a machine of the Slurm cluster, or use "
            "--write DIR and submit from there"
        )
    code, out, errors = _call(["scontrol", "show", "config"])
    if code:
        raise BackendUnavailable(f"--submit: Slurm does not answer: {errors or f'scontrol ended with {code}'}")
    found = re.search(r"^MaxArraySize\s*=\s*(\d+)", out, re.MULTILINE)
    if found is not None and shards > int(found[1]):
        raise InputError(f"--shards {shards}: this cluster has arrays of at most {found[1]} tasks (MaxArraySize)")


def submit(jobs: Sequence[Script], folder: Path) -> dict[str, str]:
    """Job numbers by name.

    Raises
    ------
    InputError : Slurm refuses a job; those before it are cancelled
    """
    numbers: dict[str, str] = {}
    for job in jobs:
        before = None if job.after is None else numbers[job.after[0]]
        code, out, errors = _call(job.command(folder, before))
        number = out.strip().partition(";")[0]
        if code or not number.isdigit():
            cancelled = _cancel(list(numbers.values()))
            raise InputError(f"Slurm refuses {job.path(folder)}: {errors or out.strip()[:LONGEST_MESSAGE]}{cancelled}")
        numbers[job.name] = number
    return numbers


def _cancel(numbers: Sequence[str]) -> str:
    if not numbers:
        return ""
    code, _, errors = _call(["scancel", *numbers])
    shown = ", ".join(numbers)
    return f"; job {shown} was cancelled" if not code else f"; job {shown} could not be cancelled: {errors}"


def _call(command: Sequence[str]) -> tuple[int, str, str]:
    """Exit code, output, and the message in one line.

    Raises
    ------
    BackendUnavailable : it cannot be run, or does not end
    """
    try:
        done = subprocess.run(
            command, stdin=subprocess.DEVNULL, capture_output=True, text=True, errors="replace", timeout=PATIENCE
        )
    except subprocess.TimeoutExpired as error:
        raise BackendUnavailable(f"{command[0]} did not answer within {PATIENCE:.0f} s: ask squeue --me") from error
    except OSError as error:
        raise BackendUnavailable(f"{command[0]} cannot be run: {error.strerror}") from error
    return done.returncode, done.stdout, printable(" ".join(done.stderr.split()))[:LONGEST_MESSAGE]
