"""The keyring: keys, tokens, links and sealed values, and that none stands in for another."""

from __future__ import annotations

import json
from pathlib import Path

import pytest

from nodus.server.signing import KeyringError, Signer

OLD, NEW = Signer({1: b"1" * 32}), Signer({1: b"1" * 32, 2: b"2" * 32})


def test_key_file_is_made_once_private_and_read_again(tmp_path: Path) -> None:
    path = tmp_path / "keys.json"
    first = Signer.open(path)
    assert path.stat().st_mode & 0o777 == 0o600
    assert Signer.open(path).hash_api_key("nodus_x") == first.hash_api_key("nodus_x")


@pytest.mark.parametrize(
    "text",
    ["", "{}", '{"keys": {}}', '{"keys": {"1": "!"}}', '{"keys": {"1": "c2hvcnQ="}}', '{"keys": {"x": ""}}', "[]"],
)
def test_damaged_key_file_is_refused(tmp_path: Path, text: str) -> None:
    path = tmp_path / "keys.json"
    path.write_text(text)
    with pytest.raises(KeyringError):
        Signer.open(path)
    assert path.read_text() == text


def test_key_hashes_differ_by_key_and_hold_over_a_rotation() -> None:
    stored = OLD.hash_api_key("nodus_a")
    assert stored.digest != OLD.hash_api_key("nodus_b").digest
    assert stored in NEW.candidate_hashes("nodus_a")
    assert NEW.hash_api_key("nodus_a").key_version == 2


def test_attempt_tokens_prove_their_attempt_also_after_a_rotation() -> None:
    token = OLD.attempt_token("uid-1")
    assert token == OLD.attempt_token("uid-1")
    assert NEW.verify_attempt_token(token) == "uid-1"
    assert OLD.verify_attempt_token(NEW.attempt_token("uid-1")) is None
    for forged in (
        "",
        "nodusat_",
        "nodusat_1",
        "nodusat_1.a",
        "nodusat_1..",
        token + "0",
        token.replace("uid-1", "uid-2"),
    ):
        assert OLD.verify_attempt_token(forged) is None


def test_links_hold_for_one_method_path_and_time() -> None:
    query = OLD.sign_query("GET", "/a", {"name": "x y"}, 100)
    assert OLD.verify_query("GET", "/a", query, 99.0) == {"name": "x y", "expires": "100", "key": "1"}
    assert OLD.verify_query("GET", "/a", query, 100.0) is None
    assert OLD.verify_query("PUT", "/a", query, 99.0) is None
    assert OLD.verify_query("GET", "/b", query, 99.0) is None
    assert OLD.verify_query("GET", "/a", query.replace("x+y", "z"), 99.0) is None
    assert OLD.verify_query("GET", "/a", "", 99.0) is None


def test_sealed_values_open_only_with_their_context_and_key() -> None:
    sealed = OLD.encrypt(b"value", "secret-1")
    assert OLD.encrypt(b"value", "secret-1") != sealed, "each sealing has a nonce of its own"
    assert NEW.decrypt(sealed, "secret-1") == b"value"
    for signer, text, context in (
        (OLD, sealed, "secret-2"),
        (Signer({1: b"x" * 32}), sealed, "secret-1"),
        (OLD, sealed[:-4] + "AAA=", "secret-1"),
        (OLD, "1:", "secret-1"),
        (OLD, "nonsense", "secret-1"),
        (OLD, NEW.encrypt(b"value", "secret-1"), "secret-1"),
    ):
        with pytest.raises(KeyringError):
            signer.decrypt(text, context)


def test_uses_have_keys_of_their_own() -> None:
    assert len({OLD._subkey(purpose, 1) for purpose in ("api-key", "attempt", "url", "secret", "request")}) == 5
    assert b"1" * 32 not in json.dumps([OLD.hash_api_key("x").digest, OLD.attempt_token("x")]).encode()
