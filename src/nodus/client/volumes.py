"""Volumes: files with committed revisions, through the API."""

from __future__ import annotations

import os
import time
from collections.abc import AsyncGenerator, Iterable, Mapping
from contextlib import aclosing
from pathlib import Path
from typing import Any

from nodus.client.blocking import blocking, blocking_class, blocking_iterator, run_blocking
from nodus.client.client import Client, default_client
from nodus.client.downloads import checked, download, whole
from nodus.client.handles import Handle
from nodus.client.http import new_key
from nodus.client.localfiles import LocalFile, Skipped, files_of
from nodus.client.outputs import safe_name
from nodus.client.record import Record, as_record
from nodus.client.transport import off_loop
from nodus.client.volumefiles import Upload
from nodus.core.errors import BadRequest, NodusError, NotFound, Unsupported

DEFAULT_SIZE = "50Gi"
_PAGE = 5000
_LINK_S = 600.0
"""How long a listing's links are used; they are good for longer."""
# Named here: inside the class, `list` is the method.
Paths = list[Path]
Records = list[Record]
LocalPath = str | os.PathLike[str]


class Volume(Handle):
    """Files that runs mount, in revisions: an upload is seen whole or not at all.

    Example::

        volume = nodus.Volume.from_name("corpus", create_if_missing=True)
        volume.put_directory("./texts", "/raw")
        volume.read_file("/raw/a.txt")
    """

    kind = "Volume"

    @blocking_class
    async def from_name(
        cls: type[Volume],
        name: str,
        *,
        create_if_missing: bool = False,
        size: str = DEFAULT_SIZE,
        access_mode: str | None = None,
        project: str | None = None,
        client: Client | None = None,
    ) -> Volume:
        """Return a volume's handle.

        Args:
            name: Its name.
            create_if_missing: Make an empty one where there is none.
            size: Of a new one.
            access_mode: Of a new one: ReadWriteOnce, ReadOnlyMany or ReadWriteMany, which is the default.
            project: Another project than the client's own.
            client: Another server than the configured one.

        Raises:
            NotFound: When there is none and ``create_if_missing`` is false.
        """
        client = client or default_client()
        if client.connection.socket is not None:
            # From inside a run: it may commit and reload what it mounts, and read no object.
            return Volume({"metadata": {"name": name, "namespace": project}}, client)
        try:
            return Volume(await client.resources.get("Volume", name, project=project), client)
        except NotFound:
            if not create_if_missing:
                raise
        spec = {"accessMode": access_mode or "ReadWriteMany", "size": size}
        return Volume(await client.resources.create(_manifest(name, spec), project=project), client)

    @blocking_class
    async def import_from(
        cls: type[Volume],
        name: str,
        *,
        huggingface: str | None = None,
        revision: str | None = None,
        git: str | None = None,
        url: str | None = None,
        sha256: str | None = None,
        extract: str = "auto",
        s3: str | None = None,
        endpoint: str | None = None,
        region: str | None = None,
        secret: str | None = None,
        size: str = DEFAULT_SIZE,
        project: str | None = None,
        client: Client | None = None,
    ) -> Volume:
        """Return the handle of a read-only volume that the server fills; `wait_ready` waits until it has.

        Give exactly one of ``huggingface``, ``git``, ``url`` and ``s3``.

        Args:
            name: Its name; one that is there already must come from the same source.
            huggingface: ``OWNER/NAME`` of a model, or ``datasets/OWNER/NAME``.
            revision: Commit, branch or tag, of the hub or of git.
            git: Address of a repository, https or http.
            url: Address of a file.
            sha256: Digest that the file must have.
            extract: ``auto`` unpacks archives, ``none`` keeps them.
            s3: ``s3://BUCKET/PREFIX``.
            endpoint: Address of an S3 server other than Amazon's.
            region: Of the bucket.
            secret: Secret with the credentials that the source asks for.
            size: Most that it may hold.
            project: Another project than the client's own.
            client: Another server than the configured one.

        Raises:
            BadRequest: When no source is given, or several.
            Invalid: When the server can't import from there.
        """
        given = {"huggingface": huggingface, "git": git, "url": url, "s3": s3}
        named = [key for key, value in given.items() if value is not None]
        if len(named) != 1:
            words = ", ".join(named) or "none of them"
            raise BadRequest(f"import_from takes exactly one of huggingface, git, url and s3, not {words}")
        parts: dict[str, dict[str, Any]] = {
            "huggingface": {"repo": huggingface, "revision": revision, "secret": secret},
            "git": {"repo": git, "ref": revision, "secret": secret},
            "url": {"url": url, "sha256": sha256, "extract": extract.capitalize()},
            "s3": {"uri": s3, "endpoint": endpoint, "region": region, "secret": secret},
        }
        source = {named[0]: {key: value for key, value in parts[named[0]].items() if value is not None}}
        spec = {"accessMode": "ReadOnlyMany", "size": size, "source": source}
        client = client or default_client()
        return Volume(await client.resources.create(_manifest(name, spec), project=project), client)

    @blocking
    async def wait_ready(self, timeout: float | None = 3600.0) -> None:  # noqa: ASYNC109 - the caller's bound, in seconds
        """Wait until the volume's files are there.

        Raises:
            NodusError: When the import failed; the message says why, ``fix`` what to do.
            NodusTimeout: When ``timeout`` seconds passed first.
        """
        await self._reach(("Ready", "Failed"), timeout, "Ready")
        if self.phase == "Failed":
            message = f"volume {self.name} failed: {self.status.get('reason')}: {self.status.get('message')}"
            raise NodusError(message, fix=self.status.get("fix"), details={"reason": self.status.get("reason")})

    # Writing --------------------------------------------------------------------------------------------------

    @blocking
    async def put(
        self,
        source: LocalPath,
        target: str = "/",
        *,
        follow_symlinks: bool = False,
        skipped: Skipped | None = None,
    ) -> int:
        """Upload a file, or everything below a directory, and return the new revision.

        Files of the newest revision stay, unless they are written anew. A call that was interrupted, made again, sends
        only what is missing. A link to a file inside the directory becomes a copy; other links, sockets, pipes and
        devices are left out.

        Args:
            source: A file or directory of this machine.
            target: Where in the volume; a file goes below it when it ends in a slash or is a directory there.
            follow_symlinks: Whether to take what links lead to, wherever that is.
            skipped: Is told of each file that is left out; a Python warning when unset.

        Raises:
            NodusError: When the source isn't there or can't be read, or nothing in it can be taken.
            VolumeBusy: When a Job writes to the volume; ``holder`` names it.
            RequestEntityTooLarge: When the volume would hold more than its size.
        """
        into = Path(source).is_file() and await self._is_directory(target)  # noqa: ASYNC240 - one look at a name
        return await self._write(
            await off_loop(files_of, source, target, inside=into, follow_symlinks=follow_symlinks, skipped=skipped)
        )

    @blocking
    async def put_file(self, local_path: LocalPath, remote_path: str) -> int:
        """Upload a file to just this path, or below it when it ends in a slash; return the new revision."""
        if not Path(local_path).is_file():  # noqa: ASYNC240 - one look at a name
            raise NodusError(f"{local_path} is not a file", fix="Use put_directory for a directory.")
        return await self._write(await off_loop(files_of, local_path, remote_path))

    @blocking
    async def put_directory(
        self,
        local_path: LocalPath,
        remote_path: str = "/",
        *,
        follow_symlinks: bool = False,
        skipped: Skipped | None = None,
    ) -> int:
        """Upload everything below a directory; return the new revision. See `put` for links and errors."""
        if not Path(local_path).is_dir():  # noqa: ASYNC240 - one look at a name
            raise NodusError(f"{local_path} is not a directory", fix="Use put_file for a file.")
        found = await off_loop(files_of, local_path, remote_path, follow_symlinks=follow_symlinks, skipped=skipped)
        return await self._write(found)

    @blocking
    async def write_file(self, remote_path: str, content: bytes | str) -> int:
        """Write bytes, or text as UTF-8, to a path; return the new revision."""
        data = content.encode() if isinstance(content, str) else content
        return await self._write([LocalFile(remote_path.strip("/"), data)])

    @blocking
    async def remove_file(self, path: str) -> int:
        """Remove a file, or everything below a directory; return the new revision, which lacks it.

        Raises:
            NotFound: When nothing is there.
        """
        return await self._write([], [path.strip("/")])

    def batch_upload(self) -> BatchUpload:
        """Return a context manager that collects files and directories and commits them as one revision.

        Example::

            with volume.batch_upload() as batch:
                batch.put_file("train.jsonl", "/train.jsonl")
                batch.put_directory("./images", "/images")
        """
        return BatchUpload(self)

    @blocking
    async def clear(self) -> int:
        """Commit an empty revision and return it; the volume and its history stay."""
        return await self._commit_known({"mode": "Clear"}, "clear")

    @blocking
    async def restore(self, revision: int) -> int:
        """Commit an earlier revision's files again, as the newest revision, and return that.

        Raises:
            NotFound: When there is no such revision.
        """
        return await self._commit_known({"mode": "Restore", "revision": revision}, "restore")

    @blocking
    async def commit(self) -> int:
        """From inside a run: make what it has written so far a revision, and return that.

        What it wrote is committed anyway when it succeeds; this is for readers that can't wait, and for what must
        outlive a failure.

        Raises:
            Unsupported: Outside of a run.
            Conflict: When the run mounts the volume read-only.
        """
        return await self._sync("commit")

    @blocking
    async def reload(self) -> int:
        """From inside a run: take over what others have committed; return the revision. What it wrote itself stays.

        Raises:
            Unsupported: Outside of a run.
            Conflict: When the run mounts the volume read-only.
        """
        return await self._sync("reload")

    async def _sync(self, verb: str) -> int:
        if self.client.connection.socket is None:
            raise Unsupported(f"Volume.{verb} works only inside a run that mounts the volume", fix="Use put or get.")
        done = await self.client.api.call("POST", f"/_nodus/v1/volumes/{self.name}/{verb}", timeout_s=3600.0)
        return int(done["revision"])

    async def _commit_known(self, body: Mapping[str, Any], site: str) -> int:
        path = await self._path("uploads")
        done = await self.client.api.call("POST", path, body=dict(body), idempotency_key=new_key(site))
        await self.refresh.aio()
        return int(done["revision"])

    async def _write(self, files: Iterable[LocalFile], removed: Iterable[str] = ()) -> int:
        upload = Upload(self.client.api, await self._path("uploads"), self.name)
        revision = await upload.run(list(files), removed)
        await self.refresh.aio()
        return revision

    # Reading --------------------------------------------------------------------------------------------------

    @blocking
    async def revisions(self) -> Records:
        """Return every committed state, newest first: ``revision``, ``files``, ``bytes`` and ``committedTime``."""
        listed = await self.client.api.call("GET", await self._path("revisions"))
        return [as_record(item) for item in listed.get("items") or []]

    @blocking
    async def list(self, path: str = "", revision: int | None = None) -> Records:
        """Return the files below a path, however deep, each with ``path``, ``size``, ``sha256`` and ``mode``.

        Args:
            path: A directory; everything when empty.
            revision: An earlier revision; the newest when None.
        """
        return [as_record(item) for item in await self._list(path, revision)]

    @blocking
    async def listdir(self, path: str = "/", revision: int | None = None) -> Records:
        """Return what a directory holds: ``name``, ``path``, ``type`` (``file`` or ``directory``) and ``size``.

        Args:
            path: The directory.
            revision: An earlier revision; the newest when None.

        Raises:
            NotFound: When there is no such directory.
        """
        base = path.strip("/")
        found = await self._list(path, revision)
        if base and not found:
            raise NotFound(f"volume {self.name!r} has nothing at {path!r}")
        return entries(found, base)

    @blocking
    async def read_file(self, remote_path: str, revision: int | None = None) -> bytes:
        """Return a file's bytes, checked; for files that fit into memory.

        Raises:
            NotFound: When there is no such file.
        """
        location, sha256 = await self._locate(remote_path.strip("/"), revision)
        return await whole(await self.client.api.fetch(location, remote_path), remote_path, sha256)

    @blocking_iterator
    async def stream(self, remote_path: str, revision: int | None = None) -> AsyncGenerator[bytes, None]:
        """Yield a file's bytes as they arrive; for files of any size. The digest is checked at the end.

        Raises:
            NotFound: When there is no such file.
            SHA256Mismatch: After the last piece, when other bytes arrived.
        """
        location, sha256 = await self._locate(remote_path.strip("/"), revision)
        exchange = await self.client.api.fetch(location, remote_path)
        async with aclosing(checked(exchange, remote_path, sha256)) as chunks:
            async for chunk in chunks:
                yield chunk

    @blocking
    async def get(self, path: str, target: LocalPath, revision: int | None = None, *, overwrite: bool = True) -> Paths:
        """Download a file, or everything below a directory, each file checked; return the files.

        Args:
            path: In the volume; ``/`` for everything.
            target: A file for a file (or a directory that is there), a directory for a directory.
            revision: An earlier revision; the newest when None.
            overwrite: Replace files of this machine that are there with other content.

        Raises:
            NotFound: When nothing is at that path.
            NodusError: When a file is there and ``overwrite`` is false.
        """
        wanted, found = path.strip("/"), await self._list(path, revision, links=True)
        if not found:
            raise NotFound(
                f"volume {self.name!r} has nothing at {path!r}", fix=f"`nodus volume ls {self.name}` lists it."
            )
        placed = [(item, _destination(item["path"], wanted, target)) for item in found]
        there = [where for _, where in placed if where.exists()]
        if there and not overwrite:
            more = f" and {len(there) - 1} more" if len(there) > 1 else ""
            raise NodusError(f"{there[0]}{more} is there already", fix="--force (or overwrite=True) replaces it.")
        listed = time.monotonic()
        return [await self._fetch(item, where, revision, listed) for item, where in placed]

    async def _fetch(self, item: Mapping[str, Any], where: Path, revision: int | None, listed: float) -> Path:
        path = str(item["path"])
        try:
            where.parent.mkdir(parents=True, exist_ok=True)
        except OSError as error:
            raise NodusError(f"{where.parent} can't be made: {error.strerror}", fix="Name another target.") from error

        links = [str(item["url"])] if item.get("url") else []

        async def locate() -> str:
            # The listing's link may be too old by the time it is this file's turn.
            fresh = bool(links) and time.monotonic() - listed < _LINK_S
            return links.pop() if fresh else (await self._locate(path, revision))[0]

        written = await download(self.client.api, locate, where, path, str(item["sha256"]))
        if int(str(item.get("mode") or "644"), 8) & 0o100:
            written.chmod(0o755)
        return written

    async def _locate(self, path: str, revision: int | None) -> tuple[str, str | None]:
        """Return a link to a file's bytes, and their sha256."""
        query = {"path": path, "revision": revision}
        answer = await self.client.api.answer("GET", await self._path("files"), query=query)
        location = answer.headers.get("location")
        if location is None:
            raise NotFound(f"volume {self.name!r} has no file {path!r}", fix="It may be a directory.")
        return location, answer.headers.get("x-nodus-sha256")

    async def _list(self, path: str, revision: int | None, *, links: bool = False) -> Any:
        # Listed whole and cut here: asked for a file's own path, the server sends the file.
        wanted, found, after = path.strip("/"), [], None
        url = await self._path("files")
        while True:
            query = {"revision": revision, "limit": _PAGE, "after": after, "links": True if links else None}
            listed = await self.client.api.call("GET", url, query=query)
            found += [
                item
                for item in listed.get("items") or []
                if not wanted or item["path"] == wanted or item["path"].startswith(f"{wanted}/")
            ]
            after = listed.get("continue")
            if not after:
                return found

    async def _is_directory(self, path: str) -> bool:
        base = path.strip("/")
        return bool(base) and any(item["path"].startswith(f"{base}/") for item in await self._list(path, None))


class BatchUpload:
    """Files and directories that become one revision; used as a context manager, blocking or async.

    Nothing is sent before the end of the block, and nothing at all when the block raises.

    Attributes:
        revision: The new revision, once the block has ended.
    """

    def __init__(self, volume: Volume) -> None:
        self._volume = volume
        self._files: dict[str, LocalFile] = {}
        self._removed: list[str] = []
        self.revision: int | None = None

    def put_file(self, local_path: LocalPath, remote_path: str) -> None:
        """Add a file; see `Volume.put_file`."""
        self._add(files_of(local_path, remote_path))

    def put_directory(self, local_path: LocalPath, remote_path: str = "/", *, follow_symlinks: bool = False) -> None:
        """Add everything below a directory; see `Volume.put` for links."""
        self._add(files_of(local_path, remote_path, follow_symlinks=follow_symlinks))

    def write_file(self, remote_path: str, content: bytes | str) -> None:
        """Add bytes, or text as UTF-8, under a path."""
        data = content.encode() if isinstance(content, str) else content
        self._add([LocalFile(remote_path.strip("/"), data)])

    def remove_file(self, path: str) -> None:
        """Remove a file or directory of the revision before."""
        self._removed.append(path.strip("/"))

    def _add(self, files: Iterable[LocalFile]) -> None:
        self._files |= {file.place: file for file in files}

    async def _commit(self) -> None:
        if self._files or self._removed:
            self.revision = await self._volume._write(self._files.values(), self._removed)

    def __enter__(self) -> BatchUpload:
        return self

    def __exit__(self, kind: type[BaseException] | None, *rest: object) -> None:
        if kind is None:
            run_blocking(self._commit())

    async def __aenter__(self) -> BatchUpload:
        return self

    async def __aexit__(self, kind: type[BaseException] | None, *rest: object) -> None:
        if kind is None:
            await self._commit()


def entries(files: Iterable[Mapping[str, Any]], base: str) -> Records:
    """Return what stands directly below a directory, from all the files below it; a directory's size is its files'."""
    found: dict[str, dict[str, Any]] = {}
    for item in files:
        path = str(item["path"])
        if path == base:
            name, slash, place = path.rpartition("/")[2], "", path
        else:
            name, slash, _ = path[len(base) :].lstrip("/").partition("/")
            place = f"{base}/{name}".lstrip("/")
        kind = "directory" if slash else "file"
        entry = found.setdefault(name, {"name": name, "path": place, "type": kind, "size": 0})
        entry["size"] += int(item["size"])
    return [as_record(found[name]) for name in sorted(found)]


def _destination(path: str, wanted: str, target: LocalPath) -> Path:
    destination = Path(target)
    if path != wanted:
        return destination / safe_name(path[len(wanted) :].lstrip("/"))
    return destination / safe_name(wanted).name if destination.is_dir() else destination


def _manifest(name: str, spec: Mapping[str, Any]) -> dict[str, Any]:
    return {"apiVersion": "nodus.dev/v1", "kind": "Volume", "metadata": {"name": name}, "spec": dict(spec)}
