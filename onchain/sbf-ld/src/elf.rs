//! Lays a relocatable BPF object out as an sBPF version 3 program: constants at virtual address 0,
//! byte code at 2^32, calls relative, system calls by the hash of their name.

use crate::{ENTRYPOINT, Result};

/// Virtual address of the byte code.
const TEXT: u64 = 1 << 32;
/// Bytes of an ELF header, a program header, a section header, a symbol, a relocation.
const EHDR: usize = 64;
const PHDR: usize = 56;
const SHDR: usize = 64;
const SYMBOL: usize = 24;
const RELOCATION: usize = 16;

/// Section types and flags.
mod section {
    pub const SYMBOLS: u32 = 2;
    pub const ZEROS: u32 = 8;
    pub const RELOCATIONS: u32 = 9;
    pub const WRITE: u64 = 1;
    pub const ALLOC: u64 = 2;
    pub const CODE: u64 = 4;
}

/// Relocation types of BPF objects.
mod relocation {
    /// 64-bit immediate of a two-slot load.
    pub const IMMEDIATE: u32 = 1;
    /// 64-bit word of data.
    pub const WORD: u32 = 2;
    /// Target of a call.
    pub const CALL: u32 = 10;
}

/// A section header.
struct Section {
    name: String,
    kind: u32,
    flags: u64,
    offset: usize,
    size: usize,
    link: usize,
    info: usize,
    align: usize,
}

/// A symbol: its name, its section (0: undefined) and its offset there.
struct Symbol {
    name: String,
    section: usize,
    value: u64,
}

/// Where a section went.
#[derive(Clone, Copy)]
struct Placed {
    is_text: bool,
    offset: u64,
}

struct Object<'a> {
    bytes: &'a [u8],
    sections: Vec<Section>,
    symbols: Vec<Symbol>,
}

/// The program in the form the VM loads.
pub fn program(object: &[u8]) -> Result<Vec<u8>> {
    let object = Object::read(object)?;
    let mut image = Image::default();
    image.place(&object)?;
    image.relocate(&object)?;
    let entry = object.symbols.iter().find(|s| s.name == ENTRYPOINT && s.section != 0);
    let entry = entry.ok_or(format!("the program has no function `{ENTRYPOINT}`"))?;
    let entry = image.address(entry)?;
    Ok(image.to_elf(entry))
}

impl<'a> Object<'a> {
    fn read(bytes: &'a [u8]) -> Result<Object<'a>> {
        if !bytes.starts_with(b"\x7fELF\x02\x01") || bytes.len() < EHDR {
            return Err("llc did not write a little-endian 64-bit ELF object".to_owned());
        }
        let table = place(bytes, 40)?;
        let (count, names) = (half(bytes, 60)? as usize, half(bytes, 62)? as usize);
        let names = place(bytes, table + names * SHDR + 24)?;
        let sections = (0..count).map(|i| {
            let at = table + i * SHDR;
            Ok(Section {
                name: text(bytes, names + int(bytes, at)? as usize)?,
                kind: int(bytes, at + 4)?,
                flags: word(bytes, at + 8)?,
                offset: place(bytes, at + 24)?,
                size: place(bytes, at + 32)?,
                link: int(bytes, at + 40)? as usize,
                info: int(bytes, at + 44)? as usize,
                align: place(bytes, at + 48)?.max(1),
            })
        });
        let sections = sections.collect::<Result<Vec<_>>>()?;
        let table = sections.iter().find(|s| s.kind == section::SYMBOLS);
        let table = table.ok_or("the object has no symbol table")?;
        let names = sections.get(table.link).ok_or("the symbols have no names")?.offset;
        let symbols = (table.offset..table.offset + table.size).step_by(SYMBOL).map(|at| {
            Ok(Symbol {
                name: text(bytes, names + int(bytes, at)? as usize)?,
                section: half(bytes, at + 6)? as usize,
                value: word(bytes, at + 8)?,
            })
        });
        let symbols = symbols.collect::<Result<Vec<_>>>()?;
        Ok(Object { bytes, sections, symbols })
    }
}

#[derive(Default)]
struct Image {
    placed: Vec<Option<Placed>>,
    constants: Vec<u8>,
    text: Vec<u8>,
}

impl Image {
    /// Puts every section that is loaded into constants or text.
    fn place(&mut self, object: &Object<'_>) -> Result<()> {
        for s in &object.sections {
            self.placed.push(None);
            if s.flags & section::ALLOC == 0 || s.size == 0 {
                continue;
            }
            let writes = s.flags & section::WRITE != 0 && !s.name.starts_with(".data.rel.ro");
            if s.kind == section::ZEROS || writes {
                return Err(format!("section {}: programs have no writable globals", s.name));
            }
            let bytes = object.bytes.get(s.offset..s.offset + s.size);
            let bytes = bytes.ok_or(format!("section {} is cut off", s.name))?;
            let is_text = s.flags & section::CODE != 0;
            let into = if is_text { &mut self.text } else { &mut self.constants };
            into.resize(into.len().next_multiple_of(s.align), 0);
            *self.placed.last_mut().expect("just pushed") =
                Some(Placed { is_text, offset: into.len() as u64 });
            into.extend_from_slice(bytes);
        }
        self.constants.resize(self.constants.len().next_multiple_of(8), 0);
        Ok(())
    }

    /// Virtual address of a symbol that is defined.
    fn address(&self, symbol: &Symbol) -> Result<u64> {
        let placed = self.placed.get(symbol.section).copied().flatten();
        let placed = placed.ok_or(format!("`{}` is not in a loaded section", symbol.name))?;
        let start = placed.offset + if placed.is_text { TEXT } else { 0 };
        Ok(start.wrapping_add(symbol.value))
    }

    fn relocate(&mut self, object: &Object<'_>) -> Result<()> {
        for s in object.sections.iter().filter(|s| s.kind == section::RELOCATIONS) {
            let Some(target) = self.placed.get(s.info).copied().flatten() else { continue };
            for at in (s.offset..s.offset + s.size).step_by(RELOCATION) {
                let offset = place(object.bytes, at)? + target.offset as usize;
                let info = word(object.bytes, at + 8)?;
                let symbol = object.symbols.get((info >> 32) as usize);
                let symbol = symbol.ok_or("a relocation against no symbol")?;
                self.apply(target.is_text, offset, info as u32, symbol)?;
            }
        }
        Ok(())
    }

    fn apply(&mut self, in_text: bool, at: usize, kind: u32, symbol: &Symbol) -> Result<()> {
        let address = if symbol.section == 0 { None } else { Some(self.address(symbol)?) };
        let defined = || address.ok_or(format!("undefined symbol `{}`", symbol.name));
        let image = if in_text { &mut self.text } else { &mut self.constants };
        word(image, at)?;
        match kind {
            relocation::IMMEDIATE => {
                let low = int(image, at + 4)? as u64 | (int(image, at + 12)? as u64) << 32;
                let value = defined()?.wrapping_add(low);
                image[at + 4..at + 8].copy_from_slice(&(value as u32).to_le_bytes());
                image[at + 12..at + 16].copy_from_slice(&((value >> 32) as u32).to_le_bytes());
            }
            relocation::WORD => {
                let value = defined()?.wrapping_add(word(image, at)?);
                image[at..at + 8].copy_from_slice(&value.to_le_bytes());
            }
            relocation::CALL => {
                let (source, immediate) = match address {
                    Some(address) => {
                        // A call of a section's symbol has the function's place in its immediate.
                        let inside = match symbol.value {
                            0 => (int(image, at + 4)? as i32 as i64 + 1) * 8,
                            _ => 0,
                        };
                        let to = (address.wrapping_sub(TEXT) as i64).wrapping_add(inside);
                        (0x10, (to.wrapping_sub(at as i64) / 8 - 1) as u32)
                    }
                    None if symbol.name == "abort" || symbol.name.starts_with("sol_") => {
                        (0, murmur3(symbol.name.as_bytes()))
                    }
                    None => return Err(format!("undefined symbol `{}`", symbol.name)),
                };
                image[at + 1] = (image[at + 1] & 15) | source;
                image[at + 4..at + 8].copy_from_slice(&immediate.to_le_bytes());
            }
            other => return Err(format!("relocation type {other} against `{}`", symbol.name)),
        }
        Ok(())
    }

    fn to_elf(&self, entry: u64) -> Vec<u8> {
        let all = [(&self.constants, 4u32, 0u64), (&self.text, 1, TEXT)];
        let segments: Vec<_> = all.into_iter().filter(|(bytes, ..)| !bytes.is_empty()).collect();
        let mut elf = Vec::new();
        elf.extend_from_slice(b"\x7fELF\x02\x01\x01\0\0\0\0\0\0\0\0\0");
        // A shared object for machine 247 (BPF), ELF version 1.
        elf.extend([3u16, 247].map(u16::to_le_bytes).concat());
        elf.extend(1u32.to_le_bytes());
        elf.extend([entry, EHDR as u64, 0].map(u64::to_le_bytes).concat());
        // The flags are the sBPF version; then sizes and counts of headers.
        elf.extend(3u32.to_le_bytes());
        let counts = [EHDR, PHDR, segments.len(), SHDR, 0, 0].map(|n| (n as u16).to_le_bytes());
        elf.extend(counts.concat());
        let mut offset = (EHDR + PHDR * segments.len()) as u64;
        for (bytes, flags, address) in &segments {
            let len = bytes.len() as u64;
            elf.extend([1u32, *flags].map(u32::to_le_bytes).concat());
            elf.extend([offset, *address, *address, len, len, 0].map(u64::to_le_bytes).concat());
            offset += len;
        }
        for (bytes, ..) in segments {
            elf.extend_from_slice(bytes);
        }
        elf
    }
}

fn bytes_at<const N: usize>(bytes: &[u8], at: usize) -> Result<[u8; N]> {
    let found = bytes.get(at..).and_then(|rest| rest.first_chunk());
    found.copied().ok_or(format!("the object ends before byte {at}"))
}

fn half(bytes: &[u8], at: usize) -> Result<u16> {
    bytes_at(bytes, at).map(u16::from_le_bytes)
}

fn int(bytes: &[u8], at: usize) -> Result<u32> {
    bytes_at(bytes, at).map(u32::from_le_bytes)
}

fn word(bytes: &[u8], at: usize) -> Result<u64> {
    bytes_at(bytes, at).map(u64::from_le_bytes)
}

/// An offset or a size in the object itself: sums of a few of them cannot overflow.
fn place(bytes: &[u8], at: usize) -> Result<usize> {
    let value = usize::try_from(word(bytes, at)?).ok().filter(|value| *value <= bytes.len());
    value.ok_or(format!("an offset beyond the object's end at byte {at}"))
}

fn text(bytes: &[u8], at: usize) -> Result<String> {
    let rest = bytes.get(at..).ok_or("a name beyond the object's end")?;
    let name = rest.split(|b| *b == 0).next().unwrap_or_default();
    Ok(String::from_utf8_lossy(name).into_owned())
}

/// MurmurHash3 (32 bits, seed 0), which numbers system calls.
fn murmur3(data: &[u8]) -> u32 {
    let scramble = |k: u32| k.wrapping_mul(0xcc9e_2d51).rotate_left(15).wrapping_mul(0x1b87_3593);
    let (chunks, rest) = data.as_chunks::<4>();
    let mut hash = chunks.iter().fold(0u32, |hash, chunk| {
        let hash = hash ^ scramble(u32::from_le_bytes(*chunk));
        hash.rotate_left(13).wrapping_mul(5).wrapping_add(0xe654_6b64)
    });
    let last = rest.iter().rev().fold(0u32, |last, byte| last << 8 | *byte as u32);
    hash ^= scramble(last) ^ data.len() as u32;
    hash = (hash ^ hash >> 16).wrapping_mul(0x85eb_ca6b);
    hash = (hash ^ hash >> 13).wrapping_mul(0xc2b2_ae35);
    hash ^ hash >> 16
}

#[cfg(test)]
mod tests {
    use super::*;

    /// Known numbers of system calls.
    #[test]
    fn system_calls_have_their_numbers() {
        assert_eq!(murmur3(b"abort"), 0xb6fc_1a11);
        assert_eq!(murmur3(b"sol_memcpy_"), 0x717c_c4a3);
        assert_eq!(murmur3(b"sol_log_64_"), 0x5c2a_3178);
    }

    #[test]
    fn bytes_that_are_no_object_are_refused() {
        assert!(program(b"BC\xC0\xDE").is_err());
        assert!(program(&[b"\x7fELF\x02\x01".as_slice(), &[0xFF; 80]].concat()).is_err());
    }
}
