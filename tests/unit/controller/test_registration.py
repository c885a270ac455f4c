"""What the leader writes of its registration, and what it says of what others did to it."""

from __future__ import annotations

import logging
from typing import Any, cast

import pytest

from gpuclaim.controller.registration import Registration
from gpuclaim.kube.client import Client
from gpuclaim.placement.books import Books

POLICY: dict[str, Any] = {"kind": "ValidatingAdmissionPolicy", "metadata": {"name": "p"}, "spec": {}}


def stored(generation: int) -> dict[str, Any]:
    return POLICY | {"metadata": {"name": "p", "generation": generation}}


@pytest.mark.parametrize(
    ("again", "warned"),
    [
        pytest.param(stored(1), False, id="as it was"),
        pytest.param(POLICY, False, id="left alone, so that its generation is not known"),
        pytest.param(stored(3), True, id="changed by somebody and mended"),
    ],
)
async def test_only_what_was_changed_is_said_to_be_mended(
    again: dict[str, Any], warned: bool, caplog: pytest.LogCaptureFixture
) -> None:
    registration = Registration(cast("Client", None), Books(), lease_left=lambda: 60.0)
    answers = [stored(1), again]

    async def send(_: dict[str, Any]) -> dict[str, Any]:
        return answers.pop(0)

    with caplog.at_level(logging.WARNING):
        assert await registration._write(POLICY, anew=True, send=send) == stored(1)
        assert await registration._write(POLICY, anew=True, send=send) is None
    assert ("had been changed by somebody" in caplog.text) is warned
