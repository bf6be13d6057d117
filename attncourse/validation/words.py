"""What chapters of sentences are given: ids, lengths, words and pieces of words."""

from collections.abc import Mapping, Sequence

from torch import Tensor

from attncourse.validation.axes import validate_axes
from attncourse.validation.tensors import is_readable, shown


def validate_ids(name: str, ids: Tensor, words: int, pad: int | None = None) -> None:
    """Raise unless ids (b n) are whole, in 0 … `words` − 1, and not all of them padding."""
    validate_axes(**{name: (ids, "b n", "whole")})
    if ids.shape[1] == 0:
        raise ValueError(f"{name} {shown(ids)} is empty: a row needs at least one word")
    if not (is_readable(ids) and ids.numel()):
        return
    if not 0 <= ids.min() <= ids.max() < words:
        raise ValueError(
            f"{name} holds ids from {ids.min()} to {ids.max()}; known are 0 to {words - 1}"
        )
    if pad is not None and bool((ids == pad).all()):
        raise ValueError(f"{name} {shown(ids)} holds nothing but padding (id {pad})")


def validate_lengths(tokens: Tensor, lengths: Tensor) -> None:
    """Raise unless tokens (b n) can have as many real tokens in each row as lengths (b) says."""
    longest = tokens.shape[1]
    if lengths.numel() and not (lengths.min() >= 1 and lengths.max() <= longest):
        raise ValueError(
            f"every sentence must have 1 to n = {longest} real tokens; "
            f"lengths go from {lengths.min()} to {lengths.max()}"
        )


def validate_pair(name: str, returned: object, parts: str) -> None:
    """Raise unless a caller's function has returned two things; `parts` says which."""
    if not isinstance(returned, tuple | list) or len(returned) != 2:
        got = type(returned).__name__
        if isinstance(returned, tuple | list):
            got += f" of {len(returned)}"
        raise TypeError(f"{name} must return the pair ({parts}); got {got}")


def validate_counts(words: object) -> None:
    """Raise unless `words` map each word to how often it occurs, a whole number of at least 0."""
    expected = "words must map each word to how often it occurs"
    if not isinstance(words, Mapping):
        raise TypeError(f"{expected}; got {type(words).__name__}")
    for word, count in words.items():
        if not isinstance(word, str):
            raise TypeError(f"{expected}; got the word {word!r}, of type {type(word).__name__}")
        if isinstance(count, bool) or not isinstance(count, int) or count < 0:
            raise ValueError(
                f"{expected}, a whole number of at least 0; got {count!r} for {word!r}"
            )


def validate_merges(merges: object) -> None:
    """Raise unless merges are a list of pairs."""
    if isinstance(merges, str) or not isinstance(merges, Sequence):
        raise TypeError(f"merges must be a list of pairs of pieces; got {type(merges).__name__}")
    for merge in merges:
        if not isinstance(merge, tuple | list) or len(merge) != 2:
            raise ValueError(f"merges must hold pairs of pieces; got {merge!r}")


def validate_logits(logits: Tensor) -> None:
    """Raise unless logits (b vocab) score at least one word, and all of them with a number."""
    if logits.shape[1] == 0 or (is_readable(logits) and logits.isnan().any()):
        raise ValueError(
            "logits (b vocab) must hold a number for at least one word; "
            f"got shape {tuple(logits.shape)}, {int(logits.isnan().sum())} of them NaN"
        )
