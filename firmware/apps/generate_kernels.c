/* Variant of `generate` for decoders with kernels on the core (docs/firmware.md, "Kernels"). A separate program: other
   decoders are submitted without a check for kernels. */
#define NPU_KERNELS
#include "generate.c"
