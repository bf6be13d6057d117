"""is_permutation_equivariant."""

import math
import zlib

import torch

from attncourse import self_attention as reference
from attncourse.checks.answer import Failure
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
}


LAYERS = BLIND | SEEING


def with_a_layer(answer):
    """Make the answer a function of a layer's name and x."""

    def function(layer, x):
        return answer(LAYERS[layer], x)

    return function


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
        "positions, the first two alike",
        "positions, the last two alike",
        "positions, first and last alike",
    )
    return {layer: layer_inputs(rng, layer, n=6) for layer in probed} | {
        "as many words as sentences": layer_inputs(rng, "a running sum", b=4, n=4),
        # Of five words, the first random order here is the opposite of itself; of six it is not.
        "five words": layer_inputs(rng, "self-attention", n=5),
    }


def depends_on_luck(answer) -> bool:
    """Whether the verdict on a layer that is blind is not always the same."""
    inputs = layer_inputs(torch.Generator().manual_seed(0), "self-attention", n=3)
    return len({answer(inputs, seed=seed) for seed in range(12)}) > 1


def verdict_traits(answer):
    inputs = layer_inputs(torch.Generator().manual_seed(0), "self-attention", n=3)
    return {
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
    hints=(
        "Show the layer the words in another order, and ask: are these the old outputs, in "
        "that same order? Which axis of x are the words?",
        "`x[:, order]` puts words into another order, and outputs can be reordered with the "
        "same `order`. One order may be one that the layer happens not to notice, as a ring "
        "of neighbors does not notice a turn. And sums in another order differ by rounding.",
        "output = layer(x); for several orders, such as a few torch.randperm(n): compare "
        "layer(x[:, order]) with output[:, order] by torch.allclose with a tolerance like "
        "1e-4. True only if all of them agree.",
    ),
    adapt=with_a_layer,
    probes=verdict_probes,
    small=verdict_small,
    traits=verdict_traits,
    chance=True,
)


@task.check(1)
def it_answers_true_or_false(answer, rng):
    for layer in ("self-attention", "a recurrence"):
        answer(layer_inputs(rng, layer))


@task.check(1)
def self_attention_is_equivariant(answer, rng):
    for seed in range(4):  # a random order may happen to be the opposite of itself
        verdict(answer, layer_inputs(rng, "self-attention"), seed=seed)
    verdict(answer, layer_inputs(rng, "self-attention", b=4, n=4, m=4))
    verdict(answer, layer_inputs(rng, "self-attention", b=1, n=2, m=3))
    verdict(answer, layer_inputs(rng, "self-attention, twice", m=3))


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
    ):
        verdict(answer, layer_inputs(rng, layer))
    verdict(answer, layer_inputs(rng, "words with learned positions", b=7, n=7, m=7))


@task.check(2)
def one_lucky_order_is_no_proof(answer, rng):
    verdict(answer, layer_inputs(rng, "the words as they are"))
    for layer in (
        "neighbors in a ring",
        "both neighbors alike",
        "both neighbors alike in a ring",
        "positions, the first two alike",
        "positions, the last two alike",
        "positions, first and last alike",
    ):
        verdict(answer, layer_inputs(rng, layer))


@task.check(1)
def rounding_is_forgiven_and_small_positions_are_not(answer, rng):
    verdict(answer, layer_inputs(rng, "self-attention", b=16, m=8))
    verdict(answer, layer_inputs(rng, "self-attention, twice", b=16, m=8))
    verdict(answer, layer_inputs(rng, "words with very small positions"))
    verdict(answer, layer_inputs(rng, "words with very small positions", b=2, n=6, m=6))


@task.check(1)
def it_leaves_the_words_and_chance_as_they_were(answer, rng):
    inputs = layer_inputs(rng, "self-attention", n=4)
    answer(inputs)
    seen = answer.observe(inputs)
    if seen.edited:
        raise Failure("Your answer changed x itself; reorder a copy of it instead.", inputs)
    if seen.settings_changed:
        raise Failure("Your answer changed torch's default dtype for everybody.", inputs)
    if answer.resets_random_state(inputs):
        raise Failure(
            "After your answer, the global random generator is always in the same state: a "
            "`manual_seed` inside a function makes everybody's later draws repeat.",
            inputs,
        )
    if depends_on_luck(answer):
        raise Failure(
            "Asked several times about the same layer and the same x, your answer says now "
            "True, now False.",
            inputs,
        )


# --- faults ---------------------------------------------------------------------------------------


def orders(n):
    """A swap and a shift: every other order is a chain of these."""
    return [1, 0, *range(2, n)], [*range(1, n), 0]


def same(one, two, tolerance=1e-5):
    return torch.allclose(one, two, rtol=0, atol=tolerance)


def holds(layer, x, tried, tolerance=1e-5):
    output = layer(x)
    return all(same(layer(x[:, order]), output[:, order], tolerance) for order in tried)


def exactly_equal_at_random(layer, x):
    order = torch.randperm(x.shape[1])
    return bool((layer(x[:, order]) == layer(x)[:, order]).all())


@task.fault(
    "C-EXACT",
    thinks="If the outputs are the same, then they are equal to the last digit.",
    why="A softmax adds up its row. In another order the same sum is rounded differently, in the "
    "last digit. Equal here means equal up to rounding.",
    forms=(exactly_equal_at_random,),
)
def exactly_equal(layer, x):
    output = layer(x)
    return all(torch.equal(layer(x[:, order]), output[:, order]) for order in orders(x.shape[1]))


def outputs_stay_at_random(layer, x):
    return same(layer(x[:, torch.randperm(x.shape[1])]), layer(x))


@task.fault(
    "C-INVARIANT",
    thinks="A layer that is blind to order gives the same outputs in the same places.",
    why="That is *invariant*. Equivariant means that outputs move along with the words: reorder "
    "the words, and the outputs are reordered alike.",
    forms=(outputs_stay_at_random,),
)
def outputs_stay(layer, x):
    output = layer(x)
    return all(same(layer(x[:, order]), output) for order in orders(x.shape[1]))


def undone_twice(layer, x):
    output = layer(x)
    shift = [*range(1, x.shape[1]), 0]
    return same(layer(x[:, shift])[:, shift], output)


def moved_back_at_random(layer, x):
    order = torch.randperm(x.shape[1])
    return same(layer(x[:, order]), layer(x)[:, order.argsort()])


@task.fault(
    "C-INVERSE",
    thinks="The outputs have to be put back, so they get the opposite order.",
    why="Either both sides move alike, or one is moved back. You compare outputs that moved one "
    "way with outputs that moved the other way. Swaps hide it: they are their own opposite.",
    forms=(undone_twice, moved_back_at_random),
)
def outputs_moved_back(layer, x):
    output = layer(x)
    for order in orders(x.shape[1]):
        back = torch.tensor(order).argsort()
        if not same(layer(x[:, order]), output[:, back]):
            return False
    return True


@task.fault(
    "C-ORDER-TOO-SHORT",
    thinks="The order has as many entries as x: `randperm(len(x))`.",
    why="`len(x)` is the number of sentences. An order of so few entries leaves words out, and a "
    "word with less company is read differently. Where b = n nobody notices.",
    forms=(lambda layer, x: holds(layer, x, orders(x.shape[2])),),
)
def order_of_the_sentences(layer, x):
    return holds(layer, x, orders(len(x)))


@task.fault(
    "C-TWO-DRAWS",
    thinks="Words and outputs are both put into a random order.",
    why="Into two different ones: every call of randperm draws anew. Draw one order, keep it, and "
    "use it on both sides.",
)
def two_random_orders(layer, x):
    n = x.shape[1]
    return same(layer(x[:, torch.randperm(n)]), layer(x)[:, torch.randperm(n)])


@task.fault(
    "C-ONE-SWAP",
    thinks="If swapping the first two words changes nothing, no order does.",
    why="A layer can treat just these two alike and see all others. One order can be a lucky one; "
    "a swap and a shift together make up every order.",
)
def first_two_swapped(layer, x):
    return holds(layer, x, orders(x.shape[1])[:1])


@task.fault(
    "C-LAST-SWAP",
    thinks="It is enough to swap the last two words.",
    why="A layer may treat the last two alike, and see all others. Try orders that move every "
    "word.",
)
def last_two_swapped(layer, x):
    n = x.shape[1]
    return holds(layer, x, [[*range(n - 2), n - 1, n - 2]])


@task.fault(
    "C-ENDS-SWAPPED",
    thinks="I exchange the first word with the last and look whether anything changes.",
    why="That is one order among many. A layer may treat both ends alike and still see what lies "
    "between.",
)
def ends_swapped(layer, x):
    n = x.shape[1]
    return holds(layer, x, [[n - 1, *range(1, n - 1), 0]])


@task.fault(
    "C-ONLY-SHIFTS",
    thinks="Moving all words on by one changes every position, so it is the strictest test.",
    why="Every position changes, but neighbors stay neighbors. A layer that reads its neighbors in "
    "a ring does not notice a shift at all.",
    forms=(
        lambda layer, x: all(same(layer(x.roll(k, 1)), layer(x).roll(k, 1)) for k in (1, 2, 3)),
    ),
)
def only_shifted(layer, x):
    return holds(layer, x, orders(x.shape[1])[1:])


@task.fault(
    "C-ONLY-REVERSED",
    thinks="Reading the sentence backwards is the greatest change there is.",
    why="To a layer that treats its left and its right neighbor alike, backwards looks like "
    "forwards. Try orders that tear neighbors apart.",
)
def only_reversed(layer, x):
    return same(layer(x.flip(1)), layer(x).flip(1))


@task.fault(
    "C-ANY-ORDER",
    thinks="If the outputs agree for one of the orders that I try, the layer is equivariant.",
    why="One order that agrees proves nothing, as some layers are blind to a few orders. It must "
    "hold for all that you try: one failure refutes.",
)
def any_order_will_do(layer, x):
    return any(holds(layer, x, [order]) for order in orders(x.shape[1]))


@task.fault(
    "C-SENTENCES-MOVED",
    thinks="The first axis is the words, so that is the one to reorder.",
    why="x is (b n m): the first axis is the sentences. Nearly every layer treats sentences alike, "
    "so moving them says nothing about the order of words.",
    forms=(
        lambda layer, x: same(layer(x.flip(0)), layer(x).flip(0)),
        lambda layer, x: same(layer(x.roll(1, 0)), layer(x).roll(1, 0)),
        lambda layer, x: all(same(layer(x[o]), layer(x)[o]) for o in orders(x.shape[1])),
    ),
)
def sentences_reordered(layer, x):
    output = layer(x)
    return all(same(layer(x[order]), output[order]) for order in orders(len(x)))


def features_reordered_where_it_fits(layer, x):
    output = layer(x)
    if output.shape != x.shape:
        return False
    return all(same(layer(x[..., o]), output[..., o]) for o in orders(x.shape[-1]))


@task.fault(
    "C-FEATURES-MOVED",
    thinks="The last axis is the one to reorder.",
    why="x is (b n m): the last axis is the features of one word. A layer may well tell features "
    "apart; the question is whether it tells positions apart.",
    forms=(features_reordered_where_it_fits,),
)
def features_reordered(layer, x):
    output = layer(x)
    return all(same(layer(x[..., o]), output[..., o]) for o in orders(x.shape[-1]))


@task.fault(
    "C-SUMS-COMPARED",
    thinks="If the outputs are only moved, then their sum over the words stays the same.",
    why="True, but the converse is not: reversed or shifted outputs have the same sum as well. "
    "Compare word by word.",
    forms=(
        lambda layer, x: all(
            same(layer(x[:, order]).mean(1), layer(x).mean(1)) for order in orders(x.shape[1])
        ),
    ),
)
def sums_compared(layer, x):
    output = layer(x)
    return all(same(layer(x[:, o]).sum(1), output.sum(1)) for o in orders(x.shape[1]))


@task.fault(
    "C-SORTED-COMPARED",
    thinks="Both outputs hold the same numbers, and that is what counts.",
    why="The same numbers, but at which word? Each output has to go with its word to the new "
    "place. Sorting or flattening forgets the places.",
)
def sorted_outputs_compared(layer, x):
    output = layer(x).sort(1).values
    return all(same(layer(x[:, o]).sort(1).values, output) for o in orders(x.shape[1]))


def always_itself(layer, x):
    order = list(range(x.shape[1]))
    return same(layer(x[:, order]), layer(x)[:, order])


@task.fault(
    "C-NOTHING-MOVED",
    thinks="If the layer can be run on the words and gives an output for each, it is equivariant.",
    why="Your answer is True for every layer. Nothing was put into another order, or only the "
    "shapes were compared.",
    forms=(always_itself, lambda layer, x: True),
)
def shapes_compared(layer, x):
    return layer(x.flip(1)).shape == layer(x).shape


def never(layer, x):
    return False


@task.fault(
    "C-ALWAYS-FALSE",
    thinks="No real layer gives the same outputs in another order.",
    why="Your answer is False for every layer, even for one that returns the words as they are. Is "
    "the comparison of two tensors one value, and the one you meant?",
    forms=(never,),
)
def two_tensors_compared_as_objects(layer, x):
    return layer(x.flip(1)) is layer(x).flip(1)


@task.fault(
    "C-LOOSE",
    thinks="The tolerance should be generous, to be safe.",
    why="Rounding moves the last of seven digits. A tolerance of 0.1 or more also forgives small "
    "positions that a layer really sees.",
    forms=(lambda layer, x: holds(layer, x, orders(x.shape[1]), 0.3),),
)
def generous_tolerance(layer, x):
    return holds(layer, x, orders(x.shape[1]), 0.1)


@task.fault(
    "C-SAME-WIDTH",
    thinks="A layer returns as many features as it got.",
    why="Self-attention returns vectors of the width of its values, which may differ from m. Let "
    "the output say how wide it is.",
    section="three-views",
    forms=(
        lambda layer, x: all(
            same(layer(x[:, o]), torch.stack([layer(x)[:, i] for i in o], 1).reshape(x.shape))
            for o in orders(x.shape[1])
        ),
    ),
)
def room_for_m_features(layer, x):
    output = layer(x)
    for order in orders(x.shape[1]):
        expected = torch.empty_like(x)
        expected[:] = output[:, order]
        if not same(layer(x[:, order]), expected):
            return False
    return True


@task.fault(
    "C-TENSOR-BOOL",
    thinks="A tensor that holds True is as good as True.",
    why="In an `if` it is, but it is a tensor: `is True` fails, and so does JSON. `bool(…)` or "
    "`.item()` makes a plain one.",
)
def a_tensor_returned(layer, x):
    return torch.tensor(holds(layer, x, orders(x.shape[1])))


@task.fault(
    "C-NEGATED",
    thinks="True means that the order makes a difference.",
    why="The name says it: True if the layer *is* equivariant, so that the order makes none. Your "
    "answers are all right, the other way round.",
)
def the_other_way_round(layer, x):
    return not holds(layer, x, orders(x.shape[1]))


@task.fault(
    "C-INPLACE",
    thinks="To swap two words I write x[:, [0, 1]] = x[:, [1, 0]].",
    why="That changes the caller's own words, who still needs them, and later comparisons start "
    "from other words. `x[:, order]` makes a copy.",
)
def words_swapped_in_place(layer, x):
    output = layer(x)
    result = holds(layer, x, orders(x.shape[1])[1:])
    x[:, [0, 1]] = x[:, [1, 0]]
    return result and same(layer(x), output[:, orders(x.shape[1])[0]])


@task.fault(
    "C-SEEDED",
    thinks="With a fixed seed the verdict can be repeated.",
    why="It can, but now everybody's random numbers repeat after your call, in training as well. A "
    "`torch.Generator` of your own disturbs nobody.",
)
def seeded_for_everybody(layer, x):
    torch.manual_seed(0)
    return holds(layer, x, [torch.randperm(x.shape[1]).tolist() for _ in range(6)])


@task.fault(
    "C-FIRST-WORD-COMPARED",
    thinks="It is enough to see where one output has gone.",
    why="The others may have changed meanwhile. In a causal layer the first word never hears "
    "anybody, so it looks the same whatever is done to the rest.",
)
def first_output_compared(layer, x):
    order = [0, *range(2, x.shape[1]), 1]  # the first word stays, all others move
    return same(layer(x[:, order])[:, 0], layer(x)[:, 0])
