//! The row kernel: dot products of three rows with one vector, in assembly.
//!
//! Almost all of a turn is `sum += byte * x`. What the compiler makes of it costs five compute units
//! a product (load the byte, load x, multiply, add, and the loop). Three rows together load x once
//! for three products, and ten registers are just enough for that: three row pointers, three sums,
//! the vector's pointer and end, and the two factors. That is 10 units a column of three rows, 3.33
//! a product, and 5 more every 32 columns.
//!
//! `fixed` calls it (`arith::bpf`); the sums wrap in 64 bits like those it replaces.

/// A column of the three rows: byte offsets in the rows and in the vector.
macro_rules! columns {
    ($($byte:literal $word:literal),*) => { concat!($(
        "r0 = *(u64 *)(r2 + ", $word, ")\n",
        "r9 = *(u8 *)(r1 + ", $byte, ")\n r9 *= r0\n r6 += r9\n",
        "r9 = *(u8 *)(r3 + ", $byte, ")\n r9 *= r0\n r7 += r9\n",
        "r9 = *(u8 *)(r5 + ", $byte, ")\n r9 *= r0\n r8 += r9\n",
    )*) };
}

/// Moves all pointers on, and goes back to the label until the vector's end in r4.
macro_rules! next {
    ($bytes:literal, $words:literal, $label:literal) => {
        concat!(
            "r1 += ",
            $bytes,
            "\n r3 += ",
            $bytes,
            "\n r5 += ",
            $bytes,
            "\n r2 += ",
            $words,
            "\n",
            "if r2 != r4 goto ",
            $label,
            "\n",
        )
    };
}

// facit_dot3(weights, x, columns, sums): r1 to r4. The caller's r6 to r9 are saved by the VM.
core::arch::global_asm!(
    ".globl facit_dot3",
    "facit_dot3:",
    "*(u64 *)(r10 - 8) = r4",
    "*(u64 *)(r10 - 16) = r3",
    "r4 = r3",
    "r4 >>= 5",
    "r4 <<= 8",
    "r4 += r2",
    "r5 = r1",
    "r5 += r3",
    "r5 += r3",
    "r3 += r1",
    "r6 = 0",
    "r7 = 0",
    "r8 = 0",
    "if r2 == r4 goto facit_dot3_fours",
    "facit_dot3_block:",
    columns!(
        0 0, 1 8, 2 16, 3 24, 4 32, 5 40, 6 48, 7 56, 8 64, 9 72, 10 80, 11 88, 12 96, 13 104,
        14 112, 15 120, 16 128, 17 136, 18 144, 19 152, 20 160, 21 168, 22 176, 23 184, 24 192,
        25 200, 26 208, 27 216, 28 224, 29 232, 30 240, 31 248
    ),
    next!(32, 256, "facit_dot3_block"),
    "facit_dot3_fours:",
    "r4 = *(u64 *)(r10 - 16)",
    "r4 &= 28",
    "r4 <<= 3",
    "r4 += r2",
    "if r2 == r4 goto facit_dot3_ones",
    "facit_dot3_four:",
    columns!(0 0, 1 8, 2 16, 3 24),
    next!(4, 32, "facit_dot3_four"),
    "facit_dot3_ones:",
    "r4 = *(u64 *)(r10 - 16)",
    "r4 &= 3",
    "r4 <<= 3",
    "r4 += r2",
    "if r2 == r4 goto facit_dot3_end",
    "facit_dot3_one:",
    columns!(0 0),
    next!(1, 8, "facit_dot3_one"),
    "facit_dot3_end:",
    "r4 = *(u64 *)(r10 - 8)",
    "*(u64 *)(r4 + 0) = r6",
    "*(u64 *)(r4 + 8) = r7",
    "*(u64 *)(r4 + 16) = r8",
    "exit",
);
