"""Migrations: a database that was migrated equals a fresh one."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest
from alembic.autogenerate import compare_metadata
from alembic.config import Config
from alembic.migration import MigrationContext
from alembic.script import ScriptDirectory
from sqlalchemy import Connection, create_engine, inspect, text

from nodus.core.clock import FakeClock
from nodus.core.kinds import KINDS
from nodus.server.store import Store, blobs, codec, migrations, objects
from nodus.server.store.schema import metadata


def structure(conn: Connection) -> dict[str, Any]:
    """Everything that makes a schema, as the database tells it."""
    found = inspect(conn)
    return {
        table: {
            "columns": [
                (column["name"], str(column["type"]), column["nullable"], column["default"])
                for column in found.get_columns(table)
            ],
            "primary key": found.get_pk_constraint(table),
            "foreign keys": sorted(map(str, found.get_foreign_keys(table))),
            "unique": sorted(map(str, found.get_unique_constraints(table))),
            "indexes": sorted(map(_index, found.get_indexes(table))),
        }
        for table in sorted(found.get_table_names())
    }


def _index(index: Any) -> str:
    # What a partial index is of is an object of SQLAlchemy's on one database.
    return str({**index, "dialect_options": {key: str(of) for key, of in index.get("dialect_options", {}).items()}})


def _first_revision() -> str:
    config = Config()
    config.set_main_option("script_location", str(Path(migrations.__file__).parent))
    scripts = ScriptDirectory.from_config(config)
    assert scripts.get_current_head() == migrations.HEAD
    return scripts.get_bases()[0]


def _migrated(url: str) -> dict[str, Any]:
    engine = create_engine(url)
    with engine.begin() as conn:
        migrations.upgrade(conn, _first_revision())
        migrations.upgrade(conn)
        assert migrations.current_revision(conn) == migrations.HEAD
        context = MigrationContext.configure(conn, opts={"compare_type": True})
        assert compare_metadata(context, metadata) == []
        result = structure(conn)
    engine.dispose()
    return result


def _fresh(url: str) -> dict[str, Any]:
    engine = create_engine(url)
    with engine.begin() as conn:
        migrations.migrate(conn)
        result = structure(conn)
    engine.dispose()
    return result


def test_migrated_sqlite_equals_fresh(tmp_path: Path) -> None:
    assert _migrated(f"sqlite:///{tmp_path / 'old.db'}") == _fresh(f"sqlite:///{tmp_path / 'new.db'}")


@pytest.mark.postgres
def test_migrated_postgresql_equals_fresh(postgres_server: Any) -> None:
    assert _migrated(postgres_server.new_database()) == _fresh(postgres_server.new_database())


def test_a_migrated_database_opens(store_url: str, tmp_path: Path) -> None:
    engine = create_engine(store_url)
    with engine.begin() as conn:
        migrations.upgrade(conn, _first_revision())
    engine.dispose()
    store = Store.open(store_url, FakeClock(), data_dir=tmp_path)
    store.write_sync(objects.create, KINDS["Job"], "default", "j", {})
    assert store.read_sync(lambda conn: conn.execute(text("SELECT count(*) FROM orgs")).scalar()) == 1
    store.close()


def test_blobs_go_to_the_projects_that_name_them(store_url: str, tmp_path: Path) -> None:
    named, in_tree, unnamed = ("a" * 64, "b" * 64, "c" * 64)
    engine = create_engine(store_url)
    with engine.begin() as conn:
        migrations.upgrade(conn, _first_revision())
        _old_rows(conn, "orgs", uid="o", name="nodus", created_us=1)
        for uid, kind, project, spec in (
            ("p1", "Project", "", "{}"),
            ("p2", "Project", "", "{}"),
            ("e1", "Environment", "p1", f'{{"blob":"sha256:{named}"}}'),
            ("e2", "Environment", "p2", f'{{"blob":"sha256:{named}"}}'),
            ("v", "Volume", "p2", "{}"),
        ):
            _old_rows(
                conn, "objects", uid=uid, org="o", kind=kind, project=project, name=uid, generation=1, rv=1,
                created_us=1, labels="{}", annotations="{}", owners="[]", finalizers="[]", spec=spec, status="{}",
            )  # fmt: skip
        tree = codec.pack([["f", in_tree, 1, 0o644]])
        _old_rows(
            conn, "volume_revisions", volume="v", revision=1, org="o", snapshot="s", files=1, size_bytes=1, tree=tree,
            created_us=1,
        )  # fmt: skip
        for digest in (named, in_tree, unnamed):
            _old_rows(conn, "blobs", org="o", sha256=digest, size_bytes=7, media_type="t/t", created_us=1, used_us=2)
    engine.dispose()

    store = Store.open(store_url, FakeClock(), data_dir=tmp_path)
    found = {(p, d) for p in ("p1", "p2") for d in (named, in_tree, unnamed) if store.read_sync(blobs.find, p, d)}
    assert found == {("p1", named), ("p2", named), ("p2", in_tree)}
    store.close()


def _old_rows(conn: Connection, table: str, **values: Any) -> None:
    names = ", ".join(values)
    conn.execute(text(f"INSERT INTO {table} ({names}) VALUES ({', '.join(':' + name for name in values)})"), values)


def test_two_servers_that_start_together_make_one_database(store_url: str, tmp_path: Path) -> None:
    from concurrent.futures import ThreadPoolExecutor

    def open_(_: int) -> Store:
        return Store.open(store_url, FakeClock(), data_dir=tmp_path)

    with ThreadPoolExecutor(4) as threads:
        stores = list(threads.map(open_, range(4)))
    assert len({store.org for store in stores}) == 1
    for store in stores:
        store.close()


def test_a_new_file_that_many_open_at_once_keeps_none_of_them_out(tmp_path: Path) -> None:
    from concurrent.futures import ThreadPoolExecutor

    # Switching the file to its log is refused without waiting now and then: one of 180 openings was. Hence the rounds.
    for number in range(60):
        url = f"sqlite:///{tmp_path}/{number}/nodus.db"
        with ThreadPoolExecutor(6) as threads:
            stores = list(threads.map(lambda _, url=url: Store.open(url, FakeClock(), data_dir=tmp_path), range(6)))
        for store in stores:
            store.close()
