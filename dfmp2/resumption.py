"""What a run takes over from the one that was stopped: how memory was divided, the reference, B on disk."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import replace
from pathlib import Path

from dfmp2.checkpoint.encoding import Section
from dfmp2.checkpoint.journal import Journal
from dfmp2.checkpoint.stages import Kept, from_kept, from_reference, to_kept, to_reference
from dfmp2.errors import ResourceError
from dfmp2.fitting import MetricFactor, orbital_groups
from dfmp2.planning import Plan
from dfmp2.progress import Listener
from dfmp2.ranks.shared_files import SharedFiles
from dfmp2.ranks.team import ALONE, Team
from dfmp2.record import Reference
from dfmp2.scratch.space import Space
from dfmp2.scratch.tensor import Home, StoredTensor

LAYOUT, REFERENCE, SCRATCH, SCF = "layout", "reference", "scratch", "scf"
TOLERATED = 64 * 10**6  # bytes of the program itself that may have come since: libraries, buffers


def same_layout(plan: Plan, journal: Journal, listener: Listener) -> Plan:
    """The plan with memory divided as in the run that was stopped: the size of blocks decides about last bits."""
    found = journal.section(LAYOUT)
    if found is not None:
        before = replace(plan.memory, program=int(found.values["program"]), budget=int(found.values["budget"]))
        needed = before.predicted_peak - before.program
        if before.fits and needed <= plan.memory.room + TOLERATED:
            plan = replace(plan, memory=before)
        else:
            listener.warning(
                "there is less memory than when the run was stopped, so arrays are cut in another way: the last bits "
                "of the energies may differ from those of a run that was never stopped"
            )
    journal.keep(LAYOUT, Section({"program": plan.memory.program, "budget": plan.memory.budget}))
    return plan


def solved(journal: Journal, compute: Callable[[], Reference]) -> Reference:
    """The reference, computed unless the run that was stopped had converged it; saved in any case."""
    found = journal.section(REFERENCE)
    if found is None:
        reference = compute()
        keep_reference(journal, reference)
        return reference
    journal.keep(REFERENCE, found)
    return to_reference(found)


def keep_reference(journal: Journal, reference: Reference) -> None:
    """Save the converged reference in place of the SCF's iterations."""
    journal.drop(SCF)
    journal.keep(REFERENCE, from_reference(reference))
    journal.milestone()


def stored_tensors(
    space: Space, shapes: list[tuple[int, int]], naux: int, journal: Journal, team: Team = ALONE
) -> list[StoredTensor]:
    """Room on disk for B of each spin."""
    home: Home = space if team.size == 1 else SharedFiles(space, team)
    signed = bool(team.told(lambda: Section({"signed": journal.active})).values["signed"])
    return [
        StoredTensor(home, f"b-{spin}", (nocc, nvir, naux), orbital_groups(nocc, nvir, naux), signed=signed)
        for spin, (nocc, nvir) in enumerate(shapes)
    ]


def kept_tensors(
    space: Space, shapes: list[tuple[int, int]], naux: int, journal: Journal, listener: Listener, team: Team = ALONE
) -> tuple[list[StoredTensor], Kept] | None:
    """B of each spin as a stopped run has left it on disk, if it is there and has its hashes; rank 0 looks."""
    found = _kept(space, shapes, naux, journal, listener) if team.rank == 0 else None
    if team.size == 1:
        return found
    told = team.told(lambda: Section({} if found is None else from_kept(found[1]).values)).values
    if not told:
        return None
    kept, home = to_kept(told), SharedFiles(space, team)
    return [
        StoredTensor(home, f"b-{spin}", shape, orbital_groups(*shape[:2], naux), existing=True)
        for spin, shape in enumerate(kept.shapes)
    ], kept


def _kept(
    space: Space, shapes: list[tuple[int, int]], naux: int, journal: Journal, listener: Listener
) -> tuple[list[StoredTensor], Kept] | None:
    found = journal.section(SCRATCH)
    if found is None:
        return None
    kept = to_kept(found.values)
    if [shape[:2] for shape in kept.shapes] != shapes or not space.adopt(Path(kept.folder)):
        return None
    listener.stage(f"checking the fitted integrals in {kept.folder}")
    tensors = []
    try:
        for spin, (shape, digests) in enumerate(zip(kept.shapes, kept.digests, strict=True)):
            groups = orbital_groups(*shape[:2], naux)
            tensors.append(StoredTensor(space, f"b-{spin}", shape, groups, existing=True, signed=True))
            if not tensors[-1].agrees(digests):
                raise ResourceError("the numbers do not have their hash")
    except ResourceError as error:
        listener.stage(f"fitted integrals in {kept.folder} are not used: {error}")
        space.close()
        return None
    journal.keep(SCRATCH, found)
    return tensors, kept


def keep_tensors(space: Space, journal: Journal, tensors: list[StoredTensor], factor: MetricFactor) -> None:
    """Let B on disk outlive this run if it is stopped."""
    if not (journal.active and tensors and space.folder is not None and space.keep(journal.path)):
        return
    kept = Kept(
        str(space.folder),
        tuple(tensor.shape for tensor in tensors),
        tuple(tensor.digests for tensor in tensors),
        factor.condition,
        factor.dropped,
        factor.threshold,
    )
    journal.keep(SCRATCH, from_kept(kept))
