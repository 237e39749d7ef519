"""The version. A constant: to ask the installed package takes a fifth of a command's start."""

VERSION = "0.1.0"
