/* A monitor on the UART, to type into: pyv-npu run shell.elf --serial stdio */
#include <stdbool.h>
#include <stdlib.h>
#include <string.h>

#include "console.h"
#include "runtime.h"

enum { WORDS = 3, DELETE = 0x7f, BACKSPACE = 8, INTERRUPT = 3 };

/* Reads a line with echo. Returns false where Ctrl-C gives it up. */
static bool read_line(char *line, uint32_t size)
{
    uint32_t length = 0;
    for (;;) {
        int c = console_get();
        if (c == '\r' || c == '\n') {
            line[length] = '\0';
            print("\n");
            return true;
        }
        if (c == INTERRUPT) {
            print("^C\n");
            return false;
        }
        if ((c == DELETE || c == BACKSPACE) && length > 0) {
            length--;
            print("\b \b");
        } else if (c >= ' ' && c < DELETE && length + 1 < size) {
            line[length++] = (char)c;
            console_put((char)c);
        }
        console_flush();
    }
}

static uint32_t number(const char *text)
{
    return (uint32_t)strtoul(text, NULL, 0);
}

int main(void)
{
    char line[80];
    print("shell: peek ADDRESS, poke ADDRESS WORD, cycles, echo TEXT, exit CODE\n");
    for (;;) {
        print("> ");
        console_flush();
        if (!read_line(line, sizeof(line))) {
            continue;
        }
        const char *text = strncmp(line, "echo ", 5) == 0 ? line + 5 : NULL;
        if (text != NULL) {
            print("%s\n", text);
            continue;
        }
        char *words[WORDS] = {"", "", ""};
        uint32_t count = 0;
        for (char *word = strtok(line, " "); word != NULL && count < WORDS; word = strtok(NULL, " ")) {
            words[count++] = word;
        }
        volatile uint32_t *address = (volatile uint32_t *)(uintptr_t)(number(words[1]) & ~3u);
        if (strcmp(words[0], "peek") == 0) {
            print("%08x\n", (unsigned)*address);
        } else if (strcmp(words[0], "poke") == 0) {
            *address = number(words[2]);
        } else if (strcmp(words[0], "cycles") == 0) {
            print("%u\n", (unsigned)cycles());
        } else if (strcmp(words[0], "exit") == 0) {
            return (int)number(words[1]);
        } else if (count > 0) {
            print("%s: no such command\n", words[0]);
        }
    }
}
