"""Whether a model's chat template has a place for tools, where the server has the model's files.

A template that never speaks of tools gives a prompt without them: the model could not know what it may call. One that
does may still not work; the trainer renders a task with it and without and says so.
"""

from __future__ import annotations

import json
import re
from collections.abc import Mapping
from pathlib import Path
from typing import TYPE_CHECKING

from nodus.core.kinds import VOLUME
from nodus.server.store import objects, volumes

if TYPE_CHECKING:
    from sqlalchemy import Connection

TEMPLATE_FILE, TOKENIZER_FILE = "chat_template.jinja", "tokenizer_config.json"
_BYTES = 16 * 1024 * 1024
_TOOLS = re.compile(r"\btools\b")


def files_of(conn: Connection, project: str, volume: str, revision: int | None) -> dict[str, str]:
    """Return the digests of the files that may hold a model's chat template; none where the Volume is not Ready.

    Args:
        conn: a transaction.
        project: of the Volume.
        volume: its name.
        revision: which; the newest when None.
    """
    found = objects.find(conn, VOLUME, project, volume)
    newest = int(found.status.get("revision") or 0) if found is not None else 0
    if found is None or found.status.get("phase") != "Ready" or not 0 < (revision or newest) <= newest:
        return {}
    tree = volumes.tree(conn, found.uid, revision or newest)
    return {file.path: file.sha256 for file in tree if file.path in (TEMPLATE_FILE, TOKENIZER_FILE, "config.json")}


def takes_tools(files: Mapping[str, Path]) -> bool | None:
    """Tell whether a model's chat template speaks of tools; None where the files don't say.

    Args:
        files: where its files are, by the names they have in the model's directory.
    """
    if "config.json" not in files:
        return None
    if TEMPLATE_FILE in files:
        text = _read(files[TEMPLATE_FILE])
        return None if text is None else _TOOLS.search(text) is not None
    if TOKENIZER_FILE not in files:
        return None
    text = _read(files[TOKENIZER_FILE])
    try:
        template = json.loads(text or "").get("chat_template")
    except (ValueError, AttributeError, RecursionError):
        return None
    named = template if isinstance(template, list) else [{"template": template or ""}]
    return any(_TOOLS.search(str(entry.get("template"))) for entry in named if isinstance(entry, dict))


def _read(path: Path) -> str | None:
    try:
        return path.read_text("utf-8", "replace") if path.stat().st_size <= _BYTES else None
    except OSError:
        return None
