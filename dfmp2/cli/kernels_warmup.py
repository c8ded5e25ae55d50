"""`dfmp2 kernels warmup`: compile what a calculation will launch, before it runs."""

from __future__ import annotations

import json
from typing import Any

import click


@click.command("warmup", short_help="Compile the programs of a molecule or shape ahead.")
@click.argument("molecule", required=False)
@click.option("--basis", metavar="NAME", help="Orbital basis of MOLECULE, e.g. cc-pvdz.")
@click.option("--shape", metavar="SHAPE", help="Instead of MOLECULE: small, medium, large or NOCC,NVIR,NAUX.")
@click.option(
    "--beta", metavar="NOCC,NVIR", help="With --shape: correlated orbitals of the second spin of an open shell."
)
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
def command(
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
    from dfmp2.backends.nki import environment, lanes, toolchain
    from dfmp2.backends.nki.costs.chips import find_chip
    from dfmp2.cli.kernels import required_shapes
    from dfmp2.errors import BackendUnavailable

    spins, nao = required_shapes(molecule, basis, shape, beta)
    nao = nao if transform else 0
    chip = find_chip(target or toolchain.device_target() or "trn1").name
    if lane == "nki-xla":
        refused = lanes.refusal(lane)
        if refused is not None:
            raise BackendUnavailable(f"--lane {lane} cannot be used: {refused}")
        proof = lanes.launch_ahead(spins, nao)
        place = environment.settings(lane, chip)["NEURON_COMPILE_CACHE_URL"]
    else:
        proof, place = lanes.compile_ahead(spins, chip, nao=nao), str(environment.cache_folder())
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
