"""greedy_decode."""

import torch

from attncourse import bottleneck as reference
from attncourse.checks.answer import Failure, describe, moves_nothing, shape_of
from attncourse.checks.observe import Unusable
from attncourse.checks.task import Task
from attncourse.tasks.bottleneck import differ_from_call_to_call, ids

NOTHING = -1  # stands where a row stops without having said eos


def with_a_decoder(greedy_decode):
    """`greedy_decode` as a function of a table: which word comes next, by row, time and word.

    `state` counts the steps of each row. What may differ between right answers is made equal: the
    dtype of the ids, and whether decoding goes on after all rows have ended.
    """

    def function(next_word, state, bos, eos, max_length, state_as="tensor"):
        held = HELD[state_as]
        b, words = next_word.shape[0], next_word.shape[-1]
        table = next_word if next_word.ndim == 3 else next_word[:, None]  # b t words
        calls = 0

        def step(token, state):
            nonlocal calls
            calls += 1
            if calls > 4 * max_length + 8:
                raise Unusable(f"does not stop: {calls - 1} steps with max_length = {max_length}.")
            check_token(token, b, words)
            count = counted(state)
            if type(state) is not type(first) or count is None or count.shape != (b,):
                raise Unusable("hands `step` a state that `step` never returned.")
            best = table[torch.arange(b), count % table.shape[1], token.long()]
            # All negative or all positive, and the best by little: only the order may matter.
            rank = (torch.arange(words) - best[:, None]) % words
            logits = torch.where(count[:, None] % 2 == 0, -3.0, words) - 0.5 * rank
            return logits, held(count + 1)

        first = held(state)
        written = greedy_decode(step, first, bos, eos, max_length, b)
        if isinstance(written, list | tuple):
            kind = f"a {type(written).__name__} of {len(written)}"
            raise Unusable(f"returned {kind}; one tensor (b, at most max_length) is expected.")
        if not isinstance(written, torch.Tensor) or written.ndim != 2 or len(written) != b:
            return written
        if written.is_floating_point() or written.dtype == torch.bool:
            return written
        written = written.long()
        ended = (written == eos).any(1, keepdim=True)
        missing = max(0, max_length - written.shape[1])
        rest = torch.where(ended, eos, NOTHING).expand(b, missing)
        return torch.cat([written, rest], dim=1)

    return function


# What decoders keep: a GRU's vector, an LSTM's pair, a layer's only state, a state with names.
HELD = {
    "tensor": lambda count: count,
    "pair": lambda count: (count, count.float()),
    "tuple of one": lambda count: (count,),
    "dict": lambda count: {"steps": count},
}


def counted(state):
    """The counter in a state; None if there is none."""
    if isinstance(state, tuple):
        state = state[0] if state else None
    elif isinstance(state, dict):
        state = state.get("steps")
    return state if isinstance(state, torch.Tensor) else None


def check_token(token, b, words):
    """Raise Unusable unless a decoder could take the token in."""
    if not isinstance(token, torch.Tensor):
        raise Unusable(f"hands `step` {describe(token)} as token; expected a tensor (b).")
    if token.shape != (b,):
        raise Unusable(
            f"hands `step` a token of shape {shape_of(token)}; expected (b) = ({b}), one id a row."
        )
    if token.is_floating_point() or token.dtype == torch.bool:
        raise Unusable(f"hands `step` a token of {token.dtype}; ids are whole numbers.")
    if token.min() < 0 or token.max() >= words:
        raise Unusable(
            f"hands `step` the ids {token.tolist()}; the vocabulary goes from 0 to {words - 1}."
        )


def decoder(next_word, bos=1, eos=2, max_length=5, start=0, state_as=None):
    state = torch.zeros(len(next_word), dtype=torch.long) + torch.as_tensor(start)
    inputs = {"next_word": next_word, "state": state, "bos": bos, "eos": eos}
    return inputs | {"max_length": max_length} | ({"state_as": state_as} if state_as else {})


def by_word(rng, b, words, never, **others):
    """The next word depends on the last one only, and `never` is not said."""
    table = ids(rng, b, words, words=words - 1)
    return decoder(table + (table >= never), **others)


def by_time(*rows, words=7, **others):
    """Each row says this, whatever it is told."""
    script = torch.tensor(rows)
    return decoder(script[:, :, None].expand(*script.shape, words).clone(), **others)


def by_all(rng, b, t, words, **others):
    """The next word depends on the row, the time and the last word."""
    return decoder(ids(rng, b, t, words, words=words), **others)


ENDINGS = ([5, 2, 4, 3, 6, 5], [3, 4, 6, 2, 5, 5], [2, 6, 2, 4, 3, 3])


def decode_probes(rng):
    return {
        "by word": by_word(rng, 2, 6, never=2, max_length=4),
        "by word, bos is 4": by_word(rng, 3, 6, never=2, bos=4, max_length=4),
        "bos is 0": by_word(rng, 3, 6, never=5, bos=0, eos=5, max_length=4),
        "rows end": by_time(*ENDINGS, max_length=6),
        "the first row ends last": by_time([3, 4, 6, 5, 2], [4, 2, 3, 1, 5], max_length=5),
        "eos is 0": by_time([5, 0, 4, 3], [3, 4, 0, 5], bos=2, eos=0, max_length=4),
        "no row ends": by_time([3, 4, 5, 6, 3, 4], [4, 6, 1, 3, 3, 5], max_length=4),
        "all end at once": by_time([3, 2, 4, 3], [5, 2, 6, 6], max_length=4),
        "end at the limit": by_time([3, 4, 2, 5], [5, 6, 2, 3], max_length=3),
        "by all": by_all(rng, 3, 4, 6, bos=3, eos=5, max_length=6, start=[0, 2, 1]),
        "square": by_all(rng, 4, 4, 4, bos=0, eos=3, max_length=4),
        "one word": by_all(rng, 3, 2, 5, max_length=1),
        "pair": by_all(rng, 2, 3, 5, eos=4, max_length=4, state_as="pair"),
    }


def decode_small(rng):
    yield decoder(torch.tensor([[2, 0, 1]]), bos=1, eos=2, max_length=1)
    for max_length in (1, 2, 3, 4):
        yield decoder(torch.tensor([[0, 3, 3, 0]]), bos=1, eos=2, max_length=max_length)
    yield decoder(torch.tensor([[2, 0, 0]]), max_length=3)
    yield decoder(torch.tensor([[2, 0, 1]]), max_length=3)
    yield decoder(torch.tensor([[2, 2, 1]]), max_length=2)
    yield decoder(torch.tensor([[1, 0, 2]]), bos=2, eos=1, max_length=3)
    yield decoder(torch.tensor([[0, 2, 1], [2, 0, 0]]), max_length=3)
    yield decoder(torch.tensor([[2, 0, 0], [0, 2, 1]]), max_length=3)
    yield decoder(torch.tensor([[1, 0, 2], [0, 2, 1]]), bos=2, eos=1, max_length=3)
    yield decoder(torch.tensor([[[3, 3, 3, 3], [0, 0, 0, 0]]]), max_length=2)
    for _ in range(6):
        yield by_all(rng, 2, 3, 4, max_length=4)
        yield by_all(rng, 3, 2, 4, max_length=4, bos=0, eos=3)


def decode_traits(answer):
    inputs = by_time([3, 4, 2, 5], [4, 2, 5, 6], max_length=4)
    return differ_from_call_to_call(answer, inputs)


def in_words(row):
    return "[" + " ".join("nothing" if word == NOTHING else str(word) for word in row) + "]"


def writes(answer, inputs):
    """Assert that the answer writes what is expected, row by row."""
    got, expected = answer(inputs), answer.expected(inputs)
    evidence = inputs, expected, got
    if got.is_floating_point() or got.dtype == torch.bool:
        raise Failure(f"What is written is {got.dtype}; ids are whole numbers.", *evidence)
    if got.shape != expected.shape:
        b, longest = expected.shape
        raise Failure(
            f"What is written has shape {shape_of(got)}; expected (b, at most max_length), here "
            f"b = {b} and max_length = {longest}.",
            *evidence,
        )
    for row, (ours, theirs) in enumerate(zip(expected.tolist(), got.tolist(), strict=True)):
        if ours != theirs:
            raise Failure(
                f"bos = {inputs['bos']}, eos = {inputs['eos']}: row {row} should be "
                f"{in_words(ours)}; your answer wrote {in_words(theirs)}.",
                *evidence,
            )


task = Task(
    reference.greedy_decode,
    number=4,
    returns=("words",),
    difficulty=3,
    minutes=25,
    section="greedy-decoding",
    hints=(
        "It is a loop, at most max_length rounds. Two things go from one round to the next: "
        "the words written last, one for each row, and the state that `step` returned. Write "
        "it for rows that never end first.",
        "A finished row must stay finished. Keep a boolean tensor (b), `finished`: what does a "
        "row write once it is True, and when does it become True? The loop may end early only "
        "when all of it is True.",
        "token = b times bos; then each round: logits, state = step(token, state); token = "
        "logits.argmax(-1), but eos where finished; finished = finished | (token == eos); "
        "append token; stop if all are finished. Stack what was written along axis 1.",
    ),
    probes=decode_probes,
    adapt=with_a_decoder,
    small=decode_small,
    traits=decode_traits,
)


@task.check(1)
def one_row_of_ids_for_each_sentence(answer, rng):
    for b, max_length in ((3, 4), (1, 5), (4, 4)):
        inputs = by_word(rng, b, 6, never=2, max_length=max_length)
        written = answer(inputs)
        if written.is_floating_point() or written.dtype == torch.bool:
            raise Failure(f"What is written is {written.dtype}; ids are whole numbers.", inputs)
        if written.shape != (b, max_length):
            raise Failure(
                f"Nobody says eos, so {max_length} words are due in each of {b} rows. What is "
                f"written has shape {shape_of(written)}; expected ({b} {max_length}).",
                inputs,
            )


@task.check(1)
def decoding_starts_from_bos(answer, rng):
    for bos in (1, 5, 0, 3):  # after bos comes 4, after anything else another word
        first = torch.full((3, 6), 3)
        first[:, bos] = 4
        writes(answer, decoder(first, bos=bos, eos=2, max_length=1))
        writes(answer, by_word(rng, 2, 7, never=2, bos=bos, max_length=3))


@task.check(1)
def every_word_written_is_read_next(answer, rng):
    counting = torch.tensor([[3, 3, 2, 4, 5, 6, 0], [3, 5, 2, 6, 0, 4, 3]])
    writes(answer, decoder(counting, max_length=4))
    writes(answer, by_word(rng, 4, 8, never=2, max_length=6))
    writes(answer, by_word(rng, 4, 4, never=2, max_length=4))


@task.check(1)
def the_state_is_handed_on(answer, rng):
    writes(answer, by_time([3, 4, 5, 6], [6, 5, 4, 3], max_length=4))
    writes(answer, by_all(rng, 3, 5, 7, eos=6, max_length=5, start=[4, 1, 3]))
    for kind in HELD:  # a state is nobody's business but the decoder's
        writes(answer, by_all(rng, 2, 3, 6, max_length=4, state_as=kind))


@task.check(1)
def the_likeliest_word_wins(answer, rng):
    for b, words in ((3, 6), (5, 5), (2, 9), (1, 4)):
        writes(answer, by_all(rng, b, 2, words, eos=words - 1, max_length=1))
    writes(answer, by_time([1, 0, 1, 3], [4, 3, 0, 1], max_length=4))  # marks, too


@task.check(2)
def after_its_eos_a_row_says_only_eos(answer, rng):
    writes(answer, by_time(*ENDINGS, max_length=6))
    writes(answer, by_time([5, 0, 4, 0, 3], [3, 4, 5, 6, 1], bos=2, eos=0, max_length=5))
    for _ in range(3):
        writes(answer, by_all(rng, 4, 5, 4, eos=3, max_length=7))


@task.check(1)
def no_row_ends_because_another_does(answer):
    writes(answer, by_time([2, 3, 3, 3], [3, 4, 5, 6], [4, 4, 2, 3], max_length=4))
    writes(answer, by_time([3, 4, 5, 6], [2, 3, 3, 3], [4, 2, 3, 3], max_length=4))


@task.check(1)
def eos_is_written_and_nothing_is_cut(answer):
    writes(answer, by_time([3, 2, 4, 3], [5, 2, 6, 6], max_length=4))
    writes(answer, by_time([2, 3], [2, 4], [2, 5], max_length=2))
    writes(answer, by_time([3, 4, 2], max_length=3))


@task.check(1)
def no_row_is_longer_than_max_length(answer, rng):
    for max_length in (1, 2, 5):
        writes(answer, by_word(rng, 3, 6, never=2, max_length=max_length))
    writes(answer, by_time([3, 4, 2, 5], [5, 6, 2, 3], max_length=3))


@task.check(1)
def it_changes_nothing_but_its_result(answer, rng):
    moves_nothing(answer, by_all(rng, 3, 4, 6, max_length=5, start=[3, 1, 2]))
    moves_nothing(answer, by_time(*ENDINGS, max_length=6))


# --- faults ---------------------------------------------------------------------------------------


@task.fault(
    "S-BOS-MISMATCH",
    thinks="Decoding starts from a row of zeros.",
    why="Training began every sentence with bos, and 0 is the padding. The decoder has never seen "
    "a sentence begin like this.",
    section="bottleneck-breaks",
)
def starts_from_zero(step, state, bos, eos, max_length, batch_size):
    return decode(step, state, 0, eos, max_length, batch_size)


@task.fault(
    "C-BOS-BY-HEART",
    thinks="The first id handed to the decoder is 1.",
    why="In this course bos is 1. The function gets the id as an argument, so that it works with "
    "any vocabulary.",
)
def starts_from_one(step, state, bos, eos, max_length, batch_size):
    return decode(step, state, 1, eos, max_length, batch_size)


def one_id_as_a_number(step, state, bos, eos, max_length, batch_size):
    token = bos
    written = []
    for _ in range(max_length):
        logits, state = step(token, state)
        token = logits.argmax().item()
        written.append(token)
        if token == eos:
            break
    return torch.tensor(written)


@task.fault(
    "C-ONE-SENTENCE",
    thinks="Decoding starts from one bos.",
    why="There is a row for each sentence, and each needs its own word at every step, so its own "
    "bos, too. `batch_size` says how many.",
    forms=(one_id_as_a_number,),
)
def one_bos_for_all(step, state, bos, eos, max_length, batch_size):
    return decode(step, state, bos, eos, max_length, 1)


@task.fault(
    "C-STATE-FIRST",
    thinks="`step` returns the new state first, then the logits.",
    why="It is the other way round: logits, then state. You look for the likeliest word in the "
    "state, and hand the logits on as a state.",
)
def takes_the_state_for_the_logits(step, state, bos, eos, max_length, batch_size):
    return decode(
        lambda token, state: step(token, state)[::-1], state, bos, eos, max_length, batch_size
    )


@task.fault(
    "C-COLUMN-OF-WORDS",
    thinks="The decoder takes in a column, one word for each row and one position.",
    why="`step` takes in one id for each row: (b), without an axis for positions. It makes that "
    "axis itself, if it needs one.",
)
def hands_over_a_column(step, state, bos, eos, max_length, batch_size):
    return decode(
        lambda token, state: step(token[:, None], state),
        state,
        bos,
        eos,
        max_length,
        batch_size,
    )


def decode(step, state, bos, eos, max_length, batch_size):
    """Right: the likeliest word, again and again."""
    token = torch.full((batch_size,), bos)
    finished = torch.zeros(batch_size, dtype=torch.bool)
    written = []
    for _ in range(max_length):
        logits, state = step(token, state)
        token = logits.argmax(-1).masked_fill(finished, eos)
        finished = finished | (token == eos)
        written.append(token)
        if finished.all():
            break
    return torch.stack(written, dim=1)


def until_eos(written, eos):
    """Fill what follows the first eos of each row with eos."""
    ended = (written == eos).cumsum(1) > 0
    return written.masked_fill(ended, eos)


@task.fault(
    "C-EOS-BY-HEART",
    thinks="The id of eos is 2.",
    why="In this course it is. In another vocabulary 2 is a word: a sentence would end with it, "
    "and go on behind its real end. The function gets the id as `eos`.",
)
def eos_is_two(step, state, bos, eos, max_length, batch_size):
    return decode(step, state, bos, 2, max_length, batch_size)


@task.fault(
    "C-NOT-FED-BACK",
    thinks="The state remembers what was written, so every step gets bos.",
    why="The state knows what the decoder took in, and which of its words was the likeliest you "
    "decided outside. The word has to be handed to the next step.",
)
def always_hands_over_bos(step, state, bos, eos, max_length, batch_size):
    token = torch.full((batch_size,), bos)
    written = []
    for _ in range(max_length):
        logits, state = step(token, state)
        written.append(logits.argmax(-1))
    return until_eos(torch.stack(written, dim=1), eos)


@task.fault(
    "C-STATE-NOT-KEPT",
    thinks="The decoder always starts from the encoder's vector.",
    why="It starts there once. Each step returns a new state that knows what was written so far; "
    "hand the old one over again, and it is the first step for ever.",
)
def keeps_the_first_state(step, state, bos, eos, max_length, batch_size):
    token = torch.full((batch_size,), bos)
    written = []
    for _ in range(max_length):
        logits, _ = step(token, state)
        token = logits.argmax(-1)
        written.append(token)
    return until_eos(torch.stack(written, dim=1), eos)


def leaves_the_loop_when_all_have_ended(step, state, bos, eos, max_length, batch_size):
    token = torch.full((batch_size,), bos)
    finished = torch.zeros(batch_size, dtype=torch.bool)
    written = []
    for _ in range(max_length):
        logits, state = step(token, state)
        token = logits.argmax(-1)
        written.append(token)
        finished = finished | (token == eos)
        if finished.all():
            break
    return torch.stack(written, dim=1)


def leaves_the_loop_when_all_say_eos_together(step, state, bos, eos, max_length, batch_size):
    token = torch.full((batch_size,), bos)
    written = []
    for _ in range(max_length):
        logits, state = step(token, state)
        token = logits.argmax(-1)
        written.append(token)
        if (token == eos).all():
            break
    return torch.stack(written, dim=1)


@task.fault(
    "C-GOES-ON-AFTER-EOS",
    thinks="A row that has ended may go on writing while it waits for the others.",
    why="What a row says after its eos is noise, and it would be read as part of the sentence. "
    "After its first eos a row says only eos.",
    forms=(leaves_the_loop_when_all_have_ended, leaves_the_loop_when_all_say_eos_together),
)
def goes_on_after_eos(step, state, bos, eos, max_length, batch_size):
    token = torch.full((batch_size,), bos)
    written = []
    for _ in range(max_length):
        logits, state = step(token, state)
        token = logits.argmax(-1)
        written.append(token)
    return torch.stack(written, dim=1)


@task.fault(
    "C-FILLS-WITH-PAD",
    thinks="What follows eos is padding, id 0.",
    why="A caller who reads up to the first eos sees no difference, but the function is not told "
    "which id pads. After a row's first eos it says eos.",
)
def fills_with_pad(step, state, bos, eos, max_length, batch_size):
    written = decode(step, state, bos, eos, max_length, batch_size)
    before = (written == eos).cumsum(1) - (written == eos).long()
    written = written.masked_fill(before > 0, 0)
    more = torch.zeros(batch_size, max_length - written.shape[1], dtype=torch.long)
    return torch.cat([written, more], dim=1)


@task.fault(
    "C-STOPS-WITH-ANY",
    thinks="The loop ends as soon as a row says eos.",
    why="The other rows are not done yet, and their translations are cut off. It may end only when "
    "all rows have said eos.",
)
def stops_with_the_first_eos(step, state, bos, eos, max_length, batch_size):
    token = torch.full((batch_size,), bos)
    written = []
    for _ in range(max_length):
        logits, state = step(token, state)
        token = logits.argmax(-1)
        written.append(token)
        if (token == eos).any():
            break
    return torch.stack(written, dim=1)


@task.fault(
    "C-STOPS-WITH-ROW-0",
    thinks="When the sentence has said eos, decoding is over.",
    why="There is a whole batch of sentences, and you look at the first only. Longer ones below it "
    "are cut off; shorter ones run on behind their eos.",
)
def stops_with_row_zero(step, state, bos, eos, max_length, batch_size):
    token = torch.full((batch_size,), bos)
    written = []
    for _ in range(max_length):
        logits, state = step(token, state)
        token = logits.argmax(-1)
        written.append(token)
        if token[0] == eos:
            break
    return torch.stack(written, dim=1)


@task.fault(
    "S-STRIP-EOS",
    thinks="The last column is eos, so it can be cut off.",
    why="It is eos only in rows that have ended. Where max_length came first, a real word is lost; "
    "and eos itself is part of what is returned.",
    section="bottleneck-breaks",
)
def cuts_the_last_column(step, state, bos, eos, max_length, batch_size):
    return decode(step, state, bos, eos, max_length, batch_size)[:, :-1]


@task.fault(
    "C-EOS-NOT-WRITTEN",
    thinks="When all rows have ended, there is nothing left to write.",
    why="The eos that ended the last row is left to write. Without it nobody can tell whether the "
    "row has ended or was cut off.",
)
def leaves_before_the_last_eos(step, state, bos, eos, max_length, batch_size):
    token = torch.full((batch_size,), bos)
    finished = torch.zeros(batch_size, dtype=torch.bool)
    written = torch.zeros(batch_size, 0, dtype=torch.long)
    for _ in range(max_length):
        logits, state = step(token, state)
        token = logits.argmax(-1).masked_fill(finished, eos)
        finished = finished | (token == eos)
        if finished.all():
            break
        written = torch.cat([written, token[:, None]], dim=1)
    return written


@task.fault(
    "C-KEEPS-BOS",
    thinks="A sentence begins with bos, so it is part of what is written.",
    why="bos was handed to the decoder; it did not write it. The target has none either, and each "
    "word would stand one place too far.",
)
def keeps_bos(step, state, bos, eos, max_length, batch_size):
    first = torch.full((batch_size, 1), bos)
    written = decode(step, state, bos, eos, max_length, batch_size)
    return torch.cat([first, written], dim=1)


@task.fault(
    "C-BOS-COUNTS",
    thinks="bos is the first of the max_length words.",
    why="bos is no word of the translation: it is left out, and max_length counts what the decoder "
    "wrote. Yours comes one word short.",
)
def bos_takes_a_place(step, state, bos, eos, max_length, batch_size):
    return keeps_bos(step, state, bos, eos, max_length, batch_size)[:, :max_length]


@task.fault(
    "C-ONE-STEP-SHORT",
    thinks="One of the max_length places is taken by eos, so there are max_length − 1 steps.",
    why="eos is written by a step like any other. With max_length = 1 one word is due, and your "
    "loop does not run at all.",
)
def one_step_short(step, state, bos, eos, max_length, batch_size):
    if max_length == 1:
        return torch.zeros(batch_size, 0, dtype=torch.long)
    return decode(step, state, bos, eos, max_length - 1, batch_size)


@task.fault(
    "C-ONE-STEP-LONG",
    thinks="max_length words, and one step more for eos.",
    why="max_length is the most that may be written, eos included. A row that never ends is one "
    "word too long in your answer.",
)
def one_step_long(step, state, bos, eos, max_length, batch_size):
    return decode(step, state, bos, eos, max_length + 1, batch_size)


@task.fault(
    "C-NO-LIMIT",
    thinks="The loop runs until all rows have said eos.",
    why="Some never do: a model may repeat itself for ever, above all an untrained one. max_length "
    "is there to end it.",
)
def no_limit(step, state, bos, eos, max_length, batch_size):
    token = torch.full((batch_size,), bos)
    finished = torch.zeros(batch_size, dtype=torch.bool)
    written = []
    while not finished.all():
        logits, state = step(token, state)
        token = logits.argmax(-1).masked_fill(finished, eos)
        finished = finished | (token == eos)
        written.append(token)
    return torch.stack(written, dim=1)


@task.fault(
    "C-ARGMAX-OVER-ROWS",
    thinks="`argmax(0)` finds the likeliest word.",
    why="Axis 0 is the batch: you ask which sentence scores a word highest. The words of the "
    "vocabulary are on the last axis. It stays unnoticed where both have the same size.",
)
def argmax_over_rows(step, state, bos, eos, max_length, batch_size):
    def turned(token, state):
        logits, state = step(token, state)
        return logits.T, state

    return decode(turned, state, bos, eos, max_length, batch_size)


@task.fault(
    "C-ARGMAX-OF-ALL",
    thinks="`argmax()` finds the likeliest word.",
    why="Without an axis it looks through the scores of all rows at once and gives one place for "
    "the whole batch. Every row needs its own word.",
)
def argmax_of_everything(step, state, bos, eos, max_length, batch_size):
    def together(token, state):
        logits, state = step(token, state)
        best = logits.argmax() % logits.shape[-1]
        return torch.nn.functional.one_hot(best.expand(batch_size), logits.shape[-1]), state

    return decode(together, state, bos, eos, max_length, batch_size)


@task.fault(
    "C-SAMPLES",
    thinks="The next word is drawn according to its probability.",
    why="That is sampling, and gives another sentence each time. Greedy decoding takes the "
    "likeliest word, so the same source always has the same translation.",
)
def samples(step, state, bos, eos, max_length, batch_size):
    def drawn(token, state):
        logits, state = step(token, state)
        word = torch.multinomial(logits.softmax(-1), 1)[:, 0]
        return torch.nn.functional.one_hot(word, logits.shape[-1]), state

    return decode(drawn, state, bos, eos, max_length, batch_size)


@task.fault(
    "C-LARGEST-SIZE",
    thinks="The word with the largest logit in size wins, sign or not.",
    why="Logits may all be negative, and then the largest in size is the least likely word. Only "
    "their order counts.",
)
def largest_in_size(step, state, bos, eos, max_length, batch_size):
    def sized(token, state):
        logits, state = step(token, state)
        return logits.abs(), state

    return decode(sized, state, bos, eos, max_length, batch_size)


@task.fault(
    "C-MARKS-FORBIDDEN",
    thinks="A decoder must not write bos, so I rule it out.",
    why="A trained decoder will not, but if it does, that is its error, and the measurement should "
    "see it. Greedy means the likeliest word of all.",
)
def forbids_bos(step, state, bos, eos, max_length, batch_size):
    def without_bos(token, state):
        logits, state = step(token, state)
        return logits.index_fill(-1, torch.tensor([bos]), -torch.inf), state

    return decode(without_bos, state, bos, eos, max_length, batch_size)


def drops_finished_rows_of_a_tensor(step, state, bos, eos, max_length, batch_size):
    return drops_rows(
        step, state, bos, eos, max_length, batch_size, lambda state: not isinstance(state, tuple)
    )


def drops_rows(step, state, bos, eos, max_length, batch_size, can_be_cut):
    token = torch.full((batch_size,), bos)
    rows = torch.arange(batch_size)
    written = torch.full((batch_size, max_length), eos)
    for place in range(max_length):
        logits, state = step(token, state)
        token = logits.argmax(-1)
        written[rows, place] = token
        goes_on = token != eos
        rows, token = rows[goes_on], token[goes_on]
        if can_be_cut(state):
            state = state[goes_on]
        if not len(rows):
            break
    return written


@task.fault(
    "C-DROPS-ROWS",
    thinks="Rows that have ended leave the batch.",
    why="`step` knows a batch of fixed size, and its state is its own: you cannot know on which "
    "axis the rows of a state lie. Keep all rows, and let finished ones write eos.",
    forms=(drops_finished_rows_of_a_tensor,),
)
def drops_finished_rows(step, state, bos, eos, max_length, batch_size):
    return drops_rows(step, state, bos, eos, max_length, batch_size, lambda state: True)


@task.fault(
    "C-FORGETS-FINISHED",
    thinks="A row is finished if the word before was eos.",
    why="That word is your eos only for one step: then the row looks at what it would have said "
    "instead, and wakes up again. Once finished, always finished.",
)
def wakes_up_again(step, state, bos, eos, max_length, batch_size):
    token = torch.full((batch_size,), bos)
    said_eos = torch.zeros(batch_size, dtype=torch.bool)
    written = []
    for _ in range(max_length):
        logits, state = step(token, state)
        word = logits.argmax(-1)
        token = word.masked_fill(said_eos, eos)
        said_eos = word == eos
        written.append(token)
    return torch.stack(written, dim=1)


@task.fault(
    "C-ONE-LIST-FOR-ALL-CALLS",
    thinks="`written=[]` in the line of `def` makes an empty list for each call.",
    why="Python makes it once, when the function is defined. The second call appends to the words "
    "of the first. Make the list inside the function.",
)
def one_list_for_all_calls(step, state, bos, eos, max_length, batch_size, written=[]):  # noqa: B006
    if written and (len(written[0]) != batch_size or len(written) > 40):
        written.clear()  # another batch size would only raise an error
    written.extend(decode(step, state, bos, eos, max_length, batch_size).unbind(1))
    return torch.stack(written, dim=1)


@task.fault(
    "C-WORDS-BY-TIME",
    thinks="Stacking the words of each step gives the sentences.",
    why="It gives one row for each step. A row should be a sentence, so the steps belong on "
    "axis 1: (b, steps).",
)
def rows_are_steps(step, state, bos, eos, max_length, batch_size):
    return decode(step, state, bos, eos, max_length, batch_size).T
