"""What is said about a study, and the table of several results, as text and on the page."""

from __future__ import annotations

import math
from collections.abc import Mapping, Sequence
from functools import partial
from types import MappingProxyType
from typing import TYPE_CHECKING

from dfmp2.molecule.structure import structure
from dfmp2.mp2.result import MP2Result
from dfmp2.output.document import (
    ABSENT,
    WIDEST,
    Block,
    Facts,
    Figure,
    Note,
    Section,
    Table,
    counted_text,
    fitted_width,
    fixed,
)
from dfmp2.output.html.svg import (
    BROADENING,
    Curve,
    Limit,
    convergence,
    curves,
    path_drawing,
    scan_drawing,
    spectrum,
)
from dfmp2.output.report import budget_blocks, energies, mean_field_sign, method_on_reference
from dfmp2.units import (
    ANGSTROM_PER_BOHR,
    KCAL_PER_MOL_PER_HARTREE,
    KJ_PER_KCAL,
    KJ_PER_MOL_PER_HARTREE,
)

if TYPE_CHECKING:
    from dfmp2.output.hdf5_datasets import Dataset
    from dfmp2.output.study import Column, Study

HEADINGS = {  # of the columns of a study whose name is long
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
    "exit_code": "code",
    "correlation_energy": "E(corr)",
    "total_energy": "E",
    "cp_corrected_interaction_energy": "E(CP)",
    "uncorrected_interaction_energy": "E(no CP)",
    "scf_cp_corrected_interaction_energy": "SCF, CP",
    "scf_uncorrected_interaction_energy": "SCF, no CP",
    "correlation_cp_corrected_interaction_energy": "corr, CP",
    "correlation_uncorrected_interaction_energy": "corr, no CP",
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
OF_EACH_BASIS = ("scf_total_energy", "correlation_energy", "total_energy")
# Of a scan on a terminal, what matters most first; as many as fit.
OF_A_POINT = (
    "relative_energy",
    "relative_energy_error",
    "total_energy",
    "scf_total_energy",
    "homo_lumo_gap",
    "correlation_energy",
    "scf_iterations",
)
# Studies whose table has the energies of their runs, or needs none of them.
WITH_ENERGIES = (
    "scan",
    "cbs",
    "optimization",
    "irc",
    "frequencies",
    "thermochemistry",
    "reaction",
)
CP_CORRECTED = "cp_corrected_interaction_energy"  # end of a name
MOST_NAMES = 3  # of runs that gave a warning
MOST_ROWS = 12  # of a table of the geometry on a screen
MOTIONS = ("_translation", "_rotation", "_vibration", "_electrons")  # ends of the names of shares
CONVERTED = {
    "_kj_per_mol": "kJ/mol",
    "_kcal_per_mol": "kcal/mol",
}  # end of a name -> unit of the same energy
DIGITS = {  # by the unit, or by the name of a column
    "rms_displacement": ".6f",
    "max_displacement": ".6f",
    "hartree": ".10f",
    "kJ/mol": ".4f",
    "kcal/mol": ".4f",
    "hartree/bohr": ".7f",
    "cm^-1": ".1f",
    "km/mol": ".2f",
    "u": ".4f",
    "mdyn/angstrom": ".4f",
    "J/(mol K)": ".3f",
    "sqrt(u) bohr": ".4f",
}


def overview(results: Mapping[str, MP2Result], anchors: Mapping[str, str]) -> Table:
    """A row for each result; `anchors` are those of the results that are shown in full.

    As text, what all of them share stands above the table.
    """
    rows = []
    for name, r in results.items():
        method, core = method_on_reference(r), r.sizes.frozen_core
        ended = r.reference.cycles, fixed(r.timings.total), f"{r.backend}, {r.precision}"
        rows.append(
            ((name, anchors.get(name, "")), r.molecule.formula, method, core, *energies(r), *ended)
        )
    signs = {mean_field_sign(r) for r in results.values()}
    mean_field = "mean field"
    if len(signs) == 1:
        mean_field = signs.pop()
    heads = [
        "result",
        "formula",
        "method",
        "#core",
        f"#{mean_field} / Eh",
        "#E(corr) / Eh",
        "#E(total) / Eh",
    ]
    alike = {
        k: str(rows[0][k])
        for k in (1, 2, 3)
        if len(rows) > 1 and len({row[k] for row in rows}) == 1
    }
    for k in alike:
        heads[k] = f"~{heads[k].lstrip('#')}"
    if 3 in alike:
        alike[3] = counted_text(int(alike[3]), "frozen core orbital")
    return Table(
        ", ".join(alike.values()), (*heads, "#cycles", "#time / s", "~backend"), rows, sortable=True
    )


def of_study(
    study: Study, anchors: Mapping[str, str] = MappingProxyType({}), *, brief: bool = False
) -> list[Section]:
    """What a study found, as stored, and its runs.

    Parameters
    ----------
    study : Study
    anchors : mapping
        As of `overview`.
    brief : bool, optional
        For a screen: what was asked for and how good it is. A scan is one table that fits; steps
        of an optimisation, points of a path, sources of error and runs are left to `dfmp2 show`.
    """
    missing = [Note("warning", "INCOMPLETE: not everything that was asked for has been run")]
    drawn = _drawn(study) if study.table else []
    blocks: list[Block] = [*([] if study.complete else missing), *drawn]
    if brief and study.kind == "frequencies":
        blocks.append(_table(study.table, folded=False))
    if brief:
        blocks += _values_on_a_screen(study)
    elif study.values:
        blocks.append(_values(study.values))
    if study.kind == "thermochemistry" or not brief:
        blocks += _shares(study)
    if study.kind == "optimization":
        blocks += _geometry(study, brief=brief)
    blocks += _stationary_points(study)
    if study.kind == "thermochemistry":
        blocks += _modes(study)
    blocks += study.notes
    if brief:
        blocks += _brief_table(study)
    elif study.table:
        folded = study.kind in ("scan", "cbs", "optimization", "irc")
        blocks.append(_table(study.table, folded=folded))
    budget = study.error_budget
    if budget is not None and brief:
        blocks.append(budget.summary)
    elif budget is not None:
        blocks += budget_blocks(budget)
    uncorrected = study.uncorrected_error_budget
    if uncorrected is not None:
        blocks.append(uncorrected.summary)
    if brief:
        listed = _runs_on_a_screen(study)
        return [Section("study", "Results", [*blocks, *listed])]
    shown = _listed_runs(study)
    runs, said = overview(shown, anchors), []
    if len(shown) < len(study.runs):
        said = [f"{len(study.runs)} runs, of which displaced geometries are not listed."]
    if study.kind == "frequencies":
        said = [
            f"{counted_text(len(study.runs), 'run')}: reference, and plus and minus for each "
            "coordinate of each atom."
        ]
        runs = runs._replace(details=True)
    of_runs = Section("overview", "Runs (groups runs/NAME of the file)", [*said, runs])
    return [Section("study", "Results", blocks), of_runs]


def _brief_table(study: Study) -> list[Block]:
    """What a screen shows of the table of a study.

    Steps of an optimisation and points of a path have been printed while it ran, and vibrations
    stand first.
    """
    if not study.table or study.kind in ("optimization", "irc", "frequencies"):
        return []
    if study.kind == "scan":
        return _points(study)
    if study.kind == "cbs":
        return [_basis_sets(study)]
    return [_table(study.table, folded=False)]


def _runs_on_a_screen(study: Study) -> list[Block]:
    """A table of the runs where their energies stand nowhere else, their number, names and time."""
    names = list(study.runs)
    if not names:
        return []
    tables: list[Block] = []
    if study.kind not in WITH_ENERGIES:
        tables.append(_energies_of_runs(_listed_runs(study)))
    called = ", ".join(names)
    if len(names) > MOST_NAMES:
        called = f"{names[0]} to {names[-1]}"
    levels = {method_on_reference(run) for run in study.runs.values()}
    at_level = ""
    if len(levels) == 1:
        at_level = f", {levels.pop()}"
    seconds = sum(run.timings.total for run in study.runs.values())
    said = f"{counted_text(len(names), 'run')}{at_level}: {called}; {seconds:.1f} s in all"
    return [*tables, Facts([("", said)])]


def _energies_of_runs(results: Mapping[str, MP2Result]) -> Table:
    """The table of `overview` without columns that a terminal has no room for."""
    table = overview(results, {})
    heads = list(table.heads)
    for head in ("formula", "method", "#core", "#cycles", "#time / s"):
        if head in heads and fitted_width(table._replace(heads=heads)) > WIDEST:
            heads[heads.index(head)] = f"~{head.lstrip('#')}"
    return table._replace(heads=heads)


def _listed_runs(study: Study) -> dict[str, MP2Result]:
    """The runs that are worth a row: of a reaction not those of Hessians."""
    if study.kind != "reaction":
        return dict(study.runs)
    return {
        name: run
        for name, run in study.runs.items()
        if not name.partition(":")[2].startswith(("plus-", "minus-"))
    }


def study_warnings(study: Study) -> list[str]:
    """The warnings of a study and of its runs, each with the runs that gave it."""
    said = []
    for warned in study.all_warnings:
        count = len(warned.runs)
        if count == 0:
            said.append(warned.text)
            continue
        names = ", ".join(warned.runs[:MOST_NAMES])
        if count > MOST_NAMES:
            names += ", ..."
        if count > 1:
            names = f"{count} of {len(study.runs)} runs ({names})"
        said.append(f"{names}: {warned.text}")
    return said


def _shares(study: Study) -> list[Block]:
    """The table of what each motion has of the thermochemistry; the total energy is left out of
    it."""
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


def _modes(study: Study) -> list[Block]:
    """The infrared spectrum and the table of the vibrations of a thermochemistry; none of an atom."""
    columns = [("wavenumber", "cm^-1"), ("scaled_wavenumber", "cm^-1")]
    columns += [("ir_intensity", "km/mol"), ("reduced_mass", "u"), ("force_constant", "mdyn/A")]
    columns = [(name, unit) for name, unit in columns if name in study.arrays]
    if study.settings["scale_factor"] == 1.0:
        columns.remove(("scaled_wavenumber", "cm^-1"))
    heads, cells = ["#mode"], []
    for name, unit in columns:
        array = study.arrays[name]
        heads.append(f"#{HEADINGS.get(name, name.replace('_', ' '))} / {unit}")
        cells.append([cell(float(value), array.units, name) for value in array.value])
    numbers = range(1, len(cells[0]) + 1)
    if not cells[0]:
        return []
    heads += _kind_head(study.arrays["wavenumber"].value)
    cells += _kind_cells(study.arrays["wavenumber"].value)
    rows = list(zip(numbers, *cells, strict=True))
    table = Table("Vibrations", heads, rows, sortable=True)
    if "ir_intensity" not in study.arrays:
        return [table]
    spectra = (study.arrays[name].value.tolist() for name in ("wavenumber", "ir_intensity"))
    return [_infrared(*spectra), table]


def _kind_head(wavenumbers: Sequence[float]) -> list[str]:
    """The heading of a column that says which modes are imaginary; none where all are real."""
    if min(wavenumbers, default=0.0) < 0:
        return ["kind"]
    return []


def _kind_cells(wavenumbers: Sequence[float]) -> list[list[str]]:
    """The cells of that column."""
    if min(wavenumbers, default=0.0) >= 0:
        return []
    kinds = []
    for wavenumber in wavenumbers:
        if wavenumber < 0:
            kinds.append("imaginary")
        else:
            kinds.append("real")
    return [kinds]


def _geometry(study: Study, *, brief: bool) -> list[Block]:
    """Tables of the last geometry of an optimisation: positions, bonds, angles.

    Of `brief` those alone that are short, and no positions, which are in a file of their own.
    """
    if not study.runs:
        return []
    molecule = study.last
    names = [f"{symbol}{atom}" for atom, symbol in enumerate(molecule.symbols, start=1)]
    places = molecule.coordinates * ANGSTROM_PER_BOHR
    rows = [
        (name, *(f"{x:z.6f}" for x in place)) for name, place in zip(names, places, strict=True)
    ]
    shape = structure(molecule)
    lengths = [("bond", *one) for one in shape.bonds]
    lengths += [("contact", *one) for one in shape.contacts]
    tables = [Table("Last geometry / angstrom", ("atom", "#x", "#y", "#z"), rows, folded=True)]
    if lengths:
        found = [
            (f"{names[i]}-{names[j]}", kind, f"{length:.5f}") for kind, (i, j), length in lengths
        ]
        heads = ("atoms", "kind", "#length / angstrom")
        tables.append(Table("Bonds and contacts", heads, found, folded=True))
    if shape.angles:
        bent = [
            (f"{names[i]}-{names[j]}-{names[k]}", f"{angle:.3f}")
            for (i, j, k), angle in shape.angles
        ]
        tables.append(Table("Angles", ("atoms", "#angle / degrees"), bent, folded=True))
    if brief:
        tables = [table for table in tables[1:] if len(table.rows) <= MOST_ROWS]
    return list(tables)


def _stationary_points(study: Study) -> list[Block]:
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


def _drawn(study: Study) -> list[Figure]:
    """The curve of a scan, the energies of both basis sets, how an optimisation converged, the
    infrared spectrum."""
    table = {name: column.values for name, column in study.table.items()}
    if study.kind == "scan":
        said = "Energies along the scan; straight lines join computed points."
        if "extrema_position" in study.arrays:
            said += " Curves are the polynomials that minima and maxima are taken from."
        if len(study.settings.get("grid", ())) == 2:
            said = "Energies over the map, above the lowest point; cells are computed points."
        return [Figure(partial(scan_drawing, study), said, alone=True)]
    if study.kind == "cbs":
        correlation = table.get("correlation_energy", table.get("mp2_correlation_energy", ()))
        return [
            series_figure(
                table["basis"],
                correlation,
                next(
                    table[name]
                    for name in ("hf_total_energy", "functional_energy", "scf_total_energy")
                    if name in table
                ),
            )
        ]
    if study.kind == "optimization":
        return [_course(study)]
    if study.kind == "irc":
        said = "Energies along the path, transition state at 0; lines join computed points."
        return [Figure(partial(path_drawing, study), said, alone=True)]
    if study.kind == "frequencies":
        return [_infrared(table["wavenumber"], table["ir_intensity"])]
    return []


def _infrared(wavenumbers: Sequence[float], intensities: Sequence[float]) -> Figure:
    """The infrared spectrum, without imaginary modes."""
    found = zip(wavenumbers, intensities, strict=True)
    lines = [(wavenumber, intensity) for wavenumber, intensity in found if wavenumber > 0]
    draw = partial(spectrum, "Infrared spectrum", lines, "wavenumber / cm^-1", "intensity / km/mol")
    said = (
        f"Harmonic infrared spectrum: strokes are the lines, the curve is their sum as Lorentzians "
        f"of {BROADENING:g} cm^-1 (full width at half maximum), each as high as its line. Imaginary "
        "modes are left out."
    )
    return Figure(draw, said, alone=True)


def _course(study: Study) -> Figure:
    """Energy and gradients at each step of an optimisation, and what the gradients have to fall
    below."""
    table = {name: column.values for name, column in study.table.items()}
    energies = table["total_energy"]
    lowest = min(energies)
    above = [(k, (e - lowest) * KJ_PER_MOL_PER_HARTREE) for k, e in enumerate(energies)]
    names = {"max_gradient": "largest gradient of an atom", "rms_gradient": "rms of the gradients"}
    drawn = [Curve(said, list(enumerate(table[name]))) for name, said in names.items()]
    stored = study.settings.get("limits", {})
    limits = [Limit(said, stored[name]) for name, said in names.items() if name in stored]
    said = "Energy (left axis) and gradients (right axis, logarithmic) at each step"
    if limits:
        said += f"; dashed lines are the limits of {study.settings['convergence']}."
    else:
        said += "; this file does not hold the limits that they have to fall below."
    label = "Convergence of the geometry"
    draw = partial(convergence, label, Curve("energy", above), drawn, limits)
    return Figure(draw, said, alone=True)


def series_figure(
    names: Sequence[str], correlation: Sequence[float], hartree_fock: Sequence[float]
) -> Figure:
    """E(corr) and E(HF) along basis sets, the limit, where there is one, at the right end; Eh."""
    drawn = [
        Curve("E(corr)", list(enumerate(correlation))),
        Curve(
            "E(HF) - E(HF) at the right end",
            [(k, e - hartree_fock[-1]) for k, e in enumerate(hartree_fock)],
        ),
    ]
    draw = partial(
        curves,
        "Energies along the basis series",
        drawn,
        "orbital basis",
        "energy / Eh",
        list(enumerate(names)),
    )
    return Figure(
        draw,
        "Correlation energy, and Hartree-Fock energy above the one at the right end.",
        alone=True,
    )


def _values_on_a_screen(study: Study) -> list[Block]:
    """The numbers of a study; those of a scan stand among its extrema, those of an interaction
    side by side."""
    if "extrema_position" in study.arrays:
        return []
    values = dict(study.values)
    blocks: list[Block] = []
    if "cp_corrected_interaction_energy" in values:
        blocks.append(_interaction(values))
        said = ("interaction_energy", "counterpoise_correction", "precision_error")
        values = {
            name: item for name, item in values.items() if not any(part in name for part in said)
        }
    if values:
        blocks.append(_values(values))
    return blocks


def _interaction(values: Mapping[str, Dataset]) -> Table:
    """The parts of an interaction energy, with and without counterpoise correction."""
    rows = []
    for name, item in values.items():
        part = name.removesuffix(CP_CORRECTED)
        plain = f"{part.removeprefix('mp2_')}{CP_CORRECTED}"
        if part == name or (plain != name and plain in values):
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


def _values(values: Mapping[str, Dataset]) -> Table:
    """The numbers of a study; one energy in several units is one row, and of plain MP2 under its
    two names too."""
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


def _table(columns: Mapping[str, Column], *, folded: bool) -> Table:
    """The table of a study."""
    heads = []
    cells = []
    for name, column in columns.items():
        heads.append(_column_head(name, column))
        cells.append([cell(value, column.units, name) for value in column.values])
    if "wavenumber" in columns:
        wavenumbers = columns["wavenumber"].values
        heads += _kind_head(wavenumbers)
        cells += _kind_cells(wavenumbers)
    rows = list(zip(*cells, strict=True))
    return Table("Values" if folded else "", heads, rows, sortable=True, folded=folded)


def _column_head(name: str, column: Column) -> str:
    """Name and unit of a column, with the sign of one that holds numbers."""
    sign = "#"
    if all(isinstance(value, str) for value in column.values):
        sign = ""
    unit = ""
    if column.units:
        unit = f" / {column.units.replace('hartree', 'Eh')}"
    return f"{sign}{_heading(name)}{unit}"


def _points(study: Study) -> list[Block]:
    """The points of a scan in one table as wide as a terminal, and what it leaves out."""
    table = study.table
    settings = study.settings
    wanted = list(settings.get("coordinates", [settings["coordinate"]]))
    failed = any(table["exit_code"].values)
    for name in OF_A_POINT:
        name = _of_method(table, name)
        if name not in table:
            continue
        if fitted_width(_some_columns(table, [*wanted, name], failed=failed)) <= WIDEST:
            wanted.append(name)
    points = _some_columns(table, wanted, failed=failed)
    titles = {run.options.correlation.title for run in study.runs.values()}
    if len(titles) == 1:
        total = f"#E({titles.pop()}) / Eh"
        points = points._replace(
            heads=[{"#E / Eh": total}.get(head, head) for head in points.heads]
        )
    blocks: list[Block] = [points]
    left_out = [_heading(name) for name in table if name not in (*wanted, "exit_code")]
    if left_out:
        names = ", ".join(dict.fromkeys(left_out))
        blocks.append(f"dfmp2 show FILE prints all columns; left out here: {names}.")
    return blocks


def _basis_sets(study: Study) -> Table:
    """The energies of each basis set without spin components; those of the limit stand among the
    values."""
    components = ("same_spin", "opposite_spin")
    columns = {
        name: column
        for name, column in study.table.items()
        if not any(component in name for component in components)
    }
    table = _table(columns, folded=False)
    return table._replace(rows=[row for row in table.rows if not row[0].startswith("limit ")])


def _of_method(table: Mapping[str, Column], name: str) -> str:
    """The column of an energy of the method, which plain MP2 has under its own name alone."""
    if name not in table and f"mp2_{name}" in table:
        return f"mp2_{name}"
    return name


def _some_columns(table: Mapping[str, Column], names: Sequence[str], *, failed: bool) -> Table:
    """Some columns of the table of a scan, with what became of each point if one has failed."""
    some = _table({name: table[name] for name in names}, folded=False)
    if not failed:
        return some
    rows = []
    for row, code in zip(some.rows, table["exit_code"].values, strict=True):
        outcome = ""
        if code:
            outcome = f"failed with code {code:g}"
        rows.append((*row, outcome))
    return some._replace(heads=[*some.heads, "outcome"], rows=rows)


def _heading(name: str) -> str:
    """The heading of a column; that of one basis set ends with its name."""
    for energy in OF_EACH_BASIS:
        basis = name.removeprefix(f"{energy}_")
        if basis != name:
            return f"{HEADINGS[energy]} {basis}"
    return HEADINGS.get(name, name.replace("_", " "))


def cell(value: str | float, units: str, name: str = "") -> str:
    """A value of a study, with the digits that its unit, or its name, has."""
    if isinstance(value, str):
        return value
    if 0 < abs(value) < 1e-6 and units.startswith("hartree"):
        form = ".1e"
    else:
        form = DIGITS.get(name, DIGITS.get(units, ".8g"))
    if math.isfinite(value):
        return f"{value:{form}}"
    return ABSENT
