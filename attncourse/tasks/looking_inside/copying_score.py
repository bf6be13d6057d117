import torch

from attncourse import looking_inside as reference
from attncourse.checks.answer import Failure, moves_nothing
from attncourse.checks.inputs import normal
from attncourse.checks.task import Task
from attncourse.tasks import as_is


def head(rng, w=7, m=5, d=None, lean=0.0, dtype=torch.float64):
    """A head of rank d in a model of width m with w words; `lean` makes it copy, or forbid."""
    W_E = normal(rng, w, m, dtype=dtype)
    W_U = normal(rng, m, w, dtype=dtype)
    d = m if d is None else d
    W_OV = normal(rng, m, d, dtype=dtype) @ normal(rng, d, m, dtype=dtype) / d
    if lean:
        W_OV = W_OV + lean * torch.linalg.pinv(W_E) @ torch.linalg.pinv(W_U)
    return {"W_OV": W_OV, "W_E": W_E, "W_U": W_U}


def probes(rng):
    return {
        "plain": head(rng),
        "another": head(rng, 8, 4),
        "narrow": head(rng, 7, 6, d=2),
        "rank one": head(rng, 6, 5, d=1),
        "copies": head(rng, lean=3.0),
        "copies a little": head(rng, lean=0.7),
        "forbids": head(rng, lean=-3.0),
        "as many words as features": head(rng, 5, 5),
        "fewer words": head(rng, 4, 6),
        "float32": head(
            rng, 5, 7, dtype=torch.float32
        ),  # no eigenvalue is 0, with a sign by chance
        "large": {k: 30 * x for k, x in head(rng, 6, 4, lean=-0.7).items()},
        "turns": turning(1.2),
    }


def turning(angle):
    """Words that are handed on turned by an angle."""
    sine, cosine = torch.tensor(angle).sin(), torch.tensor(angle).cos()
    turn = torch.stack([torch.stack([cosine, -sine]), torch.stack([sine, cosine])])
    basis = torch.tensor([[0.6, 0.8], [0.8, -0.6]])
    return {"W_OV": 2 * turn, "W_E": basis, "W_U": basis.T.contiguous()}


def small(rng):
    yield {name: torch.tensor([[n]]) for name, n in (("W_OV", -2.0), ("W_E", 1.0), ("W_U", 3.0))}
    yield turning(1.2)
    for w, m in ((2, 1), (1, 2), (2, 2), (3, 2), (3, 3)):
        for _ in range(2):
            yield head(rng, w, m, dtype=torch.float32)


task = Task(
    reference.copying_score,
    number=3,
    returns=float,
    difficulty=2,
    minutes=15,
    section="copying",
    probes=probes,
    small=small,
    tolerance=1e-3,
)


@task.check(1)
def it_is_a_plain_number_between_minus_one_and_one(answer, rng):
    for lean in (0.0, 3.0, -3.0):
        inputs = head(rng, lean=lean)
        score = answer(inputs)
        seen = answer.observe(inputs).returned
        if not isinstance(seen, float):
            raise Failure(f"A plain float is expected; yours is {type(seen).__name__}.", inputs)
        if not -1.001 <= score <= 1.001:
            came = answer.apart(score, 1.0 if score > 0 else -1.0)[0]
            raise Failure(f"The score lies between −1 and 1; yours is {came}.", inputs)


@task.check(2)
def a_head_that_copies_scores_one_and_one_that_forbids_minus_one(answer, rng):
    for sign, what in ((1.0, "hands on what it reads"), (-1.0, "hands on the opposite")):
        basis = torch.linalg.qr(normal(rng, 4, 4)).Q
        alike = {"W_OV": sign * torch.eye(4), "W_E": basis, "W_U": basis.T.contiguous()}
        for inputs in (alike, through_other_bases(rng, sign)):
            score = answer(inputs)
            if not abs(score - sign) <= 1e-3:  # nor NaN
                came = answer.apart(score, sign)[0]
                raise Failure(f"A head that {what} scores {sign:+.0f}; yours says {came}.", inputs)


def through_other_bases(rng, sign):
    """A head whose table is the identity, or its opposite; W_E and W_U have nothing in common."""
    W_E, W_U = (torch.linalg.qr(normal(rng, 5, 5, dtype=torch.float64)).Q for _ in range(2))
    W_E = W_E * torch.arange(1.0, 6.0)  # a basis, and not orthonormal
    return {"W_OV": sign * W_E.inverse() @ W_U.inverse(), "W_E": W_E, "W_U": W_U}


@task.check(2)
def it_is_right_for_complex_eigenvalues(answer, rng):
    for angle in (0.5, 1.2, 2.4):
        answer.matches(turning(angle), tolerance=1e-3)


@task.check(3)
def it_is_right_for_any_head(answer, rng):
    for w, m, d, lean in ((7, 5, 5, 0.0), (8, 4, 4, 0.7), (7, 6, 2, 0.0), (4, 6, 6, 0.0)):
        answer.matches(head(rng, w, m, d, lean), tolerance=1e-3)
    answer.matches(head(rng, 6, 5, 1), tolerance=1e-3)
    answer.matches(head(rng, dtype=torch.float32), tolerance=1e-3)


@task.check(1)
def the_size_of_the_head_does_not_matter(answer, rng):
    inputs = head(rng, lean=0.5)
    larger = {name: 30 * x for name, x in inputs.items()}
    one, two = answer(inputs), answer(larger)
    if abs(one - two) > 1e-3:
        before, after = answer.apart(one, two)
        raise Failure(
            f"With all numbers 30 times as large the score should stay; yours goes from {before} "
            f"to {after}.",
            larger,
        )
    moves_nothing(answer, head(rng))


# --- the reference in steps ---------------------------------------------------------------------


@task.steps
class Copying:
    def table(W_OV, W_E, W_U):
        return W_E @ W_OV @ W_U

    def spectrum(table):
        return torch.linalg.eigvals(table)

    def above(λ, table):
        return λ.real.sum()

    def below(λ, table):
        return λ.abs().sum()

    def result(score):
        return score.item()

    def __call__(self, W_OV, W_E, W_U):
        table = self.table(W_OV.double(), W_E.double(), W_U.double())
        λ = self.spectrum(table)
        return self.result(self.above(λ, table) / self.below(λ, table))


def larger_than_noise(λ):
    return λ[λ.abs() > 1e-9 * λ.abs().max()]


task.spelling(table=lambda W_OV, W_E, W_U: W_OV @ W_U @ W_E)
task.fault(
    "I-SINGULAR-VALUES",
    spectrum=(torch.linalg.svdvals, lambda table: torch.linalg.eigvals(table).abs()),
)
task.fault("I-NOT-NORMALIZED", below=lambda λ, table: 1.0)
task.fault("I-MEAN-EIGENVALUE", below=lambda λ, table: len(λ))
task.fault(
    "I-LENGTH-BELOW",
    below=(lambda λ, table: λ.abs().square().sum().sqrt(), lambda λ, table: table.norm()),
)
task.fault(
    "I-NO-SIGN",
    above=(lambda λ, table: λ.sum().abs(), lambda λ, table: λ.real.abs().sum()),
)
task.fault("I-SUM-OVER-ITSELF", below=lambda λ, table: λ.sum().abs())
task.fault(
    "I-SIGNS",
    above=(
        lambda λ, table: λ.real.sign().sum(),
        lambda λ, table: λ.real.sign().sum(),
        lambda λ, table: larger_than_noise(λ).real.sign().sum(),
    ),
    below=(lambda λ, table: len(λ), ..., lambda λ, table: len(larger_than_noise(λ))),
)
task.fault(
    "I-COUNTED",
    above=(
        lambda λ, table: (λ.real > 0).sum().double(),
        lambda λ, table: (λ.real > 0).sum().double(),
        lambda λ, table: (larger_than_noise(λ).real > 0).sum().double(),
    ),
    below=(lambda λ, table: len(λ), ..., lambda λ, table: len(larger_than_noise(λ))),
)
task.fault("I-POSITIVE-ONLY", above=lambda λ, table: λ.real.clamp(min=0).sum())
task.fault(
    "I-LARGEST-ONLY",
    above=lambda λ, table: λ[λ.abs().argmax()].real,
    below=(lambda λ, table: λ.abs().max(), ...),
)
task.fault("I-OVER-LARGEST", below=lambda λ, table: λ.abs().max())
task.fault("I-PARTS-ADDED", below=lambda λ, table: (λ.real.abs() + λ.imag.abs()).sum())
task.fault("I-IMAGINARY-DROPPED", below=lambda λ, table: λ.real.abs().sum())
task.fault(
    "I-ONLY-REAL-ONES",
    above=lambda λ, table: λ.real[λ.imag.abs() < 1e-9].sum(),
    below=lambda λ, table: λ.real[λ.imag.abs() < 1e-9].abs().sum() + 1e-12,
)
task.fault(
    "I-SYMMETRIZED",
    spectrum=(
        lambda table: torch.linalg.eigvalsh(table).to(torch.complex128),
        lambda table: torch.linalg.eigvalsh((table + table.mT) / 2).to(torch.complex128),
    ),
)
task.fault(
    "I-WITH-THE-WORD-ITSELF",
    table=lambda W_OV, W_E, W_U: W_E @ (W_OV + torch.eye(len(W_OV)).to(W_OV)) @ W_U,
)
task.fault(
    "I-UNIT-WORDS",
    table=(
        lambda W_OV, W_E, W_U: (
            torch.nn.functional.normalize(W_E, dim=1)
            @ W_OV
            @ torch.nn.functional.normalize(W_U, dim=0)
        ),
        lambda W_OV, W_E, W_U: torch.nn.functional.normalize(W_E, dim=1) @ W_OV @ W_U,
    ),
)
task.fault("I-PROBABILITIES", table=lambda W_OV, W_E, W_U: (W_E @ W_OV @ W_U).softmax(-1))
task.fault("I-OV-ALONE", table=lambda W_OV, W_E, W_U: W_OV)
task.fault("I-WITHOUT-OV", table=lambda W_OV, W_E, W_U: W_E @ W_U)
task.fault(
    "I-TIED",
    table=(
        lambda W_OV, W_E, W_U: W_E @ W_OV @ W_E.mT,
        lambda W_OV, W_E, W_U: W_U.mT @ W_OV @ W_U,
    ),
)
task.fault("I-OV-TRANSPOSED", table=lambda W_OV, W_E, W_U: W_E @ W_OV.mT @ W_U)
task.fault(
    "I-DIAGONAL",
    below=(lambda λ, table: table.diagonal().abs().sum(), ...),
    spectrum=(..., lambda table: table.diagonal().to(torch.complex128)),
)
task.fault("I-SINGULAR-BELOW", below=lambda λ, table: torch.linalg.svdvals(table).sum())
task.fault(
    "I-RAISED-MOST",
    above=lambda λ, table: (table.argmax(1) == torch.arange(len(table))).double().sum(),
    below=lambda λ, table: len(table),
)
task.fault("I-ENTRIES", below=lambda λ, table: table.abs().sum())
task.fault(
    "I-SQUARED",
    above=(lambda λ, table: (λ.real * λ.abs()).sum(), ...),
    below=lambda λ, table: λ.abs().square().sum(),
)


task.fault(
    "I-EACH-SHARE",
    above=(
        lambda λ, table: (larger_than_noise(λ).real / larger_than_noise(λ).abs()).sum(),
        lambda λ, table: (λ.real / λ.abs()).sum(),
    ),
    below=(lambda λ, table: len(larger_than_noise(λ)), lambda λ, table: len(λ)),
)
task.fault("I-MEAN-OVER-LARGEST", below=lambda λ, table: len(λ) * λ.abs().max())
task.fault("I-TENSOR", result=as_is)
task.fault("I-COMPLEX", above=lambda λ, table: λ.sum())
task.fault(
    "I-ZERO-TO-ONE",
    result=(lambda score: (score.item() + 1) / 2, lambda score: max(0.0, score.item())),
)
task.fault("I-PERCENT", result=lambda score: 100 * score.item())
task.fault("I-ROUNDED", result=lambda score: round(score.item(), 2))
