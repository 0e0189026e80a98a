"""Find and import an environment, and bring it to one form.

An environment is a module named directly, or what its ``load_environment()`` returns; ``adapters`` says what is
understood. Anything else is refused in one sentence.
"""

from __future__ import annotations

import importlib
import os.path
import signal
import sys
import traceback
from collections.abc import Sequence
from typing import Any, Literal

from nodus.grader.adapters import Adapter, EnvironmentFault, Refused, adapt, exported, prepare, refusal_of
from nodus.grader.adapters.functions import EXPECTED
from nodus.grader.imports import VENDORED
from nodus.grader.tasks import BadTask, Task, build_split, without_shared

Split = Literal["train", "test"]
SPLITS: tuple[Split, ...] = ("train", "test")
_DEFAULT_FUNCTION = "load_environment"
_MODULES = ("tasks", "train_files")
"""What a module has that is an environment itself; any other one is asked for it."""


class Environment:
    """A loaded environment.

    Args:
        name: Its name, without project.
        version: Its version.
        adapter: What lists and grades.

    Attributes:
        shared: How many tasks were left out of train since they are held out; known once a split is listed.
    """

    def __init__(self, name: str, version: str, adapter: Adapter) -> None:
        self.name = name
        self.version = version
        self.adapter = adapter
        self.shared = 0
        self._splits: dict[str, list[Task]] | None = None

    def split(self, name: Split) -> list[Task]:
        """Return the tasks of a split, in the environment's order; both splits are listed once.

        Raises:
            EnvironmentFault: When ``tasks`` raises or lists something that is no task.
        """
        if self._splits is None:
            test, train = self._list("test"), self._list("train")
            self._splits = {"test": test, "train": without_shared(train, test)}
            self.shared = len(train) - len(self._splits["train"])
        return self._splits[name]

    def by_id(self) -> dict[str, Task]:
        """Return every task by its id."""
        return {task.id: task for name in SPLITS for task in self.split(name)}

    def _list(self, split: Split) -> list[Task]:
        try:
            return build_split(self.name, self.version, split, self.adapter.tasks(split))
        except (EnvironmentFault, Refused):
            raise
        except BadTask as error:
            raise EnvironmentFault(str(error), "") from None
        except BaseException as error:  # noqa: BLE001 - the environment's code may raise anything, also SystemExit
            raise fault(f"tasks({split!r}) failed", error) from None


def fault(step: str, error: BaseException) -> EnvironmentFault:
    """Return the fault of a step for the exception that ended it."""
    return EnvironmentFault(f"{step}: {type(error).__name__}: {error}", outside_trace(error))


def outside_trace(error: BaseException, limit: int = 4000) -> str:
    """Return an exception's traceback without this package's own frames, its end kept."""
    here = os.path.dirname(__file__)
    frames = traceback.extract_tb(error.__traceback__)
    own = [index for index, frame in enumerate(frames) if frame.filename.startswith(here + "/")]
    first = own[-1] + 1 if own and own[-1] + 1 < len(frames) else 0
    # the lines between importing and the environment's file say nothing to its author
    importing = ("<frozen", importlib.__file__)
    rows = [frame for frame in frames[first:] if not frame.filename.startswith(importing)]
    lines = ["Traceback (most recent call last):\n", *traceback.format_list(rows)]
    return "".join([*lines, *traceback.format_exception_only(error)])[-limit:]


def search_first(paths: Sequence[str]) -> None:
    """Search directories, and each one's ``site/``, before everything else."""
    for path in reversed(paths):
        sys.path[:0] = [path, os.path.join(path, VENDORED)]


def load(loader: str, paths: Sequence[str], name: str, version: str) -> Environment:
    """Import an environment.

    Args:
        loader: ``module``, or ``module:function`` that returns the environment.
        paths: Directories to import from; each one's ``site/`` too.
        name: The environment's name, without project.
        version: Its version.

    Raises:
        Refused: When what was found is no environment.
        EnvironmentFault: When importing or loading it raises.
    """
    search_first(paths)
    prepare()
    module_name, _, function = loader.partition(":")
    found = _import(module_name)
    if function or not any(hasattr(found, name) for name in _MODULES):
        found = _call_loader(found, function or _DEFAULT_FUNCTION, module_name)
    # an environment may install handlers while it loads; a worker's signals are its own
    signal.signal(signal.SIGINT, signal.SIG_DFL)
    signal.signal(signal.SIGTERM, signal.SIG_DFL)
    return Environment(name, version, adapt(found, loader))


def _import(module: str) -> Any:
    try:
        return importlib.import_module(module)
    except BaseException as error:  # noqa: BLE001 - the environment's code may raise anything, also SystemExit
        raise refusal_of(error) or fault(f"importing {module} failed", error) from None


def _call_loader(module: Any, function: str, module_name: str) -> Any:
    target = getattr(module, function, None)
    try:
        if callable(target):
            return target()
        found = exported(module)
    except BaseException as error:  # noqa: BLE001 - the environment's code may raise anything, also SystemExit
        raise refusal_of(error) or fault(f"{module_name}:{function}() failed", error) from None
    if found is None:
        raise Refused(f"module {module_name} has neither {EXPECTED}, nor {function}()")
    return found
