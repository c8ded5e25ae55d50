"""`dfmp2 scan`: energies along a coordinate, or of the frames of a file."""

from __future__ import annotations

from pathlib import Path
from typing import TYPE_CHECKING, Any

import click

from dfmp2.cli.calculation import calculation_options
from dfmp2.cli.console import Console
from dfmp2.cli.delivery import command_line
from dfmp2.cli.output import Display
from dfmp2.cli.study import chosen_options, require_another, run_study, study_options
from dfmp2.errors import InputError, SomeFailed

if TYPE_CHECKING:
    from dfmp2.io.study import Study
    from dfmp2.options import Options
    from dfmp2.studies.keeper import Keeper
    from dfmp2.studies.scan import Scan

KINDS = ("bond", "angle", "dihedral")


@click.command("scan", short_help="Energies along a coordinate, or of the frames of a file.")
@click.argument("molecule")
@click.option(
    "--bond", nargs=2, metavar="I,J FROM:TO:POINTS", help="Bond length, in the unit of the file; both ends are points."
)
@click.option("--angle", nargs=2, metavar="I,J,K FROM:TO:POINTS", help="Angle at J, degrees.")
@click.option("--dihedral", nargs=2, metavar="I,J,K,L FROM:TO:POINTS", help="Dihedral angle about J-K, degrees.")
@click.option("--moving", metavar="RANGES", help="Atoms that move, e.g. 4-6+8.  [default: the side of the last atom]")
@click.option(
    "--chain/--no-chain",
    default=True,
    show_default=True,
    help="Start every SCF from the orbitals of the point before.",
)
@click.option("--csv", "csv_file", metavar="FILE", help="The table.  [default: beside --output, .csv]")
@click.option("--plot", "plot_file", metavar="FILE", help="The curve, SVG.  [default: beside --output, .svg]")
@calculation_options
@study_options
def command(
    molecule: str,
    moving: str | None,
    chain: bool,
    csv_file: str | None,
    plot_file: str | None,
    charge: int | None,
    multiplicity: int | None,
    units: str,
    point_charges: str | None,
    point_charge_units: str,
    display: Display,
    bond: tuple[str, str] | None,
    angle: tuple[str, str] | None,
    dihedral: tuple[str, str] | None,
    **options: Any,
) -> None:
    """Energies of MOLECULE along one coordinate: --bond 1,2 0.8:1.2:9, atoms from 1, nine points, both ends included.

    Without a coordinate MOLECULE is an xyz file with several frames of one molecule. Which atoms move follows from the
    bonds: the side of the last atom named. A point that fails is listed with its exit code, and the command then ends
    with exit code 9. Writes one file with all runs, the table (CSV) and the curve (SVG).
    """
    chosen = chosen_options(options)
    given = {kind: value for kind, value in zip(KINDS, (bond, angle, dihedral), strict=True) if value}
    from dfmp2.io.point_charges import read_point_charges

    field = read_point_charges(point_charges, point_charge_units)
    scan = _make_scan(
        *(molecule, field, given, chosen, moving, chain), units=units, charge=charge, multiplicity=multiplicity
    )
    target = Path(display.output or f"{scan.molecules[0].name}.scan.h5")
    table, curve = Path(csv_file or target.with_suffix(".csv")), Path(plot_file or target.with_suffix(".svg"))
    replaced = display.overwrite or display.resume
    beside = {"--csv": table, "--plot": curve}
    _require_places(target, beside, molecule)

    def compute(keeper: Keeper, console: Console) -> Study:
        from dfmp2.io.start_orbitals import read_start_orbitals
        from dfmp2.studies.scan import scan_energies

        start = None if chosen.scf_from is None else read_start_orbitals(chosen.scf_from)
        return scan_energies(scan, start=start, keeper=keeper, listener=console, command=command_line())

    def finish(study: Study) -> str:
        from dfmp2.io.files import write_atomically
        from dfmp2.io.scan_svg import scan_svg
        from dfmp2.io.study_report import to_csv
        from dfmp2.io.text_plot import figure

        write_atomically(table, to_csv(study).encode(), overwrite=replaced)
        write_atomically(curve, scan_svg(study).encode(), overwrite=replaced)
        return figure(study)

    def ending(study: Study) -> str:
        failed = study.settings["failed"]
        said = f"{failed} of {len(scan.values)} points FAILED" if failed else f"{len(scan.values)} points"
        place = study.values.get("minimum_quartic") or study.values.get("minimum_parabola")
        at = "" if place is None else f", minimum at {place.value:.6g} {place.units}"
        return f"dfmp2 finished: {said}{at}; {table}, {curve}"

    read = (molecule, *(path for path in (chosen.scf_from, point_charges) if path is not None))
    study = run_study(compute, target, display, read, beside=beside, finish=finish, ending=ending)
    if study.settings["failed"]:
        raise SomeFailed(
            f"{study.settings['failed']} of {len(scan.values)} points failed (listed in the notes); the others are in "
            f"{target}, and the same command with --resume tries the failed ones again"
        )


def _make_scan(
    molecule: str,
    field: Any,
    given: dict[str, tuple[str, str]],
    options: Options,
    moving: str | None,
    chained: bool,
    *,
    units: str,
    charge: int | None,
    multiplicity: int | None,
) -> Scan:
    from dfmp2.io.xyz import read_xyz
    from dfmp2.io.xyz_frames import read_frames
    from dfmp2.studies.coordinate import make_coordinate
    from dfmp2.studies.scan import along, over_frames

    if len(given) > 1:
        raise InputError(f"--{' and --'.join(given)}: one coordinate at a time: choose one")
    if not given:
        if moving is not None:
            raise InputError("--moving belongs to --bond, --angle or --dihedral: name one of them")
        frames = read_frames(molecule, units=units, charge=charge, multiplicity=multiplicity)
        return over_frames([frame.in_field(field) for frame in frames], options, chained=chained)
    ((kind, (atoms, values)),) = given.items()
    whole = read_xyz(molecule, units=units, charge=charge, multiplicity=multiplicity).molecule.in_field(field)
    return along(
        whole, make_coordinate(kind, atoms, values, whole, units=units, moving=moving), options, chained=chained
    )


def _require_places(target: Path, beside: dict[str, Path], molecule: str) -> None:
    """Refuse three files that are not three, or cannot be written, before anything is computed."""
    from dfmp2.io.files import require_writable

    if len({target.resolve(), *(path.resolve() for path in beside.values())}) < 3:
        named = " and ".join(f"{option} {path}" for option, path in beside.items())
        raise InputError(f"--output {target}, {named}: expected three different files")
    for option, path in beside.items():
        require_another(str(path), molecule, option=option)
        require_writable(path, overwrite=True, option=option)
