"""PyYAML's safe loader, which refuses a depth that no file of settings has.

PyYAML reads such a text until the interpreter's recursion limit, and for each bracket it reads all
the open ones: 5,000 brackets took a second.
"""

from typing import Any

import yaml

#: Collections inside each other. A file that is read has far fewer.
DEEPEST = 50


class ShallowLoader(yaml.SafeLoader):
    """Raises `RecursionError` where the text goes deeper, as PyYAML does much later."""

    _depth = 0

    def fetch_flow_collection_start(self, token: Any) -> None:
        if self.flow_level >= DEEPEST:
            raise RecursionError
        super().fetch_flow_collection_start(token)

    def compose_node(self, parent: yaml.Node | None, index: int) -> yaml.Node | None:
        self._depth += 1
        if self._depth > DEEPEST:
            raise RecursionError
        try:
            return super().compose_node(parent, index)
        finally:
            self._depth -= 1
