"""The judge's promises: right answers pass, wrong ones fail and are named, nothing breaks it."""

import csv
import dataclasses
import functools
import itertools
import os
import random
import re
import subprocess
import sys
import time
import zlib
from pathlib import Path

import numpy as np
import pytest
import torch
import torch.nn.functional as F
from bench import thoughts
from corpus import correct
from corpus.answers import (
    after_reports_blind,
    blind_1_7,
    blind_8_13,
    blind_again_1_7,
    blind_again_8_13,
    blind_eleventh,
    blind_fifth_1_7,
    blind_fifth_8_14,
    blind_fourth_1_7,
    blind_fourth_8_13,
    blind_sixth_1_7,
    blind_sixth_8_14,
    blind_third_1_7,
    blind_third_8_13,
    by_kind,
)
from corpus.correct import CORRECT
from corpus.correct.scaled_dot_product import ATTENTION
from corpus.odd import odd_answers
from torch.utils._python_dispatch import _get_current_dispatch_mode

from attncourse import checks, lab
from attncourse import scaled_dot_product as reference
from attncourse.checks import (
    check,
    compositions,
    engine,
    explain,
    fingerprint,
    generic,
    lint,
    registry,
    relatives,
    run,
    tables,
)
from attncourse.checks.answer import Answer, apart, is_zero, rounding
from attncourse.checks.diagnosis import Example, smallest_failure
from attncourse.checks.fingerprint import Fingerprint
from attncourse.checks.report import MIME, OPEN
from attncourse.checks.report import _both as both
from attncourse.checks.statements import AXES, CONDITIONS
from attncourse.checks.task import answer_of, compose
from attncourse.lab import lab5_decode_bandwidth as lab5
from attncourse.markup import with_code

TASKS = list(correct.TASKS)
SDPA = "scaled_dot_product_attention"
ANSWER = ATTENTION[0]


def some(every):
    return every[::20]


def others(every):
    return [each for place, each in enumerate(every) if place % 20]


LONG = {  # of the eighth
    *("AdditiveAttention", "DecoderLayer", "beam_search", "conclude", "greedy_decode"),
    *("patched", "test_positions"),
}
QUICK = [task for task in TASKS[::8] if task not in LONG]
SHARES = pytest.mark.parametrize(
    ("task", "share"),
    [
        pytest.param(task, share, marks=[] if share is some and task in QUICK else pytest.mark.slow)
        for task in TASKS
        for share in (some, others)
    ],
)


def name_of(answer):
    return getattr(answer, "__name__", type(answer).__name__)


# --- right answers, wrong answers


@pytest.mark.slow
@pytest.mark.parametrize("task", TASKS)
def test_a_task_is_written_well(task, root):
    """The reference in steps is the reference, in every spelling; every section is in the book."""
    assert list(lint.complaints(registry.find(task), root, faults=False)) == []


@SHARES
def test_a_right_answer_passes_in_any_style(task, share):
    few = f"write six right answers in other words, in CORRECT of {registry.find(task).chapter}.py"
    assert len(CORRECT.get(task, ())) >= 6, few
    for answer in share(CORRECT[task]):
        for report in engine.run_each(task, answer, (1,)):  # on many seeds: make bench
            assert report.passed, (name_of(answer), report)


@pytest.mark.parametrize(
    "task", [pytest.param(t, marks=[] if t in QUICK else pytest.mark.slow) for t in TASKS]
)
def test_a_right_answer_gets_all_points_and_the_way_on(task):
    report = run(task, CORRECT[task][0])
    assert report.earned == report.points == registry.find(task).points
    assert report.diagnosis is None and "Well done" in report.note


@SHARES
def test_a_misconception_is_rejected_and_named(task, share):
    """In its first form; in all of them: make bench."""
    about = registry.find(task)
    for fault in share([*about.faults.values()]):
        assert_named(task, fault, answer_of(about, fault.forms[0]))


def assert_named(task, fault, answer):
    report = run(task, answer)
    assert not report.passed and report.earned < report.points, fault.id
    assert report.diagnosis.ids == [fault.id], report.diagnosis
    assert report.diagnosis.thinks == fault.thinks
    assert fault.thinks in " ".join(str(report).replace("\n  ", " ").split())
    assert list(falsehoods(report)) == [], report


@pytest.mark.slow
@pytest.mark.parametrize("task", TASKS)
def test_a_misconception_is_named_in_other_words_too(task):
    about = registry.find(task)
    as_first = {((id, 0),) for id in about.faults}  # these are named above
    every = [
        each for each in compositions.singles(about) if each.key[1] or each.key[0] not in as_first
    ]
    for each in random.Random(5).sample(every, min(1, len(every))):  # all of them: make bench
        assert run(task, each.make()).diagnosis.ids == [each.faults[0].id]


@pytest.mark.slow
@pytest.mark.parametrize("task", TASKS)
def test_a_misconception_is_rejected_on_another_seed_too(task):
    about = registry.find(task)
    for fault in list(about.faults.values())[::12]:  # all of them: make bench
        results = engine.judge(about, answer_of(about, fault.forms[0]), seed=4)
        assert not all(result.passed for result in results), fault.id


@pytest.mark.parametrize("task", TASKS)
def test_a_table_of_fingerprints_is_current(task):
    about = registry.find(task)
    wanted = tables.is_wanted(about)
    assert tables.is_current(about) == wanted, "run `make fingerprints` and commit"


@pytest.mark.parametrize("task", TASKS)
def test_what_a_table_knows_of_the_reference_is_what_the_reference_shows(task):
    about = registry.find(task)
    known = tables._shown(about)
    shown = tables.shown_by(about) if known else {}
    assert known.keys() == shown.keys()
    for key, piece in known.items():
        assert fingerprint.agree(piece, shown[key], fingerprint.tolerance(about)), key


def test_of_a_reference_that_shows_something_else_here_a_table_knows_nothing(monkeypatch):
    about = registry.find("ablated")
    assert tables._shown(about)
    right = fingerprint.of_reference(about).on("silent")
    elsewhere = {key: 1.5 * x if key[1] in about.returns else x for key, x in right.items()}
    monkeypatch.setattr(fingerprint.Fingerprint, "on", lambda self, probe: elsewhere)
    tables.load.cache_clear()
    try:
        assert not tables.load(about).shown
    finally:
        tables.load.cache_clear()


# Each of these processes has loaded torch, and no task but those that it looks at.
CURRENT = """
import os, sys
from attncourse.checks import registry, tables
assert not [name for name in sys.modules if name.startswith("attncourse.tasks.")]
for names in sys.argv[1:]:
    if not (process := os.fork()):
        for task in map(registry.find, names.split(",")):
            assert tables.is_current(task) == tables.is_wanted(task), task.name
        os._exit(0)
    assert os.waitpid(process, 0)[1] == 0, names
"""


CHANCE = "masked_words", "sample"  # here two thoughts are looked for by shares alone


@pytest.mark.parametrize(
    "task",
    [each for each in TASKS if not tables.is_wanted(registry.find(each)) and each not in CHANCE],
)
def test_where_no_table_is_kept_all_pairs_of_thoughts_are_tried(task):
    both = sum(map(tables._of_thoughts, compositions.pairs(registry.find(task))))
    assert both <= tables.MOST_OF_THOUGHTS


@pytest.mark.slow
@pytest.mark.skipif(not hasattr(os, "fork"), reason="processes are forked here")
def test_a_table_is_current_whatever_else_is_loaded():
    """A student's process loads one task, and the process that makes tables loads all."""
    loaded = TASKS[::-1], TASKS[:1], ["lab2_receipt"], ["masked_words"], ["additive_scores"]
    names = map(",".join, loaded)
    done = subprocess.run([sys.executable, "-c", CURRENT, *names], capture_output=True, text=True)
    assert done.returncode == 0, done.stderr


CODE = '''"""What a task is about."""

import torch


def probes(rng):  # drawn
    """Some numbers."""
    return {"rows": torch.ones(2)}


@task.check(1)
def it_is_right(answer, rng):
    if not answer:

        raise Failure("It is not.")


task.fault("A", step=lambda x: x + 1)
'''


def code_of(text: str, tmp_path) -> str:
    path = tmp_path / f"{zlib.crc32(text.encode())}.py"
    path.write_bytes(text.encode())
    return tables._code(path)


@pytest.mark.parametrize(
    ("before", "after"),
    [
        ("What a task is about.", "What is asked."),
        ("  # drawn", "  # made"),
        ("Some numbers.", "Other numbers."),
        ("It is not.", "It is not right."),
        ("def it_is_right", "def it_is_the_same"),
        ("\n\n\n@task", "\n\n\n\n# --- checks\n\n@task"),
        ("\n", "\r\n"),
    ],
)
def test_another_word_makes_no_table_stale(before, after, tmp_path):
    assert before in CODE
    assert code_of(CODE.replace(before, after), tmp_path) == code_of(CODE, tmp_path)


@pytest.mark.parametrize(
    ("before", "after"),
    [("ones(2)", "ones(3)"), ('"rows"', '"row"'), ("x + 1", "x + 2"), ('"A"', '"B"')],
)
def test_other_code_makes_a_table_stale(before, after, tmp_path):
    assert before in CODE
    assert code_of(CODE.replace(before, after), tmp_path) != code_of(CODE, tmp_path)


@pytest.mark.parametrize(
    ("task", "module"),
    [
        (SDPA, "checks.generic"),
        (SDPA, "checks.compositions"),
        (SDPA, "checks.fingerprint"),
        (SDPA, "checks.inputs"),
        (SDPA, "checks.merge"),
        (SDPA, f"tasks.scaled_dot_product.{SDPA}"),
        ("lab2_receipt", "tasks.receipts"),
        ("lab2_receipt", "tasks.made_up"),
        ("lab2_receipt", "tasks.lab2_quadratic_wall.lab2_receipt"),
        ("additive_scores", "tasks.additive._scores"),
    ],
)
def test_a_table_is_stale_when_what_makes_explanations_changes(task, module, monkeypatch):
    about, code = registry.find(task), tables._code
    assert tables.is_current(about)
    changed = Path(sys.modules[f"attncourse.{module}"].__file__)
    monkeypatch.setattr(tables, "_code", lambda path: code(path) + "x" * (path == changed))
    assert not tables.is_current(about)


@pytest.mark.parametrize("size", [0, 100, 20_000, -30])
def test_a_damaged_table_stops_nobody(size, tmp_path, monkeypatch):
    about = registry.find(SDPA)
    whole = tables.path_of(about).read_bytes()
    monkeypatch.setattr(tables, "FOLDER", tmp_path)
    tables.path_of(about).write_bytes(whole[:size])
    tables.load.cache_clear()
    try:
        assert tables.load(about) is None
        assert not run(SDPA, wrong("D-NO-SCALE", SDPA)).passed
    finally:
        tables.load.cache_clear()


def test_another_description_in_between_costs_no_name(monkeypatch):
    """Rows of a table are found by what they explain, wherever that stands."""
    for cached in (generic.of, compositions._generic, compositions.singles, tables.load):
        cached.cache_clear()
    twice = ("AS-IF-OUT-TWICE", lambda x: 2 * x)
    monkeypatch.setattr(generic, "TENSOR_OUT", (twice, *generic.TENSOR_OUT))
    try:
        report = run(SDPA, without_scale_and_dead_rows)
        assert report.diagnosis.ids == ["D-NO-SCALE", "M-DEAD-ROW"]
    finally:
        monkeypatch.undo()
        for cached in (generic.of, compositions._generic, compositions.singles, tables.load):
            cached.cache_clear()


SHOUTED = {"cpu", "cpus", "gpu", "gpus", "gru", "nan", "eos", "bos", "mha", "mqa", "t4", "h100"}


def test_the_title_of_a_check_is_read_like_a_sentence():
    for task in registry.all_tasks().values():
        for name in task.checks:
            words = set(re.findall(r"[\w'’-]+", name))
            assert not words & {*SHOUTED, "torchs", "cudnn", "gpt"}, (task.name, name)


@pytest.mark.slow
def test_no_two_misconceptions_give_the_same_diagnosis():
    for task in registry.all_tasks().values():
        for one, two in itertools.combinations(task.faults.values(), 2):
            for field in ("thinks", "why"):
                assert getattr(one, field) != getattr(two, field), (one.id, two.id)


def test_a_diagnosis_is_short():
    for fault in (each for task in registry.all_tasks().values() for each in task.faults.values()):
        assert len(f"{fault.thinks} {fault.why}".split()) <= 60, fault.id


# --- what no check may let through, of any task


def leaving(setting):
    """An answer to `softmax` that is right, and leaves torch otherwise than it was."""

    def softmax(scores, dim=-1):
        weights = CORRECT["softmax"][0](scores, dim)
        setting()
        return weights

    return softmax


@pytest.mark.parametrize(
    "setting",
    [
        lambda: torch.set_grad_enabled(not torch.is_grad_enabled()),
        lambda: torch.set_default_dtype(torch.float64),
        lambda: torch.set_num_threads(torch.get_num_threads() + 1),
        lambda: torch.use_deterministic_algorithms(True),
        lambda: torch.manual_seed(0),
    ],
    ids=["gradients", "dtype", "threads", "deterministic", "seed"],
)
def test_an_answer_that_leaves_a_setting_turned_is_told(setting):
    before = torch.get_num_threads()
    report = run("softmax", leaving(setting))
    assert not report.passed and report.earned > 0
    assert "for all code after it" in plain(str(report)) or "random state" in str(report)
    assert torch.get_num_threads() == before and torch.is_grad_enabled()
    assert not torch.are_deterministic_algorithms_enabled()


def test_an_answer_that_relies_on_how_its_inputs_lie_in_memory_is_told():
    def split_heads(x, num_heads):
        b, n, width = x.shape
        d = width // num_heads
        return x.as_strided((b, num_heads, n, d), (n * width, d, width, 1))

    report = run("split_heads", split_heads)
    failed = [result.message for result in report.results if not result.passed]
    assert "a slice of a wider tensor" in failed[-1]


def by_storage(scores):
    q, r = scores.shape[-2:]
    *axes, row, column = scores.stride()
    return scores.as_strided((*scores.shape[:-1], r - q + 1), (*axes, row - column, column), q - 1)


def as_pairs(x, positions, base=10_000.0):
    d = x.shape[-1]
    angles = positions[:, None] * base ** (-torch.arange(0, d, 2, dtype=torch.float64) / d)
    pairs = torch.view_as_complex(x.double().unflatten(-1, (d // 2, 2)))
    turned = pairs * torch.polar(torch.ones_like(angles), angles)
    return torch.view_as_real(turned).flatten(-2).to(x.dtype)


def in_one_row(x, *matrices):
    words = x.view(-1, x.shape[-1])
    return CORRECT["self_attention"][0](words.unflatten(0, x.shape[:-1]), *matrices)


@pytest.mark.parametrize(
    ("task", "answer", "said"),
    [
        ("shift_relative", by_storage, "a slice of a wider tensor"),
        ("rotate", as_pairs, "in float64, but each input a slice of a wider tensor"),
        ("self_attention", in_one_row, "in another order in memory"),
    ],
)
def test_what_inputs_in_any_place_and_order_of_memory_show(task, answer, said):
    report = run(task, answer)
    failed = [result.message for result in report.results if not result.passed]
    assert said in failed[-1], report


def test_angles_in_single_precision_are_told_at_far_places():
    def rotate(x, positions, base=10000.0):
        exact = torch.float64 if x.dtype == torch.float64 else torch.float32
        pairs = torch.arange(0, x.shape[-1], 2, dtype=exact) / x.shape[-1]
        angles = positions.to(exact)[..., None] * base**-pairs
        cos, sin = angles.cos().to(x.dtype), angles.sin().to(x.dtype)
        a, b = x[..., 0::2], x[..., 1::2]
        return torch.stack([a * cos - b * sin, a * sin + b * cos], -1).flatten(-2)

    failed = [result.name for result in run("rotate", rotate).results if not result.passed]
    assert failed == ["far places are right too"]


def test_another_error_than_the_one_asked_for_is_told():
    table = {"MHA": 2, "GQA": 2, "MQA": 2, "MLA": 1}

    def bytes_per_token(scheme, *sizes, **named):
        table[scheme]
        return CORRECT["bytes_per_token"][0](scheme, *sizes, **named)

    report = run("bytes_per_token", bytes_per_token)
    assert [result.name for result in report.results if not result.passed] == [
        "a scheme that does not exist is an error"
    ]
    assert "raised KeyError: 'XQA'" in plain(str(report))


# --- nothing false

TWO_NUMBERS = r"should be (\S+); yours is (\S+?)\. ", r"returned (.+?); expected (.+?)\. "


def test_a_reason_is_said_in_full_once_and_a_table_of_facts_has_names_before_its_numbers():
    def query_as_it_is(query, keys, W_query, W_key, v):
        return torch.tanh(query @ W_query + keys @ W_key) @ v

    text = " ".join(f"{checks.run('additive_scores', query_as_it_is)}".split())
    assert text.count("size of tensor a (2) must match the size of tensor b (4)") == 1
    assert "the same" not in text
    equivariant = registry.find("is_permutation_equivariant")
    features = answer_of(equivariant, equivariant.faults["C-FEATURES-MOVED"].forms[2])
    text = " ".join(f"{checks.run('is_permutation_equivariant', features)}".split())
    assert text.count("the same as for “") == 1
    assert "expected 1: 0 got 1: 1" in " ".join(
        f"{checks.run('exact_match_by_length', lambda p, t, lengths: {1: 1.0})}".split()
    )


def falsehoods(report):
    """What is true of no answer, whatever it does, in the words of its report."""
    about, diagnosis = report.about, report.diagnosis
    text = " ".join(f"{report} ".split())
    yield from re.findall("see above|last axis but|matter here", text)
    yield from re.findall("is right now", text)  # beside another mistake it is not
    shown = "What we saw:", "Smallest failing input found", "Which outputs"
    if "here is what we saw" in text and not any(each in text for each in shown):
        yield "nothing was seen"
    for pattern in TWO_NUMBERS:
        yield from (one for one, two in re.findall(pattern, text) if one == two)
    if diagnosis.example:
        for words, holds in CONDITIONS:
            if f"wrong exactly where {words}." in text and not holds(diagnosis.example.inputs):
                yield f"the smallest failing input contradicts: {words}"
        expected, got = both(diagnosis.example)
        if expected == got and "got, with shape" not in text:
            yield f"expected and got {got}"
    inputs = [*fingerprint.probes(about).values(), *about.small(torch.Generator())]
    weights = {name.split(".")[0] for each in inputs for name in each if "." in name}
    words = re.findall(r"\w+", " ".join(map(about.called, {n for each in inputs for n in each})))
    known = about.parameters | weights | {*words, *fingerprint.outputs(about)}
    for sentence in (*diagnosis.seen, diagnosis.why if not diagnosis.thinks else ""):
        names = re.findall("`(.+?)`", sentence)
        yield from (name for name in names if not {name, re.match(r"\w*", name)[0]} & known)


@pytest.mark.slow
@pytest.mark.parametrize(
    "task", [pytest.param(t, marks=[] if t in QUICK else pytest.mark.slow) for t in TASKS]
)
def test_no_report_says_what_cannot_be_true(task):
    """Names are the student's or words of the task; what differs looks so; nothing is "above"."""
    for answer in itertools.islice(odd_answers(registry.find(task)), 1):  # more: make bench
        assert_nothing_false(run(task, answer))


def assert_nothing_false(report):
    assert report.passed or list(falsehoods(report)) == [], report


BLIND = (
    *(blind_1_7, blind_8_13, blind_again_1_7, blind_again_8_13),
    *(blind_third_1_7, blind_third_8_13, by_kind),
    *(blind_fourth_1_7, blind_fourth_8_13, after_reports_blind),
    *(blind_fifth_1_7, blind_fifth_8_14, blind_sixth_1_7, blind_sixth_8_14, blind_eleventh),
)
UNNAMED = {  # what is told of them is the check that fails
    blind_third_8_13: ("rotate-2", "shift_relative-1", "cached_attention-3"),
    blind_third_1_7: ("fit_growth-3",),
    blind_eleventh: blind_eleventh.UNNAMED,
}


@pytest.mark.slow
@pytest.mark.parametrize(
    "entry",
    [each for blind in BLIND for each in blind.corpus.all if each.id in blind.MENDED],
    ids=lambda each: each.id,
)
def test_the_judge_knows_what_a_blind_writer_taught_it(entry):
    report = run(entry.task, entry.answer)
    if entry.slip is None:
        assert report.passed, report
        return
    assert not report.passed and not report.diagnosis.partly
    named = set(report.diagnosis.ids)
    assert len(named) == len(entry.mistakes), report
    assert all(named & set(fair) for fair in entry.mistakes), report
    assert list(falsehoods(report)) == [], report


@pytest.mark.slow
@pytest.mark.parametrize(
    "entry",
    [each for blind, ids in UNNAMED.items() for each in blind.corpus.all if each.id in ids],
    ids=lambda each: each.id,
)
def test_the_judge_refuses_what_it_once_accepted(entry):
    assert not run(entry.task, entry.answer).passed


@pytest.mark.slow
def test_a_blind_writer_is_told_nothing_that_is_true_of_no_answer():
    for entry in (*blind_1_7.corpus.all, *blind_8_13.corpus.all):
        report = run(entry.task, entry.answer)
        assert report.passed == (entry.slip is None), report
        assert report.passed or list(falsehoods(report)) == [], report


ZERO = "linear_step", "gated_cross_attention"  # in whose checks some gradients are zero


@pytest.mark.parametrize(
    "task", [pytest.param(t, marks=[] if t in ZERO else pytest.mark.slow) for t in TASKS]
)
def test_a_gradient_that_is_zero_may_be_missing(task, monkeypatch):
    """The first word has weight 1 whatever it asks, so a right answer need not use its query."""
    observe = Answer.observe

    def without_zeros(self, inputs, **options):
        seen = observe(self, inputs, **options)
        floor = rounding(seen.gradients.values())
        left = {name: None if is_zero(x, floor) else x for name, x in seen.gradients.items()}
        missing.extend(name for name, x in left.items() if x is None)
        return dataclasses.replace(seen, gradients=left)

    missing = []
    monkeypatch.setattr(Answer, "observe", without_zeros)
    results = engine.judge(registry.find(task), CORRECT[task][0])
    assert [each.message for each in results if not each.passed] == []
    assert missing or task not in ZERO


@pytest.mark.slow
def test_a_gradient_that_is_not_zero_may_not_be_missing():
    """Query and key of one word give no gradient at all, those of a later word do."""

    def linear_step(state, query, key, value):
        return CORRECT["linear_step"][0](state, query.detach(), key, value)

    report = run("linear_step", linear_step)
    assert "No gradient reaches query" in str(report)


def test_no_gradient_where_it_would_be_zero_is_no_evidence():
    """A right one beside a fault that is seen elsewhere: the fault is named all the same."""

    def linear_step(state, query, key, value):
        query, key = F.elu(query) + 1, F.elu(key) + 1
        new = key[..., None] * value[..., None, :]
        if state is None:
            return value.clone(), (new, key)
        total, weight = state[0] + new, key
        sums = (query[..., None] * total).sum(-2)
        return sums / (query * weight).sum(-1, keepdim=True), (total, weight)

    assert run("linear_step", linear_step).diagnosis.ids == ["L-WEIGHT-NOT-ADDED"]


def test_what_a_result_should_not_depend_on_is_said_plainly():
    def linear_attention(query, key, value):
        right = CORRECT["linear_attention"][0](query, key, value)
        return right + query[..., :1, :1] / 7

    report = run("linear_attention", linear_attention)
    said = (
        r"In a `query` of shape \(.+\) we changed `query\[.+\]`: your result changed, and a right"
    )
    assert any(re.match(said, each) for each in report.diagnosis.seen), report.diagnosis.seen


def test_rows_of_one_text_are_not_called_a_batch():
    def attention(query, key, value, mask=None):
        output, weights = ANSWER(query, key, value, mask)
        return output + query.sum(-2, keepdim=True)[..., :1] / 7, weights

    diagnosis = run(SDPA, attention).diagnosis
    assert diagnosis.id is None
    assert "batch" not in " ".join(diagnosis.seen), diagnosis.seen


def scaled_by_heads_and_width(q, k, v):
    scores = q @ k.mT / (q.shape[1] * q.shape[-1]) ** 0.25  # right where h is d, or with one key
    return torch.softmax(scores, dim=-1) @ v


def test_no_two_sizes_are_named_where_one_key_makes_an_answer_right():
    diagnosis = run("naive_attention", scaled_by_heads_and_width).diagnosis
    assert not any("is equal to" in each for each in diagnosis.seen)


def scaled_by_the_keys_and_dead_rows_even(query, key, value, mask=None):
    scores = query @ key.mT / key.shape[-2] ** 0.5
    if mask is None:
        return (weights := scores.softmax(-1)) @ value, weights
    dead = ~mask.any(-1, keepdim=True)
    weights = scores.masked_fill(~mask, torch.finfo(scores.dtype).min).softmax(-1)
    return (weights @ value).masked_fill(dead, 0), weights


def test_no_statement_contradicts_the_smallest_failing_input():
    report = run("mended_attention", scaled_by_the_keys_and_dead_rows_even)
    assert report.diagnosis.example and list(falsehoods(report)) == []


def values_bent(query, key, value, mask=None):
    scores = query @ key.mT / query.shape[-1] ** 0.5
    if mask is None:
        return (weights := scores.softmax(-1)) @ value.sin(), weights
    weights = scores.masked_fill(~mask, -1e30).softmax(-1) * mask
    return weights @ value.sin(), weights


def test_which_of_several_results_is_right_is_said():
    seen = run(SDPA, values_bent).diagnosis.seen
    assert "`weights` came back right on every input we tried; `output` did not." in seen


def groups_are_dear(
    scheme, num_layers, num_heads, head_width, bytes_per_number,
    kv_heads=None, latent_width=None, rope_width=None, wrong=ValueError,
):  # fmt: skip
    if scheme == "MLA":
        return num_layers * (latent_width + rope_width) * bytes_per_number
    heads = {"MHA": num_heads, "GQA": kv_heads, "MQA": 1}
    if scheme not in heads:
        raise wrong
    more = 5 if scheme == "GQA" else 0
    return num_layers * (2 * heads[scheme] * head_width + more) * bytes_per_number


def test_the_flag_under_which_an_answer_is_wrong_is_said():
    said = "Of the inputs we tried, it is wrong exactly where `scheme` is 'GQA'."
    assert said in run("bytes_per_token", groups_are_dear).diagnosis.seen
    elsewhere = functools.partial(groups_are_dear, wrong=KeyError)
    assert said not in run("bytes_per_token", elsewhere).diagnosis.seen


def finds_two_products_and_a_softmax(fn):
    names = " ".join(lab.trace(fn))
    known = {"flash": "FLASH", "efficient": "EFFICIENT", "cudnn": "CUDNN"}
    for part, backend in known.items():
        if f"{part}_attention" in names:
            return backend
    if "_native_multi_head_attention" in names:
        return "NATIVE_MHA"
    if "_safe_softmax" in names:
        return "MATH"
    return "NAIVE" if names.count("mm") >= 2 and "_softmax" in names else "NONE"


def test_an_example_says_what_a_function_does_in_words():
    text = str(run("which_backend", finds_two_products_and_a_softmax))
    assert "two products, then a softmax" in text
    assert "{" not in text


@pytest.mark.slow
def test_two_thoughts_that_hide_each_other_are_found():
    """On nearly all probes both show, so that neither can be told there."""

    def attention(query, key, value, mask=None):
        scores = query @ key.mT / query.shape[-1] ** 0.5
        if mask is not None:
            scores = scores.masked_fill(mask, -1e9)
        weights = scores.softmax(-2)
        return weights @ value, weights

    assert set(run(SDPA, attention).diagnosis.ids) == {"M-POLARITY", "D-SOFTMAX-DIM"}


@pytest.mark.slow
def test_who_draws_one_word_for_all_does_not_take_the_likeliest():
    """With two seeds of the judge it is the likeliest word by chance, and with more it is not."""

    def sample(logits, temperature=1.0, top_k=None, top_p=None):
        p, words = (logits / temperature).softmax(-1).sort(descending=True)
        kept = (torch.arange(p.shape[-1]) < (top_k or p.shape[-1])).expand_as(p)
        kept = kept & (p.cumsum(-1) - p < (top_p or 2) * (p * kept).sum(-1, keepdim=True))
        p = p * kept
        bounds = (p / p.sum(-1, keepdim=True)).cumsum(-1)
        place = torch.searchsorted(bounds, torch.rand(1, 1).expand(len(p), 1))
        return words.gather(-1, place)[:, 0]

    report = run("sample", sample)
    assert report.diagnosis.ids == ["P-ONE-DRAW"] and "another one" in str(report)


@pytest.mark.slow
def test_what_gets_no_gradient_in_the_reference_is_not_missed():
    """The first word sees one key: its query's slope is rounding, 5e-8 beside 1e-1."""

    def linear_attention(query, key, value):
        score = torch.nn.functional.elu(query @ key.mT) + 1
        score = score.tril()
        return score @ value / score.sum(-1, keepdim=True)

    seen = run("linear_attention", linear_attention).diagnosis.seen
    assert not any("gradient" in words for words in seen), seen


@pytest.mark.parametrize(
    ("form", "one", "two", "said"),
    [
        (".2f", 0.0, 0.001, ("0.000", "0.001")),
        (".0%", 0.5, 0.5004, ("50.00%", "50.04%")),
        (".3g", 1.0, 2.0, ("1", "2")),
    ],
)
def test_two_numbers_that_differ_are_written_so(form, one, two, said):
    assert apart(one, two, form) == said


def test_every_input_has_a_name_that_a_student_knows():
    """A parameter's, or words of `<task>.md`; where it is no parameter, no description names it."""
    rng = torch.Generator
    for about in registry.all_tasks().values():
        maps = about.maps(rng()) if about.maps else []
        seen = [*fingerprint.probes(about).values(), *about.small(rng()), *(m[1] for m in maps)]
        for name in {name for inputs in seen for name in inputs if "." not in name}:
            assert about.gives(name) or about.called(name) != f"`{name}`", (about.name, name)


def test_what_stands_for_no_word_is_said_to():
    late = wrong("C-STOPS-WITH-ROW-0", "greedy_decode")
    said = "Its words (−1: none was written, behind a last word that is not `eos`):"
    assert said in plain(str(run("greedy_decode", late)))


def test_an_axis_is_called_as_in_the_books_notation(root):
    table = (root / "book" / "notation.md").read_text(encoding="utf-8")
    for letter, word in AXES.items():
        (said,) = re.findall(rf"^\| .*`{letter}`.* \| (.+) \|$", table, re.MULTILINE)
        assert word in said, letter


# --- two at once, and what is not known


def without_scale_and_dead_rows(query, key, value, mask=None):
    scores = query @ key.transpose(-2, -1)
    if mask is not None:
        scores = scores.masked_fill(mask == 0, float("-inf"))
    weights = torch.nn.functional.softmax(scores, -1)
    return torch.matmul(weights, value), weights


def opposite_mask_and_dead_rows(query, key, value, mask=None):
    scores = torch.einsum("...id,...jd->...ij", query, key) / query.size(-1) ** 0.5
    if mask is not None:
        scores[mask.expand_as(scores)] = -float("inf")
    weights = scores.softmax(dim=-1)
    return torch.einsum("...ij,...jd->...id", weights, value), weights


@pytest.mark.parametrize(
    ("answer", "ids"),
    [
        (without_scale_and_dead_rows, ["D-NO-SCALE", "M-DEAD-ROW"]),
        (opposite_mask_and_dead_rows, ["M-POLARITY", "M-DEAD-ROW"]),
    ],
)
def test_two_errors_at_once_are_both_named_the_one_that_shows_more_first(answer, ids):
    report = run(SDPA, answer)
    assert report.diagnosis.ids == ids
    assert report.as_dict()["diagnoses"] == ids
    text, html = str(report), report._repr_mimebundle_()["text/html"]
    for shown in (text, html):
        assert "Two things at once" in shown and "Mend the first and run again" in plain(shown)
        # each is written of an answer that is right but for it
        assert "each is told as if it were the only one" in plain(shown)
        assert shown.index(ids[0]) < shown.index(ids[1])


def plain(text):
    return " ".join(text.split())


# --- half of a known mistake, one to the other side, and two that no table holds


def columns_from_one(rows, columns, width):
    def table(places):
        feature = torch.arange(width // 2)
        angle = places[:, None].double() / 10_000 ** (2 * (feature // 2) / (width // 2))
        return torch.where(feature % 2 == 0, angle.sin(), angle.cos()).float()

    row = table(torch.arange(rows)).repeat_interleave(columns, 0)
    return torch.cat([row, table(torch.arange(1, columns + 1)).repeat(rows, 1)], 1)


def values_in_front(cache, key, value):
    if cache is None:
        return key, value
    return torch.cat([cache[0], key], -2), torch.cat([value, cache[1]], -2)


def texts_without_temperature(images, texts, temperature):
    images, texts = (F.normalize(x, dim=1) for x in (images, texts))
    scores, own = images @ texts.T, torch.arange(len(images))
    return (F.cross_entropy(scores / temperature, own) + F.cross_entropy(scores.T, own)) / 2


@pytest.mark.parametrize(
    ("task", "answer", "id"),
    [
        pytest.param("positions_2d", columns_from_one, "C-2D-FROM-ONE", id="one call of two"),
        pytest.param("extend", values_in_front, "K-NEW-FIRST", id="one result of two"),
        pytest.param(
            "contrastive_loss",
            texts_without_temperature,
            "C-PAIRS-NO-TEMPERATURE",
            id="one place of two",
        ),
    ],
)
def test_half_of_a_mistake_is_named_as_half(task, answer, id):
    diagnosis = run(task, answer).diagnosis
    assert (diagnosis.ids, diagnosis.title) == ([id], f"half of {id}")
    thinks = registry.find(task).faults[id].thinks
    assert diagnosis.thinks == f"In a part of what you compute, and not in all of it: {thinks}"


def places_from_minus_one(length, width):
    speeds = 10_000.0 ** -(torch.arange(0, width, 2) / width)
    angles = torch.arange(-1, length - 1)[:, None] * speeds
    return torch.stack([angles.sin(), angles.cos()], dim=-1).flatten(1)[:, :width]


def another_ridge(record):
    """The reference, but for what it says of the ridge: that is the opposite."""
    found = lab5.conclude_decode(record)
    return found | {"computes": not found["computes"]}


def test_yes_and_no_have_no_other_side():
    about = registry.find("conclude_decode")
    found = explain.evidence(about, Fingerprint(about, another_ridge))
    assert not relatives._measured(found)
    assert not any(
        isinstance(each.faults[0], relatives.Moved) for each in relatives.explaining(found)
    )


def test_a_mistake_to_the_other_side_is_told_by_the_one_that_is_known():
    about = registry.find("sinusoidal_positions")
    (fault,) = explain.best(
        explain.evidence(about, Fingerprint(about, places_from_minus_one))
    ).faults
    assert fault.id == "AS-IF-OTHER-SIDE"
    assert f"“{about.faults['C-FROM-ONE'].thinks}”, but to the other side" in fault.why


def looks_back_and_not_at_itself(n, width, global_tokens=0):
    i = torch.arange(n)
    ago, first = i[:, None] - i, i < global_tokens
    return ((ago > 0) & (ago <= width)) | first | first[:, None]


def test_two_mistakes_in_one_step_are_both_named():
    diagnosis = run("window_mask", looks_back_and_not_at_itself).diagnosis
    assert set(diagnosis.ids) == {"W-PAST-ONLY", "W-NOT-ITSELF"}


@pytest.mark.slow
def test_two_mistakes_are_named_in_forms_of_which_no_table_holds_the_pair():
    about = registry.find("DecoderLayer")
    table, forms = tables.load(about), dict(compositions._forms(about))
    parts = ("X-TGTMASK", 1), ("C-FLOAT32", 0)
    assert (parts, 0) not in [table.rows_of_two[n] for n in range(len(table.two))]
    diagnosis = run(about.name, compose(about, *(forms[part] for part in parts))).diagnosis
    assert set(diagnosis.ids) == {name for name, _ in parts}


def all_masked_and_zero_elsewhere(tokens, share, mask_id, vocabulary_size, rng):
    asked = torch.rand(tokens.shape, generator=rng) < share
    return tokens.masked_fill(asked, mask_id), tokens * asked


@pytest.mark.slow
def test_two_mistakes_are_named_where_no_table_is_kept():
    diagnosis = run("masked_words", all_masked_and_zero_elsewhere).diagnosis
    assert set(diagnosis.ids) == {"W-ALL-MASKED", "W-NOTHING-IS-ZERO"}


def test_who_returns_a_result_in_another_form_is_told_what_is_wrong_with_it():
    """One result of two, a float for a whole number, pairs one by one."""

    def self_attention(x, W_query, W_key, W_value):
        return ((x @ W_query) @ (x @ W_key).mT).softmax(-1) @ (x @ W_value)

    assert run("self_attention", self_attention).diagnosis.ids == ["D-OUTPUT-ONLY", "D-NO-SCALE"]

    def attend(query, key, value, mask=None):
        return ANSWER(query, key, value, mask)[0]

    assert run(SDPA, attend).diagnosis.ids == ["D-OUTPUT-ONLY"]

    def attention_parameters(model_width, num_heads, num_layers, head_width=None):
        return 4.0 * model_width**2 * num_layers

    assert run("attention_parameters", attention_parameters).diagnosis.ids == [
        "C-PARAMETERS-FLOAT",
        "C-PARAMETERS-FIXED-WIDTH",
    ]

    def next_word_pairs(tokens):
        for place, token in enumerate(tokens):
            yield tokens[:place], token

    assert run("next_word_pairs", next_word_pairs).diagnosis.ids == [
        "C-ONE-BY-ONE",
        "C-EMPTY-CONTEXT",
    ]


def test_a_thought_of_one_task_is_known_to_all_in_which_it_can_occur():
    known = thoughts.data()
    named = {thought for thought, _ in known} | set(thoughts.RULES)
    for task in registry.all_tasks().values():
        for thought in named:
            assert thoughts.square(task, thought, known), (task.name, thought)
    for (_, task), (faults, _) in known.items():
        assert set(faults) <= set(registry.find(task).faults if task else ())
    written = Path(__file__).parent / "bench/thoughts.md"
    assert thoughts.table() == written.read_text(encoding="utf-8"), "python tests/bench/thoughts.py"


def test_each_mistake_of_a_public_report_is_in_the_list_of_its_task():
    with (Path(__file__).parent / "bench/reports.csv").open(encoding="utf-8") as file:
        for row in csv.DictReader(file):
            assert row["fault"] in registry.find(row["task"]).faults, row


def test_an_unknown_error_gets_evidence_and_no_name():
    def strange(query, key, value, mask=None):
        output, weights = ANSWER(query, key, value, mask)
        return output * 1.7 - 0.3, weights

    report = run(SDPA, strange)
    assert report.diagnosis.id is None
    assert report.diagnosis.example is not None
    assert report.diagnosis.map is not None
    text = str(report)
    assert "expected" in text and "got" in text and "■" in text


@pytest.mark.slow
def test_a_thought_that_explains_a_part_is_said_to_be_one():
    def softmax(scores, dim=-1):
        e = (scores.amin(dim, keepdim=True) - scores).exp()
        e = e / e.sum(dim, keepdim=True)
        return e.roll(1, dim) if scores.dtype == torch.float64 else e  # something else besides

    report = run("softmax", softmax)
    assert report.diagnosis.ids == ["D-SOFTMAX-MINUS"] and report.diagnosis.partly
    for shown in (str(report), report._repr_mimebundle_()["text/html"]):
        assert (
            "At least part of this looks like" in plain(shown)
            and "What you probably think" not in shown
        )
    whole = run("softmax", wrong("D-SOFTMAX-MINUS", "softmax"))
    assert not whole.diagnosis.partly and "What you probably think" in str(whole)


def groups_repeated_in_numpy(query, key, value, mask=None):
    q, k, v = (each.detach().numpy() for each in (query, key, value))
    times = q.shape[-3] // k.shape[-3]
    tiles = (1,) * (k.ndim - 3) + (times, 1, 1)
    k, v = np.tile(k, tiles), np.tile(v, tiles)
    scores = q @ k.swapaxes(-1, -2) / np.sqrt(np.float32(q.shape[-1])).astype(q.dtype)
    if mask is not None:
        scores = np.where(mask.numpy(), scores, -np.inf)
    top = scores.max(-1, keepdims=True)
    weights = np.exp(scores - np.where(np.isinf(top), 0, top))
    total = weights.sum(-1, keepdims=True)
    weights = weights / np.where(total == 0, 1, total)
    return torch.from_numpy(weights @ v), torch.from_numpy(weights)


def groups_repeated_and_not_scaled_in_numpy(query, key, value, mask=None):
    return groups_repeated_in_numpy(query * query.shape[-1] ** 0.5, key, value, mask)


@pytest.mark.parametrize(
    ("answer", "ids"),
    [
        (groups_repeated_in_numpy, {"G-ORDER"}),
        (groups_repeated_and_not_scaled_in_numpy, {"G-ORDER", "D-NO-SCALE"}),
    ],
)
def test_what_values_show_is_named_though_no_gradient_arrives(answer, ids):
    report = run("grouped_query_attention", answer)
    assert set(report.diagnosis.ids) == ids and report.diagnosis.partly
    assert "`query` should get a gradient, and none arrives at it." in report.diagnosis.seen
    for shown in (str(report), report._repr_mimebundle_()["text/html"]):
        assert "At least part of this looks like" in plain(shown)
        assert "Two things at once" not in shown  # the missing gradient is a third


def the_distance_comes_back_and_nothing_is_hidden(query, key, value, mask=None):
    gap = query.unsqueeze(-2) - key.unsqueeze(-3)
    far = torch.linalg.vector_norm(gap, dim=-1)
    return torch.einsum("...ij,...jd->...id", torch.softmax(far, dim=-1), value), far


def tiled_by_width_and_hidden_by_zero(query, key, value, mask=None):
    tile = (1,) * (key.ndim - 3) + (query.size(-3) // key.size(-3), 1, 1)
    scores = torch.matmul(query, key.repeat(tile).mT) / query.size(-1)
    if mask is not None:
        scores = scores * mask
    weights = F.softmax(scores, dim=-1)
    return torch.matmul(weights, value.repeat(tile)), weights


@pytest.mark.parametrize(
    ("task", "answer", "ids"),
    [
        (
            SDPA,
            the_distance_comes_back_and_nothing_is_hidden,
            {"D-DISTANCE", "D-SCORES-AS-WEIGHTS", "M-IGNORED"},
        ),
        (
            "grouped_query_attention",
            tiled_by_width_and_hidden_by_zero,
            {"G-ORDER", "G-REPEAT", "D-SCALE-DK", "M-FILL-ZERO"},
        ),
    ],
)
def test_two_of_three_mistakes_are_named_as_a_part(task, answer, ids):
    report = run(task, answer)
    assert len(report.diagnosis.ids) == 2 and set(report.diagnosis.ids) < ids, report
    assert report.diagnosis.partly and report.diagnosis.also.partly
    for shown in (str(report), report._repr_mimebundle_()["text/html"]):
        assert (
            plain(shown).count("At least part of this looks like") == 2
            and "Two things at once" not in shown
        )


def test_half_of_what_is_wrong_names_no_thought():
    """Here the width counts the word itself; "half of the width" explains as much by chance."""

    def window_mask(n, width, global_tokens=0):
        i = torch.arange(n)
        seen = (i[:, None] - i).abs() < max(width, 1)
        return seen | (i < global_tokens) | (i < global_tokens)[:, None]

    assert run("window_mask", window_mask).diagnosis.ids != ["W-WIDTH-WHOLE"]


@pytest.mark.slow
def test_an_error_alone_is_not_explained_by_two_thoughts():
    def two_axes_more(text, memory, attention, gate, memory_mask=None):
        mask = None if memory_mask is None else memory_mask[:, None, None]
        found, weights = attention(text, memory, memory, mask)
        return text + gate.tanh() * found, weights

    assert run("gated_cross_attention", two_axes_more).diagnosis.id is None


def test_the_smallest_failing_input_is_small():
    example = run(SDPA, wrong("D-NO-SCALE")).diagnosis.example
    assert max(example.inputs["query"].shape) <= 2  # d = 1 needs no scale, so d is 2
    assert not torch.allclose(example.expected, example.got)


def test_rows_of_several_matrices_come_with_the_shape():
    task = "grouped_query_attention"
    report = run(task, wrong("G-REPEAT", task))
    example = report.diagnosis.example
    heads = f"query ({' '.join(map(str, example.inputs['query'].shape))})"
    for shown in (str(report), report._repr_mimebundle_()["text/html"]):
        assert heads in shown and "Its weights (" in shown
    assert "Its weights:" in str(run(SDPA, wrong("D-NO-SCALE")))  # one matrix shows its shape


def test_what_no_small_input_shows_is_shown_on_the_smallest_probe_that_does():
    counted_once = wrong("B-ONCE-A-WORD", "byte_pairs")
    task = registry.find("byte_pairs")
    assert smallest_failure(task, counted_once) is None
    example = run("byte_pairs", counted_once).diagnosis.example
    assert example.inputs == {"words": {"abxab": 2, "cd": 3}, "num_merges": 1}
    assert (example.expected, example.got) == ([("a", "b")], [("c", "d")])
    example = run("backends_for", wrong("L3-FLASH-MASK", "backends_for")).diagnosis.example
    assert example.inputs["call"]["mask"] and example.got == ["FLASH", *example.expected]


@pytest.mark.slow
def test_an_example_of_a_gradient_is_not_called_a_result():
    def shift_relative(scores):
        shifted = CORRECT["shift_relative"][0](scores).detach()
        first = scores[..., : shifted.shape[-1]]
        return shifted + first - first.detach()

    report = str(run("shift_relative", shift_relative))
    assert "Its gradient of scores:" in report and "Its result:" not in report, report


def test_an_example_that_takes_other_calls_first_says_so():
    """Alone, with its own input, an answer that keeps something may be right."""
    assert "found, after calls with others:" in str(run("rotate", wrong("C-ROPE-KEPT", "rotate")))
    assert "after calls" not in str(run("rotate", wrong("C-FROM-ONE", "rotate")))


@pytest.mark.slow
def test_no_task_that_draws_is_told_that_it_needs_no_chance():
    report = plain(str(run("masked_words", wrong("W-GLOBAL-CHANCE", "masked_words"))))
    assert "the global random state, which nothing here needs" in report, report


def test_what_a_map_is_of_is_said_without_another_map():
    for task in registry.all_tasks().values():
        titles = [title for title, *_ in task.maps(torch.Generator())] if task.maps else []
        assert not [title for title in titles if title.startswith("the same")], task.name


def test_a_share_is_not_called_an_id():
    facts = fingerprint.of_reference(registry.find("masked_words")).everything().pieces.values()
    names = {name for each in facts if isinstance(each, dict) for name in each}
    assert {name for name in names if "mean id" in name and "(1 = " not in name} == set()


def test_of_what_is_too_large_to_be_read_one_place_is_shown():
    report = run("best_tile", wrong("L6-MEAN", "best_tile"))
    for line in (
        "  record    a dict of lab, machine, predictions, points\n",
        "  expected  speedup: 1.701\n",
        "  got       speedup: 1.699",
    ):
        assert line in f"{report}\n"

    def reach(mask, layers):
        known = mask | torch.eye(len(mask), dtype=torch.bool)
        for _ in range(layers - 1):
            known = (known.float() @ known.float()) > 0
        return known if layers else torch.eye(len(mask), dtype=torch.bool)

    report = str(run("reach", reach))
    assert "mask      a tensor of shape (6 6)" in report
    assert "expected  False at [4, 0]" in report and "got       True at [4, 0]" in report


def test_of_a_dict_in_a_failing_input_the_entries_are_shown():
    report = str(run("backends_for", wrong("L3-T4-MATH", "backends_for")))
    assert "  call        dtype: float16 ; d: 64 ; axes: 4" in report


def test_a_failing_input_says_what_its_numbers_do_not_show():
    """Half precision, and the axes where rows of two axes lie below each other."""
    assert "  scores float16  0" in str(
        run("masked_softmax", wrong("M-HALF-FILL", "masked_softmax"))
    )
    report = run("merge_heads", wrong("H-CONTIGUOUS", "merge_heads"))
    assert "  x (1 2 2 2)  1  2 ; 5  6 ; 3  4 ; 7  8" in str(report)
    assert "Its merged heads:" in str(report)


@pytest.mark.slow
def test_what_an_answer_does_is_said_in_a_whole_sentence():
    for task, id in (("translate", "C-END-NOT-WRITTEN"), ("cross_attention", "C-SWITCHES-MODE")):
        for result in run(task, wrong(id, task)).results:
            assert result.passed or result.message.endswith((".", ")")), result.message


def test_what_differs_looks_different():
    """In digits, in type, at a place of what is too large: whatever it takes."""
    values = [
        (torch.tensor([0.5, 0.25]), torch.tensor([0.5, 0.2500001])),
        (torch.tensor([0.5]), torch.tensor([0.5], dtype=torch.float64)),
        (torch.zeros(5, 5), torch.zeros(5, 5).index_fill(1, torch.tensor(3), 1e-9)),
        (torch.zeros(5, 5), torch.zeros(5, 6)),
        ([f"word {n}" for n in range(90)], [f"word {n % 89}" for n in range(90)]),
        ({"share": 0.1}, {"share": 0.1000001}),
        (0.1, 0.1 + 1e-15),
    ]
    for ours, theirs in values:
        expected, got = both(Example({}, "result", ours, theirs))
        assert expected != got, (ours, theirs)
        assert max(len(cell) for row in (*expected, *got) for cell in row) < 90


def test_the_dependency_map_shows_a_leak():
    found = run(SDPA, wrong("M-IGNORED")).diagnosis.map
    future = torch.ones(3, 3).triu(1).bool()
    assert found.got[:3, :3][future].all() and not found.expected[:3, :3][future].any()


def wrong(id, task=SDPA):
    about = registry.find(task)
    return answer_of(about, about.faults[id].forms[0])


# --- answers that are no answers


def returns(value):
    return lambda *args, **kwargs: value


def raises(*args, **kwargs):
    return undefined_name  # noqa: F821


def reseeds(*args, **kwargs):
    torch.manual_seed(0)
    return ANSWER(*args, **kwargs)


def edits(query, key, value, mask=None):
    result = ANSWER(query, key, value, mask)
    value.mul_(2)
    return result


def as_numpy(*args, **kwargs):
    return tuple(tensor.numpy() for tensor in ANSWER(*args, **kwargs))


def in_half(*args, **kwargs):
    return tuple(tensor.half() for tensor in ANSWER(*args, **kwargs))


def exits(*args, **kwargs):
    sys.exit()


def raises_not_implemented(*args, **kwargs):
    raise NotImplementedError


def remembers(query, key, value, mask=None, _calls=itertools.count()):  # noqa: B008
    output, weights = ANSWER(query, key, value, mask)
    return output + next(_calls), weights


@pytest.mark.parametrize(
    ("answer", "said"),
    [
        (None, "There is no `scaled_dot_product_attention` yet"),
        (3, "is an int"),
        (returns(None), "returned None"),
        (raises_not_implemented, "still raises NotImplementedError"),
        (returns("x"), "returned a str; a pair is expected: output, weights"),
        (returns(torch.zeros(2)), "returned a tensor of shape (2), float32; a pair is expected"),
        (returns((torch.zeros(2),)), "a sequence of 1: a tensor of shape (2)"),
        (as_numpy, "output is a numpy.ndarray; a torch.Tensor is expected"),
        (in_half, "output has dtype torch.float16"),
        (raises, "raised NameError: name 'undefined_name' is not defined"),
        (exits, "raised SystemExit"),
        (edits, "changed its own input: value"),
        (reseeds, "global random state"),
        (remembers, "off by"),
        (lambda query: query, "raised TypeError"),
    ],
    ids=lambda value: getattr(value, "__name__", None) or str(value)[:20],
)
def test_what_is_no_answer_is_said(answer, said):
    report = run(SDPA, answer)
    assert not report.passed
    assert said in " ".join(str(report).split())
    assert "text/html" in report._repr_mimebundle_()


def test_the_student_sees_the_line_that_raised():
    assert "return undefined_name" in str(run(SDPA, raises))


def test_printing_costs_nothing_and_is_mentioned(capsys):
    def noisy(*args, **kwargs):
        print("x" * 1_000_000)
        print("warning", file=sys.stderr)
        return ANSWER(*args, **kwargs)

    report = run(SDPA, noisy)
    assert report.passed and "characters" in str(report)
    assert capsys.readouterr() == ("", "")


@pytest.mark.parametrize(
    ("task", "answer"),
    [
        ("softmax", lambda scores, dim=-1: torch.softmax(scores, dim)),
        ("softmax", lambda scores, dim=-1: scores.log_softmax(dim).exp()),
        ("softmax", torch.nn.functional.softmax),
        ("softmax", lambda scores, dim=-1: torch.ops.aten._softmax(scores, dim, False)),
        ("softmax", lambda scores, dim=-1: reference.softmax(scores, dim)),
        (
            SDPA,
            lambda query, key, value, mask=None: (
                getattr(torch.nn.functional, "scaled_dot_" + "product_attention")(
                    query, key, value, attn_mask=mask
                ),
                ANSWER(query, key, value, mask)[1],
            ),
        ),
        (SDPA, reference.scaled_dot_product_attention),
    ],
)
def test_a_ready_made_function_is_noticed(task, answer):
    report = run(task, answer)
    assert report.diagnosis.id == "SHORT-CUT" and report.earned == 0


def test_an_answer_that_behaves_at_first_is_noticed():
    calls = 0

    def later(scores, dim=-1):
        nonlocal calls
        calls += 1
        return scores.exp() if calls <= 5 else torch.softmax(scores, dim)

    assert run("softmax", later).diagnosis.id == "SHORT-CUT"


def test_an_answer_that_behaves_while_it_is_watched_is_noticed():
    def hides(scores, dim=-1):
        if _get_current_dispatch_mode() is not None:
            return scores
        return torch.softmax(scores, dim)

    report = run("softmax", hides)
    assert report.diagnosis.id == "SHORT-CUT" and report.earned == 0
    assert "while we watch" in " ".join(str(report).split())


@pytest.mark.skipif(torch.cuda.is_available(), reason="here that device is there")
def test_an_answer_that_asks_for_a_device_that_is_not_there_gets_its_report():
    def softmax(scores, dim=-1):
        torch.set_default_device("cuda")
        e = (scores - scores.amax(dim, keepdim=True)).exp()
        return e / torch.ones(()) / e.sum(dim, keepdim=True)

    report = run("softmax", softmax)
    assert report.earned == 0 and "CUDA" in str(report)
    assert torch.get_default_device() == torch.device("cpu")


def test_the_verdict_does_not_depend_on_the_surroundings(monkeypatch):
    monkeypatch.setenv("PYTEST_ADDOPTS", "--nonsense")
    with torch.no_grad():
        assert run(SDPA, ANSWER).passed
    with torch.inference_mode():
        assert run(SDPA, ANSWER).passed
    with torch.autocast("cpu"):  # products in 16 bits
        assert run(SDPA, ANSWER).passed
        assert torch.is_autocast_enabled("cpu")
    torch.set_default_dtype(torch.float64)
    try:
        assert run(SDPA, ANSWER).passed
        assert torch.get_default_dtype() == torch.float64
    finally:
        torch.set_default_dtype(torch.float32)


def test_an_answer_that_switches_autocast_on_leaves_it_off():
    def switches(scores, dim=-1):
        torch.set_autocast_enabled("cpu", True)
        return (scores - scores.amax(dim, keepdim=True)).exp()

    assert not run("softmax", switches).passed
    assert not torch.is_autocast_enabled("cpu")


def in_another_function(answer):
    return lambda *args, **kwargs: answer(*args, **kwargs)


def compiled(answer):
    return answer if isinstance(answer, type) else torch.compile(answer, backend="eager")


@pytest.mark.slow
@pytest.mark.parametrize("task", ["concat_scores", "LatentAttention", "bench"])  # all: make bench
def test_a_wrapped_answer_gets_the_same_verdict(task):
    """What wraps it is unpacked in one place: a function, a class, what is called with others."""
    for answer in (CORRECT[task][0], wrong(next(iter(registry.find(task).faults)), task)):
        bare = run(task, answer)
        for wrap in (functools.partial, in_another_function, compiled):
            same_verdict(run(task, wrap(answer)), bare)
        with torch.no_grad():
            same_verdict(run(task, answer), bare)


def same_verdict(one, two):
    assert one.earned == two.earned
    assert (one.diagnosis and one.diagnosis.id) == (two.diagnosis and two.diagnosis.id)


@pytest.mark.slow
def test_an_answer_that_cannot_learn_is_told_so():
    report = run(SDPA, torch.no_grad()(ANSWER))
    assert not report.passed and "No gradient reaches" in str(report)


def test_judging_leaves_the_random_state_alone():
    before = torch.get_rng_state(), random.getstate(), np.random.get_state()[1].tolist()
    run("score_variance", CORRECT["score_variance"][0])
    after = torch.get_rng_state(), random.getstate(), np.random.get_state()[1].tolist()
    assert torch.equal(before[0], after[0]) and before[1:] == after[1:]


def test_the_same_answer_always_gets_the_same_report():
    answer = wrong("D-SOFTMAX-DIM")
    assert run(SDPA, answer).as_dict() == run(SDPA, answer).as_dict()


# --- the student's side


def test_check_returns_points_and_shows_the_report(capsys):
    def softmax(scores, dim=-1):
        return scores.exp() / scores.exp().sum(dim, keepdim=True)

    earned = check(softmax)
    assert isinstance(earned, float) and 0 < earned < registry.find("softmax").points
    assert "D-NAIVE-SOFTMAX" in capsys.readouterr().out
    assert check(functools.partial(softmax)) == earned
    assert check(lambda scores, dim=-1: softmax(scores, dim), task="softmax") == earned


def half(scores, dim=-1):
    return scores.exp() / scores.exp().sum(dim, keepdim=True)


@pytest.mark.parametrize(
    ("answer", "state", "mark"),
    [
        (CORRECT["softmax"][0], "right", "✓"),
        (half, "half", "✗"),
        (lambda scores, dim=-1: scores * 3.0, "wrong", "✗"),
        (lambda scores, dim=-1: None, "open", "○"),
        (None, "open", "○"),
    ],
)
def test_half_right_wrong_and_not_begun_look_different(answer, state, mark):
    report = run("softmax", answer)
    assert report.state == state and str(report).startswith(mark)
    html = report._repr_mimebundle_()["text/html"]
    assert f'class="attn-report {state}"' in html and (mark in html)
    if state == "open":  # nothing is wrong yet: no row of crosses, and no reason for each
        assert "✗" not in f"{report}{html}" and "the same" not in html


def test_what_a_right_result_alone_could_show_is_left_open():
    report = run("masked_softmax", wrong("M-FILL-ZERO", "masked_softmax"))
    marks = {result.name: report.mark(result) for result in report.results}
    assert marks["one weight for every score in its dtype"] == "✓"
    assert marks["a hidden key gets no weight and rows sum to one"] == "✗"  # it was looked at
    assert marks["the visible keys share as if they were alone"] == "✗"  # the first wrong result
    assert (
        marks["weights of large scores are right"]
        == marks["dead rows are zero and the others right"]
        == "○"
    )
    assert "○ weights of large scores are right" in str(report) and OPEN in str(report)
    assert OPEN in report._repr_mimebundle_()["text/html"]


@pytest.mark.parametrize(
    ("task", "fault"),
    [
        ("causal_mask", "C-SQUARE"),  # shape
        ("causal_mask", "C-NOT-BOOLEAN"),  # dtype
        ("causal_mask", "C-NO-TENSOR"),  # kind
        ("attend", "C-WEIGHTS-KEEPDIM"),  # shape, in two wordings
        ("MultiHeadAttention", "H-CONTIGUOUS"),  # an error
    ],
)
def test_the_first_check_alone_says_what_keeps_a_result_from_being_compared(task, fault):
    report = run(task, wrong(fault, task))
    marks = [report.mark(result) for result in report.results if not result.passed]
    assert marks[0] == "✗" and len(marks) > 2 and {*marks[1:]} == {"○"}


def test_where_a_special_case_alone_is_wrong_nothing_is_left_open():
    report = run(SDPA, wrong("M-DEAD-ROW"))
    assert "✗" in str(report) and "○" not in str(report)


def test_what_is_given_entire_is_a_form_and_is_tried_beside_no_other_fault():
    task = registry.find("is_permutation_equivariant")
    assert len(task.faults["C-ANY-ORDER"].forms) == 4
    pairs = (each.key[0] for each in compositions.pairs(task))
    joined = {
        part for each in pairs if {name for name, _ in each} <= {*task.faults} for part in each
    }
    assert {n for name, n in joined if name == "C-ANY-ORDER"} == {0, 1}


def test_points_are_no_second_output(capsys):
    """nbgrader books the text of a cell's result; a notebook shows its HTML, which is empty."""
    from IPython.core.formatters import DisplayFormatter

    data, _ = DisplayFormatter().format(check(half, "softmax"))
    assert float(data["text/plain"]) == run("softmax", half).earned and data["text/html"] == ""


def test_check_by_name_survives_a_missing_answer(capsys):
    assert check("hidden_scale") == 0.0
    assert "There is no `hidden_scale` yet" in capsys.readouterr().out


def test_an_unknown_task_is_refused_with_the_list_of_tasks():
    with pytest.raises(ValueError, match="no task is named 'sofmax'; did you mean softmax"):
        run("sofmax", ANSWER)


def test_a_report_is_data_text_and_html():
    report = run(SDPA, wrong("M-DEAD-ROW"))
    assert report.task == SDPA and report.points == 12 and 0 < report.earned < 12
    assert {result.name for result in report.results if not result.passed}
    bundle = report._repr_mimebundle_()
    assert bundle[MIME]["diagnosis"] == "M-DEAD-ROW"
    for heading in ("What you probably think", "Why it is wrong", "Read again", "Smallest failing"):
        assert heading in bundle["text/html"] and heading in bundle["text/plain"]
    assert not re.search("<script|<img|<iframe|src=|@import|url[(]", bundle["text/html"])


def test_a_message_from_an_answer_cannot_break_the_html():
    def evil(*args, **kwargs):
        raise ValueError("<script>alert(1)</script>")

    html = run(SDPA, evil)._repr_mimebundle_()["text/html"]
    assert "<script" not in html and "&lt;script" in html


def test_what_a_text_stresses_is_stressed_in_the_report():
    shown = with_code("not *every* word, `a *b* c`, 2*n*d < 1")
    assert shown == "not <em>every</em> word, <code>a *b* c</code>, 2*n*d &lt; 1"


def test_hints_are_a_ladder_of_three():
    for task in registry.all_tasks().values():
        assert len(set(task.hints)) == 3 and all(task.hints)


CHECKED = """
import sys
from attncourse.checks import registry, run
from attncourse.checks.statements import AXES
from attncourse.checks.task import answer_of
for task in registry.all_tasks().values():
    run(task.name, answer_of(task, next(iter(task.faults.values())).forms[0]))
    slow = {"sympy", "torch._dynamo"} & sys.modules.keys()
    assert not slow, f"{task.name}: {slow}"
"""


@pytest.mark.slow
def test_no_check_waits_for_what_torch_imports_late():
    """One call of torch.broadcast_shapes, or one on the device "meta", takes a second and more."""
    subprocess.run([sys.executable, "-c", CHECKED], check=True)


def test_importing_the_course_does_not_import_pytest():
    code = "import attncourse, sys; print([m for m in sys.modules if m in ('pytest', 'nbgrader')])"
    done = subprocess.run([sys.executable, "-c", code], check=True, capture_output=True, text=True)
    assert done.stdout.strip() == "[]"


# --- an answer that takes its time ----------------------------------------------------------------


def sample_row_by_row(logits, temperature=1.0, top_k=None, top_p=None):
    words = []
    for row in logits / temperature:
        if top_k is not None:
            least = row.topk(min(top_k, len(row))).values[-1]
            row = row.masked_fill(row < least, -torch.inf)
        p = row.softmax(-1)
        if top_p is not None:
            likely, order = p.sort(descending=True)
            p = torch.zeros_like(p).scatter(0, order, likely * (likely.cumsum(0) - likely < top_p))
        words.append(torch.multinomial(p, 1))
    return torch.cat(words)


def masked_row_by_row(tokens, share, mask_id, vocabulary_size, rng):
    rows = [
        CORRECT["masked_words"][0](row[None], share, mask_id, vocabulary_size, rng)
        for row in tokens
    ]
    return tuple(map(torch.cat, zip(*rows, strict=True)))


@pytest.mark.slow
@pytest.mark.parametrize(
    ("task", "answer", "most"),
    [("sample", sample_row_by_row, 30_000), ("masked_words", masked_row_by_row, 400_000)],
)
def test_where_chance_is_judged_a_right_answer_is_asked_for_few_numbers(task, answer, most):
    """One that goes from row to row, or from word to word, has ten times the time that it needs."""
    asked = []

    def counted(first, *others, **options):
        asked.append(first.shape[0] if task == "sample" else first.numel())
        return answer(first, *others, **options)

    assert run(task, counted).passed
    assert sum(asked) <= most


@pytest.mark.slow
def test_of_two_thoughts_each_is_looked_at_in_one_wording(monkeypatch):
    """Another wording of what explains everything costs time, and changes nothing."""
    task = registry.find("tiled_backward")
    both = [each for each in compositions.pairs(task) if len(each.faults) == 2]
    pair = next(e for e in both if [f.id for f in e.faults] == ["C-ON-THE-CPU", "L6-NO-SCALE"])
    shares, looked = explain.Evidence.share, set()

    def share(found, each, least=explain.PARTLY, *first):
        result = shares(found, each, least, *first)
        if least == result == 1:
            looked.add((each.key, frozenset(each.faults)))
        return result

    monkeypatch.setattr(explain.Evidence, "share", share)
    assert run("tiled_backward", pair.make()).diagnosis.ids == ["L6-NO-SCALE", "C-ON-THE-CPU"]
    ((_, faults),) = looked
    assert faults == frozenset(pair.faults)


@pytest.mark.slow
def test_what_checks_and_traits_ask_under_a_meter_is_measured_once():
    lengths = []

    def answer(query, key, value, width):
        lengths.append(query.shape[-2])
        return value.clone()

    assert not run("windowed_attention", answer).passed
    assert (
        lengths.count(512) == 1
    )  # the shorter of two texts, of which nothing but the peak is asked


@pytest.mark.slow
@pytest.mark.parametrize("waits", [True, False])
def test_who_waits_for_a_check_is_told(monkeypatch, capsys, waits):
    monkeypatch.setattr(checks, "SAID", 0.05)
    monkeypatch.setattr(checks, "WARNED", 0.1)
    monkeypatch.setattr(sys.stdout, "isatty", lambda: waits)
    with checks.waiting("softmax"):
        time.sleep(0.5)
    with checks.waiting("attend"):
        pass
    time.sleep(0.2)
    said = capsys.readouterr().out
    assert ("Checking `softmax` …" in said) == waits
    assert ("slow, and need not be wrong" in said) == waits
    assert "attend" not in said
