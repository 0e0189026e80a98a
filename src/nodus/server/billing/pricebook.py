"""The price book: the catalog's file with an operator's laid over it, checked whole when the server starts.

Prices are integer nano-dollars, for an hour or for a million. What is charged is computed from them exactly
(:mod:`.metering`).
"""

from __future__ import annotations

from dataclasses import dataclass, field
from importlib import resources
from pathlib import Path
from typing import Any, NamedTuple

from nodus.core.digests import digest_of
from nodus.core.errors import Cause, NodusError
from nodus.core.kinds.base import USD, Model
from nodus.core.kinds.decode import decode
from nodus.core.money import NANO, format_usd, parse_usd
from nodus.server import accelerators

CPU, DEFAULT = "CPU", "default"
MAX_HOURLY = 1_000_000 * NANO
"""The highest price of an hour: with more, slices and what Nodus covers would soon be too much to count."""


class PriceBookError(NodusError):
    """An operator's price book can't be used; the message names the file and the fields."""

    reason, status = "PriceBookError", 500


class TokenPrices(Model):
    """What a million tokens of a model cost, in dollars."""

    input: USD
    """Tokens of the prompt."""
    cached_input: USD | None = None
    """Those of them that the model had read before; unset costs what others do."""
    output: USD = "0.00"
    """Tokens that the model writes."""


class PriceBookFile(Model):
    """A price book as it is written."""

    version: str
    """Under which receipts and estimates refer to it."""
    compute: dict[str, USD]
    """Dollars for an hour of one core (``CPU``) or one accelerator, by family; ``default`` for those not named."""
    grading: USD
    """Dollars for an hour of one grading sandbox at work."""
    models: dict[str, TokenPrices]
    """Dollars for a million tokens, by model."""
    audio: USD
    """Dollars for an hour of audio that is transcribed."""
    speech: USD
    """Dollars for a million characters that are spoken."""
    routing: USD
    """Dollars for a request that is routed."""
    storage: USD
    """Dollars for a GiB that is stored for a month."""


class Tokens(NamedTuple):
    """What a million tokens of a model cost, in nano-dollars."""

    input: int
    cached_input: int
    output: int


@dataclass(frozen=True, slots=True)
class PriceBook:
    """Prices in force on this server.

    Attributes:
        version: The catalog's, with a digest behind it where an operator's file changed anything.
        compute: Nano-dollars for an hour of one core or accelerator, by family.
        grading: Nano-dollars for an hour of one grading sandbox at work.
        models: What a million tokens cost, by model.
        audio: Nano-dollars for an hour of audio that is transcribed.
        speech: Nano-dollars for a million characters that are spoken.
        routing: Nano-dollars for a request that is routed.
        storage: Nano-dollars for a GiB that is stored for a month.
    """

    version: str
    compute: dict[str, int]
    grading: int
    models: dict[str, Tokens] = field(default_factory=dict)
    audio: int = 0
    speech: int = 0
    routing: int = 0
    storage: int = 0

    def to_wire(self) -> dict[str, Any]:
        """Return the book as users read it: a row for each price, in dollars."""
        rows = [(f"compute/{family}", price, "hour") for family, price in sorted(self.compute.items())]
        rows.append(("grading", self.grading, "hour"))
        for model, tokens in sorted(self.models.items()):
            rows += [
                (f"tokens/{model}/input", tokens.input, "million tokens"),
                (f"tokens/{model}/cached-input", tokens.cached_input, "million tokens"),
                (f"tokens/{model}/output", tokens.output, "million tokens"),
            ]
        rows += [
            ("audio", self.audio, "hour"),
            ("speech", self.speech, "million characters"),
            ("routing", self.routing, "request"),
            ("storage", self.storage, "GiB and month"),
        ]
        prices = [{"item": item, "priceUSD": format_usd(price), "per": per} for item, price, per in rows]
        return {"version": self.version, "prices": prices}

    def hour_of(self, family: str | None) -> int:
        """Return what an hour of one accelerator costs, or of one core without a family, in nano-dollars."""
        return self.compute.get(family or CPU, self.compute[DEFAULT])


def read_price_book(operator: Path | None = None) -> PriceBook:
    """Read the catalog's price book and lay an operator's over it.

    Args:
        operator: A YAML file with some of the fields of the catalog's.

    Raises:
        PriceBookError: The file isn't there or is wrong; all mistakes at once.
    """
    base = _parse(resources.files("nodus.catalog").joinpath("pricebook.yaml").read_text(encoding="utf-8"))
    if operator is None:
        return _checked(base, "pricebook.yaml", base["version"])
    try:
        given = _parse(operator.read_text(encoding="utf-8"))
    except (OSError, ValueError) as error:
        raise PriceBookError(f"the price book {operator} can't be read: {error}", fix=_FIX) from error
    if not isinstance(given, dict):
        raise PriceBookError(f"the price book {operator} is no mapping of fields", fix=_FIX)
    _name_families(given.get("compute"), operator)
    compute = given.get("compute", {})
    merged = {**base, **given, "compute": {**base["compute"], **compute} if isinstance(compute, dict) else compute}
    version = merged.get("version")
    if merged != base:
        version = f"{version}+{digest_of(_texts(merged)).removeprefix('sha256:')[:8]}"
    return _checked(merged, str(operator), version)


_FIX = "Write it like the catalog's, with prices as strings: {compute: {CPU: '0.04', H100: '2.50'}}."


def _parse(text: str) -> Any:
    import yaml  # late: a few milliseconds

    try:
        return yaml.safe_load(text)
    except yaml.YAMLError as error:
        raise ValueError(str(error)) from error


def _name_families(compute: Any, path: Path) -> None:
    """Turn every spelling of an accelerator into its family, in place.

    Raises:
        PriceBookError: There is no such accelerator, or two rows mean the same one.
    """
    if not isinstance(compute, dict):
        return
    for spelling in [key for key in compute if key not in (CPU, DEFAULT)]:
        try:
            family = accelerators.find(str(spelling)).family
        except NodusError as error:
            raise PriceBookError(f"the price book {path}: compute: {error.message}", fix=error.fix or _FIX) from error
        price = compute.pop(spelling)
        if family in compute:
            raise PriceBookError(f"the price book {path}: compute has two prices of {family}", fix="Keep one of them.")
        compute[family] = price


def _checked(value: Any, where: str, version: Any) -> PriceBook:
    book, causes = decode(PriceBookFile, value, prefix="")
    if isinstance(book, PriceBookFile):
        causes += _too_high(book)
    if book is None or causes:
        raise PriceBookError(f"the price book {where}: {_listed(causes)}", fix=_FIX)
    assert isinstance(book, PriceBookFile)
    return PriceBook(
        version=str(version),
        compute={family: parse_usd(price) for family, price in book.compute.items()},
        grading=parse_usd(book.grading),
        models={name: _tokens(prices) for name, prices in book.models.items()},
        audio=parse_usd(book.audio),
        speech=parse_usd(book.speech),
        routing=parse_usd(book.routing),
        storage=parse_usd(book.storage),
    )


def _too_high(book: PriceBookFile) -> list[Cause]:
    """What costs so much that the books could not count what it comes to."""
    by_hour = {**{f"compute.{family}": price for family, price in book.compute.items()}, "grading": book.grading}
    return [
        Cause(name, "FieldValueInvalid", f"{price} is more than {format_usd(MAX_HOURLY)} an hour")
        for name, price in by_hour.items()
        if parse_usd(price) > MAX_HOURLY
    ]


def _tokens(prices: TokenPrices) -> Tokens:
    cached = prices.input if prices.cached_input is None else prices.cached_input
    return Tokens(parse_usd(prices.input), parse_usd(cached), parse_usd(prices.output))


def _listed(causes: list[Cause]) -> str:
    return "; ".join(f"{cause.field.lstrip('.')}: {cause.message}" for cause in causes[:10])


def _texts(value: Any) -> Any:
    """The value with what JSON lacks as text: YAML has dates, and a file is digested before it is checked."""
    if isinstance(value, dict):
        return {str(key): _texts(item) for key, item in value.items()}
    return value if isinstance(value, (str, int, bool)) or value is None else str(value)
