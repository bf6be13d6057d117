"""Messages for bad input: each names the argument, says what came and what was expected.

The messages of `validate_attention` are tested with chapter 3, which they belong to.
"""

import itertools

import pytest
import torch
from tensors import assert_refused

from attncourse.validation import (
    validate_attention,
    validate_axes,
    validate_heads,
    validate_lengths,
    validate_mask,
    validate_scores,
    validate_tables,
    validate_tensor,
)
from attncourse.validation.tensors import broadcast

# Pairwise different, so that no two axes can be mixed up unnoticed.
B, N, Q, K, D = 2, 7, 3, 5, 4


def zeros(*shape, dtype=torch.float32):
    return torch.zeros(shape, dtype=dtype)


def whole(*shape, dtype=torch.int64):
    return torch.ones(shape, dtype=dtype)


def true(*shape):
    return torch.ones(shape, dtype=torch.bool)


def about(**arguments):
    return lambda: validate_axes(**arguments)


def about_mask(mask, shape, *names):
    return lambda: validate_mask(mask, zeros(*shape), shape, *names)


# --- What fits is let through in silence ---

FITS = {
    "a tensor": lambda: validate_tensor("x", zeros()),
    "half precision": lambda: validate_tensor("x", zeros(Q, dtype=torch.bfloat16)),
    "whole numbers": lambda: validate_tensor("ids", whole(Q, dtype=torch.uint8), "whole"),
    "axes": about(query=(zeros(B, D), "b d"), keys=(zeros(B, K, D), "b k d")),
    "no axis": about(x=(zeros(), "")),
    "an empty axis": about(x=(zeros(0, D), "b d")),
    "a sum of axes": about(
        query=(zeros(B, Q), "b e"), keys=(zeros(B, K, D), "b k d"), W=(zeros(Q + D, N), "e+d a")
    ),
    "ids beside doubles": about(
        ids=(whole(B, N), "b n", "whole"), x=(zeros(B, N, D, dtype=torch.float64), "b n d")
    ),
    "a length known before": lambda: validate_axes({"m": ("the layer", D)}, x=(zeros(D), "m")),
    "nothing": about(),
    "lengths": lambda: validate_lengths(whole(B, N), torch.tensor([1, N])),
    "no sentences": lambda: validate_lengths(whole(0, N), whole(0)),
    "scores": lambda: validate_scores(zeros(B, K), -2),
    "no rows of scores": lambda: validate_scores(zeros(0, K), -1),
    "tables": lambda: validate_tables(zeros(Q, K), zeros(Q, K)),
    "attention": lambda: validate_attention(
        zeros(B, Q, D), zeros(K, D), zeros(1, K, N), true(B, 1, K)
    ),
    "a mask": about_mask(true(Q, K), (B, Q, K)),
    "a mask of one axis": about_mask(true(K), (B, K)),
    "a dead row": about_mask(torch.tensor([[True], [False], [True]]), (Q, K)),
    "one query, nothing to see": about_mask(~true(1, K), (1, K)),
    "a single row of scores": about_mask(~true(K), (K,)),
    "nothing to see for nobody": about_mask(true(0, Q, K), (0, Q, K)),
    "heads": lambda: validate_heads(zeros(B, N, 12), 4),
}


@pytest.mark.parametrize("call", FITS.values(), ids=FITS)
def test_what_fits_is_let_through(call):
    assert call() is None


def test_lengths_known_before_are_not_changed():
    fixed = {"m": ("the layer", D)}
    validate_axes(fixed, x=(zeros(B, D), "b m"))
    assert fixed == {"m": ("the layer", D)}


# --- What does not fit is refused; " ... " skips some words ---

TENSORS = {
    "x must be a torch.Tensor; got list": lambda: validate_tensor("x", [1.0]),
    "memory must be a torch.Tensor; got float": lambda: validate_tensor("memory", 1.0),
    "x must hold floating-point numbers; got torch.int64": lambda: validate_tensor("x", whole(Q)),
    "x must hold floating-point numbers; got torch.bool": lambda: validate_tensor("x", true(Q)),
    "x must hold floating-point numbers; got torch.complex64": (
        lambda: validate_tensor("x", zeros(Q, dtype=torch.complex64))
    ),
    "ids must hold whole numbers; got torch.float32": (
        lambda: validate_tensor("ids", zeros(Q), "whole")
    ),
    "ids must hold whole numbers; got torch.bool": lambda: validate_tensor("ids", true(Q), "whole"),
    "ids must hold whole numbers; got torch.complex64": (
        lambda: validate_tensor("ids", zeros(Q, dtype=torch.complex64), "whole")
    ),
    "keys must be a torch.Tensor; got NoneType": about(x=(zeros(Q), "q"), keys=(None, "b k d")),
    "ids must hold whole numbers; got torch.float64": (
        about(ids=(zeros(Q, dtype=torch.float64), "n", "whole"))
    ),
    "keys is torch.float64 but query is torch.float32; use one dtype": about(
        query=(zeros(Q), "q"),
        ids=(whole(K), "k", "whole"),
        keys=(zeros(K, dtype=torch.float64), "k"),
    ),
    "scores must be a torch.Tensor; got list": lambda: validate_scores([1.0], -1),
    "weights must hold floating-point": lambda: validate_tables(zeros(Q, K), whole(Q, K)),
    "mask must be a boolean torch.Tensor (… q k) = (3 5); got list": about_mask([True], (Q, K)),
    "mask must be a boolean torch.Tensor (b q k) = (2 3 5); got": (
        about_mask([True], (B, Q, K), "b q k")
    ),
    "mask must be boolean, True = may attend; got torch.float32 ... mask == 0": (
        about_mask(zeros(Q, K), (Q, K))
    ),
    "mask must be boolean, True = may attend; got torch.int64 ... mask.bool()": (
        about_mask(whole(Q, K), (Q, K))
    ),
}

VALUES = {
    "x must have axes (b n m); got shape (7 4)": about(x=(zeros(N, D), "b n m")),
    "x must have axes (m); got shape ()": about(x=(zeros(), "m")),
    "keys (7 5 4) has axes (b k d), so b = 7; but query has b = 2": (
        about(query=(zeros(B, D), "b d"), keys=(zeros(N, K, D), "b k d"))
    ),
    "W (3 5) has axes (m m), so m = 5; but W has m = 3": about(W=(zeros(Q, K), "m m")),
    "x (2 7 3) has axes (b n m), so m = 3; but the layer has m = 4": (
        lambda: validate_axes({"m": ("the layer", D)}, x=(zeros(B, N, Q), "b n m"))
    ),
    "W (5 2) has axes (e+d a), so e+d = 5; but query and keys has e+d = 7": about(
        query=(zeros(B, Q), "b e"), keys=(zeros(B, K, D), "b k d"), W=(zeros(K, B), "e+d a")
    ),
    "every sentence must have 1 to n = 7 real tokens; lengths go from 0 to 3": (
        lambda: validate_lengths(whole(B, N), torch.tensor([3, 0]))
    ),
    "every sentence must have 1 to n = 7 real tokens; lengths go from 2 to 8": (
        lambda: validate_lengths(whole(B, N), torch.tensor([8, 2]))
    ),
    "dim=1 names no axis of scores, whose shape (5) has 1": lambda: validate_scores(zeros(K), 1),
    "scores is empty along dim=0 (shape (0 5)": lambda: validate_scores(zeros(0, K), 0),
    "two tables of the same shape (q k); got (3 5) and (5 3)": (
        lambda: validate_tables(zeros(Q, K), zeros(K, Q))
    ),
    "two tables of the same shape (q k); got (2 3 5) and (2 3 5)": (
        lambda: validate_tables(zeros(B, Q, K), zeros(B, Q, K))
    ),
    "scores must hold numbers; some of its entries are NaN": (
        lambda: validate_tables(zeros(Q, K) / 0, zeros(Q, K))
    ),
    "weights must hold numbers; some of its entries are NaN": (
        lambda: validate_tables(zeros(Q, K), zeros(Q, K) / 0)
    ),
    "mask must broadcast to (… q k) = (2 3 5); got shape (2 5 3)": (
        about_mask(true(B, K, Q), (B, Q, K))
    ),
    "mask must broadcast to (b k) = (2 5); got shape (3 5)": about_mask(true(Q, K), (B, K), "b k"),
    "got shape (2 5). A padding mask (b k) goes in as mask[:, None, :]": (
        about_mask(true(B, K), (B, Q, K))
    ),
    "got shape (2 5). A padding mask (b k) goes in as mask[:, None, None, :]": (
        about_mask(true(B, K), (B, 6, Q, K))
    ),
    # A mask that is larger than what it masks would make the result larger, too.
    "mask must broadcast to (… q k) = (3 5); got shape (2 3 5)": (
        about_mask(true(B, Q, K), (Q, K))
    ),
    "mask is on meta but query is on cpu": about_mask(true(Q, K).to("meta"), (Q, K)),
    "mask is on meta but scores is on cpu": (
        about_mask(true(Q, K).to("meta"), (Q, K), "… q k", "scores")
    ),
    "mask (1 5) hides every key from every query. ... 'may attend' ... pass ~mask": (
        about_mask(~true(1, K), (Q, K))
    ),
    "5 heads of equal width do not fit into m = 12: x has shape (2 7 12)": (
        lambda: validate_heads(zeros(B, N, 12), 5)
    ),
    "0 heads of equal width": lambda: validate_heads(zeros(B, N, 12), 0),
}


@pytest.mark.parametrize(("words", "call"), TENSORS.items(), ids=TENSORS)
def test_what_is_not_a_fitting_tensor_is_refused_by_name(words, call):
    assert_refused(TypeError, words, call)


@pytest.mark.parametrize(("words", "call"), VALUES.items(), ids=VALUES)
def test_what_does_not_fit_in_shape_or_value_is_refused_by_name(words, call):
    assert_refused(ValueError, words, call)


def test_axes_that_do_not_broadcast_show_all_three_shapes_and_no_error_of_torch():
    inputs = zeros(B, Q, D), zeros(N, K, D), zeros(K, D)
    with pytest.raises(ValueError, match="leading axes do not broadcast") as error:
        validate_attention(*inputs, None)
    assert "query (2 3 4), key (7 5 4), value (5 4)" in str(error.value)
    assert error.value.__context__ is None


def test_shapes_broadcast_as_torch_says():
    axes = [shape for n in range(4) for shape in itertools.product((0, 1, 2, 3), repeat=n)]
    for one, two in itertools.product(axes, repeat=2):
        try:
            expected = torch.broadcast_shapes(one, two)
        except RuntimeError:
            expected = None
        assert broadcast(one, two) == expected, (one, two)
    assert broadcast((3, 1), (1,), (2, 1, 4)) == torch.broadcast_shapes((3, 1), (1,), (2, 1, 4))
    assert broadcast((2, 1), (1, 3), (4,)) is None


def test_advice_is_given_only_where_it_helps():
    for mask, shape in ((true(K, Q), (Q, K)), (true(B, K, Q), (B, Q, K))):
        with pytest.raises(ValueError, match="mask must broadcast") as error:
            validate_mask(mask, zeros(*shape), shape)
        assert "padding" not in str(error.value)


def test_data_that_is_not_there_is_not_looked_at():
    mask, scored = (~true(Q, K)).to("meta"), zeros(Q, K).to("meta")
    assert validate_mask(mask, scored, (Q, K)) is None
