/* The program `generate` for a decoder of which some layers are kernels on the core (docs/firmware.md, "Kernels"). It is
   one of its own, so that decoders without them are submitted as fast as without the question. */
#define NPU_KERNELS
#include "generate.c"
