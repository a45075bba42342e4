//! The committed corpus of bad files, each with the check that refuses it: for these tests, the
//! command line's, the web page's and as seeds of the fuzz targets. Catches a check that is dropped,
//! and a message that names another cause.

use fixed::{Artifact, Error, check_state, init_state, state_size};
use testkit::fixed_models::{Model, model};

fn put(bytes: &mut [u8], offset: usize, value: u32) {
    bytes[offset..offset + 4].copy_from_slice(&value.to_le_bytes());
}

/// A file, its name and what it is refused for (the error's name and its cause).
struct Bad {
    name: &'static str,
    bytes: Vec<u8>,
    why: &'static str,
}

fn changed(
    name: &'static str,
    good: &[u8],
    why: &'static str,
    change: impl Fn(&mut Vec<u8>),
) -> Bad {
    let mut bytes = good.to_vec();
    change(&mut bytes);
    Bad { name, bytes, why }
}

fn artifacts(good: &[u8]) -> Vec<Bad> {
    let offset = |table: usize| fixed::read_u32(good, 52 + 4 * table) as usize;
    let (descriptors, starts, sorted) = (offset(0), offset(5), offset(7));
    let bad = |name, why, change: &dyn Fn(&mut Vec<u8>)| changed(name, good, why, change);
    vec![
        bad(
            "empty.facit",
            "InvalidFormat: the file does not open with CURTAW01 and a section table",
            &|b| b.clear(),
        ),
        bad(
            "other-tag.facit",
            "InvalidFormat: the file does not open with CURTAW01 and a section table",
            &|b| b[0] = b'X',
        ),
        bad("cut-in-header.facit", "InvalidFormat: the file ends inside section zero", &|b| {
            b.truncate(200)
        }),
        bad(
            "cut-in-matrices.facit",
            "InvalidFormat: the file ends inside a matrix section",
            &|b| b.truncate(b.len() - 1),
        ),
        bad(
            "trailing-byte.facit",
            "InvalidFormat: the file goes on after its last section",
            &|b| b.push(0),
        ),
        bad("huge-section-zero.facit", "InvalidFormat: the file ends inside section zero", &|b| {
            b[136..144].fill(0xFF)
        }),
        bad("no-layers.facit", "InvalidFormat: the configuration is out of range", &|b| {
            put(b, 16, 0)
        }),
        bad(
            "huge-vocabulary.facit",
            "InvalidFormat: section zero's length does not fit its tables",
            &|b| put(b, 28, 1 << 20),
        ),
        bad(
            "section-count.facit",
            "InvalidFormat: section zero's length does not fit its tables",
            &|b| put(b, 36, u32::MAX),
        ),
        bad("reserved.facit", "InvalidFormat: a reserved header field is not zero", &|b| {
            b[127] = 1
        }),
        bad(
            "overlapping-tables.facit",
            "InvalidFormat: a table offset is not where the tables before it end",
            &|b| put(b, 60, fixed::read_u32(good, 56)),
        ),
        bad(
            "descriptor.facit",
            "InvalidFormat: a matrix descriptor does not follow from the configuration",
            &|b| put(b, descriptors + 4, 8),
        ),
        bad(
            "token-starts.facit",
            "InvalidFormat: a token's text has no length from 0 to 128 bytes",
            &|b| put(b, starts + 8, u32::MAX),
        ),
        bad(
            "sorted-id.facit",
            "InvalidFormat: a sorted id is outside the vocabulary, or its text outside the text",
            &|b| put(b, sorted, 17),
        ),
        bad(
            "sorted-twice.facit",
            "InvalidFormat: the sorted ids are not in the order of their texts",
            &|b| b.copy_within(sorted..sorted + 4, sorted + 4),
        ),
    ]
}

fn states(good: &[u8]) -> Vec<Bad> {
    let bad = |name, why, change: &dyn Fn(&mut Vec<u8>)| changed(name, good, why, change);
    vec![
        bad(
            "empty.state",
            "InvalidState: the state does not open with CURTAST2 and a header",
            &|b| b.clear(),
        ),
        bad(
            "other-tag.state",
            "InvalidState: the state does not open with CURTAST2 and a header",
            &|b| b[7] = b'1',
        ),
        bad(
            "cut.state",
            "InvalidState: the state's length does not fit its prompt and maximum tokens",
            &|b| b.truncate(b.len() - 8),
        ),
        bad(
            "longer-prompt.state",
            "InvalidState: the state's length does not fit its prompt and maximum tokens",
            &|b| put(b, 28, 1024),
        ),
        bad(
            "no-tokens.state",
            "InvalidState: the prompt's length or maximum tokens are out of range",
            &|b| put(b, 36, 0),
        ),
        bad("phase.state", "InvalidState: the phase is above 20", &|b| put(b, 8, 21)),
        bad("layer.state", "InvalidState: the layer is out of range", &|b| put(b, 12, 1)),
        bad("row.state", "InvalidState: the row is out of range for the phase", &|b| put(b, 16, 1)),
        bad("position.state", "InvalidState: the position is beyond the cache", &|b| {
            put(b, 20, u32::MAX);
        }),
        bad("token.state", "InvalidState: the current token is outside the vocabulary", &|b| {
            put(b, 24, 17);
        }),
        bad(
            "generated.state",
            "InvalidState: the position does not fit the generated tokens",
            &|b| {
                put(b, 44, 1);
            },
        ),
        bad("stage.state", "InvalidState: an attention stage outside attention", &|b| {
            put(b, 120, 1)
        }),
        bad("prompt-token.state", "InvalidState: a prompt token is outside the vocabulary", &|b| {
            put(b, 136 + 4, 17);
        }),
    ]
}

fn checkpoints(good: &Model) -> Vec<Bad> {
    let bad =
        |name, why, change: &dyn Fn(&mut Vec<u8>)| changed(name, &good.checkpoint, why, change);
    vec![
        bad("header.bin", "InvalidFormat: a checkpoint of 27 bytes has no header", &|b| {
            b.truncate(27);
        }),
        bad(
            "magic.bin",
            "InvalidConfig: the checkpoint's header is out of range: [842296161, 7, 1, 1, 1, 17, 24] \
             (dim, hidden, layers, heads, kv heads, vocabulary, context); only llama2.c version 0 files \
             can be converted",
            &|b| b[..4].copy_from_slice(b"ak42"),
        ),
        bad(
            "cut.bin",
            "InvalidFormat: the checkpoint has 4227 bytes, its header asks for 4228",
            &|b| b.truncate(b.len() - 1),
        ),
        bad(
            "not-a-number.bin",
            "InvalidFormat: row 0 of the embedding matrix of layer 0 is not finite or too large",
            &|b| put(b, 28, f32::NAN.to_bits()),
        ),
        bad(
            "norm.bin",
            "InvalidFormat: normalisation vector 0 holds -inf, outside -128..128",
            &|b| put(b, 28 + 4 * 170, f32::NEG_INFINITY.to_bits()),
        ),
    ]
}

fn tokenizers(good: &Model) -> Vec<Bad> {
    let bad =
        |name, why, change: &dyn Fn(&mut Vec<u8>)| changed(name, &good.tokenizer, why, change);
    vec![
        bad("empty.tok", "InvalidFormat: the tokenizer file is empty or cut short", &|b| b.clear()),
        bad("cut.tok", "InvalidFormat: the tokenizer ends inside token 16 of 17", &|b| {
            b.truncate(b.len() - 1);
        }),
        bad("few.tok", "InvalidFormat: the tokenizer ends at token 0 of 17", &|b| b.truncate(8)),
        bad("trailing.tok", "InvalidFormat: the tokenizer has 1 bytes after its 17 tokens", &|b| {
            b.push(0);
        }),
        bad("length.tok", "InvalidFormat: token 0 does not have 0 to 128 bytes", &|b| {
            put(b, 8, u32::MAX);
        }),
        bad("score.tok", "InvalidFormat: the score of token 0 is not a number", &|b| {
            put(b, 4, f32::NAN.to_bits());
        }),
    ]
}

/// Compares with the committed file, or renews it: `FACIT_RENEW=1 cargo test --test bad_files`.
fn check(bad: &Bad, refused: String) {
    assert_eq!(refused, bad.why, "{}", bad.name);
    let path = testkit::root().join("vectors/fixed/bad").join(bad.name);
    if std::env::var_os("FACIT_RENEW").is_some() {
        std::fs::write(&path, &bad.bytes).unwrap();
    }
    let committed = std::fs::read(&path).unwrap_or_else(|e| panic!("{}: {e}", path.display()));
    assert!(committed == bad.bytes, "{} is not what the test makes", path.display());
}

#[test]
fn every_bad_file_is_refused_for_its_own_fault() {
    let tiny = model("tiny").unwrap();
    let artifact = tiny.artifact();
    let metadata = Artifact::new(&artifact).unwrap().metadata;
    for bad in artifacts(&artifact) {
        check(&bad, Artifact::new(&bad.bytes).unwrap_err().to_string());
    }

    // Tokenized, so that it stands at the first embedding.
    let mut state = vec![0; state_size(metadata.config, 4, 3).unwrap()];
    init_state(metadata.config, &mut state, b"abab", 3, 0, 1).unwrap();
    fixed::turn(metadata.config, &mut state, metadata.bytes, &[]).unwrap();
    check_state(metadata.config, &state).unwrap();
    for bad in states(&state) {
        let fault = check_state(metadata.config, &bad.bytes).unwrap_err();
        assert_eq!(fault.error, Error::InvalidState);
        check(&bad, fault.to_string());
    }

    for bad in checkpoints(&tiny) {
        let refused = fixed::convert::convert(&bad.bytes, &tiny.tokenizer).unwrap_err();
        check(&bad, refused.to_string());
    }
    for bad in tokenizers(&tiny) {
        let refused = fixed::convert::convert(&tiny.checkpoint, &bad.bytes).unwrap_err();
        check(&bad, refused.to_string());
    }
}

/// Catches a file in the folder that no test makes.
#[test]
fn the_folder_holds_these_files_and_no_others() {
    let tiny = model("tiny").unwrap();
    let mut names: Vec<String> = std::fs::read_dir(testkit::root().join("vectors/fixed/bad"))
        .unwrap()
        .map(|entry| entry.unwrap().file_name().into_string().unwrap())
        .collect();
    names.sort();
    let state = vec![0; 256];
    let all = [artifacts(&tiny.artifact()), states(&state), checkpoints(&tiny), tokenizers(&tiny)];
    let mut made: Vec<&str> = all.iter().flatten().map(|bad| bad.name).collect();
    made.sort();
    assert_eq!(names, made);
}
