"""Reference pages say what the code says, and links lead somewhere."""

from __future__ import annotations

import importlib.util
import re
from pathlib import Path
from types import ModuleType

import pytest

ROOT = Path(__file__).resolve().parents[2]
PAGES = [ROOT / "README.md", ROOT / "CHANGELOG.md", *sorted((ROOT / "docs").rglob("*.md"))]
LINK = re.compile(r"\[[^\]]*\]\(([^)#\s]+)(#[^)]*)?\)")


@pytest.fixture(scope="module")
def generator() -> ModuleType:
    """docs/generate.py as a module."""
    spec = importlib.util.spec_from_file_location("generate", ROOT / "docs" / "generate.py")
    assert spec and spec.loader
    module = importlib.util.module_from_spec(spec)
    spec.loader.exec_module(module)
    return module


def test_generated_pages_are_current(generator: ModuleType) -> None:
    assert generator.stale(generator.pages()) == [], "run docs/generate.py --write"


def test_no_generated_kind_page_is_left_over(generator: ModuleType) -> None:
    there = {str(page.relative_to(ROOT)) for page in (ROOT / "docs" / "reference" / "kinds").glob("*.md")}
    assert there <= set(generator.pages())


@pytest.mark.parametrize("page", PAGES, ids=lambda page: str(page.relative_to(ROOT)))
def test_links_lead_to_files(page: Path) -> None:
    targets = [match.group(1) for match in LINK.finditer(page.read_text()) if "://" not in match.group(1)]
    assert not [target for target in targets if not (page.parent / target).exists()]
