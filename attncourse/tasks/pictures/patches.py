"""Cut a picture into tiles, each one vector: task 1 of chapter 13."""

import torch

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
    hints=(
        "Take a picture of 4 × 6 pixels and patches of 2 × 3. Draw it, and write the numbers of "
        "the upper right patch in a row. How far apart do they stand in memory?",
        "A row of pixels is (columns of patches) times (pixels in a patch's row), so the axis x "
        "can be split into two, and y as well: six axes in all. Then bring those that tell which "
        "patch together, and those that tell where in it.",
        "einops: 'b c (i y) (j x) -> b (i j) (c y x)' with y and x from size. Without it: reshape "
        "to (b, c, i, height, j, width), permute to (b, i, j, c, height, width), flatten twice.",
    ),
    probes=probes,
    differentiated=("plain",),
    small=small,
)


@task.check(1)
def one_row_of_numbers_for_each_patch(answer, rng):
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
def a_patch_holds_what_lies_together(answer, rng):
    for inputs in (
        numbered(2, 1, 4, 6, (2, 3)),
        numbered(1, 1, 4, 4, (2, 2)),
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
def within_a_patch_color_by_color_and_row_by_row(answer, rng):
    answer.matches(numbered(1, 3, 4, 6, (2, 3)))
    answer.matches(cut(rng))
    answer.matches(cut(rng, b=2, c=2, y=4, x=4, size=(2, 2)))
    answer.matches(cut(rng, b=3, c=3, y=9, x=9, size=(3, 3)))


@task.check(1)
def patches_may_have_any_shape(answer, rng):
    for y, x, size in ((4, 6, (4, 2)), (6, 3, (2, 3)), (2, 3, (1, 1)), (3, 4, (3, 4))):
        answer.matches(cut(rng, c=2, y=y, x=x, size=size))
    answer.matches(cut(rng, b=1, c=1, y=16, x=48, size=(16, 8)))
    answer.matches(cut(rng, dtype=torch.float64))


@task.check(1)
def gradients_reach_every_pixel(answer, rng):
    answer.gradients_match(cut(rng))


@task.check(1)
def it_changes_nothing_but_its_result(answer, rng):
    moves_nothing(answer, cut(rng))
    turned = cut(rng, c=3, y=4, x=4, size=(2, 2))
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

    def within(apart):
        return apart.flatten(3)  # b i j p

    def sequence(numbers):
        return numbers.flatten(1, 2)

    def result(patches):
        return patches

    def __call__(self, image, size):
        height, width = self.of(size, image)
        tiles = self.apart(self.tiles(self.looked_at(image), height, width))
        return self.result(self.sequence(self.within(tiles)))


# --- faults: what is a patch --------------------------------------------------------------------

task.fault(
    "C-PATCH-RESHAPED",
    "`reshape` to (b, n, p) cuts the picture up.",
    "A reshape cuts the list of numbers as it lies in memory: after the first row of pixels comes "
    "the second. Your patches are strips of rows. What lies below each other has to move together "
    "first.",
    tiles=lambda image, height, width: image.reshape(
        len(image),
        image.shape[2] // height,
        image.shape[3] // width,
        image.shape[1],
        height,
        width,
    ),
    apart=as_is,
)
task.fault(
    "C-PATCH-GRID-MIXED",
    "Split y into (height, rows of patches) and x likewise.",
    "The pixels of a patch lie side by side, so the pixel's axis is the inner one: (i height), "
    "(j width). In the other order a patch holds every second, third, … pixel of the picture.",
    tiles=lambda image, height, width: image.reshape(
        *image.shape[:2], height, image.shape[2] // height, width, image.shape[3] // width
    ).permute(0, 1, 3, 2, 5, 4),
)
task.fault(
    "C-PATCH-SIZE-TURNED",
    "`size` is width, then height.",
    "As in (b c y x), the vertical comes first: height, then width. Square patches hide it.",
    of=lambda size, image: (size[1], size[0]),
)
task.fault(
    "C-PATCH-SQUARE",
    "Patches are squares.",
    "Often they are. Here `size` tells height and width, and both matter.",
    of=(lambda size, image: (size[0], size[0]), lambda size, image: (size[1], size[1])),
)
task.fault(
    "C-PATCH-HOW-MANY",
    "`size` says how many patches there are down and across.",
    "It is the size of one, in pixels. How many fit follows from the picture.",
    of=lambda size, image: (image.shape[2] // size[0], image.shape[3] // size[1]),
)


def windows(image, height, width):
    return image.unfold(2, height, 1).unfold(3, width, 1).permute(0, 1, 2, 4, 3, 5)


task.fault(
    "C-PATCH-OVERLAP",
    "A window slides over the picture pixel by pixel.",
    "That is how a convolution usually goes. Patches lie edge to edge: the step is as long as the "
    "window, and every pixel is in one patch.",
    tiles=(
        windows,
        lambda image, height, width: windows(image, height, width)[
            :, :, : image.shape[2] // height, :, : image.shape[3] // width
        ],
    ),
)
task.fault(
    "C-PATCH-CENTER",
    "One pixel stands for its patch.",
    "Then most of the picture is never seen. A patch hands over all of its numbers.",
    within=lambda apart: apart[..., :1, :1].flatten(3),
)
task.fault(
    "C-PATCH-MEAN",
    "A patch is described by its average color.",
    "That is a small, blurred picture: with patches as large as a digit nothing is left to read. "
    "All numbers are kept; a linear layer decides later what matters.",
    within=lambda apart: apart.mean((-2, -1)),
)

# --- faults: colors -----------------------------------------------------------------------------

task.fault(
    "C-PATCH-FIRST-COLOR",
    "Pictures are gray, so one channel is enough.",
    "This one may have several. They all belong to the patch: p = c · height · width.",
    looked_at=lambda image: image[:, :1],
)
task.fault(
    "C-PATCH-GRAY",
    "Colors are averaged first.",
    "Red and green of the same lightness become the same. A patch holds the numbers of all colors.",
    looked_at=lambda image: image.mean(1, keepdim=True),
)
task.fault(
    "C-PATCH-A-COLOR-EACH",
    "Each color has patches of its own.",
    "Then there are c times as many, and what lies at the same place is torn apart. The colors of "
    "a place belong to one patch.",
    apart=lambda tiles: tiles.permute(0, 1, 2, 4, 3, 5).flatten(1, 2)[:, :, :, None],
)
task.fault(
    "C-PATCH-COLORS-IN-FRONT",
    "Once the picture is cut, a `reshape` to (b, n, p) is all that is left.",
    "After `image.unfold` the axes are (b c i j height width): the colors stand in front of the "
    "patches, so a row of yours is one color of several patches. First bring c behind i and j.",
    apart=lambda tiles: tiles.transpose(3, 4).reshape(
        *(tiles.shape[place] for place in (0, 2, 4, 1, 3, 5)),
    ),
)
task.fault(
    "C-PATCH-COLOR-LAST",
    "Within a patch a pixel's colors stand side by side.",
    "Many programs have it so, and a model can learn either. Here, as in ViT's convolution, each "
    "color comes whole: (c height width). Weights of one order mean nothing in the other.",
    within=lambda apart: apart.movedim(3, -1).flatten(3),
)

# --- faults: order ------------------------------------------------------------------------------

task.fault(
    "C-PATCH-DOWN-FIRST",
    "Patches go down the first column, then down the second.",
    "They go as one reads: along the first row. If positions count in one order and patches in the "
    "other, the picture is scrambled.",
    apart=lambda tiles: tiles.permute(0, 4, 2, 1, 3, 5),
)
task.fault(
    "C-PATCH-FROM-BELOW",
    "y grows upward, so the first row of patches is the lowest.",
    "In a picture row 0 is at the top. Patches begin there.",
    apart=lambda tiles: tiles.permute(0, 2, 4, 1, 3, 5).flip(1),
)
task.fault(
    "C-PATCH-PIXELS-TURNED",
    "Within a patch, column by column.",
    "Row by row, as in the picture. In your patches every shape lies on its side, mirrored.",
    within=lambda apart: apart.mT.flatten(3),
)

# --- faults: what comes back --------------------------------------------------------------------

task.fault(
    "C-PATCH-GRID",
    "The result keeps rows and columns of patches: (b i j p).",
    "Attention reads a sequence: one axis n for all patches. Where a patch lies is what positions "
    "are for.",
    sequence=as_is,
)
task.fault(
    "C-PATCH-NUMBERS-FIRST",
    "The result is (b p n).",
    "`F.unfold` gives it so. A word is a row: (b n p), one vector a patch.",
    result=lambda patches: patches.mT,
)
task.fault(
    "C-PATCH-ONE-LONG-ROW",
    "All patches of the batch form one sequence.",
    "Then the pictures of a batch would look at each other. The axis b stays.",
    result=lambda patches: patches.flatten(0, 1),
)
task.fault(
    "C-PATCH-NOT-FLAT",
    "A patch stays a little picture.",
    "A linear layer takes a vector. Its numbers are written in one row: p = c · height · width.",
    within=as_is,
)
