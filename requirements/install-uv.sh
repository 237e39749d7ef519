#!/bin/bash
# install-uv.sh FOLDER PYTHON...: puts uv at FOLDER/bin/uv, by the first Python that can install it.
#
# requirements/uv.txt pins the version and the hashes. A minimal Debian has neither ensurepip nor
# pip, so `python3 -m venv` fails there: root gets the missing package from apt, and another user is
# told its name in the first line.
set -euo pipefail

folder=$1
shift
pythons=("$@")
pinned=(--quiet --disable-pip-version-check --require-hashes --requirement "${0%/*}/uv.txt")

CANNOT=100 # no exit status of pip's

install_by() { # PYTHON
  if "$1" -c 'import ensurepip, venv' 2>/dev/null; then
    "$1" -m venv --clear "$folder" && "$folder/bin/pip" install "${pinned[@]}"
  elif "$1" -m pip --version >/dev/null 2>&1; then
    "$1" -m pip install --upgrade --target "$folder" "${pinned[@]}"
  else
    return $CANNOT
  fi
}

try_each() {
  local status
  for python in "${pythons[@]}"; do
    status=0
    install_by "$python" || status=$?
    [ "$status" -eq $CANNOT ] || return "$status"
  done
  return $CANNOT
}

status=0
try_each || status=$?
[ "$status" -eq $CANNOT ] || exit "$status"

# Debian names the package after the version: python3.11-venv belongs to python3.11.
if ! version=$("${pythons[0]}" -c 'import sys; print("python%d.%d" % sys.version_info[:2])'); then
  echo "install-uv: python3 is missing (3.11 or later; Debian: apt-get install python3)" >&2
  exit 1
fi
package=$version-venv
if [ "$(id -u)" -ne 0 ] || ! command -v apt-get >/dev/null; then
  echo "install-uv: $package is missing: ${pythons[0]} has neither ensurepip nor pip" >&2
  echo "install-uv: install it (Debian: apt-get install $package), or put uv on the path" >&2
  exit 1
fi
echo "install-uv: installing $package"
export DEBIAN_FRONTEND=noninteractive
if ! { apt-get -qq update && apt-get -qq install --yes --no-install-recommends "$package"; } >/dev/null
then
  echo "install-uv: $package is missing, and apt-get could not install it" >&2
  exit 1
fi
try_each
