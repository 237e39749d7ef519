"""The page's templates, compiled once for all servers of a process.

A server compiles them for its first page, which took half of the time of a test with one server.
"""

from types import CodeType
from typing import Any

import jinja2

_compiled: dict[tuple[str, str], CodeType] = {}
_load = jinja2.PackageLoader.load


class _Kept(jinja2.BytecodeCache):
    """The code by its template's name and the hash of its source."""

    def load_bytecode(self, bucket: Any) -> None:
        bucket.code = _compiled.get((bucket.key, bucket.checksum))

    def dump_bytecode(self, bucket: Any) -> None:
        _compiled[bucket.key, bucket.checksum] = bucket.code


def compile_templates_once() -> None:
    """From now on, an environment that loads templates of a package takes the code that is kept.

    Sites' own templates, which are texts without a loader, are compiled each time.
    """

    def load(
        self: jinja2.PackageLoader, environment: jinja2.Environment, *args: Any, **more: Any
    ) -> jinja2.Template:
        environment.bytecode_cache = _KEPT
        return _load(self, environment, *args, **more)

    jinja2.PackageLoader.load = load  # type: ignore[assignment]


_KEPT = _Kept()
