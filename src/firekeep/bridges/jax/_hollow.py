"""Objects that belong to a model or an optimizer and hold no tensor: refused with what to give instead, not saved as nothing."""

from __future__ import annotations

from typing import Any

from firekeep.bridges.jax._frameworks import is_a
from firekeep.errors import UnsupportedError


def why_hollow(obj: object) -> tuple[str, str] | None:
    """Say what an object is that is known to hold no tensors, and what to give instead; None for any other."""
    kind = type(obj).__name__
    if is_a(obj, "flax.linen", "Module"):
        if getattr(obj, "scope", None) is not None:
            return (
                f"the bound Linen module {kind} holds no tensors itself, they are its variables",
                "Give its variables: module.variables.",
            )
        return (
            f"the Linen module {kind} holds no tensors: they are the variables that its init returns",
            "Give the variables, as variables = module.init(key, x) made them, or the TrainState of the run.",
        )
    if is_a(obj, "flax.nnx", "GraphDef", "NodeDef"):
        return (
            f"a {kind} of flax.nnx is a module without its tensors",
            "Give the module itself, or the state: graphdef, state = nnx.split(module).",
        )
    if is_transformation(obj):
        return (
            f"a {kind} of optax is a pair of functions, and holds no tensors: the moments are in the state that its init returns",
            "Give the state, opt_state = tx.init(params); a TrainingState takes it as optimizer=opt_state, tx=tx.",
        )
    return None


def is_transformation(obj: object) -> bool:
    """Tell a transformation of optax, as against its state."""
    return is_a(obj, "optax", "GradientTransformation", "MultiSteps")


def refuse_hollow(obj: object) -> None:
    """Raise `UnsupportedError` for an object that is known to hold no tensors."""
    if (why := why_hollow(obj)) is not None:
        told, remedy = why
        raise UnsupportedError(told, remedy=remedy)


def is_hollow(obj: Any) -> bool:
    """Say whether an object is known to hold no tensors."""
    return why_hollow(obj) is not None
