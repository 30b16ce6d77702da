"""Trainer of Hugging Face Transformers: checkpoints without pickle that appear whole, and resumes that are exact.

from firekeep.integrations.hf import FirekeepTrainerMixin

class MyTrainer(FirekeepTrainerMixin, Trainer):
    pass

MyTrainer(model=model, args=args, train_dataset=data).train(resume_from_checkpoint=True)
"""

from __future__ import annotations

import os
import shutil
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import dataclass
from importlib.util import find_spec
from pathlib import Path
from typing import Any, cast

from firekeep import models
from firekeep.errors import FormatError, UnsupportedError
from firekeep.integrations._files import load_values, save_values
from firekeep.integrations._missing import missing
from firekeep.records import LrSchedulerRecord, OptimizerRecord, OptimizerReport
from firekeep.report import LoadReport
from firekeep.schedulers import SchedulerReport
from firekeep.training._facts import changes, environment
from firekeep.training._rng import check_rng, put_rng, take_rng

try:
    if find_spec("accelerate") is None:  # which Trainer itself asks for late, and in other words
        raise ModuleNotFoundError("accelerate", name="accelerate")
    from transformers.trainer_callback import ExportableState
    from transformers.trainer_utils import PREFIX_CHECKPOINT_DIR, rotate_checkpoints
except ModuleNotFoundError as error:
    raise missing("hf", error) from None

__all__ = ["FirekeepTrainerMixin", "Resumed"]

KEY = "firekeep.hf"
MODEL, STATE, ARGUMENTS = "model.safetensors", "trainer_state.json", "training_args"
OPTIMIZER, SCHEDULER, SCALER, RNG = "optimizer.bpk", "scheduler.bpk", "scaler.bpk", "rng.bpk"
SCRATCH, ASIDE = ".firekeep-tmp", ".firekeep-old"


@dataclass(slots=True, kw_only=True)
class Resumed:
    """What a run went on with: the reports of its parts, and what else decides the bits of a result and is not what it was."""

    model: LoadReport | None = None
    optimizer: OptimizerReport | None = None
    scheduler: SchedulerReport | None = None
    changed: tuple[str, ...] = ()


class FirekeepTrainerMixin:
    """Has Trainer keep its runs by firekeep: put it before Trainer among the bases of a class.

    A checkpoint is the folder that Trainer makes (`checkpoint-N`), with `model.safetensors` and `trainer_state.json` as everybody expects
    them. Optimizer, schedule, scaler and random generators are burnpack files beside them, and training_args.json takes the place of
    a pickle that Trainer writes there and never reads. The folder appears when all of it is on the disk. Settings for saving, rotation
    and the best model are Trainer's.

    A resume refuses a model or an optimizer that does not fit, where Trainer logs a warning. What came back is in `resumed`. A folder
    that Trainer itself has written is resumed as Trainer does, from its pickles, and the next checkpoint has none. Training in one process
    only: `UnsupportedError` is raised for others.
    """

    resumed: Resumed | None = None

    def _save_checkpoint(self, model: Any, trial: Any) -> None:
        trainer = cast("Any", self)
        _require_one_process(trainer)
        if trainer.hp_search_backend is None and trial is None:
            trainer.store_flos()
        run = Path(trainer._get_output_dir(trial=trial))
        final = run / f"{PREFIX_CHECKPOINT_DIR}-{trainer.state.global_step}"
        _note_best(trainer.state, run, final)
        with _published(final) as folder:
            trainer.save_model(str(folder), _internal_call=True)
            (folder / f"{ARGUMENTS}.bin").unlink(missing_ok=True)
            (folder / f"{ARGUMENTS}.json").write_text(trainer.args.to_json_string())
            if not trainer.args.save_only_model:
                _save_parts(trainer, folder)
            _note_callbacks(trainer)
            trainer.state.save_to_json(str(folder / STATE))
        if trainer.args.push_to_hub:
            trainer._push_from_checkpoint(str(final))
        rotate_checkpoints(
            output_dir=str(run),
            save_total_limit=trainer.args.save_total_limit,
            best_model_checkpoint=trainer.state.best_model_checkpoint,
            use_mtime=True,
        )

    def _load_from_checkpoint(self, resume_from_checkpoint: str, model: Any = None) -> None:
        trainer, folder = cast("Any", self), Path(resume_from_checkpoint)
        self.resumed = Resumed()
        if not _is_ours(folder):
            cast("Any", super())._load_from_checkpoint(resume_from_checkpoint, model)
            return
        _require_one_process(trainer)
        if lost := [name for name in (OPTIMIZER, SCHEDULER, RNG, STATE) if not (folder / name).is_file()]:
            raise FormatError(
                f"the checkpoint lacks {', '.join(lost)}, and was written with them",
                path=folder,
                remedy="Give resume_from_checkpoint= the folder of another step.",
            )
        target = trainer.model if model is None else model
        if not (folder / MODEL).is_file():  # in shards, or adapters alone
            cast("Any", super())._load_from_checkpoint(resume_from_checkpoint, model)
            return
        left_out = getattr(target, "_keys_to_ignore_on_save", None) or ()
        self.resumed.model = models.load_into(target, folder / MODEL, match="exact", exclude=list(left_out), stage=True)

    def _load_optimizer_and_scheduler(self, checkpoint: str | None) -> None:
        trainer = cast("Any", self)
        if checkpoint is None or not _is_ours(Path(checkpoint)):
            cast("Any", super())._load_optimizer_and_scheduler(checkpoint)
            return
        folder, resumed = Path(checkpoint), self.resumed or Resumed()
        record = OptimizerRecord.load(folder / OPTIMIZER)
        resumed.optimizer = record.apply(_bare(trainer.optimizer), trainer.model)
        resumed.scheduler = LrSchedulerRecord.load(folder / SCHEDULER).restore(trainer.lr_scheduler).require()
        if (scaler := _scaler(trainer)) is not None and (folder / SCALER).is_file():
            LrSchedulerRecord.load(folder / SCALER).restore(scaler).require()
        self.resumed = resumed

    def _load_rng_state(self, checkpoint: str | None) -> None:
        if checkpoint is None or not _is_ours(Path(checkpoint)):
            cast("Any", super())._load_rng_state(checkpoint)
            return
        path = Path(checkpoint) / RNG
        tree, _ = load_values(
            path, key=KEY, what="the random generators of a checkpoint", remedy="Give the folder of another step."
        )
        if not isinstance(tree.get("rng"), dict) or not isinstance(tree.get("facts"), dict):
            raise FormatError("there are no random generators in it", path=path)
        check_rng(tree["rng"], {})
        put_rng(tree["rng"], {})
        if self.resumed is not None:
            self.resumed.changed = changes(tree["facts"])


def _save_parts(trainer: Any, folder: Path) -> None:
    OptimizerRecord.of(_bare(trainer.optimizer), trainer.model, copy=False).save(folder / OPTIMIZER)
    LrSchedulerRecord.of(trainer.lr_scheduler).save(folder / SCHEDULER)
    if (scaler := _scaler(trainer)) is not None:
        LrSchedulerRecord.of(scaler).save(folder / SCALER)
    save_values({"rng": take_rng({}), "facts": environment()}, folder / RNG, key=KEY)


def _is_ours(folder: Path) -> bool:
    return any((folder / name).is_file() for name in (OPTIMIZER, SCHEDULER, RNG))


def _bare(optimizer: Any) -> Any:
    """Give the optimizer that Accelerate has wrapped."""
    return getattr(optimizer, "optimizer", optimizer)


def _scaler(trainer: Any) -> Any:
    return getattr(trainer.accelerator, "scaler", None)


def _require_one_process(trainer: Any) -> None:
    several = trainer.args.world_size > 1
    if several or trainer.is_deepspeed_enabled or trainer.is_fsdp_enabled:
        raise UnsupportedError(
            "FirekeepTrainerMixin keeps runs of one process, without DeepSpeed and FSDP",
            remedy="Leave it out of the bases of the trainer: Trainer then keeps the run as it does.",
        )


def _note_best(state: Any, run: Path, final: Path) -> None:
    """Note where the best model is: in an earlier checkpoint, or in the one about to be written."""
    if state.best_global_step:
        best = run / f"{PREFIX_CHECKPOINT_DIR}-{state.best_global_step}"
        if best == final or best.exists():
            state.best_model_checkpoint = str(best)


def _note_callbacks(trainer: Any) -> None:
    """Put what callbacks keep into the state, as Trainer does."""
    for one in [*trainer.callback_handler.callbacks, trainer.control]:
        if isinstance(one, ExportableState):
            name, kept = type(one).__name__, trainer.state.stateful_callbacks
            if isinstance(kept.get(name), list):
                kept[name].append(one.state())
            else:
                kept[name] = one.state()


@contextmanager
def _published(final: Path) -> Iterator[Path]:
    """Give a folder to be filled, which gets its name once all of it is on the disk; one of that name is replaced."""
    final.parent.mkdir(parents=True, exist_ok=True)
    _tidy(final.parent)
    scratch, aside = (final.parent / f".{final.name}{suffix}" for suffix in (SCRATCH, ASIDE))
    scratch.mkdir()
    try:
        yield scratch
        for path in (*scratch.rglob("*"), scratch):
            _sync(path)
        if final.exists():
            final.rename(aside)
        scratch.rename(final)
    except BaseException:
        _tidy(final.parent)
        raise
    _sync(final.parent)
    _tidy(final.parent)


def _tidy(run: Path) -> None:
    """Remove what a save that was cut short has left, and put back what it had moved aside."""
    for aside in run.glob(f".*{ASIDE}"):
        final = run / aside.name.removeprefix(".").removesuffix(ASIDE)
        if final.exists():
            shutil.rmtree(aside)
        else:
            aside.rename(final)
    for scratch in run.glob(f".*{SCRATCH}"):
        shutil.rmtree(scratch)


def _sync(path: Path) -> None:
    descriptor = os.open(path, os.O_RDONLY)
    try:
        os.fsync(descriptor)
    finally:
        os.close(descriptor)
