//! `facit run DIR`: continue a prompt with the model of a directory.

use std::collections::BTreeMap;
use std::path::Path;
use std::time::Instant;

use engine::giant::logits::Logits;
use engine::giant::{
    Checkpoint, Counters, Demand, Engine, Event, FinishReason, Request, Sampler, Sampling,
    generate, prepare, saved,
};
use serde::Serialize;
use text::{Tokenizer, Utf8Stream};

use super::super::completion::Completion;
use super::GiantOptions;
use crate::exit::{Code, Usage};
use crate::signals::Signals;
use crate::ui::{self, Out, units};

/// New tokens when nobody says.
const DEFAULT_MAX_TOKENS: usize = 64;
/// Most positions of a prompt and its continuation, the larger of the models' own limits.
const MAX_POSITIONS: usize = 1 << 20;

/// What `run` was asked, already read from the arguments.
pub struct Asked<'a> {
    /// The model directory.
    pub dir: &'a Path,
    /// The prompt's text, from whichever option or file.
    pub prompt: Option<String>,
    /// `-n`.
    pub max_tokens: Option<u32>,
    /// `--temperature`, if given.
    pub temperature: Option<f32>,
    /// `--seed`, if given.
    pub seed: Option<u64>,
    /// `--json`.
    pub json: bool,
    /// `--quiet`.
    pub quiet: bool,
    /// `--backend`.
    pub backend: Option<&'a str>,
    /// `--threads`.
    pub threads: usize,
    /// The rest.
    pub options: &'a GiantOptions,
}

impl Asked<'_> {
    /// Greedy unless any sampling option was given.
    fn sampling(&self) -> Sampling {
        let o = self.options;
        let asked = self.seed.is_some() || o.top_p.is_some() || o.top_k.is_some();
        let temperature = match self.temperature {
            Some(t) => t,
            None if asked => Sampling::DEFAULT_TEMPERATURE,
            None => 0.0,
        };
        Sampling {
            temperature,
            top_k: o.top_k.unwrap_or(0),
            top_p: o.top_p.unwrap_or(Sampling::DEFAULT_TOP_P),
            seed: self.seed.unwrap_or(0),
        }
    }
}

/// Runs it.
pub fn run(asked: &Asked<'_>) -> anyhow::Result<Code> {
    let options = asked.options;
    for path in options.save_state.iter().chain(&options.dump_logits).chain(&options.record_trace) {
        engine::files::check_writable(path)?;
    }
    let sampling = asked.sampling();
    let mut sampler = Sampler::new(sampling, 0).map_err(|e| Usage(e.to_string()))?;
    let checkpoint = Checkpoint::open(asked.dir)?;
    let tokenizer = checkpoint.tokenizer()?;
    let mut prompt = prompt_ids(asked, tokenizer.as_ref())?;
    let max_tokens = asked.max_tokens.map_or(DEFAULT_MAX_TOKENS, |n| n as usize);
    if prompt.len() + max_tokens > MAX_POSITIONS {
        return Err(Usage(format!(
            "{} prompt ids and {max_tokens} new tokens are more than {MAX_POSITIONS} positions",
            prompt.len()
        ))
        .into());
    }
    let kernels = super::kernels(asked.backend, asked.threads)?;
    let demand = Demand {
        memory: options.memory.0,
        context: prompt.len() + max_tokens,
        sequences: 1,
        chunk: options.chunk.min(prompt.len().max(1)),
        record: options.record_trace.is_some(),
        threads: asked.threads,
    };
    let prepared = prepare(&checkpoint, options.model_options(), demand)?;
    let chunk = prepared.chunk();
    let planned = prepared.plan().total();
    let mut engine = super::load(&checkpoint, prepared, kernels, asked.quiet || asked.json)?;
    let sequence = match &options.resume {
        None => engine.open(prompt.len() + max_tokens)?,
        Some(path) => {
            let (sequence, pending) = saved::resume(&mut *engine, path, prompt.len() + max_tokens)?;
            prompt.splice(0..0, pending);
            sequence
        }
    };
    let began_at = engine.position(sequence);
    let end = tokenizer.as_ref().map(Tokenizer::end_ids).transpose()?.unwrap_or_default();
    let signals = Signals::listen()?;
    let mut writer = Writer::new(tokenizer.as_ref(), asked.json, options.dump_logits.is_some());
    let request = Request { prompt: &prompt, max_tokens, end: &end, chunk };
    let mut progress = ui::live(asked.quiet || asked.json);
    let began = Instant::now();
    let finish = generate(&mut *engine, sequence, &request, &mut sampler, &mut |event| {
        progress.show(&event);
        progress.suspend(|| writer.hear(&event));
        signals.code().is_none() && writer.failed.is_none() && !writer.out.closed()
    })?;
    progress.clear();
    writer.finish()?;
    if let Some(path) = &options.save_state {
        saved::save(&*engine, sequence, writer.ids.last().map_or(&[], std::slice::from_ref), path)?;
    }
    if let Some(path) = &options.dump_logits {
        let meta = BTreeMap::from([
            ("numerics".to_owned(), engine.numerics_id()),
            ("model".to_owned(), checkpoint.digest().to_string()),
            ("tokens".to_owned(), format!("{:?}", writer.ids)),
        ]);
        let logits = Logits { vocab: engine.vocab(), values: std::mem::take(&mut writer.logits) };
        engine::files::write_atomically(path, &[&logits.to_safetensors(meta)])?;
    }
    if let Some(path) = &options.record_trace {
        store::cache_sim::write_trace(&store::io::Real::shared(), path, &engine.trace())
            .map_err(engine::Error::from)?;
    }
    let report = Report::new(
        asked,
        &*engine,
        &checkpoint,
        &writer,
        finish,
        Numbers {
            prompt_tokens: prompt.len(),
            began_at,
            seconds: began.elapsed().as_secs_f64(),
            threads: asked.threads,
            sampling,
            planned,
        },
    );
    if asked.json {
        writer.out.json(&report)?;
    }
    if !asked.quiet {
        report.tell(tokenizer.is_none());
    }
    Ok(signals.code().filter(|_| finish == FinishReason::Cancelled).unwrap_or(Code::Ok))
}

/// The ids of the prompt: `--ids`, or the text through the tokenizer.
fn prompt_ids(asked: &Asked<'_>, tokenizer: Option<&Tokenizer>) -> anyhow::Result<Vec<u32>> {
    if let Some(ids) = &asked.options.ids {
        return super::super::tokenize::parse_ids(ids);
    }
    match (&asked.prompt, tokenizer) {
        (Some(text), Some(tokenizer)) => Ok(tokenizer.encode(text)),
        (Some(_), None) => Err(Usage(format!(
            "{} has no tokenizer (tiktoken.model or tokenizer.json): give the prompt as --ids",
            asked.dir.display()
        ))
        .into()),
        (None, _) if asked.options.resume.is_some() => Ok(Vec::new()),
        (None, _) => {
            Err(Usage("no prompt: give --prompt TEXT, --prompt-file FILE or --ids IDS".into())
                .into())
        }
    }
}

/// Streams what was made and remembers it.
struct Writer<'a> {
    tokenizer: Option<&'a Tokenizer>,
    out: Out,
    silent: bool,
    keep_logits: bool,
    utf8: Utf8Stream,
    ids: Vec<u32>,
    text: String,
    logits: Vec<f32>,
    prefill_seconds: f64,
    failed: Option<anyhow::Error>,
}

impl<'a> Writer<'a> {
    fn new(tokenizer: Option<&'a Tokenizer>, silent: bool, keep_logits: bool) -> Self {
        Writer {
            tokenizer,
            out: Out::default(),
            silent,
            keep_logits,
            utf8: Utf8Stream::default(),
            ids: Vec::new(),
            text: String::new(),
            logits: Vec::new(),
            prefill_seconds: 0.0,
            failed: None,
        }
    }

    fn hear(&mut self, event: &Event<'_>) {
        match event {
            Event::Prefilled { spent, .. } => self.prefill_seconds += spent.time.as_secs_f64(),
            Event::Logits(logits) if self.keep_logits => self.logits.extend_from_slice(logits),
            Event::Logits(_) => (),
            Event::Token { id, .. } => {
                self.ids.push(*id);
                let piece = self.piece(*id);
                self.say(&piece);
            }
        }
    }

    /// What a token adds to the text: nothing for control tokens, the id itself without tokenizer.
    fn piece(&mut self, id: u32) -> String {
        match self.tokenizer {
            None => format!("{}{id}", if self.ids.len() > 1 { " " } else { "" }),
            Some(t) if t.is_control(id) => String::new(),
            Some(t) => t.token(id).map(|bytes| self.utf8.push(bytes)).unwrap_or_default(),
        }
    }

    fn say(&mut self, piece: &str) {
        self.text.push_str(piece);
        if !self.silent {
            self.failed = self.out.bytes(piece.as_bytes()).err();
        }
    }

    fn finish(&mut self) -> anyhow::Result<()> {
        let rest = self.utf8.finish();
        self.say(&rest);
        if !self.silent && (ui::interactive() || self.tokenizer.is_none()) {
            self.out.bytes(b"\n")?;
        }
        self.failed.take().map_or(Ok(()), Err)
    }
}

struct Numbers {
    prompt_tokens: usize,
    began_at: usize,
    seconds: f64,
    threads: usize,
    sampling: Sampling,
    planned: u64,
}

/// The outcome of a run of a model directory.
type Report = Completion<Facit>;

#[derive(Serialize)]
struct Facit {
    numerics: String,
    model_digest: String,
    position: usize,
    temperature: f32,
    top_p: f32,
    top_k: usize,
    seed: u64,
    threads: usize,
    seconds: f64,
    prefill_seconds: f64,
    tokens_per_second: Option<f64>,
    read: Counters,
    planned_bytes: u64,
    peak_resident_bytes: u64,
    saved: Option<std::path::PathBuf>,
    logits: Option<std::path::PathBuf>,
}

impl Report {
    fn new(
        asked: &Asked<'_>,
        engine: &dyn Engine,
        checkpoint: &Checkpoint,
        writer: &Writer<'_>,
        finish: FinishReason,
        n: Numbers,
    ) -> Report {
        let made = writer.ids.len();
        let decode = n.seconds - writer.prefill_seconds;
        let facit = Facit {
            numerics: engine.numerics_id(),
            model_digest: checkpoint.digest().to_string(),
            position: n.began_at + n.prompt_tokens + made.saturating_sub(1),
            temperature: n.sampling.temperature,
            top_p: n.sampling.top_p,
            top_k: n.sampling.top_k,
            seed: n.sampling.seed,
            threads: n.threads,
            seconds: n.seconds,
            prefill_seconds: writer.prefill_seconds,
            // The first token comes with the prefill.
            tokens_per_second: (made > 1).then(|| (made - 1) as f64 / decode),
            read: engine.counters(),
            planned_bytes: n.planned,
            peak_resident_bytes: store::memory::peak_resident(),
            saved: asked.options.save_state.clone(),
            logits: asked.options.dump_logits.clone(),
        };
        let (ids, text) = (writer.ids.clone(), writer.text.clone());
        let model = asked.dir.display().to_string();
        Report::of(model, n.prompt_tokens, ids, text, Some(finish.name()), facit)
    }

    /// The report for people.
    fn tell(&self, ids_only: bool) {
        let (usage, facit) = (&self.usage, &self.facit);
        let rate = facit.tokens_per_second.map_or(String::new(), |r| format!(", {r:.2} tokens/s"));
        ui::note(&ui::dim(&format!(
            "{}: {} prompt + {} generated tokens in {} (prefill {}{rate}) on {}{}",
            self.model,
            usage.prompt_tokens,
            usage.completion_tokens,
            units::seconds(facit.seconds),
            units::seconds(facit.prefill_seconds),
            units::plural(facit.threads as u64, "thread"),
            if ids_only { "; ids, since there is no tokenizer" } else { "" },
        )));
        let read = &facit.read;
        if read.bytes() > 0 {
            let hits = read.expert_hits as f64 / (read.expert_requests.max(1)) as f64;
            ui::note(&ui::dim(&format!(
                "read {}: layers and head {}, experts {}, rows {}; {:.1} % of experts were in \
                 memory; waited {} for the disk; peak memory {} of {} planned",
                units::bytes(read.bytes()),
                units::bytes(read.trunk_bytes),
                units::bytes(read.expert_bytes),
                units::bytes(read.other_bytes),
                100.0 * hits,
                units::seconds(read.wait_seconds),
                units::bytes(facit.peak_resident_bytes),
                units::bytes(facit.planned_bytes),
            )));
        }
        if let Some(path) = &facit.saved {
            ui::note(&format!(
                "sequence saved in {0}; go on with: facit run {1} --resume {0}",
                path.display(),
                self.model
            ));
        }
    }
}
