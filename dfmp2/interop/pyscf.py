"""DF-MP2 as PySCF's own post-SCF classes are used: on a converged RHF or UHF, density-fitted or not.

    from pyscf import gto
    from dfmp2.interop.pyscf import DFMP2
    mf = gto.M(atom="O 0 0 0.12; H 0 0.76 -0.47; H 0 -0.76 -0.47", basis="cc-pvdz").RHF().density_fit().run()
    mp = mf.apply(DFMP2, frozen=1).run()
    mp.e_corr, mp.e_corr_ss, mp.e_corr_os, mp.e_tot

Importing this module changes nothing in PySCF.
"""

from __future__ import annotations

from typing import Any, ClassVar

from dfmp2.errors import InputError
from dfmp2.interop.python import OF_THE_SCF, from_mean_field
from dfmp2.interop.qcschema import read_keywords
from dfmp2.molecule.pyscf_shield import import_pyscf
from dfmp2.mp2.result import MP2Result
from dfmp2.progress import Listener

import_pyscf()
from pyscf import lib  # noqa: E402 - after the shield, which is what must import it first

SETTINGS = ("frozen", "auxbasis", "options")
ELSEWHERE = {
    **dict.fromkeys((*OF_THE_SCF, "scf_conv_tol"), "the SCF has already been done"),
    "auxbasis": "it is auxbasis=",
    "frozen_core": "it is frozen=",
}


def _energy(name: str, what: str) -> Any:
    """An energy of the result, None before there is one."""
    return property(lambda mp: None if mp.result is None else getattr(mp.result, name), doc=what)


class DFMP2(lib.StreamObject):  # type: ignore[misc] # PySCF's types are not followed
    """DF-MP2 on a mean field.

    Parameters
    ----------
    mf : converged PySCF RHF or UHF of a molecule, spherical functions, also sf-X2C-1e and among point charges; what
        cannot be recorded and repeated is refused by name
    frozen : orbitals per spin left uncorrelated, or a dialect ("auto", "pyscf", "psi4", "orca"); None for none.
        Lists of orbitals are refused
    auxbasis : MP2 fitting set by name; None for the partner of the orbital basis
    options : other fields of `dfmp2.Options` that concern the MP2 step (precision, backend, memory, threads, ...)

    Attributes
    ----------
    e_corr : MP2 correlation energy, Eh, None before `kernel`
    e_corr_ss, e_corr_os : its same-spin and opposite-spin parts, unscaled
    e_hf, e_tot : of the mean field, and with e_corr
    result : the MP2Result, which `dfmp2.write` stores

    Raises
    ------
    dfmp2.Dfmp2Error : when run, or at once for settings that cannot be taken
    """

    _keys: ClassVar[set[str]] = {*SETTINGS, "mol", "e_corr", "e_corr_ss", "e_corr_os", "e_hf", "result", "max_memory"}

    def __init__(self, mf: Any, frozen: int | str | None = None, auxbasis: str | None = None, **options: Any) -> None:
        if not hasattr(mf, "mol"):
            raise InputError(f"a {type(mf).__name__} is no mean field: expected a PySCF RHF or UHF")
        self._scf = mf
        self.mol = mf.mol
        self.verbose, self.stdout, self.max_memory = mf.verbose, mf.stdout, mf.max_memory
        self.frozen, self.auxbasis, self.options = frozen, auxbasis, options
        self.result: MP2Result | None = None
        _checked(frozen, auxbasis, options)

    @property
    def converged(self) -> bool:
        """Whether there is a result."""
        return self.result is not None

    @property
    def e_hf(self) -> float:
        """E(HF), Eh."""
        return float(self._scf.e_tot)

    e_corr = _energy("correlation_energy", "Correlation energy of the method, Eh.")
    e_corr_ss = _energy("same_spin_correlation_energy", "Its same-spin part, Eh.")
    e_corr_os = _energy("opposite_spin_correlation_energy", "Its opposite-spin part, Eh.")
    e_tot = _energy("total_energy", "E(HF) plus the correlation energy, Eh.")

    def set(self, **settings: Any) -> DFMP2:
        """Change `frozen`, `auxbasis`, `verbose`, `stdout`, or an option of the MP2 step; the result is discarded.

        Raises
        ------
        InputError : unknown, or not of the MP2 step
        """
        for name in ("verbose", "stdout"):
            if name in settings:
                setattr(self, name, settings.pop(name))
        frozen, auxbasis = settings.pop("frozen", self.frozen), settings.pop("auxbasis", self.auxbasis)
        options = {**self.options, **settings}
        _checked(frozen, auxbasis, options)
        self.frozen, self.auxbasis, self.options, self.result = frozen, auxbasis, options, None
        return self

    def kernel(self) -> float:
        """Compute, and return E(corr), Eh.

        Raises
        ------
        dfmp2.Dfmp2Error : see `dfmp2.from_mean_field`
        """
        options = _checked(self.frozen, self.auxbasis, self.options)
        self.result = from_mean_field(self._scf, self.auxbasis, listener=_Logger(self), **options)
        lib.logger.note(
            self,
            "E(DF-MP2) = %.15g  E_corr = %.15g  E_corr_ss = %.15g  E_corr_os = %.15g",
            *(self.e_tot, self.e_corr, self.e_corr_ss, self.e_corr_os),
        )
        return self.result.correlation_energy


class _Logger(Listener):
    """Stages and warnings through PySCF's logger, at its verbosity."""

    def __init__(self, speaker: Any) -> None:
        self._speaker = speaker

    def stage(self, text: str) -> None:
        lib.logger.info(self._speaker, "dfmp2: %s", text)

    def warning(self, text: str) -> None:
        lib.logger.warn(self._speaker, "dfmp2: %s", text)


def _checked(frozen: Any, auxbasis: Any, options: dict[str, Any]) -> dict[str, Any]:
    """Keyword arguments of `from_mean_field`, their names and types checked."""
    if isinstance(frozen, bool) or not isinstance(frozen, int | str | None):
        raise InputError(f"frozen {frozen!r}: expected a number of core orbitals or a dialect, not single orbitals")
    if not isinstance(auxbasis, str | None):
        raise InputError(f"auxbasis is a {type(auxbasis).__name__}: expected the name of a fitting set")
    keywords = {"method": "custom-scs-mp2" if {"os_scale", "ss_scale"} & options.keys() else "mp2", **options}
    read_keywords("given", keywords.pop("method"), keywords, ELSEWHERE)
    return {**options, "frozen_core": "none" if frozen is None else str(frozen)}
