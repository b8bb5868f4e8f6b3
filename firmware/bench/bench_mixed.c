/* Mixed integer work: a linked list, a small matrix, a state machine over text, a CRC over what they find.

   The kinds of work are those of embedded benchmarks such as CoreMark; the code is our own and its score compares
   with nothing but itself. */
#include "bench.h"

BENCH_ROUNDS(100000)

/* -- a linked list: find, reverse, sort by merging --------------------------------------------------------------- */

enum { NODES = 96 };

struct node {
    struct node *next;
    int16_t key;
    uint16_t tag;
};

static struct node nodes[NODES];

static struct node *list_make(uint32_t seed)
{
    for (int i = 0; i < NODES; i++) {
        seed = random_next(seed);
        nodes[i].key = (int16_t)(seed >> 16);
        nodes[i].tag = (uint16_t)i;
        nodes[i].next = i + 1 < NODES ? &nodes[i + 1] : NULL;
    }
    return nodes;
}

static const struct node *list_find(const struct node *list, uint16_t tag)
{
    while (list != NULL && list->tag != tag) {
        list = list->next;
    }
    return list;
}

static struct node *list_reverse(struct node *list)
{
    struct node *reversed = NULL;
    while (list != NULL) {
        struct node *next = list->next;
        list->next = reversed;
        reversed = list;
        list = next;
    }
    return reversed;
}

static struct node *list_merge(struct node *left, struct node *right)
{
    struct node *merged = NULL, **end = &merged;
    while (left != NULL && right != NULL) {
        struct node **least = left->key <= right->key ? &left : &right;
        *end = *least;
        end = &(*least)->next;
        *least = *end;
    }
    *end = left != NULL ? left : right;
    return merged;
}

static struct node *list_sort(struct node *list, int length)
{
    if (length < 2) {
        if (list != NULL) {
            list->next = NULL;
        }
        return list;
    }
    struct node *middle = list;
    for (int i = 0; i < length / 2; i++) {
        middle = middle->next;
    }
    struct node *right = list_sort(middle, length - length / 2);
    return list_merge(list_sort(list, length / 2), right);
}

static uint16_t list_work(uint32_t seed, uint16_t crc)
{
    struct node *list = list_reverse(list_make(seed));
    for (uint16_t tag = 0; tag < NODES; tag += 7) {
        const struct node *found = list_find(list, tag);
        crc = crc16(crc, (uint16_t)found->key);
    }
    for (list = list_sort(list, NODES); list != NULL; list = list->next) {
        crc = crc16(crc, list->tag);
    }
    return crc;
}

/* -- a matrix: product and sums ------------------------------------------------------------------------------------ */

enum { SIDE = 12 };

static int16_t left[SIDE][SIDE], right[SIDE][SIDE];
static int32_t product[SIDE][SIDE];

static uint16_t matrix_work(uint32_t seed, uint16_t crc)
{
    for (int row = 0; row < SIDE; row++) {
        for (int column = 0; column < SIDE; column++) {
            seed = random_next(seed);
            left[row][column] = (int16_t)(seed >> 20);
            right[row][column] = (int16_t)(seed >> 8 & 0xFFF);
        }
    }
    for (int row = 0; row < SIDE; row++) {
        for (int column = 0; column < SIDE; column++) {
            int32_t sum = 0;
            for (int i = 0; i < SIDE; i++) {
                sum += left[row][i] * right[i][column];
            }
            product[row][column] = sum;
        }
    }
    for (int row = 0; row < SIDE; row++) {
        int32_t least = product[row][0];
        for (int column = 1; column < SIDE; column++) {
            least = product[row][column] < least ? product[row][column] : least;
        }
        crc = crc16(crc, (uint16_t)(least ^ least >> 16));
    }
    return crc;
}

/* -- a state machine: which words of a text are numbers ------------------------------------------------------------ */

enum state { START, SIGN, INTEGER, FRACTION, EXPONENT, WORD, STATES };

static const char text[] = "5012 +874 -874 35.54400 .1234500 -110.700 +0.64400 5.500e+3 -.123e-2 T0.3e-1F -T.T++Tq 1T3.4e4z ";

static enum state step(enum state state, char c)
{
    bool digit = c >= '0' && c <= '9';
    switch (state) {
    case START:
        return digit ? INTEGER : c == '+' || c == '-' ? SIGN : c == '.' ? FRACTION : WORD;
    case SIGN:
        return digit ? INTEGER : c == '.' ? FRACTION : WORD;
    case INTEGER:
        return digit ? INTEGER : c == '.' ? FRACTION : c == 'e' ? EXPONENT : WORD;
    case FRACTION:
        return digit ? FRACTION : c == 'e' ? EXPONENT : WORD;
    case EXPONENT:
        return digit || c == '+' || c == '-' ? EXPONENT : WORD;
    default:
        return WORD;
    }
}

static uint16_t text_work(uint16_t crc)
{
    uint16_t ends[STATES] = {0};
    enum state state = START;
    for (const char *c = text; *c != '\0'; c++) {
        if (*c == ' ') {
            ends[state]++;
            state = START;
        } else {
            state = step(state, *c);
        }
    }
    for (int i = 0; i < STATES; i++) {
        crc = crc16(crc, ends[i]);
    }
    return crc;
}

int main(void)
{
    const uint32_t rounds = arg_rounds();
    uint16_t crc = 0;
    for (uint32_t round = 0; round < rounds; round++) {
        crc = list_work(round, crc);
        crc = matrix_work(round, crc);
        crc = text_work(crc);
    }
    return finish("mixed", rounds == FULL_ROUNDS, crc, 0x9656);
}
