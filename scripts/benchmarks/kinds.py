"""Called by scripts/benchmarks/run.sh: every kind of calculation against PySCF and Psi4, as whole
processes that take turns, from the same xyz file to the same number.

    python scripts/benchmarks/kinds.py --repeats 3 --json kinds.json
    python scripts/benchmarks/kinds.py --only 'gradient; properties'

The PySCF and Psi4 inputs are what a user of theirs would write, with the same basis, fitting sets
(theirs by default are the same) and convergence. `pyscf-tuned` is PySCF with
OPENBLAS_NUM_THREADS=1. Where a program cannot do the same calculation, it does the nearest thing
that it has, which the note says, and its number is not compared; where it has nothing near, it is
left out. Prints a Markdown table; exit code 8 when compared numbers differ by more than 1e-6.
"""

from __future__ import annotations

import json
import shutil
import sys
from dataclasses import asdict, dataclass, field, replace
from pathlib import Path
from typing import Any

from programs import FOLDER, Child, options, peer_settings, private_folder, run_child

from dfmp2.progress import Listener
from dfmp2.validation.bench import ratios, spread, watch
from dfmp2.validation.psi4 import find_psi4

ROOT = Path(__file__).resolve().parents[2]
GLYCINE = "inputs/glycine.xyz"
DIMER = "inputs/formic-acid-dimer.xyz"
TOLERANCE = 1e-6  # of the compared numbers
PYSCF = """import pyscf
from pyscf import dft, gto, mp, scf

def molecule(name="molecule.xyz", charge=0, spin=0):
    return gto.M(atom=name, basis={basis!r}, ecp={ecp!r}, charge=charge, spin=spin, verbose=0)

def converged(mf, start=None):
    mf.conv_tol, mf.conv_tol_grad, mf.max_cycle = 1e-10, 1e-6, 100
    mf.kernel(start)
    assert mf.converged
    return mf
"""
PSI4 = """memory 8 gb
whole = psi4.core.Molecule.from_string("{charge} {multiplicity}\\n" + "\\n".join(
    open("0.xyz").read().splitlines()[2:]) + "\\nno_com\\nno_reorient\\n")
psi4.activate(whole)
set {{
basis {basis}
scf_type df
mp2_type df
puream true
e_convergence 1e-10
d_convergence 1e-7
{settings}
}}
"""
PAIRS = """from pyscf.mp import dfmp2_native
def energy(mol, frozen=0):
    mf = converged(scf.RHF(mol).density_fit())
    return mf, dfmp2_native.DFRMP2(mf, frozen=frozen)
"""
OPEN_PAIRS = """from pyscf.mp import dfump2_native
mf = converged(scf.UHF(molecule(charge=1, spin=1)).density_fit())
value = mf.e_tot + dfump2_native.DFUMP2(mf).kernel()
"""
# rounded values near experiment
FORMALDEHYDE = "4\nH2CO\nC 0 0 -0.53\nO 0 0 0.68\nH 0 0.94 -1.12\nH 0 -0.94 -1.12\n"
ETHANOL = """9
ethanol
C -1.16 -0.40 0.02
C 0.05 0.55 0.01
O 1.24 -0.23 -0.02
H -2.08 0.18 -0.02
H -1.16 -1.02 0.92
H -1.12 -1.06 -0.84
H 0.04 1.19 0.90
H 0.01 1.19 -0.88
H 1.98 0.38 0.03
"""


def molecule(name: str) -> list[str]:
    """Text of an xyz file of the repository."""
    return [(ROOT / name).read_text(encoding="utf-8")]


def drawn_apart(count: int) -> list[str]:
    """Texts of `count` xyz files of the formic acid dimer, its second half moved by 0.1 angstrom
    each time."""
    lines = molecule(DIMER)[0].splitlines()
    texts = []
    for number in range(count):
        moved = list(lines[:7])
        for line in lines[7:]:
            symbol, x, y, z = line.split()
            moved.append(f"{symbol} {float(x) + 0.1 * number:.6f} {y} {z}")
        texts.append("\n".join(moved) + "\n")
    return texts


def waters(count: int) -> list[str]:
    """Texts of `count` xyz files of water with different bonds and angles, angstrom."""
    return [
        f"3\nwater {number}\nO 0 0 0\nH 0 {0.70 + 0.001 * number:.4f} 0.58\n"
        f"H 0 -0.76 {0.55 + 0.0005 * number:.4f}\n"
        for number in range(count)
    ]


PRINTED = 'open("value.txt", "w").write(repr(float(value)))\n'
COUNTERPOISE = """whole = molecule()
places = list(zip(whole.elements, (whole.atom_coords() * 0.52917721092).tolist()))
ghosts = [("GHOST-" + name, place) for name, place in places]
found = []
for atoms in (places, places[:5] + ghosts[5:], ghosts[:5] + places[5:], places[:5], places[5:]):
    mf, mp2 = energy(molecule(atoms))
    found.append(mf.e_tot + mp2.kernel())
value = found[0] - found[1] - found[2]
"""
COUNTERPOISE_PSI4 = """atoms = open("molecule.xyz").read().splitlines()[2:]
text = "0 1\\n" + "\\n".join(atoms[:5]) + "\\n--\\n0 1\\n" + "\\n".join(atoms[5:])
pair = psi4.core.Molecule.from_string(text + "\\nno_com\\nno_reorient\\n")
value = energy("mp2", molecule=pair, bsse_type=["cp", "nocp"])
"""
FREQUENCIES = """import numpy
from pyscf.hessian import thermo
mol = molecule()
scanner = mp.MP2(converged(scf.RHF(mol))).nuc_grad_method().as_scanner()
value, gradient = scanner(mol)
places, rows = mol.atom_coords(), []
for coordinate in range(places.size):
    slopes = []
    for step in (0.005, -0.005):
        moved = places.copy()
        moved.flat[coordinate] += step
        slopes.append(scanner(mol.set_geom_(moved, unit="Bohr", inplace=False))[1])
    rows.append((slopes[0] - slopes[1]) / 0.01)
hessian = numpy.array(rows).reshape(4, 3, 4, 3).transpose(0, 2, 1, 3)
thermo.harmonic_analysis(mol, hessian)
"""
OPTIMISATION = """from pyscf.geomopt.geometric_solver import optimize
mf = scf.RHF(molecule())
mf.conv_tol, mf.conv_tol_grad = 1e-10, 1e-6
mol = optimize(mp.MP2(mf))
value = mp.MP2(scf.RHF(mol).run()).run().e_tot
"""


@dataclass(frozen=True, slots=True)
class Kind:
    """One kind of calculation.

    Attributes
    ----------
    name : printed name
    basis : orbital basis
    geometries : texts of xyz files: 0.xyz, 1.xyz ..., and molecule.xyz, which holds all
    ours : arguments of dfmp2, without molecule, basis and output
    value : keys of the compared number in dfmp2's --json
    pyscf : Python text that sets `value`, after PYSCF; "" if PySCF has nothing near
    psi4 : text for Psi4 that sets `value`, after PSI4; "" if Psi4 has nothing near
    settings : options of Psi4
    state : charge and multiplicity
    ecp : name of PySCF's core potentials
    near : program -> what it computes instead, so that its number is not compared
    """

    name: str
    basis: str
    geometries: list[str]
    ours: tuple[str, ...] = ("run",)
    value: tuple[str, ...] = ("mp2_total_energy",)
    pyscf: str = PAIRS + "mf, mp2 = energy(molecule())\nvalue = mf.e_tot + mp2.kernel()\n"
    psi4: str = "value = energy('mp2')\n"
    settings: str = ""
    state: tuple[int, int] = (0, 1)
    ecp: str | None = None
    near: dict[str, str] = field(default_factory=dict)


def kinds() -> list[Kind]:
    """All kinds."""
    glycine, dimer = molecule(GLYCINE), molecule(DIMER)
    cation = ("--charge", "1", "--multiplicity", "2")
    with_gradient = "g, wfn = gradient('mp2', return_wfn=True)\nvalue = wfn.energy()\n"
    unfitted = {"pyscf": "without fitting"}
    each_file = """found, start = [], None
for number in range({count}):
    mf = converged(scf.RHF(molecule(f"{number}.xyz")).density_fit(), start)
    found.append(mf.e_tot + dfmp2_native.DFRMP2(mf).kernel())
    start = {start}
"""
    each_file_psi4 = """found = []
for number in range({count}):
    atoms = open(f"{number}.xyz").read().splitlines()[2:]
    text = "0 1\\n" + "\\n".join(atoms) + "\\nno_com\\nno_reorient\\n"
    found.append(energy("mp2", molecule=psi4.core.Molecule.from_string(text)))
"""
    uhf = Kind(
        "UHF cation",
        "cc-pvtz",
        glycine,
        ours=("run", *cation),
        pyscf=OPEN_PAIRS,
        settings="reference uhf",
        state=(1, 2),
    )
    return [
        Kind("RHF", "cc-pvtz", glycine),
        uhf,
        replace(uhf, name="UHF cation, stability off", ours=(*uhf.ours, "--stability", "off")),
        Kind(
            "ROHF cation",
            "cc-pvtz",
            glycine,
            ours=("run", *cation, "--reference", "rohf"),
            pyscf="",
            settings="reference rohf",
            state=(1, 2),
        ),
        Kind(
            "frozen core",
            "cc-pvtz",
            glycine,
            ours=("run", "--frozen-core", "auto"),
            pyscf=PAIRS
            + "mf, mp2 = energy(molecule(), frozen=5)\nvalue = mf.e_tot + mp2.kernel()\n",
            settings="freeze_core true",
        ),
        Kind(
            "core potential",
            "def2-tzvpp",
            molecule("inputs/ch2i2.xyz"),
            ecp="def2-tzvpp",
            near={"pyscf": "its own fitting sets"},
        ),
        Kind("diffuse basis", "aug-cc-pvdz", dimer),
        Kind(
            "conventional SCF",
            "cc-pvdz",
            glycine,
            ours=("run", "--scf", "conventional"),
            pyscf="from pyscf.mp import dfmp2_native\nmf = converged(scf.RHF(molecule()))\n"
            "value = mf.e_tot + dfmp2_native.DFRMP2(mf).kernel()\n",
            settings="scf_type pk",
        ),
        Kind(
            "gradient",
            "cc-pvdz",
            glycine,
            ours=("gradient",),
            pyscf="mp2 = mp.MP2(converged(scf.RHF(molecule()))).run()\n"
            "mp2.nuc_grad_method().kernel()\nvalue = mp2.e_tot\n",
            psi4=with_gradient,
            near=unfitted,
        ),
        Kind(
            "gradient, UHF cation",
            "cc-pvdz",
            glycine,
            ours=("gradient", *cation),
            pyscf="mp2 = mp.UMP2(converged(scf.UHF(molecule(charge=1, spin=1)))).run()\n"
            "mp2.nuc_grad_method().kernel()\nvalue = mp2.e_tot\n",
            psi4=with_gradient,
            settings="reference uhf",
            state=(1, 2),
            near=unfitted,
        ),
        Kind(
            "properties",
            "cc-pvtz",
            glycine,
            ours=("run", "--properties"),
            pyscf=PAIRS + "mf, mp2 = energy(molecule())\nvalue = mf.e_tot + mp2.kernel()\n"
            "mp2.make_rdm1(relaxed=True, ao_repr=True)\n",
            psi4=with_gradient + "oeprop(wfn, 'DIPOLE')\n",
            near={"psi4": "with the gradient"},
        ),
        Kind(
            "opposite spin by Laplace",
            "cc-pvdz",
            molecule("inputs/water-10.xyz"),
            ours=("run", "--method", "sos-laplace"),
            value=("scf_total_energy",),
            pyscf=PAIRS + "mf, mp2 = energy(molecule())\nmp2.kernel()\nvalue = mf.e_tot\n",
            psi4="energy('mp2')\nvalue = variable('SCF TOTAL ENERGY')\n",
            near={"pyscf": "MP2 by pairs", "psi4": "MP2 by pairs"},
        ),
        Kind(
            "direct RPA",
            "cc-pvtz",
            glycine,
            ours=("run", "--method", "drpa"),
            value=("scf_total_energy",),
            pyscf="from pyscf.gw.rpa import RPA\nmf = converged(scf.RHF(molecule()).density_fit())\n"
            "RPA(mf).kernel()\nvalue = mf.e_tot\n",
            psi4="",
        ),
        Kind(
            "Kohn-Sham, B3LYP",
            "cc-pvtz",
            glycine,
            ours=("run", "--method", "ks", "--xc", "b3lyp", "--grid", "75,302"),
            value=("scf_total_energy",),
            pyscf="mf = dft.RKS(molecule(), xc='b3lyp').density_fit()\n"
            "mf.grids.atom_grid = (75, 302)\nvalue = converged(mf).e_tot\n",
            psi4="value = energy('b3lyp')\n",
            settings="dft_radial_points 50\ndft_spherical_points 302",
            near={"psi4": "50,302 pruned less"},
        ),
        Kind(
            "counterpoise",
            "cc-pvdz",
            dimer,
            ours=("interaction", "--fragments", "1-5,6-10"),
            value=("cp_corrected_interaction_energy",),
            pyscf=PAIRS + COUNTERPOISE,
            psi4=COUNTERPOISE_PSI4,
        ),
        Kind(
            "scan of 10",
            "cc-pvdz",
            drawn_apart(10),
            ours=("scan",),
            value=("table", "mp2_total_energy"),
            pyscf=PAIRS
            + each_file.replace("{count}", "10").replace("{start}", "mf.make_rdm1()")
            + "value = found[-1]\n",
            psi4=each_file_psi4.replace("{count}", "10") + "value = found[-1]\n",
        ),
        Kind(
            "frequencies",
            "cc-pvdz",
            [FORMALDEHYDE],
            ours=("frequencies", "--allow-gradient"),
            value=("total_energy",),
            pyscf=FREQUENCIES,
            psi4="value = energy('mp2')\nfrequency('mp2', dertype='gradient')\n",
            near={"pyscf": "without fitting", "psi4": "with symmetry"},
        ),
        Kind(
            "optimisation",
            "cc-pvdz",
            [ETHANOL],
            ours=("optimize",),
            value=("optimized_total_energy",),
            pyscf=OPTIMISATION,
            psi4="value = optimize('mp2')\n",
            settings="g_convergence gau",
            near={"pyscf": "without fitting", "psi4": "other steps"},
        ),
        Kind(
            "batch of 100",
            "cc-pvdz",
            waters(100),
            ours=("batch", "run"),
            value=("complete",),
            pyscf=PAIRS
            + each_file.replace("{count}", "100").replace("{start}", "None")
            + "value = len(found)\n",
            psi4=each_file_psi4.replace("{count}", "100") + "value = len(found)\n",
        ),
    ]


def our_command(kind: Kind, threads: int) -> list[str]:
    """Command of dfmp2."""
    if kind.ours[0] == "batch":
        what = [f"{number}.xyz" for number in range(len(kind.geometries))]
        output = ["--output", "batch"]
    else:
        what = ["molecule.xyz"]
        output = ["--output", "result.h5"]
    program = [sys.executable, "-P", "-m", "dfmp2"]
    number = ["--threads", str(threads)]
    return [*program, *kind.ours, *what, "--basis", kind.basis, *number, *output, "--json"]


def our_value(kind: Kind, child: Child) -> float:
    """The compared number in the JSON of dfmp2."""
    found: Any = json.loads(child.out)
    for key in kind.value:
        found = found[key]
    if isinstance(found, list):
        return float(found[-1])
    return float(found)


def pyscf_command(kind: Kind, folder: Path) -> list[str]:
    """Write PySCF's script; its command."""
    head = PYSCF.replace("{basis!r}", repr(kind.basis)).replace("{ecp!r}", repr(kind.ecp))
    text = head + kind.pyscf + PRINTED
    (folder / "peer.py").write_text(text, encoding="utf-8")
    return [sys.executable, "peer.py"]


def psi4_command(kind: Kind, folder: Path, threads: int) -> list[str]:
    """Write Psi4's input; its command."""
    charge, multiplicity = kind.state
    head = PSI4.format(
        charge=charge, multiplicity=multiplicity, basis=kind.basis, settings=kind.settings
    )
    (folder / "input.dat").write_text(head + kind.psi4 + PRINTED, encoding="utf-8")
    return [find_psi4() or "psi4", "-n", str(threads), "-s", str(folder)]


def measured(kind: Kind, lane: str, threads: int, parent: Path) -> tuple[Child, float]:
    """Run one program once, in its own folder; returns also the number that it found."""
    folder = parent / "run"
    folder.mkdir()
    for number, text in enumerate(kind.geometries):
        (folder / f"{number}.xyz").write_text(text, encoding="utf-8")
    (folder / "molecule.xyz").write_text("".join(kind.geometries), encoding="utf-8")
    settings = {}
    if lane == "dfmp2":
        command = our_command(kind, threads)
    elif lane == "psi4":
        command = psi4_command(kind, folder, threads)
        settings = {**peer_settings(threads), "HOME": FOLDER}
    else:
        command = pyscf_command(kind, folder)
        settings = peer_settings(threads)
        if lane == "pyscf-tuned":
            settings["OPENBLAS_NUM_THREADS"] = "1"
    child = run_child(command, folder, settings)
    if child.code:
        raise SystemExit(f"{kind.name}, {lane}: exit code {child.code}: {child.ending()}")
    if lane == "dfmp2":
        value = our_value(kind, child)
    else:
        value = float((folder / "value.txt").read_text(encoding="ascii"))
    shutil.rmtree(folder)
    return child, value


def race(kind: Kind, lanes: list[str], threads: int, repeats: int, parent: Path) -> dict[str, Any]:
    """Run the programs in turns: times, ratios and numbers of one kind."""
    able = ["dfmp2"]
    for lane in lanes:
        if (lane == "psi4" and kind.psi4) or (lane != "psi4" and kind.pyscf):
            able.append(lane)
    children: dict[str, list[Child]] = {lane: [] for lane in able}
    values: dict[str, float] = {}
    for _ in range(repeats):
        for lane in able:
            child, values[lane] = measured(kind, lane, threads, parent)
            children[lane].append(child)
            print(
                f"{kind.name}, {lane}: {child.wall:.2f} s, processor {child.cpu:.2f} s, "
                f"others {child.foreign:.2f} s, {values[lane]:.9f}",
                file=sys.stderr,
            )
    walls = {lane: [child.wall for child in runs] for lane, runs in children.items()}
    found: dict[str, Any] = {"kind": kind.name, "basis": kind.basis, "programs": {}}
    for lane, runs in children.items():
        program: dict[str, Any] = {
            "total": asdict(spread(walls[lane])),
            "peak": max(child.peak for child in runs),
            "foreign": max(child.foreign for child in runs),
            "value": values[lane],
            "near": kind.near.get(lane.removesuffix("-tuned")),
        }
        if lane != "dfmp2":
            program["ratio"] = asdict(ratios(walls["dfmp2"], walls[lane]))
        found["programs"][lane] = program
    return found


def differs(found: dict[str, Any]) -> bool:
    """Whether a program that did the same calculation found another number."""
    programs = found["programs"]
    return any(
        program["near"] is None and abs(program["value"] - programs["dfmp2"]["value"]) > TOLERANCE
        for program in programs.values()
    )


def table(found: list[dict[str, Any]], lanes: list[str]) -> list[str]:
    """Markdown: seconds of dfmp2, ratios to the others, peak memory."""
    heads = ["kind", "basis", "dfmp2 / s", *(f"to {lane}" for lane in lanes), "peak / MB"]
    lines = ["| " + " | ".join(heads) + " |", "|" + "---|" * len(heads)]
    for one in found:
        programs = one["programs"]
        cells = [one["kind"], one["basis"], f"{programs['dfmp2']['total']['median']:.2f}"]
        for lane in lanes:
            if lane not in programs:
                cells.append("-")
                continue
            near = programs[lane]["near"]
            cell = f"{programs[lane]['ratio']['median']:.2f}"
            if near is not None:
                cell += f" ({near})"
            cells.append(cell)
        peaks = [f"{program['peak'] / 1e6:.0f}" for program in programs.values()]
        cells.append(" / ".join(peaks))
        lines.append("| " + " | ".join(cells) + " |")
    return lines


def main() -> int:
    """Command line."""
    parser = options(__doc__ or "")
    parser.set_defaults(repeats=3)
    parser.add_argument("--only", default="", help="kinds, with semicolons between")
    parser.add_argument(
        "--against", default="pyscf,pyscf-tuned,psi4", help="pyscf, pyscf-tuned, psi4; with commas"
    )
    given = parser.parse_args()
    lanes = given.against.split(",")
    wanted = [name.strip() for name in given.only.split(";") if name]
    chosen = [kind for kind in kinds() if not wanted or kind.name in wanted]
    header, found = watch(Listener()), []
    with private_folder(given.scratch) as folder:
        for kind in chosen:
            found.append(race(kind, lanes, given.threads, given.repeats, Path(folder)))
    record = {"mode": "kinds", "machine": asdict(header), "threads": given.threads, "kinds": found}
    if given.json:
        given.json.write_text(json.dumps(record, indent=2) + "\n", encoding="utf-8")
    print("\n".join(table(found, lanes)))
    return 8 * any(differs(one) for one in found)


if __name__ == "__main__":
    sys.exit(main())
