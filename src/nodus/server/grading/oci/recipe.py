"""The recipe of Environments from images: pull, verify, unpack, check.

What is kept is ``root/``, the image's files, and facts: how its programs are run. The digest decides the content, so an
image that several Environments name, or several registries have, is pulled and kept once.
"""

from __future__ import annotations

import hashlib
import os
import shutil
import stat
from collections.abc import Sequence
from pathlib import Path, PurePosixPath

from nodus.core.digests import digest_of
from nodus.core.imagerefs import ImageReference, parse_image
from nodus.server.compute.graders import GraderRoot
from nodus.server.grading.builds.base import Build, BuildFailed, Built, Order, Report
from nodus.server.grading.oci import skopeo
from nodus.server.grading.oci.layers import MIB, BadImage, Limits, RootDirectory
from nodus.server.grading.oci.manifests import (
    DEFAULT_PATH,
    Blob,
    ImageConfig,
    Manifest,
    architecture,
    parse_config,
    parse_manifest,
)
from nodus.server.sources.base import ImportFailed
from nodus.server.sources.guard import AddressRefused, Guard

ROOT = "root"
"""Name of the directory of the image's files in a build."""
COMMAND = "nodus-env"
LOOPBACK = ("127.0.0.0/8", "::1")
_FORMAT = 1
_SPARE_BYTES = 1 << 30
_CONFIG_BYTES = 4 << 20
_PORT = 443
_TOP_ENTRIES = 256
_ACCOUNT = "nodus:x:10001:10001:nodus:/tmp:/bin/sh\n"
_GROUP = "nodus:x:10001:\n"


class ImageRecipe:
    """Builds Environments' images; a Recipe.

    Args:
        allowed: Hosts and networks with private addresses whose registries may be pulled from; see ``Guard``.
        limits: Bounds of one image.
    """

    steps: Sequence[str] = ("pull", "verify", "unpack", "check")

    def __init__(self, allowed: Sequence[str] = (), limits: Limits | None = None) -> None:
        self._allowed = tuple(allowed)
        self._limits = limits or Limits()

    def key(self, order: Order) -> str:
        """Return the digest of what decides the result: the image's own, and this machine's processor."""
        return digest_of(_content(parse_image(str(order.package["image"])).digest))

    def build(self, order: Order, work: Path, report: Report) -> Built:
        """Pull an image and unpack it into ``work``.

        Raises:
            BuildFailed: It can't be pulled, is not what its digest says, or can't be run here.
            BuildStopped: It was told to stop.
        """
        reference = parse_image(str(order.package["image"]))
        files = work / "pulled"
        try:
            report.step("pull", str(reference))
            platform, manifest = self._pull(reference, files, report)
            report.step("verify", "every part has the digest that it is named by")
            config = _verify(platform, manifest, files, report)
            report.step("unpack", f"{len(manifest.layers)} layers, {manifest.bytes / 1e6:.1f} MB")
            tree = self._unpack(manifest, files, work / ROOT, report)
            shutil.rmtree(files)
            report.step("check", f"it provides {COMMAND}")
            program = _program(tree, config)
        except BadImage as error:
            message = f"{reference} can't be run: {error.message}"
            raise BuildFailed(message, error.fix or "", reason="BadImage") from None
        report.say(f"{COMMAND} is {program}")
        facts = {"image": str(reference), "env": dict(config.env), "cwd": config.cwd, "program": program}
        return Built(_content(reference.digest), facts)

    def _pull(self, reference: ImageReference, files: Path, report: Report) -> tuple[ImageReference, Manifest]:
        """Fetch everything; return the image for this machine (another one where it was a list) and its manifest."""
        self._check_address(reference)
        if not skopeo.available():
            raise skopeo.SkopeoMissing
        platform = reference
        found = self._manifest(platform, report)
        if isinstance(found, str):
            platform = reference.at(found)
            report.write(f"the image for linux/{architecture()} is {found}\n")
            found = self._manifest(platform, report)
        if isinstance(found, str):
            raise BadImage("its manifest lists lists of images")
        total = found.bytes
        if shutil.disk_usage(files.parent).free < 4 * total + _SPARE_BYTES:
            raise BuildFailed(f"too little disk is free to unpack an image of {total >> 20} MiB", transient=True)
        limit = total + skopeo.MANIFEST_BYTES

        def watch(size: int) -> None:
            report.check()
            report.say(f"{size / 1e6:.1f} of {total / 1e6:.1f} MB")

        skopeo.copy(platform, files, limit, self._limits.pull_s, watch)
        report.say(f"{total / 1e6:.1f} MB from {reference.registry}")
        return platform, found

    def _manifest(self, reference: ImageReference, report: Report) -> Manifest | str:
        data = skopeo.manifest(reference, report.check)
        _match(data, reference.digest, "its manifest")
        return parse_manifest(data, self._limits)

    def _check_address(self, reference: ImageReference) -> None:
        try:
            Guard(self._allowed).addresses(reference.host, _PORT)
        except AddressRefused as refused:
            failure = refused.failure(str(reference))
            raise BuildFailed(str(failure), failure.fix, reason="ImagePullFailed") from None
        except ImportFailed as failure:
            raise BuildFailed(
                f"{reference}: {failure}", failure.fix, transient=failure.transient, reason="ImagePullFailed"
            ) from None

    def _unpack(self, manifest: Manifest, files: Path, root: Path, report: Report) -> RootDirectory:
        root.mkdir(mode=0o755)
        free = max(0, shutil.disk_usage(root).free - _SPARE_BYTES)
        tree = RootDirectory(root, self._limits, min(self._limits.bytes, free), report.check)
        for number, layer in enumerate(manifest.layers, 1):
            report.say(f"layer {number} of {len(manifest.layers)}, {layer.size / 1e6:.1f} MB")
            tree.apply(files / layer.file)
        _add_accounts(tree)
        _check_top(root)
        report.say(f"{tree.files} files, {tree.bytes / MIB:.1f} MiB")
        return tree


def image_root(build: Build) -> GraderRoot:
    """Return where graders of an image run, and what runs there."""
    facts = build.facts
    env = {str(name): str(value) for name, value in facts["env"].items()}
    return GraderRoot(build.directory / ROOT, str(facts["program"]), env, str(facts["cwd"]))


def _content(digest: str) -> dict[str, object]:
    return {"image": digest, "architecture": architecture(), "format": _FORMAT}


def _verify(reference: ImageReference, manifest: Manifest, files: Path, report: Report) -> ImageConfig:
    """Compare every file with its digest; return the configuration."""
    _match(_read(files / "manifest.json"), reference.digest, "its manifest")
    for layer in dict.fromkeys(manifest.layers):
        report.check()
        _match_file(files / layer.file, layer)
    if manifest.config.size > _CONFIG_BYTES:
        raise BadImage(f"its configuration has {manifest.config.size} bytes; at most {_CONFIG_BYTES} are read")
    _match_file(files / manifest.config.file, manifest.config)
    return parse_config(_read(files / manifest.config.file))


def _match_file(path: Path, blob: Blob) -> None:
    try:
        with path.open("rb") as file:
            digest = hashlib.file_digest(file, "sha256").hexdigest()
            size = file.tell()
    except FileNotFoundError:
        raise BadImage(f"the registry did not send {blob.digest}") from None
    if digest != blob.file or size != blob.size:
        found = f"{size} bytes of the digest sha256:{digest}"
        raise BadImage(f"for {blob.digest}, {blob.size} bytes, the registry sent {found}")


def _match(data: bytes, digest: str, what: str) -> None:
    found = f"sha256:{hashlib.sha256(data).hexdigest()}"
    if found != digest:
        raise BadImage(f"{what} has the digest {found}, not {digest}: the registry sent something else")


def _read(path: Path) -> bytes:
    try:
        return path.read_bytes()
    except FileNotFoundError:
        raise BadImage(f"the registry did not send {path.name}") from None


def _program(tree: RootDirectory, config: ImageConfig) -> str:
    """Return where the runner is inside.

    Raises:
        BadImage: It is nowhere on the image's PATH.
    """
    search = config.env.get("PATH") or DEFAULT_PATH
    for directory in search.split(":"):
        place = str(PurePosixPath(directory, COMMAND))
        found = tree.find(place) if directory.startswith("/") and ".." not in PurePosixPath(place).parts else None
        if found is not None and stat.S_ISREG(mode := os.lstat(found).st_mode) and mode & stat.S_IXUSR:
            return place
    raise BadImage(
        f"no program {COMMAND} is on its PATH ({search[:200]})",
        fix="Build it on the env-base image, or add a program of that name; see docs/howto/environments/images.md.",
    )


def _check_top(root: Path) -> None:
    """Refuse a top directory that a sandbox can't be made of: it mounts every entry by itself."""
    entries = os.listdir(root)
    if len(entries) > _TOP_ENTRIES:
        raise BadImage(f"its top directory has {len(entries)} entries; at most {_TOP_ENTRIES} can be")
    for name in entries:
        link = os.readlink(root / name) if (root / name).is_symlink() else ""
        if not (name + link).encode("utf-8", "surrogateescape").decode("utf-8", "replace").isprintable():
            raise BadImage(f"its top directory has an entry {name!a} that can't be mounted")


def _add_accounts(tree: RootDirectory) -> None:
    """Name the user that graders run as, so that ``getpwuid`` works; a line more in two files, where they lack it."""
    for path, line in (("/etc/passwd", _ACCOUNT), ("/etc/group", _GROUP)):
        tree.append(path, line, unless=f":{10001}:")
