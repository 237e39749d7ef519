"""Text that somebody else wrote, cut to what can be read."""


def shortened(text: str, most: int) -> str:
    """At most so many of its characters; where some are left out, it ends with how many it had."""
    if len(text) <= most:
        return text
    mark = f"… ({len(text):,} characters)"
    return text[: most - len(mark)] + mark
