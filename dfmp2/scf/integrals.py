"""Coulomb and exchange of an SCF: the integrals used for them, and where these are kept."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from typing import Any

from dfmp2.scf.rotations import fitting_object

Progress = Callable[[int, int], None]


@dataclass(frozen=True, slots=True, eq=False)
class ScfIntegrals:
    """The two-electron integrals of an SCF.

    Attributes
    ----------
    auxmole : pyscf.gto.Mole or None
        Holds the Coulomb-exchange fitting set; None for a conventional SCF.
    place : str
        For fitted integrals, "memory", "disk", or "pyscf" for PySCF's own builder, which then also
        computes the potential of point charges. For a conventional SCF, "memory" to keep them,
        "disk" to recompute them in each iteration, "pyscf" to let PySCF decide by memory.
    threads : int
        Workers of our own builder.
    room : dfmp2.host.scratch.Room or None
        Required for integrals on disk.
    response_in_memory : bool
        Whether integrals of the occupied orbitals fit into memory when all rotations are examined.
    gathers : bool
        Whether there is memory to gather the integrals of the float32 iterations once, on the host.
    grid_room : int
        Bytes for keeping values of basis functions on the integration grid of Kohn-Sham.
    device : Backend or None
        Computes J and K from fitted integrals in memory; None for the host.
    made : JKFitting or None
        The builder of J and K, if it exists already.
    """

    auxmole: Any
    place: str
    threads: int
    room: Any = None
    response_in_memory: bool = False
    gathers: bool = False
    grid_room: int = 0
    device: Any = None
    made: Any = None

    @property
    def native(self) -> bool:
        """Whether PySCF computes them with its own code."""
        return self.place == "pyscf"

    def attach(self, mf: Any, progress: Progress = lambda done, total: None) -> Any:
        """The mean field with these integrals.

        Parameters
        ----------
        mf : pyscf.scf.hf.SCF
            Mean field with exact Coulomb and exchange matrices.
        progress : callable
            Called with (done, total) while fitted integrals are computed.
        """
        if self.auxmole is None:
            return reproducible(mf, in_memory=None if self.native else self.place == "memory")
        if self.native:
            return mf.density_fit(auxbasis=self.auxmole.basis)
        return mf.density_fit(with_df=self.builder(mf.mol, progress))

    def builder(self, mole: Any, progress: Progress = lambda done, total: None) -> Any:
        """Our builder of J and K for a molecule."""
        if self.made is not None:
            return self.made
        if self.place == "disk":
            from dfmp2.scf.jk_on_disk import DiskIntegrals

            return DiskIntegrals(mole, self.auxmole, self.threads, self.room, progress)
        if self.device is not None:
            from dfmp2.scf.jk_on_device import DeviceIntegrals

            return DeviceIntegrals(mole, self.auxmole, self.threads, self.device, progress)
        from dfmp2.scf.jk import JKFitting

        builder = JKFitting(mole, self.auxmole, self.threads, progress)
        builder.gathers = self.gathers
        return builder


def release_integrals(mf: Any) -> None:
    """Free the fitted SCF integrals of a mean field that is no longer needed."""
    fitted = fitting_object(mf)
    if fitted is not None:
        fitted.discard()


def reproducible(mf: Any, in_memory: bool | None = None) -> Any:
    """A conventional PySCF mean field whose J and K from integrals in memory do not depend on
    thread scheduling.

    Parameters
    ----------
    mf : pyscf.scf.hf.SCF
    in_memory : bool, optional
        Whether four-centre integrals are kept; by default PySCF decides, and wants 8 nao^4 bytes.
    """
    from pyscf import lib, scf

    class OneAdds(type(mf)):  # type: ignore[misc]
        """J and K from integrals in memory with one thread, including those of long-range
        operators."""

        _keys = frozenset({"_long_range"})
        _eri: Any
        _long_range: dict[float, Any]

        def _is_mem_enough(self) -> bool:
            """Whether four-centre integrals are kept."""
            if in_memory is None:
                return bool(super()._is_mem_enough())
            return in_memory

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
            if omega and self._is_mem_enough():
                if omega not in self._long_range:
                    with self.mol.with_range_coulomb(omega):
                        self._long_range[omega] = self.mol.intor("int2e", aosym="s8")
                with lib.with_omp_threads(1):
                    return scf.hf.dot_eri_dm(self._long_range[omega], dm, hermi, with_j, with_k)
            if self._eri is None and not omega and self._is_mem_enough():
                self._eri = self.mol.intor("int2e", aosym="s8")
            asked = mol, dm, hermi, with_j, with_k, omega
            if self._eri is None or omega:
                return super().get_jk(*asked)
            with lib.with_omp_threads(1):
                return super().get_jk(*asked)

    mf.__class__ = OneAdds
    mf._long_range = {}
    return mf
