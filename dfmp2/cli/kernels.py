"""`dfmp2 kernels`: the Trainium kernels, their predicted cost, and a check of backends against the
definition."""

from __future__ import annotations

import json
from collections.abc import Sequence
from typing import TYPE_CHECKING, Any

import click

from dfmp2.cli.console import Console
from dfmp2.cli.help import AnnouncedCommand, CommandGroup
from dfmp2.cli.options import (
    AS_JSON,
    Words,
    options_of,
    prepare_libraries,
)
from dfmp2.errors import BackendUnavailable, ComparisonFailed
from dfmp2.options import BACKEND_WORDS, BACKENDS, Options
from dfmp2.units import counted_text

if TYPE_CHECKING:
    from dfmp2.backends.contract import Finding


@click.group("kernels", cls=CommandGroup, no_args_is_help=False)
def kernels_command() -> None:
    """The Trainium kernels: list them, predict their cost, check a backend.

    Costs are predicted in closed form from documented instruction costs; nothing is measured on a
    device. Exit codes: 3 for an unknown kernel, shape or chip; 6 if a backend is unavailable or a
    kernel breaks a rule of the chip; 8 if a backend misses its contract.
    """


def _shapes(
    molecule: str | None, basis: str | None, shape: str | None, beta: str | None
) -> tuple[tuple[Any, ...], int]:
    """The shapes given by MOLECULE or --shape, empty if neither is given; reads the basis library,
    but computes nothing."""
    if molecule is not None and shape is not None:
        raise click.UsageError("give either MOLECULE or --shape, not both")
    if molecule is not None and basis is None:
        raise click.UsageError(f"MOLECULE {molecule}: --basis is missing, e.g. --basis cc-pvdz")
    if beta is not None and shape is None:
        raise click.UsageError("--beta needs --shape")
    if shape is not None:
        from dfmp2.trainium.calls import spin_shapes

        spins = spin_shapes(shape, beta)
        return spins, max(one.nao for one in spins)
    if molecule is None or basis is None:
        return (), 0
    from dfmp2.molecule.files import read_file
    from dfmp2.planning import plan

    work = plan.workload_sizes(
        read_file(molecule).molecule, Options(basis), Console(quiet=True, log=None)
    )
    return plan.trainium_shapes(work), work.nao


@kernels_command.command("list", short_help="The kernels, by name.")
@AS_JSON
def list_kernels(as_json: bool) -> None:
    """List the kernels.

    dfmp2 plan MOLECULE --backend nki says how many compiled programs (NEFFs) and calls a molecule
    needs.
    """
    from dfmp2.trainium.costs import catalogue

    if as_json:
        kernels = {row.name: {"short": row.short, "about": row.about} for row in catalogue.KERNELS}
        click.echo(json.dumps({"kernels": kernels}, indent=2))
    else:
        click.echo(catalogue.kernels_text(), nl=False)


@kernels_command.command(
    "cost", cls=AnnouncedCommand, short_help="Predict what a kernel costs at a shape."
)
@click.option("--kernel", required=True, metavar="K", help="Name from dfmp2 kernels list.")
@click.option(
    "--shape", required=True, metavar="SHAPE", help="small, medium, large or NOCC/NVIR/NAUX."
)
@click.option(
    "--target",
    default="trn1",
    show_default=True,
    metavar="trn1|trn2",
    help="Chip; the model is of one physical core.",
)
@click.option(
    "--variant", metavar="NAME", help="Form of the kernel.  [default: the fastest that fits]"
)
@AS_JSON
def kernels_cost(kernel: str, shape: str, target: str, variant: str | None, as_json: bool) -> None:
    """Predict time, traffic and memory of all calls that cover SHAPE on one core, in float32.

    The best time is that of the busiest engine and of what no other engine hides, without launches,
    which are listed apart; all engines are derated alike for the range.
    """
    from dfmp2.trainium.calls import parse_shape
    from dfmp2.trainium.costs import catalogue
    from dfmp2.trainium.costs.model import find_chip

    chip = find_chip(target)
    wanted = parse_shape(shape)
    row = catalogue.find(kernel)
    price = catalogue.best(row, wanted, chip, variant)
    trace = catalogue.largest_trace(price, chip)
    if as_json:
        click.echo(json.dumps(catalogue.price_dict(price, trace), indent=2))
    else:
        click.echo(catalogue.price_text(row, wanted, chip, price, trace), nl=False)


@kernels_command.command(
    "check", cls=AnnouncedCommand, short_help="Check that a backend keeps the pair-term contract."
)
@click.option(
    "--lane",
    type=Words(BACKENDS[1:], BACKEND_WORDS),
    default="nki-interpreter",
    show_default=True,
    help="Backend to check, see dfmp2 backends.",
)
@click.option(
    "--target",
    type=click.Choice(["trn1", "trn2"]),
    help="Chip whose rules nki-interpreter obeys.  [default: trn1]",
)
@options_of("threads")
def kernels_check(lane: str, target: str | None, threads: int | None) -> None:
    """Compare blocks of pair terms of a backend with their definition in float64.

    Exit code 8 if a block is wrong, 6 if the backend cannot be used here.
    """
    count = prepare_libraries(threads)
    from dfmp2.backends import contract, registry

    if target is None:
        backend, _ = registry.select_backend(lane, "auto", count)
    elif lane == "nki-interpreter":
        from dfmp2.trainium import entry

        backend = entry.interpreter(target)
    else:
        raise click.UsageError(f"--target {target}: --lane {lane} runs on the chip that is here")
    findings = []
    with Console(quiet=False, log=None) as console:
        for case in contract.CASES:
            findings.append(contract.examine_backend(backend, case))
            console.step(len(findings), len(contract.CASES), "blocks")
    click.echo(_findings_text(lane, findings), nl=False)
    failed = sum(not found.passed for found in findings)
    if failed:
        raise ComparisonFailed(
            f"backend {lane} misses its contract in {failed} of {len(findings)} blocks, see the "
            "table"
        )


@kernels_command.command(
    "warmup", cls=AnnouncedCommand, short_help="Compile the programs of a molecule or shape ahead."
)
@click.argument("molecule", required=False)
@click.option("--basis", metavar="NAME", help="Orbital basis of MOLECULE, e.g. cc-pvdz.")
@click.option(
    "--shape",
    metavar="SHAPE",
    help="Instead of MOLECULE: small, medium, large or NOCC/NVIR/NAUX.",
)
@click.option(
    "--beta",
    metavar="NOCC/NVIR",
    help="With --shape: correlated orbitals of the second spin of an open shell.",
)
@click.option(
    "--lane",
    type=click.Choice(["nki", "nki-xla"]),
    default="nki",
    show_default=True,
    help="nki needs the compiler and no device, nki-xla needs the device.",
)
@click.option(
    "--transform", is_flag=True, help="Also compile what run --transform device launches."
)
@click.option(
    "--target", metavar="trn1|trn2", help="Chip to compile for.  [default: the one here, else trn1]"
)
@AS_JSON
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

    Programs serve every molecule whose sizes fall into the same buckets (virtuals to 32, fitting
    functions to 128) and whose last block of occupied orbitals is as long, so that some of them
    serve a whole batch. After SIGTERM the current program is still compiled. Exit code 6 if nothing
    can be compiled here or the compiler refuses a kernel.
    """
    spins, nao = _shapes(molecule, basis, shape, beta)
    from dfmp2.trainium import entry
    from dfmp2.trainium.costs.model import find_chip
    from dfmp2.trainium.launch import compiler, environment, toolchain

    if not spins:
        raise click.UsageError("give MOLECULE with --basis, or --shape")
    if not transform:
        nao = 0
    chip = find_chip(target or toolchain.device_target() or "trn1").name
    if lane == "nki-xla":
        refused = entry.refusal(lane)
        if refused is not None:
            raise BackendUnavailable(f"--lane {lane} cannot be used: {refused}")
        proof = entry.launch_ahead(spins, nao)
        place = environment.settings(lane, chip)["NEURON_COMPILE_CACHE_URL"]
    else:
        proof = compiler.compile_ahead(spins, chip, nao=nao)
        place = str(environment.cache_folder())
    programs = proof.compiled + proof.cache_hits
    found = {
        "lane": lane,
        "target": chip,
        "programs": programs,
        "compiled": proof.compiled,
        "cache_hits": proof.cache_hits,
        "compile_seconds": round(proof.compile_seconds, 3),
        "cache": place,
    }
    if as_json:
        click.echo(json.dumps(found, indent=2))
        return
    click.echo(
        f"{counted_text(programs, 'program')} for {chip}: {proof.compiled} compiled now in "
        f"{proof.compile_seconds:.1f} s, {proof.cache_hits} found in {place}"
    )


def _findings_text(lane: str, findings: Sequence[Finding]) -> str:
    """The table of `dfmp2 kernels check`."""
    from dfmp2.backends.contract import PAIR_TOLERANCE, TOLERANCE

    lines = [
        f"contract of backend {lane}: relative errors against float64,",
        f"allowed {TOLERANCE:.0e} (sums) and {PAIR_TOLERANCE:.0e} (a pair)",
        f"{'nvir':>9}{'naux':>6}  {'block':<10}{'direct':>10}{'exchange':>10}{'worst pair':>12}",
    ]
    for found in findings:
        case = found.case
        if case.nvir == case.right:
            nvir = str(case.nvir)
        else:
            nvir = f"{case.nvir}x{case.right}"
        exchange = "-" if found.exchange is None else f"{found.exchange:.1e}"
        lines.append(
            f"{nvir:>9}{case.naux:>6}  "
            f"{case.kind:<10}{found.direct:>10.1e}{exchange:>10}{found.pair:>12.1e}  "
            f"{'ok' if found.passed else 'FAILED'}"
        )
    passed = sum(found.passed for found in findings)
    return "\n".join([*lines, f"{passed} of {len(findings)} blocks agree"]) + "\n"
