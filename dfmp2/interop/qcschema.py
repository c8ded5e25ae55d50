"""QCSchema in, QCSchema out: an AtomicInput of version 1 or 2 becomes a calculation, its result an
AtomicResult.

Documents are dictionaries of JSON types; no package of the QCArchive family is needed. Nothing is
guessed and nothing ignored: an unknown field, keyword, method or driver is rejected. The geometry
is read in bohr, digit by digit, and never moved, so `fix_com`, `fix_orientation` and `fix_symmetry`
have no effect.
"""

from __future__ import annotations

import difflib
import json
import re
from collections.abc import Collection, Mapping
from dataclasses import dataclass, replace
from typing import Any

from dfmp2.double_hybrids import look_up
from dfmp2.errors import (
    BackendError,
    ConvergenceError,
    Dfmp2Error,
    InputError,
    Message,
    NumericalError,
    ResourceError,
    speaking,
)
from dfmp2.errors.messages import QCSCHEMA
from dfmp2.errors.wishes import way_out_of_method
from dfmp2.interop.python import TranslatingListener, gradient_options, run_options
from dfmp2.molecule.files import read_point_charges
from dfmp2.molecule.foreign import from_qcschema, read_fields
from dfmp2.molecule.molecule import Molecule
from dfmp2.mp2.result import MP2Result
from dfmp2.options import Options, make_options
from dfmp2.options.basis_parts import parse_parts
from dfmp2.options.methods import (
    CUSTOM,
    CUSTOM_DOUBLE_HYBRID,
    METHODS,
    canonical_method,
    method_names,
)
from dfmp2.output.export.qcschema import INPUT_NAMES, PROTOCOLS, VERSIONS, atomic_result
from dfmp2.output.study import Study
from dfmp2.progress import Listener


def read_keywords(
    basis: object, method: object, keywords: Mapping[str, Any], refused: Mapping[str, str]
) -> Options:
    """Options from a basis set, a method and keywords.

    Parameters
    ----------
    method : as in `read_method`
    keywords : names and values of `dfmp2.Options`
    refused : keyword -> why it is not supported here

    Raises
    ------
    InputError : a keyword is unknown, not supported or of another type, or the method is unknown
    """
    if not isinstance(basis, str):
        raise InputError(f"basis {basis!r}: expected the name of a basis set, such as cc-pvdz")
    sets = {"basis": basis, **{name: keywords.get(name) for name in ("auxbasis", "scf_auxbasis")}}
    for name, text in sets.items():
        if isinstance(text, str) and text.strip() and parse_parts(text).files:
            raise InputError(f"{name} {text!r} names a file: expected names of basis sets")
    for name in keywords:
        if name in refused:
            raise InputError(f"keyword {name} cannot be given: {refused[name]}")
    scaled = any(keywords.get(name) is not None for name in ("os_scale", "ss_scale"))
    return make_options(basis=basis, method=read_method(method, scaled=scaled), **keywords)


def read_field(keywords: dict[str, Any]) -> Any:
    """Point charges (n, 4) in bohr and e, or None; removes `point_charges` and
    `point_charge_units` from the keywords.

    Raises
    ------
    InputError : not rows of x, y, z and charge, or an unknown unit
    """
    charges = keywords.pop("point_charges", None)
    units = keywords.pop("point_charge_units", "angstrom")
    if isinstance(charges, str):
        raise InputError("keyword point_charges names a file: expected rows of x, y, z and charge")
    return read_point_charges(charges, units)


DRIVERS = ("energy", "gradient", "hessian", "properties")
# The MP2 step is always density-fitted, so a prefix that says so is optional.
PREFIX = re.compile("^(df|ri)-")


def read_method(text: object, *, scaled: bool) -> str:
    """The method of `dfmp2.Options` named by a text in any case, with or without df- or ri-.

    Parameters
    ----------
    scaled : whether `os_scale` or `ss_scale` is given, which belong to custom-scs-mp2

    Raises
    ------
    InputError : an unknown method, or one that does not accept factors
    """
    written = ""
    if isinstance(text, str):
        written = text.strip().lower()
    name = PREFIX.sub("", written)
    if name in (CUSTOM, CUSTOM_DOUBLE_HYBRID):
        return name
    if name not in METHODS:
        if look_up(name) is not None:
            return canonical_method(name)
        raise _unknown_method(text, written)
    if scaled:
        raise InputError(
            f"os_scale and ss_scale belong to method {CUSTOM}, not to {name}: name it, or leave "
            "them out"
        )
    return name


def _unknown_method(text: object, written: str) -> InputError:
    """The error for an unknown method; `written` is `text` in lower case."""
    names = (*METHODS, CUSTOM, CUSTOM_DOUBLE_HYBRID)
    close = difflib.get_close_matches(PREFIX.sub("", written), method_names(), n=1, cutoff=0.85)
    advice = f"did you mean {close[0]}? " if close else ""
    way_out = way_out_of_method(written)
    if way_out:
        way_out = Message("; ", way_out)
        advice = ""
    return InputError(
        f"method {text!r}: {advice}expected one of {', '.join(names)}, or a double hybrid of "
        "dfmp2 methods",
        way_out,
    )


OLD_NAME = "qc_schema_input"  # alternative spelling allowed by version 1
ANYWHERE = {
    "id": object,
    "schema_name": object,
    "schema_version": object,
    "molecule": dict,
    "provenance": object,
}
SPECIFICATION = {
    "driver": object,
    "model": dict,
    "keywords": dict,
    "protocols": dict,
    "extras": dict,
}
PROTOCOL_FIELDS = {
    "wavefunction": object,
    "stdout": bool,
    "error_correction": object,
    "native_files": object,
    "schema_name": object,
}
NO_KEYWORDS = {
    "basis": "it is model.basis",
    "method": "it is model.method",
    "scf_from": "a QCSchema document names no files",
    "charge": "it is molecule.molecular_charge",
    "multiplicity": "it is molecule.molecular_multiplicity",
}
# QCEngine's classification of errors: by what may help, not by what went wrong.
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
    """A validated AtomicInput.

    Attributes
    ----------
    document : the original document
    version : version of its schema
    molecule, options : what to compute
    wavefunction : the protocol of this name: how much of it is returned
    driver : one of DRIVERS
    """

    document: Mapping[str, Any]
    version: int
    molecule: Molecule
    options: Options
    wavefunction: str
    driver: str = "energy"


def parse(text: str) -> Any:
    """The value of a JSON text.

    Raises
    ------
    InputError : not JSON, or JSON with NaN, infinities or a duplicate key
    """
    try:
        return json.loads(text, parse_constant=_no_constant, object_pairs_hook=_unique)
    except json.JSONDecodeError as error:
        raise InputError(
            f"not JSON ({error.msg} in line {error.lineno}): expected a QCSchema AtomicInput"
        ) from error
    except (
        ValueError,
        RecursionError,
    ) as error:  # a number with thousands of digits, or endless nesting
        raise InputError(f"not usable JSON ({error}): expected a QCSchema AtomicInput") from error


def schema_version(document: Any) -> int:
    """Version of an AtomicInput: as stated, else 2 if it has a `specification` and 1 if not.

    Raises
    ------
    InputError : not an AtomicInput, or one of another version
    """
    if not isinstance(document, Mapping):
        raise InputError(
            f"the input is a {type(document).__name__}: expected a JSON object, a QCSchema "
            "AtomicInput"
        )
    version = document.get("schema_version")
    if version is None:
        version = 2 if "specification" in document else 1
    if isinstance(version, bool) or version not in VERSIONS:
        raise InputError(f"schema_version {version!r}: expected 1 or 2 of an AtomicInput")
    name = document.get("schema_name")
    names = (None, INPUT_NAMES[version], *((OLD_NAME,) if version == 1 else ()))
    if name not in names:
        raise InputError(
            f"schema_name {name!r} with schema_version {version}: expected {INPUT_NAMES[version]!r}"
        )
    return int(version)


@speaking(QCSCHEMA)
def read_request(document: Any) -> Request:
    """Validate an AtomicInput completely, before anything is computed.

    Raises
    ------
    InputError : names the field
    """
    version = schema_version(document)
    fields, specification = _fields(document, version)
    program = specification.get("program") or "dfmp2"
    if program.lower() != "dfmp2":
        raise InputError(
            f"specification.program is {program!r}, and this is dfmp2: send it there, or correct it"
        )
    driver = specification["driver"]
    _require_one_of(DRIVERS, "driver", driver)
    model = read_fields("model", specification["model"] or {}, {"method": object, "basis": str})
    if model["basis"] is None:
        raise InputError(
            "model.basis was not given: expected the name of a basis set, such as cc-pvdz"
        )
    keywords = dict(specification["keywords"] or {})
    point_charges = read_field(keywords)
    options = read_keywords(model["basis"], model["method"], keywords, NO_KEYWORDS)
    protocols = read_fields("protocols", specification["protocols"] or {}, PROTOCOL_FIELDS)
    wavefunction = protocols["wavefunction"] or "none"
    _require_one_of(tuple(PROTOCOLS), "protocols.wavefunction", wavefunction)
    return Request(
        document=document,
        version=version,
        molecule=from_qcschema(fields["molecule"] or {}).in_field(point_charges),
        options=options,
        wavefunction=wavefunction,
        driver=driver,
    )


def _fields(document: Any, version: int) -> tuple[dict[str, Any], dict[str, Any]]:
    """The fields of an AtomicInput, and those that specify the calculation, which version 1 has
    beside them and version 2 below `specification`."""
    if version == 1:
        fields = read_fields("the input", document, {**ANYWHERE, **SPECIFICATION})
        return fields, fields
    fields = read_fields("the input", document, {**ANYWHERE, "specification": dict})
    types = {**SPECIFICATION, "program": str, "schema_name": object}
    return fields, read_fields("specification", fields["specification"] or {}, types)


def _require_one_of(choices: Collection[str], field: str, value: Any) -> None:
    """Raise for another value of a field."""
    if value not in choices:
        raise InputError(f"{field} {value!r}: expected one of {', '.join(choices)}")


@speaking(QCSCHEMA)
def run(
    request: Request,
    *,
    memory: int | None = None,
    threads: int | None = None,
    listener: Listener | None = None,
    command: str = "dfmp2.interop.qcschema.run",
) -> MP2Result | Study:
    """Compute what was requested: a result, with its gradient if needed, or frequencies for a
    Hessian.

    Parameters
    ----------
    memory, threads : bytes and number given from outside; an error if the keywords contain them too

    Raises
    ------
    Dfmp2Error : see `dfmp2.errors`; with the keyword `check`, also if PySCF's energy differs
    """
    options = request.options
    from_outside: dict[str, Any] = {"memory": memory, "threads": threads}
    for name, value in from_outside.items():
        if value is None:
            continue
        if getattr(options, name) is not None:
            raise InputError(
                f"keywords.{name} was given, and {name} from outside as well: leave the keyword out"
            )
        options = replace(options, **{name: value})
    molecule = request.molecule
    listener = TranslatingListener(listener)
    if request.driver == "hessian":
        from dfmp2.studies.frequencies import harmonic_frequencies

        return harmonic_frequencies(
            molecule, options, allow_gradient=True, listener=listener, command=command
        )
    if request.driver == "gradient":
        result = gradient_options(molecule, options, listener=listener, command=command).result
    else:
        if request.driver == "properties":
            options = replace(options, properties=True)
        result = run_options(molecule, options, listener=listener, command=command)
    result.require_proofs("; the result cannot be trusted")
    return result


def answer(request: Request, computed: MP2Result | Study) -> dict[str, Any]:
    """The AtomicResult, in the version of the input."""
    if isinstance(computed, MP2Result):
        result = computed
        returned = _returned(request.driver, result)
    else:
        result = computed.runs["reference"]
        returned = {"return_hessian": computed.arrays["hessian"].value.ravel().tolist()}
    return atomic_result(result, request.document, request.version, request.wavefunction, returned)


def _returned(driver: str, result: MP2Result) -> dict[str, Any] | None:
    """What a driver returns besides the energy, None for the energy alone."""
    if driver == "gradient" and result.gradient is not None:
        return {"return_gradient": result.gradient.total_gradient.ravel().tolist()}
    if driver == "properties" and result.properties is not None:
        properties = result.properties.to_dict()
        if result.polarizability is not None:
            properties["polarizability"] = result.polarizability.relaxed.tolist()
        return {"properties": properties}
    return None


def failure(error: Dfmp2Error | MemoryError, document: Any, version: int) -> dict[str, Any]:
    """The FailedOperation that reports an error.

    Parameters
    ----------
    document : the input as far as it could be read
    version : version of its schema; 1 if unknown, as in QCEngine
    """
    extras = {
        "exception": type(error).__name__,
        "exit_code": getattr(error, "exit_code", ResourceError.exit_code),
    }
    operation = {
        "success": False,
        "error": {"error_type": error_type(error), "error_message": str(error), "extras": extras},
        "input_data": document,
    }
    if isinstance(document, Mapping) and isinstance(document.get("id"), str):
        operation["id"] = document["id"]
    if version == 2:
        operation |= {"schema_name": "qcschema_failed_operation", "schema_version": 2}
    return operation


def error_type(error: Exception) -> str:
    """QCEngine's name for an error."""
    return next((name for kind, name in ERROR_TYPES if isinstance(error, kind)), "unknown_error")


def _unique(pairs: list[tuple[str, Any]]) -> dict[str, Any]:
    values = dict(pairs)
    if len(values) != len(pairs):
        names = [name for name, _ in pairs]
        raise ValueError(f"the key {next(n for n in names if names.count(n) > 1)!r} is given twice")
    return values


def _no_constant(name: str) -> Any:
    raise ValueError(f"{name} is not a number in JSON")
