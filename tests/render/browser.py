"""A real browser, Debian's chromium or Playwright's own. Without one tests skip and say so, or fail where required."""

import os
import shutil
import time

import pytest

CHROMIUM = next(filter(None, map(shutil.which, ("chromium", "chromium-browser", "google-chrome"))), None)
REQUIRED = bool(os.environ.get("GYROSCOPE_REQUIRE_BROWSER"))


def missing(why):
    remedy = "pip install playwright, and apt install chromium or playwright install chromium"
    if REQUIRED:
        pytest.fail(f"{why}: {remedy}")
    pytest.skip(f"no browser, {why}: {remedy}")


def launch(playwright):
    try:
        return playwright.chromium.launch(executable_path=CHROMIUM, args=["--no-sandbox"])
    except Exception as error:  # whatever stops a browser, it is not there
        return missing(str(error).splitlines()[0])


class Tab:
    """A page in the browser that remembers what went wrong in it, and what it asked the network for."""

    def __init__(self, browser, *, offline=False, **options):
        self.context = browser.new_context(offline=offline, **{"viewport": {"width": 1200, "height": 900}, **options})
        self.page = self.context.new_page()
        self.page.set_default_timeout(20_000)
        self.wrong, self.asked = [], []
        self.page.on(
            "console", lambda message: message.type in ("error", "warning") and self.wrong.append(message.text)
        )
        self.page.on("pageerror", lambda error: self.wrong.append(str(error)))
        self.page.on("dialog", lambda dialog: (self.wrong.append(f"dialog: {dialog.message}"), dialog.dismiss()))
        self.page.on("request", lambda request: self.asked.append(request.url))

    def open(self, address):
        self.page.goto(address)
        self.page.wait_for_selector("body[data-ready]")
        return self

    def js(self, code):
        return self.page.evaluate(code)

    def until(self, code, seconds=20):
        """Wait from outside: a strict page does not let anyone evaluate text inside it."""
        end = time.monotonic() + seconds
        while not self.js(code):
            assert time.monotonic() < end, f"never: {code}"
            self.page.wait_for_timeout(50)

    def close(self):
        self.context.close()
