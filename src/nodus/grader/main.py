"""The command ``nodus-env``: ``info``, ``libraries``, ``tasks``, ``grade`` and ``step``.

    nodus-env --path ./my-env --loader my_module info
    nodus-env --path ./my-env --loader my_module tasks --split test --seed 42
    echo '{"taskId": "...", "completion": "..."}' | nodus-env --path ./my-env --loader my_module grade
    echo '{"taskId": "...", "turns": ["..."]}' | nodus-env --path ./my-env --loader my_module step

Without options the environment variables ``NODUS_ENVIRONMENT_LOADER``, ``NODUS_ENVIRONMENT`` and
``NODUS_ENVIRONMENT_VERSION`` say what to load, from ``/opt/environment``.
"""

from __future__ import annotations

import argparse
import os
import sys
import traceback
from collections.abc import Sequence
from typing import Any

from nodus.grader import PROTOCOL_VERSION, cache, imports, process
from nodus.grader.adapters import EnvironmentFault, Refused
from nodus.grader.direct import is_pure
from nodus.grader.loading import SPLITS, Environment, load, search_first
from nodus.grader.tasks import ordered, public_line
from nodus.grader.worker import DEFAULT_TIMEOUT_S, Output, serve

EXIT_REFUSED = 3
EXIT_NOT_READ = 1


def parser() -> argparse.ArgumentParser:
    """Return the command line's parser."""
    root = argparse.ArgumentParser(prog="nodus-env", description="Tasks and verdicts of one environment.")
    root.add_argument("--loader", default=os.environ.get("NODUS_ENVIRONMENT_LOADER"), help="module or module:function")
    root.add_argument("--path", action="append", default=[], help="directory to import from (also its site/)")
    root.add_argument("--library", action="append", default=[], help="directory of installed packages, searched last")
    root.add_argument("--cache", nargs=2, metavar=("FROM", "TO"), help="data the build fetched, and where to show it")
    root.add_argument("--name", default=os.environ.get("NODUS_ENVIRONMENT", "environment"))
    root.add_argument("--version", default=os.environ.get("NODUS_ENVIRONMENT_VERSION", "0.0.0"))
    root.add_argument("--output-fd", type=int, help="descriptor for results; standard output when absent")
    root.add_argument("--code-fd", type=int, help="control socket of the sandbox that runs code of completions")
    root.add_argument("--lifeline-fd", type=int, help="descriptor of a pipe; when its last writer is gone, so are we")
    commands = root.add_subparsers(dest="command", required=True)
    commands.add_parser("info", help="print what the environment is, as JSON")
    commands.add_parser("libraries", help="print Python's and the libraries' versions and which are missing, as JSON")
    tasks = commands.add_parser("tasks", help="print one JSON line for each task of a split")
    tasks.add_argument("--split", required=True, choices=("train", "test"))
    tasks.add_argument("--seed", type=int, default=0, help="decides the order of the tasks, nothing else")
    tasks.add_argument("--answers", action="store_true", help="with the answers, for a grader inside Nodus")
    grade = commands.add_parser("grade", help="read completions, or turns, as JSON lines, print a verdict for each")
    limit_s = float(os.environ.get("NODUS_GRADING_TIMEOUT") or DEFAULT_TIMEOUT_S)  # an image is given no options
    grade.add_argument("--timeout", type=float, default=limit_s, help="seconds for one completion")
    step = commands.add_parser("step", help="read turns of episodes as JSON lines, print the environment's messages")
    step.add_argument("--timeout", type=float, default=limit_s, help="seconds for one step")
    return root


def main(argv: Sequence[str] | None = None) -> int:
    """Run one command; 0 when it could, 3 when the environment is refused (the reason is on the output as JSON)."""
    options = parser().parse_args(argv)
    # whatever the environment prints goes nowhere: only this descriptor carries results
    output = Output.take_over(options.output_fd)
    if options.lifeline_fd is not None:
        process.end_with_writer(options.lifeline_fd)
    try:
        if not options.loader:
            raise Refused("no loader: name the environment's module with --loader or NODUS_ENVIRONMENT_LOADER")
        return _run(options, output)
    except Refused as refusal:
        return _refuse(output, str(refusal), None)
    except EnvironmentFault as fault:
        return _refuse(output, str(fault), fault.trace)
    except BrokenPipeError:
        return EXIT_NOT_READ  # as `nodus-env tasks | head` does: there is nobody to tell
    except Exception as error:  # noqa: BLE001 - a fault of ours must reach the host as a reason, not as silence
        return _refuse(output, f"nodus-env failed: {error!r}", traceback.format_exc())


def _refuse(output: Output, reason: str, trace: str | None) -> int:
    output.line({"refused": reason, "traceback": trace})
    print(f"nodus-env: {reason}", *([trace] if trace else []), sep="\n", file=sys.stderr)  # noqa: T201 - a command
    return EXIT_REFUSED


def _run(options: argparse.Namespace, output: Output) -> int:
    sys.path += options.library
    if options.cache is not None:
        cache.use(*options.cache)
    paths = options.path or ["/opt/environment"]
    if options.command == "libraries":
        search_first(paths)
        output.line(imports.report(paths))
        return 0
    environment = load(options.loader, paths, options.name, options.version)
    if options.command in ("grade", "step"):
        if options.code_fd is not None:
            from nodus.grader import code  # late: only environments that run code need sockets, in every fork

            code.use(options.code_fd, options.timeout)
        imports.preload(paths)
        steps = options.command == "step"
        pure, lifeline_fd = output.private and is_pure(options.loader), options.lifeline_fd
        return serve(environment, output, timeout_s=options.timeout, lifeline_fd=lifeline_fd, steps=steps, pure=pure)
    if options.command == "tasks":
        for task in ordered(environment.split(options.split), options.seed):
            output.line(public_line(task, answers=options.answers))
        return 0
    output.line(_info(environment, options.loader))
    return 0


def _info(environment: Environment, loader: str) -> dict[str, Any]:
    """Return what ``info`` says; ``maxTurns`` only where the environment knows its own."""
    adapter = environment.adapter
    facts: dict[str, Any] = {
        "name": environment.name,
        "version": environment.version,
        "loader": loader,
        "kind": adapter.kind,
        "episodes": adapter.episodes,
        "splits": {split: len(environment.split(split)) for split in SPLITS},
        "shared": environment.shared,
        "protocol": PROTOCOL_VERSION,
        "python": ".".join(map(str, sys.version_info[:3])),
    }
    turns = getattr(adapter, "max_turns", None) if adapter.episodes else 1
    return facts | ({"maxTurns": turns} if isinstance(turns, int) and turns > 0 else {})


if __name__ == "__main__":
    raise SystemExit(main())
