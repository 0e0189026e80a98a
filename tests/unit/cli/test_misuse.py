"""Commands used wrongly: one line and an exit code, never a traceback and never a guess."""

from __future__ import annotations

from pathlib import Path

import click
import pytest

from nodus.cli import main as cli
from nodus.cli.formats import check_format
from nodus.cli.jsonpath import JsonPathError, render


@pytest.fixture
def offline(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    """A user with a key of a server that isn't there; none of these commands gets as far as asking it."""
    monkeypatch.setenv("HOME", str(tmp_path))
    monkeypatch.setenv("NODUS_API_URL", "http://127.0.0.1:9")
    monkeypatch.setenv("NODUS_API_KEY", "k")


@pytest.mark.usefixtures("offline")
@pytest.mark.parametrize(
    ("words", "says"),
    [
        ("delete tj/one --all", "'one' is a name"),
        ("delete tj/one -l a=b", "'one' is a name"),
        ("wait tj/one --for=jsonpath=", "names nothing to look at"),
        ("wait tj/one --for=condition=", "names nothing to look at"),
        ("get tj -o jsonpath", "unknown output format"),
        ("get tj -o jsonpath=", "unknown output format"),
        ("volume rm data /", "`nodus volume clear data`"),
        ("create foo bar", "There are apikey, budget, member, project, sandbox, secret, serviceaccount,"),
    ],
)
def test_wrong_usage_ends_with_two(words: str, says: str, capsys: pytest.CaptureFixture[str]) -> None:
    assert cli.main(words.split()) == 2
    assert says in capsys.readouterr().err


def test_a_file_that_cannot_be_written_is_a_line(
    monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str], tmp_path: Path
) -> None:
    @click.command()
    def command() -> None:
        (tmp_path / "none" / "file").write_text("x")

    monkeypatch.setattr(cli, "root", command)
    assert cli.main([]) == 1
    assert capsys.readouterr().err == f"error: {tmp_path / 'none' / 'file'}: No such file or directory\n"


@pytest.mark.parametrize("template", ["{", "a}b", "{.a}{", "{{.a}}"])
def test_half_a_brace_is_refused(template: str) -> None:
    with pytest.raises(JsonPathError, match="brace"):
        render(template, {"a": 1})


def test_jsonpath_needs_a_template() -> None:
    assert check_format("jsonpath={.a}", ("jsonpath",)) == "jsonpath={.a}"
    with pytest.raises(click.UsageError, match="Write jsonpath=TEMPLATE"):
        check_format("jsonpath", ("jsonpath",))


def test_relative_certificates_are_found_by_a_server_that_works_elsewhere(
    monkeypatch: pytest.MonkeyPatch, tmp_path: Path
) -> None:
    from nodus.server import lifecycle

    seen: list[lifecycle.UpOptions] = []
    monkeypatch.setattr(lifecycle, "up", lambda options, on_ready: seen.append(options))
    monkeypatch.setenv("HOME", str(tmp_path))
    monkeypatch.chdir(tmp_path)
    assert cli.main(["up", "--detach", "--data-dir", "data", "--tls-cert", "c.pem", "--tls-key", "k.pem"]) == 0
    assert (seen[0].tls_cert, seen[0].tls_key) == (tmp_path / "c.pem", tmp_path / "k.pem")


@pytest.mark.parametrize(("left", "issued"), [((), True), (("keys.json",), False), (("server.json",), True)])
def test_only_a_data_directory_made_anew_gets_another_key(
    monkeypatch: pytest.MonkeyPatch, tmp_path: Path, left: tuple[str, ...], issued: bool
) -> None:
    from nodus.client.config import config_path, save_context
    from nodus.server import lifecycle

    seen: list[lifecycle.UpOptions] = []
    monkeypatch.setattr(lifecycle, "up", lambda options, on_ready: seen.append(options))
    monkeypatch.setenv("HOME", str(tmp_path))
    data = tmp_path / "data"
    data.mkdir()
    for name in left:
        (data / name).write_text("{}")
    save_context(config_path(), name="nodus", url="http://127.0.0.1:1", org="nodus", api_key="k", data_dir=data)
    assert cli.main(["up", "--detach", "--data-dir", str(data)]) == 0
    assert seen[0].issue_key is issued


@pytest.mark.usefixtures("offline")
@pytest.mark.parametrize(
    ("words", "says"),
    [
        ("apply -f missing.yaml", "missing.yaml can't be read: No such file or directory"),
        ("create -f missing.yaml", "missing.yaml can't be read"),
        ("delete -f missing.yaml", "missing.yaml can't be read"),
        ("diff -f missing.yaml", "missing.yaml can't be read"),
        ("apply -f broken.yaml", "broken.yaml, line 1, column 5: not valid YAML"),
        ("apply -f empty.yaml", "there are no objects in empty.yaml"),
    ],
)
def test_what_is_wrong_with_a_file_is_no_wrong_usage(
    words: str, says: str, capsys: pytest.CaptureFixture[str], tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.chdir(tmp_path)
    Path("broken.yaml").write_text("a: [")
    Path("empty.yaml").write_text("")
    assert cli.main(words.split()) == 1
    said = capsys.readouterr().err
    assert said.startswith(f"error: {says}")
    assert "usage:" not in said
