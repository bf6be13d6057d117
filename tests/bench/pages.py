"""Weigh pages of the built book as a telephone gets them, in one build or in several side by side.

    python tests/bench/pages.py now=_build/html
    python tests/bench/pages.py before=../old/_build/html now=_build/html > tests/bench/pages.md

A server that compresses, 412 pixels, a processor four times slower, slow 4G (1.6 Mbit/s, 150 ms),
nothing in the cache; the builds take turns. A page is first opened, then read to its end, so that
pictures that wait for their reader count, too. Columns, medians over the rounds:

requests, kB      what was sent, the page included (1 kB = 1000 bytes, compressed, with headers)
to its end        the same once the page was scrolled through
first paint       seconds until something is seen
main thread       seconds in which the page's thread was busy until nothing more happened
shift             cumulative layout shift (https://web.dev/articles/cls), reading included
errors            of scripts
"""

import argparse
import gzip
import http.server
import statistics
import sys
import tempfile
import threading
import time
from contextlib import contextmanager
from functools import cache, partial
from pathlib import Path

sys.path.insert(0, str(Path(__file__).parent.parent))

from browser import Browser, browser

PAGES = ("index", "about", "01_bottleneck", "03_scaled_dot_product", "07_cross_attention")
COMPRESSED = {".html", ".css", ".js", ".svg", ".json", ".txt"}

WATCH = """
    window.seen = {shift: 0, errors: 0};
    addEventListener('error', () => { seen.errors += 1; });
    new PerformanceObserver(list => list.getEntries().forEach(each => {
      if (!each.hadRecentInput) seen.shift += each.value;
    })).observe({type: 'layout-shift', buffered: true});"""
SENT = """
    const all = ['navigation', 'resource'].flatMap(kind => performance.getEntriesByType(kind));
    return [all.length, all.reduce((sum, each) => sum + each.transferSize, 0) / 1000];"""
SCROLL = """
    for (let y = 0; y < document.documentElement.scrollHeight; y += 700) {
      scrollTo({top: y, behavior: 'instant'});
      await new Promise(done => setTimeout(done, 100));
    }"""


@cache
def compressed(path: Path) -> bytes:
    return gzip.compress(path.read_bytes())


class Compressing(http.server.SimpleHTTPRequestHandler):
    protocol_version = "HTTP/1.1"

    def do_GET(self) -> None:
        path = Path(self.translate_path(self.path))
        if not path.is_file():
            return self.send_error(404)
        small = path.suffix in COMPRESSED
        body = compressed(path) if small else path.read_bytes()
        self.send_response(200)
        self.send_header("Content-Type", self.guess_type(path))
        if small:
            self.send_header("Content-Encoding", "gzip")
        self.send_header("Content-Length", str(len(body)))
        self.end_headers()
        self.wfile.write(body)

    def log_message(self, *_) -> None:
        pass


@contextmanager
def served(folder: Path):
    """The address at which a server shows a folder."""
    handler = partial(Compressing, directory=str(folder.resolve()))
    with http.server.ThreadingHTTPServer(("127.0.0.1", 0), handler) as server:
        threading.Thread(target=server.serve_forever, daemon=True).start()
        yield f"http://127.0.0.1:{server.server_port}"
        server.shutdown()


def busy(tab: Browser) -> float:
    """Seconds in which the page's thread has worked until now."""
    metrics = tab._ask("Performance.getMetrics")["metrics"]
    return next(each["value"] for each in metrics if each["name"] == "TaskDuration")


def settled(tab: Browser) -> float:
    """Wait until the page's thread has rested for a second; how long it has worked."""
    before, end = -1.0, time.monotonic() + 120
    while (now := busy(tab)) - before > 0.1 and time.monotonic() < end:
        before = now
        time.sleep(1)
    return now


def weigh(tab: Browser, address: str) -> tuple[float, ...]:
    tab.open("data:text/html,", width=412)
    for domain in ("Network", "Performance"):
        tab._ask(f"{domain}.enable")
    tab._ask("Network.clearBrowserCache")
    tab._ask("Emulation.setCPUThrottlingRate", rate=4)
    speed = 1.6e6 / 8  # bytes a second
    tab._ask(
        "Network.emulateNetworkConditions",
        offline=False,
        latency=150,
        downloadThroughput=speed,
        uploadThroughput=speed / 2,
    )
    tab._ask("Page.addScriptToEvaluateOnNewDocument", source=WATCH)
    started = busy(tab)
    tab._ask("Page.navigate", url=address)
    tab.wait("location.protocol !== 'about:' && document.readyState === 'complete'", 120)
    thread = settled(tab) - started
    opened = tab.run(SENT)
    paint = tab.run(
        "return performance.getEntriesByName('first-contentful-paint')[0].startTime / 1000"
    )
    tab.run(SCROLL)
    settled(tab)
    read = tab.run(SENT)
    seen = tab.run("return seen")
    return *opened, *read, paint, thread, seen["shift"], seen["errors"]


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("build", nargs="+", help="NAME=FOLDER of the built book's pages")
    parser.add_argument("--page", nargs="*", default=PAGES)
    parser.add_argument("--rounds", type=int, default=3)
    options = parser.parse_args()
    builds = {name: Path(folder) for name, _, folder in (b.partition("=") for b in options.build)}

    print("| page | build | requests | kB | to its end: requests | kB ", end="")
    print("| first paint s | main thread s | shift | errors |")
    print("|---|---|" + "---:|" * 8)
    for page in options.page:
        rounds = {name: [] for name in builds}
        for _ in range(options.rounds):
            for name, folder in builds.items():
                with (
                    tempfile.TemporaryDirectory() as place,
                    served(folder) as server,
                    browser(Path(place)) as tab,
                ):
                    rounds[name].append(weigh(tab, f"{server}/book/{page}.html"))
        for name, found in rounds.items():
            cells = [statistics.median(column) for column in zip(*found, strict=True)]
            form = "| {:.0f} | {:,.0f} | {:.0f} | {:,.0f} | {:.1f} | {:.1f} | {:.3f} | {:.0f} |"
            print(f"| {page} | {name} " + form.format(*cells), flush=True)


if __name__ == "__main__":
    main()
