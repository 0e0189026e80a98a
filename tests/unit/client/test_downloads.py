"""Downloads: what broke off goes on where it was, and a server that is away for a moment ends none."""

from __future__ import annotations

import hashlib
import socket
from pathlib import Path

import pytest

from nodus.client import downloads
from nodus.client.blocking import run_blocking
from nodus.client.http import ConnectionFailed
from nodus.core.errors import Forbidden, SHA256Mismatch
from tests.unit.client.fake_server import Asked, FakeServer, Reply

CONTENT = b"0123456789" * 10
SHA256 = hashlib.sha256(CONTENT).hexdigest()


def serve(asked: Asked) -> Reply:
    begin = int(asked.headers.get("range", "bytes=0-").removeprefix("bytes=").removesuffix("-"))
    return Reply(CONTENT[begin:], 206 if begin else 200)


def fetch(server: FakeServer, target: Path, *links: str, sha256: str = SHA256) -> Path:
    left = list(links)

    async def locate() -> str:
        return left.pop(0) if len(left) > 1 else left[0]

    return run_blocking(downloads.download(server.client().api, locate, target, target.name, sha256))


@pytest.fixture
def nobody() -> str:
    """An address at which nothing listens."""
    with socket.create_server(("127.0.0.1", 0)) as listening:
        return f"http://127.0.0.1:{listening.getsockname()[1]}/x"


def test_a_download_that_broke_off_goes_on_where_it_was(server: FakeServer, tmp_path: Path) -> None:
    server.replies = [Reply(CONTENT[:40], cut=True)]
    server.script = serve
    assert fetch(server, tmp_path / "f", f"{server.url}/f").read_bytes() == CONTENT
    assert server.asked[1].headers["range"] == "bytes=40-"


def test_a_server_that_is_away_for_a_moment_ends_no_download(server: FakeServer, tmp_path: Path, nobody: str) -> None:
    server.script = serve
    assert fetch(server, tmp_path / "f", nobody, f"{server.url}/f").read_bytes() == CONTENT


def test_one_that_stays_away_does(
    server: FakeServer, tmp_path: Path, nobody: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(downloads, "TRIES", 2)
    with pytest.raises(ConnectionFailed, match="'f' broke off"):
        fetch(server, tmp_path / "f", nobody)
    assert not (tmp_path / "f").exists()


def test_a_server_that_sends_all_of_it_again_is_taken_at_its_word(server: FakeServer, tmp_path: Path) -> None:
    server.replies = [Reply(CONTENT[:40], cut=True), Reply(CONTENT)]
    assert fetch(server, tmp_path / "f", f"{server.url}/f").read_bytes() == CONTENT


def test_a_refusal_is_told_at_once_and_other_bytes_replace_nothing(server: FakeServer, tmp_path: Path) -> None:
    (tmp_path / "f").write_text("before")
    server.replies = [Reply({"kind": "Status", "reason": "Forbidden", "message": "no"}, 403), Reply(b"other")]
    with pytest.raises(Forbidden):
        fetch(server, tmp_path / "f", f"{server.url}/f")
    with pytest.raises(SHA256Mismatch):
        fetch(server, tmp_path / "f", f"{server.url}/f")
    assert [path.name for path in tmp_path.iterdir()] == ["f"]
    assert (tmp_path / "f").read_text() == "before"
