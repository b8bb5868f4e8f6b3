"""A headless Chromium for tests of pages; a test without it is skipped and says how to get it."""

import shutil
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any

import pytest
from external_tools import need

OPTIONS = (
    "--headless", "--no-sandbox", "--disable-gpu", "--no-first-run", "--disable-background-networking",
    "--disable-component-update", "--disable-sync", "--window-size=1250,900",
)  # fmt: skip


@contextmanager
def chromium(profile: Path) -> Iterator[Any]:
    """A selenium driver; `profile` is a new empty folder."""
    selenium = pytest.importorskip("selenium.webdriver", reason="pip install selenium")
    need("chromium", "chromedriver")
    options = selenium.ChromeOptions()
    options.binary_location = shutil.which("chromium")
    for option in (*OPTIONS, f"--user-data-dir={profile}"):
        options.add_argument(option)
    options.set_capability("goog:loggingPrefs", {"browser": "ALL"})
    page = selenium.Chrome(options=options, service=selenium.ChromeService(shutil.which("chromedriver")))
    try:
        yield page
    finally:
        page.quit()


def open_page(page: Any, path: Path) -> None:
    """Opens a page, and waits for its runs over time."""
    page.get(path.as_uri())
    page.set_script_timeout(30)
    page.execute_async_script("ready.then(() => arguments[0]())")


def draw_all(page: Any) -> None:
    """Draws the charts of a page, which draws only those in view by itself."""
    page.execute_async_script("drawAll().then(arguments[0])")
