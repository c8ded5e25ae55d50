"""What a page shows of one result besides its own fields: rows of tables, drawings, rates."""

from __future__ import annotations

import hashlib
import math
import socket
from collections.abc import Mapping
from dataclasses import asdict
from types import MappingProxyType
from typing import Any, NamedTuple

import numpy as np

from dfmp2.molecule.basis import BasisSet
from dfmp2.mp2.result import SCS, SOS, MP2Result, custom_scaling, say_field
from dfmp2.output.html.page import counted, energy, fixed
from dfmp2.output.html.svg import Array, Bar, Curve, bars, curves, draw_molecule, pair_map
from dfmp2.output.series import Entry
from dfmp2.output.text import CITATION, LONGEST_GEOMETRY, fitting_errors, orbital_classes
from dfmp2.planning import rates as calibration
from dfmp2.planning.rates import Rates
from dfmp2.planning.sizes import Spin, Workload
from dfmp2.units import ANGSTROM_PER_BOHR, KJ_PER_MOL_PER_HARTREE, format_bytes

MOST_ROWS = 20  # of a pair map; more orbitals are put together in blocks
STRONGEST = 15  # pairs listed
LONGEST_INPUT = 8_000  # characters of the input text that are shown
STAGES = {
    "scf": "SCF",
    "integrals": "integrals",
    "transform": "transformation",
    "fit": "metric and fit",
    "pair_energies": "pair energies",
}
SHORTEST = 0.01  # s; below, a rate would say more about the clock than about the machine
LIBRARIES = {"cpu": "numpy", "torch": "torch"}  # backend -> library whose matrix products it uses


class Speed(NamedTuple):
    """What was measured on the machine of a run with its number of threads, as far as it is known.

    rates : of the program's own routines, per second; None when they were never measured
    products : stage -> operations per second of a large square matrix product in the stage's library and precision
    """

    rates: Rates | None = None
    products: Mapping[str, float] = MappingProxyType({})


def describe(entry: Entry) -> dict[str, Any]:
    """What the template `result.j2` prints of a result."""
    result = entry.result
    molecule, reference = result.molecule, result.reference
    positions = (molecule.coordinates * ANGSTROM_PER_BOHR).tolist()
    drawing, caption = draw_molecule(molecule)
    text = molecule.text
    return {
        "result": result,
        "entry": entry,
        "method": method_name(result),
        "citation": CITATION,
        "drawing": drawing,
        "drawing_caption": caption,
        "geometry": [
            (f"{k} {label}", *(f"{x:.8f}" for x in position))
            for k, (label, position) in enumerate(zip(molecule.labels[:LONGEST_GEOMETRY], positions, strict=False), 1)
        ],
        "field": say_field(molecule, result.orbital_basis),
        "bases": _bases(result),
        "fitting_errors": fitting_errors(molecule, result.scf_fitting, result.mp2_fitting),
        "classes": orbital_classes(result),
        **_energies(result),
        "pair_maps": _pair_maps(result),
        "pairs": len(list_pairs(result)),
        "strongest": _strongest(result),
        "core": _cores(result)[0],
        "spin": (molecule.multiplicity - 1) / 2,
        "convergence": None if reference.history is None or not len(reference.history) else _convergence(reference),
        "options": [(f"--{k.replace('_', '-')}", v) for k, v in asdict(result.options).items() if v is not None],
        "input_sha256": hashlib.sha256(text.encode("utf-8", "surrogateescape")).hexdigest(),
        "longest_input": LONGEST_INPUT,
        **_cost(result, known_speed(result)),
    }


def method_name(result: MP2Result) -> str:
    """The method as it is written in a paper, e.g. "DF-MP2/cc-pvdz on DF-RHF, 1 frozen core orbital"."""
    core, virtual = result.sizes.frozen_core, result.sizes.frozen_virtual
    frozen = counted(core, "frozen core orbital") if core else "all electrons correlated"
    more = f", {counted(virtual, 'frozen virtual orbital')}" if virtual else ""
    return f"{_level(result)}{result.reference.kind.upper()}, {frozen}{more}"


def energies(result: MP2Result) -> tuple[str, str, str]:
    """E(HF), E(corr) and E(MP2), Eh."""
    return energy(result.scf_total_energy), energy(result.mp2_correlation_energy), energy(result.mp2_total_energy)


def level_name(result: MP2Result) -> str:
    """What was asked for, which for another molecule may give RHF or UHF and another number of frozen orbitals."""
    options = result.options
    virtual = f", {options.frozen_virtual} frozen virtual" if options.frozen_virtual else ""
    return (
        f"{_level(result)}HF, reference {options.reference}, frozen core {options.frozen_core}{virtual}, "
        f"precision {options.precision}"
    )


def _level(result: MP2Result) -> str:
    relativistic = "X2C-" if result.options.relativity == "x2c" else ""
    return f"DF-MP2/{result.orbital_basis.name} on {relativistic}{'DF-' if result.reference.scf_type == 'df' else ''}"


def verdict(result: MP2Result) -> str:
    """What the result says about itself, in a few words."""
    check, certificate, count = result.check, result.certificate, len(result.diagnostics.warnings)
    failed = [
        *(["PySCF check failed"] if check is not None and not check.passed else []),
        *(
            ["certificate above tolerance"]
            if certificate is not None and not certificate.accepted and not certificate.repeated_in_fp64
            else []
        ),
    ]
    warnings = counted(count, "warning") if count else "no warnings"
    done = " and ".join(name for name, found in (("PySCF check", check), ("certificate", certificate)) if found)
    passed = f"{done} passed, " if done else ""
    return f"✗ {', '.join(failed)}, {warnings}" if failed else f"{'!' if count else '✓'} {passed}{warnings}"


def _bases(result: MP2Result) -> list[tuple[str, ...]]:
    """One row per set and origin: elements, number of functions of the whole basis, hash per element."""
    sizes = result.sizes
    roles: tuple[tuple[str, BasisSet | None, int], ...] = (
        ("orbital", result.orbital_basis, sizes.nao),
        ("SCF fitting", result.scf_fitting, sizes.naux_scf),
        ("MP2 fitting", result.mp2_fitting, sizes.naux),
    )
    rows: list[tuple[str, ...]] = []
    for role, basis, functions in roles:
        if basis is None:
            rows.append((role, "none", "", "conventional four-centre integrals", "", ""))
            continue
        groups: dict[tuple[str, str], list[str]] = {}
        for symbol, element in basis.elements.items():
            core = f"; core potential for {element.ecp_electrons} electrons ({element.ecp_source})"
            groups.setdefault((element.name, f"{element.source}{core if element.ecp else ''}"), []).append(symbol)
        for place, ((name, origin), symbols) in enumerate(groups.items()):
            hashes = ", ".join(f"{symbol} {basis.elements[symbol].sha256[:10]}" for symbol in symbols)
            first = ("", "") if place else (role, str(functions))
            rows.append((first[0], name, " ".join(symbols), origin, first[1], hashes))
    return rows


# --- energies -----------------------------------------------------------------------------------------


def _energies(result: MP2Result) -> dict[str, Any]:
    """Rows (name, Eh, kJ/mol, meaning), their bars, and where the factors were published."""
    own = custom_scaling(result.options.os_scale, result.options.ss_scale)
    same, opposite = result.mp2_same_spin_correlation_energy, result.mp2_opposite_spin_correlation_energy
    values = [
        ("nuclear repulsion", result.reference.nuclear_repulsion_energy, "contained in E(HF)"),
        ("reference energy", result.scf_total_energy, f"E(HF), {result.reference.kind.upper()}"),
        ("same-spin correlation", same, "E(SS), unscaled"),
        ("opposite-spin correlation", opposite, "E(OS), unscaled"),
        ("MP2 correlation", result.mp2_correlation_energy, "E(SS) + E(OS)"),
        ("MP2 total", result.mp2_total_energy, "E(HF) + E(SS) + E(OS)"),
    ]
    drawn = [Bar("MP2", (opposite, same), energy(result.mp2_correlation_energy))]
    for kind in filter(None, (SCS, SOS, own)):
        correlation = kind.apply(opposite, same)
        formula = f"{kind.opposite_spin:.6g} E(OS) + {kind.same_spin:.6g} E(SS)"
        values += [
            (f"{kind.name} correlation", correlation, formula),
            (f"{kind.name} total", result.scf_total_energy + correlation, "E(HF) + the line above"),
        ]
        drawn.append(Bar(kind.name, (kind.opposite_spin * opposite, kind.same_spin * same), energy(correlation)))
    return {
        "energies": [
            (name, energy(value), f"{value * KJ_PER_MOL_PER_HARTREE:.2f}" if math.isfinite(value) else "", meaning)
            for name, value, meaning in values
        ],
        "energy_bars": bars("Correlation energy by spin component", drawn, ("opposite spin", "same spin")),
        "factors": "; ".join(f"{kind.name}: {kind.source}" for kind in (SCS, SOS)),
    }


class Pair(NamedTuple):
    """A pair of occupied orbitals, numbered from 1 over all orbitals; energies in Eh, both orders counted."""

    total: float
    channel: str
    i: int
    j: int
    opposite: float
    same: float


def list_pairs(result: MP2Result) -> list[Pair]:
    """All distinct pairs, most negative first; e_ij is the contribution of the occupied pair ij to E(corr)."""
    opposite, *same = result.pairs.channels().values()
    core = _cores(result)
    found = []

    def add(channel: str, i: int, j: int, os: float, ss: float) -> None:
        found.append(Pair(os + ss, channel, i, j, os, ss))

    if result.reference.nspin == 1:
        for i, j in zip(*np.tril_indices(len(opposite)), strict=True):
            both = 1.0 if i == j else 2.0
            os, ss = both * float(opposite[i, j]), both * float(same[0][i, j])
            add("", int(j) + 1 + core[0], int(i) + 1 + core[0], os, ss)
    else:
        for (i, j), value in np.ndenumerate(opposite):
            add("alpha beta", i + 1 + core[0], j + 1 + core[1], float(value), 0.0)
        for name, matrix, frozen in zip(("alpha alpha", "beta beta"), same, core, strict=True):
            for i, j in zip(*np.tril_indices(len(matrix), -1), strict=True):
                add(name, int(j) + 1 + frozen, int(i) + 1 + frozen, 0.0, 2.0 * float(matrix[i, j]))
    return sorted(found)


def _cores(result: MP2Result) -> tuple[int, int]:
    """Frozen core orbitals of each spin; one with fewer electrons than the core freezes all it has."""
    sizes = result.sizes
    alpha, beta = (sizes.nmo - o - v - sizes.frozen_virtual for o, v in zip(sizes.nocc, sizes.nvir, strict=True))
    return alpha, beta


def _strongest(result: MP2Result) -> list[tuple[str, ...]]:
    """Rows of the strongest pairs, with their share of E(corr)."""
    total, eps = result.mp2_correlation_energy, result.reference.mo_energy
    rows = []
    for pair in list_pairs(result)[:STRONGEST]:
        spins = {"": (0, 0), "alpha beta": (0, 1), "alpha alpha": (0, 0), "beta beta": (1, 1)}[pair.channel]
        levels = ", ".join(f"{eps[spin][k - 1]:.3f}" for spin, k in zip(spins, (pair.i, pair.j), strict=True))
        channel = (pair.channel,) if result.reference.nspin == 2 else ()
        energies = (f"{value:z.8f}" for value in (pair.opposite, pair.same, pair.total))
        share = fixed(100 * pair.total / total if total else math.nan)
        rows.append((f"{pair.i}, {pair.j}", *channel, levels, *energies, share))
    return rows


def _pair_maps(result: MP2Result) -> list[dict[str, Any]]:
    """Maps of all channels, none for a spin without correlated orbitals."""
    core = _cores(result)
    opposite, *same = result.pairs.channels().values()
    if result.reference.nspin == 1:
        # Both matrices are symmetric: one map shows one above, the other below the diagonal.
        missing = "its own diagonal is zero" if _block(opposite) == 1 else "its diagonal blocks are left out"
        said = f"opposite spin on and above the diagonal, same spin below it ({missing})"
        both = np.triu(_summed(opposite)) + np.tril(_summed(same[0]), -1)
        found = [("Pair energies", opposite, both, (core[0], core[0]), said)]
    else:
        parts = [("opposite spin", opposite, core, "rows are alpha, columns beta orbitals")] + [
            (f"same spin, {spin}", matrix, (first, first), "both orders of a pair are shown")
            for spin, matrix, first in zip(("alpha", "beta"), same, core, strict=True)
        ]
        found = [(f"Pair energies, {name}", m, _summed(m), first, said) for name, m, first, said in parts]
    return [_pair_map(*one) for one in found if one[1].size]


def _pair_map(title: str, matrix: Array, shown: Array, first: tuple[int, int], said: str) -> dict[str, Any]:
    """The sums over blocks of a matrix as a drawing and as a table; nothing to draw where all are zero."""
    block = _block(matrix)
    names = [[_range(k, block, n, first[axis]) for k in range(-(-n // block))] for axis, n in enumerate(matrix.shape)]
    label = f"{title}, orbital by orbital"
    return {
        "title": title,
        "svg": pair_map(label, shown, names[0], names[1]) if np.any(shown) else "",
        "said": said,
        "shape": matrix.shape,
        "block": block,
        "heads": ["i \\ j", *(f"#{name}" for name in names[1])],
        "rows": [(name, *map(energy, row)) for name, row in zip(names[0], shown.tolist(), strict=True)],
    }


def _block(matrix: Array) -> int:
    """Orbitals put together, so that a map has at most MOST_ROWS rows and columns."""
    return max(1, math.ceil(max(len(matrix), len(matrix.T)) / MOST_ROWS))


def _summed(matrix: Array) -> Array:
    """Sums over blocks of elements."""
    if not matrix.size:
        return matrix
    rows, columns = (np.arange(0, n, _block(matrix)) for n in matrix.shape)
    return np.asarray(np.add.reduceat(np.add.reduceat(matrix, rows, axis=0), columns, axis=1))


def _range(place: int, block: int, count: int, first: int) -> str:
    low, high = place * block + 1, min((place + 1) * block, count)
    return str(first + low) if low == high else f"{first + low} to {first + high}"


def _convergence(reference: Any) -> str:
    """How energy and gradient fell from one SCF iteration to the next."""
    rows = [(float(n), *map(float, row)) for n, row in enumerate(reference.history, start=1)]
    drawn = [
        Curve("orbital gradient", [(n, math.log10(g)) for n, _, _, g in rows if g > 0]),
        Curve("change of the energy", [(n, math.log10(abs(c))) for n, _, c, _ in rows[1:] if c]),
    ]
    return curves("Convergence of the SCF", drawn, "iteration", "log10 of the value in Eh")


# --- cost ---------------------------------------------------------------------------------------------


def _cost(result: MP2Result, speed: Speed) -> dict[str, Any]:
    """Bars of time and memory, and the rates of the matrix products."""
    timings, memory = asdict(result.timings), result.memory
    predicted = asdict(result.predicted)
    other = max(0.0, timings["total"] - sum(timings[name] for name in STAGES))
    stages = [Bar(STAGES[n], (timings[n],), _seconds(timings[n]), predicted[n]) for n in STAGES]
    amounts = [("measured", memory.measured_peak), ("predicted", memory.predicted_peak), ("allowed", memory.budget)]
    # A budget far above the need would shrink the other two bars to nothing: it is left to the caption.
    wide = memory.budget > 8 * max(memory.measured_peak, memory.predicted_peak)
    drawn = [Bar(name, (amount,), format_bytes(amount)) for name, amount in (amounts[:2] if wide else amounts)]
    missing = [
        *(["the program's routines (dfmp2 plan --calibrate measures them)"] if speed.rates is None else []),
        *(["matrix products alone (dfmp2 bench --gemm measures them)"] if not speed.products else []),
    ]
    return {
        "time_bars": bars(
            "Wall time per stage", [*stages, Bar("everything else", (other,), _seconds(other))], mark_name="predicted"
        ),
        "memory_bars": bars("Peak memory", drawn),
        "memory_ratio": memory.predicted_peak / memory.measured_peak if memory.measured_peak else 0.0,
        "wide_budget": wide,
        "rates": None if "derived from" in result.frozen_core_note else _rates(result, speed),
        "missing": " or of ".join(missing),
    }


def _seconds(value: float) -> str:
    return fixed(value) + (" s" if math.isfinite(value) else "")


def _rates(result: MP2Result, speed: Speed) -> list[tuple[str, ...]]:
    """Rows of the stages that are matrix products: operations / wall time, against what was measured alone."""
    rows = []
    for name, (operations, calibrated) in stage_rates(result, speed.rates).items():
        spent = getattr(result.timings, name)
        reached = operations / spent if spent >= SHORTEST else None
        shown = "too short to tell" if reached is None else f"{reached / 1e9:.1f}"
        row = [STAGES[name], f"{operations / 1e9:.3g}", _seconds(spent), shown]
        for best in (calibrated, speed.products.get(name)):
            share = "" if reached is None or best is None else f"{100 * reached / best:.0f} %"
            row += ["not recorded" if best is None else f"{best / 1e9:.1f}", share]
        rows.append(tuple(row))
    return rows


def stage_rates(result: MP2Result, rates: Rates | None) -> dict[str, tuple[int, float | None]]:
    """Operations of the stages that are matrix products, and the calibrated rate of their routines, per second."""
    sizes, certificate = result.sizes, result.certificate
    # A mixed pass whose result was not accepted was followed by one in float64: both were done.
    passes = ["mixed"] if certificate is not None else []
    if certificate is None or certificate.repeated_in_fp64:
        passes.append("fp64")
    occupied = [int(np.count_nonzero(occ)) for occ in result.reference.mo_occ]
    spins = tuple(Spin(*numbers) for numbers in zip(occupied, sizes.nocc, sizes.nvir, strict=False))
    done = [Workload(sizes.nao, sizes.naux_scf, sizes.naux, spins, precision, 0).flops() for precision in passes]
    exact, mixed = (sum(flops[name] for flops in done) for name in ("pairs_fp64", "pairs_mixed"))
    calibrated = None
    if rates is not None and exact + mixed:
        calibrated = (exact + mixed) / (exact / rates.pairs_fp64 + mixed / rates.pairs_mixed)
    return {
        "transform": (done[0]["transform"], None if rates is None else rates.transform),
        "fit": (done[0]["fit"], None if rates is None else rates.solve),
        "pair_energies": (exact + mixed, calibrated),
    }


def known_speed(result: MP2Result) -> Speed:
    """Rates measured on the machine of the run with its backend and threads, if this is that machine."""
    provenance = result.provenance
    if provenance.host != socket.gethostname():
        return Speed()
    found = calibration.load_products(provenance.threads)
    precision = "mixed" if result.precision == "mixed" else "fp64"
    wanted = {"transform": "numpy fp64", "fit": "numpy fp64"}
    if result.backend in LIBRARIES:
        wanted["pair_energies"] = f"{LIBRARIES[result.backend]} {precision}"
    keys = {stage: f"{name} {provenance.threads}" for stage, name in wanted.items()}
    products = {} if found is None else found.products
    known = {stage: products[key] for stage, key in keys.items() if key in products}
    return Speed(calibration.load(result.backend, provenance.threads), known)
