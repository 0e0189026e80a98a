"""Lay out an attempt's directory before its supervisor starts. Blocking file work; run it in a thread."""

from __future__ import annotations

import contextlib
import errno
import os
import secrets
import shutil
from collections.abc import Callable, Mapping
from pathlib import Path
from typing import Any

from nodus.server.compute.base import MemberSpec, StartRefused
from nodus.server.compute.local import images
from nodus.server.compute.local.attemptdir import AttemptDir, write_json
from nodus.server.compute.local.capacity import Share
from nodus.server.compute.local.mounts import Mount
from nodus.server.compute.local.sandbox import host_owner
from nodus.server.files import sync_directory
from nodus.server.tarfiles import BROKEN, open_tar

MAX_SOURCE_BYTES = 4 << 30
MAX_SOURCE_FILES = 200_000
MAX_SOURCE_DEPTH = 250
"""Deeper ones no walk goes through."""
_GPU_DEVICES = ("/dev/nvidiactl", "/dev/nvidia-uvm", "/dev/nvidia-uvm-tools")

BlobPath = Callable[[str], Path]
"""Finds a blob's file by its digest (64 hex digits); raises NotFound when there is none."""


def prepare(attempt: AttemptDir, spec: MemberSpec, share: Share, data_dir: Path, blob_path: BlobPath) -> None:
    """Make the directories and write ``spec.json`` last; does nothing that was done before.

    Raises:
        StartRefused: When the image or a blob can't be used.
        OSError: When the disk is full or out of order.
    """
    if attempt.read_spec() is not None:
        return
    attempt.path.parent.mkdir(mode=0o700, parents=True, exist_ok=True)
    attempt.path.mkdir(mode=0o700, exist_ok=True)
    attempt.run.mkdir(mode=0o755, exist_ok=True)
    os.chmod(attempt.run, 0o755)
    for path in (attempt.outputs, attempt.termination):
        own_directory(path)
    for kept in (spec.state_dir, spec.workspace_dir):
        if kept is not None:
            Path(kept).parent.mkdir(mode=0o700, parents=True, exist_ok=True)
            own_directory(Path(kept))
    _workspace(attempt, spec.source, blob_path)
    mounts = [*_given_mounts(spec), *_input_mounts(attempt, spec, blob_path)]
    write_json(attempt.spec, _document(spec, share, data_dir, mounts))
    sync_directory(attempt.path.parent)


def own_directory(path: Path) -> None:
    """Make a directory that the sandbox's user owns.

    Others may enter it: bubblewrap, which is root without capabilities by then, changes into the working directory. On
    the host the attempt's own directory keeps everybody out.
    """
    path.mkdir(exist_ok=True)
    os.chmod(path, 0o755)
    os.chown(path, *host_owner())


def _given_mounts(spec: MemberSpec) -> list[Mount]:
    mounts = [Mount(mount.source, mount.target, mount.read_only) for mount in spec.mounts]
    if spec.state_dir is not None:
        mounts.append(Mount(spec.state_dir, "/nodus/state", readonly=False))
    if spec.workspace_dir is not None:
        mounts.append(Mount(spec.workspace_dir, "/workspace", readonly=False))
    for mount in mounts:
        if not os.path.exists(mount.host):
            raise StartRefused(f"{mount.path} can't be mounted: its files are not on this machine")
    return mounts


def _input_mounts(attempt: AttemptDir, spec: MemberSpec, blob_path: BlobPath) -> list[Mount]:
    """Copy inputs: blobs belong to the server alone, and the sandbox's user must be able to read them."""
    directory = attempt.path / "inputs"
    directory.mkdir(mode=0o755, exist_ok=True)
    mounts = []
    for number, item in enumerate(spec.inputs):
        copy = directory / str(number)
        temporary = copy.with_name(f".{number}.{secrets.token_hex(8)}")
        shutil.copyfile(blob_path(item.blob), temporary)
        os.chmod(temporary, 0o444)
        os.replace(temporary, copy)
        mounts.append(Mount(str(copy), item.path))
    return mounts


def _document(spec: MemberSpec, share: Share, data_dir: Path, mounts: list[Mount]) -> dict[str, Any]:
    image = images.resolve(spec.image)
    env = {**image.env, "OMP_NUM_THREADS": str(max(1, int(spec.cpu))), **spec.env}
    return {
        "key": spec.key,
        "command": list(spec.command),
        "env": env,
        "files": dict(spec.files),
        "cwd": spec.cwd,
        "image": image.to_status(),
        "mounts": [_mount_document(mount) for mount in (*image.mounts, *mounts)],
        "cpu": spec.cpu,
        "cores": list(share.cores),
        "gpus": list(share.gpus),
        "devices": [*share.gpus, *(device for device in _GPU_DEVICES if share.gpus and os.path.exists(device))],
        "memoryBytes": spec.memory_bytes,
        "timeoutSeconds": spec.timeout_s,
        "graceSeconds": spec.grace_s,
        "logLimitBytes": spec.log_limit_bytes,
        "processes": spec.processes,
        "checkpoint": {
            "paths": list(spec.checkpoint.paths),
            "seq": spec.checkpoint.seq,
            "intervalSeconds": spec.checkpoint.interval_s,
        },
        "token": spec.token,
        "dataDir": str(data_dir),
    }


def _mount_document(mount: Mount) -> Mapping[str, Any]:
    return {"host": mount.host, "path": mount.path, "readonly": mount.readonly, "symlink": mount.symlink}


def _workspace(attempt: AttemptDir, source: str | None, blob_path: BlobPath) -> None:
    """Make the working directory, with the source archive unpacked in it, in one step."""
    if attempt.workspace.is_dir():
        return
    temporary = attempt.path / f".workspace.{secrets.token_hex(8)}"
    own_directory(temporary)
    if source is not None:
        try:
            unpack(blob_path(source), temporary)
        except BROKEN as error:
            shutil.rmtree(temporary, ignore_errors=True)
            if isinstance(error, OSError) and error.errno in (errno.ENOSPC, errno.EDQUOT):
                raise  # The disk's trouble, not the archive's.
            raise StartRefused(f"the source archive can't be unpacked: {error}") from error
    with contextlib.suppress(OSError):  # Another start of the same attempt was first; its directory is as good.
        os.rename(temporary, attempt.workspace)
    shutil.rmtree(temporary, ignore_errors=True)


def unpack(archive: Path, target: Path) -> None:
    """Unpack a tar.gz into a directory, for the sandbox's user.

    Members that leave the directory, links out of it and device files are refused.

    Raises:
        tarfile.TarError: When it is no archive, or has such members; or another of ``tarfiles.BROKEN``.
        ValueError: When it is too large.
    """
    uid, gid = host_owner()
    total, count = 0, 0
    with open_tar(archive) as tar:
        for member in tar:
            if member.name.count("/") > MAX_SOURCE_DEPTH:
                raise ValueError(f"it nests directories more than {MAX_SOURCE_DEPTH} deep")
            total, count = total + member.size, count + 1
            if total > MAX_SOURCE_BYTES or count > MAX_SOURCE_FILES:
                raise ValueError(f"it holds more than {MAX_SOURCE_BYTES >> 30} GiB or {MAX_SOURCE_FILES} files")
            # Checked again as a whole by the filter; owners in the archive mean nothing here.
            tar.extract(member, target, filter="data")
    for directory, names, files in os.walk(target):
        for name in (*names, *files):
            os.chown(os.path.join(directory, name), uid, gid, follow_symlinks=False)
