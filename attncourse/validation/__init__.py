"""Bad input, said in the caller's words: which argument, what came, what was expected.

`axes` compares tensors with the letters of a signature. What attention, sizes and words must be is
exported here for all chapters; what only one chapter asks for stands in the module of its name.
"""

from attncourse.validation.axes import checked, validate_axes
from attncourse.validation.masks import (
    validate_attention,
    validate_mask,
    validate_scores,
    validate_tables,
)
from attncourse.validation.sizes import (
    validate_heads,
    validate_number,
    validate_picture,
    validate_positive,
    validate_scalar,
    validate_sizes,
)
from attncourse.validation.tensors import validate_fits, validate_tensor
from attncourse.validation.words import (
    validate_counts,
    validate_ids,
    validate_lengths,
    validate_logits,
    validate_merges,
    validate_pair,
)

__all__ = [
    "checked",
    "validate_attention",
    "validate_axes",
    "validate_counts",
    "validate_fits",
    "validate_heads",
    "validate_ids",
    "validate_lengths",
    "validate_logits",
    "validate_mask",
    "validate_merges",
    "validate_number",
    "validate_pair",
    "validate_picture",
    "validate_positive",
    "validate_scalar",
    "validate_scores",
    "validate_sizes",
    "validate_tables",
    "validate_tensor",
]
