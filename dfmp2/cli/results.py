"""`dfmp2 show`, `report`, `derive`, `export`: commands on stored results."""

from __future__ import annotations

import os
from collections.abc import Sequence
from pathlib import Path
from typing import TYPE_CHECKING, Any

import click

from dfmp2.cli import signals
from dfmp2.cli.console import Console, conclude, styled
from dfmp2.cli.help import GroupedCommand
from dfmp2.cli.options import (
    LAST_LINE,
    OVERWRITE,
    REPORT_AS_JSON,
    options_of,
    print_answer,
    require_output,
    with_options,
)
from dfmp2.cli.run import command_line, require_distinct
from dfmp2.errors import InputError
from dfmp2.host.files import require_hdf5_name, require_writable, write_atomically
from dfmp2.molecule.text import printable
from dfmp2.units import counted_text

if TYPE_CHECKING:
    from dfmp2.mp2.result import MP2Result


ONE_RUN = click.option("--run", metavar="NAME", help="One run of a study.")


@click.command("show", cls=GroupedCommand)
@click.argument("result")
@click.option("--json", "as_json", is_flag=True, help="Print the JSON object of run --json.")
@click.option("--pairs", is_flag=True, help="Print all pair energies.")
@click.option("--verify", is_flag=True, help="Print the stored hash, which is always checked.")
@ONE_RUN
@click.option("--csv", "as_csv", is_flag=True, help="Print the table of a study.")
def show(
    result: str, as_json: bool, pairs: bool, verify: bool, run: str | None, as_csv: bool
) -> None:
    """Print the stored result or study RESULT (.h5)."""
    from dfmp2.output.prepared import is_prepared
    from dfmp2.output.study import is_study

    if as_json and pairs:
        raise InputError("--json and --pairs exclude each other: choose one")
    if is_prepared(result):
        if pairs or run is not None or as_csv:
            raise InputError(
                f"{result} is prepared and has no energies yet: --pairs, --run and --csv are for "
                "results"
            )
        _show_prepared(result, as_json=as_json, verify=verify)
        return
    of_study = is_study(result)
    if of_study and run is None:
        if pairs:
            raise InputError("--pairs needs --run NAME")
        if as_json and as_csv:
            raise InputError("--json and --csv exclude each other: choose one")
        _show_study(result, as_json=as_json, as_csv=as_csv, verify=verify)
    elif not of_study and os.path.exists(result) and (run is not None or as_csv):
        raise InputError(
            f"--{'csv' if run is None else 'run'} is for studies, and {result} is not one: "
            "leave it out"
        )
    elif of_study and as_csv:
        raise InputError("--csv prints the table of a study: leave out --run")
    else:
        _show_result(result, run, as_json=as_json, pairs=pairs, verify=verify)


def _show_result(path: str, run: str | None, *, as_json: bool, pairs: bool, verify: bool) -> None:
    """Print the result in a file, or one result of a study."""
    from dfmp2.output.json import to_json
    from dfmp2.output.text import pair_table, report

    stored, content = _stored_result(path, run)
    if as_json:
        click.echo(to_json(stored, path), nl=False)
        return
    click.echo(styled(report(stored)).rstrip())
    if pairs:
        click.echo("\n" + pair_table(stored).rstrip())
    if verify:
        click.echo(f"content hash verified: {content}")


def _show_study(path: str, *, as_json: bool, as_csv: bool, verify: bool) -> None:
    from dfmp2.output.json import study_csv, study_json
    from dfmp2.output.study import read_verified_study
    from dfmp2.output.text import study_report

    study, content = read_verified_study(path)
    if as_json:
        click.echo(study_json(study, path), nl=False)
    elif as_csv:
        click.echo(study_csv(study), nl=False)
    else:
        click.echo(styled(study_report(study)), nl=False)
        if verify:
            click.echo(f"content hashes verified: {content}")


def _show_prepared(path: str, *, as_json: bool, verify: bool) -> None:
    from dfmp2.output.json import prepared_json
    from dfmp2.output.prepared import opened
    from dfmp2.output.text import prepared_report

    with opened(path) as source:
        if verify:
            source.load(1, held=False)
        found = source.prepared
        click.echo(
            prepared_json(found, path) if as_json else styled(prepared_report(found, path)),
            nl=False,
        )
        if verify and not as_json:
            click.echo(f"content hashes verified, B included: {source.sha256}")


def _stored_result(path: str, run: str | None) -> tuple[MP2Result, str]:
    """The result in a file, or one result of a study, and the content hash of the file.

    Raises
    ------
    InputError : the study has no run of this name
    """
    from dfmp2.output import hdf5
    from dfmp2.output.study import read_verified_study

    if run is None:
        return hdf5.read_verified(path)
    study, content = read_verified_study(path)
    if run not in study.runs:
        raise InputError(
            f"--run {run}: {path} holds {', '.join(study.runs) or 'no run'}: name one of these"
        )
    return study.runs[run], content


@click.command("report", cls=GroupedCommand)
@click.argument("results", metavar="RESULT", nargs=-1, required=True)
@click.option(
    "-o",
    "--output",
    metavar="FILE",
    default="report.html",
    show_default=True,
    help="Page to write.",
)
@click.option("--title", help="Heading of the page.  [default: made from the result]")
@OVERWRITE
def report_command(
    results: tuple[str, ...], output: str, title: str | None, overwrite: bool
) -> None:
    """Write a result, a study or the output folder of a batch as one self-contained HTML page.

    RESULT is an .h5 file of any command that computes, or the folder of a batch.
    """
    if len(results) > 1:
        raise InputError(
            f"{len(results)} sources were given, but a page shows one result, study or batch: "
            "several molecules belong into dfmp2 batch, geometries into dfmp2 scan, and basis sets "
            "into dfmp2 cbs, whose output dfmp2 report shows; or make a page of each"
        )
    target, source = Path(output), Path(results[0])
    if target.suffix.lower() not in (".html", ".htm"):
        raise InputError(
            f"--output {output}: expected a name that ends in .html (dfmp2 show prints text, "
            "--json and --csv)"
        )
    from dfmp2.output.html.sources import page

    require_distinct({"RESULT": source, "--output": target})
    text = page(source, title).encode()
    require_writable(target, overwrite=overwrite, expected_bytes=len(text))
    signals.commit()
    write_atomically(target, text, overwrite=overwrite)
    conclude(f"dfmp2 report: {printable(str(target))}, {len(text)} bytes")


OF_THE_RUN = (
    "basis",
    "reference",
    "relativity",
    "scf",
    "scf-auxbasis",
    "auxbasis",
    "frozen-virtual",
    "precision",
)


def _of_the_run(command: Any) -> Any:
    """Make a command accept options of the run, so that changing one is rejected with a reason."""
    kinds = {"frozen-virtual": int}
    return with_options(
        [click.option(f"--{name}", type=kinds.get(name, str), hidden=True) for name in OF_THE_RUN],
        command,
    )


@click.command("derive", cls=GroupedCommand)
@click.argument("result")
@click.option(
    "--frozen-core",
    metavar="none|auto|psi4|orca|pyscf|N",
    help="Orbitals left uncorrelated; at least those that were.  [default: as stored]",
)
@click.option("--method", metavar="NAME", help="See dfmp2 methods.  [default: as stored]")
@options_of("os_scale", "ss_scale")
@click.option(
    "--dispersion",
    type=click.Choice(["auto", "none", "d3bj", "d4"]),
    help="Dispersion correction of a double hybrid.  [default: as stored]",
)
@click.option(
    "-o", "--output", metavar="FILE.h5", help="Store the derived result.  [default: print it only]"
)
@OVERWRITE
@REPORT_AS_JSON
@LAST_LINE
@_of_the_run
def derive_command(
    result: str, output: str | None, overwrite: bool, as_json: bool, quiet: bool, **changes: Any
) -> None:
    """Energies that follow exactly from the stored pair energies of RESULT (.h5), without a new
    run.

    The report always contains MP2, SCS-MP2 and SOS-MP2; --method adds another, --os-scale and
    --ss-scale a scaling of your own. Another basis, fitting set, reference, precision or virtual
    space, and a smaller frozen core, need a new run.
    """
    from dfmp2.mp2.derive import derive
    from dfmp2.output import hdf5
    from dfmp2.output.json import to_json
    from dfmp2.output.text import brief_report, last_line

    require_output(output, overwrite=overwrite)
    stored, content = hdf5.read_verified(result)
    require_distinct({"RESULT": result, "--output": output})
    derived = derive(
        stored,
        origin=f"{Path(result).name}, content {content[:16]}",
        command=f"{command_line()} (content SHA-256 {content})",
        listener=Console(quiet=quiet, log=None),
        **changes,
    )
    if output is not None:
        require_hdf5_name(Path(output))
        require_writable(Path(output), overwrite=overwrite)
        signals.commit()
        hdf5.write(derived, output, overwrite=overwrite)
    ending = last_line(derived, output or "(not stored; --output FILE.h5 stores it)")
    print_answer(
        lambda: brief_report(derived, output),
        ending,
        lambda: to_json(derived, output),
        as_json=as_json,
        quiet=quiet,
        stored=output is not None,
    )


# Keys of `dfmp2.output.export.FORMATS`, repeated so that --help need not import it.
NAMES = ("molden", "trexio", "qcschema", "xyz", "extxyz", "cube")


@click.command("export", cls=GroupedCommand)
@click.argument("results", metavar="RESULT...", nargs=-1, required=True)
@click.option("--to", type=click.Choice(NAMES), required=True, help="Format of the new file.")
@click.option(
    "-o",
    "--output",
    metavar="FILE",
    help="File to write.  [default: STEM with the format's ending, here]",
)
@OVERWRITE
@ONE_RUN
@click.option(
    "--schema-version",
    type=click.Choice(["1", "2"]),
    help="Version for --to qcschema.  [default: 1]",
)
@click.option(
    "--orbitals",
    type=click.Choice(["scf", "natural"]),
    help="Orbitals for --to molden and cube.  [default: scf]",
)
@click.option(
    "--of",
    type=click.Choice(["relaxed", "unrelaxed", "scf"]),
    help="Density for natural orbitals, --density and --spin.  [default: relaxed]",
)
@click.option("--density", is_flag=True, help="The electron density, --to cube.")
@click.option("--spin", is_flag=True, help="The spin density, alpha less beta, --to cube.")
@click.option(
    "--orbital", metavar="N", help="An orbital, from 1; Nb for a beta orbital of UHF; --to cube."
)
@click.option(
    "--spacing",
    type=float,
    metavar="BOHR",
    help="Distance of the points of a cube.  [default: 80 points along each axis]",
)
@click.option(
    "--margin", type=float, metavar="BOHR", help="Margin around the atoms in a cube.  [default: 3]"
)
def export_command(
    results: tuple[str, ...],
    to: str,
    output: str | None,
    overwrite: bool,
    run: str | None,
    **options: Any,
) -> None:
    """Write stored results RESULT (.h5) in the format of another program.

    molden: orbitals and basis up to g functions. trexio: the wave function with its core
    potentials. qcschema: a QCSchema AtomicResult. xyz: geometry and energies. cube: a density or an
    orbital on a grid. extxyz: energies and forces, as ASE and MACE read them, a frame for each
    result. MP2 densities and natural orbitals need a result of dfmp2 run --properties or dfmp2
    gradient. For several results --output is a folder, but a file for extxyz.
    """
    from dfmp2.output.export import FORMATS, export

    # Not `in (None, False)`, which holds for a margin of 0
    given = {
        name: value for name, value in options.items() if value is not None and value is not False
    }
    if "schema_version" in given:
        given["schema_version"] = int(given["schema_version"])

    def content(result: str, target: Path) -> bytes:
        require_distinct({"RESULT": result, "--output": target})
        stored, _ = _stored_result(result, run)
        return export(stored, to, **given)

    if to == "extxyz" and len(results) > 1:
        if output is None:
            raise InputError("--output: name the file that all frames go to")
        target = Path(output)
        frames = [content(result, target) for result in results]
        what = counted_text(len(frames), "frame")
        _write_export(target, b"".join(frames), what, to, overwrite=overwrite, last=True)
        return
    name = f"{_shown(given)}{FORMATS[to].ending}"
    targets = _export_targets(results, output, [f"{_stem(one, run)}{name}" for one in results])
    for target, result in targets.items():
        made = content(result, target)
        _write_export(target, made, to, to, overwrite=overwrite, last=len(results) == 1)


def _export_targets(
    results: Sequence[str], output: str | None, names: Sequence[str]
) -> dict[Path, str]:
    """The results by the file that each is written to.

    Parameters
    ----------
    names : sequence of str
        Their file names, unless --output names the file of a single one.
    """
    if output is not None and len(results) == 1:
        return {Path(output): results[0]}
    folder = Path(output or ".")
    if not folder.is_dir():
        raise InputError(f"--output {output}: expected an existing folder for several results")
    targets: dict[Path, str] = {}
    for result, name in zip(results, names, strict=True):
        target = folder / name
        if target in targets:
            raise InputError(
                f"{targets[target]} and {result} would both be written to {target}: export them "
                "apart"
            )
        targets[target] = result
    return targets


def _write_export(
    target: Path, content: bytes, what: str, to: str, *, overwrite: bool, last: bool
) -> None:
    """Write a file in the format `to`; regardless of signals if it is the last one."""
    from dfmp2.output.export import FORMATS

    require_writable(target, overwrite=overwrite, expected_bytes=len(content))
    if last:
        signals.commit()
    write_atomically(target, content, overwrite=overwrite)
    conclude(f"dfmp2 export: {what} -> {target} ({FORMATS[to].holds})")


def _stem(path: str, run: str | None) -> str:
    """The stem of the name of an exported file."""
    stem = Path(path).name.removesuffix(".h5").removesuffix(".dfmp2")
    return stem if run is None else f"{stem}.{Path(run).name}"


def _shown(given: dict[str, Any]) -> str:
    """Suffix of the file name for anything exported other than the SCF orbitals."""
    parts: list[str] = [name for name in ("density", "spin") if name in given]
    if given.get("orbitals") == "natural":
        parts.append("natural")
    elif "orbital" in given:
        parts.append("orbital")
    parts += [str(given[name]) for name in ("orbital", "of") if name in given]
    return f".{'-'.join(parts)}" if parts else ""
