"""`attncourse inspect`: what it says of files that were made for it."""

import sys
from contextlib import contextmanager

import pytest
from typer.testing import CliRunner

from attncourse import cli
from attncourse.checks import lookalikes
from attncourse.cli import inspect

ATTENTION = '''
import math
import torch
from torch import nn


def attention(q, k, v, mask=None):
    """mask: True where a key is hidden."""
    s = q @ k.transpose(-2, -1) / math.sqrt(q.size(-1))
    if mask is not None:
        s = s.masked_fill(mask, float("-inf"))
    w = torch.nan_to_num(torch.softmax(s, -1))
    return w @ v, w
'''
MASKS = """
import torch


def subsequent_mask(size):
    return torch.triu(torch.ones(1, size, size), diagonal=1).type(torch.uint8) == 0


def generate_square_subsequent_mask(sz):
    mask = (torch.triu(torch.ones(sz, sz)) == 1).transpose(0, 1)
    return mask.float().masked_fill(mask == 0, float("-inf")).masked_fill(mask == 1, 0.0)


def length_to_mask(lengths, max_len):
    return torch.arange(max_len)[None, :] >= lengths[:, None]
"""
ADDED = """
import torch


def scaled_dot_product(q, k, v, mask=None):
    scores = q @ k.transpose(-2, -1) / q.shape[-1] ** 0.5
    if mask is not None:
        scores = scores + mask
    return torch.softmax(scores, dim=-1) @ v
"""
SOFTMAX = """
import torch


def softmax(x):
    e = torch.exp(x)
    return e / e.sum(-1, keepdim=True)
"""
LAYER = """
import math
import torch
import torch.nn as nn
import torch.nn.functional as F
from .config import Config  # a part of its package that is not here


class MultiHeadAttention(nn.Module):
    def __init__(self, d_model, n_head, dropout=0.1):
        super(MultiHeadAttention, self).__init__()
        self.h, self.d = n_head, d_model // n_head
        self.w_q = nn.Linear(d_model, d_model)
        self.w_k = nn.Linear(d_model, d_model)
        self.w_v = nn.Linear(d_model, d_model)
        self.fc = nn.Linear(d_model, d_model)
        self.dropout = nn.Dropout(dropout)

    def forward(self, q, k, v, mask=None):
        b = q.size(0)
        q = self.w_q(q).view(b, -1, self.h, self.d).transpose(1, 2)
        k = self.w_k(k).view(b, -1, self.h, self.d).transpose(1, 2)
        v = self.w_v(v).view(b, -1, self.h, self.d).transpose(1, 2)
        s = q @ k.transpose(2, 3) / math.sqrt(self.d)
        if mask is not None:
            s = s.masked_fill(mask == 0, -1e9)
        a = self.dropout(F.softmax(s, -1))
        x = (a @ v).transpose(1, 2).contiguous().view(b, -1, self.h * self.d)
        return self.fc(x)
"""
TABLE = """
import math
import torch
from torch import nn


class PositionalEncoding(nn.Module):
    def __init__(self, d_model, dropout=0.1, max_len=5000):
        super().__init__()
        self.dropout = nn.Dropout(p=dropout)
        position = torch.arange(0, max_len).unsqueeze(1)
        div_term = torch.exp(torch.arange(0, d_model, 2) * -(math.log(10000.0) / d_model))
        pe = torch.zeros(max_len, d_model)
        pe[:, 0::2] = torch.sin(position * div_term)
        pe[:, 1::2] = torch.cos(position * div_term)
        self.register_buffer("pe", pe.unsqueeze(0))

    def forward(self, x):
        return self.dropout(x + self.pe[:, : x.size(1)])
"""
HOSTILE = """
import os

import torch

open({path!r}, "w").write("at import")


def softmax(x, dim=-1):
    open({path!r}, "w").write("at call")
    return x


def causal_mask(n):
    os._exit(0)
"""
GREEDY = """
import torch


def softmax(x, dim=-1):
    keep = [bytearray(10**9) for _ in range(100)]
    return x
"""
READY = "import torch\n\n\ndef softmax(x, dim):\n    return x.softmax(dim)\n"


@pytest.fixture
def inspected(tmp_path, monkeypatch, zygote):
    @contextmanager
    def children(jailed):
        assert jailed
        yield zygote

    monkeypatch.setattr(inspect, "_children", children)

    def run(text: str | bytes, *options: str, said: str | None = None) -> tuple[int, str]:
        file = tmp_path / "found.py"
        file.write_bytes(text if isinstance(text, bytes) else text.encode())
        command = ["inspect", str(file), *options]
        done = CliRunner().invoke(cli.app, command, input=said, env={"COLUMNS": "200"})
        assert done.exception is None or isinstance(done.exception, SystemExit), done.exception
        return done.exit_code, done.output

    return run


@pytest.mark.slow
def test_what_is_right_is_said_to_be_right_whatever_its_convention(inspected):
    code, said = inspected(ATTENTION)
    assert code == 0
    assert "attention (line 7) looks like scaled_dot_product_attention" in said
    assert "Read so: True in the mask hides." in said
    assert "✓ scaled_dot_product_attention: 12 of 12 points" in said
    assert "Next:" not in said  # whoever inspects does no exercises


@pytest.mark.slow
def test_masks_are_read_as_their_file_writes_them(inspected):
    code, said = inspected(MASKS, "--as", "length_to_mask=padding_mask")
    assert code == 0 and "✓ padding_mask: 7 of 7 points" in said and "True hides" in said
    for name in ("subsequent_mask", "generate_square_subsequent_mask"):
        code, said = inspected(MASKS, "--as", f"{name}=causal_mask")
        assert code == 0 and "✓ causal_mask: 7 of 7 points" in said


@pytest.mark.slow
@pytest.mark.parametrize(
    "text, read, wrong, right",
    [
        (ADDED, "the mask is added to the scores", "M-DEAD-ROW", "a masked key gets no weight"),
        (SOFTMAX, "it knows the last axis", "D-NAIVE-SOFTMAX", "any axis can compete"),
        (LAYER, "a mask with an axis for the heads", "M-DEAD-ROW", "dropout acts on the weights"),
        (TABLE, "what it adds to zeros, batch first", "P-ODD", "far positions are right too"),
    ],
    ids=["a mask that is added", "a softmax that overflows", "a layer", "a table of sinusoids"],
)
def test_a_defect_is_named_and_a_convention_is_none(inspected, text, read, wrong, right):
    code, said = inspected(text)
    assert code == 1
    assert read in said and f"({wrong})" in said and f"✓ {right}" in said


def test_words_and_their_pads_may_stand_for_lengths(inspected):
    code, said = inspected(
        "def make_pad_mask(seq, pad_idx):\n    return (seq != pad_idx).unsqueeze(1)\n"
    )
    assert code == 0 and "Read so: it reads words, here 1, and pads, here 0." in said
    assert "✓ padding_mask: 7 of 7 points" in said


@pytest.mark.slow
def test_a_temperature_is_the_root_of_the_width_and_a_head_has_its_share(inspected):
    divided = "import torch\n\n\ndef attention(q, k, v, mask, temperature):\n"
    divided += "    s = (q @ k.mT / temperature)\n"
    divided += "    s = s if mask is None else s.masked_fill(mask == 0, -1e9)\n"
    divided += "    w = s.softmax(-1)\n    return w @ v, w\n"
    code, said = inspected(divided)
    assert code == 1 and "(M-DEAD-ROW-UNIFORM)" in said and "11 of 12 points" in said
    heads = LAYER.replace("d_model, n_head, dropout=0.1", "n_head, d_model, d_k, d_v, dropout=0.1")
    code, said = inspected(heads)
    assert code == 1 and "17 of 18 points" in said


def test_how_it_was_read_can_be_seen_and_run(inspected):
    _, said = inspected(ATTENTION, "--show")
    assert "def scaled_dot_product_attention(query, key, value, mask=None):" in said
    assert (
        "theirs.attention(q=query, k=key, v=value, mask=(None if mask is None else ~mask))" in said
    )


@pytest.mark.slow
def test_what_is_hostile_harms_nobody(inspected, tmp_path):
    touched = tmp_path / "touched"
    code, said = inspected(HOSTILE.format(path=str(touched)))
    assert code == 1 and not touched.exists()
    assert "✗ softmax" in said and "✗ causal_mask" in said
    assert "Your answer ended Python itself" in said


@pytest.mark.slow
def test_what_takes_all_memory_is_said_to(inspected):
    code, said = inspected(GREEDY)
    assert code == 1 and "MemoryError" in said


def test_who_calls_what_is_ready_made_is_told_that_there_is_nothing_to_judge(inspected):
    code, said = inspected(READY)
    assert code == 1 and "calls torch.Tensor.softmax" in said


@pytest.mark.parametrize(
    "text, said",
    [
        ("def hello():\n    return 1\n", "nothing in"),
        ("", "nothing in"),
        ("def softmax(x:\n", "is no Python"),
        (b"\xff\xfe\x00\x01", "is no text"),
        ("x = [" + "1," * 1_100_000 + "]", "the most that is read"),
        ("(" * 5000 + ")" * 5000, "is no Python"),
    ],
    ids=["none", "empty", "broken", "binary", "huge", "deep"],
)
def test_where_there_is_nothing_to_judge_one_sentence_says_so(inspected, text, said):
    code, output = inspected(text)
    assert code == 2 and said in output and len(output.splitlines()) == 1


@pytest.mark.slow
def test_who_sits_there_is_asked_which_task_it_is(inspected, monkeypatch):
    monkeypatch.setattr(inspect, "somebody_is_there", lambda: True)
    code, said = inspected(ATTENTION + MASKS, said="no\npadding\ncausal_mask\nno\nno\n")
    assert code == 0 and "There is no task padding." in said
    assert "✓ causal_mask: 7 of 7 points" in said
    assert "judged as scaled_dot_product_attention" not in said
    assert said.count(", judged as ") == 1


def test_bad_options_are_one_sentence(inspected, tmp_path):
    for option, said in (
        ("attention=nothing", "no task 'nothing'"),
        ("other=softmax", "no function"),
    ):
        code, output = inspected(ATTENTION, "--as", option)
        assert code == 2 and said in output
    done = CliRunner().invoke(cli.app, ["inspect", str(tmp_path / "nowhere.py")])
    assert done.exit_code == 2 and "cannot be read" in done.output


@pytest.mark.slow
def test_what_asks_for_more_than_the_task_has_is_not_judged(inspected):
    code, said = inspected(
        "def attention(q, k, v, relative_table):\n    return q\n\n\n"
        "def causal_mask(n):\n    raise RuntimeError('no')\n"
    )
    assert code == 1
    assert "asks for `relative_table`, which stands for nothing here" in said
    assert "raised RuntimeError: no (line 6: raise RuntimeError('no'))" in said


def test_names_are_found_in_any_spelling():
    text = "".join(
        f"def {name}(a):\n    pass\n"
        for name in (
            "softmax",
            "makeCausalMask",
            "get_attn_subsequent_mask",
            "sinusoidPositionTable",
        )
    )
    found = {each.name: each.tasks[0] for each in lookalikes.of_file(text)}
    assert found == {
        "softmax": "softmax",
        "makeCausalMask": "causal_mask",
        "get_attn_subsequent_mask": "causal_mask",
        "sinusoidPositionTable": "sinusoidal_positions",
    }


@pytest.mark.slow
def test_windows_is_sent_to_wsl(monkeypatch, tmp_path):
    (tmp_path / "found.py").write_text(ATTENTION)
    monkeypatch.setattr(sys, "platform", "win32")
    done = CliRunner().invoke(cli.app, ["inspect", str(tmp_path / "found.py")])
    assert done.exit_code == 2 and "WSL" in done.output
