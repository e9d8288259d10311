"""A real Chromium, driven over the WebDriver protocol by what a person would click and read."""

import http.client
import json
import threading
from base64 import b64decode
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import dataclass, field
from http.server import ThreadingHTTPServer
from pathlib import Path
from typing import Any, Self

from fencepost_lab.servers.processes import HOST, program
from fencepost_lab.servers.server import Server
from tests.harness.waiting import PATIENCE, until

_ELEMENT = "element-6066-11e4-a52e-4f735466cecf"
_FLAGS = (
    "--headless=new",
    "--remote-debugging-pipe",  # or it goes on without chromedriver, if a run is interrupted
    "--no-sandbox",
    "--disable-gpu",
    "--disable-dev-shm-usage",
    "--no-first-run",
    "--disable-background-networking",
    "--disable-component-update",
    "--disable-sync",
    "--host-resolver-rules=MAP * ~NOTFOUND, EXCLUDE 127.0.0.1, EXCLUDE localhost",  # no other host is reached
)


_READY = """(css) => {
  const found = document.querySelector(css);
  if (!found || found.matches(":disabled")) return false;
  return found.matches("option") || found.getClientRects().length > 0;
}"""


_LOOK = """(came, done) => {
  const end = performance.now() + 1000;
  const look = () => {
    try {
      if (came()) done(true);
      else if (performance.now() > end) done(false);
      else setTimeout(look, 20);
    } catch (error) {
      done(String(error));
    }
  };
  look();
}"""


class WebDriverError(AssertionError):
    """The browser could not do it; ``kind`` is the protocol's name for why."""

    def __init__(self, kind: str, message: str) -> None:
        super().__init__(f"{kind}: {message}")
        self.kind = kind


@dataclass(kw_only=True, eq=False)
class Browser(Server):
    """chromedriver with one Chromium; everything it stores is gone with it."""

    width: int = 1300
    height: int = 1000
    session: str = field(default="", init=False)

    def command(self) -> list[str]:
        return [program("CHROMEDRIVER"), f"--port={self.port}", *self.args]

    def ping(self) -> bool:
        return bool(self._ask("GET", "/status")["ready"])

    def __enter__(self) -> Self:
        self.start()
        flags = [*_FLAGS, f"--user-data-dir={self.folder / 'profile'}", f"--window-size={self.width},{self.height}"]
        wanted = {
            "goog:chromeOptions": {"binary": program("CHROMIUM"), "args": flags},
            "goog:loggingPrefs": {"browser": "ALL"},
        }
        try:
            self.session = self._ask("POST", "/session", {"capabilities": {"alwaysMatch": wanted}})["sessionId"]
        except BaseException:
            self.close()
            raise
        return self

    def __exit__(self, *exc: object) -> None:
        try:
            self._ask("DELETE", f"/session/{self.session}")
        finally:
            self.close()

    def open(self, url: str) -> None:
        # A fragment alone would not load the page again.
        self._in("POST", "/url", {"url": "about:blank"})
        self._in("POST", "/url", {"url": url})

    def click(self, css: str) -> None:
        """Click on it as soon as it is there, shown and enabled; the page may replace it until then."""
        until(lambda: self._clicked(css), f"a click on {css}", poll=0.02)

    def _clicked(self, css: str) -> bool:
        if not self.run(f"return ({_READY})({json.dumps(css)})"):
            return False
        try:
            found = self._in("POST", "/element", {"using": "css selector", "value": css})[_ELEMENT]
            self._in("POST", f"/element/{found}/click", {})
        except WebDriverError as error:
            if error.kind in ("no such element", "stale element reference"):
                return False  # drawn again since we looked; nothing was clicked
            raise
        return True

    @contextmanager
    def inside(self, css: str) -> Iterator[None]:
        """Click and read in an embedded page."""
        self._in("POST", "/frame", {"id": self._in("POST", "/element", {"using": "css selector", "value": css})})
        try:
            yield
        finally:
            self._in("POST", "/frame/parent", {})

    def choose(self, css: str, value: str) -> None:
        """Pick an option of a select by its value, as with the mouse."""
        self.click(f'{css} option[value="{value}"]')

    def press(self, *keys: str) -> None:
        """Keys on whatever has the focus."""
        strokes = [{"type": kind, "value": key} for key in keys for kind in ("keyDown", "keyUp")]
        self._in("POST", "/actions", {"actions": [{"type": "key", "id": "keyboard", "actions": strokes}]})

    def run(self, script: str) -> Any:
        return self._in("POST", "/execute/sync", {"script": script, "args": []})

    def later(self, script: str) -> Any:
        """What the script passes to ``done``."""
        return self._in("POST", "/execute/async", {"script": f"const done = arguments[0]; {script}", "args": []})

    def text(self, css: str) -> str:
        """What a person reads there, '' if there is nothing."""
        return str(self.run(f"return document.querySelector({json.dumps(css)})?.innerText ?? ''"))

    def wait(self, condition: str, deadline: float = PATIENCE) -> None:
        """Until an expression is true in the page."""
        try:
            until(lambda: self._came(condition), condition, deadline=deadline, poll=0.03)
        except AssertionError as error:
            error.add_note(f"the score: {self.text('#score')}\nthe log, the last first: {self.text('#log')[:1500]}")
            raise

    def _came(self, condition: str) -> bool:
        """Whether it comes true within a second. The page looks by itself: asking costs three processes far more."""
        said = self.later(f"({_LOOK})(() => Boolean({condition}), done)")
        if isinstance(said, str):
            raise WebDriverError("javascript error", f"{condition}: {said}")
        return bool(said)

    def type(self, css: str, keys: str) -> None:
        """Into a field, after what it holds; into a file field: the path of a file."""
        found = self._in("POST", "/element", {"using": "css selector", "value": css})[_ELEMENT]
        self._in("POST", f"/element/{found}/value", {"text": keys})

    def looks(self, width: int, height: int, *, media: str = "", **features: str) -> None:
        """Another screen, as a phone's, and what its user prefers: ``prefers_color_scheme="dark"``; or ``"print"``."""
        screen: dict[str, object] = {"width": width, "height": height, "deviceScaleFactor": 1, "mobile": width < 600}
        self._cdp("Emulation.setDeviceMetricsOverride", **screen)
        self._cdp("Emulation.setScrollbarsHidden", hidden=True)
        wanted = [{"name": name.replace("_", "-"), "value": value} for name, value in features.items()]
        self._cdp("Emulation.setEmulatedMedia", media=media, features=wanted)

    def plain(self) -> None:
        """The screen that it was started with, nothing preferred or remembered, and no page that goes on playing."""
        self.run("try { localStorage.clear() } catch { /* a blank page has none */ }")
        self._in("POST", "/url", {"url": "about:blank"})
        self._cdp("Emulation.clearDeviceMetricsOverride")
        self._cdp("Emulation.setScrollbarsHidden", hidden=False)
        self._cdp("Emulation.setEmulatedMedia", media="", features=[])

    @contextmanager
    def in_every_page(self, script: str) -> Iterator[None]:
        """Run a script in each page that is opened, before its own."""
        added = self._cdp("Page.addScriptToEvaluateOnNewDocument", source=script)
        try:
            yield
        finally:
            self._cdp("Page.removeScriptToEvaluateOnNewDocument", **added)

    def allow(self, folder: Path) -> None:
        """Let downloads go there, and the page read and write the clipboard."""
        self._cdp("Browser.setDownloadBehavior", behavior="allow", downloadPath=str(folder))
        self._cdp("Browser.grantPermissions", permissions=["clipboardReadWrite", "clipboardSanitizedWrite"])

    def picture(self) -> bytes:
        """What is seen, as a PNG."""
        return b64decode(self._in("GET", "/screenshot"))

    def complaints(self) -> list[str]:
        """What the console said since the last time, of warnings and worse."""
        said = self._in("POST", "/se/log", {"type": "browser"})
        return [each["message"] for each in said if each["level"] in ("WARNING", "SEVERE")]

    def _cdp(self, command: str, **params: object) -> Any:
        return self._in("POST", "/goog/cdp/execute", {"cmd": command, "params": params})

    def _in(self, method: str, path: str, body: object = None) -> Any:
        return self._ask(method, f"/session/{self.session}{path}", body)

    def _ask(self, method: str, path: str, body: object = None) -> Any:
        connection = http.client.HTTPConnection(HOST, self.port, timeout=120)
        try:
            connection.request(method, path, None if body is None else json.dumps(body))
            reply = connection.getresponse()
            value = json.loads(reply.read())["value"]
        finally:
            connection.close()
        if reply.status != 200:
            raise WebDriverError(
                value["error"], f"{method} {path}: {value['error']}: {value['message'].splitlines()[0]}"
            )
        return value


@contextmanager
def serving(started: ThreadingHTTPServer, to: Browser | None = None) -> Iterator[str]:
    """Its address, while it serves. The browser that it serves leaves its pages before that ends.

    Otherwise what a page still asks for is cut off, and its console tells of that.
    """
    with started:
        started.socket.listen(128)  # a page asks for many files at once; of more than five, some would be reset
        thread = threading.Thread(target=started.serve_forever)
        thread.start()
        try:
            yield f"http://127.0.0.1:{started.server_port}/"
            if to is not None:
                to.open("about:blank")
        finally:
            started.shutdown()
            thread.join()


def score(**wanted: str) -> str:
    """The expression that is true once the scoreboard says so."""
    parts = (
        f"document.querySelector('[data-score={name}]')?.innerText === {json.dumps(value)}"
        for name, value in wanted.items()
    )
    return " && ".join(parts)


def says(css: str, words: str) -> str:
    """The expression that is true once it says so there, among other things."""
    return f"document.querySelector({json.dumps(css)})?.innerText.includes({json.dumps(words)})"


def wait_score(browser: Browser, **wanted: str) -> None:
    browser.wait(score(**wanted))


def wait_words(browser: Browser, css: str, words: str) -> None:
    browser.wait(says(css, words))


def step_until(browser: Browser, condition: str) -> None:
    """Go event by event, so that nothing passes unseen, however slow this machine is."""

    def step() -> bool:
        if browser.run(f"return Boolean({condition})"):
            return True
        browser.click("#next")
        return False

    until(step, condition, poll=0.03)
