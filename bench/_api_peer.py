"""The peer of bench/api.py: the same service as it is usually written with FastAPI, SQLAlchemy and SQLite.

It keeps the promises that matter for speed: bearer keys stored as HMACs and looked up in the database, bodies checked
by a model that refuses unknown fields, one transaction for object, labels, change, audit row and idempotency record, on
the disk before it is acknowledged (WAL, synchronous=FULL), and watchers that are told of each change.

Run as ``python -m bench._api_peer DIRECTORY PORT``.
"""

from __future__ import annotations

import asyncio
import datetime
import hashlib
import hmac
import json
import sys
import uuid
from collections.abc import AsyncIterator, Iterator
from typing import Annotated, Any

import uvicorn
from fastapi import Depends, FastAPI, Header, HTTPException, Query
from fastapi.responses import StreamingResponse
from pydantic import BaseModel, ConfigDict, Field
from sqlalchemy import JSON, ForeignKey, create_engine, event, select
from sqlalchemy.orm import DeclarativeBase, Mapped, Session, mapped_column, relationship, sessionmaker

KEY = "peer-key"
_SECRET = b"secret of the peer"


class Base(DeclarativeBase):
    """Tables."""


class StoredKey(Base):
    """An API key's HMAC."""

    __tablename__ = "keys"
    digest: Mapped[str] = mapped_column(primary_key=True)
    member: Mapped[str]


class Item(Base):
    """An object."""

    __tablename__ = "items"
    uid: Mapped[str] = mapped_column(primary_key=True)
    project: Mapped[str] = mapped_column(index=True)
    name: Mapped[str] = mapped_column(unique=True)
    generation: Mapped[int] = mapped_column(default=1)
    created: Mapped[datetime.datetime]
    spec: Mapped[Any] = mapped_column(JSON)
    status: Mapped[Any] = mapped_column(JSON)
    labels: Mapped[list[Label]] = relationship(lazy="selectin", cascade="all, delete-orphan")


class Label(Base):
    """A label of an object."""

    __tablename__ = "labels"
    uid: Mapped[str] = mapped_column(ForeignKey("items.uid", ondelete="CASCADE"), primary_key=True)
    key: Mapped[str] = mapped_column(primary_key=True)
    value: Mapped[str] = mapped_column(index=True)


class ChangeRow(Base):
    """A change, for watchers."""

    __tablename__ = "changes"
    rv: Mapped[int] = mapped_column(primary_key=True, autoincrement=True)
    type: Mapped[str]
    image: Mapped[Any] = mapped_column(JSON)


class AuditRow(Base):
    """Who wrote what."""

    __tablename__ = "audit"
    seq: Mapped[int] = mapped_column(primary_key=True, autoincrement=True)
    user: Mapped[str]
    verb: Mapped[str]
    name: Mapped[str]


class Kept(Base):
    """The answer to a request with a key."""

    __tablename__ = "idempotency"
    key: Mapped[str] = mapped_column(primary_key=True)
    digest: Mapped[str]
    answer: Mapped[Any] = mapped_column(JSON)


class Strict(BaseModel):
    """A model that refuses what it does not know."""

    model_config = ConfigDict(extra="forbid")


class Metadata(Strict):
    """Of an object."""

    name: str = Field(pattern="^[a-z0-9]([-a-z0-9]{0,61}[a-z0-9])?$")
    labels: dict[str, str] = {}


class Spec(Strict):
    """Of a Volume."""

    accessMode: str = "ReadWriteOnce"
    size: str = "10Gi"


class Body(Strict):
    """A whole object."""

    apiVersion: str
    kind: str
    metadata: Metadata
    spec: Spec


def _open(path: str) -> tuple[sessionmaker[Session], sessionmaker[Session]]:
    """Make the database; return what reads and what writes it."""
    engine = create_engine(f"sqlite:///{path}", connect_args={"timeout": 60}, pool_size=100, max_overflow=0)

    @event.listens_for(engine, "connect")
    def _connect(driver: Any, record: Any) -> None:
        driver.isolation_level = None
        for pragma in ("journal_mode=WAL", "synchronous=FULL", "foreign_keys=ON"):
            driver.execute(f"PRAGMA {pragma}")

    @event.listens_for(engine, "begin")
    def _begin(conn: Any) -> None:
        conn.exec_driver_sql("BEGIN IMMEDIATE" if conn.get_execution_options().get("writes") else "BEGIN")

    Base.metadata.create_all(engine)
    writing = sessionmaker(engine.execution_options(writes=True))
    with writing.begin() as session:
        session.add(StoredKey(digest=_digest(KEY), member="admin"))
    return sessionmaker(engine), writing


def make_app(path: str) -> FastAPI:
    """The service over the database at ``path``."""
    reading, writing = _open(path)
    app = FastAPI()
    listeners: set[asyncio.Queue[Any]] = set()

    def read_session() -> Iterator[Session]:
        with reading() as session:
            yield session

    def member(authorization: Annotated[str, Header()]) -> str:
        # A session of its own: one shared with the endpoint would stay open as long as a watch does.
        with reading() as session:
            found = session.get(StoredKey, _digest(authorization.removeprefix("Bearer ")))
        if found is None:
            raise HTTPException(401, "unknown key")
        return found.member

    @app.post("/items", status_code=201)
    async def create(
        body: Body, user: str = Depends(member), idempotency_key: Annotated[str | None, Header()] = None
    ) -> Any:
        made, rv = await asyncio.to_thread(_create, writing, body, user, idempotency_key)
        for queue in listeners:
            queue.put_nowait({"type": "ADDED", "object": made, "rv": rv})
        return made

    @app.get("/items")
    def page(
        user: str = Depends(member),
        session: Session = Depends(read_session),  # noqa: B008 - as FastAPI has it
        limit: Annotated[int, Query(le=10_000)] = 500,
    ) -> Any:
        found = session.scalars(select(Item).where(Item.project == "default").order_by(Item.name).limit(limit))
        return {"items": [_wire(item) for item in found]}

    @app.get("/watch")
    async def watch(user: str = Depends(member)) -> StreamingResponse:
        queue: asyncio.Queue[Any] = asyncio.Queue()

        async def lines() -> AsyncIterator[str]:
            listeners.add(queue)
            try:
                while True:
                    yield json.dumps(await queue.get()) + "\n"
            finally:
                listeners.discard(queue)

        return StreamingResponse(lines(), media_type="application/json")

    return app


def _create(writing: sessionmaker[Session], body: Body, user: str, key: str | None) -> tuple[dict[str, Any], int]:
    digest = hashlib.sha256(body.model_dump_json().encode()).hexdigest()
    with writing.begin() as session:
        if key is not None and (kept := session.get(Kept, key)) is not None:
            if kept.digest != digest:
                raise HTTPException(409, "the key was used for another request")
            return kept.answer, 0
        if session.scalar(select(Item.uid).where(Item.name == body.metadata.name)) is not None:
            raise HTTPException(409, "exists")
        item = Item(
            uid=str(uuid.uuid4()), project="default", name=body.metadata.name, generation=1,
            created=datetime.datetime.now(datetime.UTC), spec=body.spec.model_dump(), status={"phase": "Ready"},
            labels=[Label(key=name, value=value) for name, value in body.metadata.labels.items()],
        )  # fmt: skip
        session.add(item)
        wire = _wire(item)
        change = ChangeRow(type="ADDED", image=wire)
        session.add_all([change, AuditRow(user=user, verb="create", name=item.name)])
        if key is not None:
            session.add(Kept(key=key, digest=digest, answer=wire))
        session.flush()
        return wire, change.rv


def _wire(item: Item) -> dict[str, Any]:
    metadata = {
        "name": item.name, "namespace": item.project, "uid": item.uid, "generation": item.generation,
        "creationTimestamp": item.created.isoformat(), "labels": {label.key: label.value for label in item.labels},
    }  # fmt: skip
    return {"apiVersion": "v1", "kind": "Volume", "metadata": metadata, "spec": item.spec, "status": item.status}


def _digest(key: str) -> str:
    return hmac.new(_SECRET, key.encode(), hashlib.sha256).hexdigest()


if __name__ == "__main__":
    uvicorn.run(make_app(f"{sys.argv[1]}/peer.db"), port=int(sys.argv[2]), log_level="warning", access_log=False)
