"""Two changes of one step are merged as two branches are, or not at all."""

import pytest
import torch

from attncourse.checks import compositions, registry, run
from attncourse.checks import merge as merging
from attncourse.checks.compositions import both
from attncourse.checks.merge import merge
from attncourse.checks.task import compose


def step(x, width):
    scaled = x / width**0.5
    return scaled.softmax(-1)


def of_columns(x, width):
    scaled = x / width**0.5
    return scaled.softmax(-2)


def unscaled(x, width):
    scaled = x
    return scaled.softmax(-1)


def by_the_width(scores, d):  # in other words
    scaled = scores / d
    return scaled.softmax(-1)


def rounded(x, width):
    scaled = x / width**0.5
    return scaled.softmax(-1).round(decimals=1)


def counted_first(x, width):
    width = width + 1
    scaled = x / width**0.5
    return scaled.softmax(-1)


X = torch.tensor([[1.0, 3.0], [4.0, 1.0]])


@pytest.mark.parametrize(
    ("one", "two", "made"),
    [
        (of_columns, unscaled, lambda x, d: x.softmax(-2)),  # statements
        (of_columns, by_the_width, lambda x, d: (x / d).softmax(-2)),  # with names of its own
        (of_columns, rounded, lambda x, d: (x / d**0.5).softmax(-2).round(decimals=1)),  # around
        (counted_first, rounded, lambda x, d: (x / (d + 1) ** 0.5).softmax(-1).round(decimals=1)),
        (of_columns, counted_first, lambda x, d: (x / (d + 1) ** 0.5).softmax(-2)),  # put in
    ],
)
def test_edits_of_different_things_are_merged_in_either_order(one, two, made):
    for pair in ((one, two), (two, one)):
        torch.testing.assert_close(merge(step, *pair)(X, 4), made(X, 4))


@pytest.mark.parametrize(
    ("one", "two"),
    [
        (unscaled, by_the_width),  # of one operand
        (of_columns, of_columns),  # there is nothing to add
        (of_columns, step),
        (of_columns, lambda x, width: width),  # another thing altogether
        (of_columns, lambda x: x),  # other parameters
        (of_columns, eval("lambda x, width: x")),  # no source
    ],
)
def test_edits_of_one_thing_are_not_merged(one, two):
    assert merge(step, one, two) is None


def test_what_a_step_drops_from_around_another_edit_stays_dropped():
    right, bare = lambda x: (x + 1).exp(), lambda x: x + 1
    assert merge(right, bare, lambda x: (x + 2).exp())(X).equal(X + 2)


def test_what_both_do_is_done_once():
    def right(x):
        return (x + 1) * 2

    def one(x):
        return (x.mT + 1) * 3

    def two(x):
        return (x.mT + 2) * 2

    assert merge(right, one, two)(X).equal((X.mT + 2) * 3)


def test_lambdas_on_one_line_are_told_apart():
    right, one, two = (lambda x, y: x + y), (lambda x, y: x - y), (lambda x, y: x + 2 * y)
    assert merge(right, one, two)(1, 2) == -3


def test_a_function_of_torch_may_stand_for_a_step():
    def right(x):
        return torch.exp(x)

    assert merge(right, torch.log, lambda x: torch.exp(2 * x))(X).equal((2 * X).log())
    assert merge(right, torch.log, lambda x: torch.exp(x) + 1)(X).equal(X.log() + 1)
    assert merge(right, torch.log, torch.sin) is None


def times(n):
    return lambda x, m: (n * x) + m


def plus(n):
    return lambda x, m: x + n * m


def test_a_name_stands_for_what_it_stood_for():
    """`n` of one function is not that of the other."""
    assert merge(lambda x, m: x + m, times(5), plus(7))(1, 1) == 12


@pytest.mark.slow
def test_a_form_that_goes_on_with_the_step_has_the_other_below_it():
    task = registry.find("sample")
    changes = both(task, ("P-EDITS-LOGITS", 1), ("P-TOP-P-BEFORE-TOP-K", 0))
    report = run("sample", compose(task, *changes))
    assert set(report.diagnosis.ids) == {"P-EDITS-LOGITS", "P-TOP-P-BEFORE-TOP-K"}


def test_without_sources_a_report_lacks_a_pair_and_no_more(monkeypatch):
    """As where only compiled files are installed."""
    task, parts = registry.find("span_mask"), (("A-DETACHED", 0), ("A-SPAN-NOT-BELOW-0", 0))
    wrong = compose(task, *both(task, *parts))
    monkeypatch.setattr(merging, "_functions", lambda file: {})
    compositions._apart.cache_clear()
    try:
        assert compositions.explanation(task, (parts, 0)) is None
        report = run("span_mask", wrong)
        assert report.diagnosis.title != "behaves strangely" and not report.passed
    finally:
        compositions._apart.cache_clear()


def test_two_mistakes_in_one_expression_are_both_named():
    def span_mask(distance, span, ramp):
        return (1 - (distance - span.clamp(min=0).detach()) / ramp).clamp(0, 1)

    assert set(run("span_mask", span_mask).diagnosis.ids) == {"A-DETACHED", "A-SPAN-NOT-BELOW-0"}
