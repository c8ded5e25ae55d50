"""The options that say what to compute and how: shared by every command that computes or plans."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Sequence
from typing import Any

import click

from dfmp2.errors import InputError

Option = Callable[[Callable[..., Any]], Callable[..., Any]]

BACKENDS = ["auto", "cpu", "torch", "cuda", "nki", "nki-xla", "nki-simulator", "nki-interpreter"]

OPTIONS = (
    click.option("--basis", required=True, metavar="NAME", help="Orbital basis, e.g. cc-pvdz."),
    click.option("--charge", type=int, help="Total charge.  [default: comment line of the file, else 0]"),
    click.option("--multiplicity", type=int, help="2S+1.  [default: comment line of the file, else 1]"),
    click.option(
        "--units", type=click.Choice(["angstrom", "bohr"]), default="angstrom", show_default=True, help="Of the file."
    ),
    click.option(
        "--point-charges", metavar="FILE", help="Charges around the molecule: lines of x y z q, # for comments."
    ),
    click.option(
        "--point-charge-units",
        type=click.Choice(["angstrom", "bohr"]),
        default="angstrom",
        show_default=True,
        help="Of their positions.",
    ),
    click.option(
        "--reference",
        type=click.Choice(["auto", "rhf", "uhf"]),
        default="auto",
        show_default=True,
        help="auto: RHF for singlets, UHF otherwise.",
    ),
    click.option(
        "--relativity",
        type=click.Choice(["none", "x2c"]),
        default="none",
        show_default=True,
        help="x2c: spin-free one-electron X2C Hamiltonian, for all-electron bases.",
    ),
    click.option(
        "--scf",
        type=click.Choice(["df", "conventional"]),
        default="df",
        show_default=True,
        help="Density-fitted or four-centre integrals in the SCF.",
    ),
    click.option("--scf-auxbasis", metavar="NAME", help="Coulomb-exchange fitting set.  [default: partner of --basis]"),
    click.option(
        "--scf-conv-tol",
        type=float,
        default=1e-10,
        show_default=True,
        metavar="EH",
        help="SCF energy change; the gradient must fall below 0.1 sqrt of it.",
    ),
    click.option(
        "--scf-max-cycles", type=int, default=100, show_default=True, help="Limit on the iterations of one SCF."
    ),
    click.option(
        "--guess",
        type=click.Choice(["atoms", "mix", "core"]),
        default="atoms",
        show_default=True,
        help="Start of the SCF (mix: HOMO and LUMO mixed, UHF only).",
    ),
    click.option("--scf-from", metavar="FILE", help="Start orbitals: PySCF chkfile or earlier result."),
    click.option(
        "--scf-starts",
        type=int,
        default=1,
        show_default=True,
        metavar="N",
        help="Starts of which the lowest SCF solution is kept.",
    ),
    click.option(
        "--stability",
        type=click.Choice(["auto", "full", "follow", "off"]),
        help="Is the SCF solution a minimum? auto: frontier orbitals; full: all rotations; follow: along an "
        "instability to a lower one.  [default: follow for UHF, auto for RHF]",
    ),
    click.option(
        "--auxbasis", metavar="NAME", help="MP2 fitting set, or auto (even-tempered).  [default: partner of --basis]"
    ),
    click.option(
        "--frozen-core",
        default="none",
        show_default=True,
        metavar="none|auto|psi4|orca|pyscf|N",
        help="Orbitals left uncorrelated.",
    ),
    click.option(
        "--frozen-virtual", type=int, default=0, show_default=True, metavar="N", help="Highest virtuals left out."
    ),
    click.option("--os-scale", type=float, help="Opposite-spin factor of a custom scaled energy."),
    click.option("--ss-scale", type=float, help="Same-spin factor of a custom scaled energy."),
    click.option(
        "--backend",
        type=click.Choice(BACKENDS),
        default="auto",
        show_default=True,
        envvar="DFMP2_BACKEND",
        help="See dfmp2 backends.  [env: DFMP2_BACKEND]",
    ),
    click.option(
        "--precision",
        type=click.Choice(["auto", "fp64", "mixed"]),
        default="auto",
        show_default=True,
        help="Of the pair energies.",
    ),
    click.option(
        "--tolerance",
        type=float,
        default=1e-7,
        show_default=True,
        metavar="EH",
        help="Largest estimated precision error accepted.",
    ),
    click.option(
        "--transform",
        type=click.Choice(["auto", "host", "device"]),
        default="auto",
        show_default=True,
        help="Where B is made of the integrals: device on Trainium lanes only (auto: the faster one, predicted).",
    ),
    click.option(
        "--memory", metavar="SIZE", help="Peak memory of the process, e.g. 8GB (8G) or 8GiB.  [default: what is free]"
    ),
    click.option(
        "--scratch",
        metavar="DIR",
        help="Folder for what does not fit into memory.  [default: $DFMP2_SCRATCH, else $TMPDIR, else /tmp]",
    ),
    click.option("--threads", type=int, help="Threads of this process.  [default: usable cores]"),
    click.option("--allow-small-gap", is_flag=True, help="Go on with a HOMO-LUMO gap below 0.02 Eh."),
    click.option("--allow-poor-fit", is_flag=True, help="Take a named fitting set that is off by over 1 mEh an atom."),
)


def calculation_options(command: Callable[..., Any]) -> Callable[..., Any]:
    """Give a command all of OPTIONS, in this order."""
    return with_options(OPTIONS, command)


def with_options(options: Sequence[Option], command: Callable[..., Any]) -> Callable[..., Any]:
    """The command with a table of options, which --help lists in this order."""
    for option in reversed(options):
        command = option(command)
    return command


def options_of(*names: str) -> Callable[[Callable[..., Any]], Callable[..., Any]]:
    """Give a command those of OPTIONS that are called so, in the order of OPTIONS."""

    def give(command: Callable[..., Any]) -> Callable[..., Any]:
        for option in reversed(_built()):
            if option.name in names:
                command = _with(option, command)
        return command

    return give


def refused(names: Iterable[str], reason: str) -> Callable[[Callable[..., Any]], Callable[..., Any]]:
    """Let a command refuse those of OPTIONS that are called so, with a reason, where they would not be known at all.

    Raises
    ------
    InputError : when the command is called with one of them
    """

    def refuse(_ctx: click.Context, option: click.Parameter, value: object) -> None:
        if value not in (None, False):
            raise InputError(f"{option.opts[0]} {reason}")

    def give(command: Callable[..., Any]) -> Callable[..., Any]:
        known = {option.name: option for option in _built()}
        for name in names:
            option = known.get(name) or click.Option([f"--{name.replace('_', '-')}"], is_flag=True)
            hidden = click.Option(option.opts, is_flag=option.is_flag, hidden=True, expose_value=False, callback=refuse)
            command = _with(hidden, command)
        return command

    return give


def _built() -> list[click.Option]:
    """OPTIONS as click makes them, in this order."""

    def blank() -> None:
        """Takes them."""

    given: list[click.Option] = calculation_options(blank).__click_params__  # type: ignore[attr-defined]
    return given[::-1]


def _with(option: click.Option, command: Callable[..., Any]) -> Callable[..., Any]:
    """The function that click makes a command of, with one option more."""
    command.__click_params__ = [*getattr(command, "__click_params__", []), option]  # type: ignore[attr-defined]
    return command
