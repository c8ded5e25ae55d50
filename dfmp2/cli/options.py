"""The options shared by commands: what to compute and how, where to write files, and what to show.

Those of the calculation are generated from the fields of `dfmp2.options.Options`, where each is
declared once.
"""

from __future__ import annotations

import functools
from collections.abc import Callable, Iterable
from copy import copy
from dataclasses import MISSING, Field, dataclass, fields
from pathlib import Path
from typing import TYPE_CHECKING, Any

import click

from dfmp2.cli.console import Console, conclude, drop_stdout, styled
from dfmp2.double_hybrids import look_up
from dfmp2.errors import InputError, ResourceError
from dfmp2.host.deferred import defer_numpy_extras
from dfmp2.host.resources import usable_cores
from dfmp2.host.threads import set_environment
from dfmp2.options import BACKEND_WORDS, BACKENDS, WHOLE_RUN, Options
from dfmp2.options.basis_parts import parse_parts, path_of
from dfmp2.options.methods import CUSTOM, CUSTOM_DOUBLE_HYBRID, way_out_behind

if TYPE_CHECKING:
    from dfmp2.molecule.xyz import XyzFile

Command = Callable[..., Any]
Decorator = Callable[[Command], Command]

TYPES = {"str": str, "int": int, "float": float}
IN_UNITS: dict[str, Any] = {
    "type": click.Choice(["angstrom", "bohr"]),
    "default": "angstrom",
    "show_default": True,
}
OF_THE_MOLECULE = {
    "charge": click.Option(
        ["--charge"], type=int, metavar="N", help="Total charge.  [default: of the file, else 0]"
    ),
    "multiplicity": click.Option(
        ["--multiplicity"],
        type=int,
        metavar="N",
        help="Multiplicity, 2S+1.  [default: of the file, else 1]",
    ),
    "units": click.Option(["--units"], help="Units of the file.", **IN_UNITS),
    "point_charges": click.Option(
        ["--point-charges"],
        metavar="FILE",
        help="Charges around the molecule: lines of x y z q, # for comments.",
    ),
    "point_charge_units": click.Option(
        ["--point-charge-units"], help="Units of the positions of point charges.", **IN_UNITS
    ),
}


class Words(click.Choice):  # type: ignore[type-arg]
    """A choice that also accepts synonyms."""

    def __init__(self, choices: Iterable[str], words: dict[str, str]) -> None:
        super().__init__(choices)
        self.words = words

    def convert(self, value: Any, param: click.Parameter | None, ctx: click.Context | None) -> Any:
        """The choice that a word stands for."""
        return super().convert(self.words.get(value, value), param, ctx)


class MethodNames(click.Choice):  # type: ignore[type-arg]
    """The choice of methods, which also accepts double hybrids under any of their names."""

    def get_metavar(self, param: click.Parameter, ctx: click.Context) -> str:
        """The metavar shown by --help."""
        return f"[{'|'.join(self.choices)}]"

    def convert(self, value: Any, param: click.Parameter | None, ctx: click.Context | None) -> Any:
        """The unchanged text, which `Options` interprets; an unknown method is a usage error."""
        if value in (*self.choices, CUSTOM, CUSTOM_DOUBLE_HYBRID) or look_up(value) is not None:
            return value
        listed = ", ".join(map(repr, (*self.choices, CUSTOM_DOUBLE_HYBRID)))
        advice = way_out_behind(value)
        self.fail(f"{value!r} is not one of {listed}, or a double hybrid of dfmp2 methods{advice}")


def option_of_field(field: Field[Any]) -> click.Option:
    """The command line option of a field of `Options`."""
    about = field.metadata
    annotation = str(field.type)
    settings: dict[str, Any] = {"help": about["help"], "metavar": about["metavar"]}
    if about["shown"]:
        settings["help"] += f"  [default: {about['shown']}]"
    if annotation == "bool":
        settings["is_flag"] = True
    elif field.name == "backend":
        settings["type"] = Words(BACKENDS, BACKEND_WORDS)
        settings["envvar"] = "DFMP2_BACKEND"
    elif field.name == "method":
        settings["type"] = MethodNames(about["choices"])
    elif about["choices"]:
        settings["type"] = click.Choice(about["choices"])
    elif field.name == "memory":  # a size, or a number of bytes
        settings["type"] = str
    else:
        settings["type"] = TYPES[annotation.partition(" ")[0]]
        if settings["type"] is int and not about["metavar"]:
            settings["metavar"] = "N"
    if field.default is MISSING:
        settings["required"] = True
    elif annotation != "bool":
        settings["default"] = field.default
        settings["show_default"] = field.default is not None and not about["shown"]
    return click.Option([f"--{field.name.replace('_', '-')}"], **settings)


_OF_FIELDS = {field.name: option_of_field(field) for field in fields(Options)}
OF_A_CALCULATION = {  # in the order of --help
    "basis": _OF_FIELDS.pop("basis"),
    **OF_THE_MOLECULE,
    **_OF_FIELDS,
}
ALL = tuple(name for name in OF_A_CALCULATION if name not in ("check", *WHOLE_RUN))

OWN = "Options"  # heading of those without a group
# heading of --help: options always listed, listed if 45 lines are enough, and only with --help-all
GROUPS = {
    OWN: (
        "",
        "scf-chain",
        "delta delta-program scf-formula correlation-formula",
    ),
    "Method": (
        "basis method charge multiplicity frozen-core",
        "properties check",
        "units point-charges point-charge-units relativity frozen-virtual kappa os-scale ss-scale "
        "dispersion laplace polarizability",
    ),
    "SCF": (
        "",
        "reference scf-from",
        "xc grid solvent solvent-model scf scf-conv-tol scf-max-cycles scf-starts guess stability allow-small-gap",
    ),
    "Fitting": ("", "auxbasis scf-auxbasis", "allow-poor-fit certify-fit"),
    "Resources": ("memory threads workers", "scratch engine shard", ""),
    "Accelerators": ("backend", "precision", "tolerance transform"),
    "Slurm": (
        "partition account",
        "parallel collect",
        "qos constraint cpus-per-task gres restarts signal-before setup node-scratch cache",
    ),
    "AWS Batch": (
        "queue image s3",
        "instance",
        "job-role execution-role attempts warm-up copy-every region profile",
    ),
    "Output": ("output overwrite resume json help", "quiet verbose", "log trace help-all root"),
}
PLACES = {
    name: (heading, rank)
    for heading, lists in GROUPS.items()
    for rank, names in enumerate(lists)
    for name in names.split()
}


class SecondaryOption(click.Option):
    """An option that --help lists if 45 lines are enough, and --help-all always."""


def group_of(option: click.Parameter) -> tuple[str, int]:
    """Heading of an option in --help, and the index of its list."""
    if isinstance(option, SecondaryOption):
        return OWN, 1
    word = option.opts[-1].lstrip("-")
    # --profile is `trace` for a run, or a profile of AWS
    return PLACES.get(option.name or "") or PLACES.get(word, (OWN, 0))


MOST_WORKERS = 4096
AS_JSON = click.option("--json", "as_json", is_flag=True, help="Print one JSON object.")
OVERWRITE = click.option("--overwrite", is_flag=True, help="Replace an existing file.")
QUIET = click.option("--quiet", is_flag=True, help="No progress.")
REPORT_AS_JSON = click.option(
    "--json", "as_json", is_flag=True, help="Print one JSON object instead of the report."
)
LAST_LINE = click.option("--quiet", is_flag=True, help="Print only the last line, and warnings.")
ENGINE = click.option(
    "--engine",
    metavar="FILE|ADDRESS",
    help="Dask: scheduler file, tcp://HOST:PORT or tls://HOST:PORT.",
)
SCF_CHAIN = click.option(
    "--scf-chain", is_flag=True, help="Start the SCF from the item before, of the same atoms."
)


def with_options(options: Iterable[Decorator], command: Command) -> Command:
    """The command with the given options, which --help lists in this order."""
    for option in reversed(list(options)):
        command = option(command)
    return command


def _with(options: Iterable[click.Option], command: Command) -> Command:
    """The function that click turns into a command, with copies of these options before its own."""
    added = [copy(option) for option in options][::-1]
    command.__click_params__ = [*getattr(command, "__click_params__", []), *added]  # type: ignore[attr-defined]
    return command


def options_of(*names: str, basis_required: bool = True) -> Decorator:
    """Add the named options of a calculation to a command, in the order of OF_A_CALCULATION."""
    chosen = [copy(option) for name, option in OF_A_CALCULATION.items() if name in names]
    for option in chosen:
        option.required = option.required and basis_required
    return lambda command: _with(chosen, command)


def as_one(keyword: str, kind: type[Any]) -> Decorator:
    """Pass one object to a command instead of the options that are its fields.

    Parameters
    ----------
    keyword : str
        Name of the command's parameter for the object.
    kind : type
        A dataclass whose fields have the names of options. Fields without an option keep their
        defaults.
    """
    names = [field.name for field in fields(kind)]

    def give(command: Command) -> Command:
        @functools.wraps(command)
        def gathered(*arguments: Any, **values: Any) -> Any:
            gathered_options = {name: values.pop(name) for name in names if name in values}
            values[keyword] = kind(**gathered_options)
            return command(*arguments, **values)

        return gathered

    return give


def refused(names: Iterable[str], reason: str) -> Decorator:
    """Make a command reject options of a calculation with a reason, instead of as unknown.

    Raises
    ------
    InputError : if the command is called with one of them
    """

    def refuse(_ctx: click.Context, option: click.Parameter, value: object) -> None:
        if value not in (None, False):
            raise InputError(f"{option.opts[-1]} {reason}")

    hidden = [
        click.Option(
            one.opts, is_flag=one.is_flag, hidden=True, expose_value=False, callback=refuse
        )
        for one in map(OF_A_CALCULATION.__getitem__, names)
    ]
    return lambda command: _with(hidden, command)


def prepare_libraries(threads: int | None) -> int:
    """Before NumPy, PySCF and PyTorch are loaded, defer modules that a run never uses, and set the
    threads.

    Returns the number of threads, by default that of the usable cores.

    Raises
    ------
    InputError : not a positive integer
    """
    count = Options("-", threads=threads).threads or usable_cores()
    set_environment(count)
    defer_numpy_extras()
    return count


def basis_files(basis: str | None) -> dict[str, str]:
    """The files that --basis names, by how a message refers to them."""
    if basis is None:
        return {}
    return {
        f"--basis {value}": str(Path(path_of(value)).expanduser())
        for value in parse_parts(basis).files
    }


@dataclass(frozen=True, slots=True)
class Given:
    """The given options of a calculation: those of the molecule, and those of `Options`.

    Attributes
    ----------
    molecule : an xyz, mol, sdf or pdb file, or - for an xyz file on standard input
    state : charge, multiplicity, units
    """

    molecule: str
    state: dict[str, Any]
    point_charges: str | None
    point_charge_units: str
    options: dict[str, Any]

    def chosen(self) -> Options:
        """The options; also sets the threads of every library before its pool is started."""
        chosen = Options(**self.options)
        prepare_libraries(chosen.threads)
        return chosen

    def read(self) -> XyzFile:
        """The molecule with its point charges; NumPy is loaded here."""
        from dfmp2.molecule.files import read_file

        return read_file(self.molecule, **self.state).in_field(self.field())

    def field(self) -> Any:
        """The surrounding point charges, None for none."""
        from dfmp2.molecule.files import read_point_charges

        return read_point_charges(self.point_charges, self.point_charge_units)

    @property
    def files(self) -> dict[str, str | None]:
        """All input files, by the option that names them."""
        return {
            "MOLECULE": self.molecule,
            "--scf-from": self.options.get("scf_from"),
            "--point-charges": self.point_charges,
            **basis_files(self.options["basis"]),
        }


def one_molecule(*names: str) -> Decorator:
    """Add MOLECULE, its options and the named ones of `Options` (by default all but --check) to a
    command, which receives them as one `given`."""
    wanted = [*OF_THE_MOLECULE, *(names or ALL)]

    def give(command: Command) -> Command:
        @functools.wraps(command)
        def gathered(molecule: str, **values: Any) -> Any:
            taken = {name: values.pop(name) for name in OF_A_CALCULATION if name in wanted}
            state = {name: taken.pop(name) for name in ("charge", "multiplicity", "units")}
            charges = taken.pop("point_charges")
            units = taken.pop("point_charge_units")
            return command(given=Given(molecule, state, charges, units, taken), **values)

        return click.argument("molecule")(options_of(*wanted)(gathered))

    return give


@dataclass(frozen=True, slots=True)
class Display:
    """Where a result is written and how it is shown: the values of the output options."""

    output: str | None
    overwrite: bool
    resume: bool
    as_json: bool
    quiet: bool
    verbose: bool
    log: str | None

    def __post_init__(self) -> None:
        if self.quiet and self.verbose:
            raise InputError("--quiet prints less and --verbose more: leave one of them out")

    def target(self, default: str) -> Path:
        """The output file."""
        return Path(default if self.output is None else self.output)


def output_options(
    file: str, default: str, resume: str = "Print a complete result instead of failing."
) -> Decorator:
    """Add the output options to a command, which receives them as one `display`.

    Parameters
    ----------
    file : description of the output file
    default : its default name
    resume : what --resume does in addition to resuming, which needs no option
    """
    options = (
        click.option(
            "-o", "--output", metavar="FILE.h5", help=f"{file}.  [default: {default} here]"
        ),
        click.option(
            "--overwrite",
            is_flag=True,
            help="Replace a file, or the checkpoint of another run.",
        ),
        click.option("--resume", is_flag=True, help=resume),
        REPORT_AS_JSON,
        LAST_LINE,
        click.option("--verbose", is_flag=True, help="Print the full report and all progress."),
        click.option("--log", metavar="FILE", help="Append progress and report to a file."),
    )

    return lambda command: with_options(options, as_one("display", Display)(command))


def require_output(output: str | None, *, overwrite: bool) -> None:
    """Raise for --overwrite without --output, if a command otherwise only prints.

    Raises
    ------
    InputError : there is no output file that could be replaced
    """
    if overwrite and output is None:
        raise InputError(
            "--overwrite replaces the file of --output, which was not given: add it, or leave it "
            "out"
        )


def print_report(
    display: Display,
    console: Console,
    report: Callable[[], str],
    ending: str,
    json: Callable[[], str],
    *,
    brief: Callable[[], str] | None = None,
) -> None:
    """Print a report in the requested form, and add it to the log.

    Parameters
    ----------
    report : callable
        Returns the full report, for the log.
    ending : str
        The last line.
    json : callable
        Returns the JSON object that --json prints instead of both.
    brief : callable, optional
        Returns the text printed without --verbose, by default the full report.

    Raises
    ------
    ResourceError
        Standard output cannot be written; what was computed is stored.
    """
    if display.log is None:
        console.close()
    else:
        console.finish(report() + ending)
    shown = report
    if brief is not None and not display.verbose:
        shown = brief
    print_answer(shown, ending, json, as_json=display.as_json, quiet=display.quiet, stored=True)


def print_answer(
    report: Callable[[], str],
    ending: str,
    json: Callable[[], str],
    *,
    as_json: bool,
    quiet: bool,
    stored: bool,
) -> None:
    """Print a report and its last line, or with --json the JSON object.

    Parameters
    ----------
    report, ending, json
        As in `print_report`.
    stored : bool
        Whether a file holds what was computed.

    Raises
    ------
    ResourceError
        Standard output cannot be written.
    """
    text = ""
    if as_json:
        text = json()
    elif not quiet:
        text = styled(report())
    try:
        click.echo(text, nl=False)
        if not as_json:
            conclude(ending)
    except BrokenPipeError:
        raise  # nobody reads on
    except OSError as error:
        drop_stdout()
        kept = ""
        if stored:
            kept = ", what was computed is stored"
        raise ResourceError(
            f"standard output cannot be written ({error.strerror}){kept}: {ending}"
        ) from error
