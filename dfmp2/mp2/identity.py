"""When two runs are the same: in what decides the answer, in what decides its last bit, and in
method.

Energies of the same method may be subtracted from each other, whatever the molecules.
"""

from __future__ import annotations

import hashlib
import json
import re
from collections import Counter
from collections.abc import Iterable, Mapping
from dataclasses import asdict

from dfmp2.errors import ForeignCheckpoint, InputError, Message, Option
from dfmp2.errors.messages import Part, joined
from dfmp2.host import provenance, threads
from dfmp2.molecule.basis import BasisSet
from dfmp2.molecule.frozen_core import FrozenCore
from dfmp2.molecule.molecule import Molecule
from dfmp2.mp2.result import MP2Result
from dfmp2.options import Options
from dfmp2.options.basis_parts import common_basis, with_contents
from dfmp2.planning.system import Setup, System
from dfmp2.scf.reference import StartOrbitals

# Options that may change without making a finished result the answer to another question; start
# orbitals are compared by their numbers.
FREE = (
    "memory",
    "threads",
    "scratch",
    "scf_max_cycles",
    "allow_small_gap",
    "allow_poor_fit",
    "scf_from",
)
# Options that stand for something else, which is compared instead once it is known.
STAND_FOR = (
    "basis",
    "scf_auxbasis",
    "auxbasis",
    "reference",
    "frozen_core",
)
# Options that affect neither an intermediate number nor a tile.
AFTERWARDS = (
    "method",
    "os_scale",
    "ss_scale",
    "dispersion",
    "laplace",
    "check",
    "certify_fit",
    "properties",
    "polarizability",
)
PROCESSOR = "processor"  # in an identity: affects last bits, but a run may be resumed on another
OTHER_BITS = "the last bits of the result are not those of a run on one of them"
TYPED = {"None": "not given", "True": "given", "False": "not given"}  # values of options
NUMBER_PAIR = re.compile(r"\((\d+), (\d+)\)")  # a grid
SHOWN = 40  # characters of a value in a message
# Options that define the method. Whatever `auto` chose per molecule (RHF or UHF, frozen orbitals)
# counts as one method.
METHOD = (
    "basis",
    "reference",
    "xc",
    "grid",
    "relativity",
    "solvent",
    "solvent_model",
    "scf",
    "scf_auxbasis",
    "auxbasis",
    "frozen_core",
    "frozen_virtual",
    "method",
    "dispersion",
    "kappa",
    "os_scale",
    "ss_scale",
    "precision",
)
MOST_NAMED = 3


def question(molecule: Molecule, options: Options, start: str = "") -> dict[str, str]:
    """Everything that decides the answer, by name. This function defines which options matter.

    Parameters
    ----------
    start : SHA-256 of the start orbitals or of their file, "" for those of options.guess
    """
    options = options.settled(molecule.multiplicity)
    return {
        "geometry": geometry(molecule),
        "point charges": point_charges_digest(molecule),
        "charge": str(molecule.charge),
        "multiplicity": str(molecule.multiplicity),
        "start orbitals": start or "none",
        **{
            _option(name): str(value) for name, value in asdict(options).items() if name not in FREE
        },
        "--basis": with_contents(options.basis),
    }


def identity(
    system: System, setup: Setup, core: FrozenCore, kind: str, start: StartOrbitals | None
) -> dict[str, str]:
    """Everything that the last bit of a result depends on, by name: bases by their numbers, and how
    it is computed."""
    if start is None:
        sha256 = ""
    else:
        sha256 = _sha256(
            str(start.mo_coeff.shape).encode(), start.mo_coeff.tobytes(), start.mo_occ.tobytes()
        )
    asked = question(system.molecule, setup.options, sha256)
    return {
        **{
            name: asked[name]
            for name in asked
            if name not in map(_option, (*STAND_FOR, *AFTERWARDS))
        },
        "--xc": str(setup.options.functional),
        "orbital basis": _basis(system.orbital_basis),
        "SCF fitting set": _basis(system.scf_fitting),
        "MP2 fitting set": _basis(system.mp2_fitting),
        "reference": kind,
        "frozen core": str(core.orbitals),
        "--scf-max-cycles": str(setup.options.scf_max_cycles),
        "--threads": str(setup.threads),
        "--kappa": str(setup.options.regulariser),
        "--backend": setup.backend.name,
        "--transform": "device" if setup.options.transform == "device" else "host",
        **provenance.versions(),
        PROCESSOR: threads.kernels(),
    }


def geometry(molecule: Molecule) -> str:
    """SHA-256 of labels, which distinguish ghosts from atoms, and coordinates (their bits)."""
    return _sha256(" ".join(molecule.labels).encode(), molecule.coordinates.astype("<f8").tobytes())


def point_charges_digest(molecule: Molecule) -> str:
    """SHA-256 of the point charges around the molecule (their bits)."""
    charges = molecule.point_charges
    if charges is None:
        return "none"
    return _sha256(charges.astype("<f8").tobytes())


def fingerprint(molecule: Molecule, options: Options, start: str = "") -> str:
    """SHA-256 of `question`."""
    return _sha256(json.dumps(question(molecule, options, start), sort_keys=True).encode())


def changed(there: Mapping[str, str], here: Mapping[str, str]) -> list[str]:
    """Names of the entries that differ; options as `dfmp2.Options` spells them."""
    names = [name for name in {**there, **here} if there.get(name) != here.get(name)]
    return [name[2:].replace("-", "_") if name.startswith("--") else name for name in names]


def differences(
    there: Mapping[str, str], here: Mapping[str, str], leave_out: Iterable[str] = ()
) -> list[Message]:
    """Entries that differ, with both values if they are readable; long ones (hashes) are not
    shown."""
    found = []
    for name in {**there, **here}:
        old, new = there.get(name, "none"), here.get(name, "none")
        if old != new and name not in leave_out:
            old, new = _as_typed(old), _as_typed(new)
            short = max(len(old), len(new)) <= SHOWN
            named: Part = name
            if name.startswith("--"):
                named = Option(name[2:].replace("-", "_"))
            if short:
                found.append(Message(named, f" ({old} there, {new} here)"))
            else:
                found.append(Message(named, " differs"))
    return found


def _as_typed(value: str) -> str:
    """An entry of a question as its user would write it: no value, a flag or a pair of numbers."""
    pair = NUMBER_PAIR.fullmatch(value)
    if pair is not None:
        return f"{pair[1]},{pair[2]}"
    return TYPED.get(value, value)


def other_processor(there: Mapping[str, str], here: Mapping[str, str]) -> str:
    """Both processor models if they differ; "" if they are equal or one is unknown."""
    old, new = there.get(PROCESSOR, ""), here.get(PROCESSOR, "")
    if not old or not new or old == new:
        return ""
    return f"{old} there, {new} here"


def require_same(there: Mapping[str, str], here: Mapping[str, str], path: str) -> None:
    """Raise for the checkpoint of another calculation; another processor model is accepted.

    Raises
    ------
    ForeignCheckpoint : names the differences
    """
    different = differences(there, here, leave_out=[PROCESSOR])
    if different:
        raise ForeignCheckpoint(
            f"{path} belongs to another calculation: ",
            joined(different),
            ": give the same molecule and options to continue that one, name another file, or "
            "delete it to start again",
        )


def require_answer(result: MP2Result, molecule: Molecule, options: Options, path: str) -> None:
    """Raise for a finished result that answers another question.

    Raises
    ------
    InputError : names the differences
    """
    there = question(result.molecule, result.options)
    here = question(molecule, options)
    # A result that holds more than was requested is an answer too
    held = {
        "--certify-fit": result.options.certify_fit,
        "--check": result.options.check,
    }
    if isinstance(result, MP2Result):  # not a prepared file
        held["--properties"] = result.properties is not None
        held["--polarizability"] = result.polarizability is not None
    different = differences(there, here, leave_out=[name for name, there in held.items() if there])
    if different:
        raise InputError(
            (f"{path} is the result of another calculation: "),
            joined(different),
            (": name another file with "),
            Option("output"),
            ", or replace it with ",
            Option("overwrite", True),
            " instead of ",
            Option("resume", True),
        )


def _option(name: str) -> str:
    return f"--{name.replace('_', '-')}"


def _basis(given: BasisSet | None) -> str:
    """SHA-256 of exponents, coefficients and core potentials; the name is ignored."""
    if given is None:
        return "none"
    return _sha256(
        " ".join(
            f"{symbol} {one.sha256}" for symbol, one in sorted(given.elements.items())
        ).encode()
    )


def _sha256(*parts: bytes) -> str:
    digest = hashlib.sha256()
    for part in parts:
        digest.update(part)
    return digest.hexdigest()


def method(result: MP2Result) -> dict[str, str]:
    """What makes energies comparable: the options of METHOD, and the numbers behind the names of
    the bases; of a weighted sum of runs the weights of E(SCF) and E(corr) in each basis."""
    found = method_of(result.options)
    if len(result.terms) > 1:
        found["basis"] = " and ".join(
            f"{with_contents(run.options.basis)} ({scf:.6g}, {correlation:.6g})"
            for (scf, correlation), run in result.terms
        )
    for basis in filter(None, (result.orbital_basis, result.scf_fitting, result.mp2_fitting)):
        for symbol, element in basis.elements.items():
            found[f"{basis.role} functions of {symbol}"] = f"{element.name} ({element.sha256[:8]})"
    return found


def method_of(options: Options) -> dict[str, str]:
    """The options of METHOD as text; of a double hybrid the functional and the correction that
    they request together, and of kappa-mp2 the number that counts, also if it is the default."""
    given = {name: getattr(options, name) for name in METHOD}
    given["basis"] = with_contents(options.basis)
    given["kappa"] = options.regulariser
    given["dispersion"] = None
    row = options.double_hybrid
    if row is not None:
        given["method"] = row.name
        given["dispersion"] = row.dispersion or "none"
    return {name: "default" if value is None else str(value) for name, value in given.items()}


def with_common_basis(methods: Iterable[Mapping[str, str]]) -> list[dict[str, str]]:
    """The methods with one common basis if each has that part of it which its elements need.

    Other fields tell whether shared elements have the same functions.
    """
    methods = list(methods)
    basis = common_basis(one["basis"] for one in methods)
    if basis is None:
        return [dict(one) for one in methods]
    return [{**one, "basis": basis} for one in methods]


def method_differences(methods: Mapping[str, Mapping[str, str]]) -> str:
    """The fields in which the methods of items (by their names) differ, "" if they agree.

    Options come first; bases only if no option explains them.
    """
    named: dict[str, dict[str, list[str]]] = {}  # field -> value -> names of items
    for item, found in methods.items():
        for field, value in found.items():
            named.setdefault(field, {}).setdefault(value, []).append(item)
    different = {field: values for field, values in named.items() if len(values) > 1}
    fields = [field for field in different if field in METHOD] or list(different)
    parts = []
    for field in fields[:MOST_NAMED]:
        most = Counter(
            {value: len(names) for value, names in different[field].items()}
        ).most_common(3)
        values = ", ".join(
            f"{value} ({count}, e.g. {different[field][value][0]})" for value, count in most
        )
        parts.append(f"{field.replace('_', '-')}: {values}")
    more = len(fields) - len(parts)
    return "; ".join(parts) + (f"; and {more} more" if more > 0 else "")
