"""Lightning: checkpoints without pickle, and runs that go on exactly in the middle of an epoch.

    from firekeep.integrations.lightning import ExactResume, FirekeepCheckpointIO

    trainer = Trainer(plugins=[FirekeepCheckpointIO()], callbacks=[ExactResume()])
    trainer.fit(model, ResumableLoader(loader), ckpt_path="last.ckpt")

`LightningModule.load_from_checkpoint` and `torch.load` read pickles, and do not see a plug-in. The weights alone come out of such a file
by `firekeep.load_into(model, "last.ckpt", include=..., rename=...)`: see `FirekeepCheckpointIO`.
"""

from __future__ import annotations

import os
import warnings
from collections import OrderedDict
from collections.abc import Iterator, Mapping
from pathlib import Path
from typing import Any

from firekeep import tagged
from firekeep.errors import FormatError, UnsupportedError
from firekeep.integrations._files import load_values, save_values
from firekeep.integrations._lightning_gaps import gaps, length_of, loaders_of, skipped_starts, steps_due
from firekeep.integrations._missing import missing
from firekeep.integrations._resume_report import ResumeReport, ResumeWarning
from firekeep.training import ResumableLoader
from firekeep.training._facts import changes, environment
from firekeep.training._rng import check_rng, plan_rng, put_rng, take_rng

try:
    import torch
    from lightning.pytorch.callbacks import Callback
    from lightning.pytorch.plugins.io import CheckpointIO
    from torch.utils.data import DataLoader, SequentialSampler
except ModuleNotFoundError as error:
    raise missing("lightning", error) from None

__all__ = ["ExactResume", "FirekeepCheckpointIO", "ResumeReport", "ResumeWarning"]

KEY = "firekeep.lightning"
VERSIONS = "firekeep.lightning.versions"
"""The versions of modules, which PyTorch keeps beside a state dict and not in it."""


class FirekeepCheckpointIO(CheckpointIO):
    r"""Keeps Lightning's checkpoints as burnpack files: no pickle, and each appears whole or not at all.

    Files keep the names that Lightning gives them (`.ckpt`); `firekeep inspect` shows what is in one. What is no tensor and no plain
    value, such as an object among the hyper-parameters, is refused by name, and the checkpoint is not written.

    The weights are under `state_dict.`:

        firekeep.load_into(model, "last.ckpt", rename=r"^state_dict\.=>", layout="torch", allow_unused=True)
    """

    def __init__(self, *, durable: bool = True) -> None:
        self.durable = durable

    def save_checkpoint(
        self, checkpoint: dict[str, Any], path: str | os.PathLike[str], storage_options: Any = None
    ) -> None:
        """Write a checkpoint, with the folders above it."""
        if storage_options is not None:
            raise TypeError("storage_options are for file systems elsewhere, and this writes to the local one")
        target = _local(path)
        target.parent.mkdir(parents=True, exist_ok=True)
        versions = {
            name: held._metadata
            for name, held in checkpoint.items()
            if isinstance(held, OrderedDict) and hasattr(held, "_metadata")
        }
        save_values(
            checkpoint,
            target,
            key=KEY,
            metadata={VERSIONS: tagged.encode(versions), "firekeep.layout": "torch"},
            durable=self.durable,
        )

    def load_checkpoint(
        self,
        path: str | os.PathLike[str],
        map_location: Any = None,
        weights_only: bool | None = None,
    ) -> dict[str, Any]:
        """Give the checkpoint as it was saved, tensors in memory of their own: on the CPU, or on the device `map_location`."""
        if not isinstance(map_location, str | torch.device | None):
            raise UnsupportedError(
                f"map_location={map_location!r}: tensors come on the CPU, or on one device",
                remedy="Give None or a device.",
            )
        checkpoint, metadata = load_values(
            _local(path),
            key=KEY,
            what="a checkpoint that FirekeepCheckpointIO saved",
            remedy="A checkpoint of Lightning's own is loaded without this plug-in.",
        )
        versions = tagged.decode(metadata.get(VERSIONS, "{}"))
        for name, told in versions.items() if isinstance(versions, dict) else ():
            checkpoint[name]._metadata = told
        if map_location is None:
            return checkpoint
        skeleton, found = tagged.split_tensors(checkpoint, lambda leaf: isinstance(leaf, torch.Tensor))
        moved = {name: tensor.to(map_location) for name, tensor in found.items() if isinstance(tensor, torch.Tensor)}
        made: dict[str, Any] = tagged.join_tensors(skeleton, moved)
        return made

    def remove_checkpoint(self, path: str | os.PathLike[str]) -> None:
        """Remove a checkpoint, if it is there."""
        _local(path).unlink(missing_ok=True)


class ExactResume(Callback):
    """Keeps the random generators in every checkpoint, and puts them back where they count: as the first batch begins.

    Whatever Lightning draws before that, for samplers, workers and the sanity check, then does not matter. Validation leaves the generators
    as they were, so that a checkpoint from before it is as good as one from behind it. A run goes on exactly in the middle of an epoch if
    its loader says where it is (`state_dict`): wrap a DataLoader in `firekeep.training.ResumableLoader`. What keeps a run from that is in
    `report`, made when a run goes on, and in a `ResumeWarning`. What datasets draw from the generators of the process is not covered: let
    it follow from the sample, as in `firekeep.training.SeededDataset`. Nor is what hooks at the start and the end of an epoch draw.

    Lightning steps a ReduceLROnPlateau behind the checkpoint, and a run that goes on leaves that out: it is made up for.

    `generators` names further ones. In a run of several processes only those of the first are kept.
    """

    def __init__(self, *, generators: Mapping[str, Any] | None = None) -> None:
        self.generators = dict(generators or {})
        self.report: ResumeReport | None = None
        self._pending: dict[str, Any] | None = None
        self._after_batch: dict[str, Any] | None = None
        self._is_validating = False
        self._has_begun = False

    def state_dict(self) -> dict[str, Any]:
        """Take the generators; Lightning asks for it as it writes a checkpoint. Before the first batch they are those of the last one."""
        if self._pending is not None:
            return dict(self._pending)
        before = self._after_batch if self._is_validating else None
        return {"rng": take_rng(self.generators) if before is None else before, "facts": environment()}

    def on_save_checkpoint(self, trainer: Any, pl_module: Any, checkpoint: dict[str, Any]) -> None:
        """Note what comes behind the checkpoint: steps of schedules, to be made up for, and what is left out of a run that goes on."""
        kept = checkpoint.get("callbacks", {}).get(self.state_key)
        if kept is not None and self._pending is None and trainer.state.fn == "fit":
            kept["due"] = [list(one) for one in steps_due(trainer, pl_module)]
            kept["gaps"] = list(gaps(trainer, pl_module))

    def load_state_dict(self, state_dict: dict[str, Any]) -> None:
        """Hold the state until the first batch; raises `FormatError` for one that no generator would take."""
        if not isinstance(state_dict.get("rng"), dict) or not isinstance(state_dict.get("facts"), dict):
            raise FormatError("the checkpoint's state of ExactResume has no random generators")
        check_rng(state_dict["rng"], self.generators)
        self._pending = dict(state_dict)

    def on_train_start(self, trainer: Any, pl_module: Any) -> None:
        """Have loaders whose epoch was gone through begin the next: Lightning never asks one for the batch after the last.

        Schedules that go by a metric make the step that came behind the checkpoint, which Lightning leaves out.
        """
        self._has_begun = self._is_validating = False
        is_over = trainer.fit_loop.epoch_loop.batch_progress.current.processed >= trainer.num_training_batches
        for loader in loaders_of(trainer.train_dataloader):
            if not isinstance(loader, ResumableLoader):
                continue
            if is_over or (length_of(loader) is not None and loader.batches >= len(loader)):
                loader.set_epoch(loader.epoch + 1)
            if is_over:  # and one that was shorter may have begun another epoch of its own
                loader.set_epoch(trainer.current_epoch)
        for number, metric in (self._pending or {}).get("due", ()):
            if number < len(trainer.lr_scheduler_configs):
                pl_module.lr_scheduler_step(trainer.lr_scheduler_configs[number].scheduler, metric)

    def on_train_epoch_start(self, trainer: Any, pl_module: Any) -> None:
        """Tell loaders which epoch it is; Lightning tells samplers only."""
        self._has_begun = True
        for loader in loaders_of(trainer.train_dataloader):
            if callable(set_epoch := getattr(loader, "set_epoch", None)):
                set_epoch(trainer.current_epoch)

    def on_train_batch_start(
        self,
        trainer: Any,
        pl_module: Any,
        batch: Any,
        batch_idx: int,
    ) -> None:
        """Put the generators back, once."""
        if self._pending is None:
            return
        state, self._pending = self._pending, None
        if trainer.is_global_zero:
            put_rng(state["rng"], self.generators)
        restored, fresh, dropped = plan_rng(state["rng"], self.generators)
        skipped = () if self._has_begun else skipped_starts(trainer, pl_module)
        lost = (f"{name}: {why}" for name, why in {**fresh, **dropped}.items())
        self.report = ResumeReport(
            epoch=trainer.current_epoch,
            batch=batch_idx,
            generators=restored,
            reasons=(*state.get("gaps", ()), *skipped, *_faults(trainer, batch_idx), *lost),
            changed=changes(state["facts"]),
        )
        if not self.report.exact:
            warnings.warn(f"the run {self.report}", ResumeWarning, stacklevel=2)

    def on_train_batch_end(self, trainer: Any, pl_module: Any, outputs: Any, batch: Any, batch_idx: int) -> None:
        """Note the generators: loaders of validation draw from them before any hook tells that it begins."""
        self._after_batch = take_rng(self.generators)

    def on_validation_start(self, trainer: Any, pl_module: Any) -> None:
        """Note that what is drawn from now on is drawn for validation."""
        self._is_validating = trainer.state.fn == "fit" and not trainer.sanity_checking

    def on_validation_end(self, trainer: Any, pl_module: Any) -> None:
        """Put the generators back to where they were before validation."""
        self._is_validating = False
        if self._after_batch is not None and trainer.state.fn == "fit" and not trainer.sanity_checking:
            put_rng(self._after_batch, self.generators)

    def on_train_end(self, trainer: Any, pl_module: Any) -> None:
        """Forget them."""
        self._after_batch = None


def _faults(trainer: Any, batch_idx: int) -> Iterator[str]:
    for loader in loaders_of(trainer.train_dataloader):
        kind = type(loader).__name__
        if not hasattr(loader, "state_dict") or not hasattr(loader, "load_state_dict"):
            sampler = getattr(loader, "sampler", None)
            if batch_idx:
                yield f"the {kind} does not say where it is: it began the epoch anew; wrap it in ResumableLoader"
            elif isinstance(loader, DataLoader) and not isinstance(sampler, SequentialSampler):
                yield f"the {kind} draws its order before the generators are back; wrap it in ResumableLoader"
        elif batch_idx and length_of(loader) is None:
            yield f"the {kind} has no length, so Lightning asks it for a batch ahead, which is then left out"
    if batch_idx % trainer.accumulate_grad_batches:
        yield "gradients had been accumulated and not applied yet, and a checkpoint does not hold them"
    if trainer.world_size > 1:
        yield f"of {trainer.world_size} processes only the first has its generators in the checkpoint"


def _local(path: str | os.PathLike[str]) -> Path:
    text = os.fspath(path)
    if "://" in text:
        raise UnsupportedError(
            "FirekeepCheckpointIO writes to the local file system", path=text, remedy="Give a path without a protocol."
        )
    return Path(text)
