"""The items of each shard as a file of its own, so that a task of an array job reads its own alone.

    OUTPUT/batch.shards/I-of-N.json     manifest with size and time of change, options of the items

`batch submit` writes them, `batch run MANIFEST --output OUTPUT --shard I/N` looks for them. One that
does not belong to the manifest any more is not used: the shard is then found from the whole batch.
"""

from __future__ import annotations

import json
import os
from collections.abc import Mapping
from pathlib import Path
from typing import Any

from dfmp2.errors import InputError
from dfmp2.execution.items import inputs_to_share
from dfmp2.execution.manifest import Batch, BatchItem, options_of_item
from dfmp2.execution.schedule import shards, works
from dfmp2.host.files import make_folder, put, settled, stamp

FOLDER = "batch.shards"
VERSION = 1


def write_lists(batch: Batch, count: int, *, chained: bool) -> None:
    """Write the list of each of `count` shards into the output folder.

    Raises
    ------
    ResourceError : they cannot be written
    """
    folder = batch.output / FOLDER
    make_folder(folder)
    parts = shards(works(inputs_to_share(batch)), count, chained=chained)
    head = _head(batch.source, batch.root, chained)
    with settled(folder):
        for number, members in enumerate(parts):
            items = [_described(batch.items[work.place]) for work in members]
            text = json.dumps({**head, "items": items}, ensure_ascii=True)
            put(_path(folder, (number, count)), text.encode())


def read_list(
    source: str, root: str | None, output: Path, shard: tuple[int, int], *, chained: bool
) -> Batch | None:
    """The items of a shard as a batch of their own, from the list that was written for it; None
    where there is none, or it does not belong to the manifest as it is."""
    try:
        value = json.loads(_path(output / FOLDER, shard).read_text(encoding="utf-8"))
        folder = Path(source).parent if root is None else Path(root)
        head = _head(source, folder, chained)
        if not isinstance(value, dict) or {name: value.get(name) for name in head} != head:
            return None
        items = tuple(_item(row, output.absolute()) for row in value["items"])
    except (OSError, ValueError, LookupError, TypeError, RecursionError, InputError):
        return None
    if not items:
        return None
    return Batch(source, folder, output, items)


def _path(folder: Path, shard: tuple[int, int]) -> Path:
    return folder / f"{shard[0]}-of-{shard[1]}.json"


def _head(source: str, root: Path, chained: bool) -> dict[str, Any]:
    """What a list has to belong to."""
    return {
        "dfmp2_shard_version": VERSION,
        "manifest": os.path.abspath(source),
        "stamp": list(stamp(Path(source))),
        "root": os.path.abspath(root),
        "chained": chained,
    }


def _described(item: BatchItem) -> dict[str, Any]:
    return {
        "name": item.name,
        "molecule": item.molecule,
        "path": os.path.abspath(item.path),
        "given": dict(item.given),
    }


def _item(row: Mapping[str, Any], output: Path) -> BatchItem:
    options = options_of_item(row["given"], str(row["molecule"]))
    name = str(row["name"])
    if name != os.path.basename(name):
        raise ValueError(f"{name!r} is no name of an item")
    return BatchItem(
        name=name,
        molecule=str(row["molecule"]),
        path=Path(row["path"]),
        options=options,
        given=row["given"],
        target=output / f"{name}.h5",
    )
