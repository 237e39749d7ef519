"""JSON objects made from the port's dataclasses: each field is defined once, by its dataclass.

A name is in camel case ("bootID", "nodeUID"). A float is wall clock seconds, and an RFC 3339 time
in JSON; a tuple is a list; a dataclass is an object. A field at its default is sent as null, which
removes it in a merge patch, or is left out of an item of a list.
"""

import dataclasses
import datetime as dt
import types
import typing
from collections.abc import Callable, Mapping
from typing import Any, Generic, TypeVar

import msgspec

from aggregator.cluster.kubernetes.objects import seconds

D = TypeVar("D")


@dataclasses.dataclass(frozen=True, slots=True)
class ObjectForm:
    """The differences of one dataclass's object from the rule.

    ``names``: a field's other name. ``required``: the object is refused without the field.
    ``always``: the field is never null; its value where the object lacks it. ``is_item``: the
    object is in a list, and leaves out what is empty. ``elsewhere``: fields that the object does
    not have.
    """

    names: Mapping[str, str] = dataclasses.field(default_factory=dict)
    required: frozenset[str] = frozenset()
    always: Mapping[str, Any] = dataclasses.field(default_factory=dict)
    is_item: bool = False
    elsewhere: frozenset[str] = frozenset()


class ObjectCodec(Generic[D]):
    """Encodes and decodes ``kind``. ``forms`` are those of its dataclass and of the nested ones."""

    def __init__(self, kind: type[D], forms: Mapping[type, ObjectForm]) -> None:
        form = forms.get(kind, ObjectForm())
        hints = typing.get_type_hints(kind)
        self.kind = kind
        self._parts: list[_Part] = []
        columns: list[tuple[str, Any, Any]] = []
        #: The name of each field in JSON.
        self.names: dict[str, str] = {}
        #: The codecs of the fields that are objects, or lists of objects.
        self.nested: dict[str, ObjectCodec[Any]] = {}
        for field in dataclasses.fields(kind):  # type: ignore[arg-type]
            name, hint = field.name, hints[field.name]
            if name in form.elsewhere:
                continue
            self.names[name] = form.names.get(name) or _camel(name)
            wire, encode, decode = self._conversion(name, hint, forms)
            nullable = False
            default: Any
            if name in form.required:
                default = msgspec.NODEFAULT
            elif name in form.always:
                default = form.always[name]
            elif form.is_item and hint is str:
                default = ""
            else:
                assert hint is float or field.default is not dataclasses.MISSING, (
                    f"{kind.__name__}.{name} needs a default here, or a form"
                )
                wire, default, nullable = wire | None, None, True
            columns.append((name, wire, msgspec.field(default=default, name=self.names[name])))
            self._parts.append(_Part(name, encode, decode, field.default, nullable))
        #: The type of the JSON object.
        self.struct = msgspec.defstruct(
            f"{kind.__name__}Object",
            columns,
            frozen=True,
            kw_only=True,
            omit_defaults=form.is_item,
        )
        self._decoder = msgspec.json.Decoder(self.struct)

    def encode(self, value: D) -> msgspec.Struct:
        found = {}
        for part in self._parts:
            one = getattr(value, part.name)
            if part.nullable and one == part.default:
                one = None
            elif part.encode is not None and one is not None:
                one = part.encode(one)
            found[part.name] = one
        return self.struct(**found)

    def decode(self, wire: msgspec.Struct) -> D:
        """Raises ValueError where a time is none."""
        found = {}
        for part in self._parts:
            one = getattr(wire, part.name)
            if part.decode is not None and one is not None:
                one = part.decode(one)
            elif one is None:
                one = 0.0 if part.decode is seconds else part.default
            found[part.name] = one
        return self.kind(**found)

    def load(self, raw: msgspec.Raw | bytes) -> D:
        """Of JSON. Raises ValueError: msgspec's own are ValueErrors too."""
        return self.decode(self._decoder.decode(raw))

    def load_fields(self, raw: msgspec.Raw) -> tuple[D, ValueError | None, frozenset[str]]:
        """Each field by itself: why one can't be read, and the names of all that can't, which have
        their defaults.
        """
        try:
            return self.load(raw), None, frozenset()
        except ValueError as error:
            why = error
        try:
            there = msgspec.json.decode(raw, type=dict[str, msgspec.Raw])
        except ValueError:
            return self.kind(), why, frozenset(self.names)
        found, unread = {}, set()
        for field, name in self.names.items():
            alone = {name: there[name]} if name in there else {}
            try:
                found[field] = getattr(self.load(msgspec.json.encode(alone)), field)
            except ValueError:
                unread.add(field)
        return self.kind(**found), why, frozenset(unread)

    def _conversion(
        self, name: str, hint: Any, forms: Mapping[type, ObjectForm]
    ) -> "tuple[Any, _Convert | None, _Convert | None]":
        """The type in JSON, and what turns a value into it and back (None: nothing)."""
        if hint is float:
            return str, timestamp, seconds
        several = typing.get_origin(hint) is tuple
        inner: Any = _inner(hint)
        if dataclasses.is_dataclass(inner):
            codec: ObjectCodec[Any] = ObjectCodec(typing.cast("type[Any]", inner), forms)
            self.nested[name] = codec
            if not several:
                return codec.struct, codec.encode, codec.decode
            return (
                list[codec.struct],  # type: ignore[name-defined]
                lambda items: [codec.encode(item) for item in items],
                lambda items: tuple(codec.decode(item) for item in items),
            )
        return (list[inner], list, tuple) if several else (inner, None, None)


_Convert = Callable[[Any], Any]


@dataclasses.dataclass(frozen=True, slots=True)
class _Part:
    name: str
    encode: _Convert | None
    decode: _Convert | None
    default: Any
    nullable: bool


def timestamp(at: float) -> str | None:
    """RFC 3339 with microseconds, in UTC, or None for 0, which means "not yet"."""
    if not at:
        return None
    # A third faster than strftime; there are several for each node that fails.
    return dt.datetime.fromtimestamp(at, dt.UTC).isoformat(timespec="microseconds")[:-6] + "Z"


def _inner(hint: Any) -> Any:
    """T of ``tuple[T, ...]`` and of ``T | None``."""
    if typing.get_origin(hint) in {tuple, types.UnionType, typing.Union}:
        return typing.get_args(hint)[0]
    return hint


def _camel(name: str) -> str:
    first, *rest = name.split("_")
    return first + "".join(word.upper() if word in {"id", "uid"} else word.title() for word in rest)
