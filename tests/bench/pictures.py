"""Photograph every page of the built book, ask axe about it, walk through it: `make pictures`.

    python tests/bench/pictures.py [PAGE ...] [--no-axe | --no-pictures]

Pictures go to `_build/pictures/<page>-{desktop,phone,dark,paper}.png`: 1440 pixels wide, 390 pixels
wide, dark, and as it is printed. axe looks at each page at 1440, 768 and 390 pixels, light and
dark, with all that is folded open. Then Tab is pressed from the first to the last link, button and
figure. What axe finds against WCAG 2.1 AA, what Tab does not reach, and where one does not see
that the focus is there, is printed, and then the script fails.
"""

import argparse
import sys
import tempfile
import time
from pathlib import Path

sys.path.insert(0, str(Path(__file__).parent.parent))

from browser import COLORS, WCAG, Browser, browser, walk

ROOT = Path(__file__).parent.parent.parent
HTML = ROOT / "_build" / "html"
OUT = ROOT / "_build" / "pictures"

WIDTHS = (1440, 768, 390)
A4 = 794  # its width in pixels of CSS


def whole(tab: Browser) -> None:
    """Load and lay out what waits for its reader."""
    tab.run(
        "document.querySelectorAll('section').forEach("
        "  each => { each.style.contentVisibility = 'visible'; });"
        "document.querySelectorAll('img').forEach(each => { each.loading = 'eager'; });"
        "await Promise.all([...document.images].map(each => each.decode().catch(() => {})));"
    )


def name_of(page: Path) -> str:
    """E.g. "06_masking"; "mistakes-masking" in the gallery."""
    return "-".join(page.relative_to(HTML).with_suffix("").parts).removeprefix("book-")


def photograph(tab: Browser, page: Path) -> None:
    for name, width, theme in (
        ("desktop", 1440, "light"),
        ("phone", 390, "light"),
        ("dark", 1440, "dark"),
    ):
        tab.open(page, width=width, theme=theme)
        whole(tab)
        tab.photograph(OUT / f"{name_of(page)}-{name}.png")
    tab.open(page, width=A4)
    tab.run("dispatchEvent(new Event('beforeprint'))")
    whole(tab)
    tab._ask("Emulation.setEmulatedMedia", media="print")
    tab.photograph(OUT / f"{name_of(page)}-paper.png")


def barriers(tab: Browser, page: Path) -> list[str]:
    """What axe finds at all widths, in both themes; colors at each, the rest once a width."""
    found = []
    for theme in ("light", "dark"):
        tab.open(page, width=WIDTHS[0], theme=theme)
        for width in WIDTHS:
            tab.resize(width)
            time.sleep(0.6)  # the theme looks again which boxes can be scrolled
            seen = tab.violations(WCAG if theme == "light" else COLORS)
            found += [f"{name_of(page)}, {width} pixels, {theme}: {each}" for each in seen]
            wide = tab.run("return document.documentElement.scrollWidth")
            if wide > width:
                found.append(f"{name_of(page)}, {width} pixels: the page is {wide} pixels wide")
    return found


def unreached(tab: Browser, page: Path) -> list[str]:
    """What who has only a keyboard does not reach, or reaches without seeing it."""
    tab.open(page)
    whole(tab)
    tab.run("document.querySelectorAll('details').forEach(each => { each.open = true; });")
    stops, missed = walk(tab)
    print(f"{name_of(page)}: {len(stops)} stops of the keyboard")
    return [f"no focus is seen at {name}" for name, shown in stops.items() if not shown] + [
        f"Tab does not reach {each}" for each in missed
    ]


def main() -> int:
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("page", nargs="*", help="its name, e.g. 03_scaled_dot_product; all if none")
    parser.add_argument("--no-axe", action="store_true", help="pictures only")
    parser.add_argument("--no-pictures", action="store_true", help="axe and keyboard only")
    options = parser.parse_args()
    OUT.mkdir(parents=True, exist_ok=True)
    pages = [*sorted((HTML / "book").rglob("*.html")), HTML / "search.html"]
    pages = [page for page in pages if not options.page or name_of(page) in options.page]
    found = []
    for page in pages:  # a new browser for each: a tab keeps its memory
        with tempfile.TemporaryDirectory() as folder, browser(Path(folder)) as tab:
            if not options.no_pictures:
                photograph(tab, page)
            seen = [] if options.no_axe else barriers(tab, page) + unreached(tab, page)
        print(name_of(page), *seen, sep="\n", flush=True)
        found += seen
    print(f"{len(pages)} pages, {len(found)} barriers; pictures in {OUT}")
    return bool(found)


if __name__ == "__main__":
    sys.exit(main())
