"""The layout of the package: floors, external libraries in their rooms, one entrance to trainium;
defaults and messages of all modules."""

from __future__ import annotations

import ast
import re
from functools import cache
from pathlib import Path

from scripts.plant_faults import read

TESTS = Path(__file__).parent
PACKAGE = TESTS.parent / "dfmp2"
SCRIPTS = TESTS.parent / "scripts"
MODULES = sorted(PACKAGE.rglob("*.py"))

# A room imports only rooms on lower floors; docs/project/architecture.md shows them.
FLOORS = (
    {"errors", "units", "arrays", "progress", "double_hybrids"},
    {"options", "host", "molecule"},
    {"integrals", "backends"},
    {"fitting", "scf", "trainium"},
    {"planning"},
    {"mp2"},
    {"output", "gradients"},
    {"studies", "validation", "execution"},
    {"interop", "tensor"},
    {"cli"},
    {"__init__", "__main__"},
)
FLOOR = {room: floor for floor, rooms in enumerate(FLOORS) for room in rooms}
FOREIGN = {
    "pyscf": {
        "molecule",
        "integrals",
        "fitting",
        "scf",
        "mp2",
        "planning",
        "interop",
        "validation",
        "output",
        "gradients",
        "studies",
    },
    "basis_set_exchange": {"molecule"},
    "h5py": {"host", "output"},
    "torch": {"backends", "trainium"},
    "nki": {"trainium"},
    "click": {"cli"},
    "jinja2": {"output", "execution"},
    "trexio": {"output"},
    "ase": {"molecule", "interop", "output"},
    "pandas": {"output"},
    "qcelemental": {"molecule", "interop"},
    "qcengine": {"interop", "mp2"},
    "geometric": {"studies"},
    "matplotlib": {"output"},
    "dftd3": {"mp2"},
    "dftd4": {"mp2"},
    "boto3": {"host"},
    "botocore": {"host"},
    "distributed": {"execution"},
}


def room(path: Path) -> str:
    relative = path.relative_to(PACKAGE)
    return relative.parts[0] if len(relative.parts) > 1 else relative.stem


@cache
def nodes(path: Path) -> tuple[ast.AST, ...]:
    """All of a module, which comes first; walking through the package takes half a second."""
    return tuple(ast.walk(ast.parse(path.read_text())))


@cache
def imported(path: Path) -> set[str]:
    """Absolute names of all imported modules, at any depth, except those only for annotations."""
    names, hidden = set(), set()
    for node in nodes(path):
        if isinstance(node, ast.If) and getattr(node.test, "id", "") == "TYPE_CHECKING":
            hidden.update(node.body)
        elif isinstance(node, ast.Import) and node not in hidden:
            names.update(alias.name for alias in node.names)
        elif isinstance(node, ast.ImportFrom) and node not in hidden:
            assert node.level == 0, f"{path}: relative import"
            names.update(f"{node.module}.{alias.name}" for alias in node.names)
    return names


def test_every_room_has_a_floor():
    assert {room(path) for path in MODULES} == set(FLOOR)


def test_imports_go_down():
    for path in MODULES:
        own = room(path)
        for parts in (name.split(".") for name in imported(path) if name.startswith("dfmp2.")):
            other = parts[1] if parts[1] in FLOOR else "__init__"
            assert other == own or FLOOR[other] < FLOOR[own], f"{path} imports {'.'.join(parts)}"


def test_names_in_strings_go_down_too():
    """A module named in a string is an import as well; two entrances to trainium are known."""
    doors = {"dfmp2.trainium.entry", "dfmp2.trainium.launch.toolchain"}
    modules = {
        ".".join(("dfmp2", *path.relative_to(PACKAGE).with_suffix("").parts)) for path in MODULES
    } - doors
    for path in MODULES:
        for node in nodes(path):
            if not isinstance(node, ast.Constant) or not isinstance(node.value, str):
                continue
            named = node.value.partition(":")[0]
            if named in modules:
                own = room(path)
                other = named.split(".")[1]
                assert other == own or FLOOR[other] < FLOOR[own], f"{path} names {node.value}"


def test_foreign_libraries_stay_in_their_rooms():
    for path in MODULES:
        for library in {name.split(".")[0] for name in imported(path)}:
            assert room(path) in FOREIGN.get(library, {room(path)}), f"{path} imports {library}"


def test_modules_are_documented():
    for path in MODULES:
        module = nodes(path)[0]
        assert not module.body or ast.get_docstring(module), f"{path} has no docstring"


def test_trainium_has_two_doors():
    """The registry of backends, by dotted names, and `dfmp2 kernels`."""
    doors = {
        path.relative_to(PACKAGE).as_posix()
        for path in MODULES
        if room(path) != "trainium"
        and any(name.startswith("dfmp2.trainium") for name in imported(path))
    }
    assert doors <= {"cli/kernels.py"}


def test_tables_stand_once():
    """Repetitions of exit codes, backends and presets elsewhere agree with their table."""
    from dfmp2 import errors
    from dfmp2.backends.registry import BACKENDS
    from dfmp2.options import BACKENDS as NAMES

    raised = {
        kind.exit_code
        for kind in vars(errors).values()
        if isinstance(kind, type) and issubclass(kind, errors.Dfmp2Error)
    }
    assert set(errors.EXIT_CODES) == raised | {2, errors.STOPPED}
    page = (PACKAGE.parent / "docs" / "reference" / "exit-codes.md").read_text()
    rows = re.findall(r"^\| (\d+) \|", page, re.MULTILINE)
    assert {int(code) for code in rows} == set(errors.EXIT_CODES) | {0}
    assert ("auto", *(row.name for row in BACKENDS)) == NAMES
    for path in MODULES:
        text = path.read_text()
        assert text.count('"GAU_VERYTIGHT"') == (path == PACKAGE / "options" / "values.py")


# of Python
COMMANDS = "run|gradient|optimize|frequencies|interaction|cbs|scan|plan|prepare|energy|derive"
OPTION = re.compile(
    rf"(?<![\w-])--(?:[a-z]+(?![a-z-]*=)|\{{)|\bdfmp2 (?:{COMMANDS})\b(?! (?:--|and))"
)
ERRORS = re.compile(
    r"(Error|Unavailable|UnsupportedByBackend|Checkpoint|Exists|Fault|Failed|Unfinished|^warning"
    r"|Message|prefixed)$"
)


def test_no_error_or_warning_has_an_option_in_its_text() -> None:
    """Applies to every package below the command line: options are separate parts of their
    messages."""
    count = 0
    for path in MODULES:
        if room(path) == "cli":
            continue
        for node in nodes(path):
            if not isinstance(node, ast.Call) or not ERRORS.search(name_of(node.func)):
                continue
            count += 1
            for text in node.args:
                if isinstance(text, ast.Constant | ast.JoinedStr):
                    said = ast.unparse(text).replace(r"\n", " ")
                    assert not OPTION.search(said), f"{path}:{node.lineno}: {said}"
    assert count > 700


def name_of(function: ast.expr) -> str:
    """The name of a function or of an attribute."""
    return str(getattr(function, "attr", getattr(function, "id", "")))


def test_faults_to_be_planted_have_their_text_and_their_tests() -> None:
    """The text of each stands once in the package. What `-k` selects is part of the name of a test
    function or a session; a parameter follows after `and`."""
    package = "\n".join(path.read_text() for path in MODULES)
    sessions = [path.stem for path in (TESTS / "data" / "sessions").glob("*.txt")]
    for fault in read(SCRIPTS / "faults.txt"):
        assert package.count(fault.text) == 1, fault.name
        files, _, selection = fault.tests.partition(" -k ")
        text = "".join((TESTS / file).read_text() for file in files.split())
        names = re.findall(r"^def (test_\w+)", text, re.MULTILINE)
        if files == "test_sessions.py":
            names += sessions
        for choice in selection.split(" or "):
            chosen, *parameters = choice.split(" and ")
            assert any(chosen in name for name in names), fault.name
            assert all(parameter in text for parameter in parameters), fault.name
