"""Sphinx' configuration of the site: https://www.sphinx-doc.org/en/master/usage/configuration.html

Nothing is read from the network, neither by the build nor by a page: fonts are the system's, search
and diagrams are files of the site.
"""

import functools
import os

from sphinx.search.en import SearchEnglish

# The stemmer is written in Python, and Sphinx keeps its results for one page: a tenth of a build.
SearchEnglish.stem = functools.cache(SearchEnglish.stem)

project = "sickbay"
version = release = os.environ.get("SICKBAY_SITE_VERSION", "dev")
author = copyright = "the sickbay authors"  # noqa: A001 (Sphinx' name)
language = "en"

extensions = ["myst_parser", "release.site.diagrams", "release.site.navigation"]
root_doc = "docs/README"
include_patterns = [
    "docs/**.md",
    "deploy/helm/sickbay/README.md",
    "tests/controlplane/README.md",
    "CHANGELOG.md",
    "CONTRIBUTING.md",
    "README.md",
    "SECURITY.md",
]
# Folders that are large, and have no page.
exclude_patterns = [".*", "aggregator", "build", "dist", "nodeagent", "proto"]
source_suffix = {".md": "markdown"}

# Headings have the anchors that a code host gives them, to any depth.
myst_heading_anchors = 6
# A code host renders this fence itself, so the pages need no other form.
myst_fence_as_directive = ["mermaid"]
# "--url" is an option and no dash.
smartquotes = False
# Lines of a terminal have no language, and guesses colour them at random.
highlight_language = "none"

html_theme = "furo"
html_title = f"sickbay {version}"
html_static_path = ["static"]
html_css_files = ["site.css"]
html_js_files = ["versions.js"]
templates_path = ["templates"]
html_sidebars = {
    "**": [
        "sidebar/brand.html",
        "version.html",
        "sidebar/search.html",
        "sidebar/scroll-start.html",
        "sidebar/navigation.html",
        "sidebar/scroll-end.html",
    ]
}
html_copy_source = False
html_show_sphinx = False
html_use_index = False
