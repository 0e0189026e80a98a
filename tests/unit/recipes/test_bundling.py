"""Which rewards can travel, what goes with them, and what is said of those that can't."""

from __future__ import annotations

import importlib.util
import itertools
import sys
import textwrap
from collections.abc import Callable
from pathlib import Path
from types import ModuleType
from typing import Any

import pytest

from nodus.errors import RewardError
from nodus.recipes.bundling import PackagedReward, package_reward

_numbers = itertools.count()
Load = Callable[[str], Any]


@pytest.fixture
def load(tmp_path: Path) -> Load:
    """Write a module, import it, and return it."""

    def write_and_import(text: str) -> Any:
        name = f"reward_file_{next(_numbers)}"
        path = tmp_path / f"{name}.py"
        path.write_text(textwrap.dedent(text))
        spec = importlib.util.spec_from_file_location(name, path)
        assert spec is not None and spec.loader is not None
        module = importlib.util.module_from_spec(spec)
        sys.modules[name] = module
        spec.loader.exec_module(module)
        return module

    return write_and_import


def run(packaged: PackagedReward, completion: str, answer: Any) -> Any:
    """Call a packaged reward, with nothing around but its own text."""
    module = ModuleType("nodus_reward")
    sys.modules["nodus_reward"] = module  # dataclasses look theirs up
    exec(compile(packaged.text, "nodus_reward.py", "exec"), vars(module))
    return vars(module)[packaged.name](completion, answer)


TRAVELS: dict[str, str] = {
    "nothing but itself": """
        def reward(completion, answer):
            return completion == answer
    """,
    "a constant and an import": """
        import re
        ANSWER = re.compile(r"(\\w+)")
        def reward(completion, answer):
            found = ANSWER.findall(completion)
            return None if not found else float(found[-1] == answer)
    """,
    "helpers that use helpers": """
        import math as m
        from collections import Counter, OrderedDict
        def normal(text):
            return squeezed(text).lower()
        def squeezed(text):
            return "".join(Counter(text)) * m.floor(1.5)
        def reward(completion, answer):
            return normal(completion) == normal(answer)
    """,
    "a class, a decorator and a default": """
        import functools
        LIMIT = 3
        class Scorer:
            weight = float(LIMIT) / LIMIT
            def score(self, a, b):
                return self.weight * (a == b)
        @functools.lru_cache
        def scorer():
            return Scorer()
        def reward(completion, answer, limit=LIMIT):
            return scorer().score(completion, answer)
    """,
    "a table filled at the top level": """
        TABLE = {}
        for word in ("yes", "no"):
            TABLE[word] = word[::-1]
        TABLE.update({"maybe": "?"})
        WORDS = ["a"]
        WORDS += list(TABLE)
        def reward(completion, answer):
            return len(TABLE) == 3 and len(WORDS) == 4 and completion == answer
    """,
    "annotations of types that stay at home": """
        from __future__ import annotations
        from typing import TYPE_CHECKING
        if TYPE_CHECKING:
            import pandas
        def reward(completion: str, answer: pandas.DataFrame) -> Undefined:
            value: pandas.Series = answer
            return completion == value
    """,
    "an optional package": """
        try:
            import a_package_nobody_has as matcher
        except ImportError:
            matcher = None
        def reward(completion, answer):
            return matcher is None and completion == answer
    """,
    "two definitions by a condition": """
        import sys
        if sys.version_info > (3,):
            def same(a, b):
                return a == b
        else:
            same = cmp
        def reward(completion, answer):
            return same(completion, answer)
    """,
    "a star import": """
        from math import *
        def reward(completion, answer):
            return floor(1.2) == 1 and completion == answer
    """,
    "a comprehension, a walrus and a nested function": """
        PAIRS = [(a, b) for a in "xy" for b in "xy"]
        def reward(completion, answer):
            def inner(value):
                return (size := len(PAIRS)) and size == 4 and value == answer
            return all(inner(c) for c in [completion])
    """,
    "two statements on a line": """
        import re; PATTERN = re.compile("a"); OTHER = undefined_if_run = 3
        def reward(completion, answer):
            return bool(PATTERN) and completion == answer
    """,
    "a global it assigns": """
        calls = 0
        def reward(completion, answer):
            global calls
            calls += 1
            return calls > 0 and completion == answer
    """,
    "submodules by name and by alias": """
        import xml.dom, xml.etree.ElementTree as ET
        import os.path
        import xml.etree.ElementTree
        def reward(c,a): return bool(ET) and os.path.sep=="/" and xml.etree is not None and xml.dom is not None and c==a
    """,
    "names bound in every way there is": """
        import contextlib
        with contextlib.suppress(ValueError):
            LIMIT = int("3")
        for SIZE in range(3): pass
        try:
            DEPTH = int("x")
        except ValueError as error:
            DEPTH = 2
        while True:
            COUNT = 1
            break
        match [1, 2]:
            case [FIRST, *REST]: pass
        (WAL := 5)
        A, (B, *D) = 1, (2, 3)
        [X for X in range(3)]
        N: int = 4
        N += 1
        def reward(c,a):
            found = (LIMIT, SIZE, DEPTH, COUNT, FIRST, REST, WAL, A, B, D, N)
            return found == (3, 2, 2, 1, 1, [2], 5, 1, 2, [3], 5) and c == a
    """,
    "a decorator that says nothing of the function": """
        def timed(function):
            def wrapper(completion, answer):
                return function(completion, answer)
            return wrapper
        @timed
        def reward(completion, answer): return completion == answer
    """,
    "a decorator that changes what it decorates": """
        import functools
        def opposite(function):
            @functools.wraps(function)
            def wrapper(completion, answer):
                return not function(completion, answer)
            return wrapper
        @opposite
        def reward(completion, answer): return completion != answer
    """,
    "a name that is decorated later": """
        import functools
        def opposite(function):
            @functools.wraps(function)
            def wrapper(completion, answer):
                return not function(completion, answer)
            return wrapper
        def reward(completion, answer): return completion != answer
        reward = opposite(reward)
    """,
    "functions filed by a decorator and by a call": """
        SCORERS = {}
        def scorer(function):
            SCORERS[function.__name__] = function
            return function
        def register(name, function):
            SCORERS[name] = function
        @scorer
        def exact(c, a): return c == a
        def other(c, a): return True
        register("other", other)
        def reward(c, a): return SCORERS["other"](c, a) and SCORERS["exact"](c, a)
    """,
    "lists that the library changes in place": """
        import random, heapq
        from bisect import insort
        WORDS = list("abc")
        random.Random(0).shuffle(WORDS)
        HEAP = [3, 1, 2]
        heapq.heapify(HEAP)
        SORTED = []
        for n in (3, 1, 2): insort(SORTED, n)
        def reward(c, a): return HEAP[0] == 1 and SORTED == [1,2,3] and WORDS != list("abc") and c == a
    """,
    "a global that a function sets": """
        TABLE = None
        def setup():
            global TABLE
            TABLE = {"a": 1}
        setup()
        def reward(c, a): return TABLE == {"a": 1} and c == a
    """,
    "enums, dataclasses, named tuples and generics": """
        from dataclasses import dataclass, field
        from enum import Enum
        from typing import NamedTuple, TypedDict, Protocol, Generic, TypeVar, ClassVar
        T = TypeVar("T")
        class Kind(Enum):
            A = "a"
            B = "b"
        class Base(Generic[T]):
            seen: ClassVar[int] = 0
        class Pair(NamedTuple):
            left: str
            right: str = "r"
        class Row(TypedDict):
            kind: Kind
        @dataclass
        class Parsed(Base[str]):
            kind: Kind = Kind.A
            parts: list[str] = field(default_factory=list)
        def reward(c, a): return Parsed().kind is Kind.A and Pair("l").right == "r" and c == a
    """,
    "a branch that was not taken": """
        import sys
        if sys.platform == "win32":
            import winonly_thing as thing
        else:
            thing = None
        def reward(c, a): return thing is None and c == a
    """,
    "a function defined twice": """
        def helper(x): return 0
        def helper(x): return x
        def reward(c, a): return helper(c) == a
    """,
    "attributes set from outside": """
        class Config: limit = 0
        Config.limit = 3
        Config.table = {}
        Config.table["x"] = 1
        def reward(c, a): return Config.limit == 3 and Config.table == {"x": 1} and c == a
    """,
    "subclasses that their base keeps": """
        PLUGINS = []
        class Plugin:
            def __init_subclass__(cls): PLUGINS.append(cls)
        class Exact(Plugin):
            def score(self, c, a): return c == a
        def reward(c, a): return len(PLUGINS) == 1 and PLUGINS[0]().score(c, a)
    """,
    "implementations registered with a function": """
        from functools import singledispatch
        @singledispatch
        def norm(x): return "?"
        @norm.register
        def _(x: str): return x
        @norm.register(int)
        def _(x): return str(x)
        def reward(c, a): return norm(c) == a and norm(3) == "3"
    """,
    "a try with all its branches": """
        try:
            from zoneinfo import ZoneInfo
        except ImportError:
            HAVE = False
        else:
            HAVE = True
        finally:
            DONE = True
        def reward(c, a): return HAVE and DONE and c == a
    """,
    "a name that is deleted again": """
        import math
        X = math.floor(2.5)
        del math
        def reward(c, a): return X == 2 and c == a
    """,
    "aliases of types": """
        from __future__ import annotations
        from typing import Union, Optional
        Answer = Union[str, int]
        def check(x: Answer) -> Optional[Answer]: return x
        def reward(c: str, a: Answer) -> Optional[float]: return check(c) == a
    """,
    "another name": """
        def score_reply(completion, answer, *, strict=False):
            return completion == answer
        reward = score_reply
    """,
}


@pytest.mark.parametrize("text", TRAVELS.values(), ids=list(TRAVELS))
def test_reward_travels_with_what_it_uses(load: Load, text: str) -> None:
    packaged = package_reward(load(text).reward)
    assert run(packaged, "abc", "abc")
    assert not run(packaged, "abd", "abc")


def test_what_it_does_not_use_stays_at_home(load: Load) -> None:
    module = load("""
        import json, re
        from collections import Counter, deque
        KEY = "secret"
        WORDS = ["w"]
        tasks = [(w, w) for w in WORDS]
        def other():
            return KEY
        def reward(completion, answer):
            return bool(re.match(answer, completion)) and bool(Counter())
    """)
    text = package_reward(module.reward).text
    assert [name for name in ("json", "deque", "KEY", "WORDS", "tasks", "other") if name in text] == []


def test_calls_that_only_try_the_reward_stay_at_home(load: Load) -> None:
    module = load("""
        CACHE = {}
        def normal(text):
            CACHE[text] = CACHE.get(text) or text.lower()
            return CACHE[text]
        def reward(completion, answer):
            return normal(completion) == answer
        def experiment(samples):
            return [reward(c, a) for c, a in samples]
        assert reward("A", "a")
        normal("B")
        found = experiment([("A", "a")])
        experiment([("A", "a")])
    """)
    text = package_reward(module.reward).text
    assert [word for word in ("experiment", "assert", 'normal("B")') if word in text] == []
    assert "CACHE = {}" in text


def test_settings_of_the_library_go_along(load: Load) -> None:
    module = load("""
        import sys
        from decimal import Decimal, getcontext
        getcontext().prec = getcontext().prec
        sys.setrecursionlimit(sys.getrecursionlimit())
        print(sys.argv[:0])
        def reward(completion, answer):
            return Decimal(completion) == Decimal(answer) and sys.maxsize > 0
    """)
    text = package_reward(module.reward).text
    assert "getcontext().prec =" in text and "sys.setrecursionlimit(" in text and "print" not in text


def test_lines_are_traced_to_the_users_file(load: Load) -> None:
    module = load("""
        import re

        PATTERN = re.compile("x")


        def reward(completion, answer):
            return PATTERN.match(completion)
    """)
    packaged = package_reward(module.reward)
    line = packaged.text.splitlines().index("    return PATTERN.match(completion)") + 1
    assert packaged.origin(line) == f"{Path(module.__file__).name}:8"


STAYS: dict[str, tuple[str, str, str]] = {
    # id: (file, in the message, in the fix)
    "a lambda": (
        "reward = lambda completion, answer: 1.0",
        ":1: the reward is a lambda",
        "def reward(completion, answer)",
    ),
    "a closure": (
        """
        def make(words):
            def reward(completion, answer):
                return completion in words
            return reward
        reward = make(["a"])
        """,
        "uses 'words' of the function around it",
        "Move reward and words to the top level",
    ),
    "a function inside a function": (
        """
        def make():
            def reward(completion, answer):
                return 1.0
            return reward
        reward = make()
        """,
        "is defined inside 'make'",
        "Move `def reward` to the top level",
    ),
    "a method": (
        """
        class Judge:
            def reward(self, completion, answer):
                return 1.0
        reward = Judge().reward
        """,
        "is a method",
        "top level",
    ),
    "an object that can be called": (
        """
        class Judge:
            def __call__(self, completion, answer):
                return 1.0
        reward = Judge()
        """,
        "the reward is a Judge, not a function",
        "Pass a function",
    ),
    "a partial": (
        """
        import functools
        def score(weight, completion, answer):
            return weight
        reward = functools.partial(score, 1.0)
        """,
        "the reward is a partial, not a function",
        "Pass a function",
    ),
    "a function decorated where it is passed": (
        """
        import functools
        def score(completion, answer):
            return 1.0
        reward = functools.lru_cache(score)
        """,
        "the reward is score() with something around it",
        "put the decorator above `def score`",
    ),
    "a number": ("reward = 3", "which can't be called", "Pass a function"),
    "a coroutine": (
        "async def reward(completion, answer):\n    return 1.0\n",
        ":1: the reward is async",
        "plain function",
    ),
    "a generator": (
        "def reward(completion, answer):\n    yield 1.0\n",
        ":1: the reward is a generator",
        "plain function",
    ),
    "one argument": (
        "def reward(completion):\n    return 1.0\n",
        "can't be called with (completion, answer)",
        "def reward",
    ),
    "an undefined name": (
        """
        def reward(completion, answer):
            value = 1
            return value * WEIGHT
        """,
        ":4: the reward uses 'WEIGHT', which is not defined at the top level",
        "Define or import WEIGHT",
    ),
    "a name of the main block": (
        """
        def reward(completion, answer):
            return WEIGHT
        if __name__ == "__main__":
            print("main")
            WEIGHT = 2
        """,
        ":3: the reward uses 'WEIGHT', which line 6 sets under `if __name__",
        "Move line 6",
    ),
    "an undefined name of a helper": (
        """
        def helper(text):
            return LOST
        def reward(completion, answer):
            return helper(completion)
        """,
        ":3: the reward uses 'LOST'",
        "Define or import LOST",
    ),
    "a package the grader lacks": (
        """
        import click, re
        def reward(completion, answer):
            return click.style(completion) == re.escape(answer)
        """,
        ":2: 'import click': the grader has no module 'click'",
        'pip=["click==',
    ),
    "a package imported inside": (
        """
        def reward(completion, answer):
            from rich.text import Text
            return Text(completion) == answer
        """,
        ":3: 'from rich.text import Text': the grader has no module 'rich'",
        "The grader has the standard library, numpy, sympy, regex, jsonschema, math_verify, reasoning_gym and openenv.",
    ),
    "nodus itself": (
        """
        import nodus
        def reward(completion, answer):
            return nodus.__version__
        """,
        ":2: 'import nodus': of nodus the grader has nothing but nodus.grader.code",
        "without it",
    ),
    "a file beside it": (
        """
        from pathlib import Path
        WORDS = Path(__file__).with_name("words.txt")
        def reward(completion, answer):
            return completion in WORDS.read_text()
        """,
        ":3: the reward uses __file__",
        "Put the data into the tasks",
    ),
    "a relative import": (
        """
        def reward(completion, answer):
            from .scores import score
            return score(completion)
        """,
        ":3: 'from .scores import score' is a relative import",
        "own file",
    ),
}


@pytest.mark.parametrize(("text", "message", "fix"), STAYS.values(), ids=list(STAYS))
def test_reward_that_cannot_travel_says_where_and_what_to_do(load: Load, text: str, message: str, fix: str) -> None:
    reward = load(text).reward
    with pytest.raises(RewardError) as raised:
        package_reward(reward)
    assert message in raised.value.message
    assert fix in str(raised.value.fix)


def test_module_of_the_user_must_move_into_the_file(
    load: Load, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    (tmp_path / "my_scoring.py").write_text("def score(a, b):\n    return a == b\n")
    monkeypatch.syspath_prepend(tmp_path)
    module = load("""
        from my_scoring import score
        def reward(completion, answer):
            return score(completion, answer)
    """)
    with pytest.raises(RewardError, match="imports a module of yours") as raised:
        package_reward(module.reward)
    assert "Move what the reward uses into its file" in str(raised.value.fix)


def test_package_named_in_pip_may_be_imported(load: Load) -> None:
    module = load("""
        import yaml
        def reward(completion, answer):
            return yaml.safe_load(completion) == answer
    """)
    assert "import yaml" in package_reward(module.reward, {"yaml"}).text


def test_package_the_grader_has_may_be_imported(load: Load) -> None:
    module = load("""
        import numpy as np
        def reward(completion, answer):
            return float(np.mean([1.0]))
    """)
    assert "import numpy as np" in package_reward(module.reward).text


# Notebooks: every cell is a source of its own, and names live in the session.
def cell(number: int, text: str, namespace: dict[str, Any]) -> None:
    """Run a notebook cell as IPython does: its text is kept for tracebacks."""
    import linecache

    name = f"<ipython-input-{number}-test>"
    text = textwrap.dedent(text)
    linecache.cache[name] = (len(text), None, text.splitlines(keepends=True), name)
    exec(compile(text, name, "exec"), namespace)


def test_notebook_cells_travel_together() -> None:
    session: dict[str, Any] = {"__name__": "__main__"}
    cell(1, "import re\nWORDS = ['a', 'b']\nLIMIT = 3\n", session)
    cell(2, "def helper(text):\n    return re.sub(' ', '', text)[:LIMIT]\n", session)
    cell(3, "def reward(completion, answer):\n    return helper(completion) == answer and len(WORDS) == 2\n", session)
    packaged = package_reward(session["reward"])
    assert run(packaged, "a b c d", "abc")


def test_notebook_object_that_is_not_source_is_refused() -> None:
    session: dict[str, Any] = {"__name__": "__main__"}
    cell(4, "MODEL = object()\n", session)
    cell(5, "def reward(completion, answer):\n    return MODEL == completion\n", session)
    with pytest.raises(RewardError, match="uses 'MODEL', a object that exists in this session only") as raised:
        package_reward(session["reward"])
    assert raised.value.message.startswith("notebook:2: ")


def test_notebook_name_that_is_nowhere_is_refused() -> None:
    session: dict[str, Any] = {"__name__": "__main__"}
    cell(6, "def reward(completion, answer):\n    return GONE == completion\n", session)
    with pytest.raises(RewardError, match="uses 'GONE', which is not defined"):
        package_reward(session["reward"])


def test_function_without_source_is_refused() -> None:
    session: dict[str, Any] = {"__name__": "__main__"}
    exec("def reward(completion, answer):\n    return 1.0\n", session)
    with pytest.raises(RewardError, match="source of reward") as raised:
        package_reward(session["reward"])
    assert "Put the reward in a file" in str(raised.value.fix)
