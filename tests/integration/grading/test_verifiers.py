"""Environments of ``verifiers``, with the real library, in real grading sandboxes.

Plain runs have the newest version in the one environment that pip makes; the older ones go over its dependencies and
run with the heavy tests.
"""

from __future__ import annotations

import json
import os
import random
import subprocess
import sys
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest

from nodus.server.compute.builds import PipSettings
from nodus.server.compute.local.buildhost import LocalBuilds
from nodus.server.compute.local.graders import LocalGraders
from nodus.server.compute.local.logstore import LogWriter
from nodus.server.grading import (
    Completion,
    EnvironmentLibrary,
    GradingService,
    MemoryManifests,
    ResolvedEnvironment,
)  # fmt: skip
from nodus.server.grading.builds import Builds, BuildStore, Order
from nodus.server.grading.builds.pip import PipRecipe
from nodus.server.grading.episodes import Episode
from nodus.server.grading.selfcheck import check
from tests.integration.grading import library_grades
from tests.integration.grading.ecosystems import environment_of, wheels_of
from tests.integration.grading.episodes import episodes, text_of
from tests.integration.grading.packageindex import Index, wheel

pytestmark = [pytest.mark.sandbox, pytest.mark.timeout(300)]

HUB = Path(__file__).with_name("hub")
NEWEST = "0.3.1"
TASKSETS = "0.4.0"
VERSIONS = [NEWEST, *(pytest.param(v, marks=pytest.mark.heavy) for v in ("0.1.3.post0", "0.1.14"))]
MODULES = {"reverse_text": 34, "word_guess": 33, "tool_test": 33}
HUNDREDS = [
    pytest.param(NEWEST, {"reverse_text": 50, "tool_test": 50}, id=NEWEST),
    *(pytest.param(v, MODULES, id=f"{v}-all", marks=pytest.mark.heavy) for v in (NEWEST, "0.1.3.post0", "0.1.14")),
]
Make = Callable[..., ResolvedEnvironment]


def packages(version: str) -> tuple[Path, ...]:
    """Return what to search for a version of the library and all that it needs."""
    if version == TASKSETS:
        return (environment_of([f"verifiers=={TASKSETS}"], pins="verifiers-0.4.txt"),)
    newest = environment_of([f"verifiers=={NEWEST}"], pins="verifiers.txt")
    if version == NEWEST:
        return (newest,)
    return environment_of([f"verifiers=={version}"], dependencies=False), newest


@pytest.fixture
def make(tmp_path: Path, environment_names: list[str]) -> Make:
    """Return a function from a module of ``hub/``, or from source text, to an environment."""

    def made(module: str = "written", version: str = NEWEST, source: str | None = None) -> ResolvedEnvironment:
        name = f"hub-{os.urandom(4).hex()}"
        environment_names.append(name)
        directory = HUB
        if source is not None:
            directory = tmp_path / name
            directory.mkdir()
            (directory / f"{module}.py").write_text(source)
        found = packages(version)
        return ResolvedEnvironment(name, "1.0.0", f"sha256:{name}", module, directory, timeout_s=20.0, packages=found)

    return made


def run_python(program: str, version: str, said: Any, *arguments: str, path: tuple[str, ...] = ()) -> Any:
    """Run a program with a version of the library, give it JSON and return the JSON on its last line."""
    search = os.pathsep.join([*map(str, packages(version)), *path])
    known = {"PATH": os.environ["PATH"], "HF_HUB_OFFLINE": "1", "HOME": "/tmp", "PYTHONHASHSEED": "0"}
    done = subprocess.run(
        [sys.executable, "-S", "-s", "-P", "-B", program, *arguments],
        input=json.dumps(said), env={**known, "PYTHONPATH": search},
        capture_output=True, text=True, timeout=200, check=False,
    )  # fmt: skip
    assert done.returncode == 0, done.stderr[-3000:]
    return json.loads(done.stdout.splitlines()[-1])


def library_rewards(module: str, version: str, asked: list[dict[str, Any]]) -> list[float]:
    """Return what the library itself gives for episodes."""
    return list(run_python(library_grades.__file__, version, asked, module, path=(str(HUB),)))


async def listed(service: GradingService, environment: ResolvedEnvironment, split: str) -> list[Any]:
    """Return a split's tasks in the environment's own order."""
    shuffled = (await service.tasks(environment, split, 0)).tasks
    order = list(range(len(shuffled)))
    random.Random(0).shuffle(order)
    return [task for _, task in sorted(zip(order, shuffled, strict=True), key=lambda pair: pair[0])]


async def by_row(service: GradingService, environment: ResolvedEnvironment, module: str) -> dict[tuple[str, int], str]:
    """Return task ids by table and row: all rows of two tables, or every fifth held out of one."""
    train, test = [await listed(service, environment, split) for split in ("train", "test")]
    if module == "word_guess":
        return {
            **{("dataset", n): task.task_id for n, task in enumerate(train)},
            **{("eval_dataset", n): task.task_id for n, task in enumerate(test)},
        }
    numbers = range(len(train) + len(test))
    apart = [n for n in numbers if n % 5 == 4]
    rows = [n for n in numbers if n % 5 != 4]
    return {
        ("dataset", n): task.task_id for n, task in [*zip(rows, train, strict=True), *zip(apart, test, strict=True)]
    }


@pytest.mark.parametrize(("version", "modules"), HUNDREDS)
async def test_hundred_episodes_get_the_librarys_own_rewards(
    version: str, modules: dict[str, int], service: GradingService, make: Make
) -> None:
    distinct: set[float] = set()
    for module, count in modules.items():
        environment = make(module, version)
        ids = await by_row(service, environment, module)
        asked = episodes(module, count)
        items = [
            Completion(ids[one["split"], one["row"]], n, turns=tuple(text_of(turn) for turn in one["turns"]))
            for n, one in enumerate(asked)
        ]
        verdicts = await service.grade("job", environment, items, 1)
        ours = [verdict.reward for verdict in verdicts]
        theirs = library_rewards(module, version, asked)
        assert ours == pytest.approx(theirs, abs=1e-12), [v.reason for v in verdicts if v.reward is None][:1]
        distinct.update(theirs)
    assert len(distinct) >= 10


@pytest.mark.parametrize("version", VERSIONS)
async def test_tools_are_offered_called_and_answered(version: str, service: GradingService, make: Make) -> None:
    environment = make("tool_test", version)
    task = (await listed(service, environment, "test"))[0]
    assert [tool["function"]["name"] for tool in task.tools] == ["count_chairs", "multiply"]
    assert task.tools[1]["function"]["parameters"]["required"] == ["a", "b"]
    assert "answer" not in json.dumps([task.prompt, task.metadata])
    count = '{"name": "count_chairs", "arguments": {"room": "cellar"}}'
    product = '{"name": "multiply", "arguments": {"a": 2, "b": 4}}'
    said = [
        (f"Let me see.\n<tool_call>\n{count}\n</tool_call>",),
        (f"I call {count} now",),
        (f"<tool_call>{count}</tool_call><tool_call>{product}</tool_call>",),
        ('<tool_call>{"name": "nope", "arguments": {}}</tool_call>',),
        ('<tool_call>{"name": "multiply", "arguments": {"a": 2}}</tool_call>',),
        ("<tool_call>{broken</tool_call>",),
        (count, "eleven"),
        ("{" * 5000,),
    ]
    replies = await service.step(
        "job", environment, [Episode(task.task_id, n, turns) for n, turns in enumerate(said)], 1
    )
    assert not any(reply.error for reply in replies), replies
    heard = [None if reply.messages is None else [m["content"] for m in reply.messages] for reply in replies]
    assert heard[:4] == [["11"], ["11"], ["11", "8"], ["'nope'"]]
    assert heard[4] is not None and "missing 1 required positional argument" in heard[4][0]
    assert heard[5:] == [None, None, None]
    roles = {message["role"] for reply in replies for message in reply.messages or ()}
    assert roles == {"tool"}


WRITTEN = """
import verifiers as vf
from datasets import Dataset

TABLE = Dataset.from_list([{"question": f"{n}?", "answer": str(n), "info": {"hint": "hidden"}} for n in range(10)])

def right(completion, answer, **kwargs):
    return float(answer in str(completion))

def load_environment(rubric=None, table=TABLE, **more):
    return vf.SingleTurnEnv(dataset=table, rubric=rubric or vf.Rubric(funcs=[right]), **more)
"""


def changed(code: str) -> str:
    """Return an environment whose ``load_environment`` is made of a body, with ``base`` the one that it replaces."""
    return f"{WRITTEN}\nbase = load_environment\n\n{code}"


REFUSED = {
    "judge": ("def load_environment(): return base(vf.JudgeRubric())", "scored by another model (JudgeRubric)"),
    "wrapped": (
        "def load_environment():\n    try: return base(vf.RubricGroup([vf.Rubric(funcs=[right]), vf.JudgeRubric()]))\n"
        "    except Exception as error: raise RuntimeError('no judge') from error",
        "holds no credential for that model",
    ),
    "swallowed": (
        "def load_environment():\n    try: return base(vf.JudgeRubric())\n    except Exception: return base()",
        "scored by another model",
    ),
    "own_judge": (
        "class Mine(vf.JudgeRubric):\n    def __init__(self): raise SystemExit('ran')\n"
        "def load_environment(): return base(Mine())",
        "scored by another model (JudgeRubric)",
    ),
    "mcp": ("def load_environment(): return vf.MCPEnv(mcp_servers=[], dataset=TABLE)", "an MCP server (MCPEnv)"),
    "python": ("def load_environment(): return vf.PythonEnv(dataset=TABLE)", "remote sandbox (PythonEnv)"),
    "sandbox": ("def load_environment(): return vf.SandboxEnv(dataset=TABLE)", "remote sandbox (SandboxEnv)"),
    "own_sandbox": (
        "def load_environment():\n    class Mine(vf.SandboxEnv): pass\n    return Mine(dataset=TABLE)",
        "remote sandbox (SandboxEnv)",
    ),
    "browser": ("def load_environment(): return vf.BrowserEnv(dataset=TABLE)", "browser (BrowserEnv)"),
    "agent": ("def load_environment(): return vf.CliAgentEnv('true', dataset=TABLE)", "an agent in a remote sandbox"),
    "openenv": ("def load_environment(): return vf.OpenEnvEnv('x')", "return the OpenEnv environment itself"),
    "group_reward": (
        "def best(completions, **kwargs): return [1.0 for _ in completions]\n"
        "def load_environment(): return base(vf.Rubric(funcs=[best]))",
        "the reward best compares the replies of a group",
    ),
    "completion": (
        "def load_environment():\n    import warnings; warnings.simplefilter('ignore')\n"
        "    return base(message_type='completion')",
        "message_type 'completion'",
    ),
    "hidden_client": (
        "from openai import AsyncOpenAI\nclient = AsyncOpenAI()\n"
        "async def ask(completion, **kwargs): return float(bool(await client.responses.create()))\n"
        "def load_environment(): return base(vf.Rubric(funcs=[right, ask], weights=[1.0, 0.5]))",
        "the reward ask asks another model (AsyncOpenAI)",
    ),
    "client_of_tool": (
        "def load_environment():\n    from openai import OpenAI\n    client = OpenAI()\n"
        "    def search(query: str) -> str:\n        'Search.'\n        return str(client)\n"
        "    return vf.ToolEnv(dataset=TABLE, rubric=vf.Rubric(funcs=[right]), tools=[search])",
        "the tool search calls another model (OpenAI)",
    ),
}  # fmt: skip
NOT_IN = {"0.1.3.post0": {"mcp", "python", "sandbox", "own_sandbox", "browser", "agent", "openenv", "group_reward"}}


@pytest.mark.parametrize("version", VERSIONS)
def test_what_cannot_be_graded_is_refused_before_it_runs(version: str) -> None:
    wanted = {name: case for name, case in REFUSED.items() if name not in NOT_IN.get(version, ())}
    cases = {name: changed(code) for name, (code, _) in wanted.items()} | {"good": WRITTEN}
    cases["missing"] = "def load_environment():\n    import verifiers as vf\n    raise KeyError('WANDB_API_KEY')"
    source = Path(library_grades.__file__).resolve().parents[3] / "src"
    found = run_python(str(HUB / "refusals.py"), version, cases, path=(str(source),))
    assert found.pop("good") == "loaded: 8 tasks"
    assert found.pop("missing").startswith("failed: missing:load_environment() failed: KeyError")
    wrong = {n: said for n, said in found.items() if not said.startswith("refused:") or wanted[n][1] not in said}
    assert not wrong


FAULTY = """
def strict(completion, answer, **kwargs):
    text = str(completion[-1]["content"] if isinstance(completion[-1], dict) else completion[-1].content)
    if text == "raise":
        raise ZeroDivisionError("a fault of the reward")
    return None if text == "none" else float("nan") if text == "nan" else float(text == answer)

async def metric(completion, **kwargs):
    raise KeyError("a metric is no reward")

def load_environment():
    return base(vf.Rubric(funcs=[strict, metric], weights=[1.0, 0.0]))
"""


async def test_fault_of_a_reward_is_never_a_reward_of_0(service: GradingService, make: Make) -> None:
    environment = make(source=changed(FAULTY))
    task = (await listed(service, environment, "test"))[0]
    said = ["4", "5", "raise", "none", "nan", ""]
    verdicts = await service.grade("job", environment, [Completion(task.task_id, n, t) for n, t in enumerate(said)], 1)
    kinds = ["Correct", "Incorrect", *["InfrastructureFailure"] * 3, "InvalidOutput"]
    assert [verdict.verdict for verdict in verdicts] == kinds, [verdict.reason for verdict in verdicts]
    assert [verdict.reward for verdict in verdicts] == [1.0, 0.0, None, None, None, 0.0]
    assert "ZeroDivisionError: a fault of the reward" in str(verdicts[2].reason)
    assert "strict returned NoneType; expected a number" in str(verdicts[3].reason)
    assert "hidden" not in json.dumps([task.prompt, task.metadata])


@pytest.mark.heavy
async def test_example_of_the_docs_grades(service: GradingService, make: Make) -> None:
    page = (Path(__file__).parents[3] / "docs/howto/environments/verifiers.md").read_text()
    source = page.split("<<'END'\n")[1].split("END\n")[0]
    environment = make("reverse_text", source=source)
    tasks = await listed(service, environment, "test")
    assert [task.prompt[0]["content"].split(".")[0] for task in tasks] == ["Reverse: silver", "Reverse: castle"]
    said = ["<reversed>eltsac</reversed>", "<reversed>castle</reversed>", "eltsac"]
    items = [Completion(tasks[-1].task_id, n, text) for n, text in enumerate(said)]
    verdicts = await service.grade("job", environment, items, 1)
    assert [verdict.verdict for verdict in verdicts] == ["Correct", "Incorrect", "InvalidOutput"]


ALL_VERSIONS = ("0.1.3.post0", "0.1.14", NEWEST)


@pytest.mark.heavy
@pytest.mark.parametrize("version", ALL_VERSIONS)
async def test_what_an_environment_draws_is_the_same_when_it_is_played_again(
    version: str, service: GradingService, make: Make
) -> None:
    environment = make("ledger", version)
    tasks = await listed(service, environment, "train") + await listed(service, environment, "test")
    owners = [task.prompt[-1]["content"].removeprefix("Pay into the account of ").rstrip(".") for task in tasks]
    assert len(set(owners)) > 1
    call = '{"name": "deposit", "arguments": {"amount": 5, "owner": "thief"}}'
    replies = await service.step("job", environment, [Episode(task.task_id, 0, (call,)) for task in tasks])
    heard = [reply.messages[0]["content"] for reply in replies if reply.messages]
    assert heard == [f"{owner} +5" for owner in owners]
    items = [Completion(task.task_id, 0, turns=(call, "done")) for task in tasks]
    assert {verdict.reward for verdict in await service.grade("job", environment, items)} == {1.0}
    cut = await service.grade("job", environment, [Completion(task.task_id, 0, turns=(call,)) for task in tasks])
    assert {verdict.reward for verdict in cut} == {0.0}


@pytest.mark.heavy
@pytest.mark.parametrize("version", ALL_VERSIONS)
async def test_environments_of_a_group_keep_their_rows_and_rubrics(
    version: str, service: GradingService, make: Make
) -> None:
    environment = make("group", version)
    train, test = [await listed(service, environment, split) for split in ("train", "test")]
    names = [[task.metadata["environment"] for task in split] for split in (train, test)]
    assert [(split.count("reverse"), split.count("guess")) for split in names] == [(32, 8), (8, 2)]
    reverse, guess = test[0], test[8]
    text = reverse.prompt[-1]["content"]
    items = [
        Completion(reverse.task_id, 0, f"<reversed_text>{text[::-1]}</reversed_text>"),
        Completion(guess.task_id, 0, turns=("<guess>dates</guess>", "<guess>plums</guess>")),
        Completion(guess.task_id, 1, turns=("<guess>dates</guess>",)),
    ]
    verdicts = await service.grade("job", environment, items)
    assert [verdict.reward for verdict in verdicts][:2] == pytest.approx([1.2, 0.85])
    assert verdicts[2].reward is not None and verdicts[2].reward < 0.1
    replies = await service.step("job", environment, [Episode(guess.task_id, 0, ("<guess>dates</guess>",))])
    assert replies[0].messages and replies[0].messages[0]["content"].startswith("dates: ")


@pytest.mark.heavy
@pytest.mark.parametrize("version", ("0.1.14", NEWEST))
async def test_pool_of_processes_in_a_rubric_outlives_no_completion(
    version: str, service: GradingService, make: Make
) -> None:
    environment = make("algebra", version)
    task = (await listed(service, environment, "test"))[0]
    said = ["\\boxed{1}", "\\boxed{\\frac{4}{4}}", "\\boxed{2}", "\\boxed{9^{9^{9^9}}}", "\\boxed{1.0}", "none"]
    verdicts = await service.grade("job", environment, [Completion(task.task_id, n, t) for n, t in enumerate(said)], 1)
    assert [verdict.reward for verdict in verdicts] == [1.0, 1.0, 0.0, 0.0, 1.0, 0.0], [v.reason for v in verdicts]


@pytest.mark.heavy
async def test_taskset_of_the_newest_version_scores_replies(service: GradingService, make: Make) -> None:
    environment = make("capitals", TASKSETS)
    train, test = [await listed(service, environment, split) for split in ("train", "test")]
    assert (len(train), len(test)) == (4, 1)
    assert [message["content"] for message in test[0].prompt] == ["One word.", "Capital of Japan?"]
    said = ["Tokyo", "It is Tokyo", "Oslo", "", "raise"]
    verdicts = await service.grade("job", environment, [Completion(test[0].task_id, n, t) for n, t in enumerate(said)])
    assert [verdict.reward for verdict in verdicts] == [1.5, 0.5, 0.0, 0.0, None]
    assert "ZeroDivisionError: a fault of the reward" in str(verdicts[4].reason)


CAPITAL = (HUB / "capitals.py").read_text()
NO_TASKSETS = {
    "classic": ("import verifiers as vf\ndef load_environment(): return vf.SingleTurnEnv()", "no classic environments"),
    "classic_name": ("from verifiers import ToolEnv", "ask for verifiers 0.1.2 or later, before 0.4"),
    "classic_module": ("import verifiers.envs.environment", "no classic environments"),
    "container": (
        CAPITAL.replace("image", "").replace("answer=city", "answer=city, image='debian'"),
        "run in a container",
    ),
    "runtime": (CAPITAL.replace("self, task, trace)", "self, task, trace, runtime)"), "needs a runtime (names_it)"),
    "setup": (
        CAPITAL.replace("    @vf.metric", "    async def setup(self, trace, runtime): pass\n\n    @vf.metric"),
        "setup",
    ),
    "endless": (CAPITAL.replace("    def load", "    INFINITE = True\n\n    def load"), "has no end"),
    "unprompted": (CAPITAL.replace('prompt=f"Capital of {land}?", ', ""), "a simulated user opens"),
}


@pytest.mark.heavy
def test_what_needs_a_runtime_or_classic_classes_is_refused_with_the_newest_version() -> None:
    source = Path(library_grades.__file__).resolve().parents[3] / "src"
    cases = {name: code for name, (code, _) in NO_TASKSETS.items()} | {"good": CAPITAL}
    found = run_python(str(HUB / "refusals.py"), TASKSETS, cases, path=(str(source),))
    assert found.pop("good") == "loaded: 4 tasks"
    wrong = {n: said for n, said in found.items() if not said.startswith("refused:") or NO_TASKSETS[n][1] not in said}
    assert not wrong


@pytest.mark.heavy
@pytest.mark.timeout(900)
async def test_package_of_the_hub_is_built_by_pip_checked_and_graded(tmp_path: Path) -> None:
    """The guide's way: the package from its own index, the library and all it needs from the default one."""
    hub, default = Index(), Index()
    for found in wheels_of([f"verifiers=={NEWEST}"], pins="verifiers.txt").glob("*.whl"):
        default.add((found.name, found.read_bytes()))
    settings = PipSettings({"PIP_INDEX_URL": default.url}, [("127.0.0.1", default.port)])
    files = {name: (HUB / name).read_text() for name in ("reverse_text.py", "words.py")}
    hub.add(wheel("reverse-text", "0.1.4", files, requires=[f"verifiers=={NEWEST}"]))
    store = BuildStore(tmp_path / "builds")
    builds = Builds(store, {"pip": PipRecipe(LocalBuilds(("127.0.0.1",), settings=lambda: settings))}, LogWriter)
    package = {"pip": {"name": "reverse-text", "version": "0.1.4", "index": hub.url}}
    graders = LocalGraders()
    library = EnvironmentLibrary(tmp_path / "e", lambda blob: Path(blob), store)
    service = GradingService(library, MemoryManifests(), graders)
    try:
        builds.begin(Order("u1", "env-reverse-text-0.1.4", "reverse-text", "0.1.4", package))
        await builds.wait("u1", 600)
        state = builds.state("u1")
        assert state is not None and state.failure is None and state.build is not None, state
        spec = {"version": "0.1.4", "package": package, "build": {"digest": state.build.digest}}
        checked = await check(service, "reverse-text", spec, "check")
        assert dict(checked.splits) == {"train": 32, "test": 8}
        environment = await service.resolve("reverse-text", spec)
        task = (await service.tasks(environment, "test", 0)).tasks[0]
        right = f"<reversed_text>{task.prompt[-1]['content'][::-1]}</reversed_text>"
        verdicts = await service.grade("job", environment, [Completion(task.task_id, 0, right)])
        assert [verdict.reward for verdict in verdicts] == pytest.approx([1.2]), verdicts
    finally:
        await service.close()
        await graders.close()
        await builds.close()
        hub.close()
        default.close()
