/* Operators that no engine has: what they find decides where they read and how much they write. Their results have room
   for all that they could find, -1 behind what they do, and the number of rows beside it. */
#include "kernels.h"

#include "runtime.h"

enum { DIMENSIONS = 8 };

/* -- NON_ZERO ----------------------------------------------------------------------------------------------------- */

/* The places of a row's elements with a bit of `mask`, from `found` on; returns how many there are then. `at`: the
   place of the row; the last of them counts its elements. */
static inline __attribute__((always_inline)) uint32_t row_of(const void *row, uint32_t bytes, uint32_t mask,
                                                             uint32_t columns, const uint32_t *at, uint32_t rank,
                                                             int32_t *out, uint32_t room, uint32_t found)
{
    for (uint32_t column = 0; column < columns; column++) {
        uint32_t bits = bytes == 1   ? ((const uint8_t *)row)[column]
                        : bytes == 2 ? ((const uint16_t *)row)[column]
                                     : ((const uint32_t *)row)[column];
        if ((bits & mask) != 0) {
            int32_t *place = out + found++;
            for (uint32_t axis = 0; axis + 1 < rank; axis++, place += room) {
                *place = (int32_t)at[axis];
            }
            *place = (int32_t)column;
        }
    }
    return found;
}

/* Each dimension has a row of `room` places. */
static uint32_t non_zero(const struct npu_descriptor *d, const uint32_t *sizes)
{
    const uint8_t *in = (const uint8_t *)(uintptr_t)d->in0_addr;
    int32_t *out = (int32_t *)(uintptr_t)d->out_addr;
    const uint32_t type = d->quant & NPU_DESC_TYPE_IN0_MASK;
    uint32_t bytes = 4, mask = UINT32_MAX, rank = 0, rows = 1, found = 0, at[DIMENSIONS] = {0};
    if (type == NPU_TYPE_INT8 || type == NPU_TYPE_UINT8) {
        bytes = 1;
    } else if (type == NPU_TYPE_FP16 || type == NPU_TYPE_BF16) {
        bytes = 2;
    }
    if (type == NPU_TYPE_FP32 || bytes == 2) {
        mask = INT32_MAX >> (32 - 8 * bytes); /* -0 is 0 */
    }
    for (; rank < DIMENSIONS && sizes[rank] != 0; rank++) {
        rows *= sizes[rank];
    }
    const uint32_t columns = sizes[rank - 1], room = rows;
    for (rows = room / columns; rows > 0; rows--, in += columns * bytes) {
        found = bytes == 1   ? row_of(in, 1, mask, columns, at, rank, out, room, found)
                : bytes == 2 ? row_of(in, 2, mask, columns, at, rank, out, room, found)
                             : row_of(in, 4, mask, columns, at, rank, out, room, found);
        for (uint32_t axis = rank - 1; axis-- > 0 && ++at[axis] == sizes[axis];) {
            at[axis] = 0;
        }
    }
    for (uint32_t axis = 0; axis < rank; axis++, out += room) {
        for (uint32_t place = found; place < room; place++) {
            out[place] = -1;
        }
    }
    return found;
}

/* -- A heap of candidates ----------------------------------------------------------------------------------------- */

/* What could be selected; the first of two with the same key has the lower index. */
struct candidate {
    uint32_t key, index;
};

/* Numbers in the order of their values: no floats are compared where many are. */
static uint32_t key_of(uint32_t bits)
{
    if (bits == 0x80000000u) {
        bits = 0;
    }
    return bits ^ ((uint32_t)((int32_t)bits >> 31) | 0x80000000u);
}

static bool before(struct candidate a, struct candidate b)
{
    return a.key > b.key || (a.key == b.key && a.index < b.index);
}

/* Put the entry at `at` where it belongs: parents come before their children. */
static void sift(struct candidate *heap, uint32_t at, uint32_t count)
{
    const struct candidate moved = heap[at];
    for (uint32_t child; (child = 2 * at + 1) < count; at = child) {
        if (child + 1 < count && before(heap[child + 1], heap[child])) {
            child++;
        }
        if (!before(heap[child], moved)) {
            break;
        }
        heap[at] = heap[child];
    }
    heap[at] = moved;
}

/* The best one comes to the top. */
static void heapify(struct candidate *heap, uint32_t count)
{
    for (uint32_t at = count / 2; at-- > 0;) {
        sift(heap, at, count);
    }
}

/* The best one leaves the heap. */
static uint32_t best(struct candidate *heap, uint32_t left)
{
    const uint32_t index = heap[0].index;
    heap[0] = heap[left];
    sift(heap, 0, left);
    return index;
}

/* -- TOP_K -------------------------------------------------------------------------------------------------------- */

struct selection {
    uint32_t rows, columns, k, largest;
};

/* An element in the order of its type. */
static uint32_t element_key(const uint8_t *row, uint32_t column, uint32_t type)
{
    switch (type) {
    case NPU_TYPE_FP32:
        return key_of(((const uint32_t *)row)[column]);
    case NPU_TYPE_FP16:
    case NPU_TYPE_BF16:
        return key_of((uint32_t)((const uint16_t *)row)[column] << 16);
    case NPU_TYPE_INT32:
        return ((const uint32_t *)row)[column] ^ 0x80000000u;
    case NPU_TYPE_INT8:
        return (uint32_t)(int32_t)((const int8_t *)row)[column] ^ 0x80000000u;
    default:
        return row[column];
    }
}

/* Places in each row, the best first; the scratch memory holds the heap. */
static uint32_t top_k(const struct npu_descriptor *d, const struct selection *s, struct candidate *heap)
{
    const uint8_t *row = (const uint8_t *)(uintptr_t)d->in0_addr;
    int32_t *out = (int32_t *)(uintptr_t)d->out_addr;
    const uint32_t type = d->quant & NPU_DESC_TYPE_IN0_MASK, turned = s->largest != 0 ? 0 : UINT32_MAX;
    const uint32_t bytes = type == NPU_TYPE_FP32 || type == NPU_TYPE_INT32   ? 4
                           : type == NPU_TYPE_FP16 || type == NPU_TYPE_BF16 ? 2
                                                                            : 1;
    for (uint32_t rows = s->rows; rows > 0; rows--, row += s->columns * bytes) {
        uint32_t left = s->columns;
        for (uint32_t column = 0; column < left; column++) {
            heap[column] = (struct candidate){element_key(row, column, type) ^ turned, column};
        }
        heapify(heap, left);
        for (uint32_t found = 0; found < s->k; found++) {
            *out++ = (int32_t)best(heap, --left);
        }
    }
    return s->k;
}

/* -- NON_MAX_SUPPRESSION ------------------------------------------------------------------------------------------ */

union number {
    uint32_t bits;
    float value;
};

/* Corners, the lower ones first, and their keys: most boxes do not meet, which is seen without arithmetic of floats. */
struct box {
    union number y0, x0, y1, x1;
    uint32_t top, left, bottom, right;
};

struct suppression {
    uint32_t images, boxes, classes, most;
    union number overlap, least;
    uint32_t centres, zero;
};

static struct box box_at(const union number *four, bool centres)
{
    struct box box = {four[0], four[1], four[2], four[3], 0, 0, 0, 0};
    if (centres) {
        const float width = four[2].value / 2, height = four[3].value / 2;
        box.y0.value = four[1].value - height;
        box.x0.value = four[0].value - width;
        box.y1.value = four[1].value + height;
        box.x1.value = four[0].value + width;
    } else {
        if (key_of(four[0].bits) > key_of(four[2].bits)) {
            box.y0 = four[2];
            box.y1 = four[0];
        }
        if (key_of(four[1].bits) > key_of(four[3].bits)) {
            box.x0 = four[3];
            box.x1 = four[1];
        }
    }
    box.top = key_of(box.y0.bits);
    box.left = key_of(box.x0.bits);
    box.bottom = key_of(box.y1.bits);
    box.right = key_of(box.x1.bits);
    return box;
}

static float area_of(const struct box *box)
{
    return (box->x1.value - box->x0.value) * (box->y1.value - box->y0.value);
}

/* Whether so much of two boxes is common to both that the second is struck out. */
static bool over(const struct box *a, const struct box *b, float overlap)
{
    if (a->right <= b->left || b->right <= a->left || a->bottom <= b->top || b->bottom <= a->top) {
        return false;
    }
    const float x0 = a->left > b->left ? a->x0.value : b->x0.value;
    const float x1 = a->right < b->right ? a->x1.value : b->x1.value;
    const float y0 = a->top > b->top ? a->y0.value : b->y0.value;
    const float y1 = a->bottom < b->bottom ? a->y1.value : b->y1.value;
    const float common = (x1 - x0) * (y1 - y0), first = area_of(a), second = area_of(b);
    const float together = first + second - common;
    return common > 0 && first > 0 && second > 0 && together > 0 && common / together > overlap;
}

/* The boxes of a class that are good enough, as a heap: the best one is at its top. */
static uint32_t candidates(struct candidate *heap, const uint32_t *scores, const struct suppression *s)
{
    const uint32_t least = key_of(s->least.bits);
    uint32_t count = 0;
    for (uint32_t index = 0; index < s->boxes; index++) {
        const uint32_t key = key_of(scores[index]);
        if (key > least && (scores[index] & INT32_MAX) <= 0x7f800000u) { /* no NaN */
            heap[count++] = (struct candidate){key, index};
        }
    }
    heapify(heap, count);
    return count;
}

/* The scratch memory holds the heap, and the boxes of a class that are selected. */
static uint32_t non_max_suppression(const struct npu_descriptor *d, const struct suppression *s, void *scratch)
{
    const union number *boxes = (const union number *)(uintptr_t)d->in0_addr;
    const uint32_t *scores = (const uint32_t *)(uintptr_t)d->in1_addr;
    int32_t *const out = (int32_t *)(uintptr_t)d->out_addr, *row = out;
    struct candidate *heap = scratch;
    struct box *chosen = (struct box *)(heap + s->boxes);
    for (uint32_t image = 0; image < s->images; image++, boxes += 4 * s->boxes) {
        for (uint32_t class = 0; class < s->classes; class++, scores += s->boxes) {
            uint32_t selected = 0;
            for (uint32_t left = candidates(heap, scores, s); left > 0 && selected < s->most;) {
                const uint32_t index = best(heap, --left);
                const struct box box = box_at(boxes + 4 * index, s->centres != 0);
                uint32_t other = 0;
                while (other < selected && !over(&box, &chosen[other], s->overlap.value)) {
                    other++;
                }
                if (other == selected) {
                    chosen[selected++] = box;
                    row[0] = (int32_t)image;
                    row[1] = (int32_t)class;
                    row[2] = (int32_t)index;
                    row += 3;
                }
            }
        }
    }
    for (int32_t *end = out + 3 * s->images * s->classes * s->most; end > row;) {
        *--end = -1;
    }
    return (uint32_t)(row - out) / 3;
}

/* ----------------------------------------------------------------------------------------------------------------- */

void kernel_run(struct npu_descriptor *command)
{
    const struct npu_extended *block = (const struct npu_extended *)(uintptr_t)command->param1;
    const struct npu_core *own = &block->per_op.core;
    uint32_t *count = (uint32_t *)(uintptr_t)own->core_count;
    (void)npu_drain();
    const uint32_t start = cycles();
    switch (command->flags >> NPU_DESC_FUNCTION_SHIFT) {
    case NPU_KERNEL_NON_ZERO:
        *count = non_zero(command, own->core_words);
        break;
    case NPU_KERNEL_NON_MAX_SUPPRESSION:
        *count = non_max_suppression(command, (const struct suppression *)own->core_words,
                                     (void *)(uintptr_t)block->workspace);
        break;
    case NPU_KERNEL_TOP_K:
        *count = top_k(command, (const struct selection *)own->core_words, (void *)(uintptr_t)block->workspace);
        break;
    default: /* the device answers it with an error */
        break;
    }
    command->tile_m = start;
    command->tile_n = cycles() - start;
}
