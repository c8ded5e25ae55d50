"""How names, units and numbers are written on a page, and how its blocks are laid out."""

from __future__ import annotations

import itertools

import pytest

from dfmp2.output.html.notation import formula, quantity, with_formulas, written
from dfmp2.output.html.page import COLUMNS, spans


@pytest.mark.parametrize(
    ("text", "expected"),
    [
        ("wavenumber / cm^-1", "wavenumber / cm⁻¹"),
        ("curvature / Eh/angstrom^2", "curvature / Eh/Å²"),
        ("<S^2>: 0.7547", "⟨S²⟩: 0.7547"),
        ("10^9 ops", "10⁹ ops"),
        ("about +-3.6e-04 Eh", "about ±3.6 \N{MULTIPLICATION SIGN} 10⁻⁴ Eh"),
        ("+1.0e+12", "+1.0 \N{MULTIPLICATION SIGN} 10¹²"),
        ("2.5e+00", "2.5"),
        ("-76.23, -0.5", "\N{MINUS SIGN}76.23, \N{MINUS SIGN}0.5"),
        ("E - lowest", "E \N{MINUS SIGN} lowest"),
        ("at 2026-11-23T03:18:17+00:00 by", "at 23 Nov 2026, 03:18 UTC by"),
        ("2026-02-30T03:18:17", "2026-02-30T03:18:17"),  # no such day
        ("2026", "2026"),
        ("DF-MP2/cc-pvdz on DF-rhf", "DF-MP2/cc-pVDZ on DF-rhf"),  # parts of words are left alone
        ("rhf to uhf", "RHF to UHF"),
        ("aug-cc-pwcvqz-pp and cc-pv[tq]z", "aug-cc-pwCVQZ-PP and cc-pV[TQ]Z"),
        ("cc-pv(t+d)z", "cc-pV(T+d)Z"),
        ("def2-tzvpp-ri, def2-universal-jkfit", "def2-TZVPP-RI, def2-universal-JKFIT"),
        ("sto-3g, 6-311++g**", "STO-3G, 6-311++G**"),
        (
            "d-aug-cc-pvdz, heavy-aug-cc-pvtz, apr-cc-pvdz, may-cc-pvdz, jun-cc-pvdz, jul-cc-pvdz",
            "d-aug-cc-pVDZ, heavy-aug-cc-pVTZ, apr-cc-pVDZ, may-cc-pVDZ, jun-cc-pVDZ, jul-cc-pVDZ",
        ),
        ("Loewdin, log10, sqrt(u), 1 degree, 90 degrees", "Löwdin, log₁₀, √u, 1 °, 90 °"),
        ("start -> end, <- used", "start → end, ← used"),
        ("cp, cp-corrected, cpu, cuda, gibbs", "CP, CP-corrected, CPU, CUDA, Gibbs"),
        ("kappa, kappa-MP2", "κ, κ-MP2"),
        ("rohf rks uks roks scf exx mp2 irc smd", "ROHF RKS UKS ROKS SCF EXX MP2 IRC SMD"),
        ("b3lyp blyp pbe pbe0 tpss", "B3LYP BLYP PBE PBE0 TPSS"),
        # lookalikes
        ("cc-pvdz-jkfit.dat water-cc-pvdz.h5", "cc-pvdz-jkfit.dat water-cc-pvdz.h5"),
        ("atoms 1-5, 6-10", "atoms 1-5, 6-10"),
        ("--basis and -o", "--basis and -o"),
        (
            "uhf below: --reference uhf, --tolerance 1e-9",
            "UHF below: --reference uhf, --tolerance 1e-9",
        ),
        ("step-1e-05x", "step-1e-05x"),
        ("O1-H2, 1e5c", "O1-H2, 1e5c"),
    ],
)
def test_names_and_numbers_are_as_people_write_them(text, expected):
    assert written(text) == expected
    assert written(expected) == expected  # once more changes nothing


@pytest.mark.parametrize(
    ("text", "charge", "expected"),
    [
        ("H3N", 0, "NH₃"),
        ("H4N", 1, "NH₄⁺"),
        ("O4S", -2, "SO₄²⁻"),
        ("H2O4S", 0, "H₂SO₄"),
        ("H2O", 0, "H₂O"),
        ("HLi", 0, "LiH"),
        ("H2S", 0, "H₂S"),
        ("H4Si", 0, "SiH₄"),
        ("FH", 0, "HF"),
        ("HO", -1, "OH⁻"),
        ("C6H12O6", 0, "C₆H₁₂O₆"),
        ("H2O + ghost HO", 0, "H₂O + ghost OH"),
        ("Xx12", 0, "Xx₁₂"),
        ("", 0, ""),
        # Of nonmetals (IUPAC, Nomenclature of Inorganic Chemistry, I-4.6.1), behind a metal.
        *(
            ("".join(sorted(pair)), 0, "".join(pair))
            for pair in itertools.pairwise(
                ("Li", "B", "Si", "Sb", "As", "P", "N", "H", "Te", "Se", "S", "At", "I", "Br")
            )
        ),
        ("BrCl", 0, "BrCl"),
        ("ClO", 0, "ClO"),
        ("FO", 0, "OF"),
    ],
)
def test_formulas_are_as_people_write_them(text, charge, expected):
    assert formula(text, charge) == expected


def test_only_the_formulas_of_the_runs_are_written_in_a_sentence():
    said = with_formulas("scan of h2o (H2O), MP2-F12/VV10 of O2 and H2O2.xyz", ["H2O", "O2"])
    assert said == "scan of h2o (H₂O), MP2-F12/VV10 of O₂ and H2O2.xyz"


@pytest.mark.parametrize(
    ("name", "expected"),
    [
        ("cp corrected interaction energy", "total, CP"),
        ("uncorrected interaction energy", "total, without CP"),
        ("mp2 opposite spin correlation cp corrected interaction energy", "opposite spin, CP"),
        ("mp2 same spin correlation uncorrected interaction energy", "same spin, without CP"),
        ("scs mp2 correlation cp corrected interaction energy", "SCS-MP2, CP"),
        ("sos mp2 correlation cp corrected interaction energy", "SOS-MP2, CP"),
        ("scaled mp2 correlation uncorrected interaction energy", "scaled MP2, without CP"),
        ("mp2 correlation counterpoise correction", "MP2 correlation, CP correction"),
        ("optimized total energy", "energy of the last geometry"),
        ("correlation counterpoise correction", "correlation, CP correction"),
        ("zero point energy", "zero-point energy"),
        ("max gradient", "largest gradient"),
        ("heat capacity", "heat capacity"),
    ],
)
def test_quantities_have_short_names(name, expected):
    assert quantity(name) == expected


@pytest.mark.parametrize("count", range(1, 18))
def test_every_row_of_tiles_is_full(count):
    """Each multiple of the columns is the sum of the first tiles."""
    widths = spans(count)
    assert len(widths) == count
    ends = range(COLUMNS, sum(widths) + COLUMNS, COLUMNS)
    assert set(ends) <= set(itertools.accumulate(widths))
