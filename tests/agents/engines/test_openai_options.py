from typing import Any

import pytest

from envhub.agents.engines.openai import OpenAIEngine
from envhub.errors import ConfigError, UserError


@pytest.fixture(autouse=True)
def _no_settings(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.delenv("OPENAI_API_KEY", raising=False)
    monkeypatch.delenv("OPENAI_BASE_URL", raising=False)


async def test_a_key_is_needed_except_on_this_machine(monkeypatch) -> None:
    for host in ("localhost", "127.0.0.1", "[::1]"):
        engine = OpenAIEngine("m", base_url=f"http://{host}:1/v1")
        await engine.start()
        await engine.close()
    with pytest.raises(
        UserError, match=r"https://api.openai.com/v1/chat/completions needs a key; set .* OPENAI_API_KEY"
    ):
        await OpenAIEngine("m").start()


@pytest.mark.parametrize("key", ["schlüssel", "sk-a\nb"])
async def test_a_garbled_key_is_refused_unshown(monkeypatch, key: str) -> None:
    monkeypatch.setenv("OPENAI_API_KEY", key)
    with pytest.raises(UserError, match="the key in OPENAI_API_KEY has characters") as caught:
        await OpenAIEngine("m").start()
    assert key not in str(caught.value)


@pytest.mark.parametrize(
    ("options", "told"),
    [
        ({"base_ulr": "x"}, "did you mean 'base_url'"),
        ({"base_url": "localhost:8000/v1"}, "begins with http:// or https://"),
        ({"base_url": "http://host:port/v1"}, "base_url"),
        ({"timeout": 0}, "timeout"),
        ({"extra_body": {"stream": True, "n": 2}}, "the engine itself decides n, stream"),
    ],
)
def test_wrong_options_are_named(options: dict[str, Any], told: str) -> None:
    with pytest.raises(ConfigError, match=told):
        OpenAIEngine("m", **options)


@pytest.mark.parametrize("url", ["http://me:secret@localhost/v1", "http://localhost/v1?key=secret"])
def test_an_address_holds_no_secret(url: str) -> None:
    with pytest.raises(UserError, match="holds no user, password or query") as caught:
        OpenAIEngine("m", base_url=url)
    assert "secret" not in str(caught.value)


def test_the_address_comes_from_the_environment_and_the_context_from_the_options(monkeypatch) -> None:
    monkeypatch.setenv("OPENAI_BASE_URL", "http://localhost:8000/v1/")
    engine = OpenAIEngine("m", max_context=100)
    assert (engine.options.base_url, engine.max_context, engine.speaks) == ("http://localhost:8000/v1", 100, "chat")
    monkeypatch.setenv("OPENAI_BASE_URL", "nowhere")
    with pytest.raises(ConfigError, match="base_url"):
        OpenAIEngine("m")
