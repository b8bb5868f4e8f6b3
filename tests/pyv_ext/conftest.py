"""`each_engine` runs the tests of a module with every engine that there is."""

import engine_choice
import pytest

from pyv_ext.engines.python import engine as python_engine


@pytest.fixture(scope="module", params=("reference", "python", "fast"))
def each_engine(request, monkeypatch_module):
    """The rigs make this engine; translators translate everything at once instead of what turns out to be hot."""
    if request.param == "python":
        monkeypatch_module.setattr(python_engine, "PERIOD", 3)
        monkeypatch_module.setattr(python_engine, "HOT", 1)
    if request.param == "fast":
        pytest.importorskip("llvmlite", reason="needs llvmlite: pip install llvmlite")
        from pyv_ext.engines.fast import engine, native

        monkeypatch_module.setattr(engine, "WARM_UP", 0)
        monkeypatch_module.setattr(native, "HOT", 2)
        monkeypatch_module.setattr(native, "WARM", 1)
    monkeypatch_module.setattr(engine_choice, "NAME", request.param)


@pytest.fixture(scope="module")
def monkeypatch_module():
    with pytest.MonkeyPatch.context() as patch:
        yield patch
