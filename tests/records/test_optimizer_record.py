"""Records of optimizers as files: Burn's names and bytes, and records that Burn wrote."""

from __future__ import annotations

import itertools
from dataclasses import replace
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch
from torch import nn

import firekeep
from firekeep.errors import EntryError, FormatError, WrongFormatError
from firekeep.formats import Contents
from firekeep.ids import ParamId
from firekeep.records import (
    FieldStates,
    LrSchedulerRecord,
    ModuleRecord,
    OptimizerError,
    OptimizerRecord,
    OptimizerReport,
    OptimizerWarning,
)
from firekeep.scalars import Scalar
from records import burn_rules
from records.models import MAKERS, Optim, net, run, values

EXAMPLE_D = (
    "4e5255420100db000000"
    "a36774656e736f7273a27434322e6d6f6d656e74756d2e6d6f6d656e745f31a465647479706563"
    "46333265736861706581026c646174615f6f66667365747382000868706172616d5f6964182a74"
    "34322e6d6f6d656e74756d2e6d6f6d656e745f32a4656474797065634633326573686170658102"
    "6c646174615f6f6666736574738219010019010868706172616d5f6964182a686d657461646174"
    "61a16234326766632e62696173677363616c617273a26934322e5f5f72616e6ba16455496e7401"
    "7034322e6d6f6d656e74756d2e74696d65a16455496e7401"
)


def example_d() -> OptimizerRecord:
    """One step of Burn's Adam with the gradient [1, 2]: it has 1 - beta in single precision."""
    first, second = (np.float32(1) - np.float32(beta) for beta in (0.9, 0.999))
    grad = np.array([1, 2], np.float32)
    moments = {"time": 1, "moment_1": first * grad, "moment_2": second * grad**2}
    return OptimizerRecord.of_states([FieldStates(param_id=42, path="fc.bias", rank=1, fields={"momentum": moments})])


def test_burns_record_of_one_parameter_byte_for_byte():
    expected = bytearray(520)
    expected[: len(EXAMPLE_D) // 2] = bytes.fromhex(EXAMPLE_D)
    expected[256:264] = bytes.fromhex("d0cccc3dd0cc4c3e")
    expected[512:520] = bytes.fromhex("0012833a0012833b")
    assert example_d().to_bytes() == bytes(expected)


def test_burns_record_goes_on_in_pytorch():
    class Model(nn.Module):
        def __init__(self) -> None:
            super().__init__()
            self.fc = nn.Linear(3, 2)

    model = Model()
    optimizer = Optim.Adam(model.parameters(), lr=0.3)
    record = OptimizerRecord.from_bytes(example_d().to_bytes())
    assert record.optimizer is None
    report = record.apply(optimizer, model)
    state = optimizer.state[model.fc.bias]
    assert report.restored == ("fc.bias",)
    assert report.fresh == ("fc.weight",)
    assert state["step"].dtype is torch.float32
    assert float(state["step"]) == 1
    np.testing.assert_allclose(state["exp_avg"], [0.1, 0.2], rtol=1e-6)
    assert optimizer.param_groups[0]["lr"] == 0.3
    assert any("does not say" in note for note in report.notes)
    with pytest.raises(OptimizerError) as caught:
        record.apply(Optim.Adagrad(model.parameters()), model)
    assert caught.value.report.dropped["fc.bias"] == (
        "its fields 'momentum.moment_1', 'momentum.moment_2', 'momentum.time' are those of adam, and the optimizer is Adagrad"
    )


FIELDS = {
    "Adafactor": ["second_moment", "column_second_moment", "time"],
    "Adagrad": ["lr_decay.sum", "lr_decay.time"],
    "Adam": ["momentum.moment_1", "momentum.moment_2", "momentum.time"],
    "Adam, amsgrad": ["momentum.moment_1", "momentum.moment_2", "momentum.max_moment_2", "momentum.time"],
    "AdamW": ["momentum.moment_1", "momentum.moment_2", "momentum.time"],
    "Muon": ["momentum.velocity"],
    "RMSprop": ["square_avg.square_avg", "centered.avg"],
    "RMSprop, all": ["square_avg.square_avg", "centered.grad_avg", "centered.avg", "momentum.buf"],
    "SGD": [],
    "SGD, nesterov": ["momentum.velocity"],
}


def names_of(record: OptimizerRecord, path: str) -> list[str]:
    """List the fields of one parameter, as Burn reads them: tensors in the order of their data, then scalars."""
    own = next(key for key, value in record.metadata.items() if value == path)
    keys = [*record.keys(), *sorted(record.scalars)]
    return [key[len(own) + 1 :] for key in keys if key.startswith(f"{own}.")]


@pytest.mark.filterwarnings("ignore::firekeep.records.OptimizerWarning")
@pytest.mark.parametrize("name", FIELDS)
def test_the_fields_are_burns(name: str):
    model = net()
    optimizer = MAKERS[name](list(model.parameters()))
    run(model, optimizer, 0, 2)
    record = OptimizerRecord.of(optimizer, model, layout="burn")
    found = names_of(record, "inner.weight")
    assert [key for key in found if key != "__rank"] == FIELDS[name]
    own = next(key for key, value in record.metadata.items() if value == "inner.weight")
    assert record.scalars[f"{own}.__rank"] == Scalar("uint", 2)
    assert own == str(int(own))
    for key in record:
        if key.startswith(f"{own}."):
            assert record.entry(key).param_id == ParamId(int(own))
        assert record.entry(key).param_id is not None
    if name.startswith("Adam"):
        assert record.scalars[f"{own}.momentum.time"] == Scalar("uint", 2)


def test_the_record_of_lbfgs_has_burns_layout_without_ids():
    model = net()
    optimizer = MAKERS["LBFGS"](list(model.parameters()))
    run(model, optimizer, 0, 2)
    record = OptimizerRecord.of(optimizer, model, layout="burn")
    length = len(optimizer.state[model.inner.weight]["old_dirs"])
    pairs = [f"history_{which}.{place}" for which in "sy" for place in range(length)]
    assert record.keys() == [*pairs, "d", "prev_flat_grad"]
    assert set(record.scalars) == {"history_s.len", "history_y.len", "t", "prev_loss", "g_iter"}
    assert all(record.entry(key).param_id is None for key in record)
    assert not any(key.isdecimal() for key in record.metadata)


def test_parameters_come_in_the_order_of_the_model_whatever_the_order_of_the_optimizer():
    model = net()
    forward, backward = (Optim.SGD(list(model.parameters())[::way], lr=0.1, momentum=0.9) for way in (1, -1))
    run(model, forward, 0, 1)
    for param in model.parameters():
        backward.state[param] = forward.state[param]
    first, second = (OptimizerRecord.of(one, model) for one in (forward, backward))
    assert first.keys() == second.keys()
    assert first.paths == tuple(name for name, _ in model.named_parameters())


def test_moments_lie_like_the_weights_of_the_layout():
    model = net()
    optimizer = Optim.Adam(model.parameters())
    run(model, optimizer, 0, 1)
    burns, torchs = (OptimizerRecord.of(optimizer, model, layout=layout) for layout in ("burn", "torch"))
    assert burns.layout == "burn"
    assert "firekeep.layout" not in burns.metadata
    assert torchs.metadata["firekeep.layout"] == "torch"
    moment = optimizer.state[model.inner.weight]["exp_avg"].numpy()
    for record, expected in ((burns, moment.T), (torchs, moment)):
        own = next(key for key, path in record.metadata.items() if path == "inner.weight")
        entry = record.entry(f"{own}.momentum.moment_1")
        np.testing.assert_array_equal(np.frombuffer(entry.read(), np.float32).reshape(entry.shape), expected)
    assert "norm.gamma" in burns.paths


def test_the_moments_of_parts_have_the_ids_of_the_parts_in_the_models_record():
    torch.manual_seed(0)
    model = nn.ModuleDict({"attention": nn.MultiheadAttention(4, 2), "cell": nn.LSTM(4, 3)})
    optimizer = Optim.Adam(model.parameters(), lr=0.01)
    x = torch.randn(5, 2, 4)
    for _ in range(2):
        optimizer.zero_grad()
        (model["attention"](x, x, x)[0].sum() + model["cell"](x)[0].sum()).backward()
        optimizer.step()
    weights = {entry.name: entry.param_id for entry in ModuleRecord.of(model).contents().entries}
    record = OptimizerRecord.from_bytes(OptimizerRecord.of(optimizer, model, layout="burn").to_bytes())
    states = {path: int(key) for key, path in record.metadata.items() if key.isdecimal()}
    assert states == {name: int(param_id) for name, param_id in weights.items() if param_id is not None}
    again = Optim.Adam(model.parameters(), lr=0.01)
    assert record.apply(again, model).exact
    for param in model.parameters():
        assert torch.equal(again.state[param]["exp_avg"], optimizer.state[param]["exp_avg"])
    # Burn keeps none of what firekeep writes beside its fields, and joins the parts all the same.
    bare = without_firekeep(record)
    report = bare.apply(third := Optim.Adam(model.parameters(), lr=0.01), model)
    assert set(report.restored) == {name for name, _ in model.named_parameters()}
    for param in model.parameters():
        assert torch.equal(third.state[param]["exp_avg_sq"], optimizer.state[param]["exp_avg_sq"])


def without_firekeep(record: OptimizerRecord) -> OptimizerRecord:
    """Give what is left of a record when Burn has read and written it."""
    held = record.contents()
    return OptimizerRecord(
        Contents(
            entries=[entry for entry in held.entries if not entry.name.startswith("firekeep.")],
            metadata={key: value for key, value in held.metadata.items() if not key.startswith("firekeep.")},
            scalars=held.scalars,
        )
    )


KEPT = [name for name in FIELDS if name not in ("Muon", "SGD")] + ["LBFGS"]


@pytest.mark.parametrize("name", KEPT)
def test_a_record_that_went_through_burn_goes_on_in_pytorch(name: str):
    model = net()
    optimizer = MAKERS[name](list(model.parameters()))
    run(model, optimizer, 0, 10)
    again = net()
    again.load_state_dict(model.state_dict())
    record = without_firekeep(OptimizerRecord.of(optimizer, model, layout="burn"))
    other = MAKERS[name](list(again.parameters()))
    report = record.apply(other, again)
    assert not report.fresh
    assert not report.dropped
    run(model, optimizer, 10, 20)
    run(again, other, 10, 20)
    if name == "LBFGS":  # the sums over pairs are taken anew, in double precision
        for mine, theirs in zip(model.parameters(), again.parameters(), strict=True):
            torch.testing.assert_close(mine, theirs, atol=1e-2, rtol=1e-1)
    else:
        assert values(again) == values(model)


def burns_options(optimizer: Any) -> dict[str, Any]:
    options = dict(optimizer.param_groups[0])
    if isinstance(optimizer, Optim.AdamW):
        options["decay"] = options["weight_decay"]
    return options


RULES: dict[str, tuple[Any, Any]] = {
    "SGD, nesterov": (MAKERS["SGD, nesterov"], burn_rules.sgd),
    "Adam": (MAKERS["Adam"], burn_rules.adam),
    "Adam, amsgrad": (lambda params: Optim.Adam(params, lr=0.01, amsgrad=True), burn_rules.adam),
    "AdamW": (lambda params: Optim.AdamW(params, lr=0.01, weight_decay=0.1), burn_rules.adam),
    "Adagrad": (MAKERS["Adagrad"], burn_rules.adagrad),
    "RMSprop": (MAKERS["RMSprop"], burn_rules.rmsprop),
    "RMSprop, all": (MAKERS["RMSprop, all"], burn_rules.rmsprop),
    "Adafactor": (MAKERS["Adafactor"], burn_rules.adafactor),
}


@pytest.mark.parametrize("name", RULES)
def test_ten_steps_here_and_ten_in_burn_are_twenty(name: str):
    maker, rule = RULES[name]
    model = net().double()
    optimizer = maker(list(model.parameters()))
    grads = gradients(model)
    take(model, optimizer, grads, 10)
    in_burn(optimizer, model, rule, list(itertools.islice(grads, 10)), tolerance=1e-5)


def test_muon_goes_on_in_burn_where_matrices_are_square():
    model = nn.Sequential(nn.Linear(6, 6, bias=False))
    optimizer = Optim.Muon(model.parameters(), lr=0.02)
    grads = gradients(model)
    take(model, optimizer, grads, 10)
    in_burn(optimizer, model, burn_rules.muon, list(itertools.islice(grads, 10)), tolerance=2e-3)


def test_muon_warns_of_matrices_that_are_not_square_in_the_layout_of_burn():
    model = nn.Sequential(nn.Linear(6, 6, bias=False), nn.Linear(6, 3, bias=False))
    optimizer = Optim.Muon(model.parameters(), lr=0.02)
    with pytest.warns(OptimizerWarning, match=r"'1\.weight'"):
        OptimizerRecord.of(optimizer, model, layout="burn")
    OptimizerRecord.of(optimizer, model)


def gradients(model: nn.Module) -> Any:
    source = torch.Generator().manual_seed(3)
    while True:
        yield [torch.randn(param.shape, generator=source).to(param.dtype) for param in model.parameters()]


def take(model: nn.Module, optimizer: Any, grads: Any, steps: int) -> None:
    for made in itertools.islice(grads, steps):
        for param, grad in zip(model.parameters(), made, strict=True):
            param.grad = grad.clone()
        optimizer.step()


def in_burn(optimizer: Any, model: nn.Module, rule: Any, grads: list[Any], *, tolerance: float) -> None:
    """Go on with a record by Burn's rule on Burn's layout, and in PyTorch with the optimizer itself, and compare."""
    weights = {entry.name: entry for entry in ModuleRecord.of(model).contents().entries}
    record = OptimizerRecord.of(optimizer, model, layout="burn")
    options = burns_options(optimizer)
    names = [name for name, _ in model.named_parameters()]
    theirs = dict(zip(names, weights, strict=True))
    made: dict[str, Any] = {}
    for place, name in enumerate(names):
        entry = weights[theirs[name]]
        theta = firekeep.load_file(ModuleRecord.of(model).to_bytes())[entry.name]
        state = burns_state(record, int(entry.param_id or 0))
        turned = theta.ndim == 2
        for step in grads:
            grad = step[place].numpy()
            theta = rule(theta, grad.T if turned else grad, state, options)
        made[name] = theta.T if turned else theta
    take(model, optimizer, iter(grads), len(grads))
    for name, param in model.named_parameters():
        np.testing.assert_allclose(made[name], param.detach().numpy(), atol=tolerance, rtol=0)


def burns_state(record: OptimizerRecord, param_id: int) -> dict[str, Any]:
    arrays = firekeep.load_file(record.to_bytes())
    start = f"{param_id}."
    state = {name[len(start) :]: value for name, value in arrays.items() if name.startswith(start)}
    state |= {name[len(start) :]: int(value) for name, value in record.scalars.items() if name.startswith(start)}
    return state


@pytest.mark.parametrize(
    ("name", "keys", "fields"),
    [
        ("Lion", ("exp_avg",), ["momentum"]),
        ("Lamb", ("exp_avg", "exp_avg_sq", "step"), ["moment_1", "moment_2", "time"]),
        (
            "Adan",
            ("exp_avg", "exp_avg_sq", "exp_avg_diff", "neg_pre_grad", "step"),
            [
                "momentum.exp_avg",
                "momentum.exp_avg_sq",
                "momentum.exp_avg_diff",
                "momentum.neg_pre_grad",
                "momentum.time",
            ],
        ),
        ("MyAdam8", ("exp_avg", "exp_avg_sq", "step"), ["momentum.moment_1", "momentum.moment_2", "momentum.time"]),
        ("Mine", ("exp_avg", "exp_avg_sq", "step"), []),
    ],
)
def test_classes_of_other_packages_are_told_by_what_they_keep(name: str, keys: tuple[str, ...], fields: list[str]):
    def step(self: Any, closure: Any = None) -> None:
        for param in self.param_groups[0]["params"]:
            held = {key: 3 if key == "step" else torch.randn_like(param) for key in keys}
            self.state[param] = held

    cls: Any = type(name, (torch.optim.Optimizer,), {"step": step})
    model, again = net(), net()
    optimizer = cls(model.parameters(), {"lr": 0.1})
    optimizer.step()
    record = OptimizerRecord.of(optimizer, model, layout="burn")
    assert [key for key in names_of(record, "inner.weight") if key != "__rank"] == fields
    other = cls(again.parameters(), {"lr": 0.1})
    assert record.apply(other, again).exact
    for key, value in optimizer.state[model.inner.weight].items():
        found = other.state[again.inner.weight][key]
        assert torch.equal(found, value) if isinstance(value, torch.Tensor) else found == value


def test_what_is_no_record_of_an_optimizer_is_refused_by_name(tmp_path: Path):
    path = ModuleRecord.of(net()).save(tmp_path / "model", durable=False)
    with pytest.raises(WrongFormatError, match=r"holds the weights of a model \('inner.weight'\)") as caught:
        OptimizerRecord.load(tmp_path / "model")
    assert str(path) in str(caught.value)
    assert "ModuleRecord.load" in str(caught.value)
    with pytest.raises(WrongFormatError, match="the state of a scheduler"):
        OptimizerRecord.from_bytes(LrSchedulerRecord({"step": 3}).to_bytes())


def test_a_record_through_a_file(tmp_path: Path):
    model = net()
    optimizer = Optim.Adam(model.parameters(), lr=0.01)
    run(model, optimizer, 0, 2)
    path = OptimizerRecord.of(optimizer, model, copy=False).save(tmp_path / "optim-1.0", durable=False)
    assert path == tmp_path / "optim-1.0.bpk"
    record = OptimizerRecord.load(tmp_path / "optim-1.0")
    assert record.optimizer == "Adam"
    assert repr(record) == "<OptimizerRecord of Adam: 12 tensors, layout 'torch'>"
    assert len(record) == len(list(record)) == 12
    assert record.keys()[0] in record
    with pytest.raises(EntryError, match="no such tensor"):
        record.entry("0.nothing")
    again = net()
    other = Optim.Adam(again.parameters())
    report = record.apply(other, again)
    assert report.source == str(path)
    with firekeep.open(path) as opened:
        assert OptimizerRecord.of_opened(opened).apply(other, again).exact
    assert torch.equal(other.state[again.inner.bias]["exp_avg"], optimizer.state[model.inner.bias]["exp_avg"])


def test_a_dry_run_changes_nothing():
    model = net()
    optimizer = Optim.Adam(model.parameters(), lr=0.01)
    run(model, optimizer, 0, 2)
    again = net()
    other = Optim.Adam(again.parameters(), lr=0.5)
    report = OptimizerRecord.of(optimizer, model).apply(other, again, dry_run=True)
    assert report.dry_run
    assert len(report.restored) == 6
    assert not other.state
    assert other.param_groups[0]["lr"] == 0.5


def test_a_record_of_a_wholly_different_model_is_refused():
    model = net()
    optimizer = Optim.Adam(model.parameters())
    run(model, optimizer, 0, 1)
    other = nn.Linear(2, 2)
    with pytest.raises(OptimizerError) as caught:
        OptimizerRecord.of(optimizer, model).apply(Optim.Adam(other.parameters()), other)
    assert caught.value.report.refusals == ("not one parameter of the record is in the optimizer",)


def broken(change: Any) -> OptimizerRecord:
    model = net()
    optimizer = Optim.Adam(model.parameters())
    run(model, optimizer, 0, 1)
    held = OptimizerRecord.of(optimizer, model).contents()
    metadata, scalars, entries = dict(held.metadata), dict(held.scalars), list(held.entries)
    change(metadata, scalars, entries)
    return OptimizerRecord(Contents(entries=entries, metadata=metadata, scalars=scalars))


def test_a_record_that_contradicts_itself_is_refused_by_the_parameter():
    def take_time(metadata: Any, scalars: Any, entries: Any) -> None:
        for key in [key for key in metadata if key.startswith("firekeep.state.")]:
            del metadata[key]
        for key in [key for key in scalars if key.endswith("momentum.time")]:
            del scalars[key]

    model = net()
    with pytest.raises(OptimizerError, match=r"it has no 'momentum\.time'"):
        broken(take_time).apply(Optim.Adam(model.parameters()), model)
    with pytest.raises(OptimizerError) as caught:
        broken(lambda metadata, scalars, entries: entries.pop(0)).apply(Optim.Adam(model.parameters()), model)
    assert caught.value.report.dropped == {
        "inner.weight": "the record speaks of a tensor 'momentum.moment_1', and does not hold it"
    }


def test_another_rank_is_refused():
    record = example_d()
    held = record.contents()
    lying = OptimizerRecord(replace(held, scalars={**held.scalars, "42.__rank": Scalar("uint", 2)}))
    model = nn.ModuleDict({"fc": nn.Linear(3, 2)})
    with pytest.raises(OptimizerError, match="it had 2 axes when it was saved, and has 1 now"):
        lying.apply(Optim.Adam(model.parameters()), model)


@pytest.mark.parametrize("key", ["firekeep.optimizer", "firekeep.state."])
@pytest.mark.parametrize("text", ["{}", "[1,2]", '{"version":1}', "null", '{"path":"a","dtype":"F99"}'])
def test_metadata_that_nobody_wrote_is_a_format_error(key: str, text: str):
    def spoil(metadata: Any, scalars: Any, entries: Any) -> None:
        for name in [name for name in metadata if name.startswith(key)]:
            metadata[name] = text

    with pytest.raises(FormatError):
        broken(spoil).saved()


def test_a_record_of_a_later_version_is_refused():
    def age(metadata: Any, scalars: Any, entries: Any) -> None:
        metadata["firekeep.optimizer"] = metadata["firekeep.optimizer"].replace('"version":1', '"version":9')

    with pytest.raises(FormatError, match="has version 9, and this firekeep knows up to 1"):
        broken(age).saved()


@pytest.mark.parametrize(
    "number", ["=F32 [] 00", "=F32 [2] 00000000", "=F99 [] 00000000", "=F32", "=F32 [] zz", "=F32 [-1] "]
)
def test_numbers_in_the_text_are_checked(number: str):
    def spoil(metadata: Any, scalars: Any, entries: Any) -> None:
        for name in [name for name in metadata if name.startswith("firekeep.state.")]:
            metadata[name] = metadata[name].replace("=F32 [] 0000803f", number)

    model = net()
    with pytest.raises(OptimizerError, match="is no number of a known dtype"):
        broken(spoil).apply(Optim.Adam(model.parameters()), model)


def test_the_report_tells_it_all_in_eighty_columns():
    model = net(extra=nn.Linear(3, 3))
    optimizer = Optim.Adam(model.parameters())
    run(model, optimizer, 0, 1)
    again = net(inner=nn.Linear(4, 8, bias=False), other=nn.Linear(3, 3))
    other = Optim.Adam(again.parameters(), lr=0.2)
    report = OptimizerRecord.of(optimizer, model).apply(other, again)
    text = str(report)
    assert max(map(len, text.splitlines())) <= 80
    assert text.splitlines()[0] == "the record: 5 states restored in Adam"
    assert "not in the record, so they start anew: 2" in text
    assert "in the record only: 3" in text
    told = report.to_dict()
    assert told["fresh"] == ["other.bias", "other.weight"]
    assert told["orphaned"] == ["extra.bias", "extra.weight", "inner.bias"]
    assert told["exact"] is False
    assert not report


def test_parameters_are_counted_where_lines_stand_for_several():
    names = tuple(f"{kind}.{number}" for kind in "abcdefghijkl" for number in range(3))
    text = str(OptimizerReport(target="Adam", fresh=names, orphaned=names[:6], stateless=names))
    assert "not in the record, so they start anew: 36" in text
    assert "in the record only: 6" in text
    assert "... and 6 more" in text
    assert "36 parameters ('a.{0…2}', 'b.{0…2}', 'c.{0…2}' and 27 more)" in " ".join(text.split())


@pytest.mark.parametrize("kind", [torch.optim.Adagrad, torch.optim.AdamW])
def test_parameters_that_have_made_different_numbers_of_steps_go_on_from_their_own(kind: type[Optim]):
    """A layer that was frozen for a while: PyTorch counts the steps of each parameter, and a record into a running optimizer keeps them."""

    def step(model: nn.Module, optimizer: Optim) -> None:
        optimizer.zero_grad()
        model(torch.ones(1, 2)).sum().backward()
        optimizer.step()

    model = nn.Sequential(nn.Linear(2, 2), nn.Linear(2, 2))
    optimizer = kind(model.parameters(), lr=0.1)
    model[0].requires_grad_(False)
    step(model, optimizer)
    step(model, optimizer)
    model[0].requires_grad_(True)
    step(model, optimizer)
    before = {name: float(optimizer.state[value]["step"]) for name, value in model.named_parameters()}
    record = OptimizerRecord.from_bytes(OptimizerRecord.of(optimizer, model).to_bytes())
    step(model, optimizer)
    report = record.apply(optimizer, model)
    assert report.ok
    assert not report.dropped
    assert before == {"0.weight": 1, "0.bias": 1, "1.weight": 3, "1.bias": 3} or kind is torch.optim.Adagrad
    assert {name: float(optimizer.state[value]["step"]) for name, value in model.named_parameters()} == before


@pytest.mark.parametrize(
    ("saved", "live", "told"),
    [
        (torch.tensor(0.1), 0.3, "was a tensor and is a number now"),
        (0.1, torch.tensor(0.3), "was a number and is a tensor now"),
    ],
)
def test_a_rate_that_was_a_tensor_and_is_a_number_is_told(saved: Any, live: Any, told: str):
    model = nn.Linear(2, 2)
    record = OptimizerRecord.of(torch.optim.Adam(model.parameters(), lr=saved), model)
    report = record.apply(torch.optim.Adam(model.parameters(), lr=live), model)
    assert any(told in one for one in report.changed)
    assert not report.exact
