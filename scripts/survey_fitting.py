"""Called by docs/project/validation/fitting-errors.md: measure the fitting error of every element
in every basis of the fitting table.

    python scripts/survey_fitting.py measure [--processes N] [--orbital NAME ...]
    python scripts/survey_fitting.py page  # docs/project/validation/fitting-errors.md

`measure` adds missing rows to dfmp2/fitting/atomic_errors.tsv. An error above the limit is kept
too, with that of the replacement set.
"""

from __future__ import annotations

import argparse
import multiprocessing
import os
import sys
import tempfile
from collections.abc import Iterator
from importlib import metadata
from pathlib import Path

from long_tables import shortened

from dfmp2.errors import InputError
from dfmp2.fitting import sets
from dfmp2.fitting.sets import TABLE, candidates, objection
from dfmp2.molecule.basis_library import resolve_orbital
from dfmp2.molecule.elements import SYMBOLS
from dfmp2.molecule.pyscf_shield import import_pyscf, shielded

PAGE = Path(__file__).parent.parent / "docs/project/validation/fitting-errors.md"
HEAVIEST = 86  # Rn
# Polarisation functions added to each row of Pople sets
POPLE = ("*", "**", "(d,p)", "(2d,2p)", "(2df,p)", "(2df,2pd)", "(3df,3pd)")
ROLES = {"jk": "SCF", "ri": "MP2"}
HEADER = "element\torbital\trole\tfitting\terror\tkey"


def orbital_sets() -> Iterator[str]:
    """Names of all orbital sets of the table, Pople sets with their polarisation functions."""
    for row in TABLE.strip().splitlines():
        for name in row.split("|")[0].split():
            yield name
            if name.startswith("6-31"):
                yield from (name + polarisation for polarisation in POPLE)


def measured(task: tuple[str, str]) -> list[str]:
    """Measured rows for an element in an orbital set: every candidate up to the first that
    passes."""
    name, symbol = task
    try:
        orbital = resolve_orbital(name, [symbol]).elements[symbol]
    except InputError:
        return []
    rows = []
    for role in ("jk", "ri"):
        try:
            with shielded():
                for fitting in candidates(role, orbital):
                    known = sets.fitting_error(role, orbital, fitting)
                    key = sets.fitting_error_key(role, orbital, fitting)
                    rows.append(
                        f"{symbol}\t{orbital.name}\t{role}\t{fitting.name}\t{known:.3e}\t{key}"
                    )
                    if not objection(role, orbital, fitting):
                        break
        except InputError:
            continue
    return rows


def _own_cache(folder: str) -> None:
    os.environ["XDG_CACHE_HOME"] = os.path.join(folder, str(os.getpid()))


def measure(names: list[str], processes: int) -> None:
    """Add the rows that are missing."""
    import_pyscf()
    path = sets.SURVEY
    rows = {line.rsplit("\t", 1)[1]: line for line in path.read_text().splitlines()[1:]}
    tasks = [(name, symbol) for name in names for symbol in SYMBOLS[:HEAVIEST]]
    with (
        tempfile.TemporaryDirectory() as folder,
        multiprocessing.get_context("spawn").Pool(
            processes, _own_cache, (folder,), maxtasksperchild=200
        ) as pool,
    ):
        for number, found in enumerate(pool.imap_unordered(measured, tasks, chunksize=4)):
            rows.update(
                (row.rsplit("\t", 1)[1], row) for row in found if row.rsplit("\t", 1)[1] not in rows
            )
            if number % 200 == 0:
                print(f"{number} of {len(tasks)}, {len(rows)} rows", file=sys.stderr, flush=True)
                save(path, rows)
    save(path, rows)


def save(path: Path, rows: dict[str, str]) -> None:
    """Write the rows, sorted by orbital set and element."""
    order = sorted(
        rows.values(), key=lambda row: (row.split("\t")[1], SYMBOLS.index(row.split("\t")[0]), row)
    )
    path.write_text("\n".join([HEADER, *order]) + "\n", encoding="ascii")


INTRODUCTION = """# Fitting error of every element

Errors of the fitting sets relative to four-centre integrals, measured for single neutral atoms with all electrons
correlated (`dfmp2/fitting/sets.py` gives the equations): {rows} pairs of sets, H to Rn, with PySCF {pyscf}
and Basis Set Exchange {exchange}. `python scripts/survey_fitting.py measure` makes the figures in
`dfmp2/fitting/atomic_errors.tsv`, and `python scripts/survey_fitting.py page` this page.

A set that is off by more than {limit:.0e} Eh per atom, or made for a core potential that the orbital basis does not use,
is not a default. The next set in its row of the table is used instead, or finally an even-tempered one from the
orbital exponents (`auto`); this replaces {replaced} defaults. If you name such a set with `--scf-auxbasis` or
`--auxbasis`, it is refused (exit code 5) unless you add `--allow-poor-fit`.
"""


def page() -> str:
    """Write the documentation page: the largest errors of each orbital set, and every rejected
    set."""
    import_pyscf()
    rows, gone, replaced = [], [], 0
    for orbital in orbital_sets():
        errors: dict[str, list[tuple[float, str]]] = {"jk": [], "ri": []}
        for symbol in SYMBOLS[:HEAVIEST]:
            for role, found in errors.items():
                try:
                    used, lost = chosen(role, orbital, symbol)
                except InputError:  # unknown element, or no fitting set for it
                    continue
                if used:
                    found.append((used[1], symbol))
                if used:
                    instead = f"{used[0]} | {used[1]:+.1e}"
                else:
                    instead = "refused |"
                gone += [
                    f"| {orbital} | {ROLES[role]} | {symbol} | {name} | {why} | {instead} |"
                    for name, why in lost
                ]
                replaced += bool(lost and used)
        counts = f"{len(errors['jk'])}, {len(errors['ri'])}"
        rows.append(
            f"| {orbital} | {counts} | {_largest(errors['jk'])} | {_largest(errors['ri'])} |"
        )
    text = INTRODUCTION.format(
        rows=len(sets.SURVEY.read_text(encoding="ascii").splitlines()) - 1,
        pyscf=metadata.version("pyscf"),
        exchange=metadata.version("basis-set-exchange"),
        limit=sets.LARGEST,
        replaced=replaced,
    )
    table = [
        "| orbital set | elements (SCF, MP2) | largest error of SCF sets, Eh | of MP2 sets, Eh |",
        "|" + "---|" * 4,
    ]
    columns = (
        "orbital set",
        "for",
        "element",
        "set of the table",
        "why not",
        "used instead",
        "its error, Eh",
    )
    head = [f"| {' | '.join(columns)} |", "|" + "---|" * len(columns)]
    return (
        "\n".join(
            [text, "## Sets in use", "", *table, *rows, "", "## Sets not used", "", *head, *gone]
        )
        + "\n"
    )


def chosen(
    role: str, orbital: str, symbol: str
) -> tuple[tuple[str, float] | None, list[tuple[str, str]]]:
    """Default set of an element and its error, None if none is good enough; and the rejected sets
    before it with reasons.

    Raises
    ------
    InputError : unknown element, or no set for it
    LookupError : missing in the survey
    """
    basis = resolve_orbital(orbital, [symbol]).elements[symbol]
    lost = []
    with shielded():
        for fitting in candidates(role, basis):
            error = sets.surveyed(sets.fitting_error_key(role, basis, fitting))
            if error is None:
                raise LookupError(f"{symbol} {orbital} {fitting.name}")
            reason = objection(role, basis, fitting)
            if not reason:
                return (fitting.name, error), lost
            lost.append((fitting.name, reason.removesuffix(" per atom")))
    return None, lost


def _largest(errors: list[tuple[float, str]]) -> str:
    error, symbol = max(errors, key=lambda one: abs(one[0]), default=(0.0, ""))
    return f"{error:+.1e} ({symbol})" if errors else ""


if __name__ == "__main__":
    parser = argparse.ArgumentParser(
        description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    parser.add_argument("what", choices=["measure", "page"])
    parser.add_argument("--processes", type=int, default=1)
    parser.add_argument("--orbital", nargs="*")
    given = parser.parse_args()
    if given.what == "measure":
        measure(given.orbital or list(orbital_sets()), given.processes)
    else:
        PAGE.write_text(shortened(page(), PAGE))
