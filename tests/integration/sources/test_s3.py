"""Volumes from a bucket, against moto's server."""

from __future__ import annotations

import os
from collections.abc import Iterator
from typing import Any

import pytest

from tests.integration.sources.conftest import Import

moto = pytest.importorskip("moto.server")

KEYS = {"AWS_ACCESS_KEY_ID": "AK", "AWS_SECRET_ACCESS_KEY": "SK"}
BIG = bytes(range(256)) * 12_000


@pytest.fixture(scope="module")
def endpoint() -> Iterator[str]:
    server = moto.ThreadedMotoServer(ip_address="127.0.0.1", port=0, verbose=False)
    server.start()
    host, port = server.get_host_and_port()
    yield f"http://{host}:{port}"
    server.stop()


@pytest.fixture(scope="module")
def bucket(endpoint: str) -> Any:
    import boto3

    client = boto3.client(
        "s3", endpoint_url=endpoint, region_name="us-east-1", aws_access_key_id="AK", aws_secret_access_key="SK"
    )
    client.create_bucket(Bucket="data")
    for key in ("p/a.txt", "p/d/b.txt", "p/d/", "pq.txt", "p2/../up.txt"):
        client.put_object(Bucket="data", Key=key, Body=key.encode())
    client.put_object(Bucket="data", Key="big/file.bin", Body=BIG)
    return client


def test_objects_below_a_prefix(endpoint: str, bucket: Any, run_import: Import) -> None:
    for uri in ("s3://data/p", "s3://data/p/"):
        found = run_import(s3={"uri": uri, "endpoint": endpoint}, credentials=KEYS)
        assert found["content"] == {"a.txt": b"p/a.txt", "d/b.txt": b"p/d/b.txt"}
    assert found["provenance"] == {"uri": "s3://data/p/", "endpoint": endpoint}


def test_import_runs_within_its_bounds(endpoint: str, bucket: Any, run_process: Import) -> None:
    found = run_process(s3={"uri": "s3://data/p", "endpoint": endpoint}, credentials=KEYS)
    assert [file["path"] for file in found["files"]] == ["a.txt", "d/b.txt"]


def test_one_object_by_its_key(endpoint: str, bucket: Any, run_import: Import) -> None:
    found = run_import(s3={"uri": "s3://data/big/file.bin", "endpoint": endpoint}, credentials=KEYS, limit=4 << 20)
    assert found["content"] == {"file.bin": BIG}


def test_reasons(endpoint: str, bucket: Any, run_import: Import) -> None:
    def reason(uri: str, **options: Any) -> str:
        failed = run_import(s3={"uri": uri, "endpoint": endpoint}, **{"credentials": KEYS, **options})
        return str(failed["reason"])

    assert reason("s3://data/nope") == "SourceNotFound"
    assert reason("s3://no-such-bucket/") == "SourceNotFound"
    assert reason("s3://data/big/") == "SourceTooLarge"
    assert reason("s3://data/p2/") == "SourcePathRefused"
    assert reason("s3://data/p", credentials={"AWS_ACCESS_KEY_ID": "AK"}) == "SourceAccessDenied"
    assert reason("s3://data/p", allowed=()) == "SourceAddressRefused"


def test_the_servers_own_credentials_are_never_used(
    endpoint: str, bucket: Any, run_import: Import, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("AWS_ACCESS_KEY_ID", "OPERATOR")
    monkeypatch.setenv("AWS_SECRET_ACCESS_KEY", "OPERATOR")
    monkeypatch.setenv("AWS_ENDPOINT_URL", "http://elsewhere.invalid")
    seen: list[str | None] = []
    import botocore.awsrequest

    prepare = botocore.awsrequest.AWSRequest.prepare

    def noting(request: Any) -> Any:
        seen.append(request.headers.get("Authorization"))
        return prepare(request)

    monkeypatch.setattr(botocore.awsrequest.AWSRequest, "prepare", noting)
    run_import(s3={"uri": "s3://data/p", "endpoint": endpoint})
    assert seen and set(seen) == {None}
    assert os.environ["AWS_ACCESS_KEY_ID"] == "OPERATOR"
