"""Sixty molecules with two workers, killed twice in the middle: the same energies as single runs, nothing twice."""

from __future__ import annotations

import json
import random
import signal
from pathlib import Path

import pytest

import dfmp2
from dfmp2.cli.batch_run import load
from tests.conftest import MOLECULES, run_command, succeed
from tests.test_batch import chain, results, start, wait_for

INPUTS = Path(__file__).parent.parent / "inputs"
BROKEN = {"cut": 3, "odd": 3, "uranium": 3, "cr2": 4, "coarse": 5}
MOVED = 0.05  # angstrom


def write_batch(folder: Path) -> int:
    """sixty.toml with its molecules; the number of items."""
    rng = random.Random(60)
    items = []

    def add(name: str, text: str, more: str = "") -> None:
        (folder / f"{name}.xyz").write_text(text)
        items.append(f'[[item]]\nmolecule = "{name}.xyz"\n{more}\n')

    for number in range(38):
        count, comment, *rows = (INPUTS / f"{('h2o', 'ch4', 'nh3')[number % 3]}.xyz").read_text().splitlines()
        moved = [
            " ".join([row.split()[0], *(f"{float(x) + rng.uniform(-MOVED, MOVED):.6f}" for x in row.split()[1:4])])
            for row in rows
            if row.strip()
        ]
        add(
            f"small-{number:02d}",
            "\n".join([count, comment, *moved]) + "\n",
            'frozen_core = "auto"' if number % 4 else "",
        )
    for number in range(2, 6):
        add(f"chain-{number}", chain(number))
        add(f"chain-{number}-sto", chain(number), 'basis = "sto-3g"')
    for name, basis in (("glycine", "sto-3g"), ("benzene", "sto-3g"), ("ch2i2", "def2-svp")):
        add(name, (INPUTS / f"{name}.xyz").read_text(), f'basis = "{basis}"')
    for name in ("nh2", "o2"):
        add(name, MOLECULES[name])
        add(f"{name}-tz", MOLECULES[name], 'basis = "cc-pvtz"')
    add("cut", "3\n\nO 0 0 0\n")
    add("odd", "2\n\nO 0 0 0\nH 0 0 0.97\n")
    add("uranium", "2\n\nU 0 0 0\nU 0 0 2.5\n")
    add("cr2", MOLECULES["h2o"], "scf-max-cycles = 3")
    add("coarse", MOLECULES["h2o"], 'precision = "mixed"\ntolerance = 1e-20')
    add("water", MOLECULES["h2o"], 'scf = "conventional"')
    add("cation", MOLECULES["h2o"], "charge = 1\nmultiplicity = 2")
    head = 'basis = "cc-pvdz"\nprecision = "fp64"\nthreads = 1\noutput = "out"\n'
    (folder / "sixty.toml").write_text(head + "".join(items))
    return len(items)


@pytest.mark.slow
def test_sixty_molecules_killed_twice(tmp_path):
    assert write_batch(tmp_path) == 60
    output = tmp_path / "out"
    kept: dict[str, tuple[int, int]] = {}
    for number in (12, 35):
        running = start(tmp_path, "run", "sixty.toml", "--workers", "2")
        wait_for(lambda number=number: len(results(output)) >= number, 300.0)
        running.send_signal(signal.SIGKILL)
        running.communicate(timeout=30)
        wait_for(lambda: succeed(status(tmp_path)).json["running"] == 0, 10.0)
        value = succeed(status(tmp_path)).json
        assert value["total"] == 60 and 0 < value["complete"] < 55
        now = results(output)
        assert {name: now[name] for name in kept} == kept
        kept = now
    done = run_command("batch", "run", "sixty.toml", "--workers", "2", cwd=tmp_path)
    assert done.code == 9 and f"55 of 60 items complete ({len(kept)} of them before), 5 failed" in done.out, done.err
    final = results(output)
    assert len(final) == 55 and {name: final[name] for name in kept} == kept
    value = succeed(status(tmp_path)).json
    assert {item["name"]: item["exit_code"] for item in value["items"] if item["status"] == "failed"} == BROKEN
    for name, code in BROKEN.items():
        assert json.loads((output / f"{name}.error.json").read_text())["code"] == code
    worst = 0.0
    for item in load([str(tmp_path / "sixty.toml")], {}, None, None).items:
        if item.name in BROKEN:
            continue
        given = dict(item.given)
        alone = dfmp2.run(item.path, **given)
        worst = max(worst, abs(alone.mp2_total_energy - dfmp2.read(output / f"{item.name}.h5").mp2_total_energy))
    assert worst < 1e-10


def status(folder: Path):
    """`batch status --json`."""
    return run_command("batch", "status", "sixty.toml", "--json", cwd=folder)
