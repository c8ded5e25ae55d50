"""Stored results in Python: thermochemistry at other conditions, and ranking of conformers."""

from __future__ import annotations

import os
from collections.abc import Callable, Mapping, Sequence
from pathlib import Path
from typing import Any

from dfmp2.errors import InputError, Option
from dfmp2.execution.items import look_items
from dfmp2.execution.manifest import LEFT_MANIFEST, read_batch
from dfmp2.interop.python import NoKeywords, public
from dfmp2.output.study import Study
from dfmp2.studies.frequencies import hessian_of, read_hessian
from dfmp2.studies.ideal_gas import ATMOSPHERE, ROOM_TEMPERATURE, GasConditions, make_conditions
from dfmp2.studies.rank import ENERGY, GIBBS, Ranking, rank_conformers, read_candidates
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
        isotopes=tuple(isotopes),
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
    if by not in BY:
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
    return rank_files(complete_files(sources), conditions, by, degeneracies or {})


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
        if not path.is_dir() and path.suffix != ".toml":
            files.append(path)
            continue
        if path.is_dir() and not (path / LEFT_MANIFEST).is_file():
            files += sorted(path.glob("*.h5"))
            continue
        rows = look_items(read_batch(path))
        complete = [row for row in rows if row.status == "complete"]
        files += [Path(str(row.output)) for row in complete]
        if len(complete) < len(rows):
            missing = [row.name for row in rows if row.status != "complete"]
            warn(
                f"{source}: incomplete items are left out ({len(missing)} of {len(rows)}): "
                f"{', '.join(missing[:3])}{', ...' if len(missing) > 3 else ''}"
            )
    return files


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
