"""Wrong answers of chapter 1. Ids S-… are the course catalogue's, C-… our own.

Each function below differs from a right answer in one thought. Everything else about it is right,
so that the judge can recognize that thought.
"""

from functools import partial

import torch

from attncourse.misconceptions import Collection

collection = Collection()
wrong = collection.misconception

# --- encode -------------------------------------------------------------------------------------


def states_of(tokens, embedding, gru):
    """The state after every position, padding too: (b n hidden)."""
    return gru(embedding(tokens))[0]


def at(states, places):
    """From each row the state at its own place."""
    return states[torch.arange(len(states)), places]


def last_hidden_state(tokens, lengths, embedding, gru):
    return gru(embedding(tokens))[1][0]


@wrong(
    "S-PAD-ENC",
    "encode",
    thinks="The state after the last position is the state of the sentence.",
    why="Behind a short sentence the last positions are padding, and the GRU reads it like words. "
    "Its state goes on changing, so the vector depends on the neighbors in the batch.",
    section="last-real-token",
    variants=(last_hidden_state,),
)
def last_position(tokens, lengths, embedding, gru):
    return states_of(tokens, embedding, gru)[:, -1]


@wrong(
    "C-LONGEST",
    "encode",
    thinks="The longest sentence ends the batch, so its last place is the last place of all.",
    why="It is right for the longest sentence only. A shorter one has read padding by then. Each "
    "row stops at a place of its own.",
    section="last-real-token",
)
def place_of_the_longest(tokens, lengths, embedding, gru):
    return states_of(tokens, embedding, gru)[:, lengths.max() - 1]


def one_too_far_unchecked(tokens, lengths, embedding, gru):
    return at(states_of(tokens, embedding, gru), lengths)


def one_too_far_wrapped(tokens, lengths, embedding, gru):
    return at(states_of(tokens, embedding, gru), lengths % tokens.shape[1])


@wrong(
    "C-ONE-TOO-FAR",
    "encode",
    thinks="A sentence with 3 tokens ends at place 3.",
    why="Counting starts at 0: its tokens stand at places 0, 1 and 2. Place 3 is the first pad, or "
    "lies outside.",
    section="last-real-token",
    variants=(one_too_far_unchecked, one_too_far_wrapped),
)
def one_too_far(tokens, lengths, embedding, gru):
    return at(states_of(tokens, embedding, gru), lengths.clamp(max=tokens.shape[1] - 1))


def one_too_early_wrapped(tokens, lengths, embedding, gru):
    return at(states_of(tokens, embedding, gru), lengths - 2)


@wrong(
    "C-ONE-TOO-EARLY",
    "encode",
    thinks="The last token is <eos>, so the sentence ends one place before.",
    why="Here the source has no <eos>: `lengths` counts real tokens, and each of them matters. "
    "Your vector has not read the last word.",
    section="last-real-token",
    variants=(one_too_early_wrapped,),
)
def one_too_early(tokens, lengths, embedding, gru):
    return at(states_of(tokens, embedding, gru), (lengths - 2).clamp(min=0))


def zero_pads_by_product(tokens, lengths, embedding, gru):
    real = torch.arange(tokens.shape[1]) < lengths[:, None]
    return gru(embedding(tokens) * real[:, :, None])[1][0]


@wrong(
    "C-ZERO-PADS",
    "encode",
    thinks="A pad whose embedding is zero does not change the state.",
    why="With x = 0 the GRU still computes a new state from the old one, its recurrent weights and "
    "its biases. Only a step that is not made changes nothing.",
    section="recurrent-encoder",
    variants=(zero_pads_by_product,),
)
def zero_pads(tokens, lengths, embedding, gru):
    padded = torch.arange(tokens.shape[1]) >= lengths[:, None]
    return gru(embedding(tokens).masked_fill(padded[:, :, None], 0))[0][:, -1]


def lengths_from_zeros_packed(tokens, lengths, embedding, gru):
    real = (tokens != 0).sum(1).clamp(min=1)
    return at(states_of(tokens, embedding, gru), real - 1)


@wrong(
    "C-LENGTHS-FROM-ZEROS",
    "encode",
    thinks="Padding is id 0, so I count the tokens that are not 0.",
    why="That holds in this course's corpus, but `encode` is told the lengths and not which id "
    "pads. Elsewhere 0 may be a word, and padding another id.",
    section="last-real-token",
    variants=(lengths_from_zeros_packed,),
)
def lengths_from_zeros(tokens, lengths, embedding, gru):
    return at(states_of(tokens, embedding, gru), (tokens != 0).sum(1) - 1)


@wrong(
    "S-BWD-PAD",
    "encode",
    thinks="Read backward, so that the first words come last: flip the tokens.",
    why="Flipping a padded row puts its padding first. The state has been through all pads before "
    "it meets a word, and then ends at the first word.",
    section="last-real-token",
)
def reads_backward(tokens, lengths, embedding, gru):
    return states_of(tokens.flip(1), embedding, gru)[:, -1]


@wrong(
    "C-TIME-FIRST",
    "encode",
    thinks="A GRU wants time first, so I turn the tokens before I hand them over.",
    why="This one was made with batch_first=True: axis 0 is the batch. Turned around, it reads "
    "down the columns, from one sentence into the next.",
    section="last-real-token",
)
def time_first(tokens, lengths, embedding, gru):
    states, _ = gru(embedding(tokens.T))
    return states[lengths - 1, torch.arange(len(tokens))]


def hidden_state_of_the_first_layer_last_row(tokens, lengths, embedding, gru):
    packed = torch.nn.utils.rnn.pack_padded_sequence(
        embedding(tokens), lengths, batch_first=True, enforce_sorted=False
    )
    return gru(packed)[1][:, -1]


@wrong(
    "S-HIDDEN-ORDER",
    "encode",
    thinks="With batch_first=True the last state has the batch first, too.",
    why="batch_first turns the inputs and the states of all steps. The last state keeps its "
    "layout (layers, batch, hidden), so your index picks one sentence instead of one layer.",
    section="last-real-token",
    variants=(hidden_state_of_the_first_layer_last_row,),
)
def hidden_state_with_batch_first(tokens, lengths, embedding, gru):
    packed = torch.nn.utils.rnn.pack_padded_sequence(
        embedding(tokens), lengths, batch_first=True, enforce_sorted=False
    )
    return gru(packed)[1][:, 0]


def last_state_as_it_comes(tokens, lengths, embedding, gru):
    return gru(embedding(tokens))[1]


@wrong(
    "C-KEEPS-THE-LAYER-AXIS",
    "encode",
    thinks="The GRU's last state is what is asked for, as it comes.",
    why="It comes as (layers, batch, hidden), here with one layer in front. One vector for each "
    "sentence is asked for: (b hidden). And is it the state after the last *real* token?",
    section="last-real-token",
    variants=(last_state_as_it_comes,),
)
def keeps_the_layer_axis(tokens, lengths, embedding, gru):
    return at(states_of(tokens, embedding, gru), lengths - 1)[None]


@wrong(
    "S-LASTSTEP",
    "encode",
    thinks="`states[-1]` is the state after the last step.",
    why="Axis 0 is the batch here, so this is the last sentence, with all its states. Steps lie "
    "on axis 1.",
    section="last-real-token",
)
def last_sentence(tokens, lengths, embedding, gru):
    return states_of(tokens, embedding, gru)[-1]


@wrong(
    "C-ALL-BY-ALL",
    "encode",
    thinks="`states[:, lengths - 1]` takes from each row the place of that row.",
    why="A slice beside an index tensor means: every row, and from each of them all these "
    "places. To go through rows and places in step, both must be index tensors.",
    section="last-real-token",
)
def all_rows_by_all_places(tokens, lengths, embedding, gru):
    return states_of(tokens, embedding, gru)[:, lengths - 1]


@wrong(
    "C-GATHER-ONE",
    "encode",
    thinks="`gather` with one index for each row picks the whole vector.",
    why="`gather` returns as many numbers as its index has. With an index (b 1 1) that is one "
    "number for each sentence; it needs one for every entry of the vector.",
    section="last-real-token",
)
def gathers_one_number(tokens, lengths, embedding, gru):
    states = states_of(tokens, embedding, gru)
    return states.gather(1, (lengths - 1)[:, None, None]).flatten(1)


def mean_of_all_states(tokens, lengths, embedding, gru):
    return states_of(tokens, embedding, gru).mean(1)


@wrong(
    "C-MEAN-STATE",
    "encode",
    thinks="The vector of a sentence is the mean of its states.",
    why="That would be another design. Here the decoder starts from the one state in which the "
    "encoder stopped; the last state has read all words already.",
    section="encoder-decoder",
    variants=(mean_of_all_states,),
)
def mean_of_states(tokens, lengths, embedding, gru):
    real = (torch.arange(tokens.shape[1]) < lengths[:, None])[:, :, None]
    return (states_of(tokens, embedding, gru) * real).sum(1) / lengths[:, None]


@wrong(
    "C-STATES-AND-PADS-CUT",
    "encode",
    thinks="Zero the states behind each sentence; then the last of them is right.",
    why="Then the last state of a short sentence is that zero. The state you want stands earlier "
    "in the row, after the last real token.",
    section="last-real-token",
)
def zeros_behind_each_sentence(tokens, lengths, embedding, gru):
    padded = torch.arange(tokens.shape[1]) >= lengths[:, None]
    return states_of(tokens, embedding, gru).masked_fill(padded[:, :, None], 0)[:, -1]


@wrong(
    "C-PACK-SORTED",
    "encode",
    thinks="Packing takes the sentences in any order.",
    why="By default it demands the longest first and raises an error otherwise. It can also sort "
    "by itself, and put the rows back in order afterwards; look at its arguments.",
    section="last-real-token",
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


@wrong(
    "C-PACK-TIME-FIRST",
    "encode",
    thinks="The GRU was made with batch_first=True, so packing knows that the batch comes first.",
    why="`pack_padded_sequence` does not see the GRU: it takes axis 0 for time unless it is told. "
    "It complains here, except where b equals n; there it packs columns without a word.",
    section="last-real-token",
    variants=(packs_time_first_and_turns_back,),
)
def packs_time_first(tokens, lengths, embedding, gru):
    packed = torch.nn.utils.rnn.pack_padded_sequence(
        embedding(tokens), lengths, enforce_sorted=False
    )
    return gru(packed)[1][0]


@wrong(
    "C-NOT-UNSORTED",
    "encode",
    thinks="Sort the sentences by length, pack them, and return the states.",
    why="The caller's rows have another order than your sorted ones, so each sentence gets the "
    "vector of a neighbor. What is sorted before has to be put back after.",
    section="last-real-token",
)
def does_not_undo_the_sort(tokens, lengths, embedding, gru):
    order = lengths.argsort(descending=True, stable=True)
    packed = torch.nn.utils.rnn.pack_padded_sequence(
        embedding(tokens[order]), lengths[order], batch_first=True
    )
    return gru(packed)[1][0]


@wrong(
    "C-SORTED-TWICE",
    "encode",
    thinks="What sorted the rows also puts them back: `last[order]`.",
    why="`order` says which row goes where; going back takes its inverse. The two agree for a swap "
    "of two rows, and not for three that move in a circle.",
    section="last-real-token",
)
def sorts_again_instead_of_undoing(tokens, lengths, embedding, gru):
    order = lengths.argsort(descending=True, stable=True)
    packed = torch.nn.utils.rnn.pack_padded_sequence(
        embedding(tokens[order]), lengths[order], batch_first=True
    )
    return gru(packed)[1][0][order]


@wrong(
    "C-SQUEEZED",
    "encode",
    thinks="`squeeze()` takes away the layer axis.",
    why="It takes away every axis of length 1. In a batch of one sentence that is the batch axis, "
    "too, and the caller gets (hidden) instead of (1 hidden). Name the axis.",
    section="last-real-token",
)
def squeezes_every_axis(tokens, lengths, embedding, gru):
    return at(states_of(tokens, embedding, gru), lengths - 1).squeeze()


def encodes_detached(tokens, lengths, embedding, gru):
    return at(states_of(tokens, embedding, gru), lengths - 1).detach()


@wrong(
    "C-ENCODER-FROZEN",
    "encode",
    thinks="The encoder only prepares a vector; learning happens in the decoder.",
    why="The numbers are right, but `no_grad` or `.detach()` cuts the graph: no gradient reaches "
    "the embedding or the GRU, and the encoder stays as random as it began.",
    section="encoder-decoder",
    variants=(encodes_detached,),
)
def encodes_without_gradient(tokens, lengths, embedding, gru):
    with torch.no_grad():
        return at(states_of(tokens, embedding, gru), lengths - 1)


@wrong(
    "C-EMBEDDING-FROZEN",
    "encode",
    thinks="Looking up a row in a table is not something one can learn.",
    why="The table is learned like every other weight, and the values you return are right. But "
    "`.data` or `.detach()` after the lookup keeps gradients from the embedding.",
    section="ids-to-vectors",
)
def freezes_the_embedding(tokens, lengths, embedding, gru):
    return at(gru(embedding(tokens).detach())[0], lengths - 1)


@wrong(
    "C-STATE-CARRIED",
    "encode",
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


@wrong(
    "C-WIPES-THE-PAD-ROW",
    "encode",
    thinks="Setting the embedding's row of the pad to zero hides the padding.",
    why="It edits a learned table that belongs to the caller, and it hides nothing: the GRU makes "
    "a step for a zero vector, too.",
    section="last-real-token",
)
def wipes_the_pad_row(tokens, lengths, embedding, gru):
    embedding.weight.data[0] = 0
    return at(states_of(tokens, embedding, gru), lengths - 1)


def counts_down_in_place(tokens, lengths, embedding, gru):
    lengths.sub_(1)
    return at(states_of(tokens, embedding, gru), lengths)


@wrong(
    "C-EDITS-THE-LENGTHS",
    "encode",
    thinks="`lengths -= 1` turns the lengths into places.",
    why="It does, in the caller's own tensor: whoever uses the lengths again has lost a word of "
    "each sentence. `lengths - 1` makes a new tensor.",
    section="last-real-token",
    variants=(counts_down_in_place,),
)
def edits_the_lengths(tokens, lengths, embedding, gru):
    lengths -= 1
    return at(states_of(tokens, embedding, gru), lengths)


# --- teacher_inputs -----------------------------------------------------------------------------


def shifted(target, first):
    """Behind `first` (b 1), the target without its last word."""
    return torch.cat([first, target[:, :-1]], dim=1)


@wrong(
    "S-SHIFT",
    "teacher_inputs",
    thinks="Teacher forcing hands the decoder the target.",
    why="Then it takes in the very word that it must predict. Copying is learned at once, the loss "
    "falls to 0, and at the test there is nothing to copy from.",
    section="bottleneck-breaks",
)
def no_shift(target, bos):
    return target.clone()


@wrong(
    "C-SHIFT-LEFT",
    "teacher_inputs",
    thinks="The decoder takes in the next word, so the row moves to the left.",
    why="The next word is the one to be predicted, or lies even further on. What the decoder may "
    "know is what comes before.",
    section="teacher-forcing",
)
def shift_left(target, bos):
    return torch.cat([target[:, 1:], torch.full_like(target[:, :1], bos)], dim=1)


@wrong(
    "C-NOTHING-DROPPED",
    "teacher_inputs",
    thinks="Put bos in front, and the target behind it.",
    why="Now there is one input more than there are words to predict. After the last word nothing "
    "is to be predicted, so one input is of no use.",
    section="teacher-forcing",
)
def drops_nothing(target, bos):
    return torch.cat([torch.full_like(target[:, :1], bos), target], dim=1)


@wrong(
    "C-NO-BOS",
    "teacher_inputs",
    thinks="The inputs are the target without its last word.",
    why="That is the whole story where the target begins with bos already. Here it does not: the "
    "first word has no input from which it could be predicted.",
    section="teacher-forcing",
)
def drops_the_last_word_only(target, bos):
    return target[:, :-1]


@wrong(
    "C-WRAPS-AROUND",
    "teacher_inputs",
    thinks="`roll` shifts a row to the right.",
    why="It does, and brings the last word round to the front. There the decoder should find bos; "
    "instead it is told how the sentence ends.",
    section="teacher-forcing",
)
def rolls(target, bos):
    return target.roll(1, dims=1)


@wrong(
    "C-SHIFTS-ROWS",
    "teacher_inputs",
    thinks="Shifting moves everything one place along the first axis.",
    why="The first axis is the batch: each sentence now takes in the words of its neighbor. "
    "Positions lie on axis 1.",
    section="teacher-forcing",
)
def shifts_rows(target, bos):
    return torch.cat([torch.full_like(target[:1], bos), target[:-1]], dim=0)


@wrong(
    "C-FLAT-SHIFT",
    "teacher_inputs",
    thinks="The batch is one long list of ids that moves by one place.",
    why="At the border of two rows a word crosses over: all rows but the first begin with the last "
    "word of the row above. Every row needs a bos of its own.",
    section="teacher-forcing",
)
def shifts_the_flat_list(target, bos):
    flat = torch.cat([target.new_tensor([bos]), target.flatten()[:-1]])
    return flat.view_as(target)


@wrong(
    "C-REPLACES-THE-FIRST",
    "teacher_inputs",
    thinks="The first word becomes bos, and the others stay.",
    why="Then from the second word on the decoder takes in the word that it must predict, and the "
    "first word is lost. The others have to move.",
    section="teacher-forcing",
)
def replaces_the_first_word(target, bos):
    inputs = target.clone()
    inputs[:, 0] = bos
    return inputs


@wrong(
    "C-TWO-PLACES",
    "teacher_inputs",
    thinks="Bos goes in front, and the word before goes in as well: two places.",
    why="One place is enough: word t is predicted from word t − 1. Yours sees word t − 2 last and "
    "has to guess what came between.",
    section="teacher-forcing",
)
def shifts_by_two(target, bos):
    first = torch.full_like(target[:, :2], bos)
    return torch.cat([first, target[:, :-2]], dim=1)


@wrong(
    "S-BOS-MISMATCH",
    "teacher_inputs",
    thinks="The free place in front is filled with 0.",
    why="0 is the padding in this course. Decoding will start from bos, a token with which your "
    "decoder has then never seen a sentence begin.",
    section="bottleneck-breaks",
)
def fills_with_zero(target, bos):
    return torch.nn.functional.pad(target[:, :-1], (1, 0))


@wrong(
    "C-BOS-BY-HEART",
    "teacher_inputs",
    thinks="The id of bos is 1.",
    why="In this course it is. The function is told the id as an argument, so that it works with "
    "any vocabulary.",
    section="teacher-forcing",
)
def bos_is_one(target, bos):
    return shifted(target, torch.ones_like(target[:, :1]))


def shifts_in_place_backward(target, bos):
    for place in range(target.shape[1] - 1, 0, -1):
        target[:, place] = target[:, place - 1]
    target[:, 0] = bos
    return target


@wrong(
    "C-EDITS-THE-TARGET",
    "teacher_inputs",
    thinks="Working within the target saves a copy.",
    why="The caller still needs the target for the loss, and finds it changed: the decoder would "
    "learn to predict something else. Make a new tensor.",
    section="teacher-forcing",
    variants=(shifts_in_place_backward,),
)
def shifts_in_place(target, bos):
    target[:, 1:] = target[:, :-1].clone()
    target[:, 0] = bos
    return target


@wrong(
    "C-COPIES-THE-FIRST",
    "teacher_inputs",
    thinks="Assigning the words one place further, from the front, shifts the row.",
    why="The second word is overwritten by the first before it could move on, and so down the "
    "row: all words end up equal. Read from the old row, write to a new one.",
    section="teacher-forcing",
)
def shifts_over_itself(target, bos):
    inputs = target.clone()
    for place in range(1, inputs.shape[1]):
        inputs[:, place] = inputs[:, place - 1]
    inputs[:, 0] = bos
    return inputs


@wrong(
    "C-IDS-AS-FLOATS",
    "teacher_inputs",
    thinks="`torch.ones` times bos makes a column of bos.",
    why="It makes a column of floats, and joined to it all ids become floats. An embedding looks "
    "rows up by whole numbers.",
    section="ids-to-vectors",
)
def ids_as_floats(target, bos):
    return shifted(target, bos * torch.ones(len(target), 1))


def zeros_stay_zeros(target, bos):
    return torch.where(target == 0, 0, shifted(target, torch.full_like(target[:, :1], bos)))


@wrong(
    "C-SHIFTS-AROUND-PADDING",
    "teacher_inputs",
    thinks="Padding stays where it is; only real words move.",
    why="`teacher_inputs` is not told which id pads: 0 may be a word. Nor does it matter what "
    "stands before a pad, since that position has no loss.",
    section="teacher-forcing",
)
def padding_stays(target, bos):
    return torch.where(target == 0, target, shifted(target, torch.full_like(target[:, :1], bos)))


@wrong(
    "C-EOS-TAKEN-OUT",
    "teacher_inputs",
    thinks="The decoder must not take in eos, so it becomes padding.",
    why="Taking it in does no harm: what comes out at that place has no loss. And the function is "
    "not told which id is eos; in another vocabulary 2 is a word.",
    section="teacher-forcing",
)
def eos_becomes_padding(target, bos):
    inputs = shifted(target, torch.full_like(target[:, :1], bos))
    inputs[:, 1:][inputs[:, 1:] == 2] = 0
    return inputs


# --- sequence_loss ------------------------------------------------------------------------------


def losses(logits, target):
    """−log p(target) at every position (b n)."""
    return -logits.log_softmax(-1).gather(-1, target[:, :, None])[:, :, 0]


def over(loss, real):
    """Mean of (b n) over real positions."""
    return loss[real].mean()


@wrong(
    "S-CE-PAD",
    "sequence_loss",
    thinks="The mean goes over all positions.",
    why="Padding is easy to predict, so a batch with much of it looks better than it is. The loss "
    "must not change when more padding is appended.",
    section="token-loss",
)
def mean_over_everything(logits, target, pad):
    return losses(logits, target).mean()


@wrong(
    "C-PADS-IN-THE-COUNT",
    "sequence_loss",
    thinks="Set the loss of padding to 0, then take the mean.",
    why="The sum is right now, but the mean still divides by all positions. With more padding "
    "your loss sinks. By how many tokens should it divide?",
    section="token-loss",
)
def divides_by_all_positions(logits, target, pad):
    return (losses(logits, target) * (target != pad)).mean()


@wrong(
    "C-PADS-IN-THE-SUM",
    "sequence_loss",
    thinks="Dividing by the number of real tokens leaves the padding out.",
    why="The divisor is right, but the sum above it still contains the loss of every pad. Both "
    "halves of the mean have to leave them out.",
    section="token-loss",
)
def sums_over_all_positions(logits, target, pad):
    return losses(logits, target).sum() / (target != pad).sum()


@wrong(
    "C-SUM-OF-LOSSES",
    "sequence_loss",
    thinks="The loss of a batch is the sum over its tokens.",
    why="Then a batch with twice the words has twice the loss, and twice the gradient. A mean can "
    "be compared from batch to batch.",
    section="token-loss",
)
def sum_over_tokens(logits, target, pad):
    return losses(logits, target)[target != pad].sum()


@wrong(
    "C-MEAN-OF-MEANS",
    "sequence_loss",
    thinks="First a mean for each sentence, then the mean of those.",
    why="Then a word of a short sentence counts more than a word of a long one. The loss here is a "
    "mean over tokens: each counts the same.",
    section="token-loss",
)
def mean_of_means(logits, target, pad):
    real = target != pad
    each = (losses(logits, target) * real).sum(1) / real.sum(1)
    return each.mean()


@wrong(
    "C-PER-SENTENCE",
    "sequence_loss",
    thinks="Divide the sum by the number of sentences.",
    why="That is the loss of a whole sentence, and it grows with its length. The mean over tokens "
    "is asked for.",
    section="token-loss",
)
def divides_by_sentences(logits, target, pad):
    return losses(logits, target)[target != pad].sum() / len(target)


@wrong(
    "C-PAD-BY-HEART",
    "sequence_loss",
    thinks="Padding is id 0.",
    why="In this course it is. The function is told the id as `pad`; with another vocabulary 0 is "
    "a word like any other, and yours would leave it out.",
    section="token-loss",
)
def pad_is_zero(logits, target, pad):
    real = target != 0
    return losses(logits, target)[real].sum() / real.sum().clamp(min=1)


def reshapes_and_flattens(logits, target, pad):
    b, n, words = logits.shape
    classes = logits.reshape(b, words, n).transpose(1, 2)
    return over(losses(classes, target), target != pad)


@wrong(
    "C-RESHAPED-CLASSES",
    "sequence_loss",
    thinks="Reshaping (b n vocab) into (b vocab n) puts the classes on axis 1.",
    why="A reshape cuts the same list of numbers into other rows; it never moves one. The shape is "
    "right, but scores of several positions are mixed up.",
    section="token-loss",
    variants=(reshapes_and_flattens,),
)
def reshapes_instead_of_turning(logits, target, pad):
    b, n, words = logits.shape
    classes = logits.reshape(b, words, n)
    return torch.nn.functional.cross_entropy(classes, target, ignore_index=pad)


@wrong(
    "C-CLASSES-LAST",
    "sequence_loss",
    thinks="`cross_entropy` finds the classes on the last axis.",
    why="It expects them on axis 1: (b vocab n). It complains here, except where n equals the size "
    "of the vocabulary; there it computes something else without a word.",
    section="token-loss",
)
def classes_on_the_last_axis(logits, target, pad):
    return torch.nn.functional.cross_entropy(logits, target, ignore_index=pad)


@wrong(
    "C-SOFTMAX-TWICE",
    "sequence_loss",
    thinks="Cross-entropy needs probabilities, so softmax comes first.",
    why="`cross_entropy` takes logits and applies softmax itself. Applied twice, even a certain "
    "and right answer keeps a large loss, and gradients are small.",
    section="token-loss",
)
def softmax_twice(logits, target, pad):
    return over(losses(logits.softmax(-1), target), target != pad)


def minus_probability(logits, target, pad):
    return -over((-losses(logits, target)).exp(), target != pad)


@wrong(
    "C-NO-LOGARITHM",
    "sequence_loss",
    thinks="The loss is one minus the probability of the right word.",
    why="Cross-entropy is −ln p. At p near 1 the two agree; near 0 the logarithm grows without "
    "limit, so a confident error hurts.",
    section="token-loss",
    variants=(minus_probability,),
)
def one_minus_probability(logits, target, pad):
    return over(1 - (-losses(logits, target)).exp(), target != pad)


@wrong(
    "C-SIGN",
    "sequence_loss",
    thinks="The loss is the mean log-probability of the right words.",
    why="Log-probabilities are negative, and better when they are larger. A loss must get smaller "
    "when the model gets better. One sign is missing.",
    section="token-loss",
)
def without_the_minus(logits, target, pad):
    return over(-losses(logits, target), target != pad)


@wrong(
    "C-PERPLEXITY",
    "sequence_loss",
    thinks="A translator is measured by its perplexity, exp of the cross-entropy.",
    why="Perplexity is a way to report the loss. Asked for is the mean of −ln p itself, in nats a "
    "token.",
    section="token-loss",
)
def perplexity(logits, target, pad):
    return over(losses(logits, target), target != pad).exp()


@wrong(
    "C-BITS",
    "sequence_loss",
    thinks="Information is counted in bits, with the logarithm to base 2.",
    why="It can be, but here the loss is in nats: the natural logarithm, as everywhere in PyTorch. "
    "A blind guess among V words loses ln V.",
    section="token-loss",
)
def in_bits(logits, target, pad):
    return over(losses(logits, target), target != pad) / torch.tensor(2.0).log().to(logits)


@wrong(
    "C-NO-SOFTMAX",
    "sequence_loss",
    thinks="The score of the right word, with a minus, is its loss.",
    why="A score means little by itself: add 5 to all of them and nothing has changed for the "
    "model. The softmax compares the right word with the others.",
    section="token-loss",
)
def minus_the_score(logits, target, pad):
    return over(-logits.gather(-1, target[:, :, None])[:, :, 0], target != pad)


@wrong(
    "C-POSITIONS-COMPETE",
    "sequence_loss",
    thinks="The softmax runs over axis 1.",
    why="Axis 1 holds the positions, so words at different places compete with each other. The "
    "words of the vocabulary compete, at each position by itself; they are on the last axis.",
    section="token-loss",
)
def softmax_over_positions(logits, target, pad):
    right = logits.log_softmax(1).gather(-1, target[:, :, None])[:, :, 0]
    return over(-right, target != pad)


@wrong(
    "C-PAD-NEVER-PREDICTED",
    "sequence_loss",
    thinks="Nobody should predict padding, so its score is left out of the softmax.",
    why="`pad` says which targets do not count. Its score still takes part in every softmax, "
    "else the model may give it any probability for free.",
    section="token-loss",
)
def pad_out_of_the_softmax(logits, target, pad):
    real = target != pad
    hidden = torch.arange(logits.shape[-1]) == pad
    masked = logits.masked_fill(hidden, torch.finfo(logits.dtype).min)
    safe = torch.where(real, target, (target + 1) % logits.shape[-1])
    return over(losses(masked, safe), real)


@wrong(
    "C-MASKED-BY-PREDICTION",
    "sequence_loss",
    thinks="Positions where the model says padding are padding.",
    why="A model that says pad in the middle of a sentence would not pay for it. The target "
    "tells which positions are real.",
    section="token-loss",
)
def masks_by_prediction(logits, target, pad):
    real = (target != pad) & (logits.argmax(-1) != pad)
    return losses(logits, target)[real].sum() / real.sum().clamp(min=1)


@wrong(
    "C-SHIFTS-AGAIN",
    "sequence_loss",
    thinks="Logits at place t predict the word at t + 1, so they are compared with a shift.",
    why="The shift is made already: `teacher_inputs` moved the inputs, so logits and target stand "
    "at the same place. Shifted twice, the decoder learns to skip a word.",
    section="teacher-forcing",
)
def shifts_again(logits, target, pad):
    return over(losses(logits[:, :-1], target[:, 1:]), target[:, 1:] != pad)


def log_of_softmax_plus_epsilon(logits, target, pad, epsilon=1e-9):
    p = logits.softmax(-1).gather(-1, target[:, :, None])[:, :, 0]
    return over(-(p + epsilon).log(), target != pad)


def log_of_softmax_clamped(logits, target, pad, epsilon=1e-12):
    p = logits.softmax(-1).gather(-1, target[:, :, None])[:, :, 0]
    return over(-p.clamp(min=epsilon).log(), target != pad)


OTHER_EPSILONS = (
    *(partial(log_of_softmax_plus_epsilon, epsilon=10.0**-n) for n in (6, 7, 8, 10, 12)),
    *(partial(log_of_softmax_clamped, epsilon=10.0**-n) for n in (6, 7, 8, 9, 10)),
)


@wrong(
    "C-LOG-OF-SOFTMAX",
    "sequence_loss",
    thinks="Softmax first, then the logarithm of it.",
    why="A probability of exp(−300) is 0 in float32, and its logarithm infinite; a small number "
    "added hides how wrong the model is. Both steps in one (log_softmax) stay exact.",
    section="token-loss",
    variants=(log_of_softmax_plus_epsilon, log_of_softmax_clamped, *OTHER_EPSILONS),
)
def log_of_softmax(logits, target, pad):
    p = logits.softmax(-1).gather(-1, target[:, :, None])[:, :, 0]
    return over(-p.log(), target != pad)


def naive_log_sum(logits, target, pad):
    right = logits.gather(-1, target[:, :, None])[:, :, 0]
    return over(logits.exp().sum(-1).log() - right, target != pad)


@wrong(
    "C-NAIVE-LOG-SUM",
    "sequence_loss",
    thinks="The formula has exp of the logits, so that is what I compute.",
    why="exp(89) is infinite in float32. PyTorch's own log_softmax, logsumexp and cross_entropy "
    "move the largest logit to 0 first; that changes no probability.",
    section="token-loss",
    variants=(naive_log_sum,),
)
def naive_softmax(logits, target, pad):
    p = logits.exp() / logits.exp().sum(-1, keepdim=True)
    return over(-p.gather(-1, target[:, :, None])[:, :, 0].log(), target != pad)


def loss_from_a_number(logits, target, pad):
    return torch.tensor(over(losses(logits, target), target != pad).item(), dtype=logits.dtype)


@wrong(
    "C-LOSS-CUT-OFF",
    "sequence_loss",
    thinks="The loss is a number, and the number is right.",
    why="It is, but `.item()`, `.detach()` or `no_grad` cut it off from the logits. Training needs "
    "a loss through which gradients flow back.",
    section="bottleneck-training",
    variants=(loss_from_a_number,),
)
def loss_detached(logits, target, pad):
    return over(losses(logits, target), target != pad).detach()


@wrong(
    "C-LOSS-AS-FLOAT",
    "sequence_loss",
    thinks="One number is returned as a Python float.",
    why="A float has no graph behind it, so no gradient can flow back through it. Return the "
    "tensor; whoever wants to print it calls `.item()` later.",
    section="bottleneck-training",
)
def loss_as_float(logits, target, pad):
    return over(losses(logits, target), target != pad).item()


def zeros_at_padding(logits, target, pad):
    return losses(logits, target) * (target != pad)


@wrong(
    "C-NOT-AVERAGED",
    "sequence_loss",
    thinks="Each token has its loss, so I return them all.",
    why="Every token does, but a step of training needs one number for the batch. Take the mean "
    "over the real ones.",
    section="token-loss",
    variants=(zeros_at_padding,),
)
def not_averaged(logits, target, pad):
    return losses(logits, target)[target != pad]


@wrong(
    "C-LOSS-FLOAT32",
    "sequence_loss",
    thinks="A loss is a float32.",
    why="It has the dtype of the logits. From float64 you drop half of the digits on the way.",
    section="token-loss",
)
def loss_in_float32(logits, target, pad):
    return over(losses(logits.float(), target), target != pad)


@wrong(
    "C-EDITS-THE-LOGITS",
    "sequence_loss",
    thinks="I may wipe the logits of padding before I compare.",
    why="They belong to the caller, who finds them changed. Choose which losses to keep instead.",
    section="token-loss",
)
def wipes_logits(logits, target, pad):
    loss = over(losses(logits, target), target != pad)
    with torch.no_grad():
        logits[target == pad] = 0
    return loss


@wrong(
    "C-MARKS-THE-TARGET",
    "sequence_loss",
    thinks="`target[target == pad] = -100` is the usual trick.",
    why="It works, and it also writes −100 into the caller's target, where the next call finds an "
    "id that no vocabulary has. Let `torch.where` make a new tensor, or name the id to ignore.",
    section="token-loss",
)
def marks_the_target(logits, target, pad):
    target[target == pad] = -100
    return torch.nn.functional.cross_entropy(logits.transpose(1, 2), target)


# --- greedy_decode ------------------------------------------------------------------------------

DECODE = "greedy_decode"


@wrong(
    "S-BOS-MISMATCH",
    DECODE,
    thinks="Decoding starts from a row of zeros.",
    why="Training began every sentence with bos, and 0 is the padding. The decoder has never seen "
    "a sentence begin like this.",
    section="bottleneck-breaks",
)
def starts_from_zero(step, state, bos, eos, max_length, batch_size):
    return decode(step, state, 0, eos, max_length, batch_size)


@wrong(
    "C-BOS-BY-HEART",
    DECODE,
    thinks="The first id handed to the decoder is 1.",
    why="In this course bos is 1. The function gets the id as an argument, so that it works with "
    "any vocabulary.",
    section="greedy-decoding",
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


@wrong(
    "C-ONE-SENTENCE",
    DECODE,
    thinks="Decoding starts from one bos.",
    why="There is a row for each sentence, and each needs its own word at every step, so its own "
    "bos, too. `batch_size` says how many.",
    section="greedy-decoding",
    variants=(one_id_as_a_number,),
)
def one_bos_for_all(step, state, bos, eos, max_length, batch_size):
    return decode(step, state, bos, eos, max_length, 1)


@wrong(
    "C-STATE-FIRST",
    DECODE,
    thinks="`step` returns the new state first, then the logits.",
    why="It is the other way round: logits, then state. You look for the likeliest word in the "
    "state, and hand the logits on as a state.",
    section="greedy-decoding",
)
def takes_the_state_for_the_logits(step, state, bos, eos, max_length, batch_size):
    return decode(
        lambda token, state: step(token, state)[::-1], state, bos, eos, max_length, batch_size
    )


@wrong(
    "C-COLUMN-OF-WORDS",
    DECODE,
    thinks="The decoder takes in a column, one word for each row and one position.",
    why="`step` takes in one id for each row: (b), without an axis for positions. It makes that "
    "axis itself, if it needs one.",
    section="greedy-decoding",
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


@wrong(
    "C-EOS-BY-HEART",
    DECODE,
    thinks="The id of eos is 2.",
    why="In this course it is. In another vocabulary 2 is a word: a sentence would end with it, "
    "and go on behind its real end. The function gets the id as `eos`.",
    section="greedy-decoding",
)
def eos_is_two(step, state, bos, eos, max_length, batch_size):
    return decode(step, state, bos, 2, max_length, batch_size)


@wrong(
    "C-NOT-FED-BACK",
    DECODE,
    thinks="The state remembers what was written, so every step gets bos.",
    why="The state knows what the decoder took in, and which of its words was the likeliest you "
    "decided outside. The word has to be handed to the next step.",
    section="greedy-decoding",
)
def always_hands_over_bos(step, state, bos, eos, max_length, batch_size):
    token = torch.full((batch_size,), bos)
    written = []
    for _ in range(max_length):
        logits, state = step(token, state)
        written.append(logits.argmax(-1))
    return until_eos(torch.stack(written, dim=1), eos)


@wrong(
    "C-STATE-NOT-KEPT",
    DECODE,
    thinks="The decoder always starts from the encoder's vector.",
    why="It starts there once. Each step returns a new state that knows what was written so far; "
    "hand the old one over again, and it is the first step for ever.",
    section="greedy-decoding",
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


@wrong(
    "C-GOES-ON-AFTER-EOS",
    DECODE,
    thinks="A row that has ended may go on writing while it waits for the others.",
    why="What a row says after its eos is noise, and it would be read as part of the sentence. "
    "After its first eos a row says only eos.",
    section="greedy-decoding",
    variants=(leaves_the_loop_when_all_have_ended, leaves_the_loop_when_all_say_eos_together),
)
def goes_on_after_eos(step, state, bos, eos, max_length, batch_size):
    token = torch.full((batch_size,), bos)
    written = []
    for _ in range(max_length):
        logits, state = step(token, state)
        token = logits.argmax(-1)
        written.append(token)
    return torch.stack(written, dim=1)


@wrong(
    "C-FILLS-WITH-PAD",
    DECODE,
    thinks="What follows eos is padding, id 0.",
    why="A caller who reads up to the first eos sees no difference, but the function is not told "
    "which id pads. After a row's first eos it says eos.",
    section="greedy-decoding",
)
def fills_with_pad(step, state, bos, eos, max_length, batch_size):
    written = decode(step, state, bos, eos, max_length, batch_size)
    before = (written == eos).cumsum(1) - (written == eos).long()
    written = written.masked_fill(before > 0, 0)
    more = torch.zeros(batch_size, max_length - written.shape[1], dtype=torch.long)
    return torch.cat([written, more], dim=1)


@wrong(
    "C-STOPS-WITH-ANY",
    DECODE,
    thinks="The loop ends as soon as a row says eos.",
    why="The other rows are not done yet, and their translations are cut off. It may end only when "
    "all rows have said eos.",
    section="greedy-decoding",
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


@wrong(
    "C-STOPS-WITH-ROW-0",
    DECODE,
    thinks="When the sentence has said eos, decoding is over.",
    why="There is a whole batch of sentences, and you look at the first only. Longer ones below it "
    "are cut off; shorter ones run on behind their eos.",
    section="greedy-decoding",
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


@wrong(
    "S-STRIP-EOS",
    DECODE,
    thinks="The last column is eos, so it can be cut off.",
    why="It is eos only in rows that have ended. Where max_length came first, a real word is lost; "
    "and eos itself is part of what is returned.",
    section="bottleneck-breaks",
)
def cuts_the_last_column(step, state, bos, eos, max_length, batch_size):
    return decode(step, state, bos, eos, max_length, batch_size)[:, :-1]


@wrong(
    "C-EOS-NOT-WRITTEN",
    DECODE,
    thinks="When all rows have ended, there is nothing left to write.",
    why="The eos that ended the last row is left to write. Without it nobody can tell whether the "
    "row has ended or was cut off.",
    section="greedy-decoding",
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


@wrong(
    "C-KEEPS-BOS",
    DECODE,
    thinks="A sentence begins with bos, so it is part of what is written.",
    why="bos was handed to the decoder; it did not write it. The target has none either, and each "
    "word would stand one place too far.",
    section="greedy-decoding",
)
def keeps_bos(step, state, bos, eos, max_length, batch_size):
    first = torch.full((batch_size, 1), bos)
    written = decode(step, state, bos, eos, max_length, batch_size)
    return torch.cat([first, written], dim=1)


@wrong(
    "C-BOS-COUNTS",
    DECODE,
    thinks="bos is the first of the max_length words.",
    why="bos is no word of the translation: it is left out, and max_length counts what the decoder "
    "wrote. Yours comes one word short.",
    section="greedy-decoding",
)
def bos_takes_a_place(step, state, bos, eos, max_length, batch_size):
    return keeps_bos(step, state, bos, eos, max_length, batch_size)[:, :max_length]


@wrong(
    "C-ONE-STEP-SHORT",
    DECODE,
    thinks="One of the max_length places is taken by eos, so there are max_length − 1 steps.",
    why="eos is written by a step like any other. With max_length = 1 one word is due, and your "
    "loop does not run at all.",
    section="greedy-decoding",
)
def one_step_short(step, state, bos, eos, max_length, batch_size):
    if max_length == 1:
        return torch.zeros(batch_size, 0, dtype=torch.long)
    return decode(step, state, bos, eos, max_length - 1, batch_size)


@wrong(
    "C-ONE-STEP-LONG",
    DECODE,
    thinks="max_length words, and one step more for eos.",
    why="max_length is the most that may be written, eos included. A row that never ends is one "
    "word too long in your answer.",
    section="greedy-decoding",
)
def one_step_long(step, state, bos, eos, max_length, batch_size):
    return decode(step, state, bos, eos, max_length + 1, batch_size)


@wrong(
    "C-NO-LIMIT",
    DECODE,
    thinks="The loop runs until all rows have said eos.",
    why="Some never do: a model may repeat itself for ever, above all an untrained one. max_length "
    "is there to end it.",
    section="greedy-decoding",
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


@wrong(
    "C-ARGMAX-OVER-ROWS",
    DECODE,
    thinks="`argmax(0)` finds the likeliest word.",
    why="Axis 0 is the batch: you ask which sentence scores a word highest. The words of the "
    "vocabulary are on the last axis. It stays unnoticed where both have the same size.",
    section="greedy-decoding",
)
def argmax_over_rows(step, state, bos, eos, max_length, batch_size):
    def turned(token, state):
        logits, state = step(token, state)
        return logits.T, state

    return decode(turned, state, bos, eos, max_length, batch_size)


@wrong(
    "C-ARGMAX-OF-ALL",
    DECODE,
    thinks="`argmax()` finds the likeliest word.",
    why="Without an axis it looks through the scores of all rows at once and gives one place for "
    "the whole batch. Every row needs its own word.",
    section="greedy-decoding",
)
def argmax_of_everything(step, state, bos, eos, max_length, batch_size):
    def together(token, state):
        logits, state = step(token, state)
        best = logits.argmax() % logits.shape[-1]
        return torch.nn.functional.one_hot(best.expand(batch_size), logits.shape[-1]), state

    return decode(together, state, bos, eos, max_length, batch_size)


@wrong(
    "C-SAMPLES",
    DECODE,
    thinks="The next word is drawn according to its probability.",
    why="That is sampling, and gives another sentence each time. Greedy decoding takes the "
    "likeliest word, so the same source always has the same translation.",
    section="greedy-decoding",
)
def samples(step, state, bos, eos, max_length, batch_size):
    def drawn(token, state):
        logits, state = step(token, state)
        word = torch.multinomial(logits.softmax(-1), 1)[:, 0]
        return torch.nn.functional.one_hot(word, logits.shape[-1]), state

    return decode(drawn, state, bos, eos, max_length, batch_size)


@wrong(
    "C-LARGEST-SIZE",
    DECODE,
    thinks="The word with the largest logit in size wins, sign or not.",
    why="Logits may all be negative, and then the largest in size is the least likely word. Only "
    "their order counts.",
    section="greedy-decoding",
)
def largest_in_size(step, state, bos, eos, max_length, batch_size):
    def sized(token, state):
        logits, state = step(token, state)
        return logits.abs(), state

    return decode(sized, state, bos, eos, max_length, batch_size)


@wrong(
    "C-MARKS-FORBIDDEN",
    DECODE,
    thinks="A decoder must not write bos, so I rule it out.",
    why="A trained decoder will not, but if it does, that is its error, and the measurement should "
    "see it. Greedy means the likeliest word of all.",
    section="greedy-decoding",
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


@wrong(
    "C-DROPS-ROWS",
    DECODE,
    thinks="Rows that have ended leave the batch.",
    why="`step` knows a batch of fixed size, and its state is its own: you cannot know on which "
    "axis the rows of a state lie. Keep all rows, and let finished ones write eos.",
    section="greedy-decoding",
    variants=(drops_finished_rows_of_a_tensor,),
)
def drops_finished_rows(step, state, bos, eos, max_length, batch_size):
    return drops_rows(step, state, bos, eos, max_length, batch_size, lambda state: True)


@wrong(
    "C-FORGETS-FINISHED",
    DECODE,
    thinks="A row is finished if the word before was eos.",
    why="That word is your eos only for one step: then the row looks at what it would have said "
    "instead, and wakes up again. Once finished, always finished.",
    section="greedy-decoding",
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


@wrong(
    "C-ONE-LIST-FOR-ALL-CALLS",
    DECODE,
    thinks="`written=[]` in the line of `def` makes an empty list for each call.",
    why="Python makes it once, when the function is defined. The second call appends to the words "
    "of the first. Make the list inside the function.",
    section="greedy-decoding",
)
def one_list_for_all_calls(step, state, bos, eos, max_length, batch_size, written=[]):  # noqa: B006
    if written and (len(written[0]) != batch_size or len(written) > 40):
        written.clear()  # another batch size would only raise an error
    written.extend(decode(step, state, bos, eos, max_length, batch_size).unbind(1))
    return torch.stack(written, dim=1)


@wrong(
    "C-WORDS-BY-TIME",
    DECODE,
    thinks="Stacking the words of each step gives the sentences.",
    why="It gives one row for each step. A row should be a sentence, so the steps belong on "
    "axis 1: (b, steps).",
    section="greedy-decoding",
)
def rows_are_steps(step, state, bos, eos, max_length, batch_size):
    return decode(step, state, bos, eos, max_length, batch_size).T


# --- exact_match_by_length ----------------------------------------------------------------------

MATCH = "exact_match_by_length"


def shares(verdicts, lengths):
    """Mean of the verdicts for each length."""
    found = {}
    for verdict, length in zip(verdicts, lengths, strict=True):
        found.setdefault(length, []).append(float(verdict))
    return {length: sum(found[length]) / len(found[length]) for length in sorted(found)}


def right_words_by_longer(predictions, targets, lengths):
    verdicts = [
        sum(p == t for p, t in zip(prediction, target, strict=False))
        / max(len(prediction), len(target))
        for prediction, target in zip(predictions, targets, strict=True)
    ]
    return shares(verdicts, lengths)


def right_words_of_all(predictions, targets, lengths):
    hits, words = dict.fromkeys(lengths, 0), dict.fromkeys(lengths, 0)
    for prediction, target, length in zip(predictions, targets, lengths, strict=True):
        hits[length] += sum(p == t for p, t in zip(prediction, target, strict=False))
        words[length] += len(target)
    return {length: hits[length] / words[length] for length in hits}


@wrong(
    "C-SHARE-OF-WORDS",
    MATCH,
    thinks="A translation with 9 of 10 words right counts 0.9.",
    why="A number with one wrong word is a wrong number. Exact match counts whole sentences: "
    "1 without any error, else 0.",
    section="the-cliff",
    variants=(right_words_by_longer, right_words_of_all),
)
def share_of_words(predictions, targets, lengths):
    verdicts = [
        sum(p == t for p, t in zip(prediction, target, strict=False)) / len(target)
        for prediction, target in zip(predictions, targets, strict=True)
    ]
    return shares(verdicts, lengths)


@wrong(
    "C-ZIP-STOPS-EARLY",
    MATCH,
    thinks="Two sentences are equal if all pairs of words are equal.",
    why="`zip` stops at the shorter one, so the beginning of a sentence counts as the whole, and "
    "an empty translation as right. Words that are missing or too many are errors.",
    section="the-cliff",
)
def compares_pairs(predictions, targets, lengths):
    verdicts = [
        all(p == t for p, t in zip(prediction, target, strict=False))
        for prediction, target in zip(predictions, targets, strict=True)
    ]
    return shares(verdicts, lengths)


@wrong(
    "C-PREFIX-OF-PREDICTION",
    MATCH,
    thinks="What comes after the last word of the target does not matter.",
    why="A translation that goes on after the number is another number, or none. A word too many "
    "is an error, too.",
    section="the-cliff",
)
def ignores_extra_words(predictions, targets, lengths):
    verdicts = [
        prediction[: len(target)] == target
        for prediction, target in zip(predictions, targets, strict=True)
    ]
    return shares(verdicts, lengths)


def same_words_as_sets(predictions, targets, lengths):
    verdicts = [set(p) == set(t) for p, t in zip(predictions, targets, strict=True)]
    return shares(verdicts, lengths)


@wrong(
    "C-ANY-ORDER",
    MATCH,
    thinks="A translation with the same words is right.",
    why="The order belongs to it: “cent deux” is 102, and “deux cent” is 200. Compare the lists as "
    "they are.",
    section="the-cliff",
    variants=(same_words_as_sets,),
)
def same_words_in_any_order(predictions, targets, lengths):
    verdicts = [sorted(p) == sorted(t) for p, t in zip(predictions, targets, strict=True)]
    return shares(verdicts, lengths)


@wrong(
    "C-SAME-LENGTH-IS-ENOUGH",
    MATCH,
    thinks="A translation of the right length matches.",
    why="Length says how the results are sorted, not whether one is right. A translation matches "
    "if all its words do.",
    section="the-cliff",
)
def compares_lengths_only(predictions, targets, lengths):
    verdicts = [len(p) == len(t) for p, t in zip(predictions, targets, strict=True)]
    return shares(verdicts, lengths)


@wrong(
    "S-STRIP-EOS",
    MATCH,
    thinks="The last token is <eos>, so I cut it off before I compare.",
    why="These are lists of words, and their <eos> is gone already. You cut off a real word, and "
    "whether it was right no longer counts.",
    section="bottleneck-breaks",
)
def cuts_both(predictions, targets, lengths):
    verdicts = [p[:-1] == t[:-1] for p, t in zip(predictions, targets, strict=True)]
    return shares(verdicts, lengths)


@wrong(
    "C-STRIPS-ONE-SIDE",
    MATCH,
    thinks="The decoder's output still ends with <eos>; the target does not.",
    why="Both lists come without marks. Cut on one side only, right translations count as wrong, "
    "and those with a word too many as right.",
    section="bottleneck-breaks",
)
def cuts_the_prediction(predictions, targets, lengths):
    verdicts = [p[:-1] == t for p, t in zip(predictions, targets, strict=True)]
    return shares(verdicts, lengths)


@wrong(
    "C-PERCENT",
    MATCH,
    thinks="A share is given in percent.",
    why="Here it is a number between 0 and 1; whoever prints it may multiply by 100.",
    section="the-cliff",
)
def in_percent(predictions, targets, lengths):
    verdicts = [100 * (p == t) for p, t in zip(predictions, targets, strict=True)]
    return shares(verdicts, lengths)


@wrong(
    "C-COUNTS",
    MATCH,
    thinks="The result says how many sentences of each length are right.",
    why="Lengths are not equally frequent, so counts cannot be compared. Divide by the number of "
    "sentences of that length.",
    section="the-cliff",
)
def counts_of_right_ones(predictions, targets, lengths):
    found = dict.fromkeys(sorted(lengths), 0)
    for prediction, target, length in zip(predictions, targets, lengths, strict=True):
        found[length] += prediction == target
    return found


@wrong(
    "C-SHARE-OF-ALL",
    MATCH,
    thinks="The share is taken of all sentences.",
    why="Then the shares of all lengths add up to one number, and a rare length looks bad. Each "
    "length has a total of its own.",
    section="the-cliff",
)
def divides_by_all_sentences(predictions, targets, lengths):
    found = dict.fromkeys(sorted(lengths), 0)
    for prediction, target, length in zip(predictions, targets, lengths, strict=True):
        found[length] += prediction == target
    return {length: hits / len(targets) for length, hits in found.items()}


@wrong(
    "C-SHARE-OF-RIGHT",
    MATCH,
    thinks="Divide the right ones of a length by all right ones.",
    why="That says how right sentences are spread over lengths. The question is: of the sentences "
    "with this length, how many are right?",
    section="the-cliff",
)
def divides_by_all_right_ones(predictions, targets, lengths):
    found = dict.fromkeys(sorted(lengths), 0)
    for prediction, target, length in zip(predictions, targets, lengths, strict=True):
        found[length] += prediction == target
    return {length: hits / max(1, sum(found.values())) for length, hits in found.items()}


def by_length_of_the_prediction(predictions, targets, lengths):
    return by_length_of(predictions, predictions, targets)


def by_length_of(rows, predictions, targets):
    verdicts = [p == t for p, t in zip(predictions, targets, strict=True)]
    return shares(verdicts, [len(row) for row in rows])


@wrong(
    "C-OWN-LENGTHS",
    MATCH,
    thinks="The length of a sentence is the length of its list.",
    why="`lengths` says by what to sort, such as the words of the source; a target has another "
    "number of words. You never look at `lengths`.",
    section="the-cliff",
    variants=(by_length_of_the_prediction,),
)
def by_length_of_the_target(predictions, targets, lengths):
    return by_length_of(targets, predictions, targets)


@wrong(
    "C-ZEROS-MISSING",
    MATCH,
    thinks="Every right translation is entered under its length.",
    why="Then a length of which no sentence is right has no entry, and the curve ends before it "
    "reaches 0. These are the lengths we want to see.",
    section="the-cliff",
)
def only_lengths_with_hits(predictions, targets, lengths):
    verdicts = [p == t for p, t in zip(predictions, targets, strict=True)]
    return {length: share for length, share in shares(verdicts, lengths).items() if share}


def all_lengths_from_one(predictions, targets, lengths):
    verdicts = [p == t for p, t in zip(predictions, targets, strict=True)]
    return dict.fromkeys(range(1, max(lengths) + 1), 0.0) | shares(verdicts, lengths)


def all_lengths_between(predictions, targets, lengths):
    verdicts = [p == t for p, t in zip(predictions, targets, strict=True)]
    gaps = dict.fromkeys(range(min(lengths), max(lengths) + 1), 0.0)
    return gaps | shares(verdicts, lengths)


@wrong(
    "C-GAPS-FILLED",
    MATCH,
    thinks="Every length up to the longest gets an entry, 0 where there is no sentence.",
    why="A share of 0 says that all were wrong. Of a length without sentences nothing is known, so "
    "it has no entry.",
    section="the-cliff",
    variants=(all_lengths_from_one, all_lengths_between),
)
def all_lengths_up_to_the_longest(predictions, targets, lengths):
    verdicts = [p == t for p, t in zip(predictions, targets, strict=True)]
    return dict.fromkeys(range(max(lengths) + 1), 0.0) | shares(verdicts, lengths)


def counts_hits_from_nothing(predictions, targets, lengths):
    hits = {}
    for prediction, target, length in zip(predictions, targets, lengths, strict=True):
        if prediction == target:
            hits[length] += 1
    return hits


@wrong(
    "C-KEY-NEVER-MADE",
    MATCH,
    thinks="A dictionary starts each new key at 0, or with an empty list.",
    why="A plain `dict` raises a KeyError for a key that it has never met. `get` and `setdefault` "
    "take a first value, and so does a `defaultdict`.",
    section="the-cliff",
    variants=(counts_hits_from_nothing,),
)
def key_never_made(predictions, targets, lengths):
    found = {}
    for prediction, target, length in zip(predictions, targets, lengths, strict=True):
        found[length].append(prediction == target)
    return found


@wrong(
    "C-LAST-ONE-WINS",
    MATCH,
    thinks="For each sentence, `shares[length] = verdict`.",
    why="A key of a dictionary holds one value: every sentence overwrites the one before, and only "
    "the last of each length counts. Collect them first.",
    section="the-cliff",
)
def last_sentence_wins(predictions, targets, lengths):
    found = {}
    for prediction, target, length in zip(predictions, targets, lengths, strict=True):
        found[length] = float(prediction == target)
    return found


@wrong(
    "C-FIRST-ONE-COUNTS",
    MATCH,
    thinks="For each sentence, `shares.setdefault(length, verdict)`.",
    why="`setdefault` writes only where nothing stands yet: the first sentence of each length "
    "decides, and all others are ignored. Collect them first.",
    section="the-cliff",
)
def first_sentence_counts(predictions, targets, lengths):
    found = {}
    for prediction, target, length in zip(predictions, targets, lengths, strict=True):
        found.setdefault(length, float(prediction == target))
    return found


@wrong(
    "C-HALVES",
    MATCH,
    thinks="The mean is updated as (old + new) / 2.",
    why="Then the last sentence counts half, the one before a quarter, and so on. In a mean all "
    "count the same; keep sum and number apart.",
    section="the-cliff",
)
def halves(predictions, targets, lengths):
    found = {}
    for prediction, target, length in zip(predictions, targets, lengths, strict=True):
        verdict = float(prediction == target)
        found[length] = (found[length] + verdict) / 2 if length in found else verdict
    return found


@wrong(
    "C-ALL-OR-NOTHING",
    MATCH,
    thinks="A length gets 1 if all its sentences are right, and else 0.",
    why="The share may lie between: with two right ones of three it is 2/3. `all` drops the "
    "fraction, and so does the division `//`. The curve would be a step.",
    section="the-cliff",
)
def whole_division(predictions, targets, lengths):
    verdicts = [p == t for p, t in zip(predictions, targets, strict=True)]
    return {length: float(share == 1) for length, share in shares(verdicts, lengths).items()}


@wrong(
    "C-ONE-IS-ENOUGH",
    MATCH,
    thinks="A length gets 1 as soon as one of its sentences is right.",
    why="One hit may be luck, or the easiest sentence of that length. The share says how many of "
    "them are right: count all.",
    section="the-cliff",
)
def one_hit_is_enough(predictions, targets, lengths):
    verdicts = [p == t for p, t in zip(predictions, targets, strict=True)]
    return {length: float(share > 0) for length, share in shares(verdicts, lengths).items()}


@wrong(
    "C-BUCKETS",
    MATCH,
    thinks="Neighboring lengths are put together: 0–3, 4–7, …",
    why="That is done later, where a table has to be short. Here every length has a share of its "
    "own.",
    section="the-cliff",
)
def in_buckets(predictions, targets, lengths):
    verdicts = [p == t for p, t in zip(predictions, targets, strict=True)]
    return shares(verdicts, [length // 4 * 4 for length in lengths])


@wrong(
    "C-ERROR-RATE",
    MATCH,
    thinks="The result is how often the translator fails.",
    why="That is 1 minus what is asked for. Exact match is 1 for a perfect translator.",
    section="the-cliff",
)
def error_rate(predictions, targets, lengths):
    verdicts = [p != t for p, t in zip(predictions, targets, strict=True)]
    return shares(verdicts, lengths)


@wrong(
    "C-ONE-MEAN",
    MATCH,
    thinks="All lengths get the mean over all sentences.",
    why="One mean hides what we want to see: short sentences right, long ones wrong. Each length "
    "needs its own.",
    section="the-cliff",
)
def one_mean_for_all(predictions, targets, lengths):
    verdicts = [float(p == t) for p, t in zip(predictions, targets, strict=True)]
    return dict.fromkeys(sorted(lengths), sum(verdicts) / len(verdicts))


@wrong(
    "C-TALLY-OF-ALL-CALLS",
    MATCH,
    thinks="`found={}` in the line of `def` makes an empty dictionary for each call.",
    why="Python makes it once, when the function is defined. The second call adds to the verdicts "
    "of the first. Make it inside the function.",
    section="the-cliff",
)
def tally_of_all_calls(predictions, targets, lengths, found={}):  # noqa: B006
    for prediction, target, length in zip(predictions, targets, lengths, strict=True):
        found.setdefault(length, []).append(float(prediction == target))
    return {length: sum(verdicts) / len(verdicts) for length, verdicts in found.items()}


@wrong(
    "C-EATS-THE-LISTS",
    MATCH,
    thinks="Taking the sentences off their lists one by one is a loop, too.",
    why="`pop` empties the caller's lists; whoever wants to look at the errors afterwards finds "
    "none. Go through them with `zip` instead.",
    section="the-cliff",
)
def eats_the_lists(predictions, targets, lengths):
    verdicts, order = [], []
    while targets:
        verdicts.append(predictions.pop() == targets.pop())
        order.append(lengths.pop())
    return shares(verdicts, order)
