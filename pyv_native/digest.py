"""SHA-256 as Python's own C code computes it, which the standard library's `random` imports in the same way.

`hashlib` would load OpenSSL for it: that takes as long as hashing half a megabyte, and a warm start hashes a tenth.
"""

try:
    from _sha2 import sha256  # type: ignore[import-not-found]  # from Python 3.12 on
except ImportError:
    try:
        from _sha256 import sha256  # type: ignore[import-not-found]
    except ImportError:
        from hashlib import sha256

__all__ = ["sha256"]
