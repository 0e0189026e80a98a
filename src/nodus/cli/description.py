"""The text of ``nodus describe``: what is known of an object, in the order a reader asks."""

from __future__ import annotations

import shlex
from collections.abc import Callable, Iterator, Mapping, Sequence
from typing import Any

from nodus.cli.commands.events import event_cells
from nodus.cli.estimates import estimate_line
from nodus.cli.tables import cell_text, plain_table
from nodus.client.resources import JsonObject
from nodus.core.sizes import size_text

WIDTH = 16
SHOWN_METRICS = 8
SHOWN_LOG_LINES = 30
"""Metrics of a program that its description names; `get -o yaml` has all of them."""


def describe(obj: JsonObject, attempts: Sequence[JsonObject], events: Sequence[JsonObject]) -> Iterator[str]:
    """Yield the lines that describe an object.

    Args:
        obj: The object.
        attempts: Its Attempts, for kinds that have them.
        events: Its Events, oldest first.
    """
    yield from _header(obj)
    kind = str(obj.get("kind"))
    if kind in _OF_KIND:
        yield from _OF_KIND[kind](obj)
    elif kind not in _BY_STATUS:
        yield from _spec(obj)
        yield from _status(obj)
    yield from _run(obj)
    yield from _placement(attempts)
    yield from _results(obj)
    yield from _provenance(obj)
    yield from _conditions((obj.get("status") or {}).get("conditions") or [])
    if attempts:
        yield from _section(
            "Attempts",
            ("NAME", "PHASE", "REASON", "EXIT"),
            [
                (
                    item["metadata"]["name"],
                    (item.get("status") or {}).get("phase"),
                    (item.get("status") or {}).get("reason"),
                    (item.get("status") or {}).get("exitCode"),
                )
                for item in attempts
            ],
        )
    if events:
        rows = [event_cells(event) for event in events]
        yield from _section("Events", ("AGE", "TYPE", "REASON", "MESSAGE"), [(r[0], r[1], r[2], r[4]) for r in rows])


def _header(obj: JsonObject) -> Iterator[str]:
    metadata, status = obj.get("metadata") or {}, obj.get("status") or {}
    yield _line("Name", metadata.get("name"))
    if metadata.get("namespace"):
        yield _line("Project", metadata["namespace"])
    yield _line("Kind", obj.get("kind"))
    yield _line("UID", metadata.get("uid"))
    if metadata.get("labels"):
        yield _line("Labels", ", ".join(f"{key}={value}" for key, value in sorted(metadata["labels"].items())))
    yield _line("Created", metadata.get("creationTimestamp"))
    if status.get("phase"):
        reason = f" ({status['reason']})" if status.get("reason") not in (None, "", status["phase"]) else ""
        yield _line("Phase", f"{status['phase']}{reason}")
    for key, label in (("message", "Message"), ("fix", "Fix")):
        if status.get(key):
            yield _line(label, status[key])


def _environment(obj: JsonObject) -> Iterator[str]:
    spec, status = obj.get("spec") or {}, obj.get("status") or {}
    for label, value in (
        ("Reference", f"{_reference(obj)}@{spec['version']}" if spec.get("version") else None),
        ("Version", spec.get("version")),
        ("Summary", spec.get("summary")),
        ("Category", spec.get("category")),
        ("Publisher", spec.get("publisher")),
        ("Modes", ", ".join(spec.get("modes") or [])),
        ("Licenses", ", ".join(f"{key}: {value}" for key, value in (spec.get("licenses") or {}).items())),
        ("Digest", status.get("digest")),
        ("Image", status.get("image")),
        ("Made with", status.get("ecosystem")),
        ("Episodes", _episodes(status)),
        ("Tools", "the model may call tools: its chat template must offer them" if status.get("tools") else None),
    ):
        if value:
            yield _line(label, value)
    splits = status.get("splits") or {
        key: (value or {}).get("size") for key, value in (spec.get("splits") or {}).items()
    }
    if splits:
        yield _line("Splits", ", ".join(f"{name} {size}" for name, size in splits.items()))
    for measure in spec.get("heldOutMeasures") or []:
        yield _line("Held out", measure)
    grader = status.get("grader") or {}
    if grader.get("python"):
        libraries = [f"{name} {version}" for name, version in (grader.get("libraries") or {}).items()]
        yield _line("Graded with", ", ".join([f"Python {grader['python']}", *libraries]))
    if spec.get("sampleTask"):
        yield _line("Sample task", str(spec["sampleTask"]).replace("\n", "\n" + " " * WIDTH))
    if spec.get("graders"):
        yield from _section(
            "Graders",
            ("NAME", "KIND", "DESCRIPTION"),
            [(item.get("name"), item.get("kind"), item.get("description")) for item in spec["graders"]],
        )
    if spec.get("examples"):
        yield from _section(
            "Examples",
            ("NAME", "MODE", "RUNTIME", "MODEL", "BASELINE", "TRAINED", "CHANGE"),
            [
                (
                    item.get("name"),
                    item.get("mode") or "Train",
                    item.get("runtime"),
                    (item.get("model") or {}).get("uri"),
                    (item.get("baseline") or {}).get("passRate", "not measured"),
                    (item.get("trained") or {}).get("passRate"),
                    item.get("changePP"),
                )
                for item in spec["examples"]
            ],
        )


def _episodes(status: JsonObject) -> str | None:
    if not status.get("episodes"):
        return None
    most = f" of at most {status['maxTurns']} turns" if status.get("maxTurns") else " of several turns"
    return f"yes,{most}: set parameters.maxTurns of a TrainingJob"


def _image(obj: JsonObject) -> Iterator[str]:
    spec, status = obj.get("spec") or {}, obj.get("status") or {}
    yield _line("Built for", f"{spec.get('environment')}@{spec.get('version')}")
    for kind, value in (spec.get("package") or {}).items():
        if isinstance(value, Mapping):
            of = f"{value.get('name')}=={value.get('version')}" + (
                f" of {value['index']}" if value.get("index") else ""
            )
            yield _line("Package", f"{kind} {of}")
        elif value:
            yield _line(kind.capitalize(), value)
    if status.get("digest"):
        yield _line("Digest", status["digest"])
    if status.get("sizeBytes") is not None:
        yield _line("Size", size_text(int(status["sizeBytes"])))
    if status.get("retryTime"):
        yield _line("Tried again", status["retryTime"])
    if status.get("steps"):
        rows = [
            (
                step.get("name"),
                step.get("phase"),
                step.get("startTime"),
                step.get("completionTime"),
                step.get("message"),
            )
            for step in status["steps"]
        ]
        yield from _section("Steps", ("NAME", "PHASE", "STARTED", "ENDED", "MESSAGE"), rows)
    if status.get("packages"):
        yield from _section("Packages", ("NAME", "VERSION"), sorted(status["packages"].items()))
    if status.get("logTail"):
        yield "End of the log:"
        yield from (f"  {line}" for line in str(status["logTail"]).splitlines()[-SHOWN_LOG_LINES:])


def _runtime(obj: JsonObject) -> Iterator[str]:
    spec = obj.get("spec") or {}
    defaults = (spec.get("defaults") or {}).get("parameters") or {}
    for label, value in (
        ("Reference", _reference(obj)),
        ("Summary", spec.get("summary")),
        ("Image", spec.get("image")),
        ("Task", spec.get("task")),
        ("Modes", ", ".join(spec.get("modes") or [])),
        ("Launcher", spec.get("launcher")),
        ("Requires", ", ".join(key for key, needed in (spec.get("requires") or {}).items() if needed)),
        ("Outputs", ", ".join(str(item.get("path")) for item in spec.get("outputs") or [])),
    ):
        if value:
            yield _line(label, value)
    rows = list(_parameters(spec.get("parameters") or {}, defaults, ""))
    if rows:
        yield from _section("Parameters", ("NAME", "TYPE", "DEFAULT", "ALLOWED", "DESCRIPTION"), rows)
    if spec.get("presets"):
        yield from _section(
            "Presets",
            ("MODEL", "METHOD", "RESOURCES"),
            [(item.get("model"), item.get("method"), _resources(item.get("resources"))) for item in spec["presets"]],
        )


def _parameters(schema: Mapping[str, Any], defaults: Any, path: str) -> Iterator[tuple[object, ...]]:
    """Rows of a JSON Schema's properties, by their path below ``spec.parameters``."""
    for name, field in (schema.get("properties") or {}).items():
        known = defaults.get(name) if isinstance(defaults, Mapping) else None
        if field.get("properties"):
            yield from _parameters(field, known, f"{path}{name}.")
            continue
        allowed = ", ".join(map(str, field.get("enum") or ()))
        if "minimum" in field or "maximum" in field:
            allowed = f"{field.get('minimum', '')} to {field.get('maximum', '')}".strip()
        default = field.get("default", known)
        yield f"{path}{name}", field.get("type", "any"), default, allowed, field.get("description")


def _resources(resources: Any) -> str:
    wanted = dict(resources or {})
    gpu = wanted.pop("gpu", None)
    parts = [f"{key} {value}" for key, value in wanted.items()]
    if isinstance(gpu, Mapping):
        parts.insert(0, f"{gpu.get('count', 1)} x {' or '.join(gpu.get('type') or ['any GPU'])}")
    elif gpu:
        parts.insert(0, str(gpu))
    return ", ".join(parts)


def _volume(obj: JsonObject) -> Iterator[str]:
    spec, status = obj.get("spec") or {}, obj.get("status") or {}
    yield _line("Access mode", spec.get("accessMode"))
    yield _line("Size", spec.get("size"))
    yield _line("Revision", status.get("revision"))
    used = str(status.get("used") or "0")
    yield _line("Used", size_text(int(used)) if used.isdigit() else used)
    for label, value in (("Source", spec.get("source")), ("Digest", status.get("digest"))):
        if value:
            yield _line(label, cell_text(value))


def _secret(obj: JsonObject) -> Iterator[str]:
    status = obj.get("status") or {}
    yield _line("Type", (obj.get("spec") or {}).get("type"))
    yield _line("Version", status.get("version"))
    yield _line("Keys", ", ".join(status.get("keys") or []))


def _job(obj: JsonObject) -> Iterator[str]:
    spec, status = obj.get("spec") or {}, obj.get("status") or {}
    words = [*(spec.get("command") or []), *(spec.get("args") or [])]
    image = status.get("image") or {}
    for label, value in (
        (
            "Image",
            " ".join(str(part) for part in (spec.get("image") or image.get("reference"), image.get("digest")) if part),
        ),
        ("Command", shlex.join(map(str, words))),
        ("Source", _source(spec.get("source") or {}, (status.get("pinned") or {}).get("source") or {})),
        ("Resources", _resources(spec.get("resources"))),
        ("Timeout", spec.get("timeout")),
        ("Indexes", _indexes(status)),
    ):
        if value:
            yield _line(label, cell_text(value))


def _sandbox(obj: JsonObject) -> Iterator[str]:
    spec, status = obj.get("spec") or {}, obj.get("status") or {}
    image, lifecycle = status.get("image") or {}, spec.get("lifecycle") or {}
    idle, after = lifecycle.get("idleTimeout"), lifecycle.get("onIdle") or "Stop"
    activity, since = status.get("activity"), status.get("lastActivityTime")
    attempt = status.get("attempt") or {}
    for label, value in (
        (
            "Image",
            " ".join(str(part) for part in (spec.get("image") or image.get("reference"), image.get("digest")) if part),
        ),
        ("Command", shlex.join(map(str, [*(spec.get("command") or []), *(spec.get("args") or [])]))),
        ("Resources", _resources(spec.get("resources"))),
        ("Working dir", spec.get("workingDir")),
        ("Environment", ", ".join(str(item.get("name")) for item in spec.get("env") or [])),
        ("Secrets", ", ".join(_name_of(item) for item in spec.get("secrets") or [])),
        ("When idle", f"{after} after {idle}" if idle else None),
        ("Lifetime", lifecycle.get("maxLifetime")),
        ("Wanted", spec.get("state")),
        ("Activity", f"{activity}, last at {since}" if activity and since else activity),
        ("Started", status.get("startTime")),
        ("Stopped", status.get("stopTime")),
        ("Stop reason", status.get("stopReason")),
        ("Exit code", status.get("exitCode")),
        ("Attempt", f"{attempt['name']}, start {attempt.get('epoch')}" if attempt.get("name") else None),
        ("Recoveries", status.get("recoveries") or None),
        ("Processes", f"{status['processCount']} so far" if status.get("processCount") else None),
    ):
        if value not in (None, ""):
            yield _line(label, cell_text(value))


def _name_of(reference: Any) -> str:
    """A Secret by its name, or by its name and version."""
    if not isinstance(reference, Mapping):
        return str(reference)
    return f"{reference.get('name')}@{reference['version']}" if reference.get("version") else str(reference.get("name"))


def _process(obj: JsonObject) -> Iterator[str]:
    spec, status = obj.get("spec") or {}, obj.get("status") or {}
    streams = [word for word, given in (("a terminal", spec.get("tty")), ("input", spec.get("stdin"))) if given]
    for label, value in (
        ("Sandbox", spec.get("sandbox")),
        ("Number", spec.get("number")),
        ("Command", shlex.join(map(str, spec.get("command") or []))),
        ("With", " and ".join(streams)),
        ("Working dir", spec.get("workingDir")),
        ("Timeout", spec.get("timeout")),
        ("Wanted", spec.get("state") if spec.get("state") == "Cancelled" else None),
        ("Started", status.get("startTime")),
        ("Ended", status.get("completionTime")),
        ("Exit code", status.get("exitCode")),
    ):
        if value not in (None, ""):
            yield _line(label, cell_text(value))


def _source(source: Mapping[str, Any], pinned: Mapping[str, Any]) -> str | None:
    git = source.get("git")
    if git:
        return " at ".join(str(part) for part in (git.get("repo"), pinned.get("commit") or git.get("ref")) if part)
    return source.get("blob")


def _indexes(status: Mapping[str, Any]) -> str | None:
    """How far a Job with completions is, such as ``2 of 4 succeeded (0-1), active 2``."""
    units, indexes = (status.get("progress") or {}).get("units") or {}, status.get("indexes")
    if not indexes:
        return None
    done = f" ({indexes['succeeded']})" if indexes.get("succeeded") else ""
    rest = [f"{word} {indexes[word]}" for word in ("active", "failed") if indexes.get(word)]
    return ", ".join([f"{units.get('completed', 0)} of {units.get('total')} succeeded{done}", *rest])


def _reference(obj: JsonObject) -> str:
    metadata = obj.get("metadata") or {}
    return f"{'nodus/' if metadata.get('namespace') == 'nodus' else ''}{metadata.get('name')}"


_OF_KIND: dict[str, Callable[[JsonObject], Iterator[str]]] = {
    "Environment": _environment,
    "Image": _image,
    "TrainingRuntime": _runtime,
    "Volume": _volume,
    "Secret": _secret,
    "Job": _job,
    "Sandbox": _sandbox,
    "Process": _process,
}
# Their lines come from what they run and what has become of it.
_BY_STATUS = ("TrainingJob",)


def _run(obj: JsonObject) -> Iterator[str]:
    spec, status = obj.get("spec") or {}, obj.get("status") or {}
    for label, value in (
        ("Runtime", spec.get("runtime")),
        ("Model", (spec.get("model") or {}).get("uri")),
        (
            "Environment",
            (spec.get("environment") or {}).get("name") if isinstance(spec.get("environment"), Mapping) else None,
        ),
    ):
        if value:
            yield _line(label, value)
    attempts = status.get("attempts") or {}
    if attempts.get("current"):
        # A suspended run goes on in another attempt, which doesn't count against the limit.
        within = attempts["current"] <= (attempts.get("max") or 0)
        most = f" of {attempts['max']}" if within else ""
        yield _line("Attempt", f"{attempts['current']}{most}")
    if (status.get("progress") or {}).get("stage"):
        yield _line("Stage", status["progress"]["stage"])
    if not status.get("indexes"):
        yield from _reported(status.get("progress") or {})
    metrics = status.get("metrics") or {}
    if metrics.get("step") is not None:
        parts = [f"{metrics['step']} of {metrics.get('totalSteps', '?')}"]
        parts += [f"{key} {metrics[key]}" for key in ("reward", "loss", "kl") if metrics.get(key) is not None]
        if metrics.get("tokensPerSecond") is not None:
            parts.append(f"{metrics['tokensPerSecond']} tokens/s")
        yield _line("Step", ", ".join(parts))
    if status.get("estimate"):
        yield _line("Estimate", estimate_line(obj, dry_run=False).partition(" · ")[2])
    checkpoint = status.get("checkpoint") or {}
    if checkpoint.get("seq") is not None:
        size = f", {size_text(int(checkpoint['size']))}" if str(checkpoint.get("size", "")).isdigit() else ""
        yield _line("Checkpoint", f"{checkpoint['seq']} at {checkpoint.get('time', 'an unknown time')}{size}")
    cost = status.get("cost") or {}
    if cost.get("totalUSD") is not None:
        limit = f" of at most ${cost['limitUSD']}" if cost.get("limitUSD") else ""
        yield _line("Cost", f"${cost['totalUSD']}{'' if cost.get('final') else ' so far'}{limit}")


def _reported(progress: JsonObject) -> Iterator[str]:
    """What the command says of itself."""
    units, metrics = progress.get("units") or {}, progress.get("metrics") or {}
    if units.get("completed") is not None:
        total = f" of {units['total']}" if units.get("total") is not None else ""
        yield _line("Progress", f"{units['completed']}{total}")
    if metrics:
        shown = [f"{name} {value}" for name, value in list(metrics.items())[:SHOWN_METRICS]]
        more = f", and {len(metrics) - len(shown)} more" if len(metrics) > len(shown) else ""
        yield _line("Metrics", ", ".join(shown) + more)


def _placement(attempts: Sequence[JsonObject]) -> Iterator[str]:
    """Where the newest attempt runs, and at what price."""
    placement = ((attempts[-1].get("status") or {}).get("placement") or {}) if attempts else {}
    parts = [placement.get("offering"), placement.get("regionClass")]
    if placement.get("rateUSDPerHour") is not None:
        parts.append(f"${placement['rateUSDPerHour']} an hour")
    if placement.get("offering"):
        yield _line("Placement", ", ".join(str(part) for part in parts if part))


def _spec(obj: JsonObject) -> Iterator[str]:
    """The spec as it is, for kinds that have no lines of their own."""
    if obj.get("spec"):
        from nodus.cli.formats import to_yaml

        yield "Spec:"
        yield from (f"  {line}" for line in to_yaml(obj["spec"]).splitlines())


# What has lines of its own for every kind, or says nothing to a reader.
_SHOWN = {
    "phase", "reason", "message", "fix", "progress", "metrics", "attempts", "estimate", "checkpoint", "cost", "summary",
    "diagnostics", "outputs", "outputsTotal", "provenance", "conditions", "observedGeneration",
}  # fmt: skip


def _status(obj: JsonObject) -> Iterator[str]:
    """What is known of such a kind besides: a key's last use, a process's exit code."""
    rest = {key: value for key, value in (obj.get("status") or {}).items() if key not in _SHOWN and value is not None}
    if rest:
        from nodus.cli.formats import to_yaml

        yield "Status:"
        yield from (f"  {line}" for line in to_yaml(rest).splitlines())


def _results(obj: JsonObject) -> Iterator[str]:
    from nodus.client.following import comparison_lines

    status = obj.get("status") or {}
    lines = comparison_lines(status.get("summary") or {})
    if lines:
        yield "Summary:"
        yield from (f"  {line}" for line in lines)
    signal = (status.get("diagnostics") or {}).get("rewardSignal")
    if signal:
        message = status["diagnostics"].get("message")
        yield _line("Reward signal", f"{signal}{f': {message}' if message else ''}")
    if status.get("outputs"):
        outputs = [(item.get("name"), item.get("sizeBytes", item.get("size"))) for item in status["outputs"]]
        headers: tuple[str, ...] = ("NAME", "SIZE")
        rows: list[tuple[object, ...]] = list(outputs)
        if any("index" in item for item in status["outputs"]):
            headers = ("INDEX", *headers)
            rows = [(item.get("index"), *row) for item, row in zip(status["outputs"], outputs, strict=True)]
        yield from _section("Outputs", headers, rows)
        total = (status.get("outputsTotal") or {}).get("files", 0)
        if total > len(rows):
            run = f"{obj['kind'].lower()}/{obj['metadata']['name']}"
            yield f"  and {total - len(rows)} more: nodus cp {run}:outputs/ DIR"


def _provenance(obj: JsonObject) -> Iterator[str]:
    provenance = (obj.get("status") or {}).get("provenance") or {}
    if provenance:
        yield "Provenance:"
        yield from (f"  {key + ':':<21}{cell_text(value)}" for key, value in provenance.items() if value is not None)


def _conditions(conditions: Sequence[Mapping[str, Any]]) -> Iterator[str]:
    if conditions:
        rows = [(item.get("type"), item.get("status"), item.get("reason"), item.get("message")) for item in conditions]
        yield from _section("Conditions", ("TYPE", "STATUS", "REASON", "MESSAGE"), rows)


def _section(title: str, headers: Sequence[str], rows: Sequence[Sequence[object]]) -> Iterator[str]:
    yield f"{title}:"
    yield from (f"  {line}" for line in plain_table(headers, rows))


def _line(label: str, value: object) -> str:
    return f"{label + ':':<{WIDTH}}{'' if value is None else value}"
