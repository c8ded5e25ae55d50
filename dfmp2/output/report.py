"""What is said about a result, the same in the text that a command prints and on the page."""

from __future__ import annotations

import hashlib
import math
from collections.abc import Collection, Sequence
from dataclasses import asdict, fields
from functools import partial
from pathlib import Path
from textwrap import shorten
from typing import TYPE_CHECKING, Any, NamedTuple

import numpy as np

from dfmp2.double_hybrids import DISPERSIONS
from dfmp2.molecule.basis import BasisSet
from dfmp2.molecule.molecule import Molecule
from dfmp2.mp2.error_budget import kohn_sham_grid_error
from dfmp2.mp2.properties import DENSITIES, GradientCertificate, Polarizability, Properties
from dfmp2.mp2.result import Calculated, Dispersion, FittingCertificate, MP2Result
from dfmp2.options.methods import MP2, SCS, SOS, Method
from dfmp2.output.document import (
    ABSENT,
    Block,
    Code,
    Facts,
    Figure,
    Note,
    Section,
    Table,
    counted_text,
    difference,
    energy_text,
    fixed,
    size,
    without_folders,
)
from dfmp2.output.html.svg import Array, Bar, Curve, bars, curves, draw_molecule, pair_map
from dfmp2.output.json import describe_field
from dfmp2.planning.sizes import Spin, Workload
from dfmp2.scf.reference import GIVEN, Reference, Solutions, Stability
from dfmp2.units import ANGSTROM_PER_BOHR, DEBYE, KJ_PER_MOL_PER_HARTREE, format_bytes

if TYPE_CHECKING:
    from dfmp2.mp2.error_budget import ErrorBudget, Share

CITATION = (
    "Feyereisen, Fitzgerald, Komornicki, Chem. Phys. Lett. 208, 359 (1993); PySCF: J. "
    "Chem. Phys. 153, 024109 (2020)"
)
LONGEST_GEOMETRY = 200  # atoms
LONGEST_INPUT = 8_000  # characters
MOST_ROWS = 20  # of a pair map; more orbitals are put together in blocks
STRONGEST = 15  # pairs listed
RELATIVITY = {"none": "none", "x2c": "spin-free one-electron X2C"}
STAGES = {
    "scf": "SCF",
    "integrals": "integrals",
    "transform": "transformation",
    "fit": "metric and fit",
    "pair_energies": "pair energies",
}
AFTER = {
    "fitting_certificate": "fitting certificate",
    "gradient": "gradient and densities",
}  # in runs that have them
ITERATION = ("#iteration", "#E(SCF) / Eh", "#change / Eh", "#orbital gradient / Eh")
SHORTEST = 0.01  # s; below, a rate would say more about the clock than about the machine


def summary_blocks(result: MP2Result) -> list[Section]:
    """The sections that a run prints."""
    first = [part(result) for part in (_molecule, _method, _energies)]
    return [*first, *_derivatives(result), *(part(result) for part in (_reference, _trust, _cost))]


def input_sections(prepared: Calculated) -> list[Section]:
    """What is known before there are pair energies."""
    return [part(prepared) for part in (_molecule, _method, _reference)]


def in_full(result: MP2Result, content: str) -> list[Section]:
    """All sections; `content` is the verified hash of its file."""
    parts = summary_blocks(result)
    pairs = []
    if result.options.correlation.kind == "pairs" and not result.pairs.summed:
        pairs = [_pairs(result)]
    return [*parts[:3], *pairs, *parts[3:], _provenance(result, content)]


def method_name(result: Calculated) -> str:
    """The method as it is written in a paper, e.g. "DF-MP2/cc-pvdz on DF-RHF, 1 frozen core
    orbital"."""
    core, virtual = result.sizes.frozen_core, result.sizes.frozen_virtual
    if result.options.correlation.kind == "none":
        return method_on_reference(result)
    if core:
        frozen = counted_text(core, "frozen core orbital")
    else:
        frozen = "all electrons correlated"
    if virtual:
        more = f", {counted_text(virtual, 'frozen virtual orbital')}"
    else:
        more = ""
    return f"{method_on_reference(result)}, {frozen}{more}"


def method_on_reference(result: Calculated) -> str:
    """The method and its reference, e.g. "DF-MP2/cc-pvdz on DF-RHF"."""
    if result.options.relativity == "x2c":
        relativistic = "X2C-"
    else:
        relativistic = ""
    if result.reference.scf_type == "df":
        fitted = "DF-"
    else:
        fitted = ""
    surroundings = ""
    if result.options.solvent is not None:
        surroundings = f" in {result.options.solvent_title}"
    return f"{result.level} on {relativistic}{fitted}{_reference_title(result)}{surroundings}"


def asked_for(result: MP2Result) -> tuple[str, str]:
    """The method, and what of it was asked for: what it came to in this molecule is not in it."""
    return (
        result.level,
        f"reference {result.options.reference}, frozen core {result.options.frozen_core}",
    )


def energies(result: MP2Result) -> tuple[str, str, str]:
    """Energy of the mean field, and correlation and total energy of the method, Eh."""
    return (
        energy_text(result.mean_field_energy),
        energy_text(result.correlation_energy),
        energy_text(result.total_energy),
    )


# --- records --------------------------------------------------------------------------------------

LABELS = {  # of fields that are not called by their name
    "kind": "reference",
    "xc": "functional",
    "grid": "integration grid",
    "grid_points": "points of the grid",
    "exx_total_energy": "exact-exchange energy",
    "energy_xc": "functional of the energy",
    "functional_energy": "energy of that functional",
    "scf_type": "integrals of the SCF",
    "scf_total_energy": "reference energy",
    "cycles": "SCF iterations",
    "ladder": "convergence methods",
    "start": "start orbitals",
    "spin_square": "<S^2>",
    "verdict": "orbital stability",
    "method": "rotations examined",
    "homo_lumo_gap": "HOMO-LUMO gap",
    "smallest_denominator": "smallest MP2 denominator",
    "correlation_error": "95 % bound on the error of E(corr)",
    "same_spin_error": "95 % bound on the error of E(SS)",
    "opposite_spin_error": "95 % bound on the error of E(OS)",
    "largest_pair_error": "largest difference of one pair",
    "seed": "seed of the sample",
    "tolerance": "accepted up to",
    "budget": "memory allowed",
    "measured_peak": "peak memory",
    "fitted_tensor": "B",
    "smd_cds_energy": "SMD-CDS energy",
}
FORMS = {  # end of a field's name -> form of its number; energies have ten digits
    **dict.fromkeys(("error", "tolerance", "allowed", "gain", "condition", "threshold"), ".1e"),
    **dict.fromkeys(("gap", "denominator", "eigenvalue"), ".4f"),
    "constant": ".6g",
    "difference": "+.2e",
    "spin_square": ".6f",
    "seconds": ".2f",
    **dict.fromkeys(
        ("translation", "rotation", "residual", "allowed_energy", "allowed_sum", "allowed_slope"),
        ".1e",
    ),
}
UNITS = {"hartree": " Eh", "hartree/bohr": " Eh/bohr", "s": " s"}
FITTING = ("scf_fitting_error", "mp2_fitting_error")  # of the diagnostics; said of the bases
OF_CERTIFICATE = ("sampled", "pairs", "repeated_in_fp64")  # said in other words
SCF_OF_CHECK = ("scf_total_energy", "scf_difference")  # --check has no SCF of its own


def record_facts(
    record: Any, start: str = "", leave: Collection[str] = ()
) -> list[tuple[str, str]]:
    """The fields of a record but for its arrays, other records and warnings, by the names they have
    in its file."""
    facts = []
    for field in fields(record):
        name, value, unit = field.name, getattr(record, field.name), field.metadata["units"]
        if (unit == "byte" and not value) or name in ("warnings", *leave):
            continue
        if isinstance(value, str | int | float | tuple) and value not in ("", ()):
            facts.append(
                (f"{start}{LABELS.get(name, name.replace('_', ' '))}", _said(name, value, unit))
            )
    return facts


def _said(name: str, value: Any, unit: str) -> str:
    if isinstance(value, bool):
        return "yes" if value else "no"
    if isinstance(value, tuple):
        return ", ".join(_said(name, part, unit) for part in value)
    if unit == "byte":
        return format_bytes(value)
    if not isinstance(value, float):
        return str(value)
    if not value:
        return f"0{UNITS.get(unit, '')}"
    form = next((form for end, form in FORMS.items() if name.endswith(end)), ".10f")
    if math.isfinite(value):
        return f"{value:{form}}{UNITS.get(unit, '')}"
    return ABSENT


# --- molecule and method --------------------------------------------------------------------------


def point_charge_line(molecule: Molecule, basis: BasisSet) -> str:
    """The point charges around a molecule in one line, "" where there are none."""
    charges = describe_field(molecule, basis)
    if charges is None:
        return ""
    count = counted_text(int(charges["count"]), "point charge")
    return (
        f"{count}, {charges['total_charge']:+.6f} e in all; {charges['nuclear_energy']:.10f} Eh "
        "with the nuclei, contained in their repulsion; their energy among themselves is left out"
    )


def _molecule(result: Calculated) -> Section:
    molecule = result.molecule
    facts = [
        ("name", molecule.name),
        *([("comment", comment)] if (comment := _comment(molecule.text)) else []),
        ("formula", molecule.formula),
        ("charge", molecule.charge),
        ("multiplicity", molecule.multiplicity),
        ("explicit electrons", result.sizes.nelectron),
        ("read from", Path(molecule.source).name or "python"),
        *_surroundings(result),
    ]
    places = zip(
        molecule.labels[:LONGEST_GEOMETRY], molecule.coordinates * ANGSTROM_PER_BOHR, strict=False
    )
    rows = [
        (f"{k} {label}", *(f"{x:.8f}" for x in place))
        for k, (label, place) in enumerate(places, start=1)
    ]
    more = molecule.natom - len(rows)
    caption = f"Geometry, angstrom{f'; {more} more atoms are in the result file' if more else ''}"
    figure = Figure(
        partial(draw_molecule, molecule),
        "Turned to show the longest axis; sticks join atoms nearer than 1.25 times the sum of "
        "covalent radii, ghost centres (@) have a dashed outline.",
    )
    return Section(
        "molecule",
        "Molecule",
        [figure, Facts(facts), Table(caption, ("atom", "#x", "#y", "#z"), rows)],
    )


def _surroundings(result: Calculated) -> list[tuple[str, str]]:
    """What is around the molecule, point charges or a solvent; nothing for one by itself."""
    reference = result.reference
    field = point_charge_line(result.molecule, result.orbital_basis)
    if field:
        return [("surroundings", field)]
    if reference.dielectric_constant is None:
        return []
    scheme = (
        f"{result.options.solvent_title}, dielectric constant "
        f"{reference.dielectric_constant:g}, {reference.surface_points} points on the cavity; "
        "reaction field of the SCF density alone"
    )
    if result.options.correlation.kind != "none":
        scheme += ", correlation on its orbitals (scheme PTE)"
    return [("surroundings", scheme)]


def _solvent_rows(reference: Reference) -> list[EnergyRow]:
    """The energies that a solvent adds to that of the SCF, Eh; none in the gas phase."""
    rows = []
    if reference.solvent_energy is not None:
        contained = "of the reaction field, contained in the reference energy"
        rows.append(EnergyRow("solvent energy", reference.solvent_energy, contained))
    if reference.smd_cds_energy is not None:
        contained = "cavitation, dispersion, solvent structure; contained likewise"
        rows.append(EnergyRow("SMD-CDS energy", reference.smd_cds_energy, contained))
    return rows


def _comment(text: str) -> str:
    """The comment of an xyz file, shortened; "" for none, and for a molecule that comes from
    elsewhere."""
    lines = text.splitlines()
    if len(lines) > 2 and lines[0].strip().isdigit():
        return shorten(lines[1], 200)
    return ""


def _method(result: Calculated) -> Section:
    sizes, options = result.sizes, result.options
    bases = {
        "orbital": (result.orbital_basis, sizes.nao),
        "SCF fitting": (result.scf_fitting, sizes.naux_scf),
        "MP2 fitting": (result.mp2_fitting, sizes.naux),
    }
    facts, exponents, hashes = [], [], []
    for role, (basis, functions) in bases.items():
        if basis is None:
            facts.append((role, "none: conventional four-centre integrals"))
            continue
        if not basis.elements:
            facts.append((role, "none: there is no correlation energy"))
            continue
        first, *others = basis.describe()
        facts += [
            (role, f"{first}, {functions} spherical functions"),
            *((role, line) for line in others),
        ]
        for symbol, element in basis.elements.items():
            hashes.append((role, symbol, element.sha256))
            if element.ecp is not None:
                core = (
                    f"core potential for {element.ecp_electrons} electrons ({element.ecp_source})"
                )
                facts.append((f"{role}, {symbol}", core))
            if "even-tempered" in element.source:
                exponents += [
                    f"{symbol} l={shell[0]} exponent {shell[1][0]:.10g} bohr^-2"
                    for shell in element.shells
                ]
    asked = f"{sizes.frozen_core} orbitals per spin (--frozen-core {options.frozen_core})"
    between = result.reference.interatomic_fitting_error
    lines = [
        *fitting_errors(result.molecule, result.scf_fitting, result.mp2_fitting, between),
        result.frozen_core_note,
    ]
    facts += [*(("", line) for line in lines if line), ("frozen core", asked)]
    if result.reference.nspin == 1:
        spins = ["all"]
    else:
        spins = ["alpha", "beta"]
    classes = [
        (spin, core, nocc, nvir, sizes.frozen_virtual, sizes.nmo)
        for spin, core, nocc, nvir in zip(
            spins, _cores(result), sizes.nocc, sizes.nvir, strict=False
        )
    ]
    heads = (
        "spin",
        "#frozen core",
        "#active occupied",
        "#active virtual",
        "#frozen virtual",
        "#all",
    )
    blocks: list[Block] = [
        f"{method_name(result)}. Cite: {CITATION}.",
        Facts(facts),
        *(
            [Code("Even-tempered fitting functions", "\n".join(exponents), folded=True)]
            if exponents
            else []
        ),
        Table("Orbitals", heads, classes),
        Table(
            "SHA-256 of exponents and coefficients",
            ("basis", "element", "SHA-256"),
            hashes,
            details=True,
        ),
    ]
    return Section("method", "Method and basis sets", blocks)


def fitting_errors(
    molecule: Molecule,
    scf_fitting: BasisSet | None,
    mp2_fitting: BasisSet,
    between: float | None = None,
) -> list[str]:
    """A line for each fitting set whose error was measured on the atoms, and what an SCF lacks
    between them, Eh."""
    lines = []
    for name, basis in (("SCF", scf_fitting), ("MP2", mp2_fitting)):
        if basis is None:
            total = None
        else:
            total = basis.error_of(basis.real_keys(molecule))
        if basis is not None and total is not None:
            each = ", ".join(f"{symbol} {_signed(error)}" for symbol, error in basis.errors.items())
            if name == "SCF" and between is not None:
                more = f"; between them {_signed(between)} Eh"
            else:
                more = ""
            lines.append(
                f"{name} fitting error of the atoms {_signed(total)} Eh (each {each}){more}"
            )
    return lines


def _signed(value: float) -> str:
    """A signed number whose magnitude is what matters; an exact zero is 0."""
    return f"{value:+.1e}" if value else "0"


def _cores(result: Calculated) -> list[int]:
    """Frozen core orbitals of each spin; one with fewer electrons than the core freezes all it
    has."""
    sizes = result.sizes
    return [
        sizes.nmo - o - v - sizes.frozen_virtual
        for o, v in zip(sizes.nocc, sizes.nvir, strict=True)
    ]


# --- energies -------------------------------------------------------------------------------------


class EnergyRow(NamedTuple):
    """An energy that is printed, Eh.

    Attributes
    ----------
    name : str
    energy : float
    meaning : str
        What it is the sum of, or contained in.
    quoted : bool
        Whether people quote it: the screen of a run shows no others.
    alone : str
        Its meaning where the row above is not shown, if that is another.
    """

    name: str
    energy: float
    meaning: str
    quoted: bool = True
    alone: str = ""


def energy_rows(result: MP2Result) -> list[EnergyRow]:
    """All energies of a result in the order in which they are printed."""
    method, reference = result.options.correlation, result.reference
    sign = mean_field_sign(result)
    repulsion = EnergyRow(
        "nuclear repulsion",
        reference.nuclear_repulsion_energy,
        f"contained in {sign}",
        quoted=False,
    )
    rows = [repulsion, *_solvent_rows(reference)]
    if method.kind == "none":
        total = f"{method.title} total"
        rows.append(EnergyRow(total, result.total_energy, f"{sign}, {_reference_title(result)}"))
        return rows
    scf = "E(HF)"
    if reference.xc is not None:
        scf = "E(KS)"
    rows.append(
        EnergyRow("reference energy", result.scf_total_energy, f"{scf}, {_reference_title(result)}")
    )
    if result.functional_energy is not None:
        meaning = f"E(DFT): {method.title} with these orbitals"
        rows.append(EnergyRow("functional energy", result.mean_field_energy, meaning))
    elif sign == "E(EXX)":
        meaning = "E(EXX): HF of these orbitals"
        rows.append(EnergyRow("exact-exchange energy", result.mean_field_energy, meaning))
    rows += _correlation_rows(result, sign)
    for kind in _scalings(result):
        rows += _scaled_rows(result, kind, sign)
    return rows


def mean_field_sign(result: MP2Result) -> str:
    """How the energy is written that the correlation energy is added to, such as "E(HF)"."""
    method = result.options.correlation
    if result.functional_energy is not None:
        return "E(DFT)"
    if method.double_hybrid or method.kind == "none":
        return "E(KS)"
    if result.reference.xc is None:
        return "E(HF)"
    return "E(EXX)"


def _correlation_rows(result: MP2Result, sign: str) -> list[EnergyRow]:
    """The spin components, the correlation energy made of them, and the total energy."""
    method = result.options.correlation
    same, opposite = result.components
    rows = []
    if result.quadrature is None or math.isfinite(same):
        rows.append(EnergyRow("same-spin correlation", same, "E(SS)"))
    if result.quadrature is None or math.isfinite(opposite):
        rows.append(EnergyRow("opposite-spin correlation", opposite, "E(OS)"))
    singles = result.mp2_singles_energy
    if singles:
        rows.append(EnergyRow("singles", singles, "E(S), ROHF reference"))
    correlation = result.correlation_energy
    title = method.title
    if method.double_hybrid:
        formula = f"{method.opposite_spin:.6g} OS + {method.same_spin:.6g} SS"
        total = f"{sign} + correlation"
    elif result.quadrature is None:
        if method.plain:
            title = MP2.title
        correlation = same + opposite + singles
        formula = f"E(SS) + E(OS){_singles_term(result)}"
        total = f"{sign} + {formula}"
    else:
        formula = f"{method.formula}{_singles_term(result)}"
        total = f"{sign} + the line above"
    rows.append(EnergyRow(f"{title} correlation", correlation, formula))
    dispersion = result.dispersion
    if dispersion is not None:
        meaning = f"{DISPERSIONS[dispersion.correction]}, {dispersion.program}"
        rows.append(EnergyRow("dispersion", dispersion.energy, meaning))
        total += " + dispersion"
    energy = result.mean_field_energy + correlation + (result.dispersion_energy or 0.0)
    rows.append(EnergyRow(f"{title} total", energy, total))
    return rows


def _singles_term(result: MP2Result) -> str:
    """What a formula ends with where the reference is ROHF."""
    if result.mp2_singles_energy:
        return " + E(S)"
    return ""


def _scalings(result: MP2Result) -> list[Method]:
    """The scaled methods that are shown beside MP2; a double hybrid has none."""
    method = result.options.correlation
    if not method.plain or method.double_hybrid:
        return []
    return [kind for kind in dict.fromkeys((SCS, SOS, method)) if kind is not MP2]


def _scaled_rows(result: MP2Result, kind: Method, sign: str) -> list[EnergyRow]:
    """Correlation and total energy of a scaling; the correlation is quoted of the method that was
    asked for alone."""
    same, opposite = result.components
    scaled = kind.apply(opposite, same) + result.mp2_singles_energy
    formula = f"{kind.opposite_spin:.6g} OS + {kind.same_spin:.6g} SS{_singles_term(result)}"
    of_run = kind == result.options.correlation
    alone = ""
    if not of_run:
        alone = f"{sign} + {formula}"
    return [
        EnergyRow(f"{kind.title} correlation", scaled, formula, quoted=of_run),
        EnergyRow(
            f"{kind.title} total",
            result.mean_field_energy + scaled,
            f"{sign} + the line above",
            alone=alone,
        ),
    ]


def quoted_energies(result: MP2Result) -> Table:
    """The energies that people quote, Eh."""
    rows = [
        (row.name, energy_text(row.energy), row.alone or row.meaning)
        for row in energy_rows(result)
        if row.quoted
    ]
    return Table("", ("energy", "#Eh", "meaning"), rows)


def _energies(result: MP2Result) -> Section:
    method, quadrature = result.options.correlation, result.quadrature
    sources = [
        f"{kind.title}: {kind.source}"
        for kind in _scalings(result) or (method,)
        if kind.source != "user"
    ]
    if method.regularised:
        sources.append(f"kappa {result.options.regulariser:g} per Eh")
    rows = [
        (
            row.name,
            energy_text(row.energy),
            fixed(KJ_PER_MOL_PER_HARTREE * row.energy),
            row.meaning,
        )
        for row in energy_rows(result)
    ]
    table = Table("; ".join(sources), ("energy", "#Eh", "#kJ/mol", "meaning"), rows)
    blocks: list[Block] = [table]
    if method.kind == "none":
        return Section("energies", "Energies", blocks)
    if quadrature is None:
        blocks.append(_component_bars(result))
    else:
        blocks.append(Facts(record_facts(quadrature, "quadrature: ", leave=("energy",))))
    if result.dispersion is not None:
        blocks.append(Facts([("dispersion", _damping(result.dispersion))]))
    if result.correlation_energy == 0:
        none = "There is no pair of electrons to correlate: the correlation energy is zero."
        blocks.insert(0, Note("info", none))
    return Section("energies", "Energies", blocks)


def _component_bars(result: MP2Result) -> Figure:
    """The correlation energy by spin component, of MP2 and of the scalings shown beside it."""
    method = result.options.correlation
    same, opposite = result.components
    if method.double_hybrid:
        parts = (method.opposite_spin * opposite, method.same_spin * same)
        drawn = [Bar(method.title, parts, energy_text(result.correlation_energy))]
    else:
        title = method.title
        if method.plain:
            title = MP2.title
        unscaled = same + opposite + result.mp2_singles_energy
        drawn = [Bar(title, (opposite, same), energy_text(unscaled))]
    for kind in _scalings(result):
        scaled = kind.apply(opposite, same) + result.mp2_singles_energy
        parts = (kind.opposite_spin * opposite, kind.same_spin * same)
        drawn.append(Bar(kind.title, parts, energy_text(scaled)))
    heading = "Correlation energy by spin component"
    draw = partial(bars, heading, drawn, ("opposite spin", "same spin"))
    return Figure(draw, "Magnitude of the correlation energy, Eh, by spin component after scaling.")


LONGEST_TITLE = 40  # of a reference with its functional in a table


def _reference_title(result: Calculated) -> str:
    """Kind of orbitals and their functional; a double hybrid's by the name of the method."""
    reference = result.reference
    row = result.options.double_hybrid
    if row is not None:
        return f"{reference.name.upper()} of {row.title}"
    if len(reference.title) > LONGEST_TITLE:
        return reference.name.upper()  # its functional is in a section of its own
    return reference.title


def _damping(dispersion: Dispersion) -> str:
    """The parameters of a dispersion correction."""
    return (
        f"{DISPERSIONS[dispersion.correction]} of {dispersion.program} for "
        f"{dispersion.functional}: s6 {dispersion.s6:g}, s8 {dispersion.s8:g}, s9 "
        f"{dispersion.s9:g}, a1 {dispersion.a1:g}, a2 {dispersion.a2:g} bohr; doi {dispersion.doi}"
    )


# --- gradient and properties ----------------------------------------------------------------------


def _derivatives(result: MP2Result) -> list[Section]:
    """Gradient, properties and polarizability, where they were computed, with their certificate."""
    sections = []
    found, proof, own = result.gradient, result.gradient_certificate, result.properties
    if found is not None:
        heads = ("atom", "#x", "#y", "#z")
        labels = [f"{k} {label}" for k, label in enumerate(result.molecule.labels, start=1)]
        blocks: list[Block] = [
            _vectors(
                f"Gradient of E({found.scaling}), Eh/bohr", heads, labels, found.total_gradient
            )
        ]
        if found.point_charge_gradient is not None:
            numbers = [str(k) for k in range(1, 1 + len(found.point_charge_gradient))]
            heads = ("charge", *heads[1:])
            blocks.append(
                _vectors(
                    "On the point charges, Eh/bohr", heads, numbers, found.point_charge_gradient
                )
            )
        facts = [
            ("norm", f"{found.norm:.10f} Eh/bohr"),
            ("largest component", f"{found.largest:.10f} Eh/bohr"),
        ]
        blocks.append(Facts([*facts, *record_facts(found, leave=("scaling",))]))
        if proof is not None:
            blocks += _certified(proof)
        sections.append(Section("gradient", "Gradient", blocks))
    if own is not None:
        kinds = {
            "reference": own.scf_dipole,
            "unrelaxed": own.unrelaxed_dipole,
            "relaxed": own.relaxed_dipole,
        }
        rows = [
            (name, *(f"{x:z.6f}" for x in dipole), f"{DEBYE * float(np.linalg.norm(dipole)):.4f}")
            for name, dipole in kinds.items()
        ]
        columns = ("density", "#x", "#y", "#z", "#debye")
        caption = "Dipole moment, e bohr, origin of the coordinates"
        charged = f"{caption}, on which that of a charged molecule depends"
        blocks = [
            Table(charged if result.molecule.charge else caption, columns, rows),
            *_charges(result, own),
        ]
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
        blocks.append(Facts(facts))
        if found is None and proof is not None:
            blocks += _certified(proof)
        sections.append(Section("properties", "Properties", blocks))
    if result.polarizability is not None:
        sections.append(_polarizability(result.polarizability))
    return sections


def _certified(proof: GradientCertificate) -> list[Block]:
    """What the certificate of a gradient or of densities says."""
    passed = Note("ok", f"{proof.owner.capitalize()} certificate is in order.")
    failed = Note(
        "failure", f"The certificate fails: {', '.join(proof.failures).replace('_', ' ')}."
    )
    return [passed if proof.passed else failed, Facts(record_facts(proof))]


def _charges(result: MP2Result, own: Properties) -> list[Block]:
    """Quadrupole moment, charges and spin populations, which files of earlier versions do not
    have."""
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
    """Sum of the natural occupations beyond as many orbitals as the reference occupies."""
    return float(occupations[int((result.reference.mo_occ > 0).sum(axis=1).max()) :].sum())


# --- pair energies --------------------------------------------------------------------------------


class Pair(NamedTuple):
    """A pair of occupied orbitals, numbered from 1 over all orbitals; energies in Eh, both orders
    counted."""

    total: float
    spins: str
    i: int
    j: int
    opposite: float
    same: float


SPINS = {
    "": (0, 0),
    "alpha beta": (0, 1),
    "alpha alpha": (0, 0),
    "beta beta": (1, 1),
}  # of a pair -> of i and of j


def list_pairs(result: MP2Result) -> list[Pair]:
    """All distinct pairs, most negative first; e_ij is the contribution of the occupied pair ij to
    E(corr)."""
    if result.pairs.summed:
        return []
    opposite, *same = result.pairs.channels().values()
    if result.reference.nspin == 1:
        both = 2.0 - np.eye(len(opposite))
        places = zip(*np.triu_indices(len(opposite)), strict=True)
        found = [
            ("", i, j, both[i, j] * opposite[i, j], both[i, j] * same[0][i, j]) for i, j in places
        ]
    else:
        found = [("alpha beta", i, j, value, 0.0) for (i, j), value in np.ndenumerate(opposite)]
        for spins, matrix in zip(("alpha alpha", "beta beta"), same, strict=True):
            places = zip(*np.triu_indices(len(matrix), 1), strict=True)
            found += [(spins, i, j, 0.0, 2.0 * matrix[i, j]) for i, j in places]
    core = _cores(result)
    return sorted(
        Pair(
            float(os + ss),
            spins,
            int(i) + 1 + core[SPINS[spins][0]],
            int(j) + 1 + core[SPINS[spins][1]],
            os,
            ss,
        )
        for spins, i, j, os, ss in found
    )


def _pairs(result: MP2Result) -> Section:
    core, total, eps = _cores(result), result.pairs.correlation_energy, result.reference.mo_energy
    pairs = list_pairs(result)
    rows = []
    for pair in pairs[:STRONGEST]:
        levels = ", ".join(
            f"{eps[spin][k - 1]:.3f}" for spin, k in zip(SPINS[pair.spins], pair[2:4], strict=True)
        )
        values = (f"{value:z.8f}" for value in (pair.opposite, pair.same, pair.total))
        share = fixed(100 * pair.total / total if total else math.nan)
        rows.append((f"{pair.i}, {pair.j}", pair.spins or "both", levels, *values, share))
    if core[0]:
        frozen = f", the first {core[0]} of which are frozen"
    else:
        frozen = ""
    caption = (
        f"The {len(rows)} strongest of {len(pairs)} pairs, with their share of E(corr); both "
        f"orders (ij, ji) are counted; orbitals are numbered from 1{frozen}. dfmp2 show --pairs "
        "prints all of them"
    )
    heads = (
        "i, j",
        "spins",
        "#e(i), e(j) / Eh",
        "#E(OS) / Eh",
        "#E(SS) / Eh",
        "#sum / Eh",
        "#share / %",
    )
    firsts = {"opposite_spin": core, "same_spin_beta": (core[1], core[1])}
    maps = [
        _pair_map(name.replace("_", " "), matrix, firsts.get(name, (core[0], core[0])))
        for name, matrix in result.pairs.channels().items()
        if matrix.size
    ]
    return Section("pairs", "Pair energies", [*maps, Table(caption, heads, rows, sortable=True)])


def _pair_map(name: str, matrix: Array, first: Sequence[int]) -> Block:
    """The matrix of a channel as a figure; a large one as sums over blocks of orbitals."""
    if not np.any(matrix):
        return f"Pair energies, {name}: all are zero."
    block = max(1, math.ceil(max(matrix.shape) / MOST_ROWS))
    starts = [np.arange(0, n, block) for n in matrix.shape]
    sums = np.add.reduceat(np.add.reduceat(matrix, starts[0], axis=0), starts[1], axis=1)
    names = [
        [
            f"{core + k + 1} to {core + min(k + block, n)}" if block > 1 else f"{core + k + 1}"
            for k in found.tolist()
        ]
        for found, n, core in zip(starts, matrix.shape, first, strict=True)
    ]
    grouped = (
        f" {matrix.shape[0]} by {matrix.shape[1]} values are too many to show: each square is the "
        f"sum over a block of {block} by {block} orbitals."
    )
    caption = (
        f"Pair energies, {name}.{grouped if block > 1 else ''} The side of a square falls with the "
        "logarithm of the magnitude; smaller than 0.0001 of the largest is a dot. Outlined squares "
        "are positive."
    )
    rows = [
        (name, *map(energy_text, row)) for name, row in zip(names[0], sums.tolist(), strict=True)
    ]
    table = Table(
        f"Values of the map: {name}, Eh",
        ["i \\ j", *(f"#{n}" for n in names[1])],
        rows,
        details=True,
    )
    return Figure(
        partial(pair_map, f"Pair energies, {name}, orbital by orbital", sums, *names),
        caption,
        table,
    )


# --- reference ------------------------------------------------------------------------------------


def _reference(result: Calculated) -> Section:
    reference, stability = result.reference, result.reference.stability
    facts = dict(record_facts(reference, leave=("grid_level", *_among_energies(result)))) | {
        "relativity": RELATIVITY[result.options.relativity]
    }
    name, spin = spin_fact(result)
    facts[name] = spin
    facts |= _grid_facts(result)
    if stability is None:
        examined = [("orbital stability", "not examined")]
    else:
        examined = record_facts(stability)
    blocks: list[Block] = [
        Facts([*facts.items(), *examined, *record_facts(result.diagnostics, leave=FITTING)])
    ]
    if stability is not None and stability.unstable:
        blocks.insert(0, Note("warning", _lower_solutions(stability)))
    blocks.append(_iterations(reference))
    if reference.solutions is not None and len(reference.solutions.energy) > 1:
        blocks.append(_solutions(reference.solutions))
    if reference.xc is None:
        name = "Hartree-Fock"
    else:
        name = "Kohn-Sham"
    return Section("reference", f"{name} reference", blocks)


def spin_fact(result: Calculated) -> tuple[str, str]:
    """<S^2> of the reference beside that of a pure spin state."""
    spin = (result.molecule.multiplicity - 1) / 2
    (name, value) = next(
        fact for fact in record_facts(result.reference) if fact[0] == LABELS["spin_square"]
    )
    return name, f"{value} (pure spin state: {spin * (spin + 1):.2f})"


def _among_energies(result: Calculated) -> list[str]:
    """The fields of the reference that `energy_rows` has."""
    if not isinstance(result, MP2Result):
        return []
    names = ["scf_total_energy", "nuclear_repulsion_energy", "functional_energy"]
    names += ["solvent_energy", "smd_cds_energy"]
    if result.mean_field_name == "hf_total_energy":
        names.append("exx_total_energy")
    return names


def _lower_solutions(stability: Stability) -> str:
    """Kinds of instability, and how far below at least the lower solutions lie."""
    parts = []
    for kind, gain in stability.gains.items():
        if gain:
            parts.append(f"{kind}: at least {size(gain)} Eh below this one")
        else:
            parts.append(kind)
    return f"A lower SCF solution exists ({'; '.join(parts)})."


def _grid_facts(result: Calculated) -> dict[str, str]:
    """What was measured of the integration grid in E(KS), which is no part of the energies in the
    budget."""
    found = result.reference.grid_error
    error = kohn_sham_grid_error(result.reference, len(result.molecule.real_symbols))
    if found is None or error is None or error.value is None:
        return {}
    return {
        "finer grid": f"{found.finer}, {found.finer_points} points",
        "grid error of "
        "E(KS)": f"{_signed(found.scf_error)} Eh, at most about {size(error.value)} Eh",
    }


def _solutions(found: Solutions) -> Table:
    rows = [
        (
            row["start"],
            row["origin"],
            energy_text(row["energy"]) if math.isfinite(row["energy"]) else "not converged",
            *(fixed(row[name], 4) for name in ("spin_square", "lowest_eigenvalue")),
            row["kind"],
            "<- used" if number == found.chosen else "",
        )
        for number, row in enumerate(found.rows(), start=1)
    ]
    heads = ("#start", "start orbitals", "#E(SCF)", "#<S^2>", "#lowest eigenvalue", "kind", "")
    return Table("SCF solutions in the order in which they were found, Eh", heads, rows)


def _iterations(reference: Reference) -> Block:
    """How energy and gradient fell from one SCF iteration to the next."""
    if reference.history is None or not len(reference.history) or reference.ladder == GIVEN:
        return Note(
            "info",
            "The iterations of this SCF are not recorded: it was done elsewhere, or needed none.",
        )
    found = [(n, *row) for n, row in enumerate(reference.history.tolist(), start=1)]
    drawn = [
        Curve("orbital gradient", [(n, math.log10(g)) for n, _, _, g in found if g > 0]),
        Curve("change of the energy", [(n, math.log10(abs(c))) for n, _, c, _ in found[1:] if c]),
    ]
    rows = [
        (n, energy_text(e), difference(change), difference(gradient))
        for n, e, change, gradient in found
    ]
    return Figure(
        partial(curves, "Convergence of the SCF", drawn, "iteration", "log10 of the value in Eh"),
        "Orbital gradient and change of the energy in each SCF iteration, powers of ten of Eh.",
        Table("SCF iterations", ITERATION, rows, details=True),
    )


# --- how wrong the energies may be ----------------------------------------------------------------


def budget_blocks(budget: ErrorBudget) -> list[Block]:
    """How many digits are good, and the sources of error with what each adds, Eh."""
    energies = ("scf", "correlation")
    rows = [
        (
            source.name,
            *(_share(getattr(source, energy)) for energy in energies),
            source.kinds,
            source.how,
        )
        for source in budget.sources.values()
    ]
    sums = [ABSENT if value is None else size(value) for value in (budget.scf, budget.correlation)]
    how = "magnitudes added"
    shares = [share for source in budget.sources.values() for share in source.shares]
    if any(share.error is not None for share in shares):
        how = "magnitudes added; the total takes measured errors with their signs"
    heads = ("source of error", "#in E(SCF) / Eh", "#in E(corr) / Eh", "kind", "~how it is known")
    return [budget.summary, Table("", heads, [*rows, ("sum", *sums, "", how)])]


def _share(share: Share | None) -> str:
    """Magnitude of an error; "" where the energy has no part in it, ABSENT where it is not
    known."""
    if share is None:
        return ""
    if share.value is None:
        return ABSENT
    return size(share.value)


def _trust(result: MP2Result) -> Section:
    certificate, check, warnings = result.certificate, result.check, result.diagnostics.warnings
    facts = [
        ("backend", f"{result.backend}: {result.backend_reason}"),
        ("device and libraries", ", ".join(result.provenance.backend_details) or "not recorded"),
        ("precision", f"{result.precision} (asked for: {result.options.precision})"),
    ]
    blocks: list[Block] = [Note("warning", text) for text in warnings] or [
        Note("ok", "The run gave no warning.")
    ]
    blocks += [*budget_blocks(result.error_budget), Facts(facts)]
    if certificate is None:
        if result.precision == "fp64":
            reason = "nothing is computed in reduced precision"
        else:
            reason = "not recorded"
        blocks.append(f"Precision certificate: none; {reason}.")
    else:
        if certificate.repeated_in_fp64:
            note = Note(
                "info",
                "The bound exceeded the tolerance, so the pair energies were repeated in float64.",
            )
        elif certificate.accepted:
            note = Note(
                "ok", "The bound on the precision error of E(corr) is within the tolerance."
            )
        else:
            note = Note(
                "failure", "The bound on the precision error of E(corr) exceeds the tolerance."
            )
        sampled = (
            "certificate",
            f"{certificate.sampled} of {certificate.pairs} pairs redone in float64",
        )
        budgeted = ["correlation_error"]
        if certificate.repeated_in_fp64:
            budgeted = []
        found = record_facts(certificate, leave=(*OF_CERTIFICATE, *budgeted))
        if certificate.seed is None:  # estimates, from before the sample was drawn at random
            found = [
                (name.replace("95 % bound on the error", "estimated error"), value)
                for name, value in found
            ]
        blocks += [note, Facts([sampled, *found])]
    if result.fitting_certificate is not None:
        blocks.append(Facts(certified_fit(result.fitting_certificate)))
    if result.quadrature is not None:
        blocks.append(
            "No other program repeats this method here; its error is that of the quadrature, above."
        )
    elif check is None:
        blocks.append("Not checked against PySCF's own DF-MP2 (run --check, or now dfmp2 compare).")
    else:
        verdict = (
            f"{'agrees' if check.passed else 'differs'}: largest difference "
            f"{size(check.largest_difference)} Eh"
        )
        shared = "check, same orbitals and fitting set (whose errors it cannot see)"
        facts = [
            (shared, "passed" if check.passed else "FAILED"),
            *record_facts(check, leave=SCF_OF_CHECK),
            ("correlation difference", f"{difference(check.correlation_difference)} Eh"),
        ]
        blocks += [
            Note("ok" if check.passed else "failure", f"{check.program} {verdict}"),
            Facts(facts),
        ]
    return Section("trust", "Errors, precision and backend", blocks)


def certified_fit(found: FittingCertificate) -> list[tuple[str, str]]:
    """The fitting errors that were measured in the molecule, and what they rest on."""
    errors = {
        "E(SCF)": (found.scf_error, found.scf_uncertainty),
        "E(corr)": (found.correlation_error, found.correlation_uncertainty),
    }
    facts = [
        (
            f"fitting error of {name}, measured",
            f"{difference(error)} Eh, sure to {size(uncertainty or 0.0)} Eh",
        )
        for name, (error, uncertainty) in errors.items()
        if error is not None
    ]
    if found.sampled_orbitals < found.orbitals:
        drawn = f", drawn at random (seed {found.seed})"
    else:
        drawn = ""
    rest = (
        f"four-centre integrals of {found.sampled_orbitals} of {found.orbitals} occupied "
        f"orbitals{drawn}"
    )
    return [*facts, ("", rest)]


# --- cost -----------------------------------------------------------------------------------------


def _cost(result: MP2Result) -> Section:
    spent, predicted = asdict(result.timings), asdict(result.predicted)
    derived = (
        "derived from" in result.frozen_core_note
    )  # a derived result keeps the times of its original run
    work = {} if derived else operations(result)
    rows: list[tuple[str, ...]] = []
    stages = STAGES | {name: title for name, title in AFTER.items() if spent[name]}
    for name, title in stages.items():
        count, seconds = work.get(name, 0), spent[name]
        if not count or not seconds >= SHORTEST:
            rate = None
        else:
            rate = count / seconds / 1e9
        done = f"{count / 1e9:.3g}" if count else ""
        speed = fixed(rate, 3 if name == "integrals" else 1)
        rows.append((title, fixed(seconds), fixed(predicted[name]), done, speed))
    other = max(0.0, spent["total"] - sum(spent[name] for name in stages))
    rows += [("everything else", fixed(other), *[""] * 3)]
    rows += [("total", fixed(spent["total"]), fixed(predicted["total"]), *[""] * 2)]
    times = [*(spent[name] for name in stages), other]
    drawn = [
        Bar(row[0], (seconds,), f"{row[1]} s") for row, seconds in zip(rows, times, strict=False)
    ]
    heads = ("stage", "#time / s", "#predicted", "#10^9 ops", "#10^9/s")
    facts = [("threads", str(result.provenance.threads))]
    facts += record_facts(result.memory)
    for record, start in (
        (result.storage, "storage: "),
        (result.ranks, "ranks: "),
        (result.preparation, "prepared: "),
    ):
        facts += [] if record is None else record_facts(record, start)
    blocks: list[Block] = [
        Figure(partial(bars, "Wall time per stage", drawn), "Wall time per stage."),
        Facts(facts),
        Table(
            "Wall time; operations of products, number of integrals, and their rates",
            heads,
            rows,
        ),
    ]
    return Section("cost", "Time and memory", blocks)


def operations(result: MP2Result) -> dict[str, int]:
    """Operations of the stages that are matrix products, and the number of three-centre integrals.

    A multiplication and an addition count as two. Those of the SCF are of its fit, of J and of K; 0
    where not known.
    """
    sizes, certificate = result.sizes, result.certificate
    # A mixed pass whose result was not accepted was followed by one in float64: both were done.
    passes = [] if certificate is None else ["mixed"]
    if certificate is None or certificate.repeated_in_fp64:
        passes.append("fp64")
    occupied = np.count_nonzero(result.reference.mo_occ, axis=1).tolist()
    spins = tuple(Spin(*numbers) for numbers in zip(occupied, sizes.nocc, sizes.nvir, strict=False))
    done = [
        Workload(sizes.nao, sizes.naux_scf, sizes.naux, spins, precision, 0).flops()
        for precision in passes
    ]
    pairs = sum(flops["pairs_fp64"] + flops["pairs_mixed"] for flops in done)
    if result.quadrature is not None:
        rows = sum(spin.nocc * spin.nvir for spin in spins)
        pairs = result.quadrature.points * rows * sizes.naux**2
    if result.reference.xc is None:
        made = result.reference.operations
    else:
        made = None
    integrals = sizes.naux * sizes.nao * (sizes.nao + 1) // 2
    return {
        "scf": 0 if made is None else int(made.sum()),
        "integrals": integrals,
        "transform": done[0]["transform"],
        "fit": done[0]["fit"],
        "pair_energies": pairs,
    }


# --- provenance -----------------------------------------------------------------------------------


def _provenance(result: MP2Result, content: str) -> Section:
    run, text = result.provenance, result.molecule.text
    facts = [
        *record_facts(run, leave=("command",)),
        ("content of the file", f"SHA-256 {content}, verified"),
    ]
    given = asdict(result.options).items()
    options = [(f"--{name.replace('_', '-')}", value) for name, value in given if value is not None]
    blocks: list[Block] = [
        Code("Command", without_folders(run.command)),
        Facts(facts),
        Table(
            "Options in force (those not listed were left to their default)",
            ("option", "value"),
            options,
            verbatim=True,
        ),
    ]
    if text:
        digest = hashlib.sha256(text.encode("utf-8", "surrogateescape")).hexdigest()
        if len(text) > LONGEST_INPUT:
            cut = f"; the first {LONGEST_INPUT} of {len(text)} characters"
        else:
            cut = ""
        blocks.append(
            Code(
                f"Input, SHA-256 {digest}{cut}", text[:LONGEST_INPUT], folded=text.count("\n") > 12
            )
        )
    else:
        blocks.append("The molecule was given as numbers: there is no input text.")
    return Section("provenance", "Command and environment", blocks)
