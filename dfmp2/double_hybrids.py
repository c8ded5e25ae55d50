"""The double hybrids: functionals with a scaled second-order perturbation term in their correlation
energy.

    E = E_DFT[functional of the energy] + c_OS E_OS + c_SS E_SS + E_disp

The orbitals are those of the SCF's functional, which is also that of the energy except in
functionals of the XYG3 type. The table is `double_hybrids.toml` beside this module, whose header
explains its keys. Goerigk and Grimme, WIREs Comput. Mol. Sci. 4, 576 (2014).
"""

from __future__ import annotations

import re
import tomllib
from dataclasses import dataclass, replace
from functools import cache
from importlib import resources

DISPERSIONS = {"d3bj": "D3(BJ)", "d4": "D4"}  # name -> usual spelling
PARAMETERS = re.compile(r"([a-z0-9_]+)\s*\((_[^()]*)\)", re.IGNORECASE)  # of a libxc term
_IGNORED = re.compile(r"[^a-z0-9]")  # in a lower-case name
_FITTED = ("ri-", "df-", "dlpno-")  # prefixes that say how the second-order term is computed


@dataclass(frozen=True, slots=True)
class DoubleHybrid:
    """A row of the table.

    Attributes
    ----------
    name, title : as for `--method`, and as chemists write it
    scf : functional of the SCF in libxc's terms (`dfmp2.scf.kohn_sham`)
    energy : functional of the energy if it is another one, else ""
    exact_exchange : of the energy: at short range, at long range, and omega, 1/bohr
    opposite_spin, same_spin : c_OS, c_SS
    dispersion : the correction that its name implies: "d3bj", "d4" or ""
    d3bj, d4 : its name in the authors' packages, "" if no parameters were published
    fitted_with : name of the row that was fitted with dispersion, if this one was fitted without
    p86 : local part of its P86 correlation, "" if it has none
    doi : DOI of the publication
    checked : programs that its energy was compared with, or "unchecked"
    unavailable : why it cannot be computed, "" if it can
    aliases : other names
    """

    name: str
    title: str
    doi: str
    scf: str = ""
    energy: str = ""
    exact_exchange: tuple[float, float, float] = (0.0, 0.0, 0.0)
    opposite_spin: float = 0.0
    same_spin: float = 0.0
    dispersion: str = ""
    d3bj: str = ""
    d4: str = ""
    fitted_with: str = ""
    p86: str = ""
    checked: str = "unchecked"
    unavailable: str = ""
    aliases: tuple[str, ...] = ()

    def parameters_in(self, dispersion: str) -> str:
        """Its name in the package of that dispersion correction, "" if there are no parameters for
        it."""
        return {"d3bj": self.d3bj, "d4": self.d4}[dispersion]


@cache
def table() -> dict[str, DoubleHybrid]:
    """All rows by name, in the order of the file."""
    text = resources.files("dfmp2").joinpath("double_hybrids.toml").read_text(encoding="utf-8")
    rows = {}
    for name, values in tomllib.loads(text).items():
        values["aliases"] = tuple(values.get("aliases", ()))
        values["exact_exchange"] = tuple(values.get("exact_exchange", (0.0, 0.0, 0.0)))
        rows[name] = DoubleHybrid(name=name, **values)
    return rows


def look_up(name: str) -> DoubleHybrid | None:
    """The double hybrid of this name, in any spelling, or None.

    Case, hyphens, slashes and parentheses are ignored, as is a prefix such as RI-. A name that ends
    in -D3(BJ) or -D4 is the functional with that dispersion correction, or another row if its
    factors differ.
    """
    text = name.strip().lower().replace("ω", "w")
    for prefix in _FITTED:
        text = text.removeprefix(prefix)
    plain = _IGNORED.sub("", text)
    if not plain:
        return None
    row = _spellings().get(plain)
    if row is not None:
        return row
    for dispersion, title in DISPERSIONS.items():
        stem = plain.removesuffix("2b").removesuffix(dispersion)
        row = _spellings().get(stem)
        if row is None or stem == plain:
            continue
        if row.fitted_with:
            row = table()[row.fitted_with]
        if row.dispersion == dispersion:
            return row
        return replace(
            row,
            name=f"{row.name.removesuffix(f'-{row.dispersion}')}-{dispersion}",
            title=f"{row.title.removesuffix(f'-{DISPERSIONS.get(row.dispersion)}')}-{title}",
            dispersion=dispersion,
        )
    return None


def with_dispersion(row: DoubleHybrid, dispersion: str) -> DoubleHybrid:
    """The functional with another published dispersion correction, "none" for none.

    Its name and title say so. DSD-PBEP86-D3(BJ) without its correction is not DSD-PBEP86, which has
    other factors: it is "DSD-PBEP86-D3(BJ) without dispersion".
    """
    if dispersion == "none":
        dispersion = ""
    if dispersion == row.dispersion:
        return row
    stem = row.name.removesuffix(f"-{row.dispersion}")
    named = look_up(f"{stem}-{dispersion}")
    if named is not None and named.dispersion == dispersion:
        theirs = (named.scf, named.energy, named.opposite_spin, named.same_spin)
        if theirs == (row.scf, row.energy, row.opposite_spin, row.same_spin):
            return named
    return replace(row, title=f"{row.title} without dispersion", dispersion=dispersion)


def without_parameters(xc: str) -> str:
    """A functional in libxc's terms, with the parameters of its terms removed."""
    return PARAMETERS.sub(r"\1", xc)


@cache
def _spellings() -> dict[str, DoubleHybrid]:
    """Rows by name, title and alias without the characters that are ignored."""
    spellings: dict[str, DoubleHybrid] = {}
    for row in table().values():
        for name in (row.name, row.title, *row.aliases):
            spellings.setdefault(_IGNORED.sub("", name.lower()), row)
    return spellings
