"""`dfmp2 frequencies`, `thermo` and `rank`: Hessians, and quantities derived from stored Hessians
and energies."""

from __future__ import annotations

import re
from dataclasses import dataclass
from functools import partial
from pathlib import Path
from typing import TYPE_CHECKING

import click

from dfmp2.cli import signals
from dfmp2.cli.console import Console, styled
from dfmp2.cli.help import AnnouncedCommand, GroupedCommand
from dfmp2.cli.options import (
    LAST_LINE,
    OVERWRITE,
    REPORT_AS_JSON,
    Decorator,
    Display,
    Given,
    as_one,
    one_molecule,
    print_answer,
    require_output,
    with_options,
)
from dfmp2.cli.run import command_line, require_distinct
from dfmp2.cli.studies import (
    WORKERS,
    among_workers,
    run_study,
    start_workers,
    study_options,
)
from dfmp2.errors import InputError, Option
from dfmp2.molecule.text import printable

if TYPE_CHECKING:
    from dfmp2.output.study import Study
    from dfmp2.studies.ideal_gas import GasConditions

TEMPERATURE = click.option(
    "--temperature",
    type=float,
    default=298.15,
    show_default=True,
    metavar="K",
    help="Temperature of the gas.",
)
SYMMETRY_NUMBER = click.option(
    "--symmetry-number",
    type=int,
    metavar="N",
    help="Rotational symmetry number.  [default: counted]",
)
QUASI_HARMONIC = click.option(
    "--quasi-harmonic",
    type=click.Choice(["grimme", "truhlar"]),
    help="Entropy of low modes.  [default: harmonic]",
)


def stored_gas(*, temperature: str, pressure: str) -> Decorator:
    """Add the options for the gas of stored Hessians to a command.

    Parameters
    ----------
    temperature, pressure : str
        Help texts of these options.
    """
    options = (
        click.option(
            "--temperature", metavar="K", default="298.15", show_default=True, help=temperature
        ),
        click.option(
            "--pressure", metavar="PA", default="101325", show_default=True, help=pressure
        ),
        click.option(
            "--scale",
            metavar="NUMBER|auto",
            default="1",
            show_default=True,
            help="Factor of the wavenumbers; auto: the published one.",
        ),
        QUASI_HARMONIC,
        click.option(
            "--cutoff",
            type=float,
            metavar="CM",
            help="Cutoff of --quasi-harmonic, cm^-1.  [default: 100]",
        ),
    )
    return lambda command: with_options(options, command)


@dataclass(frozen=True, slots=True)
class GasOptions:
    """The ideal gas given on the command line; a command has only the options it needs."""

    temperature: str | float
    pressure: str | float | None
    standard_state: str | None = None
    scale: str = "1"
    quasi_harmonic: str | None = None
    cutoff: float | None = None
    isotope: tuple[str, ...] = ()
    symmetry_number: int | None = None

    def conditions(self) -> GasConditions:
        """The conditions for `dfmp2.studies.ideal_gas`."""
        from dfmp2.studies.ideal_gas import make_conditions

        return make_conditions(
            temperature=self.temperature,
            pressure=self.pressure,
            standard_state=self.standard_state,
            scale=self.scale,
            quasi_harmonic=self.quasi_harmonic,
            cutoff=self.cutoff,
            isotopes=self.isotope,
            symmetry=self.symmetry_number,
        )


@click.command("frequencies", cls=AnnouncedCommand)
@TEMPERATURE
@click.option(
    "--pressure",
    type=float,
    default=101325.0,
    show_default=True,
    metavar="PA",
    help="Pressure of the gas.",
)
@SYMMETRY_NUMBER
@click.option(
    "--displacement",
    type=float,
    default=0.005,
    show_default=True,
    metavar="BOHR",
    help="Displacement of each coordinate.",
)
@click.option(
    "--allow-gradient", is_flag=True, help="Continue at a geometry that is not a stationary point."
)
@WORKERS
@click.option(
    "--molden",
    metavar="FILE",
    help="Modes for viewers.  [default: next to --output, .molden]",
)
@one_molecule()
@study_options
@as_one("gas", GasOptions)
def frequencies_command(
    given: Given,
    display: Display,
    gas: GasOptions,
    displacement: float,
    allow_gradient: bool,
    workers: int | None,
    molden: str | None,
) -> None:
    """Harmonic frequencies of MOLECULE, a file as of dfmp2 run, at its stationary point.

    6 N + 1 gradients for N atoms: central differences give the Hessian, and its modes the infrared
    intensities and the thermochemistry of an ideal gas. All runs go into one file. Processes share
    --memory; with --workers, --threads are those of each.
    """
    start_workers(workers, given.options["threads"])
    chosen, read = given.chosen(), given.read()
    from dfmp2.studies.frequencies import harmonic_frequencies

    target = display.target(f"{read.molecule.name}.frequencies.h5")
    modes = Path(molden or target.with_suffix(".molden"))
    compute = partial(
        harmonic_frequencies,
        read.molecule,
        chosen,
        gas.conditions(),
        displacement=displacement,
        allow_gradient=allow_gradient,
    )

    def contents(study: Study) -> list[bytes]:
        from dfmp2.output.export.molden import normal_modes

        return [normal_modes(study)]

    def ending(study: Study) -> str:
        from dfmp2.units import counted_text

        wavenumbers = study.table["wavenumber"].values
        imaginary = sum(value < 0 for value in wavenumbers)
        warned = f", {imaginary} IMAGINARY" if imaginary else ""
        lowest = f"{wavenumbers[0]:.1f}"
        highest = f"{wavenumbers[-1]:.1f}"
        ends = f"{lowest} to {highest}" if highest != lowest else lowest
        return f"{counted_text(len(wavenumbers), 'vibration')}{warned}, {ends} cm^-1; {modes}"

    run_study(
        target,
        among_workers(compute, workers),
        ending,
        display,
        given.files,
        beside={Option("molden"): modes},
        contents=contents,
    )


@click.command("thermo", cls=GroupedCommand)
@click.argument("file", metavar="FILE")
@stored_gas(
    temperature="Temperature: one, several (200,298.15) or FROM:TO:POINTS.",
    pressure="Pressure: one, several or FROM:TO:POINTS.",
)
@click.option(
    "--isotope",
    multiple=True,
    metavar="ATOM=ISOTOPE",
    help="Isotope or mass, as 1=2H, H=2H or 1=2.0141; may be repeated.",
)
@SYMMETRY_NUMBER
@click.option(
    "-o",
    "--output",
    metavar="FILE.h5",
    help="File to store the result in.  [default: print it only]",
)
@OVERWRITE
@REPORT_AS_JSON
@LAST_LINE
@as_one("gas", GasOptions)
def thermo_command(
    file: str, gas: GasOptions, output: str | None, overwrite: bool, as_json: bool, quiet: bool
) -> None:
    """Thermochemistry of a stored Hessian at other conditions, without a new run.

    FILE is that of dfmp2 frequencies, or of dfmp2 optimize --verify. Isotopes have new modes and
    moments of inertia; no gradient is computed. The quasi-harmonic entropy is that of Grimme
    (between oscillator and free rotor) or of Truhlar (low wavenumbers raised to the cutoff).
    """
    from dfmp2.host.files import require_hdf5_name, require_writable
    from dfmp2.output.json import study_json
    from dfmp2.output.study import StudyWriter
    from dfmp2.output.text import brief_study
    from dfmp2.studies.frequencies import read_hessian
    from dfmp2.studies.thermochemistry import make_thermochemistry

    require_output(output, overwrite=overwrite)
    require_distinct({"FILE": file, "--output": output})
    conditions = gas.conditions()
    study = make_thermochemistry(read_hessian(file), conditions, command_line())
    where = "(not stored; --output FILE.h5 stores it)"
    if output is not None:
        where = printable(output)
        require_hdf5_name(Path(output))
        require_writable(Path(output), overwrite=overwrite)
        signals.commit()
        writer = StudyWriter(Path(output), overwrite=overwrite)
        for name, run in study.runs.items():
            writer.add(name, run)
        writer.write(study)
    free = study.values["gibbs_energy"].value
    temperature = study.values["temperature"].value
    ending = f"dfmp2 finished: G({temperature:g} K) = {free:.10f} Eh -> {where}"
    print_answer(
        lambda: brief_study(study, output),
        ending,
        lambda: study_json(study, output),
        as_json=as_json,
        quiet=quiet,
        stored=output is not None,
    )


@click.command("rank", cls=GroupedCommand)
@click.argument("sources", metavar="FILE|BATCH...", nargs=-1, required=True)
@click.option(
    "--by",
    type=click.Choice(["energy", "gibbs"]),
    help="What is ranked.  [default: gibbs where all files have a Hessian]",
)
@stored_gas(temperature="Temperature of the ensemble.", pressure="Pressure, for Gibbs energies.")
@click.option(
    "--degeneracy",
    multiple=True,
    metavar="NAME=N",
    help="How often a conformer counts, e.g. twice with its mirror image; may be repeated.",
)
@REPORT_AS_JSON
@as_one("ensemble", GasOptions)
def rank_command(
    sources: tuple[str, ...],
    by: str | None,
    ensemble: GasOptions,
    degeneracy: tuple[str, ...],
    as_json: bool,
) -> None:
    """Boltzmann weights of the conformers in stored results.

    FILE is an .h5 file of dfmp2 run, optimize or frequencies, BATCH a folder of them or the
    manifest of a batch, whose incomplete items are left out. Results of several formulas, charges,
    point charges or levels of theory are refused.
    """
    import json

    from dfmp2.interop.thermochemistry import complete_files, rank_files

    conditions = ensemble.conditions()
    console = Console(quiet=False, log=None)
    ranking = rank_files(
        complete_files(sources, console.warning), conditions, by, _numbers_by_name(degeneracy)
    )
    if as_json:
        click.echo(json.dumps(ranking.to_dict(), indent=2, allow_nan=False))
        return
    click.echo(styled(f"{ranking}\n"), nl=False)


def _numbers_by_name(texts: tuple[str, ...]) -> dict[str, int]:
    """The values of --degeneracy: NAME=N."""
    numbers = {}
    for text in texts:
        name, sign, number = text.rpartition("=")
        if not sign or not re.fullmatch("[+-]?[0-9]{1,9}", number):
            raise InputError(f"--degeneracy {text}: expected NAME=N, such as gauche=2")
        numbers[name] = int(number)
    return numbers
