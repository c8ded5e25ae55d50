"""Called by docs/project/validation/fitting-certificates.md: compare fitting errors that
`--certify-fit` measures, and those that every run estimates, with the truth.

    python scripts/fitting_certificates.py measure [--limit SECONDS]
    python scripts/fitting_certificates.py estimate
    python scripts/fitting_certificates.py page  # fitting-certificates.md

The truth is PySCF's conventional SCF and four-centre MP2 (`dfmp2 compare --exact`). So that the
estimate from a sample is put to the test, 8 occupied orbitals are drawn in small molecules too,
where a run would take them all. `measure` adds a row for every case that
docs/project/validation/fitting-certificates.tsv lacks, and may be broken off; `estimate` makes the
estimates of all rows again, a minute of one core.
"""

from __future__ import annotations

import argparse
import sys
import time
from collections.abc import Sequence
from dataclasses import asdict, dataclass, fields, replace
from importlib import metadata
from pathlib import Path
from statistics import median

import numpy as np

import dfmp2
from dfmp2.errors import Dfmp2Error, InputError
from dfmp2.molecule.molecule import Molecule
from dfmp2.mp2.result import MP2Result
from dfmp2.planning import sizes
from dfmp2.progress import Silent
from dfmp2.units import BOHR_PER_ANGSTROM
from dfmp2.validation.compare import recompute_exact

FOLDER = Path(__file__).resolve().parent.parent / "docs" / "project" / "validation"
ROWS = FOLDER / "fitting-certificates.tsv"
PAGE = FOLDER / "fitting-certificates.md"
BASES = ("cc-pvdz", "def2-tzvp", "aug-cc-pvdz")
POTENTIALS = {
    "Zr",
    "Ag",
    "Cd",
    "Sn",
    "I",
    "Xe",
}  # whose correlation consistent sets have a core potential, NAME-pp
DRAWN, STRATA = 8, 2
# Eh, precision of E(corr) of the truth, whose SCF is converged to 1e-11 Eh: ZrH4 is off by 8e-9, at
# 1e-12 by 6e-10.
TRUTH = 1e-8
KINDS = {
    "organic": "organic molecules",
    "cluster": "clusters",
    "radical": "radicals",
    "anion": "anions",
    "heavy": "heavy main-group elements",
    "metal": "3d and 4d metals",
}
# kind, name, charge, multiplicity, atoms: symbol and position in angstrom
MOLECULES = """
organic water 0 1 | O 0 0 0.117 | H 0 0.757 -0.469 | H 0 -0.757 -0.469
organic ammonia 0 1 | N 0 0 0.11 | H 0 0.94 -0.27 | H 0.814 -0.47 -0.27 | H -0.814 -0.47 -0.27
organic methane 0 1 | C 0 0 0 | H 0.63 0.63 0.63 | H -0.63 -0.63 0.63 | H -0.63 0.63 -0.63 | H 0.63 -0.63 -0.63
organic ethyne 0 1 | C 0 0 0.602 | C 0 0 -0.602 | H 0 0 1.665 | H 0 0 -1.665
organic ethene 0 1 | C 0 0 0.667 | C 0 0 -0.667 | H 0 0.923 1.237 | H 0 -0.923 1.237 | H 0 0.923 -1.237 | H 0 -0.923 -1.237
organic methanal 0 1 | C 0 0 -0.529 | O 0 0 0.678 | H 0 0.935 -1.112 | H 0 -0.935 -1.112
organic hydrogen-cyanide 0 1 | H 0 0 -1.066 | C 0 0 0 | N 0 0 1.153
organic methanol 0 1 | C -0.047 0.664 0 | O -0.047 -0.758 0 | H -1.093 0.97 0 | H 0.438 1.07 0.89 | H 0.438 1.07 -0.89 | H 0.862 -1.057 0
organic methanoic-acid 0 1 | C 0 0.42 0 | O -1.03 -0.44 0 | O 1.16 0.12 0 | H -0.38 1.45 0 | H -0.66 -1.33 0
organic fluoromethane 0 1 | C 0 0 -0.63 | F 0 0 0.755 | H 1.03 0 -0.985 | H -0.515 0.892 -0.985 | H -0.515 -0.892 -0.985
cluster water-dimer 0 1 | O -1.5 -0.11 0 | H -1.93 0.76 0 | H -0.55 0.06 0 | O 1.35 0.11 0 | H 1.68 -0.37 -0.76 | H 1.68 -0.37 0.76
cluster hydrogen-fluoride-dimer 0 1 | F -1.34 0 0 | H -0.42 0.1 0 | F 1.41 0 0 | H 1.75 0.85 0
cluster ammonia-water 0 1 | N -1.4 0 0.05 | H -1.75 0.94 -0.1 | H -1.75 -0.47 0.83 | H -1.75 -0.47 -0.75 | O 1.55 0 0 | H 0.58 0 0 | H 1.8 0.1 0.92
cluster methane-fluoride 0 1 | C 0 0 -2 | H 0 0 -3.09 | H 1.03 0 -1.64 | H -0.51 0.89 -1.64 | H -0.51 -0.89 -1.64 | H 0 0 0.5 | F 0 0 1.42
cluster argon-fluoride 0 1 | Ar 0 0 -2.6 | H 0 0 0 | F 0 0 0.92
cluster lithium-hydride-dimer 0 1 | Li 1.15 0 0 | Li -1.15 0 0 | H 0 1.35 0 | H 0 -1.35 0
radical amidogen 0 2 | N 0 0 0.14 | H 0 0.8 -0.5 | H 0 -0.8 -0.5
radical methyl 0 2 | C 0 0 0 | H 1.079 0 0 | H -0.54 0.934 0 | H -0.54 -0.934 0
radical hydroxyl 0 2 | O 0 0 0 | H 0 0 0.97
radical nitric-oxide 0 2 | N 0 0 0 | O 0 0 1.15
radical oxygen 0 3 | O 0 0 0 | O 0 0 1.208
radical formyl 0 2 | C 0 0 0 | O 0 0 1.18 | H 0.93 0 -0.62
radical water-cation 1 2 | O 0 0 0.117 | H 0 0.8 -0.45 | H 0 -0.8 -0.45
anion hydroxide -1 1 | O 0 0 0 | H 0 0 0.965
anion fluoride -1 1 | F 0 0 0
anion cyanide -1 1 | C 0 0 0 | N 0 0 1.18
anion nitrite -1 1 | N 0 0 0 | O 1.06 0.66 0 | O -1.06 0.66 0
anion methanoate -1 1 | C 0 0 0 | O 1.13 0.53 0 | O -1.13 0.53 0 | H 0 -1.13 0
heavy hydrogen-bromide 0 1 | H 0 0 0 | Br 0 0 1.414
heavy hydrogen-selenide 0 1 | Se 0 0 0 | H 1.04 1.02 0 | H -1.04 1.02 0
heavy arsane 0 1 | As 0 0 0 | H 1.26 0 -0.84 | H -0.63 1.09 -0.84 | H -0.63 -1.09 -0.84
heavy hydrogen-iodide 0 1 | H 0 0 0 | I 0 0 1.609
heavy stannane 0 1 | Sn 0 0 0 | H 0.99 0.99 0.99 | H -0.99 -0.99 0.99 | H -0.99 0.99 -0.99 | H 0.99 -0.99 -0.99
metal copper-hydride 0 1 | Cu 0 0 0 | H 0 0 1.463
metal zinc-hydride 0 1 | Zn 0 0 0 | H 0 0 1.52 | H 0 0 -1.52
metal titanium-hydride 0 1 | Ti 0 0 0 | H 0.98 0.98 0.98 | H -0.98 -0.98 0.98 | H -0.98 0.98 -0.98 | H 0.98 -0.98 -0.98
metal manganese-hydride 0 7 | Mn 0 0 0 | H 0 0 1.73
metal scandium-oxide 0 2 | Sc 0 0 0 | O 0 0 1.668
metal silver-hydride 0 1 | Ag 0 0 0 | H 0 0 1.618
metal zirconium-hydride 0 1 | Zr 0 0 0 | H 1.07 1.07 1.07 | H -1.07 -1.07 1.07 | H -1.07 1.07 -1.07 | H 1.07 -1.07 -1.07
"""  # noqa: E501


@dataclass(frozen=True)
class Row:
    """A case: sizes, the sample, errors of E(SCF) and E(corr) as certified, in truth and as
    estimated, Eh; seconds.

    The estimates are sums over atoms, and for E(SCF) what lies between them.
    """

    kind: str
    name: str
    basis: str
    fitting: str
    nao: int
    orbitals: int
    drawn: int
    scf: float
    scf_uncertainty: float
    scf_truth: float
    scf_atoms: float
    scf_between: float
    corr: float
    corr_uncertainty: float
    corr_truth: float
    corr_atoms: float
    seconds: float

    @property
    def scf_estimate(self) -> float:
        """The error of E(SCF) as a run without a certificate estimates it, Eh."""
        return self.scf_atoms + self.scf_between

    @property
    def scf_within(self) -> bool:
        """Whether the error of E(SCF) is certified within its uncertainty."""
        return abs(self.scf - self.scf_truth) <= self.scf_uncertainty

    @property
    def corr_within(self) -> bool:
        """The same of E(corr)."""
        return abs(self.corr - self.corr_truth) <= self.corr_uncertainty + TRUTH


def molecules() -> list[tuple[str, str, Molecule]]:
    """Kind, name and molecule of the table."""
    found = []
    for line in MOLECULES.strip().splitlines():
        head, *atoms = line.split("|")
        kind, name, charge, multiplicity = head.split()
        parts = [atom.split() for atom in atoms]
        places = np.array([[float(x) for x in part[1:]] for part in parts]) * BOHR_PER_ANGSTROM
        molecule = Molecule(tuple(part[0] for part in parts), places, name=name)
        found.append((kind, name, molecule.with_state(int(charge), int(multiplicity))))
    return found


def run(molecule: Molecule, basis: str, *, certify: bool) -> MP2Result:
    """A run of a case."""
    if "cc-p" in basis and POTENTIALS & set(molecule.symbols):
        full = f"{basis}-pp"
    else:
        full = basis
    given = {
        "scf_conv_tol": 1e-11,
        "threads": 1,
        "certify_fit": certify,
        "allow_small_gap": True,
        "listener": Silent(),
    }
    try:
        return dfmp2.run(molecule, full, **given)
    except InputError:  # no MP2 fitting set is known
        return dfmp2.run(molecule, full, auxbasis="auto", **given)


def case(kind: str, name: str, molecule: Molecule, basis: str) -> Row:
    """Certificate, estimates and truth of one molecule in one basis."""
    result = run(molecule, basis, certify=True)
    found, truth = result.fitting_certificate, recompute_exact(result, 1.0, 1, Silent())
    if found is None:
        raise Dfmp2Error(f"{name} {basis}: {result.diagnostics.warnings}")
    mp2_set = result.mp2_fitting.names
    return Row(
        kind,
        name,
        result.options.basis,
        mp2_set,
        result.sizes.nao,
        found.orbitals,
        found.sampled_orbitals,
        found.scf_error,
        found.scf_uncertainty,
        truth.scf_difference,
        result.diagnostics.scf_fitting_error,
        result.reference.interatomic_fitting_error,
        found.correlation_error,
        found.correlation_uncertainty,
        truth.correlation_difference,
        result.diagnostics.mp2_fitting_error,
        result.timings.fitting_certificate,
    )


def rows() -> list[Row]:
    """What has been measured."""
    if not ROWS.exists():
        return []
    lines = [line.split("\t") for line in ROWS.read_text(encoding="ascii").splitlines()[1:]]
    kinds = [{"str": str, "int": int, "float": float}[str(field.type)] for field in fields(Row)]
    return [Row(*(kind(text) for kind, text in zip(kinds, line, strict=True))) for line in lines]


def add(found: Row) -> None:
    """Append a row to those that have been measured."""
    if not ROWS.exists():
        ROWS.write_text("\t".join(field.name for field in fields(Row)) + "\n", encoding="ascii")
    values = [
        f"{value:.4e}" if isinstance(value, float) else str(value)
        for value in asdict(found).values()
    ]
    with ROWS.open("a", encoding="ascii") as file:
        file.write("\t".join(values) + "\n")


def measure(limit: float) -> None:
    """Add what is missing until the time is over; each molecule is certified from a small
    sample."""
    sizes.EXACT_ROWS, sizes.EXACT_STRATA = DRAWN, STRATA
    done, started = {(row.name, row.basis.removesuffix("-pp")) for row in rows()}, time.monotonic()
    for basis in BASES:
        for kind, name, molecule in molecules():
            if (name, basis) in done or time.monotonic() - started > limit:
                continue
            try:
                row = case(kind, name, molecule, basis)
            except Dfmp2Error as error:
                print(f"{name} {basis}: {error}", file=sys.stderr, flush=True)
                continue
            add(row)
            print(
                name,
                basis,
                f"{row.seconds:.1f}",
                row.scf_within,
                row.corr_within,
                file=sys.stderr,
                flush=True,
            )


def estimate() -> None:
    """Put the estimates of this version into all rows."""
    table, again = {name: molecule for _, name, molecule in molecules()}, []
    for row in rows():
        result = run(table[row.name], row.basis.removesuffix("-pp"), certify=False)
        found = {
            "scf_atoms": result.diagnostics.scf_fitting_error,
            "scf_between": result.reference.interatomic_fitting_error,
            "corr_atoms": result.diagnostics.mp2_fitting_error,
        }
        again.append(replace(row, **found))
    ROWS.unlink()
    for row in again:
        add(row)


INTRODUCTION = """# Fitting errors measured in the molecule

`--certify-fit`, and the estimate of every run without it, compared with the true errors: fitted minus exact energies,
where PySCF's conventional SCF and four-centre MP2 are exact (`dfmp2 compare --exact`). All electrons correlated,
default sets (`auto` if no MP2 set is known), {cases} cases: {molecules} molecules, up to {nao} functions.
`scripts/fitting_certificates.py` made this page (PySCF {pyscf}, one of 2 cores of an AMD EPYC, 22 November 2026).

A run computes exact integrals of up to {rows} occupied orbitals, that is, of all orbitals of a small molecule. Here
only {drawn} are drawn at random, so that {sampled} of the {cases} certificates of E(corr) rely on a sample; the others
are exact. The uncertainty of E(corr) includes 1e-8 Eh for the precision of the reference.
"""
COLUMNS = (
    "orbital basis",
    "cases",
    "E(SCF) within",
    "E(corr) within",
    "of them sampled",
    "median +- of those",
)


def page() -> str:
    """The page: how often the truth lies within the uncertainty, how far the atoms are off, and
    every case."""
    found = rows()
    sampled = [row for row in found if row.drawn < row.orbitals]
    lines = [
        INTRODUCTION.format(
            cases=len(found),
            molecules=len({row.name for row in found}),
            nao=max(row.nao for row in found),
            pyscf=metadata.version("pyscf"),
            rows=sizes.EXACT_ROWS,
            drawn=DRAWN,
            sampled=len(sampled),
        ),
        "## Certified errors",
        "",
        *_head(COLUMNS),
    ]
    for name, part in [
        *((basis, [r for r in found if r.basis.startswith(basis)]) for basis in BASES),
        ("all", found),
    ]:
        drawn = [row for row in part if row.drawn < row.orbitals]
        if drawn:
            widths = f"{median(row.corr_uncertainty for row in drawn):.1e} Eh"
        else:
            widths = ""
        counts = [
            _share([r.scf_within for r in part]),
            *(_share([r.corr_within for r in rs]) for rs in (part, drawn)),
        ]
        lines.append(f"| {name} | {len(part)} | {' | '.join(counts)} | {widths} |")
    outside = [r for r in found if not (r.scf_within and r.corr_within)]
    worst = max((abs(r.corr - r.corr_truth) / r.corr_uncertainty for r in outside), default=0.0)
    lines += [
        "",
        "The interval of E(corr) is meant to hold in 95 % of the draws; where it does not, the "
        f"error exceeds the stated uncertainty at most {worst:.1f} times. The median error of "
        f"E(corr) is {median(abs(r.corr_truth) for r in found):.1e} Eh, and the median "
        "uncertainty of a sample is "
        f"{median(r.corr_uncertainty / abs(r.corr_truth) for r in sampled):.0%} of the error.",
        "",
        "## Estimates",
        "",
        "How many estimates are within a factor of 10 of the true error, and how many have its "
        'sign. "Atoms" is the sum of the errors for single neutral atoms, to which a run adds an '
        "estimate [between atoms](../../explanation/fitting.md#estimated-in-every-run) for "
        "E(SCF). Nothing was fitted to these cases.",
        "",
        *_head(
            (
                "molecules",
                "cases",
                "E(SCF) within 10",
                "same sign",
                "atoms alone",
                "same sign",
                "E(corr) within 10, atoms",
                "same sign",
            )
        ),
    ]
    for kind, title in [*KINDS.items(), ("", "all")]:
        part = [r for r in found if kind in ("", r.kind)]
        cells = []
        for pairs in (
            [(r.scf_estimate, r.scf_truth) for r in part],
            [(r.scf_atoms, r.scf_truth) for r in part],
            [(r.corr_atoms, r.corr_truth) for r in part],
        ):
            cells += [
                _share([0.1 <= abs(a / t) <= 10 for a, t in pairs]),
                _share([a * t > 0 for a, t in pairs]),
            ]
        lines.append(f"| {title} | {len(part)} | {' | '.join(cells)} |")
    outside = [r for r in found if not 0.1 <= abs(r.scf_estimate / r.scf_truth) <= 10]
    names = ", ".join(
        f"{r.name.replace('-', ' ')} in {r.basis} ({r.scf_truth:+.0e})" for r in outside
    )
    lines += [
        "",
        "The ratio of estimate to true error is "
        f"{_spread([abs(r.scf_estimate / r.scf_truth) for r in found])} for E(SCF), and "
        f"{_spread([abs(r.corr_atoms / r.corr_truth) for r in found])} for E(corr). Estimates of "
        f"E(SCF) off by more than a factor of 10: {names}. Errors of exchange and Coulomb energy "
        "have opposite signs; where they nearly cancel, their sizes can be estimated but not "
        "the remainder.",
        "",
        "## Every case",
        "",
        f"[A table of all {len(found)} cases](fitting-certificates.tsv) has energies in Eh, the "
        "number of orbitals drawn, the certificate with its uncertainty, the true errors, the "
        "estimates, and the time in seconds of the certificate.",
    ]
    return "\n".join(lines) + "\n"


def _head(columns: Sequence[str]) -> list[str]:
    return [f"| {' | '.join(columns)} |", "|" + "---|" * len(columns)]


def _spread(ratios: list[float]) -> str:
    """Median of some ratios, and between what nine of ten lie."""
    ends = np.percentile(ratios, (5, 95))
    return (
        f"{median(ratios):.2g} in the median and {ends[0]:.2g} to {ends[1]:.2g} in nine cases "
        "of ten"
    )


def _share(true: list[bool]) -> str:
    if true:
        return f"{sum(true)} of {len(true)} ({sum(true) / len(true):.0%})"
    return "-"


if __name__ == "__main__":
    parser = argparse.ArgumentParser(
        description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    parser.add_argument("what", choices=["measure", "estimate", "page"])
    parser.add_argument(
        "--limit", type=float, default=3600.0, help="Seconds after which no case is begun."
    )
    given = parser.parse_args()
    if given.what == "measure":
        measure(given.limit)
    elif given.what == "estimate":
        estimate()
    else:
        PAGE.write_text(page())
