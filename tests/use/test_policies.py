"""One policy for all models: the contract of loads, for each bridge and each door."""

from __future__ import annotations

from typing import Any

import firekeep
from contracts.nets import NativeNet, TorchNet, make_native, make_plain, make_torch
from contracts.policy_contract import PolicyContract


class TestTorchModels(PolicyContract):
    def make(self, seed: int) -> TorchNet:
        return make_torch(seed)


class TestNativeTrees(PolicyContract):
    def make(self, seed: int) -> NativeNet:
        return make_native(seed)


class TestTreesOfArrays(PolicyContract):
    def make(self, seed: int) -> Any:
        return make_plain(seed)


class TestApply(PolicyContract):
    """Of tensors that were collected, which have no file."""

    def make(self, seed: int) -> TorchNet:
        return make_torch(seed)

    def load(self, model: Any, data: bytes, **options: Any) -> firekeep.LoadReport:
        return firekeep.apply(model, firekeep.load_file(data), **options)


class TestStores(PolicyContract):
    """Whose words for the same are others."""

    def make(self, seed: int) -> NativeNet:
        return make_native(seed)

    def load(self, model: Any, data: bytes, *, dry_run: bool = False, **options: Any) -> firekeep.LoadReport:
        strict = options.pop("strict", True)
        said = {name: options.pop(f"allow_{name}", not strict) for name in ("missing", "unused", "mismatched")}
        store = firekeep.SafetensorsStore(
            data,
            allow_partial=said["missing"],
            allow_unused=said["unused"],
            validate=not said["mismatched"],
            **options,
        )
        return store.load_into(model, dry_run=dry_run)
