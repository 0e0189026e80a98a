"""The recipe for pip packages: download, install, load.

The package itself comes from its own index alone, its dependencies from the operator's default one alone: a name that
is the one's is never looked up at the other, whatever version somebody put there. pip and all code of packages run in
sandboxes; what is kept is addressed by every byte of it, not by what a package says of itself.
"""

from __future__ import annotations

import json
import os
import stat
import sys
from collections.abc import Callable, Sequence
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any, ClassVar
from urllib.parse import urlsplit

from packaging.utils import (
    InvalidSdistFilename,
    InvalidWheelFilename,
    canonicalize_name,
    parse_sdist_filename,
    parse_wheel_filename,
)
from packaging.version import InvalidVersion, Version

from nodus.core.digests import digest_of
from nodus.server.compute.builds import GIB, BuildCommand, BuildEnded, BuildHost, BuildNotStarted, PipSettings
from nodus.server.grading.builds import installed, pipfailures
from nodus.server.grading.builds.base import BuildFailed, BuildStopped, Built, Order, Report
from nodus.server.grading.builds.facts import checked_info
from nodus.server.grading.environments import GRADER_PROTOCOL
from nodus.server.grading.verdicts import storable
from nodus.server.trees import remove_tree

MIB = 1024 * 1024
DISK_BYTES = 4 * GIB
DOWNLOAD_TIMEOUT_S, INSTALL_TIMEOUT_S, LOAD_TIMEOUT_S = 600.0, 1800.0, 1800.0
LOAD_MEMORY_BYTES = 4 * GIB
_TAIL_BYTES = 64 * 1024
_PYTHON = ("/bin/sh", "-c", 'mkdir -p "$TMPDIR" && exec "$@"', "sh", "{python}", "-s", "-P", "-B")
_PIP = (*_PYTHON, "-m", "pip")
_ALONE = """
import runpy, sys
def alone(event, args):
    if event in STARTS:
        raise OSError("a package would run code to be built, beside the credentials of the server's index")
STARTS = {
    "subprocess.Popen", "os.fork", "os.forkpty", "os.posix_spawn", "os.exec", "os.spawn", "os.system", "pty.spawn",
}
sys.addaudithook(alone)
runpy.run_module("pip", run_name="__main__", alter_sys=True)
"""
_PIP_ALONE = (*_PYTHON, "-c", _ALONE)
"""pip that starts no process. It builds packages in processes of their own, and that it takes wheels alone does
not hold for local files, nor for what a dependency names by its address."""
_QUIET = ("--disable-pip-version-check", "--no-input", "--no-cache-dir", "--progress-bar", "off", "--no-color")
_RETRIES = ("--retries", "2", "--log", "/build/pip.log")
_REPORT_BYTES = 4 * MIB
_CONSTRAINTS_INSIDE = "/opt/pip/constraints.txt"
_CONSTRAINTS = "verifiers<0.4\n"
"""Packages of environments say which version they need at least, and later ones have dropped what they build on."""


@dataclass(frozen=True, slots=True)
class _Limits:
    """Limits of the three steps; tests set smaller ones."""

    download_s: float = DOWNLOAD_TIMEOUT_S
    install_s: float = INSTALL_TIMEOUT_S
    load_s: float = LOAD_TIMEOUT_S
    disk_bytes: int = DISK_BYTES
    memory_bytes: int = LOAD_MEMORY_BYTES


Limits = _Limits


class PipRecipe:
    """Builds pip packages.

    Args:
        host: Runs commands of strangers.
        limits: Of time, disk and memory.
        fetch: Puts the package's file into a directory and returns it, instead of a download from an index.
    """

    steps: ClassVar[Sequence[str]] = ("download", "install", "load")

    def __init__(
        self, host: BuildHost, limits: _Limits | None = None, fetch: Callable[[Path], Path] | None = None
    ) -> None:
        self._host = host
        self._limits = limits or _Limits()
        self._fetch = fetch

    def key(self, order: Order) -> str:
        """Return the digest of package, index, loader and Python."""
        pip = order.package["pip"]
        identity = {
            "recipe": "pip", "name": canonicalize_name(pip["name"]), "version": str(Version(pip["version"])),
            "index": pip.get("index"), "loader": order.package.get("loader"), "python": self._host.python(),
            "protocol": GRADER_PROTOCOL,
        }  # fmt: skip
        return digest_of(identity)

    def build(self, order: Order, work: Path, report: Report) -> Built:
        """Download, install and load; see the module."""
        job = _Job(self._host, self._limits, order, work, report)
        wheel = job.download() if self._fetch is None else job.fetched(self._fetch)
        packages = job.install(wheel)
        loader = job.loader()
        facts = job.load(loader)
        remove_tree(work / "build")
        (work / "constraints.txt").unlink(missing_ok=True)
        report.say("hashing what was built")
        counts = ", ".join(f"{count} {split}" for split, count in sorted(facts["splits"].items(), reverse=True))
        installed.drop_locks(work / "cache")
        content = {
            "recipe": "pip", "protocol": GRADER_PROTOCOL, "python": self._host.python(), "loader": loader,
            "site": installed.tree_digest(work / "site", report.check),
            "cache": installed.tree_digest(work / "cache", report.check),
        }  # fmt: skip
        kept = {
            "loader": loader, "python": ".".join(map(str, sys.version_info[:2])),
            "runsCode": installed.mentions(work / "site", b"nodus.grader.code", report.check), "info": facts,
        }  # fmt: skip
        report.say(f"{facts.get('kind', 'no kind')[:40]}: {counts[:80]} tasks")
        return Built(content, kept, packages)


class _Job:
    """One build."""

    def __init__(self, host: BuildHost, limits: _Limits, order: Order, work: Path, report: Report) -> None:
        self._host, self._limits, self._order = host, limits, order
        self._work, self._report = work, report
        pip = order.package["pip"]
        self._name, self._version = str(pip["name"]), str(pip["version"])
        self._index: str | None = pip.get("index")
        self._settings = host.pip_settings()
        self._box = work / "build"
        for place in (self._box, work / "cache"):
            place.mkdir()
        # Beside the directory that code of packages may write to: nothing of ours follows a link of theirs.
        self._constraints = work / "constraints.txt"
        self._constraints.write_text(_CONSTRAINTS, encoding="utf-8")

    def download(self) -> Path:
        """Fetch the package itself, from its own index alone; return its file."""
        where = self._index or "the default index"
        self._report.step("download", f"{self._name}=={self._version} from {where}")
        wanted = f"{self._name}=={self._version}"
        settings = self._own_index() if self._index else self._settings
        ended, said = self._pip(
            ("download", "--no-deps", "-d", "/build/top", wanted), settings, self._limits.download_s
        )
        if ended.code != 0 or ended.broke:
            raise pipfailures.of_download(self._name, self._version, where, ended, said)
        if pipfailures.is_yanked(said):
            raise BuildFailed(
                f"{where} has yanked {wanted}: its author withdrew it", "Name another version of the package."
            )
        files = [entry for entry in self._made("top").iterdir() if entry.is_file() and not entry.is_symlink()]
        if len(files) != 1:
            raise BuildFailed(f"{where} gave {len(files)} files for {wanted}", "Publish it as one wheel.")
        self._check_name(files[0].name, where)
        return files[0]

    def fetched(self, fetch: Callable[[Path], Path]) -> Path:
        """Take the package itself from elsewhere; return its file."""
        self._report.step("download", "made here, from the package's directory")
        top = self._box / "top"
        top.mkdir()
        top.chmod(0o755)
        return fetch(top)

    def install(self, wheel: Path) -> dict[str, str]:
        """Install it with its dependencies, which come from the default index; return all names and versions."""
        self._report.step("install", f"{wheel.name} and its dependencies from the default index")
        if self._settings.secret and not wheel.name.endswith(".whl"):
            raise pipfailures.needs_wheel(wheel.name)
        arguments = ["install", "--target", "/build/site", "--no-compile", "--no-warn-conflicts"]
        arguments += ["--no-warn-script-location", "--report", "/build/report.json", f"/build/top/{wheel.name}"]
        given = self._settings.env.get("PIP_CONSTRAINT", "")
        bounded = {**self._settings.env, "PIP_CONSTRAINT": f"{given} {_CONSTRAINTS_INSIDE}".strip()}
        ended, said = self._pip(arguments, replace(self._settings, env=bounded), self._limits.install_s)
        if ended.code != 0 and not ended.broke and pipfailures.is_conflict(said):
            self._report.write("the package needs newer ones than Nodus prefers; once more without that preference\n")
            ended, said = self._pip(arguments, self._settings, self._limits.install_s)
        if ended.code != 0 or ended.broke:
            raise pipfailures.of_install(wheel.name, ended, said)
        self._made("site").rename(self._work / "site")
        packages = _packages(self._box / "report.json")
        self._report.say(f"compiling {len(packages)} packages")
        self._compile()
        self._report.say(f"{len(packages)} packages")
        return packages

    def _compile(self) -> None:
        """Compile every module, so that graders need not at each start. What a package brings compiled is not kept."""
        site = self._work / "site"
        installed.drop_bytecode(site)
        # By hash: nothing compares times, and what is compiled follows from the sources alone.
        words = ["{python}", "-I", "-S", "-m", "compileall", "-q", "-q", "-j", "2"]
        words += ["--invalidation-mode", "unchecked-hash", "{packages}"]
        command = BuildCommand(
            argv=words, writable={"{packages}": site}, timeout_s=self._limits.install_s,
            disk_bytes=self._limits.disk_bytes, memory_bytes=2 * GIB,
        )  # fmt: skip
        ended, said = self._run(command)  # a file that can't be compiled is one that nobody imports
        if ended.broke:
            raise pipfailures.of_install("the packages", ended, said)

    def loader(self) -> str:
        """Return what the runner is to load: ``module`` or ``module:function``."""
        asked = self._order.package.get("loader")
        site = self._work / "site"
        if asked and ":" in asked:
            return str(asked)
        module = installed.module_of(site, self._name)
        if asked and asked != "load_environment":
            return str(asked) if installed.has_module(site, asked) else f"{module}:{asked}"
        return module

    def load(self, loader: str) -> dict[str, Any]:
        """Load the environment once, with the network: what it downloads is kept. Return what it says of itself."""
        self._report.step("load", f"{loader}; what it downloads is kept")
        runner = ["{python}", "-S", "-s", "-P", "-B", "{runner}", "--path", "/opt/environment"]
        runner += ["--library", "{packages}", "--loader", loader]
        runner += ["--name", self._order.environment, "--version", self._order.version, "info"]
        env = {
            "OMP_NUM_THREADS": "1", "HF_HUB_DISABLE_TELEMETRY": "1", "HF_HUB_DISABLE_XET": "1",
            "HF_DATASETS_DISABLE_PROGRESS_BARS": "1", "HF_HUB_DISABLE_PROGRESS_BARS": "1", "MPLCONFIGDIR": "/tmp",
        }  # fmt: skip
        command = BuildCommand(
            argv=runner, env=env, home="/cache", writable={"/cache": self._work / "cache"},
            readable={"{packages}": self._work / "site"}, timeout_s=self._limits.load_s,
            disk_bytes=self._limits.disk_bytes, memory_bytes=self._limits.memory_bytes,
        )  # fmt: skip
        ended, said = self._run(command)
        answer = _answer(said)
        if "splits" in answer and ended.code == 0 and not ended.broke:
            return checked_info(answer)
        raise pipfailures.of_load(loader, ended, str(answer.get("refused") or ""), said)

    def _own_index(self) -> PipSettings:
        """Return settings under which the package's own index is the only one there is."""
        url = urlsplit(str(self._index))
        env = {"PIP_INDEX_URL": str(self._index)}
        if url.scheme == "http":
            env["PIP_TRUSTED_HOST"] = url.netloc
        return PipSettings(env=env)

    def _index_ports(self) -> Sequence[int]:
        """Return the port of the package's own index where its address names one."""
        port = urlsplit(self._index or "").port
        return (port,) if port else ()

    def _pip(self, arguments: Sequence[str], settings: PipSettings, timeout_s: float) -> tuple[BuildEnded, str]:
        pip = self._host.pip()
        if pip is None:
            raise BuildFailed("the server's Python has no pip", "Run python -m ensurepip with the server's Python.")
        env = {
            **settings.env, "PIP_CONFIG_FILE": "/dev/null", "PYTHONPATH": "/opt/pip", "TMPDIR": "/build/tmp",
            "PYTHONDONTWRITEBYTECODE": "1", "PIP_ROOT_USER_ACTION": "ignore",
        }  # fmt: skip
        if settings.secret:
            env["PIP_ONLY_BINARY"] = ":all:"  # no code of a package runs beside the operator's credentials
        program = _PIP_ALONE if settings.secret else _PIP
        command = BuildCommand(
            argv=(*program, *arguments, *_QUIET, *_RETRIES), env=env, home="/build/tmp",
            hosts=settings.hosts, ports=self._index_ports(), timeout_s=timeout_s,
            writable={"/build": self._box},
            readable={
                "/opt/pip/pip": pip, _CONSTRAINTS_INSIDE: self._constraints,
                **{str(path): path for path in settings.readable},
            },
            disk_bytes=self._limits.disk_bytes, memory_bytes=2 * GIB,
        )  # fmt: skip
        ended, said = self._run(command)
        # What pip thinks of each file it looked at goes to its log, too much for people.
        return ended, _read(self._box / "pip.log", tail_bytes=_TAIL_BYTES).decode(errors="replace") + said

    def _made(self, name: str) -> Path:
        """Return a directory that pip made, after a look whether code of packages put something else in its place."""
        place = self._box / name
        if place.is_symlink() or not place.is_dir():
            raise BuildFailed(f"the package's own code put something else in place of {name!r}", "Publish a wheel.")
        return place

    def _run(self, command: BuildCommand) -> tuple[BuildEnded, str]:
        tail = bytearray()

        def take(data: bytes) -> None:
            self._report.write(data)
            tail.extend(data)
            del tail[:-_TAIL_BYTES]

        self._report.check()
        try:
            ended = self._host.run(command, take, self._report.stopping, self._work)
        except BuildNotStarted as error:
            fix = "See nodus doctor; it is tried again."
            raise BuildFailed(str(error), fix, transient=True, reason="NoSandbox") from error
        if self._report.stopping.is_set():
            raise BuildStopped
        return ended, tail.decode(errors="replace")

    def _check_name(self, file: str, where: str) -> None:
        try:
            found = parse_wheel_filename(file)[:2] if file.endswith(".whl") else parse_sdist_filename(file)
        except (InvalidWheelFilename, InvalidSdistFilename, InvalidVersion) as error:
            message = f"{where} gave {file[:120]!r}, which is no package file: {error}"
            raise BuildFailed(message, "Publish a wheel.") from None
        if found != (canonicalize_name(self._name), Version(self._version)):
            wanted = f"{self._name} {self._version}"
            raise BuildFailed(f"{where} gave {file[:120]!r} for {wanted}", "Publish the package under its own name.")


def _packages(path: Path) -> dict[str, str]:
    """Return what pip's report says was installed. Code of packages may have written it: it is for people alone."""
    try:
        report = json.loads(_read(path))
        found = {
            storable(item["metadata"]["name"], 100): storable(item["metadata"]["version"], 60)
            for item in report["install"]
        }
    except (ValueError, KeyError, TypeError, RecursionError):
        return {}
    return dict(sorted(found.items())[:1000])


def _read(path: Path, tail_bytes: int = 0) -> bytes:
    """Return a file's content, or its end; nothing where there is none, or no plain one."""
    try:
        with open(os.open(path, os.O_RDONLY | os.O_NOFOLLOW | os.O_NONBLOCK), "rb") as file:
            if not stat.S_ISREG(os.fstat(file.fileno()).st_mode):
                return b""
            if tail_bytes:
                file.seek(max(0, os.fstat(file.fileno()).st_size - tail_bytes))
            return file.read(tail_bytes or _REPORT_BYTES)
    except OSError:
        return b""


def _answer(said: str) -> dict[str, Any]:
    """Return the runner's last result line among what was printed."""
    for line in reversed(said.splitlines()):
        if line.startswith("{"):
            try:
                found = json.loads(line)
            except (ValueError, RecursionError):
                continue
            if isinstance(found, dict) and ("splits" in found or "refused" in found):
                return found
    return {}
