//! The 111 error cases of the goldens: which error, and which of several comes first. Each case names
//! its input in words; `provoke` makes it. Run on the built-in model, and on stories260K when there.

use fixed::arith::{Backend, Scratch};
use fixed::planner::{ALLOWANCE, plan_turn, plan_turn_within};
use fixed::{
    Artifact, Config, Error, Metadata, StateInfo, WeightSection, init_state, state_size, turn,
    turn_with,
};
use testkit::fixed_models::{Model, model};

const PROMPT: &[u8] = b"Once upon a time";
const STORIES_260K: [u32; 7] = [64, 172, 5, 8, 4, 512, 512];

type Outcome = Result<(), Error>;

/// A model and what its cases start from.
struct Ground {
    model: Model,
    artifact: Vec<u8>,
    zero: usize,
    /// Prompt tokens of [`PROMPT`].
    tokens: u32,
}

impl Ground {
    fn new(model: Model) -> Ground {
        let artifact = model.artifact();
        let zero = Artifact::new(&artifact).unwrap().metadata.bytes.len();
        let mut ground = Ground { model, artifact, zero, tokens: 0 };
        ground.tokens = StateInfo::read(&ground.tokenised()).unwrap().prompt_tokens;
        ground
    }

    fn metadata(&self) -> Metadata<'_> {
        Metadata::new(&self.artifact[..self.zero]).unwrap()
    }

    fn config(&self) -> Config {
        self.metadata().config
    }

    fn fresh(&self, prompt: &[u8], max: u32) -> Vec<u8> {
        let mut state = vec![0; state_size(self.config(), prompt.len(), max).unwrap()];
        init_state(self.config(), &mut state, prompt, max, 0, 42).unwrap();
        state
    }

    /// A state that stands at the first embedding.
    fn tokenised(&self) -> Vec<u8> {
        let mut state = self.fresh(PROMPT, 12);
        self.turn(&mut state, &[]).unwrap();
        state
    }

    fn turn(&self, state: &mut [u8], sections: &[WeightSection<'_>]) -> Outcome {
        turn(self.config(), state, &self.artifact[..self.zero], sections).map(|_| ())
    }

    fn section(&self) -> &[u8] {
        &self.artifact[self.zero..]
    }

    fn complete(&self) -> Vec<u8> {
        let mut state = self.fresh(b"", 1);
        let sections = [WeightSection { index: 1, bytes: self.section() }];
        while !StateInfo::read(&state).unwrap().complete {
            self.turn(&mut state, &sections).unwrap();
        }
        state
    }
}

fn number(text: &str) -> i64 {
    text.chars().filter(|c| c.is_ascii_digit() || *c == '-').collect::<String>().parse().unwrap()
}

fn put(bytes: &mut [u8], offset: usize, value: u32) {
    bytes[offset..offset + 4].copy_from_slice(&value.to_le_bytes());
}

/// `dim = 63 in the stories260K configuration`.
fn config_case(input: &str) -> Outcome {
    let (field, rest) = input.split_once(" = ").unwrap();
    let value = number(rest.split_once(" in ").unwrap().0);
    let fields = ["dim", "hidden", "layers", "heads", "kv_heads", "vocab", "seq"];
    let mut words = STORIES_260K;
    words[fields.iter().position(|f| *f == field).unwrap()] = value as u32;
    Config::new(words).map(|_| ())
}

fn state_size_case(g: &Ground, input: &str) -> Outcome {
    let c = g.config();
    let size = match input {
        "prompt length 1,025" => state_size(c, 1025, 12),
        "prompt length 1,024" => state_size(c, 1024, 12),
        "max tokens 0" => state_size(c, 16, 0),
        "max tokens 513 (context 512)" => state_size(c, 16, 513),
        "max tokens 512" => state_size(c, 16, 512),
        _ if input.starts_with("state above 2^31-1 bytes") => {
            let large = Config::new([16384, 1, 256, 128, 128, 3, 65536]).unwrap();
            state_size(large, 0, 65536)
        }
        _ => panic!("no input {input}"),
    };
    size.map(|_| ())
}

fn init_state_case(g: &Ground, input: &str) -> Outcome {
    let (mut prompt, mut max, mut temperature, mut change) = (PROMPT.to_vec(), 12, 0, 0i64);
    match input {
        "prompt of 1,025 bytes" => prompt = vec![b'a'; 1025],
        "prompt with a zero byte" => prompt = b"a\0b".to_vec(),
        "prompt FF (not UTF-8)" => prompt = vec![0xFF],
        "overlong C0 80" => prompt = vec![0xC0, 0x80],
        "surrogate ED A0 80" => prompt = vec![0xED, 0xA0, 0x80],
        "truncated E2 82" => prompt = vec![0xE2, 0x82],
        "F4 90 80 80 (above U+10FFFF)" => prompt = vec![0xF4, 0x90, 0x80, 0x80],
        "temperature 1,048,577" => temperature = 1_048_577,
        "temperature 1,048,576" => temperature = 1_048_576,
        "max tokens 0" => max = 0,
        "max tokens 513" => max = 513,
        "buffer one byte short" => change = -1,
        "buffer eight bytes long" => change = 8,
        "bad temperature and bad buffer: prompt checks first" => {
            (temperature, change) = (1_048_577, -1);
        }
        _ => panic!("no input {input}"),
    }
    let size = state_size(g.config(), prompt.len(), max).unwrap_or(1000) as i64 + change;
    let mut state = vec![7; size as usize];
    let result = init_state(g.config(), &mut state, &prompt, max, temperature, 0);
    if result.is_err() {
        assert!(state.iter().all(|b| *b == 7), "{input}: written in spite of the error");
    }
    result
}

fn plan_turn_case(g: &Ground, input: &str) -> Outcome {
    let mut state = g.tokenised();
    let mut allowance = ALLOWANCE;
    match input {
        "tag changed" => state[0] ^= 1,
        "state one byte short" => state.truncate(state.len() - 1),
        "state of 100 bytes" => state.truncate(100),
        "phase 21" => put(&mut state, 8, 21),
        "layer 5" => put(&mut state, 12, 5),
        "position = cache positions" => put(&mut state, 20, PROMPT.len() as u32 + 13),
        "token 512" => put(&mut state, 24, 512),
        "prompt length 1,025" => put(&mut state, 28, 1025),
        "max tokens 0" => put(&mut state, 36, 0),
        "max tokens 513" => put(&mut state, 36, 513),
        "temperature above 16" => put(&mut state, 40, 1_048_577),
        "generated above max tokens" => put(&mut state, 44, 13),
        "text length above max x 128" => put(&mut state, 48, 12 * 128 + 1),
        "next byte above the prompt" => put(&mut state, 52, PROMPT.len() as u32 + 1),
        "prompt tokens above prompt bytes + 2" => put(&mut state, 32, PROMPT.len() as u32 + 3),
        "stage 4" => put(&mut state, 120, 4),
        "pass 3" => put(&mut state, 100, 3),
        "row above the matrix" => {
            put(&mut state, 8, 5);
            put(&mut state, 16, g.config().dim() as u32);
        }
        "phase 3 with no prompt tokens" => put(&mut state, 32, 0),
        "a complete state" => state = g.complete(),
        _ if input.starts_with("allowance 22,096, first chunk") => {
            (state, allowance) = before_a_dear_chunk(g);
        }
        _ if input.starts_with("allowance ") => {
            let text = input.strip_prefix("allowance ").unwrap();
            allowance = number(text.split_once(", fresh state").unwrap().0) as u32;
            state = g.fresh(PROMPT, 12);
        }
        _ => panic!("no input {input}"),
    }
    let with = plan_turn_within(g.config(), &state, allowance).map(|_| ());
    if allowance == ALLOWANCE {
        assert_eq!(plan_turn(g.config(), &state).map(|_| ()), with, "{input}");
    }
    with
}

/// A state at phase 4, whose one chunk exceeds the smallest allowance.
fn before_a_dear_chunk(g: &Ground) -> (Vec<u8>, u32) {
    let mut state = g.tokenised();
    put(&mut state, 8, 4);
    (state, 22_096)
}

fn turn_case(g: &Ground, input: &str) -> Outcome {
    let section = g.section();
    let one = |index, bytes| [WeightSection { index, bytes }];
    let mut state = g.tokenised();
    let before = state.clone();
    let longer = [section, &[1, 2, 3]].concat();
    let context = |max: u32| {
        let mut state = g.fresh(PROMPT, max);
        g.turn(&mut state, &[])
    };
    let room = 513 - g.tokens;
    let result = match input {
        "no matrix section given" => g.turn(&mut state, &[]),
        "section 2 given for section 1" => g.turn(&mut state, &one(2, section)),
        "section 1 one byte short" => g.turn(&mut state, &one(1, &section[..section.len() - 1])),
        "section 1 with spare bytes" => return g.turn(&mut state, &one(1, &longer)),
        "tokenising turn without matrix sections" => return context(12),
        "a complete state" => {
            state = g.complete();
            return g.turn(&mut state, &one(1, section));
        }
        "allowance 22,096, same state" => {
            let (mut state, allowance) = before_a_dear_chunk(g);
            let (m, mut scratch) = (g.metadata(), Scratch::default());
            let sections = one(1, section);
            let backend = Backend::detect();
            let result = turn_with(backend, &mut scratch, &m, &mut state, &sections, allowance);
            return result.map(|_| ());
        }
        "5 prompt tokens + 509 - 1 = 513 above 512" => return context(room + 1),
        "5 prompt tokens + 508 - 1 = 512" => return context(room),
        "empty prompt, max 512" => return g.turn(&mut g.fresh(b"", 512), &[]),
        _ => panic!("no input {input}"),
    };
    assert_eq!(state, before, "{input}: written in spite of missing weights");
    result
}

fn quote_case(g: &Ground, input: &str) -> Outcome {
    let (prompt, max) = match input {
        "5 prompt tokens + 509 - 1" => (PROMPT, 514 - g.tokens),
        "prompt with a zero byte" => (&b"a\0b"[..], 12),
        _ => panic!("no input {input}"),
    };
    let mut scratch = vec![0; state_size(g.config(), prompt.len(), max).unwrap()];
    let zero = &g.artifact[..g.zero];
    fixed::inference::quote_turns(g.config(), zero, prompt, max, 0, &mut scratch).map(|_| ())
}

fn metadata_case(g: &Ground, input: &str) -> Outcome {
    let mut zero = g.artifact[..g.zero].to_vec();
    let table = |i: usize| fixed::read_u32(&zero, 52 + 4 * i) as usize;
    let (descriptors, starts, sorted) = (table(0), table(5), table(7));
    let exponential = table(1) as u32;
    match input {
        "tag changed" => zero[7] ^= 1,
        "empty" => zero.clear(),
        "127 bytes" => zero.truncate(127),
        "one byte short" => zero.truncate(zero.len() - 1),
        "eight bytes long" => zero.extend([0; 8]),
        "dimension 0" => put(&mut zero, 8, 0),
        "section count 3" => put(&mut zero, 36, 3),
        "matrix count 35" => put(&mut zero, 40, 35),
        "reserved word set" => put(&mut zero, 48, 1),
        "exponential offset moved" => put(&mut zero, 56, exponential + 8),
        "section table length changed" => zero[128 + 24] ^= 8,
        "descriptor changed" => zero[descriptors + 8] ^= 1,
        "sorted ids swapped" => zero[sorted..sorted + 8].rotate_left(4),
        "token start decreasing" => put(&mut zero, starts + 4 * 3, 0),
        _ => panic!("no input {input}"),
    }
    let checked = Metadata::new(&zero).map(|_| ());
    assert_eq!(Metadata::check(&zero).map(|_| ()).map_err(Error::from), checked);
    checked
}

fn convert_case(g: &Ground, input: &str) -> Outcome {
    let (mut checkpoint, mut tokenizer) = (g.model.checkpoint.clone(), g.model.tokenizer.clone());
    let c = g.config();
    let float =
        |bytes: &mut [u8], index: usize, value: f32| put(bytes, 28 + 4 * index, value.to_bits());
    match input {
        "empty checkpoint" => checkpoint.clear(),
        "checkpoint one float short" => checkpoint.truncate(checkpoint.len() - 4),
        "checkpoint one float long" => checkpoint.extend([0; 4]),
        "heads 0 in the header" => put(&mut checkpoint, 12, 0),
        "a NaN weight" => float(&mut checkpoint, 17, f32::NAN),
        "an infinite weight" => float(&mut checkpoint, 17, f32::NEG_INFINITY),
        _ if input.starts_with("a weight of 40,000") => float(&mut checkpoint, 17, 40_000.0),
        "a normalisation weight of 128" => float(&mut checkpoint, c.vocab() * c.dim(), 128.0),
        "tokenizer truncated" => tokenizer.truncate(tokenizer.len() - 1),
        "tokenizer with a trailing byte" => tokenizer.push(0),
        "tokenizer of 3 bytes" => tokenizer.truncate(3),
        "token length -1" => put(&mut tokenizer, 8, u32::MAX),
        "NaN score" => put(&mut tokenizer, 4, f32::NAN.to_bits()),
        "token of 129 bytes" => {
            let len = fixed::read_u32(&tokenizer, 8) as usize;
            put(&mut tokenizer, 8, 129);
            tokenizer.splice(12..12 + len, [b'x'; 129]);
        }
        _ => panic!("no input {input}"),
    }
    let result = fixed::convert::convert(&checkpoint, &tokenizer);
    result.map(|_| ()).map_err(Error::from)
}

fn provoke(g: &Ground, api: &str, input: &str) -> Outcome {
    match api {
        "config" => config_case(input),
        "state_size" => state_size_case(g, input),
        "init_state" => init_state_case(g, input),
        "plan_turn" => plan_turn_case(g, input),
        "turn" => turn_case(g, input),
        "quote_turns" => quote_case(g, input),
        "Metadata" => metadata_case(g, input),
        "artifact" => {
            assert_eq!(input, "section one byte short");
            let artifact = Artifact::new(&g.artifact[..g.artifact.len() - 1]);
            artifact.map(|_| ()).map_err(Error::from)
        }
        "convert" => convert_case(g, input),
        _ => panic!("no function {api}"),
    }
}

fn check(name: &str) {
    let Some(model) = model(name) else {
        return testkit::skipped(name);
    };
    let ground = Ground::new(model);
    let file = testkit::fixed_goldens::json("errors").unwrap();
    let cases = file.as_array().unwrap();
    assert_eq!(cases.len(), 111);
    for case in cases {
        let [api, input, want] = ["api", "input", "name"].map(|key| case[key].as_str().unwrap());
        let (got, number) = match provoke(&ground, api, input) {
            Ok(()) => ("ok", 0),
            Err(error) => (error.name(), error.number()),
        };
        assert_eq!(
            (got, u64::from(number)),
            (want, case["error"].as_u64().unwrap()),
            "{api}: {input}"
        );
    }
}

#[test]
fn every_error_on_the_built_in_model() {
    check("facit-tales");
}

#[test]
fn every_error_on_stories260k() {
    check("stories260K");
}

/// Catches a view of words that trusts the caller's pointer.
#[test]
fn an_unaligned_state_is_refused() {
    let g = Ground::new(model("facit-tales").unwrap());
    let size = state_size(g.config(), 1, 1).unwrap();
    let mut home = vec![0u8; size + 8];
    let aligned = home.as_ptr().align_offset(8);
    let state = &mut home[(aligned + 1) % 8..][..size];
    assert_eq!(init_state(g.config(), state, b"a", 1, 0, 0), Err(Error::InvalidState));
    state.copy_from_slice(&g.fresh(b"a", 1));
    assert_eq!(plan_turn(g.config(), state), Err(Error::InvalidState));
    assert_eq!(g.turn(state, &[]), Err(Error::InvalidState));
    assert!(StateInfo::read(state).is_ok(), "reading needs no alignment");
}

/// Catches weights of another model running in silence.
#[test]
fn section_zero_of_another_model_is_refused() {
    let [a, b] = ["facit-tales", "gqa"].map(|name| Ground::new(model(name).unwrap()));
    let mut state = a.fresh(b"a", 1);
    let result = turn(a.config(), &mut state, &b.artifact[..b.zero], &[]);
    assert_eq!(result, Err(Error::InvalidFormat));
}

/// Catches a turn that trusts a plan made for an earlier state.
#[test]
fn a_stale_plan_is_refused() {
    let g = Ground::new(model("facit-tales").unwrap());
    let mut state = g.tokenised();
    let (m, sections) = (g.metadata(), [WeightSection { index: 1, bytes: g.section() }]);
    let mut scratch = Scratch::default();
    let mut turn = |state: &mut [u8], plan| {
        fixed::turn_planned(Backend::plain(), &mut scratch, &m, state, &sections, ALLOWANCE, plan)
    };
    let first = plan_turn(m.config, &state).unwrap();
    let result = turn(&mut state, &first).unwrap();
    assert_eq!(result.work, first.estimated_cu);
    assert_eq!(turn(&mut state.clone(), &first), Err(Error::InvalidState));
    let second = plan_turn(m.config, &state).unwrap();
    assert!(turn(&mut state, &second).is_ok());
    let mut complete = g.complete();
    assert_eq!(turn(&mut complete, &second), Err(Error::InvalidState));
}
