"""A TCP relay that can drop what its open connections carry, as a load balancer that fails over."""

import asyncio
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager, suppress
from pathlib import Path

import yaml

from tests.support.yaml_documents import read_yaml


class FrozenRelay:
    """Passes bytes on. After `freeze` the connections of then stay open and carry none."""

    def __init__(self, host: str, port: int) -> None:
        self._there = host, port
        self._frozen: set[asyncio.Task[None]] = set()
        self._pipes: set[asyncio.Task[None]] = set()
        self._writers: list[asyncio.StreamWriter] = []

    def freeze(self) -> int:
        """Nothing is passed on any more, in either direction. Returns the number of connections."""
        frozen = len(self._pipes) // 2
        for task in tuple(self._pipes):
            task.cancel()
        return frozen

    async def serve(self, reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        """One connection. It is never closed here, as its peer must not learn of its end."""
        up, down = await asyncio.open_connection(*self._there)
        self._writers += [writer, down]
        pipes = [
            asyncio.create_task(self._pass_on(*ends)) for ends in ((reader, down), (up, writer))
        ]
        self._pipes |= {*pipes}
        await asyncio.gather(*pipes, return_exceptions=True)
        self._pipes -= {*pipes}

    @staticmethod
    async def _pass_on(reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        with suppress(OSError):
            while data := await reader.read(65536):
                writer.write(data)
                await writer.drain()
            writer.close()

    def close(self) -> None:
        """End of the test."""
        self.freeze()
        for writer in self._writers:
            writer.transport.abort()


@asynccontextmanager
async def frozen_relay(direct: Path, folder: Path) -> AsyncIterator[tuple[FrozenRelay, Path]]:
    """A relay to the API server of a kubeconfig, and the kubeconfig by it."""
    config = read_yaml(await asyncio.to_thread(direct.read_text))
    host, _, port = config["clusters"][0]["cluster"]["server"].rpartition("/")[2].rpartition(":")
    relay = FrozenRelay(host, int(port))
    server = await asyncio.start_server(relay.serve, "127.0.0.1", 0)
    ours = server.sockets[0].getsockname()[1]
    config["clusters"][0]["cluster"]["server"] = f"https://127.0.0.1:{ours}"
    by_relay = folder / "by-relay.yaml"
    await asyncio.to_thread(by_relay.write_text, yaml.safe_dump(config))
    try:
        yield relay, by_relay
    finally:
        relay.close()
        server.close()
