/* C = A B on the NPU, checked by the core. The same program submits loose and tight: the driver looks what there is. */
#include "npu_driver.h"
#include "runtime.h"

NPU_ARG(0, n, 4) /* products; another number: pyv-npu run build/@NAME@.elf --arg n=10 */

enum { ROWS = 16, COLUMNS = 16, DEPTH = 32 };
enum { A_BYTES = ROWS * DEPTH, B_BYTES = DEPTH * COLUMNS, C_BYTES = ROWS * COLUMNS * 4 };
NPU_NEEDS_SPM(A_BYTES + B_BYTES + C_BYTES);

static int8_t a[ROWS][DEPTH];
static int8_t b[DEPTH][COLUMNS];
static int32_t c[ROWS][COLUMNS];

static void fill(void)
{
    for (int k = 0; k < DEPTH; k++) {
        for (int row = 0; row < ROWS; row++) {
            a[row][k] = (int8_t)(7 * row - 3 * k);
        }
        for (int column = 0; column < COLUMNS; column++) {
            b[k][column] = (int8_t)(5 * k + column);
        }
    }
}

/* Tiles lie one after the other in the scratchpad. Every call is a submission, whose latency is measured. */
static void multiply(void)
{
    const struct npu_tile a_tile = {boot->spm_base, ROWS, DEPTH, NPU_TYPE_INT8};
    const struct npu_tile b_tile = {a_tile.address + A_BYTES, DEPTH, COLUMNS, NPU_TYPE_INT8};
    const struct npu_tile c_tile = {b_tile.address + B_BYTES, ROWS, COLUMNS, NPU_TYPE_INT32};
    npu_load(a_tile, a, 0);
    npu_load(b_tile, b, 0);
    npu_gemm(c_tile, a_tile, b_tile);
    npu_store(c, c_tile, 0);
}

static int wrong_elements(void)
{
    int wrong = 0;
    for (int row = 0; row < ROWS; row++) {
        for (int column = 0; column < COLUMNS; column++) {
            int32_t sum = 0;
            for (int k = 0; k < DEPTH; k++) {
                sum += a[row][k] * b[k][column];
            }
            wrong += c[row][column] != sum;
        }
    }
    return wrong;
}

int main(void)
{
    if (npu_open(NPU_MODE_AUTO) != 0) {
        print("no NPU\n");
        return 1;
    }
    fill();
    for (uint32_t i = 0; i < arg_n(); i++) {
        multiply();
    }
    npu_drain();
    int wrong = wrong_elements();
    print("%s: %u products, wrong elements: %d\n", npu.tight ? "tight" : "loose", (unsigned)arg_n(), wrong);
    return wrong != 0; /* the exit code of the run */
}
