"""One replica's automatic certificates: its files, clocks and disk, and what people are told."""

import logging
import random
import ssl
from collections.abc import Callable
from pathlib import Path

import pytest
from cryptography.hazmat.primitives.serialization import Encoding

from aggregator.clock import EVEN_FOR, Clocks
from aggregator.composition.certificates import serving_names
from aggregator.config.settings import Config, ConfigError, load
from aggregator.ingest.stats import IngestStats
from aggregator.ingest.tls import CertificateFiles
from aggregator.tls.authority import BACKDATED, create_authority
from aggregator.tls.automatic import POLL_EVERY, AutomaticCertificates
from aggregator.tls.certificate import signers_of
from aggregator.tls.pair_files import PairFiles, writable_files
from aggregator.tls.rotation import Rules
from tests.support.authorities import MemoryAuthorities, MemoryFiles, trusts
from tests.support.present import present
from tests.support.text_files import text_file

DAY = 86400.0
YEAR = 365 * DAY
START = 1_800_000_000.0
RULES = Rules(lifetime=90 * DAY, authority_lifetime=730 * DAY, publish_wait=900.0)
NAMES = frozenset({"sickbay-aggregator.sickbay.svc", "127.0.0.1"})


class Time:
    """Both clocks; ``jump`` moves the wall clock alone."""

    def __init__(self) -> None:
        self.passed = self.jump = 0.0

    def clocks(self) -> Clocks:
        return Clocks(lambda: self.passed, lambda: START + self.passed + self.jump)


class Replica:
    """One replica, and its reads every half a minute."""

    def __init__(
        self,
        store: MemoryAuthorities | None = None,
        files: PairFiles | None = None,
        *,
        time: Time | None = None,
        names: frozenset[str] = NAMES,
    ) -> None:
        self.store = store or MemoryAuthorities()
        self.files = files or MemoryFiles()
        self.time = time or Time()
        self.made = AutomaticCertificates(
            self.store,
            self.files,
            names,
            rules=RULES,
            clocks=self.time.clocks(),
            rng=random.Random(1),
        )

    async def run_for(self, seconds: float, *, every: float = POLL_EVERY) -> None:
        until = self.time.passed + seconds
        while self.time.passed < until:
            self.time.passed += every
            await self.made.settle()

    @property
    def now(self) -> float:
        return START + self.time.passed

    @property
    def signer(self) -> int:
        issuer = self.made.pair.issuer_among(self.made.known)
        return issuer.number if issuer is not None else 0


async def started() -> Replica:
    replica = Replica()
    assert await replica.made.settle()
    return replica


def said(caplog: pytest.LogCaptureFixture) -> list[str]:
    return [one.message for one in caplog.records if one.levelno >= logging.WARNING]


async def test_a_certificate_covers_the_names_and_is_signed_by_the_authority() -> None:
    replica = await started()
    pair, [authority] = replica.made.pair, replica.made.known
    assert pair.names == NAMES
    assert signers_of([pair.certificate], [authority.certificate]) == [authority.certificate]
    assert pair.validity.until == replica.now + RULES.lifetime
    assert authority.until == replica.now + RULES.authority_lifetime
    assert pair.validity.since == replica.now - BACKDATED
    assert pair.validity.until - pair.validity.since < 825 * DAY


async def test_it_is_renewed_when_a_third_is_left_and_not_before() -> None:
    replica = await started()
    first = replica.made.pair
    await replica.run_for(59 * DAY, every=DAY)
    assert replica.made.pair is first
    await replica.run_for(2 * DAY, every=DAY)
    assert replica.made.pair is not first
    assert replica.signer == 1


async def test_without_the_api_server_the_authority_in_memory_renews() -> None:
    replica = await started()
    replica.store.away = True
    await replica.run_for(300 * DAY, every=DAY)
    assert replica.made.pair.validity.until > replica.now
    assert replica.signer == 1
    assert replica.made.trouble == ""


async def test_after_a_restart_the_certificate_on_disk_is_served_until_it_ends() -> None:
    before = await started()
    before.store.away = True
    replica = Replica(before.store, before.files, time=before.time)
    assert replica.made.pair is before.made.pair
    assert replica.made.trouble == ""
    await replica.run_for(91 * DAY, every=DAY)
    assert replica.made.pair.validity.until > replica.now
    assert "the API server is out of reach" in replica.made.trouble
    replica.store.away = False
    await replica.made.settle()
    assert replica.made.trouble == ""
    assert replica.signer == 1


@pytest.mark.parametrize("names", [NAMES | {"another.test"}, frozenset({"127.0.0.1"})])
async def test_other_names_make_another_certificate(names: frozenset[str]) -> None:
    before = await started()
    replica = Replica(before.store, before.files, time=before.time, names=names)
    assert replica.made.trouble.startswith("there is no certificate that agents trust")
    await replica.made.settle()
    assert replica.made.pair.names == names
    assert replica.made.trouble == ""


async def test_an_authority_that_expired_while_no_aggregator_ran_is_replaced_at_once(
    caplog: pytest.LogCaptureFixture,
) -> None:
    before = await started()
    caplog.set_level(logging.INFO)
    before.time.passed += 800 * DAY
    replica = Replica(before.store, before.files, time=before.time)
    assert replica.made.trouble
    await replica.made.settle()
    assert replica.signer == 2
    assert trusts(before.store.trusted, replica.made.pair)
    reasons = [str(one.__dict__.get("reason", "")) for one in caplog.records]
    assert any("every authority has expired" in reason for reason in reasons)


async def test_while_the_clock_is_doubted_no_certificate_ends_by_it() -> None:
    replica = await started()
    served = replica.made.pair
    replica.time.jump = 10 * YEAR
    await replica.run_for(EVEN_FOR - 60)
    assert replica.made.pair is served
    replica.time.jump = 0.0
    await replica.run_for(EVEN_FOR)
    assert replica.made.pair is served
    assert len(replica.store.made) == 1


async def test_a_clock_that_was_ahead_for_long_leaves_certificates_that_others_accept() -> None:
    replica = await started()
    replica.time.jump = 300 * DAY
    await replica.run_for(EVEN_FOR + 60)
    ahead = replica.made.pair
    assert ahead.validity.until > START + 300 * DAY
    assert ahead.validity.trouble(replica.now) == "", "a node whose clock is right accepts it"
    replica.time.jump = 0.0
    await replica.run_for(EVEN_FOR + 60)
    assert replica.made.pair is ahead
    assert len(replica.store.made) == 1


async def test_replicas_whose_clocks_are_years_apart_do_not_outdo_each_other() -> None:
    store, late = MemoryAuthorities(), Time()
    late.jump = 20 * YEAR
    replicas = [Replica(store), Replica(store, time=late)]
    for _ in range(200):
        for replica in replicas:
            await replica.run_for(POLL_EVERY)
    assert len(store.made) == 2
    for replica in replicas:
        assert replica.made.trouble == ""
        assert trusts(store.trusted, replica.made.pair)
    assert replicas[0].made.pair.validity.trouble(replicas[0].now) == ""


async def test_a_disk_that_refuses_is_said_once_and_tried_again(
    caplog: pytest.LogCaptureFixture, monkeypatch: pytest.MonkeyPatch
) -> None:
    replica = await started()
    first = replica.made.pair

    def full(*_: object) -> None:
        raise OSError(28, "No space left on device")

    with monkeypatch.context() as patched:
        patched.setattr(replica.files, "write_pair", full)
        await replica.run_for(65 * DAY, every=DAY)
    assert replica.made.pair is first
    assert said(caplog).count("the serving certificate can't be written") == 1
    await replica.made.settle()
    assert replica.made.pair is not first


async def test_a_changed_bundle_is_said_and_the_aggregators_own_change_is_not(
    caplog: pytest.LogCaptureFixture,
) -> None:
    replica = await started()
    await replica.run_for(RULES.publish_wait + 60)
    [authority] = replica.made.known
    replica.store.put_secret(authority, rotate=True)
    await replica.made.settle()
    assert len(replica.made.known) == 2
    assert said(caplog) == []
    trusted = replica.store.trusted
    der = bytearray(authority.certificate.public_bytes(Encoding.DER))
    der[der.index(b"\xa0\x03\x02\x01\x02") + 4] = 9  # no version that X.509 has
    for text in (b"", ssl.DER_cert_to_PEM_cert(bytes(der)).encode()):
        caplog.clear()
        replica.store.put_bundle(text)
        await replica.made.settle()
        assert len(said(caplog)) == 1
        assert "changed or deleted by others" in said(caplog)[0]
        assert replica.store.trusted == trusted


async def test_a_person_who_asks_twice_gets_one_authority_at_a_time() -> None:
    replica = await started()
    for _ in range(3):
        replica.store.put_secret(*replica.made.known, rotate=True)
        await replica.made.settle()
    await replica.run_for(RULES.publish_wait - 60)
    assert len(replica.store.made) == 1, "agents do not know the first one for long enough yet"
    await replica.run_for(120)
    assert len(replica.store.made) == 2


async def test_a_certificate_that_ends_with_its_authority_is_not_renewed_over_and_over(
    caplog: pytest.LogCaptureFixture,
) -> None:
    replica = await started()
    replica.store.away = True
    await replica.run_for(710 * DAY, every=DAY)
    last = replica.made.pair
    assert last.validity.until == replica.made.known[0].until
    await replica.run_for(19 * DAY, every=DAY)
    assert replica.made.pair is last
    await replica.run_for(2 * DAY, every=DAY)
    assert replica.made.pair is not last, "an expired one is not served"
    assert "the API server is out of reach" in replica.made.trouble
    replica.store.away = False
    await replica.made.settle()
    assert replica.signer == 2


async def test_a_certificate_of_the_future_is_replaced_when_the_clock_is_right_again() -> None:
    time = Time()
    time.jump = 3 * YEAR
    replica = Replica(time=time)
    await replica.made.settle()
    assert replica.made.pair.validity.trouble(replica.now)
    time.jump = 0.0
    await replica.run_for(EVEN_FOR + 60)
    assert replica.made.pair.validity.trouble(replica.now) == ""
    assert len(replica.store.made) == 1


async def test_a_renewal_after_a_restart_does_not_go_back_to_the_authority_before() -> None:
    before = await started()
    await before.run_for(RULES.publish_wait + 60)
    before.store.put_secret(*before.made.known, rotate=True)
    await before.run_for(RULES.publish_wait + 60)
    assert before.signer == 2
    before.time.passed += 61 * DAY
    replica = Replica(before.store, before.files, time=before.time)
    await replica.made.settle()
    assert replica.made.pair is not before.made.pair
    assert replica.signer == 2


async def test_an_object_that_can_not_be_written_keeps_no_replica_from_its_certificate(
    caplog: pytest.LogCaptureFixture,
) -> None:
    before = await started()
    before.store.put_bundle(before.store.trusted + b"# by a person\n")
    before.store.put_secret(*before.made.known)
    before.store.refuses_writes = True
    before.time.passed += 500 * DAY  # the next authority is due
    replica = Replica(before.store, time=before.time)
    assert not await replica.made.settle()
    assert not await replica.made.settle()
    assert replica.made.trouble == ""
    assert replica.signer == 1
    assert replica.files.read_bundle() == before.files.read_bundle()
    assert said(caplog) == ["the certificate authority can't be read or written"]
    replica.store.refuses_writes = False
    assert await replica.made.settle()
    assert len(replica.made.known) == 2


async def test_time_in_which_agents_could_not_read_it_does_not_publish_an_authority() -> None:
    replica = await started()
    await replica.run_for(RULES.publish_wait + 60)
    replica.store.put_secret(*replica.made.known, rotate=True)
    await replica.made.settle()
    replica.store.away = True
    await replica.run_for(2 * RULES.publish_wait)
    replica.store.away = False
    await replica.run_for(RULES.publish_wait / 2)
    assert len(replica.made.known) == 2
    assert replica.signer == 1
    await replica.run_for(RULES.publish_wait / 2)
    assert replica.signer == 2


async def test_an_authority_that_a_person_removed_signs_no_more() -> None:
    replica = await started()
    [first] = replica.made.known
    second = create_authority(2, wall=replica.now, lifetime=RULES.authority_lifetime)
    replica.store.put_secret(second)
    await replica.made.settle()
    assert replica.signer == 2
    assert first.certificate_pem not in replica.store.trusted


# -- files -----------------------------------------------------------------------------


async def test_the_files_on_disk_are_this_users_alone_and_read_again(tmp_path: Path) -> None:
    files = writable_files(tmp_path / "new" / "tls")
    replica = Replica(files=files)
    await replica.made.settle()
    for file in (files.certificate, files.key, files.bundle):
        assert file.stat().st_mode & 0o777 == 0o600
    assert files.folder.stat().st_mode & 0o777 == 0o700
    again = present(PairFiles(files.folder).read_pair())
    assert again.certificate == replica.made.pair.certificate
    assert sorted(one.name for one in files.folder.iterdir()) == ["ca.crt", "tls.crt", "tls.key"]


def _another_key() -> bytes:
    return create_authority(1, wall=START, lifetime=DAY).key_pem


@pytest.mark.parametrize(
    "spoil",
    [
        lambda files: files.key.unlink(),
        lambda files: files.key.write_bytes(_another_key()),
        lambda files: files.certificate.write_text("x"),
        lambda files: files.certificate.write_bytes(b""),
    ],
)
async def test_half_a_pair_on_disk_is_none(
    tmp_path: Path, spoil: Callable[[PairFiles], object]
) -> None:
    files = writable_files(tmp_path)
    replica = Replica(files=files)
    await replica.made.settle()
    spoil(files)
    assert files.read_pair() is None
    assert Replica(replica.store, files, time=replica.time).made.trouble


def test_a_folder_that_is_a_file_is_replaced_by_a_temporary_one(
    tmp_path: Path, caplog: pytest.LogCaptureFixture
) -> None:
    (tmp_path / "tls").write_text("")
    files = writable_files(tmp_path / "tls")
    assert files.folder.is_dir()
    assert tmp_path not in files.folder.parents
    assert "certificates.folder" in said(caplog)[0]
    files.folder.rmdir()


async def test_the_listener_says_when_its_certificates_end(tmp_path: Path) -> None:
    files = writable_files(tmp_path)
    replica = Replica(files=files)
    await replica.made.settle()
    served = CertificateFiles(
        files.certificate,
        files.key,
        files.bundle,
        verified_by=files.bundle,
        stats=IngestStats(),
        now=lambda: 0.0,
        wall=lambda: replica.now,
    )
    served.credentials(require_client_certificate=False)
    [authority] = replica.made.known
    assert served.expiries() == {
        "serving": replica.made.pair.validity.until,
        "authority": authority.until,
        "client_authority": authority.until,
    }
    assert served.trouble() == ""


# -- the configuration -----------------------------------------------------------------


def configured(folder: Path, text: str) -> Config:
    file = text_file(folder / "aggregator.yaml", text)
    (folder / "token").write_text("x")
    for name in ("cert", "key", "ca"):
        (folder / name).write_text("x")
    return load(file)


LOCAL = """cluster: {kind: local}
identity: {kind: insecure-trust-hello}
listen: {grpc: '127.0.0.1:1', web: 'unix:/x'}
"""
TLS = "tls: {cert_file: cert, key_file: key}"


@pytest.mark.parametrize(
    ("text", "makes"),
    [
        ("", True),
        ("listen: {grpc: '127.0.0.1:1', web: 'localhost:2'}", False),
        ("listen: {grpc: '127.0.0.1:1', web: '10.1.2.3:2'}", True),
        (f"listen: {{{TLS}}}", False),
        ("listen: {insecure_plaintext: true}", False),
        ("certificates: {automatic: true}\nlisten: {grpc: '127.0.0.1:1', web: '[::1]:2'}", True),
        (f"certificates: {{automatic: false}}\nlisten: {{{TLS}}}", False),
    ],
)
def test_certificates_are_made_where_a_listener_is_reachable_and_none_is_given(
    tmp_path: Path, text: str, *, makes: bool
) -> None:
    assert configured(tmp_path, text).makes_certificates is makes


@pytest.mark.parametrize(
    ("text", "problem"),
    [
        (
            f"certificates: {{automatic: true}}\nlisten: {{{TLS}}}",
            "certificates.automatic: given next to listen.tls",
        ),
        (
            f"{LOCAL}certificates: {{automatic: true}}\n",
            "certificates.automatic: the authority is kept in Kubernetes, and ",
        ),
        (
            "replicas: {domain: a.test, token_file: token, ca_file: ca}",
            "replicas.ca_file: given, and the aggregator makes its certificates itself",
        ),
        (
            "certificates: {authority_lifetime: '30d'}",
            'lifetime: 90d is too long for an authority of 30d; expected at most "10d"',
        ),
        (
            "certificates: {publish_wait: '200d'}",
            "certificates.publish_wait: 200d is too long for an authority of 730d; ",
        ),
        ("certificates: {automatic: maybe}", "certificates.automatic: "),
    ],
)
def test_settings_that_contradict_each_other_are_refused(
    tmp_path: Path, text: str, problem: str
) -> None:
    with pytest.raises(ConfigError) as refused:
        configured(tmp_path, text)
    assert problem in str(refused.value)


def test_the_names_are_those_of_the_services_the_replica_and_the_configuration(
    tmp_path: Path,
) -> None:
    config = configured(
        tmp_path,
        "cluster: {namespace: gpu}\nreplicas: {domain: sickbay-aggregator, token_file: token}\n"
        "certificates: {names: [sickbay.example.org, 10.1.2.3]}\n",
    )
    service = "sickbay-aggregator.gpu.svc"
    assert serving_names(config, "sickbay-aggregator-1") == {
        *(service, f"{service}.cluster.local"),
        *(f"sickbay-aggregator-1.{service}", f"sickbay-aggregator-1.{service}.cluster.local"),
        *("sickbay-page.gpu.svc", "sickbay-page.gpu.svc.cluster.local"),
        *("localhost", "127.0.0.1", "::1", "sickbay.example.org", "10.1.2.3"),
    }
    alone = configured(tmp_path, "cluster: {namespace: gpu}")
    assert service in serving_names(alone, "any")
    elsewhere = configured(
        tmp_path,
        "replicas: {address: 'a.test:1', page: 'https://page.test:2', token_file: token}",
    )
    assert {"a.test", "page.test"} <= serving_names(elsewhere, "any")
