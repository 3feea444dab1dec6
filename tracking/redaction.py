"""Redaction of secrets in all that leaves this machine: records, artifacts, definitions."""

from __future__ import annotations

import json
import re
from collections.abc import Iterable, Mapping
from typing import Any
from urllib.parse import quote, quote_plus, unquote

MASK = "***"
# A shorter value is a switch or a number, which other texts contain too.
MIN_CHARACTERS = 4
SWITCHES = frozenset({"auto", "false", "none", "null", "true"})
# Shortest text around a cut in which no secret is longer.
MIN_OVERLAP = 4_096
_NAME = (
    r"TOKEN(?!I)|PASSW|PASSPHRASE|SECRET|KEY|CREDENTIAL|COOKIE|(?<!BY)(?<!COM)PASS(?![A-Z])"
    r"|(?<![A-Z])(?:O?AUTH(?:ORIZATION)?|PAT|PW)(?![A-Z])|(?<=[A-Z_-])(?<!OLD)PWD(?![A-Z])"
)
# Part of a name whose value is a secret.
SECRET = re.compile(_NAME, re.IGNORECASE)
# Names that are followed by a secret in any text, not only in variables and options.
_PLAIN_NAME = (
    r"(?:token|passw(?:or)?d|passphrase|secret|credentials?|(?:api|access|private|secret)[_-]?key"
    r"|authorization)(?![a-z])"
)
_VALUE = r"\"[^\"\n]*\"?|'[^'\n]*'?|[^\s\"'`;|&)<>]+"
# An option with its value, a variable with its value, and `name: value` as in JSON and headers.
_NAMED = re.compile(
    rf"((?<![\w-])--?(?!no-)[\w.-]{{0,64}}?(?i:{_NAME})[\w.-]{{0,64}}(?:=|[\"']?,?[ \t]+(?!-))"
    rf"|\b[A-Z0-9_]{{0,64}}?(?:{_NAME})[A-Z0-9_]{{0,64}}="
    rf"|(?i:{_PLAIN_NAME})[\"']?[ \t]*[:=][ \t]*[\"']?(?i:(?:bearer|basic|token)[ \t]+)?)({_VALUE})"
)
# A password in an address, or a token in place of the user.
_USER = r"[^\s/:@\"']*:"
_ADDRESS = re.compile(rf"(https?://(?:{_USER})?|://{_USER})([^\s/\"']+)(?=@)")
# A text that has none of these in lower case has no such name, which takes less time to see.
_HINTS = ("token", "pass", "secret", "key", "cred", "cookie", "auth", "pw", "_pat", "-pat", "pat=")
_NUMBER = re.compile(r"[+-]?[\d.,]+(?:e[+-]?\d+)?", re.IGNORECASE)
_REFERENCE = re.compile(r"\"?\$(?:\w+|\{[^}]*\}|\(.*)\"?")


class Redaction:
    """Replacement of secrets by a mask.

    It has to see whole lines: a part of a secret is not recognized.

    Args:
        values: Texts to replace, with each of their lines, as they are and as in JSON or an
            address. Values that a text names as secrets are always replaced.

    Attributes:
        overlap: Number of characters that no secret exceeds.
    """

    def __init__(self, values: Iterable[str] = ()) -> None:
        lines = {
            line.strip()
            for value in values
            for line in (value, *value.splitlines(), *value.split("\\n"))
            if len(line.strip()) >= MIN_CHARACTERS
        }
        forms = {form for line in lines for form in _forms(line)}
        self._forms = sorted(forms, key=len, reverse=True)
        self.overlap = max([MIN_OVERLAP, *map(len, self._forms)])

    def __call__(self, text: str) -> str:
        for form in self._forms:
            if form in text:
                text = text.replace(form, MASK)
        if "://" in text:
            text = _ADDRESS.sub(rf"\1{MASK}", text)
        lowered = text.lower()
        return _NAMED.sub(_mask, text) if any(hint in lowered for hint in _HINTS) else text

    def all(self, values: Any) -> Any:
        """Return values of JSON or settings with all of their texts redacted, but not the keys."""
        if isinstance(values, str):
            return self(values)
        if isinstance(values, Mapping):
            return {key: self.all(value) for key, value in values.items()}
        if isinstance(values, list | tuple):
            return type(values)(map(self.all, values))
        return values


def secrets(variables: Mapping[str, str], *texts: str) -> list[str]:
    """Return the values that are never recorded.

    Args:
        variables: Of a process: values of those with the name of a secret, and what any of them
            contains.
        texts: Such as commands, which may contain passwords in addresses and options.
    """
    values = {text for name, text in variables.items() if SECRET.search(name)}
    for text in (*variables.values(), *texts):
        values |= {match[2] for match in _ADDRESS.finditer(text) if match[1].endswith(":")}
        values |= {match[2] for match in _NAMED.finditer(text) if _is_secret(match)}
    values |= {unquote(value) for value in values}
    stripped = {value.strip("\"' \n") for value in values}
    return sorted(
        value
        for value in stripped
        if len(value) >= MIN_CHARACTERS and value.lower() not in SWITCHES
    )


def _forms(line: str) -> set[str]:
    in_json = [json.dumps(line)[1:-1], json.dumps(line, ensure_ascii=False)[1:-1]]
    return {line, *in_json, repr(line)[1:-1], quote(line), quote(line, safe=""), quote_plus(line)}


def _mask(match: re.Match[str]) -> str:
    value = match[2].strip("\"'")
    return match[1] + match[2].replace(value, MASK) if value and _is_secret(match) else match[0]


def _is_secret(match: re.Match[str]) -> bool:
    """Return whether a named value is one: not a switch, a number or a variable of the shell."""
    value = match[2].strip("\"'")
    is_number = _NUMBER.fullmatch(value) and "pass" not in match[1].lower()
    return not (is_number or value.lower() in SWITCHES or _REFERENCE.fullmatch(match[2]))
