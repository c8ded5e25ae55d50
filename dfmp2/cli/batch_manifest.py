"""The arguments of the commands that look at a batch, and the batch they name."""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path
from typing import TYPE_CHECKING, Any

import click

from dfmp2.errors import InputError

if TYPE_CHECKING:
    from dfmp2.batch.manifest import Batch


def manifest_arguments(function: Callable[..., Any]) -> Callable[..., Any]:
    """Give a command --output, --root and MANIFEST."""
    for option in (
        click.option("--output", metavar="DIR", help="Folder of the results.  [default: that of the manifest]"),
        click.option("--root", metavar="DIR", help="Folder that the manifest's paths are relative to."),
        click.argument("manifest", metavar="MANIFEST.toml | OUTPUT"),
    ):
        function = option(function)
    return function


def load_manifest(manifest: str, root: str | None, output: str | None) -> Batch:
    """The batch of a manifest, or the one recorded in a folder of results."""
    from dfmp2.batch.ledger import read_recorded
    from dfmp2.batch.manifest import read_manifest

    if Path(manifest).is_dir():
        if root is not None or output is not None:
            raise InputError(f"--root and --output belong to a manifest, and {manifest} is a folder: leave them out")
        return read_recorded(Path(manifest))
    folder = None if root is None else Path(root)
    return read_manifest(manifest, root=folder, output=None if output is None else Path(output))
