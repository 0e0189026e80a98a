"""Bring the files of a hub repository into a directory: a process of its own, started by the server.

`python -m nodus.server.training.importer`, the request as JSON on stdin. Its own process, because huggingface_hub is
heavy, its downloads can't be cancelled from outside, and hashing gigabytes must not hold up the server. It promises
that a directory with an `ok` result holds exactly the files of that commit, each of the size and digest that the hub
states. Interrupted at any point, it goes on where it stopped when it is started again on the same directory.

In the directory: `files/` (the snapshot), `plan.json` (what there is to fetch, for progress), `result.json` (the end).
"""

from __future__ import annotations

import ctypes
import fcntl
import fnmatch
import hashlib
import importlib
import json
import os
import resource
import shutil
import signal
import subprocess
import sys
from collections.abc import Iterable, Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from nodus.server.sources.base import FILES_DIR, PLAN_FILE, Fetched, ImportFailed, Order, check_disk, check_size

RESULT_FILE, LOCK_FILE = "result.json", "lock"
LIBRARY_PROVENANCE = "nodus-provenance.json"
"""Written beside the model by `nodus.trainer.library`."""
HUB_TIMEOUT_S = 30.0
SOURCES = ("url", "git", "s3")
MOST_MEMORY_BYTES = 4 << 30
_IGNORED = (
    "*.onnx",
    "onnx/*",
    "openvino/*",
    "*.h5",
    "*.msgpack",
    "*.tflite",
    "original/*",
    "*.ot",
    "coreml/*",
    ".git*",
)
_WEIGHTS_WHEN_SAFETENSORS = ("*.bin", "*.pth", "*.pt", "*.gguf", "*.ckpt")


@dataclass(frozen=True, slots=True)
class Wanted:
    """One file of the snapshot, as the hub states it."""

    path: str
    size: int
    sha256: str | None
    """Of large files; None where the hub states only a git id."""
    git_id: str | None


def main() -> int:
    """Import what the request on stdin names, write the result beside the files; 0 when it succeeded."""
    _die_with_parent()
    request = json.load(sys.stdin)
    directory = Path(request["directory"])
    directory.mkdir(parents=True, exist_ok=True)
    if any(request.get(name) for name in SOURCES):
        # What strangers send is streamed; whatever asks for more than this at once is an attack or a fault.
        resource.setrlimit(resource.RLIMIT_AS, (MOST_MEMORY_BYTES, MOST_MEMORY_BYTES))
    with (directory / LOCK_FILE).open("w") as lock:
        # The importer of a server that was killed may still be at work here; wait for its end, then check what it left.
        fcntl.flock(lock, fcntl.LOCK_EX)
        result = run(request, directory)
    write_json(directory / RESULT_FILE, result)
    return 0 if result["ok"] else 1


def run(request: Mapping[str, Any], directory: Path) -> dict[str, Any]:
    """Import into `directory` and return the result: `ok` with the files, or why it failed."""
    try:
        for name in SOURCES:
            if request.get(name):
                return {"ok": True, **_fetch_source(name, request, directory)}
        if request.get("library"):
            return {"ok": True, **export(str(request["library"]), directory)}
        return {"ok": True, "files": fetch(request, directory)}
    except MemoryError:
        message = f"it needs more than the {MOST_MEMORY_BYTES >> 30} GiB of memory that an import has"
        return {"ok": False, "reason": "SourceTooLarge", "message": message, "fix": "split it", "transient": False}
    except ImportFailed as failure:
        return {
            "ok": False,
            "reason": failure.reason,
            "message": failure.message,
            "fix": failure.fix,
            "transient": failure.transient,
        }


def _fetch_source(name: str, request: Mapping[str, Any], directory: Path) -> dict[str, Any]:
    """Import from a URL, a git repository or a bucket."""
    module = importlib.import_module(f"nodus.server.sources.{name}")  # each brings libraries of its own
    order = Order(
        spec=request[name],
        directory=directory,
        credentials=request.get("credentials") or {},
        limit_bytes=int(request["limitBytes"]),
        allowed=tuple(request.get("allowed") or ()),
    )
    found: Fetched = module.fetch(order)
    return {"files": found.files, "provenance": found.provenance}


def fetch(request: Mapping[str, Any], directory: Path) -> list[dict[str, Any]]:
    """Download the snapshot and check it.

    Args:
        request: `repo`, `revision` (a full commit), `type` (`model` or `dataset`), `endpoint`, `token`, `limitBytes`.
        directory: where; kept between tries.

    Returns:
        `{path, sha256, size}` of every file, by path.

    Raises:
        ImportFailed: the revision is gone, access is refused, the hub is out of reach or sent other bytes.
    """
    from huggingface_hub import HfApi, snapshot_download

    api = HfApi(endpoint=request.get("endpoint"), token=request.get("token") or False)
    repo, revision, kind = request["repo"], request["revision"], request.get("type", "model")
    label = f"hf://{repo}@{revision}"
    try:
        info: Any = api.repo_info(repo, revision=revision, repo_type=kind, files_metadata=True, timeout=HUB_TIMEOUT_S)
        if info.sha != revision:
            # A branch or tag of that name: it may move while it is fetched, and is not what the provenance would say.
            raise ImportFailed(
                "ModelRevisionNotFound",
                f"{label} is a branch or tag that looks like a commit; it is at {info.sha}",
                f"name that commit: {info.sha}",
            )
        wanted = plan(info.siblings or [], everything=kind != "model")
        _check_plan(wanted, label, kind)
        if request.get("limitBytes"):
            check_size(label, sum(file.size for file in wanted), int(request["limitBytes"]))
        check_disk(directory, sum(file.size for file in wanted))
        write_json(directory / PLAN_FILE, {"files": len(wanted), "bytes": sum(file.size for file in wanted)})
        snapshot_download(
            repo,
            revision=revision,
            repo_type=kind,
            local_dir=directory / FILES_DIR,
            endpoint=request.get("endpoint"),
            token=request.get("token") or False,
            allow_patterns=[_literal(file.path) for file in wanted],
            etag_timeout=HUB_TIMEOUT_S,
            max_workers=4,
        )
    except ImportFailed:
        raise
    except Exception as error:
        raise explain(error, label) from error
    return [_verify(directory / FILES_DIR, file, label) for file in wanted]


def export(name: str, directory: Path) -> dict[str, Any]:
    """Have the trainer's library write a model, in a process of its own, and hash what it wrote.

    Returns:
        `files` as `fetch` does, and `provenance`: package, version and the sha256 of the weights in it.

    Raises:
        ImportFailed: the package is missing, or the library failed; with its words.
    """
    root = directory / FILES_DIR
    shutil.rmtree(root, ignore_errors=True)
    command = [sys.executable, "-m", "nodus.trainer.library", name, str(root)]
    ended = subprocess.run(command, capture_output=True, text=True, preexec_fn=_die_with_parent, check=False)
    if ended.returncode != 0:
        last = ended.stderr.strip().splitlines() or [f"exit code {ended.returncode}"]
        raise ImportFailed("ModelExportFailed", f"library://{name}: {last[0][:300]}", transient=ended.returncode < 0)
    files = [_hashed(root, path) for path in sorted(root.rglob("*")) if path.is_file()]
    return {"files": files, "provenance": _library_provenance(root)}


def plan(siblings: Iterable[Any], *, everything: bool = False) -> list[Wanted]:
    """The files of a snapshot that are worth having: for a model, one form of the weights and no other framework's."""
    names = [sibling.rfilename for sibling in siblings]
    ignored = () if everything else _IGNORED
    if not everything and any(name.endswith(".safetensors") for name in names):
        ignored = (*ignored, *_WEIGHTS_WHEN_SAFETENSORS)
    wanted = []
    for sibling in siblings:
        if any(fnmatch.fnmatch(sibling.rfilename, pattern) for pattern in ignored):
            continue
        large = sibling.lfs
        sha256 = large["sha256"] if isinstance(large, dict) else getattr(large, "sha256", None)
        wanted.append(Wanted(sibling.rfilename, int(sibling.size or 0), sha256, sibling.blob_id))
    return sorted(wanted, key=lambda file: file.path)


def explain(error: Exception, label: str) -> ImportFailed:
    """Turn an error of the hub's client into a reason, a message and a fix."""
    from huggingface_hub import errors

    if isinstance(error, errors.GatedRepoError):
        return ImportFailed(
            "ModelAccessDenied",
            f"{label} is gated and the hub refused access",
            "accept its terms on the hub and name a Secret with HF_TOKEN under spec.model.secret",
        )
    if isinstance(error, errors.RevisionNotFoundError):
        return ImportFailed("ModelRevisionNotFound", f"{label}: the hub has no such revision", "name another commit")
    if isinstance(error, errors.RepositoryNotFoundError):
        return ImportFailed(
            "ModelNotFound",
            f"{label}: the hub has no such repository, or it is private",
            "check the name; for a private one name a Secret with HF_TOKEN under spec.model.secret",
        )
    if isinstance(error, OSError) and error.errno == 28:
        return ImportFailed(
            "DiskFull", f"{label}: the disk is full", "free space in the data directory", transient=True
        )
    text = str(error).strip().splitlines()[0][:300] if str(error).strip() else type(error).__name__
    return ImportFailed(
        "HubUnavailable",
        f"{label}: the model hub can't be reached or broke off ({text})",
        "check the network, or HF_ENDPOINT where you use a mirror; library://smollm2-135m-instruct needs no network",
        transient=True,
    )


def write_json(path: Path, value: Any) -> None:
    """Replace a small JSON file in one step."""
    draft = path.with_name(path.name + ".new")
    draft.write_text(json.dumps(value), encoding="utf-8")
    os.replace(draft, path)


def _check_plan(wanted: list[Wanted], label: str, kind: str) -> None:
    if kind != "model":
        return
    names = {file.path for file in wanted}
    if "config.json" not in names:
        raise ImportFailed(
            "NotAModel",
            f"{label} has no config.json: it is no transformers model",
            "name the repository that holds the model's config.json and weights",
        )


def _verify(root: Path, file: Wanted, label: str) -> dict[str, Any]:
    path = root / file.path
    sha256, git_id = hashlib.sha256(), hashlib.sha1(usedforsecurity=False)
    size = path.stat().st_size if path.is_file() and not path.is_symlink() else -1
    if size == file.size:
        git_id.update(b"blob %d\0" % size)
        with path.open("rb") as handle:
            while chunk := handle.read(1 << 20):
                sha256.update(chunk)
                if file.sha256 is None:
                    git_id.update(chunk)
        good = sha256.hexdigest() == file.sha256 if file.sha256 else file.git_id in (None, git_id.hexdigest())
        if good:
            return {"path": file.path, "sha256": sha256.hexdigest(), "size": size}
    path.unlink(missing_ok=True)
    raise ImportFailed(
        "ModelCorrupt", f"{label}: {file.path} arrived with other bytes than the hub states", transient=True
    )


def _hashed(root: Path, path: Path) -> dict[str, Any]:
    with path.open("rb") as handle:
        sha256 = hashlib.file_digest(handle, "sha256").hexdigest()
    return {"path": path.relative_to(root).as_posix(), "sha256": sha256, "size": path.stat().st_size}


def _library_provenance(root: Path) -> dict[str, Any]:
    try:
        found: dict[str, Any] = json.loads((root / LIBRARY_PROVENANCE).read_text(encoding="utf-8"))
    except (OSError, ValueError):
        return {}
    return {key: value for key, value in found.items() if key != "files"}


def _literal(path: str) -> str:
    return "".join(f"[{char}]" if char in "*?[" else char for char in path)


def _die_with_parent() -> None:
    """Ask the kernel to end this process with the server; after a kill -9 nobody else would."""
    pr_set_pdeathsig = 1
    ctypes.CDLL(None, use_errno=True).prctl(pr_set_pdeathsig, signal.SIGKILL, 0, 0, 0)


if __name__ == "__main__":
    sys.exit(main())
