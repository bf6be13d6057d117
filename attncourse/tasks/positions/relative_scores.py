import math

import torch

from attncourse import positions as reference
from attncourse.checks.answer import Failure, compare, following, has_shape, moves_nothing
from attncourse.checks.inputs import integers, normal
from attncourse.checks.observe import FUSED_ATTENTION
from attncourse.checks.task import Task
from attncourse.tasks import as_is
from attncourse.tasks.axes import of_fixed_axes


def score_inputs(rng, *batch, q=4, k=4, d=5, c=2, dtype=torch.float32):
    return {
        "query": normal(rng, *batch, q, d, dtype=dtype),
        "key": normal(rng, *batch, k, d, dtype=dtype),
        "table": normal(rng, 2 * c + 1, d, dtype=dtype),
    }


def one_hot_table(rng, q=5, k=5, c=2):
    """Keys of zero and a query that reads off the row: the scores say which row was taken."""
    width = 2 * c + 1
    return {
        "query": torch.arange(1.0, width + 1, device="cpu").expand(q, width) * math.sqrt(width),
        "key": torch.zeros(k, width),
        "table": torch.eye(width),
    }


def probes(rng):
    return {
        "plain": score_inputs(rng, 2),
        "two leading axes": score_inputs(rng, 2, 3, q=5, k=5, d=4),
        "no leading axis": score_inputs(rng, q=6, k=6, d=3),
        "wide enough": score_inputs(rng, 2, q=3, k=3, d=4, c=3),
        "clipped at one": score_inputs(rng, 2, q=5, k=5, d=4, c=1),
        "clipped at zero": score_inputs(rng, 2, q=3, k=3, d=4, c=0),
        "more keys than queries": score_inputs(rng, 2, q=2, k=6, d=4, c=3),
        "one query": score_inputs(rng, 2, q=1, k=5, d=4, c=2),
        "all equal": score_inputs(rng, 3, 3, q=3, k=3, d=3, c=1),
        "which row": one_hot_table(rng),
        "wide": score_inputs(rng, q=3, k=3, d=33, c=1),
        "double": score_inputs(rng, 2, q=4, k=5, d=9, dtype=torch.float64),
    }


def small(rng):
    for q, k, d, c in (
        (1, 1, 1, 0),
        (1, 1, 1, 1),
        (2, 2, 1, 1),
        (1, 2, 1, 1),
        (2, 2, 4, 1),
        (3, 3, 1, 1),
        (2, 3, 1, 1),
        (4, 4, 1, 1),
        (4, 4, 1, 2),
    ):
        yield {
            "query": integers(rng, q, d),
            "key": integers(rng, k, d),
            "table": integers(rng, 2 * c + 1, d),
        }


def maps(rng):
    return [("one sentence of three words", score_inputs(rng, 1, q=3, k=3, d=4), ("query", "key"))]


task = Task(
    reference.relative_scores,
    number=1,
    returns=("scores",),
    difficulty=3,
    minutes=25,
    section="relative-scores",
    probes=probes,
    differentiated=("plain", "more keys than queries"),
    small=small,
    maps=maps,
    features=1,
    forbidden=FUSED_ATTENTION,
)


@task.check(1)
def one_score_for_every_query_and_key(answer, rng):
    for batch, q, k in (((2,), 4, 4), ((2, 3), 3, 5), ((), 1, 4)):
        inputs = score_inputs(rng, *batch, q=q, k=k)
        has_shape("scores", answer(inputs), "(… q k)", *batch, q, k, inputs=inputs)


def without_a_table(answer, rng):
    inputs = score_inputs(rng, 2)
    inputs["table"] = torch.zeros(5, 5)
    expected = inputs["query"] @ inputs["key"].mT / math.sqrt(5)
    compare("scores", answer(inputs), expected, inputs)


@task.check(1)
def without_a_table_it_is_the_scaled_dot_product(answer, rng):
    without_a_table(answer, rng)


@task.check(1)
def equal_offsets_get_equal_vectors(answer, rng):
    inputs = one_hot_table(rng)
    scores = answer(inputs)
    has_shape("scores", scores, "(q k)", 5, 5, inputs=inputs)
    with following(lambda: without_a_table(answer, torch.Generator().manual_seed(0))):
        for offset in range(-4, 5):
            along = scores.diagonal(offset)
            if not torch.allclose(along, along[:1].expand_as(along), atol=1e-4):
                other = along[(along - along[0]).abs().argmax()]
                raise Failure(
                    f"All keys are zero and all queries alike, so pairs at offset {offset} should "
                    f"score the same; they get {' and '.join(answer.apart(along[0], other))}.",
                    inputs,
                    got=scores,
                )


@task.check(1)
def scores_at_near_and_far_offsets_are_right(answer, rng):
    for c in (1, 2):
        answer.matches(one_hot_table(rng, q=6, k=6, c=c))


@task.check(2)
def scores_match_the_formula(answer, rng):
    answer.matches(score_inputs(rng, 2))
    answer.matches(score_inputs(rng, 2, 3, q=5, k=5, d=4))
    answer.matches(score_inputs(rng, 2, q=3, k=3, d=4, c=3))
    answer.matches(score_inputs(rng, q=4, k=4, d=33, c=0))
    answer.matches(score_inputs(rng, 3, 3, q=3, k=3, d=3, c=1))
    answer.matches(score_inputs(rng, 2, q=4, k=4, d=9, dtype=torch.float64))


@task.check(1)
def scores_are_right_with_more_keys_than_queries(answer, rng):
    answer.matches(score_inputs(rng, 2, q=2, k=6, d=4, c=3))
    answer.matches(score_inputs(rng, 2, q=1, k=5, d=4))
    answer.matches(one_hot_table(rng, q=3, k=5))
    answer.matches(score_inputs(rng, 2, q=5, k=6))  # far offsets on both sides


@task.check(1)
def gradients_are_right_and_nothing_else_changes(answer, rng):
    answer.gradients_match(score_inputs(rng, 2))
    moves_nothing(answer, score_inputs(rng, 2))


# --- the reference in steps ---------------------------------------------------------------------


@task.steps
class Scores:
    axes = as_is

    def reach(table):
        return table.shape[0] // 2

    def places(q, k):
        return torch.arange(k - q, k), torch.arange(k)

    def offsets(i, j):
        return j - i[:, None]

    def clip(offsets, c):
        return offsets.clamp(-c, c)

    def rows(clipped, c):
        return clipped + c

    def look_up(table, rows, offsets):
        return table[rows]  # q k d

    def by_offset(query, key, vectors):
        return torch.einsum("...qd,qkd->...qk", query, vectors)

    def by_content(query, key):
        return query @ key.mT

    def both(content, offset, d):
        return (content + offset) / math.sqrt(d)

    def result(scores, later):
        return scores

    def __call__(self, query, key, table):
        query = self.axes(query)
        c = self.reach(table)
        i, j = self.places(query.shape[-2], key.shape[-2])
        offsets = self.offsets(i, j)
        vectors = self.look_up(table, self.rows(self.clip(offsets, c), c), offsets)
        offset = self.by_offset(query, key, vectors)
        scores = self.both(self.by_content(query, key), offset, query.shape[-1])
        return self.result(scores, j > i[:, None])


task.spelling(by_content=lambda query, key: torch.einsum("...id,...jd->...ij", query, key))

# --- faults: offsets ----------------------------------------------------------------------------

BREAK = {"section": "relative-breaks"}

task.fault("C-SHAW-OTHER-WAY", offsets=lambda i, j: i[:, None] - j)
task.fault("C-SHAW-DISTANCE", offsets=lambda i, j: (j - i[:, None]).abs())
task.fault(
    "C-SHAW-ABSOLUTE",
    section="absolute-relative",
    offsets=(
        lambda i, j: j.expand(len(i), -1),
        lambda i, j: i[:, None].expand(-1, len(j)),
        lambda i, j: j.expand(len(i), -1),
    ),
    clip=(..., ..., lambda offsets, c: offsets.clamp(max=2 * c)),
    rows=(..., ..., lambda clipped, c: clipped),
)
task.fault("P-TOPLEFT", **BREAK, places=lambda q, k: (torch.arange(q), torch.arange(k)))

# --- faults: rows -------------------------------------------------------------------------------


def wrapped(offsets, c):
    return (offsets + c).remainder(2 * c + 1) - c


task.fault("C-SHAW-NO-MIDDLE", **BREAK, rows=lambda clipped, c: clipped)
task.fault(
    "C-SHAW-ONE-OFF",
    places=(
        lambda q, k: (torch.arange(k - q, k) + 1, torch.arange(k)),
        lambda q, k: (torch.arange(k - q, k), torch.arange(k) + 1),
    ),
)
task.fault(
    "C-SHAW-SHIFT-OTHER-WAY",
    **BREAK,
    places=lambda q, k: (torch.arange(q - k, 2 * q - k), torch.arange(k)),
)
task.fault("C-SHAW-NOT-CLIPPED", clip=(as_is, wrapped))
task.fault(
    "C-SHAW-CLIPPED-ON-ONE-SIDE",
    clip=(lambda offsets, c: offsets.clamp(min=-c), lambda offsets, c: offsets.clamp(max=c)),
)
task.fault(
    "C-SHAW-TABLE-TO-C",
    reach=(lambda table: table.shape[0], lambda table: table.shape[0] - 1),
)
task.fault(
    "C-SHAW-FAR-NOTHING",
    look_up=lambda table, rows, offsets: (
        table[rows] * (offsets.abs() <= len(table) // 2)[..., None]
    ),
)
task.fault(
    "C-SHAW-CLIPPED-EARLY",
    clip=(
        lambda offsets, c: offsets.clamp(1 - c, c - 1) if c else offsets.clamp(0, 0),
        lambda offsets, c: offsets.clamp(-c, c - 1),
        lambda offsets, c: offsets.clamp(min(1 - c, c), c),
    ),
)


@task.fault("C-SHAW-FAR-HIDDEN")
class FarHidden(Scores):
    def __call__(self, query, key, table):
        offsets = self.offsets(*self.places(query.shape[-2], key.shape[-2]))
        scores = super().__call__(query, key, table)
        return scores.masked_fill(offsets.abs() > len(table) // 2, -torch.inf)


task.fault("C-SHAW-SIGN-ONLY", clip=lambda offsets, c: offsets.sign() * c)
task.fault("C-SHAW-PAST-ONLY", clip=lambda offsets, c: offsets.clamp(-c, 0))

# --- faults: products ---------------------------------------------------------------------------

task.fault(
    "C-SHAW-KEY-TIMES-TABLE",
    by_offset=(
        lambda query, key, vectors: torch.einsum("...kd,qkd->...qk", key, vectors),
        lambda query, key, vectors: torch.einsum("...qd,...kd,qkd->...qk", query, key, vectors),
    ),
    by_content=(..., lambda query, key: 0 * (query @ key.mT)),
)
task.fault(
    "C-SHAW-ADDED-TO-BOTH",
    by_offset=(
        lambda query, key, vectors: (
            Scores.by_offset(query, key, vectors)
            + torch.einsum("...kd,qkd->...qk", key, vectors)
            + vectors.square().sum(-1)
        ),
        lambda query, key, vectors: (
            Scores.by_offset(query, key, vectors) + torch.einsum("...kd,qkd->...qk", key, vectors)
        ),
    ),
)
task.fault(
    "C-SHAW-SUMMED",
    by_offset=lambda query, key, vectors: vectors.sum(-1).expand(*query.shape[:-2], -1, -1),
)
task.fault(
    "C-SHAW-TABLE-IGNORED",
    by_offset=lambda query, key, vectors: torch.zeros(query.shape[-2], key.shape[-2]).to(query),
)
task.fault(
    "C-SHAW-CONTENT-IGNORED",
    by_content=(lambda query, key: 0 * (query @ key.mT), lambda query, key: 0.0),
)
task.fault(
    "C-SHAW-SCALED-HALF",
    both=(
        lambda content, offset, d: content / math.sqrt(d) + offset,
        lambda content, offset, d: content + offset / math.sqrt(d),
        lambda content, offset, d: content / math.sqrt(d) + offset / d,
        lambda content, offset, d: content / d + offset / math.sqrt(d),
    ),
)
task.fault("D-NO-SCALE", both=lambda content, offset, d: content + offset)
task.fault("D-SCALE-TIMES", both=lambda content, offset, d: (content + offset) * math.sqrt(d))
task.fault("C-SHAW-SUBTRACTED", both=lambda content, offset, d: (content - offset) / math.sqrt(d))
task.fault(
    "D-SCALE-KEYS",
    both=lambda content, offset, d: (content + offset) / math.sqrt(content.shape[-1]),
)
task.fault("D-SCALE-DK", both=lambda content, offset, d: (content + offset) / d)

# --- faults: what comes back --------------------------------------------------------------------

task.fault("C-SCORES-ARE-WEIGHTS", result=lambda scores, later: scores.softmax(-1))
task.fault(
    "M-ALWAYS-CAUSAL",
    result=(
        lambda scores, later: scores.masked_fill(later, -torch.inf),
        lambda scores, later: scores.masked_fill(later, torch.finfo(scores.dtype).min),
        lambda scores, later: scores.masked_fill(later, -1e9),
        lambda scores, later: scores.masked_fill(later, 0.0),
    ),
)
task.fault("C-TURNED", result=lambda scores, later: scores.mT)
of_fixed_axes(task, 3, 4, 2)
task.fault("C-FLOAT32", result=lambda scores, later: scores.float())
task.fault("C-DETACHED", result=lambda scores, later: scores.detach())
task.fault("C-FROZEN-TABLE", look_up=lambda table, rows, offsets: table.detach()[rows])
