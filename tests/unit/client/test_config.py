"""Where a client finds its server, key and project."""

from __future__ import annotations

import json
import os
import stat
import sys
from pathlib import Path
from typing import Any

import pytest

from nodus.client.config import ConfigError, local_context, read_credentials, resolve, save_context


@pytest.fixture
def path(tmp_path: Path) -> Path:
    return tmp_path / ".nodus" / "config"


def env(path: Path, **given: str) -> dict[str, str]:
    return {"NODUS_CONFIG": str(path), "PATH": os.environ["PATH"], **given}


def save(path: Path, name: str = "acme", url: str = "http://127.0.0.1:9000", key: str = "nodus_a", **more: Any) -> None:
    save_context(path, name=name, url=url, org=more.pop("org", name), api_key=key, **more)


def test_without_anything_the_local_server_is_meant(path: Path) -> None:
    found = resolve(environ=env(path))
    assert (found.url, found.api_key, found.project, found.context) == ("http://127.0.0.1:8080", None, "default", None)


def test_saved_context_is_found(path: Path) -> None:
    save(path, project="research")
    found = resolve(environ=env(path))
    assert (found.url, found.api_key, found.project) == ("http://127.0.0.1:9000", "nodus_a", "research")
    assert (found.context, found.org) == ("acme", "acme")


def test_environment_wins_over_the_file_and_arguments_over_both(path: Path) -> None:
    save(path)
    environ = env(path, NODUS_API_URL="http://env:1/base/", NODUS_API_KEY="nodus_env", NODUS_PROJECT="envp")
    found = resolve(environ=environ)
    assert (found.url, found.api_key, found.project) == ("http://env:1/base", "nodus_env", "envp")
    assert resolve(environ=environ, project="mine").project == "mine"


def test_empty_variables_count_as_unset(path: Path) -> None:
    save(path)
    found = resolve(environ=env(path, NODUS_API_KEY="", NODUS_API_URL="", NODUS_PROJECT="", NODUS_CONTEXT=""))
    assert (found.url, found.api_key, found.project) == ("http://127.0.0.1:9000", "nodus_a", "default")


def test_named_context_wins_over_the_current_one(path: Path) -> None:
    save(path)
    save(path, "other", "http://127.0.0.1:9001", "nodus_b")
    assert resolve(environ=env(path)).api_key == "nodus_a"
    assert resolve(environ=env(path, NODUS_CONTEXT="other")).api_key == "nodus_b"
    assert resolve(environ=env(path), context="other").url == "http://127.0.0.1:9001"


def test_unknown_context_names_those_there_are(path: Path) -> None:
    save(path)
    with pytest.raises(ConfigError, match="no context 'nope'") as raised:
        resolve(environ=env(path), context="nope")
    assert "acme" in str(raised.value.fix)


@pytest.mark.parametrize(
    ("url", "fix"),
    [
        ("127.0.0.1:9000", "http://127.0.0.1:9000"), ("localhost", "http://localhost"),
        ("ftp://x", "http://127.0.0.1:8080"), ("http://", "http://127.0.0.1:8080"),
    ],
)  # fmt: skip
def test_address_without_http_is_refused_with_one_that_has_it(path: Path, url: str, fix: str) -> None:
    with pytest.raises(ConfigError, match="is no address of a server") as raised:
        resolve(environ=env(path, NODUS_API_URL=url))
    assert fix in str(raised.value.fix)


def test_runtime_socket_is_used_without_key_and_address(path: Path) -> None:
    save(path)
    found = resolve(environ=env(path, NODUS_RUNTIME_SOCKET="/run/x.sock"))
    assert (found.socket, found.api_key) == ("/run/x.sock", None)
    assert resolve(environ=env(path, NODUS_RUNTIME_SOCKET="/run/x.sock", NODUS_API_KEY="k")).socket is None


def test_yaml_and_static_tokens_are_read(path: Path) -> None:
    path.parent.mkdir()
    path.write_text("""
apiVersion: v1
kind: Config
current-context: a   # a comment
clusters: [{name: c, cluster: {server: "http://h:1", certificate-authority: /ca.pem}}]
contexts:
- name: a
  context: {cluster: c, user: u, namespace: p}
users:
- name: u
  user: {token: nodus_static}
""")
    found = resolve(environ=env(path))
    assert (found.url, found.api_key, found.project) == ("http://h:1", "nodus_static", "p")
    assert found.certificate_authority == "/ca.pem"


def test_foreign_credential_plugin_is_asked(path: Path) -> None:
    save(path)
    content = json.loads(path.read_text())
    program = "import json; print(json.dumps({'status': {'token': 'nodus_plugin'}}))"
    content["users"][0]["user"]["exec"] |= {"command": sys.executable, "args": ["-c", program]}
    path.write_text(json.dumps(content))
    path.with_name("credentials").unlink()
    assert resolve(environ=env(path)).api_key == "nodus_plugin"


@pytest.mark.parametrize("text", ["{broken: [", "- a list\n"])
def test_broken_file_is_one_clear_error(path: Path, text: str) -> None:
    path.parent.mkdir()
    path.write_text(text)
    with pytest.raises(ConfigError, match=r"\.nodus/config"):
        resolve(environ=env(path))


def test_broken_credentials_are_one_clear_error(path: Path) -> None:
    save(path)
    path.with_name("credentials").write_text("{")
    with pytest.raises(ConfigError, match="credentials can't be read"):
        resolve(environ=env(path))


def test_saving_keeps_what_is_there_and_is_private(path: Path) -> None:
    path.parent.mkdir()
    path.write_text("current-context: mine\nmy-field: 1\ncontexts: [{name: mine, context: {cluster: c}}]\n")
    save(path)
    content = json.loads(path.read_text())
    assert (content["current-context"], content["my-field"]) == ("mine", 1)
    assert [item["name"] for item in content["contexts"]] == ["mine", "acme"]
    assert read_credentials(path) == {"acme": "nodus_a"}
    for file in (path, path.with_name("credentials")):
        assert stat.S_IMODE(file.stat().st_mode) == 0o600


def test_saving_again_replaces_the_context(path: Path) -> None:
    save(path)
    save(path, url="http://127.0.0.1:9005", key="nodus_new")
    found = resolve(environ=env(path))
    assert (found.url, found.api_key) == ("http://127.0.0.1:9005", "nodus_new")
    assert len(json.loads(path.read_text())["contexts"]) == 1


def test_key_stands_in_no_configuration_file(path: Path) -> None:
    save(path)
    assert "nodus_a" not in path.read_text()


def test_local_server_finds_its_own_context_again(path: Path, tmp_path: Path) -> None:
    fresh = local_context(path, tmp_path / "data")
    assert (fresh.name, fresh.api_key, fresh.is_current) == ("nodus", None, True)
    save(path, "nodus", data_dir=tmp_path / "data")
    known = local_context(path, tmp_path / "data")
    assert (known.name, known.url, known.api_key, known.is_current) == (
        "nodus",
        "http://127.0.0.1:9000",
        "nodus_a",
        True,
    )


def test_second_local_server_gets_a_name_of_its_own(path: Path, tmp_path: Path) -> None:
    save(path, "nodus", data_dir=tmp_path / "data")
    other = local_context(path, tmp_path / "other")
    assert (other.name, other.api_key, other.is_current) == ("nodus-2", None, False)
