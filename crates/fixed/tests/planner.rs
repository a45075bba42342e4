//! The planner against published tables and against plans of the Python definition, for shapes from
//! tiny to the largest that the format allows. Catches a wrong price or a chunk cut elsewhere.

use fixed::planner::{Cursor, plan_from};
use fixed::{Config, state_size};
use testkit::fixed_goldens::json;
use testkit::sha256;

fn config(words: [u32; 7]) -> Config {
    Config::new(words).unwrap()
}

const STORIES_260K: [u32; 7] = [64, 172, 5, 8, 4, 512, 512];
const STORIES_15M: [u32; 7] = [288, 768, 6, 6, 6, 32000, 256];

/// What each row of the published table adds up: phases, stories260K, stories15M.
const PUBLISHED: [(&str, &[u32], u64, u64); 17] = [
    ("embedding", &[3], 1_696, 5_280),
    ("attention normalization", &[4], 23_660, 92_904),
    ("query matrix", &[5], 110_070, 2_373_876),
    ("key matrix", &[6], 58_550, 2_392_176),
    ("value matrix", &[7], 58_550, 2_392_176),
    ("rotary encoding", &[8], 18_720, 86_976),
    ("attention", &[9], 4_083_080, 8_403_448),
    ("attention output matrix", &[10], 110_070, 2_378_352),
    ("feed-forward normalization", &[11], 26_220, 106_728),
    ("gate matrix", &[12], 288_270, 6_321_384),
    ("up matrix", &[13], 288_270, 6_316_908),
    ("SiLU", &[14], 24_000, 114_624),
    ("down matrix", &[15], 279_012, 6_247_788),
    ("residual", &[16], 4_000, 15_552),
    ("final normalization", &[17], 4_732, 15_484),
    ("classifier", &[18], 169_854, 43_785_854),
    ("sampling and decoding", &[19], 10_142, 357_020),
];

/// Charges by phase, and turns, of one generating position at the end of the context.
fn last_position(words: [u32; 7]) -> ([u64; 20], u64) {
    let config = config(words);
    let last = words[6] - 1;
    let mut cursor = Cursor { phase: 3, position: last, generated: last, ..Cursor::default() };
    let (mut charged, mut turns) = ([0; 20], 0);
    while cursor.phase != 20 {
        let plan = plan_from(config, cursor, 1, last + 1, 0, |phase, cu| {
            charged[phase as usize] += u64::from(cu);
        })
        .unwrap();
        cursor = plan.end;
        turns += 1;
    }
    (charged, turns)
}

#[test]
fn the_two_published_tables() {
    let (small, small_turns) = last_position(STORIES_260K);
    let (large, large_turns) = last_position(STORIES_15M);
    for (name, phases, want_small, want_large) in PUBLISHED {
        let sum = |charged: &[u64; 20]| phases.iter().map(|p| charged[*p as usize]).sum::<u64>();
        assert_eq!((sum(&small), sum(&large)), (want_small, want_large), "{name}");
    }
    assert_eq!((small_turns, large_turns), (5, 62));
    assert_eq!(small.iter().sum::<u64>() + 18_000 * small_turns, 5_648_896);
    assert_eq!(large.iter().sum::<u64>() + 18_000 * large_turns, 82_522_530);
}

/// The published sizes of run accounts: 256 bytes before the state.
#[test]
fn the_published_account_sizes() {
    let account = |words, prompt, max| 256 + state_size(config(words), prompt, max).unwrap();
    assert_eq!(account(STORIES_260K, 16, 12), 48_304);
    assert_eq!(account(STORIES_15M, 16, 8), 624_832);
    assert_eq!(account(STORIES_260K, 0, 512), 736_328);
    assert_eq!(account(STORIES_15M, 0, 256), 3_852_680);
}

#[test]
fn plans_of_every_shape_are_the_defined_ones() {
    let file = json("planner").unwrap();
    let cases = file["cases"].as_array().unwrap();
    assert!(cases.len() >= 12);
    for case in cases {
        let number = |key: &str| case[key].as_u64().unwrap();
        let words = |v: &serde_json::Value| -> Vec<u32> {
            v.as_array().unwrap().iter().map(|w| w.as_u64().unwrap() as u32).collect()
        };
        let config = config(words(&case["config"]).try_into().unwrap());
        let name = &case["name"];
        let start = words(&case["start"]);
        let mut cursor = Cursor {
            phase: start[0],
            layer: start[1],
            row: start[2],
            position: start[3],
            generated: start[4],
            pass: start[5],
            stage: start[6],
            index: start[7],
        };
        let (tokens, max) = (number("prompt_tokens") as u32, number("max_tokens") as u32);
        let temperature = number("temperature_q16") as u32;
        let (mut bytes, mut turns, mut total) = (Vec::new(), 0, 0);
        while cursor.phase != 20 {
            let plan = plan_from(config, cursor, tokens, max, temperature, |_, _| {}).unwrap();
            let c = plan.end;
            let row = [
                plan.section_count as u32,
                plan.sections[0],
                plan.sections[1],
                plan.estimated_cu,
                plan.max_generated,
                c.phase,
                c.layer,
                c.row,
                c.position,
                c.generated,
                c.pass,
                c.stage,
                c.index,
            ];
            bytes.extend(row.iter().flat_map(|w| w.to_le_bytes()));
            turns += 1;
            total += u64::from(plan.estimated_cu);
            cursor = c;
        }
        assert_eq!((turns, total), (number("turns"), number("total_cu")), "{name}");
        assert_eq!(sha256(&bytes), case["plans_sha256"].as_str().unwrap(), "{name}");
        let lens: Vec<u64> = (1..fixed::format::section_count(&config))
            .map(|i| fixed::format::section_len(&config, i as u32))
            .collect();
        let want: Vec<u64> =
            case["section_lens"].as_array().unwrap().iter().map(|v| v.as_u64().unwrap()).collect();
        assert_eq!(lens, want, "{name}: section lengths");
    }
}
