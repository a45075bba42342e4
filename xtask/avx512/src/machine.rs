//! The bare machine: entry, serial port, memory, the end.

use core::alloc::{GlobalAlloc, Layout};
use core::arch::asm;
use core::fmt::{self, Write};
use core::sync::atomic::{AtomicUsize, Ordering::Relaxed};

/// Port of the first serial line.
const SERIAL: u16 = 0x3F8;
/// The emulator ends when "Shutdown" is written here.
const POWER: u16 = 0x8900;
/// Free memory: above the stack, below the end of what is mapped.
const HEAP: usize = 8 << 20;
const HEAP_END: usize = 1000 << 20;

fn write_port(port: u16, byte: u8) {
    // SAFETY: the ports above do nothing to memory.
    unsafe { asm!("out dx, al", in("dx") port, in("al") byte, options(nomem, nostack)) }
}

fn read_port(port: u16) -> u8 {
    let byte;
    // SAFETY: as above.
    unsafe { asm!("in al, dx", in("dx") port, out("al") byte, options(nomem, nostack)) }
    byte
}

/// The first serial line.
pub struct Serial;

impl Write for Serial {
    fn write_str(&mut self, text: &str) -> fmt::Result {
        for byte in text.bytes() {
            // Until the line can take another byte.
            while read_port(SERIAL + 5) & 0x20 == 0 {}
            write_port(SERIAL, byte);
        }
        Ok(())
    }
}

/// Bytes of a sector of the disk.
pub const SECTOR: usize = 512;
/// Ports of the first disk: data, error, count, three bytes of the address, drive, command.
const DISK: u16 = 0x1F0;

/// Reads whole sectors from the disk, the first at `sector`.
///
/// # Panics
/// If the disk reports an error, or `into` is not whole sectors.
pub fn read_disk(sector: u32, into: &mut [u8]) {
    let (sectors, []) = into.as_chunks_mut::<SECTOR>() else { panic!("whole sectors") };
    for (at, sector) in sectors.iter_mut().zip(sector..) {
        let [low, middle, high, top] = sector.to_le_bytes();
        // One sector, by its number, on the first drive.
        for (port, byte) in [1, low, middle, high, 0xE0 | top, 0x20].into_iter().enumerate() {
            write_port(DISK + 2 + port as u16, byte);
        }
        // Until it is not busy and has data.
        while read_port(DISK + 7) & 0x88 != 0x08 {
            assert!(read_port(DISK + 7) & 0x81 != 0x01, "the disk cannot read sector {sector}");
        }
        // SAFETY: 256 words are the sector that is there.
        unsafe {
            asm!("rep insw", in("dx") DISK, inout("rcx") SECTOR / 2 => _,
                inout("rdi") at.as_mut_ptr() => _, options(nostack));
        }
    }
}

/// Whether the processor has what the backend asks of `std` elsewhere.
pub fn has_avx512_vnni() -> bool {
    let leaf = core::arch::x86_64::__cpuid_count(7, 0);
    let (f, dq, bw, vl, vnni) =
        (leaf.ebx >> 16, leaf.ebx >> 17, leaf.ebx >> 30, leaf.ebx >> 31, leaf.ecx >> 11);
    f & dq & bw & vl & vnni & 1 == 1
}

#[unsafe(no_mangle)]
#[unsafe(link_section = ".text.start")]
extern "C" fn _start() -> ! {
    // Eight data bits, or only five arrive.
    write_port(SERIAL + 3, 3);
    crate::run();
    end()
}

#[panic_handler]
fn panic(info: &core::panic::PanicInfo<'_>) -> ! {
    let _ = writeln!(Serial, "{info}");
    end()
}

fn end() -> ! {
    // Until the last byte has left the line, at 9600 baud or so.
    while read_port(SERIAL + 5) & 0x40 == 0 {}
    for _ in 0..1_000_000 {
        core::hint::spin_loop();
    }
    for byte in *b"Shutdown" {
        write_port(POWER, byte);
    }
    loop {
        core::hint::spin_loop();
    }
}

/// Gives memory from bottom to top, and takes back what was given last. Every block is aligned for
/// any vector, and so for a state.
struct Stack(AtomicUsize);

#[global_allocator]
static MEMORY: Stack = Stack(AtomicUsize::new(HEAP));

// SAFETY: blocks never overlap, as the one thread moves the top past each; all of it is mapped.
unsafe impl GlobalAlloc for Stack {
    unsafe fn alloc(&self, layout: Layout) -> *mut u8 {
        let start = self.0.load(Relaxed).next_multiple_of(layout.align().max(64));
        if start + layout.size() > HEAP_END {
            return core::ptr::null_mut();
        }
        self.0.store(start + layout.size(), Relaxed);
        start as *mut u8
    }

    unsafe fn dealloc(&self, block: *mut u8, layout: Layout) {
        if block as usize + layout.size() == self.0.load(Relaxed) {
            self.0.store(block as usize, Relaxed);
        }
    }
}

// What the compiler calls and a system's library would have. In assembly, lest the compiler turn them
// into calls of themselves.

#[unsafe(no_mangle)]
unsafe extern "C" fn memcpy(to: *mut u8, from: *const u8, n: usize) -> *mut u8 {
    // SAFETY: the caller's promise.
    unsafe {
        asm!("rep movsb", inout("rcx") n => _, inout("rdi") to => _, inout("rsi") from => _);
    }
    to
}

#[unsafe(no_mangle)]
unsafe extern "C" fn memmove(to: *mut u8, from: *const u8, n: usize) -> *mut u8 {
    if (to as usize).wrapping_sub(from as usize) >= n {
        // SAFETY: forwards, nothing is overwritten before it is read.
        return unsafe { memcpy(to, from, n) };
    }
    // SAFETY: the caller's promise; backwards, as the blocks overlap.
    unsafe {
        asm!("std", "rep movsb", "cld", inout("rcx") n => _,
            inout("rdi") to.wrapping_add(n).wrapping_sub(1) => _,
            inout("rsi") from.wrapping_add(n).wrapping_sub(1) => _);
    }
    to
}

#[unsafe(no_mangle)]
unsafe extern "C" fn memset(to: *mut u8, byte: i32, n: usize) -> *mut u8 {
    // SAFETY: the caller's promise.
    unsafe {
        asm!("rep stosb", inout("rcx") n => _, inout("rdi") to => _, in("al") byte as u8);
    }
    to
}

#[unsafe(no_mangle)]
unsafe extern "C" fn memcmp(a: *const u8, b: *const u8, n: usize) -> i32 {
    for i in 0..n {
        // SAFETY: the caller's promise; volatile, so that it stays a loop.
        let (a, b) = unsafe { (a.add(i).read_volatile(), b.add(i).read_volatile()) };
        if a != b {
            return i32::from(a) - i32::from(b);
        }
    }
    0
}

#[unsafe(no_mangle)]
unsafe extern "C" fn bcmp(a: *const u8, b: *const u8, n: usize) -> i32 {
    // SAFETY: the caller's promise.
    unsafe { memcmp(a, b, n) }
}
