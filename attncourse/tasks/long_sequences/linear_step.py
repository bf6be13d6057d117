import torch

from attncourse import long_sequences as reference
from attncourse.checks.answer import (
    Failure,
    compare,
    describe,
    following,
    moves_nothing,
    shape_of,
)
from attncourse.checks.inputs import integers, normal
from attncourse.checks.observe import FUSED_ATTENTION, Unusable
from attncourse.checks.task import Task
from attncourse.tasks import as_is
from attncourse.tasks.long_sequences.linear_attention import OTHERS, divided, elu_plus_one

STATE = "state[0]", "state[1]"


def with_a_state(step):
    """The answer as a function of tensors: the state is `state[0]` and `state[1]`, or None."""

    def function(*, query, key, value, **parts):
        state = tuple(parts.get(name) for name in STATE)
        returned = step(None if state[0] is None else state, query, key, value)
        if returned is None:
            return None
        output, state = taken_apart(returned)
        return [output, *state]

    return function


def word_by_word(step):
    """The answer on a text (… n d), from the first word on: all outputs."""

    def function(*, query, key, value):
        state, outputs = None, []
        for i in range(query.shape[-2]):
            returned = step(state, query[..., i, :], key[..., i, :], value[..., i, :])
            if returned is None:
                return None
            output, state = taken_apart(returned)
            outputs.append(output)
        return [torch.stack(outputs, -2), *state]

    return function


def taken_apart(returned):
    """Output and state, or Unusable with what came instead."""
    if not isinstance(returned, tuple | list) or len(returned) != 2:
        raise Unusable(f"returned {describe(returned)}; a pair is expected: output, state.")
    output, state = returned
    if not isinstance(output, torch.Tensor):
        raise Unusable(f"returned {describe(output)} for the output; a tensor is expected.")
    good = isinstance(state, tuple | list) and len(state) == 2
    if not good or not all(isinstance(part, torch.Tensor) for part in state):
        raise Unusable(f"returned {describe(state)} for the state; a pair of tensors is expected.")
    return output, state


def step_inputs(rng, *batch, d=4, v=3, begun=True, make=normal, **options):
    """One word, and what two others have left (begun) or nothing."""
    inputs = {
        "query": make(rng, *batch, d, **options),
        "key": make(rng, *batch, d, **options),
        "value": make(rng, *batch, v, **options),
    }
    features = elu_plus_one(make(rng, *batch, 2, d, **options))
    values = make(rng, *batch, 2, v, **options)
    left = features.mT @ values, features.sum(-2)
    return inputs | dict(zip(STATE, left if begun else (None, None), strict=True))


def text_inputs(rng, *batch, n=5, d=4, v=3):
    return {
        "query": normal(rng, *batch, n, d),
        "key": normal(rng, *batch, n, d),
        "value": normal(rng, *batch, n, v),
    }


def probes(rng):
    return {
        "a word": step_inputs(rng, 2),
        "heads": step_inputs(rng, 2, 3, d=5, v=2),
        "the first word": step_inputs(rng, 2, begun=False),
        "first, with heads": step_inputs(rng, 3, 2, d=3, v=4, begun=False),
        "no batch": step_inputs(rng, d=4, v=2),
        "no batch, first": step_inputs(rng, d=2, v=3, begun=False),
        "all equal": step_inputs(rng, 4, 4, d=4, v=4),
        "wide": step_inputs(rng, 1, d=16, v=2),
        "large": {
            name: tensor if name in STATE else 4 * tensor
            for name, tensor in step_inputs(rng, 2).items()
        },
        "far below zero": far_below(rng, 2),
        "double": step_inputs(rng, 2, dtype=torch.float64),
    }


def far_below(rng, *batch):
    """A first word of which all features are near 0."""
    inputs = step_inputs(rng, *batch, begun=False)
    return inputs | {name: -5 - inputs[name].abs() for name in ("query", "key")}


def small(rng):
    for begun in (False, True):
        for d, v in ((1, 1), (2, 1), (1, 2), (2, 2)):
            for _ in range(2):
                yield step_inputs(rng, d=d, v=v, begun=begun, make=integers)
    yield step_inputs(rng, 2, d=4, v=2)
    yield step_inputs(rng, 2, 2, d=3, v=2)


task = Task(
    reference.linear_step,
    number=5,
    returns=("output", "Σ φ(k) vᵀ of the state", "Σ φ(k) of the state"),
    difficulty=3,
    minutes=20,
    section="linear-steps",
    probes=probes,
    adapt=with_a_state,
    differentiated=("a word", "the first word"),
    small=small,
    forbidden=FUSED_ATTENTION,
    keeps=True,
)


@task.check(1)
def it_returns_an_output_and_a_state_of_fixed_size(answer, rng):
    for begun in (False, True):
        inputs = step_inputs(rng, 2, 3, d=5, v=4, begun=begun)
        shapes = {"output": (2, 3, 4), "Σ φ(k) vᵀ": (2, 3, 5, 4), "Σ φ(k)": (2, 3, 5)}
        for (name, shape), tensor in zip(shapes.items(), answer(inputs), strict=True):
            if tensor.shape != shape:
                raise Failure(
                    f"{name} has shape {shape_of(tensor)}; expected {shape_of(torch.empty(shape))}"
                    " for 2 · 3 heads, d = 5 and v = 4.",
                    inputs,
                )


@task.check(1)
def the_first_word_gets_its_own_value(answer, rng):
    for batch in ((2,), (3, 2), ()):
        inputs = step_inputs(rng, *batch, begun=False)
        compare("output of the first word", answer(inputs)[0], inputs["value"], inputs)
        zeros = inputs | {"query": torch.zeros_like(inputs["query"])}
        compare("output of the first word", answer(zeros)[0], inputs["value"], zeros)
        answer.holds_of_the_right(inputs)


@task.check(2)
def after_other_words_output_and_state_are_right(answer, rng):
    answer.matches(step_inputs(rng, 2))
    answer.matches(step_inputs(rng, 2, 3, d=5, v=2))
    answer.matches(step_inputs(rng, 4, 4, d=4, v=4))
    answer.matches(step_inputs(rng, d=3, v=2))
    answer.matches(step_inputs(rng, 2, dtype=torch.float64))


@task.check(3)
def word_by_word_it_is_causal_linear_attention(answer, rng):
    for batch, n in (((2,), 6), ((2, 3), 4), ((), 7)):
        inputs = text_inputs(rng, *batch, n=n)
        outputs, *_ = answer.returned(inputs, adapt=word_by_word)
        compare("outputs of a text", outputs, reference.linear_attention(**inputs), inputs)


@task.check(1)
def small_weights_are_shared_out_as_large_ones(answer, rng):
    # What is added to the sum of weights shows where they are small, and hardly elsewhere.
    with following(lambda: answer.matches(step_inputs(rng, 2, begun=False), tolerance=0.1)):
        answer.matches(far_below(rng, 2))
        answer.matches(far_below(rng, 2, 3))


@task.check(1)
def the_state_does_not_grow(answer, rng):
    for n in (1, 9):
        _, total, weight = answer.returned(text_inputs(rng, 2, n=n), adapt=word_by_word)
        if total.numel() + weight.numel() != 2 * (4 * 3 + 4):
            raise Failure(
                f"After {n} words the state holds {total.numel() + weight.numel()} numbers; "
                f"expected {2 * (4 * 3 + 4)} (2 texts, d = 4, v = 3), after any number of words."
            )


@task.check(1)
def the_gradients_of_the_new_word_and_the_state_are_right(answer, rng):
    answer.gradients_match(step_inputs(rng, 2))
    answer.gradients_match(step_inputs(rng, 2, begun=False))


@task.check(1)
def a_state_belongs_to_its_text(answer, rng):
    inputs, after = step_inputs(rng, 2, begun=False), []
    for _ in range(2):
        answer(step_inputs(rng, 2, begun=False))
        after.append([each.nan_to_num() for each in answer(inputs)])
    for name, one, two in zip(task.returns, *after, strict=True):
        compare(f"{name} of a text, after another one", two, one, inputs)
    moves_nothing(answer, step_inputs(rng, 2))
    moves_nothing(answer, step_inputs(rng, 2, begun=False))
    answer.holds_of_the_right(inputs)


# --- the reference in steps ---------------------------------------------------------------------


@task.steps
class Step:
    def of_query(x):
        return elu_plus_one(x)

    def of_key(x):
        return elu_plus_one(x)

    def of_value(x):
        return x

    def scale(query, key):
        return query, key

    def new(key, value, query, state):
        return key[..., :, None] * value[..., None, :]

    def counted(self, key):
        """What a key, as it came, adds to the second sum."""
        return self.of_key(key)

    def add(state, new, key, query):
        if state is None:
            return new, key
        return state[0] + new, state[1] + key

    def asked(before, after, key):
        return after

    def sums(query, total):
        return (query[..., None] * total).sum(-2)

    def divide(sums, query, weight):
        return sums / (query * weight).sum(-1, keepdim=True)

    def kept(before, after, key, value):
        return after

    def results(output, state):
        return output, state

    def __call__(self, state, query, key, value):
        query, key = self.scale(query, key)
        query, counted, key = self.of_query(query), self.counted(key), self.of_key(key)
        value = self.of_value(value)
        after = self.add(state, self.new(key, value, query, state), counted, query)
        total, weight = self.asked(state, after, key)
        output = self.divide(self.sums(query, total), query, weight)
        return self.results(output, self.kept(state, after, key, value))


def both(function):
    return {"of_query": function, "of_key": function}


# --- faults: what is added ----------------------------------------------------------------------

reads_first = task.fault(
    "L-READS-FIRST",
    asked=lambda before, after, key: after if before is None else (before[0] + 0, before[1] + 0),
)


@reads_first
class ReadsFirst(Step):
    """From zeros on: the first word finds nothing."""

    def __call__(self, state, query, key, value):
        query, key = self.scale(query, key)
        query, counted, key = self.of_query(query), self.counted(key), self.of_key(key)
        value = self.of_value(value)
        new = self.new(key, value, query, state)
        before = state or (torch.zeros_like(new), torch.zeros_like(counted))
        output = self.divide(self.sums(query, before[0]), query, before[1])
        after = self.add(before, new, counted, query)
        return self.results(output, self.kept(before, after, key, value))


@reads_first
class NothingAtFirst(ReadsFirst):
    """The same, and 0 in place of 0 / 0."""

    def divide(self, sums, query, weight):
        return super().divide(sums, query, weight + (weight == 0).all(-1, True))


@reads_first
class ZerosAtFirst(ReadsFirst):
    """The same, as new zeros."""

    def divide(self, sums, query, weight):
        return super().divide(sums, query, weight) if weight.any() else torch.zeros_like(sums)


task.fault(
    "L-NEW-NOT-BELOW",
    asked=lambda before, after, key: after if before is None else (after[0], before[1] + 0),
)
task.fault(
    "L-REPLACES",
    add=(lambda state, new, key, query: (new, key), ...),
    kept=(
        ...,
        lambda before, after, key, value: (key[..., :, None] * value[..., None, :], key),
    ),
)
task.fault(
    "L-WEIGHT-NOT-ADDED",
    add=lambda state, new, key, query: (new if state is None else state[0] + new, key),
)
task.fault("L-NEW-WEIGHT-ALONE", asked=lambda before, after, key: (after[0], key))
task.fault(
    "L-TABLE-NOT-ADDED",
    add=lambda state, new, key, query: (new, key if state is None else state[1] + key),
)
task.fault(
    "L-WEIGHTS-ADDED",
    add=lambda state, new, key, query: Step.add(state, new, query * key, query),
    divide=(lambda sums, query, weight: sums / weight.sum(-1, keepdim=True), ...),
)


@task.fault("L-FIRST-GETS-NOTHING")
def first_gets_nothing(state, query, key, value):
    output, after = Step()(state, query, key, value)
    return torch.zeros_like(value) if state is None else output, after


def written_into(before, after, key, value):
    return after if before is None else (before[0].copy_(after[0]), before[1].copy_(after[1]))


task.fault(
    "C-KEPT-IN-PLACE",
    add=(
        lambda state, new, key, query: (
            (new, key) if state is None else (state[0].add_(new), state[1].add_(key))
        ),
        ...,
    ),
    kept=(..., written_into),
)
task.fault(
    "L-SQUARE-STATE",
    add=lambda state, new, key, query: Step.add(
        state or (new.new_zeros(*key.shape, key.shape[-1]), torch.zeros_like(key)), new, key, query
    ),
)
task.fault(
    "L-STATE-MEAN",
    add=lambda state, new, key, query: (
        (new, key) if state is None else ((state[0] + new) / 2, (state[1] + key) / 2)
    ),
)
task.fault(
    "L-DELTA",
    section="update",
    new=lambda key, value, query, state: (
        key[..., :, None]
        * (value if state is None else value - (key[..., None] * state[0]).sum(-2))[..., None, :]
    ),
)
task.fault(
    "L-BY-QUERY", new=lambda key, value, query, state: query[..., :, None] * value[..., None, :]
)
task.fault(
    "L-TABLE-TURNED",
    kept=(lambda before, after, key, value: (after[0].mT, after[1]), ...),
    new=(..., lambda key, value, query, state: value[..., :, None] * key[..., None, :]),
    sums=(..., lambda query, total: (total @ query[..., None])[..., 0]),
)

# --- faults: φ ----------------------------------------------------------------------------------

task.fault("L-NO-FEATURES", section="linear-attention", **both(as_is))
task.fault("L-ELU", section="linear-attention", **both(torch.nn.functional.elu))
task.fault(
    "L-ELU-OF-ONE-MORE",
    section="linear-attention",
    **both(lambda x: torch.nn.functional.elu(x + 1)),
)
task.fault("L-RELU", section="linear-attention", **both(torch.relu))
task.fault("L-RELU-PLUS-ONE", section="linear-attention", **both(lambda x: torch.relu(x) + 1))
task.fault("L-EXP", section="linear-attention", **both(torch.exp))
task.fault("L-OTHER-FEATURES", section="linear-attention", of_query=OTHERS, of_key=OTHERS)
task.fault("L-SOFTMAX-EACH", section="linear-attention", **both(lambda x: x.softmax(-1)))
task.fault("L-KEYS-ONLY", section="linear-attention", of_query=as_is)
task.fault("L-QUERIES-ONLY", section="linear-attention", of_key=as_is)
task.fault(
    "L-FEATURES-LATER",
    section="linear-attention",
    of_key=as_is,
    asked=lambda before, after, key: tuple(map(elu_plus_one, after)),
)
task.fault("L-FEATURED-VALUES", section="linear-attention", of_value=lambda self, x: self.of_key(x))
task.fault(
    "L-SCALED",
    section="linear-attention",
    scale=(divided(1 / 2, 0), divided(1 / 2, 1), divided(1 / 2, 0, 1), divided(1, 0)),
)

# --- faults: what comes back --------------------------------------------------------------------

task.fault("L-PLAIN-KEYS-COUNTED", section="linear-attention", counted=lambda self, key: key)
task.fault("L-ONE-DIVISOR", divide=lambda sums, query, weight: sums / (query * weight).sum())
task.fault("L-LINEAR-NORM", divide=lambda sums, query, weight: sums)
task.fault(
    "L-MULTIPLIED",
    divide=lambda sums, query, weight: sums * (query * weight).sum(-1, keepdim=True),
)
task.fault(
    "L-DIVISOR-DETACHED",
    divide=lambda sums, query, weight: sums / (query * weight).sum(-1, keepdim=True).detach(),
)


@task.fault("L-FEATURE-BY-FEATURE")
class FeatureByFeature(Step):
    def __call__(self, state, query, key, value):
        _, (total, weight) = super().__call__(state, query, key, value)
        return self.sums(self.of_query(query), total / weight[..., None]), (total, weight)


task.fault(
    "L-DIVIDES-BY-SUM", divide=lambda sums, query, weight: sums / weight.sum(-1, keepdim=True)
)
task.fault(
    "L-EPSILON",
    divide=(
        lambda sums, query, weight: sums / ((query * weight).sum(-1, keepdim=True) + 1e-6),
        lambda sums, query, weight: sums / ((query * weight).sum(-1, keepdim=True) + 1e-3),
    ),
)
task.fault(
    "L-STATE-OLD",
    kept=(
        lambda before, after, key, value: after if before is None else before,
        lambda before, after, key, value: before or tuple(torch.zeros_like(x) for x in after),
    ),
)
task.fault(
    "L-STATE-DIVIDED",
    kept=lambda before, after, key, value: (after[0] / after[1][..., None], after[1]),
)
task.fault("L-STATE-FIRST", results=lambda output, state: (state, output))
task.fault("L-THREE-RESULTS", results=lambda output, state: (output, *state))
task.fault("L-NO-STATE-BACK", results=lambda output, state: output)
task.fault("L-PAIR-TURNED", kept=lambda before, after, key, value: after[::-1])
task.fault(
    "L-DETACHED",
    add=lambda state, new, key, query: Step.add(
        state and tuple(x.detach() for x in state), new, key, query
    ),
)


@task.fault("C-FLOAT32")
class InFloat32(Step):
    def __call__(self, state, query, key, value):
        state = None if state is None else tuple(x.float() for x in state)
        return super().__call__(state, query.float(), key.float(), value.float())


def follows(state, key, value):
    """Whether this could be the next word of that text."""
    same = state[1].shape == key.shape and state[0].shape[-1] == value.shape[-1]
    return same and state[1].dtype == key.dtype


@task.fault("L-STALE")
def _(state, query, key, value, kept={}):  # noqa: B006
    last = kept.get("state")
    if state is None and last is not None and follows(last, key, value):
        state = last
    output, kept["state"] = Step()(state, query, key, value)
    return output, kept["state"]
