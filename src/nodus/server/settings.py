"""Server settings: one typed class, filled from defaults, the data directory's file, the environment and flags.

Runs in the server process. This is the only server module that reads ``NODUS_*`` variables; everything else
receives a :class:`Settings`.
"""

from __future__ import annotations

import os
import re
import tomllib
from collections.abc import Mapping
from difflib import get_close_matches
from pathlib import Path
from typing import Any, Literal

from pydantic import BaseModel, ConfigDict, Field, ValidationError, field_validator, model_validator

from nodus.core.durations import parse_duration
from nodus.core.money import MAX_NANOS, format_usd, parse_usd
from nodus.core.sizes import quantity

Role = Literal["api", "controllers", "gateway"]
ALL_ROLES: tuple[Role, ...] = ("api", "controllers", "gateway")
LOOPBACK_HOSTS = frozenset({"127.0.0.1", "::1", "localhost"})
SETTINGS_FILE = "nodus.toml"
MIN_FUNDING_SLICE_S = 10.0
_LISTS = ("roles", "source_hosts")
_ORIGIN = re.compile(r"https?://[A-Za-z0-9._:\[\]-]+")


class SettingsError(ValueError):
    """The settings cannot be used; the message is one line for the operator."""


def default_data_dir() -> Path:
    """Where a server keeps its state unless told otherwise: ``~/.nodus/data``."""
    return Path.home() / ".nodus" / "data"


class Settings(BaseModel):
    """Everything that configures a server. Later sources win: defaults, ``nodus.toml``, environment, flags."""

    model_config = ConfigDict(extra="forbid", frozen=True)

    data_dir: Path = Field(
        default_factory=default_data_dir, description="Directory of the database, blobs and attempts."
    )
    host: str = Field(default="127.0.0.1", description="Address to listen on.")
    port: int = Field(default=8080, ge=0, le=65535, description="TCP port; 0 picks a free one.")
    roles: tuple[Role, ...] = Field(default=ALL_ROLES, description="Which parts this process runs.")
    database_url: str | None = Field(
        default=None, description="SQLAlchemy URL; unset means SQLite in the data directory."
    )
    tls_cert: Path | None = Field(default=None, description="PEM certificate chain to serve HTTPS with.")
    tls_key: Path | None = Field(default=None, description="PEM private key of tls_cert.")
    behind_proxy: bool = Field(default=False, description="A proxy in front terminates TLS and sets X-Forwarded-*.")
    public_url: str | None = Field(
        default=None, description="Origin clients use, when it is not the listening address."
    )
    org_name: str = Field(default="nodus", min_length=1, max_length=63, description="Display name of the org.")
    default_model: str | None = Field(default=None, description="Model of runs that name none; unset picks by device.")
    source_hosts: tuple[str, ...] = Field(
        default=(), description="Hosts and networks with private addresses that Volumes may be imported from."
    )
    catalog_data: Path | None = Field(
        default=None,
        description="Directory with data of catalog environments that does not ship, such as gsm8k/train.jsonl and "
        "gsm8k/test.jsonl for gsm8k-full; unset: those are not listed.",
    )
    pricebook: Path | None = Field(
        default=None, description="YAML file with prices, below the data directory; unset means that nothing costs."
    )
    funding_slice: str = Field(
        default="10m",
        description="For how long money is held ahead of what runs, and it runs on without this server; 10s at least. "
        "A tenth is kept for a run's stop, which takes up to a minute: what that costs beyond it, nobody is charged.",
    )
    starting_grant_usd: str = Field(
        default="25.00", description="Credits that a new organization gets, once; 0 gives none."
    )
    low_disk: str = Field(
        default="512Mi", description="Runs are suspended while less is free on the data directory's disk; 0 for never."
    )
    storage_limit: str | None = Field(
        default=None, description="Most that is stored, such as 500Gi; uploads beyond are refused. Unset: what fits."
    )
    retain_changes_hours: float = Field(
        default=24, ge=1, le=720, description="Hours for which a watch can be resumed; 20,000 changes at most."
    )
    retain_events_days: float = Field(
        default=7, gt=0, le=3650, description="Days that an Event is kept after it was last seen; 50,000 at most."
    )
    retain_audit_days: float = Field(
        default=90, ge=1, le=36500, description="Days that an AuditEvent is kept; a million at most."
    )
    retain_blobs_days: float = Field(
        default=7, ge=1, le=3650, description="Days that a blob which nothing names is kept after its last use."
    )
    retain_revisions: int = Field(
        default=100,
        ge=0,
        description="Newest revisions of a Volume that are kept, beside those that objects name; 0: all.",
    )
    allow_unsafe_sandbox: bool = Field(default=False, description="Run untrusted code without isolation.")
    insecure_no_sync: bool = Field(default=False, description="Skip fsync on SQLite; for tests only.")

    @field_validator("starting_grant_usd")
    @classmethod
    def _check_amount(cls, text: str) -> str:
        if parse_usd(text) > MAX_NANOS:
            raise ValueError(f"{text} is more than can be counted; {format_usd(MAX_NANOS)} is the most")
        return text

    @field_validator("funding_slice")
    @classmethod
    def _check_slice(cls, text: str) -> str:
        if parse_duration(text) < MIN_FUNDING_SLICE_S:
            raise ValueError(f"{text} is too short to fund ahead; {MIN_FUNDING_SLICE_S:g}s is the least")
        return text

    @field_validator("low_disk", "storage_limit")
    @classmethod
    def _check_size(cls, text: str | None) -> str | None:
        if text is not None:
            quantity(text)
        return text

    @model_validator(mode="after")
    def _check(self) -> Settings:
        if (self.tls_cert is None) != (self.tls_key is None):
            raise ValueError("--tls-cert and --tls-key go together; give both or neither")
        for flag, path in (("--tls-cert", self.tls_cert), ("--tls-key", self.tls_key)):
            if path is not None and not path.is_file():
                raise ValueError(f"{flag}: there is no file {path}")
        if self.public_url is not None and not _ORIGIN.fullmatch(self.public_url):
            raise ValueError(f"--public-url {self.public_url!r} is no origin; write it like https://nodus.example.com")
        if self.host not in LOOPBACK_HOSTS and self.tls_cert is None and not self.behind_proxy:
            raise ValueError(
                f"--host {self.host} is reachable from other machines and would send keys in clear; "
                "add --tls-cert and --tls-key, or --behind-proxy when a proxy terminates TLS"
            )
        return self

    @property
    def store_url(self) -> str:
        """The SQLAlchemy URL of the store."""
        return self.database_url or f"sqlite:///{self.data_dir / 'nodus.db'}"

    @property
    def scheme(self) -> str:
        """``https`` when this process terminates TLS, else ``http``."""
        return "https" if self.tls_cert is not None else "http"

    @classmethod
    def load(cls, flags: Mapping[str, Any] | None = None, env: Mapping[str, str] | None = None) -> Settings:
        """Merge every source into one checked value.

        Args:
            flags: command-line values by field name; ``None`` values mean "not given".
            env: environment to read ``NODUS_SERVER_*`` and ``NODUS_DATA_DIR`` from; default ``os.environ``.

        Raises:
            SettingsError: a value is unknown, mistyped or contradicts another; one line naming it.
        """
        environ = os.environ if env is None else env
        given = {k: v for k, v in (flags or {}).items() if v is not None}
        merged: dict[str, Any] = {}
        from_env = _read_env(environ)
        data_dir = Path(given.get("data_dir") or from_env.get("data_dir") or default_data_dir()).expanduser().absolute()
        merged.update(_read_file(data_dir / SETTINGS_FILE))
        merged.update(from_env)
        merged.update(given)
        merged["data_dir"] = data_dir
        for name in ("pricebook", "catalog_data"):
            if merged.get(name):
                merged[name] = data_dir / str(merged[name])
        try:
            return cls.model_validate(merged)
        except ValidationError as error:
            raise SettingsError(_one_line(error)) from error


def _read_env(environ: Mapping[str, str]) -> dict[str, Any]:
    found: dict[str, Any] = {}
    if environ.get("NODUS_DATA_DIR"):
        found["data_dir"] = environ["NODUS_DATA_DIR"]
    for field in Settings.model_fields:
        value = environ.get(f"NODUS_SERVER_{field.upper()}")
        if value:
            found[field] = tuple(value.split(",")) if field in _LISTS else value
    return found


def _read_file(path: Path) -> dict[str, Any]:
    try:
        text = path.read_text(encoding="utf-8")
    except FileNotFoundError:
        return {}
    except OSError as error:
        raise SettingsError(f"cannot read {path}: {error.strerror}") from error
    try:
        return tomllib.loads(text)
    except tomllib.TOMLDecodeError as error:
        raise SettingsError(f"{path} is not valid TOML: {error}") from error


def _one_line(error: ValidationError) -> str:
    parts = []
    for item in error.errors():
        message = item["msg"].removeprefix("Value error, ")
        where = ".".join(str(p) for p in item["loc"])
        if item["type"] == "extra_forbidden":
            near = get_close_matches(where, Settings.model_fields, n=1)
            message = "there is no such setting" + (f"; did you mean {near[0]}?" if near else "")
        parts.append(f"{where}: {message}" if where else message)
    return "; ".join(parts)
