"""An environment with tools: find out from a warehouse's shelves how many pieces of an item there are in all."""

import random

from envhub import Action, GeneratedTasks, Task, ToolCall, ToolEnvironment, ToolError, tool

ITEMS = ("bolts", "nuts", "hinges", "brackets", "screws", "washers")


def make_task(rng: random.Random) -> Task:
    shelves = {f"shelf-{n}": {item: rng.randint(1, 40) for item in rng.sample(ITEMS, 3)} for n in range(1, 5)}
    item = rng.choice(sorted({name for shelf in shelves.values() for name in shelf}))
    total = sum(shelf.get(item, 0) for shelf in shelves.values())
    question = f"How many {item} are there on all shelves together? Use the tools, then answer with the number only."
    return Task(question, answer=str(total), info={"shelves": shelves, "item": item})


def correct(text: str, answer: str) -> float:
    return float(text.strip() == answer)


class WarehouseEnvironment(ToolEnvironment):
    """Add up what the shelves hold of an item. Reward 1 for the right sum."""

    tasks = GeneratedTasks("warehouse", make_task)
    rewards = (correct,)

    @tool
    def list_shelves(self) -> list[str]:
        """The names of all shelves."""
        return list(self.task.info["shelves"])

    @tool
    def count(self, shelf: str, item: str) -> int:
        """How many pieces of an item a shelf holds.

        Args:
            shelf: name of the shelf
            item: name of the item
        """
        shelves = self.task.info["shelves"]
        if shelf not in shelves:
            raise ToolError(f"there is no {shelf!r}; the shelves are {', '.join(shelves)}")
        return int(shelves[shelf].get(item, 0))

    def oracle(self) -> str | Action:
        asked = sum(len(message.tool_calls) for message in self.messages)
        shelves = list(self.task.info["shelves"])
        if asked == 0:
            return Action(tool_calls=(ToolCall("call_0", "list_shelves", {}),))
        if asked <= len(shelves):
            arguments = {"shelf": shelves[asked - 1], "item": self.task.info["item"]}
            return Action(tool_calls=(ToolCall(f"call_{asked}", "count", arguments),))
        return self.task.answer
