"""Tries a reward, in a process of its own: ``reward_check.py ANSWER_FD BUNDLE``. Standard library only.

Reads ``{"name", "cases", "code_fd", "nodus", "timeout_s"}`` on standard input and answers one JSON line on the
descriptor. What the grader will not have is refused here too: files of this machine, and the network.
"""

import json
import numbers
import os
import sys
import sysconfig
import traceback
from typing import Any, NoReturn

MAX_REWARD = 1e9  # the grader refuses larger ones
NO_NETWORK = "the grader has no network"
SYSTEM = ("/usr", "/lib", "/lib64", "/bin", "/etc", "/proc", "/dev", "/sys", "/System", "/Library")
LOOK_UPS = frozenset({"socket.getaddrinfo", "socket.gethostbyname", "socket.gethostbyaddr"})
AF_UNIX = 1


class Check:
    """One try of a reward.

    Args:
        answer_fd: Where the answer goes.
        root: The unpacked bundle.
        asked: What was read on standard input.
    """

    def __init__(self, answer_fd: int, root: str, asked: dict[str, Any]) -> None:
        self._answer_fd, self._asked = answer_fd, asked
        places = [root, sys.prefix, sys.base_prefix, *sys.path, *sysconfig.get_paths().values(), *SYSTEM]
        self._seen = tuple(os.path.join(os.path.realpath(place), "") for place in places if place)
        self._own: set[str] = set()

    def run(self) -> NoReturn:
        """Import the reward, call it for every case, and answer."""
        sys.addaudithook(self._refuse_absent)
        try:
            module = __import__("nodus_reward")
            reward = getattr(module, self._asked["name"])
        except BaseException as error:  # noqa: BLE001 - the user's code may raise anything, also SystemExit
            self._fault("import", error)
        for case in self._asked["cases"]:
            try:
                value = reward(case["completion"], case["answer"])
            except BaseException as error:  # noqa: BLE001 - the user's code may raise anything
                self._fault(case["stage"], error)
            if not _is_reward(value):
                self._finish(stage=case["stage"], value=repr(value)[:200], returned=type(value).__name__)
        self._finish(stage="passed")

    def _refuse_absent(self, event: str, arguments: tuple[Any, ...]) -> None:
        if event == "open" and isinstance(arguments[0], str | bytes):
            path = os.path.realpath(os.fsdecode(arguments[0]))
            if not os.path.isfile(path):
                self._own.add(path)
            elif path not in self._own and not path.startswith(self._seen):
                raise FileNotFoundError(2, "No such file or directory", os.fsdecode(arguments[0]))
        elif event in LOOK_UPS or (event == "socket.__new__" and arguments[1] not in (-1, AF_UNIX)):
            raise OSError(97, NO_NETWORK)

    def _fault(self, stage: str, error: BaseException) -> NoReturn:
        trace = traceback.extract_tb(error.__traceback__)
        frames = [frame.lineno for frame in trace if frame.filename.endswith("nodus_reward.py")]
        if isinstance(error, SyntaxError) and error.lineno:
            frames = [error.lineno]
        self._finish(
            stage=stage,
            type=type(error).__name__,
            message=str(error)[:500],
            line=frames[-1] if frames else None,
            module=getattr(error, "name", None) if isinstance(error, ModuleNotFoundError) else None,
        )

    def _finish(self, **found: Any) -> NoReturn:
        os.write(self._answer_fd, json.dumps(found).encode())
        os._exit(0)


def _is_reward(value: Any) -> bool:
    if value is None:
        return True
    if not isinstance(value, numbers.Number) and not hasattr(value, "dtype"):
        return False
    try:
        return abs(float(value)) <= MAX_REWARD
    except (TypeError, ValueError, OverflowError):
        return False


def main() -> NoReturn:
    """Try the reward that standard input names."""
    answer_fd, root = int(sys.argv[1]), sys.argv[2]
    sys.argv[:] = ["reward"]
    asked = json.load(sys.stdin)
    sys.path[:0] = [root, os.path.join(root, "site")]
    if asked["code_fd"] is not None:
        sys.path.append(asked["nodus"])
        from nodus.grader import code

        code.use(asked["code_fd"], asked["timeout_s"])
    Check(answer_fd, root, asked).run()


if __name__ == "__main__":
    main()
