"""The user's choices: options of a calculation, their keywords, and how values are written."""

from __future__ import annotations

from dfmp2.options.calculation import Options, default_backend, make_options
from dfmp2.options.keywords import (
    BACKEND_WORDS,
    BACKENDS,
    BEFORE_PAIRS,
    BOTH_PARTS,
    NEEDS_WHOLE_RUN,
    PAIRS,
    WHOLE_RUN,
    EnergyKeywords,
    Keywords,
    MeanFieldKeywords,
    MoleculeKeywords,
    PreparedKeywords,
    ScfKeywords,
)
from dfmp2.options.values import (
    ALL,
    CONVERGENCE,
    KEPT,
    OF_THE_MACHINE,
    SMD,
    dielectric_constant,
    parse_bytes,
    parse_texts,
)

__all__ = [
    "ALL",
    "BACKENDS",
    "BACKEND_WORDS",
    "BEFORE_PAIRS",
    "BOTH_PARTS",
    "CONVERGENCE",
    "KEPT",
    "NEEDS_WHOLE_RUN",
    "OF_THE_MACHINE",
    "PAIRS",
    "SMD",
    "WHOLE_RUN",
    "EnergyKeywords",
    "Keywords",
    "MeanFieldKeywords",
    "MoleculeKeywords",
    "Options",
    "PreparedKeywords",
    "ScfKeywords",
    "default_backend",
    "dielectric_constant",
    "make_options",
    "parse_bytes",
    "parse_texts",
]
