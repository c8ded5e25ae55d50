"""What ranks settle together before a number is computed: every rank must cut arrays and choose as rank 0 does."""

from __future__ import annotations

from dataclasses import replace

from dfmp2.backends.registry import select
from dfmp2.checkpoint.encoding import Section
from dfmp2.checkpoint.journal import Journal
from dfmp2.errors import UnsupportedByBackend
from dfmp2.memory import SLACK
from dfmp2.planning import Plan
from dfmp2.progress import Listener
from dfmp2.ranks.shared_files import require_common
from dfmp2.ranks.team import Team
from dfmp2.resumption import same_layout
from dfmp2.route import Route
from dfmp2.scratch.space import Space
from dfmp2.system import Setup


def same_threads(setup: Setup, team: Team) -> Setup:
    """The set-up with the threads of rank 0, on which the bits of the SCF and of the fit depend."""
    count = int(team.told(lambda: Section({"threads": setup.threads})).values["threads"])
    if count == setup.threads:
        return setup
    backend, _ = select(setup.options.backend, setup.options.precision, count)
    return replace(setup, threads=count, active=count, backend=backend)


def same_backend(setup: Setup, team: Team) -> Setup:
    """The set-up with the backend that rank 0 has chosen, for the reason it gives; B is made on the host.

    Raises
    ------
    BackendUnavailable : this rank cannot use it
    UnsupportedByBackend : B was to be made on a device
    """
    if team.size == 1:
        return setup
    if setup.options.transform == "device":
        raise UnsupportedByBackend("--transform device: ranks share B, so it is made on the host: use --transform host")
    made = Section({"name": setup.backend.name, "reason": setup.backend_reason})
    told = team.told(lambda: made).values
    if told["name"] != setup.backend.name:
        setup = replace(setup, backend=select(told["name"], setup.options.precision, setup.threads)[0])
    if setup.route.on_device:
        setup = replace(setup, route=Route("host", "ranks share B", setup.route.chip))
    return replace(setup, backend_reason=told["reason"])


def sharing(team: Team) -> int:
    """Ranks that have this host's memory in common, 0 where there are other hosts as well."""
    return team.local if team.in_memory else 0


def same_plan(plan: Plan, journal: Journal, listener: Listener, team: Team) -> Plan:
    """The plan that fits into the memory of every rank, or that of a run that was stopped."""
    if team.size == 1:
        return same_layout(plan, journal, listener)
    room = min(int(section.values["room"]) for section in team.collect(Section({"room": plan.memory.room})))
    plan = replace(plan, memory=replace(plan.memory, budget=plan.memory.program + SLACK + room))

    def layout() -> Section:
        memory = same_layout(plan, journal, listener).memory
        return Section({"program": memory.program, "budget": memory.budget})

    told = team.told(layout).values
    return replace(plan, memory=replace(plan.memory, program=int(told["program"]), budget=int(told["budget"])))


def require_common_scratch(plan: Plan, space: Space, team: Team) -> None:
    """Make sure, where B goes to disk, that all ranks see the folder of rank 0.

    Raises
    ------
    ResourceError : some do not
    """
    if team.size > 1 and not plan.memory.mp2_fits_in_core:
        require_common(space, team)
