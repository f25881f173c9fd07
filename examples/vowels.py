"""A dense reward: the share of vowels in what the model writes. A model of random weights learns it in a minute."""

from envhub import GeneratedTasks, Limits, SingleTurnEnvironment, Task


def vowels(text: str) -> float:
    """The share of the text's characters that are lower-case vowels."""
    return sum(char in "aeiou" for char in text) / max(1, len(text))


class VowelsEnvironment(SingleTurnEnvironment):
    """Write vowels. Reward: their share of the text."""

    tasks = GeneratedTasks(
        "vowels", lambda rng: Task(f"Write vowels, please ({rng.randrange(10**6)}).", answer="aeiou")
    )
    rewards = (vowels,)
    limits = Limits(max_turns=1, max_turn_tokens=12)
