"""A Chromium that sees no network, driven over its own protocol: the book as readers see it."""

from __future__ import annotations

import json
import shutil
import subprocess
import time
import urllib.request
from pathlib import Path
from typing import Any

import websocket

NAMES = ("chromium", "chromium-browser", "google-chrome", "google-chrome-stable", "chrome")
SECONDS = 60


def find_chromium() -> str | None:
    return next(filter(None, map(shutil.which, NAMES)), None)


class Browser:
    """One window.

    Args:
        home: an empty folder for its profile.
    """

    def __init__(self, program: str, home: Path) -> None:
        options = [
            *("--headless=new", "--no-sandbox", "--disable-gpu", "--disable-dev-shm-usage"),
            *("--remote-debugging-port=0", "--remote-allow-origins=*", f"--user-data-dir={home}"),
            "--host-resolver-rules=MAP * ~NOTFOUND, EXCLUDE 127.0.0.1",
        ]
        self._process = subprocess.Popen(
            [program, *options, "about:blank"],
            stdout=subprocess.DEVNULL,
            stderr=subprocess.DEVNULL,
        )
        port = _wait(lambda: (home / "DevToolsActivePort").read_text().split()[0])
        (page,) = _wait(lambda: _pages(port))
        self._socket = websocket.create_connection(page["webSocketDebuggerUrl"], timeout=SECONDS)
        self._calls = 0
        #: Addresses asked for since the last :meth:`open`.
        self.requests: list[str] = []
        for domain in ("Page", "Network", "Runtime"):
            self._call(f"{domain}.enable")

    def look(self, width: int, dark: bool = False) -> None:
        self._call(
            "Emulation.setDeviceMetricsOverride",
            width=width,
            height=900,
            deviceScaleFactor=1,
            mobile=width < 600,
        )
        scheme = {"name": "prefers-color-scheme", "value": "dark" if dark else "light"}
        self._call("Emulation.setEmulatedMedia", features=[scheme])

    def open(self, page: Path, query: str = "") -> None:
        self.requests.clear()
        address = page.as_uri() + query
        self._call("Page.navigate", url=address)
        _wait(lambda: self.value(f"document.readyState == 'complete' && location == '{address}'"))

    def value(self, expression: str) -> Any:
        """Of some JavaScript, once a promise of it is kept."""
        answer = self._call(
            "Runtime.evaluate", expression=expression, returnByValue=True, awaitPromise=True
        )
        assert "exceptionDetails" not in answer, answer["exceptionDetails"]
        return answer["result"].get("value")

    def wait(self, expression: str) -> Any:
        """Its value, once there is one."""
        return _wait(lambda: self.value(expression))

    def close(self) -> None:
        self._socket.close()
        self._process.terminate()
        self._process.wait(SECONDS)

    def _call(self, method: str, **params: Any) -> dict[str, Any]:
        self._calls += 1
        self._socket.send(json.dumps({"id": self._calls, "method": method, "params": params}))
        while True:
            message = json.loads(self._socket.recv())
            if message.get("method") == "Network.requestWillBeSent":
                self.requests.append(message["params"]["request"]["url"])
            if message.get("id") == self._calls:
                assert "error" not in message, message["error"]
                return message["result"]


def _pages(port: str) -> list[dict[str, Any]]:
    with urllib.request.urlopen(f"http://127.0.0.1:{port}/json", timeout=SECONDS) as answer:
        return [target for target in json.load(answer) if target["type"] == "page"]


def _wait(probe: Any) -> Any:
    """What the probe finds, once it finds something."""
    end = time.monotonic() + SECONDS
    while True:
        try:
            found = probe()
        except (OSError, IndexError):
            found = None
        if found:
            return found
        assert time.monotonic() < end, "the browser takes too long"
        time.sleep(0.05)
