"""Which options go together: `require_compatible` raises if two of them contradict each other."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

from dfmp2.double_hybrids import DISPERSIONS, look_up
from dfmp2.errors import Command, InputError, Message, Option
from dfmp2.errors.messages import joined
from dfmp2.options.methods import (
    CUSTOM_DOUBLE_HYBRID,
    KOHN_SHAM,
    METHODS,
    OWN_DOUBLE_HYBRID,
    without_dispersion,
)
from dfmp2.options.values import SMD, dielectric_constant

if TYPE_CHECKING:
    from dfmp2.options.calculation import Options

# Default-like values of the options that some methods do not support.
ORDINARY: dict[str, tuple[Any, ...]] = {
    "auxbasis": (None,),
    "backend": ("auto", "cpu"),
    "certify_fit": (False,),
    "check": (False,),
    "frozen_core": ("none",),
    "frozen_virtual": (0,),
    "polarizability": (False,),
    "precision": ("auto", "fp64"),
    "properties": (False,),
    "stability": (None, "off"),
    "transform": ("auto", "host"),
}


def require_compatible(options: Options) -> None:
    """Raise for options that contradict each other.

    Parameters
    ----------
    options : Options
        Options whose values are each allowed by themselves.

    Raises
    ------
    InputError
        Names both options, and what to leave out or use instead.
    """
    _require_scf_fitting(options)
    if options.xc is not None:
        _require_kohn_sham(options)
    if options.correlation.double_hybrid:
        _require_double_hybrid(options)
    _require_dispersion(options)
    if options.laplace:
        _require_opposite_spin_alone(options)
    _require_factors(options)
    if options.correlation.kind != "pairs":
        _require_no_pairs(options)
    if options.correlation.regularised:
        _require_nothing_of_plain_mp2(options)
    if options.reference == "rohf":
        _require_no_response_of_rohf(options)
    _require_solvent(options)
    if options.guess != "atoms" and options.scf_from is not None:
        raise InputError(
            Option("guess", options.guess),
            " and ",
            Option("scf_from", options.scf_from),
            " both name the start of the SCF: drop one of them",
        )


def _asked(options: Options, *names: str) -> Option | None:
    """The first of these options with a non-default value, None if there is none."""
    for name in names:
        value = getattr(options, name)
        if value not in ORDINARY[name]:
            return Option(name, value)
    return None


def _require_scf_fitting(options: Options) -> None:
    """Raise for a fitting set if the SCF does not use one."""
    if options.scf == "conventional" and options.scf_auxbasis is not None:
        raise InputError(
            Option("scf", "conventional"),
            " uses no fitting set, but ",
            Option("scf_auxbasis", options.scf_auxbasis),
            " was given: drop one of the two (the MP2 fitting set is ",
            Option("auxbasis"),
            ")",
        )


def _require_kohn_sham(options: Options) -> None:
    """Raise for options unsuitable for Kohn-Sham orbitals, and for an unnamed functional."""
    functional = Option("xc", options.xc)
    if not options.xc:
        raise InputError(
            Option("xc"),
            " is empty: name a functional such as pbe, or leave it out for Hartree-Fock",
        )
    if options.reference == "rohf":
        raise InputError(
            Option("xc"),
            " has no restricted open-shell orbitals: use ",
            Option("reference", "uhf"),
            " (or auto), not rohf",
        )
    if options.double_hybrid is not None:
        raise InputError(
            Option("method", options.method),
            " has its own functional, and ",
            functional,
            " was given: drop one of the two, or use ",
            *OWN_DOUBLE_HYBRID,
        )
    if options.method not in ("drpa", KOHN_SHAM, CUSTOM_DOUBLE_HYBRID):
        raise InputError(
            Option("method", options.method),
            " is not available on Kohn-Sham orbitals (",
            functional,
            "): second-order correlation on them needs a double hybrid. Use ",
            Option("method", KOHN_SHAM),
            " for the functional alone, ",
            Option("method", "drpa"),
            ", a double hybrid by its name such as ",
            Option("method", "b2plyp"),
            f", or {CUSTOM_DOUBLE_HYBRID}; or leave ",
            Option("xc"),
            " out",
        )
    _require_all_rotations(options, functional)


def _require_all_rotations(options: Options, source: Option) -> None:
    """Raise for a stability analysis of frontier orbitals, available only with Hartree-Fock.

    Parameters
    ----------
    options : Options
    source : Option
        The option that asks for Kohn-Sham orbitals.
    """
    if options.stability == "auto":
        raise InputError(
            Option("stability", options.stability),
            " looks at the frontier orbitals of Hartree-Fock alone, not at Kohn-Sham orbitals (",
            source,
            "): use ",
            Option("stability", "full"),
            ", or ",
            Option("stability", "follow"),
            " for a lower solution, or leave it out",
        )


def _require_double_hybrid(options: Options) -> None:
    """Raise for what is not available with a double hybrid, or with a functional alone."""
    method = Option("method", options.method)
    if options.method == KOHN_SHAM:
        _require_functional_alone(options, method)
    parts = ("xc", "os_scale", "ss_scale")
    missing = [Option(name) for name in parts if getattr(options, name) is None]
    if options.method == CUSTOM_DOUBLE_HYBRID and missing:
        raise InputError(
            method,
            " needs ",
            joined(missing, " and "),
            ": give the functional and both factors, or name a double hybrid of dfmp2 methods",
        )
    if options.reference == "rohf":
        raise InputError(
            method,
            " has no restricted open-shell orbitals (ROKS): use ",
            Option("reference", "uhf"),
            " (or auto), not rohf",
        )
    _require_all_rotations(options, method)
    if options.certify_fit and options.energy_functional is not None:
        raise InputError(
            Option("certify_fit", True),
            " is not available for double hybrids with another functional for the energy (",
            method,
            "): leave it out, or use one with the same functional for orbitals and energy, such as ",
            Option("method", "b2plyp"),
        )


def _require_functional_alone(options: Options, method: Option) -> None:
    """Raise for a missing functional, and for options that need a correlation energy."""
    if options.xc is None:
        raise InputError(
            method,
            " needs ",
            Option("xc"),
            ": name a functional, such as ",
            Option("xc", "pbe0"),
            ", or leave both out for MP2",
        )
    unused = _asked(options, "auxbasis", "frozen_core", "frozen_virtual")
    if unused is not None:
        raise InputError(
            method, " has no correlated orbitals, to which ", unused, " belongs: leave it out"
        )


def _require_dispersion(options: Options) -> None:
    """Raise for a dispersion correction without published parameters."""
    if options.dispersion in ("auto", "none"):
        return
    dispersion = Option("dispersion", options.dispersion)
    row = look_up(options.method)
    if row is None:
        raise InputError(
            dispersion,
            " belongs to double hybrids by name, not to ",
            Option("method", options.method),
            ": leave it out, or use ",
            Option("method", "b2plyp"),
            " for example",
        )
    if not row.parameters_in(options.dispersion):
        raise InputError(
            dispersion,
            f": no parameters of {DISPERSIONS[options.dispersion]} are published for {row.title}: ",
            without_dispersion(row),
        )


def _require_opposite_spin_alone(options: Options) -> None:
    """Raise for a Laplace transform unless the method is an opposite-spin double hybrid."""
    laplace = Option("laplace", True)
    method = options.correlation
    if not method.double_hybrid:
        raise InputError(
            laplace,
            " belongs to double hybrids, not to ",
            Option("method", options.method),
            ": leave it out, or use ",
            Option("method", "sos-laplace"),
        )
    if method.same_spin != 0.0 or method.opposite_spin == 0.0:
        raise InputError(
            laplace,
            f" takes opposite spin alone, but this functional has {method.formula}: leave it "
            "out, use one such as ",
            Option("method", "xygj-os"),
            ", or add ",
            Option("ss_scale", "0"),
            " for a functional of your own",
        )


def _require_factors(options: Options) -> None:
    """Raise for a grid, a kappa or spin factors that the method does not use."""
    method = options.correlation
    if options.grid is not None and options.functional is None:
        raise InputError(
            Option("grid", options.grid),
            " belongs to a functional, and Hartree-Fock has none: name one with ",
            Option("xc"),
            ", or leave it out",
        )
    if options.kappa is not None and not method.regularised:
        raise InputError(
            Option("kappa", options.kappa),
            " belongs to ",
            Option("method", "kappa-mp2"),
            f", not to {options.method}: add or drop one",
        )
    scaled = options.os_scale is not None or options.ss_scale is not None
    if scaled and options.method != "mp2" and not method.double_hybrid:
        own = METHODS[options.method]
        verb = "has its own factors,"
        if own.kind in ("rpa", "none"):
            verb = "is"
        raise InputError(
            Option("method", options.method),
            f" {verb} {own.formula.replace('+', 'and')}: drop ",
            Option("os_scale"),
            " and ",
            Option("ss_scale"),
            ", or ",
            Option("method"),
        )


def _require_no_pairs(options: Options) -> None:
    """Raise for options that need pair energies, with a method that has none."""
    if options.method == "drpa" and options.reference == "rohf":
        raise InputError(
            Option("method", options.method),
            " is not available on the orbitals of ",
            Option("reference", "rohf"),
            ": use ",
            Option("reference", "uhf"),
            " (or auto), or use another method",
        )
    refused = _asked(options, "precision", "backend", "transform", "certify_fit")
    if refused is None and options.method != KOHN_SHAM:  # whose gradient can be checked
        refused = _asked(options, "check", "polarizability", "properties")
    if refused is None:
        return
    by_quadrature = Message()
    if options.laplace:
        by_quadrature = Message(" with ", Option("laplace", True))
    raise InputError(
        Option("method", options.method),
        by_quadrature,
        " has no pair energies and runs in float64 on the host, so ",
        refused,
        " is not available for it: leave it out, ",
        _way_to_pairs(options),
    )


def _way_to_pairs(options: Options) -> Message:
    """Advice for a method without pair energies: one that has them."""
    if options.method == "sos-laplace":
        return Message("or use ", Option("method", "sos-mp2"))
    if options.laplace:
        return Message("or leave out ", Option("laplace"))
    if options.method == KOHN_SHAM:
        return Message("or use a double hybrid, such as ", Option("method", "b2plyp"))
    return Message("or use another method")


def require_energy_check(options: Options) -> None:
    """Raise for a check of pair energies with a method that has none.

    Raises
    ------
    InputError
        Names what can be checked instead.
    """
    if options.check and options.correlation.kind == "none":
        raise InputError(
            Option("check", True),
            " compares pair energies with PySCF's, and ",
            Option("method", options.method),
            " has none: leave it out; with ",
            Command("gradient"),
            " it compares the gradient with energies",
        )


def _require_nothing_of_plain_mp2(options: Options) -> None:
    """Raise for what is not available with a regularised method."""
    refused = _asked(options, "check", "certify_fit")
    if refused is not None:
        raise InputError(
            refused,
            " is available only for plain MP2, not for ",
            Option("method", options.method),
            ": drop one of the two",
        )


def _require_no_response_of_rohf(options: Options) -> None:
    """Raise for what is not available with restricted open-shell orbitals."""
    refused = _asked(options, "certify_fit", "stability")
    if refused is not None:
        raise InputError(
            refused,
            " is not available for ",
            Option("reference", "rohf"),
            ": leave it out, or use ",
            Option("reference", "uhf"),
        )


def _require_solvent(options: Options) -> None:
    """Raise for what is not available in a solvent: all that needs the reaction-field response."""
    if options.solvent is None and options.solvent_model != "cpcm":
        raise InputError(
            Option("solvent_model", options.solvent_model),
            " belongs to ",
            Option("solvent"),
            ": name one, such as ",
            Option("solvent", "water"),
        )
    if options.solvent is None:
        return
    solvent = Option("solvent", options.solvent)
    if dielectric_constant(options.solvent) is not None and options.solvent_model == SMD:
        raise InputError(
            Option("solvent_model", SMD),
            " has parameters for solvents by name, and ",
            solvent,
            " is a dielectric constant: name a solvent, or leave out ",
            Option("solvent_model"),
        )
    refused = _asked(options, "certify_fit", "polarizability", "properties", "stability")
    if refused is not None:
        raise InputError(
            refused,
            " is not available with ",
            solvent,
            ": it needs the response of the reaction field. Leave it out, or compute it in the "
            "gas phase",
        )
