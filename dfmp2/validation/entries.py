"""The reference energies that travel with the package, as frozen values.

An entry is one number, or several of one calculation, that another program produced; it says which
program, where it is published, how the calculation is set up, and how far we may be off and why. A
quantity is a linear combination of a property over the entry's calculations,

    value = sum_k factor_k property(calculation_k)

so that interaction energies and basis set extrapolations are entries like any other.

The data are `cases.json` and `trnsci.json` beside this module, made by
scripts/make_validation_entries.py.

Below: kernel shapes without a molecule: arrays whose MP2 energy is known before anything is computed.

"closed-form", the arrays of the GAMESS RI-MP2 mini-app with its orbital energies exchanged, so that
denominators are negative as in a molecule: B_iaP = 1/naux, e_i = 1, e_a = 2, hence

    (ia|jb) = 1/naux,  D = -2,  E = sum_ij (2 direct_ij - exchange_ij) = -nvir^2 nocc^2 / (2 naux^2)

"trnblas", the pseudo-random arrays of the public example of trnblas: `torch.manual_seed(42)`, then
in this order and in float32 (n = nocc + nvir; randn normal, rand uniform in [0, 1))

    C_occ = 0.1 randn(n, nocc)        C_vir = 0.1 randn(n, nvir)       (mu nu|P) = 0.01 randn(n, n, naux)
    R = 0.01 randn(naux, naux)        (P|Q) = R R^T + naux 1
    e_i = -sort(rand(nocc)) - 0.5     e_a = sort(rand(nvir)) + 0.1

PyTorch's stream is the 32-bit Mersenne twister, which NumPy has too, so PyTorch is not needed.

Sources: jkwack/GAMESS_RI-MP2_MiniApp, source/rimp2_energy_whole_KERN.f90; trnsci/trnblas,
examples/df_mp2.py.
"""

from __future__ import annotations

import fnmatch
import importlib.util
import json
from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from importlib.resources import files
from typing import Any

import numpy as np
from numpy.typing import NDArray

from dfmp2.errors import InputError, ResourceError
from dfmp2.errors.messages import Option
from dfmp2.host import resources
from dfmp2.integrals.metric import factorise, fit
from dfmp2.integrals.spaces import ActiveSpace
from dfmp2.molecule.molecule import Molecule
from dfmp2.options import Options
from dfmp2.units import format_bytes

TABLES = {"main": "cases.json", "trnsci": "trnsci.json"}
TAGS = {
    "rhf": "restricted reference",
    "uhf": "unrestricted reference",
    "rohf": "restricted open-shell reference",
    "kappa-mp2": "regularised pair energies",
    "sos-laplace": "opposite spin by a Laplace transform",
    "drpa": "direct random-phase approximation",
    "kohn-sham": "Kohn-Sham orbitals",
    "double-hybrid": "functionals with a part of second order",
    "df-scf": "density-fitted SCF",
    "conventional-scf": "SCF with four-centre integrals",
    "frozen-core": "core orbitals left out",
    "ecp": "effective core potential",
    "ghost": "ghost atoms",
    "combination": "interaction energy or basis set extrapolation: several calculations",
    "gradient": "gradient (Eh/bohr), natural occupations, dipole moment, polarizability",
    "optimized": "energy of a geometry that is optimised first",
    "conventional-mp2": "a reference without density fitting: the difference is shown, without a "
    "verdict",
    "kernel": "arrays with a known energy, no molecule",
    "float64": "float32 may be more than 1e-7 Eh off: computed with auto where mixed is asked for",
    "slow": "more than about 20 seconds on two cores, or more than 2 GB",
}
# What an entry may need, and how to get it
MODULES = {
    "basis_set_exchange": "pip install 'dfmp2[bse]'",
    "geometric": "pip install 'dfmp2[opt]'",
    "dftd3": "pip install 'dfmp2[disp]'",
}


# The published sets, whatever they are, and the solution that was found.
OF_ALL: dict[str, Any] = {"stability": "off", "allow_small_gap": True, "allow_poor_fit": True}


@dataclass(frozen=True, slots=True)
class ReferenceCalculation:
    """One DF-MP2 calculation.

    Attributes
    ----------
    geometry : "O 0.0 0.0 0.22; @H ...", bohr; @ marks a ghost atom
    charge, multiplicity : of the molecule
    options : with names of all bases; frozen_core is a number of orbitals per spin, or the name of
        a program's table
    gradient : whether gradient and densities are computed as well
    constraints : the geometry is optimised first, under these constraints in geomeTRIC's format;
        None: it is not
    """

    geometry: str
    charge: int
    multiplicity: int
    options: Options
    gradient: bool = False
    constraints: str | None = None

    @property
    def molecule(self) -> Molecule:
        """The molecule, coordinates in bohr."""
        atoms = [atom.split() for atom in self.geometry.split(";")]
        return Molecule(
            symbols=tuple(label.lstrip("@") for label, *_ in atoms),
            coordinates=np.array([[float(x) for x in position] for _, *position in atoms]),
            ghost=tuple(label.startswith("@") for label, *_ in atoms),
            charge=self.charge,
            multiplicity=self.multiplicity,
            source="validation entry",
        )


@dataclass(frozen=True, slots=True)
class Quantity:
    """One reference value.

    Attributes
    ----------
    name : as printed, e.g. "mp2_total_energy" or "interaction mp2_total_energy"
    of : property of a calculation it is made of
    value : of the reference program, Eh
    factors : one per calculation of the entry
    """

    name: str
    of: str
    value: float
    factors: tuple[float, ...] = (1.0,)


@dataclass(frozen=True, slots=True)
class Published:
    """What a program published about its own agreement with the reference; Eh, None where it did
    not."""

    difference: float | None
    bound: float | None
    by: str


@dataclass(frozen=True, slots=True)
class ReferenceEntry:
    """Reference values of one program.

    Attributes
    ----------
    id : unique name
    program, version : what produced the numbers
    source : where they are published
    quantities : the numbers
    calculations : what we compute; () for a kernel
    kernel : arrays instead of a molecule, or None
    tolerance : largest difference, Eh; `validate.MIXED` is added in mixed precision; None to show
        it without a verdict
    tolerance_reason : why that much
    tags : keys of TAGS
    needs : keys of MODULES
    published : what the trnsci table prints beside our difference, or None
    """

    id: str
    program: str
    version: str
    source: tuple[str, ...]
    quantities: tuple[Quantity, ...]
    calculations: tuple[ReferenceCalculation, ...]
    kernel: SyntheticSizes | None
    tolerance: float | None
    tolerance_reason: str
    tags: frozenset[str]
    needs: tuple[str, ...]
    published: Published | None

    def missing(self) -> str | None:
        """Why the entry cannot run in this installation, or None."""
        for module in self.needs:
            if importlib.util.find_spec(module) is None:
                return f"needs the package {module}: {MODULES[module]}"
        return None


def load_entries(table: str = "main") -> tuple[ReferenceEntry, ...]:
    """All entries of a table.

    Raises
    ------
    InputError : no such table
    """
    if table not in TABLES:
        raise InputError(Option("table", table), f": expected one of {', '.join(TABLES)}")
    text = files("dfmp2.validation").joinpath(TABLES[table]).read_text(encoding="utf-8")
    return tuple(_entry(item) for item in json.loads(text)["entries"])


def select_entries(
    entries: Sequence[ReferenceEntry], only: Sequence[str], tags: Sequence[str], *, slow: bool
) -> tuple[ReferenceEntry, ...]:
    """The entries a user asked for.

    Parameters
    ----------
    only : patterns for the id (* and ?; a plain word matches anywhere in it); one match is enough
    tags : all of them must be there
    slow : also the slow ones; `slow` among the tags asks for them as well

    Raises
    ------
    InputError : an unknown tag, or nothing is left
    """
    unknown = sorted(set(tags) - set(TAGS))
    if unknown:
        raise InputError(
            Option("tag", unknown[0]), f": there is no such tag; the tags are {', '.join(TAGS)}"
        )
    named = [
        entry
        for entry in entries
        if not only or any(_matches(entry.id, pattern) for pattern in only)
    ]
    if not named:
        raise InputError(
            Option("only", " ".join(only)),
            f": matches no entry; their names look like {entries[0].id}, and the tags (",
            Option("tag"),
            f") are {', '.join(TAGS)}",
        )
    tagged = [entry for entry in named if entry.tags >= set(tags)]
    if not tagged:
        raise InputError(
            f"no entry has all of {', '.join(tags)}: leave a ",
            Option("tag"),
            f" out; the tags are {', '.join(TAGS)}",
        )
    chosen = tuple(entry for entry in tagged if slow or "slow" in tags or "slow" not in entry.tags)
    if not chosen:
        raise InputError(
            f"only slow entries match ({', '.join(entry.id for entry in tagged)}): add ",
            Option("slow"),
        )
    return chosen


def _matches(name: str, pattern: str) -> bool:
    return fnmatch.fnmatchcase(
        name, pattern if any(c in pattern for c in "*?[") else f"*{pattern}*"
    )


def _entry(item: dict[str, Any]) -> ReferenceEntry:
    combine = item.pop("combine", {})
    kernel = item.get("kernel")
    published = item.get("published")
    quantities = []
    for name, value in item["quantities"].items():
        if name in combine:
            parts = combine[name]
            quantity = Quantity(
                name=name, of=parts["of"], value=value, factors=tuple(parts["factors"])
            )
        else:
            quantity = Quantity(name, name, value)
        quantities.append(quantity)
    return ReferenceEntry(
        **{
            **item,
            "source": tuple(item["source"]),
            "needs": tuple(item["needs"]),
            "tags": frozenset(item["tags"]),
            "quantities": tuple(quantities),
            "calculations": tuple(map(_calculation, item.get("calculations", ()))),
            "kernel": None if kernel is None else SyntheticSizes(**kernel),
            "published": None if published is None else Published(**published),
        }
    )


def _calculation(item: dict[str, Any]) -> ReferenceCalculation:
    options = {name: item.pop(name) for name in Options.__slots__ if name in item}
    return ReferenceCalculation(**item, options=Options(**options, **OF_ALL))


# --- arrays without a molecule --------------------------------------------------------------------

Array = NDArray[np.float64]
Single = NDArray[np.float32]

SEED = 42
DRAWN_AT_ONCE = 1 << 18  # random numbers; a multiple of 16, PyTorch's block of normal deviates
BLOCK_FUNCTIONS = 128  # fitting functions transformed at a time
# Largest certificate accepted for a kernel, of its energy: sums of equal numbers round
# systematically in float32 (6e-6 for the arrays of the GAMESS mini-app), which nothing in a
# molecule does.
KERNEL_CERTIFICATE = 2e-5


@dataclass(frozen=True, slots=True)
class SyntheticSizes:
    """Sizes of a synthetic problem.

    Attributes
    ----------
    recipe : "closed-form" or "trnblas"
    nocc, nvir, naux : occupied, virtual, fitting functions
    """

    recipe: str
    nocc: int
    nvir: int
    naux: int

    @property
    def elements(self) -> int:
        """Elements of B."""
        return self.nocc * self.nvir * self.naux


def require_host_memory(kernel: SyntheticSizes, held: int, memory: int | None) -> None:
    """Refuse arrays that do not fit; while B is made, "trnblas" also holds the half-transformed
    integrals.

    Parameters
    ----------
    held : bytes held while the pair energies are evaluated
    memory : bytes the process may use, None for what is free

    Raises
    ------
    ResourceError : more is needed
    """
    if kernel.recipe == "trnblas":
        half = kernel.nocc * (kernel.nocc + kernel.nvir) * kernel.naux
    else:
        half = 0
    needed = (
        resources.resident_memory() + max(held, 8 * (kernel.elements + half)) + 16 * kernel.naux**2
    )
    budget = memory or resources.usable_memory()
    if needed > budget:
        raise ResourceError(
            (
                f"the arrays of {kernel.nocc}/{kernel.nvir}/{kernel.naux} need "
                f"{format_bytes(needed)} and {format_bytes(budget)} may be used: allow more with"
                " "
            ),
            Option("memory"),
            ", or use a larger machine",
        )


def make_synthetic(kernel: SyntheticSizes, workers: int) -> tuple[Array, ActiveSpace]:
    """Fitted integrals B (nocc, nvir, naux) float64, Eh^1/2, and orbital energies of a synthetic
    problem."""
    if kernel.recipe == "closed-form":
        b = np.full((kernel.nocc, kernel.nvir, kernel.naux), 1.0 / kernel.naux)
        return b, _space(np.ones(kernel.nocc), np.full(kernel.nvir, 2.0))
    return _trnblas(kernel, workers)


def _trnblas(kernel: SyntheticSizes, workers: int) -> tuple[Array, ActiveSpace]:
    nocc, nvir, naux = kernel.nocc, kernel.nvir, kernel.naux
    n = nocc + nvir
    stream = TorchStream(SEED)
    c_occ = (np.float32(0.1) * stream.normal(n * nocc).reshape(n, nocc)).astype(np.float64)
    c_vir = (np.float32(0.1) * stream.normal(n * nvir).reshape(n, nvir)).astype(np.float64)
    # sum_mu C_mui (mu nu|P); the integrals themselves are never held
    half = np.zeros((nocc, n * naux))
    rows = max(1, (1 << 24) // (n * naux))
    for start in range(0, n, rows):
        count = min(rows, n - start)
        integrals = np.float32(0.01) * stream.normal(count * n * naux).reshape(count, n * naux)
        half += c_occ[start : start + count].T @ integrals.astype(np.float64)
    root = (np.float32(0.01) * stream.normal(naux * naux).reshape(naux, naux)).astype(np.float64)
    metric = root @ root.T + naux * np.eye(naux)
    eps_occ = -np.sort(stream.uniform(nocc)).astype(np.float64) - 0.5
    eps_vir = np.sort(stream.uniform(nvir)).astype(np.float64) + 0.1
    raw = half.reshape(nocc, n, naux)

    def blocks() -> Iterator[tuple[int, int, list[Array]]]:
        for p0 in range(0, naux, BLOCK_FUNCTIONS):
            p1 = min(p0 + BLOCK_FUNCTIONS, naux)
            yield p0, p1, [np.matmul(c_vir.T, raw[:, :, p0:p1]).transpose(2, 0, 1)]

    [b] = fit(blocks(), factorise(metric), [(nocc, nvir)], naux, workers)
    return b, _space(eps_occ, eps_vir)


def _space(eps_occ: Array, eps_vir: Array) -> ActiveSpace:
    """Orbital energies alone: a synthetic problem has no basis functions."""
    return ActiveSpace(
        c_occ=np.empty((0, eps_occ.size)),
        c_vir=np.empty((0, eps_vir.size)),
        eps_occ=eps_occ,
        eps_vir=eps_vir,
    )


class TorchStream:
    """The numbers PyTorch's CPU generator gives after `torch.manual_seed(seed)`, to float32
    rounding."""

    def __init__(self, seed: int) -> None:
        self._twister = np.random.RandomState(seed)

    def uniform(self, count: int) -> Single:
        """torch.rand(count): the lower 24 bits of each 32-bit draw, in [0, 1)."""
        bits = self._twister.randint(0, 2**32, count, dtype=np.uint32) & np.uint32((1 << 24) - 1)
        return bits.astype(np.float32) * np.float32(2.0**-24)

    def normal(self, count: int) -> Single:
        """torch.randn(count) for multiples of 16: Box-Muller on blocks of 8 radii and 8 angles."""
        if count % 16:
            raise ValueError(f"{count} normal deviates: PyTorch draws them in blocks of 16")
        numbers = np.empty(count, dtype=np.float32)
        for start in range(0, count, DRAWN_AT_ONCE):
            part = self.uniform(min(DRAWN_AT_ONCE, count - start)).reshape(-1, 2, 8)
            radius = np.sqrt(np.float32(-2.0) * np.log(np.float32(1.0) - part[:, 0]))
            angle = np.float32(2.0 * np.pi) * part[:, 1]
            block = numbers[start : start + part.size].reshape(-1, 2, 8)
            np.multiply(radius, np.cos(angle), out=block[:, 0])
            np.multiply(radius, np.sin(angle), out=block[:, 1])
        return numbers
