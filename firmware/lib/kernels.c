/* Operators that no engine implements, because their accesses depend on the data. Result buffers have the maximum size:
   unused rows are filled with -1, and the number of valid rows is stored separately. */
#include "kernels.h"

#include "runtime.h"

enum { DIMENSIONS = 8 };

/* -- NON_ZERO ----------------------------------------------------------------------------------------------------- */

/* Append the indices of nonzero elements (`mask` set) of a row to `count` earlier ones. Return the new count.
   `index`: index of the row in the outer dimensions; `out`: one array of `capacity` entries per dimension. */
static inline __attribute__((always_inline)) uint32_t scan_row(const void *row, uint32_t bytes, uint32_t mask,
                                                               uint32_t columns, const uint32_t *index, uint32_t rank,
                                                               int32_t *out, uint32_t capacity, uint32_t count)
{
    for (uint32_t column = 0; column < columns; column++) {
        uint32_t bits = bytes == 1   ? ((const uint8_t *)row)[column]
                        : bytes == 2 ? ((const uint16_t *)row)[column]
                                     : ((const uint32_t *)row)[column];
        if ((bits & mask) != 0) {
            int32_t *entry = out + count++;
            for (uint32_t axis = 0; axis + 1 < rank; axis++, entry += capacity) {
                *entry = (int32_t)index[axis];
            }
            *entry = (int32_t)column;
        }
    }
    return count;
}

/* Write an array of `capacity` indices for each dimension, and return the number of valid ones. */
static uint32_t non_zero(const struct npu_descriptor *d, const uint32_t *sizes)
{
    const uint8_t *in = (const uint8_t *)(uintptr_t)d->in0_addr;
    int32_t *out = (int32_t *)(uintptr_t)d->out_addr;
    const uint32_t type = d->quant & NPU_DESC_TYPE_IN0_MASK;
    uint32_t bytes = 4, mask = UINT32_MAX, rank = 0, rows = 1, count = 0, index[DIMENSIONS] = {0};
    if (type == NPU_TYPE_INT8 || type == NPU_TYPE_UINT8) {
        bytes = 1;
    } else if (type == NPU_TYPE_FP16 || type == NPU_TYPE_BF16) {
        bytes = 2;
    }
    if (type == NPU_TYPE_FP32 || bytes == 2) {
        mask = INT32_MAX >> (32 - 8 * bytes); /* ignore the sign: -0 is zero */
    }
    for (; rank < DIMENSIONS && sizes[rank] != 0; rank++) {
        rows *= sizes[rank];
    }
    const uint32_t columns = sizes[rank - 1], capacity = rows;
    for (rows = capacity / columns; rows > 0; rows--, in += columns * bytes) {
        count = bytes == 1   ? scan_row(in, 1, mask, columns, index, rank, out, capacity, count)
                : bytes == 2 ? scan_row(in, 2, mask, columns, index, rank, out, capacity, count)
                             : scan_row(in, 4, mask, columns, index, rank, out, capacity, count);
        for (uint32_t axis = rank - 1; axis-- > 0 && ++index[axis] == sizes[axis];) {
            index[axis] = 0;
        }
    }
    for (uint32_t axis = 0; axis < rank; axis++, out += capacity) {
        for (uint32_t i = count; i < capacity; i++) {
            out[i] = -1;
        }
    }
    return count;
}

/* -- Heap of candidates ------------------------------------------------------------------------------------------- */

/* Heap entry. Ties are broken by the lower index. */
struct candidate {
    uint32_t key, index;
};

/* Map the bits of a float to an integer of the same order, so that comparisons need no floating point. */
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

/* Restore the heap property below `parent`: parents precede their children. */
static void sift_down(struct candidate *heap, uint32_t parent, uint32_t count)
{
    const struct candidate entry = heap[parent];
    for (uint32_t child; (child = 2 * parent + 1) < count; parent = child) {
        if (child + 1 < count && before(heap[child + 1], heap[child])) {
            child++;
        }
        if (!before(heap[child], entry)) {
            break;
        }
        heap[parent] = heap[child];
    }
    heap[parent] = entry;
}

/* Build a heap with the best entry at the root. */
static void heapify(struct candidate *heap, uint32_t count)
{
    for (uint32_t i = count / 2; i-- > 0;) {
        sift_down(heap, i, count);
    }
}

/* Remove the root and return its index; `last`: position of the last entry. */
static uint32_t heap_pop(struct candidate *heap, uint32_t last)
{
    const uint32_t index = heap[0].index;
    heap[0] = heap[last];
    sift_down(heap, 0, last);
    return index;
}

/* -- TOP_K -------------------------------------------------------------------------------------------------------- */

struct selection {
    uint32_t rows, columns, k, largest;
};

/* Map an element to an integer of the same order. */
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

/* Write the indices of the k best elements of each row, best first, and return k. The heap is in scratch memory. */
static uint32_t top_k(const struct npu_descriptor *d, const struct selection *s, struct candidate *heap)
{
    const uint8_t *row = (const uint8_t *)(uintptr_t)d->in0_addr;
    int32_t *out = (int32_t *)(uintptr_t)d->out_addr;
    const uint32_t type = d->quant & NPU_DESC_TYPE_IN0_MASK, invert = s->largest != 0 ? 0 : UINT32_MAX;
    const uint32_t bytes = type == NPU_TYPE_FP32 || type == NPU_TYPE_INT32   ? 4
                           : type == NPU_TYPE_FP16 || type == NPU_TYPE_BF16 ? 2
                                                                            : 1;
    for (uint32_t rows = s->rows; rows > 0; rows--, row += s->columns * bytes) {
        uint32_t remaining = s->columns;
        for (uint32_t column = 0; column < remaining; column++) {
            heap[column] = (struct candidate){element_key(row, column, type) ^ invert, column};
        }
        heapify(heap, remaining);
        for (uint32_t i = 0; i < s->k; i++) {
            *out++ = (int32_t)heap_pop(heap, --remaining);
        }
    }
    return s->k;
}

/* -- NON_MAX_SUPPRESSION ------------------------------------------------------------------------------------------ */

union number {
    uint32_t bits;
    float value;
};

/* Corners of a box, lower coordinates first, and their sort keys: disjoint boxes are found without float arithmetic. */
struct box {
    union number y0, x0, y1, x1;
    uint32_t top, left, bottom, right;
};

struct suppression {
    uint32_t images, boxes, classes, max_outputs;
    union number iou_threshold, score_threshold;
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

/* Return whether the intersection over union of two boxes exceeds the threshold. */
static bool overlaps(const struct box *a, const struct box *b, float threshold)
{
    if (a->right <= b->left || b->right <= a->left || a->bottom <= b->top || b->bottom <= a->top) {
        return false;
    }
    const float x0 = a->left > b->left ? a->x0.value : b->x0.value;
    const float x1 = a->right < b->right ? a->x1.value : b->x1.value;
    const float y0 = a->top > b->top ? a->y0.value : b->y0.value;
    const float y1 = a->bottom < b->bottom ? a->y1.value : b->y1.value;
    const float intersection = (x1 - x0) * (y1 - y0), first = area_of(a), second = area_of(b);
    const float union_area = first + second - intersection;
    return intersection > 0 && first > 0 && second > 0 && union_area > 0 && intersection / union_area > threshold;
}

/* Build a heap of the boxes of a class whose score exceeds the threshold, and return their number. */
static uint32_t collect_candidates(struct candidate *heap, const uint32_t *scores, const struct suppression *s)
{
    const uint32_t threshold = key_of(s->score_threshold.bits);
    uint32_t count = 0;
    for (uint32_t index = 0; index < s->boxes; index++) {
        const uint32_t key = key_of(scores[index]);
        if (key > threshold && (scores[index] & INT32_MAX) <= 0x7f800000u) { /* no NaN */
            heap[count++] = (struct candidate){key, index};
        }
    }
    heapify(heap, count);
    return count;
}

/* Write (image, class, index) of each selected box, and return their number. `scratch`: heap and boxes of a class. */
static uint32_t non_max_suppression(const struct npu_descriptor *d, const struct suppression *s, void *scratch)
{
    const union number *boxes = (const union number *)(uintptr_t)d->in0_addr;
    const uint32_t *scores = (const uint32_t *)(uintptr_t)d->in1_addr;
    int32_t *const out = (int32_t *)(uintptr_t)d->out_addr, *row = out;
    struct candidate *heap = scratch;
    struct box *selected_boxes = (struct box *)(heap + s->boxes);
    for (uint32_t image = 0; image < s->images; image++, boxes += 4 * s->boxes) {
        for (uint32_t class = 0; class < s->classes; class++, scores += s->boxes) {
            uint32_t selected = 0;
            for (uint32_t count = collect_candidates(heap, scores, s); count > 0 && selected < s->max_outputs;) {
                const uint32_t index = heap_pop(heap, --count);
                const struct box box = box_at(boxes + 4 * index, s->centres != 0);
                uint32_t other = 0;
                while (other < selected && !overlaps(&box, &selected_boxes[other], s->iou_threshold.value)) {
                    other++;
                }
                if (other == selected) {
                    selected_boxes[selected++] = box;
                    row[0] = (int32_t)image;
                    row[1] = (int32_t)class;
                    row[2] = (int32_t)index;
                    row += 3;
                }
            }
        }
    }
    for (int32_t *end = out + 3 * s->images * s->classes * s->max_outputs; end > row;) {
        *--end = -1;
    }
    return (uint32_t)(row - out) / 3;
}

/* ----------------------------------------------------------------------------------------------------------------- */

void kernel_run(struct npu_descriptor *command)
{
    const struct npu_extended *block = (const struct npu_extended *)(uintptr_t)command->param1;
    const struct npu_core *core = &block->per_op.core;
    uint32_t *count = (uint32_t *)(uintptr_t)core->core_count;
    (void)npu_drain();
    const uint32_t start = cycles();
    switch (command->flags >> NPU_DESC_FUNCTION_SHIFT) {
    case NPU_KERNEL_NON_ZERO:
        *count = non_zero(command, core->core_words);
        break;
    case NPU_KERNEL_NON_MAX_SUPPRESSION:
        *count = non_max_suppression(command, (const struct suppression *)core->core_words,
                                     (void *)(uintptr_t)block->workspace);
        break;
    case NPU_KERNEL_TOP_K:
        *count = top_k(command, (const struct selection *)core->core_words, (void *)(uintptr_t)block->workspace);
        break;
    default: /* the device reports the error */
        break;
    }
    command->tile_m = start;
    command->tile_n = cycles() - start;
}
