"""References to OCI images by digest, such as ``registry.example.com/acme/task@sha256:...``."""

from __future__ import annotations

import ipaddress
import re
from dataclasses import dataclass

_DIGEST = re.compile(r"sha256:[0-9a-f]{64}")
_HOST = re.compile(r"(?:[A-Za-z0-9](?:[A-Za-z0-9.-]*[A-Za-z0-9])?|\[[0-9a-fA-F:.]+\])(?::[0-9]{1,5})?")
_REPOSITORY = re.compile(r"[a-z0-9]+(?:(?:[._]|__|-+)[a-z0-9]+)*(?:/[a-z0-9]+(?:(?:[._]|__|-+)[a-z0-9]+)*)*")
_TAG = re.compile(r":[A-Za-z0-9_][A-Za-z0-9_.-]{0,127}$")
_MAX_CHARS = 512
_EXAMPLE = "registry.example.com/acme/task@sha256:..."


@dataclass(frozen=True, slots=True)
class ImageReference:
    """An image that can't change.

    Attributes:
        registry: Host of the registry, with its port where it has one.
        repository: Name of the image there.
        digest: ``sha256:`` and 64 hex digits.
    """

    registry: str
    repository: str
    digest: str

    def __str__(self) -> str:
        return f"{self.registry}/{self.repository}@{self.digest}"

    @property
    def host(self) -> str:
        """The registry without its port, and without the brackets of an IPv6 address."""
        if self.registry.startswith("["):
            return self.registry[1 : self.registry.index("]")]
        return self.registry.partition(":")[0]

    @property
    def loopback(self) -> bool:
        """Whether the registry is on this machine; only then may it speak plain HTTP."""
        if self.host.lower() == "localhost":
            return True
        try:
            return ipaddress.ip_address(self.host).is_loopback
        except ValueError:
            return False

    def at(self, digest: str) -> ImageReference:
        """Return the image of another digest in the same place."""
        return ImageReference(self.registry, self.repository, digest)


def parse_image(text: str) -> ImageReference:
    """Return the reference that a text is.

    Args:
        text: ``REGISTRY/NAME@sha256:DIGEST``; a tag before the digest is refused, since it would say nothing.

    Raises:
        ValueError: When it is none; the message says what to write.
    """
    shown = repr(text if len(text) <= 200 else text[:197] + "...")
    if len(text) > _MAX_CHARS:
        raise ValueError(f"{shown} is longer than {_MAX_CHARS} characters")
    if "://" in text:
        raise ValueError(f"{shown} has a scheme; write {_EXAMPLE}")
    name, at, digest = text.partition("@")
    registry, slash, repository = name.partition("/")
    if not at:
        named = "names a tag" if _TAG.search(repository or name) else "has no digest"
        bare = _TAG.sub("", name) if slash else name
        raise ValueError(
            f"{shown} {named}, which may be another image tomorrow; name its digest: {bare}@sha256:... "
            f"(`skopeo inspect docker://{name} --format '{{{{.Digest}}}}'` prints it)"
        )
    if not _DIGEST.fullmatch(digest):
        raise ValueError(f"{shown} has the digest {digest[:80]!r}; a digest is sha256: and 64 lower-case hex digits")
    if _TAG.search(repository):
        raise ValueError(f"{shown} has a tag and a digest; leave the tag out: {_TAG.sub('', name)}@{digest}")
    if not slash or not _is_registry(registry):
        raise ValueError(f"{shown} names no registry; write it out, such as {_EXAMPLE}")
    if not _REPOSITORY.fullmatch(repository):
        raise ValueError(f"{shown} has the name {repository!r}; names are lower-case words between slashes")
    return ImageReference(registry, repository, digest)


def _is_registry(text: str) -> bool:
    """Say whether the first part of a name is a host: one with a dot or a port, or ``localhost``."""
    named = "." in text or ":" in text or text == "localhost"
    return named and bool(_HOST.fullmatch(text))
