"""What a Volume's source may say: checked when the Volume is made, so that an import fails for outer reasons alone."""

from __future__ import annotations

import importlib.util
import re
import shutil
from typing import TYPE_CHECKING
from urllib.parse import urlsplit

from nodus.core.kinds import SECRET
from nodus.server.store import objects

if TYPE_CHECKING:
    from sqlalchemy import Connection

    from nodus.core.kinds.storage import VolumeSource
    from nodus.server.kinds.base import Draft

NOT_BUILT = "FieldValueNotSupported"
_HUB_REPO = re.compile(r"(datasets/)?[A-Za-z0-9][A-Za-z0-9._-]{0,95}/[A-Za-z0-9][A-Za-z0-9._-]{0,95}")
_REF = re.compile(r"(?!-)[A-Za-z0-9][A-Za-z0-9._/+@-]{0,249}")
_BUCKET = re.compile(r"[a-z0-9][a-z0-9.-]{1,61}[a-z0-9]")


def check(conn: Connection, draft: Draft, source: VolumeSource) -> None:
    """Note every mistake in a source, and what this installation lacks for it."""
    if source.huggingface is not None:
        if not _HUB_REPO.fullmatch(source.huggingface.repo):
            draft.reject(
                "spec.source.huggingface.repo",
                f"{source.huggingface.repo[:80]!r} is no repository; write OWNER/NAME or datasets/OWNER/NAME",
            )
        _check_secret(conn, draft, "huggingface", source.huggingface.secret)
    if source.url is not None:
        _check_address(draft, "spec.source.url.url", source.url.url)
    if source.git is not None:
        _check_git(conn, draft, source)
    if source.s3 is not None:
        _check_s3(conn, draft, source)
    if source.connection_query is not None:
        message = "there are no Connections here yet; upload the files with `nodus volume put`"
        draft.reject("spec.source.connectionQuery", message, NOT_BUILT)


def _check_git(conn: Connection, draft: Draft, source: VolumeSource) -> None:
    git = source.git
    assert git is not None
    check_repository(draft, git.repo, git.ref, git.path)
    _check_secret(conn, draft, "git", git.secret)


def check_repository(draft: Draft, repo: str, ref: str | None, path: str | None) -> None:
    """Note every mistake in ``spec.source.git``, a Volume's or a Job's.

    Args:
        draft: Where mistakes go.
        repo: Address of the repository.
        ref: Commit, branch or tag.
        path: Directory in it.
    """
    _check_address(draft, "spec.source.git.repo", repo)
    if ref is not None and (not _REF.fullmatch(ref) or ".." in ref):
        draft.reject("spec.source.git.ref", f"{ref[:80]!r} is no commit, branch or tag")
    if path is not None and any(part in ("..", ".git") for part in path.split("/")):
        draft.reject("spec.source.git.path", f"{path[:80]!r} leads out of the repository's files")
    if shutil.which("git") is None:
        draft.reject("spec.source.git", "the server has no git; install it there: apt-get install git", NOT_BUILT)


def _check_s3(conn: Connection, draft: Draft, source: VolumeSource) -> None:
    s3 = source.s3
    assert s3 is not None
    bucket = s3.uri.removeprefix("s3://").partition("/")[0]
    if not _BUCKET.fullmatch(bucket):
        draft.reject("spec.source.s3.uri", f"{bucket[:80]!r} is no name of a bucket")
    if s3.endpoint is not None:
        _check_address(draft, "spec.source.s3.endpoint", s3.endpoint)
    if s3.connection is not None:
        draft.reject("spec.source.s3.connection", "there are no Connections here yet; name a secret", NOT_BUILT)
    if importlib.util.find_spec("boto3") is None:
        message = "the server lacks boto3; install it there: pip install 'nodus-platform[s3]'"
        draft.reject("spec.source.s3", message, NOT_BUILT)
    _check_secret(conn, draft, "s3", s3.secret)


def _check_address(draft: Draft, path: str, address: str) -> None:
    """An address that the import may try; where its host leads is checked there, when it is looked up."""
    try:
        parts = urlsplit(address)
        port = parts.port
    except ValueError:
        draft.reject(path, f"{address[:80]!r} is no address")
        return
    if parts.scheme not in ("https", "http") or not parts.hostname or port == 0 or not address.isprintable():
        draft.reject(path, f"{address[:80]!r} is no address; write it like https://example.com/data.tar.gz")
    elif parts.username is not None or parts.password is not None:
        # Not quoted: it holds a password, which everybody who reads the Volume would see.
        draft.reject(path, "must not hold a user name or password; put them into a Secret")


def _check_secret(conn: Connection, draft: Draft, source: str, name: str | None) -> None:
    if name is not None and objects.find(conn, SECRET, draft.project, name) is None:
        message = f"there is no secret {name[:80]!r} in project {draft.project}"
        draft.reject(f"spec.source.{source}.secret", message)
