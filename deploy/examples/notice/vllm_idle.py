"""Ends with 0 once vLLM runs no request and none waits: the pod is not ready since the notice."""

import os
import sys
import time
import urllib.request

METRICS = os.environ.get("VLLM_METRICS", "http://127.0.0.1:8000/metrics")
NAMES = ("vllm:num_requests_running", "vllm:num_requests_waiting")


def requests() -> float:
    with urllib.request.urlopen(METRICS, timeout=10) as answer:
        lines = answer.read().decode().splitlines()
    found = [line.rpartition(" ")[2] for line in lines if line.startswith(NAMES)]
    if not found:
        sys.exit("vLLM's metrics name no requests")
    return sum(float(one) for one in found)


while requests():
    time.sleep(1)
