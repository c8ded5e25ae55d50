"""TREXIO files (https://trex-coe.github.io/trexio/): the wave function in atomic units, with its
core potentials.

    chi_i(r) = N'_i P_i(r) N_s sum_k a_k f_k exp(-g_k r^2)        P: solid harmonics with P = z, (3z^2 - r^2)/2, ...

so f_k is the radial norm times sqrt((2l+1)/4 pi), and N_s = N'_i = 1. An effective core potential
term is coefficient * r^power * exp(-exponent * r^2). A ghost is a nucleus of charge 0 with its
element's label.
"""

from __future__ import annotations

import math
import tempfile
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import numpy as np

from dfmp2.errors import InputError, Option, ResourceError
from dfmp2.host.files import describe_space
from dfmp2.host.scratch import VARIABLE, choose_root
from dfmp2.molecule.mole import ao_shells
from dfmp2.mp2.result import MP2Result
from dfmp2.output.export import conventions

INSTALL = "pip install 'dfmp2[trexio]'"


def trexio(result: MP2Result) -> bytes:
    """A TREXIO file (HDF5 back end).

    Raises
    ------
    InputError : the trexio package is missing, or the Hamiltonian has terms other than those of the
        nuclei
    NumericalError : the stored orbitals do not belong to the stored basis
    ResourceError : no space for a temporary file
    """
    beyond = ""
    if result.molecule.point_charges is not None:
        beyond = "point charges"
    elif result.options.relativity != "none":
        beyond = "an X2C Hamiltonian"
    elif result.options.solvent is not None:
        beyond = "a solvent"
    if beyond:
        raise InputError(
            Option("to"),
            (
                f" trexio: the result has {beyond}, which the format cannot say, so that a "
                "program that reads it would compute with another Hamiltonian: use "
            ),
            Option("to"),
            " qcschema",
        )
    try:
        import trexio as library
    except ImportError as error:
        raise InputError(
            Option("to"), f" trexio needs the trexio package ({error}): {INSTALL}"
        ) from error
    values = _values(result)
    root = choose_root(None)
    try:
        with tempfile.TemporaryDirectory(prefix="dfmp2-", dir=root) as folder:
            path = Path(folder) / "result.trexio.h5"
            with library.File(str(path), "w", library.TREXIO_HDF5) as file:
                for name, value in values.items():
                    getattr(library, f"write_{name}")(file, value)
            return path.read_bytes()
    except (OSError, library.Error) as error:
        needed = sum(np.asarray(value).nbytes for value in values.values())
        raise ResourceError(
            f"the TREXIO file could not be written into a temporary folder in {root} ({error}; "
            f"{describe_space(root, needed)}): name another one with {VARIABLE} or TMPDIR"
        ) from error


def _values(result: MP2Result) -> dict[str, Any]:
    """TREXIO names and their values, sizes before the arrays that need them."""
    molecule = result.molecule
    reference = result.reference
    cores = conventions.core_electrons(result)
    alpha, beta = molecule.check_electrons(result.orbital_basis.ecp_electrons)
    nuclei = zip(molecule.numbers.tolist(), molecule.ghost, cores, strict=True)
    shells = ao_shells(molecule, result.orbital_basis, reference.mo_coeff)
    order = conventions.rows((shell.momentum for shell in shells), conventions.alternating)
    orbitals = np.concatenate([coeff[order].T for coeff in reference.mo_coeff])
    solid = [math.sqrt((2 * shell.momentum + 1) / (4 * math.pi)) for shell in shells]
    return {
        "metadata_code_num": 1,
        "metadata_code": [f"dfmp2 {result.provenance.version}"],
        "metadata_description": f"{reference.title} reference of a DF-MP2 calculation",
        "nucleus_num": molecule.natom,
        "nucleus_charge": [
            0.0 if ghost else float(number - core) for number, ghost, core in nuclei
        ],
        "nucleus_coord": np.ascontiguousarray(molecule.coordinates),
        "nucleus_label": list(molecule.symbols),
        "nucleus_repulsion": reference.nuclear_repulsion_energy,
        "electron_num": alpha + beta,
        "electron_up_num": alpha,
        "electron_dn_num": beta,
        "state_num": 1,
        "state_id": 0,
        "state_energy": reference.scf_total_energy,
        **(dict(_core_potentials(result, cores)) if any(cores) else {}),
        "basis_type": "Gaussian",
        "basis_shell_num": len(shells),
        "basis_prim_num": sum(len(shell.exponents) for shell in shells),
        "basis_nucleus_index": [shell.atom for shell in shells],
        "basis_shell_ang_mom": [shell.momentum for shell in shells],
        "basis_shell_factor": [1.0] * len(shells),
        "basis_r_power": [0] * len(shells),
        "basis_shell_index": [
            number for number, shell in enumerate(shells) for _ in shell.exponents
        ],
        "basis_exponent": np.concatenate([shell.exponents for shell in shells]),
        "basis_coefficient": np.concatenate([shell.coefficients for shell in shells]),
        "basis_prim_factor": np.concatenate(
            [shell.norms * f for shell, f in zip(shells, solid, strict=True)]
        ),
        "ao_cartesian": 0,
        "ao_num": len(order),
        "ao_shell": [
            number for number, shell in enumerate(shells) for _ in range(2 * shell.momentum + 1)
        ],
        "ao_normalization": [1.0] * len(order),
        "mo_type": reference.name.upper(),
        "mo_num": len(orbitals),
        "mo_coefficient": np.ascontiguousarray(orbitals),
        "mo_energy": reference.mo_energy.ravel(),
        "mo_occupation": reference.mo_occ.ravel(),
        "mo_spin": [spin for spin, energies in enumerate(reference.mo_energy) for _ in energies],
    }


def _core_potentials(result: MP2Result, cores: list[int]) -> Iterator[tuple[str, Any]]:
    basis = result.orbital_basis
    elements = [basis.elements[key] for key in basis.keys(result.molecule)]
    pairs = list(zip(elements, cores, strict=True))
    terms = [
        (atom, momentum, exponent, coefficient, power - 2)
        for atom, (element, core) in enumerate(pairs)
        for momentum, power, exponent, coefficient in (
            conventions.core_terms(element) if core else ()
        )
    ]
    yield (
        "ecp_max_ang_mom_plus_1",
        [conventions.local_momentum(element) if core else 0 for element, core in pairs],
    )
    yield "ecp_z_core", cores
    yield "ecp_num", len(terms)
    names = ("nucleus_index", "ang_mom", "exponent", "coefficient", "power")
    for name, column in zip(names, zip(*terms, strict=True), strict=True):
        yield f"ecp_{name}", list(column)
