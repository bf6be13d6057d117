"""Answers are judged as if their inputs lay on a GPU, and none is there."""

import math

import pytest
import torch

from attncourse.checks import run
from attncourse.checks.device import elsewhere


def by_full(x):
    return torch.maximum(torch.full(x.shape, -math.inf), x)


def by_a_product(x):
    return x @ torch.eye(4).expand(2, 4, 4)


def in_place(x):
    return torch.zeros(x.shape).add_(x)


def left_behind(x):
    table = torch.empty(x.shape)
    table[:] = x
    return table


def after_a_number(x):
    return x + torch.zeros(x.shape) if x.abs().max().item() > 0 else x


def asked(x):
    return torch.maximum(x.new_full(x.shape, -math.inf), x + torch.zeros_like(x))


def told(x):
    later = torch.arange(4, device=x.device) > torch.arange(3, device=x.device)[:, None]
    return x.masked_fill(later, 0) * torch.tensor(0.5)


def there_and_back(x):
    return torch.relu(x.cpu()).to(x.device)[:, torch.arange(2)]


def by_a_number(x):
    return x / x.max().item() if (x > 0).any() else x


def written_into(x):
    y = x.new_zeros(x.shape, dtype=torch.float64)
    y[:, 0] = x[:, 0]
    y.add_(torch.tensor([0.0, -1.0, 1.0, 0.0], device=x.device)).unsqueeze_(0)
    assert y[0, 0, 0, 0].item() == x[0, 0, 0].item()  # or the test would show nothing
    return y @ y.mT


@pytest.mark.parametrize("answer", [by_full, by_a_product, in_place, left_behind, after_a_number])
def test_a_tensor_on_the_cpu_is_noticed(answer):
    answer(torch.randn(2, 3, 4))  # on a CPU nobody sees it
    assert "on the CPU" in elsewhere(answer)(x=torch.randn(2, 3, 4))["mixed"]


@pytest.mark.parametrize("answer", [asked, told, there_and_back, by_a_number, written_into])
def test_what_a_gpu_would_run_is_not_blamed(answer):
    assert elsewhere(answer)(x=torch.randn(2, 3, 4)) == {"mixed": ""}


def test_a_lab_says_it_before_the_measuring_cell_does():
    def step_loop(cell, inputs, state):
        states = torch.empty(inputs.shape, dtype=inputs.dtype)
        for t in range(inputs.shape[1]):
            states[:, t] = state = cell(inputs[:, t], state)
        return states

    report = run("step_loop", step_loop)
    assert report.earned == report.points - 1 and report.diagnosis.ids == ["C-ON-THE-CPU"]


def naive(query, key, value, tile, causal=False):
    scores = query @ key.mT / math.sqrt(query.shape[-1])
    if causal:
        allowed = torch.ones_like(scores).tril(key.shape[2] - query.shape[2])
        scores = scores.masked_fill(allowed == 0, -math.inf)
    return scores.softmax(-1) @ value, scores.logsumexp(-1)


@pytest.mark.slow
def test_who_writes_no_flash_earns_less_than_half_of_it():
    report = run("tiled_attention", naive)
    assert 0 < report.earned < report.points / 2


@pytest.mark.skipif(torch.cuda.is_available(), reason="there is a GPU")
@pytest.mark.parametrize("ask", [lambda x: x.cuda(), lambda x: x + torch.zeros(1, device="cuda")])
def test_who_asks_for_a_gpu_is_told_where_answers_are_judged(ask):
    report = run("softmax", lambda scores, dim=-1: torch.exp(ask(scores)))
    assert report.earned == 0 and "`device=x.device`" in str(report)
