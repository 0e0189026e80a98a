"""Sandboxes on a real server: what its routes promise, who may use them, and what survives which death."""

from __future__ import annotations

import base64
import hashlib
import json
import os
import signal
from collections.abc import Callable, Iterator, Sequence
from concurrent.futures import ThreadPoolExecutor
from http.client import HTTPConnection
from pathlib import Path
from typing import Any

import httpx
import pytest
from websockets.exceptions import InvalidStatus
from websockets.sync.client import connect

import nodus
from nodus.client.config import Connection
from nodus.client.http import RetryPolicy
from nodus.server.lifecycle import DownOptions, Started, UpOptions, down, up
from nodus.testing.eventually import eventually

pytestmark = [pytest.mark.acceptance, pytest.mark.sandbox, pytest.mark.timeout(120)]
BASE = "/apis/nodus.dev/v1/namespaces/default"
PATIENT = RetryPolicy(budget_s=60.0, first_contact_s=60.0)


class Server:
    """A detached server, its directory and a client of it."""

    def __init__(self, data_dir: Path) -> None:
        self.data_dir = data_dir
        self.started: Started | None = None
        self.key = ""
        self.up()

    def up(self) -> None:
        port = int(self.url.rpartition(":")[2]) if self.started else 0
        options = UpOptions(data_dir=self.data_dir, port=port, detach=True, issue_key=not self.key)
        self.started = up(options)
        self.key = self.started.api_key or self.key

    @property
    def url(self) -> str:
        assert self.started is not None
        return self.started.url

    def kill(self) -> None:
        assert self.started is not None
        os.kill(self.started.pid, signal.SIGKILL)
        assert eventually(lambda: not self._listens())

    def _listens(self) -> bool:
        try:
            return bool(httpx.get(f"{self.url}/healthz").is_success)
        except httpx.TransportError:
            return False

    @property
    def client(self) -> nodus.Client:
        return nodus.Client(connection=Connection(self.url, self.key, "default"), retry=PATIENT)

    def call(self, method: str, path: str, key: str | None = None, **options: Any) -> httpx.Response:
        headers = {"Authorization": f"Bearer {key or self.key}", **options.pop("headers", {})}
        return httpx.request(method, self.url + BASE + path, headers=headers, timeout=60, **options)

    def ok(self, method: str, path: str, **options: Any) -> Any:
        answer = self.call(method, path, **options)
        assert answer.status_code < 400, answer.text
        return answer.json()

    def fails(self, reason: str, method: str, path: str, **options: Any) -> dict[str, Any]:
        answer = self.call(method, path, **options)
        assert answer.status_code >= 400, answer.text
        assert answer.json()["reason"] == reason, answer.text
        found: dict[str, Any] = answer.json()
        return found

    def sandbox(self, name: str, command: Sequence[str] = (), **options: Any) -> nodus.Sandbox:
        return nodus.Sandbox.create(*command, name=name, cpu=0.25, memory="256Mi", client=self.client, **options)

    def phase(self, name: str) -> str | None:
        status = self.ok("GET", f"/sandboxes/{name}").get("status", {})
        found: str | None = status.get("phase")
        return found

    def close(self) -> None:
        for item in self.ok("GET", "/sandboxes")["items"]:
            self.call("DELETE", f"/sandboxes/{item['metadata']['name']}")
        assert eventually(lambda: not list((self.data_dir / "attempts").glob("*-*/")), timeout_s=30)
        assert eventually(lambda: not list((self.data_dir / "sandboxes").glob("*")), timeout_s=30)
        down(DownOptions(data_dir=self.data_dir))


@pytest.fixture(scope="module")
def server(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Server]:
    made = Server(tmp_path_factory.mktemp("sandboxes") / "data")
    yield made
    made.close()


@pytest.fixture(scope="module")
def shared(server: Server) -> nodus.Sandbox:
    """A Sandbox that tests use and leave running."""
    made = server.sandbox("shared", env={"FROM": "sandbox"})
    assert made.exec("true").wait() == 0
    return made


def start(server: Server, *command: str, name: str = "shared", key: str | None = None, **spec: Any) -> dict[str, Any]:
    body = {"apiVersion": "nodus.dev/v1", "kind": "Process", "spec": {"command": list(command), **spec}}
    headers = {"Idempotency-Key": key} if key else {}
    found: dict[str, Any] = server.ok("POST", f"/sandboxes/{name}/processes", json=body, headers=headers)
    return found


def output(server: Server, process: str, query: str = "wait=20s") -> list[dict[str, Any]]:
    answer = server.call("GET", f"/processes/{process}/output?{query}")
    assert answer.status_code == 200, answer.text
    return [json.loads(line) for line in answer.text.splitlines()]


# Processes --------------------------------------------------------------------------------------------------------


def test_output_is_polled_by_offset_and_stream_and_ends_with_the_code(server: Server, shared: nodus.Sandbox) -> None:
    process = start(server, "sh", "-c", "echo out; sleep 0.2; echo err >&2; exit 3")["metadata"]["name"]
    found, after = [], 0
    while not (found and found[-1].get("done")):
        lines = output(server, process, f"after={after}&wait=20s")
        found += lines
        after = max(
            [after, *(line["offset"] + len(base64.b64decode(line["data"])) for line in lines if "data" in line)]
        )
    said = {
        s: b"".join(base64.b64decode(x["data"]) for x in found if x.get("stream") == s) for s in ("stdout", "stderr")
    }
    assert said == {"stdout": b"out\n", "stderr": b"err\n"}
    assert found[-1] == {"done": True, "exitCode": 3}
    only = output(server, process, "stream=stderr")
    assert [line.get("stream") for line in only] == ["stderr", None]
    assert output(server, process, "after=9000000000000000")[-1]["done"]
    server.fails("BadRequest", "GET", f"/processes/{process}/output?stream=both")
    server.fails("BadRequest", "GET", f"/processes/{process}/output?wait=soon")


def test_get_waits_for_the_end_when_asked_to(server: Server, shared: nodus.Sandbox) -> None:
    process = start(server, "sh", "-c", "sleep 0.3; exit 9")["metadata"]["name"]
    status = server.ok("GET", f"/processes/{process}?wait=20s")["status"]
    assert (status["phase"], status["exitCode"], status["reason"]) == ("Failed", 9, "NonZeroExitCode")
    assert status["completionTime"] >= status["startTime"]


def test_the_same_key_starts_once(server: Server, shared: nodus.Sandbox) -> None:
    names = {start(server, "true", key="once")["metadata"]["name"] for _ in range(3)}
    assert len(names) == 1
    body = {"spec": {"command": ["false"]}}
    headers = {"Idempotency-Key": "once"}
    server.fails("IdempotencyKeyReused", "POST", "/sandboxes/shared/processes", json=body, headers=headers)


def test_processes_are_numbered_listed_and_selected(server: Server, shared: nodus.Sandbox) -> None:
    made = [start(server, "true") for _ in range(3)]
    numbers = [process["spec"]["number"] for process in made]
    assert numbers == sorted(set(numbers))
    assert [process["metadata"]["name"] for process in made] == [f"sb-shared-{number}" for number in numbers]
    listed = server.ok("GET", "/processes?labelSelector=nodus.dev/sandbox=shared")["items"]
    assert {process["metadata"]["name"] for process in made} <= {item["metadata"]["name"] for item in listed}
    assert server.ok("GET", "/sandboxes/shared/processes")["items"][0]["spec"]["number"] == 1


@pytest.mark.parametrize(
    ("spec", "field"),
    [
        ({"command": []}, "spec.command"),
        ({"command": ["true"], "timeout": "soon"}, "spec.timeout"),
        ({"command": ["true"], "workingDir": "here"}, "spec.workingDir"),
        ({"command": ["true"], "workingDir": "/a/../b"}, "spec.workingDir"),
        ({"command": ["true"], "number": 7}, "spec.number"),
        ({"command": ["true"], "nonsense": 1}, "spec.nonsense"),
        ({"command": ["x" * 200_000]}, "spec.command"),
    ],
)
def test_nonsense_is_refused(server: Server, shared: nodus.Sandbox, spec: dict[str, Any], field: str) -> None:
    refused = server.fails("Invalid", "POST", "/sandboxes/shared/processes", json={"spec": spec})
    assert refused["details"]["causes"][0]["field"] == field


def test_input_is_taken_once_a_number_and_bounded(server: Server, shared: nodus.Sandbox) -> None:
    process = start(server, "cat", stdin=True)["metadata"]["name"]
    data = base64.b64encode(b"typed").decode()
    for _ in range(2):
        server.ok("POST", f"/processes/{process}/stdin", json={"data": data, "seq": 1})
    server.fails("Conflict", "POST", f"/processes/{process}/stdin", json={"data": data, "seq": 5})
    server.fails("Invalid", "POST", f"/processes/{process}/stdin", json={"data": "?"})
    server.fails("Invalid", "POST", f"/processes/{process}/stdin", json={"text": "x"})
    server.ok("POST", f"/processes/{process}/stdin", json={"eof": True, "seq": 2})
    assert base64.b64decode(output(server, process)[0]["data"]) == b"typed"
    deaf = start(server, "sleep", "60", stdin=True)["metadata"]["name"]
    piece = {"data": base64.b64encode(b"x" * 400_000).decode()}
    answers = [server.call("POST", f"/processes/{deaf}/stdin", json=piece) for _ in range(5)]
    refused = answers[-1]
    assert (refused.status_code, refused.json()["reason"], "retry-after" in refused.headers) == (
        429,
        "StdinBackpressure",
        True,
    )
    server.fails("Invalid", "POST", f"/processes/{deaf}/signals", json={"signal": "SIGSTOP"})
    server.fails("Invalid", "POST", f"/processes/{deaf}/signals", json={"resize": {"rows": "x", "cols": 1}})
    server.ok("POST", f"/processes/{deaf}/signals", json={"signal": "SIGKILL"})
    assert output(server, deaf)[-1] == {"done": True, "exitCode": 137}


def test_cancel_is_a_state_that_only_what_runs_can_take(server: Server, shared: nodus.Sandbox) -> None:
    process = start(server, "sleep", "60")["metadata"]["name"]
    server.fails("Conflict", "DELETE", f"/processes/{process}")
    patch = {"headers": {"Content-Type": "application/merge-patch+json"}}
    server.ok("PATCH", f"/processes/{process}", json={"spec": {"state": "Cancelled"}}, **patch)
    assert server.ok("GET", f"/processes/{process}?wait=20s")["status"]["phase"] == "Cancelled"
    ended = start(server, "true")["metadata"]["name"]
    assert server.ok("GET", f"/processes/{ended}?wait=20s")["status"]["phase"] == "Succeeded"
    server.fails("Invalid", "PATCH", f"/processes/{ended}", json={"spec": {"state": "Cancelled"}}, **patch)
    server.fails("Invalid", "PATCH", f"/processes/{ended}", json={"spec": {"state": "Suspended"}}, **patch)
    server.fails("FieldImmutable", "PATCH", f"/processes/{ended}", json={"spec": {"command": ["x"]}}, **patch)
    server.ok("DELETE", f"/processes/{ended}")


def test_the_audit_trail_tells_commands_and_files_from_changes_of_the_sandbox(
    server: Server, shared: nodus.Sandbox
) -> None:
    process = start(server, "cat", stdin=True)["metadata"]["name"]
    server.ok("PUT", "/sandboxes/shared/files?path=/workspace/audited", content=b"secret")
    server.ok("DELETE", "/sandboxes/shared/files?path=/workspace/audited")
    with attach(server, process):
        pass
    server.ok("POST", f"/processes/{process}/signals", json={"signal": "SIGKILL"})
    query = {"fieldSelector": f"spec.object.name in (shared,{process}),spec.verb notin (create,patch)", "limit": 5}
    headers = {"Authorization": f"Bearer {server.key}"}
    found = httpx.get(f"{server.url}/apis/nodus.dev/v1/auditevents", params=query, headers=headers)
    specs = [event["spec"] for event in found.json()["items"]]
    seen = [(spec["verb"], spec["object"]["kind"], spec["object"]["subresource"]) for spec in specs]
    assert seen == [
        ("signal", "Process", "signals"), ("attach", "Process", "attach"), ("remove", "Sandbox", "files"),
        ("write", "Sandbox", "files"), ("exec", "Sandbox", "processes"),
    ]  # fmt: skip
    assert "secret" not in found.text


# Attach -----------------------------------------------------------------------------------------------------------


def attach(server: Server, process: str, query: str = "", key: str | None = None) -> Any:
    url = f"ws{server.url[4:]}{BASE}/processes/{process}/attach?{query}"
    headers = {"Authorization": f"Bearer {key or server.key}"}
    return connect(url, subprotocols=["v5.channel.k8s.io"], additional_headers=headers, proxy=None)  # type: ignore[list-item]


def test_attach_carries_a_terminal_with_its_size(server: Server, shared: nodus.Sandbox) -> None:
    process = start(server, "sh", "-i", tty=True, stdin=True, env=[{"name": "PS1", "value": ""}])["metadata"]["name"]
    with attach(server, process) as socket:
        socket.send(b'\x04{"Width": 101, "Height": 37}')
        socket.send(b"\x04nonsense")
        socket.send(b"\x00stty size; exit 6\n")
        messages = list(socket)
    assert b"37 101" in b"".join(m[1:] for m in messages if m[0] == 1)
    ended = json.loads(messages[-1][1:])
    assert (messages[-1][0], ended["status"], ended["details"]["causes"][0]) == (
        3,
        "Failure",
        {"reason": "ExitCode", "message": "6"},
    )
    with attach(server, process) as again:  # many may read, also what is over
        assert json.loads(list(again)[-1][1:]) == ended


def test_attach_carries_large_input_through_to_the_output(server: Server, shared: nodus.Sandbox) -> None:
    process = start(server, "sha256sum", stdin=True)["metadata"]["name"]
    data = os.urandom(3 << 20)
    with attach(server, process, "tty=false") as socket:
        for begin in range(0, len(data), 100_000):
            socket.send(b"\x00" + data[begin : begin + 100_000])
        socket.send(b"\xff\x00")
        messages = list(socket)
    assert messages[0][1:65].decode() == hashlib.sha256(data).hexdigest()
    assert json.loads(messages[-1][1:])["status"] == "Success"


def test_attach_is_refused_like_any_request(server: Server, shared: nodus.Sandbox) -> None:
    process = start(server, "true")["metadata"]["name"]
    for key, name, status, reason in (
        ("nodus_nobody", process, 401, "Unauthorized"),
        (None, "no-such-process", 404, "NotFound"),
    ):
        with pytest.raises(InvalidStatus) as refused:
            attach(server, name, key=key)
        assert refused.value.response.status_code == status
        assert json.loads(refused.value.response.body)["reason"] == reason
    server.fails("BadRequest", "GET", f"/processes/{process}/attach")


# Files ------------------------------------------------------------------------------------------------------------


def test_files_are_written_read_listed_and_deleted(server: Server, shared: nodus.Sandbox) -> None:
    content = os.urandom(1 << 20)
    digest = hashlib.sha256(content).hexdigest()
    path = "/sandboxes/shared/files?path=/workspace/api/a.bin"
    assert server.ok("PUT", f"{path}&mode=755", content=content)["sha256"] == digest
    answer = server.call("GET", path)
    assert answer.content == content
    assert (answer.headers["x-nodus-mode"], answer.headers["content-length"]) == ("0755", str(len(content)))
    [entry] = server.ok("GET", "/sandboxes/shared/files?path=/workspace/api")["items"]
    assert (entry["name"], entry["dir"], entry["size"], entry["mode"]) == ("a.bin", False, len(content), 0o755)
    server.ok("PUT", f"{path}&expectedSHA256={digest}", content=b"next")
    server.fails("SHA256Mismatch", "PUT", f"{path}&expectedSHA256={digest}", content=b"late")
    assert server.call("GET", path).content == b"next"
    server.fails("Invalid", "DELETE", "/sandboxes/shared/files?path=/workspace/api")
    server.ok("DELETE", "/sandboxes/shared/files?path=/workspace/api&recursive=true")
    server.fails("NotFound", "GET", path)


@pytest.mark.parametrize(
    ("path", "reason"),
    [
        ("", "BadRequest"),
        ("relative", "BadRequest"),
        ("/workspace/../etc/shadow", "BadRequest"),
        ("/workspace/%2e%2e/etc/shadow", "BadRequest"),
        ("/workspace/a%00b", "BadRequest"),
        ("/" + "x" * 5000, "BadRequest"),
        ("/etc/shadow", "NotFound"),
        ("/home", "NotFound"),
        ("/dev/zero", "Invalid"),
        ("/proc/1/environ", "Invalid"),
    ],
)
def test_paths_lead_nowhere_else(server: Server, shared: nodus.Sandbox, path: str, reason: str) -> None:
    server.fails(reason, "GET", f"/sandboxes/shared/files?path={path}")


def test_files_of_the_image_are_not_written(server: Server, shared: nodus.Sandbox) -> None:
    server.fails("Invalid", "PUT", "/sandboxes/shared/files?path=/usr/bin/x", content=b"x")
    server.fails("BadRequest", "PUT", "/sandboxes/shared/files?path=/workspace/x&mode=9", content=b"x")
    host, _, port = server.url.removeprefix("http://").partition(":")
    connection = HTTPConnection(host, int(port))
    connection.putrequest("PUT", f"{BASE}/sandboxes/shared/files?path=/workspace/x")
    connection.putheader("Authorization", f"Bearer {server.key}")
    connection.putheader("Content-Length", str(5 << 30))
    connection.endheaders()
    assert json.loads(connection.getresponse().read())["reason"] == "FileTooLarge"
    connection.close()


# Who may ----------------------------------------------------------------------------------------------------------


def test_other_projects_and_lesser_keys_get_nothing(server: Server, shared: nodus.Sandbox) -> None:
    process = start(server, "true")["metadata"]["name"]
    org = server.url + "/apis/nodus.dev/v1"
    admin = {"Authorization": f"Bearer {server.key}"}
    httpx.post(f"{org}/projects", headers=admin, json={"metadata": {"name": "other"}, "spec": {}}).raise_for_status()
    keys = {}
    for name, spec in {
        "elsewhere": {"scopes": ["*"], "projects": ["other"]},
        "reader": {"scopes": ["*:read"], "projects": ["default"]},
    }.items():
        made = httpx.post(f"{org}/apikeys", headers=admin, json={"metadata": {"name": name}, "spec": spec})
        keys[name] = made.raise_for_status().json()["status"]["token"]
    body = {"spec": {"command": ["true"]}}
    for key in keys.values():
        server.fails("Forbidden", "POST", "/sandboxes/shared/processes", key=key, json=body)
        server.fails("Forbidden", "PUT", "/sandboxes/shared/files?path=/workspace/x", key=key, content=b"x")
        server.fails("Forbidden", "POST", f"/processes/{process}/signals", key=key, json={"signal": "SIGKILL"})
        with pytest.raises(InvalidStatus) as refused:
            attach(server, process, key=key)
        assert refused.value.response.status_code == 403
    server.fails("Forbidden", "GET", f"/processes/{process}/output", key=keys["elsewhere"])
    assert server.call("GET", f"/processes/{process}/output", key=keys["reader"]).status_code == 200
    shared.files.write("/workspace/seen", "by readers")
    assert server.call("GET", "/sandboxes/shared/files?path=/workspace/seen", key=keys["reader"]).text == "by readers"
    for path in ("/proc/1/status", "/etc/passwd", "/proc/self/root/etc"):
        assert server.call("GET", f"/sandboxes/shared/files?path={path}", key=keys["reader"]).status_code == 403


# Starting and stopping --------------------------------------------------------------------------------------------


@pytest.mark.parametrize(
    ("spec", "reason", "field"),
    [
        ({"image": "docker.io/library/alpine"}, "Invalid", "spec.image"),
        ({"network": {"egress": {"policy": "Open"}}}, "Unsupported", "spec.network.egress.policy"),
        ({"resources": {"gpu": "WARP9:1"}}, "Invalid", "spec.resources.gpu.type[0]"),
        ({"secrets": ["nowhere"]}, "Invalid", "spec.secrets[0].name"),
        ({"lifecycle": {"idleTimeout": "0s"}}, "Invalid", "spec.lifecycle.idleTimeout"),
        ({"lifecycle": {"onIdle": "Hibernate"}}, "Invalid", "spec.lifecycle.onIdle"),
        ({"lifecycle": {"onIdle": "Delete"}}, "Invalid", "spec.lifecycle.idleTimeout"),
        ({"state": "Suspended"}, "Invalid", "spec.state"),
        ({"continuity": {"mode": "Snapshot"}}, "Unsupported", "spec.continuity.mode"),
        ({"args": ["x"]}, "Invalid", "spec.command"),
        ({"maxCostUSD": 5}, "Invalid", "spec.maxCostUSD"),
    ],
)
def test_what_is_not_here_is_refused_with_its_field(
    server: Server, spec: dict[str, Any], reason: str, field: str
) -> None:
    refused = server.fails(reason, "POST", "/sandboxes", json={"metadata": {"name": "never"}, "spec": spec})
    assert field in [cause["field"] for cause in refused["details"]["causes"]]


def test_shorthands_secrets_and_money(server: Server) -> None:
    secret = {"metadata": {"name": "box-secret"}, "spec": {"stringData": {"TOKEN": "hush"}}}
    server.ok("POST", "/secrets", json=secret)
    spec = {"secrets": ["box-secret"], "maxCostUSD": "2.00", "resources": {"cpu": 0.25, "memory": "256Mi"}}
    server.ok("POST", "/sandboxes", json={"metadata": {"name": "shorthand"}, "spec": spec})
    again = server.call("POST", "/sandboxes", json={"metadata": {"name": "shorthand"}, "spec": spec})
    assert again.status_code == 200
    process = start(server, "sh", "-c", "echo ${#TOKEN}", name="shorthand")["metadata"]["name"]
    assert base64.b64decode(output(server, process)[0]["data"]) == b"4\n"
    patch = {"headers": {"Content-Type": "application/merge-patch+json"}}
    server.fails("FieldImmutable", "PATCH", "/sandboxes/shorthand", json={"spec": {"maxCostUSD": "1.00"}}, **patch)
    server.ok("PATCH", "/sandboxes/shorthand", json={"spec": {"maxCostUSD": "3.00"}}, **patch)
    server.fails("FieldImmutable", "PATCH", "/sandboxes/shorthand", json={"spec": {"image": "nodus/base"}}, **patch)
    server.fails("AlreadyExists", "POST", "/sandboxes", json={"metadata": {"name": "shorthand"}, "spec": {}})
    planned = server.ok("POST", "/sandboxes?dryRun=All", json={"metadata": {"name": "dry"}, "spec": {}})
    assert planned["status"]["estimate"]["costUSD"]["p50"] == "0.00"


def test_idle_sandbox_stops_and_a_command_wakes_it(server: Server) -> None:
    box = server.sandbox("sleepy", idle_timeout="1s")
    box.files.write("/workspace/file", "kept")
    busy = box.exec("sleep", "2.5")
    assert busy.wait() == 0  # what runs keeps it awake
    assert eventually(lambda: server.phase("sleepy") == "Stopped", timeout_s=20)
    assert server.ok("GET", "/sandboxes/sleepy")["status"]["stopReason"] == "Idle"
    assert box.exec("cat", "/workspace/file").stdout.read() == "kept"
    box.delete()


def test_own_command_ends_it(server: Server) -> None:
    box = server.sandbox("task", command=["sh", "-c", "echo working; exit 4"])
    assert eventually(lambda: server.phase("task") == "Stopped", timeout_s=20)
    status = server.ok("GET", "/sandboxes/task")["status"]
    assert (status["stopReason"], status["exitCode"]) == ("CommandExited", 4)
    assert list(box.logs()) == ["working"]
    with pytest.raises(nodus.errors.SandboxNotRunning):
        box.exec("true")


def test_many_commands_at_once(server: Server, shared: nodus.Sandbox) -> None:
    def one(number: int) -> tuple[str, int]:
        process = shared.exec(f"echo {number}; exit {number}")
        return process.stdout.read(), process.wait()

    with ThreadPoolExecutor(8) as pool:
        assert list(pool.map(one, range(24))) == [(f"{number}\n", number) for number in range(24)]


# Deaths -----------------------------------------------------------------------------------------------------------


def test_server_killed_in_the_middle_loses_nothing(server: Server) -> None:
    box = server.sandbox("survivor")
    process = box.exec("for i in 1 2 3 4 5 6; do echo $i; sleep 0.4; done; exit 7")
    lines = iter(process.stdout)
    assert next(lines) == "1\n"
    server.kill()
    with ThreadPoolExecutor(1) as pool:
        rest = pool.submit(lambda: list(lines))
        server.up()
        assert rest.result(30) == [f"{number}\n" for number in range(2, 7)]
    assert process.wait() == 7
    assert eventually(lambda: process.refresh() or process.phase == "Failed")
    assert box.exec("echo alive").stdout.read() == "alive\n"
    box.delete()


def test_supervisor_killed_brings_another_with_the_same_files(server: Server) -> None:
    box = server.sandbox("phoenix")
    box.files.write("/workspace/file", "kept")
    process = box.exec("sleep", "600")
    attempt = server.ok("GET", f"/processes/{process.name}")["spec"]["attempt"]
    status = json.loads((server.data_dir / "attempts" / attempt / "status.json").read_text())
    os.kill(int(status["supervisor"]), signal.SIGKILL)
    ended: Callable[[], Any] = lambda: server.ok("GET", f"/processes/{process.name}")["status"].get("reason")  # noqa: E731
    assert eventually(lambda: ended() == "SandboxLost", timeout_s=20)
    assert box.exec("cat", "/workspace/file").stdout.read() == "kept"
    box.refresh()
    assert (box.phase, box.status["attempt"]["epoch"]) == ("Running", 2)
    assert "Recovering" in [event["reason"] for event in box.events()]
    box.delete()
