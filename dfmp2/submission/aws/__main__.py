"""What the containers of a submitted batch run.

    python -m dfmp2.submission.aws shard   --place s3://BUCKET/PREFIX --inputs NAME [--programs s3://...] [-- OPTIONS]
    python -m dfmp2.submission.aws warm-up --place s3://BUCKET/PREFIX --inputs NAME [--programs s3://...]
    python -m dfmp2.submission.aws warm-up --manifest FILE [--root DIR]

Exit codes are those of `dfmp2 batch run` (OPTIONS are its own) and `dfmp2 kernels warmup`.
"""

from __future__ import annotations

import argparse
import sys
from collections.abc import Sequence
from pathlib import Path

from dfmp2.batch.manifest import read_manifest
from dfmp2.errors import Dfmp2Error
from dfmp2.io.text import printable
from dfmp2.submission.aws.bucket import Store, read_location
from dfmp2.submission.aws.session import connect
from dfmp2.submission.aws.shard import Task, fetch_inputs, run_shard, working_folder
from dfmp2.submission.aws.supervisor import Supervisor, say
from dfmp2.submission.aws.warm_up import run_warm_up


def main(arguments: Sequence[str] | None = None) -> int:
    """Run one of both; what goes wrong is one line in the job's log."""
    try:
        with Supervisor() as supervisor:
            return _run(_read(arguments), supervisor)
    except Dfmp2Error as error:
        say(printable(str(error)))
        return error.exit_code


def _run(given: argparse.Namespace, supervisor: Supervisor) -> int:
    programs = None if given.programs is None else read_location(given.programs, "--programs")
    if given.what == "warm-up" and given.manifest is not None:
        root = None if given.root is None else Path(given.root)
        return run_warm_up(read_manifest(given.manifest, root=root), given.target, None, None, supervisor)
    place, store = read_location(given.place, "--place"), Store(connect("s3"))
    if given.what == "shard":
        return run_shard(Task(place, given.inputs, programs, given.every, tuple(given.options)), store, supervisor)
    with working_folder() as folder:
        batch = fetch_inputs(place, given.inputs, store, folder)
        return run_warm_up(batch, given.target, store, programs, supervisor)


def _read(arguments: Sequence[str] | None) -> argparse.Namespace:
    parser = argparse.ArgumentParser(prog="python -m dfmp2.submission.aws", description="Runs inside AWS Batch.")
    kinds = parser.add_subparsers(dest="what", required=True)
    shard, warm_up = kinds.add_parser("shard"), kinds.add_parser("warm-up")
    for kind in (shard, warm_up):
        kind.add_argument("--place", metavar="s3://BUCKET/PREFIX", required=kind is shard)
        kind.add_argument("--inputs", metavar="NAME", required=kind is shard)
        kind.add_argument("--programs", metavar="s3://BUCKET/PREFIX")
    shard.add_argument("--every", type=float, default=60.0, metavar="SECONDS")
    shard.add_argument("options", nargs="*", metavar="-- OPTIONS")
    warm_up.add_argument("--manifest", metavar="FILE")
    warm_up.add_argument("--root", metavar="DIR")
    warm_up.add_argument("--target", default="trn1")
    given = parser.parse_args(arguments)
    if given.what == "warm-up" and (given.manifest is None) == (given.place is None or given.inputs is None):
        parser.error("expected --place and --inputs, or --manifest")
    return given


if __name__ == "__main__":
    sys.exit(main())
