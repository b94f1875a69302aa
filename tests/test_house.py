"""The rules of the house: imports point one way, the README is true and its example runs, the core is torch alone."""

from __future__ import annotations

import ast
import inspect
import re
import subprocess
import sys
import textwrap
from dataclasses import is_dataclass
from itertools import pairwise
from pathlib import Path
from typing import get_type_hints

import torch

import lookbehind
from lookbehind.cli import COMMANDS, parsed

ROOT = Path(__file__).parent.parent
PACKAGE = ROOT / "src" / "lookbehind"
README = (ROOT / "README.md").read_text()
# an import may point to a layer of a lower number only, or stay in its own
LAYERS = {
    "optim": 0,
    "models": 1,
    "data": 1,
    "measures": 1,
    "training": 2,
    "lifelong": 3,
    "translation": 3,
    "experiments": 4,
    "experiments.paper": 5,
    "bench": 5,
    "integrations": 1,
    "commands": 6,
    "cli": 7,
    "__main__": 8,
}


def layer_of(module: str) -> str:
    """The longest name among the layers that a module, without the package's name, belongs to."""
    return max((name for name in LAYERS if f"{module}.".startswith(f"{name}.")), key=len)


def imports_of(path: Path) -> set[str]:
    found = set()
    for node in ast.walk(ast.parse(path.read_text())):
        if isinstance(node, ast.Import):
            found |= {alias.name for alias in node.names}
        elif isinstance(node, ast.ImportFrom):
            assert node.level == 0, f"{path}: relative import"
            found.add(node.module)
    return found


def test_imports_point_one_way():
    checked = 0
    for path in PACKAGE.rglob("*.py"):
        if path == PACKAGE / "__init__.py":
            continue
        here = layer_of(".".join(path.relative_to(PACKAGE).with_suffix("").parts))
        for module in imports_of(path):
            parts = module.split(".")
            if parts[0] == "lookbehind":
                assert len(parts) > 1, f"{path} imports the public package: import the module"
                there = layer_of(".".join(parts[1:]))
                assert there == here or LAYERS[there] < LAYERS[here], f"{path} imports {module}"
                checked += 1
    assert checked > 20


def test_the_core_needs_torch_alone():
    allowed = {"torch", "lookbehind", "typing_extensions", *sys.stdlib_module_names}
    for path in (PACKAGE / "optim").rglob("*.py"):
        assert {module.split(".")[0] for module in imports_of(path)} <= allowed, path


def test_importing_does_not_pull_in_the_distributed_tensors():
    """Importing torch.distributed.tensor takes a second."""
    code = "import torch, sys; a = set(sys.modules); import lookbehind; print(sorted(set(sys.modules) - a))"
    new = ast.literal_eval(
        subprocess.run([sys.executable, "-c", code], capture_output=True, check=True).stdout.decode()
    )
    assert [name for name in new if not name.startswith("lookbehind")] == []


def test_without_the_extras_the_command_line_says_what_to_install():
    code = """
import sys

class Absent:
    def find_spec(self, name, path=None, target=None):
        if name == sys.argv[1]:
            raise ModuleNotFoundError(f"No module named {name!r}", name=name)

sys.meta_path.insert(0, Absent())
import lookbehind.cli
"""
    for absent in ("tyro", "rich"):
        done = subprocess.run([sys.executable, "-c", code, absent], capture_output=True, text=True, check=False)
        assert done.returncode == 1
        assert done.stderr == f"the command line needs {absent}: pip install 'lookbehind[experiments]'\n"


def test_every_public_name_exists_and_has_a_docstring():
    for name in lookbehind.__all__:
        assert (getattr(lookbehind, name).__doc__ or "").strip(), name


def test_the_readme_example_runs_and_learns():
    example = re.findall(r"```python\n(.*?)```", README, re.DOTALL)[0]  # the others: test_docs.py
    scope: dict[str, object] = {}
    torch.manual_seed(0)
    exec(compile(example, "README.md", "exec"), scope)
    assert float(scope["loss"]) < 0.4  # from 0.7
    assert 10 <= len([line for line in example.splitlines() if line.strip()]) <= 16


def test_the_defaults_in_the_readme_are_those_of_the_methods():
    shown = re.findall(r"^\| `(\w+)\(base, ([^)]*=[^)]+)\)`", README.split("## The methods")[1], re.MULTILINE)
    stated = {
        name: dict(one.split("=") for one in values.split(", ")) for name, values in shown if "ascent" not in values
    }
    assert set(stated) == {"SAM", "ASAM", "MultistepSAM", "LookbehindSAM", "RepeatSAM", "Lookahead"}
    for name, values in stated.items():
        parameters = inspect.signature(getattr(lookbehind, name)).parameters
        assert {key: repr(parameters[key].default) for key in values} == values, name
    options = dict(re.findall(r"`(\w+)=([^`]+)`", README.split("Defaults:")[1].split("\n\n")[0]))
    known = {**inspect.signature(lookbehind.SharpnessAware).parameters, **inspect.signature(lookbehind.ASAM).parameters}
    assert {key: repr(known[key].default).replace("'", '"') for key in options} == options


def test_the_map_in_the_readme_is_true():
    shown = set(re.findall(r"\b(\w+\.py)\b", README.split("## The map")[1].split("Imports point")[0]))
    there = {path.name for path in PACKAGE.rglob("*.py")} - {"__init__.py"}
    assert there <= shown, f"the README's map lacks {there - shown}"
    missing = {
        name
        for name in shown
        if not any(any((ROOT / top).rglob(name)) for top in ("src", "examples", "docs", "benchmarks"))
    }
    assert not missing, f"the README's map shows {missing}"


def test_links_in_the_documents_point_to_files():
    for document in ROOT.glob("*.md"):
        for target in re.findall(r"\]\(([^)#]+?)\)|src=\"([^\"]+)\"", document.read_text()):
            path = target[0] or target[1]
            if not path.startswith("http"):
                assert (ROOT / path).exists(), f"{document.name}: {path}"


def test_the_demo_is_the_command_that_the_readme_shows():
    makefile = (ROOT / "Makefile").read_text()
    (demo,) = re.findall(r"^demo:.*\n\t\$\(RUN\)/(lookbehind compare .*)$", makefile, re.MULTILINE)
    assert demo in README
    command = parsed(demo.split()[1:])
    assert command.comparison.methods == ("sgd", "sam", "asam", "lookbehind-sam", "lookbehind-asam")
    assert (command.comparison.seeds, command.comparison.settings.data) == (3, "digits")
    assert command.comparison.measures.measures == ("sharpness", "noise")
    assert command.comparison.storage.out == Path("out/demo")


def test_every_option_has_a_help_text_of_one_line():
    """tyro would break a longer one in the middle of a sentence."""
    found, open_ones = {}, [get_type_hints(kind, include_extras=False) for kind in COMMANDS.values()]
    while open_ones:
        for kind in open_ones.pop().values():
            if is_dataclass(kind) and kind not in found:
                found[kind] = ast.parse(textwrap.dedent(inspect.getsource(kind))).body[0].body
                open_ones.append(get_type_hints(kind))
    assert {"Settings", "Storage", "Measures", "Reproduction", "LifelongRun"} <= {kind.__name__ for kind in found}
    for kind, body in found.items():
        for before, after in pairwise(body):
            if isinstance(before, ast.AnnAssign) and isinstance(after, ast.Expr):
                assert "\n" not in after.value.value, (kind, before.target.id)
