"""What wrong answers to several tasks of lab 6 share."""

import math

import torch

INFINITY = math.inf


def finite(maximum):
    return maximum.masked_fill(maximum == -INFINITY, 0)


def hide_later(scores, position, column):
    q, k = scores.shape[-2:]
    queries = torch.arange(position, position + q, device=scores.device)
    keys = torch.arange(column, column + k, device=scores.device)
    return scores.masked_fill(keys > queries[:, None], -INFINITY)


OWN_TILE = (  # of `hide`: places counted in the tile, by both or one of them
    lambda scores, *_: hide_later(scores, 0, 0),
    lambda scores, row, column, q, k: hide_later(scores, k - q, 0),
    lambda scores, *_: hide_later(scores, scores.shape[-1] - scores.shape[-2], 0),
    lambda scores, row, column, q, k: hide_later(scores, row + k - q, 0),
    lambda scores, row, column, q, k: hide_later(scores, k - q, column),
)


def no_diagonal(scores, row, column, q, k):
    """A tile is hidden as a whole or not at all."""
    return scores - INFINITY if column > row + k - q else scores


def of_causal_masks(task, hide) -> None:
    """Faults of the step `hide` (scores, row, column, q, k -> scores)."""
    task.fault(
        "L6-CAUSAL-STRICT",
        hide=lambda scores, row, column, q, k: hide(scores, row - 1, column, q, k),
    )
    task.fault(
        "L6-CAUSAL-ONE-AHEAD",
        hide=lambda scores, row, column, q, k: hide(scores, row + 1, column, q, k),
    )
    task.fault(
        "L6-CAUSAL-TURNED",
        hide=lambda scores, row, column, q, k: hide_later(scores, row + q - k, column),
    )
    task.fault("L6-CAUSAL-BY-TILE", hide=no_diagonal)
    task.fault(
        "M-FILL-ZERO",
        hide=lambda scores, row, column, q, k: (
            later := hide(scores, row, column, q, k)
        ).masked_fill(later == -INFINITY, 0),
    )


def hide_from_the_cpu(scores, row, column, q, k):
    queries, keys = torch.arange(row + k - q, k)[: scores.shape[-2]], torch.arange(column, k)
    later = keys[: scores.shape[-1]] > queries[:, None]
    return torch.where(later, torch.full(later.shape, -INFINITY, dtype=scores.dtype), scores)


def whole_tiles(n, tile):
    return n // tile * tile


def one_tile_at_least(n, tile):
    return max(whole_tiles(n, tile), min(n, tile))
