"""The program that calls the resolver: ``python -I -S -E resolve_child.py HOST``

getaddrinfo may block for half a minute and cannot be interrupted, so it is a process's business
and not a thread's. Output: a line ``address ADDRESS`` each, or ``failed MESSAGE``.
"""

import _socket
import sys


def main(host: str) -> None:
    try:
        found = _socket.getaddrinfo(host, None, 0, _socket.SOCK_STREAM)
    except (OSError, UnicodeError) as error:
        sys.stdout.write(f"failed {error.args[-1]}\n")
        return
    for address in dict.fromkeys(entry[4][0] for entry in found):
        sys.stdout.write(f"address {address}\n")


if __name__ == "__main__":
    main(sys.argv[1])
