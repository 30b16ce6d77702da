"""Every optimizer that PyTorch ships, through a record: what goes on is what would have gone on."""

from __future__ import annotations

import inspect
from typing import Any

import pytest
import torch
from torch import nn

from firekeep.bridges.torch import describe_optimizer, restore_optimizer
from firekeep.errors import RuleError, UnsupportedError
from firekeep.records import OptimizerError, OptimizerRecord, OptimizerReport
from records.models import MAKERS, Net, Optim, net, run, values

PARTS = ["inner.weight", "inner.bias", "norm.weight", "norm.bias", "outer.weight", "outer.bias"]


def through(maker: Any, *, layout: str = "torch", then: Any = None) -> tuple[OptimizerReport, Net, Net]:
    """Ten steps, a record in memory, ten more: in the same objects, and in new ones with the weights and the record."""
    then = maker if then is None else then
    model = net()
    optimizer = maker(list(model.parameters()))
    run(model, optimizer, 0, 10)
    weights = {name: value.clone() for name, value in model.state_dict().items()}
    data = OptimizerRecord.of(optimizer, model, layout=layout).to_bytes()
    run(model, optimizer, 10, 20)
    again = net(seed=5)
    again.load_state_dict(weights)
    other = then(list(again.parameters()))
    report = OptimizerRecord.from_bytes(data).apply(other, again)
    run(again, other, 10, 20)
    return report, model, again


def test_every_optimizer_of_pytorch_is_among_those_tested():
    shipped = {
        name
        for name, one in vars(torch.optim).items()
        if inspect.isclass(one) and issubclass(one, torch.optim.Optimizer) and one is not torch.optim.Optimizer
    }
    assert shipped - {name.partition(",")[0] for name in MAKERS} == {"SparseAdam"}


@pytest.mark.parametrize("name", MAKERS)
def test_a_run_goes_on_bit_for_bit(name: str):
    report, straight, resumed = through(MAKERS[name])
    assert values(resumed) == values(straight)
    assert report.exact
    assert set(report.restored) | set(report.stateless) == set(PARTS if name != "Muon" else (PARTS[0], PARTS[4]))


@pytest.mark.parametrize("name", [name for name in MAKERS if name != "Muon"])
def test_the_layout_of_burn_and_back_is_exact_too(name: str):
    report, straight, resumed = through(MAKERS[name], layout="burn")
    assert values(resumed) == values(straight)
    assert report.exact


@pytest.mark.filterwarnings("ignore::firekeep.records.OptimizerWarning")
def test_muon_comes_back_from_the_layout_of_burn_within_rounding():
    report, straight, resumed = through(MAKERS["Muon"], layout="burn")
    assert report.ok
    assert not report.exact
    assert "rounded" in report.changed[0]
    for mine, theirs in zip(straight.parameters(), resumed.parameters(), strict=True):
        torch.testing.assert_close(mine, theirs, atol=1e-5, rtol=1e-4)


@pytest.mark.parametrize("name", ["Adam", "Adagrad", "SGD, nesterov", "Adafactor"])
def test_the_order_of_parameters_does_not_matter(name: str):
    report, straight, resumed = through(MAKERS[name], then=lambda params: MAKERS[name](params[::-1]))
    assert report.exact
    assert values(resumed) == values(straight)


@pytest.mark.parametrize("layout", ["torch", "burn"])
def test_the_vectors_of_lbfgs_are_put_in_the_order_of_the_live_optimizer(layout: str):
    model = net()
    optimizer = MAKERS["LBFGS"](list(model.parameters()))
    run(model, optimizer, 0, 3)
    again = net()
    back = list(again.parameters())[::-1]
    other = MAKERS["LBFGS"](back)
    report = OptimizerRecord.of(optimizer, model, layout=layout).apply(other, again)
    assert report.restored
    assert not report.exact
    assert "order" in report.changed[0]
    mine, theirs = optimizer.state[model.inner.weight], other.state[back[0]]
    sizes = [param.numel() for param in model.parameters()]
    for key in ("old_dirs", "old_stps"):
        for one, found in zip(mine[key], theirs[key], strict=True):
            assert torch.equal(torch.cat(one.split(sizes)[::-1]), found)
    assert torch.equal(torch.cat(mine["d"].split(sizes)[::-1]), theirs["d"])
    assert theirs["n_iter"] == mine["n_iter"]
    run(again, other, 3, 4)


def test_states_come_back_with_their_types():
    model = net()
    optimizer = Optim.Adam(model.parameters(), amsgrad=True)
    run(model, optimizer, 0, 3)
    again = net()
    other = Optim.Adam(again.parameters(), amsgrad=True)
    OptimizerRecord.of(optimizer, model).apply(other, again)
    for mine, theirs in zip(model.parameters(), again.parameters(), strict=True):
        assert list(optimizer.state[mine]) == list(other.state[theirs])
        for key, value in optimizer.state[mine].items():
            found = other.state[theirs][key]
            assert found.dtype is value.dtype
            assert torch.equal(found, value)
            assert found is not value


def test_sparse_adam_keeps_its_steps_as_a_python_number():
    def made() -> tuple[nn.Embedding, Any]:
        torch.manual_seed(0)
        table = nn.Embedding(10, 3, sparse=True)
        return table, Optim.SparseAdam(list(table.parameters()), lr=0.01)

    def steps(table: nn.Embedding, optimizer: Any, first: int, last: int) -> None:
        for number in range(first, last):
            optimizer.zero_grad()
            table(torch.tensor([number % 10, (number * 3) % 10])).sin().sum().backward()
            optimizer.step()

    table, optimizer = made()
    steps(table, optimizer, 0, 10)
    again, other = made()
    again.load_state_dict(table.state_dict())
    assert OptimizerRecord.of(optimizer, table).apply(other, again).exact
    assert type(other.state[again.weight]["step"]) is int
    steps(table, optimizer, 10, 20)
    steps(again, other, 10, 20)
    assert values(again) == values(table)


def groups_of(model: Net, **options: Any) -> list[dict[str, Any]]:
    return [
        {"params": [model.inner.weight, model.outer.weight], "weight_decay": 0.1},
        {"params": [model.inner.bias, model.outer.bias, *model.norm.parameters()], "weight_decay": 0.0, **options},
    ]


def test_options_come_back_where_groups_have_the_same_parameters():
    model = net()
    optimizer = Optim.AdamW(groups_of(model), lr=0.01)
    run(model, optimizer, 0, 3)
    optimizer.param_groups[0]["lr"] = 0.001
    optimizer.param_groups[1]["initial_lr"] = 0.5
    again = net()
    other = Optim.AdamW(groups_of(again)[::-1], lr=0.3, betas=(0.5, 0.6))
    report = OptimizerRecord.of(optimizer, model).apply(other, again)
    assert [group["lr"] for group in other.param_groups] == [0.01, 0.001]
    assert other.param_groups[0]["initial_lr"] == 0.5
    assert other.param_groups[1]["betas"] == (0.9, 0.999)
    assert report.groups_restored == (0, 1)
    assert report.exact
    assert "group 0: lr is 0.01 again, not 0.3" in report.notes


def test_a_group_that_was_split_keeps_its_options_and_its_states():
    model = net()
    optimizer = Optim.AdamW(model.parameters(), lr=0.01)
    run(model, optimizer, 0, 10)
    again = net()
    again.load_state_dict(model.state_dict())
    other = Optim.AdamW(groups_of(again), lr=0.01)
    for group in other.param_groups:
        group["weight_decay"] = optimizer.param_groups[0]["weight_decay"]
    report = OptimizerRecord.of(optimizer, model).apply(other, again)
    assert report.groups_restored == ()
    assert report.groups_kept == dict.fromkeys((0, 1), "the parameters of group 0 are in the groups 0 and 1 now")
    assert set(report.restored) == set(PARTS)
    assert not report.exact
    run(model, optimizer, 10, 20)
    run(again, other, 10, 20)
    assert values(again) == values(model)


def test_groups_that_were_joined_keep_the_live_options():
    model = net()
    optimizer = Optim.AdamW(groups_of(model), lr=0.01)
    run(model, optimizer, 0, 1)
    again = net()
    other = Optim.AdamW(again.parameters(), lr=0.3)
    report = OptimizerRecord.of(optimizer, model).apply(other, again)
    assert report.groups_kept == {0: "its parameters were in the groups 0 and 1"}
    assert other.param_groups[0]["lr"] == 0.3


def test_a_layer_more_starts_afresh_and_the_others_do_not():
    model = net()
    optimizer = Optim.Adam(model.parameters())
    run(model, optimizer, 0, 3)
    again = net(extra=nn.Linear(2, 2))
    other = Optim.Adam(again.parameters(), lr=0.7)
    report = OptimizerRecord.of(optimizer, model).apply(other, again)
    assert report.fresh == ("extra.bias", "extra.weight")
    assert set(report.restored) == set(PARTS)
    assert other.param_groups[0]["lr"] == 0.001
    assert again.extra.weight not in other.state
    with pytest.raises(OptimizerError, match="2 parameters that would start anew"):
        OptimizerRecord.of(optimizer, model).apply(other, again, allow_fresh=False)


def test_a_layer_less_is_told_as_orphaned():
    model = net(extra=nn.Linear(4, 4))
    optimizer = Optim.Adam(model.parameters())
    model.extra(torch.ones(4)).sum().backward()
    optimizer.step()
    run(model, optimizer, 0, 3)
    again = net()
    other = Optim.Adam(again.parameters())
    report = OptimizerRecord.of(optimizer, model).apply(other, again)
    assert report.orphaned == ("extra.bias", "extra.weight")
    assert len(other.state) == len(PARTS)
    with pytest.raises(OptimizerError, match="2 parameters in the record only"):
        OptimizerRecord.of(optimizer, model).apply(other, again, allow_orphaned=False)
    # What has nowhere to go is not written again: records do not grow.
    assert len(OptimizerRecord.of(other, again)) == 2 * len(PARTS)


class Renamed(nn.Module):
    def __init__(self) -> None:
        super().__init__()
        self.first = nn.Linear(4, 8)
        self.norm = nn.LayerNorm(8)
        self.last = nn.Linear(8, 3)

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        return self.last(torch.tanh(self.norm(self.first(x))))


@pytest.mark.parametrize("layout", ["torch", "burn"])
def test_a_renamed_layer_is_found_by_a_rename(layout: str):
    model = net()
    optimizer = Optim.Adam(model.parameters(), lr=0.01)
    run(model, optimizer, 0, 10)
    again = Renamed()
    for mine, theirs in zip(again.parameters(), model.parameters(), strict=True):
        mine.data.copy_(theirs.data)
    other = Optim.Adam(again.parameters(), lr=0.01)
    record = OptimizerRecord.of(optimizer, model, layout=layout)
    report = record.apply(other, again, rename=[r"^inner\.=>first.", r"^outer\.=>last."])
    assert report.exact
    assert report.renamed["inner.weight"] == "first.weight"
    run(model, optimizer, 10, 20)
    run(again, other, 10, 20)
    assert list(values(again).values()) == list(values(model).values())


def test_a_renamed_layer_is_found_by_its_id():
    from firekeep.records import ModuleRecord

    model = net()
    optimizer = Optim.Adam(model.parameters(), lr=0.01)
    run(model, optimizer, 0, 2)
    again = net()
    ModuleRecord.of(model).apply(again)
    again.first, again.inner = again.inner, None  # type: ignore[assignment]
    other = Optim.Adam(again.parameters(), lr=0.01)
    report = OptimizerRecord.of(optimizer, model).apply(other, again)
    assert report.renamed == {"inner.bias": "first.bias", "inner.weight": "first.weight"}
    assert torch.equal(other.state[again.first.weight]["exp_avg"], optimizer.state[model.inner.weight]["exp_avg"])


def test_two_parameters_of_one_shape_that_changed_places_keep_their_moments():
    model = nn.ModuleDict({"a": nn.Linear(3, 3), "b": nn.Linear(3, 3)})
    optimizer = Optim.Adam(model.parameters())
    model["b"](model["a"](torch.ones(3))).sum().backward()
    optimizer.step()
    again = nn.ModuleDict({"b": nn.Linear(3, 3), "a": nn.Linear(3, 3)})
    other = Optim.Adam(again.parameters())
    OptimizerRecord.of(optimizer, model).apply(other, again)
    for name, param in model.named_parameters():
        found = other.state[again.get_parameter(name)]["exp_avg"]
        assert torch.equal(found, optimizer.state[param]["exp_avg"])


def test_another_shape_is_refused_or_dropped_and_never_reaches_the_step():
    model = net()
    optimizer = Optim.Adam(model.parameters())
    run(model, optimizer, 0, 3)
    again = net(inner=nn.Linear(4, 9), norm=nn.LayerNorm(9), outer=nn.Linear(9, 3))
    other = Optim.Adam(again.parameters())
    record = OptimizerRecord.of(optimizer, model)
    with pytest.raises(OptimizerError) as caught:
        record.apply(other, again)
    assert not other.state
    assert "'inner.weight'" in str(caught.value)
    report = record.apply(other, again, allow_dropped=True)
    assert report.dropped["inner.weight"] == "its 'momentum.moment_2' has shape [8, 4], and the parameter [9, 4]"
    assert report.restored == ("outer.bias",)
    run(again, other, 0, 1)


def test_a_record_of_another_optimizer_is_refused_by_the_names_of_both():
    model = net()
    optimizer = Optim.Adam(model.parameters())
    run(model, optimizer, 0, 1)
    other = Optim.SGD(model.parameters(), momentum=0.9, lr=0.5)
    record = OptimizerRecord.of(optimizer, model)
    with pytest.raises(OptimizerError, match="its state is that of Adam, and the optimizer is SGD"):
        record.apply(other, model)
    report = record.apply(other, model, allow_dropped=True)
    assert not report.restored
    assert report.groups_kept == {0: "they were those of Adam"}
    run(model, other, 0, 1)


def test_adam_goes_on_as_adamw_with_the_options_of_the_live_one():
    model = net()
    optimizer = Optim.Adam(model.parameters(), lr=0.5)
    run(model, optimizer, 0, 2)
    other = Optim.AdamW(model.parameters(), lr=0.01)
    report = OptimizerRecord.of(optimizer, model).apply(other, model)
    assert set(report.restored) == set(PARTS)
    assert other.param_groups[0]["lr"] == 0.01
    assert other.param_groups[0]["decoupled_weight_decay"]
    run(model, other, 2, 3)


def test_amsgrad_that_the_record_has_nothing_for_is_refused():
    model = net()
    optimizer = Optim.Adam(model.parameters())
    run(model, optimizer, 0, 1)
    other = Optim.AdamW(model.parameters(), amsgrad=True)
    with pytest.raises(OptimizerError, match="AdamW needs a 'max_exp_avg_sq' with these options"):
        OptimizerRecord.of(optimizer, model).apply(other, model)


def test_parameters_without_a_gradient_are_told_as_stateless_and_not_as_fresh():
    model = net()
    model.norm.requires_grad_(False)
    optimizer = Optim.Adam(model.parameters())
    run(model, optimizer, 0, 2)
    again = net()
    report = OptimizerRecord.of(optimizer, model).apply(Optim.Adam(again.parameters()), again)
    assert report.stateless == ("norm.bias", "norm.weight")
    assert report.exact


def test_a_state_of_the_live_optimizer_does_not_outlive_a_restore():
    model = net(extra=nn.Linear(4, 4))
    optimizer = Optim.Adagrad([*net().parameters()])
    model.extra(torch.ones(4)).sum().backward()
    live = Optim.Adagrad(model.parameters(), initial_accumulator_value=0.25)
    run(model, live, 0, 3)
    source = net()
    optimizer = Optim.Adagrad(source.parameters(), initial_accumulator_value=0.25)
    run(source, optimizer, 0, 1)
    report = OptimizerRecord.of(optimizer, source).apply(live, model)
    assert report.fresh == ("extra.bias", "extra.weight")
    state = live.state[model.extra.weight]
    assert float(state["step"]) == 0
    assert torch.equal(state["sum"], torch.full((4, 4), 0.25))


def test_tied_parameters_have_one_state_under_the_first_name():
    model = net()
    model.twin = model.inner
    optimizer = Optim.Adam(model.parameters())
    run(model, optimizer, 0, 1)
    record = OptimizerRecord.of(optimizer, model)
    assert record.paths == tuple(PARTS)
    assert record.apply(optimizer, model).exact


def test_parameters_that_the_model_lacks_are_refused_and_a_dict_names_them():
    model, loose = net(), nn.Parameter(torch.ones(2))
    optimizer = Optim.SGD([*model.parameters(), loose], lr=0.1, momentum=0.9)
    (loose.sum() + model(torch.ones(1, 4)).sum()).backward()
    optimizer.step()
    with pytest.raises(RuleError, match=r"number 6 of group 0, of shape \[2\]"):
        OptimizerRecord.of(optimizer, model)
    record = OptimizerRecord.of(optimizer, {"net": model, "scale": loose}, layout="burn")
    assert record.paths[0] == "net.inner.weight"
    assert record.paths[-1] == "scale"
    assert record.entry(record.keys()[0]).shape == (4, 8)
    before = optimizer.state[loose]["momentum_buffer"].clone()
    assert record.apply(optimizer, {"net": model, "scale": loose}).exact
    assert torch.equal(optimizer.state[loose]["momentum_buffer"], before)


class Wrapper:
    """What many packages put around an optimizer."""

    def __init__(self, inside: Any) -> None:
        self.inside = inside

    @property
    def param_groups(self) -> list[dict[str, Any]]:
        return self.inside.param_groups

    @property
    def state(self) -> Any:
        return self.inside.state


def test_a_wrapper_that_keeps_a_state_will_do():
    model = net()
    wrapped = Wrapper(Optim.Adam(model.parameters()))
    run(model, wrapped.inside, 0, 2)
    again = net()
    other = Wrapper(Optim.Adam(again.parameters()))
    assert OptimizerRecord.of(wrapped, model).apply(other, again).exact
    assert torch.equal(other.state[again.inner.weight]["exp_avg_sq"], wrapped.state[model.inner.weight]["exp_avg_sq"])


def test_what_is_no_optimizer_is_refused():
    with pytest.raises(UnsupportedError, match="is no optimizer that is known"):
        OptimizerRecord.of(object(), net())


class Slow(torch.optim.Optimizer):
    """Keeps all sorts of things, of parameters and of none."""

    def __init__(self, params: Any, lr: float = 0.1) -> None:
        super().__init__(params, {"lr": lr})

    def step(self, closure: Any = None) -> None:  # type: ignore[override]
        for group in self.param_groups:
            for param in group["params"]:
                if param.grad is None:
                    continue
                state = self.state[param]
                state["count"] = state.get("count", 0) + 1
                state["past"] = [*state.get("past", []), param.grad.clone()][-2:]
                state["kept"] = {"pair": (param.grad.double(), None, "text"), "flags": torch.ones(3, dtype=torch.bool)}
        self.state["all"] = {"sum": torch.arange(3.0)}  # type: ignore[index]


@pytest.mark.parametrize("layout", ["torch", "burn"])
def test_anything_else_keeps_its_types(layout: str):
    model = net()
    optimizer = Slow(model.parameters())
    model(torch.ones(2, 4)).sum().backward()
    optimizer.step()
    optimizer.step()
    again = net()
    other = Slow(again.parameters())
    record = OptimizerRecord.from_bytes(OptimizerRecord.of(optimizer, model, layout=layout).to_bytes())
    assert record.apply(other, again).exact
    mine, theirs = optimizer.state[model.inner.weight], other.state[again.inner.weight]
    assert theirs["count"] == 2
    assert all(map(torch.equal, mine["past"], theirs["past"]))
    assert type(theirs["past"]) is list
    assert type(theirs["kept"]["pair"]) is tuple
    assert theirs["kept"]["pair"][0].dtype is torch.float64
    assert theirs["kept"]["pair"][1:] == (None, "text")
    assert theirs["kept"]["flags"].dtype is torch.bool
    assert torch.equal(other.state["all"]["sum"], torch.arange(3.0))  # type: ignore[index]


def test_moments_follow_the_model_into_another_dtype_and_others_stay():
    model = net().to(torch.bfloat16)
    optimizer = Optim.Adam(model.parameters())
    for param in model.parameters():
        param.grad = torch.ones_like(param)
    optimizer.step()
    again = net()
    other = Optim.Adam(again.parameters())
    OptimizerRecord.of(optimizer, model).apply(other, again)
    state = other.state[again.inner.weight]
    assert state["exp_avg"].dtype is torch.float32
    assert torch.equal(state["exp_avg"].bfloat16(), optimizer.state[model.inner.weight]["exp_avg"])
    wide = Optim.Adam(model.parameters())
    for param in model.parameters():
        wide.state[param] = {key: value.float() for key, value in optimizer.state[param].items()}
    OptimizerRecord.of(wide, model).apply(wide, model)
    assert wide.state[model.inner.weight]["exp_avg"].dtype is torch.float32


def test_a_learning_rate_that_is_a_tensor_stays_the_same_object():
    model = net()
    rate = torch.tensor(0.5)
    optimizer = Optim.Adam(model.parameters(), lr=rate)
    record = OptimizerRecord.of(optimizer, model)
    rate.fill_(0.1)
    report = record.apply(optimizer, model)
    assert optimizer.param_groups[0]["lr"] is rate
    assert float(rate) == 0.5
    assert report.exact


def test_how_a_step_is_computed_stays_as_the_live_optimizer_has_it():
    model = net()
    optimizer = Optim.Adam(model.parameters(), fused=True)
    run(model, optimizer, 0, 1)
    other = Optim.Adam(model.parameters(), foreach=True)
    report = OptimizerRecord.of(optimizer, model).apply(other, model)
    assert other.param_groups[0]["foreach"] is True
    assert not other.param_groups[0]["fused"]
    assert any("fused was True and stays" in one for one in report.changed)


def test_a_description_copies_nothing_and_a_restore_refuses_strangers():
    from firekeep.bridges._states import Restoration

    model = net()
    optimizer = Optim.SGD(model.parameters(), lr=0.1, momentum=0.9)
    run(model, optimizer, 0, 1)
    taken = describe_optimizer(optimizer, model)
    assert [one.path for one in taken.params] == PARTS
    buffer = optimizer.state[model.inner.weight]["momentum_buffer"]
    buffer.fill_(7)
    assert bytes(taken.params[0].state["momentum_buffer"].read()) == buffer.numpy().tobytes()
    with pytest.raises(RuleError, match="no parameters 'nowhere'"):
        restore_optimizer(optimizer, model, Restoration(states={"nowhere": {}}))


def test_a_record_is_a_copy_unless_told():
    model = net()
    optimizer = Optim.SGD(model.parameters(), lr=0.1, momentum=0.9)
    run(model, optimizer, 0, 1)
    kept, live = OptimizerRecord.of(optimizer, model), OptimizerRecord.of(optimizer, model, copy=False)
    before = kept.to_bytes()
    assert live.to_bytes() == before
    run(model, optimizer, 1, 2)
    assert kept.to_bytes() == before
    assert live.to_bytes() != before


def test_large_moments_have_memory_of_their_own_each(tmp_path):
    model = nn.Linear(300, 200)
    optimizer = torch.optim.Adam(model.parameters())
    model(torch.ones(1, 300)).sum().backward()
    optimizer.step()
    path = OptimizerRecord.of(optimizer, model).save(tmp_path / "optimizer")
    expected = {key: value.clone() for key, value in optimizer.state[model.weight].items()}
    again = torch.optim.Adam(model.parameters())
    OptimizerRecord.load(path).apply(again, model)
    state = again.state[model.weight]
    assert {key: torch.equal(value, expected[key]) for key, value in state.items()} == dict.fromkeys(expected, True)
    assert not state["exp_avg"].requires_grad
    assert state["exp_avg"].untyped_storage().nbytes() == state["exp_avg"].nbytes
    state["exp_avg"].fill_(7.0)
    assert torch.equal(state["exp_avg_sq"], expected["exp_avg_sq"])
    assert torch.equal(again.state[model.bias]["exp_avg"], optimizer.state[model.bias]["exp_avg"])


def test_one_tensor_under_two_keys_of_a_state_is_described_once():
    model = nn.Linear(2, 2)
    optimizer = torch.optim.SGD(model.parameters())
    shared = torch.ones(2, 2)
    optimizer.state[model.weight] = {"one": shared, "two": shared}
    optimizer.state[model.bias] = {"one": torch.ones(2), "none": None, "number": 2.5}
    weight, bias = describe_optimizer(optimizer, model).params
    assert weight.state["one"] is weight.state["two"]
    assert (bias.state["one"].shape, bias.state["none"], bias.state["number"]) == ((2,), None, 2.5)
