"""The recorded past, page by page."""

import json
from collections.abc import Iterator

from aggregator.cli.output import Answer
from aggregator.cli.source import Source

#: Transitions of one request.
PAGE = 1000


def transitions(source: Source, *, node: str = "", pages: int) -> Iterator[Answer]:
    """Those of a node or of all, the latest first, each once. Raises as the source does."""
    until = ""
    known = frozenset[str]()
    for _ in range(pages):
        items = source.get("transitions", node=node, until=until, limit=PAGE)["items"]
        texts = [json.dumps(one, sort_keys=True) for one in items]
        # A page begins with the last of the page before.
        fresh = [one for one, text in zip(items, texts, strict=True) if text not in known]
        yield from fresh
        if len(items) < PAGE or not fresh:
            return
        known, until = frozenset(texts), items[-1]["at"]
