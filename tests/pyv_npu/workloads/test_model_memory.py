"""What a run of a model holds while its outputs are judged."""

import gc
import weakref
from typing import Any

import pytest
from test_models_qdq import compiled, dense

from pyv_npu.config import Config
from pyv_npu.workloads import ia
from pyv_npu.workloads import model as model_module


@pytest.fixture
def without_collections() -> Any:
    """No collection that the code does not ask for."""
    gc.collect()
    gc.disable()
    yield
    gc.enable()


@pytest.mark.usefixtures("without_collections")
def test_the_device_is_gone_before_its_outputs_are_judged(monkeypatch: pytest.MonkeyPatch) -> None:
    """Where the weights are large; IA and the reference have memory of their own."""
    platforms: list[Any] = []
    alive: dict[str, bool] = {}
    run, observed, compare = model_module.run_program, ia.observed, model_module.compare

    def kept(*arguments: Any, after: Any, **more: Any) -> Any:
        def take(platform: Any) -> None:
            platforms.append(weakref.ref(platform))
            after(platform)

        return run(*arguments, after=take, **more)

    def asked(name: str, function: Any) -> Any:
        def called(*arguments: Any) -> Any:
            alive[name] = platforms[0]() is not None
            return function(*arguments)

        return called

    monkeypatch.setattr(model_module, "run_program", kept)
    monkeypatch.setattr(ia, "observed", asked("IA", observed))
    monkeypatch.setattr(model_module, "compare", asked("reference", compare))
    monkeypatch.setattr(model_module, "LARGE", 1)
    model = compiled(dense("MatMul", 2, "uint8", "int8", True))
    assert model_module.prepare_compiled(Config(), model).run(Config()).correct
    assert alive == {"IA": False, "reference": False}
