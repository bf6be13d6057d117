"""Ingest's promises: what students send is filed, repaired and accounted for; nothing escapes."""

import copy
import functools
import io
import json
import multiprocessing
import os
import re
import resource
import stat
import sys
import time
import zipfile
import zoneinfo
from pathlib import Path
from unittest import mock

import nbformat
import pytest
from conftest import ROOT
from corpus.zoo import ASSIGNMENT, CASES, NAME, built, cell_of, grade_id, right, source_of
from rich.console import Console
from typer.testing import CliRunner

from attncourse import cli
from attncourse.grading.inbox import archives, ingest, restore, senders, submission, writing

TARGET = f"submitted/{{}}/{ASSIGNMENT}/{NAME}"


@pytest.fixture(scope="module")
def here():
    with pytest.MonkeyPatch.context() as patch:
        patch.chdir(ROOT)
        return ingest.Course.here()


@pytest.fixture
def desk(here, tmp_path, monkeypatch):
    """A desk in an empty folder; it takes paths."""
    monkeypatch.chdir(tmp_path)

    def take(*places: Path | str, **options) -> dict[str, ingest.Filed]:
        clerk = ingest.Desk(here, **options)
        sent = archives.unpack(*map(Path, places))
        rows = ingest.settled([row for each in sent for row in clerk.take(each)])
        return {row.source if len(rows) > 1 else "": row for row in rows}

    return take


def text(content: dict) -> bytes:
    return json.dumps(content).encode()


def numbered(number: int) -> bytes:
    """A right notebook unlike the others."""
    content = right()
    content["cells"].append(
        {"cell_type": "markdown", "id": f"n{number}", "metadata": {}, "source": f"{number}"}
    )
    return text(content)


def zipped(files: dict[str, bytes], path: str = "sent.zip") -> str:
    with zipfile.ZipFile(path, "w", zipfile.ZIP_DEFLATED) as archive:
        for name, data in files.items():
            archive.writestr(name, data)
    return path


def filed() -> set[str]:
    return {path.parts[1] for path in Path("submitted").glob(f"*/{ASSIGNMENT}/{NAME}")}


# --- whose it is


METADATA = b"""---
submission_7:
  :submitters:
  - :name: Ann One
    :sid: '100'
    :email: ann@school.edu
  - :name: Two
    :sid:
    :email: two@school.edu
  :created_at: 2026-11-01 10:00:00.5 -08:00
submission_8: nonsense
"""


@pytest.mark.parametrize(
    ("path", "student", "file"),
    [
        # Canvas
        (f"smithbob_340934_208490284_{NAME}", "smithbob_340934", NAME),
        (f"doejane_LATE_12_345_{ASSIGNMENT}-2.ipynb", "doejane_12", NAME),
        (f"müllerjörg_12_345_Copy of {NAME}", "müllerjörg_12", f"Copy of {NAME}"),
        (f"LATE_anon_ab1c2_345_{NAME}", "anon_ab1c2", NAME),
        (f"garcia_900_901_hw.zip/work/{NAME}", "garcia_900", NAME),
        # Moodle
        (f"Jane Doe_123456_assignsubmission_file/{NAME}", "Jane_Doe_123456", NAME),
        (f"Jane Doe_123456_assignsubmission_file_/sub/{NAME}", "Jane_Doe_123456", NAME),
        (f"Participant 12_99_assignsubmission_file_{NAME}", "Participant_12_99", NAME),
        # Gradescope
        (f"assignment_1_export/submission_7/{NAME}", "100 two@school.edu", NAME),
        (f"assignment_1_export/submission_8/{NAME}", "", NAME),
        (f"assignment_1_export/submission_9/{NAME}", "", NAME),
        # Brightspace
        (f"100126-6203 - Di Four - Sep 13, 2026 900 AM/{NAME}", "Di_Four_100126", NAME),
        (f"100126-6203 - Di Four - Sep 13, 2026 900 AM - {NAME}", "Di_Four_100126", NAME),
        (f"100126-6203 - N0123 - Di Four - 13 mei 2026 0900/x/{NAME}", "Di_Four_100126", NAME),
        (f"100126-6203 - Di Four - Sep 13, 2026 900 AM - hw.zip/{NAME}", "Di_Four_100126", NAME),
        # Blackboard
        (f"Exercise_3_aone_attempt_2026-01-30-20-30-10_{NAME}", "aone", NAME),
        (f"Exercise 3_aone_attempt_2026-01-30-20-30-10_hw.zip/work/{NAME}", "aone", NAME),
        # Open edX
        (f"[1]Week 3, [2]Attention, [1]Unit/[1] - aone - {NAME}", "aone", NAME),
        ("Removed from course/[x] - 00f636b9ac6d480c - x.ipynb", "00f636b9ac6d480c", "x.ipynb"),
        (f"[1] - a_one - {NAME}", "a_one", NAME),
        # ILIAS, Sakai
        (f"One_Anna_aone_4711/{NAME}", "One_Anna_aone_4711", NAME),
        (f"One, Anna(aone)/Submission attachment(s)/{NAME}", "One_Anna_aone", NAME),
        # folders and names
        (f"jane/{NAME}", "jane", NAME),
        (f"jane/{ASSIGNMENT}/{NAME}", "jane", NAME),
        (f"{ASSIGNMENT}/jane/{NAME}", "jane", NAME),
        (f"jane/kim/{NAME}", "jane", NAME),
        (f"jane/kim_{NAME}", "jane", f"kim_{NAME}"),
        (f"हिन्दी/{NAME}", "हिन्दी", NAME),
        (f"jane.zip/{NAME}", "jane", NAME),
        (f"jane_1234_{NAME}", "jane_1234", f"jane_1234_{NAME}"),
        (f"Jane Doe - Copy of {NAME}", "Jane_Doe", f"Jane Doe - Copy of {NAME}"),
        (f"Jane Doe - Copy of Copy of {NAME}", "Jane_Doe", f"Jane Doe - Copy of Copy of {NAME}"),
        (f"Jane Doe - Kopie von {NAME}", "Jane_Doe", f"Jane Doe - Kopie von {NAME}"),
        (NAME, "", NAME),
        (f"{ASSIGNMENT} (1).ipynb", "", f"{ASSIGNMENT} (1).ipynb"),
    ],
)
def test_a_path_says_whose_it_is(path, student, file):
    base = int(path.startswith("assignment_1_export"))
    metadata = METADATA if base else b""
    sent = archives.Sent(tuple(path.split("/")), lambda: b"", base=base, metadata=metadata)
    found = senders.senders(sent, [ASSIGNMENT])
    assert " ".join(senders.safe_name(each.student) for each in found) == student
    assert {each.file for each in found} == {file}
    if "_7/" in path:
        assert {each.when.timestamp() for each in found} == {1793556000.5}


def test_a_roster_translates_and_refuses_strangers(desk):
    Path("roster.csv").write_text(
        "id,first_name,last_name,email,lms_user_id\n"
        "bob,Bob,Smith,b@school.edu,340934\njane,Jane,Doe,,12\njane2,Jane,Doe,,13\n"
    )
    zipped(
        {
            f"x_340934_1_{NAME}": numbered(1),  # by number
            f"Jane Doe_12_assignsubmission_file/{NAME}": numbered(2),
            f"Jane Doe/{NAME}": numbered(3),  # there are two
            f"smith/{NAME}": numbered(4),  # a part of a name is not enough
            f"b@school.edu/{NAME}": numbered(5),
        }
    )
    rows = desk("sent.zip", roster=senders.roster_in(Path("roster.csv")))
    assert filed() == {"bob", "jane"}
    assert [bool(row.outcome) for row in rows.values()] == [True, True, False, False, True]
    Path("bad.csv").write_text("name\nx\n")
    with pytest.raises(ingest.Refused, match="needs a column `id`"):
        senders.roster_in(Path("bad.csv"))
    for bad in ("last_name,id\nOne,ann\nTwo\n", "id,last_name\nann,One\n ,Two\n"):
        Path("bad.csv").write_text(bad)
        with pytest.raises(ingest.Refused, match="has no id in line 3"):
            senders.roster_in(Path("bad.csv"))


@pytest.mark.parametrize(
    "name", ["../../etc", "..", "/abs", "a/b", "con", "*[x]?", "a\u202eb\x1b[31m", "-rf", "x" * 999]
)
def test_a_students_name_becomes_a_folder_and_no_more(name):
    safe = senders.safe_name(name)
    assert not set(safe) & set("/\\*?[]:\x1b\u202e ") and len(safe.encode()) <= 101
    assert not safe.startswith((".", "-")) and safe.lower() != "con"
    assert safe or name == ".."


def test_two_students_never_share_a_folder(desk):
    zipped({f"Jane Doe/{NAME}": numbered(1), f"Jane_Doe/{NAME}": numbered(2)})
    rows = list(desk("sent.zip").values())
    assert rows[0].outcome == "filed" and "would share a folder" in rows[1].notes[0]


def test_names_are_read_as_the_page_for_teachers_says(desk):
    page = (ROOT / "book" / "teaching.md").read_text(encoding="utf-8")
    table = page[page.index("| from | for example") :].partition("\n\n")[0].splitlines()[2:]
    read = 0
    for line in table:
        examples, students = (re.findall("`(.+?)`", part) for part in line.split("|")[2:4])
        for example, student in zip(examples, students, strict=len(students) > 1):
            sent = archives.Sent(tuple(example.split("/")), None)
            (sender,) = senders.senders(sent, [ASSIGNMENT])
            assert senders.safe_name(sender.student) == student, line
            read += 1
    assert read == len(table)  # Gradescope's says nobody, and Drive's two


@pytest.mark.parametrize("roster", [False, True])
def test_a_folder_around_a_class_is_no_student(desk, roster):
    Path("roster.csv").write_text("id,email\naone,a@uni.edu\nbtwo,b@uni.edu\n")
    options = {"roster": senders.roster_in(Path("roster.csv"))} if roster else {}
    for around in ("hw3", f"{ASSIGNMENT}/hw3", "HW3 2026-01-30"):
        zipped({f"{around}/{who}_{NAME}": numbered(len(who + around)) for who in ("aone", "btwo")})
        assert {row.student for row in desk("sent.zip", **options).values()} == {"aone", "btwo"}
    zips = {f"hw3/{who}.zip": Path(zipped({f"x/{NAME}": numbered(1)}, "z.zip")).read_bytes()
            for who in ("aone", "btwo")}  # fmt: skip
    assert {row.student for row in desk(zipped(zips), **options).values()} == {"aone", "btwo"}
    assert filed() == {"aone", "btwo"}


def test_of_a_zip_of_a_drive_the_names_are_read_and_parts_of_one_are_refused(desk):
    names = [f"HW3/{who} - Copy of {NAME}" for who in ("Jane Doe", "Kim Lee")]
    zips = [zipped({name: numbered(n), f"HW3/x{n}_{NAME}": numbered(n + 2)},
                   f"HW3-20260913T100000Z-00{n}.zip") for n, name in enumerate(names)]  # fmt: skip
    rows = desk(*zips).values()
    assert not filed() and all("Its name holds a date" in row.notes[0] for row in rows)
    for place in zips:
        desk(place)
    assert filed() == {"Jane_Doe", "Kim_Lee", "x0", "x1"}


def test_names_of_course_systems_are_read_in_a_folder_around_them_all(desk):
    names = (f"smithbob_1_5_{NAME}", "lee_2_6_x.ipynb")
    sent = {f"submissions/{name}": numbered(n) for n, name in enumerate(names)}
    desk(zipped(sent | {"submissions/kim_3_7_x.pdf": b"%PDF"}))
    assert filed() == {"smithbob_1", "lee_2"}


def test_a_folder_around_files_that_name_nobody_is_refused_with_what_to_do(desk):
    rows = desk(zipped({f"hw3/{NAME}": numbered(1), "hw3/Untitled.ipynb": numbered(2)}))
    assert all("put each student's name before the file's" in row.notes[0] for row in rows.values())
    assert not filed() and len(rows) == 2
    assert all(row.outcome for row in desk("sent.zip", student="jane").values())
    zipped({"kim/a.ipynb": numbered(1), "kim/b.ipynb": numbered(2), "kim/old/c.ipynb": numbered(3)})
    assert not any(row.outcome for row in desk("sent.zip").values()) and filed() == {"jane"}


def test_brightspace_names_students_and_attempts(desk):
    later, earlier = (f"126-62 - Di Four - Sep 13, 2026 {t}/x.ipynb" for t in ("100 PM", "900 AM"))
    zipped({later: numbered(2), earlier: numbered(1), "index.html": b"<html>",
            f"127-62 - Ed Five - Sep 9, 2026 901 PM - {NAME}": numbered(3)})  # fmt: skip
    for _ in range(2):
        rows = desk("sent.zip")
        assert filed() == {"Di_Four_126", "Ed_Five_127"} and len(rows) == 3
        assert all(row.outcome and not row.doubt for row in rows.values())
        assert Path(TARGET.format("Di_Four_126")).read_bytes() == numbered(2)
        assert not list(Path("submitted").rglob("timestamp.txt"))  # whose clock is not known
    assert len(list(Path("submitted/Di_Four_126").rglob("*.ipynb.*"))) == 1
    zone = zoneinfo.ZoneInfo("Europe/Berlin")
    for _ in range(2):  # once more, when it is known
        desk("sent.zip", zone=zone)
        folder = Path(TARGET.format("Di_Four_126")).parent
        assert str(senders.timestamp_of(folder)) == "2026-09-13 11:00:00"
        assert len(list(folder.iterdir())) == 3
    desk(zipped({"126-62 - Di Four - Sep 12, 2026 100 PM/x.ipynb": numbered(4)}), zone=zone)
    assert Path(TARGET.format("Di_Four_126")).read_bytes() == numbered(2)


def test_blackboard_names_students_and_attempts(desk):
    def name(login: str, day: int, end: str) -> str:
        return f"Exercise_3_attention_{login}_attempt_2026-01-{day}-20-30-10{end}"

    sent = {
        name(who, day, end): numbered(day) if "x" in end[1:2] else b"Name: X (x)\n"
        for who, day in (("aone", 31), ("aone", 30), ("btwo", 30))
        for end in ("_x.ipynb", ".txt")
    }
    zipped(sent | {name("cten", 30, ".txt"): b"Name: Cy Ten (cten)\n"})
    rows = desk("sent.zip")
    assert filed() == {"aone", "btwo"}
    assert Path(TARGET.format("aone")).read_bytes() == numbered(31)
    (row,) = (row for row in rows.values() if not row.outcome)
    assert row.student == "cten" and "ask for the notebook" in row.notes[0]
    assert not any(row.doubt for row in rows.values())
    desk("sent.zip", zone=zoneinfo.ZoneInfo("UTC"))
    folder = Path(TARGET.format("aone")).parent
    assert str(senders.timestamp_of(folder)) == "2026-01-31 20:30:10"


@pytest.mark.parametrize("days", [("30", "31"), ("31", "30")])
@pytest.mark.parametrize("zone", [None, zoneinfo.ZoneInfo("UTC")])
def test_a_later_attempt_counts_though_it_is_empty_in_one_run_as_in_two(desk, days, zone):
    blank = (ROOT / "exercises" / ASSIGNMENT / NAME).read_bytes()
    sent = {"30": numbered(1), "31": blank}

    def name(login: str, day: str) -> str:
        return f"HW3_{login}_attempt_2026-01-{day}-20-30-10_{NAME}"

    desk(zipped({name("one", day): sent[day] for day in days}), zone=zone)
    if zone:  # else nobody knows in the second run when the first one was sent
        for day in days:
            desk(zipped({name("two", day): sent[day]}), zone=zone)
    for who in ("one", "two") if zone else ("one",):
        target = Path(TARGET.format(who))
        assert target.read_bytes() == blank
        assert target.with_name(f"{NAME}.1").read_bytes() == numbered(1)


def test_a_login_with_a_line_in_it_is_not_mixed_up_with_another(desk):
    names = [f"HW3_{who}_one_attempt_2026-01-30-20-30-10_{NAME}" for who in "ab"]
    zipped({name: numbered(n) for n, name in enumerate(names)})
    first, second = desk("sent.zip").values()
    assert first.student == "one" and "the accounts HW3_a_one and HW3_b_one" in second.notes[0]
    Path("roster.csv").write_text("id\na_one\nb_one\n")
    desk("sent.zip", roster=senders.roster_in(Path("roster.csv")))
    assert filed() == {"one", "a_one", "b_one"}


def test_open_edx_puts_a_class_into_a_folder(desk):
    unit = "[1]Week 3, [1]Attention, [2]Exercise"
    sent = {f"{who} - x.ipynb": numbered(len(who)) for who in ("aone", "a_two")}
    sent |= {"aone - prompt_0.txt": b"see the file", "cten - prompt_0.txt": b"I forgot"}
    zipped({f"{unit}/[1] - {name}": data for name, data in sent.items()}
           | {"submissions.csv": b"key\n"})  # fmt: skip
    rows = desk("sent.zip")
    assert filed() == {"aone", "a_two"}
    assert [row.student for row in rows.values() if not row.outcome] == ["cten"]
    rows = desk(zipped({"jane/[1] - aone - x.ipynb": numbered(3), f"kim/{NAME}": numbered(4)}))
    assert "its name is from a course system" in rows["jane/[1] - aone - x.ipynb"].notes[0]


def test_folders_in_a_folder_are_refused_by_the_name_of_what_to_give(desk):
    zipped(
        {f"Ex 3/Abgaben/{who}/{NAME}": numbered(len(who)) for who in ("One_A_aone_7", "T_B_b_8")}
    )
    (note,) = {row.notes[0] for row in desk("sent.zip").values()}
    assert "All lies in Ex 3/Abgaben:" in note and "give that by itself" in note and not filed()


ROSTER = """id,first_name,last_name,email,lms_user_id
aone,Anna,One,anna@uni.edu,100126
bob,Bo,Van Dam,,100127
anna,Cy,Ten,,20261234
"""


@pytest.mark.parametrize(
    ("name", "student"),
    [
        ("hw3 - 2026-01-30 20.30 - 100126", "aone"),
        ("30.01.2026 Bo Van Dam", "bob"),
        ("Exercise_attempt_2_anna@uni.edu", "aone"),
        ("One_Anna_aone_4711", "aone"),  # ILIAS: `anna` is another one's login
        ("One_Anna_x_4711", "aone"),
        ("Dam, Bo Van(bob)", "bob"),  # Sakai
        ("20261234 20260913T100000Z", "anna"),
        ("attempt 1 of 100126 for 100127", "parts of its name are aone and bob in the roster"),
        ("hw3 2026-01-30 20.30 zoe", "nobody in the roster is hw3 2026-01-30 20.30 zoe"),
        ("Ten_Anna_zoe_4711", "nobody in the roster is Ten_Anna_zoe_4711"),
        ("group 126", "nobody in the roster is group 126"),
    ],
)
def test_a_roster_knows_students_by_parts_of_unknown_names(desk, name, student):
    Path("roster.csv").write_text(ROSTER)
    zipped({f"{name}/{NAME}": numbered(1), f"bob/{NAME[:-6]} (1).ipynb": numbered(1)})
    rows = desk("sent.zip", roster=senders.roster_in(Path("roster.csv")))
    row = rows[f"{name}/{NAME}"]
    assert row.student == student or student in row.notes[0]
    rows = desk("sent.zip")
    if "2026" in name or "attempt" in name:
        assert "its name holds a date or an attempt" in rows[f"{name}/{NAME}"].notes[0].lower()
    else:
        assert rows[f"{name}/{NAME}"].outcome


@pytest.mark.parametrize(
    "name",
    ["jane_1234", "20201105", "2021-00123-MN-0", "jane2026", "Anna May", "s2026_1", "attempter"],
)
def test_a_number_alone_is_no_date(desk, name):
    zipped({f"{name}/{NAME}": numbered(1), f"kim/{NAME}": numbered(2)})
    desk("sent.zip")
    assert filed() == {senders.safe_name(name), "kim"}


# --- what it is


def restored(here, data: bytes) -> tuple[bytes, list[str]]:
    about, released = here.about[ASSIGNMENT], here.released[ASSIGNMENT]
    notebook = submission.notebook_of(data)
    names = restore.recognize(notebook.cells, about, released)
    made, notes = restore.restore(notebook, names, about, released)
    assert made.cells == submission.notebook_of(made.data).cells
    return made.data, notes


@pytest.mark.slow
@pytest.mark.parametrize("name", CASES)
def test_any_notebook_is_made_whole_and_keeps_what_was_written(here, name):
    released = here.released[ASSIGNMENT]
    for data in built(CASES[name]).values():
        if isinstance(data, str):
            continue
        try:
            texts = [submission.source_of(cell) for cell in submission.notebook_of(data).cells]
        except submission.Unreadable:
            continue
        whole, notes = restored(here, data)
        notebook = nbformat.reads(whole.decode(), as_version=4)
        nbformat.validate(notebook)
        assert [n for n in notes if "not made up" not in n] or whole == data
        again, more = restored(here, whole)
        assert again == whole and all("not made up" in note for note in more)
        marks = [cell.metadata.nbgrader for cell in notebook.cells if "nbgrader" in cell.metadata]
        expected = {grade_id(c): c["metadata"].get("nbgrader") for c in released["cells"]}
        assert len({mark.grade_id for mark in marks}) == len(marks)
        assert all(mark == expected[mark.grade_id] for mark in marks)
        for check in ("check", "hidden"):
            assert f"softmax-{check}" in {mark.grade_id for mark in marks}
        texts = [source_of({"source": source}) for source in texts]
        kept = iter(cell.source for cell in notebook.cells)
        assert all(text in kept for text in texts if text), "a cell is lost, or out of order"


def test_a_written_answer_is_found_by_the_question_above_it(here):
    content = right()
    cell_of(content, "why-scaled")["source"] = "Because of the variance."
    for cell in content["cells"]:
        cell["metadata"] = {"id": "x"}
        del cell["id"]
    content["nbformat_minor"] = 0
    data, notes = restored(here, text(content))
    assert cell_of(json.loads(data), "why-scaled")["source"] == "Because of the variance."
    assert notes == ["nbgrader's marks were gone from 13 cells; put back"]


def without_marks(content: dict) -> dict:
    content = copy.deepcopy(content)
    for cell in content["cells"]:
        cell["metadata"] = {}
        cell["source"] = source_of(cell).replace(f"attncourse: {ASSIGNMENT}", "")
    return content


SENT = {
    "as released": (NAME, text(right()), "filed"),
    "another name": ("Untitled.ipynb", text(right()), "it was named Untitled.ipynb"),
    "saved as text": (f"{NAME}.txt", text(right()), "it was named"),
    "saved as JSON": (f"{ASSIGNMENT}.json", text(right()), "it was named"),
    "no marks": (NAME, text(without_marks(right())), "marks were gone"),
    "no marks, no name": ("x.ipynb", text(without_marks(right())), "marks were gone"),
    "byte order mark": (NAME, b"\xef\xbb\xbf" + text(right()), "byte order mark"),
    "UTF-16": (NAME, text(right()).decode().encode("utf-16"), "filed"),
}
REFUSED = {
    "empty": (NAME, b"", "is empty; ask for it again"),
    "cut off": (NAME, b'{"cells": [', "its JSON is broken; ask for it again"),
    "conflict": (NAME, b"{\n<<<<<<< HEAD\n}\n", "merge conflict in it; ask for it again"),
    "all conflict": (NAME, b"<<<<<<< HEAD\n{}\n=======\n", "merge conflict"),
    "login": (NAME, b"<!DOCTYPE html><title>Log in</title>", "a web page of a login; ask for"),
    "printed": ("x.html", b"<html><pre>def softmax</pre></html>", "a printed notebook?"),
    "typed": ("x_1_text.html", b"<p>see drive</p>", "typed into the course system; ask for"),
    "script": ("x.py", b"def softmax(): pass", "a Python script; ask for the notebook"),
    "PDF": ("x.pdf", b"%PDF-1.7", "a PDF; ask for"),
    "PDF under a name": (NAME, b"%PDF-1.7", "a PDF; ask for"),
    "Word": ("x.docx", b"PK\x03\x04", "a text document; ask for"),
    "Word under a name": (NAME, b"PK\x03\x04word", "under another name; ask for"),
    "RAR": ("x.rar", b"Rar!", "an archive that is no zip; ask for"),
    "link": ("link.txt", b"https://colab.research.google.com/drive/1a", "a link to Colab; ask"),
    "damaged zip": ("x.zip", b"PK\x03\x04", "zip is damaged"),
    "another course": ("y.ipynb", text({"cells": [], "nbformat": 4}), "nothing in it is of an"),
    "nothing in it": (
        NAME,
        text({"cells": [], "nbformat": 4}),
        f"nothing in it is of {ASSIGNMENT}",
    ),
    "a list": (NAME, b"[1]", "not a notebook; ask for"),
}


@pytest.mark.parametrize("kind", SENT)
def test_a_notebook_is_filed_whatever_happened_to_it(desk, kind):
    name, data, said = SENT[kind]
    Path(name).write_bytes(data)
    (row,) = desk(name, student="jane").values()
    assert row.outcome == "filed" and said in "; ".join([row.outcome, *row.notes])
    notebook = nbformat.read(TARGET.format("jane"), as_version=4)
    assert "softmax-hidden" in {
        c.metadata.get("nbgrader", {}).get("grade_id") for c in notebook.cells
    }
    assert desk(name, student="jane")[""].outcome == "unchanged"


@pytest.mark.parametrize("kind", REFUSED)
def test_what_is_no_notebook_is_refused_with_what_to_ask_for(desk, kind):
    name, data, said = REFUSED[kind]
    Path(name).write_bytes(data)
    (row,) = desk(name, student="jane").values()
    assert not row.outcome and said in row.notes[0] and not filed()


def test_the_content_says_which_assignment(here):
    for name in here.about:
        data = (ROOT / "exercises" / name / f"{name}.ipynb").read_bytes()
        cells = submission.notebook_of(data).cells
        assert here.assignment_in(cells, "01_bottleneck.ipynb") == name
        bare = submission.notebook_of(text(without_marks({"cells": cells}))).cells
        assert here.assignment_in(bare, "x.ipynb") == name
        assert here.assignment_in([], f"Copy of {name} (2).ipynb") == name
    mixed = [{"source": f"# attncourse: {name}/x"} for name in list(here.about)[:2]]
    assert here.assignment_in(mixed, NAME) is None


def test_the_courses_notebooks_are_parsed_once(monkeypatch):
    monkeypatch.chdir(ROOT)
    with mock.patch.object(json, "loads", wraps=json.loads) as parses:
        course = ingest.Course.here()
    assert parses.call_count == 2 * len(course.about)


@pytest.mark.parametrize("name", ["right", "without marks"])
def test_a_file_is_opened_and_parsed_once(desk, name):
    content = right() if name == "right" else without_marks(right())
    Path(NAME).write_bytes(text(content))
    opened = mock.patch.object(archives.os, "open", wraps=os.open)
    parsed = mock.patch.object(json, "loads", wraps=json.loads)
    with opened as opens, parsed as parses:
        (row,) = desk(NAME, student="jane").values()
    assert row.outcome == "filed" and bool(row.notes) == (name != "right")
    assert sum(call.args[0] == Path(NAME) for call in opens.call_args_list) == 1
    assert parses.call_count == 1


def test_content_of_another_assignment_is_refused(desk):
    Path(NAME).write_bytes(text(right()))
    (row,) = desk(NAME, student="jane", assignment="06_masking").values()
    assert row.notes == [f"it is of {ASSIGNMENT}, not of 06_masking"]


# --- once more


def test_a_different_one_replaces_and_the_older_is_kept(desk):
    kept = Path(TARGET.format("jane") + ".1")
    Path(NAME).write_bytes(numbered(1))
    assert desk(NAME, student="jane")[""].outcome == "filed"
    Path(NAME).write_bytes(numbered(2))
    row = desk(NAME, student="jane")[""]
    assert row.outcome == "replaced" and kept.name in row.notes[-1]
    assert kept.read_bytes() == numbered(1)
    Path(NAME).write_bytes(numbered(1))  # the same folder of downloads again
    assert desk(NAME, student="jane")[""].outcome == "unchanged"
    assert Path(TARGET.format("jane")).read_bytes() == numbered(2)
    blank = (ROOT / "exercises" / ASSIGNMENT / NAME).read_bytes()
    Path(NAME).write_bytes(blank)
    row = desk(NAME, student="jane")[""]
    assert row.outcome == "set aside" and "nothing is answered in it" in row.notes[-1]
    assert kept.with_suffix(".2").read_bytes() == blank


@pytest.mark.parametrize("names", [("", " (1)"), (" (1)", "")])
def test_of_two_at_once_the_later_counts(desk, names):
    files = {f"jane/{ASSIGNMENT}{name}.ipynb": numbered(len(name)) for name in names}
    rows = desk(zipped(files))
    assert Path(TARGET.format("jane")).read_bytes() == numbered(4)
    assert len(rows) == 2 and all(row.outcome for row in rows.values())
    rows = desk("sent.zip")
    assert {row.outcome for row in rows.values()} == {"unchanged"}
    assert len(list(Path("submitted/jane").glob("*/*"))) == 2


def test_the_time_that_gradescope_knows_is_kept_and_compared(desk):
    def export(time: str, data: bytes) -> str:
        metadata = METADATA.replace(b"10:00", time.encode())
        folder = "assignment_1_export"
        return zipped({f"{folder}/submission_metadata.yml": metadata,
                       f"{folder}/submission_7/{NAME}": data}, f"{time[:2]}.zip")  # fmt: skip

    from attncourse.grading.inbox.senders import timestamp_of

    stamp = Path(TARGET.format("100")).parent
    desk(export("10:00", numbered(1)))
    assert str(timestamp_of(stamp)) == "2026-11-01 18:00:00.500000"
    assert filed() == {"100", "two@school.edu"}
    rows = desk(export("09:00", numbered(2))).values()  # earlier, but downloaded later
    assert {row.outcome for row in rows} == {"set aside"}
    rows = desk(export("11:00", numbered(3))).values()
    assert {row.outcome for row in rows} == {"replaced"}
    assert str(timestamp_of(stamp)) == "2026-11-01 19:00:00.500000"
    Path(NAME).write_bytes(numbered(4))
    desk(NAME, student="100")
    assert timestamp_of(stamp) is None  # of the new one nobody knows


def test_a_dry_run_says_the_same_and_writes_nothing(desk):
    zipped({f"jane/{NAME}": numbered(1), f"kim/{ASSIGNMENT} (1).ipynb": numbered(2),
            f"kim/{NAME}": numbered(3), "lee/x.pdf": b"%PDF"})  # fmt: skip
    before = set(Path().rglob("*"))
    said = desk("sent.zip", dry_run=True)
    assert set(Path().rglob("*")) == before
    assert desk("sent.zip") == said


def test_what_lies_beside_a_notebook_need_not_be_one(desk):
    zipped({f"jane/{NAME}": numbered(1), "jane/x.pdf": b"%PDF", "jane/y.ipynb": b"",
            "kim/x.pdf": b"%PDF", "__MACOSX/jane/._x": b"", "jane/.DS_Store": b""})  # fmt: skip
    rows = {name: row.outcome for name, row in desk("sent.zip").items()}
    assert rows == {f"jane/{NAME}": "filed", "jane/x.pdf": "beside a notebook",
                    "jane/y.ipynb": "", "kim/x.pdf": ""}  # fmt: skip


def test_no_note_has_a_name_that_is_empty(desk):
    sent = {f"s{n}/{NAME}": numbered(n) for n in range(5)}
    rows = desk(zipped(sent | {"s0/x.pdf": b"%PDF", "s1/x.png": b"\x89PNG"}))
    assert not [note for row in rows.values() for note in row.notes]


EMPTY = {
    "empty": {},
    "folders only": {"work/": b"", f"{NAME}/": b""},
    "a computer's own only": {f"__MACOSX/{NAME}": b"x", f".ipynb_checkpoints/{NAME}": b"x"},
}


@pytest.mark.parametrize("name", EMPTY)
def test_an_empty_zip_is_somebodys(desk, name):
    data = Path(zipped(EMPTY[name], "empty.zip")).read_bytes()
    zipped({"annasmith_11_101_work.zip": data, f"bert_12_102_{NAME}": numbered(1)})
    write(Path("drop"), {"anna.zip": data, f"bert/{NAME}": 1})
    for place, student in (("sent.zip", "annasmith_11"), ("drop", "anna")):
        (row,) = (row for row in desk(place).values() if not row.outcome)
        assert row.student == student
        assert row.notes == ["an empty zip; ask for the notebook (.ipynb)"]
    rows = desk("empty.zip", "drop")
    assert not rows["empty.zip"].outcome and rows["empty.zip"].student == "empty"


def test_an_empty_folder_is_somebodys(desk):
    zipped({f"Ann Lee_12_assignsubmission_file_/{NAME}": numbered(1), "__MACOSX/": b"",
            "Bo Lee_13_assignsubmission_file_/": b"", "C_14_assignsubmission_file_/.DS_Store": b"",
            "Ann Lee_12_assignsubmission_file_/data/": b""})  # fmt: skip
    for folder in ("bo/work", f"{ASSIGNMENT}/cy/.ipynb_checkpoints", ".git"):
        Path("drop", folder).mkdir(parents=True)
    write(Path("drop"), {f"ann/{NAME}": 1})
    Path("nothing").mkdir()
    for places, students in (
        (["sent.zip"], ["Bo_Lee_13", "C_14"]),
        (["drop"], ["cy", "bo"]),
        (["nothing", "drop"], ["nothing", "cy", "bo"]),
    ):
        lost = [row for row in desk(*places).values() if not row.outcome]
        assert [row.student for row in lost] == students
        assert {*(row.notes[0] for row in lost)} == {archives.NOTHING}


def test_thirty_thousand_folders_in_each_other_cost_nothing(desk):
    zipped({"a/" * 30_000 + NAME: numbered(1), "b/" * 30_000: b"", "c/" * 30_000 + "._x": b""})
    began = time.monotonic()
    rows = desk("sent.zip")
    assert time.monotonic() - began < 10 and filed() == {"a"} and len(rows) == 3


def test_a_submission_of_nobody_is_said(desk):
    metadata = METADATA + b"submission_9:\n  :submitters: []\n"
    folder = "assignment_1_export"
    zipped({f"{folder}/submission_metadata.yml": metadata,
            f"{folder}/submission_7/{NAME}": numbered(1),
            f"{folder}/submission_9/{NAME}": numbered(2)})  # fmt: skip
    assert "whose is it?" in desk("sent.zip")[f"{folder}/submission_9/{NAME}"].notes[0]


def test_two_different_notebooks_of_one_student_are_no_success(desk):
    released = (ROOT / "exercises" / ASSIGNMENT / NAME).read_bytes()
    zipped({"jane/hw.ipynb": numbered(1), "jane/Untitled.ipynb": numbered(2),
            f"kim/{NAME}": numbered(3), f"kim/Copy of {ASSIGNMENT} (1).ipynb": numbered(4),
            f"lee/{NAME}": numbered(5), "lee/again.ipynb": numbered(5),
            "lee/released.ipynb": released})  # fmt: skip
    for _ in range(2):
        rows = desk("sent.zip")
        (row,) = (row for row in rows.values() if row.doubt)
        assert row.student == "jane" and all(row.outcome for row in rows.values())
        assert "came, too: two different notebooks" in row.notes[-1]
    assert len(list(Path("submitted/jane").rglob("*.ipynb*"))) == 2
    Path("roster.csv").write_text("id,email\njane,j@uni.edu\n")
    zipped({f"jane/{NAME}": numbered(6), f"j@uni.edu/{NAME}": numbered(7)})
    rows = desk("sent.zip", roster=senders.roster_in(Path("roster.csv"))).values()
    assert [row.doubt for row in rows] == [False, True]


# --- hostile zips


def test_nobody_hands_in_for_another(desk):
    for name in (f"smithbob_340934_7_{NAME}", f"Bob Smith_34_assignsubmission_file/{NAME}"):
        zipped({f"jane/{name}": numbered(1), f"kim/{NAME}": numbered(2)})
        rows = desk("sent.zip")
        assert "whose is it? It lies in jane" in rows[f"jane/{name}"].notes[0]
        assert filed() == {"kim"}
    folder = "assignment_1_export"
    forged = METADATA.replace(b"submission_7", b"submission_6").replace(b"'100'", b"'bob'")
    zipped({f"{folder}/submission_7/{NAME}": numbered(1),
            f"{folder}/submission_7/submission_6/{NAME}": numbered(3),
            f"{folder}/submission_metadata.yml": METADATA,
            f"{folder}/submission_7/submission_metadata.yml": forged})  # fmt: skip
    desk("sent.zip")
    assert filed() == {"kim", "100", "two@school.edu"}
    zipped({f"garcia_1_2_{n}.zip": Path(zipped({f"smithbob_9_{n}_{NAME}": numbered(n)}, "z.zip"))
            .read_bytes() for n in (4, 5)})  # fmt: skip
    desk("sent.zip")
    assert filed() == {"kim", "100", "two@school.edu", "garcia_1"}


# A drop folder: what a student, mallory, put beside and into the own folder, and whose it became.
FORGED = b"""
submission_1:
   :submitters:
   - :name: victim
     :sid: victim
   :created_at: 2030-01-01 00:00:00 Z
submission_7: {":submitters": [{":sid": victim}]}
"""
DROPS = {
    "a list of Gradescope": {"submission_metadata.yml": FORGED, f"submission_1/{NAME}": 1},
    "a whole export": {
        "assignment_1_export/submission_metadata.yml": FORGED,
        f"assignment_1_export/submission_1/{NAME}": 1,
    },
    "a folder": {f"victim/{NAME}": 1},
    "a folder in a folder": {f"{ASSIGNMENT}/victim/{NAME}": 1},
    "a file's name": {f"victim_{NAME}": 1},
    "a zip": {"victim.zip": {NAME: 1}},
    "a zip with a folder": {"hw.zip": {f"victim/{NAME}": 1}},
    "a zip with a list": {"hw.zip": {"submission_metadata.yml": FORGED, f"submission_1/{NAME}": 1}},
    "Canvas": {f"victim_1_2_{NAME}": 1},
    "Canvas in a zip": {"hw.zip": {f"victim_1_2_{NAME}": 1}},
    "Moodle": {f"victim_1_assignsubmission_file_/{NAME}": 1},
    "Brightspace": {f"12-34 - victim - Sep 13, 2026 900 AM - {NAME}": 1},
    "Blackboard": {f"HW3_victim_attempt_2026-01-30-20-30-10_{NAME}": 1},
    "Open edX": {f"[1] - victim - {NAME}": 1},
    "a unit of Open edX": {f"[1]A, [1]B, [1]C/[1] - victim - {NAME}": 1},
    "with a roster, a file's name": {"victim.ipynb": 1},
}


def write(folder: Path, files: dict) -> None:
    for path, what in files.items():
        target = folder / path
        target.parent.mkdir(parents=True, exist_ok=True)
        if isinstance(what, dict):
            zipped({p: d if isinstance(d, bytes) else numbered(d) for p, d in what.items()},
                   str(target))  # fmt: skip
        else:
            target.write_bytes(what if isinstance(what, bytes) else numbered(what))


@pytest.mark.parametrize("beside", [True, False], ids=["in a class", "alone"])
@pytest.mark.parametrize("name", DROPS)
def test_nobody_hands_in_for_another_in_a_drop_folder(desk, name, beside):
    Path("roster.csv").write_text("id\nvictim\nmallory\nkim\n")
    roster = senders.roster_in(Path("roster.csv")) if "roster" in name else None
    write(Path("drop/mallory"), DROPS[name])
    if beside:
        write(Path("drop/victim"), {NAME: 2})
        write(Path("drop/kim"), {NAME: 3})
    rows = desk("drop", roster=roster)
    assert filed() <= ({"mallory", "victim", "kim"} if beside else {"mallory"})
    if beside:
        assert Path(TARGET.format("victim")).read_bytes() == numbered(2)
        assert rows[f"victim/{NAME}"].outcome == rows[f"kim/{NAME}"].outcome == "filed"
        assert not list(Path("submitted/victim").rglob("timestamp.txt"))
    mine = [row for source, row in rows.items() if not source.startswith(("victim/", "kim/"))]
    assert all((row.outcome and row.student == "mallory") or row.notes for row in mine)


@pytest.mark.parametrize("name", [name for name in DROPS if "roster" not in name])
def test_of_several_zips_none_hands_in_for_another(desk, name):
    folder = {path: what for path, what in DROPS[name].items() if not isinstance(what, dict)}
    for path, what in DROPS[name].items():
        if isinstance(what, dict):  # a zip in a zip
            write(Path(), {path: what})
            folder[path] = Path(path).read_bytes()
    write(Path(), {"mallory.zip": folder, "kim.zip": {NAME: 2}, "victim.zip": {NAME: 3}})
    rows = desk("mallory.zip", "kim.zip", "victim.zip")
    assert Path(TARGET.format("victim")).read_bytes() == numbered(3)
    assert Path(TARGET.format("kim")).read_bytes() == numbered(2)
    (mine,) = (row for source, row in rows.items() if source.startswith("mallory.zip/"))
    if name in (
        "Canvas",
        "Canvas in a zip",
        "Moodle",
        *(n for n in DROPS if n[0] == "B" or "edX" in n),
    ):
        assert "whose is it?" in mine.notes[0] and filed() == {"kim", "victim"}
    else:
        assert filed() == {"kim", "victim", "mallory"} and mine.student == "mallory"
    assert not list(Path("submitted").rglob("timestamp.txt"))
    rows = desk("mallory.zip", "kim.zip", student="mallory")
    assert all(row.outcome and row.student == "mallory" for row in rows.values())


def test_several_exports_at_once_are_refused_not_mixed(desk):
    zipped({f"jane/{NAME}": numbered(1), f"kim/{NAME}": numbered(2)}, "one.zip")
    zipped({f"leelou_1_2_{NAME}": numbered(3)}, "two.zip")
    notes = [row.notes[0] for row in desk("one.zip", "two.zip").values()]
    assert ["by itself" in note for note in notes] == [True] * 3 and not filed()


MERGED = "a0: &a0 {x: 1}\n" + "".join(
    f"a{n}: &a{n} {{<<: [{', '.join([f'*a{n - 1}'] * 9)}]}}\n" for n in range(1, 12)
)
SHARED = "b0: &b0 [x]\n" + "".join(
    f"b{n}: &b{n} [{', '.join([f'*b{n - 1}'] * 9)}]\n" for n in range(1, 12)
)
ODD_LISTS = {  # what follows the entry of submission_1
    "no submitters": "submission_2: {':created_at': 1}",
    "a number for submitters": "submission_2: {':submitters': 1}",
    "a time before time": "submission_2: {':submitters': [{':sid': x}], "
    "':created_at': 0001-01-01 00:00:00 +14:00}",
    "merge keys": MERGED,
    "lists of lists as a name": f"{SHARED}submission_2: {{':submitters': [{{':sid': *b11}}]}}",
    "an endless nest": "x: " + "[" * 100_000,
    "an endless nest of lines": "x:\n " + "- " * 100_000,
    "a class as one group": f"x: &x [{'{a: b},' * 20_000}]\n"
    + "".join(f"submission_{n}: {{':submitters': *x}}\n" for n in range(2, 20_000)),
    "a huge number": f"submission_2: {{':submitters': [{{':sid': 0x{'f' * 9999}}}]}}",
}


@pytest.mark.slow
@pytest.mark.parametrize("name", ODD_LISTS)
def test_a_list_of_gradescope_ends_no_run(desk, name):
    lists = f"submission_1: {{':submitters': [{{':sid': ann}}]}}\n{ODD_LISTS[name]}\n"
    folders = {f"submission_{n}/{NAME}": numbered(n) for n in (1, 2, 3)}
    zipped({"submission_metadata.yml": lists.encode(), **folders})
    began = time.monotonic()
    rows = desk("sent.zip")
    assert time.monotonic() - began < 30  # two seconds, on a quiet machine
    assert filed() <= {"ann"} and len(rows) == 3
    if name in ("no submitters", "a number for submitters", "a time before time"):
        assert filed() == {"ann"}
    for number in (2, 3):
        assert "whose is it?" in rows[f"submission_{number}/{NAME}"].notes[0]


def test_lists_of_two_exports_beside_each_other_each_say_their_own(desk):
    other = METADATA.replace(b"'100'", b"'200'")
    for number, metadata in ((1, METADATA), (2, other)):
        folder = Path(f"drop/assignment_{number}_export/submission_7")
        folder.mkdir(parents=True)
        (folder / NAME).write_bytes(numbered(number))
        (folder.parent / "submission_metadata.yml").write_bytes(metadata)
    desk("drop")
    assert Path(TARGET.format("100")).read_bytes() == numbered(1)
    assert Path(TARGET.format("200")).read_bytes() == numbered(2)


@pytest.mark.parametrize(
    "path",
    [
        f"x_340934_5_y_666_777_{NAME}",  # Canvas: her name is "x_ 340934_ 5_ y"
        f"Eve_66_assignsubmission_file_Bob_34_assignsubmission_file_{NAME}",  # Moodle: the file's
        f"Bob_34_assignsubmission_file_Eve_66_assignsubmission_file_/{NAME}",  # her own
        f"eve_66_777_x_bob_attempt_2026-01-30-20-30-10_{NAME}",  # Canvas or Blackboard
        f"HW_eve_attempt_2026-01-30-20-30-10_x_bob_attempt_2026-01-30-20-30-10_{NAME}",
        f"HW_bob_attempt_2026-01-30-20-30-10_eve_attempt_2026-01-30-20-30-10_{NAME}",
        f"66-1 - Eve - Jan 1, 2026 100 AM - Sep 13, 2026 900 AM/{NAME}",  # her name says when
        f"66-1 - Eve - Sep 13, 2026 900 AM - x_bob_attempt_2026-01-30-20-30-10_{NAME}",
    ],
)
def test_a_name_that_was_made_to_be_misread_is_refused(desk, path):
    zipped({path: numbered(1), f"kim/{NAME}": numbered(2)})
    rows = desk("sent.zip")
    assert "can be read in two ways" in rows[path].notes[0] and filed() == {"kim"}


def test_two_accounts_of_one_name_are_not_one_student(desk):
    Path("roster.csv").write_text("id,first_name,last_name\nbob,Bob,Smith\n")
    zipped({f"smithbob_{n}_{n}_{NAME}": numbered(n) for n in (340, 666)})
    rows = list(desk("sent.zip", roster=senders.roster_in(Path("roster.csv"))).values())
    assert rows[0].outcome == "filed" and not rows[1].outcome
    assert rows[1].notes == ["the accounts 340 and 666 are both bob in the roster; whose is it?"]


@pytest.mark.skipif(sys.platform == "win32", reason="no pipes in folders there")
def test_a_pipe_or_a_link_in_a_drop_folder_is_refused_at_once(desk):
    Path("drop/jane").mkdir(parents=True)
    os.mkfifo(f"drop/jane/{NAME}")
    Path("drop/kim").symlink_to("jane")
    notes = [row.notes[0] for row in desk("drop").values()]
    assert notes == [
        "not a file: a folder, a pipe or a device",
        "a link to another file, not the file",
    ]


def test_no_path_leads_out(desk, tmp_path):
    bad = [
        f"../../{NAME}",
        f"/abs/{NAME}",
        f"..\\..\\b\\{NAME}",
        f"C:\\x\\{NAME}",
        f"a/../../{NAME}",
    ]
    before = set(tmp_path.parent.iterdir())
    rows = desk(zipped(dict.fromkeys([*bad, f"jane/{NAME}"], numbered(1))))
    assert filed() == {"jane"}
    assert [row.notes for row in rows.values() if not row.outcome] == [
        ["its path leads out of the archive"]
    ] * len(bad)
    assert set(tmp_path.rglob("*.ipynb")) == {tmp_path / TARGET.format("jane")}
    assert set(tmp_path.parent.iterdir()) == before


def test_links_and_passwords_are_refused(desk):
    with zipfile.ZipFile("sent.zip", "w") as archive:
        link = zipfile.ZipInfo(f"jane/{NAME}")
        link.external_attr = (stat.S_IFLNK | 0o777) << 16
        archive.writestr(link, "/etc/passwd")
        archive.writestr(f"kim/{NAME}", numbered(1))
    data = bytearray(Path("sent.zip").read_bytes())
    place = data.rindex(b"PK\x01\x02")  # the directory's entry of the second: encrypted
    data[place + 8] |= 1
    Path("sent.zip").write_bytes(data)
    notes = [row.notes[0] for row in desk("sent.zip").values()]
    assert "a link to another file" in notes[0] and "encrypted" in notes[1] and not filed()
    Path("inbox/jane").mkdir(parents=True)
    Path("inbox/jane", NAME).symlink_to("/etc/passwd")
    assert "a link to another file" in desk("inbox")[""].notes[0]


def test_a_bomb_is_not_unpacked(desk, monkeypatch):
    monkeypatch.setattr(archives, "LARGEST", 2**20)
    zeros = {f"s{i}/{NAME}": b"0" * 2**22 for i in range(3)} | {f"jane/{NAME}": numbered(1)}
    rows = desk(zipped(zeros))
    assert sum("unpacked, it has more than 1 MiB" in str(row.notes) for row in rows.values()) == 3
    assert filed() == {"jane"}
    monkeypatch.setattr(archives, "MOST_ENTRIES", 3)
    purse = archives.Purse(entries=3)
    monkeypatch.setattr(archives, "Purse", lambda: purse)
    assert "more than 3 files" in desk("sent.zip")[""].notes[0]


def bomb(times: int, data: bytes) -> bytes:
    """A zip in which many names are of the same bytes."""
    whole = Path(zipped({"hw.ipynb": data}, "one.zip")).read_bytes()
    start, end = whole.index(b"PK\x01\x02"), whole.index(b"PK\x05\x06")
    tail = bytearray(whole[end:])
    tail[8:12] = 2 * times.to_bytes(2, "little")
    tail[12:16] = (times * (end - start)).to_bytes(4, "little")
    return whole[:start] + times * whole[start:end] + tail


def test_files_over_each_other_in_a_zip_are_read_once(desk):
    zipped({"mallory.zip": bomb(500, numbered(1)), f"kim/{NAME}": numbered(2)})
    with mock.patch.object(ingest, "restore", wraps=ingest.restore) as read:
        rows = [*archives.contents(archives.unpack(Path("sent.zip"))[0])]
        desk("sent.zip")
    assert read.call_count == 2 and len(rows) == 500 and filed() == {"mallory", "kim"}
    one = Path(zipped({"a.ipynb": numbered(1), "b.ipynb": numbered(2)}, "one.zip")).read_bytes()
    place = one.index(b"PK\x01\x02")
    longer = bytearray(one)
    longer[place + 20 : place + 24] = (len(numbered(1))).to_bytes(4, "little")
    Path("quoted.zip").write_bytes(longer)  # the first holds the second
    rows = desk("quoted.zip", student="jane").values()
    assert [row.notes == [archives.OVER] for row in rows] == [True, False]


@pytest.mark.parametrize("kind", archives.SPECIAL)
def test_what_is_no_file_in_a_zip_is_refused(desk, kind):
    with zipfile.ZipFile("sent.zip", "w") as archive:
        for name, mode in (("jane", kind | 0o666), ("kim", stat.S_IFREG | 0o4755), ("lee", 0)):
            info = zipfile.ZipInfo(f"{name}/{NAME}")
            info.external_attr = mode << 16
            archive.writestr(info, numbered(len(name)))
    assert desk("sent.zip")[f"jane/{NAME}"].notes == ["not a file: a pipe or a device"]
    assert filed() == {"kim", "lee"}


def test_who_sends_too_much_costs_nobody_else(desk, monkeypatch):
    monkeypatch.setattr(ingest, "Purse", functools.partial(archives.Purse, bytes=10**6))
    zeros = Path(zipped({f"{n}.ipynb": b"0" * 4 * 10**5 for n in range(50)}, "z.zip")).read_bytes()
    zipped({"a.zip": zeros, f"kim/{NAME}": numbered(1)})
    rows = desk("sent.zip")
    notes = [row.notes[0] for row in rows.values() if not row.outcome]
    assert (
        filed() == {"kim"} and notes.count("unpacked, what was sent has more than 4,096 MiB") == 48
    )


@pytest.mark.slow
def test_one_student_has_so_many_seconds_and_no_more(desk, monkeypatch):
    monkeypatch.setattr(ingest, "Purse", functools.partial(archives.Purse, seconds=0.4))
    slow = mock.patch.object(ingest, "restore", wraps=ingest.restore,
                             side_effect=lambda *_: time.sleep(0.1) or mock.DEFAULT)  # fmt: skip
    sent = {f"mallory/{n}.ipynb": numbered(n) for n in range(30)} | {f"kim/{NAME}": numbered(99)}
    sent["lee.zip"] = Path(zipped({f"{n}.ipynb": numbered(n) for n in range(9)})).read_bytes()
    began = time.monotonic()
    with slow:
        rows = desk(zipped(sent))
    assert time.monotonic() - began < 10  # without purses 4 s of sleep alone; two of 0.4 s
    late = [row.student for row in rows.values() if "more than 60 seconds" in str(row.notes)]
    assert late.count("mallory") > 25 and late.count("lee") in (1, 2) and len(rows) < 40
    assert filed() == {"mallory", "kim", "lee"}


def test_a_zip_that_lies_about_a_size_is_not_believed(desk):
    zipped({f"jane/{NAME}": b"0" * 10**6, f"kim/{NAME}": numbered(1)})
    data = bytearray(Path("sent.zip").read_bytes())
    place = data.index(b"PK\x01\x02")
    data[place + 24 : place + 28] = (10).to_bytes(4, "little")
    Path("sent.zip").write_bytes(data)
    rows = list(desk("sent.zip").values())
    assert rows[0].notes and not rows[0].outcome and rows[1].outcome == "filed"


@pytest.mark.parametrize("kind", [zipfile.ZIP_LZMA, zipfile.ZIP_BZIP2])
def test_an_unusual_or_damaged_packing_stops_nobody(desk, kind):
    with zipfile.ZipFile("sent.zip", "w") as archive:
        archive.writestr(f"jane/{NAME}", numbered(1), kind)
        archive.writestr(f"kim/{NAME}", numbered(2))
    data = bytearray(Path("sent.zip").read_bytes())
    data[100:140] = bytes(40)  # zipfile itself would end in an error of lzma's
    Path("sent.zip").write_bytes(data)
    rows = list(desk("sent.zip").values())
    assert rows[0].notes == ["it is packed in an unusual way; ask for a plain zip"]
    assert filed() == {"kim"}


def test_a_students_zip_of_millions_of_names_is_not_opened(desk):
    entry = b"PK\x01\x02" + bytes(42)
    zipped({"jane.zip": entry * 30_000, f"kim/{NAME}": numbered(1)})
    rows = desk("sent.zip")
    assert "more than 20,000 files" in rows["jane.zip"].notes[0] and filed() == {"kim"}


@pytest.mark.slow
def test_little_that_becomes_much_is_refused_in_words_and_soon(desk):
    cells = json.dumps(right())[:-1] + ', "x": [' + "{}," * 4_000_000 + "{}]}"
    flat = right()
    cell_of(flat, "softmax")["source"] = "1\n" * 10**6
    zipped({f"jane/{NAME}": cells.encode(), f"kim/{NAME}": text(flat), f"lee/{NAME}": numbered(1)})
    assert Path("sent.zip").stat().st_size < 200_000
    began = time.monotonic()
    rows = desk("sent.zip")
    assert time.monotonic() - began < 30  # a second, on a quiet machine
    assert "millions of values" in rows[f"jane/{NAME}"].notes[0]
    assert "500,000 words and signs of code" in rows[f"kim/{NAME}"].notes[0]
    assert filed() == {"lee"}


@pytest.mark.parametrize("name", ["-copy" * 40 + "x", "-1" * 110, " - copy" * 30, "_1" * 120 + "x"])
def test_no_name_takes_long_to_understand(desk, name):
    zipped({f"{name}.ipynb": numbered(1), f"{name}/{NAME}": numbered(2), "-copy" * 9999: b""})
    began = time.monotonic()
    rows = desk("sent.zip")
    assert time.monotonic() - began < 30
    assert any("too long for any disk" in str(row.notes) for row in rows.values())


def test_names_that_look_alike_are_pointed_out_also_in_a_later_run(desk):
    for number, name in enumerate(("Paul", "раul", "paul", "ｐaul"), start=1):
        zipped({f"{name}/{NAME}": numbered(number)})
        notes = "; ".join(desk("sent.zip")[""].notes)
        if name == "paul":
            assert notes == "paul and Paul would share a folder; use a roster"
        else:
            assert ("looks like Paul, who is another one" in notes) == (name != "Paul")
    assert filed() == {"Paul", "раul", "ｐaul"}


@pytest.mark.slow
def test_reading_that_never_ends_is_stopped_and_stops_nobody(desk, monkeypatch):
    monkeypatch.setattr(ingest, "Purse", functools.partial(archives.Purse, seconds=0.5))
    kept = ingest.restore

    def restore(notebook, *rest):
        while notebook.data == numbered(1):
            pass
        return kept(notebook, *rest)

    monkeypatch.setattr(ingest, "restore", restore)
    zipped({f"jane/{NAME}": numbered(1), f"kim/{NAME}": numbered(2)})
    rows = desk("sent.zip")
    (note,) = rows[f"jane/{NAME}"].notes
    assert note.startswith("to read what was sent takes more than 60 seconds; ask for")
    assert filed() == {"kim"}


def test_zips_in_zips_have_an_end(desk):
    data = numbered(1)
    for depth in range(4):
        data = Path(zipped({f"d{depth}.zip" if depth else NAME: data})).read_bytes()
        if depth == 1:
            Path("two.zip").write_bytes(data)
    assert "a zip in a zip in a zip" in desk("sent.zip", student="jane")[""].notes[0]
    assert desk("two.zip", student="jane")[""].outcome == "filed"


def test_names_in_other_alphabets_survive(desk):
    buffer = io.BytesIO()
    with zipfile.ZipFile(buffer, "w") as archive:
        archive.writestr(f"xx/{NAME}", numbered(1))
    raw = buffer.getvalue().replace(b"xx/", "é/".encode())  # UTF-8, and not said so, as on a Mac
    Path("mac.zip").write_bytes(raw)
    zipped({f"Łukasz Żółć/{NAME}": numbered(2), f"李小龙/{NAME}": numbered(3)})
    desk("mac.zip")
    desk("sent.zip")
    assert filed() == {"é", "Łukasz_Żółć", "李小龙"}


# --- several at once


@pytest.mark.slow
def test_ingests_at_once_lose_no_version(here, desk):
    students, versions = [f"s{n}" for n in range(8)], range(6)
    for version in versions:
        write(Path(f"drop{version}"), {f"{who}/{NAME}": 10 + version for who in students})
    start = multiprocessing.get_context("fork").Barrier(len(versions))
    programs = []
    for version in versions:
        if not (program := os.fork()):
            start.wait()
            lost = [row for row in desk(f"drop{version}").values() if not row.outcome]
            os._exit(len(lost))
        programs.append(program)
    assert [os.waitpid(program, 0)[1] for program in programs] == [0] * len(versions)
    for who in students:
        kept = [path.read_bytes() for path in Path("submitted", who).rglob(f"{NAME}*")]
        assert sorted(kept) == [numbered(10 + version) for version in versions]
    assert not list(Path().rglob("*.part"))


def test_what_cannot_be_written_leaves_what_was_there(desk):
    Path(NAME).write_bytes(numbered(1))
    desk(NAME, student="jane")
    Path(NAME).write_bytes(numbered(2))
    with mock.patch.object(writing.os, "fsync", side_effect=OSError(28, "No space left")):
        (row,) = desk(NAME, student="jane").values()
    assert "it cannot be written" in row.notes[0] and not row.outcome
    assert [path.name for path in Path("submitted/jane", ASSIGNMENT).iterdir()] == [NAME]
    assert Path(TARGET.format("jane")).read_bytes() == numbered(1)


# --- the command


@pytest.mark.slow
def test_a_line_for_each_student_and_reason(course, monkeypatch):
    monkeypatch.setattr(cli.teacher, "console", Console(width=160))
    zipped({f"mallory/{n}.pdf": b"%PDF" for n in range(1500)} | {"kim/x.pdf": b"%PDF"})
    done = CliRunner().invoke(cli.app, ["ingest", "sent.zip"])
    assert done.exit_code == 1 and "submitted/: 1501 not filed" in done.output
    assert "and 1,499 more like this" in done.output and len(done.output.splitlines()) < 20


def test_a_doubt_and_times_without_a_zone_are_said(course, monkeypatch):
    monkeypatch.setattr(cli.teacher, "console", Console(width=160))
    attncourse = functools.partial(CliRunner().invoke, cli.app)
    zipped({"jane/a.ipynb": numbered(1), "jane/b.ipynb": numbered(2), f"kim/{NAME}": numbered(3)})
    done = attncourse(["ingest", "sent.zip"])
    assert done.exit_code == 1 and "1 to look at" in done.output, done.output
    zipped({f"12-3 - Di Four - Sep 13, 2026 900 AM/{NAME}": numbered(1)})
    done = attncourse(["ingest", "sent.zip"])
    assert done.exit_code == 0 and "--timezone" in done.output, done.output
    done = attncourse(["ingest", "sent.zip", "--timezone", "Asia/Tokyo"])
    assert done.exit_code == 0 and "--timezone" not in done.output, done.output
    assert (
        Path(f"submitted/Di_Four_12/{ASSIGNMENT}/timestamp.txt")
        .read_text()
        .startswith("2026-09-13 00:00:00")
    )
    for name in ("Mars/Base", "../etc", "/etc/passwd", "Europe"):
        done = attncourse(["ingest", "sent.zip", "--timezone", name])
        assert done.exit_code == 2 and f"no time zone is named {name}" in done.output, done.output


def test_the_gradebooks_students_are_known_and_others_said(desk):
    people = [
        {
            "id": "bsmith",
            "first_name": "Bob",
            "last_name": "Smith",
            "email": "",
            "lms_user_id": "7",
        },
        {"id": "lwei", "first_name": "Wei", "last_name": "Li", "email": "li@uni.edu"},
        {"id": "lwei2", "first_name": "Wei", "last_name": "Li", "email": None},
    ]
    names = ("smithbob_7_1_", "kimann_8_2_", "weili_9_3_", "li@uni.edu_")
    zipped({f"{name}{NAME}": numbered(n) for n, name in enumerate(names)})
    rows = desk("sent.zip", roster=senders.Roster(people, "the gradebook", complete=False))
    bob, ann, wei, li = rows.values()
    assert bob.student == "bsmith" and not any("gradebook" in note for note in bob.notes)
    assert ann.outcome == "filed" and "kimann_8 is not in the gradebook yet" in ann.notes
    assert not wei.outcome and "weili is lwei and lwei2 in the gradebook" in wei.notes[0]
    assert li.student == "lwei"
    assert filed() == {"bsmith", "kimann_8", "lwei"}


def test_a_notebook_of_another_assignment_among_many_is_pointed_out(desk):
    other = (ROOT / "solutions/02_additive/02_additive.ipynb").read_bytes()
    files = {f"s{n}_{n}_9_{NAME}": numbered(n) for n in range(5)}
    zipped(files | {"odd_7_9_hw3.ipynb": other})
    noted = [row for row in desk("sent.zip").values() if any("a mistake?" in n for n in row.notes)]
    assert [(row.student, row.assignment) for row in noted] == [("odd_7", "02_additive")]
    zipped({**files, **{f"t{n}_1{n}_9_x.ipynb": other for n in range(4)}}, "mixed.zip")
    assert not [r for r in desk("mixed.zip").values() if any("a mistake?" in n for n in r.notes)]


@pytest.mark.slow
def test_the_command_files_reports_and_ends_with_1(course, monkeypatch):
    monkeypatch.setattr(cli.teacher, "console", Console(width=160))
    attncourse = functools.partial(CliRunner().invoke, cli.app)
    before = resource.getrlimit(resource.RLIMIT_DATA)
    colab = next(iter(built(CASES["saved by Colab, metadata gone, a pip line added"]).values()))
    zipped({f"doejane_LATE_12_345_Copy of {NAME}": colab, "lee_13_14_x.pdf": b"%PDF",
            "evil\x1b[31m_1_2_x.py": b"pass"})  # fmt: skip
    done = attncourse(["ingest", "sent.zip"])
    assert done.exit_code == 1, done.output
    for said in ("doejane_12", f"it was named Copy of {NAME}", "gone from 13 cells", "not when",
                 "a PDF; ask for", "submitted/: 1 filed, 2 not filed"):  # fmt: skip
        assert said in done.output, done.output
    assert "\x1b[31m" not in done.output and filed() == {"doejane_12"}
    strange = right() | {"nbformat": "\x1b[2J" + "9" * 10**6}
    Path("strange.ipynb").write_bytes(text(strange))
    done = attncourse(["ingest", "strange.ipynb", "--student", "lee"])
    assert "a notebook of version" in done.output and "\x1b[2J" not in done.output
    assert len(done.output) < 5000
    assert resource.getrlimit(resource.RLIMIT_DATA) == before  # a browser started later needs more
    Path("empty").mkdir()
    Path(NAME).write_bytes(numbered(1))
    assert attncourse(["ingest", NAME, "--student", "jane"]).exit_code == 0
    Path("Untitled1.ipynb").write_bytes(numbered(1))
    done = attncourse(["ingest", "Untitled1.ipynb", "--student", "Müller Anna"])  # as a folder is
    assert done.exit_code == 0, done.output
    assert f"filed in submitted/Müller_Anna/{ASSIGNMENT}" in done.output
    for arguments, said in (
        (["none.zip"], "there is no none.zip"),
        (["empty"], "there is nothing in empty"),
        (["sent.zip", "--student", "../"], "'../' is no name for a folder"),
        (["sent.zip", "--assignment", "x"], "no assignment is named x"),
        (["sent.zip", "--roster", NAME], "needs a column `id`"),
    ):
        done = attncourse(["ingest", *arguments])
        assert done.exit_code == 2 and said in done.output, done.output
