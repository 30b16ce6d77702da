"""Ways through a module tree: every tensor with its path, in the order of declaration. None of them makes a parameter's value."""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass, replace
from typing import Any, Protocol, TypeVar

from firekeep.errors import LimitError
from firekeep.module._errors import ModuleError
from firekeep.module._param import Param
from firekeep.module._tree import DEEPEST, Module, Variant, children
from firekeep.wording import quote

Tree = Module | Param | Variant | list[Any] | tuple[Any, ...]
T = TypeVar("T", bound=Tree)


@dataclass(frozen=True, slots=True, kw_only=True)
class Visited:
    """A parameter, and where the walk met it.

    `containers` has one label for each level of the path, that of what owns it: ("Struct:Net", "Vec", "Enum:Layer", "Struct:Linear") for
    net.0.Linear.weight. `owners` are the modules around it with their paths, the outermost first.
    """

    path: str
    param: Param
    containers: tuple[str, ...]
    owners: tuple[tuple[str, Module], ...]

    @property
    def owner(self) -> Module | None:
        """The module that holds the parameter; None where the walk began below one."""
        return self.owners[-1][1] if self.owners else None

    @property
    def owner_path(self) -> str:
        """The path of `owner`; "" for the root."""
        return self.owners[-1][0] if self.owners else ""

    @property
    def role(self) -> str:
        """The parameter's path within its owner: "weight"."""
        return self.path[len(self.owner_path) + 1 :] if self.owner_path else self.path


class ModuleVisitor(Protocol):
    """What `visit` calls, parts in the order of declaration. Derive from it and override what is wanted: nothing is done by default."""

    def enter_module(self, name: str, container: str) -> None:
        """Go one level down; `container` labels what owns the level."""

    def exit_module(self, name: str, container: str) -> None:
        """Come back up."""

    def visit_float(self, param: Param) -> None:
        """Meet a float parameter or a running state."""

    def visit_int(self, param: Param) -> None:
        """Meet an integer parameter."""

    def visit_bool(self, param: Param) -> None:
        """Meet a boolean parameter."""


class ModuleMapper(Protocol):
    """What `map_module` calls; each parameter is replaced by what comes back. By default that is the parameter itself, not made."""

    def enter_module(self, name: str, container: str) -> None:
        """Go one level down; `container` labels what owns the level."""

    def exit_module(self, name: str, container: str) -> None:
        """Come back up."""

    def map_float(self, param: Param) -> Param:
        """Replace a float parameter or a running state."""
        return param

    def map_int(self, param: Param) -> Param:
        """Replace an integer parameter."""
        return param

    def map_bool(self, param: Param) -> Param:
        """Replace a boolean parameter."""
        return param


def walk(module: Tree) -> Iterator[Visited]:
    """Meet every parameter, running states included; one that stands in two places is met twice, as the same object."""
    return _walk(module, "", (), (), ())


def modules(module: Tree) -> Iterator[tuple[str, Module | Variant]]:
    """Meet every module and variant with its path, each before its parts: the root, and those without tensors too."""
    return _modules(module, "", ())


def visit(module: Tree, visitor: ModuleVisitor) -> None:
    """Lead a visitor through the tree."""
    _visit(module, visitor, (), "")


def map_module(module: T, mapper: ModuleMapper) -> T:
    """Replace every parameter in its place by what the mapper makes of it, and give the tree.

    Modules and lists are changed where they are; tuples and variants, which cannot be, are replaced in what holds them. A parameter that
    stands in several places is mapped once, and stands there again.
    """
    return _map(module, mapper, {}, (), "")  # type: ignore[no-any-return]


def _walk(
    node: object,
    path: str,
    containers: tuple[str, ...],
    owners: tuple[tuple[str, Module], ...],
    trail: tuple[int, ...],
) -> Iterator[Visited]:
    if isinstance(node, Param):
        yield Visited(path=path, param=node, containers=containers, owners=owners)
        return
    trail = _step(node, trail, path)
    if isinstance(node, Module):
        owners = (*owners, (path, node))
    for name, label, child in children(node):
        yield from _walk(child, _join(path, name), (*containers, label), owners, trail)


def _modules(node: object, path: str, trail: tuple[int, ...]) -> Iterator[tuple[str, Module | Variant]]:
    if isinstance(node, Module | Variant):
        yield path, node
    trail = _step(node, trail, path)
    for name, _, child in children(node):
        yield from _modules(child, _join(path, name), trail)


def _visit(node: object, visitor: ModuleVisitor, trail: tuple[int, ...], path: str) -> None:
    if isinstance(node, Param):
        {"float": visitor.visit_float, "int": visitor.visit_int, "bool": visitor.visit_bool}[node.kind](node)
        return
    trail = _step(node, trail, path)
    for name, label, child in children(node):
        visitor.enter_module(name, label)
        _visit(child, visitor, trail, _join(path, name))
        visitor.exit_module(name, label)


def _map(
    node: Any, mapper: ModuleMapper, done: dict[int, tuple[Param, Param]], trail: tuple[int, ...], path: str
) -> Any:
    if isinstance(node, Param):
        if id(node) not in done:
            function = {"float": mapper.map_float, "int": mapper.map_int, "bool": mapper.map_bool}[node.kind]
            done[id(node)] = (node, function(node))  # the old one is kept so that its id stays its own
        return done[id(node)][1]
    trail = _step(node, trail, path)
    changed: dict[str, Any] = {}
    for name, label, child in list(children(node)):
        mapper.enter_module(name, label)
        new = _map(child, mapper, done, trail, _join(path, name))
        mapper.exit_module(name, label)
        if new is not child:
            changed[name] = new
    return _rebuild(node, changed) if changed else node


def _rebuild(node: Any, changed: dict[str, Any]) -> Any:
    if isinstance(node, Module):
        for name, value in changed.items():
            setattr(node, name, value)
    elif isinstance(node, Variant):
        return replace(node, value=changed[node.name])
    elif isinstance(node, list):
        for name, value in changed.items():
            node[int(name)] = value
    else:
        elements = [changed.get(str(index), value) for index, value in enumerate(node)]
        return type(node)._make(elements) if hasattr(node, "_make") else tuple(elements)
    return node


def _join(path: str, name: str) -> str:
    return f"{path}.{name}" if path else name


def _step(node: object, trail: tuple[int, ...], path: str) -> tuple[int, ...]:
    if id(node) in trail:
        raise ModuleError(
            f"a {type(node).__name__} contains itself, at {quote(path)}: its tensors would have no end of names",
            remedy="Leave that reference out of the tree",
        )
    if len(trail) >= DEEPEST:
        raise LimitError(
            f"the modules lie deeper than {DEEPEST} levels in one another, at {quote(path)}",
            limit=DEEPEST,
            actual=DEEPEST + 1,
        )
    return (*trail, id(node))
