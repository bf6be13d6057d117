"""make_inputs."""

import torch
from torch import Tensor

from attncourse.checks.answer import Failure, describe
from attncourse.checks.observe import Unusable
from attncourse.checks.task import Task
from attncourse.lab import lab1_time_it_right as reference
from attncourse.tasks.lab1_time_it_right import draw
from attncourse.tasks.lab1_time_it_right._faults import own


def facts_of(answer):
    """What can be said about a student's tensors, whatever the numbers are."""

    def facts(b, h, n, d, seed):
        made = answer(b, h, n, d, seed)
        if made is None:
            return None
        tensors = three(made)
        with torch.random.fork_rng(devices=[]):
            torch.rand(3)  # whatever was drawn elsewhere in between
            again, other = three(answer(b, h, n, d, seed)), three(answer(b, h, n, d, seed + 1000))
        numbers = torch.cat([each.detach().flatten().double() for each in tensors])
        usual = (numbers.abs() < 1).double().mean().item()
        return {
            "shapes": [list(each.shape) for each in tensors],
            "dtypes": [str(each.dtype).removeprefix("torch.") for each in tensors],
            "mean is 0": abs(numbers.mean().item()) < 0.08,
            "spread is 1": abs(numbers.std().item() - 1) < 0.08,
            "two thirds lie within 1": abs(usual - 0.683) < 0.04,
            "all differ": numbers.unique().numel() > 0.99 * numbers.numel(),
            "same again": all(map(torch.equal, tensors, again)),
            "other seed, other numbers": not any(map(torch.equal, tensors, other)),
        }

    return facts


def three(made) -> list[Tensor]:
    tensors = list(made) if isinstance(made, list | tuple | Tensor) else [made]
    if len(tensors) != 3 or not all(isinstance(each, Tensor) for each in tensors):
        raise Unusable(f"returned {describe(made)}; three tensors are expected: query, key, value.")
    return tensors


def sizes(b, h, n, d, seed):
    return {"b": b, "h": h, "n": n, "d": d, "seed": seed}


def input_probes(rng):
    return {
        "all sizes differ": sizes(2, 3, 40, 16, 5),
        "one sentence, one head": sizes(1, 1, 96, 32, 0),
        "equal sizes": sizes(7, 7, 7, 7, 12),
    }


def input_traits(answer):
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
    hints=(
        "Somebody runs your lab again next year, after other cells have drawn other random "
        "numbers. What must not change? And whose random numbers must not change through you?",
        "`torch.randn` takes `generator=`. A generator of your own, `torch.Generator()`, has a "
        "seed of its own, and nobody else draws from it.",
        "own = torch.Generator().manual_seed(seed); then three times torch.randn(b, h, n, d, "
        "generator=own).",
    ),
    probes=input_probes,
    small=lambda rng: iter([sizes(2, 3, 40, 16, 5)]),
    adapt=facts_of,
    traits=input_traits,
)


@task.check(1)
def query_key_and_value_have_axes_b_h_n_d(answer, rng):
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


@task.check(1)
def a_seed_gives_the_same_numbers_every_time(answer, rng):
    for inputs in some_sizes(rng):
        facts = answer(inputs)
        if not facts["same again"]:
            raise Failure("The same seed gave other numbers on the second call.", inputs)
        if not facts["other seed, other numbers"]:
            raise Failure("Another seed gave the same numbers.", inputs)


@task.check(1)
def the_random_state_of_others_stays_as_it_is(answer, rng):
    inputs = sizes(2, 3, 40, 16, draw(rng))
    answer(inputs)
    if answer.observe(inputs).random_state_moved:
        raise Failure(
            "Your answer moved or reset the global random state: whoever draws numbers after "
            "it gets others because of you.",
            inputs,
        )


# --- faults ---------------------------------------------------------------------------------------


@task.fault(
    "L1-INPUTS-ZEROS",
    thinks="What the numbers are makes no difference to the time.",
    why="A chip that flips fewer bits draws less power, so at its power limit it runs faster on "
    "zeros or ones. And with such inputs you could not check a result.",
    forms=(lambda b, h, n, d, seed: [torch.ones(b, h, n, d)] * 3,),
)
def zeros(b, h, n, d, seed):
    return tuple(torch.zeros(3, b, h, n, d))


@task.fault(
    "L1-INPUTS-UNIFORM",
    thinks="torch.rand is torch's random tensor.",
    why="Its numbers are spread evenly between 0 and 1, none below zero, so that all scores come "
    "out large and alike. Queries and keys of a network are spread around zero.",
)
def uniform(b, h, n, d, seed):
    return tuple(torch.rand(3, b, h, n, d, generator=own(seed)))


@task.fault(
    "L1-INPUTS-ALIKE",
    thinks="Each of the three tensors needs the seed.",
    why="With the same seed for each, query, key and value are one tensor three times. Every "
    "word then fits itself best, which no network does.",
)
def three_times_the_same(b, h, n, d, seed):
    return tuple(torch.randn(b, h, n, d, generator=own(seed)) for _ in range(3))


@task.fault(
    "L1-INPUTS-GLOBAL-SEED",
    thinks="torch.manual_seed is how one gets reproducible numbers.",
    why="It resets the generator that everybody draws from. Whoever trains or samples in the same "
    "notebook gets other numbers because of you.",
)
def global_seed(b, h, n, d, seed):
    torch.manual_seed(seed)
    return tuple(torch.randn(3, b, h, n, d))


@task.fault(
    "L1-INPUTS-NO-SEED",
    thinks="Random is random; the seed is a formality.",
    why="Then nobody can repeat your measurement on the same numbers, you included, and what "
    "others draw afterward depends on you.",
)
def no_seed(b, h, n, d, seed):
    return tuple(torch.randn(3, b, h, n, d))


@task.fault(
    "L1-INPUTS-FIXED-SEED",
    thinks="A fixed seed of my own makes it reproducible.",
    why="It does, but the caller's seed is ignored: two measurements that should be independent "
    "get the same numbers.",
)
def fixed_seed(b, h, n, d, seed):
    return tuple(torch.randn(3, b, h, n, d, generator=own(0)))


@task.fault(
    "L1-INPUTS-AXES",
    thinks="The heads come right before the width, as they do after a projection.",
    why="Attention over (b n h d) takes each word's heads for positions: other work, and another "
    "time. Here the axes are b h n d.",
)
def heads_after_positions(b, h, n, d, seed):
    return tuple(torch.randn(3, b, n, h, d, generator=own(seed)))


@task.fault(
    "L1-INPUTS-EXPANDED",
    thinks="One head, stretched over all of them, saves memory and is as good.",
    why="All heads then read the same numbers from memory, and a cache serves them all. You would "
    "time a smaller problem than you say.",
)
def one_sentence_stretched(b, h, n, d, seed):
    return tuple(
        each.expand(b, h, n, d) for each in torch.randn(3, 1, 1, n, d, generator=own(seed))
    )


@task.fault(
    "L1-INPUTS-DOUBLE",
    thinks="More digits are safer.",
    why="float64 moves twice the bytes of float32, and many GPUs compute it 32 times slower or "
    "worse. Nobody runs attention in it.",
)
def double(b, h, n, d, seed):
    return tuple(torch.randn(3, b, h, n, d, generator=own(seed), dtype=torch.float64))
