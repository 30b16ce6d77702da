"""Tensors into module trees."""

from __future__ import annotations

from collections.abc import Sequence
from typing import TYPE_CHECKING

from firekeep.bridges._drawing import check_drawable, draw_own, plain_dtype
from firekeep.bridges._protocol import Filling, check_fillings
from firekeep.dtypes import DType
from firekeep.errors import EntryError, FirekeepError, UnsupportedError
from firekeep.module import Param, walk

if TYPE_CHECKING:
    from firekeep.bridges.native import Tree

_KINDS = {"float": "float", "int": "int", "uint": "int", "bool": "bool"}


def fill(root: Tree, fillings: Sequence[Filling], done: list[str]) -> None:
    """Fill parameters by path. Everything is checked before anything is touched."""
    check_fillings(fillings)
    params = {visited.path: visited.param for visited in walk(root)}
    for filling in fillings:
        _check(params, filling)
    for filling in fillings:
        path = filling.slot.path
        try:
            params[path].set(draw_own(filling.entry, filling.dtype), param_id=filling.entry.param_id)
        except FirekeepError as error:
            raise error.at(tensor=path)  # noqa: B904 - the same error, with its place
        done.append(path)


def _check(params: dict[str, Param], filling: Filling) -> None:
    path = filling.slot.path
    param = params.get(path)
    if param is None:
        raise EntryError("the module has no such place any more", tensor=path, remedy="Describe the module again.")
    if filling.entry.shape != param.file_shape:
        raise EntryError(
            f"the tensor has shape {list(filling.entry.shape)}, and its place in the module {list(param.file_shape)}",
            tensor=path,
        )
    if _kind_of(filling.dtype) != param.kind:
        raise UnsupportedError(
            f"the parameter holds {param.kind} values, and {filling.dtype} is to be put there",
            tensor=path,
            remedy="Leave it out, or keep the module's dtype.",
        )
    check_drawable(filling)


def _kind_of(dtype: DType) -> str | None:
    return _KINDS.get(plain_dtype(dtype).kind)
