"""QCSchema documents (versions 1 and 2) as plain dictionaries of JSON types.

Version 1 merges the input into the result; version 2 keeps it under `input_data`, with method and
keywords under `specification`. Lengths are in bohr, energies in hartree; the geometry is passed on
unchanged. Basis functions come shell by shell, m from -l to +l in each (CCA order, p functions
too); matrices are flat, row by row. Occupations are those of one spin, 0 or 1, even for a
restricted reference, which omits the beta quantities. https://molssi.github.io/QCElemental
"""

from __future__ import annotations

import json
from collections.abc import Mapping
from dataclasses import asdict, fields
from itertools import groupby
from typing import Any

from dfmp2.molecule.basis import ElementBasis
from dfmp2.molecule.mole import ao_shells
from dfmp2.molecule.molecule import Molecule
from dfmp2.mp2.result import OF_MP2, MP2Result
from dfmp2.options import OF_THE_MACHINE, Options
from dfmp2.options.basis_parts import parse_parts
from dfmp2.options.methods import MP2
from dfmp2.output.export import conventions
from dfmp2.output.text import report

VERSIONS = (1, 2)
INPUT_NAMES = {1: "qcschema_input", 2: "qcschema_atomic_input"}
OUTPUT_NAMES = {1: "qcschema_output", 2: "qcschema_atomic_result"}
BASIS_NAMES = {1: "qcschema_basis", 2: "qcschema_basis_set"}
# Options that are not keywords of a document: basis and method have their own fields, the others
# describe one machine or one file.
NO_KEYWORDS = ("basis", "method", "scf_from", *OF_THE_MACHINE)
PROTOCOLS = {  # what each protocol keeps, as in QCElemental
    "none": (),
    "all": ("orbitals", "eigenvalues", "occupations"),
    "return_results": ("orbitals", "eigenvalues", "occupations"),
    "orbitals_and_eigenvalues": ("orbitals", "eigenvalues"),
    "occupations_and_eigenvalues": ("eigenvalues", "occupations"),
}


def qcschema(result: MP2Result, schema_version: int = 1) -> bytes:
    """An AtomicResult with orbitals, orbital energies and basis, as JSON.

    Raises
    ------
    NumericalError : the stored orbitals do not belong to the stored basis
    """
    document = atomic_result(result, _atomic_input(result, schema_version), schema_version, "all")
    obstacles = _obstacles(result)
    if obstacles:
        document["extras"]["cannot_be_recomputed"] = obstacles
    return (json.dumps(document, indent=1, allow_nan=False) + "\n").encode()


def atomic_result(
    result: MP2Result,
    given: Mapping[str, Any],
    version: int,
    kept: str,
    returned: Mapping[str, Any] | None = None,
) -> dict[str, Any]:
    """The AtomicResult that answers an AtomicInput.

    Parameters
    ----------
    given : the AtomicInput, returned unchanged
    version : of the schema, 1 or 2
    kept : value of the protocol `wavefunction`, one of PROTOCOLS
    returned : the return result by name: `return_gradient` or `return_hessian`, flat, or
        `properties`; None for the total energy

    Returns
    -------
    A dictionary of JSON types only.
    """
    specification = given if version == 1 else given["specification"]
    protocols = specification.get("protocols") or {}
    answer = {
        "schema_name": OUTPUT_NAMES[version],
        "schema_version": version,
        "molecule": given["molecule"],
        "properties": _properties(result) | _derivatives(result, returned),
        "return_result": result.total_energy if returned is None else next(iter(returned.values())),
        "success": True,
        "provenance": {
            **asdict(result.provenance),
            "creator": "dfmp2",
            "routine": "dfmp2",
            "backend": result.backend,
            "precision": result.precision,
            "backend_details": list(result.provenance.backend_details),
        },
        "stdout": None if protocols.get("stdout") is False else report(result),
        "extras": {"qcvars": _qcvars(result), "dfmp2": result.to_dict()},
    }
    if given.get("id") is not None:
        answer["id"] = given["id"]
    if PROTOCOLS[kept]:
        answer["wavefunction"] = _wavefunction(result, version, PROTOCOLS[kept])
    if version == 1:
        answer["extras"] = {**(given.get("extras") or {}), **answer["extras"]}
        return {**given, **answer}
    return {**answer, "input_data": dict(given)}


def _atomic_input(result: MP2Result, version: int) -> dict[str, Any]:
    """The AtomicInput that reproduces this result: its molecule, and the options that differ from
    the defaults."""
    defaults = Options(basis=result.options.basis).settled(result.molecule.multiplicity)
    keywords = {
        field.name: getattr(result.options, field.name)
        for field in fields(Options)
        if field.name not in NO_KEYWORDS
        and getattr(result.options, field.name) != getattr(defaults, field.name)
    }
    fitting = result.scf_fitting
    if fitting is not None and fitting.name != "default":
        keywords["scf_auxbasis"] = fitting.name  # also that of a mean field, which is no option
    if result.molecule.point_charges is not None:
        keywords |= {
            "point_charges": result.molecule.point_charges.tolist(),
            "point_charge_units": "bohr",
        }
    method = result.method
    if result.options.double_hybrid is not None:
        method = result.options.method  # by name, even if the user chose the factors
    specification = {
        "driver": "energy",
        "model": {"method": method, "basis": result.orbital_basis.name},
        "keywords": keywords,
        "protocols": {"wavefunction": "all"},
        "extras": {},
    }
    if version != 1:
        specification = {"specification": {"program": "dfmp2", **specification}}
    return {
        "schema_name": INPUT_NAMES[version],
        "schema_version": version,
        "molecule": _molecule(result.molecule, version),
        **specification,
    }


def _obstacles(result: MP2Result) -> list[str]:
    """Why the input in the document, which holds names of basis sets only, does not lead to this
    result; [] if it does."""
    sets = {"model.basis": result.orbital_basis, "keywords.auxbasis": result.mp2_fitting}
    if result.scf_fitting is not None:
        sets["keywords.scf_auxbasis"] = result.scf_fitting
    obstacles = []
    for field, one in sets.items():
        if one.name == "custom":
            obstacles.append(f"{field}: the set was given to PySCF as numbers and has no name")
        elif parse_parts(one.name).files:
            obstacles.append(f"{field}: {one.name} names a file: compute it with dfmp2 run")
    if obstacles and "model.basis" in obstacles[0]:
        obstacles[0] += "; the functions are in wavefunction.basis"
    return obstacles


def _molecule(molecule: Molecule, version: int) -> dict[str, Any]:
    """A QCSchema molecule with a fixed frame; ghosts are atoms that are not real."""
    return {
        "schema_name": "qcschema_molecule",
        "schema_version": {1: 2, 2: 3}[version],
        "name": molecule.name,
        "symbols": list(molecule.symbols),
        "geometry": molecule.coordinates.ravel().tolist(),
        "real": [not ghost for ghost in molecule.ghost],
        "molecular_charge": float(molecule.charge),
        "molecular_multiplicity": molecule.multiplicity,
        "fix_com": True,
        "fix_orientation": True,
    }


def _properties(result: MP2Result) -> dict[str, float | int]:
    alpha, beta = result.molecule.check_electrons(result.orbital_basis.ecp_electrons)
    properties = {
        "calcinfo_nbasis": result.sizes.nao,
        "calcinfo_nmo": result.sizes.nmo,
        "calcinfo_nalpha": alpha,
        "calcinfo_nbeta": beta,
        "calcinfo_natom": result.sizes.natom,
        "nuclear_repulsion_energy": result.reference.nuclear_repulsion_energy,
        "return_energy": result.total_energy,
        "scf_iterations": result.reference.cycles,
        "scf_total_energy": result.scf_total_energy,
    }
    if result.options.correlation.scaled_mp2:
        properties |= {name: getattr(result, name) for name in ("mp2_singles_energy", *OF_MP2)}
        properties["mp2_doubles_energy"] = result.pairs.correlation_energy
    return properties


def _derivatives(result: MP2Result, returned: Mapping[str, Any] | None) -> dict[str, Any]:
    """Gradient, Hessian, dipole moments (e bohr) and SCF quadrupole moment (e bohr^2), as far as
    available."""
    derivatives = {name: value for name, value in (returned or {}).items() if name != "properties"}
    if result.properties is None:
        return derivatives
    dipoles = {"scf": result.properties.scf_dipole}
    if result.options.correlation == MP2:  # the energies of this name are never scaled either
        dipoles["mp2"] = result.properties.relaxed_dipole
    if result.properties.quadrupole is not None:
        derivatives["scf_quadrupole_moment"] = result.properties.quadrupole[0].ravel().tolist()
    return derivatives | {
        f"{name}_dipole_moment": dipole.tolist() for name, dipole in dipoles.items()
    }


def _qcvars(result: MP2Result) -> dict[str, float]:
    """Energies under the upper-case names that Psi4 and QCEngine use, Eh."""
    kohn_sham = result.reference.xc is not None
    mean_field = result.mean_field_energy
    double_hybrid = result.options.correlation.double_hybrid
    methods = {result.options.correlation.title.upper(): result.correlation_energy}
    parts: dict[str, float] = {}
    if result.options.correlation.plain:
        parts = {
            "MP2 SAME-SPIN CORRELATION ENERGY": result.mp2_same_spin_correlation_energy,
            "MP2 OPPOSITE-SPIN CORRELATION ENERGY": result.mp2_opposite_spin_correlation_energy,
            "MP2 SINGLES ENERGY": result.mp2_singles_energy,
            "MP2 DOUBLES ENERGY": result.pairs.correlation_energy,
        }
    if result.options.correlation.scaled_mp2:
        methods = {
            "MP2": result.mp2_correlation_energy,
            "SCS-MP2": result.scs_mp2_correlation_energy,
            "SOS-MP2": result.sos_mp2_correlation_energy,
        }
        if result.scaled_mp2_correlation_energy is not None:
            methods["CUSTOM SCS-MP2"] = result.scaled_mp2_correlation_energy
    added = result.dispersion_energy or 0.0
    if double_hybrid:
        functional = {
            "DFT FUNCTIONAL TOTAL ENERGY": mean_field,
            "DOUBLE-HYBRID CORRECTION ENERGY": result.correlation_energy,
            "DISPERSION CORRECTION ENERGY": added,
            "DFT TOTAL ENERGY": result.total_energy,
        }
    elif kohn_sham:
        functional = {"DFT TOTAL ENERGY": result.scf_total_energy}
    else:
        functional = {"HF TOTAL ENERGY": result.scf_total_energy}
    return {
        "NUCLEAR REPULSION ENERGY": result.reference.nuclear_repulsion_energy,
        "SCF TOTAL ENERGY": result.scf_total_energy,
        "CURRENT REFERENCE ENERGY": mean_field,
        **functional,
        **parts,
        "CURRENT CORRELATION ENERGY": result.correlation_energy,
        "CURRENT ENERGY": result.total_energy,
        **{f"{name} CORRELATION ENERGY": energy for name, energy in methods.items()},
        **{f"{name} TOTAL ENERGY": mean_field + energy + added for name, energy in methods.items()},
    }


def _wavefunction(result: MP2Result, version: int, kept: tuple[str, ...]) -> dict[str, Any]:
    """The basis and whichever of orbitals, orbital energies and occupations are kept."""
    reference, molecule = result.reference, result.molecule
    shells = ao_shells(molecule, result.orbital_basis, reference.mo_coeff)
    order = conventions.rows((shell.momentum for shell in shells), conventions.cca)
    keys = result.orbital_basis.keys(molecule)
    labels = [
        f"{key}_ghost" if ghost else key for key, ghost in zip(keys, molecule.ghost, strict=True)
    ]
    centres: dict[str, Any] = {}
    for atom, label in enumerate(labels):
        if molecule.ghost[atom]:
            potential = {}
        else:
            potential = _core_potential(result.orbital_basis.elements[label])
        here = [
            {
                "angular_momentum": [shell.momentum],
                "harmonic_type": "spherical",
                "exponents": shell.exponents.tolist(),
                "coefficients": [shell.coefficients.tolist()],
            }
            for shell in shells
            if shell.atom == atom
        ]
        centres.setdefault(label, {"electron_shells": here, **potential})
    document: dict[str, Any] = {
        "basis": {
            "schema_name": BASIS_NAMES[version],
            "schema_version": version,
            "name": result.orbital_basis.name,
            "center_data": centres,
            "atom_map": labels,
            "nbf": result.sizes.nao,
        },
        "restricted": reference.nspin == 1,
    }
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


def _core_potential(element: ElementBasis) -> dict[str, Any]:
    potentials = []
    for momentum, terms in groupby(conventions.core_terms(element), key=lambda term: term[0]):
        _, powers, exponents, coefficients = zip(*terms, strict=True)
        potentials.append(
            {
                "ecp_type": "scalar",
                "angular_momentum": [momentum],
                "r_exponents": list(powers),
                "gaussian_exponents": list(exponents),
                "coefficients": [list(coefficients)],
            }
        )
    if element.ecp:
        electrons = {"ecp_electrons": element.ecp_electrons}
    else:
        electrons = {}
    return {**electrons, **({"ecp_potentials": potentials} if potentials else {})}
