"""Headless Chromium, driven by its DevTools protocol over a pipe: JSON messages that end with a
zero byte."""

from __future__ import annotations

import contextlib
import json
import os
import select
import shutil
import signal
import subprocess
from collections.abc import Iterator
from pathlib import Path
from typing import Any

NAMES = ("chromium", "chromium-browser", "google-chrome", "google-chrome-stable")
OPTIONS = (
    "--headless",
    "--no-sandbox",
    "--disable-gpu",
    "--hide-scrollbars",
    "--remote-debugging-pipe",
)
QUIET = (
    "--no-first-run",
    "--disable-background-networking",
    "--disable-component-update",
    "--window-size=1200,900",
)
PATIENCE = 30.0  # s for one answer
COMPLAINTS = ("Runtime.exceptionThrown", "Runtime.consoleAPICalled", "Log.entryAdded")


def find() -> str | None:
    """Path of the program, None if missing."""
    return next(filter(None, map(shutil.which, NAMES)), None)


class Tab:
    """A tab; its network requests and console errors are recorded in `requests` and
    `complaints`."""

    def __init__(self, reader: int, writer: int) -> None:
        self._reader, self._writer, self._buffer, self._count = reader, writer, b"", 0
        self._session: dict[str, str] = {}
        self._loaded = False
        self.requests: list[str] = []
        self.complaints: list[str] = []
        target = self.ask("Target.createTarget", url="about:blank")["targetId"]
        self._session = {
            "sessionId": self.ask("Target.attachToTarget", targetId=target, flatten=True)[
                "sessionId"
            ]
        }
        for domain in ("Page", "Runtime", "Log", "Network"):
            self.ask(f"{domain}.enable")

    def ask(self, method: str, **parameters: Any) -> Any:
        """Send a command and wait for its answer; events meanwhile are recorded."""
        self._count += 1
        message = {"id": self._count, "method": method, "params": parameters, **self._session}
        os.write(self._writer, json.dumps(message).encode() + b"\0")
        while (answer := self._next()).get("id") != self._count:
            pass
        assert "error" not in answer, f"{method}: {answer['error']}"
        return answer["result"]

    def open(self, page: Path) -> None:
        """Load a file and wait until it is there."""
        self._loaded = False
        self.ask("Page.navigate", url=page.as_uri())
        while not self._loaded:
            self._next()

    def run(self, script: str) -> Any:
        """The value of a JavaScript expression, promises awaited."""
        answer = self.ask(
            "Runtime.evaluate", expression=script, returnByValue=True, awaitPromise=True
        )
        assert "exceptionDetails" not in answer, answer["exceptionDetails"]
        return answer["result"].get("value")

    def _next(self) -> dict[str, Any]:
        """The next message, recorded if it is an event."""
        while b"\0" not in self._buffer:
            assert select.select([self._reader], [], [], PATIENCE)[0], "chromium does not answer"
            piece = os.read(self._reader, 1 << 20)
            assert piece, "chromium has gone"
            self._buffer += piece
        text, _, self._buffer = self._buffer.partition(b"\0")
        message: dict[str, Any] = json.loads(text)
        self._loaded |= message.get("method") == "Page.loadEventFired"
        if message.get("method") == "Network.requestWillBeSent":
            self.requests.append(message["params"]["request"]["url"])
        elif message.get("method") in COMPLAINTS:
            self.complaints.append(text.decode())
        return message


@contextlib.contextmanager
def tab(program: str, profile: Path) -> Iterator[Tab]:
    """A fresh browser with an empty profile; it and all its processes are gone afterwards."""
    (commands, to_browser), (from_browser, answers) = os.pipe(), os.pipe()
    # Chromium reads and writes descriptors 3 and 4; bash puts them there, whichever they are here.
    redirected = f'exec 23<&{commands} 24>&{answers}; exec "$@" 3<&23 4>&24'
    started = [
        "bash",
        "-c",
        redirected,
        "bash",
        program,
        *OPTIONS,
        *QUIET,
        f"--user-data-dir={profile}",
    ]
    silent = subprocess.DEVNULL
    process = subprocess.Popen(
        started, pass_fds=(commands, answers), start_new_session=True, stdout=silent, stderr=silent
    )
    os.close(commands)
    os.close(answers)
    try:
        yield Tab(from_browser, to_browser)
    finally:
        with contextlib.suppress(ProcessLookupError):
            os.killpg(process.pid, signal.SIGKILL)
        process.wait()
        os.close(to_browser)
        os.close(from_browser)
