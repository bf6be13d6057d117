"""A filter of system calls: what no answer needs, and what would lead around the jail's limits.

Linux asks a small program of its own kind (seccomp's BPF) about each call that a process makes.
What ours refuses does not exist for the answer (ENOSYS), so that libraries take their other way:
the C library starts threads without `clone3`, numerical ones go on without `memfd_create`.

Numbers are those of Linux on x86-64 and on aarch64, from the kernel's tables of system calls.
"""

import ctypes
import errno
import functools
import platform
import struct

# name: its number on x86-64 and on aarch64
REFUSED = {
    # keys, and locks and news of files that all can read: ways from one submission to another
    **{"add_key": (248, 217), "request_key": (249, 218), "keyctl": (250, 219)},
    **{"flock": (73, 32), "inotify_init": (253, None), "inotify_init1": (294, 26)},
    "fanotify_init": (300, 262),
    # memory that belongs to no process, so that no limit counts it
    **{"memfd_create": (319, 279), "memfd_secret": (447, 447), "shmget": (29, 194)},
    **{"vmsplice": (278, 75), "splice": (275, 76), "tee": (276, 77)},
    **{"semget": (64, 190), "msgget": (68, 186), "mq_open": (240, 180)},
    # files on their way from one process to another, which Linux counts by user
    **{"sendmsg": (46, 211), "sendmmsg": (307, 269)},
    # and whether somebody has read a file, or waits at a place of it
    **{"posix_fadvise": (221, 223), "readahead": (187, 213), "mincore": (27, 232)},
    **{"preadv2": (327, 286), "pwritev2": (328, 287), "cachestat": (451, 451)},
    **{name: (number, number) for name, number in (
        ("futex_waitv", 449), ("futex_wake", 454), ("futex_wait", 455), ("futex_requeue", 456))},
    # namespaces, roots and mounts of one's own
    **{"unshare": (272, 97), "setns": (308, 268), "clone3": (435, 435), "chroot": (161, 51)},
    **{"mount": (165, 40), "umount2": (166, 39), "pivot_root": (155, 41)},
    **{name: (428 + i, 428 + i) for i, name in enumerate(
        ("open_tree", "move_mount", "fsopen", "fsconfig", "fsmount", "fspick"))},
    **{"mount_setattr": (442, 442), "open_by_handle_at": (304, 265)},
    **{name: (number, number) for name, number in (
        ("statmount", 457), ("listmount", 458), ("removexattrat", 466), ("open_tree_attr", 467),
        ("file_getattr", 468), ("file_setattr", 469))},
    # looking into other processes
    **{"ptrace": (101, 117), "process_vm_readv": (310, 270), "process_vm_writev": (311, 271)},
    **{"pidfd_getfd": (438, 438), "kcmp": (312, 272)},
    # large parts of the kernel that only experts need, and attackers like
    **{"bpf": (321, 280), "perf_event_open": (298, 241), "userfaultfd": (323, 282)},
    **{"io_uring_setup": (425, 425), "io_uring_enter": (426, 426), "modify_ldt": (154, None)},
    # the older kind of the same: all of a machine share a number of places
    **{"io_setup": (206, 0), "io_destroy": (207, 1), "io_getevents": (208, 4)},
    **{"io_submit": (209, 2), "io_cancel": (210, 3), "io_pgetevents": (333, 292)},
    "setsid": (112, 157),  # Linux may give each session as much of a processor as a neighbor
    **{"setrlimit": (160, 164), "io_uring_register": (427, 427), "name_to_handle_at": (303, 264)},
}  # fmt: skip
PROGRAMS = {"execve": (59, 221), "execveat": (322, 281)}  # a new Python would have all of torch
NEW_NAMESPACES = 0x7E02_0000  # the flags of `clone` that make one, of any kind
SHARED_ANONYMOUS = 0x21  # of `mmap`: memory that may outlive its mapping
FAMILIES = (1, 2, 10)  # of `socket`: local and IP; a jail can reach nobody by either
# Of `futex`: what wakes threads, those of other jails, too, unless it is PRIVATE.
WAKES = (1, 3, 4, 5, 7, 10, 12)
PRIVATE = 0x80
RULES = (1, 4, 35, 36)  # of `prctl`: to outlive its parent, to be looked at, to adopt
LOCKS = (6, 7, 37, 38, 1024, 1026)  # of `fcntl`: locks, leases and news of files

_ARCHITECTURES = {"x86_64": 0xC000_003E, "aarch64": 0xC000_00B7}
_LOAD, _AND, _EQUAL, _AT_LEAST, _ANY, _RETURN = 0x20, 0x54, 0x15, 0x35, 0x45, 0x06
_ALLOW, _KILL, _REFUSE = 0x7FFF_0000, 0x8000_0000, 0x0005_0000 | errno.ENOSYS
_NUMBER, _ARCHITECTURE, _ARGUMENTS = 0, 4, 16  # their places in what the kernel shows a filter
_SET_SECCOMP, _FILTER = 22, 2


class _Program(ctypes.Structure):
    _fields_ = (("length", ctypes.c_ushort), ("lines", ctypes.c_char_p))


def supported() -> bool:
    return platform.machine() in _ARCHITECTURES


@functools.cache
def program(programs: bool) -> bytes:
    """The filter in the kernel's form, for this machine's processor.

    Args:
        programs: whether other programs may be started.
    """
    column = list(_ARCHITECTURES).index(platform.machine())

    def when(numbers: tuple[int, int], argument: int, *lines: tuple) -> list[tuple]:
        """Of the call with these numbers, ask `lines` about the lower half of an argument."""
        load = (_LOAD, 0, 0, _ARGUMENTS + 8 * argument)
        return [(_EQUAL, 0, len(lines) + 1, numbers[column]), load, *lines]

    allow, refuse = (_RETURN, 0, 0, _ALLOW), (_RETURN, 0, 0, _REFUSE)
    lines = [
        (_LOAD, 0, 0, _ARCHITECTURE),
        (_EQUAL, 1, 0, _ARCHITECTURES[platform.machine()]),
        (_RETURN, 0, 0, _KILL),  # 32-bit programs have other numbers
        (_LOAD, 0, 0, _NUMBER),
        (_AT_LEAST, 0, 1, 0x4000_0000),  # so have those of the x32 kind
        refuse,
    ]
    for numbers in (*REFUSED.values(), *(() if programs else PROGRAMS.values())):
        if numbers[column] is not None:
            lines += [(_EQUAL, 0, 1, numbers[column]), refuse]
    lines += when((56, 220), 0, (_ANY, 0, 1, NEW_NAMESPACES), refuse, allow)
    shared = (_AND, 0, 0, SHARED_ANONYMOUS), (_EQUAL, 0, 1, SHARED_ANONYMOUS)
    lines += when((9, 222), 3, *shared, refuse, allow)
    known = [(_EQUAL, len(FAMILIES) - i, 0, family) for i, family in enumerate(FAMILIES)]
    for numbers in ((41, 198), (53, 199)):  # alone, and in pairs
        lines += when(numbers, 0, *known, refuse, allow)
    wakes = [(_EQUAL, len(WAKES) - i, 0, command) for i, command in enumerate(WAKES)]
    private = (_ANY, len(WAKES) + 1, 0, PRIVATE)
    lines += when((202, 98), 1, private, (_AND, 0, 0, 0x7F), *wakes, allow, refuse)
    rules = [(_EQUAL, len(RULES) - i, 0, option) for i, option in enumerate(RULES)]
    lines += when((157, 167), 0, *rules, allow, refuse)
    locks = [(_EQUAL, len(LOCKS) - i, 0, command) for i, command in enumerate(LOCKS)]
    lines += when((72, 25), 1, *locks, allow, refuse)
    # To set a limit: to ask for one, as the C library does, the third argument is 0.
    lines += when((302, 261), 2, (_EQUAL, 0, 1, 0), allow, refuse)
    return b"".join(struct.pack("HBBI", *line) for line in [*lines, allow])


def install(libc: ctypes.CDLL, programs: bool = True) -> int:
    """Put this process, and all that it will start, behind the filter; 0 if the kernel did."""
    lines = program(programs)
    filtered = _Program(len(lines) // 8, lines)
    return libc.prctl(_SET_SECCOMP, _FILTER, ctypes.byref(filtered), 0, 0)
