"""The keywords of the Python interface, in groups, because not every function takes all of them.

They are the fields of `dfmp2.options.Options`, and those of a molecule; `tests/test_python.py`
compares them.
"""

from __future__ import annotations

import os
from typing import Any, Literal, TypedDict, get_args

from dfmp2.errors import Command, Message

BackendName = Literal[
    "auto",
    "cpu",
    "torch",
    "cuda",
    "cuda-tf32",
    "nki",
    "nki-xla",
    "nki-simulator",
    "nki-interpreter",
]
BACKENDS: tuple[BackendName, ...] = get_args(BackendName)  # as in `dfmp2.backends.registry`
BACKEND_WORDS = {"pytorch": "torch"}  # other names of backends


class MoleculeKeywords(TypedDict, total=False):
    """Properties of a molecule besides its atoms; not options of a calculation."""

    charge: int | None
    multiplicity: int | None
    units: Literal["angstrom", "bohr"] | None
    point_charges: Any
    point_charge_units: Literal["angstrom", "bohr"]


class ScfKeywords(TypedDict, total=False):
    """Options that a converged mean field has already fixed."""

    reference: Literal["auto", "rhf", "uhf", "rohf"]
    xc: str | None
    grid: int | str | tuple[int, int] | None
    relativity: Literal["none", "x2c"]
    solvent: str | None
    solvent_model: Literal["cpcm", "smd"]
    scf: Literal["df", "conventional"]
    scf_auxbasis: str | None
    scf_conv_tol: float
    scf_max_cycles: int
    guess: Literal["atoms", "mix", "core"]
    scf_from: str | os.PathLike[str] | None
    scf_starts: int


class SpaceKeywords(TypedDict, total=False):
    """Orbitals and functions that the pairs are built from."""

    stability: Literal["auto", "full", "follow", "off"] | None
    allow_poor_fit: bool
    frozen_core: int | Literal["none", "auto", "psi4", "orca", "pyscf"]
    frozen_virtual: int
    allow_small_gap: bool


class PairKeywords(TypedDict, total=False):
    """Options of the pair energies, `dfmp2 energy`."""

    method: Literal[
        "mp2",
        "scs-mp2",
        "sos-mp2",
        "scs-vdw-mp2",
        "scsn-mp2",
        "kappa-mp2",
        "sos-laplace",
        "drpa",
        "ks",
        "custom-scs-mp2",
        "custom-dh",
        "b2plyp",
        "b2gp-plyp",
        "b2k-plyp",
        "b2t-plyp",
        "mpw2plyp",
        "pbe0-dh",
        "pbe-qidh",
        "pbe0-2",
        "ptpss",
        "pwpb95",
        "dsd-blyp",
        "dsd-blyp-d3bj",
        "dsd-pbep86",
        "dsd-pbep86-d3bj",
        "dsd-pbepbe",
        "dsd-pbepbe-d3bj",
        "dsd-pbeb95",
        "dsd-pbeb95-d3bj",
        "revdsd-blyp-d3bj",
        "revdsd-pbep86-d3bj",
        "revdsd-pbep86-d4",
        "xyg3",
        "xygj-os",
        "xdh-pbe0",
        "wb97x-2(lp)",
        "wb97x-2(tqz)",
        "wb2plyp",
        "wb2gp-plyp",
        "wb88pp86",
        "wpbepp86",
        "rsx-0dh",
        "rsx-qidh",
    ]
    dispersion: Literal["auto", "none", "d3bj", "d4"]
    laplace: bool
    kappa: float | None
    os_scale: float | None
    ss_scale: float | None
    backend: BackendName
    tolerance: float
    check: bool
    certify_fit: bool


class MachineKeywords(TypedDict, total=False):
    """Options of both parts of a run."""

    precision: Literal["auto", "fp64", "mixed"]
    memory: int | str | None
    scratch: str | os.PathLike[str] | None
    threads: int | None


class WholeRunKeywords(TypedDict, total=False):
    """Options that need both parts in one run."""

    properties: bool
    polarizability: bool


class PreparedKeywords(ScfKeywords, SpaceKeywords, MachineKeywords, total=False):
    """Options of everything up to B, `dfmp2 prepare`."""

    auxbasis: str | None


class EnergyKeywords(PairKeywords, MachineKeywords):
    """Options of `dfmp2 energy`."""


class MeanFieldKeywords(SpaceKeywords, PairKeywords, MachineKeywords, WholeRunKeywords):
    """Options that remain open with a given mean field, except its fitting set."""


class Keywords(PreparedKeywords, PairKeywords, WholeRunKeywords, total=False):
    """All options except the basis, which is a positional parameter."""

    transform: Literal["auto", "host", "device"]


# Which part of a run an option concerns: everything up to B (dfmp2 prepare), the pair energies
# (dfmp2 energy), or both.
BOTH_PARTS = tuple(MachineKeywords.__annotations__)
BEFORE_PAIRS = (
    "basis",
    *(name for name in PreparedKeywords.__annotations__ if name not in BOTH_PARTS),
)
PAIRS = tuple(PairKeywords.__annotations__)
WHOLE_RUN = tuple(WholeRunKeywords.__annotations__)
NEEDS_WHOLE_RUN = Message(
    "needs the integrals of the SCF again, which no prepared file holds: use ", Command("run")
)
