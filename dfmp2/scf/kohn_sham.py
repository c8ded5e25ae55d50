"""Kohn-Sham orbitals: an exchange-correlation functional in place of Hartree-Fock exchange.

    F_s = h + J - X_s + V_xc,s      X_s = c_SR K_s + (c_LR - c_SR) K_s(omega)                       (1)
    E = E_nuc + tr h D + tr J D / 2 - sum_s tr X_s D_s / 2 + E_xc                                   (2)
    E_EXX = E_nuc + tr h D + tr J D / 2 - sum_s tr K_s D_s / 2                                      (3)

s: spins, D = sum_s D_s, c_SR and c_LR: exact exchange at short and long range; K(omega) is the
exchange matrix of the long-range operator erf(omega r) / r, which a global hybrid (c_SR = c_LR)
does not need. E_EXX is the Hartree-Fock energy of the Kohn-Sham determinant, to which the
correlation energy of the random-phase approximation is added; a double hybrid adds its second-order
energy to E, or to the E of another functional. J and K come from the mean field, E_xc and V_xc from
libxc on a grid of PySCF (`dfmp2.integrals.grid`). Sources: Kohn and Sham, Phys. Rev. 140,
A1133 (1965); Leininger, Stoll, Werner, Savin, Chem. Phys. Lett. 275, 151 (1997).

Functionals have PySCF's names. A term may have its own parameters in parentheses, by their names in
libxc: `0.5*HF + 0.5*GGA_X_MPW91(_bt=0.00444, _expo=3.7868), MGGA_C_BC95`.
"""

from __future__ import annotations

import re
import zlib
from dataclasses import dataclass
from difflib import get_close_matches
from functools import cache
from typing import Any

import numpy as np

from dfmp2.double_hybrids import PARAMETERS, look_up, without_parameters
from dfmp2.errors import InputError, Option
from dfmp2.integrals.grid import make_grid, name_of_grid
from dfmp2.molecule.pyscf_shield import shielded
from dfmp2.scf.exchange_correlation import ExchangeCorrelation
from dfmp2.scf.solvent import solvent_energies, solvent_potential

VARIABLES = {"HF": 0, "LDA": 1, "GGA": 4, "MGGA": 5}  # per spin, by kind of functional
# Electrons per bohr^3 at r_s = 1, where PZ81 correlation jumps by 3e-5 Eh per electron: with the
# constants as printed its branches do not meet (Perdew and Zunger, Phys. Rev. B 23, 5048 (1981))
JUMP = 3 / (4 * np.pi)
SMALLEST_JUMP = 1e-7  # Eh per electron
NEAR = 4  # names suggested for an unknown one


@dataclass(frozen=True, slots=True)
class ExactExchange:
    """The exact exchange in a functional.

    Attributes
    ----------
    short_range, long_range : c_SR, c_LR of Eq. 1
    omega : of the long-range operator, 1/bohr; 0 if both are equal
    """

    short_range: float
    long_range: float
    omega: float

    @property
    def full(self) -> bool:
        """Whether K of the full operator is needed."""
        return self.short_range != 0.0

    @property
    def separated(self) -> bool:
        """Whether K(omega) is needed."""
        return self.omega != 0.0


_definitions: dict[str, str] = {}  # functionals by the names they are registered under in PySCF
HARTREE_FOCK = ExactExchange(1.0, 1.0, 0.0)


@cache
def libxc_code(xc: str) -> str:
    """PySCF's code of a functional; terms with parameters are first registered in PySCF.

    Raises
    ------
    KeyError, ValueError : not a functional, or not a parameter of one
    """
    from pyscf.dft import libxc

    parameters: dict[int, dict[str, float]] = {}
    for term, values in PARAMETERS.findall(xc):
        number = libxc.parse_xc(f"{term},")[1][0][0]
        pairs = [value.partition("=") for value in values.split(",")]
        parameters[number] = {name.strip(): float(value) for name, _, value in pairs}
    if not parameters:
        return xc
    # PySCF takes some letters in a name for Laplacian functionals, so the name avoids them.
    code = f"dh{zlib.crc32(xc.encode())}"
    libxc.register_custom_functional_(code, without_parameters(xc), ext_params=parameters)
    _definitions[code] = xc
    return code


def definition_of(code: str) -> str:
    """The functional for which `libxc_code` returned this name."""
    return _definitions.get(code, code).strip().lower()


def require_functional(xc: str) -> None:
    """Raise for a functional that libxc does not know, or with parts that are not available.

    Raises
    ------
    InputError : names similar functionals, or the parts
    """
    double_hybrid = look_up(xc)
    if double_hybrid is not None:
        raise InputError(
            Option("xc", xc),
            " is a double hybrid, which has its own correlation energy: use ",
            Option("method", double_hybrid.name),
            ", without ",
            Option("xc"),
        )
    with shielded():
        from pyscf.dft import libxc

        try:
            code = libxc_code(xc)
            laplacian = libxc.needs_laplacian(code)
            nonlocal_part = libxc.is_nlc(code)
            libxc.rsh_coeff(code)
            terms = libxc.parse_xc(without_parameters(xc))[1]
        except (KeyError, ValueError, IndexError, AssertionError, NotImplementedError) as error:
            raise _unknown_functional(xc) from error
    composite = {number for name, number in libxc.XC_CODES.items() if name.endswith("3C")}
    without = "a functional without it, such as pbe, tpss, pbe0 or camb3lyp"
    corrected = re.fullmatch(r"(.+)-d[34]\w*", xc)
    parts = {
        "a non-local correlation functional (VV10)": (nonlocal_part, without),
        "the Laplacian of the density": (laplacian, without),
        "a dispersion correction": (corrected is not None, corrected and corrected[1]),
        "its own corrections": (any(number in composite for number, _ in terms), without),
    }
    for part, (present, instead) in parts.items():
        if present:
            raise InputError(
                Option("xc", xc), f" has {part}, which is not available: use {instead}"
            )


def _unknown_functional(xc: str) -> InputError:
    """The error for a functional that libxc does not know; names similar ones."""
    from pyscf.dft import libxc

    term, kind = _unknown_term(xc)
    near = get_close_matches(term.upper(), [*libxc.XC_ALIAS, *libxc.XC_CODES], NEAR)
    suggestion = ""
    if near:
        names = ", ".join(dict.fromkeys(name.lower() for name in near))
        suggestion = f"; similar names: {names}"
    subject = "such functional"
    if term != xc:
        subject = f"{kind} {term}"
    elif PARAMETERS.search(xc):
        subject = "such functional or parameter"
    return InputError(
        Option("xc", xc),
        f": libxc has no {subject}{suggestion}. Name one as PySCF does: pbe, tpss, pbe0, b3lyp, or "
        "exchange and correlation with a comma between them such as b88,lyp",
    )


def _unknown_term(xc: str) -> tuple[str, str]:
    """The term of a functional that libxc does not know, and what it should be; the whole
    functional if every term is known."""
    from pyscf.dft import libxc

    first, comma, second = without_parameters(xc).partition(",")
    places = [(first, f"{{}}{comma}", "functional"), (second, ",{}", "correlation functional")]
    for terms, place, kind in places:
        for term in filter(None, terms.split("+")):
            name = term.rpartition("*")[2].strip()
            try:
                libxc.parse_xc(place.format(name))
            except (KeyError, ValueError, IndexError, AssertionError, NotImplementedError):
                return name, kind
    return xc, "functional"


def exact_exchange(xc: str) -> ExactExchange:
    """The exact exchange of a functional."""
    with shielded():
        from pyscf.dft import libxc

        code = libxc_code(xc)
        omega, long_range, difference = map(float, libxc.rsh_coeff(code))
        if omega == 0.0 or difference == 0.0:
            share = float(libxc.hybrid_coeff(code))
            return ExactExchange(share, share, 0.0)
        return ExactExchange(long_range + difference, long_range, omega)


def functional_variables(xc: str) -> int:
    """Number of variables of a functional per spin: 1 for LDA (the density), 4 with its gradient, 5
    with tau; 0 for exact exchange alone."""
    with shielded():
        from pyscf.dft import numint

        return VARIABLES[numint.NumInt()._xc_type(libxc_code(xc))]


def is_discontinuous(xc: str) -> bool:
    """Whether the energy of a functional jumps where PZ81 correlation does."""
    variables = functional_variables(xc)
    if not variables:
        return False
    points = np.full((5, 2), 0.1)
    points[0] = JUMP * np.array([1 - 1e-9, 1 + 1e-9])
    with shielded():
        from pyscf.dft import libxc

        energy = libxc.eval_xc1(libxc_code(xc), points[:variables], 0, 0)[0]
    return bool(abs(energy[1] - energy[0]) > SMALLEST_JUMP)


def same_functional(first: str, second: str) -> bool:
    """Whether two descriptions mean the same functional, up to rounding of their factors."""
    with shielded():
        from pyscf.dft import libxc

        if PARAMETERS.search(first) or PARAMETERS.search(second):
            spellings = [re.sub(r"\s", "", xc.lower()) for xc in (first, second)]
            return spellings[0] == spellings[1]
        (hybrid, terms), (other_hybrid, other_terms) = map(libxc.parse_xc, (first, second))
    factors, other_factors = dict(terms), dict(other_terms)
    return factors.keys() == other_factors.keys() and np.allclose(
        [*hybrid, *factors.values()],
        [*other_hybrid, *(other_factors[term] for term in factors)],
        rtol=0.0,
        atol=1e-12,
    )


class KohnSham:
    """PySCF's RKS or UKS with J and K from densities tagged with their orbitals, and our own E_xc
    and V_xc.

    Attributes
    ----------
    on_grid : ExchangeCorrelation
        Evaluates E_xc and V_xc of the functional of the SCF.
    latest : (density, float) or None
        The last density evaluated on the final grid, and its E_xc, Eh.
    grid_shift : shape of the density
        V_xc on the final grid minus that on the coarser one, Eh, when the grid changes. Added to
        the Fock matrices of earlier iterations, it keeps them useful for DIIS.
    """

    _keys = frozenset({"on_grid", "latest", "grid_shift"})

    def get_veff(self: Any, mol: Any = None, dm: Any = None, *_last: Any, **_more: Any) -> Any:
        """J - X + V_xc of a density, (nao, nao) or of each spin (2, nao, nao), Eh, tagged with
        energies."""
        from pyscf import lib

        if dm is None:
            dm = self.make_rdm1()
        coulomb, exchange = coulomb_and_exchange(self, dm, exact_exchange(self.xc))
        energy, potential = exchange_correlation(self, dm)
        potential = potential + coulomb
        density = dm
        if np.ndim(dm) == 3:
            density, coulomb = dm[0] + dm[1], coulomb[0]
        if exchange is not None:
            potential = potential - exchange
            energy -= np.vdot(dm, exchange) / 2
        return lib.tag_array(potential, ecoul=np.vdot(density, coulomb) / 2, exc=energy)

    def energy_elec(self: Any, dm: Any = None, h1e: Any = None, vhf: Any = None) -> Any:
        """Electronic energy and its two-electron part, Eh; unlike PySCF's own method, also with a
        one-electron matrix for each spin, (2, nao, nao)."""
        if np.ndim(h1e) != 3:
            return super().energy_elec(dm, h1e, vhf)  # type: ignore[misc]
        two_electron = float(vhf.ecoul + vhf.exc)
        return float(np.vdot(h1e, dm)) + two_electron, two_electron


def exchange_correlation(mf: Any, density: Any) -> tuple[float, Any]:
    """E_xc and V_xc in an iteration of an SCF, Eh.

    The SCF begins on a coarse grid and continues from anchors on the final one; each anchor leaves
    its `grid_shift` for DIIS (`dfmp2.scf.exchange_correlation`).

    Parameters
    ----------
    mf : KohnSham
        The mean field.
    density : (nao, nao), or of each spin (2, nao, nao)
        Density matrix.
    """
    on_grid: ExchangeCorrelation = mf.on_grid
    arguments = (mf._numint, mf.xc, density)
    if on_grid.single:
        mf.latest = None
        return on_grid.energy_and_potential(*arguments)
    if on_grid.anchored:
        if on_grid.anchor is not None and not on_grid.renew:
            return on_grid.from_anchor(*arguments)
        anchor, mf.grid_shift = on_grid.set_anchor(*arguments)
        final = anchor.energy, anchor.potential
    else:
        final = on_grid.energy_and_potential(*arguments)
    mf.latest = density, final[0]
    return final


def coulomb_and_exchange(mf: Any, dm: Any, exact: ExactExchange) -> tuple[Any, Any]:
    """J of all electrons and X of Eq. 1, in the shape of the density, Eh; X is None if it is 0.

    For a restricted density, X is that of one spin.
    """
    coulomb, exchange = mf.get_jk(mf.mol, dm, 1, with_k=exact.full)
    exchange = exact.short_range * exchange if exact.full else None
    if exact.separated:
        long_range = mf.get_k(mf.mol, dm, 1, omega=exact.omega)
        long_range = (exact.long_range - exact.short_range) * long_range
        exchange = long_range if exchange is None else exchange + long_range
    if np.ndim(dm) == 2:
        return coulomb, None if exchange is None else exchange / 2
    total = coulomb[0] + coulomb[1]
    return np.stack([total, total]), exchange


def kohn_sham_mean_field(mole: Any, kind: str, xc: str, grid: str, *, native: bool = False) -> Any:
    """A PySCF RKS ("rhf") or UKS ("uhf") of the molecule, not yet run.

    Parameters
    ----------
    grid : str
        Name of the integration grid.
    native : bool
        Leave the Fock matrix to PySCF's own code.
    """
    from pyscf import dft, lib

    mf = {"rhf": dft.RKS, "uhf": dft.UKS}[kind](mole)
    mf.xc = libxc_code(xc)
    mf.grids = make_grid(mole, grid)
    if native:
        return mf
    mf = lib.set_class(mf, (KohnSham, type(mf)))
    mf.on_grid = ExchangeCorrelation(mole, mf.grids)
    mf.latest = None
    return mf


def of_grid(grid: Any) -> dict[str, Any]:
    """The fields of a `Reference` that describe its integration grid, from a PySCF grid."""
    name = name_of_grid(grid)
    if grid.coords is None:
        grid.build(with_non0tab=True)
    level = int(name) if name.isdigit() else None
    return {
        "grid": name,
        "grid_level": level,
        "grid_points": int(np.count_nonzero(grid.weights)),
    }


def integrate_functional(mf: Any, grid: Any, density: Any) -> tuple[float, Any]:
    """E_xc and V_xc of a density on a grid, for the functional of the mean field.

    Parameters
    ----------
    mf : pyscf.dft.rks.RKS or pyscf.dft.uks.UKS
        The mean field.
    grid : pyscf.dft.gen_grid.Grids
        The grid; that of the mean field is replaced by a coarser one far from convergence.
    density : (nao, nao), or of each spin (2, nao, nao)
        Density matrix.

    Returns
    -------
    energy : float
        E_xc without exact exchange, Eh.
    potential : shape of the density
        Its derivative, Eh.
    """
    return of_mean_field(mf, grid).energy_and_potential(mf._numint, mf.xc, density)


def of_mean_field(mf: Any, grid: Any) -> ExchangeCorrelation:
    """The integrator of functionals on a grid: that of the mean field, if the grid is its own."""
    on_grid: ExchangeCorrelation | None = vars(mf).get("on_grid")
    if on_grid is None:
        return ExchangeCorrelation(mf.mol, grid)
    if on_grid.grid is not grid:
        return ExchangeCorrelation(mf.mol, grid, on_grid.threads)
    return on_grid


def functional_of(mf: Any) -> str | None:
    """The functional of a mean field, in PySCF's spelling, None for Hartree-Fock.

    Asking PySCF for a missing attribute would make it load all of its methods.
    """
    xc: str | None = vars(mf).get("xc")
    return xc


def exact_exchange_of(mf: Any) -> ExactExchange:
    """The exact exchange in a mean field's Fock matrix."""
    xc = functional_of(mf)
    return HARTREE_FOCK if xc is None else exact_exchange(xc)


def exchange_correlation_energy(mf: Any, densities: Any) -> float:
    """E_xc without exact exchange, Eh, of alpha and beta densities, (2, nao, nao); 0 for
    Hartree-Fock."""
    xc = functional_of(mf)
    if xc is None:
        return 0.0
    with shielded():
        return of_mean_field(mf, mf.grids).energy(mf._numint, xc, densities)


def exact_exchange_energy(mf: Any) -> float:
    """E_EXX of a converged mean field, Eq. 3, Eh."""
    with shielded():
        return _energy(mf, mf.make_rdm1(), HARTREE_FOCK)


def functional_energy(mf: Any, xc: str) -> float:
    """E of Eq. 2 for another functional with the orbitals of a converged mean field, Eh."""
    with shielded():
        density = mf.make_rdm1()
        energy = of_mean_field(mf, mf.grids).energy(mf._numint, libxc_code(xc), density)
        return _energy(mf, density, exact_exchange(xc)) + energy


def _energy(mf: Any, density: Any, exact: ExactExchange) -> float:
    """E of Eq. 2 without E_xc, Eh."""
    coulomb, exchange = coulomb_and_exchange(mf, density, exact)
    total = density
    if density.ndim == 3:
        total, coulomb = density[0] + density[1], coulomb[0]
    energy = np.vdot(mf.get_hcore(), total) + np.vdot(coulomb, total) / 2
    if exchange is not None:
        energy -= np.vdot(density, exchange) / 2
    reaction_field, cds = solvent_energies(mf, density)
    return float(mf.energy_nuc() + energy + reaction_field + (cds or 0.0))


def exact_exchange_matrices(mf: Any, density: Any) -> list[Any]:
    """Hartree-Fock matrix h + J - K of each spin, including the potential of a solvent, (nao, nao)
    Eh.

    Parameters
    ----------
    mf : pyscf.dft.rks.RKS or pyscf.dft.uks.UKS
        The mean field whose J and K are used.
    density : (nao, nao), or of each spin (2, nao, nao)
        Density matrix.
    """
    j, k = mf.get_jk(mf.mol, density)
    core = mf.get_hcore() + solvent_potential(mf, density)
    if np.ndim(density) == 2:
        return [core + j - k / 2]
    coulomb = core + j[0] + j[1]
    return [coulomb - k[0], coulomb - k[1]]
