"""The examples that need no other framework, at tiny size; those of the integrations are tested beside them."""

from __future__ import annotations

import runpy
from pathlib import Path

import pytest
import torch

from lookbehind.lifelong.metrics import average_accuracy, forgetting

EXAMPLES = Path(__file__).parent.parent / "examples"
TESTED_ELSEWHERE = {"accelerate_loop", "huggingface_trainer", "lightning_training"}


def example(name: str) -> dict:
    return runpy.run_path(str(EXAMPLES / f"{name}.py"))


def test_every_example_is_tested():
    here = Path(__file__).read_text()
    for path in EXAMPLES.glob("*.py"):
        assert path.stem in TESTED_ELSEWHERE or f'example("{path.stem}")' in here, path


def test_cifar_goes_on_where_it_was_stopped(tmp_path, capsys):
    main = example("cifar10")["main"]
    words = ["--data", "digits", "--model", "convnet", "--augmentation", "none", "--batch-size", "32", "--epochs", "8"]
    whole = main([*words, "--out", str(tmp_path / "whole.pt")])
    assert len(whole) == 8
    assert whole[-1] > 90

    def failing(*parts):
        if len(list(tmp_path.glob("parts.pt*"))) == 2 and (tmp_path / "parts.pt").exists():
            raise KeyboardInterrupt
        replace(*parts)

    replace = main.__globals__["os"].replace
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr("os.replace", failing)  # stopped between training the second epoch and keeping it
        with pytest.raises(KeyboardInterrupt):
            main([*words, "--out", str(tmp_path / "parts.pt")])
    capsys.readouterr()
    parts = main([*words, "--out", str(tmp_path / "parts.pt")])
    assert "going on after epoch 1" in capsys.readouterr().out
    assert parts == whole
    one, other = (torch.load(tmp_path / name, weights_only=True)["parts"][0] for name in ("whole.pt", "parts.pt"))
    assert all(torch.equal(one[name], other[name]) for name in one)


def test_continual_learning_remembers_more_with_a_memory():
    main = example("continual_learning")["main"]
    with_memory, without = main([]), main(["--memory", "0", "--k", "0"])
    assert len(with_memory) == len(with_memory[0]) == 5
    assert average_accuracy(with_memory) > average_accuracy(without)
    assert forgetting(with_memory) < forgetting(without)
    assert min(row[task] for task, row in enumerate(with_memory)) > 75  # every task was learned


def test_the_sharpness_of_checkpoints(tmp_path):
    found = example("sharpness_of_checkpoint")
    sgd, sam = found["main"]([]).values()
    assert sam["sharpness, radius 0.5"] < sgd["sharpness, radius 0.5"]
    for one in (sgd, sam):  # which of them is the larger depends on the version of torch
        assert 0 < one["largest eigenvalue of the Hessian"] < one["trace of the Hessian"]
    torch.save(found["make_model"]().state_dict(), tmp_path / "mine.pt")
    (mine,) = found["main"]([str(tmp_path / "mine.pt")]).values()
    assert mine["loss"] == pytest.approx(0.69, abs=0.02)  # untrained: the logarithm of 2
