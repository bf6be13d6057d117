"""Is a lab's record possible, and was it measured well? Every claim again, from the samples.

Evidence, not proof: whoever knows this file can invent a record that passes it. It catches what
physics forbids, what contradicts itself, and the usual mistakes of measuring. A noisy, busy or
throttled machine is nobody's fault: it is asked to measure again and loses no points.
"""

from collections import defaultdict
from collections.abc import Mapping

from attncourse.lab.audit import growth, points, rivals, whole
from attncourse.lab.audit.reading import (
    AGAIN,
    IMPOSSIBLE,
    INCONSISTENT,
    NOTE,
    SEVERITIES,
    Finding,
    Reading,
)
from attncourse.lab.receipts import validate

__all__ = [
    "AGAIN",
    "IMPOSSIBLE",
    "INCONSISTENT",
    "NOTE",
    "SEVERITIES",
    "Finding",
    "audit",
    "passed",
    "summary",
]

DETECTORS = (*points.DETECTORS, *growth.DETECTORS, *rivals.DETECTORS, *whole.DETECTORS)


def audit(record: Mapping[str, object]) -> list[Finding]:
    """Look for impossible, inconsistent and badly measured data in a lab's record.

    Beside the keys that every record has, a point may say: `headline` (the one number reported,
    in seconds), `grad` and `backward` (whether gradients were recorded, and wanted), `precision`
    (of float32 products), `label` (a text with "L2" admits that the data waited in the cache),
    `d`, `h`, `kv_heads`, `mask`, `dropout` (for the rules of the backends). Implementations are
    compared where all keys of their configuration but `name` agree. A lab whose peak memory is
    the same at every n by design leaves `peak_bytes` out.

    Args:
        record: as `Recorder.record`, `load` or `decode` return it.

    Returns:
        Findings, the gravest first; the same record gives the same findings.

    Raises:
        ValueError: not a record.
    """
    validate(record)
    book = Reading(record)
    found = [finding for detector in DETECTORS for finding in detector(book)]
    return sorted(found, key=lambda finding: SEVERITIES.index(finding.severity))


def passed(findings: list[Finding]) -> bool:
    """Whether nothing is impossible or inconsistent; "measure again" costs no points."""
    return not any(finding.severity in (IMPOSSIBLE, INCONSISTENT) for finding in findings)


def summary(findings: list[Finding]) -> str:
    """What the audit has to say to a student, as text."""
    kinds = defaultdict(list)
    for finding in findings:
        kinds[finding.name, finding.severity].append(finding)
    lines = [f"- {same[0]}" + _more(len(same) - 1) for same in kinds.values()]
    if not passed(findings):
        opening = "Some of this record cannot be right as it stands:"
    elif any(finding.severity == AGAIN for finding in findings):
        opening = "Nothing impossible here. Some points deserve another run; no points are lost:"
    elif lines:
        opening = "Nothing impossible or inconsistent here. Worth knowing:"
    else:
        opening = "Nothing impossible or inconsistent here."
    closing = "An audit is evidence, not proof: it reads the samples and cannot see the run."
    return "\n".join([opening, *lines, closing])


def _more(count: int) -> str:
    return f" And {count} more like it." if count else ""
