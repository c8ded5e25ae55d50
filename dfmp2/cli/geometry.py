"""`dfmp2 optimize` and `irc`: stationary points, and the paths between them."""

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
    CurveFiles,
    LevelOptions,
    convergence_option,
    curve_files,
    level_options,
    max_steps_option,
    run_study,
    study_options,
)
from dfmp2.errors import Option
from dfmp2.molecule.text import read_text
from dfmp2.units import counted_text

if TYPE_CHECKING:
    from dfmp2.output.study import Study
    from dfmp2.studies.coordinate import Constraints
    from dfmp2.studies.frequencies import StoredHessian

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
            text = read_text(self.constraints, 10**6, "more than 1 MB", "a constraints file")[1]
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
        {"--constraints": constraints.constraints, "--xyz": last, "--trajectory": path}
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
    require_distinct({"--start-hessian": start_hessian, "--output": target})

    def contents(study: Study) -> list[bytes]:
        from dfmp2.output.drawings.elements import of_its_own
        from dfmp2.output.drawings.studies import path_drawing
        from dfmp2.output.export import xyz
        from dfmp2.output.json import study_csv

        frames = [xyz(run) for run in study.path.values()]
        drawn = of_its_own(path_drawing(study))
        return [study_csv(study).encode(), drawn.encode(), b"".join(frames)]

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
    run_study(target, compute, ending, display, given.files, beside=beside, contents=contents)


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
