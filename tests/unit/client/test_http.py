"""Requests, retries and errors, over real sockets."""

from __future__ import annotations

import socket
import threading
import time
from collections.abc import Callable
from datetime import UTC, datetime, timedelta
from email.utils import format_datetime
from pathlib import Path
from typing import Any

import pytest

from nodus import errors
from nodus.client.blocking import run_blocking
from nodus.client.config import Connection
from nodus.client.http import PROMPT, Api, ConnectionFailed, RetryPolicy
from tests.unit.client.fake_server import Asked, FakeServer, Reply, status

Call = Callable[..., Any]


def api_of(server: FakeServer, **policy: Any) -> Api:
    retry = RetryPolicy(**({"budget_s": 5.0, "first_contact_s": 0.0} | policy))
    return Api(Connection(url=server.url, api_key="nodus_key", project="default"), retry=retry)


def test_request_carries_key_and_agent(server: FakeServer) -> None:
    server.replies = [Reply({"ok": True})]
    assert run_blocking(api_of(server).call("GET", "/x", query={"a": 1, "b": None, "c": True})) == {"ok": True}
    asked = server.asked[0]
    assert asked.headers["authorization"] == "Bearer nodus_key"
    assert asked.headers["user-agent"].startswith("nodus-python/")
    assert asked.query == {"a": "1", "c": "true"}


async def test_awaited_request_is_the_same(server: FakeServer) -> None:
    server.script = lambda asked: Reply({"ok": True})
    api = api_of(server)
    assert await api.call("POST", "/x", body={"a": 1}, idempotency_key="k") == {"ok": True}
    blocked = server.asked[0]
    run_blocking(api.call("POST", "/x", body={"a": 1}, idempotency_key="k"))
    ours = {"authorization", "user-agent", "accept", "idempotency-key", "content-type", "accept-encoding"}
    first, second = ({key: asked.headers[key] for key in ours} for asked in (blocked, server.asked[1]))
    assert first == second
    assert server.asked[0].body == server.asked[1].body


def test_error_is_the_class_the_server_names(server: FakeServer) -> None:
    causes = [{"field": "spec.x", "reason": "FieldValueInvalid", "message": "wrong"}]
    server.replies = [
        status("Invalid", 422, "bad", fix="do this", details={"causes": causes}, headers={"X-Request-Id": "req_1"})
    ]
    with pytest.raises(errors.Invalid) as raised:
        run_blocking(api_of(server).call("GET", "/x"))
    error = raised.value
    assert (error.message, error.fix, error.request_id) == ("bad", "do this", "req_1")
    assert [(cause.field, cause.message) for cause in error.causes] == [("spec.x", "wrong")]


@pytest.mark.parametrize(
    ("code", "expected"),
    [
        (400, errors.BadRequest),
        (404, errors.NotFound),
        (409, errors.Conflict),
        (502, errors.Unavailable),
        (504, errors.Unavailable),
    ],
)
def test_answer_that_is_no_status_is_judged_by_its_code(
    server: FakeServer, code: int, expected: type[Exception]
) -> None:
    server.script = lambda asked: Reply(b"<html>proxy</html>", code)
    with pytest.raises(expected):
        run_blocking(api_of(server, budget_s=0.0).call("GET", "/x"))


def test_retryable_error_is_tried_again_after_the_time_the_server_says(server: FakeServer) -> None:
    server.replies = [status("Unavailable", 503, headers={"Retry-After": "0"}), Reply({"ok": True})]
    assert run_blocking(api_of(server).call("GET", "/x")) == {"ok": True}
    assert len(server.asked) == 2


def test_keyed_post_is_repeated_with_its_key(server: FakeServer) -> None:
    server.replies = [status("TooManyRequests", 429, details={"retryAfterSeconds": 0}), Reply({"ok": True}, 201)]
    run_blocking(api_of(server).call("POST", "/x", body={}, idempotency_key="k1"))
    assert [asked.headers["idempotency-key"] for asked in server.asked] == ["k1", "k1"]


def test_post_without_a_key_is_sent_once(server: FakeServer) -> None:
    server.script = lambda asked: status("Unavailable", 503, headers={"Retry-After": "0"})
    with pytest.raises(errors.Unavailable):
        run_blocking(api_of(server).call("POST", "/x", body={}))
    assert len(server.asked) == 1


@pytest.mark.parametrize("reason", ["Conflict", "AlreadyExists", "NotFound", "Invalid", "PreconditionFailed"])
def test_other_errors_are_not_repeated(server: FakeServer, reason: str) -> None:
    server.script = lambda asked: status(reason, 409)
    with pytest.raises(errors.NodusError):
        run_blocking(api_of(server).call("GET", "/x"))
    assert len(server.asked) == 1


def test_command_line_repeats_only_where_the_server_says_when(server: FakeServer) -> None:
    server.script = lambda asked: status("Unavailable", 503)
    api = Api(Connection(url=server.url, api_key=None, project="default"), retry=PROMPT)
    with pytest.raises(errors.Unavailable):
        run_blocking(api.call("GET", "/x"))
    assert len(server.asked) == 1


def test_budget_bounds_the_retries(server: FakeServer) -> None:
    server.script = lambda asked: status("Unavailable", 503)
    begun = time.monotonic()
    with pytest.raises(errors.Unavailable):
        run_blocking(api_of(server, budget_s=1.0).call("GET", "/x"))
    assert time.monotonic() - begun < 2.0
    assert len(server.asked) == 2


def test_callers_bound_is_kept_within_the_budget(server: FakeServer) -> None:
    server.script = lambda asked: status("Unavailable", 503, headers={"Retry-After": "2"})
    with pytest.raises(errors.Unavailable) as raised:
        run_blocking(api_of(server, budget_s=60.0).call("GET", "/x", budget_s=1.0))
    assert (len(server.asked), raised.value.retry_after) == (1, 2.0)


def test_time_to_wait_for_may_be_a_date(server: FakeServer) -> None:
    then = format_datetime(datetime.now(UTC) + timedelta(seconds=90), usegmt=True)
    for said, least_s in ((then, 80.0), ("soon", None)):
        server.replies = [status("Unavailable", 503, headers={"Retry-After": said})]
        with pytest.raises(errors.Unavailable) as raised:
            run_blocking(api_of(server, budget_s=0.0).call("GET", "/x"))
        assert raised.value.retry_after is least_s or float(raised.value.retry_after or 0) > float(least_s or 0)


@pytest.mark.parametrize(
    ("content", "tries"), [("application/merge-patch+json", 2), ("application/json-patch+json", 1)]
)
def test_json_patch_that_may_have_gone_through_is_not_sent_again(server: FakeServer, content: str, tries: int) -> None:
    server.replies = [Reply(lost=True), Reply({"ok": True})]
    api = api_of(server, first_contact_s=5.0)
    call = api.call("PATCH", "/x", body=[], headers={"Content-Type": content})
    if tries == 2:
        assert run_blocking(call) == {"ok": True}
    else:
        with pytest.raises(ConnectionFailed):
            run_blocking(call)
    assert len(server.asked) == tries


def test_silence_that_is_too_long_is_an_error(server: FakeServer) -> None:
    slow = threading.Event()

    def script(asked: Asked) -> Reply:
        slow.wait(5)
        return Reply({})

    server.script = script
    api = Api(Connection(url=server.url, api_key=None, project="default"), retry=PROMPT, timeout_s=0.2)
    with pytest.raises(ConnectionFailed, match="did not answer in time"):
        run_blocking(api.call("GET", "/x"))
    slow.set()


def free_port() -> int:
    with socket.socket() as listening:
        listening.bind(("127.0.0.1", 0))
        return int(listening.getsockname()[1])


@pytest.mark.parametrize("url", ["http://127.0.0.1:{port}", "https://127.0.0.1:{port}"])
def test_server_that_is_not_there_is_said_at_once(url: str) -> None:
    address = url.format(port=free_port())
    api = Api(Connection(url=address, api_key=None, project="default"), retry=PROMPT)
    with pytest.raises(ConnectionFailed, match="nothing listens at http") as raised:
        run_blocking(api.call("GET", "/x"))
    assert "nodus up" in str(raised.value.fix)


async def test_awaited_call_says_it_too() -> None:
    api = Api(Connection(url=f"http://127.0.0.1:{free_port()}", api_key=None, project="default"), retry=PROMPT)
    with pytest.raises(ConnectionFailed, match="can't be reached"):
        await api.call("GET", "/x")


def test_body_that_breaks_off_is_asked_for_again(server: FakeServer) -> None:
    server.replies = [Reply({"ok": 1}, cut=True), Reply({"ok": 2})]
    assert run_blocking(api_of(server).call("GET", "/x")) == {"ok": 2}


def test_connections_are_used_again(server: FakeServer) -> None:
    server.script = lambda asked: Reply({"peer": "x"})
    api = api_of(server)
    for _ in range(3):
        run_blocking(api.call("GET", "/x"))
    (idle,) = api.transport._idle.values()
    assert len(idle) == 1
    api.transport.close()


def test_idle_connection_that_the_server_closed_is_replaced(server: FakeServer) -> None:
    server.script = lambda asked: Reply({"ok": True}, headers={})
    api = api_of(server)
    run_blocking(api.call("GET", "/x"))
    (idle,) = api.transport._idle.values()
    idle[0].sock.shutdown(socket.SHUT_RDWR)
    assert run_blocking(api.call("GET", "/x")) == {"ok": True}


def test_redirects_are_not_followed(server: FakeServer) -> None:
    server.replies = [Reply(None, 302, {"Location": "http://127.0.0.1:1/elsewhere"})]
    answer = run_blocking(api_of(server).answer("GET", "/x"))
    assert (answer.status, answer.headers["location"]) == (302, "http://127.0.0.1:1/elsewhere")


def test_file_is_sent_as_it_is(server: FakeServer, tmp_path: Path) -> None:
    content = bytes(range(256)) * 3000
    (tmp_path / "f").write_bytes(content)
    server.replies = [Reply({})]
    run_blocking(api_of(server).call("PUT", "/x", body=tmp_path / "f"))
    assert server.asked[0].body == content


async def test_file_is_sent_as_it_is_when_awaited(server: FakeServer, tmp_path: Path) -> None:
    content = bytes(range(256)) * 3000
    (tmp_path / "f").write_bytes(content)
    server.replies = [Reply({})]
    await api_of(server).call("PUT", "/x", body=tmp_path / "f")
    assert server.asked[0].body == content


def test_names_are_quoted_in_paths(server: FakeServer) -> None:
    server.replies = [Reply({})]
    run_blocking(api_of(server).call("GET", "/outputs/a b?/ü%.txt"))
    assert server.asked[0].path == "/outputs/a%20b%3F/%C3%BC%25.txt"


def test_unix_socket_is_spoken_with(tmp_path: Path) -> None:
    path = tmp_path / "api.sock"
    listening = socket.socket(socket.AF_UNIX)
    listening.bind(str(path))
    listening.listen()

    def serve() -> None:
        with listening, listening.accept()[0] as connection:
            connection.recv(65536)
            connection.sendall(b"HTTP/1.1 200 OK\r\nContent-Type: application/json\r\nContent-Length: 2\r\n\r\n{}")

    thread = threading.Thread(target=serve)
    thread.start()
    api = Api(Connection(url="http://nodus", api_key=None, project="default", socket=str(path)), retry=PROMPT)
    assert run_blocking(api.call("GET", "/self")) == {}
    thread.join()
    api.transport.close()


def test_missing_unix_socket_is_named(tmp_path: Path) -> None:
    api = Api(
        Connection(url="http://nodus", api_key=None, project="default", socket=str(tmp_path / "no")), retry=PROMPT
    )
    with pytest.raises(ConnectionFailed, match="there is no socket at"):
        run_blocking(api.call("GET", "/self"))


def test_lines_come_whole_however_they_were_cut(server: FakeServer) -> None:
    async def collect() -> list[bytes]:
        return [line async for line in api_of(server).lines("GET", "/x")]

    server.replies = [Reply(b'{"a":1}\n{"b":2}\nrest')]
    assert run_blocking(collect()) == [b'{"a":1}', b'{"b":2}', b"rest"]


def test_stream_that_breaks_is_a_failed_connection(server: FakeServer) -> None:
    async def collect() -> list[bytes]:
        return [line async for line in api_of(server).lines("GET", "/x")]

    server.replies = [Reply(b'{"a":1}\n', cut=True)]
    with pytest.raises(ConnectionFailed, match="broke"):
        run_blocking(collect())


def test_key_stays_away_from_fetched_links(server: FakeServer) -> None:
    async def fetch() -> bytes:
        return await (await api_of(server).fetch(f"{server.url}/signed")).read()

    server.replies = [Reply(b"bytes")]
    assert run_blocking(fetch()) == b"bytes"
    assert "authorization" not in server.asked[0].headers


def test_first_contact_is_shorter_than_a_restart(server: FakeServer) -> None:
    seen: list[Asked] = []

    def script(asked: Asked) -> Reply:
        seen.append(asked)
        return Reply({})

    server.script = script
    api = api_of(server, budget_s=0.0, first_contact_s=0.0)
    run_blocking(api.call("GET", "/x"))
    assert api._answered


def test_log_names_requests_and_no_secrets(server: FakeServer) -> None:
    lines: list[str] = []
    api = Api(Connection(url=server.url, api_key="nodus_key", project="default"), retry=PROMPT, log=lines.append)
    server.replies = [Reply({"ok": 1}, headers={"X-Request-Id": "req_1"}), Reply(b"bytes"), Reply({})]
    run_blocking(api.call("POST", "/x", query={"dryRun": "All"}, body={"stringData": {"A": "hidden"}}))
    run_blocking(run_blocking(api.fetch(f"{server.url}/blob?signature=permission")).read())
    run_blocking(api.put_grant(f"{server.url}/blob?signature=permission", b"body", {"X-Grant": "grant"}))
    assert lines[0].startswith(f"POST {server.url}/x?dryRun=All 200 in ") and lines[0].endswith(" req_1")
    assert lines[1].startswith(f"GET {server.url}/blob 200 in ")
    for secret in ("nodus_key", "hidden", "permission", "grant", "body"):
        assert not [line for line in lines if secret in line]
    refused = Api(Connection(url="http://127.0.0.1:9", api_key=None, project="default"), retry=PROMPT, log=lines.append)
    with pytest.raises(ConnectionFailed):
        run_blocking(refused.call("GET", "/x"))
    assert "failed: nothing listens at" in lines[-1]


@pytest.mark.parametrize("awaited", [False, True])
async def test_meter_follows_large_files_both_ways(server: FakeServer, tmp_path: Path, awaited: bool) -> None:
    moved: dict[tuple[str, int], int] = {}

    def meter(what: str, total: int) -> Callable[[int], None]:
        moved[what, total] = 0

        def advance(size: int) -> None:
            moved[what, total] += size

        return advance

    size = 3 * 1024 * 1024
    large = tmp_path / "large.bin"
    large.write_bytes(b"x" * size)
    api = Api(Connection(url=server.url, api_key="k", project="default"), retry=PROMPT, meter=meter)
    server.script = lambda asked: Reply(b"y" * size if asked.path == "/down" else {"small": True})

    async def work() -> bytes:
        await api.call("PUT", "/up", body=large)
        await api.put_grant(f"{server.url}/grant", large.read_bytes(), {})
        await (await api.fetch(f"{server.url}/small")).read()
        return await (await api.fetch(f"{server.url}/down", "model.bin")).read()

    got = await work() if awaited else run_blocking(work())
    assert got == b"y" * size
    assert moved == {("large.bin", size): size, ("upload", size): size, ("model.bin", size): size}
    assert [len(asked.body) for asked in server.asked if asked.method == "PUT"] == [size, size]


def test_a_name_that_no_url_can_hold_is_refused(server: FakeServer) -> None:
    with pytest.raises(errors.NodusError, match="not UTF-8"):
        api_of(server).url("/x/\udcff")
