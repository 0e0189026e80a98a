"""What a type checker tells a user: the package is typed, right programs pass, wrong ones are caught."""

from __future__ import annotations

import subprocess
import sys
from pathlib import Path

import pytest

pytestmark = pytest.mark.timeout(240)

RIGHT = """
import nodus
from nodus import errors
from nodus.recipes import rl


def main() -> None:
    client = nodus.Client(retry=nodus.RetryPolicy(budget_s=30), timeout=10)
    job: nodus.View = client.get(nodus.Job, "hello")
    names: list[str] = [found.name for found in client.list("jobs", labels={"a": "b"})]
    for change in client.watch("jobs", timeout=1):
        kind: str = change.type
    lines: list[str] = list(client.logs("job", "hello"))
    plan: nodus.Plan = client.plan({"kind": "Job"})
    reasons: list[str] = plan.blocking
    priced: nodus.Plan = nodus.TrainingJob.preview({"runtime": "nodus/grpo-lora"})
    applied = client.apply({"kind": "Job"})
    outcome: str = applied.outcome
    made: nodus.Job = nodus.Job.create(command=["true"])
    made.wait(timeout=5)
    code: int | None = made.exit_code
    volume: nodus.Volume = nodus.Volume.from_name("data", create_if_missing=True)
    run: nodus.TrainingJob = rl.train([("a", "b")], lambda completion, answer: 1.0)
    try:
        job.spec.anything_goes
    except errors.Invalid as error:
        fix: str | None = error.fix
        after: float | None = error.retry_after
        fields: list[str] = [cause.field for cause in error.causes]


async def awaited() -> None:
    async with nodus.Client() as client:
        job: nodus.View = await client.get.aio("job", "hello")
        async for line in client.logs.aio("job", job.name, follow=True):
            text: str = line
        made: nodus.Job = await nodus.Job.create.aio(command=["true"])
        await made.wait.aio()
"""
WRONG = """
import nodus

client = nodus.Client()
client.get(1, "hello")
client.list("jobs", label="a=b")
client.wait_for("job", "hello", 3)
nodus.Job.create(commands=["true"])
print(client.apply({}).result)
"""


def check(tmp_path: Path, program: str) -> tuple[int, str]:
    path = tmp_path / "program.py"
    path.write_text(program)
    command = [sys.executable, "-m", "mypy", "--strict", "--config-file", "", "--cache-dir", str(tmp_path / "cache")]
    done = subprocess.run([*command, str(path)], capture_output=True, text=True, cwd=tmp_path, timeout=200, check=False)
    return done.returncode, done.stdout + done.stderr


def test_right_and_wrong_programs(tmp_path: Path) -> None:
    code, said = check(tmp_path, RIGHT)
    assert code == 0, said
    _, said = check(tmp_path, WRONG)
    lines = [line.split(":", 2)[1] for line in said.splitlines() if ": error:" in line]
    assert sorted(set(lines), key=int) == ["5", "6", "7", "8", "9"], said
