"""The documentation site: the tree's Markdown as static HTML, which needs no other server.

`python -m release.site` builds it, in the environment of requirements/docs.txt (`make docs`).
"""
