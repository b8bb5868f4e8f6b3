"""`each_engine` runs the tests of a module with every engine that there is, and with every form of native code."""

import engine_choice
import pytest
from native_forms import NATIVE_FORMS, Form

from pyv_ext.engines.persistent.cache_keys import CacheKeys


@pytest.fixture(scope="module", params=(Form("reference"), *NATIVE_FORMS), ids=str)
def each_engine(request, monkeypatch_module):
    """The rigs make this engine."""
    request.param.choose(monkeypatch_module)
    monkeypatch_module.setattr(engine_choice, "NAME", request.param.engine)


@pytest.fixture(scope="module")
def monkeypatch_module():
    with pytest.MonkeyPatch.context() as patch:
        yield patch


@pytest.fixture
def unkept(monkeypatch):
    """Native code has no cache key: other tests, in other processes too, would be given what is broken or made
    otherwise here."""
    monkeypatch.setattr(CacheKeys, "interpreter", lambda *_: "")
    monkeypatch.setattr(CacheKeys, "region", lambda *_: "")
