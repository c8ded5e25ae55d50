"""`dfmp2 thermo` and `rank`: what follows from stored Hessians and energies."""

from __future__ import annotations

from dataclasses import dataclass
from pathlib import Path
from typing import Any

import click

from dfmp2.cli import signals
from dfmp2.cli.console import Console, styled
from dfmp2.cli.help import GroupedCommand
from dfmp2.cli.options import LAST_LINE, OVERWRITE, REPORT_AS_JSON, as_one, require_output
from dfmp2.cli.run import command_line, require_distinct
from dfmp2.errors import InputError
from dfmp2.molecule.text import printable

QUASI_HARMONIC = click.option(
    "--quasi-harmonic",
    type=click.Choice(["grimme", "truhlar"]),
    help="Entropy of low modes.  [default: harmonic]",
)
CUTOFF = click.option(
    "--cutoff", type=float, metavar="CM", help="Of --quasi-harmonic, cm^-1.  [default: 100]"
)


@dataclass(frozen=True, slots=True)
class GasOptions:
    """The gas that is asked for, as it stands on the command line."""

    temperature: str
    pressure: str
    scale: str
    quasi_harmonic: str | None
    cutoff: float | None
    isotope: tuple[str, ...]
    symmetry_number: int | None

    def conditions(self) -> Any:
        """What `dfmp2.studies.thermochemistry` makes of it."""
        from dfmp2.errors.messages import Option
        from dfmp2.studies.ideal_gas import low_modes
        from dfmp2.studies.thermochemistry import GasConditions, parse_values

        return GasConditions(
            temperatures=parse_values(Option("temperature"), self.temperature),
            pressures=parse_values(Option("pressure"), self.pressure),
            scale=self.scale,
            low_modes=low_modes(self.quasi_harmonic, self.cutoff),
            isotopes=self.isotope,
            symmetry=self.symmetry_number,
        )


@click.command("thermo", cls=GroupedCommand)
@click.argument("file", metavar="FILE")
@click.option(
    "--temperature",
    metavar="K",
    default="298.15",
    show_default=True,
    help="Of the gas: one, several (200,298.15) or FROM:TO:POINTS.",
)
@click.option(
    "--pressure",
    metavar="PA",
    default="101325",
    show_default=True,
    help="Of the gas: one, several or FROM:TO:POINTS.",
)
@click.option(
    "--scale",
    metavar="NUMBER|auto",
    default="1",
    show_default=True,
    help="Factor of the wavenumbers; auto: the published one.",
)
@QUASI_HARMONIC
@CUTOFF
@click.option(
    "--isotope",
    multiple=True,
    metavar="ATOM=ISOTOPE",
    help="As 1=2H, H=2H or 1=2.0141; may be repeated.",
)
@click.option(
    "--symmetry-number", type=int, metavar="N", help="Rotations onto itself.  [default: counted]"
)
@click.option("--output", metavar="FILE.h5", help="Store it.  [default: print it only]")
@OVERWRITE
@REPORT_AS_JSON
@LAST_LINE
@as_one("gas", GasOptions)
def thermo_command(
    file: str, gas: GasOptions, output: str | None, overwrite: bool, as_json: bool, quiet: bool
) -> None:
    """Thermochemistry of a stored Hessian at other conditions, in no time.

    FILE is that of dfmp2 frequencies, or of dfmp2 optimize --verify. Isotopes have new modes and
    moments of inertia; no gradient is computed. The quasi-harmonic entropy is that of Grimme
    (between oscillator and free rotor) or of Truhlar (low wavenumbers raised to the cutoff).
    """
    from dfmp2.host.files import require_writable
    from dfmp2.output.json import study_json
    from dfmp2.output.study import StudyWriter
    from dfmp2.output.text import study_report
    from dfmp2.studies.thermochemistry import make_thermochemistry, read_hessian

    require_output(output, overwrite=overwrite)
    require_distinct({"FILE": file, "--output": output})
    conditions = gas.conditions()
    study = make_thermochemistry(read_hessian(file), conditions, command_line())
    where = "(not stored; --output FILE.h5 does)"
    if output is not None:
        where = printable(output)
        require_writable(Path(output), overwrite=overwrite, expected_bytes=10**6)
        signals.commit()
        writer = StudyWriter(Path(output), overwrite=overwrite)
        for name, run in study.runs.items():
            writer.add(name, run)
        writer.write(study)
    if as_json:
        click.echo(study_json(study, output), nl=False)
        return
    free = study.values["gibbs_energy"].value
    temperature = study.values["temperature"].value
    ending = f"dfmp2 finished: G({temperature:g} K) = {free:.10f} Eh -> {where}"
    if quiet:
        click.echo(ending)
    else:
        click.echo(styled(study_report(study, brief=True) + ending))


@dataclass(frozen=True, slots=True)
class EnsembleOptions:
    """The ensemble that conformers are in, as it stands on the command line."""

    temperature: str
    pressure: str
    scale: str
    quasi_harmonic: str | None
    cutoff: float | None

    def conditions(self) -> Any:
        """As of GasOptions, of the usual isotopes."""
        gas = GasOptions(
            temperature=self.temperature,
            pressure=self.pressure,
            scale=self.scale,
            quasi_harmonic=self.quasi_harmonic,
            cutoff=self.cutoff,
            isotope=(),
            symmetry_number=None,
        )
        return gas.conditions()


@click.command("rank", cls=GroupedCommand)
@click.argument("sources", metavar="FILE|BATCH...", nargs=-1, required=True)
@click.option(
    "--by",
    type=click.Choice(["energy", "gibbs"]),
    help="What is ranked.  [default: gibbs where all files have a Hessian]",
)
@click.option(
    "--temperature", metavar="K", default="298.15", show_default=True, help="Of the ensemble."
)
@click.option(
    "--pressure", metavar="PA", default="101325", show_default=True, help="Of the gas; for G."
)
@click.option(
    "--scale",
    metavar="NUMBER|auto",
    default="1",
    show_default=True,
    help="Factor of the wavenumbers, as of dfmp2 thermo.",
)
@QUASI_HARMONIC
@CUTOFF
@click.option(
    "--degeneracy",
    multiple=True,
    metavar="NAME=N",
    help="How often a conformer counts, as 2 with a mirror image; may be repeated.",
)
@REPORT_AS_JSON
@as_one("ensemble", EnsembleOptions)
def rank_command(
    sources: tuple[str, ...],
    by: str | None,
    ensemble: EnsembleOptions,
    degeneracy: tuple[str, ...],
    as_json: bool,
) -> None:
    """Boltzmann weights of the conformers in stored results.

    FILE is an .h5 file of dfmp2 run, optimize or frequencies, BATCH a folder of them or the
    manifest of a batch, of which the complete items count. Results of several formulas, charges or
    levels of theory are refused.
    """
    import json

    from dfmp2.interop.conformers import complete_files, rank_files

    conditions = ensemble.conditions()
    if len(conditions.temperatures) * len(conditions.pressures) > 1:
        raise InputError("--temperature, --pressure: one of each, an ensemble has one of both")
    console = Console(quiet=False, log=None)
    files = complete_files(sources, console.warning)
    ranking = rank_files(files, conditions, by, _numbers_by_name(degeneracy))
    if as_json:
        click.echo(json.dumps(ranking.to_dict(), indent=2, allow_nan=False))
        return
    click.echo(styled(f"{ranking}\n"), nl=False)


def _numbers_by_name(texts: tuple[str, ...]) -> dict[str, int]:
    """The values of --degeneracy: NAME=N."""
    numbers = {}
    for text in texts:
        name, sign, number = text.rpartition("=")
        if not sign or not number.lstrip("+-").isdigit():
            raise InputError(f"--degeneracy {text}: expected NAME=N, such as gauche=2")
        numbers[name] = int(number)
    return numbers
