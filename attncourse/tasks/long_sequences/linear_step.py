"""Linear attention with a state that does not grow: task 5 of chapter 11."""

import math

import torch

from attncourse import long_sequences as reference
from attncourse.checks.answer import Failure, compare, describe, moves_nothing, shape_of
from attncourse.checks.inputs import integers, normal
from attncourse.checks.observe import FUSED_ATTENTION, Unusable
from attncourse.checks.task import Task
from attncourse.tasks import as_is, thoughts
from attncourse.tasks.long_sequences.linear_attention import elu_plus_one

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
    hints=(
        "Write down the output of word i with its two sums. Which parts of them do not depend on "
        "the query? What does a new word add?",
        "State: the sum of φ(k) vᵀ, a table (d v), and the sum of φ(k), a vector (d). First add "
        "the new word, for it sees itself; then ask: φ(q) times the table, over φ(q) times the "
        "vector.",
        "k = F.elu(key) + 1; total = total + k[…, :, None] * value[…, None, :]; weight = weight + "
        "k; output = (q[…, None] * total).sum(−2) / (q * weight).sum(−1, keepdim=True); "
        "return output, (total, weight).",
    ),
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
        answer.matches(inputs)


@task.check(2)
def a_word_is_added_and_then_asks(answer, rng):
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
def gradients_reach_the_new_word_and_the_state(answer, rng):
    answer.gradients_match(step_inputs(rng, 2))
    answer.gradients_match(step_inputs(rng, 2, begun=False))


@task.check(1)
def a_state_belongs_to_its_text(answer, rng):
    answer(step_inputs(rng, 2, begun=False))
    answer.matches(step_inputs(rng, 2, begun=False))
    moves_nothing(answer, step_inputs(rng, 2))
    moves_nothing(answer, step_inputs(rng, 2, begun=False))


# --- the reference in steps ---------------------------------------------------------------------


@task.steps
class Step:
    def of_query(x):
        return elu_plus_one(x)

    def of_key(x):
        return elu_plus_one(x)

    def of_value(x):
        return x

    def scale(query):
        return query

    def new(key, value, query, state):
        return key[..., :, None] * value[..., None, :]

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
        query, key = self.of_query(self.scale(query)), self.of_key(key)
        value = self.of_value(value)
        after = self.add(state, self.new(key, value, query, state), key, query)
        total, weight = self.asked(state, after, key)
        output = self.divide(self.sums(query, total), query, weight)
        return self.results(output, self.kept(state, after, key, value))


def both(function):
    return {"of_query": function, "of_key": function}


# --- faults: what is added ----------------------------------------------------------------------

task.fault(
    "L-READS-FIRST",
    "First ask what came before, then add the new word.",
    "A word sees itself, too. So add first; the first word would otherwise find nothing at all.",
    asked=lambda before, after, key: after if before is None else (before[0] + 0, before[1] + 0),
)
task.fault(
    "L-REPLACES",
    "The state is what the last word has left.",
    "It is a sum over all words so far. Yours forgets everything before the newest.",
    add=(lambda state, new, key, query: (new, key), ...),
    kept=(
        ...,
        lambda before, after, key, value: (key[..., :, None] * value[..., None, :], key),
    ),
)
task.fault(
    "L-WEIGHT-NOT-ADDED",
    "Only the table grows with the words.",
    "The divisor is the sum of all weights, of old words too. Yours divides by the newest word's "
    "alone.",
    add=lambda state, new, key, query: (new if state is None else state[0] + new, key),
)
task.fault(
    "L-TABLE-NOT-ADDED",
    "Only the sum of the keys grows with the words.",
    "The values of all words are needed: the table Σ φ(k) vᵀ is a sum as well.",
    add=lambda state, new, key, query: (new, key if state is None else state[1] + key),
)
task.fault(
    "L-WEIGHTS-ADDED",
    "The divisor adds up the weights that every word gave itself.",
    "Those are products with the queries of *then*. Each query weighs all words anew: keep Σ φ(k), "
    "and multiply it by the query that asks now.",
    add=lambda state, new, key, query: Step.add(state, new, query * key, query),
    divide=lambda sums, query, weight: sums / weight.sum(-1, keepdim=True),
)


@task.fault(
    "L-FIRST-GETS-NOTHING",
    "Before the first word there is nothing, so its output is 0.",
    "It sees itself. The state of a first word holds that word, and the average of one value is "
    "that value.",
)
def first_gets_nothing(state, query, key, value):
    output, after = Step()(state, query, key, value)
    return torch.zeros_like(value) if state is None else output, after


task.fault(
    "L-STATE-MEAN",
    "The new state is the mean of old and new.",
    "Then old words fade by half with every step. A plain sum keeps all alike; the division by the "
    "sum of weights makes the average.",
    add=lambda state, new, key, query: (
        (new, key) if state is None else ((state[0] + new) / 2, (state[1] + key) / 2)
    ),
)
task.fault(
    "L-DELTA",
    "Before writing, what the state already says for this key is taken away.",
    "That is the delta rule, further on in the chapter. Here a new word is added, whatever is "
    "there.",
    section="update",
    new=lambda key, value, query, state: (
        key[..., :, None]
        * (value if state is None else value - (key[..., None] * state[0]).sum(-2))[..., None, :]
    ),
)
task.fault(
    "L-BY-QUERY",
    "The table is made of queries and values.",
    "It is stored under what it can be *found* by, the key. A query asks once and is gone.",
    new=lambda key, value, query, state: query[..., :, None] * value[..., None, :],
)
task.fault(
    "L-TABLE-TURNED",
    "Whether the table is (d v) or (v d) is taste.",
    "For you alone, yes. But the state is handed from step to step, and in this course its table "
    "has a row for each feature of a key.",
    kept=(lambda before, after, key, value: (after[0].mT, after[1]), ...),
    new=(..., lambda key, value, query, state: value[..., :, None] * key[..., None, :]),
    sums=(..., lambda query, total: (total @ query[..., None])[..., 0]),
)

# --- faults: φ ----------------------------------------------------------------------------------

task.fault(
    "L-NO-FEATURES",
    "Queries and keys are used as they are.",
    "Then weights may be below 0, and their sum may be 0. φ, elu(x) + 1, makes all of them "
    "positive.",
    section="linear-attention",
    **both(as_is),
)
task.fault(
    "L-ELU",
    "φ is elu.",
    "elu goes down to −1. The paper adds 1.",
    section="linear-attention",
    **both(torch.nn.functional.elu),
)
task.fault(
    "L-ELU-OF-ONE-MORE",
    "φ(x) is elu(x + 1).",
    "The 1 is added after elu, elu(x) + 1: only then is every feature above 0.",
    section="linear-attention",
    **both(lambda x: torch.nn.functional.elu(x + 1)),
)
task.fault(
    "L-RELU",
    "φ is a ReLU.",
    "It is 0 for everything below 0, and where all products are 0, there is nothing to divide by. "
    "elu(x) + 1 is above 0 everywhere.",
    section="linear-attention",
    **both(torch.relu),
)
task.fault(
    "L-EXP",
    "φ is e to the x, as in softmax.",
    "Asked is elu(x) + 1, which grows by 1 for 1 above 0.",
    section="linear-attention",
    **both(torch.exp),
)
task.fault(
    "L-SOFTMAX-EACH",
    "φ is a softmax over the features.",
    "That is another attention, with a paper of its own. Here φ is elu(x) + 1.",
    section="linear-attention",
    **both(lambda x: x.softmax(-1)),
)
task.fault(
    "L-KEYS-ONLY",
    "Only what is stored goes through φ.",
    "The query, too: a weight is the product of both.",
    section="linear-attention",
    of_query=as_is,
)
task.fault(
    "L-QUERIES-ONLY",
    "φ is the query's way to ask.",
    "The keys go through it before they are stored: a weight is the product of both.",
    section="linear-attention",
    of_key=as_is,
)
task.fault(
    "L-FEATURED-VALUES",
    "Everything goes through φ.",
    "Values are handed over as they are; they may be below 0.",
    section="linear-attention",
    of_value=elu_plus_one,
)
task.fault(
    "L-SCALED",
    "The query is divided by √d, as in every attention.",
    "There is no softmax here that large scores could saturate. The formula has no root.",
    section="linear-attention",
    scale=lambda query: query / math.sqrt(query.shape[-1]),
)

# --- faults: what comes back --------------------------------------------------------------------

task.fault(
    "L-LINEAR-NORM",
    "The table times the query is the output.",
    "It grows with every word. Divide by the sum of the weights, which is why the state has a "
    "second part.",
    divide=lambda sums, query, weight: sums,
)
task.fault(
    "L-DIVIDES-BY-SUM",
    "The divisor is the sum of the second part of the state.",
    "The weight of a word is φ(q) · φ(k): the divisor depends on the query. Multiply first, then "
    "sum.",
    divide=lambda sums, query, weight: sums / weight.sum(-1, keepdim=True),
)
task.fault(
    "L-EPSILON",
    "A small number in the divisor makes it safe.",
    "φ is above 0, so the sum is, too: there is nothing to make safe. And where all weights are "
    "small, what you add takes its share.",
    divide=(
        lambda sums, query, weight: sums / ((query * weight).sum(-1, keepdim=True) + 1e-6),
        lambda sums, query, weight: sums / ((query * weight).sum(-1, keepdim=True) + 1e-3),
    ),
)
task.fault(
    "L-STATE-OLD",
    "The state that came in goes out.",
    "Then the next word knows nothing of this one. Hand back the longer sums.",
    kept=(
        lambda before, after, key, value: after if before is None else before,
        lambda before, after, key, value: before or tuple(torch.zeros_like(x) for x in after),
    ),
)
task.fault(
    "L-STATE-DIVIDED",
    "The state keeps averages, so it is divided after each word.",
    "The output is divided, and the state is not: its sums go on, and a divided table cannot be "
    "added to.",
    kept=lambda before, after, key, value: (after[0] / after[1][..., None], after[1]),
)
task.fault(
    "L-STATE-FIRST",
    "The function returns the state and the output.",
    "In the other order: first the output, then the state.",
    results=lambda output, state: (state, output),
)
task.fault(
    "L-NO-STATE-BACK",
    "Only the output is needed.",
    "The caller needs the state for the next word. Nothing else holds it.",
    results=lambda output, state: output,
)
task.fault(
    "L-PAIR-TURNED",
    "A state is a pair, in whichever order.",
    "Yours comes back as (vector, table). The next call takes the first for the table.",
    kept=lambda before, after, key, value: after[::-1],
)
task.fault(
    "L-DETACHED",
    "What was stored long ago needs no gradient.",
    "Then a model learns from the last word only: what it wrote into the state before gets no "
    "gradient. Leave the graph to the caller.",
    add=lambda state, new, key, query: Step.add(
        state and tuple(x.detach() for x in state), new, key, query
    ),
)


@task.fault(thoughts.FLOAT32)
class InFloat32(Step):
    def __call__(self, state, query, key, value):
        state = None if state is None else tuple(x.float() for x in state)
        return super().__call__(state, query.float(), key.float(), value.float())


def follows(state, key, value):
    """Whether this could be the next word of that text."""
    same = state[1].shape == key.shape and state[0].shape[-1] == value.shape[-1]
    return same and state[1].dtype == key.dtype


@task.fault(
    "L-STALE",
    "The state belongs to the function; nobody needs to hand it in.",
    "Then the second text goes on where the first one ended. A state belongs to a text: it is an "
    "argument and a result.",
)
def _(state, query, key, value, kept={}):  # noqa: B006
    last = kept.get("state")
    if state is None and last is not None and follows(last, key, value):
        state = last
    output, kept["state"] = Step()(state, query, key, value)
    return output, kept["state"]
