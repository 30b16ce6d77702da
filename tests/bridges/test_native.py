"""Module trees: described without being made, drawn in file form, filled without an initialiser."""

from __future__ import annotations

import sys
from typing import Any, ClassVar

import ml_dtypes
import numpy as np
import pytest

from contracts.bridge_contract import BridgeContract
from firekeep.arrays import as_array, entry_of
from firekeep.blobs import DeferredBlob
from firekeep.bridges import native
from firekeep.bridges._protocol import Filling
from firekeep.dtypes import BY_NAME
from firekeep.entry import TensorEntry, find_ties
from firekeep.errors import EntryError, FirekeepError, UnsupportedError
from firekeep.ids import ParamId
from firekeep.module import Linear, Mappers, Module, Param, RunningState, Variant

F32, BF16, I64 = (BY_NAME[name] for name in ("F32", "BF16", "I64"))


class Act(Module):
    """A part without tensors."""


class Norm(Module):
    kind: ClassVar[str] = "batch_norm"
    gamma: Param
    running_mean: RunningState

    def __init__(self, made: list[str]) -> None:
        self.gamma = lazy(made, "gamma", (2,))
        self.running_mean = RunningState(np.zeros(2, np.float32))


class Attention(Module):
    kind: ClassVar[str] = "multi_head_attention"
    query: Linear


class Block(Module):
    kind: ClassVar[str] = "transformer_encoder_layer"
    mha: Attention
    own: Param

    @property
    def facts(self) -> dict[str, int | bool | str]:
        return {"norm_first": True}


class Net(Module):
    net: list[Any]
    pair: tuple[Any, ...]
    block: Block | None = None
    tied: Linear | None = None


def lazy(made: list[str], name: str, shape: tuple[int, ...], **options: Any) -> Param:
    """A parameter that tells when its initialiser runs."""

    def run(wanted: tuple[int, ...], rng: Any, fans: Any) -> Any:
        made.append(name)
        return np.arange(np.prod(wanted), dtype=np.float32).reshape(wanted)

    return Param.lazy(run, shape, **options)


@pytest.fixture
def made() -> list[str]:
    return []


@pytest.fixture
def net(made: list[str]) -> Net:
    first = Linear(3, 2, rng=0)
    return Net(
        net=[Variant("Linear", first, enum="Layer"), Act(), Norm(made)],
        pair=(Linear(2, 4, layout="col", bias=False, rng=0),),
        block=Block(mha=Attention(query=Linear(2, 2, bias=False, rng=0)), own=lazy(made, "own", (5,))),
        tied=first,
    )


class TestContract(BridgeContract):
    name = "native"

    def make(self, seed: int) -> Module:
        numbers = np.random.default_rng(seed)
        shared = Linear(2, 2, rng=numbers)
        made = Net(
            net=[shared, Act(), Variant("Col", Linear(3, 2, layout="col", rng=numbers), enum="Layer")],
            pair=(Param(numbers.integers(0, 99, 4)), RunningState(numbers.random(3))),
            tied=shared,
        )
        shared.bias = Param(numbers.random(2, np.float32))
        return made


def params(obj: Any) -> dict[str, Param]:
    from firekeep.module import walk

    return {visited.path: visited.param for visited in walk(obj)}


def fill(obj: Any, values: dict[str, Any], *, dtype: Any = None, ids: dict[str, ParamId] | None = None) -> list[str]:
    slots = {slot.path: slot for slot in native.outline(obj)}
    fillings = []
    for path, value in values.items():
        entry = entry_of(path, value)
        entry.param_id = (ids or {}).get(path)
        fillings.append(Filling(slots[path], entry, dtype or slots[path].dtype))
    done: list[str] = []
    native.fill(obj, fillings, done)
    return done


def test_slots_come_in_file_form_with_what_owns_them(net: Net, made: list[str]):
    outline = native.outline(net)
    assert [(slot.path, slot.shape, slot.containers) for slot in outline] == [
        ("net.0.Linear.weight", (3, 2), ("Struct:Net", "Vec", "Enum:Layer", "Struct:Linear")),
        ("net.0.Linear.bias", (2,), ("Struct:Net", "Vec", "Enum:Layer", "Struct:Linear")),
        ("net.2.gamma", (2,), ("Struct:Net", "Vec", "Struct:Norm")),
        ("net.2.running_mean", (2,), ("Struct:Net", "Vec", "Struct:Norm")),
        ("pair.0.weight", (4, 2), ("Struct:Net", "Tuple", "Struct:Linear")),
        ("block.mha.query.weight", (2, 2), ("Struct:Net", "Struct:Block", "Struct:Attention", "Struct:Linear")),
        ("block.own", (5,), ("Struct:Net", "Struct:Block")),
        ("tied.weight", (3, 2), ("Struct:Net", "Struct:Linear")),
        ("tied.bias", (2,), ("Struct:Net", "Struct:Linear")),
    ]
    assert outline.convention == "burn"
    assert made == []
    assert not net.net[0].value.weight.is_initialized


def test_layers_have_kinds_facts_and_parents(net: Net):
    outline = native.outline(net)
    assert [(layer.path, layer.kind, layer.parent and layer.parent.path) for layer in outline.layers] == [
        ("net.0.Linear", "linear", None),
        ("net.2", "batch_norm", None),
        ("pair.0", "linear_col", None),
        ("block", "transformer_encoder_layer", None),
        ("block.mha", "multi_head_attention", "block"),
        ("block.mha.query", "linear", "block.mha"),
        ("tied", "linear", None),
    ]
    assert [dict(layer.facts) for layer in outline.layers if layer.facts] == [{"norm_first": True}]
    assert [(slot.layer.path, slot.role) for slot in outline if slot.layer is not None] == [
        ("net.0.Linear", "weight"),
        ("net.0.Linear", "bias"),
        ("net.2", "gamma"),
        ("net.2", "running_mean"),
        ("pair.0", "weight"),
        ("block.mha.query", "weight"),
        ("block", "own"),
        ("tied", "weight"),
        ("tied", "bias"),
    ]


def test_modules_are_all_parts_and_the_lists_around_them(net: Net):
    assert native.outline(net).modules == {
        "net",
        "net.0",
        "net.0.Linear",
        "net.1",
        "net.2",
        "pair",
        "pair.0",
        "block",
        "block.mha",
        "block.mha.query",
        "tied",
    }


def test_slots_tell_ids_ties_and_gradients(net: Net):
    slots = {slot.path: slot for slot in native.outline(net)}
    assert {path: slot.param_id for path, slot in slots.items()} == {path: p.id for path, p in params(net).items()}
    assert {path: slot.tied_to for path, slot in slots.items() if slot.tied_to} == {
        "tied.weight": "net.0.Linear.weight",
        "tied.bias": "net.0.Linear.bias",
    }
    assert [path for path, slot in slots.items() if not slot.trainable] == ["net.2.running_mean"]
    assert find_ties(native.entries(net)) == {
        "tied.weight": "net.0.Linear.weight",
        "tied.bias": "net.0.Linear.bias",
    }


def test_what_is_no_layer_of_a_known_kind_has_none():
    class Own(Module):
        scale: Param

    outline = native.outline(Own(scale=Param(np.ones(2))))
    assert outline[0].layer is None
    assert outline.layers == ()
    assert outline.modules == frozenset()


def test_a_model_that_is_a_layer_or_a_parameter_has_no_path():
    (layer,) = native.outline(Linear(2, 2)).layers
    assert layer.path == ""
    assert native.outline(Linear(2, 2)).paths() == ["weight", "bias"]
    assert native.outline(Param(np.ones(2))).paths() == [""]
    assert native.outline([Linear(2, 2, bias=False), Act()]).modules == {"0", "1"}


def test_a_parameter_is_made_when_its_bytes_are_drawn_and_not_before(net: Net, made: list[str]):
    entries = {entry.name: entry for entry in native.entries(net)}
    assert made == []
    assert as_array(entries["block.own"]).tolist() == [0, 1, 2, 3, 4]
    assert made == ["own"]
    assert as_array(entries["block.own"]).tolist() == [0, 1, 2, 3, 4]
    assert made == ["own"]
    assert {name: entry.param_id for name, entry in entries.items()} == {path: p.id for path, p in params(net).items()}


def test_entries_are_in_file_form(net: Net):
    entry = {entry.name: entry for entry in native.entries(net)}["pair.0.weight"]
    assert entry.shape == (4, 2)
    assert as_array(entry).tolist() == net.pair[0].weight.value.T.tolist()


def test_an_entry_is_what_the_parameter_is_when_it_is_drawn():
    param = Param(np.zeros(2, np.float32))
    (entry,) = native.entries(param)
    param.value = np.ones(2, np.float32)
    assert as_array(entry).tolist() == [1, 1]


def test_filling_runs_no_initialiser_and_takes_ids(net: Net, made: list[str]):
    values = {path: np.full(p.file_shape, index, np.float32) for index, (path, p) in enumerate(params(net).items())}
    ids = {path: ParamId(100 + index) for index, path in enumerate(values)}
    own = net.net[2].running_mean.id
    assert fill(net, values, ids=ids) == list(values)
    assert made == []
    assert net.net[2].running_mean.id == own
    assert net.block is not None
    assert net.block.own.id == ids["block.own"]
    assert net.block.own.value.tolist() == [6.0] * 5
    assert net.net[0].value.weight.id == ids["tied.weight"]
    fill(net, {"block.own": np.zeros(5)})
    assert net.block.own.id == ids["block.own"]


def test_the_file_form_becomes_the_form_in_memory(net: Net):
    held = np.arange(8, dtype=np.float32).reshape(4, 2)
    for _ in range(2):  # before and after the parameter was used
        fill(net, {"pair.0.weight": held})
        assert net.pair[0].weight.value.tolist() == held.T.tolist()


@pytest.mark.parametrize(("dtype", "expected"), [(None, np.float32), (BF16, ml_dtypes.bfloat16)])
def test_a_parameter_holds_the_dtype_wanted(net: Net, dtype: Any, expected: Any):
    fill(net, {"block.own": np.arange(5, dtype=np.float16)}, dtype=dtype)
    assert net.block is not None
    assert net.block.own.value.dtype == expected
    assert net.block.own.value.astype(float).tolist() == [0, 1, 2, 3, 4]


def test_values_are_the_parameters_own(net: Net):
    held = np.zeros(5, np.float32)
    fill(net, {"block.own": held})
    assert net.block is not None
    net.block.own.value[0] = 7
    assert held[0] == 0


def test_booleans_of_burn_fill_boolean_parameters():
    param = Param(np.zeros(2, bool))
    wide = BY_NAME["BOOL_U32"]
    entry = TensorEntry("", wide, (2,), entry_of("", np.array([1, 0], np.uint32)).blob)
    native.fill(param, [Filling(native.outline(param)[0], entry, wide)], [])
    assert param.value.tolist() == [True, False]
    assert param.kind == "bool"


def test_everything_is_checked_before_anything_is_touched(net: Net, made: list[str]):
    before = net.net[0].value.weight.id
    slots = {slot.path: slot for slot in native.outline(net)}
    good = Filling(slots["net.0.Linear.weight"], entry_of("w", np.zeros((3, 2), np.float32)), F32)
    bad = [
        (Filling(slots["block.own"], entry_of("o", np.zeros(4, np.float32)), F32), "has shape"),
        (Filling(slots["block.own"], entry_of("o", np.zeros(5, np.int64)), I64), "holds float values"),
        (Filling(slots["block.own"], TensorEntry("o", BY_NAME["F6_E2M3"], (5,), DeferredBlob(0, bytes)), F32), "NumPy"),
    ]
    for filling, words in bad:
        done: list[str] = []
        with pytest.raises(FirekeepError, match=words) as caught:
            native.fill(net, [good, filling], done)
        assert caught.value.tensor == "block.own"
        assert (done, made, net.net[0].value.weight.is_initialized) == ([], [], False)
    assert net.net[0].value.weight.id == before


def test_a_place_that_is_gone_is_told(net: Net):
    slot = native.outline(net)[6]
    net.block = None
    with pytest.raises(EntryError, match=r"'block\.own': the module has no such place any more"):
        native.fill(net, [Filling(slot, entry_of(slot.path, np.zeros(5, np.float32)), F32)], [])


def test_a_mapper_that_fails_names_the_place():
    def fail(array: Any) -> Any:
        raise UnsupportedError("it cannot be turned")

    model = [Param.lazy(lambda shape, rng, fans: np.zeros(shape), (2,), mappers=Mappers(load=fail))]
    with pytest.raises(UnsupportedError, match="'0': it cannot be turned"):
        fill(model, {"0": np.zeros(2)})


def test_owned_are_parts_of_module_trees(monkeypatch: pytest.MonkeyPatch):
    parts = (Linear(1, 1), Param(np.ones(1)), Variant("A", enum="E"), [Act()], (1, [Act()]))
    for obj in parts:
        assert native.owns(obj)
    for obj in ({}, [], [1], np.ones(1), Linear, "text", None):
        assert not native.owns(obj)
    monkeypatch.delitem(sys.modules, "firekeep.module")
    assert not native.owns(parts[0])  # nobody can have one
