import functools
import math
import zlib

import torch
from torch import nn

from attncourse import cache as reference
from attncourse.checks.answer import Failure, compare, describe, following, moves_nothing, shape_of
from attncourse.checks.inputs import normal
from attncourse.checks.modules import made, parts_of, weights_of, with_weights
from attncourse.checks.observe import FUSED_ATTENTION, Unusable
from attncourse.checks.task import Task
from attncourse.lab.meters import count
from attncourse.positions import rotate

SIZES = ("model_width", "num_heads", "head_width", "latent_width", "rope_width")


class Text(nn.Module):
    """A layer that reads a text whole (`chunks` is None), or in steps."""

    def __init__(self, layer):
        super().__init__()
        self.layer = layer

    def forward(self, x, chunks=None, between=None, branch=None):
        if chunks is None:
            output = self.layer(x)
            return None if output is None else [output, torch.tensor(0.0)]
        cache, outputs = None, []
        for piece in x.split(chunks, dim=1):
            if between is not None:  # a step of another text
                self.layer.step(between)
            if branch is not None:  # the same text goes on in another way
                self.layer.step(branch, cache)
            returned = self.layer.step(piece, cache)
            if returned is None:
                if self.layer(x) is None:
                    return None  # not begun
                raise Unusable("has a `step` that returned None: is a `return` missing there?")
            if not isinstance(returned, tuple | list) or len(returned) != 2:
                raise Unusable(
                    f"has a `step` that returned {describe(returned)}; a pair is expected: output, "
                    "cache."
                )
            output, cache = returned
            if not isinstance(output, torch.Tensor):
                raise Unusable(
                    f"has a `step` that returned {describe(output)} for the output; a tensor is "
                    "expected."
                )
            outputs.append(output)
        return [
            torch.cat(outputs, dim=1),
            torch.tensor(float(numbers_in(cache) // x[..., 0].numel())),
        ]


def numbers_in(cache) -> int:
    """How many numbers a cache holds, whatever it is made of."""
    if isinstance(cache, torch.Tensor):
        return cache.numel()
    if isinstance(cache, dict):
        cache = cache.values()
    return sum(map(numbers_in, cache)) if isinstance(cache, tuple | list | type({}.values())) else 0


def layer_as_function(cls):
    """The layer as a function of its sizes, a text and its weights."""

    def function(*, x, chunks=None, between=None, branch=None, **rest):
        layer = made(cls, *(rest.pop(size) for size in SIZES)).to(x.dtype)
        has = dict(layer.named_parameters(remove_duplicate=False))
        if not has:  # perhaps it is not begun
            return Text(layer)(x, chunks)
        for name in rest:
            if name not in has:
                raise Unusable(f"lacks `{name}`; the task says how the parts are called")
        own = {name: drawn(name, part) for name, part in has.items() if name not in rest}
        weights = {f"layer.{name}": weight for name, weight in (rest | own).items()}
        return with_weights(Text(layer), weights, x, chunks, between, branch)

    return function


def drawn(name, parameter):
    """Numbers for a parameter that the task does not know, such as a bias: for a name the same."""
    rng = torch.Generator().manual_seed(zlib.crc32(name.encode()))
    return normal(rng, *parameter.shape, dtype=parameter.dtype)


@functools.cache
def like(*sizes):
    """A layer in whose numbers nobody is interested."""
    return made(reference.LatentAttention, *sizes)


def text_inputs(rng, b=2, n=5, m=10, h=3, d=4, latent=6, r=2, chunks=None, dtype=torch.float32):
    weights = weights_of(like(m, h, d, latent, r), rng, dtype)
    weights["norm.weight"] = 1 + weights["norm.weight"] / 2
    sizes = zip(SIZES, (m, h, d, latent, r), strict=True)
    x = normal(rng, b, n, m, dtype=dtype)
    return {"x": x, "chunks": chunks, "between": None, "branch": None, **dict(sizes), **weights}


def probes(rng):
    """Few, and each for several things at once: a layer takes ten times as long as a function."""
    return {
        "whole text": text_inputs(rng),
        "whole text, other sizes": text_inputs(rng, n=4, m=8, h=2, d=3, latent=5, r=4),
        "in one step": text_inputs(rng, chunks=5),
        "word by word": text_inputs(rng, n=4, chunks=1),
        "pieces of two": text_inputs(rng, b=1, n=5, h=2, d=5, latent=7, r=4, chunks=2),
        "wide latent": text_inputs(rng, n=3, m=8, h=2, d=2, latent=8, chunks=1),
        "between steps of another text": text_inputs(rng, n=3, chunks=2)
        | {"between": normal(rng, 2, 2, 10)},
        "a text that branches": text_inputs(rng, n=3, chunks=2) | {"branch": normal(rng, 2, 1, 10)},
        "one head": text_inputs(rng, n=3, h=1, chunks=2),
        "faint": faint(rng),
    }


def faint(rng):
    """Latents whose mean square is about as small as the number added to it."""
    inputs = text_inputs(rng, n=3, m=8, h=2, d=2, chunks=2)
    return inputs | {"x": 1e-3 * inputs["x"]}


def small(rng):
    def example(n, chunks=None, **sizes):
        return text_inputs(
            rng, 1, n, **{"m": 2, "h": 1, "d": 1, "latent": 1, "r": 2} | sizes, chunks=chunks
        )

    for n in (1, 2, 3):
        yield example(n)
        yield example(n, 1)
        yield example(n, 2)
    yield example(2, m=4, latent=2, d=2)
    yield example(3, 2, m=4, latent=2, d=2, h=2)
    yield example(2, 1, h=2)


METERED = {"b": 1, "n": 256, "m": 32, "h": 8, "d": 16, "latent": 8, "r": 4}


def metered(cls):
    """The last step of a long text under the meter: its biggest tensor, in numbers."""

    def function(*, x, chunks=None, between=None, branch=None, **rest):
        layer = made(cls, *(rest.pop(size) for size in SIZES))
        with torch.no_grad():
            first = layer.step(x[:, :-1])
            if first is None:
                return None
            counts = count(layer.step, x[:, -1:], first[1])
        return counts.biggest_bytes // 4

    return function


def biggest(answer, rng=None):
    inputs = text_inputs(rng or torch.Generator().manual_seed(0), **METERED)
    return answer.returned(inputs, adapt=metered)


KEYS = METERED["n"] * METERED["h"] * METERED["d"]  # numbers in the keys of all heads


def traits(answer):
    seen = answer.observe(dict(zip(SIZES, (10, 3, 4, 6, 2), strict=True)), adapt=parts_of)
    return {
        "writes the past out": biggest(answer) >= KEYS / 4,
        "has biases": any(name.endswith("bias") for name, _ in seen.returned or ()),
    }


task = Task(
    reference.LatentAttention,
    number=5,
    returns=("output", "numbers kept a token"),
    difficulty=5,
    minutes=60,
    section="latent",
    probes=probes,
    adapt=layer_as_function,
    differentiated=("whole text", "word by word"),
    small=small,
    traits=traits,
    features=1,
    forbidden=FUSED_ATTENTION,
    keeps=True,
)


@task.check(1)
def its_parts_have_the_names_of_the_task(answer, rng):
    sizes = dict(zip(SIZES, (10, 3, 4, 6, 2), strict=True))
    has = {name: tuple(shape) for name, shape in answer.returned(sizes, adapt=parts_of)}
    if not has:
        answer(text_inputs(rng))
    for name, parameter in like(*sizes.values()).named_parameters():
        if name not in has:
            there = sorted({other.rsplit(".", 1)[0] for other in has}) or ["none at all"]
            raise Failure(
                f"There is no `{name}`; the layer's parts are: {', '.join(there)}. The names "
                "belong to the task, so that weights can be copied."
            )
        if has[name] != parameter.shape:
            raise Failure(
                f"With LatentAttention(10, 3, 4, 6, 2), `{name}` has shape "
                f"{shape_of(torch.empty(has[name]))}; expected {shape_of(parameter)}."
            )
    if biases := [name for name in has if name.endswith("bias")]:
        raise Failure(f"The linear layers have no bias in this task; yours have {biases[0]}.")


def known_text():
    return text_inputs(torch.Generator().manual_seed(0))


def is_wrong_as_a_whole(answer):
    """Whether a text that has a check is wrong: then an answer is compared with itself."""
    try:
        answer.matches(known_text())
    except Failure:
        return True
    return False


@task.check(3)
def a_whole_text_matches_the_formula(answer, rng):
    answer.matches(known_text())
    answer.matches(text_inputs(rng))
    answer.matches(text_inputs(rng, b=3, n=4, m=8, h=2, d=3, latent=5, r=4))
    answer.matches(text_inputs(rng, n=4, h=4, d=2, dtype=torch.float64), tolerance=1e-7)
    sharp = text_inputs(rng, n=3, h=2)
    sharp["q_proj.weight"] = 1e4 * sharp["q_proj.weight"]
    answer.matches(sharp, tolerance=1e-2)  # the only score of a first word is far from 0


@task.check(1, "in a whole text a word sees itself and what came before")
def a_word_sees_itself_and_what_came_before(answer, rng):
    inputs = text_inputs(rng, n=5)
    other = inputs["x"].clone()
    other[:, 3] += 1.0
    before, after = (answer(inputs | {"x": x})[0] for x in (inputs["x"], other))
    moved = (before - after).abs().amax((0, 2)) > 1e-5
    if moved[:3].any() or not moved[3:].all():
        raise Failure(
            "Word 4 of 5 changed. The outputs of words 4 and 5 should change, and no others; "
            f"yours: {', '.join(str(i + 1) for i in range(5) if moved[i]) or 'none'}.",
            inputs,
        )


def gives_whole_texts(answer, texts, right):
    for inputs in texts:
        whole, said = right(inputs | {"chunks": None})[0], f"steps of {inputs['chunks']}"
        compare(f"the output in {said}", answer(inputs)[0], whole, inputs)


@task.check(3)
def step_by_step_it_gives_the_whole_text(answer, rng):
    texts = [text_inputs(rng, n=5, chunks=chunks) for chunks in (1, 2, 5)]
    texts += [text_inputs(rng, b=1, n=4, m=12, h=2, d=5, latent=9, r=4, chunks=3)]
    try:
        gives_whole_texts(answer, texts, answer.expected)
    except Failure:
        if not is_wrong_as_a_whole(answer):
            raise
        gives_whole_texts(answer, texts, answer)


@task.check(2)
def a_token_leaves_a_latent_and_one_rotated_key(answer, rng):
    for latent, r in ((6, 2), (5, 4)):
        inputs = text_inputs(rng, n=4, latent=latent, r=r, chunks=1)
        kept = int(answer(inputs)[1])
        if kept != latent + r:
            raise Failure(
                f"With latent_width = {latent} and rope_width = {r}, a token should leave "
                f"{latent + r} numbers in the cache; yours leaves {kept}.",
                inputs,
            )


@task.check(2)
def a_step_makes_no_keys_of_the_past(answer, rng):
    with following(lambda: answer(known_text() | {"chunks": 1})):
        found = biggest(answer, rng)
    if found >= KEYS / 4:
        raise Failure(
            f"With {METERED['n']} positions kept, a step makes a tensor of {found:,} numbers; the "
            f"keys of all heads are {KEYS:,}, the cache {METERED['n'] * 12:,}. Apply k_up's "
            "matrix to the query, and leave the latents as they are."
        )
    answer.holds_of_the_right(text_inputs(rng, n=3, chunks=1))


@task.check(1)
def sizes_of_one_work(answer, rng):
    with following(lambda: [answer.matches(known_text() | {"chunks": c}) for c in (None, 1)]):
        for chunks in (None, 1):
            answer.matches(text_inputs(rng, 1, 1, 2, 1, 1, 1, 2, chunks=chunks))
            answer.matches(text_inputs(rng, 3, 3, 3, 3, 3, 3, 2, chunks=chunks))
            answer.matches(text_inputs(rng, n=3, h=1, chunks=chunks))


@task.check(1)
def gradients_reach_the_text_and_every_weight(answer, rng):
    answer.gradients_match(text_inputs(rng))
    answer.gradients_match(text_inputs(rng, n=3, chunks=2))


@task.check(1)
def a_cache_belongs_to_its_text(answer, rng):
    for chunks in (1, 2):
        inputs = text_inputs(rng, n=3, chunks=chunks)
        for other in ("between", "branch"):
            beside = inputs | {other: normal(rng, 2, 2, 10)}
            compare("the output", answer(beside)[0], answer(inputs)[0], beside)
        moves_nothing(answer, inputs)
    moves_nothing(answer, text_inputs(rng))


# --- the reference in steps ---------------------------------------------------------------------


def heads_of(self, up):
    return up.weight.unflatten(0, (self.h, self.d))


@task.steps
class Latent(nn.Module):
    def __init__(self, model_width, num_heads, head_width, latent_width, rope_width):
        super().__init__()
        self.h, self.d, self.r = num_heads, head_width, rope_width
        wide = num_heads * head_width
        self.q_proj = self.linear(model_width, wide)
        self.q_rope = self.linear(model_width, num_heads * rope_width)
        self.down = self.linear(model_width, latent_width)
        self.norm = self.norm_of(latent_width)
        self.k_rope = self.linear(model_width, rope_width)
        self.k_up = self.up(latent_width, wide)
        self.v_up = self.up(latent_width, wide)
        self.out_proj = self.last(wide, model_width)

    def linear(inward, outward):
        return nn.Linear(inward, outward, bias=False)

    def up(self, inward, outward):
        return self.linear(inward, outward)

    def last(self, inward, outward):
        return self.linear(inward, outward)

    def norm_of(width):
        return nn.RMSNorm(width, eps=1e-6)

    def split(self, x):
        return x.unflatten(-1, (self.h, -1)).transpose(1, 2)

    def start(cache):
        return 0 if cache is None else cache[0].shape[1]

    def places(first, q):
        return torch.arange(first, first + q)

    def turn_query(x, places):
        return rotate(x, places)

    def turn_key(x, places):
        return rotate(x, places)

    def compress(self, x, places):
        return self.norm(self.down(x))

    def compress_in_step(self, x, places):
        return self.compress(x, places)

    def content_query(self, x, places):
        return self.split(self.q_proj(x))

    def rope_query(self, x, places):
        return self.turn_query(self.split(self.q_rope(x)), places)

    def rope_key(self, x, places):
        return self.turn_key(self.k_rope(x), places)

    def extend(self, cache, latent, key):
        if cache is None:
            return latent, key
        return tuple(torch.cat(pair, 1) for pair in zip(cache, (latent, key), strict=True))

    def content_key(self, latent):
        return self.split(self.k_up(latent))

    def content_value(self, latent):
        return self.split(self.v_up(latent))

    def matrices(self):
        return heads_of(self, self.k_up), heads_of(self, self.v_up)

    def width(self):
        return self.d + self.r

    def width_in_step(self, latents):
        return self.width()

    def visible(q, n):
        return torch.ones(q, n, dtype=torch.bool).tril(n - q)

    def visible_in_step(self, q, n):
        return self.visible(q, n)

    def add(self, content, turned):
        return content + turned

    def weigh(scores, visible, width):
        return (scores / math.sqrt(width)).masked_fill(~visible, -torch.inf).softmax(-1)

    def finish(self, heads):
        return self.out_proj(heads.transpose(1, 2).flatten(2))

    def given_back(output, cache):
        return output, cache

    def forward(self, x):
        n = x.shape[1]
        places = torch.arange(n)
        latent = self.compress(x, places)
        content = self.content_query(x, places) @ self.content_key(latent).mT
        turned = self.rope_query(x, places) @ self.rope_key(x, places)[:, None].mT
        scores = self.add(content, turned)
        weights = self.weigh(scores, self.visible(n, n), self.width())
        return self.finish(weights @ self.content_value(latent))

    def absorbed(self, query, latents, k_up):
        return torch.einsum("bhqd,hdl->bhql", query, k_up) @ latents[:, None].mT

    def averaged(self, weights, latents, v_up):
        return torch.einsum("bhql,hdl->bhqd", weights @ latents[:, None], v_up)

    def step(self, x, cache=None):
        q, first = x.shape[1], self.start(cache)
        places = self.places(first, q)
        cache = self.extend(cache, self.compress_in_step(x, places), self.rope_key(x, places))
        latents, keys = self.read(cache)
        k_up, v_up = self.matrices()
        content = self.absorbed(self.content_query(x, places), latents, k_up)
        scores = self.add(content, self.rope_query(x, places) @ keys[:, None].mT)
        visible = self.visible_in_step(q, keys.shape[1])
        weights = self.weigh(scores, visible, self.width_in_step(latents))
        output = self.finish(self.averaged(weights, latents, v_up))
        return self.given_back(output, self.kept(cache, x))

    def read(self, cache):
        return cache

    def kept(self, cache, x):
        return cache


# --- faults -------------------------------------------------------------------------------------

ROPE, ABSORBED, STALE = "latent-rope", "latent-absorbed", "cache-stale"

task.fault(
    "L-ROPE",
    section=ROPE,
    content_query=lambda self, x, places: Latent.turned(
        Latent.content_query(self, x, places), places
    ),
    content_key=lambda self, latent: Latent.turned(
        Latent.content_key(self, latent), torch.arange(latent.shape[1])
    ),
)


def turned(x, places):
    """Rotated, an odd feature at the end left alone."""
    even = x.shape[-1] // 2 * 2
    return torch.cat([rotate(x[..., :even], places), x[..., even:]], -1) if even else x


Latent.turned = staticmethod(turned)

task.fault("L-QUERY-NOT-TURNED", section=ROPE, turn_query=lambda x, places: x)
task.fault(
    "L-TURNED-AS-ONE",
    section=ROPE,
    rope_query=lambda self, x, places: self.split(self.turn_query(self.q_rope(x), places)),
)
task.fault("L-KEY-NOT-TURNED", section=ROPE, turn_key=lambda x, places: x)
task.fault("P-ROPE-CACHE", section=ROPE, start=lambda cache: 0)
task.fault(
    "L-QUERY-FROM-0",
    section=ROPE,
    turn_query=lambda x, places: rotate(x, torch.arange(x.shape[-2])),
)
task.fault(
    "L-KEY-FROM-0",
    section=ROPE,
    turn_key=lambda x, places: rotate(x, torch.arange(x.shape[-2])),
)
task.fault(
    "L-ROPE-AGAIN",
    section=ROPE,
    read=(lambda self, cache: (cache[0], rotate(cache[1], torch.arange(cache[1].shape[1]))), ...),
    extend=(..., lambda self, cache, latent, key: turned_again(self, cache, latent, key)),
)


def turned_again(self, cache, latent, key):
    """The longer cache, the kept keys of which are rotated once more in each step."""
    if cache is None:
        return latent, key
    before = rotate(cache[1], torch.arange(cache[1].shape[1]))
    return Latent.extend(self, (cache[0], before), latent, key)


task.fault(
    "L-LATENT-TURNED",
    section=ROPE,
    compress=lambda self, x, places: rotate(self.norm(self.down(x)), places),
)
task.fault(
    "L-ROPE-LOST",
    section=ROPE,
    extend=lambda self, cache, latent, key: (
        (latent, key)
        if cache is None
        else (
            torch.cat([cache[0], latent], 1),
            torch.cat([key.new_zeros(*cache[0].shape[:2], key.shape[-1]), key], 1),
        )
    ),
    kept=lambda self, cache, x: (cache[0],),
)
task.fault(
    "L-ROPE-NOT-IN-STEP",
    section=ROPE,
    extend=lambda self, cache, latent, key: (
        (latent, key)
        if cache is None
        else (
            torch.cat([cache[0], latent], 1),
            torch.cat([key.new_zeros(*cache[0].shape[:2], key.shape[-1]), key], 1),
        )
    ),
    read=lambda self, cache: (cache[0], 0 * cache[1]),
    kept=(lambda self, cache, x: (cache[0],), ...),
)
task.fault(
    "L-ROPE-MISSING",
    section=ROPE,
    rope_query=lambda self, x, places: 0 * self.split(self.q_rope(x)),
)
task.fault(
    "L-UNFOLD",
    section=ABSORBED,
    absorbed=lambda self, query, latents, k_up: query @ self.content_key(latents).mT,
    averaged=lambda self, weights, latents, v_up: weights @ self.content_value(latents),
)


@task.fault(
    "L-CACHE-KEYS",
    section=ABSORBED,
    kept=lambda self, cache, x: (*cache, self.content_key(cache[0]), self.content_value(cache[0])),
    start=lambda cache: 0 if cache is None else cache[0].shape[1],
    extend=lambda self, cache, latent, key: Latent.extend(self, cache and cache[:2], latent, key),
)
class KeepsKeys(Latent):
    """Keys, values and the rotated key, and no latent."""

    def extend(self, cache, latent, key):
        made = (self.content_key(latent), self.content_value(latent))
        new = (*(x.transpose(1, 2) for x in made), key)
        if cache is None:
            return new
        return tuple(torch.cat(pair, 1) for pair in zip(cache, new, strict=True))

    def read(self, cache):
        return cache[:2], cache[2]

    def absorbed(self, query, latents, k_up):
        return query @ latents[0].transpose(1, 2).mT

    def averaged(self, weights, latents, v_up):
        return weights @ latents[1].transpose(1, 2)


@task.fault("L-CACHE-X", section=ABSORBED)
class KeepsText(Latent):
    def step(self, x, cache=None):
        text = x if cache is None else torch.cat([cache, x], 1)
        return self.forward(text)[:, -x.shape[1] :], text


task.fault(
    "L-SCALE-LATENT",
    section=ABSORBED,
    width_in_step=lambda self, latents: latents.shape[-1] + self.r,
)
task.fault("L-SCALE-D", width=lambda self: self.d)
task.fault("L-SCALE-MODEL", width=lambda self: self.h * (self.d + self.r))
task.fault("L-SCALE-TURNED", width=lambda self: 1 / (self.d + self.r))
task.fault("L-SCALE-SHARE", width=lambda self: self.q_proj.in_features / self.h)
task.fault("L-NO-SCALE", width=lambda self: 1)
task.fault(
    "L-SCALE-EACH",
    add=lambda self, content, turned: (
        (content / math.sqrt(self.d) + turned / math.sqrt(self.r)) * math.sqrt(self.d + self.r)
    ),
)
task.fault("L-NO-NORM", compress=lambda self, x, places: self.down(x))
task.fault(
    "L-KEYS-NOT-NORMED",
    compress=lambda self, x, places: self.down(x),
    content_value=lambda self, latent: Latent.content_value(self, self.norm(latent)),
    averaged=lambda self, weights, latents, v_up: Latent.averaged(
        self, weights, self.norm(latents), v_up
    ),
)
task.fault(
    "L-VALUES-NOT-NORMED",
    compress=lambda self, x, places: self.down(x),
    content_key=lambda self, latent: Latent.content_key(self, self.norm(latent)),
    absorbed=lambda self, query, latents, k_up: Latent.absorbed(
        self, query, self.norm(latents), k_up
    ),
)
task.fault(
    "L-NORM-EPSILON",
    norm_of=tuple(
        lambda width, epsilon=epsilon: nn.RMSNorm(width, eps=epsilon)
        for epsilon in (None, 0.0, 1e-5, 1e-8, 1e-9, 1e-12)
    ),
)
task.fault(
    "L-NORM-NOT-IN-STEP", section=ABSORBED, compress_in_step=lambda self, x, places: self.down(x)
)
task.fault(
    "L-LAYER-NORM",
    compress=lambda self, x, places: (
        self.norm.weight * nn.functional.layer_norm(self.down(x), self.norm.weight.shape, eps=1e-6)
    ),
)
task.fault(
    "L-NOT-CAUSAL", section="cache-chunks", visible=lambda q, n: torch.ones(q, n, dtype=torch.bool)
)
task.fault(
    "L-FORWARD-FREE",
    section="cache-chunks",
    visible=lambda q, n: torch.ones(q, n, dtype=torch.bool),
    visible_in_step=lambda self, q, n: Latent.visible(q, n),
)
task.fault(
    "K-NO-TRIANGLE",
    section="cache-chunks",
    visible_in_step=(
        lambda q, n: torch.ones(q, n, dtype=torch.bool),
        lambda q, n: torch.ones(q, n, dtype=torch.bool).tril(0 if q == n else n),  # `forward` first
    ),
)
task.fault(
    "K-MASK-TOP-LEFT",
    section="cache-chunks",
    visible_in_step=lambda q, n: torch.ones(q, n, dtype=torch.bool).tril(),
)
task.fault(
    "L-VALUE-UP",
    content_value=(lambda self, latent: self.split(self.k_up(latent)), ...),
    matrices=lambda self: (self.k_up.weight.unflatten(0, (self.h, self.d)),) * 2,
)


def turned_heads(self, up):
    return up.weight.unflatten(0, (self.d, self.h)).transpose(0, 1)


task.fault(
    "L-HEADS-TURNED",
    section=ABSORBED,
    matrices=(
        lambda self: (turned_heads(self, self.k_up), turned_heads(self, self.v_up)),
        lambda self: (turned_heads(self, self.k_up), heads_of(self, self.v_up)),
        lambda self: (heads_of(self, self.k_up), turned_heads(self, self.v_up)),
    ),
)
task.fault(
    "L-WEIGHT-TURNED",
    section=ABSORBED,
    matrices=lambda self: (
        up.weight.reshape(-1, self.h, self.d).permute(1, 2, 0) for up in (self.k_up, self.v_up)
    ),
)
task.fault(
    "L-WEIGHT-DETACHED",
    section=ABSORBED,
    matrices=lambda self: (up.detach() for up in Latent.matrices(self)),
)


def split_turned(self, x):
    return x.unflatten(-1, (-1, self.h)).permute(0, 3, 1, 2)


task.fault(
    "H-FEATURES-TURNED",
    split=(*[split_turned] * 4, ...),
    matrices=(
        *[
            lambda self: (
                up.weight.unflatten(0, (self.d, self.h)).transpose(0, 1)
                for up in (self.k_up, self.v_up)
            )
        ]
        * 4,
        ...,
    ),
    rope_query=(
        lambda self, x, places: self.turn_query(Latent.split(self, self.q_rope(x)), places),
        ...,
        lambda self, x, places: self.turn_query(Latent.split(self, self.q_rope(x)), places),
        ...,
        lambda self, x, places: self.turn_query(split_turned(self, self.q_rope(x)), places),
    ),
    finish=(
        ...,
        ...,
        lambda self, heads: self.out_proj(heads.permute(0, 2, 3, 1).flatten(2)),
        lambda self, heads: self.out_proj(heads.permute(0, 2, 3, 1).flatten(2)),
        ...,
    ),
)
task.fault(
    "L-PLACE-AFTER", section=ROPE, places=lambda first, q: torch.arange(first + q, first + 2 * q)
)
task.fault("L-PLACE-BY-STEPS", section=ROPE, start=lambda self, cache: Latent.counted(self, cache))


def counted(self, cache):
    """How many steps this text has taken so far."""
    self.steps = 0 if cache is None else self.steps + 1
    return self.steps


Latent.counted = staticmethod(counted)

task.fault(
    "L-NORM-AGAIN",
    section=ABSORBED,
    extend=lambda self, cache, latent, key: Latent.extend(
        self, cache and (self.norm(cache[0]), cache[1]), latent, key
    ),
)
task.fault("H-VIEW-SPLIT", split=lambda self, x: x.reshape(x.shape[0], self.h, x.shape[1], -1))
task.fault(
    "H-VIEW-MERGE",
    finish=lambda self, heads: self.out_proj(heads.reshape(heads.shape[0], heads.shape[2], -1)),
)
task.fault(
    "L-LATENT-READ",
    section=ABSORBED,
    averaged=lambda self, weights, latents, v_up: nn.functional.pad(
        weights @ latents[:, None], (0, self.d)
    )[..., : self.d],
)
task.fault(
    "L-NOT-EXTENDED",
    section="cache-extend",
    kept=lambda self, cache, x: tuple(
        y[:, : max(x.shape[1], y.shape[1] - x.shape[1])] for y in cache
    ),
)
task.fault("D-OUTPUT-ONLY", section=STALE, given_back=lambda output, cache: output)


def with_a_bias(inward, outward):
    return nn.Linear(inward, outward)


task.fault(
    "L-BIAS",
    linear=(with_a_bias, ..., with_a_bias),
    last=(..., with_a_bias, ...),
    up=(..., ..., lambda inward, outward: nn.Linear(inward, outward, bias=False)),
)


def side_by_side(self, heads):
    return heads.transpose(1, 2).flatten(2)


def as_wide_as_the_model(self, heads):
    width = self.out_proj.weight.shape[0]
    return nn.functional.pad(side_by_side(self, heads), (0, width))[..., :width]


task.fault("L-NO-OUT", finish=(side_by_side, as_wide_as_the_model))


@task.fault("L-CACHE-EDITED", section=STALE)
class Edits(Latent):
    def step(self, x, cache=None):
        cache = {} if cache is None else cache
        output, cache["kept"] = super().step(x, cache.get("kept"))
        return output, cache


@task.fault("K-STALE", section=STALE)
class Remembers(Latent):
    def step(self, x, cache=None):
        last = getattr(self, "remembered", None)
        if last is not None and last[0].shape[0] == x.shape[0]:
            cache = last
        output, self.remembered = super().step(x, cache)
        return output, self.remembered


class RemembersOne(Latent):
    """Its own cache instead of any that is handed in."""

    def step(self, x, cache=None):
        output, self.remembered = super().step(x, cache and self.remembered)
        return output, self.remembered


task.faults["K-STALE"].forms.append(RemembersOne)
