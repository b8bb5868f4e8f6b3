"""Text of modules: the dialect `npu`, other dialects, the parser, and constants."""
