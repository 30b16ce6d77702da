"""States that go from one framework's optimizers to another's, or back into the one that they are of."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import replace
from typing import Any

from firekeep.bridges._states import OptimizerState, ParamState
from firekeep.entry import TensorEntry
from firekeep.errors import FormatError, UnsupportedError
from firekeep.records._families import family_named, family_of
from firekeep.records._moments import scaled
from firekeep.records._optimizer_read import Saved
from firekeep.records._stand_ins import as_number, number, put_back
from firekeep.wording import quote, some

OPTAX = "optax"
STEP = "step"
_BUFFER, _TRACE = "momentum_buffer", "TraceState.trace"
_COUNTS = ("ScaleByScheduleState.count", "InjectStatefulHyperparamsState.count", "step")
_MUON_COUNT = "MuonState.count"
_LONG_AGO = 1 << 24
"""A number of steps after which no power of a momentum is left that a first step is corrected by."""

_REASONS = {
    "NAdam": "optax's NAdam looks ahead by another formula than PyTorch's, and the same moments would step otherwise",
    "AMSGrad": "optax's AMSGrad keeps the largest of corrected squares, where PyTorch and Burn keep that of uncorrected ones",
    "Adafactor": "optax's Adafactor factors the two largest axes, and only from 128 on, where PyTorch and Burn factor the last two",
    "LBFGS": "optax's L-BFGS keeps a history for each parameter and a line search, PyTorch's and Burn's one flat history of all",
    "Adan": "nobody has compared optax's Adan with others",
    "several": "optax keeps several rules in one state, and other optimizers have one",
}

_LAMB = family_named("lamb")
_UNTOLD = (
    "the state of optax is taken for Adam's: without its transformation (tx=) nothing tells it from NAdam's and LAMB's, "
    "which other optimizers do not go on with"
)


def is_optax(base: str) -> bool:
    """Say whether a base names a rule of optax."""
    return base.partition(".")[0] == OPTAX


def why_not(saved: Saved, live: OptimizerState) -> str | None:
    """Say why a state cannot go to another framework's optimizer, or give None."""
    there, here = is_optax(saved.base), is_optax(live.base)
    if there == here:
        return None
    rules = [base.removeprefix(f"{OPTAX}.") for base in (saved.base, live.base)]
    for rule in rules:
        if rule in _REASONS:
            return _REASONS[rule]
    theirs, mine = family_named(saved.family), family_of(live.kind, live.base, ())
    if saved.kind is None or (theirs is not None and theirs is mine):
        return None
    why = f"its state is that of {told(saved.kind, saved.base)}, and the optimizer is {told(live.kind, live.base)}"
    lamb = _LAMB in (theirs, mine) and _is_untold(saved, live)
    return f"{why}, as far as a state of optax tells without its transformation: give that too, as tx=" if lamb else why


def _is_untold(saved: Saved, live: OptimizerState) -> bool:
    """Say whether one side is optax's Adam by its state alone, without the transformation, and the other of another framework."""
    if is_optax(saved.base) == is_optax(live.base):
        return False
    base, options = (
        (saved.base, options_of(saved)) if is_optax(saved.base) else (live.base, live.groups[0] if live.groups else {})
    )
    return base == f"{OPTAX}.Adam" and "b1" not in options


def told(kind: str, base: str) -> str:
    """Name an optimizer."""
    return f"{base} {kind.removeprefix(OPTAX).strip()}" if is_optax(base) else kind


def options_of(saved: Saved) -> Mapping[str, Any]:
    """Give the options of the first group of a record; {} where it does not say any."""
    if not saved.groups:
        return {}
    made = put_back(saved.groups[0], lambda _name: None)
    return made if isinstance(made, dict) else {}


def adapt(
    saved: Saved,
    live: OptimizerState,
    one: ParamState,
    state: Mapping[str, Any],
    changed: list[str],
    gaps: dict[str, None],
) -> dict[str, Any]:
    """Give the state of a parameter with the keys of the live optimizer, where one of the two sides is optax.

    `gaps` is told what only one of two states of optax has. Raises `UnsupportedError` for what has no place there, and `FormatError`
    for what is missing.
    """
    there, here = is_optax(saved.base), is_optax(live.base)
    if _is_untold(saved, live):
        _tell(changed, _UNTOLD)
    if not here:
        return _from_optax(saved, live, state, changed) if there else dict(state)
    if not there or (_BUFFER in state and _TRACE in one.state):
        state = _to_optax(saved, live, one, state, changed)
    return _fitted(one, state, changed, {} if not there else gaps, foreign=not there)


def for_burn(taken: OptimizerState) -> OptimizerState:
    """Give a state of optax the fields that Burn reads and optax has not, or has times something."""
    options = taken.groups[0] if taken.groups else {}
    if taken.base == "optax.Adagrad":  # a number that only counts where the rate decays
        return replace(taken, params=tuple(_with(one, {STEP: number(0.0)}) for one in taken.params))
    if taken.base == "optax.RMSprop" and any(_TRACE in one.state for one in taken.params):
        by = -1 / _rate(options, "this one")
        return replace(
            taken,
            params=tuple(
                _with(one, {_BUFFER: scaled(one.state[_TRACE], by=by)}, without=_TRACE) if _TRACE in one.state else one
                for one in taken.params
            ),
        )
    return taken


def _with(one: ParamState, more: Mapping[str, Any], *, without: str = "") -> ParamState:
    kept = {key: value for key, value in one.state.items() if key != without}
    return replace(one, state={**kept, **more} if kept else kept)


def _to_optax(
    saved: Saved, live: OptimizerState, one: ParamState, state: Mapping[str, Any], changed: list[str]
) -> dict[str, Any]:
    made = {key: value for key, value in state.items() if value is not None}
    theirs, mine = options_of(saved), live.groups[one.group]
    if live.base == "optax.RMSprop":
        _check_root(mine, changed)
        made.pop(STEP, None)
        if _BUFFER in made:
            made[_TRACE] = scaled(made.pop(_BUFFER), by=-_rate(mine, "this one"))
    elif live.base == "optax.Adagrad":
        made.pop(STEP, None)
        if theirs.get("lr_decay"):
            raise UnsupportedError(
                f"its rate decays by {theirs['lr_decay']} (lr_decay), and optax's Adagrad has no such"
            )
    elif "max_exp_avg_sq" in made:
        raise UnsupportedError(_REASONS["AMSGrad"])
    if STEP not in one.state:
        made.pop(STEP, None)
    return made


def _from_optax(saved: Saved, live: OptimizerState, state: Mapping[str, Any], changed: list[str]) -> dict[str, Any]:
    made = {key: value for key, value in state.items() if "." not in key}
    theirs = options_of(saved)
    beside = [key for key in state if "." in key]
    if saved.base == "optax.RMSprop":
        _check_root(theirs, changed)
        if _TRACE in state:
            beside.remove(_TRACE)
            made[_BUFFER] = scaled(state[_TRACE], by=-1 / _rate(theirs, "the saved one"))
    if (step := as_number(made.get(STEP))) is not None:
        made[STEP] = number(float(step)) if live.base else int(step)
    elif made and saved.base in ("optax.RMSprop", "optax.Adagrad"):
        made[STEP] = number(0.0)  # of no effect on the step, unless the rate of Adagrad decays
    if beside and made:
        _tell(changed, f"the optimizer has no place for {some(sorted(beside))}")
    return made


def _check_root(options: Mapping[str, Any], changed: list[str]) -> None:
    if options.get("eps_in_sqrt") is True:
        raise UnsupportedError(
            "optax's RMSprop adds its eps inside of the root, and PyTorch's and Burn's outside",
            remedy="Make it with eps_in_sqrt=False.",
        )
    if "eps_in_sqrt" not in options:
        _tell(
            changed,
            "nothing tells whether optax adds its eps inside of the root; outside (eps_in_sqrt=False) it steps alike",
        )


def _rate(options: Mapping[str, Any], which: str) -> float:
    rate = options.get("learning_rate")
    if not isinstance(rate, int | float) or not rate:
        raise UnsupportedError(
            f"optax keeps the momentum of RMSprop times the learning rate, and that of {which} is not told, or follows a schedule",
            remedy="Use a constant rate, and give the transformation too, as tx=.",
        )
    return float(rate)


def _fitted(
    one: ParamState, state: Mapping[str, Any], changed: list[str], gaps: dict[str, None], *, foreign: bool
) -> dict[str, Any]:
    """Choose what optax has a place for, and check that it is what lies there now."""
    wanted = one.state
    made: dict[str, Any] = {}
    for key, place in wanted.items():
        value = state.get(key)
        if value is None:
            if "." not in key:
                raise FormatError(f"optax needs a {key!r} of it, and the record has none")
            _tell(changed, f"the record has no {quote(key)}: what is there stays")
            gaps[key] = None
            continue
        if key == STEP:
            count = as_number(value)
            if count is None:
                raise FormatError(f"its {key!r} is a {type(value).__name__}, where a number is due")
            made[key] = number(int(count), place.dtype.name)
        elif not isinstance(value, TensorEntry) or value.shape != place.shape:
            shape = list(value.shape) if isinstance(value, TensorEntry) else type(value).__name__
            raise FormatError(f"its {key!r} is of shape {shape}, where {list(place.shape)} is due")
        elif value.require().kind != place.dtype.kind:
            raise FormatError(f"its {key!r} is {value.dtype}, and {place.dtype} is due")
        else:
            made[key] = value
            if value.dtype != place.dtype:
                _tell(changed, f"{quote(key)} was {value.dtype}, and is {place.dtype} now")
    beside = [key for key, value in state.items() if key not in wanted and key != STEP and value is not None]
    if beside and (foreign or not made):
        raise UnsupportedError(f"the record keeps {some(beside)} of it, and the state of optax has no place for it")
    if beside:
        _tell(changed, f"the optimizer has no place for {some(sorted(beside))}")
        gaps |= dict.fromkeys(sorted(beside))
    return made


def _tell(changed: list[str], what: str) -> None:
    if what not in changed:
        changed.append(what)


def one_count(
    live: OptimizerState, states: dict[str, dict[str, Any]], dropped: dict[str, str], changed: list[str]
) -> None:
    """Drop the states of parameters that have made different numbers of steps, where optax counts one for all of them."""
    if not is_optax(live.base):
        return
    for group in range(len(live.groups)):
        mine = [one for one in live.params if one.group == group and STEP in one.state]
        steps = {one.path: as_number(states[one.path].get(STEP)) for one in mine if one.path in states}
        if len(numbers := set(steps.values())) > 1:
            apart = ", ".join(
                f"{quote(next(path for path, step in steps.items() if step == n))} {n}" for n in list(numbers)[:3]
            )
            for path in steps:
                del states[path]
                dropped[path] = f"optax counts steps once for all, and the record has them apart: {apart}"
        elif numbers and (new := [one.path for one in mine if one.path not in states]):
            changed.append(
                f"optax counts steps once for all: {some(new)} {'starts' if len(new) == 1 else 'start'} at {numbers.pop()}, "
                "without the corrections of first steps"
            )


def plan_loose(
    saved: Saved,
    live: OptimizerState,
    states: Mapping[str, Mapping[str, Any]],
    changed: list[str],
    notes: list[str],
    gaps: dict[str, None],
) -> dict[str, TensorEntry]:
    """Give what optax keeps of no parameter (counts of schedules, numbers) by its place in the live state."""
    if not is_optax(live.base):
        return {}
    # where it is "step", it is the counter of a flax.nnx.Optimizer, which a state without one has no place for
    places, where = live.extra["loose"], live.extra["where"]
    if not is_optax(saved.base):
        return _counted(states, places, where, notes)
    held = put_back(saved.extra, saved.tensors.get)
    if not isinstance(held, dict) or not isinstance(held.get("loose"), dict) or not isinstance(held.get("where"), dict):
        raise FormatError("what the record says of the optimizer is no state of optax")
    pairs = _pairs(held["where"], where)
    given = {}
    for path, place in places.items():
        entry = held["loose"].get(pairs.get(path, ""))
        if entry is None:
            changed.append(f"{path} ({where[path]}) is not in the record, and stays as it is")
        elif not isinstance(entry, TensorEntry) or (entry.shape, entry.dtype) != (place.shape, place.dtype):
            changed.append(f"{path} ({where[path]}) was of another shape or dtype, and stays as it is")
        else:
            given[path] = entry
    gaps |= dict.fromkeys(path for path in places if path not in given and where[path] != STEP)
    unused = set(held["loose"]) - set(pairs.values())
    changed += [f"the optimizer has no place for {path} ({held['where'].get(path)})" for path in sorted(unused)]
    gaps |= dict.fromkeys(path for path in sorted(unused) if held["where"].get(path) != STEP)
    return given


def _pairs(theirs: Mapping[str, str], mine: Mapping[str, str]) -> dict[str, str]:
    """Map places of the live state to those of the saved one: the same, else the only one of its class and field."""
    pairs = {path: path for path, where in mine.items() if theirs.get(path) == where}
    open_mine = {path: where for path, where in mine.items() if path not in pairs}
    open_theirs = {path: where for path, where in theirs.items() if path not in pairs}
    for path, where in open_mine.items():
        same = [other for other, its in open_theirs.items() if its == where]
        if len(same) == 1 and list(open_mine.values()).count(where) == 1:
            pairs[path] = same[0]
    return pairs


def _counted(
    states: Mapping[str, Mapping[str, Any]],
    places: Mapping[str, TensorEntry],
    where: Mapping[str, str],
    notes: list[str],
) -> dict[str, TensorEntry]:
    """Set counts that other frameworks have in other places, such as schedules, by the steps that were made."""
    steps = {step for state in states.values() if (step := as_number(state.get(STEP))) is not None}
    given = {}
    for path, place in places.items():
        counts = place.shape == () and place.dtype is not None and place.require().kind in ("int", "uint")
        if not counts:
            continue
        if where[path] == _MUON_COUNT:  # others correct no first steps of Muon
            given[path] = number(_LONG_AGO, place.require().name)
        elif len(steps) == 1 and (where[path] in _COUNTS or ".hyperparams_states." in where[path]):
            given[path] = number(step := next(iter(steps)), place.require().name)
            notes.append(f"{path} is {step}, as many steps as were made")
        else:
            notes.append(f"{path} ({where[path]}) stays as it is")
    return given


def hollow(live: OptimizerState, states: Mapping[str, Any], loose: Mapping[str, Any]) -> list[str]:
    """List what a state of shapes only would be left without."""
    if not is_optax(live.base):
        return []
    found = [
        one.path
        for one in live.params
        if any(entry.problem is not None and key not in states.get(one.path, {}) for key, entry in one.state.items())
    ]
    return found + [
        path for path, entry in live.extra["loose"].items() if entry.problem is not None and path not in loose
    ]


def compare_options(saved: Saved, live: OptimizerState, changed: list[str]) -> None:
    """Tell options of optax that are not what they were: a state cannot set them."""
    theirs, mine = options_of(saved), live.groups[0] if live.groups else {}
    changed += [
        f"{key} was {theirs[key]}, and is {mine[key]}"
        for key in theirs
        if key in mine and isinstance(mine[key], bool | int | float) and theirs[key] != mine[key]
    ]
    if not (_is_told(theirs) and _is_told(mine)):
        return
    changed += [f"{key} was {theirs[key]}, and is in no transformation now" for key in theirs if key not in mine]
    changed += [f"{key} was in no transformation, and is {mine[key]} now" for key in mine if key not in theirs]


def _is_told(options: Mapping[str, Any]) -> bool:
    """Say whether options are those of a whole transformation: what a state tells by itself has no rate among it."""
    return "learning_rate" in options or "scheduled" in options
