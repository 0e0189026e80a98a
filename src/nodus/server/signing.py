"""The server's keyring: API-key HMACs, attempt tokens, signed URLs and encryption of secret values.

Runs in the server process. One versioned key file (``<data>/keys.json``, 0600) holds the master keys; every use
derives its own subkey, so that a signature of one kind can never be replayed as another.

It does not protect against somebody who can read the data directory: that person holds the key file.
"""

from __future__ import annotations

import base64
import hashlib
import hmac
import json
import os
import secrets
from collections.abc import Mapping
from dataclasses import dataclass
from pathlib import Path
from urllib.parse import parse_qsl, urlencode

from nodus.server.files import replace_file

ATTEMPT_PREFIX = "nodusat_"
_KEY_BYTES = 32


class KeyringError(RuntimeError):
    """The key file is missing parts or unreadable; the message is one line for the operator."""


@dataclass(frozen=True, slots=True)
class KeyHash:
    """A stored form of an API key: which master key hashed it, and the HMAC-SHA256 as hex."""

    key_version: int
    digest: str


class Signer:
    """Signs and checks everything that leaves the server and comes back.

    Args:
        keys: master keys by version, 32 bytes each; the highest version signs, all of them verify.
        made: when the newest was made, RFC 3339; None where it isn't known.
    """

    def __init__(self, keys: Mapping[int, bytes], made: str | None = None) -> None:
        if not keys or any(len(key) < _KEY_BYTES for key in keys.values()):
            raise KeyringError("the key file holds no usable key (32 bytes each)")
        self._keys = dict(keys)
        self._subkeys: dict[tuple[str, int], bytes] = {}
        self.current = max(self._keys)
        self.made = made

    @classmethod
    def open(cls, path: Path) -> Signer:
        """Read the key file, creating it (0600) when there is none yet.

        Raises:
            KeyringError: the file exists but cannot be used.
        """
        try:
            raw = path.read_text(encoding="utf-8")
        except FileNotFoundError:
            path.parent.mkdir(parents=True, exist_ok=True, mode=0o700)
            fresh = cls({1: secrets.token_bytes(_KEY_BYTES)})
            fresh.save(path)
            return fresh
        except OSError as error:
            raise KeyringError(f"cannot read {path}: {error.strerror}") from error
        try:
            content = json.loads(raw)
            keys = {int(version): base64.b64decode(key, validate=True) for version, key in content["keys"].items()}
            return cls(keys, content.get("made"))
        except (ValueError, KeyError, TypeError, AttributeError) as error:
            raise KeyringError(f"{path} is damaged; restore it from a backup, stored secrets need it") from error

    def save(self, path: Path, made: str | None = None) -> None:
        """Write the key file (0600), at once.

        Args:
            path: the file.
            made: when the newest key was made, RFC 3339.
        """
        keys = {str(version): base64.b64encode(key).decode() for version, key in self._keys.items()}
        replace_file(path, json.dumps({"keys": keys} | ({"made": made} if made else {})))

    @property
    def versions(self) -> list[int]:
        """Versions of the master keys there are."""
        return sorted(self._keys)

    def rotated(self) -> Signer:
        """The same with one more master key, which signs from now on."""
        return Signer({**self._keys, self.current + 1: secrets.token_bytes(_KEY_BYTES)})

    def only_current(self) -> Signer:
        """The same without the master keys of before."""
        return Signer({self.current: self._keys[self.current]}, self.made)

    def _subkey(self, purpose: str, version: int) -> bytes:
        found = self._subkeys.get((purpose, version))
        if found is None:
            found = hmac.digest(self._keys[version], f"nodus/{purpose}".encode(), "sha256")
            self._subkeys[purpose, version] = found
        return found

    def _version(self, shown: str) -> int | None:
        """The master key that a stranger's text names. Compared as text: reading it as a number may fail."""
        return next((version for version in self._keys if str(version) == shown), None)

    # API keys -------------------------------------------------------------------------------------------------

    def hash_api_key(self, key: str) -> KeyHash:
        """The stored form of ``key`` under the current master key."""
        return KeyHash(self.current, self._hash(key, self.current))

    def candidate_hashes(self, key: str) -> list[KeyHash]:
        """Every stored form ``key`` may have, newest master key first."""
        return [KeyHash(v, self._hash(key, v)) for v in sorted(self._keys, reverse=True)]

    def _hash(self, key: str, version: int) -> str:
        return hmac.digest(self._subkey("api-key", version), key.encode(), "sha256").hex()

    def request_hash(self, request: bytes) -> str:
        """What an idempotency record keeps of a request: keyed, so that a secret in it can't be guessed."""
        return "hmac:" + hmac.digest(self._subkey("request", self.current), request, "sha256").hex()

    # Logins ---------------------------------------------------------------------------------------------------

    def code_digest(self, code: str) -> str:
        """The stored form of a code that a login goes by."""
        return hmac.new(self._subkey("login", self.current), code.encode(), hashlib.sha256).hexdigest()

    def form_token(self, cookie: str, page: str) -> str:
        """What a page's form carries to show that it came from that page, in the browser that has the cookie."""
        text = json.dumps([cookie, page], separators=(",", ":"))
        return hmac.new(self._subkey("form", self.current), text.encode(), hashlib.sha256).hexdigest()

    # Attempt tokens -------------------------------------------------------------------------------------------

    def attempt_token(self, attempt_uid: str) -> str:
        """The bearer token of one attempt. It is the same each time: a restarted server can hand it out again."""
        return f"{ATTEMPT_PREFIX}{self.current}.{attempt_uid}.{self._attempt_mac(attempt_uid, self.current)}"

    def verify_attempt_token(self, token: str) -> str | None:
        """The attempt uid that ``token`` proves, or ``None`` when it proves nothing."""
        shown, _, rest = token.removeprefix(ATTEMPT_PREFIX).partition(".")
        uid, _, mac = rest.rpartition(".")
        version = self._version(shown)
        if version is None or not uid:
            return None
        expected = self._attempt_mac(uid, version)
        return uid if hmac.compare_digest(expected.encode(), mac.encode()) else None

    def _attempt_mac(self, uid: str, version: int) -> str:
        return hmac.new(self._subkey("attempt", version), uid.encode(), hashlib.sha256).hexdigest()

    # Signed URLs ----------------------------------------------------------------------------------------------

    def sign_query(self, method: str, path: str, params: Mapping[str, str], expires_at_s: int) -> str:
        """A query string that lets its holder call ``method path`` until ``expires_at_s`` (unix seconds)."""
        full = {**params, "expires": str(expires_at_s), "key": str(self.current)}
        return urlencode({**full, "signature": self._url_mac(method, path, full, self.current)})

    def verify_query(self, method: str, path: str, query: str, now_s: float) -> dict[str, str] | None:
        """The signed parameters, or ``None`` when the signature is wrong or has expired."""
        params = dict(parse_qsl(query, keep_blank_values=True))
        given = params.pop("signature", "")
        version = self._version(params.get("key", ""))
        if version is None:
            return None
        expected = self._url_mac(method, path, params, version)
        if not hmac.compare_digest(expected.encode(), given.encode()):
            return None
        return params if now_s < int(params["expires"]) else None

    def _url_mac(self, method: str, path: str, params: Mapping[str, str], version: int) -> str:
        text = json.dumps([method, path, sorted(params.items())], separators=(",", ":"))
        return hmac.new(self._subkey("url", version), text.encode(), hashlib.sha256).hexdigest()

    # Secret values --------------------------------------------------------------------------------------------

    def encrypt(self, value: bytes, context: str) -> str:
        """Seal ``value`` with AES-256-GCM. ``context`` (such as the secret's uid and version) must match on opening."""
        from cryptography.hazmat.primitives.ciphers.aead import AESGCM  # late: not needed to become ready

        nonce = os.urandom(12)
        sealed = AESGCM(self._subkey("secret", self.current)).encrypt(nonce, value, context.encode())
        return f"{self.current}:{base64.b64encode(nonce + sealed).decode()}"

    def decrypt(self, sealed: str, context: str) -> bytes:
        """Open what :meth:`encrypt` sealed.

        Raises:
            KeyringError: another key, another context, or damaged data.
        """
        from cryptography.exceptions import InvalidTag
        from cryptography.hazmat.primitives.ciphers.aead import AESGCM

        version, _, body = sealed.partition(":")
        try:
            data = base64.b64decode(body, validate=True)
            return AESGCM(self._subkey("secret", int(version))).decrypt(data[:12], data[12:], context.encode())
        except (InvalidTag, ValueError, KeyError) as error:
            raise KeyringError("a stored secret cannot be opened with this server's key file") from error
