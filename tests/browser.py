"""Browser: a headless Chromium, driven by the W3C's WebDriver protocol, which is JSON over HTTP."""

from __future__ import annotations

import base64
import json
import shutil
import subprocess
import urllib.error
import urllib.request
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any

ARGUMENTS = (
    "--headless",
    "--no-sandbox",
    "--disable-gpu",
    "--disable-quic",
    "--no-first-run",
    "--disable-background-networking",
    "--disable-component-update",
    "--disable-sync",
    "--disable-dev-shm-usage",
    "--hide-scrollbars",
)
_STARTS_S, _ANSWERS_S = 30.0, 60.0


def missing() -> str:
    """Return which program is not there; empty where all are."""
    wanted = ("chromium", "chromedriver")
    return ", ".join(name for name in wanted if shutil.which(name) is None)


class Browser:
    """One window.

    Args:
        base: of the driver's addresses.
        session: what the driver calls it.
    """

    def __init__(self, base: str, session: str) -> None:
        self._base = f"{base}/session/{session}"

    def open(self, path: Path, width: int, height: int, *, dark: bool = False) -> None:
        """Show a file in a window of some size, whose system prefers light or dark."""
        metrics = {"width": width, "height": height, "deviceScaleFactor": 1, "mobile": False}
        self.devtools("Emulation.setDeviceMetricsOverride", **metrics)
        scheme = {"name": "prefers-color-scheme", "value": "dark" if dark else "light"}
        self.devtools("Emulation.setEmulatedMedia", features=[scheme])
        self._ask("url", {"url": path.absolute().as_uri()})

    def run(self, script: str, *arguments: object) -> Any:
        """Return what a script in the page returns."""
        return self._ask("execute/sync", {"script": script, "args": list(arguments)})

    def later(self, script: str) -> Any:
        """Return what a script in the page gives its last argument, a function."""
        return self._ask("execute/async", {"script": script, "args": []})

    def wheel(self, x: int, y: int, by: int) -> None:
        """Turn the wheel at a point of the window."""
        turn = {"type": "scroll", "x": x, "y": y, "deltaX": 0, "deltaY": by, "duration": 0}
        self._act({"type": "wheel", "id": "wheel", "actions": [turn]})

    def move(self, x: int, y: int) -> None:
        """Move the pointer to a point of the window."""
        self._pointer(_move(x, y))

    def drag(self, x: int, y: int, to_x: int, to_y: int) -> None:
        """Press at a point, move to another, and let go."""
        down, up = ({"type": f"pointer{what}", "button": 0} for what in ("Down", "Up"))
        self._pointer(_move(x, y), down, _move(to_x, to_y), up)

    def press(self, key: str) -> None:
        """Press a key, and let go of it; one of several characters is named by its code point."""
        actions = [{"type": kind, "value": key} for kind in ("keyDown", "keyUp")]
        self._act({"type": "key", "id": "keys", "actions": actions})

    def complaints(self) -> list[str]:
        """Return what the console says that is worse than a remark, and forget it."""
        entries = self._ask("se/log", {"type": "browser"})
        return [one["message"] for one in entries if one["level"] in ("WARNING", "SEVERE")]

    def photograph(self, path: Path) -> Path:
        """Write what the window shows as a PNG."""
        path.write_bytes(base64.b64decode(self._ask("screenshot")))
        return path

    def devtools(self, command: str, **values: object) -> Any:
        """Return the answer to a command of the DevTools protocol."""
        return self._ask("goog/cdp/execute", {"cmd": command, "params": values})

    def _pointer(self, *actions: dict[str, Any]) -> None:
        mouse = {"pointerType": "mouse"}
        self._act({"type": "pointer", "id": "m", "parameters": mouse, "actions": list(actions)})

    def _act(self, *sources: dict[str, Any]) -> None:
        self._ask("actions", {"actions": list(sources)})

    def _ask(self, what: str, values: object = None) -> Any:
        return _ask(f"{self._base}/{what}", values)


@contextmanager
def browser(folder: Path) -> Iterator[Browser]:
    """Start Chromium with an empty profile in ``folder``; end it and its driver with the block."""
    driver = subprocess.Popen(
        ["chromedriver", "--port=0"], stdout=subprocess.PIPE, stderr=subprocess.DEVNULL, text=True
    )
    try:
        base = f"http://127.0.0.1:{_port(driver)}"
        options = {"args": [*ARGUMENTS, f"--user-data-dir={folder}"]}
        wanted = {"goog:chromeOptions": options, "goog:loggingPrefs": {"browser": "ALL"}}
        made = _ask(f"{base}/session", {"capabilities": {"alwaysMatch": wanted}})
        try:
            yield Browser(base, made["sessionId"])
        finally:
            _ask(f"{base}/session/{made['sessionId']}", method="DELETE")
    finally:
        driver.terminate()
        driver.wait(_STARTS_S)


def _port(driver: subprocess.Popen[str]) -> int:
    """Return the port that the driver says it listens on."""
    assert driver.stdout is not None
    for line in driver.stdout:
        if "started successfully on port" in line:
            return int(line.rstrip().rstrip(".").rsplit(" ", 1)[1])
    raise RuntimeError(f"chromedriver ended with {driver.wait()} before it listened")


def _move(x: int, y: int) -> dict[str, Any]:
    return {"type": "pointerMove", "x": x, "y": y, "duration": 0}


def _ask(address: str, values: object = None, method: str = "") -> Any:
    data = None if values is None else json.dumps(values).encode()
    headers = {"Content-Type": "application/json"}
    request = urllib.request.Request(address, data, headers, method=method or None)
    # No proxy of the environment stands between this process and one of the same machine.
    opener = urllib.request.build_opener(urllib.request.ProxyHandler({}))
    try:
        with opener.open(request, timeout=_ANSWERS_S) as answer:
            return json.load(answer)["value"]
    except urllib.error.HTTPError as error:
        raise RuntimeError(json.load(error)["value"]["message"]) from None
