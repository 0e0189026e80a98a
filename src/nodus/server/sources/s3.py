"""Import the objects of a bucket below a prefix, each as it was when they were listed."""

from __future__ import annotations

import os
from collections.abc import Iterator, Mapping
from typing import Any
from urllib.parse import urlsplit

from nodus.server.sources.base import Collector, Fetched, ImportFailed, Order
from nodus.server.sources.guard import AddressRefused, Guard

_CHUNK_BYTES = 1 << 20
_NOT_FOUND = ("NoSuchBucket", "NoSuchKey", "404", "NotFound")
_DENIED = (
    "AccessDenied", "403", "Forbidden", "InvalidAccessKeyId", "SignatureDoesNotMatch", "ExpiredToken", "InvalidToken",
)  # fmt: skip
_MOVED = ("PermanentRedirect", "301", "AuthorizationHeaderMalformed", "IllegalLocationConstraintException")


def fetch(order: Order) -> Fetched:
    """List the objects and download each.

    Raises:
        ImportFailed: With a reason and a fix.
    """
    try:
        import botocore.exceptions
    except ImportError as error:
        raise ImportFailed(
            "SourceUnsupported", "the server lacks boto3", "install it there: pip install 'nodus-platform[s3]'"
        ) from error
    uri = str(order.spec["uri"])
    bucket, _, prefix = uri.removeprefix("s3://").partition("/")
    try:
        client = _client(order, uri)
        return _collect(client, order, uri, bucket, prefix)
    except AddressRefused as refused:
        raise refused.failure(uri) from refused
    except botocore.exceptions.ClientError as error:
        raise _explain(uri, error.response.get("Error") or {}) from error
    except botocore.exceptions.BotoCoreError as error:
        if (inner := _refusal(error)) is not None:
            raise inner.failure(uri) from error
        raise ImportFailed(
            "SourceUnavailable",
            f"{uri} can't be reached or broke off ({str(error)[:200]})",
            "check spec.source.s3.endpoint, and the server's way to it",
            transient=True,
        ) from error


def _client(order: Order, uri: str) -> Any:
    """A client with the Secret's credentials, or none at all: never the server's own."""
    import boto3
    from botocore import UNSIGNED
    from botocore.config import Config

    for name in [name for name in os.environ if name.startswith("AWS_")]:
        del os.environ[name]
    os.environ |= {
        "AWS_EC2_METADATA_DISABLED": "true",
        "AWS_CONFIG_FILE": os.devnull,
        "AWS_SHARED_CREDENTIALS_FILE": os.devnull,
    }
    guard = Guard(order.allowed)
    endpoint = order.spec.get("endpoint")
    if endpoint:
        parts = urlsplit(str(endpoint))
        guard.addresses(parts.hostname or "", parts.port or (443 if parts.scheme == "https" else 80))
    guard.install()
    given = {key.lower(): value for key, value in order.credentials.items()}
    key_id, key = given.get("aws_access_key_id"), given.get("aws_secret_access_key")
    if order.credentials and not (key_id and key):
        raise ImportFailed(
            "SourceAccessDenied",
            f"{uri}: the Secret lacks AWS_ACCESS_KEY_ID or AWS_SECRET_ACCESS_KEY",
            f"it has {', '.join(sorted(order.credentials))}; add the missing key",
        )
    # Servers that are not Amazon's have no names for buckets.
    style: dict[str, Any] = {"addressing_style": "path"} if endpoint else {}
    config = Config(
        signature_version=None if key_id else UNSIGNED,
        connect_timeout=15,
        read_timeout=60,
        retries={"max_attempts": 3, "mode": "standard"},
        s3=style,
    )
    session = boto3.session.Session(key_id, key, given.get("aws_session_token"))
    return session.client(
        "s3", region_name=order.spec.get("region") or "us-east-1", endpoint_url=endpoint, config=config
    )


def _collect(client: Any, order: Order, uri: str, bucket: str, prefix: str) -> Fetched:
    found = _listed(client, bucket, prefix)
    if not found:
        raise ImportFailed("SourceNotFound", f"{uri} has no objects", "check the bucket and the prefix")
    collector = Collector(order, uri)
    collector.announce(sum(int(item["Size"]) for item in found), len(found))
    base = prefix if prefix.endswith("/") or not prefix else f"{prefix}/"
    if len(found) == 1 and found[0]["Key"] == prefix:
        base = prefix[: prefix.rfind("/") + 1]
    for item in found:
        # What was changed since it was listed is another state of the bucket: the next try lists again.
        answer = client.get_object(Bucket=bucket, Key=item["Key"], IfMatch=item["ETag"])
        collector.add(item["Key"].removeprefix(base), _body(answer))
    return Fetched(collector.finish(), {"uri": uri, **_named(order.spec, "endpoint", "region")})


def _listed(client: Any, bucket: str, prefix: str) -> list[Mapping[str, Any]]:
    """The objects below a prefix as below a directory, or the one object of that name; without directories' markers."""
    pages = client.get_paginator("list_objects_v2").paginate(Bucket=bucket, Prefix=prefix)
    found = [item for page in pages for item in page.get("Contents", ()) if not item["Key"].endswith("/")]
    base = prefix if prefix.endswith("/") or not prefix else f"{prefix}/"
    below = [item for item in found if item["Key"].startswith(base)]
    return below or [item for item in found if item["Key"] == prefix]


def _body(answer: Mapping[str, Any]) -> Iterator[bytes]:
    yield from answer["Body"].iter_chunks(_CHUNK_BYTES)


def _named(spec: Mapping[str, Any], *names: str) -> dict[str, Any]:
    return {name: spec[name] for name in names if spec.get(name)}


def _refusal(error: BaseException) -> AddressRefused | None:
    """The guard's refusal, where a library wrapped it in an error of its own."""
    seen: BaseException | None = error
    while seen is not None:
        if isinstance(seen, AddressRefused):
            return seen
        inner = getattr(seen, "kwargs", {}).get("error")
        seen = inner if isinstance(inner, BaseException) else seen.__cause__ or seen.__context__
    return None


def _explain(uri: str, error: Mapping[str, Any]) -> ImportFailed:
    code, words = str(error.get("Code", "")), str(error.get("Message", ""))[:200]
    if code in _NOT_FOUND:
        return ImportFailed("SourceNotFound", f"{uri}: {words or code}", "check the bucket and the prefix")
    if code in _DENIED:
        return ImportFailed(
            "SourceAccessDenied",
            f"{uri}: access is refused ({words or code})",
            "name a Secret with AWS_ACCESS_KEY_ID and AWS_SECRET_ACCESS_KEY under spec.source.s3.secret",
        )
    if code in _MOVED:
        return ImportFailed("SourceNotFound", f"{uri} is in another region ({words})", "set spec.source.s3.region")
    if code in ("PreconditionFailed", "412"):
        return ImportFailed("SourceChanged", f"{uri}: an object changed during the import", transient=True)
    transient = code in ("SlowDown", "InternalError", "ServiceUnavailable", "RequestTimeout", "500", "503")
    return ImportFailed("SourceUnavailable", f"{uri}: {code} {words}".rstrip(), "try later", transient=transient)
