"""TREXIO files (https://trex-coe.github.io/trexio/): the wave function in atomic units, with its core potentials.

    chi_i(r) = N'_i P_i(r) N_s sum_k a_k f_k exp(-g_k r^2)        P: solid harmonics with P = z, (3z^2 - r^2)/2, ...

so f_k is the radial norm times sqrt((2l+1)/4 pi), and N_s = N'_i = 1. An effective core potential term is
coefficient * r^power * exp(-exponent * r^2). A ghost is a nucleus of charge 0 with its element's label.
"""

from __future__ import annotations

import math
import tempfile
from collections.abc import Iterator, Sequence
from pathlib import Path
from typing import Any

import numpy as np

from dfmp2.errors import InputError, ResourceError
from dfmp2.export import ao_order
from dfmp2.reference.shells import Shell, ao_shells
from dfmp2.result import MP2Result

INSTALL = "pip install 'dfmp2[trexio]'"
LOCAL = -1  # angular momentum of the local channel in a stored core potential


def trexio(result: MP2Result) -> bytes:
    """A TREXIO file (HDF5 back end).

    Raises
    ------
    InputError : the trexio package is missing, or the Hamiltonian is not that of the nuclei alone
    NumericalError : the stored orbitals do not belong to the stored basis
    ResourceError : there is no room for a temporary file
    """
    _require_plain(result)
    try:
        import trexio as library
    except ImportError as error:
        raise InputError(f"--to trexio needs the trexio package ({error}): {INSTALL}") from error
    shells = ao_shells(result.molecule, result.orbital_basis, result.reference.mo_coeff)
    values = dict(_values(result, shells))
    try:
        with tempfile.TemporaryDirectory(prefix="dfmp2-") as folder:
            path = Path(folder) / "result.trexio.h5"
            with library.File(str(path), "w", library.TREXIO_HDF5) as file:
                for name, value in values.items():
                    getattr(library, f"write_{name}")(file, value)
            return path.read_bytes()
    except (OSError, library.Error) as error:
        raise ResourceError(
            f"the TREXIO file could not be written into a temporary folder ({error}): check TMPDIR and its disk"
        ) from error


def _require_plain(result: MP2Result) -> None:
    """Refuse what a reader of the file would take for a molecule by itself without relativity."""
    beyond = "point charges" if result.molecule.point_charges is not None else "an X2C Hamiltonian"
    if result.molecule.point_charges is not None or result.options.relativity != "none":
        raise InputError(
            f"--to trexio: the result has {beyond}, which the format cannot say, so that a program that reads it would "
            "compute with another Hamiltonian: use --to qcschema"
        )


def _values(result: MP2Result, shells: Sequence[Shell]) -> Iterator[tuple[str, Any]]:
    """Name in the format and value, sizes before the arrays that need them."""
    molecule, reference = result.molecule, result.reference
    replaced = result.orbital_basis.ecp_electrons
    ghosts = list(zip(molecule.symbols, molecule.ghost, strict=True))
    cores = [0 if ghost else replaced[symbol] for symbol, ghost in ghosts]
    charges = [0 if ghost else number for number, ghost in zip(molecule.numbers.tolist(), molecule.ghost, strict=True)]
    alpha, beta = molecule.check_electrons(replaced)
    yield "metadata_code_num", 1
    yield "metadata_code", [f"dfmp2 {result.provenance.version}"]
    yield "metadata_description", f"{reference.kind.upper()} reference of a DF-MP2 calculation"
    yield "nucleus_num", molecule.natom
    yield "nucleus_charge", [float(charge - core) for charge, core in zip(charges, cores, strict=True)]
    yield "nucleus_coord", np.ascontiguousarray(molecule.coordinates)
    yield "nucleus_label", list(molecule.symbols)
    yield "nucleus_repulsion", reference.nuclear_repulsion_energy
    yield "electron_num", alpha + beta
    yield "electron_up_num", alpha
    yield "electron_dn_num", beta
    yield from _basis(shells)
    if any(cores):
        yield from _core_potentials(result, cores)
    yield "ao_cartesian", 0
    yield "ao_num", reference.mo_coeff.shape[1]
    yield "ao_shell", [number for number, shell in enumerate(shells) for _ in range(2 * shell.momentum + 1)]
    yield "ao_normalization", [1.0] * reference.mo_coeff.shape[1]
    yield from _orbitals(result, shells)
    yield "state_num", 1
    yield "state_id", 0
    yield "state_energy", reference.scf_total_energy


def _basis(shells: Sequence[Shell]) -> Iterator[tuple[str, Any]]:
    solid = [math.sqrt((2 * shell.momentum + 1) / (4 * math.pi)) for shell in shells]
    yield "basis_type", "Gaussian"
    yield "basis_shell_num", len(shells)
    yield "basis_prim_num", sum(len(shell.exponents) for shell in shells)
    yield "basis_nucleus_index", [shell.atom for shell in shells]
    yield "basis_shell_ang_mom", [shell.momentum for shell in shells]
    yield "basis_shell_factor", [1.0] * len(shells)
    yield "basis_r_power", [0] * len(shells)
    yield "basis_shell_index", [number for number, shell in enumerate(shells) for _ in shell.exponents]
    yield "basis_exponent", np.concatenate([shell.exponents for shell in shells])
    yield "basis_coefficient", np.concatenate([shell.coefficients for shell in shells])
    yield "basis_prim_factor", np.concatenate([shell.norms * f for shell, f in zip(shells, solid, strict=True)])


def _core_potentials(result: MP2Result, cores: Sequence[int]) -> Iterator[tuple[str, Any]]:
    highest, rows = [], []
    for atom, (symbol, core) in enumerate(zip(result.molecule.symbols, cores, strict=True)):
        potential = result.orbital_basis.elements[symbol].ecp
        channels = potential[1] if core and potential else ()
        local = max([momentum for momentum, _ in channels], default=LOCAL) + 1
        highest.append(local)
        for momentum, powers in channels:
            for power, terms in enumerate(powers):
                rows += [(atom, local if momentum == LOCAL else momentum, a, c, power - 2) for a, c in terms]
    yield "ecp_max_ang_mom_plus_1", highest
    yield "ecp_z_core", list(cores)
    yield "ecp_num", len(rows)
    names = ("nucleus_index", "ang_mom", "exponent", "coefficient", "power")
    for name, column in zip(names, zip(*rows, strict=True), strict=True):
        yield f"ecp_{name}", list(column)


def _orbitals(result: MP2Result, shells: Sequence[Shell]) -> Iterator[tuple[str, Any]]:
    reference = result.reference
    order = ao_order.rows((shell.momentum for shell in shells), ao_order.alternating)
    columns = np.concatenate([coeff[order].T for coeff in reference.mo_coeff])
    nmo = reference.mo_energy.shape[1]
    yield "mo_type", reference.kind.upper()
    yield "mo_num", len(columns)
    yield "mo_coefficient", np.ascontiguousarray(columns)
    yield "mo_energy", reference.mo_energy.ravel()
    yield "mo_occupation", reference.mo_occ.ravel()
    yield "mo_spin", [spin for spin in range(reference.nspin) for _ in range(nmo)]
