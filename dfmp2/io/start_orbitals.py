"""Start orbitals out of a PySCF checkpoint or a dfmp2 result, without PySCF's own loader.

PySCF's loader evaluates the text it finds under `/mol`; here it is parsed as JSON and only the
nuclear charges are taken from it, to recognise orbitals of another molecule.
"""

from __future__ import annotations

import json
from pathlib import Path

import h5py
import numpy as np
from numpy.typing import NDArray

from dfmp2.errors import InputError
from dfmp2.io.safe_hdf5 import open_checked
from dfmp2.record import StartOrbitals


def read_start_orbitals(path: str | Path) -> StartOrbitals:
    """Read `/scf/mo_coeff`, `/scf/mo_occ` and the charges in `/mol`.

    Raises
    ------
    InputError : the file lacks them, or they do not fit together
    ResultFileError : the file is damaged or holds what no checkpoint holds
    """
    with open_checked(path) as handle:
        coeff, occ = _array(handle, "scf/mo_coeff", path), _array(handle, "scf/mo_occ", path)
        if coeff.ndim == 2:
            coeff, occ = coeff[None], occ[None]
        fits = coeff.ndim == 3 and occ.ndim == 2 and len(coeff) == len(occ) and coeff.shape[2] == occ.shape[1]
        if not fits or len(coeff) > 2 or not (np.isfinite(coeff).all() and _occupations(occ)):
            raise InputError(
                f"scf/mo_coeff {coeff.shape} and scf/mo_occ {occ.shape} are no RHF or UHF orbitals", file=str(path)
            )
        return StartOrbitals(coeff, occ, _charges(handle), str(path))


def _array(handle: h5py.File, name: str, path: str | Path) -> NDArray[np.float64]:
    item = handle.get(name)
    if isinstance(item, h5py.Group):  # PySCF stores a pair of arrays as name__from_list__ entries
        item = None
    listed = handle.get(f"{name}__from_list__")
    if item is None and isinstance(listed, h5py.Group):
        return np.stack([np.asarray(listed[key], dtype=np.float64) for key in sorted(listed)])
    if not isinstance(item, h5py.Dataset) or item.dtype.kind != "f":
        raise InputError(
            f"no dataset {name} of real numbers: name a PySCF chkfile of a converged RHF or UHF, or a dfmp2 result",
            file=str(path),
        )
    return np.asarray(item[()], dtype=np.float64)


def _occupations(occ: NDArray[np.float64]) -> bool:
    return bool(((occ >= 0) & (occ <= 2)).all() and occ.any())  # false for NaN


def _charges(handle: h5py.File) -> tuple[int, ...] | None:
    item = handle.get("mol")
    if not isinstance(item, h5py.Dataset) or item.shape != ():
        return None
    text = item[()]
    try:
        atoms = json.loads(text)["_atm"]
        return tuple(int(atom[0]) for atom in atoms)
    except (ValueError, LookupError, TypeError, OverflowError, RecursionError):
        return None
