"""One headless Chromium for all tests of a process, driven over a pipe: it lays pages out and says what it found."""

from __future__ import annotations

import base64
import json
import os
import shutil
import subprocess
import tempfile
from pathlib import Path
from typing import Any

CHROMIUM = shutil.which("chromium") or shutil.which("chromium-browser") or shutil.which("google-chrome")
FLAGS = (
    "--headless", "--no-sandbox", "--disable-gpu", "--disable-quic", "--no-first-run", "--disable-background-networking",
    "--disable-component-update", "--disable-sync", "--hide-scrollbars", "--remote-debugging-pipe",
)  # fmt: skip


class Browser:
    """Speaks the DevTools protocol: one JSON message after the other, with a zero byte between them."""

    def __init__(self) -> None:
        assert CHROMIUM is not None
        self._folder = tempfile.TemporaryDirectory(ignore_cleanup_errors=True)
        read, self._to = os.pipe()
        self._from, write = os.pipe()
        command = f'exec "$0" "$@" 3<&{read} 4>&{write}'  # where Chromium looks for its pipes
        self._process = subprocess.Popen(
            ["bash", "-c", command, CHROMIUM, *FLAGS, f"--user-data-dir={self._folder.name}", "about:blank"],
            pass_fds=(read, write),
            stderr=subprocess.DEVNULL,
        )
        os.close(read), os.close(write)
        self._buffer, self._number, self._session = b"", 0, ""
        self._events: list[dict[str, Any]] = []
        (page,) = (t for t in self._ask("Target.getTargets")["targetInfos"] if t["type"] == "page")
        self._session = self._ask("Target.attachToTarget", targetId=page["targetId"], flatten=True)["sessionId"]
        for domain in ("Page", "Network", "Runtime", "Log"):
            self._ask(f"{domain}.enable")

    def close(self) -> None:
        """End it."""
        os.close(self._to), os.close(self._from)
        self._process.wait(timeout=20)
        self._folder.cleanup()

    def look(self, width: int, *, dark: bool) -> None:
        """The width and the colours that the reader has."""
        self._ask("Emulation.setDeviceMetricsOverride", width=width, height=900, deviceScaleFactor=1, mobile=False)
        scheme = {"name": "prefers-color-scheme", "value": "dark" if dark else "light"}
        self._ask("Emulation.setEmulatedMedia", features=[scheme])

    def open(self, page: Path | str) -> None:
        """Load a file or an address, and wait until it has loaded."""
        self._events.clear()
        self._ask("Page.navigate", url=page if isinstance(page, str) else page.resolve().as_uri())
        while self._message().get("method") != "Page.loadEventFired":
            pass

    def requests(self) -> list[str]:
        """What the page has asked for so far."""
        return [e["params"]["request"]["url"] for e in self._events if e["method"] == "Network.requestWillBeSent"]

    def errors(self) -> list[str]:
        """What stands in the console as an error so far."""
        return [json.dumps(e["params"]) for e in self._events if _is_error(e["method"], e["params"])]

    def run(self, script: str) -> Any:
        """The value of an expression in the page."""
        found = self._ask("Runtime.evaluate", expression=script, returnByValue=True, awaitPromise=True)
        assert "exceptionDetails" not in found, found
        return found["result"].get("value")

    def screenshot(self, path: Path, *, whole: bool = True) -> Path:
        """What a reader sees, as PNG."""
        data = self._ask("Page.captureScreenshot", captureBeyondViewport=whole)["data"]
        path.write_bytes(base64.b64decode(data))
        return path

    def _ask(self, method: str, **params: Any) -> dict[str, Any]:
        self._number += 1
        message = {"id": self._number, "method": method, "params": params}
        message |= {"sessionId": self._session} if self._session else {}
        os.write(self._to, json.dumps(message).encode() + b"\0")
        while True:
            answer = self._message()
            if answer.get("id") == self._number:
                assert "error" not in answer, answer
                return dict(answer["result"])

    def _message(self) -> dict[str, Any]:
        while b"\0" not in self._buffer:
            more = os.read(self._from, 1 << 20)
            assert more, "Chromium ended"
            self._buffer += more
        part, self._buffer = self._buffer.split(b"\0", 1)
        message = dict(json.loads(part))
        if "method" in message:
            self._events.append(message)
        return message


def _is_error(method: str, params: dict[str, Any]) -> bool:
    return (
        method == "Runtime.exceptionThrown"
        or (method == "Runtime.consoleAPICalled" and params["type"] == "error")
        or (method == "Log.entryAdded" and params["entry"]["level"] == "error")
    )
