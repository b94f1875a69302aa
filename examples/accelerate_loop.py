"""A network learns the digits of scikit-learn, with Accelerate and Lookbehind-SAM around AdamW.

Needs pip install '.[experiments,huggingface]' (scikit-learn has the digits).

python examples/accelerate_loop.py, or accelerate launch examples/accelerate_loop.py on several devices, in bf16 or fp16
"""

import torch
from accelerate import Accelerator
from sklearn.datasets import load_digits
from torch.nn.functional import cross_entropy
from torch.utils.data import DataLoader, TensorDataset

import lookbehind
from lookbehind.integrations.accelerate import accelerated_step


def main(accelerator: Accelerator, epochs: int = 6) -> tuple[float, torch.optim.Optimizer]:
    torch.manual_seed(0)
    digits = load_digits()
    images, labels = torch.tensor(digits.data / 16, dtype=torch.float32), torch.tensor(digits.target)
    train, test = TensorDataset(images[:1500], labels[:1500]), (images[1500:], labels[1500:])
    model = torch.nn.Sequential(torch.nn.Linear(64, 64), torch.nn.ReLU(), torch.nn.Linear(64, 10))
    base = torch.optim.AdamW(model.named_parameters(), lr=1e-2)
    optimizer = lookbehind.LookbehindSAM(base, rho=0.05, k=2, clip=lookbehind.clip_norm(1.0), scaler=accelerator.scaler)
    scheduler = torch.optim.lr_scheduler.CosineAnnealingLR(base, epochs * len(train) // 50)
    loader = DataLoader(train, batch_size=50, shuffle=True)
    model, optimizer, loader, scheduler = accelerator.prepare(model, optimizer, loader, scheduler)

    def loss_of(batch: list[torch.Tensor]) -> torch.Tensor:
        return cross_entropy(model(batch[0]), batch[1])

    for epoch in range(epochs):
        for batch in loader:
            # two micro-batches for every step: this is how to accumulate
            halves = list(zip(*(tensor.chunk(2) for tensor in batch), strict=True))
            closure = lookbehind.accumulated(loss_of, halves, scaler=accelerator.scaler, model=model)
            loss = accelerated_step(accelerator, optimizer, closure)
            scheduler.step()
        accelerator.print(f"epoch {epoch + 1}: loss {loss:.3f}, evaluations {optimizer.optimizer.evaluations}")
    with torch.no_grad():
        accuracy = (model(test[0].to(accelerator.device)).argmax(1).cpu() == test[1]).float().mean().item()
    accelerator.print(f"test accuracy {100 * accuracy:.1f} %")
    return accuracy, optimizer.optimizer


if __name__ == "__main__":
    main(Accelerator())
