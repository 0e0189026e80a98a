"""The scripted server, for every test here."""

from __future__ import annotations

from collections.abc import Iterator

import pytest

from tests.unit.client.fake_server import FakeServer, serving


@pytest.fixture
def server() -> Iterator[FakeServer]:
    """Run a scripted server for the test."""
    with serving() as fake:
        yield fake
