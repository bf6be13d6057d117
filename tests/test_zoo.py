"""The zoo: a class in which everything goes wrong, graded at once; nobody loses, nobody forges."""

import json
import subprocess
import sys
from pathlib import Path

import pytest
from conftest import ROOT, copy_course, give_to_nobody
from corpus.zoo import ASSIGNMENT, ATTACKS, CASES, ON_WALLS, TASKS, built, files, right

from attncourse.grading.books import disk, results
from attncourse.grading.inbox.untrusted import printable
from attncourse.grading.jail import walls
from attncourse.grading.jail.remote import Zygote

pytestmark = [
    pytest.mark.slow,
    pytest.mark.skipif(sys.platform != "linux", reason="the jail is made of Linux namespaces"),
]
NEIGHBORS = ("a_good", "m_good", "z_good")
HOSTILE = [name for what, names in ATTACKS.items() for name in names if what]
ACCIDENTS = ATTACKS[""]


def student(name: str) -> str:
    return "case_" + "".join(letter if letter.isalnum() else "_" for letter in name)


def hand_in(who: str, content: dict) -> None:
    folder = Path("submitted", who, ASSIGNMENT)
    folder.mkdir(parents=True)
    for name, data in content.items():
        if isinstance(data, str):
            (folder / name).symlink_to(data.removeprefix("-> "))
        else:
            (folder / name).write_bytes(data)


def contents() -> dict[Path, bytes]:
    handed_in = Path("submitted").rglob("*")
    return {
        path: path.read_bytes() for path in handed_in if path.is_file() and not path.is_symlink()
    }


GRADE = f"""
import json
from attncourse.grading.books import disk, run
from attncourse.grading.jail import workers
from attncourse.grading.jail.job import Budget
job = disk.job_of("{ASSIGNMENT}", budget=Budget(call=2.5), record=False)
events = run.grade_class(job, disk.submissions("{ASSIGNMENT}"), workers.in_processes(6))
print(json.dumps({{event.student: event.why for event in events if event.result is None}}))
"""


@pytest.fixture(scope="module")
def graded(tmp_path_factory, python):
    """The zoo and three neighbors, six at a time, since many of them wait; results by student."""
    some = {*ON_WALLS, *(case.same_as for case in CASES.values())}
    wanted = CASES if python == [sys.executable] else some
    cases = {name: case for name, case in CASES.items() if name in wanted}
    try:
        Zygote().fork([]).kill()
    except walls.Unavailable as error:
        pytest.skip(f"no jail can be built here: {error}")
    with pytest.MonkeyPatch.context() as patch:
        folder = tmp_path_factory.mktemp("zoo")
        copy_course(ROOT, folder)
        patch.chdir(folder)
        for name, case in cases.items():
            hand_in(student(name), built(case))
        for name in NEIGHBORS:
            hand_in(name, files(right()))
        give_to_nobody(folder)
        before = contents()
        done = subprocess.run([*python, "-c", GRADE], check=True, capture_output=True, text=True)
        assert before == contents()
        not_graded = json.loads(done.stdout)
        paths = {who: disk.result_path(ASSIGNMENT, who) for who in disk.submissions(ASSIGNMENT)}
        found = not_graded | {
            who: disk.load_result(path).result
            for who, path in paths.items()
            if who not in not_graded
        }
        rows = {row.student: row for row in results.of_class(ASSIGNMENT)}
        yield found, rows


def letters(result) -> str:
    """F, P or 0 for each task."""
    text = ""
    for task in TASKS:
        verdict = result.verdicts[task]
        earned = verdict.visible + verdict.hidden
        text += "F" if earned == 2 * verdict.points else "P" if earned else "0"
    return text


as_we_are = pytest.mark.parametrize("python", ["as we are"], indirect=True, scope="session")


@pytest.mark.parametrize("name", ON_WALLS)
def test_an_attack_on_the_walls_gets_exactly_what_it_earned_whoever_grades(graded, name):
    assert_earned(graded, name)


@as_we_are
@pytest.mark.parametrize("name", [name for name in HOSTILE if name not in ON_WALLS])
def test_an_attack_gets_exactly_what_it_earned(graded, name):
    assert_earned(graded, name)


@as_we_are
@pytest.mark.parametrize("name", ACCIDENTS)
def test_an_accident_gets_exactly_what_it_earned(graded, name):
    assert_earned(graded, name)


def assert_earned(graded, name: str) -> None:
    case, result = CASES[name], graded[0][student(name)]
    if not case.points:
        assert case.review in result and graded[1][student(name)].score is None
        return
    said = json.dumps(result.as_data(), indent=1, ensure_ascii=False)
    assert letters(result) == case.points, said
    if case.same_as:
        assert result.score == graded[0][student(case.same_as)].score, said
    if case.review:
        assert any(case.review in reason for reason in result.review), said
    else:
        assert not result.review, said
    if case.repair:
        assert any(case.repair in note for note in result.repairs), said
    if case.title:
        titles = [verdict.title for verdict in result.verdicts.values() if verdict.title]
        assert titles and case.title in titles[0], said
    assert result.seconds < case.seconds * 3, said  # the machine may be busy


def test_security_md_counts_them_as_they_are():
    said = (ROOT / "SECURITY.md").read_text("utf-8")
    for what, names in ATTACKS.items():
        assert not what or f"\n| {what} | {len(names)} | 0 | 0 | 0 |\n" in said, (what, len(names))
    assert f"{len(HOSTILE)} attacks" in said and f"The {len(ON_WALLS)} that meet" in said
    assert f"{len(ACCIDENTS)} accidents" in said


@pytest.mark.parametrize("name", NEIGHBORS)
def test_neighbors_get_full_marks(graded, name):
    assert letters(graded[0][name]) == "FFFF"
    assert graded[1][name].score == graded[0][name].score == 56


def test_no_note_changes_a_terminal_or_forges_a_line(graded):
    for result in graded[0].values():
        notes = [result] if isinstance(result, str) else [*result.review, *result.repairs]
        for note in notes:
            assert note == printable(note)


def test_the_gradebook_has_what_the_results_say(graded):
    found, rows = graded
    assert rows.keys() == found.keys()
    for name, result in found.items():
        assert rows[name].score == (None if isinstance(result, str) else result.score), name


def test_nothing_is_left_running(graded):
    listed = subprocess.run(["ps", "-eo", "comm"], capture_output=True, text=True).stdout
    assert "left_behind" not in listed
