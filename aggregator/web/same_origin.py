"""Whether a browser sent a request for a page of this site itself.

A browser sends cookies and client certificates with requests of any site. It also sends where a
request comes from, and no script of another site can change that: Sec-Fetch-Site, and Origin where
the former is missing (plain HTTP). Clients that are no browsers send neither.
"""

from collections.abc import Mapping
from urllib.parse import urlsplit

#: A header that a form can't set; a script of another site may set it with CORS alone, which the
#: page does not grant.
ACTION_HEADER = "X-Sickbay-Action"


def foreign_because(headers: Mapping[str, str]) -> str:
    """Why the request is another site's; empty: it is not. ``headers`` of a request that acts."""
    site = headers.get("Sec-Fetch-Site")
    if site is not None:
        return "" if site in {"same-origin", "none"} else f"Sec-Fetch-Site is {site[:40]}"
    origin = headers.get("Origin")
    if origin is None:
        return ""
    try:
        own = urlsplit(origin).netloc.lower()
    except ValueError:
        own = ""
    host = headers.get("Host", "").lower()
    return "" if own and own == host else f"Origin is {origin[:100]}, and this is {host[:100]}"
