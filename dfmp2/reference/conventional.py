"""Coulomb and exchange matrices of a conventional SCF, the same bits in every run.

PySCF's OpenMP threads add their parts up in the order in which they finish. Where the four-centre integrals fit into
memory one thread adds up here (144 functions: 0.23 s an iteration, against 4 s once for the integrals, which all
threads compute). Integrals that do not fit are recomputed in every iteration, which takes all threads: there the last
bits vary from run to run, unless there is one thread only.
"""

from __future__ import annotations

from typing import Any


def reproducible(mf: Any) -> Any:
    """A conventional PySCF mean field whose J and K do not depend on how threads are scheduled, while in memory."""
    from pyscf import lib

    class OneAdds(type(mf)):  # type: ignore[misc]
        """J and K of integrals in memory by one thread."""

        _eri: Any

        def get_jk(
            self,
            mol: Any = None,
            dm: Any = None,
            hermi: int = 1,
            with_j: bool = True,
            with_k: bool = True,
            omega: float | None = None,
        ) -> Any:
            """As in PySCF."""
            if self._eri is None and not omega and self._is_mem_enough():
                self._eri = self.mol.intor("int2e", aosym="s8")
            asked = mol, dm, hermi, with_j, with_k, omega
            if self._eri is None or omega:
                return super().get_jk(*asked)
            with lib.with_omp_threads(1):
                return super().get_jk(*asked)

    mf.__class__ = OneAdds
    return mf
