"""The guide's TrainingJobs with the published client: planned, applied, followed, and packaged from Python."""

from __future__ import annotations

import json

import pytest

from nodus.testing.eventually import eventually
from tests.interop import _published
from tests.interop.conftest import Desk, cells

pytestmark = [pytest.mark.acceptance, pytest.mark.sandbox, pytest.mark.timeout(300)]

GRPO = """
apiVersion: nodus.dev/v1beta1
kind: TrainingJob
metadata:
  name: {name}
spec:
  runtime: nodus/grpo-lora
  model: {{uri: hf://Qwen/Qwen3-0.6B}}
  environment: {{name: nodus/graph-coloring@1.0.0, trainTasks: 50, heldOutTasks: 64, seed: 42}}
  evaluation: {{baseline: true, final: true}}
  parameters: {{steps: 50, lora: {{r: 8}}}}
  resources: {{gpu: {{type: [rtx4090-24g], count: 1}}}}
  maxCostUSD: "5.00"
"""
REWARD = """
import re
from nodus.recipes import rl

WORDS = [a + b + c for a in ("ba", "co", "di", "fu") for b in ("ga", "lo", "mi", "ne") for c in ("ru", "sa", "te")]
ANSWER = re.compile(r"<answer>\\s*([A-Za-z]+)\\s*</answer>")
tasks = [(f"Spell the word backwards inside <answer></answer>.\\n\\nWord: {w}", w[::-1]) for w in WORDS]

def reward(completion, answer):
    found = ANSWER.findall(completion)
    return None if not found else float(found[-1].lower() == answer)

run = rl.train(tasks, reward, max_cost=2)
"""  # the guide's, up to the line that waits for its end


def test_guide_plans_applies_and_caps_a_run(desk: Desk) -> None:
    desk.write("grpo.yaml", GRPO.format(name="support-grpo"))
    planned = desk.ok("nodus apply -f grpo.yaml --dry-run -o yaml")
    for part in ("estimate:", "compiledJob:", "blockingReasons:"):
        assert part in planned
    line = desk.ok("nodus apply -f grpo.yaml --dry-run -o estimate")
    assert line.startswith("trainingjob/support-grpo: 1 node × 1 GPUs") and "blocked: " in line
    here = (desk.home / "grpo.yaml").read_text().replace("  resources: {gpu: {type: [rtx4090-24g], count: 1}}\n", "")
    desk.write("here.yaml", here)
    line = desk.ok("nodus apply -f here.yaml --dry-run -o estimate")
    assert line.startswith("trainingjob/support-grpo: 1 node × 0 GPUs · est. $0.00 · starts in ~")
    assert "NotFound" in desk.fails("nodus get tj/support-grpo")
    assert desk.ok("nodus apply -f grpo.yaml") == "trainingjob/support-grpo created\n"
    assert desk.ok("nodus apply -f grpo.yaml") == "trainingjob/support-grpo unchanged\n"
    header, row = cells(desk.ok("nodus get tj"))
    assert header == ["NAME", "RUNTIME", "PHASE", "STAGE", "CHANGE", "COST", "AGE"]
    assert row[:2] == ["support-grpo", "nodus/grpo-lora"]
    raise_cap = """nodus patch tj/support-grpo --type merge --patch '{"spec":{"maxCostUSD":"40"}}'"""
    assert desk.ok(raise_cap) == "trainingjob/support-grpo patched\n"
    lower = desk.fails(raise_cap.replace("40", "4"))
    assert "FieldImmutable" in lower and "maxCostUSD" in lower
    desk.ok("nodus cancel tj/support-grpo")
    desk.ok("nodus wait tj/support-grpo --for=jsonpath='{.status.phase}'=Cancelled --timeout=60s")
    described = desk.ok("nodus describe tj/support-grpo")
    assert "TrainingJob" in described and "Cancelled" in described
    desk.ok("nodus delete tj/support-grpo --wait")


def test_mistakes_are_named_by_their_path_before_anything_runs(desk: Desk) -> None:
    desk.write("typo.yaml", GRPO.format(name="typo").replace("steps: 50", "learning_rate: 0.1"))
    said = desk.fails("nodus apply -f typo.yaml")
    assert "spec.parameters.learning_rate" in said and "FieldValueNotSupported" not in said.split("\n")[0]
    desk.write("absent.yaml", GRPO.format(name="absent").replace("graph-coloring@1.0.0", "graph-coloring@9.0.0"))
    assert "spec.environment.name" in desk.fails("nodus apply -f absent.yaml")


def test_guide_trains_on_a_reward_function(desk: Desk) -> None:
    program = REWARD + "\nprint(run.name)\nrun.cancel()\n"
    name = desk.python(program).split()[-1]
    job = json.loads(desk.ok(f"nodus get tj/{name} -o json"))
    spec = job["spec"]
    assert spec["model"] == {"uri": "hf://Qwen/Qwen3-0.6B"} and spec["maxCostUSD"] == "2.00"
    assert spec["evaluation"] == {"baseline": True, "final": True, "minComparisonTasks": 16}
    assert job["status"]["pinned"]["model"]["revision"]  # by the commit that the hub named
    environment = spec["environment"]["name"].partition("@")[0]
    status = json.loads(desk.ok(f"nodus get environment/{environment} -o json"))["status"]
    assert (status["phase"], status["splits"]) == ("Ready", {"train": 32, "test": 16})
    again = desk.python(program).split()[-1]  # the same code and tasks reuse the Environment
    assert json.loads(desk.ok(f"nodus get tj/{again} -o json"))["spec"]["environment"] == spec["environment"]
    eventually(lambda: desk.ok(f"nodus get tj/{again} -o jsonpath='{{.status.phase}}'") == "Cancelled")


def test_our_own_client_takes_the_guide_as_it_is_printed(ours: Desk) -> None:
    """Also what the published client refuses of its own guide."""
    ours.write("grpo.yaml", GRPO.format(name="printed"))
    ours.ok("nodus apply -f grpo.yaml")
    raised = ours.ok("""nodus patch tj/printed --type merge -p '{"spec":{"maxCostUSD":"40"}}'""")
    assert raised == "trainingjob/printed patched\n"
    shown = ours.ok("nodus describe environment/graph-coloring -n nodus")
    for part in ("Summary:", "Licenses:", "Splits:", "Sample task:", "Graders:", "Examples:"):
        assert part in shown
    program = (
        REWARD
        + """
run.cancel()
import nodus

example = nodus.TrainingJob.from_example("nodus/graph-coloring@1.0.0")
example.cancel()
printed = nodus.TrainingJob.from_name("printed")
printed.cancel()
assert run.tasks(phase="Evaluation", outcome="Failed") == []
print(run.name, example.name, printed.name)
"""
    )
    packaged, example, printed = ours.python(program).split()[-3:]
    assert packaged.startswith("grpo-lora-") and example.startswith("graph-coloring-") and printed == "printed"
    for name in (packaged, example, printed):
        ours.ok(f"nodus wait tj/{name} --for=jsonpath='{{.status.phase}}'=Cancelled --timeout=60s")


def test_reward_that_fails_on_its_own_answers_is_refused(desk: Desk) -> None:
    done = desk.python_run(REWARD.replace("found = ANSWER", "raise ValueError('no'); found = ANSWER"))
    assert done.returncode == 1 and "no" in done.stderr.splitlines()[-1]


def test_example_of_the_catalog_from_python(desk: Desk) -> None:
    program = """
        import nodus

        run = nodus.TrainingJob.from_example("nodus/graph-coloring@1.0.0:ex1").run()
        print(run.name)
        run.cancel()
        """
    name = desk.python(program).split()[-1]
    spec = json.loads(desk.ok(f"nodus get tj/{name} -o json"))["spec"]
    assert spec["environment"]["name"] == "nodus/graph-coloring@1.0.0"


@pytest.mark.parametrize(
    ("package", "module", "compiled"),
    [
        pytest.param("idna==3.20", "idna", False, marks=pytest.mark.heavy),
        ("websockets==17.4", "websockets.speedups", True),
    ],
)
def test_packages_of_a_reward_come_along_for_their_python(
    desk: Desk, published: object, package: str, module: str, compiled: bool
) -> None:
    """Compiled ones come for CPython 3.12: graded by it where the server has it, else refused for that reason."""
    try:
        _published.install(desk.bin.parent, package)
    except _published.Unreachable as error:
        pytest.skip(f"{package} can't be fetched: {error}")
    program = f"""
        import {module}
        from nodus.recipes import rl

        tasks = [(f"Say {{number}}", str(number)) for number in range(40)]

        def reward(completion, answer):
            assert {module}.__name__
            return float(completion.strip() == answer)

        run = rl.train(tasks, reward, max_cost=2, pip=["{package}"])
        run.cancel()
        """
    done = desk.python_run(program)
    if "NewConnectionError" in done.stderr:
        pytest.skip("the package index can't be reached")
    if done.returncode:
        assert compiled, done.stderr
        assert "is compiled for Python 3.12" in done.stderr and "python3.12 on the server's PATH" in done.stderr
