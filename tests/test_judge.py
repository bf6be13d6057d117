"""The judge's promises: right answers pass, wrong ones fail and are named, nothing breaks it."""

import functools
import itertools
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
from corpus import correct
from corpus.correct import CORRECT
from corpus.correct.scaled_dot_product import ATTENTION
from torch.utils._python_dispatch import _get_current_dispatch_mode

from attncourse import checks
from attncourse import scaled_dot_product as reference
from attncourse.checks import (
    check,
    compositions,
    engine,
    explain,
    generic,
    lint,
    registry,
    run,
    tables,
)
from attncourse.checks.diagnosis import smallest_failure
from attncourse.checks.report import MIME
from attncourse.checks.task import answer_of
from attncourse.markup import with_code

TASKS = list(correct.TASKS)
SDPA = "scaled_dot_product_attention"
ANSWER = ATTENTION[0]


def some(every):
    return every[::20]


def others(every):
    return [each for place, each in enumerate(every) if place % 20]


QUICK = TASKS[::8]
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


@pytest.mark.slow
@pytest.mark.parametrize("task", TASKS)
def test_a_misconception_is_named_in_other_words_too(task):
    every = [each for each in compositions.singles(registry.find(task))]
    for each in random.Random(5).sample(every, min(3, len(every))):  # all of them: make bench
        assert run(task, each.make()).diagnosis.ids == [each.faults[0].id]


@pytest.mark.slow
@pytest.mark.parametrize("task", TASKS)
def test_a_misconception_is_rejected_on_another_seed_too(task):
    about = registry.find(task)
    for fault in list(about.faults.values())[::12]:  # all of them: make bench
        assert not run(task, answer_of(about, fault.forms[0]), seeds=(4,)).passed, fault.id


@pytest.mark.parametrize("task", TASKS)
def test_a_table_of_fingerprints_is_current(task):
    about = registry.find(task)
    wanted = tables.is_wanted(about)
    assert tables.is_current(about) == wanted, "run `make fingerprints` and commit"


def test_a_table_is_current_whatever_else_is_loaded():
    """A student's process loads one task, and the process that makes tables loads all."""
    code = (
        "import sys\n"
        "from attncourse.checks import registry, tables\n"
        "for name in sys.argv[1:]:\n"
        "    task = registry.find(name)\n"
        "    assert tables.is_current(task) == tables.is_wanted(task), name"
    )
    for names in (TASKS[::-1], TASKS[:1], ["lab2_receipt"], ["masked_words"], ["additive_scores"]):
        done = subprocess.run([sys.executable, "-c", code, *names], capture_output=True, text=True)
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


def test_no_two_misconceptions_give_the_same_diagnosis():
    for task in registry.all_tasks().values():
        for one, two in itertools.combinations(task.faults.values(), 2):
            for field in ("thinks", "why"):
                assert getattr(one, field) != getattr(two, field), (one.id, two.id)


def test_a_diagnosis_is_short():
    for fault in (each for task in registry.all_tasks().values() for each in task.faults.values()):
        assert len(f"{fault.thinks} {fault.why}".split()) <= 60, fault.id


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
        assert "Two things at once" in shown and "Mend the first and run again" in shown
        assert shown.index(ids[0]) < shown.index(ids[1])


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


def test_what_no_small_input_shows_is_shown_on_the_smallest_probe_that_does():
    counted_once = wrong("B-ONCE-A-WORD", "byte_pairs")
    task = registry.find("byte_pairs")
    assert smallest_failure(task, counted_once) is None
    example = run("byte_pairs", counted_once).diagnosis.example
    assert example.inputs == {"words": {"abxab": 2, "cd": 3}, "num_merges": 1}
    assert (example.expected, example.got) == ([("a", "b")], [("c", "d")])
    example = run("backends_for", wrong("L3-FLASH-MASK", "backends_for")).diagnosis.example
    assert example.inputs["call"]["mask"] and example.got == ["FLASH", *example.expected]


def test_no_example_is_larger_than_a_reader_takes_in():
    of_one_size = run("best_tile", wrong("L6-MEAN", "best_tile"))
    assert of_one_size.diagnosis.example is None


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
@pytest.mark.parametrize("task", TASKS[3::8])  # what wraps an answer is unpacked in one place
def test_a_wrapped_answer_gets_the_same_verdict(task):
    for answer in (CORRECT[task][0], wrong(next(iter(registry.find(task).faults)), task)):
        bare = run(task, answer)
        for wrap in (functools.partial, in_another_function, compiled):
            same_verdict(run(task, wrap(answer)), bare)
        with torch.no_grad():
            same_verdict(run(task, answer), bare)


def same_verdict(one, two):
    assert one.earned == two.earned
    assert (one.diagnosis and one.diagnosis.id) == (two.diagnosis and two.diagnosis.id)


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
from attncourse.checks.task import answer_of
for task in registry.all_tasks().values():
    if task.name == "which_backend":  # asks torch what fused attention gives on "meta"
        continue
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


def test_of_two_thoughts_each_is_looked_at_in_one_wording(monkeypatch):
    """Another wording of what explains everything costs time, and changes nothing."""
    task = registry.find("tiled_backward")
    both = [each for each in compositions.pairs(task) if len(each.faults) == 2]
    pair = next(e for e in both if [f.id for f in e.faults] == ["C-ON-THE-CPU", "L6-NO-SCALE"])
    shares, looked = explain.Evidence.share, []

    def share(found, each, least=explain.PARTLY):
        result = shares(found, each, least)
        if least == result == 1:
            looked.append(frozenset(each.faults))
        return result

    monkeypatch.setattr(explain.Evidence, "share", share)
    assert run("tiled_backward", pair.make()).diagnosis.ids == ["L6-NO-SCALE", "C-ON-THE-CPU"]
    assert looked == [frozenset(pair.faults)]


def test_what_checks_and_traits_ask_under_a_meter_is_measured_once():
    lengths = []

    def answer(query, key, value, width):
        lengths.append(query.shape[-2])
        return value.clone()

    assert not run("windowed_attention", answer).passed
    assert (
        lengths.count(512) == 1
    )  # the shorter of two texts, of which nothing but the peak is asked


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
