import torch

from attncourse import multihead as reference
from attncourse.checks.answer import Failure
from attncourse.checks.observe import FUSED_ATTENTION
from attncourse.checks.task import Task
from attncourse.tasks import as_is


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


@task.check(1, "four matrices a head in every head and layer, and nothing else")
def four_matrices_a_head_in_every_head_and_layer_and_nothing_else(answer, rng):
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


@task.check(1, "GPT-3 and odder sizes are counted to the last parameter")
def gpt_3_is_counted_to_the_last_parameter(answer):
    got = answer(GPT_3)
    if got != 57_982_058_496:
        raise Failure(
            f"GPT-3 has 57,982,058,496 parameters in its attention layers; you count {got:,}.",
            GPT_3,
            57_982_058_496,
            got,
        )
    answer.matches(LARGE_AND_ODD)


# --- the reference in steps ---------------------------------------------------------------------


@task.steps
class Count:
    def width(model_width, num_heads, head_width):
        return head_width or model_width // num_heads

    def matrix(m, h, d):
        return m * h * d

    def inward(matrix, m, h, d):
        return 3 * matrix

    def outward(matrix, m, h, d):
        return matrix

    def further(per_layer, m, h, d):
        return per_layer

    def heads(per_layer, h):
        return per_layer

    def layers(per_layer, num_layers):
        return per_layer * num_layers

    def __call__(self, model_width, num_heads, num_layers, head_width=None):
        sizes = model_width, num_heads, self.width(model_width, num_heads, head_width)
        matrix = self.matrix(*sizes)
        count = self.inward(matrix, *sizes) + self.outward(matrix, *sizes)
        count = self.further(count, *sizes)
        return self.layers(self.heads(count, num_heads), num_layers)


# --- faults -------------------------------------------------------------------------------------

task.fault("H-HEADCOUNT", layers=lambda per_layer, num_layers: per_layer)
task.fault(
    "C-PARAMETERS-LAYERS-SQUARED", layers=lambda per_layer, num_layers: per_layer * num_layers**2
)
task.fault(
    "H-COST",
    section="heads-cost",
    width=(lambda m, h, head_width: head_width or m, ..., lambda m, h, head_width: m),
    heads=(..., lambda per_layer, h: per_layer * h, ...),
)
task.fault("C-PARAMETERS-NO-OUT", outward=lambda *_: 0)
task.fault("C-PARAMETERS-SHARED", section="project-split", inward=as_is)
task.fault(
    "C-PARAMETERS-BIASES",
    further=(
        lambda n, m, h, d: n + 3 * h * d + m,
        lambda n, m, h, d: n + 3 * h * d,
        lambda n, m, h, d: n + 4 * m,
    ),
)
task.fault("C-PARAMETERS-FIXED-WIDTH", section="low-rank", matrix=lambda m, h, d: m * m)
task.fault(
    "C-PARAMETERS-ONE-HEAD",
    section="project-split",
    matrix=(lambda m, h, d: m * d, ...),
    inward=(..., lambda matrix, m, h, d: 3 * m * d),
)
task.fault(
    "C-PARAMETERS-OUT-ONE-HEAD",
    section="sum-over-heads",
    outward=lambda matrix, m, h, d: m * d,
)
task.fault(
    "C-PARAMETERS-FLOAT",
    width=(lambda m, h, head_width: head_width or m / h, ...),
    layers=(..., lambda per_layer, num_layers: float(per_layer * num_layers)),
)
task.fault(
    "H-SPLIT-EMBED",
    section="whole-embedding",
    matrix=(lambda m, h, d: h * d * d, ...),
    inward=(..., lambda matrix, m, h, d: 3 * h * d * d),
)
task.fault(
    "C-PARAMETERS-MODEL-IS-HEADS",
    section="low-rank",
    matrix=(lambda m, h, d: (h * d) ** 2, ..., ...),
    inward=(..., lambda matrix, m, h, d: 3 * (h * d) ** 2, ...),
    outward=(..., ..., lambda matrix, m, h, d: (h * d) ** 2),
)


@task.fault("C-PARAMETERS-OUT-ONCE", section="sum-over-heads")
class OutOnce(Count):
    def layers(per_layer, num_layers):
        return per_layer // 4 * (3 * num_layers + 1)


task.fault(
    "C-PARAMETERS-WIDTH-OF-KEYS",
    section="low-rank",
    inward=lambda matrix, m, h, d: 2 * matrix + m * (m // h) * h,
    outward=lambda matrix, m, h, d: (m // h) * h * m,
)
task.fault("H-WO-SHAPE", outward=lambda matrix, m, h, d: m * m)
task.fault(
    "C-PARAMETERS-OUT-EACH", section="sum-over-heads", outward=lambda matrix, m, h, d: h * matrix
)
task.fault("C-PARAMETERS-WHOLE-LAYER", further=lambda n, m, h, d: n + 8 * m * m)
task.fault(
    "C-PARAMETERS-TOTAL-WIDTH",
    section="low-rank",
    width=lambda m, h, head_width: head_width or m,
    matrix=lambda m, h, d: m * d,
)
task.fault(
    "C-PARAMETERS-ROUNDED",
    layers=lambda per_layer, num_layers: int(torch.tensor(float(per_layer)) * num_layers),
)
task.fault(
    "C-PARAMETERS-OVERFLOW",
    layers=lambda per_layer, num_layers: int(torch.tensor(per_layer * num_layers).int()),
)
task.fault("C-PARAMETERS-FLOOR-ALWAYS", section="low-rank", width=lambda m, h, head_width: m // h)
