"""Shapes whose sharding names the axes of a mesh and no devices, as `jax.eval_shape` makes them: given the mesh that has the devices."""

from __future__ import annotations

from collections.abc import Iterable, Iterator
from typing import Any

import jax
import numpy as np
from jax.sharding import AbstractMesh, Mesh, NamedSharding


def is_unplaced(value: Any) -> bool:
    """Say whether a shape has a sharding that tells no devices."""
    return isinstance(value, jax.ShapeDtypeStruct) and _abstract(value) is not None


def placed(value: Any, meshes: Iterable[Mesh]) -> Any:
    """Give a shape with the devices of the one mesh that has its axes; as it is where there is none, or more than one."""
    abstract = _abstract(value)
    if abstract is None:
        return value
    if abstract.empty:
        return value.update(sharding=None)
    found = {mesh for mesh in meshes if _fits(mesh, abstract)}
    if not found and abstract.size == 1:
        found = {_alone(abstract)}
    if len(found) != 1:
        return value
    return value.update(
        sharding=NamedSharding(found.pop(), value.sharding.spec, memory_kind=value.sharding.memory_kind)
    )


def meshes_in(values: Iterable[Any]) -> Iterator[Mesh]:
    """Give the meshes with devices that arrays and shapes lie on, and the one that is set for all."""
    for value in values:
        if isinstance(value, jax.Array | jax.ShapeDtypeStruct) and isinstance(mesh := _mesh(value), Mesh):
            yield mesh
    if not (here := _mesh_of_context()).empty:
        yield here


def _mesh(value: Any) -> Any:
    if isinstance(value, jax.core.Tracer):
        return None
    sharding = value.sharding
    return sharding.mesh if isinstance(sharding, NamedSharding) else None


def _mesh_of_context() -> Mesh:
    told = getattr(jax.sharding, "get_mesh", None)
    return Mesh(np.empty((), object), ()) if told is None else told()


def _abstract(value: Any) -> AbstractMesh | None:
    mesh = _mesh(value)
    return mesh if isinstance(mesh, AbstractMesh) else None


def _fits(mesh: Mesh, abstract: AbstractMesh) -> bool:
    axes = (abstract.axis_names, abstract.axis_sizes, abstract.axis_types)
    return (mesh.axis_names, mesh.axis_sizes, mesh.axis_types) == axes


def _alone(abstract: AbstractMesh) -> Mesh:
    """Make a mesh of one device: there is nothing to choose but the default one."""
    chosen = getattr(jax.config, "jax_default_device", None)
    device = chosen if isinstance(chosen, jax.Device) else jax.local_devices()[0]
    devices = np.array([device]).reshape(abstract.axis_sizes)
    return Mesh(devices, abstract.axis_names, axis_types=abstract.axis_types)
