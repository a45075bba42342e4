//! Reads through io_uring: one thread keeps a fixed number of requests in flight.
#![allow(unsafe_code)]

use super::reader::{CHUNK, Shared, read_chunk};
use super::{Done, ReadFailure, Request};
use std::io;

#[cfg(target_os = "linux")]
pub(super) use linux::Ring;

/// Elsewhere there is no io_uring.
#[cfg(not(target_os = "linux"))]
pub(super) struct Ring;

#[cfg(not(target_os = "linux"))]
impl Ring {
    pub fn new(_: usize) -> io::Result<Self> {
        Err(io::ErrorKind::Unsupported.into())
    }

    pub fn run(self, _: &Shared) {}
}

/// A request of which parts are in flight.
struct Active {
    request: Request,
    /// Next part to send: window and byte within it.
    window: usize,
    start: usize,
    in_flight: usize,
    result: Result<(), ReadFailure>,
}

impl Active {
    fn new(request: Request) -> Self {
        Active { request, window: 0, start: 0, in_flight: 0, result: Ok(()) }
    }

    /// The next part to send: window, its first byte, its length.
    fn next_part(&mut self) -> Option<(usize, usize, usize)> {
        if self.result.is_err() {
            return None;
        }
        let w = self.request.windows.get(self.window)?;
        let part = (self.window, self.start, CHUNK.min(w.len - self.start));
        self.start += part.2;
        if self.start >= w.len {
            self.window += 1;
            self.start = 0;
        }
        Some(part)
    }

    fn all_sent(&self) -> bool {
        self.result.is_err() || self.window >= self.request.windows.len()
    }

    fn finished(&self) -> bool {
        self.in_flight == 0 && self.all_sent()
    }
}

#[cfg(target_os = "linux")]
mod linux {
    use super::{Active, Done, Shared, io, read_chunk};
    use io_uring::{IoUring, opcode, types};
    use std::os::fd::AsRawFd;

    /// What an entry in flight is: request, window, first byte, length.
    type Flight = (usize, usize, usize, usize);

    /// A ring and everything the kernel may be writing to.
    pub struct Ring {
        ring: IoUring,
        /// By slot; a slot is free if `None`.
        active: Vec<Option<Active>>,
        /// By entry; as many as the ring has.
        flights: Vec<Option<Flight>>,
    }

    impl Ring {
        /// Probes whether io_uring works here: it may be compiled out, forbidden, or too old.
        pub fn new(depth: usize) -> io::Result<Self> {
            let depth = depth.clamp(1, 4096);
            let ring = IoUring::new(depth as u32)?;
            let mut probe = io_uring::Probe::new();
            ring.submitter().register_probe(&mut probe)?;
            if !probe.is_supported(opcode::Read::CODE) {
                return Err(io::ErrorKind::Unsupported.into());
            }
            Ok(Ring { ring, active: Vec::new(), flights: vec![None; depth] })
        }

        pub fn run(mut self, shared: &Shared) {
            loop {
                self.fill(shared);
                if self.in_flight() > 0 {
                    if self.wait().is_err() {
                        // The kernel does not take entries any more: finish by hand.
                        self.give_up(shared);
                    }
                    self.reap(shared);
                } else if shared.stopped() {
                    return;
                } else if !self.active.iter().any(Option::is_some) {
                    match shared.next(true, false) {
                        Some(request) => self.begin(shared, request),
                        None => return,
                    }
                }
            }
        }

        fn in_flight(&self) -> usize {
            self.flights.iter().flatten().count()
        }

        fn begin(&mut self, shared: &Shared, request: super::Request) {
            shared.flight(true);
            let active = Some(Active::new(request));
            let slot = match self.active.iter().position(Option::is_none) {
                Some(slot) => slot,
                None => {
                    self.active.push(None);
                    self.active.len() - 1
                }
            };
            self.active[slot] = active;
            // Nothing to read is done at once.
            self.retire(shared, slot);
        }

        /// Sends parts until the ring is full: urgent requests, then the others, each in
        /// the order they came.
        fn fill(&mut self, shared: &Shared) {
            if shared.stopped() {
                return;
            }
            while let Some(request) = shared.next(false, true) {
                self.begin(shared, request);
            }
            while let Some(entry) = self.flights.iter().position(Option::is_none) {
                let Some(slot) = self.pick(shared) else { return };
                self.send(shared, entry, slot);
            }
        }

        /// The request to send a part of: an urgent one if there is one.
        fn pick(&mut self, shared: &Shared) -> Option<usize> {
            let open = |a: &Option<Active>| a.as_ref().is_some_and(|a| !a.all_sent());
            let urgent = |a: &Option<Active>| a.as_ref().is_some_and(|a| a.request.urgent);
            if let Some(i) = self.active.iter().position(|a| open(a) && urgent(a)) {
                return Some(i);
            }
            // At most one request that is not urgent is open at a time, so order is kept.
            if let Some(i) = self.active.iter().position(open) {
                return Some(i);
            }
            self.begin(shared, shared.next(false, false)?);
            self.active.iter().position(open)
        }

        fn send(&mut self, shared: &Shared, entry: usize, slot: usize) {
            let Some(active) = self.active[slot].as_mut() else { return };
            let Some((window, start, len)) = active.next_part() else { return };
            let w = &active.request.windows[window];
            let file = w.file.best();
            let Some(fd) = file.descriptor() else {
                // A file that only exists behind the trait (tests).
                let buf = &mut active.request.buf[w.at + start..][..len];
                match read_chunk(w, start, buf, 0) {
                    Ok(()) => shared.count(len),
                    Err(failure) => active.result = Err(failure),
                }
                self.retire(shared, slot);
                return;
            };
            let at = w.at + start;
            assert!(at + len <= active.request.buf.len(), "a window outside its buffer");
            let (offset, fd) = (w.offset + start as u64, types::Fd(fd.as_raw_fd()));
            // SAFETY: at + len is within the buffer, just asserted.
            let ptr = unsafe { active.request.buf.as_mut_ptr().add(at) };
            let sqe = opcode::Read::new(fd, ptr, len as u32)
                .offset(offset)
                .build()
                .user_data(entry as u64);
            // SAFETY: buffer and file are owned by `self.active[slot]`, which stays in place
            // until this entry's completion has been seen (`retire` requires in_flight == 0,
            // and dropping the ring waits for all entries).
            let pushed = unsafe { self.ring.submission().push(&sqe) };
            assert!(pushed.is_ok(), "the ring has as many entries as `flights`");
            active.in_flight += 1;
            self.flights[entry] = Some((slot, window, start, len));
        }

        /// Hands new entries to the kernel and waits for at least one completion.
        fn wait(&mut self) -> io::Result<()> {
            loop {
                match self.ring.submit_and_wait(1) {
                    Ok(_) => return Ok(()),
                    Err(e) if e.kind() == io::ErrorKind::Interrupted => {}
                    // Completions must be taken before new entries are accepted.
                    Err(e) if e.kind() == io::ErrorKind::ResourceBusy => return Ok(()),
                    Err(e) => return Err(e),
                }
            }
        }

        fn reap(&mut self, shared: &Shared) {
            let completions: Vec<(u64, i32)> =
                self.ring.completion().map(|c| (c.user_data(), c.result())).collect();
            for (entry, result) in completions {
                let flight = self.flights.get_mut(entry as usize).and_then(Option::take);
                if let Some(flight) = flight {
                    self.complete(shared, flight, result);
                }
            }
        }

        fn complete(&mut self, shared: &Shared, flight: Flight, result: i32) {
            let (slot, window, start, len) = flight;
            let Some(active) = self.active[slot].as_mut() else { return };
            active.in_flight -= 1;
            let w = &active.request.windows[window];
            let got = usize::try_from(result).unwrap_or(0);
            let need = w.need.saturating_sub(start).min(len);
            if got < need && active.result.is_ok() && !shared.stopped() {
                // Short, interrupted or refused: the plain path retries, falls back to the
                // page cache, or finds the error to report.
                let buf = &mut active.request.buf[w.at + start..][..len];
                if let Err(failure) = read_chunk(w, start, buf, got) {
                    active.result = Err(failure);
                }
            }
            shared.count(len);
            self.retire(shared, slot);
        }

        /// Gives a request back if nothing of it is left to do.
        fn retire(&mut self, shared: &Shared, slot: usize) {
            if self.active[slot].as_ref().is_some_and(Active::finished)
                && let Some(Active { request, result, .. }) = self.active[slot].take()
            {
                shared.flight(false);
                shared.finish(Done { id: request.id, buf: request.buf, result });
            }
        }

        /// After a ring failure: waiting is not possible, so whether entries are still being
        /// served is unknown. Their buffers are left to the kernel for ever and the requests
        /// fail.
        fn give_up(&mut self, shared: &Shared) {
            for active in self.active.iter_mut().filter_map(Option::take) {
                shared.flight(false);
                let w = &active.request.windows[0];
                let failure = super::ReadFailure {
                    file: std::sync::Arc::clone(&w.file),
                    offset: w.offset,
                    len: w.need as u64,
                    at: w.at,
                    source: io::Error::other("io_uring stopped working"),
                };
                let id = active.request.id;
                std::mem::forget(active);
                if let Ok(buf) = crate::direct::AlignedBuf::new(1, "a failed read") {
                    shared.finish(Done { id, buf, result: Err(failure) });
                }
            }
            self.flights.fill(None);
        }
    }

    impl Drop for Ring {
        fn drop(&mut self) {
            while self.in_flight() > 0 {
                if self.wait().is_err() {
                    // The kernel may still write to these buffers: never reuse their memory.
                    std::mem::forget(std::mem::take(&mut self.active));
                    return;
                }
                let done: Vec<u64> = self.ring.completion().map(|c| c.user_data()).collect();
                for entry in done {
                    if let Some(flight) = self.flights.get_mut(entry as usize) {
                        *flight = None;
                    }
                }
            }
        }
    }
}
