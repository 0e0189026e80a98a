"""Contexts of ``~/.nodus/config``: chosen, changed, taken away; what isn't known stays."""

from __future__ import annotations

import json
import os
import stat
from pathlib import Path
from typing import Any

import pytest
import yaml

from nodus.cli import main as cli
from nodus.client.config import ConfigError, load_config, read_credentials, resolve, save_context
from nodus.client.contexts import change_context, contexts, find_context, free_name, remove_context, use_context


@pytest.fixture
def path(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    config = tmp_path / ".nodus" / "config"
    monkeypatch.setenv("NODUS_CONFIG", str(config))
    for name, port in (("acme", 1), ("labs", 2)):
        save_context(
            config, name=name, url=f"http://127.0.0.1:{port}", org=name, api_key=f"nodus_{name}", key_name=f"cli-{name}"
        )
    return config


def run(capsys: pytest.CaptureFixture[str], *words: str) -> tuple[int, str, str]:
    code = cli.main(["config", *words])
    said = capsys.readouterr()
    return code, said.out, said.err


def test_contexts_are_listed_with_the_current_one_marked(path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    assert run(capsys, "get-contexts")[1].splitlines() == [
        "CURRENT   NAME   ORG    PROJECT   SERVER",
        "*         acme   acme   default   http://127.0.0.1:1",
        "          labs   labs   default   http://127.0.0.1:2",
    ]
    assert run(capsys, "get-contexts", "-o", "name")[1] == "acme\nlabs\n"
    assert run(capsys, "current-context")[1] == "acme\n"
    assert find_context(path).key_name == "cli-acme"


def test_another_context_is_chosen_by_name_or_organization(path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    assert run(capsys, "use-context", "labs") == (0, 'Switched to context "labs".\n', "")
    assert resolve().api_key == "nodus_labs"
    assert resolve(org="acme").api_key == "nodus_acme"
    environ = {"NODUS_CONFIG": str(path), "NODUS_ORG": "acme"}
    assert resolve(environ=environ).api_key == "nodus_acme"
    assert resolve(environ=environ | {"NODUS_ORG": "unknown"}).api_key == "nodus_labs"
    with pytest.raises(ConfigError, match="organization 'nope'"):
        resolve(org="nope")
    assert resolve(org="nope", api_key="k").api_key == "k"


def test_what_is_not_there_is_refused_with_what_is(path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    for words in (["use-context", "nope"], ["set-context", "nope", "--project", "x"], ["delete-context", "nope"]):
        code, _, err = run(capsys, *words)
        assert (code, "acme, labs" in err) == (1, True), words
    assert run(capsys, "set-context")[0] == 2
    assert run(capsys, "set-context", "--server", "h:1")[0] == 2
    path.unlink()
    assert run(capsys, "current-context")[0] == 1
    assert run(capsys, "get-contexts")[1] == "CURRENT   NAME   ORG   PROJECT   SERVER\n"


def test_project_and_server_change(path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    assert run(capsys, "set-context", "--project", "research")[1] == 'Context "acme" modified.\n'
    assert resolve().project == "research"
    assert run(capsys, "set-context", "labs", "--server", "https://h:9/")[0] == 0
    assert resolve(context="labs").url == "https://h:9"
    assert resolve(context="labs").api_key == "nodus_labs"
    assert [item["name"] for item in load_config(path)["clusters"]] == ["127.0.0.1:1", "h:9"]


def test_context_goes_with_user_key_and_server(path: Path) -> None:
    remove_context(path, "acme")
    content = load_config(path)
    for plural in ("contexts", "users", "clusters"):
        assert len(content[plural]) == 1, plural
    assert content["current-context"] == ""
    assert read_credentials(path) == {"labs": "nodus_labs"}
    assert resolve().api_key is None


@pytest.mark.parametrize(
    "environ", [{"NODUS_CONTEXT": "labs"}, {"NODUS_ORG": "labs"}, {"NODUS_CONTEXT": "labs", "NODUS_ORG": "acme"}]
)
def test_logout_ends_the_context_that_commands_use(
    path: Path, capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch, environ: dict[str, str]
) -> None:
    for name, value in environ.items():
        monkeypatch.setenv(name, value)
    assert cli.main(["logout"]) == 0  # nobody listens there, which keeps nobody from logging out
    assert "Logged out of context 'labs'" in capsys.readouterr().out
    assert read_credentials(path) == {"acme": "nodus_acme"}
    assert find_context(path).name == "acme"


def test_files_stay_private_and_what_others_wrote_stays(path: Path) -> None:
    content: dict[str, Any] = load_config(path) | {"preferences": {"colors": True}}
    content["contexts"][0]["context"]["extensions"].append({"name": "other.dev/x", "extension": {"y": 1}})
    path.write_text(yaml.safe_dump(content))
    change_context(path, "acme", project="p")
    use_context(path, "labs")
    save_context(path, name="acme", url="http://127.0.0.1:1", org="acme", api_key="nodus_new")
    written = json.loads(path.read_text())
    assert written["preferences"] == {"colors": True}
    acme = next(item["context"] for item in written["contexts"] if item["name"] == "acme")
    assert {"name": "other.dev/x", "extension": {"y": 1}} in acme["extensions"]
    for file in (path, path.with_name("credentials")):
        assert stat.S_IMODE(os.stat(file).st_mode) == 0o600


def test_login_takes_the_name_of_its_own_server_or_a_free_one(path: Path) -> None:
    assert free_name(path, "acme", "http://127.0.0.1:1") == "acme"
    assert free_name(path, "acme", "http://elsewhere") == "acme-2"
    assert free_name(path, "fresh", "http://elsewhere") == "fresh"


def test_published_clients_file_is_understood(path: Path) -> None:
    path.write_text("apiVersion: v1\nkind: Config\ncurrent-context: ''\ncontexts: null\nclusters: null\nusers: null\n")
    assert contexts(path) == []
    assert resolve().api_key is None
    save_context(path, name="acme", url="http://127.0.0.1:1", org="acme", api_key="k")
    assert find_context(path).name == "acme"


def test_view_shows_no_key(path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    content = load_config(path)
    content["users"].append({"name": "static", "user": {"token": "nodus_static"}})
    path.write_text(json.dumps(content))
    shown = run(capsys, "view")[1]
    assert "nodus_" not in shown
    assert yaml.safe_load(shown)["current-context"] == "acme"
