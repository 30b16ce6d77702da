"""Training by Trainer of Transformers, in a process of its own: `python hf_run.py MODE FOLDER`, with losses and weights as JSON."""

from __future__ import annotations

import json
import os
import signal
import sys
import warnings
from pathlib import Path

import torch
from transformers import GPT2Config, GPT2LMHeadModel, Trainer, TrainerCallback, TrainingArguments
from transformers.utils import logging

from firekeep.integrations.hf import FirekeepTrainerMixin

SAMPLES, BATCH = 40, 4


class KeptTrainer(FirekeepTrainerMixin, Trainer):
    def __init__(self, **options):
        super().__init__(**options)
        self.losses = {}

    def training_step(self, *args, **kwargs):
        loss = super().training_step(*args, **kwargs)
        self.losses.setdefault(str(self.state.global_step), []).append(loss.item().hex())
        return loss


class KilledAfter(TrainerCallback):
    def __init__(self, step):
        self.step = step

    def on_step_begin(self, args, state, control, **rest):
        if state.global_step == self.step:
            os.kill(os.getpid(), signal.SIGKILL)


def model(seed):
    torch.manual_seed(seed)
    return GPT2LMHeadModel(GPT2Config(vocab_size=50, n_positions=16, n_embd=16, n_layer=1, n_head=2))


def data():
    torch.manual_seed(7)
    return [{"input_ids": row, "labels": row} for row in torch.randint(0, 50, (SAMPLES, 8))]


def trainer(folder, *, kind=KeptTrainer, kill=None, seed=1, net=None, **options):
    settings = {
        "output_dir": str(folder), "num_train_epochs": 3, "per_device_train_batch_size": BATCH, "learning_rate": 1e-2,
        "lr_scheduler_type": "cosine", "warmup_steps": 2, "optim": "adamw_torch", "save_strategy": "steps", "save_steps": 7,
        "report_to": [], "disable_tqdm": True, "use_cpu": True, "logging_strategy": "no", "seed": 5,
        "dataloader_pin_memory": False, **options,
    }  # fmt: skip
    return kind(
        model=model(seed) if net is None else net,
        args=TrainingArguments(**settings),
        train_dataset=data(),
        eval_dataset=data(),
        callbacks=[KilledAfter(kill)] if kill else None,
    )


def run(folder, *, resume=None, **options):
    made = trainer(folder, **options)
    made.train(resume_from_checkpoint=resume and str(resume))
    weights = {name: value.double().flatten().tolist() for name, value in made.model.state_dict().items()}
    return {"losses": made.losses, "weights": weights}


if __name__ == "__main__":
    warnings.simplefilter("ignore")
    logging.set_verbosity_error()
    mode, folder = sys.argv[1], Path(sys.argv[2])
    if mode == "killed":
        print(
            json.dumps({"straight": run(folder / "straight", gradient_accumulation_steps=2, save_steps=3)}), flush=True
        )
        run(folder, kill=8, gradient_accumulation_steps=2, save_steps=3)
    else:
        print(
            json.dumps(
                run(folder, resume=folder / "checkpoint-6", seed=100, gradient_accumulation_steps=2, save_steps=3)
            )
        )
