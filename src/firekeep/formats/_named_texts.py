"""Naming a text file: pointers, error pages, indexes and configurations that stand where weights were meant."""

from __future__ import annotations

import json
import re
from typing import Any

from firekeep.formats._signatures import FETCH_AGAIN, HEAD, OTHER_FILE, Identity, count_bytes, shell_name
from firekeep.sources import Source

_LONGEST_JSON = 8 << 20
_CONTROL = re.compile(rb"[\x00-\x08\x0e-\x1a\x1c-\x1f\x7f]")


def identify_text(source: Source, head: bytes) -> Identity | None:
    """Name a text by its first bytes; None for anything that is not text."""
    if head.startswith((b"\xff\xfe", b"\xfe\xff")) and len(head) % 2 == 0:
        return Identity(kind="text", title="a text file in UTF-16", next_step=OTHER_FILE)
    body = head.removeprefix(b"\xef\xbb\xbf").lstrip()
    if body.startswith((b"version https://git-lfs", b"version https://hawser")):
        return _name_pointer(head)
    lowered = body[:256].lower()
    if re.match(rb"<(!doctype html|html|head|body|title|meta|script)\b", lowered):
        return _name_html(head)
    if lowered.startswith((b"<?xml", b"<error")):
        return _name_xml(head)
    if body[:1] in (b"{", b"["):
        return _name_json(source, head)
    return None


def identify_plain_text(source: Source, head: bytes) -> Identity | None:
    """Name any other text, when all more telling tests have failed."""
    text = _decode(head)
    if text is None or not text.strip():
        return None
    if re.fullmatch(r"UEsDB[A-Za-z0-9+/\r\n=]*", text):
        return Identity(
            kind="base64",
            title="the base64 text of a zip archive, not the archive itself",
            next_step=f"Decode it: `base64 -d {shell_name(source)} > {shell_name(source, unpacked=True)}`.",
        )
    first = next(line for line in text.splitlines() if line.strip()).strip()
    said_no = re.search(
        r"not found|denied|forbidden|unauthori[sz]ed|invalid (username|credentials)|rate limit|error",
        text[:500],
        re.IGNORECASE,
    )
    return Identity(
        kind="text",
        title=f"a text file that starts with {_short(first)!r}",
        facts=(("first line", _short(first)),),
        next_step=FETCH_AGAIN if said_no and source.size < HEAD else OTHER_FILE,
    )


def _decode(head: bytes) -> str | None:
    """Read a head as UTF-8 text; one that the file goes on after may end inside a character."""
    if _CONTROL.search(head):
        return None
    for cut in range(4 if len(head) == HEAD else 1):
        try:
            return head[: len(head) - cut].decode("utf-8-sig")
        except UnicodeDecodeError:
            continue
    return None


def _name_pointer(head: bytes) -> Identity:
    size = re.search(rb"^size (\d{1,20})\s*$", head, re.MULTILINE)
    oid = re.search(rb"^oid (\S{1,100})\s*$", head, re.MULTILINE)
    real = f" for a file of {count_bytes(int(size[1]))}" if size else ""
    facts = [("real size", count_bytes(int(size[1])))] if size else []
    if oid:
        facts.append(("object", oid[1].decode(errors="replace")))
    return Identity(
        kind="lfs-pointer",
        title=f"a git-LFS pointer{real}, not the file itself",
        facts=tuple(facts),
        next_step="Fetch the file in its repository: `git lfs pull`.",
    )


def _name_html(head: bytes) -> Identity:
    import html

    found = re.search(rb"<title[^>]*>(.{0,400}?)</title>", head, re.DOTALL | re.IGNORECASE)
    title = _short(html.unescape(found[1].decode(errors="replace"))) if found else ""
    step = FETCH_AGAIN
    if b"huggingface.co" in head and b"/blob/" in head:
        step = f"{FETCH_AGAIN} The link must say /resolve/ where it says /blob/."
    return Identity(
        kind="html",
        title=f"an HTML page{f' ({title!r})' if title else ''}, not the file itself",
        facts=(("page title", title),) if title else (),
        next_step=step,
    )


def _name_xml(head: bytes) -> Identity:
    code = re.search(rb"<Code>([^<]{1,100})</Code>", head)
    message = re.search(rb"<Message>([^<]{1,300})</Message>", head)
    if code or message:
        said = _short(" ".join(part[1].decode(errors="replace") for part in (code, message) if part))
        return Identity(
            kind="xml-error",
            title=f"an error message in XML: {said!r}",
            facts=(("message", said),),
            next_step=FETCH_AGAIN,
        )
    return Identity(kind="xml", title="an XML file", next_step=OTHER_FILE)


def _name_json(source: Source, head: bytes) -> Identity | None:
    line, _, rest = head.partition(b"\n")
    if rest.startswith(b"\x93NUMPY"):
        return Identity(
            kind="equinox",
            title="an Equinox file: a line of JSON, then arrays without names",
            facts=(("first line", _short(line.decode(errors="replace"))),),
            next_step="firekeep does not read it yet; `equinox.tree_deserialise_leaves` does, with the model as the template.",
        )
    if _decode(head) is None:
        return None
    text = bytes(source.view(0, min(source.size, _LONGEST_JSON)))
    try:
        value = json.loads(text)
    except (ValueError, RecursionError):
        if b'"weight_map"' in text:
            value = {"weight_map": {}}
        elif re.match(rb"\s*(\{\s*(\"|\}|$)|\[\s*([\[{\"\d\]-]|$))", text):
            return Identity(
                kind="json", title="a JSON file that is cut short, damaged or very large", next_step=OTHER_FILE
            )
        else:
            return None
    return _name_json_value(value)


def _name_json_value(value: Any) -> Identity:
    keys = value.keys() if isinstance(value, dict) else frozenset[str]()
    if "weight_map" in keys:
        return _name_index(value)
    if not keys.isdisjoint(("weightsManifest", "modelTopology")):
        return Identity(
            kind="tfjs",
            title="a TensorFlow.js model description",
            next_step="Its weights lie in the .bin files beside it.",
        )
    for kind, title, telling in (
        ("notebook", "a Jupyter notebook", ("nbformat",)),
        ("tokenizer", "a tokenizer in JSON", ("added_tokens", "tokenizer_class", "bos_token")),
        (
            "config",
            "a model's configuration in JSON",
            ("model_type", "architectures", "_class_name", "peft_type", "torch_dtype"),
        ),
    ):
        if not keys.isdisjoint(telling):
            return Identity(
                kind=f"json-{kind}", title=title, next_step="The weights are another file, usually beside it."
            )
    said = next((value[key] for key in ("error", "message", "detail", "errors", "Message") if key in keys), None)
    if said is not None and len(keys) <= 8:
        message = _short(said if isinstance(said, str) else json.dumps(said))
        return Identity(
            kind="json-error",
            title=f"an error message in JSON: {message!r}",
            facts=(("message", message),),
            next_step=FETCH_AGAIN,
        )
    shown = ", ".join(repr(key[:40]) for key in list(keys)[:5])
    return Identity(
        kind="json", title="a JSON file", facts=(("first keys", shown),) if shown else (), next_step=OTHER_FILE
    )


def _name_index(value: dict[str, Any]) -> Identity:
    names = value["weight_map"]
    shards = sorted({str(shard) for shard in names.values()}) if isinstance(names, dict) else []
    metadata = value.get("metadata")
    total = metadata.get("total_size") if isinstance(metadata, dict) else None
    facts = [("tensors", f"{len(names):,}")] if shards else []
    facts += [("shards", f"{len(shards):,}"), ("first shard", repr(shards[0][:100]))] if shards else []
    facts += [("bytes of tensors", f"{total:,}")] if isinstance(total, int) else []
    for kind, suffixes in (("safetensors", ".safetensors"), ("pytorch", (".bin", ".ckpt", ".pt", ".pth"))):
        if shards and all(shard.endswith(suffixes) for shard in shards):
            return Identity(
                kind=f"{kind}-index",
                title=f"the index of a sharded {'PyTorch' if kind == 'pytorch' else kind} checkpoint in {len(shards)} files",
                facts=tuple(facts),
                next_step="Open it by its path, or the folder it is in: its shards are found beside it.",
            )
    return Identity(
        kind="sharded-index",
        title=f"the index of a sharded checkpoint in {len(shards)} files"
        if shards
        else "the index of a sharded checkpoint",
        facts=tuple(facts),
        next_step="The tensors lie in the files it names: open those, one by one.",
    )


def _short(text: str) -> str:
    text = " ".join(text.split())
    return text if len(text) <= 100 else text[:100] + "..."
