"""Prompts, replies and what an environment says, as tokens of a model's chat template and back."""

from __future__ import annotations

import json
import re
from collections.abc import Mapping, Sequence
from typing import Any

from jinja2 import TemplateError

from nodus.core.errors import BadRequest
from nodus.trainer.attempt import Task

CHAT_TEMPLATE_ARGUMENTS = {"enable_thinking": False}
"""Given to every chat template: with it a reasoning model answers within its completion tokens; others ignore it."""

_REPLY, _SAID = "nodus-reply-4d1f", "nodus-said-9b2c"
"""Stand for a reply while the template is asked what comes after one, and for what the environment says."""
_OTHER_MODEL = "use a model whose chat template has tools and several turns, such as Qwen/Qwen3-0.6B"
_MARKUP = re.compile(r"tool|function|python_tag", re.IGNORECASE)
"""Added tokens that say something: a call of a tool, where a tokenizer has such."""
_KNOWN = 4096
"""Most answers of an environment whose tokens are remembered."""


def render(tokenizer: Any, tasks: Sequence[Task], max_tokens: int) -> dict[str, list[int]]:
    """Token ids of every task's prompt, ready for the reply; longer ones keep their last ``max_tokens``.

    A prompt that is one string becomes one user message when the tokenizer has a chat template. A task's tools are
    offered as the template does.

    Raises:
        BadRequest: For chat messages or tools that the tokenizer's chat template has no place for, or a prompt of no
            tokens.
    """
    rendered = {}
    for task in tasks:
        ids = _prompt_ids(tokenizer, task)
        if not ids:
            raise BadRequest(f"task {task.id}: the prompt has no tokens")
        rendered[task.id] = ids[-max_tokens:]
    _check_tools(tokenizer, tasks)
    return rendered


def _prompt_ids(tokenizer: Any, task: Task) -> list[int]:
    if not tokenizer.chat_template:
        if isinstance(task.prompt, list):
            message = f"task {task.id} is a list of chat messages, and the model's tokenizer has no chat template"
            raise BadRequest(
                message, fix="use an instruction-tuned model, or an Environment whose prompts are plain text"
            )
        return list(tokenizer(task.prompt)["input_ids"])
    encoded = tokenizer.apply_chat_template(
        _messages(task), add_generation_prompt=True, tokenize=True, return_dict=True, **_offered(task)
    )
    return list(encoded["input_ids"])


def _messages(task: Task) -> list[dict[str, Any]]:
    return task.prompt if isinstance(task.prompt, list) else [{"role": "user", "content": task.prompt}]


def _offered(task: Task) -> dict[str, Any]:
    tools = {"tools": [dict(tool) for tool in task.tools]} if task.tools else {}
    return {**CHAT_TEMPLATE_ARGUMENTS, **tools}


def _check_tools(tokenizer: Any, tasks: Sequence[Task]) -> None:
    """Refuse a template that says the same with tools and without: the model would never learn of them."""
    task = next((task for task in tasks if task.tools), None)
    if task is None:
        return
    fix = _OTHER_MODEL
    if not tokenizer.chat_template:
        raise BadRequest(f"task {task.id} offers tools, and the model's tokenizer has no chat template", fix=fix)
    arguments = {"add_generation_prompt": True, "tokenize": False}
    without = tokenizer.apply_chat_template(_messages(task), **arguments, **CHAT_TEMPLATE_ARGUMENTS)
    if tokenizer.apply_chat_template(_messages(task), **arguments, **_offered(task)) == without:
        raise BadRequest(f"task {task.id} offers tools, and the model's chat template has no place for them", fix=fix)


class Turns:
    """How a model and an environment take turns in tokens.

    The tokens that a model sampled stay what they are, whatever its template makes of earlier messages: what is put
    behind them is what the template puts between a reply and the next one.

    Args:
        tokenizer: The model's, with a chat template.
        stop_ids: Tokens that end a reply.

    Example:
        >>> turns.between([{"role": "user", "content": "higher"}], last=reply[-1])  # <|im_end|> not said twice

    Raises:
        BadRequest: When the tokenizer has no chat template.
    """

    def __init__(self, tokenizer: Any, stop_ids: Sequence[int]) -> None:
        if not tokenizer.chat_template:
            raise BadRequest(
                "episodes of several turns need a chat template, and the model's tokenizer has none",
                fix="use an instruction-tuned model, or set spec.parameters.maxTurns to 1",
            )
        self._tokenizer = tokenizer
        self._stop_ids = frozenset(stop_ids)
        # Special or not: some tokenizers have these among the ones that decoding leaves out.
        added = {i: str(token) for i, token in tokenizer.added_tokens_decoder.items()}
        self._markup = {i: text for i, text in added.items() if _MARKUP.search(text)}
        self._known: dict[str, list[int]] = {}
        self._rendered: set[str] = set()

    def check(self, role: str) -> None:
        """Refuse a template that has no place for a message of a role after a reply.

        Raises:
            BadRequest: Naming the role: the template refuses it, or leaves out what it says.
        """
        if role in self._rendered:
            return
        probe = {"role": role, "name": "probe", "tool_call_id": "probe00id", "content": _SAID}
        # Some leave out what they have no place for, which would leave a model without an answer.
        if _SAID not in self._after_reply([probe]):
            raise BadRequest(
                f"the model's chat template leaves out messages of the role {role} after a reply", fix=_OTHER_MODEL
            )
        self._rendered.add(role)

    def between(self, messages: Sequence[Mapping[str, Any]], last: int) -> list[int]:
        """The tokens from the end of a reply over an environment's messages to where the next reply begins.

        Args:
            messages: The environment's; may be empty.
            last: The reply's last token: a stop token that the template would say too is not said twice.

        Raises:
            BadRequest: When the template can't render such messages after a reply.
        """
        key = json.dumps(messages, sort_keys=True)
        if len(self._known) > _KNOWN:
            self._known.clear()
        if key not in self._known:
            for message in messages:
                self.check(str(message.get("role")))
            self._known[key] = self._tokenizer(self._after_reply(messages), add_special_tokens=False)["input_ids"]
        ids = self._known[key]
        if last in self._stop_ids and last in ids:
            end = ids.index(last)
            if not self._tokenizer.decode(ids[:end]).strip():
                return list(ids[end + 1 :])
        return list(ids)

    def _after_reply(self, messages: Sequence[Mapping[str, Any]]) -> str:
        # Not the whole conversation: a template may leave thoughts out of earlier replies, or offer tools again.
        before = [{"role": "user", "content": "-"}, {"role": "assistant", "content": _REPLY}]
        try:
            text = self._tokenizer.apply_chat_template(
                [*before, *({**message} for message in messages)],
                add_generation_prompt=True,
                tokenize=False,
                **CHAT_TEMPLATE_ARGUMENTS,
            )
        except (TemplateError, TypeError, ValueError, KeyError) as error:
            roles = ", ".join(dict.fromkeys(str(message.get("role")) for message in messages))
            raise BadRequest(
                f"the model's chat template can't render messages of the role {roles} after a reply: {error}",
                fix=_OTHER_MODEL,
            ) from error
        _, found, tail = text.partition(_REPLY)
        if not found:
            raise BadRequest("the model's chat template leaves out a reply that more messages follow", fix=_OTHER_MODEL)
        return tail

    def text(self, tokens: Sequence[int]) -> str:
        """A reply as an environment reads it: without its stop token and other special ones, tool calls kept."""
        ids = list(tokens)
        while ids and ids[-1] in self._stop_ids:
            ids.pop()
        parts, start = [], 0
        for place, token in enumerate(ids):
            if token in self._markup:
                parts += [self._decode(ids[start:place]), self._markup[token]]
                start = place + 1
        return "".join([*parts, self._decode(ids[start:])])

    def _decode(self, ids: list[int]) -> str:
        return self._tokenizer.decode(ids, skip_special_tokens=True) if ids else ""
