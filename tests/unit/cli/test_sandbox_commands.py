"""How the commands for sandboxes read their arguments; nothing is sent."""

from __future__ import annotations

from collections.abc import AsyncGenerator
from pathlib import Path

import click
import pytest
from click.testing import CliRunner

from nodus.cli.copying import download, remote
from nodus.cli.main import root
from nodus.cli.session import Session
from nodus.client.sandboxfiles import SandboxFiles
from nodus.core.errors import NodusError


@pytest.fixture
def session(monkeypatch: pytest.MonkeyPatch) -> Session:
    from nodus.cli.connection import Options

    monkeypatch.setenv("NODUS_API_URL", "http://127.0.0.1:9")
    monkeypatch.setenv("NODUS_API_KEY", "nodus_x")
    return Session(Options())


@pytest.mark.parametrize(
    ("argument", "expected"),
    [
        ("sb/dev:/workspace/a", ("Sandbox", "dev", "/workspace/a")),
        ("sandbox/dev:/a:b", ("Sandbox", "dev", "/a:b")),
        ("tj/my-run:outputs/", ("TrainingJob", "my-run", "outputs/")),
        ("./sb/dev:x", None),
        ("data", None),
        ("C:/files", None),
        ("sb/dev:", None),
    ],
)
def test_which_side_is_remote(session: Session, argument: str, expected: tuple[str, str, str] | None) -> None:
    found = remote(session, argument)
    assert (found and (found[0].kind.kind, found[0].name, found[1])) == expected


@pytest.mark.parametrize(
    ("arguments", "said"),
    [
        (["exec", "sb/dev"], "say what to run"),
        (["exec", "job/x", "--", "true"], "commands run in sandboxes"),
        (["shell", "job/x"], "commands run in sandboxes"),
        (["shell", "--rm", "--", "true"], "--rm goes with a name"),
        (["cp", "a", "b"], "one side is a run or a sandbox"),
        (["cp", "a", "sb/dev:relative"], "from / on"),
        (["cp", "no-such-file", "sb/dev:/x"], "no 'no-such-file' here"),
        (["cp", "sb/a:/x", "sb/b:/x"], "one side of a copy is on this machine"),
        (["cp", "conftest.py", "job/x:/y"], "can't be copied into a job"),
    ],
)
def test_wrong_usage_is_told_before_anything_is_sent(session: Session, arguments: list[str], said: str) -> None:
    done = CliRunner().invoke(root, arguments, standalone_mode=False)
    assert isinstance(done.exception, click.UsageError | NodusError), done.exception
    message = done.exception.message
    assert said in message


def test_names_of_others_are_spelled_out(
    session: Session, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str], tmp_path: Path
) -> None:
    async def downloading(files: SandboxFiles, path: str, target: Path) -> AsyncGenerator[Path, None]:
        yield target / "a\x1b[2Jb"

    monkeypatch.setattr(SandboxFiles, "downloading", downloading)
    target, path = remote(session, "sb/dev:/workspace") or pytest.fail("it is remote")
    download(session, target, path, str(tmp_path / "x"))
    printed = capsys.readouterr().out
    assert "\x1b" not in printed
    assert "[2Jb" in printed
