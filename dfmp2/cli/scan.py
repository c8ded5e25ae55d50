"""`dfmp2 scan`: energies along coordinates, or of the frames of a file."""

from __future__ import annotations

from dataclasses import dataclass
from functools import partial
from typing import TYPE_CHECKING

import click

from dfmp2.cli.help import AnnouncedCommand
from dfmp2.cli.options import Display, Given, as_one, one_molecule
from dfmp2.cli.studies import (
    WORKERS,
    CurveFiles,
    LevelOptions,
    among_workers,
    convergence_option,
    curve_files,
    level_options,
    run_study,
    start_workers,
    study_options,
)
from dfmp2.errors import InputError, SomeFailed

if TYPE_CHECKING:
    from dfmp2.options import Options
    from dfmp2.output.study import Study
    from dfmp2.studies.scan import Scan

KINDS = ("bond", "angle", "dihedral")


@dataclass(frozen=True, slots=True)
class PointOptions:
    """The points of a scan: the values of --bond, --angle, --dihedral and related options."""

    bond: tuple[tuple[str, str], ...]
    angle: tuple[tuple[str, str], ...]
    dihedral: tuple[tuple[str, str], ...]
    relaxed: bool
    convergence: str | None
    moving: str | None
    chain: bool

    def read(self, given: Given, options: Options) -> Scan:
        """The scan of the molecule, or of the frames of its file."""
        from dfmp2.molecule.files import read_frames
        from dfmp2.studies.geometric_search import MINIMUM
        from dfmp2.studies.scan import along_written, over_frames

        named = [(kind, *one) for kind in KINDS for one in getattr(self, kind)]
        if not self.relaxed and self.convergence is not None:
            raise InputError("--convergence belongs to --relaxed: add it, or leave this out")
        if not named:
            if self.moving is not None:
                raise InputError(
                    "--moving belongs to --bond, --angle or --dihedral: name one of them"
                )
            if self.relaxed:
                raise InputError(
                    "--relaxed fixes a coordinate: name one with --bond, --angle or --dihedral"
                )
            field = given.field()
            frames = [one.in_field(field) for one in read_frames(given.molecule, **given.state)]
            return over_frames(frames, options, chained=self.chain)
        convergence = None
        if self.relaxed:
            convergence = self.convergence or MINIMUM.convergence
        return along_written(
            given.read().molecule,
            named,
            options,
            units=given.state["units"],
            moving=self.moving,
            chained=self.chain,
            convergence=convergence,
        )


@click.command("scan", cls=AnnouncedCommand)
@click.option(
    "--bond",
    nargs=2,
    multiple=True,
    metavar="I,J FROM:TO:POINTS",
    help="Bond length, in the unit of the file.",
)
@click.option(
    "--angle",
    nargs=2,
    multiple=True,
    metavar="I,J,K FROM:TO:POINTS",
    help="Angle at J, degrees.",
)
@click.option(
    "--dihedral",
    nargs=2,
    multiple=True,
    metavar="I,J,K,L FROM:TO:POINTS",
    help="Dihedral angle about J-K, degrees.",
)
@click.option("--relaxed", is_flag=True, help="Optimise everything else at each point.")
@convergence_option("For --relaxed, as in dfmp2 optimize.  [default: GAU]", default=None)
@click.option(
    "--moving",
    metavar="RANGES",
    help="Atoms that move, e.g. 4-6+8.  [default: the side of the last atom]",
)
@click.option(
    "--chain/--no-chain",
    default=True,
    show_default=True,
    help="Start every SCF from the orbitals of the point before.",
)
@WORKERS
@curve_files("Curve or map", "Relaxed geometries")
@level_options
@one_molecule()
@study_options
@as_one("points", PointOptions)
def scan_command(
    given: Given,
    display: Display,
    level: LevelOptions,
    points: PointOptions,
    files: CurveFiles,
    workers: int | None,
) -> None:
    """Energies of MOLECULE along a coordinate (--bond 1,2 0.8:1.2:9: atoms from 1, nine points,
    both ends included) or over two, a map; rigid or relaxed.

    Without a coordinate MOLECULE holds several geometries. The exit code is 9 if points failed.
    """
    if workers is None and points.relaxed:
        workers = 1
    start_workers(workers, given.options["threads"])
    chosen = level.of(given.chosen())
    from dfmp2.studies.scan import scan_energies

    scan = points.read(given, chosen)
    if files.trajectory is not None and scan.relaxed is None:
        raise InputError("--trajectory holds relaxed geometries: leave it out, or add --relaxed")
    target = display.target(f"{scan.molecules[0].name}.scan.h5")
    beside = files.targets(target, geometries=scan.relaxed is not None)

    def contents(study: Study) -> list[bytes]:
        from dfmp2.output.drawings.studies import scan_curve
        from dfmp2.output.export import xyz
        from dfmp2.output.json import study_csv

        written = [study_csv(study).encode(), scan_curve(study).encode()]
        if scan.relaxed is not None:
            written.append(b"".join(xyz(run) for run in study.path.values()))
        return written

    def ending(study: Study) -> str:
        failed = study.settings["failed"]
        if failed:
            said = f"{failed} of {len(scan.values)} points FAILED"
        else:
            said = f"{len(scan.values)} points"
        return f"{said}{_lowest(study)}{_extrema(study)}; {', '.join(map(str, beside.values()))}"

    study = run_study(
        target,
        among_workers(partial(scan_energies, scan), workers),
        ending,
        display,
        given.files,
        beside=beside,
        contents=contents,
    )
    if study.settings["failed"]:
        raise SomeFailed(
            f"{study.settings['failed']} of {len(scan.values)} points failed (listed in the "
            f"notes); the others are in {target}, and the same command with --resume tries the "
            "failed ones again"
        )


def _lowest(study: Study) -> str:
    """The location of the minimum of a scan, or of the lowest point of a map."""
    place = study.values.get("minimum_quartic") or study.values.get("minimum_parabola")
    if place is not None:
        return f", minimum at {place.value:.6g} {place.units}"
    if "lowest_first" in study.values:
        places = [study.values[name] for name in ("lowest_first", "lowest_second")]
        return ", lowest at " + ", ".join(f"{one.value:.6g} {one.units}" for one in places)
    return ""


def _extrema(study: Study) -> str:
    """The numbers of minima and maxima between the points of a scan, if there is more than one
    minimum."""
    from dfmp2.units import counted_text

    bends = study.arrays.get("extrema_curvature")
    if bends is None:
        return ""
    minima = int((bends.value > 0).sum())
    maxima = len(bends.value) - minima
    if (minima, maxima) == (1, 0):
        return ""
    return (
        f", {counted_text(minima, 'minimum', 'minima')}, "
        f"{counted_text(maxima, 'maximum', 'maxima')}"
    )
