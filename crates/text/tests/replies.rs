//! Replies fed one id at a time: what they say, and how those end that break off or break the grammar.

mod support;

use proptest::prelude::*;
use std::sync::OnceLock;
use support::{deepseek, k3};
use text::Tokenizer;
use text::chat::{self, Event, Finish, Message, ReplyParser, Request, Role, ToolCall};

fn feed(tokenizer: &Tokenizer, thinking: bool, ids: &[u32]) -> (Vec<Event>, Finish) {
    let mut parser = ReplyParser::new(tokenizer, thinking).unwrap();
    let mut events = Vec::new();
    for &id in ids {
        events.extend(parser.push(tokenizer, id).unwrap());
    }
    let (tail, finish) = parser.end();
    events.extend(tail);
    (events, finish)
}

/// The reply spelled out, control tokens and all.
fn reply(tokenizer: &Tokenizer, thinking: bool, text: &str) -> (Message, Finish) {
    let (events, finish) = feed(tokenizer, thinking, &tokenizer.encode_trusted(text));
    (Message::from_events(&events), finish)
}

const K3_ANSWER: &str = "hmm<|close|>think<|sep|><|open|>response<|sep|>é 4<|close|>response<|sep|>\
    <|close|>message<|sep|><|end_of_msg|>";
const K3_CALLS: &str = "<|close|>think<|sep|><|open|>response<|sep|><|close|>response<|sep|><|open|>tools<|sep|>\
    <|open|>call tool=\"a &quot;&amp;\" index=\"1\"<|sep|><|open|>argument key=\"k\" type=\"string\"<|sep|>\
    \"v\"<|close|>argument<|sep|><|open|>argument key=\"n\" type=\"array\"<|sep|>[1, 2.50]<|close|>argument<|sep|>\
    <|close|>call<|sep|><|open|>call tool=\"b\" index=\"2\"<|sep|><|open|>json type=\"object\"<|sep|>{broken\
    <|close|>json<|sep|><|close|>call<|sep|><|close|>tools<|sep|><|close|>message<|sep|>[EOS]";
const DS_CALLS: &str = "why</think>Let me look.\n\n<｜DSML｜ calls>\n<｜DSML｜ invoke name=\"lookup\">\n\
    <｜DSML｜ parameter name=\"q\" string=\"true\">a</b \"x\"</｜DSML｜ parameter>\n\
    <｜DSML｜ parameter name=\"n\" string=\"false\">[1, null]</｜DSML｜ parameter>\n</｜DSML｜ invoke>\n\
    <｜DSML｜ invoke name=\"ping\">\n\n</｜DSML｜ invoke>\n</｜DSML｜ calls><｜end▁of▁sentence｜>";

fn call(name: &str, arguments: &str) -> ToolCall {
    ToolCall { id: None, name: name.into(), arguments: arguments.into() }
}

#[test]
fn k3_answers_and_calls() {
    let tokenizer = k3();
    let (message, finish) = reply(&tokenizer, true, K3_ANSWER);
    assert_eq!((message.reasoning.as_deref(), &*message.text()), (Some("hmm"), "é 4"));
    assert_eq!(finish, Finish::Stop);
    let (message, finish) = reply(&tokenizer, true, K3_CALLS);
    assert_eq!(
        message.tool_calls,
        [call("a \"&", r#"{"k": "\"v\"", "n": [1, 2.50]}"#), call("b", "{broken"),]
    );
    assert_eq!(finish, Finish::ToolCalls);
    let plain = "4<|close|>response<|sep|><|close|>message<|sep|><|end_of_msg|>";
    assert_eq!(reply(&tokenizer, false, plain), (Message::new(Role::Assistant, "4"), Finish::Stop));
}

#[test]
fn deepseek_answers_and_calls() {
    let tokenizer = deepseek();
    let (message, finish) = reply(&tokenizer, true, DS_CALLS);
    assert_eq!((message.reasoning.as_deref(), &*message.text()), (Some("why"), "Let me look."));
    assert_eq!(
        message.tool_calls,
        [call("lookup", r#"{"q": "a</b \"x\"", "n": [1, null]}"#), call("ping", "{}"),]
    );
    assert_eq!(finish, Finish::ToolCalls);
    let (message, finish) =
        reply(&tokenizer, false, "a\n\n<b ｜DSML｜ c\n\n<<｜end▁of▁sentence｜>");
    assert_eq!((&*message.text(), finish), ("a\n\n<b ｜DSML｜ c\n\n<", Finish::Stop));
}

/// Wherever a reply is cut it is unfinished, never finished and never malformed; nothing it said is lost.
#[test]
fn a_reply_cut_anywhere_is_unfinished() {
    for (tokenizer, text) in [(k3(), K3_ANSWER), (k3(), K3_CALLS), (deepseek(), DS_CALLS)] {
        let ids = tokenizer.encode_trusted(text);
        let (all, _) = feed(&tokenizer, true, &ids);
        for cut in 0..ids.len() {
            let (events, finish) = feed(&tokenizer, true, &ids[..cut]);
            assert!(matches!(finish, Finish::Unfinished(_)), "{cut}: {finish:?}");
            let (got, whole) = (Message::from_events(&events), Message::from_events(&all));
            let thought = |m: &Message| m.reasoning.clone().unwrap_or_default();
            // A character or marker that was begun may be shown where the whole has more.
            let shown = thought(&got).trim_end_matches('\u{fffd}').to_owned();
            assert!(thought(&whole).starts_with(&shown));
            assert!(whole.tool_calls.starts_with(&got.tool_calls));
        }
    }
}

/// The same with the end token coming too early: the model ended it there, which is no answer either.
#[test]
fn an_early_end_token_is_unfinished() {
    for (tokenizer, text, end) in [(k3(), K3_CALLS, "[EOS]"), (k3(), K3_ANSWER, "<|end_of_msg|>")] {
        let mut ids = tokenizer.encode_trusted(text);
        ids.pop();
        for cut in 0..ids.len() {
            let early = [&ids[..cut], &[tokenizer.control(end).unwrap()]].concat();
            let (_, finish) = feed(&tokenizer, true, &early);
            assert!(matches!(finish, Finish::Unfinished(_)), "{cut}: {finish:?}");
        }
    }
    let (_, finish) = reply(&deepseek(), true, "only thoughts<｜end▁of▁sentence｜>");
    assert_eq!(finish, Finish::Unfinished("the reply ends inside the reasoning".into()));
    let (_, finish) = reply(&deepseek(), false, "\n\n<｜DSML｜ calls>\n<｜end▁of▁sentence｜>");
    assert_eq!(finish, Finish::Unfinished("the reply ends inside the tool calls".into()));
}

#[test]
fn replies_against_the_grammar_are_malformed() {
    let open_tools = "<|close|>response<|sep|><|open|>tools<|sep|>";
    for (text, want) in [
        ("a<|open|>response<|sep|>", "control token <|open|> in the response element"),
        ("a[BOS]", "control token [BOS]"),
        ("a<|sep|>", "control token <|sep|>"),
        ("a<|close|>think<|sep|>", "closes in the response element"),
        ("a<|close|>resp<|open|>", "in a tag"),
        ("<|close|>response<|sep|>stray", "text in the message"),
        ("<|close|>response<|sep|><|open|>think<|sep|>", "opens in the message"),
        ("<|close|>response<|sep|><|open|>tools x<|sep|>", "bad tag"),
        (&format!("{open_tools}<|open|>call index=\"1\"<|sep|>"), "has no tool"),
        (
            &format!("{open_tools}<|open|>argument key=\"a\" type=\"null\"<|sep|>"),
            "opens in the tools",
        ),
        (
            &format!(
                "{open_tools}<|open|>call tool=\"f\" index=\"1\"<|sep|><|open|>argument key=\"a\" type=\"number\"\
                 <|sep|>true<|close|>argument<|sep|>"
            ),
            "is not a JSON number",
        ),
        (&format!("<|close|>{}", "x".repeat(20_000)), "too long"),
    ] {
        let (_, finish) = reply(&k3(), false, text);
        assert!(
            matches!(&finish, Finish::Malformed(what) if what.contains(want)),
            "{text}: {finish:?}"
        );
    }
    let begin = "\n\n<｜DSML｜ calls>\n<｜DSML｜";
    for (text, want) in [
        ("a</think>", "control token </think>"),
        ("a<｜User｜>", "control token <｜User｜>"),
        ("\n\n<｜DSML｜ call>\n<｜DSML｜", "unexpected"),
        (&format!("{begin} invoke>\n<｜DSML｜"), "unexpected"),
        (
            &format!(
                "{begin} invoke name=\"f\">\n<｜DSML｜ parameter name=\"a\" string=\"no\">x</｜DSML｜"
            ),
            "unexpected",
        ),
        (
            &format!(
                "{begin} invoke name=\"f\">\n<｜DSML｜ parameter name=\"a\" string=\"false\">x</｜DSML｜"
            ),
            "not JSON",
        ),
        (&format!("{begin} invoke name=\"f\"><｜User｜>"), "control token"),
    ] {
        let (_, finish) = reply(&deepseek(), false, text);
        assert!(
            matches!(&finish, Finish::Malformed(what) if what.contains(want)),
            "{text}: {finish:?}"
        );
    }
}

/// A reply that spells markers in text is text: here every marker is encoded as plain text.
#[test]
fn spelled_markers_in_a_reply_are_text() {
    for (tokenizer, text) in [(k3(), K3_CALLS), (deepseek(), DS_CALLS)] {
        let (events, finish) = feed(&tokenizer, true, &tokenizer.encode(text));
        assert_eq!(Message::from_events(&events).reasoning.as_deref(), Some(text));
        assert!(matches!(finish, Finish::Unfinished(_)));
    }
}

#[test]
fn ids_outside_the_vocabulary_are_errors_and_ids_after_the_end_are_ignored() {
    let tokenizer = k3();
    let mut parser = ReplyParser::new(&tokenizer, true).unwrap();
    assert!(parser.push(&tokenizer, 1 << 20).is_err());
    for id in tokenizer.encode_trusted(K3_ANSWER) {
        parser.push(&tokenizer, id).unwrap();
    }
    assert_eq!(parser.finished(), Some(&Finish::Stop));
    assert_eq!(parser.push(&tokenizer, 5).unwrap(), []);
    assert_eq!(parser.end(), (vec![], Finish::Stop));
}

fn tokenizers() -> &'static [Tokenizer; 2] {
    static BOTH: OnceLock<[Tokenizer; 2]> = OnceLock::new();
    BOTH.get_or_init(|| [k3(), deepseek()])
}

/// Texts that are easily taken for structure.
fn texts() -> impl Strategy<Value = String> {
    let part = prop::sample::select(vec![
        "a",
        "é",
        "😀",
        " ",
        "\n",
        "\n\n",
        "\n\n<",
        "<",
        "</",
        ">",
        "\"",
        "&",
        "&quot;",
        "｜DSML｜",
        " calls>",
        "</think>",
        "<|close|>",
        "<|sep|>",
        "[EOS]",
        "{\"a\": 1}",
        "</｜DSML｜ parameter>",
    ]);
    prop::collection::vec(part, 0..6).prop_map(|parts| parts.concat())
}

proptest! {
    /// What is rendered for an assistant turn is parsed back to that turn, by both formats.
    #[test]
    fn a_rendered_turn_parses_back(
        reasoning in texts(), content in texts(), name in "[a-z_]{1,8}", key in "[a-z]{1,5}", value in texts(),
        calls in 0usize..3) {
        for tokenizer in tokenizers() {
            let mut message = Message::new(Role::Assistant, content.clone());
            message.reasoning = Some(reasoning.clone()).filter(|r| !r.is_empty());
            let arguments = format!("{{{}: {}, \"n\": [1, 2.5]}}", text::json::quote(&key), text::json::quote(&value));
            message.tool_calls = vec![call(&name, &arguments); calls];
            if key == "n" { continue; }
            let mut request = Request::new(vec![Message::new(Role::User, "q"), message.clone()]);
            request.generation_prompt = false;
            request.keep_reasoning = true;
            let whole = chat::encode(tokenizer, &request).unwrap();
            request.generation_prompt = true;
            request.messages.pop();
            let prompt = chat::encode(tokenizer, &request).unwrap();
            prop_assert!(whole.starts_with(&prompt));
            let (events, finish) = feed(tokenizer, true, &whole[prompt.len()..]);
            prop_assert_eq!(Message::from_events(&events), message);
            prop_assert_eq!(finish, if calls > 0 { Finish::ToolCalls } else { Finish::Stop });
        }
    }

    /// No sequence of ids panics.
    #[test]
    fn any_ids_are_taken(ids in prop::collection::vec(prop_oneof![0u32..300, 360u32..384, 1200u32..1215], 0..60)) {
        for tokenizer in tokenizers() {
            let ids: Vec<u32> = ids.iter().map(|id| id % tokenizer.vocab_size() as u32).collect();
            feed(tokenizer, true, &ids);
            feed(tokenizer, false, &ids);
        }
    }
}
