"""Orbitals and the active spaces cut out of them.

A spin's orbitals are sorted by energy: nocc occupied ones first. Frozen core drops the lowest
`frozen_core` occupied orbitals, frozen virtuals the highest `frozen_virtual` ones; both are slices.
nvir follows from nmo, not nao: linear dependence can leave fewer molecular orbitals than functions.
"""

from __future__ import annotations

from dataclasses import dataclass

import numpy as np
from numpy.typing import NDArray

from dfmp2.errors import InputError, Message, NumericalError, Option
from dfmp2.units import told_apart

SMALL_GAP = 0.1  # Eh, warned: perturbation theory becomes questionable
# Eh, between a frozen orbital and another one: an unconverged SCF mixes them by 1e-5 / gap
DEGENERATE = 1e-3
REFUSED_GAP = 0.02  # Eh, refused unless --allow-small-gap: near-degenerate, MP2 is meaningless


@dataclass(frozen=True, slots=True)
class ActiveSpace:
    """Correlated orbitals of one spin.

    Attributes
    ----------
    c_occ : (nao, nocc) float64, active occupied orbital coefficients
    c_vir : (nao, nvir) float64, active virtual orbital coefficients
    eps_occ : (nocc,) float64, orbital energies, Eh
    eps_vir : (nvir,) float64, orbital energies, Eh
    """

    c_occ: NDArray[np.float64]
    c_vir: NDArray[np.float64]
    eps_occ: NDArray[np.float64]
    eps_vir: NDArray[np.float64]

    @property
    def nocc(self) -> int:
        return int(self.eps_occ.size)

    @property
    def nvir(self) -> int:
        return int(self.eps_vir.size)


def active_space(
    mo_coeff: NDArray[np.float64],
    mo_energy: NDArray[np.float64],
    mo_occ: NDArray[np.float64],
    frozen_core: int,
    frozen_virtual: int,
) -> ActiveSpace:
    """Cut the active space of one spin out of its orbitals.

    Parameters
    ----------
    mo_coeff : (nao, nmo) float64
    mo_energy : (nmo,) float64, Eh
    mo_occ : (nmo,) float64, 0 or more
    frozen_core, frozen_virtual : number of lowest occupied / highest virtual orbitals left out

    Raises
    ------
    InputError : no virtual orbitals are left
    """
    occupied = np.flatnonzero(mo_occ > 0)
    virtual = np.flatnonzero(mo_occ == 0)
    occupied = occupied[np.argsort(mo_energy[occupied], kind="stable")][frozen_core:]
    virtual = virtual[np.argsort(mo_energy[virtual], kind="stable")]
    if frozen_virtual and frozen_virtual >= virtual.size:
        raise InputError(
            Option("frozen_virtual", frozen_virtual),
            f" leaves no virtual orbital: there are {virtual.size}; give a smaller number",
        )
    if virtual.size == 0:
        raise InputError(
            "the basis leaves no virtual orbitals for the electrons of one spin: use a larger ",
            Option("basis"),
        )
    virtual = virtual[: virtual.size - frozen_virtual]
    return ActiveSpace(
        c_occ=np.ascontiguousarray(mo_coeff[:, occupied]),
        c_vir=np.ascontiguousarray(mo_coeff[:, virtual]),
        eps_occ=mo_energy[occupied].copy(),
        eps_vir=mo_energy[virtual].copy(),
    )


def arbitrary_cut(
    mo_energy: NDArray[np.float64],
    mo_occ: NDArray[np.float64],
    frozen_core: int,
    frozen_virtual: int,
) -> Message:
    """Warning if the numbers of frozen orbitals separate orbitals of nearly the same energy, else
    "".

    For triplet F2 with one of two core orbitals frozen, 2e-4 Eh apart, E(corr) changes by 5e-5 Eh
    with the convergence of the SCF.

    Parameters
    ----------
    mo_energy, mo_occ : array
        (nspin, nmo) float64.
    """
    for energies, occ in zip(mo_energy, mo_occ, strict=True):
        occupied = np.sort(energies[occ > 0])
        virtual = np.sort(energies[occ == 0])
        for name, count, values, first in (
            ("frozen_core", frozen_core, occupied, frozen_core),
            ("frozen_virtual", frozen_virtual, virtual, len(virtual) - frozen_virtual),
        ):
            if not 0 < first < len(values):
                continue
            apart = values[first] - values[first - 1]
            if apart < DEGENERATE:
                return Message(
                    Option(name, count),
                    f" separates orbitals of nearly equal energy ({apart:.0e} Eh apart): E(corr) "
                    "depends on how the SCF has mixed them; freeze one more or one fewer",
                )
    return Message()


def homo_lumo_gap(mo_energy: NDArray[np.float64], mo_occ: NDArray[np.float64]) -> float:
    """Smallest virtual minus largest occupied orbital energy over the given spins, Eh.

    Parameters
    ----------
    mo_energy, mo_occ : array
        (nspin, nmo) float64; the gap is taken within each spin.
    """
    gaps = [
        float(eps[occ == 0].min() - eps[occ > 0].max())
        for eps, occ in zip(mo_energy, mo_occ, strict=True)
        if (occ > 0).any() and (occ == 0).any()
    ]
    return min(gaps, default=float("inf"))


def smallest_denominator(spaces: list[ActiveSpace]) -> float:
    """Smallest e_a + e_b - e_i - e_j of any amplitude, Eh (inf if there are none).

    One space (restricted) or two (alpha, beta). Opposite-spin amplitudes may repeat an orbital in
    both spins; same-spin amplitudes need two different occupied and two different virtual ones.
    """
    gaps = [float(s.eps_vir[0] - s.eps_occ[-1]) for s in spaces if s.nocc and s.nvir]
    opposite = []
    if len(spaces) == 1:
        opposite = [2.0 * gap for gap in gaps]
    elif len(gaps) == 2:
        opposite = [sum(gaps)]
    same = [
        float(s.eps_vir[0] + s.eps_vir[1] - s.eps_occ[-1] - s.eps_occ[-2])
        for s in spaces
        if s.nocc > 1 and s.nvir > 1
    ]
    return min(opposite + same, default=float("inf"))


def guard_gap(
    gap: float, denominator: float, allow_small_gap: bool, method: str = "MP2"
) -> str | None:
    """Raise for denominators too small for MP2; return a warning for doubtful ones.

    Parameters
    ----------
    gap, denominator : smallest ones, Eh
    allow_small_gap : whether to accept a gap below 0.02 Eh
    method : name for the message

    Raises
    ------
    NumericalError
        A non-positive denominator, or a gap below 0.02 Eh without `allow_small_gap`.
    """
    if denominator <= 0:
        raise NumericalError(
            (
                f"the smallest MP2 denominator e_a + e_b - e_i - e_j is {denominator:.6f} Eh and"
                " must be positive: the reference is not a ground state (try "
            ),
            Option("scf_from"),
            " with better orbitals, or another ",
            Option("multiplicity"),
            ")",
        )
    if gap < REFUSED_GAP and not allow_small_gap:
        found, least = told_apart(".4f", gap, REFUSED_GAP)
        raise NumericalError(
            (
                f"the HOMO-LUMO gap is {found} Eh, below {least} Eh: the reference is "
                f"nearly degenerate, and another one may lie close by, so {method} on it is "
                "unreliable; "
            ),
            Option("allow_small_gap", True),
            " continues anyway",
        )
    if gap < SMALL_GAP:
        found, least = told_apart(".4f", gap, SMALL_GAP)
        return (
            f"the HOMO-LUMO gap is only {found} Eh (below {least}): the {method} "
            "energy may be unreliable"
        )
    return None
