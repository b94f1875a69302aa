"""What is kept in the repository: records, restored elsewhere as good as the runs themselves, and pages of claims."""

from __future__ import annotations

import gzip
import json
from dataclasses import replace

import pytest
from docs_tools import tool

from lookbehind.experiments.paper.index import page_of
from lookbehind.experiments.paper.plan import Reproduction, unfinished
from lookbehind.experiments.paper.reproduce import reproduce
from lookbehind.training.records import read
from lookbehind.training.train import Storage


@pytest.fixture(scope="module")
def records():
    return tool("records")


def test_a_page_is_the_same_from_restored_records(records, tmp_path):
    """With measures, which otherwise belong to the weights, and without a run that is not finished."""
    wanted = Reproduction(
        experiments=("frontier",), scale="smoke", rows=("SGD",), seeds=2, jobs=1, storage=Storage(out=tmp_path / "one")
    )
    page = reproduce(wanted)["frontier"]
    begun = tmp_path / "one/runs/begun"
    begun.mkdir()
    whole = next((tmp_path / "one/runs").glob("sgd-*/records.jsonl")).read_text().splitlines()
    (begun / "records.jsonl").write_text("\n".join(whole[:-1]) + "\n")
    file = tmp_path / "kept/frontier.jsonl.gz"
    names = records.pack(tmp_path / "one", file)
    assert [name.split("-seed")[0] for name in names] == ["sgd", "sgd"]

    assert records.restore(file, tmp_path / "two") == names
    elsewhere = replace(wanted, storage=Storage(out=tmp_path / "two"))
    assert unfinished(elsewhere) == []
    again = reproduce(elsewhere)["frontier"]
    results = [json.loads((one / "results.json").read_text()) for one in (page, again)]
    assert results[0]["tables"] == results[1]["tables"]
    assert results[0]["tables"][0]["lines"][0][1] not in ("not run", "search not finished")
    assert records.restore(file, tmp_path / "two") == []  # they are there
    own = tmp_path / "one/runs" / names[0] / "records.jsonl"
    own.write_text(own.read_text().replace('"seconds": ', '"seconds": 1'))  # trained here, in another time
    mine = own.read_text()
    assert records.restore(file, tmp_path / "one") == []
    assert own.read_text() == mine
    before = file.read_bytes()
    records.pack(tmp_path / "two", file)
    assert file.read_bytes() == before
    # other settings of the measure were not measured, and the weights are gone
    scale = replace(elsewhere.at, measures=replace(elsewhere.at.measures, draws=7))
    object.__setattr__(elsewhere, "at", scale)
    assert len(unfinished(elsewhere)) == 2


def test_what_is_in_the_file_and_not_in_the_directory_stays(records, tmp_path):
    end = {"event": "end", "diverged": False, "test_accuracy": 1.0, "gradient_evaluations": 3}
    file = tmp_path / "kept.gz"
    for name in ("a", "b"):
        directory = tmp_path / f"out-{name}/runs/{name}"
        directory.mkdir(parents=True)
        (directory / "records.jsonl").write_text(json.dumps(end) + "\n")
        records.pack(tmp_path / f"out-{name}", file)
    assert records.restore(file, tmp_path / "out") == ["a", "b"]
    assert read(tmp_path / "out/runs/b/records.jsonl") == [end]


def test_an_id_that_leads_elsewhere_is_refused(records, tmp_path):
    file = tmp_path / "foreign.gz"
    file.write_bytes(gzip.compress(b'{"id": "../../elsewhere", "records.jsonl": []}\n'))
    with pytest.raises(SystemExit, match="is no id of a run"):
        records.restore(file, tmp_path / "out")
    assert not (tmp_path / "elsewhere").exists()


def test_claims_of_other_experiments_stay(tmp_path, monkeypatch):
    """New lines replace those of the same table; what is counted is what is there in the end."""
    collect = tool("collect")
    monkeypatch.setattr(collect, "RESULTS", tmp_path)
    out, claims = tmp_path / "paper", tmp_path / "laptop/claims.md"
    for name, verdict in (("table2", "holds"), ("table1", "contradicted"), ("table2", "not resolved")):
        page = out / "table1/results.md" if name == "table1" else out / "table2/results.md"
        page.parent.mkdir(parents=True, exist_ok=True)
        page.write_text(f"# {name}")
        lines = [[f"[{name}]({name}/results.md)", f"one | {name}", "here", "+1", verdict]]
        (out / "index.md").write_text(page_of(lines))
        collect.collect(out, "laptop")
    text = claims.read_text()
    assert "Of 2 claims of the paper: contradicted 1, not resolved 1." in text
    rows = [line for line in text.splitlines() if line.startswith("| [")]
    assert rows == [
        f"| [{name}]({name}.md) | one \\| {name} | here | +1 | {verdict} |"
        for name, verdict in (("table1", "contradicted"), ("table2", "not resolved"))
    ]
