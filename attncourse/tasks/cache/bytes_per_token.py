import torch

from attncourse import cache as reference
from attncourse.checks.answer import Failure
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
    unknown = sizes("XQA", 1, 1, 1, 1)
    refused = answer.observe(unknown).error is not None
    as_asked = answer.observe(unknown, adapt=refusing).returned
    return {
        "the right number as a float": isinstance(got, float) and got == expected,
        "a float, far too small": isinstance(got, float) and got < expected / 500,
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


def exactly(answer, inputs):
    got, expected = answer(inputs), answer.expected(inputs)
    if got != expected or isinstance(answer.observe(inputs).returned, torch.Tensor):
        said = ", ".join(f"{k} = {v}" for k, v in inputs.items() if v is not None)
        raise Failure(
            f"For {said} you say {got:,} bytes; there are {expected:,}.", inputs, expected, got
        )


def drawn(rng, *highest):
    return [torch.randint(1, high + 1, (), generator=rng).item() for high in highest]


@task.check(1, "multi-head attention keeps a key and a value a head")
def multi_head_attention_keeps_a_key_and_a_value_a_head(answer, rng):
    exactly(answer, sizes("MHA", 1, 1, 64, 1))
    exactly(answer, sizes("MHA", 1, 12, 64, 1))
    exactly(answer, sizes("MHA", *drawn(rng, 9, 9, 99), 2))


@task.check(1)
def shared_heads_are_kept_once(answer, rng):
    exactly(answer, sizes("MQA", 1, 8, 64, 1))
    exactly(answer, sizes("GQA", 1, 12, 64, 1, kv_heads=4))
    for kv_heads in (2, 3, 8):
        layers, members, width = drawn(rng, 9, 9, 99)
        exactly(answer, sizes("GQA", layers, kv_heads * members, width, 2, kv_heads=kv_heads))
    exactly(answer, LLAMA)
    for scheme in ("MHA", "MQA"):  # sizes that a scheme has no use for
        exactly(answer, sizes(scheme, 2, 6, 64, 2, kv_heads=3))
        exactly(answer, sizes(scheme, 2, 6, 64, 2, latent_width=48, rope_width=8))
    exactly(answer, sizes("MHA", 127, 129, 1031, 1))  # 33,781,746, which float32 rounds


@task.check(2)
def a_latent_and_one_rotated_key_serve_all_heads(answer, rng):
    exactly(answer, latent(1, 8, 16, 1, 40, 4))
    *others, latent_width, pairs = drawn(rng, 9, 9, 99, 99, 9)
    exactly(answer, latent(*others, 1, latent_width, 2 * pairs))
    exactly(answer, DEEPSEEK)


@task.check(1)
def every_layer_keeps_its_own_and_a_number_takes_its_bytes(answer, rng):
    for scheme in ("MHA", "MQA"):
        exactly(answer, sizes(scheme, *drawn(rng, 99), 4, 16, 2))
        exactly(answer, sizes(scheme, 3, 4, 16, 4))
        exactly(answer, sizes(scheme, 3, 4, 16, 1))
    exactly(answer, latent(5, 8, 16, 4, 40, 4))
    exactly(answer, sizes("GQA", 5, 8, 16, 4, kv_heads=2))


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

    def heads_kept(scheme, num_heads, kv_heads):
        return {"MHA": num_heads, "GQA": kv_heads, "MQA": 1}[scheme]

    def vectors(scheme):
        return 2  # a key and a value

    def in_heads(vectors, heads, width, num_heads):
        return vectors * heads * width

    def in_latent(latent_width, rope_width, num_heads, head_width):
        return latent_width + rope_width

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
            numbers = self.in_latent(latent_width, rope_width, num_heads, head_width)
        else:
            heads = self.heads_kept(scheme, num_heads, kv_heads)
            numbers = self.in_heads(self.vectors(scheme), heads, head_width, num_heads)
        return self.said(self.bytes(self.layers(numbers, num_layers), bytes_per_number))


# --- faults -------------------------------------------------------------------------------------

task.fault(
    "K-KEYS-ONLY",
    vectors=(
        lambda scheme: 1,
        *(lambda scheme, one=one: 1 if scheme == one else 2 for one in ("MHA", "GQA", "MQA")),
        lambda scheme: 2 if scheme == "MHA" else 1,
    ),
)
task.fault(
    "K-WIDTH-OF-MODEL",
    in_heads=(
        lambda vectors, heads, width, num_heads: vectors * heads * width // num_heads,
        lambda vectors, heads, width, num_heads: vectors * heads * (width // num_heads),
    ),
)
task.fault(
    "K-HEADS-IF-GIVEN",
    heads_kept=lambda scheme, num_heads, kv_heads: (
        kv_heads or (1 if scheme == "MQA" else num_heads)
    ),
)
task.fault(
    "K-QUERIES-TOO",
    vectors=(lambda scheme: 3, lambda scheme: 1),
    heads_kept=(
        ...,
        lambda scheme, num_heads, kv_heads: (
            num_heads + 2 * {"MHA": num_heads, "GQA": kv_heads, "MQA": 1}[scheme]
        ),
    ),
)
task.fault("K-ONE-LAYER", layers=as_is)
task.fault("K-NUMBERS", bytes=as_is)
task.fault("K-BITS", bytes=lambda numbers, each: 8 * numbers * each)
task.fault(
    "K-BYTES-FROM-BITS",
    bytes=(lambda numbers, each: numbers * each // 8, lambda numbers, each: numbers * each / 8),
)
task.fault("K-ALWAYS-TWO-BYTES", bytes=lambda numbers, each: 2 * numbers)
task.fault("K-IN-GIGABYTES", said=(lambda n: n / 1e9, lambda n: n / 2**30, lambda n: n / 1024))
task.fault(
    "K-FLOAT",
    said=(float, ...),
    heads_kept=(
        ...,
        lambda scheme, num_heads, kv_heads: (
            num_heads if scheme == "MHA" else float(kv_heads if scheme == "GQA" else 1)
        ),
    ),
)
task.fault(
    "G-EXPAND-BYTES",
    section="shared-heads",
    heads_kept=(
        lambda scheme, num_heads, kv_heads: num_heads,
        lambda scheme, num_heads, kv_heads: 1 if scheme == "MQA" else num_heads,
    ),
)
task.fault(
    "G-MQA-ALL",
    section="shared-heads",
    heads_kept=lambda scheme, num_heads, kv_heads: kv_heads if scheme == "GQA" else num_heads,
)
task.fault(
    "G-MEMBERS",
    section="shared-heads",
    heads_kept=lambda scheme, num_heads, kv_heads: {
        "MHA": num_heads,
        "GQA": kv_heads and num_heads // kv_heads,
        "MQA": 1,
    }[scheme],
)
task.fault(
    "G-ONE-KEY-TWO-VALUES",
    section="shared-heads",
    heads_kept=(
        lambda scheme, num_heads, kv_heads: (
            {"MHA": num_heads, "GQA": kv_heads, "MQA": 1}[scheme] + num_heads
        ),
        lambda scheme, num_heads, kv_heads: {
            "MHA": 2 * num_heads,
            "GQA": 2 * (kv_heads or 0),
            "MQA": 1 + num_heads,
        }[scheme],
    ),
    vectors=lambda scheme: 1,
)
task.fault(
    "L-CACHE-SIZE",
    section="latent-rope",
    in_latent=lambda latent_width, rope_width, num_heads, head_width: latent_width,
)
task.fault(
    "L-LATENT-TWICE",
    section="latent",
    in_latent=lambda latent_width, rope_width, num_heads, head_width: 2 * latent_width + rope_width,
)
task.fault(
    "L-ALL-TWICE",
    section="latent",
    in_latent=lambda latent_width, rope_width, num_heads, head_width: (
        2 * (latent_width + rope_width)
    ),
)
task.fault(
    "L-ROPE-EACH",
    section="latent-rope",
    in_latent=lambda latent_width, rope_width, num_heads, head_width: (
        latent_width + num_heads * rope_width
    ),
)
task.fault(
    "L-LATENT-EACH",
    section="latent",
    in_latent=(
        lambda latent_width, rope_width, num_heads, head_width: (
            num_heads * (latent_width + rope_width)
        ),
        lambda latent_width, rope_width, num_heads, head_width: (
            num_heads * latent_width + rope_width
        ),
    ),
)
task.fault(
    "L-NOTHING-SAVED",
    section="latent-absorbed",
    in_latent=lambda latent_width, rope_width, num_heads, head_width: 2 * num_heads * head_width,
)
task.fault("K-ANY-NAME", refuse=lambda scheme: "MHA")


@task.fault("K-OTHER-ERROR")
class OtherError(Bytes):
    def refuse(scheme):
        raise KeyError(scheme)
