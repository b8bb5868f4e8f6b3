/* Submits the commands of a compiled model from memory and waits for completion. `pyv-npu compile` builds an image
   of this program and a model; the arguments locate the commands. NPU_GENERATED: generated code submits them
   (docs/mlir.md). */
#include "kernels.h"
#include "npu_driver.h"
#include "runtime.h"

NPU_ARG(0, commands, 0)
NPU_ARG(1, descriptors, 0)
NPU_ARG(2, kernels, 0) /* number of commands that the core executes */

#ifdef NPU_GENERATED
#include "npu_generated.h"

NPU_GENERATED_FUNCTION(submit)
#define submit(next, count) ((void)(next), (void)(count), (void)generated_submit(0, 0))
#else
static void submit(struct npu_descriptor *next, uint32_t count)
{
    if (arg_kernels() != 0) {
        for (; count > 0; count--, next++) {
            if (is_kernel(next)) {
                kernel_run(next);
            }
            (void)npu_submit_prebuilt(next);
        }
        return;
    }
    for (uint32_t remaining = count; remaining > 0; remaining--, next++) {
        (void)npu_submit_prebuilt(next);
    }
}
#endif

int main(void)
{
    const uint32_t count = arg_commands();
    struct npu_descriptor *first = (struct npu_descriptor *)(uintptr_t)arg_descriptors();
    if (count == 0) {
        print("no model in this image: pyv-npu compile MODEL.onnx -o DIR makes one\n");
        return 0;
    }
    if (npu_open(NPU_MODE_AUTO) != 0) {
        print("no NPU\n");
        return 1;
    }
    uint32_t errors, start, submitted, done, repeats = 0;
    do { /* inputs and weights are unchanged, so after failed commands the model can run again (time-out) */
        errors = npu_counter(ERRORS);
        start = cycles();
        submit(first, count);
        submitted = cycles() - start;
        (void)npu_drain();
        done = cycles() - start;
        errors = npu_counter(ERRORS) - errors;
    } while (npu_repeat(repeats++, start, errors));
    print("mode %s: %u commands, submitted in %u cycles, complete in %u\n", npu.tight ? "tight" : "loose",
          (unsigned)count, (unsigned)submitted, (unsigned)done);
    if (errors != 0) {
        print("%u commands failed, the last with code %u\n", (unsigned)errors, (unsigned)npu_read(NPU_REG_ERROR_CODE));
        return 1;
    }
    return 0;
}

NPU_NOISE("submitted in # cycles, complete in #");
