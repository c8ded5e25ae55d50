"""Two-point formulas for the limit of a complete basis set, from energies E(X) and E(Y), X = Y + 1
cardinal numbers.

With E(X) = E(limit) + A f(X) and a fixed f,

    E(limit) = (f(Y) E(X) - f(X) E(Y)) / (f(Y) - f(X))

Every formula is linear in the energies, so spin components and sums may be extrapolated alike.
"""

from __future__ import annotations

import math
from collections.abc import Callable
from dataclasses import dataclass

from dfmp2.errors import InputError
from dfmp2.errors.messages import Option

NEESE_VALEEV = "Neese and Valeev, J. Chem. Theory Comput. 7, 33 (2011)"
# (family, Y, X) -> alpha of exp(-alpha sqrt X) for Hartree-Fock, beta of X^-beta for correlation;
# the same paper.
OPTIMISED = {
    ("cc-pvnz", 2, 3): (4.42, 2.46),
    ("cc-pvnz", 3, 4): (5.46, 3.05),
    ("aug-cc-pvnz", 2, 3): (4.30, 2.51),
    ("aug-cc-pvnz", 3, 4): (5.79, 3.05),
    ("def2", 3, 4): (7.88, 2.97),
}


@dataclass(frozen=True, slots=True)
class Formula:
    """A formula with its numbers.

    Attributes
    ----------
    name : as on the command line
    form : the function f in words
    source : where it was published
    decay : f, or None: the energy of the larger basis is taken as it is
    """

    name: str
    form: str
    source: str
    decay: Callable[[int], float] | None

    def limit(self, smaller: float, larger: float, lower: int, upper: int) -> float:
        """Energy at the limit, Eh.

        Parameters
        ----------
        smaller, larger : energies in the smaller and the larger basis, Eh
        lower, upper : their cardinal numbers
        """
        weights = self.weights(lower, upper)
        return weights[0] * smaller + weights[1] * larger

    def weights(self, lower: int, upper: int) -> tuple[float, float]:
        """Weights of the energies in the smaller and the larger basis, whose cardinal numbers these
        are."""
        if self.decay is None:
            return 0.0, 1.0
        low, high = self.decay(lower), self.decay(upper)
        return -high / (low - high), low / (low - high)


SCF_NAMES = ("largest", "exponential", "karton-martin", "exp-sqrt", "power", "neese-valeev")
CORRELATION_NAMES = ("helgaker", "truhlar", "neese-valeev")


def scf_formula(name: str, family: str, lower: int, upper: int) -> Formula:
    """Formula for the Hartree-Fock energy.

    Raises
    ------
    InputError : unknown, or not published for this family and these cardinal numbers
    """
    if name == "neese-valeev":
        alpha = _optimised(family, lower, upper, Option("scf_formula", "neese-valeev"))[0]
        return Formula(
            name, f"exp(-{alpha} sqrt X)", NEESE_VALEEV, lambda x: math.exp(-alpha * math.sqrt(x))
        )
    if name == "largest":
        return Formula(name, "the energy in the larger basis, not extrapolated", "", None)
    if family == "def2":
        raise InputError(
            Option("scf_formula", name),
            " was published for correlation-consistent sets: for def2 use largest or neese-valeev",
        )
    table: dict[str, tuple[str, str, Callable[[int], float]]] = {
        "exponential": (
            "exp(-1.63 X)",
            "Halkier et al., Chem. Phys. Lett. 302, 437 (1999)",
            lambda x: math.exp(-1.63 * x),
        ),
        "karton-martin": (
            "(X + 1) exp(-9 sqrt X)",
            "Karton and Martin, Theor. Chem. Acc. 115, 330 (2006)",
            lambda x: (x + 1) * math.exp(-9.0 * math.sqrt(x)),
        ),
        "exp-sqrt": (
            "exp(-6.3 sqrt X)",
            "Psi4's scf_xtpl_karton_2, after Karton and Martin, Theor. Chem. Acc. 115, 330 (2006)",
            lambda x: math.exp(-6.3 * math.sqrt(x)),
        ),
        "power": ("X^-3.4", "Truhlar, Chem. Phys. Lett. 294, 45 (1998)", lambda x: x**-3.4),
    }
    if name not in table:
        raise InputError(
            Option("scf_formula", name[:30]), f": expected one of {', '.join(SCF_NAMES)}"
        )
    return Formula(name, *table[name])


def correlation_formula(name: str, family: str, lower: int, upper: int) -> Formula:
    """Formula for the correlation energy and its spin components.

    Raises
    ------
    InputError : unknown, or not published for this family and these cardinal numbers
    """
    if name == "neese-valeev":
        beta = _optimised(family, lower, upper, Option("correlation_formula", "neese-valeev"))[1]
        return Formula(name, f"X^-{beta}", NEESE_VALEEV, lambda x: x**-beta)
    if name not in CORRELATION_NAMES:
        raise InputError(
            Option("correlation_formula", name[:30]),
            f": expected one of {', '.join(CORRELATION_NAMES)}",
        )
    if family == "def2":
        raise InputError(
            Option("correlation_formula", name),
            " was published for correlation-consistent sets: for def2 use neese-valeev",
        )
    if name == "helgaker":
        return Formula(
            name,
            "X^-3",
            "Helgaker, Klopper, Koch, Noga, J. Chem. Phys. 106, 9639 (1997)",
            lambda x: x**-3.0,
        )
    if (family, lower, upper) != ("cc-pvnz", 2, 3):
        raise InputError(
            Option("correlation_formula", "truhlar"),
            " (X^-2.2) was fitted to cc-pVDZ and cc-pVTZ: use it with cc-pv[dt]z only",
        )
    return Formula(
        name, "X^-2.2 (MP2)", "Truhlar, Chem. Phys. Lett. 294, 45 (1998)", lambda x: x**-2.2
    )


def default_correlation(family: str) -> str:
    """Name of the correlation formula used unless another is asked for."""
    if family == "def2":
        return "neese-valeev"
    return "helgaker"


def _optimised(family: str, lower: int, upper: int, option: Option) -> tuple[float, float]:
    if (family, lower, upper) not in OPTIMISED:
        known = ", ".join(f"{name} {low}/{high}" for name, low, high in OPTIMISED)
        raise InputError(
            option,
            f" has no exponents for {family} {lower}/{upper} (it has {known}): use another formula",
        )
    return OPTIMISED[family, lower, upper]
