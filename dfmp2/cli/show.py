"""`dfmp2 show`: print a stored result, a study of several, or what a prepared file holds."""

from __future__ import annotations

from typing import TYPE_CHECKING

import click

from dfmp2.errors import InputError

if TYPE_CHECKING:
    from dfmp2.io.study import Study


@click.command("show", short_help="Print a stored result or study.")
@click.argument("result")
@click.option("--json", "as_json", is_flag=True, help="The object that run --json printed.")
@click.option("--pairs", is_flag=True, help="All pair energies.")
@click.option("--verify", is_flag=True, help="Check the stored hash against the content first.")
@click.option("--run", metavar="NAME", help="One run of a study (interaction, cbs, scan).")
@click.option("--csv", "as_csv", is_flag=True, help="The table of a study.")
def command(result: str, as_json: bool, pairs: bool, verify: bool, run: str | None, as_csv: bool) -> None:
    """Print the stored result or study RESULT (.h5)."""
    from dfmp2.io import hdf5
    from dfmp2.io.json import to_json
    from dfmp2.io.prepared import is_prepared
    from dfmp2.io.report import last_line, pair_table, report
    from dfmp2.io.study import is_study, read_study, verify_study

    if is_prepared(result):
        if pairs or run is not None or as_csv:
            raise InputError(f"{result} is prepared and has no energies yet: --pairs, --run and --csv are for results")
        _show_prepared(result, as_json=as_json, verify=verify)
        return
    if is_study(result):
        verified = verify_study(result) if verify else None
        study = read_study(result)
        if run is None:
            _show_study(study, as_json=as_json, as_csv=as_csv, pairs=pairs)
            if verified is not None and not (as_json or as_csv):
                click.echo(f"content hashes verified: {verified}")
            return
        if run not in study.runs:
            raise InputError(f"--run {run}: {result} holds {', '.join(study.runs) or 'no run'}: name one of these")
        if as_csv:
            raise InputError("--csv prints the table of a study: leave out --run")
        stored = study.runs[run]
    elif run is not None or as_csv:
        raise InputError(f"--{'csv' if run is None else 'run'} is for studies, and {result} is none: leave it out")
    else:
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


def _show_prepared(path: str, *, as_json: bool, verify: bool) -> None:
    from dfmp2.io.prepared import opened
    from dfmp2.io.prepared_report import report, to_json

    with opened(path) as source:
        if verify:
            source.check()
        click.echo(to_json(source.prepared) if as_json else report(source.prepared, path), nl=False)
        if verify and not as_json:
            click.echo(f"content hashes verified, B included: {source.sha256}")


def _show_study(study: Study, *, as_json: bool, as_csv: bool, pairs: bool) -> None:
    from dfmp2.io import study_report
    from dfmp2.io.text_plot import figure

    if pairs or (as_json and as_csv):
        raise InputError("--pairs needs --run NAME" if pairs else "--json and --csv exclude each other: choose one")
    if as_json:
        text = study_report.to_json(study)
    else:
        text = study_report.to_csv(study) if as_csv else study_report.report(study, figure(study))
    click.echo(text, nl=False)
