"""roof_over."""

from attncourse.checks.answer import Failure, as_number, fields
from attncourse.checks.task import Task
from attncourse.lab import lab3_who_computed_it as reference
from attncourse.lab import roofline
from attncourse.tasks.lab3_who_computed_it import _bound, bound_as_number, pick, without
from attncourse.tasks.lab3_who_computed_it._faults import roof

ROOF = ("intensity", "ridge", "roof", "bound")


def under_the_roof(roof_over):
    """Three numbers, and the bound as 1 (memory) or 0 (compute)."""

    def function(**inputs):
        with without(roofline.ridge, roofline.attainable, roofline.intensity):
            found = roof_over(**inputs)
        if found is None:
            return None
        *values, bound = fields(found, ROOF)
        return [*map(as_number, values, ROOF[:3]), bound_as_number(bound)]

    return function


def program(intensity, peak=24e12, bandwidth=0.26e12, size=3e9):
    return {
        **{"flops": intensity * size, "moved_bytes": size},
        **{"flops_per_second": peak, "bytes_per_second": bandwidth},
    }


def roof_probes(rng):
    return {
        "naive on a T4": program(21.0),
        "fused on a T4": program(2048.0),
        "decoding": program(1.0, 250e12, 2e12, 5e8),
        "a CPU": program(10.7, 90e9, 18e9, 1e8),
        "near the ridge": program(80.0),
        "beyond the ridge": program(110.0),
    }


def roof_small(rng):
    yield {"flops": 2, "moved_bytes": 1, "flops_per_second": 8, "bytes_per_second": 2}
    yield {"flops": 12, "moved_bytes": 2, "flops_per_second": 8, "bytes_per_second": 2}
    yield {"flops": 3, "moved_bytes": 6, "flops_per_second": 100, "bytes_per_second": 10}


def roofs(answer, name, *cases):
    place = ROOF.index(name)
    for inputs in cases:
        got, expected = answer(inputs)[place].item(), answer.expected(inputs)[place].item()
        if not abs(got - expected) <= 0.005 * expected:
            said = f"is {expected:,.4g}; you say {got:,.4g}"
            if name == "bound":
                said = f"is {_bound(expected)}; you say {_bound(got)}"
            words = ", ".join(f"{key} = {value:.3g}" for key, value in inputs.items())
            raise Failure(f"For {words}: the {name} {said}.", inputs)


task = Task(
    reference.roof_over,
    number=4,
    returns=(*ROOF[:3], "bound (memory 1, compute 0)"),
    difficulty=2,
    minutes=8,
    section="lab3-roofline",
    hints=(
        "Two things take time: computing and moving. They overlap, so the slower of them decides.",
        "Intensity and ridge have the same unit, operations per byte: the first of the "
        "program, the second of the machine. Below the ridge a program waits for memory.",
        "roof = the smaller of flops_per_second and intensity times bytes_per_second.",
    ),
    probes=roof_probes,
    small=roof_small,
    adapt=under_the_roof,
    tolerance=0.001,
)


@task.check(1)
def intensity_is_operations_per_byte(answer, rng):
    roofs(answer, "intensity", program(21.4), program(pick(rng, 0.5, 2.0, 700.0)))


@task.check(1)
def the_ridge_belongs_to_the_machine(answer):
    roofs(answer, "ridge", program(21.0), program(1000.0), program(3.0, 90e9, 18e9))


@task.check(1)
def below_the_ridge_the_roof_slopes(answer, rng):
    roofs(answer, "roof", program(pick(rng, 2.0, 21.0, 60.0)), program(1.0, 90e9, 18e9))


@task.check(1)
def beyond_the_ridge_the_roof_is_flat(answer, rng):
    roofs(answer, "roof", program(pick(rng, 150.0, 512.0)), program(11.0, 90e9, 18e9))


@task.check(1)
def near_the_ridge_it_is_still_the_smaller_of_the_two(answer):
    roofs(answer, "roof", program(85.0), program(100.0))


@task.check(1)
def it_says_what_the_program_waits_for(answer):
    roofs(answer, "bound", *(program(i) for i in (1.0, 21.0, 85.0, 100.0, 2048.0)))


# --- faults ---------------------------------------------------------------------------------------


@task.fault(
    "L3-ALWAYS-PEAK",
    thinks="The roof is what the machine can compute.",
    why="Only for a program that brings enough work for each byte. Below the ridge the memory "
    "cannot deliver fast enough.",
)
def the_peak_as_roof(flops, moved_bytes, flops_per_second, bytes_per_second):
    sizes = flops, moved_bytes, flops_per_second, bytes_per_second
    return roof(*sizes, roof=flops_per_second)


@task.fault(
    "L3-NO-CEILING",
    thinks="Operations per byte times bytes per second: the roof.",
    why="That line rises without end. Beyond the ridge the units are busy all the time, and the "
    "roof is flat.",
)
def slope_without_end(flops, moved_bytes, flops_per_second, bytes_per_second):
    sizes = flops, moved_bytes, flops_per_second, bytes_per_second
    return roof(*sizes, roof=flops / moved_bytes * bytes_per_second)


@task.fault(
    "L3-LARGER",
    thinks="The roof is the larger of the two limits.",
    why="A program has to keep to both, so the smaller one decides.",
)
def the_larger_limit(flops, moved_bytes, flops_per_second, bytes_per_second):
    sizes = flops, moved_bytes, flops_per_second, bytes_per_second
    return roof(*sizes, roof=max(flops_per_second, flops / moved_bytes * bytes_per_second))


@task.fault(
    "L3-ONE-AFTER-THE-OTHER",
    thinks="First the bytes move, then the machine computes: the times add up.",
    why="They overlap: while one tile is computed, the next is on its way. The roof is for the "
    "best case, where the longer of the two hides the other.",
)
def times_added(flops, moved_bytes, flops_per_second, bytes_per_second):
    sizes = flops, moved_bytes, flops_per_second, bytes_per_second
    seconds = flops / flops_per_second + moved_bytes / bytes_per_second
    return roof(*sizes, roof=flops / seconds)


@task.fault(
    "L3-UPSIDE-DOWN",
    thinks="Intensity is how many bytes each operation needs.",
    why="That is its inverse. Operations stand above the fraction bar: the more work a byte "
    "brings, the higher the intensity.",
)
def bytes_per_operation(flops, moved_bytes, flops_per_second, bytes_per_second):
    sizes = flops, moved_bytes, flops_per_second, bytes_per_second
    return roof(*sizes, intensity=moved_bytes / flops)


@task.fault(
    "L3-RIDGE-INVERTED",
    thinks="The ridge is the bandwidth over the speed.",
    why="Then its unit is bytes per operation, and it cannot be compared with an intensity. The "
    "two have to have one unit.",
)
def ridge_upside_down(flops, moved_bytes, flops_per_second, bytes_per_second):
    sizes = flops, moved_bytes, flops_per_second, bytes_per_second
    return roof(*sizes, ridge=bytes_per_second / flops_per_second)


@task.fault(
    "L3-BOUND-SWAPPED",
    thinks="Much work for each byte: then it is the memory that has to wait.",
    why="The memory may well wait; the program waits for the units. The bound is what the program "
    "waits for.",
)
def bounds_swapped(flops, moved_bytes, flops_per_second, bytes_per_second):
    sizes = flops, moved_bytes, flops_per_second, bytes_per_second
    bound = "memory" if roof(*sizes)["bound"] == "compute" else "compute"
    return roof(*sizes, bound=bound)


@task.fault(
    "L3-BOUND-BY-COUNT",
    thinks="More operations than bytes: compute-bound.",
    why="A machine does many operations in the time of one byte, how many is its ridge. More than "
    "one a byte is not enough.",
)
def more_operations_than_bytes(flops, moved_bytes, flops_per_second, bytes_per_second):
    sizes = flops, moved_bytes, flops_per_second, bytes_per_second
    return roof(*sizes, bound="compute" if flops > moved_bytes else "memory")


@task.fault(
    "L3-SECONDS",
    thinks="The roof is the least time that the program can take.",
    why="That is a good number, and another one. The roof of a roofline is a speed, operations per "
    "second.",
)
def a_time_as_roof(flops, moved_bytes, flops_per_second, bytes_per_second):
    sizes = flops, moved_bytes, flops_per_second, bytes_per_second
    return roof(*sizes, roof=flops / roof(*sizes)["roof"])
