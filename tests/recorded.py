"""Messages compared as a whole with `tests/data/tables/messages.txt`: type and text, by test and in
the order in which the test asks for them.

`python -m pytest --record [FILE...]` writes the rows of the tests that it runs, and removes those
of tests that are gone. What can be typed stands in the tables of `tests.wrong_inputs` instead.
"""

from __future__ import annotations

import re
import tempfile
from collections.abc import Iterable, Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any
from zlib import crc32

import pytest

TABLE = Path(__file__).parent / "data" / "tables" / "messages.txt"
LONGEST = 80  # characters of the parameters in a test's name
# What depends on the machine or the moment.
CHANGING = (
    (rf"{tempfile.gettempdir()}/(tmp|dfmp2-)[a-z0-9_]+", "<tmp>"),
    (str(Path(__file__).parent.parent), "<repository>"),
    (r"\bprocess \d+( on [\w.-]*\w)?", "process #"),
    (r"since \d{4}-[-\d]+.[:\d]+", "since #"),
    (r"[\d.]+ [GT]B (are free|free|available)", r"# \1"),
    (r"(dfmp2 |PySCF |NumPy |SciPy |PySCF \()\d+\.[\w.+]*\w", r"\1#"),
    # Rounding; powers of ten are limits, except of an error that was measured
    (r"(?<![\d.])(?!1(\.0+)?e)\d(\.\d+)?e-(0[89]|[1-9]\d)", "#e-#"),
    (r"(error may be )1(\.0+)?e-(09|[1-9]\d)", r"\1#e-#"),
    (r"on host [\w.-]*\w", "on host #"),
    (r"(tcp://127\.0\.0\.1:)\d{4,}", r"\1#"),
    (r"/tmp[a-z0-9_]{8}\b", "/tmp#"),
    (r"0x[0-9a-f]{6,}|\b[0-9a-f]{32}\b|\b[0-9a-f]{12}(?=\.\.\.)", "0x#"),
)


def short_name(nodeid: str) -> tuple[str, str]:
    """The file of a test, and its name with parameters of bounded length."""
    path, _, name = nodeid.partition("::")
    if len(name) > LONGEST:
        name = f"{name[:LONGEST]}...{crc32(name.encode()):08x}"
    return Path(path).name, name


def read() -> dict[tuple[str, str], list[str]]:
    """The rows of the table by file and name of the test."""
    rows: dict[tuple[str, str], list[str]] = {}
    file, name = "", ""
    for line in TABLE.read_text().split("\n"):
        if line.startswith("    "):
            rows[file, name].append(line[4:])
        elif line.startswith("  "):
            name = line[2:]
            rows[file, name] = []
        else:
            file = line
    return rows


def write(rows: dict[tuple[str, str], list[str]]) -> None:
    """Store the rows, sorted by file and test."""
    lines = []
    last = ""
    for file, name in sorted(rows):
        if file != last:
            lines.append(file)
            last = file
        lines.append(f"  {name}")
        lines += [f"    {row}" for row in rows[file, name]]
    TABLE.write_text("\n".join(lines) + "\n")


class Messages:
    """The plugin that compares or records the messages of the running test."""

    def __init__(self) -> None:
        self.rows = read()
        self.recording = False
        self.whole = True  # files are collected as a whole
        self.folder = tempfile.gettempdir()  # until a fixture sets that of this session
        self.test: tuple[str, str] | None = None
        self.asked: list[str] = []
        self.collected: set[tuple[str, str]] = set()
        self.recorded: dict[tuple[str, str], list[str]] = {}

    def pytest_configure(self, config: pytest.Config) -> None:
        self.recording = config.getoption("--record")
        self.whole = not any("::" in argument for argument in config.args)

    @pytest.hookimpl(tryfirst=True)
    def pytest_collection_modifyitems(self, items: list[pytest.Item]) -> None:
        """Note all tests, before some are deselected."""
        self.collected.update(short_name(item.nodeid) for item in items)

    @pytest.hookimpl(wrapper=True)
    def pytest_runtest_call(self, item: pytest.Item) -> Iterator[None]:
        self.test = short_name(item.nodeid)
        self.asked = []
        try:
            yield
        finally:
            test, self.test = self.test, None
        if self.recording:
            item.user_properties.append(("messages", self.asked))
        elif len(self.asked) < len(self.rows.get(test, [])):
            raise AssertionError(
                f"the test asks for {len(self.asked)} of its {len(self.rows[test])} recorded "
                "messages: " + how_to_record(test)
            )

    def compare(self, kind: str, text: str) -> None:
        """Compare the next message of the running test with its row."""
        assert self.test is not None, "messages are compared in the body of a test"
        text = re.sub(rf"{re.escape(self.folder)}(/[\w.-]*\w)?", "<tmp>", text)
        for pattern, replacement in CHANGING:
            text = re.sub(pattern, replacement, text)
        text = "".join(char if char.isprintable() else repr(char)[1:-1] for char in text)
        found = f"{kind}: {text}"
        place = len(self.asked)
        self.asked.append(found)
        if self.recording:
            return
        rows = self.rows.get(self.test, [])
        expected = "nothing"
        if place < len(rows):
            expected = rows[place]
        if found != expected:
            raise AssertionError(
                f"message {place + 1} differs\nfound:    {found}\nrecorded: {expected}\n"
                f"If it is right: {how_to_record(self.test)}"
            )

    def pytest_runtest_logreport(self, report: pytest.TestReport) -> None:
        """Collect what a test that passed asked for, also from workers."""
        if self.recording and report.when == "call" and report.passed:
            messages: Any = dict(report.user_properties)["messages"]
            self.recorded[short_name(report.nodeid)] = messages

    @pytest.hookimpl(optionalhook=True)
    def pytest_testnodedown(self, node: Any) -> None:
        """Take over which tests a worker of pytest-xdist has collected."""
        self.collected.update(map(tuple, getattr(node, "workeroutput", {}).get("collected", ())))

    def pytest_sessionfinish(self, session: pytest.Session) -> None:
        """Write the table, in the process that has all reports."""
        if hasattr(session.config, "workeroutput"):
            session.config.workeroutput["collected"] = sorted(self.collected)
        elif self.recording:
            rows = {**self.rows, **self.recorded}
            stale = self.stale()
            write({test: rows[test] for test in rows if rows[test] and test not in stale})

    def stale(self) -> set[tuple[str, str]]:
        """The tests with rows that do not exist any more, as far as their files were collected."""
        files = set()
        if self.whole:
            files = {file for file, _ in self.collected}
        gone = set()
        for file, name in self.rows:
            missing = not (Path(__file__).parent / file).exists()
            if missing or (file in files and (file, name) not in self.collected):
                gone.add((file, name))
        return gone


def how_to_record(test: tuple[str, str]) -> str:
    """The command that writes the rows of a test."""
    return f"python -m pytest --record tests/{test[0]}"


MESSAGES = Messages()


@contextmanager
def recorded_error(kind: type[BaseException] | tuple[type[BaseException], ...]) -> Iterator[Any]:
    """`pytest.raises`, with the exact type and the whole message that are recorded."""
    with pytest.raises(kind) as caught:
        yield caught
    MESSAGES.compare(type(caught.value).__name__, str(caught.value))


@contextmanager
def recorded_warning(kind: type[Warning]) -> Iterator[Any]:
    """`pytest.warns`, with all warnings of this kind as they are recorded."""
    with pytest.warns(kind) as caught:
        yield caught
    recorded_texts(str(one.message) for one in caught if issubclass(one.category, kind))


def recorded_failure(done: Any, code: int) -> None:
    """Check that a command failed with this exit code and the recorded message."""
    assert done.code == code, done.err
    MESSAGES.compare(f"exit {code}", done.message.removeprefix("dfmp2: "))


def recorded_texts(texts: Iterable[str]) -> None:
    """Compare texts, such as warnings, with what is recorded."""
    for text in texts:
        MESSAGES.compare("text", text)
