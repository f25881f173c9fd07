"""What is a choice in judging an answer, with the defaults."""

from typing import Literal

from pydantic import BaseModel, ConfigDict, Field


class Policy(BaseModel):
    """Choices that a task set may make otherwise. Each default is the strict reading that still takes usual notation."""

    model_config = ConfigDict(frozen=True, extra="forbid")

    unclosed_box: bool = Field(False, description="a box that the end of the text cuts off counts as closed there")
    box_in_reasoning: bool = Field(False, description="a box before the last </think> counts where none follows it")
    differing_boxes: Literal["wrong", "last"] = Field(
        "wrong",
        description="boxes in one sentence, joined by or, and, or a comma, that differ: no answer, or the last of them",
    )
    decimals: Literal["exact", "half_unit"] = Field(
        "exact", description="an answer to a decimal gold answer equals it, or rounds to its digits"
    )
    long_decimal: int = Field(
        12,
        ge=1,
        le=40,
        description="digits after the point from which a decimal may stand for an exact gold answer that it rounds; 0 stands for 0 only",
    )
    missing_unit: bool = Field(True, description="an answer may leave out the gold answer's unit (percent signs never)")
    convert_units: bool = Field(True, description="100 cm for 1 m")
    extra_unit: bool = Field(True, description="an answer may have a known unit where the gold answer has none")
    radians: bool = Field(True, description="radians for a gold answer in degrees")
    bare_list_for_set: bool = Field(True, description="1, 2 for {1, 2}")
    ordered_lists: bool = Field(False, description="the order of a list without brackets counts")
    vector_as_tuple: bool = Field(True, description="(1, 2) for a column vector")
    scaled_ratio: bool = Field(True, description="2:4 for 1:2")
    inequality_for_interval: bool = Field(True, description="0 < x <= 1 for (0, 1], and the other way round")
    absorb_constant: bool = Field(False, description="a constant C takes up what is added: x + 5 + C for x + C")
    positive_variables: bool = Field(
        False, description="expressions are compared where all variables are positive only"
    )
