"""The audit of an environment: every attack is played, and what each was paid is reported.

An environment passes when no attack was paid 1 and its reward raised on none. Whatever else was paid is shown, and so
is what could not be graded because of a limit: that pays nothing, but a model that can cause it escapes a bad reward.
"""

from __future__ import annotations

import secrets
from collections import Counter
from collections.abc import Callable, Collection, Sequence
from dataclasses import dataclass, field, replace
from typing import Any

from nodus.core.errors import Invalid
from nodus.server.envtools.attacks import ATTACKS, Attack
from nodus.server.envtools.local import grading
from nodus.server.envtools.subjects import Subject
from nodus.server.grading.environments import ResolvedEnvironment
from nodus.server.grading.manifests import Manifest, Task
from nodus.server.grading.replies import right_replies
from nodus.server.grading.selfcheck import listed
from nodus.server.grading.service import GradingService
from nodus.server.grading.verdicts import Completion, Verdict

DEFAULT_TASKS = 8
_MAX_PARALLEL = 2
_TURNS = 4
"""Most turns of an episode that are played."""
_RAISED = ("reward raised ", "reward returned ")
"""How the reasons begin of replies that could not be graded by the reward's own doing, not by a limit."""
_NAMES = tuple(attack.name for attack in ATTACKS)


@dataclass(frozen=True, slots=True)
class Played:
    """What one attack came to.

    Attributes:
        attack: Its name.
        does: What it does.
        verdicts: What it was given, one for each reply.
        examples: Replies that were paid 1, shortened, with the task's id.
    """

    attack: str
    does: str
    verdicts: Sequence[Verdict]
    examples: Sequence[tuple[str, str]] = ()

    @property
    def counts(self) -> dict[str, int]:
        """How often each verdict was given."""
        return dict(Counter(verdict.verdict for verdict in self.verdicts))

    @property
    def paid(self) -> int:
        """How many replies were paid more than 0."""
        return sum((verdict.reward or 0) > 0 for verdict in self.verdicts)

    @property
    def best(self) -> float | None:
        """The highest reward; None when nothing could be graded."""
        return max((verdict.reward for verdict in self.verdicts if verdict.reward is not None), default=None)

    @property
    def won(self) -> int:
        """How many replies were paid 1 or more."""
        return self.counts.get("Correct", 0)

    @property
    def failure(self) -> str | None:
        """Why a reply could not be graded; None when all could."""
        return next((v.reason for v in self.verdicts if v.verdict == "InfrastructureFailure"), None)

    @property
    def raised(self) -> str | None:
        """What the reward raised, or returned that is no reward; None when it judged every reply."""
        reasons = (v.reason or "" for v in self.verdicts if v.verdict == "InfrastructureFailure")
        return next((reason for reason in reasons if reason.startswith(_RAISED)), None)

    def to_wire(self) -> dict[str, Any]:
        """Return it as JSON shows it."""
        return {
            "attack": self.attack,
            "does": self.does,
            "played": len(self.verdicts),
            "paid": self.paid,
            "best": self.best,
            "won": self.won,
            "verdicts": self.counts,
            "failure": self.failure,
            "raised": self.raised,
            "examples": [{"taskId": task, "reply": reply} for task, reply in self.examples],
        }


@dataclass(frozen=True, slots=True)
class Audit:
    """What an audit found.

    Attributes:
        subject: What was audited.
        digest: The environment's digest.
        split: Whose tasks were played.
        tasks: How many.
        graded_by: The isolation that graded, or what compares inside Nodus.
        reference: What the tasks' own answers were paid; None where they are no replies.
        attacks: What each attack came to.
    """

    subject: Subject
    digest: str
    split: str
    tasks: int
    graded_by: str
    reference: Played | None
    attacks: Sequence[Played] = field(default_factory=tuple)

    @property
    def ok(self) -> bool:
        """Whether no attack was paid 1, and the reward raised on no reply, the tasks' own answers included."""
        played = [*self.attacks, *([] if self.reference is None else [self.reference])]
        return not any(one.won for one in self.attacks) and not any(one.raised for one in played)

    def to_wire(self) -> dict[str, Any]:
        """Return it as JSON shows it."""
        return {
            "environment": f"{self.subject.name}@{self.subject.version}",
            "from": self.subject.where,
            "digest": self.digest,
            "split": self.split,
            "tasks": self.tasks,
            "gradedBy": self.graded_by,
            "ok": self.ok,
            "reference": None if self.reference is None else self.reference.to_wire(),
            "attacks": [played.to_wire() for played in self.attacks],
        }


def chosen(skip: Collection[str]) -> list[Attack]:
    """Return the attacks that are played.

    Raises:
        Invalid: For a name to skip that none has.
    """
    unknown = sorted(set(skip) - set(_NAMES))
    if unknown:
        raise Invalid(f"there is no attack {unknown[0]!r}", fix=f"They are {', '.join(_NAMES)}.")
    return [attack for attack in ATTACKS if attack.name not in skip]


async def audit(
    subject: Subject,
    *,
    tasks: int = DEFAULT_TASKS,
    skip: Collection[str] = (),
    progress: Callable[[str, int, int], None] = lambda _attack, _done, _all: None,
) -> Audit:
    """Audit an environment in this machine's sandboxes.

    Args:
        subject: What to audit.
        tasks: Against how many tasks each attack is played; heavy ones against one.
        skip: Names of attacks to leave out.
        progress: Called before each attack with its name, how many were played, and how many there are.

    Raises:
        NoSandbox: Where no sandbox can be had.
        EnvironmentTasksFailed: When it can't list its tasks.
        Invalid: For an attack to skip that there is none of.
    """
    attacks = chosen(skip)
    async with grading(subject) as service:
        progress("listing tasks", 0, len(attacks))
        environment = await service.resolve(subject.name, subject.spec)
        manifest = await _held_out(service, environment)
        player = _Player(service, environment)
        against = manifest.tasks[:tasks]
        await player.look()
        reference = await _reference(player, against)
        done = []
        for number, attack in enumerate(attacks):
            progress(attack.name, number, len(attacks))
            done.append(await player.play(attack, against[:1] if attack.heavy else against))
    graded_by = str(done[0].verdicts[0].evidence.get("isolation")) if done else "nothing was played"
    return Audit(subject, environment.digest, manifest.split, len(against), graded_by, reference, done)


async def _held_out(service: GradingService, environment: ResolvedEnvironment) -> Manifest:
    """Return the test split with its answers; the train split where nothing is held out."""
    for split in ("test", "train"):
        manifest = await listed(service, environment, split)
        if manifest.tasks:
            return manifest
    raise Invalid(f"{environment.name} has no tasks at all", fix="tasks('test') must list some.")


async def _reference(player: _Player, tasks: Sequence[Task]) -> Played | None:
    """Play each task's own answer in the usual forms, and keep the best verdict of each task."""
    replies = [(task, reply) for task in tasks for reply in right_replies(task)]
    if not replies:
        return None
    played = await player.replies("reference", "the tasks' own answers", replies)
    best: dict[str, Verdict] = {}
    for verdict in played.verdicts:
        known = best.get(verdict.task_id)
        if known is None or _rank(verdict) > _rank(known):
            best[verdict.task_id] = verdict
    return replace(played, verdicts=tuple(best.values()))


def _rank(verdict: Verdict) -> tuple[float, bool]:
    # where nothing was paid, a reward that raised says more than one that found no answer in the reply
    return verdict.reward or 0, verdict.verdict == "InfrastructureFailure"


@dataclass(slots=True)
class _Player:
    service: GradingService
    environment: ResolvedEnvironment
    key: str = field(default_factory=lambda: f"audit-{secrets.token_hex(4)}")
    turns: int = 1

    async def look(self) -> None:
        """Find out for how many turns an attack is played, where the environment answers."""
        info = await self.service.info(self.environment)
        if info.get("episodes") is True:
            known = info.get("maxTurns")
            self.turns = min(known, _TURNS) if isinstance(known, int) and known > 0 else _TURNS

    async def play(self, attack: Attack, tasks: Sequence[Task]) -> Played:
        """Play an attack against tasks."""
        replies = [(task, reply) for task in tasks for reply in attack.replies(task)]
        return await self.replies(attack.name, attack.does, replies)

    async def replies(self, name: str, does: str, replies: Sequence[tuple[Task, str]]) -> Played:
        """Have replies graded; with episodes also the same reply in each turn."""
        said = [(task, (reply,) * turns) for task, reply in replies for turns in sorted({1, self.turns})]
        items = [
            Completion(task.task_id, number, turns[0], turns if self.turns > 1 else None)
            for number, (task, turns) in enumerate(said)
        ]
        verdicts = await self.service.grade(self.key, self.environment, items, _MAX_PARALLEL)
        won = [
            (verdict.task_id, _short(item.first))
            for item, verdict in zip(items, verdicts, strict=True)
            if verdict.verdict == "Correct"
        ]
        return Played(name, does, verdicts, won[:3])


def _short(reply: str) -> str:
    return reply if len(reply) <= 200 else f"{reply[:200]}... ({len(reply)} characters)"
