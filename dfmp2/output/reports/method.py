"""Reports on the method and its basis sets."""

from __future__ import annotations

from dfmp2.double_hybrids import DISPERSIONS
from dfmp2.molecule.basis import BasisSet
from dfmp2.molecule.molecule import Molecule
from dfmp2.mp2.dispersion import Dispersion
from dfmp2.mp2.result import Calculated, MP2Result
from dfmp2.output.document import (
    Block,
    Code,
    Facts,
    Section,
    Table,
)
from dfmp2.units import counted_text

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


def reference_name(result: Calculated) -> str:
    """The reference and the frozen orbitals, e.g. "DF-RHF, 1 frozen core orbital"."""
    return f"{_reference(result)}{_surroundings(result)}{_frozen(result)}"


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
        facts += _facts_of_set(role, basis, functions)
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


def _facts_of_set(role: str, basis: BasisSet, functions: int) -> list[tuple[str, str]]:
    """The names of a set, and the core potentials that belong to it."""
    first, *others = basis.describe()
    facts = [(role, f"{first}, {functions} spherical functions")]
    facts += [(role, line) for line in others]
    for symbol, element in basis.elements.items():
        if element.ecp is not None:
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
            total = None
        else:
            total = basis.error_of(basis.real_keys(molecule))
        if basis is not None and total is not None:
            each = ", ".join(
                f"{symbol} {signed_energy(error)}" for symbol, error in basis.errors.items()
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
