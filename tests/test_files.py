"""Downloads: resumed, checked, atomic; archives unpacked whole or not at all."""

from __future__ import annotations

import hashlib
import io
import tarfile
import threading
import zipfile
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer

import pytest

from lookbehind.data.files import Remote, download, ensure, unpack

CONTENT = bytes(range(256)) * 20_000
MD5 = hashlib.md5(CONTENT).hexdigest()


@pytest.fixture
def server():
    """A server on this machine that can send parts of a file; notes what was asked, and can break off."""

    class Handler(BaseHTTPRequestHandler):
        asked: list = []  # noqa: RUF012
        limit = None
        honours_ranges = True

        def do_GET(self):
            start = 0
            self.asked.append(self.headers.get("Range"))
            if self.headers.get("Range") and self.honours_ranges:
                start = int(self.headers["Range"].removeprefix("bytes=").removesuffix("-"))
                self.send_response(206)
            else:
                self.send_response(200)
            body = CONTENT[start:]
            self.send_header("Content-Length", str(len(body)))
            self.end_headers()
            self.wfile.write(body[: self.limit])

        def log_message(self, *_):
            pass

    running = ThreadingHTTPServer(("127.0.0.1", 0), Handler)
    threading.Thread(target=running.serve_forever, daemon=True).start()
    yield f"http://127.0.0.1:{running.server_port}/file.bin", Handler
    running.shutdown()
    running.server_close()


def test_a_download_is_whole_and_has_its_name_only_then(tmp_path, server):
    url, handler = server
    path = download(Remote(url, MD5), tmp_path / "new" / "place")
    assert path.read_bytes() == CONTENT
    assert [p.name for p in path.parent.iterdir()] == ["file.bin"]
    download(Remote(url, MD5), path.parent)  # it is there: nothing is asked
    assert handler.asked == [None]


def test_a_broken_download_goes_on_where_it_broke_off(tmp_path, server):
    url, handler = server
    handler.limit = 1_000_000
    with pytest.raises(ConnectionError, match=r"broke off after 1,000,000 of 5,120,000 bytes: call again"):
        download(Remote(url, MD5), tmp_path)
    assert not (tmp_path / "file.bin").exists()
    handler.limit = None
    assert download(Remote(url, MD5), tmp_path).read_bytes() == CONTENT
    assert handler.asked[-1] == "bytes=1000000-"


def test_a_server_that_cannot_go_on_starts_again(tmp_path, server):
    url, handler = server
    handler.honours_ranges = False
    (tmp_path / "file.bin.part").write_bytes(CONTENT[:1_000])
    assert download(Remote(url, MD5), tmp_path).read_bytes() == CONTENT


def test_a_file_that_is_whole_but_has_no_name_yet_is_not_asked_for(tmp_path, server):
    url, handler = server
    (tmp_path / "file.bin.part").write_bytes(CONTENT)
    assert download(Remote(url, MD5), tmp_path).read_bytes() == CONTENT
    assert handler.asked == []


def test_two_jobs_that_want_the_same_file_fetch_it_once(tmp_path, server):
    url, handler = server
    failed = []

    def job():
        try:
            ensure(tmp_path, ["file.bin"], [Remote(url, MD5)], packed=False, allow=True)
        except BaseException as error:
            failed.append(error)

    jobs = [threading.Thread(target=job) for _ in range(4)]
    for one in jobs:
        one.start()
    for one in jobs:
        one.join()
    assert failed == []
    assert handler.asked == [None]
    assert (tmp_path / "file.bin").read_bytes() == CONTENT


def test_another_file_than_the_published_one_is_thrown_away(tmp_path, server):
    url, _ = server
    with pytest.raises(OSError, match=f"came with the MD5 {MD5}, the published one is 0000"):
        download(Remote(url, "0" * 32), tmp_path)
    assert list(tmp_path.iterdir()) == []


def test_without_network_the_error_says_where_and_what(tmp_path):
    nobody = Remote("http://127.0.0.1:9/set.tar.gz", MD5)
    with pytest.raises(
        FileNotFoundError, match=r"for set/train, and the download failed.*127.0.0.1:9/set.tar.gz"
    ) as error:
        ensure(tmp_path, ["set/train"], [nobody], packed=True, allow=True)
    assert str(tmp_path) in str(error.value)


def archive(kind, names, tmp_path):
    path = tmp_path / f"archive.{kind}"
    if kind == "zip":
        with zipfile.ZipFile(path, "w") as packed:
            for name in names:
                packed.writestr(name, name)
    else:
        with tarfile.open(path, "w:gz") as packed:
            for name in names:
                info = tarfile.TarInfo(name)
                info.size = len(name)
                packed.addfile(info, io.BytesIO(name.encode()))
    return path


@pytest.mark.parametrize("kind", ["zip", "tar.gz"])
def test_archives_are_unpacked_over_what_was_there(tmp_path, kind):
    place = tmp_path / "data"
    (place / "set").mkdir(parents=True)
    (place / "set" / "old").write_text("of an earlier try")
    unpack(archive(kind, ["set/train", "set/test"], tmp_path), place)
    assert sorted(p.name for p in (place / "set").iterdir()) == ["test", "train"]
    assert [p.name for p in place.iterdir()] == ["set"]


def test_an_archive_that_reaches_outside_is_refused_and_leaves_nothing(tmp_path):
    place = tmp_path / "data"
    place.mkdir()
    with pytest.raises(tarfile.FilterError):
        unpack(archive("tar.gz", ["set/train", "../escaped"], tmp_path), place)
    assert list(place.iterdir()) == []
    assert not (tmp_path / "escaped").exists()
    unpack(archive("zip", ["set/train", "../escaped"], tmp_path), place)  # zipfile keeps it inside
    assert not (tmp_path / "escaped").exists()
