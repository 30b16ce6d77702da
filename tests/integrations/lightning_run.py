"""Training by Lightning, in a process of its own: `python lightning_run.py MODE FOLDER`, with losses and weights as JSON on standard output."""

from __future__ import annotations

import json
import os
import signal
import sys
import warnings
from pathlib import Path

import torch
from lightning.pytorch import LightningModule, Trainer, seed_everything
from lightning.pytorch.callbacks import Callback, ModelCheckpoint
from torch.utils.data import DataLoader, TensorDataset

from firekeep.integrations.lightning import ExactResume, FirekeepCheckpointIO
from firekeep.training import ResumableLoader, ResumableSampler

SAMPLES, BATCH, EPOCHS = 40, 4, 3


class Net(LightningModule):
    def __init__(self):
        super().__init__()
        self.save_hyperparameters({"width": 16, "betas": (0.9, 0.95)})
        self.net = torch.nn.Sequential(
            torch.nn.Linear(8, 16), torch.nn.BatchNorm1d(16), torch.nn.Dropout(0.3), torch.nn.Linear(16, 1)
        )
        self.losses = {}

    def training_step(self, batch, batch_idx):
        inputs, targets = batch
        loss = torch.nn.functional.mse_loss(self.net(inputs), targets)
        self.losses[self.global_step] = loss.item().hex()
        return loss

    def validation_step(self, batch, batch_idx):
        inputs, targets = batch
        self.log("valid", torch.nn.functional.mse_loss(self.net(inputs), targets))

    def configure_optimizers(self):
        optimizer = torch.optim.AdamW(self.parameters(), lr=1e-2, betas=self.hparams["betas"])
        schedule = torch.optim.lr_scheduler.CosineAnnealingLR(optimizer, T_max=EPOCHS * SAMPLES // BATCH)
        return {"optimizer": optimizer, "lr_scheduler": {"scheduler": schedule, "interval": "step"}}


class KilledAfter(Callback):
    """Comes behind the checkpoint of that step."""

    def __init__(self, step):
        self.step = step

    def on_train_batch_start(self, trainer, pl_module, batch, batch_idx):
        if trainer.global_step == self.step:
            os.kill(os.getpid(), signal.SIGKILL)


def data(resumable=True):
    torch.manual_seed(7)
    samples = TensorDataset(torch.randn(SAMPLES, 8), torch.randn(SAMPLES, 1))
    if not resumable:
        return DataLoader(samples, batch_size=BATCH, shuffle=True)
    return ResumableLoader(DataLoader(samples, batch_size=BATCH, sampler=ResumableSampler(SAMPLES, seed=3)))


def run(
    folder,
    *,
    kill=None,
    resume=None,
    every=None,
    resumable=True,
    validate=True,
    seed=1,
    net=Net,
    callbacks=(),
    loaders=None,
    **more,
):
    seed_everything(seed)
    model, exact = net(), ExactResume()
    seed_everything(seed + 1)
    saving = ModelCheckpoint(
        dirpath=folder, filename="{step}", save_top_k=-1, every_n_train_steps=every, every_n_epochs=None if every else 1
    )
    trainer = Trainer(
        max_epochs=EPOCHS,
        accelerator="cpu",
        logger=False,
        enable_progress_bar=False,
        enable_model_summary=False,
        plugins=[FirekeepCheckpointIO()],
        callbacks=[exact, *callbacks, saving, *([KilledAfter(kill)] if kill else [])],
        limit_val_batches=2 if validate else 0,
        num_sanity_val_steps=0,
        **more,
    )
    valid = DataLoader(data().loader.dataset, batch_size=BATCH)
    trainer.fit(model, data(resumable) if loaders is None else loaders(), valid if validate else None, ckpt_path=resume)
    weights = {name: value.double().flatten().tolist() for name, value in model.state_dict().items()}
    return {"losses": model.losses, "weights": weights, "report": exact.report and exact.report.to_dict()}


if __name__ == "__main__":
    warnings.simplefilter("ignore")
    mode, folder = sys.argv[1], Path(sys.argv[2])
    if mode == "killed":
        straight = run(folder / "straight", every=7)
        print(json.dumps({"straight": straight}), flush=True)
        run(folder, every=7, kill=18)
    else:
        print(json.dumps(run(folder, resume=folder / "step=14.ckpt", every=7, seed=100)))
