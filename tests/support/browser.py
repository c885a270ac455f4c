"""A real browser: Debian's Chromium under Playwright, and what goes wrong on a page while it is looked at."""

from __future__ import annotations

import contextlib
import importlib.resources
import os
import shutil
from collections.abc import AsyncIterator, Mapping
from pathlib import Path
from typing import Any

import pytest
from playwright.async_api import Browser, BrowserContext, Page, async_playwright, expect

PROGRAMS = ("chromium-headless-shell", "chromium", "chromium-browser", "google-chrome")
_AXE = importlib.resources.files("axe_playwright_python") / "axe.min.js"
_PATIENCE_MS = 60_000


def program() -> str | None:
    """The browser's path, None where there is none."""
    if (named := os.environ.get("GPUCLAIM_BROWSER")) is not None:
        return named if named and Path(named).exists() else None
    return next((found for name in PROGRAMS if (found := shutil.which(name))), None)


@contextlib.asynccontextmanager
async def running() -> AsyncIterator[Browser]:
    """A browser while the context is open; the test is skipped where there is none."""
    path = program()
    if path is None:
        pytest.skip("there is no Chromium: `make browser` installs Debian's, as root")
    expect.set_options(timeout=_PATIENCE_MS)
    async with async_playwright() as playwright:
        # Chromium's own sandbox does not start for root, in containers above all.
        browser = await playwright.chromium.launch(executable_path=path, args=["--no-sandbox"])
        try:
            yield browser
        finally:
            await browser.close()


class Visitor:
    """A browser window of its own, with its cookies; what a page complains of is in `complaints`."""

    def __init__(self, context: BrowserContext, page: Page) -> None:
        self.context = context
        self.page = page
        self.complaints: list[str] = []
        page.on("pageerror", lambda error: self.complaints.append(f"error: {error}"))
        page.on("dialog", self._dialog)
        page.on("console", lambda said: self._said(said.type, said.text))

    def _said(self, kind: str, words: str) -> None:
        # A page that says no is no fault of the page's script.
        if kind in {"error", "warning"} and "Failed to load resource" not in words:
            self.complaints.append(f"{kind}: {words}")

    async def _dialog(self, dialog: Any) -> None:
        self.complaints.append(f"dialog: {dialog.message}")
        await dialog.dismiss()

    async def faults_of_access(self) -> list[str]:
        """What axe-core finds on the page, by WCAG 2.2 A and AA and its best practices: rule, where, how to mend it.

        The page's own policy lets no foreign script in, so it is run past the policy, by the browser's debugger.
        """
        await self.page.evaluate(_AXE.read_text())
        found = await self.page.evaluate("() => axe.run(document)")
        assert found["passes"], "axe has looked at nothing"
        return [
            f"{each['id']}: {node['html'][:160]}: {node.get('failureSummary', '')}"
            for each in found["violations"]
            for node in each["nodes"]
        ]

    async def overflow(self) -> int:
        """By how many pixels the page is wider than its window."""
        script = "() => document.documentElement.scrollWidth - document.documentElement.clientWidth"
        return int(await self.page.evaluate(script))


@contextlib.asynccontextmanager
async def visiting(browser: Browser, **options: Any) -> AsyncIterator[Visitor]:
    """A window, and nothing that a page complains of by its end."""
    fields: Mapping[str, Any] = {"viewport": {"width": 1200, "height": 900}} | options
    context = await browser.new_context(**fields)
    context.set_default_timeout(_PATIENCE_MS)
    try:
        visitor = Visitor(context, await context.new_page())
        yield visitor
        assert not visitor.complaints, visitor.complaints
    finally:
        await context.close()
