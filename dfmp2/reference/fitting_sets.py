"""Fitting sets that belong to an orbital basis: ONE table, orbital family -> (JK sets, RI sets).

Sources. cc-pVnZ, aug-cc-pVnZ, def2 and Pople rows: the defaults Psi4 publishes, which PySCF repeats in
`pyscf.df.addons.DEFAULT_AUXBASIS`. pcseg rows: Psi4. -PP, 6Z and cc-pV(n+d)Z rows: the `rifit` metadata
of the Basis Set Exchange. Three rows are our choice, made on the fitting error of E(corr) against
four-index MP2 (all electrons correlated):

- cc-pCVnZ takes the set of cc-pwCVnZ: 2 microhartree for HF in cc-pCVDZ (735 with cc-pvdz-ri);
- ma-def2 takes the set of the diffuse def2-...D basis: 46 for water in ma-def2-SVP and 32 in
  ma-def2-TZVP (120 and 55 with the sets of def2-SVP and def2-TZVP);
- def2-QZVPD takes that of def2-QZVPPD, of which it is a part: 55 for HCl, the same as def2-QZVPPD.

JK sets end in def2-universal-jkfit, made for H to Rn at any level up to QZVPP. RI sets have no such
substitute: what another family's set changes in E(corr) is larger than the error of a matching one.
"""

from __future__ import annotations

import re
from dataclasses import dataclass

from dfmp2.reference.basis_names import squash

UNIVERSAL_JK = "def2-universal-jkfit"


@dataclass(frozen=True, slots=True)
class Partners:
    """Fitting sets of an orbital basis, best first; the first that has the element is taken.

    Attributes
    ----------
    jk : Coulomb-exchange fitting sets for the SCF
    ri : MP2 fitting sets; () if none is known
    """

    jk: tuple[str, ...]
    ri: tuple[str, ...]


# Orbital sets | JK set of the family (besides the universal one) | RI sets. Pople rows stand for all
# polarisation functions: 6-31g is also 6-31g*, 6-31g(2df,p), ...
_TABLE = """
cc-pvdz cc-pv(d+d)z                 | cc-pvdz-jkfit           | cc-pvdz-ri
cc-pvtz cc-pv(t+d)z                 | cc-pvtz-jkfit           | cc-pvtz-ri
cc-pvqz cc-pv(q+d)z                 | cc-pvqz-jkfit           | cc-pvqz-ri
cc-pv5z cc-pv(5+d)z                 | cc-pv5z-jkfit           | cc-pv5z-ri
cc-pv6z cc-pv(6+d)z                 | cc-pv5z-jkfit           | cc-pv6z-ri
aug-cc-pvdz aug-cc-pv(d+d)z         | aug-cc-pvdz-jkfit       | aug-cc-pvdz-ri
aug-cc-pvtz aug-cc-pv(t+d)z         | aug-cc-pvtz-jkfit       | aug-cc-pvtz-ri
aug-cc-pvqz aug-cc-pv(q+d)z         | aug-cc-pvqz-jkfit       | aug-cc-pvqz-ri
aug-cc-pv5z aug-cc-pv(5+d)z         | aug-cc-pv5z-jkfit       | aug-cc-pv5z-ri
aug-cc-pv6z aug-cc-pv(6+d)z         | aug-cc-pv5z-jkfit       | aug-cc-pv6z-ri
cc-pcvdz cc-pwcvdz                  | cc-pvdz-jkfit           | cc-pwcvdz-ri
cc-pcvtz cc-pwcvtz                  | cc-pvtz-jkfit           | cc-pwcvtz-ri
cc-pcvqz cc-pwcvqz                  | cc-pvqz-jkfit           | cc-pwcvqz-ri
cc-pcv5z cc-pwcv5z                  | cc-pv5z-jkfit           | cc-pwcv5z-ri
aug-cc-pcvdz aug-cc-pwcvdz          | aug-cc-pvdz-jkfit       | aug-cc-pwcvdz-ri
aug-cc-pcvtz aug-cc-pwcvtz          | aug-cc-pvtz-jkfit       | aug-cc-pwcvtz-ri
aug-cc-pcvqz aug-cc-pwcvqz          | aug-cc-pvqz-jkfit       | aug-cc-pwcvqz-ri
aug-cc-pcv5z aug-cc-pwcv5z          | aug-cc-pv5z-jkfit       | aug-cc-pwcv5z-ri
cc-pvdz-pp                          |                         | cc-pvdz-pp-ri cc-pwcvdz-pp-ri
cc-pvtz-pp                          |                         | cc-pvtz-pp-ri cc-pwcvtz-pp-ri
cc-pvqz-pp                          |                         | cc-pvqz-pp-ri cc-pwcvqz-pp-ri
cc-pv5z-pp                          |                         | cc-pv5z-pp-ri cc-pwcv5z-pp-ri
cc-pwcvdz-pp                        |                         | cc-pwcvdz-pp-ri
cc-pwcvtz-pp                        |                         | cc-pwcvtz-pp-ri
cc-pwcvqz-pp                        |                         | cc-pwcvqz-pp-ri
cc-pwcv5z-pp                        |                         | cc-pwcv5z-pp-ri
aug-cc-pvdz-pp                      |                         | aug-cc-pvdz-pp-ri
aug-cc-pvtz-pp                      |                         | aug-cc-pvtz-pp-ri
aug-cc-pvqz-pp                      |                         | aug-cc-pvqz-pp-ri
aug-cc-pv5z-pp                      |                         | aug-cc-pv5z-pp-ri
aug-cc-pwcvdz-pp                    |                         | aug-cc-pwcvdz-pp-ri
aug-cc-pwcvtz-pp                    |                         | aug-cc-pwcvtz-pp-ri
aug-cc-pwcvqz-pp                    |                         | aug-cc-pwcvqz-pp-ri
aug-cc-pwcv5z-pp                    |                         | aug-cc-pwcv5z-pp-ri
def2-sv(p)                          |                         | def2-sv(p)-ri
def2-svp                            |                         | def2-svp-ri
def2-svpd ma-def2-svp ma-def2-svpp  |                         | def2-svpd-ri
def2-tzvp def2-mtzvp                |                         | def2-tzvp-ri
def2-tzvpd ma-def2-tzvp             |                         | def2-tzvpd-ri
def2-tzvpp def2-mtzvpp              |                         | def2-tzvpp-ri
def2-tzvppd ma-def2-tzvpp           |                         | def2-tzvppd-ri
def2-qzvp                           |                         | def2-qzvp-ri
def2-qzvpp                          |                         | def2-qzvpp-ri
def2-qzvpd def2-qzvppd              |                         | def2-qzvppd-ri
ma-def2-qzvp ma-def2-qzvpp          |                         | def2-qzvppd-ri
sto-3g sto-6g 3-21g                 |                         | def2-svp-ri
6-31g                               | cc-pvdz-jkfit           | cc-pvdz-ri
6-31+g                              | heavy-aug-cc-pvdz-jkfit | heavy-aug-cc-pvdz-ri
6-31++g                             | aug-cc-pvdz-jkfit       | aug-cc-pvdz-ri
6-311g                              | cc-pvtz-jkfit           | cc-pvtz-ri
6-311+g                             | heavy-aug-cc-pvtz-jkfit | heavy-aug-cc-pvtz-ri
6-311++g                            | aug-cc-pvtz-jkfit       | aug-cc-pvtz-ri
pcseg-1                             |                         | def2-svp-ri
pcseg-2                             |                         | def2-tzvpp-ri
pcseg-3                             |                         | def2-qzvpp-ri
aug-pcseg-1                         |                         | def2-svpd-ri
aug-pcseg-2                         |                         | def2-tzvppd-ri
aug-pcseg-3                         |                         | def2-qzvppd-ri
"""


def _read(table: str) -> dict[str, Partners]:
    partners = {}
    for row in table.strip().splitlines():
        orbital, jk, ri = (column.split() for column in row.split("|"))
        for name in orbital:
            partners[squash(name)] = Partners(jk=(*jk, UNIVERSAL_JK), ri=tuple(ri))
    return partners


PARTNERS = _read(_TABLE)

_POPLE_POLARISATION = re.compile(r"(?<=\dg|\+g)(\*{1,2}|\(.*\))$")


def find_partners(name: str) -> Partners | None:
    """Row of the table for an orbital basis, or None if it has none."""
    return PARTNERS.get(_POPLE_POLARISATION.sub("", squash(name)))
