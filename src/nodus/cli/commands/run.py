"""``nodus run``."""

from __future__ import annotations

import contextlib
import re
import secrets
import sys
from typing import Any

import click

from nodus.cli.colour import is_terminal
from nodus.cli.render import error_lines
from nodus.cli.runview import EXIT_OTHER, RunView, interrupted, say
from nodus.cli.session import Session, connected
from nodus.client.blobs import upload_blob
from nodus.client.resources import JsonObject
from nodus.core.durations import format_duration, parse_duration
from nodus.core.errors import NodusError

KEPT_S = 30 * 24 * 3600
EXIT_INTERRUPTED = 130
_PYTHON_FILE = re.compile(r"(?P<file>[^:]+\.py)(::(?P<function>\w+))?")


def _duration(ctx: click.Context, param: click.Parameter, value: str | None) -> str | None:
    """Check a duration; the text is what is sent."""
    if value is not None:
        try:
            parse_duration(value)
        except ValueError as error:
            raise click.BadParameter(str(error), ctx, param) from error
    return value


def _words(*words: str) -> click.Choice[str]:
    return click.Choice(words, case_sensitive=False)


@click.command(context_settings={"allow_interspersed_args": False})
@click.argument("words", nargs=-1, type=click.UNPROCESSED, metavar="-- COMMAND [ARGS]...")
@click.option("--name", metavar="NAME", help="Name of the Job; made by the server when unset.")
@click.option("--image", metavar="IMAGE", help="Managed image; nodus/base when unset.")
@click.option("--cpu", metavar="CORES", help="CPU cores, such as 4 or 500m. [default: 1]")
@click.option("--memory", metavar="SIZE", help="Memory, such as 16Gi. [default: 2Gi]")
@click.option("--disk", metavar="SIZE", help="Scratch disk, such as 200Gi.")
@click.option("--gpu", metavar="TYPE[:COUNT]", help="GPU, such as H100:8.")
@click.option("--env", "env", multiple=True, metavar="K=V", help="Environment variable.")
@click.option("--secret", "secret", multiple=True, metavar="NAME", help="Secret whose keys become variables.")
@click.option("--volume", multiple=True, metavar="NAME:/path[:ro]", help="Volume to mount; NAME@3 is revision 3.")
@click.option("--output", multiple=True, metavar="NAME=/path", help="File or directory to keep when it ends.")
@click.option("--workdir", metavar="/path", help="Working directory. [default: /workspace]")
@click.option("--timeout", callback=_duration, metavar="DURATION", help="Bound on its time, such as 2h.")
@click.option("--backoff-limit", type=click.IntRange(0, 100), metavar="N", help="Further attempts after a failed one.")
@click.option("--completions", type=click.IntRange(1), metavar="N", help="Run once for each index below N.")
@click.option("--parallelism", type=click.IntRange(1), metavar="N", help="Indexes at once.")
@click.option("--checkpoint", multiple=True, metavar="/path", help="Directory kept from attempt to attempt.")
@click.option("--continuity", type=_words("checkpointed", "restartable", "ephemeral"), help="After a lost machine.")
@click.option("--no-source", is_flag=True, help="Do not upload the current directory.")
@click.option("--allow-large-source", is_flag=True, help="Upload more than 500 MiB, compressed.")
@click.option("--git", metavar="URL", help="Take the source from a repository, not from the current directory.")
@click.option("--git-ref", metavar="REF", help="With --git: branch, tag or commit.")
@click.option("--git-path", metavar="DIR", help="With --git: a directory of it.")
@click.option("-d", "--detach", is_flag=True, help="Return once the Job is created.")
@click.option("--dry-run", is_flag=True, help="Print the estimate only.")
@click.option("--keep", is_flag=True, help="Keep the Job for good, not for 30 days after its end.")
@click.option("-l", "--label", multiple=True, metavar="K=V", help="Label.")
@click.option("--max-cost", metavar="USD", help="Spend cap.")
@click.option("--expected-duration", callback=_duration, metavar="DURATION", help="For the estimate.")
@click.option("--complete-by", metavar="TIME", help="RFC 3339 time to be done by.")
@click.option("--idempotency-key", metavar="KEY", help="The same key with the same Job creates once.")
@click.option("--interruptible", type=_words("allow", "prefer", "never"), is_flag=False, flag_value="prefer",
              help="Use of interruptible machines; prefer when no word follows.")  # fmt: skip
@click.option("--region", multiple=True, metavar="CLASS", help="Region class, such as us or eu.")
@click.option("--profile", type=_words("balanced", "cost", "speed"), help="Placement.")
@click.option("--no-warm", is_flag=True, help="Keep no machine warm afterwards.")
@click.option("--nodes", type=click.IntRange(1), metavar="N", help="Machines of a gang.")
@click.option("--total-gpus", type=click.IntRange(1), metavar="N", help="GPUs of a gang.")
@click.option("--gpus-per-node", type=click.IntRange(1), metavar="N", help="GPUs of each machine.")
@click.option("--launcher", metavar="NAME", help="plain or torchrun.")
@click.option("--network", type=_words("colocated", "regional", "global"), help="Where a gang's machines may be.")
@click.option("--transport", type=_words("direct", "auto"), help="How a gang's machines may connect.")
@click.option("--startup-timeout", callback=_duration, metavar="DURATION", help="How long a gang may assemble.")
@connected(patient=True)
def command(session: Session, /, words: tuple[str, ...], **flags: Any) -> int:
    """Run a command in a sandbox, with the current directory's files.

    Uploads the current directory without what git ignores, creates a Job, prints its output, and exits with the
    command's exit code; 124 when its time ran out, 125 when the end wasn't the command's own, 130 after Ctrl+C.

    \b
    Examples:
      nodus run -- python train.py --steps 10
      nodus run --cpu 4 --output model=/workspace/model -d -- python train.py
      nodus run --completions 8 -- sh -c 'python eval.py --shard $NODUS_INDEX'
    """
    _check_words(words)
    document = manifest(words, flags)
    try:
        return _run(session, document, flags)
    except NodusError as error:
        say(*error_lines(error))
        return EXIT_OTHER


def _run(session: Session, document: JsonObject, flags: dict[str, Any]) -> int:
    from nodus.cli.estimates import estimate_line

    sha256 = _add_source(session, document, flags)
    if flags["dry_run"]:
        planned = session.run(session.resources.plan(document)).object
        say(estimate_line(planned, dry_run=True))
        return 0
    made = f"run-{sha256[:16]}-{secrets.token_hex(4)}" if sha256 else f"run-{secrets.token_hex(8)}"
    key = flags["idempotency_key"] or made
    job, outcome = session.run(session.resources.create_or_find(document, idempotency_key=key))
    view = RunView(session, job)
    label, _, told = estimate_line(view.job, dry_run=False).partition(" · ")
    if outcome == "unchanged":
        outcome = "is there already and runs no second time; another --name, or none, makes a new Job"
    if flags["detach"]:
        say(f"{label} {outcome} · {told} · nodus logs -f {label}")
        if not is_terminal(sys.stdout):
            print(label)
        return 0
    say(f"{label} {outcome} · {told} · Ctrl+C to cancel, -d to detach")
    try:
        return view.follow()
    except KeyboardInterrupt:
        interrupted(view)
        return EXIT_INTERRUPTED


def _check_words(words: tuple[str, ...]) -> None:
    if not words:
        raise click.UsageError("say what to run: nodus run [flags] -- COMMAND [ARGS...].")
    named = _PYTHON_FILE.fullmatch(words[0])
    if named is not None and "/" not in words[0]:
        if named["function"]:
            raise click.UsageError(
                f"{words[0]!r} names a function; functions are not built here. Run the file: "
                f"nodus run -- python {named['file']}."
            )
        raise click.UsageError(f"{words[0]!r} is a file, not a command: nodus run -- python {words[0]}.")


def _add_source(session: Session, document: JsonObject, flags: dict[str, Any]) -> str | None:
    """Upload the current directory and name it in the document; return its sha256."""
    if flags["git"] or flags["no_source"]:
        return None
    from nodus.cli.progress import Waiting
    from nodus.client.source import packed

    with contextlib.ExitStack() as stack:
        with Waiting("packing the current directory"):
            archive = stack.enter_context(packed(".", allow_large=flags["allow_large_source"]))
        for skipped in archive.skipped[:5]:
            say(f"left out {skipped}")
        if not archive.files:
            return None
        blob = session.run(upload_blob(session.api, session.project, archive.path, "application/gzip"))
    document["spec"]["source"] = {"blob": blob}
    return blob.removeprefix("sha256:")


# From flags to a manifest ---------------------------------------------------------------------------------------


def manifest(words: tuple[str, ...], flags: dict[str, Any]) -> JsonObject:
    """Return the Job that the flags describe, without its source.

    Raises:
        click.UsageError: When a flag can't be read.
    """
    git = _given(repo=flags["git"], ref=flags["git_ref"], path=flags["git_path"])
    if git and not flags["git"]:
        raise click.UsageError("--git-ref and --git-path go with --git URL.")
    spec = _given(
        command=list(words),
        image=flags["image"],
        resources=_given(**{name: flags[name] for name in ("cpu", "memory", "disk", "gpu")}) or None,
        env=[{"name": key, "value": value} for key, value in _pairs(flags, "env", "K=V")] or None,
        secrets=[_secret(text) for text in flags["secret"]] or None,
        volumes=[_volume(text) for text in flags["volume"]] or None,
        outputs=[{"name": key, "path": path} for key, path in _pairs(flags, "output", "NAME=/path", path=True)] or None,
        source={"git": git} if git else None,
        workingDir=flags["workdir"],
        timeout=flags["timeout"],
        backoffLimit=flags["backoff_limit"],
        completions=flags["completions"],
        parallelism=flags["parallelism"],
        recovery=_given(
            checkpoint={"paths": list(flags["checkpoint"])} if flags["checkpoint"] else None,
            continuity=_capital(flags["continuity"]),
        )
        or None,
        maxCostUSD=flags["max_cost"],
        expectedDuration=flags["expected_duration"],
        completeByTime=flags["complete_by"],
        scaledownWindow="0s" if flags["no_warm"] else None,
        ttlSecondsAfterFinished=None if flags["keep"] else KEPT_S,
        placement=_given(
            interruptible=_capital(flags["interruptible"]),
            regions=[name for given in flags["region"] for name in given.split(",")] or None,
            profile=_capital(flags["profile"]),
        )
        or None,
        distributed=_given(
            nodes=flags["nodes"],
            totalGPUs=flags["total_gpus"],
            gpusPerNode=flags["gpus_per_node"],
            launcher=_capital(flags["launcher"]),
            network=_capital(flags["network"]),
            transport=_capital(flags["transport"]),
            startupTimeout=flags["startup_timeout"] and format_duration(parse_duration(flags["startup_timeout"])),
        )
        or None,
    )
    metadata: JsonObject = {"name": flags["name"]} if flags["name"] else {"generateName": "run-"}
    if flags["label"]:
        given = (pair for text in flags["label"] for pair in text.split(","))
        metadata["labels"] = dict(_pair(pair, "label", "K=V") for pair in given)
    return {"apiVersion": "nodus.dev/v1", "kind": "Job", "metadata": metadata, "spec": spec}


def _capital(word: str | None) -> str | None:
    """Return a word as the API spells it."""
    return word and word[:1].upper() + word[1:]


def _given(**fields: Any) -> dict[str, Any]:
    return {key: value for key, value in fields.items() if value is not None}


def _pairs(flags: dict[str, Any], flag: str, form: str, *, path: bool = False) -> list[tuple[str, str]]:
    return [_pair(text, flag, form, path=path) for text in flags[flag]]


def _pair(text: str, flag: str, form: str, *, path: bool = False) -> tuple[str, str]:
    key, equals, value = text.partition("=")
    if not key or not equals or (path and not value.startswith("/")):
        raise click.UsageError(f"--{flag} {text!r} is not {form}.")
    return key, value


def _secret(text: str) -> str | dict[str, Any]:
    name, at, version = text.partition("@")
    if at and not version.isdigit():
        raise click.UsageError(f"--secret {text!r} is not NAME or NAME@VERSION.")
    return {"name": name, "version": int(version)} if at else name


def _volume(text: str) -> dict[str, Any]:
    match = re.fullmatch(r"(?P<name>[^:@]+)(@(?P<revision>\d+))?:(?P<path>/[^:]*)(:(?P<mode>ro|rw))?", text)
    if match is None:
        raise click.UsageError(f"--volume {text!r} is not NAME:/path[:ro].")
    found: dict[str, Any] = {"volume": match["name"], "mountPath": match["path"]}
    if match["mode"] == "ro":
        found["readOnly"] = True
    return found | ({"revision": int(match["revision"])} if match["revision"] else {})
