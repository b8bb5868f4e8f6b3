import pytest
from riscv_tests import Executables


@pytest.fixture(scope="session")
def riscv_tests(tmp_path_factory: pytest.TempPathFactory) -> Executables:
    """The programs of riscv-tests, by name."""
    return Executables(tmp_path_factory.mktemp("riscv-tests"))
