"""QCSchema in, QCSchema out: an AtomicInput of version 1 or 2 becomes a calculation, its result an AtomicResult.

Only dictionaries of JSON types: no package of the QCArchive family is needed. Nothing is guessed and nothing is
dropped: an unknown field, keyword, method or driver is refused. The geometry is taken in bohr, digit by digit, and
never moved, so `fix_com`, `fix_orientation` and `fix_symmetry` have nothing to forbid.
"""

from __future__ import annotations

import json
from collections.abc import Mapping
from dataclasses import dataclass, replace
from typing import Any

from dfmp2.api import run_options
from dfmp2.errors import (
    BackendError,
    ComparisonFailed,
    ConvergenceError,
    Dfmp2Error,
    InputError,
    NumericalError,
    ResourceError,
)
from dfmp2.export.qcschema import INPUT_NAMES, VERSIONS, atomic_result
from dfmp2.export.qcschema_wavefunction import PROTOCOLS
from dfmp2.integrations.keywords import read_field, read_keywords
from dfmp2.integrations.method import Method, read_method
from dfmp2.integrations.qcschema_molecule import read_molecule
from dfmp2.molecule import Molecule
from dfmp2.options import Options
from dfmp2.progress import Listener
from dfmp2.result import MP2Result

OLD_NAME = "qc_schema_input"  # another spelling that version 1 allows
ANYWHERE = ("id", "schema_name", "schema_version", "molecule", "provenance")
SPECIFICATION = ("driver", "model", "keywords", "protocols", "extras")
FIELDS = {1: (*ANYWHERE, *SPECIFICATION), 2: (*ANYWHERE, "specification")}
SPECIFICATION_FIELDS = {1: FIELDS[1], 2: (*SPECIFICATION, "program", "schema_name")}
PROTOCOL_FIELDS = ("wavefunction", "stdout", "error_correction", "native_files", "schema_name")
NO_KEYWORDS = {
    "basis": "it is model.basis",
    "scf_from": "a QCSchema document names no files",
    "charge": "it is molecule.molecular_charge",
    "multiplicity": "it is molecule.molecular_multiplicity",
}
# QCEngine's classification of errors: what may help, rather than what went wrong.
ERROR_TYPES: tuple[tuple[type[Dfmp2Error], str], ...] = (
    (InputError, "input_error"),
    (ConvergenceError, "convergence_error"),
    (NumericalError, "convergence_error"),
    (BackendError, "resource_error"),
    (ResourceError, "resource_error"),
)


@dataclass(frozen=True, slots=True)
class Request:
    """An AtomicInput that has been understood.

    Attributes
    ----------
    document : as it came
    version : of its schema
    molecule, options, method : what to compute
    kept : protocol `wavefunction`
    """

    document: Mapping[str, Any]
    version: int
    molecule: Molecule
    options: Options
    method: Method
    kept: str


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
        raise InputError(f"the input is a {_kind(document)}: expected a JSON object, a QCSchema AtomicInput")
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
    _known("the input", document, FIELDS[version])
    specification = document if version == 1 else _object(document, "specification")
    _known("specification", specification, SPECIFICATION_FIELDS[version])
    program = specification.get("program") if version == 2 else None
    if program and str(program).lower() != "dfmp2":
        raise InputError(f"specification.program is {program!r}, and this is dfmp2: send it there, or correct it")
    driver = specification.get("driver")
    if driver != "energy":
        raise InputError(f"driver {driver!r}: only energy is available; gradients can be had by finite differences")
    model = _object(specification, "model")
    _known("model", model, ("method", "basis"))
    keywords = dict(_object(specification, "keywords", needed=False))
    field = read_field(keywords)
    options = _options(model.get("basis"), keywords)
    protocols = _object(specification, "protocols", needed=False)
    _known("protocols", protocols, PROTOCOL_FIELDS)
    kept = protocols.get("wavefunction") or "none"
    if kept not in PROTOCOLS:
        raise InputError(f"protocols.wavefunction {kept!r}: expected one of {', '.join(PROTOCOLS)}")
    if protocols.get("stdout") not in (None, True, False):
        raise InputError(f"protocols.stdout {protocols['stdout']!r}: expected true or false")
    _object(specification, "extras", needed=False)
    molecule = read_molecule(_object(document, "molecule")).in_field(field)
    return Request(document, version, molecule, options, read_method(model.get("method"), options), kept)


def run(
    request: Request,
    *,
    memory: int | None = None,
    threads: int | None = None,
    listener: Listener | None = None,
    command: str = "dfmp2.integrations.qcschema.run",
) -> MP2Result:
    """Compute what was asked for.

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
    result = run_options(request.molecule, options, listener=listener, command=command)
    if result.check is not None and not result.check.passed:
        raise ComparisonFailed(
            f"PySCF's DF-MP2 differs by {result.check.largest_difference:.1e} Eh, more than the allowed "
            f"{result.check.allowed:.1e} Eh: the result cannot be trusted"
        )
    return result


def answer(request: Request, result: MP2Result) -> dict[str, Any]:
    """The AtomicResult, in the version of the input."""
    correlation = request.method.correlation_energy(result)
    return atomic_result(result, request.document, request.version, request.kept, correlation)


def failure(error: Dfmp2Error | MemoryError, given: Any, version: int) -> dict[str, Any]:
    """The FailedOperation that says what went wrong.

    Parameters
    ----------
    given : the input as far as it could be read
    version : of its schema; 1 when it is not known, as in QCEngine
    """
    kinds = [kind for known, kind in ERROR_TYPES if isinstance(error, known)]
    kind = "resource_error" if isinstance(error, MemoryError) else kinds[0] if kinds else "unknown_error"
    extras = {"exception": type(error).__name__, "exit_code": getattr(error, "exit_code", ResourceError.exit_code)}
    document = {
        "success": False,
        "error": {"error_type": kind, "error_message": str(error), "extras": extras},
        "input_data": given,
    }
    if isinstance(given, Mapping) and isinstance(given.get("id"), str):
        document["id"] = given["id"]
    if version == 2:
        document |= {"schema_name": "qcschema_failed_operation", "schema_version": 2}
    return document


def _options(basis: object, keywords: Mapping[str, Any]) -> Options:
    if not isinstance(basis, str):
        given = "was not given" if basis is None else f"is a {_kind(basis)}"
        raise InputError(f"model.basis {given}: expected the name of a basis set, such as cc-pvdz")
    return read_keywords(basis, keywords, NO_KEYWORDS)


def _object(parent: Mapping[str, Any], name: str, *, needed: bool = True) -> Mapping[str, Any]:
    value = parent.get(name)
    if value is None and not needed:
        return {}
    if not isinstance(value, Mapping):
        given = "was not given" if value is None else f"is a {_kind(value)}"
        raise InputError(f"{name} {given}: expected a JSON object")
    return value


def _known(place: str, given: Mapping[str, Any], names: tuple[str, ...]) -> None:
    unknown = [name for name in given if name not in names and given[name] is not None]
    if unknown:
        raise InputError(f"{place} has the unknown field {unknown[0]!r}: expected {', '.join(sorted(set(names)))}")


def _unique(pairs: list[tuple[str, Any]]) -> dict[str, Any]:
    values = dict(pairs)
    if len(values) != len(pairs):
        names = [name for name, _ in pairs]
        raise ValueError(f"the key {next(n for n in names if names.count(n) > 1)!r} is given twice")
    return values


def _no_constant(name: str) -> Any:
    raise ValueError(f"{name} is not a number in JSON")


def _kind(value: object) -> str:
    names = {type(None): "null", bool: "boolean", int: "number", float: "number", str: "string", list: "list"}
    return names.get(type(value), "JSON object")
