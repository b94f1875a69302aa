"""What is kept in the repository: records, restored elsewhere as good as the runs themselves, and pages of claims."""

from __future__ import annotations

import gzip
import json
from dataclasses import replace
from pathlib import Path

import pytest
from docs_tools import ROOT, tool

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


def test_differences_are_paired_by_seed_and_refuse_what_is_not_one_run(tmp_path):
    """By hand: 1, 2 and 3 are 2 ± 4.303 / sqrt(3), and the seed that chose does not count."""
    paired, in_words = tool("paired").paired, tool("paired").in_words

    def run(method, seed, accuracy, rho, noise=None):
        end = {
            "event": "end",
            "test_accuracy": accuracy,
            "recalibrated_test_accuracy": accuracy + 10 * seed,
            "diverged": 0,
        }
        settings = {"method": method, "seed": seed, "rho": rho}
        measures = {} if noise is None else {"noise": {"sigmas": [0, 0.1], "values": [[0.0, 0.0], noise]}}
        return {"id": f"{method}{seed}{rho}", "run.json": settings, "records.jsonl": [end], "measures.json": measures}

    ours = [run("sam", seed, 40.0 + seed, 1.0, [30.0, 32.0]) for seed in range(4)]
    theirs = [run("sgd", seed, 40.0, 0.0, [20.0, 21.0 + seed]) for seed in (3, 2, 1)]
    other = [run("sam", 1, 99.0, 0.5)]
    file = tmp_path / "kept.jsonl.gz"
    file.write_bytes(gzip.compress("".join(json.dumps(one) + "\n" for one in [*ours, *theirs, *other]).encode()))
    found = paired(file, 1, "sam:rho=1", "sgd")
    assert {what: (in_words(one), one.seeds) for what, one in found.items()} == {
        "test accuracy": ("+2.00 ± 2.48", 3),
        "with BatchNorm re-estimated": ("+2.00 ± 2.48", 3),
        "with noise": ("+9.50 ± 1.24", 3),  # 31 - 21, 21.5 and 22, whose deviation is half as large
    }
    wrong = {
        "sam": "several such runs of seed 1; say which rho$",
        "sam:rho=7": "sam:rho=7: .*has no such run from seed 1 on",
        "sam:roh=1": "no run of sam has roh; there are method, rho, seed",
        "sam:rho": "'rho' is no setting; write rho=0.1",
    }
    for text, message in wrong.items():
        with pytest.raises(SystemExit, match=message):
            paired(file, 1, text, "sgd")
    with pytest.raises(SystemExit, match="no common seed from 0 on"):
        paired(file, 0, "sam:rho=.50", "sgd:seed=2")
    with pytest.raises(SystemExit, match="has no run of 'sma'; its methods: sam, sgd"):
        paired(file, 1, "sma", "sgd")
    for missing in (tmp_path / "none.gz", tmp_path, Path(__file__)):
        with pytest.raises(SystemExit, match=r"no records .*docs/records.py"):
            paired(missing, 1, "sam", "sgd")


@pytest.mark.parametrize(
    ("content", "message"),
    [
        (gzip.compress(b'{"id": "a", "records.jsonl": []}\n')[:-9], "no records .*EOFError"),
        (gzip.compress(b"x" * 1000)[:10] + bytes(50), "no records"),
        (gzip.compress(b"\xff\xfe"), "no records .*UnicodeDecodeError"),
        (gzip.compress(b"no JSON"), "no records .*JSONDecodeError"),
        (gzip.compress(b"[1, 2]"), "no records .*AttributeError"),
        (gzip.compress(b'{"name": 1}'), "a line has .'name'. and no id or records"),
        (gzip.compress(b'{"id": "a", "records.jsonl": []}'), "has no run of 'sgd'; its methods: none"),
    ],
    ids=["cut off", "damaged", "no text", "no JSON", "no object", "foreign", "no settings"],
)
def test_a_damaged_file_of_records_is_named(records, tmp_path, content, message):
    file = tmp_path / "kept.gz"
    file.write_bytes(content)
    with pytest.raises(SystemExit, match=message):
        tool("paired").outcomes(file, 0, "sgd")
    if "its methods" not in message:
        with pytest.raises(SystemExit, match=message):
            records.restore(file, tmp_path / "out")
        assert not (tmp_path / "out").exists()


def test_where_nothing_is_kept_nothing_is_written(records, tmp_path, monkeypatch):
    with pytest.raises(SystemExit, match="no runs in it; give the --out"):
        records.pack(tmp_path, tmp_path / "kept.gz")
    collect = tool("collect")
    monkeypatch.setattr(collect, "RESULTS", tmp_path / "results")
    with pytest.raises(SystemExit, match=r"no index\.md in it"):
        collect.collect(tmp_path, "laptop")
    assert list(tmp_path.iterdir()) == []


def test_settings_are_written_as_in_a_run_or_as_on_the_command_line(tmp_path):
    """Lifelong runs, which re-estimate no BatchNorm, are compared by what they have."""
    file = tmp_path / "kept.gz"
    runs = [
        {"id": f"{seed}{clip}", "run.json": {"method": "sgd", "seed": seed, "clip": clip, "lr": 0.5, "fast": False},
         "records.jsonl": [{"event": "end", "test_accuracy": 1.0 * seed if clip is None else 0.0}]}
        for seed in (0, 3) for clip in (None, "norm 1")
    ]  # fmt: skip
    file.write_bytes(gzip.compress("\n".join(map(json.dumps, runs)).encode()))
    found = tool("paired").paired(file, 0, "sgd:clip=null,lr=.50,fast=false", "sgd:clip=norm 1,lr=5e-1,fast=False")
    assert {what: one.mean for what, one in found.items()} == {"test accuracy": 1.5}


def test_the_table_of_the_repeated_gradient_is_that_of_the_records():
    page = (ROOT / "docs/results/repeated.md").read_text()
    assert tool("repeated").table() in page
