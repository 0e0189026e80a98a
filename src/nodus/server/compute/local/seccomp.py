"""System call filters for sandboxes: a small assembler for classic BPF, and the profiles built with it.

Runs in whichever process launches sandboxes (supervisors, the grading pool); standard library only, importable alone.
A program is handed to bubblewrap (``--seccomp FD``), which installs it just before the command. Profiles allow by
default and refuse what a sandboxed program has no business with; they are the second wall behind namespaces, a foreign
uid and an empty capability set.

What the filters do not do: they cannot look behind pointers (so ``clone3`` is refused whole, and the C library falls
back to ``clone``), and they are no defence against a bug in a system call that ordinary programs need.
"""

from __future__ import annotations

import errno
import platform
import struct
from collections.abc import Iterable, Sequence
from dataclasses import dataclass

_LOAD_WORD = 0x20  # BPF_LD | BPF_W | BPF_ABS
_JUMP_EQUAL = 0x15  # BPF_JMP | BPF_JEQ | BPF_K
_JUMP_AT_LEAST = 0x35  # BPF_JMP | BPF_JGE | BPF_K
_JUMP_ANY_BIT = 0x45  # BPF_JMP | BPF_JSET | BPF_K
_RETURN = 0x06  # BPF_RET | BPF_K
_ALLOW = 0x7FFF0000
_ERRNO = 0x00050000
_KILL_PROCESS = 0x80000000
# struct seccomp_data: int nr, u32 arch, u64 instruction_pointer, u64 args[6]
_OFFSET_NR, _OFFSET_ARCH, _OFFSET_ARGS = 0, 4, 16
_X32_BIT = 0x40000000  # the x32 ABI reaches the same calls by other numbers

_AUDIT_ARCH = {"x86_64": 0xC000003E, "aarch64": 0xC00000B7}

# name: (x86_64, aarch64); None where the architecture lacks the call
_NUMBERS: dict[str, tuple[int | None, int | None]] = {
    "acct": (163, 89),
    "add_key": (248, 217),
    "adjtimex": (159, 171),
    "bpf": (321, 280),
    "chroot": (161, 51),
    "clock_adjtime": (305, 266),
    "clock_settime": (227, 112),
    "clone": (56, 220),
    "clone3": (435, 435),
    "delete_module": (176, 106),
    "fanotify_init": (300, 262),
    "finit_module": (313, 273),
    "fsconfig": (431, 431),
    "fsmount": (432, 432),
    "fsopen": (430, 430),
    "fspick": (433, 433),
    "init_module": (175, 105),
    "io_uring_enter": (426, 426),
    "io_uring_register": (427, 427),
    "io_uring_setup": (425, 425),
    "ioctl": (16, 29),
    "ioperm": (173, None),
    "iopl": (172, None),
    "ioprio_set": (251, 30),
    "kcmp": (312, 272),
    "kexec_file_load": (320, 294),
    "kexec_load": (246, 104),
    "keyctl": (250, 219),
    "lookup_dcookie": (212, 18),
    "memfd_secret": (447, 447),
    "modify_ldt": (154, None),
    "mount": (165, 40),
    "mount_setattr": (442, 442),
    "move_mount": (429, 429),
    "mq_open": (240, 180),
    "msgget": (68, 186),
    "name_to_handle_at": (303, 264),
    "open_by_handle_at": (304, 265),
    "open_tree": (428, 428),
    "perf_event_open": (298, 241),
    "pidfd_getfd": (438, 438),
    "pivot_root": (155, 41),
    "prlimit64": (302, 261),
    "process_madvise": (440, 440),
    "process_vm_readv": (310, 270),
    "process_vm_writev": (311, 271),
    "ptrace": (101, 117),
    "quotactl": (179, 60),
    "quotactl_fd": (443, 443),
    "reboot": (169, 142),
    "request_key": (249, 218),
    "sched_setaffinity": (203, 122),
    "sched_setattr": (314, 274),
    "sched_setparam": (142, 118),
    "sched_setscheduler": (144, 119),
    "semget": (64, 190),
    "setdomainname": (171, 162),
    "sethostname": (170, 161),
    "setns": (308, 268),
    "setpriority": (141, 140),
    "settimeofday": (164, 170),
    "shmget": (29, 194),
    "socket": (41, 198),
    "swapoff": (168, 225),
    "swapon": (167, 224),
    "syslog": (103, 116),
    "umount2": (166, 39),
    "unshare": (272, 97),
    "uselib": (134, None),
    "userfaultfd": (323, 282),
    "vhangup": (153, 58),
}

_SPECIAL = ("clone", "clone3", "ioctl", "prlimit64", "socket")
# A graded completion shares the uid of the worker that forked it. It cannot signal the worker (process 1 of the
# namespace takes no signal from inside), but it could slow it down, cut its limits, or leave something for the next
# completion in System V or POSIX objects, which no file system holds.
_SIBLINGS = (
    "ioprio_set",
    "mq_open",
    "msgget",
    "sched_setaffinity",
    "sched_setattr",
    "sched_setparam",
    "sched_setscheduler",
    "semget",
    "setpriority",
    "shmget",
)
_FORBIDDEN = tuple(name for name in _NUMBERS if name not in _SPECIAL and name not in _SIBLINGS)

_CLONE_NEW_ANY = 0x7E020000  # every CLONE_NEW* flag that clone(2) takes
_TIOCSTI, _TIOCLINUX = 0x5412, 0x541C  # type into, or paste into, the controlling terminal
AF_UNIX, AF_INET, AF_INET6, AF_NETLINK = 1, 2, 10, 16


class UnsupportedArchitecture(RuntimeError):
    """The machine's architecture has no table of system call numbers here."""


@dataclass(frozen=True, slots=True)
class Rule:
    """Refuse one system call, wholly or by an argument.

    Attributes:
        name: The system call.
        error: The errno that the caller sees.
        arg: Index of the argument to look at (its low 32 bits); None refuses every call.
        any_bit: Refuse when the argument has any of these bits.
        values: Refuse when the argument is one of these; with ``allow_only`` when it is none of them.
        allow_only: Turns ``values`` into the list of what stays allowed.
    """

    name: str
    error: int = errno.EPERM
    arg: int | None = None
    any_bit: int = 0
    values: tuple[int, ...] = ()
    allow_only: bool = False


def _instruction(code: int, k: int, jump_true: int = 0, jump_false: int = 0) -> bytes:
    return struct.pack("=HBBI", code, jump_true, jump_false, k)


def _refusal(error: int) -> bytes:
    return _instruction(_RETURN, _ERRNO | error)


def _rule_block(rule: Rule, number: int) -> list[bytes]:
    """Return the instructions of one rule; they expect the call's number loaded and leave it loaded."""
    if rule.arg is None:
        return [_instruction(_JUMP_EQUAL, number, 0, 1), _refusal(rule.error)]
    body = [_instruction(_LOAD_WORD, _OFFSET_ARGS + 8 * rule.arg)]
    if rule.any_bit:
        body += [_instruction(_JUMP_ANY_BIT, rule.any_bit, 0, 1), _refusal(rule.error)]
    elif rule.allow_only:
        left = len(rule.values)
        # each match jumps over the remaining comparisons and the refusal
        body += [_instruction(_JUMP_EQUAL, value, left - index, 0) for index, value in enumerate(rule.values)]
        body.append(_refusal(rule.error))
    else:
        for value in rule.values:
            body += [_instruction(_JUMP_EQUAL, value, 0, 1), _refusal(rule.error)]
    body.append(_instruction(_LOAD_WORD, _OFFSET_NR))
    return [_instruction(_JUMP_EQUAL, number, 0, len(body)), *body]


def assemble(rules: Iterable[Rule], machine: str | None = None) -> bytes:
    """Return a classic BPF program that refuses what ``rules`` say and allows the rest.

    Args:
        rules: Tried in order; the first match decides.
        machine: ``x86_64`` or ``aarch64``; this machine's when absent.

    Returns:
        ``struct sock_filter`` records of 8 bytes each, as ``bwrap --seccomp`` reads them.

    Raises:
        UnsupportedArchitecture: When there is no table for the machine.
        KeyError: When a rule names an unknown system call.
    """
    machine = machine or platform.machine()
    if machine not in _AUDIT_ARCH:
        raise UnsupportedArchitecture(
            f"no system call filter for {machine!r}; sandboxes are isolated on x86_64 and aarch64 only"
        )
    column = 0 if machine == "x86_64" else 1
    program = [
        _instruction(_LOAD_WORD, _OFFSET_ARCH),
        _instruction(_JUMP_EQUAL, _AUDIT_ARCH[machine], 1, 0),
        _instruction(_RETURN, _KILL_PROCESS),
        _instruction(_LOAD_WORD, _OFFSET_NR),
    ]
    if machine == "x86_64":
        program += [_instruction(_JUMP_AT_LEAST, _X32_BIT, 0, 1), _refusal(errno.ENOSYS)]
    for rule in rules:
        number = _NUMBERS[rule.name][column]
        if number is not None:
            program += _rule_block(rule, number)
    program.append(_instruction(_RETURN, _ALLOW))
    return b"".join(program)


def _common(families: Sequence[int]) -> list[Rule]:
    return [
        Rule("clone3", errno.ENOSYS),
        Rule("clone", arg=0, any_bit=_CLONE_NEW_ANY),
        Rule("socket", errno.EAFNOSUPPORT, arg=0, values=tuple(families), allow_only=True),
        Rule("ioctl", arg=1, values=(_TIOCSTI, _TIOCLINUX)),
        *(Rule(name) for name in _FORBIDDEN),
    ]


def grader_profile(machine: str | None = None, *, enters: bool = False) -> bytes:
    """Return the filter of grading sandboxes: no sockets but unix ones, no namespaces, no tracing, no meddling.

    Args:
        machine: As for ``assemble``.
        enters: For a sandbox whose first program changes its root: that call stays, and takes a capability that the
            program gives up.
    """
    own_limits_only = Rule("prlimit64", arg=0, values=(0,), allow_only=True)
    rules = [*_common([AF_UNIX]), own_limits_only, *(Rule(name) for name in _SIBLINGS)]
    return assemble([rule for rule in rules if not (enters and rule.name == "chroot")], machine)


def job_profile(machine: str | None = None) -> bytes:
    """Return the filter of jobs: as graders, but loopback TCP (several ranks of one trainer talk over it)."""
    return assemble(_common([AF_UNIX, AF_INET, AF_INET6, AF_NETLINK]), machine)
