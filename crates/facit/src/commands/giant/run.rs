//! `facit run DIR`: continue a prompt with the model of a directory.

use std::collections::BTreeMap;
use std::path::Path;
use std::time::Instant;

use engine::giant::logits::Logits;
use engine::giant::{
    Checkpoint, Counters, Demand, Engine, Event, Finish, FinishReason, Request, Sampler, Sampling,
    generate, prepare,
    saved::{self, Saved},
};
use serde::Serialize;
use text::{Tokenizer, Utf8Stream};

use super::super::completion::Completion;
use super::GiantOptions;
use super::phase::{Phase, PhaseReport};
use super::steps::Steps;
use crate::exit::{Code, Usage};
use crate::signals::Signals;
use crate::ui::{self, Out, units};

/// New tokens when nobody says.
pub const DEFAULT_MAX_TOKENS: usize = 64;

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

/// Runs it.
pub fn run(asked: &Asked<'_>) -> anyhow::Result<Code> {
    let options = asked.options;
    let states = options.save_state.iter().chain(&options.dump_logits);
    for path in states.chain(&options.record_trace).chain(&options.report) {
        engine::files::check_writable(path)?;
    }
    let sampling = Sampling::asked(asked.temperature, options.top_k, options.top_p, asked.seed);
    let mut sampler = Sampler::new(sampling, 0).map_err(|e| Usage(e.to_string()))?;
    let checkpoint = Checkpoint::open(asked.dir)?;
    let tokenizer = checkpoint.tokenizer()?;
    let mut prompt = prompt_ids(asked, tokenizer.as_ref())?;
    let saved = options.resume.as_deref().map(Saved::open).transpose()?;
    let began_at = saved.as_ref().map_or(0, |s| s.position);
    if let Some(saved) = &saved {
        prompt.splice(0..0, saved.pending.iter().copied());
    }
    let (most, begun) = (checkpoint.max_context()?, began_at.saturating_add(prompt.len()));
    let max_tokens = match asked.max_tokens {
        Some(n) => n as usize,
        None => DEFAULT_MAX_TOKENS.min(most.saturating_sub(begun)).max(1),
    };
    let context = begun.saturating_add(max_tokens);
    if context > most {
        return Err(Usage(format!(
            "{began_at} saved positions, {} prompt ids and {max_tokens} new tokens are more than \
             the {most} positions of this model: ask for fewer with -n, or shorten the prompt",
            prompt.len()
        ))
        .into());
    }
    let kernels = super::kernels(asked.backend, asked.threads)?;
    let demand = Demand {
        memory: options.memory.0,
        context,
        sequences: 1,
        fewer: false,
        work: (prompt.len(), max_tokens),
        chunk: options.chunk,
        record: options.record_trace.is_some(),
        threads: asked.threads,
    };
    let prepared = prepare(&checkpoint, options.model_options(), demand)?;
    let chunk = prepared.chunk();
    let planned = prepared.plan().total();
    let mut engine = super::load(&checkpoint, prepared, kernels, asked.quiet || asked.json)?;
    let sequence = match saved {
        None => engine.open(context)?,
        Some(saved) => saved.restore(&mut *engine, context)?,
    };
    let end = tokenizer.as_ref().map(Tokenizer::end_ids).transpose()?.unwrap_or_default();
    let signals = Signals::listen()?;
    let mut writer = Writer::new(tokenizer.as_ref(), asked.json, options.dump_logits.is_some());
    writer.steps = options.report.as_deref().map(Steps::create).transpose()?;
    let drafts = options.drafts;
    let request = Request { prompt: &prompt, max_tokens, end: &end, chunk, drafts };
    let mut progress = ui::live(max_tokens, asked.quiet || asked.json);
    let began = Instant::now();
    let finish = generate(&mut *engine, sequence, &request, &mut sampler, &mut |event| {
        progress.show(&event);
        progress.suspend(|| writer.hear(&event));
        signals.code().is_none() && writer.failed.is_none() && !writer.out.closed()
    })?;
    progress.clear();
    writer.finish()?;
    if let Some(path) = &options.save_state {
        saved::save(&*engine, sequence, writer.pending(&prompt), path)?;
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
        report.tell([writer.prefill, writer.decode], tokenizer.is_none());
    }
    Ok(signals.code().filter(|_| finish.reason == FinishReason::Cancelled).unwrap_or(Code::Ok))
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

/// Tokens to text, one at a time: nothing for control tokens, ids where there is no tokenizer.
pub struct Speller<'a> {
    tokenizer: Option<&'a Tokenizer>,
    utf8: Utf8Stream,
    any: bool,
}

impl<'a> Speller<'a> {
    fn new(tokenizer: Option<&'a Tokenizer>) -> Self {
        Speller { tokenizer, utf8: Utf8Stream::default(), any: false }
    }

    /// The whole text of some tokens.
    pub fn spell(tokenizer: Option<&'a Tokenizer>, ids: &[u32]) -> String {
        let mut speller = Speller::new(tokenizer);
        let mut text: String = ids.iter().map(|&id| speller.piece(id)).collect();
        text.push_str(&speller.finish());
        text
    }

    fn piece(&mut self, id: u32) -> String {
        let first = !std::mem::replace(&mut self.any, true);
        match self.tokenizer {
            None => format!("{}{id}", if first { "" } else { " " }),
            Some(t) if t.is_control(id) => String::new(),
            Some(t) => t.token(id).map(|bytes| self.utf8.push(bytes)).unwrap_or_default(),
        }
    }

    fn finish(&mut self) -> String {
        self.utf8.finish()
    }
}

/// Streams what was made and remembers it.
struct Writer<'a> {
    speller: Speller<'a>,
    out: Out,
    silent: bool,
    keep_logits: bool,
    ids: Vec<u32>,
    text: String,
    logits: Vec<f32>,
    prefill: Phase,
    decode: Phase,
    steps: Option<Steps>,
    failed: Option<anyhow::Error>,
}

impl<'a> Writer<'a> {
    fn new(tokenizer: Option<&'a Tokenizer>, silent: bool, keep_logits: bool) -> Self {
        Writer {
            speller: Speller::new(tokenizer),
            out: Out::default(),
            silent,
            keep_logits,
            ids: Vec::new(),
            text: String::new(),
            logits: Vec::new(),
            prefill: Phase::default(),
            decode: Phase::default(),
            steps: None,
            failed: None,
        }
    }

    fn hear(&mut self, event: &Event<'_>) {
        if let Some(Err(e)) = self.steps.as_mut().map(|steps| steps.hear(event)) {
            self.failed = Some(e.into());
        }
        match event {
            Event::Prefilled { done, spent, .. } => {
                self.prefill.add(done - self.prefill.tokens, spent);
            }
            Event::Logits(logits) if self.keep_logits => self.logits.extend_from_slice(logits),
            Event::Logits(_) => (),
            Event::Token { id, spent } => {
                // The first token is the prefill's.
                self.decode.add(usize::from(!self.ids.is_empty()), spent);
                self.ids.push(*id);
                let piece = self.speller.piece(*id);
                self.say(&piece);
            }
        }
    }

    /// Ids that the sequence has not seen yet: the rest of a prompt whose prefill was stopped, or
    /// the token chosen last.
    fn pending<'i>(&'i self, prompt: &'i [u32]) -> &'i [u32] {
        match self.ids.last() {
            Some(last) => std::slice::from_ref(last),
            None => prompt.get(self.prefill.tokens..).unwrap_or_default(),
        }
    }

    fn say(&mut self, piece: &str) {
        self.text.push_str(piece);
        if !self.silent {
            let failed = self.out.bytes(piece.as_bytes()).err();
            self.failed = self.failed.take().or(failed);
        }
    }

    fn finish(&mut self) -> anyhow::Result<()> {
        let rest = self.speller.finish();
        self.say(&rest);
        if !self.silent && (ui::interactive() || self.speller.tokenizer.is_none()) {
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
    tokens_per_second: Option<f64>,
    prefill: PhaseReport,
    decode: PhaseReport,
    read: Counters,
    drafts: Option<Drafts>,
    planned_bytes: u64,
    peak_resident_bytes: u64,
    saved: Option<std::path::PathBuf>,
    logits: Option<std::path::PathBuf>,
}

/// What speculation brought.
#[derive(Serialize)]
struct Drafts {
    rounds: u64,
    drafted: u64,
    accepted: u64,
    acceptance_rate: Option<f64>,
    tokens_per_round: Option<f64>,
}

impl Drafts {
    fn of(finish: &Finish) -> Drafts {
        let a = finish.drafts;
        Drafts {
            rounds: a.rounds,
            drafted: a.drafted,
            accepted: a.accepted,
            acceptance_rate: a.rate(),
            tokens_per_round: (a.rounds > 0)
                .then(|| (a.rounds + a.accepted) as f64 / a.rounds as f64),
        }
    }

    fn tell(&self) -> String {
        format!(
            "drafts: {} of {} accepted ({:.0} %), {:.2} tokens a step",
            self.accepted,
            self.drafted,
            100.0 * self.acceptance_rate.unwrap_or(0.0),
            self.tokens_per_round.unwrap_or(1.0),
        )
    }
}

impl Report {
    fn new(
        asked: &Asked<'_>,
        engine: &dyn Engine,
        checkpoint: &Checkpoint,
        writer: &Writer<'_>,
        finish: Finish,
        n: Numbers,
    ) -> Report {
        let made = writer.ids.len();
        let facit = Facit {
            numerics: engine.numerics_id(),
            model_digest: checkpoint.digest().to_string(),
            position: n.began_at + writer.prefill.tokens + made.saturating_sub(1),
            temperature: n.sampling.temperature,
            top_p: n.sampling.top_p,
            top_k: n.sampling.top_k,
            seed: n.sampling.seed,
            threads: n.threads,
            seconds: n.seconds,
            tokens_per_second: writer.decode.seconds_per_token().map(|s| 1.0 / s),
            prefill: writer.prefill.report(),
            decode: writer.decode.report(),
            read: engine.counters(),
            drafts: (asked.options.drafts > 0).then(|| Drafts::of(&finish)),
            planned_bytes: n.planned,
            peak_resident_bytes: store::memory::peak_resident(),
            saved: asked.options.save_state.clone(),
            logits: asked.options.dump_logits.clone(),
        };
        let (ids, text) = (writer.ids.clone(), writer.text.clone());
        let model = asked.dir.display().to_string();
        Report::of(model, n.prompt_tokens, ids, text, Some(finish.reason.name()), facit)
    }

    /// The report for people.
    fn tell(&self, phases: [Phase; 2], ids_only: bool) {
        let (usage, facit) = (&self.usage, &self.facit);
        let rate = facit.tokens_per_second.map_or(String::new(), |r| format!(", {r:.2} tokens/s"));
        ui::note(&ui::dim(&format!(
            "{}: {} prompt + {} in {} (prefill {}{rate}) on {}{}",
            self.model,
            usage.prompt_tokens,
            units::plural(usage.completion_tokens as u64, "generated token"),
            units::seconds(facit.seconds),
            units::seconds(phases[0].seconds),
            units::plural(facit.threads as u64, "thread"),
            if ids_only { "; ids, since there is no tokenizer" } else { "" },
        )));
        let read = ["prefill", "decoding"].iter().zip(phases).filter_map(|(n, p)| p.tell(n));
        let drafts = facit.drafts.iter().map(Drafts::tell);
        for line in read.chain(drafts) {
            ui::note(&ui::dim(&line));
        }
        if facit.read.bytes() > 0 {
            ui::note(&ui::dim(&format!(
                "peak memory {} of {} planned",
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
