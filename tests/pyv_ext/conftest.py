"""`each_engine` runs the tests of a module with every engine that there is."""

import engine_choice
import pytest


@pytest.fixture(scope="module", params=("reference", "fast"))
def each_engine(request, monkeypatch_module):
    """The rigs make this engine; translators translate everything at once instead of what turns out to be hot."""
    if request.param == "fast":
        from pyv_ext.engines.fast import engine, native

        monkeypatch_module.setattr(engine, "WARM_UP", 0)
        monkeypatch_module.setattr(native, "HOT", 2)
        monkeypatch_module.setattr(native, "WARM", 1)
    monkeypatch_module.setattr(engine_choice, "NAME", request.param)


@pytest.fixture(scope="module")
def monkeypatch_module():
    with pytest.MonkeyPatch.context() as patch:
        yield patch
