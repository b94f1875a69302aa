"""The documentation is true: its code runs, its commands are understood, its pages name all that is public."""

from __future__ import annotations

import os
import re
import shlex
import subprocess
import sys
import warnings
from pathlib import Path
from types import SimpleNamespace

import pytest
import torch
from docs_tools import ROOT, tool

import lookbehind
from lookbehind.cli import COMMANDS, parsed

PAGES = [ROOT / "README.md", ROOT / "CONTRIBUTING.md", *sorted((ROOT / "docs").glob("*.md"))]
TARGETS = set(re.findall(r"^(\w+):", (ROOT / "Makefile").read_text(), re.MULTILINE))
EXTRAS = set(re.findall(r"^(\w+) = \[", (ROOT / "pyproject.toml").read_text(), re.MULTILINE))
PIECE = re.compile(r"^<!-- (?:prelude|check)\n(.*?)^-->$|^```python\n(.*?)^```$", re.DOTALL | re.MULTILINE)


def pieces(page: Path) -> list[str]:
    """The Python of a page in its order: code blocks, and what stands in comments before and after them."""
    return [hidden or shown for hidden, shown in PIECE.findall(page.read_text())]


def commands(page: Path) -> list[str]:
    blocks = re.findall(r"^```bash\n(.*?)^```$", page.read_text(), re.DOTALL | re.MULTILINE)
    return [line for block in blocks for line in block.replace("\\\n", " ").splitlines() if line.strip()]


@pytest.mark.parametrize("page", [page for page in PAGES if pieces(page)], ids=lambda page: page.stem)
def test_the_code_of_a_page_runs(page, tmp_path, monkeypatch):
    monkeypatch.chdir(tmp_path)
    torch.manual_seed(0)  # readers have other random numbers every time; what is checked after the code should not
    namespace: dict[str, object] = {"__name__": page.stem}
    with warnings.catch_warnings():
        warnings.simplefilter("default")  # of other libraries
        for number, code in enumerate(pieces(page), 1):
            if "fully_shard" in code and tuple(map(int, torch.__version__.split(".")[:2])) < (2, 7):
                break  # it needs a GPU there
            exec(compile(code, f"{page.name}, piece {number}", "exec"), namespace)


@pytest.mark.parametrize("page", [page for page in PAGES if commands(page)], ids=lambda page: page.stem)
def test_the_commands_of_a_page_are_understood(page):
    for line in commands(page):
        if line.startswith("#"):
            continue
        program, *arguments = shlex.split(line, comments=True)
        if program == "lookbehind":
            parsed(arguments)
        elif program == "make":
            assert arguments[0] in TARGETS, line
        elif program == "pip":
            (extras,) = re.findall(r"\[(.*)\]", arguments[-1])
            assert set(extras.split(",")) <= EXTRAS, line
        else:
            assert program in ("source", "python"), line
            assert program == "source" or arguments[:1] == ["-m"] or (ROOT / arguments[0]).exists(), line


def test_every_block_says_what_it_is():
    """So that none is left out of the tests above."""
    for page in PAGES:
        kinds = re.findall(r"^```(\w*)\n.*?^```$", page.read_text(), re.DOTALL | re.MULTILINE)
        assert set(kinds) <= {"python", "bash", "text"}, page


def test_every_public_name_is_in_the_reference():
    reference = (ROOT / "docs" / "api.md").read_text()
    for name in lookbehind.__all__:
        assert f"::: lookbehind.{name}\n" in reference, name
        assert getattr(lookbehind, name).__doc__, name


def test_every_name_that_is_imported_somewhere_is_in_the_reference():
    """By itself, or with its whole module."""
    reference = set(re.findall(r"^::: (.+)$", (ROOT / "docs" / "api.md").read_text(), re.MULTILINE))
    pages = [*PAGES, *(ROOT / "examples").glob("*.py")]
    # hidden parts of pages are checks of ours
    shown = [re.sub(r"^<!-- .*?^-->$", "", page.read_text(), flags=re.DOTALL | re.MULTILINE) for page in pages]
    imports = {
        pair for text in shown for pair in re.findall(r"^ *from (lookbehind\S*) import (.+)$", text, re.MULTILINE)
    }
    names = {f"{module}.{name.strip()}" for module, words in imports for name in words.split("#")[0].split(",")}
    assert len(names) > 20
    missing = {name for name in names if name not in reference and name.rpartition(".")[0] not in reference}
    assert missing == set()


def test_every_page_is_in_the_navigation():
    navigation = (ROOT / "mkdocs.yml").read_text()
    for page in [*PAGES[2:], *(ROOT / "docs" / "results").rglob("*.md")]:
        assert page.relative_to(ROOT / "docs").as_posix() in navigation, page


def test_the_site_builds_strictly(tmp_path):
    """Broken links, pages outside the navigation and unknown names are errors."""
    pytest.importorskip("mkdocs")
    command = [sys.executable, "-m", "mkdocs", "build", "--strict", "--site-dir", str(tmp_path)]
    done = subprocess.run(
        command, cwd=ROOT, capture_output=True, text=True, env={**os.environ, "NO_MKDOCS_2_WARNING": "1"}
    )
    assert done.returncode == 0, done.stderr
    reference = (tmp_path / "api" / "index.html").read_text()
    assert "Lookbehind-SAM: climb" in reference
    assert "<blockquote>" not in reference  # examples are code, not quotations of quotations of quotations


def test_the_page_of_the_command_line_has_the_help_of_every_command():
    hook = tool("commands")
    page = (ROOT / "docs" / "commands.md").read_text()
    built = hook.on_page_markdown(page, page=SimpleNamespace(file=SimpleNamespace(src_uri="commands.md")))
    for name in COMMANDS:
        section = built.split(f"\n## {name}\n")[1].split("\n## ")[0]
        assert f"usage: lookbehind {name}" in section
        assert "show this help message and exit" in section
    assert "--search-tasks" in built.split("\n## reproduce\n")[1]
    other = SimpleNamespace(file=SimpleNamespace(src_uri="index.md"))
    assert hook.on_page_markdown(page, page=other) == page
