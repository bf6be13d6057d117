import torch
from torch import nn

from attncourse import pictures as reference
from attncourse.checks.answer import Failure, Unanswered, moves_nothing, shape_of
from attncourse.checks.inputs import normal
from attncourse.checks.observe import Unusable
from attncourse.checks.task import Task

VOCABULARY = 11  # words; a prime, so that mistakes do not meet again by chance
BY_DEFAULT = 1, 2, 12  # bos, eos and max_length: then an answer is told none of them
NOTHING = -1  # stands where a row stops without having said eos


class Seer(nn.Module):
    """A model that knows some pictures, and has made up its mind about each.

    Its memory is the picture's own patches; what it says depends on memory, mask and all words so
    far. If those are not what they should be, it says something else.
    """

    def __init__(self, known, wants, bos, patience):
        super().__init__()
        self.known, self.wants, self.bos, self.patience = known.flatten(1), wants, bos, patience
        self.looks = self.rounds = 0

    def encode(self, image):
        if not isinstance(image, torch.Tensor) or image.ndim != 4:
            raise ValueError("image must have axes (b c y x)")
        self.looks += 1
        if self.looks > self.patience:
            raise Unusable("looks at the picture far more often than there are words to write.")
        memory = image.flatten(2)  # b c (y x)
        return memory, memory.sum(-1)[:, None] > -1e9  # b 1 c: all may be seen

    def decode(self, words, memory, memory_mask=None):
        self.rounds += 1
        if self.rounds > self.patience:
            raise Unusable("asks the model far more often than there are words to write.")
        for name, tensor in (("words", words), ("memory", memory)):
            if not isinstance(tensor, torch.Tensor):
                raise TypeError(f"{name} must be a torch.Tensor; got {type(tensor).__name__}")
        if words.ndim != 2 or words.is_floating_point() or words.dtype == torch.bool:
            raise ValueError(
                f"words must be ids (b t); got {words.dtype} of shape {shape_of(words)}"
            )
        if memory.ndim != 3 or len(memory) != len(words):
            raise ValueError(
                f"memory must be (b n m), a row for each of words {shape_of(words)}; got "
                f"{shape_of(memory)}"
            )
        if words.shape[1] < 1 or not 0 <= words.min() <= words.max() < VOCABULARY:
            raise ValueError(f"words must be at least one id below {VOCABULARY} a row")
        off = (memory.flatten(1)[:, None] - self.known[None]).abs().amax(-1)  # b rows
        row, t = off.argmin(-1), words.shape[1]
        strange = 3 * (off.amin(-1) > 1e-4).long() + 5 * int(memory_mask is None)
        wanted = self.wants[row][:, torch.arange(t) % self.wants.shape[1]]  # b t
        before = torch.cat([torch.full_like(words[:, :1], self.bos), wanted[:, :-1]], 1)
        surprise = ((words - before) ** 2 * torch.arange(1, t + 1)).cumsum(1)
        said = (wanted + surprise + strange[:, None]) % VOCABULARY
        return nn.functional.one_hot(said, VOCABULARY).float()


def with_a_model(answer):
    """`read` as a function of plain inputs: it is given a `Seer`.

    A shorter result, in which every row has ended, is filled up with `eos` to `max_length`.
    """

    def function(*, image, model_says, bos, eos, max_length):
        written, _ = _read(answer, image, model_says, bos, eos, max_length)
        if not isinstance(written, torch.Tensor) or written.ndim != 2:
            return written
        if written.is_floating_point() or written.dtype == torch.bool or len(written) != len(image):
            return written
        written = written.long()
        ended = (written == eos).any(1, keepdim=True)
        missing = max(0, max_length - written.shape[1])
        rest = torch.where(ended, eos, NOTHING).expand(len(image), missing)
        return torch.cat([written, rest], dim=1)

    return function


def looked(answer):
    """How often the picture was looked at."""

    def function(*, image, model_says, bos, eos, max_length):
        written, model = _read(answer, image, model_says, bos, eos, max_length)
        return None if written is None else torch.tensor(model.looks)

    return function


def asked(answer):
    """How often the model was asked for scores."""

    def function(*, image, model_says, bos, eos, max_length):
        return torch.tensor(_read(answer, image, model_says, bos, eos, max_length)[1].rounds)

    return function


def _read(answer, image, wants, bos, eos, max_length):
    model = Seer(image, wants, bos, patience=3 * len(image) * (max_length + 2)).eval()
    given = bos, eos, max_length
    return answer(model, image, *(() if given == BY_DEFAULT else given)), model


def seen(rng, ends, bos=1, eos=2, max_length=7, same=False):
    """Pictures of which the name of row i ends with word `ends[i]` (from 1; 0 = never).

    Behind its end, a row goes on with other words, and with a second `eos`.
    """
    b, length = len(ends), max_length + 3
    other = torch.tensor([word for word in range(VOCABULARY) if word not in (bos, eos)])
    wants = other[torch.randint(len(other), (b, length), generator=rng, device="cpu")]
    for row, end in enumerate(ends):
        if end:
            wants[row, end - 1] = eos
            wants[row, end + 1] = eos
    image = normal(rng, b, 1, 2, 3)
    return {"image": image, "model_says": wants, "bos": bos, "eos": eos, "max_length": max_length}


def probes(rng):
    return {
        "two pictures": seen(rng, (3, 6)),
        "the long one first": seen(rng, (6, 2, 4)),
        "one picture": seen(rng, (5,)),
        "same ends": seen(rng, (4, 4)),
        "at once": seen(rng, (1, 4)),
        "at the limit": seen(rng, (7, 3)),
        "never": seen(rng, (0, 3, 0)),
        "one word": seen(rng, (0, 1), max_length=1),
        "other marks": seen(rng, (3, 5), bos=9, eos=4),
        "eos is zero": seen(rng, (2, 0, 4), bos=3, eos=0),
        "many": seen(rng, (2, 5, 3, 7, 4)),
    }


def small(rng):
    for ends in ((0,), (1,), (2,), (3,), (2, 1), (1, 3), (3, 2)):
        yield seen(rng, ends, max_length=max(ends) or 1)
        yield seen(rng, ends, max_length=max(ends) + 1)
    yield seen(rng, (2,), bos=9, eos=4, max_length=3)
    yield seen(rng, (2, 1), bos=3, eos=0, max_length=3)


def looks(answer, inputs):
    """How often an answer looks at the picture, or a Failure that says why nobody knows."""
    shown = answer.observe(inputs, adapt=looked)
    if shown.unanswered:
        raise Unanswered("The answer still raises NotImplementedError.")
    if shown.error:
        where = f" ({shown.error_line})" if shown.error_line else ""
        raise Failure(f"Your answer {shown.error}{where}", inputs)
    if shown.returned is None:
        raise Unanswered("Your answer returned None: is a `return` missing?")
    return shown.returned.item()


def traits(answer):
    inputs = seen(torch.Generator().manual_seed(0), (0, 6))
    rounds = answer.observe(endless := seen(torch.Generator().manual_seed(0), (0,)), adapt=asked)
    return {
        "looks again": looks(answer, inputs) > 1,
        "asks too seldom": not rounds.error and rounds.returned.item() < endless["max_length"],
    }


task = Task(
    reference.read,
    number=3,
    returns=("words",),
    difficulty=2,
    minutes=20,
    section="read-once",
    probes=probes,
    adapt=with_a_model,
    small=small,
    traits=traits,
)


def up_to_end(row, eos):
    """A row up to its first `eos`."""
    return row[: row.index(eos) + 1] if eos in row else row


def same_words(answer, inputs, behind=False):
    """Assert that the answer writes what the reference writes, row by row."""
    got, expected, eos = answer(inputs), answer.expected(inputs), inputs["eos"]
    evidence = inputs, expected, got
    if got.shape != expected.shape or got.is_floating_point() or got.dtype == torch.bool:
        raise Failure(
            f"The words are {got.dtype} of shape {shape_of(got)}; expected ids of shape "
            f"(b, at most max_length) = {shape_of(expected)}.",
            *evidence,
        )
    for row, (ours, theirs) in enumerate(zip(expected.tolist(), got.tolist(), strict=True)):
        if not behind:
            ours = up_to_end(ours, eos)
            theirs = theirs[: len(ours)]
        for place, (one, two) in enumerate(zip(ours, theirs, strict=True)):
            if one != two:
                wrote = "nothing more" if two == NOTHING else str(two)
                raise Failure(
                    f"Row {row}, word {place}, both counted from 0: your answer writes {wrote}; "
                    f"expected {one} (bos is {inputs['bos']}, eos is {eos}).",
                    *evidence,
                )


@task.check(1)
def it_returns_ids_one_row_for_each_picture(answer, rng):
    inputs = seen(rng, (3, 6, 5))
    words = answer(inputs)
    if words.is_floating_point() or words.dtype == torch.bool or words.ndim != 2 or len(words) != 3:
        raise Failure(
            f"Ids of shape (b, at most max_length), b = 3, are expected; yours are {words.dtype} "
            f"of shape {shape_of(words)}.",
            inputs,
        )


@task.check(2)
def it_writes_the_likeliest_words_up_to_the_end(answer, rng):
    for ends in ((6,), (5,), (4, 4, 4), (7, 7)):
        same_words(answer, seen(rng, ends))
    same_words(answer, seen(rng, (9,), max_length=12))


@task.check(2)
def the_picture_is_looked_at_once(answer, rng):
    inputs = seen(rng, (6, 3, 0))
    count = looks(answer, inputs)
    if count != 1:
        raise Failure(
            f"`model.encode` was called {count} times for one batch of pictures; its result does "
            "not depend on the words, so once is enough.",
            inputs,
        )


@task.check(1)
def each_row_is_right_up_to_its_end_and_after_it(answer, rng):
    for ends in ((2, 6), (6, 2, 4), (1, 5)):
        same_words(answer, seen(rng, ends), behind=True)
    same_words(answer, seen(rng, (9, 0), max_length=12), behind=True)


@task.check(1, "rows that end at different times are right up to their end")
def it_is_right_where_rows_end_at_different_times(answer, rng):
    for ends in ((1, 6), (5, 1, 3), (2, 0)):
        same_words(answer, seen(rng, ends))


@task.check(1)
def it_is_right_up_to_the_largest_length(answer, rng):
    inputs = seen(rng, (3, 6, 0))
    length = answer(inputs).shape[1]
    if length > 7:
        raise Failure(
            f"A row has {length} ids; max_length is 7, and bos does not come back.", inputs
        )
    for max_length in (1, 2, 5):
        same_words(answer, seen(rng, (0, 2, 0), max_length=max_length))
    same_words(answer, seen(rng, (0, 33), max_length=40))


@task.check(1)
def it_is_right_with_other_marks_for_begin_and_end(answer, rng):
    same_words(answer, seen(rng, (3, 5), bos=9, eos=4))
    same_words(answer, seen(rng, (4, 2, 5), bos=3, eos=0))
    same_words(answer, seen(rng, (4, 2, 5), bos=0, eos=10))


@task.check(1)
def it_changes_nothing_but_its_result(answer, rng):
    moves_nothing(answer, seen(rng, (3, 6)))


# --- the reference in steps ---------------------------------------------------------------------


@task.steps
class Reading:
    def picture(image):
        return image

    def marks(bos, eos):
        return bos, eos

    def again(model, image, looked):
        return looked

    def rounds(max_length):
        return max_length

    def given(words):
        return words

    def score(model, words, looked):
        return model.decode(words, *looked)

    def last(logits):
        return logits[:, -1]

    def choose(logits, eos):
        return logits.argmax(-1)

    def silence(word, finished, eos):
        return word.masked_fill(finished, eos)

    def append(words, word):
        return torch.cat([words, word[:, None]], 1)

    def stop(finished, word, eos):
        return finished.all()

    def result(words, eos, max_length):
        return words[:, 1:]

    def __call__(self, model, image, bos=1, eos=2, max_length=12):
        bos, eos = self.marks(bos, eos)
        looked = model.encode(self.picture(image))
        words = torch.full((len(image), 1), bos)
        finished = torch.zeros(len(image), dtype=torch.bool)
        for _ in range(self.rounds(max_length)):
            looked = self.again(model, image, looked)
            logits = self.last(self.score(model, self.given(words), looked))
            word = self.silence(self.choose(logits, eos), finished, eos)
            words, finished = self.append(words, word), finished | (word == eos)
            if self.stop(finished, word, eos):
                break
        return self.result(words, eos, max_length)


# --- faults: looking ----------------------------------------------------------------------------


@task.fault("C-READ-LOOKS-AGAIN")
class LooksAgain(Reading):
    def again(model, image, looked):
        return model.encode(image)


task.fault("C-READ-FIRST-PICTURE", picture=lambda image: image[:1].expand_as(image))
task.fault("C-READ-NO-MASK", score=lambda model, words, looked: model.decode(words, looked[0]))
task.fault(
    "C-READ-MEAN",
    again=lambda model, image, looked: (
        looked[0].mean(2, keepdim=True).expand_as(looked[0]),
        looked[1],
    ),
)

# --- faults: writing ----------------------------------------------------------------------------

task.fault("C-READ-LAST-WORD", given=lambda words: words[:, -1:])
task.fault(
    "C-READ-NOTHING-BACK",
    given=(lambda words: words[:, :1], ...),
    last=(..., lambda logits: logits[:, 0]),
)
task.fault(
    "C-READ-ALL-POSITIONS",
    last=(lambda logits: logits.mean(1), lambda logits: logits.sum(1)),
)
task.fault(
    "C-READ-SAMPLES", choose=lambda logits, eos: torch.multinomial(logits.softmax(-1), 1)[:, 0]
)
task.fault("C-READ-UNLIKELIEST", choose=lambda logits, eos: logits.argmin(-1))
task.fault(
    "C-READ-NEVER-EOS",
    choose=lambda logits, eos: logits.index_fill(-1, torch.tensor(eos), -1e9).argmax(-1),
)
task.fault(
    "C-READ-TALKS-ON",
    silence=lambda word, finished, eos: word,
    stop=(
        ...,
        lambda finished, word, eos: False,
    ),
)
task.fault(
    "C-ENDED-NOW",
    silence=lambda word, finished, eos: word,
    stop=lambda finished, word, eos: (word == eos).all(),
)
task.fault(
    "C-READ-SILENCE-ZERO",
    silence=lambda word, finished, eos: word.masked_fill(finished, 0),
    result=(
        ...,
        lambda words, eos, max_length: torch.nn.functional.pad(
            words[:, 1:], (0, max_length + 1 - words.shape[1])
        ),
    ),
)
task.fault(
    "C-READ-IN-FRONT",
    append=lambda words, word: torch.cat([word[:, None], words], 1),
    result=lambda words, eos, max_length: words[:, :-1].flip(1),
)
task.fault("C-READ-ONE-ENDS-ALL", stop=lambda finished, word, eos: finished.any())
task.fault("C-READ-FIRST-ENDS-ALL", stop=lambda finished, word, eos: finished[0])

# --- faults: marks and lengths ------------------------------------------------------------------

task.fault("C-READ-MARKS-BY-HEART", marks=lambda bos, eos: (1, 2))
task.fault("C-READ-BOS-BY-HEART", marks=lambda bos, eos: (1, eos))
task.fault("C-READ-EOS-BY-HEART", marks=lambda bos, eos: (bos, 2))
task.fault("C-READ-BEGINS-WITH-EOS", marks=lambda bos, eos: (eos, eos))
task.fault("C-READ-BEGINS-WITH-ZERO", marks=lambda bos, eos: (0, eos))
task.fault(
    "C-READ-KEEPS-BOS",
    result=(
        lambda words, eos, max_length: words,
        lambda words, eos, max_length: words[:, :max_length],
        lambda words, eos, max_length: words,
    ),
    stop=(..., ..., lambda finished, word, eos: False),
)
task.fault(
    "C-READ-CUTS-EOS",
    result=(
        lambda words, eos, max_length: words[:, 1:-1],
        lambda words, eos, max_length: (
            words[:, 1:-1] if (words[:, 1:] == eos).any(1).all() else words[:, 1:]
        ),
    ),
)
task.fault("C-READ-ONE-LESS", rounds=lambda max_length: max_length - 1)
task.fault("C-READ-ONE-MORE", rounds=lambda max_length: max_length + 1)
