"""What the commands share: options from pydantic models, `key=value` pairs, and readable tables."""

import importlib.util
import json
import types
import typing
from collections.abc import Callable, Iterable, Mapping
from typing import Annotated, Any, Literal, TypeVar, get_args, get_origin

import click
from pydantic import BaseModel
from pydantic.fields import FieldInfo

from envhub.errors import MissingExtraError, UserError
from envhub.strict_json import NotJsonError, loads

_CONSTANTS = ("NaN", "Infinity", "-Infinity")  # of JavaScript, not of JSON: text, which numbers are read from
F = TypeVar("F", bound=Callable[..., Any])


def pairs(values: Iterable[str], flag: str) -> dict[str, Any]:
    """`key=value` pairs as a dictionary; values are JSON where they parse as such, else text. Raises UserError."""
    out: dict[str, Any] = {}
    for value in values:
        key, separator, text = value.partition("=")
        if not separator or not key.strip():
            raise UserError(f"{flag} takes KEY=VALUE, not {value!r}")
        try:
            out[key.strip()] = loads(text)
        except json.JSONDecodeError:
            out[key.strip()] = text
        except NotJsonError as problem:
            if text.strip() not in _CONSTANTS:
                raise UserError(f"{flag} {key.strip()}: the value is {problem}") from None
            out[key.strip()] = text
    return out


def config_option(help: str = "Configuration of the environment.") -> Callable[[F], F]:
    """`--config KEY=VALUE`, again and again, as a dictionary."""

    def read(ctx: click.Context, parameter: click.Parameter, values: tuple[str, ...]) -> dict[str, Any]:
        return pairs(values, "--config")

    return click.option("--config", multiple=True, metavar="KEY=VALUE", help=help, callback=read)


def require_packages(what: str, *packages: str) -> None:
    """Raise MissingExtraError, which names the extra `train`, where one of its packages is not installed."""
    if any(importlib.util.find_spec(package) is None for package in packages):
        raise MissingExtraError(what, "train")


def options_of(model: type[BaseModel], *, skip: Iterable[str] = ()) -> list[click.Parameter]:
    """A `--flag` for every field of a model; given again and again for a field of several values, or (`KEY=VALUE`) of pairs."""
    return [_option(name, field) for name, field in model.model_fields.items() if name not in set(skip)]


def _option(name: str, field: FieldInfo) -> click.Option:
    flag = f"--{name.replace('_', '-')}"
    text = field.description or ""
    kind = _plain(field.annotation)
    if get_origin(kind) is dict or kind is dict:
        return click.Option([flag], multiple=True, metavar="KEY=VALUE", help=text)
    if get_origin(kind) is tuple:
        return click.Option([flag], multiple=True, metavar="TEXT", help=text)
    if not field.is_required() and field.default is not None:
        text += f" [default: {_shown(field.default)}]"
    if kind is bool:
        return click.Option([f"{flag}/--no-{name.replace('_', '-')}"], default=None, help=text)
    if get_origin(kind) is Literal:
        return click.Option([flag], default=None, metavar="|".join(map(str, get_args(kind))), help=text)
    metavar = {int: "INTEGER", float: "NUMBER", str: "TEXT"}.get(kind, "PATH")
    return click.Option([flag], default=None, metavar=metavar, help=text)


def _plain(annotation: Any) -> Any:
    """The type without `| None`, and without what `Annotated` adds."""
    if get_origin(annotation) is Annotated:
        return _plain(get_args(annotation)[0])
    if get_origin(annotation) in (types.UnionType, typing.Union):
        return _plain(next(item for item in get_args(annotation) if item is not type(None)))
    return annotation


def _shown(value: Any) -> str:
    return ("yes" if value else "no") if isinstance(value, bool) else str(value)


def given(model: type[BaseModel], values: Mapping[str, Any]) -> dict[str, Any]:
    """The values of `options_of` that were given, those of several put together."""
    out = {}
    for name, field in model.model_fields.items():
        value = values.get(name)
        kind = _plain(field.annotation)
        if get_origin(kind) is dict or kind is dict:
            if value:
                out[name] = pairs(value, f"--{name.replace('_', '-')}")
        elif value is not None and value != ():
            out[name] = value
    return out
