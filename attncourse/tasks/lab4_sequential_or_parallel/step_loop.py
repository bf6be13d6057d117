"""step_loop."""

import torch

from attncourse.checks.answer import Failure, Unanswered, compare, describe, moves_nothing, shape_of
from attncourse.checks.inputs import integers, normal
from attncourse.checks.task import Task
from attncourse.lab import lab4_sequential_or_parallel as reference
from attncourse.tasks.lab4_sequential_or_parallel import pick


def sentences(rng, b, n, d, make=normal, **options):
    weights = {} if make is integers else options
    return {
        "inputs": make(rng, b, n, d, **options),
        "state": make(rng, b, d, **options),
        "w_inputs": make(rng, d, d, **weights),
        "w_state": make(rng, d, d, **weights),
    }


def loop_probes(rng):
    return {
        "ordinary": sentences(rng, 2, 5, 3),
        "square": sentences(rng, 4, 4, 4),
        "one sentence": sentences(rng, 1, 6, 2),
        "one position": sentences(rng, 3, 1, 2),
        "double": sentences(rng, 2, 3, 5, dtype=torch.float64),
    }


def loop_small(rng):
    yield sentences(rng, 1, 1, 1, make=integers)
    yield sentences(rng, 1, 2, 1, make=integers)
    yield sentences(rng, 2, 2, 1, make=integers)
    yield sentences(rng, 2, 3, 2)


def a_cell(b, w_inputs, w_state, seen=None):
    """A recurrent cell, which notes each call in `seen`."""

    def cell(inputs, state):
        shape = (b, len(w_state))
        for name, tensor in (("input", inputs), ("state", state)):
            if not isinstance(tensor, torch.Tensor) or tensor.shape != shape:
                raise ValueError(
                    f"the cell expects {name} with the axes (b d), here ({shape[0]} {shape[1]}); "
                    f"it got {describe(tensor)}"
                )
        if seen is not None:
            seen.append(inputs.detach().clone())
        return torch.tanh(inputs @ w_inputs / 2 + state @ w_state / 2)

    return cell


def with_a_cell(loop):
    """The answer, with a cell made of these weights."""

    def function(inputs, state, w_inputs, w_state):
        return loop(a_cell(len(inputs), w_inputs, w_state), inputs, state)

    return function


def watched(loop):
    """How often the answer calls the cell, and in which order it reads the positions."""

    def function(inputs, state, w_inputs, w_state):
        seen = []
        if loop(a_cell(len(inputs), w_inputs, w_state, seen), inputs, state) is None:
            return None
        order = [
            next((t for t in range(inputs.shape[1]) if torch.equal(inputs[:, t], one)), -1)
            for one in seen
        ]
        return {"order": order}

    return function


def reads(answer, inputs):
    """The positions in the order in which the answer gives them to the cell."""
    seen = answer.observe(inputs, adapt=watched)
    if seen.unanswered:
        raise Unanswered("The answer still raises NotImplementedError.")
    if seen.error:
        raise Failure(f"Your answer {seen.error}", inputs)
    if seen.returned is None:
        raise Unanswered("Your answer returned None: is a `return` missing?")
    return seen.returned["order"]


def loop_traits(answer):
    seen = answer.observe(sentences(torch.Generator().manual_seed(6), 2, 6, 3), adapt=watched)
    alone = {"one sentence at a time": "it got a tensor of shape (3)" in (seen.error or "")}
    if seen.error or seen.returned is None:
        return alone
    order = seen.returned["order"]
    return alone | {
        "one call a position": len(order) == 6,
        "from the first to the last": order == sorted(order),
        "begins again": order.count(0) > 1,
    }


task = Task(
    reference.step_loop,
    number=1,
    returns=("states",),
    difficulty=1,
    minutes=6,
    section="lab4-loop",
    hints=(
        "A loop over positions. What does the cell at position t need that only the cell at "
        "position t − 1 can give it?",
        "`inputs[:, t]` is position t of all sentences, (b d). Overwrite `state` with what the "
        "cell returns, and keep each one in a list.",
        "for t in range(n): state = cell(inputs[:, t], state), then append it. In the end "
        "torch.stack the list so that positions are axis 1.",
    ),
    probes=loop_probes,
    small=loop_small,
    adapt=with_a_cell,
    differentiated=("ordinary",),
    traits=loop_traits,
)


@task.check(1)
def there_is_a_state_after_each_position(answer, rng):
    for b, n, d in ((2, 5, 3), (3, 1, 2), (1, 7, 4)):
        inputs = sentences(rng, b, n, d)
        states = answer(inputs)
        if states.shape != (b, n, d):
            raise Failure(
                f"The states have shape {shape_of(states)}; expected (b n d) = ({b} {n} {d}).",
                inputs,
            )


@task.check(3)
def each_step_begins_with_the_state_before_it(answer, rng):
    for sizes in ((2, 5, 3), (1, 8, 2), (4, 4, 4)):
        answer.matches(sentences(rng, *sizes))
    inputs = sentences(rng, 2, 6, 5, dtype=torch.float64)
    compare("states", answer(inputs), answer.expected(inputs), inputs, tolerance=1e-9)


@task.check(2)
def the_cell_is_called_once_for_each_position(answer, rng):
    for n in (1, 6, pick(rng, 9, 12, 17)):
        inputs = sentences(rng, 2, n, 3)
        order = reads(answer, inputs)
        if order != list(range(n)):
            where = ""
            if -1 in order:
                where = ", with something that is no position of the input"
            elif order:
                where = f", at the positions {', '.join(map(str, order[:12]))}"
                where += "…" * (len(order) > 12)
            raise Failure(
                f"For n = {n} your answer calls the cell {len(order)} "
                f"time{'s' * (len(order) != 1)}{where}. "
                "Once for each position, from the first to the last, is enough."
            )


@task.check(1)
def gradients_flow_back_through_all_steps(answer, rng):
    answer.matches(sentences(rng, 2, 5, 3), gradient=True)


@task.check(1)
def it_changes_nothing_but_its_result(answer, rng):
    moves_nothing(answer, sentences(rng, 2, 4, 3))


# --- faults ---------------------------------------------------------------------------------------


def last_state_with_an_axis(cell, inputs, state):
    for t in range(inputs.shape[1]):
        state = cell(inputs[:, t], state)
    return state[:, None]


@task.fault(
    "L4-LAST-STATE",
    thinks="The last state has read everything, so I return that.",
    why="It has, but the layer above, or an attention over these states, needs one vector for each "
    "position. Keep every state on the way.",
    forms=(last_state_with_an_axis,),
)
def last_state_only(cell, inputs, state):
    for t in range(inputs.shape[1]):
        state = cell(inputs[:, t], state)
    return state


@task.fault(
    "L4-NOT-CARRIED",
    thinks="Each position gives the cell its input and the state I was handed.",
    why="Then no position hears of an earlier one. What the cell returns has to go into its next "
    "call: that handing on is what makes it recurrent, and slow.",
)
def state_not_carried(cell, inputs, state):
    return torch.stack([cell(inputs[:, t], state) for t in range(inputs.shape[1])], dim=1)


def over_the_sentences_beside_each_other(cell, inputs, state):
    states = []
    for x in inputs:
        state = cell(x, state)
        states.append(state)
    return torch.stack(states, dim=1)


def as_many_steps_as_sentences(cell, inputs, state):
    states = []
    for t in range(len(inputs)):
        state = cell(inputs[:, t], state)
        states.append(state)
    return torch.stack(states, dim=1)


@task.fault(
    "L4-OVER-SENTENCES",
    thinks="`for x in inputs`, or `range(len(inputs))`, goes through the positions.",
    why="It goes along axis 0, and that is the sentences. Sentences do not wait for each other; "
    "positions do. Positions are axis 1.",
    forms=(over_the_sentences_beside_each_other, as_many_steps_as_sentences),
)
def over_the_sentences(cell, inputs, state):
    states = []
    for x in inputs:
        state = cell(x, state)
        states.append(state)
    return torch.stack(states, dim=0)


def sentence_by_sentence_without_axis(cell, inputs, state):
    rows = []
    for s in range(len(inputs)):
        mine, row = state[s], []
        for t in range(inputs.shape[1]):
            mine = cell(inputs[s, t], mine)
            row.append(mine)
        rows.append(torch.stack(row))
    return torch.stack(rows)


@task.fault(
    "L4-SENTENCE-BY-SENTENCE",
    thinks="Each sentence has a loop of its own.",
    why="Each has a chain of its own, but none waits for another's: the cell takes position t of "
    "all sentences at once, (b d). One loop, over the positions, is enough.",
    forms=(sentence_by_sentence_without_axis,),
)
def sentence_by_sentence(cell, inputs, state):
    rows = []
    for s in range(len(inputs)):
        mine, row = state[s : s + 1], []
        for t in range(inputs.shape[1]):
            mine = cell(inputs[s : s + 1, t], mine)
            row.append(mine[0])
        rows.append(torch.stack(row))
    return torch.stack(rows)


@task.fault(
    "L4-CELL-SWAPPED",
    thinks="The cell takes the state, then the input.",
    why="It takes the input first. Input and state have different matrices, so with the two "
    "swapped each is multiplied by the other's.",
)
def state_first(cell, inputs, state):
    states = []
    for t in range(inputs.shape[1]):
        state = cell(state, inputs[:, t])
        states.append(state)
    return torch.stack(states, dim=1)


@task.fault(
    "L4-STACK-AXIS",
    thinks="torch.stack puts the states together.",
    why="Along a new axis 0, unless it is told otherwise: what comes out is (n b d). The caller "
    "expects sentences first.",
)
def stacked_in_front(cell, inputs, state):
    states = []
    for t in range(inputs.shape[1]):
        state = cell(inputs[:, t], state)
        states.append(state)
    return torch.stack(states)


@task.fault(
    "L4-CONCATENATED",
    thinks="torch.cat joins the states along axis 1.",
    why="It joins along an axis that is there, and axis 1 of a state is its width: the result is "
    "one long vector a sentence. Positions need an axis of their own.",
)
def joined_along_the_width(cell, inputs, state):
    states = []
    for t in range(inputs.shape[1]):
        state = cell(inputs[:, t], state)
        states.append(state)
    return torch.cat(states, dim=1)


@task.fault(
    "L4-BEFORE-THE-STEP",
    thinks="The state of a position is the one it begins with.",
    why="That state has not read the position yet. The first would be the one you were handed, and "
    "the last input would be read for nothing.",
)
def states_before(cell, inputs, state):
    states = []
    for t in range(inputs.shape[1]):
        states.append(state)
        state = cell(inputs[:, t], state)
    return torch.stack(states, dim=1)


@task.fault(
    "L4-WITH-THE-START",
    thinks="The states are all there were, the first one included.",
    why="Then there is one more than positions, and state t belongs to input t − 1. The caller has "
    "the first state already.",
)
def with_the_start(cell, inputs, state):
    states = [state]
    for t in range(inputs.shape[1]):
        states.append(cell(inputs[:, t], states[-1]))
    return torch.stack(states, dim=1)


@task.fault(
    "L4-BACKWARD",
    thinks="The last position is the nearest, so I begin there.",
    why="Reading from the end is another model, the backward half of a bidirectional one. Here "
    "position t has read positions 0 to t.",
)
def from_the_end(cell, inputs, state):
    states = []
    for t in reversed(range(inputs.shape[1])):
        state = cell(inputs[:, t], state)
        states.insert(0, state)
    return torch.stack(states, dim=1)


@task.fault(
    "L4-ZERO-START",
    thinks="A recurrent network begins with zeros.",
    why="By default it does. But the caller hands over a state, that of an encoder for instance, "
    "and it gets lost here.",
)
def begins_with_zeros(cell, inputs, state):
    state, states = torch.zeros_like(state), []
    for t in range(inputs.shape[1]):
        state = cell(inputs[:, t], state)
        states.append(state)
    return torch.stack(states, dim=1)


@task.fault(
    "L4-BEGINS-AGAIN",
    thinks="For the state after position t, run the cell over positions 0 to t.",
    why="The states are right, but each run repeats all before it: n(n + 1)/2 calls instead of n. "
    "The state after t − 1 is there already; go on from it.",
)
def begins_again(cell, inputs, state):
    states = []
    for last in range(inputs.shape[1]):
        running = state
        for t in range(last + 1):
            running = cell(inputs[:, t], running)
        states.append(running)
    return torch.stack(states, dim=1)


@task.fault(
    "L4-DETACHED",
    thinks="Old states are only history, so I detach them to save memory.",
    why="The values are right, but learning stops at each step: no gradient flows from a position "
    "to the ones before. Cutting it now and then is a trick of training; here it cuts everywhere.",
)
def detached(cell, inputs, state):
    states = []
    for t in range(inputs.shape[1]):
        state = cell(inputs[:, t], state.detach())
        states.append(state)
    return torch.stack(states, dim=1)
