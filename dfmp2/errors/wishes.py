"""What users of other programs ask for, and the alternatives: methods and options that dfmp2 does
not have, or spells differently.

docs/explanation/limits.md explains them at greater length.
"""

from __future__ import annotations

import difflib
import re
from collections.abc import Iterable

from dfmp2.errors import InputError
from dfmp2.errors.messages import Command, Message, Option, Placeholder

LARGE = Option("method", "sos-laplace")
# Pattern of a method in lower case, without spaces -> the alternative.
METHODS: tuple[tuple[str, Message], ...] = (
    (
        r"(?:u|ro|r)mp2",
        Message("the reference is a separate option: ", Option("reference", "uhf"), ", rohf, rhf"),
    ),
    (
        r"(?:ri|df|dfmp2|rimp2)-?(?:mp2)?|mbpt\(?2\)?|mp",
        Message("MP2 is always density-fitted here: ", Option("method", "mp2")),
    ),
    (
        r".*f12.*|.*r12.*",
        Message(
            "explicit correlation (F12) is not available: ",
            Command("cbs"),
            " extrapolates to the basis set limit, ORCA and Molpro have F12",
        ),
    ),
    (
        r".*lno.*|dlpno.*|lpno.*|lmp2|local.*|.*pno.*",
        Message(
            "local approximations are not available: ORCA and Psi4 have them; for large molecules "
            "there is ",
            LARGE,
        ),
    ),
    (
        r"b2.*plyp.*|b2-?gp.*|(?:rev)?dsd.*|dod.*|pwpb95.*|xyg.*|xdh.*|pbe0-?(?:2|dh).*"
        r"|pbe-?qidh|wb97x-?2.*|mpw2plyp.*|.*double-?hybrid.*|wb2.*plyp.*|wpr2scan.*",
        Message(
            "dfmp2 methods lists the double hybrids; another one by functional and factors is ",
            Option("method", "custom-dh"),
        ),
    ),
    (
        r"(?:r|u|ro|eom-?|df-?|ri-?)*(?:cc|qci|cis|fci|ci|bccd|adc).*",
        Message(
            "coupled cluster is a correction to MP2 in studies (",
            Option("delta", "ccsd(t)/cc-pvdz"),
            " of ",
            Command("cbs"),
            "), configuration interaction is not available: PySCF, Psi4 or ORCA",
        ),
    ),
    (
        r"(?:u|r|ri-?|df-?|o|oo-?|scs-?)*mp(?:2\.5|[3-9]).*|(?:oo?-?|ri-?oo?-?|df-?o)mp2|lccd.*|remp.*",
        Message(
            "MP3, MP4 and orbital-optimised MP2 are not available: PySCF or Psi4; to damp the large "
            "terms of small gaps there is ",
            Option("method", "kappa-mp2"),
        ),
    ),
    (
        r"(?:ri|d|df)?-?rpa.*|sosex.*|rpax.*",
        Message("the direct random-phase approximation is ", Option("method", "drpa")),
    ),
    (
        r"(?:lt|laplace|ao)-?(?:sos-?)?mp2|sos-?mp2-?(?:lt|laplace)",
        Message("the Laplace transform of SOS-MP2 is ", LARGE),
    ),
    (
        r"scs-?mi.*|s2-?mp2.*|fe2.*|scs-?mp2\(.*|mos-?mp2.*",
        Message("other factors are ", Option("os_scale"), " and ", Option("ss_scale")),
    ),
    (
        r"mp2-?(?:d[34]?|c|vdw.*)|mp2d.*",
        Message("dispersion corrections of MP2 are not available: Psi4 has MP2D, Molpro MP2C"),
    ),
    (
        r"(?:cas|ras|mr|mc|nevpt|caspt|dmrg|gvb|sc-?nevpt).*",
        Message("multireference methods are not available: CASSCF in PySCF"),
    ),
    (
        r"(?:r|u|ro|df-?|ri-?)*(?:hf|scf)",
        Message("E(HF) is part of every result: use ", Option("method", "mp2")),
    ),
    (
        r"dft|.*ks|lda.*|pbe.*|b3lyp.*|m0[5-8].*|tpss.*|.*scan.*|wb97.*|cam-?b3lyp.*|blyp.*|bp86"
        r"|mn\d\d.*|hse.*|svwn.*|revpbe.*|x3lyp|o3lyp|pw6b95.*",
        Message(
            "functionals are named by ",
            Option("xc"),
            ", with ",
            Option("method", "ks"),
            " for the functional alone",
        ),
    ),
    (r"gw|g0w0|bse|evgw.*", Message("Green's functions are not available: PySCF has GW")),
    (
        r"gfn.*|xtb.*|am1|pm[3-7].*|dftb.*",
        Message("semi-empirical methods are not available: xtb, MOPAC or DFTB+"),
    ),
)

# Option of other programs, with underscores -> the alternative.
OPTIONS: dict[str, Message] = {
    **dict.fromkeys(
        ("solvation", "pcm", "cpcm", "smd", "cosmo", "ddcosmo", "iefpcm", "alpb", "gbsa"),
        Message(
            "the solvent is ",
            Option("solvent", "water"),
            ", its model ",
            Option("solvent_model"),
            " cpcm or smd",
        ),
    ),
    **dict.fromkeys(
        ("eps", "epsilon", "dielectric"), Message("it is ", Option("solvent", "eps=78.4"))
    ),
    **dict.fromkeys(
        ("opt", "optimize", "geomopt"),
        Message("geometries are optimised by ", Command("optimize")),
    ),
    **dict.fromkeys(
        ("freq", "frequencies", "hess"), Message(Command("frequencies"), " computes them")
    ),
    **dict.fromkeys(
        ("grad", "gradient", "forces"), Message("gradients are computed by ", Command("gradient"))
    ),
    **dict.fromkeys(
        ("mult", "spin", "spin_multiplicity"), Message(Option("multiplicity"), " is 2S+1")
    ),
    **dict.fromkeys(
        ("uhf", "unpaired", "nopen"),
        Message(
            Option("multiplicity"),
            " is the number of unpaired electrons + 1, and ",
            Option("reference", "uhf"),
            " the reference",
        ),
    ),
    **dict.fromkeys(("chrg", "net_charge", "total_charge"), Message("it is ", Option("charge"))),
    **dict.fromkeys(
        ("nprocs", "nproc", "cores", "ncores", "j", "np", "nthreads", "num_threads"),
        Message(Option("threads"), " sets the number of cores"),
    ),
    **dict.fromkeys(
        ("mem", "maxcore", "max_memory"),
        Message(Option("memory"), " limits the whole process, e.g. ", Option("memory", "8GB")),
    ),
    **dict.fromkeys(
        ("ri", "df", "rimp2", "aux", "auxiliary_basis", "df_basis_mp2", "ribasis"),
        Message(
            "the fitting sets are ",
            Option("auxbasis"),
            " (MP2) and ",
            Option("scf_auxbasis"),
        ),
    ),
    **dict.fromkeys(
        ("fc", "freeze_core", "core"),
        Message(Option("frozen_core", "auto"), " leaves the core uncorrelated"),
    ),
    **dict.fromkeys(
        ("d3", "d4", "d3bj"),
        Message("MP2 has its own dispersion; double hybrids have ", Option("dispersion")),
    ),
    **dict.fromkeys(
        ("gpu", "device", "cuda"),
        Message(Option("backend", "cuda"), " computes the pair energies on a GPU"),
    ),
    **dict.fromkeys(
        ("ranks", "max_restarts"),
        Message(
            "one process computes a molecule, with ",
            Option("threads"),
            "; for one molecule on several hosts there are ",
            Command("prepare"),
            " and ",
            Command("energy"),
            ", for many molecules ",
            Command("batch"),
        ),
    ),
    **dict.fromkeys(
        ("force", "f"), Message(Option("overwrite", True), " replaces an existing file")
    ),
    **dict.fromkeys(
        ("relaxed", "relaxed_density", "density", "dipole", "charges", "mulliken", "unrelaxed"),
        Message(
            Option("properties", True),
            " computes the relaxed density, its moments and charges",
        ),
    ),
    **dict.fromkeys(
        ("functional", "dft", "dft_functional", "ks"),
        Message(
            "the functional of ",
            Option("method", "ks"),
            " and ",
            Option("method", "drpa"),
            " is ",
            Option("xc"),
        ),
    ),
    **dict.fromkeys(
        ("symmetry", "point_group", "symm"),
        Message("no point group symmetry is used: leave it out"),
    ),
    **dict.fromkeys(
        ("local", "dlpno", "pno", "lno"),
        Message("local approximations are not available: for large molecules there is ", LARGE),
    ),
    **dict.fromkeys(
        ("f12", "cabs"),
        Message(
            "explicit correlation is not available: ", Command("cbs"), " extrapolates the basis"
        ),
    ),
    **dict.fromkeys(
        ("delta", "focal_point", "composite"),
        Message(
            "CCSD(T) as a correction belongs to studies: ",
            Command("cbs"),
            " takes ",
            Option("delta", "ccsd(t)/cc-pvdz"),
            " with one basis set too, and so do ",
            Command("interaction"),
            " and ",
            Command("scan"),
        ),
    ),
    **dict.fromkeys(
        ("cbs", "extrapolate"), Message(Command("cbs"), " extrapolates to the basis set limit")
    ),
    **dict.fromkeys(
        ("bsse", "counterpoise", "cp"),
        Message(Command("interaction"), " corrects for the basis set superposition"),
    ),
    **dict.fromkeys(
        ("cell", "lattice", "kpts", "pbc", "kpoints"),
        Message("there are no periodic systems: PySCF or CP2K"),
    ),
    **dict.fromkeys(
        ("soc", "spin_orbit", "dkh", "zora", "dirac"),
        Message("relativity is that of ", Option("relativity", "x2c"), " or a core potential"),
    ),
    **dict.fromkeys(
        ("ecp", "pseudo", "pseudopotential"),
        Message("core potentials come with the ", Option("basis"), " that was made for them"),
    ),
    **dict.fromkeys(
        ("cartesian", "cart", "puream", "pure"),
        Message("functions are spherical; Cartesian ones are not available"),
    ),
    **dict.fromkeys(
        ("conv_tol", "scf_conv", "e_convergence", "scf_thresh"),
        Message("the convergence of the SCF is ", Option("scf_conv_tol")),
    ),
    **dict.fromkeys(
        ("maxiter", "max_cycle", "max_iter", "scf_max_iter"),
        Message("the iterations of the SCF are ", Option("scf_max_cycles")),
    ),
    "lane": Message(
        "predictions are for compiled programs, which torch-xla launches in the same way"
    ),
    "recompile": Message("every lane compiles before it launches: leave it out"),
    **dict.fromkeys(
        ("shape", "beta"),
        Message(
            Command("plan"),
            " counts the compiled programs and calls of a molecule, dfmp2 kernels cost those of a "
            "shape",
        ),
    ),
    "one_zero_hint": Message("zeros and ones no longer count separately: leave it out"),
    **dict.fromkeys(("scs", "sos"), Message("it is ", Option("method", "scs-mp2"), " or sos-mp2")),
    **dict.fromkeys(
        ("geometry", "xyz", "mol", "input"), Message("the molecule comes first, without a name")
    ),
    "verbose": Message(
        "progress is on standard error; ", Option("log", Placeholder("FILE")), " keeps it"
    ),
    "v": Message("the version is -V; progress is on standard error"),
}


def way_out_of_method(name: str) -> Message:
    """The alternative to a method that is not available, "" if none is listed."""
    wanted = re.sub(r"[\s_]+", "", name.lower()).replace("/", "-")
    for pattern, way_out in METHODS:
        if re.fullmatch(pattern, wanted):
            return way_out
    return Message()


def way_out_of_option(name: str) -> Message:
    """The alternative to an option that is not available, "" if none is listed."""
    return OPTIONS.get(name.lstrip("-").replace("-", "_").lower(), Message())


def require_known_option(
    given: Iterable[str], known: Iterable[str], shown: Iterable[str] | None = None
) -> None:
    """Raise for an unknown keyword, and suggest the one that may be meant.

    Parameters
    ----------
    known : names that are accepted
    shown : those listed if none of them is similar; None for all
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
