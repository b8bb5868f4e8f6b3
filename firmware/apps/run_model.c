/* Submits the commands of a compiled model, as they lie in memory, and waits for them. `pyv-npu compile` makes an image of
   this program and a model; the arguments then say where the commands are. */
#include "npu_driver.h"
#include "runtime.h"

NPU_ARG(0, commands, 0)
NPU_ARG(1, descriptors, 0)

int main(void)
{
    const uint32_t count = arg_commands();
    const struct npu_descriptor *next = (const struct npu_descriptor *)(uintptr_t)arg_descriptors();
    if (count == 0) {
        print("no model in this image: pyv-npu compile MODEL.onnx -o DIR makes one\n");
        return 0;
    }
    if (npu_open(NPU_MODE_AUTO) != 0) {
        print("no NPU\n");
        return 1;
    }
    uint32_t errors = npu_counter(ERRORS);
    uint32_t start = cycles();
    for (uint32_t left = count; left > 0; left--, next++) {
        (void)npu_submit_prebuilt(next);
    }
    uint32_t submitted = cycles() - start;
    npu_drain();
    uint32_t done = cycles() - start;
    errors = npu_counter(ERRORS) - errors;
    print("mode %s: %u commands, submitted in %u cycles, complete in %u\n", npu.tight ? "tight" : "loose",
          (unsigned)count, (unsigned)submitted, (unsigned)done);
    if (errors != 0) {
        print("%u commands failed, the last with code %u\n", (unsigned)errors, (unsigned)npu_read(NPU_REG_ERROR_CODE));
        return 1;
    }
    return 0;
}
