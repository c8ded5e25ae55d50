"""`dfmp2 interaction`, `cbs`, `scan`, `optimize`, `irc` and `frequencies`: studies, several calculations
in one file."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from functools import partial
from pathlib import Path
from typing import TYPE_CHECKING, Any

import click

from dfmp2.cli import signals
from dfmp2.cli.help import AnnouncedCommand
from dfmp2.cli.options import (
    MOST_WORKERS,
    Display,
    FilesRead,
    Given,
    as_one,
    one_molecule,
    output_options,
    print_report,
    with_options,
)
from dfmp2.cli.run import command_line, logged, require_distinct
from dfmp2.errors import Dfmp2Error, InputError, SomeFailed
from dfmp2.errors.messages import Option
from dfmp2.molecule.text import printable
from dfmp2.options import CONVERGENCE

if TYPE_CHECKING:
    from dfmp2.options import Options
    from dfmp2.output.study import Study
    from dfmp2.studies.constraints import Constraints
    from dfmp2.studies.scan import Scan
    from dfmp2.studies.start_hessian import StartHessian

CSV_FILE = click.option(
    "--csv", "csv_file", metavar="FILE", help="The table.  [default: beside --output, .csv]"
)
study_options = output_options(
    "File with all runs",
    "STEM.KIND.h5",
    "Go on with a complete study, e.g. with more steps.",
)


START_HESSIAN = click.option(
    "--start-hessian",
    metavar="FILE.h5",
    help="Of frequencies, or of an optimisation or path before.",
)


def run_study(
    target: Path,
    compute: Callable[..., Study],
    ending: Callable[[Study], str],
    display: Display,
    given: Given | FilesRead,
    *,
    beside: Mapping[Option, Path] | None = None,
    contents: Callable[[Study], Sequence[bytes]] = lambda _: (),
) -> Study:
    """Check the files, compute, print; the study.

    Parameters
    ----------
    target : its file
    compute : the study itself, called with keeper, listener and command
    ending : says what came out
    given : names the files that are read, which must not be those that are written
    beside : files of what `contents` makes, in its order, by the option that names them

    Raises
    ------
    Unfinished : what there is has been written and printed
    """
    from dfmp2.host.files import OUTPUT, require_writable, write_atomically
    from dfmp2.output.document import counted_text
    from dfmp2.output.json import study_json
    from dfmp2.output.text import study_report
    from dfmp2.studies.runs import Keeper, Unfinished

    beside = beside or {}
    written = {OUTPUT: target, **beside}
    named = {option.of_shell: path for option, path in written.items()}
    require_distinct({**given.files, **named, "--log": display.log})
    for option, path in written.items():
        require_writable(
            path, overwrite=True, expected_bytes=10**6, option=option
        )  # files that are there: `Keeper`
    left = f"finished runs are in {target}"

    with logged(display, several=True) as console:
        keeper = Keeper(
            target,
            overwrite=display.overwrite,
            resume=display.resume,
            beside=beside,
            undisturbed=partial(signals.deferred, left),
            finishing=signals.finish_first,
        )
        if keeper.written:
            signals.leave(left)
        short: Unfinished | None = None
        try:
            try:
                study = compute(keeper=keeper, listener=console, command=command_line())
            except Unfinished as error:
                short, study = error, error.study
            signals.commit()
            for path, content in zip(beside.values(), contents(study), strict=True):
                write_atomically(path, content, overwrite=keeper.replaces)
        except Dfmp2Error as error:
            if not keeper.written or isinstance(error, InputError):
                raise
            raise type(error)(error.message, f" ({left}; the same command goes on)") from error
        if short is None:
            state = "finished"
        else:
            state = "NOT FINISHED"
        last = f"dfmp2 {state}: {ending(study)} -> {printable(str(target))}"
        warnings = len(study.all_warnings)
        if warnings:
            last += f"; {counted_text(warnings, 'warning')}"
        print_report(
            display,
            console,
            lambda: study_report(study),
            last,
            lambda: study_json(study, str(target)),
            brief=lambda: study_report(study, brief=True),
        )
        if short is not None and short.goes_on:
            raise type(short)(f"{short}: {left}, and the same command goes on")
        if short is not None:
            raise type(short)(f"{short} ({left})")
    return study


SCF_FORMULAS = ["largest", "exponential", "karton-martin", "exp-sqrt", "power", "neese-valeev"]
CORRELATION_FORMULAS = ["helgaker", "truhlar", "neese-valeev"]


@dataclass(frozen=True, slots=True)
class LevelOptions:
    """What makes a level of several runs of the options of one: the values of --scf-formula,
    --correlation-formula, --delta and --delta-program."""

    scf_formula: str | None
    correlation_formula: str | None
    delta: str | None
    delta_program: str | None

    def of(self, chosen: Options) -> Options:
        """The options of a study, from those of one run."""
        from dfmp2.studies.composite import at_level

        return at_level(
            chosen,
            scf_formula=self.scf_formula,
            correlation_formula=self.correlation_formula,
            delta=self.delta,
            delta_program=self.delta_program,
        )


def level_options(command: Callable[..., Any]) -> Callable[..., Any]:
    """Give a command the options of a composite level, which it gets as one `level`."""
    options = (
        click.option(
            "--scf-formula",
            type=click.Choice(SCF_FORMULAS),
            help="Hartree-Fock limit of a pair of basis sets such as --basis 'cc-pv[tq]z': energy "
            "in the larger one, exp(-1.63 X), (X+1) exp(-9 sqrt X), exp(-6.3 sqrt X), X^-3.4, "
            "exp(-alpha sqrt X) with alpha of the family.  [default: largest]",
        ),
        click.option(
            "--correlation-formula",
            type=click.Choice(CORRELATION_FORMULAS),
            help="Correlation limit of a pair of basis sets: X^-3, X^-2.2, X^-beta of the family.  "
            "[default: helgaker; neese-valeev for def2]",
        ),
        click.option(
            "--delta",
            metavar="LEVEL",
            help="Add CCSD(T) - MP2: 'ccsd(t)/cc-pvdz'.",
        ),
        click.option(
            "--delta-program",
            type=click.Choice(["pyscf", "psi4"]),
            help="CCSD(T) with fitted integrals, or by QCEngine.  [default: pyscf]",
        ),
    )
    return with_options(options, as_one("level", LevelOptions)(command))


@click.command("interaction", cls=AnnouncedCommand)
@click.option(
    "--fragments",
    required=True,
    metavar="RANGES|auto",
    help="Atoms of each fragment, from 1: 1-5,6-10 is two fragments, 1-3+7-9,4-6 joins two ranges "
    "in the first; auto: by bonds.",
)
@click.option("--charges", metavar="Q,Q", help="Charge of each fragment.  [default: all 0]")
@click.option("--multiplicities", metavar="M,M", help="2S+1 of each fragment.  [default: all 1]")
@level_options
@one_molecule()
@study_options
def interaction_command(
    given: Given,
    display: Display,
    level: LevelOptions,
    fragments: str,
    charges: str | None,
    multiplicities: str | None,
) -> None:
    """Interaction energy of the fragments of MOLECULE, a file as of dfmp2 run.

    Runs the complex, every fragment in the basis of the complex (the other atoms are ghosts), and
    every fragment in its own basis. All runs go into one file. --charge and --multiplicity are
    those of the complex. --basis may be a pair such as 'aug-cc-pv[tq]z', whose limit is taken;
    --delta 'ccsd(t)/cc-pvdz' adds CCSD(T) - MP2 (see --help-all).
    """
    chosen = level.of(given.chosen())
    from dfmp2.studies.interaction import interaction_energy

    def ending(study: Study) -> str:
        corrected, kilojoules = (
            study.values[f"cp_corrected_interaction_energy{unit}"].value
            for unit in ("", "_kj_per_mol")
        )
        return (
            f"counterpoise-corrected interaction energy = {corrected:.10f} Eh = "
            f"{kilojoules:.4f} kJ/mol"
        )

    whole = given.read().molecule
    compute = partial(
        interaction_energy, whole, fragments, chosen, charges=charges, multiplicities=multiplicities
    )
    run_study(display.target(f"{whole.name}.interaction.h5"), compute, ending, display, given)


@click.command("cbs", cls=AnnouncedCommand)
@one_molecule()
@level_options
@study_options
def cbs_command(given: Given, display: Display, level: LevelOptions) -> None:
    """Energy of MOLECULE at the basis set limit, from the two sets that --basis names: --basis
    'cc-pv[tq]z'.

    All runs go into one file. Spin components are extrapolated like the correlation energy;
    --scf-formula and --correlation-formula name other formulas. --delta 'ccsd(t)/cc-pvdz' adds
    CCSD(T) - MP2; then the basis may also be a single one (see --help-all).
    """
    chosen = level.of(given.chosen())
    from dfmp2.studies.cbs import COMPOSITE, basis_set_limit

    def ending(study: Study) -> str:
        composite = study.values.get(COMPOSITE)
        if composite is not None:
            correction = study.values["delta_correction"].value
            return (
                f"E({chosen.correlation.title} + delta CCSD(T)) = {composite.value:.10f} Eh, delta "
                f"= {correction:.10f} Eh"
            )
        total, correlation = (
            study.values[f"cbs_{name}_energy"].value for name in ("total", "correlation")
        )
        return (
            f"E({chosen.correlation.title}, limit) = {total:.10f} Eh, E(corr, limit) = "
            f"{correlation:.10f} Eh"
        )

    whole = given.read().molecule
    compute = partial(basis_set_limit, whole, chosen)
    run_study(display.target(f"{whole.name}.cbs.h5"), compute, ending, display, given)


KINDS = ("bond", "angle", "dihedral")


@dataclass(frozen=True, slots=True)
class PointOptions:
    """What the points of a scan are: the values of --bond, --angle, --dihedral and how they are
    gone along."""

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
        from dfmp2.studies.coordinate import make_coordinate
        from dfmp2.studies.geometric_search import MINIMUM
        from dfmp2.studies.scan import along, over_frames

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
                    "--relaxed holds a coordinate: name one with --bond, --angle or --dihedral"
                )
            field = given.field()
            frames = [one.in_field(field) for one in read_frames(given.molecule, **given.state)]
            return over_frames(frames, options, chained=self.chain)
        if self.moving is not None and len(named) > 1:
            raise InputError(
                "--moving belongs to one coordinate: of two, the sides follow from the bonds"
            )
        whole = given.read().molecule
        coordinates = [
            make_coordinate(
                kind,
                atoms,
                values,
                whole,
                units=given.state["units"],
                moving=self.moving,
                rigid=not self.relaxed,
            )
            for kind, atoms, values in named
        ]
        convergence = None
        if self.relaxed:
            convergence = self.convergence or MINIMUM.convergence
        return along(whole, coordinates, options, chained=self.chain, convergence=convergence)


@dataclass(frozen=True, slots=True)
class ScanFiles:
    """The files that a scan writes beside its study."""

    csv_file: str | None
    plot_file: str | None
    path_file: str | None

    def targets(self, study: Path, *, relaxed: bool) -> dict[Option, Path]:
        """Each file, by the option that names it.

        Parameters
        ----------
        study : Path
            The file of the study.
        relaxed : bool
            Whether there are relaxed geometries to write.
        """
        targets = {
            Option("csv"): Path(self.csv_file or study.with_suffix(".csv")),
            Option("plot"): Path(self.plot_file or study.with_suffix(".svg")),
        }
        if relaxed:
            path = self.path_file or study.with_suffix(".trajectory.xyz")
            targets[Option("trajectory")] = Path(path)
        return targets


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
@click.option(
    "--convergence",
    type=click.Choice(CONVERGENCE, case_sensitive=False),
    metavar="NAME",
    help="Of --relaxed, as of dfmp2 optimize.  [default: GAU]",
)
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
@click.option(
    "--workers",
    type=click.IntRange(1, MOST_WORKERS),
    metavar="N",
    help="Processes that share the points.",
)
@CSV_FILE
@click.option(
    "--plot",
    "plot_file",
    metavar="FILE",
    help="Curve or map, SVG.  [default: beside --output, .svg]",
)
@click.option(
    "--trajectory",
    "path_file",
    metavar="FILE",
    help="Relaxed geometries.  [default: beside --output]",
)
@level_options
@one_molecule()
@study_options
@as_one("points", PointOptions)
@as_one("files", ScanFiles)
def scan_command(
    given: Given,
    display: Display,
    level: LevelOptions,
    points: PointOptions,
    files: ScanFiles,
    workers: int | None,
) -> None:
    """Energies of MOLECULE along a coordinate (--bond 1,2 0.8:1.2:9: atoms from 1, nine points,
    both ends included) or over two, a map; rigid or relaxed.

    Without a coordinate MOLECULE holds several geometries. The exit code is 9 where points failed.
    """
    chosen = level.of(given.chosen())
    from dfmp2.studies.scan import scan_energies

    scan = points.read(given, chosen)
    if workers is not None and scan.chained and scan.relaxed is None:
        raise InputError(
            "--workers compute points at the same time, and each starts from the one before: "
            "add --no-chain"
        )
    if files.path_file is not None and scan.relaxed is None:
        raise InputError("--trajectory holds relaxed geometries: leave it out, or add --relaxed")
    target = display.target(f"{scan.molecules[0].name}.scan.h5")
    beside = files.targets(target, relaxed=scan.relaxed is not None)

    def contents(study: Study) -> list[bytes]:
        from dfmp2.output.export import xyz
        from dfmp2.output.html.svg import scan_curve
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

    compute = partial(scan_energies, scan)
    if workers is not None:
        from dfmp2.execution.parts import steps

        compute = partial(compute, elsewhere=partial(steps, workers))
    study = run_study(target, compute, ending, display, given, beside=beside, contents=contents)
    if study.settings["failed"]:
        raise SomeFailed(
            f"{study.settings['failed']} of {len(scan.values)} points failed (listed in the "
            f"notes); the others are in {target}, and the same command with --resume tries the "
            "failed ones again"
        )


def _lowest(study: Study) -> str:
    """Where the minimum of a scan is, or the lowest point of a map."""
    place = study.values.get("minimum_quartic") or study.values.get("minimum_parabola")
    if place is not None:
        return f", minimum at {place.value:.6g} {place.units}"
    if "lowest_first" in study.values:
        places = [study.values[name] for name in ("lowest_first", "lowest_second")]
        return ", lowest at " + ", ".join(f"{one.value:.6g} {one.units}" for one in places)
    return ""


def _extrema(study: Study) -> str:
    """How many minima and maxima a scan has between its points, where there is more than one
    minimum."""
    from dfmp2.output.document import counted_text

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


@dataclass(frozen=True, slots=True)
class ConstraintOptions:
    """What stays as it is: the values of --freeze, --set and --constraints."""

    freeze: tuple[tuple[str, str], ...]
    fixed: tuple[tuple[str, str, str], ...]
    constraints: str | None

    def read(self, units: str) -> Constraints:
        """The constraints, those of the file among them.

        Parameters
        ----------
        units : str
            Of the lengths of --set, "angstrom" or "bohr".
        """
        from dfmp2.molecule.text import read_text
        from dfmp2.studies.constraints import Constraints

        text = ""
        if self.constraints is not None:
            text = read_text(self.constraints, 10**6, "more than 1 MB", "a constraints file")[1]
        return Constraints(self.freeze, self.fixed, text, units)


@dataclass(frozen=True, slots=True)
class GeometryFiles:
    """The files of geometries that an optimisation writes beside its study."""

    xyz_file: str | None
    path_file: str | None

    def targets(self, study: Path, molecule: str) -> tuple[Path, Path]:
        """The file of the last geometry and that of all of them.

        Parameters
        ----------
        study : Path
            The file of the study.
        molecule : str
            The file that was read, which is not overwritten without being named.
        """
        last = study.with_suffix(".xyz")
        if molecule != "-" and last.resolve() == Path(molecule).resolve():
            last = study.with_suffix(".optimized.xyz")  # x.xyz --output x.h5
        if self.xyz_file is not None:
            last = Path(self.xyz_file)
        path = study.with_suffix(".trajectory.xyz")
        if self.path_file is not None:
            path = Path(self.path_file)
        return last, path


@dataclass(frozen=True, slots=True)
class SearchOptions:
    """How a geometry is looked for: the values of --convergence and what stands beside it."""

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
@click.option(
    "--convergence",
    type=click.Choice(
        CONVERGENCE,
        case_sensitive=False,
    ),
    default="GAU",
    show_default=True,
    metavar="NAME",
    help="Of geomeTRIC: GAU_LOOSE, GAU, GAU_TIGHT, GAU_VERYTIGHT, NWCHEM_LOOSE, TURBOMOLE or "
    "INTERFRAG_TIGHT.",
)
@click.option(
    "--max-steps", type=int, metavar="N", default=100, show_default=True, help="Limit on the steps."
)
@click.option("--transition-state", is_flag=True, help="Look for a saddle point of first order.")
@START_HESSIAN
@click.option(
    "--verify",
    is_flag=True,
    help="Hessian at the end; restart along imaginary modes.",
)
@click.option(
    "--xyz", "xyz_file", metavar="FILE", help="The last geometry.  [default: beside --output, .xyz]"
)
@click.option(
    "--trajectory",
    "path_file",
    metavar="FILE",
    help="All geometries.  [default: beside --output]",
)
@level_options
@one_molecule()
@study_options
@as_one("constraints", ConstraintOptions)
@as_one("way", SearchOptions)
@as_one("files", GeometryFiles)
def optimize_command(
    given: Given,
    display: Display,
    level: LevelOptions,
    constraints: ConstraintOptions,
    way: SearchOptions,
    files: GeometryFiles,
    start_hessian: str | None,
) -> None:
    """Optimise the geometry of MOLECULE in internal coordinates (geomeTRIC).

    The end is a stationary point; --verify computes whether it is a minimum.
    Where --max-steps are not enough (exit code 4), the same command with more goes on.
    """
    chosen = level.of(given.chosen())
    read = given.read()
    from dfmp2.studies.geometric_search import Search
    from dfmp2.studies.optimize import optimize_geometry

    search = Search(
        constraints=constraints.read(given.state["units"]),
        convergence=way.convergence,
        max_steps=way.max_steps,
        transition_state=way.transition_state,
        verify=way.verify,
    )
    target = display.target(f"{read.molecule.name}.optimization.h5")
    last, path = files.targets(target, given.molecule)
    require_distinct(
        {"--constraints": constraints.constraints, "--xyz": last, "--trajectory": path}
    )

    stored = _read_hessian(start_hessian)
    compute = partial(optimize_geometry, read.molecule, chosen, search, start_hessian=stored)

    def contents(study: Study) -> list[bytes]:
        from dfmp2.output.export import xyz

        frames = [xyz(run) for run in study.path.values()]
        return [frames[-1], b"".join(frames)]

    def ending(study: Study) -> str:
        from dfmp2.output.document import counted_text

        energy, steps = study.values["optimized_total_energy"].value, study.settings["steps"]
        return (
            f"{_found(study)} after {counted_text(steps, 'step')}, E = {energy:.10f} Eh; "
            f"{last}, {path}"
        )

    beside = {Option("xyz"): last, Option("trajectory"): path}
    run_study(target, compute, ending, display, given, beside=beside, contents=contents)


def _found(study: Study) -> str:
    """What an optimisation has come to, in two or three words."""
    point = str(study.settings["stationary_point"])
    if study.settings["imaginary_modes"] is None and not study.complete:
        return "not converged"
    return point


def _read_hessian(path: str | None) -> StartHessian | None:
    """The Hessian in the file that --start-hessian names, None without one."""
    from dfmp2.studies.start_hessian import read_start_hessian

    if path is None:
        return None
    return read_start_hessian(path)


@click.command("irc", cls=AnnouncedCommand)
@START_HESSIAN
@click.option(
    "--convergence",
    type=click.Choice(CONVERGENCE, case_sensitive=False),
    default="GAU",
    show_default=True,
    metavar="NAME",
    help="Of the minima, as of dfmp2 optimize.",
)
@click.option(
    "--max-steps", type=int, metavar="N", default=100, show_default=True, help="On each side."
)
@CSV_FILE
@click.option(
    "--plot",
    "plot_file",
    metavar="FILE",
    help="The profile, SVG.  [default: beside --output, .svg]",
)
@click.option(
    "--trajectory",
    "path_file",
    metavar="FILE",
    help="The geometries.  [default: beside --output, .trajectory.xyz]",
)
@one_molecule()
@study_options
@as_one("files", ScanFiles)
def irc_command(
    given: Given,
    display: Display,
    files: ScanFiles,
    start_hessian: str | None,
    convergence: str,
    max_steps: int,
) -> None:
    """Reaction path (IRC) from the transition state MOLECULE down both sides to the minima.

    MOLECULE is what dfmp2 optimize --transition-state has found; with its .h5 file, or that of
    dfmp2 frequencies, as --start-hessian no Hessian is computed again.
    """
    chosen, read = given.chosen(), given.read()
    from dfmp2.studies.geometric_search import Search
    from dfmp2.studies.reaction_path import reaction_path

    search = Search(convergence=convergence, max_steps=max_steps)
    target = display.target(f"{read.molecule.name}.irc.h5")
    beside = files.targets(target, relaxed=True)
    require_distinct({"--start-hessian": start_hessian, "--output": target})

    def contents(study: Study) -> list[bytes]:
        from dfmp2.output.export import xyz
        from dfmp2.output.html.svg import of_its_own, path_drawing
        from dfmp2.output.json import study_csv

        frames = [xyz(run) for run in study.path.values()]
        drawn = of_its_own(path_drawing(study))
        return [study_csv(study).encode(), drawn.encode(), b"".join(frames)]

    def ending(study: Study) -> str:
        from dfmp2.output.document import counted_text

        written = ", ".join(map(str, beside.values()))
        points = counted_text(len(study.path), "point")
        if not study.complete:
            return f"{points}; {written}"
        there, back = (
            study.values[f"barrier_{name}_kj_per_mol"].value for name in ("forward", "backward")
        )
        ends = f"{study.settings['backward_minimum']} -> {study.settings['forward_minimum']}"
        return f"{ends}, {points}, barrier {there:.2f} kJ/mol, back {back:.2f}; {written}"

    compute = partial(reaction_path, read.molecule, chosen, search, _read_hessian(start_hessian))
    run_study(target, compute, ending, display, given, beside=beside, contents=contents)


@dataclass(frozen=True, slots=True)
class IdealGasOptions:
    """The ideal gas of the thermochemistry: K, Pa, and rotations onto itself."""

    temperature: float
    pressure: float
    symmetry_number: int | None


@click.command("frequencies", cls=AnnouncedCommand)
@click.option(
    "--temperature", type=float, default=298.15, show_default=True, metavar="K", help="Of the gas."
)
@click.option(
    "--pressure", type=float, default=101325.0, show_default=True, metavar="PA", help="Of the gas."
)
@click.option(
    "--symmetry-number", type=int, metavar="N", help="Rotations onto itself.  [default: counted]"
)
@click.option(
    "--displacement",
    type=float,
    default=0.005,
    show_default=True,
    metavar="BOHR",
    help="Of each coordinate.",
)
@click.option(
    "--allow-gradient", is_flag=True, help="Go on at a geometry that is no stationary point."
)
@click.option(
    "--workers",
    type=click.IntRange(1, MOST_WORKERS),
    metavar="N",
    help="Processes that share the displaced runs.",
)
@click.option(
    "--molden",
    "molden_file",
    metavar="FILE",
    help="Modes for viewers.  [default: beside --output, .molden]",
)
@one_molecule()
@study_options
@as_one("gas", IdealGasOptions)
def frequencies_command(
    given: Given,
    display: Display,
    gas: IdealGasOptions,
    displacement: float,
    allow_gradient: bool,
    workers: int | None,
    molden_file: str | None,
) -> None:
    """Harmonic frequencies of MOLECULE, a file as of dfmp2 run, at its stationary point.

    6 N + 1 gradients for N atoms: central differences give the Hessian, and its modes the infrared
    intensities and the thermochemistry of an ideal gas. All runs go into one file. With --workers,
    --threads are those of each and --memory is shared.
    """
    chosen, read = given.chosen(), given.read()
    from dfmp2.studies.frequencies import Conditions, harmonic_frequencies

    conditions = Conditions(
        temperature=gas.temperature,
        pressure=gas.pressure,
        symmetry=gas.symmetry_number,
        displacement=displacement,
        allow_gradient=allow_gradient,
    )
    target = display.target(f"{read.molecule.name}.frequencies.h5")
    modes = Path(molden_file or target.with_suffix(".molden"))

    compute = partial(harmonic_frequencies, read.molecule, chosen, conditions)
    if workers is not None:
        from dfmp2.execution.parts import steps

        compute = partial(compute, elsewhere=partial(steps, workers))

    def contents(study: Study) -> list[bytes]:
        from dfmp2.output.export.molden import normal_modes

        return [normal_modes(study)]

    def ending(study: Study) -> str:
        from dfmp2.output.document import counted_text

        found = study.table["wavenumber"].values
        imaginary = sum(value < 0 for value in found)
        if imaginary:
            said = f", {imaginary} IMAGINARY"
        else:
            said = ""
        ends = " to ".join(dict.fromkeys(f"{value:.1f}" for value in (found[0], found[-1])))
        return f"{counted_text(len(found), 'vibration')}{said}, {ends} cm^-1; {modes}"

    files = {Option("molden"): modes}
    run_study(target, compute, ending, display, given, beside=files, contents=contents)
