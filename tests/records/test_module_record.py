"""Records of models: Burn's file form, its switches, and what is better here than there."""

from __future__ import annotations

import struct
from pathlib import Path
from typing import Any

import cbor2
import numpy as np
import pytest

from firekeep.entry import tie_key
from firekeep.errors import ExistsError, RuleError, TensorNotFoundError, WrongFormatError
from firekeep.ids import ParamId
from firekeep.module import BatchNorm, Constant, Linear, Param, ParamGroup, walk
from firekeep.records import (
    FieldStates,
    LrSchedulerRecord,
    Module,
    ModuleRecord,
    OptimizerRecord,
    cast_module,
    into_record,
    into_record_group,
    load_file,
    save_file,
    try_load_file,
    try_load_record,
)
from firekeep.report import LoadError


class Net(Module):
    fc: Linear
    head: Linear


def net(seed: int = 0) -> Net:
    return Net(fc=Linear(4, 3, rng=seed), head=Linear(3, 2, bias=False, rng=seed + 1))


def ids(module: Any) -> list[ParamId]:
    return [visited.param.id for visited in walk(module)]


def made(module: Any) -> list[bool]:
    return [visited.param.is_initialized for visited in walk(module)]


def values(module: Any) -> list[bytes]:
    return [visited.param.value.tobytes() for visited in walk(module)]


def burns_file(module: Any) -> bytes:
    """Write the tensors of a module as Burn does, by another hand: CBOR without floats is what cbor2 writes."""
    table, data = {}, bytearray()
    for visited in walk(module):
        data += bytes(-len(data) % 256)
        array = visited.param.file_form()
        table[visited.path] = {
            "dtype": "F32",
            "shape": list(array.shape),
            "data_offsets": [len(data), len(data) + array.nbytes],
            "param_id": int(visited.param.id),
        }
        data += array.tobytes()
    head = cbor2.dumps({"tensors": {name: table[name] for name in sorted(table)}})
    start = struct.pack("<IHI", 0x4255524E, 1, len(head)) + head
    return start + bytes(-len(start) % 256) + bytes(data)


def test_the_record_of_a_native_module_is_burns_file_byte_for_byte():
    module = net()
    data = module.into_record().to_bytes()
    assert data == burns_file(module)
    assert len(data) == 792


def test_a_fresh_module_takes_over_ids_and_values_and_no_initialiser_is_run():
    def fail(*_: Any) -> Any:
        raise AssertionError("the initialiser was run")

    source = net()
    target = Net(fc=Linear(4, 3, initializer=fail), head=Linear(3, 2, bias=False, initializer=fail))
    assert ids(target) != ids(source)
    report = target.load_record(ModuleRecord.from_bytes(source.into_record().to_bytes()))
    assert report.exact
    assert report.ids_restored == 3
    assert ids(target) == ids(source)
    assert values(target) == values(source)


def test_a_record_of_a_group_reads_nothing_outside_and_leaves_it_as_it_is():
    source, target = net(), net(7)
    weights = ParamGroup.regex(r"weight$")
    record = into_record_group(source, weights)
    assert made(source) == [True, False, True]
    assert record.keys() == ["fc.weight", "head.weight"]
    biases = target.fc.bias.value.tobytes()
    with pytest.raises(LoadError, match=r"fc\.bias"):
        target.load_record(record)
    target.load_record(record, allow_partial=True)
    assert target.fc.bias.value.tobytes() == biases
    assert target.fc.weight.id == source.fc.weight.id
    assert target.fc.bias.id != source.fc.bias.id
    with pytest.raises(RuleError, match="none of the 3 parameters of Net is in the group none"):
        source.into_record_group(ParamGroup.none())


def test_groups_by_id_and_of_a_torch_model():
    from torch import nn

    from firekeep.bridges.torch import ids_of

    model = nn.Sequential(nn.Linear(2, 3), nn.LayerNorm(3))
    group = ParamGroup.ids([ids_of(model)["1.bias"]]) | ParamGroup.paths(["0.weight"])
    assert ModuleRecord.of(model, group=group).keys() == ["0.weight", "1.beta"]


@pytest.mark.parametrize(("policy", "dtypes"), [("record", ["F32"] * 3), ("module", ["F64"] * 3)])
def test_both_dtype_policies_on_a_module_of_doubles(policy: Any, dtypes: list[str]):
    source, target = net(), cast_module(net(3), "F64")
    report = target.load_record(source.into_record(), dtype_policy=policy)
    assert [visited.param.dtype.name for visited in walk(target)] == dtypes
    assert bool(report.casts) is (policy == "module")
    for mine, theirs in zip(walk(target), walk(source), strict=True):
        np.testing.assert_array_equal(mine.param.value.astype(np.float32), theirs.param.value)


def test_an_untouched_module_keeps_its_dtype_without_being_made():
    target = net(3)
    target.load_record(cast_module(net(), "F64").into_record(), dtype_policy="module")
    assert [visited.param.dtype.name for visited in walk(target)] == ["F32"] * 3


def test_all_that_is_wrong_is_told_at_once_and_nothing_is_changed():
    source = Net(fc=Linear(4, 5), head=Linear(3, 2))
    target = net(3)
    before, old = values(target), ids(target)
    record = source.into_record()
    with pytest.raises(LoadError) as caught:
        target.load_record(record)
    told = str(caught.value)
    assert all(name in told for name in ("fc.weight", "fc.bias", "head.bias"))
    report = target.try_load_record(record)
    assert not report.ok
    assert values(target) == before
    assert ids(target) == old
    report = target.try_load_record(record, validate=False, allow_unused=True)
    assert report.applied == ("head.weight",)
    assert {problem.name for problem in report.errors} == {"fc.weight", "fc.bias"}
    assert ids(target)[:2] == old[:2]


def test_names_are_exact_unless_told():
    class Other(Module):
        net: list[Linear]

    record = Other(net=[Linear(2, 2), Linear(2, 2)]).into_record()
    from torch import nn

    model = nn.ModuleDict({"net": nn.Sequential(nn.Linear(2, 2), nn.ReLU(), nn.Linear(2, 2))})
    assert not try_load_record(model, record).ok
    assert try_load_record(model, record, match="auto").exact
    with pytest.raises(RuleError, match="'exact' takes equal names only"):
        record.apply(model, match="near")  # type: ignore[arg-type]
    with pytest.raises(RuleError, match="'record' takes the file's dtypes"):
        record.apply(model, dtype_policy="file")  # type: ignore[arg-type]


def test_a_torch_model_goes_into_burns_layout_and_back_with_ids_for_all():
    import torch
    from torch import nn

    torch.manual_seed(0)
    make = lambda: nn.ModuleDict(  # noqa: E731
        {"fc": nn.Linear(4, 3), "norm": nn.BatchNorm1d(3), "attention": nn.MultiheadAttention(4, 2)}
    )
    source, target = make(), make()
    source["norm"].num_batches_tracked.fill_(5)
    record = ModuleRecord.of(source)
    assert record.layout == "burn"
    assert record.metadata == {"firekeep.as_in_torch": "[]"}
    assert record.entry("fc.weight").shape == (4, 3)
    assert "attention.query.weight" in record
    found = [entry.param_id for entry in record.contents().entries]
    assert None not in found
    assert len(set(found)) == len(found)
    assert [entry.param_id for entry in ModuleRecord.of(source).contents().entries] == found
    assert ModuleRecord.from_bytes(record.to_bytes()).apply(target).exact
    for name, value in source.state_dict().items():
        assert torch.equal(target.state_dict()[name], value)


def test_another_layout_is_named():
    from torch import nn

    model = nn.Sequential(nn.Linear(4, 3))
    record = ModuleRecord.from_bytes(ModuleRecord.of(model, layout="torch").to_bytes())
    assert record.metadata == {"firekeep.layout": "torch"}
    assert record.entry("0.weight").shape == (3, 4)
    assert record.apply(nn.Sequential(nn.Linear(4, 3))).exact


def test_a_record_in_memory_does_not_follow_the_model():
    module = net()
    record = into_record(module)
    before = values(module)
    module.fc.weight.value += 1
    module.load_record(record)
    assert values(module) == before


def test_tied_tensors_are_stored_once_or_as_burn_does():
    class Twice(Module):
        first: Param
        second: Param

    shared = Param(np.arange(100, dtype=np.float32))
    module = Twice(first=shared, second=shared)
    kept, expanded = ModuleRecord.of(module), ModuleRecord.of(module, ties="expand")
    assert len(expanded.to_bytes()) - len(kept.to_bytes()) == 512
    assert expanded.to_bytes() == burns_file(module)
    first, second = kept.contents().entries
    assert tie_key(first) == tie_key(second)


def test_the_counters_of_a_native_batch_norm_need_no_scalars():
    class Normed(Module):
        norm: BatchNorm

    record = Normed(norm=BatchNorm(3)).into_record()
    assert record.keys() == ["norm.gamma", "norm.beta", "norm.running_mean", "norm.running_var"]
    assert record.scalars == {}


@pytest.mark.parametrize(
    ("given", "written"),
    [("model", "model.bpk"), ("model.bpk", "model.bpk"), ("model-1.0", "model-1.0.bpk"), ("a.BPK", "a.BPK.bpk")],
)
def test_a_name_gets_the_suffix_unless_it_ends_in_it(tmp_path: Path, given: str, written: str):
    source, target = net(), net(4)
    assert source.save_file(tmp_path / given, durable=False) == tmp_path / written
    assert [found.name for found in tmp_path.iterdir()] == [written]
    assert target.load_file(tmp_path / given).exact


def test_the_file_with_the_suffix_is_meant_where_both_are_there(tmp_path: Path):
    right, wrong = net(), net(4)
    save_file(right, tmp_path / "model", durable=False)
    (tmp_path / "model").write_bytes(wrong.into_record().to_bytes())
    target = net(8)
    load_file(target, tmp_path / "model")
    assert ids(target) == ids(right)
    (tmp_path / "model.bpk").unlink()
    load_file(target, tmp_path / "model")
    assert ids(target) == ids(wrong)


def test_saving_replaces_unless_told(tmp_path: Path):
    path = tmp_path / "model.bpk"
    net().save_file(path, durable=False)
    first = path.read_bytes()
    with pytest.raises(ExistsError):
        net().save_file(path, overwrite=False)
    assert path.read_bytes() == first
    net().save_file(path, durable=False)
    assert path.read_bytes() != first
    # A record that was loaded from a file can be saved over it.
    record = ModuleRecord.load(path)
    before = path.read_bytes()
    record.save(path, durable=False)
    assert path.read_bytes() == before


def test_a_file_that_does_not_fit_is_told_and_one_that_is_missing_raises(tmp_path: Path):
    net().save_file(tmp_path / "model", durable=False)
    target = Net(fc=Linear(4, 3), head=Linear(3, 5))
    assert not try_load_file(target, tmp_path / "model").ok
    assert not target.try_load_file(tmp_path / "model").ok
    with pytest.raises(FileNotFoundError):
        try_load_file(target, tmp_path / "nothing")


def test_records_of_something_else_are_refused_by_name():
    other = OptimizerRecord.of_states([FieldStates(param_id=4, path="a", rank=1, fields={"momentum.time": 3})])
    with pytest.raises(WrongFormatError, match=r"holds the state of an optimizer \('4.__rank'\)") as caught:
        ModuleRecord.from_bytes(other.to_bytes())
    assert "OptimizerRecord.load" in str(caught.value)
    with pytest.raises(WrongFormatError, match="holds the state of a schedule"):
        ModuleRecord.from_bytes(LrSchedulerRecord({"current_iter": 4}).to_bytes())


def test_a_record_as_a_collection():
    record = net().into_record()
    assert len(record) == 3
    assert list(record) == record.keys() == ["fc.weight", "fc.bias", "head.weight"]
    assert "fc.bias" in record
    assert repr(record) == "<ModuleRecord: 3 tensors, layout 'burn'>"
    with pytest.raises(TensorNotFoundError):
        record.entry("fc.none")


def test_a_cast_keeps_identities_and_leaves_what_is_no_float():
    module = net()
    old = ids(module)
    assert cast_module(module, "bf16") is module
    assert [visited.param.dtype.name for visited in walk(module)] == ["BF16"] * 3
    assert ids(module) == old
    assert {str(entry.dtype) for entry in module.into_record().contents().entries} == {"BF16"}

    class Counted(Module):
        steps: Param
        weight: Param

    counted = Counted(steps=Param(np.arange(3)), weight=Param(np.ones(2, np.float32)))
    cast_module(counted, "f64")
    assert [visited.param.dtype.name for visited in walk(counted)] == ["I64", "F64"]


def test_a_cast_of_a_torch_model_keeps_its_parameters():
    import torch
    from torch import nn

    model = nn.BatchNorm1d(3)
    weight = model.weight
    cast_module(model, "bf16")
    assert model.weight is weight
    assert model.running_mean is not None
    assert model.running_mean.dtype is weight.dtype is torch.bfloat16
    assert model.num_batches_tracked is not None
    assert model.num_batches_tracked.dtype is torch.int64


def test_a_parameter_of_zeros_is_no_less_a_parameter():
    class One(Module):
        weight: Param

    source = One(weight=Param.lazy(Constant(0.0), (3,)))
    assert bytes(source.into_record().entry("weight").read()) == bytes(12)
