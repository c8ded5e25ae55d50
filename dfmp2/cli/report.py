"""`dfmp2 report`: stored results as one page to read, print and keep."""

from __future__ import annotations

import contextlib
from collections.abc import Sequence
from pathlib import Path

import click

from dfmp2.cli import signals
from dfmp2.errors import InputError
from dfmp2.io.text import printable

FORMATS = {".html": "html", ".htm": "html", ".md": "md", ".markdown": "md"}  # by the suffix of --output


@click.command("report", short_help="Write stored results as an HTML or Markdown page.")
@click.argument("results", nargs=-1, required=True)
@click.option("-o", "--output", metavar="FILE", help="Page to write.  [default: report.html or report.md here]")
@click.option(
    "--format", "kind", type=click.Choice(["html", "md"]), help="[default: by the name of --output, else html]"
)
@click.option("--title", help="Heading of the page.  [default: made from the results]")
@click.option("--overwrite", is_flag=True, help="Replace an existing page.")
def command(results: tuple[str, ...], output: str | None, kind: str | None, title: str | None, overwrite: bool) -> None:
    """Write RESULTS (.h5 files, or the output folder of a batch) as one self-contained page.

    RESULTS may also be one file of dfmp2 interaction, cbs or scan.

    One result is shown in full. Several are compared first: the same calculation by other backends or
    precisions, a basis series, a scan; what belongs to no series is listed with a warning.
    """
    from dfmp2.io.files import require_writable, write_atomically
    from dfmp2.report.sources import batch_files, is_batch

    sources = [Path(result) for result in results]
    chosen = kind or _format(output)
    target = Path(f"report.{chosen}" if output is None else output)
    batches = [source for source in sources if is_batch(source)]
    if batches and len(sources) > 1:
        raise InputError(
            f"{batches[0]} is a batch, which is shown alone, but {len(sources)} sources were given: "
            "name the batch, or result files"
        )
    _require_another(target, [*sources, *(file for batch in batches for file in batch_files(batch))])
    text = _page(sources, batches, chosen, title)
    require_writable(target, overwrite=overwrite)
    signals.check()
    signals.settle()
    write_atomically(target, text.encode(), overwrite=overwrite)
    click.echo(f"dfmp2 report: {printable(str(target))}, {len(text.encode())} bytes")


def _page(sources: Sequence[Path], batches: Sequence[Path], kind: str, title: str | None) -> str:
    """The page as text."""
    from dfmp2.io.study import is_study
    from dfmp2.report import build
    from dfmp2.report.batch import batch_page
    from dfmp2.report.html import to_html
    from dfmp2.report.markdown import to_markdown
    from dfmp2.report.sources import known_speed, read_batch, read_entries, read_study_file

    if batches:
        items, remarks = read_batch(batches[0])
        folder = batches[0] if batches[0].is_dir() else batches[0].parent
        name = folder.resolve().name
        page = batch_page(items, title or f"Batch: {name}", name, build.footer(f"the folder {name}"), remarks)
    elif len(sources) == 1 and is_study(sources[0]):
        study, runs = read_study_file(sources[0])
        page = build.study_page(study, runs, [known_speed(run.result) for run in runs], title, sources[0].name)
    else:
        entries = read_entries(sources)
        speeds = [known_speed(entry.result) for entry in entries]
        if len(entries) == 1:
            page = build.single_page(entries[0], speeds[0], title)
        else:
            page = build.several_page(entries, speeds, title)
    return to_html(page) if kind == "html" else to_markdown(page)


def _format(output: str | None) -> str:
    """The format that the name of the output stands for."""
    if output is None:
        return "html"
    suffix = Path(output).suffix.lower()
    if suffix not in FORMATS:
        raise InputError(f"--output {output}: expected a name that ends in .html or .md, or --format html|md")
    return FORMATS[suffix]


def _require_another(target: Path, read: Sequence[Path]) -> None:
    for source in read:
        with contextlib.suppress(OSError):  # one of them is not there, which is found out when it is read
            if target.samefile(source):
                raise InputError(f"--output {target} is read for the report ({source}): name another file")
