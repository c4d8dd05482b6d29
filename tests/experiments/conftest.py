"""A browser for tests of pages."""

from __future__ import annotations

import os

import pytest

from browser import CHROMIUM, Browser


@pytest.fixture(scope="session")
def browser():
    if CHROMIUM is None:
        if os.environ.get("INFHESS_BROWSER_REQUIRED"):
            pytest.fail("Chromium is required here, and was not found")
        pytest.skip("there is no Chromium on this machine")
    found = Browser()
    yield found
    found.close()
