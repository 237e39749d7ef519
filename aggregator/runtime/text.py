"""Text from other programs or people, cut to a readable length."""


def truncate(text: str, most: int) -> str:
    """At most so many of its characters; a cut text ends with how many it had."""
    if len(text) <= most:
        return text
    mark = f"… ({len(text):,} characters)"
    return text[: most - len(mark)] + mark
