//! sbf-ld: a linker that turns LLVM bitcode into a program that Solana's VM loads (sBPF version 3).
//!
//! rustc calls it (`linker = sbf-ld`, target `bpfel-unknown-none`). It links the bitcode of all inputs
//! with the distribution's LLVM tools, rewrites what the BPF backend has no code for ([`legalize`]),
//! compiles with `llc`, and lays the object out ([`elf`]). Not a general linker: one module, one
//! entrypoint, no writable globals.
//!
//! Environment: `SBF_LLVM` is the suffix of the tools' names (`-22`), `SBF_KEEP` a folder that keeps
//! the intermediate files.

mod elf;
mod legalize;

use std::path::{Path, PathBuf};
use std::process::{Command, ExitCode};
use std::{env, fs};

/// Suffix of the LLVM tools when `SBF_LLVM` is not set: the version behind Debian's compiler.
const LLVM: &str = "-22";
/// What the VM calls.
const ENTRYPOINT: &str = "entrypoint";
/// Options of linkers that take a value this one has no use for.
const IGNORED: &[&str] = &["--cpu", "--cpu-features", "--target", "--emit", "-L"];

type Result<T> = std::result::Result<T, String>;

fn main() -> ExitCode {
    match link() {
        Ok(()) => ExitCode::SUCCESS,
        Err(what) => {
            eprintln!("sbf-ld: {what}");
            ExitCode::FAILURE
        }
    }
}

/// The command line, as far as it matters.
struct Args {
    out: PathBuf,
    inputs: Vec<PathBuf>,
    exports: Vec<String>,
}

fn parse() -> Result<Args> {
    let mut args =
        Args { out: "a.so".into(), inputs: Vec::new(), exports: vec![ENTRYPOINT.to_owned()] };
    let mut words = env::args().skip(1);
    while let Some(word) = words.next() {
        let mut value = || words.next().ok_or(format!("{word} needs a value"));
        match word.as_str() {
            "-o" | "--output" => args.out = value()?.into(),
            "--export" => args.exports.push(value()?),
            "--export-symbols" => {
                let list = value()?;
                let names = fs::read_to_string(&list).map_err(|e| format!("{list}: {e}"))?;
                args.exports.extend(names.split_whitespace().map(str::to_owned));
            }
            option if IGNORED.contains(&option) => drop(value()?),
            option if option.starts_with('-') => {}
            file => args.inputs.push(file.into()),
        }
    }
    Ok(args)
}

fn link() -> Result<()> {
    let args = parse()?;
    let keep = env::var_os("SBF_KEEP").map(PathBuf::from);
    let folder = keep.clone().unwrap_or_else(|| args.out.with_extension("sbf-ld"));
    fs::create_dir_all(&folder).map_err(|e| format!("{}: {e}", folder.display()))?;
    let object = compile(&args, &folder)?;
    let program = elf::program(&object)?;
    fs::write(&args.out, program).map_err(|e| format!("{}: {e}", args.out.display()))?;
    if keep.is_none() {
        // What is left behind there does no harm.
        let _ = fs::remove_dir_all(&folder);
    }
    Ok(())
}

/// Bitcode to one BPF object.
fn compile(args: &Args, folder: &Path) -> Result<Vec<u8>> {
    let place = |name: &str| folder.join(name);
    let (linked, optimised, legal_text, legal, object) =
        (place("linked.bc"), place("opt.ll"), place("legal.ll"), place("legal.bc"), place("out.o"));
    let bitcode = bitcode(&args.inputs, folder)?;
    run(tool("llvm-link").arg("--only-needed").args(bitcode).arg("-o").arg(&linked))?;
    run(tool("opt")
        .arg(format!("--internalize-public-api-list={}", args.exports.join(",")))
        .arg("-passes=internalize,globaldce,default<O3>,globaldce")
        .arg("-S")
        .arg(&linked)
        .arg("-o")
        .arg(&optimised))?;
    let text = fs::read_to_string(&optimised).map_err(|e| format!("opt.ll: {e}"))?;
    fs::write(&legal_text, legalize::module(&text)?).map_err(|e| format!("legal.ll: {e}"))?;
    let tidy = "sroa,instcombine<no-verify-fixpoint>,simplifycfg,early-cse,dce";
    run(tool("opt")
        .arg(format!("-passes=always-inline,function({tidy}),globaldce"))
        .arg(&legal_text)
        .arg("-o")
        .arg(&legal))?;
    run(tool("llc")
        .args(["-O3", "-march=bpfel", "-mcpu=v2", "-mattr=+allows-misaligned-mem-access"])
        .args(["-bpf-stack-size=4096", "-expand-div-rem-bits=64", "-filetype=obj"])
        .arg(&legal)
        .arg("-o")
        .arg(&object))?;
    fs::read(&object).map_err(|e| format!("out.o: {e}"))
}

/// The bitcode files among the inputs and in their archives, the program's own first.
fn bitcode(inputs: &[PathBuf], folder: &Path) -> Result<Vec<PathBuf>> {
    let (mut own, mut libraries) = (Vec::new(), Vec::new());
    for (i, input) in inputs.iter().enumerate() {
        if input.extension().is_some_and(|e| e == "rlib" || e == "a") {
            let members = folder.join(format!("archive{i}"));
            fs::create_dir_all(&members).map_err(|e| format!("{}: {e}", members.display()))?;
            let archive =
                fs::canonicalize(input).map_err(|e| format!("{}: {e}", input.display()))?;
            run(tool("llvm-ar").arg("x").arg(archive).current_dir(&members))?;
            let list = fs::read_dir(&members).map_err(|e| format!("{}: {e}", members.display()))?;
            let mut files: Vec<PathBuf> =
                list.filter_map(|f| Some(f.ok()?.path())).filter(|f| is_bitcode(f)).collect();
            files.sort();
            libraries.append(&mut files);
        } else if is_bitcode(input) {
            own.push(input.clone());
        }
        // What else there is (rustc's list of exported symbols as an object) holds no code.
    }
    if own.is_empty() {
        return Err("no input is LLVM bitcode: is the target bpfel-unknown-none?".to_owned());
    }
    own.append(&mut libraries);
    Ok(own)
}

fn is_bitcode(file: &Path) -> bool {
    fs::read(file).is_ok_and(|bytes| bytes.starts_with(b"BC\xC0\xDE"))
}

fn tool(name: &str) -> Command {
    Command::new(format!("{name}{}", env::var("SBF_LLVM").as_deref().unwrap_or(LLVM)))
}

fn run(command: &mut Command) -> Result<()> {
    let status = command.status().map_err(|e| {
        format!("cannot start {:?}: {e} (scripts/setup.sh installs it)", command.get_program())
    })?;
    if status.success() { Ok(()) } else { Err(format!("{status}: {command:?}")) }
}
