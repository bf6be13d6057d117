import itertools

import torch
from torch import Tensor

from attncourse.checks.answer import Failure, describe
from attncourse.checks.observe import Unusable
from attncourse.checks.task import Task
from attncourse.lab import lab1_time_it_right as reference
from attncourse.tasks.lab1_time_it_right import draw


def facts_of(answer):
    """What can be said about a student's tensors, whatever the numbers are."""

    def facts(b, h, n, d, seed):
        made = answer(b, h, n, d, seed)
        if made is None:
            return None
        tensors = three(made)
        with torch.random.fork_rng(devices=[]):
            torch.rand(3)  # whatever was drawn elsewhere in between
            again, other = three(answer(b, h, n, d, seed)), three(answer(b, h, n, d, seed + 1))
        numbers = torch.cat([each.detach().flatten().double() for each in tensors])
        usual = (numbers.abs() < 1).double().mean().item()
        return {
            "shapes": [list(each.shape) for each in tensors],
            "dtypes": [str(each.dtype).removeprefix("torch.") for each in tensors],
            "mean is 0": abs(numbers.mean().item()) < 0.08,
            "spread is 1": abs(numbers.std().item() - 1) < 0.08,
            "two thirds lie within 1": abs(usual - 0.683) < 0.04,
            "some are large": (numbers.abs().max() > 2 * numbers.std()).item(),
            "no tensor comes twice": not any(
                torch.equal(one, two) for one, two in itertools.combinations(tensors, 2)
            ),
            "all differ": numbers.unique().numel() > 0.99 * numbers.numel(),
            "same again": all(map(torch.equal, tensors, again)),
            "other seed, other numbers": not any(map(torch.equal, tensors, other)),
            "next seed, nothing shared": not any(
                torch.equal(one, two) for one in tensors for two in other if one is not two
            ),
        }

    return facts


def three(made) -> list[Tensor]:
    tensors = list(made) if isinstance(made, list | tuple | Tensor) else [made]
    if len(tensors) != 3 or not all(isinstance(each, Tensor) for each in tensors):
        raise Unusable(f"returned {describe(made)}; three tensors are expected: query, key, value.")
    return tensors


def sizes(b, h, n, d, seed):
    return {"b": b, "h": h, "n": n, "d": d, "seed": seed}


def probes(rng):
    return {
        "all sizes differ": sizes(2, 3, 40, 16, 5),
        "one sentence, one head": sizes(1, 1, 96, 32, 0),
        "equal sizes": sizes(7, 7, 7, 7, 12),
    }


def traits(answer):
    facts = answer(sizes(2, 3, 40, 16, 5))
    return {name: value for name, value in facts.items() if isinstance(value, bool)} | {
        "resets the random state": answer.resets_random_state(sizes(2, 3, 40, 16, 5))
    }


def some_sizes(rng):
    return sizes(2, 3, 40, 16, draw(rng)), sizes(1, 5, 64, 24, draw(rng))


task = Task(
    reference.make_inputs,
    number=3,
    returns=dict,
    difficulty=2,
    minutes=8,
    section="lab1-inputs",
    probes=probes,
    small=lambda rng: iter([sizes(2, 3, 40, 16, 5)]),
    adapt=facts_of,
    traits=traits,
)


@task.check(1, "query, key and value have axes (b h n d) in float32")
def query_key_and_value_have_axes_b_h_n_d_in_float32(answer, rng):
    for inputs in (*some_sizes(rng), sizes(1, 1, 2, 3, 0)):
        facts = answer(inputs)
        expected = [[inputs[name] for name in "bhnd"]] * 3
        if facts["shapes"] != expected:
            raise Failure(
                f"For b={inputs['b']}, h={inputs['h']}, n={inputs['n']}, d={inputs['d']} the "
                f"shapes are {facts['shapes']}; expected three times {expected[0]}.",
                inputs,
            )
        if facts["dtypes"] != ["float32"] * 3:
            raise Failure(f"The dtypes are {facts['dtypes']}; expected float32.", inputs)


@task.check(1)
def all_numbers_are_standard_normal_and_no_two_alike(answer, rng):
    said = {
        "mean is 0": "The mean of all numbers is not 0.",
        "spread is 1": "The standard deviation of all numbers is not 1.",
        "two thirds lie within 1": "Of standard normal numbers 68 % lie between −1 and 1; of "
        "yours another share.",
        "all differ": "Some numbers come again and again: query, key, value, heads and "
        "sentences each need numbers of their own.",
    }
    for inputs in some_sizes(rng):
        facts = answer(inputs)
        for name, sentence in said.items():
            if not facts[name]:
                raise Failure(sentence, inputs)


@task.check(1, "a seed gives the same numbers every time, another seed other ones")
def a_seed_gives_the_same_numbers_every_time_and_another_seed_other_ones(answer, rng):
    for inputs in some_sizes(rng):
        facts = answer(inputs)
        if not facts["same again"]:
            raise Failure("The same seed gave other numbers on the second call.", inputs)
        if not facts["other seed, other numbers"]:
            raise Failure("Another seed gave the same numbers.", inputs)
        if not facts["next seed, nothing shared"]:
            raise Failure("A tensor of this seed comes again with the next one.", inputs)


@task.check(1)
def the_random_state_of_others_stays_as_it_is(answer, rng):
    inputs = sizes(2, 3, 40, 16, draw(rng))
    answer(inputs)
    if answer.observe(inputs).random_state_moved:
        raise Failure(
            "Your answer moved or reset the global random state: code that draws numbers later "
            "gets other numbers.",
            inputs,
        )


# --- the reference in steps ---------------------------------------------------------------------


def own(seed):
    return torch.Generator().manual_seed(seed)


@task.steps
class Inputs:
    def generators(seed):
        return [own(seed)] * 3

    def shape(b, h, n, d):
        return b, h, n, d

    def next(generator, seed):
        return generator

    def draw(shape, generator):
        return torch.randn(*shape, generator=generator)

    def size(numbers):
        return numbers

    def kind(numbers):
        return numbers

    def __call__(self, b, h, n, d, seed):
        shape = self.shape(b, h, n, d)
        drawn = (self.draw(shape, self.next(each, seed)) for each in self.generators(seed))
        return tuple(self.kind(self.size(numbers)) for numbers in drawn)


# --- faults -------------------------------------------------------------------------------------


def one_head(numbers):
    return numbers[:, :1].expand_as(numbers)


def one_sentence(numbers):
    return numbers[:1].expand_as(numbers)


def unseeded(seed):
    generator = torch.Generator()
    generator.seed()
    return [generator] * 3


def stretched(shape, generator):
    return torch.randn(1, 1, *shape[2:], generator=generator).expand(shape)


task.fault(
    "L1-INPUTS-ZEROS",
    draw=(lambda shape, _: torch.zeros(shape), lambda shape, _: torch.ones(shape)),
)
task.fault(
    "L1-INPUTS-UNIFORM", draw=lambda shape, generator: torch.rand(shape, generator=generator)
)
task.fault("L1-INPUTS-ALIKE", next=lambda generator, seed: generator.manual_seed(seed))
task.fault("L1-INPUTS-GLOBAL-SEED", generators=lambda seed: [torch.manual_seed(seed)] * 3)
task.fault(
    "L1-INPUTS-NO-SEED",
    generators=(lambda seed: [torch.default_generator] * 3, unseeded),
    next=lambda generator, seed: generator,  # and none for each tensor
)
task.fault(
    "L1-INPUTS-FIXED-SEED",
    generators=(lambda seed: [own(0)] * 3, lambda seed: [own(i) for i in range(3)]),
)
task.fault("L1-INPUTS-AXES", shape=lambda b, h, n, d: (b, n, h, d))
task.fault("L1-INPUTS-HEADS-FIRST", shape=lambda b, h, n, d: (h, b, n, d))
task.fault("L1-INPUTS-EXPANDED", draw=(stretched, ...), size=(..., one_head, one_sentence))
task.fault(
    "L1-INPUTS-DOUBLE",
    kind=lambda numbers: numbers.double(),
)
task.fault("L1-INPUTS-NEIGHBORS", generators=lambda seed: [own(seed + i) for i in range(3)])
task.fault(
    "L1-INPUTS-HALF", kind=(lambda numbers: numbers.half(), lambda numbers: numbers.bfloat16())
)
task.fault(
    "L1-INPUTS-CENTERED",
    draw=lambda shape, generator: 2 * torch.rand(shape, generator=generator) - 1,
)
task.fault(
    "L1-INPUTS-SCALED",
    size=lambda numbers: numbers / numbers.shape[-1] ** 0.5,
)
task.fault("L1-INPUTS-TRANSPOSED", shape=lambda b, h, n, d: (b, h, d, n))
