"""Messages in each front end's terms: options are values of an error, not patterns in its text."""

from __future__ import annotations

import ast
import copy
import json
import pickle
import re
from pathlib import Path
from typing import Any

import numpy as np
import pytest

import dfmp2
from dfmp2.errors import Dfmp2Error, InputError, ResultExists
from dfmp2.errors.messages import (
    COMMAND_LINE,
    MANIFEST,
    PYTHON,
    QCSCHEMA,
    Command,
    Message,
    N,
    Option,
    Placeholder,
    in_words,
    joined,
)
from dfmp2.execution.manifest import read_manifest
from dfmp2.interop.qcschema import read_request
from dfmp2.options import Options

from .conftest import write_molecules

ROOT = Path(__file__).parent.parent
WORDS = [  # part, command line, Python, manifest, QCSchema
    (Option("frozen_core", 3), "--frozen-core 3", "frozen_core=3", "frozen_core = 3", None),
    (Option("frozen_core"), "--frozen-core", "frozen_core", "frozen_core", None),
    (Option("frozen_core", N), "--frozen-core N", "frozen_core=N", "frozen_core = N", None),
    (Option("scf_from", Placeholder("FILE")), "--scf-from FILE", "scf_from=FILE", None, None),
    (Option("check", True), "--check", "check=True", "check = true", "keywords.check = true"),
    (Option("method", "drpa"), "--method drpa", 'method="drpa"', 'method = "drpa"', None),
    (Option("basis", ""), "--basis ''", 'basis=""', 'basis = ""', 'model.basis = ""'),
    (Option("scratch", "a b"), "--scratch 'a b'", 'scratch="a b"', 'scratch = "a b"', None),
    (Option("memory", "30MB"), "--memory 30MB", 'memory="30MB"', 'memory = "30MB"', None),
    (Option("tolerance", "1e-12"), "--tolerance 1e-12", "tolerance=1e-12", None, None),
    (Option("threads", np.int64(1)), "--threads 1", "threads=1", "threads = 1", None),
    (Option("kappa", np.float64(1.5)), "--kappa 1.5", "kappa=1.5", "kappa = 1.5", None),
    (Option("check", np.bool_(True)), "--check", "check=True", "check = true", None),
    (Option("fixed", flag="set"), "--set", "fixed", None, None),
    (Option("coordinate", "1,2", flag="bond"), "--bond 1,2", 'coordinate="1,2"', None, None),
    (Option("charge", 1), "--charge 1", "charge=1", None, "molecule.molecular_charge = 1"),
    (Command("run"), "dfmp2 run", "dfmp2.run", "dfmp2 run", "dfmp2 run"),
]


@pytest.mark.parametrize(("part", "shell", "python", "manifest", "schema"), WORDS)
def test_words_of_each_front_end(
    part: Any, shell: str, python: str, manifest: str | None, schema: str | None
) -> None:
    message = Message("use ", part, " instead")
    assert message == in_words(message, COMMAND_LINE) == f"use {shell} instead"
    assert in_words(message, PYTHON) == f"use {python} instead"
    if manifest:
        assert in_words(message, MANIFEST) == f"use {manifest} instead"
    if schema:
        assert in_words(message, QCSCHEMA) == f"use {schema} instead"


@pytest.mark.parametrize("part", [part for part, *_ in WORDS])
def test_messages_survive_copies_processes_and_files(part: Any) -> None:
    message = Message("use ", part, " instead")
    for again in (
        copy.deepcopy(message),
        pickle.loads(pickle.dumps(message)),
        Message.from_json(json.loads(json.dumps(message.to_json())), str(message)),
    ):
        assert again == message
        assert in_words(again, PYTHON) == in_words(message, PYTHON)


def test_a_file_of_other_parts_is_its_text() -> None:
    for parts in (None, 3, [3], [{}], ["other"], [{"option": "x"}]):
        assert Message.from_json(parts, "the text") == "the text"


def test_an_error_carries_its_option_through_wraps_and_processes() -> None:
    error = InputError(Option("threads", 0), ": expected 1 or more", file="f.xyz", line=3)
    assert error.option == Option("threads", 0)
    again = pickle.loads(
        pickle.dumps(error.prefixed("step 2", Message(" (", Option("memory"), ")")))
    )
    assert (type(again), again.file, again.line) == (InputError, "f.xyz", 3)
    assert str(again) == "step 2: f.xyz, line 3: --threads 0: expected 1 or more (--memory)"
    again.speak(PYTHON)
    assert str(again) == "step 2: f.xyz, line 3: threads=0: expected 1 or more (memory)"
    assert str(error).endswith("--threads 0: expected 1 or more")
    exists = ResultExists("x.h5: ", Option("overwrite", True), " replaces it")
    assert isinstance(exists, FileExistsError)
    exists.speak(PYTHON)
    assert str(exists) == "x.h5: overwrite=True replaces it"
    assert joined([Option("a"), Option("b"), Option("c")], last=" or ") == "--a, --b or --c"


def message_of(call: Any) -> str:
    with pytest.raises(Dfmp2Error) as caught:
        call()
    return str(caught.value)


@pytest.fixture
def folder(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    monkeypatch.chdir(tmp_path)
    write_molecules(tmp_path)
    return tmp_path


def test_what_the_user_wrote_is_not_rewritten(folder: Path) -> None:
    said = message_of(lambda: dfmp2.run("dfmp2 run/none.xyz", "sto-3g"))
    assert said.startswith("dfmp2 run/none.xyz: no such file")
    said = message_of(lambda: dfmp2.run("--charge 1.xyz", "sto-3g"))
    assert said.startswith("--charge 1.xyz: no such file")
    said = message_of(lambda: dfmp2.run("h2o.xyz", "--basis x"))
    assert said.startswith('basis="--basis x": no basis set of this name is known')
    assert message_of(lambda: dfmp2.run("h2o.xyz", "sto-3g", threads=0)).startswith("threads=0: ")


def test_numbers_of_numpy_are_numbers(folder: Path) -> None:
    options = Options(
        "sto-3g",
        threads=np.int64(2),  # type: ignore[arg-type]
        frozen_core=np.int32(1),  # type: ignore[arg-type]
        tolerance=np.float32(0.5),  # type: ignore[arg-type]
        check=np.bool_(False),  # type: ignore[arg-type]
        scf_starts=np.array(3),  # type: ignore[arg-type]
    )
    assert (options.threads, options.frozen_core, options.tolerance) == (2, "1", 0.5)
    assert (options.check, options.scf_starts) == (False, 3)
    assert all(type(x) is int for x in (options.threads, options.scf_starts))
    result = dfmp2.run("h2.xyz", "sto-3g", threads=np.int64(1), frozen_virtual=np.int16(0))  # type: ignore[arg-type]
    assert result.mp2_correlation_energy < 0
    said = message_of(lambda: dfmp2.run("h2.xyz", "sto-3g", threads=np.int64(0)))  # type: ignore[arg-type]
    assert said == "threads=0: expected a whole number, 1 or more"
    study = dfmp2.optimize("h2.xyz", "sto-3g", max_steps=np.int64(9))  # type: ignore[arg-type]
    assert study.complete
    ion = dfmp2.Molecule.from_xyz("h2.xyz", charge=np.int64(1), multiplicity=np.int64(2))  # type: ignore[arg-type]
    assert (ion.charge, ion.multiplicity) == (1, 2)


def test_a_manifest_speaks_of_its_keys(folder: Path) -> None:
    file = folder / "b.toml"
    head = 'basis = "sto-3g"\noutput = "out"\n'
    for line, said in {
        "threads = 0": "item 1 (h2.xyz): threads = 0: expected a whole number, 1 or more",
        'method = "drpa"\ncheck = true': 'method = "drpa" has no pair energies and runs in float64',
        'scf = "conventional"\nscf_auxbasis = "x"': "the MP2 fitting set is auxbasis)",
        'frozen_core = "all"': 'frozen_core = "all": expected none, auto',
    }.items():
        file.write_text(f'{head}{line}\n[[item]]\nmolecule = "h2.xyz"\n')
        message = message_of(lambda: read_manifest(file))
        assert said in message
        assert "--" not in message


def test_a_document_is_answered_with_its_fields() -> None:
    def ask(**keywords: Any) -> str:
        document = {
            "driver": "energy",
            "model": {"method": keywords.pop("method", "mp2"), "basis": "sto-3g"},
            "keywords": keywords,
            "molecule": {"symbols": ["He"], "geometry": [0, 0, 0]},
        }
        return message_of(lambda: read_request(document))

    assert ask(threads=0) == "keywords.threads = 0: expected a whole number, 1 or more"
    assert ask(method="drpa", check=True).startswith(
        'model.method = "drpa" has no pair energies and runs in float64 on the host, so '
        "keywords.check = true is not available for it"
    )


def test_errors_of_steps_and_items_are_in_the_words_of_python(folder: Path) -> None:
    said = message_of(
        lambda: dfmp2.interaction("h2o.xyz", "sto-3g", "1,2-3", multiplicities="3,1", charges="0,0")
    )
    assert "multiplicities" in said
    assert "--" not in said
    batch = dfmp2.batch(["h2.xyz"], "sto-3g", "out", frozen_core=9, listener=dfmp2.Listener())
    (message,) = batch.failed.values()
    assert message.startswith("frozen_core=9 freezes 9 of the 1 occupied orbitals of H2")
    again = dfmp2.batch(["h2.xyz"], "sto-3g", "out", frozen_core=9, listener=dfmp2.Listener())
    assert again.failed["h2"] == message
    stored = json.loads((folder / "out" / "h2.error.json").read_text())
    assert stored["message"].startswith("--frozen-core 9 freezes 9")


# of Python
COMMANDS = "run|gradient|optimize|frequencies|interaction|cbs|scan|plan|prepare|energy|derive"
OPTION = re.compile(
    rf"(?<![\w-])--(?:[a-z]+(?![a-z-]*=)|\{{\}})|\bdfmp2 (?:{COMMANDS})\b(?! (?:--|and))"
)
ERRORS = re.compile(
    r"(Error|Unavailable|UnsupportedByBackend|Checkpoint|Exists|Fault|Failed|Unfinished|\.warning"
    r"|Message|prefixed)$"
)


def test_no_error_or_warning_has_an_option_in_its_text() -> None:
    """Applies to every package below the command line: options are separate parts of their
    messages."""
    count = 0
    for path in sorted((ROOT / "dfmp2").rglob("*.py")):
        if "cli" in path.parts:
            continue
        for node in ast.walk(ast.parse(path.read_text())):
            if not isinstance(node, ast.Call) or not ERRORS.search(name_of(node.func)):
                continue
            count += 1
            for text in texts_of(node):
                assert not OPTION.search(text), f"{path}:{node.lineno}: {text}"
    assert count > 700


def name_of(function: ast.expr) -> str:
    """The name of a function, after a dot if it is an attribute."""
    if isinstance(function, ast.Attribute):
        return f".{function.attr}"
    if isinstance(function, ast.Name):
        return function.id
    return ""


def texts_of(call: ast.Call) -> list[str]:
    """Texts among the arguments of a call."""
    texts = []
    for argument in call.args:
        if isinstance(argument, ast.Constant) and isinstance(argument.value, str):
            texts.append(argument.value)
        elif isinstance(argument, ast.JoinedStr):
            texts.append(
                "".join(
                    part.value if isinstance(part, ast.Constant) else "{}"  # type: ignore[misc]
                    for part in argument.values
                )
            )
    return texts
