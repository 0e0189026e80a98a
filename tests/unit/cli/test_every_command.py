"""Every command: its help shows an example, the example is right, and nonsense gets a line, not a traceback."""

from __future__ import annotations

import re
import shlex
from collections.abc import Iterator
from pathlib import Path

import click
import pytest

from nodus.cli import main as cli
from nodus.cli.main import COMMANDS, SECTIONS, root

EXAMPLES = re.compile(r"^\s*Examples?:\n(?P<lines>(?:\s{4,}\S.*\n?)+)", re.MULTILINE)
EXIT_CODES = (0, 1, 2, 124, 125, 130)
NONSENSE = (
    ["--no-such-flag"],
    ["nope/nope"],
    ["tj/"],
    ["/"],
    ["", ""],
    ["a\0b"],
    ["\ud800", "x"],
    ["--", "-x", "y" * 5000],
)


def commands(command: click.Command, path: tuple[str, ...] = ()) -> Iterator[tuple[str, ...]]:
    """Yield the words of every command, groups included, hidden ones too."""
    yield path
    if isinstance(command, click.Group):
        context = click.Context(command)
        for name in command.list_commands(context):
            inner = command.get_command(context, name)
            assert inner is not None, name
            yield from commands(inner, (*path, name))


ALL = [path for path in commands(root) if path]


def help_of(path: tuple[str, ...], capsys: pytest.CaptureFixture[str]) -> str:
    assert cli.main([*path, "--help"]) == 0
    return capsys.readouterr().out


@pytest.fixture(autouse=True)
def away(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    """A user in an empty folder, whose server is away."""
    monkeypatch.chdir(tmp_path)
    monkeypatch.setenv("HOME", str(tmp_path))
    monkeypatch.setenv("NODUS_API_URL", "http://127.0.0.1:9")
    monkeypatch.setenv("NODUS_API_KEY", "nodus_k")
    monkeypatch.setenv("NODUS_DATA_DIR", str(tmp_path / "data"))
    monkeypatch.setenv("EDITOR", "true")
    monkeypatch.delenv("VISUAL", raising=False)


@pytest.mark.parametrize("path", ALL, ids=" ".join)
def test_help_is_short_and_shows_examples_that_parse(
    path: tuple[str, ...], capsys: pytest.CaptureFixture[str], tmp_path: Path
) -> None:
    text = help_of(path, capsys)
    assert len(text.splitlines()) <= 75, "the help does not fit on a screen and a half"
    found = EXAMPLES.search(text)
    assert found is not None, text
    examples = [line.strip() for line in found["lines"].splitlines() if line.strip()]
    calls = [words for line in examples for words in calls_of(line)]
    assert any(words[: len(path)] == list(path) for words in calls), f"no example runs nodus {' '.join(path)}"
    for words in calls:
        for word in words:
            if word.startswith("./"):  # some arguments must exist
                (tmp_path / word).parent.mkdir(parents=True, exist_ok=True)
                (tmp_path / word).touch()
        parse(root, "nodus", words, None)


def calls_of(line: str) -> Iterator[list[str]]:
    """Yield the words of each ``nodus`` in a line of shell."""
    for call in re.findall(r"(?:^|[\s(|])nodus (.*?)(?:\)|\s\||\s>|$)", re.sub(r"\s{2,}#.*", "", line)):
        yield shlex.split(call, comments=True)


def parse(command: click.Command, name: str, words: list[str], parent: click.Context | None) -> None:
    """Parse a call as `nodus` does, without running it."""
    context = command.make_context(name, list(words), parent)
    if isinstance(command, click.Group):
        left = [*context._protected_args, *context.args]
        if left:
            inner_name, inner, rest = command.resolve_command(context, left)
            assert inner is not None
            parse(inner, str(inner_name), rest, context)
        else:
            assert command.invoke_without_command or "--help" in words, words


@pytest.mark.parametrize("path", [path for path in ALL if path != ("login",)], ids=" ".join)
def test_nonsense_is_refused_in_lines(path: tuple[str, ...], capsys: pytest.CaptureFixture[str]) -> None:
    for words in NONSENSE:
        code = cli.main([*path, *words])
        said = capsys.readouterr()
        assert code in EXIT_CODES, (words, code)
        assert "Traceback" not in said.err + said.out
        if code:
            assert said.err.startswith(("error:", "Error from server", "usage:")), (words, said.err)
            assert len(said.err.splitlines()) <= 12, (words, said.err)


@pytest.mark.parametrize("path", ALL, ids=" ".join)
def test_a_mistyped_flag_is_told_the_right_one(path: tuple[str, ...], capsys: pytest.CaptureFixture[str]) -> None:
    assert cli.main([*path, "--hepl"]) == 2
    said = capsys.readouterr().err.splitlines()
    assert "--help" in said[0] and len(said) <= 2


def test_mistyped_commands_and_kinds_are_told_the_right_one(capsys: pytest.CaptureFixture[str]) -> None:
    for words, meant in (
        (["gte", "tj"], "'get'"),
        (["volume", "putt"], "'put'"),
        (["create", "secert", "x"], "'secret'"),
    ):
        assert cli.main(words) == 2
        assert f"Did you mean {meant}?" in capsys.readouterr().err
    assert cli.main(["frobnicate"]) == 2
    assert "`nodus --help` lists the commands" in capsys.readouterr().err


def test_help_of_nodus_names_every_command_in_its_section(capsys: pytest.CaptureFixture[str]) -> None:
    text = help_of((), capsys)
    for section, names in SECTIONS.items():
        block = text.partition(f"\n{section}:\n")[2].partition("\n\n")[0]
        assert [line.split()[0] for line in block.splitlines() if line[:3].strip()] == list(names)
    assert cli.main(["help", "get"]) == 0 and "--field-selector" in capsys.readouterr().out
    assert len(COMMANDS) == sum(len(names) for names in SECTIONS.values())
