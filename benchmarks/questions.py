"""Questions whose answers are long and earn different rewards: what the trainer and TRL are both given."""

from envhub import ListTasks, SingleTurnEnvironment, Task

QUESTIONS = (
    "Tell a story about a fox and a well.",
    "Explain to a child why the sky is blue.",
    "Describe a walk through a market in the morning.",
    "How is bread made? Tell it step by step.",
)


def share(text: str) -> float:
    """The share of the text's characters that are lower-case vowels: hardly ever the same for two answers."""
    return sum(char in "aeiou" for char in text) / max(1, len(text))


class Questions(SingleTurnEnvironment):
    """Answer a question in many vowels."""

    tasks = ListTasks("questions", {"train": [Task(question) for question in QUESTIONS]})
    rewards = (share,)
