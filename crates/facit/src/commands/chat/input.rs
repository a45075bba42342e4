//! Where messages come from: an editor on a terminal, lines of text or of JSON from a pipe.

use std::io::{BufRead as _, IsTerminal as _, Read as _};

use rustyline::error::ReadlineError;
use rustyline::{Behavior, Config, DefaultEditor};
use text::chat::{Message, Request, Role};
use text::json;

use crate::exit::Usage;
use crate::ui;

/// Longest line that is read, in bytes.
const MAX_LINE_BYTES: u64 = 16 << 20;

const HELP: &str = "\
/reset   begin a new conversation (the system text stays)
/exit    end, as Ctrl-D does
//text   say a line that begins with a slash
Ctrl-C   stop a reply; what was said so far stays in the conversation";

/// What a line asks for.
pub enum Line {
    /// Messages to answer.
    Said(Vec<Message>),
    /// A new conversation.
    Reset,
    /// The end.
    End,
}

/// Standard input.
pub enum Input {
    Terminal(Box<DefaultEditor>),
    Lines,
    Json,
}

impl Input {
    /// An editor if somebody types, lines otherwise.
    pub fn open(json: bool) -> anyhow::Result<Self> {
        Ok(if json {
            Input::Json
        } else if std::io::stdin().is_terminal() {
            let config = Config::builder().behavior(Behavior::PreferTerm).build();
            Input::Terminal(Box::new(DefaultEditor::with_config(config)?))
        } else {
            Input::Lines
        })
    }

    pub fn is_terminal(&self) -> bool {
        matches!(self, Input::Terminal(_))
    }

    /// The next line that asks for something.
    pub fn next(&mut self) -> anyhow::Result<Line> {
        loop {
            let line = match self {
                Input::Terminal(editor) => match editor.readline("> ") {
                    Ok(line) => {
                        editor.add_history_entry(&line)?;
                        command(&line)
                    }
                    Err(ReadlineError::Eof) => Some(Line::End),
                    Err(ReadlineError::Interrupted) => {
                        ui::note(&ui::dim("Ctrl-D ends"));
                        None
                    }
                    Err(e) => return Err(e.into()),
                },
                Input::Lines => Some(match read_line()? {
                    None => Line::End,
                    Some(text) => said(text),
                }),
                Input::Json => Some(match read_line()? {
                    None => Line::End,
                    Some(text) => Line::Said(parse(&text)?),
                }),
            };
            if let Some(line) = line {
                return Ok(line);
            }
        }
    }
}

fn said(text: impl Into<String>) -> Line {
    Line::Said(vec![Message::new(Role::User, text)])
}

/// A line typed at the terminal; `None` if there is nothing to do.
fn command(line: &str) -> Option<Line> {
    match line.trim() {
        "" => None,
        "/exit" => Some(Line::End),
        "/reset" => Some(Line::Reset),
        "/help" => {
            ui::note(HELP);
            None
        }
        text if text.starts_with("//") => Some(said(&text[1..])),
        text if text.starts_with('/') => {
            ui::note(&format!("no command {text:?}; /help lists them, //text says it"));
            None
        }
        _ => Some(said(line)),
    }
}

fn read_line() -> anyhow::Result<Option<String>> {
    let mut line = Vec::new();
    let read = std::io::stdin().lock().take(MAX_LINE_BYTES + 1).read_until(b'\n', &mut line);
    let read = read.map_err(|e| Usage(format!("cannot read standard input: {e}")))?;
    if read as u64 > MAX_LINE_BYTES {
        return Err(Usage(format!("a line of more than {MAX_LINE_BYTES} bytes")).into());
    }
    if read == 0 {
        return Ok(None);
    }
    if line.pop_if(|b| *b == b'\n').is_some() {
        line.pop_if(|b| *b == b'\r');
    }
    let text = String::from_utf8(line);
    Ok(Some(text.map_err(|e| Usage(format!("standard input is not UTF-8: {e}")))?))
}

/// A message, or an array of messages.
fn parse(line: &str) -> anyhow::Result<Vec<Message>> {
    let bad = |what: String| Usage(format!("standard input: {what}"));
    let value = json::parse(line).map_err(|e| bad(format!("not JSON: {}", e.what)))?;
    if value.as_array().is_some() {
        let messages = Request::messages_from_json(&value).map_err(|e| bad(e.to_string()))?;
        return match messages.is_empty() {
            true => Err(bad("an array without messages".into()).into()),
            false => Ok(messages),
        };
    }
    Ok(vec![Message::from_json(&value).map_err(bad)?])
}

#[cfg(test)]
mod tests {
    use super::{Line, command};

    /// Catches text that is taken for a command, and a command that is said to the model.
    #[test]
    fn commands_and_text_are_told_apart() {
        let said = |line: &str| match command(line) {
            Some(Line::Said(messages)) => Some(messages[0].text()),
            _ => None,
        };
        assert_eq!(said("  what is 1/2? ").as_deref(), Some("  what is 1/2? "));
        assert_eq!(said("//etc is a directory").as_deref(), Some("/etc is a directory"));
        for nothing in ["", "  ", "/help", "/nonsense"] {
            assert!(command(nothing).is_none(), "{nothing}");
        }
        assert!(matches!(command("/reset"), Some(Line::Reset)));
        assert!(matches!(command(" /exit "), Some(Line::End)));
    }
}
