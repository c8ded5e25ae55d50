"""Fitting sets that belong to an orbital basis: ONE table, orbital family -> (JK sets, RI sets).

Sources. cc-pVnZ, aug-cc-pVnZ, def2 and Pople rows: the defaults that Psi4 publishes, repeated by
PySCF in `pyscf.df.addons.DEFAULT_AUXBASIS`. pcseg rows: Psi4. -PP, 6Z and cc-pV(n+d)Z rows: the
`rifit` metadata of the Basis Set Exchange. Three rows are our own choice, based on the fitting
error of E(corr) in microhartree against four-index MP2 (all electrons correlated):

- cc-pCVnZ takes the set of cc-pwCVnZ: 2 for HF in cc-pCVDZ (735 with cc-pvdz-ri);
- ma-def2 takes the set of the diffuse def2-...D basis: 46 for water in ma-def2-SVP and 32 in
  ma-def2-TZVP (120 and 55 with the sets of def2-SVP and def2-TZVP);
- def2-QZVPD takes that of def2-QZVPPD, which contains it: 55 for HCl, the same as def2-QZVPPD.

JK sets fall back to def2-universal-jkfit, made for H to Rn at any level up to QZVPP. RI sets have
no such substitute: the set of another family changes E(corr) by more than the error of a matching
one.

A published set may be wrong for an element (cc-pvdz-jkfit of Ga to Kr is off by 0.5 to 0.7 Eh), or
made for a core potential that an all-electron basis does not have. So every set is checked by
`fitting_error`: a default that fails gives way to the next one in its row, and finally to a
generated one; a set that was requested by name is rejected.

Below: the fitting error of one atom, the deviation of a fitting set from exact four-centre integrals,
known before any molecule is computed.

    SCF   1/2 (J_fit - J | D) - 1/4 (K_fit - K | D)
    MP2   E2[(ia|jb)_fit] - E2[(ia|jb)]
          E2 = sum_ijab w_i w_j (ia|jb) [2 (ia|jb) - (ib|ja)] / (D_ia + D_jb)     D_ia = -max(e_a - e_i, LEAST_GAP)

D, i (weight w_i, half its occupation) and a belong to the neutral atom, converged with occupations
averaged over each shell, whose integrals are radial (`dfmp2.fitting.spherical_atom`). (Start
orbitals would be cheaper, but have inner nodes that the basis of a core potential lacks: sound sets
for Sn to Xe then appear wrong by up to 5e-3 Eh.) All electrons are correlated. Pairs of the survey
(`scripts/survey_fitting.py`) are looked up in `atomic_errors.tsv`; others are measured once and
kept in the host's cache. Both are keyed by the hash of the numbers, so that a library's change of a
set is noticed.
"""

from __future__ import annotations

import hashlib
import re
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import replace
from functools import cache, lru_cache
from importlib import import_module
from pathlib import Path
from typing import TYPE_CHECKING, Any

import numpy as np

from dfmp2.errors import InputError, Message, NumericalError, Option
from dfmp2.host.files import load_cached, store_cached
from dfmp2.molecule import basis_library as library
from dfmp2.molecule.basis import (
    FITTING_KINDS,
    GENERATED,
    BasisSet,
    ElementBasis,
    kind,
    normalise,
    purpose,
    squash,
    tidy_shells,
    to_pyscf,
)
from dfmp2.molecule.basis_library import (
    find_exchange_element,
    find_pyscf_element,
    lacks,
    require_known,
)
from dfmp2.molecule.elements import atomic_number
from dfmp2.molecule.mole import build_auxiliary, build_mole
from dfmp2.molecule.molecule import Molecule
from dfmp2.molecule.pyscf_shield import pyscf_version, shielded
from dfmp2.options.basis_parts import is_file
from dfmp2.units import told_apart

if TYPE_CHECKING:
    from dfmp2.fitting.spherical_atom import Factor, Shells

OPTIONS = {"ri": Option("auxbasis"), "jk": Option("scf_auxbasis")}
FITTING_NAMES = {"ri": "MP2 fitting set", "jk": "SCF fitting set"}
UNIVERSAL_JK = "def2-universal-jkfit"
LARGEST = 1e-3  # Eh per atom; most sets stay below 2e-4
# Eh; orbital energies may cross in a spherical open-shell atom, but not in molecules
LEAST_GAP = 0.4
SURVEY = Path(__file__).with_name("atomic_errors.tsv")
DIGITS = 16  # of the hash; two of 10^4 pairs collide with a probability of 1e-12

# Fitting sets made for core potentials: pattern of the key, and the first Z with a potential.
_FOR_POTENTIALS = ((r"(ma)?def2.*|weigend.*", 37), (r"(aug)?ccp(w?c|)v[dtq5]zpp(ri|jkfit)", 1))


# Orbital sets | JK set of the family (besides the universal one) | RI sets. Pople rows cover all
# polarisation functions: 6-31g is also 6-31g*, 6-31g(2df,p), ...
TABLE = """
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


def _read(table: str) -> dict[str, dict[str, tuple[str, ...]]]:
    partners = {}
    for row in table.strip().splitlines():
        orbital, jk, ri = (column.split() for column in row.split("|"))
        for name in orbital:
            partners[squash(name)] = {"jk": (*jk, UNIVERSAL_JK), "ri": tuple(ri)}
    return partners


PARTNERS = _read(TABLE)

_POPLE_POLARISATION = re.compile(r"(?<=\dg|\+g)(\*{1,2}|\(.*\))$")


def find_partners(name: str) -> Mapping[str, tuple[str, ...]]:
    """Fitting sets of an orbital basis by role, best first; {} if the table has none."""
    return PARTNERS.get(_POPLE_POLARISATION.sub("", squash(name)), {})


def resolve_fitting(
    role: str,
    name: str | None,
    orbital: BasisSet,
    symbols: Sequence[str],
    *,
    allow_poor: bool = False,
) -> BasisSet:
    """Fitting set for the SCF or for MP2, with its error for each of the elements.

    Parameters
    ----------
    role : "jk" (SCF) or "ri" (MP2)
    name : None for the partner of the orbital basis, "auto" for an even-tempered set generated from
        it, else the name of a fitting set of any kind (see
        `dfmp2.molecule.basis.is_mp2_fitting_set`)
    orbital : resolved orbital basis
    symbols : element symbols
    allow_poor : accept a named set whatever its error

    Raises
    ------
    InputError : no partner is known, the set is unknown or an orbital basis, or it lacks one of the
        elements
    NumericalError : the named set is too poor for an element
    """
    wanted = {key: one for key, one in orbital.elements.items() if one.symbol in symbols}
    with shielded():
        if name is None:
            partners = {key: _partner(role, one) for key, one in wanted.items()}
            found = BasisSet(role=role, name="default", elements=partners)
            return with_errors(found, orbital, allow_poor=True)
        called = normalise(name)
        if called == GENERATED:
            elements = {key: _even_tempered(one) for key, one in wanted.items()}
        else:
            _require_fitting(role, called, name)
            elements = {key: _named(role, called, name, one.symbol) for key, one in wanted.items()}
    found = BasisSet(role=role, name=name, elements=elements)
    return with_errors(found, orbital, allow_poor=allow_poor)


def with_errors(fitting: BasisSet, orbital: BasisSet, *, allow_poor: bool) -> BasisSet:
    """The fitting set with its error for each element.

    Raises
    ------
    NumericalError : it is too poor for an element, and `allow_poor` is false
    """
    with shielded():
        pairs = {
            symbol: (orbital.elements[symbol], element)
            for symbol, element in fitting.elements.items()
        }
        if not allow_poor:
            for pair in pairs.values():
                _require_sound(fitting.role, *pair)
        errors = {symbol: fitting_error(fitting.role, *pair) for symbol, pair in pairs.items()}
    return replace(fitting, errors=errors)


def objection(role: str, orbital: ElementBasis, fitting: ElementBasis) -> str:
    """Why a fitting set must not be the default of an orbital set of the same element, or ""."""
    number = atomic_number(orbital.symbol)
    key = squash(fitting.name)
    potential = any(
        re.fullmatch(pattern, key) and number >= first for pattern, first in _FOR_POTENTIALS
    )
    if potential and orbital.ecp is None:
        return "made for a core potential"
    # The reverse is decided by the error: for Ga to Kr in cc-pVnZ-PP def2-universal-jkfit, made for
    # all electrons, is off by up to 3e-4 Eh, a generated set by up to 8e-4.
    return _inaccuracy(role, orbital, fitting)


def _inaccuracy(role: str, orbital: ElementBasis, fitting: ElementBasis) -> str:
    error = fitting_error(role, orbital, fitting)
    if abs(error) <= LARGEST:
        return ""
    size, _ = told_apart(".1e", abs(error), LARGEST)
    return f"off by {'-' if error < 0 else '+'}{size} Eh per atom"


def candidates(role: str, orbital: ElementBasis) -> Iterator[ElementBasis]:
    """Fitting sets for one element from the table, best first, then a generated one.

    Raises
    ------
    InputError : no set is known, or none of those known has the element
    """
    if not is_file(orbital.name):
        yield from _partners(role, orbital)
    elif role == "jk":  # no table has a partner for a file
        universal = find_pyscf_element(squash(UNIVERSAL_JK), orbital.symbol)
        if universal is not None:
            yield universal
    yield _even_tempered(orbital)


def _partners(role: str, orbital: ElementBasis) -> list[ElementBasis]:
    """The fitting sets of an orbital set in the table, best first; errors as in `candidates`."""
    names = find_partners(orbital.name).get(role)
    if names is None and role == "jk":
        names = (UNIVERSAL_JK,)
    elif names is None:
        names = library.exchange_partners(squash(orbital.name))
    generate = Message(OPTIONS[role].of(GENERATED), " generates an even-tempered one")
    if not names:
        raise InputError(
            f"no {FITTING_NAMES[role]} is known for {orbital.name} ({orbital.symbol}): "
            "name one with ",
            OPTIONS[role],
            ", or ",
            generate,
        )
    keys = [squash(name) for name in names]
    # PySCF's files first for all candidates, so that the choice is independent of other packages
    for find in (find_pyscf_element, find_exchange_element):
        listed = [element for key in keys if (element := find(key, orbital.symbol))]
        if listed:
            return listed
    raise InputError(
        f"the {FITTING_NAMES[role]} of {orbital.name}, {lacks(keys[0], orbital.symbol)}; ",
        generate,
    )


def dense_fitting(orbital: BasisSet, fitting: BasisSet) -> BasisSet:
    """A large MP2 fitting set for the elements of another one, whatever its error: the `auto` set,
    the even-tempered functions of PySCF's `aug_etb` above its highest angular momentum, and those
    of `fitting` above theirs.

    In polarised bases its error per orbital is a fifth or less of that of a published set.

    Raises
    ------
    InputError : the recipe fails for these exponents
    """
    with shielded():
        elements = {
            symbol: _dense(orbital.elements[symbol], known)
            for symbol, known in fitting.elements.items()
        }
    return BasisSet("ri", "dense", elements)


def _dense(orbital: ElementBasis, fitting: ElementBasis) -> ElementBasis:
    from pyscf import df

    found = _even_tempered(orbital)
    shells = list(found.shells)
    for more in (df.aug_etb(_atom(orbital))[orbital.symbol], fitting.shells):
        highest = max(shell[0] for shell in shells)
        shells += [shell for shell in more if shell[0] > highest]
    return replace(found, name=f"dense({orbital.name})", shells=tidy_shells(shells))


def _partner(role: str, orbital: ElementBasis) -> ElementBasis:
    """Default fitting set of one element, for the set its orbital functions came from; `source`
    names what it replaces.

    Raises
    ------
    NumericalError : even the generated set is too poor
    """
    refused: list[str] = []
    for element in candidates(role, orbital):
        reason = objection(role, orbital, element)
        if not reason and refused:
            return replace(element, source=f"{element.source}; instead of {', '.join(refused)}")
        if not reason:
            return element
        refused.append(f"{element.name}, {reason}")
    raise NumericalError(
        (
            f"no {FITTING_NAMES[role]} is good enough for {orbital.symbol} in {orbital.name}"
            f" (accepted up to {LARGEST:.0e} Eh per atom): {'; '.join(refused)}; choose "
            "another "
        ),
        Option("basis"),
        ", or name one of these with ",
        OPTIONS[role],
        " and ",
        Option("allow_poor_fit", True),
    )


def _named(role: str, key: str, name: str, symbol: str) -> ElementBasis:
    element = library.find_element(key, symbol)
    if element is None:
        raise InputError(
            OPTIONS[role].of(name),
            f": {lacks(key, symbol)}; ",
            OPTIONS[role].of(GENERATED),
            " generates a set",
        )
    return element


def _require_sound(role: str, orbital: ElementBasis, fitting: ElementBasis) -> None:
    """Raise for a named set that is too poor, and suggest the best known one."""
    reason = _inaccuracy(role, orbital, fitting)
    if not reason:
        return
    try:
        better = _partner(role, orbital)
    except (InputError, NumericalError):
        advice = "choose another basis"
    else:
        advice = f"use {better.name} ({fitting_error(role, orbital, better):+.1e} Eh), the default,"
    raise NumericalError(
        (f"the {FITTING_NAMES[role]} {fitting.name} ("),
        OPTIONS[role],
        (
            f") does not fit {orbital.symbol} in {orbital.name}: {reason}, accepted up to "
            f"{LARGEST:.0e}: {advice} or add "
        ),
        Option("allow_poor_fit", True),
    )


def _require_fitting(role: str, key: str, name: str) -> None:
    """Raise for the name of an orbital basis, or one that nobody knows."""
    if kind(key) in FITTING_KINDS:
        require_known(key, name, OPTIONS[role], fitting=True)
        return
    if kind(key) is None and not library.is_known(key):
        require_known(key, name, OPTIONS[role], fitting=True)
    names = find_partners(key).get(role)
    example = UNIVERSAL_JK if role == "jk" else "cc-pvdz-ri"
    advice = f"expected a fitting set such as {example}"
    if names:
        advice = f"its {FITTING_NAMES[role]} is {names[0]}"
    raise InputError(
        OPTIONS[role].of(name), f": this is {purpose(key)}, not a fitting set; {advice}"
    )


def _even_tempered(orbital: ElementBasis) -> ElementBasis:
    """Even-tempered fitting set by the AutoAux recipe, from the orbital exponents alone.

    Its error in E(corr) is below 30 microhartree for the hydrides tried from DZ to QZ; the older
    recipe of `pyscf.df.aug_etb` has 400 at QZ, because it lacks high angular momenta.

    Source: G. L. Stoychev, A. A. Auer, F. Neese, J. Chem. Theory Comput. 13, 554 (2017).

    Raises
    ------
    InputError : the recipe fails for these exponents
    """
    recipe: Any = import_module("pyscf.df.autoaux")  # `pyscf.df.autoaux` itself is a function
    # The table of PySCF 2.14 ends at l = 7, but functions with l = 6 need l = 8 and more
    if len(recipe.BETA_BIG) == 8:
        recipe.BETA_BIG = np.append(recipe.BETA_BIG, np.repeat(recipe.BETA_BIG[-1], 8))
    try:
        shells = recipe.autoaux(_atom(orbital))[orbital.symbol]
    except IndexError as error:  # occupied shells that are missing below a core potential
        raise InputError(
            (
                f"no even-tempered fitting set can be generated from {orbital.name} for "
                f"{orbital.symbol} (AutoAux of PySCF {pyscf_version()}): name a fitting set, or "
                "use another "
            ),
            Option("basis"),
            " such as def2-svp",
        ) from error
    return ElementBasis(
        symbol=orbital.symbol,
        name=f"{GENERATED}({orbital.name})",
        source=f"even-tempered (AutoAux of PySCF {pyscf_version()}), generated from {orbital.name}",
        shells=tidy_shells(shells),
    )


def _atom(orbital: ElementBasis) -> Any:
    """PySCF molecule of one atom in an orbital set."""
    from pyscf import gto

    mole = gto.Mole()
    mole.verbose = 0
    mole.atom = [[orbital.symbol, (0.0, 0.0, 0.0)]]
    mole.basis = {orbital.symbol: to_pyscf(orbital)}
    mole.spin = None  # any value: only the exponents matter
    mole.build(dump_input=False, parse_arg=False)
    return mole


# --- errors of atoms ------------------------------------------------------------------------------


@cache
def fitting_error(role: str, orbital: ElementBasis, fitting: ElementBasis) -> float:
    """Fitting error in the energy of one atom, Eh, from the survey, else from this host's cache,
    else measured now.

    Parameters
    ----------
    role : "jk" (SCF) or "ri" (MP2)
    orbital, fitting : sets of the same element
    """
    name = fitting_error_key(role, orbital, fitting)
    known = surveyed(name)
    if known is not None:
        return known
    entry = f"fitting error of the converged atom {name}"
    stored = (load_cached(entry) or {}).get("error")
    if isinstance(stored, float):
        return stored
    error = measure_fitting_error(role, orbital, fitting)
    store_cached(entry, {"error": error, "sets": f"{orbital.symbol} {orbital.name} {fitting.name}"})
    return error


def fitting_error_key(role: str, orbital: ElementBasis, fitting: ElementBasis) -> str:
    """Key of an error: element, role, and the numbers of both sets."""
    text = f"{role} {orbital.symbol} {orbital.sha256} {fitting.sha256}"
    return hashlib.sha256(text.encode()).hexdigest()[:DIGITS]


def surveyed(name: str) -> float | None:
    """Error in the survey for a key, Eh, or None; rows are element, orbital set, role, fitting set,
    error, key."""
    text = _survey()
    end = text.find(f"\t{name}\n")
    if end < 0:
        return None
    return float(text[text.rindex("\t", 0, end) + 1 : end])


@cache
def _survey() -> str:
    return SURVEY.read_text(encoding="ascii")


def measure_fitting_error(role: str, orbital: ElementBasis, fitting: ElementBasis) -> float:
    """The error relative to four-centre integrals of the neutral atom, Eh; takes about a tenth of a
    second.

    Raises
    ------
    InputError : the orbital set has too few functions for the neutral atom
    """
    from dfmp2.fitting import spherical_atom

    atom, mole, shells = _converged(orbital)
    auxmole = build_auxiliary(mole, atom, BasisSet(role, fitting.name, {orbital.symbol: fitting}))

    def energy(factor: Factor) -> float:
        if role == "jk":
            return spherical_atom.coulomb_exchange_energy(shells, factor)
        return spherical_atom.second_order_energy(shells, factor, LEAST_GAP)

    return energy(spherical_atom.fitted_potential(auxmole)) - energy(spherical_atom.exact_potential)


@lru_cache(maxsize=1)  # used for both roles, one after the other
def _converged(orbital: ElementBasis) -> tuple[Molecule, Any, list[Shells]]:
    """The neutral atom, its PySCF molecule, and its shells; raises as above."""
    from dfmp2.fitting import spherical_atom

    atom = Molecule((orbital.symbol,), np.zeros((1, 3)))
    electrons = atomic_number(orbital.symbol) - orbital.ecp_electrons
    atom = atom.with_state(0, 1 + electrons % 2)  # only the parity of the count matters
    mole = build_mole(atom, BasisSet("orbital", orbital.name, {orbital.symbol: orbital}), 0)
    try:
        shells = spherical_atom.atomic_hartree_fock(mole)
    except (AssertionError, IndexError) as error:  # from PySCF, which fills shells that are missing
        raise _too_few_functions(orbital) from error
    placed = [(2 * momentum + 1) * shell.occupations.sum() for momentum, shell in enumerate(shells)]
    if round(sum(placed)) != electrons:
        raise _too_few_functions(orbital)
    return atom, mole, shells


def _too_few_functions(orbital: ElementBasis) -> InputError:
    """The error for an orbital set that cannot hold the electrons of the neutral atom."""
    return InputError(
        f"{orbital.name} has too few functions for the electrons of a neutral "
        f"{orbital.symbol} atom: choose another ",
        Option("basis"),
    )
