"""The README's picture, from the built book: a page, and a report of the judge."""

import tempfile
from pathlib import Path

from browser import browser

ROOT = Path(__file__).parent.parent
PAGE = ROOT / "_build/html/book/03_scaled_dot_product.html"
PICTURE = ROOT / "book/_static/readme.png"

SIDE_BY_SIDE = """
const page = document.querySelector("article.bd-article");
const report = page.querySelector(".attn-report");
for (const each of page.querySelectorAll("img")) { each.loading = "eager"; await each.decode(); }
const frame = document.createElement("main");
frame.style = "display: flex; gap: 40px; width: 1400px; padding: 20px; background: white";
for (const each of [page, report]) {
  const half = document.createElement("div");
  half.className = "bd-content";
  half.style = "flex: 0 0 660px; height: 900px; overflow: hidden; position: relative";
  half.append(each.cloneNode(true));
  frame.append(half);
}
document.body.replaceChildren(frame);
"""


def main() -> None:
    with tempfile.TemporaryDirectory() as folder, browser(Path(folder)) as tab:
        tab.open(PAGE, width=1400)
        tab.run(SIDE_BY_SIDE)
        tab.photograph(PICTURE)
    print(f"{PICTURE.relative_to(ROOT)}: look at it")


if __name__ == "__main__":
    main()
