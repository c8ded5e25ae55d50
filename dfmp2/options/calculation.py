"""What the user may choose for one calculation, checked when it is built.

Every field is declared once, here: it is a command line option of the same name (`--scf-conv-tol`
is `scf_conv_tol`), a key of a manifest, and a keyword argument of the Python interface.
`dfmp2.options.combinations` checks which options go together.
"""

from __future__ import annotations

import math
import os
from dataclasses import MISSING, Field, dataclass, field, fields, replace
from typing import Any

from dfmp2.double_hybrids import DISPERSIONS, DoubleHybrid, look_up, with_dispersion
from dfmp2.errors import InputError, Option
from dfmp2.errors.messages import plain
from dfmp2.errors.wishes import require_known_option
from dfmp2.options.basis_parts import with_hashes
from dfmp2.options.combinations import require_compatible
from dfmp2.options.keywords import BACKEND_WORDS
from dfmp2.options.methods import (
    CUSTOM,
    CUSTOM_DOUBLE_HYBRID,
    KAPPA,
    METHODS,
    MP2,
    Method,
    canonical_method,
    custom_scaling,
    functionals_of,
)
from dfmp2.options.values import SOLVENT_MODELS, parse_bytes, parse_grid


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
    """A field of `Options`: its help on the command line, its default, and the allowed values.

    Parameters
    ----------
    choices : all values allowed
    shown : description of the default if it is None
    least : smallest whole number allowed
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
    """Options of one DF-MP2 calculation; a value that is not allowed raises an InputError."""

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
        "Integration grid of a functional: PySCF level, 0 to 9, or points per atom such as 99,590.",
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
        "Solvent model: C-PCM, or SMD with its non-electrostatic energy.",
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
        _option(  # the error of E(corr) is linear in the orbital error, hence the gradient
            "Energy change at convergence; the gradient must fall below 0.1 sqrt of it.",
            1e-10,
            metavar="EH",
            positive=True,
        )
    )
    scf_max_cycles: int = _option("Limit on the iterations of one SCF.", 100, least=1)
    guess: str = _option(
        "Initial orbitals of the SCF (mix: HOMO and LUMO mixed, UHF only).",
        "atoms",
        choices=("atoms", "mix", "core"),
    )
    scf_from: str | None = _option(
        "Start orbitals: an earlier result or PySCF chkfile.", metavar="FILE"
    )
    scf_starts: int = _option(
        "Number of starts; the lowest SCF solution is kept.", 1, metavar="N", least=1
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
    frozen_virtual: int = _option(
        "Number of highest virtual orbitals to leave out.", 0, metavar="N", least=0
    )
    method: str = _option(
        "See dfmp2 methods; double hybrids too.", "mp2", metavar="NAME", choices=tuple(METHODS)
    )
    dispersion: str = _option(
        "Dispersion correction of a double hybrid; auto: as its name says.",
        "auto",
        choices=("auto", "none", *DISPERSIONS),
    )
    laplace: bool = _option(
        "Laplace transform for a double hybrid without a same-spin term.", False
    )
    kappa: float | None = _option(
        "Damping of kappa-mp2.", shown=f"{KAPPA} with kappa-mp2", metavar="1/EH", positive=True
    )
    os_scale: float | None = _option("Opposite-spin factor of a custom scaled energy.")
    ss_scale: float | None = _option("Same-spin factor of a custom scaled energy.")
    backend: str = _option(
        "See dfmp2 backends.", "auto", metavar="NAME", shown="$DFMP2_BACKEND or auto"
    )
    precision: str = _option(
        "Precision of the pair energies.", "auto", choices=("auto", "fp64", "mixed")
    )
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
    memory: int | None = _option(
        "Peak memory, e.g. 8GB.", shown="free memory", metavar="SIZE", least=1
    )
    scratch: str | None = _option(
        "Folder for what does not fit into memory.",
        shown="$DFMP2_SCRATCH, else $TMPDIR, else /tmp",
        metavar="DIR",
    )
    threads: int | None = _option("Threads of this process.", shown="usable cores", least=1)
    allow_small_gap: bool = _option("Continue despite a HOMO-LUMO gap below 0.02 Eh.", False)
    allow_poor_fit: bool = _option(
        "Accept a named fitting set that is off by more than 1 mEh per atom.", False
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
            self._set(option.name, plain(getattr(self, option.name)))
        self._normalise()
        for option in fields(Options):
            _require_allowed(getattr(self, option.name), option)
        if not self.basis.strip():
            raise InputError(Option("basis"), " is empty: name an orbital basis such as cc-pvdz")
        self._set("basis", with_hashes(self.basis))
        if self.polarizability:
            self._set("properties", True)
        if self.xc is not None:
            self._set("xc", self.xc.strip().lower())
        require_compatible(self)

    def _set(self, name: str, value: Any) -> None:
        """Set a field while the options are built."""
        object.__setattr__(self, name, value)

    def _normalise(self) -> None:
        """Convert values that may be written in several ways to one form."""
        for name, kinds, expected in (
            ("frozen_core", int | str, "a number of orbitals or a dialect"),
            ("scratch", str | os.PathLike | None, "the path of a folder"),
            ("scf_from", str | os.PathLike | None, "the path of a result"),
        ):
            value = getattr(self, name)
            if isinstance(value, bool) or not isinstance(value, kinds):
                raise InputError(Option(name), f" is a {type(value).__name__}: expected {expected}")
            if isinstance(value, os.PathLike):
                self._set(name, os.fspath(value))
        for name in ("basis", "auxbasis", "scf_auxbasis"):  # a set may be in a file
            value = getattr(self, name)
            if isinstance(value, os.PathLike):
                self._set(name, os.fspath(value))
        self._set("frozen_core", str(self.frozen_core).strip().lower())
        if isinstance(self.backend, str):
            self._set("backend", BACKEND_WORDS.get(self.backend, self.backend))
        if isinstance(self.method, str) and self.method == CUSTOM:
            self._require_factors()
            self._set("method", MP2.name)
        if isinstance(self.memory, str):
            self._set("memory", parse_bytes(self.memory))
        if self.grid is not None:
            self._set("grid", parse_grid(self.grid))
        if self.scratch == "":
            raise InputError(Option("scratch"), " is empty: name a folder")
        if isinstance(self.method, str):
            self._set("method", canonical_method(self.method))

    def _require_factors(self) -> None:
        """Raise for a custom scaled energy without any factor."""
        if self.os_scale is None and self.ss_scale is None:
            raise InputError(
                Option("method", CUSTOM),
                " needs ",
                Option("os_scale"),
                " or ",
                Option("ss_scale"),
                ": give the factors, or leave it out",
            )

    def unrestricted(self, multiplicity: int) -> bool:
        """Whether the reference of a molecule with this multiplicity is UHF."""
        return self.reference == "uhf" or (self.reference == "auto" and multiplicity != 1)

    def settled(self, multiplicity: int) -> Options:
        """The options for a molecule with this multiplicity, with the stability analysis that is
        its default."""
        if self.stability is not None:
            return self
        unexamined = self.functional is not None or self.solvent is not None
        if self.reference == "rohf" or unexamined:
            return replace(self, stability="off")
        return replace(self, stability="follow" if self.unrestricted(multiplicity) else "auto")

    @property
    def double_hybrid(self) -> DoubleHybrid | None:
        """The row of the table of double hybrids, with the requested dispersion correction; None
        for a method that is not in it."""
        if self.method in METHODS or self.method == CUSTOM_DOUBLE_HYBRID:
            return None
        row = look_up(self.method)
        if row is None or self.dispersion == "auto":
            return row
        return with_dispersion(row, self.dispersion)

    @property
    def functional(self) -> str | None:
        """The functional of the orbitals in libxc's terms, None for those of Hartree-Fock."""
        return functionals_of(self.method, self.xc)[0]

    @property
    def energy_functional(self) -> str | None:
        """The functional of the energy, None if it is that of the orbitals."""
        return functionals_of(self.method, self.xc)[1]

    @property
    def pair_check(self) -> bool:
        """Whether PySCF's own pair energies are computed as well; a functional alone has none, and
        its gradient is checked instead."""
        return self.check and self.correlation.kind != "none"

    @property
    def solvent_title(self) -> str:
        """The solvent and its model, such as "water (C-PCM)"; "" in the gas phase."""
        if self.solvent is None:
            return ""
        return f"{self.solvent} ({SOLVENT_MODELS[self.solvent_model]})"

    @property
    def dispersion_correction(self) -> tuple[str, str] | None:
        """The dispersion correction, and the name of the functional in its package; None without
        one."""
        row = self.double_hybrid
        if row is None or not row.dispersion:
            return None
        return row.dispersion, row.parameters_in(row.dispersion)

    @property
    def correlation(self) -> Method:
        """The requested correlation energy: that of `method`, or with the user's own factors."""
        if self.method in METHODS:
            return custom_scaling(self.os_scale, self.ss_scale) or METHODS[self.method]
        kind = "laplace" if self.laplace else "pairs"
        row = self.double_hybrid
        if row is None:
            return Method(
                name=CUSTOM_DOUBLE_HYBRID,
                title="double hybrid",
                opposite_spin=self.os_scale or 0.0,
                same_spin=self.ss_scale or 0.0,
                source="user",
                kind=kind,
                double_hybrid=True,
            )
        method = Method(
            name=row.name,
            title=row.title,
            opposite_spin=row.opposite_spin if self.os_scale is None else self.os_scale,
            same_spin=row.same_spin if self.ss_scale is None else self.ss_scale,
            source=f"doi {row.doi}",
            kind=kind,
            double_hybrid=True,
        )
        if self.os_scale is None and self.ss_scale is None:
            return method
        return replace(
            method,
            name=CUSTOM_DOUBLE_HYBRID,
            title=f"scaled {row.title}",
            source=f"user; functional: {method.source}",
        )

    def level_in(self, basis: str, method: Method | None = None) -> str:
        """Method, functional, basis and Hamiltonian, e.g. "DF-MP2/cc-pvdz" or "X2C-KS(pbe0)/dz in
        water (C-PCM)".

        Parameters
        ----------
        basis : str
            Its name.
        method : Method, optional
            None for `correlation`.
        """
        if method is None:
            method = self.correlation
        text = method.level
        if self.relativity == "x2c":
            text = f"X2C-{text}"
        if self.xc is not None:
            text += f"({self.xc})"
        text += f"/{basis}"
        if self.solvent is not None:
            text += f" in {self.solvent_title}"
        return text

    @property
    def regulariser(self) -> float | None:
        """kappa, 1/Eh, None if the pair terms are those of plain MP2."""
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
    """Options from keyword arguments, with an error that names an unknown one; the default backend
    is $DFMP2_BACKEND."""
    require_known_option(given, Options.__slots__)
    if "basis" not in given:
        raise InputError("no basis was given: name an orbital basis, e.g. basis='cc-pvdz'")
    return Options(**{"backend": default_backend(), **given})


def default_backend() -> str:
    """The default backend: $DFMP2_BACKEND, else auto."""
    return os.environ.get("DFMP2_BACKEND") or "auto"


def _require_allowed(value: Any, option: Field[Any]) -> None:
    """Raise for a value of the wrong type for the option, or beyond its bounds."""
    if value is None and "None" in str(option.type):
        return
    expected = _expected(value, option)
    if expected:
        raise InputError(Option(option.name, value), f": expected {expected}")


def _expected(value: Any, option: Field[Any]) -> str:
    """What is expected of the option instead of this value; "" if it is allowed."""
    choices, least = option.metadata["choices"], option.metadata["least"]
    kind = str(option.type)
    is_truth = isinstance(value, bool)
    if choices and option.name != "method":  # which also accepts double hybrids
        allowed = isinstance(value, str) and value in choices
        return "" if allowed else f"one of {', '.join(choices)}"
    if kind.startswith("str"):
        return "" if isinstance(value, str) else "text"
    if kind == "bool":
        return "" if is_truth else "true or false"
    if least is not None:
        allowed = isinstance(value, int) and not is_truth and value >= least
        return "" if allowed else f"a whole number, {least} or more"
    if kind.startswith("float"):
        if is_truth or not isinstance(value, int | float) or not _is_finite(value):
            return "a finite number"
        if option.metadata["positive"] and value <= 0:
            return "a number above zero"
    return ""


def _is_finite(value: float) -> bool:
    """Whether a number is a finite one in float64."""
    try:
        return math.isfinite(value)
    except OverflowError:  # an int of more than 308 digits
        return False
