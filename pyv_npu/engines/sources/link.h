// The engine's end of the co-simulation link (docs/co-simulation-link.md): frames over standard input and output.
#pragma once
#include <cstdint>
#include <cstdio>
#include <cstdlib>
#include <cstring>
#include <string>
#include <vector>

namespace outside {

enum Frame : uint8_t { HELLO = 1, RESET, START, RUN_UNTIL, EVENT, REACHED, SAVE, STATE, LOAD, READY, ERROR, BYE };
enum Happening : uint8_t { BEGIN = 1, READ, WRITE, DONE };

using Bytes = std::vector<uint8_t>;

template <typename T> void put(Bytes &to, T value)
{
    for (size_t i = 0; i < sizeof(T); i++)
        to.push_back(uint8_t(uint64_t(value) >> 8 * i));
}

template <typename T> T get(const Bytes &from, size_t at)
{
    if (at + sizeof(T) > from.size())
        std::exit(3);
    uint64_t value = 0;
    for (size_t i = 0; i < sizeof(T); i++)
        value |= uint64_t(from[at + i]) << 8 * i;
    return T(value);
}

// A product M x K times K x N.
struct Step {
    uint64_t now = 0;
    uint32_t m = 0, n = 0, k = 0;
    const int8_t *a = nullptr, *b = nullptr;
};

// What an engine does. It never runs past the cycle that it has been granted.
class Engine {
  public:
    virtual ~Engine() = default;
    virtual void hello(uint32_t core, uint32_t npu, const std::string &trace) {}
    virtual void reset() = 0;
    virtual void start(const Step &step) = 0;
    // Runs up to cycle `until` of the step, or to its end: whether it is over.
    virtual bool run(uint64_t until) = 0;

    uint16_t rows = 0, columns = 0;
    std::string name;
    uint64_t at = 0; // the cycle of the step that comes next
    Bytes out;       // frames that are not sent yet

    void frame(uint8_t kind, const Bytes &body = {})
    {
        put<uint32_t>(out, uint32_t(1 + body.size()));
        out.push_back(kind);
        out.insert(out.end(), body.begin(), body.end());
    }

    void event(uint64_t cycle, uint8_t what, uint8_t operand = 0, uint32_t size = 0, uint32_t row = 0,
               uint32_t rows = 0, uint32_t column = 0, uint32_t columns = 0, const Bytes &data = {})
    {
        Bytes body;
        put(body, cycle);
        body.push_back(what);
        body.push_back(operand);
        put<uint16_t>(body, 0);
        for (uint32_t word : {size, row, rows, column, columns})
            put(body, word);
        body.insert(body.end(), data.begin(), data.end());
        frame(EVENT, body);
    }
};

inline bool receive(uint8_t *to, size_t size) { return std::fread(to, 1, size, stdin) == size; }

// Serves one link to its end.
inline int serve(Engine &engine)
{
    Bytes started;
    bool running = false;
    auto start = [&] {
        Step step;
        step.now = get<uint64_t>(started, 0);
        step.m = get<uint32_t>(started, 16);
        step.n = get<uint32_t>(started, 20);
        step.k = get<uint32_t>(started, 24);
        size_t left = size_t(step.m) * step.k, right = size_t(step.k) * step.n;
        if (started.size() != 32 + left + right)
            std::exit(3);
        step.a = reinterpret_cast<const int8_t *>(started.data()) + 32;
        step.b = step.a + left;
        engine.at = 0;
        engine.start(step);
        running = true;
    };
    auto send = [&] {
        std::fwrite(engine.out.data(), 1, engine.out.size(), stdout);
        std::fflush(stdout);
        engine.out.clear();
    };
    uint8_t head[5];
    while (receive(head, 5)) {
        uint32_t size = head[0] | head[1] << 8 | head[2] << 16 | uint32_t(head[3]) << 24;
        if (size < 1 || size > 1u << 28)
            return 3;
        Bytes body(size - 1);
        if (!receive(body.data(), body.size()))
            return 3;
        switch (head[4]) {
        case HELLO: {
            engine.hello(get<uint32_t>(body, 4), get<uint32_t>(body, 8),
                         std::string(body.begin() + 16, body.end()));
            Bytes offer;
            for (uint16_t word : {uint16_t(1), engine.rows, engine.columns, uint16_t(1 << 1), uint16_t(1), uint16_t(1)})
                put(offer, word);
            put<uint32_t>(offer, 1);
            offer.insert(offer.end(), engine.name.begin(), engine.name.end());
            engine.frame(HELLO, offer);
            break;
        }
        case RESET:
            engine.reset();
            running = false;
            engine.frame(READY);
            break;
        case START:
            started = std::move(body);
            start();
            break;
        case RUN_UNTIL: {
            uint64_t until = get<uint64_t>(body, 0);
            bool over = !running || engine.run(until);
            running = running && !over;
            Bytes reached;
            put<uint64_t>(reached, over && engine.at ? engine.at - 1 : until);
            engine.frame(REACHED, reached);
            break;
        }
        case SAVE: { // The step and its next cycle: a step depends on nothing before it.
            Bytes state, later;
            if (running) {
                put<uint64_t>(state, engine.at);
                state.insert(state.end(), started.begin(), started.end());
            }
            later.swap(engine.out);
            engine.frame(STATE, state);
            send();
            later.swap(engine.out);
            continue;
        }
        case LOAD: { // The step again up to that cycle, without what happened in it.
            engine.reset();
            running = false;
            engine.out.clear();
            Bytes later;
            if (!body.empty()) {
                uint64_t at = get<uint64_t>(body, 0);
                started.assign(body.begin() + 8, body.end());
                start();
                if (at) {
                    running = !engine.run(at - 1);
                    engine.out.clear();
                }
                later.swap(engine.out);
            }
            engine.frame(READY);
            send();
            later.swap(engine.out);
            continue;
        }
        case BYE:
            return 0;
        default: {
            std::string text = "a frame of type " + std::to_string(head[4]);
            engine.frame(ERROR, Bytes(text.begin(), text.end()));
        }
        }
        if (head[4] != START)
            send();
    }
    return 0;
}

// Bytes of a block of int32.
inline void put_sum(Bytes &to, int32_t value) { put<uint32_t>(to, uint32_t(value)); }

} // namespace outside
