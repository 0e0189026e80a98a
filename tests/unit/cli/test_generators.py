"""`nodus create KIND NAME`: what flags make, and that secrets stay secret."""

from __future__ import annotations

import io
import json
from pathlib import Path
from typing import Any

import pytest
import yaml

from nodus.cli import main as cli
from tests.unit.client.fake_server import FakeServer, Reply, serving

NEW = {"sandboxes": "Sandbox", "agentgroups": "AgentGroup", "inferenceendpoints": "InferenceEndpoint"}
KINDS = [{"name": plural, "kind": kind, "namespaced": True} for plural, kind in NEW.items()]


@pytest.fixture(autouse=True)
def home(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    monkeypatch.setenv("HOME", str(tmp_path))
    monkeypatch.setenv("NODUS_API_URL", "http://127.0.0.1:9")
    monkeypatch.setenv("NODUS_API_KEY", "nodus_k")
    monkeypatch.chdir(tmp_path)


def planned(capsys: pytest.CaptureFixture[str], *words: str) -> Any:
    """Return what a command would create; nothing is sent."""
    assert cli.main(["create", *words, "--dry-run=client", "-o", "yaml"]) == 0
    return yaml.safe_load(capsys.readouterr().out)


def test_volume_leaves_defaults_to_the_server(capsys: pytest.CaptureFixture[str]) -> None:
    made = planned(capsys, "volume", "data", "--size", "200Gi", "--access-mode", "ReadOnlyMany", "-p", "research")
    assert made == {
        "apiVersion": "nodus.dev/v1", "kind": "Volume", "metadata": {"name": "data", "namespace": "research"},
        "spec": {"size": "200Gi", "accessMode": "ReadOnlyMany"},
    }  # fmt: skip
    assert planned(capsys, "Volumes", "data")["spec"] == {}
    assert "namespace" not in planned(capsys, "project", "research")["metadata"]


@pytest.mark.parametrize(
    ("words", "spec"),
    [
        (
            "sandbox dev --cpu 2 --memory 4Gi --gpu L4 --idle-timeout 10m --secret a --secret b --max-cost 2",
            {"image": "nodus/agent-tools", "resources": {"cpu": "2", "memory": "4Gi", "gpu": "L4"},
             "lifecycle": {"idleTimeout": "10m"}, "secrets": ["a", "b"], "maxCostUSD": "2"},
        ),
        (
            "agentgroup g --agent w --max-active 0 --max-pending 5 --max-cost 0.60",
            {"agent": "w", "limits": {"maxActive": 0, "maxPending": 5}, "maxCostUSD": "0.60"},
        ),
        (
            "agentrun r --agent w --prompt hello --parallelism 3",
            {"agent": "w", "input": "hello", "parallelism": 3},
        ),
        (
            "inferenceendpoint e --model m --rpm 120 --max-concurrent 8 --allowed-key ci --max-cost 50",
            {"model": "m", "limits": {"rpm": 120, "maxConcurrent": 8}, "allowedKeys": ["ci"], "maxCostUSD": "50"},
        ),
    ],
)  # fmt: skip
def test_specs_of_generators(capsys: pytest.CaptureFixture[str], words: str, spec: dict[str, Any]) -> None:
    assert planned(capsys, *words.split())["spec"] == spec


def test_what_has_no_generator_is_told_to_come_as_a_manifest(capsys: pytest.CaptureFixture[str]) -> None:
    assert cli.main(["create", "tj", "x"]) == 2
    assert "can't be made from flags; write a manifest" in capsys.readouterr().err
    assert cli.main(["create", "-o", "yaml", "volume", "x"]) == 2
    assert cli.main(["create", "agentgroup", "x"]) == 2
    assert "--agent" in capsys.readouterr().err


class Stdin:
    """Standard input with bytes."""

    def __init__(self, content: bytes) -> None:
        self.buffer = io.BytesIO(content)


def test_secret_values_go_to_the_server_and_nowhere_else(
    capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch, tmp_path: Path
) -> None:
    (tmp_path / "token").write_text("from-a-file\n")
    (tmp_path / ".env").write_text("# comment\nexport B='quoted value'\n\nC=plain=x\n")
    monkeypatch.setattr("sys.stdin", Stdin(b"from-stdin"))
    with serving() as server:
        server.script = lambda asked: Reply(asked.json | {"spec": {}}, 201)
        monkeypatch.setenv("NODUS_API_URL", server.url)
        words = ["-v", "secret", "create", "s", "--from-literal", "A=a=literal", "--from-file", "D=-"]
        assert cli.main([*words, "--from-file", "token", "--from-env-file", ".env", "--type", "Opaque"]) == 0
        sent = server.asked[0].json["spec"]
    assert sent["stringData"] == {
        "A": "a=literal", "B": "quoted value", "C": "plain=x", "D": "from-stdin", "token": "from-a-file\n",
    }  # fmt: skip
    said = capsys.readouterr()
    assert said.out == "secret/s created\n" and "POST" in said.err
    for value in sent["stringData"].values():
        assert value.strip() not in said.out + said.err
    assert planned(capsys, "secret", "s", "--from-literal", "A=hush")["spec"]["stringData"] == {"A": "(hidden)"}
    manifest = {"apiVersion": "nodus.dev/v1", "kind": "Secret", "metadata": {"name": "s"}}
    manifest["spec"] = {"stringData": {"A": "hush"}}
    (tmp_path / "secret.json").write_text(json.dumps(manifest))
    for verb in ("apply", "create"):
        assert cli.main([verb, "-f", "secret.json", "--dry-run=client", "-o", "yaml"]) == 0
        assert "hush" not in capsys.readouterr().out


@pytest.mark.parametrize(
    "words",
    [
        ["--from-literal", "hf_hush"],
        ["--from-literal", "=hush"],
        ["--from-literal", "A=hush", "--from-literal", "A=hush2"],
        ["--from-file", "A=missing"],
        ["--from-file", "-"],
        ["--from-file", "A=binary"],
        ["--from-file", "A=large"],
        ["--from-env-file", "bad.env"],
        [],
    ],
    ids=" ".join,
)
def test_bad_secret_values_are_refused_unquoted(
    words: list[str], capsys: pytest.CaptureFixture[str], tmp_path: Path
) -> None:
    (tmp_path / "binary").write_bytes(b"hush\xff")
    (tmp_path / "large").write_bytes(b"x" * (1024 * 1024 + 1))
    (tmp_path / "bad.env").write_text("A=1\nhush\n")
    assert cli.main(["create", "secret", "s", *words]) == 2
    said = capsys.readouterr()
    assert "hush" not in said.err + said.out


def test_the_key_of_an_apikey_is_the_only_line_of_output(
    capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    def script(asked: Any) -> Reply:
        return Reply(asked.json | {"status": {"token": "nodus_secret"}}, 201)

    with serving() as server:
        server.script = script
        monkeypatch.setenv("NODUS_API_URL", server.url)
        words = [
            "create",
            "apikey",
            "ci",
            "--scopes",
            "jobs:write,volumes:read",
            "--scopes",
            "x:read",
            "--expires",
            "720h",
        ]
        assert cli.main(words) == 0
        spec = server.asked[0].json["spec"]
        assert spec == {"scopes": ["jobs:write", "volumes:read", "x:read"], "expires": "720h"}
        assert capsys.readouterr().out == "nodus_secret\n"
        # Nobody can read it again: that it is there already must not look like a key without a key.
        server.script = lambda asked: Reply(asked.json | {"status": {"phase": "Active"}}, 200)
        assert cli.main(words) == 1
        said = capsys.readouterr()
        assert "nodus delete apikey/ci" in said.err and said.out == ""
    assert cli.main(["create", "apikey", "ci", "--expires", "soon"]) == 2


def test_unknown_kinds_of_this_client_are_looked_up(
    capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    def script(asked: Any) -> Reply:
        return Reply({"resources": KINDS}) if asked.method == "GET" else Reply(json.loads(asked.body), 201)

    with serving() as server:
        fake: FakeServer = server
        fake.script = script
        monkeypatch.setenv("NODUS_API_URL", fake.url)
        assert cli.main(["create", "inferenceendpoint", "bot", "--model", "m"]) == 0
        assert fake.asked[-1].path == "/apis/nodus.dev/v1/namespaces/default/inferenceendpoints"
    assert capsys.readouterr().out == "inferenceendpoint/bot created\n"
