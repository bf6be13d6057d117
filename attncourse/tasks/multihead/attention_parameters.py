"""attention_parameters."""

import torch

from attncourse import multihead as reference
from attncourse.checks.answer import Failure
from attncourse.checks.observe import FUSED_ATTENTION
from attncourse.checks.task import Task


def count_inputs(model_width, num_heads, num_layers, head_width=None):
    inputs = {"model_width": model_width, "num_heads": num_heads, "num_layers": num_layers}
    return inputs if head_width is None else inputs | {"head_width": head_width}


GPT_3 = count_inputs(12_288, 96, 96)


LARGE_AND_ODD = count_inputs(12_321, 111, 97)  # float32 would round this count


def count_probes(rng):
    return {
        "plain": count_inputs(12, 3, 5),
        "one layer": count_inputs(20, 4, 1),
        "one head": count_inputs(7, 1, 3),
        "as many heads as layers": count_inputs(12, 4, 4),
        "heads of width one": count_inputs(5, 5, 2),
        "narrower heads": count_inputs(12, 3, 2, 2),
        "wider heads": count_inputs(10, 4, 3, 8),
        "heads as wide as the model": count_inputs(6, 2, 3, 6),
        "heads that do not divide the width": count_inputs(10, 3, 2, 7),
        "heads of width one, by name": count_inputs(6, 2, 3, 1),
        "the usual width, by name": count_inputs(12, 3, 5, 4),
        "large and odd": LARGE_AND_ODD,
        "GPT-3": GPT_3,
    }


def count_small(rng):
    yield count_inputs(1, 1, 1)
    yield count_inputs(2, 1, 1)
    yield count_inputs(2, 2, 1)
    yield count_inputs(2, 1, 2)
    yield count_inputs(2, 1, 1, 1)
    yield count_inputs(1, 2, 1, 3)
    yield count_inputs(4, 2, 3)
    yield count_inputs(3, 2, 2, 5)
    yield GPT_3
    yield LARGE_AND_ODD


def count_traits(answer):
    # The numbers of all probes are compared as if they were measured.
    return {"large numbers are exact": answer(LARGE_AND_ODD) == answer.expected(LARGE_AND_ODD)}


task = Task(
    reference.attention_parameters,
    number=4,
    returns=int,
    difficulty=1,
    minutes=10,
    section="gpt3-parameters",
    hints=(
        "Start with one head. How many numbers does each of its matrices hold, and how many "
        "matrices has it?",
        "A head has three matrices from the model's width to its own, and a block of the "
        "output matrix for the way back. How often does each layer have a head, and how often "
        "does the model have a layer?",
        "head_width is model_width // num_heads where none is given (`//`, so that it stays "
        "whole). One matrix of one head: model_width times head_width. Multiply by the number "
        "of matrices, of heads and of layers.",
    ),
    probes=count_probes,
    traits=count_traits,
    small=count_small,
    forbidden=FUSED_ATTENTION,
)


@task.check(1)
def it_returns_a_whole_number(answer):
    for inputs in (count_inputs(12, 3, 5), count_inputs(10, 3, 2, 7)):
        answer(inputs)
        if isinstance(answer.observe(inputs).returned, torch.Tensor):
            raise Failure("Your answer returned a tensor; a plain int is expected.", inputs)


@task.check(1)
def four_matrices_a_head_in_every_head_and_layer(answer, rng):
    for sizes in ((4, 2, 1), (12, 3, 5), (7, 1, 3), (5, 5, 2), (12, 4, 4), (1, 1, 1)):
        answer.matches(count_inputs(*sizes))
    for _ in range(4):
        heads, layers, width = torch.randint(1, 30, (3,), generator=rng).tolist()
        answer.matches(count_inputs(heads * width, heads, layers))


@task.check(1)
def a_head_may_have_any_width(answer, rng):
    for sizes in ((12, 3, 2, 2), (10, 4, 3, 8), (6, 2, 3, 6), (10, 3, 2, 7), (6, 2, 3, 1)):
        answer.matches(count_inputs(*sizes))
    answer.matches(count_inputs(12, 3, 5, 4))
    answer.matches(count_inputs(1024, 128, 24, 128))  # the largest T5
    for _ in range(4):
        answer.matches(count_inputs(*torch.randint(1, 30, (4,), generator=rng).tolist()))


@task.check(1)
def gpt_3_is_counted_to_the_last_parameter(answer):
    answer.matches(LARGE_AND_ODD)
    got = answer(GPT_3)
    if got != 57_982_058_496:
        raise Failure(
            f"GPT-3 has 57,982,058,496 parameters in its attention layers; you count {got:,}.",
            GPT_3,
            57_982_058_496,
            got,
        )


# --- faults ---------------------------------------------------------------------------------------


@task.fault(
    "H-HEADCOUNT",
    thinks="GPT-3 has 96 heads, so I count 96 heads.",
    why="It has 96 in *each* of 96 layers. You counted one layer; every layer has heads of its "
    "own, with their own matrices.",
)
def parameters_of_one_layer(model_width, num_heads, num_layers, head_width=None):
    head_width = head_width or model_width // num_heads
    return num_heads * 4 * model_width * head_width


@task.fault(
    "H-COST",
    thinks="Every head is a full attention of the model's width, so h heads cost h times as much.",
    why="A head is h times narrower than the model, and the factor h cancels. With the usual width "
    "the count does not depend on h at all.",
    section="heads-cost",
)
def parameters_of_wide_heads(model_width, num_heads, num_layers, head_width=None):
    return num_layers * num_heads * 4 * model_width * (head_width or model_width)


@task.fault(
    "C-PARAMETERS-NO-OUT",
    thinks="A head has three matrices: query, key and value.",
    why="And a way back: its block of W^O, which turns d numbers into m again. It holds as many "
    "parameters as each of the others.",
)
def parameters_without_out(model_width, num_heads, num_layers, head_width=None):
    head_width = head_width or model_width // num_heads
    return num_layers * num_heads * 3 * model_width * head_width


@task.fault(
    "C-PARAMETERS-BIASES",
    thinks="The biases of the four linear layers count, too.",
    why="They are parameters, but this count leaves them out, as the task says: it is a count of "
    "matrices. For GPT-3 biases change one part in ten thousand.",
)
def parameters_with_biases(model_width, num_heads, num_layers, head_width=None):
    inner = num_heads * (head_width or model_width // num_heads)
    return num_layers * (4 * model_width * inner + 3 * inner + model_width)


@task.fault(
    "C-PARAMETERS-FIXED-WIDTH",
    thinks="A layer has four matrices of m × m, whatever its heads look like.",
    why="That is true for heads of width m / h. The caller may choose another `head_width`, and "
    "then the matrices are m × (h · d).",
    section="low-rank",
)
def parameters_ignoring_head_width(model_width, num_heads, num_layers, head_width=None):
    return num_layers * 4 * model_width**2


@task.fault(
    "C-PARAMETERS-ONE-HEAD",
    thinks="The heads share their matrices, so one head's are counted.",
    why="Each head has matrices of its own; otherwise all would ask the same question. What they "
    "share is the layer they stand in.",
    section="project-split",
)
def parameters_of_one_head(model_width, num_heads, num_layers, head_width=None):
    head_width = head_width or model_width // num_heads
    return num_layers * 4 * model_width * head_width


def parameters_as_a_float_product(model_width, num_heads, num_layers, head_width=None):
    head_width = head_width or model_width // num_heads
    return 4.0 * model_width * head_width * num_heads * num_layers


@task.fault(
    "C-PARAMETERS-FLOAT",
    thinks="m / h is a whole number when h divides m.",
    why="In Python `/` always gives a float, and everything multiplied with it becomes one. `//` "
    "keeps whole numbers whole, however large they grow.",
    forms=(parameters_as_a_float_product,),
)
def parameters_as_float(model_width, num_heads, num_layers, head_width=None):
    head_width = model_width / num_heads if head_width is None else float(head_width)
    return num_layers * num_heads * 4 * model_width * head_width


@task.fault(
    "H-SPLIT-EMBED",
    thinks="Each head projects its own slice of the embedding, d numbers to d numbers.",
    why="Each head reads the whole vector, so its matrices have m rows and d columns. Only their "
    "results are narrow.",
    section="whole-embedding",
)
def parameters_of_slices(model_width, num_heads, num_layers, head_width=None):
    head_width = head_width or model_width // num_heads
    return num_layers * num_heads * 4 * head_width**2


@task.fault(
    "H-WO-SHAPE",
    thinks="W^O keeps the width: it is m × m, however wide the heads are.",
    why="It receives the merged heads, h · d numbers, and returns m. Where h · d = m nobody can "
    "tell; give a `head_width`, and the two differ.",
)
def parameters_with_square_out(model_width, num_heads, num_layers, head_width=None):
    inner = num_heads * (head_width or model_width // num_heads)
    return num_layers * (3 * model_width * inner + model_width**2)


@task.fault(
    "C-PARAMETERS-OUT-EACH",
    thinks="Each head has its own whole W^O.",
    why="There is one W^O a layer, and each head owns a block of it: d rows, m columns. The blocks "
    "of all heads together are the whole matrix.",
    section="sum-over-heads",
)
def parameters_with_an_out_for_each(model_width, num_heads, num_layers, head_width=None):
    head_width = head_width or model_width // num_heads
    out = num_heads * head_width * model_width
    return num_layers * num_heads * (3 * model_width * head_width + out)


@task.fault(
    "C-PARAMETERS-WHOLE-LAYER",
    thinks="A layer of a Transformer has 12 m² parameters.",
    why="A third of them: 8 m² are in the two-layer network after the attention. Here only the "
    "attention is counted.",
)
def parameters_of_the_whole_layer(model_width, num_heads, num_layers, head_width=None):
    inner = num_heads * (head_width or model_width // num_heads)
    return num_layers * (4 * model_width * inner + 8 * model_width**2)


@task.fault(
    "C-PARAMETERS-TOTAL-WIDTH",
    thinks="`head_width` is the width of all heads together.",
    why="It is the width of one head; together they have num_heads times that. With the largest T5 "
    "that makes a factor of 128.",
    section="low-rank",
)
def parameters_with_total_width(model_width, num_heads, num_layers, head_width=None):
    return num_layers * 4 * model_width * (head_width or model_width)


@task.fault(
    "C-PARAMETERS-ROUNDED",
    thinks="A tensor can do the multiplication.",
    why="float32 knows about seven digits: small counts are right, large ones are rounded. "
    "(GPT-3's sizes hide it: they are full of factors 2.) Python's own whole numbers never round.",
)
def parameters_in_float32(model_width, num_heads, num_layers, head_width=None):
    head_width = head_width or model_width // num_heads
    sizes = torch.tensor([4.0, model_width, head_width, num_heads, num_layers])
    return int(sizes.prod())


def parameters_in_int32(model_width, num_heads, num_layers, head_width=None):
    head_width = head_width or model_width // num_heads
    sizes = torch.tensor([4, model_width, head_width, num_heads, num_layers], dtype=torch.int32)
    return int(sizes.prod(dtype=torch.int32))


@task.fault(
    "C-PARAMETERS-OVERFLOW",
    thinks="32 bits are enough to count parameters.",
    why="They end at 2,147,483,647, and larger products wrap around without a word. GPT-3 has 27 "
    "times as many. Python's own whole numbers have no end.",
)
def parameters_of_32_bits(model_width, num_heads, num_layers, head_width=None):
    return parameters_in_int32(model_width, num_heads, num_layers, head_width)


@task.fault(
    "C-PARAMETERS-FLOOR-ALWAYS",
    thinks="The heads together are as wide as the model, so all I need is m // h.",
    why="Here `head_width` is given and you do not use it; and m // h times h is less than m where "
    "h does not divide m.",
    section="low-rank",
)
def parameters_by_division_only(model_width, num_heads, num_layers, head_width=None):
    return num_layers * num_heads * 4 * model_width * (model_width // num_heads)
