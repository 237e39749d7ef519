"""YAML's own errors as text that quotes nothing of the file.

Apart from the reader of configurations, because the command `sickbay` reads a kubeconfig and has no
pydantic.
"""

import re

import yaml

#: The parts of a file that YAML's messages quote: an alias, a tag. A password may begin as they do.
_QUOTED = re.compile(r" '(?!<)[^']{2,}'")


def where_and_what(error: yaml.YAMLError) -> tuple[int, str]:
    """The line (0 if none is known) and YAML's message, without the parts that it quotes of the
    file.
    """
    mark = getattr(error, "problem_mark", None)
    what = getattr(error, "problem", None) or getattr(error, "reason", None) or "not YAML"
    return 0 if mark is None else mark.line + 1, _QUOTED.sub("", what)
