"""Checkpoints: which steps of a run there are, when one is saved, and how long it is kept."""

from __future__ import annotations

from firekeep.checkpoint._catalog import Catalog, Layout
from firekeep.checkpoint._doors import check_resume, prune_steps
from firekeep.checkpoint._errors import CheckpointWarning, DirectoryBusyError, NoStepError, StepExistsError
from firekeep.checkpoint._hints import hint
from firekeep.checkpoint._manager import CheckpointManager
from firekeep.checkpoint._reports import PruneReport, StepRestored, StepSaved
from firekeep.checkpoint._resume_report import PartCheck, ResumeReport
from firekeep.checkpoint._retention import (
    AllOf,
    AnyOf,
    KeepAll,
    KeepBest,
    KeepEvery,
    KeepLast,
    KeepYounger,
    Policy,
    doomed,
    remembered,
)
from firekeep.checkpoint._signals import SignalWatch
from firekeep.checkpoint._step import IncompleteStep, StepFile, StepInfo
from firekeep.checkpoint._store import scan_steps
from firekeep.checkpoint._verified import StepsVerified, StepVerified
from firekeep.checkpoint._verify import verify_steps

__all__ = [
    "AllOf",
    "AnyOf",
    "Catalog",
    "CheckpointManager",
    "CheckpointWarning",
    "DirectoryBusyError",
    "IncompleteStep",
    "KeepAll",
    "KeepBest",
    "KeepEvery",
    "KeepLast",
    "KeepYounger",
    "Layout",
    "NoStepError",
    "PartCheck",
    "Policy",
    "PruneReport",
    "ResumeReport",
    "SignalWatch",
    "StepExistsError",
    "StepFile",
    "StepInfo",
    "StepRestored",
    "StepSaved",
    "StepVerified",
    "StepsVerified",
    "check_resume",
    "doomed",
    "hint",
    "prune_steps",
    "remembered",
    "scan_steps",
    "verify_steps",
]
