"""Reports on what is known before the pair energies: the molecule and its surroundings, the method
and its basis sets, the mean field."""

from __future__ import annotations

import math
from collections.abc import Collection
from functools import partial
from pathlib import Path
from textwrap import shorten

from dfmp2.double_hybrids import DISPERSIONS
from dfmp2.molecule.basis import BasisSet
from dfmp2.molecule.molecule import Molecule
from dfmp2.mp2.diagnostics import pure_spin_square
from dfmp2.mp2.dispersion import Dispersion
from dfmp2.mp2.error_estimates import kohn_sham_grid_error
from dfmp2.mp2.result import Calculated, MP2Result
from dfmp2.output.document import (
    Block,
    Code,
    Facts,
    Figure,
    Note,
    Section,
    Table,
    difference,
    energy_text,
    fixed,
    size,
)
from dfmp2.output.drawings.molecule import draw_molecule
from dfmp2.output.drawings.plots import Curve, curves
from dfmp2.output.json import describe_field
from dfmp2.output.reports import FITTING, LABELS, OF_CORRELATION, record_facts
from dfmp2.scf.reference import GIVEN, Reference, Solutions
from dfmp2.units import ANGSTROM_PER_BOHR, counted_text

OF_FITTED_MP2 = "Feyereisen, Fitzgerald, Komornicki, Chem. Phys. Lett. 208, 359 (1993)"
OF_PYSCF = "PySCF: J. Chem. Phys. 153, 024109 (2020)"
OF_LIBXC = "libxc: SoftwareX 7, 1 (2018)"
RELATIVITY = {"none": "none", "x2c": "spin-free one-electron X2C"}


def heading(result: Calculated) -> str:
    """The kind of method that a report is about."""
    correlation = result.options.correlation
    if correlation.kind == "none":
        return "Kohn-Sham"
    if correlation.kind == "rpa":
        return "density-fitted dRPA"
    if correlation.double_hybrid:
        return "double hybrid, density-fitted"
    return "density-fitted MP2"


def citations(result: Calculated) -> str:
    """The papers to cite for every calculation of this kind."""
    papers = []
    if result.options.correlation.kind != "none":
        papers.append(OF_FITTED_MP2)
    papers.append(OF_PYSCF)
    if result.reference.xc is not None:
        papers.append(OF_LIBXC)
    return "; ".join(papers)


def method_name(result: Calculated) -> str:
    """The method as written in a paper, e.g. "DF-MP2/cc-pvdz on DF-RHF, 1 frozen core orbital"."""
    return f"{method_on_reference(result)}{_frozen(result)}"


def method_on_reference(result: Calculated) -> str:
    """The method and its reference, e.g. "DF-MP2/cc-pvdz on DF-RHF"; or, without MP2,
    "DF-RKS(pbe0)/cc-pvdz"."""
    reference, surroundings = _reference(result), _surroundings(result)
    if result.options.correlation.kind == "none":
        return f"{reference}/{result.orbital_basis.name}{surroundings}"
    level = f"{result.options.correlation.level}/{result.orbital_basis.name}"
    return f"{level} on {reference}{surroundings}"


def references_of(runs: Collection[Calculated]) -> str:
    """The references of runs and their frozen orbitals, e.g. "DF-RHF, 1 frozen core orbital"; where
    numbers differ, the option that they follow, e.g. "DF-RHF and DF-UHF, --frozen-core auto"."""
    references = sorted({f"{_reference(run)}{_surroundings(run)}" for run in runs})
    frozen = {_frozen(run) for run in runs}
    if len(frozen) > 1:
        frozen = {f", --frozen-core {run.options.frozen_core}" for run in runs}
    if len(frozen) > 1:
        frozen = set()
    return f"{' and '.join(references)}{''.join(frozen)}"


def _reference(result: Calculated) -> str:
    relativistic = "X2C-" if result.options.relativity == "x2c" else ""
    fitted = "DF-" if result.reference.scf_type == "df" else ""
    return f"{relativistic}{fitted}{reference_title(result)}"


def _surroundings(result: Calculated) -> str:
    if result.options.solvent is None:
        return ""
    return f" in {result.options.solvent_title}"


def _frozen(result: Calculated) -> str:
    """What is correlated, behind a comma; "" without a correlation energy."""
    if result.options.correlation.kind == "none":
        return ""
    core, virtual = result.sizes.frozen_core, result.sizes.frozen_virtual
    frozen = ", all electrons correlated"
    if core:
        frozen = f", {counted_text(core, 'frozen core orbital')}"
    if virtual:
        frozen += f", {counted_text(virtual, 'frozen virtual orbital')}"
    return frozen


def asked_for(result: MP2Result) -> tuple[str, str]:
    """The method as requested, without what follows from the molecule."""
    return (
        result.level,
        f"reference {result.options.reference}, frozen core {result.options.frozen_core}",
    )


def method_section(result: Calculated) -> Section:
    sizes, options = result.sizes, result.options
    bases = {
        "orbital": (result.orbital_basis, sizes.nao),
        "SCF fitting": (result.scf_fitting, sizes.naux_scf),
        "MP2 fitting": (result.mp2_fitting, sizes.naux),
    }
    facts: list[tuple[str, str]] = []
    exponents: list[str] = []
    hashes: list[tuple[str, str, str]] = []
    for role, (basis, functions) in bases.items():
        if basis is None:
            facts.append((role, "none: conventional four-centre integrals"))
            continue
        if not basis.elements:
            facts.append((role, "none: a functional alone has no second-order energy"))
            continue
        facts += _facts_of_set(result.molecule, role, basis, functions)
        exponents += _even_tempered(basis)
        hashes += [(role, symbol, one.sha256) for symbol, one in basis.elements.items()]
    between = result.reference.interatomic_fitting_error
    lines = [
        *fitting_errors(result.molecule, result.scf_fitting, result.mp2_fitting, between),
        result.frozen_core_note,
    ]
    facts += [("", line) for line in lines if line]
    if options.correlation.kind != "none":
        core = counted_text(sizes.frozen_core, "orbital")
        facts.append(("frozen core", f"{core} per spin (--frozen-core {options.frozen_core})"))
    blocks: list[Block] = [
        f"{method_name(result)}. Cite: {citations(result)}.",
        Facts(facts),
    ]
    if exponents:
        blocks.append(Code("Even-tempered fitting functions", "\n".join(exponents), folded=True))
    blocks += [
        _orbital_classes(result),
        Table(
            "SHA-256 of exponents and coefficients",
            ("basis", "element", "SHA-256"),
            hashes,
            details=True,
        ),
    ]
    return Section("method", "Method and basis sets", blocks)


def _facts_of_set(
    molecule: Molecule, role: str, basis: BasisSet, functions: int
) -> list[tuple[str, str]]:
    """The names of a set, and the core potentials of atoms that are not ghosts."""
    first, *others = basis.describe()
    facts = [(role, f"{first}, {functions} spherical functions")]
    facts += [(role, line) for line in others]
    real = basis.real_keys(molecule)
    for symbol, element in basis.elements.items():
        if element.ecp is not None and symbol in real:
            core = f"core potential for {element.ecp_electrons} electrons ({element.ecp_source})"
            facts.append((f"{role}, {symbol}", core))
    return facts


def _even_tempered(basis: BasisSet) -> list[str]:
    """A line for each function of a set made from the orbital exponents."""
    return [
        f"{symbol} l={shell[0]} exponent {shell[1][0]:.10g} bohr^-2"
        for symbol, element in basis.elements.items()
        if "even-tempered" in element.source
        for shell in element.shells
    ]


def _orbital_classes(result: Calculated) -> Table:
    """Numbers of frozen, correlated and virtual orbitals of each spin."""
    sizes = result.sizes
    if result.reference.nspin == 1:
        spins = ["all"]
    else:
        spins = ["alpha", "beta"]
    if result.options.correlation.kind == "none":
        rows = zip(spins, sizes.nocc, sizes.nvir, [sizes.nmo] * len(spins), strict=False)
        return Table("Orbitals", ("spin", "#occupied", "#virtual", "#all"), list(rows))
    classes = [
        (spin, core, nocc, nvir, sizes.frozen_virtual, sizes.nmo)
        for spin, core, nocc, nvir in zip(
            spins, core_orbitals(result), sizes.nocc, sizes.nvir, strict=False
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
    return Table("Orbitals", heads, classes)


def fitting_errors(
    molecule: Molecule,
    scf_fitting: BasisSet | None,
    mp2_fitting: BasisSet,
    between: float | None = None,
) -> list[str]:
    """A line for each fitting set whose error was measured on the atoms, and the SCF error between
    them, Eh."""
    lines = []
    for name, basis in (("SCF", scf_fitting), ("MP2", mp2_fitting)):
        if basis is None:
            continue
        real = basis.real_keys(molecule)
        total = basis.error_of(real)
        if total is not None:
            each = ", ".join(
                f"{symbol} {signed_energy(error)}"
                for symbol, error in basis.errors.items()
                if symbol in real
            )
            if name == "SCF" and between is not None:
                more = f"; between them {signed_energy(between)} Eh"
            else:
                more = ""
            lines.append(
                f"{name} fitting error of the atoms {signed_energy(total)} Eh (each {each}){more}"
            )
    return lines


def signed_energy(value: float) -> str:
    """A signed number of which only the magnitude matters; an exact zero is 0."""
    return f"{value:+.1e}" if value else "0"


def core_orbitals(result: Calculated) -> list[int]:
    """Frozen core orbitals of each spin; a spin with fewer electrons than the core freezes all of
    them."""
    sizes = result.sizes
    return [
        sizes.nmo - o - v - sizes.frozen_virtual
        for o, v in zip(sizes.nocc, sizes.nvir, strict=True)
    ]


LONGEST_TITLE = 40  # characters of a reference with its functional in a table


def reference_title(result: Calculated) -> str:
    """Kind of orbitals and their functional; a double hybrid is given by its name."""
    reference = result.reference
    row = result.options.double_hybrid
    if row is not None:
        return f"{reference.name.upper()} of {row.title}"
    if len(reference.title) > LONGEST_TITLE:
        return reference.name.upper()  # its functional has its own section
    return reference.title


def damping_name(dispersion: Dispersion) -> str:
    """Name and parameters of a dispersion correction."""
    return (
        f"{DISPERSIONS[dispersion.correction]} of {dispersion.program} for "
        f"{dispersion.functional}: s6 {dispersion.s6:g}, s8 {dispersion.s8:g}, s9 "
        f"{dispersion.s9:g}, a1 {dispersion.a1:g}, a2 {dispersion.a2:g} bohr; doi {dispersion.doi}"
    )


ITERATION = ("#iteration", "#E(SCF) / Eh", "#change / Eh", "#orbital gradient / Eh")


def reference_section(result: Calculated) -> Section:
    reference, stability = result.reference, result.reference.stability
    facts = dict(record_facts(reference, leave=("grid_level", *_among_energies(result)))) | {
        LABELS["kind"]: reference.name,
        "relativity": RELATIVITY[result.options.relativity],
    }
    name, spin = spin_fact(result)
    facts[name] = spin
    facts |= _grid_facts(result)
    if stability is None:
        examined = [("orbital stability", "not examined")]
    else:
        examined = record_facts(stability)
    left_out: tuple[str, ...] = FITTING
    if result.options.correlation.kind == "none":
        left_out = (*FITTING, *OF_CORRELATION)
    blocks: list[Block] = [
        Facts([*facts.items(), *examined, *record_facts(result.diagnostics, leave=left_out)])
    ]
    blocks.append(_iterations(reference))
    if reference.solutions is not None and len(reference.solutions.energy) > 1:
        blocks.append(_solutions(reference.solutions))
    name = "Hartree-Fock" if reference.xc is None else "Kohn-Sham"
    return Section("reference", f"{name} reference", blocks)


def spin_fact(result: Calculated) -> tuple[str, str]:
    """<S^2> of the reference, with the value of a pure spin state."""
    pure = pure_spin_square(result.molecule.multiplicity)
    (name, value) = next(
        fact for fact in record_facts(result.reference) if fact[0] == LABELS["spin_square"]
    )
    return name, f"{value} (pure spin state: {pure:.2f})"


def _among_energies(result: Calculated) -> list[str]:
    """The fields of the reference that `energy_rows` already shows."""
    if not isinstance(result, MP2Result):
        return []
    names = [
        "scf_total_energy",
        "nuclear_repulsion_energy",
        "functional_energy",
        "solvent_energy",
        "smd_cds_energy",
    ]
    if result.mean_field_name == "hf_total_energy":
        names.append("exx_total_energy")
    return names


def _grid_facts(result: Calculated) -> dict[str, str]:
    """Measured grid error of E(KS), which is not among the energies of the error budget."""
    found = result.reference.grid_error
    error = kohn_sham_grid_error(result.reference, len(result.molecule.real_symbols))
    if found is None or error is None or error.value is None:
        return {}
    return {
        "finer grid": f"{found.finer}, {found.finer_points} points",
        "grid error of "
        "E(KS)": f"{signed_energy(found.scf_error)} Eh, at most about {size(error.value)} Eh",
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
    heads = (
        "#start",
        "start orbitals",
        "#E(SCF)",
        "#<S^2>",
        "#lowest eigenvalue",
        "kind",
        "chosen",
    )
    return Table("SCF solutions in the order in which they were found, Eh", heads, rows)


def _iterations(reference: Reference) -> Block:
    """Table of energy and gradient by SCF iteration."""
    if reference.history is None or not len(reference.history) or reference.ladder == GIVEN:
        return Note(
            "info",
            "The iterations of this SCF are not recorded: it was done elsewhere, or needed none.",
        )
    found = [(n, *row) for n, row in enumerate(reference.history.tolist(), start=1)]
    drawn = [
        Curve("orbital gradient", [(n, math.log10(g)) for n, _, _, g in found if g > 0]),
        Curve("change of the energy", [(n, math.log10(abs(c))) for n, _, c, _ in found if c]),
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


LONGEST_GEOMETRY = 200  # atoms


def point_charge_line(molecule: Molecule, basis: BasisSet) -> str:
    """The point charges around a molecule in one line, "" if there are none."""
    charges = describe_field(molecule, basis)
    if charges is None:
        return ""
    count = counted_text(int(charges["count"]), "point charge")
    return (
        f"{count}, {charges['total_charge']:+.6f} e in all; {charges['nuclear_energy']:.10f} Eh "
        "with the nuclei, contained in their repulsion; their energy among themselves is left out"
    )


def molecule_section(result: Calculated) -> Section:
    molecule = result.molecule
    facts = [
        ("name", molecule.name),
        *([("comment", comment)] if (comment := _comment(molecule.text)) else []),
        ("formula", molecule.formula),
        ("charge", molecule.charge),
        ("multiplicity", molecule.multiplicity),
        ("explicit electrons", result.sizes.nelectron),
        ("read from", Path(molecule.source).name or "python"),
        *_field_or_solvent(result),
    ]
    places = zip(
        molecule.labels[:LONGEST_GEOMETRY], molecule.coordinates * ANGSTROM_PER_BOHR, strict=False
    )
    rows = [
        (f"{k} {label}", *(f"{x:.8f}" for x in place))
        for k, (label, place) in enumerate(places, start=1)
    ]
    more = molecule.natom - len(rows)
    caption = "Geometry, angstrom"
    if more:
        caption = f"{caption}; the result file has {counted_text(more, 'more atom')}"
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


def _field_or_solvent(result: Calculated) -> list[tuple[str, str]]:
    """The surroundings of the molecule: point charges or a solvent; empty for an isolated one."""
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


def _comment(text: str) -> str:
    """The shortened comment of an xyz file; "" if there is none or the molecule has another
    source."""
    lines = text.splitlines()
    if len(lines) > 2 and lines[0].strip().isdigit():
        return shorten(lines[1], 200)
    return ""
