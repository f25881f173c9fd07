"""Weight transfers move the policy's weights from a strategy to an engine."""

import asyncio
import time
from abc import ABC, abstractmethod
from pathlib import Path

from safetensors import SafetensorError

from envhub.agents.engines import Engine, WeightUpdate
from envhub.agents.engines.weights import write_weights
from envhub.errors import EngineFault, UserError, did_you_mean
from envhub.trainer.strategy import Strategy


class WeightTransfer(ABC):
    """Gives an engine the strategy's weights as a version that counts up by one with each transfer."""

    async def send(self, strategy: Strategy, engine: Engine, version: int) -> float:
        """Transfer and return the seconds it took. Raises EngineFault where the engine does not have the version then."""
        begun = time.monotonic()
        update = await asyncio.to_thread(self.update, strategy, version, whole=not engine.takes_part)
        await engine.update_weights(update)
        if engine.weight_version != version:
            raise EngineFault(
                f"engine {engine.name!r} is at weight version {engine.weight_version} after an update to {version}"
            )
        return time.monotonic() - begun

    @abstractmethod
    def update(self, strategy: Strategy, version: int, *, whole: bool) -> WeightUpdate:
        """What the engine is given: the whole model, or what training changes.

        Raises UserError where it cannot be written.
        """


class SameMemory(WeightTransfer):
    """The engine reads the strategy's tensors: copied in this process, or through shared memory by an engine that has a
    process of its own."""

    def update(self, strategy: Strategy, version: int, *, whole: bool) -> WeightUpdate:
        return WeightUpdate(version, tensors=strategy.named_tensors(whole=whole))


class ModelFolder(WeightTransfer):
    """The engine reads a file of weights in a folder: for engines on another machine with a shared disk."""

    def __init__(self, folder: Path) -> None:
        self.folder = folder

    def update(self, strategy: Strategy, version: int, *, whole: bool) -> WeightUpdate:
        try:
            write_weights(strategy.named_tensors(whole=whole), self.folder / "model.safetensors")
        except (OSError, SafetensorError) as problem:
            raise UserError(f"cannot write the weights to {self.folder}: {problem}") from problem
        return WeightUpdate(version, path=self.folder)


def make_transfer(name: str, folder: Path) -> WeightTransfer:
    """The transfer `memory` or `folder`. Raises UserError for another name."""
    if name == "memory":
        return SameMemory()
    if name == "folder":
        return ModelFolder(folder)
    raise UserError(
        f"no weight transfer {name!r}; there are memory and folder{did_you_mean(name, ('memory', 'folder'))}"
    )
