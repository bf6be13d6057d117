import contextlib

import torch

from attncourse import one_stack as reference
from attncourse.checks.answer import Failure, moves_nothing, shape_of
from attncourse.checks.inputs import normal
from attncourse.checks.observe import Unusable
from attncourse.checks.task import Task

NOTHING = -1  # stands where a row stops without having said eos


def with_a_model(beam_search):
    """`beam_search` as a function of a table: scores of the next word, by sentence, time and word.

    A row of the state is (sentence, time, words so far as a number). What may differ between right
    answers is made equal: the dtype of the ids, and whether searching goes on after all have ended.
    """

    def function(scores, bos, eos, width, max_length, memory):
        b, times, words = scores.shape[:3]
        calls = 0

        def step(token, state):
            nonlocal calls
            calls += 1
            if calls > 8 + 4 * max_length * b * max(1, width):  # one row at a time is right, too
                raise Unusable(f"does not stop: {calls - 1} steps with max_length = {max_length}.")
            _look_at(token, state, words)
            sentence, time, said = state.long().unbind(1)
            token = token.long()
            said = (5 * said + token + 1) % 97
            # What was said before matters, too: so a state that is not the row's own shows.
            nudge = torch.sin(said[:, None] + 1.7 * torch.arange(words))
            logits = scores[sentence, time.clamp(max=times - 1), token] + memory * nudge
            logits = logits.contiguous()
            return logits, torch.stack([sentence, time + 1, said], 1).to(state)

        state = torch.zeros(b, 3, dtype=torch.long)
        state[:, 0] = torch.arange(b)
        written = beam_search(step, state, bos, eos, width, max_length)
        if not isinstance(written, torch.Tensor):
            return written
        if written.is_floating_point() or written.dtype == torch.bool or written.ndim != 2:
            return written
        if len(written) != b:
            return written
        written = written.long()[:, :max_length]
        ended = (written[:, -1:] == eos).any(1, keepdim=True)  # with what follows eos: eos
        rest = torch.where(ended, eos, NOTHING).expand(b, max_length - written.shape[1])
        return torch.cat([written, rest], dim=1)

    return function


def _look_at(token, state, words):
    """Raise Unusable unless a model could take them in."""
    for name, value in (("token", token), ("state", state)):
        if not isinstance(value, torch.Tensor) or value.is_floating_point():
            raise Unusable(f"hands `step` a {name} that is no tensor of whole numbers.")
    if token.ndim != 1 or state.ndim != 2 or state.shape[1] != 3:
        raise Unusable(
            f"hands `step` a token of shape {shape_of(token)} and a state of shape "
            f"{shape_of(state)}; expected (r) and (r …), one row a beginning."
        )
    if len(token) != len(state):
        raise Unusable(
            f"hands `step` {len(token)} tokens and {len(state)} rows of state; each beginning has "
            "one of both."
        )
    if len(token) and (token.min() < 0 or token.max() >= words):
        raise Unusable(f"hands `step` ids outside of 0 to {words - 1}.")


def rows_scored(beam_search):
    """How many rows `step` has scored in all."""

    def function(**inputs):
        scored = 0

        def counting(step, *arguments):
            def counted(token, state):
                nonlocal scored
                scored += len(token)
                return step(token, state)

            return beam_search(counted, *arguments)

        with_a_model(counting)(**inputs)
        return torch.tensor(scored)

    return function


def searched(scores, bos=1, eos=0, width=2, max_length=4, memory=0.0):
    sizes = {"bos": bos, "eos": eos, "width": width, "max_length": max_length}
    return {"scores": scores} | sizes | {"memory": memory}


def drawn(rng, b, t, words, size=1.5, memory=1.5, **others):
    """Scores that depend on sentence, time, the word before, and a little on all of them."""
    return searched(size * normal(rng, b, t, words, words), memory=memory, **others)


def ending(rng, b, likely, eos=0, memory=1.5, **others):
    """The same, with this score for the end of a sentence."""
    scores = drawn(rng, b, 4, 5)["scores"].index_fill(-1, torch.tensor([eos]), likely)
    return searched(scores, eos=eos, memory=memory, **others)


def crowded(rng, width):
    """Three words, many long sentences: a beam of three finds less than a wider one."""
    inputs = drawn(rng, 24, 8, 3, size=1.0, memory=0.0, width=width, max_length=8)
    inputs["scores"][..., inputs["eos"]] -= 3  # hardly any sentence ends early
    return inputs


def by_word(table, times=1, **others):
    """One sentence, whose next word depends on the last one only: shares (word, next word)."""
    scores = torch.tensor(table).clamp(min=1e-6).log()
    return searched(scores[None, None].repeat(1, times, 1, 1), **others)


def many_words(rng):
    """One sentence of 36 among 100 words: 100⁻³⁶, the product of its shares, is 0 in float32."""
    inputs = drawn(rng, 1, 1, 100, size=0.5, memory=0.0, width=2, max_length=36)
    inputs["scores"][..., inputs["eos"]] -= 20
    return inputs


# First the likelier beginning (2), after which all is uncertain; the other one (3) leads home.
LURED = [
    [1.0, 0.0, 0.0, 0.0],
    [0.02, 0.0, 0.55, 0.43],
    [0.3, 0.0, 0.36, 0.34],
    [0.96, 0.0, 0.02, 0.02],
]
# It is likely that a sentence ends at once, and still likelier that it goes on to the end.
LONG = [
    [0.2, 0.0, 0.4, 0.4],
    [0.28, 0.0, 0.72, 0.0],
    [0.03, 0.0, 0.0, 0.97],
    [0.97, 0.0, 0.03, 0.0],
]
# Who ends early may pay too much for it; a mean by length would prefer the longer one.
SHORT = [
    [0.5, 0.0, 0.5, 0.0],
    [0.5, 0.0, 0.3, 0.2],
    [0.1, 0.0, 0.2, 0.7],
    [0.9, 0.0, 0.05, 0.05],
]


def probes(rng):
    return {
        "lured": by_word(LURED),
        "lured, width 1": by_word(LURED, width=1),
        "long": by_word(LONG, width=2, max_length=5),
        "long, width 3": by_word(LONG, width=3, max_length=6),
        "short": by_word(SHORT, width=3, max_length=6),
        "short, cut": by_word(SHORT, width=2, max_length=2),
        "one sentence": drawn(rng, 1, 4, 5, width=3),
        "two sentences": drawn(rng, 2, 4, 5, width=3, max_length=5),
        "three sentences": drawn(rng, 3, 3, 6, width=2, max_length=5),
        "greedy": drawn(rng, 3, 3, 5, width=1, max_length=5),
        "wide": drawn(rng, 2, 3, 4, width=6, max_length=4),
        "wider than the vocabulary": drawn(rng, 2, 3, 4, width=9, max_length=3),
        "eos is 3": drawn(rng, 2, 4, 5, bos=0, eos=3, width=3, max_length=5),
        "eos is 3, ends early": ending(rng, 6, 1.5, bos=0, eos=3, width=3, max_length=6),
        "wider than the vocabulary, long": crowded(rng, 9),
        "one word": drawn(rng, 3, 2, 5, width=2, max_length=1),
        "square": drawn(rng, 4, 4, 4, width=4, max_length=4),
        "high scores": drawn(rng, 2, 4, 5, size=6.0, width=3, max_length=5),
        "flat scores": drawn(rng, 2, 4, 5, size=0.4, width=3, max_length=5),
        "nobody ends": ending(rng, 2, -20.0, width=3),
        "ends early": ending(rng, 6, 1.5, width=3, max_length=6),
        "ends early, wide": ending(rng, 6, 1.5, width=5, max_length=6),
        "ends somewhere": ending(rng, 8, 0.5, width=4, max_length=6),
        "ends somewhere, cut": ending(rng, 12, -0.5, width=4, max_length=3),
        "ends somewhere, cut early": ending(rng, 12, -0.5, width=3, max_length=2),
        "many words": many_words(rng),
        "much is remembered": drawn(rng, 4, 4, 5, memory=4.0, width=4, max_length=6),
        "ended and pushed out": drawn(rng, 10, 5, 5, memory=2.0, width=2, max_length=6),
    }


def small(rng):
    yield by_word(LURED, width=1, max_length=1)
    yield by_word(LURED, width=2, max_length=2)
    yield by_word(LURED)
    yield by_word(LONG, width=2, max_length=5)
    yield by_word(SHORT, width=3, max_length=6)
    for _ in range(4):
        yield drawn(rng, 1, 2, 3, width=2, max_length=3)
    for _ in range(6):
        yield drawn(rng, 2, 2, 3, width=2, max_length=3)
        yield drawn(rng, 2, 3, 4, width=3, max_length=4)


def traits(answer):
    inputs = by_word(LURED)
    one, two = answer(inputs), answer(inputs)
    long = ending(torch.Generator().manual_seed(0), 1, -20.0, width=4)
    scored = answer.observe(long, adapt=rows_scored).returned
    return {
        "differs from call to call": not torch.equal(one, two),
        "scores several beginnings": isinstance(scored, torch.Tensor) and scored.item() >= 8,
    }


task = Task(
    reference.beam_search,
    number=5,
    returns=("words",),
    difficulty=5,
    minutes=45,
    section="beam-search",
    probes=probes,
    adapt=with_a_model,
    small=small,
    traits=traits,
)


def first_word(beam_search):
    """Which word `step` is handed first, if it is the same in all rows."""

    def function(**inputs):
        first = []

        def noting(step, *arguments):
            def noted(token, state):
                first.append(token)
                return step(token, state)

            return beam_search(noted, *arguments)

        with_a_model(noting)(**inputs)
        return first[0].unique().tolist()

    return function


# Where to begin and after how many words to stop has a check each, and costs no other one: only an
# answer that fails that check is compared with a search that begins or stops as it does.
START = by_word(LURED, width=1)
STOP = by_word(LURED, width=2, max_length=2)
WORSE = by_word(LURED)
ENDS = by_word(SHORT, width=3, max_length=6)


def begins_with(answer, inputs):
    """The word that `step` is handed first, in a list; something else if that is not one word."""
    with contextlib.suppress(Failure):
        return answer.returned(inputs, adapt=first_word)  # by name: a jail keeps it then


def columns(beam_search):
    """How many words there are in a row."""

    def function(**inputs):
        found = 0

        def noting(*arguments):
            nonlocal found
            written = beam_search(*arguments)
            if isinstance(written, torch.Tensor) and written.ndim == 2:
                found = written.shape[1]
            return written

        with_a_model(noting)(**inputs)
        return found

    return function


def is_greedy(answer):
    """Whether a second beginning makes no difference: that has a check of its own."""
    return torch.equal(answer(WORSE), answer.expected(WORSE | {"width": 1}))


def ends_otherwise(answer):
    """Whether a sentence that has ended early is treated, or compared, in another way."""
    ours, theirs = as_it_goes(answer, ENDS, "")
    return not torch.equal(answer(ours)[:, : ENDS["max_length"]], answer.expected(theirs))


def is_right(answer, inputs, about=""):
    with contextlib.suppress(Failure):
        ours, theirs = as_it_goes(answer, inputs, about)
        return torch.equal(answer(ours)[:, : inputs["max_length"]], answer.expected(theirs))
    return False


def alone(inputs):
    """The same for each sentence, without the others."""
    return [inputs | {"scores": scores} for scores in inputs["scores"].split(1)]


def endless(inputs):
    """The same where nobody ends."""
    scores = inputs["scores"].clone()
    scores[..., inputs["eos"]] -= 20
    return inputs | {"scores": scores}


def goes_on(answer):
    """Whether rows are longer than they may be."""
    with contextlib.suppress(Failure):
        return answer.returned(endless(STOP), adapt=columns) > STOP["max_length"]
    return False


def is_open(answer, inputs, about):
    """Whether what the check is `about` cannot be seen beside what has a check of its own.

    Such are too long rows, a sentence's end, and what becomes of a batch where each sentence alone
    is right.
    """
    if goes_on(answer):
        return True
    if is_greedy(answer):
        return about not in ("start", "worse")
    if about in ("", "worse", "batch") and ends_otherwise(answer):
        return True
    rng = torch.Generator().manual_seed(0)
    if len(inputs["scores"]) > 1 and all(is_right(answer, each, about) for each in alone(inputs)):
        easier, others = "batch", batches(rng)
    elif is_right(answer, endless(inputs), about):
        easier, others = "ends", with_ends(rng)
    else:
        return False
    return about != easier and not all(is_right(answer, each, easier) for each, _ in others)


def is_wrong(answer, inputs):
    return not torch.equal(answer(inputs), answer.expected(inputs))


def as_it_goes(answer, inputs, about):
    """Inputs for the answer, and for the reference: from the same word on, to the same length.

    What the check is `about` stays: "start" or "length" (or "worse", a beginning that may win, or
    "ends", who has ended).
    """
    ours = theirs = inputs
    start = usual = begins_with(answer, START)
    if any(inputs[mark] != START[mark] for mark in ("bos", "eos")):
        start = begins_with(answer, inputs)
    one = isinstance(start, list) and len(start) == 1
    if about != "start" and one and usual != [START["bos"]] and is_wrong(answer, START):
        theirs = inputs | {"bos": start[0]}
    if about != "length" and answer(STOP)[0, -1] == NOTHING:
        ours = inputs | {"max_length": inputs["max_length"] + 1}
    return ours, theirs


def in_words(row):
    return "[" + " ".join("nothing" if word == NOTHING else str(word) for word in row) + "]"


def finds(answer, inputs, what, about=""):
    """Assert that the answer finds what is expected, row by row; `about`: see `as_it_goes`."""
    got, expected = answer(inputs), answer.expected(inputs)
    if not torch.equal(got, expected):
        ours, theirs = as_it_goes(answer, inputs, about)
        if ours is not theirs:
            got, expected = answer(ours)[:, : inputs["max_length"]], answer.expected(theirs)
    evidence = inputs, expected, got
    if got.shape != expected.shape or got.is_floating_point() or got.dtype == torch.bool:
        raise Failure(
            f"{what}: expected ids of shape (b, at most max_length); yours are {got.dtype} of "
            f"shape {shape_of(got)}.",
            *evidence,
            whole="result",
        )
    for row, (ours, theirs) in enumerate(zip(expected.tolist(), got.tolist(), strict=True)):
        if ours != theirs:
            raise Failure(
                f"{what}: with width = {inputs['width']}, sentence {row} should be "
                f"{in_words(ours)}; your answer found {in_words(theirs)}.",
                *evidence,
                whole="result",
                open=is_open(answer, inputs, about),
            )


@task.check(1)
def one_row_of_ids_for_each_sentence(answer, rng):
    for b, width in ((1, 1), (3, 2), (2, 3)):
        inputs = drawn(rng, b, 3, 5, width=width, max_length=3)
        written = answer(inputs)
        if written.shape != (b, 3) or written.is_floating_point() or written.dtype == torch.bool:
            raise Failure(
                f"Ids of shape (b, at most max_length), b = {b}, are expected; yours are "
                f"{written.dtype} of shape {shape_of(written)}.",
                inputs,
                whole="result",
            )


@task.check(1, "a beam of one is greedy, from BOS on")
def a_beam_of_one_is_greedy(answer, rng):
    finds(answer, by_word(LURED, width=1), "One beginning", "start")
    for _ in range(4):
        finds(answer, drawn(rng, 3, 3, 5, width=1, max_length=5), "One beginning", "start")


@task.check(2)
def a_beginning_that_looks_worse_may_win(answer, rng):
    finds(answer, WORSE, "The second word decides", "worse")
    for _ in range(4):
        finds(answer, drawn(rng, 1, 4, 5, width=3), "One sentence", "worse")


@task.check(1)
def logarithms_of_probabilities_are_added(answer, rng):
    for size in (0.4, 3.0, 6.0):
        finds(answer, drawn(rng, 1, 4, 5, size=size, width=3), "One sentence")
    shifted = drawn(rng, 1, 4, 5, width=3, memory=0.0)
    shifted["scores"] = shifted["scores"] + 4 * normal(rng, 1, 4, 5, 1)  # of no importance
    finds(answer, shifted, "Scores that are higher after some words")
    finds(answer, many_words(rng), "36 of 100 words, all about as likely")
    far = drawn(rng, 1, 4, 5, width=3, memory=0.0)
    far["scores"] = far["scores"] + 200 * normal(rng, 1, 4, 5, 1).sign()
    finds(answer, far, "Scores of about 200 after some words, of −200 after others")


@task.check(2)
def what_belongs_to_a_beginning_moves_with_it(answer, rng):
    for width in (2, 3, 5):
        for memory in (2.0, 4.0):
            inputs = drawn(rng, 6, 5, 5, memory=memory, width=width, max_length=6)
            finds(answer, inputs, "What was said long ago matters")


def with_ends(rng):
    yield by_word(LONG, width=2, max_length=5), "A sentence that ends late"
    yield ENDS, "A sentence that ends early"
    for likely in (-0.5, 0.5, 1.5, 2.5):
        yield ending(rng, 12, likely, width=4, max_length=6), "Ends are likely"
    yield ending(rng, 12, 1.5, bos=0, eos=3, memory=0.0, width=4, max_length=6), "eos is 3"
    # Who has ended is compared with who is cut off.
    yield ending(rng, 12, -0.5, memory=0.0, width=4, max_length=3), "Some end, some are cut off"


@task.check(2)
def who_has_ended_stays_as_it_is_and_competes(answer, rng):
    for inputs, what in with_ends(rng):
        finds(answer, inputs, what, "ends")


def batches(rng):
    for b, width in ((2, 2), (3, 3), (4, 4)):
        for size in (0.6, 1.5):
            yield drawn(rng, b, 4, 5, size=size, width=width, max_length=5), f"{b} sentences"


@task.check(2)
def sentences_of_a_batch_are_searched_apart(answer, rng):
    for inputs, what in batches(rng):
        finds(answer, inputs, what, "batch")


@task.check(1)
def a_beam_may_be_wider_than_the_vocabulary(answer, rng):
    for width in (4, 6, 20):
        finds(answer, drawn(rng, 2, 3, 4, width=width, max_length=4), "Four words")
    finds(answer, crowded(rng, 9), "Three words")


@task.check(1, "a row may be as long as max_length, and no longer")
def no_row_is_longer_than_max_length(answer, rng):
    if goes_on(answer):
        found = answer.returned(endless(STOP), adapt=columns)
        raise Failure(f"With max_length = 2, your rows are {found} words long.", endless(STOP))
    for max_length in (1, 2, 5):
        finds(answer, drawn(rng, 2, 3, 5, width=3, max_length=max_length), "Cut off")
    finds(answer, by_word(SHORT, width=2, max_length=2), "Cut off")
    if answer(STOP)[0, -1] == NOTHING:
        finds(answer, STOP, "Cut off", "length")


@task.check(1)
def it_changes_nothing_but_its_result(answer, rng):
    moves_nothing(answer, drawn(rng, 2, 3, 4, width=2))


# --- the reference in steps ---------------------------------------------------------------------


@task.steps
class Search:
    def breadth(width):
        return width

    def first(bos, eos):
        return bos

    def copies(state, width):
        return state.repeat_interleave(width, 0)

    def totals(b, width):
        total = torch.full((b, width), -torch.inf)
        total[:, 0] = 0.0
        return total

    def weigh(logits):
        return logits.log_softmax(-1)

    def close(log_p, ended, eos):
        closed = torch.full_like(log_p, -torch.inf)
        closed[:, eos] = 0.0
        return torch.where(ended[:, None], closed, log_p)

    def add(total, log_p):
        return total[..., None] + log_p

    def length(words):
        """Of what each beginning is divided by while it is compared; words: with the next one."""
        return torch.ones_like(words)

    def settled(every, ended):
        """Totals for the choice, of a sentence whose likeliest beginning has ended, too."""
        return every

    def best(every, width):
        total, place = every.flatten(1).topk(width)
        return total, place // every.shape[-1], place % every.shape[-1]

    def rows(beginning, width):
        return beginning + width * torch.arange(len(beginning))[:, None]

    def follow_words(written, row):
        return written[row]

    def follow_state(state, row, more):
        """The states of the beginnings; `more`: in which rows a sentence has more than before."""
        return state[row]

    def follow_ended(ended, row):
        return ended[row]

    def leave(ended, width, total):
        return ended[::width].all()

    def result(written, ended, total, width, eos):
        return written[::width]

    def __call__(self, step, state, bos, eos, width, max_length):
        b, width = len(state), self.breadth(width)
        state = self.copies(state, width)
        token = torch.full((b * width,), self.first(bos, eos))
        written = torch.zeros(b * width, 0, dtype=torch.long)
        ended = torch.zeros(b * width, dtype=torch.bool)
        total = self.totals(b, width)
        for _ in range(max_length):
            logits, state = step(token, state)
            log_p = self.close(self.weigh(logits), ended, eos).view(b, width, -1)
            words = (written != eos).sum(1).view(b, width) + 1  # an end counts as one
            length = self.length(words)
            every = self.add(total, log_p) / length[..., None]
            before = total
            total, beginning, word = self.best(self.settled(every, ended), width)
            row, token = self.rows(beginning, width).flatten(), word.flatten()
            total = total * length.flatten()[row].view(b, width)
            more = total.isfinite().sum(1) > before.isfinite().sum(1)
            state = self.follow_state(state, row, more.repeat_interleave(width))
            written = torch.cat([self.follow_words(written, row), token[:, None]], 1)
            ended = self.follow_ended(ended, row) | (token == eos)
            if self.leave(ended, width, total):
                break
        return self.result(written, ended, total, width, eos)


def never(*_):
    return False


task.spelling(leave=never)
task.spelling(leave=lambda ended, width, total: ended.all())


def _swapped(every, width):
    total, place = every.flatten(1).topk(width)
    vocab = every.shape[-1]
    return total, place % vocab % width, place // vocab


def _own_best(every, width):
    """The likeliest word of each beginning; in the first round the words of the first."""
    first = every[:, :, 0].isinf().sum(1) == width - 1
    log_p, word = every.max(-1)
    best, place = every[:, 0].topk(min(width, every.shape[-1]), dim=-1)
    if width > 1 and bool(first.all()) and best.shape[1] == width:
        return best, torch.zeros_like(place), place
    return log_p, torch.arange(width).expand(len(every), -1), word


def _best_by(cost):
    """The result by totals over a cost; of how many words, and of at most how many."""

    def result(written, ended, total, width, eos):
        words = (written != eos).sum(1).view(-1, width)
        best = (total / cost(words, written.shape[1])).argmax(1)
        return written.view(-1, width, written.shape[1])[torch.arange(len(total)), best]

    return result


_mean_by_length = _best_by(lambda words, most: (words + 1).clamp(max=most))
_mean_with_an_end = _best_by(lambda words, most: words + 1)


# --- faults: what is compared -------------------------------------------------------------------

task.fault("B-GREEDY", breadth=lambda width: 1)
task.fault("B-ALL-ALIKE", totals=lambda b, width: torch.zeros(b, width))


def _alone(every, ended):
    """A sentence is done when its likeliest beginning has ended: that one stays in front."""
    done = ended.view(every.shape[:2])[:, 0]
    every = every.clone()
    every[done, 0] = torch.where(every[done, 0].isfinite(), 1e9, -torch.inf)
    return every


task.fault("B-LOGITS-ADDED", weigh=lambda logits: logits, settled=(..., _alone))
task.fault("B-PROBABILITIES-ADDED", weigh=lambda logits: logits.softmax(-1), settled=(..., _alone))


def _narrowed(every, width):
    total, beginning, word = Search.best(every, width)
    total[:, every.shape[-1] :] = -torch.inf
    return total, beginning, word


task.fault("B-NO-WIDER-THAN-WORDS", best=_narrowed)
task.fault(
    "B-TOO-FEW-WORDS",
    best=lambda every, width: (every[0, 0].topk(width), Search.best(every, width))[1],
)
task.fault(
    "B-LAST-WORD-ONLY",
    add=lambda total, log_p: (
        torch.where(total[..., None] == -torch.inf, total[..., None], 0.0) + log_p
    ),
)
task.fault(
    "B-ONE-WORD-EACH",
    best=_own_best,
    leave=never,
    result=lambda written, ended, total, width, eos: written.view(-1, width, written.shape[1])[
        torch.arange(len(total)), total.argmax(1)
    ],
)
task.fault(
    "B-WORST",
    best=(
        lambda every, width: Search.best(torch.where(every == -torch.inf, every, -every), width),
        ...,
    ),
    weigh=(..., lambda logits: -logits.log_softmax(-1)),
)
task.fault("B-BEGINS-WITH-EOS", first=lambda bos, eos: eos)
task.fault("B-BEGINS-WITH-ZERO", first=lambda bos, eos: 0)

# --- faults: what moves -------------------------------------------------------------------------

task.fault(
    "B-STATE-NOT-MOVED",
    follow_state=(
        lambda state, row, more: state,
        lambda state, row, more: torch.where(more[:, None], state[row], state),
    ),
)
task.fault("B-WORDS-NOT-MOVED", follow_words=lambda written, row: written)
task.fault("B-ENDED-NOT-MOVED", follow_ended=lambda ended, row: ended)
task.fault("B-WORD-AND-BEGINNING-SWAPPED", best=_swapped)
task.fault("B-SENTENCES-MIXED", rows=lambda beginning, width: beginning)
task.fault(
    "B-BATCH-COMPETES",
    best=lambda every, width: (
        (found := every.flatten().topk(len(every) * width)),
        [
            each.view(len(every), width)
            for each in (
                found[0],
                found[1] // every.shape[-1],
                found[1] % every.shape[-1],
            )
        ],
    )[1],
    rows=lambda beginning, width: beginning,
)
task.fault("B-TILED", copies=lambda state, width: state.repeat(width, 1))


# --- faults: the end ----------------------------------------------------------------------------

task.fault(
    "B-GOES-ON-AFTER-EOS",
    close=lambda log_p, ended, eos: log_p,
    result=(
        ...,
        lambda written, ended, total, width, eos: written.masked_fill(
            (written == eos).cumsum(1) > 0, eos
        )[::width],
    ),
)
task.fault(
    "B-ENDED-PAYS",
    close=lambda log_p, ended, eos: torch.where(
        ended[:, None] & (torch.arange(log_p.shape[-1]) != eos), -torch.inf, log_p
    ),
)
task.fault(
    "B-ENDED-DROPPED",
    close=(
        lambda log_p, ended, eos: log_p.masked_fill(ended[:, None], -1e4),
        lambda log_p, ended, eos: log_p.masked_fill(ended[:, None], -1e9),
    ),
    result=(
        ...,
        lambda written, ended, total, width, eos: written.masked_fill(
            (written == eos).cumsum(1) > 0, eos
        )[::width],
    ),
)
task.fault("B-FIRST-SENTENCE-STOPS", leave=lambda ended, width, total: ended[::width].any())
task.fault(
    "B-FIRST-END-WINS",
    leave=lambda ended, width, total: ended.view(-1, width).any(1).all(),
    result=lambda written, ended, total, width, eos: written.view(-1, width, written.shape[1])[
        torch.arange(len(total)),
        (total + torch.where(ended.view(-1, width), 1e4, 0.0)).argmax(1),
    ],
)


_mean_with_bos = _best_by(lambda words, most: (words + 2).clamp(max=most + 1))

task.fault(
    "B-MEAN-BY-LENGTH",
    leave=(*(never,) * 4, ...),
    result=(_mean_by_length, _mean_with_bos, ..., ..., _mean_with_an_end),
    length=(..., ..., lambda words: words, lambda words: words + 1, ...),  # in every round
)
task.fault(
    "B-LENGTH-PENALTY",
    result=(
        _best_by(lambda words, most: (words + 1).sqrt()),
        _best_by(lambda words, most: ((words + 6) / 6) ** 0.6),
    ),
)


class InLists(Search):
    """A beginning is a list of words, its total and its state; each sentence has beginnings."""

    def sort_out(self, beams, width, done, eos):
        return beams[:width]

    def choose(self, beams, done):
        return beams[0][0]

    def stops(self, beams, eos):
        return False

    def __call__(self, step, state, bos, eos, width, max_length):
        beams, done = [[([], 0.0, alone)] for alone in state.split(1)], [[] for _ in state]
        for _ in range(max_length):
            going = [[] if self.stops(each, eos) else _apart(each, eos)[1] for each in beams]
            every = [beam for each in going for beam in each]
            if not every:
                break
            last = torch.tensor([(words or [bos])[-1] for words, _, _ in every])
            logits, after = step(last, torch.cat([now for *_, now in every]))
            rows = zip(logits.log_softmax(-1).tolist(), after.split(1), strict=True)
            for n, mine in enumerate(going):
                if mine:
                    longer = [
                        ([*words, w], total + log_p, now)
                        for (words, total, _), (row, now) in zip(mine, rows, strict=False)
                        for w, log_p in enumerate(row)
                    ]
                    longer = sorted(_apart(beams[n], eos)[0] + longer, key=lambda beam: -beam[1])
                    beams[n] = self.sort_out(longer, width, done[n], eos)
        chosen = [self.choose(*each) for each in zip(beams, done, strict=True)]
        return torch.tensor([words + [eos] * (max_length - len(words)) for words in chosen])


any_end = task.fault(
    "B-ANY-END-STOPS",
    leave=lambda ended, width, total: ended.view(-1, width).any(1).all(),
)


@any_end
class AnyEndStops(InLists):
    def stops(self, beams, eos):
        return any(words[-1:] == [eos] for words, _, _ in beams)


def _apart(beams, eos):
    """Those that have ended, and the others."""
    return [[beam for beam in beams if (beam[0][-1:] == [eos]) is said] for said in (True, False)]


class BestOfAll(InLists):
    """The likeliest of those put aside and those that go on."""

    def choose(self, beams, done):
        return max(done + beams, key=lambda beam: beam[1])[0]


class BestThatEnded(InLists):
    def choose(self, beams, done):
        return max(done or beams, key=lambda beam: beam[1])[0]


class PlacesFree(InLists):
    """What has ended leaves the beam; its place is filled in the next round."""

    def sort_out(self, beams, width, done, eos):
        ended, others = _apart(beams[:width], eos)
        done += ended
        return others


class PlacesTaken(InLists):
    """What has ended leaves the beam; the next best takes its place at once."""

    def sort_out(self, beams, width, done, eos):
        done += _apart(beams[:width], eos)[0]
        return _apart(beams, eos)[1][:width]


class AllThatEnd(InLists):
    """Whatever could end is put aside, in the beam or not."""

    def sort_out(self, beams, width, done, eos):
        ended, others = _apart(beams, eos)
        done += ended
        return others[:width]


class PlacesKept(InLists):
    """What has ended keeps its place to the end: the beam of the others gets narrower."""

    def sort_out(self, beams, width, done, eos):
        ended, others = _apart(beams[: width - len(done)], eos)
        done += ended
        return others


aside, kept = task.fault("B-ENDED-ASIDE"), task.fault("B-ENDED-KEEPS-ITS-PLACE")
for fault, ways in ((aside, (PlacesFree, PlacesTaken, AllThatEnd)), (kept, (PlacesKept,))):
    for way in ways:
        for choice in (BestThatEnded, BestOfAll):
            fault(type(f"{way.__name__}{choice.__name__}", (way, choice), {}))


task.fault(
    "B-ONLY-ENDED",
    leave=never,
    result=lambda written, ended, total, width, eos: written.view(-1, width, written.shape[1])[
        torch.arange(len(total)),
        (total + torch.where(ended.view(-1, width), 1e4, 0.0)).argmax(1),
    ],
)
task.fault(
    "B-LAST-OF-THE-BEAM",
    leave=never,
    result=lambda written, ended, total, width, eos: written[width - 1 :: width],
)
task.fault(
    "B-ALL-RETURNED",
    result=(
        lambda written, ended, total, width, eos: written,
        lambda written, ended, total, width, eos: written.view(-1, width, written.shape[1]),
    ),
)
task.fault("B-FIRST-ROWS", result=lambda written, ended, total, width, eos: written[: len(total)])
task.fault(
    "B-ZERO-AFTER-EOS",
    result=lambda written, ended, total, width, eos: written.masked_fill(
        (written == eos).cumsum(1) - (written == eos).long() > 0, 0
    )[::width],
)
task.fault(
    "B-EOS-CUT-OFF",
    result=lambda written, ended, total, width, eos: torch.where(
        written[::width] == eos, NOTHING, written[::width]
    ),
)


@task.fault("B-BOS-KEPT")
class BosKept(Search):
    def __call__(self, step, state, bos, eos, width, max_length):
        written = super().__call__(step, state, bos, eos, width, max_length)
        return torch.cat([torch.full_like(written[:, :1], bos), written], dim=1)


def _rounds(rounds):
    class Rounds(Search):
        def __call__(self, step, state, bos, eos, width, max_length):
            return super().__call__(step, state, bos, eos, width, rounds(max_length))

    return Rounds


for id, ways in (
    ("B-ONE-WORD-LESS", (lambda most: max(1, most - 1), lambda most: most - 1)),
    ("B-ONE-WORD-MORE", (lambda most: most + 1,)),
):
    record = task.fault(id)
    for way in ways:
        record(_rounds(way))


@task.fault("B-PRODUCT")
class Product(Search):
    def totals(b, width):
        return Search.totals(b, width).exp()

    def weigh(logits):
        return logits.softmax(-1)

    def close(p, ended, eos):
        closed = torch.zeros_like(p)
        closed[:, eos] = 1.0
        return torch.where(ended[:, None], closed, p)

    def add(total, p):
        return total[..., None] * p
