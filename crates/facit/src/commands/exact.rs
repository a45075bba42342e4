//! What `run` and `resume` do alike: drive a session, stream its text, leave the files asked for
//! and report.

use std::ops::ControlFlow;
use std::path::PathBuf;
use std::time::Instant;

use engine::receipt::Recorder;
use engine::session::Stop;
use engine::{Digest, Params, Session};
use serde::Serialize;

use super::completion::Completion;
use super::options::ModelOptions;
use crate::exit::{Code, Usage};
use crate::signals::Signals;
use crate::ui::{self, Out, units};

#[derive(clap::Args)]
pub struct RunOptions {
    /// Stop after this many turns; needs --save or --receipt
    #[arg(long, value_name = "N")]
    pub turns: Option<u64>,
    /// Save the state when the run stops, for `facit resume`; a signal stops it cleanly too
    #[arg(long, value_name = "STATE")]
    pub save: Option<PathBuf>,
    /// Print one JSON object at the end instead of streaming text
    #[arg(long)]
    pub json: bool,
    /// No report on standard error
    #[arg(short, long)]
    pub quiet: bool,
}

/// Runs `session` of `model` as asked. `record` is where a receipt goes and what it says was asked.
pub fn drive(
    mut session: Session<'_>,
    options: &RunOptions,
    model: &ModelOptions,
    record: Option<(&PathBuf, &Params)>,
) -> anyhow::Result<Code> {
    let receipt_path = record.map(|(path, _)| path);
    check_files(options, receipt_path)?;
    let mut recorder = record.map(|(_, params)| Recorder::new(&session, params)).transpose()?;
    let signals = Signals::listen()?;
    let mut out = Out::default();
    let leaves_files = options.save.is_some() || receipt_path.is_some();
    let before = session.info();
    let started = Instant::now();
    let mut failed = None;
    let mut on_text = |text: &[u8]| {
        if !options.json {
            failed = out.bytes(text).err();
        }
        // A reader who left wants no more text, but files asked for are still made.
        if failed.is_some() || signals.code().is_some() || (out.closed() && !leaves_files) {
            ControlFlow::Break(())
        } else {
            ControlFlow::Continue(())
        }
    };
    let stop = match &mut recorder {
        Some(recorder) => session.run_recorded(options.turns, recorder, &mut on_text)?,
        None => session.run(options.turns, &mut on_text)?,
    };
    let seconds = started.elapsed().as_secs_f64();
    if let Some(path) = &options.save {
        engine::saved::save(path, &session)?;
    }
    if let (Some(path), Some(recorder)) = (receipt_path, recorder) {
        recorder.finish(&session).write(path)?;
    }
    if let Some(error) = failed {
        return Err(error);
    }
    let interrupted = signals.code().filter(|_| stop == Stop::Paused);
    let report = Report::new(&session, stop, seconds, &before, options, receipt_path);
    if options.json {
        out.json(&report)?;
    }
    if !options.quiet {
        let why = match interrupted {
            _ if stop != Stop::Paused => None,
            Some(_) => Some("interrupted where a turn ended"),
            None if out.closed() && !leaves_files => Some("stopped, since nobody reads"),
            None => Some("paused"),
        };
        report.tell(why, ends_mid_line(&session, options), &model.again());
    }
    Ok(interrupted.unwrap_or(Code::Ok))
}

/// Everything that would fail at the end, found at the start.
fn check_files(options: &RunOptions, receipt: Option<&PathBuf>) -> anyhow::Result<()> {
    if options.turns.is_some() && options.save.is_none() && receipt.is_none() {
        return Err(Usage(
            "--turns alone would throw the paused run away: add --save STATE or --receipt FILE"
                .into(),
        )
        .into());
    }
    if options.save.is_some() && options.save.as_ref() == receipt {
        return Err(Usage("--save and --receipt name the same file".into()).into());
    }
    for path in options.save.iter().chain(receipt) {
        engine::files::check_writable(path)?;
    }
    Ok(())
}

/// Whether the report must begin on a new line of the terminal.
fn ends_mid_line(session: &Session<'_>, options: &RunOptions) -> bool {
    !options.json && ui::interactive() && !session.text().ends_with(b"\n")
}

/// The outcome of a run of the exact core.
type Report = Completion<Facit>;

#[derive(Serialize)]
struct Facit {
    numerics: &'static str,
    model_sha256: Digest,
    state_sha256: Digest,
    complete: bool,
    max_tokens: u32,
    temperature: String,
    temperature_q16: u32,
    turns: u64,
    turns_now: u64,
    backend: &'static str,
    threads: usize,
    seconds: f64,
    positions_per_second: f64,
    saved: Option<PathBuf>,
    receipt: Option<PathBuf>,
}

impl Report {
    fn new(
        session: &Session<'_>,
        stop: Stop,
        seconds: f64,
        before: &engine::StateInfo,
        options: &RunOptions,
        receipt: Option<&PathBuf>,
    ) -> Self {
        let info = session.info();
        let finish_reason = match stop {
            Stop::EndOfText => Some("stop"),
            Stop::Length => Some("length"),
            Stop::Paused => None,
        };
        let temperature = session.temperature();
        let facit = Facit {
            numerics: engine::NUMERICS,
            model_sha256: session.model().digest(),
            state_sha256: Digest::of(session.state()),
            complete: info.complete,
            max_tokens: session.max_tokens(),
            temperature: temperature.to_string(),
            temperature_q16: temperature.q16(),
            turns: info.turns,
            turns_now: info.turns - before.turns,
            backend: session.backend().name(),
            threads: session.threads(),
            seconds,
            positions_per_second: f64::from(info.position - before.position) / seconds,
            saved: options.save.clone(),
            receipt: receipt.cloned(),
        };
        let text = String::from_utf8_lossy(session.text()).into_owned();
        let prompt_tokens = info.prompt_tokens as usize;
        let name = session.model().name().into();
        Self::of(name, prompt_tokens, session.tokens(), text, finish_reason, facit)
    }

    /// The report for people.
    fn tell(&self, paused: Option<&str>, mid_line: bool, model: &str) {
        let (usage, facit) = (&self.usage, &self.facit);
        if mid_line {
            ui::note("");
        }
        ui::note(&ui::dim(&format!(
            "{}: {} prompt + {}, {}, {} ({} positions/s, {} on {})",
            self.model,
            usage.prompt_tokens,
            units::plural(usage.completion_tokens as u64, "generated token"),
            units::plural(facit.turns, "turn"),
            units::seconds(facit.seconds),
            units::count(facit.positions_per_second as u64),
            facit.backend,
            units::plural(facit.threads as u64, "thread"),
        )));
        ui::note(&ui::dim(&format!("state sha256 {}", facit.state_sha256)));
        if let Some(path) = &facit.receipt {
            ui::note(&format!(
                "receipt in {0}; check it with: facit verify {0}{model}",
                path.display()
            ));
        }
        match (paused, &facit.saved) {
            (None, _) => {}
            (Some(why), Some(path)) => ui::note(&format!(
                "{why}; state saved in {0}; go on with: facit resume {0}{model}",
                path.display()
            )),
            (Some(why), None) => ui::note(&format!("{why}; the state was not saved (--save does)")),
        }
    }
}
