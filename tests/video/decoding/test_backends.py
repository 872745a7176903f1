from __future__ import annotations

import sys

import av
import pytest

from gear_data.errors import MissingExtraError
from gear_data.video.decoding import torchcodec
from gear_data.video.decoding.backends import decoder_version


def test_the_version_names_the_library() -> None:
    assert decoder_version("auto") == decoder_version("pyav")
    assert decoder_version("pyav").startswith(f"pyav {av.__version__} (libavcodec ")


def test_a_library_that_does_not_load_is_an_error_with_the_reason(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setitem(sys.modules, "torchcodec", None)
    torchcodec._torchcodec.cache_clear()
    with pytest.raises(MissingExtraError, match=r"torchcodec cannot be imported: .*\n.*backend='pyav'"):
        decoder_version("torchcodec")
    torchcodec._torchcodec.cache_clear()
