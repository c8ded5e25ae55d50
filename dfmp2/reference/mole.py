"""Build PySCF molecules from explicit values only: no user string reaches a PySCF parser.

Atoms go in as (symbol, position in bohr), basis functions and potentials as numbers, keyed by the
symbol of the atom; ghosts are `GHOST-X` and never carry an effective core potential.
"""

from __future__ import annotations

from typing import Any

from dfmp2.basis import BasisSet
from dfmp2.molecule import Molecule
from dfmp2.reference.basis_shells import to_pyscf, to_pyscf_ecp
from dfmp2.reference.shield import import_pyscf, shielded

MEGABYTE = 10**6


def build_mole(molecule: Molecule, basis: BasisSet, memory: int) -> Any:
    """PySCF Mole of a molecule in an orbital basis (spherical functions, no symmetry).

    Parameters
    ----------
    memory : bytes PySCF may plan with
    """
    import_pyscf()
    with shielded():
        from pyscf import gto

        mole = gto.Mole()
        mole.verbose = 0
        mole.unit = "Bohr"
        mole.cart = False
        mole.symmetry = False
        mole.max_memory = memory / MEGABYTE
        mole.atom = [
            [_pyscf_symbol(symbol, ghost), tuple(float(x) for x in position)]
            for symbol, ghost, position in zip(molecule.symbols, molecule.ghost, molecule.coordinates, strict=True)
        ]
        mole.basis = _keyed(molecule, basis)
        real = {symbol for symbol, ghost in zip(molecule.symbols, molecule.ghost, strict=True) if not ghost}
        mole.ecp = {
            symbol: to_pyscf_ecp(element)
            for symbol, element in basis.elements.items()
            if symbol in real and element.ecp is not None
        }
        mole.charge = molecule.charge
        mole.spin = molecule.multiplicity - 1
        mole.build(dump_input=False, parse_arg=False)
        return mole


def build_auxiliary(mole: Any, molecule: Molecule, basis: BasisSet) -> Any:
    """PySCF Mole that carries a fitting set on the same centres."""
    with shielded():
        from pyscf import df

        return df.addons.make_auxmol(mole, _keyed(molecule, basis))


def fitting_data(molecule: Molecule, basis: BasisSet) -> dict[str, Any]:
    """A fitting set in the form PySCF's `density_fit(auxbasis=...)` takes."""
    return _keyed(molecule, basis)


def dump_mole(mole: Any) -> str:
    """PySCF's own JSON form of a molecule, which makes a result file a PySCF checkpoint as well."""
    with shielded():
        return str(mole.dumps())


def _pyscf_symbol(symbol: str, ghost: bool) -> str:
    return f"GHOST-{symbol}" if ghost else symbol


def _keyed(molecule: Molecule, basis: BasisSet) -> dict[str, Any]:
    labels = {(s, g) for s, g in zip(molecule.symbols, molecule.ghost, strict=True)}
    return {_pyscf_symbol(symbol, ghost): to_pyscf(basis.elements[symbol]) for symbol, ghost in sorted(labels)}
