//! `facit chat`: a conversation with the model of a directory, on a terminal or line by line.

mod input;
mod show;

use std::path::{Path, PathBuf};
use std::time::Instant;

use engine::giant::chat::{Chat, Settings};
use engine::giant::{Checkpoint, Demand, FinishReason, Sampler, Sampling, prepare};
use engine::{Temperature, files};
use models::deepseek_v41::{Options, Regime};
use text::chat::{Effort, Message, Request, Role, history};

use self::input::{Input, Line};
use self::show::Show;
use super::giant::{self, Memory};
use super::options::{MachineOptions, all_threads};
use crate::exit::{Code, Usage};
use crate::signals::Signals;
use crate::ui::{self, units};

/// Longest history file that is read.
const MAX_HISTORY_BYTES: u64 = 64 << 20;
/// Positions of a conversation when nobody says, at most.
const USUAL_CONTEXT: usize = 8192;
/// Positions of a turn's new text, for the choice of a chunk.
const USUAL_PROMPT: usize = 256;

/// Talk with the model of a directory
///
/// On a terminal: a line is a message, Ctrl-C stops a reply, Ctrl-D ends, /help tells more. From
/// a pipe: each line is a message, and answers are lines of standard output; reasoning and
/// reports go to standard error. The model keeps its state between turns and is fed only what is
/// new; replies are those that a fresh run of the same conversation gives.
#[derive(clap::Args)]
pub struct Args {
    /// The model directory (Kimi K3 or DeepSeek-V4.1)
    #[arg(value_name = "MODEL_DIR")]
    dir: PathBuf,
    /// Instructions that come first
    #[arg(long, value_name = "TEXT")]
    system: Option<String>,
    /// Keep the conversation in a file of JSON lines, and go on with it if it is there. It holds
    /// every message and all reasoning
    #[arg(long, value_name = "FILE", conflicts_with = "json")]
    history: Option<PathBuf>,
    /// Whether the model thinks before it answers
    #[arg(long, value_name = "on|off", value_parser = on_off, default_value = "on", action = clap::ArgAction::Set)]
    thinking: bool,
    /// How much it thinks: low, high, max, or for DeepSeek 1 to 100 [default: max, for DeepSeek
    /// 75]
    #[arg(long, value_name = "EFFORT", value_parser = effort)]
    effort: Option<Effort>,
    /// The most tokens of a reply
    #[arg(short = 'n', long, value_name = "N", default_value_t = 4096, value_parser = clap::value_parser!(u32).range(1..))]
    max_tokens: u32,
    /// Positions that the conversation may grow to [default: 8192, or as many as the model has]
    #[arg(long, value_name = "N", value_parser = clap::value_parser!(u32).range(2..))]
    context: Option<u32>,
    /// 0 (always the most probable token) to 16 [default: 0, or 1 once --seed, --top-p or --top-k
    /// asks for sampling]
    #[arg(long, value_name = "T")]
    temperature: Option<Temperature>,
    /// Sample from the most probable tokens that hold this share of the probability
    #[arg(long, value_name = "P")]
    top_p: Option<f32>,
    /// Sample from this many of the most probable tokens
    #[arg(long, value_name = "K")]
    top_k: Option<usize>,
    /// The start of the random numbers; each turn has a stream of its own
    #[arg(long, value_name = "N")]
    seed: Option<u64>,
    /// Memory to stay within, as for `facit run`. Never changes a bit
    #[arg(long, value_name = "SIZE", value_parser = Memory::parse, default_value = "auto")]
    memory: Memory,
    /// Prefill so many positions at a time [default: what reads the fewest bytes]. Never changes
    /// a bit
    #[arg(long, value_name = "N")]
    chunk: Option<usize>,
    /// DeepSeek-V4.1: draft up to N tokens ahead and verify them together. Never changes a token
    #[arg(long, value_name = "N", default_value_t = 0)]
    drafts: usize,
    /// DeepSeek-V4.1: arithmetic of the quantised linears, w8a8 (the released model's) or bf16
    #[arg(long, value_name = "NAME", value_parser = giant::regime, default_value = "w8a8")]
    regime: Regime,
    #[command(flatten)]
    machine: MachineOptions,
    /// For machines: each line of input is a message (or an array of messages) in JSON, each line
    /// of output a reply
    ///
    /// A message is {"role": "user", "content": "..."}; roles are system, user, assistant and tool,
    /// and the usual reasoning_content, tool_calls, tool_call_id, tools and response_format are
    /// taken. A reply is an object with message (role, content, and reasoning_content and
    /// tool_calls if there are any), finish_reason (stop, length, tool_calls, malformed or
    /// cancelled), problem (what kept it from being whole, or null), usage (prompt_tokens,
    /// completion_tokens, reused_tokens), token_ids, seconds and read (what the disk gave).
    #[arg(long)]
    json: bool,
    /// Show the answers alone: no reasoning, no reports
    #[arg(long, short)]
    quiet: bool,
}

fn on_off(text: &str) -> Result<bool, String> {
    match text {
        "on" => Ok(true),
        "off" => Ok(false),
        _ => Err("expected on or off".into()),
    }
}

fn effort(text: &str) -> Result<Effort, String> {
    Effort::from_name(text).map_err(|e| e.to_string())
}

pub fn run(args: Args) -> anyhow::Result<Code> {
    if args.effort.is_some() && !args.thinking {
        return Err(Usage("--effort goes with --thinking on".into()).into());
    }
    let sampling = Sampling::asked(
        args.temperature.map(giant::temperature),
        args.top_k,
        args.top_p,
        args.seed,
    );
    sampling.check().map_err(|e| Usage(e.to_string()))?;
    let messages = begin(&args)?;
    let checkpoint = Checkpoint::open(&args.dir)?;
    let tokenizer = checkpoint.tokenizer()?.ok_or_else(|| {
        let dir = args.dir.display();
        Usage(format!(
            "{dir} has no tokenizer (tiktoken.model or tokenizer.json), and chat is text"
        ))
    })?;
    let threads = args.machine.threads.unwrap_or_else(all_threads);
    let usual = checkpoint.max_context()?.min(USUAL_CONTEXT);
    let context = args.context.map_or(usual, |n| n as usize);
    let demand = Demand {
        memory: args.memory.0,
        context,
        // The second is the state that is kept to go back to.
        sequences: 2,
        fewer: false,
        work: (USUAL_PROMPT, USUAL_PROMPT),
        chunk: args.chunk,
        record: false,
        threads,
    };
    let options = Options { regime: args.regime, drafts: args.drafts > 0 };
    let prepared = prepare(&checkpoint, options, demand)?;
    let settings = Settings { context, chunk: prepared.chunk(), drafts: args.drafts };
    let kernels = giant::kernels(args.machine.backend.as_deref(), threads)?;
    let engine = giant::load(&checkpoint, prepared, kernels, args.quiet || args.json)?;
    let talk = Talk {
        chat: Chat::new(engine, &tokenizer, settings)?,
        show: Show::new(args.json, args.quiet),
        signals: Signals::listen()?,
        sampling,
        messages,
        args: &args,
    };
    talk.hold(Input::open(args.json)?)
}

/// The conversation so far: the history's, or the system text alone.
fn begin(args: &Args) -> anyhow::Result<Vec<Message>> {
    let stored = match &args.history {
        Some(path) if path.exists() => {
            let bytes = files::read(path, MAX_HISTORY_BYTES)?;
            let text = String::from_utf8(bytes).map_err(|e| e.to_string());
            let parsed = text.and_then(|t| history::parse(&t).map_err(|e| e.to_string()));
            parsed
                .map_err(|why| engine::Error::Corrupt { what: path.display().to_string(), why })?
        }
        _ => Vec::new(),
    };
    if let Some(path) = &args.history {
        files::check_writable(path)?;
    }
    let system = args.system.as_deref();
    history::with_system(stored, system).map_err(|e| Usage(e.to_string()).into())
}

/// A conversation under way.
struct Talk<'a> {
    chat: Chat<'a>,
    show: Show,
    signals: Signals,
    sampling: Sampling,
    messages: Vec<Message>,
    args: &'a Args,
}

impl Talk<'_> {
    fn hold(mut self, mut input: Input) -> anyhow::Result<Code> {
        if input.is_terminal() && !self.args.quiet {
            let said = self.messages.iter().filter(|m| m.role != Role::System).count();
            let so_far = match said {
                0 => String::new(),
                n => format!("{} so far; ", units::plural(n as u64, "message")),
            };
            ui::note(&ui::dim(&format!("{so_far}Ctrl-C stops a reply, Ctrl-D ends, /help")));
        }
        // A history may end with a question that was never answered.
        if self.messages.last().is_some_and(|m| m.role == Role::User)
            && let Some(code) = self.turn(Vec::new(), &input)?
        {
            return Ok(code);
        }
        loop {
            let said = match input.next()? {
                Line::End => return Ok(Code::Ok),
                Line::Said(messages) => messages,
                Line::Reset => {
                    self.messages.retain(|m| m.role == Role::System);
                    ui::note(&ui::dim("a new conversation"));
                    continue;
                }
            };
            if let Some(code) = self.signals.code() {
                return Ok(code);
            }
            if let Some(code) = self.turn(said, &input)? {
                return Ok(code);
            }
        }
    }

    /// One turn; the exit code if it is the last.
    fn turn(&mut self, said: Vec<Message>, input: &Input) -> anyhow::Result<Option<Code>> {
        let before = self.messages.len();
        self.messages.extend(said);
        let request = Request {
            thinking: self.args.thinking,
            effort: self.args.effort.unwrap_or_default(),
            ..Request::new(self.messages.clone())
        };
        let turn = self.messages.iter().filter(|m| m.role == Role::Assistant).count();
        let mut sampler = Sampler::new(self.sampling, turn as u64)?;
        let (show, signals) = (&mut self.show, &self.signals);
        let (began, most) = (Instant::now(), self.args.max_tokens as usize);
        let read = self.chat.engine().counters();
        show.begin();
        let answer = self.chat.reply(&request, most, &mut sampler, &mut |event| {
            show.hear(&event);
            signals.code().is_none() && !show.gone()
        });
        let answer = match answer {
            Ok(answer) => answer,
            // On a terminal a question that cannot be asked is taken back, and the talk goes on.
            Err(e @ (engine::Error::Refused(_) | engine::Error::Text(_)))
                if input.is_terminal() =>
            {
                self.messages.truncate(before);
                ui::error(&e.into());
                return Ok(None);
            }
            Err(e) => return Err(e.into()),
        };
        let read = self.chat.engine().counters().since(&read);
        self.show.end(&answer, began.elapsed(), &read)?;
        let cancelled = answer.reason == FinishReason::Cancelled;
        self.messages.push(answer.message);
        self.keep()?;
        if self.show.gone() {
            return Ok(Some(Code::Ok));
        }
        match self.signals.code() {
            Some(Code::Interrupted) if input.is_terminal() => {
                self.signals.forget();
                Ok(None)
            }
            code => Ok(code.filter(|_| cancelled)),
        }
    }

    /// Writes the history, whole.
    fn keep(&self) -> anyhow::Result<()> {
        let Some(path) = &self.args.history else { return Ok(()) };
        let text: String = self.messages.iter().map(history::line).collect();
        Ok(files::write_atomically(Path::new(path), &[text.as_bytes()])?)
    }
}
