"""Thermochemistry in Python: of reactions, of a stored Hessian at other conditions, and of
conformers."""

from __future__ import annotations

import os
from collections.abc import Callable, Iterable, Mapping, Sequence
from pathlib import Path
from typing import Any, Unpack

from dfmp2.errors import InputError, Option
from dfmp2.execution.items import look_items
from dfmp2.execution.manifest import holds_manifest, read_batch
from dfmp2.interop.python import NoKeywords, public, read_molecule
from dfmp2.interop.studies import (
    CompositeKeywords,
    FileKeywords,
    SharedKeywords,
    carrying_out,
    level_of,
    units_of,
)
from dfmp2.molecule.molecule import Molecule
from dfmp2.options import Keywords, parse_texts
from dfmp2.output.study import Study
from dfmp2.studies.frequencies import hessian_of, read_hessian
from dfmp2.studies.ideal_gas import ATMOSPHERE, ROOM_TEMPERATURE, GasConditions, make_conditions
from dfmp2.studies.rank import ENERGY, GIBBS, Ranking, rank_conformers, read_candidates
from dfmp2.studies.reaction import make_reaction_plan, reaction_energy, require_basis
from dfmp2.studies.species import Reaction, Term, make_coefficient, parse_terms, read_species
from dfmp2.studies.thermochemistry import make_thermochemistry

BY = {"energy": ENERGY, "gibbs": GIBBS, None: None}
FileLike = str | os.PathLike[str]


@public(NoKeywords)
def thermo(
    source: FileLike | Study,
    *,
    temperature: float | str | Sequence[float] = ROOM_TEMPERATURE,
    pressure: float | str | Sequence[float] = ATMOSPHERE,
    scale: float | str = 1.0,
    quasi_harmonic: str | None = None,
    cutoff: float | None = None,
    isotopes: Sequence[str] = (),
    symmetry_number: int | None = None,
) -> Study:
    """Thermochemistry of a stored Hessian at other conditions; no gradient is computed.

    Parameters
    ----------
    source : str, path or Study
        A file of `frequencies` or of `optimize` with `verify`, or the study itself.
    temperature, pressure : float, str or sequence of float, optional
        Temperatures and pressures of the gas, K and Pa; several, or a range as "200:400:5".
    scale : float or str, optional
        Factor of the wavenumbers, "auto" for the published one of method and basis.
    quasi_harmonic : str, optional
        "grimme" or "truhlar": the entropy of low modes; None for harmonic oscillators.
    cutoff : float, optional
        Cutoff of `quasi_harmonic`, cm^-1; 100 by default.
    isotopes : sequence of str, optional
        Isotopes as "1=2H" (atom 1), "H=2H" (every hydrogen) or "1=2.0141" (a mass in u).
    symmetry_number : int, optional
        Rotational symmetry number, None to determine it from the geometry.

    Returns
    -------
    Study; its values refer to the first temperature and pressure, its table has a row for each

    Examples
    --------
    >>> study = dfmp2.frequencies(geometry, basis="cc-pvdz")                    # doctest: +SKIP
    >>> dfmp2.thermo(study, isotopes=["H=2H"]).values["gibbs_energy"].value     # doctest: +SKIP
    """
    conditions = make_conditions(
        temperature=temperature,
        pressure=pressure,
        scale=scale,
        quasi_harmonic=quasi_harmonic,
        cutoff=cutoff,
        isotopes=parse_texts("isotopes", isotopes, "1=2H"),
        symmetry=symmetry_number,
    )
    if isinstance(source, Study):
        stored = hessian_of(source, "the study")
    else:
        stored = read_hessian(source)
    return make_thermochemistry(stored, conditions, "dfmp2.thermo")


@public(NoKeywords)
def rank(
    sources: FileLike | Sequence[FileLike],
    *,
    by: str | None = None,
    temperature: float = ROOM_TEMPERATURE,
    pressure: float = ATMOSPHERE,
    scale: float | str = 1.0,
    quasi_harmonic: str | None = None,
    cutoff: float | None = None,
    degeneracies: Mapping[str, int] | None = None,
) -> Ranking:
    """Boltzmann weights of the conformers in stored results.

    Parameters
    ----------
    sources : str, path or sequence of them
        Files of `run`, `optimize` or `frequencies`, folders of them, or manifests of batches.
    by : str, optional
        "energy" or "gibbs"; None for Gibbs energies if every file has a Hessian, else energies.
    temperature, pressure : float, optional
        Temperature and pressure of the ensemble, K and Pa.
    scale, quasi_harmonic, cutoff : optional
        Treatment of the Gibbs energies, as in `thermo`.
    degeneracies : mapping of str to int, optional
        Weight factor of a conformer, by the name of its file; 1 by default.

    Returns
    -------
    Ranking; `ranking.conformers` has names, energies and weights, the lowest energy first

    Examples
    --------
    >>> ranking = dfmp2.rank("conformers/")                                     # doctest: +SKIP
    >>> [(one.name, one.weight) for one in ranking.conformers]                  # doctest: +SKIP
    """
    if by not in tuple(BY):  # may be of a type that is no key
        raise InputError(Option("by", by), ": expected energy or gibbs")
    conditions = make_conditions(
        temperature=temperature,
        pressure=pressure,
        scale=scale,
        quasi_harmonic=quasi_harmonic,
        cutoff=cutoff,
    )
    if isinstance(sources, str | os.PathLike):
        sources = [sources]
    return rank_files(
        complete_files(sources), conditions, by, _by_name("degeneracies", degeneracies)
    )


def complete_files(
    sources: Sequence[FileLike], warn: Callable[[str], Any] = lambda _: None
) -> list[Path]:
    """Files of results: those named, those in folders, and those of the complete items of batches.

    Parameters
    ----------
    warn : callable
        Called with a message if items of a batch are incomplete.
    """
    files: list[Path] = []
    for source in sources:
        path = Path(source)
        if path.is_dir() and not holds_manifest(path):
            files += sorted(path.glob("*.h5"))
        elif path.is_dir() or path.suffix == ".toml":
            files += _complete_items(source, warn)
        else:
            files.append(path)
    return files


def _complete_items(batch: FileLike, warn: Callable[[str], Any]) -> list[Path]:
    """Files of the complete items of a batch; `warn` is called if there are others."""
    rows = look_items(read_batch(Path(batch)))
    missing = [row.name for row in rows if row.status != "complete"]
    if missing:
        warn(
            f"{batch}: incomplete items are left out ({len(missing)} of {len(rows)}): "
            f"{', '.join(missing[:3])}{', ...' if len(missing) > 3 else ''}"
        )
    return [Path(str(row.output)) for row in rows if row.status == "complete"]


def rank_files(
    files: Sequence[Path],
    conditions: GasConditions,
    by: str | None,
    degeneracies: Mapping[str, int],
) -> Ranking:
    """The ranking of the results in files."""
    return rank_conformers(
        read_candidates(files), conditions, quantity=BY[by], degeneracies=degeneracies
    )


class ReactionKeywords(Keywords, CompositeKeywords, FileKeywords, SharedKeywords, total=False):
    """Keywords of a reaction: its species, and what is computed for each."""

    charges: Mapping[str, int] | None
    multiplicities: Mapping[str, int] | None
    symmetry_numbers: Mapping[str, int] | None
    transition_states: Sequence[str]
    optimize: bool
    frequencies: bool
    convergence: str | None
    max_steps: int | None
    temperature: float
    pressure: float | None
    standard_state: str | None
    scale: float | str
    quasi_harmonic: str | None
    cutoff: float | None
    allow_gradient: bool
    units: str | None


@public(ReactionKeywords)
def reaction(
    reactants: str | Sequence[Any],
    products: str | Sequence[Any],
    basis: str | None = None,
    **options: Unpack[ReactionKeywords],
) -> Study:
    """Energy of a reaction, and with Hessians its enthalpy and Gibbs energy; other parameters as in
    `optimize`.

    Parameters
    ----------
    reactants, products : str or sequence
        Files with coefficients, as "2*h2.xyz,o2.xyz"; or a list of such texts, of molecules, or of
        pairs (coefficient, file or molecule).
    basis : str, optional
        May be omitted if all species are result files.
    charges, multiplicities, symmetry_numbers : mapping of str to int, optional
        Values by name of a molecule, or of a file without its ending.
    transition_states : sequence of str, optional
        Names of species that `optimize` takes to saddle points.
    optimize, frequencies : bool, optional
        Optimise every geometry first; compute Hessians.
    convergence, max_steps : str and int, optional
        Convergence and limit on the steps of the optimisations.
    temperature, pressure : float, optional
        Temperature and pressure of the gas, K and Pa.
    standard_state : str, optional
        "1atm", "1bar" or "1M" (1 mol/l) in place of a pressure; None is 1 atm.
    scale, quasi_harmonic, cutoff : optional
        Treatment of the gas, as in `thermo`.
    allow_gradient : bool, optional
        Continue at a geometry that is not a stationary point.
    workers : int, optional
        Number of processes that share the runs, as in `frequencies`.
    scf_formula, correlation_formula, delta, delta_program : str, optional
        As in `cbs`; a correction is available only for energies, without geometries and Hessians.

    Returns
    -------
    Study; for its values see `dfmp2.studies.reaction.reaction_energy`

    Examples
    --------
    >>> study = dfmp2.reaction("2*h2.xyz,o2.xyz", "2*h2o.xyz", "cc-pvdz")       # doctest: +SKIP
    >>> study.values["reaction_energy_kj_per_mol"].value                        # doctest: +SKIP
    """
    asked = Reaction(
        reactants=_terms("reactants", reactants),
        products=_terms("products", products),
        charges=_by_name("charges", options.get("charges")),
        multiplicities=_by_name("multiplicities", options.get("multiplicities")),
        symmetry_numbers=_by_name("symmetry_numbers", options.get("symmetry_numbers")),
        transition_states=parse_texts(
            "transition_states", options.get("transition_states", ()), "ts"
        ),
    )
    gas = make_conditions(
        temperature=options.get("temperature", ROOM_TEMPERATURE),
        pressure=options.get("pressure"),
        standard_state=options.get("standard_state"),
        scale=options.get("scale", 1.0),
        quasi_harmonic=options.get("quasi_harmonic"),
        cutoff=options.get("cutoff"),
    )
    level = None
    if basis is not None:
        level = level_of(basis, options)
    else:
        require_basis(options)
    species = read_species(asked, units_of(options))
    computed = make_reaction_plan(
        optimize=options.get("optimize", False),
        frequencies=options.get("frequencies", False),
        convergence=options.get("convergence"),
        max_steps=options.get("max_steps"),
        gas=gas,
        allow_gradient=options.get("allow_gradient", False),
    )
    return reaction_energy(species, level, computed, **carrying_out(options, "dfmp2.reaction"))


def _by_name(name: str, given: Any) -> Mapping[str, int]:
    """Values by the name of a molecule or file, {} if none were given.

    Raises
    ------
    InputError : it is no mapping
    """
    if not given:
        return {}
    if not isinstance(given, Mapping):
        raise InputError(Option(name, given), ": expected values by name, as {'oh': -1}")
    return given


def _terms(side: str, written: str | Sequence[Any]) -> list[Term]:
    """Coefficients and what they belong to, for one side."""
    option = Option(side)
    if isinstance(written, str):
        return parse_terms(written, option)
    terms: list[Term] = []
    # ASE's Atoms are one molecule, though they can be iterated over.
    if isinstance(written, Molecule | os.PathLike) or hasattr(written, "get_chemical_symbols"):
        written = [written]
    if not isinstance(written, Iterable):
        raise InputError(option.of(written), ": expected molecules, as in ['2*h2.xyz', 'o2.xyz']")
    for term in written:
        if isinstance(term, str):
            terms += parse_terms(term, option)
        else:
            terms.append(_term(term, option))
    return terms


def _term(written: Any, option: Option) -> Term:
    """The coefficient and the file or molecule of a term, by default with the coefficient 1."""
    number = 1
    molecule = written
    if isinstance(written, tuple) and len(written) == 2:
        number, molecule = written
    if not isinstance(molecule, str | os.PathLike | Molecule):
        molecule = read_molecule(molecule, {})
    return make_coefficient(number, option.of(number)), molecule
