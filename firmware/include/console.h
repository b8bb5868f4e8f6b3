/* Characters on the UART: below print() and below the C library's stdin and stdout. */
#ifndef CONSOLE_H
#define CONSOLE_H

#ifdef __cplusplus
extern "C" {
#endif

/* Characters leave at the end of a line, when 128 of them wait, and with console_flush(). */
void console_put(char c);
void console_flush(void);

/* Waits for a character. */
int console_get(void);

#ifdef __cplusplus
}
#endif

#endif
