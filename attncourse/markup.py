"""HTML that escapes what is put into it, unless that is `Markup` itself; pages are Jinja2's.

Both have the same escape. It comes into a notebook in a millisecond, and Jinja2 with a template in
a tenth of a second.
"""

from collections.abc import Iterable
from itertools import starmap

from markupsafe import Markup


def each(template: str, *columns: Iterable) -> Markup:
    """Fill a template once for each row of equally long columns: each("<li>{}</li>", names)."""
    return Markup("").join(starmap(Markup(template).format, zip(*columns, strict=True)))


def with_code(text: str) -> Markup:
    """A text in which `backticks` become code."""
    code, parts = Markup("<code>{}</code>").format, enumerate(text.split("`"))
    return each("{}", (code(part) if n % 2 else part for n, part in parts))
