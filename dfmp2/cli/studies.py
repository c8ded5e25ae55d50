"""`dfmp2 interaction`, `cbs`, `scan`, `optimize` and `frequencies`: studies, several calculations
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
    Given,
    as_one,
    one_molecule,
    output_options,
    print_report,
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

study_options = output_options(
    "File with all runs",
    "STEM.KIND.h5",
    "Go on with a complete study, e.g. with more steps.",
)


def run_study(
    target: Path,
    compute: Callable[..., Study],
    ending: Callable[[Study], str],
    display: Display,
    given: Given,
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

    with logged(display) as console:
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
            display, console, study_report(study), last, lambda: study_json(study, str(target))
        )
        if short is not None and short.goes_on:
            raise type(short)(f"{short}: {left}, and the same command goes on")
        if short is not None:
            raise type(short)(f"{short} ({left})")
    return study


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
@one_molecule()
@study_options
def interaction_command(
    given: Given, display: Display, fragments: str, charges: str | None, multiplicities: str | None
) -> None:
    """Interaction energy of the fragments of MOLECULE, a file as of dfmp2 run.

    Runs the complex, every fragment in the basis of the complex (the other atoms are ghosts), and
    every fragment in its own basis. All runs go into one file. --charge and --multiplicity are
    those of the complex.
    """
    chosen = given.chosen()
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


SCF_FORMULAS = ["largest", "exponential", "karton-martin", "exp-sqrt", "power", "neese-valeev"]
CORRELATION_FORMULAS = ["helgaker", "truhlar", "neese-valeev"]


@click.command("cbs", cls=AnnouncedCommand)
@one_molecule()
@click.option(
    "--scf-formula",
    type=click.Choice(SCF_FORMULAS),
    default="largest",
    show_default=True,
    help="Hartree-Fock limit: energy in the larger basis, exp(-1.63 X), (X+1) exp(-9 sqrt X), "
    "exp(-6.3 sqrt X), X^-3.4, exp(-alpha sqrt X) with alpha of the family.",
)
@click.option(
    "--correlation-formula",
    type=click.Choice(CORRELATION_FORMULAS),
    help="Correlation limit: X^-3, X^-2.2, X^-beta of the family.  [default: helgaker; "
    "neese-valeev for def2]",
)
@study_options
def cbs_command(
    given: Given, display: Display, scf_formula: str, correlation_formula: str | None
) -> None:
    """Energy of MOLECULE at the basis set limit, from the two sets that --basis names: --basis
    'cc-pv[tq]z'.

    Both runs go into one file. Spin components are extrapolated like the correlation energy.
    """
    chosen = given.chosen()
    from dfmp2.studies.cbs import basis_set_limit

    def ending(study: Study) -> str:
        total, correlation = (
            study.values[f"cbs_{name}_energy"].value for name in ("total", "correlation")
        )
        return (
            f"E({chosen.correlation.title}, limit) = {total:.10f} Eh, E(corr, limit) = "
            f"{correlation:.10f} Eh"
        )

    whole = given.read().molecule
    compute = partial(
        basis_set_limit, whole, chosen, scf=scf_formula, correlation=correlation_formula
    )
    run_study(display.target(f"{whole.name}.cbs.h5"), compute, ending, display, given)


KINDS = ("bond", "angle", "dihedral")


@click.command("scan", cls=AnnouncedCommand)
@click.option(
    "--bond", nargs=2, metavar="I,J FROM:TO:POINTS", help="Bond length, in the unit of the file."
)
@click.option("--angle", nargs=2, metavar="I,J,K FROM:TO:POINTS", help="Angle at J, degrees.")
@click.option(
    "--dihedral",
    nargs=2,
    metavar="I,J,K,L FROM:TO:POINTS",
    help="Dihedral angle about J-K, degrees.",
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
    "--csv", "csv_file", metavar="FILE", help="The table.  [default: beside --output, .csv]"
)
@click.option(
    "--plot", "plot_file", metavar="FILE", help="The curve, SVG.  [default: beside --output, .svg]"
)
@one_molecule()
@study_options
def scan_command(
    given: Given,
    display: Display,
    moving: str | None,
    chain: bool,
    csv_file: str | None,
    plot_file: str | None,
    **coordinates: tuple[str, str] | None,
) -> None:
    """Energies of MOLECULE along one coordinate: --bond 1,2 0.8:1.2:9, atoms from 1, nine points,
    both ends included.

    Without a coordinate MOLECULE holds several geometries: frames (xyz), molecules (sdf) or models
    (pdb). Which atoms move follows from the bonds: the side of the last atom named. A point that
    fails is listed with its exit code, and the command then ends with exit code 9. Writes one file
    with all runs, the table (CSV) and the curve (SVG).
    """
    chosen = given.chosen()
    from dfmp2.studies.scan import scan_energies

    scan = _make_scan(
        given,
        {kind: coordinates[kind] for kind in KINDS if coordinates[kind]},
        chosen,
        moving,
        chain,
    )
    target = display.target(f"{scan.molecules[0].name}.scan.h5")
    table, curve = (
        Path(csv_file or target.with_suffix(".csv")),
        Path(plot_file or target.with_suffix(".svg")),
    )

    def contents(study: Study) -> list[bytes]:
        from dfmp2.output.html.svg import scan_curve
        from dfmp2.output.json import study_csv

        return [study_csv(study).encode(), scan_curve(study).encode()]

    def ending(study: Study) -> str:
        failed = study.settings["failed"]
        if failed:
            said = f"{failed} of {len(scan.values)} points FAILED"
        else:
            said = f"{len(scan.values)} points"
        place = study.values.get("minimum_quartic") or study.values.get("minimum_parabola")
        if place is None:
            at = ""
        else:
            at = f", minimum at {place.value:.6g} {place.units}"
        return f"{said}{at}{_extrema(study)}; {table}, {curve}"

    compute, beside = partial(scan_energies, scan), {Option("csv"): table, Option("plot"): curve}
    study = run_study(target, compute, ending, display, given, beside=beside, contents=contents)
    if study.settings["failed"]:
        raise SomeFailed(
            f"{study.settings['failed']} of {len(scan.values)} points failed (listed in the "
            f"notes); the others are in {target}, and the same command with --resume tries the "
            "failed ones again"
        )


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


def _make_scan(
    given: Given, coordinates: dict[str, Any], options: Options, moving: str | None, chained: bool
) -> Scan:
    from dfmp2.molecule.files import read_frames
    from dfmp2.studies.coordinate import make_coordinate
    from dfmp2.studies.scan import along, over_frames

    if len(coordinates) > 1:
        raise InputError(f"--{' and --'.join(coordinates)}: one coordinate at a time: choose one")
    if not coordinates:
        if moving is not None:
            raise InputError("--moving belongs to --bond, --angle or --dihedral: name one of them")
        field = given.field()
        frames = read_frames(given.molecule, **given.state)
        return over_frames([frame.in_field(field) for frame in frames], options, chained=chained)
    ((kind, (atoms, values)),) = coordinates.items()
    whole = given.read().molecule
    coordinate = make_coordinate(
        kind, atoms, values, whole, units=given.state["units"], moving=moving
    )
    return along(whole, coordinate, options, chained=chained)


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
    help="All geometries.  [default: beside --output, .trajectory.xyz]",
)
@one_molecule()
@study_options
@as_one("constraints", ConstraintOptions)
@as_one("files", GeometryFiles)
def optimize_command(
    given: Given,
    display: Display,
    constraints: ConstraintOptions,
    files: GeometryFiles,
    convergence: str,
    max_steps: int,
    transition_state: bool,
    verify: bool,
) -> None:
    """Optimise the geometry of MOLECULE in internal coordinates (geomeTRIC).

    The end is a stationary point; --verify computes whether it is a minimum.
    Where --max-steps are not enough (exit code 4), the same command with more goes on.
    """
    chosen, read = given.chosen(), given.read()
    from dfmp2.studies.geometric_search import Search
    from dfmp2.studies.optimize import optimize_geometry

    search = Search(
        constraints=constraints.read(given.state["units"]),
        convergence=convergence,
        max_steps=max_steps,
        transition_state=transition_state,
        verify=verify,
    )
    target = display.target(f"{read.molecule.name}.optimization.h5")
    last, path = files.targets(target, given.molecule)
    require_distinct(
        {"--constraints": constraints.constraints, "--xyz": last, "--trajectory": path}
    )

    compute = partial(optimize_geometry, read.molecule, chosen, search)

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


@dataclass(frozen=True, slots=True)
class Gas:
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
@as_one("gas", Gas)
def frequencies_command(
    given: Given,
    display: Display,
    gas: Gas,
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
