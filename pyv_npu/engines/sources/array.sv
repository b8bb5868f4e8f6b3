// An output-stationary systolic array: C = A B, int8 x int8 -> int32. A sum stays in its element, rows of A move to the
// right and columns of B move down, one element per cycle. Operands enter at the edges, skewed: row i and column j of a
// fold enter i and j cycles after the first.
//
// A product of M x K by K x N takes ceil(M / ROWS) x ceil(N / COLUMNS) folds of K + ROWS + COLUMNS - 2 cycles. `done`
// is high in the last one: after START it is the cycle number folds x (K + ROWS + COLUMNS - 2) - 1.

module array #(
    parameter int ROWS    = 16,
    parameter int COLUMNS = 16
) (
    input  logic               clock,
    input  logic               reset,
    // A step begins: its cycle 0 is the next one.
    input  logic               start,
    input  logic        [31:0] m,
    input  logic        [31:0] n,
    input  logic        [31:0] k,
    // What the banks are asked for in this cycle, and what they give: lane i of A is row `row` + i, element
    // `cycle` - i of it; 0 where there is none.
    output logic               busy,
    output logic        [31:0] row,
    output logic        [31:0] column,
    output logic        [31:0] cycle,
    input  logic signed [7:0]  a[ROWS],
    input  logic signed [7:0]  b[COLUMNS],
    // The last cycle of a fold and of the step: at its end `sums` are complete.
    output logic               fold_done,
    output logic               done,
    output logic signed [31:0] sums[ROWS][COLUMNS]
);
    logic [31:0] m_kept, n_kept, k_kept;
    logic        last_row, last_column;

    assign fold_done   = busy && cycle == k_kept + 32'(ROWS + COLUMNS - 3);
    assign last_row    = row + 32'(ROWS) >= m_kept;
    assign last_column = column + 32'(COLUMNS) >= n_kept;
    assign done        = fold_done && last_row && last_column;

    always_ff @(posedge clock) begin
        if (reset) begin
            busy <= 1'b0;
        end else if (start) begin
            busy   <= 1'b1;
            m_kept <= m;
            n_kept <= n;
            k_kept <= k;
            row    <= '0;
            column <= '0;
            cycle  <= '0;
        end else if (busy) begin
            cycle <= fold_done ? '0 : cycle + 1;
            if (fold_done) begin
                column <= last_column ? '0 : column + 32'(COLUMNS);
                if (last_column) row <= row + 32'(ROWS);
            end
            if (done) busy <= 1'b0;
        end
    end

    // The elements: what enters each from the left and from above, and what it keeps.
    logic signed [7:0]  a_in[ROWS][COLUMNS], a_kept[ROWS][COLUMNS];
    logic signed [7:0]  b_in[ROWS][COLUMNS], b_kept[ROWS][COLUMNS];
    logic signed [31:0] sums_next[ROWS][COLUMNS];

    always_comb begin
        for (int i = 0; i < ROWS; i++) begin
            for (int j = 0; j < COLUMNS; j++) begin
                a_in[i][j] = j == 0 ? a[i] : a_kept[i][(j+COLUMNS-1)%COLUMNS];
                b_in[i][j] = i == 0 ? b[j] : b_kept[(i+ROWS-1)%ROWS][j];
                sums_next[i][j] = (cycle == '0 ? 32'sd0 : sums[i][j]) + 32'(a_in[i][j]) * 32'(b_in[i][j]);
            end
        end
    end

    always_ff @(posedge clock) begin
        if (busy) begin
            a_kept <= a_in;
            b_kept <= b_in;
            sums   <= sums_next;
        end
    end
endmodule
