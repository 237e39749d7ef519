#!/usr/bin/env bash
# On a machine with an NVIDIA GPU: its raw answers, the agent's cost, then the tests of tests/gpu.
# Results go to the folder $OUT (build/gpu/out). Without network: WHEELS is a folder of wheels for
# $PYTHON, and neither `make env` nor an index is used; $WHEELS/tls has ca.crt, aggregator.crt and
# aggregator.key for 127.0.0.1. BENCH_SECONDS is the agent's time at rest (120), LOAD_SECONDS that
# beside a working GPU (60). TESTS are the words for pytest (tests/gpu).
set -uo pipefail
cd "$(dirname "$0")/../.."
if [ ! -e /proc/driver/nvidia/version ]; then
  echo "gpu-check: no NVIDIA driver is loaded here (no /proc/driver/nvidia/version); run it on a machine with a GPU" >&2
  exit 2
fi
out=$(realpath -m "${OUT:-build/gpu/out}")
raw=build/gpu/raw
python=${PYTHON:-python3}
rm -rf "$raw"
mkdir -p "$out" "$raw" build/gpu

if [ -n "${WHEELS:-}" ]; then
  env=build/gpu/env
  rm -rf "$env" build/gpu/site
  # A copy of the interpreter and of each library: see measure.py.
  "$python" -m venv --copies --without-pip "$env" && "$env/bin/python" -c "" || {
    echo "the interpreter cannot be copied: the proportional set size is too low by its shared pages"
    rm -rf "$env"
    "$python" -m venv --without-pip "$env"
  } || exit 2
  site=$("$env/bin/python" -c 'import sysconfig; print(sysconfig.get_path("purelib"))')
  "$python" -m pip install -q --no-index --no-deps --no-compile --no-cache-dir \
    --target "$site" "$WHEELS"/*.whl || exit 2
  cp -a "$site" build/gpu/site
  rm -rf build/gpu/bare
  cp -a "$env" build/gpu/bare
  agent=$env/bin/python tests=$env/bin/python
  measure=("env" "PYTHONPATH=$PWD/build/gpu/site:$PWD:$PWD/proto" "$python")
  export GPU_AGENT_PYTHON=$PWD/$agent GPU_AGENT_SITE=$site
  export GPU_BARE_PYTHON=$PWD/build/gpu/bare/bin/python GPU_BARE_SITE=${site/gpu\/env/gpu\/bare}
  [ ! -e "$WHEELS/tls" ] || GPU_TLS=$(realpath "$WHEELS/tls") && export GPU_TLS
else
  tests=${VENV:-.venv}/bin/python
  measure=("$tests")
  GPU_AGENT_PYTHON=$("$tests" -c \
    'from tests.bench.environments import install; print(install("agent") / "python")') || exit 2
  GPU_AGENT_SITE=$("$GPU_AGENT_PYTHON" -c \
    'import sysconfig; print(sysconfig.get_path("purelib"))') || exit 2
  GPU_BARE_PYTHON=$("$tests" -c \
    'from tests.bench.environments import install; print(install("agent", "bare") / "python")') || exit 2
  GPU_BARE_SITE=$("$GPU_BARE_PYTHON" -c \
    'import sysconfig; print(sysconfig.get_path("purelib"))') || exit 2
  GPU_TLS=$PWD/build/gpu/tls
  "$tests" -c 'import pathlib, sys; from tests.support.pki import Authority
Authority.create(pathlib.Path(sys.argv[1])).server("aggregator", ["127.0.0.1"])' "$GPU_TLS" || exit 2
  export GPU_AGENT_PYTHON GPU_AGENT_SITE GPU_BARE_PYTHON GPU_BARE_SITE GPU_TLS
fi
export GPU_BYTECODE=$PWD/build/gpu/bytecode
rm -rf "$GPU_BYTECODE"

echo "environment: $SECONDS s"

keep() { # NAME COMMAND...: its output, and its errors behind it
  local name=$1
  shift
  timeout 60 "$@" >"$raw/$name" 2>&1
}

keep_kernel_log() { # NAME: the records of the driver, its modules and its GPUs, as /dev/kmsg gives them.
  keep "$1" env PYTHONPATH="$PWD:$PWD/proto" "$tests" -c \
    'from tests.gpu import kernel_log; print(*kernel_log.of_the_driver(), sep="\n")'
}

keep nvidia-smi.xml nvidia-smi -q -x
keep nvidia-smi.txt nvidia-smi -q
keep nvlink.txt nvidia-smi nvlink --status
keep topology.txt nvidia-smi topo -m
keep machine.txt sh -c 'uname -a; cat /proc/cmdline; ls -l /proc/1/ns/pid /dev/nvidia* /dev/kmsg
  ldconfig -p | grep -i -e nvidia -e libcuda; find /usr /run /opt -xdev -name "libnvidia-ml.so*" 2>/dev/null
  command -v nvidia-smi dcgmi fio python3; echo "LD_LIBRARY_PATH=$LD_LIBRARY_PATH PATH=$PATH"; lsmod; ls /sys/module | grep -i nv
  cat /sys/module/nvidia/version; mount | grep -i nvidia; lspci -nn'
keep proc-driver.txt grep -r "" /proc/driver/nvidia
for device in /sys/bus/pci/devices/*; do
  [ "$(cat "$device/vendor")" = 0x10de ] || continue
  keep "sysfs-$(basename "$device" | tr : _).txt" sh -c "ls -l $device/; cd $device; for f in vendor device \
    class subsystem_vendor subsystem_device numa_node current_link_* max_link_* aer_dev_* enable \
    power_state reset_method; do echo \"== \$f\"; cat \$f; done"
done
keep_kernel_log kernel-before.log
echo "raw answers: $SECONDS s"

timeout 120 "${measure[@]}" -m tests.gpu.worker_memory "$raw/memory" >"$out/memory.txt" 2>&1
echo "worker's memory (status $?): $SECONDS s"
timeout 300 "${measure[@]}" -m tests.gpu.measure "$raw" >"$out/table.txt" 2>"$raw/measure.err"
measured=$?
cp "$raw/figures.json" "$out" 2>/dev/null
tail -20 "$raw/measure.err"
echo "measured (status $measured): $SECONDS s"

keep check.txt env PYTHONPATH="$PWD:$PWD/proto" "$tests" -m nodeagent.cli check
keep check.json env PYTHONPATH="$PWD:$PWD/proto" "$tests" -m nodeagent.cli check -o json
PYTHONPATH=$PWD:$PWD/proto timeout -s INT -k 10 "${TESTS_SECONDS:-300}" "$tests" -m pytest -q -rfEs --tb=short \
  --confcutdir tests/gpu -p no:cacheprovider --durations 8 --junitxml "$out/junit.xml" \
  -o junit_logging=all ${TESTS:-tests/gpu} >"$out/pytest.log" 2>&1
tested=$?
keep_kernel_log kernel-after.log
keep parse-kmsg.txt env PYTHONPATH="$PWD:$PWD/proto" "$tests" -m nodeagent.cli parse-kmsg "$raw/kernel-after.log"
tar -czf "$out/raw.tar.gz" -C "$(dirname "$raw")" "$(basename "$raw")"
tail -c 6000 "$out/pytest.log"
grep -h "NVRM: Xid" "$raw/kernel-after.log" | cut -c1-300 | tail -4
cat "$out/memory.txt" "$out/table.txt"
echo "measured: $measured, tested: $tested, $SECONDS s in all"
[ "$measured" -eq 0 ] && [ "$tested" -eq 0 ]
