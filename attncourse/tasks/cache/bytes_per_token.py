import torch

from attncourse import cache as reference
from attncourse.checks.answer import Failure, following
from attncourse.checks.task import Task
from attncourse.lab import roofline
from attncourse.tasks import as_is


def sizes(scheme, layers, heads, width, each, **others):
    return {
        "scheme": scheme,
        "num_layers": layers,
        "num_heads": heads,
        "head_width": width,
        "bytes_per_number": each,
        "kv_heads": None,
        "latent_width": None,
        "rope_width": None,
    } | others


def latent(layers, heads, width, each, latent_width, rope_width):
    others = {"latent_width": latent_width, "rope_width": rope_width}
    return sizes("MLA", layers, heads, width, each, **others)


LLAMA = sizes("GQA", 32, 32, 128, 2, kv_heads=8)
DEEPSEEK = latent(60, 128, 128, 2, 512, 64)


def probes(rng):
    return {
        "MHA": sizes("MHA", 3, 5, 7, 2),
        "GQA": sizes("GQA", 3, 12, 7, 2, kv_heads=4),
        "GQA, two of them": sizes("GQA", 2, 6, 5, 4, kv_heads=2),
        "GQA, square": sizes("GQA", 2, 9, 5, 1, kv_heads=3),
        "MQA": sizes("MQA", 3, 5, 7, 2),
        "MLA": latent(3, 5, 7, 2, 11, 4),
        "MLA, wide heads": latent(2, 4, 32, 1, 16, 8),
        "one byte, one layer": sizes("MHA", 1, 2, 3, 1),
        "four bytes": sizes("MQA", 5, 4, 3, 4),
        "MHA that says kv_heads, too": sizes("MHA", 2, 6, 5, 2, kv_heads=6),
        "MHA that says another": sizes("MHA", 2, 6, 5, 2, kv_heads=3),
        "MQA that says kv_heads, too": sizes("MQA", 2, 6, 5, 2, kv_heads=3),
        "MHA that says widths, too": sizes("MHA", 2, 6, 5, 2, latent_width=7, rope_width=4),
        "Llama 3 8B": LLAMA,
        "DeepSeek-V2": DEEPSEEK,
    }


def small(rng):
    yield sizes("MHA", 1, 1, 1, 1)
    yield sizes("MHA", 1, 2, 1, 1)
    yield sizes("MHA", 2, 1, 1, 1)
    yield sizes("MHA", 1, 1, 3, 2)
    yield sizes("MQA", 1, 2, 1, 1)
    yield sizes("GQA", 1, 2, 1, 1, kv_heads=1)
    yield sizes("GQA", 1, 6, 1, 1, kv_heads=2)
    yield latent(1, 1, 1, 1, 1, 2)
    yield latent(1, 2, 1, 1, 3, 2)
    yield latent(2, 3, 4, 2, 5, 2)


def traits(answer):
    got, expected = answer.observe(LLAMA).returned, answer.expected(LLAMA)
    odd = answer.observe(sizes("MHA", 3, 5, 7, 1)).returned
    unknown = sizes("XQA", 1, 1, 1, 1)
    refused = answer.observe(unknown).error is not None
    as_asked = answer.observe(unknown, adapt=refusing).returned
    return {
        "the right number as a float": isinstance(got, float) and got == expected,
        "a float, far too small": isinstance(got, float) and got < expected / 500,
        "a float with a fraction": isinstance(odd, float) and not odd.is_integer(),
        "takes any name for a scheme": not refused,
        "refuses with another error": refused and not as_asked,
    }


task = Task(
    reference.bytes_per_token,
    number=4,
    returns=int,
    difficulty=2,
    minutes=12,
    section="cache-bytes",
    probes=probes,
    small=small,
    ready_made=(roofline.cache_bytes_per_token,),
    traits=traits,
)


def as_it_counts(answer, inputs):
    """What it has to say if it is wrong about layers, or about the bytes of a number.

    Both have a check, which fails then: so they cost no other one.
    """
    sizes_of_one = 1, 2, 4
    of_one_head = {(n, size): sizes("MHA", n, 1, 64, size) for n in (1, 3) for size in sizes_of_one}
    got = {key: answer(unit) for key, unit in of_one_head.items()}
    due = {key: answer.expected(unit) for key, unit in of_one_head.items()}
    if got == due:
        return answer.expected(inputs)
    layers = 3
    if all(got[1, size] == got[3, size] for size in sizes_of_one):
        inputs, layers = inputs | {"num_layers": 1}, 1
    fits = [size for size in sizes_of_one if got[layers, size] == due[layers, size]]
    if len({got[layers, size] for size in sizes_of_one}) == 1 and fits:
        return answer.expected(inputs | {"bytes_per_number": fits[0]})
    if all(got[layers, size] == 8 * due[layers, size] for size in sizes_of_one):
        return 8 * answer.expected(inputs)
    if all(got[layers, size] == due[layers, size] // 8 for size in sizes_of_one):
        return answer.expected(inputs) // 8
    return answer.expected(inputs)


def exactly(answer, inputs, strictly=False):
    got, expected = answer(inputs), answer.expected(inputs)
    if got != expected and not strictly:
        expected = as_it_counts(answer, inputs)
    if got != expected or isinstance(answer.observe(inputs).returned, torch.Tensor):
        said = ", ".join(f"{k} = {v}" for k, v in inputs.items() if v is not None)
        said = f"For {said} you say {got:,} bytes; there are {expected:,}."
        raise Failure(said, inputs, expected, got, whole="result")


def drawn(rng, *highest):
    return [torch.randint(1, high + 1, (), generator=rng).item() for high in highest]


@task.check(1, "multi-head attention keeps a key and a value a head")
def multi_head_attention_keeps_a_key_and_a_value_a_head(answer, rng):
    exactly(answer, sizes("MHA", 1, 1, 64, 1))
    exactly(answer, sizes("MHA", 1, 12, 64, 1))
    exactly(answer, sizes("MHA", *drawn(rng, 9, 9, 99), 2))
    leaves_alone(answer, "MHA")


def leaves_alone(answer, scheme):
    """Assert that sizes which a scheme has no use for change nothing."""
    exactly(answer, sizes(scheme, 2, 6, 64, 2, kv_heads=3))
    exactly(answer, sizes(scheme, 2, 6, 64, 2, latent_width=48, rope_width=8))


@task.check(1)
def shared_heads_are_kept_once(answer, rng):
    exactly(answer, sizes("MQA", 1, 8, 64, 1))
    exactly(answer, sizes("GQA", 1, 12, 64, 1, kv_heads=4))
    for kv_heads in (2, 3, 8):
        layers, members, width = drawn(rng, 9, 9, 99)
        exactly(answer, sizes("GQA", layers, kv_heads * members, width, 2, kv_heads=kv_heads))
    exactly(answer, LLAMA)
    leaves_alone(answer, "MQA")
    exactly(answer, sizes("MHA", 127, 129, 1031, 1))  # 33,781,746, which float32 rounds


@task.check(2)
def a_latent_and_one_rotated_key_serve_all_heads(answer, rng):
    exactly(answer, latent(1, 8, 16, 1, 40, 4))
    *others, latent_width, pairs = drawn(rng, 9, 9, 99, 99, 9)
    exactly(answer, latent(*others, 1, latent_width, 2 * pairs))
    exactly(answer, DEEPSEEK)


def multiplies(answer, inputs):
    """Assert that it says so many times what it says of one layer and one byte."""
    layers, each = inputs["num_layers"], inputs["bytes_per_number"]
    got, one = answer(inputs), answer(inputs | {"num_layers": 1, "bytes_per_number": 1})
    if got != layers * each * one:
        raise Failure(
            f"{inputs['scheme']}: of one layer, with 1 byte a number, you say {one:,} bytes; of "
            f"{layers} layers, with {each}, {got:,}. That should be {layers} · {each} times as "
            "many.",
            inputs,
            layers * each * one,
            got,
        )


@task.check(1)
def every_layer_keeps_its_own_and_a_number_takes_its_bytes(answer, rng):
    with following(lambda: exactly(answer, sizes("MHA", 1, 1, 64, 1), strictly=True)):
        exactly(answer, sizes("MHA", 3, 1, 64, 4), strictly=True)
    for scheme in ("MHA", "MQA"):
        multiplies(answer, sizes(scheme, *drawn(rng, 99), 4, 16, 2))
        multiplies(answer, sizes(scheme, 3, 4, 16, 4))
        multiplies(answer, sizes(scheme, 3, 4, 16, 1))
    multiplies(answer, latent(5, 8, 16, 4, 40, 4))
    multiplies(answer, sizes("GQA", 5, 8, 16, 4, kv_heads=2))


def refusing(bytes_per_token):
    """Whether it raises a ValueError, or a kind of one."""

    def function(**inputs):
        try:
            bytes_per_token(*inputs.values())
        except ValueError:
            return True
        except Exception:
            pass
        return False

    return function


@task.check(1)
def a_scheme_that_does_not_exist_is_an_error(answer):
    answer(sizes("MHA", 1, 1, 1, 1))
    for scheme in ("XQA", "mha", ""):
        inputs = sizes(scheme, 1, 2, 4, 2)
        seen = answer.observe(inputs)
        if seen.error is None:
            raise Failure(
                f"For the scheme {scheme!r} your answer says {seen.returned}, and there is no such "
                "scheme. Raise a ValueError: a wrong number would be believed.",
                inputs,
            )
        if not answer.observe(inputs, adapt=refusing).returned:
            raise Failure(
                f"For the scheme {scheme!r} your answer {seen.error}. The task asks for a "
                "ValueError: a caller who is ready for it would be stopped by any other.",
                inputs,
            )


# --- the reference in steps ---------------------------------------------------------------------


@task.steps
class Bytes:
    known = ("MHA", "GQA", "MQA", "MLA")

    def refuse(scheme):
        raise ValueError(f"no scheme {scheme!r}")

    def mha(num_heads, kv_heads):
        return num_heads

    def gqa(num_heads, kv_heads):
        return kv_heads

    def mqa(num_heads, kv_heads):
        return 1

    def values(heads, scheme, num_heads):
        """Heads with a value; as many have a key."""
        return heads

    def settled(keys, values, kv_heads):
        """Heads with a key and heads with a value."""
        return keys, values

    def more(heads, num_heads):
        """What else is kept."""
        return 0

    def width(head_width, num_heads):
        return head_width

    def latent(latent_width, num_heads):
        return latent_width

    def rope(rope_width, num_heads):
        return rope_width

    def in_latent(latent, rope, num_heads, head_width):
        return latent + rope

    def layers(numbers, num_layers):
        return numbers * num_layers

    def bytes(numbers, each):
        return numbers * each

    said = as_is

    def __call__(
        self, scheme, num_layers, num_heads, head_width, bytes_per_number,
        kv_heads=None, latent_width=None, rope_width=None,
    ):  # fmt: skip
        if scheme not in self.known:
            scheme = self.refuse(scheme)
        if scheme == "MLA":
            latent = self.latent(latent_width, num_heads)
            rope = self.rope(rope_width, num_heads)
            numbers = self.in_latent(latent, rope, num_heads, head_width)
        else:
            of = {"MHA": self.mha, "GQA": self.gqa, "MQA": self.mqa}[scheme]
            heads = of(num_heads, kv_heads)
            kept = self.settled(heads, self.values(heads, scheme, num_heads), kv_heads)
            numbers = (sum(kept) + self.more(heads, num_heads)) * self.width(head_width, num_heads)
        return self.said(self.bytes(self.layers(numbers, num_layers), bytes_per_number))


# --- faults -------------------------------------------------------------------------------------


def only_in(*schemes, values):
    """Heads with a value, in these schemes."""
    return lambda heads, scheme, num_heads: values(num_heads) if scheme in schemes else heads


def none(num_heads):
    return 0


def all_of_them(num_heads):
    return num_heads


def given_or_all(num_heads, kv_heads):
    return kv_heads or num_heads


def given_or_one(num_heads, kv_heads):
    return kv_heads or 1


def every_head(num_heads, kv_heads):
    return num_heads


task.fault(
    "K-KEYS-ONLY",
    values=tuple(
        only_in(*schemes, values=none)
        for schemes in (("MHA", "GQA", "MQA"), ("MHA",), ("GQA",), ("MQA",), ("GQA", "MQA"))
    ),
)
task.fault("K-WIDTH-OF-MODEL", width=lambda head_width, num_heads: head_width // num_heads)
task.fault(
    "K-HEADS-IF-GIVEN",
    settled=(
        lambda keys, values, kv_heads: (kv_heads, kv_heads) if kv_heads else (keys, values),
        ...,
        ...,
        ...,
    ),
    mha=(..., given_or_all, ..., given_or_all),
    mqa=(..., given_or_one, given_or_one, given_or_all),
)
task.fault(
    "K-QUERIES-TOO",
    more=(lambda heads, num_heads: heads, lambda heads, num_heads: num_heads),
)
task.fault("K-ONE-LAYER", layers=as_is)
task.fault("K-NUMBERS", bytes=as_is)
task.fault("K-BITS", bytes=lambda numbers, each: 8 * numbers * each)
task.fault(
    "K-BYTES-FROM-BITS",
    bytes=(lambda numbers, each: numbers * each // 8, lambda numbers, each: numbers * each / 8),
)
task.fault("K-ALWAYS-TWO-BYTES", bytes=lambda numbers, each: 2 * numbers)
task.fault("K-ALWAYS-FOUR-BYTES", bytes=lambda numbers, each: 4 * numbers)
task.fault("K-IN-GIGABYTES", said=(lambda n: n / 1e9, lambda n: n / 2**30, lambda n: n / 1024))
task.fault(
    "K-FLOAT",
    said=(float, ...),
    gqa=(..., lambda num_heads, kv_heads: float(kv_heads)),
    mqa=(..., lambda num_heads, kv_heads: 1.0),
)
task.fault(
    "G-EXPAND-BYTES",
    section="shared-heads",
    gqa=every_head,
    mqa=(every_head, ...),
)
task.fault("G-MQA-ALL", section="shared-heads", mqa=every_head)
task.fault(
    "G-MEMBERS", section="shared-heads", gqa=lambda num_heads, kv_heads: num_heads // kv_heads
)
task.fault(
    "G-ONE-KEY-TWO-VALUES",
    section="shared-heads",
    values=(
        only_in("MHA", "GQA", "MQA", values=all_of_them),
        only_in("MQA", values=all_of_them),
    ),
)


def twice(width, num_heads):
    return 2 * width


def in_each(width, num_heads):
    return num_heads * width


task.fault("L-CACHE-SIZE", section="latent-rope", rope=lambda rope_width, num_heads: 0)
task.fault("L-LATENT-TWICE", section="latent", latent=twice)
task.fault("L-ROPE-TWICE", section="latent-rope", rope=twice)
task.fault("L-ALL-TWICE", section="latent", latent=twice, rope=twice)
task.fault("L-ROPE-EACH", section="latent-rope", rope=in_each)
task.fault("L-LATENT-EACH", section="latent", latent=in_each, rope=(in_each, ...))
task.fault(
    "L-HEAD-TOO",
    section="latent",
    in_latent=(
        lambda latent, rope, num_heads, head_width: latent + rope + head_width,
        lambda latent, rope, num_heads, head_width: latent + rope + num_heads * head_width,
    ),
)
task.fault(
    "L-TIMES",
    section="latent-rope",
    in_latent=lambda latent, rope, num_heads, head_width: latent * rope,
)
task.fault(
    "L-NOTHING-SAVED",
    section="latent-absorbed",
    in_latent=lambda latent, rope, num_heads, head_width: 2 * num_heads * head_width,
)
task.fault("K-ANY-NAME", refuse=lambda scheme: "MHA")


@task.fault("K-OTHER-ERROR")
class OtherError(Bytes):
    def refuse(scheme):
        raise KeyError(scheme)
