"""Headless Chromium over its debugging pipe: opens a page, runs expressions in it, tells what it asked for."""

from __future__ import annotations

import base64
import json
import os
import select
import shutil
import subprocess
import sys
import time
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any

import pytest

PATIENCE = 60.0
NAMES = ("chromium", "chromium-browser", "google-chrome")
FLAGS = (
    *("--headless=new", "--no-sandbox", "--disable-gpu", "--disable-dev-shm-usage", "--no-first-run"),
    *("--disable-background-networking", "--disable-component-update", "--remote-debugging-pipe"),
)


def chromium() -> str:
    """The browser; without one the test is skipped, except where it must not be."""
    for name in NAMES:
        if (found := shutil.which(name)) is not None:
            return found
    if os.environ.get("LLMRS_REQUIRE_CHROMIUM"):
        pytest.fail("There is no Chromium, and it is required here.")
    pytest.skip(reason="needs Chromium to open the page: apt-get install chromium")


LAUNCH = """
import fcntl, os, sys
read, write = (fcntl.fcntl(int(fd), fcntl.F_DUPFD, 10) for fd in sys.argv[1:3])  # out of the way
os.dup2(read, 3), os.dup2(write, 4)
os.execv(sys.argv[3], sys.argv[3:])
"""
"""Becomes the browser, which reads commands from descriptor 3 and answers on 4."""


class Page:
    """One tab."""

    def __init__(self, commands: int, answers: int) -> None:
        self._commands, self._answers = commands, answers
        self._poll = select.poll()
        self._poll.register(answers, select.POLLIN)
        self._held = b""
        self._number = 0
        self._session: str | None = None
        self.requested: list[str] = []
        """Addresses that the tab has asked for."""
        self.dialogs = 0
        """Windows that a script has opened."""
        target = self.call("Target.createTarget", url="about:blank")["targetId"]
        self._session = self.call("Target.attachToTarget", targetId=target, flatten=True)["sessionId"]
        for domain in ("Page", "Runtime", "Network"):
            self.call(f"{domain}.enable")

    def call(self, method: str, **params: Any) -> Any:
        """One command of the debugging protocol."""
        self._number += 1
        message: dict[str, Any] = {"id": self._number, "method": method, "params": params}
        if self._session is not None:
            message["sessionId"] = self._session
        os.write(self._commands, json.dumps(message).encode() + b"\0")
        while True:
            answer = self._read()
            if answer.get("id") == self._number:
                assert "error" not in answer, answer
                return answer["result"]
            self._note(answer)

    def open(self, url: str) -> None:
        """Go there."""
        self.call("Page.navigate", url=url)

    def size(self, width: int, height: int) -> None:
        """The window's, in pixels."""
        self.call(
            "Emulation.setDeviceMetricsOverride",
            width=width,
            height=height,
            deviceScaleFactor=1,
            mobile=False,
        )

    def run(self, expression: str) -> Any:
        """The value of a JavaScript expression; promises are awaited."""
        result = self.call("Runtime.evaluate", expression=expression, awaitPromise=True, returnByValue=True)
        assert "exceptionDetails" not in result, result["exceptionDetails"]
        return result["result"].get("value")

    def wait(self, expression: str) -> None:
        """Return as soon as the expression is true."""
        end = time.monotonic() + PATIENCE
        while not self.run(f"Boolean({expression})"):
            assert time.monotonic() < end, f"never came true: {expression}"
            time.sleep(0.05)

    def press(self, key: str, text: str = "", modifiers: int = 0) -> None:
        """A key, as from the keyboard; modifiers: 1 Alt, 8 Shift."""
        code = {"Enter": 13, "Escape": 27}.get(key, ord(key[0].upper()))
        common: dict[str, Any] = {"key": key, "windowsVirtualKeyCode": code, "modifiers": modifiers}
        self.call("Input.dispatchKeyEvent", type="keyDown", text=text, **common)
        self.call("Input.dispatchKeyEvent", type="keyUp", **common)

    def write(self, text: str) -> None:
        """Text into what has the focus."""
        self.call("Input.insertText", text=text)

    def picture(self, path: Path) -> None:
        """What the tab shows, as PNG."""
        path.write_bytes(base64.b64decode(self.call("Page.captureScreenshot", format="png")["data"]))

    def _read(self) -> Any:
        while b"\0" not in self._held:
            assert self._poll.poll(PATIENCE * 1000), "the browser says nothing"
            part = os.read(self._answers, 65536)
            assert part, "the browser ended"
            self._held += part
        message, _, self._held = self._held.partition(b"\0")
        return json.loads(message)

    def _note(self, event: dict[str, Any]) -> None:
        if event.get("method") == "Network.requestWillBeSent":
            self.requested.append(event["params"]["request"]["url"])
        if event.get("method") == "Page.javascriptDialogOpening":
            self.dialogs += 1


@contextmanager
def browser(folder: Path) -> Iterator[Page]:
    """A tab of a fresh browser whose files are in `folder`."""
    their_read, our_write = os.pipe()
    our_read, their_write = os.pipe()
    command = [chromium(), *FLAGS, f"--user-data-dir={folder}", "about:blank"]
    pipes = (their_read, their_write)
    process = subprocess.Popen(
        [sys.executable, "-c", LAUNCH, *map(str, pipes), *command],
        pass_fds=pipes,
        stdout=subprocess.DEVNULL,
        stderr=subprocess.DEVNULL,
    )
    os.close(their_read)
    os.close(their_write)
    try:
        yield Page(our_write, our_read)
    finally:
        os.close(our_write)
        os.close(our_read)
        process.terminate()
        process.wait()
