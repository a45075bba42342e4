//! Rewrites LLVM IR text so that the BPF backend can compile it.
//!
//! - Large memory copies and fills become Solana's system calls.
//! - Signed division, 128-bit products and checked 64-bit products become calls of helper functions
//!   in IR, which are inlined afterwards.
//! - Functions with more parameters than there are registers for are inlined where they are called.

use crate::Result;
use std::fmt::Write;

/// Copies and fills of at most this many bytes are compiled to loads and stores.
const INLINE_BYTES: u64 = 64;
/// Parameters that fit registers r1 to r5.
const MAX_PARAMETERS: usize = 5;

/// Memory intrinsics and what replaces them.
const MEMORY: &[(&str, &str)] = &[
    ("@llvm.memcpy.p0.p0.i64(", "@sol_memmove_("),
    ("@llvm.memmove.p0.p0.i64(", "@sol_memmove_("),
    ("@llvm.memset.p0.i64(", "@__sbf_memset("),
];

/// The whole module, rewritten, helpers appended.
pub fn module(ir: &str) -> Result<String> {
    let mut out = String::with_capacity(ir.len() + 16_384);
    for line in ir.lines() {
        let line = memory(line).unwrap_or_else(|| line.to_owned());
        let line = arithmetic(&line).unwrap_or(line);
        let line = checked_products(line);
        out.push_str(&parameters(&line).unwrap_or(line));
        out.push('\n');
    }
    out.push_str(HELPERS);
    divisions(&mut out).map_err(|e| e.to_string())?;
    Ok(out)
}

/// A call of a memory intrinsic whose length is large or not known; the last argument (volatile) goes.
fn memory(line: &str) -> Option<String> {
    let (at, name, call) = MEMORY.iter().find_map(|(n, c)| Some((line.find(n)?, *n, *c)))?;
    if !line.contains("call void") {
        return None;
    }
    let end = at + line[at..].rfind(", i1 ")?;
    let len = line[at..end].rsplit("i64 ").next()?.trim().parse::<u64>();
    if len.is_ok_and(|len| len <= INLINE_BYTES) {
        return None;
    }
    let close = end + line[end..].find(')')?;
    let (before, arguments) = (&line[..at], &line[at + name.len()..end]);
    Some(format!("{before}{call}{arguments}{}", &line[close..]))
}

/// A signed division or remainder, or a 128-bit product.
fn arithmetic(line: &str) -> Option<String> {
    let (result, operation) = line.strip_prefix("  %")?.split_once(" = ")?;
    let (op, _) = operation.split_once(' ')?;
    let is_integer = |t: &&str| t.strip_prefix('i').is_some_and(|n| n.parse::<u32>().is_ok());
    let ty = operation.split(' ').find(is_integer)?;
    let helped = match op {
        "sdiv" | "srem" => matches!(ty, "i8" | "i16" | "i32" | "i64"),
        "mul" => ty == "i128",
        _ => false,
    };
    if !helped {
        return None;
    }
    let (_, operands) = operation.split_once(&format!(" {ty} "))?;
    let (operands, rest) = operands.split_at(operands.find(", !").unwrap_or(operands.len()));
    let (a, b) = operands.split_once(", ")?;
    Some(format!("  %{result} = call {ty} @__sbf_{op}_{ty}({ty} {a}, {ty} {b}){rest}"))
}

fn checked_products(line: String) -> String {
    if line.starts_with("declare") {
        return line;
    }
    line.replace("@llvm.umul.with.overflow.i64(", "@__sbf_umulo_i64(")
        .replace("@llvm.smul.with.overflow.i64(", "@__sbf_smulo_i64(")
}

/// The definition of an internal function with too many parameters, to be inlined.
fn parameters(line: &str) -> Option<String> {
    let definition = line.strip_prefix("define internal ")?;
    let name = definition.find('@')?;
    let open = name + definition[name..].find('(')?;
    let (mut depth, mut count) = (0, 1);
    for c in definition[open..].chars() {
        match c {
            '(' => depth += 1,
            ')' => depth -= 1,
            ',' if depth == 1 => count += 1,
            _ => {}
        }
        if depth == 0 {
            break;
        }
    }
    if count <= MAX_PARAMETERS || line.contains("alwaysinline") {
        return None;
    }
    let at = line.rfind(" #").or_else(|| line.rfind(" {"))?;
    Some(format!("{} alwaysinline{}", &line[..at], &line[at..]))
}

/// Signed division and remainder by the unsigned ones, for each width.
fn divisions(out: &mut String) -> std::fmt::Result {
    for width in [8u32, 16, 32, 64] {
        let widen = |v: &str| match width {
            64 => format!(" %x{v} = add i64 %{v}, 0\n"),
            _ => format!(" %x{v} = sext i{width} %{v} to i64\n"),
        };
        let narrow = match width {
            64 => " ret i64 %q3\n".to_owned(),
            _ => format!(" %t = trunc i64 %q3 to i{width}\n ret i{width} %t\n"),
        };
        for (op, unsigned, sign) in
            [("sdiv", "udiv", "xor i64 %sa, %sb"), ("srem", "urem", "add i64 %sa, 0")]
        {
            writeln!(
                out,
                "define internal i{width} @__sbf_{op}_i{width}(i{width} %a, i{width} %b) \
                 alwaysinline {{\n{}{} %sa = ashr i64 %xa, 63\n %sb = ashr i64 %xb, 63\n \
                 %a1 = xor i64 %xa, %sa\n %a2 = sub i64 %a1, %sa\n %b1 = xor i64 %xb, %sb\n \
                 %b2 = sub i64 %b1, %sb\n %q = {unsigned} i64 %a2, %b2\n %s = {sign}\n \
                 %q2 = xor i64 %q, %s\n %q3 = sub i64 %q2, %s\n{narrow}}}",
                widen("a"),
                widen("b"),
            )?;
        }
    }
    Ok(())
}

/// The high half of 64-bit products from 32-bit halves, and what is made of it.
const HELPERS: &str = r"
declare void @sol_memmove_(ptr, ptr, i64)
declare void @sol_memset_(ptr, i64, i64)
define internal void @__sbf_memset(ptr %p, i8 %c, i64 %n) alwaysinline {
 %c1 = zext i8 %c to i64
 call void @sol_memset_(ptr %p, i64 %c1, i64 %n)
 ret void
}
define internal i64 @__sbf_mulhi(i64 %a, i64 %b) alwaysinline {
 %al = and i64 %a, 4294967295
 %bl = and i64 %b, 4294967295
 %ah = lshr i64 %a, 32
 %bh = lshr i64 %b, 32
 %ll = mul i64 %al, %bl
 %lls = lshr i64 %ll, 32
 %hl = mul i64 %ah, %bl
 %t = add i64 %hl, %lls
 %tl = and i64 %t, 4294967295
 %th = lshr i64 %t, 32
 %lh = mul i64 %al, %bh
 %u = add i64 %lh, %tl
 %uh = lshr i64 %u, 32
 %hh = mul i64 %ah, %bh
 %r0 = add i64 %hh, %th
 %r1 = add i64 %r0, %uh
 ret i64 %r1
}
define internal i128 @__sbf_mul_i128(i128 %a, i128 %b) alwaysinline {
 %al = trunc i128 %a to i64
 %bl = trunc i128 %b to i64
 %as = lshr i128 %a, 64
 %bs = lshr i128 %b, 64
 %ah = trunc i128 %as to i64
 %bh = trunc i128 %bs to i64
 %lo = mul i64 %al, %bl
 %h0 = call i64 @__sbf_mulhi(i64 %al, i64 %bl)
 %c1 = mul i64 %al, %bh
 %c2 = mul i64 %ah, %bl
 %h1 = add i64 %h0, %c1
 %h2 = add i64 %h1, %c2
 %lo2 = zext i64 %lo to i128
 %hi2 = zext i64 %h2 to i128
 %hi3 = shl i128 %hi2, 64
 %r = or i128 %hi3, %lo2
 ret i128 %r
}
define internal { i64, i1 } @__sbf_umulo_i64(i64 %a, i64 %b) alwaysinline {
 %lo = mul i64 %a, %b
 %h = call i64 @__sbf_mulhi(i64 %a, i64 %b)
 %o = icmp ne i64 %h, 0
 %r0 = insertvalue { i64, i1 } poison, i64 %lo, 0
 %r1 = insertvalue { i64, i1 } %r0, i1 %o, 1
 ret { i64, i1 } %r1
}
define internal { i64, i1 } @__sbf_smulo_i64(i64 %a, i64 %b) alwaysinline {
 %lo = mul i64 %a, %b
 %h = call i64 @__sbf_mulhi(i64 %a, i64 %b)
 %sa = ashr i64 %a, 63
 %sb = ashr i64 %b, 63
 %x = and i64 %sa, %b
 %y = and i64 %sb, %a
 %h1 = sub i64 %h, %x
 %h2 = sub i64 %h1, %y
 %sl = ashr i64 %lo, 63
 %o = icmp ne i64 %h2, %sl
 %r0 = insertvalue { i64, i1 } poison, i64 %lo, 0
 %r1 = insertvalue { i64, i1 } %r0, i1 %o, 1
 ret { i64, i1 } %r1
}
";

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn small_copies_stay_and_large_ones_become_calls() {
        let copy = |n: &str| {
            format!(
                "  tail call void @llvm.memcpy.p0.p0.i64(ptr align 8 %a, ptr %b, i64 {n}, i1 false)"
            )
        };
        assert_eq!(memory(&copy("64")), None);
        let call = "  tail call void @sol_memmove_(ptr align 8 %a, ptr %b, i64 65)";
        assert_eq!(memory(&copy("65")).unwrap(), call);
        assert_eq!(memory(&copy("%n")).unwrap(), call.replace("65", "%n"));
    }

    #[test]
    fn signed_division_is_helped_and_unsigned_is_not() {
        let helped = arithmetic("  %3 = sdiv i64 %1, %2, !dbg !7").unwrap();
        assert_eq!(helped, "  %3 = call i64 @__sbf_sdiv_i64(i64 %1, i64 %2), !dbg !7");
        assert_eq!(arithmetic("  %3 = udiv i64 %1, %2"), None);
        assert_eq!(arithmetic("  %3 = mul i64 %1, %2"), None);
    }

    #[test]
    fn six_parameters_are_inlined_and_five_are_not() {
        let five = "define internal range(i32 0, 7) i32 @f(ptr align 8 %0, i64 %1, i64 %2, i64 %3, ptr dereferenceable(8) %4) #3 {";
        assert_eq!(parameters(five), None);
        let six = five.replace(") #3", ", i64 %5) #3");
        assert_eq!(parameters(&six).unwrap(), six.replace(" #3", " alwaysinline #3"));
    }
}
