"""`dfmp2 qcschema`: a calculation described by a QCSchema document, for other programs to call."""

from __future__ import annotations

import json
from typing import Any

import click

from dfmp2.cli import signals
from dfmp2.cli.console import Console
from dfmp2.cli.help import GroupedCommand
from dfmp2.cli.options import prepare_libraries
from dfmp2.errors import Dfmp2Error
from dfmp2.molecule.text import read_text

MOST_BYTES = 64 * 10**6
TOO_LARGE = f"more than {MOST_BYTES // 10**6} MB: expected the QCSchema AtomicInput of one molecule"


@click.command("qcschema", cls=GroupedCommand)
@click.argument("document", metavar="INPUT.json")
def command(document: str) -> None:
    """Compute what the QCSchema AtomicInput INPUT.json (- for standard input) asks for.

    Prints an AtomicResult on stdout, or a FailedOperation when the exit code is 3 to 8; nothing else. Warnings and the
    message of a failure go to stderr.
    """
    prepare_libraries(None)
    from dfmp2.interop import qcschema

    given: Any = None
    version = 1
    try:
        given = text = read_text(document, MOST_BYTES, TOO_LARGE, "a JSON file")[1]
        given = qcschema.parse(text)
        version = qcschema.schema_version(given)
        request = qcschema.read_request(given)
        result = qcschema.run(request, listener=Console(quiet=True, log=None), command=f"dfmp2 qcschema {document}")
        answer = qcschema.answer(request, result)
    except (Dfmp2Error, MemoryError) as error:
        signals.check()
        _print(qcschema.failure(error, given, version))
        raise
    signals.check()
    _print(answer)


def _print(answer: dict[str, Any]) -> None:
    click.echo(json.dumps(answer, allow_nan=False))
