from attncourse.checks.answer import Failure, known, numbers_of
from attncourse.checks.task import Task
from attncourse.lab import lab3_who_computed_it as reference
from attncourse.lab import roofline
from attncourse.tasks.lab3_who_computed_it import KINDS, _bound, bound_as_number, pick, without

ROOF = ("intensity", "ridge", "roof", "bound")


def under_the_roof(roof_over):
    """Three numbers, and the bound as 1 (memory) or 0 (compute)."""

    def function(**inputs):
        with without(roofline.ridge, roofline.attainable, roofline.intensity):
            found = roof_over(*inputs.values())  # whatever its parameters are called
        if found is None:
            return None
        return [*numbers_of(found, ROOF[:3]), bound_as_number(found.get("bound"))]

    return function


def program(intensity, peak=24e12, bandwidth=0.26e12, size=3e9):
    return {
        **{"flops": intensity * size, "moved_bytes": size},
        **{"flops_per_second": peak, "bytes_per_second": bandwidth},
    }


def probes(rng):
    return {
        "naive on a T4": program(21.0),
        "fused on a T4": program(2048.0),
        "decoding": program(1.0, 250e12, 2e12, 5e8),
        "a CPU": program(10.7, 90e9, 18e9, 1e8),
        "near the ridge": program(80.0),
        "beyond the ridge": program(110.0),
    }


def small(rng):
    yield {"flops": 2, "moved_bytes": 1, "flops_per_second": 8, "bytes_per_second": 2}
    yield {"flops": 12, "moved_bytes": 2, "flops_per_second": 8, "bytes_per_second": 2}
    yield {"flops": 3, "moved_bytes": 6, "flops_per_second": 100, "bytes_per_second": 10}


def roofs(answer, name, *cases):
    place = ROOF.index(name)
    for inputs in cases:
        got = known(answer(inputs)[place], name, KINDS.get(name, "a number")).item()
        expected = answer.expected(inputs)[place].item()
        if not abs(got - expected) <= 0.005 * expected:
            said = f"is {expected:,.4g}; you say {got:,.4g}"
            if name == "bound":
                said = f"is {_bound(expected)}; you say {_bound(got)}"
            words = ", ".join(f"{key} = {value:.3g}" for key, value in inputs.items())
            raise Failure(f"For {words}: the {name} {said}.", inputs, whole=name)


task = Task(
    reference.roof_over,
    number=4,
    returns=(*ROOF[:3], "bound (memory 1, compute 0)"),
    difficulty=2,
    minutes=8,
    section="lab3-roofline",
    probes=probes,
    small=small,
    adapt=under_the_roof,
    ready_made=(roofline.ridge, roofline.attainable, roofline.intensity),
    tolerance=0.001,
)


@task.check(1)
def intensity_is_operations_per_byte(answer, rng):
    roofs(answer, "intensity", program(21.4), program(pick(rng, 0.5, 2.0, 700.0)))


@task.check(1)
def the_ridge_belongs_to_the_machine(answer):
    roofs(answer, "ridge", program(21.0), program(1000.0), program(3.0, 90e9, 18e9))


@task.check(1)
def below_the_ridge_the_roof_is_intensity_times_bytes_per_second(answer, rng):
    roofs(answer, "roof", program(pick(rng, 2.5, 21.4, 60.8)), program(1.9, 90e9, 18e9))


@task.check(1)
def beyond_the_ridge_the_roof_is_flat(answer, rng):
    roofs(answer, "roof", program(pick(rng, 150.0, 512.0)), program(11.0, 90e9, 18e9))


@task.check(1)
def near_the_ridge_it_is_still_the_smaller_of_the_two(answer):
    roofs(answer, "roof", program(85.5), program(100.0))


@task.check(1)
def it_says_what_the_program_waits_for(answer):
    roofs(answer, "bound", *(program(i) for i in (1.0, 21.0, 85.0, 92.1, 100.0, 2048.0)))


# --- steps --------------------------------------------------------------------------------------


@task.steps
class Roofline:
    def intensity(flops, moved_bytes):
        return flops / moved_bytes

    def ridge(peak, bandwidth):
        return peak / bandwidth

    def slope(intensity, bandwidth):
        return intensity * bandwidth

    def roof(peak, slope, flops, bandwidth):
        return min(peak, slope)

    def bound(intensity, ridge):
        return "memory" if intensity < ridge else "compute"

    def said(found):
        return found

    def __call__(self, flops, moved_bytes, flops_per_second, bytes_per_second):
        intensity = self.intensity(flops, moved_bytes)
        ridge = self.ridge(flops_per_second, bytes_per_second)
        slope = self.slope(intensity, bytes_per_second)
        return self.said(
            {
                "intensity": intensity,
                "ridge": ridge,
                "roof": self.roof(flops_per_second, slope, flops, bytes_per_second),
                "bound": self.bound(intensity, ridge),
            }
        )


# --- faults -------------------------------------------------------------------------------------


def inverted(name):
    return lambda found: found | {name: 1 / found[name]}


task.fault("L3-ALWAYS-PEAK", roof=lambda peak, slope, flops, bandwidth: peak)
task.fault("L3-NO-CEILING", roof=lambda peak, slope, flops, bandwidth: slope)
task.fault(
    "L3-TWO-UNITS",
    slope=lambda intensity, bandwidth: bandwidth,
    roof=(..., lambda peak, slope, flops, bandwidth: slope),
)
task.fault(
    "L3-ROOF-OF-BYTES",
    roof=lambda peak, slope, flops, bandwidth: bandwidth if slope < peak else peak,
)
task.fault("L3-LARGER", roof=lambda peak, slope, flops, bandwidth: max(peak, slope))
task.fault(
    "L3-ONE-AFTER-THE-OTHER", roof=lambda peak, slope, flops, bandwidth: 1 / (1 / peak + 1 / slope)
)
task.fault("L3-SECONDS", roof=lambda peak, slope, flops, bandwidth: flops / min(peak, slope))
task.fault(
    "L3-UPSIDE-DOWN",
    said=(inverted("intensity"), ...),
    intensity=(..., lambda flops, moved_bytes: moved_bytes / flops),
)
task.fault(
    "L3-RIDGE-INVERTED",
    said=(inverted("ridge"), ...),
    ridge=(..., lambda peak, bandwidth: bandwidth / peak),
)
task.fault(
    "L3-EXCHANGED",
    said=lambda found: found | {"intensity": found["ridge"], "ridge": found["intensity"]},
)
task.fault(
    "L3-BYTES-PER-OPERATION",
    said=lambda found: inverted("intensity")(inverted("ridge")(found)),
)
task.fault(
    "L3-WHOLE-NUMBERS",
    intensity=lambda flops, moved_bytes: flops // moved_bytes,
    ridge=(
        lambda peak, bandwidth: peak // bandwidth,
        lambda peak, bandwidth: peak // bandwidth,
        ...,
    ),
    bound=(..., lambda intensity, ridge: "memory" if intensity <= ridge else "compute", ...),
)
task.fault(
    "L3-BOUND-SWAPPED", bound=lambda intensity, ridge: "compute" if intensity < ridge else "memory"
)
task.fault(
    "L3-BOUND-BY-COUNT",
    bound=(
        lambda intensity, ridge: "compute" if intensity > 1 else "memory",
        lambda intensity, ridge: "memory" if intensity < 1 else "compute",
    ),
)
task.fault(
    "L3-OTHER-WORD",
    bound=lambda intensity, ridge: "memory-bound" if intensity < ridge else "compute-bound",
)
