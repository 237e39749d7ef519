"""The README's excerpt of the demo: its scenes, and what two runs may differ in."""

import pytest

from tests.demo.readme import excerpt, put, shape, shown

RUN = """\
sickbay, a demo
  the page   http://127.0.0.1:40123/

09:07:58  41 nodes are attached

09:07:58  >> what this machine's own agent reports: sickbay-agent check
             degraded  clock
09:07:59     vm: degraded

09:08:02  >> sim-0001: its kernel logs Xid 79
09:08:02     sim-0001: cordoned: xid:79 on GPU 3 at 0000:13:00
09:08:07     from the kernel's line to the cordon 11 ms, to drained 5025 ms
"""
README = "a\n<!-- demo -->\n```\nold\n```\n<!-- /demo -->\nb\n"


def test_an_excerpt_has_the_scenes_except_that_of_the_machine_at_hand() -> None:
    assert excerpt(RUN).splitlines() == [
        "  the page   http://127.0.0.1:8080/",
        "09:07:58  41 nodes are attached",
        "",
        "09:08:02  >> sim-0001: its kernel logs Xid 79",
        "09:08:02     sim-0001: cordoned: xid:79 on GPU 3 at 0000:13:00",
        "09:08:07     from the kernel's line to the cordon 11 ms, to drained 5025 ms",
    ]


def test_two_runs_of_one_story_have_one_shape_and_another_story_has_another() -> None:
    later = RUN.replace("09:", "11:").replace("5025 ms", "13 ms").replace("GPU 3", "GPU 5")
    assert shape(excerpt(later)) == shape(excerpt(RUN))
    other = RUN.replace("Xid 79", "Xid 48")
    assert shape(excerpt(other)) != shape(excerpt(RUN))


def test_the_excerpt_takes_the_place_of_the_one_before() -> None:
    assert shown(put(README, "new\n")) == "new\n"
    assert put(README, "new\n") == README.replace("old", "new")


def test_a_readme_without_the_place_is_an_error() -> None:
    with pytest.raises(ValueError, match="no place for the demo"):
        put("a\n", "new\n")
