"""``sickbay-agent simulate`` as a process: many nodes, and faults injected as they are wanted."""

import json
import signal
from collections.abc import Callable, Sequence
from pathlib import Path
from typing import IO, Any, Self

from tests.controlplane.waiting import wait_until
from tests.support.agent_programs import SIMULATOR
from tests.support.fork_server import start_program


class Simulator:
    """A running simulation. ``guard`` is told its pid: another process may have to end it.

    ``before`` is a command line that runs ours (`tests.support.hosts.with_hosts`).
    """

    def __init__(
        self,
        arguments: Sequence[str | Path],
        *,
        log: Path,
        guard: Callable[[int], object] = id,
        before: Sequence[str] = (),
    ) -> None:
        self.log_path = log
        with log.open("ab") as file:
            self.process = start_program(
                SIMULATOR,
                ["--stdin", *arguments],
                output=file,
                piped=True,
                new_session=True,
                before=before,
            )
        guard(self.process.pid)

    def __enter__(self) -> Self:
        return self

    def __exit__(self, *_: object) -> None:
        self.close()

    def inject(self, **event: Any) -> None:
        """One event, as docs/simulate.md has it; its ``at`` counts from now."""
        self._pipe.write(json.dumps(event).encode() + b"\n")
        self._pipe.flush()

    def said(self, message: str) -> list[dict[str, Any]]:
        """Every log line with this message, oldest first."""
        lines = [json.loads(line) for line in self.log().splitlines() if line.startswith("{")]
        return [line for line in lines if line["message"].startswith(message)]

    @property
    def streaming(self) -> int:
        """How many nodes had a stream when it was last said."""
        told = self.said("nodes attached")
        return int(told[-1]["streaming"]) if told else 0

    @property
    def at(self) -> dict[str, int]:
        """How many nodes had a stream at which address when it was last said."""
        told = self.said("nodes attached")
        return dict(told[-1]["at"]) if told else {}

    def until_streaming(self, count: int, *, timeout_s: float = 30) -> Self:
        def attached() -> bool:
            assert self.process.poll() is None, self.log()
            return self.streaming == count

        wait_until(
            attached, what=f"{count} nodes attached: {self.log()[-500:]}", timeout_s=timeout_s
        )
        return self

    def stop(self) -> int:
        """End it in order; its exit code."""
        self.process.send_signal(signal.SIGTERM)
        return self.process.wait(300)

    def close(self) -> None:
        self._pipe.close()
        if self.process.poll() is None:
            self.process.kill()
        self.process.wait()

    def log(self) -> str:
        return self.log_path.read_text() if self.log_path.exists() else ""

    @property
    def _pipe(self) -> IO[bytes]:
        assert self.process.stdin is not None
        return self.process.stdin
