from __future__ import annotations

from collections.abc import Iterator

import pytest

from tests.pages.browser import Browser


@pytest.fixture(scope="session")
def browser() -> Iterator[Browser]:
    """One browser for all tests. Where Chromium has to be got first, that takes minutes, once."""
    browser = Browser()
    yield browser
    browser.stop()
