"""A lab's record: a file that survives a disconnect, and one short string that fits in a cell.

A record is plain data: `{"lab", "machine", "predictions", "points"}`. A point is one measured
configuration; its keys are either the configuration (`name`, `n`, `b`, `dtype`, …) or what was
measured (`MEASURED`).
"""

import base64
import contextlib
import html
import itertools
import json
import math
import os
import re
import statistics
import time
import zlib
from collections.abc import Callable, Mapping
from pathlib import Path

PREFIX = "attn1:"
LIMIT = 4096  # characters of a receipt: one notebook cell, one chat message
FEWEST = 20  # samples a point keeps, however long the receipt

# A receipt comes from anywhere, so nothing in it may grow without bound.
MAX_TEXT, MAX_JSON, MAX_POINTS, MAX_SAMPLES, MAX_STRING = 65_536, 1_000_000, 400, 2_000, 300

# Keys of a point that a measurement fills in. All others say what was measured.
# fmt: off
MEASURED = frozenset({
    "seconds", "started", "session", "attempts", "samples", "edited", "not_finite", "clock",
    "clocks", "launch", "calls", "label", "headline", "error", "backend", "precision",
    "peak_bytes", "flops", "bytes", "wall_over_cpu", "reference_error",
})
# fmt: on

AGAIN = "Paste it again, as a code block if a chat program is on the way."
ANEW = "Run the measuring cell to its end, and paste everything between the three quotes."


class ReceiptError(ValueError):
    """A receipt that cannot be read; its message says why and what to do."""


class DamagedReceipt(ReceiptError):
    """Lost or changed characters on the way: paste it again."""


class ForgedReceipt(ReceiptError):
    """Arrived as it was sent, but no lab writes such a thing."""


class Recorder:
    """Keep what a lab measures: every point is on disk before the next one starts.

    A restart goes on where it stopped: configurations already in the file are `done`. Each machine
    has a file of its own, so times from a CPU and from a GPU never mix.

        with Recorder("lab2_quadratic_wall") as lab:
            lab.predict("exponent", 2)
            for n in 256, 512, 1024:
                if not lab.done({"name": "naive", "n": n}):
                    lab.add(measure(...).as_point(name="naive", n=n))

    Args:
        lab: the lab's name, such as "lab2_quadratic_wall".
        folder: where the file lies; on Colab a folder of a mounted Drive outlives the session.
        machine: what is measured on, as `attncourse.lab.machine()` returns it; that by default.

    Attributes:
        path: the file, one line of JSON a configuration.
    """

    def __init__(
        self, lab: str, folder: str | Path = ".", machine: Mapping[str, object] | None = None
    ) -> None:
        if machine is None:
            from attncourse.lab.timing import machine as this_machine

            machine = this_machine()
        folder = Path(folder)
        folder.mkdir(parents=True, exist_ok=True)
        slug = re.sub(r"[^A-Za-z0-9.+]+", "-", f"{machine['label']} torch {machine['torch']}")
        self.path = folder / f"{lab}.{slug.strip('-')}.jsonl"
        self._record = {"lab": lab, "machine": dict(machine), "predictions": {}, "points": []}
        self._session = 0
        if self.path.exists():
            self._resume()
        self._started = time.monotonic()
        self._write({"lab": lab, "machine": dict(machine), "session": self._session})

    def _resume(self) -> None:
        """Take over what an earlier session left, without a last line it could not finish."""
        text = self.path.read_text(encoding="utf-8")
        whole = text[: text.rfind("\n") + 1]
        os.truncate(self.path, len(whole.encode()))
        if not whole:
            return
        machine = self._record["machine"]
        self._record, self._session = _read(whole, self.path)
        self._record["machine"] = machine | {"ceilings": self._record["machine"].get("ceilings")}
        print(
            f"Going on where you stopped: {len(self._record['points'])} configurations are already "
            f"in {self.path}. To start afresh, move that file away."
        )

    def __enter__(self) -> "Recorder":
        return self

    def __exit__(self, kind, error, traceback) -> None:
        if kind is None:
            self.save()
        else:
            print(f"Everything measured so far is kept in {self.path}. Run the cell again to go on")

    def predict(self, name: str, value: object) -> None:
        """Write down what you expect, before you measure; free to change until the first point.

        Args:
            name: of the question, such as "exponent".
            value: a number, a string, or a list of them.

        Raises:
            ValueError: `value` is something else.
        """
        _check_plain(value, f"your prediction of {name}")
        before = self._record["predictions"].get(name)
        measured = len(self._record["points"])
        if before is not None and measured > before["points"]:
            if before["value"] != value:
                print(
                    f"Your prediction of {name} before you measured, {before['value']}, stays. "
                    "What you know now belongs in the explanation."
                )
            return
        at = round(time.monotonic() - self._started, 3)
        made = {"value": value, "at": at, "session": self._session, "points": measured}
        self._write({"prediction": name, **made})
        self._record["predictions"][name] = made

    def ceilings(self, flops_per_second: Mapping[str, float], bytes_per_second: float) -> None:
        """Keep what this machine can do at most, as measured; the audit holds all points to it.

        Args:
            flops_per_second: of a large matrix product, by dtype, e.g. {"float16": 24e12}.
            bytes_per_second: of a large copy, read and write counted.
        """
        ceilings = {
            "flops_per_second": dict(flops_per_second),
            "bytes_per_second": bytes_per_second,
        }
        self._write({"ceilings": ceilings})
        self._record["machine"]["ceilings"] = ceilings

    def add(self, point: Mapping[str, object]) -> None:
        """Keep one measured configuration; measured again, the later one counts.

        Args:
            point: `Sample.as_point(name=…, n=…)`, or such a dict of JSON types. Numbers that are
                not finite become null, and `not_finite` lists their keys.

        Raises:
            ValueError: not a point of a record; the message says why.
        """
        point = _finite(dict(point)) | {"session": self._session}
        _check_point(point, "this point")
        self._write({"point": point})
        _merge(self._record["points"], point)

    def done(self, configuration: Mapping[str, object]) -> bool:
        """Whether a point with these keys and values is already in the file."""
        return any(
            all(key in point and point[key] == value for key, value in configuration.items())
            for point in self._record["points"]
        )

    def record(self) -> dict:
        """All points, predictions and the machine, as a copy."""
        return json.loads(json.dumps(self._record))

    def receipt(self) -> str:
        """The record as one string of at most 4,096 characters, without line breaks."""
        return encode(self._record)

    def save(self) -> None:
        """Say where the file is and print the receipt to paste; on Colab, download the file."""
        print(f"{len(self._record['points'])} configurations are in {self.path.resolve()}")
        try:
            receipt, kept, of = _fit(self._record)
        except ValueError as error:
            print(error)
        else:
            if kept < of:
                print(
                    f"The receipt has room for {kept} of {of} samples per configuration, evenly "
                    "spread; the file keeps all."
                )
            print("Paste this into the cell that asks for your receipt:\n")
            print(f'RECEIPT = """\n{wrap(receipt)}\n"""')
        try:
            from google.colab import files
        except ImportError:
            return
        files.download(str(self.path))

    def _write(self, entry: dict) -> None:
        """Append a line and wait until it is on disk."""
        text = _dumps(entry)
        # The number in front tells a line that was changed later from one that was not.
        line = f"{zlib.crc32(text.encode()):08x} {text}\n"
        with self.path.open("a", encoding="utf-8", newline="\n") as file:
            file.write(line)
            file.flush()
            with contextlib.suppress(OSError):  # some network folders cannot
                os.fsync(file.fileno())


def load(path: str | Path) -> dict:
    """Read the record from a Recorder's file; an unfinished last line is left out.

    A point whose line was changed after it was written has `"edited": true`.

    Raises:
        ReceiptError: a line that cannot be read; the message names it.
    """
    path = Path(path)
    record, _ = _read(path.read_text(encoding="utf-8"), path)
    return validate(record)


def encode(record: Mapping[str, object]) -> str:
    """Write a record as a receipt: "attn1:", its length, a checksum, compressed text.

    Samples keep the digits that their noise leaves meaningful: a thirtieth of the step from one
    sample to the next, three significant digits or more. A record too long for 4,096 characters
    loses samples, evenly over each point, down to 20; `"samples"` of a point then says how many
    there were.

    Args:
        record: as `Recorder.record` returns it.

    Raises:
        ValueError: not a record, or too many configurations for one receipt.
    """
    validate(record)
    return _fit(record)[0]


def decode(receipt: str) -> dict:
    """Read a record from a receipt, however it was wrapped, indented, quoted or HTML-escaped.

    Nothing in it is executed, and sizes are capped before anything is unpacked.

    Args:
        receipt: the string, or the whole cell `RECEIPT = "…"`.

    Returns:
        The record; samples as rounded by `encode`.

    Raises:
        DamagedReceipt: characters are missing, too many or changed: paste it again.
        ForgedReceipt: the checksum holds, but the content is no record of a lab.
    """
    packed = _body(receipt)
    inflate = zlib.decompressobj()
    try:
        text = inflate.decompress(packed, MAX_JSON)
    except zlib.error:
        raise ForgedReceipt("the checksum holds, but this is not compressed text") from None
    if not inflate.eof:
        raise ForgedReceipt(
            f"this receipt unpacks to more than {MAX_JSON:,} characters, or never ends; no lab "
            f"writes so much. {ANEW}"
        )
    try:
        record = json.loads(text, parse_constant=_refuse)
        record["points"] = [_unpack_point(point) for point in record["points"]]
        return validate(record)
    except (ValueError, TypeError, KeyError, OverflowError, RecursionError) as error:
        raise ForgedReceipt(
            f"the checksum holds, but no lab writes such a record: {error}. {ANEW}"
        ) from None


def wrap(receipt: str, width: int = 76) -> str:
    """Break a receipt into lines, none of which looks like a notebook's `%magic` or `!command`."""
    lines, at = [], 0
    while at < len(receipt):
        end = at + width
        while receipt[end : end + 1] in ("%", "!", "?", "#", ">"):
            end += 1
        lines.append(receipt[at:end])
        at = end
    return "\n".join(lines)


def validate(record: Mapping[str, object]) -> Mapping[str, object]:
    """Return `record` if it has the form of one.

    Raises:
        ValueError: it has not; the message says where.
    """
    if not isinstance(record, Mapping):
        raise ValueError(f"a record is a dict, not a {type(record).__name__}")
    for key, kind in RECORD.items():
        if not isinstance(record.get(key), kind):
            raise ValueError(f'record["{key}"] is missing or not a {kind.__name__.lower()}')
    if len(record["points"]) > MAX_POINTS:
        raise ValueError(f"{len(record['points'])} points; a record has {MAX_POINTS} at most")
    for index, point in enumerate(record["points"]):
        _check_point(point, f"points[{index}]")
    _check_machine(record["machine"])
    _check_plain(record["predictions"], "predictions")
    return record


RECORD = {"lab": str, "machine": Mapping, "predictions": Mapping, "points": list}
NUMBERS = (
    *("n", "h", "d", "kv_heads", "dropout", "session", "attempts", "samples"),
    *("peak_bytes", "flops", "bytes", "headline", "wall_over_cpu", "reference_error"),
)
STRINGS = ("clock", "backend", "dtype", "error", "label", "precision")


def _check_point(point: object, where: str) -> None:
    if not isinstance(point, Mapping) or not isinstance(point.get("name"), str):
        raise ValueError(f'{where} is not a dict with a "name"')
    _check_plain(point, where)
    for key in ("seconds", "started"):
        _check_list(point.get(key), f'{where}["{key}"]', _is_number, "a finite number")
    _check_list(
        point.get("not_finite"), f"{where}", lambda key: isinstance(key, str), "the name of a key"
    )
    seconds, started = (len(point.get(key) or []) for key in ("seconds", "started"))
    if started and started != seconds:
        raise ValueError(f"{where} has {started} start times for {seconds} samples")
    _check_kinds(point, where, NUMBERS, STRINGS)
    if point.get("n") is not None and point["n"] <= 0:
        raise ValueError(f'{where}["n"] is a size, and sizes begin at 1')


def _check_machine(machine: Mapping[str, object]) -> None:
    _check_plain(machine, "machine")
    strings = ("device", "name", "torch", "python", "cuda", "label", "precision")
    _check_kinds(machine, "machine", ("memory_bytes", "l2_bytes", "threads"), strings)
    _check_list(machine.get("capability"), "capability", _is_number, "a number")
    ceilings = machine.get("ceilings") or {"flops_per_second": {}}
    if not isinstance(ceilings, Mapping):
        raise ValueError("the machine's ceilings are not a dict")
    flops = ceilings.get("flops_per_second") or {}
    if not isinstance(flops, Mapping):
        raise ValueError("the machine's flops_per_second are not a dict: dtype -> number")
    _check_kinds(flops, "flops_per_second", tuple(flops))
    _check_kinds(ceilings, "ceilings", ("bytes_per_second",))


def _check_kinds(data: Mapping, where: str, numbers: tuple = (), strings: tuple = ()) -> None:
    """Each of these keys is missing, null, or of the right kind."""
    for key in numbers:
        if data.get(key) is not None and not _is_number(data[key]):
            raise ValueError(f'{where}["{key}"] is not a number')
    for key in strings:
        if data.get(key) is not None and not isinstance(data[key], str):
            raise ValueError(f'{where}["{key}"] is not a string')


def _check_list(data: object, where: str, fits: Callable[[object], bool], what: str) -> None:
    if data is None:
        return
    if not isinstance(data, list) or len(data) > MAX_SAMPLES:
        raise ValueError(f"{where} is not a list of at most {MAX_SAMPLES}")
    if not all(map(fits, data)):
        raise ValueError(f"{where} holds something that is not {what}")


def _check_plain(value: object, where: str, depth: int = 0) -> None:
    """JSON types only, bounded."""
    if value is None or isinstance(value, bool) or _is_number(value):
        return
    if isinstance(value, Mapping | list):
        if depth > 4 or len(value) > MAX_SAMPLES:
            raise ValueError(f"{where} is nested or filled beyond what a lab writes")
        for key in value:
            if isinstance(value, Mapping) and not (isinstance(key, str) and len(key) < MAX_STRING):
                raise ValueError(f"{where} has a key that is not a short string")
        for item in value.values() if isinstance(value, Mapping) else value:
            _check_plain(item, where, depth + 1)
    elif isinstance(value, str):
        if len(value) > MAX_STRING:
            raise ValueError(f"{where} holds a string of {len(value)} characters")
    else:
        raise ValueError(f"{where} holds {value!r:.60}, which is not a finite number or plain data")


def _is_number(value: object) -> bool:
    return (
        isinstance(value, (int, float)) and not isinstance(value, bool) and abs(value) < 1e30
    )  # NaN and infinity are not below


def _refuse(constant: str) -> None:
    raise ValueError(f"{constant} is not a number")


def _finite(point: dict) -> dict:
    """NaN and infinity are no JSON; null them, and remember where they were."""
    wild = [k for k, v in point.items() if isinstance(v, float) and not math.isfinite(v)]
    return point | dict.fromkeys(wild) | ({"not_finite": wild} if wild else {})


def configuration(point: Mapping[str, object]) -> dict[str, object]:
    """The keys of a point that say what was measured: name, sizes, dtype, …"""
    return {key: value for key, value in point.items() if key not in MEASURED}


def _merge(points: list[dict], point: dict) -> None:
    """Add a point, in the place of an earlier one of the same configuration."""
    for index, earlier in enumerate(points):
        if configuration(earlier) == configuration(point):
            points[index] = point | {"attempts": earlier.get("attempts", 1) + 1}
            return
    points.append(point)


def _read(text: str, path: Path) -> tuple[dict, int]:
    """The record in a Recorder's file, and how many sessions wrote it."""
    record = {"lab": "", "machine": {}, "predictions": {}, "points": []}
    sessions = 0
    lines = text.split("\n")
    for number, line in enumerate(lines, 1):
        if not line.strip():
            continue
        check, _, body = line.partition(" ")
        try:
            entry = json.loads(body)
            if not isinstance(entry, dict):
                raise ValueError
        except ValueError:
            if number == len(lines):
                break  # cut off while it was written
            raise ReceiptError(
                f"line {number} of {path} cannot be read. Delete that line and measure its "
                "configuration again."
            ) from None
        edited = check != f"{zlib.crc32(body.encode()):08x}"
        if "point" in entry:
            _check_point(entry["point"], f"line {number} of {path}")
            _merge(record["points"], entry["point"] | ({"edited": True} if edited else {}))
        elif "prediction" in entry:
            name = entry.pop("prediction")
            record["predictions"][name] = entry | ({"edited": True} if edited else {})
        elif "ceilings" in entry:
            record["machine"]["ceilings"] = entry["ceilings"]
        elif "machine" in entry:
            known = record["machine"].get("ceilings")
            record["lab"], record["machine"] = entry.get("lab", ""), dict(entry["machine"])
            record["machine"]["ceilings"] = record["machine"].get("ceilings") or known
            sessions += 1
    return record, sessions


# Packing: JSON whose lists of samples are integers, which compress to about their noise.


def _fit(record: Mapping[str, object]) -> tuple[str, int, int]:
    """The receipt, and how many samples a point keeps of how many."""
    most = max((len(point.get("seconds") or []) for point in record["points"]), default=0)
    keep = most
    while True:
        receipt = _pack(record, keep)
        if len(receipt) <= LIMIT:
            return receipt, keep, most
        if keep <= min(most, FEWEST):
            raise ValueError(
                f"{len(record['points'])} configurations do not fit into a receipt of {LIMIT:,} "
                "characters: hand in the .jsonl file instead"
            )
        keep = max(min(most, FEWEST), int(keep * LIMIT / len(receipt)))


def _pack(record: Mapping[str, object], keep: int) -> str:
    points = [_pack_point(point, keep) for point in record["points"]]
    packed = zlib.compress(_dumps(_short({**record, "points": points})).encode(), 9)
    body = base64.b85encode(packed).decode()
    return f"{PREFIX}{len(body)}:{zlib.crc32(packed):08x}:{body}"


def _body(receipt: str) -> bytes:
    """The compressed bytes of a receipt, undoing what chat programs do to text."""
    if not isinstance(receipt, str):
        raise TypeError(f"a receipt is a string, not a {type(receipt).__name__}")
    if len(receipt) > MAX_TEXT:
        raise DamagedReceipt(
            f"this text has {len(receipt):,} characters, a receipt {LIMIT:,} at most: paste only "
            'the part that begins with "attn1:"'
        )
    complaint = None
    unquoted = re.sub(r"(?m)^[ \t]*(>[ \t]?)+", "", receipt)  # a mail's or a chat's "> "
    for text in (receipt, html.unescape(receipt), unquoted, html.unescape(unquoted)):
        try:
            return _checked(text)
        except DamagedReceipt as error:
            complaint = complaint or error
    raise complaint


def _checked(text: str) -> bytes:
    text = re.sub(r"[^!-~]+", "", text)  # white space, soft hyphens, curly quotes
    text = re.sub(r"^\W*(?=\d{1,6}:[0-9a-f]{8}:)", "attn1:", text)  # pasted without its name
    head = re.search(r"attn(\d{1,3}):(?:(\d{1,6}):([0-9a-f]{8}):)?", text)
    if head is None:
        raise DamagedReceipt(f'there is no receipt here: one begins with "attn1:". {ANEW}')
    if head[1] != "1":
        raise DamagedReceipt(
            f"this receipt is of version {head[1]}, newer than this attncourse can read: update it"
        )
    if head[2] is None:
        raise DamagedReceipt("the beginning of this receipt is damaged: paste it again")
    length = int(head[2])
    rest = re.sub(r"[\"\'\\\\,./:\[\]]+", "", text[head.end() :])  # not of base 85
    if len(rest) < length:
        raise DamagedReceipt(
            f"this receipt is cut off: {len(rest):,} characters arrived of {length:,}. {AGAIN}"
        )
    try:
        packed = base64.b85decode(rest[:length])
    except ValueError:
        packed = b""
    if f"{zlib.crc32(packed):08x}" != head[3]:
        raise DamagedReceipt(f"some characters of this receipt changed on the way. {AGAIN}")
    return packed


def _pack_point(point: Mapping[str, object], keep: int) -> dict:
    """A point with its times as integers: [digits after the point, base, offsets…]."""
    point = dict(point)
    seconds, started = point.get("seconds") or [], point.get("started") or []
    if len(seconds) > keep:
        point.setdefault("samples", len(seconds))
        rows = [round(i * (len(seconds) - 1) / (keep - 1)) for i in range(keep)]
        seconds = [seconds[row] for row in rows]
        started = [started[row] for row in rows] if started else []
    if seconds:
        noise = statistics.median([abs(step) for step in _steps(seconds)] or [0.0])
        digits = _digits(statistics.median(seconds), noise / 30)
        ticks = [round(s * 10**digits) for s in seconds]
        middle = round(statistics.median(ticks))
        point["seconds"] = [digits, middle, *(tick - middle for tick in ticks)]
    if started:
        pace = statistics.median([abs(step) for step in _steps(started)] or started)
        digits = _digits(pace, pace / 30)
        ticks = [round(s * 10**digits) for s in started]
        point["started"] = [digits, ticks[0], 0, *_steps(ticks)]
    return point


def _unpack_point(point: dict) -> dict:
    if not isinstance(point, dict):
        raise ValueError("a point is not a dict")
    for key in ("seconds", "started"):
        if point.get(key):
            digits, base, *offsets = point[key]
            if any(type(x) is not int for x in (digits, base, *offsets)) or not 0 <= digits <= 15:
                raise ValueError(f"{key} are not packed as integers")
            if key == "started":
                offsets = list(itertools.accumulate(offsets))
            point[key] = [(base + offset) / 10**digits for offset in offsets]
    return point


def _steps(values: list) -> list:
    return [b - a for a, b in itertools.pairwise(values)]


def _digits(typical: float, unit: float) -> int:
    """Digits after the decimal point that resolve `unit`: 3 to 9 significant ones of `typical`."""
    if not typical > 0:
        return 9
    first = math.floor(math.log10(typical))
    last = math.floor(math.log10(unit)) if unit > 0 else -99
    return min(max(-min(max(last, first - 8), first - 2), 0), 15)


def _short(value: object) -> object:
    """Six significant digits of a float; whole numbers stay exact."""
    if isinstance(value, float):
        return int(value) if value.is_integer() and abs(value) < 2**63 else float(f"{value:.6g}")
    if isinstance(value, Mapping):
        return {key: _short(item) for key, item in value.items()}
    return value


def _dumps(data: object) -> str:
    return json.dumps(data, separators=(",", ":"), allow_nan=False)
