"""The attempt API's client: retries, typed errors, and verdict lists that are not believed."""

import json
import tempfile
from pathlib import Path

import pytest

from nodus.core.errors import BadRequest, Conflict, GraderFailed, Unavailable
from nodus.testing.attempt_server import AttemptServer
from nodus.trainer.attempt import (
    AttemptClient,
    GraderProtocolError,
    Reply,
    Sample,
    parse_replies,
    parse_tasks,
    parse_verdicts,
)

TRAIN = [{"taskId": "t1", "prompt": "one", "metadata": {"family": "a"}}]
TEST = [{"taskId": "h1", "prompt": [{"role": "user", "content": "two"}], "metadata": {}}]


@pytest.fixture
def server():
    with (
        tempfile.TemporaryDirectory(prefix="nodus-") as directory,
        AttemptServer(Path(directory) / "api.sock", TRAIN, TEST, lambda task, text: float(text)) as running,
    ):
        yield running


@pytest.fixture
def client(server):
    return AttemptClient(server.path, "default", "job", "att1", patience_s=5, pause=lambda seconds: None)


def test_tasks_come_as_both_splits_in_order(client):
    train, held_out = client.tasks()
    assert [(t.id, t.prompt, t.metadata) for t in train] == [("t1", "one", {"family": "a"})]
    assert [(t.id, t.prompt) for t in held_out] == [("h1", [{"role": "user", "content": "two"}])]


def test_grade_returns_a_verdict_for_each_completion_in_order(client):
    verdicts = client.grade("Training", 3, [Sample("t1", 0, "1"), Sample("t1", 1, "0.5"), Sample("t1", 2, "boom")])
    assert [(v.sample, v.verdict, v.outcome, v.reward) for v in verdicts] == [
        (0, "Correct", "Passed", 1.0),
        (1, "Incorrect", "Failed", 0.5),
        (2, "InfrastructureFailure", "Error", None),
    ]


def test_grade_sends_large_batches_in_several_requests(client, server):
    verdicts = client.grade("Training", 1, [Sample("t1", i, "1") for i in range(5000)])
    assert [v.sample for v in verdicts] == list(range(5000))
    assert [verb for verb, _ in server.requests] == ["gradings", "gradings"]


def test_grade_keeps_requests_below_what_the_socket_takes(client, server):
    server.grade = lambda task, text: 1.0
    verdicts = client.grade("Training", 1, [Sample("t1", i, "\u00e9" * 500_000) for i in range(3)])
    assert [v.sample for v in verdicts] == [0, 1, 2]
    assert len(server.requests) == 3


def test_lost_answer_is_asked_again_with_the_same_key_and_graded_once(client, server):
    graded = []
    server.grade = lambda task, text: graded.append(text) or 1.0
    server.intercept = lambda verb, body, number: (
        (server._respond(verb, body, "att1") and (503, b"gone away")) if number == 1 else None
    )
    assert client.grade("Baseline", 0, [Sample("t1", 0, "1")])[0].reward == 1.0
    assert graded == ["1"]
    assert len({key for _, key in server.requests}) == 1
    assert len(server.requests) == 2


def test_keys_differ_between_attempts_steps_and_completions(client, server):
    other = AttemptClient(server.path, "default", "job", "att2", patience_s=5)
    for who, step, text in ((client, 1, "1"), (client, 2, "1"), (other, 1, "1"), (other, 2, "0")):
        who.grade("Training", step, [Sample("t1", 0, text)])
    assert len({key for _, key in server.requests}) == 4


def test_server_that_stays_away_is_unavailable_after_the_patience():
    client = AttemptClient(Path("/tmp/no-such.sock"), "default", "job", "att1", patience_s=0)
    with pytest.raises(Unavailable, match=r"tasks: the run's socket /tmp/no-such.sock can't be reached"):
        client.tasks()


def test_status_becomes_the_error_of_its_reason(client, server):
    failed = GraderFailed("20 of the last 32 completions could not be graded", fix="look at the reward")
    server.intercept = lambda verb, body, number: (422, failed.to_status())
    with pytest.raises(GraderFailed) as caught:
        client.grade("Training", 1, [Sample("t1", 0, "1")])
    assert caught.value.message == failed.message
    assert caught.value.fix == failed.fix
    assert len(server.requests) == 1


def test_resend_with_another_completion_is_a_conflict(client):
    client.grade("Training", 1, [Sample("t1", 0, "1")])
    with pytest.raises(Conflict):
        client.grade("Training", 1, [Sample("t1", 0, "0")])


def test_events_are_recorded_once_and_without_nan(client, server):
    for _ in range(2):
        client.events([{"id": "metrics-1", "type": "Metrics", "step": 1, "kl": float("nan"), "loss": 0.5}])
    assert server.events_of("Metrics") == [{"id": "metrics-1", "type": "Metrics", "step": 1, "kl": None, "loss": 0.5}]


GOOD = {"taskId": "t1", "sample": 0, "verdict": "Correct", "outcome": "Passed", "reward": 1.0}


@pytest.mark.parametrize(
    "rows",
    [
        None,
        "text",
        [],
        [GOOD, GOOD, GOOD],
        [GOOD, "text"],
        [GOOD, GOOD],
        [{**GOOD, "sample": 1}, GOOD],
        [GOOD, {**GOOD, "taskId": "t2", "sample": 1}],
        [GOOD, {**GOOD, "sample": 1, "verdict": "Excellent"}],
        [GOOD, {**GOOD, "sample": 1, "outcome": "Failed"}],
        [GOOD, {**GOOD, "sample": 1, "reward": float("nan")}],
        [GOOD, {**GOOD, "sample": 1, "reward": float("inf")}],
        [GOOD, {**GOOD, "sample": 1, "reward": None}],
        [GOOD, {**GOOD, "sample": 1, "reward": "1"}],
        [GOOD, {**GOOD, "sample": 1, "reward": True}],
        [GOOD, {**GOOD, "sample": 1, "verdict": "InfrastructureFailure", "outcome": "Error", "reward": 0.0}],
    ],
)
def test_forged_or_short_verdict_list_is_refused_whole(rows):
    with pytest.raises(GraderProtocolError):
        parse_verdicts({"verdicts": rows}, [Sample("t1", 0, "a"), Sample("t1", 1, "b")])


def test_grade_refuses_what_a_server_sends_short(client, server):
    server.intercept = lambda verb, body, number: (200, json.dumps({"verdicts": [GOOD]}).encode())
    with pytest.raises(GraderProtocolError, match="1 verdicts for 2 completions"):
        client.grade("Training", 1, [Sample("t1", 0, "1"), Sample("t1", 1, "1")])


@pytest.mark.parametrize("line", ["no json", "[]", '{"prompt": "x"}', '{"taskId": "a", "prompt": 3}'])
def test_line_that_is_no_task_is_named_by_its_number(line):
    with pytest.raises(BadRequest, match="line 2"):
        parse_tasks('{"taskId": "a", "prompt": "x"}\n' + line)


def test_environment_answers_each_episode_in_order(client, server):
    def say(task_id, turns):
        return None if turns[-1] == "stop" else f"heard {int(turns[-1])}"

    server.say = say
    episodes = [Sample("t1", i, turns=turns) for i, turns in enumerate([("1",), ("1", "stop"), ("x",)])]
    replies = client.reply("Training", 2, episodes)
    assert replies[:2] == [Reply([{"role": "user", "content": "heard 1"}]), Reply(None)]
    assert replies[2].messages is None and "ValueError" in replies[2].error
    assert server.steps == [("Training", 2, "t1", 0, 1), ("Training", 2, "t1", 1, 2), ("Training", 2, "t1", 2, 1)]


def test_replies_of_an_episode_are_graded_in_place_of_a_completion(client, server):
    server.grade = lambda task, turns: float(len(turns) == 2)
    assert [v.reward for v in client.grade("Training", 1, [Sample("t1", 0, turns=("a", "b"))])] == [1.0]


EPISODE = Sample("t1", 0, turns=("a",))


@pytest.mark.parametrize(
    "rows",
    [
        None,
        [],
        [{"taskId": "t1", "sample": 1, "messages": None}],
        [{"taskId": "t1", "sample": 0}],
        [{"taskId": "t1", "sample": 0, "messages": "hello"}],
        [{"taskId": "t1", "sample": 0, "messages": [{"role": "user"}]}],
        [{"taskId": "t1", "sample": 0, "messages": [{"role": "user", "content": ["a"]}]}],
    ],
)
def test_replies_that_do_not_answer_what_was_asked_are_not_used(rows):
    with pytest.raises(GraderProtocolError):
        parse_replies({"replies": rows}, [EPISODE])


def test_prompts_may_hold_what_ends_lines_elsewhere():
    prompts = ["one\u2028two", "three\x85four\u2029"]
    lines = [{"taskId": str(n), "prompt": prompt} for n, prompt in enumerate(prompts)]
    text = "".join(json.dumps(line, ensure_ascii=False) + "\n" for line in lines)
    assert [task.prompt for task in parse_tasks(text)] == prompts


def test_tasks_may_carry_tools():
    tool = {"type": "function", "function": {"name": "add"}}
    lines = [{"taskId": "t1", "prompt": "one", "tools": [tool]}, {"taskId": "t2", "prompt": "two"}]
    assert [task.tools for task in parse_tasks("\n".join(map(json.dumps, lines)))] == [(tool,), ()]
