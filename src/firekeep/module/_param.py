"""Parameters: the tensors of a module, perhaps not made yet."""

from __future__ import annotations

import threading
from collections.abc import Callable
from dataclasses import dataclass
from typing import Any, ClassVar, Literal, Self

import numpy as np

from firekeep.arrays import Array, dtype_of, numpy_dtype
from firekeep.dtypes import BY_NAME, DType
from firekeep.ids import ParamId
from firekeep.module._errors import ModuleError
from firekeep.module._initializers import Fans, Initializer, Seed, draw_seed, generator

ParamKind = Literal["float", "int", "bool"]
Mapper = Callable[[Array], Array]

F32 = BY_NAME["F32"]
_KINDS: dict[str, ParamKind] = {"float": "float", "int": "int", "uint": "int", "bool": "bool"}
_MAKING = threading.RLock()  # two threads that use a parameter for the first time run its recipe once


@dataclass(frozen=True, slots=True, kw_only=True)
class Mappers:
    """How a parameter gets from its file form to its form in memory and back.

    `init` is applied to what the initialiser made, `load` to what a file held, `save` to the value when it is saved. All three see
    the whole array. What is None changes nothing.
    """

    init: Mapper | None = None
    load: Mapper | None = None
    save: Mapper | None = None


@dataclass(frozen=True, slots=True)
class _Recipe:
    initializer: Initializer
    shape: tuple[int, ...]
    live_shape: tuple[int, ...]
    dtype: DType
    seed: Any
    fans: Fans

    def make(self) -> Array:
        made = self.initializer(self.shape, np.random.default_rng(self.seed), self.fans)
        array = np.asarray(made).astype(numpy_dtype(self.dtype), copy=False)
        if array.shape != self.shape:
            raise ModuleError(f"the initialiser gave shape {list(array.shape)}, where {list(self.shape)} is declared")
        return array


class Param:
    """A tensor of a module: it has an identity, is saved and loaded, and may not have been made yet.

    `Param(array)` holds a value; `Param.lazy(initializer, shape)` holds a recipe, run when `value` is first asked for and never
    when a file fills the parameter before. `shape` is that of the value in memory and `file_shape` that of a file; the two differ
    only where mappers turn one into the other. Both are known without running the recipe.
    """

    __slots__ = ("_dtype", "_recipe", "_value", "file_shape", "id", "kind", "mappers", "require_grad", "shape")

    is_state: ClassVar[bool] = False
    """Whether it is a layer's statistics: no gradient, and an id that loading does not replace."""

    def __init__(
        self,
        value: object,
        *,
        param_id: ParamId | None = None,
        require_grad: bool | None = None,
        mappers: Mappers | None = None,
    ) -> None:
        self.id = param_id if param_id is not None else ParamId.fresh()
        self.mappers = mappers if mappers is not None else Mappers()
        self.file_shape: tuple[int, ...]
        self.kind: ParamKind
        if isinstance(value, _Recipe):
            self._recipe: _Recipe | None = value
            self._value: Array | None = None
            self._dtype = value.dtype
            self.shape: tuple[int, ...] = value.live_shape
            self.kind = _kind_of(value.dtype)
            self.file_shape = value.shape
        else:
            self._adopt(_as_array(value))
            self.kind = _kind_of(self._dtype)
            self.file_shape = self.file_form().shape
        self.require_grad = self.kind == "float" and not self.is_state if require_grad is None else require_grad

    @classmethod
    def lazy(
        cls,
        initializer: Initializer,
        shape: tuple[int, ...],
        *,
        dtype: DType = F32,
        fans: Fans | None = None,
        rng: Seed = None,
        live_shape: tuple[int, ...] | None = None,
        mappers: Mappers | None = None,
        param_id: ParamId | None = None,
        require_grad: bool | None = None,
    ) -> Self:
        """Declare a parameter whose value is made on first use.

        `shape` is the file's. With mappers that change it, `live_shape` says what it becomes in memory.
        """
        shape = tuple(shape)
        recipe = _Recipe(
            initializer,
            shape,
            shape if live_shape is None else tuple(live_shape),
            dtype,
            draw_seed(generator(rng)),
            fans if fans is not None else _guess_fans(shape),
        )
        return cls(recipe, param_id=param_id, require_grad=require_grad, mappers=mappers)

    @property
    def is_initialized(self) -> bool:
        """Whether the value exists."""
        return self._value is not None

    @property
    def lazy_shape(self) -> tuple[int, ...]:
        """The shape in memory, declared or real; Burn's name for it."""
        return self.shape

    @property
    def dtype(self) -> DType:
        """The dtype of the value, or of the one that would be made."""
        return self._dtype

    @property
    def value(self) -> Array:
        """The array as the layer uses it, made now if it does not exist yet."""
        if self._value is None:
            with _MAKING:
                if self._value is None:
                    self._adopt(self._make())
        assert self._value is not None  # noqa: S101 - for the type checker
        return self._value

    @value.setter
    def value(self, value: object) -> None:
        array = _as_array(value)
        self._check(array, self.shape, "in memory")
        self._adopt(array)

    def set(self, value: object, *, param_id: ParamId | None = None) -> None:
        """Take what a file held, in file form, as it is: no copy, no cast, and the recipe is not run.

        The load mapper brings it into the form in memory; `require_grad` and the mappers stay. Raises `ModuleError` for another shape
        than `file_shape` and another kind than the parameter's.
        """
        array = _as_array(value)
        self._check(array, self.file_shape, "in a file")
        if self.mappers.load is not None:
            array = self.mappers.load(array)
            self._check(array, self.shape, "in memory")
        self._adopt(array)
        if param_id is not None and not self.is_state:
            self.id = param_id

    def file_form(self) -> Array:
        """Give what a file holds of it: the value, made if need be, after the save mapper."""
        return self.value if self.mappers.save is None else self.mappers.save(self.value)

    def map(self, function: Mapper) -> Self:
        """Give a new parameter whose value is that of `function`, under the same id and with the same mappers."""
        return type(self)(function(self.value), param_id=self.id, require_grad=self.require_grad, mappers=self.mappers)

    def __deepcopy__(self, memo: dict[int, Any]) -> Param:
        twin = type(self).__new__(type(self))
        for name in Param.__slots__:
            part = getattr(self, name)
            setattr(twin, name, part.copy() if isinstance(part, np.ndarray) else part)
        memo[id(self)] = twin
        return twin

    def __repr__(self) -> str:
        state = "" if self.is_initialized else ", not made yet"
        return f"{type(self).__name__}({self._dtype} {list(self.shape)}, id {self.id}{state})"

    def _make(self) -> Array:
        assert self._recipe is not None  # noqa: S101 - a parameter without a value has a recipe
        array = self._recipe.make()
        if self.mappers.init is not None:
            array = self.mappers.init(array)
        self._check(array, self.shape, "in memory")
        return array

    def _adopt(self, array: Array) -> None:
        self._value = array
        self._dtype = dtype_of(array)
        self.shape = array.shape
        self._recipe = None

    def _check(self, array: Array, shape: tuple[int, ...], place: str) -> None:
        if array.shape != shape:
            raise ModuleError(f"its shape {place} is {list(shape)}, and {list(array.shape)} came")
        kind = _kind_of(dtype_of(array))
        if kind != self.kind:
            raise ModuleError(
                f"it holds {self.kind} values, and {dtype_of(array)} came",
                remedy=f"Cast the array to a {self.kind} dtype first",
            )


class RunningState(Param):
    """Statistics that a layer keeps while it trains: saved and loaded as a float parameter, never given a gradient.

    It has an id of its own, which no file replaces.
    """

    __slots__ = ()

    is_state: ClassVar[bool] = True


def _as_array(value: object) -> Array:
    if isinstance(value, np.ndarray):
        return value
    if isinstance(value, Param):
        raise ModuleError("a parameter came, where an array is due", remedy="Give its `value`")
    array = np.asarray(value)
    if array.dtype == np.float64 and not hasattr(value, "__array__"):
        return array.astype(np.float32)  # a list of Python floats
    return array


def _kind_of(dtype: DType) -> ParamKind:
    kind = _KINDS.get(dtype.kind)
    if kind is None:
        raise ModuleError(f"a parameter holds floats, integers or booleans, not {dtype}")
    return kind


def _guess_fans(shape: tuple[int, ...]) -> Fans:
    """Take the first axis for the way in and the second for the way out, as in a Linear."""
    first = shape[0] if shape else 1
    return Fans(first, shape[1] if len(shape) > 1 else first)
