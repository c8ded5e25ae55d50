"""`dfmp2 batch plan`: what a batch costs here and on other machines, and one large molecule on many ranks."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import replace
from pathlib import Path
from typing import TYPE_CHECKING, Any

import click
from click.core import ParameterSource

from dfmp2.cli.batch_display import duration
from dfmp2.cli.batch_manifest import load_manifest
from dfmp2.cli.calculation import calculation_options
from dfmp2.cli.console import Console
from dfmp2.errors import BackendUnavailable, InputError
from dfmp2.io.text import printable

if TYPE_CHECKING:
    from dfmp2.batch.manifest import Batch
    from dfmp2.fleet.instances import Fleet
    from dfmp2.fleet.queue import Store

RANKS = "1,2,4,8,16,32,64,128,256,512,1024"
MOST_RANKS = 100_000
FOR_RANKS = ("ranks", "tiles", "measure_tiles", "seed", "replay", "store_latency", "hand_out")
HAND_OUT = {
    "auto": "on one instance workers take tiles, with B in memory; on several, ranks take strips of rows and read B "
    "from storage meanwhile",
    "tiles": "workers take tiles on any number of instances, each of which has read all of B before; dfmp2 itself "
    "hands out strips of rows there",
}


@click.command("plan", short_help="Predict time and cost of a batch, here and on other machines.")
@click.argument("manifest", metavar="MANIFEST.toml | OUTPUT | FILE.xyz")
@click.option("--output", metavar="DIR", help="Folder of the results.  [default: that of the manifest]")
@click.option("--root", metavar="DIR", help="Folder that the manifest's paths are relative to.")
@click.option("--shards", type=click.IntRange(1, 100_000), default=1, show_default=True, help="Parts of the batch.")
@click.option("--scf-chain", is_flag=True, help="Keep pieces of a series together, as batch run --scf-chain does.")
@click.option("--fleet", metavar="FILE", help="TOML or JSON file of instances with prices and rates: time and cost.")
@click.option("--instances", metavar="LIST", help="With --fleet: numbers of instances.  [default: 1,2,4,8]")
@click.option("--molecule", metavar="ITEM", help="Spread this item over ranks.  [default: the only item there is]")
@click.option("--ranks", metavar="LIST", help=f"Numbers of ranks for one molecule.  [default: {RANKS}]")
@click.option("--measure-tiles", metavar="FILE", help="Measure the molecule's pair tiles here and write a JSON file.")
@click.option("--tiles", metavar="FILE", help="Tile times from such a file.  [default: from the rates]")
@click.option("--seed", type=int, default=0, show_default=True, help="Of the draw from measured tile times.")
@click.option("--replay", is_flag=True, help="Take measured tile times in their order, without a draw.")
@click.option(
    "--store-latency",
    metavar="US[,US]",
    help="Microseconds of a request to the shared counter, and of these those it is busy.  [default: measured here]",
)
@click.option(
    "--hand-out",
    type=click.Choice(["auto", "tiles"]),
    default="auto",
    show_default=True,
    help="Across instances: strips of rows as dfmp2 does, or single tiles as it might.",
)
@click.option("--overwrite", is_flag=True, help="Replace an existing file of tile times.")
@click.option("--json", "as_json", is_flag=True, help="Print one JSON object.")
@calculation_options
@click.pass_context
def plan(ctx: click.Context, /, manifest: str, as_json: bool, **given: Any) -> None:
    """Predict what every item costs and show the shards that `batch run --shard I/N` computes.

    The shards depend on manifest and molecules only. Times are those of this machine when `dfmp2 plan` or `dfmp2 run`
    has measured its rates, else of the machine the forecast was written on; one process, its default threads.

    --fleet predicts wall time, instance hours and cost on other machines. One molecule (FILE.xyz, --molecule ITEM, or
    the only item) is spread over ranks by a simulation of the queue of its pair tiles. Options of the calculation
    belong to FILE.xyz.
    """
    own = {name: value for name, value in given.items() if _from_command_line(ctx, name)}
    batch = _batch(manifest, own)
    lone = manifest.endswith(".xyz") or (given["fleet"] and len(batch.items) == 1)
    spread = lone or own.keys() & {"molecule", *FOR_RANKS}
    if "shards" in own and (spread or given["fleet"]):
        raise InputError("--shards belongs to this machine: with --fleet, or one molecule, give --instances")
    if "instances" in own and not (spread or given["fleet"]):
        raise InputError("--instances without --fleet: name the file that describes them")
    if spread:
        _large(batch, given, as_json=as_json)
    elif given["fleet"]:
        _many(batch, given, as_json=as_json)
    else:
        _here(batch, given["shards"], chained=given["scf_chain"], as_json=as_json)


def _here(batch: Batch, shards: int, *, chained: bool, as_json: bool) -> None:
    from dfmp2.batch.outlook import foresee
    from dfmp2.io.batch import to_json

    outlook = foresee(batch, shards, chained=chained)
    if as_json:
        click.echo(to_json(outlook.to_dict()), nl=False)
        return
    for row in outlook.items:
        sizes = "will be refused" if row.nao is None else f"{row.nao} functions, {duration(row.seconds)}"
        click.echo(
            printable(f"shard {row.shard:<5d} {row.name:24s} {sizes}{'' if not row.error else ': ' + row.error}")
        )
    loads = outlook.loads
    click.echo(
        f"{len(outlook.items)} items in {shards} shard{'s' * (shards != 1)}: {duration(sum(loads))} in all, the "
        f"longest shard {duration(max(loads))}, the shortest {duration(min(loads))}"
        f"{'' if outlook.measured else ' (at built-in rates; dfmp2 plan MOLECULE measures those of this machine)'}"
    )


def _many(batch: Batch, given: Mapping[str, Any], *, as_json: bool) -> None:
    from dfmp2.fleet import outlook, report
    from dfmp2.fleet.instances import read_fleet
    from dfmp2.io.batch import to_json

    fleet = read_fleet(given["fleet"])
    counts = _numbers("--instances", given["instances"] or "1,2,4,8")
    found, misfits, host = outlook.estimate_many(batch, fleet, counts, chained=given["scf_chain"])
    said = report.assumptions(
        fleet.instances,
        host,
        [
            "shards and order are those of dfmp2 batch run --shard I/k, workers as the file says; every instance is "
            "paid for from its request until its own shard is done",
            "results are on storage that all instances share, and cost nothing to write",
        ],
    )
    if as_json:
        click.echo(to_json(report.many_to_dict(found, misfits, fleet.currency, said)), nl=False)
    else:
        lines = report.many_to_text(found, misfits, fleet.currency, said).splitlines()
        click.echo("\n".join(printable(line) for line in lines))


def _large(batch: Batch, given: Mapping[str, Any], *, as_json: bool) -> None:
    from dfmp2.fleet import outlook, report
    from dfmp2.fleet.queue import REQUESTS, WAITED
    from dfmp2.io.batch import to_json

    fleet = _fleet(given["fleet"])
    ranks = _numbers("--ranks", given["ranks"] or RANKS)
    counts = _numbers("--instances", given["instances"]) if given["instances"] else ()
    item = outlook.choose(batch, given["molecule"])
    console = Console(quiet=as_json, log=None)
    store, origin = _store(given["store_latency"], console)
    work = outlook.workload_of(item, console)
    host = outlook.this_host(item.settings.options)
    if not fleet.instances:
        fleet = replace(fleet, instances=(outlook.host_instance(host),))
    measured = _tiles(given, work, host.threads, console)
    ask = outlook.Ask(
        ranks, counts, store, measured, None if given["replay"] else given["seed"], given["hand_out"] == "tiles"
    )
    scalings, misfits = outlook.estimate_large(work, fleet, host, ask)
    if not scalings:
        raise InputError(f"{item.name} fits none of the instances: {misfits[0].instance} {misfits[0].reason}")
    times = (
        "tile times from the rates, without spread (--measure-tiles measures them)"
        if measured is None
        else f"tile times measured on {measured.host} on {measured.date[:10]}, {measured.at_once} at once, "
        + ("replayed" if given["replay"] else f"drawn with seed {given['seed']}")
    )
    said = report.assumptions(
        fleet.instances,
        host,
        [
            "rank 0 converges the SCF with its own threads while the others wait",
            times,
            f"a request to the shared counter takes {1e6 * store.latency:.0f} us, {1e6 * store.service:.0f} us of them "
            f"exclusively ({origin}); a tile needs {REQUESTS}, its worker waits for {WAITED}",
            HAND_OUT[given["hand_out"]],
            outlook.shared_storage(fleet),
            *(f"left out: {one.instance} {one.reason}" for one in misfits),
        ],
    )
    if as_json:
        click.echo(to_json(report.large_to_dict(scalings, fleet.currency, said)), nl=False)
    else:
        lines = report.large_to_text(item.name, scalings, fleet.currency, said).splitlines()
        click.echo("\n".join(printable(line) for line in lines))


def _batch(source: str, own: dict[str, Any]) -> Batch:
    """The batch of a manifest, of a folder of results, or of one file with the options of the calculation."""
    from dfmp2.batch.manifest import make_batch

    calculation = {name: own[name] for name in own if name in CALCULATION}
    if not source.endswith(".xyz"):
        if calculation:
            name = next(iter(calculation))
            raise InputError(f"--{name.replace('_', '-')} belongs to FILE.xyz: write {name} = ... into the manifest")
        return load_manifest(source, own.get("root"), own.get("output"))
    if "basis" not in own:
        raise InputError("no --basis: name an orbital basis such as cc-pvdz")
    return make_batch([source], calculation, Path(own.get("output", "results")))


def _fleet(path: str | None) -> Fleet:
    from dfmp2.fleet.instances import Fleet, read_fleet

    return Fleet("", "-") if path is None else read_fleet(path)


def _tiles(given: Mapping[str, Any], work: Any, threads: int, console: Console) -> Any:
    """Tile times from a file, measured now and written to one, or None."""
    from dfmp2.fleet.tile_file import read_tiles, write_tiles

    if given["tiles"] and given["measure_tiles"]:
        raise InputError("--tiles and --measure-tiles: give one of them")
    if given["tiles"]:
        return read_tiles(given["tiles"])
    if not given["measure_tiles"]:
        return None
    import platform

    from dfmp2.backends.cpu import CpuBackend
    from dfmp2.fleet.tiles import measure
    from dfmp2.io.files import require_writable

    target = Path(given["measure_tiles"])
    require_writable(target, overwrite=given["overwrite"], option="--measure-tiles")
    console.stage(f"measuring the pair tiles, {threads} at once")
    found = measure(work, CpuBackend(1), threads, platform.node())
    write_tiles(target, found, overwrite=given["overwrite"])
    return found


def _store(text: str | None, console: Console) -> tuple[Store, str]:
    """The shared counter and where its numbers come from."""
    from dfmp2.fleet import latency
    from dfmp2.fleet.queue import Store

    if text is None:
        found = latency.load()
        if found is None:
            console.stage("measuring the shared counter, once")
            try:
                found = latency.measure()
            except BackendUnavailable as error:
                console.warning(str(error))
                return latency.BUILT_IN, "built-in"
        return found, "TCPStore.add on this host's loopback"
    try:
        values = [float(part) * 1e-6 for part in text.split(",")]
        return Store(values[0], *(values[1:] or [0.0])), "given"
    except (ValueError, TypeError) as error:
        raise InputError(
            f"--store-latency {text!r}: expected microseconds such as 200, or 200,30 with the time the counter is busy"
        ) from error


def _numbers(option: str, text: str) -> tuple[int, ...]:
    parts = [part.strip() for part in text.split(",")]
    if not all(part.isascii() and part.isdigit() and 1 <= int(part) <= MOST_RANKS for part in parts):
        raise InputError(f"{option} {text!r}: expected whole numbers from 1 to {MOST_RANKS}, such as 1,2,4,8")
    return tuple(sorted({int(part) for part in parts}))


def _from_command_line(ctx: click.Context, name: str) -> bool:
    return ctx.get_parameter_source(name) is ParameterSource.COMMANDLINE


_OWN = {"manifest", "output", "root", "shards", "scf_chain", "fleet", "instances", "molecule", "overwrite", "as_json"}
CALCULATION = {str(one.name) for one in plan.params} - _OWN - set(FOR_RANKS)
for _parameter in plan.params:
    if _parameter.name == "basis":
        _parameter.required = False  # a manifest names it
