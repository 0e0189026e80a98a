"""Write the reference pages from the code that they describe: kinds, errors, command line, settings, runtimes.

`python docs/generate.py --write` rewrites them; `--check` names those that are not current and exits with 1. A page
below docs/reference whose first line says that it is generated is never edited by hand.
"""

from __future__ import annotations

import importlib
import inspect
import re
import sys
from collections.abc import Iterable, Iterator, Mapping
from dataclasses import MISSING
from pathlib import Path
from types import ModuleType, NoneType, UnionType
from typing import Annotated, Any, Literal, Union, get_args, get_origin

import click
import yaml

from nodus.core.errors import NodusError, all_errors
from nodus.core.kinds import KINDS, Kind, Model
from nodus.core.kinds.describe import all_models, docstrings_beneath, field_descriptions

ROOT = Path(__file__).resolve().parent.parent
NOTE = "<!-- Generated from the code by docs/generate.py; edits here are lost. -->\n"
QUOTED_ANNOTATION = r": '([^']*)'"
# Where the errors live that a user's program can meet. All are loaded, so the page does not hang on what ran before.
ERROR_MODULES = ("nodus.core.errors.reasons", "nodus.client.config", "nodus.client.http", "nodus.recipes.errors")
PUBLIC_MODULES = ("nodus", "nodus.log", "nodus.checkpoint", "nodus.cluster", "nodus.recipes.rl")

# What users get from an attribute and never import, with the names that it has on the page.
RETURNED = (("Outputs", "nodus.client.outputs", "Outputs"),)


def pages() -> dict[str, str]:
    """Every generated page: path from the project's root to its text."""
    found = {"docs/reference/kinds/README.md": kinds_index()}
    found.update({f"docs/reference/kinds/{kind.singular}.md": kind_page(kind) for kind in KINDS.values()})
    found["docs/reference/errors.md"] = errors_page()
    found["docs/reference/cli.md"] = cli_page()
    found["docs/reference/config.md"] = config_page()
    found["docs/reference/python.md"] = python_page()
    found["docs/reference/rest.md"] = rest_page()
    found.update(runtime_pages())
    return found


# ------------------------------------------------------------------------------------------------------------- kinds


def kinds_index() -> str:
    """The list of kinds."""
    rows = [
        (f"[{kind.name}]({kind.singular}.md)", _code(kind.plural, *kind.short_names), kind.scope, kind.summary)
        for kind in KINDS.values()
    ]
    return "\n".join([NOTE, "# Kinds\n", *_table(("Kind", "Names", "Scope", "What it is"), rows), ""])


def kind_page(kind: Kind) -> str:
    """The page of one kind: names, columns, phases, example, and every field of spec and status."""
    where = "namespaces/{project}/" if kind.namespaced else ""
    lines = [
        NOTE,
        f"# {kind.name}\n",
        f"{kind.summary}\n",
        f"* Names: {_code(kind.plural, kind.singular, *kind.short_names)}",
        f"* API: `{kind.api_version}`, at `/apis/{kind.api_version}/{where}{kind.plural}`",
        f"* Verbs: {_code(*kind.verbs)}",
    ]
    if kind.subresources:
        lines.append(f"* Below an object: {_code(*kind.subresources)}")
    if kind.actions:
        lines.append(f"* Actions of `nodus request`: {_code(*kind.actions)}")
    if kind.immutable:
        whole = "the whole spec" if kind.immutable == ("*",) else _code(*(f"spec.{path}" for path in kind.immutable))
        lines.append(f"* Cannot change after creation: {whole}")
    if kind.raise_only:
        lines.append(f"* May only rise: {_code(*(f'spec.{path}' for path in kind.raise_only))}")
    lines += ["\n## Example\n", "```yaml", yaml.safe_dump(dict(kind.example), sort_keys=False).rstrip(), "```"]
    lines += ["\n## Columns of `nodus get`\n"]
    lines += _table(
        ("Column", "Shown", "What it is"),
        [(c.header.upper(), "with `-o wide`" if c.wide else "always", c.description) for c in kind.columns],
    )
    if kind.phases:
        lines += ["\n## Phases\n", *_table(("Phase", "May be followed by"), _phase_rows(kind))]
    for title, model in (("spec", kind.spec_model), ("status", kind.status_model)):
        if model.model_fields:
            lines += [f"\n## {title}\n", *_fields(title, model)]
    return "\n".join(lines) + "\n"


def _phase_rows(kind: Kind) -> Iterator[tuple[str, str]]:
    for phase, following in kind.phases.items():
        yield f"`{phase}`", _code(*following) if following else "nothing: the object is done"


def _fields(title: str, root: type[Model]) -> Iterator[str]:
    for model in all_models(root):
        if model is not root:
            yield f"\n### {model.__name__} (in {title})\n"
            if model.__doc__:
                yield " ".join(model.__doc__.split()) + "\n"
        described = field_descriptions(model)
        rows = []
        for name, field in model.model_fields.items():
            default = "required" if field.is_required() else _default(field.get_default(call_default_factory=True))
            rows.append((f"`{field.alias or name}`", _type(field.annotation), default, described.get(name, "")))
        yield from _table(("Field", "Type", "Default", "What it is"), rows)


def _type(annotation: Any) -> str:
    """A field's type in words."""
    origin, arguments = get_origin(annotation), get_args(annotation)
    if origin is Annotated:
        return _type(arguments[0])
    if origin is Literal:
        return " or ".join(f"`{value}`" for value in arguments)
    if origin in (Union, UnionType):
        return " or ".join(dict.fromkeys(_type(part) for part in arguments if part is not NoneType))
    if origin is list:
        return f"list of {_type(arguments[0])}"
    if origin is dict:
        return "object" if arguments[1] is Any else f"map of {_type(arguments[1])}"
    if isinstance(annotation, type) and issubclass(annotation, Model):
        return annotation.__name__
    words = {str: "string", int: "integer", float: "number", bool: "boolean", dict: "object", Any: "any"}
    return words.get(annotation, getattr(annotation, "__name__", str(annotation)))


def _default(value: object) -> str:
    if value is None or value == [] or value == {} or isinstance(value, Model):
        return ""
    if isinstance(value, tuple | list):
        return _code(*(str(item) for item in value))
    return f"`{value}`".lower() if isinstance(value, bool) else f"`{value}`"


# ------------------------------------------------------------------------------------------------------------ errors


def errors_page() -> str:
    """Reasons, HTTP statuses and classes of the error tree."""
    for module in ERROR_MODULES:
        importlib.import_module(module)
    rows = [
        (f"`{cls.__name__}`", f"`{cls.reason}`", str(cls.status), "yes" if cls.retryable else "no", _first_line(cls))
        for cls in sorted(all_errors(), key=lambda cls: (cls.status, cls.__name__))
        if cls is not NodusError and cls.__module__ in ERROR_MODULES
    ]
    return "\n".join(
        [
            NOTE,
            "# Errors\n",
            "Every error is a Status object with a reason. The client raises the class of that reason from",
            "`nodus.errors`, so that `except nodus.errors.NotFound` works for what any server answers. An error's",
            "`fix`, where there is one, says what to do next; `causes` lists every mistake of an invalid object.\n",
            *_table(("Class", "Reason", "HTTP", "Worth a retry", "When"), rows),
            "",
        ]
    )


# ------------------------------------------------------------------------------------------------------ command line


def cli_page() -> str:
    """Every command with its help, as `--help` prints it, in the sections of `nodus --help`."""
    from nodus.cli.main import SECTIONS, root

    section_of = {name: section for section, names in SECTIONS.items() for name in names}
    lines, section = [NOTE, "# Command line\n"], ""
    for context in _commands(root, "nodus", None):
        _, *words = context.command_path.split()
        if words and section_of[words[0]] != section:
            section = section_of[words[0]]
            lines.append(f"## {section}\n")
        heading = f"{'###' if words else '##'} {context.command_path}\n"
        lines += [heading, "```text", context.command.get_help(context).rstrip(), "```\n"]
    return "\n".join(lines)


def _commands(command: click.Command, name: str, parent: click.Context | None) -> Iterator[click.Context]:
    context = click.Context(
        command,
        parent=parent,
        info_name=name,
        max_content_width=100,
        terminal_width=100,
        help_option_names=["-h", "--help"],
    )
    yield context
    if isinstance(command, click.Group):
        for inner_name in command.list_commands(context):
            inner = command.get_command(context, inner_name)
            if inner is not None and not inner.hidden:
                yield from _commands(inner, inner_name, context)


# -------------------------------------------------------------------------------------------------------------- REST


def rest_page() -> str:
    """Every route of the server with what it takes and answers, from its OpenAPI document."""
    from nodus.server.api.app import HEALTH, OPERATIONS
    from nodus.server.api.openapi import whole

    document = whole((*HEALTH, *OPERATIONS))
    by_tag: dict[str, list[tuple[str, ...]]] = {}
    queries: dict[str, dict[str, str]] = {}
    for path, item in document["paths"].items():
        for method, operation in item.items():
            tag = operation["tags"][0]
            taken = [_media(media) for media in operation.get("requestBody", {}).get("content", {})]
            needs = "no key" if operation.get("security") == [] else "a key"
            row = (f"`{method.upper()}`", f"`{path}`", operation["summary"], _code(*taken), needs)
            by_tag.setdefault(tag, []).append(row)
            for parameter in operation["parameters"]:
                if parameter["in"] != "path":
                    queries.setdefault(tag, {})[parameter["name"]] = parameter["description"]
    lines = [NOTE, REST_INTRODUCTION]
    seen = [pair for found in queries.values() for pair in found.items()]
    common = {pair for pair in seen if seen.count(pair) > 3}
    lines += ["## Parameters and headers of many routes\n", *_table(("Name", "What it is"), _code_first(common)), ""]
    for tag in ("Server", *KINDS):
        lines += [f"## {tag}\n", *_table(("Method", "Path", "What it does", "Body", "Needs"), by_tag[tag]), ""]
        own = set(queries.get(tag, {}).items()) - common
        if own:
            lines += [*_table(("Parameter", "What it is"), _code_first(own)), ""]
    return "\n".join(lines)


REST_INTRODUCTION = """\
# REST API

The same in OpenAPI 3.1: `GET /openapi.json` is the whole, `GET /openapi/v3` leads to a document for each group version.
`nodus explain KIND.FIELD` shows a part of it. A key is sent as `Authorization: Bearer KEY`.

* Objects have Kubernetes' shape: `apiVersion`, `kind`, `metadata`, `spec`, `status`. Bodies are JSON of at most 1 MiB;
  a field that is not known, at any depth, is refused with its path.
* Lists and objects are answered as a Table with `Accept: application/json;as=Table;v=v1;g=meta.k8s.io`.
* A watch is a list with `watch=true`: one JSON object a line, `{"type": "ADDED", "object": {...}}`, then `MODIFIED`,
  `DELETED`, and `ERROR` with a Status. Begin at the `resourceVersion` of a list to miss nothing; one that is older
  than a day or than what is kept is answered with code 410: list again.
* A patch is `application/merge-patch+json` or `application/json-patch+json`. A `metadata.resourceVersion` in a patch
  or a replacement must be the stored one, otherwise the answer is `Conflict`.
* Every answer has an `X-Request-Id`; every failure is a `Status` with one of these [reasons](errors.md).
"""


def _media(media: str) -> str:
    return {"application/json": "JSON", "application/octet-stream": "bytes"}.get(
        media, media.removeprefix("application/")
    )


def _code_first(found: Iterable[tuple[str, str]]) -> list[tuple[str, str]]:
    return [(f"`{name}`", text) for name, text in sorted(found)]


# ------------------------------------------------------------------------------------------------------------ python


def python_page() -> str:
    """The public names of the SDK with their signatures."""
    lines = [
        NOTE,
        "# Python\n",
        "The public names. A call marked `.aio` blocks, and has a twin that is awaited (or iterated with `async for`)",
        "inside an event loop: `await run.wait.aio()`.\n",
    ]
    for module in PUBLIC_MODULES:
        imported = importlib.import_module(module)
        lines.append(f"## {module}\n")
        for name in _public_names(imported):
            thing = getattr(imported, name)
            if not isinstance(thing, ModuleType | str):
                lines += _described(f"{module}.{name}", thing)
    lines += ["## What these return\n"]
    for attribute, module, name in RETURNED:
        lines += _described(attribute, getattr(importlib.import_module(module), name))
    return "\n".join(lines)


def _public_names(module: ModuleType) -> list[str]:
    """A module's `__all__`; without one the calls and classes it defines itself."""
    own = [
        name
        for name, thing in vars(module).items()
        if callable(thing) and not name.startswith("_") and _home(thing) == module.__name__
    ]
    return list(getattr(module, "__all__", own))


def _home(thing: object) -> str:
    return str(getattr(inspect.unwrap(thing), "__module__", ""))  # type: ignore[arg-type]


def _described(path: str, thing: object) -> Iterator[str]:
    if not isinstance(thing, type):
        yield f"### {path}\n\n{_call(path.rpartition('.')[2], thing)}\n\n{_first_line(thing)}\n"
        return
    yield f"### {path}\n\n{_first_line(thing)}\n"
    yield from _example(thing)
    own = [cls for cls in reversed(thing.__mro__) if cls.__module__.startswith("nodus.")]
    rows = []
    for name, text in (pair for cls in own for pair in docstrings_beneath(cls)):
        default = getattr(thing, "__dataclass_fields__", {}).get(name)
        suffix = "" if default is None or default.default is MISSING else f" = {default.default!r}"
        rows.append((f"`{name}{suffix}`", text))
    described = {name for name, _ in (pair for cls in own for pair in docstrings_beneath(cls))}
    for name, member in {name: member for cls in own for name, member in vars(cls).items()}.items():
        if name.startswith("_") or name in described or not member.__doc__:
            continue
        if inspect.iscoroutinefunction(member) and not hasattr(member, "__wrapped__"):
            continue  # for our own code: what users call blocks and has a twin
        if not isinstance(member, str | int | float | tuple):
            shown = f"`{name}`" if isinstance(member, property) else _call(name, member)
            rows.append((shown, _first_line(member)))
    if rows:
        yield from _table(("Member", "What it is"), rows)
        yield ""


def _example(thing: type) -> Iterator[str]:
    """The example in a class's docstring, as a block."""
    found = re.search(r"^Example::?\n+((?: {4}.*\n|\n)+)", (inspect.getdoc(thing) or "") + "\n", re.MULTILINE)
    if found:
        lines = [line.removeprefix("    ") for line in found[1].splitlines()]
        if any(line.startswith(">>>") for line in lines):  # a session: without its prompts and its output
            lines = [line[4:] for line in lines if line.startswith((">>>", "..."))]
        code = "\n".join(lines).strip()
        yield f"<!-- not run: an excerpt of a longer program -->\n```python\n{code}\n```\n"


def _call(name: str, thing: object) -> str:
    """A call's signature without self, and whether it has an awaitable twin."""
    function = inspect.unwrap(getattr(thing, "__func__", thing))  # type: ignore[arg-type]
    try:
        signature = inspect.signature(function)
    except (TypeError, ValueError):
        return f"`{name}`"
    kept = [parameter for parameter in signature.parameters.values() if parameter.name not in ("self", "cls")]
    twin = " `.aio`" if hasattr(thing, "__wrapped__") else ""
    shown = str(signature.replace(parameters=kept, return_annotation=inspect.Signature.empty))
    unquoted = re.sub(QUOTED_ANNOTATION, r": \1", shown)
    return f"`{name}{unquoted}`{twin}"


# ---------------------------------------------------------------------------------------------------------- settings


def config_page() -> str:
    """The server's settings."""
    from nodus.server.settings import SETTINGS_FILE, Settings

    rows = []
    for name, field in Settings.model_fields.items():
        default = "`~/.nodus/data`" if name == "data_dir" else _default(field.get_default(call_default_factory=True))
        variable = "NODUS_DATA_DIR" if name == "data_dir" else f"NODUS_SERVER_{name.upper()}"
        rows.append((f"`{name}`", f"`{variable}`", default, field.description or ""))
    return "\n".join(
        [
            NOTE,
            "# Settings of the server\n",
            f"Each can stand in `{SETTINGS_FILE}` in the data directory or in the environment, or be a flag of",
            "`nodus up` (dashes for underscores, where it has one). Flags win over variables, variables over the file.",
            "Unknown or mistyped settings stop the start with one line that names them.\n",
            *_table(("Setting", "Variable", "Default", "What it is"), rows),
            "",
        ]
    )


# ---------------------------------------------------------------------------------------------------------- runtimes


def runtime_pages() -> dict[str, str]:
    """Pages and catalog files of the training runtimes, made where their parameters are declared."""
    from nodus.trainer.runtimes import files

    return dict(files())


# ----------------------------------------------------------------------------------------------------------- markdown


def _table(header: tuple[str, ...], rows: Iterable[tuple[str, ...]]) -> list[str]:
    lines = [header, ("---",) * len(header), *rows]
    return [f"| {' | '.join(cell.replace('|', chr(92) + '|').replace('``', '`') for cell in line)} |" for line in lines]


def _code(*words: str) -> str:
    return ", ".join(f"`{word}`" for word in words)


def _first_line(thing: object) -> str:
    return " ".join((thing.__doc__ or "").strip().split("\n\n")[0].split())


def stale(wanted: Mapping[str, str]) -> list[str]:
    """Names of the pages on disk that differ from what the code says."""
    return [n for n, text in wanted.items() if not (ROOT / n).is_file() or (ROOT / n).read_text() != text]


def main(arguments: list[str]) -> int:
    """Write or check the pages."""
    wanted = pages()
    outdated = stale(wanted)
    if "--write" in arguments:
        for name in outdated:
            (ROOT / name).parent.mkdir(parents=True, exist_ok=True)
            (ROOT / name).write_text(wanted[name])
            print(f"wrote {name}")
        return 0
    for name in outdated:
        print(f"{name} is not current: run docs/generate.py --write", file=sys.stderr)
    return 1 if outdated else 0


if __name__ == "__main__":
    sys.exit(main(sys.argv[1:]))
