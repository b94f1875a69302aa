"""A page from its template: one HTML file that needs nothing else."""

from __future__ import annotations

import re
from importlib import resources
from typing import Any

from jinja2 import Environment, StrictUndefined
from markupsafe import Markup

from lookbehind.experiments.table import setting


def page(template: str, **values: Any) -> str:
    """The text of a page, from the name of its template; style and script are put into it."""
    folder = resources.files("lookbehind.experiments") / "templates"
    environment = Environment(autoescape=True, undefined=StrictUndefined, trim_blocks=True, lstrip_blocks=True)
    environment.filters |= {"breakable": breakable, "setting": setting}
    return environment.from_string((folder / template).read_text("utf-8")).render(
        css=Markup((folder / "report.css").read_text("utf-8")),
        script=Markup((folder / "report.js").read_text("utf-8")),
        **values,
    )


def breakable(label: str) -> Markup:
    """A label that may be broken after a colon or comma."""
    return Markup("<wbr>").join(re.findall(r"[^:,]+[:,]*|[:,]+", label))
