"""A jail for one process on Linux: what runs inside can compute, and reach nothing else.

The process gets its own mounts, process numbers, network (none) and user, a read-only tree that
holds Python and the course's package only, a small private scratch folder, no rights, a filter of
system calls, and limits on memory, processes, files and time. Before anything runs in it, the jail
looks at its own mounts, and is not one if more than the scratch can be written. About 10 ms.

bubblewrap builds the same walls, but it must start a new program inside them, and importing torch
costs two seconds per student. These lines put the walls around a fork that has loaded torch.
"""

import contextlib
import ctypes
import errno
import functools
import os
import platform
import re
import resource
import signal
import site
import stat
import sys
import tempfile
from dataclasses import dataclass
from pathlib import Path

from attncourse.grading.jail import seccomp

_libc = ctypes.CDLL(None, use_errno=True) if sys.platform == "linux" else None
# A call through PyDLL keeps Python's lock, which a fork takes along.
_locked = ctypes.PyDLL(None, use_errno=True) if _libc else None
NEW_MOUNTS, NEW_UTS, NEW_IPC = 0x0002_0000, 0x0400_0000, 0x0800_0000
NEW_USER, NEW_PIDS, NEW_NET = 0x1000_0000, 0x2000_0000, 0x4000_0000
NEW_CGROUPS = 0x0200_0000
READ_ONLY, NO_SUID, NO_DEVICES, NO_EXEC, REMOUNT = 1, 2, 4, 8, 32
BIND, DETACH, RECURSIVE, PRIVATE = 4096, 2, 16384, 1 << 18
_OPTIONS = {"ro": READ_ONLY, "nosuid": NO_SUID, "nodev": NO_DEVICES, "noexec": NO_EXEC,
            "noatime": 1024, "nodiratime": 2048, "relatime": 1 << 21}  # fmt: skip
_PIVOT_ROOT = {"x86_64": 155, "aarch64": 41}
_MOUNT_SETATTR, _AT_RECURSIVE = 442, 0x8000
_OCTAL = re.compile(r"\\([0-7]{3})")
_KEYCTL, _JOIN_SESSION = {"x86_64": 250, "aarch64": 219}, 1
_CLONE = {"x86_64": 56, "aarch64": 220}
_SET_TID, _CLEAR_TID, _GET_TID_ADDRESS = 1 << 24, 1 << 21, 40
_NO_DUMP, _DROP_BOUND, _NO_NEW_RIGHTS, _DIE_WITH_PARENT = 4, 24, 38, 1
_CAP_VERSION = 0x2008_0522

NOBODY = 2_000_000  # a root's jails get user numbers of their own from here on
DEVICES = ("null", "full", "random", "urandom")  # not zero: mapped, it is memory nobody counts
SCRATCH = ("/tmp", "/dev/shm")  # all that can be written
# What of a prefix such as /usr is Python, programs and libraries. Somebody's course may stand in
# /usr/src, and their virtual environment be their home.
PARTS = ("bin", "include", "lib", "lib32", "lib64", "libexec", "share", "pyvenv.cfg")


class Unavailable(Exception):
    """This machine does not let us build a jail; the message names the step that it refused."""


@dataclass(frozen=True)
class Limits:
    """What one submission may use."""

    memory: int = 3 * 2**30  # bytes of address space beyond what torch takes
    processes: int = 64
    file_size: int = 64 * 2**20  # bytes, of one file
    scratch: int = 64 * 2**20  # bytes, of all files
    seconds: int = 120  # of CPU time


def fork() -> int:
    """Fork the first process of new namespaces.

    That is `unshare` and `os.fork` in one system call. As two calls, each jail would need another
    process in between, and forking a process that has loaded torch takes a hundredth of a second.

    Returns:
        0 in the new process, its number (as the machine sees it) in this one.

    Raises:
        Unavailable: the kernel refuses.
    """
    if not seccomp.supported():
        raise Unavailable(f"no jail for {platform.machine()} processors yet")
    flags = NEW_MOUNTS | NEW_UTS | NEW_IPC | NEW_PIDS | NEW_NET | signal.SIGCHLD
    if os.getuid() != 0:
        flags |= NEW_USER
    # Where the C library keeps the number of its thread: its own `fork` writes it anew, too.
    number = ctypes.c_void_p()
    if _libc.prctl(_GET_TID_ADDRESS, ctypes.byref(number), 0, 0, 0) == 0 and number.value:
        flags |= _SET_TID | _CLEAR_TID
    python, machine = ctypes.pythonapi, platform.machine()
    rest = (number, 0) if machine == "x86_64" else (0, number)  # the thread's storage stays
    python.PyOS_BeforeFork()
    forked = _locked.syscall(_CLONE[machine], ctypes.c_ulong(flags), None, None, *rest)
    if forked == 0:
        python.PyOS_AfterFork_Child()
        return 0
    python.PyOS_AfterFork_Parent()
    _call("clone", "new namespaces", min(forked, 0))
    return forked


def enter(
    limits: Limits,
    hidden: tuple[Path, ...] = (),
    slot: int = 0,
    programs: bool = True,
    owner: tuple[int, int] = (0, 0),
    packages: dict[Path, tuple[str, ...]] | None = None,
) -> None:
    """Shut this process, the first of its namespaces, into the jail.

    Args:
        hidden: files and folders below the readable ones that nevertheless stay out.
        slot: makes the jail's user number its own, if we are root.
        programs: whether other programs may be started in the jail.
        owner: user and group of the process that forked this one: a new user namespace knows
            none until they are mapped.
        packages: for a folder of packages, what is shown of it; of other folders, all.

    Raises:
        Unavailable: the kernel refuses.
    """
    _libc.prctl(_DIE_WITH_PARENT, 9)
    user, group = owner
    if user != 0:
        Path("/proc/self/setgroups").write_text("deny")
        Path("/proc/self/uid_map").write_text(f"{user} {user} 1")
        Path("/proc/self/gid_map").write_text(f"{group} {group} 1")
    _libc.unshare(NEW_CGROUPS)  # or the path of this process's group would show
    _mount(None, "/", None, RECURSIVE | PRIVATE)
    _build_root(limits, hidden, packages or {})
    _call("sethostname", "no name", _libc.sethostname(b"jail", 4))
    platform._uname_cache = None  # the machine's name is in it
    _libc.syscall(_KEYCTL[platform.machine()], _JOIN_SESSION, None)  # not the instructor's keys
    for letter, name, most in (
        # Not 0: where dumps go to a program, Linux heeds the limit 1 and no other.
        ("c", resource.RLIMIT_CORE, 1),
        ("f", resource.RLIMIT_FSIZE, limits.file_size),
        ("n", resource.RLIMIT_NOFILE, 256),
        ("v", resource.RLIMIT_AS, _address_space() + limits.memory),
        ("u", resource.RLIMIT_NPROC, limits.processes),
        # The first process of a namespace ignores SIGXCPU; the hard limit kills it.
        ("t", resource.RLIMIT_CPU, limits.seconds),
    ):
        try:
            resource.setrlimit(name, (most, most))
        except ValueError:  # an ordinary user cannot raise what the machine has set
            raise Unavailable(f"`ulimit -{letter}` is lower here than in a jail") from None
    _give_up_rights(slot, programs)
    plain_surroundings()


def plain_surroundings() -> None:
    """Forget where we are, and what the environment says."""
    os.environ.clear()
    os.environ.update(HOME="/tmp", TMPDIR="/tmp", PATH="/usr/bin:/bin", OMP_NUM_THREADS="1")
    tempfile.tempdir = None  # the folder of before is in it
    os.chdir("/tmp")


def be_a_user_of_ones_own(slot: int) -> None:
    """Where there is no jail, keep an answer from what is root's: the grader, and its files.

    That takes a root's grader and a Python that everybody can read; else nothing is changed.
    """
    if os.getuid() != 0 or not _everybody_reads_python():
        return
    with contextlib.suppress(OSError):  # a container may have few numbers for users
        _change_user(slot)
        _call("prctl", "no new rights", _libc.prctl(_NO_NEW_RIGHTS, 1, 0, 0, 0))
        _libc.prctl(_DIE_WITH_PARENT, 9, 0, 0, 0)  # changing the user has cleared it
        plain_surroundings()


@functools.cache
def _everybody_reads_python() -> bool:
    wanted = stat.S_IROTH | stat.S_IXOTH
    places = (sys.prefix, sys.base_prefix, Path(__file__).parent, *site.getsitepackages())
    steps = {step for place in places for step in (Path(place), *Path(place).parents)}
    return all(step.stat().st_mode & wanted == wanted for step in steps if step.exists())


def _change_user(slot: int) -> None:
    user = NOBODY + slot % 1_000_000
    os.setgroups([])
    os.setresgid(user, user, user)
    os.setresuid(user, user, user)


@functools.cache
def readable() -> list[Path]:
    """What the jail shows: the system's programs and libraries, Python, its packages, ours.

    Of the packages only some, if `enter` is told which.
    """
    prefixes = ("/", "/usr", "/usr/local", sys.base_prefix, sys.prefix)
    paths = [Path(prefix, part) for prefix in prefixes for part in PARTS]
    paths += map(Path, [*site.getsitepackages(), Path(__file__).parents[2]])
    paths += map(Path, ("/etc/alternatives", "/etc/ld.so.cache", "/etc/localtime"))
    there = dict.fromkeys(path for path in paths if path.exists())
    return [path for path in there if there.keys().isdisjoint(path.parents)]


def _not_ours() -> list[Path]:
    """Packages of the Python on which our virtual environment stands: nothing here uses them."""
    if sys.prefix == sys.base_prefix:
        return []
    return [Path(each) for each in site.getsitepackages([sys.base_prefix])]


def _build_root(
    limits: Limits, hidden: tuple[Path, ...], packages: dict[Path, tuple[str, ...]]
) -> None:
    """Put together a tree of what may be read, and make it the root."""
    # Opened before the new root covers /tmp, in case something of it lies there.
    links = {path: os.readlink(path) for path in readable() if path.is_symlink()}
    sources = {path: os.open(path, os.O_PATH) for path in readable() if path not in links}
    folders = {path: os.open(path, os.O_PATH) for path in packages}
    devices = {name: os.open(f"/dev/{name}", os.O_PATH) for name in DEVICES}
    processes = os.open("/proc", os.O_PATH)
    root, attributes = "/tmp", NO_SUID | NO_DEVICES
    _mount("tmpfs", root, "tmpfs", attributes, "mode=755,size=1m")
    options = f"mode=1777,size={limits.scratch},nr_inodes=4096"
    os.makedirs(f"{root}/tmp")  # first, as the course itself may lie below /tmp
    _mount("tmpfs", f"{root}/tmp", "tmpfs", attributes, options)
    for path, source in sources.items():
        _bind(source, f"{root}{path}")
    for path, target in links.items():
        os.makedirs(os.path.dirname(f"{root}{path}"), exist_ok=True)
        if not os.path.lexists(f"{root}{path}"):
            os.symlink(target, f"{root}{path}")
    for path, folder in folders.items():
        os.makedirs(f"{root}{path}", exist_ok=True)
        _mount("tmpfs", f"{root}{path}", "tmpfs", attributes, "mode=755,size=1m")
        for name in packages[path]:
            _show(f"/proc/self/fd/{folder}/{name}", f"{root}{path}/{name}")
    for folder in ("empty", "dev/shm", "proc"):
        os.makedirs(f"{root}/{folder}")
    Path(f"{root}/nothing").touch()
    for path in (*hidden, *_not_ours()):
        target = f"{root}{path}"
        if os.path.lexists(target):
            _mount(f"{root}/{'empty' if os.path.isdir(target) else 'nothing'}", target, None, BIND)
    for name in devices:
        Path(f"{root}/dev/{name}").touch()
    _restrict(root, READ_ONLY | attributes, processes)
    for name, device in devices.items():
        _bind(device, f"{root}/dev/{name}")
        _restrict(f"{root}/dev/{name}", READ_ONLY | NO_SUID, processes)
    _mount(None, f"{root}/tmp", None, REMOUNT | BIND | attributes)  # this one can be written
    _mount("tmpfs", f"{root}/dev/shm", "tmpfs", attributes | NO_EXEC, options)
    # Some containers cover parts of /proc and then allow no new one; nothing here needs it.
    flags = ctypes.c_ulong(READ_ONLY | attributes | NO_EXEC)
    for options in (b"subset=pid", None):  # before Linux 5.8, with all that it says of the machine
        if _libc.mount(b"proc", f"{root}/proc".encode(), b"proc", flags, options) == 0:
            break
    os.chdir(root)
    number = _PIVOT_ROOT[platform.machine()]
    _call("pivot_root", "a new root", _libc.syscall(number, b".", b"."))
    _call("umount", "the old root away", _libc.umount2(b".", DETACH))
    os.chdir("/tmp")
    _verify(processes)
    for handle in (*sources.values(), *folders.values(), *devices.values(), processes):
        os.close(handle)


def _bind(source: int, target: str) -> None:
    """Show an opened file or folder at another place."""
    if stat.S_ISDIR(os.fstat(source).st_mode):
        if os.path.ismount(target):
            return
        os.makedirs(target, exist_ok=True)
    elif not os.path.lexists(target):
        os.makedirs(os.path.dirname(target), exist_ok=True)
        Path(target).touch()
    _mount(f"/proc/self/fd/{source}", target, None, BIND | RECURSIVE)


def _show(source: str, target: str) -> None:
    """Show what lies in an opened folder at another place, where nothing is yet."""
    if os.path.isdir(source):
        os.mkdir(target)
    else:
        os.mknod(target)
    _mount(source, target, None, BIND)


def _restrict(root: str, attributes: int, processes: int) -> None:
    """Give these attributes to the mount at `root` and to all below it, in one step."""
    wanted = (ctypes.c_uint64 * 4)(attributes, 0, 0, 0)
    done = _libc.syscall(
        _MOUNT_SETATTR, -100, os.fsencode(root), _AT_RECURSIVE, wanted, ctypes.sizeof(wanted)
    )
    if done == 0 or ctypes.get_errno() != errno.ENOSYS:
        return _call("mount_setattr", f"{root} read-only", done)
    for point, options in _mounts(processes):  # before Linux 5.12, one after the other
        # Others lie under the new root, out of reach.
        if (point == root or point.startswith(f"{root}/")) and os.path.lexists(point):
            kept = sum(flag for name, flag in _OPTIONS.items() if name in options)
            _mount(None, point, None, REMOUNT | BIND | attributes | kept)


def _mounts(processes: int) -> list[tuple[str, set[str]]]:
    """Where something is mounted, as this process sees it, and with which options.

    Args:
        processes: /proc, opened while it was there.
    """
    handle = os.open("self/mountinfo", os.O_RDONLY, dir_fd=processes)
    with open(handle, encoding="utf-8", errors="surrogateescape") as file:
        fields = [line.split(" ") for line in file]

    def plain(text: str) -> str:  # a space is written as \040, in octal digits
        return _OCTAL.sub(lambda found: chr(int(found[1], 8)), text) if "\\" in text else text

    options = {text: set(text.split(",")) for text in {each[5] for each in fields}}
    return [(plain(each[4]), options[each[5]]) for each in fields]


def _verify(processes: int) -> None:
    """Look around from inside.

    Raises:
        Unavailable: something other than the scratch folders can be written.
    """
    for point, options in _mounts(processes):
        wanted = {"nosuid"}
        if point not in SCRATCH:
            wanted.add("ro")
        if os.path.dirname(point) != "/dev" or point in SCRATCH:
            wanted.add("nodev")
        if missing := wanted - options:
            raise Unavailable(f"the jail would have {point} without {', '.join(sorted(missing))}")


def _give_up_rights(slot: int, programs: bool) -> None:
    for capability in range(64):
        _libc.prctl(_DROP_BOUND, capability, 0, 0, 0)
    if os.getuid() == 0:
        _change_user(slot)
    header = (ctypes.c_uint32 * 2)(_CAP_VERSION, 0)
    _call("capset", "no rights", _libc.capset(header, (ctypes.c_uint32 * 6)()))
    _call("prctl", "no new rights", _libc.prctl(_NO_NEW_RIGHTS, 1, 0, 0, 0))
    _libc.prctl(_NO_DUMP, 0, 0, 0, 0)
    _libc.prctl(_DIE_WITH_PARENT, 9, 0, 0, 0)  # changing the user has cleared it
    _call("prctl", "a filter of system calls", seccomp.install(_libc, programs))


def _address_space() -> int:
    pages = int(Path("/proc/self/statm").read_text().split()[0])
    return pages * resource.getpagesize()


def _mount(source, target, kind, flags, options=None) -> None:
    encoded = [x if x is None else os.fsencode(x) for x in (source, target, kind)]
    done = _libc.mount(*encoded, ctypes.c_ulong(flags), options and options.encode())
    _call("mount", f"{source or 'settings'} at {target}", done)


def _call(name: str, what: str, result: int) -> None:
    if result != 0:
        number = ctypes.get_errno()
        raise Unavailable(f"{name} ({what}): {os.strerror(number)}")
