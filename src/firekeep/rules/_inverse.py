r"""Renames turned round, by their form alone: `^a\.(\d+)\.=>b.$1.` becomes `^b\.(\d+)\.=>a.${1}.`.

What can be turned round is literal text with simple groups in it, whose replacement has every group once. A pattern is refused where
its inverse could read one name in two ways, or where its form says less than it matches.
"""

from __future__ import annotations

import re
from dataclasses import dataclass

from firekeep.rules._templates import Piece, escape_template

_GROUP = re.compile(r"\((?:\?P<\w+>|(?!\?))(?P<body>(?:\\.|\[\^?\]?(?:\\.|[^\]\\])*\]|[^()\[\]\\])*)\)", re.DOTALL)
_ATOM = re.compile(
    r"(?P<atom>\\[dDwWsS]|\.|\[\^?(?:\\.|[^\]\\])+\])(?P<many>[*+?]|\{\d+(?:,\d*)?\})?(?P<lazy>\?)?", re.DOTALL
)
_FIXED = re.compile(r"(?:\{\d+\})?")
_META = set(".*+?{[|)^$")


class OneWayError(Exception):
    """Why a rename cannot be turned round; never leaves the family."""


@dataclass(frozen=True, slots=True)
class _Group:
    """A group that takes part in an inverse: a run of one kind of letter, or one of several texts."""

    body: str
    atom: re.Pattern[str] | None = None
    fixed: bool = False
    lazy: bool = False
    choices: tuple[str, ...] = ()

    def ends_before(self, letter: str) -> bool:
        """Say whether it cannot run on into this letter."""
        return self.fixed or (self.atom is not None and self.atom.fullmatch(letter) is None)

    def is_plain(self, *, backwards: bool) -> bool:
        """Say whether it is known by itself where it ends, read forwards, or where it starts, read backwards."""
        texts = [text[::-1] if backwards else text for text in self.choices]
        alike = any(a is not b and b.startswith(a) for a in texts for b in texts)
        return self.fixed or (bool(texts) and not alike)


_Token = str | _Group


@dataclass(frozen=True, slots=True)
class _Form:
    """A pattern as text and groups in a row."""

    tokens: tuple[_Token, ...]
    at_start: bool
    at_end: bool


def invert(pattern: re.Pattern[str], pieces: tuple[Piece, ...]) -> tuple[str, str]:
    """Give pattern and replacement of the inverse; raises `OneWayError` saying why there is none."""
    if pattern.flags != re.compile("").flags:
        raise OneWayError("its pattern has flags")
    form = _read(pattern.pattern)
    groups = [token for token in form.tokens if isinstance(token, _Group)]
    used = [piece for piece in pieces if isinstance(piece, int)]
    if 0 in used:
        raise OneWayError("its replacement has the whole match in it")
    if sorted(used) != list(range(1, len(groups) + 1)):
        raise OneWayError("its replacement has not every group of the pattern once")
    back = _Form(
        tuple(piece if isinstance(piece, str) else groups[piece - 1] for piece in pieces), form.at_start, form.at_end
    )
    _require_one_reading(back, form)
    return _write_pattern(back), _write_replacement(form, used)


def _read(text: str) -> _Form:
    at_start = text.startswith(("^", "\\A"))
    place = (1 if text[0] == "^" else 2) if at_start else 0
    tokens: list[_Token] = []
    literal = ""
    at_end = False
    while place < len(text):
        if text[place:] in ("$", "\\Z"):
            at_end = True
            break
        if text[place] == "(":
            match = _GROUP.match(text, place)
            if match is None or text[match.end() : match.end() + 1] in ("*", "+", "?", "{"):
                raise OneWayError(f"its pattern has {text[place:]!r}, which is no simple group")
            tokens += [literal] if literal else []
            literal = ""
            tokens.append(_group(match["body"]))
            place = match.end()
            continue
        letter, place = _letter(text, place)
        literal += letter
    tokens += [literal] if literal else []
    return _Form(tuple(tokens), at_start, at_end)


def _letter(text: str, place: int) -> tuple[str, int]:
    letter = text[place]
    if letter == "\\":
        letter = text[place + 1]
        if letter.isalnum():
            raise OneWayError(f"its pattern has '\\{letter}' outside a group")
        return letter, place + 2
    if letter in _META:
        raise OneWayError(f"its pattern has {letter!r} outside a group")
    return letter, place + 1


def _group(body: str) -> _Group:
    match = _ATOM.fullmatch(body)
    if match is not None:
        many = match["many"] or ""
        return _Group(
            body, re.compile(match["atom"], re.DOTALL), _FIXED.fullmatch(many) is not None, match["lazy"] is not None
        )
    choices = []
    for text in body.split("|"):
        literal, place = "", 0
        while place < len(text):
            letter, place = _letter(text, place)
            literal += letter
        choices.append(literal)
    if not all(choices):
        raise OneWayError(f"its group ({body}) may be empty")
    return _Group(body, choices=tuple(choices))


def _require_one_reading(back: _Form, forth: _Form) -> None:
    """Refuse an inverse that could take a name apart in another way than the rename put it together."""
    tokens = back.tokens
    whole = back.at_start and back.at_end
    if not (back.at_start or back.at_end or any(isinstance(token, str) for token in tokens)):
        raise OneWayError("nothing of its own is left in the new name by which it could be found again")
    if not whole and any(isinstance(token, _Group) and token.lazy for token in tokens):
        raise OneWayError("its pattern takes as little as it can, and is not anchored at both ends")
    ahead = _read_until(tokens, back, forth, backwards=False)
    if ahead == len(tokens):
        return
    behind = _read_until(tokens[::-1], back, forth, backwards=True) if back.at_end else 0
    if back.at_start and ahead + behind >= len(tokens) - 1:
        return  # one group takes what is left between two ends that are known
    raise OneWayError(f"the new name could be read in several ways at the group ({_body(tokens[ahead])})")


def _read_until(tokens: tuple[_Token, ...], back: _Form, forth: _Form, *, backwards: bool) -> int:
    """Count the tokens from one end whose extent is certain."""
    for place, token in enumerate(tokens):
        if isinstance(token, str) or token.is_plain(backwards=backwards):
            continue
        follower = tokens[place + 1] if place + 1 < len(tokens) else None
        if follower is None:
            # The last one: all that is left, or as far as it goes, which was so in the rename too.
            certain = back.at_start if backwards else back.at_end or forth.tokens[-1] is token
        else:
            certain = isinstance(follower, str) and token.ends_before(follower[-1] if backwards else follower[0])
        if not certain:
            return place
    return len(tokens)


def _body(token: _Token) -> str:
    return token if isinstance(token, str) else token.body


def _write_pattern(form: _Form) -> str:
    middle = "".join(re.escape(token) if isinstance(token, str) else f"({token.body})" for token in form.tokens)
    if not middle and not (form.at_start or form.at_end):
        raise OneWayError("it leaves nothing of what it found")
    return f"{'^' if form.at_start else ''}{middle}{'$' if form.at_end else ''}"


def _write_replacement(form: _Form, used: list[int]) -> str:
    parts = []
    number = 0
    for token in form.tokens:
        if isinstance(token, str):
            parts.append(escape_template(token))
        else:
            number += 1
            parts.append(f"${{{used.index(number) + 1}}}")
    return "".join(parts)
