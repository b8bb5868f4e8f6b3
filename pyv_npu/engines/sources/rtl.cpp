// The array in SystemVerilog (array.sv), translated by Verilator, as an engine outside.
#include "Varray.h"
#include "link.h"
#include "verilated.h"
#include "verilated_vcd_c.h"
#include <algorithm>
#include <memory>

namespace {

class Rtl : public outside::Engine {
  public:
    Rtl()
    {
        rows = ROWS;
        columns = COLUMNS;
        name = "rtl " + std::to_string(ROWS) + "x" + std::to_string(COLUMNS);
    }

    ~Rtl() override
    {
        if (vcd_)
            vcd_->close();
    }

    void hello(uint32_t core, uint32_t npu, const std::string &trace) override
    {
        core_ = core;
        npu_ = npu;
        if (!trace.empty()) {
            context_.traceEverOn(true);
            vcd_ = std::make_unique<VerilatedVcdC>();
            vcd_->set_time_unit("1ns");
            vcd_->set_time_resolution("1ns");
        }
        top_ = std::make_unique<Varray>(&context_, "engine");
        if (vcd_) {
            top_->trace(vcd_.get(), 2);
            vcd_->open(trace.c_str());
        }
        reset();
    }

    void reset() override
    {
        top_->reset = 1;
        top_->start = 0;
        edge();
        top_->reset = 0;
    }

    void start(const outside::Step &step) override
    {
        step_ = step;
        top_->m = step.m;
        top_->n = step.n;
        top_->k = step.k;
        top_->start = 1;
        edge();
        top_->start = 0;
        event(0, outside::BEGIN);
    }

    bool run(uint64_t until) override
    {
        while (at <= until)
            if (cycle())
                return true;
        return false;
    }

  private:
    VerilatedContext context_;
    std::unique_ptr<Varray> top_;
    std::unique_ptr<VerilatedVcdC> vcd_;
    outside::Step step_;
    uint32_t core_ = 1, npu_ = 1;
    uint64_t dumped_ = 0;

    // A rising edge; nothing is dumped.
    void edge()
    {
        top_->clock = 0;
        top_->eval();
        top_->clock = 1;
        top_->eval();
    }

    // One cycle of the step: whether it is the last.
    bool cycle()
    {
        uint32_t now = top_->cycle, row = top_->row, column = top_->column;
        uint32_t high = std::min<uint32_t>(ROWS, step_.m - row), wide = std::min<uint32_t>(COLUMNS, step_.n - column);
        if (now == 0) {
            event(at, outside::READ, 0, high * step_.k);
            event(at, outside::READ, 1, wide * step_.k);
        }
        for (uint32_t i = 0; i < ROWS; i++) {
            bool there = i < high && now >= i && now - i < step_.k;
            top_->a[i] = there ? uint8_t(step_.a[size_t(row + i) * step_.k + now - i]) : 0;
        }
        for (uint32_t j = 0; j < COLUMNS; j++) {
            bool there = j < wide && now >= j && now - j < step_.k;
            top_->b[j] = there ? uint8_t(step_.b[size_t(now - j) * step_.n + column + j]) : 0;
        }
        top_->clock = 0;
        top_->eval();
        dump();
        bool done = top_->done;
        bool complete = top_->fold_done;
        top_->clock = 1;
        top_->eval();
        if (complete) {
            outside::Bytes block;
            for (uint32_t i = 0; i < high; i++)
                for (uint32_t j = 0; j < wide; j++)
                    outside::put_sum(block, int32_t(top_->sums[i][j]));
            event(at, outside::WRITE, 0, 0, row, high, column, wide, block);
        }
        if (done)
            event(at, outside::DONE);
        at++;
        if (done)
            dump();
        return done;
    }

    // What the signals are from this cycle on, in core cycles, the time base of the device's own waveform.
    void dump()
    {
        if (!vcd_)
            return;
        uint64_t time = step_.now + (at * core_ + npu_ - 1) / npu_;
        if (time > dumped_ || dumped_ == 0) {
            vcd_->dump(time);
            vcd_->flush();
            dumped_ = time;
        }
    }
};

} // namespace

int main()
{
    Rtl rtl;
    return outside::serve(rtl);
}
