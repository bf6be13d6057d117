import torch

from attncourse.checks.answer import Failure, compare, describe, following
from attncourse.checks.inputs import integers, normal
from attncourse.checks.observe import Unusable
from attncourse.checks.task import Task
from attncourse.lab import lab5_decode_bandwidth as reference
from attncourse.lab.meters import count
from attncourse.tasks.lab5_decode_bandwidth import counted, pick


def new_positions(rng, b, c, room, length, t, d, make=normal, **options):
    """A cache with `length` positions filled, of which the rest is rubbish, and t new ones."""
    return {
        "key_cache": make(rng, b, c, room, d, **options),
        "value_cache": make(rng, b, c, room, d, **options),
        "length": length,
        "key": make(rng, b, c, t, d, **options),
        "value": make(rng, b, c, t, d, **options),
    }


def append_probes(rng):
    return {
        "one more": new_positions(rng, 2, 3, 7, 4, 1, 5),
        "several": new_positions(rng, 1, 2, 9, 3, 4, 3),
        "the first": new_positions(rng, 2, 2, 4, 0, 1, 3),
        "the last": new_positions(rng, 2, 1, 5, 4, 1, 3),
        "one too many": new_positions(rng, 2, 1, 5, 5, 1, 3),
        "too many": new_positions(rng, 1, 2, 6, 4, 3, 2),
    }


def append_small(rng):
    yield new_positions(rng, 1, 1, 2, 0, 1, 1, make=integers)
    yield new_positions(rng, 1, 1, 2, 1, 1, 1, make=integers)
    yield new_positions(rng, 1, 1, 3, 1, 1, 2, make=integers)
    yield new_positions(rng, 1, 1, 4, 1, 2, 2, make=integers)
    yield new_positions(rng, 1, 1, 2, 2, 1, 1, make=integers)
    yield new_positions(rng, 2, 2, 4, 2, 1, 2)


# As a report says them: "Its keys and values lie in the caches (✓ yes, · no)".
INSIDE = "keys and values lie in the caches (✓ yes, · no)"
VIEWS = "keys and values begin where the caches do (✓ yes, · no)"
REFUSED = "call raises an error (✓ yes, · no)"
APPENDED = ("keys", "values", "key cache", "value cache", INSIDE, VIEWS, REFUSED)


def appended(append):
    """The answer, with what it leaves in the caches, and whether what it returns lies there."""

    def begins_in(tensor, cache):
        return cache.data_ptr() <= tensor.data_ptr() < cache.data_ptr() + cache.nbytes

    def function(key_cache, value_cache, length, key, value):
        n = length + key.shape[2]
        try:
            returned = append(key_cache, value_cache, length, key, value)
        except NotImplementedError:
            raise
        except Exception as error:
            room = key_cache.shape[2]
            if n <= room and isinstance(error, ValueError | AssertionError):  # meant as a refusal
                raise Unusable(
                    f"raised an error, and there was room: {n} of {room} positions are filled "
                    f"after this step. ({type(error).__name__}: {error})"
                ) from None
            if n <= room:
                raise
            nothing = key_cache[:, :, :0]
            yes = torch.tensor(True)
            return [nothing, nothing, key_cache, value_cache, yes, yes, yes]
        if returned is None:
            return None
        if not isinstance(returned, tuple | list) or len(returned) != 2:
            raise Unusable(f"returned {describe(returned)}; a pair is expected: keys, values.")
        for name, tensor in zip(APPENDED, returned, strict=False):
            if not isinstance(tensor, torch.Tensor):
                raise Unusable(f"returned {describe(tensor)} for {name}; a tensor is expected.")
        caches = key_cache, value_cache
        filled = [tensor for tensor in returned if tensor.numel()]
        inside = all(any(begins_in(tensor, cache) for cache in caches) for tensor in filled)
        views = all(
            tensor.numel() == 0 or tensor.data_ptr() == cache.data_ptr()
            for tensor, cache in zip(returned, caches, strict=True)
        )
        return [*returned, *caches, *map(torch.tensor, (inside, views, False))]

    return function


def metered_append(append):
    """The answer under the meter: the bytes of its biggest tensor."""

    def function(key_cache, value_cache, length, key, value):
        returned = []
        counts = count(lambda: returned.append(append(key_cache, value_cache, length, key, value)))
        return None if returned[0] is None else {"biggest": counts.biggest_bytes}

    return function


METERED_ROOM = 512


def append_traits(answer):
    rng = torch.Generator().manual_seed(0)
    inputs = new_positions(rng, 2, 3, METERED_ROOM, METERED_ROOM // 2, 1, 8)
    counts = counted(answer, inputs, metered_append)
    filled = inputs["key_cache"].nbytes // 2
    return {
        "allocates as much as the filled part": counts["biggest"] >= filled,
        "allocates as much as the cache": counts["biggest"] >= 2 * filled,
    }


task = Task(
    reference.append_to_cache,
    number=2,
    returns=APPENDED,
    difficulty=2,
    minutes=10,
    section="lab5-append",
    probes=append_probes,
    small=append_small,
    adapt=appended,
    traits=append_traits,
)


def looked_at(answer, inputs, *names):
    got = dict(zip(APPENDED, answer(inputs), strict=True))
    expected = dict(zip(APPENDED, answer.expected(inputs), strict=True))
    for name in names:
        compare(name, got[name], expected[name], inputs)


@task.check(2, "keys and values come back with the old positions and a new one")
def the_new_positions_stand_behind_the_old_ones(answer, rng):
    for shape in ((2, 3, 7, 4, 1, 5), (1, 2, 6, 0, 1, 3), (3, 2, 5, 4, 1, 3)):
        looked_at(answer, new_positions(rng, *shape), "keys", "values")


@task.check(2, "the cache itself holds the new one afterward")
def the_cache_itself_holds_them_afterward(answer, rng):
    for shape in ((2, 3, 7, 4, 1, 5), (2, 2, 4, 0, 1, 3)):
        inputs = new_positions(rng, *shape)
        looked_at(answer, inputs, "key cache", "value cache")


@task.check(1)
def it_is_right_for_several_positions_at_once(answer, rng):
    for shape in ((2, 2, 9, 3, 4, 3), (1, 2, 6, 0, 6, 2)):
        inputs = new_positions(rng, *shape)
        looked_at(answer, inputs, "keys", "values", "key cache", "value cache")


@task.check(2)
def what_comes_back_is_a_view_of_the_cache(answer, rng):
    inputs = new_positions(rng, 2, 3, 7, pick(rng, 2, 4, 5), 1, 5)
    found = dict(zip(APPENDED, answer(inputs), strict=True))
    if not found[INSIDE]:
        raise Failure(
            "What you return does not lie in the caches you were given: it is a copy. A step "
            "would then read and write the whole cache before attention reads it again.",
            inputs,
        )


def bytes_made(answer, inputs):
    """Those of the biggest tensor; an error where there is room has other checks."""
    with following(lambda: answer(inputs)):
        return counted(answer, inputs, metered_append)["biggest"]


@task.check(2)
def a_step_allocates_nothing_as_large_as_the_cache(answer, rng):
    for room in (256, METERED_ROOM):
        inputs = new_positions(rng, 2, 3, room, room // 2, 1, 8)
        biggest = bytes_made(answer, inputs)
        filled = inputs["key_cache"].nbytes // 2
        if biggest >= filled:
            raise Failure(
                f"The key cache holds {room // 2} positions, {filled:,} bytes. To add one of "
                f"{inputs['key'].nbytes:,} bytes your answer makes a tensor of "
                f"{biggest:,}. `cat`, `clone` and `contiguous` copy the cache."
            )


@task.check(1, "a cache without room for all new positions says so")
def a_full_cache_says_so(answer, rng):
    for shape in ((2, 1, 5, 5, 1, 3), (1, 2, 6, 4, 3, 2), (9, 9, 4, 4, 1, 9)):
        inputs = new_positions(rng, *shape)
        if not answer(inputs)[APPENDED.index(REFUSED)]:
            length, t, room = shape[3], shape[4], shape[2]
            raise Failure(
                f"{length} positions of {room} are filled and {t} should be added: your "
                "answer raises no error and loses a position. Raise an error.",
                inputs,
            )


# --- the reference in steps ---------------------------------------------------------------------


@task.steps
class Append:
    def place(length):
        return length  # of the first new position

    def new(key):
        return key.shape[2]

    def refuse(n, room, length):
        if n > room:
            raise ValueError("no room")

    def caches(key_cache, value_cache):
        return key_cache, value_cache

    def written(key, value):
        return key, value

    def begin(place):
        return place  # of what is written

    def many(n, place):
        return n - place

    def some(new):
        return new

    def write(self, cache, place, n, new):
        start = self.begin(place)
        cache[:, :, start : start + self.many(n, place)] = self.some(new)
        return cache

    def returned(cache, length, n):
        return cache[:, :, :n]

    def pair(keys, values):
        return keys, values

    def of_values(self, cache, length, n):
        return self.returned(cache, length, n)

    def write_keys(self, cache, place, n, new):
        return self.write(cache, place, n, new)

    def write_values(self, cache, place, n, new):
        return self.write(cache, place, n, new)

    def room(key_cache):
        return key_cache.shape[2]

    def __call__(self, key_cache, value_cache, length, key, value):
        n = self.place(length) + self.new(key)
        self.refuse(n, self.room(key_cache), length)
        (keys, values), new = self.caches(key_cache, value_cache), self.written(key, value)
        keys = self.write_keys(keys, self.place(length), n, new[0])
        values = self.write_values(values, self.place(length), n, new[1])
        return self.pair(self.returned(keys, length, n), self.of_values(values, length, n))


def never(*_):
    pass


def concatenate(cache, place, n, new):
    return torch.cat([cache[:, :, :place], new], dim=2)


def written_and_joined(self, cache, place, n, new):
    joined = concatenate(cache, place, n, new)
    Append.write(self, cache, place, n, new)
    return joined


def behind_the_room(cache, place, n, new):
    return torch.cat([cache, new], dim=2)


def what_fits(cache, place, n, new):
    cache[:, :, place:n] = new[:, :, : cache.shape[2] - place]
    return cache


def only_when_full(n, room, length):
    Append.refuse(length + 1, room, length)


def up_to_the_room(cache, length, n):
    return cache[:, :, : min(n, cache.shape[2])]


def move_up(cache, place, n, new):
    t, room = new.shape[2], cache.shape[2]
    kept = min(place, room - t)
    cache[:, :, :kept] = cache[:, :, place - kept : place].clone()
    cache[:, :, kept : kept + t] = new
    return cache


def round_and_round(cache, place, n, new):
    cache[:, :, torch.arange(place, n) % cache.shape[2]] = new
    return cache


def to_the_front(cache, place, n, new):
    cache[:, :, : new.shape[2]] = new
    return cache


def to_the_end(cache, place, n, new):
    cache[:, :, -new.shape[2] :] = new
    return cache


def added(cache, place, n, new):
    cache[:, :, place:n] += new
    return cache


def not_written(self, cache, place, n, new):
    return cache


def the_first(new):
    return new[:, :, :1]


def the_last(new):
    return new[:, :, -1:]


def up_to_one(cache, length, n):
    return cache[:, :, : length + 1]


# --- faults -------------------------------------------------------------------------------------

task.fault(
    "L5-CAT",
    refuse=(..., never),
    write=(concatenate, concatenate, behind_the_room),
    returned=(..., ..., lambda cache, length, n: cache),
)
task.fault(
    "L5-CLONE",
    returned=(
        lambda cache, length, n: cache[:, :, :n].clone(),
        lambda cache, length, n: cache[:, :, :n].contiguous(),
        ...,
    ),
    write=(..., ..., written_and_joined),
)
task.fault(
    "L5-WHOLE-COPY", caches=lambda key_cache, value_cache: (key_cache.clone(), value_cache.clone())
)
task.fault("L5-FULL-SILENT", refuse=never, write=(..., what_fits))
task.fault("L5-CUT-OFF", refuse=only_when_full, write=what_fits, returned=up_to_the_room)
task.fault("L5-RING", refuse=never, write=(move_up, round_and_round))
task.fault("L5-SWAPPED", written=lambda key, value: (value, key))
task.fault("L5-KEY-TWICE", written=lambda key, value: (key, key))
task.fault("L5-VALUE-TWICE", written=lambda key, value: (value, value))
task.fault(
    "L5-ONE-CACHE-WRITTEN",
    write_values=(not_written, ...),
    write_keys=(..., not_written),
)
task.fault("L5-ADDED", write=added)
task.fault("L5-PAIR-TURNED", pair=lambda keys, values: (values, keys))
task.fault("L5-WITHOUT-THE-NEW", returned=lambda cache, length, n: cache[:, :, :length])
task.fault("L5-ONLY-THE-NEW", returned=lambda cache, length, n: cache[:, :, length:n])
task.fault("L5-LAST-PLACE", refuse=lambda n, room, length: Append.refuse(n + 1, room, length))
task.fault("L5-ALL-THE-ROOM", returned=lambda cache, length, n: cache)
task.fault("L5-ONE-VIEWED-MORE", returned=lambda cache, length, n: cache[:, :, : n + 1])
task.fault("L5-ONE-VIEWED-LESS", returned=lambda cache, length, n: cache[:, :, : n - 1])
task.fault("L5-HEAD-AXIS", returned=lambda cache, length, n: cache[:, :n])
task.fault("L5-AT-THE-START", write=to_the_front)
task.fault("L5-AT-THE-END", write=to_the_end)
task.fault(
    "L5-OFF-BY-ONE",
    place=(lambda length: length + 1, ...),
    begin=(..., lambda place: place + 1),
)
task.fault(
    "L5-LAST-OVERWRITTEN",
    place=(..., lambda length: length - 1, ..., lambda length: max(0, length - 1)),
    begin=(lambda place: place - 1, ..., lambda place: max(0, place - 1), ...),
)
task.fault("L5-T-FROM-HEADS", new=lambda key: key.shape[1], refuse=(..., never))
task.fault(
    "L5-ROOM-OF-ANOTHER-AXIS",
    room=(
        lambda key_cache: key_cache.shape[1],
        lambda key_cache: key_cache.shape[0],
        lambda key_cache: key_cache.shape[3],
    ),
)
task.fault(
    "L5-LAST-ONE-ONLY",
    many=lambda n, place: 1,
    some=(the_last, the_first, the_last, the_first, the_first, the_last),
    returned=(up_to_one, ..., ..., up_to_one, ..., ...),
    new=(..., lambda key: 1, lambda key: 1, ..., ..., ...),
)
