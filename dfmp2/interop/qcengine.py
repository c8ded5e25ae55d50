"""A QCEngine program: `register()` once, then `qcengine.compute(atomic_input, "dfmp2")`.

    from dfmp2.interop.qcengine import register
    register()

Keywords are the fields of `dfmp2.Options`; cores and memory come from QCEngine's task
configuration. QCEngine accepts both versions of QCSchema and passes on version 2; its Molecule
rounds coordinates to 8 decimals of a bohr.
"""

from __future__ import annotations

import importlib.util
import json
from typing import Any, ClassVar

from dfmp2.errors import Dfmp2Error, InputError
from dfmp2.host.provenance import version
from dfmp2.interop import qcschema
from dfmp2.progress import Silent

try:
    import qcengine
    from qcelemental.models import v2
    from qcengine.programs import ProgramHarness
except ImportError as absent:
    raise ImportError(
        f"QCEngine 0.50 or newer is not installed ({absent}): pip install 'dfmp2[qc]'"
    ) from absent

NAME = "dfmp2"
GIBIBYTE = 2**30
EXCEPTIONS = {
    kind.error_type: kind
    for kind in (
        qcengine.exceptions.InputError,
        qcengine.exceptions.ConvergenceError,
        qcengine.exceptions.ResourceError,
        qcengine.exceptions.UnknownError,
    )
}


class Dfmp2Harness(ProgramHarness):  # type: ignore[misc] # QCEngine has no types
    """The harness that QCEngine calls."""

    _defaults: ClassVar[dict[str, Any]] = {
        "name": NAME,
        "scratch": False,
        "thread_safe": False,
        "thread_parallel": True,
        "node_parallel": False,
        "managed_memory": True,
    }

    @staticmethod
    def found(raise_error: bool = False) -> bool:
        """Whether PySCF, which dfmp2 needs, is installed."""
        there = importlib.util.find_spec("pyscf") is not None
        if raise_error and not there:
            raise ModuleNotFoundError("dfmp2 needs PySCF: pip install 'pyscf>=2.13'")
        return there

    def get_version(self) -> str:
        """Version of the installed dfmp2."""
        return version()

    def compute(self, input_data: Any, config: Any) -> Any:
        """AtomicResult (version 2) of an AtomicInput (version 2).

        Raises
        ------
        qcengine.exceptions.QCEngineException : QCEngine turns it into a FailedOperation
        """
        document = json.loads(input_data.model_dump_json())
        try:
            request = qcschema.read_request(document)
            if config.memory is None:
                memory = None
            else:
                memory = int(config.memory * GIBIBYTE)
            # Warnings are part of the result (`stdout`, `extras["dfmp2"]`), because the process may
            # belong to somebody else.
            result = qcschema.run(
                request,
                memory=memory,
                threads=config.ncores,
                listener=Silent(),
                command=f"{__name__}.compute",
            )
            answer = qcschema.answer(request, result)
        except Dfmp2Error as error:
            raise EXCEPTIONS[qcschema.error_type(error)](str(error)) from error
        # The original objects: reading the molecule again would round its coordinates again.
        return v2.AtomicResult(
            **{**answer, "input_data": input_data, "molecule": input_data.molecule}
        )


def register() -> None:
    """Register `dfmp2` with QCEngine in this process; may be called repeatedly.

    Raises
    ------
    InputError : another program is registered under this name
    """
    if NAME in qcengine.list_all_programs():
        if isinstance(qcengine.get_program(NAME, check=False), Dfmp2Harness):
            return
        raise InputError(f"QCEngine already has another program called {NAME}: unregister it first")
    qcengine.register_program(Dfmp2Harness())
