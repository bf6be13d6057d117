"""Wrong answers of chapter 6. Ids with K-, M-, P- and S- are the course catalogue's, C-… our own.

Each function below differs from a right answer in one thought. Everything else about it is right,
so that the judge can recognize that thought.
"""

import itertools

import torch

from attncourse.misconceptions import Collection

collection = Collection()
wrong = collection.misconception

# --- next_word_pairs ----------------------------------------------------------------------------

PAIRS = "next_word_pairs"


@wrong(
    "S-SHIFT",
    PAIRS,
    thinks="The word that belongs to a context is its last one.",
    why="The context ends with that word, so there is nothing to guess: a network would learn to "
    "repeat the last word it read. The word to be guessed comes one place later.",
    section="all-positions",
)
def last_word_of_the_context(tokens):
    return [(tokens[:place], tokens[place - 1]) for place in range(1, len(tokens))]


@wrong(
    "C-NEXT-INSIDE",
    PAIRS,
    thinks="The words so far include the one that comes next.",
    why="Then the answer stands in the question, and a network would learn to copy it. A slice "
    "ends before its second number.",
    section="all-positions",
)
def context_with_the_next_word(tokens):
    return [(tokens[: place + 1], tokens[place]) for place in range(1, len(tokens))]


@wrong(
    "C-BIGRAM",
    PAIRS,
    thinks="The context of a word is the word before it.",
    why="That is a part of it. Attention can use everything that came before, and what follows "
    "“hundred” may depend on the first word of the sentence.",
    section="all-positions",
)
def only_the_word_before(tokens):
    return [(tokens[place - 1 : place], tokens[place]) for place in range(1, len(tokens))]


@wrong(
    "C-ALL-THE-OTHERS",
    PAIRS,
    thinks="The context of a word is all the other words, on both sides.",
    why="That is how one fills a gap. Who writes word by word has only the left side: the words "
    "on the right do not exist yet.",
    section="all-positions",
)
def words_on_both_sides(tokens):
    return [(tokens[:p] + tokens[p + 1 :], tokens[p]) for p in range(1, len(tokens))]


@wrong(
    "C-WORDS-AFTER",
    PAIRS,
    thinks="The context of a word is what comes after it.",
    why="That is the future, read backward. A sentence is written from its beginning: the context "
    "is what stands to the left.",
    section="all-positions",
)
def words_after(tokens):
    return [(tokens[place + 1 :], tokens[place]) for place in range(len(tokens) - 1)]


@wrong(
    "C-EMPTY-CONTEXT",
    PAIRS,
    thinks="The first word is guessed too, from an empty context.",
    why="A sentence of n words gives n − 1 pairs here: before the first word there is nothing that "
    "attention could look at. (A translator puts the mark <bos> there, which makes it a word.)",
    section="all-positions",
)
def from_nothing_too(tokens):
    return [(tokens[:place], tokens[place]) for place in range(len(tokens))]


def ends_with_a_mark(tokens):
    followed = [*tokens, "<eos>"]
    return [(followed[:place], followed[place]) for place in range(1, len(followed))]


@wrong(
    "C-AFTER-THE-END",
    PAIRS,
    thinks="The whole sentence is a context as well; nothing follows it.",
    why="A pair needs a word that follows. If the end should be learned, the caller puts a mark "
    "for it into the tokens, and then it is a word like any other.",
    section="all-positions",
    variants=(ends_with_a_mark,),
)
def with_the_end(tokens):
    following = [*tokens[1:], None]
    return [(tokens[: place + 1], following[place]) for place in range(len(tokens))]


@wrong(
    "C-LAST-MISSED",
    PAIRS,
    thinks="There are n − 1 pairs, so the range ends at n − 1.",
    why="A range leaves its end out. From 1 to n − 1 it gives one place too few, and the last word "
    "of every sentence is never learned.",
    section="all-positions",
)
def last_word_missed(tokens):
    return [(tokens[:place], tokens[place]) for place in range(1, len(tokens) - 1)]


def grows_one_list_by_slices(tokens):
    context, pairs = [], []
    for place in range(1, len(tokens)):
        context += tokens[place - 1 : place]
        pairs.append((context, tokens[place]))
    return pairs


@wrong(
    "C-ONE-LIST",
    PAIRS,
    thinks="I collect the words in one list, and each pair gets the list as it is at that moment.",
    why="Each pair gets the same list, and sees everything that is appended later: all contexts "
    "end up equal, with the answers inside. A pair needs a copy.",
    section="all-positions",
    variants=(grows_one_list_by_slices,),
)
def one_list_for_all(tokens):
    context, pairs = [], []
    for place in range(1, len(tokens)):
        context.append(tokens[place - 1])
        pairs.append((context, tokens[place]))
    return pairs


@wrong(
    "C-FIRST-OCCURRENCE",
    PAIRS,
    thinks="`tokens.index(word)` tells me where a word stands.",
    why="It tells where the word stands first. When “two” comes again, its context is cut off "
    "at the earlier one. Count the places instead of looking words up.",
    section="all-positions",
)
def looks_words_up(tokens):
    return [(tokens[: tokens.index(word)], word) for word in tokens[1:]]


@wrong(
    "C-ZERO-SKIPPED",
    PAIRS,
    thinks="Id 0 is padding, or nothing at all, and can be left out.",
    why="Here a token is whatever the caller gives, 0 too. A test like `if token` is False for the "
    "id 0, so words vanish without a message.",
    section="all-positions",
)
def zeros_skipped(tokens):
    tokens = [token for token in tokens if token]
    return [(tokens[:place], tokens[place]) for place in range(1, len(tokens))]


@wrong(
    "C-WITHOUT-REPEATS",
    PAIRS,
    thinks="A word that has come before teaches nothing new.",
    why="It does: each pair is about its context, and that is longer now. How often a word comes "
    "is also something to learn.",
    section="all-positions",
)
def repeats_left_out(tokens):
    return [(tokens[:p], tokens[p]) for p in range(1, len(tokens)) if tokens[p] not in tokens[:p]]


def adds_a_mark_for_the_end(tokens):
    tokens.append("<eos>")
    return [(tokens[:place], tokens[place]) for place in range(1, len(tokens) - 1)]


@wrong(
    "C-WORDS-USED-UP",
    PAIRS,
    thinks="I take words off the list, or put a mark on it, as my work needs it.",
    why="The list belongs to the caller, who finds it changed afterward. Slices and indices read "
    "without taking away; `pop`, `append` and `+=` change the list itself.",
    section="all-positions",
    variants=(adds_a_mark_for_the_end,),
)
def takes_words_off(tokens):
    pairs = []
    while len(tokens) > 1:
        following = tokens.pop()
        pairs.insert(0, (list(tokens), following))
    return pairs


@wrong(
    "C-PAIR-SWAPPED",
    PAIRS,
    thinks="A pair is the word, and then its context.",
    why="Both are right, in the other order: first what is given, then what is asked.",
    section="all-positions",
)
def word_before_context(tokens):
    return [(tokens[place], tokens[:place]) for place in range(1, len(tokens))]


@wrong(
    "C-JOINED",
    PAIRS,
    thinks="A context is a text, so I join its words.",
    why="A network takes words as a list, each with its own id. Joined, they would have to be "
    "taken apart again; leave them as they are.",
    section="all-positions",
)
def context_as_text(tokens):
    return [(" ".join(map(str, tokens[:p])), tokens[p]) for p in range(1, len(tokens))]


@wrong(
    "C-TUPLE",
    PAIRS,
    thinks="A tuple of words is as good as a list.",
    why="Nearly: it holds the same words, but `context == ['nine']` is False for a tuple. The task "
    "asks for a list of the words so far.",
    section="all-positions",
)
def context_as_tuple(tokens):
    return [(tuple(tokens[:place]), tokens[place]) for place in range(1, len(tokens))]


@wrong(
    "C-TWO-SHIFTED-LISTS",
    PAIRS,
    thinks="Inputs are the words without the last, targets the words without the first; that says "
    "it all.",
    why="It does, to a network with a causal mask, which sees the beginnings by itself. Here the "
    "beginnings are to be written out, one pair for each.",
    section="all-positions",
)
def inputs_and_targets(tokens):
    return [(tokens[:-1], tokens[1:])]


@wrong(
    "C-NEIGHBORS-ONLY",
    PAIRS,
    thinks="`zip` (or `pairwise`) of the words with the next words makes the pairs.",
    why="It pairs each word with the next one, so the first part is a single word and not the list "
    "of all the words so far.",
    section="all-positions",
)
def zipped(tokens):
    return list(itertools.pairwise(tokens))


@wrong(
    "C-KEPT-CONTEXT",
    PAIRS,
    thinks="An empty list as a default argument is a fresh start at every call.",
    why="Python makes the default once, and every call fills the same list. The first call is "
    "right; from the second on, contexts begin with earlier sentences.",
    section="all-positions",
)
def default_list(tokens, context=[]):  # noqa: B006
    pairs = []
    for word in tokens:
        if context:
            pairs.append((list(context), word))
        context.append(word)
    return pairs


# --- causal_mask --------------------------------------------------------------------------------

CAUSAL = "causal_mask"


def table(query_length, key_length=None):
    """Everything allowed, and by how much the queries' places lie behind."""
    key_length = query_length if key_length is None else key_length
    return torch.ones(query_length, key_length, dtype=torch.bool), key_length - query_length


def triangle(query_length, key_length=None):
    everything, offset = table(query_length, key_length)
    return everything.tril(offset)


def future_from_the_left(query_length, key_length=None):
    return table(query_length, key_length)[0].triu(1)


def future_in_ones_and_zeros(query_length, key_length=None):
    return future_from_the_left(query_length, key_length).float()


@wrong(
    "M-POLARITY",
    CAUSAL,
    thinks="True marks what is masked, that is, hidden.",
    why="In `nn.MultiheadAttention` it does. In this course, as in "
    "`F.scaled_dot_product_attention`, True means: may attend. Your table shows the future and "
    "hides the past.",
    section="mask-conventions",
    variants=(future_from_the_left, future_in_ones_and_zeros),
)
def true_means_hidden(query_length, key_length=None):
    return ~triangle(query_length, key_length)


def strictly_before_from_the_left(query_length, key_length=None):
    return table(query_length, key_length)[0].tril(-1)


@wrong(
    "M-TRIU-DIAG",
    CAUSAL,
    thinks="A word may look at the words before it.",
    why="And at itself. Without the diagonal the first word has nothing at all to look at: its row "
    "is dead.",
    section="causal",
    variants=(strictly_before_from_the_left,),
)
def without_the_diagonal(query_length, key_length=None):
    everything, offset = table(query_length, key_length)
    return everything.tril(offset - 1)


@wrong(
    "M-TRIL-ONE",
    CAUSAL,
    thinks="The triangle has to be one wider, so that the diagonal is in it.",
    why="`tril` with 0 keeps the diagonal already. One wider, and each word sees the next, the "
    "very one that is to be predicted.",
    section="dependency-maps",
)
def one_step_too_wide(query_length, key_length=None):
    everything, offset = table(query_length, key_length)
    return everything.tril(offset + 1)


def upper_from_the_left(query_length, key_length=None):
    return table(query_length, key_length)[0].triu()


def columns_are_queries(query_length, key_length=None):
    key_length = query_length if key_length is None else key_length
    return torch.arange(key_length)[:, None] <= torch.arange(query_length)


@wrong(
    "M-TRANSPOSED",
    CAUSAL,
    thinks="The triangle goes to the upper right.",
    why="Rows are queries. In an upper triangle each word sees itself and all that follows. In "
    "pictures with queries as columns it would be right.",
    section="causal",
    variants=(upper_from_the_left, columns_are_queries),
)
def upper_triangle(query_length, key_length=None):
    everything, offset = table(query_length, key_length)
    return everything.triu(offset)


def ones_from_the_top_left(query_length, key_length=None):
    return table(query_length, key_length)[0].float().tril()


def corner_of_a_larger_one(query_length, key_length=None):
    key_length = query_length if key_length is None else key_length
    return triangle(key_length)[:query_length]


@wrong(
    "M-TOPLEFT",
    CAUSAL,
    thinks="The triangle starts at the top left, whatever the shape.",
    why="With more keys than queries, the queries are the last words, not the first. A single "
    "query, the newest word, would see the first key only.",
    section="causal",
    variants=(corner_of_a_larger_one, ones_from_the_top_left),
)
def from_the_top_left(query_length, key_length=None):
    return table(query_length, key_length)[0].tril()


@wrong(
    "C-SHIFT-OTHER-WAY",
    CAUSAL,
    thinks="The diagonal is moved by query_length − key_length.",
    why="The sign is the other way: a positive diagonal moves the edge to the right and shows "
    "more. With yours, further keys make the queries see less.",
    section="causal",
)
def shifted_to_the_left(query_length, key_length=None):
    everything, offset = table(query_length, key_length)
    return everything.tril(-offset)


@wrong(
    "C-ONE-KEY-MORE",
    CAUSAL,
    thinks="If there are more keys than queries, the triangle moves by one.",
    why="It moves by as many places as there are further keys. With one further key that is the "
    "same; with two, the last query already misses one.",
    section="causal",
)
def moved_by_one(query_length, key_length=None):
    everything, offset = table(query_length, key_length)
    return everything.tril(min(offset, 1))


@wrong(
    "C-PAST-HIDDEN",
    CAUSAL,
    thinks="The triangle belongs at the right end; the keys before it are done with.",
    why="The triangle is in its place. But the earlier keys are the past, which every query may "
    "see: that is why somebody kept them.",
    section="causal",
)
def only_the_new_words(query_length, key_length=None):
    mask, offset = triangle(query_length, key_length), table(query_length, key_length)[1]
    mask[:, :offset] = False
    return mask


@wrong(
    "C-ALL-WITH-MORE-KEYS",
    CAUSAL,
    thinks="With more keys than queries everything is the past, so nothing is hidden.",
    why="That holds for a single query. When several words come at once, the first of them must "
    "not see the ones behind it.",
    section="causal",
)
def all_with_more_keys(query_length, key_length=None):
    everything, offset = table(query_length, key_length)
    return everything if offset else everything.tril()


@wrong(
    "C-SQUARE",
    CAUSAL,
    thinks="The mask is square, since every word is a query and a key.",
    why="Not when the keys of earlier words were kept: then there are fewer queries than keys, and "
    "the table has a row only for each query.",
    section="causal",
)
def always_square(query_length, key_length=None):
    return triangle(query_length if key_length is None else key_length)


@wrong(
    "C-KEYS-IGNORED",
    CAUSAL,
    thinks="The number of queries settles everything.",
    why="It settles the rows. The columns are the keys, and `key_length` says how many there are; "
    "yours have as many columns as rows.",
    section="causal",
)
def ignores_the_keys(query_length, key_length=None):
    return triangle(query_length)


@wrong(
    "C-ROWS-ARE-KEYS",
    CAUSAL,
    thinks="The mask has a row for each key.",
    why="Scores have a row for each query and a column for each key, and the mask has to lie on "
    "top of them. Yours fits only when the two lengths are equal.",
    section="causal",
)
def keys_as_rows(query_length, key_length=None):
    mask = triangle(query_length, key_length)
    return mask if mask.shape[0] == mask.shape[1] else mask.mT


@wrong(
    "C-ADDITIVE-MASK",
    CAUSAL,
    thinks="A mask holds 0 where one may look and −∞ where not.",
    why="Such a mask is added to the scores, and other libraries use it. In this course a mask is "
    "boolean: True = may attend.",
    section="mask-conventions",
)
def zeros_and_infinities(query_length, key_length=None):
    mask = triangle(query_length, key_length)
    return torch.zeros(mask.shape).masked_fill(~mask, -torch.inf)


def whole_ones_and_zeros(query_length, key_length=None):
    return triangle(query_length, key_length).long()


@wrong(
    "C-NOT-BOOLEAN",
    CAUSAL,
    thinks="Ones and zeros are as good as True and False.",
    why="Not to PyTorch: `~` of a number is something else, and as a mask numbers are added to the "
    "scores, where a 1 hides nothing. The places are right, the dtype is not.",
    section="mask-conventions",
    variants=(whole_ones_and_zeros,),
)
def ones_and_zeros(query_length, key_length=None):
    return triangle(query_length, key_length).float()


@wrong(
    "C-ONLY-THE-NEIGHBOR",
    CAUSAL,
    thinks="Each word sees itself and the word before it.",
    why="And all the words before that. Two diagonals are too few: a word far back would be "
    "forgotten, as attention is there to prevent.",
    section="causal",
)
def two_diagonals(query_length, key_length=None):
    everything, offset = table(query_length, key_length)
    return everything.tril(offset) & everything.triu(offset - 1)


@wrong(
    "C-ONLY-ITSELF",
    CAUSAL,
    thinks="To be safe, a word sees nothing but itself.",
    why="It is safe, and deaf: the words before it are known and may be used. Everything up to the "
    "diagonal is allowed.",
    section="causal",
)
def diagonal_only(query_length, key_length=None):
    everything, offset = table(query_length, key_length)
    return everything.tril(offset) & everything.triu(offset)


@wrong(
    "C-NOTHING-HIDDEN",
    CAUSAL,
    thinks="A mask full of True, and the model learns by itself what not to look at.",
    why="It learns the opposite: to copy the word that it should predict, which is the easiest way "
    "to a small loss. Then it cannot write.",
    section="causal",
)
def hides_nothing(query_length, key_length=None):
    return table(query_length, key_length)[0]


@wrong(
    "C-BATCH-AXES",
    CAUSAL,
    thinks="A mask needs axes for the batch and the heads.",
    why="They may be there and broadcast, but this function promises (q k). An axis too many "
    "breaks whoever combines it with `&` or cuts out rows.",
    section="causal",
    variants=(lambda query_length, key_length=None: triangle(query_length, key_length)[None],),
)
def axes_for_batch_and_heads(query_length, key_length=None):
    return triangle(query_length, key_length)[None, None]


@wrong(
    "C-TWO-LENGTHS-NEEDED",
    CAUSAL,
    thinks="The caller always gives both lengths.",
    why="With as many keys as queries one is enough: `key_length` may be left out, or be None, and "
    "then it is the same as `query_length`.",
    section="causal",
)
def needs_both_lengths(query_length, key_length):
    return torch.ones(query_length, key_length, dtype=torch.bool).tril(key_length - query_length)


_tables = {}


@wrong(
    "K-STALE",
    CAUSAL,
    thinks="A mask depends on the number of queries, so I keep one for each number.",
    why="It depends on both lengths. For as many queries and another number of keys your answer "
    "gives the table of the first call.",
    section="causal",
)
def kept_by_queries(query_length, key_length=None):
    if query_length not in _tables:
        _tables[query_length] = triangle(query_length, key_length)
    return _tables[query_length]


# --- padding_mask -------------------------------------------------------------------------------

PADDING = "padding_mask"


def places(lengths, max_length):
    """(b k), True at real tokens."""
    return torch.arange(max_length) < lengths[:, None]


@wrong(
    "M-POLARITY",
    PADDING,
    thinks="The mask marks the padding.",
    why="In this course True means: may be attended to. Yours lets everybody look at the padding, "
    "and at nothing else. (`nn.MultiheadAttention` would want it that way.)",
    section="mask-conventions",
)
def true_at_padding(lengths, max_length):
    return ~places(lengths, max_length)[:, None]


@wrong(
    "M-SHAPE-BT",
    PADDING,
    thinks="A sentence has one row of places, so the mask is (b k).",
    why="Beside scores (b q k), the b is taken for q: an error, or, with as many sentences as "
    "words, a wrong result without any message. An axis for the queries is missing.",
    section="padding",
    variants=(
        lambda lengths, max_length: ~places(lengths, max_length),
        lambda lengths, max_length: torch.arange(max_length) <= lengths[:, None],
    ),
)
def without_query_axis(lengths, max_length):
    return places(lengths, max_length)


@wrong(
    "M-QUERY-PAD",
    PADDING,
    thinks="Padding is hidden as a query, too: a table (b k k) for each sentence.",
    why="A padded query hurts nobody: its output is not read, and the loss leaves it out. Hiding "
    "it makes dead rows. It is the padded keys that have to go.",
    section="padding",
)
def hides_padded_queries(lengths, max_length):
    real = places(lengths, max_length)
    return real[:, :, None] & real[:, None, :]


@wrong(
    "C-QUERIES-ONLY",
    PADDING,
    thinks="The axis of length 1 comes last: (b k 1).",
    why="That hides the padded queries, all their row, and leaves the padded keys visible to "
    "everybody else. Keys are the last axis.",
    section="padding",
)
def axis_at_the_end(lengths, max_length):
    return places(lengths, max_length)[:, :, None]


@wrong(
    "C-HEAD-AXIS",
    PADDING,
    thinks="There must be axes for the heads and for the queries: (b 1 1 k).",
    why="Beside scores (b h q k) that works. But this function promises (b 1 k); the layer that "
    "knows its heads puts their axis in.",
    section="padding",
)
def axis_for_heads(lengths, max_length):
    return places(lengths, max_length)[:, None, None]


@wrong(
    "C-COPIES-FOR-QUERIES",
    PADDING,
    thinks="All queries of a sentence need their own copy of its row.",
    why="There may be any number of queries, and a single row serves them all: an axis of length 1 "
    "stretches by itself. Yours fits only where there are as many queries as keys.",
    section="padding",
)
def copies_for_queries(lengths, max_length):
    return places(lengths, max_length)[:, None].repeat(1, max_length, 1)


@wrong(
    "C-ONE-MORE",
    PADDING,
    thinks="Places up to the length are real.",
    why="Places are counted from 0, so a sentence of 3 words has the places 0, 1, 2. Yours shows "
    "one pad, unless the sentence fills the table.",
    section="padding",
)
def one_place_more(lengths, max_length):
    return (torch.arange(max_length) <= lengths[:, None])[:, None]


@wrong(
    "C-ONE-LESS",
    PADDING,
    thinks="Places are counted from 1.",
    why="They are counted from 0. Your mask hides the last real word of every sentence.",
    section="padding",
)
def one_place_less(lengths, max_length):
    return (1 + torch.arange(max_length) < lengths[:, None])[:, None]


@wrong(
    "C-PADDED-LEFT",
    PADDING,
    thinks="The padding comes first, then the words.",
    why="Some programs pad on the left; here, as in all batches of this course, words come first. "
    "You hide the beginning of every sentence and show its padding.",
    section="padding",
)
def padding_on_the_left(lengths, max_length):
    return places(lengths, max_length).flip(-1)[:, None]


@wrong(
    "C-LONGEST",
    PADDING,
    thinks="The table is as long as the longest sentence.",
    why="The caller knows how long it is and says so: `max_length`. The batch may be padded "
    "further than its longest sentence; then the shapes no longer fit.",
    section="padding",
)
def as_long_as_the_longest(lengths, max_length):
    return places(lengths, int(lengths.max()))[:, None]


@wrong(
    "C-LENGTHS-ALONG-PLACES",
    PADDING,
    thinks="torch compares places and lengths by itself; each sentence meets its own length.",
    why="It lines axes up from the right, so place 0 meets the length of sentence 0, place 1 that "
    "of sentence 1. With as many sentences as places nobody complains.",
    section="padding",
    variants=(
        lambda lengths, max_length: torch.arange(max_length) < lengths,
        lambda lengths, max_length: (torch.arange(max_length) < lengths)[:, None],
        lambda lengths, max_length: (torch.arange(max_length) < lengths)[None, None],
    ),
)
def lengths_along_places(lengths, max_length):
    return (torch.arange(max_length) < lengths).expand(len(lengths), 1, max_length)


@wrong(
    "C-SHORTEST-FOR-ALL",
    PADDING,
    thinks="One length is enough for the batch: the shortest keeps all padding out.",
    why="It does, and it hides the ends of all longer sentences as well. Each sentence has its own "
    "row, so it can have its own length.",
    section="padding",
)
def shortest_for_all(lengths, max_length):
    return places(lengths.min().expand(len(lengths)), max_length)[:, None]


@wrong(
    "C-LONGEST-FOR-ALL",
    PADDING,
    thinks="What matters is that no word is hidden, so the longest sentence decides.",
    why="Then the padding of all shorter sentences is read like words. Each sentence has its own "
    "row, so it can have its own length.",
    section="padding",
)
def longest_for_all(lengths, max_length):
    return places(lengths.max().expand(len(lengths)), max_length)[:, None]


@wrong(
    "C-SORTED",
    PADDING,
    thinks="Sentences have to be sorted by length first, longest first.",
    why="Some recurrent networks want that, and then the sentences are sorted too. Here the rows "
    "of the mask no longer belong to their sentences, unless they came sorted.",
    section="padding",
)
def longest_first(lengths, max_length):
    return places(lengths.sort(descending=True).values, max_length)[:, None]


@wrong(
    "C-NEVER-EMPTY",
    PADDING,
    thinks="A sentence has at least one word; to be safe I let the first place be seen.",
    why="A sentence of length 0 is all padding, and this place too. What happens to its dead rows "
    "is the softmax's business; it must not read padding.",
    section="dead-rows",
)
def at_least_one_place(lengths, max_length):
    return places(lengths.clamp(min=1), max_length)[:, None]


@wrong(
    "C-MINUS-ZERO",
    PADDING,
    thinks="The padding is the last max_length − length places: `mask[row, :, -pads:] = False`.",
    why="Without padding, `-pads` is −0, which is 0, and the slice is the whole row: exactly the "
    "full sentences vanish. Count from the front.",
    section="padding",
)
def counted_from_the_end(lengths, max_length):
    mask = torch.ones(len(lengths), 1, max_length, dtype=torch.bool)
    for row, length in enumerate(lengths.tolist()):
        mask[row, :, -(max_length - length) :] = False
    return mask


def whole_numbers(lengths, max_length):
    return places(lengths, max_length)[:, None].long()


@wrong(
    "C-NOT-BOOLEAN",
    PADDING,
    thinks="Ones at words and zeros at padding are a mask.",
    why="The places are right. But a mask of numbers is added to the scores, where a 1 hides "
    "nothing, and it cannot be combined with `&`. Return True and False.",
    section="mask-conventions",
    variants=(whole_numbers,),
)
def ones_at_words(lengths, max_length):
    return places(lengths, max_length)[:, None].float()


@wrong(
    "P-LOWPREC",
    PADDING,
    thinks="A place is a small number, so half precision is enough for it.",
    why="In bfloat16, whole numbers are exact up to 256: place 257 becomes 256, and in a long "
    "sentence a pad is taken for a word. Whole numbers have dtypes of their own.",
    section="half-precision",
)
def low_precision_places(lengths, max_length):
    counted = torch.arange(max_length).to(torch.bfloat16)
    return (counted < lengths[:, None])[:, None]


@wrong(
    "C-LENGTHS-EDITED",
    PADDING,
    thinks="I turn lengths into last places first: `lengths -= 1`.",
    why="The mask is right, but `lengths` belongs to the caller, whose sentences are all one "
    "shorter after your call. `lengths - 1` makes a new tensor.",
    section="padding",
)
def edits_the_lengths(lengths, max_length):
    lengths -= 1
    return (torch.arange(max_length) <= lengths[:, None])[:, None]


# --- masked_softmax -----------------------------------------------------------------------------
# The right pieces, for wrong answers to put together.

SOFTMAX = "masked_softmax"


def lowest(scores):
    return torch.finfo(scores.dtype).min


def right(scores, mask, dim=-1):
    weights = torch.softmax(scores.masked_fill(~mask, lowest(scores)), dim)
    return weights.masked_fill(~mask, 0)


def without_dead_rows(weights, mask):
    return weights.masked_fill(~mask.any(-1, keepdim=True), 0)


def opposite_with_infinity(scores, mask):
    return torch.softmax(scores.masked_fill(mask, -torch.inf), -1)


def subtracted_where_visible(scores, mask):
    return torch.softmax(scores.masked_fill(mask, lowest(scores)), -1)


@wrong(
    "M-POLARITY",
    SOFTMAX,
    thinks="True in the mask means: hide this key.",
    why="In some libraries it does. Here True means that this query may attend to this key. Your "
    "weights lie exactly where they must not.",
    section="mask-conventions",
    variants=(opposite_with_infinity, subtracted_where_visible),
)
def opposite_mask(scores, mask):
    return right(scores, ~mask)


@wrong(
    "C-MASK-IGNORED",
    SOFTMAX,
    thinks="A softmax with stable scores is what matters; the mask can come later.",
    why="Nothing comes later: your weights are the same whatever the mask says, and padding and "
    "future words are read.",
    section="before-the-softmax",
)
def ignores_the_mask(scores, mask):
    return torch.softmax(scores, -1)


def added_infinities(scores, mask):
    bias = torch.zeros_like(scores).masked_fill(~mask, -torch.inf)
    return torch.softmax(scores + bias, -1)


@wrong(
    "M-DEAD-ROW",
    SOFTMAX,
    thinks="Filling hidden scores with −∞ settles every case.",
    why="A row in which everything is hidden has nothing but −∞, and its softmax is 0/0: NaN. The "
    "next layer spreads it to every word. Such a row must be zeros.",
    section="dead-rows",
    variants=(added_infinities,),
)
def nan_on_dead_rows(scores, mask):
    return torch.softmax(scores.masked_fill(~mask, -torch.inf), -1)


@wrong(
    "M-DEAD-ROW-UNIFORM",
    SOFTMAX,
    thinks="The lowest number there is hides a key in every case.",
    why="Not where everything is hidden: then all scores are equally low, and each forbidden key "
    "gets an equal share. Such a row must be zeros.",
    section="dead-rows",
)
def uniform_on_dead_rows(scores, mask):
    return torch.softmax(scores.masked_fill(~mask, lowest(scores)), -1)


def large_number_added(scores, mask):
    return torch.softmax(scores + (1 - mask.to(scores.dtype)) * -1e9, -1)


def large_number_added_as_float32(scores, mask):
    return torch.softmax(scores + (1 - mask.float()) * -1e9, -1)


def large_number_in_a_copy(scores, mask):
    copied = scores.clone()
    copied[~mask.expand(scores.shape)] = -1e9
    return torch.softmax(copied, -1)


@wrong(
    "C-MINUS-A-BILLION",
    SOFTMAX,
    thinks="−1e9 is minus infinity for all practical purposes.",
    why="Not for two. Half precision ends at −65,504, so the fill fails there, or makes −∞ or "
    "another dtype of it; and where everything is hidden, all keys share equally instead of "
    "getting 0.",
    section="half-precision",
    variants=(large_number_in_a_copy, large_number_added, large_number_added_as_float32),
)
def minus_a_billion(scores, mask):
    return torch.softmax(scores.masked_fill(~mask, -1e9), -1)


@wrong(
    "M-HALF-FILL",
    SOFTMAX,
    thinks="The fill is a number like −1e9, the same for every dtype.",
    why="Half precision ends at −65,504, and there your fill does not exist. Each dtype can tell "
    "its own lowest number.",
    section="half-precision",
)
def fill_too_large_for_half(scores, mask):
    return torch.softmax(scores.masked_fill(~mask, -1e9), -1).masked_fill(~mask, 0)


def small_fill_and_equal_shares(scores, mask):
    return torch.softmax(scores.masked_fill(~mask, -1e4), -1)


def ten_thousand_subtracted(scores, mask):
    return without_dead_rows(torch.softmax(scores - 1e4 * ~mask, -1), mask)


@wrong(
    "M-SMALL-FILL",
    SOFTMAX,
    thinks="−10,000 is low enough, and every dtype has it.",
    why="It is low enough while all visible scores lie above. Beside visible scores of −30,000 the "
    "hidden key is the highest of the row and takes all the weight.",
    section="half-precision",
    variants=(small_fill_and_equal_shares, ten_thousand_subtracted),
)
def fill_not_low_enough(scores, mask):
    return without_dead_rows(torch.softmax(scores.masked_fill(~mask, -1e4), -1), mask)


def filled_with_tiny(scores, mask):
    fill = torch.finfo(scores.dtype).tiny
    return without_dead_rows(torch.softmax(scores.masked_fill(~mask, fill), -1), mask)


@wrong(
    "M-FILL-ZERO",
    SOFTMAX,
    thinks="A hidden key gets the score 0.",
    why="0 is an ordinary score: exp(0) = 1, more than any negative score gets. To vanish after "
    "exp, a score has to go all the way down.",
    section="before-the-softmax",
    variants=(filled_with_tiny,),
)
def fills_with_zero(scores, mask):
    return without_dead_rows(torch.softmax(scores * mask, -1), mask)


@wrong(
    "C-ROW-MINIMUM",
    SOFTMAX,
    thinks="The lowest score of its own row is low enough for a hidden key.",
    why="The lowest score of a row still gets a share, and so does every key that is tied with it. "
    "Hidden means a weight of exactly 0.",
    section="before-the-softmax",
)
def fills_with_row_minimum(scores, mask):
    filled = torch.where(mask, scores, scores.amin(-1, keepdim=True))
    return without_dead_rows(torch.softmax(filled, -1), mask)


@wrong(
    "M-AFTER-SOFTMAX",
    SOFTMAX,
    thinks="Weights times mask: what is hidden becomes 0.",
    why="It does, but too late: the hidden keys have already taken their share, and the rows sum "
    "to less than one. Hide them before they compete.",
    section="before-the-softmax",
)
def zero_after_softmax(scores, mask):
    return torch.softmax(scores, -1) * mask


def divided_where_possible(scores, mask):
    weights = torch.softmax(scores, -1) * mask
    total = weights.sum(-1, keepdim=True)
    return weights / torch.where(total == 0, 1, total)


def largest_of_all_subtracted(scores, mask):
    e = (scores - scores.amax(-1, keepdim=True)).exp() * mask
    total = e.sum(-1, keepdim=True)
    return e / total.masked_fill(total == 0, 1)


@wrong(
    "M-AFTER-RENORMALIZED",
    SOFTMAX,
    thinks="A hidden key may compete first; afterward I set it to 0 and divide by what is left.",
    why="On paper that is the same. But a hidden key with a high score presses all visible ones "
    "down to 0, and dividing 0 by 0 brings nothing back.",
    section="before-the-softmax",
    variants=(divided_where_possible, largest_of_all_subtracted),
)
def zero_and_divide(scores, mask):
    weights = torch.softmax(scores, -1) * mask
    return weights / weights.sum(-1, keepdim=True)


@wrong(
    "M-ADD-BOOL",
    SOFTMAX,
    thinks="Adding the mask to the scores hides the keys.",
    why="True counts as 1 and False as 0, so the visible scores rise by 1 and nothing is hidden. A "
    "mask that is added has to hold 0 and −∞.",
    section="mask-conventions",
)
def adds_the_mask(scores, mask):
    return without_dead_rows(torch.softmax(scores + mask, -1), mask)


@wrong(
    "M-INF-TIMES-ZERO",
    SOFTMAX,
    thinks="(1 − mask) · −∞ is 0 where the mask is 1.",
    why="0 · ∞ is NaN in floating point, so every visible score is destroyed. Choose between two "
    "numbers instead of multiplying.",
    section="before-the-softmax",
)
def infinity_times_zero(scores, mask):
    return torch.softmax(scores + (1 - mask.to(scores.dtype)) * -torch.inf, -1)


def lowest_added_and_multiplied(scores, mask):
    return torch.softmax(scores + (~mask).to(scores.dtype) * lowest(scores), -1) * mask


@wrong(
    "M-DOUBLE-MIN",
    SOFTMAX,
    thinks="Adding the lowest number is as good as filling it in.",
    why="Half precision has no room below: −65,504 and another −30,000 make −∞. In a row where all "
    "is hidden that is NaN again, in the weights or in their gradient.",
    section="half-precision",
    variants=(lowest_added_and_multiplied,),
)
def lowest_added(scores, mask):
    return torch.softmax(scores + (~mask).to(scores.dtype) * lowest(scores), -1).masked_fill(
        ~mask, 0
    )


@wrong(
    "M-DEAD-ROW-GRADIENT",
    SOFTMAX,
    thinks="Where 0/0 gave NaN, I put a 0 at the end.",
    why="The weights are right then. But the NaN inside is still there, and on the way back it "
    "turns the gradient into NaN. Keep it from arising.",
    section="dead-rows",
)
def nan_in_the_gradient(scores, mask):
    bias = torch.zeros_like(scores).masked_fill(~mask, -torch.inf)
    return torch.softmax(scores + bias, -1).nan_to_num(0.0)


@wrong(
    "M-LEFTPAD-CAUSAL",
    SOFTMAX,
    thinks="Nothing to attend to: that happens in empty sentences only.",
    why="Padding on the left and a causal mask leave nothing to the first rows of an ordinary "
    "sentence. Look for dead rows, not for dead sentences.",
    section="dead-rows",
)
def only_empty_sentences(scores, mask):
    weights = torch.softmax(scores.masked_fill(~mask, lowest(scores)), -1)
    seen = mask.expand(scores.shape).flatten(-2).any(-1)[..., None, None]
    return weights.masked_fill(~seen, 0)


@wrong(
    "M-TRANSPOSED",
    SOFTMAX,
    thinks="Rows of the mask are keys and columns are queries.",
    why="Scores have a row for each query, and so has the mask. Turned around, a causal mask shows "
    "the future and hides the past.",
    section="causal",
)
def turned_mask(scores, mask):
    if mask.ndim > 1 and mask.shape[-1] == mask.shape[-2]:
        mask = mask.mT
    return right(scores, mask)


@wrong(
    "M-QUERY-PAD",
    SOFTMAX,
    thinks="Who must not be looked at must not look either.",
    why="That kills the whole row of such a query. In a causal table only the diagonal is left: "
    "every word is hidden from somebody. A mask says who may look at whom, one way.",
    section="padding",
)
def both_ways(scores, mask):
    if scores.shape[-1] == scores.shape[-2]:
        mask = mask.expand(scores.shape) & mask.expand(scores.shape).mT
    return right(scores, mask)


@wrong(
    "M-SHAPE-BT",
    SOFTMAX,
    thinks="The mask's axes of length 1 are superfluous, so I squeeze them out.",
    why="They say where the mask is stretched. Without its middle axis (b 1 k) becomes (b k), and "
    "b is taken for the queries: an error, or silence when the two are equal.",
    section="padding",
)
def squeezed_mask(scores, mask):
    return right(scores, mask.squeeze())


@wrong(
    "M-REPEAT-HEADS",
    SOFTMAX,
    thinks="I lay batch and heads into one axis and repeat the mask for every head.",
    why="`repeat` lays whole batches one after the other: 1, 2, 1, 2. The scores are ordered 1, 1, "
    "2, 2, so sentences get the mask of others. Broadcasting does not mix them up.",
    section="padding",
)
def repeated_for_heads(scores, mask):
    if scores.ndim < 4 or mask.ndim < 4:
        return right(scores, mask)
    b, h, q, k = scores.shape
    copies = mask[:, 0].expand(b, q, k).repeat(h, 1, 1)
    return right(scores.reshape(b * h, q, k), copies).view(b, h, q, k)


@wrong(
    "M-ONE-ROW",
    SOFTMAX,
    thinks="A key that is hidden from one query is hidden from all.",
    why="Each query has a row of its own in the mask. You let the first row speak for all, which "
    "is right for padding and wrong for everything causal.",
    section="causal",
)
def first_row_for_all(scores, mask):
    return right(scores, mask[..., :1, :] if mask.ndim > 1 else mask)


@wrong(
    "C-FIRST-SENTENCE",
    SOFTMAX,
    thinks="All sentences of a batch have the same mask.",
    why="The causal mask they share. Their padding they do not: you hide from every sentence what "
    "is padding in the first.",
    section="both-masks",
)
def first_sentence_for_all(scores, mask):
    return right(scores, mask[0] if mask.ndim > 2 else mask)


@wrong(
    "C-INDEXED-BY-MASK",
    SOFTMAX,
    thinks="`scores[~mask] = …` puts the fill where the mask is False.",
    why="Only if both have the same shape. An index does not stretch: (q k) or (b 1 k) beside "
    "(b q k) is an error, or it marks other axes than you mean.",
    section="both-masks",
)
def indexed_by_mask(scores, mask):
    filled = scores.clone()
    filled[~mask] = lowest(scores)
    weights = torch.softmax(filled, -1)
    weights = weights * mask
    return weights


@wrong(
    "M-INPLACE",
    SOFTMAX,
    thinks="`masked_fill_` saves memory and does the same.",
    why="It writes into the scores of the caller, who finds them overwritten. The name without the "
    "last underscore makes a new tensor.",
    section="before-the-softmax",
    variants=(
        lambda scores, mask: torch.softmax(scores.masked_fill_(~mask, -torch.inf), -1),
        lambda scores, mask: torch.softmax(scores.masked_fill_(~mask, lowest(scores)), -1),
    ),
)
def overwrites_the_scores(scores, mask):
    return torch.softmax(scores.masked_fill_(~mask, lowest(scores)), -1).masked_fill(~mask, 0)


@wrong(
    "D-NAIVE-SOFTMAX",
    SOFTMAX,
    thinks="exp of the scores, times the mask, over the sum: the formula says so.",
    why="It does, on paper. exp(89) is infinite in float32, exp(12) in float16, and exp(−200) is 0 "
    "in every row that has no higher score. Scores need a shift first.",
    section="before-the-softmax",
)
def no_shift(scores, mask):
    e = scores.exp().masked_fill(~mask, 0)
    total = e.sum(-1, keepdim=True)
    return e / total.masked_fill(total == 0, 1)


@wrong(
    "D-GLOBAL-MAX",
    SOFTMAX,
    thinks="One shift for the whole table is enough to be safe.",
    why="It stops the overflow. But a row far below becomes all zeros, as if it were dead. Each "
    "row needs its own shift.",
    section="before-the-softmax",
)
def one_shift_for_all(scores, mask):
    filled = scores.masked_fill(~mask, lowest(scores))
    e = (filled - filled.amax()).exp().masked_fill(~mask, 0)
    total = e.sum(-1, keepdim=True)
    return e / total.masked_fill(total == 0, 1)


@wrong(
    "D-SOFTMAX-DIM",
    SOFTMAX,
    thinks="Softmax over the rows or over the columns, the table is the same.",
    why="Each query shares out a whole among the keys, so rows sum to one. Along the other axis "
    "the queries compete for each key.",
    section="before-the-softmax",
    variants=(
        lambda scores, mask: torch.softmax(scores.masked_fill(~mask, lowest(scores)), -2),
        lambda scores, mask: torch.softmax(scores.masked_fill(~mask, -torch.inf), -2),
        lambda scores, mask: torch.softmax(scores.masked_fill(~mask, -torch.inf), 1),
    ),
)
def over_the_queries(scores, mask):
    return right(scores, mask, dim=-2)


@wrong(
    "C-SCORES-RETURNED",
    SOFTMAX,
    thinks="Once hidden scores are filled in, the work is done.",
    why="These are still scores: they are negative and sum to nothing in particular. The softmax "
    "is missing.",
    section="before-the-softmax",
    variants=(lambda scores, mask: scores.masked_fill(~mask, 0),),
)
def filled_scores(scores, mask):
    return scores.masked_fill(~mask, lowest(scores))


@wrong(
    "C-VISIBLE-ONLY",
    SOFTMAX,
    thinks="`scores[mask]` leaves the visible scores, and those get a softmax.",
    why="It leaves them in one long row, without queries: all compete with all, and the table is "
    "gone. Weights need the shape of the scores.",
    section="before-the-softmax",
)
def picked_out(scores, mask):
    return torch.softmax(scores[mask.expand(scores.shape)], 0)


@wrong(
    "C-HALF-EPSILON",
    SOFTMAX,
    thinks="A tiny number below the fraction bar keeps 0/0 away.",
    why="In float32 it does. In half precision 1e-9 is 0, so a dead row is 0/0 after all, in this "
    "dtype only. Ask whether the row is dead instead.",
    section="half-precision",
)
def tiny_number_below(scores, mask):
    filled = scores.masked_fill(~mask, lowest(scores))
    e = (filled - filled.amax(-1, keepdim=True)).exp().masked_fill(~mask, 0)
    return e / (e.sum(-1, keepdim=True) + 1e-9)


@wrong(
    "C-CLAMPED",
    SOFTMAX,
    thinks="Cutting scores off at ±50 prevents every overflow.",
    why="It does, and it makes 9,999 and 10,000 equal. The softmax shifts scores by itself, and a "
    "shift keeps every difference.",
    section="before-the-softmax",
)
def clamped(scores, mask):
    return right(scores.clamp(-50, 50), mask)


@wrong(
    "C-DETACHED",
    SOFTMAX,
    thinks="Masking is bookkeeping; no gradient has to pass.",
    why="The numbers are right, but the scores learn nothing: `.detach()`, `.data` or `no_grad` "
    "cut the way back, and the model never finds out where to look.",
    section="before-the-softmax",
)
def cut_off(scores, mask):
    return right(scores.detach(), mask)


@wrong(
    "C-SUM-DETACHED",
    SOFTMAX,
    thinks="The sum below the fraction bar only normalizes, so it needs no gradient.",
    why="It is how keys compete: when one weight rises, the others fall. Without it every score "
    "learns as if it were alone. The weights are right, their gradient is not.",
    section="before-the-softmax",
)
def sum_without_gradient(scores, mask):
    filled = scores.masked_fill(~mask, lowest(scores))
    e = (filled - filled.amax(-1, keepdim=True).detach()).exp().masked_fill(~mask, 0)
    total = e.sum(-1, keepdim=True).detach()
    return e / total.masked_fill(total == 0, 1)


@wrong(
    "C-FLOAT32-RETURNED",
    SOFTMAX,
    thinks="Computing in float32 is always safe.",
    why="Inside, perhaps. But the weights leave as float32 although the scores came in another "
    "dtype, and the next matrix product refuses to mix the two.",
    section="half-precision",
)
def leaves_as_float32(scores, mask):
    return right(scores.float(), mask)


@wrong(
    "C-FLOAT32-INSIDE",
    SOFTMAX,
    thinks="Inside I compute in float32, and at the end I give back the dtype that came.",
    why="For half precision that is a good idea. But a caller with float64 loses half of the "
    "digits, and the dtype does not tell.",
    section="half-precision",
)
def detour_through_float32(scores, mask):
    return right(scores.float(), mask).to(scores.dtype)


_masks = {}


@wrong(
    "K-STALE",
    SOFTMAX,
    thinks="The mask of a batch is always the same, so I keep the first of each shape.",
    why="The next batch has other sentences and other padding. The first call is right, and later "
    "ones hide what was padding then.",
    section="both-masks",
)
def first_mask_kept(scores, mask):
    if mask.shape not in _masks:
        _masks[mask.shape] = mask
    return right(scores, _masks[mask.shape])


@wrong(
    "C-ANY-QUERY",
    SOFTMAX,
    thinks="Both error and cure are the keys: a key that some query may see is visible.",
    why="A mask has a row for each query. You merge the rows, and so a later word that the last "
    "query may see is shown to the first.",
    section="causal",
)
def visible_to_somebody(scores, mask):
    if mask.ndim > 1:
        mask = mask.any(-2, keepdim=True)
    return right(scores, mask)
