"""What a terminal, a pipe or a file cannot hold is written in letters that each of them can.

Windows gives a pipe the letters of its own country, and LC_ALL=C gives ASCII: neither has a ✓.
"""

import codecs

HANDLER = "attncourse.plain"
PLAIN = {
    **{"✓": "+", "✗": "x", "·": ".", "–": "-", "—": "-", "−": "-", "×": "x", "→": "->"},
    **{"●": "*", "○": "o", "■": "#", "…": "...", "≤": "<=", "≥": ">=", "∞": "inf", "√": "sqrt"},
    **{"“": '"', "”": '"', "’": "'", "\N{NO-BREAK SPACE}": " "},
}


def _plain(error: UnicodeError) -> tuple[str, int]:
    if not isinstance(error, UnicodeEncodeError):
        raise error
    part = error.object[error.start : error.end]
    return "".join(PLAIN.get(letter, "?") for letter in part), error.end


codecs.register_error(HANDLER, _plain)


def prepare(*streams) -> None:
    """Let streams of this program's own write whatever it says."""
    for stream in streams:
        if hasattr(stream, "reconfigure"):  # not if somebody put another object there
            stream.reconfigure(errors=HANDLER)


def fitting(text: str, stream) -> str:
    """A text as a stream of somebody else's can write it."""
    encoding = getattr(stream, "encoding", None) or "utf-8"
    return text.encode(encoding, HANDLER).decode(encoding)
