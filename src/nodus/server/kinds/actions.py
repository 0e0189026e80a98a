"""Actions that a user asks for by an annotation, ``nodus.dev/ACTION-requested-at``, as ``nodus request`` does."""

from __future__ import annotations

import re
from collections.abc import Mapping

from nodus.core.errors import MethodNotAllowed
from nodus.core.kinds import Kind

_REQUEST = re.compile(r"nodus\.dev/([a-z0-9-]+)-requested-at")


def check_actions(kind: Kind, before: Mapping[str, str], after: Mapping[str, str]) -> None:
    """Check that a kind has the actions that a change asks for; nobody would act on the annotation otherwise.

    Args:
        kind: of the object.
        before: annotations that it has.
        after: annotations that it gets.

    Raises:
        MethodNotAllowed: the kind has no such action.
    """
    for key, value in after.items():
        asked = _REQUEST.fullmatch(key)
        if asked is None or before.get(key) == value or asked[1] in kind.actions:
            continue
        if asked[1] == "start" and "state" in kind.spec_model.model_fields:
            continue  # only says when spec.state was set
        action = asked[1][:60]
        raise MethodNotAllowed(
            f"{kind.plural} have no action {action!r}",
            fix=f"They have: {', '.join(kind.actions)}." if kind.actions else "They have none that can be requested.",
            details={"kind": kind.plural, "action": action, "actions": list(kind.actions)},
        )
