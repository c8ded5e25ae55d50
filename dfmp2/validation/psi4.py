"""Psi4 as an independent check: the same calculation from scratch, in a separate process.

Geometry in bohr, orbital basis, core potentials and both fitting sets are written out as data, so
that differences between the programs' libraries do not matter. Because Psi4 executes its input as
Python, the input contains only numbers and element symbols, but no names or comments from a result
file.
"""

from __future__ import annotations

import os
import re
import shutil
import signal
import subprocess
import tempfile
from collections.abc import Collection, Iterable, Mapping
from concurrent.futures import ThreadPoolExecutor
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any

import numpy as np

from dfmp2.double_hybrids import PARAMETERS
from dfmp2.errors import (
    BackendError,
    BackendUnavailable,
    ComparisonFailed,
    InputError,
    Option,
    ResourceError,
    UnsupportedByBackend,
)
from dfmp2.host import resources
from dfmp2.integrals.three_center import smallest_overlap
from dfmp2.molecule.basis import BasisSet, ElementBasis
from dfmp2.molecule.mole import build_mole
from dfmp2.molecule.pyscf_shield import shielded
from dfmp2.mp2.result import MP2Result, NativeEnergies
from dfmp2.output.export.conventions import core_terms, local_momentum
from dfmp2.scf.kohn_sham import exact_exchange

PYSCF = "compare with PySCF (--with pyscf)"
INSTALL = "apt-get install psi4, or conda install -c conda-forge psi4"
# Variables that make Psi4 take basis sets, settings or threads from elsewhere.
FOREIGN_VARIABLES = (
    "PSIPATH",
    "PSI_SCRATCH",
    "OPENBLAS_NUM_THREADS",
    "MKL_NUM_THREADS",
    "BLIS_NUM_THREADS",
)
# printed by Psi4 1.3, which then continues; gold with its potential is 3e-5 Eh off
INEXACT = "Failed to converge"
# X2C of Psi4 1.3.2 and PySCF 2.14, E(SCF): HCl 9e-9, HBr 2e-7 Eh apart (4e-9 in c, E about c^-2
# Z^4: Ag 9e-7).
HEAVIEST = 5 * 10**6  # sum of Z^4
# eigenvalue; HBr/6-31G with 1e-8 is 3e-5 Eh off, HBr/def2-TZVP with 2e-6 is not off
LEAST_OVERLAP = 1e-6
LAST_LINES = 3  # of a failed run's output that the error shows
LONGEST_LINE = 160

_NUMBER = r"\s*=\s*(-?\d+\.\d+(?:[eE][-+]?\d+)?)"
_ERROR = re.compile(r"(Fatal Error|[\w.]*(Error|Exception)): \S")
_ENERGIES = {
    "scf_total_energy": r"^\s*Reference Energy" + _NUMBER,
    "singles": r"^\s*Singles Energy" + _NUMBER,
    "same_spin": r"^\s*Same-Spin Energy" + _NUMBER,
    "opposite_spin": r"^\s*Opposite-Spin Energy" + _NUMBER,
}
LETTERS = "SPDFGHIKLMN"  # shells of l = 0, 1, ...; Psi4's parser skips J
ECP_LETTERS = "spdfgh"  # highest potential its parser knows: h
HIGHEST_POWER = 9  # of r in a core potential, which has one digit
E_CONVERGENCE, D_CONVERGENCE = 1e-10, 1e-8  # Eh; E(corr) is linear in the orbital error
GHOST = "_bare"  # label of ghosts that need their own basis
# Psi4 1.3 has no block basis_relativistic, but accepts a name defined for another role
UNUSED_ROLE = "df_basis_cc"
OVERLAP_CUT = 1e-6  # PySCF's threshold for overlap eigenvalues, for Psi4 if functions were dropped


@dataclass(frozen=True, slots=True)
class Psi4Output:
    """The content of a Psi4 DF-MP2 output.

    Attributes
    ----------
    energies : program with version, SCF energy and unscaled components, Eh
    nao, naux : numbers of functions in the orbital and MP2 fitting sets
    active : numbers of (correlated occupied, correlated virtual) orbitals, once or for alpha and
        beta
    """

    energies: NativeEnergies
    nao: int
    naux: int
    active: tuple[tuple[int, int], ...]


def find_psi4() -> str | None:
    """Absolute path of the `psi4` on PATH, or None."""
    found = shutil.which("psi4")
    return None if found is None else os.path.abspath(found)


def run_psi4(result: MP2Result, threads: int, *, timeout: float | None = None) -> NativeEnergies:
    """Repeat a calculation with Psi4: SCF from scratch, then its own DF-MP2.

    Parameters
    ----------
    result : the calculation; of its results only the sizes are used, to check that Psi4 did the
        same
    threads : threads of Psi4
    timeout : time after which Psi4 is stopped, s, None for no limit

    Raises
    ------
    BackendUnavailable : no psi4 on PATH
    BackendError : Psi4 failed, was stopped or cannot express the calculation; its last lines are
        quoted
    ComparisonFailed : Psi4 correlated different orbitals or used different functions
    ResourceError : no temporary folder can be created
    """
    program = find_psi4()
    if program is None:
        raise BackendUnavailable(
            f"psi4 is not on PATH: install it ({INSTALL}), or compare with PySCF (",
            Option("with"),
            " pyscf)",
        )
    _require_repeatable(result)
    text = psi4_input(result, int(0.7 * resources.available_memory()))  # bytes
    scratch = os.environ.get("PSI_SCRATCH") or None
    # a private folder, on Psi4's scratch disk if one is named, removed at the end of the block
    try:
        private = tempfile.TemporaryDirectory(
            prefix="dfmp2-psi4-", dir=scratch, ignore_cleanup_errors=True
        )
    except OSError as error:
        raise ResourceError(
            f"no temporary folder for Psi4 can be made in {scratch or tempfile.gettempdir()} "
            f"({error.strerror}): set PSI_SCRATCH to a folder that can be written"
        ) from error
    with private as name:
        folder = Path(name)
        (folder / "input.dat").write_text(text, encoding="ascii")
        code = _execute([program, "-n", str(threads), "-s", str(folder)], folder, threads, timeout)
        screen, output = (
            file.read_text(encoding="utf-8", errors="replace") if file.exists() else ""
            for file in (folder / "screen.txt", folder / "output.dat")
        )
    if code != 0:
        if code > 0:
            reason = f"exit code {code}"
        else:
            reason = f"killed by signal {-code}"
        raise BackendError(f"Psi4 failed ({reason}): {_ending(screen or output)}")
    if INEXACT in screen:
        raise BackendError(
            "Psi4's integrals over the core potential did not converge, so its energies are no "
            f"reference here: use a newer Psi4, or {PYSCF}"
        )
    found = parse_output(output)
    _require_same(found, result)
    return found.energies


def _require_repeatable(result: MP2Result) -> None:
    """Raise if a spin has no correlated electrons, where Psi4's DF-MP2 stops, and for X2C if Psi4's
    differs from PySCF's by more than 1e-6 Eh because of other constants and rounding."""
    if not all(result.sizes.nocc):
        raise UnsupportedByBackend(
            f"Psi4's DF-MP2 needs correlated electrons of both spins, and here are {result.sizes.nocc[0]} "
            f"alpha and {result.sizes.nocc[1]} beta: {PYSCF}"
        )
    if result.options.relativity == "none":
        return
    molecule, why = result.molecule, ""
    if int((molecule.numbers[~np.array(molecule.ghost)] ** 4).sum()) > HEAVIEST:
        why = "with atoms this heavy: Psi4's speed of light differs from PySCF's in the ninth digit"
    else:
        basis = build_mole(
            molecule, decontracted(result.orbital_basis), resources.available_memory()
        )
        if smallest_overlap(basis) < LEAST_OVERLAP:
            why = (
                f"with the decontracted {result.orbital_basis.name}, which is nearly linearly "
                "dependent"
            )
    if why:
        raise UnsupportedByBackend(
            Option("relativity", "x2c"),
            f" {why}, so its E(SCF) is off by 1e-6 Eh and more: {PYSCF}",
        )


def parse_output(text: str) -> Psi4Output:
    """Energies, version and sizes from a Psi4 DF-MP2 output.

    Raises
    ------
    BackendError : it is not the output of a completed DF-MP2 calculation
    """
    version = re.search(r"^\s*Psi4 (\d\S*)", text, re.MULTILINE)
    values = {name: re.search(pattern, text, re.MULTILINE) for name, pattern in _ENERGIES.items()}
    functions = re.search(r"NBF =\s*(\d+), NAUX =\s*(\d+)", text)
    # Class, frozen and all occupied, active occupied, active virtual, all and frozen virtual
    # orbitals.
    classes = re.findall(r"^\s*(?:PAIRS|ALPHA|BETA)((?:\s+\d+){6})\s*$", text, re.MULTILINE)
    if version is None or functions is None or not classes or not all(values.values()):
        raise BackendError(f"Psi4's output holds no DF-MP2 energies: {_ending(text)}; {PYSCF}")
    energies = {name: float(match.group(1)) for name, match in values.items() if match is not None}
    active = tuple((int(row.split()[2]), int(row.split()[3])) for row in classes)
    return Psi4Output(
        NativeEnergies(program=f"Psi4 {version.group(1)}", **energies),
        nao=int(functions.group(1)),
        naux=int(functions.group(2)),
        active=active,
    )


def _require_same(found: Psi4Output, result: MP2Result) -> None:
    """Raise if the energies are not those of the requested calculation."""
    sizes = result.sizes
    ours = tuple(zip(sizes.nocc, sizes.nvir, strict=True))[: result.reference.nspin]
    if (found.nao, found.naux, found.active) != (sizes.nao, sizes.naux, ours):
        raise ComparisonFailed(
            f"Psi4 did another calculation: {found.nao} basis functions, {found.naux} fitting "
            f"functions and {found.active} active (occupied, virtual) orbitals, the result has "
            f"{sizes.nao}, {sizes.naux} and {ours}"
        )


def _execute(command: list[str], folder: Path, threads: int, timeout: float | None) -> int:
    """Run Psi4 in `folder`, detached from the terminal; anything that ends the wait also ends Psi4.

    It gets its own process group, so that everything it starts can be stopped, and `folder` as its
    home, because it would execute a ~/.psi4rc.
    """
    environment = {
        name: value for name, value in os.environ.items() if name not in FOREIGN_VARIABLES
    }
    environment |= {
        "HOME": str(folder),
        "PSI_SCRATCH": str(folder),
        "OMP_NUM_THREADS": str(threads),
    }
    with open(folder / "screen.txt", "wb") as screen, ThreadPoolExecutor(1) as thread:
        # the main thread gets the signals, so none arrives between the start of Psi4 and the `try`
        started = thread.submit(
            subprocess.Popen,
            command,
            cwd=folder,
            env=environment,
            stdin=subprocess.DEVNULL,
            stdout=screen,
            stderr=subprocess.STDOUT,
            start_new_session=True,
        )
        try:
            return started.result().wait(timeout)
        except OSError as error:
            raise BackendError(
                f"{command[0]} cannot be started ({error.strerror}): install Psi4 again"
            ) from error
        except subprocess.TimeoutExpired as error:
            raise BackendError(
                "Psi4 was stopped after ",
                Option("timeout", f"{timeout:g}"),
                " s: allow more, or leave it out",
            ) from error
        finally:
            if started.exception() is None and (process := started.result()).poll() is None:
                os.killpg(process.pid, signal.SIGKILL)  # its files are temporary
                process.wait()


def _ending(text: str) -> str:
    """The error message of a failed run, or its last lines if there is none, on one line fit for a
    terminal."""
    lines = [line.strip() for line in text.splitlines() if line.strip()]
    errors = [line for line in lines if _ERROR.match(line)]
    shown = [line[:LONGEST_LINE] for line in errors[:1] or lines[-LAST_LINES:]]
    return "".join(c if c.isprintable() else " " for c in " | ".join(shown)) or "it wrote nothing"


# --- the input ---


def psi4_input(result: MP2Result, memory: int, d_convergence: float = D_CONVERGENCE) -> str:
    """Psi4 input of a DF-MP2 calculation.

    Parameters
    ----------
    result : geometry, bases, reference and frozen orbitals to repeat
    memory : bytes that Psi4 may use
    d_convergence : largest orbital gradient (root mean square) of a converged SCF

    Raises
    ------
    UnsupportedByBackend : a basis or core potential that Psi4's input format cannot express
    """
    fitted = result.scf_fitting is not None
    blocks = [
        f"memory {max(memory // 10**6, 500)} mb",
        _molecule(result),
        _basis_block(
            "basis", "orbital", _elements(result, result.orbital_basis), _bare_ghosts(result)
        ),
        _basis_block("df_basis_mp2", "fitmp2", _elements(result, result.mp2_fitting)),
    ]
    if result.scf_fitting is not None:
        blocks.append(_basis_block("df_basis_scf", "fitscf", _elements(result, result.scf_fitting)))
    settings = {
        "reference": result.reference.name,
        "scf_type": "df" if fitted else "pk",
        "mp2_type": "df",
        "puream": "true",
        "e_convergence": f"{min(E_CONVERGENCE, result.options.scf_conv_tol):.1e}",
        "d_convergence": f"{d_convergence:.1e}",
        "maxiter": "200",
        "freeze_core": "false",
        "num_frozen_docc": str(result.sizes.frozen_core),
        "num_frozen_uocc": str(result.sizes.frozen_virtual),
    }
    if result.options.relativity == "x2c":
        blocks.append(
            _basis_block(
                UNUSED_ROLE, "decontracted", _elements(result, decontracted(result.orbital_basis))
            )
        )
        settings |= {"relativistic": "x2c", "basis_relativistic": "decontracted"}
    if result.sizes.nmo < result.sizes.nao:
        settings |= {"s_orthogonalization": "canonical", "s_tolerance": f"{OVERLAP_CUT:.1e}"}
    task = "energy('mp2')"
    if result.options.correlation.double_hybrid:
        task = f"energy('scf', dft_functional={_functional(result)!r})"
        settings |= _grid(result)
    blocks.append(
        "set {\n" + "".join(f"{name} {value}\n" for name, value in settings.items()) + "}"
    )
    return "\n\n".join([*blocks, *_field(result), task]) + "\n"


def _grid(result: MP2Result) -> dict[str, str]:
    """Psi4's options for an integration grid with the same number of points.

    Raises
    ------
    UnsupportedByBackend : the grid is given by a PySCF level
    """
    grid = result.reference.grid_name
    if grid is None or "," not in grid:
        raise UnsupportedByBackend(
            f"the integration grid is PySCF's level {grid}, which Psi4 does not have: run it with ",
            Option("grid", "99,590"),
            " to compare, or ",
            PYSCF,
        )
    radial, angular = grid.split(",")
    return {"dft_radial_points": radial, "dft_spherical_points": angular}


def _functional(result: MP2Result) -> dict[str, Any]:
    """The functional in the form that Psi4 needs for an unnamed one; its second-order factors are 1
    and not used.

    Raises
    ------
    UnsupportedByBackend : energy and orbitals have different functionals, or exact exchange is
        range-separated
    """
    xc = result.reference.xc or ""
    if (
        result.reference.energy_xc is not None
        or PARAMETERS.search(xc)
        or exact_exchange(xc).separated
    ):
        raise UnsupportedByBackend(
            f"Psi4 is not asked for {result.method}: it takes functionals of libxc's own parts, "
            f"without range separation, for energy and orbitals alike: {PYSCF}"
        )
    with shielded():
        from pyscf.dft import libxc

        (share, *_), terms = libxc.parse_xc(xc)
        names = {number: name for name, number in libxc.XC_CODES.items() if "_" in name}
    kinds: dict[str, dict[str, dict[str, float]]] = {"_X_": {}, "_C_": {}}
    for number, factor in terms:
        name = names[number]
        kinds["_X_" if "_X_" in name else "_C_"][name] = {"alpha": float(factor)}
    return {
        "name": "functional",
        "x_hf": {"alpha": float(share)},
        "x_functionals": kinds["_X_"],
        "c_functionals": kinds["_C_"],
        "c_mp2": {"os": 1.0, "ss": 1.0},
    }


def decontracted(basis: BasisSet) -> BasisSet:
    """The basis with one shell per exponent and angular momentum, because Psi4 finds no such set
    for a basis given as data."""
    elements = {}
    for symbol, element in basis.elements.items():
        found = dict.fromkeys((shell[0], row[0]) for shell in element.shells for row in shell[1:])
        shells = tuple((momentum, (exponent, 1.0)) for momentum, exponent in found)
        elements[symbol] = replace(element, shells=shells, ecp=None, ecp_source=None)
    return replace(basis, elements=elements)


def _molecule(result: MP2Result) -> str:
    molecule, bare = result.molecule, _bare_ghosts(result)
    lines = [f"{molecule.charge} {molecule.multiplicity}"]
    for symbol, ghost, position in zip(
        molecule.symbols, molecule.ghost, molecule.coordinates, strict=True
    ):
        if ghost:
            label = f"@{symbol}{GHOST if symbol in bare else ''}"
        else:
            label = symbol
        lines.append(f"{label} " + " ".join(f"{float(x):.16f}" for x in position))
    return (
        "molecule {\n"
        + "\n".join([*lines, "units bohr", "symmetry c1", "no_reorient", "no_com"])
        + "\n}"
    )


def _field(result: MP2Result) -> list[str]:
    """The point charges, in the unit of the molecule's coordinates."""
    if result.molecule.point_charges is None:
        return []
    rows = (
        ", ".join(repr(float(value)) for value in (q, x, y, z))
        for x, y, z, q in result.molecule.point_charges
    )
    lines = ["field = QMMM()", *(f"field.extern.addCharge({row})" for row in rows)]
    return ["\n".join([*lines, "psi4.set_global_option_python('EXTERN', field.extern)"])]


def _elements(result: MP2Result, basis: BasisSet) -> dict[str, ElementBasis]:
    """The elements of the molecule, with checked symbols, and their functions.

    Raises
    ------
    InputError : the basis lacks an element
    """
    if basis.by_atom:
        raise UnsupportedByBackend(
            f"Psi4 is given one basis set for each element, and here atoms have their own: {PYSCF}"
        )
    missing = [symbol for symbol in result.molecule.elements if symbol not in basis.elements]
    if missing:
        raise InputError(
            f"the {basis.role} basis of the result has no functions for {missing[0]}: compute it "
            "again"
        )
    return {symbol: basis.elements[symbol] for symbol in result.molecule.elements}


def _bare_ghosts(result: MP2Result) -> set[str]:
    """Elements with a core potential that occur as ghosts, to which Psi4 would wrongly apply it."""
    elements = _elements(result, result.orbital_basis)
    centres = zip(result.molecule.symbols, result.molecule.ghost, strict=True)
    return {symbol for symbol, ghost in centres if ghost and elements[symbol].ecp_electrons}


def _basis_block(
    keyword: str, name: str, elements: Mapping[str, ElementBasis], bare: Collection[str] = ()
) -> str:
    """A set as data in Gaussian format, under our own name; ghosts of the elements `bare` get only
    its shells."""
    shells = {symbol: _shells(symbol, element) for symbol, element in elements.items()}
    potentials = [_potential(symbol, e) for symbol, e in elements.items() if e.ecp_electrons]
    assigned = [
        f"assign {name}",
        *(f"assign {symbol}{GHOST} {name}bare" for symbol in sorted(bare)),
    ]
    blocks = [(name, [*shells.values(), *potentials])]
    if bare:
        blocks.append((f"{name}bare", [shells[symbol] for symbol in sorted(bare)]))
    lines = [keyword + f" {name} {{", *assigned]
    for label, texts in blocks:
        lines += [f"[ {label} ]", "spherical", "****", *(f"{text}\n****" for text in texts)]
    return "\n".join([*lines, "}"])


def _shells(symbol: str, element: ElementBasis) -> str:
    """Shells of one element; a shell with several contractions becomes several shells."""
    lines = [f"{symbol} 0"]
    for momentum, *rows in element.shells:
        if momentum >= len(LETTERS):
            raise UnsupportedByBackend(
                f"Psi4's basis format has no letter for the shells of angular momentum {momentum} "
                f"on {symbol}: {PYSCF}"
            )
        for column in range(1, len(rows[0])):
            kept = [(row[0], row[column]) for row in rows if column < len(row) and row[column]]
            lines.append(f"{LETTERS[momentum]} {len(kept)} 1.0")
            lines += [_numbers(pair) for pair in kept]
    return "\n".join(lines)


def _potential(symbol: str, element: ElementBasis) -> str:
    """Core potential of one element: the local part, then the additions for l = 0, 1, ...

    Terms are coefficient r^(power - 2) exp(-exponent r^2) in both programs.
    """
    highest = local_momentum(element)
    terms = list(core_terms(element))
    power = max((power for _, power, _, _ in terms), default=0)
    if not 0 < highest < len(ECP_LETTERS) or power > HIGHEST_POWER:
        raise UnsupportedByBackend(
            f"Psi4's basis format cannot express the core potential of {symbol} (angular momentum "
            f"{highest}, power {power} of r): {PYSCF}"
        )
    lines = [f"{symbol} 0", f"{symbol}-ECP {highest} {element.ecp_electrons}"]
    for momentum in (highest, *range(highest)):
        rows = [(p, exponent, factor) for own, p, exponent, factor in terms if own == momentum]
        rows = rows or [(2, 1.0, 0.0)]  # keep the place of a channel without terms
        lines += [f"{ECP_LETTERS[momentum]} potential", str(len(rows))]
        lines += [f"{power} {_numbers((exponent, factor))}" for power, exponent, factor in rows]
    return "\n".join(lines)


def _numbers(values: Iterable[float]) -> str:
    """Numbers with 17 significant digits and the decimal point required by Psi4's parser."""
    return " ".join(f"{float(value):.16e}" for value in values)
