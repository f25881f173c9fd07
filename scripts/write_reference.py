"""Write docs/reference/ from the code: `python scripts/write_reference.py`. A test asserts that it is up to date."""

import sys
from pathlib import Path

import click

ROOT = Path(__file__).resolve().parent.parent


def cli() -> str:
    """The command line's reference."""
    from envhub.cli.app import COMMANDS, load_command

    parts = [
        "# Command line\n",
        "Written from the code by `scripts/write_reference.py`. Exit codes: 0 done, 1 failed, 2 the user's mistake, 130 "
        "interrupted. `--debug`, anywhere, shows the traceback of an error.\n",
    ]
    for name in COMMANDS:
        command = load_command(name)
        parts.append(help_of(f"envhub {name}", command))
        if isinstance(command, click.Group):
            parts += [help_of(f"envhub {name} {part}", inner) for part, inner in command.commands.items()]
    return "\n".join(parts)


def help_of(name: str, command: click.Command) -> str:
    """The section of one command."""
    context = click.Context(command, info_name=name, max_content_width=110, terminal_width=110)
    context.help_option_names = ["-h", "--help"]
    return f"## {name}\n\n```text\n{command.get_help(context).strip()}\n```\n"


def configuration() -> str:
    """The reference of the typed configurations."""
    from envhub.agents.engines.openai import OpenAIOptions
    from envhub.agents.engines.scripted import ScriptedOptions
    from envhub.agents.engines.transformers_engine import TransformersOptions
    from envhub.agents.engines.vllm_engine import VllmOptions
    from envhub.cli.commands.eval import EvalConfig
    from envhub.limits import Limits
    from envhub.sandbox import SandboxLimits
    from envhub.trainer.config import PRESETS, TrainConfig
    from envhub.trainer.sft.config import SftConfig

    parts = ["# Configuration\n", "Written from the code by `scripts/write_reference.py`. Unknown keys are errors.\n"]
    for title, model in (
        ("envhub train", TrainConfig),
        ("envhub sft", SftConfig),
        ("envhub eval", EvalConfig),
        ("limits of an episode", Limits),
        ("limits of the sandbox", SandboxLimits),
        ("engine vllm", VllmOptions),
        ("engine transformers", TransformersOptions),
        ("engine openai", OpenAIOptions),
        ("engine scripted", ScriptedOptions),
    ):
        parts.append(
            f"## {title}\n\n{' '.join((model.__doc__ or '').split())}\n\n| key | type | default | |\n|---|---|---|---|"
        )
        for name, field in model.model_fields.items():
            default = "required" if field.is_required() else repr(field.get_default(call_default_factory=True))
            kind = (
                getattr(field.annotation, "__name__", str(field.annotation)).replace("|", "\\|").replace("typing.", "")
            )
            parts.append(f"| `{name}` | {kind} | `{default}` | {field.description or ''} |")
        parts.append("")
    parts.append("## presets of envhub train\n\n| key | " + " | ".join(PRESETS) + " |\n|---|" + "---|" * len(PRESETS))
    for key in dict.fromkeys(key for preset in PRESETS.values() for key in preset):
        parts.append(f"| `{key}` | " + " | ".join(f"{preset.get(key, '')}" for preset in PRESETS.values()) + " |")
    return "\n".join(parts) + "\n"


def pages() -> dict[Path, str]:
    """Every generated page with its text."""
    folder = ROOT / "docs" / "reference"
    return {folder / "cli.md": cli(), folder / "configuration.md": configuration()}


if __name__ == "__main__":
    for path, text in pages().items():
        path.parent.mkdir(parents=True, exist_ok=True)
        path.write_text(text, encoding="utf-8")
        print(f"wrote {path.relative_to(ROOT)}", file=sys.stderr)
