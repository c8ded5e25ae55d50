"""The error budget of an energy: how wrong it may be, and how we know.

Errors are relative to the energies in the same basis set without fitting, rounding or an SCF that
stopped early. Each source of error has a magnitude for E(SCF) and for E(corr), Eh. Magnitudes add,
so errors that cancel are counted twice; those that were measured are added with their signs.

The sources of one run are estimated in `dfmp2.mp2.error_estimates`, those of fitting in
`dfmp2.mp2.fitting_estimates`, and the errors that remain in a difference of energies in
`dfmp2.mp2.error_of_difference`.
"""

from __future__ import annotations

import math
from collections.abc import Iterable, Mapping
from dataclasses import asdict, dataclass
from typing import Any

from dfmp2.units import KJ_PER_MOL_PER_HARTREE, counted_text

EXACT = "the value of this basis set without fitting"
MOST_DECIMALS = 10  # printed for a result
REACTION = "a reaction energy of such molecules"
MOST_LEFT = 0.5  # of the error of the total energy; if less remains, the error is said to cancel

MEASURED, BOUNDED, ESTIMATED, UNKNOWN = KINDS = ("measured", "bounded", "estimated", "not measured")
SOURCES = {  # key -> description
    "precision": "precision",
    "scf_convergence": "SCF convergence",
    "grid": "integration grid",
    "fitting_metric": "fitting metric",
    "scf_fitting": "fitting of the SCF",
    "mp2_fitting": "fitting of MP2",
    "basis_set": "basis set",
}


@dataclass(frozen=True, slots=True)
class Share:
    """The contribution of one source of error to one energy.

    Attributes
    ----------
    value : magnitude, Eh; None if unknown
    kind : one of KINDS
    how : how it is known, one sentence
    error : the error itself with its sign, Eh, if it was measured; the rest of `value` is its
        uncertainty
    """

    value: float | None
    kind: str
    how: str
    error: float | None = None


@dataclass(frozen=True, slots=True)
class Source:
    """A source of error: its shares of E(SCF) and E(corr), each None if it has none.

    Attributes
    ----------
    both : magnitude of both together, Eh, if their signs are known; None if magnitudes are added
    """

    name: str
    scf: Share | None
    correlation: Share | None
    both: float | None = None

    @property
    def shares(self) -> tuple[Share, ...]:
        """The shares that exist."""
        return tuple(share for share in (self.scf, self.correlation) if share is not None)

    @property
    def total(self) -> float:
        """The known part of its share of E(MP2, total), Eh."""
        if self.both is not None:
            return self.both
        return math.fsum(share.value or 0.0 for share in self.shares)

    @property
    def how(self) -> str:
        """How its shares are known, naming the energy of each if there are two."""
        if self.scf is None or self.correlation is None or self.scf.how == self.correlation.how:
            return self.shares[0].how if self.shares else ""
        return f"E(SCF): {self.scf.how}; E(corr): {self.correlation.how}"

    @property
    def kinds(self) -> str:
        """The kinds of its shares, in words."""
        return ", ".join(dict.fromkeys(share.kind for share in self.shares))


@dataclass(frozen=True, slots=True)
class ErrorBudget:
    """Sources of error by their keys in SOURCES, and their sums.

    Attributes
    ----------
    sources : key -> Source
    energy : the energy it describes, as in "E(MP2, total) is good to 4 decimals"
    exact : the energy that errors are relative to
    reaction : expected error of a reaction energy of such molecules, Eh; None if unknown, or if
        the budget is that of a difference or a limit
    """

    sources: Mapping[str, Source]
    energy: str
    exact: str = EXACT
    reaction: float | None = None

    @property
    def scf(self) -> float | None:
        """Expected error of E(SCF), Eh; None if part of it is unknown."""
        return self._sum([source.scf for source in self._numerical()])

    @property
    def correlation(self) -> float | None:
        """Expected error of E(corr), Eh; None if part of it is unknown."""
        return self._sum([source.correlation for source in self._numerical()])

    @property
    def total(self) -> float | None:
        """Expected error of E(MP2, total), Eh; None if part of it is unknown.

        Measured errors are added with their signs, all others without.
        """
        if self.scf is None or self.correlation is None:
            return None
        total = math.fsum(source.total for source in self._numerical())
        shares = [share for source in self._numerical() for share in source.shares]
        errors = [share.error for share in shares if share.error is not None]
        twice = math.fsum(abs(error) for error in errors)
        return total - twice + abs(math.fsum(errors))

    @property
    def decimals(self) -> int | None:
        """Reliable decimals of E(MP2, total) in hartree: half a unit of the last one exceeds
        `total`."""
        if self.total is None:
            return None
        if self.total <= 0.5 * 10.0**-MOST_DECIMALS:
            return MOST_DECIMALS
        return max(0, math.floor(-math.log10(2.0 * self.total)))

    @property
    def largest(self) -> str:
        """Key of the source with the largest known share."""
        return max(self.sources, key=lambda key: self.sources[key].total)

    @property
    def summary(self) -> str:
        """How many digits are reliable, and what limits them, in words."""
        source = self.sources[self.largest]
        part = f"{source.name} ({source.total:.1e} Eh, {source.kinds})"
        if self.total is None:
            missing = [
                s.name for s in self._numerical() if any(share.value is None for share in s.shares)
            ]
            return (
                f"The number of good decimals of {self.energy} is unknown: no estimate of "
                f"{' and '.join(missing)}. Largest known part: {part}."
            )
        if self.decimals:
            good = counted_text(self.decimals, "decimal")
        else:
            good = "no decimal"
        typical = ""
        if self.reaction is not None and self.reaction < MOST_LEFT * self.total:
            typical = (
                f" Most of it cancels: {REACTION} is good to about {_in_both_units(self.reaction)}."
            )
        elif self.reaction is not None:
            typical = f" {REACTION.capitalize()} is good to about {_in_both_units(self.reaction)}."
        return (
            f"{self.energy} is good to {good}, about {_in_both_units(self.total)} "
            f"from {self.exact}.{typical} Largest part: {part}."
        )

    def to_dict(self) -> dict[str, Any]:
        """The object in JSON: shares by source and energy, sums in hartree."""
        shares = {}
        for key, source in self.sources.items():
            energies = {
                "scf_total_energy": source.scf,
                "mp2_correlation_energy": source.correlation,
            }
            shares[key] = {
                name: None if share is None else asdict(share) for name, share in energies.items()
            }
        sums = {"scf_total_energy": self.scf, "mp2_correlation_energy": self.correlation}
        said = {"decimals": self.decimals, "largest": self.largest, "summary": self.summary}
        return {
            "sources": shares,
            **sums,
            "mp2_total_energy": self.total,
            "reaction_energy": self.reaction,
            **said,
        }

    def _numerical(self) -> list[Source]:
        """The sources without the basis set if nothing is known of it; the budget is then for this
        basis."""
        found = dict(self.sources)
        if any(share.value is None for share in found["basis_set"].shares):
            del found["basis_set"]
        return list(found.values())

    @staticmethod
    def _sum(shares: Iterable[Share | None]) -> float | None:
        values = [share.value for share in shares if share is not None]
        if None in values:
            return None
        return math.fsum(value for value in values if value is not None)


def _in_both_units(error: float) -> str:
    """An error in hartree and kJ/mol, as text."""
    converted = KJ_PER_MOL_PER_HARTREE * error
    digits = ".1g" if converted < 10 else ".0f"
    return f"+-{error:.1e} Eh ({converted:{digits}} kJ/mol)"


UNKNOWN_BASIS = Share(None, UNKNOWN, "one basis set cannot tell; dfmp2 cbs estimates it from two")


def finite_share(share: Share | None) -> Share | None:
    """The share; one of unknown size if a damaged or absurd result makes it infinite or NaN."""
    if share is None or share.value is None or math.isfinite(share.value):
        return share
    return Share(None, UNKNOWN, "the numbers it follows from are not finite")
