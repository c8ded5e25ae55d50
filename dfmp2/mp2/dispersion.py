"""Dispersion corrections of double hybrids, from their authors' packages dftd3 and dftd4.

    D3(BJ)  E = - sum_AB [ s6 C6 / (r^6 + f^6) + s8 C8 / (r^8 + f^8) ],   f = a1 sqrt(C8 / C6) + a2
    D4      the same with charge-dependent C6 and C8, and three-body terms

D3(BJ) has no three-body terms (s9 = 0), as in ORCA, Psi4, Gaussian and Q-Chem; D4 has them. The
parameters are those that the packages list for a functional. Sources: Grimme, Ehrlich, Goerigk,
J. Comput. Chem. 32, 1456 (2011); Caldeweyher et al., J. Chem. Phys. 150, 154122 (2019).
"""

from __future__ import annotations

import importlib
import tomllib
from collections.abc import Mapping
from dataclasses import dataclass
from importlib import metadata, resources
from typing import Any

import numpy as np

from dfmp2.arrays import Array
from dfmp2.double_hybrids import DISPERSIONS
from dfmp2.errors import InputError, Option
from dfmp2.molecule.elements import atomic_number, element_symbol
from dfmp2.molecule.molecule import Molecule
from dfmp2.units import quantity as _q

PACKAGES = {"d3bj": "dftd3", "d4": "dftd4"}
# File of parameters in each package
TABLES = {"d3bj": ("d3", "bj"), "d4": ("d4", "bj-eeq-atm")}
LAST_OF_D3 = 103  # atomic number; beyond it dftd3 reads past its tables and reports no error


@dataclass(frozen=True, slots=True)
class Dispersion:
    """A dispersion correction, D3 with Becke-Johnson damping or D4, computed by its authors'
    package."""

    correction: str = _q("", "d3bj or d4")
    energy: float = _q("hartree", "dispersion energy")
    functional: str = _q("", "name of the functional in the package")
    program: str = _q("", "package and version")
    s6: float = _q("", "factor of the terms with 1/r^6")
    s8: float = _q("", "factor of the terms with 1/r^8")
    s9: float = _q("", "factor of the three-body terms")
    a1: float = _q("", "damping: factor of the radii")
    a2: float = _q("bohr", "damping: length added to them")
    doi: str = _q("", "DOI of the publication of these parameters")


def dispersion_energy(molecule: Molecule, correction: str, functional: str) -> Dispersion:
    """The dispersion correction of a molecule without its ghost atoms.

    Parameters
    ----------
    correction : "d3bj" or "d4"
    functional : its name in the package

    Raises
    ------
    InputError : the package is not installed, or does not know the functional or an element
    """
    energy, _, parameters = _evaluated(molecule, correction, functional, with_gradient=False)
    name = PACKAGES[correction]
    doi = str(parameters.pop("doi", ""))
    return Dispersion(
        correction=correction,
        energy=energy,
        functional=functional,
        program=f"{name} {metadata.version(name)}",
        doi=doi,
        **parameters,
    )


def dispersion_gradient(molecule: Molecule, correction: str, functional: str) -> Array:
    """The derivative of the dispersion correction, (natom, 3) Eh/bohr; parameters and errors as in
    `dispersion_energy`."""
    return _evaluated(molecule, correction, functional, with_gradient=True)[1]


def _evaluated(
    molecule: Molecule, correction: str, functional: str, *, with_gradient: bool
) -> tuple[float, Array, dict[str, Any]]:
    """Energy, Eh, its gradient (natom, 3), Eh/bohr, 0 if not requested, and the parameters.

    Parameters
    ----------
    correction : "d3bj" or "d4"
    functional : its name in the package

    Raises
    ------
    InputError : the package is not installed, or does not know the functional or an element
    """
    package = _package(correction)
    parameters = _parameters(correction, functional)
    damped = {name: value for name, value in parameters.items() if name != "doi"}
    gradient = np.zeros((molecule.natom, 3))
    real = [not ghost for ghost in molecule.ghost]
    numbers = np.array([atomic_number(symbol) for symbol in molecule.real_symbols], dtype=np.int32)
    positions = molecule.coordinates[real]
    if not len(numbers):
        return 0.0, gradient, parameters
    if correction == "d3bj" and numbers.max() > LAST_OF_D3:
        raise _unsupported(
            correction, f"unsupported element '{element_symbol(int(numbers.max()))}'"
        )
    try:
        if correction == "d3bj":
            model = package.DispersionModel(numbers, positions)
            damping = package.RationalDampingParam(**damped)
        else:
            model = package.DispersionModel(numbers, positions, float(molecule.charge))
            damping = package.DampingParam(**damped)
        found = model.get_dispersion(damping, grad=with_gradient)
    except (RuntimeError, ValueError) as error:
        raise _unsupported(correction, str(error)) from error
    if with_gradient:
        gradient[real] = found["gradient"]
    return float(found["energy"]), gradient, parameters


def _unsupported(correction: str, reason: str) -> InputError:
    """The error for a molecule that the package of a correction does not support."""
    return InputError(
        f"{PACKAGES[correction]} has no {DISPERSIONS[correction]} correction for this "
        f"molecule ({reason}): use ",
        Option("dispersion", "none"),
        ", or another correction",
    )


def _package(correction: str) -> Any:
    """The Python interface of the package for a correction."""
    try:
        return importlib.import_module(f"{PACKAGES[correction]}.interface")
    except ImportError as absent:
        raise InputError(
            f"{DISPERSIONS[correction]} needs the package {PACKAGES[correction]}, which is not "
            f"installed ({absent}): pip install 'dfmp2[disp]', or use ",
            Option("dispersion", "none"),
        ) from absent


def _parameters(correction: str, functional: str) -> dict[str, Any]:
    """s6, s8, s9, a1, a2 and the doi that a package lists for a functional.

    Raises
    ------
    InputError : it lists none
    """
    package = PACKAGES[correction]
    text = resources.files(package).joinpath("parameters.toml").read_text(encoding="utf-8")
    found: Any = tomllib.loads(text)["parameter"].get(functional, {})
    for key in TABLES[correction]:
        found = found.get(key, {}) if isinstance(found, Mapping) else {}
    if not found:
        raise InputError(
            f"{package} {metadata.version(package)} lists no parameters of "
            f"{DISPERSIONS[correction]} for {functional}: install a newer one, or use ",
            Option("dispersion", "none"),
        )
    three_atoms = 0.0 if correction == "d3bj" else 1.0
    return {"s6": 1.0, "s8": 0.0, **found, "s9": float(found.get("s9", three_atoms))}
