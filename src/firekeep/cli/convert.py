"""`firekeep convert`: file to file, with filters, renames and casts."""

from __future__ import annotations

from typing import Any

import click

from firekeep.cli import _output, _reports
from firekeep.cli._errors import YES
from firekeep.cli._options import LAYOUTS, as_json_option, examples, rename_options, renames
from firekeep.cli._progress import progress_bar


class _Pair(click.ParamType[tuple[str, str]]):
    """A key and a value."""

    name = "KEY=VALUE"

    def convert(self, value: Any, param: click.Parameter | None, ctx: click.Context | None) -> tuple[str, str]:
        """Split at the first equals sign."""
        key, found, text = value.partition("=")
        if not found or not key:
            self.fail(f"{value!r} is not of the form {self.name}", param, ctx)
        return key, text


@click.command(
    "convert",
    short_help="Write the tensors of one file to another.",
    epilog=examples(
        "firekeep convert model.pt model.safetensors",
        "firekeep convert run.ckpt model.bpk --top-level-key state_dict --dry-run",
        r"firekeep convert a.pt b.safetensors --rename '^module\.=>' --dtype bf16",
        "firekeep convert whole-model.pt model.bpk --layout burn",
        "firekeep convert model.gguf model.safetensors --dequantize --dtype bf16",
        "firekeep convert big.pt out --max-shard-size 5GB",
    ),
)
@click.argument("src")
@click.argument("dst")
@click.option("--include", multiple=True, metavar="REGEX", help="Keep only tensors whose name matches. Repeatable.")
@click.option("--exclude", multiple=True, metavar="REGEX", help="Leave out tensors whose name matches. Repeatable.")
@rename_options
@click.option(
    "--layout",
    type=click.Choice(LAYOUTS),
    metavar="LAYOUT",
    help="Turn layers the way one has them: torch, burn, flax (NNX), linen, equinox, keras. Default: as they are.",
)
@click.option(
    "--like",
    metavar="FILE",
    help="A file in that layout that tells the layers; its names are compared with those after the renames. "
    "A PyTorch file of a whole model needs none.",
)
@click.option("--dtype", metavar="DTYPE", help="Cast floats: f32, f16, bf16, f64, f8_e4m3 ... Integers stay.")
@click.option(
    "--top-level-key",
    metavar="PATH",
    help="PyTorch: take what lies under this dotted path. Default: the part that is a model; '' takes all.",
)
@click.option("--metadata", multiple=True, type=_Pair(), metavar="KEY=VALUE", help="Add metadata. Repeatable.")
@click.option("--digest", is_flag=True, help="Record a checksum of every tensor in the metadata, for verify.")
@click.option(
    "--max-shard-size",
    metavar="SIZE",
    help="Split safetensors into files of at most SIZE (5GB); DST may be their folder, which is made.",
)
@click.option(
    "--ties",
    type=click.Choice(("keep", "expand")),
    default="keep",
    show_default=True,
    help="Tied tensors: store them once, or once under each name.",
)
@click.option("--dequantize", is_flag=True, help="GGUF: compute F32 values of tensors kept in quantized blocks.")
@click.option("--allow-trailing", is_flag=True, help="Take a safetensors file with bytes after its last tensor.")
@click.option("--dry-run", is_flag=True, help="Say what would be written, and write nothing.")
@click.option("--overwrite", is_flag=True, help="Replace DST if it exists.")
@click.option("--no-fsync", is_flag=True, help="Do not wait until the data are on the disk.")
@as_json_option
def command(
    *,
    src: str,
    dst: str,
    rename: tuple[str, ...],
    preset: tuple[str, ...],
    mapping: str | None,
    as_json: bool,
    no_fsync: bool,
    metadata: tuple[tuple[str, str], ...],
    **options: Any,
) -> int:
    """Write the tensors of SRC to DST, in the format that DST's suffix names: .bpk or .safetensors.

    Tensors are copied as they are, one at a time, so that memory does not limit the size of the file. Filters speak
    SRC's names and come before renames. DST appears whole or not at all. Where SRC has digests, what is copied is compared
    with them, and DST gets its own; the checksums of an archive are compared with --digest, and by `firekeep verify`.

    With --layout, weights are turned round and renamed as a framework has them ("flax" is NNX); where nothing tells what a
    tensor belongs to, or which way round it lies, that is refused.
    """
    from firekeep import api

    remapper = renames(rename=rename, preset=preset, mapping=mapping)
    with progress_bar(f"convert {dst}") as progress:
        report = api.convert(
            src,
            dst,
            rename=remapper,
            metadata=dict(metadata) or None,
            durable=not no_fsync,
            progress=progress,
            **options,
        )
    if as_json:
        _output.write_json(report.to_dict())
    else:
        _output.write_lines(_reports.told(report))
    return YES
