"""``nodus edit``."""

from __future__ import annotations

import os
import shlex
import shutil
import subprocess
import sys
import tempfile
from pathlib import Path

import click

from nodus.cli.difference import written_part
from nodus.cli.formats import to_yaml
from nodus.cli.manifests import parse_object
from nodus.cli.options import objects_argument
from nodus.cli.render import error_lines
from nodus.cli.session import Session, connected
from nodus.cli.targets import parse_target
from nodus.client.apply import merge_patch_between
from nodus.client.resources import JsonObject
from nodus.core.errors import NodusError

EDITORS = ("vi", "nano")
NOTE = "Lines that begin with # are ignored. Save and close to change the object; an empty file changes nothing."


@click.command()
@objects_argument("KIND/NAME")
@connected()
def command(session: Session, what: tuple[str, ...]) -> int:
    """Change an object in your editor. What the server refuses comes back with the reason.

    The editor is $VISUAL or $EDITOR. Only the fields you change are sent.

    \b
    Example:
      EDITOR=nano nodus edit tj/my-grpo
    """
    editor = _editor()
    target = parse_target(session, what)
    label = f"{target.kind.singular}/{target.name}"
    before = written_part(session.run(session.get(target.kind, str(target.name), project=target.project)))
    note, text = [NOTE], to_yaml(before)
    while True:
        edited = _edited(editor, label, note, text)
        if not edited.strip() or edited == text:
            if len(note) > 1:
                print(
                    *note[1:],
                    f"{label} was not changed; your text is in {_kept(label, edited)}",
                    sep="\n",
                    file=sys.stderr,
                )
                return 1
            print(f"{label} unchanged")
            return 0
        text = edited
        try:
            patch = _patch(label, before, edited)
            if not patch:
                print(f"{label} unchanged")
                return 0
            session.run(session.resources.patch(target.kind, str(target.name), patch, project=target.project))
        except click.UsageError as error:
            note = [NOTE, error.format_message()]
        except NodusError as error:
            note = [NOTE, *error_lines(error)]
        else:
            print(f"{label} edited")
            return 0


def _editor() -> list[str]:
    """Return the editor's command line."""
    named = os.environ.get("VISUAL") or os.environ.get("EDITOR")
    words = shlex.split(named) if named else [found for found in EDITORS if shutil.which(found)][:1]
    if not words:
        raise NodusError("there is no editor", fix="Set EDITOR, such as EDITOR=nano.")
    return words


def _edited(editor: list[str], label: str, note: list[str], text: str) -> str:
    """Return what the user makes of the text, without the lines of comment."""
    with tempfile.TemporaryDirectory(prefix="nodus-edit-") as folder:
        path = Path(folder) / f"{label.replace('/', '-')}.yaml"
        comments = "".join(f"# {line}\n" for entry in note for line in entry.splitlines())
        path.write_text(f"{comments}#\n{text}", encoding="utf-8")
        try:
            done = subprocess.run([*editor, str(path)], check=False)
        except OSError as error:
            raise NodusError(f"the editor {editor[0]!r} can't be started: {error.strerror}") from error
        if done.returncode:
            raise NodusError(f"the editor {editor[0]!r} ended with exit code {done.returncode}; nothing was changed")
        try:
            saved = path.read_text(encoding="utf-8")
        except ValueError as error:
            raise NodusError("the edited file is no UTF-8 text; nothing was changed") from error
    return "".join(line for line in saved.splitlines(keepends=True) if not line.startswith("#"))


def _patch(label: str, before: JsonObject, edited: str) -> JsonObject:
    after = parse_object(label, edited)
    for path in (("apiVersion",), ("kind",), ("metadata", "name"), ("metadata", "namespace")):
        was, now = _at(before, path), _at(after, path)
        if was != now:
            raise click.UsageError(f"{'.'.join(path)} can't be edited: it is {was!r}, not {now!r}.")
    return merge_patch_between(before, after)


def _at(obj: JsonObject, path: tuple[str, ...]) -> object:
    found: object = obj
    for key in path:
        found = found.get(key) if isinstance(found, dict) else None
    return found


def _kept(label: str, text: str) -> str:
    """Keep what the user wrote and return where."""
    descriptor, path = tempfile.mkstemp(prefix=f"nodus-{label.replace('/', '-')}-", suffix=".yaml")
    with os.fdopen(descriptor, "w", encoding="utf-8") as file:
        file.write(text)
    return path
