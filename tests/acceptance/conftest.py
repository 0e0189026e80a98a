"""The same tests over PostgreSQL: `NODUS_TEST_DATABASE=postgresql pytest tests/acceptance/test_sandboxes.py`.

For modules whose tests share one server: test_sandboxes, test_run_command, test_job_sdk, test_job_git, test_volumes,
test_secrets and test_caps. A database goes with the data directory it was made with; the others make several of those.
"""

from __future__ import annotations

import os
from collections.abc import Iterator

import pytest

from nodus.testing.postgres import PostgresServer, postgres_server

__all__ = ["postgres_server"]

# Read before the tests clear what begins with NODUS_.
_WANTED = os.environ.get("NODUS_TEST_DATABASE", "sqlite")
_URL = "NODUS_SERVER_DATABASE_URL"


@pytest.fixture(autouse=True, scope="module")
def _database(request: pytest.FixtureRequest) -> Iterator[None]:
    """Give the servers that a module starts an empty PostgreSQL database, where that was asked for."""
    if _WANTED == "sqlite":
        yield
        return
    server: PostgresServer = request.getfixturevalue("postgres_server")
    with server.database() as url, pytest.MonkeyPatch.context() as patch:
        patch.setenv(_URL, url)
        yield
