from attncourse.checks.answer import following, numbers_of
from attncourse.checks.task import Task
from attncourse.lab import lab3_who_computed_it as reference
from attncourse.lab import roofline
from attncourse.tasks.lab3_who_computed_it import WORK, counted, pick, sizes, without


def worked_out(attention_work):
    """The three numbers, without the package's own formulas."""

    def function(**inputs):
        with without(roofline.attention_flops, roofline.naive_bytes, roofline.fused_bytes):
            found = attention_work(**inputs)
        if found is None:
            return None
        return numbers_of(found, WORK)

    return function


def probes(rng):
    return {
        "large": sizes(2, 16, 4096, 64),
        "float32": sizes(1, 3, 1000, 32, width=4),
        "causal": sizes(3, 2, 512, 128, causal=True),
        "backward": sizes(1, 4, 256, 80, backward=True),
        "both": sizes(2, 5, 96, 48, 4, causal=True, backward=True),
        "short, causal": sizes(1, 2, 6, 32, causal=True),
        "short": sizes(2, 3, 8, 64),
    }


def small(rng):
    yield sizes(1, 1, 1, 1, 1)
    yield sizes(1, 1, 2, 1, 1)
    yield sizes(1, 1, 2, 3, 2)
    yield sizes(1, 1, 2, 3, 2, causal=True)
    yield sizes(1, 1, 2, 3, 2, backward=True)
    yield sizes(2, 3, 4, 5, 4)


task = Task(
    reference.attention_work,
    number=3,
    returns=WORK,
    difficulty=2,
    minutes=10,
    section="lab3-work",
    probes=probes,
    small=small,
    adapt=worked_out,
    ready_made=(roofline.attention_flops, roofline.naive_bytes, roofline.fused_bytes),
    tolerance=0.002,
)


@task.check(2)
def the_operations_are_those_of_two_products(answer, rng):
    n = pick(rng, 640, 1024, 3000)
    counted(answer, "flops", sizes(2, 16, n, 64), sizes(1, 3, 64, 100, width=4))


@task.check(1)
def causal_counts_half(answer, rng):
    counted(answer, "flops", sizes(2, 4, pick(rng, 128, 512), 64, causal=True))
    counted(answer, "flops", sizes(2, 4, 8, 64, causal=True))


@task.check(1)
def with_the_backward_pass_it_is_three_and_a_half_times(answer, rng):
    counted(answer, "flops", sizes(2, 4, pick(rng, 128, 512), 64, backward=True))
    with following(lambda: counted(answer, "flops", sizes(1, 2, 256, 32, causal=True))):
        counted(answer, "flops", sizes(1, 2, 256, 32, causal=True, backward=True))


@task.check(2, "naive attention passes six times over its scores and once over inputs and output")
def naive_attention_moves_six_passes_over_all_scores_and_inputs_and_output_once(answer, rng):
    counted(answer, "naive_bytes", sizes(2, 16, pick(rng, 1024, 4096), 64))
    counted(answer, "naive_bytes", sizes(3, 2, 16, pick(rng, 64, 128), width=4))


@task.check(2)
def fused_attention_moves_all_inputs_and_outputs_once(answer, rng):
    counted(answer, "fused_bytes", sizes(2, 16, pick(rng, 1024, 4096), 64))
    counted(answer, "fused_bytes", sizes(3, 2, 16, 64, width=4))


@task.check(1)
def the_bytes_are_those_of_the_forward_pass_causal_or_not(answer):
    for name in ("naive_bytes", "fused_bytes"):
        counted(answer, name, sizes(2, 4, 512, 64, causal=True, backward=True))


# --- steps --------------------------------------------------------------------------------------


@task.steps
class Work:
    def flops(tables, d, vectors):
        return 4 * tables * d

    def masked(causal, backward):
        return 0.5 if causal else 1

    def passes(backward):
        return 3.5 if backward else 1

    def moved(tables, causal):
        return tables

    def naive(tables, vectors):
        return 6 * tables + 4 * vectors

    def fused(tables, vectors):
        return 4 * vectors

    def in_bytes(numbers, width, causal, backward):
        return numbers * width

    def __call__(self, b, h, n, d, bytes_per_number, causal, backward):
        sizes = b * h * n * n, b * h * n * d  # numbers in one table; in q, k, v or o
        flops = (
            self.flops(sizes[0], d, sizes[1])
            * self.masked(causal, backward)
            * self.passes(backward)
        )
        naive = self.naive(self.moved(sizes[0], causal), sizes[1])
        return {
            "flops": flops,
            "naive_bytes": self.in_bytes(naive, bytes_per_number, causal, backward),
            "fused_bytes": self.in_bytes(self.fused(*sizes), bytes_per_number, causal, backward),
        }


# --- faults -------------------------------------------------------------------------------------


def with_softmax(few):
    return lambda tables, d, vectors: (4 * d + few) * tables


task.fault("L3-MULTIPLY-ONLY", flops=lambda tables, d, vectors: 2 * tables * d)
task.fault("L3-WIDTH-FOR-LENGTH", flops=lambda tables, d, vectors: 4 * vectors * d)
task.fault("L3-SOFTMAX-COUNTED", flops=lambda tables, d, vectors: 6 * tables * d)
task.fault("L3-SOFTMAX-FEW", flops=tuple(map(with_softmax, (5, 4, 3))))
task.fault("L3-CAUSAL-FULL", masked=lambda causal, backward: 1)
task.fault(
    "L3-CAUSAL-FORWARD",
    masked=lambda causal, backward: 3 / 3.5 if causal and backward else 0.5 if causal else 1,
)
task.fault("L3-BACKWARD-ALONE", passes=lambda backward: 2.5 if backward else 1)
task.fault("L3-BACKWARD-LEFT-OUT", passes=lambda backward: 1)
task.fault("L3-BACKWARD-TWICE", passes=lambda backward: 3 if backward else 1)
task.fault("L3-TABLE-ONCE", naive=lambda tables, vectors: 2 * tables + 4 * vectors)
task.fault("L3-WRITES-ONLY", naive=lambda tables, vectors: 3 * tables + 4 * vectors)
task.fault("L3-SCALED-FOR-FREE", naive=lambda tables, vectors: 4 * tables + 4 * vectors)
task.fault("L3-TABLES-ALONE", naive=lambda tables, vectors: 6 * tables)
task.fault(
    "L3-FUSED-WRITES-SCORES",
    fused=(
        lambda tables, vectors: tables + 4 * vectors,
        lambda tables, vectors: 2 * tables + 4 * vectors,
    ),
)
task.fault(
    "L3-INPUTS-ONLY",
    fused=lambda tables, vectors: 3 * vectors,
    naive=(..., lambda tables, vectors: 6 * tables + 3 * vectors),
)
task.fault("L3-NAIVE-INPUTS-ONLY", naive=lambda tables, vectors: 6 * tables + 3 * vectors)
task.fault("L3-JUST-WRITTEN", naive=lambda tables, vectors: 5 * tables + 4 * vectors)
task.fault("L3-NUMBERS", in_bytes=lambda numbers, width, causal, backward: numbers)
task.fault("L3-CAUSAL-TABLE", moved=lambda tables, causal: tables * (0.5 if causal else 1))
task.fault(
    "L3-CAUSAL-BYTES",
    in_bytes=lambda numbers, width, causal, backward: numbers * width * (0.5 if causal else 1),
)


task.fault(
    "L3-BACKWARD-BYTES",
    in_bytes=tuple(
        lambda numbers, width, causal, backward, each=each: numbers * width * each**backward
        for each in (3.5, 2.5, 3, 2)
    ),
)


one_sentence = task.fault("L3-ONE-SENTENCE")


@one_sentence
class OneSentence(Work):
    def __call__(self, b, *sizes, **options):
        return super().__call__(1, *sizes, **options)


@one_sentence
class OneSentenceComputed(Work):
    def __call__(self, b, *sizes, **options):
        found = super().__call__(b, *sizes, **options)
        return found | {"flops": found["flops"] / b}


one_head = task.fault("L3-ONE-HEAD")


@one_head
class OneHead(Work):
    def __call__(self, b, h, *sizes, **options):
        return super().__call__(b, 1, *sizes, **options)


@one_head
class OneHeadComputed(Work):
    def __call__(self, b, h, *sizes, **options):
        found = super().__call__(b, h, *sizes, **options)
        return found | {"flops": found["flops"] / h}


@task.fault("L3-COURSES-FORMULAS")
def calls_the_formulas(b, h, n, d, bytes_per_number, causal, backward):
    return {"flops": roofline.attention_flops(b, h, n, d, None, causal, backward)}


@task.fault("L3-CAUSAL-EXACT")
class Exact(Work):
    def __call__(self, b, h, n, d, bytes_per_number, causal, backward):
        found = super().__call__(b, h, n, d, bytes_per_number, causal, backward)
        return found | {"flops": found["flops"] * ((n + 1) / n if causal else 1)}
