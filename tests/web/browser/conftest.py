"""One browser for all tests of a module, which therefore share an event loop."""

from __future__ import annotations

from collections.abc import AsyncIterator

import pytest
import pytest_asyncio
from tests.web.browser import chromium


@pytest_asyncio.fixture(scope="module", loop_scope="module", autouse=True)
async def browser() -> AsyncIterator[None]:
    """Kept where `opened` finds it."""
    if chromium.CHROMIUM is None:  # all tests are skipped
        yield
        return
    with pytest.MonkeyPatch.context() as patch:
        async with chromium.running() as running:
            patch.setattr(chromium, "kept", running)
            yield
