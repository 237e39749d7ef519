"""The promises of each released version, as files that every later version must go on to read.

`python -m tests.frozen add` writes the present version's folder once; no file in one is changed.
"""
