"""The listener's certificate files: faults that make them unusable, and when they are reread."""

import datetime as dt
import os
import ssl
import time
from collections.abc import Callable
from pathlib import Path

import pytest

from aggregator.ingest.stats import IngestStats
from aggregator.ingest.tls import POLL_EVERY, CertificateFiles, TlsError
from tests.support.pki import Authority, encrypted
from tests.support.present import present

EXPIRED = dt.timedelta(minutes=-1)
DAY = 86_400.0


class Served:
    """A pair of files below a folder, looked at by a clock that the test turns."""

    def __init__(self, folder: Path, *, by: bool = False) -> None:
        self.authority = Authority.create(folder)
        self.pair = self.authority.server("server", ["localhost"])
        self.now, self.ahead = 1000.0, 0.0
        self.stats = IngestStats()
        self.verified_by = folder / "replicas.crt" if by else None
        self.clients = folder / "clients.crt"
        self.clients.write_bytes(self.authority.certificate.read_bytes())
        self.files = CertificateFiles(
            self.pair.certificate,
            self.pair.key,
            self.clients,
            verified_by=self.verified_by,
            stats=self.stats,
            now=lambda: self.now,
            wall=lambda: time.time() + self.ahead,
        )

    def renew(self, name: str, **how: dt.timedelta) -> None:
        new = self.authority.server(name, ["localhost"], **how)
        new.key.replace(self.pair.key)
        new.certificate.replace(self.pair.certificate)

    def looked(self) -> bool:
        """Whether a handshake now is given another certificate."""
        return self.files._renewed() is not None


@pytest.fixture
def served(tmp_path: Path) -> Served:
    return Served(tmp_path)


def another_key(served: Served) -> None:
    other = served.authority.server("other", ["localhost"])
    other.key.replace(served.pair.key)


def locked_key(served: Served) -> None:
    served.pair.key.write_bytes(encrypted(served.pair.key))


def is_folder(file: Path) -> None:
    """It is there, and can't be read."""
    file.unlink()
    file.mkdir()


def damaged(file: Path, old: bytes, new: bytes) -> None:
    """With other bytes in the certificate, which is still in PEM."""
    content = ssl.PEM_cert_to_DER_cert(file.read_text())
    assert old in content
    file.write_text(ssl.DER_cert_to_PEM_cert(content.replace(old, new, 1)))


VERSION = b"\xa0\x03\x02\x01\x02"
POINT = b"\x03\x42\x00\x04"


@pytest.mark.parametrize(
    ("spoil", "text"),
    [
        (
            lambda one: damaged(one.clients, VERSION, VERSION[:-1] + b"\x6e"),
            "clients.crt is no certificate in PEM: 110 is not a valid X509 version",
        ),
        (
            lambda one: damaged(one.pair.certificate, POINT, POINT[:-1] + b"\x05"),
            "server.crt is no certificate in PEM",
        ),
        (
            lambda one: one.clients.write_bytes(b"\xff" + one.clients.read_bytes()),
            "OpenSSL takes one of .*clients.crt for none in PEM",
        ),
        (lambda one: is_folder(one.pair.certificate), "server.crt can't be read: Is a directory"),
        (lambda one: is_folder(one.clients), "clients.crt can't be read: Is a directory"),
        (lambda one: one.pair.certificate.unlink(), "server.crt can't be read: No such file"),
        (lambda one: one.pair.key.unlink(), "server.key can't be read: No such file"),
        (lambda one: one.clients.unlink(), "clients.crt can't be read: No such file"),
        (lambda one: one.pair.certificate.write_text("x"), "server.crt is no certificate in PEM"),
        (lambda one: one.pair.key.write_text("x"), "server.key is no private key in PEM"),
        (locked_key, "server.key is no private key in PEM"),
        (lambda one: one.clients.write_text("x"), "clients.crt is no certificate in PEM"),
        (another_key, "server.key is not the key of .*server.crt"),
    ],
)
def test_files_that_cant_be_used_are_named_with_what_is_wrong(
    served: Served, spoil: Callable[[Served], None], text: str
) -> None:
    served.files.check()
    spoil(served)
    with pytest.raises(TlsError, match=text) as refused:
        served.files.check()
    assert "http" not in str(refused.value), "the library's first sentence alone"
    with pytest.raises(TlsError):
        served.files.credentials(require_client_certificate=False)


def test_a_renewed_pair_is_given_once_and_looked_for_once_a_second(served: Served) -> None:
    served.files.credentials(require_client_certificate=True)
    assert not served.looked()
    served.now += POLL_EVERY
    served.renew("renewed")
    assert served.looked()
    assert not served.looked(), "it was given"
    served.renew("again")
    served.now += POLL_EVERY - 0.01
    assert not served.looked(), "not yet"
    served.now += 0.01
    assert served.looked()
    assert served.stats.certificate_troubles == 0


@pytest.mark.parametrize("part", ["size", "inode", "time"])
def test_whatever_changes_of_a_file_is_a_change(served: Served, part: str) -> None:
    served.files.credentials(require_client_certificate=False)
    file, before = served.clients, served.clients.stat()
    if part == "size":
        file.write_bytes(file.read_bytes() + b"\n")
        os.utime(file, ns=(before.st_atime_ns, before.st_mtime_ns))
    elif part == "inode":
        copy = file.with_name("copy")
        copy.write_bytes(file.read_bytes())
        os.utime(copy, ns=(before.st_atime_ns, before.st_mtime_ns))
        copy.replace(file)
    else:
        os.utime(file, ns=(before.st_atime_ns, before.st_mtime_ns + 1))
    served.now += POLL_EVERY
    assert served.looked()


def test_a_half_written_pair_is_counted_once_and_the_old_one_serves_on(served: Served) -> None:
    served.files.credentials(require_client_certificate=False)
    whole = served.pair.key.read_bytes()
    another_key(served)
    for _ in range(3):
        served.now += POLL_EVERY
        assert not served.looked()
    assert served.stats.certificate_troubles == 1
    served.pair.key.write_text("x")
    served.now += POLL_EVERY
    assert not served.looked()
    assert served.stats.certificate_troubles == 2, "another trouble"
    served.pair.key.write_bytes(whole)
    served.now += POLL_EVERY
    assert served.looked()
    another_key(served)
    served.now += POLL_EVERY
    assert not served.looked()
    assert served.stats.certificate_troubles == 3, "the same as before, after it was well"


def test_an_expired_pair_takes_the_place_of_none_that_is_good(served: Served) -> None:
    served.files.credentials(require_client_certificate=False)
    served.renew("stale", lasts=EXPIRED)
    served.now += POLL_EVERY
    assert not served.looked()
    assert served.stats.certificate_troubles == 1
    assert served.files.trouble() == "", "the one that is served is good"
    served.ahead = 10_000 * DAY  # both have expired: the later files are no worse
    served.now += POLL_EVERY
    assert "server.crt expired at " in served.files.trouble()
    served.renew("stale too", lasts=EXPIRED)
    served.now += POLL_EVERY
    assert served.looked()


def test_what_is_served_before_it_was_loaded_has_no_trouble(served: Served) -> None:
    assert served.files.trouble() == ""


def test_authorities_that_do_not_cover_what_is_served_are_said_until_they_do(
    tmp_path: Path,
) -> None:
    served = Served(tmp_path, by=True)
    served.files.credentials(require_client_certificate=False)
    by = present(served.verified_by)
    assert served.files.trouble() == "", "who reads that file says that it is not there"
    stranger = Authority.create(tmp_path / "stranger")
    by.write_bytes(stranger.certificate.read_bytes())
    for _ in range(2):
        assert served.files.trouble().endswith(f"is signed by none of replicas.ca_file {by}")
        served.now += POLL_EVERY
    by.write_bytes(b"x")
    assert served.files.trouble() == ""
    both = stranger.certificate.read_bytes() + served.authority.certificate.read_bytes()
    by.write_bytes(both)
    assert served.files.trouble() == ""
    by.write_bytes(stranger.certificate.read_bytes())
    assert "replicas.ca_file" in served.files.trouble()


def test_authorities_are_compared_with_no_certificate_before_one_could_be_read(
    tmp_path: Path,
) -> None:
    served = Served(tmp_path, by=True)
    served.pair.certificate.unlink()
    assert served.files.trouble() == "", "the listener reports that the file is not there"
