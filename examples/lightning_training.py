"""Lookbehind in PyTorch Lightning (pip install 'lookbehind[lightning]'): python examples/lightning_training.py"""

import lightning.pytorch as pl
import torch
from torch.nn import functional
from torch.utils.data import DataLoader, TensorDataset

import lookbehind
from lookbehind.integrations.lightning import SharpnessAwareModule, StepMonitor


class Classifier(SharpnessAwareModule):  # in place of pl.LightningModule
    def __init__(self):
        super().__init__()
        layers = (torch.nn.Linear(8, 32), torch.nn.BatchNorm1d(32), torch.nn.ReLU(), torch.nn.Linear(32, 2))
        self.net = torch.nn.Sequential(*layers)

    def training_step(self, batch, batch_idx):
        loss = functional.cross_entropy(self.net(batch[0]), batch[1])
        self.log("train_loss", loss, prog_bar=True)  # logged at the unperturbed weights only
        return loss

    def configure_optimizers(self):
        base = torch.optim.SGD(self.named_parameters(), lr=0.1, momentum=0.9)
        optimizer = lookbehind.LookbehindSAM(base, rho=0.05, k=2, alpha=0.5, model=self, batchnorm="first")
        return [optimizer], [torch.optim.lr_scheduler.CosineAnnealingLR(optimizer, T_max=5)]


def batches():
    inputs = torch.randn(512, 8, generator=torch.Generator().manual_seed(0))
    return DataLoader(TensorDataset(inputs, (inputs.sum(1) > 0).long()), batch_size=32)


if __name__ == "__main__":
    pl.seed_everything(0)
    # two batches make one minibatch of 64, at every point of a step; precision="bf16-mixed" and strategy="ddp" work as
    # usual, fp16 with plugins=[SharpnessAwarePrecision("16-mixed", "cuda")] and scaler=self.grad_scaler
    trainer = pl.Trainer(max_epochs=5, accumulate_grad_batches=2, log_every_n_steps=8, callbacks=[StepMonitor()])
    trainer.fit(Classifier(), batches())
    print({name: round(float(value), 4) for name, value in trainer.callback_metrics.items()})
