"""Secrets: nothing prints them, and JSON carries them."""

from __future__ import annotations

import copy
import logging
import pickle
import pprint
import traceback
from dataclasses import asdict, dataclass

import pytest

from gear_data.common.secret import Secret, decode_json, encode_json

TEXT = "5ecret-5ecret-5ecret"


@dataclass(frozen=True)
class Holder:
    name: str
    token: Secret | None = None


def test_nothing_prints_a_secret(caplog):
    secret = Secret(TEXT.encode())
    holder = Holder("n", secret)
    with caplog.at_level(logging.DEBUG):
        logging.getLogger("x").warning("%s %r %s", secret, secret, holder)
    shown = [repr(secret), str(secret), f"{secret}", f"{secret!r:>40}", "%s" % (secret,), pprint.pformat(holder)]  # noqa: UP031
    shown += [repr(asdict(holder)), repr(copy.deepcopy(holder)), repr([secret]), caplog.text, repr(vars(holder))]
    assert not [text for text in shown if "5ecret" in text]
    assert secret.reveal() == TEXT.encode()
    for dump in (pickle.dumps, copy.copy):
        with pytest.raises(TypeError, match="a secret cannot be pickled") as error:
            dump(secret)
        assert "5ecret" not in repr(error.value)


def test_json_carries_secrets():
    holder = Holder("n", Secret(TEXT.encode()))
    assert encode_json(holder).reveal() == b'{"name":"n","token":"' + TEXT.encode() + b'"}'
    assert decode_json(encode_json(holder), Holder) == holder
    assert decode_json(Secret(b'{"name":"n","token":null}'), Holder) == Holder("n")


@pytest.mark.parametrize("token", ["17", '"5ecret\\u00e9"', '["5ecret"]', '"5ecret'])
def test_malformed_json_is_not_shown(token):
    data = Secret(b'{"name":"n","token":' + token.encode() + b"}")
    del token
    with pytest.raises(ValueError) as error:
        decode_json(data, Holder)
    shown = traceback.TracebackException.from_exception(error.value, capture_locals=True)
    assert "5ecret" not in "".join(shown.format())
