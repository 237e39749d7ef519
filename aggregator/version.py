"""The version. A constant: to read the installed package's metadata takes a fifth of a command's
start.
"""

VERSION = "0.1.0"
