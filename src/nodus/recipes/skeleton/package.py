"""The files of a skeleton, and how they get onto the disk without overwriting anything."""

from __future__ import annotations

import keyword
import re
import subprocess
import sys
from dataclasses import dataclass
from pathlib import Path
from string import Template

from nodus.core.errors import Invalid
from nodus.recipes.skeleton.kinds import KINDS, Form

VERSION = "1.0.0"
_NAME = re.compile(r"[a-z][a-z0-9]*(-[a-z0-9]+)*")
_LONGEST_NAME = 50
_MAKE_DATA_TIMEOUT_S = 120

_PYPROJECT = Template("""\
[build-system]
requires = ["setuptools>=77"]
build-backend = "setuptools.build_meta"

[project]
name = "$name"
version = "$version"
description = "$summary"
requires-python = ">=3.11"
dependencies = [$dependencies]

[tool.setuptools]
$contents
""")

_MANIFEST = Template("""\
# The published package as an Environment: `nodus apply -f environment.yaml`. Add `index:` below pip for an index of
# your own. A version's package never changes: count both versions up together.
apiVersion: nodus.dev/v1
kind: Environment
metadata:
  name: $name
spec:
  version: $version
  package:
    pip: {name: $name, version: $version}
    loader: load_environment
  category: Custom
  modes: [Train, Evaluate]
  rewardType: $reward_type
  summary: $summary
""")

_README = Template("""\
# $name

$summary

$about

```sh
python -m unittest discover -s tests   # the environment's own tests$needs
nodus env test                         # as Nodus builds it: lists twice and grades, in the grader's sandbox
nodus env audit                        # plays cheap attacks against the reward, and says what each was paid
```

Publish it where your server's pip looks: `pip wheel --no-deps --wheel-dir wheels .` makes the wheel, upload that. Then
train on it:

```sh
nodus apply -f environment.yaml
nodus wait environment/$name --for=jsonpath='{.status.phase}'=Ready
python -c 'from nodus.recipes import rl; rl.train("$name@$version", max_cost=2).watch()'
```
""")


class SkeletonRefused(Invalid):
    """No skeleton is written: the name can't be one, or something is there already."""


@dataclass(frozen=True, slots=True)
class Skeleton:
    """The files of a new environment.

    Attributes:
        name: The environment's name, also the package's.
        module: What it is imported as.
        kind: One of ``KINDS``.
        files: Relative path to text.
        make_data: The program that makes the data that the package ships, relative to it; None where it has none.
    """

    name: str
    module: str
    kind: str
    files: dict[str, str]
    make_data: str | None = None


def skeleton(name: str, kind: str = "functions") -> Skeleton:
    """Return the files of a new environment.

    Args:
        name: Lower-case words with dashes, such as ``reverse-words``.
        kind: One of ``KINDS``.

    Raises:
        SkeletonRefused: For a name that no package, or no object of a server, can have.

    Example:
        >>> sorted(skeleton("reverse-words").files)
        ['README.md', 'environment.yaml', 'pyproject.toml', 'reverse_words.py', 'tests/test_reverse_words.py']
    """
    module = name.replace("-", "_")
    if len(name) > _LONGEST_NAME or not _NAME.fullmatch(name):
        raise SkeletonRefused(
            f"{name!r} can't be an environment's name",
            fix=f"Use lower-case words with dashes, at most {_LONGEST_NAME} characters, such as reverse-words.",
        )
    if module in sys.stdlib_module_names or keyword.iskeyword(module) or module in ("nodus", "tests"):
        raise SkeletonRefused(f"a module {module!r} would hide Python's own", fix=f"Name it {name}-task, for example.")
    form = KINDS[kind]
    values = {
        "name": name,
        "module": module,
        "version": VERSION,
        "summary": form.summary,
        "about": Template(form.about).substitute(module=module),
        "reward_type": form.reward_type,
        "dependencies": ", ".join(f'"{requirement}"' for requirement in form.dependencies),
        "needs": f"; first: pip install '{form.dependencies[0]}'" if form.dependencies else "",
        "contents": _contents(form, module),
    }
    source = f"{module}/__init__.py" if form.make_data else f"{module}.py"
    files = {
        "README.md": _README.substitute(values),
        "environment.yaml": _MANIFEST.substitute(values),
        "pyproject.toml": _PYPROJECT.substitute(values),
        source: Template(form.source).substitute(values),
        f"tests/test_{module}.py": Template(form.tests).substitute(values),
    }
    if form.make_data:
        files["make_data.py"] = Template(form.make_data).substitute(values)
    return Skeleton(name, module, kind, files, "make_data.py" if form.make_data else None)


def _contents(form: Form, module: str) -> str:
    if not form.make_data:
        return f'py-modules = ["{module}"]'
    return f'packages = ["{module}"]\npackage-data = {{ {module} = ["*.parquet"] }}'


def write(made: Skeleton, directory: Path) -> str | None:
    """Write a skeleton's files into a directory that is new or empty.

    Returns:
        What is left to do before the package has its data, as one sentence; None when nothing is.

    Raises:
        SkeletonRefused: When something is there; nothing is written then.
        OSError: When it can't be written.
    """
    if directory.is_symlink() or (directory.exists() and (not directory.is_dir() or any(directory.iterdir()))):
        raise SkeletonRefused(
            f"{directory} is there already, and nothing is overwritten", fix="Choose another name, or move it away."
        )
    for path, text in made.files.items():
        place = directory / path
        place.parent.mkdir(parents=True, exist_ok=True)
        with place.open("x", encoding="utf-8") as stream:
            stream.write(text)
    return None if made.make_data is None else _make_data(directory, made.make_data)


def _make_data(directory: Path, program: str) -> str | None:
    command = [sys.executable, program]
    done = subprocess.run(
        command, cwd=directory, capture_output=True, text=True, timeout=_MAKE_DATA_TIMEOUT_S, check=False
    )
    if done.returncode == 0:
        return None
    why = (done.stderr.strip().splitlines() or ["it said nothing"])[-1]
    return f"The data is not made yet ({why}): run `pip install pyarrow && python {program}` in {directory}."
