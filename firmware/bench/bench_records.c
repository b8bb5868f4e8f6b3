/* Systems programming in small functions: records, strings, calls, decisions.

   The instruction mix is that of Dhrystone; the code is our own and scores are not comparable with Dhrystone. */
#include "bench.h"

BENCH_ROUNDS(16000000)

enum colour { RED, GREEN, BLUE, BLACK, WHITE };

struct record {
    struct record *next;
    enum colour colour;
    int number;
    char name[32];
};

static struct record first, second;
static int table[50], grid[50][50];
static char letter;
static bool flag;

static __attribute__((noinline)) enum colour pick(enum colour colour, int number)
{
    switch (colour) {
    case RED:
        return number > 100 ? RED : BLACK;
    case GREEN:
        return BLUE;
    case BLUE:
        return GREEN;
    case BLACK:
        return number > 0 ? WHITE : RED;
    default:
        return RED;
    }
}

static __attribute__((noinline)) int compare(const char *a, const char *b)
{
    while (*a != '\0' && *a == *b) {
        a++;
        b++;
    }
    return (uint8_t)*a - (uint8_t)*b;
}

static __attribute__((noinline)) void copy(char *to, const char *from)
{
    do {
        *to++ = *from;
    } while (*from++ != '\0');
}

static __attribute__((noinline)) void fill(int *row, int (*rows)[50], int at, int value)
{
    int i = at + 5;
    row[i] = value;
    row[i + 1] = row[i];
    row[i + 30] = i;
    for (int j = i; j <= i + 1; j++) {
        rows[i][j] = i;
    }
    rows[i][i - 1]++;
    rows[i + 20][i] = row[i];
}

static __attribute__((noinline)) void advance(struct record *record, int round)
{
    struct record *next = record->next;
    *next = *record;
    record->number = 5;
    next->number = record->number + (round & 7);
    next->next = record->next;
    if (next->colour == RED) {
        next->number = 6;
        next->colour = pick(record->colour, next->number);
    } else {
        *record = *next;
    }
}

static __attribute__((noinline)) bool later(const char *a, const char *b)
{
    int at = 2;
    while (at <= 2) {
        if (a[at] == b[at + 1]) {
            letter = 'A';
        }
        at++;
    }
    return compare(a, b) > 0 ? (letter = 'Z', true) : letter == 'R';
}

int main(void)
{
    const uint32_t rounds = arg_rounds();
    char one[32], two[32];
    uint32_t checksum = 0;
    first.next = &second;
    first.colour = RED;
    copy(first.name, "RECORD PROGRAM, FIRST RECORD   ");
    copy(one, "RECORD PROGRAM, 1'ST STRING    ");
    for (uint32_t round = 0; round < rounds; round++) {
        copy(two, round & 1 ? "RECORD PROGRAM, 2'ND STRING    " : "RECORD PROGRAM, 3'RD STRING    ");
        flag = !later(one, two);
        int a = 2, b = 3, c = 0;
        while (a < b) {
            c = 5 * a - b;
            a++;
        }
        fill(table, grid, (int)(round & 7), c);
        advance(&first, (int)round);
        for (char index = 'A'; index <= 'A' + (int)(round & 3); index++) {
            if (index == 'C') {
                first.colour = pick(first.colour, (int)round);
                copy(two, "RECORD PROGRAM, ANOTHER STRING ");
            }
        }
        b = b * a;
        a = b / (c + 1);
        b = 7 * (b - c) - a;
        checksum = checksum * 31 + (uint32_t)(a + b + flag + (int)first.colour + second.number + two[16]);
    }
    return finish("records", rounds == FULL_ROUNDS, checksum, 0x99aa743f);
}
