"""QCSchema documents (versions 1 and 2) as plain dictionaries that hold nothing but JSON types.

Version 1 merges the input into the result; version 2 keeps it under `input_data`, with method and keywords under
`specification`. Lengths are in bohr, energies in hartree; the geometry is handed on digit by digit.
https://molssi.github.io/QCElemental
"""

from __future__ import annotations

import json
from collections.abc import Mapping
from dataclasses import asdict, fields
from typing import Any

from dfmp2.export.qcschema_wavefunction import wavefunction
from dfmp2.io.report import report
from dfmp2.molecule import Molecule
from dfmp2.options import Options
from dfmp2.result import MP2Result

VERSIONS = (1, 2)
INPUT_NAMES = {1: "qcschema_input", 2: "qcschema_atomic_input"}
OUTPUT_NAMES = {1: "qcschema_output", 2: "qcschema_atomic_result"}
# What a document may not carry: the basis has its own place, the others describe one machine or one file.
NO_KEYWORDS = ("basis", "scf_from", "memory", "threads")


def qcschema(result: MP2Result, version: int = 1) -> bytes:
    """An AtomicResult with orbitals, orbital energies and basis, as JSON.

    Raises
    ------
    NumericalError : the stored orbitals do not belong to the stored basis
    """
    given = atomic_input(result, version)
    document = atomic_result(result, given, version, "all", result.mp2_correlation_energy)
    return (json.dumps(document, indent=1, allow_nan=False) + "\n").encode()


def atomic_input(result: MP2Result, version: int) -> dict[str, Any]:
    """The AtomicInput that asks for this result: its molecule, and the options that differ from the defaults."""
    defaults = Options(basis=result.options.basis).settled(result.molecule.multiplicity)
    keywords = {
        field.name: getattr(result.options, field.name)
        for field in fields(Options)
        if field.name not in NO_KEYWORDS and getattr(result.options, field.name) != getattr(defaults, field.name)
    }
    if result.molecule.point_charges is not None:
        keywords |= {"point_charges": result.molecule.point_charges.tolist(), "point_charge_units": "bohr"}
    specification = {
        "driver": "energy",
        "model": {"method": "mp2", "basis": result.orbital_basis.name},
        "keywords": keywords,
        "protocols": {"wavefunction": "all"},
        "extras": {},
    }
    head = {"schema_name": INPUT_NAMES[version], "schema_version": version}
    molecule = {"molecule": molecule_document(result.molecule, version)}
    if version == 1:
        return {**head, **molecule, **specification}
    return {**head, **molecule, "specification": {"program": "dfmp2", **specification}}


def molecule_document(molecule: Molecule, version: int) -> dict[str, Any]:
    """A QCSchema molecule whose frame is not to be changed; ghosts are the atoms that are not real."""
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


def atomic_result(
    result: MP2Result, given: Mapping[str, Any], version: int, kept: str, correlation: float
) -> dict[str, Any]:
    """The AtomicResult that answers an AtomicInput.

    Parameters
    ----------
    given : the AtomicInput; handed back as it came
    version : of the schema, 1 or 2
    kept : protocol `wavefunction`, see `dfmp2.export.qcschema_wavefunction.PROTOCOLS`
    correlation : correlation energy of the method asked for, Eh

    Returns
    -------
    JSON types only
    """
    specification = given if version == 1 else given["specification"]
    protocols = specification.get("protocols") or {}
    answer = {
        "schema_name": OUTPUT_NAMES[version],
        "schema_version": version,
        "molecule": given["molecule"],
        "properties": _properties(result, correlation),
        "return_result": result.scf_total_energy + correlation,
        "success": True,
        "provenance": _provenance(result),
        "stdout": None if protocols.get("stdout") is False else report(result),
        "extras": {"qcvars": qcvars(result, correlation), "dfmp2": result.to_dict()},
    }
    if given.get("id") is not None:
        answer["id"] = given["id"]
    orbitals = wavefunction(result, version, kept)
    if orbitals is not None:
        answer["wavefunction"] = orbitals
    if version == 1:
        answer["extras"] = {**(given.get("extras") or {}), **answer["extras"]}
        return {**given, **answer}
    return {**answer, "input_data": dict(given)}


def qcvars(result: MP2Result, correlation: float) -> dict[str, float]:
    """Energies under the upper-case names that Psi4 and QCEngine use, Eh."""
    totals = {
        "NUCLEAR REPULSION ENERGY": result.reference.nuclear_repulsion_energy,
        "HF TOTAL ENERGY": result.scf_total_energy,
        "SCF TOTAL ENERGY": result.scf_total_energy,
        "CURRENT REFERENCE ENERGY": result.scf_total_energy,
        "MP2 SAME-SPIN CORRELATION ENERGY": result.mp2_same_spin_correlation_energy,
        "MP2 OPPOSITE-SPIN CORRELATION ENERGY": result.mp2_opposite_spin_correlation_energy,
        "MP2 SINGLES ENERGY": 0.0,  # of canonical RHF and UHF orbitals
        "MP2 DOUBLES ENERGY": result.mp2_correlation_energy,
        "CURRENT CORRELATION ENERGY": correlation,
        "CURRENT ENERGY": result.scf_total_energy + correlation,
    }
    methods = {
        "MP2": result.mp2_correlation_energy,
        "SCS-MP2": result.scs_mp2_correlation_energy,
        "SOS-MP2": result.sos_mp2_correlation_energy,
        "CUSTOM SCS-MP2": result.scaled_mp2_correlation_energy,
    }
    for name, energy in methods.items():
        if energy is not None:
            totals |= {f"{name} CORRELATION ENERGY": energy, f"{name} TOTAL ENERGY": result.scf_total_energy + energy}
    return totals


def _properties(result: MP2Result, correlation: float) -> dict[str, float | int]:
    alpha, beta = result.molecule.check_electrons(result.orbital_basis.ecp_electrons)
    return {
        "calcinfo_nbasis": result.sizes.nao,
        "calcinfo_nmo": result.sizes.nmo,
        "calcinfo_nalpha": alpha,
        "calcinfo_nbeta": beta,
        "calcinfo_natom": result.sizes.natom,
        "nuclear_repulsion_energy": result.reference.nuclear_repulsion_energy,
        "return_energy": result.scf_total_energy + correlation,
        "scf_total_energy": result.scf_total_energy,
        "scf_iterations": result.reference.cycles,
        "mp2_same_spin_correlation_energy": result.mp2_same_spin_correlation_energy,
        "mp2_opposite_spin_correlation_energy": result.mp2_opposite_spin_correlation_energy,
        "mp2_singles_energy": 0.0,
        "mp2_doubles_energy": result.mp2_correlation_energy,
        "mp2_correlation_energy": result.mp2_correlation_energy,
        "mp2_total_energy": result.mp2_total_energy,
    }


def _provenance(result: MP2Result) -> dict[str, Any]:
    return {
        "creator": "dfmp2",
        "version": result.provenance.version,
        "routine": "dfmp2",
        "backend": result.backend,
        "precision": result.precision,
        **{name: value for name, value in asdict(result.provenance).items() if name != "version"},
        "backend_details": list(result.provenance.backend_details),
    }
