"""`dfmp2 bench`: how fast the pair step and matrix products are here."""

from __future__ import annotations

import json
from pathlib import Path

import click

from dfmp2.cli.console import Console
from dfmp2.cli.options import OVERWRITE, QUIET, options_of, prepare_libraries
from dfmp2.errors import InputError
from dfmp2.options import parse_bytes

# What measures whole programs, as words of this command until version 0.1.
MOVED = {
    "race": "scripts/benchmarks/race.py",
    "--molecule": "scripts/benchmarks/race.py",
    "scaling": "scripts/benchmarks/scaling.py",
    "--scaling": "scripts/benchmarks/scaling.py",
}


@click.command("bench", context_settings={"ignore_unknown_options": True})
@click.argument("words", nargs=-1, type=click.UNPROCESSED, metavar="")
@click.option(
    "--shape",
    metavar="NAME",
    help="Pair step: small, medium, large, benz, cor, c60, w30, w60 (GPU only), or nocc/nvir/naux.",
)
@click.option("--gemm", is_flag=True, help="Matrix products of NumPy and PyTorch; kept for plan and report.")
@click.option("--precision", metavar="LIST", help="--shape: fp64, mixed; with commas.  [both]")
@click.option("--repeats", type=int, default=3, show_default=True, help="Runs of each.")
@options_of("memory", "threads")
@click.option("--backend", multiple=True, metavar="NAME", help="--shape: cpu, torch, cuda; repeat it.  [all there are]")
@click.option("--json", "json_file", metavar="FILE", help="Also write JSON; - prints it in place of the tables.")
@OVERWRITE
@QUIET
def command(
    words: tuple[str, ...],
    shape: str | None,
    gemm: bool,
    precision: str | None,
    repeats: int,
    threads: int | None,
    memory: str | None,
    backend: tuple[str, ...],
    json_file: str | None,
    overwrite: bool,
    quiet: bool,
) -> None:
    """Measure. Choose --shape or --gemm.

    Exit code 8 when the energy of a shape differs by more than its precision explains, 6 when a backend is missing.
    """
    _refuse(words, shape, gemm)
    only_shape = {"precision": precision, "memory": memory, "backend": backend}
    given = [name for name, value in only_shape.items() if value]
    if gemm and given:
        raise InputError(f"--{given[0]} does not belong to --gemm: leave it out")
    if repeats < 1:
        raise InputError(f"--repeats {repeats}: expected a whole number, 1 or more")
    precisions = list(dict.fromkeys(name.strip().lower() for name in (precision or "fp64,mixed").split(",")))
    unknown = [name for name in precisions if name not in ("fp64", "mixed")]
    if unknown:
        raise InputError(f"--precision {unknown[0]!r}: expected fp64 or mixed, or both with a comma between them")
    count = prepare_libraries(threads)
    from dfmp2.host.files import require_writable, write_atomically
    from dfmp2.validation import bench, products

    budget = None if memory is None else parse_bytes(memory)
    target = None if json_file in (None, "-") else Path(str(json_file))
    if target is not None:
        require_writable(target, overwrite=overwrite, expected_bytes=10**6, option="--json")
    console = Console(quiet=quiet, log=None)
    if shape is None:
        found = products.measure(count, repeats, console)
        text = products.to_text(found)
    else:
        found = bench.measure(
            *(shape, list(backend), precisions), repeats=repeats, count=count, memory=budget, listener=console
        )
        text = bench.to_text(found)
    written = json.dumps(found, indent=2, allow_nan=False) + "\n"
    if target is not None:
        write_atomically(target, written.encode(), overwrite=overwrite)
    click.echo(written if json_file == "-" else text, nl=False)
    if shape is not None:
        bench.judge(found)


def _refuse(words: tuple[str, ...], shape: str | None, gemm: bool) -> None:
    """Refuse what is no measurement of this command, and more or less than one.

    Raises
    ------
    InputError : whole programs, which scripts measure; none or both of --shape and --gemm
    click.UsageError : an unknown word or option
    """
    for word in words:
        script = MOVED.get(word.partition("=")[0])
        if script is not None:
            raise InputError(
                f"{word}: whole programs are timed by python {script}, in a copy of the source; see --help"
            )
    if words:
        kind = "option" if words[0].startswith("-") else "argument"
        raise click.UsageError(f"No such {kind}: {words[0]}")
    if (shape is not None) == gemm:
        asked = "--shape and --gemm" if gemm else "nothing to measure was named"
        raise InputError(f"{asked}: give exactly one of --shape NAME, --gemm")
