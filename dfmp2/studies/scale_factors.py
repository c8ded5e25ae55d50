"""Published scale factors of harmonic wavenumbers, by method and basis set.

They are those of zero-point energies, which differ from those of fundamentals (0.95 and less): a
factor for thermochemistry is to make zero-point and thermal energies right. They were fitted with
all-electron Hartree-Fock or with frozen-core MP2, with four-centre integrals, whose difference from
fitted ones is below the last digit.

Source: the database of the Truhlar group, version 5, https://comp.chem.umn.edu/freqscale; Alecu,
Zheng, Zhao, Truhlar, J. Chem. Theory Comput. 6, 2872 (2010).
"""

from __future__ import annotations

from dfmp2.errors import InputError
from dfmp2.errors.messages import Option, plain

AUTO = "auto"
CITATION = (
    "Truhlar group, version 5; Alecu, Zheng, Zhao, Truhlar, J. Chem. Theory Comput. 6, 2872 (2010)"
)
LEAST, MOST = 0.5, 1.5
FACTORS = {  # (method, basis) -> factor
    ("mp2", "6-31g*"): 0.964,
    ("mp2", "6-31g**"): 0.958,
    ("mp2", "6-31+g**"): 0.968,
    ("mp2", "6-311g**"): 0.970,
    ("mp2", "cc-pvdz"): 0.977,
    ("mp2", "cc-pvtz"): 0.975,
}
OTHER_NAMES = {  # of basis sets
    "6-31g(d)": "6-31g*",
    "6-31g(d,p)": "6-31g**",
    "6-31+g(d,p)": "6-31+g**",
    "6-311g(d,p)": "6-311g**",
}


def scale_factor(
    asked: float | str, method: str, basis: str, frozen_core: str
) -> tuple[float, str]:
    """The factor that harmonic wavenumbers are multiplied by, and where it is from.

    Parameters
    ----------
    asked : float or str
        A factor, or AUTO for the one that is published.
    method, basis, frozen_core : str
        What the Hessian was, or is to be computed with, by their options.

    Raises
    ------
    InputError : no factor, or none is published
    """
    option = Option("scale", asked)
    if asked == AUTO:
        name = basis.lower()
        name = OTHER_NAMES.get(name, name)
        core = ""
        if frozen_core in ("none", "0"):
            core = " with all electrons correlated"
        found = FACTORS.get((method, name))
        if found is None or core:
            known = ", ".join(f"{of.upper()}/{within}" for of, within in FACTORS)
            raise InputError(
                option,
                f": no factor is published for {method}/{name}{core} (frozen core: {known}): give "
                "a number, or leave it out",
            )
        return found, CITATION
    try:
        factor = float(plain(asked))
    except (TypeError, ValueError):
        factor = 0.0
    if not LEAST <= factor <= MOST:
        raise InputError(option, f": expected a number from {LEAST:g} to {MOST:g}, or {AUTO}")
    return factor, "given"
