"""Peak memory of a step of each method, on a vision transformer: what checkpointing, bf16 and offload save.

python benchmarks/memory.py                                          a small network, on this machine's CPU
python benchmarks/memory.py --size base --batch 64 --device cuda     ViT-B/16 as it is fine-tuned

Every case runs in a process of its own. On a CPU storages that are alive are counted, and the process's resident memory
is measured beside it; what would wait on the CPU while a GPU works counts apart. On CUDA torch's allocator tells.
"""

from __future__ import annotations

import argparse
import json
import os
from collections.abc import Callable, Iterable
from dataclasses import asdict, dataclass
from multiprocessing import get_context
from pathlib import Path
from typing import Any
from unittest.mock import patch

import torch
import transformers.models.vit.modeling_vit  # noqa: F401, once for all processes
from rich.console import Console
from rich.table import Table
from torch import Tensor
from torch.multiprocessing.reductions import StorageWeakRef
from torch.nn import functional as F
from torch.optim import Optimizer

from lookbehind.bench.memory import LiveBytes
from lookbehind.models.vit import ImageClassifier, vision_transformer
from lookbehind.optim import exchange
from lookbehind.optim.passes import switching
from lookbehind.training.methods import base_optimizer, method
from lookbehind.training.run import Run

SIZES: dict[str, dict[str, int]] = {
    "tiny": {"image": 16, "patch": 8, "width": 64, "layers": 2, "heads": 2},
    "small": {"image": 64, "patch": 16, "width": 192, "layers": 4, "heads": 3},
    "base": {"image": 224, "patch": 16, "width": 768, "layers": 12, "heads": 12},
}
CLASSES = 1000
STEPS = 2  # the first makes momentum and buffers, which the second finds
MB = 1e6


@dataclass(frozen=True)
class Case:
    """A method with what saves memory."""

    method: str
    alpha: float | str = 0.8
    checkpointing: bool = False
    bf16: bool = False
    offload: bool = False

    @property
    def name(self) -> str:
        adaptive = ["adaptive alpha"] if self.alpha == "adaptive" else []
        saving = [word for word in ("checkpointing", "bf16", "offload") if getattr(self, word)]
        return ", ".join([self.method, *adaptive, *saving])


CASES = (
    *(Case(name) for name in ("sgd", "sam", "asam", "lookbehind-sam")),
    Case("lookbehind-sam", "adaptive"),
    Case("lookbehind-sam-switching"),
    Case("lookbehind-sam-switching", "adaptive"),
    *(Case("sam", **{saving: True}) for saving in ("checkpointing", "bf16", "offload")),
    *(Case("lookbehind-sam-switching", **{saving: True}) for saving in ("checkpointing", "bf16", "offload")),
    Case("lookbehind-sam-switching", "adaptive", offload=True),
    Case("lookbehind-sam-switching", "adaptive", checkpointing=True, bf16=True, offload=True),
)


class OnTheDevice(LiveBytes):
    """Counts what is alive, but for what waits on the CPU, which is ``waited``."""

    def __init__(self, known: Iterable[Tensor]) -> None:
        super().__init__(known)
        self.waited = 0
        self._waiting: list[Tensor] = []  # kept, so that no other storage is taken for one of these

    def aside(self, tensor: Tensor) -> Tensor:
        """In place of :func:`lookbehind.optim.exchange.aside`."""
        waiting = torch.empty_like(tensor)
        key = StorageWeakRef(waiting.untyped_storage()).cdata
        self._known.add(key)
        self._storages.pop(key, None)
        self._waiting.append(waiting)
        self.waited += waiting.untyped_storage().nbytes()
        return waiting.copy_(tensor)


def network(case: Case, size: str, device: str) -> ImageClassifier:
    torch.manual_seed(0)
    model = vision_transformer(CLASSES, **SIZES[size])
    if case.checkpointing:
        model.checkpoint_gradients()
    return model.to(device).train()


def stepping(model: ImageClassifier, case: Case, size: str, batch: int, device: str) -> Callable[[], object]:
    """A function that takes a step on made-up images."""
    run = Run(data="imagenet", method=case.method, k=2, alpha=case.alpha)  # type: ignore[arg-type]
    base = base_optimizer("sgd", model, lr=1e-3, momentum=0.9, weight_decay=1e-4)
    how = method(case.method)
    optimizer: Optimizer = how.optimizer(base, model, run, offload=case.offload)
    side = SIZES[size]["image"]
    inputs = torch.randn(batch, 3, side, side, device=device)
    labels = torch.randint(CLASSES, (batch,), device=device)

    def closure() -> Tensor:
        optimizer.zero_grad()
        with torch.autocast(device, torch.bfloat16, enabled=case.bf16):
            loss = F.cross_entropy(model(inputs), labels)
        loss.backward()
        return loss

    closures: Any = switching(*[closure] * how.minibatches(run.k)) if how.switching else closure
    return lambda: optimizer.step(closures)


def measured(case: Case, size: str, batch: int, device: str) -> dict[str, Any]:
    """The peak of a step beyond the network itself, in bytes."""
    model = network(case, size, device)
    weights = sum(p.numel() * p.element_size() for p in model.parameters())
    found = {"case": asdict(case), "name": case.name, "weights": weights, "waits": weights if case.offload else 0}
    step = stepping(model, case, size, batch, device)
    if device == "cuda":
        before = torch.cuda.memory_allocated()
        for _ in range(STEPS):
            torch.cuda.reset_peak_memory_stats()
            step()
        return found | {"peak": torch.cuda.max_memory_allocated() - before}
    with OnTheDevice(model.parameters()) as live, patch.object(exchange, "aside", live.aside):
        for _ in range(STEPS):
            step()
    return found | {"peak": live.peak, "waits": live.waited // STEPS}


def resident(case: Case, size: str, batch: int) -> int | None:
    """The same by the growth of the process, in bytes; None where the system does not tell."""
    if not Path("/proc/self/clear_refs").exists():
        return None
    model = network(case, size, "cpu")
    F.cross_entropy(model(torch.randn(1, 3, *[SIZES[size]["image"]] * 2)), torch.tensor([0])).backward()  # warm-up
    model.zero_grad()
    step = stepping(model, case, size, batch, "cpu")
    before = _from_status("VmRSS")
    Path("/proc/self/clear_refs").write_text("5")  # the peak begins anew
    for _ in range(STEPS):
        step()
    return _from_status("VmHWM") - before


def _from_status(name: str) -> int:
    lines = Path("/proc/self/status").read_text().splitlines()
    return next(int(line.split()[1]) * 1024 for line in lines if line.startswith(f"{name}:"))


def both(case: Case, size: str, batch: int, device: str) -> dict[str, Any]:
    by_growth = {"resident": resident(case, size, batch)} if device == "cpu" else {}
    return measured(case, size, batch, device) | by_growth


def all_cases(size: str, batch: int, device: str) -> list[dict[str, Any]]:
    """Each in a fresh process, forked from one that has imported everything and done nothing."""
    # large blocks go back to the system at once, so that the resident memory follows what is alive
    os.environ |= {"MALLOC_MMAP_THRESHOLD_": "65536", "MALLOC_TRIM_THRESHOLD_": "65536", "MALLOC_ARENA_MAX": "1"}
    with get_context("forkserver").Pool(1, maxtasksperchild=1) as pool:
        rows = [pool.apply(both, (case, size, batch, device)) for case in CASES]
    return [row | {"above_sgd": row["peak"] - rows[0]["peak"]} for row in rows]


def table(rows: list[dict[str, Any]], title: str) -> Table:
    shown = Table(title=title, title_justify="left")
    heads = (
        "method",
        "MB beyond the network",
        "in its size",
        "above SGD, in its size",
        "waits on the CPU, in its size",
    )
    for head in (*heads, "MB resident"):
        shown.add_column(head, justify="left" if head == "method" else "right")
    for row in rows:
        size = row["weights"]
        resident_memory = f"{row['resident'] / MB:,.0f}" if row.get("resident") is not None else ""
        shown.add_row(
            row["name"],
            f"{row['peak'] / MB:,.1f}",
            f"{row['peak'] / size:.2f}",
            f"{row['above_sgd'] / size:+.2f}",
            f"{row['waits'] / size:.2f}" if row["waits"] else "",
            resident_memory,
        )
    return shown


def main() -> None:
    options = argparse.ArgumentParser(description="Peak memory of a step of each method.")
    options.add_argument("--size", choices=list(SIZES), default="small")
    options.add_argument("--batch", type=int, default=16)
    options.add_argument("--device", choices=["cpu", "cuda"], default="cpu")
    options.add_argument("--out", type=Path, default=Path("out/memory.json"))
    given = options.parse_args()
    rows = all_cases(given.size, given.batch, given.device)
    network_size = rows[0]["weights"]
    title = f"ViT {given.size}: {network_size / 4 / 1e6:.1f} M parameters, {network_size / MB:.1f} MB; "
    Console(width=140).print(table(rows, title + f"minibatches of {given.batch}, {given.device}"))
    given.out.parent.mkdir(parents=True, exist_ok=True)
    settings = {"size": given.size, "batch": given.batch, "device": given.device, "torch": torch.__version__}
    given.out.write_text(json.dumps({**settings, "cases": rows}, indent=2))
    print(given.out)


if __name__ == "__main__":
    main()
