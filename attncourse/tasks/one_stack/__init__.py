"""Chapter 9: what its tasks share."""

from attncourse.checks.task import Chapter

chapter = Chapter("09_one_stack", "chapter 9")


def merged(pieces: list[str], pair: tuple[str, str]) -> list[str]:
    """The pieces with every such pair of neighbors put together, from the left."""
    new = []
    for piece in pieces:
        if new and (new[-1], piece) == tuple(pair):
            new[-1] += piece
        else:
            new.append(piece)
    return new


def merged_once(pieces, pair):
    """Only where the pair stands first."""
    for place in range(len(pieces) - 1):
        if (pieces[place], pieces[place + 1]) == tuple(pair):
            return [*pieces[:place], "".join(pair), *pieces[place + 2 :]]
    return pieces


def merged_as_text(pieces, pair):
    """By replacing letters and blanks in a text, wherever they stand."""
    return " ".join(pieces).replace(" ".join(pair), "".join(pair)).split(" ")


def merged_from_the_right(pieces, pair):
    turned = merged([piece[::-1] for piece in pieces[::-1]], tuple(p[::-1] for p in pair[::-1]))
    return [piece[::-1] for piece in turned[::-1]]
