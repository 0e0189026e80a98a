"""Runs ``skopeo``, which speaks to registries; what it brings is checked elsewhere.

It gets no credentials of the operator's, a bounded file size and time, and is ended with the build.
"""

from __future__ import annotations

import contextlib
import os
import re
import shutil
import signal
import subprocess
import tempfile
import time
from collections.abc import Callable
from pathlib import Path

from nodus.core.imagerefs import ImageReference
from nodus.server.grading.builds.base import BuildFailed

PROGRAM = "skopeo"
INSTALL = "apt-get install skopeo"
MANIFEST_BYTES = 4 << 20
_INSPECT_S = 120.0
_ENDED_WITH_US = ("setpriv", "--pdeathsig", "KILL", "--")
"""A server that is killed leaves no download behind, which would write into what the next one clears."""
_NO_POLICY = ("--insecure-policy",)  # of signatures: what is fetched is known by its digest
_POLL_S = 0.1
_SHOWN_CHARS = 500
_PASSED_ON = re.compile(r"(?i:https?_proxy|no_proxy|all_proxy)|SSL_CERT_FILE|SSL_CERT_DIR|PATH|LANG")
_DENIED = re.compile(r"(?i)unauthorized|authentication required|\bdenied\b|status.* 40[13]\b")
_UNKNOWN = re.compile(r"(?i)manifest unknown|name unknown|not found|repository name not known|status.* 404\b")
_PLAIN_HTTP = "server gave HTTP response to HTTPS client"
_LATER = re.compile(
    r"(?i)no such host|connection (?:refused|reset)|timeout|timed out|unreachable|toomanyrequests"
    r"|status.* (?:429|5\d\d)\b|EOF|temporary failure|server misbehaving"
)


class SkopeoMissing(BuildFailed):
    """The program that pulls images is not installed."""

    def __init__(self) -> None:
        super().__init__(
            "this server has no skopeo, which pulls images",
            f"As root on the server: {INSTALL}. Then apply the Environment again.",
            transient=True,
            reason="ImageBuildUnavailable",
        )


def available() -> bool:
    """Tell whether images can be pulled here."""
    return shutil.which(PROGRAM) is not None


def manifest(reference: ImageReference, check: Callable[[], None]) -> bytes:
    """Return the manifest of an image, byte for byte as the registry has it.

    Args:
        reference: The image.
        check: Called now and then; what it raises ends the program.

    Raises:
        BuildFailed: The registry doesn't give it, or it is too large.
    """
    with tempfile.TemporaryFile() as output:
        command = ["inspect", "--raw", "--no-creds", *_transport("--tls-verify", reference), f"docker://{reference}"]
        _run(reference, command, _INSPECT_S, MANIFEST_BYTES, check, output.fileno())
        output.seek(0)
        return output.read(MANIFEST_BYTES + 1)


def copy(
    reference: ImageReference, target: Path, limit_bytes: int, limit_s: float, watch: Callable[[int], None]
) -> None:
    """Fetch an image's manifest, configuration and layers as files, each as the registry has it.

    Args:
        reference: The image, by the digest of a manifest for one platform.
        target: A directory, made here.
        limit_bytes: Of all files together.
        limit_s: Seconds that it may take.
        watch: Called with the bytes so far; what it raises ends the program.

    Raises:
        BuildFailed: The registry doesn't give it, or it is too much or too slow.
    """

    def check() -> None:
        size = _size(target)
        if size > limit_bytes:
            raise BuildFailed(f"the registry sends more than {limit_bytes >> 20} MiB for {reference}")
        watch(size)

    command = ["copy", "--quiet", "--preserve-digests", "--remove-signatures", "--retry-times", "2", "--src-no-creds"]
    command += [*_transport("--src-tls-verify", reference), f"docker://{reference}", f"dir:{target}"]
    _run(reference, command, limit_s, limit_bytes, check, subprocess.DEVNULL)


def _transport(option: str, reference: ImageReference) -> list[str]:
    return [f"{option}=false"] if reference.loopback else []


def _run(
    reference: ImageReference,
    command: list[str],
    limit_s: float,
    file_bytes: int,
    check: Callable[[], None],
    output: int,
) -> None:
    """Run it to its end; its complaints become the failure's message."""
    program = shutil.which(PROGRAM)
    if program is None:
        raise SkopeoMissing
    with tempfile.TemporaryDirectory(prefix="nodus-skopeo-") as home, tempfile.TemporaryFile() as complaints:
        # no HOME of the operator's: skopeo would find registry credentials there, and settings that name other hosts
        env = {name: value for name, value in os.environ.items() if _PASSED_ON.fullmatch(name)}
        env |= {"HOME": home, "XDG_RUNTIME_DIR": home, "XDG_CONFIG_HOME": home, "TMPDIR": home}
        process = subprocess.Popen(
            [*_ENDED_WITH_US, "prlimit", f"--fsize={file_bytes + 1}", "--core=0", "--", program, *_NO_POLICY, *command],
            stdin=subprocess.DEVNULL,
            stdout=output,
            stderr=complaints,
            env=env,
            start_new_session=True,
        )
        deadline = time.monotonic() + limit_s
        try:
            while True:
                with contextlib.suppress(subprocess.TimeoutExpired):
                    code = process.wait(_POLL_S)
                    break
                check()
                if time.monotonic() > deadline:
                    raise BuildFailed(
                        f"the registry took longer than {limit_s:g} s for {reference}", transient=True, reason=_FAILED
                    )
        finally:
            if process.poll() is None:
                os.killpg(process.pid, signal.SIGKILL)
                process.wait()
        if code != 0:
            complaints.seek(max(0, complaints.seek(0, os.SEEK_END) - 8192))
            raise _failure(reference, complaints.read().decode(errors="replace"))


_FAILED = "ImagePullFailed"


def _failure(reference: ImageReference, complaint: str) -> BuildFailed:
    """Say what a complaint of skopeo's means."""
    lines = [line for line in complaint.splitlines() if line.strip()]
    text = re.sub(r'^time="[^"]*" level=\w+ msg=', "", lines[-1]).strip('"') if lines else "it said nothing"
    shown = text[:_SHOWN_CHARS].replace('\\"', '"')
    if _PLAIN_HTTP in text:
        fix = "Registries must speak HTTPS; plain HTTP is used with registries on the server's own machine alone."
        return BuildFailed(f"the registry {reference.registry} speaks plain HTTP", fix, reason=_FAILED)
    if _DENIED.search(text):
        return BuildFailed(
            f"the registry {reference.registry} asks for a sign-in before it gives {reference.repository}, or does not "
            f"have it: {shown}",
            "Only images that anyone may pull are supported: make the repository public, or push to one that is.",
            reason=_FAILED,
        )
    if _UNKNOWN.search(text) and not _LATER.search(text):
        return BuildFailed(
            f"the registry {reference.registry} has no {reference.repository}@{reference.digest}",
            "Push the image, and name the digest that the push printed.",
            reason="ImageNotFound",
        )
    if "x509" in text or "certificate" in text:
        fix = "Its certificate must be one that the server's machine trusts (see update-ca-certificates)."
        return BuildFailed(f"the registry {reference.registry} can't be trusted: {shown}", fix, reason=_FAILED)
    return BuildFailed(f"{reference} could not be pulled: {shown}", transient=bool(_LATER.search(text)), reason=_FAILED)


def _size(directory: Path) -> int:
    size = 0
    with contextlib.suppress(FileNotFoundError):
        for entry in os.scandir(directory):
            with contextlib.suppress(FileNotFoundError):
                size += entry.stat(follow_symlinks=False).st_size
    return size
