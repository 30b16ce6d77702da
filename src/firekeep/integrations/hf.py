"""Trainer of Hugging Face Transformers: checkpoints without pickle that appear whole, and resumes that are exact.

from firekeep.integrations.hf import FirekeepTrainerMixin

class MyTrainer(FirekeepTrainerMixin, Trainer):
    pass

MyTrainer(model=model, args=args, train_dataset=data).train(resume_from_checkpoint=True)
"""

from __future__ import annotations

import os
import shutil
import warnings
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import dataclass
from importlib.util import find_spec
from pathlib import Path
from typing import Any, cast

from firekeep import models
from firekeep.bridges import torch as torch_bridge
from firekeep.errors import FormatError, UnsupportedError
from firekeep.integrations._files import load_values, save_values
from firekeep.integrations._missing import missing
from firekeep.integrations._resume_report import ResumeWarning
from firekeep.records import LrSchedulerRecord, OptimizerRecord, OptimizerReport
from firekeep.report import LoadError, LoadReport
from firekeep.schedulers import SchedulerReport
from firekeep.training._facts import changes, environment
from firekeep.training._rng import check_rng, put_rng, take_rng
from firekeep.wording import some

try:
    if find_spec("accelerate") is None:  # which Trainer itself asks for late, and in other words
        raise ModuleNotFoundError("accelerate", name="accelerate")
    from transformers.trainer_callback import ExportableState
    from transformers.trainer_utils import PREFIX_CHECKPOINT_DIR, has_length, rotate_checkpoints
except ModuleNotFoundError as error:
    raise missing("hf", error) from None

__all__ = ["FirekeepTrainerMixin", "ResumeWarning", "Resumed"]

KEY = "firekeep.hf"
MODEL, STATE, ARGUMENTS = "model.safetensors", "trainer_state.json", "training_args"
OPTIMIZER, SCHEDULER, SCALER, RNG = "optimizer.bpk", "scheduler.bpk", "scaler.bpk", "rng.bpk"
SCRATCH, ASIDE = ".firekeep-tmp", ".firekeep-old"


@dataclass(slots=True, kw_only=True)
class Resumed:
    """What a run went on with: the reports of its parts, and what else decides the bits of a result and is not what it was.

    `reasons` say why the run does not go on as it would have. There is no report of a model that Transformers itself has loaded, nor of a
    schedule that is known by its `state_dict` alone.
    """

    model: LoadReport | None = None
    optimizer: OptimizerReport | None = None
    scheduler: SchedulerReport | None = None
    reasons: tuple[str, ...] = ()
    changed: tuple[str, ...] = ()


class FirekeepTrainerMixin:
    """Has Trainer keep its runs by firekeep: put it before Trainer among the bases of a class.

    A checkpoint is the folder that Trainer makes (`checkpoint-N`), with `model.safetensors` and `trainer_state.json` as everybody expects
    them. Optimizer, schedule, scaler and random generators are burnpack files beside them, and training_args.json takes the place of
    a pickle that Trainer writes there and never reads. The folder appears when all of it is on the disk. Settings for saving, rotation
    and the best model are Trainer's.

    A resume refuses a model or an optimizer that does not fit, where Trainer logs a warning. What came back is in `resumed`, and what
    keeps the run from going on exactly, in a `ResumeWarning`, too. What datasets draw from the generators of the process is not covered:
    let it follow from the sample, as in `firekeep.training.SeededDataset`. A folder that Trainer itself has written is
    resumed as Trainer does, from its pickles, and the next checkpoint has none. Training in one process only: `UnsupportedError` is
    raised for others.
    """

    resumed: Resumed | None = None
    _epoch_start: dict[str, Any] | None = None
    """The random generators as the epoch began: an order that is drawn from them is drawn again."""
    _is_mid_epoch = False

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
        self.resumed.model = _load_weights(target, folder)

    def _load_best_model(self) -> None:
        trainer = cast("Any", self)
        best = Path(trainer.state.best_model_checkpoint)
        if _is_ours(best) and (best / MODEL).is_file():
            _load_weights(trainer.model, best)
        else:
            cast("Any", super())._load_best_model()

    def _run_epoch(self, **told: Any) -> None:
        goes_on = self.resumed is not None and told.get("epoch") == told.get("epochs_trained")
        self._is_mid_epoch = goes_on and bool(told.get("steps_trained_in_current_epoch"))
        if self._is_mid_epoch and self._epoch_start:
            put_rng(self._epoch_start, {})
        self._epoch_start = take_rng({})
        cast("Any", super())._run_epoch(**told)

    def _load_optimizer_and_scheduler(self, checkpoint: str | None) -> None:
        trainer = cast("Any", self)
        if checkpoint is None or not _is_ours(Path(checkpoint)):
            cast("Any", super())._load_optimizer_and_scheduler(checkpoint)
            return
        folder, resumed = Path(checkpoint), self.resumed or Resumed()
        record = OptimizerRecord.load(folder / OPTIMIZER)
        plan = record.plan(_bare(trainer.optimizer), trainer.model, dry_run=False, same_params=True)
        _, resumed.optimizer = plan.put()
        resumed.scheduler = _load_schedule(trainer.lr_scheduler, folder / SCHEDULER)
        if (scaler := _scaler(trainer)) is not None and (folder / SCALER).is_file():
            LrSchedulerRecord.load(folder / SCALER).restore(scaler).require()
        self._epoch_start = _read_rng(folder).get("epoch")
        resumed.reasons = tuple(_faults(trainer))
        self.resumed = resumed
        if resumed.reasons:
            warnings.warn(f"the run does not go on exactly: {'; '.join(resumed.reasons)}", ResumeWarning, stacklevel=2)

    def _load_rng_state(self, checkpoint: str | None) -> None:
        if checkpoint is None or not _is_ours(Path(checkpoint)):
            cast("Any", super())._load_rng_state(checkpoint)
            return
        tree = _read_rng(Path(checkpoint))
        put_rng(tree["rng"], {})
        if not self._is_mid_epoch:
            self._epoch_start = tree["rng"]
        if self.resumed is not None:
            self.resumed.changed = changes(tree["facts"])


def _read_rng(folder: Path) -> dict[str, Any]:
    """Read the random generators of a checkpoint, and check that the process's own would take them."""
    tree, _ = load_values(
        folder / RNG,
        key=KEY,
        what="the random generators of a checkpoint",
        remedy="Give the folder of another step.",
    )
    if not isinstance(tree.get("rng"), dict) or not isinstance(tree.get("facts"), dict):
        raise FormatError("there are no random generators in it", path=folder / RNG)
    for name in ("rng", "epoch"):
        check_rng(tree.get(name) or {}, {})
    return tree


def _load_weights(target: Any, folder: Path) -> LoadReport | None:
    """Load a model from a checkpoint, all of it or none. Names and shapes that Transformers saves in another way it turns back itself."""
    left_out = getattr(target, "_keys_to_ignore_on_save", None) or ()
    try:
        return models.load_into(target, folder / MODEL, match="exact", exclude=list(left_out), stage=True)
    except LoadError:
        if not callable(getattr(target, "save_pretrained", None)):
            raise
        made, told = type(target).from_pretrained(folder, dtype="auto", output_loading_info=True)
        weights, live = made.state_dict(), target.state_dict()
        if any(told.values()) or {name: one.dtype for name, one in weights.items()} != {
            name: one.dtype for name, one in live.items()
        }:
            raise
        target.load_state_dict(weights)
        return None


def _load_schedule(schedule: Any, path: Path) -> SchedulerReport | None:
    """Restore a schedule: one that is known from its record, another one by its state_dict."""
    if torch_bridge.schedules(schedule):
        return LrSchedulerRecord.load(path).restore(schedule).require()
    tree, _ = load_values(
        path,
        key=KEY,
        what=f"the state of a {type(schedule).__name__}",
        remedy="Give lr_scheduler_type= the schedule that the run had.",
    )
    schedule.load_state_dict(tree["state"])
    return None


def _faults(trainer: Any) -> Iterator[str]:
    """Say what keeps a run from going on exactly, which Trainer leaves out or counts in its own way."""
    args, callbacks = trainer.args, trainer.callback_handler.callbacks
    anew = [type(one).__name__ for one in callbacks if isinstance(one, ExportableState)]
    if anew and not args.restore_callback_states_from_checkpoint:
        told = f"{some(anew)} {'begins' if len(anew) == 1 else 'begin'} to count anew"
        yield f"{told}, unless restore_callback_states_from_checkpoint=True is among the arguments"
    if not has_length(trainer.train_dataset) and (trainer.state.epoch or 0) >= 1:
        yield "the data has no length, and Trainer does not know where in it the run was once it had been gone through"
    if args.ignore_data_skip:
        yield "ignore_data_skip=True begins the epoch anew"
    if args.dataloader_persistent_workers and args.dataloader_num_workers:
        yield "dataloader_persistent_workers=True starts workers once more in the next epoch, which draws a random number"


def _save_parts(trainer: Any, folder: Path) -> None:
    OptimizerRecord.of(_bare(trainer.optimizer), trainer.model, copy=False).save(folder / OPTIMIZER)
    if torch_bridge.schedules(trainer.lr_scheduler):
        LrSchedulerRecord.of(trainer.lr_scheduler).save(folder / SCHEDULER)
    else:
        save_values({"state": trainer.lr_scheduler.state_dict()}, folder / SCHEDULER, key=KEY)
    if (scaler := _scaler(trainer)) is not None:
        LrSchedulerRecord.of(scaler).save(folder / SCALER)
    drawn = {"rng": take_rng({}), "epoch": trainer._epoch_start or {}}
    save_values({**drawn, "facts": environment()}, folder / RNG, key=KEY)


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
