"""Points for Canvas and Moodle: in the right cells, and not a byte beside them."""

import csv
import io

import pytest

from attncourse.grading.outbox import lms
from attncourse.grading.outbox.lms import Graded

NAME = "03_scaled_dot_product"
CANVAS = '''Student,ID,SIS User ID,SIS Login ID,Section,03 Scaled dot-product (1234),Final Score\r
,,,,,Manual Posting,\r
    Points Possible,,,,,64.00,(read only)\r
"O'Neil, ""Ann""",101,S1,ann,"A, and B",,91.2\r
"Müller, Zoë",102,S2,ZOE@uni.edu,A,12.00,\r
"=""=1+1""",103,S3,carl,A,EX,\r
"Doe, Jane",104,S4,jd,A,N/A,\r
"Roe, Richard",105,S5,rr,A,,\r
"Student, Test",999,,c0ffee,A,,\r
'''
MOODLE = (
    "First name,Last name,ID number,Email address,"
    f"Assignment: {NAME} (Real),Assignment: {NAME} (Feedback),Last downloaded from this course\n"
    "Ann,O'Neil,7,ann@uni.edu,-,,1731000000\n"
    'Zoë,Müller,8,zoe@uni.edu,"50,00","old, text",1731000000\n'
)
CLASS = [
    Graded("ann", 56.5, keys=("ann@uni.edu",)),
    Graded("s-zoe", 8.0, keys=("zoe@uni.edu",), comment='softmax: D-SOFTMAX-DIM. Why, "so"?'),
    Graded("carl", 1.0),
    Graded("jane", 2.0, keys=("104",)),
]


def rows(data: bytes, delimiter: str = ",") -> list[list[str]]:
    return list(csv.reader(io.StringIO(data.decode("utf-8-sig"), newline=""), delimiter=delimiter))


@pytest.mark.parametrize("mark", [b"", b"\xef\xbb\xbf"], ids=["plain", "with a mark"])
def test_canvas_gets_its_own_file_with_points_in_it(mark):
    roster = mark + CANVAS.encode()
    filled = lms.fill(roster, "canvas", NAME, CLASS, 64.0)
    wanted = CANVAS.replace('"A, and B",,91.2', '"A, and B",56.5,91.2').replace(",12.00,", ",8,")
    assert filled.data == mark + wanted.encode()
    assert filled.column == "03 Scaled dot-product (1234)" and not filled.added
    assert filled.rows == {"ann": 'O\'Neil, "Ann"', "s-zoe": "Müller, Zoë"}
    assert filled.changed == ["Müller, Zoë (12.00)"]
    assert filled.kept == ['="=1+1"', "Doe, Jane"]  # excused, and not assigned
    assert filled.without_points == ["Roe, Richard", "Student, Test"]
    assert not (filled.without_row or filled.doubtful or filled.by_name or filled.notes)


def test_moodle_gets_points_and_feedback_side_by_side():
    filled = lms.fill(MOODLE.encode(), "moodle", NAME, CLASS, 64.0)
    header, ann, zoe = rows(filled.data)
    assert header == next(csv.reader([MOODLE.splitlines()[0]]))
    assert ann == ["Ann", "O'Neil", "7", "ann@uni.edu", "56.5", "", "1731000000"]
    assert zoe[4:6] == ["8", 'softmax: D-SOFTMAX-DIM. Why, "so"?']
    assert filled.without_row == ["carl", "jane"]


def test_moodle_grading_worksheet_is_known():
    sheet = (
        "Identifier,Full name,Email address,Status,Grade,Maximum Grade,Last modified (grade),"
        "Feedback comments\nParticipant 5,Zoë Müller,zoe@uni.edu,Submitted,,64.00,-,\n"
    )
    filled = lms.fill(sheet.encode(), "moodle", NAME, CLASS, 64.0)
    assert rows(filled.data)[1][4:] == ["8", "64.00", "-", 'softmax: D-SOFTMAX-DIM. Why, "so"?']
    assert not filled.notes
    filled = lms.fill(sheet.replace("64.00", "100.00").encode(), "moodle", NAME, CLASS, 64.0)
    assert filled.notes == ["Moodle counts 100.00 points for it, here there are 64"]


def test_a_list_of_people_gets_new_columns():
    people = "Name;Email address\nZoë;zoe@uni.edu\nBob;bob@uni.edu\nshort"
    filled = lms.fill(people.encode(), "moodle", NAME, CLASS, 64.0)
    assert filled.added
    assert rows(filled.data, ";") == [
        ["Name", "Email address", NAME, f"{NAME} feedback"],
        ["Zoë", "zoe@uni.edu", "8", 'softmax: D-SOFTMAX-DIM. Why, "so"?'],
        ["Bob", "bob@uni.edu"],
        ["short"],
    ]


def test_canvas_asks_for_points_possible_in_a_new_column():
    without = "Student,ID,SIS Login ID,Section\n    Points Possible,,,\nA,1,ann,X\n"
    filled = lms.fill(without.encode(), "canvas", NAME, CLASS, 64.0)
    assert [row[4] for row in rows(filled.data)] == [NAME, "64", "56.5"]


def test_what_differs_from_canvas_is_said():
    filled = lms.fill(CANVAS.replace("64.00", "100.00").encode(), "canvas", NAME, CLASS, 64.0)
    assert filled.notes == ["Canvas counts 100.00 points for it, here there are 64"]
    assert b"100.00" in filled.data


@pytest.mark.parametrize(
    ("points", "row"),
    [
        ([Graded("ann", 1.0), Graded("x", 2.0, keys=("101",))], 'O\'Neil, "Ann"'),  # two fit a row
        ([Graded("s", 1.0, keys=("ann", "jd"))], "Doe, Jane"),  # two rows fit a student
    ],
)
def test_nobody_is_guessed(points, row):
    filled = lms.fill(CANVAS.encode(), "canvas", NAME, points, 64.0)
    assert row in filled.doubtful and filled.data == CANVAS.encode() and not filled.rows


def test_a_name_is_the_last_resort_and_only_if_nobody_shares_it():
    one = [Graded("doejane", 5.0), Graded("x", 6.0, name="Richard Roe")]
    filled = lms.fill(CANVAS.replace("N/A", "").encode(), "canvas", NAME, one, 64.0)
    assert filled.rows == {"doejane": "Doe, Jane", "x": "Roe, Richard"}
    assert filled.by_name == ["Doe, Jane", "Roe, Richard"]
    two = [*one, Graded("y", 7.0, name="Jane Doe")]
    filled = lms.fill(CANVAS.replace("N/A", "").encode(), "canvas", NAME, two, 64.0)
    assert filled.rows == {"x": "Roe, Richard"} and "Doe, Jane" in filled.doubtful


def test_a_comment_is_no_formula():
    sly = [Graded("x", 1.0, keys=("zoe@uni.edu",), comment="=1+1")]
    assert rows(lms.fill(MOODLE.encode(), "moodle", NAME, sly, 64.0).data)[2][5] == "'=1+1"


def test_bytes_that_are_no_text_stay():
    roster = CANVAS.encode().replace("Zoë".encode(), b"Zo\xeb")
    filled = lms.fill(roster, "canvas", NAME, CLASS, 64.0)
    assert b"Zo\xeb" in filled.data and "Zo?" in filled.rows["s-zoe"]
    assert len(filled.data.splitlines()) == len(roster.splitlines())


@pytest.mark.parametrize(
    ("roster", "column", "said"),
    [
        ("", "", "none of its columns is named SIS Login ID"),
        ("a,b\n1,2\n", "", "none of its columns is named SIS Login ID"),
        ("ID,x\n1,\"a\"b\n", "", "line 2 has a quotation mark without its other half"),
        ("ID,x\n1,\"a\n", "", "line 2 has a quotation mark without its other half"),
        (CANVAS, "Nonsense", "no column 'Nonsense'"),
        (CANVAS, "Section", "no column 'Section' for points"),
        (CANVAS, "Final Score", "does not let anybody change the column Final Score"),
        ("ID,03_scaled_dot_product (1),03 scaled dot product (2)\n", "", "several of its columns"),
        (CANVAS.encode("utf-16").decode("latin-1"), "", "save it as “CSV UTF-8”"),
    ],
    ids=range(9),
)  # fmt: skip
def test_a_wrong_file_is_refused_with_a_way_out(roster, column, said):
    with pytest.raises(lms.Refused, match="(?s)" + said.replace("(", r"\(")):
        lms.fill(roster.encode("latin-1", "replace"), "canvas", NAME, CLASS, 64.0, column)
