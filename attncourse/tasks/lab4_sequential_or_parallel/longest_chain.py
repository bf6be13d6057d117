import functools
from collections import Counter

import torch

from attncourse.checks.answer import Failure, leaves_inputs
from attncourse.checks.task import Task
from attncourse.lab import lab4_sequential_or_parallel as reference
from attncourse.tasks.lab4_sequential_or_parallel import pick


def recurrent(layers, n):
    """Stacked recurrent layers: a step waits for the one before it and the one below."""
    return {
        f"{layer}:{t}": [f"{layer}:{t - 1}"] * (t > 0) + [f"{layer - 1}:{t}"] * (layer > 0)
        for layer in range(layers)
        for t in range(n)
    }


def attending(layers, n):
    """Stacked attention layers: each position waits for all positions below."""
    return {
        f"{layer}:{t}": [f"{layer - 1}:{s}" for s in range(n)] * (layer > 0)
        for layer in range(layers)
        for t in range(n)
    }


def tree(leaves):
    """Sums of pairs, of pairs of pairs, …"""
    needs, row = {f"leaf {i}": [] for i in range(leaves)}, [f"leaf {i}" for i in range(leaves)]
    while len(row) > 1:
        above = []
        for i in range(0, len(row) - 1, 2):
            above.append(f"{row[i]}+{i}")
            needs[above[-1]] = [row[i], row[i + 1]]
        row = above + row[len(row) - len(row) % 2 :]
    return needs


def scattered(rng, steps):
    """Each step waits for up to three earlier ones, taken by chance."""
    needs = {}
    for i in range(steps):
        few = torch.randint(0, max(i, 1), (pick(rng, 0, 1, 2, 3),), generator=rng, device="cpu")
        needs[f"s{i}"] = [f"s{j}" for j in sorted(set(few.tolist()))] if i else []
    return needs


UNEVEN = {
    "a": [],
    "b": ["a"],
    "c": ["b"],
    "d": [],
    "e": ["d", "c"],
    "f": ["d"],
    "g": ["f", "a"],
}


def probes(rng):
    return {
        "loop": {"needs": recurrent(1, 7)},
        "two layers": {"needs": recurrent(2, 5)},
        "three layers": {"needs": recurrent(3, 4)},
        "attention": {"needs": attending(1, 5)},
        "four layers of attention": {"needs": attending(4, 3)},
        "tree": {"needs": tree(8)},
        "uneven": {"needs": UNEVEN},
        "a short step comes last": {"needs": {"a": [], "b": ["a"], "c": ["b"], "d": []}},
        "the shorter way is named first": {
            "needs": {"a": [], "b": [], "c": ["b"], "d": ["a", "c"]}
        },
        "the shorter way is named last": {"needs": {"a": [], "b": [], "c": ["b"], "d": ["c", "a"]}},
        "scattered": {"needs": scattered(rng, 12)},
        "long": {"needs": recurrent(1, 3000)},
        "nothing": {"needs": {}},
    }


def small(rng):
    yield {"needs": {}}
    yield {"needs": {"a": []}}
    yield {"needs": {"a": [], "b": []}}
    yield {"needs": {"a": [], "b": ["a"]}}
    yield {"needs": {"a": [], "b": ["a"], "c": []}}
    yield {"needs": {"a": [], "b": ["a"], "c": [], "d": ["c", "b"]}}
    yield {"needs": UNEVEN}
    yield {"needs": recurrent(2, 3)}


def chain_is(answer, needs, expected, what):
    got = answer({"needs": needs})
    if got != expected:
        raise Failure(
            f"{what}: the longest chain has {expected:,} step{'s' * (expected != 1)}; you say "
            f"{got:,}.",
            {"needs": needs},
            expected,
            got,
            whole="result",
        )


task = Task(
    reference.longest_chain,
    number=3,
    returns=int,
    difficulty=2,
    minutes=10,
    section="lab4-chain",
    probes=probes,
    small=small,
    forbidden=("networkx.algorithms.dag.",),  # it comes with torch
)


@task.check(2)
def a_loop_over_n_positions_is_a_chain_of_n_steps(answer, rng):
    for n in (1, 8, pick(rng, 11, 23, 50)):
        chain_is(answer, recurrent(1, n), n, f"A recurrent layer, positions: {n}")


@task.check(1)
def attention_is_as_deep_as_it_has_layers(answer, rng):
    for layers, n in ((1, 6), (4, 3), (pick(rng, 2, 3, 5), 4)):
        what = f"Attention over {n} positions, layers: {layers}"
        chain_is(answer, attending(layers, n), layers, what)


@task.check(2)
def stacked_recurrent_layers_overlap(answer, rng):
    for layers, n in ((2, 5), (3, 3), (4, pick(rng, 6, 7, 9))):
        what = f"Recurrent layers over {n} positions, layers: {layers}"
        chain_is(answer, recurrent(layers, n), layers + n - 1, what)


@task.check(2)
def the_longest_way_counts_wherever_it_ends(answer, rng):
    chain_is(answer, UNEVEN, 4, "Seven steps")
    chain_is(answer, tree(16), 5, "Sums of pairs over 16 numbers")
    for _ in range(3):
        needs = scattered(rng, 15)
        expected = answer.expected({"needs": needs})
        chain_is(answer, needs, expected, "Fifteen steps, wired by chance")
    leaves_inputs(answer, {"needs": UNEVEN})


@task.check(1)
def a_chain_of_five_thousand_steps_is_no_problem(answer):
    chain_is(answer, recurrent(1, 5000), 5000, "A recurrent layer over 5,000 positions")


@task.check(1)
def where_there_is_nothing_to_do_it_says_0(answer):
    chain_is(answer, {}, 0, "No steps at all")


# --- steps --------------------------------------------------------------------------------------


@task.steps
class Chain:
    def wait(lengths):
        return max(lengths, default=0)

    def longest(length):
        return max(length.values(), default=0)

    def __call__(self, needs):
        length = {}
        for step, before in needs.items():
            length[step] = 1 + self.wait([length[other] for other in before])
        return self.longest(length)


# --- faults -------------------------------------------------------------------------------------


def most_at_once(length):
    return max(Counter(length.values()).values(), default=0)


task.fault("L4-ALL-STEPS", longest=len)
task.fault(
    "L4-ARROWS",
    wait=(lambda lengths: max(lengths, default=-1), ..., ...),
    longest=(
        ...,
        lambda length: max(length.values(), default=0) - 1,
        lambda length: max((each - 1 for each in length.values()), default=0),
    ),
)
task.fault("L4-SHORTEST-WAIT", wait=lambda lengths: min(lengths, default=0))
task.fault("L4-WAITS-ADDED", wait=sum)
task.fault("L4-LAST-LISTED", longest=lambda length: [0, *length.values()][-1])
task.fault("L4-FIRST-ARROW", wait=lambda lengths: lengths[0] if lengths else 0)
task.fault("L4-LAST-ARROW", wait=lambda lengths: lengths[-1] if lengths else 0)
task.fault("L4-MOST-ARROWS", wait=(lambda lengths: len(lengths) - 1, len))
task.fault("L4-WIDTH", longest=most_at_once)
task.fault("L4-NO-STEPS", longest=lambda length: max(length.values()))
task.fault(
    "L4-NOTHING-IS-ONE",
    longest=(
        lambda length: max(length.values(), default=1),
        lambda length: max([1, *length.values()]),
    ),
)
task.fault("L4-ALWAYS-WAITS", wait=lambda lengths: max(lengths))


@task.fault("L4-ALL-BEFORE")
class EverythingBefore(Chain):
    def __call__(self, needs):
        behind = {}
        for step, before in needs.items():
            behind[step] = set(before).union(*(behind[other] for other in before))
        return self.longest({step: len(each) + 1 for step, each in behind.items()})


@task.fault("L4-RECURSION")
class CallsItself(Chain):
    def __call__(self, needs):
        @functools.cache
        def length(step):
            return 1 + self.wait([length(other) for other in needs[step]])

        for step in reversed(list(needs)):  # who keeps the lengths goes deep from the end alone
            length(step)
        return self.longest({step: length(step) for step in needs})
