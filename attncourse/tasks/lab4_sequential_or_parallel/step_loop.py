import torch

from attncourse.checks.answer import Failure, Unanswered, compare, describe, moves_nothing, shape_of
from attncourse.checks.device import elsewhere, mixed, stays_with
from attncourse.checks.inputs import integers, normal
from attncourse.checks.task import Task
from attncourse.lab import lab4_sequential_or_parallel as reference
from attncourse.tasks import as_is
from attncourse.tasks.lab4_sequential_or_parallel import pick


def sentences(rng, b, n, d, make=normal, **options):
    weights = {} if make is integers else options
    return {
        "inputs": make(rng, b, n, d, **options),
        "state": make(rng, b, d, **options),
        "w_inputs": make(rng, d, d, **weights) / 2,
        "w_state": make(rng, d, d, **weights) / 2,
    }


def probes(rng):
    return {
        "ordinary": sentences(rng, 2, 5, 3),
        "square": sentences(rng, 4, 4, 4),
        "one sentence": sentences(rng, 1, 6, 2),
        "one position": sentences(rng, 3, 1, 2),
        "double": sentences(rng, 2, 3, 5, dtype=torch.float64),
    }


def small(rng):
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
            seen.append([each.detach().clone() for each in (inputs, state)])
        return torch.tanh(inputs @ w_inputs + state @ w_state)

    return cell


def with_a_cell(loop):
    """The answer, with a cell made of these weights."""

    def function(inputs, state, w_inputs, w_state):
        return loop(a_cell(len(inputs), w_inputs, w_state), inputs, state)

    return function


def on_another_device(loop):
    return elsewhere(with_a_cell(loop))


def position(inputs, call):
    """Where in the inputs a call of the cell found one of its arguments; -1 for nowhere."""
    positions = range(inputs.shape[1])
    return next((t for one in call for t in positions if torch.equal(inputs[:, t], one)), -1)


def watched(loop):
    """How often the answer calls the cell, and in which order it reads the positions.

    "order" goes by the first arguments and by what the inputs are afterward; "read" by both
    arguments, since a swapped call reads a position, too, and by what the inputs were before.
    """

    def function(inputs, state, w_inputs, w_state):
        seen, kept = [], inputs.clone()
        if loop(a_cell(len(inputs), w_inputs, w_state, seen), inputs, state) is None:
            return None
        return {
            "order": [position(inputs, call[:1]) for call in seen],
            "read": [position(kept, call) for call in seen],
        }

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
    return seen.returned["read"]


def traits(answer):
    inputs = sentences(torch.Generator().manual_seed(6), 2, 6, 3)
    seen = answer.observe(inputs, adapt=watched)
    alone = {
        "one sentence at a time": "it got a tensor of shape (3)" in (seen.error or ""),
        "mixes devices": bool(mixed(answer, inputs, on_another_device)),
    }
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
    probes=probes,
    small=small,
    adapt=with_a_cell,
    differentiated=("ordinary",),
    traits=traits,
)


@task.check(1, "the states come as one tensor (b n d)")
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
def every_state_is_right(answer, rng):
    for sizes in ((2, 5, 3), (1, 8, 2), (4, 4, 4)):
        answer.matches(sentences(rng, *sizes))
    inputs = sentences(rng, 2, 6, 5, dtype=torch.float64)
    compare("states", answer(inputs), answer.expected(inputs), inputs, tolerance=1e-9)


@task.check(2)
def the_cell_is_called_once_for_each_position_from_the_first_to_the_last(answer, rng):
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
                "It should be called once for each position, from the first to the last."
            )


@task.check(1)
def gradients_are_right_through_all_steps(answer, rng):
    answer.matches(sentences(rng, 2, 5, 3), gradient=True)


@task.check(1)
def new_tensors_are_made_where_its_inputs_are(answer, rng):
    stays_with(answer, sentences(rng, 2, 4, 3), on_another_device)


@task.check(1)
def it_changes_nothing_but_its_result(answer, rng):
    moves_nothing(answer, sentences(rng, 2, 4, 3))


# --- steps --------------------------------------------------------------------------------------


@task.steps
class Loop:
    def start(state):
        return state

    def positions(inputs):
        return range(inputs.shape[1])

    def before(states):
        return states[-1]

    def step(cell, inputs, state, t):
        return cell(inputs[:, t], state)

    def keep(states):
        return states[1:]

    def join(states):
        return torch.stack(states, dim=1)

    def __call__(self, cell, inputs, state):
        states = [self.start(state)]
        for t in self.positions(inputs):
            states.append(self.step(cell, inputs, self.before(states), t))
        return self.join(self.keep(states))


def into_a_float32_table(states):
    (b, d), n = states[0].shape, len(states)
    table = torch.zeros(b, n, d)
    for t, state in enumerate(states):
        table[:, t] = state
    return table


def into_a_table(states):
    (b, d), n = states[0].shape, len(states)
    table = torch.zeros(b, n, d, dtype=states[0].dtype)
    for t, state in enumerate(states):
        table[:, t] = state
    return table


# --- faults -------------------------------------------------------------------------------------

task.fault("C-ON-THE-CPU", join=(into_a_table, into_a_float32_table))


def from_the_first_on(cell, inputs, state, last):
    for t in range(last + 1):
        state = cell(inputs[:, t], state)
    return state


def into_float32(states):
    table = torch.zeros(len(states[0]), len(states), states[0].shape[1], device=states[0].device)
    for t, state in enumerate(states):
        table[:, t] = state
    return table


def into_its_input(cell, inputs, state, t):
    inputs[:, t] = cell(inputs[:, t].clone(), state)
    return inputs[:, t]


def over_a_sentence(cell, inputs, state, s):
    return cell(inputs[s], state)


task.fault("L4-LAST-STATE", join=(lambda states: states[-1], lambda states: states[-1][:, None]))
task.fault("L4-NOT-CARRIED", before=lambda states: states[0])
task.fault(
    "L4-OVER-SENTENCES",
    positions=lambda inputs: range(len(inputs)),
    step=(over_a_sentence, over_a_sentence, ...),
    join=(lambda states: torch.stack(states), ...),
)
task.fault("L4-CELL-SWAPPED", step=lambda cell, inputs, state, t: cell(state, inputs[:, t]))
task.fault("C-FLOAT32", join=into_float32)
into_inputs = task.fault("L4-INTO-INPUTS", step=into_its_input)


@into_inputs
class ReturnsItsInput(Loop):
    def __call__(self, cell, inputs, state):
        for t in range(inputs.shape[1]):
            state = cell(inputs[:, t].clone(), state)
            inputs[:, t] = state
        return inputs


task.fault("L4-STACK-AXIS", join=lambda states: torch.stack(states))
task.fault(
    "L4-VIEWED", join=lambda states: torch.stack(states).view(*states[0].shape[:1], len(states), -1)
)
task.fault("L4-CONCATENATED", join=lambda states: torch.cat(states, dim=1))
task.fault("L4-BEFORE-THE-STEP", keep=lambda states: states[:-1])
task.fault("L4-WITH-THE-START", keep=lambda states: states)
task.fault(
    "L4-BACKWARD",
    positions=lambda inputs: reversed(range(inputs.shape[1])),
    keep=(lambda states: states[:0:-1], ...),
)
task.fault("L4-ZERO-START", start=lambda state: torch.zeros_like(state))
task.fault("L4-BEGINS-AGAIN", before=lambda states: states[0], step=from_the_first_on)
task.fault("L4-DETACHED", before=lambda states: states[-1].detach())
task.fault("C-DETACHED", join=lambda states: torch.stack(states, dim=1).detach())
task.fault("L4-START-IS-FIRST", positions=lambda inputs: range(1, inputs.shape[1]), keep=as_is)
task.fault(
    "L4-ONE-STEP-LESS",
    positions=(
        lambda inputs: range(inputs.shape[1] - 1),
        lambda inputs: range(inputs.shape[1] - 1),
        lambda inputs: range(1, inputs.shape[1]),
        lambda inputs: range(1, inputs.shape[1]),
    ),
    keep=(
        ...,
        lambda states: [*states[1:], torch.zeros_like(states[0])],
        ...,
        lambda states: [torch.zeros_like(states[0]), *states[1:]],
    ),
)
task.fault(
    "L4-CELL-GIVES-CHANGE", step=lambda cell, inputs, state, t: state + cell(inputs[:, t], state)
)
task.fault("L4-LIST", join=as_is)
task.fault("L4-WITH-LAST", join=lambda states: (torch.stack(states, dim=1), states[-1]))

task.fault(
    "L4-CALLED-TWICE",
    step=lambda cell, inputs, state, t: (cell(inputs[:, t], state), cell(inputs[:, t], state))[1],
)
task.fault("L4-SAME-TENSOR", keep=lambda states: states[-1:] * (len(states) - 1))
by_sentence = task.fault("L4-SENTENCE-BY-SENTENCE")


@by_sentence
class SentenceBySentence(Loop):
    def __call__(self, cell, inputs, state):
        of_one = super().__call__
        rows = zip(inputs.split(1), state.split(1), strict=True)
        return torch.cat([of_one(cell, *row) for row in rows])


@by_sentence
class WithoutItsAxis(SentenceBySentence):
    def step(cell, inputs, state, t):
        return cell(inputs[0, t], state[0])[None]
