"""Random generators: those of the whole process, and those a user names."""

from __future__ import annotations

import random
import sys
from collections.abc import Callable, Iterator, Mapping
from contextlib import ExitStack, contextmanager
from functools import partial
from typing import Any

from firekeep.errors import FormatError, UnsupportedError


def take_rng(generators: Mapping[str, Any]) -> dict[str, Any]:
    """Take the states of Python's, NumPy's and PyTorch's own generators (the last where it is in use), and of generators by name."""
    import numpy as np

    state: dict[str, Any] = {"python": _of_python(random.getstate()), "numpy": np.random.get_state(legacy=False)}
    if "torch" in sys.modules:
        from firekeep.bridges import torch as bridge

        state["torch"] = bridge.rng_state()
    state["generators"] = {name: _take(name, one) for name, one in generators.items()}
    return state


_FAULTS = (TypeError, ValueError, KeyError, AttributeError, RuntimeError, IndexError)


def check_rng(state: Mapping[str, Any], generators: Mapping[str, Any]) -> None:
    """Raise `FormatError` naming a generator whose state is none of its own; nothing is changed."""
    attempts: dict[str, Callable[[], object]] = {}
    if "python" in state:
        attempts["python"] = lambda: random.Random().setstate(_to_python(state["python"]))  # noqa: S311 - no secret
    if "numpy" in state:
        attempts["numpy"] = lambda: _check_numpy(state["numpy"])
    if "torch" in state and "torch" in sys.modules:
        attempts["torch"] = lambda: _check_torch(state["torch"])
    for name, held in state.get("generators", {}).items():
        if name in generators:
            attempts[f"generators.{name}"] = partial(_check, name, generators[name], held)
    for name, attempt in attempts.items():
        try:
            attempt()
        except _FAULTS as error:
            raise FormatError(f"the state of the random generator {name!r} cannot be put back: {error}") from None


def _check_numpy(held: Mapping[str, Any]) -> None:
    import numpy as np

    live = np.random.get_state(legacy=False)["bit_generator"]
    if held["bit_generator"] != live:
        raise ValueError(f"it is one of {held['bit_generator']}, and the generator is {live}")
    if live == "MT19937":
        np.random.RandomState().set_state(dict(held))


def _check_torch(held: Mapping[str, Any]) -> None:
    from firekeep.bridges import torch as bridge

    if (fault := bridge.rng_fault(held)) is not None:
        raise ValueError(fault)


def put_rng(state: Mapping[str, Any], generators: Mapping[str, Any]) -> None:
    """Put all states back that have a generator."""
    import numpy as np

    if "python" in state:
        random.setstate(_to_python(state["python"]))
    if "numpy" in state:
        np.random.set_state(state["numpy"])
    for name, held in state.get("generators", {}).items():
        if name in generators:
            _put(generators[name], held)
    if "torch" in state and "torch" in sys.modules:
        from firekeep.bridges import torch as bridge

        bridge.set_rng_state(state["torch"])


def plan_rng(
    state: Mapping[str, Any], generators: Mapping[str, Any]
) -> tuple[tuple[str, ...], dict[str, str], dict[str, str]]:
    """Say which generators come back; which start as they are, and which states nobody takes, each with the reason."""
    fresh: dict[str, str] = {}
    dropped: dict[str, str] = {}
    restored = [name for name in ("python", "numpy") if name in state]
    if "torch" in state and "torch" in sys.modules:
        from firekeep.bridges import torch as bridge

        there = bridge.rng_state()
        restored.append("torch")
        then, now = len(state["torch"].get("cuda") or ()), bridge.cuda_devices()
        restored += [f"cuda:{device}" for device in range(min(then, now))]
        dropped |= {f"rng.cuda:{device}": "there is no such device now" for device in range(now, then)}
        unused = range(then, len(there.get("cuda") or ()))
        fresh |= {f"rng.cuda:{device}": "the device was not in use when the state was saved" for device in unused}
    elif "torch" in state:
        dropped["rng.torch"] = "PyTorch is not in use"
    elif "torch" in sys.modules:
        fresh["rng.torch"] = "PyTorch was not in use when the state was saved"
    held = state.get("generators", {})
    restored += [f"generators.{name}" for name in generators if name in held]
    why = "has no generator of this name"
    fresh |= {f"generators.{name}": f"the checkpoint {why}" for name in generators if name not in held}
    dropped |= {f"generators.{name}": f"the state {why}" for name in held if name not in generators}
    return tuple(restored), fresh, dropped


@contextmanager
def seeded(seed: int, *, generator: Any = None) -> Iterator[None]:
    """Draw from the generators of the whole process by a seed, and leave them as they were; one of PyTorch's own, too."""
    import numpy as np

    before, numbers = random.getstate(), np.random.get_state(legacy=False)
    with ExitStack() as stack:
        if "torch" in sys.modules:
            from firekeep.bridges import torch as bridge

            stack.enter_context(bridge.seeded(seed))
        if hasattr(generator, "manual_seed"):
            stack.callback(generator.set_state, generator.get_state())
            generator.manual_seed(seed)
        random.seed(seed)
        np.random.seed([seed & 0xFFFF_FFFF, seed >> 32 & 0xFFFF_FFFF])
        try:
            yield
        finally:
            random.setstate(before)
            np.random.set_state(numbers)


def unknown_generators(owners: Mapping[str, object], generators: Mapping[str, Any]) -> dict[str, str]:
    """Name the generators that objects have as attributes and nobody keeps, each with the reason."""
    import numpy as np

    shared = [random.random.__self__, np.random.random.__self__]  # type: ignore[attr-defined]
    if (torch := sys.modules.get("torch")) is not None:
        shared.append(torch.default_generator)
    known = {id(one) for one in (*shared, *generators.values())}
    known |= {id(one.bit_generator) for one in generators.values() if hasattr(one, "bit_generator")}
    found = {}
    for owner, one in owners.items():
        for name, value in getattr(one, "__dict__", {}).items():
            if _is_generator(value) and not known & {id(value), id(getattr(value, "bit_generator", value))}:
                kind = f"{type(value).__module__.partition('.')[0]}.{type(value).__name__}"
                found[f"{owner}.{name}" if owner else name] = (
                    f"it is a {kind} that the state was not given: name it in generators="
                )
    return found


def _is_generator(value: object) -> bool:
    numpy, torch = sys.modules.get("numpy.random"), sys.modules.get("torch")
    kinds = [
        random.Random,
        *((numpy.Generator, numpy.RandomState) if numpy else ()),
        *((torch.Generator,) if torch else ()),
    ]
    return isinstance(value, tuple(kinds))


def check_generators(generators: Mapping[str, Any]) -> None:
    """Refuse, naming it, what has no state that can be taken and put back."""
    for name, one in generators.items():
        _take(name, one)


def _of_python(state: Any) -> dict[str, Any]:
    import numpy as np

    version, words, gauss = state
    return {"version": version, "words": np.asarray(words, np.uint32), "gauss": gauss}


def _to_python(held: Mapping[str, Any]) -> Any:
    return held["version"], tuple(map(int, held["words"])), held["gauss"]


def _take(name: str, generator: Any) -> Any:
    if isinstance(generator, random.Random):
        return {"python": _of_python(generator.getstate())}
    if hasattr(generator, "bit_generator"):
        return {"numpy": generator.bit_generator.state}
    if hasattr(generator, "get_state") and hasattr(generator, "set_state"):
        state = generator.get_state(legacy=False) if hasattr(generator, "random_sample") else generator.get_state()
        return {"state": state}
    kind = type(generator)
    raise UnsupportedError(
        f"the generator {name!r} is {kind.__module__}.{kind.__qualname__}, whose state is not known",
        remedy="Give a numpy.random.Generator, a random.Random or a torch.Generator; or keep its state among the values.",
    )


def _check(name: str, generator: Any, held: Mapping[str, Any]) -> None:
    import numpy as np

    mine = _take(name, generator)
    if mine.keys() != held.keys():
        raise ValueError(f"it is one of {next(iter(held))}, and the generator is one of {next(iter(mine))}")
    if "numpy" in held:
        then, now = held["numpy"]["bit_generator"], mine["numpy"]["bit_generator"]
        if then != now:
            raise ValueError(f"it is one of {then}, and the generator is {now}")
        type(generator.bit_generator)().state = held["numpy"]
    elif "python" in held:
        random.Random().setstate(_to_python(held["python"]))  # noqa: S311 - no secret
    elif isinstance(mine["state"], Mapping):
        np.random.RandomState().set_state(held["state"])
    elif held["state"].shape != mine["state"].shape or held["state"].dtype != mine["state"].dtype:
        raise ValueError(f"it takes {held['state'].nbytes} bytes, and the generator's {mine['state'].nbytes}")


def _put(generator: Any, held: Mapping[str, Any]) -> None:
    if "python" in held:
        generator.setstate(_to_python(held["python"]))
    elif "numpy" in held:
        generator.bit_generator.state = held["numpy"]
    else:
        generator.set_state(held["state"])
