"""The first letter of a sentence, where a text that other surfaces continue begins a line. Pure."""

#: The begins of sentences. Any other text may begin with a code or a check, which keep their case.
_BEGINS = (
    "would ",
    "held by ",
    "its agent ",
    "no agent ",
    "no state ",
    "a person ",
    "another tool ",
    "out of service ",
    "the last step ",
)


def sentence(text: str) -> str:
    """The text with a capital letter, if it begins a sentence."""
    return text[:1].upper() + text[1:] if text.startswith(_BEGINS) else text
