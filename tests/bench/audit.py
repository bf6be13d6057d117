"""What the lab's audit catches, over corruptions and seeds, and its false alarms; as Markdown.

`python tests/bench/audit.py [seeds]`: deterministic, synthetic records (see tests/test_audit.py).
"""

import sys
from collections import Counter
from pathlib import Path

sys.path.insert(0, str(Path(__file__).parent.parent))

from test_audit import CORRUPTIONS, MACHINES, corrupted, decode_record, grave, honest, names

from attncourse.lab.audit import audit
from attncourse.lab.receipts import decode, encode


def confusion(seeds: int) -> None:
    """One row a mistake: how often it got its name, from the record and from its receipt."""
    print(
        f"| mistake, {seeds} seeds on each machine | its name | caught | by receipt | also said |"
    )
    print("|---|---|---:|---:|---|")
    for name, (kinds, finding, _) in CORRUPTIONS.items():
        caught = by_receipt = 0
        others = Counter()
        for kind in kinds:
            for seed in range(seeds):
                record = corrupted(name, kind, seed)
                found = audit(record)
                caught += finding in names(found)
                by_receipt += finding in names(audit(decode(encode(record))))
                others.update(grave(found) - {finding})
        runs = seeds * len(kinds)
        also = ", ".join(f"{other} {count}" for other, count in others.most_common(3))
        words = name.replace("_", " ")
        print(f"| {words} | {finding} | {caught}/{runs} | {by_receipt}/{runs} | {also} |")


def false_alarms(seeds: int) -> None:
    """One row a kind of honest record: alarms that would cost points, and kind requests."""
    print(f"\n| honest records, {seeds} seeds | false alarms | of these asked to measure again |")
    print("|---|---:|---:|")
    for kind in MACHINES:
        weathers = {
            "fair weather": lambda seed, kind=kind: honest(kind, seed),
            "storm": lambda seed, kind=kind: honest(kind, seed, storm=True),
            "decoding": lambda seed, kind=kind: decode_record(kind, seed),
        }
        for weather, make in weathers.items():
            alarms = again = 0
            for seed in range(seeds):
                record = make(seed)
                findings = audit(record) + audit(decode(encode(record)))
                alarms += bool(grave(findings))
                again += any(finding.severity == "measure again" for finding in findings)
            print(f"| {kind}, {weather} | {alarms}/{seeds} | {again}/{seeds} |")


if __name__ == "__main__":
    seeds = int(sys.argv[1]) if len(sys.argv) > 1 else 20
    confusion(seeds)
    false_alarms(10 * seeds)
