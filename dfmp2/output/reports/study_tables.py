"""The numbers and the table of a study."""

from __future__ import annotations

import re
from collections.abc import Mapping, Sequence

from dfmp2.molecule.molecule import Molecule
from dfmp2.molecule.structure import structure
from dfmp2.mp2.result import SUMMANDS
from dfmp2.output.document import (
    WIDEST,
    Block,
    Table,
    fitted_width,
    fixed,
    number_text,
)
from dfmp2.output.hdf5_datasets import Dataset
from dfmp2.output.study import Column, Study
from dfmp2.units import (
    ANGSTROM_PER_BOHR,
    KCAL_PER_MOL_PER_HARTREE,
    KJ_PER_KCAL,
    KJ_PER_MOL_PER_HARTREE,
)

HEADINGS = {  # headings of study columns with long names
    "scf_total_energy": "E(SCF)",
    "mp2_same_spin_correlation_energy": "E(SS)",
    "mp2_opposite_spin_correlation_energy": "E(OS)",
    "mp2_correlation_energy": "E(corr)",
    "mp2_total_energy": "E(MP2)",
    "relative_energy": "E - lowest",
    "relative_energy_error": "+-",
    "forward_energy": "E(forward)",
    "backward_energy": "E(backward)",
    "homo_lumo_gap": "gap",
    "scf_iterations": "cycles",
    "imaginary_modes": "imag. modes",
    "exit_code": "code",
    "hf_total_energy": "E(EXX)",
    "functional_energy": "E(DFT)",
    "correlation_energy": "E(corr)",
    "dispersion_energy": "E(disp)",
    "total_energy": "E",
    "cp_corrected_interaction_energy": "E(CP)",
    "uncorrected_interaction_energy": "E(no CP)",
    "scf_cp_corrected_interaction_energy": "SCF, CP",
    "scf_uncorrected_interaction_energy": "SCF, no CP",
    "correlation_cp_corrected_interaction_energy": "corr, CP",
    "correlation_uncorrected_interaction_energy": "corr, no CP",
    "functional_cp_corrected_interaction_energy": "DFT, CP",
    "functional_uncorrected_interaction_energy": "DFT, no CP",
    "exx_cp_corrected_interaction_energy": "EXX, CP",
    "exx_uncorrected_interaction_energy": "EXX, no CP",
    "dispersion_cp_corrected_interaction_energy": "disp, CP",
    "dispersion_uncorrected_interaction_energy": "disp, no CP",
    "delta_cp_corrected_interaction_energy": "delta, CP",
    "delta_uncorrected_interaction_energy": "delta, no CP",
    "delta_correction": "delta",
    "ir_intensity": "IR intensity",
    "rms_displacement": "rms moved",
    "max_displacement": "max moved",
    "enthalpy_correction": "H - E",
    "gibbs_energy_correction": "G - E",
    "gibbs_energy": "G",
    "heat_capacity": "Cp",
    "entropy": "S",
    "entropy_translation": "S trans",
    "entropy_rotation": "S rot",
    "entropy_vibration": "S vib",
    "entropy_electrons": "S el",
}
OF_EACH_BASIS = (*SUMMANDS, "total_energy")
# The correlation energy of plain MP2; beside that of another method, the sum of its components
UNSCALED = "mp2_correlation_energy"
# Columns of a scan on a terminal, the most important first; as many as fit are shown.
OF_A_POINT = (
    "relative_energy",
    "relative_energy_error",
    "total_energy",
    "scf_total_energy",
    "homo_lumo_gap",
    "correlation_energy",
    "scf_iterations",
)
# Values that a screen leaves out: components, other scalings, what is printed elsewhere
LEFT_TO_SHOW = re.compile(
    r"(?:^|_)mp2_|precision_error|^temperature$|^pressure$"
    r"|^internal_energy|^total_energy_at_0_kelvin|at_constant_volume|^energy_change$|^lowest_"
)
# Of a species, and of a gas at several conditions
OF_A_SPECIES = (
    "total_energy",
    "enthalpy",
    "gibbs_energy",
    "entropy",
    "formula",
    "charge",
    "multiplicity",
)
OF_A_GAS = ("gibbs_energy", "enthalpy_correction", "gibbs_energy_correction", "entropy")
CP_CORRECTED = "cp_corrected_interaction_energy"  # end of a name
MOTIONS = ("_translation", "_rotation", "_vibration", "_electrons")  # ends of the names of shares
# End of a name -> unit of the same energy
CONVERTED = {"_kj_per_mol": "kJ/mol", "_kcal_per_mol": "kcal/mol"}
DECIMAL = re.compile(r"-?\d+(?:\.\d+)?")
DIGITS = {  # decimals, by unit or by column name
    "rms_displacement": ".6f",
    "max_displacement": ".6f",
    "hartree": ".10f",
    "kJ/mol": ".4f",
    "kcal/mol": ".4f",
    "hartree/bohr": ".7f",
    "cm^-1": ".1f",
    "km/mol": ".2f",
    "u": ".4f",
    "mdyn/A": ".4f",
    "mdyn/angstrom": ".4f",
    "J/(mol K)": ".3f",
    "sqrt(u) bohr": ".4f",
    "homo_lumo_gap": ".6f",
}


def motion_shares(study: Study) -> list[Block]:
    """Table of the contribution of each motion to the thermochemistry, without the total energy."""
    values = {name: item.value for name, item in study.values.items()}
    if f"entropy{MOTIONS[0]}" not in values:
        return []
    rows = []
    for motion in MOTIONS:
        energies = []
        for name in ("internal_energy", "enthalpy"):
            share = values[f"{name}{motion}"]
            if motion == "_electrons":
                share -= values["total_energy"]
            energies.append(f"{share * KJ_PER_MOL_PER_HARTREE:z.4f}")
        entropy = f"{values[f'entropy{motion}']:z.3f}"
        capacity = f"{values[f'heat_capacity_at_constant_volume{motion}']:z.3f}"
        rows.append((motion.lstrip("_"), *energies, entropy, capacity))
    heads = ("share of", "#U - E / kJ/mol", "#H - E / kJ/mol", "#S / J/(mol K)", "#Cv / J/(mol K)")
    return [Table("Translation, rotation, vibration, electrons", heads, rows)]


def positions_table(study: Study) -> Table:
    """The last geometry of an optimisation."""
    molecule = study.last
    places = molecule.coordinates * ANGSTROM_PER_BOHR
    rows = [
        (name, *(f"{x:z.6f}" for x in place))
        for name, place in zip(_atom_names(molecule), places, strict=True)
    ]
    return Table("Last geometry / angstrom", ("atom", "#x", "#y", "#z"), rows, folded=True)


def bonds_and_angles(study: Study) -> Table:
    """The bonds, contacts and angles of the last geometry of an optimisation."""
    names = _atom_names(study.last)
    shape = structure(study.last)
    rows = []
    for kind, lengths in (("bond", shape.bonds), ("contact", shape.contacts)):
        for (i, j), length in lengths:
            rows.append((f"{names[i]}-{names[j]}", kind, f"{length:.5f}", "angstrom"))
    for (i, j, k), angle in shape.angles:
        rows.append((f"{names[i]}-{names[j]}-{names[k]}", "angle", f"{angle:.3f}", "degrees"))
    heads = ("atoms", "kind", "#value", "unit")
    return Table("Bonds, contacts and angles", heads, rows, folded=True)


def _atom_names(molecule: Molecule) -> list[str]:
    """The atoms by symbol and number, such as "O1"."""
    return [f"{symbol}{atom}" for atom, symbol in enumerate(molecule.symbols, start=1)]


def extrema_tables(study: Study) -> list[Block]:
    """Tables of the minima and maxima of a scan, and of the barriers between them."""
    arrays = {name: item.value for name, item in study.arrays.items()}
    if "extrema_position" not in arrays:
        return []
    units = study.settings["units"]
    lowest = arrays["extrema_energy"].min()
    kinds = ["minimum" if bend > 0 else "maximum" for bend in arrays["extrema_curvature"]]
    fits = {3: "parabola", 5: "quartic"}
    rows = [
        (
            kind,
            f"{arrays['extrema_position'][k]:.6g}",
            f"{arrays['extrema_energy'][k]:.10f}",
            f"{(arrays['extrema_energy'][k] - lowest) * KJ_PER_MOL_PER_HARTREE:.4f}",
            f"{arrays['extrema_curvature'][k]:.4e}",
            fits[int(arrays["extrema_points"][k])],
        )
        for k, kind in enumerate(kinds)
    ]
    heads = (
        "extremum",
        f"#at / {units}",
        "#E / Eh",
        "#relative / kJ/mol",
        f"#curvature / Eh/{units}^2",
        "fit",
    )
    tables: list[Block] = [Table("Minima and maxima", heads, rows)]
    if "barrier_position" in arrays:
        columns = [
            [f"{x:.6g}" for x in arrays[f"barrier_{name}"]] for name in ("from", "position", "to")
        ]
        for name in ("forward", "backward"):
            heights = arrays[f"barrier_{name}"]
            columns.append([f"{x:.4f}" for x in heights])
            columns.append([f"{x / KJ_PER_KCAL:.4f}" for x in heights])
        ends = (
            f"#from minimum / {units}",
            f"#over maximum / {units}",
            f"#to minimum / {units}",
            "#forward / kJ/mol",
            "#kcal/mol",
            "#backward / kJ/mol",
            "#kcal/mol",
        )
        tables.append(Table("Barriers", ends, list(zip(*columns, strict=True))))
    return tables


def values_on_a_screen(study: Study) -> list[Block]:
    """The numbers of a study without spin components and other scalings.

    Those of a scan stand among its extrema, those of an interaction side by side, and those of a
    gas under its conditions, in a row for each where there are several.
    """
    if "extrema_position" in study.arrays:
        return []
    if study.kind == "thermochemistry" and len(study.table["temperature"].values) > 1:
        return [conditions_table(study)]
    values = study.values
    if CP_CORRECTED in values:
        return [_interaction(values)]
    values = {name: item for name, item in values.items() if not LEFT_TO_SHOW.search(name)}
    if not values:
        return []
    table = values_table(values)
    if "gibbs_energy" in values:
        gas = [f"{study.values[name].value:.8g}" for name in ("temperature", "pressure")]
        table = table._replace(caption=f"Ideal gas at {gas[0]} K and {gas[1]} Pa")
    return [table]


def _interaction(values: Mapping[str, Dataset]) -> Table:
    """The parts of an interaction energy, with and without counterpoise correction."""
    rows = []
    for name, item in values.items():
        part = name.removesuffix(CP_CORRECTED)
        plain = f"{part.removeprefix('mp2_')}{CP_CORRECTED}"
        if part == name or (plain != name and plain in values) or LEFT_TO_SHOW.search(name):
            continue
        corrected = item.value
        uncorrected = values[f"{part}uncorrected_interaction_energy"].value
        in_kilojoules = [
            fixed(energy * KJ_PER_MOL_PER_HARTREE, 4)
            for energy in (corrected, uncorrected, corrected - uncorrected)
        ]
        kilocalories = fixed(corrected * KCAL_PER_MOL_PER_HARTREE, 4)
        words = part.rstrip("_").replace("_", " ") or "interaction energy"
        rows.append((words, cell(corrected, "hartree"), kilocalories, *in_kilojoules))
    heads = (
        "quantity",
        "#CP-corrected / Eh",
        "#kcal/mol",
        "#kJ/mol",
        "#uncorrected / kJ/mol",
        "#CP correction / kJ/mol",
    )
    return Table("", heads, rows)


def values_table(values: Mapping[str, Dataset]) -> Table:
    """The numbers of a study; an energy in several units, or a plain MP2 energy under its two
    names, is a single row."""
    ends = [end for end in CONVERTED if any(name.endswith(end) for name in values)]
    rows = []
    for name, item in values.items():
        if name.endswith(MOTIONS):
            continue
        same = values.get(name.replace("mp2_", "", 1))
        if not name.endswith(tuple(ends)) and (
            same is None or same is item or same.value != item.value
        ):
            others = (values.get(f"{name}{end}") for end in ends)
            said = ("" if other is None else cell(other.value, other.units) for other in others)
            unit = item.units.replace("hartree", "Eh")
            rows.append(
                (
                    name.replace("_", " "),
                    cell(item.value, item.units),
                    unit,
                    *said,
                    item.description,
                )
            )
    return Table(
        "",
        ("quantity", "#value", "unit", *(f"#{CONVERTED[end]}" for end in ends), "~meaning"),
        rows,
    )


def study_table(columns: Mapping[str, Column], *, folded: bool) -> Table:
    """The table of a study; one of vibrations marks imaginary modes."""
    heads = []
    cells = []
    for name, column in columns.items():
        heading = _heading(name)
        if name == UNSCALED and "correlation_energy" in columns:
            heading = "E(SS+OS)"
        heads.append(_column_head(heading, column))
        cells.append(_column_cells(name, column))
    if "wavenumber" in columns:
        wavenumbers = columns["wavenumber"].values
        if min(wavenumbers, default=0.0) < 0:
            heads.append("kind")
            cells.append(["imaginary" if value < 0 else "real" for value in wavenumbers])
    rows = list(zip(*cells, strict=True))
    return Table("Values" if folded else "", heads, rows, sortable=True, folded=folded)


def _column_cells(name: str, column: Column) -> list[str]:
    """The values of a column; all coordinates or temperatures get as many decimals as the
    longest."""
    texts = [cell(value, column.units, name) for value in column.values]
    if not {name, column.units}.isdisjoint(DIGITS) or not all(map(DECIMAL.fullmatch, texts)):
        return texts
    decimals = max(len(text.partition(".")[2]) for text in texts)
    return [fixed(float(value), decimals) for value in column.values]


def _column_head(heading: str, column: Column) -> str:
    """Heading and unit of a column, with the prefix "#" if it holds numbers."""
    sign = "#"
    if all(isinstance(value, str) for value in column.values):
        sign = ""
    unit = ""
    if column.units:
        unit = f" / {column.units.replace('hartree', 'Eh')}"
    return f"{sign}{heading}{unit}"


def scan_points(study: Study) -> Table:
    """The points of a scan in one table as wide as a terminal."""
    table = study.table
    points = columns_that_fit(
        table, study.coordinates, [_of_method(table, name) for name in OF_A_POINT]
    )
    titles = {run.options.correlation.title for run in study.runs.values()}
    if len(titles) != 1:
        return points
    total = f"#E({titles.pop()}) / Eh"
    return points._replace(heads=[{"#E / Eh": total}.get(head, head) for head in points.heads])


def species_table(study: Study) -> Table:
    """The species of a reaction in one table as wide as a terminal."""
    table = study.table
    wanted = ["species", "coefficient"]
    if "imaginary_modes" in table and any(table["imaginary_modes"].values):
        wanted.append("imaginary_modes")
    return columns_that_fit(table, wanted, OF_A_SPECIES)


def conditions_table(study: Study) -> Table:
    """The thermochemistry at each temperature and pressure in one table as wide as a terminal."""
    energy = cell(study.values["total_energy"].value, "hartree")
    zero_point = cell(study.values["zero_point_energy"].value, "hartree")
    table = columns_that_fit(study.table, ["temperature", "pressure"], OF_A_GAS)
    return table._replace(caption=f"E = {energy} Eh, zero-point energy {zero_point} Eh")


def has_other_wavenumbers(study: Study) -> bool:
    """Whether a thermochemistry is not of the stored wavenumbers: scaled, or of other isotopes."""
    return bool(study.settings["isotopes"]) or study.settings["scale_factor"] != 1.0


def basis_set_table(study: Study) -> Table:
    """The energies of each basis set without spin components; those of the limit are among the
    values."""
    components = ("same_spin", "opposite_spin")
    columns = {
        name: column
        for name, column in study.table.items()
        if not any(component in name for component in components)
    }
    table = study_table(columns, folded=False)
    return table._replace(rows=[row for row in table.rows if not row[0].startswith("limit ")])


def _of_method(table: Mapping[str, Column], name: str) -> str:
    """The column of an energy of the method, which plain MP2 has only under the name of MP2."""
    if name not in table and f"mp2_{name}" in table:
        return f"mp2_{name}"
    return name


def columns_that_fit(
    table: Mapping[str, Column], first: Sequence[str], others: Sequence[str]
) -> Table:
    """The first columns, and of the others, what matters most first, as many as fit a terminal."""
    wanted = list(first)
    for name in others:
        if name in table and fitted_width(_some_columns(table, [*wanted, name])) <= WIDEST:
            wanted.append(name)
    return _some_columns(table, wanted)


def _some_columns(table: Mapping[str, Column], names: Sequence[str]) -> Table:
    """Some columns of a table, with the status of each point of a scan if one has failed."""
    some = study_table({name: table[name] for name in names}, folded=False)
    if "exit_code" not in table or not any(table["exit_code"].values):
        return some
    rows = []
    for row, code in zip(some.rows, table["exit_code"].values, strict=True):
        outcome = f"failed with code {code:g}" if code else ""
        rows.append((*row, outcome))
    return some._replace(heads=[*some.heads, "outcome"], rows=rows)


def _heading(name: str) -> str:
    """The heading of a column; if it belongs to one basis set, it ends with that name."""
    for energy in OF_EACH_BASIS:
        basis = name.removeprefix(f"{energy}_")
        if basis != name:
            return f"{HEADINGS[energy]} {basis}"
    return HEADINGS.get(name, name.replace("_", " "))


def cell(value: str | float, units: str, name: str = "") -> str:
    """A value of a study, with the number of decimals set by its unit or name."""
    if isinstance(value, str):
        return value
    if 0 < abs(value) < 1e-6 and units.startswith("hartree"):
        form = ".1e"
    else:
        form = DIGITS.get(name, DIGITS.get(units, ".8g"))
    return number_text(value, form)
