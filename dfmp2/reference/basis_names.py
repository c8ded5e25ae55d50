"""Names of basis sets: one comparison key per set, and what a set is for.

    "cc-pVDZ-RIFIT", "cc-pvdz_ri", "CC-PVDZ MP2FIT"  ->  "ccpvdzri"
    "6-31G(d,p)", "6-31gss"                          ->  "631g**"

A name is only ever compared with names from the libraries' own tables; it never becomes a path.
"""

from __future__ import annotations

import re

from dfmp2.errors import InputError

GENERATED = "auto"  # the even-tempered set generated from the orbital basis

_ALLOWED = re.compile(r"[A-Za-z0-9+*(),_ -]{1,80}")
_POPLE = re.compile(r"(\d{3,4}\+{0,2}g)(s|ss|\(d\)|\(d,p\))")
_STARS = {"s": "*", "(d)": "*", "ss": "**", "(d,p)": "**"}
_MP2_SUFFIX = re.compile(r"(rifit|mp2fit)$")
_SPELLINGS = {  # PySCF's spelling of cc-pV(D+d)Z
    "ccpvdpdz": "ccpv(d+d)z",
    "augccpvdpdz": "augccpv(d+d)z",
}

# What a set that is no orbital basis is for; the first pattern that matches the key counts.
_KINDS: tuple[tuple[str, str], ...] = (
    (r".*optri\+?", "optri"),  # complementary set of explicitly correlated methods
    (r".*ri", "ri"),  # MP2 fitting
    (r".*jkfit", "jk"),  # Coulomb and exchange fitting
    (r".*xfit", "xfit"),  # exchange-correlation fitting
    (r".*(fit|fituniversal|rij)|weigend.*|demon|ahlrichs", "j"),  # Coulomb fitting
    (r"(aug)?admm\d", "admm"),  # auxiliary density matrix method
    (r"sap(grasp|helfem).*", "guess"),  # atomic potentials for start orbitals
)
_PURPOSES = {
    "ri": "an MP2 fitting set",
    "jk": "a Coulomb-exchange fitting set",
    "j": "a Coulomb fitting set",
    "xfit": "a fitting set for density functionals",
    "optri": "a complementary set for explicitly correlated methods",
    "admm": "a set of the auxiliary density matrix method",
    "guess": "a table of potentials for start orbitals",
}
FITTING_KINDS = frozenset({"ri", "jk", "j"})  # kinds that can expand orbital products


def normalise(name: str) -> str:
    """Comparison key of a name: case, spaces, underscores and dashes do not count.

    `-ri`, `-rifit` and `-mp2fit` are one spelling, so are `*`, `s` and `(d)` of the Pople sets.

    Raises
    ------
    InputError : empty, too long or with characters no basis set name has
    """
    if not _ALLOWED.fullmatch(name) or not (key := squash(name)):
        raise InputError(
            f"basis set name {name[:60]!r}: expected a name such as cc-pvdz or 6-31G(d,p), made of letters, digits "
            "and + * ( ) , - _; files are not read"
        )
    return key


def squash(name: str) -> str:
    """`normalise` without its check, for names that come from a library."""
    key = re.sub(r"[\s_-]", "", name.lower().replace("_st_", "*").replace("_sl_", "/"))
    key = _MP2_SUFFIX.sub("ri", key)
    if pople := _POPLE.fullmatch(key):
        key = pople[1] + _STARS[pople[2]]
    return _SPELLINGS.get(key, key)


def readable(key: str) -> str:
    """A key as people write it, for sets whose library gives no better spelling: "631g*" is "6-31g*"."""
    return re.sub(r"^(\d)(\d{2,3}\+{0,2}g)", r"\1-\2", key)


def kind(name: str) -> str | None:
    """What a set is for: "ri", "jk", "j", "xfit", "optri", "admm", "guess", or None for orbitals."""
    key = squash(name)
    return next((kind for pattern, kind in _KINDS if re.fullmatch(pattern, key)), None)


def purpose(name: str) -> str:
    """`kind` in words, with an article."""
    return _PURPOSES.get(kind(name) or "", "an orbital basis")


def is_mp2_fitting_set(name: str) -> bool:
    """Whether a set is made for MP2 fitting (a generated set is); others fit, but less well."""
    return squash(name) == GENERATED or kind(name) == "ri"
