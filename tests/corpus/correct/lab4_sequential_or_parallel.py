"""Right answers of lab 4 in many styles: the judge must accept every one of them, on every seed."""

import functools
import itertools
import math
from collections import Counter, defaultdict, deque
from fractions import Fraction

import einops
import numpy as np
import torch

from attncourse import lab
from attncourse.lab.receipts import encode, wrap
from attncourse.tasks.lab4_sequential_or_parallel.lab4_receipt import a_record
from corpus.correct.lab2_quadratic_wall import shortest_or_middle

# --- step_loop


def index_and_append(cell, inputs, state):
    states = []
    for t in range(inputs.shape[1]):
        state = cell(inputs[:, t], state)
        states.append(state)
    return torch.stack(states, dim=1)


def unbound(cell, inputs, state):
    states = [state]
    for position in torch.unbind(inputs, dim=1):
        states.append(cell(position, states[-1]))
    return torch.stack(states[1:], dim=-2)


def positions_in_front(cell, inputs, state):
    states = []
    for position in inputs.transpose(0, 1):
        state = cell(position, state)
        states.append(state)
    return torch.stack(states).transpose(0, 1)


def by_accumulate(cell, inputs, state):
    chain = itertools.accumulate(inputs.unbind(1), lambda h, x: cell(x, h), initial=state)
    return torch.stack(list(chain)[1:], dim=1)


def joined_with_an_axis(cell, inputs, state):
    rows = []
    for t in range(inputs.size(1)):
        rows.append(state := cell(inputs.select(1, t), state))
    return torch.cat([row.unsqueeze(1) for row in rows], dim=1)


def calls_the_rest(cell, inputs, state):
    first = cell(inputs[:, 0], state)[:, None]
    if inputs.shape[1] == 1:
        return first
    return torch.cat([first, calls_the_rest(cell, inputs[:, 1:], first[:, 0])], dim=1)


def filled_in(cell, inputs, state):
    states = torch.zeros_like(inputs)
    for t in range(inputs.shape[1]):
        state = cell(inputs[:, t], state)
        states[:, t] = state
    return states


def by_einops(cell, inputs, state):
    states = []
    for position in einops.rearrange(inputs, "b n d -> n b d"):
        state = cell(position, state)
        states.append(state)
    return einops.rearrange(states, "n b d -> b n d")


# --- operators


def two_points(run):
    few, many = lab.count(run, 8).total, lab.count(run, 16).total
    slope = (many - few) / 8
    return few - 8 * slope, slope


def one_and_two(run):
    one, two = lab.count(run, 1).total, lab.count(run, 2).total
    return 2 * one - two, two - one


def far_apart(run):
    counts = {n: lab.count(lambda n=n: run(n)).total for n in (3, 200)}
    slope = (counts[200] - counts[3]) / 197
    return [counts[3] - 3 * slope, slope]


def by_polyfit(run):
    sizes = [4, 8, 16, 32]
    slope, fixed = np.polyfit(sizes, [lab.count(run, n).total for n in sizes], 1)
    return float(fixed), float(slope)


def summed_by_hand(run):
    few, many = (sum(lab.count(run, n).operations.values()) for n in (5, 10))
    return 2 * few - many, (many - few) / 5


def what_came_on_top(run):
    few, many = (Counter(lab.count(run, n).operations) for n in (8, 9))
    slope = (many - few).total()
    return few.total() - 8 * slope, slope


def as_tensors(run):
    few, many = (torch.tensor(float(lab.count(run, n).total)) for n in (8, 16))
    slope = (many - few) / 8
    return torch.stack([few - 8 * slope, slope]).unbind()


def as_fractions(run):
    few, many = lab.count(run, 7).total, lab.count(run, 20).total
    slope = Fraction(many - few, 13)
    return few - 7 * slope, slope


# --- longest_chain


def forward(needs):
    length = {}
    for step, before in needs.items():
        length[step] = 1 + max((length[other] for other in before), default=0)
    return max(length.values(), default=0)


def with_ifs(needs):
    length, longest = {}, 0
    for step in needs:
        mine = 1
        for other in needs[step]:
            if length[other] + 1 > mine:
                mine = length[other] + 1
        length[step] = mine
        longest = max(longest, mine)
    return longest


def with_a_zero(needs):
    length = {}
    for step, before in needs.items():
        length[step] = max([0, *(length[other] for other in before)]) + 1
    return max([0, *length.values()])


def level_by_level(needs):
    waits = {step: len(before) for step, before in needs.items()}
    then = defaultdict(list)
    for step, before in needs.items():
        for other in before:
            then[other].append(step)
    ready, levels = [step for step, count in waits.items() if count == 0], 0
    while ready:
        levels, following = levels + 1, []
        for step in ready:
            for later in then[step]:
                waits[later] -= 1
                if waits[later] == 0:
                    following.append(later)
        ready = following
    return levels


def from_the_other_end(needs):
    rest = dict.fromkeys(needs, 1)
    for step in reversed(needs):
        for other in needs[step]:
            rest[other] = max(rest[other], rest[step] + 1)
    return max(rest.values(), default=0)


def by_reduce(needs):
    def longer(length, item):
        step, before = item
        return length | {step: 1 + max(map(length.__getitem__, before), default=0)}

    if len(needs) < 500:  # a new dict each time takes n²
        return max(functools.reduce(longer, needs.items(), {}).values(), default=0)
    return forward(needs)


def with_a_queue(needs):
    length, queue = {}, deque(needs)
    while queue:
        step = queue.popleft()
        if all(other in length for other in needs[step]):
            length[step] = 1 + max((length[other] for other in needs[step]), default=0)
        else:
            queue.append(step)
    return max(length.values()) if length else 0


# --- multiplications


def by_cases(layer, b, n, d):
    if layer == "rnn":
        return b * n * 2 * d * d
    if layer == "gru":
        return b * n * 6 * d * d
    return b * (4 * n * d * d + 2 * n * n * d)


def by_table(layer, b, n, d):
    each = {"rnn": 2 * d, "gru": 6 * d, "attention": 4 * d + 2 * n}[layer]
    return each * b * n * d


def by_match(layer, b, n, d):
    match layer:
        case "rnn" | "gru":
            return (3 if layer == "gru" else 1) * 2 * b * n * d**2
        case "attention":
            return 4 * b * n * d**2 + 2 * b * n**2 * d


def by_shapes(layer, b, n, d):
    square = (n, d, d)
    shapes = {
        "rnn": [square] * 2,
        "gru": [square] * 6,
        "attention": [square] * 4 + [(n, d, n), (n, n, d)],
    }
    return b * sum(math.prod(shape) for shape in shapes[layer])


def position_by_position(layer, b, n, d):
    one = {"rnn": 2, "gru": 6, "attention": 4}[layer] * d * d
    if layer == "attention":
        one += 2 * n * d
    return sum([one] * n) * b


def from_operations(layer, b, n, d):
    flops = {
        "rnn": 4 * n * d**2,
        "gru": 12 * n * d**2,
        "attention": 8 * n * d**2 + 4 * n**2 * d,
    }
    return b * flops[layer] // 2


def by_the_roofline(layer, b, n, d):
    if layer != "attention":
        return by_cases(layer, b, n, d)
    return int(lab.roofline.attention_flops(b, 1, n, d)) // 2 + 4 * b * n * d * d


# --- lab4_receipt

SMALL = (128, 256, 512, 1024)


def one_line():
    return encode(a_record(SMALL))


def wrapped():
    return "\n" + wrap(encode(a_record(SMALL))) + "\n"


def with_the_name():
    return 'RECEIPT = """\n' + wrap(encode(a_record((64, 256, 512, 2048)))) + '\n"""'


def indented():
    return "\n".join("        " + line for line in wrap(encode(a_record(SMALL))).splitlines())


def as_html():
    return encode(a_record(SMALL)).replace("&", "&amp;").replace("<", "&lt;").replace(">", "&gt;")


def more_samples():
    return encode(a_record(samples=24) | {"points": a_record(SMALL, samples=24)["points"]})


def five_sizes_rounded():
    record = a_record()
    for point in record["points"]:
        point["started"] = [round(each, 2) for each in point["started"]]
    return encode(record)


def out_of_memory_at_the_end():
    record = a_record(SMALL)
    last = a_record((2048,), samples=1)["points"]
    for point in last:
        if point["name"] == "attention" and point["b"] == 8:
            failed = {"seconds": [], "started": [], "error": "out of memory"}
            record["points"].append(point | failed | {"reference_error": None})
    return encode(record)


def a_busy_machine():
    record = a_record(SMALL)
    for point in record["points"]:
        point["wall_over_cpu"] = 3.0
    return encode(record)


# --- verdict


def held(predicted, at_8):
    return predicted == 0 if at_8 is None else at_8 / 2 <= predicted <= 2 * at_8


def dict_of_dicts(record):
    time = {}
    for p in record["points"]:
        if not p["error"]:
            time.setdefault((p["name"], p["b"]), {})[p["n"]] = shortest_or_middle(p)

    def slower(other, b):
        ours, theirs = time["attention", b], time[other, b]
        return {n: ours[n] > theirs[n] for n in sorted(ours.keys() & theirs.keys())}

    def crossover(b):
        found = None
        for n, is_slower in reversed(slower("fused", b).items()):
            if not is_slower:
                break
            found = n
        return found

    def batch(name):
        n = max(time[name, 1].keys() & time[name, 8].keys())
        return time[name, 8][n] / time[name, 1][n]

    at_8 = crossover(8)
    refuted = any(any(slower(other, b).values()) for other in ("loop", "fused") for b in (1, 8))
    return {
        "always_faster": not refuted,
        "crossover_1": crossover(1),
        "crossover_8": at_8,
        "batch_loop": batch("loop"),
        "batch_attention": batch("attention"),
        "held": held(record["predictions"]["crossover"]["value"], at_8),
    }


def flat_dict(record):
    time = {
        (p["name"], p["b"], p["n"]): shortest_or_middle(p) for p in record["points"] if p["seconds"]
    }
    always = all(
        time["attention", b, n] < t
        for (name, b, n), t in time.items()
        if name != "attention" and ("attention", b, n) in time
    )

    def crossover(b):
        both = sorted(
            n for name, c, n in time if name == "fused" and c == b and ("attention", b, n) in time
        )
        ahead = [n for n in both if time["attention", b, n] <= time["fused", b, n]]
        behind = [n for n in both if not ahead or n > max(ahead)]
        return min(behind) if behind else None

    def batch(name):
        n = max(n for other, b, n in time if other == name and b == 8 and (name, 1, n) in time)
        return time[name, 8, n] / time[name, 1, n]

    at_8 = crossover(8)
    guess = record["predictions"]["crossover"]["value"]
    return {
        "held": held(guess, at_8),
        "batch_loop": batch("loop"),
        "batch_attention": batch("attention"),
        "crossover_1": crossover(1),
        "crossover_8": at_8,
        "always_faster": always,
    }


def as_a_grid(record):
    sizes = sorted({p["n"] for p in record["points"]})
    names = ("loop", "fused", "attention")
    grid = np.full((3, 2, len(sizes)), np.nan)
    for p in record["points"]:
        if p["error"] is None:
            place = names.index(p["name"]), (1, 8).index(p["b"]), sizes.index(p["n"])
            grid[place] = shortest_or_middle(p)
    loop, fused, attention = grid
    slower = attention > np.stack([loop, fused])  # False where one has no time

    def crossover(row):
        known = ~np.isnan(attention[row] + fused[row])
        behind = (attention[row] > fused[row])[known]
        count = len(behind) if behind.all() else int(np.argmin(behind[::-1]))
        return np.array(sizes)[known][-count] if count else None

    def batch(times):
        last = np.flatnonzero(~np.isnan(times).any(0))[-1]
        return times[1, last] / times[0, last]

    at_8 = crossover(1)
    return {
        "always_faster": not slower.any(),
        "crossover_1": crossover(0),
        "crossover_8": at_8,
        "batch_loop": batch(loop),
        "batch_attention": batch(attention),
        "held": held(record["predictions"]["crossover"]["value"], at_8),
    }


def with_zero_for_none(record):
    found = dict_of_dicts(record)
    return found | {name: found[name] or 0 for name in ("crossover_1", "crossover_8")}


def with_extra_keys(record):
    return dict_of_dicts(record) | {"machine": record["machine"]["label"]}


def tuples_sorted(record):
    rows = sorted(
        (p["b"], p["n"], p["name"], shortest_or_middle(p))
        for p in record["points"]
        if not p["error"]
    )
    found, always = {1: None, 8: None}, True
    for (b, _), group in itertools.groupby(rows, key=lambda row: row[:2]):
        times = {name: (n, t) for _, n, name, t in group}
        if "attention" not in times:
            continue
        n, ours = times["attention"]
        always &= all(ours < t for name, (_, t) in times.items() if name != "attention")
        if "fused" in times:
            behind = ours > times["fused"][1]
            found[b] = (found[b] or n) if behind else None
    last = {}
    for b, n, name, t in rows:
        last.setdefault((name, n), {})[b] = t
    ratio = {name: both[8] / both[1] for (name, n), both in sorted(last.items()) if len(both) == 2}
    return {
        "always_faster": bool(always),
        "crossover_1": found[1],
        "crossover_8": found[8],
        "batch_loop": ratio["loop"],
        "batch_attention": torch.tensor(ratio["attention"]),
        "held": held(record["predictions"]["crossover"]["value"], found[8]),
    }


CORRECT = {
    "step_loop": [
        index_and_append,
        unbound,
        positions_in_front,
        by_accumulate,
        joined_with_an_axis,
        calls_the_rest,
        filled_in,
        by_einops,
    ],
    "operators": [
        two_points,
        one_and_two,
        far_apart,
        by_polyfit,
        summed_by_hand,
        what_came_on_top,
        as_tensors,
        as_fractions,
    ],
    "longest_chain": [
        forward,
        with_ifs,
        with_a_zero,
        level_by_level,
        from_the_other_end,
        by_reduce,
        with_a_queue,
    ],
    "multiplications": [
        by_cases,
        by_table,
        by_match,
        by_shapes,
        position_by_position,
        from_operations,
        by_the_roofline,
    ],
    "lab4_receipt": [
        one_line,
        wrapped,
        with_the_name,
        indented,
        as_html,
        more_samples,
        five_sizes_rounded,
        out_of_memory_at_the_end,
        a_busy_machine,
    ],
    "verdict": [
        dict_of_dicts,
        flat_dict,
        as_a_grid,
        with_zero_for_none,
        with_extra_keys,
        tuples_sorted,
    ],
}
