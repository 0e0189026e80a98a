"""What of ``verifiers`` can't be graded here, found out before it does anything.

Some constructors start servers, ask for credentials or fail in ways that hide the reason, so the library's base classes
are given a ``__new__`` that refuses by the names of an object's classes. It gets there through the import system: the
environment may import the library in its module or only inside ``load_environment()``, and one that does not use it
loads nothing of it.
"""

from __future__ import annotations

import os
import sys
from collections.abc import Callable, Iterable, Iterator
from typing import Any

from nodus.grader.adapters.base import Refused
from nodus.grader.adapters.verifiers.versions import VERSIONS, installed, version_of

_PACKAGE = "verifiers"
_WATCHED = {"envs.environment": "Environment", "rubrics.rubric": "Rubric"}
_OFFLINE = "grading has no network"
_SANDBOX = f"runs code in a remote sandbox ({{}}), and {_OFFLINE}"
_AGENT = f"is played by an agent in a remote sandbox ({{}}), and {_OFFLINE}"
_JUDGE = f"is scored by another model ({{}}), and {_OFFLINE} and holds no credential for that model"
_REASONS = {
    # part of a class's name: the reason; the first that fits
    "Judge": _JUDGE,
    "HybridMathRubric": _JUDGE,
    "CliAgent": _AGENT,
    "Harbor": _AGENT,
    "OpenCode": _AGENT,
    "RLM": _AGENT,
    "ComposableEnv": _AGENT,
    "MCP": f"calls tools of an MCP server ({{}}), and {_OFFLINE}",
    "BrowserEnv": f"drives a browser ({{}}), and {_OFFLINE}",
    "OpenEnvEnv": f"talks to a server in a container ({{}}), and {_OFFLINE}; return the OpenEnv environment itself",
    "PythonEnv": _SANDBOX,
    "Sandbox": _SANDBOX,
}
_REMOTE_MODULES = {
    # the module that has a class of those: what it is named as where importing it already fails
    "sandbox_env": "SandboxEnv",
    "python_env": "PythonEnv",
    "mcp_env": "MCPEnv",
    "browser_env": "BrowserEnv",
    "cli_agent_env": "CliAgentEnv",
    "harbor_env": "HarborEnv",
    "opencode_env": "OpenCodeEnv",
    "rlm_env": "RLMEnv",
    "openenv_env": "OpenEnvEnv",
}
_CLIENTS = ("OpenAI", "AsyncOpenAI", "Anthropic", "AsyncAnthropic", "Client", "AsyncClient")
_CLIENT_PACKAGES = ("openai", "anthropic", "litellm", "together", "groq", "mistralai")
_recorded: list[str] = []


def prepare() -> None:
    """Watch for the library's import, from now on; loads nothing itself."""
    if not any(isinstance(finder, _Watch) for finder in sys.meta_path):
        sys.meta_path.insert(0, _Watch())


def refuse_recorded() -> None:
    """Refuse what was refused while the environment loaded, also where its loader went on without it.

    Raises:
        Refused: When anything was.
    """
    if _recorded:
        raise Refused(_recorded[0])


def refused(reason: str) -> Refused:
    """Return a refusal, recorded: a loader that catches it gets no further."""
    _recorded.append(f"this environment {reason}")
    return Refused(_recorded[-1])


def explain(error: BaseException) -> Refused | None:
    """Return a refusal for an exception that says that the library no longer has what the environment asks for."""
    asked = getattr(getattr(error, "obj", None), "__name__", None) if isinstance(error, AttributeError) else None
    asked = error.name if isinstance(error, ImportError) else asked
    if not isinstance(asked, str) or asked.partition(".")[0] != _PACKAGE or version_of(installed()) < (0, 4):
        return None
    return Refused(f"{error}: verifiers {installed()} has no classic environments; ask for verifiers {VERSIONS}")


def is_taskset(value: object) -> bool:
    """Say whether something is a class of tasksets that is not the library's own base."""
    bases = value.__mro__[1:] if isinstance(value, type) else ()
    return any(base.__name__ == "Taskset" and base.__module__.startswith("verifiers.v1") for base in bases)


def reason_of(cls: type) -> str | None:
    """Return why objects of a class can't be used here; None when nothing speaks against them."""
    for base in cls.__mro__:
        if base.__module__.partition(".")[0] == _PACKAGE or base.__name__ == "JudgeRubric":
            for part, reason in _REASONS.items():
                if part in base.__name__:
                    return reason.format(base.__name__)
    return None


class _Watch:
    """A finder of the import system that finds nothing itself, and changes how some modules are executed."""

    def find_spec(self, name: str, path: Any = None, target: Any = None) -> Any:
        """Return another finder's spec of a module of the library that is watched; None for every other."""
        if name == _PACKAGE:
            # clients that are made and never used want a key
            os.environ.setdefault("OPENAI_API_KEY", "none")
        if not name.startswith(f"{_PACKAGE}."):
            return None
        part = name.removeprefix(f"{_PACKAGE}.").removeprefix("legacy.")
        remote = _REMOTE_MODULES.get(part.rpartition(".")[2])
        if part not in _WATCHED and remote is None:
            return None
        others = [finder for finder in sys.meta_path if finder is not self and hasattr(finder, "find_spec")]
        specs = (finder.find_spec(name, path, target) for finder in others)
        spec: Any = next((found for found in specs if found is not None), None)
        # 0.3.1 aliases its old names to verifiers.legacy, whose modules come by here themselves
        if spec is not None and hasattr(spec.loader, "exec_module") and "Alias" not in type(spec.loader).__name__:
            spec.loader.exec_module = _watched(spec.loader.exec_module, _WATCHED.get(part), remote)
        return spec


def _watched(execute: Callable[[Any], None], base: str | None, remote: str | None) -> Callable[[Any], None]:
    def exec_module(module: Any) -> None:
        try:
            execute(module)
        except Exception as error:
            if remote is None:
                raise
            named = type(remote, (), {"__module__": module.__name__})
            raise refused(reason_of(named) or f"needs {remote}, which can't be used here") from error
        if base is not None:
            _guard(getattr(module, base))

    return exec_module


def _guard(base: Any) -> None:
    def new(cls: type, *_: object, **__: object) -> Any:
        reason = reason_of(cls)
        if reason is not None:
            raise refused(reason)
        return object.__new__(cls)

    base.__new__ = staticmethod(new)


def calls_a_model(function: Any) -> str | None:
    """Return the class of a client of a model that a function holds on to, or None."""
    return next((type(held).__name__ for held in _held(function) if _is_client(held)), None)


def holds_a_model(values: Iterable[object]) -> str | None:
    """Return the class of the first client of a model among some objects, or None."""
    return next((type(value).__name__ for value in values if _is_client(value)), None)


def _held(function: Any) -> Iterator[object]:
    """Yield what a function can reach by its closure, defaults, bound arguments, object and globals."""
    for _ in range(8):  # partial of a partial of a method ...
        yield from getattr(function, "args", None) or ()
        yield from (getattr(function, "keywords", None) or {}).values()
        owner = getattr(function, "__self__", None)
        if owner is not None and not isinstance(owner, type) and hasattr(owner, "__dict__"):
            yield from vars(owner).values()
        inner = getattr(function, "func", None) or getattr(function, "__func__", None)
        if inner is None:
            break
        function = inner
    for cell in getattr(function, "__closure__", None) or ():
        try:
            yield cell.cell_contents
        except ValueError:
            continue  # not filled yet
    yield from getattr(function, "__defaults__", None) or ()
    yield from (getattr(function, "__kwdefaults__", None) or {}).values()
    code, known = getattr(function, "__code__", None), getattr(function, "__globals__", {})
    if code is not None:
        yield from (known[name] for name in code.co_names if name in known)


def _is_client(value: object) -> bool:
    return any(
        cls.__name__ in _CLIENTS and cls.__module__.partition(".")[0] in _CLIENT_PACKAGES for cls in type(value).__mro__
    )
