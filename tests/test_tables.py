"""Pure functions of their arguments, against tables in `tests/data/tables`: the parameters of all
commands, integers and texts made from numbers, planned memory and times, and output and drawings
of the results in `tests/data/stored_runs`.

`python -m tests.test_tables [NAME...]` writes the tables anew, to be read as a diff (the two
largest are compressed: `xz -dc`): each change needs a reason. Other tests compare with formulas and
programs; these show that nothing changes by accident.
"""

from __future__ import annotations

import dataclasses
import itertools
import json
import lzma
import math
import re
import sys
import tempfile
from collections.abc import Callable, Iterator, Sequence
from contextlib import chdir
from pathlib import Path
from typing import Any

import numpy as np
import pytest

from dfmp2.backends import tiling
from dfmp2.backends.base import Limits, Shape
from dfmp2.backends.cpu import CpuBackend
from dfmp2.cli.batch_plan import _prospect, duration
from dfmp2.cli.console import about
from dfmp2.cli.main import cli
from dfmp2.errors import Dfmp2Error
from dfmp2.errors.messages import Option
from dfmp2.fitting.sets import find_partners
from dfmp2.integrals import grid
from dfmp2.integrals.three_center import shell_blocks
from dfmp2.molecule import basis
from dfmp2.molecule.basis_library import edits, nearest
from dfmp2.molecule.elements import SYMBOLS, fills_inner_shell, mass, radius
from dfmp2.molecule.frozen_core import count_core
from dfmp2.mp2.laplace import quadrature
from dfmp2.mp2.result import MP2Result
from dfmp2.options import values
from dfmp2.output import document, hdf5
from dfmp2.output import drawings as drawn
from dfmp2.output import text as texts
from dfmp2.output.html import sources
from dfmp2.output.html.sources import Entry, Origin
from dfmp2.output.json import study_json, to_json
from dfmp2.output.study import is_study, read_verified_study
from dfmp2.output.tile_shards import cut
from dfmp2.planning import devices, memory, time
from dfmp2.planning.gradient import gradient_memory, gradient_with_b
from dfmp2.planning.rates import DiskRates, Rates
from dfmp2.planning.sizes import Spin, Workload, exact_row_shares, sampled_pairs, scf_cycles
from dfmp2.scf.solvent import _key as key_of_solvent
from dfmp2.studies import coordinate, extrema, species
from dfmp2.trainium import calls, layout
from dfmp2.trainium.costs import catalogue, model
from dfmp2.trainium.kernels import sizes
from dfmp2.units import counted_text, format_bytes
from tests.conftest import WRITTEN
from tests.recorded import MESSAGES, Messages
from tests.sessions import leaves, same

STORED = Path(__file__).parent / "data" / "tables"
ROUNDING = 1e-13  # may be zero on another processor
RUNS = Path(__file__).parent / "data" / "stored_runs"  # commands.sh says how each was made
OLD = [
    WRITTEN / f"{name}.h5.xz"
    for name in ("core-potential", "x2c", "broken-symmetry", "conventional")
]


def shown(value: Any) -> str:
    """A value with the digits that do not depend on the order of a sum."""
    if isinstance(value, bool) or not isinstance(value, int | float):
        return str(value).replace("\n", " | ")
    if isinstance(value, float) and abs(value) < ROUNDING:
        return "0"
    if isinstance(value, float) and math.isfinite(value):
        return f"{value:.9g}"
    return str(value)


def fields(record: Any) -> str:
    """The fields of a record that differ from the defaults, and its numeric properties."""
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


LONGEST = 5  # words of a label; of longer texts, sentences, only words with digits are kept


def numbers_of(text: str) -> str:
    """A label, or the words with digits of a sentence."""
    words = text.split()
    if len(words) > LONGEST:
        words = [word.strip("(),.;:") for word in words if re.search(r"\d", word)] + ["..."]
    return " ".join(words)


def without_sentences(line: str) -> str:
    """A line, or an element of a page, with sentences reduced to their numbers."""
    opened, bracket, said = line.rpartition(">")
    opened = re.sub('="([^"]*)"', lambda match: f'="{numbers_of(match[1])}"', opened)
    return f"{opened}{bracket}{numbers_of(said)}"


# --- parameters of commands -----------------------------------------------------------------------

UNSAID = (None, False, [])


def options() -> list[str]:
    """Each declaration of a parameter, with the commands that have it."""
    # Its settings are those of every command: click keeps the help option that it makes once.
    context = cli.make_context("dfmp2", [], resilient_parsing=True)
    commands = cli.to_info_dict(context)["commands"]
    for group in ("batch", "kernels"):
        for name, command in commands[group]["commands"].items():
            commands[f"{group} {name}"] = command
    users: dict[str, list[str]] = {}
    for name, command in commands.items():
        for declared in command["params"]:
            if declared["name"] == "_click_default_help":
                continue  # of every command
            declared["help"] = bool(declared.get("help"))
            said = [f"{key}={declared[key]}" for key in declared if declared[key] not in UNSAID]
            users.setdefault(" ".join(said), []).append(name)
    return sorted(f"{said}: {', '.join(names)}" for said, names in users.items())


# --- functions of a few arguments -----------------------------------------------------------------

NVIR = (20, 64, 96, 128, 160, 190, 288, 416, 448, 600, 1100)
NAUX = (90, 128, 570, 1000, 1536, 3000, 8192)
PADDED = ([layout.padded_nvir(n) for n in NVIR], [layout.padded_naux(n) for n in NAUX])
TARGETS = ("gen2", "gen3")
TRAVERSALS = ((8, 8, 3, 1, True), (7, 9, 4, 2, False), (16, 5, 8, 3, False), (5, 5, 8, 2, True))
LIMITS = (
    CpuBackend(3).limits,
    Limits(("fp64",), tile_edge=6, tile_elements=10**5, workers=1, memory=10**9, least_edge=4),
    Limits(*(("mixed",), 9, 10**6, 1, 10**10), edge_elements=10**5, product_edge=300, least_edge=2),
)
NUMBERS = (0.0, -0.0, 1.234567e-9, -3.14159, 5.0, 999.4, 999.996, 12345.678, -2.5e7, 3.1e13)
NUMBERS_AND_NONE = (*NUMBERS, math.nan, math.inf)
TEXTS = ("", "short", "h2o-dimer.displaced-007.h5", "Ünïcödé e\u0301 結合 エネルギー", "a b " * 30)
MESSAGE = "cannot open /home/me/very/long/folder/x.h5: no such file: give its name, or run it again"
PROSPECT = {"error": "", "nao": 24, "seconds": 12.0, "memory_bytes": {"peak": 9e8, "scratch": 2e9}}
# The function and the values of each argument: all combinations are taken.
OF_NUMBERS: tuple[tuple[Callable[..., Any], tuple[Sequence[Any], ...]], ...] = (
    (layout.padded_nvir, (range(0, 300, 31),)),
    (layout.padded_naux, (range(0, 600, 77),)),
    (layout.tile_columns, (range(1, 520, 127),)),
    (layout.stored_slices, ((128, 256, 384), PADDED[1])),
    (layout.stored_columns, ((1, 1024, 2047, 2048, 2049, 4096, 5000),)),
    (layout.chunk_columns, ((0, 1, 128, 511, 512, 513, 1600),)),
    (layout.fitted_shape, ((1, 2, 5), (1, 3, 8))),
    (layout.slices_at_once, ((1, 2, 4, 6, 11, 12, 15, 16), (1, 5, 24, 217))),
    (layout.block_edge, PADDED),
    (layout.residents, (*PADDED, TARGETS)),
    (layout.placed_residents, (*PADDED, TARGETS)),
    (layout.sbuf_bytes, (*PADDED, (1, 4))),
    (layout.packing, (*PADDED, TARGETS)),
    (layout.emission, ((5, 8), (4, 8), (2, 4), (False,), (1, 2, 4))),
    (layout.emission, ((6,), (6,), (2, 4, 6), (True,), (1, 2))),
    (sizes.equal_parts, ((1, 511, 512, 513, 1600), (100, 512))),
    (sizes.upper_columns, (PADDED[0],)),
    (sizes.run_start, ((448, 300), (0, 1, 2))),
    (sizes.lower_start, (range(6),)),
    (sizes.sum_columns, ((1, 128, 129, 512, 640, 5000),)),
    (sizes.item_columns, ((1, 2, 4), PADDED[0])),
    (sizes.parts_of, (PADDED[0], (1, 4, 12, 64))),
    (sizes.depth_of, ((1, 128, 512, 1536, 2000),)),
    (sizes.pieces_of, ((1, 7, 24), (1, 2, 8))),
    (sizes.shares_of, ((1, 2, 4), PADDED[0])),
    (sizes.sum_places, ((1, 127, 128, 129, 512),)),
    (sizes.pairs_of, ((0, 4), (0, 2, 5), (6,), (2, 4), (False, True))),
    (sizes.sbuf_map, ((64, 190, 600, 1283), (1, 7), (1, 4), (16, 36), (4, 8))),
    (model.find_chip, (("trn1", "TRN2", "trn2-lnc2", "trn9"),)),
    (sizes.slot, (([], [0, 300, 1000]), (0, 1), (0, 1, 5), (1, 2, 4))),
    (calls.occupied_blocks, ((1, 8, 21, 64), (30, 448), (100, 3000))),
    (
        shell_blocks,
        (
            (np.array([1, 3, 5, 7, 9, 1, 1, 1, 3], np.int32),),
            (10,),
            (0, 1000, 2400, 8 * 55 * 9, 8 * 55 * 9 - 1, 10**6),
        ),
    ),
    (tiling.edge, ((1, 5, 23, 64), LIMITS, (0, 10**4, 10**7))),
    (tiling.triangle, ((1, 7, 23), LIMITS, (0, 10**5))),
    (tiling.rectangle, ((3, 11), (2, 9), LIMITS, (10**5,))),
    (tiling.strip, (LIMITS, (5, 190), (7, 200), (1, 9))),
    (sampled_pairs, ((0, 1, 5, 47, 48, 100, 2400, 2401, 10**4, 10**6),)),
    (
        *(exact_row_shares,),
        (((1,), (24,), (25,), (13, 11), (30, 28), (200, 6), (100, 3), (2, 300), (1000, 999)),),
    ),
    (scf_cycles, ((1e-4, 1e-6, 1e-9), (("H",), ("O", "Fe"), ("U",)))),
    (drawn.ticks, ((0.0, -3.7, 0.299), (0.3, 99.0, 2500.0), (3, 6, 7))),
    (drawn.axis_length, ((0.0, -2.5, 1e300, math.inf),)),
    (drawn.shortened_name, (TEXTS, (5, 17))),
    (document.energy_text, (NUMBERS_AND_NONE,)),
    (document.difference, (NUMBERS_AND_NONE,)),
    (document.size, (NUMBERS_AND_NONE,)),
    (document.fixed, ((*NUMBERS_AND_NONE, None), (0, 2, 5))),
    (counted_text, ((0, 1, 2), ("run",), ("", "runes"))),
    (document.displayed_width, (TEXTS,)),
    (document.cut_text, (TEXTS, (4, 9, 12))),
    (document.wrap_text, (TEXTS, (6, 20))),
    (document.shortened_lines, ((MESSAGE, *TEXTS), (20, 40), (1, 2, 4))),
    (document.without_folders, ((MESSAGE, "/a/b c/d", "a/b/c.h5"),)),
    (
        *(_prospect,),
        (
            (
                {"error": "no basis", "code": 3},
                {**PROSPECT, "task": "energy"},
                {**PROSPECT, "task": "optimize", "memory_bytes": {"peak": 10**9, "scratch": 0}},
            ),
        ),
    ),
    (duration, ((0.04, 9.96, 10.0, 89.9, 90.0, 5399.0, 5400.0, 1e6),)),
    (about, ((0.0, 4.9, 5.0, 42.0, 89.9, 90.0, 5399.0, 5400.0, 35999.0, 36000.0, 1e6),)),
    (format_bytes, ((*NUMBERS, 999, 1000, 999_995_000, 999_994_999),)),
    (count_core, (SYMBOLS[:90], ("none", "auto", "psi4", "orca", "pyscf"), (0, 10, 28))),
    (radius, (SYMBOLS,)),
    (mass, (SYMBOLS,)),
    (fills_inner_shell, (SYMBOLS,)),
)


NAMED = Option("moving")
CURVE = tuple(0.1 * k for k in range(9))
HEIGHTS = (3.0, 1.0, 0.2, 0.9, 1.4, 1.1, 0.5, 0.7, 2.0)
BASES = ("cc-pVDZ", "aug-cc-pv(t+d)z", "6-31G(d,p)", "6-311++g**", "def2-TZVP", "sto 3g", "pcseg_1")
FITTING_SETS = ("cc-pvdz-ri", "aug-cc-pvtz-mp2fit", "def2-universal-jkfit", "def2-svp-rifit", "x")
OF_TEXTS: tuple[tuple[Callable[..., Any], tuple[Sequence[Any], ...]], ...] = (
    (
        *(values.parse_bytes,),
        (
            (
                "8GB",
                "8 g",
                "7.5GiB",
                "100kib",
                "1B",
                ".5MB",
                "0B",
                "8",
                "-1GB",
                "9e3",
                "9999999999TB",
            ),
        ),
    ),
    (
        *(values.parse_grid,),
        (
            (
                "5",
                9,
                10,
                "99,590",
                (75, 302),
                "99, 589",
                "1,590",
                "9999,590",
                "a",
                True,
                "1,2,3",
                2.0,
            ),
        ),
    ),
    (
        values.dielectric_constant,
        (("water", "eps=10.4", "EPS = 1.01", "eps=1", "eps=inf", "e=4", " "),),
    ),
    (
        species.make_coefficient,
        (("2", " 1/2 ", 1.5, "0", -1, True, "x", "1e9", 100, 101), (NAMED,)),
    ),
    (species.parse_term, (("h2.xyz", "2*h2.xyz", " 3/2 * o2.xyz ", "2*", "0*a", "x*a"), (NAMED,))),
    (
        coordinate.parse_atoms,
        (("3", "1-3+7", "7+1-2", "4-2", "0", "1-8", "1+1-2", "a", ""), (7,), (NAMED,)),
    ),
    (coordinate.show_atoms, (((0,), (0, 1, 2, 6), (5, 3, 4, 1), ()),)),
    (
        *(coordinate.parse_place,),
        (
            (NAMED,),
            ("bond", "angle", "dihedral"),
            ("1,2", "3,2,1", "4,3,2,1", "1,1", "1,9", "1,a"),
            (4,),
        ),
    ),
    (basis.squash, (BASES + FITTING_SETS,)),
    (basis.readable, (("631g*", "6311++g**", "ccpvdz", "321g"),)),
    (basis.kind, (BASES + FITTING_SETS,)),
    (basis.purpose, (BASES + FITTING_SETS,)),
    (basis.is_mp2_fitting_set, (BASES + FITTING_SETS,)),
    (find_partners, (BASES,)),
    (edits, (("abcd", "", "acbd"), ("abcd", "abdc", "bacd", "xabcd", "ab"))),
    (
        nearest,
        (("cc-pvd", "ri-cc-pvdz", "6-31g(2d)", "zzz"), (("cc-pvdz", "cc-pvtz", "cc-pvdz-ri"),)),
    ),
    (grid.default_level, (("pbe", "b3lyp", "m06-2x", "scan", "tpss", "wb97x"),)),
    (grid._two_levels_up, (("0", "7", "8", "9", "99,590", "500,5810", "30,50"),)),
    (extrema.find_minimum, ((CURVE,), (HEIGHTS, HEIGHTS[::-1], sorted(HEIGHTS)), (3, 5))),
    (key_of_solvent, (("Water", "N,N-dimethyl formamide", "1,4-Dioxane"),)),
)


def in_digits(value: Any) -> Any:
    """A value with each number reduced to the digits that are compared."""
    if isinstance(value, tuple | list):
        return f"({', '.join(str(in_digits(item)) for item in value)})"
    return shown(value)


def functions() -> Iterator[str]:
    """Values of functions for many arguments, or the errors they raise."""
    for function, choices in OF_NUMBERS + OF_TEXTS:
        for given in itertools.product(*choices):
            try:
                value = in_digits(function(*given))
            except Dfmp2Error as error:
                value = type(error).__name__
            places = [repr(one) for one in given if not isinstance(one, Limits | Option)]
            yield f"{function.__name__}({', '.join(places)}) = {value}"
    for given in TRAVERSALS:
        steps = sizes.traversal(*given)
        yield f"traversal{given} = {steps}"
        for group in (1, 2):
            rows, _, residents, parts, diagonal = given
            items = sizes.grouped(steps, rows, residents, group, parts, diagonal)
            yield f"grouped {given}, {group} = {items} {sizes.emitted(steps, items, 190)}"
    for held in (0, 5000, 20_000, 10**6):
        within = tiling.triangle(23, LIMITS[1])
        yield f"visits {held} = {tiling.visits(within, held, 700, 500, same=True)}"
        apart = tiling.rectangle(11, 9, LIMITS[1])
        yield f"visits {held} = {tiling.visits(apart, held, 700, 500, same=False)}"
    keys = [(0, 0, 0, tile) for tile in tiling.triangle(23, LIMITS[1])]
    for count in (1, 2, 5, 30):
        yield f"cut {count} = {cut(keys, count)}"
    for lowest, highest, error in ((0.3, 5.0, 1e-6), (0.01, 40.0, 1e-9), (0.5, 0.5, 1e-8)):
        rule = quadrature(lowest, highest, error)
        yield f"quadrature {lowest} {highest} {error} = {len(rule.w)} points"


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


def costs() -> Iterator[str]:
    """The engine work of each kind of call."""
    for chip in model.CHIPS.values():
        for name, shapes in COSTED.items():
            row = catalogue.find(name)
            for shape in map(Shape._make, shapes):
                for variant in row.variants(shape, chip.target):
                    title = f"{chip.name} {row.name} {tuple(shape)} {variant}"
                    for call, engines in catalogue.best(row, shape, chip, variant).parts:
                        yield f"{title} {call.count} x {fields(engines)}"


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
# Small enough that arrays bound every work space; and large enough that none do.
SMALL = Workload(
    nao=23,
    naux_scf=101,
    naux=79,
    spins=(Spin(7, 5, 14), Spin(6, 4, 15)),
    precision="auto",
    block_functions=17,
    scf_columns=250,
    rectangles=210,
    widest_shell=5,
    frontier=((2, 3), (1, 4)),
    single_exchange=True,
    examined=True,
    operators=2,
    cycles=11,
    starts=2,
    primitives=31,
    atoms=4,
)
LARGE = dataclasses.replace(
    SMALL,
    nao=800,
    naux_scf=4000,
    naux=3000,
    spins=(Spin(60, 50, 700), Spin(55, 45, 705)),
    block_functions=40,
    scf_columns=300_000,
    frontier=((16, 32), (15, 32)),
)
GRADIENT = dataclasses.replace(SMALL, task="gradient")
CHANGES: dict[str, tuple[Workload, tuple[dict[str, Any], ...]]] = {
    "small": (
        SMALL,
        (
            {},
            {"precision": "fp64", "checked": True},
            {"frontier": ((2, 3), (20, 40)), "potentials": 3},
            {"spins": (Spin(7, 5, 14),), "single_exchange": False},
            {"grid": 300, "finer_grid": 400, "kernel": 6},
            {"grid": 5000, "finer_grid": 7000, "examined": False},
            {"grid": 900, "finer_grid": 1300, "precision": "fp64"},
            {"surface": 90},
            {"surface": 2000},
            {"x2c_functions": 400, "exchange": False},
            {"naux_scf": 0, "operators": 1, "single_exchange": False},
            {"points": 12, "precision": "fp64"},
            {"nao": 300},
        ),
    ),
    "large": (LARGE, ({}, {"nao": 2000, "scf_columns": 700_000}, {"surface": 300_000})),
    "small gradient": (
        GRADIENT,
        (
            {},
            {"precision": "fp64", "in_fields": 6},
            {"task": "properties"},
            {"grid": 900},
            {"potentials": 2, "x2c_functions": 61},
            {"naux_scf": 0, "operators": 1},
        ),
    ),
    "large gradient": (
        LARGE,
        (
            {"task": "gradient"},
            {
                "task": "gradient",
                "naux": 0,
                "spins": (Spin(60, 0, 0), Spin(55, 0, 0)),
                "grid": 9000,
            },
        ),
    ),
}
for title, (first, changes) in CHANGES.items():
    WORK |= {f"{title} {change}": dataclasses.replace(first, **change) for change in changes}
RATES = Rates(date="2026-11-28")
DISK = DiskRates(write=3.1e8, read=4.7e8, cached=2.9e9)


def plans() -> Iterator[str]:
    """Memory, traffic and times of calculations with ample and with little memory."""
    yield fields(RATES)
    limits = CpuBackend(3).limits
    for name, work in WORK.items():
        yield f"{name}: {fields(work)}"
        yield f"{name}: {work.integrals()} {work.flops()}"
        yield f"{name}: {fields(memory.check_stage(work, 3))} {devices.host_bytes(work)}"
        yield f"{name}: {fields(memory.exact_rows_stage(work, 3, 9))}"
        if work.spins[0].nocc:
            yield f"{name}: {devices.card_host_bytes(work)} {gradient_with_b(work, 3)}"
        for budget in (10**12, 4 * 10**8, 2 * 10**8, 0):
            plan = memory.memory_plan(work, limits, 3, program=10**8, budget=budget)
            if work.task != "energy":
                plan = dataclasses.replace(plan, gradient=gradient_memory(work, plan, 9, 3))
            moved = time.traffic(work, plan, limits)
            yield f"{name}, {budget:.0e}: {fields(memory.without_pairs(plan, work))}"
            yield f"{name}, {budget:.0e}: {fields(plan)}"
            yield f"{name}, {budget:.0e}: {fields(moved)}"
            found = time.time_text(work, RATES, moved, DISK, plan.gradient)
            yield f"{name}, {budget:.0e}: {fields(found)}"
        yield f"{name}: {fields(time.pace(work, RATES))}"
    for work, dense in ((OPEN, dataclasses.replace(OPEN, naux=1900)), (CLOSED, None)):
        yield f"certificate: {shown(time.certificate_seconds(work, dense, 40, 3, RATES))}"


# --- what is made of stored results ---------------------------------------------------------------

OF_THE_PROGRAM = re.compile(
    r"/(provenance|creator|sha256|resources|timings|memory|created|stdout)\b"
)
NOT_SHOWN = re.compile(r"<(script|style|head)\b.*?</\1>", re.DOTALL)


def stored_outputs() -> Iterator[str]:
    """What is made of all stored results, which are unpacked into the working folder; a page shows
    the first two runs of a study in full."""
    with (
        tempfile.TemporaryDirectory() as folder,
        chdir(folder),
        pytest.MonkeyPatch.context() as patch,
    ):
        patch.setattr(sources, "MOST_IN_FULL", 2)
        for packed in (*sorted(RUNS.glob("*.xz")), *OLD):
            name = packed.stem
            Path(name).write_bytes(lzma.decompress(packed.read_bytes()))
            yield f"--- {name}"
            for line in outputs(name):
                if not OF_THE_PROGRAM.search(line):
                    yield line


def elements_of(page: str) -> Iterator[str]:
    """The elements of a page without sentences."""
    for element in re.split(r"(?=<)", NOT_SHOWN.sub("", page)):
        line = without_sentences(element)
        if line and not line.startswith("</"):
            yield line


def outputs(file: str) -> Iterator[str]:
    """Page, text, notebook display and JSON of a stored result or study."""
    read = read_verified_study if is_study(file) else hdf5.read_verified
    stored, content = read(file)
    if isinstance(stored, MP2Result):
        page = sources.result_page(Entry(file, stored, content), None)
        yield from texts.report(stored).splitlines()
        yield from texts.pair_table(stored).splitlines()
        brief, in_json = texts.brief_report(stored, file), to_json(stored, file)
    else:
        runs = [Entry(name, run, f"{content} (table)") for name, run in stored.runs.items()]
        page = sources.study_page(stored, runs, None, Origin(file, f"{content} (table)"))
        brief, in_json = texts.brief_study(stored, file), study_json(stored, file)
    yield from elements_of(page)
    yield from map(without_sentences, brief.splitlines())
    yield from re.split(r"(?=<)", stored._repr_html_())
    yield from map(without_sentences, repr(stored).splitlines())
    for path, value in leaves(json.loads(in_json)):
        yield f"{path} {shown(value)}"


# --- tables ---------------------------------------------------------------------------------------

TABLES: dict[str, Callable[[], Any]] = {
    "options": options,
    "functions": functions,
    "costs": costs,
    "plans": plans,
    "stored": stored_outputs,
}


COMPRESSED = ("plans", "stored")  # of a third of a megabyte and more


def read(name: str) -> list[str]:
    """The lines of a table."""
    if name in COMPRESSED:
        content = lzma.decompress((STORED / f"{name}.txt.xz").read_bytes())
    else:
        content = (STORED / f"{name}.txt").read_bytes()
    return content.decode().splitlines()


@pytest.mark.parametrize("name", TABLES)
def test_what_depends_on_arguments_alone_changes_on_purpose_only(name: str) -> None:
    expected, found = read(name), list(TABLES[name]())
    pairs = zip(found, expected, strict=False)
    differing = [pair for pair in pairs if pair[0] != pair[1] and not same(*pair, 1e-7)]
    assert not differing, differing[:3]
    assert len(found) == len(expected)


ASKED = [("InputError", "2 atoms"), ("InputError", "no atoms")]  # and recorded


@pytest.mark.parametrize(
    "asked", [[("InputError", "3 atoms")], [("ValueError", "2 atoms")], [*ASKED, ASKED[1]]]
)
def test_a_message_that_differs_is_noticed(asked: list[tuple[str, str]]) -> None:
    """Another text or type, and one too many."""
    messages = Messages()
    messages.test = ("test_x.py", "test_y")
    messages.rows = {messages.test: [": ".join(one) for one in ASKED]}
    for right in asked[:-1]:
        messages.compare(*right)
    with pytest.raises(AssertionError, match=f"message {len(asked)} differs"):
        messages.compare(*asked[-1])


def test_recorded_messages_are_those_of_tests() -> None:
    """Of the files that were collected; `python -m pytest --record` removes the others."""
    assert MESSAGES.recording or MESSAGES.stale() == set()


def rewrite() -> None:
    """Write the named tables, or all."""
    STORED.mkdir(exist_ok=True)
    for name in sys.argv[1:] or TABLES:
        lines = "\n".join(TABLES[name]()) + "\n"
        if name in COMPRESSED:
            (STORED / f"{name}.txt.xz").write_bytes(lzma.compress(lines.encode()))
        else:
            (STORED / f"{name}.txt").write_text(lines)


if __name__ == "__main__":
    rewrite()
