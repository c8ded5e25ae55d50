"""Read a result and check its hash while the file is open once."""

from __future__ import annotations

from pathlib import Path

from dfmp2.errors import ResultFileError
from dfmp2.io import hdf5
from dfmp2.io.content import content_hash
from dfmp2.io.safe_hdf5 import open_checked, read_attribute
from dfmp2.result import MP2Result


def read_verified(path: str | Path) -> MP2Result:
    """A result whose content has its stored hash.

    Raises
    ------
    InputError : no such file
    ResultFileError : foreign, damaged, incomplete, of an unknown version, or changed since it was written
    """
    with open_checked(path) as handle:
        result = hdf5.load(handle, path)
        sound = read_attribute(handle, "content_sha256") == content_hash(handle)
    if not sound:
        raise ResultFileError(f"{path}: the content does not have its stored hash: compute it again")
    return result
