"""A launcher places the parts of a run: here, all of them in this process."""

from abc import ABC, abstractmethod
from pathlib import Path

from envhub.trainer.optimizer import Optimization
from envhub.trainer.strategy import Strategy, TorchStrategy


class Launcher(ABC):
    """Starts strategies where they are to run, and ends them."""

    @abstractmethod
    def strategy(
        self, model: Path, options: Optimization, *, reference: Path | None, critic: Optimization | None, device: str
    ) -> Strategy:
        """A strategy that holds the model of a folder and, where they are given, a reference and a critic."""

    @abstractmethod
    def close(self) -> None:
        """End what was started."""


class LocalLauncher(Launcher):
    """One process, one device."""

    def strategy(
        self, model: Path, options: Optimization, *, reference: Path | None, critic: Optimization | None, device: str
    ) -> Strategy:
        return TorchStrategy(model, options, reference=reference, critic=critic, device=device)

    def close(self) -> None:
        """Nothing runs elsewhere."""
