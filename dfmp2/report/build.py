"""Results to a page: one in full, or several compared and then each in full."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import replace

from dfmp2.io.study import Study
from dfmp2.provenance import version
from dfmp2.report import single
from dfmp2.report.comparison import comparison_sections, group_sections, overview
from dfmp2.report.cost import Speed
from dfmp2.report.kinship import Entry, kinship
from dfmp2.report.page import Note, Page, Section
from dfmp2.report.study import study_headline, study_section

MOST_IN_FULL = 12  # results that get sections of their own; more would make a page nobody reads to its end


def footer(sources: str) -> str:
    """How the page was made."""
    return f"Written by dfmp2 {version()} from {sources}. Energies in hartree (Eh) unless another unit is named."


def single_page(entry: Entry, speed: Speed, title: str | None) -> Page:
    """The report of one result."""
    result = entry.result
    return Page(
        title or f"{result.molecule.name}: DF-MP2/{result.orbital_basis.name}",
        f"{result.molecule.formula}, {single.method_name(result)}; computed {result.provenance.created}",
        single.headline(result),
        single.sections(result, "", 2, speed, entry.content),
        footer(entry.name),
    )


def study_page(study: Study, entries: Sequence[Entry], speeds: Sequence[Speed], title: str | None, file: str) -> Page:
    """The report of a study: what it found, then its runs."""
    anchored = _anchored(entries)
    found = kinship(anchored)
    # Only the plot of a scan is added: what follows from the runs of another study stands in the study itself.
    scans = group_sections(replace(found, lanes=(), series=())) if study.kind == "scan" else ()
    return Page(
        title or study.title,
        f"{study.kind} of {len(entries)} runs; computed {study.created} by dfmp2 {study.version}",
        study_headline(study),
        (
            study_section(study),
            Section("overview", "Runs", (overview(anchored),)),
            *scans,
            *_in_full(anchored, speeds),
        ),
        footer(file),
    )


def several_page(entries: Sequence[Entry], speeds: Sequence[Speed], title: str | None) -> Page:
    """The report of several results.

    Parameters
    ----------
    speeds : one per entry, see `dfmp2.report.single.sections`
    """
    entries = _anchored(entries)
    kin = kinship(entries)
    molecules = list(dict.fromkeys(entry.result.molecule.formula for entry in entries))
    shown = ", ".join(molecules[:4]) + (", ..." if len(molecules) > 4 else "")
    return Page(
        title or f"{len(entries)} DF-MP2 results: {shown}",
        "; ".join(list(dict.fromkeys(single.method_name(entry.result) for entry in entries))[:3]),
        (
            ("results", str(len(entries))),
            ("molecules", str(len(molecules))),
            ("differ in", ", ".join(kin.differing) or "nothing"),
            ("warnings", str(sum(len(entry.result.diagnostics.warnings) for entry in entries))),
        ),
        (*comparison_sections(entries, kin), *_in_full(entries, speeds)),
        footer(", ".join(entry.name for entry in entries[:6]) + (", ..." if len(entries) > 6 else "")),
    )


def _anchored(entries: Sequence[Entry]) -> list[Entry]:
    """The entries, the first of them with the anchors of their sections."""
    return [
        replace(entry, anchor=f"r{place}-" if place <= MOST_IN_FULL else "")
        for place, entry in enumerate(entries, start=1)
    ]


def _in_full(entries: Sequence[Entry], speeds: Sequence[Speed]) -> list[Section]:
    """All sections of the first entries."""
    sections = []
    for entry, speed in list(zip(entries, speeds, strict=True))[:MOST_IN_FULL]:
        sections.append(Section(f"{entry.anchor}top", entry.name, ()))
        sections += single.sections(entry.result, entry.anchor, 3, speed, entry.content)
    if len(entries) > MOST_IN_FULL:
        said = (
            f"The first {MOST_IN_FULL} of {len(entries)} results are shown in full; dfmp2 report shows any of the "
            "others when it is named alone."
        )
        sections.append(Section("rest", "Not shown in full", (Note("info", said),)))
    return sections
