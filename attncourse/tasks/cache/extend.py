"""Keep new keys and values behind the old ones: what is promised, what goes wrong."""

import torch

from attncourse import cache as reference
from attncourse.checks.answer import Failure, compare, moves_nothing, shape_of
from attncourse.checks.inputs import integers, normal
from attncourse.checks.observe import FUSED_ATTENTION
from attncourse.checks.task import Task
from attncourse.tasks import thoughts


def with_a_cache(extend):
    """The answer as a function of tensors: the cache is `keys` and `values`, or None."""

    def function(*, keys, values, key, value):
        return extend(None if keys is None else (keys, values), key, value)

    return function


def cache_inputs(rng, *batch, n=4, q=2, d=3, v=5, make=normal, **options):
    """A cache of n positions (n = 0: none yet), and q new ones."""
    return {
        "keys": make(rng, *batch, n, d, **options) if n else None,
        "values": make(rng, *batch, n, v, **options) if n else None,
        "key": make(rng, *batch, q, d, **options),
        "value": make(rng, *batch, q, v, **options),
    }


def probes(rng):
    return {
        "plain": cache_inputs(rng, 2, 3, n=6, q=1, d=4),
        "nothing kept yet": cache_inputs(rng, 2, 3, n=0, q=4),
        "several new": cache_inputs(rng, 2, 4, n=3, q=5),
        "all equal": cache_inputs(rng, 3, 3, n=3, q=3, d=3, v=3),
        "keys as wide as values": cache_inputs(rng, 2, 3, n=4, q=1, d=5),
        "one head, one text": cache_inputs(rng, 1, 1, n=2, q=1),
        "no axis for heads": cache_inputs(rng, 2, n=4, q=3, d=6),
        "one text, no heads": cache_inputs(rng, n=4, q=2),
        "double": cache_inputs(rng, 2, 2, n=3, q=1, dtype=torch.float64),
    }


def small(rng):
    for batch, n, q, d, v in (
        ((1, 1), 0, 1, 1, 1),
        ((1, 1), 1, 1, 1, 1),
        ((1, 1), 2, 1, 1, 2),
        ((1, 1), 1, 2, 2, 1),
        ((1, 2), 1, 1, 1, 1),
        ((2, 1), 2, 1, 1, 1),
        ((1,), 2, 1, 1, 2),
        ((2, 2), 3, 2, 2, 1),
    ):
        yield cache_inputs(rng, *batch, n=n, q=q, d=d, v=v, make=integers)


task = Task(
    reference.extend,
    number=1,
    returns=("keys", "values"),
    difficulty=1,
    minutes=10,
    section="cache-extend",
    hints=(
        "Two tensors are kept, and each gets its new positions behind the old ones. Which axis "
        "holds positions? Count it from the back, and it does not matter what stands in front.",
        "The first call has no cache yet: `cache` is None. What should come back then?",
        "If cache is None, return (key, value). Otherwise take it apart into keys and values, "
        "and torch.cat each with its new ones along dim=-2.",
    ),
    probes=probes,
    adapt=with_a_cache,
    differentiated=("plain",),
    small=small,
    forbidden=FUSED_ATTENTION,
    keeps=True,
)


@task.check(1)
def keys_and_values_grow_by_the_new_positions(answer, rng):
    for batch, n, q in (((2, 3), 4, 1), ((3, 2), 5, 4)):
        inputs = cache_inputs(rng, *batch, n=n, q=q)
        for name, tensor, width in zip(("keys", "values"), answer(inputs), (3, 5), strict=True):
            if tensor.shape != (*batch, n + q, width):
                raise Failure(
                    f"{n} positions are kept and {q} come: {name} should have shape "
                    f"{shape_of(torch.empty(*batch, n + q, width))}; yours {shape_of(tensor)}.",
                    inputs,
                )


@task.check(1)
def the_old_positions_stand_first_and_stay_as_they_were(answer, rng):
    inputs = cache_inputs(rng, 2, 3, n=4, q=2)
    keys, values = answer(inputs)
    for name, tensor, old in (("keys", keys, "keys"), ("values", values, "values")):
        compare(f"the first 4 of {name}", tensor[..., :4, :], inputs[old], inputs)
    for name, tensor, new in (("keys", keys, "key"), ("values", values, "value")):
        compare(f"the last 2 of {name}", tensor[..., 4:, :], inputs[new], inputs)


@task.check(1)
def the_first_call_begins_a_cache(answer, rng):
    answer.matches(cache_inputs(rng, 2, 3, n=0, q=4))
    answer.matches(cache_inputs(rng, 1, 2, n=0, q=1))


@task.check(1)
def any_leading_axes_and_equal_sizes_work(answer, rng):
    for batch in ((2,), (), (2, 3), (2, 2, 2)):
        answer.matches(cache_inputs(rng, *batch, n=3, q=2))
    answer.matches(cache_inputs(rng, 3, 3, n=3, q=3, d=3, v=3))
    answer.matches(cache_inputs(rng, 1, 1, n=1, q=1, d=1, v=1))
    answer.matches(cache_inputs(rng, 2, 2, n=3, q=1, dtype=torch.float64))


@task.check(1)
def it_keeps_nothing_of_its_own_and_changes_nothing(answer, rng):
    moves_nothing(answer, cache_inputs(rng, 2, 3))
    moves_nothing(answer, cache_inputs(rng, 2, 3, n=0))
    inputs = cache_inputs(rng, 2, 3)
    answer.matches(inputs)
    answer(cache_inputs(rng, 2, 3, n=6))
    answer.matches(inputs)
    answer.gradients_match(inputs)


# --- the reference in steps ---------------------------------------------------------------------


@task.steps
class Extend:
    def begin(key, value):
        return key, value

    def pairs(keys, values, key, value):
        return (keys, key), (values, value)

    def read(x):
        return x

    def join(kept, new):
        return torch.cat([kept, new], dim=-2)

    def result(keys, values):
        return keys, values

    def __call__(self, cache, key, value):
        if cache is None:
            first = self.begin(key, value)
            return None if first is None else self.result(*first)
        pairs = self.pairs(*cache, key, value)
        return self.result(*(self.join(self.read(kept), self.read(new)) for kept, new in pairs))


# --- faults -------------------------------------------------------------------------------------


def along(dim):
    return lambda kept, new: torch.cat([kept, new], dim=dim)


task.fault(
    "K-CAT-FIRST-AXIS",
    "torch.cat puts two tensors one behind the other.",
    "Along axis 0, where nothing else is said. That is the batch: your cache holds more texts "
    "instead of more positions. Say which axis grows.",
    join=along(0),
)
task.fault(
    "K-CAT-HEADS",
    "The new keys go beside the old ones, along axis 1.",
    "In (b h n d) that is the axis of the heads: a step would add heads instead of positions. "
    "Positions are the last axis but one.",
    join=along(1),
)
task.fault(
    "K-CAT-AXIS-2",
    "Positions are axis 2.",
    "In (b h n d) they are. A cache without an axis of heads, as latent attention has it, is "
    "(b n l). Counted from the back, positions stand in the same place in both.",
    join=along(2),
)
task.fault(
    "K-CAT-WIDTH",
    "The last axis grows.",
    "That one holds the features of a key. Longer vectors would fit no query any more; there "
    "should be more vectors, of the same width.",
    join=along(-1),
)
task.fault(
    "K-STACKED",
    "torch.stack collects the steps, one after the other.",
    "It adds an axis, and asks that all pieces have one size. The cache has as many axes as "
    "before, and one of them is longer.",
    join=lambda kept, new: torch.stack([kept, new], dim=-2),
)
task.fault(
    "K-NEW-FIRST",
    "The newest position comes first.",
    "Then all others move by one place at each step, and a causal mask hides the wrong ones. A "
    "text is kept in its order: the new stands behind the old.",
    join=lambda kept, new: torch.cat([new, kept], dim=-2),
)
task.fault(
    "K-ONLY-THE-NEW",
    "A step makes a key and a value, so it returns these.",
    "The caller has them already. What is handed in next time is what comes back here, so the "
    "whole past would be gone.",
    join=lambda kept, new: new,
)
task.fault(
    "K-NOT-KEPT",
    "The cache is what was there; the new word is only passing through.",
    "Each later word attends to it. You return the cache as it came, so no word is ever kept.",
    join=lambda kept, new: kept,
)
task.fault(
    "K-NO-BEGINNING",
    "There is always a cache.",
    "Not in the first call: nothing came before, and `cache` is None. Then the new keys and "
    "values are all there is, and they begin the cache.",
    begin=(lambda key, value: tuple(None), lambda key, value: None),
)
task.fault(
    "K-BEGINS-WITH-ZEROS",
    "A cache begins with a position of zeros.",
    "That is a position nobody wrote. Its key has score 0 with every query and takes weight from "
    "all others. At the beginning nothing is kept.",
    begin=lambda key, value: tuple(
        torch.cat([torch.zeros_like(x[..., :1, :]), x], -2) for x in (key, value)
    ),
)
task.fault(
    "K-PAIR-TURNED",
    "A cache is a pair, in whichever order.",
    "Yours comes back as (values, keys). The next call takes the first for keys. The order "
    "belongs to the promise: keys, then values.",
    result=lambda keys, values: (values, keys),
)
task.fault(
    "K-KEY-TWICE",
    "The second line is like the first (copied, and one name not changed).",
    "The new key went into both. A value is another vector: what is read, not what is found by.",
    begin=lambda key, value: (key, key),
    pairs=lambda keys, values, key, value: ((keys, key), (values, key)),
)
task.fault(
    "K-ONLY-KEYS",
    "Keys are searched, so keys are kept.",
    "What is found has to be read, too: each key needs its value. Your values do not grow, and "
    "soon there are more keys than values.",
    pairs=(
        lambda keys, values, key, value: ((keys, key), (values, values[..., :0, :])),
        lambda keys, values, key, value: ((keys, key), (value[..., :0, :], value)),
    ),
)
task.fault(
    "K-ROLLING",
    "The cache has its size; the oldest position makes room for the new one.",
    "That is a sliding window, another model, which forgets. This cache keeps everything, and "
    "grows.",
    section="cache-ring",
    join=lambda kept, new: torch.cat([kept, new], -2)[..., -kept.shape[-2] :, :],
)
task.fault(
    "K-LAST-ONLY",
    "A step makes one new position, so the last one of those that came is kept.",
    "A prompt comes in one piece of many positions, and each of them will be looked at.",
    begin=lambda key, value: (key[..., -1:, :], value[..., -1:, :]),
    join=lambda kept, new: torch.cat([kept, new[..., -1:, :]], -2),
)
task.fault(
    "K-OLDEST-KEPT",
    "The cache is full with what it holds.",
    "It has no size of its own; it grows by every position that comes. You cut it back to its old "
    "length, and the new is what gets lost.",
    join=lambda kept, new: torch.cat([kept[..., 1:, :], new], -2)[..., : kept.shape[-2], :],
)
task.fault(
    "K-ADDED",
    "Extending means adding: the new vector is added to what is kept.",
    "A sum mixes all positions into one vector, the bottleneck of chapter 1. Each position keeps "
    "a place of its own, or no weight could choose it.",
    join=lambda kept, new: kept + new.sum(-2, keepdim=True),
)
task.fault(thoughts.FLOAT32, read=lambda x: x.float())
task.fault(
    thoughts.DETACHED,
    "Nobody trains while writing, so what is kept can be detached.",
    "The numbers are right. But then the cached steps and the whole text differ in their "
    "gradients, and a text that is read in pieces in training would learn from the last only.",
    read=(lambda x: x.detach(), ...),
    join=(..., lambda kept, new: Extend.join(kept.detach(), new)),
)


def follows(kept, new):
    """Whether the one can stand behind the other."""
    same = kept.shape[:-2] == new.shape[:-2] and kept.shape[-1] == new.shape[-1]
    return same and kept.dtype == new.dtype


@task.fault(
    "K-STALE",
    "The function remembers what it has seen.",
    "Then a second text is put behind the first and attends to it. A cache belongs to a text: it "
    "is handed in, and handed back.",
    section="cache-stale",
)
def _(cache, key, value, kept={}):  # noqa: B006
    last = kept.get("cache")
    if last is not None and all(map(follows, last, (key, value))):
        cache = last
    kept["cache"] = Extend()(cache, key, value)
    return kept["cache"]
