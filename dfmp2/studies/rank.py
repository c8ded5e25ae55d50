"""Boltzmann weights of conformers, from stored energies or Gibbs energies.

    p_i = g_i exp(-(G_i - G_min) / R T) / sum_j g_j exp(-(G_j - G_min) / R T)
    G(ensemble) = G_min - R T ln sum_j g_j exp(-(G_j - G_min) / R T)

g_i is the number of times a conformer counts: 2 if it also represents a distinct mirror image. With
energies instead of Gibbs energies, which already include the spin entropy of the electrons, g_i is
multiplied by 2 S + 1.
"""

from __future__ import annotations

import math
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import asdict, dataclass
from pathlib import Path
from typing import Any

import numpy as np

from dfmp2.errors import Command, InputError, Option
from dfmp2.molecule.molecule import state_in_words
from dfmp2.mp2.identity import method, method_differences, point_charges_digest
from dfmp2.mp2.result import MP2Result
from dfmp2.output import hdf5
from dfmp2.output.document import DOUBTS, Block, Note, Section, Table, document_text
from dfmp2.output.reports.study import warning_text
from dfmp2.output.study import is_study, read_study, run_warnings
from dfmp2.studies.frequencies import StoredHessian, hessian_of
from dfmp2.studies.ideal_gas import GAS_CONSTANT, JOULE_PER_MOL, ROOM, GasConditions
from dfmp2.studies.thermochemistry import make_thermochemistry
from dfmp2.units import KCAL_PER_MOL_PER_HARTREE, KJ_PER_MOL_PER_HARTREE, counted_text

ENERGY = "total_energy"
GIBBS = "gibbs_energy"
QUANTITIES = {ENERGY: "E", GIBBS: "G"}  # name -> symbol
SAME_ENERGY = 1e-6  # Eh
SAME_DISTANCE = 0.02  # bohr
MOST_DEGENERATE = 10_000


@dataclass(frozen=True, slots=True)
class Candidate:
    """A stored result to be ranked.

    Attributes
    ----------
    name : str
        File name without its suffix.
    result : MP2Result
        The result at its geometry.
    hessian : StoredHessian or None
        None if the file has none.
    """

    name: str
    result: MP2Result
    hessian: StoredHessian | None


@dataclass(frozen=True, slots=True)
class Ranked:
    """A ranked conformer.

    Attributes
    ----------
    energy : float
        E or G, Eh.
    relative_kj_per_mol, relative_kcal_per_mol : float
        Above the lowest.
    degeneracy : int
        How often it counts, including its spin if energies are ranked.
    weight : float
        Its fraction of the ensemble, from 0 to 1.
    multiplicity : int
        2S + 1.
    """

    name: str
    energy: float
    relative_kj_per_mol: float
    relative_kcal_per_mol: float
    degeneracy: int
    weight: float
    multiplicity: int


@dataclass(frozen=True, slots=True)
class Ranking:
    """Conformers, the lowest first.

    Attributes
    ----------
    quantity : str
        A key of QUANTITIES.
    level, formula : str
        Level of theory and formula shared by all conformers.
    charge : int
        Their charge.
    temperature : float
        K.
    ensemble_energy : float
        E or G of the ensemble, Eh.
    conformers : tuple of Ranked
        The lowest first.
    notes, warnings : tuple of str
        How G was obtained; what may be counted twice, and the warnings of the results.
    """

    quantity: str
    level: str
    formula: str
    charge: int
    temperature: float
    ensemble_energy: float
    conformers: tuple[Ranked, ...]
    notes: tuple[str, ...] = ()
    warnings: tuple[str, ...] = ()

    def to_dict(self) -> dict[str, Any]:
        """The ranking as JSON types: energies in hartree, temperature in K."""
        return asdict(self)

    def __str__(self) -> str:
        symbol = QUANTITIES[self.quantity]
        multiplicities = [one.multiplicity for one in self.conformers]
        rows = [
            [
                place,
                one.name,
                f"{one.energy:.8f}",
                f"{one.relative_kj_per_mol:.2f}",
                f"{one.relative_kcal_per_mol:.2f}",
                one.degeneracy,
                f"{100 * one.weight:.2f}",
            ]
            for place, one in enumerate(self.conformers, start=1)
        ]
        heads = [
            "#rank",
            "conformer",
            f"#{symbol} / Eh",
            "#kJ/mol",
            "#kcal/mol",
            "#g",
            "#weight / %",
        ]
        if len(set(multiplicities)) > 1:
            heads.append("#2S+1")
            for row, multiplicity in zip(rows, multiplicities, strict=True):
                row.append(multiplicity)
        blocks: list[Block] = [
            Table("", heads, rows),
            f"{symbol} of the ensemble: {self.ensemble_energy:.8f} Eh",
            *self.notes,
        ]
        sections = [Section("ranking", f"Conformers at {self.temperature:g} K", blocks)]
        if self.warnings:
            warned: list[Block] = [Note("warning", text) for text in self.warnings]
            sections.append(Section("warnings", "Warnings", warned))
        conformers = counted_text(len(self.conformers), "conformer")
        molecule = self.formula
        state = state_in_words(self.charge, multiplicities)
        if state:
            molecule = f"{self.formula} ({state})"
        head = f"{conformers} of {molecule}, {self.level}"
        return document_text([head], sections).rstrip("\n")


def read_candidates(files: Iterable[str | Path]) -> list[Candidate]:
    """The results in files, each with a unique name.

    Raises
    ------
    InputError : no such file, or one that does not hold a single molecule
    ResultFileError : a file is damaged
    """
    candidates: list[Candidate] = []
    names: dict[str, str | Path] = {}
    for file in files:
        candidate = read_candidate(file)
        if candidate.name in names:
            raise InputError(
                f"{names[candidate.name]} and {file} are both called {candidate.name}: name each "
                "file once, and rename one of two"
            )
        names[candidate.name] = file
        candidates.append(candidate)
    return candidates


def read_candidate(file: str | Path) -> Candidate:
    """The result in a file of one molecule, with its Hessian if there is one.

    Raises
    ------
    InputError : no such file, or a study of several molecules
    ResultFileError : the file is damaged
    """
    name = Path(file).name.removesuffix(".h5").removesuffix(".dfmp2")
    if not is_study(file):
        return Candidate(name, hdf5.read(file), None)
    study = read_study(file)
    if study.kind not in ("frequencies", "thermochemistry", "optimization"):
        raise InputError(
            f"{file} is a study of kind {study.kind}, of several molecules: expected a result, or "
            "a file of ",
            Command("optimize"),
            " or ",
            Command("frequencies"),
        )
    if not study.complete:
        raise InputError(
            f"{file} is not complete: repeat the command that began it, or leave it out"
        )
    free = "hessian" in study.arrays and not study.settings.get("constraints")
    if study.kind == "optimization" and not free:
        return Candidate(name, list(study.path.values())[-1], None)
    stored = hessian_of(study, str(file))
    stored.require_gas()
    return Candidate(name, stored.result, stored)


def rank_conformers(
    candidates: Sequence[Candidate],
    conditions: GasConditions = ROOM,
    *,
    quantity: str | None = None,
    degeneracies: Mapping[str, int] | None = None,
) -> Ranking:
    """Rank conformers of one molecule by energy, with Boltzmann weights.

    Parameters
    ----------
    conditions : GasConditions
        Only the first temperature and pressure are used.
    quantity : str, optional
        A key of QUANTITIES; None for Gibbs energies if every file has a Hessian, otherwise
        energies.
    degeneracies : mapping of str to int, optional
        By name; 1 for those omitted.

    Raises
    ------
    InputError : fewer than two conformers, different formulas, charges or levels of theory, some
        files with and some without a Hessian, or conditions of a gas for energies
    """
    _require_comparable(candidates)
    conditions.require_single("an ensemble")
    counted = _degeneracies(candidates, degeneracies or {})
    if quantity is None:
        quantity = _quantity(candidates)
    if quantity == ENERGY:
        why = ("energies are ranked: add ", Option("by", "gibbs"), ", or leave it out")
        conditions.require_usual(why, used="temperature")
    notes: list[str] = []
    energies = []
    for candidate in candidates:
        if quantity == ENERGY:
            energies.append(candidate.result.total_energy)
            counted[candidate.name] *= candidate.result.molecule.multiplicity
            continue
        if candidate.hessian is None:
            raise InputError(
                f"{candidate.name} has no Hessian, so no Gibbs energy: rank ",
                Option("by", "energy"),
                ", or compute it with ",
                Command("frequencies"),
            )
        study = make_thermochemistry(candidate.hessian, conditions)
        energies.append(study.values[GIBBS].value)
        notes += [
            f"{candidate.name}: {text}"
            for text in study.notes
            if text.startswith(("IMAGINARY", *DOUBTS))
        ]
    if quantity == GIBBS:
        notes.insert(0, _about_gas(conditions))
    warnings = _alike(candidates, energies)
    warned = run_warnings({one.name: one.result for one in candidates})
    warnings += [warning_text(one, of=len(candidates), runs="conformers") for one in warned]
    first = candidates[0].result
    conformers, ensemble = _weighted(candidates, energies, counted, conditions.temperature)
    return Ranking(
        quantity=quantity,
        level=first.level,
        formula=first.molecule.formula,
        charge=first.molecule.charge,
        temperature=conditions.temperature,
        conformers=conformers,
        ensemble_energy=ensemble,
        notes=tuple(notes),
        warnings=tuple(warnings),
    )


def _quantity(candidates: Sequence[Candidate]) -> str:
    """Gibbs energies if every file has a Hessian, energies if none has."""
    without = [one.name for one in candidates if one.hessian is None]
    if not without:
        return GIBBS
    if len(without) == len(candidates):
        return ENERGY
    names = ", ".join(without[:3])
    raise InputError(
        f"{len(candidates) - len(without)} of {len(candidates)} files have a Hessian, and "
        f"{names} {'has' if len(without) == 1 else 'have'} none: rank all ",
        Option("by", "energy"),
        ", or give every one that of ",
        Command("frequencies"),
    )


def _about_gas(conditions: GasConditions) -> str:
    text = f"G: ideal gas at {conditions.temperatures[0]:g} K and {conditions.pressures[0]:g} Pa"
    if conditions.scale != 1.0:
        text += f", wavenumbers scaled ({conditions.scale})"
    if conditions.low_modes.note:
        text += f"; {conditions.low_modes.note}"
    return text


def _require_comparable(candidates: Sequence[Candidate]) -> None:
    """Raise for candidates that do not belong in one ensemble."""
    if len(candidates) < 2:
        raise InputError(f"{counted_text(len(candidates), 'result')}: expected two or more to rank")
    for what in ("formula", "charge"):
        groups: dict[Any, str] = {}
        for one in candidates:
            groups.setdefault(getattr(one.result.molecule, what), one.name)
        if len(groups) > 1:
            named = ", ".join(f"{value} ({name})" for value, name in list(groups.items())[:3])
            raise InputError(
                f"results of {len(groups)} {what}s: {named}: conformers have one {what}; leave "
                "the others out"
            )
    fields: dict[str, str] = {}
    for one in candidates:
        fields.setdefault(point_charges_digest(one.result.molecule), one.name)
    if len(fields) > 1:
        named = " and ".join(list(fields.values())[:2])
        raise InputError(
            f"{named} are not in the field of the same point charges, so their energies cannot be "
            "compared: leave one out"
        )
    different = method_differences({one.name: method(one.result) for one in candidates})
    if different:
        raise InputError(
            f"results of different levels of theory, {different}: their energies cannot be "
            "compared; leave the others out"
        )


def _degeneracies(candidates: Sequence[Candidate], given: Mapping[str, int]) -> dict[str, int]:
    counted = {one.name: 1 for one in candidates}
    for name, number in given.items():
        option = Option("degeneracy", f"{name}={number}")
        if name not in counted:
            raise InputError(option, f": expected one of {', '.join(list(counted)[:6])}")
        whole = isinstance(number, int) and not isinstance(number, bool)
        if not whole or not 1 <= number <= MOST_DEGENERATE:
            raise InputError(option, f": expected a whole number from 1 to {MOST_DEGENERATE}")
        counted[name] = number
    return counted


def _weighted(
    candidates: Sequence[Candidate],
    energies: Sequence[float],
    counted: Mapping[str, int],
    temperature: float,
) -> tuple[tuple[Ranked, ...], float]:
    """The conformers with their Boltzmann weights, the lowest first, and E or G of the ensemble."""
    thermal = GAS_CONSTANT * temperature / JOULE_PER_MOL
    lowest = min(energies)
    factors = [
        counted[one.name] * math.exp(-(energy - lowest) / thermal)
        for one, energy in zip(candidates, energies, strict=True)
    ]
    total = math.fsum(factors)
    rows = [
        Ranked(
            name=one.name,
            energy=energy,
            relative_kj_per_mol=(energy - lowest) * KJ_PER_MOL_PER_HARTREE,
            relative_kcal_per_mol=(energy - lowest) * KCAL_PER_MOL_PER_HARTREE,
            degeneracy=counted[one.name],
            weight=factor / total,
            multiplicity=one.result.molecule.multiplicity,
        )
        for one, energy, factor in zip(candidates, energies, factors, strict=True)
    ]
    return tuple(sorted(rows, key=lambda row: row.energy)), lowest - thermal * math.log(total)


def _alike(candidates: Sequence[Candidate], energies: Sequence[float]) -> list[str]:
    """Warnings for pairs that may be the same conformer."""
    order = sorted(range(len(energies)), key=lambda place: energies[place])
    shapes = [_distances(one.result) for one in candidates]
    warned = []
    for position, low in enumerate(order):
        for high in order[position + 1 :]:
            if energies[high] - energies[low] > SAME_ENERGY:
                break
            if np.abs(shapes[low] - shapes[high]).max(initial=0.0) < SAME_DISTANCE:
                warned.append(
                    f"{candidates[low].name} and {candidates[high].name} have the same energy and "
                    "the same distances between atoms: they are one conformer, or mirror images"
                )
    return warned


def _distances(result: MP2Result) -> Any:
    """All distances between atoms, sorted, bohr."""
    places = result.molecule.coordinates
    gaps = np.linalg.norm(places[:, None] - places[None], axis=2)
    return np.sort(gaps[np.triu_indices(len(places), 1)])
