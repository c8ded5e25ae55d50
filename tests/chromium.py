"""Chromium without a screen, driven by its DevTools protocol over a pipe: JSON messages that end in a zero byte."""

from __future__ import annotations

import base64
import contextlib
import fcntl
import json
import os
import shutil
import signal
import subprocess
import time
from collections.abc import Iterator
from pathlib import Path
from typing import Any

NAMES = ("chromium", "chromium-browser", "google-chrome", "google-chrome-stable")
PATIENCE = 30.0  # s for one answer


def find() -> str | None:
    """The program, None when there is none."""
    return next(filter(None, map(shutil.which, NAMES)), None)


class Tab:
    """A tab: what it asked the network for, and what it complained of, is kept in `requests` and `complaints`."""

    def __init__(self, reader: int, writer: int) -> None:
        self._reader, self._writer, self._buffer, self._count = reader, writer, b"", 0
        self._session: str | None = None
        self._loaded = False
        self.requests: list[str] = []
        self.complaints: list[str] = []
        target = self.ask("Target.createTarget", url="about:blank")["targetId"]
        self._session = self.ask("Target.attachToTarget", targetId=target, flatten=True)["sessionId"]
        for domain in ("Page", "Runtime", "Log", "Network"):
            self.ask(f"{domain}.enable")

    def ask(self, method: str, **parameters: Any) -> dict[str, Any]:
        """Send a command and wait for its answer; events on the way are noted."""
        self._count += 1
        message = {"id": self._count, "method": method, "params": parameters}
        if self._session is not None:
            message["sessionId"] = self._session
        os.write(self._writer, json.dumps(message).encode() + b"\0")
        while True:
            answer = self._next()
            if answer.get("id") == self._count:
                assert "error" not in answer, f"{method}: {answer['error']}"
                result: dict[str, Any] = answer["result"]
                return result

    def open(self, page: Path) -> None:
        """Load a file and wait until it is there."""
        self._loaded = False
        self.ask("Page.navigate", url=page.as_uri())
        while not self._loaded:
            self._next()

    def run(self, script: str) -> Any:
        """The value of a JavaScript expression, promises awaited."""
        answer = self.ask("Runtime.evaluate", expression=script, returnByValue=True, awaitPromise=True)
        assert "exceptionDetails" not in answer, answer["exceptionDetails"]
        return answer["result"].get("value")

    def screenshot(self, width: int, height: int) -> bytes:
        """The upper left part of the page as PNG."""
        clip = {"x": 0, "y": 0, "width": width, "height": height, "scale": 1}
        return base64.b64decode(self.ask("Page.captureScreenshot", captureBeyondViewport=True, clip=clip)["data"])

    def _next(self) -> dict[str, Any]:
        """The next message, noted when it is an event."""
        end = time.monotonic() + PATIENCE
        while b"\0" not in self._buffer:
            assert time.monotonic() < end, "chromium does not answer"
            try:
                piece = os.read(self._reader, 1 << 20)
            except BlockingIOError:
                time.sleep(0.005)
                continue
            assert piece, "chromium has gone"
            self._buffer += piece
        text, _, self._buffer = self._buffer.partition(b"\0")
        message: dict[str, Any] = json.loads(text)
        self._note(message.get("method", ""), message.get("params", {}))
        return message

    def _note(self, method: str, found: dict[str, Any]) -> None:
        if method == "Page.loadEventFired":
            self._loaded = True
        elif method == "Network.requestWillBeSent":
            self.requests.append(found["request"]["url"])
        elif method in ("Runtime.exceptionThrown", "Runtime.consoleAPICalled", "Log.entryAdded"):
            self.complaints.append(json.dumps(found))


@contextlib.contextmanager
def tab(program: str, profile: Path) -> Iterator[Tab]:
    """A fresh browser with an empty profile; it and all its processes are gone afterwards."""
    to_browser, from_browser = os.pipe(), os.pipe()
    # Above the two numbers that Chromium reads and writes by convention, so that neither is taken.
    theirs = [fcntl.fcntl(end, fcntl.F_DUPFD, 20) for end in (to_browser[0], from_browser[1])]
    options = ("--headless", "--no-sandbox", "--disable-gpu", "--hide-scrollbars", "--remote-debugging-pipe")
    quiet = ("--no-first-run", "--disable-background-networking", "--disable-component-update")
    command = f'exec "$@" 3<&{theirs[0]} 4>&{theirs[1]}'
    process = subprocess.Popen(
        [
            "bash",
            "-c",
            command,
            "bash",
            program,
            *options,
            *quiet,
            f"--user-data-dir={profile}",
            "--window-size=1200,900",
        ],
        pass_fds=theirs,
        stdout=subprocess.DEVNULL,
        stderr=subprocess.DEVNULL,
        start_new_session=True,
    )
    try:
        for end in (*theirs, to_browser[0], from_browser[1]):
            os.close(end)
        os.set_blocking(from_browser[0], False)
        yield Tab(from_browser[0], to_browser[1])
    finally:
        with contextlib.suppress(ProcessLookupError):
            os.killpg(process.pid, signal.SIGKILL)
        process.wait()
        os.close(to_browser[1])
        os.close(from_browser[0])
