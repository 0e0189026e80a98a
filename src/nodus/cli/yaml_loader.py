"""YAML as manifests use it: dates stay text and a key stands once."""

from __future__ import annotations

from typing import Any, ClassVar

import yaml
from yaml.composer import ComposerError

_TIMESTAMP = "tag:yaml.org,2002:timestamp"
_MERGE = "tag:yaml.org,2002:merge"


class Loader(yaml.SafeLoader):
    """PyYAML's safe loader, with the differences that the module names."""

    # The wire has no date type.
    yaml_implicit_resolvers: ClassVar = {  # type: ignore[misc]
        first: [(tag, pattern) for tag, pattern in resolvers if tag != _TIMESTAMP]
        for first, resolvers in yaml.SafeLoader.yaml_implicit_resolvers.items()
    }

    def compose_mapping_node(self, anchor: Any) -> yaml.MappingNode:
        """Read an object; refuse one in which a key stands twice: YAML would silently keep the last."""
        node: yaml.MappingNode = super().compose_mapping_node(anchor)
        seen: set[str] = set()
        for key, _ in node.value:
            if isinstance(key, yaml.ScalarNode) and key.tag != _MERGE:
                if key.value in seen:
                    raise ComposerError(None, None, f"the key {key.value!r} stands twice", key.start_mark)
                seen.add(key.value)
        return node
