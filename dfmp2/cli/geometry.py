"""`dfmp2 optimize`, `irc` and `scan`: stationary points, paths between them, energies along
coordinates."""

from __future__ import annotations

from dataclasses import dataclass
from functools import partial
from pathlib import Path
from typing import TYPE_CHECKING

import click

from dfmp2.cli.help import AnnouncedCommand
from dfmp2.cli.options import Display, Given, as_one, one_molecule
from dfmp2.cli.run import require_distinct
from dfmp2.cli.studies import (
    WORKERS,
    CurveFiles,
    LevelOptions,
    among_workers,
    convergence_option,
    curve_contents,
    curve_files,
    level_options,
    max_steps_option,
    run_study,
    start_workers,
    study_options,
)
from dfmp2.errors import InputError, Option, SomeFailed
from dfmp2.molecule.text import read_text
from dfmp2.options import Options
from dfmp2.units import counted_text

if TYPE_CHECKING:
    from dfmp2.output.study import Study
    from dfmp2.studies.coordinate import Constraints
    from dfmp2.studies.frequencies import StoredHessian
    from dfmp2.studies.scan import Scan

START_HESSIAN = click.option(
    "--start-hessian",
    metavar="FILE.h5",
    help="File with a Hessian: of frequencies, or an earlier optimisation or path.",
)


@dataclass(frozen=True, slots=True)
class ConstraintOptions:
    """The constraints: the values of --freeze, --set and --constraints."""

    freeze: tuple[tuple[str, str], ...]
    fixed: tuple[tuple[str, str, str], ...]
    constraints: str | None

    def read(self, units: str) -> Constraints:
        """The constraints, including those in the file.

        Parameters
        ----------
        units : str
            Unit of the lengths of --set, "angstrom" or "bohr".
        """
        from dfmp2.studies.coordinate import Constraints

        text = ""
        if self.constraints is not None:
            expected = "a constraints file"
            too_large = f"more than 1 MB: expected {expected} of geomeTRIC"
            text = read_text(self.constraints, 10**6, too_large, expected)[1]
        return Constraints(self.freeze, self.fixed, text, units)


@dataclass(frozen=True, slots=True)
class GeometryFiles:
    """The geometry files that an optimisation writes beside its study."""

    xyz: str | None
    trajectory: str | None

    def targets(self, study: Path, molecule: str) -> tuple[Path, Path]:
        """The file of the last geometry, and that of all geometries.

        Parameters
        ----------
        study : Path
            The file of the study.
        molecule : str
            The input file, which is only overwritten if given explicitly.
        """
        last = study.with_suffix(".xyz")
        if molecule != "-" and last.resolve() == Path(molecule).resolve():
            last = study.with_suffix(".optimized.xyz")  # x.xyz --output x.h5
        if self.xyz is not None:
            last = Path(self.xyz)
        path = study.with_suffix(".trajectory.xyz")
        if self.trajectory is not None:
            path = Path(self.trajectory)
        return last, path


@dataclass(frozen=True, slots=True)
class SearchOptions:
    """Settings of a geometry search: the values of --convergence and related options."""

    convergence: str
    max_steps: int
    transition_state: bool
    verify: bool


@click.command("optimize", cls=AnnouncedCommand)
@click.option(
    "--freeze",
    nargs=2,
    multiple=True,
    metavar="KIND ATOMS",
    help="Keep bond I,J, angle I,J,K, dihedral I,J,K,L, or the positions xyz RANGES; may be "
    "repeated.",
)
@click.option(
    "--set",
    "fixed",
    nargs=3,
    multiple=True,
    metavar="KIND ATOMS VALUE",
    help="Bring a bond, angle or dihedral to a value, in the unit of the file or degrees; may be "
    "repeated.",
)
@click.option(
    "--constraints", metavar="FILE", help="Constraints in geomeTRIC's format ($freeze, $set)."
)
@convergence_option(
    "Criteria of geomeTRIC: GAU_LOOSE, GAU, GAU_TIGHT, GAU_VERYTIGHT, NWCHEM_LOOSE, TURBOMOLE or "
    "INTERFRAG_TIGHT."
)
@max_steps_option("Limit on the number of steps.")
@click.option("--transition-state", is_flag=True, help="Look for a first-order saddle point.")
@START_HESSIAN
@click.option(
    "--verify",
    is_flag=True,
    help="Hessian at the end; restart along imaginary modes.",
)
@click.option("--xyz", metavar="FILE", help="The last geometry.  [default: next to --output, .xyz]")
@click.option(
    "--trajectory",
    metavar="FILE",
    help="All geometries.  [default: next to --output]",
)
@level_options
@one_molecule()
@study_options
@as_one("constraints", ConstraintOptions)
@as_one("asked", SearchOptions)
@as_one("files", GeometryFiles)
def optimize_command(
    given: Given,
    display: Display,
    level: LevelOptions,
    constraints: ConstraintOptions,
    asked: SearchOptions,
    files: GeometryFiles,
    start_hessian: str | None,
) -> None:
    """Optimise the geometry of MOLECULE in internal coordinates (geomeTRIC).

    The result is a stationary point; --verify computes whether it is a minimum. If --max-steps are
    not enough (exit code 4), repeat the command with more.
    """
    chosen = level.of(given.chosen())
    read = given.read()
    from dfmp2.studies.geometric_search import Search
    from dfmp2.studies.optimize import optimize_geometry

    search = Search(
        constraints=constraints.read(given.state["units"]),
        convergence=asked.convergence,
        max_steps=asked.max_steps,
        transition_state=asked.transition_state,
        verify=asked.verify,
    )
    target = display.target(f"{read.molecule.name}.optimization.h5")
    last, path = files.targets(target, given.molecule)
    require_distinct(
        {
            "--constraints": constraints.constraints,
            "--start-hessian": start_hessian,
            "--output": target,
            "--xyz": last,
            "--trajectory": path,
            "--log": display.log,
        }
    )

    compute = partial(
        optimize_geometry, read.molecule, chosen, search, start_hessian=_read_hessian(start_hessian)
    )

    def contents(study: Study) -> list[bytes]:
        from dfmp2.output.export import xyz

        frames = [xyz(run) for run in study.path.values()]
        return [frames[-1], b"".join(frames)]

    def ending(study: Study) -> str:

        energy = study.values["optimized_total_energy"].value
        steps = study.settings["steps"]
        return (
            f"{_outcome(study)} after {counted_text(steps, 'step')}, E = {energy:.10f} Eh; "
            f"{last}, {path}"
        )

    beside = {Option("xyz"): last, Option("trajectory"): path}
    run_study(target, compute, ending, display, given.files, beside=beside, contents=contents)


def _outcome(study: Study) -> str:
    """The outcome of an optimisation, in two or three words."""
    point = str(study.settings["stationary_point"])
    if study.settings["imaginary_modes"] is None and not study.complete:
        return "not converged"
    return point


def _read_hessian(path: str | None) -> StoredHessian | None:
    """The Hessian in the file given by --start-hessian, or None."""
    from dfmp2.studies.frequencies import read_hessian

    return None if path is None else read_hessian(path)


@click.command("irc", cls=AnnouncedCommand)
@START_HESSIAN
@convergence_option("Convergence of the minima, as in dfmp2 optimize.")
@max_steps_option("Limit on the number of steps on each side.")
@curve_files("The profile", "The geometries")
@one_molecule()
@study_options
def irc_command(
    given: Given,
    display: Display,
    files: CurveFiles,
    start_hessian: str | None,
    convergence: str,
    max_steps: int,
) -> None:
    """Reaction path (IRC) from the transition state MOLECULE down both sides to the minima.

    MOLECULE is the geometry that dfmp2 optimize --transition-state has found. With its .h5 file, if
    --verify was given, or that of dfmp2 frequencies, as --start-hessian, the Hessian is not computed
    again.
    """
    chosen, read = given.chosen(), given.read()
    from dfmp2.studies.geometric_search import Search
    from dfmp2.studies.reaction_path import reaction_path

    search = Search(convergence=convergence, max_steps=max_steps)
    target = display.target(f"{read.molecule.name}.irc.h5")
    beside = files.targets(target, geometries=True)
    written = {option.of_shell: path for option, path in beside.items()}
    require_distinct(
        {
            "--start-hessian": start_hessian,
            "--output": target,
            **written,
            "--log": display.log,
        }
    )

    def ending(study: Study) -> str:

        written = ", ".join(map(str, beside.values()))
        points = counted_text(len(study.path), "point")
        if not study.complete:
            return f"{points}; {written}"
        there = study.values["barrier_forward_kj_per_mol"].value
        back = study.values["barrier_backward_kj_per_mol"].value
        return (
            f"{_ends_of(study)}, {points}, barrier {there:.2f} kJ/mol, back {back:.2f}; {written}"
        )

    compute = partial(reaction_path, read.molecule, chosen, search, _read_hessian(start_hessian))
    run_study(target, compute, ending, display, given.files, beside=beside, contents=curve_contents)


def _ends_of(study: Study) -> str:
    """The minima of a path as "A -> B", with the distinguishing bonds for isomers."""
    settings = study.settings
    ends = [settings["backward_minimum"], settings["forward_minimum"]]
    if ends[0] == ends[1]:
        bonds = [settings["backward_bonds"], settings["forward_bonds"]]
        if not any(bonds):
            return f"{ends[0]}, two conformers"
        ends = [
            f"{formula} with {' and '.join(own) or 'fewer bonds'}"
            for formula, own in zip(ends, bonds, strict=True)
        ]
    return " -> ".join(ends)


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
    if workers is not None and points.chain and not points.relaxed:
        raise InputError(
            "--workers compute points at the same time, and each starts from the one before: "
            "add --no-chain"
        )
    if workers is None and points.chain:
        workers = 1
    start_workers(workers, given.options["threads"])
    chosen = level.of(given.chosen())
    from dfmp2.studies.scan import scan_energies

    scan = points.read(given, chosen)
    if files.trajectory is not None and scan.relaxed is None:
        raise InputError("--trajectory holds relaxed geometries: leave it out, or add --relaxed")
    target = display.target(f"{scan.molecules[0].name}.scan.h5")
    beside = files.targets(target, geometries=scan.relaxed is not None)

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
        contents=curve_contents,
    )
    if study.settings["failed"]:
        raise SomeFailed(
            f"{study.settings['failed']} of {len(scan.values)} points failed, as the notes in "
            f"{target} list; the same command with --resume tries them again"
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
