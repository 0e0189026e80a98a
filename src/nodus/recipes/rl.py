"""Reinforcement learning in one call: on your own reward function, or on an Environment.

Example::

    from nodus.recipes import rl


    def reward(completion, answer):
        return float(answer in completion)


    run = rl.train([("What is 2 + 2?", "4"), ...], reward, max_cost=2)
    run.watch()  # each stage, then the reward, loss and KL of every step
    run.outputs.download("./outputs")  # the LoRA adapter and the before-and-after comparison
"""

from __future__ import annotations

import asyncio
from collections.abc import Callable, Iterable, Mapping, Sequence
from typing import Any

from nodus.client.blobs import upload_blob
from nodus.client.blocking import blocking_function, is_blocking
from nodus.client.client import Client, default_client
from nodus.client.dollars import usd
from nodus.client.handles import Environment
from nodus.client.training import TrainingJob
from nodus.core.errors import AlreadyExists, Invalid, NotFound
from nodus.recipes.bundle import TASK_MODULE, Bundle, make_bundle
from nodus.recipes.errors import RewardError
from nodus.recipes.tasks import check_tasks, split_tasks

GRPO_RUNTIME = "nodus/grpo-lora"
EVALUATE_RUNTIME = "nodus/evaluate"
TRAIN_TASKS = 256
HELD_OUT_TASKS = 64
MIN_COMPARISON_TASKS = 16
READY_TIMEOUT_S = 900.0

Reward = Callable[[str, Any], float | bool | None]


@blocking_function
async def train(
    tasks: str | Iterable[Any],
    reward: Reward | None = None,
    *,
    model: str | None = None,
    test_tasks: Iterable[Any] | None = None,
    group_size: int = 8,
    groups_per_step: int = 4,
    max_tokens: int = 256,
    learning_rate: float = 4e-5,
    steps: int = 50,
    temperature: float = 1.0,
    seed: int | None = None,
    gpu: str | None = None,
    max_cost: float | str | None = None,
    lora: int | Mapping[str, Any] | None = None,
    pip: Sequence[str] = (),
    train_tasks: int | None = None,
    held_out_tasks: int | None = None,
    name: str | None = None,
    project: str | None = None,
    client: Client | None = None,
    **parameters: Any,
) -> TrainingJob:
    """Train a LoRA adapter with GRPO so that replies earn more reward, and start the run.

    Args:
        tasks: ``(prompt, answer)`` pairs, or dicts with ``prompt``, ``answer`` and ``metadata``; or the name of an
            Environment at a version, such as ``"nodus/gsm8k@1.0.0"``.
        reward: ``reward(completion, answer)``, which returns a number, a bool, or None for a reply without an answer.
            It is packaged with the lines of its own file that it uses, and tried on this machine first.
        model: The base model, ``"Qwen/Qwen3-4B"`` or a URI; the server's default model when None.
        test_tasks: Tasks to hold out; a fifth of ``tasks``, and at least 16, when None.
        group_size: Replies sampled to each task, scored against each other.
        groups_per_step: Tasks in each step.
        max_tokens: Longest reply, in tokens.
        learning_rate: Peak learning rate.
        steps: Optimizer steps.
        temperature: Of sampling, while training.
        seed: Which tasks, in which order; 0 for own tasks and 42 for an Environment when None.
        gpu: GPU type, with a count where it is more than one: ``"H100:2"``; the runtime's preset when None.
        max_cost: Cap on the whole run, in dollars.
        lora: Rank of the adapter, or a dict with ``r``, ``alpha`` (default twice the rank), ``dropout`` and
            ``target_modules``.
        pip: Packages that the reward imports, each ``name==version``.
        train_tasks: How many tasks of an Environment to train on; 256, or all there are.
        held_out_tasks: How many to hold out; 64, or all there are.
        name: The run's name; the server makes one when None.
        project: Another project than the client's own.
        client: Another server than the configured one.
        **parameters: Other parameters of ``nodus/grpo-lora``, in snake_case: ``beta=0.04``, ``save_steps=10``.

    Raises:
        RewardError: When the reward can't be packaged or doesn't work; before anything is sent.
        TasksError: When a task can't be used; before anything is sent.
        Invalid: With every other mistake in ``causes``.
    """
    settings = {
        "steps": steps,
        "numGenerations": group_size,
        "batchSize": group_size,
        "gradientAccumulation": groups_per_step,
        "learningRate": learning_rate,
        "maxCompletionLength": max_tokens,
        "sampling": {"temperature": temperature},
    }
    chosen = settings | _lora(lora) | _camel(parameters)
    shared: dict[str, Any] = {"model": model, "gpu": gpu, "max_cost": max_cost, "name": name, "project": project}
    if isinstance(tasks, str):
        _refuse_extra(reward, test_tasks, pip)
        return await _start(
            client or default_client(),
            tasks,
            chosen,
            train_tasks=train_tasks,
            held_out_tasks=held_out_tasks,
            seed=42 if seed is None else seed,
            **shared,
        )
    # What is wrong with reward or tasks is found before a server is looked for.
    bundle = await _in_thread(lambda: _bundle(tasks, reward, test_tasks, pip))
    client = client or default_client()
    environment = await _environment(client, bundle, project)
    return await _start(
        client,
        environment.reference,
        chosen,
        train_tasks=train_tasks or bundle.train,
        held_out_tasks=held_out_tasks or bundle.test,
        seed=seed or 0,
        **shared,
    )


@blocking_function
async def grpo_lora(
    environment: str,
    *,
    model: str | None = None,
    train_tasks: int | None = None,
    held_out_tasks: int | None = None,
    seed: int = 42,
    steps: int = 50,
    gpu: str | None = None,
    max_cost: float | str | None = None,
    lora: int | Mapping[str, Any] | None = None,
    name: str | None = None,
    project: str | None = None,
    client: Client | None = None,
    **parameters: Any,
) -> TrainingJob:
    """Start a ``nodus/grpo-lora`` run on an Environment with the runtime's own defaults.

    Args:
        environment: ``NAME@VERSION``, with ``nodus/`` in front for the catalog.
        model: The base model; the server's default model when None.
        train_tasks: Tasks to train on; 256, or all there are.
        held_out_tasks: Tasks to hold out; 64, or all there are.
        seed: Which tasks, in which order.
        steps: Optimizer steps.
        gpu: GPU type and count, ``"H100:2"``.
        max_cost: Cap on the whole run, in dollars.
        lora: Rank of the adapter, or a dict as in `train`.
        name: The run's name; the server makes one when None.
        project: Another project than the client's own.
        client: Another server than the configured one.
        **parameters: Other parameters of the runtime, in snake_case: ``num_generations=8``.

    Raises:
        Invalid: With every mistake in ``causes``.
        NotFound: When there is no such Environment.
    """
    chosen = {"steps": steps} | _lora(lora) | _camel(parameters)
    return await _start(
        client or default_client(),
        environment,
        chosen,
        model=model,
        train_tasks=train_tasks,
        held_out_tasks=held_out_tasks,
        seed=seed,
        gpu=gpu,
        max_cost=max_cost,
        name=name,
        project=project,
    )


@blocking_function
async def evaluate(
    environment: str,
    *,
    model: str | None = None,
    tasks: int | None = None,
    seed: int = 42,
    max_tokens: int | None = None,
    gpu: str | None = None,
    max_cost: float | str | None = None,
    name: str | None = None,
    project: str | None = None,
    client: Client | None = None,
    **parameters: Any,
) -> TrainingJob:
    """Score a model on an Environment's held-out tasks, without training.

    Args:
        environment: ``NAME@VERSION``, with ``nodus/`` in front for the catalog.
        model: The model; the server's default model when None.
        tasks: How many held-out tasks; 64, or all there are.
        seed: Which tasks, in which order.
        max_tokens: Longest reply, in tokens; the runtime's default when None.
        gpu: GPU type and count.
        max_cost: Cap on the whole run, in dollars.
        name: The run's name; the server makes one when None.
        project: Another project than the client's own.
        client: Another server than the configured one.
        **parameters: Other parameters of ``nodus/evaluate``, in snake_case.

    Returns:
        The run; after ``run.wait()``, ``run.summary.evaluation`` has the pass rate.
    """
    client = client or default_client()
    sizes = await _split_sizes(client, environment, project)
    chosen = _camel(parameters) | ({} if max_tokens is None else {"maxCompletionLength": max_tokens})
    spec = {
        "runtime": EVALUATE_RUNTIME,
        "mode": "Evaluate",
        "model": await _model(client, model),
        "environment": {
            "name": environment,
            "heldOutTasks": tasks or min(HELD_OUT_TASKS, sizes.get("test") or HELD_OUT_TASKS),
            "seed": seed,
        },
        "parameters": chosen,
        "resources": _resources(gpu),
        "maxCostUSD": usd(max_cost),
    }
    return await TrainingJob.create.aio(spec, name=name, generate_name="evaluate-", project=project, client=client)


async def _start(
    client: Client,
    environment: str,
    parameters: dict[str, Any],
    *,
    model: str | None,
    train_tasks: int | None,
    held_out_tasks: int | None,
    seed: int,
    gpu: str | None,
    max_cost: float | str | None,
    name: str | None,
    project: str | None,
) -> TrainingJob:
    cost = usd(max_cost)
    if train_tasks is None or held_out_tasks is None:
        sizes = await _split_sizes(client, environment, project)
        train_tasks = train_tasks or min(TRAIN_TASKS, sizes.get("train") or TRAIN_TASKS)
        held_out_tasks = held_out_tasks or min(HELD_OUT_TASKS, sizes.get("test") or HELD_OUT_TASKS)
    spec = {
        "runtime": GRPO_RUNTIME,
        "mode": "Train",
        "model": await _model(client, model),
        "environment": {"name": environment, "trainTasks": train_tasks, "heldOutTasks": held_out_tasks, "seed": seed},
        "parameters": parameters,
        "evaluation": {"baseline": True, "final": True, "minComparisonTasks": MIN_COMPARISON_TASKS},
        "resources": _resources(gpu),
        "maxCostUSD": cost,
    }
    return await TrainingJob.create.aio(spec, name=name, generate_name="grpo-lora-", project=project, client=client)


def _bundle(
    tasks: Iterable[Any], reward: Reward | None, test_tasks: Iterable[Any] | None, pip: Sequence[str]
) -> Bundle:
    checked = check_tasks(tasks)
    if reward is None:
        raise RewardError("own tasks need a reward", fix="Pass reward=: def reward(completion, answer): ...")
    held_out = None if test_tasks is None else check_tasks(test_tasks, "test_tasks")
    train_split, test_split = split_tasks(checked, held_out)
    return make_bundle(reward, train_split, test_split, pip)


async def _in_thread(work: Callable[[], Bundle]) -> Bundle:
    """Run work that waits for other processes without holding up an event loop."""
    return work() if is_blocking() else await asyncio.to_thread(work)


def _refuse_extra(reward: Reward | None, test_tasks: Iterable[Any] | None, pip: Sequence[str]) -> None:
    for value, argument in ((reward, "reward"), (test_tasks, "test_tasks"), (pip, "pip")):
        if value:
            raise Invalid(
                f"{argument} goes with tasks of your own; an Environment brings its own", fix=f"Leave {argument} out."
            )


async def _environment(client: Client, bundle: Bundle, project: str | None) -> Environment:
    """Return the Environment of a bundle, Ready: the one there is, or a new one."""
    name, home = bundle.environment_name, project or client.project
    try:
        environment = await Environment.from_name.aio(name, project=home, client=client)
        if environment.phase == "Failed":
            # What kept it from being built may be gone (a package installed since): build it anew.
            await environment.delete.aio()
            raise NotFound(name)
    except NotFound:
        blob = await upload_blob(client.api, home, bundle.archive, "application/gzip")
        spec = {
            "version": "1.0.0",
            "package": {"source": {"blob": blob, "module": TASK_MODULE}},
            "category": "Custom",
            "modes": ["Train", "Evaluate"],
            "summary": f"{bundle.train} tasks and a reward function, packaged by rl.train.",
        }
        try:
            environment = await Environment.create.aio(name, spec, project=home, client=client)
        except AlreadyExists:  # somebody with the same code and tasks was quicker
            environment = await Environment.from_name.aio(name, project=home, client=client)
    await environment.wait_ready.aio(timeout=READY_TIMEOUT_S)
    return environment


async def _split_sizes(client: Client, reference: str, project: str | None) -> dict[str, int]:
    """Return the sizes of an Environment's splits, as far as it says them."""
    name, _, version = reference.removeprefix("nodus/").partition("@")
    if not version:
        raise Invalid(f"environment {reference!r} names no version", fix=f"Write it like {reference}@1.0.0.")
    home = "nodus" if reference.startswith("nodus/") else project or client.project
    found = await client.resources.get("Environment", name, project=home)
    declared = {
        split: (size or {}).get("size") for split, size in ((found.get("spec") or {}).get("splits") or {}).items()
    }
    sizes = declared | dict((found.get("status") or {}).get("splits") or {})
    return {split: int(size) for split, size in sizes.items() if size}


async def _model(client: Client, model: str | None) -> dict[str, Any]:
    if model is None:
        model = (await client.server_info.aio()).get("defaultModel")
        if model is None:
            raise Invalid("the server names no default model", fix='Pass model=, such as model="Qwen/Qwen3-0.6B".')
    return {"uri": model if "://" in model else f"hf://{model}"}


def _resources(gpu: str | None) -> dict[str, Any] | None:
    if gpu is None:
        return None
    family, _, count = gpu.partition(":")
    if not family or (count and not count.isdigit()):
        raise Invalid(f"gpu={gpu!r} is not a type and count", fix='Write it like "H100" or "H100:2".')
    return {"gpu": {"type": [family], "count": int(count or 1)}}


def _lora(lora: int | Mapping[str, Any] | None) -> dict[str, Any]:
    if lora is None:
        return {}
    wanted = {"r": lora} if isinstance(lora, int) else _camel(lora)
    method = wanted.pop("method", "LoRA")
    if "r" in wanted:
        wanted.setdefault("alpha", 2 * wanted["r"])
    return {"method": method, "lora": wanted}


def _camel(values: Mapping[str, Any]) -> dict[str, Any]:
    """Return keyword arguments as parameters: snake_case to camelCase, also inside; what is None is left out."""
    found = {}
    for key, value in values.items():
        head, *rest = key.split("_")
        name = head + "".join(part[:1].upper() + part[1:] for part in rest)
        # A task filter's keys are metadata of the user's own, not ours to respell.
        if value is not None:
            found[name] = _camel(value) if isinstance(value, Mapping) and name != "taskFilter" else value
    return found
