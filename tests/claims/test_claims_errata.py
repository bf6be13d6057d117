"""The errata page counts and grades its own rows; here they are counted in another way."""

import re
from pathlib import Path

import pytest

PAGE = Path(__file__).parents[2] / "book" / "errata.md"
NOTES = "blog", "video", "article", "slides", "qa"


@pytest.fixture(scope="module")
def rows():
    """(note, number) -> kind, what the notes say, what is better."""
    found, note = {}, None
    for line in PAGE.read_text(encoding="utf-8").splitlines():
        if anchor := re.match(r"\(errata-(\w+)\)=", line):
            note = anchor[1]
        elif row := re.match(r"\| (\d+) \| ([^|]*) \| (.*) \| (.*) \|$", line):
            found[note, int(row[1])] = row.groups()[1:]
    return found


def test_each_row_has_a_number_of_its_own_and_one_of_three_kinds(rows):
    for note in NOTES:
        numbers = [number for each, number in rows if each == note]
        assert numbers == list(range(1, len(numbers) + 1)), note
    assert {kind for kind, _, _ in rows.values()} == {"slip", "*incomplete*", "**wrong**"}


def test_the_page_counts_all_its_rows(rows, monkeypatch):
    """What the page's hidden cell finds is what stands in the tables."""
    text = PAGE.read_text(encoding="utf-8")
    cell = re.search(
        r"```\{code-cell\} ipython3\n:tags: \[remove-cell\]\n(.*?)```", text, re.DOTALL
    )
    glued = {}
    monkeypatch.chdir(PAGE.parent)
    exec(
        cell[1], {"Path": Path, "re": re, "glue": lambda name, n, display: glued.update({name: n})}
    )
    kinds = [kind.strip("*") for kind, _, _ in rows.values()]
    names = {"wrong": "wrong", "incomplete": "incomplete", "slips": "slip"}
    assert glued == {"rows": len(rows)} | {name: kinds.count(k) for name, k in names.items()}
    for name in glued:
        assert f"{{glue:text}}`{name}`" in text


@pytest.mark.parametrize(
    ("note", "number", "half"),
    [
        ("blog", 2, "divided by the number of heads"),  # 除以头的数量
        ("video", 5, "the video's grid"),
        ("video", 11, "no later word can change an earlier one"),  # 不存在后值影响前值的问题
        ("video", 14, "in each layer"),  # 每层
        ("article", 9, "pseudo-code"),  # 伪代码
        ("article", 11, "in the form of a tuple"),  # 元组形式
        ("slides", 10, "each head is narrower"),  # 但单头维度降低
        ("slides", 18, "a special form of attention"),  # Attention的特殊形式
        ("qa", 8, "such as −∞"),  # 如负无穷
    ],
)
def test_a_row_quotes_the_half_sentence_that_speaks_for_the_notes(rows, note, number, half):
    kind, notes, better = rows[note, number]
    assert half in notes + better and kind != "**wrong**"
