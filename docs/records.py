"""Keep what runs found, without their weights, so that pages can be made again and trainings go on elsewhere.

    python docs/records.py pack out/paper docs/results/laptop/records/table2.jsonl.gz
    python docs/records.py restore docs/results/laptop/records/table2.jsonl.gz out/paper

A line for every finished run: its settings, records, measures and the digests of its data. After ``restore`` the
runs count as finished: `lookbehind reproduce table2 ... --no-train --out out/paper` writes the page, and without
`--no-train` trains the runs that are missing. What needs weights (another measure, a network to fine-tune) needs the
run trained again: remove its directory.
"""

import gzip
import json
import sys
from pathlib import Path

from filelock import FileLock

from lookbehind.data.files import written_whole
from lookbehind.training.records import line, read

FILES = ("run.json", "data.json", "measures.json")
RECORDS = "records.jsonl"


def pack(out: Path, file: Path) -> list[str]:
    """Write all finished runs in ``out`` into a file, after those that it has already; gives their ids."""
    runs = {one["id"]: one for one in _lines(file)} if file.exists() else {}
    for directory in sorted((out / "runs").iterdir()):
        if records := _finished(directory):
            others = {name: json.loads((directory / name).read_text()) for name in FILES if (directory / name).exists()}
            runs[directory.name] = {"id": directory.name, RECORDS: records, **others}
    text = "".join(json.dumps(runs[name], sort_keys=True) + "\n" for name in sorted(runs))
    file.parent.mkdir(parents=True, exist_ok=True)
    with written_whole(file) as target:
        target.write(gzip.compress(text.encode(), mtime=0))  # the same runs are the same bytes
    return sorted(runs)


def restore(file: Path, out: Path) -> list[str]:
    """Put the runs of a file into ``out``, but for those that are finished there; gives the ids of the others."""
    restored = []
    for one in _lines(file):
        name = str(one["id"])
        if Path(name).name != name:
            raise SystemExit(f"{file}: {name!r} is no id of a run")
        directory = out / "runs" / name
        directory.mkdir(parents=True, exist_ok=True)
        with FileLock(directory / ".lock", timeout=0):  # nobody is training it
            if _finished(directory):
                continue
            for key in FILES:
                if key in one:
                    with written_whole(directory / key) as target:
                        target.write(json.dumps(one[key], indent=2 if key == "run.json" else None).encode())
            with written_whole(directory / RECORDS) as target:  # last: with it the run is finished
                target.write("".join(map(line, one[RECORDS])).encode())
        restored.append(name)
    return restored


def _finished(directory: Path) -> list[dict]:
    """The records of a finished run; none of any other."""
    path = directory / RECORDS
    records = read(path) if path.exists() else []
    return records if records and records[-1]["event"] == "end" else []


def _lines(file: Path) -> list[dict]:
    return [json.loads(text) for text in gzip.decompress(file.read_bytes()).decode().splitlines()]


if __name__ == "__main__":
    what, source, target = sys.argv[1], Path(sys.argv[2]), Path(sys.argv[3])
    names = {"pack": pack, "restore": restore}[what](source, target)
    print(f"{len(names)} runs")
