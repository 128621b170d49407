"""A headless Chromium that a test drives over its own pipe, as its DevTools protocol says; no package is needed."""

import base64
import json
import os
import shutil
import subprocess
import time
from collections.abc import Generator
from contextlib import contextmanager
from pathlib import Path
from typing import Any

NAMES = ("chromium", "chromium-browser", "google-chrome")
SECONDS = 60


class Page:
    """One tab."""

    def __init__(self, sends: int, receives: int) -> None:
        self._sends, self._receives = sends, receives
        self._count, self._rest, self._session = 0, b"", None
        target = self.call("Target.createTarget", url="about:blank")["targetId"]
        self._session = self.call("Target.attachToTarget", targetId=target, flatten=True)["sessionId"]
        self.call("Page.enable")

    def call(self, method: str, **params: Any) -> dict[str, Any]:
        """Ask for one thing and return the answer."""
        self._count += 1
        message = {"id": self._count, "method": method, "params": params}
        if self._session:
            message["sessionId"] = self._session
        os.write(self._sends, json.dumps(message).encode() + b"\0")
        while True:
            answer = self._receive()
            if answer.get("id") == self._count:
                assert "error" not in answer, answer["error"]
                return answer["result"]

    def open(self, address: str, *, width: int = 1360, height: int = 1500, scheme: str = "light") -> None:
        """Show an address in a window of this size, in a light or dark scheme."""
        self.call("Emulation.setDeviceMetricsOverride", width=width, height=height, deviceScaleFactor=1, mobile=False)
        self.call("Emulation.setEmulatedMedia", features=[{"name": "prefers-color-scheme", "value": scheme}])
        self.call("Page.navigate", url=address)

    def run(self, code: str) -> Any:
        """Return what an expression is, a promise's value."""
        found = self.call("Runtime.evaluate", expression=code, awaitPromise=True, returnByValue=True)
        assert "exceptionDetails" not in found, found["exceptionDetails"]
        return found["result"].get("value")

    def wait_for(self, code: str) -> Any:
        """Return what an expression is as soon as it is true."""
        ends = time.monotonic() + SECONDS
        while not (found := self.run(code)):
            assert time.monotonic() < ends, f"{code} stayed false"
            time.sleep(0.05)
        return found

    def press(self, key: str) -> None:
        """Press and release a key."""
        codes = {"ArrowRight": 39, "ArrowLeft": 37, "Tab": 9, "Home": 36, "End": 35}
        for kind in ("keyDown", "keyUp"):
            self.call("Input.dispatchKeyEvent", type=kind, key=key, code=key, windowsVirtualKeyCode=codes[key])

    def save(self, path: Path, *, whole: bool = False) -> None:
        """Write a screenshot."""
        shot = self.call("Page.captureScreenshot", format="png", captureBeyondViewport=whole)
        path.write_bytes(base64.b64decode(shot["data"]))

    def _receive(self) -> dict[str, Any]:
        while b"\0" not in self._rest:
            part = os.read(self._receives, 1 << 16)
            assert part, "the browser has ended"
            self._rest += part
        message, _, self._rest = self._rest.partition(b"\0")
        return json.loads(message)


@contextmanager
def browser_page(folder: Path) -> Generator[Page]:
    """Start a browser whose files stay in a folder, and end it."""
    path = next(found for name in NAMES if (found := shutil.which(name)))
    (its_in, sends), (receives, its_out) = os.pipe(), os.pipe()
    words = ["--headless", "--no-sandbox", "--disable-gpu", "--no-first-run", f"--user-data-dir={folder}"]
    # The protocol's pipes are descriptors 3 and 4.
    command = f'exec "$0" "$@" 3<&{its_in} 4>&{its_out}'
    process = subprocess.Popen(
        ["bash", "-c", command, path, *words, "--remote-debugging-pipe"],
        pass_fds=(its_in, its_out),
        stdout=subprocess.DEVNULL,
        stderr=subprocess.DEVNULL,
    )
    os.close(its_in)
    os.close(its_out)
    try:
        yield Page(sends, receives)
    finally:
        os.close(sends)
        os.close(receives)
        process.terminate()
        process.wait(SECONDS)
