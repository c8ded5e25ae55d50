"""The converged reference, the layout of the run and its fitted integrals on disk as sections of a checkpoint."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import asdict, dataclass, fields
from typing import Any

import numpy as np

from dfmp2.checkpoint.encoding import Section
from dfmp2.record import Reference, Stability
from dfmp2.solutions import Solutions

PARTS = {"stability": Stability, "solutions": Solutions}  # of a reference, each a record of its own


@dataclass(frozen=True, slots=True)
class Kept:
    """Fitted integrals that an earlier run left on disk.

    Attributes
    ----------
    folder : scratch folder
    shapes : (nocc, nvir, naux) per spin
    digests : per spin, SHA-256 of every group of orbitals
    condition, dropped, threshold : of the metric
    """

    folder: str
    shapes: tuple[tuple[int, int, int], ...]
    digests: tuple[tuple[str, ...], ...]
    condition: float
    dropped: int
    threshold: float


def from_reference(reference: Reference) -> Section:
    """A converged reference as it is saved."""
    values: dict[str, Any] = {field.name: getattr(reference, field.name) for field in fields(reference)}
    arrays = {name: value for name, value in values.items() if isinstance(value, np.ndarray)}
    for name in PARTS:
        values[name] = None if values[name] is None else asdict(values[name])
    return Section({name: value for name, value in values.items() if name not in arrays}, arrays)


def to_reference(section: Section) -> Reference:
    """The reference that was saved."""
    values: dict[str, Any] = {**section.values, **section.arrays}
    values["ladder"] = tuple(values["ladder"])
    for name, kind in PARTS.items():
        if values[name] is not None:
            columns = {key: tuple(part) if isinstance(part, list) else part for key, part in values[name].items()}
            values[name] = kind(**columns)
    return Reference(**values)


def from_kept(kept: Kept) -> Section:
    """Integrals on disk as they are saved."""
    return Section({field.name: getattr(kept, field.name) for field in fields(kept)})


def to_kept(values: Mapping[str, Any]) -> Kept:
    """Integrals on disk that were saved."""
    return Kept(
        folder=str(values["folder"]),
        shapes=tuple((int(o), int(v), int(n)) for o, v, n in values["shapes"]),
        digests=tuple(tuple(str(digest) for digest in spin) for spin in values["digests"]),
        condition=float(values["condition"]),
        dropped=int(values["dropped"]),
        threshold=float(values["threshold"]),
    )
