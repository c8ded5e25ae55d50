"""`dfmp2 batch plan`: what the items of a batch will need, and which will be refused."""

from __future__ import annotations

from collections.abc import Mapping
from typing import TYPE_CHECKING, Any

import click

from dfmp2.cli.batch_run import item_lines, of_a_batch
from dfmp2.cli.console import conclude
from dfmp2.cli.help import AnnouncedCommand
from dfmp2.cli.options import AS_JSON, MOST_WORKERS
from dfmp2.options import parse_bytes
from dfmp2.units import counted_text, format_bytes

if TYPE_CHECKING:
    from dfmp2.execution.manifest import Batch


@click.command(
    "plan",
    cls=AnnouncedCommand,
    short_help="Predict time and memory of every item, and every shard.",
)
@of_a_batch
@click.option(
    "--shards",
    type=click.IntRange(1, 100_000),
    default=1,
    show_default=True,
    help="Parts of the batch.",
)
@click.option(
    "--scf-chain",
    is_flag=True,
    help="Keep pieces of a series together, as batch run --scf-chain does.",
)
@click.option(
    "--workers",
    type=click.IntRange(1, MOST_WORKERS),
    default=1,
    show_default=True,
    help="Number of processes that divide the memory and the cores.",
)
@click.option(
    "--threads",
    type=click.IntRange(1, 4096),
    help="Threads of each worker.  [default: the manifest's, else cores / workers]",
)
@click.option(
    "--memory",
    metavar="SIZE",
    help="Memory of all workers, e.g. 16GB.  [default: the manifest's, else most of what is free]",
)
@AS_JSON
def batch_plan(
    batch: Batch,
    shards: int,
    scf_chain: bool,
    workers: int,
    threads: int | None,
    memory: str | None,
    as_json: bool,
) -> None:
    """Predict what every item costs, or why it will be refused, and show the shards that `batch run
    --shard I/N` computes.

    The shards depend on manifest and molecules only. Times are those of this machine when `dfmp2
    plan` or `dfmp2 run` has measured its rates, else of the machine the forecast was written on; in
    one process, for one step of an optimisation.
    """
    from dfmp2.execution.outlook import foresee_shards
    from dfmp2.execution.pool import worker_share
    from dfmp2.output.json import rows_json

    common = batch.items[0].options
    limit = common.memory
    if memory is not None:
        limit = parse_bytes(memory)
    share = worker_share(workers, threads or common.threads, limit)
    outlook = foresee_shards(batch, shards, share, chained=scf_chain)
    if as_json:
        click.echo(rows_json(outlook), nl=False)
        return
    for row in outlook["items"]:
        click.echo(item_lines(f"shard {row['shard']}", row["name"], _prospect(row)))
    loads = [shard["seconds"] for shard in outlook["shards"]]
    remark = ""
    if not outlook["measured"]:
        remark = " (at built-in rates; dfmp2 plan MOLECULE measures those of this machine)"
    refused = sum(bool(row["error"]) for row in outlook["items"])
    if refused:
        remark += f"; {refused} will be refused"
    extremes = ""
    if shards > 1:
        extremes = (
            f", the longest shard {duration(max(loads))}, the shortest {duration(min(loads))}"
        )
    conclude(
        f"{counted_text(outlook['total'], 'item')} in {counted_text(shards, 'shard')}: "
        f"{duration(sum(loads))} in all{extremes}, with {format_bytes(share.memory)} for each "
        f"worker{remark}"
    )


def _prospect(row: Mapping[str, Any]) -> str:
    """What an item needs, or why it will be refused."""
    if row["error"]:
        return f"will be refused ({row['code']}): {row['error']}"
    memory = row["memory_bytes"]
    time = duration(row["seconds"])
    if row["task"] == "optimize":
        time += " a step"
    text = f"{row['nao']} functions, {time}, {format_bytes(memory['peak'])}"
    if memory["scratch"]:
        text += f" and {format_bytes(memory['scratch'])} on disk"
    return text


def duration(seconds: float) -> str:
    """A duration in readable form."""
    if seconds < 90:
        return f"{seconds:.1f} s" if seconds < 10 else f"{seconds:.0f} s"
    if seconds < 5400:
        return f"{seconds / 60:.0f} min"
    return f"{seconds / 3600:.1f} h"
