"""One accelerator per process: which devices there are, and the variables that show a process only
its own."""

from __future__ import annotations

import os
import re
from collections.abc import Mapping
from pathlib import Path

from dfmp2.errors import InputError
from dfmp2.errors.messages import Option

CUDA, NEURON = "CUDA_VISIBLE_DEVICES", "NEURON_RT_VISIBLE_CORES"
CORES_PER_CHIP = 2  # of Trainium1 (AWS Neuron documentation, "Trn1 architecture")
NVIDIA, DEVICES = Path("/proc/driver/nvidia/gpus"), Path("/dev")


def pinning(
    backend: str,
    worker: int,
    workers: int,
    environment: Mapping[str, str] = os.environ,
    *,
    nvidia: Path = NVIDIA,
    devices: Path = DEVICES,
) -> dict[str, str]:
    """Variables that give a worker its device, from those of this process or folders that list the
    machine's devices.

    Raises
    ------
    InputError : fewer Trainium cores than workers; a core belongs to one process
    """
    if backend in ("cuda", "cuda-tf32", "auto"):
        if CUDA in environment:
            cards = _names(environment[CUDA])
        else:
            cards = _numbered(nvidia, ".*")
        if cards:
            return {CUDA: cards[worker % len(cards)]}
        return {}
    if backend not in ("nki", "nki-xla"):
        return {}
    given = environment.get(NEURON)
    if given:
        cores = _ranges(given)
    else:
        cores = _numbered(devices, r"neuron\d+", CORES_PER_CHIP)
    if cores and len(cores) < workers:
        raise InputError(
            Option("workers", workers),
            f": there are {len(cores)} NeuronCores and a core serves one process: use at most ",
            Option("workers", len(cores)),
        )
    return {NEURON: cores[worker]} if cores else {}


def _names(text: str) -> list[str]:
    """Devices as they are named: numbers, or identifiers such as GPU-8f2c...; -1 ends the list."""
    names = [name.strip() for name in text.split(",") if name.strip()]
    if "-1" in names:
        return names[: names.index("-1")]
    return names


def _numbered(folder: Path, pattern: str, each: int = 1) -> list[str]:
    """Numbers of the devices of a folder, `each` for each file that is named so."""
    found = [path for path in folder.glob("*") if re.fullmatch(pattern, path.name)]
    return [str(number) for number in range(each * len(found))]


def _ranges(text: str) -> list[str]:
    """Cores of "0-3" or "0,2,5-7"."""
    cores: list[str] = []
    for part in _names(text):
        match = re.fullmatch(r"(\d{1,4})(?:-(\d{1,4}))?", part)
        if match is None or int(match[2] or match[1]) < int(match[1]):
            raise InputError(f"{NEURON} is {text!r}: expected cores such as 0-3 or 0,1")
        cores += map(str, range(int(match[1]), int(match[2] or match[1]) + 1))
    return cores
