"""Chapter 14's tests and mended functions, against libraries and what the judge shows them."""

import ast
import importlib
import json
import textwrap
from pathlib import Path

import pytest
import torch
import torch.nn.functional as F
from conftest import ROOT
from hypothesis import given
from hypothesis import strategies as st
from tensors import Call, assert_all_agree, assert_equal_to, make_mask, randn, steadily

from attncourse import in_the_wild
from attncourse.checks import engine, registry
from attncourse.one_stack import sampling_distribution
from attncourse.self_attention import sinusoidal_positions
from attncourse.tasks.in_the_wild import GARBAGE, RAISES, verdict

NAMES = "attention", "positions", "nucleus"
B, Q, K, D, V, WORDS = 2, 3, 4, 5, 6, 7  # pairwise different


def tried_out(name):
    """The module of a test's task, which holds implementations."""
    return importlib.import_module(f"attncourse.tasks.in_the_wild.test_{name}")


def shown_to_tests(kind):
    return [(name, each) for name in NAMES for each in getattr(tried_out(name), kind)]


# --- The mended functions ---


def make_inputs(*batch):
    query, key, value = (
        randn(*batch, Q, D),
        randn(*batch, K, D, seed=1),
        randn(*batch, K, V, seed=2),
    )
    return [x.requires_grad_() for x in (query, key, value)]


@pytest.mark.parametrize("batch", [(), (B,), (B, 1)], ids=str)
@pytest.mark.parametrize("dead", [False, True])
def test_mended_attention_agrees_with_torch_where_a_query_sees_nothing_too(batch, dead):
    inputs, mask = make_inputs(*batch), make_mask(*batch, Q, K)
    if dead:
        mask[..., 1, :] = False
    output, weights = in_the_wild.mended_attention(*inputs, mask)
    assert_all_agree([F.scaled_dot_product_attention(*inputs, mask)], [output], inputs)
    assert_equal_to(mask.any(-1).double(), weights.sum(-1))
    assert not weights[~mask.expand_as(weights)].any()


@steadily
@given(st.integers(0, 20), st.integers(1, 13))
def test_mended_positions_are_chapter_4s(length, width):
    assert_equal_to(
        sinusoidal_positions(length, width), in_the_wild.mended_positions(length, width), atol=1e-5
    )


@steadily
@given(st.integers(0, 10_000), st.floats(0.02, 1))
def test_mended_top_p_leaves_what_chapter_9_draws_from(seed, top_p):
    logits = 2 * randn(B, WORDS, seed=seed)
    left = in_the_wild.mended_nucleus(logits, top_p)
    assert_equal_to(sampling_distribution(logits, top_p=top_p), left.softmax(-1))
    assert torch.equal(left[left > -torch.inf], logits[left > -torch.inf])


# --- The tests ---


@pytest.mark.parametrize(("name", "each"), shown_to_tests("RIGHT"))
def test_a_right_implementation_is_accepted_and_would_be_a_right_answer(name, each):
    implementation = tried_out(name).RIGHT[each]
    assert verdict(getattr(in_the_wild, f"test_{name}"), implementation) is False
    for result in engine.judge(registry.find(f"mended_{name}"), implementation):
        assert result.passed, result.message


@pytest.mark.parametrize(("name", "each"), shown_to_tests("WRONG"))
def test_a_wrong_implementation_is_refused_and_would_be_a_wrong_answer(name, each):
    implementation = tried_out(name).WRONG[each]
    assert verdict(getattr(in_the_wild, f"test_{name}"), implementation) is True
    results = engine.judge(registry.find(f"mended_{name}"), implementation)
    assert not all(result.passed for result in results)


@pytest.mark.parametrize("name", NAMES)
def test_what_no_test_should_accept_is_refused(name):
    for each in (*GARBAGE, RAISES):
        implementation = tried_out(name).IMPLEMENTATIONS[each]
        assert verdict(getattr(in_the_wild, f"test_{name}"), implementation) is True


def a_test_with_an_error(implementation):
    implementation(1, 2).no_such_thing  # noqa: B018


def test_an_error_of_the_test_s_own_is_no_verdict():
    with pytest.raises(AttributeError):
        verdict(a_test_with_an_error, tried_out("positions").shown)
    assert verdict(lambda positions: positions(1, 3), tried_out("positions").shown) is True
    assert verdict(lambda positions: None, tried_out("positions").shown) is None


@pytest.mark.parametrize("name", NAMES)
def test_the_judge_has_the_function_that_the_notebook_shows(name):
    path = ROOT / "solutions" / "14_in_the_wild" / "14_in_the_wild.ipynb"
    cells = {cell["id"]: cell for cell in json.loads(path.read_text("utf-8"))["cells"]}
    shown = function_in("".join(cells[f"wild-{name}"]["source"]), f"wild_{name}")
    judged = function_in(Path(tried_out(name).__file__).read_text("utf-8"), "shown")
    assert ast.dump(shown) == ast.dump(judged)


def function_in(source, name):
    tree = ast.parse(textwrap.dedent(source))
    found = next(each for each in tree.body if getattr(each, "name", "") == name)
    found.name = "implementation"
    return found


def inputs(mask=None):
    return [*(x.detach() for x in make_inputs(B)), mask]


CALLS = [
    Call(in_the_wild.mended_attention, lambda: inputs()[:3], [(B, Q, V), (B, Q, K)], graph="eager"),
    Call(
        *(in_the_wild.mended_attention, lambda: inputs(make_mask(Q, K))),
        *([(B, Q, V), (B, Q, K)], "mask"),
        graph="eager",
    ),
    Call(in_the_wild.mended_positions, lambda: [Q, D], (Q, D)),
    Call(in_the_wild.mended_nucleus, lambda: [randn(B, WORDS), 0.6], (B, WORDS)),
]
