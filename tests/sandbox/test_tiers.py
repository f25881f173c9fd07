"""Which tier is taken, and what is refused."""

from collections.abc import Iterator

import pytest

from envhub import sandbox as package
from envhub.errors import EnvironmentFault, UserError
from envhub.sandbox import (
    AUTO,
    TIERS,
    ProcessSandbox,
    SlotSandbox,
    UserSlotSandbox,
    best_tier,
    default_sandbox,
    make_sandbox,
    probes,
)


@pytest.fixture(autouse=True)
def fresh(monkeypatch: pytest.MonkeyPatch) -> Iterator[None]:
    monkeypatch.setattr(package, "_shared", None)
    monkeypatch.delenv("ENVHUB_SANDBOX", raising=False)
    monkeypatch.delenv("ENVHUB_SANDBOX_MINIMUM", raising=False)
    best_tier.cache_clear()
    yield
    best_tier.cache_clear()


def lacks(monkeypatch: pytest.MonkeyPatch, tier: type[ProcessSandbox], what: str) -> None:
    monkeypatch.setattr(tier, "missing", classmethod(lambda cls: what))


def test_the_best_tier_of_the_machine_is_taken(monkeypatch: pytest.MonkeyPatch) -> None:
    lacks(monkeypatch, SlotSandbox, "")
    assert make_sandbox().tier == default_sandbox().tier == "slot"


def test_a_machine_without_the_best_gets_the_next(monkeypatch: pytest.MonkeyPatch) -> None:
    lacks(monkeypatch, SlotSandbox, "needs root")
    lacks(monkeypatch, UserSlotSandbox, "needs another user")
    assert make_sandbox(AUTO).tier == default_sandbox().tier == "process"


def test_a_machine_without_any_is_told_what_each_needs(monkeypatch: pytest.MonkeyPatch) -> None:
    lacks(monkeypatch, SlotSandbox, "needs root")
    lacks(monkeypatch, UserSlotSandbox, "needs a user")
    lacks(monkeypatch, ProcessSandbox, "needs Linux")
    said = "the slot sandbox needs root; the userns sandbox needs a user; the process sandbox needs Linux"
    with pytest.raises(EnvironmentFault, match=said):
        make_sandbox()


def test_less_than_the_minimum_is_refused_with_what_is_missing(monkeypatch: pytest.MonkeyPatch) -> None:
    lacks(monkeypatch, SlotSandbox, "needs root")
    monkeypatch.setenv("ENVHUB_SANDBOX_MINIMUM", "slot")
    with pytest.raises(
        UserError, match="process promises less than ENVHUB_SANDBOX_MINIMUM=slot: the slot sandbox needs root"
    ):
        default_sandbox()
    monkeypatch.setenv("ENVHUB_SANDBOX_MINIMUM", "process")
    assert default_sandbox().tier == "process"


def test_a_tier_that_is_asked_for_and_is_less_than_the_minimum_is_refused(monkeypatch: pytest.MonkeyPatch) -> None:
    lacks(monkeypatch, SlotSandbox, "")
    monkeypatch.setenv("ENVHUB_SANDBOX", "process")
    monkeypatch.setenv("ENVHUB_SANDBOX_MINIMUM", "slot")
    with pytest.raises(UserError, match="ENVHUB_SANDBOX asks for process"):
        default_sandbox()
    monkeypatch.setenv("ENVHUB_SANDBOX_MINIMUM", "slto")
    with pytest.raises(UserError, match="no sandbox tier named 'slto'; did you mean 'slot'"):
        default_sandbox()


@pytest.mark.parametrize("tier", TIERS)
async def test_a_tier_that_breaks_a_promise_does_not_start(tier: str, monkeypatch: pytest.MonkeyPatch) -> None:
    if missing := TIERS[tier].missing():
        pytest.skip(missing)
    monkeypatch.setitem(probes._ATTEMPTS, "the moon out of reach", "pass")
    sandbox = make_sandbox(tier)
    with pytest.raises(EnvironmentFault, match=f"{tier} sandbox does not hold what it promises: the moon out of reach"):
        await sandbox.start()
    await sandbox.close()


async def test_a_tier_that_cannot_start_says_what_it_needs(monkeypatch: pytest.MonkeyPatch) -> None:
    lacks(monkeypatch, SlotSandbox, "needs root; take the tier process")
    with pytest.raises(EnvironmentFault, match="the slot sandbox needs root; take the tier process"):
        await make_sandbox("slot").start()
