"""Volumes: files with committed revisions, through the API."""

from __future__ import annotations

import os
import stat
from collections.abc import Iterator
from pathlib import Path
from typing import Any

from nodus.client.blocking import blocking, blocking_class
from nodus.client.client import Client, default_client
from nodus.client.handles import Handle
from nodus.client.http import new_key
from nodus.client.outputs import safe_name, save
from nodus.client.record import Record, as_record
from nodus.core.errors import NodusError, NotFound

DEFAULT_SIZE = "50Gi"
# Named here: inside the class, `list` is the method.
Paths = list[Path]
Records = list[Record]


class Volume(Handle):
    """Files that runs mount, in revisions: an upload is seen whole or not at all."""

    kind = "Volume"

    @blocking_class
    async def from_name(
        cls: type[Volume],
        name: str,
        *,
        create_if_missing: bool = False,
        size: str = DEFAULT_SIZE,
        access_mode: str = "ReadWriteMany",
        project: str | None = None,
        client: Client | None = None,
    ) -> Volume:
        """Return a volume's handle.

        Args:
            name: Its name.
            create_if_missing: Make an empty one where there is none.
            size: Of a new one.
            access_mode: Of a new one: ReadWriteOnce, ReadOnlyMany or ReadWriteMany.
            project: Another project than the client's own.
            client: Another server than the configured one.

        Raises:
            NotFound: When there is none and ``create_if_missing`` is false.
        """
        client = client or default_client()
        try:
            return Volume(await client.resources.get("Volume", name, project=project), client)
        except NotFound:
            if not create_if_missing:
                raise
        spec = {"accessMode": access_mode, "size": size}
        document = {"apiVersion": "nodus.dev/v1", "kind": "Volume", "metadata": {"name": name}, "spec": spec}
        return Volume(await client.resources.create(document, project=project), client)

    @blocking
    async def put(self, source: str | os.PathLike[str], target: str = "/") -> int:
        """Upload a file, or everything below a directory, and return the new revision.

        Files of the newest revision stay, unless they are written anew.

        Args:
            source: A file or directory of this machine.
            target: Where in the volume; a path that ends in a slash takes the file's own name.

        Raises:
            NodusError: When the source isn't there or holds a symbolic link.
        """
        files = list(_files_of(Path(source), target))
        path = await self._path("uploads")
        upload = await self.client.api.call("POST", path, body={"mode": "Write"}, idempotency_key=new_key("upload"))
        for place, file in files:
            mode = f"{stat.S_IMODE(file.stat().st_mode):o}"
            await self.client.api.call(
                "PUT",
                f"{path}/{upload['id']}/files",
                query={"path": place, "mode": mode},
                body=file,
                timeout_s=300.0,
                headers={"Content-Type": "application/octet-stream"},
            )
        done = await self.client.api.call("PUT", f"{path}/{upload['id']}", body={"commit": {}})
        await self.refresh.aio()
        return int(done["revision"])

    @blocking
    async def list(self, path: str = "", revision: int | None = None) -> Records:
        """Return the files below a path, each with ``path``, ``size`` and ``sha256``.

        Args:
            path: A directory; everything when empty.
            revision: An earlier revision; the newest when None.
        """
        return [as_record(item) for item in await self._list(path, revision)]

    async def _list(self, path: str, revision: int | None) -> Any:
        # Listed whole and cut here: asked for a file's own path, the server sends the file.
        listed = await self.client.api.call("GET", await self._path("files"), query={"revision": revision})
        wanted = path.strip("/")
        return [
            item
            for item in listed.get("items") or []
            if not wanted or item["path"] == wanted or item["path"].startswith(f"{wanted}/")
        ]

    @blocking
    async def get(self, path: str, target: str | os.PathLike[str], revision: int | None = None) -> Paths:
        """Download a file, or everything below a directory, each file checked; return what was written.

        Args:
            path: In the volume; ``/`` for everything.
            target: A file for a file (or a directory that is there), a directory for a directory.
            revision: An earlier revision; the newest when None.

        Raises:
            NotFound: When nothing is at that path.
        """
        wanted, found = path.strip("/"), await self._list(path, revision)
        if not found:
            raise NotFound(
                f"volume {self.name!r} has nothing at {path!r}", fix=f"`nodus volume ls {self.name}` lists it."
            )
        written = []
        for item in found:
            destination = Path(target)
            if item["path"] != wanted:
                destination = destination / safe_name(item["path"][len(wanted) :].lstrip("/"))
            elif destination.is_dir():
                destination = destination / safe_name(wanted).name
            written.append(await self._fetch(item, destination, revision))
        return written

    async def _fetch(self, item: dict[str, Any], destination: Path, revision: int | None) -> Path:
        query = {"path": item["path"], "revision": revision}
        answer = await self.client.api.answer("GET", await self._path("files"), query=query)
        location = answer.headers.get("location")
        if location is None:
            raise NodusError(f"the server did not say where {item['path']!r} is")
        destination.parent.mkdir(parents=True, exist_ok=True)
        return await save(await self.client.api.fetch(location), destination, item["path"], item.get("sha256"))


def _files_of(source: Path, target: str) -> Iterator[tuple[str, Path]]:
    """Yield each file with its path in the volume."""
    base = target.strip("/")
    if source.is_file():
        yield (f"{base}/{source.name}".lstrip("/") if target.endswith("/") or not base else base), source
        return
    if not source.is_dir():
        raise NodusError(f"{source} is neither a file nor a directory", fix="Check the path.")
    found = sorted(source.rglob("*"))
    links = [path for path in found if path.is_symlink()]
    if links:
        raise NodusError(f"{links[0]} is a symbolic link, which a volume can't hold", fix="Put the file itself there.")
    files = [path for path in found if path.is_file()]
    if not files:
        raise NodusError(f"{source} holds no files", fix="Check the path.")
    for path in files:
        yield f"{base}/{path.relative_to(source).as_posix()}".lstrip("/"), path
