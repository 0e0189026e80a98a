"""The filters, run by a small interpreter of classic BPF: also for the architecture this machine is not."""

from __future__ import annotations

import struct

import pytest

from nodus.server.compute.local import seccomp
from nodus.server.compute.local.seccomp import Rule, UnsupportedArchitecture, assemble

ALLOW, KILL = 0x7FFF0000, 0x80000000
ARCHITECTURES = {"x86_64": 0xC000003E, "aarch64": 0xC00000B7}
NUMBERS = {
    # system call: (x86_64, aarch64), from the kernel's tables
    "read": (0, 63),
    "openat": (257, 56),
    "fork": (57, None),
    "kill": (62, 129),
    "ptrace": (101, 117),
    "clone": (56, 220),
    "clone3": (435, 435),
    "unshare": (272, 97),
    "mount": (165, 40),
    "socket": (41, 198),
    "ioctl": (16, 29),
    "prlimit64": (302, 261),
    "setpriority": (141, 140),
    "shmget": (29, 194),
    "bpf": (321, 280),
    "io_uring_setup": (425, 425),
    "execve": (59, 221),
    "setresuid": (117, 147),
    "capset": (126, 91),
    "prctl": (157, 167),
}


def verdict(program: bytes, machine: str, name: str | int, *args: int, arch: int | None = None) -> int | None:
    """What the kernel would answer: None for allowed, -1 for killed, an errno for refused."""
    number = name if isinstance(name, int) else NUMBERS[name][machine == "aarch64"]
    assert number is not None
    data = struct.pack("=IIQ6Q", number, arch or ARCHITECTURES[machine], 0, *(*args, *[0] * (6 - len(args))))
    code = [struct.unpack_from("=HBBI", program, at) for at in range(0, len(program), 8)]
    accumulator, at = 0, 0
    while True:
        operation, jump_true, jump_false, k = code[at]
        at += 1
        if operation == 0x20:
            (accumulator,) = struct.unpack_from("=I", data, k)
        elif operation == 0x06:
            return None if k == ALLOW else -1 if k == KILL else k & 0xFFFF
        else:
            holds = {0x15: accumulator == k, 0x35: accumulator >= k, 0x45: bool(accumulator & k)}[operation]
            at += jump_true if holds else jump_false


EPERM, ENOSYS, EAFNOSUPPORT = 1, 38, 97
AF_UNIX, AF_INET, AF_VSOCK = 1, 2, 40


@pytest.mark.parametrize("machine", ARCHITECTURES)
@pytest.mark.parametrize(
    ("call", "args", "grader", "job"),
    [
        ("read", (), None, None),
        ("openat", (), None, None),
        ("execve", (), None, None),
        # what setpriv needs under the filter, before the command
        ("setresuid", (10001, 10001, 10001), None, None),
        ("capset", (), None, None),
        ("prctl", (38, 1), None, None),
        ("kill", (1, 9), None, None),
        ("clone", (0x01200011,), None, None),
        ("clone", (0x10000011,), EPERM, EPERM),
        ("clone", (0x40000000,), EPERM, EPERM),
        ("clone3", (), ENOSYS, ENOSYS),
        ("unshare", (0,), EPERM, EPERM),
        ("ptrace", (), EPERM, EPERM),
        ("mount", (), EPERM, EPERM),
        ("bpf", (), EPERM, EPERM),
        ("io_uring_setup", (), EPERM, EPERM),
        ("socket", (AF_UNIX,), None, None),
        ("socket", (AF_INET,), EAFNOSUPPORT, None),
        ("socket", (AF_VSOCK,), EAFNOSUPPORT, EAFNOSUPPORT),
        ("ioctl", (0, 0x5401), None, None),
        ("ioctl", (0, 0x5412), EPERM, EPERM),
        ("ioctl", (0, 0x1_0000_5412), EPERM, EPERM),
        ("prlimit64", (0, 0), None, None),
        ("prlimit64", (1, 0), EPERM, None),
        ("setpriority", (0, 1, 19), EPERM, None),
        ("shmget", (7,), EPERM, None),
    ],
)
def test_profiles(machine: str, call: str, args: tuple[int, ...], grader: int | None, job: int | None) -> None:
    assert verdict(seccomp.grader_profile(machine), machine, call, *args) == grader
    assert verdict(seccomp.job_profile(machine), machine, call, *args) == job


@pytest.mark.parametrize("machine", ARCHITECTURES)
def test_calls_of_another_architecture_kill(machine: str) -> None:
    i386 = 0x40000003
    assert verdict(seccomp.grader_profile(machine), machine, 1, arch=i386) == -1


def test_x32_numbers_are_no_way_around() -> None:
    assert verdict(seccomp.grader_profile("x86_64"), "x86_64", 0x40000000 | 101) == ENOSYS


def test_programs_fit_the_kernels_limit() -> None:
    for machine in ARCHITECTURES:
        assert len(seccomp.grader_profile(machine)) // 8 <= 4096


def test_first_matching_rule_decides_and_the_number_stays_loaded() -> None:
    rules = [Rule("socket", 97, arg=0, values=(AF_UNIX,), allow_only=True), Rule("ptrace", 13)]
    program = assemble(rules, "x86_64")
    assert verdict(program, "x86_64", "socket", AF_UNIX) is None
    assert verdict(program, "x86_64", "ptrace") == 13


def test_unknown_machine_and_unknown_call_are_refused() -> None:
    with pytest.raises(UnsupportedArchitecture, match="riscv64"):
        seccomp.grader_profile("riscv64")
    with pytest.raises(KeyError):
        assemble([Rule("no_such_call")], "x86_64")
