"""The doors: open, load, save, convert, and the checks beside them."""

from __future__ import annotations

import os
from collections.abc import Iterable, Mapping
from pathlib import Path
from typing import TYPE_CHECKING, Any

from firekeep.formats import OpenOptions
from firekeep.jobs import require_path, require_source
from firekeep.limits import DEFAULT_LIMITS, Limits
from firekeep.opened import OpenedFile, Readable, diagnose_file, open_file, scan_file

if TYPE_CHECKING:
    from firekeep.arrays import Array
    from firekeep.comparison import Comparison
    from firekeep.conversion import ConversionReport, DTypeLike
    from firekeep.formats._diagnose import Diagnosis
    from firekeep.formats.pytorch import ScanReport
    from firekeep.rules import KeyRemapper, Pattern, Rule
    from firekeep.saving import Id, Progress
    from firekeep.verification import VerificationReport


def open(
    source: Readable,
    *,
    top_level_key: str | None = None,
    allow_trailing: bool = False,
    limits: Limits = DEFAULT_LIMITS,
) -> OpenedFile:
    """Open a file of tensors, of any format, and read its table only.

    `source` is a path, bytes, a binary file object or an importlib resource; a directory or an index opens a sharded set.
    The format is told from the content. `top_level_key` shows what lies under a dotted path of a PyTorch file, without the prefix.
    Raises `WrongFormatError` for another kind of file, saying which, and `FormatError` for a damaged one.

    Example:
        >>> with firekeep.open("model.safetensors") as file:  # doctest: +SKIP
        ...     print(file.keys(), file.array("fc.weight").shape)
    """
    source = require_source(source, call="open")
    options = OpenOptions(limits=limits, top_level_key=top_level_key, allow_trailing=allow_trailing)
    return open_file(source, options)


def load_file(
    source: Readable,
    *,
    top_level_key: str | None = None,
    include: Pattern | Iterable[Pattern] = (),
    exclude: Pattern | Iterable[Pattern] = (),
    copy: bool = False,
    dequantize: bool = False,
    allow_trailing: bool = False,
    limits: Limits = DEFAULT_LIMITS,
) -> dict[str, Array]:
    """Give all tensors of a file as writable NumPy arrays, by name.

    The arrays are views of a private mapping of the file: nothing is read before it is looked at, and what is written to them never
    reaches the file. They go on to show the file as it was when another is saved over it; a file that is shortened in place under
    them ends the process, as with any mapping. `copy=True` reads all into memory at once, in which nothing of that can happen.

    All names of a PyTorch file are given, with their full paths, unless `top_level_key` names a part. `include` and `exclude` are
    regular expressions searched in these names. A name that the file ties to another gives the same array. `allow_trailing=True`
    takes a safetensors file with bytes after its last tensor. `dequantize=True` computes the float32 values of tensors that a GGUF
    file keeps in quantized blocks. Raises `UnsupportedError` naming every tensor of which no array can be made, unless it is left out.

    Example:
        >>> weights = firekeep.load_file("model.pt", exclude="num_batches_tracked")  # doctest: +SKIP
    """
    from firekeep import loading
    from firekeep.rules import PathFilter

    source = require_source(source, call="load_file")
    options = OpenOptions(
        limits=limits, top_level_key=top_level_key, allow_trailing=allow_trailing, dequantize=dequantize
    )
    return loading.load_file(source, options, chosen=PathFilter.of(include=include, exclude=exclude), copy=copy)


def dequantize(source: Readable, name: str, *, limits: Limits = DEFAULT_LIMITS) -> Array:
    """Give one tensor of a GGUF file as float32, unpacked if it is kept in quantised blocks.

    Raises `MissingExtraError` where the package that knows the blocks is not installed, and `TensorNotFoundError`.

    Example:
        >>> firekeep.dequantize("model.gguf", "blk.0.attn_q.weight")  # doctest: +SKIP
    """
    source = require_source(source, call="dequantize")
    with open_file(source, OpenOptions(limits=limits, dequantize=True)) as opened:
        return opened.array(name)


def save_file(
    tensors: Mapping[str, Any],
    path: str | os.PathLike[str],
    *,
    metadata: Mapping[str, str] | None = None,
    scalars: Mapping[str, Any] | None = None,
    param_ids: Mapping[str, Id] | None = None,
    format: str | None = None,
    ties: str = "keep",
    digest: bool = False,
    overwrite: bool = True,
    durable: bool = True,
    progress: Progress | None = None,
    limits: Limits = DEFAULT_LIMITS,
) -> Path:
    """Write tensors to a `.bpk` or `.safetensors` file, and give the path written.

    `tensors` maps names to NumPy, JAX or PyTorch arrays, to anything with `__array__` or DLPack, or to entries of an open file. Arrays
    of any strides and byte order are written in row-major, little-endian order. The suffix decides the format, unless `format` does.
    `metadata` is text by text. `scalars` (numbers beside the tensors) and `param_ids` (integers, or their 13-character text) are for
    `.bpk` only. Layouts are written as they are: a `.bpk` of weights in PyTorch's layout says so by
    `metadata={"firekeep.layout": "torch"}`.

    An array that stands under two names is stored once, and both names load; `ties="expand"` stores it twice. `digest=True` adds a
    checksum of each tensor for `verify`. The file appears whole or not at all, replacing an older one unless `overwrite=False`;
    `durable=False` does not wait for the disk. `progress` is called with the bytes done and the bytes in all.

    Raises `UnsupportedError` naming the tensor that the format cannot hold, `ExistsError`, `DiskFullError`.

    Example:
        >>> firekeep.save_file({"w": numpy.eye(3)}, "w.bpk", scalars={"step": 7})  # doctest: +SKIP
    """
    from firekeep import saving

    return saving.save_file(
        tensors,
        require_path(path, call="save_file"),
        metadata=metadata,
        scalars=scalars,
        param_ids=param_ids,
        format=format,
        ties=ties,
        digest=digest,
        overwrite=overwrite,
        durable=durable,
        progress=progress,
        limits=limits,
    )


def save_bytes(
    tensors: Mapping[str, Any],
    *,
    format: str,
    metadata: Mapping[str, str] | None = None,
    scalars: Mapping[str, Any] | None = None,
    param_ids: Mapping[str, Id] | None = None,
    ties: str = "keep",
    digest: bool = False,
    limits: Limits = DEFAULT_LIMITS,
) -> bytes:
    """Give the bytes of the file that `save_file` would write; `format` is "burnpack" or "safetensors".

    Example:
        >>> data = firekeep.save_bytes({"w": numpy.eye(3)}, format="safetensors")  # doctest: +SKIP
    """
    from firekeep import saving

    return saving.save_bytes(
        tensors,
        format=format,
        metadata=metadata,
        scalars=scalars,
        param_ids=param_ids,
        ties=ties,
        digest=digest,
        limits=limits,
    )


def convert(
    src: Readable,
    dst: str | os.PathLike[str],
    *,
    include: Pattern | Iterable[Pattern] = (),
    exclude: Pattern | Iterable[Pattern] = (),
    rename: Rule | Iterable[Rule] | Mapping[str, str] | KeyRemapper = (),
    dtype: DTypeLike | None = None,
    layout: str | None = None,
    like: Any = None,
    top_level_key: str | None = None,
    metadata: Mapping[str, str] | None = None,
    digest: bool = False,
    max_shard_size: int | str | None = None,
    ties: str = "keep",
    format: str | None = None,
    dequantize: bool = False,
    allow_trailing: bool = False,
    overwrite: bool = True,
    durable: bool = True,
    dry_run: bool = False,
    progress: Progress | None = None,
    limits: Limits = DEFAULT_LIMITS,
) -> ConversionReport:
    r"""Write the tensors of one file to another, one tensor at a time, and report all that was done to them.

    In this order: `include` and `exclude` (regular expressions, searched) choose by the source's names; floats are cast to `dtype`
    ("bf16", "f32" ..., or NumPy's, JAX's or PyTorch's own; integers stay), rounded to the nearest; `rename` rules
    ('PATTERN=>REPLACEMENT' or pairs; groups as `\1` or `$1`) change names, each seeing what the last one made. Two tensors of one
    name are refused.

    Of a PyTorch checkpoint in which one part is a model that part is taken, and the report counts what was left out;
    `top_level_key` names a part, "" takes all. The source's metadata is kept, `metadata` goes over it. What the new format cannot
    hold beside tensors is dropped and reported; a tensor it cannot hold is refused by name. Tensors keep their layout, which a file
    that would not be expected to have it names under the metadata key `firekeep.layout`. `layout` (such as "torch", "burn", "flax") gives
    them another, before floats are cast: what layers they belong to is told by a whole-model pickle, or by `like`, a model or a file
    in that layout with the same names. Without either it is refused. `rename` then sees the names of the new layout (`fc.weight` of
    Flax's `fc.kernel`; Linen's collections are off, but for rules that are found by them, which see them still), and `like` has those of
    after the renames, whether it is a model or a file. What a file in Burn's layout tells of its matrices (those of classes of one's own
    lie as PyTorch had them, linear layers may lie in columns) is heeded; squares of which nothing tells are refused.

    Tensors that a GGUF file keeps in quantized blocks are refused by name, since neither format has such; `dequantize=True` computes
    their float32 values first, which `dtype` may then narrow.

    A source with digests (`digest=True`) is compared with them as it is read, `DigestError` names the tensor that differs, and the new
    file gets its own. With `digest=True` the checksums inside a PyTorch zip archive are compared as well, else they are `verify`'s to
    check. A source without tensors is refused.

    `max_shard_size` ("5GB") writes a set of files with an index, into a folder or beside `dst`. A file may be converted onto itself.
    `dry_run=True` plans all of it, and writes nothing.

    Example:
        >>> print(firekeep.convert("run.ckpt", "model.safetensors", dtype="bf16"))  # doctest: +SKIP
    """
    from firekeep import conversion
    from firekeep.layouts import check_layout
    from firekeep.rules import KeyRemapper, PathFilter, cast_target
    from firekeep.saving import check_metadata

    src = require_source(src, call="convert")
    dst = require_path(dst, call="convert")
    job = conversion.Job(
        chosen=PathFilter.of(include=include, exclude=exclude),
        remapper=KeyRemapper.of(rename),
        dtype=None if dtype is None else cast_target(conversion.name_dtype(dtype)),
        layout=None if layout is None else check_layout(layout),
        like=like,
        metadata=check_metadata(metadata or {}),
        digest=digest,
        max_shard_size=max_shard_size,
        ties=ties,
        format=format,
        overwrite=overwrite,
        durable=durable,
        dry_run=dry_run,
        progress=progress,
        limits=limits,
    )
    options = OpenOptions(
        limits=limits, top_level_key=top_level_key, allow_trailing=allow_trailing, dequantize=dequantize
    )
    return conversion.convert(src, dst, options, job)


def verify(
    source: Readable,
    *,
    values: bool = False,
    progress: Progress | None = None,
    limits: Limits = DEFAULT_LIMITS,
) -> VerificationReport:
    """Check that a file is whole: its structure, the checksums of archive members, and the digests that `digest=True` saved.

    A file of a step of a `CheckpointManager` is compared with the digest in the manifest beside it, too, where one was kept.

    What is wrong is a finding and never raised; `report.ok` says whether there was an error among them. With `values=True` every
    float tensor is read for NaN (an error), infinities (a warning) and nothing but zeros (a note). Raises `WrongFormatError` for a file
    that is of no format firekeep reads, and OSError for one that cannot be read.

    Example:
        >>> firekeep.verify("model.bpk", values=True).ok  # doctest: +SKIP
        True
    """
    from firekeep import verification

    source = require_source(source, call="verify")
    report = verification.verify(source, OpenOptions(limits=limits), values=values, progress=progress)
    if isinstance(source, str | os.PathLike) and ((path := Path(source)).parent / "manifest.json").is_file():
        from firekeep.checkpoint import _verify

        return _verify.with_manifest(report, path)
    return report


def diff(
    a: Readable,
    b: Readable,
    *,
    include: Pattern | Iterable[Pattern] = (),
    exclude: Pattern | Iterable[Pattern] = (),
    values: bool = True,
    progress: Progress | None = None,
    limits: Limits = DEFAULT_LIMITS,
) -> Comparison:
    """Compare two files of any formats, tensor by tensor: names, dtypes, shapes, and how far the numbers are apart.

    NaN at the same place is equal. `include` and `exclude` choose names in both; `values=False` reads no tensor. Of a checkpoint, the
    model alone is compared where more of its names agree with the other file so.

    Example:
        >>> print(firekeep.diff("before.pt", "after.safetensors"))  # doctest: +SKIP
    """
    from firekeep import comparison
    from firekeep.rules import PathFilter

    a, b = require_source(a, call="diff"), require_source(b, call="diff")
    chosen = PathFilter.of(include=include, exclude=exclude)
    return comparison.diff(a, b, OpenOptions(limits=limits), chosen=chosen, values=values, progress=progress)


def scan(source: Readable, *, limits: Limits = DEFAULT_LIMITS) -> ScanReport:
    """Say what the pickles in a file would import and call if they were loaded. They are not: nothing is imported or called.

    Any file may be given; one without pickles has nothing to say. `report.safe` says that all names are known to be harmless;
    `report.dangerous` lists those known to run code. Names that are neither are unknown: not safe, and not shown to be dangerous.

    Example:
        >>> print(firekeep.scan("downloaded.pt"))  # doctest: +SKIP
    """
    source = require_source(source, call="scan")
    return scan_file(source, OpenOptions(limits=limits))


def doctor(source: Readable, *, limits: Limits = DEFAULT_LIMITS) -> Diagnosis:
    """Say what any file is, what is wrong with it, and what to do next; damage is told and not raised.

    Example:
        >>> print(firekeep.doctor("weights.bin"))  # doctest: +SKIP
    """
    source = require_source(source, call="doctor")
    return diagnose_file(source, OpenOptions(limits=limits))
