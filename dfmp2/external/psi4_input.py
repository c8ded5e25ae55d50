"""The text of a Psi4 input that repeats a stored calculation with the same numbers.

Geometry in bohr, orbital basis, core potentials and both fitting sets are written out as data, so that
neither program's library can disagree. Psi4 executes its input as Python: nothing but numbers and element
symbols goes into it, no name or comment out of a result file.
"""

from __future__ import annotations

from collections.abc import Collection, Iterable, Mapping
from dataclasses import replace
from typing import Any

from dfmp2.basis import BasisSet, ElementBasis
from dfmp2.errors import InputError, UnsupportedByBackend
from dfmp2.result import MP2Result

LETTERS = "SPDFGHIKLMN"  # shells of l = 0, 1, ...; Psi4's parser leaves out J
ECP_LETTERS = "spdfgh"  # highest potential its parser knows: h
HIGHEST_POWER = 9  # of r in a core potential: one digit there
E_CONVERGENCE, D_CONVERGENCE = 1e-10, 1e-8  # Eh; E(corr) is of first order in the orbital error
GHOST = "_bare"  # label of ghosts that need a basis of their own
UNUSED_ROLE = "df_basis_cc"  # Psi4 1.3 knows no block basis_relativistic, but takes a name defined for another role
OVERLAP_CUT = 1e-6  # PySCF's cut on overlap eigenvalues, made Psi4's where functions were dropped


def psi4_input(result: MP2Result, memory: int, d_convergence: float = D_CONVERGENCE) -> str:
    """Psi4 input of a DF-MP2 calculation.

    Parameters
    ----------
    result : geometry, bases, reference and frozen orbitals to repeat
    memory : bytes Psi4 may use
    d_convergence : largest orbital gradient (root mean square) of a converged SCF

    Raises
    ------
    UnsupportedByBackend : a basis or core potential that Psi4's input format cannot express
    """
    fitted = result.scf_fitting is not None
    blocks = [
        f"memory {max(memory // 10**6, 500)} mb",
        _molecule(result),
        _basis_block("basis", "orbital", _elements(result, result.orbital_basis), _bare_ghosts(result)),
        _basis_block("df_basis_mp2", "fitmp2", _elements(result, result.mp2_fitting)),
    ]
    if result.scf_fitting is not None:
        blocks.append(_basis_block("df_basis_scf", "fitscf", _elements(result, result.scf_fitting)))
    settings = {
        "reference": result.reference.kind,
        "scf_type": "df" if fitted else "pk",
        "mp2_type": "df",
        "puream": "true",
        "e_convergence": f"{min(E_CONVERGENCE, result.options.scf_conv_tol):.1e}",
        "d_convergence": f"{d_convergence:.1e}",
        "maxiter": "200",
        "freeze_core": "false",
        "num_frozen_docc": str(result.sizes.frozen_core),
        "num_frozen_uocc": str(result.sizes.frozen_virtual),
    }
    if result.options.relativity == "x2c":
        blocks.append(_basis_block(UNUSED_ROLE, "decontracted", _elements(result, decontracted(result.orbital_basis))))
        settings |= {"relativistic": "x2c", "basis_relativistic": "decontracted"}
    if result.sizes.nmo < result.sizes.nao:
        settings |= {"s_orthogonalization": "canonical", "s_tolerance": f"{OVERLAP_CUT:.1e}"}
    blocks.append("set {\n" + "".join(f"{name} {value}\n" for name, value in settings.items()) + "}")
    return "\n\n".join([*blocks, *_field(result), "energy('mp2')"]) + "\n"


def decontracted(basis: BasisSet) -> BasisSet:
    """One shell for each exponent and angular momentum: Psi4 finds no such set for a basis that is given as data."""
    elements = {}
    for symbol, element in basis.elements.items():
        found = dict.fromkeys((shell[0], row[0]) for shell in element.shells for row in shell[1:])
        shells = tuple((momentum, (exponent, 1.0)) for momentum, exponent in found)
        elements[symbol] = replace(element, shells=shells, ecp=None, ecp_source=None)
    return replace(basis, elements=elements)


def _molecule(result: MP2Result) -> str:
    molecule, bare = result.molecule, _bare_ghosts(result)
    lines = [f"{molecule.charge} {molecule.multiplicity}"]
    for symbol, ghost, position in zip(molecule.symbols, molecule.ghost, molecule.coordinates, strict=True):
        label = f"@{symbol}{GHOST if symbol in bare else ''}" if ghost else symbol
        lines.append(f"{label} " + " ".join(f"{float(x):.16f}" for x in position))
    return "molecule {\n" + "\n".join([*lines, "units bohr", "symmetry c1", "no_reorient", "no_com"]) + "\n}"


def _field(result: MP2Result) -> list[str]:
    """The point charges, in the unit of the molecule's coordinates."""
    if result.molecule.point_charges is None:
        return []
    rows = (", ".join(repr(float(value)) for value in (q, x, y, z)) for x, y, z, q in result.molecule.point_charges)
    lines = ["field = QMMM()", *(f"field.extern.addCharge({row})" for row in rows)]
    return ["\n".join([*lines, "psi4.set_global_option_python('EXTERN', field.extern)"])]


def _elements(result: MP2Result, basis: BasisSet) -> dict[str, ElementBasis]:
    """The elements of the molecule, whose symbols have been checked, with their functions.

    Raises
    ------
    InputError : the basis lacks one
    """
    missing = [symbol for symbol in result.molecule.elements if symbol not in basis.elements]
    if missing:
        raise InputError(f"the {basis.role} basis of the result has no functions for {missing[0]}: compute it again")
    return {symbol: basis.elements[symbol] for symbol in result.molecule.elements}


def _bare_ghosts(result: MP2Result) -> set[str]:
    """Elements with a core potential that are there as ghosts, which must not have it: Psi4 would apply it."""
    elements = _elements(result, result.orbital_basis)
    centres = zip(result.molecule.symbols, result.molecule.ghost, strict=True)
    return {symbol for symbol, ghost in centres if ghost and elements[symbol].ecp_electrons}


def _basis_block(keyword: str, name: str, elements: Mapping[str, ElementBasis], bare: Collection[str] = ()) -> str:
    """A set as data in Gaussian's format, under a name of ours; ghosts of the elements `bare` get its shells only."""
    shells = {symbol: _shells(symbol, element) for symbol, element in elements.items()}
    potentials = [_potential(symbol, e) for symbol, e in elements.items() if e.ecp_electrons]
    assigned = [f"assign {name}", *(f"assign {symbol}{GHOST} {name}bare" for symbol in sorted(bare))]
    blocks = [(name, [*shells.values(), *potentials])]
    if bare:
        blocks.append((f"{name}bare", [shells[symbol] for symbol in sorted(bare)]))
    lines = [keyword + f" {name} {{", *assigned]
    for label, texts in blocks:
        lines += [f"[ {label} ]", "spherical", "****", *(f"{text}\n****" for text in texts)]
    return "\n".join([*lines, "}"])


def _shells(symbol: str, element: ElementBasis) -> str:
    """Shells of one element; one of several contractions becomes several shells."""
    lines = [f"{symbol} 0"]
    for momentum, *rows in element.shells:
        if momentum >= len(LETTERS):
            raise UnsupportedByBackend(
                f"Psi4's basis format has no letter for the shells of angular momentum {momentum} on {symbol}: "
                "compare with PySCF instead (--with pyscf)"
            )
        for column in range(1, len(rows[0])):
            kept = [(row[0], row[column]) for row in rows if column < len(row) and row[column]]
            lines.append(f"{LETTERS[momentum]} {len(kept)} 1.0")
            lines += [_numbers(pair) for pair in kept]
    return "\n".join(lines)


def _potential(symbol: str, element: ElementBasis) -> str:
    """Core potential of one element: the local part, then what is added to it for l = 0, 1, ...

    Terms are coefficient r^(power - 2) exp(-exponent r^2) in both programs.
    """
    core, channels = element.ecp or (0, ())
    terms = {int(momentum): _terms(powers) for momentum, powers in channels}
    highest = max(terms, default=-1) + 1
    powers = [power for rows in terms.values() for power, _, _ in rows]
    if not 0 < highest < len(ECP_LETTERS) or max(powers, default=0) > HIGHEST_POWER:
        raise UnsupportedByBackend(
            f"Psi4's basis format cannot express the core potential of {symbol} (angular momentum {highest}, power "
            f"{max(powers, default=0)} of r): compare with PySCF instead (--with pyscf)"
        )
    lines = [f"{symbol} 0", f"{symbol}-ECP {highest} {int(core)}"]
    for momentum in (-1, *range(highest)):
        letter = ECP_LETTERS[highest if momentum < 0 else momentum]
        rows = terms.get(momentum) or [(2, 1.0, 0.0)]  # a channel without terms still has its place
        lines += [f"{letter} potential", str(len(rows))]
        lines += [f"{power} {_numbers((exponent, factor))}" for power, exponent, factor in rows]
    return "\n".join(lines)


def _terms(powers: Iterable[Any]) -> list[tuple[int, float, float]]:
    """(power of r, exponent, coefficient) of one channel; spin-orbit coefficients are left out."""
    return [(power, float(row[0]), float(row[1])) for power, rows in enumerate(powers) for row in rows]


def _numbers(values: Iterable[float]) -> str:
    """17 significant digits and a decimal point, which Psi4's parser insists on."""
    return " ".join(f"{float(value):.16e}" for value in values)
