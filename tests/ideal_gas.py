"""An ideal gas of rigid rotors and harmonic oscillators, written out in SI units (CODATA 2018)."""

from __future__ import annotations

from typing import Any

import numpy as np

HARTREE = 2625499.6394799  # J/mol
GAS = 8.31446261815324  # J/(mol K)
BOLTZMANN, PLANCK, UNIT = 1.380649e-23, 6.62607015e-34, 1.66053906660e-27


def ideal_gas(
    *,
    masses: Any,
    places: Any,
    wavenumbers: Any,
    energy: float,
    multiplicity: int,
    kelvin: float,
    pascal: float,
    symmetry: int,
) -> dict[str, float]:
    """Every value that a study of frequencies states, by its name there.

    Parameters
    ----------
    masses, places, wavenumbers : (natom,) u, (natom, 3) bohr, (n,) cm^-1, negative if imaginary
    energy : total energy, Eh
    """
    weights = np.array(masses) * UNIT
    metres = np.array(places) * 0.529177210903e-10
    metres = metres - weights @ metres / weights.sum()
    spread = np.einsum("a,ax,ay->xy", weights, metres, metres)
    inertia = np.linalg.eigvalsh(np.trace(spread) * np.eye(3) - spread)
    turns = 8 * np.pi**2 * inertia[inertia > 1e-50] * BOLTZMANN * kelvin / PLANCK**2
    waves = (2 * np.pi * weights.sum() * BOLTZMANN * kelvin / PLANCK**2) ** 1.5
    if len(turns) == 3:
        half_turns, turning = 3, 1.5 + np.log(np.sqrt(np.pi * turns.prod()) / symmetry)
    elif len(turns) == 2:
        half_turns, turning = 2, 1.0 + np.log(turns[0] / symmetry)
    else:
        half_turns, turning = 0, 0.0
    real = np.array([number for number in wavenumbers if number > 0])
    x = PLANCK * 2.99792458e10 * real / (BOLTZMANN * kelvin)
    quanta = np.exp(-x) / (1 - np.exp(-x))
    shares = {  # R T, R, R: internal energy, entropy, heat capacity
        "translation": (1.5, 2.5 + np.log(waves * BOLTZMANN * kelvin / pascal), 1.5),
        "rotation": (half_turns / 2, turning, half_turns / 2),
        "vibration": (
            (x / 2 + x * quanta).sum(),
            (x * quanta - np.log(1 - np.exp(-x))).sum(),
            (x**2 * quanta * (1 + quanta)).sum(),
        ),
        "electrons": (energy * HARTREE / (GAS * kelvin), np.log(multiplicity), 0.0),
    }
    heat = GAS * kelvin / HARTREE  # R T, Eh
    zero_point = heat * x.sum() / 2
    values = {
        "temperature": kelvin,
        "pressure": pascal,
        "zero_point_energy": zero_point,
        "total_energy_at_0_kelvin": energy + zero_point,
    }
    for motion, (internal, entropy, capacity) in shares.items():
        work = 1 if motion == "translation" else 0  # p V
        values[f"internal_energy_{motion}"] = heat * internal
        values[f"enthalpy_{motion}"] = heat * (internal + work)
        values[f"entropy_{motion}"] = GAS * entropy
        values[f"heat_capacity_at_constant_volume_{motion}"] = GAS * capacity
    for name in ("internal_energy", "enthalpy", "entropy", "heat_capacity_at_constant_volume"):
        values[name] = sum(values[f"{name}_{motion}"] for motion in shares)
    values["heat_capacity"] = values["heat_capacity_at_constant_volume"] + GAS
    values["gibbs_energy"] = values["enthalpy"] - kelvin * values["entropy"] / HARTREE
    values["gibbs_energy_correction"] = values["gibbs_energy"] - energy
    for name in ("zero_point_energy", "gibbs_energy", "gibbs_energy_correction"):
        values[f"{name}_kj_per_mol"] = values[name] * HARTREE / 1000
    return {name: float(value) for name, value in values.items()}
