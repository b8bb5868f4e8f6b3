// The array as a SystemC module: a TLM-2.0 target socket takes commands, a clocked process streams operands through the
// elements. An initiator serves the co-simulation link.
#define SC_INCLUDE_DYNAMIC_PROCESSES
#include "link.h"
#include <algorithm>
#include <systemc>
#include <tlm>
#include <tlm_utils/simple_initiator_socket.h>
#include <tlm_utils/simple_target_socket.h>

namespace {

// What the module reports, cycle by cycle.
class Listener {
  public:
    virtual ~Listener() = default;
    virtual void read(uint32_t high, uint32_t wide) = 0;
    virtual void fold(uint32_t row, uint32_t high, uint32_t column, uint32_t wide, const int32_t sums[ROWS][COLUMNS]) = 0;
    virtual void done() = 0;
    virtual void passed() = 0;
};

const sc_core::sc_time CYCLE(1, sc_core::SC_NS);
enum Command : uint64_t { START = 0, CLEAR = 8 };

SC_MODULE(Array)
{
    tlm_utils::simple_target_socket<Array> commands;
    sc_core::sc_in<bool> clock;
    Listener *listener = nullptr;

    SC_CTOR(Array) : commands("commands"), clock("clock")
    {
        commands.register_b_transport(this, &Array::transport);
        SC_METHOD(rise);
        sensitive << clock.pos();
        dont_initialize();
    }

  private:
    outside::Step step_;
    bool busy_ = false;
    uint32_t row_ = 0, column_ = 0, cycle_ = 0;
    int32_t sums_[ROWS][COLUMNS] = {};
    int8_t a_[ROWS][COLUMNS] = {}, b_[ROWS][COLUMNS] = {};

    // A write to START gives a step, one to CLEAR forgets it.
    void transport(tlm::tlm_generic_payload &payload, sc_core::sc_time &)
    {
        bool start = payload.get_address() == START && payload.get_data_length() == sizeof(outside::Step);
        if (payload.get_command() != tlm::TLM_WRITE_COMMAND || (!start && payload.get_address() != CLEAR)) {
            payload.set_response_status(tlm::TLM_ADDRESS_ERROR_RESPONSE);
            return;
        }
        if (start)
            std::memcpy(&step_, payload.get_data_ptr(), sizeof step_);
        busy_ = start;
        row_ = column_ = cycle_ = 0;
        payload.set_response_status(tlm::TLM_OK_RESPONSE);
    }

    // One cycle. Elements are taken from the far corner, so that each sees what its neighbours kept the cycle before.
    void rise()
    {
        if (!busy_)
            return;
        uint32_t high = std::min<uint32_t>(ROWS, step_.m - row_), wide = std::min<uint32_t>(COLUMNS, step_.n - column_);
        if (cycle_ == 0)
            listener->read(high, wide);
        for (int i = ROWS - 1; i >= 0; i--) {
            for (int j = COLUMNS - 1; j >= 0; j--) {
                int8_t a = j ? a_[i][j - 1] : left(uint32_t(i), high), b = i ? b_[i - 1][j] : above(uint32_t(j), wide);
                sums_[i][j] = (cycle_ ? sums_[i][j] : 0) + int32_t(a) * b;
                a_[i][j] = a;
                b_[i][j] = b;
            }
        }
        if (++cycle_ == step_.k + ROWS + COLUMNS - 2) {
            listener->fold(row_, high, column_, wide, sums_);
            cycle_ = 0;
            column_ += COLUMNS;
            if (column_ >= step_.n) {
                column_ = 0;
                row_ += ROWS;
            }
            if (row_ >= step_.m) {
                busy_ = false;
                listener->done();
            }
        }
        listener->passed();
    }

    int8_t left(uint32_t i, uint32_t high) const
    {
        bool there = i < high && cycle_ >= i && cycle_ - i < step_.k;
        return there ? step_.a[size_t(row_ + i) * step_.k + cycle_ - i] : int8_t(0);
    }

    int8_t above(uint32_t j, uint32_t wide) const
    {
        bool there = j < wide && cycle_ >= j && cycle_ - j < step_.k;
        return there ? step_.b[size_t(cycle_ - j) * step_.n + column_ + j] : int8_t(0);
    }
};

SC_MODULE(Initiator)
{
    tlm_utils::simple_initiator_socket<Initiator> socket;
    SC_CTOR(Initiator) : socket("socket") {}

    void write(Command address, void *data, unsigned size)
    {
        tlm::tlm_generic_payload payload;
        sc_core::sc_time delay = sc_core::SC_ZERO_TIME;
        payload.set_command(tlm::TLM_WRITE_COMMAND);
        payload.set_address(address);
        payload.set_data_ptr(static_cast<unsigned char *>(data));
        payload.set_data_length(size);
        payload.set_streaming_width(size);
        payload.set_byte_enable_ptr(nullptr);
        payload.set_dmi_allowed(false);
        payload.set_response_status(tlm::TLM_INCOMPLETE_RESPONSE);
        socket->b_transport(payload, delay);
        if (payload.is_response_error())
            std::exit(4);
    }
};

class SystemC : public outside::Engine, public Listener {
  public:
    SystemC(Initiator &initiator) : initiator_(initiator)
    {
        rows = ROWS;
        columns = COLUMNS;
        name = "systemc " + std::to_string(ROWS) + "x" + std::to_string(COLUMNS);
    }

    void reset() override { initiator_.write(CLEAR, nullptr, 0); }

    void start(const outside::Step &step) override
    {
        step_ = step;
        over_ = false;
        initiator_.write(START, &step_, sizeof step_);
        event(0, outside::BEGIN);
    }

    bool run(uint64_t until) override
    {
        while (!over_ && at <= until)
            sc_core::sc_start(CYCLE);
        return over_;
    }

    void read(uint32_t high, uint32_t wide) override
    {
        event(at, outside::READ, 0, high * step_.k);
        event(at, outside::READ, 1, wide * step_.k);
    }

    void fold(uint32_t row, uint32_t high, uint32_t column, uint32_t wide, const int32_t sums[ROWS][COLUMNS]) override
    {
        outside::Bytes block;
        for (uint32_t i = 0; i < high; i++)
            for (uint32_t j = 0; j < wide; j++)
                outside::put_sum(block, sums[i][j]);
        event(at, outside::WRITE, 0, 0, row, high, column, wide, block);
    }

    void done() override
    {
        event(at, outside::DONE);
        over_ = true;
    }

    void passed() override { at++; }

  private:
    Initiator &initiator_;
    outside::Step step_;
    bool over_ = false;
};

} // namespace

int main(int count, char *words[])
{
    setenv("SC_COPYRIGHT_MESSAGE", "DISABLE", 1);
    return sc_core::sc_elab_and_sim(count, words);
}

int sc_main(int, char *[])
{
    sc_core::sc_clock clock("clock", CYCLE, 0.5, sc_core::sc_time(500, sc_core::SC_PS), true);
    Array array("array");
    Initiator initiator("initiator");
    array.clock(clock);
    initiator.socket.bind(array.commands);
    SystemC engine(initiator);
    array.listener = &engine;
    sc_core::sc_start(sc_core::SC_ZERO_TIME);
    return outside::serve(engine);
}
