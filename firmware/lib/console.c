/* Text output on the UART (16550). A line is sent in bursts of the transmit FIFO: one status read per 16 characters. */
#include <stdarg.h>

#include "console.h"
#include "runtime.h"

enum { UART_RBR = 0, UART_THR = 0, UART_FCR = 2, UART_LSR = 5, UART_FIFO = 16 };
enum { FCR_ENABLE = 1, LSR_DATA_READY = 1, LSR_THR_EMPTY = 0x20 };

static char line[128];
static uint32_t length;

static volatile uint8_t *const uart = (volatile uint8_t *)NPU_MAP_UART_BASE;

void console_flush(void)
{
    static bool enabled;
    if (!enabled) {
        uart[UART_FCR] = FCR_ENABLE;
        enabled = true;
    }
    for (uint32_t i = 0; i < length; i++) {
        if (i % UART_FIFO == 0) {
            while ((uart[UART_LSR] & LSR_THR_EMPTY) == 0) {
            }
        }
        uart[UART_THR] = (uint8_t)line[i];
    }
    length = 0;
}

void console_put(char c)
{
    line[length++] = c;
    if (c == '\n' || length == sizeof(line)) {
        console_flush();
    }
}

int console_get(void)
{
    console_flush(); /* show a prompt before waiting for input */
    while ((uart[UART_LSR] & LSR_DATA_READY) == 0) {
    }
    return uart[UART_RBR];
}

static void put_number(uint64_t value, uint32_t base, bool negative, uint32_t width, char fill)
{
    char digits[24];
    uint32_t count = 0;
    do {
        if (value >> 32 == 0) { /* the common case needs no 64-bit division */
            digits[count++] = "0123456789abcdef"[(uint32_t)value % base];
            value = (uint32_t)value / base;
        } else {
            digits[count++] = "0123456789abcdef"[value % base];
            value /= base;
        }
    } while (value != 0);
    if (negative) {
        digits[count++] = '-';
    }
    for (; width > count; width--) {
        console_put(fill);
    }
    while (count > 0) {
        console_put(digits[--count]);
    }
}

static void put_text(const char *text, uint32_t width)
{
    uint32_t count = 0;
    while (text[count] != '\0') {
        count++;
    }
    for (; width > count; width--) {
        console_put(' ');
    }
    while (*text != '\0') {
        console_put(*text++);
    }
}

void print(const char *format, ...)
{
    va_list arguments;
    va_start(arguments, format);
    for (; *format != '\0'; format++) {
        if (*format != '%') {
            console_put(*format);
            continue;
        }
        format++;
        char fill = *format == '0' ? '0' : ' ';
        uint32_t width = 0, longs = 0;
        for (; *format >= '0' && *format <= '9'; format++) {
            width = width * 10 + (uint32_t)(*format - '0');
        }
        for (; *format == 'l'; format++) {
            longs++;
        }
        switch (*format) {
        case 'd': {
            int64_t value = longs > 1 ? va_arg(arguments, long long) : va_arg(arguments, int);
            put_number(value < 0 ? -(uint64_t)value : (uint64_t)value, 10, value < 0, width, fill);
            break;
        }
        case 'u':
        case 'x': {
            uint64_t value = longs > 1 ? va_arg(arguments, unsigned long long) : va_arg(arguments, unsigned);
            put_number(value, *format == 'x' ? 16 : 10, false, width, fill);
            break;
        }
        case 'c':
            console_put((char)va_arg(arguments, int));
            break;
        case 's':
            put_text(va_arg(arguments, const char *), width);
            break;
        default:
            console_put(*format);
            break;
        }
    }
    va_end(arguments);
}
