"""Whatever somebody sends, reading it ends in a value or in a reason; nothing else comes out.

A quarter of a minute. For an hour, as a person: `make fuzz`, which makes 300 times as many
examples; `make bench` makes five times as many.
What has failed stands here, as an `@example`; what fails on your machine is kept in .hypothesis,
and is tried first by the next run.
"""

import contextlib
import copy
import io
import itertools
import json
import os
import socket
import struct
import time
import types
import zipfile

import pytest
import torch
from conftest import ROOT
from corpus.zoo import ASSIGNMENT, NAME, right
from hypothesis import HealthCheck, example, given, settings
from hypothesis import strategies as st

from attncourse.checks import registry
from attncourse.checks.observe import Observation
from attncourse.grading.inbox import archives, ingest, restore, senders, submission
from attncourse.grading.jail import remote, score, wire
from attncourse.grading.jail.child import plain
from attncourse.grading.jail.job import Budget

pytestmark = pytest.mark.slow
TIMES = int(os.environ.get("ATTNCOURSE_FUZZ", "1"))
SECONDS = 20.0  # no example may take longer, on a busy machine


def fuzz(examples: int):
    return settings(
        max_examples=examples * TIMES,
        deadline=None,
        suppress_health_check=list(HealthCheck),
        print_blob=True,
    )


# --- messages of the wire

texts = st.text(max_size=8) | st.sampled_from(["\ud800", "\x1b[2J", "float32", "tensor", "bool"])
numbers = st.integers(-3, 40) | st.integers() | st.sampled_from([2**31, 2**62, 2**63, 2**64])
scalars = st.none() | st.booleans() | numbers | st.floats() | texts
shapes = st.lists(numbers, max_size=4) | st.lists(st.integers(0, 4), max_size=18)
tensors = st.tuples(
    st.just("tensor"), st.sampled_from([*wire._DTYPES, "object", ""]) | scalars, shapes | scalars,
    numbers | scalars,
).map(list)  # fmt: skip
honest = st.tuples(
    st.just("tensor"), st.sampled_from(["uint8", "bool", "int16"]),
    st.lists(st.integers(0, 6), max_size=2), st.integers(0, 8),
).map(list)  # fmt: skip
forms = st.recursive(
    scalars | tensors | honest,
    lambda inner: (
        st.lists(inner, max_size=5)
        | st.lists(inner, max_size=5).map(lambda items: ["list", *items])
        | st.lists(inner, max_size=5).map(lambda items: ["tuple", *items])
        | st.lists(st.tuples(inner, inner).map(list), max_size=4).map(lambda rows: ["dict", *rows])
        | st.lists(inner, max_size=3).map(lambda items: ["other", *items])
        | st.dictionaries(texts, inner, max_size=2)
    ),
    max_leaves=20,
)


def received(data: bytes) -> object:
    ours, theirs = socket.socketpair()
    with ours, theirs:
        ours.sendall(data)
        ours.shutdown(socket.SHUT_WR)
        return wire.receive(theirs)


def size_of(value: object) -> int:
    if isinstance(value, torch.Tensor):
        return value.numel() * value.itemsize
    if isinstance(value, dict):
        return sum(size_of(part) for pair in value.items() for part in pair)
    return sum(map(size_of, value)) if isinstance(value, list | tuple) else 0


@given(form=forms, body=st.binary(max_size=64))
@example(form=["list", *[["tensor", "uint8", [8], 0]] * 9], body=bytes(8))  # more than it has
@example(form=["tensor", "bool", [2], 0], body=b"\x02\x03")  # neither true nor false
@example(form=["tensor", "float32", [0, 2**62, 2**62], 0], body=b"")
@example(form=["dict", [["list"], 1]], body=b"")
@example(form=10**4000, body=b"")
@fuzz(600)
def test_a_message_is_a_value_or_malformed(form, body):
    header = json.dumps(form).encode()
    lengths = struct.pack("!IQ", len(header), len(body))
    try:
        value = received(lengths + header + body)
    except wire.Malformed:
        return
    assert size_of(value) <= len(body)


@given(data=st.binary(max_size=80), cut=st.integers(0, 80))
@fuzz(200)
def test_bytes_are_a_message_malformed_or_an_end(data, cut):
    for sent in (data, struct.pack("!IQ", cut, len(data) // 2) + data):
        with contextlib.suppress(wire.Malformed, EOFError):
            received(sent)


values = st.recursive(
    st.none()
    | st.booleans()
    | st.integers(-(2**63), 2**63)
    | st.floats(allow_nan=False)
    | st.text(max_size=8),
    lambda inner: st.lists(inner, max_size=4) | st.dictionaries(st.text(max_size=4), inner),
    max_leaves=10,
)


@given(value=values)
@fuzz(100)
def test_what_was_packed_arrives(value):
    assert received(wire.pack(value)) == value


# --- notebooks

with pytest.MonkeyPatch.context() as patch:
    patch.chdir(ROOT)
    COURSE = ingest.Course.here()
ABOUT, RELEASED = COURSE.about[ASSIGNMENT], COURSE.released[ASSIGNMENT]
RIGHT = right()
odd = st.recursive(
    scalars
    | st.sampled_from(["code", "markdown", "raw", "def softmax(", "# attncourse: x/y hidden check",
                       f"# attncourse: {ASSIGNMENT}/softmax", "softmax", "why-scaled", "%%time\n!l",
                       "x = " + "(" * 150, "-" * 500 + "1", "\\", "'''", "\0", "\f\r\n\t def"]),
    lambda inner: st.lists(inner, max_size=3) | st.dictionaries(
        texts | st.sampled_from(["cells", "source", "metadata", "nbgrader", "grade_id", "id",
                                 "cell_type", "outputs", "worksheets", "input", "nbformat"]),
        inner, max_size=4),
    max_leaves=8,
)  # fmt: skip


@st.composite
def notebooks(draw) -> bytes:
    """A right notebook in which some things were replaced, deleted or doubled."""
    content = copy.deepcopy(RIGHT)
    for _ in range(draw(st.integers(0, 6))):
        inside: object = content.get("cells") if draw(st.booleans()) else content
        inside = inside if isinstance(inside, dict | list) else content
        while True:
            keys = list(inside) if isinstance(inside, dict) else list(range(len(inside)))
            if not keys:
                break
            key = draw(st.sampled_from(keys))
            if isinstance(inside[key], dict | list) and inside[key] and draw(st.integers(0, 3)):
                inside = inside[key]
                continue
            match draw(st.sampled_from(["replace", "delete", "double"])):
                case "delete":
                    del inside[key]
                case "double" if isinstance(inside, list):
                    inside.insert(draw(st.sampled_from([0, len(inside)])), inside[key])
                case _:
                    inside[key] = draw(odd)
            break
    data = json.dumps(content).encode()
    if draw(st.integers(0, 4)) == 0:
        place = draw(st.integers(0, len(data) - 1))
        data = data[:place] + draw(st.binary(max_size=4)) + data[place + draw(st.integers(0, 4)) :]
    return data


def restored(data: bytes) -> bytes:
    notebook = submission.notebook_of(data)
    names = restore.recognize(notebook.cells, ABOUT, RELEASED)
    return restore.restore(notebook, names, ABOUT, RELEASED)[0].data


@given(data=notebooks() | odd.map(lambda value: json.dumps(value).encode()) | st.binary())
@example(data=b"[" * 100_000)
@example(data=json.dumps({"cells": [{"cell_type": "code", "source": [1, "\ud800"]}]}).encode())
@example(data=json.dumps(RIGHT | {"cells": [{"source": "x = " + "(" * 150}]}).encode())
@example(data=json.dumps(RIGHT | {"cells": {"source": "\0\f\r"}}).encode())
@fuzz(50)
def test_a_notebook_is_read_and_made_whole_or_unreadable(data):
    started = time.monotonic()
    try:
        found = submission.read(data, ABOUT)
    except submission.Unreadable as error:
        assert str(error)
        return
    submission.odd_code(found.code, [registry.find(task) for task in ABOUT.tasks])
    COURSE.assignment_in(submission.notebook_of(data).cells, NAME)
    whole = restored(data)
    assert restored(whole) == whole
    assert time.monotonic() - started < SECONDS


# --- archives

parts = st.sampled_from(
    ["jane", "..", ".", "", "C:", "a\\b", "victim_1_2_x.ipynb", "-copy" * 40 + "x", "__MACOSX",
     f"X_12_assignsubmission_file_{NAME}", "assignment_1_export", "submission_7", "x.zip", NAME,
     "submission_metadata.yml", "\udc80", "con", "a" * 300, ASSIGNMENT, "_1" * 100, "(1" * 90,
     "1-2 - Jo - Sep 13, 2026 900 AM", "1-2 - 2026 - 2026 - x", "index.html", "submissions.csv",
     "x_jo_attempt_2026-01-30-20-30-10_x.ipynb", "_jo_attempt_2026-99-30-20-30-10.txt",
     "[1]A, [1]B, [1]C", "[1] - jo - x.ipynb", "hw 2026-01-30 jo", "jo_attempt 2", "a_b_jo_4711"]
) | st.text(max_size=6)  # fmt: skip
names = st.lists(parts, min_size=1, max_size=5).map("/".join)


@st.composite
def zips(draw, depth: int = 2) -> bytes:
    buffer = io.BytesIO()
    kinds = [zipfile.ZIP_STORED, zipfile.ZIP_DEFLATED, zipfile.ZIP_BZIP2, zipfile.ZIP_LZMA]
    with zipfile.ZipFile(buffer, "w") as archive:
        for _ in range(draw(st.integers(0, 4))):
            inner = st.binary(max_size=50) | st.just(b"submission_7: {':submitters': 1}")
            if depth:
                inner |= zips(depth - 1)
            info = zipfile.ZipInfo(draw(names).encode(errors="replace").decode() or "x")
            info.compress_type = draw(st.sampled_from(kinds))
            info.external_attr = draw(st.sampled_from([0, 0o120777, 0o10644, 0o20666])) << 16
            archive.writestr(info, draw(inner))
    data = bytearray(buffer.getvalue())
    for _ in range(draw(st.integers(0, 3))):
        place = draw(st.integers(0, len(data) - 1))
        data[place] = draw(st.integers(0, 255))
    return bytes(data)


@given(data=zips())
@fuzz(100)
@pytest.mark.filterwarnings("ignore:Duplicate name")
def test_an_archive_gives_files_or_reasons(data, tmp_path_factory):
    started = time.monotonic()
    place = tmp_path_factory.getbasetemp() / "sent.zip"
    place.write_bytes(data)
    everything = [each for outer in archives.unpack(place) for each in archives.contents(outer)]
    for each in everything:
        try:
            assert len(each.read()) <= archives.LARGEST
        except archives.Refused as error:
            assert str(error)
        try:
            for sender in senders.senders(each, list(COURSE.about)):
                safe = senders.safe_name(sender.student)
                assert "/" not in safe and "\\" not in safe and not safe.startswith(".")
        except archives.Refused as error:
            assert str(error)
    for desk in (DRY, WITH_ROSTER):
        for outer in archives.unpack(place):
            rows = list(desk.take(outer))
            assert rows or archives.is_noise(outer.path) or senders.is_added(outer)
            assert all(row.outcome or row.notes for row in rows)
    assert time.monotonic() - started < SECONDS


DRY = ingest.Desk(COURSE, dry_run=True)
ROSTER = senders.Roster([{"id": "jo", "lms_user_id": "1"}, {"id": "x", "e": "4711"}], "the roster")
WITH_ROSTER = ingest.Desk(COURSE, roster=ROSTER, dry_run=True)


# --- replies of a child

replies = st.recursive(
    scalars
    | st.sampled_from([9 * 10**4298, torch.ones(2, 3), torch.tensor(float("nan")), torch.ones(0)]),
    lambda inner: (
        st.lists(inner, max_size=3)
        | st.lists(inner, max_size=3).map(tuple)
        | st.dictionaries(texts, inner, max_size=3)
    ),
    max_leaves=8,
)
of_run = st.fixed_dictionaries(
    {
        "problems": st.dictionaries(texts, texts, max_size=3) | replies,
        "defined": st.dictionaries(st.sampled_from(ABOUT.tasks), texts, max_size=4) | replies,
    }
)
SEEN = vars(Observation(returned=torch.ones(2, 3)))


def seen(changes: dict) -> tuple:
    """What a child says of a call, with some of it made up."""
    return plain(types.SimpleNamespace(**(SEEN | changes)))


of_observe = st.dictionaries(st.sampled_from(sorted(SEEN)), replies, max_size=3).map(seen)


class Forged:
    """A child of which somebody else writes the replies; None: it dies."""

    late = False  # it started at once
    before = 0.0  # it has not waited for a processor

    def __init__(self, written: dict[str, list]):
        self.written = {question: itertools.cycle(each) for question, each in written.items()}

    def fork(self, tasks: list[str], allowed: tuple[str, ...]) -> "Forged":
        return self

    def ask(self, seconds: float, question: str, *arguments) -> object:
        reply = next(self.written[question])
        if reply is None:
            raise remote.Died("crashed")
        return copy.deepcopy(reply)

    def count(self) -> int:
        return 1

    def waited(self) -> float:
        return 0.0

    def kill(self) -> None:
        pass


@given(
    written=st.fixed_dictionaries(
        {
            "run": st.lists(of_run | of_run | replies, min_size=1, max_size=3),
            "observe": st.lists(of_observe | replies, min_size=1, max_size=4),
            "short_cut": st.lists(replies, min_size=1, max_size=2),
            "provide": st.lists(replies, min_size=1, max_size=2),
        }
    )
)
@example(
    written={
        "run": [{"problems": ["x"], "defined": {}}, {"problems": {}, "defined": {}}],
        "observe": [seen({"printed": 9 * 10**4298}), seen({"gradients": {"scores": [1]}})],
        "short_cut": [("\x1b[2J", seen({})), (None, seen({"returned": 10**400}))],
        "provide": [None],
    }
)
@fuzz(60)
def test_a_forged_reply_is_judged_like_any_other(written):
    notebook = json.dumps(RIGHT).encode()
    found = submission.read(notebook, ABOUT)
    result = score.score(found, ABOUT, Forged(written), Budget())
    assert result.verdicts.keys() == set(ABOUT.tasks)
    json.dumps(result.as_data(), ensure_ascii=False).encode()
