"""Redaction of secrets, by the values of variables and by their places in a text."""

from __future__ import annotations

import json
import time
from urllib.parse import quote, quote_plus

import pytest

from tracking.redaction import MASK, Redaction, secrets

PRIVATE_KEY = '-----BEGIN KEY-----\nhu"sh/ä+1 x\nhush\\2 y\n-----END KEY-----\n'


@pytest.mark.parametrize(
    ("name", "value", "is_secret"),
    [
        ("DB_PASS", "hush", True),
        ("MYSQLPASS", "hush", True),
        ("MYSQL_PWD", "hush", True),
        ("SSH_PASSPHRASE", "hush", True),
        ("GH_AUTH", "hush", True),
        ("MY_PAT", "hush", True),
        ("HF_TOKEN", "hush", True),
        ("API_TOKENS", "hush", True),
        ("GITHUBTOKEN", "hush", True),
        ("MYKEY", "hush", True),
        ("PATH", "/usr/bin", False),
        ("PWD", "/home/me", False),
        ("OLDPWD", "/home/me", False),
        ("GIT_AUTHOR_NAME", "Dana", False),
        ("TOKENIZERS_PARALLELISM", "false", False),
        ("BYPASS_CACHE", "often", False),
        ("USE_AUTH", "true", False),
        ("PASS", "12", False),
    ],
)
def test_names_decide_which_values_are_secrets(name: str, value: str, is_secret: bool) -> None:
    assert secrets({name: value}) == ([value] if is_secret else [])


@pytest.mark.parametrize(
    ("variables", "texts", "values"),
    [
        ({"DATABASE_URL": "postgres://dana:hush%2F1@h/db"}, (), ["hush%2F1", "hush/1"]),
        ({"HTTP_PROXY": "http://dana@example.org/x"}, (), []),
        ({"STORE": "AccountName=x;AccountKey=hush"}, (), []),
        ({"STORE": "user=x;password=hush;"}, (), ["hush"]),
        ({}, ("train --token hush1 --key='hush 2' --seed 77",), ["hush 2", "hush1"]),
        ({}, ("env -- 'TOKEN=hush' train --token $TOKEN --max-tokens 4096",), ["hush"]),
    ],
)
def test_secrets_in_variables_and_commands(
    variables: dict[str, str], texts: tuple[str, ...], values: list[str]
) -> None:
    assert secrets(variables, *texts) == values


@pytest.mark.parametrize(
    ("text", "redacted"),
    [
        ("x --token hush --lr 0.1", "x --token *** --lr 0.1"),
        ("x --api-key='hu sh' -token=hush", "x --api-key='***' -token=***"),
        ("env -- TOKEN=hush x", "env -- TOKEN=*** x"),
        ("DB_PASS=hush MY_PAT=hush x", "DB_PASS=*** MY_PAT=*** x"),
        ("curl -H 'Authorization: Bearer hush' h", "curl -H 'Authorization: Bearer ***' h"),
        ("git clone https://dana:hush@h/x", "git clone https://dana:***@h/x"),
        ("git clone https://hush@h/x", "git clone https://***@h/x"),
        ("postgres://dana:hu@sh@h/x", "postgres://dana:***@h/x"),
        ("h/x?access_token=hush&page=1", "h/x?access_token=***&page=1"),
        ('{"token": "hush", "loss": 0.5}', '{"token": "***", "loss": 0.5}'),
        ("['--token', 'hush', '-v']", "['--token', '***', '-v']"),
        *(
            (text, text)
            for text in (
                "x --token $TOKEN --key ${KEY} --password=$(cat file)",
                "x --max-tokens 4096 --pad-token 0 --auth --lr 1",
                "forward pass: 12.5 ms, token=51234 tokens/s: 3.25 key=1e-5",
                "git+ssh://git@example.org/x ssh://git@h see https://example.org/a@b",
                "tokens = tokenizer(words)",
            )
        ),
    ],
)
def test_secrets_are_recognized_by_their_places(text: str, redacted: str) -> None:
    redact = Redaction()
    assert redact(text) == redacted
    assert redact(redacted) == redacted


@pytest.mark.parametrize(
    "form",
    [
        str,
        repr,
        json.dumps,
        quote,
        quote_plus,
        lambda text: quote(text, safe=""),
        lambda text: json.dumps(text, ensure_ascii=False),
        lambda text: "\n".join(f"    {line}" for line in text.splitlines()),
    ],
)
def test_lines_of_a_secret_are_replaced_in_every_form(form: object) -> None:
    text = Redaction([PRIVATE_KEY])(form(PRIVATE_KEY))  # type: ignore[operator]
    assert MASK in text
    assert "hu" not in text
    assert "BEGIN" not in text


def test_one_redaction_reaches_all_texts_of_a_value() -> None:
    values = {"hush": ["x hush", ("--token abc", 2.5)], "b": {"c": None}}
    redacted = {"hush": ["x ***", ("--token ***", 2.5)], "b": {"c": None}}
    assert Redaction(["hush"]).all(values) == redacted


@pytest.mark.parametrize(
    "part", ["--key", "key", "token ", "token=", '"token":"', "https://", "://a:", "A", "-key"]
)
def test_time_is_linear_in_the_length(part: str) -> None:
    """A quadratic search of these 200 kB takes minutes."""
    began = time.process_time()
    Redaction()(part * (200_000 // len(part)))
    assert time.process_time() - began < 10
