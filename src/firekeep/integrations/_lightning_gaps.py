"""What Lightning does between a checkpoint and the next batch, and a run that goes on from the checkpoint leaves out."""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Mapping
from dataclasses import dataclass
from typing import Any

from firekeep.wording import quote


@dataclass(frozen=True, slots=True)
class Place:
    """Where in an epoch a trainer is, as its progress tells."""

    is_in_step: bool
    """A batch was drawn, and its step is not done."""
    is_behind_step: bool
    """The step is done, and hooks that come behind it are not."""
    is_last: bool
    """The batch is the epoch's last."""
    is_over: bool
    """The epoch is: what is gathered over it is known."""
    is_done: bool
    """Its schedules are stepped, too."""


def place_of(trainer: Any) -> Place:
    """Look where a trainer is."""
    loop = trainer.fit_loop.epoch_loop
    batch, epoch = loop.batch_progress.current, trainer.fit_loop.epoch_progress.current
    is_over = bool(epoch.processed >= epoch.ready)
    return Place(
        is_in_step=batch.ready > batch.processed,
        is_behind_step=batch.processed > batch.completed,
        is_last=bool(loop.batch_progress.is_last_batch or batch.ready >= trainer.num_training_batches),
        is_over=is_over,
        is_done=is_over and epoch.completed >= epoch.processed,
    )


def gaps(trainer: Any, module: Any) -> Iterator[str]:
    """Say what a run that goes on from a checkpoint written now would not have."""
    place = place_of(trainer)
    if trainer.should_stop:
        yield "the run had been told to stop, and goes on"
    if place.is_in_step:
        yield "the checkpoint was written in the middle of a step, whose batch and random numbers were drawn and are left out"
        return
    if place.is_behind_step and overrides(module, "on_train_batch_end"):
        told = f"the on_train_batch_end of {type(module).__name__} comes behind the checkpoint, and is left out once"
        yield f"{told}; have a Callback do it, which comes before"
    if place.is_over:
        return
    gathered, watchers = _gathered(trainer), list(_watchers(trainer, module))
    for who, metric in watchers:
        if metric in gathered:
            yield f"{who} goes by {quote(metric)}, which is gathered over the epoch and was begun anew in the middle of it"
        elif place.is_behind_step and place.is_last:
            yield f"{who} goes by {quote(metric)}, and the validation behind the checkpoint is left out"
    if _has_cycled(trainer):
        yield "a CombinedLoader of mode 'max_size' had gone through a loader, which begins again"


def steps_due(trainer: Any, module: Any) -> list[tuple[int, Any]]:
    """List schedules that go by a metric, by number, which Lightning steps behind a checkpoint written now, and the metric's value."""
    place, found = place_of(trainer), []
    if place.is_done or place.is_in_step or not module.automatic_optimization:
        return []
    metrics, gathered = trainer.callback_metrics, _gathered(trainer)
    for number, config in enumerate(trainer.lr_scheduler_configs):
        if not config.reduce_on_plateau or config.monitor not in metrics:
            continue
        if config.interval == "step":
            loop = trainer.fit_loop.epoch_loop
            is_due = not place.is_over and loop.batch_progress.current.ready % trainer.accumulate_grad_batches == 0
            count = loop.batch_progress.current.ready
        else:
            is_due = place.is_over or (place.is_last and not place.is_behind_step and config.monitor not in gathered)
            count = trainer.current_epoch + 1
        if is_due and count % config.frequency == 0:
            found.append((number, metrics[config.monitor].detach().clone()))
    return found


def skipped_starts(trainer: Any, module: Any) -> Iterator[str]:
    """Say whose start of the epoch Lightning left out, since the run goes on in it; a schedule of accumulation is caught up with."""
    callbacks = getattr(trainer, "callbacks", ())
    for one in callbacks:
        if callable(scheduled := getattr(one, "get_accumulate_grad_batches", None)):
            trainer.accumulate_grad_batches = scheduled(trainer.current_epoch)
    for one in (module, *callbacks):
        if not type(one).__module__.startswith(_KNOWN) and overrides(one, "on_train_epoch_start"):
            yield f"Lightning left out the on_train_epoch_start of {type(one).__name__}, since the epoch had begun"


def overrides(one: Any, hook: str) -> bool:
    """Say whether a module or callback has a hook of its own."""
    return any(hook in kind.__dict__ for kind in type(one).__mro__ if not kind.__module__.startswith(_KNOWN))


_KNOWN = ("lightning.", "pytorch_lightning.", "firekeep.")


def _gathered(trainer: Any) -> frozenset[str]:
    """Name the metrics that the training steps of an epoch give their share to."""
    results: Mapping[str, Any] = getattr(trainer.fit_loop.epoch_loop, "_results", {})
    names = [one.meta.name for one in results.values() if one.meta.on_epoch]
    return frozenset((*names, *(f"{name}_epoch" for name in names)))


def _watchers(trainer: Any, module: Any) -> Iterator[tuple[str, str]]:
    """Name what goes by a metric, and the metric."""
    for config in trainer.lr_scheduler_configs if module.automatic_optimization else ():
        if config.reduce_on_plateau:
            yield type(config.scheduler).__name__, config.monitor
    for one in trainer.callbacks:
        if isinstance(metric := getattr(one, "monitor", None), str):
            yield type(one).__name__, metric


def _has_cycled(trainer: Any) -> bool:
    combined: Any = getattr(trainer.fit_loop, "_combined_loader", None)
    if getattr(combined, "_mode", None) != "max_size":
        return False
    done = trainer.fit_loop.epoch_loop.batch_progress.current.ready
    return any((length := length_of(one)) is not None and length <= done for one in combined.flattened)


def loaders_of(given: Any) -> Iterator[Any]:
    """Give the loaders in nested lists and dicts of them."""
    if isinstance(given, Mapping):
        given = list(given.values())
    if not isinstance(given, list | tuple):
        if given is not None:
            yield given
        return
    for one in given:
        yield from loaders_of(one)


def length_of(loader: Iterable[Any]) -> int | None:
    """Give the number of batches of an epoch, where there is one."""
    try:
        return len(loader)  # type: ignore[arg-type]
    except (TypeError, NotImplementedError):
        return None
