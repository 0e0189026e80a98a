"""Opening the data of a server and starting what runs behind the API: first objects, catalog, controllers."""

from __future__ import annotations

import asyncio
import contextlib
from collections.abc import AsyncIterator
from pathlib import Path
from typing import TYPE_CHECKING

from nodus.core import roles
from nodus.core.clock import Clock
from nodus.core.ids import generated_name, slug
from nodus.core.kinds import API_KEY, MEMBER, ORGANIZATION, PROJECT
from nodus.core.money import parse_usd
from nodus.core.sizes import quantity
from nodus.server import catalog, parts
from nodus.server.api.auth import CREATED_BY, user_of
from nodus.server.billing.pricebook import read_price_book
from nodus.server.kinds.identity import make_key
from nodus.server.lowdisk import LowDiskBrake
from nodus.server.metrics import Metrics
from nodus.server.retention import DAY_S, keep_swept
from nodus.server.services import Services
from nodus.server.settings import Settings
from nodus.server.signing import Signer
from nodus.server.store import Object, Store, audit, books, keys, ledger, objects
from nodus.server.store.context import lock_objects, org_of
from nodus.server.store.housekeeping import Retention, keep_house
from nodus.server.store.object import owner_reference

if TYPE_CHECKING:
    from sqlalchemy import Connection

KEY_FILE = "keys.json"
RESTORING_FILE = "restoring"
"""Stands in a data directory until a backup is restored into it whole."""
PROJECTS = ("default", "nodus")
ADMIN_MEMBER = "admin"
STARTING_GRANT = "starting-grant"


def open_services(settings: Settings, clock: Clock, *, issue_key: bool = False) -> tuple[Services, str | None]:
    """Open store and key file and make sure that the first objects are there.

    Args:
        settings: of the server.
        clock: where time comes from.
        issue_key: make a new admin API key.

    Returns:
        The services, without background work, and the new key if one was made: because it was asked for, or because
        the database has none, as after the first start or after it was moved away.

    Raises:
        StoreError: the database can't be used; one line.
        NodusError: another reason not to start; one line.
    """
    if (settings.data_dir / RESTORING_FILE).exists():
        raise catalog.CatalogError(
            f"the restore into {settings.data_dir} was not finished", fix="Run `nodus admin restore` again."
        )
    store = Store.open(
        settings.store_url, clock, data_dir=settings.data_dir, org_name=settings.org_name,
        sync=not settings.insecure_no_sync,
    )  # fmt: skip
    try:
        keyed = store.read_sync(_has_api_keys)
        signer = _open_signer(settings.data_dir / KEY_FILE, keyed)
        store.blobs.sweep()
        services = Services(
            settings=settings, store=store, clock=clock, signer=signer, metrics=Metrics(),
            prices=read_price_book(settings.pricebook),
        )  # fmt: skip
        parts.build(services)
        services.low_disk = LowDiskBrake(settings.data_dir, int(quantity(settings.low_disk))).problem
        services.checks["disk"] = services.low_disk
        services.checks["storage"] = services.storage.almost_full
        services.metrics.stored_bytes.set_function(lambda: services.storage.used_bytes)
        store.write_sync(ensure_projects)
        store.write_sync(ensure_identity, services)
        store.write_sync(ensure_starting_grant, settings.starting_grant_usd)
        store.write_sync(catalog.load, services, catalog.read_catalog())
        store.write_sync(catalog.load_optional, services, catalog.optional(settings))
        key = store.write_sync(issue_admin_key, services) if issue_key or not keyed else None
    except BaseException:
        store.close()
        raise
    return services, key


def _has_api_keys(conn: Connection) -> bool:
    return bool(objects.list_(conn, API_KEY, None, limit=1).items)


def _open_signer(path: Path, keyed: bool) -> Signer:
    """Open the key file; only a database without API keys can do with a new one.

    Raises:
        CatalogError: the file is damaged, or gone while the database needs it.
    """
    from nodus.server.signing import KeyringError

    if keyed and not path.exists():
        raise catalog.CatalogError(
            f"{path} is missing; the database's API keys and Secrets can't be read without it",
            fix="Restore the file from a backup. If it is lost, move the database away to start afresh.",
        )
    try:
        return Signer.open(path)
    except KeyringError as error:
        raise catalog.CatalogError(str(error)) from error


def ensure_projects(conn: Connection) -> None:
    """Create the projects every server has; another server may be starting on the same database."""
    lock_objects(conn)
    for name in PROJECTS:
        if objects.find(conn, PROJECT, None, name) is None:
            objects.create(conn, PROJECT, None, name, {}, status={"phase": "Active"})


def ensure_identity(conn: Connection, services: Services) -> None:
    """Create the organization's object and its first Owner, who gets the keys of before there were members."""
    lock_objects(conn)
    if not objects.list_(conn, ORGANIZATION, None, limit=1).items:
        name = slug(services.settings.org_name)
        objects.create(conn, ORGANIZATION, None, name, {}, status={"phase": "Active"}, uid=org_of(conn))
    owner = _first_owner(conn)
    for uid in keys.adopt(conn, owner.uid):
        key = objects.get_by_uid(conn, uid)
        spec = {name: value for name, value in key.spec.items() if value is not None}
        spec = {"scopes": [roles.ANY], **spec, "member": owner.name}
        objects.update(conn, key, spec=spec, owner_references=[owner_reference(owner)])


def ensure_starting_grant(conn: Connection, amount_usd: str) -> None:
    """Give the organization its first credits, once; what the setting says later changes nothing."""
    lock_objects(conn)
    if parse_usd(amount_usd) and books.granted(conn, STARTING_GRANT) is None:
        ledger.grant(conn, parse_usd(amount_usd), STARTING_GRANT, "Starting grant")


def _first_owner(conn: Connection) -> Object:
    """The Owner whom keys made on the server's own machine belong to; one is made where there is none."""
    found = objects.list_(conn, MEMBER, None, fields={"spec.role": "Owner"}).items
    owners = [owner for owner in found if owner.deleted_at is None]  # a finalizer may hold one whose keys have ended
    if owners:
        return next((owner for owner in owners if owner.name == ADMIN_MEMBER), owners[0])
    name = ADMIN_MEMBER if objects.find(conn, MEMBER, None, ADMIN_MEMBER) is None else generated_name("owner-")
    return objects.create(conn, MEMBER, None, name, {"role": "Owner"}, status={"phase": "Active"})


def issue_admin_key(conn: Connection, services: Services) -> str:
    """Create an APIKey of the first Owner that may do everything and return the key; only its hash is stored."""
    lock_objects(conn)
    owner = _first_owner(conn)
    spec = {"scopes": [roles.ANY], "projects": [], "member": owner.name, "description": "made by `nodus up`"}
    name = owner.name if objects.find(conn, API_KEY, None, owner.name) is None else f"{owner.name}-"
    obj, key = make_key(conn, services, name, spec, labels={CREATED_BY: user_of(owner)})
    target = audit.Target(API_KEY.name, obj.name, uid=obj.uid)
    audit.record(conn, audit.Actor(user_of(owner), "nodus up"), "create", target)
    return key


@contextlib.asynccontextmanager
async def background(services: Services) -> AsyncIterator[None]:
    """Run what works behind the API until the block ends; then stop it in order."""
    settings = services.settings
    kept = Retention(
        settings.retain_changes_hours * 3600, settings.retain_events_days * DAY_S, settings.retain_audit_days * DAY_S
    )
    tasks = [
        asyncio.create_task(keep_house(services.store, kept), name="prune"),
        asyncio.create_task(services.storage.keep_measured(), name="storage"),
    ]
    if "controllers" in settings.roles:
        tasks.append(asyncio.create_task(keep_swept(services.store, settings), name="sweep"))
    try:
        async with parts.running(services):
            yield
    finally:
        for task in tasks:
            task.cancel()
        await asyncio.gather(*tasks, return_exceptions=True)
