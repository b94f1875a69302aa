"""What takes long to make from files, kept beside them: used only if it was made from the same input and is whole."""

from __future__ import annotations

import hashlib
import json
from collections.abc import Callable, Iterable
from contextlib import suppress
from pathlib import Path
from typing import Any

from lookbehind.data.files import written_whole

DIGITS = 16


def digest_of_parts(parts: Iterable[bytes | str]) -> str:
    """The first digits of a SHA-256 that depends on every part and on where it ends."""
    digest = hashlib.sha256()
    for part in parts:
        content = part.encode() if isinstance(part, str) else part
        digest.update(f"{len(content)}:".encode() + content)
    return digest.hexdigest()[:DIGITS]


def kept(path: Path | None, made_from: str, make: Callable[[], Any]) -> Any:
    """What ``make`` returns, as JSON has it; read from ``path`` where it was made from the same before.

    The file is a line with the digests of its input and of its content, and the content. With any other digest it is
    not used and is written again; where it cannot be written, the content is made every time.

    Args:
        path: the file; None to keep nothing.
        made_from: a digest of all that the content depends on.
        make: makes it, of lists, dicts, strings and numbers.
    """
    if path is not None and (found := _read(path, made_from)) is not None:
        return found
    content = json.dumps(make(), ensure_ascii=False)
    if path is not None:
        head = json.dumps({"made_from": made_from, "content": digest_of_parts([content])})
        with suppress(OSError), written_whole(path) as file:  # a directory that cannot be written, a full disk
            file.write(f"{head}\n{content}".encode())
    return json.loads(content)


def _read(path: Path, made_from: str) -> Any:
    try:
        head, _, content = path.read_text("utf-8").partition("\n")
        if json.loads(head) == {"made_from": made_from, "content": digest_of_parts([content])}:
            return json.loads(content)
    except (OSError, ValueError):  # not there, not ours, damaged
        return None
    return None
