"""Tests on a real NVIDIA GPU with the real driver; they change no setting and reset no GPU.

`make gpu-check` runs them (run.sh). Without a GPU they skip, as a part of `make test` too.
"""
