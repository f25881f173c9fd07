"""Flags from the fields of a model."""

from typing import Annotated

import pytest
from pydantic import BaseModel, Field

from envhub.cli.options import options_of
from envhub.trainer.config import TrainConfig
from envhub.trainer.sft.config import SftConfig

Bounded = Annotated[float, Field(ge=0)]


class Sizes(BaseModel):
    plain: float = 1.0
    maybe: float | None = None
    bounded: Bounded = 1.0
    maybe_bounded: Bounded | None = None
    whole: Annotated[int | None, Field(ge=1)] = None


@pytest.mark.parametrize(
    ("name", "metavar"),
    [
        ("plain", "NUMBER"),
        ("maybe", "NUMBER"),
        ("bounded", "NUMBER"),
        ("maybe_bounded", "NUMBER"),
        ("whole", "INTEGER"),
    ],
)
def test_a_flag_says_what_it_takes(name: str, metavar: str) -> None:
    (found,) = [option for option in options_of(Sizes) if option.name == name]
    assert found.metavar == metavar


@pytest.mark.parametrize("model", [TrainConfig, SftConfig])
def test_every_flag_says_what_it_is(model: type[BaseModel]) -> None:
    assert [option.name for option in options_of(model) if not getattr(option, "help", None)] == []
