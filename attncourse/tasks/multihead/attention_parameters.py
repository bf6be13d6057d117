"""Count what attention learns: what is promised, the reference in steps, what goes wrong."""

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


def probes(rng):
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


def small(rng):
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


def traits(answer):
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
    probes=probes,
    traits=traits,
    small=small,
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


# --- the reference in steps ---------------------------------------------------------------------


@task.steps
class Count:
    def width(model_width, num_heads, head_width):
        return head_width or model_width // num_heads

    def inward(m, h, d):
        return 3 * m * h * d

    def outward(m, h, d):
        return h * d * m

    def layers(per_layer, num_layers):
        return per_layer * num_layers

    def __call__(self, model_width, num_heads, num_layers, head_width=None):
        sizes = model_width, num_heads, self.width(model_width, num_heads, head_width)
        return self.layers(self.inward(*sizes) + self.outward(*sizes), num_layers)


# --- faults -------------------------------------------------------------------------------------

task.fault(
    "H-HEADCOUNT",
    "GPT-3 has 96 heads, so I count 96 heads.",
    "It has 96 in *each* of 96 layers. You counted one layer; every layer has heads of its own, "
    "with their own matrices.",
    layers=lambda per_layer, num_layers: per_layer,
)
task.fault(
    "C-PARAMETERS-LAYERS-SQUARED",
    "Each layer reads the layer before it, so layers count twice.",
    "A layer reads what another one wrote, with matrices of its own; two layers share none. There "
    "are `num_layers` times the parameters of one.",
    layers=lambda per_layer, num_layers: per_layer * num_layers**2,
)
task.fault(
    "H-COST",
    "Every head is a full attention of the model's width, so h heads cost h times as much.",
    "A head is h times narrower than the model, and the factor h cancels. With the usual width "
    "the count does not depend on h at all.",
    section="heads-cost",
    width=lambda m, h, head_width: head_width or m,
)
task.fault(
    "C-PARAMETERS-NO-OUT",
    "A head has three matrices: query, key and value.",
    "And a way back: its block of W^O, which turns d numbers into m again. It holds as many "
    "parameters as each of the others.",
    outward=lambda m, h, d: 0,
)
task.fault(
    "C-PARAMETERS-SHARED",
    "Queries, keys and values come from one matrix, since they come from the same words.",
    "A word asks with one vector, is found by another and read by a third: three matrices a head, "
    "and the way back is the fourth.",
    section="project-split",
    inward=lambda m, h, d: m * h * d,
)
task.fault(
    "C-PARAMETERS-BIASES",
    "The biases of the four linear layers count, too.",
    "They are parameters, but this count leaves them out, as the task says: it is a count of "
    "matrices. For GPT-3 biases change one part in ten thousand.",
    outward=lambda m, h, d: h * d * m + 3 * h * d + m,
)
task.fault(
    "C-PARAMETERS-FIXED-WIDTH",
    "A layer has four matrices of m × m, whatever its heads look like.",
    "That is true for heads of width m / h. The caller may choose another `head_width`, and then "
    "the matrices are m × (h · d).",
    section="low-rank",
    inward=lambda m, h, d: 3 * m * m,
    outward=lambda m, h, d: m * m,
)
task.fault(
    "C-PARAMETERS-ONE-HEAD",
    "The heads share their matrices, so one head's are counted.",
    "Each head has matrices of its own; otherwise all would ask the same question. What they "
    "share is the layer they stand in.",
    section="project-split",
    inward=lambda m, h, d: 3 * m * d,
    outward=lambda m, h, d: m * d,
)
task.fault(
    "C-PARAMETERS-FLOAT",
    "m / h is a whole number when h divides m.",
    "In Python `/` always gives a float, and everything multiplied with it becomes one. `//` "
    "keeps whole numbers whole, however large they grow.",
    width=(lambda m, h, head_width: head_width or m / h, ...),
    layers=(..., lambda per_layer, num_layers: float(per_layer * num_layers)),
)
task.fault(
    "H-SPLIT-EMBED",
    "Each head projects its own slice of the embedding, d numbers to d numbers.",
    "Each head reads the whole vector, so its matrices have m rows and d columns. Only their "
    "results are narrow.",
    section="whole-embedding",
    inward=lambda m, h, d: 3 * h * d * d,
    outward=lambda m, h, d: h * d * d,
)
task.fault(
    "H-WO-SHAPE",
    "W^O keeps the width: it is m × m, however wide the heads are.",
    "It receives the merged heads, h · d numbers, and returns m. Where h · d = m nobody can tell; "
    "give a `head_width`, and the two differ.",
    outward=lambda m, h, d: m * m,
)
task.fault(
    "C-PARAMETERS-OUT-EACH",
    "Each head has its own whole W^O.",
    "There is one W^O a layer, and each head owns a block of it: d rows, m columns. The blocks of "
    "all heads together are the whole matrix.",
    section="sum-over-heads",
    outward=lambda m, h, d: h * (h * d * m),
)
task.fault(
    "C-PARAMETERS-WHOLE-LAYER",
    "A layer of a Transformer has 12 m² parameters.",
    "A third of them: 8 m² are in the two-layer network after the attention. Here only the "
    "attention is counted.",
    outward=lambda m, h, d: h * d * m + 8 * m * m,
)
task.fault(
    "C-PARAMETERS-TOTAL-WIDTH",
    "`head_width` is the width of all heads together.",
    "It is the width of one head; together they have num_heads times that. With the largest T5 "
    "that makes a factor of 128.",
    section="low-rank",
    width=lambda m, h, head_width: head_width or m,
    inward=lambda m, h, d: 3 * m * d,
    outward=lambda m, h, d: m * d,
)
task.fault(
    "C-PARAMETERS-ROUNDED",
    "A tensor can do the multiplication.",
    "float32 knows about seven digits: small counts are right, large ones are rounded. (GPT-3's "
    "sizes hide it: they are full of factors 2.) Python's own whole numbers never round.",
    layers=lambda per_layer, num_layers: int(torch.tensor(float(per_layer)) * num_layers),
)
task.fault(
    "C-PARAMETERS-OVERFLOW",
    "32 bits are enough to count parameters.",
    "They end at 2,147,483,647, and larger products wrap around without a word. GPT-3 has 27 "
    "times as many. Python's own whole numbers have no end.",
    layers=lambda per_layer, num_layers: int(torch.tensor(per_layer * num_layers).int()),
)
task.fault(
    "C-PARAMETERS-FLOOR-ALWAYS",
    "The heads together are as wide as the model, so all I need is m // h.",
    "Here `head_width` is given and you do not use it; and m // h times h is less than m where h "
    "does not divide m.",
    section="low-rank",
    width=lambda m, h, head_width: m // h,
)
