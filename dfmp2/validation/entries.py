"""The reference energies that travel with the package, as frozen values.

An entry is one number, or several of one calculation, that another program produced; it says which
program, where it is published, how the calculation is set up, and how far we may be off and why. A
quantity is a linear combination of a property over the entry's calculations,

    value = sum_k factor_k property(calculation_k)

so that interaction energies and basis set extrapolations are entries like any other.

The data are `cases.json` and `trnsci.json` beside this module, made by
scripts/make_validation_entries.py.
"""

from __future__ import annotations

import fnmatch
import importlib.util
import json
from collections.abc import Sequence
from dataclasses import dataclass
from importlib import resources
from typing import Any

import numpy as np

from dfmp2.errors import InputError
from dfmp2.errors.messages import Option
from dfmp2.molecule.molecule import Molecule
from dfmp2.options import Options
from dfmp2.validation.synthetic import SyntheticSizes

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
MODULES = {
    "basis_set_exchange": "pip install 'dfmp2[bse]'",
    "geometric": "pip install 'dfmp2[opt]'",
    "dftd3": "pip install 'dfmp2[disp]'",
}  # what an entry may need, and how to get it


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
    text = resources.files("dfmp2.validation").joinpath(TABLES[table]).read_text(encoding="utf-8")
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
    kernel, published = item.get("kernel"), item.get("published")
    return ReferenceEntry(
        **{
            **item,
            "source": tuple(item["source"]),
            "needs": tuple(item["needs"]),
            "tags": frozenset(item["tags"]),
            "quantities": tuple(
                Quantity(name, combine[name]["of"], value, tuple(combine[name]["factors"]))
                if name in combine
                else Quantity(name, name, value)
                for name, value in item["quantities"].items()
            ),
            "calculations": tuple(map(_calculation, item.get("calculations", ()))),
            "kernel": None if kernel is None else SyntheticSizes(**kernel),
            "published": None if published is None else Published(**published),
        }
    )


def _calculation(item: dict[str, Any]) -> ReferenceCalculation:
    options = {name: item.pop(name) for name in Options.__slots__ if name in item}
    return ReferenceCalculation(**item, options=Options(**options, **OF_ALL))
