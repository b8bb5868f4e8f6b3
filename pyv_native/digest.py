"""SHA-256 of CPython's own C module, which the standard library's `random` imports in the same way.

`hashlib` would load OpenSSL, which takes as long as hashing half a megabyte; a warm start hashes a tenth of that.
"""

try:
    from _sha2 import sha256  # type: ignore[import-not-found]  # from Python 3.12 on
except ImportError:
    try:
        from _sha256 import sha256  # type: ignore[import-not-found]
    except ImportError:
        from hashlib import sha256

__all__ = ["sha256"]
