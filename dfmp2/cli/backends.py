"""`dfmp2 backends`: which backends there are, and why each can or cannot be used here."""

from __future__ import annotations

import json

import click

from dfmp2.cli.options import AS_JSON


@click.command("backends")
@AS_JSON
def command(as_json: bool) -> None:
    """List the backends and why each of them can or cannot be used here."""
    from dfmp2.backends.registry import BACKENDS

    rows = [(row.name, row.description, row.probe()) for row in BACKENDS]
    if as_json:
        table = {name: {"description": text, "available": why is None, "reason": why} for name, text, why in rows}
        click.echo(json.dumps(table, indent=2))
        return
    for name, text, why in rows:
        click.echo(f"{name:<17}{'available' if why is None else 'unavailable':<13}{text}")
        if why is not None:
            click.echo(f"{'':30}{why}")
