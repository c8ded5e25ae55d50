"""Properties of a result's relaxed density: gradient, moments, charges and polarizability, with
their certificates. Frozen values, like those of `dfmp2.mp2.result`, of which they are parts.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any

import numpy as np

from dfmp2.arrays import Array
from dfmp2.errors import ComparisonFailed, Option
from dfmp2.units import quantity as _q
from dfmp2.units import told_apart


@dataclass(frozen=True, slots=True, eq=False)
class Gradient:
    """The gradient of the total energy, with all its parts; files call it `mp2_total_gradient`
    for every method."""

    mp2_total_gradient: Array = _q(
        "hartree/bohr", "derivative of the total energy with respect to the positions (natom, 3)"
    )
    scaling: str = _q("", "energy that is differentiated: MP2, scaled MP2, or a double hybrid")
    opposite_spin_factor: float = _q("", "factor of its opposite-spin component")
    same_spin_factor: float = _q("", "factor of its same-spin component")
    seconds: float = _q("s", "wall time beyond that of the energy")
    point_charge_gradient: Array | None = _q(
        "hartree/bohr", "derivative with respect to the positions of the point charges (n, 3)", None
    )
    scf_total_gradient: Array | None = _q(
        "hartree/bohr",
        "derivative of the SCF energy alone (natom, 3), if requested",
        None,
    )

    @property
    def total_gradient(self) -> Array:
        """Derivative of the total energy with respect to the positions, (natom, 3) Eh/bohr."""
        return self.mp2_total_gradient

    @property
    def norm(self) -> float:
        """Euclidean norm over all atoms and components, Eh/bohr."""
        return float(np.linalg.norm(self.mp2_total_gradient))

    @property
    def largest(self) -> float:
        """Largest absolute component, Eh/bohr."""
        return float(np.abs(self.mp2_total_gradient).max(initial=0.0))


@dataclass(frozen=True, slots=True)
class GradientCertificate:
    """Consistency checks between the parts of a gradient, or of the relaxed densities alone.

    Computed in `dfmp2.gradients.certificate`; without a gradient there are no sums of forces and
    torques.
    """

    three_center_difference: float = _q(
        "hartree", "correlation energy from G (mn|Q), minus that of the pairs"
    )
    two_center_difference: float = _q(
        "hartree", "correlation energy from g (P|Q), minus that of the pairs"
    )
    allowed_energy: float = _q("hartree", "largest accepted value of these differences")
    electrons_difference: float = _q(
        "", "electrons of the relaxed density minus those of the molecule"
    )
    z_vector_residual: float = _q("hartree", "norm of the residual of the Z-vector equations")
    allowed_sum: float = _q("", "largest accepted value of these two numbers and of the next two")
    translation: float | None = _q(
        "hartree/bohr", "largest component of the sum of all forces", None
    )
    rotation: float | None = _q(
        "hartree/bohr",
        "largest component of the sum of all torques, divided by the molecule's extent",
        None,
    )
    analytic_slope: float | None = _q(
        "hartree/bohr", "gradient along the direction that was checked", None
    )
    numerical_slope: float | None = _q(
        "hartree/bohr", "five-point difference of energies along it", None
    )
    allowed_slope: float | None = _q("hartree/bohr", "largest accepted difference of the two", None)
    scf_convergence_error: float | None = _q(
        "hartree", "error of the correlation energy because the SCF stopped early", None
    )

    @property
    def failures(self) -> list[str]:
        """Names of the quantities that exceed the accepted value or are NaN."""
        sums = ("electrons_difference", "translation", "rotation", "z_vector_residual")
        limits = {
            "three_center_difference": self.allowed_energy,
            "two_center_difference": self.allowed_energy,
            **dict.fromkeys(sums, self.allowed_sum),
        }
        found = {name: value for name in limits if (value := getattr(self, name)) is not None}
        failed = [name for name, value in found.items() if not abs(value) <= limits[name]]
        difference = self.slope_difference
        if difference is not None and not abs(difference) <= (self.allowed_slope or 0.0):
            failed.append("slope_difference")
        return failed

    @property
    def passed(self) -> bool:
        """Whether nothing failed."""
        return not self.failures

    @property
    def owner(self) -> str:
        """What the certificate belongs to."""
        if self.translation is None:
            return "the densities'"
        return "the gradient's"

    def require(self, then: str = "") -> None:
        """Raise if the certificate of a gradient or of densities fails; `then` ends the message.

        Raises
        ------
        ComparisonFailed : names what is larger than accepted
        """
        if self.passed:
            return
        larger = (
            f"{self.owner} certificate fails: {', '.join(self.failures).replace('_', ' ')} larger "
            "than accepted; converge the SCF further ("
        )
        if self.failures == ["slope_difference"]:
            raise ComparisonFailed(
                larger,
                Option("scf_conv_tol", "1e-14"),
                (
                    ": at 1e-12 Eh, energies of displaced molecules scatter too much where an orbital "
                    f"rotation is soft), or report this{then}"
                ),
            )
        raise ComparisonFailed(
            larger,
            Option("scf_conv_tol", "1e-12"),
            f"; for a mean field of PySCF, its conv_tol), or report this{then}",
        )

    @property
    def slope_difference(self) -> float | None:
        """Analytic minus numerical slope, Eh/bohr; None if it was not checked."""
        if self.analytic_slope is None or self.numerical_slope is None:
            return None
        return self.analytic_slope - self.numerical_slope


# Density of the reference, and of the method without and with the response of the orbitals
DENSITIES = ("scf", "unrelaxed", "relaxed")
OF_EACH_DENSITY = (  # arrays of `Properties` whose first axis is DENSITIES
    "quadrupole",
    "mulliken_charges",
    "lowdin_charges",
    "mulliken_spin_populations",
    "lowdin_spin_populations",
)


@dataclass(frozen=True, slots=True, eq=False)
class Properties:
    """One-electron densities and the properties that follow from them; unrelaxed means without the
    response of the orbitals.

    Moments are relative to the origin of the coordinates; the quadrupole moment is that of the
    charges, sum q r_x r_y, with its trace. Files of earlier versions have no quadrupole or charges.
    """

    scf_dipole: Array = _q("elementary charge * bohr", "dipole moment of the reference (3,)")
    unrelaxed_dipole: Array = _q(
        "elementary charge * bohr", "dipole moment of the unrelaxed density (3,)"
    )
    relaxed_dipole: Array = _q(
        "elementary charge * bohr", "dipole moment of the relaxed density (3,)"
    )
    unrelaxed_occupations: Array = _q("", "natural occupations of the unrelaxed density (nmo,)")
    relaxed_occupations: Array = _q("", "natural occupations of the relaxed density (nmo,)")
    unrelaxed_density: Array = _q(
        "", "unrelaxed density in basis functions, per spin (nspin, nao, nao)"
    )
    relaxed_density: Array = _q(
        "", "relaxed density in basis functions, per spin (nspin, nao, nao)"
    )
    quadrupole: Array | None = _q(
        "elementary charge * bohr^2",
        "second moments of the reference, unrelaxed, relaxed density (3, 3, 3)",
        None,
    )
    mulliken_charges: Array | None = _q(
        "elementary charge", "charges of atoms for the same three densities (3, natom)", None
    )
    lowdin_charges: Array | None = _q(
        "elementary charge", "charges of atoms for the same three densities (3, natom)", None
    )
    mulliken_spin_populations: Array | None = _q(
        "", "alpha minus beta electrons of atoms, UHF (3, natom)", None
    )
    lowdin_spin_populations: Array | None = _q(
        "", "alpha minus beta electrons of atoms, UHF (3, natom)", None
    )

    @property
    def dipole(self) -> Array:
        """Dipole moments of DENSITIES, (3, 3), e bohr."""
        return np.stack([self.scf_dipole, self.unrelaxed_dipole, self.relaxed_dipole])

    def to_dict(self) -> dict[str, Any]:
        """The object in JSON; the densities are only in the result file."""
        kinds = DENSITIES[1:]
        each = {name: getattr(self, name) for name in OF_EACH_DENSITY}
        return {
            "origin": [0.0, 0.0, 0.0],
            "dipole": _by_density(self.dipole),
            "natural_occupations": {
                kind: getattr(self, f"{kind}_occupations").tolist() for kind in kinds
            },
            **{
                name: None if values is None else _by_density(values)
                for name, values in each.items()
            },
        }


def _by_density(values: Array) -> dict[str, Any]:
    return dict(zip(DENSITIES, values.tolist(), strict=True))


@dataclass(frozen=True, slots=True, eq=False)
class Polarizability:
    """Static dipole polarizability from central differences of dipole moments
    (`dfmp2.gradients.density`).

    Second differences of the energies give its diagonal independently. Both have errors
    proportional to the square of the field, those from dipole moments twice as large, so twice the
    difference between them estimates the step error.
    """

    relaxed: Array = _q(
        "bohr^3", "of MP2, from relaxed dipole moments (3, 3); row: moment, column: field"
    )
    scf: Array = _q("bohr^3", "of the reference, from its dipole moments (3, 3)")
    from_energies: Array = _q(
        "bohr^3", "diagonal of the same from second differences of the energy (3,)"
    )
    dipole_difference: float = _q(
        "elementary charge * bohr",
        "largest difference between dipole moments and slopes of energies",
    )
    field: float = _q("hartree / (elementary charge * bohr)", "strength of the field")
    allowed: float = _q(
        "",
        "largest accepted value of that, and of asymmetry and step error relative to the largest "
        "element or 1 bohr^3",
    )
    seconds: float = _q("s", "wall time of the runs in the field")

    @property
    def isotropic(self) -> float:
        """A third of the trace, bohr^3."""
        return float(np.trace(self.relaxed)) / 3

    @property
    def anisotropy(self) -> float:
        """Square root of 3/2 of the squared deviation from the isotropic tensor, bohr^3."""
        symmetric = (self.relaxed + self.relaxed.T) / 2 - self.isotropic * np.eye(3)
        return float(np.sqrt(1.5 * np.sum(symmetric**2)))

    @property
    def asymmetry(self) -> float:
        """Largest difference of two elements that should be equal, bohr^3."""
        return float(np.abs(self.relaxed - self.relaxed.T).max())

    @property
    def step_error(self) -> float:
        """Twice the largest difference between the diagonals from energies and from dipole moments,
        bohr^3."""
        return 2 * float(np.abs(np.diag(self.relaxed) - self.from_energies).max())

    @property
    def passed(self) -> bool:
        """Whether it is symmetric, and whether it and the dipole moment agree with the energies;
        false if NaN."""
        most = self.allowed * max(1.0, float(np.abs(self.relaxed).max()))
        return (
            self.asymmetry <= most
            and self.step_error <= most
            and self.dipole_difference <= self.allowed
        )

    def require(self, then: str = "") -> None:
        """Raise if the polarizability does not pass; `then` ends the message.

        Raises
        ------
        ComparisonFailed : names both numbers
        """
        if not self.passed:
            dipole, accepted = told_apart(".1e", self.dipole_difference, self.allowed)
            raise ComparisonFailed(
                (
                    f"the polarizability is asymmetric by {self.asymmetry:.1e} bohr^3, and "
                    f"energies in the same fields say that it is off by {self.step_error:.1e} "
                    f"bohr^3, the dipole moment by {dipole} e bohr; "
                    f"{accepted} of the largest element and {accepted} e bohr are "
                    "accepted: the molecule is too polarizable for the step, or the runs in fields "
                    "have found different SCF solutions; look at their stability with "
                ),
                Option("stability", "full"),
                f"{then}",
            )

    def to_dict(self) -> dict[str, Any]:
        """The object in JSON."""
        names = ("isotropic", "anisotropy", "asymmetry", "step_error", "passed")
        arrays = {
            name: getattr(self, name).tolist() for name in ("relaxed", "scf", "from_energies")
        }
        rest = {
            name: getattr(self, name)
            for name in ("dipole_difference", "field", "allowed", "seconds")
        }
        return arrays | rest | {name: getattr(self, name) for name in names}
