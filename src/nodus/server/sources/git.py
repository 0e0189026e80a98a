"""Import the files of a git repository at one commit.

git itself only transfers: it runs with no configuration but ours, no hooks, no submodules, https and http alone, no
redirects, and the addresses that the guard has seen. Files are read from its object store one by one, so that nothing
in a repository decides where they are written.
"""

from __future__ import annotations

import base64
import os
import re
import resource
import subprocess
from collections.abc import Iterator, Mapping
from pathlib import Path
from typing import IO, NamedTuple
from urllib.parse import urlsplit

from nodus.server.sources.base import Collector, Fetched, ImportFailed, Order, chunks, disk_failure, shown
from nodus.server.sources.guard import AddressRefused, Guard

_COMMIT = re.compile(r"[0-9a-f]{40}")
_NAMES = re.compile(r"'?https?://\S+|\b[0-9a-f]{40}\b|\bport \d+")
_SYMLINK, _SUBMODULE, _EXECUTABLE = "120000", "160000", "100755"
_LFS = b"version https://git-lfs.github.com/spec/"
_REPOSITORY, _PINNED = "repository", "commit"
_LOOKUP_S = 60.0
_PINS_ADDRESSES = (2, 37)
"""Since this version git knows ``http.curloptResolve``."""
_PACK_FACTOR, _PACK_EXTRA_BYTES = 2, 256 << 20
"""A pack holds history too, where a server gives no single commit: how much larger than the volume it may be."""


class _File(NamedTuple):
    path: str
    mode: str
    object: str
    size: int


def fetch(order: Order) -> Fetched:
    """Fix the commit, bring it, and collect its files.

    Raises:
        ImportFailed: With a reason and a fix.
    """
    git = _Git(order)
    commit = git.pin()
    git.bring(commit)
    inside = str(order.spec.get("path") or "").strip("/")
    files = [file for file in git.files(commit) if not inside or f"{file.path}/".startswith(f"{inside}/")]
    if not files:
        raise ImportFailed(
            "SourceNotFound",
            f"{git.label} has nothing at {shown(inside)} in {commit[:12]}",
            "check spec.source.git.path",
        )
    collector = Collector(order, git.label)
    collector.announce(sum(file.size for file in files), len(files))
    git.collect(files, _base_of(inside, files), collector)
    provenance = {"repo": git.label, "commit": commit, **({"path": inside} if inside else {})}
    return Fetched(collector.finish(), provenance)


def _base_of(inside: str, files: list[_File]) -> str:
    """The directory that paths are relative to: the one asked for, or that of the one file asked for."""
    if len(files) == 1 and files[0].path == inside:
        inside = inside.rpartition("/")[0]
    return f"{inside}/" if inside else ""


class _Git:
    """git on one repository."""

    def __init__(self, order: Order) -> None:
        self.url = str(order.spec["repo"])
        self.label = self.url.partition("?")[0][:200]
        self._order = order
        self._home = order.directory / _REPOSITORY
        parts = urlsplit(self.url)
        host, port = parts.hostname or "", parts.port or (443 if parts.scheme == "https" else 80)
        try:
            addresses = Guard(order.allowed).addresses(host, port)
        except AddressRefused as refused:
            raise refused.failure(self.label) from refused
        self._environment = _environment(order.directory, parts.scheme, host, port, addresses, order.credentials)
        _check_version(self._run("version"), pinned=bool(addresses))

    def pin(self) -> str:
        """Return the commit to import: found once, and the same at every further try."""
        note = self._order.directory / _PINNED
        try:
            known = note.read_text(encoding="ascii").strip()
        except FileNotFoundError:
            known = ""
        if not _COMMIT.fullmatch(known):
            known = self._look_up(str(self._order.spec.get("ref") or "HEAD"))
            note.write_text(known, encoding="ascii")
        return known

    def _look_up(self, ref: str) -> str:
        if _COMMIT.fullmatch(ref.lower()):
            # A commit, whatever is called so besides: git takes it for one everywhere else too.
            return ref.lower()
        listed = self._run("ls-remote", "--", self.url, timeout_s=_LOOKUP_S).decode("utf-8", "replace")
        known = {name: commit for commit, _, name in (line.partition("\t") for line in listed.splitlines())}
        for name in (ref, f"refs/tags/{ref}^{{}}", f"refs/tags/{ref}", f"refs/heads/{ref}"):
            if name in known and _COMMIT.fullmatch(known[name]):
                return known[name]
        raise ImportFailed(
            "SourceNotFound",
            f"{self.label} has no branch or tag {shown(ref)}",
            "name a branch, a tag, or a full commit of 40 digits",
        )

    def bring(self, commit: str) -> None:
        """Have the commit in the local object store."""
        self._run("init", "--quiet", "--bare", str(self._home))
        if self._has(commit):
            return
        try:
            self._run("fetch", "--quiet", "--no-tags", "--depth=1", "--", self.url, commit, inside=True)
        except ImportFailed as failure:
            if failure.reason == "SourceAccessDenied":
                raise
            # Servers need not give single commits; then everything that has a name is brought.
            self._run("fetch", "--quiet", "--no-tags", "--", self.url, "+refs/*:refs/remote/*", inside=True)
        if not self._has(commit):
            raise ImportFailed(
                "SourceNotFound", f"{self.label} has no commit {commit}", "name a commit of a branch or tag"
            )

    def _has(self, commit: str) -> bool:
        command = ["git", "-C", str(self._home), "cat-file", "-e", f"{commit}^{{commit}}"]
        return subprocess.run(command, env=self._environment, capture_output=True, check=False).returncode == 0

    def files(self, commit: str) -> Iterator[_File]:
        """Yield what the commit holds, with the size of each file."""
        listed = self._run("ls-tree", "-r", "-z", "--long", "--full-tree", commit, inside=True)
        for line in listed.split(b"\0"):
            if not line:
                continue
            head, _, name = line.partition(b"\t")
            mode, _, identity, size = head.decode("ascii").split()
            try:
                path = name.decode("utf-8")
            except UnicodeDecodeError as error:
                raise ImportFailed(
                    "SourcePathRefused", f"{self.label}: {name[:80]!r} is not UTF-8", "rename it at its source"
                ) from error
            if mode != _SUBMODULE:
                yield _File(path, mode, identity, int(size))

    def collect(self, files: list[_File], base: str, into: Collector) -> None:
        """Write the files, read from the object store one after the other."""
        command = ["git", "-C", str(self._home), "cat-file", "--batch"]
        with subprocess.Popen(
            command, env=self._environment, stdin=subprocess.PIPE, stdout=subprocess.PIPE, stderr=subprocess.DEVNULL
        ) as reader:
            try:
                assert reader.stdin is not None and reader.stdout is not None
                for file in files:
                    self._collect(file, base, into, reader.stdin, reader.stdout)
                reader.stdin.close()
            finally:
                reader.kill()

    def _collect(self, file: _File, base: str, into: Collector, stdin: IO[bytes], stdout: IO[bytes]) -> None:
        stdin.write(f"{file.object}\n".encode())
        stdin.flush()
        head = stdout.readline().split()
        if len(head) != 3 or int(head[2]) != file.size:
            raise ImportFailed("SourceUnavailable", f"{self.label}: {shown(file.path)} is damaged", transient=True)
        path = file.path.removeprefix(base)
        content = _Exactly(stdout, file.size)
        if file.mode == _SYMLINK:
            into.link(path, content.read(file.size).decode("utf-8", "replace"))
        else:
            into.add(path, self._without_lfs(file, content), executable=file.mode == _EXECUTABLE)
        stdout.read(1)  # the newline that ends every object

    def _without_lfs(self, file: _File, content: _Exactly) -> Iterator[bytes]:
        for number, chunk in enumerate(chunks(content)):
            if number == 0 and chunk.startswith(_LFS):
                raise ImportFailed(
                    "SourceUnsupported",
                    f"{self.label}: {shown(file.path)} is kept in Git LFS, which is not fetched",
                    "import that file by a url source, or name a directory without such files",
                )
            yield chunk

    def _run(self, *words: str, inside: bool = False, timeout_s: float | None = None) -> bytes:
        where = ["-C", str(self._home)] if inside else []
        try:
            ended = subprocess.run(
                ["git", *where, *words], env=self._environment, capture_output=True, stdin=subprocess.DEVNULL,
                timeout=timeout_s, check=False, preexec_fn=self._bound,
            )  # fmt: skip
        except subprocess.TimeoutExpired as error:
            raise ImportFailed(
                "SourceUnavailable", f"{self.label} did not answer within {timeout_s:g} s", transient=True
            ) from error
        except OSError as error:
            raise disk_failure(self.label, error) from error
        if ended.returncode != 0:
            raise _explain(self.label, ended.stderr.decode("utf-8", "replace"))
        return ended.stdout

    def _bound(self) -> None:
        """In the child: no file, so no pack, may grow without bound."""
        most = self._order.limit_bytes * _PACK_FACTOR + _PACK_EXTRA_BYTES
        resource.setrlimit(resource.RLIMIT_FSIZE, (most, most))


def _check_version(said: bytes, *, pinned: bool) -> None:
    """Refuse a git that would look the host up again by itself, past the guard."""
    found = re.search(rb"(\d+)\.(\d+)", said)
    if pinned and found is not None and (int(found[1]), int(found[2])) < _PINS_ADDRESSES:
        raise ImportFailed(
            "SourceUnsupported",
            f"the server's git is {found[0].decode()}, and {'.'.join(map(str, _PINS_ADDRESSES))} is the oldest that "
            "connects to the addresses it is given",
            "install a newer git on the server",
        )


class _Exactly:
    """The next so many bytes of a stream, as a file of their own."""

    def __init__(self, stream: IO[bytes], size: int) -> None:
        self._stream, self._left = stream, size

    def read(self, size: int) -> bytes:
        """Return up to ``size`` bytes; none at the end."""
        data = self._stream.read(min(size, self._left))
        self._left -= len(data)
        return data


def _environment(
    home: Path, scheme: str, host: str, port: int, addresses: list[str], credentials: Mapping[str, str]
) -> dict[str, str]:
    """Git's whole environment: settings come this way, so that no credential stands in a process list."""
    settings = {
        "http.followRedirects": "false",
        "core.hooksPath": "/dev/null",
        "credential.helper": "",
        "transfer.fsckObjects": "true",
        "submodule.recurse": "false",
        # Packs are larger than the memory that an import has: a part of them is mapped at a time.
        "core.packedGitLimit": "1g",
        "core.packedGitWindowSize": "256m",
        "http.lowSpeedLimit": "1000",
        "http.lowSpeedTime": "60",
    }
    if addresses:
        shown_addresses = ",".join(f"[{address}]" if ":" in address else address for address in addresses)
        settings["http.curloptResolve"] = f"{host}:{port}:{shown_addresses}"
    token = credentials.get("token") or (next(iter(credentials.values())) if len(credentials) == 1 else None)
    user, password = credentials.get("username") or "x-access-token", credentials.get("password") or token
    if password:
        encoded = base64.b64encode(f"{user}:{password}".encode()).decode()
        settings[f"http.{scheme}://{host}:{port}/.extraHeader"] = f"Authorization: Basic {encoded}"
        if port in (80, 443):
            settings[f"http.{scheme}://{host}/.extraHeader"] = f"Authorization: Basic {encoded}"
    kept = ("PATH", "HTTPS_PROXY", "https_proxy", "HTTP_PROXY", "http_proxy", "NO_PROXY", "no_proxy", "SSL_CERT_FILE")
    environment = {name: os.environ[name] for name in kept if name in os.environ}
    environment |= {
        "HOME": str(home),
        "LC_ALL": "C",
        "GIT_CONFIG_NOSYSTEM": "1",
        "GIT_CONFIG_GLOBAL": "/dev/null",
        "GIT_TERMINAL_PROMPT": "0",
        "GIT_ALLOW_PROTOCOL": "https:http",
        "GIT_CONFIG_COUNT": str(len(settings)),
    }
    for number, (name, value) in enumerate(settings.items()):
        environment |= {f"GIT_CONFIG_KEY_{number}": name, f"GIT_CONFIG_VALUE_{number}": value}
    return environment


def _explain(label: str, said: str) -> ImportFailed:
    """Turn git's complaint into a reason, a message and a fix."""
    lines = [line.removeprefix("fatal: ").removeprefix("error: ").strip() for line in said.splitlines()]
    last = next((line for line in reversed(lines) if line), "git failed")[:300]
    # What the source is called is no part of what went wrong: an address or a commit may well have a 404 in it.
    low = _NAMES.sub(" ", said).lower()
    if "authentication failed" in low or "could not read username" in low or "403" in low or "401" in low:
        return ImportFailed(
            "SourceAccessDenied",
            f"{label}: access is refused, or there is no such repository ({last})",
            "for a private one name a Secret with a token under spec.source.git.secret",
        )
    if "not found" in low or "404" in low:
        return ImportFailed("SourceNotFound", f"{label}: {last}", "check the address")
    if "redirect" in low or "301" in low or "302" in low:
        return ImportFailed(
            "SourceAddressRefused", f"{label} redirects elsewhere, which is not followed", "name its new address"
        )
    if "file too large" in low or "file size limit" in low or "sigxfsz" in low:
        return ImportFailed("SourceTooLarge", f"{label} is larger than the volume", "make one with a larger spec.size")
    return ImportFailed(
        "SourceUnavailable", f"{label} can't be reached or broke off ({last})", "check the address", transient=True
    )
