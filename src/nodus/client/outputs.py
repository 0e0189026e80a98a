"""The files a run left behind: listed, and downloaded with their digest checked."""

from __future__ import annotations

import os
from pathlib import Path, PurePosixPath
from typing import NamedTuple

from nodus.client.blocking import blocking
from nodus.client.downloads import download, save, whole
from nodus.client.http import Api
from nodus.client.transport import Exchange
from nodus.core.errors import NodusError, NotFound

# Named here: inside the class, `list` is the method.
Names = list[str]
Paths = list[Path]
Entries = list[tuple[str, int | None]]
PAGE_ITEMS = 5000


class Outputs:
    """Outputs of one run: what `run.outputs` and `job.outputs` are.

    Example::

        run = rl.train(tasks, reward)
        run.wait()
        run.outputs.list()  # names, such as adapter/adapter_model.safetensors
        run.outputs.download("./outputs")  # every file, checked by its sha256
        run.outputs.read("comparison.json")  # the bytes of one

    Args:
        api: The server.
        path: URL path of the run's ``outputs`` subresource.
        what: How messages call the run.
    """

    def __init__(self, api: Api, path: str, what: str) -> None:
        self._api, self._path, self._what = api, path, what

    def __repr__(self) -> str:
        return f"<outputs of {self._what}: list(), read(name), download(directory)>"

    @blocking
    async def list(self, prefix: str = "", *, index: int | None = None) -> Names:
        """Return the outputs' names, such as ``adapter/adapter_model.safetensors``, each once.

        Args:
            prefix: Only names that start so.
            index: Only those of one completion index.
        """
        return [*dict.fromkeys(name for name, _ in await self.entries(prefix, index))]

    async def entries(self, prefix: str = "", index: int | None = None) -> Entries:
        """Return each output's name with its completion index, None where the run has none."""
        found: Entries = []
        query: dict[str, object] = {"limit": PAGE_ITEMS}
        while True:
            listed = await self._api.call("GET", self._path, query=query)
            found += [(str(item["name"]), item.get("index")) for item in listed.get("items") or []]
            if not listed.get("continue"):
                break
            query = {**query, "after": listed["continue"]}
        return [entry for entry in found if entry[0].startswith(prefix) and index in (None, entry[1])]

    @blocking
    async def download(self, target: str | os.PathLike[str], prefix: str = "", *, index: int | None = None) -> Paths:
        """Write every output below a directory, which is made when missing; return the files.

        Of a run with completions, each index's files go into a directory of its number, unless ``index`` names one.

        Args:
            target: The directory.
            prefix: Only outputs whose name starts so, such as ``adapter/``.
            index: Only those of one completion index.

        Raises:
            NotFound: When there are no outputs yet.
            SHA256Mismatch: When bytes arrived that the run did not write; nothing is kept of that file.
        """
        found = await self.entries(prefix, index)
        if not found:
            fix = (
                "Wait for the run to end; one that has ended left none"
                if not prefix
                else "`list()` names those there are"
            )
            raise NotFound(f"{self._what} has no outputs yet{f' below {prefix!r}' if prefix else ''}", fix=f"{fix}.")
        files = []
        for name, of in found:
            home = Path(target) if of is None or index is not None else Path(target, str(of))
            files.append(await self.fetch(name, home / safe_name(name), {"index": of}))
        return files

    @blocking
    async def read(self, name: str, *, index: int | None = None) -> bytes:
        """Return one output's bytes, checked; for small files such as ``results.json``.

        Raises:
            OutputIndexRequired: When several completion indexes have an output of that name and ``index`` names none.
        """
        found = await self._find(name, {"index": index})
        exchange = found.exchange or await self._api.fetch(found.location, name)
        return await whole(exchange, name, found.sha256)

    async def fetch(self, name: str, target: Path, query: dict[str, object] | None = None) -> Path:
        """Write one output to a file, replacing it only when every byte is there and right."""
        found = await self._find(name, query)
        target.parent.mkdir(parents=True, exist_ok=True)
        if found.exchange is not None:
            return await save(found.exchange, target, name, found.sha256)
        if found.sha256 is None:
            return await save(await self._api.fetch(found.location, name), target, name, None)
        links = [found.location]

        async def locate() -> str:
            return links.pop() if links else (await self._find(name, query)).location

        return await download(self._api, locate, target, name, found.sha256)

    async def _find(self, name: str, query: dict[str, object] | None = None) -> _Found:
        exchange = await self._api.stream("GET", f"{self._path}/{name}", query=query)
        digest = exchange.headers.get("x-nodus-sha256")
        if exchange.status < 300:
            return _Found(digest, "", exchange)
        location = exchange.headers.get("location")
        await exchange.close()
        if not location:
            raise NodusError(f"the server answered for output {name!r} without saying where it is")
        # The link carries its own permission; the key must not go where a redirect leads.
        return _Found(digest, location)


class _Found(NamedTuple):
    """Where an output's bytes are: behind a link, or in the answer itself."""

    sha256: str | None
    location: str
    exchange: Exchange | None = None


def safe_name(name: str) -> PurePosixPath:
    """Return an output's name as a relative path.

    Raises:
        NodusError: When the name would leave the directory it is written to.
    """
    path = PurePosixPath(name)
    if not name or path.is_absolute() or ".." in path.parts:
        raise NodusError(
            f"the output name {name!r} leads outside the target directory", fix="Download other outputs by name."
        )
    return path
