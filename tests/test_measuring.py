"""What is measured of finished runs: the same as by hand, once, and in the rows of a comparison."""

from __future__ import annotations

import json
import math
import os
import shutil
from statistics import mean, stdev

import pytest
import torch
from torch.nn import functional as F

from lookbehind import cli
from lookbehind.experiments import pool
from lookbehind.experiments.compare import Comparison, compare, unfinished
from lookbehind.experiments.differences import level_lines
from lookbehind.experiments.results import over_levels
from lookbehind.measures.batchnorm import recalibrated
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


def test_kinds_of_noise_are_those_of_the_library(finished):
    measures = Measures(
        measures=("analog", "quantisation"), analog_sigmas=(0.0, 0.1), bits=(8, 2), draws=2, noisy="matrices"
    )
    found, training = measured(finished, measures), trained(finished, Storage())
    torch.set_num_threads(1)
    for name, kind, levels in (("analog", "relative", (0.0, 0.1)), ("quantisation", "quantised", (8, 2))):
        expected = robustness(
            training.model,
            training.parts.test.plain,
            levels,
            kind=kind,
            draws=2,
            weights="matrices",
            statistics=lambda: training.parts.train.plain(shuffled=True),
        )
        assert found[name]["values"] == [list(values) for values in expected.values]
        assert found[name]["statistics_minibatch"] == 500
    assert found["analog"]["sigmas"] == [0.0, 0.1]
    assert found["quantisation"]["bits"] == [8, 2]


def test_the_way_to_another_solution_ends_there(finished, tmp_path):
    """With BatchNorm re-estimated, the loss at distance 1 is that of the other network."""
    other = Run(method="sgd", seed=1, **QUICK)
    train(other, Storage(out=tmp_path))
    there = Storage(out=tmp_path).directory(other)
    found = measured(finished, Measures(measures=("towards",), towards=there, places=3))["towards"]
    assert found["places"] == [0.0, 0.5, 1.0]
    here, network = trained(finished, Storage()), trained(there, Storage()).model
    torch.set_num_threads(1)
    for model, place in ((here.model, 0), (network, 2)):
        with recalibrated(model, here.parts.train.plain(shuffled=True)), torch.no_grad():
            model.eval()
            batches = list(measuring._minibatches(here, Measures())())
            losses = [F.cross_entropy(model(x), y).item() for x, y in batches]
        assert found["line"][place] == pytest.approx(mean(losses), rel=1e-5)
    assert missing(finished, Measures(measures=("towards",), towards=finished, places=3)) == ["towards"]


def test_a_damaged_file_of_measures_is_made_again(finished):
    first = measured(finished, SOME)
    whole = json.loads((finished / "measures.json").read_text())
    partly = json.dumps({"noise": {"settings": whole["noise"]["settings"]}})
    for damage in ("", "[1]", '{"noise": 5', '{"noise": null, "sharpness": []}', partly, '{"curvature": NaN}'):
        (finished / "measures.json").write_text(damage)
        assert missing(finished, SOME) == ["sharpness", "noise"], damage
    assert measured(finished, SOME) == first


@pytest.mark.parametrize(
    ("arguments", "words"),
    [
        ({"measures": ("sharp",)}, "measures='sharp': choose one of 'sharpness', 'noise', 'analog'"),
        ({"draws": 0}, "draws=0"),
        ({"sigmas": (-1.0,)}, "sigmas=-1.0"),
        ({"images": 0}, "images=0"),
        ({"radii": (0.0,)}, "radii=0.0: give a number above 0"),
        ({"radii": 0.05}, r"radii=0.05: give several in a tuple, such as radii=\(0.05,\)"),
        ({"sigmas": 1}, r"sigmas=1: give several in a tuple"),
        ({"bits": 8}, r"bits=8: give several in a tuple"),
        ({"radii": ()}, "radii=\\(\\): give at least one"),
        ({"bits": (1,)}, "bits=1: give an integer from 2 to 24"),
        ({"places": 4}, "places=4: give an odd number"),
        ({"reach": -1.0}, "reach=-1.0"),
        ({"noisy": "some"}, "noisy='some': choose one of 'all', 'matrices'"),
        ({"measures": ("towards",)}, "say where to, with --towards RUN"),
        ({"bits": (100,)}, "bits=100: give an integer from 2 to 24"),
    ],
)
def test_wrong_measures_are_named(arguments, words):
    with pytest.raises((ValueError, TypeError), match=words):
        Measures(**arguments)


def test_measures_are_named_with_commas_or_spaces():
    assert Measures(measures=("noise,sharpness", "curvature")).measures == ("noise", "sharpness", "curvature")
    assert set(MEASURES) == {"sharpness", "noise", "analog", "quantisation", "curvature", "landscape", "towards"}


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
    assert len(good["noise"]["values"]) == len(good["seeds"])
    assert bad["diverged"] == 2
    page = (tmp_path / "report.html").read_text()
    assert "Noise in the weights" in page
    assert f"At sigma 0.3: sgd {good['noise']['mean'][1]:.3g}." in page
    monkeypatch.setattr(pool, "measured", lambda *_: pytest.fail("measured again"))
    assert compare(comparison(SOME)) == [good, bad]


def test_saved_runs_are_measured_and_reported(tmp_path, capsys):
    runs = [Run(method="sgd", seed=seed, **QUICK) for seed in (0, 1)] + [Run(method="sgd", seed=0, lr=0.01, **QUICK)]
    for run in [*runs, Run(method="sgd", lr=1e38, schedule="constant", **QUICK)]:
        train(run, Storage(out=tmp_path))
    places = [str(path) for path in sorted(tmp_path.glob("runs/*"))]
    words = ["--measures", "sharpness,noise", "--radii", "0.1", "--sigmas", "0", "0.3", "--draws", "2"]
    again = os.path.relpath(places[0])
    shutil.copytree(places[0], tmp_path / "copy")
    (tmp_path / "unfinished").mkdir()
    shutil.copy(places[0] + "/run.json", tmp_path / "unfinished")
    more = [places[0], again, str(tmp_path / "copy"), str(tmp_path / "unfinished")]
    command = ["evaluate", *places, *more, *words, "--minibatch", "100"]
    assert cli.main([*command, "--json"]) == 0
    shown = capsys.readouterr()
    found = json.loads(shown.out)
    assert len(found) == 4  # one that was given twice, or copied, is there once
    assert "copy is a copy of a run that is there already" in shown.err.replace("\n", "")
    assert "unfinished is not finished, so it is left out" in shown.err.replace("\n", "")
    diverged = [one for one in found if one["measures"] == {}]
    assert len(diverged) == 1
    assert cli.main([*command, "--out", str(tmp_path / "report")]) == 0
    shown = capsys.readouterr().out
    assert "Noise in the weights" in shown
    assert "sigma 0.3" in shown
    rows = {row["method"]: row for row in json.loads((tmp_path / "report" / "results.json").read_text())}
    assert set(rows) == {
        "sgd:lr=0.05,lr_changes=step,schedule=cosine",
        "sgd:lr=0.01,lr_changes=step,schedule=cosine",
        "sgd:lr=1e+38,schedule=constant",
    }
    both = rows["sgd:lr=0.05,lr_changes=step,schedule=cosine"]
    assert both["seeds"] == [0, 1]
    values = [
        mean(one["measures"]["noise"]["values"][1]) for one in found if one["run"] in {run.id for run in runs[:2]}
    ]
    assert both["noise"]["mean"][1] == pytest.approx(mean(values))
    assert both["noise"]["std"][1] == pytest.approx(stdev(values))
    assert (tmp_path / "report" / "figures" / "noise.pdf").exists()
    page = (tmp_path / "report" / "report.html").read_text()
    assert "sgd:" in page


@pytest.mark.parametrize(
    ("words", "message"),
    [
        (["--measures", "sharp"], "measures='sharp'"),
        (["--measures", "sharpness", "--radii", "0"], "radii=0.0"),
        (["--measures", "noise", "--sigmas", "-1"], "sigmas=-1.0"),
        (["--measures", "towards", "--towards", "/nowhere"], "/nowhere has no run.json"),
        (["--out", "run.json"], "out=run.json: a file"),
    ],
)
def test_wrong_words_of_evaluate(finished, words, message, capsys, monkeypatch):
    monkeypatch.chdir(finished)
    try:
        code = cli.main(["evaluate", ".", *words])
    except SystemExit as ended:
        code = ended.code
    assert code == 2
    shown = capsys.readouterr()
    assert message in " ".join((shown.out + shown.err).replace("│", " ").split())


def test_a_network_with_a_nan_is_refused_by_name(finished, tmp_path, capsys):
    copy = tmp_path / finished.name
    shutil.copytree(finished, copy)
    (copy / "measures.json").unlink(missing_ok=True)
    weights = torch.load(copy / "weights.pt")
    next(iter(weights.values())).view(-1)[0] = float("nan")
    torch.save(weights, copy / "weights.pt")
    for measure in ("sharpness", "curvature"):
        assert cli.main(["evaluate", str(copy), "--measures", measure]) == 2
        assert "there is a NaN in the weights" in capsys.readouterr().err


def test_measures_belong_to_the_weights_and_not_to_a_name(finished, tmp_path):
    one, two = tmp_path / "x" / "other", tmp_path / "y" / "other"
    for seed, place in enumerate((one, two), 1):
        run = Run(method="sgd", seed=seed, **QUICK)
        train(run, Storage(out=tmp_path / "made"))
        shutil.copytree(Storage(out=tmp_path / "made").directory(run), place)
    lines = [measured(finished, Measures(towards=place, places=3))["towards"]["line"] for place in (one, two)]
    assert lines[0][0] == lines[1][0]
    assert lines[0][2] != lines[1][2]
    noise = Measures(measures=("noise",), sigmas=(0.0,), draws=1)
    measured(one, noise)
    assert missing(one, noise) == []
    shutil.copy(two / "weights.pt", one / "weights.pt")
    assert missing(one, noise) == ["noise"]


def test_so_many_images_are_measured_as_asked(finished):
    training = trained(finished, Storage())
    for images in (1, 100, 128, 150, 10000):
        batches = list(measuring._minibatches(training, Measures(images=images, minibatch=64))())
        assert sum(len(labels) for _, labels in batches) == min(images, 300)


def test_measuring_stops_when_asked_and_keeps_what_it_has(finished, tmp_path):
    copy = tmp_path / finished.name
    shutil.copytree(finished, copy)
    (copy / "measures.json").unlink(missing_ok=True)
    began = []
    both = Measures(measures=("sharpness", "noise"), radii=(0.1,), sigmas=(0.0,), draws=1)
    with pytest.raises(measuring.Stopped):
        measured(copy, both, watch=began.append, stop=lambda: len(began) == 2)
    assert missing(copy, both) == ["noise"]


def test_an_option_that_is_there_twice_is_refused(finished, capsys):
    assert cli.main(["evaluate", str(finished), "--measures", "noise", "--measures", "sharpness"]) == 2
    assert "--measures is there twice: give all its values together" in capsys.readouterr().err


def test_levels_are_put_in_order():
    measures = Measures(sigmas=(0.5, 0.1, 0.5), bits=(2, 8), radii=(5.0, 0.1))
    assert (measures.sigmas, measures.bits, measures.radii) == ((0.1, 0.5), (8, 2), (0.1, 5.0))


def test_a_mean_over_seeds_is_not_better_for_one_that_blew_up():
    found = over_levels("places", [0.0, 0.5, 1.0], [[5.0, 1.0, None], None, [1.0, 1.0, 1.5]])
    assert found["mean"] == [3.0, 1.0, None]
    assert found["values"] == [[5.0, 1.0, None], [None] * 3, [1.0, 1.0, 1.5]]
    (line,) = level_lines([{"method": "sgd", "landscape": found}], "landscape", "places")
    assert (line.x, line.mean, line.low, line.high) == ([0.0, 0.5], [3.0, 1.0], [1.0, 1.0], [5.0, 1.0])
