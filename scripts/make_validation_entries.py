"""Make dfmp2/validation/cases.json and trnsci.json: the reference energies that travel with the package.

    python scripts/make_validation_entries.py

Published numbers are read by validation_published.py, our own runs of Psi4, BAGEL, NWChem and PySCF by
validation_runs.py. The PySCF values of the trnsci table are computed here, by PySCF alone. The program under test is
not imported.
"""

from __future__ import annotations

import json
from typing import Any

import pyscf
from make_expected_energies import Atoms, compute
from validation_entry import DATA, PYSCF_BOHR, ROOT, Item, calculation, entry, geometry, lines
from validation_published import composites, published
from validation_runs import bagel_runs, nwchem_runs, psi4_runs, pyscf_runs

TARGET = ROOT / "dfmp2" / "validation"
REASONS = {  # first word of an id -> why it is left out, where reference_cases.json gives another reason
    "ppl": "conventional MP2 with six decimals; the SCF settings are not documented, and N2's HF energy in aVDZ is "
    "2.8e-4 Eh off every variant tried",
}


def main() -> None:
    """Write both files."""
    cases = json.loads((DATA / "reference_cases.json").read_text())["cases"]
    entries = [published(case) for case in cases] + composites() + psi4_runs() + bagel_runs() + nwchem_runs()
    kernels = trnblas_kernels()
    entries += pyscf_runs() + closed_forms() + [kernels[0]]
    about = "Reference energies (hartree) of other programs; made by scripts/make_validation_entries.py."
    write("cases.json", {"about": about, "entries": entries, "left_out": left_out()})
    write("trnsci.json", {"about": about, "entries": trnsci() + kernels + closed_forms()[:2]})


def left_out() -> list[Item]:
    """Published numbers that are no entry, each with its reason."""
    excluded = json.loads((DATA / "reference_cases.json").read_text())["excluded"]
    # Numbers that composites() and closed_forms() turn into entries.
    made = {"psi4-dfmp2-1", "psi4-dfmp2-fc-kr2", "psi4-dlpnomp2-2", "psi4-dfomp2", "ncia", "s66x8", "gamess"}
    items = [
        {"id": case["id"], "reason": REASONS.get(case["id"].split("-")[0], case["reason"])}
        for case in excluded
        if not case["id"].startswith(tuple(made))
    ]
    items += [
        {"id": "psi4-dfomp2-1 and -2: MP2 energies", "reason": "orbital-optimised MP2, another method; SCF used"},
        {
            "id": "ncia: CBS rows, and aug-cc-pvqz of the two larger complexes",
            "reason": "up to 800 functions three times: hours on two cores for the third decimal of kcal/mol",
        },
        {
            "id": "gamess-miniapp w60",
            "reason": "11 GB and 4e14 FLOP, an hour on two cores; w30 is half of it",
        },
        {"id": "natural occupation numbers, gradients", "reason": "no energies"},
    ]
    return items


def write(name: str, document: Item) -> None:
    """One line per entry keeps differences readable."""
    head = {key: value for key, value in document.items() if not isinstance(value, list)}
    lists = {key: value for key, value in document.items() if isinstance(value, list)}
    parts = [f" {json.dumps(key)}: {json.dumps(value)}" for key, value in head.items()]
    for key, value in lists.items():
        rows = ",\n".join("  " + json.dumps(item) for item in value)
        parts.append(f" {json.dumps(key)}: [\n{rows}\n ]")
    (TARGET / name).write_text("{\n" + ",\n".join(parts) + "\n}\n", encoding="utf-8")
    print(f"{name}: {len(document['entries'])} entries")


def closed_forms() -> list[Item]:
    """The mini-app's arrays at its own sizes, and at sizes around powers of two, where float32 is exact."""
    app = "jkwack/GAMESS_RI-MP2_MiniApp:source/rimp2_energy_whole_KERN.f90"
    sizes = {"benz": (15, 93, 420), "cor": (54, 282, 1512), "c60": (120, 360, 3960)}
    sizes |= {"w30": (120, 570, 2520)}
    awkward = [(1, 1, 64), (1, 129, 128), (17, 127, 256), (33, 128, 512), (128, 17, 128), (129, 5, 1024)]
    named = [(f"gamess-miniapp-{name}", shape, "GAMESS mini-app") for name, shape in sizes.items()]
    named += [("closed-form-{}-{}-{}".format(*shape), shape, "closed form") for shape in awkward]
    reason = "rounding: 1e-12 relative in float64; 1e-6 in mixed precision, with the certificate's estimate"
    entries = []
    for name, (nocc, nvir, naux), program in named:
        value = -0.5 * nvir**2 * nocc**2 / naux**2
        entries.append(
            kernel(
                *(name, (program, "exact"), [app, "energy: dfmp2/validation/synthetic.py"]),
                {"recipe": "closed-form", "nocc": nocc, "nvir": nvir, "naux": naux},
                value,
                tolerance=1e-12 * abs(value),
                tolerance_mixed=1e-6 * abs(value),
                tolerance_reason=reason,
                tags=["slow"] if name.endswith(("c60", "w30")) else [],
            )
        )
    return entries


def trnblas_kernels() -> list[Item]:
    """The pseudo-random arrays of the public example of trnblas."""
    shapes = {"small": (16, 112, 384), "medium": (64, 448, 1536), "large": (96, 672, 2304)}
    values = {"small": (-1.61925e-04, 1e-9), "medium": (-2.4872205, 2e-6), "large": (-43.5118, 5e-5)}
    return [
        kernel(
            *(f"trnblas-{name}", ("trnblas", "0.4.0"), ["trnsci/trnblas:examples/df_mp2.py", "CHANGELOG.md"]),
            {"recipe": "trnblas", "nocc": nocc, "nvir": nvir, "naux": naux},
            values[name][0],
            tolerance=values[name][1],
            tolerance_reason="digits of the published energy, computed there in float32",
            tags=["slow"] if name == "large" else [],
        )
        for name, (nocc, nvir, naux) in shapes.items()
    ]


def kernel(name: str, program: tuple[str, str], source: list[str], sizes: Item, value: float, **more: Any) -> Item:
    """An entry without a molecule."""
    tags = ["kernel", *more.pop("tags", [])]
    base = {"id": name, "program": program[0], "version": program[1], "source": source, "kernel": sizes}
    return {**base, "quantities": {"mp2_correlation_energy": value}, "tags": tags, "needs": [], **more}


BRIDGE = "trnsci/trnblas:examples/_pyscf_bridge.py"
TRNSCI: dict[str, str] = {  # angstrom; the idealised geometries of that file
    "h2o": "O 0 0 0\nH 0 0 0.96\nH 0.926 0 -0.24",
    "ch4": "C 0 0 0\nH 0.63 0.63 0.63\nH -0.63 -0.63 0.63\nH 0.63 -0.63 -0.63\nH -0.63 0.63 -0.63",
    "nh3": "N 0 0 0\nH 0 0.94 -0.38\nH 0.82 -0.47 -0.38\nH -0.82 -0.47 -0.38",
    "glycine": "N 0 1.493 0\nH 0.823 1.93 0.293\nH -0.823 1.93 0.293\nC 0 0 0\nH 1.029 -0.346 0\nH -1.029 -0.346 0\n"
    "C 0 -0.541 1.451\nO 0 -1.751 1.586\nO 0 0.268 2.423\nH 0 -0.143 3.297",
    "h2o-trimer": "O 0 0 0\nH 0.756 0.586 0\nH -0.756 0.586 0\nO 2.44 0 0\nH 3.196 0.586 0\nH 1.684 0.586 0\n"
    "O 1.22 2.114 0\nH 1.976 2.7 0\nH 0.464 2.7 0",
}
ROWS: tuple[tuple[str, str, float, float | None, float | None, str], ...] = (
    # molecule, basis, PySCF's energy as known before, published |dE| and bound, where
    ("h2o", "sto-3g", -0.0355181135, None, 1e-6, "trnblas tests/test_df_mp2_pyscf.py"),
    ("h2o", "cc-pvdz", -0.2040005747, None, 1e-5, "trnblas tests/test_df_mp2_pyscf.py"),
    ("h2o", "cc-pvtz", -0.2733469671, 1.99e-7, None, "trnblas 0.5.4 CHANGELOG.md"),
    ("ch4", "cc-pvdz", -0.1634010870, None, 1e-5, "trnblas tests/test_df_mp2_pyscf.py"),
    ("nh3", "cc-pvdz", -0.1887137419, None, 1e-5, "trnblas tests/test_df_mp2_pyscf.py"),
    ("glycine", "sto-3g", -0.2442629671, 1.71e-8, None, "trnblas 0.5.4 CHANGELOG.md"),
    ("glycine", "cc-pvdz", -0.8183029871, 3.51e-7, None, "trnblas 0.5.4 CHANGELOG.md"),
    ("h2o-trimer", "sto-3g", -0.1097377682, 4.17e-8, None, "trnblas 0.5.4 CHANGELOG.md"),
)


def trnsci() -> list[Item]:
    """The published rows of the lineage, with its fitting set and with proper ones; PySCF's values computed here."""
    entries, proper = [], []
    for name, basis, known, difference, bound, by in ROWS:
        atoms = lines(TRNSCI[name])
        weigend = "def2-universal-jfit"  # what PySCF calls "weigend"
        value = correlation(atoms, basis, weigend, weigend)
        if abs(value - known) > 1e-8:
            raise RuntimeError(f"{name} {basis}: PySCF gives {value:.10f}, known is {known:.10f}")
        one = calculation(geometry(atoms, PYSCF_BOHR), basis, weigend, scf_auxbasis=weigend, scf_conv_tol=1e-12)
        limit = difference if difference is not None else bound
        if limit is None:
            raise RuntimeError(f"{name} {basis}: neither a difference nor a bound")
        item = entry(
            *(f"trnsci-{name}-{basis}-weigend", ("PySCF", pyscf.__version__), [BRIDGE], [one]),
            {"mp2_correlation_energy": value},
            (limit, f"{'published' if difference is not None else 'bound published'} by {by}"),
        )
        entries.append({**item, "published": {"difference": difference, "bound": bound, "by": by}})
        jk, ri = ("def2-universal-jkfit", "def2-svp-ri") if basis == "sto-3g" else (f"{basis}-jkfit", f"{basis}-ri")
        fitted = calculation(geometry(atoms, PYSCF_BOHR), basis, ri, scf_auxbasis=jk)
        proper.append(
            entry(
                *(f"trnsci-{name}-{basis}-ri", ("PySCF", pyscf.__version__), [BRIDGE], [fitted]),
                {"mp2_correlation_energy": correlation(atoms, basis, jk, ri)},
                (1e-8, "same integrals and SCF library, converged to 1e-11 Eh; MP2 code of its own"),
            )
        )
    return entries + proper


def correlation(atoms: Atoms, basis: str, jk: str, ri: str) -> float:
    """PySCF's DF-MP2 correlation energy, Eh."""
    symbols = {symbol for symbol, _ in atoms}
    return float(compute(atoms, 0, 1, basis, jk, dict.fromkeys(symbols, ri))["values"]["mp2_correlation_energy"])


if __name__ == "__main__":
    main()
