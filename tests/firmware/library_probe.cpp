// C++ as a program of one's own uses it, beside the driver. Compiled for the host too, without the NPU's part.
#include <stdio.h>
#ifdef __riscv
#include "busy.h"
#include "console.h"
#include "expect.h"
#include "npu_driver.h"
#include "runtime.h"
#include "trap.h"

NPU_ARG(0, commands, 3)
NPU_NEEDS_SPM(4096);

static bool submits()
{
    const npu_tile tile = {boot->spm_base, 16, 32, NPU_TYPE_INT8};
    static int8_t bytes[16 * 32];
    if (npu_open(NPU_MODE_AUTO) != 0) {
        return false;
    }
    for (uint32_t i = 0; i < arg_commands(); i++) {
        npu_load(tile, bytes, 0);
    }
    npu_drain();
    return npu_completed() == arg_commands();
}
#else
static bool submits()
{
    return true;
}
#endif

struct Shape {
    virtual ~Shape()
    {
        printf("a shape is gone\n");
    }
    virtual int area() const = 0;
};

struct Square : Shape {
    int side;
    explicit Square(int given) : side(given) {}
    int area() const override
    {
        return side * side;
    }
};

struct Global {
    const char *name;
    explicit Global(const char *given) : name(given)
    {
        printf("begin %s\n", name);
    }
    ~Global()
    {
        printf("end %s\n", name);
    }
};

static Global a("a"), b("b");

template <typename T> static T most(T x, T y)
{
    return x < y ? y : x;
}

int main()
{
    static Global inside("inside");
    Shape *shape = new Square(7);
    int *numbers = new int[100]{1, 2, 3};
    printf("%d %d %d\n", shape->area(), most(3, 4), numbers[0] + numbers[2] + numbers[99]);
    delete[] numbers;
    delete shape;
    auto twice = [](int x) { return 2 * x; };
    printf("%d %d\n", twice(21), submits());
    return 0;
}
