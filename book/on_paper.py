"""The whole book as one PDF, printed by Chromium from the built pages: `make pdf`.

On paper nothing can be opened, scrolled or clicked. So answers stand at the end of their chapter,
lines of code are wrapped, a link to another chapter also says its page, and a link to elsewhere
gets a number, under which its address stands at the end of the chapter.

Chromium cannot count the page of a link's target (`target-counter` of CSS). So the book is printed
until the numbers in it are those of its pages: two or three times.
"""

import os
import posixpath
import re
import shutil
import subprocess
import sys
from pathlib import Path
from urllib.parse import urlsplit

import yaml
from bs4 import BeautifulSoup

ROOT = Path(__file__).parent.parent
HTML = ROOT / "_build" / "html"
OUT = ROOT / "_build" / "pdf"

LEFT_OUT = "script, noscript, .headerlink, .copybtn, button.copybtn, .sd-summary-chevron-right"

WHOLE = 15  # lines of a listing that stay on one page

SHEET = Path(__file__).with_suffix(".css")


def pages() -> list[tuple[str, str]]:
    """Caption of the part, and name of each page, in the order of the book."""
    contents = yaml.safe_load((ROOT / "_toc.yml").read_text("utf-8"))
    found = [("", contents["root"])]

    def visit(caption, chapters):
        for chapter in chapters:
            found.append((caption, chapter["file"]))
            visit(caption, chapter.get("sections", []))

    for part in contents["parts"]:
        visit(part["caption"], part["chapters"])
    return found


def article(name: str):
    soup = BeautifulSoup((HTML / f"{name}.html").read_text("utf-8"), "html.parser")
    found = soup.select_one("article")
    for each in found.select(LEFT_OUT):
        each.decompose()
    for each in found.select("a.term"):
        each.unwrap()
    for each in found.select(".attn-report .was-h5"):
        each["role"] = "presentation"  # thousands of them would fill the file's outline
    for box in found.select(".cell_input, div[class*=highlight-]"):
        if not box.find_parent(class_="cell_input"):
            if box.get_text().strip().count("\n") < WHOLE:
                box["class"].append("whole")
            else:
                box.insert_before(BeautifulSoup('<div class="room"></div>', "html.parser"))
    return found


def add(parent, tag: str, text: str = "", **attributes):
    """A new element at the end of another one."""
    new = BeautifulSoup("", "html.parser").new_tag(tag, attrs=attributes)
    new.string = text
    parent.append(new)
    return new


def say_page(link) -> None:
    """A place behind a link, and behind its 's, for the page of its target."""
    mark = add(link.parent, "span", **{"class": "page", "data-of": link["href"][1:]})
    after = link.next_sibling
    if str(after)[:2] in ("’s", "'s"):
        link.append(str(after)[:2])
        after.replace_with(str(after)[2:])
    link.insert_after(mark)


def answers_to_the_end(chapter) -> None:
    """Open what is folded, and move answers behind the chapter's last section."""
    for each in chapter.find_all("details"):
        each["open"] = ""
    folded = [
        each
        for each in chapter.find_all("details")
        if each.summary.get_text(strip=True) == "Answer"
    ]
    if not folded:
        return
    section = add(chapter, "section", **{"class": "answers"})
    add(section, "h2", "Answers")
    for number, each in enumerate(folded, 1):
        place = f"{chapter['id']}--answer-{number}"
        answer = add(section, "div", **{"class": "answer", "id": place})
        asked = add(answer, "h4")
        add(asked, "a", f"Answer {number}", href=f"#{place}-asked")
        answer.extend(part for part in list(each.children) if part is not each.summary)
        mark = add(chapter, "p", id=f"{place}-asked")
        add(mark, "a", f"→ Answer {number}, at the end of the chapter", href=f"#{place}")
        each.replace_with(mark)


def join(chapters: dict) -> None:
    """Make ids differ and links lead to where their target is now."""
    renamed, taken = {}, set()
    for name, chapter in chapters.items():
        renamed[name] = {"": name}
        for each in chapter.find_all(id=True):
            old = each["id"]
            each["id"] = f"{name}--{old}" if old in taken else old
            renamed[name][old] = each["id"]
            taken.add(each["id"])
    baseurl = yaml.safe_load((ROOT / "_config.yml").read_text("utf-8"))["html"]["baseurl"]
    for name, chapter in chapters.items():
        folder = posixpath.dirname(name)
        for each in chapter.find_all(src=True):
            if not each["src"].startswith("data:"):
                each["src"] = posixpath.normpath(f"../html/{folder}/{each['src']}")
            each.attrs.pop("loading", None)
        outside = {}
        for link in chapter.find_all("a", href=True):
            parts = urlsplit(link["href"])
            page = posixpath.normpath(posixpath.join(folder, parts.path)) if parts.path else name
            target = page.removesuffix(".html")
            if not parts.scheme and target in renamed:
                place = renamed[target].get(parts.fragment, parts.fragment or target)
                link["href"] = f"#{place}"
                answer = "--answer-" in place and not place.endswith("-asked")
                if link.get_text(strip=True) and (target != name or answer):
                    say_page(link)
                continue
            address = link["href"] if parts.scheme else f"{baseurl}/{page}"
            link["href"] = address
            if link.get_text(strip=True) and link.get_text(strip=True) != address:
                number = outside.setdefault(address, len(outside) + 1)
                mark = add(chapter, "sup", str(number), **{"class": "link"})
                link.insert_after(mark)
        if outside:
            section = add(chapter, "section", **{"class": "links"})
            add(section, "h2", "Links")
            listed = add(section, "ol", **{"class": "links"})
            for address in outside:
                add(add(listed, "li"), "a", address, href=address)


def whole_book() -> BeautifulSoup:
    title = yaml.safe_load((ROOT / "_config.yml").read_text("utf-8"))
    book = BeautifulSoup(
        f'<!DOCTYPE html><html lang="en" data-theme="light" data-mode="light"><head>'
        f'<meta charset="utf-8"><title>{title["title"]}</title>'
        f'<link rel="stylesheet" href="../html/_static/book.css">'
        f'<link rel="stylesheet" href="../html/_static/live/live.css">'
        f"<style>{SHEET.read_text('utf-8')}</style></head>"
        f'<body><div class="title-page"><h1>{title["title"]}</h1><p>{title["author"]}, '
        f'{title["copyright"]}</p><p>{title["html"]["baseurl"]}</p></div><nav class="all-pages">'
        f'<h2>Contents</h2></nav><main class="bd-content"><div class="bd-article-container">'
        f"</div></main></body></html>",
        "html.parser",
    )
    chapters = {}
    for _, name in pages():
        chapters[name] = article(name)
        chapters[name]["id"] = name
        answers_to_the_end(chapters[name])
    join(chapters)
    contents, shown = book.select_one("nav"), None
    for caption, name in pages():
        if caption != shown:
            add(contents, "h3", caption)
        if caption != shown or shown is None:
            entries, shown = add(contents, "ul"), caption
        heading = " ".join(chapters[name].h1.get_text().split())
        level = "within" if name.count("/") > 1 else ""
        say_page(add(add(entries, "li", **{"class": level}), "a", heading, href=f"#{name}"))
        book.select_one(".bd-article-container").append(chapters[name])
    return book


def say_pages(book: BeautifulSoup, pages: dict[str, int]) -> None:
    for mark in book.select("span.page"):
        mark.string = f"p.\u00a0{pages.get(mark['data-of'], '000')}"


def pages_in(printed: Path) -> dict[str, int]:
    """Where each link of a PDF file leads: id -> page. Chromium writes both as plain text."""
    text = printed.read_bytes()
    pages = re.findall(rb"\n(\d+) 0 obj\n<</Type /Page\n", text)
    number = {page: count for count, page in enumerate(pages, 1)}

    def letters(name: bytes) -> str:
        return re.sub(rb"#(..)", lambda code: bytes.fromhex(code[1].decode()), name).decode()

    found = re.findall(rb"/(\S+) \[(\d+) 0 R /XYZ ", text)
    return {letters(name): number[page] for name, page in found}


def print_page(page: Path, printed: Path) -> None:
    chromium = shutil.which("chromium") or shutil.which("google-chrome")
    if chromium is None:
        sys.exit("Printing needs a browser: install the package `chromium`.")
    options = [
        "--headless",
        "--disable-gpu",
        "--no-pdf-header-footer",
        "--allow-file-access-from-files",
    ]
    options += ["--generate-pdf-document-outline", f"--print-to-pdf={printed}"]
    if hasattr(os, "geteuid") and os.geteuid() == 0:
        options.append("--no-sandbox")
    subprocess.run([chromium, *options, page.as_uri()], check=True, capture_output=True)


def main() -> None:
    OUT.mkdir(parents=True, exist_ok=True)
    page, printed = OUT / "book.html", OUT / "attention-from-the-bottleneck-up.pdf"
    book, said, found = whole_book(), None, {}
    for _ in range(4):
        if found == said:
            break
        said = found
        say_pages(book, said)
        page.write_text(str(book), "utf-8")
        print_page(page, printed)
        found = pages_in(printed)
    print(f"The book on paper: {printed.as_uri()}")
    fonts = shutil.which("fc-list") and subprocess.run(["fc-list", ":lang=zh"], capture_output=True)
    if fonts and not fonts.stdout:
        print("Without its Chinese letters: install a font that has them, e.g. fonts-noto-cjk.")


if __name__ == "__main__":
    main()
