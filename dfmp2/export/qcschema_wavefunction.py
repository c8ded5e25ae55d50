"""The `wavefunction` of a QCSchema result: basis, orbitals, orbital energies, occupations.

Functions come shell by shell, m from -l to +l in each (CCA order, p functions too); matrices are flat, row by row.
Occupations are those of one spin, 0 or 1, also of a restricted reference, which leaves the beta quantities out.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

from dfmp2.export import ao_order
from dfmp2.reference.shells import Shell, ao_shells
from dfmp2.result import MP2Result

BASIS_NAMES = {1: "qcschema_basis", 2: "qcschema_basis_set"}
PROTOCOLS = {  # what each protocol keeps, as in QCElemental
    "none": (),
    "all": ("orbitals", "eigenvalues", "occupations"),
    "return_results": ("orbitals", "eigenvalues", "occupations"),
    "orbitals_and_eigenvalues": ("orbitals", "eigenvalues"),
    "occupations_and_eigenvalues": ("eigenvalues", "occupations"),
}
LOCAL = -1  # angular momentum of the local channel in a stored core potential


def wavefunction(result: MP2Result, version: int, protocol: str) -> dict[str, Any] | None:
    """The SCF wave function as far as a protocol keeps it, None when it keeps nothing.

    Raises
    ------
    NumericalError : the stored orbitals do not belong to the stored basis
    """
    kept = PROTOCOLS[protocol]
    if not kept:
        return None
    reference = result.reference
    shells = ao_shells(result.molecule, result.orbital_basis, reference.mo_coeff)
    order = ao_order.rows((shell.momentum for shell in shells), ao_order.cca)
    document: dict[str, Any] = {"basis": _basis(result, shells, version), "restricted": reference.nspin == 1}
    for number, spin in enumerate("ab"[: reference.nspin]):
        values = {
            "orbitals": reference.mo_coeff[number][order],
            "eigenvalues": reference.mo_energy[number],
            "occupations": (reference.mo_occ[number] > 0).astype(float),
        }
        for name in kept:
            document[f"scf_{name}_{spin}"] = values[name].ravel().tolist()
            document[f"{name}_{spin}"] = f"scf_{name}_{spin}"
    return document


def _basis(result: MP2Result, shells: Sequence[Shell], version: int) -> dict[str, Any]:
    molecule = result.molecule
    labels = [f"{symbol}_ghost" if ghost else symbol for symbol, ghost in _centres(result)]
    centres: dict[str, Any] = {}
    for atom, label in enumerate(labels):
        if label not in centres:
            centres[label] = {
                "electron_shells": [_shell(shell) for shell in shells if shell.atom == atom],
                **({} if molecule.ghost[atom] else _core_potential(result, molecule.symbols[atom])),
            }
    return {
        "schema_name": BASIS_NAMES[version],
        "schema_version": version,
        "name": result.orbital_basis.name,
        "center_data": centres,
        "atom_map": labels,
        "nbf": result.sizes.nao,
    }


def _centres(result: MP2Result) -> list[tuple[str, bool]]:
    return list(zip(result.molecule.symbols, result.molecule.ghost, strict=True))


def _shell(shell: Shell) -> dict[str, Any]:
    return {
        "angular_momentum": [shell.momentum],
        "harmonic_type": "spherical",
        "exponents": shell.exponents.tolist(),
        "coefficients": [shell.coefficients.tolist()],
    }


def _core_potential(result: MP2Result, symbol: str) -> dict[str, Any]:
    potential = result.orbital_basis.elements[symbol].ecp
    if not potential:
        return {}
    electrons, channels = potential
    local = max([momentum for momentum, _ in channels], default=LOCAL) + 1
    potentials = []
    for momentum, powers in channels:
        terms = [(power, *term) for power, here in enumerate(powers) for term in here]
        if terms:
            r, exponents, coefficients = zip(*terms, strict=True)
            potentials.append(
                {
                    "ecp_type": "scalar",
                    "angular_momentum": [local if momentum == LOCAL else momentum],
                    "r_exponents": list(r),
                    "gaussian_exponents": list(exponents),
                    "coefficients": [list(coefficients)],
                }
            )
    return {"ecp_electrons": electrons, "ecp_potentials": potentials} if potentials else {"ecp_electrons": electrons}
