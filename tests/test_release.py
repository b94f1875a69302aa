"""What is released: an sdist and a wheel that are whole, agree on their version, and work with torch alone."""

from __future__ import annotations

import re
import subprocess
import sys
import tarfile
import venv
import zipfile
from importlib.metadata import distribution
from pathlib import Path

import pytest
from packaging.requirements import Requirement

import lookbehind

ROOT = Path(__file__).parent.parent


@pytest.fixture(scope="module")
def built(tmp_path_factory) -> Path:
    out = tmp_path_factory.mktemp("dist")
    command = [sys.executable, "-m", "build", "--no-isolation", "--outdir", str(out), str(ROOT)]
    done = subprocess.run(command, capture_output=True, text=True)
    assert done.returncode == 0, done.stdout + done.stderr
    return out


def test_the_wheel_has_the_whole_package_and_nothing_else(built):
    (wheel,) = built.glob("*.whl")
    names = set(zipfile.ZipFile(wheel).namelist())
    info = f"lookbehind-{lookbehind.__version__}.dist-info/"
    source = ROOT / "src"
    wanted = {path.relative_to(source).as_posix() for path in source.rglob("*") if path.is_file()}
    assert {name for name in names if not name.startswith(info)} == {n for n in wanted if not n.endswith(".pyc")}
    assert {"lookbehind/py.typed", f"{info}licenses/LICENSE"} <= names


def test_the_sdist_can_be_tested_and_cited(built):
    (sdist,) = built.glob("*.tar.gz")
    with tarfile.open(sdist) as archive:
        names = {name.partition("/")[2] for name in archive.getnames()}
    assert {"README.md", "CHANGELOG.md", "CITATION.cff", "LICENSE", "Makefile", "constraints.txt"} <= names
    assert {"tests/reference.py", "examples/cifar10.py", "docs/index.md", "src/lookbehind/py.typed"} <= names
    assert not [name for name in names if name.startswith((".venv", "out/", "data/", "site/", ".git/"))]


def test_the_version_is_the_same_everywhere():
    version = lookbehind.__version__
    assert re.fullmatch(r"\d+\.\d+\.\d+", version)
    assert f"version: {version}\n" in (ROOT / "CITATION.cff").read_text()
    changelog = (ROOT / "CHANGELOG.md").read_text()
    newest = re.findall(r"^## \[?([\w.]+)", changelog, re.MULTILINE)
    assert newest[0] in ("Unreleased", version)


def _needed(name: str, found: dict[str, Path]) -> dict[str, Path]:
    """The files of a distribution and of all that it requires, each by its top-level name."""
    one = distribution(name)
    for file in one.files or ():
        top = file.parts[0]
        if top not in ("..", "__pycache__"):
            found[top] = Path(str(one.locate_file(top)))
    for text in one.requires or ():
        requirement = Requirement(text)
        wanted = requirement.marker is None or requirement.marker.evaluate({"extra": ""})
        if wanted and not any(top.lower().startswith(requirement.name.lower().replace("-", "_")) for top in found):
            _needed(requirement.name, found)
    return found


def test_the_wheel_works_with_torch_alone(built, tmp_path):
    """In an environment of its own, into which torch and what it requires are linked."""
    venv.create(tmp_path / "empty", symlinks=True)
    (site,) = (tmp_path / "empty").glob("lib/python*/site-packages")
    for top, place in _needed("torch", {}).items():
        (site / top).symlink_to(place)
    (wheel,) = built.glob("*.whl")
    zipfile.ZipFile(wheel).extractall(site)
    python = tmp_path / "empty" / "bin" / "python"
    script = str(ROOT / "tests" / "installed.py")
    done = subprocess.run([python, "-I", script], capture_output=True, text=True, cwd=tmp_path)
    assert done.returncode == 0, done.stdout + done.stderr
    assert f"lookbehind {lookbehind.__version__} works with torch" in done.stdout
    assert done.stdout.count(" loss ") == 7  # a line per method
