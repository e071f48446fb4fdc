"""A headless Chromium for tests: Debian's, with the driver of the same build."""

from __future__ import annotations

import shutil
from contextlib import contextmanager
from typing import TYPE_CHECKING, Any

from selenium import webdriver
from selenium.webdriver.chrome.options import Options
from selenium.webdriver.chrome.service import Service
from selenium.webdriver.common.by import By
from selenium.webdriver.support.ui import WebDriverWait
from services import missing

if TYPE_CHECKING:
    from collections.abc import Callable, Iterator

PATIENCE = 60.0
"""Seconds for something to be seen: only a bug, or a machine in deep trouble, uses them up."""


class Browser:
    """A window. Whatever is looked for is waited for."""

    def __init__(self, driver: webdriver.Chrome) -> None:
        self.driver = driver

    def open(self, url: str) -> None:
        self.leave()  # another address after # alone would load nothing
        self.driver.get(url)

    def leave(self) -> None:
        """Look at nothing, and forget all complaints."""
        self.driver.get("about:blank")
        self.complaints()

    def size(self, width: int, height: int = 900) -> None:
        self.driver.set_window_size(width, height)

    def until(self, seen: Callable[[], Any]) -> Any:
        return WebDriverWait(self.driver, PATIENCE, ignored_exceptions=[Exception]).until(lambda _: seen())

    def one(self, css: str) -> Any:
        return self.until(lambda: self.driver.find_element(By.CSS_SELECTOR, css))

    def all(self, css: str) -> list[Any]:
        return self.driver.find_elements(By.CSS_SELECTOR, css)

    def text(self, css: str) -> str:
        return str(self.one(css).text)

    def click(self, css: str) -> None:
        self.until(lambda: (self.one(css).click(), True)[1])

    def says(self, css: str, words: str) -> None:
        self.until(lambda: words in self.text(css))

    def script(self, code: str) -> Any:
        return self.driver.execute_script(code)

    def complaints(self) -> list[str]:
        """New ones: errors of scripts, of loading, and what the page's own policy kept from happening."""
        return [str(line["message"]) for line in self.driver.get_log("browser") if line["level"] == "SEVERE"]  # type: ignore[no-untyped-call]


@contextmanager
def chromium() -> Iterator[Browser]:
    """A browser that ends with the block; skips or fails the test where there is none."""
    found, driver = shutil.which("chromium"), shutil.which("chromedriver")
    if found is None or driver is None:
        missing("chromium, in which the page is tested,", "apt-get install chromium chromium-driver")
    options = Options()
    options.binary_location = found
    for argument in ("--headless=new", "--no-sandbox", "--disable-gpu", "--disable-dev-shm-usage"):
        options.add_argument(argument)
    options.set_capability("goog:loggingPrefs", {"browser": "ALL"})
    browser = webdriver.Chrome(options=options, service=Service(driver))
    try:
        yield Browser(browser)
    finally:
        browser.quit()
