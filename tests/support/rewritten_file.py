"""A file that another process replaces just after it was read."""

from pathlib import Path
from typing import Any


class Rewritten(type(Path())):  # type: ignore[misc]  # its class is the platform's
    """``later``: its text after the next read by `read_text`."""

    later = ""

    def read_text(self, *how: Any, **named: Any) -> str:
        text: str = super().read_text(*how, **named)
        if self.later:
            self.write_text(self.later)
            self.later = ""
        return text
