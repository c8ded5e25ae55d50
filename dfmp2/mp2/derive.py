"""Energies that follow from stored pair energies without a new run: other scaling factors, or a
larger frozen core.

With canonical orbitals the pair energy e_ij depends on i, j, the virtual orbitals and the fitted
integrals, but on no other occupied orbital. A larger frozen core therefore gives the same matrix of
pairs without the rows and columns of the lowest orbitals, exact to the last digits of the original.
A change of orbitals, virtual space, fit or arithmetic needs a new run and is rejected.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import replace
from datetime import UTC, datetime
from typing import Any

import numpy as np

from dfmp2.errors import InputError, Message, Option
from dfmp2.host.provenance import version
from dfmp2.integrals.spaces import active_space, smallest_denominator
from dfmp2.molecule.frozen_core import FrozenCore, dialect_warning, frozen_core_count
from dfmp2.mp2.dispersion import dispersion_energy
from dfmp2.mp2.pairs import PairEnergies, number_of_pairs
from dfmp2.mp2.result import Certificate, Diagnostics, FittingCertificate, MP2Result
from dfmp2.options import Options
from dfmp2.options.methods import (
    CUSTOM,
    CUSTOM_DOUBLE_HYBRID,
    METHODS,
    MP2,
    canonical_method,
    functionals_of,
)
from dfmp2.options.values import parse_grid
from dfmp2.progress import Collector, Listener
from dfmp2.units import counted_text, told_apart

# Relative error of a sum of pair terms in mixed precision: 8 units in the last place of float32.
# For all larger frozen cores of 60 molecules, the error of the sums over the omitted pairs was at
# most a seventh of it (scripts/certificate_coverage.py of commit 5b1e9f5).
ROUNDING = 8.0 * 2.0**-24
DERIVABLE = ("frozen_core", "method", "os_scale", "ss_scale", "dispersion")
# Every other option that affects a number, and why changing it needs a new run.
REFUSED = {
    "basis": "another orbital basis has other orbitals",
    "reference": "another reference has other orbitals",
    "xc": "another functional has other orbitals",
    "grid": "another integration grid has other orbitals",
    "relativity": "another Hamiltonian has other orbitals",
    "scf": "another kind of SCF has other orbitals",
    "scf_auxbasis": "another SCF fitting set gives other orbitals",
    "auxbasis": "another fitting set changes every pair energy",
    "frozen_virtual": "every pair energy is a sum over the virtual orbitals, whose terms are not "
    "stored",
    "precision": "the rounding of stored pair energies cannot be undone or repeated",
}


def derive(
    result: MP2Result,
    *,
    origin: str = "",
    command: str = "dfmp2.derive",
    listener: Listener | None = None,
    **changes: Any,
) -> MP2Result:
    """The result of a run on the same orbitals with a larger frozen core or other scaling factors.

    Parameters
    ----------
    result : finished calculation
    origin : where it was read from, for the record, e.g. file name and content hash
    command : stored in the provenance, in front of the original one
    listener : receives warnings; by default they are raised as Python warnings
    changes : `frozen_core` (a dialect or a number of orbitals per spin), `method`, `os_scale`,
        `ss_scale` (a missing one is 1); other options of a run are accepted if unchanged

    Returns
    -------
    MP2Result; timings, memory and library versions stay those of the original run. The certificate
    of a mixed-precision result is widened, see `widened`

    Raises
    ------
    InputError : it is not the result of one run; the change does not follow from pair energies, or
        leaves no electrons to correlate
    """
    require_one_run(result, "derive")
    listener = Collector(listener or Listener())
    changes = _derivable_changes(result, changes)
    options = replace(result.options, **changes)
    notes = [
        result.frozen_core_note,
        f"derived from {origin or 'a result of ' + result.provenance.created}",
    ]
    derived = result
    if "frozen_core" in changes:
        derived, more_notes = _with_larger_core(result, options, listener)
        notes += more_notes
    if result.properties is not None:
        notes.append("gradient and properties of the original do not apply and were dropped")
    dispersion = result.dispersion
    if options.dispersion_correction != result.options.dispersion_correction:
        dispersion = None
        if options.dispersion_correction is not None:
            dispersion = dispersion_energy(result.molecule, *options.dispersion_correction)
    return replace(
        derived,
        dispersion=dispersion,
        options=replace(options, properties=False, polarizability=False),
        gradient=None,
        gradient_certificate=None,
        properties=None,
        polarizability=None,
        diagnostics=replace(
            derived.diagnostics, warnings=(*result.diagnostics.warnings, *listener.warnings)
        ),
        provenance=replace(
            result.provenance,
            version=version(),
            command=f"{command}; original: {result.provenance.command}",
            created=datetime.now(UTC).isoformat(timespec="seconds"),
        ),
        frozen_core_note="; ".join(note for note in notes if note),
    )


def require_one_run(result: object, function: str) -> None:
    """Raise unless it is the result of one run: the energies of a composite level are not those of
    its orbitals and pairs.

    Parameters
    ----------
    function : str
        What needs it, as the subject of the message.

    Raises
    ------
    InputError : it is a composite result, or another kind of value
    """
    if type(result) is not MP2Result:
        raise InputError(
            f"{function} takes the result of one run, not a {type(result).__name__}: a gradient has "
            "it as `result`, a study as `runs`, and dfmp2.read reads it from a file"
        )


def _derivable_changes(result: MP2Result, asked: dict[str, Any]) -> dict[str, Any]:
    """The options that change, from those asked for.

    Raises
    ------
    InputError : a change does not follow from pair energies
    """
    changes = {name: value for name, value in asked.items() if value is not None}
    for name, value in changes.items():
        _require_derivable(result, name, value)
    _require_pairs_of(result, changes)
    if {"os_scale", "ss_scale", "method"} & changes.keys():
        unchanged = _unchanged_method(result.options)
        custom = changes.get("method") in (CUSTOM, CUSTOM_DOUBLE_HYBRID)
        if custom and result.options.correlation.double_hybrid:
            del changes["method"]
        changes = unchanged | changes
    return {name: changes[name] for name in DERIVABLE if name in changes}


def _with_larger_core(
    result: MP2Result, options: Options, listener: Listener
) -> tuple[MP2Result, list[str]]:
    """The result without the pairs of the orbitals that are frozen now, and notes on its frozen
    core and on what was dropped.

    Raises
    ------
    InputError : the result has no pair energies
    """
    if result.quadrature is not None:
        by_quadrature = Message()
        if result.options.laplace:
            by_quadrature = Message(" with ", Option("laplace", True))
        raise InputError(
            Option("frozen_core"),
            f" cannot be derived from {result.method}",
            by_quadrature,
            ", which has no pair energies. Run it again",
        )
    result.require_kept("another frozen core")
    core = _core(result, options, listener)
    more = core.orbitals - result.sizes.frozen_core
    derived = _cut(result, more)
    certificate = derived.certificate
    notes = []
    if more:
        notes.append(f"pairs of {counted_text(more, 'more orbital')} per spin left out")
        if certificate is not None:
            notes.append(
                "certificate of all pairs, widened by a limit on the error of those left out"
            )
        if result.check is not None:
            notes.append("the check of the original does not apply and was dropped")
        if result.fitting_certificate is not None:
            notes.append(
                "the fitting error of E(corr) measured in the original is that of all its pairs "
                "and was dropped"
            )
        if result.coupled_cluster is not None:
            notes.append("the CCSD(T) energies of the original have its core and were dropped")
    if certificate is not None and derived.precision != "fp64" and not certificate.accepted:
        error, most = told_apart(".1e", certificate.correlation_error, certificate.tolerance)
        listener.warning(
            Message(
                (
                    f"the precision error of the remaining pairs may be {error} Eh, above the "
                    f"tolerance {most} Eh: a run with "
                ),
                Option("frozen_core", core.orbitals),
                " bounds it better",
            )
        )
    return derived, [*notes, core.note]


def widened(result: MP2Result, more: int) -> Certificate | None:
    """The certificate for the pairs that remain when `more` orbitals per spin are dropped.

    It bounds the sum over all pairs, in which errors cancel, and so is no bound for a part of them.
    The error of the part is that of all pairs minus that of the omitted pairs, so a bound on each
    adds up to a bound on the part. Rounding makes the error of a direct or exchange term
    proportional to the direct term e_OS, and its largest relative size is known. What is added is
    therefore a strict limit, and the sum still holds with 95 % confidence:

        |error(left)| <= bound(all) + ROUNDING sum |e_OS| (omitted)

    for E_OS, and twice that sum for E_SS, which has direct and exchange terms. The factor is larger
    than ROUNDING if the certificate found a larger error relative to the largest pair energy.
    """
    certificate = result.certificate
    opposite = np.abs(result.pairs.opposite_spin)
    if certificate is None or more == 0:
        return certificate
    rounding = max(
        ROUNDING, certificate.largest_pair_error / float(opposite.max(initial=np.finfo(float).tiny))
    )
    left_out = rounding * float(opposite.sum() - opposite[more:, more:].sum())
    return replace(
        certificate,
        correlation_error=certificate.correlation_error + 3.0 * left_out,
        same_spin_error=certificate.same_spin_error + 2.0 * left_out,
        opposite_spin_error=certificate.opposite_spin_error + left_out,
    )


def _require_derivable(result: MP2Result, name: str, value: Any) -> None:
    """Raise for any other option, unless its value is unchanged."""
    if name in DERIVABLE:
        return
    if name == "grid":
        value = parse_grid(value)
    option = Option(name, value)
    if name not in REFUSED:
        raise InputError(
            option,
            f": from stored pair energies only {', '.join(DERIVABLE)} can be derived: leave it out",
        )
    called = {str(getattr(result.options, name)).lower()}
    fitting = {"auxbasis": result.mp2_fitting, "scf_auxbasis": result.scf_fitting}.get(name)
    if fitting is not None:
        called.add(fitting.names.lower())
    if name == "grid":
        called.add(str(result.reference.grid_name))
    if name == "reference":
        called.add(result.reference.kind)
    if name == "precision":
        called.add(result.precision)
    if str(value).strip().lower() not in called:
        raise InputError(option, f" cannot be derived: {REFUSED[name]}. Run it with ", option)


def _unchanged_method(options: Options) -> dict[str, Any]:
    """Method and scaling factors to assume when a change names only some of them."""
    if not options.correlation.double_hybrid:
        return {"os_scale": None, "ss_scale": None, "method": MP2.name}
    if options.method == CUSTOM_DOUBLE_HYBRID:
        return {"os_scale": options.os_scale, "ss_scale": options.ss_scale}
    return {"os_scale": None, "ss_scale": None, "method": options.method}


def _require_same_orbitals(result: MP2Result, method: str) -> None:
    """Raise for a method that needs other orbitals or another functional than those of the result.

    Raises
    ------
    InputError
        Names both methods.
    """
    options = result.options
    here = functionals_of(method, options.xc)
    hybrid = method not in METHODS or METHODS[method].double_hybrid
    if here != functionals_of(options.method, options.xc) or hybrid != (
        options.correlation.double_hybrid
    ):
        raise InputError(
            Option("method", method),
            f" cannot be derived from a result of {result.method}: its orbitals, or the "
            "functional of its energy, are different. Run it with ",
            Option("method", method),
        )


def _require_pairs_of(result: MP2Result, changes: Mapping[str, Any]) -> None:
    """Raise for a method that does not use the stored pair energies.

    Raises
    ------
    InputError
        The method is unknown, or uses other pair energies.
    """
    wanted = changes.get("method")
    if wanted is None and "os_scale" not in changes and "ss_scale" not in changes:
        return
    custom = CUSTOM
    if result.options.correlation.double_hybrid:
        custom = CUSTOM_DOUBLE_HYBRID
    if wanted in (None, custom):
        wanted = _unchanged_method(result.options).get("method", CUSTOM_DOUBLE_HYBRID)
    wanted = canonical_method(wanted)
    _require_same_orbitals(result, wanted)
    plain = wanted not in METHODS or METHODS[wanted].plain
    if not (plain and result.options.correlation.plain):
        asked = Option("method", wanted)
        for name in ("os_scale", "ss_scale"):
            if changes.get("method") is None and changes.get(name) is not None:
                asked = Option(name, changes[name])
        raise InputError(
            asked,
            (
                f" cannot be derived from a result of {result.method}: only plain pair energies "
                "can be scaled; regularised ones, and energies without pairs, do not follow "
                "from each other. Run it again"
            ),
        )


def _core(result: MP2Result, options: Options, listener: Listener) -> FrozenCore:
    """The requested frozen core, if it contains the stored one."""
    ecp = result.orbital_basis.ecp_electrons
    occupied = [int((occ > 0).sum()) for occ in result.reference.mo_occ]
    alpha, beta = occupied[0], occupied[-1]
    core = frozen_core_count(result.molecule, options.frozen_core, ecp, alpha, beta)
    stored = result.sizes.frozen_core
    if core.orbitals < stored:
        raise InputError(
            Option("frozen_core", options.frozen_core),
            (
                f" freezes {counted_text(core.orbitals, 'orbital')} per spin, but {stored} are "
                "frozen in the result: their pair energies were never computed. Run it with "
            ),
            Option("frozen_core", options.frozen_core),
        )
    warning = dialect_warning(core, result.molecule, ecp, alpha, beta)
    if warning:
        listener.warning(warning)
    return core


def _cut(result: MP2Result, more: int) -> MP2Result:
    """The result without its `more` lowest correlated orbitals of each spin."""
    if more == 0:
        return result
    reference, sizes = result.reference, result.sizes
    alpha, beta = sizes.nocc
    cut = replace(sizes, frozen_core=sizes.frozen_core + more, nocc=(alpha - more, beta - more))
    spins = zip(reference.mo_coeff, reference.mo_energy, reference.mo_occ, strict=True)
    spaces = [active_space(*spin, cut.frozen_core, cut.frozen_virtual) for spin in spins]
    diagnostics: Diagnostics = replace(
        result.diagnostics, smallest_denominator=smallest_denominator(spaces)
    )
    pairs = PairEnergies(
        result.pairs.opposite_spin[more:, more:].copy(),
        tuple(matrix[more:, more:].copy() for matrix in result.pairs.same_spin),
    )
    return replace(
        result,
        pairs=pairs,
        sizes=cut,
        diagnostics=diagnostics,
        certificate=widened(result, more),
        check=None,
        fitting_certificate=_of_scf_alone(
            result.fitting_certificate, [space.nocc for space in spaces]
        ),
        coupled_cluster=None,
    )


def _of_scf_alone(
    certificate: FittingCertificate | None, orbitals: Sequence[int]
) -> FittingCertificate | None:
    """What remains of a fitting certificate if pairs are left out: the error of E(SCF), None if it
    was not measured.

    Parameters
    ----------
    certificate : FittingCertificate or None
        That of the result with all pairs.
    orbitals : sequence of int
        Correlated occupied orbitals, one number for each spin if they differ.
    """
    if certificate is None or certificate.scf_error is None:
        return None
    return replace(
        certificate,
        correlation_error=None,
        correlation_uncertainty=None,
        orbitals=sum(orbitals),
        sampled_orbitals=0,
        pairs=number_of_pairs(orbitals),
        sampled_pairs=0,
    )
