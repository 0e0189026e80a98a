"""From what pip or an environment printed to one sentence and its fix."""

from __future__ import annotations

import platform
import re

from nodus.server.compute.builds import BuildEnded
from nodus.server.grading.builds.base import BuildFailed

_NONE_FOUND = re.compile(r"Could not find a version that satisfies the requirement (\S+).*?\(from versions: ([^)]*)\)")
_OTHER_PYTHON = re.compile(r"requires a different Python: (\S+) not in '([^']+)'")
_STATUS = re.compile(r"(?:HTTP error |\b)(40[134]|410|451|5\d\d) (?:Client|Server) Error|HTTP error (\d{3})")
_OTHER_TAGS = re.compile(r"none of the wheel's tags \(([^)]*)\) are compatible[^\n]*/([^/\s]+\.whl)")
_AWAY = (
    "too many 5",
    "ConnectTimeout",
    "NewConnectionError",
    "ProxyError",
    "ReadTimeout",
    "Connection refused",
    "can't be reached",
)
_WOULD_RUN = "a package would run code to be built"
_SHOWN = 12
_REASON_CHARS = 400


def is_yanked(said: str) -> bool:
    """Tell whether pip took a version that its author withdrew."""
    return "is a yanked version" in said


def is_conflict(said: str) -> bool:
    """Tell whether no set of versions satisfies everything that was asked."""
    return "conflicting dependencies" in said or "ResolutionImpossible" in said


def of_download(name: str, version: str, where: str, ended: BuildEnded, said: str) -> BuildFailed:
    """Return why a package itself could not be downloaded."""
    wanted = f"{name}=={version}"
    if (failure := _stopped(ended, f"downloading {wanted}")) or (failure := _unreachable(where, ended, said)):
        return failure
    if (other := _other_python(said) or _other_tags(said, where, wanted)) is not None:
        return BuildFailed(other, _WHEEL)
    found = _NONE_FOUND.search(said)
    versions = [word.strip() for word in found[2].split(",")] if found else []
    if found and versions and versions != ["none"]:
        if version in versions:
            return BuildFailed(f"{where} has no file of {wanted} for {_machine()}", _WHEEL)
        more = f", and {len(versions) - _SHOWN} older" if len(versions) > _SHOWN else ""
        shown = ", ".join(reversed(versions[-_SHOWN:]))
        return BuildFailed(f"{where} has no {wanted}; it has {shown}{more}", "Name a version that is there.")
    if found or "No matching distribution" in said:
        return BuildFailed(
            f"{where} has no {name}, or no file of it for {_machine()}",
            "Check the name and the index, and publish a wheel for that Python.",
        )
    return BuildFailed(f"pip could not download {wanted} from {where}: {_last_error(said)}", _SEE_LOG)


def needs_wheel(file: str) -> BuildFailed:
    """Return that something is no wheel where no code of a package may run."""
    fix = "Publish it as a wheel: the server's index has credentials, and no code of a package runs beside them."
    return BuildFailed(f"{file[:120]} is no wheel and would run code to be installed", fix)


def of_install(file: str, ended: BuildEnded, said: str) -> BuildFailed:
    """Return why a package could not be installed with its dependencies."""
    if (failure := _stopped(ended, f"installing {file}")) or (
        failure := _unreachable("the default index", ended, said)
    ):
        return failure
    if (other := _other_python(said)) is not None:
        return BuildFailed(other, _WHEEL)
    found = _NONE_FOUND.search(said)
    if found:
        versions = "" if found[2] == "none" else f" among {found[2][:200]}"
        fix = "Dependencies come from the server's default index alone; publish that one there, or bundle it."
        return BuildFailed(f"the default index has no {found[1]}{versions}, which {file} depends on", fix)
    if _WOULD_RUN in said:
        return needs_wheel(f"something that {file} depends on")
    if "conflicting dependencies" in said:
        return BuildFailed(f"the dependencies of {file} exclude each other: {_last_error(said)}", _SEE_LOG)
    return BuildFailed(f"pip could not install {file}: {_last_error(said)}", _SEE_LOG)


def of_load(loader: str, ended: BuildEnded, refused: str, said: str) -> BuildFailed:
    """Return why an environment could not be loaded."""
    if (failure := _stopped(ended, f"loading {loader}")) is not None:
        return failure
    why = refused or f"the runner ended with exit code {ended.code}"
    if ended.refused:
        why += f" ({'; '.join(ended.refused)[:_REASON_CHARS]})"
    how = ": add it to the package's dependencies, or to its files," if "No module named" in why else ""
    return BuildFailed(
        why, f"Correct the package{how} and publish it under another version; the log has the traceback."
    )


def _stopped(ended: BuildEnded, what: str) -> BuildFailed | None:
    if not ended.broke:
        return None
    if "disk is nearly full" in ended.broke:
        return BuildFailed(f"{what} was stopped: {ended.broke}", "Free space in the data directory.", transient=True)
    return BuildFailed(f"{what} was stopped: {ended.broke}", "Make the package or what it does smaller.")


def _unreachable(where: str, ended: BuildEnded, said: str) -> BuildFailed | None:
    private = [why for why in ended.refused if "not a public address" in why]
    if private:
        fix = "Use a public index; the operator can allow its host: NODUS_SERVER_SOURCE_HOSTS=HOST."
        return BuildFailed(f"{where} can't be used: {private[0]}", fix)
    if status := _STATUS.search(said):
        code = status[1] or status[2]
        if code in ("401", "403"):
            fix = "Builds hold no credentials: use an index that can be read without."
            return BuildFailed(f"{where} refuses to be read ({code})", fix)
        if code.startswith("5"):
            return BuildFailed(f"{where} failed ({code})", "It is tried again.", transient=True)
    if ended.refused or any(word in said for word in _AWAY):
        why = f": {ended.refused[0]}" if ended.refused else ""
        fix = "Check the index's address; it is tried again."
        return BuildFailed(f"{where} can't be reached{why}", fix, transient=True)
    return None


def _other_python(said: str) -> str | None:
    found = _OTHER_PYTHON.search(said)
    if found is None:
        return None
    return f"the package needs Python {found[2]}, and graders have {found[1]}"


def _other_tags(said: str, where: str, wanted: str) -> str | None:
    """Say which wheels of this very version there are, where none is for this Python."""
    name, _, version = wanted.partition("==")
    stem = f"{name.lower().replace('-', '_').replace('.', '_')}-{version}-"
    tags = [
        tag
        for tag, file in _OTHER_TAGS.findall(said)
        if file.lower().replace(".", "_").startswith(stem.replace(".", "_"))
    ]
    if not tags or "Saved /build/top" in said:
        return None
    return f"{where} has {wanted} for {', '.join(tags[:4])[:200]} alone, and graders are {_machine()}"


def _machine() -> str:
    return f"Python {platform.python_version()} on {platform.machine()}"


def _last_error(said: str) -> str:
    lines = [line.strip() for line in said.splitlines() if line.strip()]
    errors = [line for line in lines if line.lower().startswith(("error:", "error ", "exception"))]
    found = (errors or lines or ["it said nothing"])[-1]
    return found.removeprefix("ERROR: ")[:_REASON_CHARS]


_WHEEL = "Publish a wheel for that Python, or one for any (py3-none-any)."
_SEE_LOG = "See the log."
