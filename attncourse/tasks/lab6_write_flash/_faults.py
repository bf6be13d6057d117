"""What wrong answers to several tasks of lab 6 share."""

import math

import torch

INFINITY = math.inf


def finite(maximum):
    return maximum.masked_fill(maximum == -INFINITY, 0)


def hide_later(scores, position, column):
    q, k = scores.shape[-2:]
    queries, keys = torch.arange(q) + position, torch.arange(k) + column
    return scores.masked_fill(keys > queries[:, None], -INFINITY)
