"""The trainer's client of the attempt API: tasks, gradings and task events over the attempt's unix socket.

The supervisor behind the socket adds the attempt's token and holds requests while the server is away. Every POST
carries an Idempotency-Key that follows from what it says, so that a re-send after a lost answer changes nothing. Loads
no torch.
"""

from __future__ import annotations

import json
import math
import sys
import time
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any, Literal

from nodus.core.batches import batches
from nodus.core.digests import digest_of
from nodus.core.errors import BadRequest, NodusError
from nodus.runtime.sending import emit
from nodus.runtime.supervisor import call

Phase = Literal["Baseline", "Training", "Evaluation"]

MAX_COMPLETIONS = 4096
"""Most completions of one gradings request."""
MAX_BODY_BYTES = 4 << 20
"""Most bytes of completions in one gradings request; the socket takes 8 MiB."""
VERDICTS = {"Correct": "Passed", "Incorrect": "Failed", "InvalidOutput": "Failed", "InfrastructureFailure": "Error"}
"""Every verdict and the outcome that goes with it."""


@dataclass(frozen=True, slots=True)
class Task:
    """One task of the environment: what the model is asked, without its answer."""

    id: str
    prompt: str | list[dict[str, Any]]
    metadata: Mapping[str, Any]
    tools: tuple[Mapping[str, Any], ...] = ()
    """Tools that the model may call, as chat templates take them; offered in the prompt."""


@dataclass(frozen=True, slots=True)
class Sample:
    """One completion, or the replies of one episode; (phase, step, task, sample) names it for good."""

    task_id: str
    sample: int
    completion: str = ""
    turns: tuple[str, ...] | None = None
    """The model's replies so far, in order, in place of ``completion``; None outside episodes."""

    def row(self) -> dict[str, Any]:
        """What a request says of it."""
        said = {"completion": self.completion} if self.turns is None else {"turns": list(self.turns)}
        return {"taskId": self.task_id, "sample": self.sample, **said}


@dataclass(frozen=True, slots=True)
class Reply:
    """What an environment answers to the replies of one episode."""

    messages: list[dict[str, Any]] | None
    """Its next messages, ``role`` and ``content``; None when the episode has ended or the environment failed."""
    error: str | None = None
    """Why the environment could not run; None when it did."""


@dataclass(frozen=True, slots=True)
class Verdict:
    """What the platform's grader decided about one completion."""

    task_id: str
    sample: int
    verdict: str
    outcome: str
    reward: float | None
    """None exactly when the grader could not run."""
    reason: str | None = None


class GraderProtocolError(NodusError):
    """The answer to a gradings request does not answer what was asked; nothing of it is used."""

    reason, status = "GraderProtocolError", 502


class AttemptClient:
    """Calls the attempt API of one TrainingJob.

    Example:
        >>> client = AttemptClient(Path("/run/nodus/api.sock"), "default", "my-grpo", "att-1")
        >>> train, held_out = client.tasks()
    """

    def __init__(
        self,
        socket_path: Path,
        project: str,
        name: str,
        attempt: str,
        *,
        patience_s: float = 600.0,
        timeout_s: float = 1800.0,
        pause: Callable[[float], None] = time.sleep,
    ) -> None:
        self._socket_path = str(socket_path)
        self._base = f"/apis/nodus.dev/v1beta1/namespaces/{project}/trainingjobs/{name}"
        # Keys are the attempt's own: verdicts are recorded once an attempt, not once a run.
        self._key = attempt
        self._patience_s = patience_s
        self._timeout_s = timeout_s
        self._pause = pause

    def tasks(self) -> tuple[list[Task], list[Task]]:
        """Fetch the training and the held-out tasks, in the run's order.

        Raises:
            NodusError: The server's own error, such as EnvironmentTasksFailed.
            BadRequest: When the answer is not the documented one.
        """
        files = self._post("tasks", {}, key="tasks").get("files")
        if not isinstance(files, Mapping):
            raise BadRequest("the answer to the tasks request has no files")
        return parse_tasks(files.get("train.jsonl") or ""), parse_tasks(files.get("test.jsonl") or "")

    def grade(self, phase: Phase, step: int, samples: Sequence[Sample]) -> list[Verdict]:
        """Have completions graded; one verdict for each, in order.

        Args:
            phase: What the completions were sampled for.
            step: Optimizer step they belong to; 0 for a baseline.
            samples: Any number of completions, each (task, sample) once.

        Raises:
            GraderFailed: When the share of InfrastructureFailure passed its bound.
            GraderProtocolError: When the verdicts are not those of the completions sent.
        """
        verdicts: list[Verdict] = []
        for chunk in batches(samples, _bytes_of, most_bytes=MAX_BODY_BYTES, most=MAX_COMPLETIONS):
            body = {"phase": phase, "step": step, "completions": [sample.row() for sample in chunk]}
            answer = self._post("gradings", body, key=f"gradings-{digest_of(body)[7:39]}")
            verdicts.extend(parse_verdicts(answer, chunk))
        return verdicts

    def reply(self, phase: Phase, step: int, episodes: Sequence[Sample]) -> list[Reply]:
        """Have the environment answer episodes; one reply for each, in order. Nothing is graded.

        Args:
            phase: What the episodes are played for.
            step: Optimizer step they belong to; 0 for a baseline.
            episodes: Any number of episodes with their ``turns``, each (task, sample) once.

        Raises:
            GraderFailed: When the share of InfrastructureFailure passed its bound.
            GraderProtocolError: When the replies are not those of the episodes sent.
        """
        replies: list[Reply] = []
        for chunk in batches(episodes, _bytes_of, most_bytes=MAX_BODY_BYTES, most=MAX_COMPLETIONS):
            body = {"phase": phase, "step": step, "episodes": [episode.row() for episode in chunk]}
            answer = self._post("steps", body, key=f"steps-{digest_of(body)[7:39]}")
            replies.extend(parse_replies(answer, chunk))
        return replies

    def events(self, events: Sequence[Mapping[str, Any]]) -> None:
        """Record task events; each carries an ``id`` that makes a second sending harmless."""
        body = {"events": [{k: _finite(v) for k, v in event.items()} for event in events]}
        self._post("taskevents", body, key=f"events-{digest_of(body)[7:39]}")

    def stage(self, name: str) -> None:
        """Say which stage the run is in (Baseline, Training, Evaluating), in the log too: steps may take long."""
        sys.stdout.write(f"stage {name}\n")
        sys.stdout.flush()
        self.events([{"id": f"stage-{name}", "type": "Stage", "stage": name}])
        emit({"type": "phase", "name": name})

    def _post(self, verb: str, body: Mapping[str, Any], *, key: str) -> dict[str, Any]:
        """POST with retries for as long as the server may be restarting."""
        deadline = time.monotonic() + self._patience_s
        delay_s = 0.1
        headers = {"Idempotency-Key": f"{self._key}-{key}"}
        while True:
            try:
                path, at = f"{self._base}/{verb}", self._socket_path
                return call("POST", path, body, headers=headers, socket_path=at, timeout_s=self._timeout_s)
            except NodusError as error:
                if not error.retryable or time.monotonic() + delay_s > deadline:
                    raise
                self._pause(max(delay_s, error.retry_after_s or 0.0))
            delay_s = min(delay_s * 2, 5.0)


def parse_tasks(text: str) -> list[Task]:
    """Read task lines ``{"taskId", "prompt", "metadata"}``, with ``tools`` where a task offers some.

    Raises:
        BadRequest: For a line that is not such a task, with its number.
    """
    tasks = []
    # not splitlines: a prompt may hold what that takes for the end of a line, such as U+2028
    for number, line in enumerate(text.split("\n"), 1):
        if not line.strip():
            continue
        try:
            row = json.loads(line)
            prompt = row["prompt"]
            tools = tuple(dict(tool) for tool in row.get("tools") or ())
            tasks.append(Task(str(row["taskId"]), prompt, row.get("metadata") or {}, tools))
        except (ValueError, KeyError, TypeError, AttributeError) as error:
            raise BadRequest(f"line {number} of the task manifest is not a task: {error!r}") from error
        if not isinstance(prompt, (str, list)):
            raise BadRequest(f"line {number} of the task manifest: the prompt is a {type(prompt).__name__}")
    return tasks


def parse_verdicts(answer: Mapping[str, Any], samples: Sequence[Sample]) -> list[Verdict]:
    """Take the verdicts of an answer only if they are exactly those of ``samples``, in order and well formed.

    Raises:
        GraderProtocolError: For a missing, extra, reordered or contradictory verdict.
    """
    rows = answer.get("verdicts")
    if not isinstance(rows, list) or len(rows) != len(samples):
        count = len(rows) if isinstance(rows, list) else "no"
        raise GraderProtocolError(f"{count} verdicts for {len(samples)} completions")
    return [_verdict(row, sample) for row, sample in zip(rows, samples, strict=True)]


def _verdict(row: Any, sample: Sample) -> Verdict:
    if not isinstance(row, Mapping) or (row.get("taskId"), row.get("sample")) != (sample.task_id, sample.sample):
        raise GraderProtocolError(f"a verdict for {row!r:.200} where {sample.task_id} sample {sample.sample} was asked")
    name, reward = row.get("verdict"), row.get("reward")
    if name not in VERDICTS or row.get("outcome", VERDICTS[name]) != VERDICTS[name]:
        raise GraderProtocolError(f"{sample.task_id}: verdict {name!r} with outcome {row.get('outcome')!r}")
    value = float(reward) if isinstance(reward, (int, float)) and not isinstance(reward, bool) else None
    scored = value is not None and math.isfinite(value)
    if scored != (name != "InfrastructureFailure") or (reward is not None and not scored):
        raise GraderProtocolError(f"{sample.task_id}: verdict {name} with reward {reward!r}")
    return Verdict(sample.task_id, sample.sample, name, VERDICTS[name], value, row.get("reason"))


def parse_replies(answer: Mapping[str, Any], episodes: Sequence[Sample]) -> list[Reply]:
    """Take the replies of an answer only if they are exactly those of ``episodes``, in order and well formed.

    Raises:
        GraderProtocolError: For a missing, extra, reordered or malformed reply.
    """
    rows = answer.get("replies")
    if not isinstance(rows, list) or len(rows) != len(episodes):
        count = len(rows) if isinstance(rows, list) else "no"
        raise GraderProtocolError(f"{count} replies for {len(episodes)} episodes")
    return [_reply(row, episode) for row, episode in zip(rows, episodes, strict=True)]


def _reply(row: Any, episode: Sample) -> Reply:
    if not isinstance(row, Mapping) or (row.get("taskId"), row.get("sample")) != (episode.task_id, episode.sample):
        asked = f"{episode.task_id} sample {episode.sample}"
        raise GraderProtocolError(f"a reply for {row!r:.200} where {asked} was asked")
    if row.get("error") is not None:
        return Reply(None, str(row["error"]))
    messages = row.get("messages")
    if messages is None and "messages" in row:
        return Reply(None)
    if not isinstance(messages, list) or not all(_is_message(message) for message in messages):
        raise GraderProtocolError(f"{episode.task_id}: {messages!r:.200} are no messages of role and content")
    return Reply([dict(message) for message in messages])


def _is_message(value: Any) -> bool:
    return isinstance(value, Mapping) and isinstance(value.get("role"), str) and isinstance(value.get("content"), str)


def _bytes_of(sample: Sample) -> int:
    said = sample.completion if sample.turns is None else sample.turns
    return len(json.dumps(said)) + len(sample.task_id) + 60


def _finite(value: Any) -> Any:
    # JSON has no NaN: a mean over nothing is reported as absent.
    return None if isinstance(value, float) and not math.isfinite(value) else value
