import pytest

import envhub
from envhub.environments.guess_number import GuessNumberEnvironment
from envhub.errors import ConfigError


def begin(seed: int = 3, **config: int) -> GuessNumberEnvironment:
    environment = GuessNumberEnvironment(config)
    environment.reset(seed=seed)
    return environment


def test_the_right_guess_at_once_pays_one():
    game = begin()
    assert game.step(str(game.secret))[1:4] == (1.0, True, False)


def test_each_guess_before_the_right_one_costs():
    game = begin(high=100, guesses=4)
    game.step(str(game.secret + 1))
    assert game.step(f"It is {game.secret}.")[1] == pytest.approx(1 - 0.5 / 4)


@pytest.mark.parametrize("text", ["", "no idea", "1 2", "nan", "1e309", "\x00", "9" * 500])
def test_an_unreadable_guess_is_answered_and_costs_a_guess(text: str):
    game = begin()
    observation, reward, terminated, truncated, _ = game.step(text)
    assert (reward, terminated, truncated) == (0.0, False, False)
    assert "7 guesses left" in observation


def test_the_last_wrong_guess_ends_the_game_without_reward():
    game = begin(guesses=1)
    observation, reward, terminated, _, info = game.step("0")
    assert (reward, terminated, info) == (0.0, True, {"solved": False})
    assert str(game.secret) in observation


def test_the_oracle_always_finds_it():
    for seed in range(50):
        game = begin(seed=seed)
        while True:
            _, reward, terminated, _, _ = game.step(game.oracle())
            if terminated:
                break
        assert reward > 0


def test_a_misspelt_key_is_named():
    with pytest.raises(ConfigError, match="did you mean 'guesses'"):
        envhub.make("guess_number", guess=3)
