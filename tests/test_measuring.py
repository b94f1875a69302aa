"""What is measured of finished runs: the same as by hand, once, and in the rows of a comparison."""

from __future__ import annotations

import json
import math
from statistics import mean, stdev

import pytest
import torch
from torch.nn import functional as F

from lookbehind.experiments import pool
from lookbehind.experiments.compare import Comparison, compare, unfinished
from lookbehind.measures.noise import robustness
from lookbehind.measures.sharpness import m_sharpness
from lookbehind.training import measuring
from lookbehind.training.evaluate import trained
from lookbehind.training.measuring import MEASURES, Measures, measured, missing
from lookbehind.training.run import Run
from lookbehind.training.settings import Settings
from lookbehind.training.train import Storage, train

SOME = Measures(
    measures=("sharpness", "noise"), radii=(0.1, 1.0), asam_radii=(0.5,), minibatch=100, sigmas=(0.0, 0.3), draws=2
)
QUICK = {"epochs": 2, "batch_size": 100}


@pytest.fixture(scope="module")
def finished(tmp_path_factory):
    out = tmp_path_factory.mktemp("runs")
    run = Run(method="lookahead-sam", **QUICK)
    train(run, Storage(out=out))
    return Storage(out=out).directory(run)


def test_measures_are_those_of_the_final_weights(finished):
    found = measured(finished, SOME)
    training = trained(finished, Storage())
    images = training.parts.train
    order = torch.cat([y for _, y in measuring._minibatches(training, SOME)()])
    assert torch.equal(order.sort().values, images.images.labels.sort().values)  # every training image once

    def loss(model, batch):
        return F.cross_entropy(model(batch[0]), batch[1])

    torch.set_num_threads(1)
    for name, radii in (("sam", (0.1, 1.0)), ("asam", (0.5,))):
        batches = list(measuring._minibatches(training, SOME)())
        assert [len(y) for _, y in batches] == [100, 100, 100]
        expected = m_sharpness(training.model, loss, batches, radii, neighbourhood=name)
        assert found["sharpness"][name] == {"radii": list(radii), "values": pytest.approx(expected.values)}
        assert found["sharpness"]["weight_norm"] == pytest.approx(expected.weight_norm)
    expected = robustness(
        training.model, training.parts.test.plain, (0.0, 0.3), draws=2, statistics=lambda: images.plain(shuffled=True)
    )
    assert found["noise"]["values"] == [list(values) for values in expected.values]


def test_what_was_measured_is_read_and_not_repeated(finished, monkeypatch):
    first = measured(finished, SOME)
    monkeypatch.setattr(measuring, "trained", lambda *_: pytest.fail("measured again"))
    assert measured(finished, SOME) == first
    assert json.loads((finished / "measures.json").read_text())["noise"]["sigmas"] == [0.0, 0.3]
    assert missing(finished, SOME) == []
    assert missing(finished, Measures(measures=("sharpness", "noise", "curvature"), sigmas=(0.1,))) == [
        "sharpness",  # with other radii
        "noise",
        "curvature",
    ]


def test_curvature_and_landscape_have_numbers(finished):
    found = measured(finished, Measures(measures=("curvature", "landscape"), images=100, minibatch=100, places=3))
    (largest,) = found["curvature"]["eigenvalues"]
    assert largest > 0
    assert math.isfinite(found["curvature"]["trace"])
    landscape = found["landscape"]
    assert landscape["places"] == [-1.0, 0.0, 1.0]
    assert landscape["line"] == [row[1] for row in landscape["plane"]]
    assert landscape["line"][1] == landscape["plane"][1][1] < max(landscape["line"])


def test_a_damaged_file_of_measures_is_made_again(finished):
    first = measured(finished, SOME)
    for damage in ("", "[1]", '{"noise": 5'):
        (finished / "measures.json").write_text(damage)
        assert missing(finished, SOME) == ["sharpness", "noise"]
    assert measured(finished, SOME) == first


@pytest.mark.parametrize(
    ("arguments", "words"),
    [
        ({"measures": ("sharp",)}, "measures='sharp': choose one of 'sharpness', 'noise', 'curvature', 'landscape'"),
        ({"draws": 0}, "draws=0"),
        ({"sigmas": (-1.0,)}, "sigma=-1.0"),
        ({"images": 0}, "images=0"),
    ],
)
def test_wrong_measures_are_named(arguments, words):
    with pytest.raises(ValueError, match=words):
        Measures(**arguments)
    assert set(MEASURES) == {"sharpness", "noise", "curvature", "landscape"}


def test_rows_have_the_measures_over_seeds(tmp_path, monkeypatch):
    def comparison(measures):
        return Comparison(
            methods=("sgd", "sgd:lr=1e38"),
            seeds=2,
            jobs=1,
            settings=Settings(schedule="constant", **QUICK),
            storage=Storage(out=tmp_path),
            measures=measures,
        )

    compare(comparison(Measures()))
    assert len(unfinished(comparison(SOME))) == 2  # trained, not measured; what diverged is not measured
    good, bad = compare(comparison(SOME))
    assert unfinished(comparison(SOME)) == []
    kept = [json.loads(path.read_text()) for path in sorted(tmp_path.glob("runs/*/measures.json"))]
    assert len(kept) == 2
    for i in range(2):
        values = [k["sharpness"]["sam"]["values"][i] for k in kept]
        assert good["sharpness"]["mean"][i] == pytest.approx(mean(values))
        assert good["sharpness"]["std"][i] == pytest.approx(stdev(values))
        values = [mean(k["noise"]["values"][i]) for k in kept]
        assert good["noise"]["mean"][i] == pytest.approx(mean(values))
    assert good["sharpness"]["radii"] == [0.1, 1.0]
    assert good["noise"]["sigmas"] == [0.0, 0.3]
    assert "noise" not in bad
    assert bad["diverged"] == 2
    page = (tmp_path / "report.html").read_text()
    assert "Noise in the weights" in page
    assert f"At sigma 0.3: sgd {good['noise']['mean'][1]:.3g}." in page
    monkeypatch.setattr(pool, "measured", lambda *_: pytest.fail("measured again"))
    assert compare(comparison(SOME)) == [good, bad]
