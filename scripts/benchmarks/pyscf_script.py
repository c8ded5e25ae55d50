"""Called by scripts/benchmarks/race.py: the text of a PySCF script that repeats a calculation of
ours: DF-SCF, or DF-Kohn-Sham of a double hybrid, then `pyscf.mp.dfmp2_native`, whose energies are
unscaled; or only the SCF, optionally with its gradient.

It is what a user would write: names of basis and fitting sets if PySCF's library has them
(otherwise the numbers themselves), the geometry from the xyz file, and dfmp2's default convergence.
"""

from __future__ import annotations

from typing import Any

from dfmp2.molecule.basis import BasisSet, to_pyscf, to_pyscf_ecp
from dfmp2.molecule.molecule import Molecule
from dfmp2.mp2.result import MP2Result

# Eh; `norm(g)` of all occupied-virtual elements g = 2 F_ia (RHF)
CONV_TOL, CONV_TOL_GRAD = (1e-10, 1e-6)
MAX_CYCLE = 100

_SCF = '''"""{title} with PySCF."""

import time

seconds, last = {{}}, time.perf_counter()


def lap(stage):
    global last
    now = time.perf_counter()
    seconds[stage], last = now - last, now


import json

import numpy
import pyscf
from pyscf import dft, gto, scf
{import_mp2}
lap("import")
mol = gto.M(
    atom={atom},
    unit="{unit}",
    basis={basis},
    ecp={ecp},
    charge={charge},
    spin={spin},
    verbose=0,
)
mf = {mean_field}.density_fit(auxbasis={jk})
{grid}mf.conv_tol = {conv_tol}
mf.conv_tol_grad = {conv_tol_grad}
mf.max_cycle = {max_cycle}
lap("molecule")
mf.with_df.build()
lap("fitted integrals")
mf.kernel()
if not mf.converged:
    raise SystemExit("the SCF did not converge")
lap("scf")
nocc = int((mf.mo_occ if mf.mo_occ.ndim == 1 else mf.mo_occ[0]).astype(bool).sum())
result = {{
    "program": "PySCF " + pyscf.__version__,
    "scf_energy": float(mf.e_tot),
    "correlation_energy": None,
    "sizes": [int(mol.nao), 0, nocc, int(mf.mo_coeff.shape[-1]) - nocc],
    "points": {points},
    "cycles": int(mf.cycles),
    "seconds": seconds,
}}
'''
_GRADIENT = """mf.nuc_grad_method().kernel()
lap("gradient")
"""
_MP2 = """mp = {module}.{solver}(mf, frozen={frozen}, auxbasis={ri})
with mp:
    mp.calculate_integrals_()
    lap("mp2 integrals")
    mp.kernel()
    lap("pair energies")
nocc = {nocc} - {frozen}
result["correlation_energy"] = float(mp.e_corr)
result["sizes"] = [int(mol.nao), int(mp.auxmol.nao), int(nocc), int(mp.nmo - nocc - {frozen})]
"""
_END = """with open("peer.json", "w") as handle:
    json.dump(result, handle)
"""


def pyscf_script(ours: MP2Result, geometry: str, *, gradient: bool = False) -> str:
    """Python text that repeats `ours` with PySCF and writes peer.json.

    Parameters
    ----------
    ours : bases, reference, frozen core
    geometry : xyz file of the molecule in the working directory
    gradient : compute the gradient of the SCF instead of MP2
    """
    molecule, restricted = ours.molecule, ours.reference.kind == "rhf"
    ghosts = any(molecule.ghost)
    module = "dfmp2_native" if restricted else "dfump2_native"
    if restricted:
        kind = "RHF"
    else:
        kind = "UHF"
    mean_field = f"scf.{kind}(mol)"
    grid, points = "", "0"
    if ours.reference.xc is not None:
        points = "int(numpy.count_nonzero(mf.grids.weights))"
        kind = kind.replace("HF", "KS")
        mean_field = f"dft.{kind}(mol, xc={ours.reference.xc!r})"
        grid = _grid(str(ours.reference.grid_name))
    title, import_mp2 = f"DF-{kind}", ""
    if gradient:
        parts = [_SCF, _GRADIENT, _END]
        title = f"{title} and its gradient"
    elif ours.options.correlation.kind == "none":
        parts = [_SCF, _END]
    else:
        parts = [_SCF, _MP2, _END]
        title = f"{title} and DF-MP2"
        import_mp2 = f"from pyscf.mp import {module}\n"
    auxbasis = "None"
    if ours.sizes.naux:
        auxbasis = _literal(ours.mp2_fitting, molecule)
    return "".join(parts).format(
        title=title,
        import_mp2=import_mp2,
        points=points,
        module=module,
        atom=repr(_atoms(molecule) if ghosts else geometry),
        unit="bohr" if ghosts else "angstrom",
        basis=_literal(ours.orbital_basis, molecule),
        ecp=repr(_potentials(ours.orbital_basis, molecule)),
        charge=molecule.charge,
        spin=molecule.multiplicity - 1,
        mean_field=mean_field,
        grid=grid,
        jk="None" if ours.scf_fitting is None else _literal(ours.scf_fitting, molecule),
        conv_tol=CONV_TOL,
        conv_tol_grad=CONV_TOL_GRAD,
        max_cycle=MAX_CYCLE,
        solver="DFRMP2" if restricted else "DFUMP2",
        frozen=ours.sizes.frozen_core,
        ri=auxbasis,
        nocc="mp.nocc" if restricted else "mp.nocc[0]",
    )


def _grid(name: str) -> str:
    """A line of Python text that chooses the integration grid."""
    if "," in name:
        return f"mf.grids.atom_grid = ({name})\n"
    return f"mf.grids.level = {name}\n"


def _literal(basis: BasisSet, molecule: Molecule) -> str:
    """Name of a set if PySCF has it for all elements, otherwise its numbers, as Python text."""
    sets = [basis.elements[symbol] for symbol in molecule.elements]
    names = {element.name for element in sets}
    if len(names) == 1 and all(
        element.source.startswith("PySCF") and element.ecp is None for element in sets
    ):
        return repr(names.pop())
    labels = sorted(
        {(symbol, ghost) for symbol, ghost in zip(molecule.symbols, molecule.ghost, strict=True)}
    )
    return repr(
        {_label(symbol, ghost): to_pyscf(basis.elements[symbol]) for symbol, ghost in labels}
    )


def _potentials(basis: BasisSet, molecule: Molecule) -> dict[str, Any]:
    real = {
        symbol for symbol, ghost in zip(molecule.symbols, molecule.ghost, strict=True) if not ghost
    }
    return {
        s: to_pyscf_ecp(basis.elements[s])
        for s in sorted(real)
        if basis.elements[s].ecp is not None
    }


def _atoms(molecule: Molecule) -> list[tuple[str, tuple[float, ...]]]:
    centres = zip(molecule.symbols, molecule.ghost, molecule.coordinates, strict=True)
    return [
        (_label(symbol, ghost), tuple(float(x) for x in position))
        for symbol, ghost, position in centres
    ]


def _label(symbol: str, ghost: bool) -> str:
    return f"GHOST-{symbol}" if ghost else symbol
