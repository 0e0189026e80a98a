"""Which Python a bundle's compiled modules were built for, told from their file names, and whether a grader has it."""

from __future__ import annotations

import os
import re
from collections.abc import Callable, Iterable, Mapping
from pathlib import Path

from nodus.core.errors import NodusError

# cpython-312-x86_64-linux-gnu, cpython-313t-x86_64-linux-gnu, cpython-312-darwin, pypy311-pp73-x86_64-linux-gnu
_TAGGED = re.compile(r"\.(?P<python>cpython-\d+[a-z]*|pypy\d+-pp\d+|graalpy\w+-\d+-native)-(?P<platform>[\w-]+)\.so$")
_OF_WINDOWS = re.compile(r"\.(pyd|dll)$")
_OF_MACOS = re.compile(r"\.dylib$")
_OWN_TAG = re.compile(r"(?P<python>cpython-\d+[a-z]*)-(?P<platform>[\w-]+)")


class BadBundle(NodusError):
    """A source bundle that is not unpacked, or cannot be run here; the message says what is wrong with it."""

    reason, status = "BadBundle", 422


def files_of(directory: Path) -> list[str]:
    """Return the paths of all files below a directory, relative to it."""
    paths = (os.path.join(place, name) for place, _, names in os.walk(directory) for name in names)
    return sorted(os.path.relpath(path, directory) for path in paths)


def version_of(tag: str) -> str:
    """Return ``3.12`` for ``cpython-312``, and ``3.13t`` for its free-threaded build, which loads other modules."""
    number = tag.removeprefix("cpython-")
    return f"{number[0]}.{number[1:]}"


def needed_python(names: Iterable[str], tag: str, find: Callable[[str], str | None]) -> str | None:
    """Return the version of the Python that a bundle needs; None when the grader's own will do.

    Modules for the stable interface (``.abi3.so``) and without a tag fit any. Of a module that is there for several
    Pythons, one must fit.

    Args:
        names: The bundle's files.
        tag: What the grader's own Python names its compiled modules after.
        find: From a version, such as ``3.12``, to the tag of such a Python on the grader's host; None when it has none.

    Raises:
        BadBundle: When no Python there can load every module; the message says which is in the way, and what to do.
    """
    own = _OWN_TAG.fullmatch(tag)
    platform = own["platform"] if own else tag
    modules = _modules(names, platform)
    wanted = [variants for variants in modules.values() if own is None or own["python"] not in variants]
    if not wanted:
        return None
    shared = frozenset.intersection(*(frozenset(variants) for variants in modules.values()))
    candidates = sorted((python for python in shared if python.startswith("cpython-")), key=_order, reverse=True)
    for python in candidates:
        if find(version_of(python)) == f"{python}-{platform}":
            return version_of(python)
    example = next(iter(wanted[0].values()))
    raise BadBundle(_other_python(example, sorted(wanted[0]), tag), fix=_fix(candidates, tag))


def _modules(names: Iterable[str], platform: str) -> Mapping[str, Mapping[str, str]]:
    """Return, for each compiled module with a tag, the Pythons it is there for on this platform, with its file.

    Raises:
        BadBundle: When a module is there for other platforms alone.
    """
    modules: dict[str, dict[str, str]] = {}
    foreign: dict[str, str] = {}
    for name in names:
        found = _TAGGED.search(name)
        system = "Windows" if _OF_WINDOWS.search(name) else "macOS" if _OF_MACOS.search(name) else ""
        if system:
            raise BadBundle(
                f"{name} is compiled for {system}, and graders run on {platform}",
                fix="Vendor wheels for Linux, or packages without compiled modules.",
            )
        if found is None:
            continue
        stem = name[: found.start()]
        if found["platform"] == platform:
            modules.setdefault(stem, {})[found["python"]] = name
        else:
            foreign[stem] = name
    for stem, name in foreign.items():
        if stem not in modules:
            raise BadBundle(
                f"{name} is compiled for another platform than the grader's {platform}",
                fix=f"Vendor wheels for {platform}, or packages without compiled modules.",
            )
    return modules


def _other_python(example: str, pythons: list[str], tag: str) -> str:
    built = " or ".join(f"Python {version_of(p)}" if p.startswith("cpython-") else p for p in pythons)
    return f"{example} is compiled for {built}, and graders here run {_shown(tag)}"


def _fix(candidates: list[str], tag: str) -> str:
    build = f"Build the bundle with {_shown(tag)} (rl.train: run your program with it)"
    if not candidates:
        return f"{build}, or vendor packages without compiled modules."
    return f"{build}, or have python{version_of(candidates[0])} on the server's PATH and apply it again."


def _shown(tag: str) -> str:
    own = _OWN_TAG.fullmatch(tag)
    return f"Python {version_of(own['python'])} on {own['platform']}" if own else tag


def _order(python: str) -> tuple[int, str]:
    digits = "".join(character for character in python if character.isdigit())
    return int(digits), python
