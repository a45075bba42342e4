//! `cargo xtask avx512`: the tests of `fixed`'s arithmetic and the built-in model's story on an emulated
//! processor with AVX-512, for machines that have none. `xtask/avx512` and the model become a disk
//! image that Bochs boots as an Ice Lake.

use crate::arch::need;
use crate::shell;
use anyhow::{Context, Result, bail};
use std::fs;

const FOLDER: &str = "target/avx512";
/// Where the model is put, in bytes; `xtask/avx512/src/story.rs` reads it there.
const MODEL_AT: usize = 2048 * 512;
/// What the boot sector loads at a time.
const CHUNK: usize = 64 * 512;
const SECTORS_A_TRACK: usize = 63;
const HEADS: usize = 16;
const CYLINDERS: usize = 20;

/// Runs everything and shows what was said.
pub fn run() -> Result<()> {
    story().map(|_| ())
}

/// Builds the image, boots it and fails unless every test passed; the story's line for the table of
/// targets.
pub fn story() -> Result<String> {
    for tool in ["bochs", "script", "as", "ld", "objcopy"] {
        need(&format!("/usr/bin/{tool}"))?;
    }
    if !cfg!(target_arch = "x86_64") {
        bail!("the image is built with the host's compiler and linker, which must be for x86-64");
    }
    let folder = shell::root().join(FOLDER);
    fs::create_dir_all(&folder)?;
    build_image()?;
    let serial = folder.join("serial.txt");
    let _ = fs::remove_file(&serial);
    let settings = format!(
        "display_library: term\nmegs: 1024\nboot: disk\nlog: bochs.log\nclock: sync=none\n\
         romimage: file=/usr/share/bochs/BIOS-bochs-latest\n\
         vgaromimage: file=/usr/share/bochs/VGABIOS-lgpl-latest\n\
         cpu: model=corei7_icelake_u, count=1, ips=100000000, reset_on_triple_fault=0\n\
         ata0-master: type=disk, path=disk.img, mode=flat, cylinders={CYLINDERS}, heads={HEADS}, \
         spt={SECTORS_A_TRACK}\ncom1: enabled=1, mode=file, dev=serial.txt\n"
    );
    fs::write(folder.join("bochsrc"), settings)?;
    fs::write(folder.join("commands"), "c\n")?;
    // Bochs draws on a terminal, which `script` stands in for. How it ends says nothing.
    let boot = format!(
        "cd {FOLDER} && TERM=xterm timeout 1200 script -qec 'bochs -q -f bochsrc -rc commands' \
         screen.txt >/dev/null 2>&1 </dev/null || true"
    );
    shell::run("sh", &["-c", &boot])?;
    let said = fs::read_to_string(&serial).unwrap_or_default();
    eprintln!("{said}");
    if !said.contains("backend avx512-vnni\n") || !said.ends_with("all passed\n") {
        bail!("not all tests passed on the emulated processor; its log is {FOLDER}/bochs.log");
    }
    let line = said.lines().find_map(|line| line.strip_prefix("story\t"));
    Ok(line.context("the emulated processor told no story")?.to_owned())
}

/// Boot sector, program and model, padded to the size of the disk.
fn build_image() -> Result<()> {
    let manifest = "xtask/avx512/Cargo.toml";
    let library = format!("{FOLDER}/release/libfacit_avx512.a");
    let (elf, flat) = (format!("{FOLDER}/program.elf"), format!("{FOLDER}/program.bin"));
    let build = ["build", "--release", "--locked", "--manifest-path", manifest, "--target-dir"];
    shell::run("cargo", &[&build[..], &[FOLDER]].concat())?;
    // The library that comes with the compiler can unwind; nothing here does.
    let unwind = ["--defsym=rust_eh_personality=0", "--defsym=_Unwind_Resume=0"];
    let link = ["-n", "-static", "--gc-sections", "--no-warn-rwx-segments", "-T"];
    let files = ["xtask/avx512/link.ld", "-o", &elf, &library];
    shell::run("ld", &[&link[..], &files, &unwind].concat())?;
    shell::run("objcopy", &["-O", "binary", &elf, &flat])?;

    let root = shell::root();
    let program = fs::read(root.join(&flat))?;
    let chunks = format!("CHUNKS={}", program.len().div_ceil(CHUNK));
    let (object, sector) = (format!("{FOLDER}/boot.o"), format!("{FOLDER}/boot.bin"));
    shell::run("as", &["--64", "--defsym", &chunks, "-o", &object, "xtask/avx512/boot.s"])?;
    let flat = ["-m", "elf_x86_64", "-Ttext", "0x7c00", "--oformat", "binary", "-e", "start", "-o"];
    shell::run("ld", &[&flat[..], &[&sector, &object]].concat())?;

    let mut image = fs::read(root.join(&sector))?;
    image.extend(program);
    let size = 512 * SECTORS_A_TRACK * HEADS * CYLINDERS;
    // The program has to stay below the BIOS's own memory at 640 KiB.
    if image.len() > 0x80000 {
        bail!("the program has grown to {} bytes: the boot sector loads 512 KiB", image.len());
    }
    image.resize(MODEL_AT, 0);
    image.extend(fs::read(root.join("assets/facit-tales/facit-tales.facit"))?);
    assert!(image.len() <= size, "the disk is too small for the model");
    image.resize(size, 0);
    fs::write(root.join(FOLDER).join("disk.img"), image)?;
    Ok(())
}
