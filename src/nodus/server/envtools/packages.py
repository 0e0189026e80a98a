"""Packages of an author's directory, built as the server builds published ones: same recipe, same sandboxes.

Only the package's own file comes from elsewhere: it is made of the directory, by pip, instead of downloaded.
"""

from __future__ import annotations

import re
import subprocess
import sys
import tempfile
import tomllib
from collections.abc import Callable
from importlib import metadata
from pathlib import Path

from nodus.core.clock import SystemClock
from nodus.core.digests import digest_of
from nodus.server.compute.local.buildhost import LocalBuilds
from nodus.server.envtools.building import BuildFailed, Facts, copy_sources, sources_digest
from nodus.server.grading.builds import Build, BuildStore, base
from nodus.server.grading.builds.pip import PipRecipe
from nodus.server.grading.environments import GRADER_PROTOCOL
from nodus.server.trees import remove_tree

CACHE = Path("~/.cache/nodus/environments")
"""Where built packages are kept, by the digest of their files; it may be removed at any time."""
_WHEEL_TIMEOUT_S = 600
_LOG_CHARS = 4000
_REQUIREMENT_NAME = re.compile(r"\s*([A-Za-z0-9._-]+)")
_NOBODY = "local"


def build_package(place: Path, facts: Facts, progress: Callable[[str], None]) -> tuple[Build, BuildStore]:
    """Build the package of a directory, or find what was built of the same files before; return it and who keeps it.

    Args:
        place: The directory.
        facts: What it says of itself.
        progress: Called with what is done next.

    Raises:
        BuildFailed: With the step and the end of its log.
    """
    assert facts.project is not None
    store, host = BuildStore(CACHE.expanduser()), LocalBuilds()
    known = {"name": facts.name, "version": facts.version, "loader": facts.loader, "python": host.python()}
    key = digest_of({**known, "files": sources_digest(place), "protocol": GRADER_PROTOCOL})
    if (there := store.of_key(key)) is not None:
        return there, store
    pip = {"name": str(facts.project.get("name")), "version": facts.version}
    order = base.Order(_NOBODY, _NOBODY, facts.name, facts.version, {"pip": pip, "loader": facts.loader})
    said = bytearray()

    def write(data: bytes) -> None:
        said.extend(data)
        if data.startswith(b"== "):
            progress(data[3:].decode(errors="replace").strip())

    recipe = PipRecipe(host, fetch=lambda top: _wheel(place, top))
    report = base.Report(recipe.steps, write, SystemClock())
    work = store.begin(_NOBODY)
    try:
        return store.finish(key, work, recipe.build(order, work, report)), store
    except base.BuildFailed as failure:
        step = report.running.name if report.running else "package"
        log = said.decode(errors="replace")[-_LOG_CHARS:]
        raise BuildFailed(failure.message, fix=failure.fix or None, step=step, log=log) from failure
    finally:
        remove_tree(work)


def _wheel(place: Path, target: Path) -> Path:
    """Make the package's wheel.

    Raises:
        BuildFailed: With the end of what pip said.
    """
    command = [
        sys.executable,
        "-m",
        "pip",
        "wheel",
        "--quiet",
        "--disable-pip-version-check",
        "--no-input",
        "--no-deps",
    ]
    with tempfile.TemporaryDirectory(prefix="nodus-wheel-") as folder:
        sources = Path(folder, "sources")  # a copy: setuptools leaves build/ and egg-info beside what it builds
        copy_sources(place, sources)
        if _has_backend(sources):
            command.append("--no-build-isolation")  # what builds it is here: no network is needed
        command += ["--wheel-dir", str(target), str(sources)]
        try:
            done = subprocess.run(command, capture_output=True, text=True, timeout=_WHEEL_TIMEOUT_S, check=False)
        except subprocess.TimeoutExpired:
            raise BuildFailed(f"pip wheel took longer than {_WHEEL_TIMEOUT_S} s", step="wheel") from None
    if done.returncode:
        fix = f"Run `{sys.executable} -m pip wheel --no-deps {place}` until it works."
        raise BuildFailed("pip can't make a wheel of it", fix=fix, step="wheel", log=done.stderr[-_LOG_CHARS:])
    (wheel,) = target.glob("*.whl")
    wheel.chmod(0o644)
    return wheel


def _has_backend(sources: Path) -> bool:
    """Tell whether what builds the package is installed beside Nodus."""
    needed = tomllib.loads((sources / "pyproject.toml").read_text(encoding="utf-8")).get("build-system") or {}
    names = [_REQUIREMENT_NAME.match(str(requirement)) for requirement in needed.get("requires") or ["setuptools"]]
    try:
        return all(name is not None and metadata.version(name.group(1)) for name in names)
    except metadata.PackageNotFoundError:
        return False
