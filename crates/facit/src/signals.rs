//! SIGINT and SIGTERM: the first asks for a clean stop, a second one ends the program at once.

use std::sync::Arc;
use std::sync::atomic::{AtomicBool, AtomicUsize, Ordering};

use signal_hook::consts::{SIGINT, SIGTERM};
use signal_hook::flag;

use crate::exit::Code;

/// Remembers which signal came.
pub struct Signals {
    came: Arc<AtomicUsize>,
    second: Arc<AtomicBool>,
}

impl Signals {
    /// Starts listening.
    pub fn listen() -> anyhow::Result<Self> {
        let came = Arc::new(AtomicUsize::new(0));
        let second = Arc::new(AtomicBool::new(false));
        for signal in [SIGINT, SIGTERM] {
            // The order matters: the default action of a second signal is looked at first.
            flag::register_conditional_default(signal, Arc::clone(&second))?;
            flag::register(signal, Arc::clone(&second))?;
            flag::register_usize(signal, Arc::clone(&came), signal as usize)?;
        }
        Ok(Self { came, second })
    }

    /// The exit code of the signal that came, if one did.
    pub fn code(&self) -> Option<Code> {
        match self.came.load(Ordering::Relaxed) as i32 {
            SIGINT => Some(Code::Interrupted),
            SIGTERM => Some(Code::Terminated),
            _ => None,
        }
    }

    /// Begins anew, as if none had come.
    pub fn forget(&self) {
        self.came.store(0, Ordering::Relaxed);
        self.second.store(false, Ordering::Relaxed);
    }
}
