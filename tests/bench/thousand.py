"""A thousand submissions: complete, flat, in 2 GiB, and the same after three kill -9.

    python tests/bench/thousand.py [--students N] [--jobs N]

One run is left alone, the other one is killed three times on its way and started again.
"""

import argparse
import contextlib
import json
import os
import shutil
import signal
import subprocess
import sys
import tempfile
import time
from pathlib import Path

import psutil

sys.path.insert(0, str(Path(__file__).parent.parent))

from conftest import ROOT, copy_course

from attncourse.grading.books import disk, results
from attncourse.grading.inbox import sample

ASSIGNMENT = "03_scaled_dot_product"


def grade(jobs: int, stop_at: int | None = None) -> tuple[float, int]:
    """Grade; with `stop_at`, kill -9 at that many results. Seconds, and bytes at the peak."""
    command = [sys.executable, "-m", "attncourse", "grade", ASSIGNMENT, "--jobs", str(jobs)]
    started, peak = time.monotonic(), 0
    process = subprocess.Popen(command, stdout=subprocess.DEVNULL, stderr=subprocess.DEVNULL)
    while process.poll() is None:
        if stop_at is None:
            peak = max(peak, memory(process.pid))
        elif len(list(found())) >= stop_at:
            process.send_signal(signal.SIGKILL)
            break
        time.sleep(1)
    if process.wait() and not stop_at:
        raise SystemExit(f"`attncourse grade` failed with exit code {process.returncode}")
    return time.monotonic() - started, peak


def memory(pid: int) -> int:
    """Bytes of a process and all it has started; what they share is counted once."""
    total = 0
    with contextlib.suppress(psutil.NoSuchProcess):
        grader = psutil.Process(pid)
        for each in (grader, *grader.children(recursive=True)):
            with contextlib.suppress(psutil.NoSuchProcess, psutil.AccessDenied):
                total += each.memory_full_info().pss
    return total


def found():
    return Path("autograded").glob(f"*/{ASSIGNMENT}/{disk.RESULT}")


def outcome() -> tuple[dict, dict]:
    """Results and gradebook, by student."""
    stored = {path.parts[1]: json.loads(path.read_text(encoding="utf-8")) for path in found()}
    rows = {row.student: row.score for row in results.of_class(ASSIGNMENT)}
    return {student: data | {"seconds": 0} for student, data in stored.items()}, rows


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--students", type=int, default=1000)
    parser.add_argument("--jobs", type=int, default=os.cpu_count())
    options = parser.parse_args()
    size, some = options.students, max(1, options.students // 10)
    with tempfile.TemporaryDirectory() as folder, contextlib.chdir(folder):
        copy_course(ROOT, Path(folder))
        sample.write_class(ASSIGNMENT, size)
        print(f"{size} submissions of {ASSIGNMENT}, {options.jobs} at a time", file=sys.stderr)
        seconds, peak = grade(options.jobs)
        times = sorted(path.stat().st_mtime for path in found())
        first, last = times[some - 1] - times[0], times[-1] - times[-some]
        alone = outcome()
        for left in ("autograded", "gradebook.db"):
            shutil.rmtree(left) if Path(left).is_dir() else Path(left).unlink()
        killed = 0.0
        for part in (1, 2, 3, None):
            killed += grade(options.jobs, part and max(1, part * size // 4))[0]
            print(f"{len(list(found()))} of {size} are there", file=sys.stderr)
        again = outcome()
    lost = [student for student in alone[0] if student not in again[0]]
    different = [student for student in again[0] if again[0][student] != alone[0].get(student)]
    unequal = [student for student in again[1] if again[1][student] != alone[1].get(student)]
    print("| | |\n|---|---|")
    print(f"| results | {len(alone[0])} of {size}, in the gradebook {len(alone[1])} |")
    print(f"| time | {seconds:.0f} s, {size / seconds:.2f} submissions a second |")
    print(f"| the first {some}, the last {some} | {first:.1f} s, {last:.1f} s |")
    print(f"| memory at the peak, all processes | {peak / 2**30:.2f} GiB |")
    print(f"| killed three times | {killed:.0f} s, {len(again[0])} of {size} |")
    print(f"| lost | {', '.join(lost) or 'nobody'} |")
    print(f"| another result than the undisturbed run | {', '.join(different) or 'nobody'} |")
    print(f"| other points in the gradebook | {', '.join(unequal) or 'nobody'} |")


if __name__ == "__main__":
    main()
