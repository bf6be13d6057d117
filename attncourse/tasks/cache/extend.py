import torch

from attncourse import cache as reference
from attncourse.checks.answer import Failure, compare, following, moves_nothing, shape_of
from attncourse.checks.inputs import integers, normal
from attncourse.checks.observe import FUSED_ATTENTION
from attncourse.checks.task import Task
from attncourse.tasks import as_is
from attncourse.tasks.cache._shared import along, of_the_growing_axis


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
    probes=probes,
    adapt=with_a_cache,
    differentiated=("plain", "all equal"),
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


@task.check(1, "any leading axes, equal sizes and float64 work")
def any_leading_axes_and_equal_sizes_work(answer, rng):
    usual = cache_inputs(torch.Generator().manual_seed(0), 2, 3)
    with following(lambda: answer.matches(usual)):
        for batch in ((2,), (), (2, 3), (2, 2, 2)):
            answer.matches(cache_inputs(rng, *batch, n=3, q=2))
        answer.matches(cache_inputs(rng, 3, 3, n=3, q=3, d=3, v=3))
        answer.matches(cache_inputs(rng, 1, 1, n=1, q=1, d=1, v=1))
        answer.matches(cache_inputs(rng, 2, 2, n=3, q=1, dtype=torch.float64))


@task.check(1, "it keeps nothing of its own, changes nothing and lets gradients through")
def it_keeps_nothing_of_its_own_and_changes_nothing(answer, rng):
    moves_nothing(answer, cache_inputs(rng, 2, 3))
    moves_nothing(answer, cache_inputs(rng, 2, 3, n=0))
    inputs = cache_inputs(rng, 2, 3)
    before = answer(inputs)
    answer(cache_inputs(rng, 2, 3, n=6))
    for name, one, two in zip(answer.task.returns, answer(inputs), before, strict=True):
        compare(f"{name}, after another call", one, two, inputs)
    answer.gradients_match(inputs)


# --- the reference in steps ---------------------------------------------------------------------


@task.steps
class Extend:
    def begin(key, value):
        return key, value

    def pairs(keys, values, key, value):
        return (keys, key), (values, value)

    read = as_is
    old = as_is
    new = as_is
    added = as_is

    def in_order(kept, new):
        return kept, new

    def grow(kept, new):
        return torch.cat([kept, new], dim=-2)

    def cut(joined, kept, new):
        return joined

    def join(self, kept, new):
        return self.cut(self.grow(*self.in_order(kept, self.added(new))), kept, new)

    def result(keys, values):
        return keys, values

    def __call__(self, cache, key, value):
        key, value = (self.new(self.read(x)) for x in (key, value))
        if cache is None:
            first = self.begin(key, value)
            return None if first is None else self.result(*first)
        keys, values = (self.old(self.read(x)) for x in cache)
        return self.result(*(self.join(*pair) for pair in self.pairs(keys, values, key, value)))


# --- faults -------------------------------------------------------------------------------------


def grown(kept, new):
    """The tensor that came, with more in it."""
    kept.data = torch.cat([kept, new], dim=-2)
    return kept


task.fault("K-CAT-FIRST-AXIS", grow=along(0))
of_the_growing_axis(task)
task.fault("K-CAT-WIDTH", grow=along(-1))
task.fault("K-STACKED", grow=lambda kept, new: torch.stack([kept, new], dim=-2))
task.fault("K-NEW-FIRST", in_order=lambda kept, new: (new, kept))
task.fault("K-ONLY-THE-NEW", join=lambda kept, new: new)
task.fault("K-NOT-KEPT", join=lambda kept, new: kept)
task.fault("K-NO-BEGINNING", begin=(lambda key, value: tuple(None), lambda key, value: None))
task.fault(
    "K-BEGINS-WITH-ZEROS",
    begin=tuple(
        lambda self, key, value, most=most: tuple(
            self.join(torch.zeros_like(x[..., :most, :]), x) for x in (key, value)
        )
        for most in (1, None)
    ),
)
task.fault(
    "K-BEGINS-TWICE", begin=lambda key, value: tuple(torch.cat([x, x], -2) for x in (key, value))
)
task.fault("K-BEGINS-EMPTY", begin=lambda key, value: (key[..., :0, :], value[..., :0, :]))
task.fault("K-PAIR-TURNED", result=lambda keys, values: (values, keys))
task.fault(
    "K-KEY-TWICE",
    begin=(lambda key, value: (key, key), ..., ..., lambda key, value: (key, key)),
    pairs=(
        lambda keys, values, key, value: ((keys, key), (values, key)),
        ...,
        lambda keys, values, key, value: ((keys, key), (values, key)),
        ...,
    ),
    result=(..., lambda keys, values: (keys, keys), ..., ...),
)
task.fault(
    "K-ONLY-KEYS",
    pairs=(
        lambda keys, values, key, value: ((keys, key), (values, values[..., :0, :])),
        lambda keys, values, key, value: ((keys, key), (value[..., :0, :], value)),
        lambda keys, values, key, value: ((keys, key), (values, values[..., :0, :])),
    ),
    begin=(..., ..., lambda key, value: (key, value[..., :0, :])),
)
task.fault(
    "K-ROLLING",
    section="cache-ring",
    cut=lambda joined, kept, new: joined[..., -kept.shape[-2] :, :],
)
task.fault(
    "K-LAST-ONLY",
    new=(lambda x: x[..., -1:, :], lambda x: x[..., :1, :], ..., ...),
    added=(..., ..., lambda x: x[..., -1:, :], lambda x: x[..., :1, :]),
)
task.fault("K-OLDEST-DROPPED", cut=lambda joined, kept, new: joined[..., 1:, :])
task.fault("K-NEWEST-REPLACED", in_order=lambda kept, new: (kept[..., :-1, :], new))


def overwritten(joined, kept, new):
    """The newest stand where the last of the kept ones stood."""
    n = kept.shape[-2]
    return torch.cat([joined[..., : max(0, n - new.shape[-2]), :], joined[..., n:, :]], -2)


task.fault(
    "K-OLDEST-KEPT",
    cut=(lambda joined, kept, new: joined[..., 1 : kept.shape[-2] + 1, :], overwritten),
)
task.fault(
    "K-ADDED",
    join=(lambda kept, new: kept + new.sum(-2, keepdim=True), lambda kept, new: kept + new),
)
task.fault("C-FLOAT32", read=lambda x: x.float())
task.fault("C-KEPT-IN-PLACE", join=grown)
task.fault(
    "C-DETACHED",
    old=(torch.detach, torch.detach, ...),
    new=(torch.detach, ..., torch.detach),
)


def follows(kept, new):
    """Whether the one can stand behind the other."""
    same = kept.shape[:-2] == new.shape[:-2] and kept.shape[-1] == new.shape[-1]
    return same and kept.dtype == new.dtype


@task.fault("K-STALE", section="cache-stale")
def _(cache, key, value, kept={}):  # noqa: B006
    last = kept.get("cache")
    if last is not None and all(map(follows, last, (key, value))):
        cache = last
    kept["cache"] = Extend()(cache, key, value)
    return kept["cache"]
