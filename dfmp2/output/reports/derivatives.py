"""Reports on gradient, properties and polarizability."""

from __future__ import annotations

from collections.abc import Sequence

import numpy as np

from dfmp2.arrays import Array
from dfmp2.mp2.properties import (
    DENSITIES,
    Gradient,
    GradientCertificate,
    Polarizability,
    Properties,
)
from dfmp2.mp2.result import MP2Result
from dfmp2.output.document import (
    Block,
    Facts,
    Note,
    Section,
    Table,
    fixed,
    size,
)
from dfmp2.output.reports.records import record_facts
from dfmp2.units import DEBYE


def derivative_sections(result: MP2Result) -> list[Section]:
    """Sections on gradient, properties and polarizability, if computed, with their certificate."""
    sections = []
    proof = result.gradient_certificate
    if result.gradient is not None:
        blocks = _gradient(result, result.gradient)
        if proof is not None:
            blocks += _certified(proof)
        sections.append(Section("gradient", "Gradient", blocks))
    if result.properties is not None:
        blocks = _properties(result, result.properties)
        if result.gradient is None and proof is not None:
            blocks += _certified(proof)
        sections.append(Section("properties", "Properties", blocks))
    if result.polarizability is not None:
        sections.append(_polarizability(result.polarizability))
    return sections


def _gradient(result: MP2Result, found: Gradient) -> list[Block]:
    """The gradient of each atom and point charge, and its size."""
    labels = [f"{k} {label}" for k, label in enumerate(result.molecule.labels, start=1)]
    title = f"Gradient of E({found.scaling}), Eh/bohr"
    blocks: list[Block] = [
        _vectors(title, ("atom", "#x", "#y", "#z"), labels, found.total_gradient)
    ]
    if found.point_charge_gradient is not None:
        numbers = [str(k) for k in range(1, 1 + len(found.point_charge_gradient))]
        heads = ("charge", "#x", "#y", "#z")
        title = "On the point charges, Eh/bohr"
        blocks.append(_vectors(title, heads, numbers, found.point_charge_gradient))
    facts = [
        ("norm", f"{found.norm:.10f} Eh/bohr"),
        ("largest component", f"{found.largest:.10f} Eh/bohr"),
        *record_facts(found, leave=("scaling",)),
    ]
    return [*blocks, Facts(facts)]


def _properties(result: MP2Result, own: Properties) -> list[Block]:
    """Dipole moments, charges and natural occupations."""
    kinds = {
        "reference": own.scf_dipole,
        "unrelaxed": own.unrelaxed_dipole,
        "relaxed": own.relaxed_dipole,
    }
    rows = [
        (name, *(f"{x:z.6f}" for x in dipole), f"{DEBYE * float(np.linalg.norm(dipole)):.4f}")
        for name, dipole in kinds.items()
    ]
    caption = "Dipole moment, e bohr, origin of the coordinates"
    if result.molecule.charge:
        caption = f"{caption}, on which that of a charged molecule depends"
    occupied = own.relaxed_occupations
    facts = [
        (
            "natural occupations, relaxed",
            f"largest {occupied.max():.6f}, smallest {occupied.min():.6f}",
        ),
        (
            "electrons outside the reference",
            f"{_excited(result, occupied):.6f} (relaxed natural occupations)",
        ),
    ]
    columns = ("density", "#x", "#y", "#z", "#debye")
    return [Table(caption, columns, rows), *_charges(result, own), Facts(facts)]


def _certified(proof: GradientCertificate) -> list[Block]:
    """Facts from the certificate of a gradient or of densities."""
    passed = Note("ok", f"{proof.owner.capitalize()} certificate is in order.")
    failed = Note(
        "failure", f"The certificate fails: {', '.join(proof.failures).replace('_', ' ')}."
    )
    return [passed if proof.passed else failed, Facts(record_facts(proof))]


def _charges(result: MP2Result, own: Properties) -> list[Block]:
    """Quadrupole moment, charges and spin populations, which are absent in files of earlier
    versions."""
    blocks: list[Block] = []
    names = ("reference", *DENSITIES[1:])
    if own.quadrupole is not None:
        places = {
            "xx": (0, 0),
            "yy": (1, 1),
            "zz": (2, 2),
            "xy": (0, 1),
            "xz": (0, 2),
            "yz": (1, 2),
        }
        rows = [
            (name, *(f"{q[place]:z.6f}" for place in places.values()))
            for name, q in zip(names, own.quadrupole, strict=True)
        ]
        caption = (
            "Quadrupole moment sum q x y, e bohr^2, trace not removed, origin of the coordinates"
        )
        blocks.append(Table(caption, ("density", *(f"#{name}" for name in places)), rows))
    for what, mulliken, lowdin in (
        ("Charges of the atoms, e", own.mulliken_charges, own.lowdin_charges),
        (
            "Spin populations of the atoms, alpha less beta",
            own.mulliken_spin_populations,
            own.lowdin_spin_populations,
        ),
    ):
        if mulliken is not None and lowdin is not None:
            labels = [f"{k} {label}" for k, label in enumerate(result.molecule.labels, start=1)]
            columns = np.concatenate([mulliken, lowdin]).T
            rows = [
                (name, *(f"{x:z.5f}" for x in row))
                for name, row in zip(labels, columns, strict=True)
            ]
            heads = [f"#{kind}, {name}" for kind in ("Mulliken", "Loewdin") for name in names]
            blocks.append(Table(what, ("atom", *heads), rows))
    return blocks


def _polarizability(found: Polarizability) -> Section:
    rows = [
        (axis, *(f"{x:z.5f}" for x in row)) for axis, row in zip("xyz", found.relaxed, strict=True)
    ]
    facts = [
        ("isotropic", f"{found.isotropic:.5f} bohr^3"),
        ("anisotropy", f"{found.anisotropy:.5f} bohr^3"),
        ("isotropic, reference", f"{float(np.trace(found.scf)) / 3:.5f} bohr^3"),
        ("asymmetry", f"{size(found.asymmetry)} bohr^3"),
        ("error of the step", f"{size(found.step_error)} bohr^3, from energies in the same fields"),
        (
            "dipole moments less slopes of energies",
            f"{size(found.dipole_difference)} e bohr at most",
        ),
        ("field", f"{found.field:g} Eh/(e bohr)"),
        ("seconds", fixed(found.seconds)),
    ]
    agreed = "is symmetric; it and the dipole moment agree"
    failed = "is not symmetric, or it or the dipole moment does not agree"
    said = f"The polarizability {agreed if found.passed else failed} with the energies."
    note = Note("ok" if found.passed else "failure", said)
    table = Table(
        "Polarizability, bohr^3, from relaxed dipole moments", ("moment", "#x", "#y", "#z"), rows
    )
    return Section("polarizability", "Polarizability", [table, note, Facts(facts)])


def _vectors(caption: str, heads: Sequence[str], names: Sequence[str], vectors: Array) -> Table:
    """A table of vectors, (n, 3)."""
    return Table(
        caption,
        heads,
        [(name, *(f"{x:z.10f}" for x in row)) for name, row in zip(names, vectors, strict=True)],
    )


def _excited(result: MP2Result, occupations: Array) -> float:
    """Sum of the natural occupations beyond the number of orbitals occupied in the reference."""
    return float(occupations[int((result.reference.mo_occ > 0).sum(axis=1).max()) :].sum())
