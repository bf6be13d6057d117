"""The README's picture, from the built book: a wrong answer, and the judge's report on it."""

import tempfile
from pathlib import Path

from browser import browser

ROOT = Path(__file__).parent.parent
PAGE = ROOT / "_build/html/book/03_scaled_dot_product.html"
PICTURE = ROOT / "book/_static/readme.png"

SIDE_BY_SIDE = """
const figure = document.querySelector("form.judged"), cases = [...figure.querySelectorAll(".case")];
const chosen = cases.findIndex(each => each.textContent.includes("D-SOFTMAX-DIM"));
figure.querySelectorAll("input")[chosen].checked = true;
const answer = document.createElement("div");
answer.className = "case";
answer.style.display = "block";
answer.append(figure.querySelector(".choices"), cases[chosen].querySelector("pre"));
answer.querySelectorAll("pre, code").forEach(each => { each.style.fontSize = "15px"; });
figure.replaceChildren(answer, cases[chosen].querySelector(".attn-report"));
figure.style = "display: grid; grid-template-columns: 680px 580px; gap: 40px; padding: 30px";
figure.style.border = 0;
const page = document.createElement("main");
page.className = "bd-content";
page.style.background = "white";
document.head.append(...document.querySelectorAll("body style"));
page.append(figure);
document.body.replaceChildren(page);
"""


def main() -> None:
    with tempfile.TemporaryDirectory() as folder, browser(Path(folder)) as tab:
        tab.open(PAGE, width=1400)
        tab.run(SIDE_BY_SIDE)
        height = tab.run("return document.querySelector('main').offsetHeight")
        tab.photograph(PICTURE, height)
    print(f"{PICTURE.relative_to(ROOT)}: look at it")


if __name__ == "__main__":
    main()
