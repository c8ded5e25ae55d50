"""What the user may choose, checked when it is built.

Every field is a command line option of the same name (`--scf-conv-tol` is `scf_conv_tol`); the
Python interface takes the same names as keyword arguments.
"""

from __future__ import annotations

import math
import os
from dataclasses import dataclass, fields, replace
from typing import Any

from dfmp2.errors import InputError
from dfmp2.units import parse_bytes

CHOICES = {
    "reference": ("auto", "rhf", "uhf"),
    "scf": ("df", "conventional"),
    "relativity": ("none", "x2c"),
    "precision": ("auto", "fp64", "mixed"),
    "guess": ("atoms", "mix", "core"),
    "stability": (None, "auto", "full", "follow", "off"),
    "transform": ("auto", "host", "device"),
}

# Which part of a run an option concerns: everything up to B (dfmp2 prepare), the pair energies (dfmp2 energy), or both.
BEFORE_PAIRS = (
    *("basis", "reference", "relativity", "scf", "scf_auxbasis", "scf_conv_tol", "scf_max_cycles"),
    *("guess", "scf_from", "scf_starts", "stability"),
    *("auxbasis", "allow_poor_fit", "frozen_core", "frozen_virtual", "allow_small_gap"),
)
PAIRS = ("os_scale", "ss_scale", "backend", "tolerance", "check")
BOTH_PARTS = ("precision", "memory", "scratch", "threads")


@dataclass(frozen=True, slots=True)
class Options:
    """Options of one DF-MP2 calculation.

    Attributes
    ----------
    basis : orbital basis name
    reference : "auto" (RHF for singlets, else UHF), "rhf" or "uhf"
    relativity : "none", or "x2c" for the spin-free one-electron X2C Hamiltonian, for all-electron bases
    scf : "df" (density-fitted Coulomb and exchange) or "conventional" (four-index integrals)
    scf_auxbasis : Coulomb-exchange fitting set of the SCF, None for the partner of `basis`
    scf_conv_tol : SCF energy change at convergence, Eh; the orbital gradient must also fall below
        0.1 sqrt(scf_conv_tol), because E(corr) is of first order in the orbital error
    scf_max_cycles : limit on the iterations of one SCF, the rescue ladder included
    guess : start of the SCF: "atoms" (their densities), "mix" (UHF: HOMO and LUMO mixed, oppositely in alpha and
        beta) or "core" (core Hamiltonian)
    scf_from : file with start orbitals (PySCF chkfile or dfmp2 result), or None
    scf_starts : starts of the SCF, of which the lowest solution is kept: the first as asked for, the others turned at
        random from it
    stability : "auto" (orbital Hessian of the frontier orbitals, exact for small molecules), "full" (all rotations,
        iterative), "follow" (full, and an instability is followed to a minimum) or "off"; None is auto for RHF and
        follow for UHF
    auxbasis : MP2 fitting set, None for the partner of `basis`, "auto" for an even-tempered one
    frozen_core : "none", "auto", "psi4", "orca", "pyscf" or a number of orbitals per spin
    frozen_virtual : number of highest virtual orbitals left out per spin
    os_scale, ss_scale : factors of the custom scaled MP2 energy; None = not asked for
    backend : name of a row of the backend registry, or "auto"
    precision : "auto", "fp64" or "mixed"
    tolerance : largest estimated precision error accepted in mixed precision, Eh
    transform : where B is made of the fitted integrals: "host", "device" (backends that can), or "auto" for the one
        predicted to be faster
    memory : peak resident memory allowed for the process, bytes (text such as "8GB" is converted);
        None for what the machine has free
    scratch : folder for what does not fit into memory, None for $DFMP2_SCRATCH, else $TMPDIR or the
        system's temporary folder
    threads : number of threads, None for the number of usable cores
    allow_small_gap : go on below the refused HOMO-LUMO gap
    allow_poor_fit : take a fitting set that was named whatever its error on the atoms
    check : also run PySCF's own DF-MP2 on the same orbitals and fitting set
    """

    basis: str
    reference: str = "auto"
    relativity: str = "none"
    scf: str = "df"
    scf_auxbasis: str | None = None
    scf_conv_tol: float = 1e-10
    scf_max_cycles: int = 100
    guess: str = "atoms"
    scf_from: str | None = None
    scf_starts: int = 1
    stability: str | None = None
    auxbasis: str | None = None
    frozen_core: str = "none"
    frozen_virtual: int = 0
    os_scale: float | None = None
    ss_scale: float | None = None
    backend: str = "auto"
    precision: str = "auto"
    tolerance: float = 1e-7
    transform: str = "auto"
    memory: int | None = None
    scratch: str | None = None
    threads: int | None = None
    allow_small_gap: bool = False
    allow_poor_fit: bool = False
    check: bool = False

    def __post_init__(self) -> None:
        for name, allowed in CHOICES.items():
            value = getattr(self, name)
            if value not in allowed:
                names = ", ".join(one for one in allowed if one is not None)
                raise InputError(f"--{name} {value!r}: expected one of {names}")
        object.__setattr__(self, "frozen_core", str(self.frozen_core).strip().lower())
        if isinstance(self.memory, str):
            object.__setattr__(self, "memory", parse_bytes(self.memory))
        if self.scratch is not None:
            object.__setattr__(self, "scratch", os.fspath(self.scratch))
            if not self.scratch:
                raise InputError("--scratch is empty: name a folder")
        _require_finite(self, "scf_conv_tol", "tolerance", positive=True)
        _require_finite(self, "os_scale", "ss_scale", positive=False)
        _require_whole(self, "scf_max_cycles", "scf_starts", "threads", "memory", least=1)
        _require_whole(self, "frozen_virtual", least=0)
        if not self.basis.strip():
            raise InputError("--basis is empty: name an orbital basis such as cc-pvdz")
        if self.scf == "conventional" and self.scf_auxbasis is not None:
            raise InputError(
                f"--scf conventional uses no fitting set, but --scf-auxbasis {self.scf_auxbasis} was given: "
                "drop one of the two (the MP2 fitting set is --auxbasis)"
            )

        if self.guess != "atoms" and self.scf_from is not None:
            raise InputError(
                f"--guess {self.guess} and --scf-from {self.scf_from} both name the start of the SCF: drop one of them"
            )

    def unrestricted(self, multiplicity: int) -> bool:
        """Whether the reference of a molecule of this multiplicity is UHF."""
        return self.reference == "uhf" or (self.reference == "auto" and multiplicity != 1)

    def settled(self, multiplicity: int) -> Options:
        """The options for a molecule of this multiplicity, with the stability analysis that is its default."""
        if self.stability is not None:
            return self
        return replace(self, stability="follow" if self.unrestricted(multiplicity) else "auto")

    @property
    def scf_gradient_tol(self) -> float:
        """Largest norm of the orbital gradient at convergence, Eh."""
        return 0.1 * math.sqrt(self.scf_conv_tol)


def make_options(**given: Any) -> Options:
    """Options from keyword arguments, with an error naming an unknown one; $DFMP2_BACKEND where no backend is given."""
    known = {field.name for field in fields(Options)}
    unknown = sorted(set(given) - known)
    if unknown:
        raise InputError(f"unknown option {unknown[0]!r}: the options are {', '.join(sorted(known))}")
    if "basis" not in given:
        raise InputError("no basis was given: name an orbital basis, e.g. basis='cc-pvdz'")
    return Options(**{"backend": default_backend(), **given})


def default_backend() -> str:
    """The backend where none is asked for: $DFMP2_BACKEND, else auto."""
    return os.environ.get("DFMP2_BACKEND") or "auto"


def _require_finite(options: Options, *names: str, positive: bool) -> None:
    for name in names:
        value = getattr(options, name)
        if value is None:
            continue
        if isinstance(value, bool) or not isinstance(value, int | float) or not math.isfinite(value):
            raise InputError(f"{_flag(name)} {value!r}: expected a finite number")
        if positive and value <= 0:
            raise InputError(f"{_flag(name)} {value!r}: expected a number above zero")


def _require_whole(options: Options, *names: str, least: int) -> None:
    for name in names:
        value = getattr(options, name)
        if value is None:
            continue
        if isinstance(value, bool) or not isinstance(value, int) or value < least:
            raise InputError(f"{_flag(name)} {value!r}: expected a whole number, {least} or more")


def _flag(name: str) -> str:
    return "--" + name.replace("_", "-")
