"""Official files: fetched once, checked, unpacked; a half file never passes for a whole one."""

from __future__ import annotations

import hashlib
import os
import shutil
import tarfile
import tempfile
import zipfile
from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from dataclasses import dataclass
from pathlib import Path
from typing import BinaryIO
from urllib.error import URLError
from urllib.request import Request, urlopen

from filelock import FileLock
from rich.progress import BarColumn, DownloadColumn, Progress, TextColumn, TimeRemainingColumn

CHUNK = 1 << 20


@dataclass(frozen=True)
class Remote:
    """A file at its official address, with its published MD5."""

    url: str
    md5: str

    @property
    def name(self) -> str:
        """The name of the file."""
        return self.url.rsplit("/", 1)[-1]


def md5_of(path: Path) -> str:
    """The MD5 of a file, as hexadecimal digits."""
    digest = hashlib.md5(usedforsecurity=False)
    with path.open("rb") as file:
        while chunk := file.read(CHUNK):
            digest.update(chunk)
    return digest.hexdigest()


@contextmanager
def written_whole(path: Path) -> Iterator[BinaryIO]:
    """A file to write into that gets its name only when all of it is on the disk; after a failure nothing is left."""
    part = path.with_name(f".{path.name}.{os.getpid()}.part")
    try:
        with part.open("wb") as file:
            yield file
            file.flush()
            os.fsync(file.fileno())
        os.replace(part, path)
    except BaseException:
        part.unlink(missing_ok=True)
        raise


def download(remote: Remote, directory: Path) -> Path:
    """Fetch a file into a directory, go on where an earlier try broke off, and check it before it gets its name."""
    target, part = directory / remote.name, directory / f"{remote.name}.part"
    if target.exists() and md5_of(target) == remote.md5:
        return target
    directory.mkdir(parents=True, exist_ok=True)
    if not (part.exists() and md5_of(part) == remote.md5):  # whole, if it was stopped just before it got its name
        _fetch(remote, part)
    found = md5_of(part)
    if found != remote.md5:
        part.unlink()
        raise OSError(
            f"{remote.url} came with the MD5 {found}, the published one is {remote.md5}: the download was damaged or "
            "the file has changed; it was thrown away, try again"
        )
    os.replace(part, target)
    return target


def _fetch(remote: Remote, part: Path) -> None:
    done = part.stat().st_size if part.exists() else 0
    request = Request(remote.url, headers={"Range": f"bytes={done}-"} if done else {})
    with urlopen(request, timeout=30) as answer:
        goes_on = answer.status == 206
        done = done if goes_on else 0
        size = int(answer.headers.get("Content-Length") or 0)
        columns = TextColumn(remote.name), BarColumn(), DownloadColumn(), TimeRemainingColumn()
        with part.open("ab" if goes_on else "wb") as file, Progress(*columns, transient=True) as progress:
            task = progress.add_task(remote.name, total=done + size or None, completed=done)
            while chunk := answer.read(CHUNK):
                file.write(chunk)
                progress.update(task, advance=len(chunk))
    if size and part.stat().st_size < done + size:
        raise ConnectionError(
            f"{remote.url} broke off after {part.stat().st_size:,} of {done + size:,} bytes: call again to go on there"
        )


def unpack(archive: Path, directory: Path) -> None:
    """Unpack a tar or zip archive; what it contains appears in the directory only when all of it is there."""
    with tempfile.TemporaryDirectory(prefix=".unpacking-", dir=directory) as name:
        inside = Path(name)
        if zipfile.is_zipfile(archive):
            with zipfile.ZipFile(archive) as packed:
                packed.extractall(inside)
        else:
            with tarfile.open(archive) as packed_tar:
                packed_tar.extractall(inside, filter="data")  # nothing outside, no devices, no ownership
        for entry in inside.iterdir():
            target = directory / entry.name
            if target.is_dir():
                shutil.rmtree(target)
            os.replace(entry, target)


def ensure(directory: Path, wanted: Sequence[str], remotes: Sequence[Remote], *, packed: bool, allow: bool) -> None:
    """See to it that files are there; fetch them where that is allowed and possible, else say what is missing where."""
    missing = [name for name in wanted if not (directory / name).exists()]
    if not missing:
        return
    addresses = ", ".join(remote.url for remote in remotes) or "(it has to be obtained by hand)"
    problem = "downloading is switched off"
    if allow and remotes:
        directory.mkdir(parents=True, exist_ok=True)
        try:
            with FileLock(directory / ".download.lock"):  # the jobs of an array begin at the same time
                if all((directory / name).exists() for name in wanted):
                    return
                for remote in remotes:
                    archive = download(remote, directory)
                    if packed:
                        unpack(archive, directory)
        except (URLError, ConnectionError, TimeoutError) as error:
            problem = f"the download failed: {getattr(error, 'reason', error)}"
        missing = [name for name in wanted if not (directory / name).exists()]
    if missing:
        raise FileNotFoundError(
            f"looked in {directory} for {', '.join(missing[:3])}{' ...' if len(missing) > 3 else ''}, and {problem}. "
            f"Put the official files there, or name their directory (--data-dir); their address: {addresses}"
        )
