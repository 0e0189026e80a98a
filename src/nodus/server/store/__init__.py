"""The store: every SQL statement of the server. Start reading at :mod:`nodus.server.store.engine`."""

from nodus.server.store.engine import Store
from nodus.server.store.errors import (
    StoreClosed,
    StoreCorrupt,
    StoreFull,
    StoreLocked,
    StoreTooNew,
    StoreUnreachable,
)
from nodus.server.store.leases import Fence
from nodus.server.store.object import Object

__all__ = [
    "Fence",
    "Object",
    "Store",
    "StoreClosed",
    "StoreCorrupt",
    "StoreFull",
    "StoreLocked",
    "StoreTooNew",
    "StoreUnreachable",
]
