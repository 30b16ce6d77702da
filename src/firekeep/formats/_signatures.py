"""What a file is, in words, and the table of bytes that tell it."""

from __future__ import annotations

import shlex
from dataclasses import dataclass, field
from pathlib import Path, PurePath
from typing import NamedTuple

from firekeep.errors import FormatError
from firekeep.sources import Source

HEAD = 4096
"""Bytes at the start of a file that most tests look at."""

OTHER_FILE = "Give the file that holds the weights instead."
FETCH_AGAIN = "The download failed: fetch the file itself again."
COPY_AGAIN = "Fetch, copy or save the file again: the missing bytes are not in it."

DISTRIBUTED = (
    "The checkpoint is the whole folder, which firekeep does not read yet: "
    "`python -m torch.distributed.checkpoint.format_utils dcp_to_torch FOLDER OUT.pt` makes one file of it. "
    "That unpickles its .metadata: only for folders of your own."
)


@dataclass(frozen=True, slots=True, kw_only=True)
class Identity:
    """What a file turned out to be.

    `title` completes "this is ...". `format` names the member of the formats family that reads it, or None. `error` is set
    for a container so damaged that its contents cannot be told.
    """

    kind: str
    title: str
    format: str | None = None
    facts: tuple[tuple[str, str], ...] = ()
    next_step: str | None = None
    notes: tuple[str, ...] = ()
    error: FormatError | None = field(default=None, compare=False)


class Magic(NamedTuple):
    """Bytes at a fixed place that tell a kind; `{file}` and `{out}` in the next step stand for the path and a new one."""

    offset: int
    magic: bytes
    kind: str
    title: str
    next_step: str


MAGICS = (
    Magic(0, b"7z\xbc\xaf\x27\x1c", "7z", "a 7z archive", "Unpack it and open what is in it: `7z x {file}`."),
    Magic(0, b"Rar!\x1a\x07", "rar", "a RAR archive", "Unpack it and open what is in it: `unrar x {file}`."),
    Magic(0, b"\x28\xb5\x2f\xfd", "zstd", "a zstd-compressed file", "Unpack it: `zstd -dc {file} > {out}`."),
    Magic(0, b"\x04\x22\x4d\x18", "lz4", "an lz4-compressed file", "Unpack it: `lz4 -dc {file} > {out}`."),
    Magic(0, b"\x89PNG\r\n\x1a\n", "png", "a PNG image", OTHER_FILE),
    Magic(0, b"\xff\xd8\xff", "jpeg", "a JPEG image", OTHER_FILE),
    Magic(0, b"GIF8", "gif", "a GIF image", OTHER_FILE),
    Magic(8, b"WEBP", "webp", "a WebP image", OTHER_FILE),
    Magic(8, b"WAVEfmt", "wav", "a WAV sound file", OTHER_FILE),
    Magic(0, b"OggS", "ogg", "an Ogg sound file", OTHER_FILE),
    Magic(4, b"ftyp", "mp4", "an MP4 video or sound file", OTHER_FILE),
    Magic(0, b"%PDF-", "pdf", "a PDF document", OTHER_FILE),
    Magic(0, b"SQLite format 3\0", "sqlite", "an SQLite database", OTHER_FILE),
    Magic(0, b"\x7fELF", "elf", "a program or shared library (ELF)", OTHER_FILE),
    Magic(0, b"\0asm", "wasm", "a WebAssembly module", OTHER_FILE),
    Magic(0, b"PAR1", "parquet", "a Parquet table", "firekeep does not read it; `pyarrow.parquet.read_table` does."),
    Magic(0, b"ARROW1", "arrow", "an Arrow file", "firekeep does not read it; `pyarrow.ipc.open_file` does."),
    Magic(0, b"MATLAB 5.0 MAT-file", "mat", "a MATLAB file", "firekeep does not read it; `scipy.io.loadmat` does."),
    Magic(
        4, b"TFL3", "tflite", "a TensorFlow Lite model", "firekeep does not read it yet; `tf.lite.Interpreter` does."
    ),
    Magic(
        4, b"ORTM", "ort", "an ONNX Runtime model", "firekeep does not read it; `onnxruntime.InferenceSession` runs it."
    ),
    Magic(
        4,
        b"ET12",
        "executorch",
        "an ExecuTorch program",
        "Take the weights from the PyTorch model it was exported from.",
    ),
    Magic(0, b"lmgg", "ggml", "an old GGML file (unversioned)", "Convert it to GGUF with the llama.cpp of its time."),
    Magic(0, b"fmgg", "ggml", "an old GGML file (ggmf)", "Convert it to GGUF with the llama.cpp of its time."),
    Magic(0, b"tjgg", "ggml", "an old GGML file (ggjt)", "Convert it to GGUF with the llama.cpp of its time."),
    Magic(
        0, b"\xba\x16\x4f\x2f", "fasttext", "a fastText model", "firekeep does not read it; `fasttext.load_model` does."
    ),
    Magic(
        0,
        b"\x12\x01\0\0\0\0\0\0\0\0\0\0\0\0\0\0",
        "mxnet",
        "an MXNet parameter file",
        "firekeep does not read it; `mxnet.nd.load` does.",
    ),
    Magic(
        0,
        b"\x3a\x2a\xdb\x0c",
        "ocdbt",
        "a part of an Orbax (OCDBT) checkpoint",
        "The checkpoint is the whole folder: restore that with orbax.",
    ),
)


def match_magic(source: Source, head: bytes) -> Identity | None:
    """Look a head up in the table."""
    for offset, magic, kind, title, step in MAGICS:
        if head.startswith(magic, offset):
            return Identity(kind=kind, title=title, next_step=fill(step, source))
    return None


def fill(step: str, source: Source) -> str:
    """Put the file's own name, quoted for a shell, into a next step."""
    return step.replace("{file}", shell_name(source)).replace("{out}", shell_name(source, unpacked=True))


def shell_name(source: Source, *, unpacked: bool = False) -> str:
    """Give the path as a shell takes it, or the name for what is unpacked from it; FILE or OUT for bytes in memory."""
    if source.path is None:
        return "OUT" if unpacked else "FILE"
    path = source.path if not source.path.startswith("-") else f"./{source.path}"
    if unpacked:
        pure = PurePath(path)
        packed = pure.suffix.lower() in (".gz", ".tgz", ".bz2", ".xz", ".zst", ".lz4", ".z")
        bare = str(pure.with_suffix(""))
        path = bare if packed and not Path(bare).exists() else f"{path}.unpacked"
    return shlex.quote(path)


def count_bytes(size: int) -> str:
    """Say a size: "1 byte", "1,234 bytes"."""
    return f"{size:,} byte{'' if size == 1 else 's'}"
