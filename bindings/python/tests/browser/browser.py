"""A headless Chromium over the DevTools protocol on a pipe. Needs no package."""

from __future__ import annotations

import base64
import fcntl
import json
import os
import shutil
import subprocess
import time
from pathlib import Path
from typing import Any

#: Names of the program, in the order in which they are tried.
PROGRAMS = ("chromium", "chromium-browser", "google-chrome")


def find() -> str | None:
    """The browser, if one is installed."""
    return next((path for name in PROGRAMS if (path := shutil.which(name))), None)


class Browser:
    """One browser with one page. `problems` collects console errors, uncaught exceptions and failed requests."""

    def __init__(self, program: str, profile: Path, *flags: str) -> None:
        self.problems: list[str] = []
        self._number = 0
        # The browser reads commands from descriptor 3 and writes to 4; higher ones are moved there in the child.
        pipes = [fcntl.fcntl(end, fcntl.F_DUPFD, 10) for end in (*os.pipe(), *os.pipe())]
        read_commands, self._commands, self._events, write_events = pipes

        def place() -> None:
            os.dup2(read_commands, 3)
            os.dup2(write_events, 4)

        self._process = subprocess.Popen(
            [
                program,
                "--headless=new",
                "--remote-debugging-pipe",
                "--no-sandbox",
                "--disable-gpu",
                "--disable-dev-shm-usage",
                "--hide-scrollbars",
                f"--user-data-dir={profile}",
                *flags,
                "about:blank",
            ],
            preexec_fn=place,  # noqa: PLW1509
            close_fds=False,
            stderr=subprocess.DEVNULL,
        )
        os.close(read_commands)
        os.close(write_events)
        self._buffer = b""
        self._session: str | None = None
        target = self.send("Target.createTarget", url="about:blank")["targetId"]
        self._session = self.send("Target.attachToTarget", targetId=target, flatten=True)["sessionId"]
        for domain in ("Page", "Runtime", "Log"):
            self.send(f"{domain}.enable")

    def send(self, method: str, **parameters: Any) -> dict[str, Any]:
        """The result of a command."""
        self._number += 1
        message: dict[str, Any] = {"id": self._number, "method": method, "params": parameters}
        if self._session:
            message["sessionId"] = self._session
        os.write(self._commands, json.dumps(message).encode() + b"\0")
        while True:
            answer = self._read()
            if answer.get("id") == self._number:
                if "error" in answer:
                    raise RuntimeError(f"{method}: {answer['error']}")
                return answer["result"]

    def _read(self) -> dict[str, Any]:
        while b"\0" not in self._buffer:
            chunk = os.read(self._events, 1 << 16)
            if not chunk:
                raise RuntimeError("the browser ended")
            self._buffer += chunk
        text, self._buffer = self._buffer.split(b"\0", 1)
        message = json.loads(text)
        self._note(message.get("method", ""), message.get("params", {}))
        return message

    def _note(self, method: str, event: dict[str, Any]) -> None:
        if method == "Runtime.exceptionThrown":
            details = event["exceptionDetails"]
            self.problems.append(details.get("exception", {}).get("description") or details["text"])
        elif method == "Runtime.consoleAPICalled" and event["type"] in ("error", "warning", "assert"):
            self.problems.append(" ".join(str(one.get("value", one.get("description"))) for one in event["args"]))
        elif method == "Log.entryAdded" and event["entry"]["level"] in ("error", "warning"):
            self.problems.append(f"{event['entry']['text']} {event['entry'].get('url', '')}")

    def open(self, url: str) -> None:
        """Navigates and waits until the document is loaded."""
        self.send("Page.navigate", url=url)
        self.wait("document.readyState === 'complete'")

    def evaluate(self, expression: str) -> Any:
        """The value of a JavaScript expression; promises are awaited."""
        result = self.send("Runtime.evaluate", expression=expression, awaitPromise=True, returnByValue=True)
        if "exceptionDetails" in result:
            raise RuntimeError(result["exceptionDetails"].get("exception", {}).get("description", "an exception"))
        return result["result"].get("value")

    def wait(self, condition: str, seconds: float = 30) -> Any:
        """Waits until an expression is true and returns its value; true for an element."""
        expression = f"(() => {{ const value = {condition}; return value instanceof Node || value; }})()"
        end = time.monotonic() + seconds
        while True:
            try:
                value = self.evaluate(expression)
            except RuntimeError:
                # The page is being replaced.
                value = None
            if value:
                return value
            if time.monotonic() > end:
                text = self.evaluate("document.body.innerText")
                raise TimeoutError(f"{condition} is not true after {seconds} s; problems: {self.problems}; page:\n{text}")
            time.sleep(0.1)

    def screenshot(self, path: Path, *, width: int = 1280, dark: bool = False) -> None:
        """Writes the whole page as PNG."""
        scheme = [{"name": "prefers-color-scheme", "value": "dark" if dark else "light"}]
        self.send("Emulation.setEmulatedMedia", features=scheme)
        self.send("Emulation.setDeviceMetricsOverride", width=width, height=900, deviceScaleFactor=1, mobile=False)
        time.sleep(0.3)
        height = min(int(self.evaluate("document.documentElement.scrollHeight")), 3000)
        self.send("Emulation.setDeviceMetricsOverride", width=width, height=max(height, 600), deviceScaleFactor=1, mobile=False)
        time.sleep(0.2)
        path.write_bytes(base64.b64decode(self.send("Page.captureScreenshot", format="png")["data"]))

    def close(self) -> None:
        """Ends the browser."""
        self._process.terminate()
        self._process.wait(20)
        os.close(self._commands)
        os.close(self._events)
