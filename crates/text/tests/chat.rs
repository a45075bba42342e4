//! Chat formats: requests to prompts, against the official cases, our definition, and known ids.
#![allow(clippy::print_stderr)]

mod support;

use serde_json::Value;
use support::{deepseek, k3, vector};
use text::chat::{self, Effort, Message, Request, ResponseFormat, Role, Task, ToolChoice};
use text::{Error, Family, Piece, json};

/// A request in the vectors' shape.
fn request(value: &json::Value) -> Result<Request, Error> {
    let get = |key: &str| value.get(key).filter(|v| **v != json::Value::Null);
    let mut request = Request::new(Request::messages_from_json(get("messages").unwrap())?);
    request.tools = get("tools").and_then(json::Value::as_array).unwrap_or_default().to_vec();
    request.tool_choice = match get("tool_choice").and_then(json::Value::as_str) {
        Some("required") => ToolChoice::Required,
        Some("none") => ToolChoice::None,
        _ => ToolChoice::Auto,
    };
    if let Some(format) = get("response_format") {
        request.response_format = ResponseFormat::from_json(format)?;
    }
    request.thinking = get("thinking").and_then(json::Value::as_bool).unwrap_or(true);
    request.effort = match get("effort").and_then(json::Value::as_str) {
        Some(name) => Effort::from_name(name)?,
        None => Effort::Unstated,
    };
    request.generation_prompt =
        get("generation_prompt").and_then(json::Value::as_bool).unwrap_or(true);
    Ok(request)
}

fn parse(text: &str) -> json::Value {
    json::parse(text).unwrap()
}

fn k3_pieces(request: &Request) -> Vec<(String, bool)> {
    let pieces = chat::render(Family::KimiK3, request).unwrap().into_iter();
    let pair = |piece| match piece {
        Piece::Text(text) => (text, false),
        Piece::Control(spelling) => (spelling.to_owned(), true),
    };
    pieces.map(pair).collect()
}

/// The official encoder's results: each attribute, quote and content apart, or ids differ.
#[test]
fn k3_renders_the_official_cases() {
    let Some(path) = support::shared("goldens/public/kimi-k3/xtml_golden.json") else { return };
    let golden: Value = serde_json::from_slice(&std::fs::read(path).unwrap()).unwrap();
    let requests = parse(&vector("k3/golden_requests.json"));
    let (mut rendered, mut images) = (0, 0);
    for (name, want) in golden["cases"].as_object().unwrap() {
        let case = requests.get(name).unwrap_or_else(|| panic!("no request for {name}"));
        if case.as_str() == Some("image") {
            images += 1;
            continue;
        }
        let want: Vec<(String, bool)> = serde_json::from_value(want.clone()).unwrap();
        assert_eq!(k3_pieces(&request(case).unwrap()), want, "{name}");
        rendered += 1;
    }
    assert_eq!((rendered, images), (35, 3));
}

/// The same against our own definition (vectors/text/xtml.py), which needs no shared data.
#[test]
fn k3_renders_our_own_cases() {
    let cases = parse(&vector("k3/chat_cases.json"));
    for (name, case) in cases.as_object().unwrap() {
        let want = case.get("want").and_then(json::Value::as_array).unwrap().iter();
        let want: Vec<(String, bool)> = want
            .map(|piece| match piece.as_str() {
                Some(text) => (text.to_owned(), false),
                None => (piece.as_array().unwrap()[0].as_str().unwrap().to_owned(), true),
            })
            .collect();
        assert_eq!(k3_pieces(&request(case.get("request").unwrap()).unwrap()), want, "{name}");
    }
    assert!(cases.as_object().unwrap().len() >= 7);
}

/// Ids of the released model, by its own tokenizer. Its vocabulary is not here, so the ids of the
/// pieces are given; a piece cut, joined or placed otherwise is not in the table or gives other ids.
#[test]
fn k3_known_ids_of_a_chat_without_thinking() {
    let mut request = Request::new(vec![
        Message::new(Role::System, "You are helpful."),
        Message::new(Role::User, "Hello"),
    ]);
    request.thinking = false;
    let table: &[(&str, &[u32])] = &[
        ("<|end_of_msg|>", &[163_586]),
        ("<|open|>", &[163_587]),
        ("<|close|>", &[163_588]),
        ("<|sep|>", &[163_589]),
        ("message", &[2778]),
        (" role", &[6244]),
        ("=\"", &[878]),
        ("\"", &[1]),
        ("system", &[14062]),
        ("user", &[2482]),
        ("assistant", &[69702]),
        ("response", &[12092]),
        ("You are helpful.", &[3900, 554, 13205, 13]),
        ("Hello", &[19180]),
    ];
    let ids_of = |piece: &str| table.iter().find(|(text, _)| *text == piece).expect(piece).1;
    let ids: Vec<u32> =
        k3_pieces(&request).iter().flat_map(|(piece, _)| ids_of(piece)).copied().collect();
    let want = "163587 2778 6244 878 14062 1 163589 3900 554 13205 13 163588 2778 163589 163586 163587 2778 \
        6244 878 2482 1 163589 19180 163588 2778 163589 163586 163587 2778 6244 878 69702 1 163589 163587 \
        12092 163589";
    let want: Vec<u32> = want.split_whitespace().map(|id| id.parse().unwrap()).collect();
    assert_eq!(ids, want);
}

fn deepseek_request(case: &json::Value) -> Request {
    let messages = Request::messages_from_json(case.get("messages").unwrap()).unwrap();
    let options = case.get("options").unwrap();
    let mut request = Request::new(messages);
    request.thinking = options.get("thinking").and_then(json::Value::as_bool).unwrap_or(false);
    request.keep_reasoning = options.get("drop").and_then(json::Value::as_bool) == Some(false);
    request.effort = match options.get("effort") {
        Some(json::Value::String(name)) => Effort::from_name(name).unwrap(),
        Some(level) => Effort::Level(level.as_u32().unwrap() as u8),
        None => Effort::Default,
    };
    request
}

/// 21 of 21, as text and as ids: the original tokenizes the whole string, so a marker that stayed text, or text
/// that was not joined to its neighbour, changes the ids.
#[test]
fn deepseek_renders_the_encoding_cases() {
    let tokenizer = deepseek();
    let cases = parse(&vector("deepseek/encoding_cases.json"));
    let cases = cases.as_array().unwrap();
    for case in cases {
        let name = case.get("name").and_then(json::Value::as_str).unwrap();
        let want = case.get("prompt").and_then(json::Value::as_str).unwrap();
        let request = deepseek_request(case);
        let pieces = chat::render(Family::DeepseekV41, &request).unwrap();
        let spelled = pieces.iter().map(|piece| match piece {
            Piece::Text(text) => text.as_str(),
            Piece::Control(spelling) => spelling,
        });
        assert_eq!(spelled.collect::<String>(), want, "{name}");
        let ids = tokenizer.encode_pieces(&pieces).unwrap();
        assert_eq!(ids, tokenizer.encode_trusted(want), "{name}");
    }
    assert_eq!(cases.len(), 21);
}

/// The property of the crate, end to end: spelled markers give no control id beyond those of the plain chat.
#[test]
fn markers_in_messages_stay_text() {
    for tokenizer in [k3(), deepseek()] {
        let image = "<｜deepseek_image｜>";
        let controls = tokenizer.controls().map(|(_, s)| String::from_utf8(s.to_vec()).unwrap());
        let evil: String = controls.filter(|s| s != image).collect();
        let chat = |text: &str| {
            let mut request = Request::new(vec![
                Message::new(Role::System, text),
                Message::new(Role::User, text),
                Message { reasoning: Some(text.into()), ..Message::new(Role::Assistant, text) },
                Message::new(Role::User, text),
            ]);
            request.keep_reasoning = true;
            let ids = chat::encode(&tokenizer, &request).unwrap();
            ids.into_iter().filter(|&id| tokenizer.is_control(id)).collect::<Vec<u32>>()
        };
        assert_eq!(chat(&evil), chat("x"));
    }
}

#[test]
fn tools_of_the_request_go_into_deepseeks_system_message() {
    let case = parse(&vector("deepseek/encoding_cases.json"));
    let case = case.as_array().unwrap().iter();
    let case =
        case.clone().find(|c| c.get("name").unwrap().as_str() == Some("tools_chat")).unwrap();
    let on_message = deepseek_request(case);
    let mut on_request = on_message.clone();
    on_request.tools = std::mem::take(&mut on_request.messages[0].tools);
    let render = |r: &Request| chat::render(Family::DeepseekV41, r).unwrap();
    assert_eq!(render(&on_request), render(&on_message));
    on_request.messages.remove(0);
    assert!(matches!(&render(&on_request)[2], Piece::Text(t) if t.starts_with("\n\n## Tools")));
}

/// What a format cannot say must be refused by name, never dropped.
#[test]
fn refusals_name_what_is_wrong() {
    let ask = |messages: &str| Request::messages_from_json(&parse(messages)).map(Request::new);
    for (messages, want) in [
        (
            r#"[{"role":"user","content":[{"type":"image_url","image_url":{}}]}]"#,
            "message 0: content part `image_url`",
        ),
        (
            r#"[{"role":"user","content":"a"},{"role":"user","content":[{"type":"audio"}]}]"#,
            "message 1: content part `audio`",
        ),
        (r#"[{"role":"robot","content":"a"}]"#, "role \"robot\""),
        (r#"[{"role":"user","content":"a","colour":"red"}]"#, "field `colour`"),
        (r#"[{"role":"user","content":7}]"#, "`content` must be"),
        (r#"[{"content":"a"}]"#, "no `role`"),
        (r#"{"role":"user"}"#, "must be an array"),
        (
            r#"[{"role":"assistant","tool_calls":[{"function":{"arguments":"{}"}}]}]"#,
            "without a name",
        ),
        (r#"[{"role":"user","content":"a","task":"dance"}]"#, "unknown task"),
    ] {
        let error = ask(messages).unwrap_err().to_string();
        assert!(error.contains(want), "{error}");
    }
    let user = || Request::new(vec![Message::new(Role::User, "a")]);
    let with = |change: &dyn Fn(&mut Request)| {
        let mut request = user();
        change(&mut request);
        request
    };
    let k3 = Family::KimiK3;
    let deepseek = Family::DeepseekV41;
    let schema = || json::Value::Object(Vec::new());
    let assistant = |arguments: &str| {
        let mut message = Message::new(Role::Assistant, "");
        let call =
            chat::ToolCall { id: Some("i".into()), name: "f".into(), arguments: arguments.into() };
        message.tool_calls = vec![call.clone(), chat::ToolCall { id: Some("j".into()), ..call }];
        message
    };
    let result =
        |id: &str| Message { tool_call_id: Some(id.into()), ..Message::new(Role::Tool, "r") };
    for (family, request, want) in [
        (k3, with(&|r| r.messages.clear()), "no messages"),
        (k3, with(&|r| r.effort = Effort::Level(7)), "no numbers"),
        (k3, with(&|r| r.messages[0].task = Some(Task::Query)), "message 0"),
        (k3, with(&|r| r.messages[0].role = Role::LatestReminder), "latest_reminder"),
        (k3, with(&|r| r.messages[0].role = Role::Tool), "needs a name"),
        (k3, with(&|r| r.messages[0].tools = vec![schema()]), "only a system message"),
        (deepseek, with(&|r| r.effort = Effort::Unstated), "states its effort"),
        (deepseek, with(&|r| r.effort = Effort::Level(101)), "1 to 100"),
        (deepseek, with(&|r| r.tool_choice = ToolChoice::Required), "tool choice"),
        (deepseek, with(&|r| r.response_format = ResponseFormat::JsonObject), "json_object"),
        (deepseek, with(&|r| r.messages[0].name = Some("n".into())), "no names"),
        (
            deepseek,
            with(&|r| r.messages[0].content[0] = "a<｜deepseek_image｜>".into()),
            "images are refused",
        ),
        (deepseek, with(&|r| r.messages.push(assistant("{"))), "not a JSON object"),
        (
            deepseek,
            with(&|r| r.messages.extend([assistant("{}"), result("i"), result("?")])),
            "none of the calls",
        ),
        (
            deepseek,
            with(&|r| {
                r.messages
                    .push(Message { task: Some(Task::Query), ..Message::new(Role::User, "b") });
            }),
            "turn of its own",
        ),
    ] {
        let error = chat::render(family, &request).unwrap_err().to_string();
        assert!(error.contains(want), "{error}");
    }
    for bad in ["medium", "0", "101", "", "Low"] {
        assert!(Effort::from_name(bad).is_err(), "{bad}");
    }
}

/// A request may hold as many results as its size allows: looking each up in a list would take hours here.
#[test]
fn many_tool_results_are_ordered_quickly() {
    let n = 60_000;
    let mut calls = Message::new(Role::Assistant, "");
    let call = |i: usize| chat::ToolCall {
        id: Some(i.to_string()),
        name: "f".into(),
        arguments: "{}".into(),
    };
    calls.tool_calls = (0..n).map(call).collect();
    let result = |i: usize| Message {
        tool_call_id: Some(i.to_string()),
        ..Message::new(Role::Tool, format!("r{i}."))
    };
    let mut messages = vec![Message::new(Role::User, "q"), calls];
    messages.extend((0..n).rev().map(result));
    for family in [Family::KimiK3, Family::DeepseekV41] {
        let pieces = chat::render(family, &Request::new(messages.clone())).unwrap();
        let text = pieces.iter().map(|piece| match piece {
            Piece::Text(text) => text.as_str(),
            Piece::Control(spelling) => spelling,
        });
        let text: String = text.collect();
        assert!(text.find("r0.").unwrap() < text.find("r1.").unwrap());
        assert!(text.find("r1.").unwrap() < text.find(&format!("r{}.", n - 1)).unwrap());
    }
}

#[test]
fn history_files_round_trip_and_name_bad_lines() {
    let messages = vec![
        Message::new(Role::System, "S \"quoted\"\n"),
        Message::new(Role::User, "u"),
        Message { reasoning: Some("r".into()), ..Message::new(Role::Assistant, "é") },
        Message::new(Role::User, "again"),
    ];
    let text: String = messages.iter().map(chat::history::line).collect();
    assert_eq!(
        text.lines().nth(2).unwrap(),
        r#"{"role": "assistant", "content": "é", "reasoning_content": "r"}"#
    );
    assert_eq!(chat::history::parse(&text).unwrap(), messages);
    assert_eq!(chat::history::parse("").unwrap(), []);
    for (bad, want) in [
        ("{\"role\":\"assistant\",\"content\":\"a\"}", "line 1: role assistant where user is due"),
        (
            "{\"role\":\"user\",\"content\":\"a\"}\n{\"role\":\"user\",\"content\":\"b\"}",
            "line 2: role user",
        ),
        (
            "{\"role\":\"user\",\"content\":\"a\"}\n{\"role\":\"system\",\"content\":\"b\"}",
            "line 2: role system",
        ),
        ("{\"role\":\"user\",\"content\":\"a\"}\n\n", "line 2: not JSON"),
        ("{\"role\":\"user\"}", "line 1: `content`"),
        ("{\"role\":\"user\",\"content\":\"a\",\"x\":1}", "line 1: unknown field"),
        (
            "{\"role\":\"user\",\"content\":\"a\",\"reasoning_content\":\"b\"}",
            "line 1: only the assistant",
        ),
        ("{\"role\":\"user\",\"content\":\"a\"", "line 1: not JSON"),
    ] {
        let error = chat::history::parse(bad).unwrap_err().to_string();
        assert!(error.contains(want), "{error}");
    }
    let same = |m: &[Message], s| chat::history::with_system(m.to_vec(), s);
    assert_eq!(same(&messages, Some("S \"quoted\"\n")).unwrap(), messages);
    assert_eq!(same(&messages, None).unwrap(), messages);
    assert_eq!(same(&[], Some("x")).unwrap(), [Message::new(Role::System, "x")]);
    assert!(same(&messages, Some("S")).is_err());
    assert!(same(&messages[1..], Some("S")).is_err());
}
