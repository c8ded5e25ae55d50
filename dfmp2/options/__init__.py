"""What the user may choose, checked when it is built.

Every field is declared once, here: it is a command line option of the same name (`--scf-conv-tol`
is `scf_conv_tol`), a key of a manifest, and a keyword argument of the Python interface. The types
of the keywords are below, in parts, since not every function takes all of them;
`tests/test_python.py` holds them against the fields.
"""

from __future__ import annotations

import difflib
import math
import os
import re
from collections.abc import Iterable
from dataclasses import MISSING, Field, dataclass, field, fields, replace
from decimal import Decimal
from typing import Any, Literal, TypedDict, get_args

from dfmp2.double_hybrids import DISPERSIONS, DoubleHybrid, look_up
from dfmp2.errors import InputError
from dfmp2.errors.messages import Command, Message, Option, plain
from dfmp2.errors.wishes import way_out_of_option
from dfmp2.options.basis_parts import with_hashes
from dfmp2.options.grid_names import parse_grid
from dfmp2.options.methods import (
    CUSTOM,
    CUSTOM_DOUBLE_HYBRID,
    KAPPA,
    KOHN_SHAM,
    METHODS,
    MP2,
    OWN_DOUBLE_HYBRID,
    Method,
    canonical_method,
    custom_scaling,
    functionals_of,
    without_dispersion,
)

BackendName = Literal[
    "auto",
    "cpu",
    "torch",
    "cuda",
    "cuda-tf32",
    "nki",
    "nki-xla",
    "nki-simulator",
    "nki-interpreter",
]
BACKENDS: tuple[BackendName, ...] = get_args(BackendName)  # as `dfmp2.backends.registry` has them
# How much of a result a file keeps, from the least on (`dfmp2.output.kept`).
KEPT = ("energies", "properties", "all")
ALL = "all"
CONVERGENCE = (  # of an optimisation, by geomeTRIC's names
    "GAU",
    "GAU_LOOSE",
    "GAU_TIGHT",
    "GAU_VERYTIGHT",
    "NWCHEM_LOOSE",
    "TURBOMOLE",
    "INTERFRAG_TIGHT",
)


class MoleculeKeywords(TypedDict, total=False):
    """What may be said of a molecule beside its atoms; no options of a calculation."""

    charge: int | None
    multiplicity: int | None
    units: Literal["angstrom", "bohr"] | None
    point_charges: Any
    point_charge_units: Literal["angstrom", "bohr"]


class ScfKeywords(TypedDict, total=False):
    """What a mean field that has converged leaves no choice about."""

    reference: Literal["auto", "rhf", "uhf", "rohf"]
    xc: str | None
    grid: int | str | tuple[int, int] | None
    relativity: Literal["none", "x2c"]
    solvent: str | None
    solvent_model: Literal["cpcm", "smd"]
    scf: Literal["df", "conventional"]
    scf_auxbasis: str | None
    scf_conv_tol: float
    scf_max_cycles: int
    guess: Literal["atoms", "mix", "core"]
    scf_from: str | os.PathLike[str] | None
    scf_starts: int


class SpaceKeywords(TypedDict, total=False):
    """Orbitals and functions that pairs are made of."""

    stability: Literal["auto", "full", "follow", "off"] | None
    allow_poor_fit: bool
    frozen_core: int | Literal["none", "auto", "psi4", "orca", "pyscf"]
    frozen_virtual: int
    allow_small_gap: bool


class PairKeywords(TypedDict, total=False):
    """The pair energies, `dfmp2 energy`."""

    method: Literal[
        "mp2",
        "scs-mp2",
        "sos-mp2",
        "scs-vdw-mp2",
        "scsn-mp2",
        "kappa-mp2",
        "sos-laplace",
        "drpa",
        "ks",
        "custom-scs-mp2",
        "custom-dh",
        "b2plyp",
        "b2gp-plyp",
        "b2k-plyp",
        "b2t-plyp",
        "mpw2plyp",
        "pbe0-dh",
        "pbe-qidh",
        "pbe0-2",
        "ptpss",
        "pwpb95",
        "dsd-blyp",
        "dsd-blyp-d3bj",
        "dsd-pbep86",
        "dsd-pbep86-d3bj",
        "dsd-pbepbe",
        "dsd-pbepbe-d3bj",
        "dsd-pbeb95",
        "dsd-pbeb95-d3bj",
        "revdsd-blyp-d3bj",
        "revdsd-pbep86-d3bj",
        "revdsd-pbep86-d4",
        "xyg3",
        "xygj-os",
        "xdh-pbe0",
        "wb97x-2(lp)",
        "wb97x-2(tqz)",
        "wb2plyp",
        "wb2gp-plyp",
        "wb88pp86",
        "wpbepp86",
        "rsx-0dh",
        "rsx-qidh",
    ]
    dispersion: Literal["auto", "none", "d3bj", "d4"]
    laplace: bool
    kappa: float | None
    os_scale: float | None
    ss_scale: float | None
    backend: BackendName
    tolerance: float
    check: bool
    certify_fit: bool


class MachineKeywords(TypedDict, total=False):
    """Both parts of a run."""

    precision: Literal["auto", "fp64", "mixed"]
    memory: int | str | None
    scratch: str | os.PathLike[str] | None
    threads: int | None


class WholeRunKeywords(TypedDict, total=False):
    """What needs both parts in one run."""

    properties: bool
    polarizability: bool


class PreparedKeywords(ScfKeywords, SpaceKeywords, MachineKeywords, total=False):
    """Everything up to B, `dfmp2 prepare`."""

    auxbasis: str | None


class EnergyKeywords(PairKeywords, MachineKeywords):
    """What `dfmp2 energy` takes."""


class MeanFieldKeywords(SpaceKeywords, PairKeywords, MachineKeywords, WholeRunKeywords):
    """What is left to choose on a mean field, but its fitting set."""


class Keywords(PreparedKeywords, PairKeywords, WholeRunKeywords, total=False):
    """All options but the basis, which is no keyword."""

    transform: Literal["auto", "host", "device"]


# Which part of a run an option concerns: everything up to B (dfmp2 prepare), the pair energies
# (dfmp2 energy), or both.
BOTH_PARTS = tuple(MachineKeywords.__annotations__)
BEFORE_PAIRS = (
    "basis",
    *(name for name in PreparedKeywords.__annotations__ if name not in BOTH_PARTS),
)
PAIRS = tuple(PairKeywords.__annotations__)
WHOLE_RUN = tuple(WholeRunKeywords.__annotations__)
NEEDS_WHOLE_RUN = Message(
    " needs the integrals of the SCF again, which no prepared file holds: use ", Command("run")
)


BACKEND_WORDS = {"pytorch": "torch"}  # other words for backends
SOLVENT_MODELS = {"cpcm": "C-PCM", "smd": "SMD"}
SMD = "smd"  # the solvent model that has an energy beside its reaction field


def _option(
    says: str,
    default: Any = None,
    *,
    choices: tuple[str, ...] = (),
    shown: str = "",
    metavar: str | None = None,
    least: int | None = None,
    positive: bool = False,
) -> Any:
    """A field of `Options`: its help on the command line, its default, and what its values are held
    to.

    Parameters
    ----------
    choices : all values allowed
    shown : the default in words, where None stands for it
    least : of a whole number
    positive : whether a number must be above zero
    """
    return field(
        default=default,
        metadata={
            "help": says,
            "choices": choices,
            "shown": shown,
            "metavar": metavar,
            "least": least,
            "positive": positive,
        },
    )


@dataclass(frozen=True, slots=True)
class Options:
    """Options of one DF-MP2 calculation, refused with an InputError where a value is not
    allowed."""

    basis: str = _option("Basis, e.g. cc-pvdz or cc-pvdz,I=def2-svp.", MISSING, metavar="NAME")
    reference: str = _option(
        "auto: RHF for singlets, else UHF.", "auto", choices=("auto", "rhf", "uhf", "rohf")
    )
    xc: str | None = _option(
        "Functional of Kohn-Sham orbitals for drpa and custom-dh, e.g. pbe.",
        shown="Hartree-Fock",
        metavar="NAME",
    )
    grid: str | None = _option(
        "Integration grid of a functional: level of PySCF, 0 to 9, or points of each atom such as "
        "99,590.",
        shown="3, meta-GGAs more",
        metavar="LEVEL|NRAD,NANG",
    )
    relativity: str = _option(
        "x2c: spin-free one-electron X2C Hamiltonian, for all-electron bases.",
        "none",
        choices=("none", "x2c"),
    )
    solvent: str | None = _option(
        "Solvent around the molecule as a continuum, by name, or a dielectric constant.",
        shown="gas phase",
        metavar="NAME|eps=VALUE",
    )
    solvent_model: str = _option(
        "Of the solvent: C-PCM, or SMD with its non-electrostatic energy.",
        "cpcm",
        choices=tuple(SOLVENT_MODELS),
    )
    scf: str = _option(
        "Density-fitted or four-centre integrals in the SCF.", "df", choices=("df", "conventional")
    )
    scf_auxbasis: str | None = _option(
        "SCF fitting set.", shown="partner of --basis", metavar="NAME"
    )
    scf_conv_tol: float = (
        _option(  # E(corr) is of first order in the orbital error, hence the gradient
            "SCF energy change; the gradient must fall below 0.1 sqrt of it.",
            1e-10,
            metavar="EH",
            positive=True,
        )
    )
    scf_max_cycles: int = _option("Limit on the iterations of one SCF.", 100, least=1)
    guess: str = _option(
        "Start of the SCF (mix: HOMO and LUMO mixed, UHF only).",
        "atoms",
        choices=("atoms", "mix", "core"),
    )
    scf_from: str | None = _option(
        "Start orbitals: an earlier result or PySCF chkfile.", metavar="FILE"
    )
    scf_starts: int = _option(
        "Starts of which the lowest SCF solution is kept.", 1, metavar="N", least=1
    )
    stability: str | None = _option(
        "Is the SCF solution a minimum? auto: frontier orbitals; full: all rotations; follow: "
        "along an instability to a lower one of the same reference.",
        choices=("auto", "full", "follow", "off"),
        shown="follow for UHF, auto for RHF",
    )
    auxbasis: str | None = _option(
        "MP2 fitting set or auto.", shown="partner of --basis", metavar="NAME"
    )
    frozen_core: str = _option(
        "Orbitals left uncorrelated.", "none", metavar="none|auto|psi4|orca|pyscf|N"
    )
    frozen_virtual: int = _option("Highest virtuals left out.", 0, metavar="N", least=0)
    method: str = _option(
        "See dfmp2 methods: double hybrids too.", "mp2", metavar="NAME", choices=tuple(METHODS)
    )
    dispersion: str = _option(
        "Dispersion correction of a double hybrid; auto: what its name says.",
        "auto",
        choices=("auto", "none", *DISPERSIONS),
    )
    laplace: bool = _option(
        "Second order of a double hybrid without same spin by a Laplace transform.", False
    )
    kappa: float | None = _option(
        "Of kappa-mp2.", shown=f"{KAPPA} with kappa-mp2", metavar="1/EH", positive=True
    )
    os_scale: float | None = _option("Opposite-spin factor of a custom scaled energy.")
    ss_scale: float | None = _option("Same-spin factor of a custom scaled energy.")
    backend: str = _option(
        "See dfmp2 backends.", "auto", metavar="NAME", shown="$DFMP2_BACKEND or auto"
    )
    precision: str = _option("Of the pair energies.", "auto", choices=("auto", "fp64", "mixed"))
    tolerance: float = _option(
        "Largest error of E(corr) accepted from float32 (95 % bound) or a quadrature.",
        1e-7,
        metavar="EH",
        positive=True,
    )
    transform: str = _option(
        "Where B is made: device on cuda, with J and K, and Trainium lanes (auto: cuda's, else host).",
        "auto",
        choices=("auto", "host", "device"),
    )
    memory: int | None = _option("Peak, e.g. 8GB.", shown="what is free", metavar="SIZE", least=1)
    scratch: str | None = _option(
        "For what does not fit into memory.",
        shown="$DFMP2_SCRATCH, else $TMPDIR, else /tmp",
        metavar="DIR",
    )
    threads: int | None = _option("Threads of this process.", shown="usable cores", least=1)
    allow_small_gap: bool = _option("Go on with a HOMO-LUMO gap below 0.02 Eh.", False)
    allow_poor_fit: bool = _option(
        "Take a named fitting set that is off by over 1 mEh an atom.", False
    )
    certify_fit: bool = _option(
        "Measure the fitting error in the molecule with four-centre integrals.", False
    )
    properties: bool = _option("Also moments, charges, occupations (relaxed density).", False)
    polarizability: bool = _option(
        "Also the polarizability, by six runs in finite fields; implies --properties.", False
    )
    check: bool = _option("Also run PySCF's own DF-MP2 on the same orbitals.", False)

    def __post_init__(self) -> None:
        for option in fields(Options):
            object.__setattr__(self, option.name, plain(getattr(self, option.name)))
        for name, kinds, expected in (
            ("frozen_core", int | str, "a number of orbitals or a dialect"),
            ("scratch", str | os.PathLike | None, "the path of a folder"),
        ):
            value = getattr(self, name)
            if isinstance(value, bool) or not isinstance(value, kinds):
                raise InputError(Option(name), f" is a {type(value).__name__}: expected {expected}")
        object.__setattr__(self, "frozen_core", str(self.frozen_core).strip().lower())
        object.__setattr__(self, "backend", BACKEND_WORDS.get(self.backend, self.backend))
        if self.method == CUSTOM:
            if self.os_scale is None and self.ss_scale is None:
                raise InputError(
                    Option("method", CUSTOM),
                    " needs ",
                    Option("os_scale"),
                    " or ",
                    Option("ss_scale"),
                    ": give the factors, or leave it out",
                )
            object.__setattr__(self, "method", MP2.name)
        if isinstance(self.memory, str):
            object.__setattr__(self, "memory", parse_bytes(self.memory))
        if self.grid is not None:
            object.__setattr__(self, "grid", parse_grid(self.grid))
        if self.scratch is not None:
            object.__setattr__(self, "scratch", os.fspath(self.scratch))
            if not self.scratch:
                raise InputError(Option("scratch"), " is empty: name a folder")
        if isinstance(self.method, str):
            object.__setattr__(self, "method", canonical_method(self.method))
        for option in fields(Options):
            _require_allowed(getattr(self, option.name), option)
        if not self.basis.strip():
            raise InputError(Option("basis"), " is empty: name an orbital basis such as cc-pvdz")
        object.__setattr__(self, "basis", with_hashes(self.basis))
        if self.polarizability:
            object.__setattr__(self, "properties", True)
        if self.scf == "conventional" and self.scf_auxbasis is not None:
            raise InputError(
                Option("scf", "conventional"),
                " uses no fitting set, but ",
                Option("scf_auxbasis", self.scf_auxbasis),
                " was given: drop one of the two (the MP2 fitting set is ",
                Option("auxbasis"),
                ")",
            )
        method = self.correlation
        if self.xc is not None:
            self._require_kohn_sham()
        if method.double_hybrid:
            self._require_double_hybrid()
        self._require_dispersion()
        if self.laplace:
            self._require_opposite_spin_alone()
        if self.grid is not None and self.functional is None:
            raise InputError(
                Option("grid", self.grid),
                " belongs to a functional, and Hartree-Fock has none: name one with ",
                Option("xc"),
                ", or leave it out",
            )
        if self.kappa is not None and not method.regularised:
            raise InputError(
                Option("kappa", self.kappa),
                " belongs to ",
                Option("method", "kappa-mp2"),
                f", not to {self.method}: add or drop one",
            )
        scaled = self.os_scale is not None or self.ss_scale is not None
        if scaled and self.method != "mp2" and not method.double_hybrid:
            if method.kind == "rpa":
                own = "is"
            else:
                own = "has factors of its own,"
            method = METHODS[self.method]
            raise InputError(
                Option("method", self.method),
                f" {own} {method.formula.replace('+', 'and')}: drop ",
                Option("os_scale"),
                " and ",
                Option("ss_scale"),
                ", or ",
                Option("method"),
            )
        if method.kind != "pairs":
            self._require_no_pairs()
        if method.regularised and (self.check or self.certify_fit):
            named = "check" if self.check else "certify_fit"
            raise InputError(
                Option(named, True),
                " is of plain MP2, not of ",
                Option("method", self.method),
                ": drop one of the two",
            )
        if self.reference == "rohf" and (self.certify_fit or self.stability not in (None, "off")):
            if self.certify_fit:
                refused = Option("certify_fit", True)
            else:
                refused = Option("stability", self.stability)
            raise InputError(
                refused,
                " is not there for ",
                Option("reference", "rohf"),
                ": leave it out, or use ",
                Option("reference", "uhf"),
            )
        self._require_solvent()
        if self.guess != "atoms" and self.scf_from is not None:
            raise InputError(
                Option("guess", self.guess),
                " and ",
                Option("scf_from", self.scf_from),
                " both name the start of the SCF: drop one of them",
            )

    def _require_solvent(self) -> None:
        """Raise for what a solvent lacks: all that needs the response of its reaction field."""
        if self.solvent is None:
            if self.solvent_model != "cpcm":
                raise InputError(
                    Option("solvent_model", self.solvent_model),
                    " belongs to ",
                    Option("solvent"),
                    ": name one, such as ",
                    Option("solvent", "water"),
                )
            return
        eps = dielectric_constant(self.solvent)
        if eps is not None and self.solvent_model == SMD:
            raise InputError(
                Option("solvent_model", SMD),
                " has parameters for solvents by name, and ",
                Option("solvent", self.solvent),
                " is a dielectric constant: name a solvent, or leave out ",
                Option("solvent_model"),
            )
        refused = {
            "certify_fit": self.certify_fit,
            "polarizability": self.polarizability,
            "properties": self.properties,
            "stability": self.stability not in (None, "off"),
        }
        for name, is_asked in refused.items():
            if is_asked:
                raise InputError(
                    Option(name, getattr(self, name)),
                    " is not available with ",
                    Option("solvent", self.solvent),
                    ": it needs the response of the reaction field. Leave it out, or compute it in "
                    "the gas phase",
                )

    def _require_kohn_sham(self) -> None:
        """Refuse what Kohn-Sham orbitals are not for, and a functional without a name."""
        object.__setattr__(self, "xc", str(self.xc).strip().lower())
        if not self.xc:
            raise InputError(
                Option("xc"),
                " is empty: name a functional such as pbe, or leave it out for Hartree-Fock",
            )
        if self.reference == "rohf":
            raise InputError(
                Option("xc"),
                " has no restricted open-shell orbitals: use ",
                Option("reference", "uhf"),
                " (or auto), not rohf",
            )
        if self.double_hybrid is not None:
            raise InputError(
                Option("method", self.method),
                " has a functional of its own, and ",
                Option("xc", self.xc),
                " was given: drop one of the two, or take ",
                *OWN_DOUBLE_HYBRID,
            )
        if self.method not in ("drpa", KOHN_SHAM, CUSTOM_DOUBLE_HYBRID):
            raise InputError(
                Option("method", self.method),
                " is not there on Kohn-Sham orbitals (",
                Option("xc", self.xc),
                "): of second order they need a double hybrid. Take ",
                Option("method", KOHN_SHAM),
                " for the functional alone, ",
                Option("method", "drpa"),
                ", a double hybrid by its name such as ",
                Option("method", "b2plyp"),
                f", or {CUSTOM_DOUBLE_HYBRID}; or leave ",
                Option("xc"),
                " out",
            )
        self._require_all_rotations(Option("xc", self.xc))

    def _require_all_rotations(self, given: Option) -> None:
        """Raise for a stability analysis of the frontier orbitals, which are those of Hartree-Fock;
        `given` is the option that asks for Kohn-Sham orbitals."""
        if self.stability == "auto":
            raise InputError(
                Option("stability", self.stability),
                " looks at the frontier orbitals of Hartree-Fock alone, not at Kohn-Sham orbitals (",
                given,
                "): take ",
                Option("stability", "full"),
                ", or ",
                Option("stability", "follow"),
                " for a lower solution, or leave it out",
            )

    def _require_double_hybrid(self) -> None:
        """Raise for what a double hybrid lacks."""
        given = Option("method", self.method)
        if self.method == KOHN_SHAM:
            self._require_functional_alone(given)
        if self.method == CUSTOM_DOUBLE_HYBRID:
            needed = ("xc", "os_scale", "ss_scale")
            missing = [Option(name) for name in needed if getattr(self, name) is None]
            if missing:
                listed = [part for option in missing for part in (" and ", option)]
                raise InputError(
                    given,
                    " needs ",
                    *listed[1:],
                    ": give the functional and both factors, or name a double hybrid of dfmp2 "
                    "methods",
                )
        if self.reference == "rohf":
            raise InputError(
                given,
                " has no restricted open-shell orbitals (ROKS): use ",
                Option("reference", "uhf"),
                " (or auto), not rohf",
            )
        self._require_all_rotations(given)
        if self.certify_fit and self.energy_functional is not None:
            raise InputError(
                Option("certify_fit", True),
                " is not available for double hybrids with another functional for the energy (",
                given,
                "): leave it out, or take one with the same functional for orbitals and energy, "
                "such as ",
                Option("method", "b2plyp"),
            )

    def _require_functional_alone(self, given: Option) -> None:
        """Raise for a missing functional, and for what belongs to a correlation energy."""
        if self.xc is None:
            raise InputError(
                given,
                " needs ",
                Option("xc"),
                ": name a functional, such as ",
                Option("xc", "pbe0"),
                ", or leave both out for MP2",
            )
        unused = {
            "auxbasis": self.auxbasis is not None,
            "frozen_core": self.frozen_core != "none",
            "frozen_virtual": self.frozen_virtual != 0,
        }
        for name, is_asked in unused.items():
            if is_asked:
                raise InputError(
                    given,
                    " has no correlated orbitals, to which ",
                    Option(name, getattr(self, name)),
                    " belongs: leave it out",
                )

    def _require_dispersion(self) -> None:
        """Raise for a dispersion correction that there are no parameters for."""
        if self.dispersion in ("auto", "none"):
            return
        row = self.double_hybrid
        if row is None:
            raise InputError(
                Option("dispersion", self.dispersion),
                " belongs to double hybrids by name, not to ",
                Option("method", self.method),
                ": leave it out, or take ",
                Option("method", "b2plyp"),
                " for example",
            )
        if not row.parameters_in(self.dispersion):
            raise InputError(
                Option("dispersion", self.dispersion),
                f": no parameters of {DISPERSIONS[self.dispersion]} are published for {row.title}: ",
                without_dispersion(row),
            )

    def _require_opposite_spin_alone(self) -> None:
        """Raise for a Laplace transform of a method that is no double hybrid of opposite spin."""
        given = Option("laplace", True)
        method = self.correlation
        if not method.double_hybrid:
            raise InputError(
                given,
                " belongs to double hybrids, not to ",
                Option("method", self.method),
                ": leave it out, or take ",
                Option("method", "sos-laplace"),
            )
        if method.same_spin != 0.0 or method.opposite_spin == 0.0:
            raise InputError(
                given,
                f" takes opposite spin alone, but this functional has {method.formula}: leave it "
                "out, take one such as ",
                Option("method", "xygj-os"),
                ", or add ",
                Option("ss_scale", "0"),
                " for a functional of your own",
            )

    def _require_no_pairs(self) -> None:
        """Refuse what takes pair energies, of a method that has none."""
        asked = {
            Option("precision", self.precision): self.precision == "mixed",
            Option("backend", self.backend): self.backend not in ("auto", "cpu"),
            Option("transform", self.transform): self.transform == "device",
            Option("check", True): self.check,
            Option("certify_fit", True): self.certify_fit,
            Option("properties", True): self.properties and self.method != KOHN_SHAM,
            Option("reference", self.reference): self.method == "drpa" and self.reference == "rohf",
        }
        if self.method == "sos-laplace":
            way_out = Message("or take ", Option("method", "sos-mp2"))
        elif self.laplace:
            way_out = Message("or leave out ", Option("laplace"))
        elif self.method == KOHN_SHAM:
            way_out = Message("or take a double hybrid, such as ", Option("method", "b2plyp"))
        else:
            way_out = Message("or take another method")
        by_quadrature = Message()
        if self.laplace:
            by_quadrature = Message(" with ", Option("laplace", True))
        for option, is_asked in asked.items():
            if is_asked:
                raise InputError(
                    Option("method", self.method),
                    by_quadrature,
                    " has no pair energies and runs in float64 on the host, so ",
                    option,
                    " is not there for it: leave it out, ",
                    way_out,
                )

    def unrestricted(self, multiplicity: int) -> bool:
        """Whether the reference of a molecule of this multiplicity is UHF."""
        return self.reference == "uhf" or (self.reference == "auto" and multiplicity != 1)

    def settled(self, multiplicity: int) -> Options:
        """The options for a molecule of this multiplicity, with the stability analysis that is its
        default."""
        if self.stability is not None:
            return self
        unexamined = self.functional is not None or self.solvent is not None
        if self.reference == "rohf" or unexamined:
            return replace(self, stability="off")
        return replace(self, stability="follow" if self.unrestricted(multiplicity) else "auto")

    @property
    def double_hybrid(self) -> DoubleHybrid | None:
        """The row of the table of double hybrids, None for a method that is not in it."""
        if self.method in METHODS or self.method == CUSTOM_DOUBLE_HYBRID:
            return None
        return look_up(self.method)

    @property
    def functional(self) -> str | None:
        """The functional of the orbitals in libxc's terms, None for those of Hartree-Fock."""
        return functionals_of(self.method, self.xc)[0]

    @property
    def energy_functional(self) -> str | None:
        """The functional of the energy, None where it is not another one than that of the
        orbitals."""
        return functionals_of(self.method, self.xc)[1]

    @property
    def solvent_title(self) -> str:
        """The solvent and its model, such as "water (C-PCM)"; "" in the gas phase."""
        if self.solvent is None:
            return ""
        return f"{self.solvent} ({SOLVENT_MODELS[self.solvent_model]})"

    @property
    def dispersion_correction(self) -> tuple[str, str] | None:
        """Which dispersion correction, and the name of the functional in its package; None for
        none."""
        row = self.double_hybrid
        if row is None or self.dispersion == "none":
            return None
        if self.dispersion == "auto":
            wanted = row.dispersion
        else:
            wanted = self.dispersion
        if not wanted:
            return None
        return wanted, row.parameters_in(wanted)

    @property
    def correlation(self) -> Method:
        """The correlation energy asked for: that of `method`, or with the user's own factors."""
        if self.method in METHODS:
            return custom_scaling(self.os_scale, self.ss_scale) or METHODS[self.method]
        row = self.double_hybrid
        factors = self.os_scale, self.ss_scale
        if self.laplace:
            kind = "laplace"
        else:
            kind = "pairs"
        if row is None:
            opposite, same = (0.0 if factor is None else factor for factor in factors)
            return Method(
                CUSTOM_DOUBLE_HYBRID,
                "double hybrid",
                opposite,
                same,
                "user",
                kind=kind,
                double_hybrid=True,
            )
        name, title, source = row.name, row.title, f"doi {row.doi}"
        if factors != (None, None):
            name, title = CUSTOM_DOUBLE_HYBRID, f"scaled {row.title}"
            source = f"user; functional: {source}"
        return Method(
            name,
            title,
            row.opposite_spin if self.os_scale is None else self.os_scale,
            row.same_spin if self.ss_scale is None else self.ss_scale,
            source,
            kind=kind,
            double_hybrid=True,
        )

    @property
    def regulariser(self) -> float | None:
        """kappa, 1/Eh, None where the pair terms are those of plain MP2."""
        if self.correlation.regularised:
            return self.kappa or KAPPA
        return None

    @property
    def scf_gradient_tol(self) -> float:
        """Largest norm of the orbital gradient at convergence, Eh."""
        return 0.1 * math.sqrt(self.scf_conv_tol)


Options.__doc__ = f"{Options.__doc__}\n\nAttributes\n----------\n" + "\n".join(
    f"{option.name} : {option.metadata['help']}" for option in fields(Options)
)


def make_options(**given: Any) -> Options:
    """Options from keyword arguments, with an error naming an unknown one; $DFMP2_BACKEND where no
    backend is given."""
    require_known_option(given, Options.__slots__)
    if "basis" not in given:
        raise InputError("no basis was given: name an orbital basis, e.g. basis='cc-pvdz'")
    return Options(**{"backend": default_backend(), **given})


def require_known_option(
    given: Iterable[str], known: Iterable[str], shown: Iterable[str] | None = None
) -> None:
    """Refuse a keyword that there is not, and say which one may be meant.

    Parameters
    ----------
    known : names that are accepted
    shown : those that are listed where none of them is close; None for all
    """
    names = set(known)
    for name in given:
        if name not in names:
            close = difflib.get_close_matches(name, names, n=1)
            advice = way_out_of_option(name)
            if close and not advice:
                advice = Message(f"did you mean {close[0]}?")
            if not advice:
                advice = Message(f"the options are {', '.join(sorted(shown or names))}")
            raise InputError(f"unknown option {name!r}: ", advice)


def default_backend() -> str:
    """The backend where none is asked for: $DFMP2_BACKEND, else auto."""
    return os.environ.get("DFMP2_BACKEND") or "auto"


def _require_allowed(value: Any, option: Field[Any]) -> None:
    """Refuse a value of another kind than that of the option, or beyond its bounds."""
    choices, least, kind = option.metadata["choices"], option.metadata["least"], str(option.type)
    named = Option(option.name, value)
    if choices and option.name != "method":  # which takes double hybrids too
        if value not in choices and (value is not None or "None" not in kind):
            raise InputError(named, f": expected one of {', '.join(choices)}")
    elif value is None:
        return
    elif kind.startswith("str") and not isinstance(value, str):
        raise InputError(named, ": expected text")
    elif kind == "bool" and not isinstance(value, bool):
        raise InputError(named, ": expected true or false")
    elif least is not None:
        if isinstance(value, bool) or not isinstance(value, int) or value < least:
            raise InputError(named, f": expected a whole number, {least} or more")
    elif kind.startswith("float"):
        if (
            isinstance(value, bool)
            or not isinstance(value, int | float)
            or not math.isfinite(value)
        ):
            raise InputError(named, ": expected a finite number")
        if option.metadata["positive"] and value <= 0:
            raise InputError(named, ": expected a number above zero")


def dielectric_constant(solvent: str) -> float | None:
    """The dielectric constant that `--solvent eps=VALUE` gives, None for the name of a solvent.

    Raises
    ------
    InputError : it is no number above 1
    """
    name, equals, value = solvent.partition("=")
    if not solvent.strip():
        raise InputError(
            Option("solvent"), " is empty: name a solvent such as water, or leave it out"
        )
    if not equals:
        return None
    try:
        eps = float(value)
    except ValueError:
        eps = math.nan
    if name.strip().lower() != "eps" or not math.isfinite(eps) or eps <= 1.0:
        raise InputError(
            Option("solvent", solvent[:40]),
            ": expected the name of a solvent, or eps= and a dielectric constant above 1, such as "
            "eps=10.4",
        )
    return eps


_PREFIXES = {
    "": 1,
    "k": 10**3,
    "m": 10**6,
    "g": 10**9,
    "t": 10**12,
    "ki": 2**10,
    "mi": 2**20,
    "gi": 2**30,
    "ti": 2**40,
}
_BYTES = re.compile(
    r"([+-]?(?:[0-9]{1,30}(?:\.[0-9]{0,30})?|\.[0-9]{1,30}))\s*(?:([kmgt]i?)b?|b)",
    re.ASCII | re.IGNORECASE,
)
_LARGEST = 2**63 - 1  # what a signed 64-bit size can hold; no machine has more


def parse_bytes(text: str) -> int:
    """Number of bytes named by a text such as "8GB" or "8G" (10^9), "8 GiB" or "8Gi" (2^30); units
    in any case.

    Where other programs take G for 2^30, 10^9 is the smaller one and keeps within what was meant. A
    number without a unit is refused: 8 could mean 8 bytes, 8 MB (PySCF) or 8 GB.

    Raises
    ------
    InputError : not a number with a unit, unknown unit, zero, negative or absurdly large
    """
    match = _BYTES.fullmatch(text.strip())
    if match:
        size = int(Decimal(match[1]) * _PREFIXES[(match[2] or "").lower()])
    else:
        size = 0
    if not 1 <= size <= _LARGEST:
        raise InputError(
            Option("memory", text[:40]),
            ": expected a number with a unit (B, kB, MB, GB, TB, KiB, MiB, GiB or TiB), "
            "from 1 byte to 9 million TB, such as 8GB or 7.5GiB",
        )
    return size
