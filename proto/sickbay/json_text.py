"""JSON from another party: text that is nested too deep is refused as any other that is no JSON."""

import json
from typing import Any


def read_json(text: str | bytes | bytearray, **hooks: Any) -> Any:
    """Raises ValueError."""
    try:
        return json.loads(text, **hooks)
    except RecursionError:
        raise ValueError("it is nested too deep") from None
