import contextlib
import itertools

import torch

from attncourse import bottleneck as reference
from attncourse.checks.answer import (
    Failure,
    describe,
    following,
    left_open,
    moves_nothing,
    shape_of,
)
from attncourse.checks.observe import Unusable
from attncourse.checks.task import Task
from attncourse.tasks import as_is
from attncourse.tasks.bottleneck import differ_from_call_to_call, ids

NOTHING = -1  # stands where a row stops without having said eos


def with_a_decoder(greedy_decode):
    """`greedy_decode` as a function of a table: which word comes next, by row, time and word.

    `state` counts the steps of each row. What may differ between right answers is made equal: the
    dtype of the ids, and whether decoding goes on after all rows have ended. With `counts_steps`
    the last column says how often `step` was called.
    """

    def function(next_word, state, bos, eos, max_length, state_as="tensor", counts_steps=False):
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
        ended = (written[:, -1:] == eos).any(1, keepdim=True)  # with what follows eos: eos
        missing = max(0, max_length - written.shape[1])
        rest = torch.where(ended, eos, NOTHING).expand(b, missing)
        steps = torch.full((b, 1 if counts_steps else 0), calls)
        return torch.cat([written, rest, steps], dim=1)

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


def by_row(*words, max_length, **others):
    """Each row says its word all the time."""
    return by_time(*([word] * max_length for word in words), max_length=max_length, **others)


def by_script(rng, b, t, **others):
    """`by_time`, at random, without any mark."""
    return by_time(*ids(rng, b, t, words=7, low=3).tolist(), **others)


def by_all(rng, b, t, words, **others):
    """The next word depends on the row, the time and the last word."""
    return decoder(ids(rng, b, t, words, words=words), **others)


ENDINGS = ([5, 2, 4, 3, 6, 5], [3, 4, 6, 2, 5, 5], [2, 6, 2, 4, 3, 3])


def probes(rng):
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
        "state with names": by_all(rng, 3, 3, 5, eos=4, max_length=3, state_as="dict"),
        "steps counted": by_time([3, 4, 5], [4, 6, 1], max_length=3) | {"counts_steps": True},
        "one sentence": by_all(rng, 1, 3, 5, eos=4, max_length=4),
    }


def small(rng):
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


def traits(answer):
    inputs = by_time([3, 4, 2, 5], [4, 2, 5, 6], max_length=4)
    return differ_from_call_to_call(answer, inputs)


def first_word(greedy_decode):
    """Which word `step` is handed first, if it is the same in all rows."""

    def function(**inputs):
        first = []

        def noting(step, *arguments):
            def noted(token, state):
                first.append(token)
                return step(token, state)

            return greedy_decode(noted, *arguments)

        with_a_decoder(noting)(**inputs)
        if not first:
            raise Unusable("never calls `step`.")
        return first[0].unique().tolist()

    return function


# Where to begin and after how many words to stop has a check each, and costs no other one: only an
# answer that fails that check is compared with a decoder that begins or stops as it does.
START = by_word(torch.Generator().manual_seed(0), 3, 7, never=2, bos=1, max_length=3)
STOP = by_time([3, 4, 5], max_length=3)
ENDS_APART = by_time([5, 2, 4, 3], [3, 4, 6, 5], max_length=4)
WHATEVER_IS_READ = by_time([1, 0, 1, 3], [4, 3, 0, 1], max_length=4)


def begins_with(answer, inputs):
    """The word that `step` is handed first, in a list; something else if that is not one word."""
    with contextlib.suppress(Failure):
        return answer.returned(inputs, adapt=first_word)  # by name: a jail keeps it then


def is_wrong(answer, inputs):
    return not torch.equal(answer(inputs), answer.expected(inputs))


def as_it_goes(answer, inputs, about):
    """Inputs for the answer, and for the reference: from the same word on, to the same length.

    What the check is `about` stays: "start" or "length".
    """
    ours = theirs = inputs
    start = usual = begins_with(answer, START)
    if any(inputs[mark] != START[mark] for mark in ("bos", "eos")):
        start = begins_with(answer, inputs)
    one = isinstance(start, list) and len(start) == 1
    if about != "start" and one and usual != [START["bos"]] and is_wrong(answer, START):
        theirs = inputs | {"bos": start[0]}
    if about != "length" and answer(STOP).tolist() in ([[3, 4, NOTHING]], [[3, 4, STOP["eos"]]]):
        ours = inputs | {"max_length": inputs["max_length"] + 1}
    return ours, theirs


def in_words(row):
    return "[" + " ".join("nothing" if word == NOTHING else str(word) for word in row) + "]"


def writes(answer, inputs, about="", until=""):
    """Assert that the answer writes what is expected, row by row; `about`: see `as_it_goes`.

    `until`: no more of each row counts than "eos", or what stands "before eos".
    """
    seen, expected = answer.observe(inputs).returned, answer.expected(inputs)
    got = None
    if not (isinstance(seen, torch.Tensor) and torch.equal(seen, expected)):
        ours, theirs = as_it_goes(answer, inputs, about)
        if ours is not theirs:
            got, expected = answer(ours)[:, : inputs["max_length"]], answer.expected(theirs)
    got = answer(inputs) if got is None else got
    evidence = inputs, expected, got
    if got.is_floating_point() or got.dtype == torch.bool:
        said = f"What is written is {got.dtype}; ids are whole numbers."
        raise Failure(said, *evidence, whole="result")
    if got.shape != expected.shape:
        b, longest = expected.shape
        raise Failure(
            f"What is written has shape {shape_of(got)}; expected (b, at most max_length), here "
            f"b = {b} and max_length = {longest}.",
            *evidence,
            whole="result",
        )
    for row, (ours, theirs) in enumerate(zip(expected.tolist(), got.tolist(), strict=True)):
        due = len(ours)
        if until and inputs["eos"] in ours:
            due = ours.index(inputs["eos"]) + (until == "eos")
        if ours[:due] != theirs[:due]:
            raise Failure(
                f"bos = {inputs['bos']}, eos = {inputs['eos']}: row {row} should be "
                f"{in_words(ours)}; yours comes to {in_words(theirs)}.",
                *evidence,
                whole="result",
            )


def says_only_eos_after_eos(answer, inputs):
    """Assert it of what the answer writes, right or wrong; of ids alone, row by row."""
    written, eos = answer(inputs), inputs["eos"]
    if written.shape != (len(inputs["next_word"]), inputs["max_length"]):
        return
    wakes = (written == eos).cumsum(1).bool() & (written != eos)
    for row in wakes.any(1).nonzero()[:1, 0].tolist():
        raise Failure(
            f"eos = {eos}: row {row} of yours is {in_words(written[row].tolist())}. After its "
            f"first {eos} it should say only {eos}.",
            inputs,
            answer.expected(inputs),
            written,
            whole="result",
        )


def comes_whole(answer):
    """Assert that the words, whichever they are, begin behind bos and are as many as are due."""
    inputs = by_time([3, 4, 5], [5, 3, 4], bos=6, max_length=3)
    written = answer(inputs)
    if written.ndim == 2 and ((written == NOTHING).any() or (written[:, 0] == 6).all()):
        raise Failure("A word is missing, or bos stands in front.", inputs)


task = Task(
    reference.greedy_decode,
    keeps=True,
    number=4,
    returns=("words",),
    difficulty=3,
    minutes=25,
    section="greedy-decoding",
    probes=probes,
    adapt=with_a_decoder,
    small=small,
    traits=traits,
)


@task.check(1, "one row of ids for each sentence as long as is due")
def one_row_of_ids_for_each_sentence(answer, rng):
    for b, max_length in ((3, 4), (1, 5), (4, 4)):
        inputs = by_word(rng, b, 6, never=2, max_length=max_length)
        written = answer(inputs)
        if written.is_floating_point() or written.dtype == torch.bool:
            said = f"What is written is {written.dtype}; ids are whole numbers."
            raise Failure(said, inputs, whole="result")
        if written.shape != (b, max_length):
            raise Failure(
                f"Nobody says eos, so {max_length} words are due in each of {b} rows. What is "
                f"written has shape {shape_of(written)}; expected ({b} {max_length}).",
                inputs,
                whole="result",
            )


@task.check(1, "decoding starts from BOS")
def decoding_starts_from_bos(answer, rng):
    for bos in (1, 5, 0, 3):  # after bos comes 4, after anything else another word
        first = torch.full((3, 6), 3)
        first[:, bos] = 4
        for inputs in (
            decoder(first, bos=bos, eos=2, max_length=2),
            by_word(rng, 2, 7, never=2, bos=bos, max_length=3),
        ):
            handed = begins_with(answer, inputs)
            if handed != [bos]:
                with left_open(handed is None):  # nothing was handed, or nothing came back
                    writes(answer, inputs, "start")


@task.check(1)
def every_word_written_is_read_next(answer, rng):
    counting = torch.tensor([[3, 3, 2, 4, 5, 6, 0], [3, 5, 2, 6, 0, 4, 3]])
    with following(lambda: writes(answer, WHATEVER_IS_READ)):
        writes(answer, decoder(counting, max_length=4))
        writes(answer, by_word(rng, 4, 8, never=2, max_length=6))
        writes(answer, by_word(rng, 4, 4, never=2, max_length=4))
    try:
        writes(answer, ENDS_APART, until="before eos")
    except Failure:  # what else goes wrong where rows end has checks of its own
        return
    writes(answer, by_word(rng, 6, 6, never=1, max_length=6), until="before eos")


@task.check(1)
def the_state_is_handed_on(answer, rng):
    with following(lambda: writes(answer, by_row(3, 5, 4, max_length=3))):
        writes(answer, by_time([3, 4, 5, 6], [6, 5, 4, 3], max_length=4))
        writes(answer, by_script(rng, 3, 5, max_length=5, start=[4, 1, 3]))
        for kind in HELD:  # a state is nobody's business but the decoder's
            writes(answer, by_script(rng, 2, 4, max_length=4, state_as=kind))


@task.check(1)
def the_likeliest_word_wins(answer, rng):
    with following(lambda: comes_whole(answer)):
        for b, words in ((3, 6), (5, 5), (2, 9), (1, 4)):
            writes(answer, by_all(rng, b, 2, words, eos=words - 1, max_length=1))
        writes(answer, WHATEVER_IS_READ)  # marks, too


@task.check(2, "after its EOS a row says only EOS")
def after_its_eos_a_row_says_only_eos(answer, rng):
    scripts = (
        by_time(*ENDINGS, max_length=6),
        by_time([5, 0, 4, 0, 3], [3, 4, 5, 6, 1], bos=2, eos=0, max_length=5),
    )
    for inputs in (*scripts, *(by_all(rng, 4, 5, 4, eos=3, max_length=7) for _ in range(3))):
        says_only_eos_after_eos(answer, inputs)
    with left_open():
        for inputs in scripts:
            writes(answer, inputs)


@task.check(1)
def no_row_ends_because_another_does(answer):
    with following(lambda: comes_whole(answer)):
        for rows in (
            ([2, 3, 3, 3], [3, 4, 5, 6], [4, 4, 2, 3]),
            ([3, 4, 5, 6], [2, 3, 3, 3], [4, 2, 3, 3]),
        ):
            writes(answer, by_time(*rows, max_length=4), until="before eos")


@task.check(1, "EOS is written, and nothing is cut")
def eos_is_written_and_nothing_is_cut(answer):
    for inputs in (
        by_time([3, 2, 4, 3], [5, 2, 6, 6], max_length=4),
        by_time([2, 3], [2, 4], [2, 5], max_length=2),
        by_time([3, 4, 2], max_length=3),
        by_time([3, 4, 2, 5], [5, 6, 2, 3], max_length=3),
        ENDS_APART,
        by_time([3, 4, 6, 5], [5, 2, 4, 3], max_length=4),
        STOP,
    ):
        writes(answer, inputs, "length", until="eos")


@task.check(1)
def no_row_is_longer_than_max_length(answer, rng):
    words = ids(rng, 3, words=7, low=3).tolist()
    rows = [by_row(*words, max_length=max_length) for max_length in (1, 2, 5)]
    for inputs in (*rows, by_time([3, 4, 2, 5], [5, 6, 2, 3], max_length=3)):
        written, longest = answer.observe(inputs).returned, inputs["max_length"]
        if isinstance(written, torch.Tensor) and written.shape[:-1] == (len(inputs["next_word"]),):
            length = written.shape[-1]
            if length > longest:
                raise Failure(f"A row has {length} words; max_length is {longest}.", inputs)
    with left_open():
        for inputs in rows:
            writes(answer, inputs)


@task.check(1)
def it_changes_nothing_but_its_result(answer, rng):
    moves_nothing(answer, by_all(rng, 3, 4, 6, max_length=5, start=[3, 1, 2]))
    moves_nothing(answer, by_time(*ENDINGS, max_length=6))


# --- the reference in steps ---------------------------------------------------------------------


@task.steps
class Decoding:
    def marks(bos, eos):
        return bos, eos

    def first(bos, batch_size):
        return torch.full((batch_size,), bos)

    def rounds(max_length):
        return range(max_length)

    def score(step, token, state):
        return step(token, state)

    def keep(new, first):
        return new

    def choose(logits, bos):
        return logits.argmax(-1)

    def close(word, finished, eos):
        return word.masked_fill(finished, eos)

    def ended(finished, token, word, eos, read):
        return finished | (token == eos)

    def write(written, token, word, finished):
        written.append(token)

    def leave(finished, token, eos):
        return finished.all()

    def feed(token, start):
        return token

    def join(written, batch_size, max_length, eos):
        return torch.stack(written, dim=1)

    def tidy(words, eos):
        return words

    def front(words, start, bos, max_length):
        return words

    def cut(words):
        return words

    def result(words):
        return words

    def __call__(self, step, state, bos, eos, max_length, batch_size):
        bos, eos = self.marks(bos, eos)
        start = token = self.first(bos, batch_size)
        finished = torch.zeros(batch_size, dtype=torch.bool)
        begin, written = state, []
        for _ in self.rounds(max_length):
            read = token
            logits, new = self.score(step, token, state)
            state = self.keep(new, begin)
            word = self.choose(logits, bos)
            token = self.close(word, finished, eos)
            finished = self.ended(finished, token, word, eos, read)
            self.write(written, token, word, finished)
            if self.leave(finished, token, eos):
                break
            token = self.feed(token, start)
        words = self.tidy(self.join(written, batch_size, max_length, eos), eos)
        return self.result(self.cut(self.front(words, start, bos, max_length)))


def never(*_):
    return False


def until_eos(words, eos):
    """Fill what follows the first eos of each row with eos."""
    return words.masked_fill((words == eos).cumsum(1) > 0, eos)


def in_a_full_table(written, batch_size, max_length, eos):
    words = torch.full((batch_size, max(max_length, len(written))), eos)
    for place, token in enumerate(written):
        words[:, place] = token
    return words


def in_a_table_of_zeros(written, batch_size, max_length, eos):
    return in_a_full_table(written, batch_size, max_length, 0)


def column_by_column(written, batch_size, max_length, eos):
    """As `torch.cat` does it, round by round: empty after no round."""
    return torch.cat(
        [torch.zeros(batch_size, 0, dtype=torch.long), *(token[:, None] for token in written)], 1
    )


def or_a_column_of_eos(written, batch_size, max_length, eos):
    return torch.stack(written or [torch.full((batch_size,), eos)], dim=1)


task.spelling(close=as_is, tidy=until_eos, leave=never)


def hides_the_rest(**steps):
    """A complete answer, since it raises an error wherever it is called: beside it nobody sees
    what else is wrong.
    """
    return lambda *given: type("Decoding", (Decoding,), steps)()(*given)


# --- faults: what `step` is handed, and what it returns -------------------------------------------

task.fault(
    "S-BOS-MISMATCH",
    section="bottleneck-breaks",
    first=lambda bos, batch_size: torch.zeros(batch_size, dtype=torch.long),
)
task.fault("C-BOS-BY-HEART", first=lambda bos, batch_size: torch.ones(batch_size, dtype=torch.long))
task.fault(
    "C-EOS-BY-HEART",
    marks=(lambda bos, eos: (bos, 2), ...),
    ended=(..., lambda finished, token, word, eos, read: finished | (token == 2)),
    close=(..., lambda word, finished, eos: word.masked_fill(finished, eos)),
    tidy=(..., as_is),
)
task.fault("C-STARTS-WITH-EOS", marks=lambda bos, eos: (eos, eos))
task.fault(
    "C-ONE-SENTENCE",
    first=(lambda bos, batch_size: torch.full((1,), bos), lambda bos, batch_size: bos),
)
task.fault(
    "C-COLUMN-OF-WORDS",
    forms=(hides_the_rest(score=lambda self, step, token, state: step(token[:, None], state)),),
)
task.fault(
    "C-STATE-FIRST",
    forms=(hides_the_rest(score=lambda self, step, token, state: step(token, state)[::-1]),),
)
task.fault(
    "C-STATE-IS-A-TENSOR",
    score=(
        lambda step, token, state: step(token, state.clone()),
        lambda step, token, state: step(token[: state.shape[0]], state),
    ),
)
task.fault("C-STATE-NOT-KEPT", keep=lambda new, first: first)
task.fault("C-NOT-FED-BACK", feed=lambda token, start: start)

# --- faults: the likeliest word -------------------------------------------------------------------


def drawn(logits, bos):
    return torch.multinomial(logits.softmax(-1), 1)[:, 0]


def without_bos(logits, bos):
    return logits.index_fill(-1, torch.tensor([bos]), -torch.inf).argmax(-1)


task.fault(
    "C-ARGMAX-OVER-ROWS",
    choose=(
        lambda logits, bos: logits.argmax(0),
        lambda logits, bos: logits.argmax(0)[: len(logits)],
    ),
)
task.fault(
    "C-ARGMAX-OF-ALL",
    choose=(
        lambda logits, bos: (logits.argmax() % logits.shape[-1]).expand(len(logits)),
        lambda logits, bos: logits.argmax().expand(len(logits)),
    ),
)
task.fault("C-FIRST-ROW", choose=lambda logits, bos: logits[0].argmax().expand(len(logits)))
task.fault(
    "C-LAST-POSITION", choose=lambda logits, bos: logits[:, -1].argmax(-1).expand(len(logits))
)
task.fault(
    "C-VALUE-NOT-PLACE",
    choose=(
        lambda logits, bos: logits.amax(-1),
        lambda logits, bos: logits.amax(-1).long(),
        lambda logits, bos: logits.softmax(-1).amax(-1),
        lambda logits, bos: logits.softmax(-1).amax(-1).long(),
    ),
)
task.fault("C-SMALLEST", choose=lambda logits, bos: logits.argmin(-1))
task.fault("C-SAMPLES", choose=drawn)
task.fault("C-LARGEST-SIZE", choose=lambda logits, bos: logits.abs().argmax(-1))
task.fault("C-MARKS-FORBIDDEN", choose=without_bos)


class NeverEmpty(Decoding):
    def __call__(self, step, state, bos, eos, max_length, batch_size):
        self.eos, self.begun = eos, False
        return super().__call__(step, state, bos, eos, max_length, batch_size)

    def score(self, step, token, state):
        logits, state = step(token, state)
        if not self.begun:
            self.begun, logits = True, logits.index_fill(-1, torch.tensor([self.eos]), -torch.inf)
        return logits, state


task.fault("C-NEVER-EMPTY", forms=(NeverEmpty,))

# --- faults: rows that have ended -----------------------------------------------------------------

task.fault(
    "C-GOES-ON-AFTER-EOS",
    close=as_is,
    tidy=as_is,
    leave=(never, ..., lambda finished, token, eos: (token == eos).all()),
)
task.fault(
    "C-RAW-WORD-WRITTEN",
    write=lambda written, token, word, finished: written.append(word),
    tidy=as_is,
    close=lambda word, finished, eos: word.masked_fill(finished, eos),
)
task.fault(
    "C-FILLS-WITH-PAD",
    close=(*[lambda word, finished, eos: word.masked_fill(finished, 0)] * 2, ...),
    tidy=as_is,
    leave=(never, ..., lambda finished, token, eos: finished.all()),
    join=(..., ..., in_a_table_of_zeros),
)
task.fault(
    "C-EOS-OVERWRITTEN",
    close=lambda word, finished, eos: word.masked_fill(finished | (word == eos), 0),
    ended=lambda finished, token, word, eos, read: finished | (word == eos),
    tidy=as_is,
    leave=(never, ...),
)
task.fault(
    "C-FORGETS-FINISHED",
    ended=lambda finished, token, word, eos, read: word == eos,
    close=lambda word, finished, eos: word.masked_fill(finished, eos),
    tidy=as_is,
    leave=(never, ...),
)


task.fault(
    "C-ENDS-ONE-LATE",
    ended=lambda finished, token, word, eos, read: finished | (read == eos),
    close=lambda word, finished, eos: word.masked_fill(finished, eos),
    tidy=as_is,
)


def drops_rows(can_be_cut):
    """A decoder whose batch shrinks; it also cuts the states of which that is true."""

    def decode(step, state, bos, eos, max_length, batch_size):
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

    return decode


task.fault(
    "C-DROPS-ROWS",
    forms=(
        drops_rows(lambda state: True),
        drops_rows(lambda state: not isinstance(state, tuple)),
        drops_rows(lambda state: False),
    ),
)

# --- faults: when the loop ends -------------------------------------------------------------------

task.fault(
    "C-STOPS-WITH-ANY",
    leave=(
        lambda finished, token, eos: (token == eos).any(),
        ...,
        lambda finished, token, eos: (token == eos).any(),
    ),
    ended=(..., lambda finished, token, word, eos, read: finished | (token == eos).any(), ...),
    join=(..., ..., in_a_full_table),
    close=lambda word, finished, eos: word.masked_fill(finished, eos),
)
task.fault(
    "C-STOPS-WITH-ROW-0",
    leave=lambda finished, token, eos: token[0] == eos,
    close=(as_is, ...),
    tidy=(as_is, ...),
    join=(..., ..., in_a_full_table),
)
task.fault(
    "C-ONE-STEP-SHORT",
    rounds=lambda max_length: range(max_length - 1),
    join=(..., column_by_column, or_a_column_of_eos, in_a_full_table),
)


def ends_with_eos(written, batch_size, max_length, eos):
    words = torch.stack(written, dim=1)
    return words if len(written) < max_length else words.index_fill(1, torch.tensor([-1]), eos)


task.fault("C-LIMIT-AND-EOS", join=ends_with_eos)
task.fault("C-ONE-STEP-LONG", rounds=lambda max_length: range(max_length + 1))
task.fault(
    "C-NO-LIMIT",
    rounds=lambda max_length: itertools.count(),
    leave=lambda finished, token, eos: finished.all(),
)
task.fault(
    "C-EOS-NOT-WRITTEN",
    write=lambda written, token, word, finished: finished.all() or written.append(token),
    join=(column_by_column, lambda written, *_: torch.stack(written, 1)),
)

# --- faults: what is returned ---------------------------------------------------------------------


def after_start(words, start, bos, max_length):
    return torch.cat([start.expand(len(words))[:, None], words], dim=1)


def with_start_cut(words, start, bos, max_length):
    return after_start(words, start, bos, max_length)[:, :max_length]


@task.fault("C-ONE-LIST-FOR-ALL-CALLS")
class OneList(Decoding):
    def __init__(self):
        self.written = []

    def join(self, written, *_):
        self.written += written
        return torch.stack(self.written, dim=1)


@task.faults["C-ONE-LIST-FOR-ALL-CALLS"].forms.append
class OneListEach(OneList):
    def join(self, written, *sizes):
        if self.written and (len(self.written[0]) != len(written[0]) or len(self.written) > 40):
            self.written = []  # another batch size would only raise an error
        return super().join(written, *sizes)


task.fault("S-STRIP-EOS", section="bottleneck-breaks", cut=lambda words: words[:, :-1])
task.fault("C-CUTS-THE-FIRST", section="bottleneck-breaks", cut=lambda words: words[:, 1:])
task.fault("C-KEEPS-BOS", front=after_start)
task.fault(
    "C-BOS-COUNTS",
    front=(
        with_start_cut,
        after_start,
    ),
    rounds=(..., lambda max_length: range(max_length - 1)),
    join=(..., column_by_column),
)
task.fault("C-WORDS-BY-TIME", result=lambda words: words.T)
task.fault("C-IDS-AS-FLOATS", section="ids-to-vectors", result=lambda words: words.float())
task.fault("C-LISTS-OF-IDS", forms=(hides_the_rest(result=lambda self, words: words.tolist()),))
task.fault(
    "C-ONE-LONG-ROW",
    join=(
        lambda written, *_: torch.cat(written),
        lambda written, *_: torch.stack(written).reshape(len(written[0]), -1),
    ),
    tidy=as_is,
    close=lambda word, finished, eos: word.masked_fill(finished, eos),
)
task.fault(
    "C-NOT-STACKED",
    forms=(
        hides_the_rest(join=lambda self, written, *_: written, tidy=lambda self, words, eos: words),
    ),
)
