//! `cargo xtask wasm`: the integer core as WebAssembly, with and without 128-bit vectors, and the
//! web page around it, ready for any static server.
//!
//! Debian's compiler builds it, with the standard library from its source (`scripts/setup.sh`).

use crate::arch::{CARGO, RUSTC, llvm, need};
use crate::shell;
use anyhow::{Context, Result, bail, ensure};
use std::fs;
use std::path::Path;

/// The functions the module exports: the published interface, no more and no less.
const EXPORTS: [&str; 11] = [
    "alloc",
    "convert",
    "dealloc",
    "init_state",
    "plan_turn",
    "quote",
    "required_section",
    "result_len",
    "state_size",
    "turn",
    "turn_with_sections",
];

/// Where the package looks for its modules.
const DIST: &str = "web/package/dist";
/// The page with all it loads.
const SITE: &str = "target/web";
const TRIPLE: &str = "wasm32-unknown-unknown";
const TARGET_DIR: &str = "target/wasm";

/// Builds both modules, checks their exports and assembles the page.
pub fn run() -> Result<()> {
    let root = shell::root();
    fs::create_dir_all(root.join(DIST))?;
    for (name, flags) in [("fixed", &[][..]), ("fixed-simd", &["-C", "target-feature=+simd128"])] {
        build(flags)?;
        let built = root.join(TARGET_DIR).join(TRIPLE).join("release/fixed.wasm");
        let module = fs::read(&built).with_context(|| built.display().to_string())?;
        check_exports(&module).with_context(|| format!("{name}.wasm"))?;
        fs::write(root.join(DIST).join(format!("{name}.wasm")), &module)?;
        println!("{DIST}/{name}.wasm: {} bytes, {} functions", module.len(), EXPORTS.len());
    }
    assemble(&root)
}

/// Builds, then tests package and page in node and in Chromium, against the native binary too.
pub fn test() -> Result<()> {
    run()?;
    need_node_modules()?;
    shell::run("cargo", &["build", "-p", "facit", "--locked"])?;
    let mut tests = Vec::new();
    for folder in ["web/package/test", "web/test"] {
        for entry in fs::read_dir(shell::root().join(folder))? {
            let name = entry?.file_name().to_string_lossy().into_owned();
            if name.ends_with(".test.js") {
                tests.push(format!("{folder}/{name}"));
            }
        }
    }
    tests.sort();
    let tests = tests.iter().map(String::as_str);
    let args: Vec<&str> = ["--test", "--test-concurrency=2", "--test-reporter=spec"]
        .into_iter()
        .chain(tests)
        .collect();
    shell::run("node", &args)
}

/// Fails with what to do unless the browser's driver is installed.
pub fn need_node_modules() -> Result<()> {
    let driver = shell::root().join("web/node_modules/playwright-core");
    ensure!(
        driver.exists(),
        "{} is missing: run scripts/setup.sh, or `npm ci` in web/",
        driver.display()
    );
    Ok(())
}

/// Builds the module, with flags for `fixed` itself: one standard library does for both.
fn build(flags: &[&str]) -> Result<()> {
    need(RUSTC)?;
    let linker = linker()?;
    let args = "rustc -p facit-fixed --features std --lib --release --locked --crate-type cdylib \
                -Z build-std=std,panic_abort --target";
    let ours = [TRIPLE, "--target-dir", TARGET_DIR, "--"];
    let args: Vec<&str> =
        args.split_whitespace().chain(ours).chain(flags.iter().copied()).collect();
    shell::run_with(
        CARGO,
        &args,
        &[
            ("RUSTC", RUSTC),
            ("RUSTC_BOOTSTRAP", "1"),
            ("CARGO_TARGET_WASM32_UNKNOWN_UNKNOWN_LINKER", &linker),
            ("CARGO_PROFILE_RELEASE_DEBUG", "false"),
            ("CARGO_PROFILE_RELEASE_STRIP", "symbols"),
            ("CARGO_PROFILE_RELEASE_CODEGEN_UNITS", "1"),
        ],
    )
}

/// The WebAssembly linker of the compiler's own LLVM version.
fn linker() -> Result<String> {
    let linker = format!("/usr/bin/wasm-ld-{}", llvm()?);
    need(&linker)?;
    Ok(linker)
}

fn check_exports(module: &[u8]) -> Result<()> {
    let (functions, imports) = interface(module).context("the module cannot be read")?;
    ensure!(imports == 0, "it imports {imports} things; the core stands alone");
    ensure!(
        functions == EXPORTS,
        "it exports {functions:?}; the published interface is {EXPORTS:?}"
    );
    Ok(())
}

/// The exported functions' names, sorted, and how many imports there are.
fn interface(module: &[u8]) -> Option<(Vec<&str>, u64)> {
    const IMPORTS: u8 = 2;
    const EXPORTS: u8 = 7;
    const FUNCTION: u8 = 0;
    let mut rest = module.strip_prefix(b"\0asm\x01\0\0\0")?;
    let (mut functions, mut imports) = (Vec::new(), 0);
    while let Some((id, after)) = rest.split_first() {
        let (len, after) = number(after)?;
        let (mut section, after) = after.split_at_checked(usize::try_from(len).ok()?)?;
        rest = after;
        if *id == IMPORTS {
            imports = number(section)?.0;
        }
        if *id == EXPORTS {
            let count;
            (count, section) = number(section)?;
            for _ in 0..count {
                let (len, after) = number(section)?;
                let (name, after) = after.split_at_checked(usize::try_from(len).ok()?)?;
                let (kind, after) = after.split_first()?;
                section = number(after)?.1;
                if *kind == FUNCTION {
                    functions.push(std::str::from_utf8(name).ok()?);
                }
            }
        }
    }
    functions.sort_unstable();
    Some((functions, imports))
}

/// An unsigned LEB128 number and what follows it.
fn number(mut bytes: &[u8]) -> Option<(u64, &[u8])> {
    let mut value = 0;
    for shift in (0..35).step_by(7) {
        let (byte, rest) = bytes.split_first()?;
        bytes = rest;
        value |= u64::from(byte & 0x7F) << shift;
        if byte & 0x80 == 0 {
            return Some((value, bytes));
        }
    }
    None
}

/// Copies page, package and built-in model into one folder.
fn assemble(root: &Path) -> Result<()> {
    let site = root.join(SITE);
    if site.exists() {
        fs::remove_dir_all(&site)?;
    }
    for (from, to) in [("web/page", ""), ("web/package/src", "package/src"), (DIST, "package/dist")]
    {
        copy(&root.join(from), &site.join(to))?;
    }
    fs::copy(root.join("assets/facit-tales/facit-tales.facit"), site.join("facit-tales.facit"))?;
    println!("{SITE}: the page; serve it with any static server");
    Ok(())
}

/// Copies a folder's files; there are no folders inside.
fn copy(from: &Path, to: &Path) -> Result<()> {
    fs::create_dir_all(to)?;
    for entry in fs::read_dir(from).with_context(|| from.display().to_string())? {
        let entry = entry?;
        if !entry.file_type()?.is_file() {
            bail!("{} is not a file", entry.path().display());
        }
        fs::copy(entry.path(), to.join(entry.file_name()))?;
    }
    Ok(())
}

#[cfg(test)]
mod tests {
    use super::*;

    /// A module with nothing but an export section of these names and kinds.
    fn module(exports: &[(&str, u8)]) -> Vec<u8> {
        let mut section = vec![exports.len() as u8];
        for (name, kind) in exports {
            section.push(name.len() as u8);
            section.extend_from_slice(name.as_bytes());
            section.extend_from_slice(&[*kind, 0]);
        }
        // The length as LEB128 in two bytes: it may be above 127.
        let length = [section.len() as u8 | 0x80, (section.len() >> 7) as u8];
        [b"\0asm\x01\0\0\0".as_slice(), &[7], &length, &section].concat()
    }

    /// Catches a check that passes whatever is exported.
    #[test]
    fn only_the_published_exports_pass() {
        let good: Vec<(&str, u8)> =
            EXPORTS.iter().rev().map(|name| (*name, 0)).chain([("memory", 2)]).collect();
        check_exports(&module(&good)).unwrap();
        assert!(check_exports(&module(&good[1..])).is_err(), "one is missing");
        let more: Vec<_> = good.iter().copied().chain([("other", 0)]).collect();
        assert!(check_exports(&module(&more)).is_err(), "one too many");
        assert!(check_exports(b"\0asm\x01\0\0\0").is_err(), "none at all");
        assert!(check_exports(&module(&good)[..40]).is_err(), "cut off");
    }
}
