"""Tokens in a file, for a local cluster, which has no users of its own.

Each line has a token, a user and a role, with commas between them; lines with # are comments:

    h6WJ3kLr0cKcv1tRwk2pXg,hall-2,operator
    zK9vYbqTt7n5o4mUuE1sQw,dashboards,viewer
"""

import hashlib
import hmac
import logging
from dataclasses import dataclass
from pathlib import Path

from aggregator.access.identity import AccessRefused, RequestFacts, UserIdentity
from aggregator.access.token_review import MAX_TOKEN
from aggregator.cluster.users import Access, User
from sickbay.regular_file import MOST, require_regular_file, version_of

log = logging.getLogger("sickbay.access")

#: Characters of a token: 128 bits at least, where it is made at random.
SHORTEST = 22
ROLES = ("viewer", "operator")


class StaticTokensError(Exception):
    """The file can't be used; the text names it, the line, and the expected form."""


@dataclass(frozen=True, slots=True)
class _Entry:
    digest: bytes
    user: str
    role: str


class StaticTokens:
    """Implements `RequestAuthenticator` and `Authorizer`.

    A changed file is read at the next request; while it can't be used, the earlier content counts.
    Raises StaticTokensError at first.
    """

    def __init__(self, file: Path) -> None:
        self._file = file
        #: The version that was read. The first one counts as none: it may have changed meanwhile.
        self._seen: object = None
        self._entries = _read(file)

    async def authenticate(self, facts: RequestFacts) -> UserIdentity | None:
        token = facts.token or facts.cookie
        if not token:
            return None
        self._follow()
        digest = _digest(token)
        found: _Entry | None = None
        for entry in self._entries:  # all of them: the time must not depend on which one fits
            if hmac.compare_digest(entry.digest, digest):
                found = entry
        if found is None:
            raise AccessRefused(
                401,
                "invalid_token",
                "the token is in no line of access.tokens_file",
                "A line of that file is TOKEN,USER,ROLE; it is read again when it changes.",
            )
        user = User(found.user, (f"sickbay:{found.role}s",))
        return UserIdentity(user, "static-token", ambient=not facts.token)

    async def allows(self, identity: UserIdentity, access: Access) -> bool:
        """A viewer reads, an operator does all."""
        groups = identity.user.groups
        if identity.how != "static-token":
            return False
        return "sickbay:operators" in groups or ("sickbay:viewers" in groups and access.reads)

    def _follow(self) -> None:
        try:
            now = version_of(self._file)
            if now == self._seen:
                return
            self._seen = now
            self._entries = _read(self._file)
        except (OSError, StaticTokensError) as error:
            log.warning(
                "the file of static tokens can't be used; its earlier content counts",
                extra={"event": "access.tokens_file_unusable", "error": str(error)},
            )


def _read(file: Path) -> list[_Entry]:
    expected = "expected lines such as TOKEN,USER,viewer"
    try:
        lines = require_regular_file(file, most=MOST).read_text("utf-8-sig").splitlines()
    except OSError as error:
        raise StaticTokensError(f"{file} can't be read: {error.strerror}; {expected}") from None
    except UnicodeDecodeError:
        raise StaticTokensError(f"{file} is no text in UTF-8; {expected}") from None
    entries = [
        _entry(f"{file}:{number}", line.strip())
        for number, line in enumerate(lines, 1)
        if line.strip() and not line.lstrip().startswith("#")
    ]
    if not entries:
        raise StaticTokensError(f"{file} has no token; {expected}")
    return entries


def _entry(where: str, line: str) -> _Entry:
    """No text of an error has the line: it may be a token."""
    parts = [part.strip() for part in line.split(",")]
    if len(parts) != 3 or not all(parts) or parts[2] not in ROLES:
        form = f"expected TOKEN,USER,ROLE with role {' or '.join(ROLES)}"
        raise StaticTokensError(f"{where}: the line has another form; {form}")
    token, user, role = parts
    made = "expected one such as `openssl rand -base64 24` makes"
    if len(token) < SHORTEST:
        raise StaticTokensError(f"{where}: the token is shorter than {SHORTEST} characters; {made}")
    if len(token) > MAX_TOKEN or not token.isascii() or not token.isprintable():
        why = "is too long for a request, or has characters that none can carry"
        raise StaticTokensError(f"{where}: the token {why}; {made}")
    if not user.isprintable():
        why = "the user has characters that are not printable; expected a name"
        raise StaticTokensError(f"{where}: {why}")
    return _Entry(_digest(token), user, role)


def _digest(token: str) -> bytes:
    return hashlib.sha256(token.encode("utf-8", "surrogateescape")).digest()
