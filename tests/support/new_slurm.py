"""A slurmrestd newer than Debian's, by its published OpenAPI document."""

import base64
import copy
import hashlib
import hmac
import json
from collections.abc import Mapping
from pathlib import Path
from typing import Any

from aiohttp import web

from aggregator.cluster.slurm.hostlist import expand

DOCUMENTS = Path(__file__).parents[1] / "fixtures/slurm"


def token_of(user: str, key: bytes, *, ends: float) -> str:
    """As `scontrol token` makes it (RFC 7519, HS256)."""
    parts = ({"alg": "HS256", "typ": "JWT"}, {"exp": int(ends), "iat": 1, "sun": user})
    text = ".".join(_encoded(json.dumps(part).encode()) for part in parts)
    return f"{text}.{_encoded(hmac.new(key, text.encode(), hashlib.sha256).digest())}"


def _encoded(content: bytes) -> str:
    return base64.urlsafe_b64encode(content).rstrip(b"=").decode()


class NewSlurm:
    """A server by the published document: a request that it does not allow fails the test."""

    def __init__(self, version: str) -> None:
        self.document = json.loads((DOCUMENTS / f"openapi-{version}.json").read_text())
        self.published = version
        self.versions = [version]
        self.nodes: dict[str, dict[str, Any]] = {
            name: {
                "name": name,
                "hostname": name,
                "address": f"{name}.example.test",
                "state": ["IDLE"],
                "reason": "",
                "reason_set_by_user": "",
                "reason_changed_at": {"set": True, "infinite": False, "number": 0},
                "boot_time": {"set": True, "infinite": False, "number": 17},
                "instance_id": "",
                "partitions": ["main"],
            }
            for name in expand("n[1-6]")
        }
        self.jobs: list[dict[str, Any]] = []
        self.started = 40_000
        self.error: Mapping[str, Any] | None = None
        self.status = 200
        self.token = token_of("ann", b"k", ends=2e9)
        self.wrong: list[str] = []

    def app(self) -> web.Application:
        app = web.Application()
        app.router.add_route("*", "/{path:.*}", self.answer)
        return app

    async def answer(self, request: web.Request) -> web.Response:
        body = await request.json() if request.can_read_body else None
        token = request.headers.get("X-SLURM-USER-TOKEN", "")
        status, found = self.respond(request.method, request.path, token, body)
        if isinstance(found, str):
            return web.Response(status=status, text=found)
        return web.json_response(found, status=status)

    def respond(
        self, method: str, path: str, token: str, body: Mapping[str, Any] | None
    ) -> tuple[int, dict[str, Any] | str]:
        """The status and the content of an answer."""
        if token != self.token:
            return 401, "Authentication failure"
        if path == "/openapi/v3":
            return 200, self.described()
        version = path.split("/")[2]
        if version not in self.versions:
            return 404, "Unable to find requested URL"
        named = next((one for one in self.nodes if path == f"/slurm/{version}/node/{one}"), "")
        route = path.replace(f"/{named}", "/{node_name}") if named else path
        methods = self.document["paths"].get(route.replace(version, self.published), {})
        if method.lower() not in methods and "/node/" not in path:
            self.wrong.append(f"{method} {path}")
        if body is not None:
            self.check(body)
        answer: dict[str, Any] = {"errors": [self.error] if self.error else [], "warnings": []}
        if self.error is None and body is not None:
            self.update(self.nodes[named], body)
        elif self.error is None and path.endswith("/jobs/"):
            answer["jobs"] = self.jobs
        elif self.error is None and path.endswith("/diag/"):
            answer["statistics"] = {"req_time_start": {"set": True, "number": self.started}}
        elif self.error is None and "/node" in path:
            nodes = [self.nodes[named]] if named else list(self.nodes.values())
            if "/node/" in path and not named:  # as Slurm 24.11
                text = f"Failure to query node {path.rpartition('/')[2]}"
                answer["errors"] = [{"error": "No error", "error_number": 0, "description": text}]
            answer["nodes"] = [] if answer["errors"] else nodes
        return self.status, answer

    def described(self) -> dict[str, Any]:
        paths = self.document["paths"]
        return {
            "paths": {
                path.replace(self.published, version): copy.copy(paths[path])
                for version in self.versions
                for path in paths
            }
        }

    def check(self, body: Mapping[str, Any]) -> None:
        schemas = self.document["components"]["schemas"]
        known = schemas[f"{self.published}_update_node_msg"]["properties"]
        for key, value in body.items():
            found = known.get(key, {})
            found = schemas[found["$ref"].rpartition("/")[2]] if "$ref" in found else found
            kind = found.get("type")
            allowed = found.get("items", {}).get("enum", value)
            right = isinstance(value, list if kind == "array" else str)
            if kind is None or not right or not set(value) <= set(allowed):
                self.wrong.append(f"{key}: {value}")

    def update(self, node: dict[str, Any], body: Mapping[str, Any]) -> None:
        if "reason" in body:
            node["reason"], node["reason_set_by_user"] = body["reason"], "ann"
            node["reason_changed_at"] = {"set": True, "infinite": False, "number": 99}
        if "DRAIN" in body.get("state", ()):
            node["state"] = ["IDLE", "DRAIN"]
        if "UNDRAIN" in body.get("state", ()):
            node["state"], node["reason"] = ["IDLE"], ""
