import itertools

import torch
from einops import rearrange

from attncourse import pictures as reference
from attncourse.checks.answer import Failure, has_shape, moves_nothing
from attncourse.checks.inputs import normal
from attncourse.checks.task import Task
from attncourse.tasks import as_is


def cut(rng, b=2, c=3, y=4, x=6, size=(2, 3), dtype=torch.float32):
    return {"image": normal(rng, b, c, y, x, dtype=dtype), "size": size}


def numbered(b, c, y, x, size):
    """Pixels that say where they are: color, row and column are the digits of each number."""
    color, row, column = torch.meshgrid(
        torch.arange(c), torch.arange(y), torch.arange(x), indexing="ij"
    )
    one = (100 * (color + 1) + 10 * row + column).float()
    return {"image": torch.stack([one + 1000 * i for i in range(b)]), "size": size}


def probes(rng):
    return {
        "plain": cut(rng),
        "one color": cut(rng, c=1, y=6, x=6, size=(3, 2)),
        "as high as the picture": cut(rng, b=3, c=1, y=4, x=6, size=(4, 2)),
        "as wide as the picture": cut(rng, c=2, y=6, x=3, size=(2, 3)),
        "square patches": cut(rng, c=2, y=4, x=6, size=(2, 2)),
        "all equal": cut(rng, b=2, c=2, y=4, x=4, size=(2, 2)),
        "three by three": cut(rng, b=3, c=3, y=9, x=9, size=(3, 3)),
        "single pixels": cut(rng, c=3, y=2, x=3, size=(1, 1)),
        "one patch": cut(rng, c=2, y=3, x=4, size=(3, 4)),
        "more rows than columns": cut(rng, c=2, y=12, x=4, size=(2, 4)),
        "six by six": cut(rng, b=1, c=1, y=12, x=18, size=(2, 3)),
        "one picture": cut(rng, b=1, c=3, y=4, x=4, size=(2, 4)),
        "double": cut(rng, dtype=torch.float64),
    }


def small(rng):
    for b, c, y, x, size in (
        (1, 1, 1, 2, (1, 1)),
        (1, 1, 2, 2, (1, 2)),
        (1, 1, 2, 2, (2, 1)),
        (1, 1, 2, 2, (2, 2)),
        (1, 1, 2, 4, (2, 2)),
        (1, 1, 4, 2, (2, 2)),
        (1, 2, 2, 2, (2, 2)),
        (1, 1, 4, 4, (2, 2)),
        (1, 1, 2, 6, (1, 3)),
        (1, 1, 4, 6, (2, 3)),
        (1, 2, 2, 4, (2, 2)),
        (2, 1, 2, 2, (1, 1)),
        (2, 2, 2, 4, (2, 2)),
    ):
        yield numbered(b, c, y, x, size)
    yield cut(rng, 1, 1, 2, 2, (2, 1), torch.float64)


task = Task(
    reference.patches,
    number=1,
    returns=("patches",),
    difficulty=2,
    minutes=20,
    section="picture-patches",
    probes=probes,
    differentiated=("plain",),
    small=small,
)


@task.check(1)
def one_row_of_all_its_numbers_for_each_patch(answer, rng):
    for b, c, y, x, size in ((2, 3, 4, 6, (2, 3)), (3, 1, 8, 4, (4, 2)), (1, 2, 5, 7, (5, 1))):
        inputs = cut(rng, b, c, y, x, size)
        n, p = (y // size[0]) * (x // size[1]), c * size[0] * size[1]
        has_shape("patches", answer(inputs), "(b n p)", b, n, p, inputs=inputs)


@task.check(1)
def every_number_of_the_picture_is_there_once(answer, rng):
    for inputs in (numbered(2, 2, 4, 6, (2, 3)), numbered(1, 3, 6, 4, (2, 2))):
        seen, there = answer(inputs).flatten().sort(), inputs["image"].flatten().sort()
        if seen.values.shape != there.values.shape or (seen.values != there.values).any():
            raise Failure("The patches together do not hold each number once.", inputs)


@task.check(2)
def each_patch_holds_its_own_piece_of_the_picture(answer, rng):
    for inputs in (
        numbered(2, 1, 4, 6, (2, 3)),
        numbered(2, 1, 4, 9, (2, 3)),  # more columns of patches than rows
        numbered(2, 3, 6, 4, (3, 2)),
    ):
        height, width = inputs["size"]
        b, c, y, x = inputs["image"].shape
        got = answer(inputs)
        has_shape(
            *("patches", got, "(b n p)", b, (y // height) * (x // width), c * height * width),
            inputs=inputs,
        )
        for i in range(y // height):
            for j in range(x // width):
                part = inputs["image"][
                    :, :, i * height : (i + 1) * height, j * width : (j + 1) * width
                ]
                there = got[:, i * (x // width) + j].sort().values
                if (there != part.flatten(1).sort().values).any():
                    raise Failure(
                        f"Patch {i * (x // width) + j} should hold the pixels of rows "
                        f"{i * height} to {(i + 1) * height - 1} and columns {j * width} to "
                        f"{(j + 1) * width - 1}, and no others.",
                        inputs,
                    )


@task.check(2)
def each_number_stands_in_its_place(answer, rng):
    answer.matches(numbered(1, 3, 4, 6, (2, 3)))
    answer.matches(cut(rng, x=12))  # more columns of patches than rows
    answer.matches(cut(rng, b=2, c=2, y=4, x=4, size=(2, 2)))
    answer.matches(cut(rng, b=3, c=3, y=9, x=9, size=(3, 3)))


@task.check(1)
def it_is_right_for_patches_of_any_shape(answer, rng):
    for y, x, size in ((4, 6, (4, 2)), (6, 3, (2, 3)), (2, 3, (1, 1)), (3, 4, (3, 4))):
        answer.matches(cut(rng, c=2, y=y, x=x, size=size))
    answer.matches(cut(rng, b=1, c=1, y=16, x=48, size=(16, 8)))
    answer.matches(cut(rng, dtype=torch.float64))


@task.check(1)
def each_pixel_gets_the_right_gradient(answer, rng):
    answer.gradients_match(cut(rng, x=12))


@task.check(1)
def it_is_right_for_any_layout_in_memory_and_changes_nothing(answer, rng):
    moves_nothing(answer, cut(rng))
    turned = cut(rng, c=3, y=4, x=6, size=(2, 2))
    turned["image"] = turned["image"].mT.contiguous().mT  # not contiguous
    answer.matches(turned)


# --- the reference in steps ---------------------------------------------------------------------


@task.steps
class Patches:
    def of(size, image):
        return size

    def looked_at(image):
        return image

    def tiles(image, height, width):
        b, c, y, x = image.shape
        return image.reshape(b, c, y // height, height, x // width, width)

    def apart(tiles):
        return tiles.permute(0, 2, 4, 1, 3, 5)  # b i j c y x

    def pixels(apart):
        return apart

    def within(apart):
        return rearrange(apart, "b i j c y x -> b i j (c y x)")

    def sequence(numbers):
        return numbers.flatten(1, 2)

    def result(patches):
        return patches

    def __call__(self, image, size):
        height, width = self.of(size, image)
        tiles = self.pixels(self.apart(self.tiles(self.looked_at(image), height, width)))
        return self.result(self.sequence(self.within(tiles)))


def without_the_rest(image, height, width):
    tiles = image.unfold(2, height, height).unfold(3, width, width)  # b c i j y x
    return tiles.permute(0, 1, 2, 4, 3, 5)


# --- faults: what is a patch --------------------------------------------------------------------

task.fault(
    "C-PATCH-RESHAPED",
    tiles=(
        lambda image, height, width: image.reshape(
            len(image),
            image.shape[2] // height,
            image.shape[3] // width,
            image.shape[1],
            height,
            width,
        ),
        lambda image, height, width: image.reshape(
            *image.shape[:2], image.shape[2] // height, image.shape[3] // width, height, width
        ),
    ),
    apart=(as_is, lambda tiles: tiles.permute(0, 2, 3, 1, 4, 5)),
)
task.fault(
    "C-PATCH-GRID-MIXED",
    tiles=(
        lambda image, height, width: image.reshape(
            *image.shape[:2], height, image.shape[2] // height, width, image.shape[3] // width
        ).permute(0, 1, 3, 2, 5, 4),
        lambda image, height, width: image.reshape(
            *image.shape[:2], image.shape[2] // height, height, width, image.shape[3] // width
        ).permute(0, 1, 2, 3, 5, 4),
        lambda image, height, width: image.reshape(
            *image.shape[:2], height, image.shape[2] // height, image.shape[3] // width, width
        ).permute(0, 1, 3, 2, 4, 5),
    ),
)
task.fault(
    "C-PATCH-SIZE-TURNED",
    of=lambda size, image: (size[1], size[0]),
    tiles=(..., without_the_rest),
)
task.fault(
    "C-PATCH-SQUARE",
    of=(lambda size, image: (size[0], size[0]), lambda size, image: (size[1], size[1])),
)
task.fault(
    "C-PATCH-HOW-MANY",
    of=lambda size, image: (image.shape[2] // size[0], image.shape[3] // size[1]),
)


def windows(image, height, width):
    return image.unfold(2, height, 1).unfold(3, width, 1).permute(0, 1, 2, 4, 3, 5)


task.fault(
    "C-PATCH-OVERLAP",
    tiles=(
        windows,
        lambda image, height, width: windows(image, height, width)[
            :, :, : image.shape[2] // height, :, : image.shape[3] // width
        ],
    ),
)
task.fault("C-PATCH-CENTER", within=lambda apart: apart[..., :1, :1].flatten(3))
task.fault("C-PATCH-MEAN", within=lambda apart: apart.mean((-2, -1)))

# --- faults: colors -----------------------------------------------------------------------------

task.fault("C-PATCH-FIRST-COLOR", looked_at=lambda image: image[:, :1])
task.fault("C-PATCH-GRAY", looked_at=lambda image: image.mean(1, keepdim=True))
task.fault(
    "C-PATCH-A-COLOR-EACH",
    apart=(
        lambda tiles: tiles.permute(0, 1, 2, 4, 3, 5).flatten(1, 2)[:, :, :, None],
        lambda tiles: tiles.permute(0, 2, 4, 1, 3, 5).flatten(2, 3)[:, :, :, None],
    ),
)
task.fault(
    "C-PATCH-COLORS-IN-FRONT",
    apart=lambda tiles: tiles.transpose(3, 4).reshape(
        *(tiles.shape[place] for place in (0, 2, 4, 1, 3, 5)),
    ),
)
task.fault(
    "C-PATCH-ROW-BY-ROW",
    within=lambda apart: rearrange(apart, "b i j c y x -> b i j (y c x)"),
)
task.fault(
    "C-PATCH-COLOR-LAST",
    within=lambda apart: rearrange(apart, "b i j c y x -> b i j (y x c)"),
)

# --- faults: order ------------------------------------------------------------------------------

task.fault("C-PATCH-DOWN-FIRST", apart=lambda tiles: tiles.permute(0, 4, 2, 1, 3, 5))


def counted_by_rows(patches, rows, columns):
    """Patch (i, j) is written to place i · rows + j; what is never written to is 0."""
    laid = torch.zeros_like(patches)
    for i, j in itertools.product(range(rows), range(columns)):
        laid[:, i * rows + j] = patches[:, i * columns + j]
    return laid


@task.fault("C-PATCH-COUNTED-BY-ROWS")
class CountedByRows(Patches):
    def __call__(self, image, size):
        rows, columns = image.shape[2] // size[0], image.shape[3] // size[1]
        return counted_by_rows(super().__call__(image, size), rows, columns)


task.fault(
    "C-PATCH-FROM-BELOW",
    apart=(lambda tiles: tiles.permute(0, 2, 4, 1, 3, 5).flip(1), ...),
    looked_at=(..., lambda image: image.flip(2)),
)
task.fault("C-PATCH-PIXELS-TURNED", pixels=lambda apart: apart.mT)

# --- faults: what comes back --------------------------------------------------------------------

task.fault("C-PATCH-GRID", sequence=as_is)
task.fault(
    "C-PATCH-VIEW-FOR-TRANSPOSE",
    result=lambda patches: patches.mT.reshape(patches.shape),
)
task.fault("C-PATCH-NUMBERS-FIRST", result=lambda patches: patches.mT)
task.fault("C-PATCH-ONE-LONG-ROW", result=lambda patches: patches.flatten(0, 1))
task.fault("C-PATCH-NOT-FLAT", within=as_is)
