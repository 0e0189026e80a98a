"""Builds on this machine: a sandbox without a network of its own, and a guarded way out of it."""

from __future__ import annotations

import importlib.util
import logging
import os
import shutil
import subprocess
import threading
import time
from collections.abc import Callable, Iterable, Sequence
from pathlib import Path

from nodus.server.compute.builds import BuildCommand, BuildEnded, BuildNotStarted, PipSettings
from nodus.server.compute.local import pipsettings, pythons, seccomp
from nodus.server.compute.local.egress import Egress
from nodus.server.compute.local.gradersandbox import home_environment, packages_inside
from nodus.server.compute.local.mounts import IDENTITY_FILES, Mount, interpreter_mounts, package_root, system_mounts
from nodus.server.compute.local.prepare import own_directory
from nodus.server.compute.local.probe import Isolation, probe
from nodus.server.compute.local.sandbox import SandboxError, SandboxProcess, launch
from nodus.server.compute.local.sandboxspec import MIB, SandboxSpec
from nodus.server.sources.base import RESERVE_BYTES
from nodus.server.sources.guard import Guard
from nodus.server.trees import TreeRefused, entries

log = logging.getLogger(__name__)

_SOCKET = "/run/nodus/net.sock"
_DOOR = "/opt/nodus/netdoor.py"
_RUNNER = "/opt/nodus/nodus/grader"
_LOOK_EVERY_S = 0.5
_MOST_ENTRIES = 500_000
_CERTIFICATES = ("/etc/ssl/certs", "/etc/pki", "/etc/ca-certificates")
_CERTIFICATE_FILES = ("SSL_CERT_FILE", "REQUESTS_CA_BUNDLE", "CURL_CA_BUNDLE", "PIP_CERT")
_PASSED = ("HF_ENDPOINT",)


class LocalBuilds:
    """Runs builds on this machine; a BuildHost.

    Args:
        allowed: Hosts and networks with private addresses that builds may reach.
        check: Finds out how this machine isolates; replaced in tests.
        settings: Says how the operator has configured pip; replaced in tests.
    """

    def __init__(
        self,
        allowed: Sequence[str] = (),
        check: Callable[[], Isolation] = probe,
        settings: Callable[[], PipSettings] = pipsettings.read,
    ) -> None:
        self._allowed = tuple(allowed)
        self._check = check
        self._isolated = False
        self._settings = settings

    def python(self) -> str:
        """Return what the server's Python names its compiled modules after."""
        return pythons.own().tag

    def pip(self) -> Path | None:
        """Return the directory of the package pip beside the server; None when there is none."""
        found = importlib.util.find_spec("pip")
        return Path(found.origin).parent if found is not None and found.origin else None

    def pip_settings(self) -> PipSettings:
        """Return how the operator has configured pip."""
        return self._settings()

    def run(
        self, command: BuildCommand, output: Callable[[bytes], None], stopping: threading.Event, scratch: Path
    ) -> BuildEnded:
        """Run a command to its end, within its limits."""
        self._require_isolation()
        refused: dict[str, None] = {}
        door = scratch / "net.sock"
        egress = Egress(
            door, Guard(self._allowed), command.hosts, lambda why: refused.setdefault(why), ports=command.ports
        )
        try:
            for directory in command.writable.values():
                own_directory(directory)
            process = launch(
                _sandbox(command, door), stdout=subprocess.PIPE, stderr=subprocess.STDOUT
            )  # the thread that runs the recipe lives as long
            try:
                broke = _Watch(process, command, output, stopping).to_the_end()
                code = process.kill_tree()
                if process.usage().oom_kills and not broke:
                    broke = f"it needed more than {command.memory_bytes // MIB} MiB of memory"
                broke = broke or _excess(command)  # what it made since the last look
            finally:
                process.kill_tree()
        except (SandboxError, OSError) as error:
            raise BuildNotStarted(str(error)) from error
        finally:
            egress.close()
            door.unlink(missing_ok=True)
        return BuildEnded(code, broke, tuple(refused))

    def _require_isolation(self) -> None:
        """Check once that this machine isolates, and again until it does: something may be installed."""
        if self._isolated:
            return
        isolation = self._check()
        if not isolation.ok:
            fix = f"; to fix it: {isolation.fix}" if isolation.fix else ""
            raise BuildNotStarted(f"this machine cannot isolate a build: {'; '.join(isolation.problems)}{fix}")
        self._isolated = True


class _Watch:
    """Reads a command's output and stops it at its limits."""

    def __init__(
        self,
        process: SandboxProcess,
        command: BuildCommand,
        output: Callable[[bytes], None],
        stopping: threading.Event,
    ) -> None:
        self._process = process
        self._command = command
        self._output = output
        self._stopping = stopping
        self._ended = threading.Event()
        self._broke = ""

    def to_the_end(self) -> str:
        """Wait until the output ends; return which limit was broken, in words."""
        watcher = threading.Thread(target=self._watch, name="build-watch", daemon=True)
        watcher.start()
        stream, left = self._process.popen.stdout, self._command.output_bytes
        assert stream is not None
        try:
            with stream:
                while block := os.read(stream.fileno(), 1 << 16):
                    left -= len(block)
                    if left < 0:
                        self._stop(f"it printed more than {self._command.output_bytes // MIB} MiB")
                        break
                    self._output(block)
        finally:
            self._ended.set()
            watcher.join()
        return self._broke

    def _watch(self) -> None:
        try:
            self._look()
        except Exception as error:  # whatever it is: without its limits nothing may run on
            log.exception("a build can't be watched")
            self._stop(f"a fault of the server: {type(error).__name__} while it was watched")

    def _look(self) -> None:
        deadline = time.monotonic() + self._command.timeout_s
        while not self._ended.wait(_LOOK_EVERY_S):
            if self._stopping.is_set():
                return self._stop("it was told to stop")
            if time.monotonic() > deadline:
                return self._stop(f"it took longer than {self._command.timeout_s:g} s")
            if excess := _excess(self._command):
                return self._stop(excess)
            for directory in self._command.writable.values():
                if shutil.disk_usage(directory).free < RESERVE_BYTES:
                    return self._stop("the server's disk is nearly full")

    def _stop(self, why: str) -> None:
        self._broke = self._broke or why
        self._process.interrupt()


def _excess(command: BuildCommand) -> str:
    """Return which bound the command's directories break, in words; empty for none."""
    try:
        size = _size(command.writable.values())
    except TreeRefused as error:
        return str(error)
    return f"it wrote more than {command.disk_bytes / 1e9:.1f} GB" if size > command.disk_bytes else ""


def _size(directories: Iterable[Path]) -> int:
    """Return the size of all files as it is on the disk or, where it is more, as readers see it: holes take time too.

    Raises:
        TreeRefused: There are too many, or they are nested too deep.
    """
    total = 0
    for root in directories:
        for entry in entries(root, _MOST_ENTRIES):
            try:
                found = entry.stat(follow_symlinks=False)
            except OSError:
                continue  # gone meanwhile
            total += max(found.st_size, found.st_blocks * 512)
    return total


def _sandbox(command: BuildCommand, door: Path) -> SandboxSpec:
    python = pythons.own()
    words = {"python": python.program, "runner": _RUNNER, "packages": packages_inside(python.version)}

    def filled(text: str) -> str:
        for name, value in words.items():
            text = text.replace("{" + name + "}", value)
        return text

    mounts = [
        *system_mounts(),
        *interpreter_mounts(python.prefix, python.program),
        Mount(str(Path(__file__).with_name("netdoor.py")), _DOOR),
        Mount(str(Path(package_root(), "nodus", "grader")), _RUNNER),
        Mount(str(door), _SOCKET, readonly=False),
        *(Mount(path, path) for path in _CERTIFICATES if os.path.isdir(path)),
    ]
    certificates = {name: os.environ[name] for name in _CERTIFICATE_FILES if os.path.isfile(os.environ.get(name, ""))}
    mounted = {mount.path for mount in mounts}
    for path in dict.fromkeys(certificates.values()):
        if not any(os.path.abspath(path).startswith(f"{place}/") for place in (*mounted, "/usr")):
            mounts.append(Mount(os.path.realpath(path), path))
    mounts += [Mount(str(path), filled(inside), readonly=False) for inside, path in command.writable.items()]
    mounts += [Mount(str(path), filled(inside)) for inside, path in command.readable.items()]
    argv = [python.program, "-S", "-s", "-P", "-B", _DOOR, _SOCKET, "--", *map(filled, command.argv)]
    passed = {name: os.environ[name] for name in _PASSED if name in os.environ}
    return SandboxSpec(
        argv=tuple(argv),
        env={
            "PATH": "/usr/local/bin:/usr/bin:/bin", "LANG": "C.UTF-8", "TMPDIR": "/tmp", "PYTHONHASHSEED": "0",
            **home_environment(command.home), **certificates, **passed,
            **{name: filled(value) for name, value in command.env.items()},
        },
        mounts=tuple(mounts),
        tmpfs={"/tmp": 256 * MIB, "/dev/shm": 64 * MIB},
        files=IDENTITY_FILES,
        hostname="build",
        seccomp=seccomp.job_profile(),
        memory_bytes=command.memory_bytes,
        pids=256,
        file_bytes=command.disk_bytes,
        open_files=1024,
    )  # fmt: skip
