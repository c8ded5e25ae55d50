"""`dfmp2 kernels`: the Trainium kernels, what they are predicted to cost, and whether a backend keeps its contract."""

from __future__ import annotations

import json
from collections.abc import Callable, Sequence
from typing import TYPE_CHECKING, Any

import click

from dfmp2.cli.options import BACKENDS

if TYPE_CHECKING:
    from dfmp2.backends.contract import Finding

LANES = ("neff", "xla", "numpy")


@click.group("kernels", short_help="Trainium kernels: list, cost, timeline, compilation, check.")
def command() -> None:
    """The Trainium kernels: list them, predict their cost, draw their schedule, check a backend.

    Costs are predicted from documented instruction costs by counting the kernels' own instructions; nothing is
    measured on a device. Exit codes: 3 for an unknown kernel, shape or chip; 6 when a backend is not there or a kernel
    breaks a rule of the chip; 8 when a backend misses its contract.
    """


def _problem(function: Callable[..., Any]) -> Callable[..., Any]:
    """MOLECULE with --basis, or --shape with --beta."""
    options = [
        click.argument("molecule", required=False),
        click.option("--basis", metavar="NAME", help="Orbital basis of MOLECULE, e.g. cc-pvdz."),
        click.option("--shape", metavar="SHAPE", help="Instead of MOLECULE: small, medium, large or NOCC,NVIR,NAUX."),
        click.option(
            "--beta", metavar="NOCC,NVIR", help="With --shape: correlated orbitals of the second spin of an open shell."
        ),
    ]
    for option in reversed(options):
        function = option(function)
    return function


def _model(function: Callable[..., Any]) -> Callable[..., Any]:
    """Options of the commands that price a kernel."""
    options = [
        click.option("--kernel", required=True, metavar="K", help="Name from dfmp2 kernels list."),
        click.option("--shape", required=True, metavar="SHAPE", help="small, medium, large or NOCC,NVIR,NAUX."),
        click.option("--target", default="trn1", show_default=True, metavar="trn1|trn2", help="One physical core."),
        click.option("--variant", metavar="NAME", help="Form of the kernel.  [default: the fastest that fits]"),
        click.option("--one-zero-hint", is_flag=True, help="Credit 2x for products flagged one/zero."),
    ]
    for option in reversed(options):
        function = option(function)
    return function


@command.command("list", short_help="Kernels, and the compiled programs a molecule or shape needs.")
@_problem
@click.option("--target", default="trn1", show_default=True, metavar="trn1|trn2", help="Chip.")
@click.option("--cores", type=click.IntRange(1, 128), default=1, show_default=True, help="That share the pairs.")
@click.option("--json", "as_json", is_flag=True, help="Print one JSON object.")
def list_kernels(
    molecule: str | None, basis: str | None, shape: str | None, beta: str | None, target: str, cores: int, as_json: bool
) -> None:
    """List the kernels and, for MOLECULE or --shape, the compiled programs (NEFFs) it needs."""
    from dfmp2.trainium.costs import catalogue, prediction, text
    from dfmp2.trainium.costs.chips import Assumptions, find_chip

    chip = find_chip(target)
    spins, nao = _shapes(molecule, basis, shape, beta)
    programs = catalogue.programs(spins, chip, Assumptions(), nao) if spins else ()
    sent = prediction.shared_bytes(spins, cores) if spins else []
    if as_json:
        click.echo(json.dumps(text.catalogue_dict(spins, programs, sent), indent=2))
    else:
        click.echo(text.catalogue_text(spins, programs, chip, sent), nl=False)


def _shapes(
    molecule: str | None, basis: str | None, shape: str | None, beta: str | None
) -> tuple[tuple[Any, ...], int]:
    """Shapes of the spins that MOLECULE or --shape names, none where neither is given, and basis functions."""
    from dfmp2.trainium import calls

    if molecule is not None and shape is not None:
        raise click.UsageError("give either MOLECULE or --shape, not both")
    if molecule is not None and basis is None:
        raise click.UsageError(f"MOLECULE {molecule}: --basis is missing, e.g. --basis cc-pvdz")
    if beta is not None and shape is None:
        raise click.UsageError("--beta needs --shape")
    if shape is not None:
        spins = calls.spin_shapes(shape, beta)
        return spins, max(one.nao for one in spins)
    return ((), 0) if molecule is None or basis is None else _molecule_shapes(molecule, basis)


def _molecule_shapes(molecule: str, basis: str) -> tuple[tuple[Any, ...], int]:
    """Shapes of a molecule's spins in a basis, and its functions; reads the basis library, does no calculation."""
    from dfmp2.cli.console import Console
    from dfmp2.molecule.xyz import read_xyz
    from dfmp2.options import Options
    from dfmp2.planning import plan as planning

    read = read_xyz(molecule, units="angstrom", charge=None, multiplicity=None)
    options = Options(basis=basis)
    work = planning.sizes(read.molecule, options, Console(quiet=True, log=None))
    return planning.trainium_shapes(work), work.nao


@command.command("cost", short_help="Predict what a kernel costs at a shape.")
@_model
@click.option("--lane", type=click.Choice(LANES), default="neff", show_default=True, help="How calls are launched.")
@click.option(
    "--recompile",
    type=click.FloatRange(min=0.0),
    default=10.0,
    show_default=True,
    metavar="S",
    help="Per call of the numpy lane.",
)
@click.option("--json", "as_json", is_flag=True, help="Print one JSON object.")
def cost(
    kernel: str,
    shape: str,
    target: str,
    variant: str | None,
    one_zero_hint: bool,
    lane: str,
    recompile: float,
    as_json: bool,
) -> None:
    """Predict time, traffic and memory of all calls that cover SHAPE on one core, in float32.

    The makespan is the in-order schedule of all calls, without host dispatch, which is listed apart.
    """
    from dfmp2.trainium.calls import parse_shape
    from dfmp2.trainium.costs import catalogue, text
    from dfmp2.trainium.costs.chips import Assumptions, find_chip
    from dfmp2.trainium.costs.prediction import dispatch

    chip, wanted, row = find_chip(target), parse_shape(shape), catalogue.find(kernel)
    given = Assumptions(one_zero_hint=one_zero_hint)
    price, refused = catalogue.best(row, wanted, chip, given, variant)
    resident, uploaded, downloaded = catalogue.host_bytes(row, wanted, price)
    launched = dispatch(lane, price.calls, resident, uploaded, downloaded, recompile * 1e3)
    if as_json:
        click.echo(json.dumps(text.price_dict(price, launched), indent=2))
        return
    click.echo(text.price_text(row.name, wanted, chip, price, launched, refused), nl=False)
    click.echo(text.assumptions_text(given), nl=False)


@command.command("timeline", short_help="Draw the first microseconds of a kernel call.")
@_model
@click.option("--call", "number", type=int, default=1, show_default=True, metavar="N", help="Which kind of call.")
@click.option("--begin", type=float, default=0.0, show_default=True, metavar="US", help="First microsecond.")
@click.option("--length", type=float, default=100.0, show_default=True, metavar="US", help="Microseconds drawn.")
def show_timeline(
    kernel: str,
    shape: str,
    target: str,
    variant: str | None,
    one_zero_hint: bool,
    number: int,
    begin: float,
    length: float,
) -> None:
    """Draw the predicted in-order schedule of one call, and what the Tensor Engine waits for."""
    from dfmp2.errors import InputError
    from dfmp2.trainium.calls import parse_shape
    from dfmp2.trainium.costs import catalogue, schedule, text
    from dfmp2.trainium.costs.chips import Assumptions, find_chip

    chip, wanted, row = find_chip(target), parse_shape(shape), catalogue.find(kernel)
    given = Assumptions(one_zero_hint=one_zero_hint)
    price, _ = catalogue.best(row, wanted, chip, given, variant)
    if not 1 <= number <= len(price.parts):
        raise InputError(f"--call {number}: expected 1 to {len(price.parts)}: {row.name} has that many kinds of calls")
    if not 0.0 < length <= 1e6:
        raise InputError(f"--length {length:g}: expected microseconds from 0 to 1e6")
    call = price.parts[number - 1].call
    trace, account, plan = schedule.schedule_call(call, chip, given)
    if not 0.0 <= begin * 1e3 < account.makespan:
        raise InputError(f"--begin {begin:g}: expected microseconds from 0 to {account.makespan / 1e3:.1f}, its length")
    click.echo(f"{call.neff}, variant {price.variant}, one {chip.name} core: predicted")
    click.echo(text.draw(trace, plan, begin=begin, length=length), nl=False)
    click.echo(text.summary(trace, plan), nl=False)


@command.command("check", short_help="Check that a backend keeps the pair-term contract.")
@click.option(
    "--lane",
    type=click.Choice(BACKENDS[1:]),
    default="nki-interpreter",
    show_default=True,
    help="Backend to check, see dfmp2 backends.",
)
@click.option("--threads", type=int, help="Threads of the backend.  [default: usable cores]")
def check(lane: str, threads: int | None) -> None:
    """Compare blocks of pair terms of a backend with their definition in float64.

    Exit code 8 when a block is wrong, 6 when the backend cannot be used here.
    """
    from dfmp2.host import threads as thread_settings
    from dfmp2.host.resources import usable_cores

    count = threads or usable_cores()
    thread_settings.set_environment(count)
    from dfmp2.backends import contract, registry
    from dfmp2.errors import ComparisonFailed

    backend, _ = registry.select(lane, "auto", count)
    findings = [contract.examine(backend, case) for case in contract.CASES]
    click.echo(findings_text(lane, findings), nl=False)
    failed = sum(not found.passed for found in findings)
    if failed:
        raise ComparisonFailed(
            f"backend {lane} misses its contract in {failed} of {len(findings)} blocks, see the table"
        )


@command.command("warmup", short_help="Compile the programs of a molecule or shape ahead.")
@_problem
@click.option(
    "--lane",
    type=click.Choice(["nki", "nki-xla"]),
    default="nki",
    show_default=True,
    help="nki needs the compiler and no device, nki-xla needs the device.",
)
@click.option("--transform", is_flag=True, help="Also what run --transform device launches.")
@click.option("--target", metavar="trn1|trn2", help="Chip to compile for.  [default: the one here, else trn1]")
@click.option("--json", "as_json", is_flag=True, help="Print one JSON object.")
def warmup(
    molecule: str | None,
    basis: str | None,
    shape: str | None,
    beta: str | None,
    lane: str,
    transform: bool,
    target: str | None,
    as_json: bool,
) -> None:
    """Compile the programs that MOLECULE or --shape needs, unless they are in the cache.

    Programs serve every molecule whose sizes fall into the same buckets (virtuals to 32, fitting functions to 256), so
    a few of them serve a whole batch. SIGTERM is held back until the program at work is compiled. Exit code 6 when
    nothing can be compiled here or the compiler refuses a kernel.
    """
    from dfmp2.errors import BackendUnavailable
    from dfmp2.trainium import entry
    from dfmp2.trainium.costs.chips import find_chip
    from dfmp2.trainium.launch import environment, toolchain

    if molecule is None and shape is None:
        raise click.UsageError("give MOLECULE with --basis, or --shape")
    spins, nao = _shapes(molecule, basis, shape, beta)
    nao = nao if transform else 0
    chip = find_chip(target or toolchain.device_target() or "trn1").name
    if lane == "nki-xla":
        refused = entry.refusal(lane)
        if refused is not None:
            raise BackendUnavailable(f"--lane {lane} cannot be used: {refused}")
        proof = entry.launch_ahead(spins, nao)
        place = environment.settings(lane, chip)["NEURON_COMPILE_CACHE_URL"]
    else:
        proof, place = entry.compile_ahead(spins, chip, nao=nao), str(environment.cache_folder())
    found: dict[str, Any] = {
        "lane": lane,
        "target": chip,
        "programs": proof.compiled + proof.cache_hits,
        "compiled": proof.compiled,
        "cache_hits": proof.cache_hits,
        "compile_seconds": round(proof.compile_seconds, 3),
        "cache": place,
    }
    if as_json:
        click.echo(json.dumps(found, indent=2))
        return
    click.echo(
        f"{found['programs']} programs for {chip}: {proof.compiled} compiled now in {proof.compile_seconds:.1f} s, "
        f"{proof.cache_hits} found in {place}"
    )


def findings_text(lane: str, findings: Sequence[Finding]) -> str:
    """The table of `dfmp2 kernels check`."""
    from dfmp2.backends.contract import PAIR_TOLERANCE, TOLERANCE

    lines = [
        f"contract of backend {lane}: relative errors against float64, allowed {TOLERANCE:.0e} (sums) and "
        f"{PAIR_TOLERANCE:.0e} (a pair)",
        f"{'nvir':>9}{'naux':>6}  {'block':<10}{'direct':>10}{'exchange':>10}{'worst pair':>12}",
    ]
    for found in findings:
        case = found.case
        nvir = str(case.nvir) if case.nvir == case.right else f"{case.nvir}x{case.right}"
        exchange = "-" if found.exchange is None else f"{found.exchange:.1e}"
        lines.append(
            f"{nvir:>9}{case.naux:>6}  {case.kind:<10}{found.direct:>10.1e}{exchange:>10}{found.pair:>12.1e}"
            f"  {'ok' if found.passed else 'FAILED'}"
        )
    passed = sum(found.passed for found in findings)
    return "\n".join([*lines, f"{passed} of {len(findings)} blocks agree"]) + "\n"
