"""Elements of an HTML page in order, with their attributes and text, for the tests of `dfmp2
report`."""

from __future__ import annotations

import dataclasses
import re
from dataclasses import dataclass, field
from html.parser import HTMLParser

import numpy as np

from dfmp2.mp2.pairs import PairEnergies
from dfmp2.mp2.result import MP2Result
from dfmp2.output.html.sources import Entry, Origin, result_page, study_page
from dfmp2.output.study import Column, Study

RAISED = str.maketrans("⁻⁰¹²³⁴⁵⁶⁷⁸⁹", "-0123456789")


def ascii_numbers(text: str) -> str:
    """A text of a page with numbers as printed by Python: −7.7 × 10⁻⁶ becomes -7.7e-06."""
    text = re.sub(
        " \N{MULTIPLICATION SIGN} 10([⁻⁰¹²³⁴⁵⁶⁷⁸⁹]+)",
        lambda match: f"e{int(match[1].translate(RAISED)):+03d}",
        text,
    )
    return text.replace("\N{MINUS SIGN}", "-")


CELLS = {"td", "th", "dt", "dd"}
VOID = {"meta", "link", "br", "hr", "img", "input"}


@dataclass
class Elements(HTMLParser):
    """Every element of a page; raises if one is closed in the wrong order."""

    tags: list[str] = field(default_factory=list)
    attributes: list[tuple[str, str, str]] = field(default_factory=list)  # (element, name, value)
    rows: list[list[str]] = field(default_factory=list)
    text: str = ""
    _open: list[str] = field(default_factory=list)

    def __post_init__(self) -> None:
        super().__init__(convert_charrefs=True)

    def handle_starttag(self, tag, attrs):
        self.handle_startendtag(tag, attrs)
        if tag not in VOID:
            self._open.append(tag)
        if tag in ("tr", "dt"):
            self.rows.append([])
        if tag in CELLS:
            self.rows[-1].append("")

    def handle_startendtag(self, tag, attrs):
        self.tags.append(tag)
        self.attributes += [(tag, name, value or "") for name, value in attrs]

    def handle_endtag(self, tag):
        assert self._open and self._open[-1] == tag, f"</{tag}> closes {self._open[-1:]}"
        self._open.pop()

    def handle_data(self, data):
        if not {"style", "script"} & set(self._open):
            self.text += ascii_numbers(data)
        if CELLS & set(self._open):
            self.rows[-1][-1] += ascii_numbers(data)

    def values(self, name: str) -> list[str]:
        """All values of an attribute."""
        return [value for _, key, value in self.attributes if key == name]

    def row(self, *start: str) -> list[str]:
        """The first row of a table, or label with its value, that starts with these texts."""
        return next(row for row in self.rows if tuple(row[: len(start)]) == start)


def parse(page: str) -> Elements:
    """The elements of a page, all of which must have been closed."""
    elements = Elements()
    elements.feed(page)
    elements.close()
    assert not elements._open, elements._open
    return elements


def page_of(result: MP2Result, title: str | None = None, name: str = "1.h5") -> str:
    """The HTML page of a result, which need not be in a file."""
    return result_page(Entry(name, result, "0" * 64), title)


def page_of_runs(
    *results: MP2Result,
    kind: str = "interaction",
    table: dict[str, Column] | None = None,
    title: str = "runs",
) -> str:
    """The HTML page of a study with these runs, 1.h5 and following, and that table."""
    runs = {f"{place}.h5": result for place, result in enumerate(results, start=1)}
    study = Study(
        kind=kind,
        title=title,
        settings={},
        notes=(),
        values={},
        table=table or {},
        runs=runs,
        complete=bool(table),  # without numbers there is no error to combine
        version="1",
        command="",
        created="2026",
    )
    entries = [Entry(name, result, "0" * 64) for name, result in runs.items()]
    return study_page(study, entries, None, Origin("study.h5", "0" * 64))


def enlarged(result: MP2Result, nocc: int) -> MP2Result:
    """The result with random pair energies of `nocc` orbitals."""
    rng, nmo = np.random.default_rng(7), nocc + 50
    opposite = -(10.0 ** rng.uniform(-8, -2, (nocc, nocc)))
    pairs = PairEnergies(opposite + opposite.T, (0.5 * (opposite + opposite.T),))
    sizes = dataclasses.replace(result.sizes, nocc=(nocc, nocc), nvir=(50, 50), nmo=nmo, nao=nmo)
    reference = dataclasses.replace(
        result.reference,
        mo_energy=np.sort(rng.uniform(-10, 0, (1, nmo))),
        mo_occ=np.where(np.arange(nmo) < nocc, 2.0, 0.0)[None],
        mo_coeff=np.zeros((1, nmo, nmo)),
    )
    return dataclasses.replace(result, pairs=pairs, sizes=sizes, reference=reference)


def open_shell(result: MP2Result, nocc: int) -> MP2Result:
    """An unrestricted result of that size."""
    large = enlarged(result, nocc)
    arrays = ("mo_energy", "mo_occ", "mo_coeff")
    doubled = {name: np.repeat(getattr(large.reference, name), 2, axis=0) for name in arrays}
    reference = dataclasses.replace(large.reference, kind="uhf", **doubled)
    pairs = PairEnergies(large.pairs.opposite_spin, 2 * large.pairs.same_spin)
    return dataclasses.replace(large, pairs=pairs, reference=reference)
