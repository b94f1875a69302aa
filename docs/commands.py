"""Puts the help of every command into docs/commands.md while the site is built: a hook of mkdocs.

It is what `lookbehind COMMAND --help` prints, so that page and program cannot differ.
"""

import io
import os
from contextlib import redirect_stdout, suppress
from typing import Any
from unittest import mock

PAGE, MARK = "commands.md", "<!-- the help of every command -->"
WIDTH = "80"  # what fits the page


def on_page_markdown(markdown: str, page: Any, **rest: Any) -> str:
    """Of mkdocs, called for every page."""
    return markdown.replace(MARK, helps()) if page.file.src_uri == PAGE else markdown


def helps() -> str:
    """A section per command."""
    from lookbehind.cli import COMMANDS  # only for this page

    return "\n\n".join(f"## {name}\n\n```text\n{help_of(name)}\n```" for name in COMMANDS)


def help_of(command: str) -> str:
    """What `lookbehind COMMAND --help` prints."""
    from lookbehind.cli import parsed

    printed = io.StringIO()
    terminal = mock.patch.dict(os.environ, {"COLUMNS": WIDTH, "NO_COLOR": "1"})
    with terminal, redirect_stdout(printed), suppress(SystemExit):  # with which it ends
        parsed([command, "--help"])
    return printed.getvalue().strip()
