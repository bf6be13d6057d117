"""The checks of chapter 6. Each one's name is the sentence a teacher would say."""

import pytest
import torch

from attncourse import masking as reference
from attncourse.checks.common import (
    causal,
    dead_mask,
    integers,
    mixed_mask,
    moves_nothing,
    normal,
)
from attncourse.checks.observe import FUSED_ATTENTION
from attncourse.checks.task import Failure, Task, agree_plain, compare, shape_of

points = pytest.mark.points


def still_answers(answer, before, inputs):
    """Assert that a call is not spoiled by an earlier one, of the same kind and size.

    An answer that is wrong about the earlier one, too, is none that remembers. Sizes that no other
    check uses find out what is kept by size.
    """
    if not remembers(answer, before, before) and remembers(answer, before, inputs):
        raise Failure(
            "After a call with other inputs, your answer gives a wrong result: it keeps something "
            "from one call to the next.",
            inputs,
        )


def remembers(answer, before, inputs) -> bool:
    """Whether a call is spoiled by an earlier one; checked where it is right otherwise."""
    try:
        answer(before)
        got, expected = answer(inputs), answer.expected(inputs)
    except Failure:
        return False
    if isinstance(expected, torch.Tensor):
        return got.shape != expected.shape or not torch.allclose(got.double(), expected.double())
    return not agree_plain(got, expected)


# --- next_word_pairs ----------------------------------------------------------------------------

SENTENCE = ["nine", "hundred", "ninety", "four"]
REPEATED = ["two", "hundred", "two", "thousand", "two"]
IDS = [5, 0, 7, 0, 2]  # 0 is an id like any other


def pairs_of(*tokens):
    return {"tokens": list(tokens)}


def pair_probes(rng):
    return {
        "four words": pairs_of(*SENTENCE),
        "two words": pairs_of("nine", "hundred"),
        "one word": pairs_of("nine"),
        "repeated words": pairs_of(*REPEATED),
        "one word again and again": pairs_of("two", "two", "two"),
        "ids": pairs_of(3, 1, 4),
        "ids, some of them 0": pairs_of(*IDS),
    }


def pair_traits(answer):
    inputs = pairs_of("six", "seven", "eight")
    first, second = answer(inputs), answer(pairs_of("nine", "ten", "eleven"))
    contexts = [pair[0] for pair in first if isinstance(pair, list | tuple) and len(pair) == 2]
    return {
        "differs from call to call": first != answer(inputs),
        "earlier words come back": any(word in repr(second) for word in inputs["tokens"]),
        "a context is a tuple": any(isinstance(context, tuple) for context in contexts),
    }


def pair_small(rng):
    yield pairs_of("nine")
    for n in (2, 3, 4):
        yield pairs_of(*SENTENCE[:n])
    yield pairs_of("two", "two")
    yield pairs_of("two", "one", "two")
    yield pairs_of(*REPEATED)
    for n in (2, 3, 5):
        yield pairs_of(*IDS[:n])


def well_formed(answer, inputs):
    """The pairs, or a Failure that says which one is none."""
    pairs = answer(inputs)
    for pair in pairs:
        if not isinstance(pair, list | tuple) or len(pair) != 2:
            raise Failure(
                f"Each entry is a pair (words so far, next word); one of yours is {pair!r}.", inputs
            )
        if not isinstance(pair[0], list):
            raise Failure(
                "The first part of a pair is the list of words so far; one of yours is "
                f"{pair[0]!r}.",
                inputs,
            )
    return pairs


class TestNextWordPairs:
    task = Task(
        name="next_word_pairs",
        reference=reference.next_word_pairs,
        returns=list,
        difficulty=1,
        minutes=10,
        section="all-positions",
        hints=(
            "Cover a sentence with your hand and uncover it word by word. Before each new word "
            "you could ask: what comes next? Which word is the first that can be guessed?",
            "A pair belongs to a place in the sentence: what stands before this place, and what "
            "stands at it. The place of the first word has nothing before it, so it gives no "
            "pair. A slice makes a new list; `append` changes the old one.",
            "for place from 1 to the last: the pair (tokens up to, but without, place; tokens at "
            "place). Return the list of all these pairs.",
        ),
        probes=pair_probes,
        small=pair_small,
        traits=pair_traits,
    )

    @points(1)
    def test_it_returns_a_list_of_pairs(self, answer):
        well_formed(answer, pairs_of(*SENTENCE))
        well_formed(answer, pairs_of(3, 1, 4))

    @points(1)
    def test_every_word_but_the_first_is_guessed_once(self, answer):
        for tokens in (SENTENCE, SENTENCE[:2], SENTENCE[:1], IDS):
            inputs = pairs_of(*tokens)
            guessed = [pair[1] for pair in well_formed(answer, inputs)]
            if guessed != tokens[1:]:
                raise Failure(
                    f"Of the sentence {tokens!r}, the words to be guessed are {tokens[1:]!r}; "
                    f"yours are {guessed!r}.",
                    inputs,
                    tokens[1:],
                    guessed,
                )

    @points(1)
    def test_a_context_is_all_that_stands_before(self, answer):
        for tokens in (SENTENCE, SENTENCE[:2], ["zero", "one", "two", "three", "four", "five"]):
            inputs = pairs_of(*tokens)
            for place, (context, _) in enumerate(well_formed(answer, inputs), 1):
                if context != tokens[:place]:
                    raise Failure(
                        f"The context of pair {place - 1}, counted from 0, is all that stands "
                        f"before place {place}: {tokens[:place]!r}; yours is {context!r}.",
                        inputs,
                        tokens[:place],
                        context,
                    )

    @points(1)
    def test_a_word_may_come_twice_and_an_id_may_be_0(self, answer):
        for tokens in (REPEATED, ["two", "two", "two"], IDS, [0, 0], torch.arange(9).tolist()):
            answer.matches(pairs_of(*tokens))

    @points(1)
    def test_it_changes_nothing_but_its_result(self, answer):
        moves_nothing(answer, pairs_of(*SENTENCE))
        still_answers(answer, pairs_of("six", "million", "one", "hundred"), pairs_of(*SENTENCE))


# --- causal_mask --------------------------------------------------------------------------------
# Letters: q query positions, k key positions.


def lengths_of(q, *k):
    return {"query_length": q} | dict(zip(("key_length",), k, strict=False))


def causal_probes(rng):
    return {
        "four": lengths_of(4),
        "one": lengths_of(1),
        "three and three": lengths_of(3, 3),
        "six, None": lengths_of(6, None),
        "one of four": lengths_of(1, 4),
        "two of four": lengths_of(2, 4),
        "three of five": lengths_of(3, 5),
        "four of five": lengths_of(4, 5),
        "two of seven": lengths_of(2, 7),
        "two of eight": lengths_of(2, 8),
        "three of seven": lengths_of(3, 7),
    }


def causal_traits(answer):
    stale = any(
        remembers(answer, before, after)
        for before, after in (
            (lengths_of(11, 17), lengths_of(11, 13)),
            (lengths_of(19), lengths_of(17)),
            (lengths_of(17), lengths_of(19)),
            (lengths_of(2, 11), lengths_of(3, 11)),
        )
        if not remembers(answer, after, after)
    )
    return {"remembers an earlier call": stale, "differs from call to call": stale}


def causal_small(rng):
    for n in (1, 2, 3):
        yield lengths_of(n)
    for q, k in ((1, 1), (1, 2), (2, 2), (1, 3), (2, 3), (2, 4), (3, 4), (3, 5)):
        yield lengths_of(q, k)
    yield lengths_of(2, None)


def seen_by(row) -> str:
    keys = row.nonzero().flatten().tolist()
    return f"key {keys[0]}" if len(keys) == 1 else f"keys {keys}" if keys else "no key at all"


def a_mask(answer, inputs, shape, axes):
    """The answer's mask, if shape and dtype are right."""
    mask = answer(inputs)
    if mask.shape != shape:
        raise Failure(
            f"The mask has shape {shape_of(mask)}; expected {axes} = "
            f"({' '.join(map(str, shape))}).",
            inputs,
        )
    if mask.dtype != torch.bool:
        raise Failure(f"The mask is {mask.dtype}; a boolean one is expected.", inputs, got=mask)
    return mask


def sees(answer, q, *k):
    """Assert that every query sees the keys it should, and say which one does not."""
    inputs = lengths_of(q, *k)
    expected = answer.expected(inputs)
    mask = a_mask(answer, inputs, tuple(expected.shape), "(q k)")
    for place, (ours, theirs) in enumerate(zip(expected, mask, strict=True)):
        if not torch.equal(ours, theirs):
            raise Failure(
                f"Of {q} queries and {expected.shape[1]} keys, counted from 0: query {place} may "
                f"see {seen_by(ours)}; with your mask it sees {seen_by(theirs)}.",
                inputs,
                expected,
                mask,
            )


class TestCausalMask:
    task = Task(
        name="causal_mask",
        reference=reference.causal_mask,
        returns=("mask",),
        difficulty=2,
        minutes=15,
        section="causal",
        hints=(
            "Draw the table for four words: a row for each query, a column for each key, a cross "
            "where the query may look. Where does the first word look, where the last?",
            "With as many keys as queries the crosses fill a triangle; `torch.tril` cuts one out "
            "of a full table. With more keys, the queries are the last words: move the edge of "
            "the triangle to the right until the last row is full. By how much?",
            "A table of q rows and k columns full of True (k is q if it is not given), then tril "
            "with its second argument, the diagonal: 0 when k = q, and one more for every further "
            "key.",
        ),
        probes=causal_probes,
        small=causal_small,
        traits=causal_traits,
    )

    @points(1)
    def test_a_row_for_every_query_and_a_column_for_every_key(self, answer):
        for q, k in ((4, 4), (3, 5), (1, 4), (1, 1)):
            a_mask(answer, lengths_of(q, k), (q, k), "(q k)")

    @points(1)
    def test_a_word_sees_itself_and_nothing_later(self, answer):
        for n in (1, 2, 4, 5):
            inputs = lengths_of(n, n)
            mask = a_mask(answer, inputs, (n, n), "(q k)")
            if not mask.diagonal().all():
                raise Failure("Some word does not see itself.", inputs, got=mask)
            if mask.triu(1).any():
                raise Failure(
                    "Some word sees a later one, which it will have to predict.", inputs, got=mask
                )

    @points(1)
    def test_a_word_sees_all_that_came_before(self, answer):
        for n in (1, 2, 4, 5):
            sees(answer, n, n)

    @points(1)
    def test_one_length_is_enough(self, answer):
        for n in (1, 3, 6):
            sees(answer, n)
            sees(answer, n, None)

    @points(1)
    def test_the_last_query_sees_every_key(self, answer):
        for q, k in ((1, 4), (2, 5), (3, 4), (4, 7), (1, 1)):
            inputs = lengths_of(q, k)
            mask = a_mask(answer, inputs, (q, k), "(q k)")
            if not mask[-1].all():
                who = f"{q} queries are" if q > 1 else "one query is"
                raise Failure(
                    f"The {who} the last of {k} words, so the last query comes after all others. "
                    f"With your mask it sees {seen_by(mask[-1])}.",
                    inputs,
                    got=mask,
                )

    @points(1)
    def test_every_query_sees_one_key_more_than_the_query_before(self, answer):
        for q, k in ((2, 3), (2, 7), (3, 5), (4, 5), (5, 6), (2, 300)):
            sees(answer, q, k)

    @points(1)
    def test_it_changes_nothing_but_its_result(self, answer):
        moves_nothing(answer, lengths_of(3, 5))
        for before, after in (
            ((17,), (16,)),
            ((12,), (13,)),
            ((11, 19), (11, 15)),
            ((9, 21), (10, 21)),
        ):
            still_answers(answer, lengths_of(*before), lengths_of(*after))


# --- padding_mask -------------------------------------------------------------------------------
# Letters: b sentences, k key positions.


def sentences(*lengths, k, dtype=torch.int64):
    return {"lengths": torch.tensor(lengths, dtype=dtype), "max_length": k}


def padding_probes(rng):
    return {
        "three sentences": sentences(3, 1, 4, k=5),
        "longest first": sentences(5, 4, 2, k=5),
        "as many sentences as places": sentences(2, 4, 1, 3, k=4),
        "nobody fills the table": sentences(2, 1, 3, k=6),
        "one sentence": sentences(2, k=4),
        "one place": sentences(1, 1, k=1),
        "an empty sentence": sentences(2, 0, 3, k=4),
        "all full": sentences(3, 3, k=3),
        "int32": sentences(3, 2, k=5, dtype=torch.int32),
        "long": sentences(257, 260, k=300),
    }


def padding_small(rng):
    yield sentences(1, k=1)
    for length in (1, 2):
        yield sentences(length, k=2)
    yield sentences(1, k=3)
    yield sentences(2, 1, k=2)
    yield sentences(1, 2, k=2)
    yield sentences(1, 2, k=3)
    yield sentences(2, 1, 3, k=3)
    yield sentences(0, 2, k=2)
    yield sentences(0, k=2)
    yield sentences(257, k=300)


def hides(answer, inputs):
    """Assert that each sentence shows its own words, and say which one does not."""
    expected = answer.expected(inputs)
    mask = a_mask(answer, inputs, tuple(expected.shape), "(b 1 k)")
    for row, length in enumerate(inputs["lengths"].tolist()):
        ours, theirs = expected[row, 0], mask[row, 0]
        if not torch.equal(ours, theirs):
            raise Failure(
                f"Sentence {row}, counted from 0, has {length} real tokens of "
                f"{inputs['max_length']}: {_brief(ours)} may be seen. With your mask "
                f"{_brief(theirs)} may.",
                inputs,
                expected,
                mask,
            )


def _brief(row) -> str:
    places = row.nonzero().flatten().tolist()
    if len(places) > 12:
        return f"{len(places)} places, from {places[0]} to {places[-1]},"
    return f"places {places}" if places else "no place"


class TestPaddingMask:
    task = Task(
        name="padding_mask",
        reference=reference.padding_mask,
        returns=("mask",),
        difficulty=2,
        minutes=15,
        section="padding",
        hints=(
            "Number the places of a sentence: 0, 1, 2, … A place holds a word as long as its "
            "number is smaller than something. Than what?",
            "Compare all places with all lengths at once: places along one axis, sentences along "
            "another. `torch.arange` makes the places; `lengths[:, None]` makes room beside the "
            "sentences. Then the result lacks one axis: the one for the queries.",
            "places (k) < lengths (b 1) gives (b k), True at words. Put an axis of length 1 in the "
            "middle, for all queries alike: (b 1 k).",
        ),
        probes=padding_probes,
        small=padding_small,
    )

    @points(1)
    def test_one_row_for_all_queries_of_a_sentence(self, answer):
        for inputs, b, k in (
            (sentences(3, 1, 4, k=5), 3, 5),
            (sentences(2, 4, 1, 3, k=4), 4, 4),
            (sentences(2, k=3), 1, 3),
            (sentences(1, 1, k=1), 2, 1),
        ):
            a_mask(answer, inputs, (b, 1, k), "(b 1 k)")

    @points(2)
    def test_words_may_be_seen_and_padding_may_not(self, answer, rng):
        lengths = 1 + torch.randperm(5, generator=rng, device="cpu")
        hides(answer, sentences(*lengths.tolist(), k=6))
        hides(answer, sentences(3, 1, 4, k=5))
        hides(answer, sentences(2, k=3))
        hides(answer, sentences(5, 2, 3, k=5, dtype=torch.int32))

    @points(1)
    def test_every_sentence_has_its_own_length(self, answer):
        hides(answer, sentences(2, 4, 1, 3, k=4))  # as many sentences as places
        hides(answer, sentences(1, 3, 2, k=3))
        inputs = sentences(2, 5, 3, k=5)
        together = a_mask(answer, inputs, (3, 1, 5), "(b 1 k)")
        for row, length in enumerate(inputs["lengths"].tolist()):
            alone = answer(sentences(length, k=5))
            compare("the mask of a sentence on its own", alone, together[row : row + 1], inputs)

    @points(1)
    def test_the_caller_says_how_long_the_table_is(self, answer):
        for k in (3, 4, 7):
            a_mask(answer, sentences(2, 3, k=k), (2, 1, k), "(b 1 k)")
            hides(answer, sentences(2, 3, k=k))
        hides(answer, sentences(257, 260, k=300))  # one byte cannot count so far
        hides(answer, sentences(2049, 2051, k=2060))  # nor can float16

    @points(1)
    def test_a_full_sentence_shows_all_and_an_empty_one_nothing(self, answer):
        hides(answer, sentences(3, 3, k=3))
        hides(answer, sentences(1, 1, k=1))
        hides(answer, sentences(4, 0, 2, k=4))
        hides(answer, sentences(0, k=2))

    @points(1)
    def test_it_changes_nothing_but_its_result(self, answer):
        moves_nothing(answer, sentences(3, 1, 4, k=5))
        still_answers(answer, sentences(4, 2, 6, k=9), sentences(7, 1, 5, k=9))


# --- masked_softmax -----------------------------------------------------------------------------
# Letters: b sentences, h heads, q query positions, k key positions.

HALF, DOUBLE = torch.float16, torch.float64


def scored(rng, *shape, mask, dtype=torch.float32):
    return {"scores": normal(rng, *shape, dtype=dtype), "mask": mask}


def empty_sentence(rng, b, k):
    """A padding mask (b 1 k) whose second sentence has no word."""
    mask = mixed_mask(rng, b, 1, k)
    mask[1] = False
    return mask


def level(rng, *shape, mask, dtype=torch.float32, low=0.0, step=32.0):
    """Scores of `low`, and of 1 to 3 steps more: so far apart that the best take all the weight.

    Half precision has such numbers, and their weights 1, 1/2, 1/3, without rounding.
    """
    steps = torch.randint(0, 4, shape, generator=rng, device="cpu")
    return {"scores": (low + step * steps).to(dtype), "mask": mask}


def hidden_winner(rng, dtype=torch.float32, high=300.0):
    """Scores of hidden keys lie far above all others."""
    inputs = scored(rng, 2, 3, 4, mask=mixed_mask(rng, 2, 3, 4))
    scores = inputs["scores"] + high * ~inputs["mask"]
    return inputs | {"scores": scores.to(dtype)}


def far_apart(rng, mask):
    """Rows of scores near 1e4, 0 and -1e4: no single shift serves them all."""
    rows = torch.tensor([[1e4], [0.0], [-1e4]])
    return {"scores": integers(rng, *mask.shape) + rows, "mask": mask}


def low_and_hidden(rng, dtype=torch.float32):
    """Row 0: hidden keys beside visible scores of -30,000. Row 1: nothing but hidden, low scores.

    There -10,000 is not low enough for a fill, and in float16 nothing may be added below.
    """
    mask = mixed_mask(rng, 3, 4)
    mask[1] = False
    return level(rng, 3, 4, mask=mask, dtype=dtype, low=-30_000.0)


def halves(rng):
    """Half-precision inputs of every kind, by name."""
    return {
        "half": level(rng, 2, 3, 5, mask=dead_mask(rng, 2, 3, 5), dtype=HALF),
        "half, low": low_and_hidden(rng, HALF),
    }


def weighing_traits(answer):
    rng = torch.Generator().manual_seed(0)
    scores = normal(rng, 7, 9)
    one, two = ({"scores": scores, "mask": mixed_mask(rng, 7, 9)} for _ in range(2))
    stale = not remembers(answer, two, two) and (
        remembers(answer, one, two) or remembers(answer, two, one)
    )
    traits = {"remembers an earlier call": stale, "differs from call to call": stale}
    half = answer.observe(low_and_hidden(rng, HALF), gradient=True)
    gradient = half.gradients.get("scores")
    if gradient is not None:
        traits["gradient of half precision finite"] = bool(gradient.isfinite().all())
    inputs = scored(rng, 2, 3, 4, mask=mixed_mask(rng, 3, 4), dtype=DOUBLE)
    try:
        got, expected = answer(inputs), answer.expected(inputs)
    except Failure:
        return traits
    if got.shape == expected.shape and got.dtype == DOUBLE:
        error = (got - expected).abs().max().item()
        traits["float32 inside"] = 1e-9 < error < 1e-4 and torch.equal(got.float().double(), got)
    return traits


def weighing_probes(rng):
    return {
        "batch": scored(rng, 2, 4, 5, mask=mixed_mask(rng, 2, 4, 5)),
        "causal": scored(rng, 2, 5, 5, mask=causal(5)),
        "padding": scored(rng, 3, 4, 5, mask=mixed_mask(rng, 3, 1, 5)),
        "as many sentences as queries": scored(rng, 4, 4, 4, mask=mixed_mask(rng, 4, 1, 4)),
        "heads": scored(rng, 2, 3, 4, 5, mask=mixed_mask(rng, 2, 1, 4, 5)),
        "dead row": scored(rng, 2, 4, 5, mask=dead_mask(rng, 2, 4, 5)),
        "empty sentence": scored(rng, 3, 4, 5, mask=empty_sentence(rng, 3, 5)),
        "far apart": far_apart(rng, mixed_mask(rng, 3, 4)),
        "hidden winner": hidden_winner(rng),
        "hidden winner by far": hidden_winner(rng, high=3e5),
        "low": low_and_hidden(rng),
        **halves(rng),
    }


def weighing_small(rng):
    def table(*rows, mask, dtype=torch.float32):
        return {"scores": torch.tensor(rows, dtype=dtype), "mask": torch.tensor(mask)}

    yield table([0.0], mask=[[True]])
    for _ in range(3):
        yield {"scores": integers(rng, 1, 2), "mask": torch.tensor([[True, False]])}
    yield table([2.0, 1.0, 3.0], mask=[[True, True, False]])
    yield {"scores": integers(rng, 2, 2), "mask": causal(2)}
    for _ in range(2):
        yield {"scores": integers(rng, 2, 3), "mask": mixed_mask(rng, 2, 3)}
    yield table([2.0, 1.0], [0.0, 1.0], mask=[True, False])  # (k)
    yield table([1.0, 2.0], mask=[[False, False]])
    yield table([1.0, 2.0], [0.0, 1.0], mask=[[True, True], [False, False]])
    yield {"scores": integers(rng, 3, 3), "mask": causal(3)}
    two = torch.tensor([[[True, False]], [[True, True]]])  # (b 1 k)
    yield {"scores": integers(rng, 2, 2, 2), "mask": two}
    yield {"scores": integers(rng, 2, 3, 2), "mask": two}
    yield {"scores": integers(rng, 2, 2, 1, 2), "mask": two[:, None]}
    yield {"scores": integers(rng, 2, 3, 1, 2), "mask": two[:, None]}
    for size in (100.0, 1e4, -1e4):
        yield table([size, size], mask=[[True, True]])
        yield table([size, size], [0.0, 0.0], mask=[[True, True], [True, False]])
    yield table([0.0, 300.0], mask=[[True, False]])
    yield table([-30_000.0, 0.0], mask=[[True, False]])
    yield table([0.0, 0.0], mask=[[True, False]], dtype=HALF)
    yield table([0.0, 0.0], mask=[[False, False]], dtype=HALF)
    yield table([-30_000.0, 0.0], mask=[[True, False]], dtype=HALF)
    yield table([-30_000.0, -30_000.0], mask=[[False, False]], dtype=HALF)


def weighing_maps(rng):
    mask = torch.tensor([[True, True, False], [True, True, True]])
    inputs = {"scores": normal(rng, 2, 3), "mask": mask}
    return [("two rows of three scores, the third one hidden", inputs, ("scores",))]


def finite_in_half(answer, inputs):
    """Assert that a gradient arrives in half precision, and is the right one, up to rounding."""
    answer(inputs)  # says why, if nothing comes back
    seen = answer.observe(inputs, gradient=True)
    expected = answer.task.observe(answer.task.reference, inputs, gradient=True)
    got = seen.gradients.get("scores")
    if got is None:
        raise Failure("No gradient reaches the scores in half precision.", inputs)
    if not got.isfinite().all():
        raise Failure(
            "The gradient of the scores in half precision: some entries are NaN or infinite.",
            inputs,
        )
    compare("the gradient of scores", got, expected.gradients["scores"], inputs, tolerance=2e-2)


class TestMaskedSoftmax:
    task = Task(
        name="masked_softmax",
        reference=reference.masked_softmax,
        returns=("weights",),
        difficulty=3,
        minutes=30,
        section="before-the-softmax",
        hints=(
            "A hidden key must not take part in the competition, so it is hidden before the "
            "softmax. Which score makes sure that it gets the weight 0?",
            "Fill the hidden scores (in a new tensor: `masked_fill`, without underscore) with the "
            "lowest number that their own dtype has, then softmax over the keys. Then look at a "
            "row in which everything is hidden: what came out, and what should?",
            "lowest = torch.finfo(scores.dtype).min; where the mask is False, fill the scores with "
            "it; softmax over the last axis; where the mask is False, fill the weights with 0. The "
            "last step changes only rows in which everything is hidden.",
        ),
        probes=weighing_probes,
        differentiated=("batch", "causal", "dead row"),
        small=weighing_small,
        maps=weighing_maps,
        traits=weighing_traits,
        forbidden=FUSED_ATTENTION,
    )

    @points(1)
    def test_one_weight_for_every_score(self, answer, rng):
        for shape, dtype in (((2, 4, 5), torch.float32), ((3, 5), DOUBLE), ((2, 3, 4, 5), DOUBLE)):
            inputs = scored(rng, *shape, mask=mixed_mask(rng, *shape), dtype=dtype)
            weights = answer(inputs)
            if weights.shape != shape:
                raise Failure(
                    f"weights have shape {shape_of(weights)}; scores came with "
                    f"{shape_of(inputs['scores'])}.",
                    inputs,
                )
            if weights.dtype != dtype:
                raise Failure(f"weights are {weights.dtype}; scores came as {dtype}.", inputs)

    @points(1)
    def test_a_hidden_key_gets_no_weight_and_rows_sum_to_one(self, answer, rng):
        inputs = scored(rng, 2, 4, 5, mask=mixed_mask(rng, 2, 4, 5))
        weights = answer(inputs)
        if weights.shape != (2, 4, 5):
            raise Failure(f"weights have shape {shape_of(weights)}; expected (2 4 5).", inputs)
        if (weights.masked_fill(inputs["mask"], 0).abs() > 1e-7).any():
            raise Failure("A hidden key keeps a little weight.", inputs, got=weights)
        if (weights < 0).any():
            raise Failure("Some weights are negative.", inputs, got=weights)
        compare("the sum of each row of weights", weights.sum(-1), torch.ones(2, 4), inputs)

    @points(2)
    def test_the_visible_keys_share_as_if_they_were_alone(self, answer, rng):
        answer.matches(scored(rng, 4, 5, mask=mixed_mask(rng, 4, 5)))
        answer.matches(scored(rng, 3, 4, 5, mask=mixed_mask(rng, 3, 4, 5)))
        answer.matches(scored(rng, 4, 4, 4, mask=mixed_mask(rng, 4, 4, 4)))
        answer.matches(scored(rng, 2, 5, 5, mask=causal(5)))
        answer.matches(scored(rng, 2, 3, mask=torch.ones(2, 3, dtype=torch.bool)))
        answer.matches(scored(rng, 1, 1, mask=torch.ones(1, 1, dtype=torch.bool)))
        answer.matches(scored(rng, 1, 4, mask=mixed_mask(rng, 1, 4)))
        answer.matches(scored(rng, 2, 4, 5, mask=mixed_mask(rng, 4, 5), dtype=DOUBLE))
        turned = scored(rng, 2, 4, 5, mask=mixed_mask(rng, 2, 4, 5))  # not contiguous
        answer.matches({name: tensor.mT.contiguous().mT for name, tensor in turned.items()})

    @points(1)
    def test_what_a_hidden_key_scores_makes_no_difference(self, answer, rng):
        inputs = scored(rng, 2, 4, 5, mask=mixed_mask(rng, 2, 4, 5))
        before = answer(inputs)
        for size in (1.0, -50.0, 300.0, 1e4, -1e4):
            spoiled = inputs | {"scores": inputs["scores"] + size * ~inputs["mask"]}
            compare("weights, hidden scores changed", answer(spoiled), before, spoiled)
        answer.matches(hidden_winner(rng))
        answer.matches(hidden_winner(rng, high=3e5))

    @points(1)
    def test_a_mask_may_broadcast(self, answer, rng):
        answer.matches(scored(rng, 3, 4, 5, mask=mixed_mask(rng, 4, 5)))
        answer.matches(scored(rng, 3, 4, 5, mask=mixed_mask(rng, 3, 1, 5)))
        answer.matches(scored(rng, 4, 4, 4, mask=mixed_mask(rng, 4, 1, 4)))  # b = q = k
        answer.matches(scored(rng, 2, 3, 4, 5, mask=mixed_mask(rng, 2, 1, 1, 5)))
        answer.matches(scored(rng, 2, 3, 4, 5, mask=mixed_mask(rng, 2, 1, 4, 5)))
        answer.matches(scored(rng, 3, 3, 3, 3, mask=mixed_mask(rng, 3, 1, 3, 3)))  # b = h = q = k
        answer.matches(scored(rng, 2, 3, 4, 5, mask=mixed_mask(rng, 3, 4, 5)))
        answer.matches(scored(rng, 3, 4, 5, mask=mixed_mask(rng, 1, 5)[0]))  # (k)
        queries = torch.ones(4, 1, dtype=torch.bool)  # (q 1)
        answer.matches(scored(rng, 2, 4, 5, mask=queries))

    @points(1)
    def test_a_row_with_nothing_to_attend_to_is_zero(self, answer, rng):
        answer.matches(scored(rng, 2, 4, 5, mask=dead_mask(rng, 2, 4, 5)))
        answer.matches(scored(rng, 2, 4, 5, mask=dead_mask(rng, 4, 5)))
        answer.matches(scored(rng, 3, 4, 5, mask=empty_sentence(rng, 3, 5)))
        padded_left = causal(5) & torch.tensor([False, False, True, True, True])
        answer.matches(scored(rng, 2, 5, 5, mask=padded_left))
        queries = torch.tensor([[True], [False], [True], [True]])  # (q 1)
        answer.matches(scored(rng, 2, 4, 5, mask=queries))
        nothing = torch.zeros(1, 3, dtype=torch.bool)
        answer.matches(scored(rng, 1, 3, mask=nothing))
        answer.matches(scored(rng, 2, 4, 5, mask=dead_mask(rng, 4, 5), dtype=DOUBLE))
        answer.matches(far_apart(rng, dead_mask(rng, 3, 4)), tolerance=5e-3)
        answer.matches(low_and_hidden(rng), tolerance=5e-3)

    @points(1)
    def test_large_scores_stay_finite(self, answer, rng):
        answer.matches(far_apart(rng, mixed_mask(rng, 3, 4)), tolerance=5e-3)
        everything = torch.ones(3, 4, dtype=torch.bool)
        answer.matches(far_apart(rng, everything), tolerance=5e-3)
        answer.matches(level(rng, 3, 4, mask=mixed_mask(rng, 3, 4), low=-30_000.0), tolerance=5e-3)

    @points(1)
    def test_half_precision_is_no_excuse(self, answer, rng):
        mask = mixed_mask(rng, 2, 4, 5)
        answer.matches(scored(rng, 2, 4, 5, mask=mask, dtype=HALF), tolerance=5e-3)
        dead = dead_mask(rng, 4, 5)
        answer.matches(scored(rng, 2, 4, 5, mask=dead, dtype=HALF), tolerance=5e-3)
        for inputs in halves(rng).values():
            answer.matches(inputs, tolerance=5e-3)
        answer.matches(hidden_winner(rng, HALF, high=1e4), tolerance=5e-3)
        moves_nothing(answer, scored(rng, 2, 4, 5, mask=mixed_mask(rng, 4, 5), dtype=HALF))

    @points(1)
    def test_gradients_of_half_precision_are_numbers_too(self, answer, rng):
        finite_in_half(answer, scored(rng, 2, 4, 5, mask=dead_mask(rng, 4, 5), dtype=HALF))
        finite_in_half(answer, low_and_hidden(rng, HALF))

    @points(1)
    def test_gradients_reach_the_scores(self, answer, rng):
        answer.gradients_match(scored(rng, 2, 4, 5, mask=mixed_mask(rng, 2, 4, 5)))
        answer.gradients_match(scored(rng, 2, 3, 4, 5, mask=mixed_mask(rng, 2, 1, 1, 5)))
        answer.gradients_match(scored(rng, 4, 4, mask=causal(4)))

    @points(1)
    def test_a_dead_row_spoils_no_gradient(self, answer, rng):
        answer.gradients_match(scored(rng, 2, 4, 5, mask=dead_mask(rng, 2, 4, 5)))
        answer.gradients_match(scored(rng, 3, 4, 5, mask=empty_sentence(rng, 3, 5)))

    @points(1)
    def test_it_changes_nothing_but_its_result(self, answer, rng):
        inputs = scored(rng, 2, 4, 5, mask=mixed_mask(rng, 2, 4, 5))
        moves_nothing(answer, inputs)
        moves_nothing(answer, scored(rng, 2, 4, 5, mask=dead_mask(rng, 4, 5)))
        inputs = scored(rng, 2, 4, 7, mask=mixed_mask(rng, 2, 4, 7))
        still_answers(answer, inputs, inputs | {"mask": mixed_mask(rng, 2, 4, 7)})
