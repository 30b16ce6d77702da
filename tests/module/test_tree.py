from __future__ import annotations

import copy
import dataclasses
import doctest
import warnings
from typing import Any, ClassVar

import numpy as np
import pytest

import firekeep.module
from firekeep.errors import FirekeepError
from firekeep.module import ConstantArrayWarning, Linear, Module, ModuleError, Param, Relu, Variant, walk


class Holder(Module):
    it: Any
    label: str = "x"


class Two(Module):
    a: Any
    b: Any = None


def paths(module) -> list[str]:
    return [visited.path for visited in walk(module)]


def test_the_example_of_the_docstring_runs():
    result = doctest.testmod(firekeep.module)
    assert result.attempted >= 5
    assert not result.failed


def test_every_public_name_is_there():
    assert sorted(firekeep.module.__all__) == firekeep.module.__all__
    assert all(hasattr(firekeep.module, name) for name in firekeep.module.__all__)


def test_fields_are_given_by_keyword_and_have_defaults():
    holder = Holder(it=1)
    assert (holder.it, holder.label) == (1, "x")
    with pytest.raises(TypeError):
        Holder(1)
    with pytest.raises(TypeError):
        Holder()
    with pytest.raises(TypeError):
        Holder(it=1, other=2)


def test_constants_are_no_parts():
    for value in (1, 2.5, "text", True, None, print, np.float32(3), np.float32, [1, 2], (), {"a": 1}, {1}, object()):
        assert paths(Holder(it=value)) == []


def test_declared_order_counts_not_that_of_the_call():
    assert paths(Two(b=Param([1.0]), a=Param([2.0]))) == ["a", "b"]


def test_inherited_fields_come_first():
    class Three(Two):
        c: Any

    assert paths(Three(c=Param([1.0]), a=Param([1.0]), b=Param([1.0]))) == ["a", "b", "c"]


def test_a_hand_written_constructor_stays_and_its_other_fields_follow():
    class Own(Module):
        second: Param
        first: Param

        def __init__(self, size: int) -> None:
            self.extra = Param(np.zeros(size, np.float32))
            self.first = Param(np.zeros(size, np.float32))
            self.second = Param(np.zeros(size, np.float32))

    class Derived(Own):
        pass

    assert paths(Own(3)) == paths(Derived(3)) == ["second", "first", "extra"]


def test_a_field_with_a_default_counts_where_the_constructor_leaves_it_out():
    shared = Param([1.0])

    class Own(Module):
        it: Param = shared

        def __init__(self) -> None:
            pass

    assert paths(Own()) == ["it"]


def test_a_default_made_for_each():
    class Own(Module):
        layers: list = dataclasses.field(default_factory=lambda: [Linear(2, 2)])

    first, second = Own(), Own()
    assert first.layers[0] is not second.layers[0]
    assert paths(first) == ["layers.0.weight", "layers.0.bias"]


@pytest.mark.parametrize("taken", ["kind", "facts", "describe"])
def test_a_field_may_not_hide_what_modules_have(taken):
    with pytest.raises(ModuleError, match=f"{taken}.*another name"):
        type("Bad", (Module,), {"__annotations__": {taken: "str"}})

    holder = Holder(it=1)
    with pytest.raises(ModuleError, match=taken):
        setattr(holder, taken, "x")


def test_a_class_variable_is_no_field():
    class Own(Module):
        kind: ClassVar[str] = "linear"
        size: ClassVar[int] = 3

    assert (Own().kind, Own.size) == ("linear", 3)
    with pytest.raises(TypeError):
        Own(size=4)


@pytest.mark.parametrize(
    "value",
    [
        lambda part: {"a": part},
        lambda part: {"a": {"b": part}},
        lambda part: {"a": [part]},
        lambda part: [{"a": part}],
        lambda part: (1, [{"a": part}]),
        lambda part: {part},
        lambda part: frozenset([part]),
    ],
)
def test_dicts_and_sets_of_parts_are_refused_with_the_reason(value):
    with pytest.raises(ModuleError, match=r"Holder\.it.*Burn has no such field.*Use a list") as caught:
        Holder(it=value(Linear(2, 2)))
    assert isinstance(caught.value, FirekeepError)
    with pytest.raises(ModuleError, match="Burn has no such field"):
        Variant("A", value(Linear(2, 2)), enum="E")


def test_a_dict_that_comes_later_into_a_list_is_refused_by_the_walk():
    holder = Holder(it=[Linear(2, 2)])
    holder.it.append({"a": Linear(2, 2)})
    with pytest.raises(ModuleError, match=r"Holder\.it"):
        list(walk(holder))


@pytest.mark.parametrize("wrap", [lambda array: array, lambda array: [array], lambda array: (1, [array])])
def test_an_array_that_is_no_param_is_warned_of_where_it_is_given(wrap):
    with pytest.warns(ConstantArrayWarning, match=r"Holder\.it.*Param\(array\)") as caught:
        holder = Holder(it=wrap(np.zeros(3)))
    assert caught[0].filename == __file__
    assert paths(holder) == []
    with pytest.warns(ConstantArrayWarning, match=r"Holder\.other") as caught:
        holder.other = wrap(np.zeros(3))
    assert caught[0].filename == __file__


def test_an_underscore_says_that_a_constant_is_meant():
    holder = Holder(it=1)
    with warnings.catch_warnings():
        warnings.simplefilter("error")
        holder._mask = np.zeros(3)
    assert paths(holder) == []


def test_arrays_of_other_libraries_are_warned_of_too():
    torch = pytest.importorskip("torch")
    with pytest.warns(ConstantArrayWarning):
        Holder(it=torch.zeros(3))


def test_a_variant_calls_what_it_holds():
    x = np.array([-1.0, 2.0], np.float32)
    np.testing.assert_array_equal(Variant("Relu", Relu(), enum="Layer")(x), [0, 2])
    with pytest.raises(ModuleError, match=r"Layer\.Relu"):
        Variant("Relu", enum="Layer")(x)


@pytest.mark.parametrize("name", ["a.b", "", "1"])
def test_a_variant_is_named_by_an_identifier(name):
    with pytest.raises(ModuleError, match="level of a path"):
        Variant(name, enum="Layer")


def test_a_deep_copy_is_another_model_with_the_same_ids_and_ties():
    tied = Param([1.0, 2.0])
    module = Two(a=tied, b=[tied, Linear(2, 3, rng=0)])
    twin = copy.deepcopy(module)
    assert [visited.param.id for visited in walk(twin)] == [visited.param.id for visited in walk(module)]
    assert twin.a is twin.b[0] is not tied
    twin.a.value[0] = 9
    assert tied.value[0] == 1
    np.testing.assert_array_equal(twin.b[1].weight.value, module.b[1].weight.value)  # made after the copy


def test_describing_makes_nothing():
    class Net(Module):
        fc: Linear
        layers: list
        pair: tuple
        bare: Variant
        label: str = "net"

    net = Net(
        fc=Linear(2, 3, layout="col"),
        layers=[Variant("Linear", Linear(3, 4, bias=False), enum="Layer"), Relu()],
        pair=(Param([1.0]), Param([1])),
        bare=Variant("Relu", enum="Layer"),
    )
    assert repr(net) == "Net(label='net', params=23)"
    assert net.describe().splitlines() == [
        "Net(label='net', params=23)",
        "  fc: Linear(layout='col', params=9)",
        "    weight: F32 [3, 2], not made yet",
        "    bias: F32 [3], not made yet",
        "  layers: list of 2",
        "    0: Layer",
        "      Linear: Linear(layout='row', params=12)",
        "        weight: F32 [3, 4], not made yet",
        "    1: Relu(params=0)",
        "  pair: tuple of 2",
        "    0: F32 [1]",
        "    1: I64 [1], no gradient",
        "  bare: Layer.Relu",
    ]
    assert not net.fc.weight.is_initialized
