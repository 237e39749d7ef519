"""Fixtures for the tests of the page."""

from tests.support.compiled_templates import compile_templates_once

compile_templates_once()
