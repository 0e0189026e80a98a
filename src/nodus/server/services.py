"""What the parts of one server share. Built once in ``main.py``; tests build their own with what they need."""

from __future__ import annotations

import asyncio
from collections.abc import Callable
from dataclasses import dataclass, field
from typing import TYPE_CHECKING, Any

from nodus.server.billing.pricebook import PriceBook, read_price_book
from nodus.server.storage import Storage

if TYPE_CHECKING:
    from nodus.core.clock import Clock
    from nodus.server.metrics import Metrics
    from nodus.server.settings import Settings
    from nodus.server.signing import Signer
    from nodus.server.store import Store


@dataclass(slots=True)
class Services:
    """The wiring of one server process. Parts that a role does not run stay ``None``."""

    settings: Settings
    store: Store
    clock: Clock
    signer: Signer
    metrics: Metrics
    prices: PriceBook = field(default_factory=read_price_book)
    """What things cost here."""
    base_url: str = "http://127.0.0.1:8080"
    """Origin clients reach this server at; links in responses start with it."""
    low_disk: Callable[[], str | None] = lambda: None
    """Says how little room the disk has, where that is too little for runs."""
    stopping: asyncio.Event = field(default_factory=asyncio.Event)
    """Set when the server was asked to stop: long responses end cleanly."""
    backend: Any = None
    """The ComputeBackend."""
    grading: Any = None
    """The GradingService."""
    builds: Any = None
    """What builds Environments' packages."""
    training: Any = None
    """The training service: compiling, tasks, task events, summaries."""
    models: Any = None
    """Model resolution: hub, library, default model."""
    manager: Any = None
    """The controller manager, once it runs."""
    limits: Any = None
    """Limits on logins; made with the application."""
    storage: Storage = field(init=False)
    """How much is stored, against how much may be."""
    checks: dict[str, Callable[[], str | None]] = field(default_factory=dict)
    """What can be degraded while the server works: name to a function that says how, or ``None`` when all is well."""

    def __post_init__(self) -> None:
        """Make what needs nothing but the store and the settings."""
        self.storage = Storage(self.store, self.settings)

    def degraded(self) -> list[str]:
        """What does not work fully now, a line each; ``/readyz`` prints them."""
        return [f"{name}: {problem}" for name, check in self.checks.items() if (problem := check()) is not None]
