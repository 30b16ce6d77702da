"""Records: a model, an optimizer or a schedule in a file of its own, as Burn keeps them."""

from firekeep.records._comparison import compare_optimizers, compare_schedulers, compare_with_model
from firekeep.records._describe import ParamDescription, RecordDescription, describe_record
from firekeep.records._module_methods import (
    Module,
    RecordMethods,
    cast_module,
    into_record,
    into_record_group,
    load_file,
    load_record,
    save_file,
    try_load_file,
    try_load_record,
)
from firekeep.records._module_record import ModuleRecord
from firekeep.records._optimizer_record import FieldStates, OptimizerRecord, OptimizerWarning
from firekeep.records._optimizer_report import OptimizerError, OptimizerReport
from firekeep.records._scheduler_record import LrSchedulerRecord
from firekeep.records._state import F32, I32, U32, FlatState, Host, StateError, UInt, flatten, unflatten

__all__ = [
    "F32",
    "I32",
    "U32",
    "FieldStates",
    "FlatState",
    "Host",
    "LrSchedulerRecord",
    "Module",
    "ModuleRecord",
    "OptimizerError",
    "OptimizerRecord",
    "OptimizerReport",
    "OptimizerWarning",
    "ParamDescription",
    "RecordDescription",
    "RecordMethods",
    "StateError",
    "UInt",
    "cast_module",
    "compare_optimizers",
    "compare_schedulers",
    "compare_with_model",
    "describe_record",
    "flatten",
    "into_record",
    "into_record_group",
    "load_file",
    "load_record",
    "save_file",
    "try_load_file",
    "try_load_record",
    "unflatten",
]
