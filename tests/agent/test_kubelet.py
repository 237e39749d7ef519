"""The kubelet's health endpoint: a loopback server that is healthy, unhealthy, slow and gone."""

import asyncio
import socket
from pathlib import Path

import pytest

from nodeagent.checks import kubelet
from nodeagent.model import Status
from tests.agent.http_server import NOT_FOUND, Request, response, serving
from tests.agent.machines import built, made_up, observations, options, sources, verdicts

OK = (Status.OK, "")


def check_of(
    root: Path, url: str, *, files: bool = True, expected: bool = False
) -> kubelet.KubeletCheck:
    machine = made_up(root)
    if files:
        (root / "var/lib/kubelet").mkdir(parents=True, exist_ok=True)
    settings = options(kubelet.SPEC, url=f"{url}/healthz", expected=expected)
    check: kubelet.KubeletCheck = built(kubelet.SPEC, sources(machine), settings)
    return check


async def test_a_kubelet_that_is_well(tmp_path: Path) -> None:
    def healthz(asked: Request) -> bytes:
        return response("ok") if asked.path == "/healthz" else NOT_FOUND

    async with serving(healthz) as url:
        assert verdicts(await check_of(tmp_path, url).run_check()) == {"": OK}


async def test_a_kubelet_that_stops_is_failed(tmp_path: Path) -> None:
    async with serving(lambda _: response("ok")) as url:
        check = check_of(tmp_path, url, files=False)
        assert verdicts(await check.run_check()) == {"": OK}
    assert verdicts(await check.run_check()) == {"": (Status.FAILED, "refused")}


async def test_a_kubelet_that_hangs_is_failed(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    answers = [response("ok"), b""]
    async with serving(lambda _: answers.pop(0)) as url:
        check = check_of(tmp_path, url)
        assert verdicts(await check.run_check()) == {"": OK}
        monkeypatch.setattr(kubelet, "_DEADLINE", 0.2)
        assert verdicts(await check.run_check()) == {"": (Status.FAILED, "timeout")}


@pytest.mark.parametrize("url", ["https://127.0.0.1:10250/healthz", "localhost:10248", "http://n/"])
def test_bad_urls_are_refused_when_configured(url: str) -> None:
    with pytest.raises(ValueError):
        options(kubelet.SPEC, url=url)


async def test_a_kubelet_that_was_down_before_the_agent_started_left_its_socket(
    tmp_path: Path,
) -> None:
    check = check_of(tmp_path, "http://127.0.0.1:1")
    assert verdicts(await check.run_check()) == {"": (Status.UNKNOWN, "never-answered")}
    path = tmp_path / kubelet._SOCKET.lstrip("/")
    path.parent.mkdir(parents=True)
    with socket.socket(socket.AF_UNIX) as left:
        left.bind(str(path))
    found = observations(await check.run_check())[""]
    assert (found.status, found.reason) == (Status.FAILED, "refused")
    assert kubelet._SOCKET in found.message


async def test_a_kubelet_whose_health_port_is_off_is_unknown(tmp_path: Path) -> None:
    path = tmp_path / kubelet._SOCKET.lstrip("/")
    path.parent.mkdir(parents=True)
    settings = bytes.fromhex("000000040000000000")  # an empty SETTINGS frame: HTTP/2's greeting

    async def greets(_reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        writer.write(settings)
        await writer.drain()
        writer.close()

    async with await asyncio.start_unix_server(greets, path):
        check = check_of(tmp_path, "http://127.0.0.1:1")
        assert verdicts(await check.run_check()) == {"": (Status.UNKNOWN, "never-answered")}
