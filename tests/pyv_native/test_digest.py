"""SHA-256 without OpenSSL."""

import hashlib
import subprocess
import sys

import pytest

from pyv_native.digest import sha256


@pytest.mark.parametrize("size", [0, 1, 55, 56, 64, 1000])
def test_it_is_that_of_the_standard_library(size: int) -> None:
    data = bytes(index * 7 & 0xFF for index in range(size))
    assert sha256(data).digest() == hashlib.sha256(data).digest()


def test_openssl_is_not_loaded() -> None:
    program = "import sys, pyv_native.digest; print(*sys.modules)"
    done = subprocess.run([sys.executable, "-c", program], capture_output=True, text=True, check=True, timeout=60)
    assert not {"hashlib", "_hashlib"} & set(done.stdout.split())
