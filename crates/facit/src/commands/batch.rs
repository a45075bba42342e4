//! `facit batch`: many prompts with the model of a directory, in lockstep.

use std::collections::{BTreeMap, HashMap};
use std::path::{Path, PathBuf};
use std::time::Instant;

use engine::Temperature;
use engine::giant::batch::{Item, Width, batch};
use engine::giant::journal::Journal;
use engine::giant::{Checkpoint, Counters, Demand, FinishReason, Prepared, Sampling, prepare};
use models::deepseek_v41::{Options, Regime};
use serde::{Deserialize, Serialize};
use text::Tokenizer;

use super::completion::Completion;
use super::giant::run::{DEFAULT_MAX_TOKENS, Speller};
use super::giant::{self, Memory};
use super::options::{MachineOptions, all_threads};
use crate::exit::{Code, Usage};
use crate::signals::Signals;
use crate::ui::{self, Out, units};

/// Largest input file.
const MAX_INPUT: u64 = 1 << 30;
/// Sequences at a time when nobody says, at most.
const MAX_SEQUENCES: usize = 64;

/// Run many prompts with the model of a directory, so that weights read serve all of them
///
/// IN holds one JSON object a line: "prompt" (text, or an array of token ids) and, as one likes,
/// "custom_id", "max_tokens", "temperature", "top_p", "top_k" and "seed". OUT gets one
/// completion a line, in the order of IN, each to the byte what the prompt gives alone. Finished
/// lines are kept in OUT.part: the same command goes on after a crash.
#[derive(clap::Args)]
pub struct Args {
    /// The model directory
    #[arg(value_name = "MODEL")]
    dir: PathBuf,
    /// The prompts, JSON lines
    #[arg(value_name = "IN")]
    input: PathBuf,
    /// The file to write
    #[arg(value_name = "OUT")]
    output: PathBuf,
    /// New tokens of a line that does not say "max_tokens" [default: 64, or as many as the model
    /// has positions for]
    #[arg(short = 'n', long, value_name = "N", value_parser = clap::value_parser!(u32).range(1..))]
    max_tokens: Option<u32>,
    /// As for `facit run`: a size, auto, or a preset
    #[arg(long, value_name = "SIZE", value_parser = Memory::parse, default_value = "auto")]
    memory: Memory,
    /// Sequences at a time [default: as many as fit, 64 at most]. Never changes a bit
    #[arg(long, value_name = "N", value_parser = clap::value_parser!(u16).range(1..))]
    sequences: Option<u16>,
    /// Positions of a step, of all sequences [default: what reads the fewest bytes]. Never changes
    /// a bit
    #[arg(long, value_name = "N")]
    chunk: Option<usize>,
    /// DeepSeek-V4.1: arithmetic of the quantised linears, w8a8 or bf16
    #[arg(long, value_name = "NAME", value_parser = giant::regime, default_value = "w8a8")]
    regime: Regime,
    #[command(flatten)]
    machine: MachineOptions,
    /// Print the report as JSON
    #[arg(long)]
    json: bool,
    /// Say nothing but errors
    #[arg(long, short)]
    quiet: bool,
}

/// A line of the input.
#[derive(Deserialize)]
#[serde(deny_unknown_fields)]
struct Line {
    custom_id: Option<String>,
    prompt: Prompt,
    max_tokens: Option<u32>,
    temperature: Option<serde_json::Number>,
    top_p: Option<f32>,
    top_k: Option<usize>,
    seed: Option<u64>,
}

#[derive(Deserialize)]
#[serde(untagged)]
enum Prompt {
    Text(String),
    Ids(Vec<u32>),
}

/// A line of the output.
#[derive(Serialize)]
struct Answer<'a> {
    #[serde(skip_serializing_if = "Option::is_none")]
    custom_id: Option<&'a str>,
    #[serde(flatten)]
    completion: Completion<Origin<'a>>,
}

/// What the answer came from.
#[derive(Serialize)]
struct Origin<'a> {
    numerics: &'a str,
    model_digest: &'a str,
}

#[derive(Default, Serialize)]
struct Report {
    prompts: usize,
    resumed: usize,
    sequences: usize,
    prompt_tokens: usize,
    completion_tokens: usize,
    seconds: f64,
    tokens_per_second: f64,
    bytes_per_token: u64,
    read: Counters,
    planned_bytes: u64,
    peak_resident_bytes: u64,
}

/// Prompts, read and checked.
struct Job {
    ids: Vec<Option<String>>,
    items: Vec<Item>,
    /// Names the input and the options on which answers depend.
    digest: String,
}

pub fn run(args: Args) -> anyhow::Result<Code> {
    if args.output.exists() {
        let out = args.output.display();
        return Err(Usage(format!("{out} exists: remove it, or name another file")).into());
    }
    engine::files::check_writable(&args.output)?;
    let checkpoint = Checkpoint::open(&args.dir)?;
    let tokenizer = checkpoint.tokenizer()?;
    let job = read_job(&args, checkpoint.max_context()?, tokenizer.as_ref())?;
    let part = part_of(&args.output);
    let prepared = prepare_for(&args, &checkpoint, &job)?;
    let numerics = prepared.numerics_id().to_owned();
    let name = format!("{} {} {numerics}", job.digest, checkpoint.digest());
    let (mut journal, mut lines) = Journal::open(&part, &name)?;
    let todo: Vec<usize> = (0..job.items.len()).filter(|i| !lines.contains_key(i)).collect();
    let mut report = Report { prompts: job.items.len(), resumed: lines.len(), ..Report::default() };
    if !todo.is_empty() {
        let answers = Answers {
            args: &args,
            checkpoint: &checkpoint,
            job: &job,
            tokenizer: tokenizer.as_ref(),
            numerics,
        };
        let stopped = work(&answers, prepared, &todo, &mut report, &mut journal, &mut lines)?;
        if let Some(code) = stopped {
            ui::note(&format!(
                "stopped; {} of {} are done: the same command goes on from here",
                lines.len(),
                job.items.len()
            ));
            return Ok(code);
        }
    }
    let parts: Vec<&[u8]> =
        lines.values().flat_map(|line| [line.as_bytes(), b"\n".as_slice()]).collect();
    engine::files::write_atomically(&args.output, &parts)?;
    journal.remove()?;
    tell(&args, &report)?;
    Ok(Code::Ok)
}

/// `OUT.part`.
fn part_of(output: &Path) -> PathBuf {
    let mut name = output.as_os_str().to_owned();
    name.push(".part");
    name.into()
}

/// Reads and checks every line before anything is computed. `most` is how long the model's
/// sequences may be.
fn read_job(args: &Args, most: usize, tokenizer: Option<&Tokenizer>) -> anyhow::Result<Job> {
    let bytes = engine::files::read(&args.input, MAX_INPUT)?;
    let text = std::str::from_utf8(&bytes)
        .map_err(|e| Usage(format!("{}: not UTF-8: {e}", args.input.display())))?;
    let mut job = Job { ids: Vec::new(), items: Vec::new(), digest: String::new() };
    let mut seen = HashMap::new();
    for (n, line) in text.lines().enumerate() {
        let refused =
            |why: String| Usage(format!("{}, line {}: {why}", args.input.display(), n + 1));
        let line: Line = serde_json::from_str(line).map_err(|e| refused(e.to_string()))?;
        if let Some(id) = &line.custom_id
            && let Some(first) = seen.insert(id.clone(), n + 1)
        {
            return Err(refused(format!("custom_id {id:?} is that of line {first}")).into());
        }
        let item = item(&line, args.max_tokens, most, tokenizer).map_err(refused)?;
        job.items.push(item);
        job.ids.push(line.custom_id);
    }
    if job.items.is_empty() {
        return Err(Usage(format!("{} has no lines", args.input.display())).into());
    }
    let input = store::Digest::of(&bytes);
    // What a line that does not say gets is part of what the answers were made for.
    let max_tokens = args.max_tokens.map_or(DEFAULT_MAX_TOKENS, |n| n as usize);
    job.digest = format!("{input} n={max_tokens} regime={}", args.regime.name());
    Ok(job)
}

/// `max_tokens` is for a line that does not say, `most` is how long the model's sequences may be.
fn item(
    line: &Line,
    max_tokens: Option<u32>,
    most: usize,
    tokenizer: Option<&Tokenizer>,
) -> Result<Item, String> {
    let prompt = match (&line.prompt, tokenizer) {
        (Prompt::Ids(ids), _) => ids.clone(),
        (Prompt::Text(text), Some(tokenizer)) => tokenizer.encode(text),
        (Prompt::Text(_), None) => {
            return Err("the model has no tokenizer: give the prompt as token ids".into());
        }
    };
    if prompt.is_empty() {
        return Err("the prompt has no tokens".into());
    }
    let max_tokens = match line.max_tokens.or(max_tokens) {
        Some(n) => n as usize,
        None => DEFAULT_MAX_TOKENS.min(most.saturating_sub(prompt.len())).max(1),
    };
    if max_tokens == 0 {
        return Err("max_tokens is 0: at least 1".into());
    }
    // The same rounding as on the command line, so that the tokens are the same.
    let temperature = line.temperature.as_ref().map(|t| t.to_string().parse::<Temperature>());
    let temperature = temperature.transpose().map_err(|e| format!("temperature: {e}"))?;
    let temperature = temperature.map(giant::temperature);
    let sampling = Sampling::asked(temperature, line.top_k, line.top_p, line.seed);
    engine::giant::Sampler::new(sampling, 0).map_err(|e| e.to_string())?;
    let item = Item { prompt, max_tokens, sampling };
    if item.context() > most {
        return Err(format!(
            "{} prompt ids and {max_tokens} new tokens are more than the {most} positions of this \
             model",
            item.prompt.len()
        ));
    }
    Ok(item)
}

/// The memory's plan for as many sequences as asked for, or as fit.
fn prepare_for<'c>(
    args: &Args,
    checkpoint: &'c Checkpoint,
    job: &Job,
) -> anyhow::Result<Prepared<'c>> {
    let demand = Demand {
        memory: args.memory.0,
        context: job.items.iter().map(Item::context).max().unwrap_or(1),
        sequences: job.items.len().min(args.sequences.map_or(MAX_SEQUENCES, usize::from)),
        fewer: args.sequences.is_none(),
        work: (
            job.items.iter().map(|i| i.prompt.len()).sum(),
            job.items.iter().map(|i| i.max_tokens).sum(),
        ),
        chunk: args.chunk,
        record: false,
        threads: args.machine.threads.unwrap_or_else(all_threads),
    };
    let options = Options { regime: args.regime, drafts: false };
    Ok(prepare(checkpoint, options, demand)?)
}

/// What an answer is made of.
struct Answers<'a> {
    args: &'a Args,
    checkpoint: &'a Checkpoint,
    job: &'a Job,
    tokenizer: Option<&'a Tokenizer>,
    numerics: String,
}

impl Answers<'_> {
    fn line(
        &self,
        item: usize,
        ids: &[u32],
        reason: FinishReason,
        model_digest: &str,
    ) -> anyhow::Result<String> {
        let completion = Completion::of(
            self.args.dir.display().to_string(),
            self.job.items[item].prompt.len(),
            ids.to_vec(),
            Speller::spell(self.tokenizer, ids),
            Some(reason.name()),
            Origin { numerics: &self.numerics, model_digest },
        );
        let custom_id = self.job.ids[item].as_deref();
        Ok(serde_json::to_string(&Answer { custom_id, completion })?)
    }
}

/// Runs what is left to do; the code of the signal that stopped it, if one did.
fn work(
    answers: &Answers<'_>,
    prepared: Prepared<'_>,
    todo: &[usize],
    report: &mut Report,
    journal: &mut Journal,
    lines: &mut BTreeMap<usize, String>,
) -> anyhow::Result<Option<Code>> {
    let (args, job) = (answers.args, answers.job);
    let kernels = giant::kernels(
        args.machine.backend.as_deref(),
        args.machine.threads.unwrap_or_else(all_threads),
    )?;
    let sequences = prepared.sequences().min(todo.len());
    let width = Width { sequences, positions: prepared.chunk() };
    report.sequences = sequences;
    report.planned_bytes = prepared.plan().total();
    let silent = args.quiet || args.json;
    let mut engine = giant::load(answers.checkpoint, prepared, kernels, silent)?;
    let end = answers.tokenizer.map(Tokenizer::end_ids).transpose()?.unwrap_or_default();
    let signals = Signals::listen()?;
    let bar = ui::bar(todo.len() as u64, "prompts", silent);
    let digest = answers.checkpoint.digest().to_string();
    let began = Instant::now();
    batch(&mut *engine, &job.items, todo, &end, width, &mut |progress| {
        for finished in progress.finished {
            let line = answers.line(finished.item, &finished.ids, finished.reason, &digest);
            let line = line.map_err(|e| engine::Error::Refused(e.to_string()))?;
            journal.append(finished.item, &line)?;
            lines.insert(finished.item, line);
        }
        report.completion_tokens += progress.tokens;
        report.prompt_tokens += progress.prefilled;
        bar.inc(progress.finished.len() as u64);
        Ok(signals.code().is_none())
    })?;
    bar.finish_and_clear();
    report.seconds = began.elapsed().as_secs_f64();
    report.tokens_per_second = report.completion_tokens as f64 / report.seconds;
    report.read = engine.counters();
    report.bytes_per_token =
        report.read.bytes().checked_div(report.completion_tokens as u64).unwrap_or(0);
    report.peak_resident_bytes = store::memory::peak_resident();
    Ok(signals.code().filter(|_| lines.len() < job.items.len()))
}

fn tell(args: &Args, report: &Report) -> anyhow::Result<()> {
    if args.json {
        return Out::default().json(report);
    }
    if args.quiet {
        return Ok(());
    }
    ui::note(&format!(
        "{}: {}{}; {} prompt + {} in {}, {:.2} tokens/s, {} at a time",
        args.output.display(),
        units::plural(report.prompts as u64, "prompt"),
        match report.resumed {
            0 => String::new(),
            n => format!(" ({n} from an earlier attempt)"),
        },
        units::count(report.prompt_tokens as u64),
        units::plural(report.completion_tokens as u64, "generated token"),
        units::seconds(report.seconds),
        report.tokens_per_second,
        report.sequences,
    ));
    if report.read.bytes() > 0 {
        ui::note(&ui::dim(&format!(
            "read {}, {} a generated token; peak memory {} of {} planned",
            units::bytes(report.read.bytes()),
            units::bytes(report.bytes_per_token),
            units::bytes(report.peak_resident_bytes),
            units::bytes(report.planned_bytes),
        )));
    }
    Ok(())
}
