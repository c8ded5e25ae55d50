"""The result of a gradient: an energy with its derivatives and relaxed densities."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any, TypeVar

from dfmp2.arrays import Array
from dfmp2.errors import Command, ResultFileError
from dfmp2.host.deferred import presentation
from dfmp2.mp2.properties import GradientCertificate, Properties
from dfmp2.mp2.result import MP2Result

Part = TypeVar("Part")


@dataclass(frozen=True, slots=True)
class GradientResult:
    """A finished gradient: the result of the energy, in which it is stored.

    Attributes
    ----------
    result : with its fields `gradient`, `gradient_certificate` and `properties`

    Raises
    ------
    ResultFileError : by the properties, if the result is only an energy
    """

    result: MP2Result

    @property
    def gradient(self) -> Array:
        """(natom, 3) float64, Eh/bohr."""
        return self._stored(self.result.gradient).total_gradient

    @property
    def point_charge_gradient(self) -> Array | None:
        """(n, 3) float64, Eh/bohr, None without point charges."""
        return self._stored(self.result.gradient).point_charge_gradient

    @property
    def properties(self) -> Properties:
        """Densities, dipole moments, natural occupations."""
        return self._stored(self.result.properties)

    @property
    def certificate(self) -> GradientCertificate:
        """The consistency checks of the gradient."""
        return self._stored(self.result.gradient_certificate)

    def to_dataframe(self) -> Any:
        """Atoms and their gradient, Eh/bohr, as a pandas DataFrame; units are in `attrs["units"]`.

        Raises
        ------
        InputError
            pandas is not installed.
        """
        columns = {
            "symbol": self.result.molecule.labels,
            **dict(zip("xyz", self.gradient.T, strict=True)),
        }
        return presentation().frame(columns, dict.fromkeys("xyz", "hartree/bohr"))

    def __repr__(self) -> str:
        gradient = self.result.gradient
        if gradient is None:
            norm = "no gradient"
        else:
            norm = f"|gradient| = {gradient.norm:.8f} Eh/bohr"
        return f"GradientResult({norm}, {self.result!r})"

    def __str__(self) -> str:
        return str(self.result)

    def _repr_html_(self) -> str:
        return self.result._repr_html_()

    def _stored(self, part: Part | None) -> Part:
        if part is None:
            raise ResultFileError(
                (
                    f"the result of {self.result.molecule.name} is an energy without its gradient: "
                    "compute it with "
                ),
                Command("gradient"),
                ", or again",
            )
        return part
