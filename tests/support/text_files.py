"""Files of text, as tests write them."""

from pathlib import Path


def text_file(path: Path, text: str) -> Path:
    """The path, at which there is a file with this text now."""
    path.write_text(text)
    return path
