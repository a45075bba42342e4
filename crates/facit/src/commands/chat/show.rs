//! Replies as they are made: answers on standard output, reasoning dimmed on standard error; or
//! one JSON object a reply.

use std::io::Write as _;
use std::time::Duration;

use engine::giant::chat::{Answer, Event};
use engine::giant::{self, Counters, FinishReason};
use serde::Serialize;
use text::chat::{self, Finish, ToolCall};

use crate::ui::{self, Live, Out, units};

/// Where a reply is shown.
pub struct Show {
    out: Out,
    json: bool,
    quiet: bool,
    live: Option<Live>,
    /// Reasoning was shown last, and its line is open.
    thinking: bool,
    failed: Option<anyhow::Error>,
}

#[derive(Serialize)]
struct Reply<'a> {
    message: Said<'a>,
    finish_reason: &'static str,
    /// What was wrong with the reply, if its format was broken or it was cut off.
    problem: Option<&'a str>,
    usage: Usage,
    token_ids: &'a [u32],
    seconds: f64,
    read: &'a Counters,
}

#[derive(Serialize)]
struct Said<'a> {
    role: &'static str,
    content: String,
    #[serde(skip_serializing_if = "Option::is_none")]
    reasoning_content: Option<&'a str>,
    #[serde(skip_serializing_if = "Vec::is_empty")]
    tool_calls: Vec<Call<'a>>,
}

#[derive(Serialize)]
struct Call<'a> {
    r#type: &'static str,
    function: Function<'a>,
}

#[derive(Serialize)]
struct Function<'a> {
    name: &'a str,
    arguments: &'a str,
}

impl<'a> From<&'a ToolCall> for Call<'a> {
    fn from(call: &'a ToolCall) -> Self {
        let function = Function { name: &call.name, arguments: &call.arguments };
        Call { r#type: "function", function }
    }
}

#[derive(Serialize)]
struct Usage {
    prompt_tokens: usize,
    completion_tokens: usize,
    /// Tokens of the prompt that the kept state had seen.
    reused_tokens: usize,
}

impl Show {
    pub fn new(json: bool, quiet: bool) -> Self {
        Show { out: Out::default(), json, quiet, live: None, thinking: false, failed: None }
    }

    /// Whether there is nobody to show anything to.
    pub fn gone(&self) -> bool {
        self.failed.is_some() || self.out.closed()
    }

    /// A reply begins.
    pub fn begin(&mut self) {
        self.live = Some(ui::live(0, self.json || self.quiet));
    }

    /// The reply goes on.
    pub fn hear(&mut self, event: &Event<'_>) {
        match event {
            // The prompt's progress; it makes way for the text.
            Event::Step(step @ giant::Event::Prefilled { .. }) => {
                self.live.iter_mut().for_each(|live| live.show(step));
            }
            Event::Step(_) => self.live.take().iter().for_each(Live::clear),
            Event::Said(_) if self.json => (),
            Event::Said(chat::Event::Reasoning(text)) if !self.quiet => {
                let _ = write!(std::io::stderr(), "{}", ui::dim(text));
                self.thinking = true;
            }
            Event::Said(chat::Event::Reasoning(_)) => (),
            Event::Said(chat::Event::Content(text)) => self.say(text),
            Event::Said(chat::Event::ToolCall(call)) => {
                self.say(&format!("\n[{} {}]", call.name, call.arguments));
            }
        }
    }

    fn say(&mut self, text: &str) {
        if std::mem::take(&mut self.thinking) {
            ui::note("");
        }
        if let Err(e) = self.out.bytes(text.as_bytes()) {
            self.failed.get_or_insert(e);
        }
    }

    /// The reply is over.
    pub fn end(&mut self, answer: &Answer, time: Duration, read: &Counters) -> anyhow::Result<()> {
        self.live.take().iter().for_each(Live::clear);
        if self.json {
            let line = serde_json::to_string(&reply(answer, time, read))?;
            return self.out.line(&line);
        }
        self.say("\n");
        if let Some(e) = self.failed.take() {
            return Err(e);
        }
        if self.quiet {
            return Ok(());
        }
        if let Some(problem) = problem(answer) {
            ui::note(&format!("the reply is not complete: {problem}"));
        }
        let (made, seconds) = (answer.ids.len(), time.as_secs_f64());
        let disk = match read.bytes() {
            0 => String::new(),
            n => format!(", {} read", units::bytes(n)),
        };
        ui::note(&ui::dim(&format!(
            "{} in {}; {} of {} in the conversation were kept{disk}",
            units::plural(made as u64, "token"),
            units::seconds(seconds),
            units::count(answer.reused as u64),
            units::plural(answer.prompt as u64, "id"),
        )));
        Ok(())
    }
}

/// What keeps a reply from being whole, in the format's own words.
fn problem(answer: &Answer) -> Option<&str> {
    match &answer.finish {
        Finish::Stop | Finish::ToolCalls => None,
        Finish::Unfinished(what) | Finish::Malformed(what) => Some(what),
    }
}

fn reply<'a>(answer: &'a Answer, time: Duration, read: &'a Counters) -> Reply<'a> {
    let finish_reason = match (&answer.finish, answer.reason) {
        (Finish::Stop, _) => "stop",
        (Finish::ToolCalls, _) => "tool_calls",
        (Finish::Malformed(_), _) => "malformed",
        // The model ended its reply before the format's end.
        (Finish::Unfinished(_), FinishReason::Stop) => "malformed",
        (Finish::Unfinished(_), reason) => reason.name(),
    };
    Reply {
        message: Said {
            role: answer.message.role.name(),
            content: answer.message.text(),
            reasoning_content: answer.message.reasoning.as_deref(),
            tool_calls: answer.message.tool_calls.iter().map(Call::from).collect(),
        },
        finish_reason,
        problem: problem(answer),
        usage: Usage {
            prompt_tokens: answer.prompt,
            completion_tokens: answer.ids.len(),
            reused_tokens: answer.reused,
        },
        token_ids: &answer.ids,
        seconds: time.as_secs_f64(),
        read,
    }
}
