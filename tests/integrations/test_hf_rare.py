"""Trainer of Transformers where it keeps models, orders and schedules in rarer ways: resumed exactly, or told."""

from __future__ import annotations

import warnings

import pytest
import torch
from transformers import (
    EarlyStoppingCallback,
    GPTNeoXConfig,
    GPTNeoXForCausalLM,
    MixtralConfig,
    MixtralForCausalLM,
)

import firekeep
from firekeep.integrations.hf import ResumeWarning
from integrations import hf_run as runs

pytestmark = pytest.mark.usefixtures("quiet_libraries")


SMALL = {"vocab_size": 50, "hidden_size": 16, "intermediate_size": 16, "num_hidden_layers": 1, "num_attention_heads": 2}


def mixtral(seed):
    torch.manual_seed(seed)
    return MixtralForCausalLM(MixtralConfig(**SMALL, num_key_value_heads=2, num_local_experts=2))


def neox(seed):
    torch.manual_seed(seed)
    return GPTNeoXForCausalLM(GPTNeoXConfig(**SMALL))


def weights_of(made):
    return made.model.state_dict()


def same(one, other):
    return one.keys() == other.keys() and all(torch.equal(one[name], other[name]) for name in one)


@pytest.mark.parametrize("make", [mixtral, neox])
def test_a_model_that_is_saved_under_other_names_is_resumed_exactly(tmp_path, make):
    straight = runs.trainer(tmp_path, net=make(1), num_train_epochs=1)
    straight.train()
    again = runs.trainer(tmp_path / "again", net=make(9), num_train_epochs=1)
    again.train(resume_from_checkpoint=str(tmp_path / "checkpoint-7"))
    assert same(weights_of(again), weights_of(straight))
    assert again.losses == {step: straight.losses[step] for step in again.losses}
    assert again.resumed.model is None


def test_the_best_of_such_a_model_is_loaded_at_the_end(tmp_path):
    options = {"eval_strategy": "steps", "eval_steps": 3, "save_steps": 3, "max_steps": 6, "greater_is_better": True}
    made = runs.trainer(tmp_path, net=mixtral(1), load_best_model_at_end=True, metric_for_best_model="loss", **options)
    made.train()
    assert made.state.best_global_step == 3
    best = MixtralForCausalLM.from_pretrained(tmp_path / "checkpoint-3", dtype="auto")
    assert same(weights_of(made), best.state_dict())


def test_such_a_model_of_another_size_is_refused(tmp_path):
    runs.trainer(tmp_path, net=neox(1), max_steps=2, save_steps=2).train()
    torch.manual_seed(1)
    wider = GPTNeoXForCausalLM(GPTNeoXConfig(**{**SMALL, "intermediate_size": 24}))
    made = runs.trainer(tmp_path, net=wider, max_steps=3)
    with pytest.raises((firekeep.LoadError, RuntimeError)):
        made.train(resume_from_checkpoint=True)


def cut(rows):
    shortest = min(len(row["input_ids"]) for row in rows)
    return {name: torch.stack([row[name][:shortest] for row in rows]) for name in rows[0]}


def of_lengths(rows):
    return [{name: row[: 4 + place % 5] for name, row in one.items()} for place, one in enumerate(rows)]


def test_an_order_that_is_drawn_as_the_epoch_begins_is_drawn_again(tmp_path, monkeypatch):
    rows = of_lengths(runs.data())
    monkeypatch.setattr(runs, "data", lambda: rows)
    options = {"train_sampling_strategy": "group_by_length"}
    straight = runs.trainer(tmp_path, **options)
    straight.data_collator = cut
    straight.train()
    again = runs.trainer(tmp_path / "again", seed=9, **options)
    again.data_collator = cut
    again.train(resume_from_checkpoint=str(tmp_path / "checkpoint-14"))
    assert again.losses == {step: straight.losses[step] for step in again.losses}
    assert same(weights_of(again), weights_of(straight))


def test_a_schedule_that_is_known_by_its_state_dict_alone_goes_on_exactly(tmp_path):
    options = {
        "lr_scheduler_type": "greedy",
        "eval_strategy": "steps",
        "eval_steps": 3,
        "metric_for_best_model": "loss",
    }
    straight = runs.trainer(tmp_path, lr_scheduler_kwargs={"patience": 1}, **options)
    straight.train()
    again = runs.trainer(tmp_path / "again", seed=9, lr_scheduler_kwargs={"patience": 1}, **options)
    again.train(resume_from_checkpoint=str(tmp_path / "checkpoint-14"))
    assert same(weights_of(again), weights_of(straight))
    assert again.lr_scheduler.state_dict() == straight.lr_scheduler.state_dict()
    other = runs.trainer(tmp_path / "other")
    with pytest.raises(firekeep.FirekeepError):
        other.train(resume_from_checkpoint=str(tmp_path / "checkpoint-14"))


@pytest.mark.parametrize(("restored", "steps"), [(False, 12), (True, 9)])
def test_callbacks_that_count_anew_are_told(tmp_path, restored, steps):
    options = {
        "eval_strategy": "steps", "eval_steps": 3, "save_steps": 3, "load_best_model_at_end": True,
        "metric_for_best_model": "loss", "restore_callback_states_from_checkpoint": restored,
    }  # fmt: skip
    made = runs.trainer(tmp_path, max_steps=6, **options)
    made.add_callback(EarlyStoppingCallback(2, 9.0))
    made.train()
    again = runs.trainer(tmp_path, **options)
    again.add_callback(EarlyStoppingCallback(2, 9.0))
    with warnings.catch_warnings(record=True) as told:
        warnings.simplefilter("always")
        again.train(resume_from_checkpoint=str(tmp_path / "checkpoint-6"))
    assert again.state.global_step == steps
    words = [str(one.message) for one in told if issubclass(one.category, ResumeWarning)]
    assert bool(words) is not restored
    assert again.resumed.reasons == () if restored else "'EarlyStoppingCallback' begins to count anew" in words[0]
