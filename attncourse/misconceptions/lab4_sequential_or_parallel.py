"""Wrong answers of lab 4. Each differs from a right one in one thought."""

import random
import statistics

import torch

from attncourse.lab.meters import count, trace
from attncourse.lab.receipts import encode
from attncourse.misconceptions import Collection

collection = Collection()
wrong = collection.misconception

# --- step_loop ----------------------------------------------------------------------------------

LOOP = "step_loop"


def last_state_with_an_axis(cell, inputs, state):
    for t in range(inputs.shape[1]):
        state = cell(inputs[:, t], state)
    return state[:, None]


@wrong(
    "L4-LAST-STATE",
    LOOP,
    thinks="The last state has read everything, so I return that.",
    why="It has, but the layer above, or an attention over these states, needs one vector for each "
    "position. Keep every state on the way.",
    section="lab4-loop",
    variants=(last_state_with_an_axis,),
)
def last_state_only(cell, inputs, state):
    for t in range(inputs.shape[1]):
        state = cell(inputs[:, t], state)
    return state


@wrong(
    "L4-NOT-CARRIED",
    LOOP,
    thinks="Each position gives the cell its input and the state I was handed.",
    why="Then no position hears of an earlier one. What the cell returns has to go into its next "
    "call: that handing on is what makes it recurrent, and slow.",
    section="lab4-loop",
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


@wrong(
    "L4-OVER-SENTENCES",
    LOOP,
    thinks="`for x in inputs`, or `range(len(inputs))`, goes through the positions.",
    why="It goes along axis 0, and that is the sentences. Sentences do not wait for each other; "
    "positions do. Positions are axis 1.",
    section="lab4-loop",
    variants=(over_the_sentences_beside_each_other, as_many_steps_as_sentences),
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


@wrong(
    "L4-SENTENCE-BY-SENTENCE",
    LOOP,
    thinks="Each sentence has a loop of its own.",
    why="Each has a chain of its own, but none waits for another's: the cell takes position t of "
    "all sentences at once, (b d). One loop, over the positions, is enough.",
    section="lab4-loop",
    variants=(sentence_by_sentence_without_axis,),
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


@wrong(
    "L4-CELL-SWAPPED",
    LOOP,
    thinks="The cell takes the state, then the input.",
    why="It takes the input first. Input and state have different matrices, so with the two "
    "swapped each is multiplied by the other's.",
    section="lab4-loop",
)
def state_first(cell, inputs, state):
    states = []
    for t in range(inputs.shape[1]):
        state = cell(state, inputs[:, t])
        states.append(state)
    return torch.stack(states, dim=1)


@wrong(
    "L4-STACK-AXIS",
    LOOP,
    thinks="torch.stack puts the states together.",
    why="Along a new axis 0, unless it is told otherwise: what comes out is (n b d). The caller "
    "expects sentences first.",
    section="lab4-loop",
)
def stacked_in_front(cell, inputs, state):
    states = []
    for t in range(inputs.shape[1]):
        state = cell(inputs[:, t], state)
        states.append(state)
    return torch.stack(states)


@wrong(
    "L4-CONCATENATED",
    LOOP,
    thinks="torch.cat joins the states along axis 1.",
    why="It joins along an axis that is there, and axis 1 of a state is its width: the result is "
    "one long vector a sentence. Positions need an axis of their own.",
    section="lab4-loop",
)
def joined_along_the_width(cell, inputs, state):
    states = []
    for t in range(inputs.shape[1]):
        state = cell(inputs[:, t], state)
        states.append(state)
    return torch.cat(states, dim=1)


@wrong(
    "L4-BEFORE-THE-STEP",
    LOOP,
    thinks="The state of a position is the one it begins with.",
    why="That state has not read the position yet. The first would be the one you were handed, and "
    "the last input would be read for nothing.",
    section="lab4-loop",
)
def states_before(cell, inputs, state):
    states = []
    for t in range(inputs.shape[1]):
        states.append(state)
        state = cell(inputs[:, t], state)
    return torch.stack(states, dim=1)


@wrong(
    "L4-WITH-THE-START",
    LOOP,
    thinks="The states are all there were, the first one included.",
    why="Then there is one more than positions, and state t belongs to input t − 1. The caller has "
    "the first state already.",
    section="lab4-loop",
)
def with_the_start(cell, inputs, state):
    states = [state]
    for t in range(inputs.shape[1]):
        states.append(cell(inputs[:, t], states[-1]))
    return torch.stack(states, dim=1)


@wrong(
    "L4-BACKWARD",
    LOOP,
    thinks="The last position is the nearest, so I begin there.",
    why="Reading from the end is another model, the backward half of a bidirectional one. Here "
    "position t has read positions 0 to t.",
    section="lab4-loop",
)
def from_the_end(cell, inputs, state):
    states = []
    for t in reversed(range(inputs.shape[1])):
        state = cell(inputs[:, t], state)
        states.insert(0, state)
    return torch.stack(states, dim=1)


@wrong(
    "L4-ZERO-START",
    LOOP,
    thinks="A recurrent network begins with zeros.",
    why="By default it does. But the caller hands over a state, that of an encoder for instance, "
    "and it gets lost here.",
    section="lab4-loop",
)
def begins_with_zeros(cell, inputs, state):
    state, states = torch.zeros_like(state), []
    for t in range(inputs.shape[1]):
        state = cell(inputs[:, t], state)
        states.append(state)
    return torch.stack(states, dim=1)


@wrong(
    "L4-BEGINS-AGAIN",
    LOOP,
    thinks="For the state after position t, run the cell over positions 0 to t.",
    why="The states are right, but each run repeats all before it: n(n + 1)/2 calls instead of n. "
    "The state after t − 1 is there already; go on from it.",
    section="lab4-loop",
)
def begins_again(cell, inputs, state):
    states = []
    for last in range(inputs.shape[1]):
        running = state
        for t in range(last + 1):
            running = cell(inputs[:, t], running)
        states.append(running)
    return torch.stack(states, dim=1)


@wrong(
    "L4-DETACHED",
    LOOP,
    thinks="Old states are only history, so I detach them to save memory.",
    why="The values are right, but learning stops at each step: no gradient flows from a position "
    "to the ones before. Cutting it now and then is a trick of training; here it cuts everywhere.",
    section="lab4-loop",
)
def detached(cell, inputs, state):
    states = []
    for t in range(inputs.shape[1]):
        state = cell(inputs[:, t], state.detach())
        states.append(state)
    return torch.stack(states, dim=1)


# --- operators ----------------------------------------------------------------------------------

OPERATORS = "operators"


@wrong(
    "L4-SHARE-OF-N",
    OPERATORS,
    thinks="Operators divided by positions is the number for each position.",
    why="The fixed part is shared out among the positions, too: attention seems to take a third of "
    "an operator a position. Compare two sizes: the difference holds no fixed part.",
    section="lab4-operators",
)
def divided_by_n(run):
    return 0, count(run, 16).total / 16


@wrong(
    "L4-FIXED-IS-ONE",
    OPERATORS,
    thinks="With one position there is only the fixed part.",
    why="One position is a position: its operators are counted as well. The fixed part is what "
    "would be left with none.",
    section="lab4-operators",
)
def fixed_at_one(run):
    one, many = count(run, 1).total, count(run, 9).total
    return one, (many - one) / 8


@wrong(
    "L4-NO-FIXED",
    OPERATORS,
    thinks="The fixed part is small, so 0.",
    why="For attention it is everything there is. It follows from the same two counts as the "
    "slope.",
    section="lab4-operators",
)
def without_the_fixed_part(run):
    return 0, (count(run, 16).total - count(run, 8).total) / 8


@wrong(
    "L4-KINDS",
    OPERATORS,
    thinks="`operations` is a dict, and its length is how many there were.",
    why="Its length is how many *kinds* there were. A loop uses the same kinds at each position, "
    "so this number does not grow. Add up how often each ran.",
    section="lab4-operators",
)
def kinds(run):
    few, many = len(count(run, 8).operations), len(count(run, 16).operations)
    return few - (many - few), (many - few) / 8


@wrong(
    "L4-VIEWS",
    OPERATORS,
    thinks="Everything in the trace is an operator.",
    why="A trace also lists transposes, slices and other views. They compute nothing and launch "
    "nothing; torch versions differ in how many there are.",
    section="lab4-operators",
)
def views_too(run):
    few, many = len(trace(run, 8)), len(trace(run, 16))
    return few - (many - few), (many - few) / 8


@wrong(
    "L4-PAIR-SWAPPED",
    OPERATORS,
    thinks="First what grows, then what is fixed.",
    why="The pair is read as fixed + per position · n. Swapped, attention becomes a loop and the "
    "loop a constant.",
    section="lab4-operators",
)
def swapped(run):
    few, many = count(run, 8).total, count(run, 16).total
    return (many - few) / 8, 2 * few - many


@wrong(
    "L4-DIFFERENCE",
    OPERATORS,
    thinks="The difference between two counts is what a position costs.",
    why="It is what eight more positions cost, if the sizes are 8 and 16. A slope is a difference "
    "over a difference.",
    section="lab4-operators",
)
def not_divided(run):
    few, many = count(run, 8).total, count(run, 16).total
    return few - 8 * (many - few), many - few


@wrong(
    "L4-BYTES",
    OPERATORS,
    thinks="The meter's first number is the count.",
    why="Its first number is the peak of memory, in bytes. Operators are in `operations`, and "
    "their sum is `total`.",
    section="lab4-operators",
)
def peak_of_memory(run):
    few, many = count(run, 8).peak_bytes, count(run, 16).peak_bytes
    return 2 * few - many, (many - few) / 8


@wrong(
    "L4-RAN-TOO-EARLY",
    OPERATORS,
    thinks="`lab.count(run(8))` counts what run(8) does.",
    why="By then it has run, and the meter gets its result. The meter has to do the calling: hand "
    "over the function and its argument separately.",
    section="lab4-operators",
)
def ran_before_the_meter(run):
    few, many = count(run(8)).total, count(run(16)).total
    return 2 * few - many, (many - few) / 8


# --- longest_chain ------------------------------------------------------------------------------

CHAIN = "longest_chain"


@wrong(
    "L4-ALL-STEPS",
    CHAIN,
    thinks="The steps are done one after the other, so I count them.",
    why="That is the work, with one worker. Steps that do not wait for each other can be done at "
    "the same time: eight positions of an attention layer are one step deep.",
    section="lab4-chain",
)
def all_steps(needs):
    return len(needs)


@wrong(
    "L4-ARROWS",
    CHAIN,
    thinks="The length of a chain is the number of its arrows.",
    why="A chain of three steps has two arrows between them. Asked for are the steps: a single one "
    "that waits for nothing still has to be done.",
    section="lab4-chain",
)
def arrows(needs):
    length = {}
    for step, before in needs.items():
        length[step] = max((length[other] + 1 for other in before), default=0)
    return max(length.values(), default=0)


@wrong(
    "L4-SHORTEST-WAIT",
    CHAIN,
    thinks="A step can begin as soon as something it waits for is done.",
    why="It waits for all of them, so the slowest decides. Take the longest of their chains.",
    section="lab4-chain",
)
def shortest_wait(needs):
    length = {}
    for step, before in needs.items():
        length[step] = 1 + min((length[other] for other in before), default=0)
    return max(length.values(), default=0)


@wrong(
    "L4-WAITS-ADDED",
    CHAIN,
    thinks="A step waits for several others, so their times add up.",
    why="They run at the same time. Who waits for two friends waits for the later one, not for the "
    "sum.",
    section="lab4-chain",
)
def waits_added(needs):
    length = {}
    for step, before in needs.items():
        length[step] = 1 + sum(length[other] for other in before)
    return max(length.values(), default=0)


@wrong(
    "L4-LAST-LISTED",
    CHAIN,
    thinks="The last step in the list is the last to be done.",
    why="It is listed last. Its own chain may be short, and the longest may end somewhere in the "
    "middle. Look at the ends of all chains.",
    section="lab4-chain",
)
def last_listed(needs):
    length = {}
    for step, before in needs.items():
        length[step] = 1 + max((length[other] for other in before), default=0)
    return list(length.values())[-1] if length else 0


@wrong(
    "L4-FIRST-ARROW",
    CHAIN,
    thinks="I follow the first step that it waits for.",
    why="A step may wait for several, and the longest chain may come through any of them. Which "
    "one is listed first says nothing.",
    section="lab4-chain",
)
def first_arrow(needs):
    length = {}
    for step, before in needs.items():
        length[step] = 1 + (length[before[0]] if before else 0)
    return max(length.values(), default=0)


@wrong(
    "L4-MOST-ARROWS",
    CHAIN,
    thinks="The step that waits for the most others decides.",
    why="Waiting for a hundred steps that are done at the same time takes one step's time. What "
    "counts is how long their chains are, not how many they are.",
    section="lab4-chain",
)
def most_arrows(needs):
    return max((len(before) for before in needs.values()), default=0)


@wrong(
    "L4-WIDTH",
    CHAIN,
    thinks="Depth is how many steps can be done at the same time.",
    why="That is the width: how many workers would have something to do. Depth is how often they "
    "have to wait for each other.",
    section="lab4-chain",
)
def widest_level(needs):
    length, size = {}, {}
    for step, before in needs.items():
        length[step] = 1 + max((length[other] for other in before), default=0)
        size[length[step]] = size.get(length[step], 0) + 1
    return max(size.values(), default=0)


@wrong(
    "L4-RECURSION",
    CHAIN,
    thinks="A function that calls itself for everything a step waits for.",
    why="The thought is right, but each call waits for the next, and Python stops at about 1,000 "
    "of them: a loop over 2,048 positions is deeper. The list is in a useful order; go forward.",
    section="lab4-chain",
)
def calls_itself(needs):
    known = {}

    def length(step):
        if step not in known:
            known[step] = 1 + max((length(other) for other in needs[step]), default=0)
        return known[step]

    return max((length(step) for step in reversed(list(needs))), default=0)


@wrong(
    "L4-NO-STEPS",
    CHAIN,
    thinks="There is always at least one step.",
    why="Where there is nothing to do, `max` of nothing raises an error. Nothing to do takes no "
    "step: 0.",
    section="lab4-chain",
)
def fails_on_nothing(needs):
    length = {}
    for step, before in needs.items():
        length[step] = 1 + max((length[other] for other in before), default=0)
    return max(length.values())


# --- multiplications ----------------------------------------------------------------------------

WORK = "multiplications"


def products(layer, n, d, rnn=2, gru=6, attention=4, tables=2):
    """Multiplications of one sentence, with these numbers of products."""
    if layer == "attention":
        return attention * n * d * d + tables * n * n * d
    return {"rnn": rnn, "gru": gru}[layer] * n * d * d


@wrong(
    "L4-ONE-PRODUCT",
    WORK,
    thinks="A recurrent step multiplies the state by a matrix.",
    why="And the input by another. Only the state's product has to wait, but both are work.",
    section="lab4-work",
)
def state_only(layer, b, n, d):
    return b * products(layer, n, d, rnn=1, gru=3)


@wrong(
    "L4-NO-GATES",
    WORK,
    thinks="A GRU is an RNN, so it costs the same.",
    why="Its two gates and its candidate each have a matrix for the input and one for the state: "
    "three times as many products.",
    section="lab4-work",
)
def gru_like_rnn(layer, b, n, d):
    return b * products(layer, n, d, gru=2)


@wrong(
    "L4-FOUR-GATES",
    WORK,
    thinks="A gated cell has four pairs of matrices.",
    why="An LSTM has four. A GRU has three: reset gate, update gate, candidate.",
    section="lab4-work",
)
def gru_like_lstm(layer, b, n, d):
    return b * products(layer, n, d, gru=8)


@wrong(
    "L4-TWO-GATES",
    WORK,
    thinks="A GRU has two gates, so two pairs of matrices.",
    why="The two gates only decide what is kept. What is new comes from the candidate, and it has "
    "a pair of matrices as well.",
    section="lab4-work",
)
def gates_only(layer, b, n, d):
    return b * products(layer, n, d, gru=4)


@wrong(
    "L4-NO-PROJECTIONS",
    WORK,
    thinks="Attention is scores and weights times values.",
    why="A layer also makes its queries, keys and values, and projects the output: four products "
    "with matrices (d d). For short sentences they are most of the work.",
    section="lab4-work",
)
def no_projections(layer, b, n, d):
    return b * products(layer, n, d, attention=0)


@wrong(
    "L4-THREE-PROJECTIONS",
    WORK,
    thinks="Queries, keys and values: three projections.",
    why="And a fourth, of the output, which mixes the heads. It is part of the layer even with one "
    "head.",
    section="lab4-work",
)
def no_output_projection(layer, b, n, d):
    return b * products(layer, n, d, attention=3)


@wrong(
    "L4-SCORES-ONLY",
    WORK,
    thinks="The n × n part of attention is qkᵀ, n²·d.",
    why="There are two products with an n × n table: the one that makes the scores, and the one "
    "that takes the weights to the values. (Nor is there a mask here that would halve both.)",
    section="lab4-work",
)
def scores_only(layer, b, n, d):
    return b * products(layer, n, d, tables=1)


@wrong(
    "L4-TABLE-WITHOUT-WIDTH",
    WORK,
    thinks="The table has n² numbers, so it costs n².",
    why="Each of its numbers is a sum over d products. The table has n² numbers and costs n²·d.",
    section="lab4-work",
)
def table_without_width(layer, b, n, d):
    looks = 2 * n * n if layer == "attention" else 0
    return b * (products(layer, n, d, tables=0) + looks)


@wrong(
    "L4-LINEAR-ATTENTION",
    WORK,
    thinks="Attention looks at all positions in one go, so it is linear in n.",
    why="In one go is depth. The work is still every position with every other: twice the n, four "
    "times the pairs.",
    section="lab4-work",
)
def linear_in_n(layer, b, n, d):
    looks = 2 * n * d if layer == "attention" else 0
    return b * (products(layer, n, d, tables=0) + looks)


@wrong(
    "L4-OPERATIONS",
    WORK,
    thinks="A multiplication comes with an addition, so twice as many.",
    why="That counts operations (FLOPs), as benchmarks do. Asked for are multiplications; the "
    "comparison is the same, the number is half.",
    section="lab4-work",
)
def twice(layer, b, n, d):
    return 2 * b * products(layer, n, d)


@wrong(
    "L4-ONE-SENTENCE",
    WORK,
    thinks="The batch goes in parallel, so it costs nothing.",
    why="In parallel is a matter of workers. The work of eight sentences is eight times that of "
    "one.",
    section="lab4-work",
)
def without_the_batch(layer, b, n, d):
    return products(layer, n, d)


@wrong(
    "L4-ONE-LONG-SENTENCE",
    WORK,
    thinks="A batch of b sentences is b·n positions.",
    why="For the projections, yes. But positions look only at their own sentence: b tables of n², "
    "not one of (b·n)².",
    section="lab4-work",
)
def one_long_sentence(layer, b, n, d):
    return products(layer, b * n, d)


# --- lab4_receipt -------------------------------------------------------------------------------

RECEIPT = "lab4_receipt"


def a_record(sizes=(128, 256, 512, 1024, 2048), samples=20):
    """A record as a T4 could have measured it."""
    chance, now, made = random.Random(4), 2.0, []
    for n in sizes:
        for b in (1, 8):
            gru = 6 * b * n * 128**2
            together = []
            for name, true, flops in (
                ("loop", 9e-5 * n, 2 * gru),
                ("fused", 1.1e-5 * n * (1 + 0.02 * b), 2 * gru),
                (
                    "attention",
                    6e-5 + b * n * (3e-8 + n * 1.4e-10),
                    2 * b * (4 * n * 128**2 + 2 * n * n * 128),
                ),
            ):
                together.append(
                    {
                        "name": name,
                        "n": n,
                        "b": b,
                        "d": 128,
                        "dtype": "float32",
                        "seconds": [],
                        "started": [],
                        "clock": "events",
                        "peak_bytes": None,
                        "flops": flops,
                        "backend": "EFFICIENT" if name == "attention" else None,
                        "error": None,
                        "wall_over_cpu": 1.0,
                        "reference_error": 2e-6,
                        "true": true,
                    }
                )
            for _ in range(samples):
                for point in together:
                    point["seconds"].append(point["true"] * chance.lognormvariate(0, 0.02))
                    point["started"].append(now)
                    now += point["true"] + 2e-3
            for point in together:
                del point["true"]
            made += together
    guess = {"crossover": 500, "batch_loop": 2, "batch_attention": 8}
    return {
        "lab": "lab4_sequential_or_parallel",
        "machine": {
            "device": "cuda",
            "name": "Tesla T4",
            "capability": [7, 5],
            "memory_bytes": 15_828_320_256,
            "l2_bytes": 4_194_304,
            "threads": 1,
            "torch": "2.11.0+cu128",
            "python": "3.13.15",
            "cuda": "12.8",
            "label": "T4",
            "ceilings": None,
            "precision": "highest",
        },
        "predictions": {
            name: {"value": value, "at": 1.0, "session": 0, "points": 0}
            for name, value in guess.items()
        },
        "points": made,
    }


def only(record, keep):
    return encode(record | {"points": [point for point in record["points"] if keep(point)]})


@wrong(
    "L4-CUT-OFF",
    RECEIPT,
    thinks="I have marked the receipt with the mouse and pasted it.",
    why="Its end is missing. It is some dozens of lines long: take all that stands between the two "
    "lines of three quotes.",
    section="lab4-receipt",
)
def cut_off():
    return encode(a_record(sizes=(128, 256, 512, 1024)))[:-300]


@wrong(
    "L4-OTHER-LAB",
    RECEIPT,
    thinks="A receipt is a receipt.",
    why="This one is of another lab. The file of this lab has its name in the file name, and so "
    "has what is printed above the receipt.",
    section="lab4-receipt",
)
def of_another_lab():
    return encode(a_record(sizes=(128, 256, 512, 1024)) | {"lab": "lab2_quadratic_wall"})


@wrong(
    "L4-NO-PREDICTION",
    RECEIPT,
    thinks="The measurement is what counts; a guess adds nothing.",
    why="Who has not guessed is not surprised, and surprise is what one learns from. A prediction "
    "need not be right; it has to be there before the first measurement.",
    section="lab4-predict",
)
def without_predictions():
    return encode(a_record(sizes=(128, 256, 512, 1024)) | {"predictions": {}})


@wrong(
    "L4-AFTERWARD",
    RECEIPT,
    thinks="I have filled in the predictions when I knew the numbers.",
    why="Then they are results. The record notes how many points had been measured. Start a new "
    "file, and guess first: wrong guesses cost nothing.",
    section="lab4-predict",
)
def predicted_afterward():
    record = a_record(sizes=(128, 256, 512, 1024))
    for made in record["predictions"].values():
        made["points"] = 30
    return encode(record)


@wrong(
    "L4-ONE-SENTENCE-ONLY",
    RECEIPT,
    thinks="One sentence is the case that matters, so b = 1 was enough.",
    why="With one sentence a machine is half idle, and whoever can use idle workers looks good. "
    "Eight sentences show what happens when there is work for all.",
    section="lab4-batch",
)
def one_sentence():
    return only(a_record(), lambda point: point["b"] == 1)


@wrong(
    "L4-NO-LOOP",
    RECEIPT,
    thinks="The loop is slow anyway, so I have left it out.",
    why="Without it nobody can say what the fused call gains, nor how much of the difference is "
    "Python and how much is the model.",
    section="lab4-receipt",
)
def no_loop():
    return only(a_record(), lambda point: point["name"] != "loop")


@wrong(
    "L4-NO-FUSED",
    RECEIPT,
    thinks="A loop in Python against attention: that is the comparison.",
    why="It compares Python with a library as much as two models. The fused GRU computes the very "
    "same states in one call; that is the fair rival.",
    section="lab4-receipt",
)
def no_fused():
    return only(a_record(), lambda point: point["name"] != "fused")


@wrong(
    "L4-FEW-SIZES",
    RECEIPT,
    thinks="Two or three sizes show who wins.",
    why="Who wins depends on n: that is the question of this lab. Four sizes or more, over a range "
    "of 8, show where it turns.",
    section="lab4-receipt",
)
def three_sizes():
    return encode(a_record(sizes=(512, 1024, 2048)))


@wrong(
    "L4-QUICK-RUN",
    RECEIPT,
    thinks="The quick run has printed a receipt, too.",
    why="It only tries out whether the cells work. With 128 positions and fewer it shows nothing "
    "of where the lines cross. Start without ATTNCOURSE_QUICK and measure.",
    section="lab4-receipt",
)
def of_a_quick_run():
    return encode(a_record(sizes=(16, 32, 64, 128)))


@wrong(
    "L4-NOT-COMPARED",
    RECEIPT,
    thinks="Speed is what is measured here; the results will be right.",
    why="A fast wrong answer has no speed. Compare each result with one in float64 before you time "
    "it, and record the difference.",
    section="lab4-receipt",
)
def not_compared():
    record = a_record(sizes=(128, 256, 512, 1024))
    for point in record["points"]:
        point["reference_error"] = None
    return encode(record)


@wrong(
    "L4-OTHER-WEIGHTS",
    RECEIPT,
    thinks="The loop has a cell of its own; the time does not depend on its weights.",
    why="The time may not, but then nobody can tell whether the loop does the same steps. Give "
    "both the same weights: their states must agree.",
    section="lab4-receipt",
)
def other_weights():
    record = a_record(sizes=(128, 256, 512, 1024))
    for point in record["points"]:
        if point["name"] == "loop":
            point["reference_error"] = 0.8
    return encode(record)


@wrong(
    "L4-MILLISECONDS",
    RECEIPT,
    thinks="elapsed_time gives the time, so that is what I record.",
    why="It gives milliseconds, and a record holds seconds. With these numbers each sample would "
    "last longer than the time until the next began.",
    section="lab4-receipt",
)
def in_milliseconds():
    record = a_record(sizes=(128, 256, 512, 1024))
    for point in record["points"]:
        point["seconds"] = [1000 * each for each in point["seconds"]]
    return encode(record)


@wrong(
    "L4-NO-SYNCHRONIZE",
    RECEIPT,
    thinks="I have stopped the clock when the call came back.",
    why="On a GPU a call comes back when the work is queued. Attention over 2,048 positions would "
    "beat the peak of the machine. Let the GPU's own events hold the clock.",
    section="lab4-receipt",
)
def launch_times():
    record, chance = a_record(sizes=(128, 256, 512, 1024, 2048)), random.Random(8)
    for point in record["points"]:
        if point["name"] == "attention":
            point["seconds"] = [4e-5 * chance.lognormvariate(0, 0.05) for _ in range(20)]
            point["started"] = [round(each, 3) for each in point["started"]]
        else:  # thinner, so that it fits
            point["started"] = [round(each, 2) for each in point["started"]]
    return encode(record)


@wrong(
    "L4-ONE-AFTER-THE-OTHER",
    RECEIPT,
    thinks="First all runs of one, then all runs of the next.",
    why="A GPU's clock falls as it heats up, so what comes later looks slower. In turn, A B C A B "
    "C, all suffer alike; `lab.compare` does that.",
    section="lab4-receipt",
)
def one_after_the_other():
    record = a_record(sizes=(128, 256, 512, 1024))
    now = 2.0
    for name in ("loop", "fused", "attention"):
        for point in record["points"]:
            if point["name"] == name:
                point["started"] = [now + i * 0.5 for i in range(len(point["seconds"]))]
                now += 20.0
    return encode(record)


@wrong(
    "L4-HALF-AGAINST-FULL",
    RECEIPT,
    thinks="The GRU in float32, attention in float16, as everybody uses it.",
    why="Half the bits is no better model. Part of the difference is then the format. Compare all "
    "in the same.",
    section="lab4-receipt",
)
def two_formats():
    record = a_record(sizes=(128, 256, 512, 1024))
    for point in record["points"]:
        if point["name"] == "attention":
            point["dtype"] = "float16"
    return encode(record)


@wrong(
    "L4-THREE-SAMPLES",
    RECEIPT,
    thinks="Three runs and the best of them will do.",
    why="Three numbers cannot show their own noise. Take 20 or more; at the sizes of this lab that "
    "costs seconds.",
    section="lab4-receipt",
)
def three_samples():
    return encode(a_record(samples=3))


# --- verdict ------------------------------------------------------------------------------------

VERDICT = "verdict"


def middles(record, average=statistics.median):
    """(name, b) -> n -> one time."""
    time = {}
    for point in record["points"]:
        if not point["error"]:
            key = point["name"], point["b"]
            time.setdefault(key, {})[point["n"]] = average(point["seconds"])
    return time


def behind(time, other, b):
    """n -> whether attention takes longer, ascending."""
    ours, theirs = time["attention", b], time[other, b]
    return {n: ours[n] > theirs[n] for n in sorted(ours.keys() & theirs.keys())}


def from_there_on(slower):
    found = None
    for n, is_slower in reversed(slower.items()):
        if not is_slower:
            break
        found = n
    return found


def batch(time, name, pick=max):
    n = pick(time[name, 1].keys() & time[name, 8].keys())
    return time[name, 8][n] / time[name, 1][n]


def held(predicted, at_8, factor=2.0):
    return predicted == 0 if not at_8 else at_8 / factor <= predicted <= factor * at_8


def summary(record, time=None, crossover=from_there_on, rival="fused", **instead):
    """Right conclusions from these times, less what is replaced."""
    time = time or middles(record)
    at_1, at_8 = (crossover(behind(time, rival, b)) for b in (1, 8))
    slower = [s for o in ("loop", "fused") for b in (1, 8) for s in behind(time, o, b).values()]
    return {
        "always_faster": not any(slower),
        "crossover_1": at_1,
        "crossover_8": at_8,
        "batch_loop": batch(time, "loop"),
        "batch_attention": batch(time, "attention"),
        "held": held(record["predictions"]["crossover"]["value"], at_8),
    } | instead


@wrong(
    "L4-MOSTLY",
    VERDICT,
    thinks="Attention is faster at most points, so it is always faster.",
    why="Always is a strong word: a single slower point refutes it, and no number of faster ones "
    "mends that.",
    section="lab4-verdict",
)
def at_most_points(record):
    time = middles(record)
    slower = [s for o in ("loop", "fused") for b in (1, 8) for s in behind(time, o, b).values()]
    return summary(record, always_faster=sum(slower) < len(slower) / 2)


@wrong(
    "L4-AT-THE-END",
    VERDICT,
    thinks="What counts is the largest n: who is ahead there is faster.",
    why="At the largest n of the record, yes. The statement says always, so the small sizes can "
    "refute it as well as the large ones.",
    section="lab4-verdict",
)
def at_the_largest(record):
    time = middles(record)
    ahead = not any(
        list(behind(time, other, b).values())[-1] for other in ("loop", "fused") for b in (1, 8)
    )
    return summary(record, always_faster=ahead)


@wrong(
    "L4-BEATS-THE-LOOP",
    VERDICT,
    thinks="The recurrent network is the loop, so I compare with that.",
    why="Much of the loop's time is Python. The fused call runs the same steps without it; who "
    "claims that attention is faster has to beat that one, too.",
    section="lab4-verdict",
)
def against_the_loop(record):
    time = middles(record)
    slower = [s for b in (1, 8) for s in behind(time, "loop", b).values()]
    return summary(record, always_faster=not any(slower))


@wrong(
    "L4-BEATS-THE-FUSED",
    VERDICT,
    thinks="The fused GRU is the faster rival, so beating it is enough.",
    why="Usually it is the faster one. The records decide that, not we: in one of them the loop is "
    "ahead at one size.",
    section="lab4-verdict",
)
def against_the_fused(record):
    time = middles(record)
    slower = [s for b in (1, 8) for s in behind(time, "fused", b).values()]
    return summary(record, always_faster=not any(slower))


def complete(time):
    """Only the sizes at which all three have a time."""
    both = {
        b: set.intersection(*(set(time[name, b]) for name in ("loop", "fused", "attention")))
        for b in (1, 8)
    }
    return {
        (name, b): {n: seconds for n, seconds in row.items() if n in both[b]}
        for (name, b), row in time.items()
    }


def of_complete_sizes(record):
    return summary(record, complete(middles(record)))


@wrong(
    "L4-ALL-THREE",
    VERDICT,
    thinks="Sizes at which one of the three has no time are left out.",
    why="A comparison needs two. Where the fused GRU ran out of memory, the loop may be ahead of "
    "attention, and that refutes as well. Leave out only what is missing itself.",
    section="lab4-verdict",
    variants=(of_complete_sizes,),
)
def compared_where_all_three_have_times(record):
    time = complete(middles(record))
    slower = [s for o in ("loop", "fused") for b in (1, 8) for s in behind(time, o, b).values()]
    return summary(record, always_faster=not any(slower))


@wrong(
    "L4-NO-TIMES",
    VERDICT,
    thinks="Every point has samples.",
    why="What ran out of memory has none, and there is no median of an empty list. Leave out the "
    "points with an error before you take medians.",
    section="lab4-verdict",
)
def medians_of_everything(record):
    time = {}
    for point in record["points"]:
        key = point["name"], point["b"]
        time.setdefault(key, {})[point["n"]] = statistics.median(point["seconds"])
    return summary(record, time)


@wrong(
    "L4-ONE-SENTENCE-VERDICT",
    VERDICT,
    thinks="One sentence tells whether attention is faster.",
    why="With one sentence a machine has idle workers, which attention can use and a chain cannot. "
    "With eight there is work for all. Look at both.",
    section="lab4-batch",
)
def of_one_sentence(record):
    time = middles(record)
    slower = [s for other in ("loop", "fused") for s in behind(time, other, 1).values()]
    return summary(record, always_faster=not any(slower))


@wrong(
    "L4-EVERYBODY-KNOWS",
    VERDICT,
    thinks="Attention is parallel, so it is always faster.",
    why="This is the statement to be tested. It speaks of depth; a record also shows work and "
    "workers. Read the times.",
    section="lab4-verdict",
)
def everybody_knows(record):
    return summary(record, always_faster=True)


def first_slower(slower):
    return next((n for n, is_slower in slower.items() if is_slower), None)


@wrong(
    "L4-FIRST-SLOWER",
    VERDICT,
    thinks="The crossover is the first n at which attention is slower.",
    why="It may be ahead again later: at small sizes a fixed cost can decide. From the crossover "
    "on it stays behind, so look from the large end.",
    section="lab4-crossover",
)
def first_slower_size(record):
    return summary(record, crossover=first_slower)


def last_faster(slower):
    faster = [n for n, is_slower in slower.items() if not is_slower]
    return max(faster, default=None) if any(slower.values()) else None


def noted_before_it_is_asked(slower):
    found = None
    for n, is_slower in reversed(slower.items()):
        found = n
        if not is_slower:
            break
    return found


def one_size_before(slower):
    found, sizes = from_there_on(slower), list(slower)
    return found and sizes[max(sizes.index(found) - 1, 0)]


def noted_too_early(record):
    return summary(record, crossover=noted_before_it_is_asked)


def one_size_too_early(record):
    return summary(record, crossover=one_size_before)


@wrong(
    "L4-LAST-FASTER",
    VERDICT,
    thinks="The crossover is the last n at which attention is ahead.",
    why="There it is still ahead. Asked for is the first n at which it has fallen behind for good, "
    "one size later.",
    section="lab4-crossover",
    variants=(noted_too_early, one_size_too_early),
)
def last_faster_size(record):
    return summary(record, crossover=last_faster)


@wrong(
    "L4-LARGEST-N",
    VERDICT,
    thinks="If they do not cross, the crossover is the largest n.",
    why="Nobody has seen them cross there. Say None: beyond the record there is no measurement.",
    section="lab4-crossover",
)
def largest_if_none(record):
    return summary(record, crossover=lambda slower: from_there_on(slower) or max(slower))


@wrong(
    "L4-CROSSES-THE-LOOP",
    VERDICT,
    thinks="The crossover is where attention meets the loop.",
    why="The loop carries the price of Python, so it is met later. Asked for is the fused GRU.",
    section="lab4-crossover",
)
def crossover_with_the_loop(record):
    return summary(record, rival="loop")


def behind_either(time, b):
    """n -> whether attention takes longer than the faster of the two."""
    loop, fused = behind(time, "loop", b), behind(time, "fused", b)
    return {n: fused[n] or loop.get(n, False) for n in fused}


@wrong(
    "L4-FASTER-RIVAL",
    VERDICT,
    thinks="The crossover is where the faster of loop and fused GRU overtakes.",
    why="For “always” both rivals count. The crossover is that of the fused GRU alone, so that it "
    "says something about two layers and not about which program is good.",
    section="lab4-crossover",
)
def against_the_faster(record):
    time = middles(record)
    at_1, at_8 = (from_there_on(behind_either(time, b)) for b in (1, 8))
    guess = record["predictions"]["crossover"]["value"]
    return summary(record, crossover_1=at_1, crossover_8=at_8, held=held(guess, at_8))


@wrong(
    "L4-EVEN-AT-D",
    VERDICT,
    thinks="Work is even at n = d, so they cross at 128.",
    why="Work says where the multiplications are even. The times follow only if each "
    "multiplication takes as long in both, and small steps are slow. Read the record.",
    section="lab4-work",
)
def even_at_d(record):
    d = record["points"][0]["d"]
    guess = record["predictions"]["crossover"]["value"]
    return summary(record, crossover_1=d, crossover_8=d, held=held(guess, d))


@wrong(
    "L4-BATCHES-SWAPPED",
    VERDICT,
    thinks="Crossover for eight first, then for one.",
    why="The names say which is which: crossover_1 is that of one sentence. With more sentences it "
    "comes earlier, as there is less idle time to use.",
    section="lab4-batch",
)
def batches_swapped(record):
    right = summary(record)
    return right | {"crossover_1": right["crossover_8"], "crossover_8": right["crossover_1"]}


@wrong(
    "L4-MEAN",
    VERDICT,
    thinks="The time of a size is the mean of its samples.",
    why="One disturbed sample moves a mean anywhere, and seven of 21 nearly double it: enough to "
    "move a crossover. A median stays where most samples are.",
    section="lab4-verdict",
)
def means(record):
    return summary(record, middles(record, statistics.mean))


@wrong(
    "L4-FIRST-SAMPLE",
    VERDICT,
    thinks="The first sample is the time.",
    why="It is one of many, and the one that most likely holds what only a first call does. Use "
    "all of them.",
    section="lab4-verdict",
)
def first_samples(record):
    return summary(record, middles(record, lambda samples: samples[0]))


@wrong(
    "L4-SLOWEST",
    VERDICT,
    thinks="To be on the safe side, the slowest sample counts.",
    why="The slowest sample tells of whatever disturbed it, another program for instance. It is no "
    "safe side; it is somebody else's time.",
    section="lab4-verdict",
)
def slowest_samples(record):
    return summary(record, middles(record, max))


@wrong(
    "L4-BATCH-SHARE",
    VERDICT,
    thinks="Eight sentences take less for each, so I divide by eight.",
    why="That is the time a sentence costs in a batch. Asked for is how many times as long the "
    "whole batch takes: 8 if nothing is gained, 1 if the others ride along for free.",
    section="lab4-batch",
)
def per_sentence(record):
    right = summary(record)
    return right | {name: right[name] / 8 for name in ("batch_loop", "batch_attention")}


@wrong(
    "L4-BATCH-INVERTED",
    VERDICT,
    thinks="Time with one sentence over time with eight.",
    why="That is the inverse. The number should say how many times as long eight take.",
    section="lab4-batch",
)
def one_over_eight(record):
    right = summary(record)
    return right | {name: 1 / right[name] for name in ("batch_loop", "batch_attention")}


@wrong(
    "L4-BATCH-SMALLEST-N",
    VERDICT,
    thinks="The batch numbers can be taken at any n, say the smallest.",
    why="At the smallest n fixed costs hide what eight sentences really cost. Take the largest n "
    "that has both times.",
    section="lab4-batch",
)
def batch_at_the_smallest(record):
    time = middles(record)
    return summary(
        record,
        batch_loop=batch(time, "loop", min),
        batch_attention=batch(time, "attention", min),
    )


@wrong(
    "L4-BATCH-COMMON-N",
    VERDICT,
    thinks="Both batch numbers belong to the largest n that all three have.",
    why="Each compares a layer with itself, so it needs no other's time. Where attention ran out "
    "of memory, the loop may go on: take its own largest n.",
    section="lab4-batch",
)
def batch_at_a_common_size(record):
    time = middles(record)
    n = max(set.intersection(*map(set, time.values())))
    ratio = {name: time[name, 8][n] / time[name, 1][n] for name in ("loop", "attention")}
    return summary(record, batch_loop=ratio["loop"], batch_attention=ratio["attention"])


@wrong(
    "L4-BATCH-ASSUMED",
    VERDICT,
    thinks="Eight sentences are eight times the work, so both numbers are 8.",
    why="Eight times the work takes eight times as long only if nobody was idle before. That is "
    "what the record tells.",
    section="lab4-batch",
)
def eight_times(record):
    return summary(record, batch_loop=8.0, batch_attention=8.0)


@wrong(
    "L4-HELD-EXACTLY",
    VERDICT,
    thinks="A prediction holds if it is the right number.",
    why="The sizes are factors of 2 apart, so nobody can hit better than that. A factor of 2 "
    "either way was agreed before, and that is what makes it a test.",
    section="lab4-predict",
)
def held_exactly(record):
    right = summary(record)
    guess = record["predictions"]["crossover"]["value"]
    return right | {"held": guess == (right["crossover_8"] or 0)}


@wrong(
    "L4-HELD-OTHER-BATCH",
    VERDICT,
    thinks="The prediction is compared with crossover_1.",
    why="What was predicted is the crossover for eight sentences at once. That of one sentence is "
    "another number.",
    section="lab4-predict",
)
def held_for_one_sentence(record):
    right = summary(record)
    guess = record["predictions"]["crossover"]["value"]
    return right | {"held": held(guess, right["crossover_1"])}


@wrong(
    "L4-HELD-ONE-SIDED",
    VERDICT,
    thinks="The prediction held if the crossover came no earlier than predicted.",
    why="A factor of 2 goes both ways: who predicts 1 when it is 1,024 has not been right.",
    section="lab4-predict",
)
def held_one_sided(record):
    right = summary(record)
    guess = record["predictions"]["crossover"]["value"]
    at_8 = right["crossover_8"]
    return right | {"held": guess <= 2 * at_8 if at_8 else guess == 0}


@wrong(
    "L4-NEVER-HELD",
    VERDICT,
    thinks="Without a crossover no prediction can have held.",
    why="Who wrote 0 said that there would be none, and was right. Compare with what was "
    "predicted, that too.",
    section="lab4-predict",
)
def never_held_without(record):
    right = summary(record)
    return right | {"held": right["held"] if right["crossover_8"] else False}
