"""What is a function of its arguments alone, against tables in `tests/data/tables`: the parameters
of all commands, predicted costs of kernels, planned memory and times, and what is printed, drawn
and exported of the results in `tests/data/stored_runs`.

`python -m tests.test_tables [NAME...]` writes the tables anew, to be read as a diff: each change
needs its reason. Formulas and other programs are elsewhere; here it shows that nothing changes by
accident.
"""

from __future__ import annotations

import dataclasses
import lzma
import math
import os
import re
import sys
import tempfile
from collections.abc import Callable, Iterator
from contextlib import redirect_stderr, redirect_stdout
from io import StringIO
from pathlib import Path
from typing import Any

import click
import pytest

from dfmp2.backends.base import Shape
from dfmp2.backends.cpu import CpuBackend
from dfmp2.cli.main import cli, main
from dfmp2.planning import memory, time
from dfmp2.planning.gradient_memory import gradient_memory, gradient_with_b
from dfmp2.planning.rates import DiskRates, Rates
from dfmp2.planning.sizes import Spin, Workload
from dfmp2.trainium.costs import catalogue, model, text

STORED = Path(__file__).parent / "data" / "tables"
RUNS = Path(__file__).parent / "data" / "stored_runs"  # commands.sh says how each was made


def shown(value: Any) -> str:
    """A value with as many digits as do not depend on the order of a sum."""
    if isinstance(value, bool) or not isinstance(value, int | float):
        return str(value)
    if isinstance(value, float) and math.isfinite(value):
        return f"{value:.9g}"
    return str(value)


def fields(record: Any) -> str:
    """The fields of a record that are not the default ones, and its properties that are numbers."""
    parts = []
    for field in dataclasses.fields(record):
        value = getattr(record, field.name)
        if isinstance(value, model.Chip):
            parts.append(value.name)
        elif dataclasses.is_dataclass(value):
            parts.append(f"{field.name}=({fields(value)})")
        elif value != field.default:
            parts.append(f"{field.name}={shown(value)}")
    for name, member in sorted(vars(type(record)).items()):
        if isinstance(member, property):
            value = getattr(record, name)
            if isinstance(value, int | float):
                parts.append(f"{name}={shown(value)}")
    return " ".join(parts)


# --- parameters of commands -----------------------------------------------------------------------

# What a parameter of a command may say of itself, and what it need not say.
SAID = {
    **{"required": False, "nargs": 1, "multiple": False, "is_flag": False, "flag_value": None},
    **{"count": False, "hidden": False, "default": None, "metavar": None, "show_default": None},
    **{"is_eager": False, "expose_value": True, "callback": None, "envvar": None},
}


def declared(parameter: click.Parameter) -> str:
    """What a parameter of a command accepts, its default, and whether it has no help."""
    told = {**vars(parameter), **parameter.to_info_dict()}
    kind = told["type"]
    parts = ["/".join([*told["opts"], *told["secondary_opts"]]), type(parameter).__name__]
    parts += [f"{name}={kind[name]}" for name in kind if name != "name" and kind[name]]
    for name, usual in SAID.items():
        value = told.get(name, usual)
        if value != usual:
            parts.append(f"{name}={getattr(value, '__qualname__', value)}")
    if not told.get("help"):
        parts.append("without help")
    return " ".join(parts)


def options() -> list[str]:
    """Each declaration of a parameter, with the commands that have it."""
    users: dict[str, list[str]] = {}

    def visit(command: click.Command, path: str) -> None:
        for parameter in command.params:
            users.setdefault(declared(parameter), []).append(path)
        context = click.Context(command)
        if isinstance(command, click.Group):
            for name in command.list_commands(context):
                inner = command.get_command(context, name)
                assert inner is not None
                visit(inner, f"{path} {name}".strip())

    visit(cli, "")
    return sorted(f"{declaration}: {', '.join(users[declaration])}" for declaration in users)


# --- kernels --------------------------------------------------------------------------------------

COSTED = {
    "K3": ((5, 30, 100), (21, 171, 570), (9, 448, 1536), (3, 600, 900), (30, 250, 700)),
    "K3x": ((5, 30, 100), (21, 171, 570), (3, 600, 900)),
    "transform": ((5, 30, 100), (40, 700, 900)),
    "gemm": ((300, 1100, 700), (2000, 900, 3000), (100, 70, 50)),
    "gemm_batch": ((130, 600, 260), (40, 2000, 90)),
    "syrk": ((1, 600, 700), (1, 1300, 100)),
    "trsm": ((1, 1300, 900), (1, 70, 100)),
    "mp2_energy": ((5, 190, 1), (3, 700, 1)),
}
SPINS = (Shape(9, 130, 400), Shape(7, 132, 400))


def costs() -> Iterator[str]:
    """What each kind of call keeps busy, the text of a price, and predictions."""
    for chip in model.CHIPS.values():
        yield fields(chip)
        for name, shapes in COSTED.items():
            row = catalogue.find(name)
            for shape in map(Shape._make, shapes):
                for variant in row.variants(shape, chip.target):
                    price = catalogue.best(row, shape, chip, variant)
                    title = f"{chip.name} {row.name} {tuple(shape)} {variant}"
                    yield f"{title} calls={price.calls} floor={shown(price.floor)}"
                    for call, engines in price.parts:
                        yield f"{title} {call.count} x {fields(engines)}"
    for row, shape in ((catalogue.KERNELS[0], SPINS[0]), (catalogue.KERNELS[3], Shape(9, 30, 70))):
        chip = model.CHIPS["trn1"]
        price = catalogue.best(row, shape, chip)
        trace = text.largest_trace(price, chip)
        yield from text.price_text(row, shape, chip, price, trace).splitlines()
    for one in (*catalogue.offer(SPINS, 3), *catalogue.offer(SPINS[:1])):
        yield fields(one)
    yield fields(catalogue.predict_transform(SPINS, 150, "trn1"))
    yield fields(catalogue.predict_product((3, 100, 200, 300), model.CHIPS["trn2"]))
    for number in (1, 2):
        needed = catalogue.listed_programs(SPINS[:number], model.CHIPS["trn2"], 150)
        yield from map(str, needed)
        chip = model.CHIPS["trn1"]
        yield from text.catalogue_text(SPINS[:number], needed, chip, number).splitlines()


# --- plans ----------------------------------------------------------------------------------------

OPEN = Workload(
    nao=230,
    naux_scf=1100,
    naux=870,
    spins=(Spin(17, 15, 201), Spin(14, 12, 204)),
    precision="auto",
    block_functions=21,
    scf_columns=23_000,
    rectangles=21_000,
    widest_shell=7,
    frontier=((8, 32), (7, 30)),
    single_exchange=True,
    primitives=410,
    potentials=1,
    cycles=13,
    checked=True,
    atoms=9,
)
CLOSED = dataclasses.replace(OPEN, spins=(Spin(17, 15, 201),), frontier=((8, 32),), starts=3)
WORK = {
    "open": OPEN,
    "closed": CLOSED,
    "float64": dataclasses.replace(CLOSED, precision="fp64", single_exchange=False),
    "conventional": dataclasses.replace(OPEN, naux_scf=0, examined=True, x2c_functions=400),
    "functional": dataclasses.replace(
        OPEN, grid=90_000, finer_grid=210_000, coarse_grid=31_000, operators=2, kernel=36
    ),
    "pure": dataclasses.replace(CLOSED, grid=90_000, finer_grid=210_000, exchange=False, kernel=1),
    "solvent": dataclasses.replace(OPEN, surface=2100),
    "quadrature": dataclasses.replace(CLOSED, points=12, precision="fp64"),
    "gradient": dataclasses.replace(OPEN, task="gradient", grid=90_000, surface=700),
    "properties": dataclasses.replace(CLOSED, task="properties", in_fields=6),
    "exact gradient": dataclasses.replace(OPEN, task="gradient", naux_scf=0),
    "nothing": dataclasses.replace(OPEN, naux=0, spins=(Spin(17, 0, 0), Spin(14, 0, 0))),
}
RATES = Rates(date="2026-11-28")
DISK = DiskRates(write=3.1e8, read=4.7e8, cached=2.9e9)


def plans() -> Iterator[str]:
    """Memory, traffic and times of calculations with much and with little memory."""
    yield fields(RATES)
    limits = CpuBackend(3).limits
    for name, work in WORK.items():
        yield f"{name}: {fields(work)}"
        yield f"{name}: {work.integrals()} {work.flops()}"
        yield f"{name}: {fields(memory.check_stage(work, 3))} {memory.device_host_bytes(work)}"
        if work.spins[0].nocc:
            yield f"{name}: {memory.card_host_bytes(work)} {gradient_with_b(work, 3)}"
        for budget in (10**12, 4 * 10**8, 2 * 10**8):
            plan = memory.memory_plan(work, limits, 3, program=10**8, budget=budget)
            if work.task != "energy":
                needed = gradient_memory(work, plan, 9, 3)
                plan = dataclasses.replace(plan, gradient=needed)
            moved = time.traffic(work, plan, limits)
            yield f"{name}, {budget:.0e}: {fields(plan)}"
            yield f"{name}, {budget:.0e}: {fields(moved)}"
            found = time.time_text(work, RATES, moved, DISK, plan.gradient)
            yield f"{name}, {budget:.0e}: {fields(found)}"
        yield f"{name}: {fields(time.pace(work, RATES))}"
    for work, dense in ((OPEN, dataclasses.replace(OPEN, naux=1900)), (CLOSED, None)):
        yield f"certificate: {shown(time.certificate_seconds(work, dense, 40, 3, RATES))}"


# --- what is made of stored results ---------------------------------------------------------------

NOT_SHOWN = re.compile(r"<(script|style|head)\b.*?</\1>", re.DOTALL)
LONGEST = 5  # words of a label; of more, a sentence, only what has digits is held


def without_sentences(line: str) -> str:
    """A line whose text is a label, or the numbers of a sentence."""
    opened, bracket, said = line.rpartition(">")
    words = said.split()
    if len(words) > LONGEST:
        words = [word for word in words if re.search(r"\d", word)] + ["..."]
    return f"{opened}{bracket}{' '.join(words)}"


def called(*arguments: str) -> list[str]:
    """The lines that a command prints."""
    out = StringIO()
    with redirect_stdout(out), redirect_stderr(StringIO()):
        assert main(arguments) == 0, arguments
    return out.getvalue().splitlines()


def in_a_folder(of_file: Callable[[str], Iterator[str]]) -> Callable[[], Iterator[str]]:
    """The lines of all stored results, which are unpacked into the working folder."""

    def lines() -> Iterator[str]:
        before = Path.cwd()
        with tempfile.TemporaryDirectory() as folder:
            os.chdir(folder)
            try:
                for packed in sorted(RUNS.glob("*.xz")):
                    Path(packed.stem).write_bytes(lzma.decompress(packed.read_bytes()))
                    yield f"--- {packed.stem}"
                    yield from of_file(packed.stem)
            finally:
                os.chdir(before)

    return lines


def pages(file: str) -> Iterator[str]:
    """The report and what `show` prints, without sentences."""
    called("report", file, "--output", "page.html")
    page = NOT_SHOWN.sub("", Path("page.html").read_text())
    Path("page.html").unlink()
    for element in re.split(r"(?=<)", page):
        line = without_sentences(element)
        if line and not line.startswith("</"):
            yield line
    yield from map(without_sentences, called("show", file))


# --- tables ---------------------------------------------------------------------------------------

TABLES: dict[str, Callable[[], Any]] = {
    "options": options,
    "costs": costs,
    "plans": plans,
    "pages": in_a_folder(pages),
}


def read(name: str) -> list[str]:
    """The lines of a table."""
    return lzma.decompress((STORED / f"{name}.txt.xz").read_bytes()).decode().splitlines()


@pytest.mark.parametrize("name", TABLES)
def test_what_depends_on_arguments_alone_changes_on_purpose_only(name: str) -> None:
    expected, found = read(name), list(TABLES[name]())
    differing = [pair for pair in zip(found, expected, strict=False) if pair[0] != pair[1]]
    assert not differing, differing[:3]
    assert len(found) == len(expected)


def rewrite() -> None:
    """Write the tables that are named, or all."""
    STORED.mkdir(exist_ok=True)
    for name in sys.argv[1:] or TABLES:
        lines = "\n".join(TABLES[name]()) + "\n"
        (STORED / f"{name}.txt.xz").write_bytes(lzma.compress(lines.encode()))


if __name__ == "__main__":
    rewrite()
