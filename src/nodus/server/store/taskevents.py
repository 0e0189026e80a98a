"""Task events of TrainingJobs: what trainers report, and the verdicts on completions.

Reports are idempotent by (attempt, id), verdicts by (attempt, phase, step, task, sample): a re-send changes nothing.
Both draw numbers from one counter, so that a page token orders them together. A token is given only up to what is
committed in order, so that who reads on from one misses nothing.
"""

from __future__ import annotations

import hashlib
import json
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass
from typing import Any, NamedTuple

from sqlalchemy import Connection, Select, func, select

from nodus.core.clock import rfc3339
from nodus.core.errors import BadRequest, Conflict
from nodus.server.store.codec import clean, dumps, from_us, loads
from nodus.server.store.context import insert_into, lock_objects, next_number, now_us, org_of
from nodus.server.store.schema import task_events, verdicts

_COUNTER = "taskevents"
# Parameters per statement are bounded (SQLite: 32766).
_CHUNK = 500


class SampleKey(NamedTuple):
    """Which completion of an attempt a verdict is about."""

    phase: str
    """Baseline, Training or Evaluation."""
    step: int
    task_id: str
    sample: int


@dataclass(frozen=True, slots=True)
class VerdictRow:
    """A recorded verdict, or one to record."""

    key: SampleKey
    completion_sha256: str
    """Of what was graded; see :func:`completion_digest`."""
    verdict: str
    outcome: str
    reward: float | None
    reason: str | None
    evidence: dict[str, Any]
    seq: int = 0
    """Place in the order of all task events; 0 before it is recorded."""


def completion_digest(completion: str, turns: Sequence[str] | None = None) -> str:
    """Return the sha256 that tells whether a re-sent completion is the same.

    Args:
        completion: its text.
        turns: of an episode, its turns in place of the text; it is another completion than any text.
    """
    if turns is None:
        return hashlib.sha256(completion.encode("utf-8", "surrogatepass")).hexdigest()
    return hashlib.sha256(b"turns\0" + json.dumps(list(turns)).encode()).hexdigest()


def append(conn: Connection, trainingjob_uid: str, attempt: str, events: Sequence[Mapping[str, Any]]) -> int:
    """Record reports of a trainer; return how many were new.

    Args:
        conn: a write transaction.
        trainingjob_uid: whose they are.
        attempt: name of the attempt that reports.
        events: each has ``id`` (unique within the attempt) and ``type``; the rest is kept as given.
    """
    if not events:
        return 0
    lock_objects(conn)
    last = next_number(conn, _COUNTER, len(events))
    statement = insert_into(conn, task_events).on_conflict_do_nothing().returning(task_events.c.seq)
    now, org = now_us(conn), org_of(conn)
    new = 0
    for seq, event in enumerate(events, last - len(events) + 1):
        row = {
            "seq": seq,
            "org": org,
            "trainingjob": trainingjob_uid,
            "attempt": attempt,
            "id": str(event["id"]),
            "type": str(event["type"]),
            "at_us": now,
            "body": dumps(dict(event)),
        }
        new += conn.execute(statement, row).first() is not None
    return new


def list_(
    conn: Connection,
    trainingjob_uid: str,
    *,
    type_: str | None = None,
    phase: str | None = None,
    attempt: str | None = None,
    after: str | None = None,
    limit: int = 500,
) -> tuple[list[dict[str, Any]], str | None]:
    """Return a page of task events in the order of their recording, and the next page's token.

    Args:
        conn: a transaction.
        trainingjob_uid: whose.
        type_: Metrics, Stage, Diagnostics, ... or Task (the verdicts); None means all.
        phase: Baseline, Training or Evaluation; only verdicts have one.
        attempt: only this attempt's.
        after: the token of the page before.
        limit: most items.

    Returns:
        Items, each with ``id``, ``type``, ``attempt``, ``time`` and its own fields; and the token, or None when the
        page is the last: it grows, and is read again with the token that led to it.
    """
    start = _position(after)
    rows: list[tuple[int, dict[str, Any]]] = []
    if type_ != "Task" and phase is None:
        query = select(task_events).where(task_events.c.trainingjob == trainingjob_uid, task_events.c.seq > start)
        if type_ is not None:
            query = query.where(task_events.c.type == type_)
        rows += [(row.seq, _report(row)) for row in conn.execute(_page(query, task_events, attempt, limit))]
    if type_ in (None, "Task"):
        query = select(verdicts).where(verdicts.c.trainingjob == trainingjob_uid, verdicts.c.seq > start)
        if phase is not None:
            query = query.where(verdicts.c.phase == phase)
        rows += [(row.seq, _task_event(row)) for row in conn.execute(_page(query, verdicts, attempt, limit))]
    rows.sort(key=lambda pair: pair[0])
    page = rows[:limit]
    return [item for _, item in page], str(page[-1][0]) if len(rows) > limit else None


def record_verdicts(
    conn: Connection, trainingjob_uid: str, attempt: str, items: Sequence[VerdictRow]
) -> dict[SampleKey, VerdictRow]:
    """Record verdicts that aren't there yet; return what is recorded now for the key of each item.

    The first verdict of a key stays: a grading that raced another one gets the other's result.

    Raises:
        Conflict: a key has a verdict on another completion; nothing of ``items`` is kept.
    """
    if not items:
        return {}
    lock_objects(conn)
    last = next_number(conn, _COUNTER, len(items))
    now, org = now_us(conn), org_of(conn)
    values = [
        {
            "seq": seq,
            "org": org,
            "trainingjob": trainingjob_uid,
            "attempt": attempt,
            **item.key._asdict(),
            "completion_sha256": item.completion_sha256,
            "verdict": item.verdict,
            "outcome": item.outcome,
            "reward": item.reward,
            "reason": None if item.reason is None else clean(item.reason),
            "evidence": dumps(item.evidence),
            "at_us": now,
        }
        for seq, item in enumerate(items, last - len(items) + 1)
    ]
    conn.execute(insert_into(conn, verdicts).on_conflict_do_nothing(), values)
    recorded = find_verdicts(conn, trainingjob_uid, attempt, [item.key for item in items])
    for item in items:
        there = recorded[item.key]
        if there.completion_sha256 != item.completion_sha256:
            raise another_completion(item.key)
    return recorded


def another_completion(key: SampleKey) -> Conflict:
    """Return the error for a key that was graded with another completion."""
    return Conflict(
        f"{key.phase} step {key.step}, task {key.task_id!r}, sample {key.sample} was graded with another completion",
        fix="Send each completion once; a repeated request must carry the same text.",
        details={"phase": key.phase, "step": key.step, "taskId": key.task_id, "sample": key.sample},
    )


def find_verdicts(
    conn: Connection, trainingjob_uid: str, attempt: str, keys: Iterable[SampleKey]
) -> dict[SampleKey, VerdictRow]:
    """Return the recorded verdicts among ``keys``."""
    groups: dict[tuple[str, int], dict[str, list[SampleKey]]] = {}
    for key in keys:
        groups.setdefault((key.phase, key.step), {}).setdefault(key.task_id, []).append(key)
    found: dict[SampleKey, VerdictRow] = {}
    for (phase, step), by_task in groups.items():
        tasks = sorted(by_task)
        for start in range(0, len(tasks), _CHUNK):
            query = select(verdicts).where(
                verdicts.c.trainingjob == trainingjob_uid,
                verdicts.c.attempt == attempt,
                verdicts.c.phase == phase,
                verdicts.c.step == step,
                verdicts.c.task_id.in_(tasks[start : start + _CHUNK]),
            )
            for row in conn.execute(query):
                verdict = _verdict(row)
                if verdict.key in by_task[row.task_id]:
                    found[verdict.key] = verdict
    return found


def latest_verdicts(conn: Connection, trainingjob_uid: str, phase: str | None = None) -> list[VerdictRow]:
    """Return, in order, the newest attempt's verdict of each (phase, step, task, sample); what summaries count."""
    query = select(verdicts).where(verdicts.c.trainingjob == trainingjob_uid)
    if phase is not None:
        query = query.where(verdicts.c.phase == phase)
    newest: dict[SampleKey, VerdictRow] = {}
    for row in conn.execute(query.order_by(verdicts.c.seq)):
        verdict = _verdict(row)
        newest[verdict.key] = verdict
    return sorted(newest.values(), key=lambda verdict: verdict.seq)


def recent_verdicts(conn: Connection, trainingjob_uid: str, count: int, attempt: str | None = None) -> list[VerdictRow]:
    """Return the last ``count`` verdicts recorded, newest first; what the bound on failures looks at.

    Args:
        conn: a transaction.
        trainingjob_uid: whose.
        count: how many at most.
        attempt: only this attempt's: one that starts anew is not judged by what its predecessor met.
    """
    query = select(verdicts).where(verdicts.c.trainingjob == trainingjob_uid).order_by(verdicts.c.seq.desc())
    if attempt is not None:
        query = query.where(verdicts.c.attempt == attempt)
    return [_verdict(row) for row in conn.execute(query.limit(count))]


def count_verdicts(conn: Connection, trainingjob_uid: str) -> int:
    """Return how many verdicts a TrainingJob has, over all attempts."""
    query = select(func.count()).select_from(verdicts).where(verdicts.c.trainingjob == trainingjob_uid)
    return int(conn.execute(query).scalar_one())


def _page(query: Select[Any], table: Any, attempt: str | None, limit: int) -> Select[Any]:
    if attempt is not None:
        query = query.where(table.c.attempt == attempt)
    return query.order_by(table.c.seq).limit(limit + 1)


def _position(token: str | None) -> int:
    if not token:
        return 0
    if not token.isascii() or not token.isdecimal() or len(token) > 18:
        raise BadRequest(f"{token[:60]!r} is no page token", fix="Pass the `continue` of the page before.")
    return int(token)


def _report(row: Any) -> dict[str, Any]:
    body: dict[str, Any] = loads(row.body)
    return body | {"attempt": row.attempt, "time": rfc3339(from_us(row.at_us))}


def _verdict(row: Any) -> VerdictRow:
    key = SampleKey(row.phase, row.step, row.task_id, row.sample)
    evidence = loads(row.evidence)
    return VerdictRow(key, row.completion_sha256, row.verdict, row.outcome, row.reward, row.reason, evidence, row.seq)


def _task_event(row: Any) -> dict[str, Any]:
    evidence: dict[str, Any] = loads(row.evidence)
    said: dict[str, Any] = {name: evidence.pop(name) for name in ("completion", "turns") if name in evidence}
    event: dict[str, Any] = {
        "id": f"{row.phase}-{row.step}-{row.task_id}-{row.sample}",
        "type": "Task",
        "attempt": row.attempt,
        "time": rfc3339(from_us(row.at_us)),
        "phase": row.phase,
        "step": row.step,
        "taskId": row.task_id,
        "sample": row.sample,
        "outcome": row.outcome,
        "verdict": row.verdict,
        "reward": row.reward,
        "evidence": evidence,
        **said,
    }
    if row.reason is not None:
        event["reason"] = row.reason
    return event


def count_training_groups(conn: Connection, trainingjob_uid: str) -> tuple[int, int]:
    """Count the groups of completions (one task of one step) with at least two rewards, and those whose rewards differ.

    A step that a later attempt repeated counts once for each attempt.
    """
    v = verdicts.c
    groups = (
        select((func.min(v.reward) < func.max(v.reward)).label("differs"))
        .where(v.trainingjob == trainingjob_uid, v.phase == "Training", v.reward.is_not(None))
        .group_by(v.attempt, v.step, v.task_id)
        .having(func.count() > 1)
        .subquery()
    )
    query = select(func.count(), func.count().filter(groups.c.differs)).select_from(groups)
    scored, differing = conn.execute(query).one()
    return int(scored), int(differing)


class Moment(NamedTuple):
    """When a report of a trainer was recorded."""

    attempt: str
    type: str
    """Stage or Metrics."""
    stage: str | None
    """Of a Stage."""
    validated: bool
    """Whether a step's metrics have a validation's in them, for which held-out tasks were graded."""
    at_us: int


class Pass(NamedTuple):
    """One evaluation of held-out tasks by one attempt."""

    attempt: str
    phase: str
    """Baseline or Evaluation."""
    step: int
    tasks: int
    ended_us: int
    """When the last of its verdicts was recorded."""


def moments(conn: Connection, trainingjob_uid: str) -> list[Moment]:
    """Return when stages began and steps ended, in the order of their recording."""
    query = select(task_events).where(
        task_events.c.trainingjob == trainingjob_uid, task_events.c.type.in_(("Stage", "Metrics"))
    )
    return [_moment(row) for row in conn.execute(query.order_by(task_events.c.seq))]


def _moment(row: Any) -> Moment:
    body = loads(row.body)
    stage = str(body.get("stage")) if row.type == "Stage" else None
    return Moment(row.attempt, row.type, stage, "validationPassRate" in body, row.at_us)


def passes(conn: Connection, trainingjob_uid: str) -> list[Pass]:
    """Return the evaluations of a TrainingJob, in the order in which they ended."""
    v = verdicts.c
    ended = func.max(v.at_us)
    query = (
        select(v.attempt, v.phase, v.step, func.count(v.task_id.distinct()), ended)
        .where(v.trainingjob == trainingjob_uid, v.phase.in_(("Baseline", "Evaluation")))
        .group_by(v.attempt, v.phase, v.step)
        .order_by(ended)
    )
    return [Pass(*row) for row in conn.execute(query)]


def newest_report(conn: Connection, trainingjob_uid: str, type_: str) -> dict[str, Any] | None:
    """Return the last report of a type (Stage, Metrics, Diagnostics), or None when there is none yet."""
    query = (
        select(task_events)
        .where(task_events.c.trainingjob == trainingjob_uid, task_events.c.type == type_)
        .order_by(task_events.c.seq.desc())
        .limit(1)
    )
    row = conn.execute(query).first()
    return None if row is None else _report(row)
