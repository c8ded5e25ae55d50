"""`dfmp2 show`: print a stored result."""

from __future__ import annotations

import click


@click.command("show", short_help="Print a stored result.")
@click.argument("result")
@click.option("--json", "as_json", is_flag=True, help="The object that run --json printed.")
@click.option("--pairs", is_flag=True, help="All pair energies.")
@click.option("--verify", is_flag=True, help="Check the stored hash against the content first.")
def command(result: str, as_json: bool, pairs: bool, verify: bool) -> None:
    """Print the stored result RESULT (.h5)."""
    from dfmp2.io import hdf5
    from dfmp2.io.json import to_json
    from dfmp2.io.report import last_line, pair_table, report

    verified = hdf5.verify(result) if verify else None
    stored = hdf5.read(result)
    if as_json:
        click.echo(to_json(stored), nl=False)
        return
    click.echo(report(stored), nl=False)
    if pairs:
        click.echo(pair_table(stored))
    if verified is not None:
        click.echo(f"content hash verified: {verified}")
    click.echo(last_line(stored, result))
