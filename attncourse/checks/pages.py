"""Where a section of the book is: its published page, and the page built on this computer.

The address of the book stands in `_config.yml`, and the titles of its sections on the pages. An
installed package has neither, so both are kept with it:

    python -m attncourse.checks.pages
"""

import functools
import json
import re
from pathlib import Path

from attncourse.checks.task import Chapter, Task

KEPT = Path(__file__).parent.parent / "data" / "pages.json"
BOOK = "book/"  # with this begins the page of a chapter of ours


@functools.cache
def _kept() -> dict:
    return json.loads(KEPT.read_text(encoding="utf-8"))


def address(page: str, section: str = "") -> str:
    """The published page of a chapter, at a section; an outside package's own, or "" if none."""
    if page.startswith(BOOK):
        page = f"{_kept()['address']}/{page}.html"
    return f"{page}#{section}" if page and section else page


def in_gallery(task: Task, id: str, near: bool = False) -> str:
    """Where the book's gallery shows a misconception beside the right answer; "" outside of it."""
    ours = task.page.startswith(BOOK)
    return _at(f"{BOOK}mistakes/{task.chapter}", id, near) if ours else ""


def title(chapter: Chapter, section: str) -> str:
    """A section's title, or where none is kept, e.g. "chapter 3, why scale"."""
    return _title(chapter, section) or f"{chapter.place}, {section.replace('-', ' ')}"


def words(chapter: Chapter, section: str) -> str:
    """The same with its chapter, e.g. "chapter 3, “Why divide by √d?”"."""
    known = _title(chapter, section)
    return f"{chapter.place}, “{known}”" if known else title(chapter, section)


def _title(chapter: Chapter, section: str) -> str:
    return _kept()["titles"].get(chapter.page, {}).get(section, "")


def built(page: str) -> Path | None:
    """The page in the book built in this folder or one above it, if there is one."""
    here = Path.cwd()
    places = (folder / "_build" / "html" / f"{page}.html" for folder in (here, *here.parents))
    return next((place for place in places if page and place.is_file()), None)


def _at(page: str, section: str, near: bool) -> str:
    """The page's address, on this computer if `near` and built."""
    if near and (place := built(page)):
        return f"{place.as_uri()}#{section}"
    return address(page, section)


def read_again(task: Task, section: str, id: str = "", near: bool = False) -> str:
    """What a terminal shows: a section's title and address, and where the gallery has the id.

    Of the pages on this computer if `near`.
    """
    where, gallery = _at(task.page, section, near), in_gallery(task, id, near)
    text = f"Read again: {words(task.home, section)}" + f"\n  {where}" * bool(where)
    return text + f"\n{id} beside the right answer:\n  {gallery}" * bool(id and gallery)


def of_sources(folder: Path, chapters: list[Chapter]) -> dict:
    """What is kept with the package, from the course's folder."""
    import yaml  # only those who write the course need it

    config = yaml.safe_load((folder / "_config.yml").read_text(encoding="utf-8"))
    titles = {}
    for chapter in chapters:
        text = (folder / f"{chapter.page}.md").read_text(encoding="utf-8")
        titles[chapter.page] = dict(re.findall(r"^\((.+)\)=\n+#+ (.+)$", text, re.MULTILINE))
    return {"address": config["html"]["baseurl"].rstrip("/"), "titles": titles}


def main() -> None:
    from attncourse.checks import registry

    found = of_sources(Path(), list(registry.chapters().values()))
    KEPT.write_text(json.dumps(found, ensure_ascii=False, indent=1) + "\n", encoding="utf-8")


if __name__ == "__main__":
    main()
