"""Wrong answers of lab 5. Each differs from a right one in one thought."""

import math
import random
import statistics

import torch

from attncourse.lab.receipts import encode
from attncourse.misconceptions import Collection

collection = Collection()
wrong = collection.misconception

# --- cache_bytes --------------------------------------------------------------------------------

CACHE = "cache_bytes"


@wrong(
    "L5-KEYS-ONLY",
    CACHE,
    thinks="A token leaves one vector of d numbers behind, in each head and layer.",
    why="It leaves a key, to be found by, and a value, to be read. Attention needs both again at "
    "each later step.",
    section="lab5-cache",
)
def keys_only(b, layers, kv_heads, n, d, bytes_per_number):
    return b * layers * kv_heads * n * d * bytes_per_number


@wrong(
    "L5-QUERIES-TOO",
    CACHE,
    thinks="Query, key and value are computed for each token, so three vectors are kept.",
    why="A query asks once, when its token is the newest. Nobody reads it again: not kept.",
    section="lab5-cache",
)
def queries_too(b, layers, kv_heads, n, d, bytes_per_number):
    return b * layers * 3 * kv_heads * n * d * bytes_per_number


@wrong(
    "L5-ONE-LAYER",
    CACHE,
    thinks="There is one cache for the whole model.",
    why="The keys of a layer are made from what goes into that layer, so each layer has its own. A "
    "model of 32 layers keeps 32 times as much.",
    section="lab5-cache",
)
def one_layer(b, layers, kv_heads, n, d, bytes_per_number):
    return b * 2 * kv_heads * n * d * bytes_per_number


@wrong(
    "L5-ONE-SEQUENCE",
    CACHE,
    thinks="The cache belongs to the model, so the batch does not matter.",
    why="It belongs to a text: its keys and values. Eight texts have eight caches. What they share "
    "are the weights.",
    section="lab5-cache",
)
def one_sequence(b, layers, kv_heads, n, d, bytes_per_number):
    return layers * 2 * kv_heads * n * d * bytes_per_number


@wrong(
    "L5-ONE-HEAD",
    CACHE,
    thinks="A key has d numbers, whatever the heads.",
    why="It has d numbers in each cached head. With one such head that is the same: "
    "this is what MQA saves.",
    section="lab5-cache",
)
def one_head(b, layers, kv_heads, n, d, bytes_per_number):
    return b * layers * 2 * n * d * bytes_per_number


@wrong(
    "L5-HEADS-SPLIT-D",
    CACHE,
    thinks="Heads share the width d among them, so more heads make smaller keys.",
    why="They share the width of the model; d is what each head has. More heads, more bytes.",
    section="lab5-cache",
)
def smaller_with_more_heads(b, layers, kv_heads, n, d, bytes_per_number):
    return b * layers * 2 * n * (d // kv_heads) * bytes_per_number


def in_gibibytes(b, layers, kv_heads, n, d, bytes_per_number):
    return b * layers * 2 * kv_heads * n * d * bytes_per_number / 2**30


@wrong(
    "L5-IN-GIGABYTES",
    CACHE,
    thinks="A cache is best said in gigabytes.",
    why="For people, yes. A function that returns bytes, a whole number, can be added to other "
    "bytes; divide when you print.",
    section="lab5-cache",
    variants=(in_gibibytes,),
)
def cache_in_gigabytes(b, layers, kv_heads, n, d, bytes_per_number):
    return b * layers * 2 * kv_heads * n * d * bytes_per_number / 1e9


@wrong(
    "L5-FLOAT",
    CACHE,
    thinks="A number is a number, whatever its type.",
    why="The number is right, but a float; bytes are counted in whole numbers. Somewhere stands a "
    "/ or a factor with a point.",
    section="lab5-cache",
)
def cache_as_a_float(b, layers, kv_heads, n, d, bytes_per_number):
    return 2.0 * b * layers * kv_heads * n * d * bytes_per_number


@wrong(
    "L5-ONE-TOKEN",
    CACHE,
    thinks="Only the newest token is in the cache.",
    why="It is kept until the text ends, as all before it: each later token attends to it. So the "
    "cache grows with every token.",
    section="lab5-cache",
)
def newest_token_only(b, layers, kv_heads, n, d, bytes_per_number):
    return b * layers * 2 * kv_heads * d * bytes_per_number


@wrong(
    "L5-SCORES",
    CACHE,
    thinks="Attention is n × n, so the cache is.",
    why="Scores are made for one step and thrown away. What is kept is a key and a value a "
    "position: twice the text, twice the cache.",
    section="lab5-cache",
)
def n_squared(b, layers, kv_heads, n, d, bytes_per_number):
    return b * layers * 2 * kv_heads * n * n * d * bytes_per_number


@wrong(
    "L5-NUMBERS",
    CACHE,
    thinks="The size is the count of numbers.",
    why="Memory is counted in bytes, and a number takes four of them in float32, two in float16. "
    "That is why caches are kept in few bits.",
    section="lab5-cache",
)
def numbers_not_bytes(b, layers, kv_heads, n, d, bytes_per_number):
    return b * layers * 2 * kv_heads * n * d


@wrong(
    "L5-BITS",
    CACHE,
    thinks="float16 has 16 bits, so a number counts 16.",
    why="The function is told bytes for a number and asked for bytes. Eight times less.",
    section="lab5-cache",
)
def in_bits(b, layers, kv_heads, n, d, bytes_per_number):
    return 8 * b * layers * 2 * kv_heads * n * d * bytes_per_number


# --- append_to_cache ----------------------------------------------------------------------------

APPEND = "append_to_cache"


def refuse_overflow(key_cache, length, key):
    if length + key.shape[2] > key_cache.shape[2]:
        raise ValueError("no room")


def concatenates_without_asking(key_cache, value_cache, length, key, value):
    keys = torch.cat([key_cache[:, :, :length], key], dim=2)
    values = torch.cat([value_cache[:, :, :length], value], dim=2)
    return keys, values


def concatenates_behind_the_room(key_cache, value_cache, length, key, value):
    return torch.cat([key_cache, key], dim=2), torch.cat([value_cache, value], dim=2)


@wrong(
    "L5-CAT",
    APPEND,
    thinks="To append is to concatenate: torch.cat of what is there and what is new.",
    why="cat makes a new tensor and copies the whole cache into it, at every step; and the memory "
    "that was set aside stays as it was. Write into it.",
    section="lab5-append",
    variants=(concatenates_without_asking, concatenates_behind_the_room),
)
def concatenates(key_cache, value_cache, length, key, value):
    refuse_overflow(key_cache, length, key)
    keys = torch.cat([key_cache[:, :, :length], key], dim=2)
    values = torch.cat([value_cache[:, :, :length], value], dim=2)
    return keys, values


@wrong(
    "L5-CLONE",
    APPEND,
    thinks="I write into the cache and return a clone, to be on the safe side.",
    why="The clone reads and writes the whole cache before attention reads it again: three times "
    "the traffic. A view costs nothing, and nobody writes to it.",
    section="lab5-append",
)
def returns_a_copy(key_cache, value_cache, length, key, value):
    refuse_overflow(key_cache, length, key)
    n = length + key.shape[2]
    key_cache[:, :, length:n] = key
    value_cache[:, :, length:n] = value
    return key_cache[:, :, :n].clone(), value_cache[:, :, :n].clone()


@wrong(
    "L5-WHOLE-COPY",
    APPEND,
    thinks="Inputs must not change, so I write into a copy of the cache.",
    why="Here the cache is meant to be changed: that is why it is passed in. In a copy the new "
    "position is lost with the next step, and each step costs the whole cache.",
    section="lab5-append",
)
def writes_into_a_copy(key_cache, value_cache, length, key, value):
    refuse_overflow(key_cache, length, key)
    n = length + key.shape[2]
    key_cache, value_cache = key_cache.clone(), value_cache.clone()
    key_cache[:, :, length:n] = key
    value_cache[:, :, length:n] = value
    return key_cache[:, :, :n], value_cache[:, :, :n]


def assigns_and_hopes(key_cache, value_cache, length, key, value):
    n = length + key.shape[2]
    key_cache[:, :, length:n] = key
    value_cache[:, :, length:n] = value
    return key_cache[:, :, :n], value_cache[:, :, :n]


@wrong(
    "L5-FULL-SILENT",
    APPEND,
    thinks="If the cache were full, torch would complain about the slice.",
    why="A slice beyond the end is empty, and one position assigned to an empty slice is no error: "
    "the token is lost without a word. Ask first.",
    section="lab5-append",
    variants=(assigns_and_hopes,),
)
def says_nothing_when_full(key_cache, value_cache, length, key, value):
    n = length + key.shape[2]
    key_cache[:, :, length:n] = key[:, :, : key_cache.shape[2] - length]
    value_cache[:, :, length:n] = value[:, :, : key_cache.shape[2] - length]
    return key_cache[:, :, :n], value_cache[:, :, :n]


@wrong(
    "L5-RING",
    APPEND,
    thinks="When the cache is full, the oldest positions make room.",
    why="That is a sliding window, another model: it forgets. Asked for is a cache that holds all, "
    "and says when it cannot.",
    section="lab5-append",
)
def forgets_the_oldest(key_cache, value_cache, length, key, value):
    t, room = key.shape[2], key_cache.shape[2]
    for cache, new in ((key_cache, key), (value_cache, value)):
        kept = min(length, room - t)
        cache[:, :, :kept] = cache[:, :, length - kept : length].clone()
        cache[:, :, kept : kept + t] = new
    n = min(length + t, room)
    return key_cache[:, :, :n], value_cache[:, :, :n]


@wrong(
    "L5-SWAPPED",
    APPEND,
    thinks="Keys and values are written one after the other; which first does not matter.",
    why="It matters where: here the key lands in the cache of the values. Each has a cache of its "
    "own.",
    section="lab5-append",
)
def key_to_the_values(key_cache, value_cache, length, key, value):
    refuse_overflow(key_cache, length, key)
    n = length + key.shape[2]
    key_cache[:, :, length:n] = value
    value_cache[:, :, length:n] = key
    return key_cache[:, :, :n], value_cache[:, :, :n]


@wrong(
    "L5-KEY-TWICE",
    APPEND,
    thinks="The second line is like the first (copied, and one name not changed).",
    why="The key was written into both caches. Compare what you return with what you were given.",
    section="lab5-append",
)
def key_into_both(key_cache, value_cache, length, key, value):
    refuse_overflow(key_cache, length, key)
    n = length + key.shape[2]
    key_cache[:, :, length:n] = key
    value_cache[:, :, length:n] = key
    return key_cache[:, :, :n], value_cache[:, :, :n]


@wrong(
    "L5-WITHOUT-THE-NEW",
    APPEND,
    thinks="What is returned are the positions that were there.",
    why="The newest position may attend to itself, so its key and value belong to what comes back: "
    "length + t positions.",
    section="lab5-append",
)
def old_positions_only(key_cache, value_cache, length, key, value):
    refuse_overflow(key_cache, length, key)
    n = length + key.shape[2]
    key_cache[:, :, length:n] = key
    value_cache[:, :, length:n] = value
    return key_cache[:, :, :length], value_cache[:, :, :length]


@wrong(
    "L5-ONLY-THE-NEW",
    APPEND,
    thinks="A step makes new keys and values, so it returns those.",
    why="The caller has them already. What comes next is attention, and that needs all that are "
    "filled, from the first one on.",
    section="lab5-append",
)
def new_positions_only(key_cache, value_cache, length, key, value):
    refuse_overflow(key_cache, length, key)
    n = length + key.shape[2]
    key_cache[:, :, length:n] = key
    value_cache[:, :, length:n] = value
    return key_cache[:, :, length:n], value_cache[:, :, length:n]


@wrong(
    "L5-LAST-PLACE",
    APPEND,
    thinks="With n = room the cache is full, so nothing more fits.",
    why="n counts the new positions, too. If n = room, the last of them has found the last place. "
    "Too many is one more.",
    section="lab5-append",
)
def refuses_the_last_place(key_cache, value_cache, length, key, value):
    n = length + key.shape[2]
    if n >= key_cache.shape[2]:
        raise ValueError("no room")
    key_cache[:, :, length:n] = key
    value_cache[:, :, length:n] = value
    return key_cache[:, :, :n], value_cache[:, :, :n]


@wrong(
    "L5-ALL-THE-ROOM",
    APPEND,
    thinks="The cache is one tensor, so I return all of it.",
    why="Behind the filled part lies whatever was in memory. Without a mask, attention would take "
    "that for positions of the text.",
    section="lab5-append",
)
def returns_the_rubbish(key_cache, value_cache, length, key, value):
    refuse_overflow(key_cache, length, key)
    n = length + key.shape[2]
    key_cache[:, :, length:n] = key
    value_cache[:, :, length:n] = value
    return key_cache, value_cache


@wrong(
    "L5-AT-THE-START",
    APPEND,
    thinks="The new positions go to the front.",
    why="They overwrite the oldest ones there. `length` says how many are filled: the next free "
    "place.",
    section="lab5-append",
)
def writes_to_the_front(key_cache, value_cache, length, key, value):
    refuse_overflow(key_cache, length, key)
    t = key.shape[2]
    key_cache[:, :, :t] = key
    value_cache[:, :, :t] = value
    return key_cache[:, :, : length + t], value_cache[:, :, : length + t]


@wrong(
    "L5-OFF-BY-ONE",
    APPEND,
    thinks="The next free place is length + 1.",
    why="Places are counted from 0: with 4 filled they are 0 to 3, and the next is 4. Here one "
    "place stays rubbish, and the last token finds no room.",
    section="lab5-append",
)
def one_place_too_far(key_cache, value_cache, length, key, value):
    refuse_overflow(key_cache, length + 1, key)
    n = length + 1 + key.shape[2]
    key_cache[:, :, length + 1 : n] = key
    value_cache[:, :, length + 1 : n] = value
    return key_cache[:, :, :n], value_cache[:, :, :n]


def heads_and_no_question(key_cache, value_cache, length, key, value):
    n = length + key.shape[1]
    key_cache[:, :, length:n] = key
    value_cache[:, :, length:n] = value
    return key_cache[:, :, :n], value_cache[:, :, :n]


@wrong(
    "L5-T-FROM-HEADS",
    APPEND,
    thinks="key.shape[1] tells how many positions are new.",
    why="The axes are (b c t d), so that is the number of cached heads. Counting from 0, positions "
    "are axis 2.",
    section="lab5-append",
    variants=(heads_and_no_question,),
)
def counts_the_heads(key_cache, value_cache, length, key, value):
    n = length + key.shape[1]
    if n > key_cache.shape[2]:
        raise ValueError("no room")
    key_cache[:, :, length:n] = key
    value_cache[:, :, length:n] = value
    return key_cache[:, :, :n], value_cache[:, :, :n]


@wrong(
    "L5-LAST-ONE-ONLY",
    APPEND,
    thinks="In decoding there is one new position at a time.",
    why="After the prompt, yes. The prompt itself comes at once, t positions, and all of them have "
    "to be kept.",
    section="lab5-append",
)
def keeps_the_last(key_cache, value_cache, length, key, value):
    refuse_overflow(key_cache, length, key)
    key_cache[:, :, length] = key[:, :, -1]
    value_cache[:, :, length] = value[:, :, -1]
    return key_cache[:, :, : length + 1], value_cache[:, :, : length + 1]


# --- decode_step --------------------------------------------------------------------------------

STEP = "decode_step"


def attend(query, keys, values):
    """With as many cached heads as query heads."""
    scores = (keys @ query[..., None]).squeeze(-1) / math.sqrt(query.shape[-1])  # b h n
    return (torch.softmax(scores, dim=-1)[:, :, None] @ values).squeeze(2)


def by_expand(query, keys, values):
    (b, h, d), (c, n) = query.shape, keys.shape[1:3]
    keys, values = (
        x[:, :, None].expand(b, c, h // c, n, d).reshape(b, h, n, d) for x in (keys, values)
    )
    return attend(query, keys, values)


@wrong(
    "L5-REPEAT-INTERLEAVE",
    STEP,
    thinks="Give every query head its own keys: repeat_interleave, then it is ordinary attention.",
    why="The values are right, but the cache is written out for all heads at every step: more "
    "bytes than MHA reads. What GQA saves is spent again. Reshape the query instead.",
    section="lab5-step",
)
def expands_the_keys(query, keys, values):
    g = query.shape[1] // keys.shape[1]
    return attend(query, keys.repeat_interleave(g, dim=1), values.repeat_interleave(g, dim=1))


@wrong(
    "L5-BROADCAST",
    STEP,
    thinks="With a further axis of size 1 the keys broadcast over the group; nothing is copied.",
    why="An elementwise product would broadcast so. A matrix product needs its batch in memory, "
    "so torch copies the keys for each head first. Make the group the rows of one product.",
    section="lab5-step",
    variants=(by_expand,),
)
def product_that_broadcasts(query, keys, values):
    (b, h, d), c = query.shape, keys.shape[1]
    query = query.view(b, c, h // c, 1, d)
    scores = query @ keys[:, :, None].mT / math.sqrt(d)  # b c g 1 n
    return (torch.softmax(scores, dim=-1) @ values[:, :, None]).reshape(b, h, d)


@wrong(
    "L5-ELEMENTWISE",
    STEP,
    thinks="Multiply each query with each key, elementwise, and sum over d.",
    why="The values are right, but all products exist before the sum, for every head as large as "
    "its keys. A matrix product adds them up as it goes.",
    section="lab5-step",
)
def all_products_first(query, keys, values):
    (b, h, d), c = query.shape, keys.shape[1]
    query = query.view(b, c, h // c, 1, d)
    scores = (query * keys[:, :, None]).sum(-1) / math.sqrt(d)  # b c g n
    weights = torch.softmax(scores, dim=-1)
    return (weights[..., None] * values[:, :, None]).sum(-2).reshape(b, h, d)


@wrong(
    "L5-CONTIGUOUS",
    STEP,
    thinks="A view is not contiguous, so call contiguous() before the product.",
    why="That copies the whole cache at every step. A product takes views with any stride between "
    "rows; the copy is not needed.",
    section="lab5-step",
)
def makes_them_contiguous(query, keys, values):
    (b, h, d), c = query.shape, keys.shape[1]
    keys, values = keys.contiguous(), values.contiguous()
    scores = query.reshape(b, c, h // c, d) @ keys.mT / math.sqrt(d)
    return (torch.softmax(scores, dim=-1) @ values).reshape(b, h, d)


@wrong(
    "L5-SCALES-THE-KEYS",
    STEP,
    thinks="Divide the keys by the root of d, then multiply.",
    why="The values are right, but a divided copy of all keys is made at every step. Divide the "
    "query, which has one row, or the scores.",
    section="lab5-step",
)
def divides_the_keys(query, keys, values):
    (b, h, d), c = query.shape, keys.shape[1]
    scores = query.reshape(b, c, h // c, d) @ (keys / math.sqrt(d)).mT
    return (torch.softmax(scores, dim=-1) @ values).reshape(b, h, d)


@wrong(
    "L5-HEAD-LOOP",
    STEP,
    thinks="A loop over the query heads; each takes the cached head it belongs to.",
    why="Nothing is copied, but each cached head is read once for every query of its group: as "
    "many bytes as with MHA. Let a group read together.",
    section="lab5-step",
)
def head_after_head(query, keys, values):
    g = query.shape[1] // keys.shape[1]
    outputs = []
    for head in range(query.shape[1]):
        scores = keys[:, head // g] @ query[:, head, :, None] / math.sqrt(query.shape[-1])
        weights = torch.softmax(scores, dim=1)  # b n 1
        outputs.append((weights.mT @ values[:, head // g]).squeeze(1))
    return torch.stack(outputs, dim=1)


@wrong(
    "L5-GROUP-ORDER",
    STEP,
    thinks="Query head i takes cached head i modulo c.",
    why="Heads in a row form a group: with 4 heads and 2 cached ones, 0 and 1 share the first. "
    "A model trained that way gives nonsense with any other order.",
    section="lab5-step",
)
def every_cth_head(query, keys, values):
    (b, h, d), c = query.shape, keys.shape[1]
    query = query.view(b, h // c, c, d).transpose(1, 2)  # b c g d
    scores = query @ keys.mT / math.sqrt(d)
    output = torch.softmax(scores, dim=-1) @ values
    return output.transpose(1, 2).reshape(b, h, d)


@wrong(
    "L5-REPEAT",
    STEP,
    thinks="repeat(1, g, 1, 1) gives every query head its keys.",
    why="It lays all cached heads behind each other, g times over, so neighbors do not share one; "
    "and it copies them. Reshape the query: heads in a row form a group.",
    section="lab5-step",
)
def repeats_all_heads(query, keys, values):
    g = query.shape[1] // keys.shape[1]
    return attend(query, keys.repeat(1, g, 1, 1), values.repeat(1, g, 1, 1))


@wrong(
    "L5-NOT-JOINED",
    STEP,
    thinks="The product has the right numbers, so I return it.",
    why="They stand under the axes (b c g d). The rest of the model expects one vector for each of "
    "the h heads: join c and g again.",
    section="lab5-step",
)
def leaves_the_groups(query, keys, values):
    (b, h, d), c = query.shape, keys.shape[1]
    scores = query.view(b, c, h // c, d) @ keys.mT / math.sqrt(d)
    return torch.softmax(scores, dim=-1) @ values


@wrong(
    "L5-GROUP-BACK",
    STEP,
    thinks="At the end the axes c and g are joined, in whatever order.",
    why="The query was split as (c g), so the output is joined as (c g). In the other order the "
    "vectors are right, but under the wrong heads.",
    section="lab5-step",
)
def joined_in_the_other_order(query, keys, values):
    (b, h, d), c = query.shape, keys.shape[1]
    scores = query.view(b, c, h // c, d) @ keys.mT / math.sqrt(d)
    output = torch.softmax(scores, dim=-1) @ values  # b c g d
    return output.transpose(1, 2).reshape(b, h, d)


@wrong(
    "L5-NO-SCALE",
    STEP,
    thinks="Attention is softmax(qkᵀ)v.",
    why="The scores are not divided by the root of d. A cache changes what is computed again, not "
    "what is computed.",
    section="lab5-step",
)
def without_the_root(query, keys, values):
    (b, h, d), c = query.shape, keys.shape[1]
    scores = query.view(b, c, h // c, d) @ keys.mT
    return (torch.softmax(scores, dim=-1) @ values).reshape(b, h, d)


@wrong(
    "L5-SCALE-BY-N",
    STEP,
    thinks="The scores are divided by the root of their last axis.",
    why="That is n, which grows with each token. What is summed in a score are d products, so the "
    "root is that of d.",
    section="lab5-step",
)
def divided_by_root_n(query, keys, values):
    (b, h, d), c = query.shape, keys.shape[1]
    scores = query.view(b, c, h // c, d) @ keys.mT
    scores = scores / math.sqrt(scores.shape[-1])
    return (torch.softmax(scores, dim=-1) @ values).reshape(b, h, d)


@wrong(
    "L5-SOFTMAX-OVER-GROUP",
    STEP,
    thinks="Softmax over the axis of the queries.",
    why="Each query shares out its attention among the n cached positions. Over the group, the "
    "queries would compete for a key.",
    section="lab5-step",
)
def softmax_over_the_group(query, keys, values):
    (b, h, d), c = query.shape, keys.shape[1]
    scores = query.view(b, c, h // c, d) @ keys.mT / math.sqrt(d)
    return (torch.softmax(scores, dim=-2) @ values).reshape(b, h, d)


@wrong(
    "L5-CAUSAL-TOP-LEFT",
    STEP,
    thinks="Decoding is causal, so the scores need a causal mask.",
    why="A triangle from the top left lets the first row see one position only. The newest one "
    "stands at the end, and may see all that is cached: no mask.",
    section="lab5-step",
)
def triangle_from_the_top_left(query, keys, values):
    (b, h, d), (c, n) = query.shape, keys.shape[1:3]
    scores = query.view(b, c, h // c, d) @ keys.mT / math.sqrt(d)
    hidden = torch.ones(h // c, n, dtype=torch.bool).triu(1)
    weights = torch.softmax(scores.masked_fill(hidden, float("-inf")), dim=-1)
    return (weights @ values).reshape(b, h, d)


@wrong(
    "L5-NOT-ITSELF",
    STEP,
    thinks="The newest position attends to the ones before it.",
    why="And to itself: its key and value are in the cache already. The full causal pass has the "
    "diagonal, too.",
    section="lab5-step",
)
def all_but_the_newest(query, keys, values):
    (b, h, d), c = query.shape, keys.shape[1]
    keys, values = keys[:, :, :-1], values[:, :, :-1]
    scores = query.view(b, c, h // c, d) @ keys.mT / math.sqrt(d)
    return (torch.softmax(scores, dim=-1) @ values).reshape(b, h, d)


@wrong(
    "L5-FIRST-HEAD-ONLY",
    STEP,
    thinks="All queries share the first cached head.",
    why="In MQA there is only one. In GQA each group has its own, and the others would never be "
    "read.",
    section="lab5-step",
)
def always_the_first(query, keys, values):
    scores = query @ keys[:, 0].mT / math.sqrt(query.shape[-1])  # b h n
    return torch.softmax(scores, dim=-1) @ values[:, 0]


# --- tokens_per_second --------------------------------------------------------------------------

TOKENS = "tokens_per_second"


@wrong(
    "L5-ONE-TOKEN-A-STEP",
    TOKENS,
    thinks="A step gives one token.",
    why="It gives one to each of the b sequences. That is why a server lets many wait for each "
    "other: the weights are read once for all.",
    section="lab5-bound",
)
def one_token_a_step(b, n, bytes_per_token, weight_bytes, bytes_per_second):
    return bytes_per_second / (weight_bytes + b * n * bytes_per_token)


@wrong(
    "L5-WEIGHTS-ONLY",
    TOKENS,
    thinks="The weights are by far the largest, so only they count.",
    why="For one short text, yes. 64 texts of 4,096 tokens may have more bytes in their caches "
    "than the model has weights.",
    section="lab5-bound",
)
def weights_only(b, n, bytes_per_token, weight_bytes, bytes_per_second):
    return b * bytes_per_second / weight_bytes if weight_bytes else math.inf


@wrong(
    "L5-CACHE-ONLY",
    TOKENS,
    thinks="Decoding reads the cache.",
    why="And all weights of the model, for each token anew. For one short text they are nearly all "
    "of it.",
    section="lab5-bound",
)
def cache_only(b, n, bytes_per_token, weight_bytes, bytes_per_second):
    return b * bytes_per_second / (b * n * bytes_per_token) if n else math.inf


@wrong(
    "L5-WEIGHTS-PER-SEQUENCE",
    TOKENS,
    thinks="Each sequence needs the weights and its cache, so b of both are read.",
    why="The sequences of a step go through the same product with the same weights: these are read "
    "once. Only the caches are b times there.",
    section="lab5-bound",
)
def weights_for_each(b, n, bytes_per_token, weight_bytes, bytes_per_second):
    return b * bytes_per_second / (b * (weight_bytes + n * bytes_per_token))


@wrong(
    "L5-SHARED-CACHE",
    TOKENS,
    thinks="The cache is read once for all sequences, as the weights are.",
    why="The keys of one text are of no use to another. A larger batch spreads the weights over "
    "more tokens, and the caches not at all.",
    section="lab5-bound",
)
def one_cache_for_all(b, n, bytes_per_token, weight_bytes, bytes_per_second):
    return b * bytes_per_second / (weight_bytes + n * bytes_per_token)


@wrong(
    "L5-ONE-POSITION",
    TOKENS,
    thinks="A step adds one token, so it moves the bytes of one token.",
    why="It writes those of one, and reads those of all n before: each of them gets a weight.",
    section="lab5-bound",
)
def newest_position_only(b, n, bytes_per_token, weight_bytes, bytes_per_second):
    return b * bytes_per_second / (weight_bytes + b * bytes_per_token)


@wrong(
    "L5-LARGER-ONE",
    TOKENS,
    thinks="The longer of the two, weights or caches, decides.",
    why="They come through the same memory, one after the other, so their bytes add up. The larger "
    "one would do if they had a memory each.",
    section="lab5-bound",
)
def the_larger_of_both(b, n, bytes_per_token, weight_bytes, bytes_per_second):
    return b * bytes_per_second / max(weight_bytes, b * n * bytes_per_token)


@wrong(
    "L5-SECONDS",
    TOKENS,
    thinks="Bytes over bytes per second.",
    why="That are the seconds of a step. Asked for is its inverse, times the tokens that a step "
    "gives.",
    section="lab5-bound",
)
def seconds_of_a_step(b, n, bytes_per_token, weight_bytes, bytes_per_second):
    return (weight_bytes + b * n * bytes_per_token) / bytes_per_second


# --- lab5_receipt -------------------------------------------------------------------------------

RECEIPT = "lab5_receipt"


def a_record(sizes=(512, 1024, 2048, 4096, 8192), samples=20, d=128):
    """A record as a T4 could have measured it."""
    chance, now, made = random.Random(7), 2.0, []
    for n in sizes:
        together = []
        for name, kv_heads in (("MHA", 32), ("GQA-8", 8), ("MQA", 1), ("expanded", 8)):
            cache = 8 * 2 * kv_heads * n * d * 2
            scores = 8 * 32 * n * 2
            together.append(
                {
                    "name": name,
                    "n": n,
                    "b": 8,
                    "h": 32,
                    "kv_heads": kv_heads,
                    "d": d,
                    "dtype": "float16",
                    "seconds": [],
                    "started": [],
                    "clock": "events",
                    "bytes": cache,
                    "flops": 4.0 * 8 * 32 * n * d,
                    "peak_bytes": 2 * scores + (4 * cache if name == "expanded" else 0),
                    "backend": None,
                    "label": None,
                    "error": None,
                    "wall_over_cpu": 1.0,
                    "reference_error": 5e-4,
                    "true": 5e-5 + cache * (9 if name == "expanded" else 1) / 1.9e11,
                }
            )
        for _ in range(samples):
            for point in together:
                point["seconds"].append(point["true"] * chance.lognormvariate(0, 0.02))
                point["started"].append(now)
                now += point["true"] + 2e-3
        for point in together:
            del point["true"]
        made += together
    guess = {"share": 0.8, "speed_up": 20, "expanded": 3}
    roofs = {"flops_per_second": {"float16": 2.4e13}, "bytes_per_second": 2.4e11}
    return {
        "lab": "lab5_decode_bandwidth",
        "machine": {
            "device": "cuda",
            "name": "Tesla T4",
            "capability": [7, 5],
            "memory_bytes": 15_828_320_256,
            "l2_bytes": 4_194_304,
            "threads": 1,
            "torch": "2.11.0+cu128",
            "python": "3.13.15",
            "cuda": "12.8",
            "label": "T4",
            "ceilings": roofs,
            "precision": "highest",
        },
        "predictions": {
            name: {"value": value, "at": 1.0, "session": 0, "points": 0}
            for name, value in guess.items()
        },
        "points": made,
    }


@wrong(
    "L5-CUT-OFF",
    RECEIPT,
    thinks="I have marked the receipt with the mouse and pasted it.",
    why="Its end is missing. It is some dozens of lines long: take all that stands between the two "
    "lines of three quotes.",
    section="lab5-receipt",
)
def cut_off():
    receipt = encode(a_record())
    return receipt[: len(receipt) * 2 // 3]


@wrong(
    "L5-OTHER-LAB",
    RECEIPT,
    thinks="A receipt is a receipt.",
    why="This one is of another lab. Each lab prints its own, at the end of its measuring cell.",
    section="lab5-receipt",
)
def of_another_lab():
    return encode(a_record() | {"lab": "lab2_quadratic_wall"})


def one_prediction_forgotten():
    record = a_record()
    del record["predictions"]["share"]
    return encode(record)


@wrong(
    "L5-NO-PREDICTION",
    RECEIPT,
    thinks="Measuring is what counts; a prediction may be left out.",
    why="Without it nobody can say what surprised you, you included. There are three, each is a "
    "number, and none has to be right.",
    section="lab5-predict",
    variants=(one_prediction_forgotten,),
)
def without_predictions():
    return encode(a_record() | {"predictions": {}})


@wrong(
    "L5-AFTERWARD",
    RECEIPT,
    thinks="I have filled in the predictions when I knew the numbers.",
    why="Then they are results. The record notes how many points had been measured. Start a new "
    "file, and guess first: wrong guesses cost nothing.",
    section="lab5-predict",
)
def predicted_afterward():
    record = a_record()
    for made in record["predictions"].values():
        made["points"] = 20
    return encode(record)


@wrong(
    "L5-ONLY-MHA",
    RECEIPT,
    thinks="Decoding is decoding: I have measured it with MHA.",
    why="The question is what fewer cached heads bring, so GQA-8 and MQA belong to it, in the same "
    "run.",
    section="lab5-receipt",
)
def mha_only():
    record = a_record()
    record["points"] = [point for point in record["points"] if point["name"] == "MHA"]
    return encode(record)


@wrong(
    "L5-FEW-SIZES",
    RECEIPT,
    thinks="Two or three sizes show the trend.",
    why="A short cache costs little more than the call, or waits in a cache of the processor. With "
    "four sizes or more, over a range of 8, one sees where that ends.",
    section="lab5-receipt",
)
def three_sizes():
    return encode(a_record(sizes=(2048, 4096, 8192)))


@wrong(
    "L5-QUICK-RUN",
    RECEIPT,
    thinks="A quick run writes a receipt, too.",
    why="It tries the notebook out: caches so small never leave the processor, so they say nothing "
    "about memory. Measure without it.",
    section="lab5-receipt",
)
def of_a_quick_run():
    return encode(a_record(sizes=(32, 64, 128, 256), d=16))


@wrong(
    "L5-NO-ROOF",
    RECEIPT,
    thinks="The data sheet says how fast the memory is, so I have left the copy out.",
    why="A sheet says what nobody reaches. The share that counts is that of the bandwidth which "
    "this machine reached in this session.",
    section="lab5-receipt",
)
def without_ceilings():
    record = a_record()
    record["machine"]["ceilings"] = None
    return encode(record)


@wrong(
    "L5-MHA-BYTES",
    RECEIPT,
    thinks="Each of the 32 heads reads all keys, so GQA and MQA move the bytes of MHA, too.",
    why="A group reads its keys together. The bytes of a point are those of its cache; with fewer "
    "cached heads there are fewer.",
    section="lab5-step",
)
def bytes_of_all_heads():
    record = a_record()
    for point in record["points"]:
        point["bytes"] = point["bytes"] * 32 // point["kv_heads"]
    return encode(record)


@wrong(
    "L5-CACHE-COPIED",
    RECEIPT,
    thinks="How decode_step is written does not matter for the measurement.",
    why="The peak says that the cache was copied at each step. Then time and bytes do not belong "
    "together. Mend `decode_step` and measure again.",
    section="lab5-step",
)
def with_copies():
    record = a_record()
    for point in record["points"]:
        point["peak_bytes"] += 2**25 + 3 * point["bytes"]
    return encode(record)


@wrong(
    "L5-NO-PEAK",
    RECEIPT,
    thinks="Time and bytes are enough; the peak of memory may be left out.",
    why="The peak is what shows that a step copies nothing. Without it the bytes of a point are "
    "only what somebody says.",
    section="lab5-receipt",
)
def without_peaks():
    record = a_record()
    for point in record["points"]:
        point["peak_bytes"] = None
    return encode(record)


@wrong(
    "L5-HOT-CACHE",
    RECEIPT,
    thinks="900 GB a second on a T4: decoding is faster than I thought.",
    why="Its memory gives 320. What is faster was not read from memory: it waited in the L2 cache, "
    "or the clock stopped early. Such a point has to say so.",
    section="lab5-bandwidth",
)
def faster_than_memory():
    record = a_record()
    for point in record["points"]:
        if point["name"] == "MQA" and point["n"] <= 1024:
            now = sum(point["seconds"]) / len(point["seconds"])
            true = point["bytes"] / 9e11
            point["seconds"] = [each / now * true for each in point["seconds"]]
    return encode(record)


@wrong(
    "L5-MILLISECONDS",
    RECEIPT,
    thinks="elapsed_time gives the time, so that is what I record.",
    why="It gives milliseconds, and a record holds seconds. With these numbers each sample would "
    "last longer than the time until the next began.",
    section="lab5-receipt",
)
def in_milliseconds():
    record = a_record()
    for point in record["points"]:
        point["seconds"] = [1000 * each for each in point["seconds"]]
    return encode(record)


@wrong(
    "L5-THREE-SAMPLES",
    RECEIPT,
    thinks="Three runs and the best of them will do.",
    why="Three numbers cannot show their own noise. Take 20 or more; at the sizes of this lab that "
    "costs seconds.",
    section="lab5-receipt",
)
def three_samples():
    return encode(a_record(samples=3))


# --- conclude_decode ----------------------------------------------------------------------------

CONCLUDE = "conclude_decode"


def summary(record, average=statistics.median, **instead):
    """Right conclusions, with this average, less what is replaced."""
    points = {(p["name"], p["n"]): p for p in record["points"] if not p["error"]}
    times = {place: average(point["seconds"]) for place, point in points.items()}
    roof = record["machine"]["ceilings"]
    copy = roof["bytes_per_second"]
    own = [n for name, n in points if name == "MHA"]
    n = max(n for n in own if ("MQA", n) in points)
    many, one = points["MHA", n], points["MQA", n]
    speed = points["MHA", max(own)]["bytes"] / times["MHA", max(own)]
    speed_up = instead.get("speed_up", times["MHA", n] / times["MQA", n])
    predicted = record["predictions"]["speed_up"]["value"]
    edge = roof["flops_per_second"][one["dtype"]] / copy
    return {
        "bytes_per_second": speed,
        "share": instead.get("bytes_per_second", speed) / copy,
        "ideal": many["bytes"] / one["bytes"],
        "speed_up": speed_up,
        "computes": one["flops"] / one["bytes"] > edge,
        "from_cache": sum(points[at]["bytes"] / times[at] > 1.5 * copy for at in points),
        "held": speed_up / 1.5 <= predicted <= 1.5 * speed_up,
    } | instead


def medians_of(record, name):
    """n -> median seconds."""
    return {
        p["n"]: statistics.median(p["seconds"])
        for p in record["points"]
        if p["name"] == name and not p["error"]
    }


def points_of(record, name):
    """n -> point."""
    return {p["n"]: p for p in record["points"] if p["name"] == name and not p["error"]}


@wrong(
    "L5-MEAN",
    CONCLUDE,
    thinks="The time of a point is the mean of its samples.",
    why="One disturbed sample moves a mean anywhere, and seven of 21 double it. A median stays "
    "where most of them are.",
    section="lab5-conclude",
)
def means(record):
    return summary(record, statistics.mean)


@wrong(
    "L5-FIRST-SAMPLE",
    CONCLUDE,
    thinks="The first sample is the time.",
    why="It is one of many, and the one that most likely holds what only a first call does. Use "
    "all of them.",
    section="lab5-conclude",
)
def first_samples(record):
    return summary(record, lambda samples: samples[0])


@wrong(
    "L5-SLOWEST",
    CONCLUDE,
    thinks="To be on the safe side, the slowest sample counts.",
    why="The slowest sample tells of whatever disturbed it. It is no safe side; it is somebody "
    "else's time.",
    section="lab5-conclude",
)
def slowest_samples(record):
    return summary(record, max)


@wrong(
    "L5-IDEAL-AS-MEASURED",
    CONCLUDE,
    thinks="A cache 32 times smaller is read 32 times faster, so that is the speed-up.",
    why="That is the ideal. A step has costs that do not shrink with its cache, and beyond the "
    "ridge it computes. The speed-up is the ratio of the times.",
    section="lab5-less",
)
def ideal_for_measured(record):
    return summary(record, speed_up=summary(record)["ideal"])


@wrong(
    "L5-ALWAYS-32",
    CONCLUDE,
    thinks="There are 32 heads, so the ideal is 32.",
    why="A record may be of 16 heads. Bytes are in the points: divide those of MHA by those of "
    "MQA.",
    section="lab5-conclude",
)
def always_32(record):
    return summary(record, ideal=32)


@wrong(
    "L5-GQA-FOR-MQA",
    CONCLUDE,
    thinks="The speed-up of fewer heads: MHA over GQA-8.",
    why="Asked for is MQA, one cached head for all queries. GQA-8 lies between.",
    section="lab5-conclude",
)
def against_gqa(record):
    many, few = medians_of(record, "MHA"), medians_of(record, "GQA-8")
    n = max(many.keys() & few.keys())
    bytes_of = {name: points_of(record, name)[n]["bytes"] for name in ("MHA", "GQA-8")}
    return summary(record, speed_up=many[n] / few[n], ideal=bytes_of["MHA"] / bytes_of["GQA-8"])


@wrong(
    "L5-DIFFERENT-N",
    CONCLUDE,
    thinks="The speed-up is that of the two largest caches.",
    why="One of them may have run out of memory earlier. Compare them at an n where both have a "
    "time.",
    section="lab5-conclude",
)
def each_at_its_own_end(record):
    many, one = medians_of(record, "MHA"), medians_of(record, "MQA")
    return summary(record, speed_up=many[max(many)] / one[max(one)])


@wrong(
    "L5-SMALLEST-N",
    CONCLUDE,
    thinks="The speed-up can be read off at any size, say the first.",
    why="At the smallest size a step is mostly fixed cost, so the ratio is near one whatever the "
    "heads. Take the largest that both have.",
    section="lab5-less",
)
def at_the_smallest(record):
    many, one = medians_of(record, "MHA"), medians_of(record, "MQA")
    n = min(many.keys() & one.keys())
    return summary(record, speed_up=many[n] / one[n])


def upside_down_but_for_held(record):
    right = summary(record)
    return right | {"speed_up": 1 / right["speed_up"]}


@wrong(
    "L5-UPSIDE-DOWN",
    CONCLUDE,
    thinks="The speed-up says which share of MHA's time MQA needs.",
    why="That is the inverse: 0.05 instead of 20. Here MHA stands above the fraction bar.",
    section="lab5-conclude",
    variants=(upside_down_but_for_held,),
)
def upside_down(record):
    return summary(record, speed_up=1 / summary(record)["speed_up"])


@wrong(
    "L5-MQA-SPEED",
    CONCLUDE,
    thinks="The bytes a second are those of the fastest, MQA.",
    why="MQA takes the least time, but it has few bytes to read: its speed in bytes a second is "
    "often the lowest. Asked for is MHA.",
    section="lab5-bandwidth",
)
def speed_of_mqa(record):
    one = points_of(record, "MQA")
    speed = one[max(one)]["bytes"] / medians_of(record, "MQA")[max(one)]
    return summary(record, bytes_per_second=speed)


@wrong(
    "L5-FASTEST-POINT",
    CONCLUDE,
    thinks="The speed of MHA is that of its fastest point.",
    why="A small cache may wait in the processor and be read faster than memory can. The largest n "
    "is the one that surely comes from memory.",
    section="lab5-bandwidth",
)
def fastest_point_of_mha(record):
    times = medians_of(record, "MHA")
    speed = max(point["bytes"] / times[n] for n, point in points_of(record, "MHA").items())
    return summary(record, bytes_per_second=speed)


@wrong(
    "L5-SPEED-AT-COMMON-N",
    CONCLUDE,
    thinks="All is read off at the largest n that MHA and MQA share.",
    why="Only what compares the two needs that. The bytes a second are of MHA alone, and may be "
    "taken where its cache is largest.",
    section="lab5-conclude",
)
def speed_at_the_common_n(record):
    times, points = medians_of(record, "MHA"), points_of(record, "MHA")
    n = max(times.keys() & points_of(record, "MQA").keys())
    return summary(record, bytes_per_second=points[n]["bytes"] / times[n])


@wrong(
    "L5-GIGABYTES",
    CONCLUDE,
    thinks="Bandwidth is best said in GB/s.",
    why="For people, yes. The key says bytes_per_second, and the copy's bandwidth beside it is in "
    "bytes a second. Divide when you print.",
    section="lab5-bandwidth",
)
def in_gigabytes(record):
    right = summary(record)
    return right | {"bytes_per_second": right["bytes_per_second"] / 1e9}


@wrong(
    "L5-DATA-SHEET",
    CONCLUDE,
    thinks="The share is that of the 320 GB/s in the data sheet.",
    why="Not every record is of a T4, and no program reaches its sheet. This machine's own copy is "
    'in record["machine"]["ceilings"].',
    section="lab5-bandwidth",
)
def share_of_the_sheet(record):
    right = summary(record)
    return right | {"share": right["bytes_per_second"] / 320e9}


@wrong(
    "L5-SHARE-INVERTED",
    CONCLUDE,
    thinks="The share says how many times as fast a copy is.",
    why="That is its inverse. A share of a copy's speed is 1 if the step reads as fast as a copy, "
    "and less if it is slower.",
    section="lab5-bandwidth",
)
def inverted_share(record):
    right = summary(record)
    return right | {"share": 1 / right["share"]}


@wrong(
    "L5-FLOAT32-RIDGE",
    CONCLUDE,
    thinks="The arithmetic is that of float32.",
    why="On a CPU, yes. A GPU's record is in float16, and multiplies that several times as fast. "
    "Each point says its dtype.",
    section="lab5-ridge",
)
def ridge_of_float32(record):
    roof = record["machine"]["ceilings"]
    one, many = points_of(record, "MQA"), points_of(record, "MHA")
    point = one[max(one.keys() & many.keys())]
    edge = roof["flops_per_second"]["float32"] / roof["bytes_per_second"]
    return summary(record, computes=point["flops"] / point["bytes"] > edge)


@wrong(
    "L5-ALWAYS-MEMORY",
    CONCLUDE,
    thinks="Decoding waits for memory, that is known.",
    why="With one query for each key, yes. With 32 queries for a key there are 32 times the "
    "operations for each byte, and on a machine that computes slowly that is beyond the ridge.",
    section="lab5-ridge",
)
def never_computes(record):
    return summary(record, computes=False)


@wrong(
    "L5-RIDGE-OF-MHA",
    CONCLUDE,
    thinks="One intensity for all: that of MHA.",
    why="The operations are the same, but MQA has a 32nd of the bytes, so its intensity is 32 "
    "times as high. Asked for is MQA.",
    section="lab5-ridge",
)
def intensity_of_mha(record):
    roof = record["machine"]["ceilings"]
    many = points_of(record, "MHA")
    point = many[max(many)]
    edge = roof["flops_per_second"][point["dtype"]] / roof["bytes_per_second"]
    return summary(record, computes=point["flops"] / point["bytes"] > edge)


@wrong(
    "L5-RIDGE-INVERTED",
    CONCLUDE,
    thinks="Above the ridge a program waits for memory.",
    why="The other way round: many operations for each byte keep the arithmetic busy, and memory "
    "waits. Below the ridge a program waits for memory.",
    section="lab5-ridge",
)
def above_waits(record):
    return summary(record, computes=not summary(record)["computes"])


@wrong(
    "L5-FASTER-THAN-A-COPY",
    CONCLUDE,
    thinks="Whatever is faster than the copy came from a cache.",
    why="A copy reads and writes; reading alone can be up to 1.5 times as fast. Only beyond that "
    "is it certain.",
    section="lab5-bandwidth",
)
def beyond_one_copy(record):
    copy = record["machine"]["ceilings"]["bytes_per_second"]
    done = [p for p in record["points"] if not p["error"]]
    fast = [p for p in done if p["bytes"] / statistics.median(p["seconds"]) > copy]
    return summary(record, from_cache=len(fast))


@wrong(
    "L5-NEVER-FROM-CACHE",
    CONCLUDE,
    thinks="What is read from a tensor is read from memory, or a label says otherwise.",
    why="A small tensor that was read a moment ago may still lie in a cache of the processor, with "
    "no label. It shows: more bytes a second than memory can give.",
    section="lab5-bandwidth",
)
def never_from_cache(record):
    return summary(record, from_cache=0)


@wrong(
    "L5-HELD-EXACTLY",
    CONCLUDE,
    thinks="A prediction holds if it is the right number.",
    why="No prediction of a measurement is right to the digit. A factor of 1.5 either way was "
    "agreed before, and that is what makes it a test.",
    section="lab5-predict",
)
def held_within_one_percent(record):
    predicted, found = record["predictions"]["speed_up"]["value"], summary(record)["speed_up"]
    return summary(record, held=abs(predicted / found - 1) < 0.01)


@wrong(
    "L5-HELD-IDEAL",
    CONCLUDE,
    thinks="The prediction is held against what the bytes say.",
    why="It was made of the time. What the bytes say, the ideal, is another guess. Only the "
    "measured speed-up can test either.",
    section="lab5-predict",
)
def held_against_the_ideal(record):
    predicted, ideal = record["predictions"]["speed_up"]["value"], summary(record)["ideal"]
    return summary(record, held=ideal / 1.5 <= predicted <= 1.5 * ideal)


@wrong(
    "L5-HELD-ONE-SIDED",
    CONCLUDE,
    thinks="The prediction held if the speed-up was at least what I predicted.",
    why="A factor of 1.5 goes both ways: who predicts 2 when it is 20 has not been right.",
    section="lab5-predict",
)
def held_one_sided(record):
    predicted, found = record["predictions"]["speed_up"]["value"], summary(record)["speed_up"]
    return summary(record, held=predicted <= 1.5 * found)
