"""The folder of compiled bytecode, for programs that start without the environment of the tests.

Without it, they compile each module again in a new clone: 2 s of a processor for the aggregator.
"""

import os

_NAME = "PYTHONPYCACHEPREFIX"
BYTECODE = {_NAME: os.environ[_NAME]} if _NAME in os.environ else {}
