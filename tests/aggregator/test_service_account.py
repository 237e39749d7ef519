"""A pod's own credentials, without the library that reads kubeconfigs."""

from pathlib import Path

import pytest

from aggregator.cluster.kubernetes.service_account import REREAD, ServiceAccount
from tests.support.imported import imported_by
from tests.support.pki import Authority
from tests.support.replica import Turned

ENVIRON = {"KUBERNETES_SERVICE_HOST": "10.0.0.1", "KUBERNETES_SERVICE_PORT": "443"}

_LOADS = """
import asyncio, sys
from pathlib import Path
from aggregator.cluster.kubernetes.credentials import CredentialSources, load
environ = {"KUBERNETES_SERVICE_HOST": "fd00::1", "KUBERNETES_SERVICE_PORT": "6443"}
access = asyncio.run(load(CredentialSources("", "", environ, service_account=Path(sys.argv[1]))))
print(access.url, asyncio.run(access.authorization()))
"""


def test_in_a_pod_its_own_files_are_read(tmp_path: Path) -> None:
    Authority.create(tmp_path / "pki").certificate.rename(tmp_path / "ca.crt")
    (tmp_path / "token").write_text("secret\n")
    _, said = imported_by(_LOADS, str(tmp_path))
    assert said == ["https://[fd00::1]:6443", "Bearer", "secret"]


async def test_a_renewed_token_is_read_within_a_minute(tmp_path: Path) -> None:
    clock, token = Turned(), tmp_path / "token"
    token.write_text("old")
    account = ServiceAccount(tmp_path, ENVIRON, now=clock)
    token.write_text("new")
    assert await account.authorization() == "Bearer old"
    clock.time += REREAD
    assert await account.authorization() == "Bearer new"
    assert account.host == "https://10.0.0.1:443"


async def test_an_empty_token_is_named(tmp_path: Path) -> None:
    clock, token = Turned(), tmp_path / "token"
    token.write_text("good")
    account = ServiceAccount(tmp_path, ENVIRON, now=clock)
    token.write_text(" \n")
    clock.time += REREAD
    with pytest.raises(ValueError, match="token is empty"):
        await account.authorization()


@pytest.mark.parametrize("lacks", list(ENVIRON))
def test_a_missing_variable_is_named(tmp_path: Path, lacks: str) -> None:
    (tmp_path / "token").write_text("good")
    environ = {name: value for name, value in ENVIRON.items() if name != lacks}
    with pytest.raises(ValueError, match=lacks):
        ServiceAccount(tmp_path, environ)
