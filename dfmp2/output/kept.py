"""How much of a result its file keeps: `all`; `properties`, every number but no orbitals and no
densities; `energies`, with forces and dipole moments alone. Each has what it takes to repeat the
calculation.

Files of a batch are packed (schema 2), because a dataset of its own costs 600 bytes and 50
microseconds: numbers and texts stand together as JSON, compressed by zlib, in `dfmp2/records`.
"""

from __future__ import annotations

import json
import math
import zlib
from collections.abc import Mapping
from dataclasses import replace
from typing import Any

import numpy as np
from numpy.typing import NDArray

from dfmp2.mp2.result import MP2Result, PairEnergies
from dfmp2.options import ALL, KEPT

RECORDS = "dfmp2/records"
LARGEST_RECORDS = 100 * 10**6  # bytes of JSON
# What stays a dataset of its own: what other readers look for, and PySCF.
APART = (
    "mol",
    "scf/",
    "dfmp2/energies/",
    "dfmp2/input/symbols",
    "dfmp2/input/charge",
    "dfmp2/input/multiplicity",
)
# What stays a dataset where not everything is kept.
SOUGHT = (
    "dfmp2/energies/scf_total_energy",
    "dfmp2/energies/correlation_energy",
    "dfmp2/energies/total_energy",
    "dfmp2/energies/mp2_total_energy",
    "dfmp2/input/symbols",
    "dfmp2/input/coordinates",
    "dfmp2/gradient/mp2_total_gradient",
    "dfmp2/properties/relaxed_dipole",
    "dfmp2/properties/mulliken_charges",
    "dfmp2/properties/lowdin_charges",
    "dfmp2/polarizability/relaxed",
    "dfmp2/pairs/",
)
OF_PROPERTIES = (
    "quadrupole",
    "mulliken_charges",
    "lowdin_charges",
    "mulliken_spin_populations",
    "lowdin_spin_populations",
)


def reduced(result: MP2Result, keep: str) -> MP2Result:
    """The result with what `keep`, one of KEPT, leaves of it; every energy stays to the last bit."""
    if keep == ALL or KEPT.index(result.kept) <= KEPT.index(keep):
        return result
    spins = result.reference.nspin
    none = np.empty((spins, 0))
    reference = replace(result.reference, mo_coeff=np.empty((spins, 0, 0)))
    properties = result.properties
    if properties is not None:
        properties = replace(properties, unrelaxed_density=none, relaxed_density=none)
    pairs = result.pairs
    if keep == "energies":
        if properties is not None:
            nothing: dict[str, Any] = dict.fromkeys(OF_PROPERTIES)
            properties = replace(properties, **nothing)
        if result.options.correlation.kind == "pairs":
            pairs = pair_sums(pairs.opposite_spin_energy, pairs.same_spin_energy)
    return replace(
        result,
        reference=reference,
        properties=properties,
        pairs=pairs,
        mole_json="",
        kept=keep,
    )


def pair_sums(opposite_spin: float, same_spin: float) -> PairEnergies:
    """Pair energies of which the sums alone are known, Eh."""
    return PairEnergies(np.array([[opposite_spin]]), (np.array([[same_spin]]),), summed=True)


def pack_records(values: Mapping[str, Any], kept: str) -> tuple[dict[str, Any], NDArray[np.uint8]]:
    """Values by path that stay datasets of their own, and the records that hold the others.

    Parameters
    ----------
    values : numbers, texts, tuples of them and arrays by the path of their dataset
    kept : what is kept of the result, one of KEPT
    """
    apart, records = dict[str, Any](), dict[str, Any]()
    for path, value in values.items():
        plain = value
        if isinstance(value, np.generic):
            plain = value.item()
        if kept == ALL:
            alone = isinstance(value, np.ndarray) or path.startswith(APART)
        else:
            alone = path.startswith(SOUGHT)
            if isinstance(value, np.ndarray):
                plain = value.tolist()
        if alone or not _finite(plain):
            apart[path] = value
        else:
            records[path] = plain
    text = json.dumps(records, allow_nan=False, separators=(",", ":"))
    return apart, np.frombuffer(zlib.compress(text.encode(), 9), np.uint8)


def _finite(value: Any) -> bool:
    """Whether JSON can hold all numbers of a value."""
    if isinstance(value, list | tuple):
        return all(map(_finite, value))
    return not isinstance(value, float) or math.isfinite(value)


def unpack(records: NDArray[Any]) -> dict[str, Any]:
    """The values that `pack` put into records, by path; lists for tuples and arrays.

    Raises
    ------
    ValueError : they are no records, or claim more than LARGEST_RECORDS bytes
    """
    opened = zlib.decompressobj()
    try:
        text = opened.decompress(records.tobytes(), LARGEST_RECORDS)
    except zlib.error as error:
        raise ValueError(f"its records cannot be unpacked ({error})") from error
    if not opened.eof:
        raise ValueError("its records are cut off, or larger than those of any result")
    value = json.loads(text)
    if not isinstance(value, dict):
        raise ValueError("its records are no JSON object")
    return value
