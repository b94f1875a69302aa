"""Keep what runs found, without their weights, so that pages can be made again and trainings go on elsewhere.

    python docs/records.py pack out/paper docs/results/laptop/records/table2.jsonl.gz
    python docs/records.py restore docs/results/laptop/records/table2.jsonl.gz out/paper

A line for every finished run: its settings, records, measures and the digests of its data. After ``restore`` the
runs count as finished: `lookbehind reproduce table2 ... --no-train --out out/paper` writes the page, and without
`--no-train` trains the runs that are missing. What needs weights (another measure, a network to fine-tune) needs the
run trained again: remove its directory.
"""

import argparse
import gzip
import json
import zlib
from pathlib import Path

from filelock import FileLock

from lookbehind.data.files import written_whole
from lookbehind.training.records import line, read

FILES = ("run.json", "data.json", "measures.json")
RECORDS = "records.jsonl"


def pack(out: Path, file: Path) -> list[str]:
    """Write all finished runs in ``out`` into a file, after those that it has already; gives their ids."""
    runs = {one["id"]: one for one in kept(file)} if file.exists() else {}
    if not (out / "runs").is_dir():
        raise SystemExit(f"{out}: no runs in it; give the --out of `lookbehind reproduce` or `compare`")
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
    for one in kept(file):
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


def kept(file: Path) -> list[dict]:
    """The runs in a file that ``pack`` wrote."""
    try:
        runs = [json.loads(text) for text in gzip.decompress(file.read_bytes()).decode().splitlines()]
        wrong = next((one for one in runs if not {"id", RECORDS} <= one.keys()), None)
    except (OSError, EOFError, zlib.error, ValueError, AttributeError) as error:
        reason = f"{type(error).__name__}: {error}"
        raise SystemExit(f"{file}: no records ({reason}); give a file that `docs/records.py pack` wrote") from error
    if wrong is not None:
        raise SystemExit(f"{file}: a line has {list(wrong)[:5]} and no id or records; give a file that pack wrote")
    return runs


if __name__ == "__main__":
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("what", choices=("pack", "restore"))
    parser.add_argument("source", type=Path, help="pack: the --out of reproduce or compare; restore: a file")
    parser.add_argument("target", type=Path, help="pack: a file, which may have runs already; restore: a directory")
    given = parser.parse_args()
    names = {"pack": pack, "restore": restore}[given.what](given.source, given.target)
    print(f"{len(names)} runs")
