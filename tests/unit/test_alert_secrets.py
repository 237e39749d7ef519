"""The secrets of receivers: what their files may hold, and that no answer shows them."""

from pathlib import Path

import pytest
from hypothesis import given
from hypothesis import strategies as st

from aggregator.alerts.file_check import unusable_files
from aggregator.alerts.http_channel import HttpOptions, read_url
from aggregator.alerts.receivers.slack import SlackOptions
from aggregator.alerts.redaction import secrets_of, without_secrets
from aggregator.alerts.settings import AlertSettings, ReceiverConfig
from aggregator.runtime.secret_file import SecretError, read_token
from tests.support.text_files import text_file


@pytest.mark.parametrize(
    "content",
    [
        "https://[::1/x",
        "https://h:999999/x",
        "https://h:0/x",
        "https://h:port/x",
        "https://h/one\nhttps://h/two",
        "https://h/a b",
        "https://h/\u00e4",
        "ftp://h/x",
        "https://",
    ],
)
def test_a_url_file_with_anything_but_one_url_is_refused_without_its_content(
    tmp_path: Path, content: str
) -> None:
    path = text_file(tmp_path / "url", content)
    with pytest.raises(SecretError) as refused:
        read_url(path)
    assert (
        str(refused.value) == f"url_file {path} holds no URL; expected one line: https://HOST/..."
    )


@pytest.mark.parametrize("url", ["https://h/x?sig=a%20b", "http://[::1]:8080/x"])
def test_a_url_file_with_one_url_is_read(tmp_path: Path, url: str) -> None:
    path = text_file(tmp_path / "url", f"{url}\r\n")
    assert read_url(path) == url


@pytest.mark.parametrize("content", ["one\ntwo", "t\u00f6ken", "to\x1bken", "to\0ken", "\ufeff"])
def test_a_token_file_with_anything_but_one_line_of_ascii_is_named(
    tmp_path: Path, content: str
) -> None:
    path = text_file(tmp_path / "token", content)
    text = f"bearer_token_file {path} holds no token; expected one line of ASCII"
    with pytest.raises(SecretError) as refused:
        read_token(path)
    assert str(refused.value) == text
    options = SlackOptions(tmp_path / "url", http=HttpOptions(bearer_token_file=path))
    (tmp_path / "url").write_text("https://h/x\n")
    settings = AlertSettings(receivers=(ReceiverConfig("chat", slack=options),))
    key = ("receivers", 0, "slack", "http", "bearer_token_file")
    assert list(unusable_files(settings)) == [(key, text)]
    path.write_text("t0ken\n")
    assert read_token(path) == "t0ken"
    assert list(unusable_files(settings)) == []


@given(st.text("ab/", min_size=4, max_size=12), st.text("ab/ ", max_size=20), st.integers(0, 40))
def test_an_answer_that_is_cut_inside_of_a_secret_does_not_show_its_beginning(
    secret: str, before: str, size: int
) -> None:
    shown = without_secrets((before + secret)[:size], secrets_of("https://h/", [secret]))
    assert secret not in shown
    assert not any(shown.endswith(secret[:n]) for n in range(4, len(secret) + 1))
