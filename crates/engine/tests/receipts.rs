//! Receipts and saved states against every change of a byte, and receipts that are whole but lie.

use std::ops::ControlFlow;

use engine::digest::Digest;
use engine::receipt::{CHECKPOINT_TURNS, Receipt, Recorder, TurnRecord};
use engine::saved::{self, Saved};
use engine::verify::{Order, verify};
use engine::{Artifact, Backend, Error, Params, Session};

const ORDERS: [Order; 3] =
    [Order::Sequential, Order::Parallel { threads: 1 }, Order::Parallel { threads: 3 }];

/// What the lie is about, and how it is told.
type Lie<T> = (&'static str, fn(&mut T));

fn params() -> Params {
    Params {
        prompt: "One day".into(),
        max_tokens: 16,
        temperature: "0.9".parse().unwrap(),
        seed: u64::MAX,
    }
}

/// A run of the built-in model and its receipt, of several checkpoints.
fn recorded(artifact: &Artifact, turns: Option<u64>) -> Receipt {
    let mut session = Session::new(artifact.model(), &params()).unwrap();
    let mut recorder = Recorder::new(&session, &params()).unwrap();
    session.run_recorded(turns, &mut recorder, &mut |_| ControlFlow::Continue(())).unwrap();
    recorder.finish(&session)
}

fn outcome(receipt: &Receipt, artifact: &Artifact, order: Order) -> Result<(), Error> {
    let again = Receipt::decode(&receipt.encode(), "r")?;
    assert_eq!(&again, receipt, "what is read is what was written");
    verify(&again, artifact.model(), order, Backend::detect(), &|| ())
}

#[test]
fn a_true_receipt_verifies_in_every_order() {
    let artifact = Artifact::builtin();
    let whole = recorded(&artifact, None);
    assert!(whole.checkpoints.len() >= 2, "{} turns", whole.turns.len());
    for backend in Backend::supported() {
        verify(&whole, artifact.model(), ORDERS[2], backend, &|| ()).unwrap();
    }
    // Paused before the first turn, at a checkpoint, and one turn before and after it.
    for turns in [None, Some(0), Some(1), Some(15), Some(16), Some(17), Some(32)] {
        let receipt = recorded(&artifact, turns);
        for order in ORDERS {
            outcome(&receipt, &artifact, order).unwrap();
        }
    }
}

/// Whatever one turn says wrongly, that turn is named, the first one if there are several, in
/// every order, also when the turn is the last before a checkpoint or the first after it.
#[test]
fn the_first_turn_that_differs_is_named() {
    let artifact = Artifact::builtin();
    let receipt = recorded(&artifact, None);
    let last = receipt.turns.len();
    let lies: [Lie<TurnRecord>; 6] = [
        ("the state", |turn| turn.state_sha256.0[31] ^= 1),
        ("the plan", |turn| turn.estimated_cu += 1),
        ("the plan", |turn| turn.max_generated += 1),
        ("the plan", |turn| turn.sections.push(1)),
        ("work", |turn| turn.work -= 1),
        ("generated", |turn| turn.generated += 1),
    ];
    for (field, lie) in lies {
        for number in [1, 2, CHECKPOINT_TURNS, CHECKPOINT_TURNS + 1, last] {
            let mut receipt = receipt.clone();
            lie(&mut receipt.turns[number - 1]);
            if number != last {
                lie(&mut receipt.turns[last - 1]);
            }
            for order in ORDERS {
                match outcome(&receipt, &artifact, order).unwrap_err() {
                    Error::TurnDiffers { turn, field: named, .. } => {
                        assert_eq!(turn, number, "{field}, {order:?}");
                        assert_eq!(named, field);
                    }
                    error => panic!("{field} of turn {number}, {order:?}: {error}"),
                }
            }
        }
    }
}

#[test]
fn lies_outside_the_turns_are_named() {
    let artifact = Artifact::builtin();
    let receipt = recorded(&artifact, None);
    let lies: [Lie<Receipt>; 18] = [
        ("the tokens", |r| r.tokens[3] += 1),
        ("the tokens", |r| r.tokens.truncate(3)),
        ("the text", |r| r.text.push('!')),
        ("complete", |r| r.complete = false),
        ("the initial state", |r| r.prompt = "Two day".into()),
        ("the initial state", |r| r.seed = 1),
        ("the initial state", |r| r.temperature_q16 += 1),
        ("the initial state", |r| r.initial_state_sha256.0[0] ^= 1),
        ("state_bytes", |r| r.max_tokens += 1),
        ("state_bytes", |r| r.state_bytes += 1),
        ("1025 bytes", |r| r.prompt = "a".repeat(1025)),
        ("0 tokens asked for", |r| r.max_tokens = 0),
        ("another model", |r| r.model.sha256.0[0] ^= 1),
        ("another model", |r| r.model.config[6] -= 1),
        ("numerics", |r| r.numerics = "facit-fixed-2".into()),
        ("checkpoint", |r| drop(r.checkpoints.pop())),
        ("checkpoint after turn 16", |r| r.checkpoints[0].delta = "AAAA".into()),
        ("the checkpoint's state", |r| r.checkpoints[0].delta = r.checkpoints[1].delta.clone()),
    ];
    for (says, lie) in lies {
        let mut receipt = receipt.clone();
        lie(&mut receipt);
        for order in ORDERS {
            let message = outcome(&receipt, &artifact, order).unwrap_err().to_string();
            assert!(message.contains(says), "{says}, {order:?}: {message}");
        }
    }
}

/// A record cannot claim turns beyond the end of the run, or stop short and call it complete.
#[test]
fn turns_cannot_be_added_or_dropped() {
    let artifact = Artifact::builtin();
    let mut longer = recorded(&artifact, None);
    let last = longer.turns.last().unwrap().clone();
    longer.turns.push(last);
    let mut shorter = recorded(&artifact, None);
    shorter.turns.pop();
    let mut called_complete = recorded(&artifact, Some(20));
    called_complete.complete = true;
    for receipt in [&longer, &shorter, &called_complete] {
        for order in ORDERS {
            match outcome(receipt, &artifact, order).unwrap_err() {
                Error::TurnDiffers { turn, .. } => assert_eq!(turn, receipt.turns.len()),
                error => panic!("{order:?}: {error}"),
            }
        }
    }
}

#[test]
fn no_byte_of_a_receipt_can_change() {
    let artifact = Artifact::builtin();
    let receipt = recorded(&artifact, Some(17));
    assert_eq!(receipt.checkpoints.len(), 1);
    let bytes = receipt.encode();
    assert!(Receipt::decode(&bytes, "r").is_ok());
    for at in 0..bytes.len() {
        let mut changed = bytes.clone();
        // The letter case bit: what a careless comparison of hexadecimal would let through.
        changed[at] ^= 0x20;
        let error = Receipt::decode(&changed, "name").unwrap_err();
        assert!(matches!(error, Error::Corrupt { .. }), "byte {at}: {error}");
        assert!(error.to_string().starts_with("name: "), "byte {at}: {error}");
    }
    for len in (0..bytes.len()).step_by(101).chain(bytes.len() - 100..bytes.len()) {
        assert!(Receipt::decode(&bytes[..len], "r").is_err(), "{len} bytes");
    }
    assert!(Receipt::decode(&[&bytes, &b"\n"[..]].concat(), "r").is_err());
}

/// Sealing is not signing: a well-sealed file still has to be a receipt.
#[test]
fn sealed_nonsense_is_refused() {
    let seal = |body: &str| {
        let digest = Digest::of(body.as_bytes());
        format!("{body},\"sha256\":\"{digest}\"}}\n").into_bytes()
    };
    let receipt = recorded(&Artifact::builtin(), Some(17));
    let body = String::from_utf8(receipt.encode()).unwrap();
    let body = &body[..body.len() - 78];
    assert!(Receipt::decode(&seal(body), "r").is_ok());
    let swap = |from: &str, to: &str| {
        assert!(body.contains(from), "{from}");
        body.replacen(from, to, 1)
    };
    let deep = format!("{{\"format\":\"facit-receipt-1\",\"turns\":{}", "[".repeat(100_000));
    for (body, says) in [
        (swap("\"prompt\"", "\"prompts\""), "prompts"),
        (swap("\"complete\":false", "\"complete\":0"), "boolean"),
        (swap("\"18446744073709551615\"", "\"18446744073709551616\""), "seed"),
        (swap("\"seed\":\"", "\"seed\":\"x"), "seed"),
        (swap("facit-receipt-1", "facit-receipt-9"), "facit-receipt-9"),
        (swap("\"complete\"", "\"extra\":1,\"complete\""), "extra"),
        (swap("\"complete\":false", "\"complete\":false,\"complete\":false"), "duplicate"),
        (swap("\"turn\":16", "\"turn\":15"), "checkpoint"),
        (swap("\"temperature_q16\":", "\"temperature_q16\":99"), "temperature"),
        (deep, "not a receipt"),
    ] {
        let message = Receipt::decode(&seal(&body), "r").unwrap_err().to_string();
        assert!(message.contains(says), "{says}: {message}");
    }
}

#[test]
fn no_byte_of_a_saved_state_can_change() {
    let dir = tempfile::tempdir().unwrap();
    let path = dir.path().join("state");
    let artifact = Artifact::builtin();
    let mut short = params();
    short.max_tokens = 1;
    let mut session = Session::new(artifact.model(), &short).unwrap();
    session.run(Some(9), &mut |_| ControlFlow::Continue(())).unwrap();
    saved::save(&path, &session).unwrap();
    let bytes = std::fs::read(&path).unwrap();
    let saved = Saved::decode(&bytes, "s").unwrap();
    assert_eq!(saved.state.bytes(), session.state());
    saved.check_model(&artifact.model(), "s").unwrap();
    for at in 0..bytes.len() {
        let mut changed = bytes.clone();
        changed[at] ^= 1 << (at % 8);
        assert!(Saved::decode(&changed, "s").is_err(), "byte {at}");
    }
    for len in (0..bytes.len()).step_by(97).chain(bytes.len() - 100..bytes.len()) {
        assert!(Saved::decode(&bytes[..len], "s").is_err(), "{len} bytes");
    }
    assert!(Saved::decode(&[&bytes, &b"\0"[..]].concat(), "s").is_err());
}

/// A state sealed by somebody who knows the format still has to be a valid one.
#[test]
fn sealed_nonsense_is_not_a_state() {
    let artifact = Artifact::builtin();
    let dir = tempfile::tempdir().unwrap();
    let path = dir.path().join("state");
    let session = Session::new(artifact.model(), &params()).unwrap();
    saved::save(&path, &session).unwrap();
    let bytes = std::fs::read(&path).unwrap();
    let body = &bytes[..bytes.len() - 32];
    // Numerics, configuration, padding, length, and the state's tag, phase, layer and position.
    for at in [10, 72, 100, 108, 112, 112 + 8, 112 + 12, 112 + 20] {
        let mut body = body.to_vec();
        body[at] = 0xee;
        let sealed = [&body[..], &Digest::of(&body).0].concat();
        assert!(Saved::decode(&sealed, "s").is_err(), "byte {at}");
    }
}

/// The promised size: 512 tokens of stories260K under 3 MB.
#[test]
fn a_long_receipt_is_small() {
    let Some(model) = testkit::fixed_models::model("stories260K") else {
        return testkit::skipped("the size of a 512-token receipt of stories260K");
    };
    let artifact = Artifact::from_bytes("stories260K".into(), model.artifact()).unwrap();
    let params = Params {
        prompt: String::new(),
        max_tokens: 512,
        temperature: "1".parse().unwrap(),
        seed: 11, // meets no stop token
    };
    let mut session = Session::new(artifact.model(), &params).unwrap();
    let mut recorder = Recorder::new(&session, &params).unwrap();
    session.run_recorded(None, &mut recorder, &mut |_| ControlFlow::Continue(())).unwrap();
    let receipt = recorder.finish(&session);
    assert_eq!(receipt.tokens.len(), 512);
    let len = receipt.encode().len();
    testkit::note(format_args!("{len} bytes for {} turns", receipt.turns.len()));
    assert!(len < 3_000_000, "{len} bytes");
    let order = Order::Parallel { threads: 2 };
    verify(&receipt, artifact.model(), order, Backend::detect(), &|| ()).unwrap();
}
