"""The fence ```mermaid as an SVG in the page, drawn while the site is built.

A reader's browser runs no script for it and asks no other server; a diagram that Mermaid can't draw
ends the build, with its file and line.
"""

import re
from hashlib import blake2b

import mermaidx
from docutils import nodes
from sphinx.application import Sphinx
from sphinx.util.docutils import SphinxDirective

#: A diagram is shown at this share of its own size at least; a wider one scrolls.
SMALLEST = 0.7
#: Mermaid's own ids are the same in every diagram, and ids of a page must differ.
_ID = re.compile(r"<svg\b[^>]*?\sid=\"([^\"]+)\"")
_WIDTH = re.compile(r"viewBox=\"[-\d.]+ [-\d.]+ ([\d.]+) [\d.]+\"")


class Diagram(SphinxDirective):  # type: ignore[misc]  # Sphinx is in no other environment
    """One fence; its content is Mermaid's language."""

    has_content = True

    def run(self) -> list[nodes.Node]:
        source = "\n".join(self.content)
        try:
            svg = mermaidx.render(source).svg()
        except Exception as error:
            raise self.error(f"Mermaid can't draw this diagram: {error}") from error
        figure = f'<figure class="diagram" tabindex="0">{_of_its_own(svg, source)}</figure>'
        return [nodes.raw("", figure, format="html")]


def _of_its_own(svg: str, source: str) -> str:
    """The SVG with an id that no other diagram has, and a width below which it does not shrink."""
    name = "diagram-" + blake2b(source.encode(), digest_size=6).hexdigest()
    found = _ID.search(svg)
    if found is not None:
        svg = svg.replace(found[1], name)
    width = _WIDTH.search(svg)
    least = f"min-width: {float(width[1]) * SMALLEST:.0f}px" if width is not None else ""
    return svg.replace('style="', f'style="{least}; ', 1)


def setup(app: Sphinx) -> dict[str, bool]:
    """Called by Sphinx."""
    app.add_directive("mermaid", Diagram)
    return {"parallel_read_safe": True, "parallel_write_safe": True}
