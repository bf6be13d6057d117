"""Reading a sentence into one vector: the state after its last real token."""

import torch
from torch import nn
from torch.nn.utils.rnn import PackedSequence, pack_padded_sequence, pad_packed_sequence

from attncourse import bottleneck as reference
from attncourse.checks.answer import Failure, compare, moves_nothing, shape_of
from attncourse.checks.inputs import normal
from attncourse.checks.modules import made, with_weights
from attncourse.checks.observe import Unusable
from attncourse.checks.task import Task
from attncourse.tasks import thoughts
from attncourse.tasks.bottleneck import DOUBLE, differ_from_call_to_call, ids


class Reader(nn.Module):
    """What an answer reads with."""

    def __init__(self, words, width, hidden):
        super().__init__()
        self.embedding = nn.Embedding(words, width)
        self.gru = nn.GRU(width, hidden, batch_first=True)

    def forward(self, encode, tokens, lengths):
        return encode(tokens, lengths, self.embedding, self.gru)


def with_a_reader(encode):
    """`encode` as a function of tokens, lengths and all weights."""

    def function(tokens, lengths, **weights):
        words, width = weights["embedding.weight"].shape
        reader = made(Reader, words, width, weights["gru.weight_hh_l0"].shape[1])
        state = with_weights(reader, weights, encode, tokens, lengths)
        if isinstance(state, PackedSequence):
            raise Unusable("returned a PackedSequence; one tensor (b hidden) is expected.")
        return state

    return function


def weights(rng, words=9, width=5, hidden=7, dtype=torch.float32):
    shapes = {
        "embedding.weight": (words, width),
        "gru.weight_ih_l0": (3 * hidden, width),
        "gru.weight_hh_l0": (3 * hidden, hidden),
        "gru.bias_ih_l0": (3 * hidden,),
        "gru.bias_hh_l0": (3 * hidden,),
    }
    return {name: 0.8 * normal(rng, *shape, dtype=dtype) for name, shape in shapes.items()}


def sentences(rng, *lengths, n=None, words=9, **sizes):
    """Sentences of these lengths. Any id may be a word, 0 too, and any id may be padding."""
    return {
        "tokens": ids(rng, len(lengths), n or max(lengths), words=words),
        "lengths": torch.tensor(lengths),
        **weights(rng, words, **sizes),
    }


EQUAL = {"width": 4, "hidden": 4}


def zeros_among_words(rng):
    """Word 0 in every sentence, and padding that is never 0."""
    inputs = sentences(rng, 2, 4, 3, n=4)
    real = torch.arange(4) < inputs["lengths"][:, None]
    inputs["tokens"] = inputs["tokens"].clamp(min=1)
    inputs["tokens"][:, 1] = 0
    inputs["tokens"][~real] = 3
    return inputs


def zero_pads(rng, *lengths, n):
    """As batches of the course are: words from 3 on, padding 0."""
    inputs = sentences(rng, *lengths, n=n)
    inputs["tokens"] = inputs["tokens"].clamp(min=3)
    inputs["tokens"][torch.arange(n) >= inputs["lengths"][:, None]] = 0
    return inputs


def probes(rng):
    return {
        "padded": sentences(rng, 2, 4, 1, n=4),
        "full": sentences(rng, 4, 4, 4, n=4),
        "wider than the longest": sentences(rng, 2, 3, 1, n=5),
        "longest first": sentences(rng, 4, 3, 2, n=4),
        "square": sentences(rng, 4, 2, 3, 1, n=4, **EQUAL),
        "pads are 0": zero_pads(rng, 3, 1, 4, n=5),
        "a word is 0": zeros_among_words(rng),
        "one sentence": sentences(rng, 2, n=3),
        "one word each": sentences(rng, 1, 1, n=1),
        "double": sentences(rng, 1, 3, n=3, **DOUBLE),
        "equal lengths, padded": sentences(rng, 2, 2, 2, n=4),
    }


def small(rng):
    for lengths, n in (
        ((1,), 1),
        ((2,), 2),
        ((1,), 2),
        ((1, 1), 1),
        ((1, 1), 2),
        ((2, 1), 2),
        ((1, 2), 2),
        ((2, 2), 2),
        ((1, 2), 3),
        ((2, 3, 1), 3),
        ((2, 3, 1), 4),
    ):
        yield sentences(rng, *lengths, n=n, width=2, hidden=2)


def maps(rng):
    inputs = sentences(rng, 2, 3, n=4)
    inputs["tokens"] = inputs["tokens"].clamp(max=7)  # so that each has a next id
    title = "two sentences of four positions, the first with two pads, the second with one"
    return [(title, inputs, ("tokens",))]


def traits(answer):
    return differ_from_call_to_call(answer, probes(torch.Generator().manual_seed(0))["full"])


task = Task(
    reference.encode,
    keeps=True,
    number=1,
    returns=("state",),
    difficulty=2,
    minutes=20,
    section="last-real-token",
    hints=(
        "The GRU returns its state after every position, padding too: (b n hidden). Which "
        "position belongs to a sentence with 3 real tokens? Counting starts at 0.",
        "Every row needs another position, so one slice for all cannot do it. Two tensors of "
        "length b as an index, tensor[rows, places], pick one place from each row. Or let "
        "PyTorch skip the padding: pack_padded_sequence.",
        "states, _ = gru(embedding(tokens)); rows = 0, 1, …, b − 1 (torch.arange); places = "
        "lengths − 1; return states at (rows, places).",
    ),
    probes=probes,
    adapt=with_a_reader,
    differentiated=("padded", "square"),
    small=small,
    maps=maps,
    features=1,
    traits=traits,
)


def read(answer, inputs, b):
    state = answer(inputs)
    if state.shape != (b, 7):
        raise Failure(f"Your answer has shape {shape_of(state)}; expected ({b} 7).", inputs)
    return state


@task.check(1)
def one_vector_for_each_sentence(answer, rng):
    for b, n in ((3, 4), (1, 4), (2, 1)):
        inputs = sentences(rng, *[n] * b)
        state = answer(inputs)
        if state.shape != (b, 7):
            raise Failure(
                f"Your answer has shape {shape_of(state)}; expected (b hidden) = ({b} 7), "
                "one vector for each sentence.",
                inputs,
            )
        if state.dtype != torch.float32:
            raise Failure(f"Your answer is {state.dtype}; the weights are float32.", inputs)


@task.check(1)
def without_padding_it_is_the_last_state(answer, rng):
    answer.matches(sentences(rng, 4, 4, 4))
    answer.matches(sentences(rng, 4, 4, 4, 4, words=4, **EQUAL))
    answer.matches(sentences(rng, 5, 5, **DOUBLE))
    answer.matches(sentences(rng, 6))
    answer.matches(sentences(rng, 1, 1, 1))
    turned = sentences(rng, 4, 4, 4)  # the same numbers, not contiguous
    answer.matches(turned | {"tokens": turned["tokens"].T.contiguous().T})


@task.check(2)
def padding_changes_nothing(answer, rng):
    inputs = sentences(rng, 3, 5, 1, n=5)
    before = read(answer, inputs, 3)
    longer = torch.cat([inputs["tokens"], ids(rng, 3, 4)], dim=1)
    hidden = torch.arange(9) >= inputs["lengths"][:, None]
    for padding in (0, 8, ids(rng, 3, 9)):
        tokens = torch.where(hidden, padding, longer)
        after = read(answer, inputs | {"tokens": tokens}, 3)
        if not torch.allclose(before, after, atol=1e-5):
            raise Failure(
                "Four more pads behind each sentence, and the vectors change by up to "
                f"{(before - after).abs().max():.2g}. They should not notice.",
                inputs | {"tokens": tokens},
                before,
                after,
            )


@task.check(1)
def every_sentence_stops_at_its_own_length(answer, rng):
    answer.matches(sentences(rng, 2, 4, 1, n=4))
    answer.matches(sentences(rng, 4, 3, 2, 1, n=4, **EQUAL))  # b = n = hidden
    answer.matches(sentences(rng, 1, 3, 2, n=6))  # nobody is as long as the rectangle
    answer.matches(sentences(rng, 2, 2, n=4))
    answer.matches(sentences(rng, 3, n=5))
    answer.matches(sentences(rng, 2, 1, 3, n=3, **DOUBLE))


@task.check(1)
def the_lengths_decide_and_not_the_ids(answer, rng):
    answer.matches(zeros_among_words(rng))
    answer.matches(zero_pads(rng, 3, 1, 2, n=4))


@task.check(1)
def the_neighbors_in_the_batch_change_nothing(answer, rng):
    inputs = sentences(rng, 3, 5, 2, n=5)
    together = read(answer, inputs, 3)
    for row, length in enumerate(inputs["lengths"].tolist()):
        tokens = inputs["tokens"][row : row + 1, :length]  # alone, it needs no padding
        alone = inputs | {"tokens": tokens, "lengths": inputs["lengths"][row : row + 1]}
        vector = read(answer, alone, 1)[0]
        compare(f"sentence {row}, alone and in the batch", vector, together[row])


@task.check(1)
def gradients_reach_the_embedding_and_the_gru(answer, rng):
    answer.gradients_match(sentences(rng, 2, 4, 1, n=4))
    answer.gradients_match(sentences(rng, 3, 3, n=3))


@task.check(1)
def it_changes_nothing_but_its_result(answer, rng):
    moves_nothing(answer, sentences(rng, 2, 4, 1, n=5))


# --- the reference in steps ---------------------------------------------------------------------


@task.steps
class Encoding:
    def embed(embedding, tokens, lengths):
        return embedding(tokens)

    def read(gru, x, lengths):
        return gru(x)[0]

    def place(lengths, tokens):
        return lengths - 1

    def pick(states, places):
        return states[torch.arange(len(states)), places]

    def result(vectors):
        return vectors

    def __call__(self, tokens, lengths, embedding, gru):
        states = self.read(gru, self.embed(embedding, tokens, lengths), lengths)
        return self.result(self.pick(states, self.place(lengths, tokens)))


def gathered(states, places):
    return states.gather(1, places[:, None, None].expand(-1, 1, states.shape[-1]))[:, 0]


task.spelling(pick=gathered)

# --- faults: where a sentence ends ----------------------------------------------------------------


def last(states, places):
    return states[:, -1]


def behind(x, places):
    """Zero what stands behind the places."""
    return x.masked_fill((torch.arange(x.shape[1]) > places[:, None])[:, :, None], 0)


def backward(embedding, tokens, lengths):
    places = (lengths[:, None] - 1 - torch.arange(tokens.shape[1])).clamp(min=0)
    return embedding(tokens.gather(1, places))


task.fault(
    "S-PAD-ENC",
    "The state after the last position is the state of the sentence.",
    "Behind a short sentence the last positions are padding, and the GRU reads it like words. Its "
    "state goes on changing, so the vector depends on the neighbors in the batch.",
    pick=last,
)
task.fault(
    "C-LONGEST",
    "The longest sentence ends the batch, so its last place is the last place of all.",
    "It is right for the longest sentence only. A shorter one has read padding by then. Each row "
    "stops at a place of its own.",
    place=lambda lengths, tokens: (lengths.max() - 1).expand_as(lengths),
)
task.fault(
    "C-SHORTEST",
    "The batch is cut to its shortest sentence, so that no padding is left.",
    "The padding is gone, and with it words of all longer sentences. Each row stops at a place of "
    "its own.",
    place=lambda lengths, tokens: (lengths.min() - 1).expand_as(lengths),
)
task.fault(
    "C-FIRST-LENGTH",
    "`lengths[0]` says where the batch ends.",
    "It says where its first sentence ends. Longer ones below it are cut, and shorter ones read "
    "padding. Each row stops at a place of its own.",
    place=lambda lengths, tokens: (lengths[0] - 1).expand_as(lengths),
)
task.fault(
    "C-ONLY-LENGTHS-SORTED",
    "The lengths are sorted, the longest first, as packing likes them.",
    "The rows of the batch stay where they are, so each sentence gets the length of another. What "
    "sorts the lengths has to sort the rows with them.",
    place=lambda lengths, tokens: lengths.sort(descending=True).values - 1,
)
task.fault(
    "C-ONE-TOO-FAR",
    "A sentence with 3 tokens ends at place 3.",
    "Counting starts at 0: its tokens stand at places 0, 1 and 2. Place 3 is the first pad, or "
    "lies outside.",
    place=(
        lambda lengths, tokens: lengths.clamp(max=tokens.shape[1] - 1),
        lambda lengths, tokens: lengths,
        lambda lengths, tokens: lengths % tokens.shape[1],
    ),
)
task.fault(
    "C-ONE-TOO-EARLY",
    "The last token is <eos>, so the sentence ends one place before.",
    "Here the source has no <eos>: `lengths` counts real tokens, and each of them matters. Your "
    "vector has not read the last word.",
    place=(
        lambda lengths, tokens: (lengths - 2).clamp(min=0),
        lambda lengths, tokens: lengths - 2,
    ),
)
task.fault(
    "C-FIRST-STATE",
    "The state at the first place stands for the sentence.",
    "A recurrent network reads from left to right: the first state has read one word. Only the "
    "state after the last word has read them all.",
    section="recurrent-encoder",
    pick=lambda states, places: states[:, 0],
)
task.fault(
    "C-LENGTHS-FROM-ZEROS",
    "Padding is id 0, so I count the tokens that are not 0.",
    "That holds in this course's corpus, but `encode` is told the lengths and not which id pads. "
    "Elsewhere 0 may be a word, and padding another id.",
    place=(
        lambda lengths, tokens: (tokens != 0).sum(1) - 1,
        lambda lengths, tokens: (tokens != 0).sum(1).clamp(min=1) - 1,
    ),
)
task.fault(
    "C-ZERO-PADS",
    "A pad whose embedding is zero does not change the state.",
    "With x = 0 the GRU still computes a new state from the old one, its recurrent weights and its "
    "biases. Only a step that is not made changes nothing.",
    section="recurrent-encoder",
    embed=lambda embedding, tokens, lengths: behind(embedding(tokens), lengths - 1),
    pick=last,
)
task.fault(
    "C-STATES-AND-PADS-CUT",
    "Zero the states behind each sentence; then the last of them is right.",
    "Then the last state of a short sentence is that zero. The state you want stands earlier in "
    "the row, after the last real token.",
    pick=lambda states, places: behind(states, places)[:, -1],
)
task.fault(
    "S-BWD-PAD",
    "Read backward, so that the first words come last: flip the tokens.",
    "Flipping a padded row puts its padding first. The state has been through all pads before it "
    "meets a word, and then ends at the first word.",
    embed=lambda embedding, tokens, lengths: embedding(tokens.flip(1)),
    pick=last,
)
task.fault(
    "C-REVERSES-THE-SOURCE",
    "A translator reads the source from its end to its beginning.",
    "Sutskever et al. found that this helped their LSTMs. Here a sentence is read in the order in "
    "which it stands, and the state you want comes after its last token.",
    section="encoder-decoder",
    embed=backward,
)

# --- faults: what is taken from the states --------------------------------------------------------

task.fault(
    "C-MEAN-STATE",
    "The vector of a sentence is the mean of its states.",
    "That would be another design. Here the decoder starts from the one state in which the encoder "
    "stopped; the last state has read all words already.",
    section="encoder-decoder",
    pick=(
        lambda states, places: behind(states, places).sum(1) / (places + 1)[:, None],
        lambda states, places: states.mean(1),
    ),
)
task.fault(
    "C-SUM-STATE",
    "The vector of a sentence is the sum of its states.",
    "A sum grows with the length, and it is another design. The GRU itself adds up what it has "
    "read: the state after the last word is all that the decoder starts from.",
    section="encoder-decoder",
    pick=(
        lambda states, places: behind(states, places).sum(1),
        lambda states, places: states.sum(1),
    ),
)
task.fault(
    "C-MAX-STATE",
    "Of every feature the largest value in the sentence counts.",
    "That is max-pooling, another design. The decoder starts from one state, the one in which the "
    "encoder stopped, and not from parts of several.",
    section="encoder-decoder",
    pick=(
        lambda states, places: states.masked_fill(
            behind(torch.ones_like(states), places) == 0, -torch.inf
        ).amax(1),
        lambda states, places: states.amax(1),
    ),
)
task.fault(
    "C-ALL-STATES",
    "What the GRU returns for a sentence are its states, one for each position.",
    "They are (b n hidden), padding included. One vector for each sentence is asked for, (b "
    "hidden): the state at one place of each row.",
    pick=lambda states, places: states,
)
task.fault(
    "C-NO-GRU",
    "The vector of the last word stands for the sentence.",
    "A row of the embedding knows one word and none before it. The GRU reads these vectors one by "
    "one; its state after the last word is what is asked for.",
    section="recurrent-encoder",
    read=lambda gru, x, lengths: x,
)
task.fault(
    "C-GRU-PAIR",
    "`gru(x)` returns the state.",
    "It returns two tensors: the states after all positions, and the last one. Take the pair "
    "apart, and then ask which state belongs to each sentence.",
    read=lambda gru, x, lengths: gru(x),
    pick=lambda states, places: states,
)
task.fault(
    "S-LASTSTEP",
    "`states[-1]` is the state after the last step.",
    "Axis 0 is the batch here, so this is the last sentence, with all its states. Steps lie on "
    "axis 1.",
    pick=lambda states, places: states[-1],
)
task.fault(
    "C-ALL-BY-ALL",
    "`states[:, lengths - 1]` takes from each row the place of that row.",
    "A slice beside an index tensor means: every row, and from each of them all these places. To "
    "go through rows and places in step, both must be index tensors.",
    pick=lambda states, places: states[:, places],
)
task.fault(
    "C-GATHER-ONE",
    "`gather` with one index for each row picks the whole vector.",
    "`gather` returns as many numbers as its index has. With an index (b 1 1) that is one number "
    "for each sentence; it needs one for every entry of the vector.",
    pick=lambda states, places: states.gather(1, places[:, None, None]).flatten(1),
)
task.fault(
    "C-KEEPS-THE-PLACE",
    "`gather`, or a slice, takes away the axis along which it picks.",
    "It keeps that axis, with length 1: (b 1 hidden). One vector for each sentence is asked for, "
    "(b hidden).",
    pick=lambda states, places: gathered(states, places)[:, None],
)
task.fault(
    "C-TIME-FIRST",
    "A GRU wants time first, so I turn the tokens before I hand them over.",
    "This one was made with batch_first=True: axis 0 is the batch. Turned around, it reads down "
    "the columns, from one sentence into the next.",
    embed=lambda embedding, tokens, lengths: embedding(tokens.T),
    pick=lambda states, places: states[places, torch.arange(len(places))],
)
task.fault(
    "C-SQUEEZED",
    "`squeeze()` takes away the layer axis.",
    "It takes away every axis of length 1. In a batch of one sentence that is the batch axis, too, "
    "and the caller gets (hidden) instead of (1 hidden). Name the axis.",
    result=torch.squeeze,
)

# --- faults: packing, and the GRU's last state ----------------------------------------------------


def packed(gru, x, lengths, **options):
    """The GRU's last state, read without padding."""
    return gru(pack_padded_sequence(x, lengths, **options))[1]


def packed_in_any_order(gru, x, lengths):
    return packed(gru, x, lengths, batch_first=True, enforce_sorted=False)


def unpacked(gru, x, lengths):
    states = gru(pack_padded_sequence(x, lengths, batch_first=True, enforce_sorted=False))[0]
    return pad_packed_sequence(states, batch_first=True)[0]


def time_first_and_back(gru, x, lengths):
    states, sizes = pad_packed_sequence(
        gru(pack_padded_sequence(x, lengths, enforce_sorted=False))[0]
    )
    return states[sizes - 1, torch.arange(x.shape[0])]


def in_sorted_order(gru, x, lengths):
    order = lengths.argsort(descending=True, stable=True)
    return packed(gru, x[order], lengths[order], batch_first=True)[0], order


TAKEN = {"pick": lambda states, places: states}  # what `read` returns has a row for each sentence

task.fault(
    "S-HIDDEN-ORDER",
    "With batch_first=True the last state has the batch first, too.",
    "batch_first turns the inputs and the states of all steps. The last state keeps its layout "
    "(layers, batch, hidden), so your index picks one sentence instead of one layer.",
    read=(packed_in_any_order, packed_in_any_order, lambda gru, x, lengths: gru(x)[1]),
    pick=(lambda states, places: states[:, 0], last, lambda states, places: states[:, 0]),
)
task.fault(
    "C-KEEPS-THE-LAYER-AXIS",
    "The GRU's last state is what is asked for, as it comes.",
    "It comes as (layers, batch, hidden), here with one layer in front. One vector for each "
    "sentence is asked for: (b hidden). And is it the state after the last *real* token?",
    read=(packed_in_any_order, lambda gru, x, lengths: gru(x)[1]),
    **TAKEN,
)
task.fault(
    "C-PACK-SORTED",
    "Packing takes the sentences in any order.",
    "By default it demands the longest first and raises an error otherwise. It can also sort by "
    "itself, and put the rows back in order afterwards; look at its arguments.",
    read=lambda gru, x, lengths: packed(gru, x, lengths, batch_first=True)[0],
    **TAKEN,
)
task.fault(
    "C-PACK-TIME-FIRST",
    "The GRU was made with batch_first=True, so packing knows that the batch comes first.",
    "`pack_padded_sequence` does not see the GRU: it takes axis 0 for time unless it is told. It "
    "complains here, except where b equals n; there it packs columns without a word.",
    read=(
        lambda gru, x, lengths: packed(gru, x, lengths, enforce_sorted=False)[0],
        time_first_and_back,
    ),
    **TAKEN,
)
task.fault(
    "C-LAST-UNPACKED",
    "Once it is unpacked, the last state of a row is the one after its last word.",
    "Unpacking fills short sentences up with zeros, so the last place of a short one is a zero. "
    "Its state stands earlier in the row; the GRU's second result holds it, too.",
    read=unpacked,
    pick=last,
)
task.fault(
    "C-NOT-UNSORTED",
    "Sort the sentences by length, pack them, and return the states.",
    "The caller's rows have another order than your sorted ones, so each sentence gets the vector "
    "of a neighbor. What is sorted before has to be put back after.",
    read=lambda gru, x, lengths: in_sorted_order(gru, x, lengths)[0],
    **TAKEN,
)
task.fault(
    "C-SORTED-TWICE",
    "What sorted the rows also puts them back: `last[order]`.",
    "`order` says which row goes where; going back takes its inverse. The two agree for a swap of "
    "two rows, and not for three that move in a circle.",
    read=lambda gru, x, lengths: torch.Tensor.__getitem__(*in_sorted_order(gru, x, lengths)),
    **TAKEN,
)

# --- faults: gradients, memory, edits -------------------------------------------------------------


def without_row_zero(embedding, tokens, lengths):
    embedding.weight.data[0] = 0
    return embedding(tokens)


task.fault(
    "C-ENCODER-FROZEN",
    "The encoder only prepares a vector; learning happens in the decoder.",
    "The numbers are right, but `no_grad` or `.detach()` cuts the graph: no gradient reaches the "
    "embedding or the GRU, and the encoder stays as random as it began.",
    section="encoder-decoder",
    result=lambda vectors: vectors.detach(),
)
task.fault(
    "C-EMBEDDING-FROZEN",
    "Looking up a row in a table is not something one can learn.",
    "The table is learned like every other weight, and the values you return are right. But "
    "`.data` or `.detach()` after the lookup keeps gradients from the embedding.",
    section="ids-to-vectors",
    embed=lambda embedding, tokens, lengths: embedding(tokens).detach(),
)
task.fault(thoughts.FLOAT32, result=lambda vectors: vectors.float())


@task.fault(
    "C-STATE-CARRIED",
    "The GRU goes on from where it stopped at the last batch.",
    "Your first call is right; the second starts from the states of the first. Every sentence "
    "begins from a state of zeros, or it depends on what was read before.",
    section="recurrent-encoder",
)
class Carried(Encoding):
    def __init__(self):
        self.kept = {}

    def read(self, gru, x, lengths):
        kind = len(x), gru.hidden_size, x.dtype  # else the GRU would only raise an error
        states, last = gru(x, self.kept.get(kind))
        self.kept[kind] = last.detach()
        return states


task.fault(
    "C-WIPES-THE-PAD-ROW",
    "Setting the embedding's row of the pad to zero hides the padding.",
    "It edits a learned table that belongs to the caller, and it hides nothing: the GRU makes a "
    "step for a zero vector, too.",
    embed=without_row_zero,
)
task.fault(
    "C-EDITS-THE-LENGTHS",
    "`lengths -= 1` turns the lengths into places.",
    "It does, in the caller's own tensor: whoever uses the lengths again has lost a word of each "
    "sentence. `lengths - 1` makes a new tensor.",
    place=lambda lengths, tokens: lengths.sub_(1),
)
