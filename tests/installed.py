"""What must work where nothing but torch is installed: run by test_release.py and `make dist` outside of the tree."""

import importlib.util
import math
import subprocess
import sys

import torch

import lookbehind

EXTRAS = ("rich", "tyro", "matplotlib", "sklearn", "numpy", "lightning", "transformers", "ray", "PIL")


def main() -> None:
    there = [name for name in EXTRAS if importlib.util.find_spec(name)]
    assert not there, f"not an environment with torch alone: {there}"
    assert "src" not in lookbehind.__file__, f"not the installed package: {lookbehind.__file__}"

    methods = {
        "SAM": lambda base: lookbehind.SAM(base, rho=0.05),
        "ASAM": lambda base: lookbehind.ASAM(base, rho=0.5),
        "MultistepSAM": lambda base: lookbehind.MultistepSAM(base, rho=0.05, k=2),
        "LookbehindSAM": lambda base: lookbehind.LookbehindSAM(base, k=3, alpha=0.5),
        "LookbehindASAM": lambda base: lookbehind.LookbehindASAM(base, k=3, alpha="adaptive"),
        "RepeatSAM": lambda base: lookbehind.RepeatSAM(base, k=3, alpha=0.5),
        "Lookahead": lambda base: lookbehind.Lookahead(lookbehind.SAM(base), k=2, alpha=0.5),
    }
    inputs = torch.randn(64, 8, generator=torch.Generator().manual_seed(0))
    labels = (inputs.sum(1) > 0).long()
    for name, make in methods.items():
        torch.manual_seed(0)
        model = torch.nn.Sequential(torch.nn.Linear(8, 16), torch.nn.ReLU(), torch.nn.Linear(16, 2))
        optimizer = make(torch.optim.SGD(model.named_parameters(), lr=0.1, momentum=0.9))

        def closure(model=model, optimizer=optimizer) -> torch.Tensor:
            optimizer.zero_grad()
            loss = torch.nn.functional.cross_entropy(model(inputs), labels)
            loss.backward()
            return loss

        losses = [float(optimizer.step(closure)) for _ in range(30)]
        assert math.isfinite(losses[-1]), name
        assert losses[-1] < 0.3 < losses[0], (name, losses)
        print(f"{name:15} loss {losses[0]:.3f} -> {losses[-1]:.3f}")

    # the command line needs more, and says so
    done = subprocess.run([sys.executable, "-m", "lookbehind", "list"], capture_output=True, text=True)
    assert done.returncode != 0
    assert "pip install 'lookbehind[experiments]'" in done.stderr, done.stderr
    print(f"lookbehind {lookbehind.__version__} works with torch {torch.__version__} alone")


if __name__ == "__main__":
    main()
