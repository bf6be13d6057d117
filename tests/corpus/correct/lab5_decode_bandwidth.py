"""Right answers of lab 5 in many styles: the judge must accept every one of them, on every seed."""

import math

import einops
import numpy as np
import torch

from attncourse.lab.receipts import encode, wrap
from attncourse.lab.roofline import ridge
from attncourse.tasks.lab5_decode_bandwidth.lab5_receipt import CPU, a_record
from corpus.correct.lab2_quadratic_wall import shortest_or_middle

# --- cache_bytes


def seven_factors(b, layers, kv_heads, n, d, bytes_per_number):
    return 2 * b * layers * kv_heads * n * d * bytes_per_number


def keys_and_values(b, layers, kv_heads, n, d, bytes_per_number):
    keys = b * layers * kv_heads * n * d
    values = keys
    return (keys + values) * bytes_per_number


def by_a_product(b, layers, kv_heads, n, d, bytes_per_number):
    return math.prod((2, b, layers, kv_heads, n, d, bytes_per_number))


def by_token(b, layers, kv_heads, n, d, bytes_per_number):
    token = 2 * kv_heads * d * bytes_per_number
    return sum(token * n * b for _ in range(layers))


def by_tensors(b, layers, kv_heads, n, d, bytes_per_number):
    dtype = {1: torch.int8, 2: torch.float16, 4: torch.float32, 8: torch.float64}[bytes_per_number]
    return torch.empty(layers, 2, b, kv_heads, n, d, dtype=dtype, device="meta").nbytes


def layer_by_layer(b, layers, kv_heads, n, d, bytes_per_number):
    of_a_layer = sum(b * kv_heads * n * d * bytes_per_number for _ in ("key", "value"))
    return layers * of_a_layer


# --- append_to_cache


def by_slices(key_cache, value_cache, length, key, value):
    n = length + key.shape[2]
    if n > key_cache.shape[2]:
        raise ValueError(f"no room for position {n}")
    key_cache[:, :, length:n] = key
    value_cache[:, :, length:n] = value
    return key_cache[:, :, :n], value_cache[:, :, :n]


def by_narrow(key_cache, value_cache, length, key, value):
    t = key.size(2)
    key_cache.narrow(2, length, t).copy_(key)
    value_cache.narrow(2, length, t).copy_(value)
    return key_cache.narrow(2, 0, length + t), value_cache.narrow(2, 0, length + t)


def position_by_position(key_cache, value_cache, length, key, value):
    for i in range(key.shape[2]):  # an index beyond the end raises IndexError
        key_cache[:, :, length + i] = key[:, :, i]
        value_cache[:, :, length + i] = value[:, :, i]
    n = length + key.shape[2]
    return [key_cache[:, :, :n], value_cache[:, :, :n]]


def by_index_copy(key_cache, value_cache, length, key, value):
    places = torch.arange(length, length + key.shape[-2])
    key_cache.index_copy_(2, places, key)
    value_cache.index_copy_(2, places, value)
    return key_cache[..., : places[-1] + 1, :], value_cache[..., : places[-1] + 1, :]


def with_an_assertion(key_cache, value_cache, length, key, value):
    end = length + key.shape[-2]
    assert end <= key_cache.shape[-2], "the cache is full"
    for cache, new in ((key_cache, key), (value_cache, value)):
        cache[..., length:end, :].copy_(new)
    return tuple(cache[..., :end, :] for cache in (key_cache, value_cache))


def views_first(key_cache, value_cache, length, key, value):
    n = length + key.shape[2]
    keys, values = key_cache[:, :, :n], value_cache[:, :, :n]
    if keys.shape[2] < n:
        raise ValueError("full")
    keys[:, :, length:] = key
    values[:, :, length:] = value
    return keys, values


# --- decode_step


def by_torch_einsum(query, keys, values):
    (b, h, d), c = query.shape, keys.shape[1]
    q = query.view(b, c, h // c, d)
    scores = torch.einsum("bcgd,bcnd->bcgn", q, keys) / math.sqrt(d)
    return torch.einsum("bcgn,bcnd->bcgd", scores.softmax(-1), values).reshape(b, h, d)


def by_matmul(query, keys, values):
    (b, h, d), c = query.shape, keys.shape[1]
    weights = torch.softmax(query.reshape(b, c, h // c, d) @ keys.mT / d**0.5, dim=-1)
    return (weights @ values).reshape(b, h, d)


def by_einops(query, keys, values):
    q = einops.rearrange(query, "b (c g) d -> b c g d", c=keys.shape[1]) * query.shape[-1] ** -0.5
    weights = einops.einsum(q, keys, "b c g d, b c n d -> b c g n").softmax(-1)
    output = einops.einsum(weights, values, "b c g n, b c n d -> b c g d")
    return einops.rearrange(output, "b c g d -> b (c g) d")


def a_loop_over_groups(query, keys, values):
    c, d = keys.shape[1], keys.shape[-1]
    g = query.shape[1] // c
    outputs = []
    for i in range(c):
        scores = query[:, i * g : (i + 1) * g] @ keys[:, i].transpose(-2, -1) / math.sqrt(d)
        outputs.append(torch.softmax(scores, -1) @ values[:, i])
    return torch.cat(outputs, dim=1)


def softmax_by_hand(query, keys, values):
    (h, d), c = query.shape[1:], keys.shape[1]
    scores = query.unflatten(1, (c, h // c)) @ keys.mT / math.sqrt(d)
    exponentials = (scores - scores.amax(-1, keepdim=True)).exp()
    output = exponentials @ values / exponentials.sum(-1, keepdim=True)
    return output.flatten(1, 2)


def keys_times_queries(query, keys, values):
    (b, h, d), c = query.shape, keys.shape[1]
    q = query.view(b, c, h // c, d).mT / math.sqrt(d)  # b c d g
    weights = torch.softmax(keys @ q, dim=-2)  # b c n g
    return (weights.mT @ values).reshape(b, h, d)


def in_batches_of_three_axes(query, keys, values):
    (b, h, d), c = query.shape, keys.shape[1]
    q = query.reshape(b * c, h // c, d)
    scores = torch.bmm(q, keys.flatten(0, 1).transpose(1, 2)) * d**-0.5
    return torch.bmm(scores.softmax(dim=2), values.flatten(0, 1)).reshape(b, h, d)


# --- tokens_per_second


def seconds_first(b, n, bytes_per_token, weight_bytes, bytes_per_second):
    seconds = (weight_bytes + b * n * bytes_per_token) / bytes_per_second
    return b / seconds


def in_one_line(b, n, bytes_per_token, weight_bytes, bytes_per_second):
    return b * bytes_per_second / (weight_bytes + b * n * bytes_per_token)


def bytes_for_a_token(b, n, bytes_per_token, weight_bytes, bytes_per_second):
    return bytes_per_second / (weight_bytes / b + n * bytes_per_token)


def sequence_after_sequence(b, n, bytes_per_token, weight_bytes, bytes_per_second):
    moved = weight_bytes
    for _ in range(b):
        moved += n * bytes_per_token
    return b * bytes_per_second / moved


def harmonic(b, n, bytes_per_token, weight_bytes, bytes_per_second):
    times = [weight_bytes / bytes_per_second, b * n * bytes_per_token / bytes_per_second]
    return b / sum(times)


def two_bounds(b, n, bytes_per_token, weight_bytes, bytes_per_second):
    by_weights = b * bytes_per_second / weight_bytes
    if n * bytes_per_token == 0:
        return by_weights
    return 1 / (1 / by_weights + n * bytes_per_token / bytes_per_second)


def in_gigabytes_throughout(b, n, bytes_per_token, weight_bytes, bytes_per_second):
    weights, token, speed = (x / 1e9 for x in (weight_bytes, bytes_per_token, bytes_per_second))
    return b / ((weights + b * n * token) / speed)


# --- lab5_receipt


def on_a_t4():
    return encode(a_record())


def on_a_cpu():
    return encode(a_record(CPU))


def in_lines_with_its_name():
    return f'\n    RECEIPT = """\n{wrap(encode(a_record(seed=1)))}\n"""\n'


def on_a_busy_computer():  # it is asked to measure again, and loses nothing
    return encode(a_record(CPU, busy=3.4, noise=0.3, samples=25))


def with_hot_caches_that_say_so():
    return encode(a_record(CPU, near=9_000_000))


def with_little_memory():
    return encode(a_record(ends=4096, seed=3))


def without_the_expanded_one_and_wild_guesses():
    return encode(a_record(seed=5, with_expanded=False, predicted=(1, 1000.0, 1)))


def with_few_sizes():
    return encode(a_record(seed=6, sizes=(1024, 2048, 4096, 8192)))


# --- conclude_decode


def by_place(record):
    points = {(p["name"], p["n"]): p for p in record["points"] if not p["error"]}
    roof = record["machine"]["ceilings"]
    copy = roof["bytes_per_second"]
    time = {place: shortest_or_middle(p) for place, p in points.items()}
    top = max(n for name, n in points if name == "MHA")
    n = max(n for name, n in points if name == "MHA" and ("MQA", n) in points)
    one = points["MQA", n]
    speed = points["MHA", top]["bytes"] / time["MHA", top]
    speed_up = time["MHA", n] / time["MQA", n]
    guess = record["predictions"]["speed_up"]["value"]
    return {
        "bytes_per_second": speed,
        "share": speed / copy,
        "ideal": points["MHA", n]["bytes"] / one["bytes"],
        "speed_up": speed_up,
        "computes": one["flops"] / one["bytes"] > ridge(roof, one["dtype"]),
        "from_cache": sum(points[at]["bytes"] / time[at] > 1.5 * copy for at in points),
        "held": max(speed_up / guess, guess / speed_up) <= 1.5,
    }


def by_one_rule(record):
    def number(point):
        times = np.array(point["seconds"])
        return np.min(times) if point["clock"] == "cpu" else np.median(times)

    best, moved, work, dtypes = {}, {}, {}, {}
    for point in record["points"]:
        if point["seconds"]:
            place = point["name"], point["n"]
            best[place] = number(point)
            moved[place], work[place] = point["bytes"], point["flops"]
            dtypes[place] = point["dtype"]
    sizes = {name: {n for each, n in best if each == name} for name in ("MHA", "MQA")}
    n, top = max(sizes["MHA"] & sizes["MQA"]), max(sizes["MHA"])
    copy = record["machine"]["ceilings"]["bytes_per_second"]
    products = record["machine"]["ceilings"]["flops_per_second"][dtypes["MQA", n]]
    speed = moved["MHA", top] / best["MHA", top]
    speed_up = best["MHA", n] / best["MQA", n]
    guess = record["predictions"]["speed_up"]["value"]
    return {
        "bytes_per_second": speed,
        "share": speed / copy,
        "ideal": moved["MHA", n] / moved["MQA", n],
        "speed_up": speed_up,
        "computes": work["MQA", n] / products > moved["MQA", n] / copy,
        "from_cache": len([at for at in best if moved[at] / best[at] / copy > 1.5]),
        "held": abs(math.log(guess / speed_up)) <= math.log(1.5),
    }


def by_cached_heads(record):
    ok = [p for p in record["points"] if p["error"] is None]
    many = {p["n"]: p for p in ok if p["name"] == "MHA"}
    one = {p["n"]: p for p in ok if p["name"] == "MQA"}

    def middle(point):
        return float(np.quantile(point["seconds"], 0 if point["clock"] == "cpu" else 0.5))

    n, longest = max(set(many) & set(one)), many[max(many)]
    roof = record["machine"]["ceilings"]
    copy = roof["bytes_per_second"]
    speed_up = middle(many[n]) / middle(one[n])
    ratio = record["predictions"]["speed_up"]["value"] / speed_up
    intensity = one[n]["flops"] / one[n]["bytes"]
    return {
        "bytes_per_second": longest["bytes"] / middle(longest),
        "share": longest["bytes"] / middle(longest) / copy,
        "ideal": many[n]["kv_heads"] // one[n]["kv_heads"],
        "speed_up": speed_up,
        "computes": intensity * copy > roof["flops_per_second"][one[n]["dtype"]],
        "from_cache": sum(1 for p in ok if p["bytes"] / middle(p) > 1.5 * copy),
        "held": 2 / 3 <= ratio <= 3 / 2,
    }


def numbers_of_numpy(record):
    return {name: np.float64(value) for name, value in by_place(record).items()}


def with_more_than_was_asked(record):
    failed = [p["n"] for p in record["points"] if p["error"]]
    return by_place(record) | {"first failure": min(failed, default=None)}


def tensors_and_numbers(record):
    found = by_one_rule(record)
    found["share"] = torch.tensor(found["share"], dtype=torch.float64)
    found["held"], found["computes"] = int(found["held"]), float(found["computes"])
    return found


CORRECT = {
    "cache_bytes": [
        seven_factors,
        keys_and_values,
        by_a_product,
        by_token,
        by_tensors,
        layer_by_layer,
    ],
    "append_to_cache": [
        by_slices,
        by_narrow,
        position_by_position,
        by_index_copy,
        with_an_assertion,
        views_first,
    ],
    "decode_step": [
        by_torch_einsum,
        by_matmul,
        by_einops,
        a_loop_over_groups,
        softmax_by_hand,
        keys_times_queries,
        in_batches_of_three_axes,
    ],
    "tokens_per_second": [
        seconds_first,
        in_one_line,
        bytes_for_a_token,
        sequence_after_sequence,
        harmonic,
        two_bounds,
        in_gigabytes_throughout,
    ],
    "lab5_receipt": [
        on_a_t4,
        on_a_cpu,
        in_lines_with_its_name,
        on_a_busy_computer,
        with_hot_caches_that_say_so,
        with_little_memory,
        without_the_expanded_one_and_wild_guesses,
        with_few_sizes,
    ],
    "conclude_decode": [
        by_place,
        by_one_rule,
        by_cached_heads,
        numbers_of_numpy,
        with_more_than_was_asked,
        tensors_and_numbers,
    ],
}
