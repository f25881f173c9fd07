"""The contract of a renderer: messages to token ids, and only what is new each turn."""

from abc import ABC, abstractmethod
from collections.abc import Sequence
from dataclasses import dataclass

from envhub.errors import UserError
from envhub.messages import Message, ToolSpec


class TemplateError(UserError):
    """A chat template refuses a conversation."""


@dataclass(frozen=True, slots=True)
class Continuation:
    """How the recorded tokens go on after a sampled turn.

    `token_ids` are to be appended to the record as they are. None says that the template rewrites the history, for
    `cause`: the whole conversation must be rendered anew as a fork.
    """

    token_ids: tuple[int, ...] | None
    cause: str = ""


class Renderer(ABC):
    """Turns messages into the token ids of one model. Stateless; may be shared by all rollouts."""

    name: str = "renderer"
    stop_token_ids: tuple[int, ...] = ()

    @abstractmethod
    def render(self, messages: Sequence[Message], tools: Sequence[ToolSpec] = ()) -> list[int]:
        """The ids of the whole conversation, ending where the assistant is to speak."""

    @abstractmethod
    def continue_from(
        self,
        history: Sequence[Message],
        sampled_ids: Sequence[int],
        new: Sequence[Message],
        tools: Sequence[ToolSpec] = (),
    ) -> Continuation:
        """The ids to append when `new` messages follow a sampled turn.

        `history` ends with the assistant's message that was sampled as `sampled_ids`. A turn that was cut off before
        its end-of-turn token is closed first. Sampled ids are never rendered again.
        """

    @abstractmethod
    def decode(self, token_ids: Sequence[int]) -> str:
        """The text of sampled ids without the special tokens that end a turn."""
