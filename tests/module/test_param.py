from __future__ import annotations

import copy
import threading

import ml_dtypes
import numpy as np
import pytest

from firekeep.dtypes import dtype
from firekeep.ids import ParamId
from firekeep.module import Linear, Mappers, ModuleError, Param, RunningState

TRANSPOSED = Mappers(init=np.transpose, load=np.transpose, save=np.transpose)


class Counted:
    """An initialiser that counts its calls; gives 0, 1, 2, ..."""

    def __init__(self):
        self.calls = 0

    def __call__(self, shape, rng, fans):
        self.calls += 1
        return np.arange(np.prod(shape), dtype=np.float32).reshape(shape)


def test_a_lazy_param_is_known_without_being_made_and_made_once():
    counted = Counted()
    param = Param.lazy(counted, (2, 3))
    assert (param.shape, param.lazy_shape, param.file_shape, param.kind) == ((2, 3), (2, 3), (2, 3), "float")
    assert (param.dtype, param.require_grad) == (dtype("F32"), True)
    assert "not made yet" in repr(param)
    assert (counted.calls, param.is_initialized) == (0, False)
    assert param.value is param.value
    assert (counted.calls, param.is_initialized) == (1, True)


def test_threads_that_meet_at_first_use_make_it_once():
    started, go = threading.Event(), threading.Event()
    calls = []

    def slow(shape, rng, fans):
        calls.append(1)
        started.set()
        go.wait(10)
        return np.zeros(shape, np.float32)

    param = Param.lazy(slow, (2,))
    threads = [threading.Thread(target=lambda: param.value) for _ in range(4)]
    for thread in threads:
        thread.start()
    assert started.wait(10)
    go.set()
    for thread in threads:
        thread.join()
    assert len(calls) == 1


def test_a_load_never_runs_the_initialiser():
    counted = Counted()
    param = Param.lazy(counted, (2,))
    param.set(np.array([5, 6], np.float32))
    np.testing.assert_array_equal(param.value, [5, 6])
    assert counted.calls == 0


def test_a_refused_load_leaves_the_param_as_it_was():
    counted = Counted()
    param = Param.lazy(counted, (2,))
    before = param.id
    with pytest.raises(ModuleError, match=r"in a file is \[2\], and \[3\] came"):
        param.set(np.zeros(3, np.float32), param_id=ParamId(7))
    assert (param.id, param.is_initialized, counted.calls) == (before, False, 0)


def test_a_load_takes_the_dtype_the_id_and_the_memory_and_leaves_the_gradient():
    param = Param.lazy(Counted(), (2,), require_grad=False)
    data = np.array([1, 2], ml_dtypes.bfloat16)
    param.set(data, param_id=ParamId(7))
    assert param.value is data
    assert (param.dtype, param.id, param.require_grad) == (dtype("BF16"), 7, False)
    before = param.id
    param.set(data)
    assert param.id == before


@pytest.mark.parametrize(
    ("mine", "other", "words"),
    [
        ([1.0], np.array([1]), "float values, and I64"),
        ([1], np.array([1.0]), "int values, and F64"),
        ([True], np.array([1]), "bool values, and I64"),
    ],
)
def test_another_kind_is_refused(mine, other, words):
    param = Param(mine)
    with pytest.raises(ModuleError, match=words):
        param.set(other)
    with pytest.raises(ModuleError, match=words):
        param.value = other


@pytest.mark.parametrize(
    ("value", "kind", "name", "grad"),
    [
        ([1.0], "float", "F32", True),
        (np.zeros(1), "float", "F64", True),
        ([1], "int", "I64", False),
        (np.zeros(1, np.uint8), "int", "U8", False),
        ([True], "bool", "BOOL", False),
    ],
)
def test_the_kind_is_that_of_the_value(value, kind, name, grad):
    param = Param(value)
    assert (param.kind, param.dtype.name, param.require_grad) == (kind, name, grad)


@pytest.mark.parametrize("value", [np.zeros(1, np.complex64), Param([1.0])])
def test_what_no_param_can_hold_is_refused(value):
    with pytest.raises(ModuleError):
        Param(value)


def test_mappers_stand_between_file_and_memory():
    counted = Counted()
    param = Param.lazy(counted, (2, 3), live_shape=(3, 2), mappers=TRANSPOSED)
    assert (param.shape, param.file_shape, param.is_initialized) == ((3, 2), (2, 3), False)
    np.testing.assert_array_equal(param.value, [[0, 3], [1, 4], [2, 5]])
    np.testing.assert_array_equal(param.file_form(), [[0, 1, 2], [3, 4, 5]])
    assert (param.shape, param.file_shape) == ((3, 2), (2, 3))


@pytest.mark.parametrize("touched", [False, True])
def test_what_a_file_must_hold_does_not_depend_on_use(touched):
    param = Linear(2, 3, layout="col").weight
    if touched:
        assert param.value.shape == (2, 3)
    data = np.arange(6, dtype=np.float32).reshape(3, 2)
    with pytest.raises(ModuleError):
        param.set(data.T)
    param.set(data)
    np.testing.assert_array_equal(param.value, data.T)
    np.testing.assert_array_equal(param.file_form(), data)


def test_a_value_with_mappers_knows_its_file_shape():
    param = Param(np.zeros((2, 3), np.float32), mappers=TRANSPOSED)
    assert (param.shape, param.file_shape) == ((2, 3), (3, 2))


def test_mappers_and_initialisers_that_give_another_shape_than_declared_are_found_out():
    with pytest.raises(ModuleError, match="in memory"):
        _ = Param.lazy(Counted(), (2, 3), mappers=TRANSPOSED).value
    with pytest.raises(ModuleError, match="initialiser gave shape"):
        _ = Param.lazy(lambda shape, rng, fans: np.zeros(5), (2,)).value


def test_a_declared_dtype_is_what_is_made():
    param = Param.lazy(Counted(), (2,), dtype=dtype("I32"))
    assert (param.kind, param.dtype.name, param.value.dtype, param.require_grad) == ("int", "I32", np.int32, False)


def test_map_gives_a_new_param_of_the_same_identity():
    param = Param([[1.0, 2.0]], mappers=TRANSPOSED, require_grad=False)
    mapped = param.map(lambda array: array * 2)
    assert (mapped.id, mapped.mappers, mapped.require_grad) == (param.id, TRANSPOSED, False)
    np.testing.assert_array_equal(mapped.value, [[2, 4]])
    np.testing.assert_array_equal(param.value, [[1, 2]])
    assert isinstance(RunningState([1.0]).map(np.negative), RunningState)


def test_a_value_can_be_stepped_in_place():
    param = Param([1.0, 2.0])
    param.value -= 1
    np.testing.assert_array_equal(param.value, [0, 1])
    with pytest.raises(ModuleError, match="in memory"):
        param.value = np.zeros(3, np.float32)


def test_a_running_state_keeps_its_id_and_has_no_gradient():
    state = RunningState.lazy(Counted(), (2,))
    assert isinstance(state, RunningState)
    assert (state.kind, state.require_grad, state.is_state) == ("float", False, True)
    before = state.id
    state.set(np.array([3, 4], np.float32), param_id=ParamId(7))
    assert state.id == before
    np.testing.assert_array_equal(state.value, [3, 4])


def test_fresh_params_have_ids_of_their_own():
    assert Param([1.0]).id != Param([1.0]).id
    assert Param([1.0], param_id=ParamId(3)).id == 3


def test_copies_made_before_first_use_become_equal():
    param = Linear(4, 5).weight
    twin = copy.deepcopy(param)
    np.testing.assert_array_equal(twin.value, param.value)
    assert not np.shares_memory(twin.value, param.value)
