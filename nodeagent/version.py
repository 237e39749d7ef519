"""The agent's version. A constant: to read the installed package's metadata costs the agent MiBs of
imports.
"""

VERSION = "0.1.0"
