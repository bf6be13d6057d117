import contextlib

import torch
from torch import nn

from attncourse import cross_attention as reference
from attncourse.checks.answer import (
    Failure,
    compare,
    following,
    moves_nothing,
    of_the_whole,
    shape_of,
)
from attncourse.checks.inputs import normal
from attncourse.checks.observe import FUSED_ATTENTION, Unusable
from attncourse.checks.task import Task
from attncourse.tasks import as_is

CUT_OFF = "ended after"
NOTHING = -1  # stands where a row stops without having said eos
VOCABULARY = 11  # words of the target; a prime, so that mistakes do not meet again by chance


class Speaker(nn.Module):
    """A model that has made up its mind: what it wants to say for each source sentence.

    It scores each position from the source and from the words up to there, as a Transformer does.
    If those words are not what it wanted to say, it says something else. `wants` goes on behind
    `eos`, since a model does not stop by itself.
    """

    def __init__(self, source, wants, bos, scores, patience):
        super().__init__()
        self.scores = nn.Parameter(scores)  # (said, word); its diagonal is the largest of each row
        self.idle = nn.Sequential(nn.Dropout(0.0))  # something inside that has a mode, too
        known = source.clone()

        def forward(source, words):
            nonlocal patience
            patience -= 1
            if patience < 0:
                raise Unusable("asks the model far more often than there are words to write")
            for name, tensor, axes in (("source", source, "(b n)"), ("words", words, "(b t)")):
                if not isinstance(tensor, torch.Tensor):
                    raise TypeError(f"{name} must be a torch.Tensor; got {type(tensor).__name__}")
                if tensor.ndim != 2:
                    raise ValueError(f"{name} must have axes {axes}; got shape {shape_of(tensor)}")
                if tensor.is_floating_point() or tensor.dtype == torch.bool:
                    raise TypeError(f"{name} must hold ids, whole numbers; got {tensor.dtype}")
            if len(source) != len(words):
                raise ValueError(
                    f"source {shape_of(source)} and words {shape_of(words)} differ in b"
                )
            if source.shape[1] != known.shape[1]:
                raise ValueError(
                    f"source has {source.shape[1]} columns; the sentences have {known.shape[1]}"
                )
            if words.numel() and not 0 <= words.min() <= words.max() < len(self.scores):
                raise ValueError(f"words must be ids below {len(self.scores)}; some are not")
            strange = (source[:, None] - known[None]).abs().sum(-1)  # b rows
            row = strange.argmin(-1)
            t = words.shape[1]
            wanted = wants[row][:, torch.arange(t) % wants.shape[1]]  # b t
            before = torch.cat([torch.full_like(words[:, :1], bos), wanted[:, : t - 1]], 1)
            surprise = ((words - before) ** 2 * torch.arange(1, t + 1)).cumsum(1)
            said = (wanted + surprise + strange.amin(-1)[:, None]) % len(self.scores)
            return self.scores[said]  # b t word

        self.forward = forward  # what it wants is no attribute: an answer has to ask


def with_a_model(answer, missing=None):
    """The answer as a function of plain inputs: it is given a `Speaker`.

    A shorter result, in which every row has ended, is filled up with `eos` to `max_length`; others
    with `missing`, if it is given.
    In what state the model was left is looked at where its mode is given (`training`), and what
    it learns where `learns` is: one slip costs one check.
    """

    def function(*, source, model_wants, bos, eos, max_length, training=None, **rest):
        patience = 4 * len(source) * (max_length + 1)
        model = Speaker(source, model_wants, bos, rest.pop("model.scores"), patience)
        model.train(bool(training))
        before = model.scores.detach().clone()
        returned = answer(model, source, bos, eos, max_length)
        if training is not None and any(part.training != training for part in model.modules()):
            mode = "evaluation" if training else "training"
            raise Unusable(f"leaves the model in {mode} mode; the caller had it in the other")
        if not rest.pop("learns", False):
            return filled_up(returned, len(source), eos, max_length, missing)
        if not model.scores.requires_grad or model.scores.grad is not None:
            raise Unusable("changes what the model learns: its parameters or their gradients")
        if not torch.equal(model.scores, before):
            raise Unusable("changes the model's parameters")
        if not torch.is_grad_enabled():
            raise Unusable("leaves gradients switched off for everybody after it")
        return filled_up(returned, len(source), eos, max_length, missing)

    return function


def unfinished(answer):
    """`with_a_model`, where a row may stop before its end: that has a check of its own."""
    return with_a_model(answer, NOTHING)


def filled_up(words, b, eos, max_length, nothing=None):
    if not isinstance(words, torch.Tensor) or words.ndim != 2 or len(words) != b:
        return words
    if words.dtype == torch.bool:
        return words
    words = words if words.is_floating_point() else words.long()
    missing = max_length - words.shape[1]
    if missing > 0:
        is_open = ~(words == eos).any(1, keepdim=True)
        open_rows = is_open[:, 0].nonzero().flatten().tolist()
        if open_rows and nothing is None:
            raise Unusable(
                f"{CUT_OFF} {words.shape[1]} columns, of {max_length} that `max_length` allows, "
                f"although row {open_rows[0]} has no `eos` yet"
            )
        ends = torch.where(is_open, nothing or 0, eos).expand(-1, missing)
        words = torch.cat([words, ends.to(words)], 1)
    return words


def speech(rng, ends, n=4, bos=1, eos=2, max_length=7, dtype=torch.float32, **others):
    """Sentences of which row i ends with its word number `ends[i]` (from 1; 0 = never).

    Behind its end, a row goes on with other words, and with a second `eos`.
    """
    b, length = len(ends), max_length + 3
    other = torch.tensor([word for word in range(VOCABULARY) if word not in (bos, eos)])
    pick = torch.randint(len(other), (b, length), generator=rng, device="cpu")
    wants = other[pick]
    for row, end in enumerate(ends):
        if end:
            wants[row, end - 1] = eos
            wants[row, end + 1] = eos
    source = torch.randint(3, 9, (b, n), generator=rng, device="cpu")
    source[:, 0] = 10 * (1 + torch.randperm(b, generator=rng, device="cpu"))  # no two alike
    scores = normal(rng, VOCABULARY, VOCABULARY, dtype=dtype)
    best = scores.amax(1) + 0.5
    scores[range(VOCABULARY), range(VOCABULARY)] = best
    return {
        "source": source,
        "model_wants": wants,
        "bos": bos,
        "eos": eos,
        "max_length": max_length,
        "model.scores": scores,
        **others,
    }


def scored(inputs, change):
    """The same model with other numbers as scores, in the same order."""
    return dict(inputs, **{"model.scores": change(inputs["model.scores"])})


def translate_probes(rng):
    return {
        "two sentences": speech(rng, (3, 6)),
        "the long one first": speech(rng, (6, 2, 4)),
        "one sentence": speech(rng, (5,)),
        "same ends": speech(rng, (4, 4)),
        "at once": speech(rng, (1, 4)),
        "at the limit": speech(rng, (7, 3)),
        "all at once": speech(rng, (1, 1)),
        "never": speech(rng, (0, 3, 0)),
        "one word": speech(rng, (0, 1), max_length=1),
        "other marks": speech(rng, (3, 5), bos=9, eos=4),
        "eos is zero": speech(rng, (2, 0, 4), bos=3, eos=0),
        "training": speech(rng, (3, 2), training=True, learns=True),
        "evaluation": speech(rng, (2, 3), training=False, learns=True),
        "negative scores": scored(speech(rng, (3, 6)), lambda s: s - 100),
        "large scores": scored(speech(rng, (2, 4)), lambda s: s * 1e5),
        "close scores": scored(speech(rng, (2, 4), dtype=torch.float64), lambda s: 1 + 1e-9 * s),
    }


def watched(translate):
    """An `adapt` that says what the model gets to see of the words that were written."""

    def look(**inputs):
        model = Speaker(inputs["source"], inputs["model_wants"], 1, inputs["model.scores"], 99)
        longest, exchanged = [], []

        def note(module, given, named):
            words = named.get("words", given[-1] if given else None)
            longest.append(words.shape[1])
            exchanged.append(torch.equal(words, inputs["source"]))

        model.register_forward_pre_hook(note, with_kwargs=True)
        with contextlib.suppress(Exception):
            translate(model, inputs["source"], 1, 2, 7)
        return {
            "hands nothing back": len(longest) > 1 == max(longest),
            "takes the source for the words": any(exchanged),
            "asks too rarely": 1 < len(longest) < 7,
        }

    return look


def translate_traits(answer):
    seen = answer.observe(speech(torch.Generator().manual_seed(0), (0, 5)), adapt=watched)
    return seen.returned if isinstance(seen.returned, dict) else {}


def translate_small(rng):
    for ends in ((0,), (1,), (2,), (3,), (2, 1), (1, 3), (3, 2), (2, 4)):
        yield speech(rng, ends, n=2, max_length=max(ends) or 1)
        yield speech(rng, ends, n=2, max_length=max(ends) + 1)
    yield speech(rng, (2,), n=2, bos=9, eos=4, max_length=3)
    yield speech(rng, (2, 1), n=2, bos=3, eos=0, max_length=3)
    for training in (True, False):
        yield speech(rng, (2,), n=2, max_length=3, training=training)
    yield speech(rng, (2,), n=2, max_length=3, learns=True)
    yield scored(speech(rng, (2,), n=2, max_length=3), lambda scores: scores - 100)
    yield scored(speech(rng, (2,), n=2, max_length=3), lambda scores: scores * 1e5)
    close = speech(rng, (2,), n=2, max_length=3, dtype=torch.float64)
    yield scored(close, lambda scores: 1 + 1e-9 * scores)


def up_to_end(row, eos):
    """A row up to its first `eos`, or to where it stops."""
    row = row[: row.index(NOTHING)] if NOTHING in row else row
    return row[: row.index(eos) + 1] if eos in row else row


STOPS = speech(torch.Generator().manual_seed(0), (2, 6))


def written(answer, inputs):
    """What the answer writes; of one that stops too early where it has a check, up to there."""
    try:
        return answer(inputs)
    except Failure as failure:
        stops = answer.observe(STOPS).error
        if CUT_OFF not in str(failure) or CUT_OFF not in (stops or ""):
            raise
        words = answer(inputs, adapt=unfinished)
        if (words == NOTHING).all():
            raise
        return words


def in_rows(words, inputs):
    """The words, if they are one row for each sentence."""
    b = len(inputs["source"])
    if words.ndim != 2 or len(words) != b:
        raise Failure(
            f"The translation has shape {shape_of(words)}; expected (b t) with b = {b}.", inputs
        )
    return words


def same_words(answer, inputs, special="", behind=False, entirely=False):
    """Assert that the answer writes what the reference writes, row by row.

    `special` is said with a failure: what the numbers do not show. What stands behind the first
    `eos` of a row counts only with `behind`, and that a row stops too early only with `entirely`,
    since they have checks of their own.
    """
    got = answer(inputs) if entirely else written(answer, inputs)
    expected, eos = answer.expected(inputs), inputs["eos"]
    if got.shape != expected.shape:
        with of_the_whole():
            compare("the translation", got.long(), expected, inputs)
    for row, (ours, theirs) in enumerate(zip(expected.tolist(), got.tolist(), strict=True)):
        if not behind:
            ours = up_to_end(ours, eos)
            theirs = theirs[: len(ours)]
        if NOTHING in theirs:
            theirs = theirs[: theirs.index(NOTHING)]
            ours = ours[: len(theirs)]
        if ours != theirs:
            place = next(
                i for i, two in enumerate(zip(ours, theirs, strict=True)) if len({*two}) > 1
            )
            raise Failure(
                f"Row {row}, word {place}, both counted from 0: your answer writes "
                f"{theirs[place]}; expected {ours[place]} (bos is {inputs['bos']}, eos is {eos})."
                f"{special}",
                inputs,
                expected,
                got,
                whole="result",
            )


task = Task(
    reference.translate,
    number=3,
    returns=("words",),
    difficulty=2,
    minutes=25,
    section="writing-greedily",
    probes=translate_probes,
    adapt=with_a_model,
    small=translate_small,
    traits=translate_traits,
    forbidden=FUSED_ATTENTION,
)


@task.check(1)
def it_returns_ids_one_row_for_each_sentence(answer, rng):
    inputs = speech(rng, (3, 6, 5))
    words = written(answer, inputs)
    if words.is_floating_point() or words.dtype == torch.bool:
        raise Failure(f"The words have dtype {words.dtype}; ids are whole numbers.", inputs)
    in_rows(words, inputs)
    inputs = speech(rng, (3,))
    in_rows(answer(inputs, adapt=unfinished), inputs)


def usual_words(answer, rng):
    same_words(answer, speech(rng, (6,), n=3))
    same_words(answer, speech(rng, (5,), n=5))
    same_words(answer, speech(rng, (4, 4, 4)))
    same_words(answer, speech(rng, (9,), n=2, max_length=12))


@task.check(2)
def each_word_is_the_likeliest_after_those_before(answer, rng):
    usual_words(answer, rng)


def after_the_usual(answer):
    """What goes wrong inside is left open where ordinary words do, too."""
    return following(lambda: usual_words(answer, torch.Generator().manual_seed(0)))


@task.check(1, "after its first EOS a row says nothing else")
def after_its_first_eos_a_row_says_nothing_else(answer, rng):
    for ends in ((2, 6), (6, 2, 4), (1, 5)):
        same_words(answer, speech(rng, ends), behind=True)


@task.check(1)
def no_row_stops_before_it_has_ended(answer, rng):
    same_words(answer, speech(rng, (1, 6)), entirely=True)
    same_words(answer, speech(rng, (5, 1, 3)), entirely=True)
    same_words(answer, speech(rng, (1, 1)), entirely=True)
    answer(STOPS)


@task.check(1)
def it_stops_at_the_largest_length(answer, rng):
    inputs = speech(rng, (3, 6, 0))
    length = written(answer, inputs).shape[1]
    if length > 7:
        raise Failure(
            f"The translation has {length} words; max_length is 7, and bos is not part of a "
            "translation.",
            inputs,
        )
    with after_the_usual(answer):
        for max_length in (1, 2, 5):
            same_words(answer, speech(rng, (0, 2, 0), max_length=max_length))
        same_words(answer, speech(rng, (5, 4), max_length=5))
        same_words(answer, speech(rng, (6, 4), max_length=5))
        same_words(answer, speech(rng, (0, 33), max_length=40))


@task.check(1)
def begin_and_end_marks_are_those_of_the_caller(answer, rng):
    with after_the_usual(answer):
        same_words(answer, speech(rng, (3, 5), bos=9, eos=4))
        same_words(answer, speech(rng, (4, 2, 5), bos=3, eos=0))
        same_words(answer, speech(rng, (4, 2, 5), bos=0, eos=10))


@task.check(1)
def a_batch_is_translated_like_its_sentences_one_by_one(answer, rng):
    inputs = speech(rng, (4, 2, 5, 6))
    together = in_rows(written(answer, inputs), inputs)
    for row, words in enumerate(together.tolist()):
        alone = dict(inputs, source=inputs["source"][[row]])
        alone["model_wants"] = inputs["model_wants"][[row]]
        words = up_to_end(words, inputs["eos"])
        (single,) = in_rows(written(answer, alone), alone).tolist()
        if words != single[: len(words)]:
            raise Failure(
                f"Row {row} of a batch is {words}; the same sentence alone gives {single}.", inputs
            )
    with after_the_usual(answer):
        same_words(answer, speech(rng, (4, 2, 1, 3), n=4, max_length=5))
        same_words(answer, speech(rng, (2,) * 7))
        same_words(answer, speech(rng, (3, 2), n=1))


@task.check(1)
def scores_may_have_any_size(answer, rng):
    def forbid(scores):
        """A model may rule words out."""
        return scores.masked_fill(scores < scores.median(-1, keepdim=True).values, -torch.inf)

    for change, special in (
        (lambda scores: scores - 100, "all scores are about −100"),
        (lambda scores: scores * 1e5, "scores are as large as 100,000"),
        (lambda scores: scores - 1e4, "all scores are about −10,000"),
        (forbid, "some scores are −inf"),
        (lambda scores: forbid(scores - 100), "scores are about −100, and some are −inf"),
    ):
        with after_the_usual(answer):
            same_words(answer, scored(speech(rng, (3, 6)), change), f" Here {special}.")
    close = scored(speech(rng, (3, 6), dtype=torch.float64), lambda scores: 1 + 1e-9 * scores)
    with after_the_usual(answer):
        same_words(answer, close, " Here scores are float64 and differ in the ninth digit.")


@task.check(1)
def the_model_is_left_in_its_mode(answer, rng):
    for training in (True, False):
        same_words(answer, speech(rng, (3, 2), training=training))


@task.check(1)
def it_changes_nothing_but_its_result(answer, rng):
    inputs, endless = speech(rng, (3, 6)), speech(rng, (0, 0), n=7)
    stops = CUT_OFF in (answer.observe(inputs).error or "")
    with following(lambda: answer(endless)):
        moves_nothing(answer, endless if stops else inputs)
        inputs = speech(rng, (0, 0, 0) if stops else (3, 6, 5), n=7 if stops else 5, learns=True)
        inputs["source"] = inputs["source"].T.contiguous().T  # not contiguous
        moves_nothing(answer, inputs)
        same_words(answer, inputs)


# --- the reference in steps ---------------------------------------------------------------------


@task.steps
class Writer:
    def prepare(model):
        pass

    def marks(bos, eos):
        return bos, eos

    def start(source, bos):
        return torch.full((len(source), 1), bos)

    def rounds(max_length, source):
        return max_length

    def score(model, source, words):
        return model(source, words)

    def last(logits):
        return logits[:, -1]

    def choose(logits, words, eos):
        return logits.argmax(-1)

    def silence(word, finished, eos):
        return word.masked_fill(finished, eos)

    def ended(finished, word, eos, words):
        return finished | (word == eos)

    def append(words, word, finished):
        return torch.cat([words, word[:, None]], 1)

    def stop(word, finished, eos):
        return finished.all()

    def leave(model, source, eos):
        pass

    def cut(words, source, max_length):
        return words[:, 1:]

    def tidy(words, eos):
        return words

    def result(words, eos):
        return words

    def __call__(self, model, source, bos, eos, max_length):
        self.prepare(model)
        bos, eos = self.marks(bos, eos)
        words, finished = self.start(source, bos), torch.zeros(len(source), dtype=torch.bool)
        for _ in range(self.rounds(max_length, source)):
            logits = self.last(self.score(model, source, words))
            word = self.silence(self.choose(logits, words, eos), finished, eos)
            finished = self.ended(finished, word, eos, words)
            words = self.append(words, word, finished)
            if self.stop(word, finished, eos):
                break
        self.leave(model, source, eos)
        return self.result(self.tidy(self.cut(words, source, max_length), eos), eos)


def never(*_):
    return False


def all_finished(word, finished, eos):
    return finished.all()


task.spelling(stop=never)

# --- faults: what stands at the start -----------------------------------------------------------

task.fault(
    "S-BOS-MISMATCH",
    marks=(lambda bos, eos: (0, eos), lambda bos, eos: (eos, eos), lambda bos, eos: (1, eos)),
)
task.fault("C-EOS-FIXED", marks=lambda bos, eos: (bos, 2))
task.fault("C-NO-START", start=lambda source, bos: source.new_empty(len(source), 0), cut=as_is)
task.fault(
    "C-CONTINUES-SOURCE",
    start=(as_is, lambda source, bos: nn.functional.pad(source, (0, 1), value=bos)),
    cut=(
        lambda words, source, max_length: words[:, source.shape[1] :],
        lambda words, source, max_length: words[:, source.shape[1] + 1 :],
    ),
)
task.fault(
    "C-BOS-KEPT",
    cut=(as_is, lambda words, source, max_length: words[:, :max_length]),
)

# --- faults: ends -------------------------------------------------------------------------------


def without_last_end(words, eos):
    return words[:, : int((words != eos).sum(1).max())]


task.fault("S-STRIP-EOS", tidy=lambda words, eos: words[:, :-1])
task.fault(
    "C-END-NOT-WRITTEN",
    append=(
        lambda words, word, finished: (
            words if finished.all() else torch.cat([words, word[:, None]], 1)
        ),
        ...,
    ),
    stop=(all_finished, ...),
    tidy=(..., without_last_end),
)
task.fault("C-TALKS-ON", silence=as_is, stop=all_finished)
task.fault("C-NO-END", silence=as_is, stop=never)
task.fault("C-ENDED-NOW", silence=as_is, stop=lambda word, finished, eos: (word == eos).all())
task.fault(
    "C-FIRST-END-STOPS",
    silence=(
        ...,
        ...,
        as_is,
        as_is,
        lambda word, finished, eos: torch.full_like(word, eos) if finished.any() else word,
    ),
    stop=(
        lambda word, finished, eos: finished.any(),
        lambda word, finished, eos: finished[0],
        lambda word, finished, eos: finished.any(),
        lambda word, finished, eos: word[0] == eos,
        ...,
    ),
)
task.fault("C-PAD-BEHIND", silence=lambda word, finished, eos: word.masked_fill(finished, 0))
task.fault(
    "C-END-TOO-LATE",
    ended=lambda finished, word, eos, words: finished | (words[:, 1:] == eos).any(1),
)
task.fault(
    "C-END-FORGOTTEN",
    silence=lambda word, finished, eos: word.masked_fill(finished, eos),
    ended=lambda finished, word, eos, words: (word == eos) & ~finished,
    stop=(all_finished, never),
)
task.fault("C-NO-LIMIT", rounds=lambda max_length, source: 10**9)
task.fault(
    "C-LIMIT-COUNTS-BOS",
    rounds=(
        lambda max_length, source: max_length - 1,
        lambda max_length, source: max(1, max_length - 1),
    ),
)
task.fault("C-LIMIT-ONE-MORE", rounds=lambda max_length, source: max_length + 1)
task.fault(
    "C-LIMIT-AND-EOS",
    tidy=lambda words, eos: nn.functional.pad(words[:, :-1], (0, 1), value=eos),
)
task.fault(
    "C-LENGTH-OF-SOURCE",
    rounds=(
        lambda max_length, source: min(max_length, source.shape[1]),
        lambda max_length, source: source.shape[1],
    ),
)

# --- faults: what the model is asked ------------------------------------------------------------

task.fault("C-FIRST-POSITION", last=lambda logits: logits[:, 0])
task.fault("C-POSITION-BEFORE", last=lambda logits: logits[:, max(-2, -logits.shape[1])])
task.fault(
    "C-ALL-POSITIONS",
    last=as_is,
    silence=as_is,
    ended=as_is,
    append=lambda words, word, finished: torch.cat([words, word], 1),
    cut=(..., as_is),
)
task.fault("C-LAST-WORD-ONLY", score=lambda model, source, words: model(source, words[:, -1:]))
task.fault("C-NOTHING-FED-BACK", score=lambda model, source, words: model(source, words[:, :1]))
task.fault(
    "C-BEGIN-DROPPED",
    score=lambda model, source, words: model(source, words[:, 1:] if words.shape[1] > 1 else words),
)
task.fault("C-EXCHANGED", score=lambda model, source, words: model(words, source))
task.fault(
    "C-WORDS-TURNED",
    append=lambda words, word, finished: torch.cat([word[:, None], words], 1),
    cut=(lambda words, *_: words[:, :-1].flip(1), lambda words, *_: words[:, :-1], ...),
)


@task.fault("C-ONE-PASS")
class OnePass(Writer):
    def __call__(self, model, source, bos, eos, max_length):
        bos, eos = self.marks(bos, eos)
        words, finished = self.start(source, bos), torch.zeros(len(source), dtype=torch.bool)
        for word in model(source, words.expand(-1, max_length)).argmax(-1).unbind(1):
            word = self.silence(word, finished, eos)
            finished = self.ended(finished, word, eos, words)
            words = self.append(words, word, finished)
        return self.result(self.tidy(self.cut(words, source, max_length), eos), eos)


def one_sentence_as_list(model, source, bos, eos, max_length):
    words = [bos]
    for _ in range(max_length):
        word = model(source, torch.tensor([words]))[0, -1].argmax().item()
        if word == eos:
            break
        words.append(word)
    return words[1:]


def first_sentence_for_all(model, source, bos, eos, max_length):
    words = one_sentence_as_row(model, source[:1], bos, eos, max_length)
    return words.repeat(len(source), 1)


@task.fault(
    "C-ONE-SENTENCE",
    forms=(one_sentence_as_list, first_sentence_for_all),
    silence=as_is,
    stop=lambda word, finished, eos: word.item() == eos,
)
def one_sentence_as_row(model, source, bos, eos, max_length):
    words = [bos]
    for _ in range(max_length):
        words.append(int(model(source, torch.tensor([words]))[0, -1].argmax()))
        if words[-1] == eos:
            break
    return torch.tensor([words[1:]])


# --- faults: which word -------------------------------------------------------------------------


def best(change):
    """The likeliest word by other scores."""
    return lambda logits, words, eos: change(logits).argmax(-1)


def not_twice(logits, words, eos):
    said = nn.functional.one_hot(words[:, 1:], logits.shape[-1]).sum(1)
    said[:, eos] = 0
    return logits.masked_fill(said > 0, -torch.inf).argmax(-1)


task.fault(
    "C-SAMPLES",
    choose=(
        lambda logits, words, eos: torch.multinomial(logits.softmax(-1), 1)[:, 0],
        best(lambda logits: logits - (-torch.rand_like(logits).log()).log()),
    ),
)
task.fault("C-SMALLEST", choose=best(torch.neg))
task.fault("C-BEST-OF-POSITIVE", choose=best(lambda logits: logits.clamp(min=0)))
task.fault("C-LARGEST-SIZE", choose=best(torch.abs))
task.fault(
    "D-NAIVE-SOFTMAX",
    choose=(
        best(lambda logits: logits.exp() / logits.exp().sum(-1, keepdim=True)),
        best(torch.exp),
    ),
)
task.fault("C-HALF", choose=best(torch.Tensor.half))
task.fault("C-NEVER-TWICE", choose=not_twice)
task.fault(
    "C-ONE-WORD-FOR-ALL",
    choose=(
        lambda logits, words, eos: logits.sum(0).argmax(-1).expand(len(logits)),
        lambda logits, words, eos: logits.argmax().expand(len(logits)),
        lambda logits, words, eos: logits.argmax(0)[: len(logits)],
    ),
)
task.fault("C-SCORES-AS-WORDS", choose=lambda logits, words, eos: logits.amax(-1))

# --- faults: what is left behind, and returned --------------------------------------------------

task.fault("C-EVAL-KEPT", prepare=lambda model: model.eval())
task.fault(
    "C-TRAIN-KEPT",
    prepare=(lambda model: model.eval(), ...),
    leave=lambda model, source, eos: model.train(),
)
task.fault("C-GRADIENTS-OFF", prepare=lambda model: torch.set_grad_enabled(False))
task.fault("C-FROZEN", prepare=lambda model: model.requires_grad_(False))
task.fault("C-EATS-SOURCE", leave=lambda model, source, eos: source.fill_(eos))
task.fault("C-SQUEEZED", result=lambda words, eos: words.squeeze())
task.fault("C-FLOAT-IDS", result=lambda words, eos: words.float())


lists = task.fault("C-LISTS", result=lambda words, eos: words.tolist())


@lists
class Lists(Writer):
    def result(words, eos):
        rows = words.tolist()
        return [row[: row.index(eos)] if eos in row else row for row in rows]
