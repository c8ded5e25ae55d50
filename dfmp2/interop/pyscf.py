"""DF-MP2 on a converged mean field of PySCF, density-fitted or not: as functions of
`import dfmp2`, and as a post-SCF class in the style of PySCF.

    from pyscf import gto
    from dfmp2.interop.pyscf import DFMP2
    water = gto.M(atom="O 0 0 0.12; H 0 0.76 -0.47; H 0 -0.76 -0.47", basis="cc-pvdz")
    mf = water.RHF().density_fit().run()
    mp = mf.apply(DFMP2, frozen=1).run()
    mp.e_corr, mp.e_corr_ss, mp.e_corr_os, mp.e_tot
    mp.nuc_grad_method().kernel(), mp.make_rdm1(relaxed=True)

Names are those of `pyscf.mp.dfmp2_native` and `gpu4pyscf.mp.dfmp2`; as there, `kernel` returns
E(corr). Other attributes of these classes and of `pyscf.mp.dfmp2` raise an error with the reason,
also when set. Importing this module changes nothing in PySCF.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from contextlib import contextmanager
from dataclasses import replace
from functools import partial
from typing import TYPE_CHECKING, Any, ClassVar, Unpack

import numpy as np

from dfmp2.arrays import Array
from dfmp2.errors import InputError, speaking
from dfmp2.errors.messages import PYTHON, plain
from dfmp2.fitting.sets import with_errors
from dfmp2.interop.python import OptionKeywords, TranslatingListener, prove, public
from dfmp2.interop.qcschema import read_keywords
from dfmp2.molecule.mole import MEGABYTE
from dfmp2.molecule.pyscf_shield import import_pyscf
from dfmp2.mp2.calculation import Calculation, Opening, open_calculation
from dfmp2.mp2.energy import energy_on_reference
from dfmp2.mp2.result import MP2Result
from dfmp2.options import MeanFieldKeywords, ScfKeywords, make_options
from dfmp2.planning.plan import settle_plan
from dfmp2.planning.system import assemble, require_cores
from dfmp2.progress import Listener
from dfmp2.scf.adopt import adopt, double_hybrid_of, require_repeatable
from dfmp2.scf.stability import examined, judged

if TYPE_CHECKING:
    from dfmp2.gradients.result import GradientResult
    from dfmp2.scf.reference import Reference

import_pyscf()
from pyscf import lib  # noqa: E402 - after the shield, which must import it first

OF_THE_SCF = {"basis", *ScfKeywords.__annotations__}  # options that a mean field has already fixed
SETTINGS = ("frozen", "auxbasis", "options")
ELSEWHERE = {
    **dict.fromkeys(OF_THE_SCF, "the SCF has already been done"),
    "auxbasis": "it is auxbasis=",
    "frozen_core": "it is frozen=",
}
ABSENT = {  # names in PySCF's and GPU4PySCF's classes, and why they are missing here
    **dict.fromkeys(
        ("t2", "with_t2"), "amplitudes are not kept, pair energies are: mp.result.pairs"
    ),
    **dict.fromkeys(
        ("make_rdm2", "make_fno", "init_amps", "update_amps"),
        "it needs amplitudes, which are not kept",
    ),
    **dict.fromkeys(("ao2mo", "eris"), "integrals over orbitals are not kept"),
    **dict.fromkeys(("with_df", "auxmol"), "the MP2 fitting set is auxbasis=, the name of one"),
    **dict.fromkeys(
        ("conv_tol", "conv_tol_normt", "max_cycle", "level_shift"), "nothing is iterated"
    ),
    **dict.fromkeys(
        ("cphf_tol", "cphf_max_cycle"), "the Z-vector equations are converged as the SCF is"
    ),
    "make_natorbs": "diagonalise make_rdm1(); occupations are in mp.result.properties after "
    "nuc_grad_method().kernel()",
    "density_fit": "it is fitted already, by auxbasis=",
    "fp_type": 'it is precision=, "fp64" or "mixed"',
    "to_gpu": 'it is backend="cuda"',
    "ps": "it is os_scale=",
    "pt": "it is ss_scale=",
}


@public(OptionKeywords)
def from_mean_field(
    mean_field: Any,
    auxbasis: str | None = None,
    *,
    listener: Listener | None = None,
    require_proofs: bool = True,
    **options: Unpack[MeanFieldKeywords],
) -> MP2Result:
    """DF-MP2 energy on a converged PySCF RHF or UHF, density-fitted or not; with method="drpa" also
    RKS or UKS.

    Parameters
    ----------
    mean_field : pyscf.scf.hf.SCF
        Converged PySCF mean field of a molecule with spherical functions; sf-X2C-1e and point
        charges (`qmmm.mm_charge`) are recorded.
    auxbasis : str, optional
        MP2 fitting set; None for the partner of the orbital basis.
    require_proofs : bool, optional
        As in `run`.
    options : keywords
        Fields of `dfmp2.Options` that concern the MP2 step (frozen_core, precision, backend, ...).

    Returns
    -------
    MP2Result

    Raises
    ------
    dfmp2.Dfmp2Error : not converged, Kohn-Sham with another method, restricted open-shell,
        periodic, Cartesian functions, or anything that cannot be recorded and repeated: solvent,
        fractional occupations, other integrals, non-canonical orbitals
    """
    task = "properties" if options.get("properties") else "energy"
    with _on_mean_field(mean_field, auxbasis, listener, options, task) as (calculation, reference):
        if task == "energy":
            result = energy_on_reference(calculation, reference)
        else:
            from dfmp2.gradients.gradient import gradient_on_reference

            result = gradient_on_reference(calculation, reference, [])
    return prove(result, TranslatingListener(listener), required=require_proofs)


@public(OptionKeywords)
def gradient_from_mean_field(
    mean_field: Any,
    auxbasis: str | None = None,
    *,
    listener: Listener | None = None,
    require_proofs: bool = True,
    **options: Unpack[MeanFieldKeywords],
) -> GradientResult:
    """DF-MP2 gradient and relaxed densities on a converged PySCF RHF or UHF; parameters as in
    `from_mean_field`.

    Raises
    ------
    dfmp2.Dfmp2Error : as in `from_mean_field` and `gradient`
    """
    from dfmp2.gradients.gradient import gradient_on_reference
    from dfmp2.gradients.result import GradientResult

    if options.get("check"):
        raise InputError(
            "check compares a gradient with energies of displaced molecules, whose SCF would not "
            "be that of this mean field: leave it out, or use dfmp2.gradient"
        )
    with _on_mean_field(mean_field, auxbasis, listener, options, "gradient") as (
        calculation,
        reference,
    ):
        result = gradient_on_reference(calculation, reference, [])
    return GradientResult(prove(result, TranslatingListener(listener), required=require_proofs))


@contextmanager
def _on_mean_field(
    mean_field: Any,
    auxbasis: str | None,
    listener: Listener | None,
    options: Mapping[str, Any],
    task: str,
) -> Iterator[tuple[Calculation, Reference]]:
    """A calculation with the orbitals of a mean field; `task` as in
    `dfmp2.planning.plan.make_plan`."""
    import_pyscf()
    hybrid = double_hybrid_of(str(options.get("method") or "mp2"), mean_field)
    energy_xc = None
    if hybrid is not None and hybrid.energy:
        energy_xc = hybrid.energy.lower()
    adopted = adopt(mean_field, energy_xc)
    _require_no_scf(options)
    require_cores(adopted.molecule, adopted.orbital)
    reference, jk = adopted.reference, adopted.jk
    chosen = make_options(
        **{"stability": "off", **options, "auxbasis": auxbasis},
        basis=adopted.orbital.name,
        reference=reference.kind,
        relativity=adopted.relativity,
        scf=reference.scf_type,
        xc=reference.xc if hybrid is None else None,
        grid=reference.grid_name,
    )
    if jk is not None:
        jk = with_errors(jk, adopted.orbital, allow_poor=chosen.allow_poor_fit)
    opening = Opening(
        partial(assemble, adopted.molecule, adopted.orbital, jk),
        partial(settle_plan, part="from orbitals", task=task),
    )
    with open_calculation(
        chosen,
        reference.kind,
        opening,
        listener=TranslatingListener(listener),
        command="dfmp2.from_mean_field",
    ) as calculation:
        system = calculation.system
        reference = require_repeatable(mean_field, adopted, system.mole, system.jk_auxmole)
        if chosen.stability == "full":
            found = examined(mean_field)
            reference = replace(
                reference,
                stability=judged(mean_field, found.lowest)[0],
                rotation_left=found.left,
            )
        yield calculation, reference


def _require_no_scf(options: Mapping[str, Any]) -> None:
    """Raise for an option that would converge the SCF again."""
    fixed = OF_THE_SCF & set(options)
    if fixed:
        raise InputError(
            f"{sorted(fixed)[0]} belongs to the SCF, which has already been done: leave it out"
        )
    if options.get("polarizability"):
        raise InputError(
            "polarizability converges the SCF again, in fields, which has already been done: use "
            "dfmp2.run, with scf_from for the orbitals"
        )
    if options.get("stability") == "follow":
        raise InputError(
            "stability follow converges the SCF again, which has already been done: follow it in "
            "PySCF (mf.stability()), or give full, auto or off"
        )


def _energy(name: str, what: str) -> Any:
    """An energy of the result, None before there is a result."""
    return property(lambda mp: None if mp.result is None else getattr(mp.result, name), doc=what)


class DFMP2(lib.StreamObject):  # type: ignore[misc] # PySCF's types are not followed
    """DF-MP2 on a mean field.

    Parameters
    ----------
    mf : converged PySCF RHF or UHF of a molecule with spherical functions, also with sf-X2C-1e or
        point charges; anything that cannot be recorded and repeated is rejected by name
    frozen : orbitals per spin left uncorrelated, or a dialect ("auto", "pyscf", "psi4", "orca");
        None for none. Lists of orbitals are rejected
    auxbasis : MP2 fitting set by name; None for the partner of the orbital basis
    options : other fields of `dfmp2.Options` that concern the MP2 step (precision, backend, memory,
        threads, ...)

    Attributes
    ----------
    e_corr, emp2 : correlation energy of the method, Eh, None before `kernel`
    e_corr_ss, e_corr_os : its same-spin and opposite-spin parts
    e_hf, e_tot : energy of the mean field, without and with e_corr
    emp2_scs, e_tot_scs : the same for SCS-MP2, whatever the method
    max_memory : MB, as PySCF counts; if it differs from that of the mean field, it is used as the
        option `memory`
    result : the MP2Result, which `dfmp2.write` stores

    Raises
    ------
    dfmp2.Dfmp2Error : when run, or immediately for settings that are not supported
    """

    _keys: ClassVar[set[str]] = {
        *SETTINGS,
        "mol",
        "e_corr",
        "e_corr_ss",
        "e_corr_os",
        "e_hf",
        "result",
        "max_memory",
    }

    def __init__(
        self,
        mf: Any,
        frozen: int | str | None = None,
        auxbasis: str | None = None,
        **options: Unpack[MeanFieldKeywords],
    ) -> None:
        if not hasattr(mf, "mol"):
            raise InputError(
                f"a {type(mf).__name__} is not a mean field: expected a PySCF RHF or UHF"
            )
        self._scf = mf
        self.mol = mf.mol
        self.verbose, self.stdout, self.max_memory = mf.verbose, mf.stdout, mf.max_memory
        self.result: MP2Result | None = None
        self.frozen, self.auxbasis, self.options = frozen, auxbasis, dict(options)
        _checked(frozen, auxbasis, self.options)

    def __getattr__(self, name: str) -> Any:
        reason = f": {ABSENT[name]}" if name in ABSENT else ""
        raise AttributeError(f"dfmp2's {type(self).__name__} has no {name}{reason}")

    def __setattr__(self, name: str, value: Any) -> None:
        if name in ABSENT:
            raise AttributeError(f"dfmp2's {type(self).__name__} has no {name}: {ABSENT[name]}")
        super().__setattr__(name, value)
        if name in SETTINGS:
            self.result = None

    @property
    def converged(self) -> bool:
        """Whether there is a result."""
        return self.result is not None

    @property
    def e_hf(self) -> float:
        """E(HF), Eh."""
        return float(self._scf.e_tot)

    e_corr = _energy("correlation_energy", "Correlation energy of the method, Eh.")
    e_corr_ss = _energy("same_spin_correlation_energy", "Its same-spin part, Eh.")
    e_corr_os = _energy("opposite_spin_correlation_energy", "Its opposite-spin part, Eh.")
    e_tot = _energy("total_energy", "E(HF) plus the correlation energy, Eh.")
    emp2 = e_corr
    emp2_scs = _energy("scs_mp2_correlation_energy", "SCS-MP2 correlation energy, Eh.")

    @property
    def e_tot_scs(self) -> float | None:
        """E(HF) plus the SCS-MP2 correlation energy, Eh."""
        if self.result is None:
            return None
        return self.e_hf + self.result.scs_mp2_correlation_energy

    def set_frozen(self) -> DFMP2:
        """Freeze the chemical core, like PySCF's method of this name."""
        return self.set(frozen="pyscf")

    def set(self, **settings: Any) -> DFMP2:
        """Change `frozen`, `auxbasis`, `verbose`, `stdout`, or an option of the MP2 step; the
        result is discarded.

        Raises
        ------
        InputError : unknown, or not a setting of the MP2 step
        """
        for name in ("verbose", "stdout"):
            if name in settings:
                setattr(self, name, settings.pop(name))
        frozen = settings.pop("frozen", self.frozen)
        auxbasis = settings.pop("auxbasis", self.auxbasis)
        options = {**self.options, **settings}
        _checked(frozen, auxbasis, options)
        self.frozen, self.auxbasis, self.options = frozen, auxbasis, options
        return self

    def kernel(self) -> float:
        """Compute and return E(corr), Eh.

        Raises
        ------
        dfmp2.Dfmp2Error : see `dfmp2.from_mean_field`
        """
        self.result = from_mean_field(
            self._mean_field(),
            self.auxbasis,
            listener=_Logger(self),
            require_proofs=False,
            **self._chosen(),
        )
        self._note()
        return self.result.correlation_energy

    def differentiate(self) -> MP2Result:
        """The result with gradient and densities, computed together with the energy if they do not
        exist yet.

        Raises
        ------
        dfmp2.Dfmp2Error : see `gradient_from_mean_field`
        """
        if self.result is None or self.result.gradient is None:
            how: Any = {"listener": _Logger(self), **self._chosen()}
            self.result = gradient_from_mean_field(
                self._mean_field(), self.auxbasis, require_proofs=False, **how
            ).result
            self._note()
        return self.result

    def nuc_grad_method(self) -> Gradients:
        """PySCF's object for gradients: `kernel`, `as_scanner`, `optimizer`."""
        return Gradients(self)

    Gradients = nuc_grad_method

    def make_rdm1(self, relaxed: bool = False, ao_repr: bool = False) -> Array:
        """One-particle density as in `pyscf.mp.dfmp2_native`; computes the gradient if it does not
        exist yet.

        Parameters
        ----------
        relaxed : include the response of the orbitals, so that dipole moments are derivatives of
            the energy
        ao_repr : in basis functions, C D C^T; else in the orbitals of the mean field, in their
            order

        Returns
        -------
        (nao, nao) or (nmo, nmo), the sum over spins, for RHF; (2, ...), alpha and beta, for UHF
        """
        properties: Any = self.differentiate().properties
        if relaxed:
            density = properties.relaxed_density
        else:
            density = properties.unrelaxed_density
        return self._represented(density, ao_repr=ao_repr)

    def as_scanner(self) -> Any:
        """A function of a molecule that runs the SCF from the last orbitals, then DF-MP2, and
        returns the energy."""
        return _scanner(_EnergyScanner, self)

    def reset(self, mol: Any = None) -> DFMP2:
        """Discard the result; `mol`, if given, becomes the new geometry."""
        if mol is not None:
            self.mol = mol
            self._scf.reset(mol)
        self.result = None
        return self

    mo_coeff = property(lambda mp: mp._scf.mo_coeff, doc="Orbitals of the mean field.")
    mo_energy = property(lambda mp: mp._scf.mo_energy, doc="Their energies, Eh.")
    mo_occ = property(lambda mp: mp._scf.mo_occ, doc="Their occupations.")

    def _mean_field(self) -> Any:
        """The mean field; run first, as in PySCF, if that has not been done yet."""
        return self._scf.run() if self._scf.mo_coeff is None else self._scf

    def _chosen(self) -> dict[str, Any]:
        """Keywords for `from_mean_field`."""
        options = _checked(self.frozen, self.auxbasis, self.options)
        if self.max_memory != self._scf.max_memory:
            options = {"memory": int(self.max_memory * MEGABYTE), **options}
        return options

    def _represented(self, density: Array, *, ao_repr: bool) -> Array:
        """A density per spin in the form that `make_rdm1` returns."""
        coeff = np.asarray(self.mo_coeff)
        if coeff.ndim == 2:
            density = 2 * density
            coeff = coeff[None]
        if not ao_repr:
            turned = coeff.transpose(0, 2, 1) @ self._scf.get_ovlp()
            density = turned @ density @ turned.transpose(0, 2, 1)
        if len(density) == 1:
            density = density[0]
        return density

    def _note(self) -> None:
        lib.logger.note(
            self,
            "E(DF-MP2) = %.15g  E_corr = %.15g  E_corr_ss = %.15g  E_corr_os = %.15g",
            self.e_tot,
            self.e_corr,
            self.e_corr_ss,
            self.e_corr_os,
        )


class Gradients(lib.StreamObject):  # type: ignore[misc]
    """Gradient of a `DFMP2`, with the interface that PySCF's drivers expect; not a PySCF
    `GradientsBase`, whose import changes classes.

    Attributes
    ----------
    base : the DFMP2
    atmlst : atoms whose gradient is wanted, None for all
    de : (natom, 3) float64, Eh/bohr, None before `kernel`
    """

    _keys: ClassVar[set[str]] = {"mol", "base", "unit", "atmlst", "de", "max_memory"}

    def __init__(self, mp: Any) -> None:
        self.verbose, self.stdout, self.max_memory = mp.verbose, mp.stdout, mp.max_memory
        self.mol, self.base, self.unit = mp.mol, mp, "au"
        self.atmlst: Any = None
        self.de: Any = None

    def kernel(self, atmlst: Any = None) -> Array:
        """The gradient of the (scaled) energy, Eh/bohr.

        Raises
        ------
        dfmp2.Dfmp2Error : see `DFMP2.differentiate`
        """
        if atmlst is not None:
            self.atmlst = atmlst
        record: Any = self.base.differentiate().gradient
        gradient: Array = record.total_gradient
        if self.atmlst is not None:
            gradient = gradient[self.atmlst]
        self.de = gradient
        return gradient

    def nuc_grad_method(self) -> Gradients:
        """Itself, because PySCF's drivers take a method or its gradient."""
        return self

    def optimizer(self, solver: str = "geometric") -> Any:
        """PySCF's optimiser of that name for the DFMP2."""
        from importlib import import_module

        return import_module(f"pyscf.geomopt.{solver}_solver").GeometryOptimizer(self.base)

    def as_scanner(self) -> Any:
        """A function of a molecule that returns energy, Eh, and gradient, Eh/bohr."""
        if isinstance(self, lib.GradScanner):
            return self
        return _scanner(_GradientScanner, self)


class _EnergyScanner(lib.SinglePointScanner):  # type: ignore[misc]
    """Created with the attributes of a DFMP2; its mean field is a scanner."""

    def __init__(self, mp: Any) -> None:
        self.__dict__.update(mp.__dict__)
        self._scf = mp._scf.as_scanner()

    def __call__(self, geometry: Any) -> float:
        _moved(self, geometry)
        self.kernel()
        return float(self.e_tot)


class _GradientScanner(lib.GradScanner):  # type: ignore[misc]
    """Created with the attributes of a `Gradients`; its base is a scanner."""

    def __call__(self, geometry: Any) -> tuple[float, Array]:
        self.mol = _moved(self.base, geometry)
        gradient = self.kernel()
        return float(self.base.e_tot), gradient

    @property
    def converged(self) -> bool:
        """Whether the SCF has converged."""
        return bool(self.base._scf.converged)


def _scanner(kind: Any, method: Any) -> Any:
    """The method as a scanner, mixing classes as PySCF does."""
    return lib.set_class(
        kind(method), (kind, type(method)), type(method).__name__ + kind.__name_mixin__
    )


def _moved(mp: Any, geometry: Any) -> Any:
    """Run the SCF of a scanner at a geometry, a Mole or (natom, 3); returns the molecule."""
    if hasattr(geometry, "atom_coords"):
        mol = geometry
    else:
        mol = mp.mol.set_geom_(geometry, inplace=False)
    mp.reset(mol)
    mp._scf(mol)
    return mol


class _Logger(Listener):
    """Sends stages and warnings to PySCF's logger, at its verbosity."""

    def __init__(self, speaker: Any) -> None:
        self._speaker = speaker

    def stage(self, text: str) -> None:
        lib.logger.info(self._speaker, "dfmp2: %s", text)

    def warning(self, text: str) -> None:
        lib.logger.warn(self._speaker, "dfmp2: %s", text)


@speaking(PYTHON)
def _checked(frozen: Any, auxbasis: Any, options: dict[str, Any]) -> dict[str, Any]:
    """Keyword arguments for `from_mean_field`, with names and types checked."""
    frozen = plain(frozen)
    if isinstance(frozen, bool) or not isinstance(frozen, int | str | None):
        raise InputError(
            f"frozen {frozen!r}: expected a number of core orbitals or a dialect, not single "
            "orbitals"
        )
    if not isinstance(auxbasis, str | None):
        raise InputError(
            f"auxbasis is a {type(auxbasis).__name__}: expected the name of a fitting set"
        )
    keywords = {
        "method": "custom-scs-mp2" if {"os_scale", "ss_scale"} & options.keys() else "mp2",
        **options,
    }
    read_keywords("given", keywords.pop("method"), keywords, ELSEWHERE)
    return {**options, "frozen_core": "none" if frozen is None else str(frozen)}
