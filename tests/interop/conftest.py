"""A user of the published client at their desk: its command line and its Python, and a real server of ours."""

from __future__ import annotations

import os
import re
import subprocess
import sys
import textwrap
from collections.abc import Iterator
from dataclasses import dataclass, field
from pathlib import Path

import pytest

from nodus.server.lifecycle import DownOptions, Started, UpOptions, down, up
from nodus.testing.hub import FakeHub
from tests.interop import _published

Done = subprocess.CompletedProcess[str]
OURS = Path(sys.executable).parent
CONFIG = {
    "architectures": ["Qwen3ForCausalLM"], "model_type": "qwen3", "hidden_size": 32, "num_hidden_layers": 2,
    "num_attention_heads": 4, "vocab_size": 64,
}  # fmt: skip


@dataclass
class Desk:
    """A user's shell: a home, a folder to work in, and a client on the PATH."""

    bin: Path
    home: Path
    url: str
    key: str
    variables: dict[str, str] = field(default_factory=dict)

    @property
    def environment(self) -> dict[str, str]:
        """What the user's shell has set."""
        found = {"HOME": str(self.home), "PATH": f"{self.bin}:/usr/local/bin:/usr/bin:/bin", "LANG": "C.UTF-8"}
        signed_in = {"NODUS_API_URL": self.url, "NODUS_API_KEY": self.key}
        pip = {name: value for name, value in os.environ.items() if name.startswith(("PIP_", "SSL_"))}
        return {name: value for name, value in (pip | found | signed_in | self.variables).items() if value}

    def run(self, command: str, stdin: str = "", timeout_s: float = 90) -> Done:
        """Run a line of shell, as a page of the guide prints it."""
        return subprocess.run(
            ["bash", "-c", command], input=stdin, capture_output=True, text=True, env=self.environment,
            cwd=self.home, timeout=timeout_s, check=False,
        )  # fmt: skip

    def ok(self, command: str, stdin: str = "") -> str:
        """Run a line of shell that must succeed, and return its output."""
        done = self.run(command, stdin)
        assert done.returncode == 0, f"$ {command}\n{done.stdout}{done.stderr}"
        return done.stdout

    def fails(self, command: str, code: int = 1, stdin: str = "") -> str:
        """Run a line of shell that must end with that code, and return what it says on standard error."""
        done = self.run(command, stdin)
        assert done.returncode == code, f"$ {command}\nended {done.returncode}\n{done.stdout}{done.stderr}"
        return done.stderr

    def python(self, program: str, timeout_s: float = 90) -> str:
        """Run a program, which must succeed, and return its output."""
        done = self.python_run(program, timeout_s)
        assert done.returncode == 0, done.stdout + done.stderr
        return done.stdout

    def python_run(self, program: str, timeout_s: float = 90) -> Done:
        """Run a program from a file, as a page of the guide prints it."""
        path = self.home / "program.py"
        path.write_text(textwrap.dedent(program))
        return subprocess.run(
            [str(self.bin / "python"), str(path)], capture_output=True, text=True, env=self.environment,
            cwd=self.home, timeout=timeout_s, check=False,
        )  # fmt: skip

    def write(self, name: str, text: str) -> str:
        """Write a file in the folder."""
        (self.home / name).write_text(textwrap.dedent(text).lstrip("\n"))
        return name


def cells(table: str) -> list[list[str]]:
    """Return the cells of a printed table, whatever the widths of its columns."""
    return [re.split(r"\s{2,}", line.rstrip()) for line in table.splitlines()]


@pytest.fixture(scope="session")
def published() -> Path:
    """Directory of the environment that holds the published client."""
    try:
        return _published.environment()
    except _published.Unreachable as error:
        pytest.skip(f"the published client is not installed here, and the package index can't be reached: {error}")


@pytest.fixture(scope="session")
def hub() -> Iterator[FakeHub]:
    """A model hub that knows the guide's default model by name: enough to pin it and to plan a run on it."""
    import json

    with FakeHub() as hub:
        hub.add("Qwen/Qwen3-0.6B", {"config.json": json.dumps(CONFIG).encode()})
        yield hub


@pytest.fixture(scope="session")
def server(tmp_path_factory: pytest.TempPathFactory, hub: FakeHub) -> Iterator[Started]:
    """A real server, for every test here."""
    data_dir = tmp_path_factory.mktemp("interop") / "data"
    with pytest.MonkeyPatch.context() as patch:
        patch.setenv("HF_ENDPOINT", hub.url)
        patch.setenv("HF_HUB_OFFLINE", "0")
        started = up(UpOptions(data_dir=data_dir, port=0, detach=True, issue_key=True))
    yield started
    down(DownOptions(data_dir=data_dir))


@pytest.fixture
def desk(server: Started, published: Path, tmp_path: Path) -> Desk:
    """A user with the published client, signed in by the environment."""
    return Desk(published / "bin", tmp_path, server.url, str(server.api_key))


@pytest.fixture
def ours(server: Started, tmp_path: Path) -> Desk:
    """The same user with our client."""
    return Desk(OURS, tmp_path, server.url, str(server.api_key))
