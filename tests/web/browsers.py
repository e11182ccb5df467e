"""Headless Chromium and Firefox, driven with the standard library.

Chromium is spoken to in its DevTools protocol over a pipe, Firefox in Marionette's over a socket.
"""

from __future__ import annotations

import base64
import json
import os
import shutil
import socket
import subprocess
import sys
import time
from abc import ABC, abstractmethod
from collections.abc import Callable, Sequence
from pathlib import Path
from types import TracebackType
from typing import Any

import pytest

_CHROMIUM = ("chromium", "chromium-browser", "google-chrome", "google-chrome-stable")
_FIREFOX = ("firefox-esr", "firefox")
_SECONDS = 120.0

# The child's descriptors 3 and 4 become its ends of the two pipes.
_WITH_PIPES = """
import fcntl, os, sys
for k, given in enumerate([fcntl.fcntl(int(x), fcntl.F_DUPFD, 10) for x in sys.argv[1:3]]):
    os.dup2(given, 3 + k)
os.execvp(sys.argv[3], sys.argv[3:])
"""


class Browser(ABC):
    """A page of a browser. `width` and `height` are of the window, in pixels."""

    @abstractmethod
    def open(self, url: str) -> None: ...

    @abstractmethod
    def evaluate(self, code: str) -> Any:
        """What the body of an async function returns in the page, as JSON says it."""

    @abstractmethod
    def screenshot(self, path: Path) -> None: ...

    @abstractmethod
    def close(self) -> None: ...

    def __enter__(self) -> Browser:
        return self

    def __exit__(
        self,
        kind: type[BaseException] | None,
        value: BaseException | None,
        trace: TracebackType | None,
    ) -> None:
        self.close()

    def until(self, code: str, seconds: float = 60) -> Any:
        """The value of an expression once it is true."""
        end = time.monotonic() + seconds
        while True:
            found = self.evaluate(f"return {code}")
            if found:
                return found
            assert time.monotonic() < end, f"after {seconds} seconds not yet: {code}"
            time.sleep(0.1)


class Chromium(Browser):
    def __init__(self, profile: Path, width: int = 1100, height: int = 900, *flags: str) -> None:
        program = _found(_CHROMIUM)
        to_child, self._out = os.pipe()
        self._in, from_child = os.pipe()
        command = [
            *(sys.executable, "-c", _WITH_PIPES, str(to_child), str(from_child), program),
            *("--headless=new", "--no-sandbox", "--disable-gpu", "--remote-debugging-pipe"),
            *("--no-first-run", "--disable-dev-shm-usage", "--hide-scrollbars"),
            *(f"--user-data-dir={profile}", f"--window-size={width},{height}", *flags),
            "about:blank",
        ]
        self._process = subprocess.Popen(
            command, pass_fds=(to_child, from_child), stderr=subprocess.DEVNULL
        )
        os.close(to_child)
        os.close(from_child)
        self._rest, self._number, self._session = b"", 0, ""
        targets = self._ask("Target.getTargets")["targetInfos"]
        page = next(t["targetId"] for t in targets if t["type"] == "page")
        found = self._ask("Target.attachToTarget", targetId=page, flatten=True)
        self._session = found["sessionId"]
        size = {"width": width, "height": height, "deviceScaleFactor": 1, "mobile": False}
        self._ask("Emulation.setDeviceMetricsOverride", **size)

    def _ask(self, method: str, **parameters: Any) -> dict[str, Any]:
        self._number += 1
        message = {"id": self._number, "method": method, "params": parameters}
        if self._session:
            message["sessionId"] = self._session
        os.write(self._out, json.dumps(message).encode() + b"\0")
        while True:
            while b"\0" not in self._rest:
                more = os.read(self._in, 1 << 16)
                assert more, "Chromium ended"
                self._rest += more
            raw, _, self._rest = self._rest.partition(b"\0")
            answer = json.loads(raw)
            if answer.get("id") == self._number:
                assert "error" not in answer, f"{method}: {answer['error']}"
                return answer["result"]

    def open(self, url: str) -> None:
        self._ask("Page.navigate", url=url)
        self.until("document.readyState === 'complete' && location.href !== 'about:blank'")

    def evaluate(self, code: str) -> Any:
        function = f"(async () => {{ {code}\n}})()"
        found = self._ask(
            "Runtime.evaluate", expression=function, awaitPromise=True, returnByValue=True
        )
        wrong = found.get("exceptionDetails")
        assert wrong is None, wrong.get("exception", wrong).get("description", wrong)
        return found["result"].get("value")

    def screenshot(self, path: Path) -> None:
        found = self._ask("Page.captureScreenshot", captureBeyondViewport=False)
        path.write_bytes(base64.b64decode(found["data"]))

    def close(self) -> None:
        os.close(self._out)
        _end(self._process)
        os.close(self._in)


class Firefox(Browser):
    def __init__(self, profile: Path, width: int = 1100, height: int = 900) -> None:
        program = _found(_FIREFOX)
        with socket.socket() as free:
            free.bind(("127.0.0.1", 0))
            port = free.getsockname()[1]
        profile.mkdir(parents=True, exist_ok=True)
        (profile / "user.js").write_text(f'user_pref("marionette.port", {port});\n')
        size = (f"--width={width}", f"--height={height}")
        self._process = subprocess.Popen(
            [program, "--headless", "--marionette", "--profile", str(profile), *size],
            stderr=subprocess.DEVNULL,
            stdout=subprocess.DEVNULL,
        )
        self._rest, self._number = b"", 0
        self._socket = self._connected(port)
        self._message()  # who it is
        self._ask("WebDriver:NewSession", capabilities={})
        self._ask("WebDriver:SetTimeouts", script=int(_SECONDS * 1000))
        self._ask("WebDriver:SetWindowRect", width=width, height=height)

    def _connected(self, port: int) -> socket.socket:
        end = time.monotonic() + _SECONDS
        while True:
            try:
                return socket.create_connection(("127.0.0.1", port), timeout=_SECONDS)
            except ConnectionRefusedError:
                assert time.monotonic() < end and self._process.poll() is None, "no Firefox"
                time.sleep(0.1)

    def _message(self) -> Any:
        """The next message: its length in digits, a colon, JSON."""

        def more() -> None:
            found = self._socket.recv(1 << 16)
            assert found, "Firefox ended"
            self._rest += found

        while b":" not in self._rest:
            more()
        size, _, self._rest = self._rest.partition(b":")
        while len(self._rest) < int(size):
            more()
        raw, self._rest = self._rest[: int(size)], self._rest[int(size) :]
        return json.loads(raw)

    def _ask(self, command: str, **parameters: Any) -> Any:
        self._number += 1
        raw = json.dumps([0, self._number, command, parameters]).encode()
        self._socket.sendall(f"{len(raw)}:".encode() + raw)
        _, number, error, result = self._message()
        assert number == self._number
        assert error is None, f"{command}: {error}"
        return result.get("value", result) if isinstance(result, dict) else result

    def open(self, url: str) -> None:
        self._ask("WebDriver:Navigate", url=url)

    def evaluate(self, code: str) -> Any:
        script = (
            "const done = arguments[arguments.length - 1];"
            f"(async () => {{ {code}\n}})().then(value => done({{value}}), "
            "wrong => done({wrong: `${wrong}\\n${wrong && wrong.stack}`}));"
        )
        found = self._ask("WebDriver:ExecuteAsyncScript", script=script, args=[], sandbox=None)
        assert "wrong" not in found, found["wrong"]
        return found.get("value")

    def screenshot(self, path: Path) -> None:
        path.write_bytes(base64.b64decode(self._ask("WebDriver:TakeScreenshot", full=False)))

    def close(self) -> None:
        self._socket.close()
        _end(self._process)


BROWSERS: dict[str, Callable[[Path], Browser]] = {"chromium": Chromium, "firefox": Firefox}


def browser(name: str, profile: Path) -> Browser:
    """A browser by name; the test is skipped where it is not installed."""
    return BROWSERS[name](profile)


def _found(names: Sequence[str]) -> str:
    for name in names:
        if shutil.which(name):
            return name
    pytest.skip(f"{names[0]} is not installed")


def _end(process: subprocess.Popen[bytes]) -> None:
    process.terminate()
    try:
        process.wait(10)
    except subprocess.TimeoutExpired:
        process.kill()
        process.wait()
