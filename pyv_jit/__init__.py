"""LLVM for the core and for the NPU: text of functions becomes native code, which is kept from process to process."""
