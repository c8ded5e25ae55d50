"""An ASE calculator (https://ase-lib.org): total DF-MP2 energies of molecules in eV.

    from ase.build import molecule
    from dfmp2.interop.ase import DFMP2
    atoms = molecule("H2O")
    atoms.calc = DFMP2(basis="cc-pvdz", frozen_core="auto")
    atoms.get_potential_energy()

Forces are analytic (`dfmp2.gradients`); `DFMP2(..., displacement=0.002)` computes them by central
differences instead, with 6 energies per atom. (ASE's FiniteDifferenceCalculator asks for a stress,
hence for a cell.) The dipole moment is the relaxed one. Positions are converted to bohr with the
constant that dfmp2 uses for xyz files, energies to eV with ASE's.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import replace
from typing import Any, ClassVar

import numpy as np

from dfmp2.errors import InputError, speaking
from dfmp2.errors.messages import PYTHON, plain
from dfmp2.interop.python import TranslatingListener, gradient_options, run_options
from dfmp2.interop.qcschema import read_field, read_keywords
from dfmp2.molecule.foreign import from_ase
from dfmp2.mp2.result import MP2Result
from dfmp2.options import Options
from dfmp2.progress import Listener
from dfmp2.units import ANGSTROM_PER_BOHR, BOHR_PER_ANGSTROM

try:
    from ase.calculators.calculator import Calculator, all_changes
    from ase.calculators.fd import calculate_numerical_forces
    from ase.units import Hartree
except ImportError as absent:
    raise ImportError(
        f"ASE 3.24 or newer is not installed ({absent}): pip install 'dfmp2[ase]'"
    ) from absent

FIELD = ("point_charges", "point_charge_units")
OWN = ("basis", "method", "charge", "multiplicity", "displacement", *FIELD)


class DFMP2(Calculator):  # type: ignore[misc] # ASE's types are not followed
    """Total energy of DF-MP2, or of another method listed by `dfmp2 methods`.

    Parameters
    ----------
    basis : orbital basis
    method : a name from `dfmp2 methods`; "custom-scs-mp2" takes `os_scale` and `ss_scale`,
        "custom-dh" also `xc`
    charge : total charge; None for the sum of the atoms' initial charges
    multiplicity : 2S + 1; None for 1 plus the sum of their initial magnetic moments
    displacement : angstrom; for forces by central differences of the energy, None for analytic
        forces. Largest error for methanol/cc-pVDZ in eV/angstrom: 5e-5 at 0.001, 2e-4 at 0.002,
        1e-3 at 0.005; in mixed precision 1e-4, 2e-4, 1e-3
    point_charges : rows of x, y, z and charge around the atoms, or None
    point_charge_units : unit of x, y, z: "angstrom" or "bohr"
    listener : receives progress and warnings; by default warnings are raised as Python warnings
    parameters : any other field of `dfmp2.Options`; checked at once

    Attributes
    ----------
    result : MP2Result of the last calculation, None before the first

    Raises
    ------
    dfmp2.Dfmp2Error : an unknown parameter, atoms that cannot be computed, or a calculation that
        failed
    """

    implemented_properties: ClassVar[list[str]] = ["energy", "free_energy", "forces", "dipole"]
    default_parameters: ClassVar[dict[str, Any]] = {
        "method": "mp2",
        "charge": None,
        "multiplicity": None,
        "displacement": None,
        "point_charges": None,
        "point_charge_units": "angstrom",
    }
    discard_results_on_any_change = True

    def __init__(
        self, basis: str, *, atoms: Any = None, listener: Listener | None = None, **parameters: Any
    ) -> None:
        self.result: MP2Result | None = None
        self._listener = listener
        # ASE uses some of these names itself
        _options({**self.default_parameters, "basis": basis, **parameters})
        super().__init__(atoms=atoms, basis=basis, **parameters)

    def set(self, **parameters: Any) -> dict[str, Any]:
        """Change parameters; all are checked before any is changed, and results are discarded.

        Raises
        ------
        InputError : an unknown parameter, or a value of the wrong type or range
        """
        _options({**self.parameters, **parameters})
        changed: dict[str, Any] = super().set(**parameters)
        return changed

    def reset(self) -> None:
        """Forget the last calculation."""
        super().reset()
        self.result = None

    @speaking(PYTHON)
    def calculate(
        self,
        atoms: Any = None,
        properties: Sequence[str] = ("energy",),
        system_changes: Sequence[str] = all_changes,
    ) -> None:
        """Compute the energy; ASE calls this if atoms or parameters have changed.

        Raises
        ------
        dfmp2.Dfmp2Error : periodic atoms, a fractional charge, or a calculation that failed
        """
        super().calculate(atoms, list(properties), list(system_changes))
        options = _options(self.parameters)
        if "dipole" in properties:
            options = replace(options, properties=True)
        molecule = from_ase(self.atoms, self.parameters["charge"], self.parameters["multiplicity"])
        molecule = molecule.in_field(_field(self.parameters))
        forces = "forces" in properties
        numerical = self.parameters["displacement"] is not None
        how: dict[str, Any] = {
            "listener": TranslatingListener(self._listener),
            "command": f"{__name__}.DFMP2",
        }
        if forces and not numerical:
            self.result = gradient_options(molecule, options, **how).result
        else:
            self.result = run_options(molecule, options, **how)
        self.result.require_certified()
        self.results = _in_units_of_ase(self.result)
        if forces and numerical:
            self.results["forces"] = self._forces()

    def _forces(self) -> Any:
        """(natom, 3) eV/angstrom, by ASE's central differences on a copy of the atoms."""
        displaced = self.atoms.copy()
        displaced.calc = type(self)(
            **{**self.parameters, "displacement": None}, listener=self._listener
        )
        return calculate_numerical_forces(displaced, eps=plain(self.parameters["displacement"]))


def _in_units_of_ase(result: MP2Result) -> dict[str, Any]:
    """What a result holds of ASE's properties, in eV, e angstrom and eV/angstrom."""
    energy = result.total_energy * Hartree
    found: dict[str, Any] = {"energy": energy, "free_energy": energy}  # electrons at 0 K
    if result.properties is not None:
        found["dipole"] = result.properties.relaxed_dipole * ANGSTROM_PER_BOHR
    if result.gradient is not None:
        found["forces"] = result.gradient.total_gradient * (-Hartree * BOHR_PER_ANGSTROM)
    return found


def _field(parameters: Mapping[str, Any]) -> Any:
    """The point charges among parameters, as of `read_field`; their unit may be set before them."""
    field = {name: parameters[name] for name in FIELD}
    if field["point_charges"] is None and field["point_charge_units"] == "bohr":
        return None
    return read_field(field)


@speaking(PYTHON)
def _options(parameters: Mapping[str, Any]) -> Options:
    """The options among parameters, all of which are checked."""
    keywords = {name: value for name, value in parameters.items() if name not in OWN}
    options = read_keywords(parameters.get("basis"), parameters["method"], keywords, {})
    for name in ("charge", "multiplicity"):
        value = parameters[name]
        if value is not None and not _is_number(value, int | np.integer):
            raise InputError(
                f"{name} {value!r}: expected a whole number, or None to take it from the atoms"
            )
    _field(parameters)
    step = parameters["displacement"]
    if step is None:
        return options
    if not _is_number(plain(step), int | float) or not 0 < step < 0.5:
        raise InputError(
            f"displacement {step!r}: expected angstrom, more than 0 and less than 0.5, such as "
            "0.002"
        )
    return options


def _is_number(value: object, kinds: Any) -> bool:
    """Whether a value is of one of the kinds, and not a truth value."""
    return isinstance(value, kinds) and not isinstance(value, bool)
