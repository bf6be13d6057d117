"""What helps where this machine cannot grade, by the words of the first error."""

import errno
import re

ALLOW_JAILS = (
    "On Linux, allow user namespaces (Ubuntu: "
    "`sudo sysctl kernel.apparmor_restrict_unprivileged_userns=0`; containers: `--privileged`); "
    "elsewhere, grade on a Linux machine. Or accept, with --no-jail, that students' code can "
    "read, change and send whatever you can"
)
_MEMORY = "Free memory, lift `ulimit -v`, or grade with fewer --jobs"
_CURES = {  # the first that fits
    r"`ulimit -([ftv])` is lower": r"Raise it: `ulimit -\1 unlimited`",
    r"`ulimit -([nu])` is lower": r"Raise it: `ulimit -\1 4096`",
    r"`ulimit -c` is lower": "Root alone raises it: `* hard core unlimited` in "
    "/etc/security/limits.conf (a service: `LimitCORE=infinity`), and log in anew",
    r"open files in system": "Close other programs: the whole machine has too many files open",
    r"Too many open files": "Let a process open more files: `ulimit -n 4096`",
    r"clone .*No space left": "Allow more: `sudo sysctl user.max_user_namespaces=15000`",
    r"No space left|Disk quota": "Make room on the disk, in this folder and in /tmp",
    r"File too large": "Allow larger files: `ulimit -f unlimited`",
    r"temporarily unavailable|start new thread|Thread creation": "Allow more processes "
    "(`ulimit -u`), or grade with fewer --jobs",
    r"[Mm]emory|MemoryError|bad_alloc": _MEMORY,
    r"was killed|killed from outside": "Is memory short, or does another program end it? "
    + _MEMORY,
    r"\b(?:clone|u?mount\w*|pivot_root|sethostname|capset|prctl) \(|uid_map|setgroups": ALLOW_JAILS,
    r"namespaces|no jail for": ALLOW_JAILS,
    r"marshal data": "A full disk has cut what Python keeps: make room, and remove the folders "
    "named __pycache__ of the course's package",
    r"ImportError|ModuleNotFoundError|AttributeError|undefined symbol": "Install the versions "
    "that the course was tested with: pip install -r requirements.txt",
}

_SHORT = {  # there is too little of something, which does not depend on the file
    *(errno.ENOSPC, errno.EDQUOT, errno.EFBIG, errno.EMFILE, errno.ENFILE, errno.ENOMEM),
    errno.EAGAIN,
}


def in_words(error: OSError) -> str:
    """What the system said, of which file if it is about one."""
    said = error.strerror or str(error)
    return said if error.filename is None else f"{error.filename}: {said}"


def cure_of(error: OSError) -> str:
    """What to do about it; "" if that depends on the file."""
    return cure_for(error.strerror or "") if error.errno in _SHORT else ""


def cure_for(
    reason: str, otherwise: str = "`attncourse doctor` tries it once more, by itself"
) -> str:
    """What to do about it, in one or two sentences without the last period."""
    for words, cure in _CURES.items():
        if found := re.search(words, reason):
            return found.expand(cure)
    return otherwise
