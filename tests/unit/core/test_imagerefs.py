"""References to images: by digest, with the registry written out."""

from __future__ import annotations

import pytest

from nodus.core.imagerefs import parse_image

HEX = "0123456789abcdef" * 4


def test_a_reference_by_digest_is_taken_apart() -> None:
    found = parse_image(f"registry.example.com:5000/acme/reverse_words.v2@sha256:{HEX}")
    assert (found.registry, found.repository) == ("registry.example.com:5000", "acme/reverse_words.v2")
    assert found.digest == f"sha256:{HEX}"
    assert str(found) == f"registry.example.com:5000/acme/reverse_words.v2@sha256:{HEX}"
    assert (found.host, found.loopback) == ("registry.example.com", False)


@pytest.mark.parametrize("registry", ["localhost", "localhost:5000", "127.0.0.1:5000", "127.1.2.3", "[::1]:5000"])
def test_only_this_machines_registries_are_loopback(registry: str) -> None:
    assert parse_image(f"{registry}/task@sha256:{HEX}").loopback


@pytest.mark.parametrize("registry", ["localhost.example.com", "128.0.0.1", "127.0.0.1.example.com", "10.0.0.1:5000"])
def test_others_are_not(registry: str) -> None:
    assert not parse_image(f"{registry}/task@sha256:{HEX}").loopback


@pytest.mark.parametrize(
    ("text", "says"),
    [
        ("registry.example.com/acme/task:1.0.0", "names a tag"),
        ("registry.example.com/acme/task:1.0.0", "registry.example.com/acme/task@sha256:"),
        ("registry.example.com:5000/acme/task:1.0.0", "registry.example.com:5000/acme/task@sha256:"),
        ("registry.example.com/acme/task", "has no digest"),
        ("task:latest", "names a tag"),
        ("", "has no digest"),
        (f"registry.example.com/acme/task:1.0.0@sha256:{HEX}", "leave the tag out"),
        (f"acme/task@sha256:{HEX}", "names no registry"),
        (f"task@sha256:{HEX}", "names no registry"),
        (f"registry.example.com/Acme/task@sha256:{HEX}", "lower-case"),
        (f"registry.example.com/../task@sha256:{HEX}", "lower-case"),
        (f"registry.example.com//task@sha256:{HEX}", "lower-case"),
        (f"-o.example.com/task@sha256:{HEX}", "names no registry"),
        (f"user:pw@registry.example.com/task@sha256:{HEX}", "digest"),
        (f"docker://registry.example.com/task@sha256:{HEX}", "scheme"),
        ("registry.example.com/acme/task@sha256:0123", "64 lower-case hex digits"),
        (f"registry.example.com/acme/task@sha256:{HEX.upper()}", "64 lower-case hex digits"),
        (f"registry.example.com/acme/task@md5:{HEX}", "64 lower-case hex digits"),
        (f"registry.example.com/acme/task@sha256:{HEX}\n", "64 lower-case hex digits"),
        (f"registry.example.com/{'a' * 600}@sha256:{HEX}", "longer than"),
    ],
)
def test_anything_else_is_refused_with_what_to_write(text: str, says: str) -> None:
    with pytest.raises(ValueError) as refused:
        parse_image(text)
    assert says in str(refused.value)
