"""Who looks at whom in a language model of others, on five English sentences.

    >>> for words, maps in real_sentences.load().values():     # after it was run once
    ...     plots.head_view(maps, words, label=" ".join(words))

Run as a program it downloads GPT-2 (half a gigabyte), reads the sentences and stores its weights of
attention with a receipt (`python -m attncourse.experiments.real_sentences`). It needs
`pip install transformers`.
"""

import base64
import hashlib
import json
import zlib
from importlib.metadata import version
from pathlib import Path

import torch
from jaxtyping import Float
from torch import Tensor, nn

from attncourse.pretrained import DATA
from attncourse.training import command

MODEL = "gpt2"
SENTENCES = (
    "The animal did not cross the street because it was too tired.",
    "The animal did not cross the street because it was too wide.",
    "When Mary and John went to the store, John gave a drink to Mary.",
    "The keys to the cabinet are on the table.",
    "She said that she would come, and she came.",
)
LEVELS = 255  # a weight is stored in one byte


def packed(weights: Float[Tensor, "*axes"]) -> dict:
    """Weights as text: rounded to 1/255, deflated."""
    rounded = (weights * LEVELS).round().to(torch.uint8)
    text = base64.b64encode(zlib.compress(rounded.numpy().tobytes(), 9)).decode()
    return {"shape": list(weights.shape), "weights": text}


def unpacked(stored: dict) -> Float[Tensor, "*axes"]:
    """What `packed` wrote."""
    numbers = bytearray(zlib.decompress(base64.b64decode(stored["weights"])))
    return torch.frombuffer(numbers, dtype=torch.uint8).view(stored["shape"]) / LEVELS


def fingerprint(model: nn.Module) -> str:
    """SHA-256 of all weights, in the order of their names."""
    digest = hashlib.sha256()
    for name, tensor in sorted(model.state_dict().items()):
        digest.update(name.encode())
        digest.update(tensor.contiguous().cpu().view(torch.uint8).numpy().tobytes())
    return digest.hexdigest()


@torch.no_grad()
def read(model: nn.Module, tokenizer, sentence: str) -> tuple[list[str], Float[Tensor, "l h n n"]]:
    """The tokens of a sentence, and the weights of all heads of all layers."""
    ids = tokenizer(sentence)["input_ids"]
    maps = model(torch.tensor([ids]), output_attentions=True).attentions
    return [tokenizer.decode([each]).strip() for each in ids], torch.cat(maps)


def measure(folder: Path = DATA, model: nn.Module | None = None, tokenizer=None) -> None:
    """Read the sentences with a model (GPT-2, if none is given) and store what was seen."""
    if model is None:
        from transformers import AutoModelForCausalLM, AutoTokenizer

        tokenizer = AutoTokenizer.from_pretrained(MODEL)
        model = AutoModelForCausalLM.from_pretrained(MODEL, attn_implementation="eager").eval()
    found = {}
    for sentence in SENTENCES:
        words, maps = read(model, tokenizer, sentence)
        found[sentence] = {"words": words, **packed(maps)}
    receipt = {
        "model": model.name_or_path or type(model).__name__,
        "sha256": fingerprint(model),
        "versions": {each: version(each) for each in ("torch", "transformers")},
    }
    text = json.dumps({"receipt": receipt, "sentences": found}, ensure_ascii=False, indent=1)
    (folder / "real_sentences.json").write_text(text + "\n", encoding="utf-8")


def load(folder: Path = DATA) -> dict[str, tuple[list[str], dict[str, Tensor]]]:
    """Sentence -> its words, and layer -> weights (h n n), as `plots.head_view` takes them.

    Raises:
        FileNotFoundError: nobody has run this module and stored what it saw.
    """
    path = folder / "real_sentences.json"
    if not path.exists():
        raise FileNotFoundError(
            f"{path} is not there: run `python -m attncourse.experiments.real_sentences` once, "
            f"where {MODEL} can be downloaded"
        )
    stored = json.loads(path.read_text(encoding="utf-8"))["sentences"]
    return {
        sentence: (
            each["words"],
            {f"layer {n}": weights for n, weights in enumerate(unpacked(each))},
        )
        for sentence, each in stored.items()
    }


if __name__ == "__main__":
    command(measure, "Read five sentences with GPT-2.", folder=DATA)
