"""The OpenAPI 3.1 document, made from the endpoints and models that serve the answers."""

import re
from collections.abc import Mapping
from typing import Any

import msgspec

from aggregator.web import models
from aggregator.web.action_endpoints import ACCESS, ACCESS_PARAMS
from aggregator.web.api import ENDPOINTS, Endpoint
from aggregator.web.person_actions import (
    ACTIONS,
    ActionAnswer,
    ActionRequest,
    PageReader,
    PersonAction,
)
from aggregator.web.query_params import Param
from aggregator.web.sse import STREAM_PARAMS

_REF = "#/components/schemas/{name}"
_TEXT = {"type": "string"}
#: Events of the stream by name.
STREAM_EVENTS: dict[str, type[models.Shape]] = {
    "hello": models.Hello,
    "fleet": models.Tick,
    "transition": models.Event,
    "missed": models.Missed,
    "beat": models.Beat,
    "changed": models.Beat,
}


def document(version: str) -> dict[str, Any]:
    """The document, as plain values. The page serves it with its own version."""
    named = [endpoint.shape for endpoint in ENDPOINTS]
    of_actions = (ActionRequest, ActionAnswer, PageReader)
    kinds = [*named, *STREAM_EVENTS.values(), models.Problem, *of_actions]
    _, components = msgspec.json.schema_components(kinds, ref_template=_REF)
    paths = {endpoint.path: {"get": _operation(endpoint)} for endpoint in ENDPOINTS}
    paths[ACCESS] = {"get": _reader()}
    paths |= {action.path: {"post": _action(action)} for action in ACTIONS.values()}
    paths["/api/v1/stream"] = {"get": _stream()}
    paths["/api/v1/openapi.json"] = {
        "get": {
            "operationId": "openapi",
            "summary": "This document.",
            "responses": {"200": _json("The document.", {"type": "object"})},
        }
    }
    return {
        "openapi": "3.1.0",
        "info": {
            "title": "sickbay",
            "version": version,
            "description": "Health and quarantine of a GPU cluster's nodes.",
            "license": {"name": "Apache-2.0", "identifier": "Apache-2.0"},
        },
        "paths": paths,
        "components": {"schemas": {name: _tidy(one) for name, one in components.items()}},
    }


def _operation(endpoint: Endpoint) -> dict[str, Any]:
    of_node = [_parameter("name", "path", "The node's name.")] * ("{name}" in endpoint.path)
    return {
        "operationId": _ident(endpoint.path),
        "summary": endpoint.summary,
        "parameters": [*of_node, *map(_param, endpoint.params)],
        "responses": {
            "200": _json(endpoint.summary, _ref(endpoint.shape)),
            "400": _problem("query"),
            **({"404": _problem("name")} if of_node else {}),
        },
    }


def _reader() -> dict[str, Any]:
    return {
        "operationId": "access",
        "summary": "The reader, and the actions that they may request.",
        "parameters": [*map(_param, ACCESS_PARAMS)],
        "responses": {
            "200": _json("The reader.", _ref(PageReader)),
            "400": _problem("query"),
        },
    }


def _action(action: PersonAction) -> dict[str, Any]:
    answers = {
        "400": "body",
        "401": "identity is missing or invalid, and the request",
        "403": "right is missing, or actions are off, and the request",
        "409": "state of the node or cluster is against it, and the request",
        "415": "body is not JSON, and the request",
        "503": "API server is away, and the request",
    }
    if action.name == "release":
        answers["428"] = "order of a repair is open and `cancel_order` is false, and the request"
    return {
        "operationId": action.name,
        "summary": action.summary,
        "parameters": [_parameter("name", "path", "The node's name.")] * action.of_node,
        "requestBody": {"required": True, **_content(_ref(ActionRequest))},
        "responses": {
            "200": _json("It is requested.", _ref(ActionAnswer)),
            **{code: _problem(what) for code, what in answers.items()},
        },
    }


def _stream() -> dict[str, Any]:
    events = "; ".join(f"`{name}`: {shape.__name__}" for name, shape in STREAM_EVENTS.items())
    last = "The id of the last event that you had; later events are sent first."
    shapes = {name: _ref(shape) for name, shape in STREAM_EVENTS.items()}
    return {
        "operationId": "stream",
        "summary": "Transitions as they happen (server-sent events).",
        "description": f"The data of each event is JSON. Events and their shapes: {events}.",
        "parameters": [*map(_param, STREAM_PARAMS), _parameter("Last-Event-ID", "header", last)],
        "responses": {
            "200": {
                "description": "Events, for as long as you listen.",
                **_content({"type": "string", "x-events": shapes}, "text/event-stream"),
            },
            "400": _problem("query"),
            "503": _problem("moment: too many streams are open. The"),
        },
    }


def _param(param: Param) -> dict[str, Any]:
    return _parameter(param.name, "query", param.text, param.schema())


def _parameter(
    name: str, where: str, text: str, schema: Mapping[str, Any] = _TEXT
) -> dict[str, Any]:
    required = {"required": True} if where == "path" else {}
    return {"name": name, "in": where, **required, "description": text, "schema": schema}


def _ref(shape: type[msgspec.Struct]) -> dict[str, str]:
    return {"$ref": _REF.format(name=shape.__name__)}


def _json(text: str, schema: dict[str, Any]) -> dict[str, Any]:
    return {"description": text, **_content(schema)}


def _content(schema: dict[str, Any], kind: str = "application/json") -> dict[str, Any]:
    return {"content": {kind: {"schema": schema}}}


def _problem(what: str) -> dict[str, Any]:
    return _json(f"The {what} can't be answered; gives the reason.", _ref(models.Problem))


def _ident(path: str) -> str:
    words: list[str] = re.findall(r"[a-z]+", path.removeprefix("/api/v1/"))
    return words[0] + "".join(word.capitalize() for word in words[1:])


def _tidy(schema: Any) -> Any:
    """Docstrings as one line each, and models closed, because an answer has no undocumented
    field.
    """
    if isinstance(schema, dict):
        found = {key: _tidy(value) for key, value in schema.items()}
        if isinstance(found.get("description"), str):
            found["description"] = " ".join(found["description"].split())
        if "properties" in found:
            found["additionalProperties"] = False
        return found
    return [_tidy(one) for one in schema] if isinstance(schema, list) else schema
