/* Character I/O on the UART, used by print() and by the C library's stdin and stdout. */
#ifndef CONSOLE_H
#define CONSOLE_H

#ifdef __cplusplus
extern "C" {
#endif

/* Buffer a character. The buffer is sent at a newline, when it is full (128 characters), and by console_flush(). */
void console_put(char c);
void console_flush(void);

/* Flush the output, then wait for a character and return it (0..255). */
int console_get(void);

#ifdef __cplusplus
}
#endif

#endif
