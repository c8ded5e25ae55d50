"""Take over a mean field the user converged with PySCF: check it, and turn it into our values."""

from __future__ import annotations

from typing import Any

import numpy as np

from dfmp2.basis import BasisSet, ElementBasis
from dfmp2.errors import ConvergenceError, InputError
from dfmp2.molecule import Molecule
from dfmp2.record import Reference
from dfmp2.reference.mean_field import record
from dfmp2.reference.shield import shielded


def adopt(mf: Any) -> tuple[Molecule, BasisSet, BasisSet | None, Reference]:
    """Molecule, orbital basis, SCF fitting set (None if conventional) and record of a mean field.

    Raises
    ------
    InputError : not a molecular RHF or UHF with spherical functions
    ConvergenceError : not converged
    """
    with shielded():
        from pyscf import gto, scf

        kind = _kind(mf, scf)
        mole = mf.mol
        if not isinstance(mole, gto.Mole) or hasattr(mole, "lattice_vectors"):
            raise InputError("the mean field is not one of a molecule: periodic systems are not supported")
        if mole.cart:
            raise InputError("the mean field uses Cartesian functions: build the molecule with cart=False")
        if not mf.converged:
            raise ConvergenceError("the mean field is not converged: run it to convergence first (conv_tol=1e-10)")
        fitting = getattr(mf, "with_df", None)
        molecule = Molecule(
            symbols=tuple(mole.atom_pure_symbol(i).removeprefix("GHOST-").removeprefix("X-") for i in range(mole.natm)),
            coordinates=np.asarray(mole.atom_coords(unit="Bohr")),
            ghost=tuple(bool(gto.is_ghost_atom(mole.atom_symbol(i))) for i in range(mole.natm)),
            charge=int(mole.charge),
            multiplicity=int(mole.spin) + 1,
            name="molecule",
            source="python: PySCF mean field",
        )
        orbital = _basis("orbital", mole, mole.basis, mole._ecp)
        jk = None
        if fitting is not None:
            if fitting.auxmol is None:
                fitting.build()
            jk = _basis("jk", fitting.auxmol, fitting.auxbasis, {})
        cycles = int(getattr(mf, "cycles", 0) or 0)
        return molecule, orbital, jk, record(mf, kind, jk is not None, ["given"], cycles, "python")


def _kind(mf: Any, scf: Any) -> str:
    """ "rhf" or "uhf" by class; anything else is refused by name."""
    foreign = (scf.hf.KohnShamDFT, scf.rohf.ROHF) if hasattr(scf.hf, "KohnShamDFT") else (scf.rohf.ROHF,)
    if not isinstance(mf, foreign):
        if isinstance(mf, scf.uhf.UHF):
            return "uhf"
        if isinstance(mf, scf.hf.RHF):
            return "rhf"
    raise InputError(f"the mean field is a {type(mf).__name__}: expected a PySCF RHF or UHF (not ROHF, not Kohn-Sham)")


def _basis(role: str, mole: Any, name: Any, ecp: dict[str, Any]) -> BasisSet:
    """The explicit numbers a PySCF molecule carries, per element."""
    elements: dict[str, ElementBasis] = {}
    label = name if isinstance(name, str) else "custom"
    for atom in range(mole.natm):
        key = mole.atom_symbol(atom)
        symbol = mole.atom_pure_symbol(atom).removeprefix("GHOST-").removeprefix("X-")
        data = mole._basis.get(key, mole._basis.get(mole.atom_pure_symbol(atom)))
        core = ecp.get(key, ecp.get(symbol))
        found = ElementBasis(
            symbol=symbol,
            name=label,
            source="PySCF mean field",
            shells=_tuples(data),
            ecp=None if core is None else _tuples(core),
            ecp_source=None if core is None else "PySCF mean field",
        )
        if elements.setdefault(symbol, found).shells != found.shells:
            raise InputError(f"atoms of {symbol} carry different basis sets in the mean field, which is not supported")
    return BasisSet(role, label, elements)


def _tuples(value: Any) -> Any:
    if isinstance(value, list | tuple | np.ndarray):
        return tuple(_tuples(item) for item in value)
    return value.item() if isinstance(value, np.generic) else value
