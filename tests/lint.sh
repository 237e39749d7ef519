#!/bin/bash
# make lint: every check, with the programs of BIN (.venv/bin). The first mypy of a tree takes 23 s of
# a processor, and less than 1 s with the results of another clone: mypy compares the hash of each
# file. So the first run of a tree begins with the results that the last first run has kept.
set -euo pipefail
bin=$1
kept=${XDG_CACHE_HOME:-$HOME/.cache}/sickbay/mypy.tar

"$bin/ruff" check .
"$bin/ruff" format --check .
first=
if [ ! -d .mypy_cache ]; then
  first=yes
  [ ! -f "$kept" ] || tar -xf "$kept" || rm -rf .mypy_cache
fi
"$bin/mypy"
if [ -n "$first" ] && [ -d .mypy_cache ]; then
  # A rename replaces the file at once, because another clone may be reading it. A home that cannot
  # be written is no failure of the checks.
  { mkdir -p "${kept%/*}" && tar -cf "$kept.$$" .mypy_cache && mv "$kept.$$" "$kept"; } || rm -f "$kept.$$"
fi
"$bin/lint-imports"
"$bin/python" -m tests.prose
"$bin/python" -m tests.seams
"$bin/python" -m tests.javascript
