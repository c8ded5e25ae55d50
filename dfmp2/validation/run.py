"""Hold our energies against the entries, one after the other.

A difference passes within the entry's tolerance; in mixed precision the certificate's estimate is added to
it. An entry is skipped, with the reason, when this installation or machine cannot do it; whatever else goes
wrong in it is a failure of that entry, and the others go on.
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from dataclasses import dataclass, replace

from dfmp2.errors import Dfmp2Error, Interrupted, ResourceError, UnsupportedByBackend
from dfmp2.validation.entries import Entry, Published, Quantity
from dfmp2.validation.session import Other, Session, Values, combined, spread
from dfmp2.validation.synthetic import Kernel

PASS, FAIL, SKIPPED = "pass", "fail", "skipped"
AGAINST_TOLERANCE = 1e-8  # Eh; 2.5e-9 seen, with core potentials
AGAINST_REASON = "recomputed from scratch with the same bases; two converged SCFs, E(corr) of first order in theirs"


@dataclass(frozen=True, slots=True)
class Row:
    """The outcome for one quantity; energies in Eh, None where there is none.

    Attributes
    ----------
    id, quantity : which number
    program, version : who made the reference
    reference, value, difference : theirs, ours, ours - theirs
    tolerance : largest |difference| that passes, the certificate's part included
    status : "pass", "fail" or "skipped"
    reason : why this tolerance; of a failure or a skip, what happened
    source : where the reference is published
    published : what a program published about its own agreement, or None
    """

    id: str
    program: str
    version: str
    quantity: str
    reference: float | None
    value: float | None
    difference: float | None
    tolerance: float
    status: str
    reason: str
    source: str
    published: Published | None = None


def validate(entries: Sequence[Entry], session: Session, others: Sequence[Other] = ()) -> Iterator[list[Row]]:
    """The rows of each entry as soon as they are known.

    Parameters
    ----------
    others : programs to recompute the references with; () to take the published ones
    """
    for entry in entries:
        if others:
            yield [row for other in others for row in _rows(entry, session, other)]
        else:
            yield _rows(entry, session, None)


def _rows(entry: Entry, session: Session, other: Other | None) -> list[Row]:
    missing = entry.missing()
    if missing is None and other is not None and entry.kernel is not None:
        missing = f"arrays without a molecule, which {other.name} cannot recompute"
    if missing is not None:
        return _without_value(entry, other, SKIPPED, missing)
    try:
        if entry.kernel is not None:
            return _from_kernel(entry, entry.kernel, session)
        ours = [session.calculate(calculation) for calculation in entry.calculations]
    except Interrupted:
        raise
    except (ResourceError, UnsupportedByBackend) as error:
        return _without_value(entry, other, SKIPPED, str(error))
    except Dfmp2Error as error:
        return _without_value(entry, other, FAIL, str(error))
    if other is None:
        return _quoted(entry, session, ours)
    try:
        return _recomputed(entry, ours, [other.calculate(calculation) for calculation in entry.calculations])
    except Interrupted:
        raise
    except Dfmp2Error as error:  # the other program cannot do it, which says nothing about ours
        return _without_value(entry, other, SKIPPED, str(error))


def _from_kernel(entry: Entry, kernel: Kernel, session: Session) -> list[Row]:
    rows = []
    for quantity in entry.quantities:
        value, allowance = session.evaluate(kernel, quantity.value)
        rows.append(_judged(_row(entry, quantity, quantity.value, value, _limit(entry, session, allowance))))
    return rows


def _quoted(entry: Entry, session: Session, ours: list[tuple[Values, Values]]) -> list[Row]:
    """Our values against the published ones."""
    rows = []
    for quantity in entry.quantities:
        value, allowance = _combination(quantity, ours)
        rows.append(_judged(_row(entry, quantity, quantity.value, value, _limit(entry, session, allowance))))
    return rows


def _recomputed(entry: Entry, ours: list[tuple[Values, Values]], theirs: list[tuple[str, Values]]) -> list[Row]:
    """Our values against another program's, where it reports them (the nuclear repulsion it does not)."""
    program, _, version = theirs[0][0].partition(" ")
    rows = []
    for quantity in entry.quantities:
        if quantity.of not in theirs[0][1]:
            continue
        value, allowance = _combination(quantity, ours)
        reference = combined([values for _, values in theirs], quantity.of, quantity.factors)
        scale = max(1.0, sum(abs(factor) for factor in quantity.factors))
        limit = AGAINST_TOLERANCE * scale + allowance if entry.published is None else entry.tolerance
        row = _row(entry, quantity, reference, value, limit)
        row = replace(row, program=program, version=version, source="recomputed now", reason=AGAINST_REASON)
        rows.append(_judged(row))
    return rows


def _combination(quantity: Quantity, ours: list[tuple[Values, Values]]) -> tuple[float, float]:
    """Our value of a quantity and the certificate's part of its limit."""
    values, allowances = [value for value, _ in ours], [allowance for _, allowance in ours]
    return combined(values, quantity.of, quantity.factors), spread(allowances, quantity.of, quantity.factors)


def _limit(entry: Entry, session: Session, allowance: float) -> float:
    """Largest difference allowed; a published one is to be undercut as it stands."""
    if entry.published is not None:
        return entry.tolerance
    if session.precision == "fp64" or allowance == 0.0:
        return entry.tolerance
    return (entry.tolerance if entry.tolerance_mixed is None else entry.tolerance_mixed) + allowance


def _row(entry: Entry, quantity: Quantity, reference: float, value: float, limit: float) -> Row:
    """A row that has not been judged yet."""
    return Row(
        id=entry.id,
        program=entry.program,
        version=entry.version,
        quantity=quantity.name,
        reference=reference,
        value=value,
        difference=value - reference,
        tolerance=limit,
        status=PASS,
        reason=entry.tolerance_reason,
        source="; ".join(entry.source),
        published=entry.published,
    )


def _judged(row: Row) -> Row:
    if row.difference is None or abs(row.difference) <= row.tolerance:  # false for NaN
        return row
    return replace(
        row, status=FAIL, reason=f"off by {abs(row.difference):.1e} Eh, {row.tolerance:.1e} are allowed: {row.reason}"
    )


def _without_value(entry: Entry, other: Other | None, status: str, reason: str) -> list[Row]:
    return [
        Row(
            id=entry.id,
            program=entry.program if other is None else other.name,
            version=entry.version if other is None else "",
            quantity=quantity.name,
            reference=quantity.value if other is None else None,
            value=None,
            difference=None,
            tolerance=entry.tolerance,
            status=status,
            reason=reason,
            source="; ".join(entry.source),
            published=entry.published,
        )
        for quantity in entry.quantities
    ]
