"""QCSchema in, QCSchema out: an AtomicInput of version 1 or 2 becomes a calculation, its result an AtomicResult.

Charge and multiplicity are those of the molecule; where they are missing they follow from the fragments, as far as
these leave no choice, else from the schema's defaults 0 and 1. Masses, labels and bonds have no part in the energy.

Only dictionaries of JSON types: no package of the QCArchive family is needed. Nothing is guessed and nothing is
dropped: an unknown field, keyword, method or driver is refused. The geometry is taken in bohr, digit by digit, and
never moved, so `fix_com`, `fix_orientation` and `fix_symmetry` have nothing to forbid.
"""

from __future__ import annotations

import difflib
import json
from collections.abc import Mapping
from dataclasses import dataclass, replace
from typing import Any, get_type_hints

import numpy as np

from dfmp2.errors import (
    BackendError,
    ComparisonFailed,
    ConvergenceError,
    Dfmp2Error,
    InputError,
    NumericalError,
    ResourceError,
)
from dfmp2.interop.python import gradient_options, run_options
from dfmp2.molecule.elements import atomic_number
from dfmp2.molecule.molecule import Molecule
from dfmp2.molecule.text import printable
from dfmp2.molecule.xyz import read_point_charges
from dfmp2.mp2.result import MP2Result
from dfmp2.options import CUSTOM, METHODS, MP2, Options, make_options
from dfmp2.output.export.qcschema import INPUT_NAMES, PROTOCOLS, VERSIONS, atomic_result
from dfmp2.output.study import Study
from dfmp2.progress import Listener

LOOSER: dict[str, Any] = {"frozen_core": str | int, "memory": str | int | None}  # what Options converts itself


def read_keywords(basis: object, method: object, keywords: Mapping[str, Any], refused: Mapping[str, str]) -> Options:
    """Options of a basis set, a method and keywords.

    Parameters
    ----------
    method : as `read_method` takes it
    keywords : names and values of `dfmp2.Options`
    refused : keyword -> why this program cannot give it

    Raises
    ------
    InputError : unknown or refused keyword, a value of another type, or another method
    """
    if not isinstance(basis, str):
        raise InputError(f"basis {basis!r}: expected the name of a basis set, such as cc-pvdz")
    hints = get_type_hints(Options)
    for name, value in keywords.items():
        if name in refused:
            raise InputError(f"keyword {name} cannot be given: {refused[name]}")
        if name in hints and not _fits(value, LOOSER.get(name, hints[name])):
            expected = str(LOOSER.get(name, getattr(hints[name], "__name__", hints[name])))
            raise InputError(f"keyword {name} {value!r}: expected {expected.replace(' | ', ' or ')}")
    scaled = any(keywords.get(name) is not None for name in ("os_scale", "ss_scale"))
    return make_options(basis=basis, method=read_method(method, scaled=scaled), **keywords)


def read_field(keywords: dict[str, Any]) -> Any:
    """Point charges (n, 4) in bohr and e, or None, from `point_charges` and `point_charge_units`, which are taken out.

    Raises
    ------
    InputError : not rows of x, y, z and charge, or another unit
    """
    given, units = keywords.pop("point_charges", None), keywords.pop("point_charge_units", "angstrom")
    if isinstance(given, str):
        raise InputError("keyword point_charges names a file: expected rows of x, y, z and charge")
    return read_point_charges(given, units)


def _fits(value: Any, hint: Any) -> bool:
    if isinstance(value, bool):
        return hint is bool
    return isinstance(value, hint) or (isinstance(value, int) and isinstance(1.0, hint))


DRIVERS = ("energy", "gradient", "hessian", "properties")
PREFIXES = ("df-", "ri-")  # the MP2 step is always density-fitted: a prefix that says so may be left out


def read_method(text: object, *, scaled: bool) -> str:
    """The method of `dfmp2.Options` that a text means in any case, with or without df- or ri-.

    Parameters
    ----------
    scaled : whether `os_scale` or `ss_scale` is given, which belong to custom-scs-mp2

    Raises
    ------
    InputError : another method, or one that does not go with factors
    """
    given = text.strip().lower() if isinstance(text, str) else ""
    name = next((given.removeprefix(prefix) for prefix in PREFIXES if given.startswith(prefix)), given)
    names = (*METHODS, CUSTOM)
    if name not in names:
        close = difflib.get_close_matches(name, names, n=1)
        advice = f"did you mean {close[0]}? " if close else ""
        raise InputError(f"method {text!r}: {advice}expected one of {', '.join(names)}")
    if scaled != (name == CUSTOM):
        raise InputError(
            f"method {CUSTOM} needs os_scale or ss_scale"
            if name == CUSTOM
            else f"os_scale and ss_scale belong to method {CUSTOM}, not to {name}: name it, or leave them out"
        )
    return MP2.name if name == CUSTOM else name


# Fields of a molecule -> their JSON type; those below have no part in the energy.
MOLECULE = {
    **{"schema_name": str, "schema_version": int, "symbols": list, "geometry": list, "real": list, "name": str},
    **{"atomic_numbers": list, "molecular_charge": float, "molecular_multiplicity": float, "fragments": list},
    **{"fragment_charges": list, "fragment_multiplicities": list},
    **dict.fromkeys(("masses", "mass_numbers", "atom_labels", "connectivity", "identifiers", "comment", "id"), object),
    **dict.fromkeys(("extras", "provenance", "validated", "fix_com", "fix_orientation", "fix_symmetry"), object),
}
SCHEMAS = {("qcschema_molecule", 2), ("qcschema_molecule", 3), ("qc_schema_molecule", 2)}


def read_molecule(document: Mapping[str, Any]) -> Molecule:
    """The molecule of a QCSchema document of molecule version 2 or 3.

    Raises
    ------
    InputError : a field is missing, unknown, of another type, or contradicts another one
    """
    given = _fields("molecule", document, MOLECULE)
    name, version = given["schema_name"] or "qcschema_molecule", given["schema_version"] or 2
    if (name, version) not in SCHEMAS:
        raise InputError(f"molecule is {name!r} of schema_version {version!r}: expected qcschema_molecule, 2 or 3")
    symbols = given["symbols"]
    if not symbols or not all(isinstance(symbol, str) for symbol in symbols):
        raise InputError("molecule.symbols: expected a list of element symbols")
    ghost = [not real for real in _list(given, "real", len(symbols), bool) or [True] * len(symbols)]
    numbers = _list(given, "atomic_numbers", len(symbols), int)
    if numbers and numbers != [atomic_number(symbol) for symbol in symbols]:
        raise InputError("molecule.atomic_numbers do not belong to molecule.symbols: leave them out, or correct them")
    points = _geometry(given["geometry"], len(symbols))
    charge, multiplicity = _state(given, ghost)
    return Molecule(
        symbols=tuple(symbols),
        coordinates=points,
        ghost=tuple(ghost),
        charge=charge,
        multiplicity=multiplicity,
        name=printable(given["name"] or "molecule"),
        source="QCSchema",
    )


def _geometry(given: Any, natom: int) -> Any:
    """(natom, 3) bohr, from a flat list or from rows."""
    try:
        numbers = np.array(given)
    except ValueError:  # rows of different lengths
        numbers = np.empty(0)
    if numbers.dtype.kind not in "if":
        numbers = np.empty(0)
    if numbers.shape not in ((3 * natom,), (natom, 3)):
        raise InputError(
            f"molecule.geometry has {numbers.size} numbers: expected {3 * natom} in bohr, x, y, z of {natom} atoms"
        )
    return np.array(numbers, dtype=np.float64).reshape(natom, 3)


def _state(given: Mapping[str, Any], ghost: list[bool]) -> tuple[int, int]:
    """Charge and multiplicity; fragments made of ghosts alone carry none."""
    try:
        fragments = [[int(atom) for atom in fragment] for fragment in given["fragments"] or ()]
    except (TypeError, ValueError) as error:
        raise InputError("molecule.fragments: expected lists of atom numbers, from 0") from error
    if fragments and sorted(atom for fragment in fragments for atom in fragment) != list(range(len(ghost))):
        raise InputError(f"molecule.fragments: expected each of the atoms 0 to {len(ghost) - 1} in exactly one of them")
    real = [any(not ghost[atom] for atom in fragment) for fragment in fragments]
    numbers = {}
    for name, default in (("fragment_charges", 0), ("fragment_multiplicities", 1)):
        listed = _list(given, name, len(fragments), int | float) or [default] * len(fragments)
        numbers[name] = [_whole(name, value) for value, here in zip(listed, real, strict=True) if here]
    total, spins = sum(numbers["fragment_charges"]), [m for m in numbers["fragment_multiplicities"] if m != 1]
    charge, multiplicity = given["molecular_charge"], given["molecular_multiplicity"]
    charge = total if charge is None else _whole("molecular_charge", charge)
    if given["fragment_charges"] and charge != total:
        raise InputError(f"molecule.molecular_charge is {charge}, its fragment_charges add up to {total}: correct one")
    if multiplicity is not None:
        return charge, _whole("molecular_multiplicity", multiplicity)
    if len(spins) > 1:
        raise InputError(
            f"molecule.molecular_multiplicity was not given, and {len(spins)} fragments are open shells, which "
            "couple in several ways: give it"
        )
    return charge, spins[0] if spins else 1


def _list(given: Mapping[str, Any], name: str, length: int, kind: Any) -> list[Any] | None:
    """A field with one value of a type for each atom or fragment, or None."""
    value: list[Any] | None = given[name]
    if value is None:
        return None
    if len(value) != length or not all(isinstance(x, kind) and (kind is bool) == isinstance(x, bool) for x in value):
        raise InputError(f"molecule.{name}: expected a list of {length} values, one for each")
    return value


def _whole(name: str, value: float) -> int:
    """A whole number that may be written as 1.0, as QCElemental does."""
    if not float(value).is_integer():
        raise InputError(f"molecule.{name} {value!r}: expected a whole number")
    return int(value)


OLD_NAME = "qc_schema_input"  # another spelling that version 1 allows
ANYWHERE = {"id": object, "schema_name": object, "schema_version": object, "molecule": dict, "provenance": object}
SPECIFICATION = {"driver": object, "model": dict, "keywords": dict, "protocols": dict, "extras": dict}
PROTOCOL_FIELDS = {
    **{"wavefunction": object, "stdout": bool, "error_correction": object, "native_files": object},
    "schema_name": object,
}
NO_KEYWORDS = {
    "basis": "it is model.basis",
    "method": "it is model.method",
    "scf_from": "a QCSchema document names no files",
    "charge": "it is molecule.molecular_charge",
    "multiplicity": "it is molecule.molecular_multiplicity",
}
# QCEngine's classification of errors: what may help, rather than what went wrong.
ERROR_TYPES: tuple[tuple[type[Exception], str], ...] = (
    (InputError, "input_error"),
    (ConvergenceError, "convergence_error"),
    (NumericalError, "convergence_error"),
    (BackendError, "resource_error"),
    (ResourceError, "resource_error"),
    (MemoryError, "resource_error"),
)


@dataclass(frozen=True, slots=True)
class Request:
    """An AtomicInput that has been understood.

    Attributes
    ----------
    document : as it came
    version : of its schema
    molecule, options : what to compute
    kept : protocol `wavefunction`
    driver : one of DRIVERS
    """

    document: Mapping[str, Any]
    version: int
    molecule: Molecule
    options: Options
    kept: str
    driver: str = "energy"


def parse(text: str) -> Any:
    """The value of a JSON text.

    Raises
    ------
    InputError : not JSON, or JSON with NaN, infinities or a key given twice
    """
    try:
        return json.loads(text, parse_constant=_no_constant, object_pairs_hook=_unique)
    except json.JSONDecodeError as error:
        raise InputError(f"not JSON ({error.msg} in line {error.lineno}): expected a QCSchema AtomicInput") from error
    except (ValueError, RecursionError) as error:  # a number of thousands of digits, nesting without end
        raise InputError(f"not usable JSON ({error}): expected a QCSchema AtomicInput") from error


def schema_version(document: Any) -> int:
    """Version of an AtomicInput: as it says, else 2 if it has a `specification` and 1 if not.

    Raises
    ------
    InputError : not an AtomicInput, or of another version
    """
    if not isinstance(document, Mapping):
        raise InputError(f"the input is a {type(document).__name__}: expected a JSON object, a QCSchema AtomicInput")
    version = document.get("schema_version")
    if version is None:
        version = 2 if "specification" in document else 1
    if isinstance(version, bool) or version not in VERSIONS:
        raise InputError(f"schema_version {version!r}: expected 1 or 2 of an AtomicInput")
    name = document.get("schema_name")
    names = (None, INPUT_NAMES[version], *((OLD_NAME,) if version == 1 else ()))
    if name not in names:
        raise InputError(f"schema_name {name!r} with schema_version {version}: expected {INPUT_NAMES[version]!r}")
    return int(version)


def read_request(document: Any) -> Request:
    """Understand an AtomicInput completely, before anything is computed.

    Raises
    ------
    InputError : it names the field
    """
    version = schema_version(document)
    if version == 1:
        given = _fields("the input", document, {**ANYWHERE, **SPECIFICATION})
        specification = given
    else:
        given = _fields("the input", document, {**ANYWHERE, "specification": dict})
        types = {**SPECIFICATION, "program": str, "schema_name": object}
        specification = _fields("specification", given["specification"] or {}, types)
    program = specification.get("program") or "dfmp2"
    if program.lower() != "dfmp2":
        raise InputError(f"specification.program is {program!r}, and this is dfmp2: send it there, or correct it")
    driver = specification["driver"]
    if driver not in DRIVERS:
        raise InputError(f"driver {driver!r}: expected one of {', '.join(DRIVERS)}")
    model = _fields("model", specification["model"] or {}, {"method": object, "basis": str})
    if model["basis"] is None:
        raise InputError("model.basis was not given: expected the name of a basis set, such as cc-pvdz")
    keywords = dict(specification["keywords"] or {})
    field = read_field(keywords)
    options = read_keywords(model["basis"], model["method"], keywords, NO_KEYWORDS)
    kept = _fields("protocols", specification["protocols"] or {}, PROTOCOL_FIELDS)["wavefunction"] or "none"
    if kept not in PROTOCOLS:
        raise InputError(f"protocols.wavefunction {kept!r}: expected one of {', '.join(PROTOCOLS)}")
    molecule = read_molecule(given["molecule"] or {}).in_field(field)
    return Request(document, version, molecule, options, kept, driver)


def run(
    request: Request,
    *,
    memory: int | None = None,
    threads: int | None = None,
    listener: Listener | None = None,
    command: str = "dfmp2.interop.qcschema.run",
) -> MP2Result | Study:
    """Compute what was asked for: a result, with its gradient where that is wanted, or frequencies for a Hessian.

    Parameters
    ----------
    memory, threads : bytes and number given from outside; refused when the keywords name them too

    Raises
    ------
    Dfmp2Error : see `dfmp2.errors`; with the keyword `check`, also when PySCF's energy differs
    """
    options = request.options
    for name, value, keyword in (("memory", memory, options.memory), ("threads", threads, options.threads)):
        if value is not None and keyword is not None:
            raise InputError(f"keywords.{name} was given, and {name} from outside as well: leave the keyword out")
    options = replace(options, memory=memory or options.memory, threads=threads or options.threads)
    if request.driver == "hessian":
        from dfmp2.studies.frequencies import Conditions, harmonic_frequencies

        how = Conditions(allow_gradient=True)
        return harmonic_frequencies(request.molecule, options, how, listener=listener, command=command)
    if request.driver == "energy" and not options.properties:
        result = run_options(request.molecule, options, listener=listener, command=command)
    elif request.driver == "gradient":
        result = gradient_options(request.molecule, options, listener=listener, command=command).result
    else:
        options = replace(options, properties=True)
        result = run_options(request.molecule, options, listener=listener, command=command)
    for proof in (result.gradient_certificate, result.polarizability):
        if proof is not None:
            proof.require()
    if result.check is not None and not result.check.passed:
        raise ComparisonFailed(
            f"PySCF's DF-MP2 differs by {result.check.largest_difference:.1e} Eh, more than the allowed "
            f"{result.check.allowed:.1e} Eh: the result cannot be trusted"
        )
    return result


def answer(request: Request, found: MP2Result | Study) -> dict[str, Any]:
    """The AtomicResult, in the version of the input."""
    result = found if isinstance(found, MP2Result) else found.runs["reference"]
    returned: Any = None
    if not isinstance(found, MP2Result):
        returned = {"return_hessian": found.arrays["hessian"].value.ravel().tolist()}
    elif request.driver == "gradient" and result.gradient is not None:
        returned = {"return_gradient": result.gradient.mp2_total_gradient.ravel().tolist()}
    elif request.driver == "properties" and result.properties is not None:
        returned = {"properties": result.properties.to_dict()}
        if result.polarizability is not None:
            returned["properties"]["polarizability"] = result.polarizability.relaxed.tolist()
    return atomic_result(result, request.document, request.version, request.kept, returned)


def failure(error: Dfmp2Error | MemoryError, given: Any, version: int) -> dict[str, Any]:
    """The FailedOperation that says what went wrong.

    Parameters
    ----------
    given : the input as far as it could be read
    version : of its schema; 1 when it is not known, as in QCEngine
    """
    extras = {"exception": type(error).__name__, "exit_code": getattr(error, "exit_code", ResourceError.exit_code)}
    document = {
        "success": False,
        "error": {"error_type": error_type(error), "error_message": str(error), "extras": extras},
        "input_data": given,
    }
    if isinstance(given, Mapping) and isinstance(given.get("id"), str):
        document["id"] = given["id"]
    if version == 2:
        document |= {"schema_name": "qcschema_failed_operation", "schema_version": 2}
    return document


def error_type(error: Exception) -> str:
    """QCEngine's name for an error."""
    return next((name for kind, name in ERROR_TYPES if isinstance(error, kind)), "unknown_error")


def _fields(place: str, given: Mapping[str, Any], types: Mapping[str, type]) -> dict[str, Any]:
    """The fields of a JSON object, None for those that are missing or null.

    Raises
    ------
    InputError : an unknown field, or one of another type
    """
    for name, value in given.items():
        if value is None:
            continue
        if name not in types:
            raise InputError(f"{place} has the unknown field {name!r}: expected {', '.join(sorted(types))}")
        kind = types[name]
        number = kind is float and isinstance(value, int) and not isinstance(value, bool)
        if not isinstance(value, kind) and not number:
            raise InputError(
                f"{place}.{name} is a {JSON.get(type(value), type(value).__name__)}: expected a {JSON[kind]}"
            )
    return {name: given.get(name) for name in types}


def _unique(pairs: list[tuple[str, Any]]) -> dict[str, Any]:
    values = dict(pairs)
    if len(values) != len(pairs):
        names = [name for name, _ in pairs]
        raise ValueError(f"the key {next(n for n in names if names.count(n) > 1)!r} is given twice")
    return values


def _no_constant(name: str) -> Any:
    raise ValueError(f"{name} is not a number in JSON")


JSON = {dict: "JSON object", list: "list", str: "string", bool: "boolean", int: "number", float: "number"}
