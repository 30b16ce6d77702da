"""Modules, declared like dataclasses, and what counts as a part of one."""

from __future__ import annotations

import dataclasses
import math
import warnings
from collections.abc import Iterator, Mapping
from dataclasses import dataclass
from types import MappingProxyType
from typing import Any, ClassVar, dataclass_transform

from firekeep.callers import levels_outside
from firekeep.module._errors import ConstantArrayWarning, ModuleError
from firekeep.module._param import Param
from firekeep.wording import quote

Facts = Mapping[str, int | bool | str]
NO_FACTS: Facts = MappingProxyType({})
DEEPEST = 256
"""Levels of modules, lists and tuples in one another."""


@dataclass(frozen=True, slots=True)
class Variant:
    """A value that is one of several kinds, as an enum of Rust is: `Variant("Linear", layer, enum="Layer")`.

    Its name is a level of the path: `net.0.Linear.weight`. `value` is one module (or parameter, or list), or None for a kind that holds
    nothing. Calling the variant calls what it holds.
    """

    name: str
    value: Any = None
    _: dataclasses.KW_ONLY
    enum: str

    def __post_init__(self) -> None:
        if not self.name.isidentifier():
            raise ModuleError(f"{self.name!r} cannot be a level of a path", remedy="Name the variant by an identifier")
        refuse(self.value, f"{self.enum}.{self.name}")

    def __call__(self, *args: Any, **kwargs: Any) -> Any:
        if not callable(self.value):
            raise ModuleError(f"{self.enum}.{self.name} holds nothing that can be called")
        return self.value(*args, **kwargs)


@dataclass_transform(kw_only_default=True, eq_default=False, field_specifiers=(dataclasses.field,))
class Module:
    """A part of a model: its annotated fields are given by keyword and hold tensors, other modules, and constants.

    What a field is, its value says:

    - a `Module`, `Param`, `RunningState` or `Variant` is a part; so are lists and tuples with such among their elements;
    - None is a part left out: it adds nothing to a path;
    - numbers, strings, booleans, functions and everything else are constants: no file holds them;
    - an array is a constant too, with a `ConstantArrayWarning`, since a `Param` is usually meant. A name with an underscore
      in front says that it is not;
    - a dict or set of parts is refused: Burn has no such field, so its files have no paths for one.

    Fields come in the order of declaration, then what a hand-written `__init__` assigned besides, in the order of assignment.
    `kind` is the layer's row in the tables of layouts ("linear"), "" for modules of one's own; `facts` are what such a row needs.
    """

    kind: ClassVar[str] = ""
    _declared: ClassVar[tuple[str, ...]] = ()
    _by_hand: ClassVar[bool] = False

    @property
    def facts(self) -> Facts:
        """What the tables of layouts need to know of the layer and no tensor tells."""
        return NO_FACTS

    def __init_subclass__(cls, **kwargs: Any) -> None:
        super().__init_subclass__(**kwargs)
        # A constructor written by hand stays, for derived classes too.
        cls._by_hand = cls._by_hand or "__init__" in vars(cls)
        dataclasses.dataclass(init=not cls._by_hand, repr=False, eq=False, kw_only=True)(cls)
        cls._declared = tuple(field.name for field in dataclasses.fields(cls))  # type: ignore[arg-type]
        for name in cls._declared:
            _refuse_taken(cls.__mro__[1:], name, cls)

    def __setattr__(self, name: str, value: object) -> None:
        if name not in self._declared and name not in vars(self):
            _refuse_taken(type(self).__mro__, name, type(self))
        place = f"{type(self).__name__}.{name}"
        refuse(value, place)
        if not name.startswith("_") and holds_array(value):
            _warn_of_array(place)
        object.__setattr__(self, name, value)

    def describe(self) -> str:
        """Draw the tree with the shapes and dtypes of its tensors, without making any."""
        return "\n".join([repr(self), *_lines(self, "  ", {})])

    def __repr__(self) -> str:
        told = [f"{name}={value!r}" for name, value in fields_of(self) if isinstance(value, str | int | float)]
        count = sum(math.prod(part.file_shape) for part in _inside(self, {}).values() if isinstance(part, Param))
        return f"{type(self).__name__}({', '.join([*told, f'params={count:,}'])})"


def fields_of(module: Module) -> Iterator[tuple[str, Any]]:
    """List a module's fields and values, declared ones first."""
    declared = type(module)._declared  # noqa: SLF001 - this file's own
    for name in declared:
        if hasattr(module, name):  # a constructor written by hand may have left it out
            yield name, getattr(module, name)
    for name, value in vars(module).items():
        if name not in declared and name != "kind":  # a layer may shadow the kind of its class
            yield name, value


def children(node: object) -> Iterator[tuple[str, str, Any]]:
    """List the parts of a module, list, tuple or variant: the level of the path, the label of what owns it, the part itself."""
    if isinstance(node, Module):
        label = f"Struct:{type(node).__name__}"
        for name, value in fields_of(node):
            refuse(value, f"{type(node).__name__}.{name}")
            if is_part(value):
                yield name, label, value
    elif isinstance(node, Variant):
        if is_part(node.value):
            yield node.name, f"Enum:{node.enum}", node.value
    elif isinstance(node, list | tuple):
        label = "Vec" if isinstance(node, list) else "Tuple"
        for index, value in enumerate(node):
            if is_part(value):
                yield str(index), label, value


def is_part(value: object, depth: int = 0) -> bool:
    """Whether a value belongs to the tree; anything else is a constant. Lists too deep count as parts, for a walk to refuse them."""
    if isinstance(value, Module | Param | Variant):
        return True
    if not isinstance(value, list | tuple):
        return False
    return depth > DEEPEST or any(is_part(element, depth + 1) for element in value)


def refuse(value: object, place: str, depth: int = 0) -> None:
    """Refuse containers that have no place in a path, where they hold parts of the tree, and those without an end."""
    if depth > DEEPEST:
        raise ModuleError(
            f"{quote(place)} lies in more than {DEEPEST} lists or tuples, or one of them contains itself",
            remedy="Leave that reference out of the tree",
        )
    if isinstance(value, list | tuple):
        for index, element in enumerate(value):
            if isinstance(element, list | tuple | Mapping | set | frozenset):
                refuse(element, f"{place}.{index}", depth + 1)
        return
    inside = value.values() if isinstance(value, Mapping) else value if isinstance(value, set | frozenset) else ()
    for element in inside:
        if isinstance(element, Mapping | set | frozenset):
            refuse(element, place, depth + 1)
        if is_part(element):
            raise ModuleError(
                f"{place} is a {type(value).__name__} with a {type(element).__name__} in it, "
                "and Burn has no such field: its tensors would have no names",
                remedy="Use a list, a tuple, or a Module with a field for each",
            )


def holds_array(value: object) -> bool:
    """Whether a value is an array, or a list or tuple with one in it, of any library."""
    if isinstance(value, list | tuple):
        return any(map(holds_array, value))
    if isinstance(value, Module | Param | Variant | type) or not hasattr(value, "shape"):
        return False
    # NumPy's numbers have a shape and can be arrays too, and are constants like Python's
    return (hasattr(value, "__array__") or hasattr(value, "__dlpack__")) and hasattr(value, "__setitem__")


def _refuse_taken(bases: tuple[type, ...], name: str, owner: type) -> None:
    """Refuse a field that would hide a method or property, or be taken for the layer's kind."""
    for base in bases:
        if name in vars(base) and name not in getattr(base, "_declared", ()):
            raise ModuleError(
                f"{owner.__name__} has a field {name!r}, and {base.__name__}.{name} is something else already",
                remedy="Give the field another name",
            )


def _warn_of_array(place: str) -> None:
    warnings.warn(
        f"{place} is an array: a constant, which no file holds and no load fills. Wrap it as Param(array) to keep it, "
        "or put an underscore in front of the name to say that it is a constant",
        ConstantArrayWarning,
        stacklevel=levels_outside("firekeep.module", generated=True),
    )


def _inside(node: object, met: dict[int, object]) -> dict[int, object]:
    """Collect a part and all parts in it, each once, by identity."""
    if id(node) not in met:
        met[id(node)] = node
        for _, _, child in children(node):
            _inside(child, met)
    return met


def _lines(node: object, indent: str, above: dict[int, object]) -> Iterator[str]:
    """Say a line for each part; one that contains itself is not entered again."""
    above = {**above, id(node): node}
    for name, _, child in children(node):
        yield f"{indent}{name}: {_word(child)}"
        if id(child) not in above:
            yield from _lines(child, indent + "  ", above)


def _word(part: object) -> str:
    if isinstance(part, Param):
        pending = "" if part.is_initialized else ", not made yet"
        state = ", running state" if part.is_state else "" if part.require_grad else ", no gradient"
        return f"{part.dtype} {list(part.file_shape)}{state}{pending}"
    if isinstance(part, Variant):
        return part.enum if is_part(part.value) else f"{part.enum}.{part.name}"
    if isinstance(part, list | tuple):
        return f"{'list' if isinstance(part, list) else 'tuple'} of {len(part)}"
    return repr(part)
