"""A solvent as a dielectric continuum around the molecule: its reaction field in the SCF.

    q = M v,   v_L = sum_A Z_A (A|L) - sum_mn D_mn (mn|L)        charges on the surface of the cavity     (1)
    E_solvent = sum_L q_L v_L / 2,   V_mn = - sum_L q_L (mn|L)    added to the energy and to the Fock matrix (2)
    C-PCM     M = - (1 - 1/eps) S^-1                              S: Coulomb interaction of the points     (3)

L runs over points on spheres around the atoms, each a Gaussian charge. The points, S, and the M of
the IEF-PCM used by SMD are PySCF's (`pyscf.solvent`). SMD adds an energy of cavitation, dispersion
and solvent structure, which depends only on the geometry. The charges follow the density of the
SCF, never a correlated one: energies added to it follow the PTE scheme
(perturbation of the energy alone). Sources: Barone and Cossi, J. Phys. Chem. A 102, 1995 (1998);
Lange and Herbert, J. Chem. Phys. 133, 244111 (2010); Marenich, Cramer, Truhlar, J. Phys. Chem. B
113, 6378 (2009); PTE: Olivares del Valle and Tomasi, Chem. Phys. 150, 139 (1991).
"""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass
from difflib import get_close_matches
from functools import cache
from types import SimpleNamespace
from typing import Any

import numpy as np

from dfmp2.arrays import Array
from dfmp2.errors import InputError, Option
from dfmp2.molecule.elements import atomic_number
from dfmp2.molecule.molecule import Molecule
from dfmp2.molecule.pyscf_shield import shielded
from dfmp2.options import SMD, Options, dielectric_constant
from dfmp2.units import ANGSTROM_PER_BOHR

NEAR = 4  # names suggested for an unknown one
BLOCK_BYTES = 64 * 10**6  # of integrals (mn|L) computed at a time
KEPT_BYTES = 512 * 10**6  # up to which all of them are kept between iterations
# float64 matrices over the points while PySCF builds S and D: measured 14.01 (water dimer)
SURFACE_MATRICES = 15
NO_RADIUS = 2.0  # angstrom, for elements without a published radius in PySCF's table
WORDS = {  # other names of solvents in the table
    "dmso": "dimethylsulfoxide",
    "dmf": "N,N-dimethylformamide",
    "thf": "tetrahydrofuran",
    "dcm": "dichloromethane",
    "ch2cl2": "dichloromethane",
    "mecn": "acetonitrile",
    "meoh": "methanol",
    "etoh": "ethanol",
    "h2o": "water",
    "ether": "diethylether",
    "ethyl acetate": "ethylethanoate",
    "hexane": "n-hexane",
    "heptane": "n-heptane",
    "octanol": "1-octanol",
    "dioxane": "1,4-dioxane",
}


@dataclass(frozen=True, slots=True)
class Solvent:
    """A solvent from PySCF's table, or a dielectric constant.

    Attributes
    ----------
    model : "cpcm" or "smd"
    name : as in the table, "" for a dielectric constant alone
    eps : dielectric constant
    """

    model: str
    name: str
    eps: float


@cache
def solvent_table() -> dict[str, tuple[float, ...]]:
    """Descriptors of each solvent by PySCF's name: n, n(25 C), alpha, beta, gamma, eps, phi,
    psi."""
    with shielded():
        from pyscf.solvent.smd import solvent_db

        return {name: tuple(values) for name, values in solvent_db.items() if name}


def find_solvent(options: Options) -> Solvent | None:
    """The solvent that the options request, None in the gas phase.

    Raises
    ------
    InputError : the solvent is not in the table; names similar ones
    """
    if options.solvent is None:
        return None
    eps = dielectric_constant(options.solvent)
    if eps is not None:
        return Solvent(options.solvent_model, "", eps)
    names = {_key(name): name for name in solvent_table()}
    names |= {_key(word): name for word, name in WORDS.items()}
    name = names.get(_key(options.solvent))
    if name is None:
        near = get_close_matches(_key(options.solvent), names, n=NEAR)
        if near:
            listed = ", ".join(dict.fromkeys(names[key] for key in near))
            suggestion = f"similar names: {listed}"
        else:
            suggestion = "the documentation lists them"
        raise InputError(
            Option("solvent", options.solvent),
            f": PySCF's table has no such solvent; {suggestion}. With ",
            Option("solvent_model", "cpcm"),
            " a dielectric constant will do, such as ",
            Option("solvent", "eps=10.4"),
        )
    return Solvent(options.solvent_model, name, solvent_table()[name][5])


def _key(name: str) -> str:
    return "".join(letter for letter in name.lower() if letter.isalnum())


def require_solvable(molecule: Molecule, options: Options) -> str:
    """A warning about atoms whose radius is unknown, "" if there are none.

    Raises
    ------
    InputError : ghost atoms or point charges, for which the cavity is not defined, or an element
        that is missing in the table of radii
    """
    if options.solvent is None:
        return ""
    given = Option("solvent", options.solvent)
    if any(molecule.ghost):
        raise InputError(
            given,
            " is not available with ghost atoms: a cavity around them is not that of the molecule. "
            "Leave out ghosts or the solvent; an interaction energy in a solvent is a difference "
            "of energies of ",
            Option("solvent"),
            " runs, without counterpoise correction",
        )
    if molecule.point_charges is not None:
        raise InputError(
            given,
            " is not available with ",
            Option("point_charges"),
            ", whose field would polarise the solvent too: use one of the two",
        )
    with shielded():
        from pyscf.data.radii import VDW

    unknown = []
    for symbol in molecule.elements:
        number = atomic_number(symbol)
        if number >= len(VDW):
            raise InputError(given, f" has no radius for {symbol}: leave it out")
        if abs(VDW[number] * ANGSTROM_PER_BOHR - NO_RADIUS) < 1e-6:
            unknown.append(symbol)
    if not unknown:
        return ""
    return (
        f"no van der Waals radius is published for {', '.join(unknown)}: the cavity has PySCF's "
        f"{NO_RADIUS:.2f} angstrom there, and energies in solution are uncertain"
    )


def solvent_object(mole: Any, solvent: Solvent) -> Any:
    """PySCF's own model of the solvent around a molecule, before it is built."""
    from pyscf.solvent import pcm, smd

    if solvent.model == SMD:
        model = smd.SMD(mole, solvent.name)
        model.e_cds = cds_energy(mole, solvent)
    else:
        model = pcm.PCM(mole)
        model.eps = solvent.eps
    model.verbose = 0
    return model


def cds_energy(mole: Any, solvent: Solvent) -> float:
    """SMD's energy of cavitation, dispersion and solvent structure, Eh.

    PySCF mistakes the nuclear charges for atomic numbers, so that an atom with a core potential
    would count as another element; here the replaced electrons are added back.
    """
    from pyscf.solvent import smd

    replaced = np.array([mole.atom_nelec_core(atom) for atom in range(mole.natm)])
    numbers = mole.atom_charges() + replaced
    atoms = SimpleNamespace(
        natm=mole.natm,
        atom_charges=lambda: numbers,
        atom_coords=mole.atom_coords,
    )
    described = SimpleNamespace(mol=atoms, solvent=solvent.name, solvent_descriptors=None)
    return float(smd.get_cds_legacy(described)[0])


class ReactionField:
    """PySCF's solvent model with M of Eq. 1 computed once, and integrals in blocks.

    Attributes
    ----------
    response : M, (points, points)
    blocks : integrals (mn|L), m >= n, for each block of points; None if they are recomputed
    """

    _keys = frozenset({"response", "blocks"})
    response: Array
    blocks: list[Array] | None

    def build(self: Any, *asked: Any, **keywords: Any) -> Any:
        """Build points and M, and drop the other arrays that PySCF keeps."""
        super().build(*asked, **keywords)  # type: ignore[misc]
        made = self._intermediates
        response = np.linalg.solve(made["K"], made["R"])
        self.response = (response + response.T) / 2
        self._intermediates = {"f_epsilon": made["f_epsilon"]}
        pairs = self.mol.nao * (self.mol.nao + 1) // 2
        self.blocks = None
        if pairs * len(self.response) * 8 <= KEPT_BYTES:
            self.blocks = list(self._made_blocks())
        return self

    def kernel(self: Any, dm: Any) -> tuple[float, Array]:
        """E_solvent and V of a density, Eq. 2, Eh; V is the same for each spin."""
        total = np.asarray(dm)
        if total.ndim == 3:
            total = total[0] + total[1]
        potential = self.v_grids_n - self._of_electrons(total)
        charges = self.response @ potential
        return float(charges @ potential) / 2, self._potential(charges, len(total))

    def _B_dot_x(self: Any, dms: Any) -> Array:  # noqa: N802
        """V of a change of the density, (nao, nao) Eh, to which it is linear; PySCF's name."""
        charges = self.response @ -self._of_electrons(dms)
        return np.asarray(self._potential(charges, len(dms)))

    def _of_electrons(self, total: Array) -> Array:
        """sum_mn D_mn (mn|L) of a density (nao, nao), for each point, Eh."""
        rows, columns = np.tril_indices(len(total))
        packed = 2 * total[rows, columns]
        packed[rows == columns] /= 2
        return np.concatenate([packed @ block for block in self._integrals()])

    def _potential(self, charges: Array, nao: int) -> Array:
        """- sum_L q_L (mn|L), (nao, nao) Eh."""
        rows, columns = np.tril_indices(nao)
        packed = np.zeros(len(rows))
        first = 0
        for block in self._integrals():
            last = first + block.shape[1]
            packed -= block @ charges[first:last]
            first = last
        matrix = np.empty((nao, nao))
        matrix[rows, columns] = packed
        matrix[columns, rows] = packed
        return matrix

    def _integrals(self) -> Iterator[Array]:
        if self.blocks is not None:
            return iter(self.blocks)
        return self._made_blocks()

    def _made_blocks(self: Any) -> Iterator[Array]:
        """(mn|L) for blocks of points, (pairs, points of the block)."""
        from pyscf import df, gto

        places, exponents = self.surface["grid_coords"], self.surface["charge_exp"]
        step = points_per_block(self.mol.nao)
        for first in range(0, len(places), step):
            last = min(first + step, len(places))
            charges = gto.fakemol_for_charges(places[first:last], exponents[first:last] ** 2)
            yield np.asarray(
                df.incore.aux_e2(self.mol, charges, intor="int3c2e", aosym="s2ij")
            ).reshape(-1, last - first)


def points_per_block(nao: int) -> int:
    """Number of points whose integrals are computed at a time."""
    return max(1, BLOCK_BYTES // (8 * nao * (nao + 1) // 2))


def in_solvent(mf: Any, options: Options, *, native: bool = False) -> Any:
    """The mean field in the solvent that the options request.

    Parameters
    ----------
    mf : pyscf.scf.hf.SCF
        Mean field with its Coulomb and exchange matrices, not yet run.
    options : Options
    native : bool
        Leave the reaction field to PySCF's own code.
    """
    solvent = find_solvent(options)
    if solvent is None:
        return mf
    from pyscf import lib
    from pyscf.solvent import _attach_solvent

    model = solvent_object(mf.mol, solvent)
    if not native:
        model = lib.set_class(model, (ReactionField, type(model)))
        model.build()
    return _attach_solvent._for_scf(mf, model)


def surface_points(mole: Any, options: Options) -> int:
    """Number of points on the surface of the cavity, 0 in the gas phase."""
    solvent = find_solvent(options)
    if solvent is None:
        return 0
    with shielded():
        from pyscf.dft.gen_grid import LEBEDEV_ORDER
        from pyscf.solvent import pcm, smd

        model = solvent_object(mole, solvent)
        if solvent.model == SMD:
            radii = smd.smd_radii(solvent_table()[solvent.name][2])
        else:
            radii = model.vdw_scale * pcm.modified_Bondi
        count = LEBEDEV_ORDER[model.lebedev_order]
        return len(pcm.gen_surface(mole, ng=count, rad=radii)["grid_coords"])


def surface_bytes(points: int, nao: int) -> tuple[int, int]:
    """Bytes needed while the surface is built, and bytes kept through the SCF.

    Parameters
    ----------
    points : int
        Number of surface points, 0 in the gas phase.
    nao : int
        Number of basis functions.
    """
    if not points:
        return 0, 0
    matrix = 8 * points**2
    integrals = 8 * points * nao * (nao + 1) // 2
    if integrals > KEPT_BYTES:
        integrals = 2 * BLOCK_BYTES
    return SURFACE_MATRICES * matrix, matrix + 2 * integrals


def solvent_energies(mf: Any, density: Any) -> tuple[float, float | None]:
    """E_solvent of Eq. 2 for a density, and SMD's other energy (None without SMD), Eh; zero in the
    gas phase."""
    model = vars(mf).get("with_solvent")
    if model is None:
        return 0.0, None
    with shielded():
        energy = float(model.kernel(density)[0])
        return energy, vars(model).get("e_cds")


def solvent_potential(mf: Any, density: Any) -> Any:
    """V of Eq. 2 for a density, (nao, nao) Eh; 0 in the gas phase."""
    model = vars(mf).get("with_solvent")
    if model is None:
        return 0.0
    with shielded():
        return model.kernel(density)[1]


def solvent_response(mf: Any, change: Array) -> Array:
    """Change of V of Eq. 2 by a change of the density of both spins together, (nao, nao) Eh; 0 in
    the gas phase."""
    model = vars(mf).get("with_solvent")
    if model is None:
        return np.zeros_like(change)
    with shielded():
        return np.asarray(model._B_dot_x(change))


def solvent_record(mf: Any, density: Any) -> dict[str, Any]:
    """The fields of a `Reference` for the solvent's energies; empty in the gas phase."""
    model = vars(mf).get("with_solvent")
    if model is None:
        return {}
    energy, cds = solvent_energies(mf, density)
    eps = model.eps
    if eps is None:
        eps = solvent_table()[model.solvent][5]
    return {
        "solvent_energy": energy,
        "smd_cds_energy": cds,
        "dielectric_constant": float(eps),
        "surface_points": len(model.surface["grid_coords"]),
    }
