"""Job: run a command to completion, follow it, fetch what it left."""

from __future__ import annotations

import os
import sys
from collections.abc import AsyncGenerator, Mapping, Sequence
from dataclasses import dataclass
from datetime import timedelta
from typing import Any

from nodus.client import runlog
from nodus.client.blobs import upload_blob
from nodus.client.blocking import blocking, blocking_class, blocking_iterator
from nodus.client.client import Client, default_client
from nodus.client.dollars import usd
from nodus.client.handles import Run, started
from nodus.client.http import new_key
from nodus.client.outputs import Outputs
from nodus.client.record import Record, as_record
from nodus.client.source import packed
from nodus.core.errors import JobFailed, NodusError

Strings = Sequence[str]
PathLike = str | os.PathLike[str]
# Named here: inside the class, `list` could be shadowed.
Records = list[Record]


@dataclass(frozen=True, slots=True)
class Distributed:
    """How large a distributed Job is and what starts it on each node; ``Job.create(distributed=...)``.

    Give ``nodes`` or ``total_gpus``. An installation of one machine runs one node and refuses more.

    Example::

        nodus.Job.create(command=["torchrun", "train.py"], distributed=nodus.Distributed(nodes=1, launcher="Torchrun"))
    """

    nodes: int | None = None
    """Machines."""
    total_gpus: int | None = None
    """GPUs in all."""
    gpus_per_node: int | None = None
    """GPUs on each machine."""
    launcher: str | None = None
    """Plain, Torchrun, Ray, Verl, Accelerate or Deepspeed."""
    network: str | None = None
    """Colocated, Regional or Global."""
    transport: str | None = None
    """Direct or Auto."""
    startup_timeout: str | float | timedelta | None = None
    """How long the nodes may take to come together."""
    max_assembly_retries: int | None = None
    """How often that is tried again."""

    def spec(self) -> dict[str, Any]:
        """Return it as it stands in a manifest."""
        return _given(
            nodes=self.nodes,
            totalGPUs=self.total_gpus,
            gpusPerNode=self.gpus_per_node,
            launcher=self.launcher,
            network=self.network,
            transport=self.transport,
            startupTimeout=duration(self.startup_timeout),
            maxAssemblyRetries=self.max_assembly_retries,
        )


class JobStatus(Record):
    """A Job's status as it was last read; calling it reads it again."""

    def __call__(self) -> Record:
        """Return the status as it is now."""
        job: Job = self.__dict__["_job"]
        job.refresh()
        return job.status


class Job(Run):
    """A command run to completion in a sandbox.

    Example::

        job = nodus.Job.create(command=["python", "train.py"], source=".", outputs={"model": "/workspace/model"})
        for line in job.logs(follow=True):
            print(line, end="")
        job.wait()
        job.outputs.download("./outputs")
    """

    kind = "Job"

    @blocking_class
    async def create(
        cls: type[Job],
        *,
        command: Strings | None = None,
        args: Strings | None = None,
        name: str | None = None,
        image: str | None = None,
        source: PathLike | Mapping[str, Any] | None = None,
        env: Mapping[str, str] | None = None,
        secrets: Sequence[Any] = (),
        volumes: Mapping[str, Any] | None = None,
        outputs: Mapping[str, str] | None = None,
        cpu: float | str | None = None,
        memory: str | None = None,
        disk: str | None = None,
        gpu: str | Strings | None = None,
        timeout: str | float | timedelta | None = None,  # noqa: ASYNC109 - the Job's own, on the server
        expected_duration: str | float | timedelta | None = None,
        completions: int | None = None,
        parallelism: int | None = None,
        backoff_limit: int | None = None,
        checkpoint: str | Strings | None = None,
        continuity: str | None = None,
        distributed: Distributed | Mapping[str, Any] | None = None,
        network: Any = None,
        region: str | Strings | None = None,
        interruptible: bool | str | None = None,
        profile: str | None = None,
        workdir: str | None = None,
        max_cost: float | str | None = None,
        ttl_seconds_after_finished: int | None = None,
        labels: Mapping[str, str] | None = None,
        spec: Mapping[str, Any] | None = None,
        project: str | None = None,
        client: Client | None = None,
    ) -> Job:
        """Start a Job.

        Args:
            command: Program and arguments; run as written, without a shell.
            args: Appended to the command.
            name: Its name, which stands for one Job: with the same spec as one that is there, that one is returned,
                ended or not, with a warning, and nothing runs again. The server makes a name when None.
            image: A managed image; the server's default when None.
            source: A directory or file to unpack into the working directory, without what git would ignore; or a git
                repository: ``{"repo": ..., "ref": ..., "path": ...}``.
            env: Environment variables; never credentials, those are Secrets.
            secrets: Secrets whose keys become variables: names, `Secret` handles, or ``{"name": ..., "version": ...}``.
            volumes: Volumes by the path they appear at: names (``"data"``, ``"data:ro"``), `Volume` handles, or
                ``{"volume": ..., "readOnly": ..., "revision": ...}``.
            outputs: Paths to collect when it ends, by the name they get.
            cpu: Cores; 1 when None.
            memory: Such as ``"16Gi"``; 2 GiB when None.
            disk: Scratch disk, such as ``"200Gi"``.
            gpu: ``"H100"``, ``"H100:8"``, or a list of types that will do.
            timeout: Bound on its time, all attempts together: seconds, a timedelta, or ``"2h"``.
            expected_duration: For the estimate.
            completions: Run the command once for each index from 0; it reads ``NODUS_INDEX``.
            parallelism: Indexes at once.
            backoff_limit: Further attempts after a failed one.
            checkpoint: Directories kept from attempt to attempt.
            continuity: Checkpointed, Restartable or Ephemeral.
            distributed: Nodes and launcher.
            network: What it may reach: ``{"egress": {"policy": "Deny"}}``.
            region: Where it may run.
            interruptible: Whether on interruptible machines: True, False, or Allow, Prefer, Never.
            profile: Balanced, Cost or Speed.
            workdir: Working directory.
            max_cost: Cap in dollars.
            ttl_seconds_after_finished: Delete it this long after its end.
            labels: Labels to find it by.
            spec: Further fields as in a manifest; those given above win.
            project: Another project than the client's own.
            client: Another server than the configured one.

        Raises:
            AlreadyExists: When a Job of that name has another spec.
            Invalid: With every mistake in ``causes``.
            Unsupported: When the server can't do what is asked; names the field.
            FileTooLarge: When the source is larger than 500 MiB compressed.
        """
        client = client or default_client()
        home = project or client.project
        given = dict(spec or {}) | _given(
            command=_words(command),
            args=_words(args),
            image=image,
            env=[{"name": key, "value": str(value)} for key, value in env.items()] if env else None,
            secrets=[_secret(secret) for secret in secrets] or None,
            volumes=[_mount(path, volume) for path, volume in volumes.items()] if volumes else None,
            outputs=[{"name": key, "path": path} for key, path in outputs.items()] if outputs else None,
            resources=_given(cpu=None if cpu is None else str(cpu), memory=memory, disk=disk, gpu=_gpu(gpu)) or None,
            timeout=duration(timeout),
            expectedDuration=duration(expected_duration),
            completions=completions,
            parallelism=parallelism,
            backoffLimit=backoff_limit,
            recovery=_recovery(checkpoint, continuity),
            distributed=distributed.spec() if isinstance(distributed, Distributed) else distributed,
            network=network.spec() if hasattr(network, "spec") else network,
            placement=_placement(region, interruptible, profile),
            workingDir=workdir,
            maxCostUSD=usd(max_cost),
            ttlSecondsAfterFinished=ttl_seconds_after_finished,
        )
        if source is not None:
            given["source"] = await _source(client, home, source)
        metadata: dict[str, Any] = {"name": name} if name else {"generateName": "job-"}
        if labels:
            metadata["labels"] = dict(labels)
        document = {"apiVersion": "nodus.dev/v1", "kind": "Job", "metadata": metadata, "spec": given}
        made = await client.resources.create_or_find(document, project=home, idempotency_key=new_key("job"))
        return cls(started(made), client)

    @blocking_class
    async def run(cls: type[Job], /, *, stream: bool = True, **options: Any) -> Job:
        """Start a Job, print its output as it comes, and wait for its end.

        Args:
            stream: Whether to print the output.
            options: As for `create`.

        Raises:
            JobFailed: When it did not succeed; ``details["exitCode"]`` has the command's exit code.
        """
        job: Job = await cls.create.aio(**options)
        if stream:
            async for line in job.logs.aio(follow=True):
                sys.stdout.write(line)
                sys.stdout.flush()
        await job.wait.aio()
        return job

    @property
    def status(self) -> JobStatus:
        """What was last read of how it is doing; ``job.status()`` reads it again."""
        status = JobStatus(self.raw.get("status") or {})
        status.__dict__["_job"] = self
        return status

    @property
    def exit_code(self) -> int | None:
        """The command's exit code, as last read; None before it ended."""
        code = self.status.get("exitCode")
        return None if code is None else int(code)

    @blocking
    async def wait(self, timeout: float | None = None) -> Record:  # noqa: ASYNC109 - the caller's bound, in seconds
        """Wait for the end and return the whole Job.

        Args:
            timeout: Seconds to wait at most; no bound when None.

        Raises:
            JobFailed: When it ended in another way than Succeeded; ``details`` has ``reason``, ``phase``, ``exitCode``.
            NodusTimeout: When the time ran out; the Job goes on.
        """
        await super().wait.aio(timeout)
        return self.raw

    def raise_if_failed(self) -> None:
        """Raise JobFailed when the Job has ended and did not succeed."""
        try:
            super().raise_if_failed()
        except JobFailed as error:
            error.details["exitCode"] = self.exit_code
            raise

    @blocking_iterator
    async def logs(
        self,
        *,
        follow: bool = False,
        tail: int | None = None,
        since: str | float | timedelta | None = None,
        timestamps: bool = False,
        index: int | None = None,
        attempt: int | str | None = None,
    ) -> AsyncGenerator[str, None]:
        """Yield the lines of the newest attempt, each with its newline.

        Of a Job with completions, the lines of all indexes, each with ``[index]`` before it.

        Args:
            follow: Go on until the Job ends, over further attempts and restarts of the server.
            tail: Begin with the last lines only.
            since: Only what is newer than this.
            timestamps: Begin every line with its time.
            index: One completion index.
            attempt: An earlier attempt, by number or name.
        """
        since_s = None if since is None else max(1, round(seconds(since)))
        query = _given(
            tailLines=tail, sinceSeconds=since_s, timestamps=timestamps or None, index=index, attempt=attempt
        )
        if follow and not query:
            chunks = runlog.follow(self.client.resources, self.project, self.name)
        else:
            chunks = runlog.read(self.client.resources, await self._path("log"), {**query, "follow": follow or None})
        async for line in runlog.lines(chunks):
            yield line

    @blocking
    async def attempts(self) -> Records:
        """Return its attempts, oldest first, as objects with ``spec`` and ``status``."""
        found = await self.client.resources.list(
            "Attempt", project=self.project, labels=f"{runlog.JOB_LABEL}={self.name}"
        )
        found.sort(key=lambda item: (int(item["spec"].get("epoch") or 0), int(item["spec"].get("slot") or 0)))
        return [as_record(item) for item in found]

    @property
    def outputs(self) -> Outputs:
        """The files it left."""
        path = f"/apis/nodus.dev/v1/namespaces/{self.project}/jobs/{self.name}/outputs"
        return Outputs(self.client.api, path, f"job {self.name!r}")

    @property
    def estimate(self) -> Record:
        """What it was expected to take; empty where it was made without one."""
        return Record(self.status.get("estimate") or {})

    @blocking
    async def suspend(self) -> None:
        """Pause it: it gives its resources back and keeps its state directory."""
        await self._patch({"spec": {"state": "Suspended"}})

    @blocking
    async def resume(self) -> None:
        """Go on with a suspended Job, in a further attempt."""
        await self._patch({"spec": {"state": "Running"}})


# From arguments to a spec ---------------------------------------------------------------------------------------


def duration(value: str | float | timedelta | None) -> str | None:
    """Return a duration as the wire writes it; text passes as it is."""
    if value is None or isinstance(value, str):
        return value
    return f"{seconds(value):g}s" if seconds(value) < 1e6 else f"{round(seconds(value))}s"


def seconds(value: str | float | timedelta) -> float:
    """Return the seconds of a duration.

    Raises:
        ValueError: When a text is none.
    """
    if isinstance(value, timedelta):
        return value.total_seconds()
    if isinstance(value, str):
        from nodus.core.durations import parse_duration

        return parse_duration(value)
    return float(value)


def _given(**fields: Any) -> dict[str, Any]:
    return {key: value for key, value in fields.items() if value is not None}


def _words(command: Strings | None) -> list[str] | None:
    if isinstance(command, str):
        raise NodusError(
            f"the command is the text {command!r}, and a list of program and arguments is expected",
            fix=f'For a shell: command=["sh", "-c", {command!r}].',
        )
    return None if command is None else [os.fspath(word) for word in command]


def _secret(secret: Any) -> Any:
    if isinstance(secret, str | Mapping):
        return secret
    return str(secret.name)


def _mount(path: str, volume: Any) -> dict[str, Any]:
    if isinstance(volume, Mapping):
        return {"mountPath": path, **volume}
    name, _, mode = str(getattr(volume, "name", volume)).partition(":")
    if mode not in ("", "ro"):
        raise NodusError(f"{volume!r} is no volume for {path}", fix="Write it like 'data' or 'data:ro'.")
    return {"volume": name, "mountPath": path} | ({"readOnly": True} if mode else {})


def _gpu(gpu: str | Strings | None) -> Any:
    return gpu if gpu is None or isinstance(gpu, str) else {"type": list(gpu), "count": 1}


def _recovery(checkpoint: str | Strings | None, continuity: str | None) -> dict[str, Any] | None:
    paths = [checkpoint] if isinstance(checkpoint, str) else list(checkpoint) if checkpoint is not None else None
    return _given(checkpoint=None if paths is None else {"paths": paths}, continuity=continuity) or None


def _placement(
    region: str | Strings | None, interruptible: bool | str | None, profile: str | None
) -> dict[str, Any] | None:
    use = {True: "Allow", False: "Never"}.get(interruptible) if isinstance(interruptible, bool) else interruptible
    regions = [region] if isinstance(region, str) else list(region) if region is not None else None
    return _given(regions=regions, interruptible=use, profile=profile) or None


async def _source(client: Client, project: str, source: PathLike | Mapping[str, Any]) -> dict[str, Any]:
    if isinstance(source, Mapping):
        return dict(source) if set(source) & {"git", "blob"} else {"git": dict(source)}
    with packed(source) as archive:
        return {"blob": await upload_blob(client.api, project, archive.path, "application/gzip")}
