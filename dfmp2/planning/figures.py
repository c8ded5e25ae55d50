"""What a run needs and has needed: sizes, wall times, memory, storage; with a unit and a description on every field."""

from __future__ import annotations

from dataclasses import dataclass

from dfmp2.units import quantity as _q


@dataclass(frozen=True, slots=True)
class Sizes:
    """Dimensions; pairs of numbers are (alpha, beta)."""

    natom: int = _q("", "atoms, ghosts included")
    nelectron: int = _q("", "explicit electrons")
    nao: int = _q("", "orbital basis functions (spherical)")
    nmo: int = _q("", "molecular orbitals")
    naux_scf: int = _q("", "functions of the SCF fitting set, 0 for a conventional SCF")
    naux: int = _q("", "functions of the MP2 fitting set")
    frozen_core: int = _q("", "frozen core orbitals per spin")
    nocc: tuple[int, int] = _q("", "correlated occupied orbitals (alpha, beta)")
    nvir: tuple[int, int] = _q("", "correlated virtual orbitals (alpha, beta)")
    frozen_virtual: int = _q("", "virtual orbitals left out per spin")


@dataclass(frozen=True, slots=True)
class Timings:
    """Wall times, s."""

    scf: float = _q("s", "SCF")
    integrals: float = _q("s", "three-centre integrals of the MP2 step")
    fit: float = _q("s", "fitting metric and fit")
    transform: float = _q("s", "AO to MO transformation")
    pair_energies: float = _q("s", "pair energies, certificate included")
    total: float = _q("s", "whole calculation, start-up of the program excluded")


@dataclass(frozen=True, slots=True)
class Memory:
    """Resident memory of the process, byte."""

    budget: int = _q("byte", "memory the run was allowed to use")
    predicted_peak: int = _q("byte", "predicted peak resident memory")
    measured_peak: int = _q("byte", "measured peak resident memory")


@dataclass(frozen=True, slots=True)
class Storage:
    """Where the large arrays lived."""

    scf_integrals: str = _q("", "fitted SCF integrals: memory, disk, or none")
    fitted_tensor: str = _q("", "B of the MP2 step: memory or disk")
    folder: str = _q("", "folder scratch files were in, empty when there were none")
    predicted: int = _q("byte", "scratch space planned")
    written: int = _q("byte", "bytes written to scratch files")
    read: int = _q("byte", "bytes read from scratch files")
