"""Several real aggregators without Kubernetes, which share a PostgreSQL."""

import contextlib
import secrets
import signal
from collections.abc import Mapping
from contextlib import ExitStack
from pathlib import Path
from typing import Any, Self

from aggregator.demo.ports import free_port
from tests.controlplane.waiting import wait_until
from tests.support.local_aggregator import LocalAggregator
from tests.support.postgres import PostgresServer
from tests.support.text_files import text_file


class LocalReplicas:
    """``count`` replicas on loopback, in plain text; each one's command notes what it runs for.

    ``slurm``: the section of that name; they drain nodes of that Slurm, and run no command.
    """

    def __init__(
        self,
        folder: Path,
        server: PostgresServer,
        *,
        count: int = 2,
        slurm: Mapping[str, Any] | None = None,
    ) -> None:
        self._slurm = slurm
        self._folder = folder
        self.ran = folder / "ran"
        self.ran.touch()
        token = text_file(folder / "replicas.token", secrets.token_hex(32))
        url = server.new_database()
        self.replicas: dict[str, LocalAggregator] = {}
        with ExitStack() as ending:
            for number in range(count):
                name = f"replica-{number}"
                one = LocalAggregator(folder / name, self._settings(name, url, server, token))
                ending.callback(one.close)
                self.replicas[name] = one
            ending.pop_all()

    def _settings(
        self, name: str, url: str, server: PostgresServer, token: Path
    ) -> Mapping[str, Any]:
        address, page = (f"127.0.0.1:{free_port()}" for _ in range(2))
        note = f'echo "$SICKBAY_NODE {name}" >> {self.ran}'
        password = {"password_file": str(server.password_file)}
        slurm = self._slurm
        kind = {"kind": "local", "local": {"commands": {"cordon": ["sh", "-c", note]}}}
        if slurm is not None:
            kind = {"kind": "slurm", "slurm": slurm}
        return {
            "cluster": {"store": {"database": url, **password}, **kind},
            "mode": "cordon" if slurm is None else "drain",
            "listen": {"grpc": address, "web": page},
            "replicas": {"name": name, "address": address, "token_file": str(token)},
            "identity": {
                "kind": "insecure-trust-hello",
                "keys_cache": str(self._folder / name / "jwks.json"),
            },
            "history": {"database": url, **password},
        }

    def __enter__(self) -> Self:
        return self

    def __exit__(self, _kind: object, error: object, _trace: object) -> None:
        for name, replica in self.replicas.items():
            if error is not None:
                print(f"--- {name}\n{replica.log()[-3000:]}")
            with contextlib.suppress(ProcessLookupError):
                self.signal(name, signal.SIGCONT)
            replica.close()

    def signal(self, name: str, number: signal.Signals) -> None:
        self.replicas[name].process.send_signal(number)

    def is_controller(self, name: str) -> bool:
        """By its own page; False where it does not answer."""
        try:
            return self.replicas[name].metric("sickbay_controller") == 1
        except (OSError, StopIteration):
            return False

    def until_controller(self, *names: str) -> str:
        """Wait until one of these (or of all) is the controller; its name."""
        among = names or tuple(self.replicas)
        wait_until(lambda: any(map(self.is_controller, among)), what=f"a controller of {among}")
        return next(name for name in among if self.is_controller(name))

    def until_cordoned(self, name: str, *nodes: str) -> None:
        """Wait until this replica's page shows just these, each with its marks written."""

        def phases() -> set[tuple[str, str]]:
            found = self.replicas[name].ask("quarantines") or {"items": []}
            return {(one["node"], one["phase"]) for one in found["items"]}

        wait_until(lambda: phases() == {(node, "Cordoned") for node in nodes}, what=phases)

    def runs(self) -> list[str]:
        """ "NODE REPLICA" of each run of the command, oldest first."""
        return self.ran.read_text().splitlines()
