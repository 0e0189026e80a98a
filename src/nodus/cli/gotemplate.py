"""Go templates for ``-o go-template=``: what scripts for Kubernetes tools use of text/template.

Fields, variables, pipelines, parentheses, ``if``/``else``, ``range``, ``with``, trimmed spaces, comments, and the
functions of `nodus.cli.gofunctions`. Left out: ``define``, ``template``, ``block``, ``break`` and ``continue``.
"""

from __future__ import annotations

import json
import re
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any

from nodus.cli.gofunctions import FUNCTIONS, TemplateError, as_go_text, is_true

_TOKEN = re.compile(
    r"""(?P<space>\s+)|(?P<text>"(?:\\.|[^"\\])*")|`(?P<raw>[^`]*)`|(?P<number>-?\d+(?:\.\d+)?)
    |(?P<variable>\$\w*)|(?P<field>\.\w[\w\-]*)|(?P<dot>\.)|(?P<word>\w+)|(?P<sign>:=|[|()=,])""",
    re.VERBOSE,
)
_ACTION = re.compile(
    r"\{\{(?P<left>-(?=\s))?(?P<inner>(?:\"(?:\\.|[^\"\\])*\"|`[^`]*`|[^\"`])*?)(?P<right>(?<=\s)-)?\}\}"
)
MAX_LENGTH = 20_000
MAX_STEPS = 1_000_000


@dataclass(slots=True)
class _Node:
    """A part of a template: text, an expression, or a block with its branches."""

    kind: str
    text: str = ""
    tokens: list[tuple[str, str]] = field(default_factory=list)
    body: list[_Node] = field(default_factory=list)
    otherwise: list[_Node] = field(default_factory=list)


def render(template: str, document: Any) -> str:
    """Return what a template makes of a document.

    Args:
        template: Such as ``{{range .items}}{{.metadata.name}}{{"\\n"}}{{end}}``.
        document: JSON.

    Raises:
        TemplateError: When the template can't be read, or asks for what can't be done.
    """
    if len(template) > MAX_LENGTH:
        raise TemplateError(f"the template is longer than {MAX_LENGTH} characters")
    nodes = _Parser(template).nodes
    try:
        return "".join(_Run(document).write(nodes, document))
    except RecursionError as error:
        raise TemplateError("the template is nested too deeply") from error


# ------------------------------------------------------------------------------------------------------------ parsing
class _Parser:
    """Reads a template into nodes."""

    def __init__(self, template: str) -> None:
        self.parts = list(_split(template))
        self.position = 0
        self.nodes = self._block(("",))[0]

    def _block(self, ends: Sequence[str]) -> tuple[list[_Node], list[tuple[str, str]]]:
        """Read up to one of the ends (`""` is the template's own) and return the nodes and the end's tokens."""
        nodes: list[_Node] = []
        while self.position < len(self.parts):
            text, tokens = self.parts[self.position]
            self.position += 1
            if tokens is None:
                nodes.append(_Node("text", text))
                continue
            word = tokens[0][1] if tokens and tokens[0][0] == "word" else ""
            if word in ("end", "else"):
                if word not in ends:
                    raise TemplateError(f"the template has {{{{{word}}}}} without a block before it")
                return nodes, tokens
            if word in ("if", "range", "with"):
                nodes.append(self._branch(word, tokens[1:]))
            elif word in ("define", "template", "block", "break", "continue"):
                raise TemplateError(f"{{{{{word}}}}} is not supported in templates here")
            elif tokens:
                nodes.append(_Node("pipe", tokens=tokens))
        if "" not in ends:
            raise TemplateError("the template lacks an {{end}}")
        return nodes, []

    def _branch(self, word: str, tokens: list[tuple[str, str]]) -> _Node:
        if not tokens:
            raise TemplateError(f"{{{{{word}}}}} needs a value")
        node = _Node(word, tokens=tokens)
        node.body, end = self._block(("end", "else"))
        if end[0][1] == "else":
            if len(end) > 1:  # {{else if ...}} shares the {{end}}
                node.otherwise = [self._branch(end[1][1], end[2:])]
            else:
                node.otherwise, end = self._block(("end",))
        return node


def _split(template: str) -> Iterator[tuple[str, list[tuple[str, str]] | None]]:
    """Yield texts, and the tokens of actions; trim markers are applied."""
    position, trim = 0, False
    for match in _ACTION.finditer(template):
        text = template[position : match.start()]
        if "{{" in text:
            break
        text = text.lstrip() if trim else text
        text = text.rstrip() if match["left"] else text
        if text:
            yield text, None
        inner = match["inner"].strip()
        if not (inner.startswith("/*") and inner.endswith("*/")):
            yield "", _tokens(inner)
        position, trim = match.end(), match["right"] is not None
    rest = template[position:]
    if "{{" in rest:
        raise TemplateError(f"the template has an action without its end: {rest[:40]!r}")
    if trim:
        rest = rest.lstrip()
    if rest:
        yield rest, None


def _tokens(inner: str) -> list[tuple[str, str]]:
    found: list[tuple[str, str]] = []
    position = 0
    while position < len(inner):
        match = _TOKEN.match(inner, position)
        if match is None:
            raise TemplateError(f"the template is not understood from {inner[position:]!r} on")
        kind = str(match.lastgroup)
        # `.a .b` are two values, `.a.b` is one: the space says which.
        found.append((kind, match[kind]))
        position = match.end()
    return _joined(found)


def _joined(tokens: list[tuple[str, str]]) -> list[tuple[str, str]]:
    """Drop the spaces, after making fields that follow without one part of what stands before (as `chain`)."""
    joined: list[tuple[str, str]] = []
    spaced = True
    for kind, text in tokens:
        if kind == "space":
            spaced = True
            continue
        chained = kind == "field" and not spaced and joined[-1][1] not in ("|", "(", ",", "=", ":=")
        joined.append(("chain" if chained else kind, text))
        spaced = False
    return joined


# ---------------------------------------------------------------------------------------------------------- execution
class _Run:
    """One execution of a template."""

    def __init__(self, document: Any) -> None:
        self.scopes: list[dict[str, Any]] = [{"$": document}]
        self.steps = 0

    def write(self, nodes: list[_Node], dot: Any) -> Iterator[str]:
        """Yield what nodes print."""
        for node in nodes:
            self.steps += 1
            if self.steps > MAX_STEPS:
                raise TemplateError("the template does not come to an end")
            if node.kind == "text":
                yield node.text
            elif node.kind == "pipe":
                names, value = self._pipeline(node.tokens, dot)
                if names:
                    self._set(names[0], value, declare=names[-1] == ":=")
                else:
                    yield as_go_text(value)
            else:
                self.scopes.append({})
                yield from self._range(node, dot) if node.kind == "range" else self._if(node, dot)
                self.scopes.pop()

    def _if(self, node: _Node, dot: Any) -> Iterator[str]:
        names, value = self._pipeline(node.tokens, dot)
        if names:
            self._set(names[0], value, declare=True)
        inner = value if node.kind == "with" else dot
        if is_true(value):
            yield from self.write(node.body, inner)
        else:
            yield from self.write(node.otherwise, dot)

    def _range(self, node: _Node, dot: Any) -> Iterator[str]:
        names, value = self._pipeline(node.tokens, dot)
        if isinstance(value, Mapping):
            items: list[tuple[Any, Any]] = sorted(value.items())
        elif isinstance(value, int) and not isinstance(value, bool):
            items = [(number, number) for number in range(min(value, MAX_STEPS))]
        elif isinstance(value, list) or value is None:
            items = list(enumerate(value or []))
        else:
            raise TemplateError(f"range can't go over {as_go_text(value)[:40]!r}")
        if not items:
            yield from self.write(node.otherwise, dot)
        for key, item in items:
            if names:
                self._set(names[-2], item, declare=True)
                if len(names) == 3:
                    self._set(names[0], key, declare=True)
            yield from self.write(node.body, item)

    def _set(self, name: str, value: Any, *, declare: bool) -> None:
        scope = next((scope for scope in reversed(self.scopes) if name in scope), None)
        if declare or scope is None:
            scope = self.scopes[-1]
        scope[name] = value

    def _pipeline(self, tokens: list[tuple[str, str]], dot: Any) -> tuple[list[str], Any]:
        """Return the variables an expression sets (with `:=` or `=` last), and its value."""
        names: list[str] = []
        for position, (kind, text) in enumerate(tokens[:4]):
            if kind == "sign" and text in (":=", "="):
                names = [text for kind, text in tokens[:position] if kind == "variable"]
                if len(names) not in (1, 2):
                    raise TemplateError(f"{text!r} needs a variable before it")
                names, tokens = [*names, text], tokens[position + 1 :]
                break
        value: Any = None
        for number, command in enumerate(_commands(tokens)):
            value = self._command(command, dot, [value] if number else [])
        return names, value

    def _command(self, tokens: list[tuple[str, str]], dot: Any, piped: list[Any]) -> Any:
        """Return the value of one command of a pipeline; what is piped into it is its last argument."""
        if not tokens:
            raise TemplateError("the template has a pipe with nothing on one side")
        kind, text = tokens[0]
        if kind == "word" and text not in ("true", "false", "nil"):
            function = FUNCTIONS.get(text)
            if function is None:
                raise TemplateError(f"there is no function {text!r}; there are {', '.join(sorted(FUNCTIONS))}")
            arguments = self._values(tokens[1:], dot) + piped
            try:
                return function(*arguments)
            except (TypeError, ValueError, LookupError) as error:
                raise TemplateError(f"{text}: {error}") from error
        values = self._values(tokens, dot)
        if len(values) != 1 or piped:
            raise TemplateError(f"{text!r} is no function and takes no arguments")
        return values[0]

    def _values(self, tokens: list[tuple[str, str]], dot: Any) -> list[Any]:
        values: list[Any] = []
        position = 0
        while position < len(tokens):
            kind, text = tokens[position]
            if (kind, text) == ("sign", "("):
                end = _matching(tokens, position)
                values.append(self._pipeline(tokens[position + 1 : end], dot)[1])
                position = end
            elif kind == "chain":
                values[-1] = _field(values[-1], text)
            else:
                values.append(self._operand(kind, text, dot))
            position += 1
        return values

    def _operand(self, kind: str, text: str, dot: Any) -> Any:
        if kind == "text":
            try:
                return json.loads(text)
            except ValueError as error:
                raise TemplateError(f"{text} is no text that is understood") from error
        if kind == "variable":
            for scope in reversed(self.scopes):
                if text in scope:
                    return scope[text]
            raise TemplateError(f"there is no variable {text}")
        if kind == "word" and text not in ("true", "false", "nil"):  # a function without arguments, as an argument
            return self._command([(kind, text)], dot, [])
        words = {"true": True, "false": False, "nil": None}
        simple = {"raw": text, "dot": dot, "word": words.get(text)}
        if kind in simple:
            return simple[kind]
        if kind == "number":
            return float(text) if "." in text else int(text)
        if kind == "field":
            return _field(dot, text)
        raise TemplateError(f"{text!r} is out of place in the template")


def _commands(tokens: list[tuple[str, str]]) -> list[list[tuple[str, str]]]:
    """Split a pipeline at its pipes, those in parentheses apart."""
    commands: list[list[tuple[str, str]]] = [[]]
    depth = 0
    for token in tokens:
        depth += {"(": 1, ")": -1}.get(token[1], 0) if token[0] == "sign" else 0
        if token == ("sign", "|") and depth == 0:
            commands.append([])
        else:
            commands[-1].append(token)
    return commands


def _matching(tokens: list[tuple[str, str]], start: int) -> int:
    depth = 0
    for position in range(start, len(tokens)):
        if tokens[position][0] == "sign":
            depth += {"(": 1, ")": -1}.get(tokens[position][1], 0)
        if depth == 0:
            return position
    raise TemplateError("the template has a parenthesis without its other half")


def _field(value: Any, text: str) -> Any:
    if value is None:
        return None
    if not isinstance(value, Mapping):
        raise TemplateError(f"{text} asks for a field of {as_go_text(value)[:40]!r}, which has none")
    return value.get(text[1:])
