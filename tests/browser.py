"""Pages in a real browser: run a script on them, press keys, measure them, ask axe about them.

Talks to Chromium's DevTools (https://chromedevtools.github.io/devtools-protocol).
"""

import base64
import importlib.util
import itertools
import json
import shutil
import subprocess
import time
from collections.abc import Iterable, Sequence
from contextlib import contextmanager
from pathlib import Path

import pytest

BROWSER = shutil.which("chromium") or shutil.which("google-chrome")
AXE = Path(__file__).parent / "vendor" / "axe.min.js"

WCAG = ("wcag2a", "wcag2aa", "wcag21a", "wcag21aa")
COLORS = ("color-contrast", "link-in-text-block")  # the rules in which a theme matters

STAY = "--host-resolver-rules=MAP * ~NOTFOUND , EXCLUDE 127.0.0.1"  # no page is fetched elsewhere

needs_browser = pytest.mark.skipif(
    BROWSER is None or importlib.util.find_spec("websocket") is None,
    reason="needs a browser to measure pages: install the package `chromium`",
)


class Browser:
    """One tab without a window; a new one for each page."""

    def __init__(self, address: str):
        import websocket  # comes with the book

        self._socket = websocket.create_connection(address, suppress_origin=True, timeout=180)
        self._numbers = itertools.count(1)
        self._tab = {}

    def _ask(self, method: str, **parameters) -> dict:
        message = {"id": next(self._numbers), "method": method, "params": parameters, **self._tab}
        self._socket.send(json.dumps(message))
        while (answer := json.loads(self._socket.recv())).get("id") != message["id"]:
            pass  # news
        assert "error" not in answer, (method, answer)
        return answer["result"]

    def open(
        self, page: Path | str, width: int = 1280, theme: str = "light", still: bool = True
    ) -> None:
        """Show a page, or an address, as a reader with this window and theme sees it.

        `still` is for who has asked for less motion."""
        self._tab = {}
        tab = self._ask("Target.createTarget", url="about:blank")["targetId"]
        attached = self._ask("Target.attachToTarget", targetId=tab, flatten=True)
        self._tab = {"sessionId": attached["sessionId"]}
        self.resize(width)
        motion = "reduce" if still else "no-preference"
        media = {"prefers-color-scheme": theme, "prefers-reduced-motion": motion}
        features = [{"name": name, "value": value} for name, value in media.items()]
        self._ask("Emulation.setEmulatedMedia", features=features)
        self._ask("Page.enable")
        self._ask(
            "Page.addScriptToEvaluateOnNewDocument",
            source=f"for (const name of ['mode', 'theme']) localStorage.setItem(name, '{theme}');"
            "window.errors = []; addEventListener('error', each => errors.push(each.message))",
        )
        address = page if isinstance(page, str) else page.resolve().as_uri()
        self._ask("Page.navigate", url=address)
        self.wait("location.protocol !== 'about:' && document.readyState === 'complete'")
        self.run("await document.fonts.ready")

    def resize(self, width: int) -> None:
        """Give the page a window this wide, a telephone's if it is narrow."""
        self._ask(
            "Emulation.setDeviceMetricsOverride",
            width=width,
            height=900,
            deviceScaleFactor=1,
            mobile=width < 600,
        )

    def wait(self, condition: str, seconds: float = 120) -> None:
        end = time.monotonic() + seconds
        while not self.run(f"return Boolean({condition})"):
            assert time.monotonic() < end, f"still not: {condition}"
            time.sleep(0.03)

    def run(self, script: str):
        """What the body of a JavaScript function returns on the page (also a promise's result)."""
        answer = self._ask(
            "Runtime.evaluate",
            expression=f"(async () => {{ {script} }})()",
            awaitPromise=True,
            returnByValue=True,
        )
        assert "exceptionDetails" not in answer, answer["exceptionDetails"]
        return answer["result"].get("value")

    def press(self, key: str) -> None:
        """Press a key, e.g. "Tab" or "ArrowDown", as a reader's keyboard would."""
        codes = {"Tab": 9, "ArrowLeft": 37, "ArrowUp": 38, "ArrowRight": 39, "ArrowDown": 40}
        codes |= {"Space": 32, "Enter": 13, "Escape": 27}
        text = {"Space": " ", "Enter": "\r"}.get(key)
        for kind in ("keyDown", "keyUp"):
            self._ask(
                "Input.dispatchKeyEvent",
                type=kind,
                key=text or key,
                code=key,
                windowsVirtualKeyCode=codes[key],
                **({"text": text} if text and kind == "keyDown" else {}),
            )

    def point_at(self, place: str) -> None:
        """Move the mouse to the middle of the element at a CSS selector."""
        middle = self.run(
            f"const box = document.querySelector({json.dumps(place)}).getBoundingClientRect();"
            "return {x: box.x + box.width / 2, y: box.y + box.height / 2}"
        )
        self._ask("Input.dispatchMouseEvent", type="mouseMoved", **middle)

    def click(self, place: str) -> str:
        """Click on the link at a CSS selector; the address of the tab that this opens."""
        before, end, again = self._tabs(), time.monotonic() + 180, 0.0
        # Said with every look: a busy page may load itself again, and then remembers nothing.
        find = f"const found = document.querySelector({json.dumps(place)});"
        # The middle of the link's first line, while it is there and nothing hides it. JupyterLab
        # says only after it drew a link that it opens a tab: until then the page itself would go.
        on_top = find + (
            "const box = found?.target === '_blank' && found.getClientRects()[0];"
            "const spot = box && {x: box.x + box.width / 2, y: box.y + box.height / 2};"
            "return spot && found.contains(document.elementFromPoint(spot.x, spot.y)) ? spot : null"
        )
        while not (
            opened := [url for tab, url in self._tabs().items() if url and tab not in before]
        ):
            if time.monotonic() > end:
                over = "found && document.elementFromPoint(spot.x, spot.y)?.outerHTML.slice(0, 300)"
                seen = self.run(f"{on_top.rpartition('return')[0]} return spot && {over}")
                raise AssertionError(f"{place} opens no tab; on top of it: {seen}")
            if time.monotonic() > again:  # a busy page moves on, or lets a click pass
                again, clicked = time.monotonic() + 5, False
                self.press("Escape")  # what a busy server asks in a box of its own
                self.run(f"{find} found?.scrollIntoView({{block: 'center'}})")
            if not clicked and (spot := self.run(on_top)):
                clicked = True
                for kind in ("mousePressed", "mouseReleased"):
                    how = {"type": kind, "button": "left", "clickCount": 1}
                    self._ask("Input.dispatchMouseEvent", **how, **spot)
            time.sleep(0.1)
        return opened[0]

    def _tabs(self) -> dict[str, str]:
        """The addresses of all tabs."""
        found = self._ask("Target.getTargets")["targetInfos"]
        return {each["targetId"]: each["url"] for each in found if each["type"] == "page"}

    def photograph(self, path: Path, height: int = 0) -> None:
        """The whole page as a PNG file, or its upper `height` pixels."""
        # The window grows for the picture, and what slides to its new place would be caught midway.
        self.run(
            "document.head.insertAdjacentHTML('beforeend',"
            "  '<style>*, *::before, *::after { transition: none !important; }</style>')"
        )
        size = self._ask("Page.getLayoutMetrics")["cssContentSize"]
        size |= {"height": height or size["height"]}
        picture = self._ask(
            "Page.captureScreenshot", captureBeyondViewport=True, clip={**size, "scale": 1}
        )
        Path(path).write_bytes(base64.b64decode(picture["data"]))

    def violations(self, rules: Sequence[str] = WCAG, outside: str = "") -> list[str]:
        """What axe finds against WCAG 2.1 AA on the page shown: rule, place, markup, reason.

        With a CSS selector, only outside of what it selects.
        """
        self.run(
            "document.querySelectorAll('details').forEach(each => { each.open = true; });"
            # what is not laid out yet has no place, and would seem to lie on something else
            "document.querySelectorAll('section').forEach("
            "  each => { each.style.contentVisibility = 'visible'; });"
            "await new Promise(requestAnimationFrame);"
            "document.getAnimations().forEach(each => each.finish());"  # opened contents fade in
        )
        if not self.run("return 'axe' in window"):
            self._ask("Runtime.evaluate", expression=AXE.read_text("utf-8"))
        found = self.run(
            f"return (await axe.run({{exclude: {json.dumps([outside] if outside else [])}}}, {{"
            f"  runOnly: {json.dumps(rules)},"
            "  resultTypes: ['violations'],"
            "})).violations"
        )
        return [
            f"{rule['id']}: {' '.join(map(str, node['target']))}: {node['html'][:200]}: "
            f"{node['failureSummary']}"
            for rule in found
            for node in rule["nodes"]
        ]


# Where the focus is now, unless it is nowhere: its name, and whether one sees it.
FOCUS = """
    const at = document.activeElement, all = [at, at.nextElementSibling, ...at.children];
    if (at === document.body) return null;
    (window.reached ??= new Set()).add(at);
    const look = () => {
        document.getAnimations().forEach(each => each.finish());
        return all.filter(Boolean).map(each => {
            const style = getComputedStyle(each);
            return [style.outlineStyle, style.boxShadow, style.borderColor];
        }).join();
    };
    const focused = look();
    at.blur();
    const name = at.ariaLabel || at.textContent.trim() || at.outerHTML.slice(0, 200);
    return [name, look() !== focused];"""

# What a keyboard should reach: all that is shown and can be used; of radio buttons the chosen one.
MISSED = """
    const places = "a[href], button, input, select, textarea, summary, [tabindex='0']";
    return [...document.querySelectorAll(places)].filter(each =>
        !each.matches(":disabled") && each.tabIndex >= 0
        && each.checkVisibility({visibilityProperty: true})
        && (each.type !== "radio" || each.checked) && !reached.has(each)
    ).map(each => each.outerHTML.slice(0, 200));"""


def walk(tab: Browser) -> tuple[dict[str, bool], list[str]]:
    """Press Tab from the first to the last stop of the page shown.

    Returns:
        Name of each stop -> whether one sees that the focus is there; and what was not reached.
    """
    stops = {}
    while not (tab.press("Tab") or (at := tab.run(FOCUS)) is None):
        name, shown = at
        stops[name] = stops.get(name, True) and shown
        assert len(stops) < 5000, "the focus goes in circles"
    return stops, tab.run(MISSED)


@contextmanager
def browser(folder: Path):
    """Start Chromium with a new profile in `folder`."""
    profile = Path(folder) / "profile"
    switches = "headless no-sandbox disable-gpu disable-quic no-first-run hide-scrollbars "
    switches += "disable-background-networking disable-component-update disable-sync "
    switches += f"remote-debugging-port=0 user-data-dir={profile}"
    process = subprocess.Popen(
        [BROWSER, *(f"--{switch}" for switch in switches.split()), STAY],
        stdout=subprocess.DEVNULL,
        stderr=subprocess.DEVNULL,
    )
    try:
        told = profile / "DevToolsActivePort"
        end = time.monotonic() + 120
        while not (told.exists() and told.read_text().count("\n")):
            assert process.poll() is None and time.monotonic() < end, "the browser does not start"
            time.sleep(0.05)
        port, address = told.read_text().split()
        yield Browser(f"ws://127.0.0.1:{port}{address}")
    finally:
        process.terminate()
        process.wait(20)
        shutil.rmtree(profile, ignore_errors=True)


def look_at(page: Path, script: str, folder: Path, width: int = 390):
    """Open `page` in a window `width` pixels wide, run `script` on it, return what it returns."""
    with browser(folder) as tab:
        tab.open(page, width)
        return tab.run(f"const page = document; {script}")


def violations(page: Path, folder: Path, theme: str = "light") -> list[str]:
    """What axe finds on one page."""
    with browser(folder) as tab:
        tab.open(page, theme=theme)
        return tab.violations()


# Of each formula that is cut off at its box, how many pixels its ink stays away from the cut.
ROOM = """[...document.querySelectorAll("math")].flatMap(formula => {
  const cut = [formula, formula.parentElement].find(
    each => getComputedStyle(each).overflowY !== "visible");
  if (!cut) return [];
  const box = cut.getBoundingClientRect();
  return [...formula.querySelectorAll("mi, mo, mn, mtext, msqrt")]
    .map(letter => letter.getBoundingClientRect()).filter(ink => ink.height)
    .flatMap(ink => [ink.top - box.top, box.bottom - ink.bottom]);
})"""


# Most of a page are the words of its code. Of those of a block with the same tag in the same tag,
# keep the longest (axe passes over a letter that stands alone): it takes two thirds of the time.
ONE_OF_EACH = """
    const tag = each => each.cloneNode().outerHTML;
    document.querySelectorAll(".highlight pre").forEach(block => {
        const kept = new Set(), words = [...block.querySelectorAll("span:not(:has(*))")];
        words.sort((one, other) => other.textContent.length - one.textContent.length);
        words.forEach(word => {
            const look = tag(word.parentElement) + tag(word);
            if (kept.has(look)) word.replaceWith(...word.childNodes);
            kept.add(look);
        });
    });"""


def audit(
    pages: Iterable[Path], folder: Path, closely: Sequence[Path]
) -> dict[tuple[Path, str, int], dict]:
    """Look at many pages with one browser, on a telephone and on a desktop.

    axe looks at every page on a telephone; at some also at what surrounds the article in a wide
    window, and at the colors in the dark, both the same everywhere. `make pictures` looks at all,
    and at each word of the code.

    Returns:
        (page, theme, width of the window) -> {"width": pixels the page needs, "formulas": how many
        there are, "set": how many of them are seen, "room": pixels between the ink of a
        formula and where it is cut off, at least, "errors": of scripts, "violations": axe's}.
    """
    seen = {}
    with browser(folder) as tab:
        for page in pages:
            tab.open(page, width=390, theme="light")
            for theme in ("light", "dark") if page in closely else ("light",):
                # as the button does it: a page is not made anew
                tab.run(f"document.documentElement.dataset.theme = '{theme}'")
                for width, outside in ((390, ""), (1280, "article")):
                    tab.resize(width)
                    found = seen[page, theme, width] = tab.run(
                        f"""return {{
                            width: document.documentElement.scrollWidth,
                            formulas: document.querySelectorAll(".math").length,
                            set: [...document.querySelectorAll(".math > math")].filter(
                                each => each.getClientRects().length).length,
                            room: Math.min(99, ...{ROOM}),
                            errors,
                        }};"""
                    )
                    if page in closely or width == 390:
                        rules = WCAG if theme == "light" else COLORS
                        tab.run(ONE_OF_EACH)
                        found["violations"] = tab.violations(rules, outside)
    return seen
