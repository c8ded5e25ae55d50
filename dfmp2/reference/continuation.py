"""Go on with an SCF where it was stopped, to the last bit.

PySCF's loop depends on its last density, on the Fock and error vectors of DIIS and on the rung of our ladder. Both
kinds of vectors follow from the densities of up to eight iterations,

    F = h + J(D) - K(D) / 2        e = X^T (S D F - F D S) X        D = C_occ n C_occ^T

so the occupied orbitals of these iterations are all that is kept. From them the same routines make the same bits; the
matrix of DIIS, a few numbers, is kept as it is. The second-order solver keeps more than that: it is begun again from
the orbitals it was begun with. PySCF's conventional SCF that recomputes its integrals adds up differences of Fock
matrices from the first iteration on, so it is begun again as a whole.
"""

from __future__ import annotations

from collections import deque
from collections.abc import Callable
from dataclasses import dataclass
from typing import Any

import numpy as np
from numpy.typing import NDArray

from dfmp2.checkpoint.encoding import Section
from dfmp2.checkpoint.journal import Journal
from dfmp2.reference.exchange_schedule import ExchangeSchedule

Array = NDArray[np.float64]
NAME = "scf"


@dataclass(frozen=True, slots=True, eq=False)
class Iteration:
    """Orbitals that an iteration ended with.

    Attributes
    ----------
    occupied : per spin (nao, nocc) float64
    occupations : (nmo,) or (2, nmo) float64
    single : whether the exchange of their density was built in float32
    """

    occupied: list[Array]
    occupations: Array
    single: bool


class Continuation:
    """Keeps what an SCF needs to go on, and brings one back.

    Parameters
    ----------
    journal : of the run
    mf : PySCF mean field; schedule : its exchange schedule or None
    """

    def __init__(self, journal: Journal, mf: Any, schedule: ExchangeSchedule | None) -> None:
        self._journal, self._schedule = journal, schedule
        self._fitted = getattr(mf, "with_df", None)
        self._recent: deque[Iteration] = deque(maxlen=mf.diis_space + 1 if journal.active else 0)
        self._rung = self._cycles = self._done = self._before = 0
        self._entry: dict[str, Array] = {}
        self._single = schedule is not None
        self._found = journal.section(NAME)
        self.history: list[tuple[float, float, float]] = []
        self.ladder: list[str] = []
        if self._found is not None:
            self.history += [(e, d, g) for e, d, g in self._found.values["history"]]
            self.ladder += self._found.values["ladder"]

    def passed(self, rung: int) -> bool:
        """Whether the run that was stopped had left this rung of the ladder behind."""
        return self._found is not None and rung < self._found.values["rung"]

    def enter(self, rung: int, name: str, cycles: int, mf: Any, density: Any) -> Any:
        """Begin a rung, or go on with it; returns the density to begin with and sets `mf` up.

        Parameters
        ----------
        rung : its number; cycles : that it may take
        """
        self._rung, self._cycles, self._done, self._before = rung, cycles, 0, len(self.history)
        self._recent.clear()
        mf.max_cycle = cycles
        if not self._journal.active:
            self.ladder.append(name)
            return density
        mf.diis, mf.diis_start_cycle = True, type(mf).diis_start_cycle
        self._entry = {} if rung == 0 else {"coeff": np.asarray(mf.mo_coeff), "occ": np.asarray(mf.mo_occ)}
        if rung and self._schedule is not None:
            self._schedule.finish()
            self._single = False
        found, self._found = self._found, None
        if found is None:
            self.ladder.append(name)
            if rung:
                self._journal.keep(NAME, lambda: self._state(None))
            return density
        if rung:
            mf.mo_coeff, mf.mo_occ = found.arrays["coeff"], found.arrays["occ"]
            self._entry = {"coeff": mf.mo_coeff, "occ": mf.mo_occ}
            density = mf.make_rdm1()
        return self._restore(found, mf) if found.values["done"] else density

    def iteration(self, envs: dict[str, Any]) -> None:
        """Note an iteration that has ended; may save it, and may stop the run there."""
        if not self._journal.active:
            return
        diis = envs.get("mf_diis")
        if diis is None:  # the second-order solver, which is begun again
            self._journal.safe_point()
            return
        self._done += 1
        coeff, occ = np.asarray(envs["mo_coeff"]), np.asarray(envs["mo_occ"])
        spins = [(coeff, occ)] if occ.ndim == 1 else list(zip(coeff, occ, strict=True))
        self._recent.append(Iteration([c[:, n > 0] for c, n in spins], occ, self._single))
        self._single = bool(self._schedule is not None and self._fitted is not None and self._fitted.single)
        # After the last iteration of a rung PySCF's loop cannot be entered again; what follows is saved elsewhere.
        if not envs["scf_conv"] and self._done < self._cycles and _repeatable(envs["mf"]):
            self._journal.keep(NAME, lambda: self._state(diis))
            self._journal.safe_point()

    def _state(self, diis: Any) -> Section:
        used = [] if diis is None else list(diis._bookkeep)
        kept = [] if diis is None else list(self._recent)[-1 - len(used) :]
        arrays = dict(self._entry)
        for number, one in enumerate(kept):
            arrays[f"occupations {number}"] = one.occupations
            arrays |= {f"occupied {number} {spin}": c for spin, c in enumerate(one.occupied)}
        if used and diis._H is not None:
            arrays["matrix"] = diis._H
        schedule = self._schedule
        values = {
            "rung": self._rung,
            "done": 0 if diis is None else self._done,
            "history": self.history[: self._before] if diis is None else self.history,
            "ladder": self.ladder,
            "single": [one.single for one in kept],
            "used": used,
            "head": 0 if diis is None else diis._head,
            "next_single": self._single,
            "schedule": None if schedule is None else schedule.state(),
        }
        return Section(values, arrays)

    def _restore(self, found: Section, mf: Any) -> Any:
        """Set `mf` and its DIIS up as they were, and return the density of the last iteration."""
        values, arrays = found.values, found.arrays
        count = len(values["single"])
        for k in range(count):
            occupations = arrays[f"occupations {k}"]
            occupied = [arrays[f"occupied {k} {spin}"] for spin in range(occupations.ndim)]
            self._recent.append(Iteration(occupied, occupations, values["single"][k]))
        self._done = values["done"]
        densities = [_density(one, mf) for one in self._recent]
        overlap, core = mf.get_ovlp(), mf.get_hcore()
        diis = mf.DIIS(mf, mf.diis_file)
        diis.space, diis.rollback, diis.damp = mf.diis_space, mf.diis_space_rollback, mf.diis_damp
        diis.Corth = mf.check_linear_dependency(overlap)
        mf.build(mf.mol)
        for slot, one, density in zip(values["used"], self._recent, densities, strict=False):
            self._build_in(one.single)
            fock = np.asarray(mf.get_fock(core, overlap, mf.get_veff(mf.mol, density), density))
            diis._head = slot
            diis.push_err_vec(_error_vector(overlap, density, fock, diis.Corth))
            diis._store(f"x{slot}", fock.ravel())
        diis._bookkeep, diis._head = list(values["used"]), values["head"]
        diis._H = arrays.get("matrix")
        mf.diis, mf.diis_start_cycle = diis, 0
        mf.max_cycle = self._cycles - self._done
        if self._schedule is not None and values["schedule"] is not None:
            self._schedule.restore(values["schedule"])
        self._single = bool(values["next_single"])
        self._build_in(self._recent[-1].single)
        mf.pre_kernel = self._switch(mf, self._single)
        return densities[-1]

    def _build_in(self, single: bool) -> None:
        if self._schedule is not None and self._fitted is not None:
            self._fitted.single = single

    def _switch(self, mf: Any, single: bool) -> Callable[[dict[str, Any]], None]:
        """For PySCF to call after the first Fock matrix, which is in the last iteration's precision."""

        def switch(envs: dict[str, Any]) -> None:
            self._build_in(single)
            del mf.pre_kernel

        return switch


def _density(one: Iteration, mf: Any) -> Any:
    """The density that PySCF made of these orbitals, in the same way: the virtual ones do not enter."""
    spins = [one.occupations] if one.occupations.ndim == 1 else list(one.occupations)
    coeff = np.zeros((len(spins), len(one.occupied[0]), one.occupations.shape[-1]))
    for whole, occupied, n in zip(coeff, one.occupied, spins, strict=True):
        whole[:, n > 0] = occupied
    return mf.make_rdm1(coeff[0] if one.occupations.ndim == 1 else coeff, one.occupations)


def _error_vector(overlap: Array, density: Any, fock: Array, orthogonal: Array) -> Any:
    from pyscf.scf.diis import get_err_vec

    return get_err_vec(overlap, density, fock, orthogonal)


def _repeatable(mf: Any) -> bool:
    """Whether the Fock matrix of a density can be built again without those of earlier iterations."""
    return getattr(mf, "with_df", None) is not None or mf._eri is not None or not mf.direct_scf
