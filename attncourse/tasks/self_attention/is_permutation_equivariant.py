import math
import zlib

import torch

from attncourse import self_attention as reference
from attncourse.checks.answer import Failure, describe, following
from attncourse.checks.inputs import normal
from attncourse.checks.task import Task


def weights_for(name, x, *shapes):
    rng = torch.Generator().manual_seed(zlib.crc32(name.encode()))
    return [normal(rng, *shape).to(x.dtype) / shape[0] ** 0.5 for shape in shapes]


def attention_layer(x, mask=None, width=3):
    m = x.shape[-1]
    W_query, W_key, W_value = weights_for("attention", x, (m, 4), (m, 4), (m, width))
    scores = (x @ W_query) @ (x @ W_key).mT / 2
    if mask is not None:
        scores = scores.masked_fill(~mask, -torch.inf)
    return scores.softmax(-1) @ (x @ W_value)


def causal_attention(x):
    n = x.shape[1]
    return attention_layer(x, torch.ones(n, n, dtype=torch.bool).tril())


def placed(x, numbers):
    """Add to every word a number that belongs to its position."""
    return x + torch.as_tensor(numbers, dtype=x.dtype)[:, None]


def waves(x):
    """Sinusoidal positions for x, written down once more."""
    p, i = torch.arange(x.shape[1])[:, None], torch.arange(x.shape[2])
    angle = p / 10_000 ** (i // 2 * 2 / x.shape[2]) + (i % 2) * math.pi / 2
    return angle.sin().to(x.dtype)


def network(x):
    W_1, W_2 = weights_for("network", x, (x.shape[-1], 6), (6, 5))
    return (x @ W_1).relu() @ W_2


def recurrence(x):
    W, U = weights_for("recurrence", x, (x.shape[-1], 4), (4, 4))
    states = [torch.zeros(len(x), 4, dtype=x.dtype)]
    for word in x.unbind(1):
        states.append((word @ W + states[-1] @ U).tanh())
    return torch.stack(states[1:], 1)


def placed_in_two_features(x):
    """Positions that change two features in opposite ways: neither the others nor the sum."""
    x = x.clone()
    x[..., 0] += torch.arange(x.shape[1])
    x[..., -1] -= torch.arange(x.shape[1])
    return x


def neighbors(x, before, after, ring=False):
    """Every word, and a share of the words on both sides of it."""
    earlier, later = x.roll(1, 1), x.roll(-1, 1)
    if not ring:
        earlier, later = earlier.clone(), later.clone()
        earlier[:, 0], later[:, -1] = 0, 0
    return x + before * earlier + after * later


def of_words(x, *places):
    """The sum of some words, at every position."""
    return x[:, places].sum(1, keepdim=True).expand(*x.shape).clone()


def between_1_and_2(layer):
    """The layer, and word by word something that keeps rounding far below any sound tolerance."""
    return lambda x: 1.5 + layer(x).tanh() / 2


def rounded_in_turn(x):
    """The words, as if every second one had been rounded up and the others down, by two steps."""
    step = torch.finfo(x.dtype).eps
    return placed(1.5 + x.tanh() / 2, [2 * step * (-1) ** p for p in range(x.shape[1])])


def numbered(n, alike=()):
    """The numbers 1, 2, …; positions in `alike` share one."""
    return [0.0 if p in alike else float(p + 1) for p in range(n)]


BLIND = {
    "self-attention": between_1_and_2(attention_layer),
    "self-attention, twice": between_1_and_2(lambda x: attention_layer(attention_layer(x))),
    "a network for each word": between_1_and_2(network),
    "the words as they are": lambda x: x,
    "the largest numbers for all": lambda x: x.amax(1, keepdim=True).expand(*x.shape).clone(),
    "the mean of the words for all": between_1_and_2(
        lambda x: x.mean(1, keepdim=True).expand(*x.shape).clone()
    ),
    "each word minus the mean": between_1_and_2(lambda x: x - x.mean(1, keepdim=True)),
    "each feature shared out over the words": between_1_and_2(lambda x: x.softmax(1)),
    "the words, rounded up and down in turn": rounded_in_turn,
}


SEEING = {
    "a recurrence": recurrence,
    "causal self-attention": causal_attention,
    "a running sum": lambda x: x.cumsum(1),
    "a running sum, minus the first sentence": lambda x: (x - x[:1] / 2).cumsum(1),
    "reversed": lambda x: x.flip(1),
    "shifted by one": lambda x: x.roll(1, 1),
    "sorted": lambda x: x.sort(1).values,
    "self-attention with sinusoidal positions": lambda x: attention_layer(x + waves(x)),
    "words with sinusoidal positions": lambda x: x + waves(x),
    "words with learned positions": lambda x: x + weights_for("table", x, x.shape[1:])[0],
    "words with very small positions": lambda x: placed(  # 0.03 to 0.05, beside words of 1 to 2
        1.5 + x.tanh() / 2, [(-1) ** p * (0.03 + 0.002 * p) for p in range(x.shape[1])]
    ),
    "positions in two features": placed_in_two_features,
    "the word before": lambda x: neighbors(x, 1.0, 0.0),
    "neighbors in a ring": lambda x: neighbors(x, 0.5, 0.2, ring=True),
    "both neighbors alike": lambda x: neighbors(x, 0.5, 0.5),
    "both neighbors alike in a ring": lambda x: neighbors(x, 0.5, 0.5, ring=True),
    "positions, the first two alike": lambda x: placed(x, numbered(x.shape[1], (0, 1))),
    "positions, the last two alike": lambda x: placed(
        x, numbered(x.shape[1], (x.shape[1] - 2, x.shape[1] - 1))
    ),
    "positions, first and last alike": lambda x: placed(
        x, numbered(x.shape[1], (0, x.shape[1] - 1))
    ),
    # For these the same outputs in the same places, for some orders.
    "the first two words for all": between_1_and_2(lambda x: of_words(x, 0, 1)),
    "the last two words for all": between_1_and_2(lambda x: of_words(x, -2, -1)),
    "first and last word for all": between_1_and_2(lambda x: of_words(x, 0, -1)),
    "who stands beside whom in a ring for all": between_1_and_2(
        lambda x: (x * x.roll(1, 1)).mean(1, keepdim=True).expand(*x.shape).clone()
    ),
}


# Seen where there are several sentences.
SEEING_LATER = {
    "positions in all sentences but the first": lambda x: torch.cat(
        [x[:1], placed(x[1:], numbered(x.shape[1]))]
    ),
}


LAYERS = BLIND | SEEING | SEEING_LATER


def with_a_layer(answer):
    """Make the answer a function of a layer's name and x; a truth in a tensor is taken out."""

    def function(layer, x):
        returned = answer(LAYERS[layer], x)
        is_tensor = isinstance(returned, torch.Tensor) and returned.numel() == 1
        return bool(returned) if is_tensor and returned.dtype == torch.bool else returned

    return function


def kind_of_verdict(answer):
    """An `adapt` that says what kind of thing the answer returns."""
    return lambda layer, x: describe(answer(LAYERS[layer], x))


def layer_inputs(rng, layer, b=3, n=None, m=5):
    """A few words for a layer: so few for one that is blind that all their orders can be tried.

    For a layer that sees, 7 words: one random order of so many is hardly ever one that this layer
    happens not to notice. Not one word alone, which has no other order.
    """
    n = n or (5 if layer in BLIND else 7)
    return {"layer": layer, "x": normal(rng, b, n, m)}


def verdict(answer, inputs, **options):
    """Assert that the answer says of a layer what is true."""
    got = answer(inputs, **options)
    if got != (inputs["layer"] in BLIND):
        said = (
            "outputs move along with the words, whatever the order, and you say False"
            if inputs["layer"] in BLIND
            else "outputs do not just move along with the words, and you say True"
        )
        raise Failure(f"The layer “{inputs['layer']}”: its {said}.", inputs, not got, got)


# What any order shows that moves the words at all.
PLAIN = "the words as they are", "a running sum", "words with sinusoidal positions"


def verdicts(answer, rng, *layers, **sizes):
    for layer in layers:
        verdict(answer, layer_inputs(rng, layer, **sizes))


def growing(inputs):
    """Each word is far larger than the one before: another order changes sums by much."""
    return inputs | {"x": placed(inputs["x"], 9 * torch.arange(inputs["x"].shape[1]))}


def verdict_probes(rng):
    probed = (
        "self-attention",
        "a network for each word",
        "the largest numbers for all",
        "causal self-attention",
        "a running sum, minus the first sentence",
        "sorted",
        "words with very small positions",
        "neighbors in a ring",
        "both neighbors alike",
        "reversed",  # these two bring no rounding, that could hide them from who compares exactly
        "shifted by one",
        "positions, the first two alike",
        "positions, the last two alike",
        "positions, first and last alike",
        "the first two words for all",
        "the last two words for all",
        "first and last word for all",
        "who stands beside whom in a ring for all",
        "positions in all sentences but the first",
    )
    return {layer: layer_inputs(rng, layer, n=6) for layer in probed} | {
        "as many words as sentences": layer_inputs(rng, "a running sum", b=4, n=4),
        # Of five words, the first random order here is the opposite of itself; of six it is not.
        "five words": layer_inputs(rng, "self-attention", n=5),
        "two words": layer_inputs(rng, "self-attention", n=2),
        "two words in order": layer_inputs(rng, "a running sum", n=2),
        "three words in order": layer_inputs(rng, "a running sum", n=3),
        # The same outputs in the same places, up to rounding.
        "the mean of the words for all": layer_inputs(rng, "the mean of the words for all", b=16),
        "the mean of seven": layer_inputs(rng, "the mean of the words for all", b=16, n=7),
        "growing words": growing(layer_inputs(rng, "a running sum", n=6)),
    }


def depends_on_luck(answer) -> bool:
    """Whether the verdict on a layer that is blind is not always the same."""
    inputs = layer_inputs(torch.Generator().manual_seed(0), "self-attention", n=3)
    return len({answer(inputs, seed=seed) for seed in range(12)}) > 1


ASKED = 48  # times about three words: a single random order is the old one in every sixth


def misjudged(answer) -> int:
    """How often, of `ASKED` times, three words in a running sum are said to be without order."""
    inputs = layer_inputs(torch.Generator().manual_seed(0), "a running sum", n=3)
    return sum(answer(inputs, seed=seed) for seed in range(ASKED))


def verdict_traits(answer):
    inputs = layer_inputs(torch.Generator().manual_seed(0), "self-attention", n=3)
    wrong = misjudged(answer)
    return {
        "returns a tensor": "tensor" in str(answer.observe(inputs, adapt=kind_of_verdict).returned),
        "misjudges few words at times": 3 <= wrong < ASKED / 3,
        "misjudges few words mostly": wrong >= ASKED / 3,
        "depends on luck": depends_on_luck(answer),
        "resets the random state": answer.resets_random_state(inputs),
    }


def verdict_small(rng):
    for n in (2, 3):
        for layer in BLIND:
            yield layer_inputs(rng, layer, b=1, n=n, m=2)
    for n in (3, 4, 5):
        for layer in SEEING:
            yield layer_inputs(rng, layer, b=1, n=n, m=2)
    for layer in LAYERS:
        yield layer_inputs(rng, layer)


task = Task(
    reference.is_permutation_equivariant,
    number=2,
    returns=bool,
    difficulty=3,
    minutes=20,
    section="equivariance",
    adapt=with_a_layer,
    probes=verdict_probes,
    small=verdict_small,
    traits=verdict_traits,
    chance=True,
)


@task.check(1)
def it_answers_true_or_false(answer, rng):
    for layer in ("self-attention", "a recurrence"):
        inputs = layer_inputs(rng, layer)
        answer(inputs)
        kind = answer.observe(inputs, adapt=kind_of_verdict).returned
        if kind != "a bool":
            raise Failure(f"Your answer returned {kind}; a bool is expected.", inputs)


@task.check(1, "self-attention is equivariant")
def self_attention_is_equivariant(answer, rng):
    for seed in range(4):  # a random order may happen to be the opposite of itself
        verdict(answer, layer_inputs(rng, "self-attention"), seed=seed)
    verdict(answer, layer_inputs(rng, "self-attention", b=4, n=4, m=4))
    verdict(answer, layer_inputs(rng, "self-attention", b=1, n=2, m=3))
    verdict(answer, layer_inputs(rng, "self-attention, twice", m=3))
    if depends_on_luck(answer):
        raise Failure(
            "Asked several times about the same layer and the same x, your answer says now True, "
            "now False."
        )


@task.check(1)
def so_is_what_treats_all_words_alike(answer, rng):
    for layer in BLIND:
        verdict(answer, layer_inputs(rng, layer))
    verdict(answer, layer_inputs(rng, "a network for each word", b=2, n=4, m=7))


@task.check(1)
def what_reads_in_order_is_not(answer, rng):
    for layer in (
        "a recurrence",
        "causal self-attention",
        "a running sum",
        "a running sum, minus the first sentence",
        "reversed",
        "shifted by one",
        "sorted",
        "the word before",
    ):
        verdict(answer, layer_inputs(rng, layer))
    verdict(answer, layer_inputs(rng, "a running sum", b=7, n=7, m=7))


@task.check(1)
def positions_make_the_order_visible(answer, rng):
    for layer in (
        "self-attention with sinusoidal positions",
        "words with sinusoidal positions",
        "words with learned positions",
        "positions in two features",
        "positions in all sentences but the first",
    ):
        verdict(answer, layer_inputs(rng, layer))
    verdict(answer, layer_inputs(rng, "words with learned positions", b=7, n=7, m=7))


@task.check(2, "an order that moves few words, or one random order, is no proof")
def one_lucky_order_is_no_proof(answer, rng):
    with following(lambda: verdicts(answer, rng, *PLAIN)):
        verdicts(
            answer,
            rng,
            "the words as they are",
            "neighbors in a ring",
            "both neighbors alike",
            "both neighbors alike in a ring",
            "positions, the first two alike",
            "positions, the last two alike",
            "positions, first and last alike",
        )
        wrong = misjudged(answer)
        if wrong >= 3:
            raise Failure(
                f"Asked {ASKED} times about a running sum over three words, your answer says "
                f"{wrong} times that their order makes no difference. A single random order may be "
                "the old one: let several agree, or take orders that are sure to move every word."
            )


@task.check(1)
def rounding_is_forgiven_and_small_positions_are_not(answer, rng):
    with following(lambda: verdicts(answer, rng, "the words as they are", b=16, m=8)):
        verdicts(answer, rng, "self-attention", "self-attention, twice", b=16, m=8)
    with following(lambda: verdicts(answer, rng, "words with sinusoidal positions")):
        verdict(answer, layer_inputs(rng, "words with very small positions"))
        verdict(answer, layer_inputs(rng, "words with very small positions", b=2, n=6, m=6))


@task.check(1, "it leaves the words as they were and sets no seed")
def it_leaves_the_words_and_chance_as_they_were(answer, rng):
    inputs = layer_inputs(rng, "self-attention", n=4)
    answer(inputs)
    seen = answer.observe(inputs)
    if seen.edited:
        raise Failure("Your answer changed x itself; reorder a copy of it instead.", inputs)
    answer.leaves_settings(inputs)
    if answer.resets_random_state(inputs):
        raise Failure(
            "After your answer, the global random generator is always in the same state: a "
            "`manual_seed` inside a function makes all later draws of the program repeat.",
            inputs,
        )


# --- the reference in steps ---------------------------------------------------------------------


def swap_and_shift(n):
    """Every other order is a chain of these two."""
    return [1, 0, *range(2, n)], [*range(1, n), 0]


def near(one, two, tolerance=1e-5):
    return torch.allclose(one, two, rtol=0, atol=tolerance)


@task.steps
class Tries:
    def prepare():
        pass

    def chosen(x):
        return x

    def orders(x):
        return swap_and_shift(x.shape[1])

    def reorder(x, order):
        return x[:, order]

    def moved(output, order, x):
        return output[:, order]

    def compared(output):
        return output

    def equal(one, two):
        return near(one, two)

    def decide(found):
        return all(found)

    def returned(verdict):
        return verdict

    def __call__(self, layer, x):
        self.prepare()
        x = self.chosen(x)
        output = layer(x)
        found = (
            self.equal(
                self.compared(layer(self.reorder(x, order))),
                self.compared(self.moved(output, order, x)),
            )
            for order in self.orders(x)
        )
        return self.returned(self.decide(found))


def drawn(many, axis=1):
    """So many random orders of the words, or of what another axis holds."""
    return lambda x: [torch.randperm(x.shape[axis]).tolist() for _ in range(many)]


def drawn_alike(many, seed=0):
    """The same random orders in every call."""

    def orders(x):
        rng = torch.Generator().manual_seed(seed)
        return [torch.randperm(x.shape[1], generator=rng).tolist() for _ in range(many)]

    return orders


task.spelling(orders=drawn(6))

# --- faults: which orders are tried -------------------------------------------------------------


def shifts(x, steps=(1,)):
    n = x.shape[1]
    return [[*range(k % n, n), *range(k % n)] for k in steps]


def drawn_anew(words, *_):
    return words[:, torch.randperm(words.shape[1])]


task.fault(
    "C-ORDER-TOO-SHORT",
    orders=(lambda x: swap_and_shift(len(x)), lambda x: swap_and_shift(x.shape[2])),
)
task.fault(
    "C-TWO-DRAWS",
    orders=(lambda x: range(1), lambda x: range(10)),
    reorder=drawn_anew,
    moved=drawn_anew,
)
task.fault("C-ONE-DRAW", orders=drawn(1))
task.fault("C-ONE-SWAP", orders=lambda x: swap_and_shift(x.shape[1])[:1])
task.fault(
    "C-LAST-SWAP", orders=lambda x: [[*range(x.shape[1] - 2), x.shape[1] - 1, x.shape[1] - 2]]
)
task.fault("C-ENDS-SWAPPED", orders=lambda x: [[x.shape[1] - 1, *range(1, x.shape[1] - 1), 0]])
task.fault("C-ONLY-SHIFTS", orders=(shifts, lambda x: shifts(x, (1, 2, 3))))
task.fault("C-ONLY-REVERSED", orders=lambda x: [[*range(x.shape[1])][::-1]])
task.fault(
    "C-ANY-ORDER",
    decide=any,
    orders=(..., drawn(10)),
    entire=[
        {"decide": any, "orders": drawn(5)},
        {"decide": any, "orders": drawn(20)},
    ],
)
task.fault("C-SEEDED", prepare=lambda: torch.manual_seed(0), orders=(drawn(6), ...))


def of_axis(axis, orders):
    """Words and outputs are reordered along another axis."""
    return {
        "reorder": lambda x, order: x.index_select(axis, torch.tensor(order)),
        "moved": lambda output, order, x: output.index_select(axis, torch.tensor(order)),
        "orders": orders,
    }


def backwards(x):
    return [[*range(len(x))][::-1]]


task.fault(
    "C-SENTENCES-MOVED",
    **of_axis(
        0,
        (
            lambda x: swap_and_shift(len(x)),
            backwards,
            Tries.orders,
            *(drawn(many, 0) for many in (6, 1)),
        ),
    ),
)


def features_where_they_fit(output, order, x):
    return output[..., order] if output.shape == x.shape else output


@task.fault(
    "C-FEATURES-MOVED",
    **of_axis(-1, (lambda x: swap_and_shift(x.shape[-1]), drawn(6, -1)) * 2)
    | {"moved": (of_axis(-1, ())["moved"],) * 2 + (features_where_they_fit,)},
)
def features_where_it_fits(layer, x):
    output, orders = layer(x), swap_and_shift(x.shape[-1])
    if output.shape != x.shape:
        return False
    return all(near(layer(x[..., order]), output[..., order]) for order in orders)


# --- faults: where the outputs are expected -----------------------------------------------------


def opposite(output, order, x):
    return output[:, torch.tensor(order).argsort()]


def unmoved(output, order, x):
    return output


task.fault(
    "C-INVARIANT",
    moved=unmoved,
    orders=(..., drawn(1)),
    entire=[
        *({"moved": unmoved, "orders": drawn_alike(1, seed)} for seed in (0, 1, 42)),
    ],
)
task.fault(
    "C-INVERSE",
    moved=opposite,
    orders=(..., drawn(1), drawn(6)),
    entire=[
        {"moved": opposite, "orders": shifts},
    ],
)
task.fault(
    "C-SAME-WIDTH",
    section="three-views",
    moved=lambda output, order, x: torch.empty_like(x).copy_(output[:, order]),
)


def swapped_at_last(layer, x):
    output, (swap, shift) = layer(x), swap_and_shift(x.shape[1])
    found = near(layer(x[:, shift]), output[:, shift])
    x[:, [0, 1]] = x[:, [1, 0]]
    return found and near(layer(x), output[:, swap])


@task.fault("C-INPLACE", forms=(swapped_at_last,))
class SwappedInPlace(Tries):
    def reorder(x, order):
        x[:] = x[:, order]
        return x


# --- faults: how outputs are compared -----------------------------------------------------------


task.fault("C-EXACT", equal=torch.equal)
task.fault(
    "C-LOOSE",
    equal=lambda one, two: near(one, two, 0.1),
    entire=[
        {"equal": lambda one, two: near(one, two, 0.3)},
        {"equal": lambda one, two: near(one.mean(), two.mean(), 0.5)},
    ],
)
task.fault(
    "C-SUMS-COMPARED",
    compared=lambda output: output.mean(1),
    entire=[
        {"compared": lambda output: output.sum(1)},
        {"compared": torch.mean},
    ],
)
task.fault("C-SORTED-COMPARED", compared=lambda output: output.sort(1).values)
task.fault(
    "C-FIRST-SENTENCE-COMPARED",
    chosen=lambda x: x[:1],
    entire=[
        {"compared": lambda output: output[0]},
    ],
)
task.fault(
    "C-FIRST-WORD-COMPARED",
    compared=lambda output: output[:, 0],
    orders=lambda x: [[0, *range(2, x.shape[1]), 1]],
)
task.fault(
    "C-NOTHING-MOVED",
    equal=lambda one, two: one.shape == two.shape,
    entire=[
        {"equal": lambda one, two: True},
        {"orders": lambda x: [[*range(x.shape[1])]]},
    ],
)
task.fault("C-ALWAYS-FALSE", equal=lambda one, two: False)
task.fault("C-TENSOR-BOOL", returned=torch.tensor)
task.fault("C-NEGATED", returned=lambda verdict: not verdict)
