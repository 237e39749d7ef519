"""Debian's Chromium, as the tests start it: headless, and without requests of its own."""

from pathlib import Path

#: The first that is installed. The headless shell has the same engine, without the windows, menus
#: and profiles of a desktop's browser: a test takes half of the processor's time.
_PROGRAMS = ("/usr/bin/chromium-headless-shell", "/usr/bin/chromium")
CHROMIUM = next((program for program in _PROGRAMS if Path(program).exists()), _PROGRAMS[0])
ARGUMENTS = [
    "--headless",
    "--no-sandbox",
    "--disable-gpu",
    "--disable-quic",
    "--no-first-run",
    "--disable-background-networking",
    "--disable-component-update",
    "--disable-sync",
]
