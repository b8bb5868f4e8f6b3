/* C = A B, 256x256x256, int8 to int32, in double-buffered tiles of 128x128x64 in the scratchpad. The core checks the
   product by Freivalds' test with three vectors and computes 64 elements directly. */
#include "expect.h"
#include "npu_driver.h"
#include "runtime.h"

NPU_ARG(0, seed, 1)
NPU_ARG(1, values, 1) /* set by the platform; 0: timing only, results are not checked */

enum { SIZE = 256, TILE_M = 128, TILE_N = 128, TILE_K = 64, STEPS = SIZE / TILE_K, BUFFERS = 2, VECTORS = 3, SAMPLES = 64 };

NPU_NEEDS_SPM(0x28000); /* BUFFERS times (A 8 KiB, B 8 KiB, C 64 KiB) */

#define BULK __attribute__((section(".noinit"), aligned(64)))
static int8_t a[SIZE][SIZE] BULK;
static int8_t b[SIZE][SIZE] BULK;
static int32_t c[SIZE][SIZE] BULK;

static uint32_t random_state;

static uint32_t random_word(void)
{
    random_state ^= random_state << 13;
    random_state ^= random_state >> 17;
    random_state ^= random_state << 5;
    return random_state;
}

static void fill_operands(void)
{
    for (uint32_t row = 0; row < SIZE; row++) {
        for (uint32_t column = 0; column < SIZE; column++) {
            uint32_t word = random_word();
            a[row][column] = (int8_t)word;
            b[row][column] = (int8_t)(word >> 8);
            c[row][column] = (int32_t)word;
        }
    }
}

static uint32_t types(uint32_t in0, uint32_t in1, uint32_t out)
{
    return NPU_DESC(TYPE_IN0, in0) | NPU_DESC(TYPE_IN1, in1) | NPU_DESC(TYPE_OUT, out);
}

static void load(const void *from, uint32_t to, uint32_t rows, uint32_t columns)
{
    (void)npu_submit(NPU_DESC(OPCODE, NPU_OPCODE_LOAD), 0, (uint32_t)(uintptr_t)from, 0, to, NPU_MN(rows, 0),
                     NPU_K(columns, SIZE), types(NPU_TYPE_INT8, NPU_TYPE_NONE, NPU_TYPE_INT8));
}

/* Submit all commands without waiting: the device orders commands whose operands overlap. */
static void multiply(void)
{
    const uint32_t a_tiles = boot->spm_base;
    const uint32_t b_tiles = a_tiles + BUFFERS * TILE_M * TILE_K;
    const uint32_t c_tiles = b_tiles + BUFFERS * TILE_K * TILE_N;
    uint32_t step = 0;
    for (uint32_t tile = 0; tile < SIZE / TILE_M * (SIZE / TILE_N); tile++) {
        uint32_t row = tile / (SIZE / TILE_N) * TILE_M;
        uint32_t column = tile % (SIZE / TILE_N) * TILE_N;
        uint32_t c_tile = c_tiles + tile % BUFFERS * TILE_M * TILE_N * sizeof(int32_t);
        for (uint32_t k = 0; k < STEPS; k++, step++) {
            uint32_t a_tile = a_tiles + step % BUFFERS * TILE_M * TILE_K;
            uint32_t b_tile = b_tiles + step % BUFFERS * TILE_K * TILE_N;
            load(&a[row][k * TILE_K], a_tile, TILE_M, TILE_K);
            load(&b[k * TILE_K][column], b_tile, TILE_K, TILE_N);
            (void)npu_submit(NPU_DESC(OPCODE, NPU_OPCODE_GEMM_T),
                             NPU_DESC(ACCUMULATE, k > 0) |
                                 NPU_DESC(FUNCTION, k + 1 < STEPS ? NPU_GEMM_HOLD : NPU_GEMM_WRITE),
                             a_tile, b_tile, c_tile, NPU_MN(TILE_M, TILE_N), NPU_K(TILE_K, 0),
                             types(NPU_TYPE_INT8, NPU_TYPE_INT8, NPU_TYPE_INT32));
        }
        (void)npu_submit(NPU_DESC(OPCODE, NPU_OPCODE_STORE), 0, c_tile, 0, (uint32_t)(uintptr_t)&c[row][column],
                         NPU_MN(TILE_M, 0), NPU_K(TILE_N, SIZE * sizeof(int32_t)),
                         types(NPU_TYPE_INT32, NPU_TYPE_NONE, NPU_TYPE_INT32));
    }
}

/* Compute y = M x modulo 2^32. */
#define MATRIX_TIMES_VECTOR(matrix, x, y)                       \
    for (uint32_t row = 0; row < SIZE; row++) {                 \
        uint32_t sum = 0;                                       \
        for (uint32_t column = 0; column < SIZE; column++) {    \
            sum += (uint32_t)(matrix)[row][column] * (x)[column]; \
        }                                                       \
        (y)[row] = sum;                                         \
    }

/* Check C x = A (B x) for a random x. A wrong C passes with a probability of about 2^-31. */
static uint32_t freivalds(void)
{
    static uint32_t x[SIZE], bx[SIZE], abx[SIZE], cx[SIZE];
    uint32_t wrong = 0;
    for (uint32_t i = 0; i < SIZE; i++) {
        x[i] = random_word();
    }
    MATRIX_TIMES_VECTOR(b, x, bx)
    MATRIX_TIMES_VECTOR(a, bx, abx)
    MATRIX_TIMES_VECTOR(c, x, cx)
    for (uint32_t i = 0; i < SIZE; i++) {
        wrong += abx[i] != cx[i];
    }
    return wrong;
}

static uint32_t samples(void)
{
    uint32_t wrong = 0;
    for (uint32_t i = 0; i < SAMPLES; i++) {
        uint32_t word = random_word();
        uint32_t row = word % SIZE, column = word / SIZE % SIZE;
        int32_t sum = 0;
        for (uint32_t k = 0; k < SIZE; k++) {
            sum += a[row][k] * b[k][column];
        }
        wrong += c[row][column] != sum;
    }
    return wrong;
}

int main(void)
{
    if (npu_open(NPU_MODE_AUTO) != 0) {
        print("no NPU\n");
        return 1;
    }
    random_state = arg_seed() != 0 ? arg_seed() : 1;
    fill_operands();
    uint32_t accepted = npu_counter(ACCEPTED), errors = npu_counter(ERRORS);
    uint32_t start = cycles();
    multiply();
    uint32_t submitted = cycles() - start;
    npu_drain();
    uint32_t done = cycles() - start;
    print("mode %s: %u commands, submitted in %u cycles, complete in %u\n", npu.tight ? "tight" : "loose",
          (unsigned)(npu_counter(ACCEPTED) - accepted), (unsigned)submitted, (unsigned)done);
    expect_equal("errors", npu_counter(ERRORS) - errors, 0);
    for (uint32_t i = 0; arg_values() != 0 && i < VECTORS; i++) {
        expect_equal("rows that fail Freivalds' test", freivalds(), 0);
    }
    if (arg_values() != 0) {
        expect_equal("wrong sampled elements", samples(), 0);
    }
    return expect_result("gemm");
}

NPU_NOISE("submitted in # cycles, complete in #");
