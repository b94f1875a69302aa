"""The command line: what is asked is parsed, and handed to its command."""

from __future__ import annotations

import shlex
import sys
import warnings
from collections.abc import Sequence
from importlib.metadata import version
from typing import Annotated, Any

try:
    import tyro
    from rich.console import Console

    from lookbehind.commands.bench import Bench
    from lookbehind.commands.compare import Compare
    from lookbehind.commands.evaluate import Evaluate
    from lookbehind.commands.lifelong import Lifelong
    from lookbehind.commands.list import List
    from lookbehind.commands.reproduce import Reproduce
    from lookbehind.commands.shared import INTERRUPTED, say
    from lookbehind.commands.train import Train
    from lookbehind.commands.translate import Translate
    from lookbehind.commands.translation import Translation
    from lookbehind.training.allocator import keep_memory
except ImportError as error:  # the core installs with torch alone
    sys.exit(f"the command line needs {error.name}: pip install 'lookbehind[experiments]'")

Command = Compare | Train | Lifelong | Translation | Translate | Evaluate | Reproduce | Bench | List
COMMANDS: dict[str, type[Command]] = {
    "compare": Compare,
    "train": Train,
    "lifelong": Lifelong,
    "translation": Translation,
    "translate": Translate,
    "evaluate": Evaluate,
    "reproduce": Reproduce,
    "bench": Bench,
    "list": List,
}


def parsed(arguments: Sequence[str]) -> Command:
    """The command in a command line; prints help or what is wrong, and exits, if that is what it asks for."""
    config = (tyro.conf.OmitArgPrefixes,)
    if list(arguments) == ["--version"]:
        print(f"lookbehind {version('lookbehind')}")
        sys.exit(0)
    if not arguments:
        arguments = ["--help"]
    flags = [word.split("=")[0] for word in arguments if word.startswith("--")]
    if twice := next((flag for flag in flags if flags.count(flag) > 1), None):
        raise ValueError(f"{twice} is there twice: give all its values together, {twice} A B")
    if arguments[0] in COMMANDS:  # one parser per command: its errors are about that command only
        name, *rest = arguments
        return tyro.cli(COMMANDS[name], prog=f"lookbehind {name}", args=rest, config=config)
    choices = tuple(Annotated[kind, tyro.conf.subcommand(name)] for name, kind in COMMANDS.items())
    union: Any = choices[0]
    for choice in choices[1:]:
        union = union | choice
    command: Command = tyro.cli(union, prog="lookbehind", args=list(arguments), config=config)
    return command


def main(arguments: Sequence[str] | None = None) -> int:
    """The program."""
    if arguments is None:  # the process is ours alone
        keep_memory()
    arguments = sys.argv[1:] if arguments is None else list(arguments)
    console = Console()
    errors = Console(stderr=True)
    warnings.showwarning = lambda message, *_, **__: say(errors, f"note: {message}")
    try:
        return parsed(arguments)(console, shlex.join(["lookbehind", *arguments]))
    except (ValueError, TypeError, OSError, RuntimeError, ImportError) as error:
        say(errors, f"error: {error}")
        return 2
    except KeyboardInterrupt:
        say(errors, "stopped")
        return INTERRUPTED


if __name__ == "__main__":
    sys.exit(main())
