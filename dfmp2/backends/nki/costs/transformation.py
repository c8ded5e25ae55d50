"""Making B on one Trainium core from fitted integrals over basis functions: predicted time of K1, K2 and the link.

    up     A_P once for all spins, X in blocks of occupied orbitals, orbitals        down   X

B stays where it is made. The comparison is B from the host, which goes up once. Nothing here was measured on a device.
"""

from __future__ import annotations

from dataclasses import dataclass
from math import prod

from dfmp2.backends.nki import layout
from dfmp2.backends.nki.calls import Call, transform_calls
from dfmp2.backends.nki.costs.catalogue import FLOAT32, b_bytes
from dfmp2.backends.nki.costs.chips import Assumptions, find_chip
from dfmp2.backends.nki.costs.dispatch import DOWNLOAD, ROUND_TRIP, UPLOAD
from dfmp2.backends.nki.costs.pricing import price
from dfmp2.backends.nki.costs.shapes import Shape
from dfmp2.backends.nki.programs import one_bucket
from dfmp2.errors import KernelError

MS = 1e3
NS = 1e9


@dataclass(frozen=True, slots=True)
class Transformation:
    """K1 and K2 for all spins on one core.

    Attributes
    ----------
    device : s of the core; dispatch : s if every call is waited for; link : s of transfers
    calls, neffs : kernel calls and compiled programs; up, down : bytes
    obstacle : why it cannot run, "" if it can
    """

    device: float = 0.0
    dispatch: float = 0.0
    link: float = 0.0
    calls: int = 0
    neffs: int = 0
    up: int = 0
    down: int = 0
    obstacle: str = ""


def predict(spins: tuple[Shape, ...], nao: int, chip: str) -> Transformation:
    """K1 and K2 of one or two spins with `nao` basis functions."""
    core = find_chip(chip)
    found: list[Call] = []
    for shape in one_bucket(spins):
        found += transform_calls(nao, *shape, core.target)
    try:
        done = price("plain", found, 0, core, Assumptions())
    except KernelError as error:
        return Transformation(obstacle=str(error))
    up, down = traffic(found)
    return Transformation(
        device=done.makespan / NS,
        dispatch=done.calls * ROUND_TRIP / MS,
        link=(up / UPLOAD + down / DOWNLOAD) / MS,
        calls=done.calls,
        neffs=done.neffs,
        up=up,
        down=down,
    )


def traffic(calls: list[Call]) -> tuple[int, int]:
    """Bytes up and down of these calls of K1 and K2, spin after spin."""
    up = down = 0
    for half, full in zip(calls[::2], calls[1::2], strict=True):
        tiles, slices = half.arguments["a"].shape[1], full.arguments["x"].shape[0] // half.arguments["a"].shape[1]
        slices //= layout.P
        groups = half.count // slices
        once = prod(half.arguments["a"].shape) * slices if half is calls[0] else 0  # all spins share it
        orbitals = prod(half.arguments["c_occ"].shape) * groups + prod(full.arguments["c_vir"].shape)
        up += FLOAT32 * (once + orbitals + full.count * prod(full.arguments["x"].shape))
        down += FLOAT32 * half.count * tiles * layout.P * layout.GROUP * layout.P
    return up, down


def upload_seconds(spins: tuple[Shape, ...]) -> float:
    """Seconds in which B from the host goes up."""
    return sum(b_bytes(shape) for shape in spins) / UPLOAD / MS
