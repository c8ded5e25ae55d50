"""`dfmp2 bench`: how fast it is here, against other programs and against what the machine can do."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import click
from click.core import ParameterSource

from dfmp2 import threads as thread_settings
from dfmp2.cli.console import Console
from dfmp2.errors import InputError
from dfmp2.resources import usable_cores

# Mode -> its option, what it takes besides --threads, --repeats, --json, --overwrite, --quiet; default repetitions.
MODES = {
    "molecule": (
        {
            *("basis", "against", "precision", "memory", "frozen_core", "charge", "multiplicity", "units", "reference"),
            *("auxbasis", "scf_auxbasis", "touch", "scratch", "show_scripts"),
        },
        3,
    ),
    "shape": ({"backend", "precision", "memory"}, 3),
    "scaling": ({"basis", "sizes", "precision", "memory", "frozen_core", "scratch"}, 1),
    "gemm": (set[str](), 3),
}
COMMON = {"threads", "repeats", "json_file", "overwrite", "quiet"}
PRECISIONS = ("auto", "fp64", "mixed")
DEFAULT_PRECISIONS = {"molecule": "auto,fp64", "shape": "fp64,mixed", "scaling": "auto"}


@click.command("bench", short_help="Time dfmp2 against other programs and the machine.")
@click.option("--molecule", metavar="FILE", help="Whole programs on this xyz file, alternating.")
@click.option(
    "--shape",
    metavar="NAME",
    help="Pair step: small, medium, large, benz, cor, c60, w30, w60 (GPU only), or nocc/nvir/naux.",
)
@click.option("--scaling", is_flag=True, help="Growth of every stage over a series of n-alkanes.")
@click.option("--gemm", is_flag=True, help="Matrix products of NumPy and PyTorch; kept for plan and --backend auto.")
@click.option("--basis", metavar="NAME", help="Orbital basis.  [--scaling: cc-pvdz]")
@click.option("--against", metavar="PROGRAMS", help="pyscf, pyscf-tuned (OPENBLAS_NUM_THREADS=1), psi4; with commas.")
@click.option("--precision", metavar="LIST", help="auto, fp64, mixed; with commas.  [all that apply]")
@click.option("--repeats", type=int, help="Runs of each.  [3; --scaling: 1]")
@click.option("--threads", type=int, help="Threads of every program.  [default: usable cores]")
@click.option("--memory", metavar="SIZE", help="What every program may use.  [default: as each takes by itself]")
@click.option("--backend", multiple=True, metavar="NAME", help="--shape: cpu, torch, cuda; repeat it.  [all there are]")
@click.option("--sizes", metavar="LIST", help="--scaling: carbon atoms.  [10,20,30,40]")
@click.option(
    "--frozen-core", metavar="none|auto|psi4|orca|pyscf|N", help="As for dfmp2 run; the same for all programs."
)
@click.option("--charge", type=int, help="Total charge.  [comment line of the file, else 0]")
@click.option("--multiplicity", type=int, help="2S+1.  [comment line of the file, else 1]")
@click.option("--units", type=click.Choice(["angstrom", "bohr"]), default="angstrom", help="Of the file.")
@click.option("--reference", type=click.Choice(["auto", "rhf", "uhf"]), help="As for dfmp2 run.")
@click.option("--auxbasis", metavar="NAME", help="MP2 fitting set of all programs.")
@click.option("--scf-auxbasis", metavar="NAME", help="SCF fitting set of all programs.")
@click.option("--touch", metavar="SIZE", help="Write to this much memory before every run, so that it is warm.")
@click.option("--scratch", metavar="DIR", help="Folder for temporary files.")
@click.option("--show-scripts", is_flag=True, help="Also print what the other programs were given.")
@click.option("--json", "json_file", metavar="FILE", help="Also write JSON; - prints it in place of the tables.")
@click.option("--overwrite", is_flag=True, help="Replace an existing file.")
@click.option("--quiet", is_flag=True, help="No progress.")
@click.pass_context
def command(context: click.Context, /, json_file: str | None, overwrite: bool, quiet: bool, **options: Any) -> None:
    """Measure. Choose one of --molecule, --shape, --scaling, --gemm.

    Exit code 8 when energies differ by more than 1e-7 Eh (--shape: more than the precision explains), 6 when
    a program is missing or fails.
    """
    mode = _mode(context, options)
    count = _count("threads", options["threads"]) or usable_cores()
    repeats = _count("repeats", options["repeats"]) or MODES[mode][1]
    precisions = _precisions(mode, options["precision"])
    thread_settings.set_environment(count)  # before NumPy and PyTorch start their thread pools
    from dfmp2.io.files import require_writable, write_atomically

    target = None if json_file in (None, "-") else Path(str(json_file))
    if target is not None:
        require_writable(target, overwrite=overwrite, expected_bytes=10**6, option="--json")
    console = Console(quiet=quiet, log=None)
    measure = {"molecule": _race, "shape": _shape, "scaling": _scaling, "gemm": _gemm}[mode]
    measured, report, judge = measure(options, precisions, repeats, count, console)
    if target is not None:
        write_atomically(target, report.to_json(measured).encode(), overwrite=overwrite)
    click.echo(report.to_json(measured) if json_file == "-" else report.to_text(measured), nl=False)
    if options["show_scripts"] and json_file != "-":
        click.echo("\n" + report.scripts_text(measured), nl=False)
    if judge is not None:
        judge(measured)


Measured = tuple[Any, Any, Any]  # what was measured, the module that prints it, what raises when energies are wrong


def _race(options: dict[str, Any], precisions: list[str], repeats: int, count: int, console: Console) -> Measured:
    from dfmp2.bench import race, race_report
    from dfmp2.io.xyz import read_xyz

    given = {name: options[name] for name in ("charge", "multiplicity", "units")}
    molecule = read_xyz(options["molecule"], **given).molecule
    measured = race.race(
        molecule,
        _calculation(options, options["basis"], count),
        against=_names(options["against"]),
        precisions=precisions,
        repeats=repeats,
        touched=_bytes(options["touch"]) or 0,
        scratch=options["scratch"],
        listener=console,
    )
    return measured, race_report, race_report.judge


def _shape(options: dict[str, Any], precisions: list[str], repeats: int, count: int, console: Console) -> Measured:
    from dfmp2.bench import shapes, shapes_report

    measured = shapes.measure(
        options["shape"],
        backends=list(options["backend"]),
        precisions=precisions,
        repeats=repeats,
        count=count,
        memory=_bytes(options["memory"]),
        listener=console,
    )
    return measured, shapes_report, shapes.judge


def _scaling(options: dict[str, Any], precisions: list[str], repeats: int, count: int, console: Console) -> Measured:
    from dfmp2.bench import scaling, scaling_report

    sizes = scaling.SIZES if options["sizes"] is None else scaling.parse_sizes(options["sizes"])
    if len(precisions) > 1:
        raise InputError("--precision: --scaling takes one of auto, fp64, mixed")
    measured = scaling.measure(
        sizes,
        _calculation(options, options["basis"] or "cc-pvdz", count),
        precision=precisions[0],
        repeats=repeats,
        scratch=options["scratch"],
        listener=console,
    )
    return measured, scaling_report, None


def _gemm(_options: dict[str, Any], _precisions: list[str], repeats: int, count: int, console: Console) -> Measured:
    from dfmp2.bench import gemm

    return gemm.measure(count, repeats, console), gemm, None


def _mode(context: click.Context, options: dict[str, Any]) -> str:
    """The one mode that was asked for, every given option belonging to it."""
    modes = [name for name in MODES if options[name]]
    if len(modes) != 1:
        asked = " and ".join(f"--{name}" for name in modes) or "nothing to measure was named"
        raise InputError(f"{asked}: give exactly one of --molecule FILE, --shape NAME, --scaling, --gemm")
    [mode] = modes
    for name in options:
        given = context.get_parameter_source(name) is not ParameterSource.DEFAULT
        if given and name not in {mode, *COMMON, *MODES[mode][0]}:
            raise InputError(f"--{name.replace('_', '-')} does not belong to --{mode}: leave it out")
    if mode == "molecule" and not options["basis"]:
        raise InputError("--molecule needs --basis: name an orbital basis, such as --basis cc-pvdz")
    return mode


def _calculation(options: dict[str, Any], basis: str, count: int) -> Any:
    from dfmp2.bench.race_values import Calculation

    passed = ("frozen_core", "reference", "auxbasis", "scf_auxbasis", "memory")
    given = tuple(f"--{name.replace('_', '-')}={options[name]}" for name in passed if options[name] is not None)
    return Calculation(basis=basis, threads=count, memory=_bytes(options["memory"]), options=given)


def _precisions(mode: str, text: str | None) -> list[str]:
    names = _names(text or DEFAULT_PRECISIONS.get(mode, ""))
    allowed = PRECISIONS[1:] if mode == "shape" else PRECISIONS
    unknown = [name for name in names if name not in allowed]
    if unknown or (not names and mode != "gemm"):
        raise InputError(f"--precision {text!r}: expected one or more of {', '.join(allowed)}, with commas between")
    return names


def _names(text: str | None) -> list[str]:
    """Words between commas, each once; an empty text has none."""
    words = [word.strip().lower() for word in (text or "").split(",")]
    return list(dict.fromkeys(words)) if text else []


def _count(name: str, value: int | None) -> int | None:
    if value is not None and value < 1:
        raise InputError(f"--{name} {value}: expected a whole number, 1 or more")
    return value


def _bytes(text: str | None) -> int | None:
    from dfmp2.units import parse_bytes

    return None if text is None else parse_bytes(text)
