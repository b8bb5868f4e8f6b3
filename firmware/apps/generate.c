/* Token generation with a compiled decoder: commands of the prompt, then the same commands for each token, which read
   the position when they start. `pyv-npu run DECODER.onnx --generate N` builds the image (docs/llm.md). NPU_GENERATED:
   generated code submits the commands (docs/mlir.md). NPU_KERNELS: the core executes some of them. */
#include "kernels.h"
#include "npu_driver.h"
#include "runtime.h"

NPU_ARG(0, commands, 0)
NPU_ARG(1, descriptors, 0)
NPU_ARG(2, prefill, 0)
NPU_ARG(3, conversation, 0)
NPU_ARG(4, stride, 0)
#ifdef NPU_KERNELS
NPU_ARG(5, kernels, 0) /* number of commands that the core executes */
#endif

/* Data shared with the host, written by toolchain/decoders/generation.py. */
struct conversation {
    volatile uint32_t *position; /* position of the input token of a step */
    volatile uint32_t *id; /* input token of a step */
    const volatile uint32_t *first; /* output token of the prompt */
    const volatile uint32_t *next; /* output token of a step */
    uint32_t prompt, given, total; /* token counts: prompt; fixed in advance, prompt included; total */
    uint32_t tokens[];
};

/* Wait for the last command first: with TWAIT the hart is idle meanwhile. */
static void wait_for(int32_t last)
{
    if (last > 0) {
        (void)npu_wait(last);
    }
    npu_drain();
}

#ifdef NPU_GENERATED
#include "npu_generated.h"

NPU_GENERATED_FUNCTION(prompt)
NPU_GENERATED_FUNCTION(step)
#define submit_prompt(from, to) wait_for(generated_prompt(0, 0))
#define submit_step(c, t, from, to) wait_for(generated_step(t, (c)->tokens[t]))
#else
/* Submit commands and wait until they are complete. */
static void submit(const struct npu_descriptor *from, const struct npu_descriptor *to)
{
    int32_t last = 0;
    for (; from < to; from++) {
#ifdef NPU_KERNELS
        if (is_kernel(from)) {
            kernel_run((struct npu_descriptor *)from);
        }
#endif
        last = npu_submit_prebuilt(from);
    }
    wait_for(last);
}

#define submit_prompt(from, to) submit(from, to)

static void submit_step(struct conversation *c, uint32_t t, const struct npu_descriptor *from,
                        const struct npu_descriptor *to)
{
    *c->position = t;
    *c->id = c->tokens[t];
    submit(from, to);
}
#endif

static bool failed(uint32_t errors, uint32_t token)
{
    errors = npu_counter(ERRORS) - errors;
    if (errors != 0) {
        print("token %u: %u commands failed, the last with code %u\n", (unsigned)token, (unsigned)errors,
              (unsigned)npu_read(NPU_REG_ERROR_CODE));
    }
    return errors != 0;
}

int main(void)
{
    struct conversation *c = (struct conversation *)(uintptr_t)arg_conversation();
    if (c == NULL) {
        print("no decoder in this image: pyv-npu run DECODER.onnx --generate N makes one\n");
        return 0;
    }
    if (npu_open(NPU_MODE_AUTO) != 0) {
        print("no NPU\n");
        return 1;
    }
    const struct npu_descriptor *prompt = (const struct npu_descriptor *)(uintptr_t)arg_descriptors();
    /* Commands per token if each token has its own; 0: all tokens share the same commands. */
    const uint32_t stride = arg_stride();
    const struct npu_descriptor *step = prompt + arg_prefill();
    const struct npu_descriptor *end = stride == 0 ? prompt + arg_commands() : step + stride;
    const uint32_t errors = npu_counter(ERRORS);
    uint32_t start = cycles();
    submit_prompt(prompt, step);
    print("mode %s: prompt of %u tokens in %u cycles\n", npu.tight ? "tight" : "loose", (unsigned)c->prompt,
          (unsigned)(cycles() - start));
    if (failed(errors, 0)) {
        return 1;
    }
    uint32_t next = *c->first;
    for (uint32_t t = c->prompt; t < c->total; t++) {
        if (t >= c->given) {
            c->tokens[t] = next;
        }
        start = cycles();
        if (t + 1 < c->total) {
            submit_step(c, t, step, end);
            if (failed(errors, t)) {
                return 1;
            }
            next = *c->next;
            step += stride;
            end += stride;
        }
        print("token %u: %u, %u cycles\n", (unsigned)t, (unsigned)c->tokens[t], (unsigned)(cycles() - start));
    }
    return 0;
}

NPU_NOISE("in # cycles");
NPU_NOISE(", # cycles");
