"""The fenced blocks of README.md and docs/: what they hold, and whether a comment before them says they are not run."""

from __future__ import annotations

import re
from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path

ROOT = Path(__file__).resolve().parents[2]
SHELL, PYTHON = ("sh", "bash", "shell", "console"), ("python", "py")
_FENCE = re.compile(r"^```(\w*)\s*$")
_NOT_RUN = re.compile(r"^<!-- not run: (?P<reason>.+) -->$")


@dataclass(frozen=True, slots=True)
class Block:
    """One fenced block."""

    page: Path
    line: int
    language: str
    text: str
    not_run: str | None
    """The reason of the comment `<!-- not run: reason -->` on the line before; None where there is none."""

    @property
    def where(self) -> str:
        """Page and line, for messages."""
        return f"{self.page.relative_to(ROOT)}:{self.line}"


def pages() -> list[Path]:
    """README and every page below docs/."""
    return [ROOT / "README.md", *sorted((ROOT / "docs").rglob("*.md"))]


def blocks(page: Path) -> Iterator[Block]:
    """The fenced blocks of a page, in order."""
    lines = page.read_text().splitlines()
    start: int | None = None
    language = ""
    for number, line in enumerate(lines):
        fence = _FENCE.match(line)
        if start is None and fence:
            start, language = number, fence.group(1)
        elif start is not None and line.rstrip() == "```":
            marked = _NOT_RUN.match(lines[start - 1]) if start else None
            text = "\n".join(lines[start + 1 : number]) + "\n"
            yield Block(page, start + 1, language, text, marked.group("reason") if marked else None)
            start = None
