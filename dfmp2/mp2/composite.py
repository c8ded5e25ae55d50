"""The energy of a composite level: a weighted sum over several runs.

    E(HF) = sum_k a_k E_k(HF)        E(corr) = sum_k b_k E_k(corr)        E = E(HF) + E(corr) + correction

The weights a and b are those of a two-point extrapolation (below), and the correction is
E(CCSD(T)) - E(MP2) of a run in a small basis, whose weights are 0. Gradients are sums with the same
weights.

Two-point formulas for the complete-basis-set limit, from energies E(X) and E(Y) with cardinal
numbers X = Y + 1:

With E(X) = E(limit) + A f(X) and a fixed f,

    E(limit) = (f(Y) E(X) - f(X) E(Y)) / (f(Y) - f(X))

Every formula is linear in the energies, so spin components and sums may be extrapolated alike.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Sequence
from dataclasses import dataclass, fields, replace

import numpy as np

from dfmp2.errors import InputError, Option
from dfmp2.mp2.error_budget import EXACT, ErrorBudget
from dfmp2.mp2.properties import Gradient, Properties
from dfmp2.mp2.result import MP2Result


@dataclass(frozen=True, slots=True)
class Part:
    """A run of a composite level.

    Attributes
    ----------
    name : str
        Last part of the name of the run.
    scf, correlation : float
        Weights of its E(SCF) and E(corr).
    """

    name: str
    scf: float
    correlation: float

    def stored(self) -> list[str | float]:
        """Its fields, as the settings of a study hold them: `Part(*part.stored())` is equal."""
        return [self.name, self.scf, self.correlation]


@dataclass(frozen=True, slots=True, eq=False, kw_only=True)
class CompositeResult(MP2Result):
    """The combined result of several runs of one molecule.

    Energies, gradient and dipole moments are sums over the runs; everything else is that of the run
    in the larger basis.

    Attributes
    ----------
    parts : tuple of (Part, MP2Result)
        From the smaller basis to the larger one, then the run of the correction.
    """

    parts: tuple[tuple[Part, MP2Result], ...]

    @property
    def terms(self) -> tuple[tuple[tuple[float, float], MP2Result], ...]:
        """As in MP2Result: its runs, except those without weight."""
        return tuple(
            ((part.scf, part.correlation), run)
            for part, run in self.parts
            if part.scf or part.correlation
        )

    @property
    def components(self) -> tuple[float, float]:
        """E_SS and E_OS, Eh."""
        same, opposite = zip(*(run.components for _, run in self.terms), strict=True)
        return self._correlation(same), self._correlation(opposite)

    @property
    def rpa_correlation_energy(self) -> float | None:
        """As in MP2Result, Eh."""
        energies = [run.rpa_correlation_energy for _, run in self.terms]
        if None in energies:
            return None
        return self._correlation([energy for energy in energies if energy is not None])

    @property
    def mp2_singles_energy(self) -> float:
        """As in MP2Result, Eh."""
        return self._correlation([run.mp2_singles_energy for _, run in self.terms])

    @property
    def scf_total_energy(self) -> float:
        """As in MP2Result, Eh."""
        return self._scf([run.scf_total_energy for _, run in self.terms])

    @property
    def hf_total_energy(self) -> float:
        """As in MP2Result, Eh."""
        return self._scf([run.hf_total_energy for _, run in self.terms])

    @property
    def functional_energy(self) -> float | None:
        """As in MP2Result, Eh."""
        energies = [run.functional_energy for _, run in self.terms]
        if None in energies:
            return None
        return self._scf([energy for energy in energies if energy is not None])

    @property
    def correction(self) -> float | None:
        """E(CCSD(T)) - E(method) in the small basis, Eh; None if it was not requested."""
        for _, run in self.parts:
            if run.coupled_cluster is not None:
                others = run.mp2_correlation_energy - run.correlation_energy
                return run.coupled_cluster.correction + others
        return None

    @property
    def total_energy(self) -> float:
        """Energy of the mean field + correlation energy + dispersion energy + correction, Eh."""
        added = (self.dispersion_energy or 0.0) + (self.correction or 0.0)
        return self.mean_field_energy + self.correlation_energy + added

    @property
    def error_budget(self) -> ErrorBudget:
        """How wrong its energies may be; the correction counts as exact."""
        from dfmp2.mp2.error_of_difference import combined

        name, exact = "The energy", EXACT
        if len(self.terms) > 1:
            name, exact = "The limit", "a complete basis set without fitting"
        return combined([((1.0, 1.0), self)], name, cancelling=1.0, exact=exact)

    def _scf(self, energies: Sequence[float]) -> float:
        weights = [weights[0] for weights, _ in self.terms]
        return math.fsum(w * energy for w, energy in zip(weights, energies, strict=True) if w)

    def _correlation(self, energies: Sequence[float]) -> float:
        weights = [weights[1] for weights, _ in self.terms]
        return math.fsum(w * energy for w, energy in zip(weights, energies, strict=True) if w)


def combine(parts: Sequence[tuple[Part, MP2Result]]) -> CompositeResult:
    """Combine the runs of one molecule, with their gradient if all have one."""
    weighted = [(part, run) for part, run in parts if part.scf or part.correlation]
    largest = weighted[-1][1]
    values = {field.name: getattr(largest, field.name) for field in fields(MP2Result)}
    if len(weighted) > 1:
        pair = " and ".join(part.name for part, _ in weighted)
        values["orbital_basis"] = replace(largest.orbital_basis, name=f"limit of {pair}")
    values["gradient"] = _gradient(weighted)
    values["properties"] = _properties(weighted)
    return CompositeResult(**values, parts=tuple(parts))


def _gradient(parts: Sequence[tuple[Part, MP2Result]]) -> Gradient | None:
    """The sum of the gradients, each E(SCF) with its own weight; None if a run has none."""
    largest = parts[-1][1].gradient
    if largest is None:
        return None
    total = np.zeros_like(largest.total_gradient)
    for part, run in parts:
        found = run.gradient
        if found is None:
            return None
        total += part.correlation * found.total_gradient
        if part.scf != part.correlation:
            if found.scf_total_gradient is None:
                return None
            total += (part.scf - part.correlation) * found.scf_total_gradient
    return replace(
        largest, mp2_total_gradient=total, point_charge_gradient=None, scf_total_gradient=None
    )


def _properties(parts: Sequence[tuple[Part, MP2Result]]) -> Properties | None:
    """The properties of the largest basis with the sum of the dipole moments, without densities."""
    largest = parts[-1][1].properties
    if largest is None:
        return None
    scf, unrelaxed, relaxed = np.zeros((3, 3))
    for part, run in parts:
        if run.properties is None:
            return None
        of_scf = run.properties.scf_dipole
        scf += part.scf * of_scf
        for total, own in (
            (unrelaxed, run.properties.unrelaxed_dipole),
            (relaxed, run.properties.relaxed_dipole),
        ):
            total += part.correlation * own + (part.scf - part.correlation) * of_scf
    none = np.empty((parts[-1][1].reference.nspin, 0, 0))
    return replace(
        largest,
        scf_dipole=scf,
        unrelaxed_dipole=unrelaxed,
        relaxed_dipole=relaxed,
        unrelaxed_density=none,
        relaxed_density=none,
    )


# --- basis-set limits -----------------------------------------------------------------------------

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
    """An extrapolation formula with its parameters.

    Attributes
    ----------
    name : as on the command line
    form : the function f in words
    source : where it was published
    decay : f, or None to take the energy in the larger basis as it is
    """

    name: str
    form: str
    source: str
    decay: Callable[[int], float] | None

    def weights(self, lower: int, upper: int) -> tuple[float, float]:
        """Weights of the energies in the smaller and the larger basis, which have these cardinal
        numbers."""
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
    """Name of the correlation formula used by default."""
    return "neese-valeev" if family == "def2" else "helgaker"


def _optimised(family: str, lower: int, upper: int, option: Option) -> tuple[float, float]:
    if (family, lower, upper) not in OPTIMISED:
        known = ", ".join(f"{name} {low}/{high}" for name, low, high in OPTIMISED)
        raise InputError(
            option,
            f" has no exponents for {family} {lower}/{upper} (it has {known}): use another formula",
        )
    return OPTIMISED[family, lower, upper]
