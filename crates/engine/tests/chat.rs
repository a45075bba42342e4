//! Conversations: the ids a sequence has seen are the rendering of the conversation, its state and
//! every reply are those of a fresh run, however the conversation came about.

use std::path::{Path, PathBuf};

use engine::giant::chat::{Answer, Chat, Event, Settings};
use engine::giant::{Checkpoint, Demand, Engine, Sampler, Sampling, Work, prepare};
use models::machine::Logits;
use numerics::{Backend, Kernels};
use text::Tokenizer;
use text::chat::{Effort, Message, Request, Role};

const CONTEXT: usize = 900;
const SETTINGS: Settings = Settings { context: CONTEXT, chunk: 50, drafts: 0 };

fn vectors(name: &str) -> PathBuf {
    testkit::root().join("vectors").join(name)
}

/// A small Kimi K3 whose vocabulary is that of the committed tokenizer.
fn kimi() -> tempfile::TempDir {
    let dir = tempfile::tempdir().unwrap();
    let shape = testkit::k3::Shape { vocab: 1215, ..testkit::k3::Shape::tiny() };
    shape.checkpoint(3).write(dir.path(), 1 << 20).unwrap();
    for name in ["tiktoken.model", "tokenizer_config.json"] {
        std::fs::copy(vectors("text/k3").join(name), dir.path().join(name)).unwrap();
    }
    dir
}

/// The committed small DeepSeek-V4.1 with room for a conversation, which its 64 positions are not.
fn deepseek() -> tempfile::TempDir {
    let dir = tempfile::tempdir().unwrap();
    for entry in std::fs::read_dir(vectors("deepseek_v41/tiny_model")).unwrap() {
        let path = entry.unwrap().path();
        std::fs::copy(&path, dir.path().join(path.file_name().unwrap())).unwrap();
    }
    let path = dir.path().join("config.json");
    let config = std::fs::read_to_string(&path).unwrap();
    let longer = config.replace("_embeddings\": 64", "_embeddings\": 2048");
    assert_ne!(config, longer);
    std::fs::write(path, longer).unwrap();
    dir
}

fn engine(dir: &Path) -> (Box<dyn Engine>, Tokenizer) {
    let checkpoint = Checkpoint::open(dir).unwrap();
    let demand = Demand {
        memory: None,
        context: CONTEXT,
        sequences: 2,
        fewer: false,
        work: (200, 100),
        chunk: Some(50),
        record: false,
        threads: 2,
    };
    let prepared = prepare(&checkpoint, Default::default(), demand).unwrap();
    let engine = prepared.load(Kernels::new(Backend::detect(), 2), &mut |_| ()).unwrap();
    (engine, checkpoint.tokenizer().unwrap().unwrap())
}

fn request(messages: &[Message], thinking: bool) -> Request {
    let effort = if thinking { Effort::Low } else { Effort::Default };
    Request { thinking, effort, ..Request::new(messages.to_vec()) }
}

fn reply(chat: &mut Chat<'_>, request: &Request, turn: u64, most: usize) -> Answer {
    let how = Sampling { temperature: 1.0, top_k: 0, top_p: 1.0, seed: 9 };
    let mut sampler = Sampler::new(how, turn).unwrap();
    chat.reply(request, most, &mut sampler, &mut |_| true).unwrap()
}

/// The state of a sequence that has seen `ids` in one go.
fn state(engine: &mut dyn Engine, ids: &[u32]) -> Vec<u8> {
    let sequence = engine.open(CONTEXT).unwrap();
    engine.step(&[Work { sequence, tokens: ids, logits: Logits::None }]).unwrap();
    let state = engine.save(sequence).write();
    engine.close(sequence);
    state
}

/// Catches a kept state that is not the conversation's: reasoning that the format drops, an end
/// token that is forgotten or fed twice, text that was spelled with other tokens.
#[test]
fn turns_on_a_kept_state_are_those_of_a_fresh_run() {
    for dir in [kimi(), deepseek()] {
        let dir = dir.path();
        let (kept, tokenizer) = engine(dir);
        let (mut fresh, _) = engine(dir);
        let mut chat = Chat::new(kept, &tokenizer, SETTINGS).unwrap();
        for thinking in [false, true] {
            let mut messages = vec![Message::new(Role::System, "be brief")];
            let (mut reused, mut last) = (0, None);
            for (turn, (said, most)) in
                [("hello", 7), ("a b c", 1), ("", 12), ("ok?", 5)].iter().enumerate()
            {
                messages.push(Message::new(Role::User, *said));
                let request = request(&messages, thinking);
                let answer = reply(&mut chat, &request, turn as u64, *most);
                // The ids are those of the rendering, then of the reply.
                let mut ids = text::chat::encode(&tokenizer, &request).unwrap();
                assert_eq!(answer.prompt, ids.len());
                ids.extend(&answer.ids[..answer.ids.len() - 1]);
                assert_eq!(chat.seen(), ids);
                let now = chat.engine().save(chat.sequence()).write();
                assert!(now == state(&mut *fresh, &ids), "another state in turn {turn}");
                // A reply that is spelled otherwise costs a turn at most, never all of them.
                let kept = answer.reused >= reused && answer.reused > 0;
                assert!(turn < 2 || kept, "turn {turn} began again");
                reused = answer.reused;
                last = Some((request, answer.clone()));
                messages.push(answer.message);
            }
            // And the reply is that of a conversation that is new to its engine.
            let (request, answer) = last.unwrap();
            let (other, _) = engine(dir);
            let mut new = Chat::new(other, &tokenizer, SETTINGS).unwrap();
            let again = reply(&mut new, &request, 3, 5);
            assert_eq!((again.ids, again.reused), (answer.ids, 0));
            assert_eq!(again.message, answer.message);
        }
    }
}

/// Catches a state that is taken for further than it is after a stop or a failure.
#[test]
fn a_reply_that_is_stopped_leaves_a_state_to_go_on_from() {
    let dir = kimi();
    let (kept, tokenizer) = engine(dir.path());
    let mut chat = Chat::new(kept, &tokenizer, SETTINGS).unwrap();
    let request = request(&[Message::new(Role::User, "hello there")], true);
    let whole = reply(&mut chat, &request, 0, 9);
    for stop_after in 0..12 {
        let mut sampler = Sampler::new(Sampling::GREEDY, 0).unwrap();
        let mut heard = 0;
        let stopped = chat.reply(&request, 9, &mut sampler, &mut |event| {
            heard += usize::from(matches!(event, Event::Step(_)));
            heard <= stop_after
        });
        assert!(stopped.unwrap().ids.len() <= stop_after);
        assert_eq!(reply(&mut chat, &request, 0, 9).ids, whole.ids, "stopped after {stop_after}");
    }
}

/// Catches a conversation that is cut silently.
#[test]
fn a_conversation_that_is_too_long_is_refused_and_the_chat_lives() {
    let dir = kimi();
    let (kept, tokenizer) = engine(dir.path());
    let settings = Settings { context: 60, ..SETTINGS };
    let mut chat = Chat::new(kept, &tokenizer, settings).unwrap();
    let mut sampler = Sampler::new(Sampling::GREEDY, 0).unwrap();
    let long = request(&[Message::new(Role::User, "word ".repeat(60))], false);
    let refused = chat.reply(&long, 5, &mut sampler, &mut |_| true).unwrap_err();
    assert!(refused.to_string().contains("60 positions"), "{refused}");
    let short = request(&[Message::new(Role::User, "a")], false);
    let answer = chat.reply(&short, 500, &mut sampler, &mut |_| true).unwrap();
    assert!(answer.prompt + answer.ids.len() <= 60);
}
