"""encode."""

import torch
from torch import nn
from torch.nn.utils.rnn import PackedSequence

from attncourse import bottleneck as reference
from attncourse.checks.answer import Failure, compare, moves_nothing, shape_of
from attncourse.checks.inputs import normal
from attncourse.checks.modules import made, with_weights
from attncourse.checks.observe import Unusable
from attncourse.checks.task import Task
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


def encode_probes(rng):
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


def encode_small(rng):
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


def encode_maps(rng):
    inputs = sentences(rng, 2, 3, n=4)
    inputs["tokens"] = inputs["tokens"].clamp(max=7)  # so that each has a next id
    title = "two sentences of four positions, the first with two pads, the second with one"
    return [(title, inputs, ("tokens",))]


def encode_traits(answer):
    return differ_from_call_to_call(answer, encode_probes(torch.Generator().manual_seed(0))["full"])


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
    probes=encode_probes,
    adapt=with_a_reader,
    differentiated=("padded", "square"),
    small=encode_small,
    maps=encode_maps,
    features=1,
    traits=encode_traits,
)


@staticmethod
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


# --- faults ---------------------------------------------------------------------------------------


def states_of(tokens, embedding, gru):
    """The state after every position, padding too: (b n hidden)."""
    return gru(embedding(tokens))[0]


def at(states, places):
    """From each row the state at its own place."""
    return states[torch.arange(len(states)), places]


def last_hidden_state(tokens, lengths, embedding, gru):
    return gru(embedding(tokens))[1][0]


@task.fault(
    "S-PAD-ENC",
    thinks="The state after the last position is the state of the sentence.",
    why="Behind a short sentence the last positions are padding, and the GRU reads it like words. "
    "Its state goes on changing, so the vector depends on the neighbors in the batch.",
    forms=(last_hidden_state,),
)
def last_position(tokens, lengths, embedding, gru):
    return states_of(tokens, embedding, gru)[:, -1]


@task.fault(
    "C-LONGEST",
    thinks="The longest sentence ends the batch, so its last place is the last place of all.",
    why="It is right for the longest sentence only. A shorter one has read padding by then. Each "
    "row stops at a place of its own.",
)
def place_of_the_longest(tokens, lengths, embedding, gru):
    return states_of(tokens, embedding, gru)[:, lengths.max() - 1]


def one_too_far_unchecked(tokens, lengths, embedding, gru):
    return at(states_of(tokens, embedding, gru), lengths)


def one_too_far_wrapped(tokens, lengths, embedding, gru):
    return at(states_of(tokens, embedding, gru), lengths % tokens.shape[1])


@task.fault(
    "C-ONE-TOO-FAR",
    thinks="A sentence with 3 tokens ends at place 3.",
    why="Counting starts at 0: its tokens stand at places 0, 1 and 2. Place 3 is the first pad, or "
    "lies outside.",
    forms=(one_too_far_unchecked, one_too_far_wrapped),
)
def one_too_far(tokens, lengths, embedding, gru):
    return at(states_of(tokens, embedding, gru), lengths.clamp(max=tokens.shape[1] - 1))


def one_too_early_wrapped(tokens, lengths, embedding, gru):
    return at(states_of(tokens, embedding, gru), lengths - 2)


@task.fault(
    "C-ONE-TOO-EARLY",
    thinks="The last token is <eos>, so the sentence ends one place before.",
    why="Here the source has no <eos>: `lengths` counts real tokens, and each of them matters. "
    "Your vector has not read the last word.",
    forms=(one_too_early_wrapped,),
)
def one_too_early(tokens, lengths, embedding, gru):
    return at(states_of(tokens, embedding, gru), (lengths - 2).clamp(min=0))


def zero_pads_by_product(tokens, lengths, embedding, gru):
    real = torch.arange(tokens.shape[1]) < lengths[:, None]
    return gru(embedding(tokens) * real[:, :, None])[1][0]


@task.fault(
    "C-ZERO-PADS",
    thinks="A pad whose embedding is zero does not change the state.",
    why="With x = 0 the GRU still computes a new state from the old one, its recurrent weights and "
    "its biases. Only a step that is not made changes nothing.",
    section="recurrent-encoder",
    forms=(zero_pads_by_product,),
)
def wrong_zero_pads(tokens, lengths, embedding, gru):
    padded = torch.arange(tokens.shape[1]) >= lengths[:, None]
    return gru(embedding(tokens).masked_fill(padded[:, :, None], 0))[0][:, -1]


def lengths_from_zeros_packed(tokens, lengths, embedding, gru):
    real = (tokens != 0).sum(1).clamp(min=1)
    return at(states_of(tokens, embedding, gru), real - 1)


@task.fault(
    "C-LENGTHS-FROM-ZEROS",
    thinks="Padding is id 0, so I count the tokens that are not 0.",
    why="That holds in this course's corpus, but `encode` is told the lengths and not which id "
    "pads. Elsewhere 0 may be a word, and padding another id.",
    forms=(lengths_from_zeros_packed,),
)
def lengths_from_zeros(tokens, lengths, embedding, gru):
    return at(states_of(tokens, embedding, gru), (tokens != 0).sum(1) - 1)


@task.fault(
    "S-BWD-PAD",
    thinks="Read backward, so that the first words come last: flip the tokens.",
    why="Flipping a padded row puts its padding first. The state has been through all pads before "
    "it meets a word, and then ends at the first word.",
)
def reads_backward(tokens, lengths, embedding, gru):
    return states_of(tokens.flip(1), embedding, gru)[:, -1]


@task.fault(
    "C-TIME-FIRST",
    thinks="A GRU wants time first, so I turn the tokens before I hand them over.",
    why="This one was made with batch_first=True: axis 0 is the batch. Turned around, it reads "
    "down the columns, from one sentence into the next.",
)
def time_first(tokens, lengths, embedding, gru):
    states, _ = gru(embedding(tokens.T))
    return states[lengths - 1, torch.arange(len(tokens))]


def hidden_state_of_the_first_layer_last_row(tokens, lengths, embedding, gru):
    packed = torch.nn.utils.rnn.pack_padded_sequence(
        embedding(tokens), lengths, batch_first=True, enforce_sorted=False
    )
    return gru(packed)[1][:, -1]


@task.fault(
    "S-HIDDEN-ORDER",
    thinks="With batch_first=True the last state has the batch first, too.",
    why="batch_first turns the inputs and the states of all steps. The last state keeps its "
    "layout (layers, batch, hidden), so your index picks one sentence instead of one layer.",
    forms=(hidden_state_of_the_first_layer_last_row,),
)
def hidden_state_with_batch_first(tokens, lengths, embedding, gru):
    packed = torch.nn.utils.rnn.pack_padded_sequence(
        embedding(tokens), lengths, batch_first=True, enforce_sorted=False
    )
    return gru(packed)[1][:, 0]


def last_state_as_it_comes(tokens, lengths, embedding, gru):
    return gru(embedding(tokens))[1]


@task.fault(
    "C-KEEPS-THE-LAYER-AXIS",
    thinks="The GRU's last state is what is asked for, as it comes.",
    why="It comes as (layers, batch, hidden), here with one layer in front. One vector for each "
    "sentence is asked for: (b hidden). And is it the state after the last *real* token?",
    forms=(last_state_as_it_comes,),
)
def keeps_the_layer_axis(tokens, lengths, embedding, gru):
    return at(states_of(tokens, embedding, gru), lengths - 1)[None]


@task.fault(
    "S-LASTSTEP",
    thinks="`states[-1]` is the state after the last step.",
    why="Axis 0 is the batch here, so this is the last sentence, with all its states. Steps lie "
    "on axis 1.",
)
def last_sentence(tokens, lengths, embedding, gru):
    return states_of(tokens, embedding, gru)[-1]


@task.fault(
    "C-ALL-BY-ALL",
    thinks="`states[:, lengths - 1]` takes from each row the place of that row.",
    why="A slice beside an index tensor means: every row, and from each of them all these "
    "places. To go through rows and places in step, both must be index tensors.",
)
def all_rows_by_all_places(tokens, lengths, embedding, gru):
    return states_of(tokens, embedding, gru)[:, lengths - 1]


@task.fault(
    "C-GATHER-ONE",
    thinks="`gather` with one index for each row picks the whole vector.",
    why="`gather` returns as many numbers as its index has. With an index (b 1 1) that is one "
    "number for each sentence; it needs one for every entry of the vector.",
)
def gathers_one_number(tokens, lengths, embedding, gru):
    states = states_of(tokens, embedding, gru)
    return states.gather(1, (lengths - 1)[:, None, None]).flatten(1)


def mean_of_all_states(tokens, lengths, embedding, gru):
    return states_of(tokens, embedding, gru).mean(1)


@task.fault(
    "C-MEAN-STATE",
    thinks="The vector of a sentence is the mean of its states.",
    why="That would be another design. Here the decoder starts from the one state in which the "
    "encoder stopped; the last state has read all words already.",
    section="encoder-decoder",
    forms=(mean_of_all_states,),
)
def mean_of_states(tokens, lengths, embedding, gru):
    real = (torch.arange(tokens.shape[1]) < lengths[:, None])[:, :, None]
    return (states_of(tokens, embedding, gru) * real).sum(1) / lengths[:, None]


@task.fault(
    "C-STATES-AND-PADS-CUT",
    thinks="Zero the states behind each sentence; then the last of them is right.",
    why="Then the last state of a short sentence is that zero. The state you want stands earlier "
    "in the row, after the last real token.",
)
def zeros_behind_each_sentence(tokens, lengths, embedding, gru):
    padded = torch.arange(tokens.shape[1]) >= lengths[:, None]
    return states_of(tokens, embedding, gru).masked_fill(padded[:, :, None], 0)[:, -1]


@task.fault(
    "C-PACK-SORTED",
    thinks="Packing takes the sentences in any order.",
    why="By default it demands the longest first and raises an error otherwise. It can also sort "
    "by itself, and put the rows back in order afterwards; look at its arguments.",
)
def packs_only_sorted_rows(tokens, lengths, embedding, gru):
    packed = torch.nn.utils.rnn.pack_padded_sequence(embedding(tokens), lengths, batch_first=True)
    return gru(packed)[1][0]


def packs_time_first_and_turns_back(tokens, lengths, embedding, gru):
    packed = torch.nn.utils.rnn.pack_padded_sequence(
        embedding(tokens), lengths, enforce_sorted=False
    )
    states, sizes = torch.nn.utils.rnn.pad_packed_sequence(gru(packed)[0])
    return states[sizes - 1, torch.arange(len(tokens))]


@task.fault(
    "C-PACK-TIME-FIRST",
    thinks="The GRU was made with batch_first=True, so packing knows that the batch comes first.",
    why="`pack_padded_sequence` does not see the GRU: it takes axis 0 for time unless it is told. "
    "It complains here, except where b equals n; there it packs columns without a word.",
    forms=(packs_time_first_and_turns_back,),
)
def packs_time_first(tokens, lengths, embedding, gru):
    packed = torch.nn.utils.rnn.pack_padded_sequence(
        embedding(tokens), lengths, enforce_sorted=False
    )
    return gru(packed)[1][0]


@task.fault(
    "C-NOT-UNSORTED",
    thinks="Sort the sentences by length, pack them, and return the states.",
    why="The caller's rows have another order than your sorted ones, so each sentence gets the "
    "vector of a neighbor. What is sorted before has to be put back after.",
)
def does_not_undo_the_sort(tokens, lengths, embedding, gru):
    order = lengths.argsort(descending=True, stable=True)
    packed = torch.nn.utils.rnn.pack_padded_sequence(
        embedding(tokens[order]), lengths[order], batch_first=True
    )
    return gru(packed)[1][0]


@task.fault(
    "C-SORTED-TWICE",
    thinks="What sorted the rows also puts them back: `last[order]`.",
    why="`order` says which row goes where; going back takes its inverse. The two agree for a swap "
    "of two rows, and not for three that move in a circle.",
)
def sorts_again_instead_of_undoing(tokens, lengths, embedding, gru):
    order = lengths.argsort(descending=True, stable=True)
    packed = torch.nn.utils.rnn.pack_padded_sequence(
        embedding(tokens[order]), lengths[order], batch_first=True
    )
    return gru(packed)[1][0][order]


@task.fault(
    "C-SQUEEZED",
    thinks="`squeeze()` takes away the layer axis.",
    why="It takes away every axis of length 1. In a batch of one sentence that is the batch axis, "
    "too, and the caller gets (hidden) instead of (1 hidden). Name the axis.",
)
def squeezes_every_axis(tokens, lengths, embedding, gru):
    return at(states_of(tokens, embedding, gru), lengths - 1).squeeze()


def encodes_detached(tokens, lengths, embedding, gru):
    return at(states_of(tokens, embedding, gru), lengths - 1).detach()


@task.fault(
    "C-ENCODER-FROZEN",
    thinks="The encoder only prepares a vector; learning happens in the decoder.",
    why="The numbers are right, but `no_grad` or `.detach()` cuts the graph: no gradient reaches "
    "the embedding or the GRU, and the encoder stays as random as it began.",
    section="encoder-decoder",
    forms=(encodes_detached,),
)
def encodes_without_gradient(tokens, lengths, embedding, gru):
    with torch.no_grad():
        return at(states_of(tokens, embedding, gru), lengths - 1)


@task.fault(
    "C-EMBEDDING-FROZEN",
    thinks="Looking up a row in a table is not something one can learn.",
    why="The table is learned like every other weight, and the values you return are right. But "
    "`.data` or `.detach()` after the lookup keeps gradients from the embedding.",
    section="ids-to-vectors",
)
def freezes_the_embedding(tokens, lengths, embedding, gru):
    return at(gru(embedding(tokens).detach())[0], lengths - 1)


@task.fault(
    "C-STATE-CARRIED",
    thinks="The GRU goes on from where it stopped at the last batch.",
    why="Your first call is right; the second starts from the states of the first. Every sentence "
    "begins from a state of zeros, or it depends on what was read before.",
    section="recurrent-encoder",
)
def carries_the_state(tokens, lengths, embedding, gru, kept={}):  # noqa: B006
    embedded = embedding(tokens)
    kind = len(tokens), gru.hidden_size, embedded.dtype  # else the GRU would only raise an error
    states, last = gru(embedded, kept.get(kind))
    kept[kind] = last.detach()
    return at(states, lengths - 1)


@task.fault(
    "C-WIPES-THE-PAD-ROW",
    thinks="Setting the embedding's row of the pad to zero hides the padding.",
    why="It edits a learned table that belongs to the caller, and it hides nothing: the GRU makes "
    "a step for a zero vector, too.",
)
def wipes_the_pad_row(tokens, lengths, embedding, gru):
    embedding.weight.data[0] = 0
    return at(states_of(tokens, embedding, gru), lengths - 1)


def counts_down_in_place(tokens, lengths, embedding, gru):
    lengths.sub_(1)
    return at(states_of(tokens, embedding, gru), lengths)


@task.fault(
    "C-EDITS-THE-LENGTHS",
    thinks="`lengths -= 1` turns the lengths into places.",
    why="It does, in the caller's own tensor: whoever uses the lengths again has lost a word of "
    "each sentence. `lengths - 1` makes a new tensor.",
    forms=(counts_down_in_place,),
)
def edits_the_lengths(tokens, lengths, embedding, gru):
    lengths -= 1
    return at(states_of(tokens, embedding, gru), lengths)
