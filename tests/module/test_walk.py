from __future__ import annotations

from typing import Any, NamedTuple

import numpy as np
import pytest

from firekeep.module import (
    BatchNorm,
    Linear,
    Module,
    ModuleError,
    ModuleMapper,
    ModuleVisitor,
    Param,
    Relu,
    Variant,
    map_module,
    modules,
    visit,
    walk,
)


class Net(Module):
    fc: Linear
    net: list[Any]
    pair: tuple[Any, ...]
    opt: Linear | None
    missing: Linear | None = None
    scale: Param
    counts: Param
    mask: Param
    label: str = "x"


def build() -> Net:
    return Net(
        fc=Linear(2, 3),
        net=[
            Variant("Linear", Linear(3, 4, bias=False), enum="Layer"),
            Relu(),
            Variant("Relu", enum="Layer"),
            Linear(4, 1),
        ],
        pair=(Linear(1, 1, bias=False), 7, [BatchNorm(2)]),
        opt=Linear(2, 2, bias=False),
        scale=Param([1.0]),
        counts=Param([1]),
        mask=Param([True]),
    )


EXPECTED = [
    ("fc.weight", "Struct:Net/Struct:Linear", "fc"),
    ("fc.bias", "Struct:Net/Struct:Linear", "fc"),
    ("net.0.Linear.weight", "Struct:Net/Vec/Enum:Layer/Struct:Linear", "net.0.Linear"),
    ("net.3.weight", "Struct:Net/Vec/Struct:Linear", "net.3"),
    ("net.3.bias", "Struct:Net/Vec/Struct:Linear", "net.3"),
    ("pair.0.weight", "Struct:Net/Tuple/Struct:Linear", "pair.0"),
    ("pair.2.0.gamma", "Struct:Net/Tuple/Vec/Struct:BatchNorm", "pair.2.0"),
    ("pair.2.0.beta", "Struct:Net/Tuple/Vec/Struct:BatchNorm", "pair.2.0"),
    ("pair.2.0.running_mean", "Struct:Net/Tuple/Vec/Struct:BatchNorm", "pair.2.0"),
    ("pair.2.0.running_var", "Struct:Net/Tuple/Vec/Struct:BatchNorm", "pair.2.0"),
    ("opt.weight", "Struct:Net/Struct:Linear", "opt"),
    ("scale", "Struct:Net", ""),
    ("counts", "Struct:Net", ""),
    ("mask", "Struct:Net", ""),
]


def test_paths_and_labels_are_burns():
    net = build()
    met = list(walk(net))
    assert [(v.path, "/".join(v.containers), v.owner_path) for v in met] == EXPECTED
    assert all(len(v.containers) == v.path.count(".") + 1 for v in met)
    assert all(getattr(v.owner, v.role) is v.param for v in met)
    assert met[0].owners == (("", net), ("fc", net.fc))


def test_walking_makes_nothing():
    net = build()
    for _ in walk(net):
        pass
    assert not any(visited.param.is_initialized for visited in walk(net) if visited.owner is not net)


def test_every_module_and_variant_is_met_before_its_parts():
    met = [(path, type(part).__name__) for path, part in modules(build())]
    assert met == [
        ("", "Net"),
        ("fc", "Linear"),
        ("net.0", "Variant"),
        ("net.0.Linear", "Linear"),
        ("net.1", "Relu"),
        ("net.2", "Variant"),
        ("net.3", "Linear"),
        ("pair.0", "Linear"),
        ("pair.2.0", "BatchNorm"),
        ("opt", "Linear"),
    ]


def test_a_root_may_be_anything_with_parts():
    param = Param([1.0])
    (met,) = walk(param)
    assert (met.path, met.containers, met.owner, met.owner_path, met.role) == ("", (), None, "", "")
    assert [v.path for v in walk([param, (param,)])] == ["0", "1.0"]
    assert [(v.path, v.containers) for v in walk(Variant("A", param, enum="E"))] == [("A", ("Enum:E",))]


def test_a_part_that_stands_twice_is_met_twice():
    shared = Linear(2, 2, bias=False)
    met = list(walk([shared, shared]))
    assert [v.path for v in met] == ["0.weight", "1.weight"]
    assert met[0].param is met[1].param


def test_a_tree_that_contains_itself_is_refused():
    loop: list[Any] = [Linear(1, 1)]
    loop.append((Relu(), [Param([1.0])]))
    net = Net.__new__(Net)
    net.fc = Linear(1, 1)
    net.net = [net]
    for way in (lambda: list(walk(net)), lambda: list(modules(net)), lambda: visit(net, Recorder())):
        with pytest.raises(ModuleError, match="Net contains itself"):
            way()
    assert len(list(walk(loop))) == 3
    assert net.describe().splitlines()[-2:] == ["  net: list of 1", "    0: Net(label='x', params=2)"]


class Recorder(ModuleVisitor):
    def __init__(self):
        self.events = []

    def enter_module(self, name, container):
        self.events.append(("enter", name, container))

    def exit_module(self, name, container):
        self.events.append(("exit", name, container))

    def visit_float(self, param):
        self.events.append(("float", param))

    def visit_int(self, param):
        self.events.append(("int", param))

    def visit_bool(self, param):
        self.events.append(("bool", param))


def test_a_visitor_sees_the_same_walk():
    net = build()
    recorder = Recorder()
    visit(net, recorder)
    path, met = [], []
    for event in recorder.events:
        if event[0] == "enter":
            path.append(event[1:])
        elif event[0] == "exit":
            assert path.pop() == event[1:]
        else:
            met.append((".".join(name for name, _ in path), tuple(label for _, label in path), event[1], event[0]))
    assert path == []
    assert met == [(v.path, v.containers, v.param, v.param.kind) for v in walk(net)]
    assert not net.fc.weight.is_initialized


def test_a_visitor_needs_to_say_only_what_it_wants():
    class Counting(ModuleVisitor):
        floats = 0

        def visit_float(self, param):
            self.floats += 1

    counting = Counting()
    visit(build(), counting)
    assert counting.floats == 12


def test_a_mapper_that_says_nothing_changes_and_makes_nothing():
    net = build()
    before = [v.param for v in walk(net)]
    assert map_module(net, ModuleMapperThatSaysNothing()) is net
    assert all(v.param is param for v, param in zip(walk(net), before, strict=True))
    assert not net.fc.weight.is_initialized


class ModuleMapperThatSaysNothing(ModuleMapper):
    pass


class Doubling(ModuleMapper):
    def __init__(self):
        self.calls = []
        self.path = []

    def enter_module(self, name, container):
        self.path.append(name)

    def exit_module(self, name, container):
        assert self.path.pop() == name

    def map_float(self, param):
        self.calls.append(".".join(self.path))
        return param.map(lambda array: array * 2)


class Point(NamedTuple):
    x: Any
    y: Any


def test_a_mapper_replaces_params_in_their_places():
    net = build()
    net.opt = None
    before = {v.path: v.param for v in walk(net)}
    doubling = Doubling()
    map_module(net, doubling)
    after = {v.path: v.param for v in walk(net)}
    assert list(after) == list(before)
    assert doubling.calls == [path for path, param in before.items() if param.kind == "float"]
    for path, param in before.items():
        factor = 2 if param.kind == "float" else 1
        np.testing.assert_array_equal(after[path].value, param.value * factor)
        assert after[path].id == param.id
    assert net.pair[1] == 7


def test_tuples_variants_and_ties_keep_their_form():
    tied = Param([1.0])
    tree = [Point(tied, 3), Variant("A", tied, enum="E"), tied]
    new = map_module(tree, Doubling())
    assert new is tree
    assert new[0].x is new[1].value is new[2] is not tied
    assert isinstance(new[0], Point)
    assert (new[0].y, new[1].name, new[1].enum) == (3, "A", "E")
    np.testing.assert_array_equal(new[2].value, [2])
    assert map_module(tied, Doubling()) is not tied
