"""Molecules that reveal errors hidden by symmetric closed shells: no symmetry, open shells,
charges, ghosts, fields.

Geometries are bent and stretched by hand, so that no two atoms, orbitals or components are alike;
PySCF's numbers for them are computed in the tests (`unrestricted`), with the same fitting sets.
"""

from __future__ import annotations

from dataclasses import replace
from types import SimpleNamespace
from typing import Any

import numpy as np
from pyscf import df, gto, lib, qmmm, scf

from dfmp2.molecule.molecule import Molecule
from dfmp2.mp2.energy import mp2_energy
from dfmp2.mp2.result import MP2Result
from dfmp2.progress import Silent
from dfmp2.scf.reference import StartOrbitals

BASIS = {"basis": "6-31g", "scf_auxbasis": "def2-universal-jkfit", "auxbasis": "def2-svp-ri"}
EXACT = {**BASIS, "precision": "fp64", "scf_conv_tol": 1e-12, "threads": 1, "allow_poor_fit": True}


def read(state: str, *atoms: str) -> Molecule:
    """A molecule from the comment of its file and its atoms, angstrom."""
    return Molecule.from_string("\n".join((str(len(atoms)), state, *atoms)))


CHARGES = [[2.1, -3.3, 4.0, 0.7], [-4.2, 1.0, -3.1, -0.4], [0.5, 5.0, 2.0, 0.3]]  # bohr, e
MOLECULES = {
    "cyano radical": read("multiplicity=2", "C 0.1 0 0", "N 0 0.2 1.17"),
    "methylene": read("multiplicity=3", "C 0 0 0", "H 0.2 0.99 0.35", "H -0.1 -0.8 0.75"),
    "nitrogen dioxide": read("multiplicity=2", "N 0 0 0", "O 0.1 1.1 0.48", "O 0 -1.08 0.5"),
    "fluoroformyl cation radical": read(
        "charge=1 multiplicity=2", "C 0 0 0", "O 0 0.1 1.2", "H 0.95 0 -0.5", "F -1.1 0.2 -0.6"
    ),
    "peroxide anion": read("charge=-1", "O 0 0 0", "O 0.2 0 1.48", "H 0.9 0.3 -0.2"),
    "chloramine": read("", "N 0 0 0", "Cl 0 0.1 1.76", "H 0.95 0.2 -0.3", "H -0.4 -0.9 -0.25"),
    "borane cation": read(
        "charge=1 multiplicity=2", "B 0 0 0", "H 0.1 0 1.2", "H 0 0.9 -0.8", "H 0 -1.1 -0.7"
    ),
    "hypochlorous acid in a field": read("", "O 0 0 0", "Cl 0.1 0 1.7", "H 0.9 0.2 -0.3").in_field(
        CHARGES
    ),
    "nitroxyl with a ghost": read(
        "", "N 0 0 0", "O 0.1 0 1.22", "H 0.9 0.2 -0.4", "@F -1.6 0.3 0.2"
    ),
    "hydroxyl and a lithium ion": read(
        "charge=1 multiplicity=2", "Li 0.1 0 -1.9", "O 0 0 0", "H 0.3 0.8 0.5"
    ),
    "fluoride and water": read(
        "charge=-1", "F 0 0.1 -2.4", "O 0 0 0", "H 0.1 0.15 -0.99", "H 0.9 0.1 0.3"
    ),
    "methanol radical in a field": read(
        "multiplicity=2",
        "C 0 0 0",
        "O 0.1 0 1.36",
        "H 0.95 0.1 -0.5",
        "H -0.85 0.4 -0.55",
        "H 0.9 0.3 1.7",
    ).in_field(CHARGES[:2]),
}


def mole_of(molecule: Molecule, basis: Any = "6-31g", ecp: Any = None) -> Any:
    """The molecule for PySCF; its point charges are added with the mean field."""
    atoms = list(zip(molecule.labels, molecule.coordinates, strict=True))
    named = [(label.replace("@", "GHOST-"), place) for label, place in atoms]
    return gto.M(
        atom=named,
        unit="bohr",
        basis=basis,
        ecp=ecp or {},
        charge=molecule.charge,
        spin=molecule.multiplicity - 1,
        verbose=0,
    )


def mean_field(
    molecule: Molecule, kind: Any, *, fitted: bool = True, basis: Any = "6-31g", ecp: Any = None
) -> Any:
    """PySCF's converged mean field, among the point charges of the molecule."""
    if kind is scf.UHF and molecule.multiplicity == 1:
        # If the RHF solution is unstable, rounding makes a UHF iteration drift away from it.
        return mean_field(molecule, scf.RHF, fitted=fitted).to_uhf()
    with lib.with_omp_threads(1):
        mf = kind(mole_of(molecule, basis, ecp))
        if molecule.point_charges is not None:
            field = molecule.point_charges
            mf = qmmm.mm_charge(mf, field[:, :3], field[:, 3], unit="bohr")
        if fitted:
            mf = mf.density_fit(auxbasis=BASIS["scf_auxbasis"])
        mf.conv_tol, mf.conv_tol_grad, mf.max_cycle = 1e-12, 1e-7, 200
        mf.run()
        if not mf.converged:
            mf = mf.newton().run(mf.mo_coeff, mf.mo_occ)
    assert mf.converged
    return mf


def semicanonical(mf: Any) -> tuple[SimpleNamespace, list[Any]]:
    """The orbitals of an ROHF that diagonalise the Fock matrix of either spin within its occupied
    and its virtual space, in place of the mean field, and <i|F|a> of each spin, Eh."""
    found = SimpleNamespace(mol=mf.mol, mo_coeff=[], mo_energy=[], mo_occ=[], e_tot=mf.e_tot)
    couplings = []
    for spin, count in enumerate(mf.mol.nelec):
        fock = mf.mo_coeff.T @ (mf.get_hcore() + mf.get_veff())[spin] @ mf.mo_coeff
        occupied, inner = np.linalg.eigh(fock[:count, :count])
        virtual, outer = np.linalg.eigh(fock[count:, count:])
        coeff = np.hstack([mf.mo_coeff[:, :count] @ inner, mf.mo_coeff[:, count:] @ outer])
        found.mo_coeff.append(coeff)
        found.mo_energy.append(np.r_[occupied, virtual])
        found.mo_occ.append(np.r_[np.ones(count), np.zeros(len(virtual))])
        couplings.append(inner.T @ fock[:count, count:] @ outer)
    return found, couplings


def singles_energies(mf: Any, couplings: list[Any], core: int, virtual: int = 0) -> list[float]:
    """sum <i|F|a>^2 / (e_i - e_a) of each spin, Eh, from `semicanonical`; `core` and `virtual`
    orbitals frozen."""
    energies = []
    for energy, coupling in zip(mf.mo_energy, couplings, strict=True):
        nocc, nvir = coupling.shape
        i, a = slice(core, nocc), slice(0, nvir - virtual)
        gaps = energy[:nocc][i, None] - energy[nocc:][a]
        energies.append(float((coupling[i, a] ** 2 / gaps).sum()))
    return energies


def spin_energies(
    mf: Any, core: int, virtual: int = 0, auxbasis: str = BASIS["auxbasis"]
) -> tuple[float, float]:
    """E_SS and E_OS, Eh, by their sums over spin orbitals, from PySCF's fitted integrals; `core` of
    the lowest and `virtual` of the highest orbitals frozen.

    E_OS = sum (ia|jb)^2 / D over alpha ia and beta jb, E_SS = 1/4 sum [(ia|jb) - (ib|ja)]^2 / D of
    each spin.
    """
    mole = mf.mol
    raw = df.incore.aux_e2(mole, aux := df.addons.make_auxmol(mole, auxbasis))
    metric = aux.intor("int2c2e")
    found = []
    for spin in range(2):
        coeff, energy, occ = mf.mo_coeff[spin], mf.mo_energy[spin], mf.mo_occ[spin] > 0
        i = np.flatnonzero(occ)[core:]
        a = np.flatnonzero(~occ)[: occ.size - occ.sum() - virtual]
        three = np.einsum("mnP,mi,na->iaP", raw, coeff[:, i], coeff[:, a], optimize=True)
        found.append((three, energy[i], energy[a]))
    sums = [0.0, 0.0]
    for left, right, same in ((0, 0, True), (1, 1, True), (0, 1, False)):
        (x, ei, ea), (y, ej, eb) = found[left], found[right]
        if not x.size or not y.size:
            continue
        fitted = np.linalg.solve(metric, y.reshape(-1, y.shape[-1]).T)
        g = (x.reshape(-1, x.shape[-1]) @ fitted).reshape(*x.shape[:2], *y.shape[:2])
        d = ei[:, None, None, None] - ea[:, None, None] + ej[:, None] - eb
        if same:
            sums[0] += 0.25 * float(((g - g.transpose(0, 3, 2, 1)) ** 2 / d).sum())
        else:
            sums[1] += float((g**2 / d).sum())
    return sums[0], sums[1]


def slope(result: MP2Result, direction: Any, charges: Any = None, step: float = 0.003) -> float:
    """Five-point difference of the energy along a direction of the atoms, (natom, 3), and one of
    the point charges, (n, 4), Eh/bohr."""
    molecule, reference = result.molecule, result.reference
    start = StartOrbitals(reference.mo_coeff, reference.mo_occ, None, "there")
    energies = []
    for factor in (-2, -1, 1, 2):
        moved = replace(molecule, coordinates=molecule.coordinates + factor * step * direction)
        if charges is not None:
            moved = moved.in_field(molecule.point_charges + factor * step * charges)
        run = mp2_energy(moved, result.options, start=start, listener=Silent())
        energies.append(run.total_energy)
    return (energies[0] - 8 * energies[1] + 8 * energies[2] - energies[3]) / (12 * step)
