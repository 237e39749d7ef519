#!/bin/bash
# The Debian packages that the tests use. Installs what is missing and nothing else; where it
# cannot, it says what is needed and goes on: the tests that need it skip with the reason.
set -euo pipefail

PACKAGES=(
  chromium-headless-shell # the status page, as a browser sees it (tests/web)
  e2fsprogs   # mkfs.ext4: real filesystems on loop devices
  fio         # reads and writes of an active test (tests/agent)
  fish        # completion of commands (tests/unit)
  gcc         # the NVML library that stands in for a driver (tests/nvml)
  ipmitool    # a restart by IPMI (tests/aggregator)
  iproute2    # ip: network namespaces, veth
  iperf3      # TCP of an active test (tests/agent)
  libc6-dev   # the same
  mmdebstrap  # a minimal Debian, for the set-up of both commands (tests/deploy)
  mount       # mount, losetup
  openipmi    # ipmi_sim, a BMC that speaks IPMI (tests/aggregator)
  prometheus  # scrapes an aggregator, evaluates the shipped rules; promtool checks them (tests/deploy)
  prometheus-alertmanager  # a receiver of alerts (tests/aggregator)
  postgresql  # initdb, postgres: a server of the tests' own, and none of the machine's
  munge       # the identity of Slurm's users (tests/support/slurm.py)
  runc        # the agent in the container that its DaemonSet asks for (tests/deploy)
  slurm-client # scontrol, sinfo, squeue, sbatch (the same)
  slurmctld   # a real Slurm of the tests' own (the same)
  slurmd      # its nodes (the same)
  slurmrestd  # its REST API (the same)
  slurm-wlm-jwt-plugin # its tokens (the same)
  util-linux  # fsfreeze: a probe that hangs
  zsh         # completion of commands (tests/unit)
)
# What one target alone needs, such as buildah of make test-images.
PACKAGES+=("$@")

if ! command -v dpkg-query >/dev/null; then
  echo "setup-debian: this is not Debian. The tests use: ${PACKAGES[*]}" >&2
  exit 0
fi

missing=()
for package in "${PACKAGES[@]}"; do
  state=$(dpkg-query --show --showformat='${db:Status-Status}' "$package" 2>/dev/null || true)
  [ "$state" = installed ] || missing+=("$package")
done
[ ${#missing[@]} -gt 0 ] || exit 0

if [ "$(id -u)" -ne 0 ] || ! command -v apt-get >/dev/null; then
  echo "setup-debian: missing, and only root can install them: apt-get install ${missing[*]}" >&2
  exit 0
fi
export DEBIAN_FRONTEND=noninteractive
echo "setup-debian: installing ${missing[*]}"
if ! { apt-get -qq update && apt-get -qq install --yes --no-install-recommends "${missing[@]}"; } >/dev/null
then
  echo "setup-debian: apt-get could not install: ${missing[*]}. Tests that need them will skip." >&2
fi
