"""Judge firekeep on a folder of real files: MANIFEST.tsv (what they are), TRUTH.jsonl (what they must give), files/.

`python tools/cases.py FOLDER` prints one line a file and a summary; the exit code is 1 when anything is wrong. Each file is
opened in a process of its own, with bounded memory and time, and is then put through the command line.
"""

from __future__ import annotations

import argparse
import contextlib
import csv
import hashlib
import io
import json
import os
import re
import resource
import signal
import sys
import traceback
import zipfile
from collections import Counter
from collections.abc import Callable, Iterator, Mapping
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import numpy as np

import firekeep
from firekeep.cli import run
from firekeep.dtypes import dtype as dtype_row
from firekeep.entry import TensorEntry
from firekeep.wording import count

ADDRESS_SPACE = 6 << 30
WALL_SECONDS = 60
REFUSAL_SECONDS = 1.0
"""Processor time that a refusal, or an open that finds no tensors, may take."""
REFUSAL_BYTES = 200 << 20
COMMANDS = ("inspect", "verify", "doctor", "scan")

CAUSES: tuple[tuple[str, str], ...] = (
    # what the manifest says of a file              what the cause given by firekeep must contain
    (r"\bonnx\b", r"ONNX"),
    (r"\bhdf5\b", r"HDF5"),
    (r"\.keras zip", r"Keras"),
    (r"\bgguf\b", r"GGUF"),
    (r"\bgzip archive", r"gzip.*weights\.th"),
    (r"\b7z archive", r"7z"),
    (r"\bobject (npy|npz)\b|0-d object npy", r"pickled Python objects"),
    (r"\b(plain|deflated) npz", r"\.npz"),
    (r"\bplain npy", r"\.npy"),
    (r"\btorch7\b|Lua Torch7", r"Torch7"),
    (r"\btorch\.package\b", r"torch\.package"),
    (r"TorchServe \.mar: zip with an EMPTY model\.pt", r"TorchServe.*'model\.pt' is empty"),
    (r"Equinox file", r"Equinox"),
    (r"\(MessagePack\) record", r"Burn record in MessagePack"),
    (r"CTranslate2", r"CTranslate2"),
    (r"PNG magic", r"PNG"),
    (r"Stable-Baselines3 zip", r"Stable-Baselines3.*policy\.pth"),
    (r"archive version 1 ", r"TorchScript archive of PyTorch 1\.0"),
    (r"\bempty file\b|\|empty\|", r"empty file"),
    (r"empty zip", r"empty zip"),
    (r"trailing data after the tensors", r"5 bytes follow the last tensor"),
    (r"overlapping offsets|many tensors, scaled", r"both claim bytes"),
    (r"Err MetadataIncompleteBuffer", r"follow the last tensor|truncated"),
    (r"Err InvalidHeader$", r"not UTF-8"),
    (r"Err InvalidHeaderDeserialization", r"not valid JSON"),
    (r"Err ValidationOverflow", r"shape .* needs \d+ bytes"),
    (r"data/0 is 100 MB for a 16-byte", r"100000000 bytes.* 16"),
    (r"truncated pickle", r"cut short"),
    (r"memo KeyError", r"memo index"),
    (r"STACK_GLOBAL type confusion", r"STACK_GLOBAL"),
    (r"payload then trailing garbage", r"follow the pickle"),
    (r"central directory name differs", r"calls a member"),
    (r"yauzl_(absolute_path|invalid_characters)", r"calls a member"),
    (r"two entries of one name", r"two members named"),
    (r"bad CRC", r"checksum"),
    (r"entry count overflow", r"end records disagree"),
    (r"central directory offset wrong", r"does not fit before its end record"),
    (r"central-size-larger|wrong_entry_sizes", r"stored as it is, yet"),
    (r"zip64 integer overflow", r"18446744073709551615 bytes"),
    (r"multi-?_?disk", r"one part of several"),
    (r"^(?!.*AES).*\bencrypted\b|yauzl_strong_encryption", r"encrypted"),
    (r"yauzl_zip64_extended|yauzl_unexpected_EOF", r"zip64 field that does not hold it"),
    (r"yauzl_invalid_zip64_end", r"zip64 end record"),
    (r"yauzl_not_enough_bytes", r"2048576 bytes"),
    (r"yauzl_End_of_central.*truncated\.zip", r"zip archive is cut"),
    (r"not a zip\|", r"text file"),
    (r"\|tar\|path traversal|recursion\.tar", r"tar archive"),
    (r"\|zip\|(path traversal|CPython|libzip.*: (zip of a huge|AES|empty entry|gap|garbage))", r"zip archive"),
    (r"junk before the first entry|too_many_length|yauzl_Invalid_comment", r"zip archive"),
    (r"mobile TorchScript|TorchScript archive version|TorchScript with async", r"torchscript"),
    (r"unknown format", r"no format that firekeep knows|CTranslate2"),
)
"""Patterns over "NAME|FORMAT|SPECIAL|EXPECTED" of the manifest, and over the cause. Every one that fits must hold."""


@dataclass(frozen=True, slots=True)
class Case:
    """One file: where it is, what the manifest says of it, and what it must give."""

    name: str
    file: Path
    manifest: Mapping[str, str]
    truth: Mapping[str, Any] | None

    @property
    def tensors(self) -> list[dict[str, Any]]:
        """The tensors that must be read, whichever reference they come from."""
        return list((self.truth or {}).get("tensors") or [])

    @property
    def description(self) -> str:
        """What the table of causes looks at."""
        parts = (Path(self.name).name, *(self.manifest.get(key, "") for key in ("format", "special", "expected")))
        return "|".join(parts)


@dataclass(slots=True)
class Verdict:
    """What was seen, and what is wrong with it."""

    seen: str = ""
    faults: list[str] = field(default_factory=list)
    seconds: float = 0.0
    nbytes: int = 0


def read_cases(folder: Path) -> list[Case]:
    """Read the two tables of a folder."""
    with (folder / "MANIFEST.tsv").open(encoding="utf-8", newline="") as file:
        manifest = {row["path"]: row for row in csv.DictReader(file, delimiter="\t", quoting=csv.QUOTE_NONE)}
    with (folder / "TRUTH.jsonl").open(encoding="utf-8") as file:
        truths = {truth["path"]: truth for truth in map(json.loads, file)}
    names = list(dict.fromkeys([*manifest, *truths]))
    return [Case(name, folder / "files" / name, manifest.get(name, {}), truths.get(name)) for name in names]


def judge(case: Case) -> Verdict:
    """Open one file and compare it with its truth."""
    verdict = Verdict()
    try:
        opened = firekeep.open(case.file)
    except firekeep.FirekeepError as error:
        verdict.seen = f"{type(error).__name__}: {error.message} {error.remedy or ''}".rstrip()
        if case.tensors or (case.truth or {}).get("verdict", "").startswith("opens"):
            verdict.faults.append("refused, though the reference reads it")
        elif case.truth is not None:
            verdict.faults += judge_cause(case, verdict.seen, error)
        return verdict
    with opened:
        kind = f"{opened.format} {opened.variant}".rstrip()
        verdict.seen = f"{kind}, {count(len(opened), 'tensor')}"
        if case.tensors:
            verdict.faults += list(compare(opened, case))
        elif opened.format in PEERS:
            verdict.faults += list(compare_with_peer(opened, case))
        elif case.truth is not None:
            verdict.seen = "; ".join((f"{kind}, no tensors", *opened.notes))
            if len(opened) and "burn reads it" not in case.description:
                verdict.faults.append(f"{count(len(opened), 'tensor')} where none are: {opened.keys()[:3]}")
            verdict.faults += judge_cause(case, verdict.seen, None)
        verdict.faults += list(compare_beside(opened, case))
    return verdict


def judge_cause(case: Case, cause: str, error: firekeep.FirekeepError | None) -> list[str]:
    """Compare the cause given with what the manifest says of the file, where that can be told by words."""
    faults = [
        f"the cause does not say {expected!r}"
        for words, expected in CAUSES
        if re.search(words, case.description) and not re.search(expected, cause, re.DOTALL)
    ]
    if error is None and "never execute" in case.description and "would have run code" not in cause:
        faults.append("opened without a word about the code in it")
    unknown = isinstance(error, firekeep.WrongFormatError) and error.kind == "unknown"
    if unknown and case.manifest.get("format") not in ("?", "", None):
        faults.append("called unknown, though its format is known")
    return faults


def compare(opened: Any, case: Case) -> Iterator[str]:
    """Compare names, dtypes, shapes, bytes and parameter ids with the truth."""
    found = {name: describe(entry) for name, entry in opened.entries.items()}
    if not (case.truth or {}).get("names_binding", True):
        values = Counter(found.values())
        for tensor in case.tensors:
            if not values[expected_of(tensor)]:
                yield f"no tensor has the value of {tensor['name']!r}"
        return
    wanted = {tensor.get("state_name", tensor["name"]): tensor for tensor in case.tensors}
    if list(wanted) == [""] and len(found) == 1:  # a bare tensor has no name: any will do
        wanted = {next(iter(found)): wanted[""]}
    if missing := [name for name in wanted if name not in found]:
        yield f"{len(missing)} missing: {missing[:3]}"
    if extra := [name for name in found if name not in wanted]:
        yield f"{len(extra)} too many: {extra[:3]}"
    for name, tensor in wanted.items():
        if name in found and found[name] != expected_of(tensor):
            yield f"{name!r} is {found[name]}, expected {expected_of(tensor)}"
        if name in found and "param_id" in tensor and opened.entry(name).param_id != tensor["param_id"]:
            yield f"{name!r} has id {opened.entry(name).param_id!r}, expected {tensor['param_id']}"
        if name in found and found[name][0].startswith("Q"):
            continue
        if name in found and hashlib.sha256(np.asarray(opened[name]).tobytes()).hexdigest() != tensor["sha256"]:
            yield f"{name!r}: the array's bytes are not the tensor's"


def describe(entry: TensorEntry) -> tuple[str, tuple[int, ...], str]:
    """Give dtype, shape and the digest of the bytes; of quantized tensors, which are refused as arrays, the integers'."""
    name = "none" if entry.dtype is None else entry.dtype.name
    if entry.problem is not None and not name.startswith("Q"):
        return name, entry.shape, entry.problem
    view = entry.blob.view() if name.startswith("Q") else entry.read()
    return name, entry.shape, hashlib.sha256(view).hexdigest()


def expected_of(tensor: Mapping[str, Any]) -> tuple[str, tuple[int, ...], str]:
    """Give dtype, shape and digest as the truth has them; its dtypes are PyTorch's or Burn's."""
    return dtype_row(tensor["dtype"]).name, tuple(tensor["shape"]), tensor["sha256"]


def compare_with_peer(opened: Any, case: Case) -> Iterator[str]:
    """Compare values with what the format's own library reads, where the truth knows only what PyTorch makes of the file."""
    ours = Counter(hashlib.sha256(entry.read()).hexdigest() for entry in opened.entries.values() if not entry.problem)
    theirs = Counter(
        hashlib.sha256(np.ascontiguousarray(array, array.dtype.newbyteorder("<")).tobytes()).hexdigest()
        for array in PEERS[opened.format](case.file)
    )
    if ours != theirs:
        yield f"{(ours - theirs).total()} of {ours.total()} values are not among the {theirs.total()} of the format's own library"


def read_numpy(file: Path) -> list[np.ndarray]:
    """Give the arrays that NumPy reads without its pickles."""
    found = np.load(file, allow_pickle=False)
    return [found] if isinstance(found, np.ndarray) else list(found.values())


def read_hdf5(file: Path) -> list[np.ndarray]:
    """Give the arrays that h5py reads."""
    import h5py

    found: list[np.ndarray] = []
    packed = zipfile.is_zipfile(file)
    raw = zipfile.ZipFile(file).read("model.weights.h5") if packed else file.read_bytes()
    with h5py.File(io.BytesIO(raw)) as opened:
        opened.visititems(lambda _, held: found.append(held[()]) if isinstance(held, h5py.Dataset) else None)
    return [np.asarray(array) for array in found]


def read_gguf(file: Path) -> list[np.ndarray]:
    """Give the bytes of the tensors that the package gguf reads."""
    import gguf

    return [tensor.data for tensor in gguf.GGUFReader(file).tensors]


PEERS: Mapping[str, Callable[[Path], list[np.ndarray]]] = {
    "numpy": read_numpy,
    "hdf5": read_hdf5,
    "gguf": read_gguf,
}


def compare_beside(opened: Any, case: Case) -> Iterator[str]:
    """Compare metadata, and the NumPy arrays among the values of a pickle."""
    truth = case.truth or {}
    if "metadata" in truth and dict(opened.metadata) != (truth["metadata"] or {}):
        yield f"metadata {dict(opened.metadata)}, expected {truth['metadata']}"
    for array in truth.get("numpy_arrays") or []:
        value = opened.values()
        for step in filter(None, array["name"].split(".")):
            value = value[step] if isinstance(value, Mapping) else value[int(step)]
        if hashlib.sha256(np.asarray(value).tobytes()).hexdigest() != array["sha256"]:
            yield f"the NumPy array {array['name']!r} has another value"


def judge_commands(case: Case) -> list[str]:
    """Put a file through the commands: exit codes are the three there are, output is JSON, nothing is a traceback."""
    faults = []
    for command in COMMANDS:
        out, err = io.StringIO(), io.StringIO()
        with contextlib.redirect_stdout(out), contextlib.redirect_stderr(err):
            code = run([command, "--json", "--", str(case.file)])
        if code not in (0, 1, 2):
            faults.append(f"{command} gives exit code {code}")
        if "Traceback" in err.getvalue() or "defect of firekeep" in err.getvalue():
            faults.append(f"{command} shows a traceback: {err.getvalue().splitlines()[-2:]}")
        try:
            if out.getvalue() or code != 2:
                json.loads(out.getvalue())
        except ValueError:
            faults.append(f"{command} prints no JSON: {out.getvalue()[:60]!r}")
    return faults


def judge_bounded(case: Case, *, commands: bool) -> Verdict:
    """Judge in a forked child that can take neither much memory nor long."""
    reader, writer = os.pipe()
    child = os.fork()
    if not child:
        os.close(reader)
        try:
            answer = _judge_in_child(case, commands=commands)
        except BaseException:  # noqa: BLE001 - the parent tells it
            answer = Verdict("crashed", [traceback.format_exc(limit=-3).replace("\n", " | ")])
        with os.fdopen(writer, "w", encoding="utf-8", errors="backslashreplace") as pipe:
            json.dump([answer.seen, answer.faults, answer.seconds, answer.nbytes], pipe)
        os._exit(0)
    os.close(writer)
    with os.fdopen(reader, encoding="utf-8") as pipe:
        text = pipe.read()
    _, status = os.waitpid(child, 0)
    return Verdict(*json.loads(text)) if text else Verdict("no answer", [f"died (status {status:#x})"])


def _judge_in_child(case: Case, *, commands: bool) -> Verdict:
    signal.alarm(WALL_SECONDS)
    resource.setrlimit(resource.RLIMIT_AS, (ADDRESS_SPACE, ADDRESS_SPACE))
    before, peak_before = resource.getrusage(resource.RUSAGE_SELF), _peak_bytes()
    verdict = judge(case)
    after = resource.getrusage(resource.RUSAGE_SELF)
    verdict.seconds = after.ru_utime + after.ru_stime - before.ru_utime - before.ru_stime
    verdict.nbytes = _peak_bytes() - peak_before
    if not case.tensors and verdict.seconds > REFUSAL_SECONDS:
        verdict.faults.append(f"took {verdict.seconds:.1f} s, more than {REFUSAL_SECONDS}")
    if not case.tensors and verdict.nbytes > REFUSAL_BYTES:
        verdict.faults.append(f"took {verdict.nbytes >> 20} MiB, more than {REFUSAL_BYTES >> 20}")
    if commands:
        verdict.faults += judge_commands(case)
    return verdict


def _peak_bytes() -> int:
    return resource.getrusage(resource.RUSAGE_SELF).ru_maxrss << 10


def main() -> int:
    """Judge every file of a folder and print the table."""
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("folder", type=Path)
    parser.add_argument("--wrong", action="store_true", help="print only what is wrong")
    parser.add_argument("--no-commands", action="store_true", help="leave out the command line")
    parser.add_argument("--width", type=int, default=160, help="characters of a line (default 160)")
    options = parser.parse_args()
    tally = Counter[str]()
    for case in read_cases(options.folder):
        verdict = judge_bounded(case, commands=not options.no_commands)
        tally["wrong" if verdict.faults else "right"] += 1
        tally["tracebacks"] += sum("traceback" in fault for fault in verdict.faults)
        if verdict.faults or not options.wrong:
            mark = "WRONG" if verdict.faults else "right"
            cost = f"{verdict.seconds * 1000:6.0f} ms {verdict.nbytes >> 20:4d} MiB"
            line = f"{mark} {cost}  {case.name}: {verdict.seen}"
            print("".join(char if char.isprintable() else " " for char in line)[: options.width])
        for fault in verdict.faults:
            print(f"      {fault}")
    print(f"{tally['right']} right, {tally['wrong']} wrong, {tally['tracebacks']} tracebacks")
    return 1 if tally["wrong"] else 0


if __name__ == "__main__":
    sys.exit(main())
