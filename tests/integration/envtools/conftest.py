"""A user with an own cache, and directories of environments."""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path

import pytest

from nodus.server.compute.local.probe import probe

MakeDirectory = Callable[..., Path]


@pytest.fixture(scope="session", autouse=True)
def _needs_isolation() -> None:
    isolation = probe()
    if not isolation.ok:
        pytest.skip(f"this machine cannot isolate: {isolation.problems}")


@pytest.fixture(autouse=True)
def away(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    """A user in an empty folder, whose server is away."""
    (tmp_path / "home").mkdir()
    (tmp_path / "folder").mkdir()
    monkeypatch.chdir(tmp_path / "folder")
    monkeypatch.setenv("HOME", str(tmp_path / "home"))
    monkeypatch.setenv("NODUS_API_URL", "http://127.0.0.1:9")
    monkeypatch.setenv("NODUS_API_KEY", "nodus_k")
    monkeypatch.setenv("NODUS_DATA_DIR", str(tmp_path / "data"))


@pytest.fixture
def directory(tmp_path: Path) -> MakeDirectory:
    """Return a function from a module's text to a directory with it and a manifest."""

    def make(source: str, name: str = "my-task", **spec: object) -> Path:
        place = tmp_path / "folder" / name
        place.mkdir()
        (place / f"{name.replace('-', '_')}.py").write_text(source)
        lines = "".join(f"  {key}: {value}\n" for key, value in spec.items())
        head = f"apiVersion: nodus.dev/v1\nkind: Environment\nmetadata: {{name: {name}}}\nspec:\n"
        (place / "environment.yaml").write_text(f"{head}  version: 1.2.3\n{lines}")
        return place

    return make
