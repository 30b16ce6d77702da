"""Files that other people's software wrote give the tensors the reference library reads from them."""

from __future__ import annotations

import hashlib
import json
import os
from pathlib import Path
from typing import Any

import pytest

from firekeep.dtypes import BY_TORCH
from firekeep.errors import FirekeepError
from firekeep.formats import Container, OpenOptions, open_path
from firekeep.formats.safetensors import open_container
from firekeep.sources import FileSource

CASES = Path(__file__).parents[2] / "data" / "cases"
TRUTHS = [
    truth
    for truth in map(json.loads, (CASES / "TRUTH.jsonl").read_text().splitlines())
    if truth["path"].endswith(".safetensors")
]
SHARDS = "safetensors/fluxml_shard/"


def require_tensors(container: Container, tensors: list[dict[str, Any]]) -> None:
    assert sorted(container.entries) == sorted(tensor["name"] for tensor in tensors)
    for tensor in tensors:
        entry = container.entries[tensor["name"]]
        assert entry.dtype is BY_TORCH[tensor["dtype"]]
        assert list(entry.shape) == tensor["shape"]
        assert hashlib.sha256(entry.read()).hexdigest() == tensor["sha256"]


@pytest.mark.parametrize(
    "truth", [truth for truth in TRUTHS if truth["status"] == "loaded"], ids=lambda truth: truth["path"]
)
def test_a_file_gives_its_tensors_and_metadata(truth: dict[str, Any]) -> None:
    source = FileSource(CASES / "files" / truth["path"])
    container = open_container(source, OpenOptions())
    require_tensors(container, truth["tensors"])
    assert dict(container.metadata) == (truth["metadata"] or {})
    assert not container.ties
    assert not [finding for finding in container.check() if finding.severity != "note"]
    source.close()


CAUSES = {
    "hostile/rs_test_header_too_small.safetensors": "the file is empty",
    "hostile/rs_test_invalid_header_non_utf8.safetensors": "the header is not UTF-8: byte 0xff at byte 0 of 1",
    "hostile/rs_test_invalid_header_not_json.safetensors": "the header is not valid JSON",
    "hostile/rs_test_metadata_incomplete_buffer.safetensors": "34 bytes follow the last tensor, 'test'",
    "hostile/rs_test_metadata_incomplete_buffer_2.safetensors": "16 bytes of data are declared, 14 are there, 2 are missing",
    "hostile/rs_test_validation_overflow_2.safetensors": "needs 73786976294838206456 bytes, its data_offsets span 16",
    "hostile/safetensors_abuse_attempt_2_scaled2000.safetensors": "tensors 'weight_0' and 'weight_1' both claim bytes 0 to 16",
    "hostile/safetensors_abuse_attempt_3_scaled1000.safetensors": "tensors 'weight_0' and 'weight_1' both claim bytes 0 to 160000",
    "safetensors/las7_tiny_trailing.safetensors": "5 bytes follow the last tensor",
    "safetensors/sts_zero_len_file.safetensors": "the file is empty",
}


def test_every_refusal_has_a_cause_listed() -> None:
    assert {truth["path"] for truth in TRUTHS if truth["status"] == "refused"} == set(CAUSES)


@pytest.mark.parametrize("path", sorted(CAUSES))
def test_a_broken_file_is_refused_with_the_true_cause(path: str) -> None:
    source = FileSource(CASES / "files" / path)
    with pytest.raises(FirekeepError, match=CAUSES[path]):
        open_container(source, OpenOptions())
    source.close()


@pytest.mark.parametrize("name", ["", "model.safetensors.index.json"])
def test_a_sharded_set_gives_the_tensors_of_all_its_shards(name: str) -> None:
    found = open_path(os.fspath(CASES / "files" / SHARDS / name), OpenOptions())
    assert found is not None
    container, source = found
    tensors = [tensor for truth in TRUTHS if truth["path"].startswith(SHARDS) for tensor in truth["tensors"]]
    assert len(tensors) == 36
    require_tensors(container, tensors)
    assert container.variant == "sharded"
    for each in (source, *container.sources):
        each.close()
