"""The book's translators: trained once (`make curves`), stored with the package, loaded by pages.

    >>> model, english, french = pretrained.load("additive")
    >>> shares = pretrained.curves()["models"]["additive"]["exact_match"]   # length -> share

`attncourse.experiments.translator_curves` trains them again.
"""

import json
from collections.abc import Callable
from dataclasses import dataclass
from functools import partial
from pathlib import Path

from einops import einsum
from jaxtyping import Float
from safetensors.torch import load_file
from torch import Tensor, nn

from attncourse import additive
from attncourse.additive import (
    AttentionEncoderDecoder,
    BidirectionalEncoderDecoder,
    ScoredAttention,
)
from attncourse.bottleneck import EncoderDecoder
from attncourse.cross_attention import Transformer
from attncourse.number_words import Vocabulary

DATA = Path(__file__).parent / "data"
HIDDEN = 64  # width of states, keys, queries and words, where nothing else is said


def linear_concat_scores(
    query: Float[Tensor, "b e"], keys: Float[Tensor, "b k d"], w: Float[Tensor, " e+d"]
) -> Float[Tensor, "b k"]:
    """Score by wᵀ[q; kᵢ] without a tanh, as a slide prints it. Chapter 2 shows what is wrong."""
    w_query, w_key = w.split([query.shape[-1], keys.shape[-1]])
    return einsum(query, w_query, "b e, e -> b")[:, None] + einsum(keys, w_key, "b k d, d -> b k")


def _scored(score, **shapes):
    return lambda: ScoredAttention(score, **shapes)


@dataclass(frozen=True)
class Recipe:
    """How a model is made and trained; `attention` is made anew for each model."""

    make: Callable[..., nn.Module]  # from the sizes of two vocabularies
    steps: int
    attention: Callable[[], nn.Module] | None = None
    learning_rate: float = 5e-3
    target: str = "fr"


# What is compared with each other has the same number of steps, or the page tells the number.
STEPS, FEW = 2000, 600
RECIPES = {
    "fixed-64": Recipe(EncoderDecoder, STEPS),
    "fixed-128": Recipe(partial(EncoderDecoder, hidden=2 * HIDDEN), STEPS),
    "fixed-64-longer": Recipe(EncoderDecoder, 2 * STEPS),
    "fixed-128-longer": Recipe(partial(EncoderDecoder, hidden=2 * HIDDEN), 2 * STEPS),
    "fixed-64-longest": Recipe(EncoderDecoder, 6600),  # takes as many seconds as `additive`
    "additive": Recipe(AttentionEncoderDecoder, STEPS),
    "transformer": Recipe(Transformer, STEPS, learning_rate=2e-3),
    "one-head": Recipe(partial(Transformer, num_heads=1), STEPS, learning_rate=2e-3),
    "score-dot": Recipe(AttentionEncoderDecoder, FEW, _scored(additive.dot_scores)),
    "score-general": Recipe(
        AttentionEncoderDecoder, FEW, _scored(additive.general_scores, W=(HIDDEN, HIDDEN))
    ),
    "score-linear": Recipe(
        AttentionEncoderDecoder, STEPS, _scored(linear_concat_scores, w=(2 * HIDDEN,))
    ),
    "bidirectional": Recipe(BidirectionalEncoderDecoder, FEW),
    "german": Recipe(BidirectionalEncoderDecoder, FEW, target="de"),
}
STORED = ("fixed-64", "additive", "transformer", "bidirectional", "german")  # pages load them


def build(name: str, source_words: int, target_words: int) -> nn.Module:
    """Make one of the book's models, untrained.

    Raises:
        ValueError: there is no such model.
    """
    if name not in RECIPES:
        raise ValueError(f"there is no model {name!r}; there are {', '.join(RECIPES)}")
    recipe = RECIPES[name]
    if recipe.attention is None:
        return recipe.make(source_words, target_words)
    return recipe.make(source_words, target_words, attention=recipe.attention())


def load(name: str) -> tuple[nn.Module, Vocabulary, Vocabulary]:
    """Load a trained model with the vocabularies of its source and its target.

    Raises:
        ValueError: the weights of this model are not stored.
    """
    if name not in STORED:
        raise ValueError(f"weights are stored of {', '.join(STORED)}; not of {name!r}")
    stored = curves()
    stored |= stored["models"][name]  # another language has its own words
    source, target = (Vocabulary(tuple(stored[side])) for side in ("source_words", "target_words"))
    model = build(name, len(source), len(target))
    weights = load_file(DATA / f"{name}.safetensors")
    model.load_state_dict({key: tensor.float() for key, tensor in weights.items()})
    return model.eval(), source, target


def curves(folder: Path = DATA) -> dict:
    """What the training measured.

    Returns:
        `models`: name -> `exact_match` (source length -> share), `losses` (mean of each 20 steps),
        `steps`, `seconds` of a processor, `parameters`, and `target_words` if it does not write
        French; `counts` (source length -> sentences in the test); the vocabularies; `versions` and
        `seed`.
    """
    measured = json.loads((folder / "curves.json").read_text(encoding="utf-8"))
    measured["counts"] = {int(length): n for length, n in measured["counts"].items()}
    for model in measured["models"].values():
        model["exact_match"] = {int(n): share for n, share in model["exact_match"].items()}
    return measured
