"""The methods: the correlation energy of each, its names, and what it supports."""

from __future__ import annotations

import difflib
import math
import re
from dataclasses import dataclass

from dfmp2.double_hybrids import DISPERSIONS, DoubleHybrid, look_up, table
from dfmp2.errors import Command, InputError, Message, Option
from dfmp2.errors.wishes import way_out_of_method

KAPPA = 1.1  # 1/Eh, from Shee et al.
# Name endings that request a dispersion correction other than D3(BJ) and D4.
OTHER_DISPERSION = re.compile(r"[-_ ](?:d2|d3|d3m|d3mbj|d3zero|d3\(0\)|nl|v)$", re.IGNORECASE)


@dataclass(frozen=True, slots=True)
class Method:
    """A correlation energy E = c_OS E_OS + c_SS E_SS from the same fitted integrals.

    Attributes
    ----------
    name : for the option --method
    title : usual name of the energy
    opposite_spin, same_spin : dimensionless factors c_OS, c_SS of the two components
    source : where it was published
    says : what it is, and when to use it
    regularised : each pair term has the factor (1 - exp(-kappa D))^2, D = e_a + e_b - e_i - e_j
    kind : what it sums over: "pairs"; "laplace" or "rpa", quadrature points, without pair energies;
        "none", the energy of a functional without an added correlation energy
    double_hybrid : whether it is added to the energy of a functional
    """

    name: str
    title: str
    opposite_spin: float
    same_spin: float
    source: str
    says: str = ""
    regularised: bool = False
    kind: str = "pairs"
    double_hybrid: bool = False

    @property
    def plain(self) -> bool:
        """Whether it uses the pair energies of plain MP2, so that all of MP2 follows."""
        return self.kind == "pairs" and not self.regularised

    @property
    def scaled_mp2(self) -> bool:
        """Whether it is MP2, its components scaled or not, on Hartree-Fock orbitals."""
        return self.plain and not self.double_hybrid

    @property
    def level(self) -> str:
        """The method as written before a basis, e.g. "DF-MP2", or "KS" for a functional alone."""
        return self.title if self.kind == "none" else f"DF-{self.title}"

    @property
    def differentiable(self) -> bool:
        """Whether it has a gradient and a relaxed density."""
        return self.plain or self.kind == "none"

    @property
    def formula(self) -> str:
        """The correlation energy in terms of its components."""
        if self.kind == "rpa":
            return "E(RPA)"
        if self.kind == "none":
            return "E(KS)"
        return f"{self.opposite_spin:.6g} E(OS) + {self.same_spin:.6g} E(SS)"

    def apply(self, opposite_spin_energy: float, same_spin_energy: float) -> float:
        """Correlation energy, Eh, from the two unscaled components, Eh."""
        return self.opposite_spin * opposite_spin_energy + self.same_spin * same_spin_energy


MP2 = Method(
    "mp2",
    "MP2",
    1.0,
    1.0,
    "Moller and Plesset, Phys. Rev. 46, 618 (1934)",
    "second-order perturbation theory",
)
SCS = Method(
    "scs-mp2",
    "SCS-MP2",
    6.0 / 5.0,
    1.0 / 3.0,
    "Grimme, J. Chem. Phys. 118, 9095 (2003), doi 10.1063/1.1569242",
    "scaled components, for reaction energies",
)
SOS = Method(
    "sos-mp2",
    "SOS-MP2",
    1.3,
    0.0,
    "Jung et al., J. Chem. Phys. 121, 9793 (2004), doi 10.1063/1.1809602",
    "opposite spin alone, as good as SCS-MP2",
)
METHODS = {
    one.name: one
    for one in (
        MP2,
        SCS,
        SOS,
        Method(
            "scs-vdw-mp2",
            "SCS-MP2-vdW",
            1.28,
            0.50,
            "Mol. Phys., doi 10.1080/00268970802641242",
            "scaling for non-covalent interactions",
        ),
        Method(
            "scsn-mp2",
            "SCSN-MP2",
            0.0,
            1.76,
            "Hill and Platts, J. Chem. Theory Comput. 3, 80 (2007), doi 10.1021/ct6002737",
            "same spin alone, for stacked nucleobases",
        ),
        Method(
            "kappa-mp2",
            "kappa-MP2",
            1.0,
            1.0,
            "Lee and Head-Gordon, J. Chem. Theory Comput. 14, 5203 (2018), doi "
            "10.1021/acs.jctc.8b00731; kappa = 1.1: Shee et al., J. Phys. Chem. Lett. 12, 12084 "
            "(2021)",
            "regularised: finite where the gap closes",
            regularised=True,
        ),
        Method(
            "sos-laplace",
            "SOS-MP2",
            SOS.opposite_spin,
            SOS.same_spin,
            f"{SOS.source}; quadrature: Takatsuka et al., J. Chem. Phys. 129, 044112 (2008), doi "
            "10.1063/1.2958921",
            "Laplace transform, for large molecules",
            kind="laplace",
        ),
        Method(
            "drpa",
            "dRPA",
            math.nan,
            math.nan,
            "Eshuis et al., J. Chem. Phys. 132, 234114 (2010), doi 10.1063/1.3442749",
            "direct random-phase approximation",
            kind="rpa",
        ),
        Method(
            "ks",
            "KS",
            0.0,
            0.0,
            "Kohn and Sham, Phys. Rev. 140, A1133 (1965)",
            "the functional of --xc alone",
            kind="none",
            double_hybrid=True,
        ),
    )
}
KOHN_SHAM = "ks"  # a functional alone
CUSTOM = "custom-scs-mp2"  # name of the method with the user's own factors
CUSTOM_DOUBLE_HYBRID = "custom-dh"  # the same on the orbitals of a functional
OWN_DOUBLE_HYBRID = (  # how a message recommends it
    Option("method", CUSTOM_DOUBLE_HYBRID),
    " with ",
    Option("xc"),
    ", ",
    Option("os_scale"),
    " and ",
    Option("ss_scale"),
)


def custom_scaling(opposite_spin: float | None, same_spin: float | None) -> Method | None:
    """MP2 with the user's own factors; a missing factor is 1. None if neither was given."""
    if opposite_spin is None and same_spin is None:
        return None
    return Method(
        name=CUSTOM,
        title="scaled MP2",
        opposite_spin=1.0 if opposite_spin is None else opposite_spin,
        same_spin=1.0 if same_spin is None else same_spin,
        source="user",
    )


def method_names() -> list[str]:
    """Everything that --method accepts, by the name under which it is stored."""
    hybrids = [name for name, row in table().items() if not row.unavailable]
    return [*METHODS, CUSTOM, CUSTOM_DOUBLE_HYBRID, *hybrids]


def canonical_method(name: str) -> str:
    """The name under which a method is stored; double hybrids may be spelled as in other programs.

    Raises
    ------
    InputError : the method is unknown, or cannot be computed here
    """
    if name in METHODS or name in (CUSTOM, CUSTOM_DOUBLE_HYBRID):
        return name
    row = look_up(name)
    if row is None:
        raise InputError(
            Option("method", name),
            f": expected one of {', '.join(METHODS)}, {CUSTOM_DOUBLE_HYBRID}, or a double hybrid "
            "of dfmp2 methods",
            way_out_behind(name),
        )
    if row.unavailable:
        raise InputError(
            Option("method", name),
            f": {row.title} is not available: {row.unavailable} (doi {row.doi}). Use another one "
            "of dfmp2 methods, or give functional and factors: ",
            *OWN_DOUBLE_HYBRID,
        )
    if row.dispersion and not row.parameters_in(row.dispersion):
        raise InputError(
            Option("method", name),
            f": no parameters of {DISPERSIONS[row.dispersion]} are published for this functional: ",
            without_dispersion(row),
        )
    return row.name


def method_of_orbitals(name: str | None, xc: str | None) -> str:
    """The method that a prepared file is made for, as far as it determines the orbitals.

    Parameters
    ----------
    name : value of --method, None if it was not given
    xc : functional of Kohn-Sham orbitals, None if it was not given

    Raises
    ------
    InputError : the method affects only the pair energies, or is unknown
    """
    if name is None:
        return "mp2" if xc is None else "drpa"  # drpa takes any functional
    row = look_up(canonical_method(name))
    if row is None:
        raise InputError(
            Option("method", name),
            " belongs to the pair energies, which ",
            Command("energy"),
            " computes: leave it out here",
        )
    return row.name


def functionals_of(method: str, xc: str | None) -> tuple[str | None, str | None]:
    """The functionals of a method's orbitals and of its energy, in libxc's terms.

    Both are None for Hartree-Fock; the second one is also None if it equals the first.

    Parameters
    ----------
    method : as returned by `canonical_method`
    xc : functional of the orbitals, for a method that takes any
    """
    row = None
    if method not in METHODS and method not in (CUSTOM, CUSTOM_DOUBLE_HYBRID):
        row = look_up(method)
    if row is None:
        return xc, None
    return row.scf.lower(), row.energy.lower() or None


def without_dispersion(row: DoubleHybrid) -> Message:
    """Advice on a dispersion correction without parameters."""
    others = [name for name in DISPERSIONS if row.parameters_in(name)]
    if others:
        return Message("use ", Option("dispersion", others[0]), ", or none")
    if row.fitted_with:
        fitted = Option("method", row.fitted_with)
        return Message("use ", fitted, ", whose factors were fitted together with it")
    return Message("leave it out, or use ", Option("dispersion", "none"))


def way_out_behind(name: str) -> Message:
    """Advice appended to an unknown method: the one probably meant, or an alternative."""
    way_out = _with_available_dispersion(name) or way_out_of_method(name)
    close = difflib.get_close_matches(name.lower(), method_names(), n=1, cutoff=0.8)
    very_close = difflib.get_close_matches(name.lower(), table(), n=1, cutoff=0.9)
    if close and (not way_out or name.lower() in METHODS or very_close):
        way_out = Message(f"did you mean {close[0]}?")
    if way_out:
        return Message("; ", way_out)
    return way_out


def _with_available_dispersion(name: str) -> Message:
    """Advice on a double hybrid with an unavailable dispersion correction; "" for all other
    names."""
    stem = OTHER_DISPERSION.sub("", name)
    row = look_up(stem)
    if stem == name or row is None or row.unavailable:
        return Message()
    available = []
    for dispersion in DISPERSIONS:
        corrected = look_up(f"{stem}-{dispersion}")
        if corrected is not None and corrected.parameters_in(dispersion):
            available.append(corrected.name)
    if not available:
        unknown = f"no dispersion correction is published for {row.title}: use "
        return Message(unknown, Option("method", row.name))
    others = "".join(f" or {other}" for other in available[1:])
    return Message("dispersion is D3(BJ) or D4: use ", Option("method", available[0]), others)
