"""Statements of chapter 3 that a skeptic would doubt, each checked by code."""

import itertools
import math

import torch

from attncourse.scaled_dot_product import (
    hidden_scale,
    scaled_dot_product_attention,
    score_variance,
    softmax,
)


def test_no_entry_of_the_jacobian_exceeds_a_quarter():
    """ "No entry can ever be large. On the diagonal, $w(1-w)$ is at most $1/4$ […]." """
    torch.manual_seed(0)
    jacobian = torch.func.jacrev(softmax)
    largest = 0.0
    for size in (0.1, 1, 10, 100, 1000):
        for n in (2, 3, 10):
            for _ in range(20):
                scores = size * torch.randn(n, dtype=torch.float64)
                largest = max(largest, jacobian(scores).abs().max().item())
    assert 0.2 < largest <= 0.25


def test_without_scaling_the_typical_gradient_vanishes_and_the_mean_does_not():
    """ "The *mean* gradient does not vanish without scaling; it is even larger than with it. The
    *median* does."
    """
    torch.manual_seed(1)
    d, norms = 1024, {}
    keys, values = torch.randn(2000, 6, d), torch.randn(2000, 6, 1)
    for scale in (1.0, math.sqrt(d)):
        query = torch.randn(2000, 1, d, requires_grad=True)
        weights = (query @ keys.mT / scale).softmax(-1)
        (weights @ values).sum().backward()
        norms[scale] = query.grad.norm(dim=-1)
    plain, scaled = norms[1.0], norms[math.sqrt(d)]
    assert plain.mean() > scaled.mean()
    assert plain.median() < 0.01 * scaled.median()
    assert 0.5 < scaled.median() / scaled.mean() < 2


def test_the_scale_does_not_prevent_overflow_and_the_maximum_does():
    """ "It, and not the scaling of step 3, is what keeps the exponential from overflowing." """
    scores = torch.tensor([9_000.0, 10_000.0, 10_001.0])
    scaled = scores / math.sqrt(64)
    assert (scaled.exp() / scaled.exp().sum()).isnan().any()
    assert softmax(scores).isfinite().all()


def test_a_vector_added_to_every_key_changes_no_weight():
    """ "All scores of a query change by the same number […]. The softmax of a row ignores a
    constant." """
    torch.manual_seed(0)
    query, key, value = (torch.randn(n, 8, dtype=torch.float64) for n in (3, 5, 5))
    shift = torch.randn(8, dtype=torch.float64)
    plain = scaled_dot_product_attention(query, key, value)
    shifted = scaled_dot_product_attention(query, key + shift, value)
    assert all(torch.allclose(*both, atol=1e-12) for both in zip(plain, shifted, strict=True))
    moved = scaled_dot_product_attention(query + shift, key, value)
    assert not torch.allclose(plain[1], moved[1])


def test_only_the_width_16_explains_the_picture():
    """ "The simplest explanation: the scores were divided by […] 4 […] before the softmax" (of the
    widths that are powers of two, no other fits)."""
    scores = [[0.11], [0.19, 0.50], [0.53, 0.98, 0.95], [0.81, 0.86, 0.38, 0.90]]
    printed = [[1.00], [0.48, 0.52], [0.31, 0.35, 0.34], [0.25, 0.26, 0.23, 0.26]]
    flat = itertools.chain.from_iterable
    possible = []
    for d in (2**n for n in range(12)):
        exact = [torch.tensor(row).div(math.sqrt(d)).softmax(0).tolist() for row in scores]
        off = [abs(a - b) for a, b in zip(flat(exact), flat(printed), strict=True)]
        possible += [d] if max(off) < 0.005 else []
    assert possible == [16]
    square = [[*row, *[0.0] * (4 - len(row))] for row in printed]
    padded = [[*row, *[0.0] * (4 - len(row))] for row in scores]
    assert 3.6 < hidden_scale(torch.tensor(padded), torch.tensor(square)) < 4.4


def test_the_variance_of_a_score_is_the_width_whatever_the_distribution():
    """ "If all $q_j$ and $k_j$ are independent with mean 0 and variance 1, […] the sum has
    variance $d$." """
    torch.manual_seed(0)
    signs = torch.randint(0, 2, (2, 20_000, 64)) * 2.0 - 1  # mean 0, variance 1, not normal
    assert abs((signs[0] * signs[1]).sum(-1).var() / 64 - 1) < 0.08
    for d, scaled in itertools.product((16, 256), (False, True)):
        assert abs(score_variance(d, 20_000, scaled) / (1 if scaled else d) - 1) < 0.08
