"""What a grader sees on this machine, and what the code that it has run: nothing but what is named here."""

from __future__ import annotations

import os
from collections.abc import Iterable, Mapping
from dataclasses import dataclass, field
from pathlib import Path

from nodus.server.compute.graders import GraderSpec
from nodus.server.compute.local import pythons
from nodus.server.compute.local.mounts import (
    IDENTITY_FILES,
    Mount,
    interpreter_mounts,
    package_root,
    system_mounts,
)
from nodus.server.compute.local.pythons import Python
from nodus.server.compute.local.sandboxspec import MIB, SandboxSpec

_INSIDE_NODUS = "/opt/nodus"
_INSIDE_ENVIRONMENT = "/opt/environment"
_INSIDE_PACKAGES = "/opt/python/lib/python{}/site-packages"
_INSIDE_CACHE = "/opt/cache"
HOME = "/cache"
"""The home directory of an environment that was built: libraries keep there what they download."""
_HOME_BYTES = 128 * MIB
_ADDRESS_SPACE_FACTOR = 8  # numpy and friends reserve far more than they touch
CODE_UID = 10002
CODE_MEMORY_BYTES = 384 * MIB
_CODE_PASSWD = b"root:x:0:0:root:/:/usr/sbin/nologin\ncode:x:10002:10002:code:/tmp:/bin/sh\n"
_CODE_GROUP = b"root:x:0:\ncode:x:10002:\n"
_CODE_ENVIRONMENT = ("PATH", "HOME", "TMPDIR", "LANG", "PYTHONHASHSEED", "OMP_NUM_THREADS")
_ENVIRONMENT = {
    "PATH": "/usr/bin:/bin",
    "HOME": "/tmp",
    "TMPDIR": "/tmp",
    "LANG": "C.UTF-8",
    "PYTHONHASHSEED": "0",
    "OMP_NUM_THREADS": "1",
    "OPENBLAS_NUM_THREADS": "1",
    "MKL_NUM_THREADS": "1",
    "MPLCONFIGDIR": "/tmp",
    "HF_HUB_OFFLINE": "1",
    "HF_DATASETS_OFFLINE": "1",
    "TRANSFORMERS_OFFLINE": "1",
}


def grader_sandbox(spec: GraderSpec, output_fd: int, lifeline_fd: int, code_fd: int | None = None) -> SandboxSpec:
    """Return the sandbox of one grader.

    Args:
        spec: What it runs; ``unsafe`` gives host paths.
        output_fd: The private descriptor of its results.
        lifeline_fd: The read end of a pipe that the server holds the other end of.
        code_fd: Its end of the socket to its code sandbox.

    Raises:
        OSError: When the Python it asks for is no longer there.
    """
    python = _python(spec)
    view = _host_view(spec, python) if spec.unsafe else _sandbox_view(spec, python)
    # -S and -P: nothing is imported that was not named; not -I, which would ignore PYTHONHASHSEED
    argv = [python.program, "-S", "-s", "-P", "-B", f"{view.nodus}/nodus/grader", "--path", view.environment]
    argv += ["--output-fd", str(output_fd), "--lifeline-fd", str(lifeline_fd)]
    if code_fd is not None:
        argv += ["--code-fd", str(code_fd)]
    for directory in view.packages:
        argv += ["--library", directory]
    home: dict[str, str] = {}
    if spec.cache is not None:
        home = home_environment(str(spec.cache) if spec.unsafe else HOME)
        argv += [] if spec.unsafe else ["--cache", _INSIDE_CACHE, HOME]
    extra = {"OPENBLAS_CORETYPE": os.environ["OPENBLAS_CORETYPE"]} if "OPENBLAS_CORETYPE" in os.environ else {}
    return SandboxSpec(
        argv=(*argv, *spec.arguments),
        env={**_ENVIRONMENT, **home, **extra},
        mounts=(*system_mounts(), *interpreter_mounts(python.prefix, python.program), *view.mounts),
        tmpfs={"/tmp": 64 * MIB, "/dev/shm": 16 * MIB, **view.tmpfs, **dict.fromkeys(view.hidden, 4096)},
        files=IDENTITY_FILES,
        hostname="grader",
        init=False,
        memory_bytes=spec.memory_bytes,
        pids=64,
        pids_by_rlimit=16,
        address_space_bytes=_ADDRESS_SPACE_FACTOR * spec.memory_bytes,
        file_bytes=64 * MIB,
        open_files=256,
        umask=0o077,
    )


def code_sandbox(spec: GraderSpec, control_fd: int) -> SandboxSpec:
    """Return the sandbox that runs code of completions for a grader: another user, and nothing that holds an answer.

    Args:
        spec: The grader.
        control_fd: Its end of the socket to the grader.

    Raises:
        OSError: When the Python that the grader asks for is no longer there.
    """
    python = _python(spec)
    root = package_root() if spec.unsafe else _INSIDE_NODUS
    parts = [str(Path("nodus", "grader", name)) for name in ("codebox", "process.py")]
    mounts = (*system_mounts(), *interpreter_mounts(python.prefix, python.program))
    hidden = [place for directory in (package_root(), *python.packages) for place in _seen_at(directory, mounts)]
    names = {"/etc/passwd": _CODE_PASSWD, "/etc/group": _CODE_GROUP}
    return SandboxSpec(
        argv=(python.program, "-S", "-s", "-P", "-B", f"{root}/nodus/grader/codebox", "--control-fd", str(control_fd)),
        env={name: value for name, value in _ENVIRONMENT.items() if name in _CODE_ENVIRONMENT},
        mounts=(*mounts, *(Mount(str(Path(package_root(), part)), f"{_INSIDE_NODUS}/{part}") for part in parts)),
        tmpfs={"/tmp": 16 * MIB, "/dev/shm": MIB, **dict.fromkeys(hidden, 4096)},
        files={**IDENTITY_FILES, **names},
        hostname="code",
        uid=CODE_UID,
        init=False,
        memory_bytes=CODE_MEMORY_BYTES,
        pids=48,
        pids_by_rlimit=8,
        address_space_bytes=CODE_MEMORY_BYTES,
        file_bytes=16 * MIB,
        open_files=64,
        umask=0o077,
    )


def _seen_at(directory: str, mounts: Iterable[Mount]) -> list[str]:
    """Return where a sandbox would see the packages of a host directory that it has no business with."""
    place = Path(directory).resolve()
    found = []
    for mount in mounts:
        host = Path(mount.host)
        if not mount.symlink and place.is_dir() and place.is_relative_to(host.resolve()):
            found.append(str(Path(mount.path, place.relative_to(host.resolve()))))
    return found


def _python(spec: GraderSpec) -> Python:
    python = pythons.own() if spec.python is None else pythons.find(spec.python)
    if python is None:
        raise OSError(f"no python{spec.python} is on the server's PATH any more")
    return python


@dataclass(frozen=True, slots=True)
class _View:
    nodus: str
    environment: str
    packages: tuple[str, ...]
    mounts: tuple[Mount, ...] = ()
    hidden: tuple[str, ...] = ()
    tmpfs: Mapping[str, int] = field(default_factory=dict)


def _sandbox_view(spec: GraderSpec, python: Python) -> _View:
    mounts = [Mount(str(Path(package_root(), "nodus", "grader")), f"{_INSIDE_NODUS}/nodus/grader")]
    if spec.directory is not None:
        mounts.append(Mount(str(spec.directory), _INSIDE_ENVIRONMENT))
    packages: list[str] = []
    hidden: list[str] = []
    for number, directory in enumerate(map(str, spec.packages or python.packages)):
        inside = packages_inside(python.version, number)
        packages.append(inside)
        mounts.append(Mount(directory, inside))
        if Path(directory, "nodus").is_dir():
            hidden.append(f"{inside}/nodus")  # an installed server is no library of rewards
    tmpfs = {}
    if spec.cache is not None:
        mounts.append(Mount(str(spec.cache), _INSIDE_CACHE))
        tmpfs[HOME] = _HOME_BYTES
    return _View(_INSIDE_NODUS, _INSIDE_ENVIRONMENT, tuple(packages), tuple(mounts), tuple(hidden), tmpfs)


def _host_view(spec: GraderSpec, python: Python) -> _View:
    packages = tuple(map(str, spec.packages)) or python.packages
    return _View(package_root(), str(spec.directory or _INSIDE_ENVIRONMENT), packages)


def packages_inside(version: str, number: int = 0) -> str:
    """Return where a sandbox sees a directory of packages of a Python, such as ``3.11``.

    It ends in site-packages: some libraries decide by that whether a module is importable.
    """
    return _INSIDE_PACKAGES.format(version) + (f"-{number}" if number else "")


def home_environment(home: str) -> dict[str, str]:
    """Return the variables by which libraries find what they downloaded when the environment was built."""
    return {"HOME": home, "TIKTOKEN_CACHE_DIR": f"{home}/.cache/tiktoken"}
